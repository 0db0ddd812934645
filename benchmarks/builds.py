"""What a build costs: seconds beside ScaNN's at equal settings, and memory above a memory-mapped input.

    python benchmarks/builds.py glove-100-angular [--turns 2]

Method
- Equal settings: as many partitions, trained on as many points, a second partition for every point where ScaNN has
  SOAR, 12 iterations, float32 rescoring, recall not measured. The libraries take turns, each build in a process of its
  own with all cores; what is kept is the best of the turns. What is done with equal settings differs: aniso's first
  iterations look at a part of the sample, ScaNN's codebooks at no more than 100,000 points. Unit vectors for cosine
  are made by aniso within the time, for ScaNN before. Recall is not compared here, but by peers.py.
- Memory: a new process maps a file of float32 points, reads every page of it, and builds with a recall target. Counted
  is the high-water mark of its memory above what it held before and the bytes of the index, in parts of the input.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from peers_builds import Data, build_apart, prepare, request_of, status
from peers_log import Row, say
from peers_report import markdown

from aniso.experiments.peers import Settings
from aniso.index import build

LIMIT = 1800.0  # seconds a build may take
KINDS = ((1000, False), (2000, True))  # partitions, and whether every point has two
RESCORES = ("int8", "float32")


def settings_of(name: str, partitions: int, spill: bool, sample: int) -> Settings:
    if name == "scann":
        return {"leaves": partitions, "soar": spill, "reorder": "float32", "sample": sample}
    own: Settings = {"partitions": partitions, "sample": sample, "iterations": 12, "rescore": "float32", "recall": None}
    return {**own, "spill": 1.0, "spill_share": 1.0} if spill else {**own, "spill": 0.0}


def built(data: Data, name: str, settings: Settings) -> Row:
    """What one build took."""
    with tempfile.TemporaryDirectory(dir=data.folder) as scratch:
        folder = Path(scratch) / "index"
        if reason := build_apart(request_of(data, name, settings, folder), LIMIT):
            raise SystemExit(f"{name} {settings}: {reason}")
        return dict(json.loads((folder / "built.json").read_text()))


def beside_scann(data: Data, turns: int) -> Iterator[list[str]]:
    """Rows of seconds and of processor time, and their ratios."""
    samples = sorted({min(100_000, data.n), data.n})
    for (partitions, spill), sample in itertools.product(KINDS, samples):
        if spill and data.metric == "l2":  # ScaNN refuses SOAR for it
            continue
        best: dict[str, dict[str, float]] = {}
        for turn in range(turns):
            for name in ("aniso", "scann"):
                row = built(data, name, settings_of(name, partitions, spill, sample))
                say(
                    f"turn {turn + 1}/{turns}: {name}, {partitions} partitions, sample {sample}: {row['seconds']:.1f} s"
                )
                for figure in ("seconds", "cpu"):
                    known = best.setdefault(figure, {})
                    known[name] = min(row[figure], known.get(name, float("inf")))
        title = (
            f"{partitions:,} partitions, {'a second one for every point' if spill else 'no spill'}, sample {sample:,}"
        )
        yield [
            title,
            *(f"{best['seconds'][name]:.1f}" for name in ("aniso", "scann")),
            *(f"{best[figure]['aniso'] / best[figure]['scann']:.2f}" for figure in ("seconds", "cpu")),
        ]


def memory_here(request: Row) -> None:
    """What the process that measures its memory does."""
    points = np.load(request["points"], mmap_mode="r")
    for first in range(0, len(points), 4096):
        points[first : first + 4096].sum()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts from here
    before = status("VmRSS")
    index = build(points, metric=request["metric"], rescore=request["rescore"], recall=0.95)
    size = index.info()["bytes"]
    print(json.dumps({"above": status("VmHWM") - before - size, "size": size, "input": points.nbytes}))


def memory(data: Data) -> Iterator[list[str]]:
    """Rows of megabytes above input and index."""
    for rescore in RESCORES:
        request = {"points": str(data.folder / "points.npy"), "metric": data.metric, "rescore": rescore}
        command = [sys.executable, __file__, "--memory-of", json.dumps(request)]
        row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        share = row["above"] / row["input"]
        yield [rescore, *(f"{row[key] / 1e6:.1f}" for key in ("input", "size", "above")), f"{share:.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", default="glove-100-angular")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        memory_here(json.loads(options.memory_of))
        return
    data = prepare(options.dataset, None)
    head = ["", "aniso s", "ScaNN s", "ratio", "of CPU seconds"]
    print("", *markdown(head, list(beside_scann(data, options.turns))), sep="\n")
    head = ["copy", "input MB", "index MB", "peak above both MB", "of the input"]
    print(*markdown(head, list(memory(data))), sep="\n")


if __name__ == "__main__":
    main()
