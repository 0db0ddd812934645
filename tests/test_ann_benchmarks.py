"""benchmarks/ann_benchmarks in the layout of the ann-benchmarks project, driven as its runner drives an algorithm.

That project is not a package one can install. Here are a stand-in for its base class, and its contract: how config.yml
becomes runs, and what is called in which order with which results expected.
"""

import importlib
import inspect
import itertools
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

import aniso

FILES = Path(__file__).resolve().parent.parent / "benchmarks" / "ann_benchmarks"
CONFIG = yaml.safe_load((FILES / "config.yml").read_text())
METRICS = {"angular": "cosine", "euclidean": "l2", "ip": "dot"}

BASE = '''
class BaseANN:
    """What algorithms inherit from the real one: the calls that they need not have themselves."""

    def done(self):
        pass

    def get_memory_usage(self):
        return 0.0

    def fit(self, X):
        raise NotImplementedError

    def query(self, q, n):
        raise NotImplementedError

    def batch_query(self, X, n):
        self.res = [self.query(q, n) for q in X]

    def get_batch_results(self):
        return self.res

    def get_additional(self):
        return {}

    def __str__(self):
        return self.name
'''


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """module.py, imported as that project imports it."""
    root = tmp_path_factory.mktemp("project")
    algorithms = root / "ann_benchmarks" / "algorithms"
    (algorithms / "base").mkdir(parents=True)
    (algorithms / "base" / "module.py").write_text(BASE)
    shutil.copytree(FILES, algorithms / "aniso", ignore=shutil.ignore_patterns("__pycache__"))
    sys.path.insert(0, str(root))
    importlib.invalidate_caches()
    try:
        yield importlib.import_module("ann_benchmarks.algorithms.aniso.module")
    finally:
        sys.path.remove(str(root))
        for name in [name for name in sys.modules if name.split(".")[0] == "ann_benchmarks"]:
            del sys.modules[name]


class Run(NamedTuple):
    """One index to build, and the settings that it is searched with."""

    constructor: str
    arguments: list[Any]
    query_arguments: list[list[Any]]


def combinations(options: Any) -> list[Any]:
    """Every choice of one value for each place of a list, or for each key of a dict."""
    if isinstance(options, dict):
        lists = [value if isinstance(value, list) else [value] for value in options.values()]
        return [dict(zip(options, values, strict=True)) for values in itertools.product(*lists)]
    lists = [value if isinstance(value, list) else [value] for value in options]
    return [list(values) for values in itertools.product(*lists)]


def runs(entry: dict[str, Any], metric: str) -> list[Run]:
    """What an entry of config.yml asks for."""
    found = []
    for group in entry["run_groups"].values():
        if "arg_groups" in group:
            groups = [combinations(each) if isinstance(each, dict) else each for each in group["arg_groups"]]
            arguments = combinations(groups)
        else:
            arguments = combinations(group["args"])
        base = [metric if each == "@metric" else each for each in entry["base_args"]]
        for each in arguments:
            found.append(Run(entry["constructor"], [*base, *each], combinations(group["query_args"])))
    return found


def data(n: int = 3000, d: int = 12) -> tuple[np.ndarray, np.ndarray]:
    values = np.random.default_rng(3).normal(size=(n + 40, d)).astype(np.float32)
    return values[:n], values[n:]


def drive(module: ModuleType, run: Run, points: np.ndarray, queries: np.ndarray, count: int, batch: bool) -> list[Any]:
    """Build once, then ask all queries with every setting: (name, results) of each."""
    # The runner hands arguments to a process of its own as JSON.
    algorithm = getattr(module, run.constructor)(*json.loads(json.dumps(run.arguments)))
    answers = []
    try:
        before = algorithm.get_memory_usage()
        algorithm.fit(points)
        assert algorithm.get_memory_usage() - before >= 0
        for arguments in run.query_arguments:
            algorithm.set_query_arguments(*json.loads(json.dumps(arguments)))
            if batch:
                assert algorithm.batch_query(queries, count) is None
                results = algorithm.get_batch_results()
            else:
                results = [algorithm.query(query, count) for query in queries]
            assert len(results) == len(queries)
            for found in results:
                assert len(found) == len(set(found)) <= count  # row numbers, each once
                assert points[found].shape == (len(found), points.shape[1])  # the runner measures distances itself
            for value in algorithm.get_additional().values():  # attributes of an HDF5 file
                assert isinstance(value, (int, float, str))
            answers.append((str(algorithm), [[int(row) for row in found] for found in results]))
    finally:
        algorithm.done()
    return answers


