"""Searchers for tests: the arrays of an index, to make one that has seen nothing, and searches to compare."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from aniso import _core
from aniso.index import Index

__all__ = ["Found", "alone", "arrays_of", "assert_same", "clustered", "search"]

Array = NDArray[Any]
Found = tuple[Array, Array]  # ids and scores


def clustered(n: int, d: int, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    centers = 2 * np.random.default_rng(99).normal(size=(30, d))
    return (centers[rng.integers(0, 30, n)] + rng.normal(size=(n, d))).astype(np.float32)


def arrays_of(index: Index) -> dict[str, Any]:
    """The arguments from which the index makes its searcher."""
    with mock.patch.object(_core, "Searcher") as made:
        index._store._view()
    return dict(made.call_args.kwargs)


def search(
    searcher: _core.Searcher, queries: Array, k: int, partitions: int, candidates: int, **how: Any
) -> tuple[Array, Array]:
    ids, scores = np.full((len(queries), k), -77, np.int64), np.full((len(queries), k), np.nan, np.float32)
    searcher.search(queries, partitions, candidates, ids, scores, **how)
    return ids, scores


def alone(
    arrays: dict[str, Any], queries: Array, k: int, partitions: int, candidates: int, isa: str = ""
) -> tuple[Array, Array]:
    """Each query by a searcher that has seen nothing before."""
    found = [answer(_core.Searcher(**arrays, isa=isa), query, k, partitions, candidates) for query in queries]
    return np.stack([ids for ids, _ in found]), np.stack([scores for _, scores in found])


def answer(searcher: _core.Searcher, query: Array, k: int, partitions: int, candidates: int) -> tuple[Array, Array]:
    """The answer to one query by the short way, if that takes it: it leaves out only what is too long."""
    found = searcher.answer(query, k, partitions, candidates)
    if found is not None:
        return found
    assert np.linalg.norm(query.astype(np.float64)) > 0.999e15
    ids, scores = search(searcher, query[None], k, partitions, candidates)
    return ids[0], scores[0]


def assert_same(found: Found, expected: Found) -> None:
    """Equal to the bit, ids and scores."""
    assert_array_equal(found[0], expected[0])
    assert_array_equal(found[1].view(np.uint32), expected[1].view(np.uint32))
