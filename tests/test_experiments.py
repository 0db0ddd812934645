"""Every experiment of `aniso reproduce` runs, on small made-up sets of the names and dimensions of the real ones."""

import csv
import struct
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from aniso import cli
from aniso.experiments import NAMES, fixed_bitrate, reproduce, speed_recall
from aniso.experiments.classifier import Classifier
from aniso.experiments.measure import QUICK, Flat, flat, recalls, within
from aniso.experiments.norms import OneEta
from aniso.experiments.peers import LIBRARIES, Library
from aniso.experiments.peers.curves import front, recall, speed_at
from aniso.experiments.report import Claim, Report, page, table
from aniso.loss import Threshold

Array = NDArray[Any]

SETS = {
    "glove-100-angular": ("angular", 100),
    "sift-128-euclidean": ("euclidean", 128),
    "movielens-150-dot": ("dot", 150),
    "wordnet-384-angular": ("angular", 384),
}


@pytest.fixture(scope="session")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small file for every data set that an experiment asks for."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for name, (distance, d) in SETS.items():
        mix = rng.normal(size=(20, d))
        points, queries = (rng.normal(size=(n, 20)) @ mix + rng.normal(size=(n, d)) for n in (1800, 150))
        with h5py.File(folder / f"{name}.hdf5", "w") as file:
            file["train"], file["test"] = points.astype(np.float32), queries.astype(np.float32)
            file["neighbors"] = np.zeros((150, 100), np.int64)  # never right: a quick run finds its own truth
            file.attrs["distance"] = distance
    with h5py.File(folder / "glove-100-dot.hdf5", "w") as file:
        file["neighbors"] = np.zeros((150, 100), np.int64)
        file.attrs["distance"], file.attrs["vectors"] = "dot", "glove-100-angular.hdf5"
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_quick_run(name: str, made_up: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANISO_DATA", str(made_up))
    for kind in LIBRARIES.values():  # optional, and slow to load
        if kind.package != "aniso":
            monkeypatch.setitem(sys.modules, kind.module, None)
    stages: list[str] = []
    report = reproduce(name, tmp_path / "new", size=QUICK, progress=lambda stage, *_: stages.append(stage))
    assert stages
    assert report.claims
    rows = list(csv.DictReader((tmp_path / "new" / f"{name}.csv").read_text().splitlines()))
    assert len(rows) == len(report.rows) > 1
    text = (tmp_path / "new" / f"{name}.md").read_text()
    assert text.startswith(f"# {report.title}\n")
    for part in (f"![{report.title}]({name}.png)", f"[{name}.csv]", "A quick run", "| claim | found | holds |"):
        assert part in text
    for line in text.splitlines():
        assert "nan" not in line
    picture = (tmp_path / "new" / f"{name}.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert min(struct.unpack(">II", picture[16:24])) > 300


def test_the_command(made_up: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("ANISO_DATA", str(made_up))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["reproduce", "eta", "--quick"]) == 0
    assert (tmp_path / "out/paper/eta.md").is_file()
    shown = capsys.readouterr()
    assert "holds: eta / (d - 1) tends to the limit" in shown.out
    assert "eta" in shown.err
    assert cli.main(["reproduce", "eta", "--quick", "--folder", "here"]) == 0
    assert (tmp_path / "here/eta.png").is_file()


def test_the_command_says_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("ANISO_DATA", str(tmp_path))
    assert cli.main(["reproduce", "threshold", "--quick", "--folder", str(tmp_path)]) == 2
    assert "aniso: no data set 'glove-100-angular'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        cli.main(["reproduce", "figure-9"])
    assert stop.value.code == 2
    assert "fixed-bitrate" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main([])


def test_help_lists_the_experiments(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        cli.main(["reproduce", "--help"])
    shown = capsys.readouterr().out
    for name in NAMES:
        assert name in shown


def test_an_unknown_experiment() -> None:
    with pytest.raises(ValueError, match="no experiment 'figure-9'; needed: one of eta, threshold"):
        reproduce("figure-9", Path("."))


def test_flat_chooses_queries_apart_and_finds_the_truth(made_up: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANISO_DATA", str(made_up))
    data, spare = flat("glove-100-angular", QUICK, unit=True, depth=3, spare=40)
    assert (data.points.shape, data.queries.shape, spare.shape) == ((1500, 100), (60, 100), (40, 100))
    assert not (data.queries[:, None] == spare[None]).all(axis=2).any()
    best = np.argsort(-(data.queries @ data.points.T), axis=1)[:, :3]
    np.testing.assert_array_equal(data.truth, best)
    again, _ = flat("glove-100-angular", QUICK, unit=True)
    np.testing.assert_array_equal(again.points, data.points)


def test_recalls_of_the_points_themselves() -> None:
    points = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    data = Flat(points, points[:20], (points[:20] @ points.T).argmax(axis=1)[:, None])
    found = recalls(data, points, (1, 5))
    assert (found["1@1"], found["1@5"], found["squared error"]) == (1.0, 1.0, 0.0)
    assert recalls(data, points * np.float32(0.5))["relative error"] == pytest.approx(0.5)


def test_one_eta_is_that_of_the_norm_given() -> None:
    weights = OneEta(0.2, 1.0).weights([0.5, 1.0, 3.0], 100)
    np.testing.assert_array_equal(weights.eta, np.repeat(Threshold(0.2).weights([1.0], 100).eta, 3))
    np.testing.assert_array_equal(weights.importance, np.ones(3))


def test_the_classifier_learns() -> None:
    x = np.random.default_rng(0).normal(size=(300, 12)).astype(np.float32)
    classifier = Classifier(12, 64, 300)
    losses = classifier.fit(x, epochs=30, negatives=300, noise=0.2)
    assert losses[-1] < 0.5 * losses[0]
    logits = classifier.hidden(x) @ classifier.last.T
    assert np.mean(logits.argmax(axis=1) == np.arange(300)) > 0.9


def test_a_page_shows_what_does_not_hold() -> None:
    report = Report("Title", "The paper.", [{"a": 1}], None, [table([{"a": 0.5, "b": None}])], [], "Method.")
    report.claims = [Claim("one", "1", True), Claim("two |x|", "2", False)]
    report.missing = ["A: not here."]
    text = page(report, "name", quick=False, seconds=90)
    for part in (
        "| 0.5000 |  |",
        "| one | 1 | yes |",
        r"| two \|x\| | 2 | **no** |",
        "- A: not here.",
        "1.5 minutes of processor time",
    ):
        assert part in text


def test_progress_names_what_it_is_within() -> None:
    seen: list[tuple[str, int, int]] = []
    within(lambda *step: seen.append(step), "PQ")("codebooks", 1, 2)
    assert seen == [("PQ: codebooks", 1, 2)]


class Exact(Library):
    """A peer that looks at all of the first points; `points` is how many."""

    name, package, module, unit = "exact", "numpy", "numpy", True

    @classmethod
    def builds(cls, n: int, d: int, metric: str) -> list[dict[str, Any]]:
        return [{"pages": 3}]

    @classmethod
    def series(cls, settings: dict[str, Any], n: int) -> Any:
        yield [{"points": n // 2}, {"points": n}]

    @classmethod
    def tiny(cls) -> Any:
        return {}, {}

    @classmethod
    def build(cls, points: Array, metric: str, settings: Any, threads: int, scratch: Path) -> "Exact":
        return cls(points, metric)

    def save(self, folder: Path) -> None: ...

    @classmethod
    def load(cls, folder: Path, metric: str, settings: Any, d: int) -> "Exact":
        raise NotImplementedError

    def one(self, k: int, knobs: Any) -> Any:
        return lambda query: [np.argsort(-(self.index[: knobs["points"]] @ query))[:k]]

    def batch(self, k: int, knobs: Any, threads: int) -> Any:
        raise NotImplementedError


class Broken(Exact):
    name = "broken"

    @classmethod
    def build(cls, points: Array, metric: str, settings: Any, threads: int, scratch: Path) -> "Exact":
        raise RuntimeError("no such instruction")


def test_speed_recall_with_peers(made_up: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """aniso beside a peer that is exact, one that cannot be built, and one that is not installed."""
    monkeypatch.setenv("ANISO_DATA", str(made_up))
    peers = {"aniso": LIBRARIES["aniso"], "exact": Exact, "broken": Broken, "scann": LIBRARIES["scann"]}
    monkeypatch.setattr(speed_recall, "LIBRARIES", peers)
    monkeypatch.setitem(sys.modules, "scann", None)
    report = speed_recall.run(QUICK, lambda *_: None)
    found = {row["library"]: row for row in report.rows}  # the last of each: its highest recall
    assert set(found) == {"aniso", "exact"}
    assert found["exact"]["recall"] == 1.0
    assert found["exact"]["knobs"] == "points 1500"
    assert found["aniso"]["qps"] > 0
    assert any(
        text.startswith("broken: its build failed: RuntimeError('no such instruction')") for text in report.missing
    )
    assert any(text.startswith("ScaNN: not installed (`pip install scann`)") for text in report.missing)
    assert any(text.startswith("SPTAG: ") for text in report.missing)
    assert "pages 3" in report.tables[1]


def test_the_fastest_is_claimed_only_where_it_is() -> None:
    speeds: Any = {"aniso": {0.9: (100.0, "")}, "other": {0.9: (150.0, "")}, "third": {0.9: None}}
    claim = speed_recall.claim(speeds, "aniso", 0.9)
    assert (claim.holds, claim.found) == (False, "100 against 150 of other")
    assert speed_recall.claim({"aniso": {0.9: (200.0, "")}, **{"other": speeds["other"]}}, "aniso", 0.9).holds
    assert not speed_recall.claim({"aniso": {0.9: None}}, "aniso", 0.9).holds


def test_curves() -> None:
    truth = np.array([[1, 2], [3, 4]])
    assert recall([np.array([2, 2, 1]), np.array([-1, 4])], truth, 5) == 0.5
    rows = [{"recall": r, "qps": q} for r, q in ((0.5, 100.0), (0.8, 80.0), (0.7, 60.0), (0.9, 20.0))]
    line = front(rows)
    assert [row["recall"] for row in line] == [0.5, 0.8, 0.9]
    assert speed_at(rows, 0.85) == (pytest.approx(40.0), "")
    assert speed_at(rows, 0.4) == (100.0, ">= ")
    assert speed_at(rows, 0.95) is None
    many = [{"recall": r, "qps": 1 / r} for r in np.linspace(0.3, 0.99, 40)]
    kept = speed_recall.spread(many)
    assert 3 < len(kept) <= speed_recall.EACH
    assert kept[0]["recall"] >= 0.6
    assert kept[-1]["recall"] == 0.99


def test_rabitq_is_read_off_its_scores() -> None:
    """A stand-in for faiss whose scores are <q, 2 x R> + |x|, R the reversed order."""

    class Index:
        code_size = 21

        def __init__(self, *_: Any) -> None: ...

        def train(self, x: Array) -> None: ...

        def reset(self) -> None:
            self.x = np.zeros((0, 3), np.float32)

        def add(self, x: Array) -> None:
            self.x = x

        def search(self, q: Array, k: int) -> tuple[Array, Array]:
            scores = q @ (2 * self.x[:, ::-1]).T + np.linalg.norm(self.x, axis=1)
            ids = np.argsort(-scores, axis=1)[:, :k]
            return np.take_along_axis(scores, ids, axis=1), ids

    class Faiss:
        METRIC_INNER_PRODUCT = 0
        IndexRaBitQ = Index
        RandomRotationMatrix = staticmethod(lambda *_: None)
        IndexPreTransform = staticmethod(lambda _, index: index)

    points = np.random.default_rng(0).normal(size=(20_000, 3)).astype(np.float32)
    decoded, bits = fixed_bitrate.rabitq(Faiss, points, 1, lambda *_: None)
    assert bits == 168
    np.testing.assert_allclose(decoded[:, :3], 2 * points[:, ::-1], atol=1e-5)
    np.testing.assert_allclose(decoded[:, 3], np.linalg.norm(points, axis=1), atol=1e-5)


def test_claims_name_the_n_where_they_fail() -> None:
    ours = {f"1@{n}": 0.5 for n in fixed_bitrate.AT}
    other = ours | {"1@1": 0.4, "1@2": 0.4, "1@100": 0.6}
    assert fixed_bitrate.not_above(ours, other) == [n for n in fixed_bitrate.AT if n > 2]
    full = {f"1@{n}": 1.0 for n in fixed_bitrate.AT}
    assert fixed_bitrate.not_above(full, full) == []
