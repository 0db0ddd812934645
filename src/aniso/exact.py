"""Brute force: an exact index, the rank a method gives to the true answer, and how far its scores are off."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aniso import _core
from aniso.arrays import as_array
from aniso.config import check_metric
from aniso.errors import check_count, check_threads, check_vectors
from aniso.kmeans import directions
from aniso.layout import PANEL, pack_panels
from aniso.results import Result, search_above

__all__ = ["ExactIndex", "measure_distances", "multiply", "ranks", "relative_error", "top"]

_SCORES = 1 << 26  # scores held at a time (256 MB)

F32 = NDArray[np.float32]


class ExactIndex:
    """Points searched by computing every score: for small sets, and for the truth about others.

    >>> import numpy as np
    >>> index = ExactIndex(np.diag([1.0, 2.0, 3.0]), metric="l2")
    >>> result = index.search([0.0, 2.0, 0.0], k=2)
    >>> result.ids.tolist(), result.scores.tolist()
    ([1, 0], [-0.0, -5.0])

    Scores are inner products, cosines, or negative squared distances. They are the same bits for any number of queries
    and threads; equal scores come in the order of their row numbers.
    """

    def __init__(self, points: ArrayLike, *, metric: str = "dot", threads: int | None = None) -> None:
        self.metric = check_metric(metric)
        x = check_vectors(points, "points", rows=1)
        self.n, self.d = x.shape
        self._threads = check_threads(threads)
        # Shifted by the mean, squared distances lose less to rounding.
        self._shift = x.mean(axis=0, dtype=np.float64).astype(np.float32) if metric == "l2" else None
        x = directions(x) if metric == "cosine" else x if self._shift is None else x - self._shift
        self._panels = pack_panels(x)
        self._biases = np.zeros(self.n, np.float32)
        if metric == "l2":
            self._biases -= np.einsum("nd,nd->n", x, x, dtype=np.float64) / 2

    def search(self, queries: ArrayLike, k: int = 10, *, threads: int | None = None) -> Result:
        """The k best points of each query, or all there are if fewer."""
        array = as_array(queries, "queries")
        single = array.ndim == 1
        q = check_vectors(array[None] if single else array, "queries", d=self.d)
        q = directions(q) if self.metric == "cosine" else q if self._shift is None else q - self._shift
        k = min(check_count(k, "k"), self.n)
        ids, scores = np.empty((len(q), k), np.int64), np.empty((len(q), k), np.float32)
        workers = self._threads if threads is None else check_threads(threads)
        _core.exact_search(q, self._panels, self._biases, ids, scores, threads=workers)
        if self.metric == "l2":
            measure_distances(q, self._panels, ids, scores)
        return Result(ids[0], scores[0]) if single else Result(ids, scores)

    def search_above(self, query: ArrayLike, least: float) -> Result:
        """Every point that scores at least `least` with one query, best first."""
        return search_above(lambda k: self.search(as_array(query, "query"), k), least, self.n)


def measure_distances(queries: F32, panels: F32, rows: NDArray[np.int64], scores: F32) -> None:
    """Replace the scores of rows, both (q, k), by distances from the differences themselves, and put them in order."""
    for number, query in enumerate(queries):
        chosen = rows[number]
        difference = panels[chosen // PANEL, :, chosen % PANEL] - query
        exact = -np.einsum("kd,kd->k", difference, difference, dtype=np.float64).astype(np.float32)
        order = np.lexsort((chosen, -exact))
        rows[number], scores[number] = chosen[order], exact[order]


def multiply(x: F32, matrix: NDArray[np.floating], *, threads: int = 1) -> F32:
    """x @ matrix in float32, whose bits depend on nothing but the inputs (those of a BLAS vary with its threads)."""
    columns = matrix.shape[1]
    panels = pack_panels(np.ascontiguousarray(matrix.T, np.float32))
    out = np.empty((len(x), PANEL * len(panels)), np.float32)
    _core.multiply(x, panels, out, threads=threads)
    return np.ascontiguousarray(out[:, :columns])


def top(queries: F32, points: F32, k: int) -> tuple[NDArray[np.int64], F32]:
    """The k points of largest inner product with each query, best first, equals by their number: ids and scores (q, k).

    >>> import numpy as np
    >>> ids, scores = top(np.eye(3, dtype=np.float32)[:1], np.diag([1, 2, 3]).astype(np.float32), 2)
    >>> ids.tolist(), scores.tolist()
    ([[0, 1]], [[1.0, 0.0]])
    """
    return ExactIndex(points).search(queries, k)


def ranks(queries: F32, points: F32, truth: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many points score above the true best one: (q,), 0 where the true best comes first. Ties count against it.

    `points` are usually decoded ones; recall 1@N is the share of ranks below N.
    """
    own = np.einsum("qd,qd->q", queries, points[truth])
    above = np.zeros(len(queries), np.int64)
    columns = max(1, _SCORES // max(len(queries), 1))
    for first in range(0, len(points), columns):
        block = queries @ points[first : first + columns].T
        here = np.flatnonzero((truth >= first) & (truth < first + columns))
        block[here, truth[here] - first] = -np.inf  # the matrix product may round the point's own score upwards
        above += np.count_nonzero(block >= own[:, None], axis=1)
    return above


def relative_error(queries: F32, points: F32, decoded: F32, truth: NDArray[np.int64]) -> float:
    """The mean of |(<q, x> - <q, x~>) / <q, x>| over the true best points x (paper, section 5.1)."""
    exact = np.einsum("qd,qd->q", queries, points[truth], dtype=np.float64)
    estimate = np.einsum("qd,qd->q", queries, decoded[truth], dtype=np.float64)
    return float(np.mean(np.abs((exact - estimate) / exact)))
