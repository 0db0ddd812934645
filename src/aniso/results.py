"""What a search returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Result", "search_above"]


class Result(NamedTuple):
    """The best points, best first: of each query (q, k), or of one query given as a vector (k,)."""

    ids: NDArray[np.int64]
    scores: NDArray[np.float32]


def search_above(search: Callable[[int], Result], least: float, n: int) -> Result:
    """All points of one query's search(k) that score at least `least`: k grows until the worst found is below it."""
    k = max(min(64, n), 1)  # where there is none, the search says so
    while True:
        found = search(k)
        if k >= n or found.scores[-1] < least:
            above = found.scores >= least
            return Result(found.ids[above], found.scores[above])
        k = min(4 * k, n)
