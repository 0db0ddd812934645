"""Brute force: exact answers, the rank a method gives to the true answer, and recall."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["ranks", "relative_error", "top"]

_SCORES = 1 << 26  # scores held at a time (256 MB)


def top(
    queries: NDArray[np.float32], points: NDArray[np.float32], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The k points of largest inner product with each query, best first, equals by their number: ids and scores (q, k).

    >>> import numpy as np
    >>> ids, scores = top(np.eye(3, dtype=np.float32)[:1], np.diag([1, 2, 3]).astype(np.float32), 2)
    >>> ids.tolist(), scores.tolist()
    ([[0, 1]], [[1.0, 0.0]])
    """
    k = min(k, len(points))
    ids = np.empty((len(queries), k), np.int64)
    scores = np.empty((len(queries), k), np.float32)
    rows = max(1, _SCORES // max(len(points), 1))
    for first in range(0, len(queries), rows):
        block = queries[first : first + rows] @ points.T
        # The kth best score; then all that reach it, so that equal scores are settled by number.
        least = -np.partition(-block, k - 1, axis=1)[:, k - 1]
        for row, values in enumerate(block):
            reach = np.flatnonzero(values >= least[row])
            best = reach[np.lexsort((reach, -values[reach]))[:k]]
            ids[first + row], scores[first + row] = best, values[best]
    return ids, scores


def ranks(queries: NDArray[np.float32], points: NDArray[np.float32], truth: NDArray[np.int64]) -> NDArray[np.int64]:
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


def relative_error(
    queries: NDArray[np.float32],
    points: NDArray[np.float32],
    decoded: NDArray[np.float32],
    truth: NDArray[np.int64],
) -> float:
    """The mean of |(<q, x> - <q, x~>) / <q, x>| over the true best points x (paper, section 5.1)."""
    exact = np.einsum("qd,qd->q", queries, points[truth], dtype=np.float64)
    estimate = np.einsum("qd,qd->q", queries, decoded[truth], dtype=np.float64)
    return float(np.mean(np.abs((exact - estimate) / exact)))
