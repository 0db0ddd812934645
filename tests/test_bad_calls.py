"""Bad calls of an index, in a table: the error, what its message holds, and that the index answers as before."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import aniso
from aniso.config import METRICS, RESCORES

GOLDEN = Path(__file__).parent / "data" / "index-v1.aniso"
N, D = 300, 6
RNG = np.random.default_rng(3)
POINTS = RNG.normal(size=(N, D)).astype(np.float32)
Q = POINTS[:4]
IDS = np.arange(N) + 10
INDEX = aniso.build(POINTS, metric="l2", partitions=8, ids=IDS)
BEFORE = INDEX.search(Q, 5, partitions=8, candidates=600)
CLOSED = aniso.build(POINTS, ids=IDS)
FILTER = CLOSED.allow(IDS[:9])
CLOSED.close()


def spoiled(value: float, dtype: Any = np.float32) -> np.ndarray:
    array = POINTS[:3].astype(dtype)
    array[1, 2] = value
    return array


# What is wrong with vectors, the error, and what its message holds; for points and queries alike.
VECTORS: dict[str, tuple[Any, type[Exception], list[str]]] = {
    "nan": (spoiled(np.nan), ValueError, ["row 1", "dimension 2", "nan"]),
    "inf": (spoiled(np.inf), ValueError, ["row 1", "inf"]),
    "-inf": (spoiled(-np.inf), ValueError, ["row 1", "-inf"]),
    "too large": (spoiled(1e300, np.float64), ValueError, ["row 1", "1e+300"]),
    "too long": (spoiled(1e20), ValueError, ["row 1", "scale"]),
    "too few dimensions": (POINTS[:3, :5], ValueError, ["5 dimensions", "6"]),
    "too many dimensions": (np.ones((3, 7)), ValueError, ["7 dimensions", "6"]),
    "no dimensions": (np.ones((3, 0)), ValueError, ["0 dimensions"]),
    "0-d": (np.float32(1), ValueError, ["shape ()"]),
    "3-d": (np.ones((2, 3, 6)), ValueError, ["shape (2, 3, 6)"]),
    "strings": (np.full((3, 6), "a"), TypeError, ["dtype"]),
    "complex": (np.ones((3, 6), complex), TypeError, ["complex"]),
    "bool": (np.ones((3, 6), bool), TypeError, ["bool"]),
    "objects": (np.full((3, 6), None), TypeError, ["object"]),
    "None": (None, TypeError, ["object"]),
    "a dict": ({"a": 1}, TypeError, ["object"]),
    "ragged": ([[1.0, 2.0], [3.0]], ValueError, ["(2,)"]),
    "text": ("points", TypeError, ["dtype"]),
    "masked": (np.ma.masked_greater(POINTS[:3], 0), ValueError, ["mask"]),
}
Call = Callable[[], Any]
CALLS: dict[str, tuple[Call, type[Exception], list[str]]] = {}
for _name, (_vectors, _error, _words) in VECTORS.items():
    CALLS[f"search: {_name}"] = (lambda v=_vectors: INDEX.search(v), _error, _words)  # type: ignore[misc]
    CALLS[f"add: {_name}"] = (lambda v=_vectors: INDEX.add(v, [1, 2, 3]), _error, _words)  # type: ignore[misc]
    CALLS[f"update: {_name}"] = (lambda v=_vectors: INDEX.update(v, [10, 11, 12]), _error, _words)  # type: ignore[misc]
    CALLS[f"where: {_name}"] = (lambda v=_vectors: INDEX.search(v, where=[10, 11]), _error, _words)  # type: ignore[misc]
CALLS |= {
    "add: one vector": (lambda: INDEX.add(POINTS[0], [1]), ValueError, ["shape (6,)", "[None, :]"]),
    "build: one vector": (lambda: aniso.build(POINTS[0]), ValueError, ["shape (6,)", "[None, :]"]),
    "build: nothing": (lambda: aniso.build(POINTS[:0]), ValueError, ["0 rows", "at least 1"]),
    "build: nan": (lambda: aniso.build(spoiled(np.nan)), ValueError, ["row 1", "nan"]),
    "build: metric": (lambda: aniso.build(POINTS, metric="l1"), ValueError, ["'l1'", "cosine"]),
    "build: recall 1.5": (lambda: aniso.build(POINTS, recall=1.5), ValueError, ["1.5", "at most 1"]),
    "build: recall 0": (lambda: aniso.build(POINTS, recall=0), ValueError, ["0", "above 0"]),
    "build: recall text": (lambda: aniso.build(POINTS, recall="high"), TypeError, ["'high'"]),  # type: ignore[arg-type]
    "build: threads 0": (lambda: aniso.build(POINTS, threads=0), ValueError, ["threads is 0", "1 to 1024"]),
    "build: seed": (lambda: aniso.build(POINTS, seed=-1), ValueError, ["seed is -1", "0 to"]),
    "build: spill text": (lambda: aniso.build(POINTS, spill="a"), TypeError, ["spill is 'a'", "a number"]),
    "build: threshold None": (lambda: aniso.build(POINTS, threshold=None), TypeError, ["threshold is None"]),
    "measure_recall points": (lambda: INDEX.measure_recall(Q, points=Q), ValueError, ["4 points", "300", "index.ids"]),
    "build: memory 9": (
        lambda: aniso.build(POINTS, memory=9),
        ValueError,
        ["9 bytes", "needed: at least", "300 points"],
    ),
    "build: memory text": (lambda: aniso.build(POINTS, memory="1 GB"), TypeError, ["'1 GB'"]),  # type: ignore[arg-type]
    "build: memory and rescore": (
        lambda: aniso.build(POINTS, memory=10**9, rescore="int8"),
        TypeError,
        ["memory=", "rescore="],
    ),
    "build: no such setting": (lambda: aniso.build(POINTS, leaves=3), TypeError, ["leaves"]),
    "build: too few ids": (lambda: aniso.build(POINTS, ids=[1]), ValueError, ["1 ids", "300 points"]),
    "build: ids twice": (lambda: aniso.build(POINTS, ids=[7] * N), ValueError, ["id 7", "twice"]),
    "build: queries of other dimensions": (
        lambda: aniso.build(POINTS, queries=np.ones((2, 3))),
        ValueError,
        ["3 dimensions", "6"],
    ),
    "k 0": (lambda: INDEX.search(Q, 0), ValueError, ["k is 0", "at least 1"]),
    "k -1": (lambda: INDEX.search(Q, -1), ValueError, ["k is -1", "at least 1"]),
    "k 1.5": (lambda: INDEX.search(Q, 1.5), TypeError, ["1.5", "whole number"]),  # type: ignore[arg-type]
    "k text": (lambda: INDEX.search(Q, "a"), TypeError, ["'a'", "whole number"]),  # type: ignore[arg-type]
    "k None": (lambda: INDEX.search(Q, None), TypeError, ["None", "whole number"]),  # type: ignore[arg-type]
    "partitions 0": (lambda: INDEX.search(Q, partitions=0), ValueError, ["partitions is 0"]),
    "candidates -2": (lambda: INDEX.search(Q, candidates=-2), ValueError, ["candidates is -2"]),
    "candidates text": (lambda: INDEX.search(Q, candidates="a"), TypeError, ["'a'"]),  # type: ignore[arg-type]
    "threads 0": (lambda: INDEX.search(Q, threads=0), ValueError, ["threads is 0", "1 to 1024"]),
    "threads 10**6": (lambda: INDEX.search(Q, threads=10**6), ValueError, ["1000000", "1024"]),
    "recall 1.5": (lambda: INDEX.search(Q, recall=1.5), ValueError, ["1.5", "at most 1"]),
    "recall nan": (lambda: INDEX.search(Q, recall=float("nan")), ValueError, ["nan", "above 0"]),
    "recall with settings": (
        lambda: INDEX.search(Q, recall=0.9, partitions=1, candidates=9),
        TypeError,
        ["recall=", "partitions="],
    ),
    "where too short": (lambda: INDEX.search(Q, where=np.ones(3, bool)), ValueError, ["length 3", "300"]),
    "where 2-d": (lambda: INDEX.search(Q, where=np.ones((N, 2), bool)), ValueError, ["(300, 2)", "300"]),
    "where unknown": (lambda: INDEX.search(Q, where=[10, 5]), KeyError, ["id 5", "index.ids"]),
    "where negative": (lambda: INDEX.search(Q, where=[-1]), KeyError, ["id -1"]),
    "where a set of text": (lambda: INDEX.search(Q, where={"a"}), KeyError, ["'a'", "int64"]),
    "where floats": (lambda: INDEX.search(Q, where=np.ones(N)), TypeError, ["float64", "int64"]),
    "remove unknown": (lambda: INDEX.remove([10, 9]), KeyError, ["id 9", "index.ids"]),
    "remove negative": (lambda: INDEX.remove(-1), KeyError, ["id -1"]),
    "remove text": (lambda: INDEX.remove("a"), KeyError, ["'a'", "int64"]),
    "remove twice": (lambda: INDEX.remove([10, 10]), ValueError, ["id 10", "twice"]),
    "remove float": (lambda: INDEX.remove(1.5), TypeError, ["1.5", "int64"]),
    "remove None": (lambda: INDEX.remove(None), TypeError, ["None", "int64"]),
    "remove 2-d": (lambda: INDEX.remove([[10, 11]]), ValueError, ["one axis"]),
    "remove beyond int64": (lambda: INDEX.remove(2**70), ValueError, [str(2**70), "int64"]),
    "remove mixed": (lambda: INDEX.remove([10, "a"]), TypeError, ["10", "all str"]),
    "add without ids": (lambda: INDEX.add(Q), ValueError, ["int64", "ids="]),
    "add a known id": (lambda: INDEX.add(Q[:1], [10]), ValueError, ["id 10", "update"]),
    "add too many ids": (lambda: INDEX.add(Q[:1], [1, 2]), ValueError, ["2 ids", "1 points"]),
    "add text ids": (lambda: INDEX.add(Q[:1], ["a"]), TypeError, ["'a'", "int64"]),
    "add iterator with ids": (lambda: INDEX.add(iter([Q]), [1, 2, 3, 4]), TypeError, ["iterator", "one by one"]),
    "update unknown": (lambda: INDEX.update(Q[:1], [9]), KeyError, ["id 9"]),
    "update too few ids": (lambda: INDEX.update(Q, [10]), ValueError, ["1 ids", "4 points"]),
    "open nothing": (lambda: aniso.open("no/such/file"), FileNotFoundError, ["no/such/file"]),
    "open a folder": (lambda: aniso.open(Path(__file__).parent), IsADirectoryError, ["a folder", "needed"]),
    "open another file": (lambda: aniso.open(__file__), aniso.FormatError, ["magic", "needed"]),
    "open a device": (lambda: aniso.open(os.devnull), aniso.FormatError, ["not a regular file", "needed"]),
    "open a number": (lambda: aniso.open(3), TypeError, ["int"]),  # type: ignore[arg-type]
    "open: threads 0": (lambda: aniso.open(GOLDEN, threads=0), ValueError, ["threads is 0", "1 to 1024"]),
    "save nowhere": (lambda: INDEX.save("no/such/folder/a"), FileNotFoundError, ["no such folder"]),
    "save onto a folder": (lambda: INDEX.save(Path(__file__).parent), IsADirectoryError, ["folder"]),
    "tune recall": (lambda: INDEX.tune(recall=2), ValueError, ["2", "at most 1"]),
    "measure_recall dimensions": (lambda: INDEX.measure_recall(np.ones((2, 3))), ValueError, ["3 dimensions", "6"]),
    "measure_recall nothing": (lambda: INDEX.measure_recall(Q[:0]), ValueError, ["0 rows", "at least 1"]),
}
AFTER_CLOSING: dict[str, Call] = {
    "search": lambda: CLOSED.search(Q),
    "search one": lambda: CLOSED.search(Q[0], partitions=1, candidates=9),
    "search where": lambda: CLOSED.search(Q[0], where=np.ones(N, bool)),
    "search with a filter": lambda: CLOSED.search(Q[0], where=FILTER),
    "search_above": lambda: CLOSED.search_above(Q[0], 0.5),
    "allow": lambda: CLOSED.allow(IDS[:3]),
    "allow a filter": lambda: CLOSED.allow(FILTER),
    "add": lambda: CLOSED.add(Q, [1, 2, 3, 4]),
    "add an iterator": lambda: CLOSED.add(iter([])),
    "remove": lambda: CLOSED.remove([10]),
    "update": lambda: CLOSED.update(Q[:1], [10]),
    "tune": lambda: aniso.tune(CLOSED),
    "measure_recall": lambda: CLOSED.measure_recall(Q),
    "info": lambda: CLOSED.info(),
    "rebalance": lambda: CLOSED.rebalance(),
    "compact": lambda: CLOSED.compact(),
    "save": lambda: CLOSED.save("closed.aniso"),
    "pickle": lambda: pickle.dumps(CLOSED),
    "contains": lambda: CLOSED.contains([10]),
    "points": lambda: CLOSED.points([10]),
    "ids": lambda: CLOSED.ids,
    "n": lambda: CLOSED.n,
    "d": lambda: CLOSED.d,
    "len": lambda: len(CLOSED),
    "config": lambda: CLOSED.config,
    "with": lambda: CLOSED.__enter__(),
}
for _name, _call in AFTER_CLOSING.items():
    CALLS[f"closed index: {_name}"] = (_call, ValueError, ["the index is closed", "aniso.open"])


def test_the_table_of_a_closed_index_is_whole() -> None:
    public = {name for name in dir(aniso.Index) if not name.startswith("_")} - {"close", "train"}
    assert public <= set(AFTER_CLOSING)


def test_there_are_enough() -> None:
    assert len(CALLS) >= 80


@pytest.mark.parametrize("name", CALLS)
def test_bad_call(name: str) -> None:
    call, error, words = CALLS[name]
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
    assert_answers_as_before()


def assert_answers_as_before() -> None:
    assert_array_equal(INDEX.ids, IDS)
    after = INDEX.search(Q, 5, partitions=8, candidates=600)
    assert_array_equal(after.ids, BEFORE.ids)
    assert_array_equal(after.scores, BEFORE.scores)


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "form",
    [
        np.asfortranarray,
        read_only,
        lambda x: np.repeat(x, 2, axis=0)[::2],
        lambda x: x[:, ::-1].copy()[:, ::-1],
        lambda x: x.astype(np.float64),
        lambda x: x.astype(">f4"),
        lambda x: x.tolist(),
    ],
    ids=["fortran", "read-only", "strided rows", "strided", "float64", "big-endian", "lists"],
)
def test_odd_forms_of_good_vectors(form: Callable[[np.ndarray], Any]) -> None:
    """As points and as queries."""
    built = aniso.build(form(POINTS), metric="l2", partitions=8, ids=IDS)
    built.add(form(Q), [1, 2, 3, 4])
    built.remove([1, 2, 3, 4])
    for index in (INDEX, built):
        assert_array_equal(index.search(form(Q), 5, partitions=8, candidates=600).ids, BEFORE.ids)


def test_no_queries_and_huge_k() -> None:
    assert INDEX.search(Q[:0], 5).ids.shape == (0, 5)
    for k in (N + 1, 10**12, 2**62):
        assert INDEX.search(Q, k).ids.shape == (4, N)


@pytest.mark.parametrize("rescore", RESCORES)
@pytest.mark.parametrize("metric", METRICS)
def test_odd_points(metric: str, rescore: str) -> None:
    """One point, equal points, zeros: everything is found, with scores that are numbers."""
    for points in (POINTS[:1], np.repeat(POINTS[:1], 70, axis=0), np.zeros((70, D), np.float32)):
        for partitions in (None, 3):
            index = aniso.build(points, metric=metric, rescore=rescore, partitions=partitions)
            found = index.search(np.concatenate([Q, np.zeros((1, D), np.float32)]), 100)
            assert_array_equal(np.sort(found.ids, axis=1), np.tile(np.arange(len(points)), (5, 1)))
            assert np.isfinite(found.scores).all()
            if metric != "l2":  # a query of zeros scores 0 with every point
                assert not found.scores[4].any()


@contextmanager
def somebody_else() -> Iterator[None]:
    """Without the rights of root, whom no permission stops."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_what_may_not_be_read_or_written() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.aniso"
        INDEX.save(path)
        os.chmod(path, 0)
        os.chmod(folder, 0o555)
        with somebody_else():
            with pytest.raises(PermissionError, match=r"a\.aniso"):
                aniso.open(path)
            with pytest.raises(PermissionError, match="cannot save: Permission denied"):
                INDEX.save(path)
        os.chmod(folder, 0o755)
        assert os.listdir(folder) == ["a.aniso"]
    assert_answers_as_before()


def test_an_index_whose_file_is_gone_goes_on(tmp_path: Path) -> None:
    """An index needs no closing: it holds its file until nobody holds the index."""
    path = tmp_path / "a.aniso"
    INDEX.save(path)
    first, second = aniso.open(path), aniso.open(path)
    aniso.build(POINTS[:9]).save(path)  # another file of the same name
    assert_array_equal(first.search(Q, 5, partitions=8, candidates=600).ids, BEFORE.ids)
    path.unlink()
    assert_array_equal(second.search(Q, 5, partitions=8, candidates=600).ids, BEFORE.ids)
    second.add(Q, [1, 2, 3, 4])
    second.remove([1, 2, 3, 4])
    assert_array_equal(second.search(Q, 5, partitions=8, candidates=600).ids, BEFORE.ids)
