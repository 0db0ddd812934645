"""The data of a comparison, and the indexes: each built in a process of its own, and kept under out/peers-cache/."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from peers_log import HERE, OUT, Row

from aniso.experiments.peers import LIBRARIES, Library, Settings

K = 10
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Data:
    name: str  # of the data set, with the size of the subset if it is one
    metric: str
    folder: Path  # where points.npy and unit.npy are
    n: int
    queries: F32
    truth: NDArray[np.int64]  # (q, 10)

    @property
    def d(self) -> int:
        return int(self.queries.shape[1])

    def inputs(self, kind: type[Library]) -> str:
        return "unit" if self.metric == "cosine" and kind.unit else "points"


def unit(x: F32) -> F32:
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x / np.maximum(norms, 1e-30), np.float32)


def brute_force(points: F32, queries: F32, metric: str, k: int) -> NDArray[np.int64]:
    """The k best points of each query, in blocks of queries."""
    if metric == "cosine":
        points, queries = unit(points), unit(queries)
    bias = np.einsum("nd,nd->n", points, points) / 2 if metric == "l2" else np.zeros(len(points), np.float32)
    best = np.empty((len(queries), k), np.int64)
    rows = max(1, (1 << 26) // len(points))
    for first in range(0, len(queries), rows):
        scores = queries[first : first + rows] @ points.T - bias
        ids = np.argpartition(-scores, k - 1, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(scores, ids, axis=1), axis=1, kind="stable")
        best[first : first + rows] = np.take_along_axis(ids, order, axis=1)
    return best


def prepare(name: str, points: int | None) -> Data:
    """The data set, or a random subset of its points; vectors also as .npy files for the processes that build."""
    from aniso import datasets

    data = datasets.load(name)
    x, truth = data.points, data.neighbors[:, :K]
    if points and points < len(x):
        x = x[np.sort(np.random.default_rng(0).permutation(len(x))[:points])]
        truth = brute_force(x, data.queries, data.metric, K)
        name = f"{name}-{points}"
    folder = OUT / "peers-cache" / name
    folder.mkdir(parents=True, exist_ok=True)
    for part, values in (("points", x), ("unit", unit(x) if data.metric == "cosine" else None)):
        path = folder / f"{part}.npy"
        if values is not None and not path.exists():
            np.save(folder / "part.npy", values)
            os.replace(folder / "part.npy", path)
    return Data(name, data.metric, folder, len(x), data.queries, truth)


def status(key: str) -> int:
    """A figure of /proc/self/status, in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key + ":"))


def build_here(request: Row) -> None:
    """What the process that builds does: build, save, and write what it took."""
    kind = LIBRARIES[request["library"]]
    folder, settings = Path(request["folder"]), request["settings"]
    importlib.import_module(kind.module)
    points = np.load(request["points"])
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts from here
        before = status("VmRSS")
        start, busy = time.perf_counter(), time.process_time()
        index = kind.build(points, request["metric"], settings, request["threads"], Path(scratch))
        seconds, cpu = time.perf_counter() - start, time.process_time() - busy
        peak = max(0, status("VmHWM") - before)
        folder.mkdir(parents=True)
        index.save(folder)
        size = index.bytes(folder)
    row = {
        "version": kind.version(),
        "seconds": seconds,
        "cpu": cpu,
        "peak": peak,
        "bytes": size,
        "size": kind.size,
        "input": points.nbytes,
    }
    (folder / "built.json").write_text(json.dumps(row))  # last: without it the folder counts as not built


def ensure_built(data: Data, name: str, settings: Settings, limit: float, retry: bool) -> tuple[Path, Row]:
    """Where the index is, and what building it took: from the cache if it is there."""
    kind = LIBRARIES[name]
    key = json.dumps([kind.version(), settings], sort_keys=True)
    folder = data.folder / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    note, failure = folder / "built.json", folder.with_name(folder.name + ".failed.json")
    if note.exists():
        return folder, json.loads(note.read_text())
    if failure.exists() and not retry:
        return folder, json.loads(failure.read_text())
    shutil.rmtree(folder, ignore_errors=True)
    request = request_of(data, name, settings, folder)
    if reason := build_apart(request, limit):
        shutil.rmtree(folder, ignore_errors=True)
        row: Row = {"failed": reason}
        failure.write_text(json.dumps(row))
        return folder, row
    return folder, json.loads(note.read_text())


def request_of(data: Data, name: str, settings: Settings, folder: Path) -> Row:
    """What a process that builds is asked for."""
    return {
        "library": name,
        "settings": settings,
        "metric": data.metric,
        "points": str(data.folder / f"{data.inputs(LIBRARIES[name])}.npy"),
        "folder": str(folder),
        "threads": os.cpu_count() or 1,
    }


def build_apart(request: Row, limit: float) -> str:
    """Has a process of its own build what is asked for, with all cores; why it could not, or nothing."""
    threads = request["threads"]
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads)), "PEERS_THREADS": str(threads)}
    command = [sys.executable, str(HERE / "peers.py"), "--build", json.dumps(request)]

    def all_cores() -> None:
        os.sched_setaffinity(0, range(threads))

    with tempfile.TemporaryFile("w+") as log:
        try:
            done = subprocess.run(
                command, env=environment, timeout=limit, preexec_fn=all_cores, stdout=log, stderr=subprocess.STDOUT
            )
            reason = "" if done.returncode == 0 else f"ended with code {done.returncode}"
        except subprocess.TimeoutExpired:
            reason = f"took longer than {limit:.0f} s"
        if not reason:
            return ""
        log.seek(0)
        lines = [line for line in log.read().splitlines() if line.strip()]
    return f"{reason}: {' | '.join(lines[-2:])[-400:]}"
