"""_core.Searcher: one query without a conversion, points that may be found, and names of points."""

from __future__ import annotations

import array
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from searchers import arrays_of, assert_same, clustered, search

from aniso import _core
from aniso.config import METRICS, RESCORES
from aniso.index import build

N, D, P = 900, 10, 30
POINTS, QUERIES = clustered(N, D), clustered(40, D, seed=1)


@cache
def arrays(metric: str = "dot", rescore: str = "float32", spill: float = 1.0) -> dict[str, Any]:
    return arrays_of(build(POINTS, metric=metric, rescore=rescore, spill=spill, partitions=P, rounds=1))


def bits(mask: np.ndarray) -> np.ndarray:
    return np.packbits(mask, bitorder="little")


@pytest.mark.parametrize("rescore", RESCORES)
@pytest.mark.parametrize("metric", METRICS)
def test_answer_is_search(isa: str, metric: str, rescore: str) -> None:
    searcher = _core.Searcher(**arrays(metric, rescore), isa=isa)
    for k, partitions, candidates in ((1, 1, 1), (10, 4, 30), (N, P, 2 * N), (5, 2**31, 7)):
        for query in QUERIES[:10]:
            found = searcher.answer(query, k, partitions, candidates)
            assert found is not None
            assert found[0].dtype == np.int64
            assert found[1].dtype == np.float32
            ids, scores = search(searcher, query[None], k, partitions, candidates)
            assert_same((found[0], found[1]), (ids[0], scores[0]))


