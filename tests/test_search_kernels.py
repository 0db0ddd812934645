"""The kernels of the search on every usable instruction set against NumPy: integers equal, floats within rounding."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from aniso import _core
from aniso.layout import BLOCK, pack_bytes, pack_centroids, pack_nibbles, pack_panels, unpack_blocks
from aniso.store import Store

SEEDS = st.integers(0, 2**32 - 1)


@given(n=st.integers(1, 300), m=st.integers(1, 61), group=st.sampled_from([2, 6, 10]), seed=SEEDS)
def test_scan(isa: str, n: int, m: int, group: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (n, m), dtype=np.uint8)
    tables = np.zeros((2 * (-(-m // 2)), 16), np.uint8)
    tables[:m] = rng.integers(0, 255 // group + 1, (m, 16))
    blocks = reference.blocks(pack_nibbles(codes))
    sums = reference.scan(codes, tables[:m])
    for least in (0, int(np.median(sums)), int(sums.max()), int(sums.max()) + 1, 65535, 65536, 2**32 - 1):
        hits = np.empty((n, 2), np.uint32)
        count = _core.scan(blocks, tables, group, 0, n, least, hits, isa=isa)
        expected = np.flatnonzero(sums >= least)
        assert_array_equal(hits[:count, 0], expected)
        assert_array_equal(hits[:count, 1], sums[expected])


@given(n=st.integers(1, 200), m=st.integers(1, 61), group=st.sampled_from([2, 6, 10]), seed=SEEDS, data=st.data())
def test_scan_four_is_four_scans(isa: str, n: int, m: int, group: int, seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (n, m), dtype=np.uint8)
    tables = np.zeros((4, 2 * (-(-m // 2)), 16), np.uint8)
    tables[:, :m] = rng.integers(0, 255 // group + 1, (4, m, 16))
    blocks = reference.blocks(pack_nibbles(codes))
    sums = [reference.scan(codes, table[:m]) for table in tables]
    edges = st.sampled_from([0, 1, 65535, 65536, 2**32 - 1])
    near = [edges | st.sampled_from([*map(int, s), int(s.max()) + 1]) for s in sums]
    least = np.array([data.draw(choice) for choice in near], np.uint32)
    first = data.draw(st.integers(0, len(blocks)))
    points = data.draw(st.integers(0, max(n - BLOCK * first, 0)))
    hits = np.full((4, points, 2), 77, np.uint32)
    counts = _core.scan_four(blocks, tables, group, first, points, least, hits, isa=isa)
    for i in range(4):
        one = np.full((points, 2), 77, np.uint32)
        count = _core.scan(blocks, tables[i], group, first, points, int(least[i]), one, isa=isa)
        assert counts[i] == count
        assert_array_equal(hits[i], one)  # and what lies past the hits is left alone
        here = np.arange(BLOCK * first, BLOCK * first + points)
        assert_array_equal(one[:count, 0], here[sums[i][here] >= least[i]])


def test_scan_starts_at_any_block_and_stops_at_any_point(isa: str) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (10 * BLOCK, 7), dtype=np.uint8)
    blocks = reference.blocks(pack_nibbles(codes))
    tables = np.zeros((8, 16), np.uint8)
    tables[:7] = rng.integers(0, 25, (7, 16))
    sums = reference.scan(codes, tables[:7])
    hits = np.empty((len(codes), 2), np.uint32)
    for first in range(10):
        for points in (0, 1, 31, 32, 33, 96, 127, 128, 129, 160):
            if first * BLOCK + points <= len(codes):
                count = _core.scan(blocks, tables, 10, first, points, 0, hits, isa=isa)
                assert_array_equal(hits[:count, 1], sums[first * BLOCK : first * BLOCK + points])


def test_sums_of_the_largest_tables_do_not_overflow(isa: str) -> None:
    """257 groups of 255 are 65535, all that 16 bits hold; the kernel gets there without wrapping round."""
    m = 257 * 2
    codes = np.full((40, m), 15, np.uint8)
    tables = np.zeros((m, 16), np.uint8)
    tables[0::2, 15], tables[1::2, 15] = 200, 55
    blocks = reference.blocks(pack_nibbles(codes))
    hits = np.empty((40, 2), np.uint32)
    assert _core.scan(blocks, tables, 2, 0, 40, 65535, hits, isa=isa) == 40
    assert_array_equal(hits[:, 1], 65535)


@given(m=st.integers(1, 40), width=st.integers(1, 9), group=st.sampled_from([2, 4, 10]), seed=SEEDS)
def test_make_tables(isa: str, m: int, width: int, group: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    codewords = rng.normal(size=(m, width, 16)).astype(np.float32)
    firsts = rng.integers(0, 20, m).astype(np.int32)
    query = rng.normal(size=20 + width).astype(np.float32)
    tables = np.empty((m, 16), np.uint8)
    offset, step = _core.make_tables(query, codewords, firsts, group, tables, isa=isa)
    exact = reference.tables(query, codewords, firsts)
    low = exact.min(axis=1)
    assert_allclose(offset, low.sum(), rtol=1e-5, atol=1e-4)  # float32 sums of up to 40 terms
    # Half a step of rounding, and a little for float32.
    assert_allclose(tables * step, exact - low[:, None], atol=0.501 * step)
    for first in range(0, m, group):
        assert int(tables[first : first + group].max(axis=1).astype(int).sum()) <= 255


def test_constant_tables_have_a_step(isa: str) -> None:
    tables = np.empty((3, 16), np.uint8)
    codewords = np.ones((3, 2, 16), np.float32)
    offset, step = _core.make_tables(np.ones(8, np.float32), codewords, np.zeros(3, np.int32), 2, tables, isa=isa)
    assert (offset, step) == (6.0, 1.0)
    assert not tables.any()


@given(p=st.integers(1, 70), d=st.integers(1, 200), seed=SEEDS, data=st.data())
def test_score_centroids(isa: str, p: int, d: int, seed: int, data: st.DataObject) -> None:
    """Blocks are scored in the order of the list, whichever they are: all, some, none, one many times."""
    rng = np.random.default_rng(seed)
    centroids = np.zeros((-(-p // 8) * 8, d), np.int8)
    centroids[:p] = rng.integers(-63, 64, (p, d))
    packed = pack_centroids(centroids)
    query = np.full(packed.shape[1] * 4, 64, np.uint8)
    query[:d] = rng.choice([0, 1, 64, 126, 127], d)
    sums = 64 * centroids.astype(np.int32).sum(axis=1, dtype=np.int32)
    expected = (centroids.astype(np.int32) @ (query[:d].astype(np.int32) - 64)).reshape(-1, 8)
    scales = rng.normal(size=(2, len(centroids))).astype(np.float32)
    blocks = len(packed)
    drawn = data.draw(st.lists(st.integers(0, blocks - 1), max_size=3 * blocks))
    for numbers in (np.arange(blocks), rng.permutation(blocks), drawn, [], [blocks - 1] * 9):
        chosen = np.array(numbers, np.uint32)
        scores, order = np.full(8 * len(chosen), 77, np.int32), np.full(8 * len(chosen), 77, np.float32)
        _core.score_centroids(query, packed, sums, scales, 0.5, chosen, scores, order, isa=isa)
        assert_array_equal(scores.reshape(-1, 8), expected[chosen])
        exact = (expected * scales[0].reshape(-1, 8).astype(np.float64) * 0.5)[chosen]
        bias = scales[1].reshape(-1, 8)[chosen]
        # Three roundings of float32.
        assert_allclose(order.reshape(-1, 8), exact + bias, atol=3e-7 * float(np.abs(exact).max(initial=0) + 4))


@given(count=st.integers(0, 150), most=st.sampled_from([3, 50, 2**64 - 1]), seed=SEEDS)
def test_sort_keys(isa: str, count: int, most: int, seed: int) -> None:
    """The largest first; where a key repeats, zeros follow it."""
    keys = np.random.default_rng(seed).integers(1, most, count, np.uint64, endpoint=True)
    out = np.full(count, 77, np.uint64)
    _core.sort_keys(keys, out, isa=isa)
    expected = np.zeros(count, np.uint64)
    expected[(keys[None, :] > keys[:, None]).sum(axis=1)] = keys
    assert_array_equal(out, expected)
    assert_array_equal(out[out > 0], np.unique(keys)[::-1])


@given(
    n=st.integers(1, 9),
    rows=st.integers(0, 9),
    d=st.integers(1, 140),
    distance=st.booleans(),
    half=st.booleans(),
    seed=SEEDS,
)
def test_score_float_rows(isa: str, n: int, rows: int, d: int, distance: bool, half: bool, seed: int) -> None:
    """Rows in any order and repeated; what a row gets does not depend on the rows beside it."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, n, rows, np.uint32)
    points = rng.normal(size=(n, d)).astype(np.float16 if half else np.float32)
    points[0, 0] = 6e-8 if half else 1e-30  # a subnormal float16
    query = rng.normal(size=d).astype(np.float32)
    out, alone = np.empty(rows, np.float32), np.empty(rows, np.float32)
    stored = points.view(np.uint16) if half else points
    _core.score_rows(query, stored, numbers, distance, out, isa=isa)
    for i in range(rows):
        _core.score_rows(query, stored, numbers[i : i + 1], distance, alone[i : i + 1], isa=isa)
    assert_array_equal(out, alone)
    wide, q = points[numbers].astype(np.float64), query.astype(np.float64)
    expected = ((wide - q) ** 2).sum(axis=1) if distance else wide @ q
    # d roundings of float32, relative to the sum of the terms' sizes.
    scale = ((wide - q) ** 2).sum(axis=1) if distance else np.abs(wide) @ np.abs(q)
    assert np.all(np.abs(out - expected) <= 1e-7 * (d + 2) * scale + 1e-30)


