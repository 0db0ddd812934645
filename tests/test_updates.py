"""An index that changes: ids, add, remove, update, where=, and searches meanwhile."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from aniso import ExactIndex, Index, build
from aniso.config import METRICS, RESCORES, Config

N, D, P = 1500, 12, 24
RNG = np.random.default_rng(5)
POINTS = (RNG.normal(size=(20, D))[RNG.integers(0, 20, N)] + 0.5 * RNG.normal(size=(N, D))).astype(np.float32)
OTHERS = (POINTS[::-1] + 0.2 * RNG.normal(size=(N, D))).astype(np.float32)
QUERIES = POINTS[:40] + np.float32(0.05)
EVERYWHERE: dict[str, Any] = {"partitions": 10**6, "candidates": 10**6}


def made(points: np.ndarray = POINTS, **settings: Any) -> Index:
    return build(points, **{"metric": "l2", "partitions": P, **settings})


def assert_is(index: Index, points: np.ndarray, ids: Any, **wish: Any) -> None:
    """The index answers as brute force over these points does, under these ids."""
    ids = np.asarray(ids)
    assert len(index) == len(points)
    assert_array_equal(index.ids, ids)
    exact = ExactIndex(points, metric=index.config.metric).search(QUERIES, 5)
    found = index.search(QUERIES, 5, **EVERYWHERE, **wish)
    assert found.ids.dtype.kind == ids.dtype.kind
    assert_allclose(found.scores, exact.scores, rtol=1e-4, atol=1e-4)
    assert np.mean(found.ids == ids[exact.ids]) > 0.98  # equal scores may change places


@pytest.mark.parametrize("metric", METRICS)
def test_points_added_one_by_one_are_found_at_once(metric: str) -> None:
    index = made(POINTS[:1000], metric=metric)
    for row in range(1000, 1100):
        index.add(POINTS[row : row + 1])
        assert index.search(POINTS[row], 3, **EVERYWHERE).ids[0] == row or metric == "dot"
    index.add(POINTS[1100:])
    assert_is(index, POINTS, np.arange(N))


@pytest.mark.parametrize("spill", [0.0, 1.0])
@pytest.mark.parametrize("rescore", RESCORES)
def test_growing_from_a_few_points(rescore: str, spill: float) -> None:
    # All points spill: else it depends on those added together which do, and without a copy that shows in scores.
    config = Config(metric="dot", partitions=P, rescore=rescore, spill=spill, spill_share=1)
    index = Index.train(POINTS, config)
    index.add(POINTS[:1])
    for first in range(1, N, 177):
        index.add(POINTS[first : first + 177])
    whole = Index.train(POINTS, config)
    whole.add(POINTS)
    assert_array_equal(index.search(QUERIES, 5, **EVERYWHERE).ids, whole.search(QUERIES, 5, **EVERYWHERE).ids)
    index.compact()
    assert_array_equal(index.search(QUERIES, 5, **EVERYWHERE).ids, whole.search(QUERIES, 5, **EVERYWHERE).ids)


def test_growing_copies_what_is_there_rarely() -> None:
    """While the points double in 20 steps, codes and points move to new arrays at most twice."""
    index = made(POINTS[:750])
    arrays: dict[str, list[Any]] = {"codes": [], "points": [], "slot_rows": []}  # kept, so that none is used again
    for first in range(750, N, 38):
        index.add(POINTS[first : first + 38])
        for name, seen in arrays.items():
            array = getattr(index._store, name)
            if not any(array is one for one in seen):
                seen.append(array)
    assert max(len(seen) for seen in arrays.values()) <= 3
    assert_is(index, POINTS, np.arange(N))


def names(numbers: Any) -> np.ndarray:
    return np.array([f"point {number}" for number in numbers])


@pytest.mark.parametrize("kind", ["rows", "int64", "str"])
def test_ids_through_a_life(kind: str) -> None:
    """Add, remove, update, compact: after each step the index is the set of points that it should be."""
    name = {"rows": np.asarray, "int64": lambda x: np.asarray(x) * 1000 - 7, "str": names}[kind]
    ids = name(np.arange(N))
    index = made(POINTS[:1000], ids=None if kind == "rows" else ids[:1000])
    assert_is(index, POINTS[:1000], ids[:1000])
    index.add(POINTS[1000:], None if kind == "rows" else ids[1000:])
    assert_is(index, POINTS, ids)
    gone = np.zeros(N, bool)
    gone[[0, 3, 999, 1000, N - 1]] = True
    index.remove(ids[gone])
    assert_is(index, POINTS[~gone], ids[~gone])
    index.add(POINTS[[3]], None if kind == "rows" else ids[[3]])  # a removed id may come back, at the end
    back = name([N]) if kind == "rows" else ids[[3]]
    points, ids = np.concatenate([POINTS[~gone], POINTS[[3]]]), np.concatenate([ids[~gone], back])
    assert_is(index, points, ids)
    points = points.copy()
    points[100:300] = OTHERS[100:300]
    index.update(OTHERS[100:300], ids[100:300])
    assert_is(index, points, ids)
    index.compact()
    assert_is(index, points, ids)
    for first in range(0, len(ids), 200):  # which compacts on the way
        index.update(OTHERS[first : first + 200][: len(ids) - first], ids[first : first + 200])
    assert_is(index, OTHERS[: len(ids)], ids)
    index.remove(set(ids[10:].tolist()))
    assert_is(index, OTHERS[:10], ids[:10])
    index.remove(ids[:10])
    assert len(index) == 0
    with pytest.raises(ValueError, match="no points"):
        index.search(QUERIES)
    index.add(POINTS[:7], None if kind == "rows" else ids[:7])
    assert len(index.search(QUERIES[0], 10).ids) == 7


def test_a_failed_change_changes_nothing() -> None:
    index = made(ids=np.arange(N) + 5)
    bad = POINTS[:2].copy()
    bad[1, 3] = np.nan
    calls: list[tuple[type[Exception], str, Any]] = [
        (ValueError, "id 6 is in the index already", lambda: index.add(POINTS[:2], [1, 6])),
        (ValueError, "id 1 is given twice", lambda: index.add(POINTS[:2], [1, 1])),
        (ValueError, "3 ids were given for 2 points", lambda: index.add(POINTS[:2], [1, 2, 3])),
        (ValueError, "ids of their own", lambda: index.add(POINTS[:2])),
        (TypeError, "'a' is str", lambda: index.add(POINTS[:2], ["a", "b"])),
        (ValueError, "row 1, dimension 3", lambda: index.add(bad, [1, 2])),
        (ValueError, "row 1, dimension 3", lambda: index.update(bad, [5, 6])),
        (KeyError, "id 4", lambda: index.remove([5, 4])),
        (KeyError, "id -1", lambda: index.remove(-1)),
        (KeyError, "id 'a'", lambda: index.remove("a")),
        (KeyError, "id 4", lambda: index.update(POINTS[:2], [5, 4])),
        (ValueError, "id 5 is given twice", lambda: index.remove([5, 5])),
        (TypeError, "id 1.5 is a float", lambda: index.remove([1.5])),
        (TypeError, "id True is a bool", lambda: index.remove([True])),
    ]
    for error, message, call in calls:
        with pytest.raises(error, match=message):
            call()
        assert_array_equal(index.ids, np.arange(N) + 5)
    assert_is(index, POINTS, np.arange(N) + 5)


@pytest.mark.parametrize("rescore", RESCORES)
@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.1, 0.5, 1.0])
def test_where_gives_k_whenever_there_are_k(share: float, rescore: str) -> None:
    index = made(rescore=rescore)
    mask = np.zeros(N, bool)
    mask[RNG.permutation(N)[: int(share * N)]] = True
    allowed = np.flatnonzero(mask)
    for where in (mask, mask.tolist(), allowed, allowed.tolist(), set(allowed.tolist())):
        found = index.search(QUERIES, 10, where=where, partitions=1, candidates=10)
        assert found.ids.shape == (len(QUERIES), min(10, len(allowed)))
        assert np.isin(found.ids, allowed).all()
    one = index.search(QUERIES[3], 10, where=mask, partitions=1, candidates=10)
    assert_array_equal(one.ids, found.ids[3])


@pytest.mark.parametrize("changed", [False, True])
def test_where_among_all_partitions_is_exact(changed: bool) -> None:
    index, points, ids = made(), POINTS, np.arange(N)
    if changed:
        index.update(OTHERS[:50], ids[:50])
        index.remove(ids[50:60])
        points, ids = np.concatenate([OTHERS[:50], POINTS[60:]]), np.delete(ids, np.arange(50, 60))
    for count in (4, 30, 700, len(ids) - 1):
        mask = np.zeros(len(ids), bool)
        mask[RNG.permutation(len(ids))[:count]] = True
        truth = ExactIndex(points[mask], metric="l2").search(QUERIES, 4).ids
        for where in (mask, ids[mask]):
            assert_array_equal(index.search(QUERIES, 4, where=where, **EVERYWHERE).ids, ids[mask][truth])


@pytest.mark.parametrize("named", [False, True])
def test_a_filter_stands_for_its_points_through_changes(named: bool) -> None:
    ids = [f"p{i}" for i in range(len(POINTS))] if named else None
    index = build(POINTS, ids=ids, rounds=1)
    mask = np.arange(len(POINTS)) % 3 == 0
    allowed, chosen = index.allow(mask), index.ids[mask]
    for where in (allowed, index.allow(chosen), index.allow(set(chosen.tolist()))):
        assert_array_equal(
            index.search(QUERIES, 10, where=where, **EVERYWHERE).ids,
            index.search(QUERIES, 10, where=mask, **EVERYWHERE).ids,
        )
    index.remove(index.ids[:50])
    index.add(POINTS[:40], [f"new{i}" for i in range(40)] if named else None)
    left = np.setdiff1d(chosen, [f"p{i}" for i in range(50)] if named else np.arange(50))
    assert_array_equal(
        index.search(QUERIES, 10, where=allowed, **EVERYWHERE).ids,
        index.search(QUERIES, 10, where=left, **EVERYWHERE).ids,
    )
    assert len(np.unique(index.search(QUERIES, len(POINTS), where=allowed, **EVERYWHERE).ids)) == len(left)
    index.remove(left)
    assert index.search(QUERIES, 10, where=allowed).ids.shape == (len(QUERIES), 0)


def test_where_refuses_what_fits_nothing() -> None:
    index = made()
    for error, message, where in (
        (ValueError, f"length {N - 1}; needed: {N}", np.ones(N - 1, bool)),
        (ValueError, "mask of length", np.ones((N, 1), bool)),
        (KeyError, f"id {N}", [0, N]),
        (KeyError, "id 'a'", {"a"}),
        (TypeError, "float", [0.5]),
    ):
        with pytest.raises(error, match=message):
            index.search(QUERIES, where=where)
    assert_is(index, POINTS, np.arange(N))


def test_searches_see_one_state_while_a_writer_changes_it() -> None:
    """The points of one state are all near 100 c for its c; a mix of two would show in the scores."""
    base = RNG.normal(size=(64, D)).astype(np.float32)
    index = build(base, metric="l2", partitions=4, ids=np.arange(64))
    stop, wrong, done = threading.Event(), [], [0]

    def read() -> None:
        while not stop.is_set():
            found = index.search(base[0], 64, **EVERYWHERE)
            spread = np.ptp(np.sqrt(-found.scores.astype(np.float64)))
            # One state holds each id once, all shifted by the same amount.
            if len(set(found.ids.tolist())) != 64 or spread > 40:
                wrong.append((found.ids, spread))
            masked = index.search(base[:3], 5, where=np.arange(0, 64, 2))
            if (masked.ids % 2).any():
                wrong.append((masked.ids, 0))
            done[0] += 1

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for change in range(150):
        index.update(base + np.float32(100 * (change % 7)), np.arange(64))
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong
    assert done[0] > 0


@pytest.mark.parametrize("kind", ["rows", "str"])
def test_copies_do_not_share_what_changes(kind: str) -> None:
    ids = None if kind == "rows" else names(np.arange(N))
    index = made(ids=ids)
    before = index.search(QUERIES, 5)
    for other in (copy.copy(index), copy.deepcopy(index), pickle.loads(pickle.dumps(index))):
        other.add(OTHERS[:100], None if kind == "rows" else names(range(N, N + 100)))
        other.remove(other.ids[:100])
        assert_array_equal(index.search(QUERIES, 5).ids, before.ids)
        assert (len(index), len(other)) == (N, N)


@pytest.mark.parametrize(("rescore", "error"), [("float32", 0.0), ("float16", 1e-3), ("int8", 2e-2)])
@pytest.mark.parametrize("metric", ["dot", "cosine", "l2"])
def test_points_can_be_had_back(metric, rescore, error):
    points = np.random.default_rng(8).normal(size=(1200, 8)).astype(np.float32)
    index = build(points, metric=metric, rescore=rescore, recall=None, ids=[f"p{i}" for i in range(1200)])
    index.remove(["p0", "p5"])
    index.update(points[:1] + 1, ["p9"])
    expected = np.delete(points, [0, 5], axis=0)
    expected[7] = points[0] + 1
    if metric == "cosine":
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(index.points(), expected, atol=error * np.abs(expected).max() + 1e-7)
    np.testing.assert_array_equal(index.points(["p9", "p1"]), index.points()[[7, 0]])
    assert index.contains(["p9", "p5", "nobody"]).tolist() == [True, False, False]
    assert index.contains([9]).tolist() == [False]  # ids are str here
    with pytest.raises(KeyError, match="p5"):
        index.points(["p5"])


def test_row_numbers_are_ids_too():
    points = np.random.default_rng(8).normal(size=(50, 8)).astype(np.float32)
    index = build(points, rescore="none", recall=None)
    index.remove([3])
    assert index.contains([0, 3, 49, 50, -1]).tolist() == [True, False, True, False, False]
    with pytest.raises(ValueError, match="keeps no copy"):
        index.points([0])
