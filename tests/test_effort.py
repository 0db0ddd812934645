"""Queries that are worth more or fewer partitions than others: the rule against NumPy, and what is learnt."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from searchers import alone, arrays_of, assert_same, clustered, search

import aniso
from aniso import _core
from aniso.effort import learn_effort
from aniso.index import Index, build

Array = NDArray[Any]
N, D, P = 6000, 12, 150
METRICS = ("dot", "cosine", "l2")
EFFORT = {"dot": [4.0, -0.3, -0.25], "cosine": [4.5, -4.0, -2.0], "l2": [0.33, -0.1, -0.02]}
POINTS, QUERIES = clustered(N, D), clustered(120, D, seed=1)


@pytest.fixture(scope="module")
def indexes() -> dict[str, Index]:
    return {metric: build(POINTS, metric=metric, partitions=P, rounds=1, recall=None) for metric in METRICS}


def varied(index: Index, effort: list[float]) -> dict[str, Any]:
    return arrays_of(index) | {"effort": np.array(effort, np.float32)}


def routing_scores(index: Index) -> tuple[Array, Array]:
    """The scores of all partitions, (queries, p), and what makes those of one query comparable to another's."""
    encoder = index._store.encoder
    packed = encoder.partitions.packed()
    x = encoder.prepare(QUERIES)
    # As the core rounds a query: to 127 levels.
    units = np.abs(x).max(axis=1, keepdims=True) / 63
    bytes_of_x = np.floor(x / units + 64.5) - 64
    scores = (bytes_of_x @ encoder.partitions.bytes.T.astype(float)) * packed.scales[0, :P] * units
    return scores + packed.scales[1, :P], np.einsum("qd,qd->q", x, x)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("partitions", [1, 7, 40, 100])
def test_each_query_gets_the_partitions_it_is_worth(indexes: dict[str, Index], metric: str, partitions: int) -> None:
    index, (offset, level, gap) = indexes[metric], EFFORT[metric]
    given = varied(index, EFFORT[metric])
    scores, squares = routing_scores(index)
    order = np.argsort(-scores, axis=1, kind="stable")
    best = np.take_along_axis(scores, order, axis=1)
    scale, shift = (2.0, -squares) if metric == "l2" else (1 / np.sqrt(squares), 0.0)
    log = offset + level * (best[:, 0] * scale + shift) + gap * (best[:, 0] - best[:, 31]) * scale
    times = np.exp(np.clip(log, -np.log(4), np.log(4)))
    worth = np.clip(np.floor(partitions * times + 0.5), 1, P).astype(int)
    assert len(np.unique(worth)) > 3 or partitions == 1
    chosen = np.full((1, P), -77, np.int32)
    for i, query in enumerate(QUERIES):
        # A searcher that has seen nothing: a guess from earlier queries may make it scan twice.
        searcher = _core.Searcher(**given)
        scanned = searcher.profile(query[None], 1, partitions, 10)["scanned"]
        searcher.route(query[None], partitions, chosen)
        count = int(np.count_nonzero(chosen >= 0))
        # A rounding may tip a number of partitions by one, or two partitions that score alike.
        assert abs(count - worth[i]) <= 1
        assert len(np.intersect1d(chosen[0, :count], order[i, :count])) >= count - 1
        assert np.all(chosen[0, count:] == -1)
        assert scanned == index._store.sizes[chosen[0, :count]].sum()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("threads", [1, 2])
def test_batches_and_single_queries_agree(indexes: dict[str, Index], isa: str, metric: str, threads: int) -> None:
    given = varied(indexes[metric], EFFORT[metric])
    searcher = _core.Searcher(**given, isa=isa)
    found = search(searcher, QUERIES, 10, 12, 40, threads=threads)
    assert_same(found, alone(given, QUERIES, 10, 12, 40, isa=isa))


def test_all_partitions_are_all(indexes: dict[str, Index]) -> None:
    searcher = _core.Searcher(**varied(indexes["dot"], [-1.0, 0.0, 0.0]))
    assert searcher.profile(QUERIES[:1], 1, P, 10)["scanned"] == indexes["dot"]._store.sizes.sum()


def test_no_effort_is_the_same_number_for_all(indexes: dict[str, Index]) -> None:
    plain, zero = _core.Searcher(**arrays_of(indexes["l2"])), _core.Searcher(**varied(indexes["l2"], [0.0, 0.0, 0.0]))
    assert_same(search(zero, QUERIES, 5, 9, 30), search(plain, QUERIES, 5, 9, 30))


