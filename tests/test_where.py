"""where=: every form of the same filter gives the same answer, to the bit, for any batch and any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from searchers import arrays_of, assert_same, clustered, search

from aniso import _core
from aniso.config import METRICS, RESCORES
from aniso.index import Index, build

N, D, P = 2000, 12, 40
POINTS, QUERIES = clustered(N, D), clustered(70, D, seed=1)
SHARES = (0.5, 0.1, 0.03, 0.005, 0.001)


def changed(**settings: Any) -> Index:
    """Some points removed, some updated, so that the order of ids is not that of rows."""
    index = build(POINTS, partitions=P, rounds=1, **settings)
    ids = index.ids
    index.update(POINTS[:100] + 0.1, ids[:100])
    index.remove(ids[300:400])
    assert index._store.ranks is not None
    return index


def masks(n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.random(n) < share for share in SHARES] + [np.ones(n, bool), np.arange(n) == 7, np.arange(n) < n // 2]


@pytest.mark.parametrize("rescore", RESCORES)
@pytest.mark.parametrize("kind", ["rows", "changed", "numbers", "names"])
def test_every_form_gives_the_same_answer(kind: str, rescore: str) -> None:
    ids = {"numbers": np.arange(N)[::-1] + 5, "names": [f"p{i}" for i in range(N)]}.get(kind)
    how: dict[str, Any] = {"rescore": rescore, "ids": ids}
    index = build(POINTS, partitions=P, rounds=1, **how) if kind == "rows" else changed(**how)
    for mask in masks(index.n):
        chosen = index.ids[mask]
        strided = np.repeat(mask, 2)[::2]
        forms = [mask, strided, index.allow(mask), chosen, chosen[::-1], set(chosen.tolist()), index.allow(chosen)]
        expected = index.search(QUERIES, 9, partitions=5, candidates=30, where=forms[2], threads=1)
        assert np.isin(expected.ids, chosen).all()
        assert expected.ids.shape[1] == min(9, len(chosen))
        for where in forms:
            for threads in (1, 3):
                found = index.search(QUERIES, 9, partitions=5, candidates=30, where=where, threads=threads)
                assert_array_equal(found.ids, expected.ids)
                assert_array_equal(found.scores, expected.scores)
            for first, last in ((0, 1), (1, 3), (3, 7)):
                found = index.search(QUERIES[first:last], 9, partitions=5, candidates=30, where=where)
                assert_array_equal(found.ids, expected.ids[first:last])
                assert_array_equal(found.scores, expected.scores[first:last])
            for row in range(7, 12):
                one = index.search(QUERIES[row], 9, partitions=5, candidates=30, where=where)
                assert_array_equal(one.ids, expected.ids[row])
                assert_array_equal(one.scores, expected.scores[row])


def test_what_allow_made_does_not_follow_the_mask() -> None:
    index = build(POINTS, partitions=P, rounds=1)
    mask = np.arange(N) % 2 == 0
    allowed = index.allow(mask)
    mask[:] = False
    assert np.all(index.search(QUERIES, 5, where=allowed).ids % 2 == 0)
    assert index.search(QUERIES, 5, where=mask).ids.shape == (len(QUERIES), 0)


@pytest.mark.parametrize("metric", METRICS)
def test_what_was_learnt_from_one_filter_does_not_matter_for_another(isa: str, metric: str) -> None:
    """The threshold guessed from earlier queries fits other filters badly: it may cost time, never a result."""
    arrays = arrays_of(build(POINTS, metric=metric, partitions=P, rounds=1))
    used = _core.Searcher(**arrays, isa=isa)
    best = np.argsort(-(POINTS @ QUERIES[0]))
    near, far = np.zeros(N, bool), np.zeros(N, bool)
    near[best[: N // 2]], far[best[N // 2 :]] = True, True
    for _ in range(3):
        for mask in (near, far, near | far):
            fresh = _core.Searcher(**arrays, isa=isa)
            expected = search(fresh, QUERIES[:1], 9, 5, 30, mask=mask)
            for _ in range(20):
                assert_same(search(used, QUERIES[:1], 9, 5, 30, mask=mask), expected)
            many = search(used, QUERIES, 9, 5, 30, mask=mask)
            assert_same((many[0][:1], many[1][:1]), expected)


@pytest.mark.parametrize("rescore", ["float32", "float16", "int8"])
@pytest.mark.parametrize("metric", METRICS)
def test_rows_are_scored_as_a_search_scores_them(isa: str, metric: str, rescore: str) -> None:
    searcher = _core.Searcher(**arrays_of(build(POINTS, metric=metric, rescore=rescore, partitions=P)), isa=isa)
    rows = np.sort(np.random.default_rng(0).permutation(N)[:700])
    for k in (1, 10, 699, 700):
        ids, scores = np.empty((70, k), np.int64), np.empty((70, k), np.float32)
        searcher.among(QUERIES, rows, ids, scores, threads=2)
        mask = np.zeros(N, bool)
        mask[rows] = True
        assert_same((ids, scores), search(searcher, QUERIES, k, P, 2 * N, mask=mask))
        alone = np.empty((1, k), np.int64), np.empty((1, k), np.float32)
        searcher.among(QUERIES[3:4], rows, *alone)
        assert_same(alone, (ids[3:4], scores[3:4]))


@given(mask=st.lists(st.integers(0, 255), max_size=400), times=st.sampled_from([1, 1, 50, 150]))
def test_what_is_set_in_a_mask(mask: list[int], times: int) -> None:
    """Booleans that are neither 0 nor 1, as a view can make them, are true."""
    bytes_ = np.tile(np.array(mask, np.uint8), times)
    expected = np.flatnonzero(bytes_)
    for isa in _core.isas():
        assert _core.count_set(bytes_.view(bool), isa=isa) == len(expected)
        places = np.full(len(expected), -1)
        _core.places_set(bytes_.view(bool), places, isa=isa)
        assert_array_equal(places, expected)
        for room in {max(len(expected) - 1, 0), len(expected) + 1} - {len(expected)}:
            places = np.full(room + 1, -1)  # what follows is not written
            with pytest.raises(ValueError, match="one for each that is true"):
                _core.places_set(bytes_.view(bool), places[:room], isa=isa)
            assert places[room] == -1


@pytest.mark.parametrize("length", [1, 32_767, 32_768, 331_479])
def test_the_share_of_a_mask(length: int) -> None:
    """Of a large mask it comes from pieces, and is as near as those can be, unless it is small: then it is exact."""
    rng = np.random.default_rng(3)
    for mask in [*masks(length), np.zeros(length, bool), np.arange(length) < length // 20, rng.random(length) < 0.2]:
        share = _core.share_set(mask)
        assert abs(share - mask.mean()) < 0.015
        if mask.mean() < 0.1 or length < 32_768:
            assert share == mask.mean()
    for period in (300, 512, 1000, 2589, 10_000):  # one of them just as far apart as the pieces
        mask = np.arange(length) % period < 64
        assert abs(_core.share_set(mask) - mask.mean()) < 0.1


def test_a_share_that_is_far_off_costs_no_result() -> None:
    """Only what the pieces do not see is allowed, or only what they see."""
    n = 1 << 16
    points = np.random.default_rng(4).normal(size=(n, 4)).astype(np.float32)
    index = build(points, partitions=16, rounds=1, recall=None)
    part = n // 128
    places = [i * part + ((i * 0x9E3779B97F4A7C15 & 2**64 - 1) >> 32) % (part - 63) for i in range(128)]
    seen = np.zeros(n, bool)
    for place in places:
        seen[place : place + 64] = True
    assert _core.share_set(seen) == 1
    assert _core.share_set(~seen) == 0.875  # nothing was seen, so that all was counted
    few = seen & (np.arange(n) < 2 * n // 128)
    hidden = ~seen & (np.arange(n) < n // 64)
    for mask in (seen, ~seen, few, hidden):
        allowed = np.flatnonzero(mask)
        for where in (mask, allowed, index.allow(mask)):
            found = index.search(points[5], 300, partitions=1, candidates=300, where=where)
            assert len(found.ids) == min(300, len(allowed))
            assert np.isin(found.ids, allowed).all()


@pytest.mark.parametrize(
    "change",
    [
        {"mask": np.ones(N - 1, bool)},
        {"mask": np.ones(N, np.uint8)},
        {"mask": np.zeros(N, bool)},
        {"mask": np.ones((1, N), bool)},
        {"mask": np.ones(2 * N, bool)[::2]},
        {"mask": np.empty(0, bool)},
        {"mask": np.empty(0, bool), "places": np.zeros(N, np.int32)},
        {"places": np.zeros(N - 1, np.int32)},
        {"places": np.zeros(N, np.int64)},
    ],
    ids=str,
)
def test_the_core_checks_masks_and_places(change: dict[str, Any]) -> None:
    searcher = _core.Searcher(**arrays_of(build(POINTS, partitions=P, rounds=1)))
    call: dict[str, Any] = {"mask": np.ones(N, bool), "places": np.arange(N, dtype=np.int32)[::-1].copy()}
    search(searcher, QUERIES, 3, 2, 10, **call)
    if "mask" in change:
        call["places"] = change.get("places")
    with pytest.raises((ValueError, TypeError)):
        search(searcher, QUERIES, 3, 2, 10, **(call | change))
    call |= change
    assert searcher.answer(QUERIES[0], 3, 2, 10, None, call["mask"], call["places"]) is None


@pytest.mark.parametrize("place", [N, -1, -(2**31), 2**31 - 1])
def test_places_beyond_the_mask_are_of_points_not_to_be_found(place: int) -> None:
    searcher = _core.Searcher(**arrays_of(build(POINTS, partitions=P, rounds=1)))
    mask, places = np.ones(N, bool), np.full(N, place, np.int32)
    places[[7, 70, 700]] = [5, 3, 4]
    assert_array_equal(np.sort(search(searcher, QUERIES, 3, 2, 10, mask=mask, places=places)[0]), [[7, 70, 700]] * 70)
    with pytest.raises(ValueError, match="fewer than k"):
        search(searcher, QUERIES, 4, 2, 10, mask=mask, places=places)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": np.array([0, 1, N])},
        {"rows": np.array([0, 1, -1])},
        {"rows": np.array([0, 1])},
        {"rows": np.arange(3, dtype=np.int32)},
        {"rows": np.zeros(N + 1, np.int64)},
        {"queries": QUERIES[:, :-1].copy()},
        {"queries": np.full((70, D), np.nan, np.float32)},
        {"scores": np.empty((70, 4), np.float32)},
        {"threads": 0},
    ],
)
def test_among_checks_its_bounds(change: dict[str, Any]) -> None:
    index = build(POINTS, partitions=P, rounds=1)
    call: dict[str, Any] = {"queries": QUERIES, "rows": np.arange(3), "ids": np.empty((70, 3), np.int64)}
    call["scores"] = np.empty((70, 3), np.float32)
    searcher = _core.Searcher(**arrays_of(index))
    searcher.among(**call)
    with pytest.raises((ValueError, TypeError)):
        searcher.among(**(call | change))
    codes_only = _core.Searcher(**(arrays_of(index) | {"points": None}))
    with pytest.raises(ValueError, match="no points"):
        codes_only.among(**call)
