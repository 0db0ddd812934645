"""A search finds the same, to the bit, alone or in a batch, on any threads, and whatever was searched before.

The engine takes queries together that look at the same partitions, and learns from earlier queries where to start: all
of that changes how fast it is, never what it finds. The truth here is a searcher that has seen nothing, one per query.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from searchers import Found, alone, answer, arrays_of, assert_same, clustered, search

from aniso import _core
from aniso.config import METRICS, RESCORES
from aniso.index import build

HERE = Path(__file__).parent
D = 12
QUERIES = clustered(1500, D, seed=1)


@cache
def arrays(metric: str, rescore: str = "float32", spill: float = 1.0) -> dict[str, Any]:
    """1,200 points, every tenth twice, in 45 partitions."""
    points = clustered(1200, D)
    points[1::10] = points[::10]
    return arrays_of(build(points, metric=metric, rescore=rescore, spill=spill, partitions=45, rounds=1))


@cache
def grouped(metric: str) -> dict[str, Any]:
    """20,000 points in 1,100 partitions: so many are grouped."""
    index = build(clustered(20_000, 8), metric=metric, partitions=1100, iterations=4, rounds=1, rescore="float16")
    made = arrays_of(index)
    assert made["groups"] is not None
    return made


@pytest.mark.parametrize("spill", [0.0, 1.0])
@pytest.mark.parametrize("rescore", RESCORES)
@pytest.mark.parametrize("metric", METRICS)
def test_a_batch_is_its_queries(metric: str, rescore: str, spill: float) -> None:
    made = arrays(metric, rescore, spill)
    asked = 10, 6, 40
    expected = alone(made, QUERIES, *asked)
    for count in (1, 2, 31, 32, 33, 200, 1500):
        for threads in (1, 2, 3):
            found = search(_core.Searcher(**made), QUERIES[:count], *asked, threads=threads)
            assert_same(found, (expected[0][:count], expected[1][:count]))


@pytest.mark.parametrize("metric", METRICS)
def test_a_batch_is_its_queries_on_every_instruction_set(isa: str, metric: str) -> None:
    for rescore in ("none", "int8"):
        made = arrays(metric, rescore)
        expected = alone(made, QUERIES[:150], 5, 4, 20, isa)
        assert_same(search(_core.Searcher(**made, isa=isa), QUERIES[:150], 5, 4, 20), expected)


@pytest.mark.parametrize("partitions", [1, 7, 44, 45, 1000])
@pytest.mark.parametrize("k", [1, 9, 100, 1199, 1200])
def test_any_number_of_results_and_partitions(k: int, partitions: int) -> None:
    made = arrays("dot", "int8")
    for candidates in (1, k, 2400):
        expected = alone(made, QUERIES[:70], k, partitions, candidates)
        assert_same(search(_core.Searcher(**made), QUERIES[:70], k, partitions, candidates, threads=2), expected)


def odd_points(kind: str, n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    if kind == "constant":
        return np.full((n, d), 1.5, np.float32)
    if kind == "zero":
        return np.zeros((n, d), np.float32)
    if kind == "whole":  # many equal scores
        return rng.integers(-1, 2, (n, d)).astype(np.float32)
    if kind == "duplicates":
        return clustered(n, d)[rng.integers(0, min(n, 5), n)]
    return clustered(n, d)


def odd_queries(kind: str, count: int, points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    d = points.shape[1]
    queries = rng.normal(size=(count, d)).astype(np.float32)
    if kind == "identical":
        queries[:] = queries[0]
    if kind == "points":
        queries = points[rng.integers(0, len(points), count)].copy()
    if kind == "whole":
        queries = rng.integers(-1, 2, (count, d)).astype(np.float32)
    if kind == "sizes":
        queries *= 10.0 ** rng.integers(-6, 7, (count, 1)).astype(np.float32)
        queries[::5] = 0
    return np.ascontiguousarray(queries, np.float32)


@given(
    kind=st.sampled_from(["clustered", "constant", "zero", "whole", "duplicates"]),
    queries=st.sampled_from(["any", "identical", "points", "whole", "sizes"]),
    n=st.integers(1, 150),
    d=st.integers(1, 9),
    p=st.integers(1, 30),
    count=st.integers(1, 90),
    metric=st.sampled_from(METRICS),
    rescore=st.sampled_from(RESCORES),
    spill=st.sampled_from([0.0, 1.0]),
    threads=st.integers(1, 3),
    data=st.data(),
)
def test_odd_points_and_odd_queries(
    kind: str,
    queries: str,
    n: int,
    d: int,
    p: int,
    count: int,
    metric: str,
    rescore: str,
    spill: float,
    threads: int,
    data: st.DataObject,
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    points = odd_points(kind, n, d, rng)
    settings: dict[str, Any] = {"partitions": min(p, n), "rescore": rescore, "spill": spill}
    made = arrays_of(build(points, metric=metric, iterations=2, rounds=1, **settings))
    asked = odd_queries(queries, count, points, rng)
    k = data.draw(st.integers(1, n))
    how = k, data.draw(st.integers(1, p)), data.draw(st.integers(1, 2 * n))
    expected = alone(made, asked, *how)
    assert all(len(np.unique(row)) == k for row in expected[0])
    searcher = _core.Searcher(**made)
    for _ in range(2):
        assert_same(search(searcher, asked, *how, threads=threads), expected)


def test_partitions_of_more_points_than_one_scan_takes(isa: str) -> None:
    """65,536 points at a time: those behind are found too, alone and four queries at a time."""
    points = np.random.default_rng(3).integers(-9, 10, (70_000, 4)).astype(np.float32)
    points[-3:] = np.eye(4, dtype=np.float32)[:3] * 40
    made = arrays_of(build(points, metric="dot", recall=None, partitions=1, rounds=1, sample=2000))
    queries = np.tile(np.eye(4, dtype=np.float32)[:3], (12, 1))
    ids, scores = search(_core.Searcher(**made, isa=isa), queries, k=1, partitions=1, candidates=20_000)
    assert ids[:, 0].tolist() == [69_997, 69_998, 69_999] * 12
    assert_same((ids[:3], scores[:3]), alone(made, queries[:3], 1, 1, 20_000, isa))


@pytest.mark.parametrize("metric", METRICS)
def test_grouped_partitions(metric: str) -> None:
    made, queries = grouped(metric), clustered(400, 8, seed=2)
    searcher = _core.Searcher(**made)
    for how in ((10, 8, 40), (3, 60, 15), (10, 300, 100), (10, 1099, 60), (1, 1, 1)):
        expected = alone(made, queries, *how)
        for threads in (1, 2, 3):
            assert_same(search(searcher, queries, *how, threads=threads), expected)


@pytest.mark.parametrize("metric", METRICS)
def test_grouped_partitions_find_what_all_partitions_hold(metric: str) -> None:
    """All of 1,100 partitions and all candidates: as if there were no groups."""
    made, queries = grouped(metric), clustered(20, 8, seed=2)
    without = made | {"groups": None, "group_sums": None, "group_scales": None}
    assert_same(alone(made, queries, 10, 1100, 40_000), alone(without, queries, 10, 1100, 40_000))


def adversarial(name: str) -> np.ndarray:
    """Orders of queries after which whatever was learnt is wrong for the next."""
    rng = np.random.default_rng(5)
    queries = QUERIES[:240].copy()
    if name == "large, then small":
        queries[:120] *= np.float32(1e6)
        queries[120:] *= np.float32(1e-6)
    elif name == "small, then large":
        queries[:120] *= np.float32(1e-6)
        queries[120:] *= np.float32(1e6)
    elif name == "zeros between":
        queries[::2] = 0
    elif name == "zeros first":
        queries[:200] = 0
    elif name == "far outliers":
        queries[::3] = 1000 * rng.normal(size=(80, D))
    elif name == "one query, then others":
        queries[:200] = queries[0]
    elif name == "opposite":
        queries[120:] = -queries[:120]
    return queries


ORDERS = [
    "plain",
    "large, then small",
    "small, then large",
    "zeros between",
    "zeros first",
    "far outliers",
    "one query, then others",
    "opposite",
]


def one_by_one(searcher: _core.Searcher, queries: np.ndarray, k: int, partitions: int, candidates: int) -> Found:
    found = [answer(searcher, query, k, partitions, candidates) for query in queries]
    return np.stack([ids for ids, _ in found]), np.stack([scores for _, scores in found])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("metric", METRICS)
def test_what_came_before_does_not_matter(metric: str, order: str) -> None:
    made, queries = arrays(metric, "float16"), adversarial(order)
    searcher = _core.Searcher(**made)
    asked = 10, 5, 40
    expected = alone(made, queries, *asked)
    for _ in range(3):
        assert_same(one_by_one(searcher, queries, *asked), expected)
        assert_same(search(searcher, queries, *asked), expected)
        assert_same(search(searcher, queries[::-1].copy(), *asked), (expected[0][::-1], expected[1][::-1]))


def test_a_floor_far_too_low_lets_few_points_pass() -> None:
    """Queries that see next to no differences within a partition teach a floor that tells the others nothing."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(20_000, D)).astype(np.float32)
    points[:, 0] = 100 + 0.001 * rng.normal(size=len(points))
    made = arrays_of(build(points, metric="dot", partitions=40, rounds=1, rescore="float16"))
    flat, steep = np.zeros((2, 64, D), np.float32)
    flat[:, 0], steep[:, 1:] = 1, rng.normal(size=(64, D - 1))
    unknowing, taught = _core.Searcher(**made), _core.Searcher(**made)
    taught.profile(flat, 10, 20, 40)
    hits = [searcher.profile(steep[:16], 10, 20, 40)["hits"] for searcher in (unknowing, taught)]
    assert hits[1] < 3 * hits[0]  # and not most of the points that are scanned