@pytest.mark.parametrize(
    "query",
    [
        QUERIES[0].astype(np.float64),
        QUERIES[0].astype(np.float16),
        QUERIES[0].astype(">f4"),
        QUERIES[0].astype(np.int32),
        np.repeat(QUERIES[0], 2)[::2],
        QUERIES[0][::-1],
        np.frombuffer(b"\0" + QUERIES[0].tobytes(), np.float32, D, offset=1),
        QUERIES[0][:-1].copy(),
        np.append(QUERIES[0], np.float32(0)),
        QUERIES[:1],
        QUERIES[:1].T.copy(),
        np.float32(1),
        QUERIES[0].tolist(),
        tuple(QUERIES[0]),
        QUERIES[0].tobytes(),
        "query",
        *(np.where(np.arange(D) == D - 1, value, QUERIES[0]).astype(np.float32) for value in (np.nan, np.inf, -np.inf)),
        np.array([np.inf, -np.inf] * (D // 2), np.float32),
    ],
    ids=lambda query: f"{type(query).__name__} {getattr(query, 'dtype', '')} {getattr(query, 'shape', '')}",
)
def test_answer_leaves_other_queries_to_the_caller(query: Any) -> None:
    searcher = _core.Searcher(**arrays())
    assert searcher.answer(query, 3, 2, 10) is None
    assert searcher.answer(QUERIES[0], 3, 2, 10) is not None


def test_answer_takes_any_buffer_of_floats() -> None:
    searcher = _core.Searcher(**arrays())
    expected = searcher.answer(QUERIES[0], 3, 2, 10)
    read_only = QUERIES[0].copy()
    read_only.flags.writeable = False
    for query in (read_only, memoryview(QUERIES[0].copy()), array.array("f", QUERIES[0].tolist())):
        found = searcher.answer(query, 3, 2, 10)
        assert found is not None
        assert expected is not None
        assert_same(found, expected)


class Number(int):
    """Not quite an int."""


@pytest.mark.parametrize("value", [0, -1, True, np.int64(3), 3.0, "3", 2**63, 2**64 + 3, -(2**70), Number(3)])
@pytest.mark.parametrize("name", ["k", "partitions", "candidates"])
def test_answer_leaves_other_numbers_to_the_caller(name: str, value: Any) -> None:
    searcher = _core.Searcher(**arrays())
    assert searcher.answer(QUERIES[0], **({"k": 3, "partitions": 2, "candidates": 10} | {name: value})) is None


@pytest.mark.parametrize("name", ["query", "k", "partitions", "candidates"])
def test_answer_leaves_none_to_the_caller(name: str) -> None:
    call: dict[str, Any] = {"query": QUERIES[0], "k": 3, "partitions": 2, "candidates": 10}
    assert _core.Searcher(**arrays()).answer(**(call | {name: None})) is None


def test_answer_knows_its_limits() -> None:
    searcher = _core.Searcher(**arrays())
    assert searcher.answer(QUERIES[0], N, 1, 1) is not None
    assert searcher.answer(QUERIES[0], N + 1, 1, 1) is None
    assert searcher.answer(QUERIES[0], 1, 2**31, 2 * N) is not None
    assert searcher.answer(QUERIES[0], 1, 2**31 + 1, 1) is None
    assert searcher.answer(QUERIES[0], 1, 1, 2 * N + 1) is None


@pytest.mark.parametrize(
    "change",
    [
        {"queries": QUERIES[:, :-1].copy()},
        {"queries": QUERIES.astype(np.float64)},
        {"queries": QUERIES[0]},
        {"ids": np.empty((39, 3), np.int64)},
        {"ids": np.empty((40, 3), np.int32)},
        {"ids": np.empty((40, 4), np.int64)},
        {"ids": np.empty((40, 0), np.int64), "scores": np.empty((40, 0), np.float32)},
        {"ids": np.empty((40, N + 1), np.int64), "scores": np.empty((40, N + 1), np.float32)},
        {"scores": np.empty((40, 4), np.float32)},
        {"candidates": 0},
        {"candidates": 2 * N + 1},
        {"partitions": -1},
        {"threads": 0},
        {"allowed": np.zeros((N + 7) // 8 - 1, np.uint8)},
        {"allowed": np.zeros(0, np.uint8)},
        {"allowed": np.ones(N, bool)},
        {"allowed": np.full((1, N), 255, np.uint8)},
        {"allowed": np.zeros((N + 7) // 8, np.uint8)},
        {"allowed": bits(np.arange(N) < 2)},
        {"allowed": np.where(np.arange(2 * N) < (N + 7) // 8, 0, 255).astype(np.uint8)},
    ],
)
def test_search_checks_its_bounds(change: dict[str, Any]) -> None:
    call: dict[str, Any] = {"queries": QUERIES, "partitions": 2, "candidates": 10}
    call |= {"ids": np.empty((40, 3), np.int64), "scores": np.empty((40, 3), np.float32)}
    searcher = _core.Searcher(**arrays())
    searcher.search(**call)
    with pytest.raises((ValueError, TypeError)):
        searcher.search(**(call | change))


def test_bits_past_the_last_point_do_not_count() -> None:
    """900 points are 112 bytes and 4 bits: the other 4 may be anything, and are no points."""
    searcher = _core.Searcher(**arrays())
    allowed = bits(np.arange(N) < 3)
    allowed[-1] |= 0xF0
    with pytest.raises(ValueError, match="at least k"):
        search(searcher, QUERIES, 4, 1, 1, allowed=allowed)
    assert_array_equal(np.sort(search(searcher, QUERIES, 3, 1, 1, allowed=allowed)[0]), [[0, 1, 2]] * 40)


@pytest.mark.parametrize("spill", [0.0, 1.0])
@pytest.mark.parametrize("metric", METRICS)
def test_allowed_points_are_found_as_by_brute_force(isa: str, metric: str, spill: float) -> None:
    searcher = _core.Searcher(**arrays(metric, spill=spill), isa=isa)
    q, x = QUERIES.astype(np.float64), POINTS.astype(np.float64)
    if metric == "cosine":
        q, x = q / np.linalg.norm(q, axis=1, keepdims=True), x / np.linalg.norm(x, axis=1, keepdims=True)
    exact = -((q[:, None] - x) ** 2).sum(axis=2) if metric == "l2" else q @ x.T
    rng = np.random.default_rng(0)
    for density in (0.02, 0.3, 0.9, 1.0):
        mask = rng.random(N) < density
        mask[:10] = True
        ids, scores = search(searcher, QUERIES, 10, P, 2 * N, allowed=bits(mask))
        allowed = np.where(mask, exact, -np.inf)
        assert_array_equal(ids, np.argsort(-allowed, axis=1)[:, :10])
        assert_allclose(scores, -np.sort(-allowed, axis=1)[:, :10], rtol=1e-5, atol=1e-4)


@given(
    k=st.integers(1, 60),
    more=st.sampled_from([0, 0, 1, 5, 100, N]),
    rescore=st.sampled_from(RESCORES),
    spill=st.sampled_from([0.0, 1.0]),
    metric=st.sampled_from(METRICS),
    threads=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_k_allowed_points_are_enough(
    k: int, more: int, rescore: str, spill: float, metric: str, threads: int, seed: int
) -> None:
    """One partition and one candidate are asked for: the search goes on until it has k points."""
    rng = np.random.default_rng(seed)
    mask = np.zeros(N, bool)
    mask[rng.permutation(N)[: k + more]] = True
    searcher = _core.Searcher(**arrays(metric, rescore, spill))
    search(searcher, QUERIES, k, 1, 1)  # what is learnt without limits must not matter with them
    ids, scores = search(searcher, QUERIES, k, 1, 1, allowed=bits(mask), threads=threads)
    assert mask[ids].all()
    assert all(len(np.unique(row)) == k for row in ids)
    assert np.all(np.diff(scores, axis=1) <= 0)
    fresh = _core.Searcher(**arrays(metric, rescore, spill))
    assert_same(search(fresh, QUERIES, k, 1, 1, allowed=bits(mask)), (ids, scores))


def test_one_query_among_the_allowed() -> None:
    searcher, mask = _core.Searcher(**arrays()), np.arange(N) % 3 == 1
    for query in QUERIES[:20]:
        found = searcher.answer(query, 5, 4, 40, bits(mask))
        assert found is not None
        assert_same((found[0][None], found[1][None]), search(searcher, query[None], 5, 4, 40, allowed=bits(mask)))
        assert np.all(found[0] % 3 == 1)
    few = np.zeros(N, bool)
    few[:4] = True
    for allowed in (
        bits(few),
        bits(mask)[:-1],
        bits(mask).view(np.int8),
        bits(mask)[None],
        mask.astype(np.float32),
        "x",
    ):
        assert searcher.answer(QUERIES[0], 5, 4, 40, allowed) is None


@pytest.mark.parametrize("rescore", RESCORES)
def test_all_allowed_is_no_limit(rescore: str) -> None:
    searcher = _core.Searcher(**arrays("l2", rescore))
    assert_same(
        search(searcher, QUERIES, 7, 3, 20, allowed=np.full(N, 255, np.uint8)), search(searcher, QUERIES, 7, 3, 20)
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_points_go_by_the_names_they_were_given(threads: int) -> None:
    names = np.random.default_rng(0).permutation(10 * N).astype(np.int64)[:N] - 2**40
    plain, named = _core.Searcher(**arrays()), _core.Searcher(**(arrays() | {"row_ids": names}))
    for count in (1, 2, 40):
        ids, scores = search(plain, QUERIES[:count], 9, 3, 30, threads=threads)
        assert_same(search(named, QUERIES[:count], 9, 3, 30, threads=threads), (names[ids], scores))
    one, other = named.answer(QUERIES[0], 9, 3, 30), plain.answer(QUERIES[0], 9, 3, 30)
    assert one is not None
    assert other is not None
    assert_same(one, (names[other[0]], other[1]))
    allowed = bits(np.arange(N) % 2 == 0)
    ids, scores = search(plain, QUERIES, 9, 3, 30, allowed=allowed)  # rows, not names, are allowed
    assert_same(search(named, QUERIES, 9, 3, 30, allowed=allowed), (names[ids], scores))


def test_int8_rows_have_a_bias_for_l2_and_may_have_one_otherwise() -> None:
    biased, plain = arrays("l2", "int8"), arrays("dot", "int8")
    assert (biased["points"].shape[1], plain["points"].shape[1]) == (20, 16)
    with pytest.raises(ValueError, match="bias for l2"):
        _core.Searcher(**biased | {"points": np.ascontiguousarray(biased["points"][:, :16])})
    wide = np.pad(plain["points"], ((0, 0), (0, 4)), constant_values=1)
    found = [search(_core.Searcher(**plain | {"points": rows}), QUERIES, 9, 3, 30) for rows in (plain["points"], wide)]
    assert_same(*found)


@pytest.mark.parametrize(
    "change",
    [
        {"row_ids": np.arange(N - 1)},
        {"row_ids": np.arange(N, dtype=np.int32)},
        {"points": np.zeros((N - 1, D), np.float32)},
        {"points": np.zeros((N, D - 1), np.float32)},
        {"points": np.zeros((N, D), np.float64)},
        {"points": np.zeros((N, D), np.int8)},
        {"points": np.zeros((N, D + 8), np.int8)},
        {"group_sums": None, "groups": np.zeros((1, 4, 8, 4), np.int8)},
        {"groups": np.zeros((1, 4, 8, 4), np.int8), "group_sums": np.zeros(8, np.int32), "group_scales": None},
        {"sizes": np.full(P, 2**20, np.int32)},
        {"sizes": np.full(P, -1, np.int32)},
        {"first_blocks": np.full(P, -1, np.int64)},
        {"first_blocks": np.full(P, 2**62, np.int64)},
        {"slot_rows": np.zeros(1, np.int32)},
        {"scales": np.zeros((2, 32), np.float32)},
        {"n": 0},
        {"n": N - 1},
        {"n": 2**31},
        {"d": 0},
        {"d": D + 1},
        {"isa": "sse9"},
    ],
    ids=lambda change: "-".join(change),
)
def test_a_searcher_checks_its_arrays(change: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        _core.Searcher(**(arrays() | change))


@pytest.mark.parametrize("row", [-1, N, 2**31 - 1])
def test_a_slot_in_use_must_name_a_point(row: int) -> None:
    given = arrays()
    slots = given["slot_rows"].copy()
    slots[32 * given["first_blocks"][np.argmax(given["sizes"])]] = row
    with pytest.raises(ValueError, match="a point that does not exist"):
        _core.Searcher(**(given | {"slot_rows": slots}))


def test_the_slots_of_a_file_are_checked() -> None:
    given = arrays()
    sizes, firsts = given["sizes"], given["first_blocks"]
    rows = given["slot_rows"][: 32 * int((firsts + -(-sizes // 32)).max())]  # the room beyond holds anything
    assert _core.check_slots(N, firsts, sizes, rows, 2) == ("", 0)
    assert _core.check_slots(N, firsts, sizes, rows, 1)[0] == "often"
    assert _core.check_slots(N + 1, firsts, sizes, rows, 2) == ("missing", N)
    assert _core.check_slots(N - 1, firsts, sizes, rows, 2) == ("beyond", N - 1)
    full = int(np.argmax(sizes))
    first = 32 * firsts[full]
    for slot, row, wrong in (
        (first, rows[first + 1], "often"),  # twice in a partition
        (first, -1, "beyond"),
        (first, N, "beyond"),
        (first + sizes[full], -(2**31), "beyond"),  # not in use
    ):
        changed = rows.copy()
        changed[slot] = row
        assert _core.check_slots(N, firsts, sizes, changed, 2) == (wrong, row)
    assert _core.check_slots(N, firsts, np.zeros(P, np.int32), rows, 2) == ("missing", 0)
    for change in (
        {"sizes": np.full(P, -1, np.int32)},
        {"sizes": np.full(P, 2**31 - 1, np.int32)},
        {"sizes": sizes[1:]},
        {"first_blocks": np.full(P, -1, np.int64)},
        {"first_blocks": np.full(P, 2**62, np.int64)},
        {"n": 2**31},
    ):
        call: dict[str, Any] = {"n": N, "first_blocks": firsts, "sizes": sizes, "slot_rows": rows, "most": 2}
        with pytest.raises(ValueError, match=r"runs past|one per partition"):
            _core.check_slots(**(call | change))


def test_points_in_no_partition_are_no_danger() -> None:
    """A row in no slot cannot be found; a search for more points than there are must not read past the names.

    In a process of its own, since it may crash.
    """
    program = """
import numpy as np
from searchers import arrays_of, clustered
from aniso import _core
from aniso.index import build
arrays = arrays_of(build(clustered(100, 4), partitions=4, rounds=1))
arrays["sizes"] = np.zeros(4, np.int32)
names = np.arange(100) + 1000
try:
    searcher = _core.Searcher(**(arrays | {"row_ids": names}))
    ids, scores = np.full((1, 5), 2**40), np.zeros((1, 5), np.float32)
    searcher.search(np.ones((1, 4), np.float32), 4, 10, ids, scores)
except ValueError:
    raise SystemExit(0)
assert not np.isin(ids, names).any()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr}"


@pytest.mark.parametrize("rescore", RESCORES)
@pytest.mark.parametrize("metric", METRICS)
def test_one_query_is_refused_like_many(metric: str, rescore: str) -> None:
    """Also by an index that has answered before, where one query takes a shorter way."""
    index = build(POINTS, metric=metric, partitions=P, rescore=rescore, recall=None)
    index.search(POINTS[0])
    for value in (1e16, 1e30, 3e38, np.nan, np.inf):
        for query in (np.full(POINTS.shape[1], value, np.float32), np.full((2, POINTS.shape[1]), value, np.float32)):
            with pytest.raises(ValueError, match=r"float32|finite"):
                index.search(query)


def test_cosines_of_small_queries() -> None:
    """The direction counts, also where squares are too small for a float."""
    index = build(POINTS, metric="cosine", partitions=P, rescore="float32", recall=None)
    for row in (3, 7):
        queries = np.array([POINTS[row] * 10.0**-e for e in (0, 15, 20, 25, 30)], np.float32)
        found = index.search(queries, 5, partitions=P, candidates=2 * len(POINTS))
        assert (found.ids[:, 0] == row).all()
        assert np.abs(found.scores - found.scores[0]).max() < 1e-5


def test_points_are_not_copied() -> None:
    """The core borrows them; of an array that it would have to copy, it would borrow what is gone."""
    arrays = arrays_of(build(POINTS, metric="dot", partitions=P, rescore="float32", recall=None))
    with pytest.raises(ValueError, match="points: a contiguous array"):
        _core.Searcher(**{**arrays, "points": np.asfortranarray(arrays["points"])})
    with pytest.raises(ValueError, match="points: a contiguous array"):
        _core.Searcher(**{**arrays, "points": arrays["points"].tolist()})


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("metric", METRICS)
def test_rows_of_the_smallest_numbers(metric: str) -> None:
    """Their units of 1/127 or 1/63 are 0 in float32."""
    points = POINTS.copy()
    points[5], points[600] = 1e-44, -1e-43
    index = build(points, metric=metric, partitions=P, rescore="int8", recall=None)
    assert index.search(POINTS[:30], 5, partitions=P, candidates=2 * N).ids.shape == (30, 5)
