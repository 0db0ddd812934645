"""A recall to aim at instead of settings; and what an index says of itself."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import aniso
from aniso.tune import Measured, interpolate

RNG = np.random.default_rng(11)
CENTERS = RNG.normal(size=(200, 24))
POINTS = (CENTERS[RNG.integers(0, 200, 9000)] + 0.6 * RNG.normal(size=(9000, 24))).astype(np.float32)
QUERIES = (CENTERS[RNG.integers(0, 200, 800)] + 0.6 * RNG.normal(size=(800, 24))).astype(np.float32)


def recall(found: np.ndarray, truth: np.ndarray) -> float:
    return float(np.mean((found[:, :, None] == truth[:, None, :]).any(axis=2)))


@pytest.fixture(scope="module")
def index() -> aniso.Index:
    return aniso.build(POINTS, metric="cosine", recall=0.9)


def test_the_recall_asked_for_is_reached(index: aniso.Index, tmp_path: Path) -> None:
    """Within 0.02 below and 0.04 above on unseen queries: twice the error of 1000 queries to measure with."""
    truth = aniso.ExactIndex(POINTS, metric="cosine").search(QUERIES, 10).ids
    assert abs(recall(index.search(QUERIES, 10).ids, truth) - 0.91) < 0.03
    index.save(tmp_path / "a")
    for target in (0.95, 0.99):
        found = index.search(QUERIES, 10, recall=target)
        assert -0.02 < recall(found.ids, truth) - target < 0.04
        assert_array_equal(found.ids, aniso.open(tmp_path / "a").search(QUERIES, 10, recall=target).ids)
    assert recall(index.search(QUERIES, 10, recall=1.0).ids, truth) > 0.995


def test_the_curve_rises_and_is_the_same_again(index: aniso.Index) -> None:
    curve = aniso.tune(index, recall=0.9)
    assert curve == index.tune(recall=0.9)
    for k in (1, 10, 100):
        steps = [point for point in curve if point.k == k]
        assert len(steps) >= 4
        assert all(a.recall < b.recall for a, b in pairwise(steps))
        assert steps[-1].recall > 0.99


def test_queries_of_another_kind_are_tuned_for_when_given() -> None:
    queries = RNG.normal(size=(1200, 24)).astype(np.float32)
    index = aniso.build(POINTS, metric="dot", recall=0.9, queries=queries[:800])
    truth = aniso.ExactIndex(POINTS).search(queries[800:], 10).ids
    assert -0.03 < recall(index.search(queries[800:], 10).ids, truth) - 0.9 < 0.05


def test_measure_recall_has_an_interval(index: aniso.Index) -> None:
    truth = aniso.ExactIndex(POINTS, metric="cosine").search(QUERIES, 10).ids
    found = index.measure_recall(QUERIES, 10, partitions=5, candidates=30)
    reached = recall(index.search(QUERIES, 10, partitions=5, candidates=30).ids, truth)
    assert found.recall == pytest.approx(reached, abs=1e-9)
    assert found.low < found.recall < found.high
    assert found.high - found.low < 0.05
    assert (found.k, found.queries) == (10, 800)
    own = index.measure_recall()
    assert abs(own.recall - 0.9) < 0.03


def test_interpolation_stays_within_what_was_measured() -> None:
    curve = [Measured(10, 4, 20, 0.8), Measured(10, 16, 40, 0.95)]
    assert interpolate(curve, 10, 0.5, 100) == (4, 20)
    assert interpolate(curve, 10, 0.95, 100) == (16, 40)
    partitions, candidates = interpolate(curve, 10, 0.9, 100)
    assert 4 < partitions < 16
    assert 20 < candidates < 40
    assert interpolate(curve, 10, 0.99, 100)[0] == 100
    assert interpolate(curve, 50, 0.95, 100) == (16, 200)


@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 1), (3, 5), (50, 1), (999, 7), (1001, 3)])
@pytest.mark.parametrize("metric", ["dot", "cosine", "l2"])
def test_small_sets_need_no_settings_and_are_searched_exactly(n: int, d: int, metric: str) -> None:
    points = RNG.normal(size=(n, d)).astype(np.float32)
    index = aniso.build(points, metric=metric)
    found, truth = index.search(points[:20], 5), aniso.ExactIndex(points, metric=metric).search(points[:20], 5)
    if n <= 1000:
        np.testing.assert_allclose(found.scores, truth.scores, rtol=1e-4, atol=1e-5)
    assert found.ids.shape == truth.ids.shape


def test_an_index_that_grows_is_trained_anew() -> None:
    index = aniso.build(POINTS[:500], metric="cosine", ids=[f"p{i}" for i in range(500)])
    assert index.info()["partitions"] == 1
    index.add(POINTS[500:3000], [f"p{i}" for i in range(500, 3000)])
    assert index.info()["partitions"] == 47  # one for every 64 points
    index.remove(["p3"])
    found = index.search(POINTS[[3, 4]], 1, partitions=1000, candidates=5000).ids[:, 0].tolist()
    assert found[1] == "p4"
    assert found[0] != "p3"


def test_rebalance_after_another_kind_of_points_came() -> None:
    """Recall after half of the points were replaced by others is that of a fresh build, within 0.02."""
    other = (3 * RNG.normal(size=(4500, 24)) + 2).astype(np.float32)
    index = aniso.build(POINTS, metric="l2", recall=None)
    index.update(other, np.arange(4500))
    assert index.info()["drift"] > 1.5
    index.rebalance()
    assert index.info()["drift"] == 1.0
    points = np.concatenate([other, POINTS[4500:]])
    fresh = aniso.build(points, metric="l2", recall=None)
    truth = aniso.ExactIndex(points, metric="l2").search(QUERIES, 10).ids
    a, b = (recall(one.search(QUERIES, 10, partitions=8, candidates=40).ids, truth) for one in (index, fresh))
    assert abs(a - b) < 0.02
    assert_array_equal(np.sort(index.ids), np.arange(9000))


def test_info_counts(index: aniso.Index) -> None:
    info = index.info()
    assert info["points"] == 9000
    assert info["removed_rows"] == 0
    assert info["balance"] >= 1
    assert info["recall"] == 0.9
    assert {"bytes", "curve", "drift", "empty_slots", "largest_partition", "metric", "partitions"} <= set(info)