def test_a_query_unlike_all_others_slows_few_that_follow() -> None:
    """By the mean of all points, scores over the length of the query have no bounds; that must not be remembered."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(20_000, D)).astype(np.float32)
    made = arrays_of(build(points, metric="l2", partitions=40, rounds=1, rescore="float16"))
    queries = rng.normal(size=(64, D)).astype(np.float32)
    odd = points.mean(axis=0, dtype=np.float64).astype(np.float32)[None] + np.float32(1e-5)
    unknowing, taught = _core.Searcher(**made), _core.Searcher(**made)
    taught.profile(queries, 10, 20, 40)
    taught.profile(odd, 10, 20, 40)
    hits = [searcher.profile(queries, 10, 20, 40)["hits"] for searcher in (unknowing, taught)]
    assert hits[1] < 1.5 * hits[0]


@pytest.mark.parametrize("order", ["plain", "large, then small", "far outliers"])
@pytest.mark.parametrize("rescore", ["none", "int8"])
def test_searches_for_other_things_in_between(rescore: str, order: str) -> None:
    made, queries = arrays("dot", rescore), adversarial(order)
    searcher = _core.Searcher(**made)
    wishes = [(10, 5, 40), (1, 5, 1), (10, 6, 40), (200, 1, 300), (10, 45, 2400), (3, 2, 9)]
    expected = [alone(made, queries, *wish) for wish in wishes]
    for turn in range(18):
        which = turn * 5 % len(wishes)
        assert_same(search(searcher, queries, *wishes[which], threads=1 + turn % 2), expected[which])
        assert_same(one_by_one(searcher, queries[:40], *wishes[which - 1]), tuple(x[:40] for x in expected[which - 1]))


def test_the_same_search_many_times() -> None:
    index = build(clustered(1200, D), metric="cosine", partitions=45, rescore="int8", rounds=1)
    first = index.search(QUERIES[:100], 10, partitions=4)
    for turn in range(200):
        again = index.search(QUERIES[:100], 10, partitions=4, threads=1 + turn % 2)
        assert_same(again, first)
        if turn % 7 == 0:
            index.search(QUERIES[turn], 5 + turn, partitions=1 + turn % 45)


def check_sizes(first: int, scale: float) -> None:
    made = arrays("dot", "float16")
    queries = QUERIES[:240] / np.abs(QUERIES[:240]).max(axis=1, keepdims=True)
    queries[first:230] *= np.float32(scale)
    asked = 10, 5, 40
    expected = alone(made, queries, *asked)
    searcher = _core.Searcher(**made)
    for _ in range(2):
        assert_same(one_by_one(searcher, queries, *asked), expected)
        assert_same(search(searcher, queries, *asked), expected)


@pytest.mark.parametrize("scale", [1e12, 1e18, 1e20, 1e37])
@pytest.mark.parametrize("first", [0, 40])
def test_queries_of_any_size_teach_nothing_wrong(first: int, scale: float) -> None:
    """Squares of such scores do not fit float32; queries of common size before and after find what they always do.

    In a process of its own, which a sanitizer may end.
    """
    program = f"from test_batches import check_sizes; check_sizes({first}, {scale})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=HERE, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr}"


@pytest.mark.parametrize("scale", [1e-30, 1e-36, 1e-37])
@pytest.mark.parametrize("rescore", RESCORES)
def test_small_queries_find_what_large_ones_find(rescore: str, scale: float) -> None:
    """Inner products scale with the query; a few ids may fall to rounding. Below, products do not fit float32."""
    searcher = _core.Searcher(**arrays("dot", rescore))
    queries = QUERIES[:50] / np.abs(QUERIES[:50]).max(axis=1, keepdims=True)
    plain = search(searcher, queries, 10, 5, 40)[0]
    small = search(searcher, queries * np.float32(scale), 10, 5, 40)[0]
    assert np.mean([len(np.intersect1d(a, b)) for a, b in zip(plain, small, strict=True)]) >= 9.5


def test_searches_at_the_same_time() -> None:
    """One searcher serves many Python threads; each has its own working memory."""
    made = arrays("l2", "int8")
    searcher = _core.Searcher(**made)
    wishes = [(10, 5, 40), (3, 9, 20), (50, 2, 60), (1, 1, 1)]
    expected = [alone(made, QUERIES[:100], *wish) for wish in wishes]

    def work(number: int) -> None:
        for turn in range(10):
            which = (number + turn) % len(wishes)
            assert_same(search(searcher, QUERIES[:100], *wishes[which], threads=1 + turn % 2), expected[which])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
