"""The command line: what each command prints and writes, its errors in one line, its exit codes, and ctrl-C."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_page import PAGE, page
from numpy.testing import assert_array_equal

import aniso
from aniso import cli
from aniso.cli.indexes import read_ids
from aniso.cli.terminal import PlainLines, progress, replacing, table

RNG = np.random.default_rng(5)
POINTS = RNG.normal(size=(3000, 12)).astype(np.float32)
QUERIES = RNG.normal(size=(40, 12)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors, queries, and an index of them."""
    place = tmp_path_factory.mktemp("cli")
    np.save(place / "vectors.npy", POINTS)
    np.save(place / "queries.npy", QUERIES)
    assert cli.main(["build", str(place / "vectors.npy"), "-o", str(place / "a.aniso"), "--metric", "l2"]) == 0
    return place


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main([str(one) for one in arguments])
    return code, *capsys.readouterr()


def test_build_writes_what_aniso_build_builds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--metric", "cosine", "--recall", 0.8, "--rescore", "int8", "--seed", 3, "--threads", 1]
    settings += [
        "--partitions",
        20,
        "--spill",
        0,
        "--subspaces",
        4,
        "--sample",
        2000,
        "--queries",
        folder / "queries.npy",
    ]
    code, out, err = run(capsys, "build", folder / "vectors.npy", "-o", folder / "b.aniso", *settings)
    assert code == 0
    assert "3,000 points of 12 dimensions, cosine, recall 0.8" in out
    assert "tune: done" in err
    assert "save: done" in err
    wish = {
        "metric": "cosine",
        "rescore": "int8",
        "seed": 3,
        "partitions": 20,
        "spill": 0.0,
        "subspaces": 4,
        "sample": 2000,
    }
    aniso.build(POINTS, recall=0.8, queries=QUERIES, threads=1, **wish).save(folder / "c.aniso")
    assert (folder / "b.aniso").read_bytes() == (folder / "c.aniso").read_bytes()


@pytest.mark.parametrize(("memory", "rescore"), [("1G", "float32"), ("0.19m", "float16"), ("190000", "float16")])
def test_build_within_bytes(folder: Path, capsys: pytest.CaptureFixture[str], memory: str, rescore: str) -> None:
    call = ["build", folder / "vectors.npy", "-o", folder / "b.aniso", "--json", "--memory", memory]
    facts = json.loads(run(capsys, *call)[1])
    assert facts["rescore"] == rescore
    if rescore == "float16":
        aniso.build(POINTS, memory=190_000).save(folder / "c.aniso")
        assert (folder / "b.aniso").read_bytes() == (folder / "c.aniso").read_bytes()


def test_build_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "build", folder / "vectors.npy", "-o", folder / "b.aniso", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["points"] == 3000
    assert facts["recall"] == 0.95
    assert facts["file_bytes"] == (folder / "b.aniso").stat().st_size


