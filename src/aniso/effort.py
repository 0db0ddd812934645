"""How many partitions each query is worth: few where its nearest ones stand out, many where they are alike.

A search is told how many partitions to look at on average. From the routing scores of a query, that of the best
partition and how far it is above the 32nd, follows how much more or less this query gets:
exp(offset + level * best + gap * (best - 32nd)) times as many. The three numbers are learnt from queries whose best
points are known, so that these are found while the fewest points in all are scanned.

Scores are made comparable first: they are those of a query of length 1, and negative squared distances for l2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aniso import _core
from aniso._core import EFFORT_DEPTH, EFFORT_FURTHEST
from aniso.layout import PANEL, pack_panels
from aniso.store import Store
from aniso.survey import homes, slot_partitions

__all__ = ["learn_effort"]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

_LEAST_PARTITIONS = 4 * EFFORT_DEPTH
_LEAST_QUERIES = 100
_BEST = 10  # points of each query that are to be found
_TARGET = 0.95  # share of them: weights that suit it suit 0.9 and 0.99 too
_GAIN = 1.1  # less is not worth what queries unlike those learnt from may lose
_CHUNK = 16  # queries routed together
_FOLLOWED = 1024  # partitions of each query whose sizes are looked at; those beyond count as the mean of these


def learn_effort(store: Store, queries: F32, truth: NDArray[np.int64]) -> F32 | None:
    """Offset, level and gap for queries like these, whose best points are the rows of truth; None where all are alike.

    Needs a few hundred partitions and queries to learn from.
    """
    if len(store.sizes) < _LEAST_PARTITIONS or len(queries) < _LEAST_QUERIES or not truth.shape[1]:
        return None
    ranks, points, best, gap = _routed(store, queries, truth[:, :_BEST])
    middle = np.array([best.mean(), gap.mean()])
    spread = np.array([best.std(), gap.std()])
    if not (spread > 0).all() or not np.isfinite(spread).all():
        return None
    features = (np.stack([best, gap], axis=1) - middle) / spread
    target = _TARGET * float((ranks < len(store.sizes)).mean())
    weights, gain = _search(features, ranks, points, target)
    if gain < _GAIN:
        return None
    weights = weights / spread
    times = np.exp(np.clip((np.stack([best, gap], axis=1) - middle) @ weights, *_bounds()))
    offset = -float(middle @ weights) - float(np.log(times.mean()))  # so that the mean is 1
    return np.array([offset, *weights], np.float32)


def _routed(
    store: Store, queries: F32, truth: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32], F64, F64]:
    """When each true point is found (the place of its nearest partition in the order), and the two scores.

    The second array holds the points in the first 0, 1, 2 .. partitions of each query.
    """
    encoder, p = store.encoder, len(store.sizes)
    packed = encoder.partitions.packed()
    panels = pack_panels(encoder.partitions.bytes * packed.scales[0, :p, None])
    biases = packed.scales[1, :p]
    parts = homes(store, truth, slot_partitions(store))  # (queries, 2, best)
    ranks = np.empty(truth.shape, np.int64)
    best, gap = np.empty(len(queries)), np.empty(len(queries))
    points = np.zeros((len(queries), 1 + min(p, _FOLLOWED)), np.int32)
    for first in range(0, len(queries), _CHUNK):
        here = slice(first, first + _CHUNK)
        x = encoder.prepare(queries[here])
        products = np.empty((len(x), PANEL * len(panels)), np.float32)
        _core.multiply(x, panels, products)
        scores = products[:, :p] + biases
        places = np.argsort(-scores, axis=1, kind="stable")
        order = np.take_along_axis(scores, places, axis=1)
        points[here, 1:] = np.cumsum(store.sizes[places[:, : points.shape[1] - 1]], axis=1)
        own = np.take_along_axis(scores, parts[here].reshape(len(x), -1), axis=1)
        own = own.reshape(parts[here].shape).max(axis=1)
        for i in range(len(x)):
            ranks[first + i] = np.searchsorted(-order[i], -own[i])
        squares = np.einsum("qd,qd->q", x, x, dtype=np.float64)
        if encoder.config.metric == "l2":
            best[here] = 2 * order[:, 0] - squares
            gap[here] = 2 * (order[:, 0] - order[:, EFFORT_DEPTH - 1])
        else:
            lengths = np.sqrt(np.maximum(squares, 1e-30))
            best[here] = order[:, 0] / lengths
            gap[here] = (order[:, 0] - order[:, EFFORT_DEPTH - 1]) / lengths
    return ranks, points, best, gap


def _bounds() -> tuple[float, float]:
    return -float(np.log(EFFORT_FURTHEST)), float(np.log(EFFORT_FURTHEST))


def _cost(features: F64, weights: F64, ranks: NDArray[np.int64], points: NDArray[np.int32], target: float) -> float:
    """Points per query that are scanned to reach the target; how many partitions that takes is found by halving."""
    times = np.exp(np.clip(features @ weights, *_bounds()))
    low, high = 0.0, float(np.log(ranks.max() + 2.0) + np.log(EFFORT_FURTHEST))
    for _ in range(16):
        middle = (low + high) / 2
        if (ranks < np.exp(middle) * times[:, None]).mean() >= target:
            high = middle
        else:
            low = middle
    worth, most = np.exp(high) * times, points.shape[1] - 1
    inside = np.minimum(worth, most)
    whole = np.minimum(inside.astype(np.int64), most - 1)
    rows = np.arange(len(points))
    scanned = points[rows, whole] + (inside - whole) * (points[rows, whole + 1] - points[rows, whole])
    return float((scanned * worth / inside).mean())


def _search(features: F64, ranks: NDArray[np.int64], points: NDArray[np.int32], target: float) -> tuple[F64, float]:
    """Weights of least cost, by coordinate descent with shrinking steps, and how much they save."""
    weights = np.zeros(features.shape[1])
    plain = cost = _cost(features, weights, ranks, points, target)
    step = 0.4
    while step > 0.04:
        moved = False
        for at in range(len(weights)):
            for sign in (-1, 1):
                tried = weights.copy()
                tried[at] += sign * step
                now = _cost(features, tried, ranks, points, target)
                if now < cost:
                    weights, cost, moved = tried, now, True
        if not moved:
            step /= 2
    return weights, plain / cost