def test_route_checks_its_arrays(indexes: dict[str, Index]) -> None:
    searcher, room = _core.Searcher(**arrays_of(indexes["dot"])), np.zeros((2, P), np.int32)
    for queries, chosen in (
        (QUERIES[:2, :-1].copy(), room),
        (QUERIES[:3], room),
        (QUERIES[:2], room[:, :-1].copy()),
        (QUERIES[:2] * np.float32(np.nan), room),
    ):
        with pytest.raises(ValueError, match="quer"):
            searcher.route(queries, 3, chosen)


@pytest.mark.parametrize("effort", [[0.0, 1.0], [0.0, np.nan, 0.0], [np.inf, 0.0, 0.0]])
def test_a_searcher_checks_its_effort(indexes: dict[str, Index], effort: list[float]) -> None:
    with pytest.raises(ValueError, match="effort"):
        _core.Searcher(**varied(indexes["dot"], effort))


@pytest.mark.parametrize("metric", METRICS)
def test_what_is_learnt_finds_more_with_as_many_partitions(metric: str) -> None:
    """Half of the queries lie in tight clusters, half in a wide one: the first need fewer partitions."""
    rng = np.random.default_rng(2)
    centers = 2 * rng.normal(size=(30, 24))

    def drawn(n: int) -> Array:
        tight = centers[rng.integers(0, 30, n)] + 0.3 * rng.normal(size=(n, 24))
        return np.where(np.arange(n)[:, None] % 2, tight, rng.normal(size=(n, 24))).astype(np.float32)

    points, queries = drawn(20_000), drawn(1000)
    index = build(points, metric=metric, partitions=500, rounds=1, recall=None, spill_share=1)
    truth = aniso.ExactIndex(points, metric=metric).search(queries, 10).ids
    effort = learn_effort(index._store, queries[:500], truth[:500])
    assert effort is not None

    def recall(effort: Array | None, partitions: int) -> tuple[float, float]:
        searcher = _core.Searcher(**(arrays_of(index) | {"effort": effort}))
        ids, _ = search(searcher, queries[500:], 10, partitions, 400)
        # Without a guess from earlier queries, which may make a search scan twice.
        scanned = [
            _core.Searcher(**(arrays_of(index) | {"effort": effort})).profile(query[None], 10, partitions, 400)
            for query in queries[500:700]
        ]
        found = float((ids[:, :, None] == truth[500:, None, :]).any(axis=1).mean())
        return found, sum(stages["scanned"] for stages in scanned)

    better, scanned = recall(effort, 3 if metric == "dot" else 8)
    plain = next(found for found, points in (recall(None, count) for count in range(1, 100)) if points >= scanned)
    assert better > plain + 0.004  # as seen: 0.01 to 0.06 more


def test_nothing_is_learnt_from_too_little(indexes: dict[str, Index]) -> None:
    store = indexes["dot"]._store
    truth = np.zeros((50, 10), np.int64)
    assert learn_effort(store, QUERIES[:50], truth) is None  # few queries
    few = build(POINTS[:2000], partitions=20, rounds=1, recall=None)._store
    assert learn_effort(few, QUERIES, np.zeros((120, 10), np.int64)) is None  # few partitions
    same = np.repeat(QUERIES[:1], 120, axis=0)
    assert learn_effort(store, same, np.zeros((120, 10), np.int64)) is None  # queries that are all alike


def test_a_tuned_index_shares_out_its_partitions_and_keeps_to_it(tmp_path: Path) -> None:
    points = clustered(20_000, 24, seed=3)
    points[::2] *= np.linspace(0.02, 1, 10_000, dtype=np.float32)[:, None]
    index = build(points, metric="l2", recall=0.9)
    effort = index._store.effort
    assert effort is not None
    index.save(tmp_path / "points.aniso")
    again = aniso.open(tmp_path / "points.aniso")
    assert np.array_equal(again._store.effort, effort)
    for same in (again, pickle.loads(pickle.dumps(index))):
        found, expected = same.search(points[:100]), index.search(points[:100])
        assert_same((found.ids, found.scores), (expected.ids, expected.scores))
    index.remove(range(0, 20_000, 2))  # compacts
    assert np.array_equal(index._store.effort, effort)
    index.tune(points[1:400:2] + 0.01, recall=0.9)
    assert not np.array_equal(index._store.effort, effort)