def test_every_way_to_print_results(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth = aniso.open(folder / "a.aniso").search(QUERIES, 4, recall=0.99)
    call = ["search", folder / "a.aniso", folder / "queries.npy", "-k", 4, "--recall", 0.99]
    lines = run(capsys, *call)[1].splitlines()
    assert len(lines) == 160
    for line, (row, rank) in zip(lines, np.ndindex(40, 4), strict=True):
        score = f"{truth.scores[row, rank]:.6g}"
        assert line.split("\t") == [str(row), str(rank + 1), str(truth.ids[row, rank]), score]
    assert run(capsys, *call, "--text")[1].splitlines() == lines
    said = [json.loads(line) for line in run(capsys, *call, "--json")[1].splitlines()]
    assert [one["query"] for one in said] == list(range(40))
    assert [one["ids"] for one in said] == truth.ids.tolist()
    assert [one["scores"] for one in said] == truth.scores.tolist()
    code, out, _ = run(capsys, *call, "-o", folder / "found.npz")
    assert (code, out) == (0, "")
    with np.load(folder / "found.npz") as found:
        assert_array_equal(found["ids"], truth.ids)
        assert_array_equal(found["scores"], truth.scores)
    assert not list(folder.glob(".aniso-*"))


@pytest.mark.parametrize("kind", ["int64", "str"])
def test_ids_and_where_from_files(folder: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    names = [f"{7 * i}" if kind == "int64" else f"wörd {i}" for i in range(len(POINTS))]
    (folder / "ids.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    (folder / "where.txt").write_text("\n".join(names[:5]), encoding="utf-8")
    index = folder / "named.aniso"
    assert run(capsys, "build", folder / "vectors.npy", "-o", index, "--ids", folder / "ids.txt")[0] == 0
    assert aniso.open(index).ids.astype(str).tolist() == names
    code, out, _ = run(capsys, "search", index, folder / "queries.npy", "--where", folder / "where.txt")
    assert code == 0
    assert {line.split("\t")[2] for line in out.splitlines()} == set(names[:5])
    np.save(folder / "where.npy", aniso.open(index).ids[:5])
    assert run(capsys, "search", index, folder / "queries.npy", "--where", folder / "where.npy")[1] == out


def test_read_ids_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ids.txt"
    for text, kind in (
        ("1\n-2\n9223372036854775807", "i"),
        ("007\n1", "O"),
        ("1\n9223372036854775808", "O"),
        ("a\n1", "O"),
    ):
        path.write_text(text)
        ids = read_ids(path)
        assert ids.dtype.kind == kind
        assert [str(one) for one in ids.tolist()] == text.split("\n")
    with pytest.raises(ValueError, match="line 1 is 'a'"):
        read_ids(path, text=False)
    assert read_ids(path, text=True).tolist() == ["a", "1"]


def test_info(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "info", folder / "a.aniso")
    assert code == 0
    assert "points" in out
    assert "3,000" in out
    facts = json.loads(run(capsys, "info", folder / "a.aniso", "--verify", "--json")[1])
    assert facts["metric"] == "l2"
    assert facts["verified"] is True
    assert facts["curve"] == aniso.open(folder / "a.aniso").info()["curve"]


def test_tune_prints_saves_and_plots_the_curve(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = folder / "t.aniso"
    aniso.build(POINTS, recall=None).save(index)
    before = index.read_bytes()
    curve = json.loads(run(capsys, "tune", index, "--recall", 0.9, "--json")[1])
    assert index.read_bytes() == before
    code, out, _ = run(capsys, "tune", index, "--recall", 0.9, "--save", "--plot", folder / "t.png")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == ["k", "partitions", "candidates", "recall"]
    assert [[float(x) for x in line.split()] for line in lines[1:]] == [
        [row["k"], row["partitions"], row["candidates"], round(row["recall"], 4)] for row in curve
    ]
    assert (folder / "t.png").read_bytes().startswith(b"\x89PNG")
    assert aniso.open(index).info()["recall"] == 0.9
    assert [list(row.values()) for row in curve] == aniso.open(index).info()["curve"]
    aniso.build(POINTS[:50]).save(index)
    assert "nothing to tune" in run(capsys, "tune", index)[1]


@pytest.mark.parametrize("asked", [[], ["--queries", "queries.npy"]], ids=["points", "queries"])
def test_bench(folder: Path, capsys: pytest.CaptureFixture[str], asked: list[str]) -> None:
    more = [folder / one if one.endswith("npy") else one for one in asked]
    call = ["bench", folder / "a.aniso", "--seconds", 0.01, "--recall", 0.5, 0.99, *more]
    lines = json.loads(run(capsys, *call, "--json")[1])
    assert [line["name"] for line in lines] == ["exact", "recall 0.5", "recall 0.99"]
    assert lines[0]["recall"] == 1
    assert lines[1]["recall"] < 0.95
    assert lines[2]["recall"] > 0.95
    for line in lines:
        assert 0 < line["p50"] <= line["p95"] <= line["p99"]
        assert line["single"] > 0
        assert line["batch"] > 0
    code, out, err = run(capsys, *call, "--plot", folder / "b.png", "--points", folder / "vectors.npy")
    assert code == 0
    assert "bench: done" in err
    assert [line.split("  ")[0] for line in out.splitlines()] == ["search", "exact", "recall 0.5", "recall 0.99"]
    assert (folder / "b.png").read_bytes().startswith(b"\x89PNG")


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["demo", "--most", 1500, "--plot", tmp_path / "d.png", "--ask", "compress bytes with zlib"]
    code, out, _ = run(capsys, *call)
    assert code == 0
    assert "1,500 docstrings" in out
    assert "compress bytes with zlib\n  " in out
    assert "recall 0.95" in out
    assert (tmp_path / "d.png").read_bytes().startswith(b"\x89PNG")


def bad_calls(place: Path) -> dict[str, tuple[list[Any], str]]:
    """Calls that end in one line, and what it says."""
    a, q, v = place / "a.aniso", place / "queries.npy", place / "vectors.npy"
    np.save(place / "wide.npy", np.ones((2, 13), np.float32))
    np.save(place / "nan.npy", np.full((2, 12), np.nan))
    np.save(place / "none.npy", np.ones((0, 12)))
    (place / "text.txt").write_text("no\nnumbers\n")
    (place / "bad.txt").write_bytes(b"\xff\xfe\x00")
    (place / "cut.aniso").write_bytes(a.read_bytes()[:5000])
    none = aniso.build(POINTS[:1500], rescore="none", recall=None)
    none.save(place / "none.aniso")
    return {
        "no index": (["info", place / "no.aniso"], "no.aniso: No such file"),
        "a folder as an index": (["info", place], "a folder"),
        "a damaged index": (["search", place / "cut.aniso", q], "truncated"),
        "vectors as an index": (["search", v, q], "aniso build"),
        "no vectors": (["build", place / "no.npy", "-o", place / "x"], "no file"),
        "vectors of an unknown kind": (["build", place / "text.txt", "-o", place / "x"], "needed: one of .npy"),
        "no folder to write to": (["build", v, "-o", place / "no" / "x"], "no such folder"),
        "a folder in its place": (["build", v, "-o", place], "is a folder"),
        "nan": (["build", place / "nan.npy", "-o", place / "x"], "row 0, dimension 0 is not finite"),
        "recall 2": (["build", v, "-o", place / "x", "--recall", 2], "recall is 2.0"),
        "threads 0": (["build", v, "-o", place / "x", "--threads", 0], "threads is 0"),
        "too little memory": (["build", v, "-o", place / "x", "--memory", "1k"], "memory is 1000 bytes"),
        "memory and a copy": (["build", v, "-o", place / "x", "--memory", "1M", "--rescore", "int8"], "memory="),
        "too few ids": (
            ["build", v, "-o", place / "x", "--ids", place / "text.txt"],
            "2 ids were given for 3000 points",
        ),
        "ids that are not text": (["build", v, "-o", place / "x", "--ids", place / "bad.txt"], "not a text in UTF-8"),
        "k 0": (["search", a, q, "-k", 0], "k is 0"),
        "other dimensions": (["search", a, place / "wide.npy"], "13 dimensions"),
        "no queries": (["search", a, place / "none.npy"], "no queries"),
        "recall and settings": (["search", a, q, "--recall", 1, "--partitions", 1, "--candidates", 9], "recall="),
        "where text": (["search", a, q, "--where", place / "text.txt"], "line 1 is 'no'"),
        "output of an unknown kind": (["search", a, q, "-o", place / "x.csv"], "needed: .npz"),
        "a plot of an unknown kind": (["tune", a, "--plot", place / "x.txt"], ".png"),
        "nothing kept": (["bench", place / "none.aniso"], "keeps no copy"),
        "other points": (["bench", a, "--points", q], "there are 40 points, and the index has 3000"),
        "words that nobody uses": (["demo", "--most", 200, "--ask", "xqzzy"], "other words"),
    }


def test_errors_are_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, (call, words) in bad_calls(folder).items():
        code, out, err = run(capsys, *call)
        last = err.splitlines()[-1]
        assert (code, out) == (2, ""), name
        assert last.startswith("aniso: "), name
        assert words in last, name
        assert "Traceback" not in err, name
        assert not (folder / "x").exists(), name


def test_wrong_arguments_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [["build", "a.npy", "-o", "b", "--memory", size] for size in ("", "much", "1e400M", "M", "1T")]
    for call in ([], ["bake"], ["build"], ["build", "a.npy"], ["search", "a", "b", "--json", "--text"], *sizes):
        with pytest.raises(SystemExit) as stopped:
            cli.main(call)
        assert stopped.value.code == 2


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Programs started now can be interrupted, also where this one cannot, as in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_leaves_nothing_and_exits_with_130(tmp_path: Path) -> None:
    """At several moments of a build, told by its own progress lines."""
    np.save(tmp_path / "v.npy", RNG.normal(size=(60_000, 24)).astype(np.float32))
    call = [
        sys.executable,
        "-m",
        "aniso",
        "build",
        str(tmp_path / "v.npy"),
        "-o",
        str(tmp_path / "a.aniso"),
        "--threads",
        "1",
    ]
    for stage in ("partitions", "add", "tune"):
        started = subprocess.Popen(call, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert started.stderr is not None
        assert any(line.strip() == stage for line in started.stderr)
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=120)
        assert started.returncode == 130, stage
        assert out == ""
        assert err.splitlines()[-1] == "aniso: stopped"
        assert "Traceback" not in err
        assert [path.name for path in tmp_path.iterdir()] == ["v.npy"]


def test_a_reader_that_has_enough_is_no_error(folder: Path) -> None:
    call = [sys.executable, "-m", "aniso", "search", str(folder / "a.aniso"), str(folder / "queries.npy"), "-k", "3000"]
    started = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert started.stdout is not None
    assert started.stderr is not None
    assert started.stdout.readline().startswith(b"0\t1\t")
    started.stdout.close()
    errors = started.stderr.read()
    assert started.wait(60) == 0
    assert b"Traceback" not in errors
    started.stderr.close()


def test_replacing_leaves_the_old_file_on_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_text("old")

    def stopped() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert path.read_text() == "old"
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.npz"]


def test_plain_lines_say_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    out, now = io.StringIO(), [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    show = PlainLines(out)
    for done in range(5):
        show("add", done, 4)
        now[0] += 6
    show("tune", 1, 1)
    lines = out.getvalue().splitlines()
    assert lines[0] == "add"
    assert lines[1] == "add: 1 of 4, about 18 s left"
    assert lines[-2:] == ["add: done, 24.0 s", "tune: done, 0.0 s"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_on_a_terminal() -> None:
    pytest.importorskip("rich")
    out = Terminal()
    with progress(out) as show:
        show("partitions", 0, 4)
        show("partitions", 4, 4)
    assert "partitions" in out.getvalue()
    assert "100%" in out.getvalue()


def test_without_rich_a_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    out = Terminal()
    with progress(out) as show:
        show("add", 1, 1)
    assert out.getvalue() == "add: done, 0.0 s\n"


def test_table() -> None:
    assert table([["a", "10.5"], ["bb", "9"]], ["x", "y"]).splitlines() == ["x      y", "a   10.5", "bb     9"]


def test_the_page_of_the_command_line_is_current() -> None:
    """Python's versions differ in how they set usage and options, so words are compared, not lines."""
    assert PAGE.read_text(encoding="utf-8").split() == page().split(), "run python tests/cli_page.py"
