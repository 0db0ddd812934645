"""Changes that fail, that are interrupted, or that go on while the index is saved: nothing of them is left anywhere."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import aniso
from aniso import Index, build
from aniso import index as index_module

N, D = 3000, 8
RNG = np.random.default_rng(11)
POINTS = RNG.normal(size=(N, D)).astype(np.float32)
MORE = RNG.normal(size=(500, D)).astype(np.float32)


class StopError(Exception):
    """What interrupts a change."""


def stop_at(stage: str, done: int = 0) -> Any:
    def progress(name: str, now: int, _: int) -> None:
        if name == stage and now >= done:
            raise StopError

    return progress


def state(index: Index) -> tuple[Any, ...]:
    found = index.search(POINTS[:20], 7)
    return len(index), index.ids.tolist(), found.ids.tolist(), found.scores.tolist(), index.info()


def saved(index: Index, path: Path) -> bytes:
    index.save(path)
    return path.read_bytes()


@pytest.mark.parametrize("form", ["save", "pickle"])
def test_a_change_that_stopped_halfway_is_not_in_the_file(tmp_path: Path, form: str) -> None:
    index = build(POINTS, partitions=16, recall=None)
    index.add(MORE)  # which leaves room, where the next points go
    before = saved(index, tmp_path / "before")
    with pytest.raises(StopError):
        index.add(MORE, progress=stop_at("add", 500))
    if form == "save":
        assert saved(index, tmp_path / "after") == before
        again = aniso.open(tmp_path / "after", verify=True)
    else:
        again = pickle.loads(pickle.dumps(index))
    assert state(again) == state(index)
    index.add(MORE)
    assert len(index) == N + 1000


def test_saving_while_points_are_added(tmp_path: Path) -> None:
    """Every file is whole and holds one state: the first so many of all points."""
    index = build(POINTS, partitions=16, recall=None)
    every, done = np.concatenate([POINTS] + [MORE] * 40), threading.Event()

    def write() -> None:
        for first in range(N, len(every), 50):
            index.add(every[first : first + 50])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    sizes = set()
    while not done.is_set():
        index.save(tmp_path / "index")
        with aniso.open(tmp_path / "index", verify=True) as again:
            n = len(again)
            assert_array_equal(again.points(), every[:n])
            best = again.search(every[n - 1], 1, partitions=16, candidates=99).scores[0]
            assert best >= every[n - 1] @ every[n - 1] - 1e-5  # its own score, summed in another order
        copy = pickle.loads(pickle.dumps(index))
        assert_array_equal(copy.points(), every[: len(copy)])
        sizes |= {n, len(copy)}
    writer.join()
    assert len(sizes) > 2


@pytest.mark.parametrize("stage", ["add", "tune"])
def test_growth_that_fails_leaves_the_index_as_it_was(stage: str) -> None:
    """Points that make an index train anew are there once it has, or not at all."""
    index = build(POINTS[:1200], recall=0.9)
    many = RNG.normal(size=(5000, D)).astype(np.float32)
    ids = np.arange(1200, 6200)
    before = state(index)
    seen: list[str] = []

    def progress(name: str, now: int, total: int) -> None:
        if name == stage and (stage == "tune" or (seen and seen[-1] != "add")):
            raise StopError
        if not seen or seen[-1] != name:
            seen.append(name)

    with pytest.raises(StopError):
        index.add(many, progress=progress)
    assert len(seen) > 1  # it had begun to train
    assert state(index) == before
    index.add(many)
    assert_array_equal(index.ids, np.concatenate([np.arange(1200), ids]))


def test_tuning_that_fails_leaves_the_index_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    index = build(POINTS, recall=0.9, queries=MORE)
    before, asked = state(index), index._asked
    with pytest.raises(StopError):
        index.tune(MORE[:50], recall=0.8, progress=stop_at("tune", 2))
    with pytest.raises(StopError):
        index.rebalance(progress=stop_at("tune", 2))
    assert state(index) == before
    assert index._asked is asked

    def fail(*_: Any) -> Any:
        raise StopError

    monkeypatch.setattr(index_module, "measure_curve", fail)
    with pytest.raises(StopError):
        index.rebalance()
    assert state(index) == before


def test_an_iterator_adds_what_came_before_the_bad_array() -> None:
    index = build(POINTS, partitions=16, recall=None)
    with pytest.raises(ValueError, match="nan"):
        index.add(iter([MORE[:5], np.full((1, D), np.nan)]))
    assert len(index) == N + 5


_WITHOUT_MEMORY = """
import resource
import numpy as np
import aniso
points = np.random.default_rng(0).normal(size=(200_000, 4)).astype(np.float32)
index = aniso.build(points, partitions=64, recall=None, spill_share=1)
expected = index.search(points[:1], 5).ids.tolist()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), resource.RLIM_INFINITY))
try:
    index.search(points[:128], 10, partitions=64, candidates=400_000, threads=2)
except MemoryError:
    print("refused")
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert index.search(points[:1], 5).ids.tolist() == expected
print("answers")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's limits of memory")
def test_threads_that_find_no_memory_do_not_end_the_process() -> None:
    found = subprocess.run([sys.executable, "-c", _WITHOUT_MEMORY], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == ["refused", "answers"]


def test_an_empty_index_says_so() -> None:
    index = build(POINTS, partitions=16, recall=None)
    index.remove(index.ids)
    for call in (lambda: index.search_above(POINTS[0], 0.0), index.rebalance, lambda: index.search(POINTS[0])):
        with pytest.raises(ValueError, match="no points"):
            call()
    assert isinstance(pickle.load(io.BytesIO(pickle.dumps(index))), Index)


def test_an_emptied_index_keeps_its_recall_for_points_with_names() -> None:
    index = build(POINTS, recall=0.9)
    curve = index.info()["curve"]
    index.remove(index.ids)
    index.compact()
    index.add(POINTS, [f"p{i}" for i in range(N)])
    assert index.info()["recall"] == 0.9
    assert index.info()["curve"] == curve
