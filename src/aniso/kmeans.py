"""Lloyd's algorithm on arrays, seeded, and its parts: the nearest codeword, a first choice, empty centroids."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aniso import _core

__all__ = ["KMeans", "directions", "kmeans", "nearest", "refill_empty", "spread_sample"]

_SPREAD_SAMPLE = 16384  # points that spread_sample looks at


class KMeans(NamedTuple):
    """What kmeans found."""

    centroids: NDArray[np.float32]  # (k, d)
    codes: NDArray[np.int32]  # (n,)


def nearest(
    points: NDArray[np.float32],
    centroids: NDArray[np.float32],
    *,
    eta: NDArray[np.float32] | None = None,
    threads: int = 1,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The codeword of least loss for each point, and that loss.

    The loss is |x - c|^2, or with eta (n,) the score-aware |r|^2 + (eta - 1) <r, x/|x|>^2 of r = x - c, which is
    eta |x|^2 + |c|^2 + g (-2 eta |x| + (eta - 1) g) for g = <x / |x|, c>.
    """
    n = len(points)
    squared = np.einsum("nd,nd->n", points, points, dtype=np.float64)
    if eta is None:
        linear, quadratic, constant = np.full(n, -2.0), np.zeros(n), squared
    else:
        wide = eta.astype(np.float64)
        linear, quadratic, constant = -2.0 * wide * np.sqrt(squared), wide - 1.0, wide * squared
        points = directions(points)
    codes, costs = np.empty(n, np.int32), np.empty(n, np.float32)
    norms = np.einsum("kd,kd->k", centroids, centroids)
    _core.assign(
        points, centroids, norms, linear.astype(np.float32), quadratic.astype(np.float32), codes, costs, threads=threads
    )
    return codes, np.maximum(constant + costs, 0.0).astype(np.float32)


def directions(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """Points divided by their norms; zero stays zero."""
    norms = np.sqrt(np.einsum("nd,nd->n", points, points, dtype=np.float64))
    inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    if inverse.max(initial=0.0) < 1e30:  # fits float32, which is faster
        inverse = inverse.astype(np.float32)
    units: NDArray[np.float32] = (points * inverse[:, None]).astype(np.float32, copy=False)
    return units


def kmeans(points: NDArray[np.float32], k: int, *, rng: np.random.Generator, iterations: int) -> KMeans:
    """K centroids that (locally) minimise the squared distance of every point to its nearest one.

    Stops early once that falls no more. A centroid that no point chose moves to the point that costs most.
    Fewer points than centroids is allowed: the spare centroids repeat points and are never chosen.
    """
    ones = np.ones(len(points), np.float32)
    centroids = spread_sample(points, k, rng=rng)
    codes, costs = nearest(points, centroids)
    loss = float(costs.astype(np.float64).sum())
    sums, totals = np.empty((k, points.shape[1])), np.empty(k)
    for _ in range(iterations):
        _core.sum_by_group(points, ones, codes, sums, totals)
        moved = centroids.copy()
        filled = totals > 0
        moved[filled] = sums[filled] / totals[filled, None]
        refill_empty(moved, ~filled, points, costs)
        moved_codes, moved_costs = nearest(points, moved)
        moved_loss = float(moved_costs.astype(np.float64).sum())
        if moved_loss >= loss:
            break
        centroids, codes, costs, loss = moved, moved_codes, moved_costs, moved_loss
    return KMeans(centroids, codes)


def spread_sample(points: NDArray[np.float32], k: int, *, rng: np.random.Generator) -> NDArray[np.float32]:
    """K points far from each other (k-means++ on a sample); for over 256 a plain random choice, which is as good."""
    replace = len(points) < k
    if k > 256:
        return np.take(points, rng.choice(len(points), k, replace=replace), axis=0)
    size = min(len(points), max(_SPREAD_SAMPLE, k))
    sample = points[np.sort(rng.choice(len(points), size, replace=False))] if size < len(points) else points
    chosen = np.empty((k, points.shape[1]), np.float32)
    distances = np.ones(size)
    for i in range(k):
        cumulated = np.cumsum(distances)
        # With every remaining distance zero (fewer distinct points than k) any point will do.
        at = np.searchsorted(cumulated, rng.random() * cumulated[-1], side="right") if cumulated[-1] > 0 else i % size
        chosen[i] = sample[min(int(at), size - 1)]
        difference = sample - chosen[i]
        squared = np.einsum("nd,nd->n", difference, difference, dtype=np.float64)
        distances = squared if i == 0 else np.minimum(distances, squared)
    return chosen


def refill_empty(
    centroids: NDArray[np.float32],
    empty: NDArray[np.bool_],
    points: NDArray[np.float32],
    costs: NDArray[np.float32],
) -> None:
    """Move each empty centroid, in place, to one of the points that cost most: the loss can only fall."""
    where = np.flatnonzero(empty)
    if len(where):
        worst = np.argsort(-costs, kind="stable")[: len(where)]
        centroids[where[: len(worst)]] = points[worst]
