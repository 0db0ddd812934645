"""The index and the exact index through their public calls: what is found, in which order, with which scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from aniso.config import METRICS, RESCORES, Config
from aniso.exact import ExactIndex
from aniso.index import Index, build

N, D = 3000, 20


def clustered(n: int, d: int = D, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(40, d)) * 2
    return (centers[rng.integers(0, 40, n)] + rng.normal(size=(n, d))).astype(np.float32)


POINTS, QUERIES = clustered(N), clustered(100, seed=0)[50:] + np.float32(0.1)


def scores_of(queries: np.ndarray, points: np.ndarray, metric: str) -> np.ndarray:
    q, x = queries.astype(np.float64), points.astype(np.float64)
    if metric == "l2":
        return -((q[:, None] - x[None]) ** 2).sum(axis=2)
    if metric == "cosine":
        q, x = q / np.linalg.norm(q, axis=1, keepdims=True), x / np.linalg.norm(x, axis=1, keepdims=True)
    return q @ x.T


def recall(found: np.ndarray, truth: np.ndarray) -> float:
    return float(np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(found, truth, strict=True)]))


@pytest.mark.parametrize("metric", METRICS)
def test_exact_index(metric: str) -> None:
    result = ExactIndex(POINTS, metric=metric).search(QUERIES, 15)
    scores = scores_of(QUERIES, POINTS, metric)
    assert_array_equal(result.ids, np.argsort(-scores, axis=1)[:, :15])
    assert_allclose(result.scores, -np.sort(-scores, axis=1)[:, :15], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("metric", METRICS)
def test_exact_results_do_not_depend_on_the_batch_or_threads(metric: str) -> None:
    index = ExactIndex(POINTS, metric=metric, threads=2)
    whole = index.search(QUERIES, 7)
    for row, query in enumerate(QUERIES):
        one = index.search(query, 7, threads=1)
        assert_array_equal(one.ids, whole.ids[row])
        assert_array_equal(one.scores, whole.scores[row])


@pytest.mark.parametrize("spill", [0.0, 1.0])
@pytest.mark.parametrize("metric", METRICS)
def test_looking_everywhere_finds_everything(metric: str, spill: float) -> None:
    """All partitions and all candidates leave nothing to chance: the result is the exact one."""
    index = build(POINTS, metric=metric, spill=spill, partitions=50)
    result = index.search(QUERIES, 10, partitions=50, candidates=2 * N)
    exact = ExactIndex(POINTS, metric=metric).search(QUERIES, 10)
    assert_array_equal(result.ids, exact.ids)
    assert_allclose(result.scores, exact.scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rescore", RESCORES)
@pytest.mark.parametrize("metric", METRICS)
def test_recall_and_scores_of_every_copy(metric: str, rescore: str) -> None:
    """Floors with a margin of 0.05 below what these seeds give; score errors are those of the copy kept."""
    index = build(POINTS, metric=metric, rescore=rescore, partitions=60)
    result = index.search(QUERIES, 10, partitions=20, candidates=80)
    truth = ExactIndex(POINTS, metric=metric).search(QUERIES, 10).ids
    assert recall(result.ids, truth) > (0.5 if rescore == "none" else 0.9)
    exact = np.take_along_axis(scores_of(QUERIES, POINTS, metric), result.ids, axis=1)
    size = np.abs(scores_of(QUERIES, POINTS, "dot")).max() if metric != "cosine" else 1.0
    assert np.all(np.diff(result.scores, axis=1) <= 0)
    if rescore == "none":  # estimates of 2 bits per dimension: right on the whole, not for each of the best
        whole = index.search(QUERIES[:5], N, partitions=60)
        every = np.take_along_axis(scores_of(QUERIES[:5], POINTS, metric), whole.ids, axis=1)
        assert np.corrcoef(whole.scores.ravel(), every.ravel())[0, 1] > 0.96
        return
    tolerance = {"float32": 1e-5, "float16": 2e-3, "int8": 1e-2}[rescore]
    assert_allclose(result.scores, exact, atol=tolerance * size)


@pytest.mark.parametrize("metric", METRICS)
def test_results_do_not_depend_on_the_batch_or_threads(metric: str) -> None:
    index = build(POINTS, metric=metric, partitions=60, threads=2)
    whole = index.search(QUERIES, 10, partitions=6, candidates=30, threads=2)
    for row, query in enumerate(QUERIES):
        one = index.search(query, 10, partitions=6, candidates=30)
        assert_array_equal(one.ids, whole.ids[row])
        assert_array_equal(one.scores, whole.scores[row])


def test_same_seed_same_index_on_any_number_of_threads() -> None:
    results = [
        build(POINTS, metric="cosine", seed=seed, threads=threads).search(QUERIES, 10, partitions=3, candidates=15)
        for seed, threads in ((0, 1), (0, 2), (1, 1))
    ]
    assert_array_equal(results[0].ids, results[1].ids)
    assert_array_equal(results[0].scores, results[1].scores)
    assert not np.array_equal(results[0].ids, results[2].ids)


@pytest.mark.parametrize("settings", [{"partitions": 40, "spill": 0}, {"partitions": 1100}, {"rescore": "int8"}])
@pytest.mark.parametrize("metric", METRICS)
def test_same_seed_same_file_on_any_number_of_threads(metric: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """Several blocks of points are on their way at once; what is added later is one block, shared by all threads."""
    for threads in (1, 2, 5):
        index = build(clustered(9000), metric=metric, recall=None, rounds=1, threads=threads, **settings)
        index.add(clustered(1500, seed=1))
        index.save(tmp_path / str(threads))
    files = [(tmp_path / str(threads)).read_bytes() for threads in (1, 2, 5)]
    assert files[0] == files[1] == files[2]


@pytest.mark.parametrize("metric", METRICS)
def test_adding_in_chunks_is_adding_at_once(metric: str) -> None:
    config = Config(metric=metric, partitions=40)
    once, chunked = Index.train(POINTS, config), Index.train(POINTS, config)
    once.add(POINTS)
    chunked.add(POINTS[:1000])
    assert chunked.search(QUERIES[0], 3).ids.max() < 1000
    chunked.add(iter([POINTS[1000:1001], POINTS[1001:]]))
    assert chunked.n == N
    a, b = (index.search(QUERIES, 10, partitions=10) for index in (once, chunked))
    assert_array_equal(a.ids, b.ids)
    assert_array_equal(a.scores, b.scores)


@pytest.mark.parametrize("spill", [0.0, 1.0])
@pytest.mark.parametrize("rescore", RESCORES)
def test_k_beyond_what_exists_gives_what_exists(rescore: str, spill: float) -> None:
    index = build(POINTS[:70], metric="dot", partitions=8, spill=spill, rescore=rescore)
    for k in (1, 69, 70, 71, 10**9):
        result = index.search(QUERIES, k, partitions=1)
        assert result.ids.shape == (len(QUERIES), min(k, 70))
        assert all(len(np.unique(row)) == len(row) for row in result.ids)
        assert result.ids.min() >= 0
        assert result.ids.max() < 70


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    "points",
    [
        np.ones((1, 4), np.float32),
        np.ones((100, 4), np.float32),
        np.zeros((50, 4), np.float32),
        np.eye(4, dtype=np.float32)[np.arange(200) % 4],
        clustered(33, 1),
        clustered(500, 3),
    ],
    ids=["one point", "all equal", "all zero", "duplicates", "one dimension", "three dimensions"],
)
def test_odd_sets_of_points(points: np.ndarray, metric: str) -> None:
    """Equal scores come in the order of their ids, so even these have one right answer."""
    index, exact = build(points, metric=metric), ExactIndex(points, metric=metric)
    queries = points[:5] + np.float32(0.5)
    k = min(7, len(points))
    found = index.search(queries, k, partitions=10**6, candidates=10**6)
    truth = exact.search(queries, k)
    assert_array_equal(found.ids, truth.ids)
    assert_allclose(found.scores, truth.scores, rtol=1e-5, atol=1e-5)


def test_points_far_from_zero_keep_their_distances() -> None:
    points = clustered(500) + np.float32(1000.0)
    queries = points[:20] + np.float32(0.01)
    for index in (ExactIndex(points, metric="l2"), build(points, metric="l2", rescore="float32")):
        result = index.search(queries, 1)
        assert_array_equal(result.ids[:, 0], np.arange(20))
        assert_allclose(result.scores[:, 0], -D * 0.01**2, rtol=0.1)


@pytest.mark.parametrize("metric", METRICS)
def test_search_above_a_score(metric: str) -> None:
    scores = scores_of(QUERIES, POINTS, metric)
    index, exact = build(POINTS, metric=metric, partitions=20), ExactIndex(POINTS, metric=metric)
    for row in range(5):
        for count in (0, 1, 10, 300):
            least = float(-np.sort(-scores[row])[count]) + 1e-3 * abs(scores[row].max())
            expected = int(np.sum(scores[row] >= least))
            assert len(exact.search_above(QUERIES[row], least).ids) == expected
            found = index.search_above(QUERIES[row], least, partitions=20)
            assert np.all(found.scores >= least)
            assert len(found.ids) >= 0.9 * expected - 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_queries_that_are_not_finite_are_refused_by_row(value: float) -> None:
    index = build(POINTS, metric="dot", partitions=20)
    queries = QUERIES.copy()
    queries[3, 4] = value
    for searched in (index, ExactIndex(POINTS)):
        with pytest.raises(ValueError, match="row 3, dimension 4 is not finite"):
            searched.search(queries)
    assert index.search(QUERIES).ids.shape == (50, 10)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_points_that_are_not_finite_are_refused_and_nothing_is_added(value: float) -> None:
    points = POINTS.copy()
    points[17, 2] = value
    with pytest.raises(ValueError, match="row 17, dimension 2 is not finite"):
        build(points)
    index = build(POINTS, partitions=20)
    before = index.search(QUERIES)
    with pytest.raises(ValueError, match="row 17"):
        index.add(points)
    assert index.n == N
    assert_array_equal(index.search(QUERIES).ids, before.ids)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "euclid"}, "metric is 'euclid'"),
        ({"rescore": "f8"}, "rescore is 'f8'"),
        ({"partitions": 0}, "partitions is 0"),
        ({"spill": -1.0}, "spill is -1"),
        ({"spill_share": 0}, "spill_share is 0.0; needed: above 0"),
        ({"spill_share": 1.5}, "spill_share is 1.5"),
        ({"spill_share": np.nan}, "spill_share is nan"),
        ({"threshold": 1.0}, "threshold is 1"),
        ({"centroid_threshold": 1.0}, "centroid_threshold is 1"),
        ({"centroid_threshold": 0.1, "metric": "l2"}, "needed: 0 for l2"),
        ({"seed": -1}, "seed is -1"),
        ({"sample": 0}, "sample is 0"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(POINTS, **settings)


@pytest.mark.parametrize("k", [0, -1])
def test_bad_k(k: int) -> None:
    for index in (build(POINTS, partitions=20), ExactIndex(POINTS)):
        with pytest.raises(ValueError, match=f"k is {k}"):
            index.search(QUERIES, k)


@pytest.mark.parametrize("threads", [0, -1, "2", 1.5])
def test_bad_threads_are_refused_for_one_query_as_for_many(threads: Any) -> None:
    index = build(POINTS, partitions=20)
    for queries in (QUERIES, QUERIES[0]):
        with pytest.raises((ValueError, TypeError), match="threads"):
            index.search(queries, threads=threads)


@pytest.mark.parametrize(("name", "call"), [("k", {"k": None}), ("queries", {"queries": None})])
def test_none_is_refused_in_our_words(name: str, call: dict[str, Any]) -> None:
    index = build(POINTS, partitions=20)
    with pytest.raises((ValueError, TypeError), match=f"^{name} "):
        index.search(**({"queries": QUERIES} | call))


@pytest.mark.parametrize("metric", ["dot", "cosine", "l2"])
def test_the_points_that_spill_are_those_it_costs_least(metric: str) -> None:
    index = build(POINTS, metric=metric, partitions=20, spill_share=0.4)
    encoder, store = index._store.encoder, index._store
    firsts, seconds, ratios = encoder.partitions.assign(encoder.prepare(POINTS), 1.0)
    assert ratios is not None
    assert seconds is not None
    times = np.bincount(store.slot_rows.reshape(-1)[store.filled()[0]], minlength=N)
    within = ratios <= np.float32(encoder.spill_limit)
    assert abs(within.mean() - 0.4) < 0.02  # the limit is that of the points that were trained on
    for partition in range(20):
        there, size = ratios[(seconds == partition) & (times == 2)], store.sizes[partition]
        absent = ratios[(seconds == partition) & (times == 1)]
        assert size % 32 == 0 or not len(absent)  # a last block is filled as long as there are points to spill
        assert there.max(initial=0) <= absent.min(initial=np.inf)
        wanted = np.count_nonzero(firsts == partition) + np.count_nonzero(within[seconds == partition])
        assert abs(size - wanted) <= 16 or size - len(there) > wanted - 32
    index.add(POINTS[:50] + np.float32(1e-4))
    assert 50 < index._store.entries - store.entries < 100


def test_all_points_can_spill() -> None:
    """Also those that no training point is like, and those that stand where the centroid does."""
    points = np.concatenate([POINTS, np.repeat(POINTS[:1], 500, axis=0)])
    index = build(points, partitions=20, spill_share=1)
    index.add(100 * POINTS[:30])
    assert index._store.entries == 2 * len(index)


def test_a_bad_row_far_down_leaves_nothing_behind() -> None:
    index = build(POINTS, partitions=20, spill=0.0)
    points = np.zeros((70_000, D), np.float32)
    points[:, 0], points[69_999, 1] = 1.0, np.nan
    for call in (index.add, build):
        with pytest.raises(ValueError, match="row 69999, dimension 1 is not finite"):
            call(points)
    assert index.n == N


def test_an_empty_index_says_so() -> None:
    with pytest.raises(ValueError, match="no points"):
        Index.train(POINTS, Config()).search(QUERIES)


def test_recall_on_glove(data_file: Any) -> None:
    """What one hundredth of the partitions finds on real data: 0.93 with this seed, floor 0.9."""
    data_file("glove-100-angular.hdf5")
    from aniso import datasets

    data = datasets.load("glove-100-angular")
    points, queries = data.points[:50_000], data.queries[:300]
    truth = ExactIndex(points, metric="cosine").search(queries, 10).ids
    index = build(points, metric="cosine", rescore="float16")
    assert recall(index.search(queries, 10, partitions=24, candidates=80).ids, truth) > 0.9


def test_settings_are_the_same_however_they_are_written(tmp_path: Path) -> None:
    forms: list[dict[str, Any]] = [
        {"spill": 0, "threshold": 0, "partitions": 8, "seed": 3, "rounds": 1},
        {"spill": 0.0, "threshold": -0.0, "partitions": np.int64(8), "seed": np.uint8(3), "rounds": np.int32(1)},
        {"spill": np.float32(0), "threshold": np.float64(0), "partitions": 8, "seed": 3, "rounds": 1},
    ]
    for number, settings in enumerate(forms):
        build(clustered(300, 4), **settings).save(tmp_path / str(number))
    assert len({(tmp_path / str(number)).read_bytes() for number in range(3)}) == 1


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("n", "d"), [(3000, 20), (1500, 100), (300, 7), (1, 1)])
def test_memory_is_kept_to(metric: str, n: int, d: int, tmp_path: Path) -> None:
    points, ids = clustered(n, d), np.arange(n)[::-1] + 7
    plain = build(points, metric=metric, ids=ids)
    plain.save(tmp_path / "plain")
    seen = set()
    for memory in np.linspace(n * (d // 4 + 8), 2 * (tmp_path / "plain").stat().st_size, 15).astype(int):
        try:
            index = build(points, metric=metric, ids=ids, memory=memory, recall=None)
        except ValueError as error:
            seen.add(str(error).partition("needed")[1])
            continue
        index.save(tmp_path / "a")
        assert index.info()["bytes"] <= memory
        assert (tmp_path / "a").stat().st_size <= memory + 4096  # the header
        seen.add(index.config.rescore)
    assert {"needed", "float32"} <= seen
    if n > 1000:
        assert {"float16", "int8"} <= seen