def recall(results: list[list[int]], truth: np.ndarray) -> float:
    return float(np.mean([len(set(found) & set(true)) / len(true) for found, true in zip(results, truth, strict=True)]))


@pytest.mark.parametrize("metric", METRICS)
def test_every_run_of_the_config_is_accepted(module: Any, metric: str) -> None:
    names = []
    for entry in CONFIG["float"][metric]:
        assert set(entry) == {
            "name", "docker_tag", "module", "constructor", "disabled", "base_args", "run_groups",
        }  # fmt: skip
        assert entry["module"] == "ann_benchmarks.algorithms.aniso"  # the folder that the files are put into
        assert entry["docker_tag"] == "ann-benchmarks-aniso"
        assert entry["disabled"] is False
        names.append(entry["name"])
        for run in runs(entry, metric):
            algorithm = getattr(module, run.constructor)(*run.arguments)
            assert run.query_arguments
            seen = set()
            for arguments in run.query_arguments:
                inspect.signature(algorithm.set_query_arguments).bind(*arguments)
                algorithm.set_query_arguments(*arguments)
                seen.add(str(algorithm))
            assert len(seen) == len(run.query_arguments)  # results are told apart by name
    assert len(set(names)) == len(names)
    assert set(CONFIG) == {"float"}
    assert set(CONFIG["float"]) == set(METRICS)


@pytest.mark.parametrize("metric", METRICS)
def test_single_queries_and_batches_agree(module: Any, metric: str) -> None:
    points, queries = data()
    run = Run("Aniso", [metric, {"rescore": "float32"}], [[1, 10], [1000, 5000]])
    single = drive(module, run, points, queries, 10, batch=False)
    assert single == drive(module, run, points, queries, 10, batch=True)
    truth = aniso.ExactIndex(points, metric=METRICS[metric]).search(queries, 10).ids
    few, all_of_them = (recall(results, truth) for _, results in single)
    assert few < 0.9 < all_of_them == 1.0
    assert single[0][0] == "aniso(rescore=float32, partitions=1, candidates=10)"


def test_a_recall_is_aimed_at(module: Any) -> None:
    points, queries = data(6000)
    run = Run("AnisoTuned", ["euclidean", {"rescore": "float32"}], [[0.5], [0.99]])
    answers = drive(module, run, points, queries, 10, batch=False)
    truth = aniso.ExactIndex(points, metric="l2").search(queries, 10).ids
    low, high = (recall(results, truth) for _, results in answers)
    assert low < high
    assert high > 0.95  # 400 answers: two standard errors below 0.99 are 0.98
    assert [name for name, _ in answers] == [
        "aniso(rescore=float32, recall=0.5)",
        "aniso(rescore=float32, recall=0.99)",
    ]


def test_fewer_points_than_asked_for(module: Any) -> None:
    points, queries = data(6)
    ((_, results),) = drive(module, Run("Aniso", ["angular", {}], [[4, 30]]), points, queries, 10, batch=True)
    assert all(sorted(found) == list(range(6)) for found in results)


def test_what_is_wrong_is_said_before_the_data_is_loaded(module: Any) -> None:
    with pytest.raises(ValueError, match="metric is 'hamming'; needed: one of angular"):
        module.Aniso("hamming", {})
    with pytest.raises(ValueError, match="rescore is 'float8'"):
        module.Aniso("angular", {"rescore": "float8"})


def test_the_image_installs_what_the_module_imports() -> None:
    lines = [line for line in (FILES / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "FROM ann-benchmarks"
    copied = next(line.split() for line in lines if line.startswith("COPY"))
    assert copied[1] == CONFIG["float"]["angular"][0]["module"].replace(".", "/")
    install = next(line for line in lines if "pip3 install" in line)
    assert copied[2] in install
    assert install.split()[-1] == "aniso"
