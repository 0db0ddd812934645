"""What users meet at the edges: tiny and strange input, range search, ids, and what an index says of itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import aniso
from aniso import ExactIndex, build
from aniso.config import METRICS

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3000, 8)).astype(np.float32)


@pytest.mark.parametrize("first", [1, 2, 700])
@pytest.mark.parametrize("metric", METRICS)
def test_above_a_score_of_few_points_all_are_found(metric: str, first: int) -> None:
    """Also where codes were trained on one point, and tell nothing of the others."""
    points = X[:800, :4]
    index = build(points[:first], metric=metric)
    index.add(points[first:])
    exact = ExactIndex(points, metric=metric)
    for query in X[:5, 4:]:
        least = float(exact.search(query, 150).scores[-1]) - 1e-6
        assert set(exact.search(query, 150).ids) <= set(index.search_above(query, least).ids)


@pytest.mark.parametrize("rescore", ["float32", "float16"])
def test_above_a_score_none_is_missed_if_all_are_looked_at(rescore: str) -> None:
    index = build(X, metric="l2", rescore=rescore, partitions=40, recall=None)
    exact = ExactIndex(X, metric="l2")
    for query in X[:10]:
        far = exact.search(query, 501).scores
        least = float(far[499] + far[500]) / 2
        found = index.search_above(query, least, partitions=40, candidates=2 * len(X)).ids
        assert len(set(found) ^ set(exact.search(query, 500).ids)) <= (0 if rescore == "float32" else 2)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((X[:1], 1.0), ValueError, "one vector"),
        ((X[0], "a"), TypeError, "least is 'a'"),
        ((X[0], np.nan), ValueError, "least is nan"),
        ((X[0], True), TypeError, "least is True"),
    ],
)
def test_search_above_refuses(arguments: tuple[Any, ...], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        build(X, recall=None).search_above(*arguments)


@pytest.mark.parametrize("row", [0, 3, 1999])
@pytest.mark.parametrize("metric", METRICS)
def test_one_tiny_row_is_a_point_like_others(metric: str, row: int) -> None:
    points = X[:2000].copy()
    points[row] = 1e-20
    index = build(points, metric=metric, recall=None)
    assert row in index.search(points[row] * 1e20, 2000).ids
    with pytest.raises(ValueError, match="no row of points is longer"):
        build(np.full((20, 3), 1e-20), metric=metric)


@pytest.mark.parametrize("metric", METRICS)
def test_tiny_queries_alone_are_answered_as_in_a_batch(metric: str) -> None:
    index = build(X, metric=metric, recall=None, partitions=20)
    queries = (X[:6].T * np.array([1, 1e-14, 1e-17, 1e-20, 1e-25, 0])).T.astype(np.float32)
    whole = index.search(queries, 5, partitions=20, candidates=6000)
    for row, query in enumerate(queries):
        alone = index.search(query, 5, partitions=20, candidates=6000)
        assert_array_equal(alone.ids, whole.ids[row])
        assert_array_equal(alone.scores, whole.scores[row])
    if metric == "dot":
        assert_array_equal(whole.ids[:5], ExactIndex(X).search(X[:5], 5).ids)


@pytest.mark.parametrize("metric", ["dot", "l2"])
def test_what_float16_cannot_hold_is_refused(metric: str) -> None:
    with pytest.raises(ValueError, match=r"float16.*scale the points up"):
        build(X * np.float32(1e-8), metric=metric, rescore="float16")
    build(X * np.float32(1e-8), metric="cosine", rescore="float16", recall=None)
    build(X * np.float32(1e-3), metric=metric, rescore="float16", recall=None)


@pytest.mark.parametrize("ids", [["a", "a\0", "b"], ["a", "\ud800", "b"]])
def test_strings_that_cannot_be_kept_are_refused(ids: list[str]) -> None:
    with pytest.raises(ValueError, match=r"NUL|UTF-8"):
        build(X[:3], ids=ids)


@pytest.mark.parametrize(
    "ids", [{"a", "b", "c"}, {"a": 1, "b": 2, "c": 3}, iter("abc"), {"a": 1, "b": 2, "c": 3}.keys()]
)
def test_ids_have_an_order(ids: Any) -> None:
    with pytest.raises(TypeError, match="in their order"):
        build(X[:3], ids=ids)
    index = build(X[:2], ids=["x", "y"])
    for change in (index.add, index.update):
        with pytest.raises(TypeError, match="in their order"):
            change(X[:3], ids)


def test_ids_that_are_shown_are_a_copy() -> None:
    index = build(X, metric="l2", recall=None)
    for _ in range(2):
        index.ids[:] = 7
        assert_array_equal(index.ids, np.setdiff1d(np.arange(3000), [] if len(index) == 3000 else [5]))
        if len(index) == 3000:
            index.remove([5])
    mask = np.zeros(2999, bool)
    mask[2] = True
    assert index.search(X[2], k=1, where=mask).ids.tolist() == [2]


def test_settings_that_there_are_not() -> None:
    with pytest.raises(TypeError, match=r"no setting 'foo'.*partitions"):
        build(X, foo=1)
    with pytest.raises(ValueError, match="seed"):
        build(X, seed=2**64)


def test_the_input_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "v.npy"
    np.save(path, X[:20])
    (tmp_path / "link.npy").symlink_to(path)
    before = path.read_bytes()
    for output in ("v.npy", "link.npy"):
        command = [sys.executable, "-m", "aniso", "build", str(path), "-o", str(tmp_path / output)]
        found = subprocess.run(command, capture_output=True, text=True)
        assert found.returncode == 2
        assert "another name" in found.stderr
    assert path.read_bytes() == before


def test_large_numbers_of_partitions_with_a_mask() -> None:
    index = build(X, recall=None, partitions=20)
    mask = np.arange(len(X)) % 2 == 0
    expected = index.search(X[0], where=mask, partitions=20, candidates=6000).ids
    for many in (10**6, 2**31, 2**80, 10**400):
        assert_array_equal(index.search(X[0], where=mask, partitions=many, candidates=6000).ids, expected)
    with pytest.raises(TypeError, match="recall"):
        index.search(X[0], recall=[0.9])  # type: ignore[arg-type]


def test_bytes_are_those_in_use(tmp_path: Path) -> None:
    index = build(X, ids=np.arange(3000) + 7, recall=None)
    index.save(tmp_path / "index")
    assert aniso.open(tmp_path / "index").info()["bytes"] == index.info()["bytes"]
