"""Figure 4b: queries per second against recall 10@10, aniso and the other libraries, one query at a time."""

from __future__ import annotations

import importlib
import os
import platform
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aniso import datasets
from aniso.exact import ExactIndex
from aniso.experiments import charts
from aniso.experiments.measure import Size
from aniso.experiments.peers import BASELINES_MISSING, LIBRARIES, MISSING, Library
from aniso.experiments.peers.curves import front, recall, speed_at
from aniso.experiments.report import Claim, Report, Row, table
from aniso.progress import Progress

__all__ = ["run"]

K = 10
POINTS = 30_000
SET, METRIC = "glove-100-angular", "cosine"
TARGETS = (0.8, 0.9, 0.95, 0.99)
CLAIMED = TARGETS[1:]
EACH = 8  # points of a library's front that are measured in turns
_WARM = 50  # queries before a clock starts
SERIES = 6  # of a library's series of knobs that are tried

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Task:
    """The points as given and divided by their norms, and so the queries; the ten best points of every query."""

    points: dict[bool, F32]
    queries: dict[bool, F32]
    truth: NDArray[np.int64]


def run(size: Size, progress: Progress) -> Report:
    """Build every library that can be imported, sweep its knobs, then measure the best of them in turns."""
    data = datasets.load(SET)
    rng = np.random.default_rng(0)
    n, q = min(len(data.points), size.pick(POINTS, 1500)), size.pick(1000, 60)
    at = np.sort(rng.choice(len(data.points), n, replace=False))
    asked = np.sort(rng.choice(len(data.queries), q, replace=False))
    unit_points, unit_queries = data.unit()
    task = Task(
        {False: np.ascontiguousarray(data.points[at]), True: np.ascontiguousarray(unit_points[at])},
        {False: np.ascontiguousarray(data.queries[asked]), True: np.ascontiguousarray(unit_queries[asked])},
        ExactIndex(unit_points[at]).search(unit_queries[asked], K).ids,
    )
    missing: list[str] = []
    builds: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        indexes = built(task, Path(scratch), builds, missing, progress)
        rough = size.pick(250, 20)
        chosen: dict[str, list[Row]] = {}
        for number, (name, index) in enumerate(indexes.items()):
            progress(f"knobs, {index.name}", number, len(indexes))
            chosen[name] = spread(front(swept(index, builds[number]["settings"], task, rough, size.pick(2, 6))))
        rows = in_turns(indexes, chosen, task, size.pick(5, 1), progress)
    missing += [f"{name}: {why}." for name, why in [*MISSING.items(), *BASELINES_MISSING.items()]]
    return report(rows, builds, task, missing, size)


