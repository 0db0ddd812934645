"""Settings from a recall target, by measuring.

Queries are the user's own, or points that training did not see, searched among the others. Recall is measured against
exact search for a ladder of partitions with many candidates, and for a ladder of candidates with many partitions; the
product of the two predicts every pair. For each of a list of targets the cheapest pair that is predicted to reach it is
measured itself: that is the curve, and what is asked later is read between its points.

Costs come from a model, not from a clock, so that the same index is tuned alike on any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aniso.config import SMALL
from aniso.errors import check_vectors
from aniso.exact import ExactIndex
from aniso.progress import Progress, silent
from aniso.store import Store

if TYPE_CHECKING:
    from aniso.index import Index

__all__ = ["Measured", "Recall", "check_recall", "hold_out", "interpolate", "measure_curve", "tune"]

F32 = NDArray[np.float32]

_QUERIES = 1000  # measured with: a recall of 0.9 is then known to about 0.005
_LEAST = 50  # points that training did not see, below which any will do
_KS = (1, 10, 100)
_TARGETS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)
_CANDIDATES = (1.0, 1.4, 2.0, 3.0, 4.5, 7.0, 10.0, 20.0)  # times k + 3; and k itself
_BETWEEN = 6  # settings measured between others, at most
_CHUNK = 16384  # points scored exactly together
# Nanoseconds: to scan a byte of code, to fetch a candidate, to score a byte of it. Only their ratios matter.
_SCAN, _FETCH, _SCORE = 0.1, 30.0, 0.06


class Measured(NamedTuple):
    """A setting, and the recall it reached."""

    k: int
    partitions: int
    candidates: int
    recall: float


class Recall(NamedTuple):
    """The share of the true k best points that searches find, and a 95% confidence interval."""

    recall: float
    low: float
    high: float
    k: int
    queries: int


def tune(
    index: Index, queries: ArrayLike | None = None, *, recall: float = 0.95, progress: Progress = silent
) -> list[Measured]:
    """Measure what settings give on this index, make it use them for `recall`, and return the curve.

    >>> import numpy as np
    >>> points = np.random.default_rng(0).normal(size=(3000, 8)).astype(np.float32)
    >>> import aniso
    >>> index = aniso.build(points, recall=None)
    >>> curve = tune(index, recall=0.9)
    >>> curve[0]._fields
    ('k', 'partitions', 'candidates', 'recall')
    """
    return index.tune(queries, recall=recall, progress=progress)


def check_recall(recall: Any) -> float:
    """A recall that can be aimed at."""
    if isinstance(recall, bool) or not isinstance(recall, (int, float, np.integer, np.floating)):
        raise TypeError(f"recall is {recall!r}; needed: a number above 0, at most 1")
    share = float(recall)
    if not 0 < share <= 1:
        raise ValueError(f"recall is {share}; needed: above 0, at most 1 (the usual ones are 0.9 to 0.99)")
    return share


def measure_curve(
    store: Store,
    queries: ArrayLike | None,
    rows: Callable[[NDArray[np.int64]], F32],
    threads: int,
    progress: Progress = silent,
) -> list[Measured]:
    """The curve of an index; rows(numbers) gives its points."""
    asked, own = sample_queries(store, queries, rows)
    most = min(max(_KS), store.count - len(own))
    progress("tune", 0, len(_KS) + 1)
    truth = exact_rows(store, asked, own, most, rows, threads)
    curve: list[Measured] = []
    for number, k in enumerate(sorted({min(k, most) for k in _KS})):
        progress("tune", 1 + number, len(_KS) + 1)

        def recall(partitions: int, candidates: int, k: int = k) -> float:
            return float(shares(search(store, asked, own, k, partitions, candidates, threads), truth[:, :k]).mean())

        curve += _curve(store, k, recall)
    progress("tune", len(_KS) + 1, len(_KS) + 1)
    return curve


def sample_queries(
    store: Store, queries: ArrayLike | None, rows: Callable[[NDArray[np.int64]], F32], size: int = _QUERIES
) -> tuple[F32, NDArray[np.int64]]:
    """A sample of the user's queries, or of points, with their rows: none of these is to be found then."""
    rng = np.random.default_rng(store.encoder.config.seed)
    if queries is not None:
        given = check_vectors(queries, "queries", d=store.encoder.d, rows=1)
        return given[np.sort(rng.permutation(len(given))[:size])], np.empty(0, np.int64)
    if store.count < 2:
        raise ValueError(f"the index has {store.count} points; needed: at least 2 to take some as queries, or queries=")
    hidden = np.intersect1d(store.hidden, store.rows)
    own = hidden if len(hidden) >= min(_LEAST, store.count) else store.rows
    own = np.sort(rng.permutation(own)[: max(1, min(size, store.count // 8))])
    return rows(own), own


def search(
    store: Store, queries: F32, own: NDArray[np.int64], k: int, partitions: int, candidates: int, threads: int
) -> NDArray[np.int64]:
    """The rows that a search finds, those of the queries left out."""
    allowed = np.zeros(store.n, np.bool_)
    allowed[store.rows] = True
    allowed[own] = False
    bits = None if allowed.all() else np.packbits(allowed, bitorder="little")
    ids, scores = np.empty((len(queries), k), np.int64), np.empty((len(queries), k), np.float32)
    kept = min(max(candidates, 1), 2 * store.n)
    store.searcher.search(queries, min(partitions, len(store.sizes)), kept, ids, scores, allowed=bits, threads=threads)
    return ids if store.numbers is None else store.rows_of(ids.ravel()).reshape(ids.shape)


def hold_out(n: int, seed: int) -> NDArray[np.int64]:
    """Rows to keep from training, so that as queries they are as new to the index as a user's are."""
    count = min(_QUERIES, n // 8) if n > SMALL else 0
    return np.sort(np.random.default_rng([seed, 1]).permutation(n)[:count])


def exact_rows(
    store: Store,
    queries: F32,
    own: NDArray[np.int64],
    k: int,
    rows: Callable[[NDArray[np.int64]], F32],
    threads: int,
) -> NDArray[np.int64]:
    """The rows of the k best points of each query, those of the queries left out; a chunk of points at a time."""
    there = np.setdiff1d(store.rows, own)
    best, scores = np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32)
    for first in range(0, len(there), _CHUNK):
        numbers = there[first : first + _CHUNK]
        found = ExactIndex(rows(numbers), metric=store.encoder.config.metric).search(queries, k, threads=threads)
        best = np.concatenate([best, numbers[found.ids]], axis=1)
        scores = np.concatenate([scores, found.scores], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        best, scores = np.take_along_axis(best, order, axis=1), np.take_along_axis(scores, order, axis=1)
    return best


def shares(found: NDArray[np.int64], truth: NDArray[np.int64]) -> NDArray[np.float64]:
    """How much of the truth each query found."""
    return np.asarray((found[:, :, None] == truth[:, None, :]).any(axis=1).mean(axis=1))


def summary(per_query: NDArray[np.float64], k: int) -> Recall:
    """The mean over queries, and where it lies with 95% confidence."""
    mean, q = float(per_query.mean()), len(per_query)
    margin = 1.96 * float(per_query.std(ddof=1)) / np.sqrt(q) if q > 1 else 1.0
    # Where every query has the same share, its spread says nothing: the rule of three does.
    margin = max(float(margin), 3 / (q * k) if mean in (0.0, 1.0) else 0.0)
    return Recall(mean, max(0.0, mean - margin), min(1.0, mean + margin), k, q)


def interpolate(curve: list[Measured], k: int, recall: float, p: int) -> tuple[int, int]:
    """The partitions and candidates that reach a recall for k points."""
    known = sorted({point.k for point in curve})
    near = min((one for one in known if one >= k), default=known[-1])
    steps = [point for point in curve if point.k == near]
    scale = max(k / near, 1.0) if k > near else 1.0
    above = next((at for at, point in enumerate(steps) if point.recall >= recall), None)
    if above is None:  # more than was ever measured: look everywhere
        last = steps[-1]
        partitions, candidates = p, 4.0 * last.candidates
    elif above == 0:
        partitions, candidates = steps[0].partitions, float(steps[0].candidates)
    else:
        low, high = steps[above - 1], steps[above]
        share = (_odds(recall) - _odds(low.recall)) / max(_odds(high.recall) - _odds(low.recall), 1e-9)
        share = min(max(share, 0.0), 1.0)
        partitions = round(low.partitions ** (1 - share) * high.partitions**share)
        candidates = low.candidates ** (1 - share) * high.candidates**share
    return min(max(partitions, 1), p), max(round(candidates * scale), k)


def _odds(recall: float) -> float:
    """Log odds, on which curves are nearly straight."""
    recall = min(max(recall, 1e-4), 1 - 1e-4)
    return float(np.log(recall / (1 - recall)))


def _curve(store: Store, k: int, recall: Callable[[int, int], float]) -> list[Measured]:
    """The cheapest settings for a list of targets, measured."""
    encoder, p = store.encoder, len(store.sizes)
    row_bytes = 0 if store.points is None else store.points.itemsize * store.points.shape[1]
    scan = _SCAN * encoder.code_bytes * float(store.sizes.sum()) / p
    rescore = _FETCH + _SCORE * row_bytes
    most = 2 * store.n
    kept = sorted({min(k, most), *(min(round(factor * (k + 3)), most) for factor in _CANDIDATES)})
    looked, reached = [], []
    step = 1
    while True:
        looked.append(step)
        reached.append(recall(step, kept[-1]))
        flat = len(reached) > 2 and reached[-1] - reached[-3] < 0.0005 and step * float(store.sizes.sum()) > 100 * k * p
        if step == p or reached[-1] > 0.998 or flat:
            break
        step = min(p, max(step + 1, 2 * step))
    # What candidates lose hardly depends on the partitions, so it is measured where few of them find most.
    middle = next(at for at, share in enumerate(reached) if share >= 0.9 * max(reached))
    limits = np.array([recall(looked[middle], count) for count in kept[:-1]] + [reached[middle]])
    limits /= max(reached[middle], 1e-9)
    # Between two steps of the ladder recall is taken to be straight over the logarithm of partitions.
    fine = np.unique(np.rint(np.geomspace(1, looked[-1], 120)).astype(int))
    by_partitions = np.interp(np.log(fine), np.log(looked), np.maximum.accumulate(reached))
    predicted = by_partitions[:, None] * np.maximum.accumulate(limits)[None, :]
    costs = scan * fine[:, None] + rescore * np.array(kept)[None, :]
    pairs: list[tuple[int, int]] = []
    for target in _TARGETS:
        enough = predicted >= min(target, predicted.max())
        best = np.unravel_index(int(np.argmin(np.where(enough, costs, np.inf))), costs.shape)
        pair = (int(fine[best[0]]), int(kept[best[1]]))
        if not pairs or pair != pairs[-1]:
            pairs.append(pair)
    curve: list[Measured] = []
    for partitions, candidates in pairs:
        found = Measured(k, partitions, candidates, recall(partitions, candidates))
        if not curve or found.recall > curve[-1].recall:
            curve.append(found)
    for _ in range(_BETWEEN):  # where the curve is steep, look between
        gaps = [b.recall - a.recall if b.recall > 0.7 else 0.0 for a, b in pairwise(curve)]
        if not gaps or max(gaps) < 0.03:
            break
        at = int(np.argmax(gaps))
        low, high = curve[at], curve[at + 1]
        partitions = round(np.sqrt(low.partitions * high.partitions))
        candidates = round(np.sqrt(low.candidates * high.candidates))
        found = Measured(k, partitions, candidates, recall(partitions, candidates))
        if not low.recall < found.recall < high.recall:
            break
        curve.insert(at + 1, found)
    return curve
