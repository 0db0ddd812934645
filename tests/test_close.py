"""Closing an index: what it gives back, to whom, and when."""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import aniso

POINTS = np.random.default_rng(0).normal(size=(3000, 8)).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.aniso"
    aniso.build(POINTS, ids=np.arange(3000) + 5, recall=0.9).save(path)
    return path


def mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
@pytest.mark.parametrize("used", [False, True])
def test_the_file_is_given_back_at_once(path: Path, used: bool) -> None:
    gc.collect()
    gc.disable()  # nothing waits for the collector
    try:
        index = aniso.open(path)
        if used:
            index.search(POINTS[:3], where=[5, 6])
            index.contains([7])
        held = index.allow([5, 6])
        assert mapped(path)
        index.close()
        assert mapped(path)  # by the filter
        del held
        assert not mapped(path)
    finally:
        gc.enable()


def test_with(path: Path) -> None:
    with aniso.open(path) as index:
        assert index.search(POINTS[3], 1, recall=1.0).ids.shape == (1,)
        assert repr(index) == "<aniso.Index of 3000 points, 8 dimensions, dot>"
    assert repr(index) == "<aniso.Index, closed>"
    with pytest.raises(ValueError, match=r"the index is closed; needed: an open one \(aniso.open\('.*a.aniso'\)\)"):
        index.search(POINTS[0])
    index.close()
    with pytest.raises(ZeroDivisionError), aniso.open(path) as index:
        1 / 0  # noqa: B018
    assert repr(index) == "<aniso.Index, closed>"
    assert aniso.open(path).n == 3000


def test_searches_of_other_threads_end_as_they_should(path: Path) -> None:
    expected = aniso.open(path).search(POINTS[:200], 5)
    for _ in range(10):
        index, wrong, begun = aniso.open(path), [], threading.Barrier(4)

        def search(index: aniso.Index = index, wrong: list[object] = wrong, begun: threading.Barrier = begun) -> None:
            index.search(POINTS[0])
            begun.wait()
            for turn in range(10**6):
                try:
                    row = turn % 200
                    if turn % 10:
                        found = index.search(POINTS[row], 5).ids
                    else:
                        found = index.search(POINTS[row : row + 1], 5).ids[0]
                    if not np.array_equal(found, expected.ids[row]):
                        wrong.append(row)
                except ValueError as error:
                    if "the index is closed" not in str(error):
                        wrong.append(error)
                    return

        threads = [threading.Thread(target=search) for _ in range(3)]
        for thread in threads:
            thread.start()
        begun.wait()
        index.close()
        for thread in threads:
            thread.join()
        assert not wrong


def test_a_change_that_has_begun_is_made_before_closing(path: Path) -> None:
    index, begun, go_on = aniso.open(path), threading.Event(), threading.Event()

    def progress(stage: str, done: int, total: int) -> None:
        begun.set()
        go_on.wait(10)

    writer = threading.Thread(target=lambda: index.add(POINTS[:9] + 1, np.arange(9) + 5000, progress=progress))
    closer = threading.Thread(target=index.close)
    writer.start()
    begun.wait(10)
    closer.start()
    go_on.set()
    writer.join()
    closer.join()
    assert repr(index) == "<aniso.Index, closed>"
    assert_array_equal(aniso.open(path).ids, np.arange(3000) + 5)
