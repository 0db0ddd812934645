"""Saved indexes: they come back the same, go on changing, and damaged ones are refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

import aniso
from aniso.config import METRICS, RESCORES
from aniso.format import open_file, save

RNG = np.random.default_rng(8)
POINTS = RNG.normal(size=(700, 10)).astype(np.float32)
QUERIES = POINTS[:20] + np.float32(0.02)
GOLDEN = Path(__file__).parent / "data" / "index-v1.aniso"
NAMES = [f"name {i} ü" for i in range(len(POINTS))]


def made(**settings: Any) -> aniso.Index:
    return aniso.build(POINTS, **{"metric": "l2", "partitions": 12, **settings})


def changed(**settings: Any) -> aniso.Index:
    index = made(ids=NAMES, **{"spill_share": 1, **settings})  # not so full that a few new points compact it
    index.update(POINTS[:30] + 1, NAMES[:30])
    index.remove(NAMES[40:50])
    return index


def assert_same(a: aniso.Index, b: aniso.Index) -> None:
    assert a.config == b.config
    assert_array_equal(a.ids, b.ids)
    for wish in ({}, {"partitions": 2, "candidates": 12}, {"where": np.arange(len(a)) % 3 == 0}):
        found, again = a.search(QUERIES, 5, **wish), b.search(QUERIES, 5, **wish)
        assert_array_equal(found.ids, again.ids)
        assert_array_equal(found.scores, again.scores)


@pytest.mark.parametrize("rescore", RESCORES)
@pytest.mark.parametrize("metric", METRICS)
def test_it_comes_back_the_same_and_goes_on(tmp_path: Path, metric: str, rescore: str) -> None:
    for index in (made(metric=metric, rescore=rescore), changed(metric=metric, rescore=rescore)):
        index.save(tmp_path / "a.aniso")
        opened = aniso.open(tmp_path / "a.aniso", verify=True)
        assert_same(index, opened)
        opened.save(tmp_path / "b.aniso")
        assert (tmp_path / "a.aniso").read_bytes() == (tmp_path / "b.aniso").read_bytes()
        for one in (index, opened):
            new = None if index.ids.dtype == np.int64 else ["x", "y"]
            one.add(POINTS[:2] * 2, new)
            one.remove(one.ids[300:310])
        assert_same(index, opened)
        assert_same(aniso.open(tmp_path / "a.aniso"), aniso.open(tmp_path / "b.aniso"))  # which did not change


def test_the_same_build_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, threads in (("a", 1), ("b", 2)):
        made(threads=threads).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def golden() -> aniso.Index:
    """What the golden file holds: made once for version 1 of the format, then only read."""
    points = (np.arange(60)[:, None] * np.arange(1, 5) % 17).astype(np.float32)
    index = aniso.build(points, metric="l2", partitions=3, ids=[f"p{i}" for i in range(60)])
    index.remove(["p7"])
    return index


def test_score_aware_centroids_are_kept(tmp_path: Path) -> None:
    index, plain = made(metric="dot", centroid_threshold=0.2), made(metric="dot")
    index.save(tmp_path / "a.aniso")
    assert_same(index, aniso.open(tmp_path / "a.aniso"))
    made(metric="dot", centroid_threshold=0.2, threads=1).save(tmp_path / "b.aniso")
    assert (tmp_path / "a.aniso").read_bytes() == (tmp_path / "b.aniso").read_bytes()
    assert (index._store.encoder.partitions.bytes != plain._store.encoder.partitions.bytes).any()


def test_the_golden_file_of_version_1_opens() -> None:
    index = aniso.open(GOLDEN, verify=True)
    assert GOLDEN.stat().st_size < 10_000
    assert len(index) == 59
    points = (np.arange(60)[:, None] * np.arange(1, 5) % 17).astype(np.float32)
    truth = aniso.ExactIndex(np.delete(points, 7, axis=0), metric="l2").search(points, 3)
    found = index.search(points, 3, partitions=3, candidates=120)
    assert_array_equal(found.scores, truth.scores)
    assert_array_equal(found.ids, index.ids[truth.ids])
    assert "p7" not in index.ids


@pytest.mark.parametrize("metric", ["dot", "cosine"])
def test_a_file_with_biases_that_nobody_reads_opens(tmp_path: Path, metric: str) -> None:
    """As earlier versions wrote it: each row of int8 ends with a bias, which only l2 needs."""
    index = made(metric=metric, rescore="int8")
    index.save(tmp_path / "a")
    opened = open_file(tmp_path / "a")
    assert opened.arrays["points"].shape == (700, 16)  # 10 values, 2 zeros, a scale
    wide = np.concatenate([opened.arrays["points"], np.ones((700, 4), np.int8)], axis=1)
    save(tmp_path / "b", opened.header, {**opened.arrays, "points": wide})
    old = aniso.open(tmp_path / "b", verify=True)
    assert_same(index, old)
    for one in (index, old):
        one.add(POINTS[:50] * 2)
        one.remove(np.arange(100, 500))
        one.compact()
    assert_same(index, old)
    assert_array_equal(index.points(), old.points())
    old.save(tmp_path / "c")
    assert_same(old, aniso.open(tmp_path / "c", verify=True))
    old.rebalance()
    old.save(tmp_path / "d")
    assert open_file(tmp_path / "d").arrays["points"].shape == (350, 16)


@pytest.mark.parametrize("metric", METRICS)
def test_a_file_with_assigners_keeps_them(tmp_path: Path, metric: str) -> None:
    """As earlier versions wrote it: points are assigned by float32 vectors that do not follow from the centroids."""
    made(metric=metric).save(tmp_path / "a")
    opened = open_file(tmp_path / "a")
    assert "assigners" not in opened.arrays
    turned = np.roll(aniso.open(tmp_path / "a")._store.encoder.partitions.assigners, 1, axis=0)
    save(tmp_path / "b", opened.header, {**opened.arrays, "assigners": turned})
    old = aniso.open(tmp_path / "b", verify=True)
    old.save(tmp_path / "c")
    assert (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()
    before = old._store.sizes.copy()
    new = aniso.open(tmp_path / "a")
    old.add(POINTS[:100])
    new.add(POINTS[:100])
    assert_array_equal(old._store.sizes - before, np.roll(new._store.sizes - before, 1))
    old.rebalance()
    old.save(tmp_path / "d")
    assert "assigners" not in open_file(tmp_path / "d").arrays


@pytest.mark.parametrize("damage", [None, np.ones((12, 10)), np.ones((11, 10), np.float32)])
def test_assigners_of_score_aware_centroids_are_needed(tmp_path: Path, damage: NDArray[Any] | None) -> None:
    made(metric="dot", centroid_threshold=0.2).save(tmp_path / "a")
    opened = open_file(tmp_path / "a")
    arrays = {name: array for name, array in opened.arrays.items() if name != "assigners"}
    save(tmp_path / "b", opened.header, arrays if damage is None else {**arrays, "assigners": damage})
    with pytest.raises(aniso.FormatError, match="'assigners'"):
        aniso.open(tmp_path / "b")


def test_assigners_are_kept_where_a_centroid_has_no_direction(tmp_path: Path) -> None:
    points = np.concatenate([POINTS, np.zeros((300, 10), np.float32)])
    index = aniso.build(points, metric="dot", partitions=40)
    partitions = index._store.encoder.partitions
    assert (partitions.kept is None) == bool(partitions.bytes.any(axis=1).all())
    assert_array_equal(np.linalg.norm(partitions.assigners, axis=1) > 0.99, True)
    index.save(tmp_path / "a")
    found = aniso.open(tmp_path / "a").search(QUERIES, 5)
    assert_array_equal(found.ids, index.search(QUERIES, 5).ids)


def test_a_file_read_into_memory_is_not_needed_any_more(tmp_path: Path) -> None:
    index = changed()
    index.save(tmp_path / "a")
    opened = aniso.open(tmp_path / "a", mapped=False)
    (tmp_path / "a").write_bytes(b"")  # under a memory map this would end the process
    assert_same(index, opened)
    with pytest.raises(aniso.FormatError, match="it is empty"):
        aniso.open(tmp_path / "a", mapped=False)


def test_opening_reads_little(tmp_path: Path) -> None:
    made().save(tmp_path / "a")
    start = time.perf_counter()
    aniso.open(tmp_path / "a")
    assert time.perf_counter() - start < 1  # a benchmark says how fast; this says that it is no work


def damage_header(name: str, value: Any) -> Callable[[dict[str, Any], dict[str, NDArray[Any]]], None]:
    def damage(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        where = header
        *path, last = name.split(".")
        for part in path:
            where = where[part]
        where[last] = value

    return damage


def damage_array(name: str, change: Callable[[NDArray[Any]], NDArray[Any] | None]) -> Any:
    def damage(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        new = change(arrays[name].copy())
        if new is None:
            del arrays[name]
        else:
            arrays[name] = new

    return damage


def filled(value: int) -> Callable[[NDArray[Any]], NDArray[Any]]:
    return lambda array: np.full_like(array, value)


DAMAGES: dict[str, Any] = {
    "no field": lambda header, arrays: header.pop("n"),
    "a field too many": damage_header("more", 1),
    "another kind": damage_header("kind", "quantizer"),
    "n negative": damage_header("n", -1),
    "n huge": damage_header("n", 2**62),
    "n a float": damage_header("n", 1.5),
    "n a bool": damage_header("n", True),
    "count beyond n": damage_header("count", 10**6),
    "count too small": damage_header("count", 3),
    "d zero": damage_header("d", 0),
    "d huge": damage_header("d", 2**40),
    "blocks": damage_header("blocks", 1),
    "given": damage_header("given", 3),
    "bias": damage_header("bias_low", "a"),
    "measured": damage_header("measured", []),
    "effort alone": damage_header("measured", {"effort": [0.0, 0.0, 0.0]}),
    "effort short": damage_header("measured", {"curve": [[1, 1, 1, 0.5]], "recall": 0.5, "effort": [0.0]}),
    "effort huge": damage_header("measured", {"curve": [[1, 1, 1, 0.5]], "recall": 0.5, "effort": [0.0, 1e39, 0.0]}),
    "config missing": damage_header("config", {}),
    "config no object": damage_header("config", 7),
    "metric": damage_header("config.metric", "l1"),
    "metric a list": damage_header("config.metric", []),
    "another metric": damage_header("config.metric", "dot"),
    "rescore": damage_header("config.rescore", "float16"),
    "partitions none": damage_header("config.partitions", None),
    "partitions": damage_header("config.partitions", 10**9),
    "subspaces": damage_header("config.subspaces", 400),
    "spill": damage_header("config.spill", "much"),
    "seed": damage_header("config.seed", -3),
    "threshold": damage_header("config.threshold", 7),
    **{
        f"without {name}": damage_array(name, lambda array: None)
        for name in ("codes", "codewords", "live", "points", "room", "shift", "sizes", "slot_rows")
    },
    **{
        f"{name} of another dtype": damage_array(name, lambda array: array.astype(np.int16))
        for name in ("centroid_bytes", "codes", "first_blocks", "live", "names_offsets", "norms", "starts")
    },
    **{
        f"{name} too short": damage_array(name, lambda array: array[:-1])
        for name in (
            "codes",
            "halves",
            "live",
            "names_offsets",
            "names_text",
            "places",
            "points",
            "slot_rows",
            "starts",
        )
    },
    "first_blocks negative": damage_array("first_blocks", filled(-1)),
    "first_blocks huge": damage_array("first_blocks", filled(2**62)),
    "first_blocks all equal": damage_array("first_blocks", filled(0)),
    "room huge": damage_array("room", filled(2**62)),
    "room zero": damage_array("room", filled(0)),
    "sizes negative": damage_array("sizes", filled(-5)),
    "sizes huge": damage_array("sizes", filled(2**31 - 1)),
    "rows huge": damage_array("slot_rows", filled(2**31 - 1)),
    "rows negative": damage_array("slot_rows", filled(-1)),
    "starts": damage_array("starts", filled(3)),
    "live beyond n": damage_array("live", filled(255)),
    "offsets negative": damage_array("names_offsets", filled(-9)),
    "centroids": damage_array("centroid_bytes", filled(-128)),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_content_is_refused(tmp_path: Path, name: str) -> None:
    """Each file has right checksums: it says what it should not, on opening or on the first use."""
    changed().save(tmp_path / "a")
    opened = open_file(tmp_path / "a")
    header, arrays = opened.header, dict(opened.arrays)
    DAMAGES[name](header, arrays)
    save(tmp_path / "b", header, arrays)
    with pytest.raises(aniso.FormatError, match="b"):
        aniso.open(tmp_path / "b").search(QUERIES, 3)
    with pytest.raises(aniso.FormatError, match="b"):
        aniso.open(tmp_path / "b").add(POINTS[:1], ["new"])


def test_values_that_mean_nothing_do_no_harm(tmp_path: Path) -> None:
    """Numbers within their ranges that are not those of any index: some answer, or a FormatError."""
    changed().save(tmp_path / "a")
    opened = open_file(tmp_path / "a")
    for round_ in range(300):
        rng = np.random.default_rng(round_)
        arrays = dict(opened.arrays)
        names = sorted(name for name in arrays if arrays[name].size)
        name = names[rng.integers(len(names))]
        noise = arrays[name].copy().reshape(-1).view(np.uint8)
        where = rng.integers(0, len(noise), 1 + len(noise) // 50)
        noise[where] = rng.integers(0, 256, len(where))
        arrays[name] = noise.view(arrays[name].dtype).reshape(arrays[name].shape)
        save(tmp_path / "b", opened.header, arrays)
        with np.errstate(all="ignore"):
            try:
                index = aniso.open(tmp_path / "b")
                assert index.search(QUERIES, 3).ids.shape == (20, 3)
                index.add(POINTS[:1], ["new"])
                index.compact()
            except aniso.FormatError:
                pass
