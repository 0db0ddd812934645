"""Settings from a recall target, by measuring.

Queries are the user's own, or points that training did not see, searched among the others. Recall is measured against
exact search for every pair of partitions and candidates (survey.py). For each of a list of targets the cheapest pair
that reaches it is kept, with a margin for what a sample of queries leaves uncertain: that is the curve, from which
settings are read later.

Costs come from a model, not from a clock, so that the same index is tuned alike on any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aniso import _core
from aniso.config import SMALL
from aniso.effort import learn_effort
from aniso.errors import check_vectors
from aniso.progress import Progress, silent
from aniso.store import Store
from aniso.survey import Survey, exact_rows, survey, without

if TYPE_CHECKING:
    from aniso.index import Index

__all__ = ["Measured", "Recall", "check_recall", "hold_out", "interpolate", "measure_curve", "tune"]

F32 = NDArray[np.float32]

_QUERIES = 1000  # measured with: a recall of 0.9 is then known to about 0.005
_LEAST = 50  # points that training did not see, below which any will do
_KS = (1, 2, 5, 10, 20, 30, 50, 70, 100)
_COARSE = (0.5, 0.6, 0.65, 0.7, 0.75, 0.775, 0.8, 0.82, 0.84, 0.86, 0.88, 0.9, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96)
_FINE = (0.97, 0.975, 0.98, 0.985, 0.99, 0.9925, 0.995, 0.997, 0.999)
_DOUBT, _MOST_DOUBT = 1.28, 0.1  # the margin: standard errors, and at most this share of what is missed
_NEAR = 0.01  # of what is missed: a setting so near to what is asked for is taken as it is
_AGAIN = 4.0  # times the cost: a search that finds fewer than k points begins again, in more partitions
_TOGETHER = 128  # queries searched together: more are hardly faster, and take memory
_CHECKED = 6  # settings searched with where scores are not exact
# Nanoseconds: to scan a byte of code, to fetch a candidate, to score a byte of it. Only their ratios matter.
_SCAN, _FETCH, _SCORE = 0.1, 90.0, 0.06


class Measured(NamedTuple):
    """A setting, and the recall that it reached, less a margin for what the sample of queries leaves uncertain."""

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
    """The curve of a state that no search reads yet; rows(numbers) gives its points.

    How partitions are shared out among queries is learnt first, and part of the state from then on.
    """
    asked, own = sample_queries(store, queries, rows)
    _core.release_memory()  # of training, and of each step below: what one step leaves is of no use to the next
    ks = sorted({min(k, store.count - (len(own) > 0)) for k in _KS})
    progress("tune", 0, 3)
    truth = exact_rows(store, asked, own, ks[-1], rows, threads)
    _core.release_memory()
    progress("tune", 1, 3)
    store.share_out(learn_effort(store, asked, truth))
    _core.release_memory()
    found = survey(store, asked, own, truth, ks, threads)
    store.forget_searcher()
    _core.release_memory()
    progress("tune", 2, 3)
    curves = [_cheapest(store, found, k) for k in ks]
    if store.encoder.config.rescore != "float32":
        among = [_among(found, steps) for steps in curves]
        del found  # the largest of what is at hand: searches have room of their own
        for at, k in enumerate(ks):
            curves[at] = _rescored(store, curves[at], among[at], asked, own, truth[:, :k], threads)
            store.forget_searcher()
            _core.release_memory()
    progress("tune", 3, 3)
    return [step for steps in curves for step in _rising(steps)]


def sample_queries(
    store: Store, queries: ArrayLike | None, rows: Callable[[NDArray[np.int64]], F32], size: int = _QUERIES
) -> tuple[F32, NDArray[np.int64]]:
    """A sample of the user's queries, or of points with their rows: a point is not to be found by itself then."""
    rng = np.random.default_rng(store.encoder.config.seed)
    if queries is not None:
        given = check_vectors(queries, "queries", d=store.encoder.d, rows=1)
        return given[np.sort(rng.permutation(len(given))[:size])], np.empty(0, np.int64)
    if store.count < 2:
        raise ValueError(f"the index has {store.count} points; needed: at least 2 to take some as queries, or queries=")
    hidden = store.hidden[store.has(store.hidden)]
    own = hidden if len(hidden) >= min(_LEAST, store.count) else store.rows
    own = np.sort(rng.permutation(own)[: max(1, min(size, store.count // 8))])
    return rows(own), own


def search(
    store: Store, queries: F32, own: NDArray[np.int64], k: int, partitions: int, candidates: int, threads: int
) -> NDArray[np.int64]:
    """The rows that a search finds, but for that of the query where it is a point."""
    wanted = k + (len(own) > 0)
    ids, scores = np.empty((len(queries), wanted), np.int64), np.empty((len(queries), wanted), np.float32)
    looked = min(partitions, len(store.sizes))
    entries = 0 if not len(own) else 1 if looked == 1 or not store.encoder.config.spill else 2  # of the query itself
    kept = min(max(candidates, 1) + entries, 2 * store.n)
    for first in range(0, len(queries), _TOGETHER):
        few = slice(first, first + _TOGETHER)
        store.searcher.search(queries[few], looked, kept, ids[few], scores[few], allowed=store.live, threads=threads)
    return without(ids if store.numbers is None else store.rows_of(ids.ravel()).reshape(ids.shape), own)


def hold_out(n: int, seed: int) -> NDArray[np.int64]:
    """Rows to keep from training, so that as queries they are as new to the index as a user's are."""
    count = min(_QUERIES, n // 8) if n > SMALL else 0
    return np.sort(np.random.default_rng([seed, 1]).permutation(n)[:count])


def shares(found: NDArray[np.int64], truth: NDArray[np.int64]) -> NDArray[np.float64]:
    """How much of the truth each query found."""
    pairs = zip(found, truth, strict=True)
    return np.array([(rows[:, None] == best).any(axis=0).mean() for rows, best in pairs])


def summary(per_query: NDArray[np.float64], k: int) -> Recall:
    """The mean over queries, and where it lies with 95% confidence."""
    mean, q = float(per_query.mean()), len(per_query)
    margin = 1.96 * float(per_query.std(ddof=1)) / np.sqrt(q) if q > 1 else 1.0
    # Where every query has the same share, its spread says nothing: the rule of three does.
    margin = max(float(margin), 3 / (q * k) if mean in (0.0, 1.0) else 0.0)
    return Recall(mean, max(0.0, mean - margin), min(1.0, mean + margin), k, q)


def uncertainty(per_query: NDArray[np.float64]) -> float:
    """How far below their mean the recall on other queries of the kind may lie: 9 times in 10 it is not so far.

    At most a tenth of what is missed: near 1, a larger margin would cost more time than it is worth.
    """
    if len(per_query) < 2:
        return 0.0
    error = float(per_query.std(ddof=1)) / float(np.sqrt(len(per_query)))
    return min(_DOUBT * error, _MOST_DOUBT * (1 - float(per_query.mean())))


def interpolate(curve: list[Measured], k: int, recall: float, p: int) -> tuple[int, int]:
    """The partitions and candidates that reach a recall for k points, between those for the nearest k measured."""
    known = sorted({point.k for point in curve})
    above = min((one for one in known if one >= k), default=known[-1])
    below = max((one for one in known if one <= k), default=known[0])
    low = _reaching([point for point in curve if point.k == below], recall, p)
    high = _reaching([point for point in curve if point.k == above], recall, p)
    share = float(np.log(k / below) / np.log(above / below)) if above != below else 0.0
    partitions, candidates = (a ** (1 - share) * b**share for a, b in zip(low, high, strict=True))
    return min(max(round(partitions), 1), p), max(round(candidates * max(k / above, 1.0)), k)


def _reaching(steps: list[Measured], recall: float, p: int) -> tuple[float, float]:
    """The partitions and candidates that reach a recall, between two steps of the curve of one k."""
    near_by = _NEAR * (1 - recall)
    above = next((at for at, point in enumerate(steps) if point.recall >= recall - near_by), None)
    if above is None:  # more than was ever measured: look everywhere
        return p, 4.0 * steps[-1].candidates
    if above == 0:
        return steps[0].partitions, steps[0].candidates
    low, high = steps[above - 1], steps[above]
    share = (_odds(recall) - _odds(low.recall)) / max(_odds(high.recall) - _odds(low.recall), 1e-9)
    share = 1.0 if high.recall <= recall + near_by else max(share, 0.0)
    partitions = round(low.partitions ** (1 - share) * high.partitions**share)
    return partitions, low.candidates ** (1 - share) * high.candidates**share


def _odds(recall: float) -> float:
    """Log odds, on which curves are nearly straight."""
    recall = min(max(recall, 1e-4), 1 - 1e-4)
    return float(np.log(recall / (1 - recall)))


def _cheapest(store: Store, found: Survey, k: int) -> list[Measured]:
    """For each target the pair of partitions and candidates that reaches it at the least cost."""
    encoder, p = store.encoder, len(store.sizes)
    row_bytes = 0 if store.points is None else store.points.itemsize * store.points.shape[1]
    scan = _SCAN * encoder.code_bytes * store.entries / p
    counts = np.arange(found.most + 1)
    recalls = found.recalls(k)
    # Without a copy to rescore from, more candidates than the two entries of k points find no more.
    usable = counts == min(2 * k, found.most) if store.points is None else counts >= min(k, found.most)
    costs = scan * found.partitions[:, None] + (_FETCH + _SCORE * row_bytes) * counts[None, :]
    costs *= 1 + _AGAIN * found.short(k)
    costs[:, ~usable] = np.inf
    best = float(recalls[:, usable].max())

    def reach(aim: float) -> tuple[int, int, float]:
        """The cheapest pair for a recall, and what the sample leaves uncertain of it."""
        enough = np.where(recalls >= min(aim, best), costs, np.inf)
        step, candidates = (int(x) for x in np.unravel_index(int(np.argmin(enough)), costs.shape))
        return step, candidates, uncertainty(found.shares(k, step, candidates))

    steps: list[Measured] = []
    for target in (*_COARSE, *_FINE):
        step, candidates, doubt = reach(target + reach(target)[2])
        recall = max(float(recalls[step, candidates]) - doubt, 0.0)
        steps.append(Measured(k, int(found.partitions[step]), candidates, recall))
    return steps


def _checked(steps: list[Measured]) -> NDArray[np.int64]:
    """Which of the settings are searched with."""
    return np.unique(np.linspace(0, len(steps) - 1, _CHECKED).astype(int))


def _among(found: Survey, steps: list[Measured]) -> list[float]:
    """The share of true neighbours among the candidates of each setting that is searched with."""
    shares_of = []
    for k, partitions, candidates, _ in (steps[place] for place in _checked(steps)):
        step = int(np.searchsorted(found.partitions, partitions))
        shares_of.append(float(found.shares(k, step, candidates).mean()))
    return shares_of


def _rescored(
    store: Store,
    steps: list[Measured],
    among: list[float],
    asked: F32,
    own: NDArray[np.int64],
    truth: NDArray[np.int64],
    threads: int,
) -> list[Measured]:
    """What is left of recall where scores from a rounded copy, or from codes, choose among the candidates."""
    places, left = _checked(steps), []
    for place, share in zip(places, among, strict=True):
        k, partitions, candidates, _ = steps[place]
        rows = search(store, asked, own, k, partitions, candidates, threads)
        left.append(min(float(shares(rows, truth).mean() / max(share, 1e-9)), 1.0))
    shrunk = np.interp(np.arange(len(steps)), places, left)
    return [step._replace(recall=step.recall * float(share)) for step, share in zip(steps, shrunk, strict=True)]


def _rising(steps: list[Measured]) -> list[Measured]:
    """Those that reach more than all before them."""
    curve: list[Measured] = []
    for step in steps:
        if not curve or step.recall > curve[-1].recall:
            curve.append(step)
    return curve
