"""How fast and how good an index is beside exact search, on this machine.

Queries go one by one on one core, for latencies, and then all together on every core. Recall is counted against exact
search among the same points.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aniso.errors import check_count, check_threads, check_vectors
from aniso.exact import ExactIndex
from aniso.index import Index
from aniso.progress import Progress, silent
from aniso.tune import check_recall, sample_queries

__all__ = ["RECALLS", "Line", "bench"]

RECALLS = (0.8, 0.9, 0.95, 0.99)
_QUERIES = 1000  # most that are asked: recall is then known to about 0.005
_WARM = 20  # queries asked before the clock starts

F32 = NDArray[np.float32]


class Line(NamedTuple):
    """What was measured of one way to search."""

    name: str
    recall: float
    single: float  # queries per second, one by one on one core
    p50: float  # microseconds of a single query: half of them took at most this long
    p95: float
    p99: float
    batch: float  # queries per second, all together on every core


def bench(
    index: Index,
    queries: ArrayLike | None = None,
    *,
    k: int = 10,
    recalls: Sequence[float] = RECALLS,
    points: ArrayLike | None = None,
    seconds: float = 1.0,
    threads: int | None = None,
    progress: Progress = silent,
) -> list[Line]:
    """Measure exact search, then the index at each recall; each takes about twice `seconds`.

    points are the vectors in the order of index.ids, for an index that keeps none or a rounded copy. Without queries,
    points of the index are asked, and each is not counted among its own answers.

    >>> import numpy as np
    >>> import aniso
    >>> points = np.random.default_rng(0).normal(size=(3000, 8)).astype(np.float32)
    >>> lines = bench(aniso.build(points), recalls=[0.9], seconds=0.01)
    >>> [line.name for line in lines], lines[0].recall
    (['exact', 'recall 0.9'], 1.0)
    """
    k, workers = check_count(k, "k"), check_threads(threads)
    targets = [check_recall(one) for one in recalls]
    if not seconds > 0:
        raise ValueError(f"seconds is {seconds}; needed: above 0")
    every = index._store.kept(index._store.rows) if points is None else check_vectors(points, "points", d=index.d)
    ids = index.ids
    if len(every) != len(ids):
        raise ValueError(f"there are {len(every)} points, and the index has {len(ids)}; needed: those of index.ids")
    asked, own = _asked(index, queries, every)
    reach = k + (own is not None)  # one more, for the query itself
    exact = ExactIndex(every, metric=index.config.metric, threads=workers)
    truth = _without(ids[exact.search(asked, reach).ids], own, k)
    ways: list[tuple[str, Callable[..., Any]]] = [
        ("exact", lambda q, threads: ids[exact.search(q, reach, threads=threads).ids])
    ]
    for target in targets:
        ways.append(
            (
                f"recall {target:g}",
                lambda q, threads, target=target: index.search(q, reach, recall=target, threads=threads).ids,
            )
        )
    lines = []
    for at, (name, search) in enumerate(ways):
        progress("bench", at, len(ways))
        found = _without(search(asked, workers), own, k)
        recall = float(np.mean([len(set(a) & set(b)) / max(len(b), 1) for a, b in zip(found, truth, strict=True)]))
        took = _single(search, asked, seconds)
        p50, p95, p99 = (1e6 * float(x) for x in np.percentile(took, (50, 95, 99)))
        lines.append(Line(name, recall, len(took) / sum(took), p50, p95, p99, _batch(search, asked, seconds, workers)))
    progress("bench", len(ways), len(ways))
    return lines


def _asked(index: Index, queries: ArrayLike | None, every: F32) -> tuple[F32, list[Any] | None]:
    """Queries, and the id of each where it is a point of the index."""
    store = index._store
    if queries is not None:
        return sample_queries(store, queries, store.kept, _QUERIES)[0], None
    place = np.empty(store.n, np.int64)
    place[store.rows] = np.arange(store.count)
    asked, rows = sample_queries(store, None, lambda rows: every[place[rows]], _QUERIES)
    return asked, store.ids_of(rows).tolist()


def _without(found: NDArray[Any], own: list[Any] | None, k: int) -> list[list[Any]]:
    """The first k of each row, its own id left out."""
    rows = found.tolist()
    if own is None:
        return [row[:k] for row in rows]
    return [[one for one in row if one != itself][:k] for row, itself in zip(rows, own, strict=True)]


def _single(search: Callable[..., Any], queries: F32, seconds: float) -> list[float]:
    """The seconds of each query, one after the other on one core, over and over until the time is up."""
    for query in queries[:_WARM]:
        search(query, 1)
    took: list[float] = []
    end = time.perf_counter() + seconds
    while True:
        for query in queries:
            start = time.perf_counter()
            search(query, 1)
            now = time.perf_counter()
            took.append(now - start)
            if now > end:
                return took


def _batch(search: Callable[..., Any], queries: F32, seconds: float, threads: int) -> float:
    """Queries per second of all queries at once."""
    search(queries, threads)
    done, start = 0, time.perf_counter()
    while True:
        search(queries, threads)
        done += len(queries)
        spent = time.perf_counter() - start
        if spent > seconds:
            return done / spent