@given(n=st.integers(1, 9), rows=st.integers(0, 9), d=st.integers(1, 300), seed=SEEDS)
def test_score_int8_rows(isa: str, n: int, rows: int, d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, n, rows, np.uint32)
    points = rng.integers(-127, 128, (n, d)).astype(np.int8)
    query = rng.integers(-100, 101, d).astype(np.float32)
    out = np.empty(rows, np.float32)
    _core.score_rows(query, points, numbers, False, out, isa=isa)
    assert_array_equal(out, points[numbers].astype(np.int64) @ query.astype(np.int64))


@given(n=st.integers(1, 60), d=st.integers(1, 40), columns=st.integers(1, 40), seed=SEEDS)
def test_multiply(isa: str, n: int, d: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(-9, 10, (n, d)).astype(np.float32)
    points = rng.integers(-9, 10, (columns, d)).astype(np.float32)
    panels = pack_panels(points)
    out = np.empty((n, 16 * len(panels)), np.float32)
    _core.multiply(x, panels, out, threads=2, isa=isa)
    assert_array_equal(out[:, :columns], x @ points.T)


@given(q=st.integers(1, 60), n=st.integers(1, 1100), d=st.integers(1, 9), k=st.integers(1, 40), seed=SEEDS)
def test_exact_search(isa: str, q: int, n: int, d: int, k: int, seed: int) -> None:
    """Small integers, so that many scores are equal and every sum is exact."""
    rng = np.random.default_rng(seed)
    k = min(k, n)
    queries = rng.integers(-2, 3, (q, d)).astype(np.float32)
    points = rng.integers(-2, 3, (n, d)).astype(np.float32)
    biases = rng.integers(-1, 2, n).astype(np.float32)
    ids, scores = np.empty((q, k), np.int64), np.empty((q, k), np.float32)
    _core.exact_search(queries, pack_panels(points), biases, ids, scores, threads=2, isa=isa)
    expected = queries @ points.T + biases
    order = np.argsort(-expected, axis=1, kind="stable")[:, :k]
    assert_array_equal(ids, order)
    assert_array_equal(scores, np.take_along_axis(expected, order, axis=1))


def test_exact_search_refuses_scores_that_are_no_numbers() -> None:
    points = np.ones((40, 4), np.float32)
    points[:35, 0] = np.nan
    ids, scores = np.empty((2, 9), np.int64), np.empty((2, 9), np.float32)
    for threads in (1, 3):
        with pytest.raises(ValueError, match="numbers"):
            _core.exact_search(points[-2:], pack_panels(points), np.zeros(40, np.float32), ids, scores, threads=threads)


@given(n=st.integers(1, 30), seed=SEEDS)
def test_moments_and_solve(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(50, n)).astype(np.float32), rng.normal(size=(50, 4)).astype(np.float32)
    weights = rng.random(50)
    matrix, cross = np.empty((n, n)), np.empty((4, n))
    _core.moments(x, x, weights, matrix, threads=2)
    _core.moments(y, x, weights, cross)
    wide = x.astype(np.float64)
    assert_allclose(matrix, (wide * weights[:, None]).T @ wide, rtol=1e-9, atol=1e-12)
    assert_allclose(cross, (y.astype(np.float64) * weights[:, None]).T @ wide, rtol=1e-9, atol=1e-12)
    matrix[np.diag_indices(n)] += 1.0
    solved, before = cross.copy(), matrix.copy()
    _core.solve_spd(matrix, solved, threads=2)
    assert_allclose(solved @ before, cross, rtol=1e-8, atol=1e-8)


def test_a_matrix_that_is_not_positive_definite_is_refused() -> None:
    for matrix in (-np.eye(3), np.zeros((3, 3)), np.full((2, 2), np.nan)):
        with pytest.raises(ValueError, match="positive definite"):
            _core.solve_spd(matrix.copy(), np.ones((1, len(matrix))))


@given(n=st.integers(0, 200), m=st.integers(1, 9), p=st.integers(1, 6), seed=SEEDS)
def test_layout_round_trip(n: int, m: int, p: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (n, m), dtype=np.uint8)
    partitions = rng.integers(0, p, n).astype(np.int32)
    encoder: Any = SimpleNamespace(p=p, code_bytes=(m + 1) // 2, copy_shape=lambda: None)
    store = Store(encoder)
    store.reserve_slots(np.bincount(partitions, minlength=p))
    store.put(np.arange(n), partitions, pack_nibbles(codes))
    unpacked = unpack_blocks(store.codes[: store.blocks], m)
    rows = store.slot_rows.ravel()
    full = np.zeros(len(unpacked), np.bool_)
    for j in range(p):
        first, size = int(store.first_blocks[j]) * BLOCK, int(store.sizes[j])
        assert_array_equal(rows[first : first + size], np.flatnonzero(partitions == j))
        full[first : first + size] = True
    assert np.count_nonzero(full) == n
    assert_array_equal(unpacked[full], codes[rows[: len(full)][full]])
    assert not unpacked[~full].any()


@given(n=st.integers(0, 20), d=st.integers(1, 40), seed=SEEDS)
def test_rows_of_bytes_round_trip(n: int, d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(-127, 128, (n, d)).astype(np.int8)
    scales, biases = rng.normal(size=(2, n)).astype(np.float32)
    packed = pack_bytes(values, scales, biases)
    assert packed.shape == (n, (d + 3) // 4 * 4 + 8)
    assert packed.flags.c_contiguous
    assert_array_equal(packed[:, :d], values)
    assert not packed[:, d:-8].any()
    assert_array_equal(packed[:, -8:].copy().view(np.float32), np.stack([scales, biases], axis=1))
    assert_array_equal(pack_bytes(values, scales), packed[:, :-4])


GOOD_CALLS: dict[str, dict[str, Any]] = {
    "scan": {
        "codes": np.zeros((2, 2, 32), np.uint8),
        "tables": np.zeros((4, 16), np.uint8),
        "group": 10,
        "first_block": 0,
        "points": 64,
        "least": 0,
        "hits": np.zeros((64, 2), np.uint32),
    },
    "scan_four": {
        "codes": np.zeros((2, 2, 32), np.uint8),
        "tables": np.zeros((4, 4, 16), np.uint8),
        "group": 10,
        "first_block": 0,
        "points": 64,
        "least": np.zeros(4, np.uint32),
        "hits": np.zeros((4, 64, 2), np.uint32),
    },
    "score_rows": {
        "query": np.zeros(3, np.float32),
        "points": np.zeros((2, 3), np.int8),
        "numbers": np.array([1, 0, 1], np.uint32),
        "distance": False,
        "out": np.zeros(3, np.float32),
    },
    "score_centroids": {
        "query": np.full(8, 64, np.uint8),
        "centroids": np.zeros((3, 2, 8, 4), np.int8),
        "sums": np.zeros(24, np.int32),
        "scales": np.zeros((2, 24), np.float32),
        "factor": 1.0,
        "list": np.array([2, 0], np.uint32),
        "scores": np.zeros(16, np.int32),
        "order": np.zeros(16, np.float32),
    },
    "sort_keys": {"keys": np.arange(5, dtype=np.uint64), "out": np.zeros(5, np.uint64)},
}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("scan", {"points": 65}),
        ("scan", {"points": -1}),
        ("scan", {"points": 2**63}),
        ("scan", {"first_block": 1}),
        ("scan", {"first_block": 3}),
        ("scan", {"first_block": 3, "points": 0}),
        ("scan", {"group": 0}),
        ("scan", {"group": 3}),
        ("scan", {"tables": np.zeros((3, 16), np.uint8)}),
        ("scan", {"tables": np.zeros((4, 15), np.uint8)}),
        ("scan", {"codes": np.zeros((2, 2, 31), np.uint8)}),
        ("scan", {"hits": np.zeros((3, 2), np.uint32)}),
        ("scan", {"hits": np.zeros((64, 1), np.uint32)}),
        ("scan_four", {"points": 65}),
        ("scan_four", {"points": -1}),
        ("scan_four", {"points": 2**63}),
        ("scan_four", {"first_block": 1}),
        ("scan_four", {"first_block": 3, "points": 0}),
        ("scan_four", {"group": 0}),
        ("scan_four", {"group": 3}),
        ("scan_four", {"tables": np.zeros((3, 4, 16), np.uint8)}),
        ("scan_four", {"tables": np.zeros((4, 3, 16), np.uint8)}),
        ("scan_four", {"tables": np.zeros((4, 4, 15), np.uint8)}),
        ("scan_four", {"codes": np.zeros((2, 2, 31), np.uint8)}),
        ("scan_four", {"least": np.zeros(3, np.uint32)}),
        ("scan_four", {"least": np.zeros(5, np.uint32)}),
        ("scan_four", {"least": np.zeros(4, np.int64)}),
        ("scan_four", {"hits": np.zeros((3, 64, 2), np.uint32)}),
        ("scan_four", {"hits": np.zeros((4, 63, 2), np.uint32)}),
        ("scan_four", {"hits": np.zeros((4, 64, 1), np.uint32)}),
        ("score_rows", {"numbers": np.array([0, 1, 2], np.uint32)}),
        ("score_rows", {"numbers": np.array([0, 1, 2**32 - 1], np.uint32)}),
        ("score_rows", {"numbers": np.array([0, 1, 1], np.int64)}),
        ("score_rows", {"numbers": np.array([0, 1], np.uint32)}),
        ("score_rows", {"points": np.zeros((0, 3), np.int8)}),
        ("score_rows", {"points": np.zeros((2, 3), np.float64)}),
        ("score_rows", {"query": np.zeros(4, np.float32)}),
        ("score_rows", {"out": np.zeros(2, np.float32)}),
        ("score_rows", {"out": np.zeros(4, np.float32)}),
        ("score_rows", {"distance": True}),
        ("score_centroids", {"list": np.array([3, 0], np.uint32)}),
        ("score_centroids", {"list": np.array([0, 2**32 - 1], np.uint32)}),
        ("score_centroids", {"list": np.array([0, 1], np.int64)}),
        ("score_centroids", {"list": np.array([0], np.uint32)}),
        ("score_centroids", {"list": np.array([0, 1, 2], np.uint32)}),
        ("score_centroids", {"list": np.array([0, 0], np.uint32), "centroids": np.zeros((0, 2, 8, 4), np.int8)}),
        ("score_centroids", {"scores": np.zeros(24, np.int32)}),
        ("score_centroids", {"sums": np.zeros(16, np.int32)}),
        ("score_centroids", {"order": np.zeros(8, np.float32)}),
        ("score_centroids", {"scales": np.zeros((1, 24), np.float32)}),
        ("score_centroids", {"scales": np.zeros((2, 16), np.float32)}),
        ("sort_keys", {"out": np.zeros(4, np.uint64)}),
        ("sort_keys", {"out": np.zeros(6, np.uint64)}),
        ("sort_keys", {"keys": np.zeros(5, np.int64)}),
        ("score_centroids", {"query": np.full(7, 64, np.uint8)}),
        ("score_centroids", {"query": np.full(8, 128, np.uint8)}),
        ("score_centroids", {"centroids": np.full((3, 2, 8, 4), 64, np.int8)}),
        ("score_centroids", {"centroids": np.zeros((3, 3, 8, 4), np.int8)}),
        ("score_centroids", {"centroids": np.zeros((3, 2, 4, 8), np.int8)}),
    ],
)
def test_kernels_of_the_search_check_their_bounds(isa: str, name: str, change: dict[str, Any]) -> None:
    getattr(_core, name)(**GOOD_CALLS[name], isa=isa)
    with pytest.raises((ValueError, TypeError), match=r"."):
        getattr(_core, name)(**(GOOD_CALLS[name] | change), isa=isa)