def built(task: Task, scratch: Path, builds: list[Row], missing: list[str], progress: Progress) -> dict[str, Library]:
    """An index of every library, of the first settings of its grid; the reason for one without goes to `missing`."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    indexes: dict[str, Library] = {}
    for number, (name, kind) in enumerate(LIBRARIES.items()):
        progress(f"build, {kind.name}", number, len(LIBRARIES))
        try:
            importlib.import_module(kind.module)
        except ImportError as error:
            missing.append(f"{kind.name}: not installed (`pip install {kind.package}`): {error}.")
            continue
        n, d = task.points[False].shape
        settings = kind.builds(n, d, METRIC)[0]
        folder = scratch / name
        folder.mkdir()
        start = time.process_time()
        try:
            indexes[name] = kind.build(task.points[kind.unit], METRIC, settings, threads, folder)
        except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
            missing.append(f"{kind.name}: its build failed: {error!r}.")
            continue
        seconds = time.process_time() - start
        builds.append({"library": kind.name, "version": version(kind), "settings": settings, "build s": seconds})
    progress("build", len(LIBRARIES), len(LIBRARIES))
    return indexes


def version(kind: type[Library]) -> str:
    """As its package says; aniso's own is the digest of its code."""
    try:
        return kind.version()
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def swept(index: Library, settings: Row, task: Task, queries: int, step: int) -> list[Row]:
    """Recall and speed over the grid: a series ends where it is near 1 or gains no more."""
    rows: list[Row] = []
    listed = list(index.series(settings, len(task.points[False])))
    for series in listed[:: max(1, len(listed) // SERIES)]:
        last = 0.0
        for knobs in series[:: 1 if len(listed) == 1 else step]:
            reached, qps = measured(index, knobs, task, queries)
            rows.append({"knobs": knobs, "recall": reached, "qps": qps})
            if reached > 0.997 or (reached < last + 0.001 and reached > 0.5):
                break
            last = reached
    return rows


def spread(rows: list[Row]) -> list[Row]:
    """At most EACH of a front, evenly over the odds of recall, from 0.6 up where there are such."""
    rows = [row for row in rows if row["recall"] >= 0.6] or rows[-1:]
    if len(rows) <= EACH:
        return rows
    odds = np.log([row["recall"] / max(1 - row["recall"], 1e-3) for row in rows])
    wanted = np.linspace(odds[0], odds[-1], EACH)
    return [rows[i] for i in sorted({int(np.abs(odds - value).argmin()) for value in wanted})]


def measured(index: Library, knobs: Row, task: Task, queries: int, known: float | None = None) -> tuple[float, float]:
    """Recall, unless known, and queries per second of processor time, of the first queries one by one.

    The pass that gives recall warms up; where it is known, a few queries do.
    """
    search = index.one(K, knobs)
    asked = [query[None] if index.row else query for query in task.queries[index.unit][:queries]]
    found = [index.ids_of_one(search(query)) for query in (asked if known is None else asked[:_WARM])]
    start = time.process_time()
    for query in asked:
        search(query)
    seconds = time.process_time() - start
    reached = recall(found, task.truth[:queries], len(task.points[False])) if known is None else known
    return reached, queries / max(seconds, 1e-9)


def in_turns(
    indexes: dict[str, Library], chosen: dict[str, list[Row]], task: Task, rounds: int, progress: Progress
) -> list[Row]:
    """All chosen points with all queries, in an order shuffled anew in every round; the best and the median speed."""
    turns = [(name, row) for name, rows in chosen.items() for row in rows]
    speeds: dict[int, list[float]] = {id(row): [] for _, row in turns}
    recalls: dict[int, float] = {}
    for number in range(rounds):
        order = random.Random(number).sample(turns, len(turns))
        for turn, (name, row) in enumerate(order):
            progress(f"speed, round {number + 1} of {rounds}", turn, len(turns))
            known = recalls.get(id(row))
            recalls[id(row)], qps = measured(indexes[name], row["knobs"], task, len(task.truth), known)
            speeds[id(row)].append(qps)
    progress("speed", rounds, rounds)
    return [
        {
            "library": indexes[name].name,
            "recall": recalls[id(row)],
            "qps": max(speeds[id(row)]),
            "median qps": float(np.median(speeds[id(row)])),
            "knobs": text(row["knobs"]),
        }
        for name, row in turns
    ]


def text(values: Row) -> str:
    """Settings in words."""
    return ", ".join(f"{key} {f'{v:.3g}' if isinstance(v, float) else v}" for key, v in values.items())


def report(rows: list[Row], builds: list[Row], task: Task, missing: list[str], size: Size) -> Report:
    """The page: speeds at equal recall, the fastest settings, and what is missing."""
    curves: dict[str, list[Row]] = {build["library"]: [] for build in builds}
    for row in rows:
        curves[row["library"]].append(row)
    speeds = {name: {target: speed_at(own, target) for target in TARGETS} for name, own in curves.items()}
    ours = LIBRARIES["aniso"].name
    claims = [claim(speeds, ours, target) for target in CLAIMED]
    lines = [speed_row(build, speeds, ours) for build in sorted(builds, key=lambda b: order(speeds[b["library"]]))]
    canvas, axis = charts.figure(width=9, height=5)
    for number, (name, own) in enumerate(sorted(curves.items(), key=lambda item: order(speeds[item[0]]))):
        line = front(own)
        colour = charts.AWARE if name == ours else charts.COLOURS[1 + number % (len(charts.COLOURS) - 1)]
        style = "o-" if number < len(charts.COLOURS) else "s--"
        axis.plot(
            [min(row["recall"], 0.9995) for row in line],
            [row["qps"] for row in line],
            style,
            color=colour,
            linewidth=2.4 if name == ours else 1.2,
            markersize=4.5 if name == ours else 3,
            label=name,
        )
    axis.set_yscale("log")
    charts.tidy(axis, x="recall 10@10", y="queries per second", legend=False)
    axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return Report(
        title="Speed against recall (Figure 4b)",
        paper=(
            "The paper's Figure 4b: queries per second against recall 10@10 on Glove1.2M, one thread of a Xeon W-2135, "
            "for its implementation (ScaNN) and 11 baselines of ann-benchmarks; ScaNN is the fastest at high recall. "
            "The paper shows curves and no numbers."
        ),
        rows=rows,
        figure=canvas,
        tables=[
            "Queries per second at a recall 10@10; in parentheses aniso's speed over the library's:",
            table(lines),
        ],
        claims=claims,
        method=(
            f"{len(task.truth):,} queries of {SET} against {len(task.points[False]):,} of its points, chosen at "
            "random, the truth by exhaustive search; larger grids on all points, for some of the libraries, are in "
            "[the benchmarks](../../benchmarks/README.md#search). One build of each library, with all cores: the "
            f"first of its grid in `aniso.experiments.peers`; build seconds are processor time. Its knobs are swept "
            f"with {size.pick(250, 20)} queries; up to {EACH} points of the front are then measured with all queries, "
            f"in {size.pick(5, 1)} rounds in which the libraries take turns in random order. Speed is the best round "
            f"(the CSV has the median too). Queries go one at a time through the library's ordinary Python call, on "
            f"one thread. Speed is per second of processor time, which is that of the clock on a free core; the "
            f"machine was shared with other work during this run, which disturbs caches and so all speeds. "
            f"Processor: {processor()}. Between measured points the logarithm of speed is taken as linear in recall."
        ),
        differences=DIFFERENCES,
        missing=missing,
    )


def order(speeds: dict[float, tuple[float, str] | None]) -> float:
    """For sorting: the fastest at 0.95 first, then those that do not get there."""
    found = speeds[0.95]
    return -found[0] if found else 0.0


def claim(speeds: dict[str, dict[float, tuple[float, str] | None]], ours: str, target: float) -> Claim:
    """That aniso is the fastest at a recall."""
    own = speeds.get(ours, {}).get(target)
    peers = {name: found[0] for name, own in speeds.items() if name != ours and (found := own[target])}
    best = max(peers, key=lambda name: peers[name], default="")
    said = f"{own[1]}{own[0]:,.0f}" if own else "not reached"
    against = f"against {peers[best]:,.0f} of {best}" if best else "and no other library got there"
    holds = own is not None and own[0] > peers.get(best, 0.0)
    return Claim(f"aniso is the fastest at recall 10@10 of {target:g}", f"{said} {against}", holds)


def speed_row(build: Row, speeds: dict[str, dict[float, tuple[float, str] | None]], ours: str) -> Row:
    """A line of the table."""
    name = build["library"]
    cells: Row = {"library": f"{name} {build['version']}"}
    for target in TARGETS:
        found, own = speeds[name][target], speeds.get(ours, {}).get(target)
        ratio = f" ({own[0] / found[0]:.1f}x)" if own and found and name != ours else ""
        cells[f"at {target:g}"] = f"{found[1]}{found[0]:,.0f}{ratio}" if found else "not reached"
    return {**cells, "build s": f"{build['build s']:.0f}", "settings": text(build["settings"])}


def processor() -> str:
    """The name of the processor, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


DIFFERENCES = (
    "The set is a stand-in and far smaller than the paper's, and every library gets one build where ann-benchmarks has "
    "many, so that the order of the libraries is the result and their speeds are not comparable with published ones. A "
    "library with two knobs (aniso, ScaNN, FAISS with partitions, NGT) has more settings tried than one with a single "
    "knob. The paper does not name its 11 baselines outside of the picture. Of the libraries that ann-benchmarks had "
    "at that time, those that install from PyPI are measured here, with newer ones beside them; the others are named "
    "below."
)
