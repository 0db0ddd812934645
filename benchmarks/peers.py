"""aniso and its peers on an ann-benchmarks data set: recall@10 against queries per second, in one run.

    python benchmarks/peers.py glove-100-angular --mode single     single queries, one core, one thread
    python benchmarks/peers.py glove-100-angular --mode batch      all queries in one call, two threads
    python benchmarks/peers.py glove-100-angular --report          tables and plots in benchmarks/results/
    options: --libraries aniso:3,scann (of aniso three builds)   --quick   --resume
             --points 20000 (a subset, its truth by brute force)

Method
- Builds: each in a process of its own with all cores, so that a crash or a time-out costs that build alone. Peak memory
  is the high-water mark of that process above what it held with the input loaded. Saved under out/peers-cache/ by
  library version and settings, and loaded from there by both modes; index bytes are those of the saved files (aniso:
  of the arrays that the searcher reads).
- Rough pass: the whole grid of aniso/experiments/peers with a few random queries, to find recall and rough speed. A
  series of rising cost ends when recall passes 0.998 or stands still, or falls far behind the library's own best.
- Trial: of each library the four best points of each of 15 ranges of recall (0.85 to 0.995), twice more, in turns.
- Precise pass: by the median of these three the two best of each range, in rounds: within a round the libraries take
  turns point by point, in an order shuffled anew each round, so that noise hits all alike. A turn lasts 0.2 s at least.
  Speed is the best of the rounds; the medians are in the report too. Earlier passes choose points and are not reported.
- Single: the process is pinned to one core, every thread pool has one thread, and queries go one at a time through the
  library's ordinary Python call. Batch: two threads, one call. Setting knobs and reading ids is off the clock.
- Cosine: points and queries are normalised off the clock for libraries without cosine of their own.
- Recall@10 counts the answers among the file's ten neighbours; ids out of range or repeated count for nothing.
- Per-call overhead: a query for the best of 256 points, cheapest knobs.
- Every measurement is appended to out/peers-<dataset>-<mode>.jsonl at once: Ctrl-C loses nothing, --resume goes on.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from peers_builds import THREAD_VARIABLES, Data, K, build_here, ensure_built, prepare, unit
from peers_log import OUT, Log, Row, identity, read, say
from peers_report import report

from aniso.experiments.peers import LIBRARIES, Knobs, Library, Settings
from aniso.experiments.peers.curves import front, recall

LOW, HIGH = 0.85, 0.995  # recalls between which speed is measured precisely
TRIAL, PRECISE = 4, 2  # points of each range of recall that get a trial, and that are measured precisely
TURN = 0.2  # seconds a turn lasts at least
SLOW = 1.0  # seconds for the rough queries at which a series ends


class Meter:
    """Times one index: in single mode query by query, in batch mode all at once."""

    def __init__(self, data: Data, mode: str, threads: int) -> None:
        self.n, self.mode, self.threads, self.metric = data.n, mode, threads, data.metric
        self.raw, self.unit = data.queries, unit(data.queries) if data.metric == "cosine" else data.queries
        self.truth = data.truth

    def queries(self, index: Library, chosen: NDArray[np.int64]) -> Any:
        x = np.ascontiguousarray((self.unit if index.unit else self.raw)[chosen])
        if self.mode == "batch":
            return x
        return [row[None] if index.row else row for row in x]

    def measure(
        self, index: Library, knobs: Knobs, chosen: NDArray[np.int64], queries: Any, seconds: float, check: bool
    ) -> tuple[float, float]:
        """Recall (if asked for) and queries per second; the search that gives recall also warms up."""
        if self.mode == "batch":
            search = index.batch(K, knobs, self.threads)
            answer = search(queries if check else queries[:500])
            found: Iterable[NDArray[Any]] = index.ids_of_batch(answer, K) if check else ()
        else:
            search = index.one(K, knobs)
            warm = queries if check else queries[:50]
            found = [index.ids_of_one(search(query)) for query in warm]
        reached = recall(found, self.truth[chosen], self.n) if check else float("nan")
        done, start = 0, time.perf_counter()
        while True:
            if self.mode == "batch":
                search(queries)
            else:
                for query in queries:
                    search(query)
            done += len(chosen)
            taken = time.perf_counter() - start
            if taken >= seconds:
                break
        index.rest()
        return reached, done / taken


def overhead(kind: type[Library], data: Data) -> float:
    """Microseconds of a query for the best of 256 points."""
    points = np.load(data.folder / f"{data.inputs(kind)}.npy", mmap_mode="r")[:256].copy()
    settings, knobs = kind.tiny()
    queries = data.queries[:500] if data.metric != "cosine" else unit(data.queries[:500])
    with tempfile.TemporaryDirectory() as scratch:
        search = kind.build(points, data.metric, settings, 1, Path(scratch)).one(1, knobs)
        rows = [row[None] if kind.row else row for row in queries]
        best = float("inf")
        for _ in range(20):
            start = time.perf_counter()
            for row in rows:
                search(row)
            best = min(best, (time.perf_counter() - start) / len(rows))
    return best * 1e6


def choose(rows: Sequence[Row], each: int) -> list[Row]:
    """The points worth a closer look: the best few of every narrow range of recall, and one beyond each end.

    Within a range, speeds are compared as if all had the same recall: a query takes about as long as the square root of
    the odds. A front taken from single noisy speeds would instead hang on the luckiest points of the largest grid.
    """

    def odds(row: Row) -> float:
        return float(row["recall"] / max(1 - row["recall"], 1e-4))

    def merit(row: Row) -> float:
        return float(row["qps"] * np.sqrt(odds(row)))

    best = front(rows)
    below = [row for row in best if row["recall"] < LOW][-1:]
    above = [row for row in best if row["recall"] > HIGH][:1]
    ranges: dict[int, list[Row]] = {}
    for row in rows:
        if LOW <= row["recall"] <= HIGH:
            ranges.setdefault(int(4 * np.log(odds(row))), []).append(row)
    kept = [sorted(group, key=merit, reverse=True)[:each] for _, group in sorted(ranges.items())]
    return below + [row for group in kept for row in group] + above


@dataclass(frozen=True)
class Effort:
    rough_queries: int
    queries: int
    rounds: int
    builds: int  # of each library, most
    knobs: int  # every how many of a series

    @classmethod
    def of(cls, mode: str, quick: bool, rounds: int | None, builds: int | None, knobs: int | None) -> Effort:
        if quick:
            return cls(200 if mode == "single" else 500, 500, rounds or 2, builds or 1, knobs or 2)
        rough, queries = (400, 2000) if mode == "single" else (1000, 1 << 30)
        return cls(rough, queries, rounds or 7, builds or 99, knobs or 1)


def run(
    data: Data, names: dict[str, int | None], log: Log, mode: str, effort: Effort, limit: float, retry: bool
) -> None:
    threads = 1 if mode == "single" else 2
    meter = Meter(data, mode, threads)
    order = np.random.default_rng(1).permutation(len(data.queries))
    rough, precise = np.sort(order[: effort.rough_queries]), np.sort(order[: effort.queries])
    usable = [name for name in names if fit(data, name, log)]
    grid = [
        (name, settings)
        for name in usable
        for settings in LIBRARIES[name].builds(data.n, data.d, data.metric)[: names[name] or effort.builds]
    ]

    built: list[tuple[str, Settings, Path]] = []
    for number, (name, settings) in enumerate(grid):
        start = time.perf_counter()
        folder, row = ensure_built(data, name, settings, limit, retry)
        took = time.perf_counter() - start
        entry = {"kind": "build", "library": name, "settings": settings, **row}
        if not any(identity(old) == identity(entry) for old in log.of("build")):
            log.write(entry)
        outcome = row.get("failed") or f"{row['seconds']:.1f} s, {row['bytes'] / 1e6:.1f} MB"
        source = "cached" if took < 1 else "built"
        say(f"build {number + 1}/{len(grid)} {name} {settings}: {source}, {outcome}")
        if "failed" not in row:
            built.append((name, settings, folder))

    started = time.perf_counter()
    finished = {identity(row) for row in log.of("swept")}
    for number, (name, settings, folder) in enumerate(built):
        if identity({"library": name, "settings": settings}) in finished:
            continue
        kind = LIBRARIES[name]
        try:
            if mode == "single" and not any(row["library"] == name for row in log.of("overhead")):
                log.write({"kind": "overhead", "library": name, "us": overhead(kind, data)})
            index = kind.load(folder, data.metric, settings, data.d)
            count = sweep(index, name, settings, meter, rough, effort, data.n, log)
        except Exception as error:
            log.write({"kind": "failure", "library": name, "settings": settings, "why": repr(error)[:400]})
            say(f"rough {name} {settings}: {error!r}")
            continue
        log.write({"kind": "swept", "library": name, "settings": settings})
        elapsed = time.perf_counter() - started
        left = elapsed / (number + 1) * (len(built) - number - 1)
        say(f"rough {number + 1}/{len(built)} {name} {settings}: {count} points, about {left / 60:.1f} min left")

    rough_rows = {identity(row): row for row in log.of("rough")}.values()
    folders = {identity({"library": name, "settings": settings}): folder for name, settings, folder in built}
    mine = {name: [row for row in rough_rows if row["library"] == name] for name in usable}
    indexes: dict[str, Library] = {}
    trials = {name: choose(rows, TRIAL) for name, rows in mine.items() if rows}
    load(data, trials, folders, indexes)
    rounds("trial", 2, trials, indexes, meter, rough, 0.05, log)
    speeds: dict[str, list[float]] = {}
    for row in [*rough_rows, *log.of("trial")]:
        speeds.setdefault(identity(row), []).append(row["qps"])
    settled = {n: [{**r, "qps": float(np.median(speeds[identity(r)]))} for r in rows] for n, rows in trials.items()}
    chosen = {name: choose(rows, PRECISE) for name, rows in settled.items()}
    used = {identity({"library": name, "settings": row["settings"]}) for name in chosen for row in chosen[name]}
    for key in set(indexes) - used:
        del indexes[key]
    rounds("turn", effort.rounds, chosen, indexes, meter, precise, TURN, log)


def load(data: Data, chosen: dict[str, list[Row]], folders: dict[str, Path], indexes: dict[str, Library]) -> None:
    for name, rows in chosen.items():
        for row in rows:
            key = identity({"library": name, "settings": row["settings"]})
            if key not in indexes:
                indexes[key] = LIBRARIES[name].load(folders[key], data.metric, row["settings"], data.d)


def fit(data: Data, name: str, log: Log) -> bool:
    """Whether the library can be imported and knows the metric; if not, the reason is logged."""
    kind = LIBRARIES[name]
    why = kind.unfit(data.metric)
    if not why:
        try:
            importlib.import_module(kind.module)
        except ImportError as error:
            why = f"cannot be imported: {error}"
    if why and not any(row["library"] == name for row in log.of("skipped")):
        log.write({"kind": "skipped", "library": name, "why": why})
        say(f"{name} is left out: {why}")
    return not why


def sweep(
    index: Library,
    name: str,
    settings: Settings,
    meter: Meter,
    chosen: NDArray[np.int64],
    effort: Effort,
    n: int,
    log: Log,
) -> int:
    """The rough pass over the knobs of one build; how many points it measured."""
    queries = meter.queries(index, chosen)
    known = {identity(row): row for row in log.of("rough")}
    best = [(row["recall"], row["qps"]) for row in known.values() if row["library"] == name]
    count = 0
    for series in index.series(settings, n):
        still, behind, last = 0, 0, 0.0
        for knobs in series[:: effort.knobs]:
            row = {"kind": "rough", "library": name, "settings": settings, "knobs": knobs}
            if identity(row) in known:
                reached, qps = known[identity(row)]["recall"], known[identity(row)]["qps"]
            else:
                reached, qps = meter.measure(index, knobs, chosen, queries, 0.01, check=True)
                log.write({**row, "recall": reached, "qps": qps, "queries": len(chosen)})
                count += 1
            best.append((reached, qps))
            # Far slower than another point of the library with no less recall, and gaining little: hopeless.
            beaten = any(other >= reached and speed > 2.5 * qps for other, speed in best)
            hopeless = (beaten and reached < last + 0.01) or len(chosen) / qps > SLOW
            behind = behind + 1 if hopeless else 0  # twice in a row: once may be a stall of the machine
            still = still + 1 if reached < last + 0.0005 else 0
            last = max(last, reached)
            if reached > 0.998 or still == 5 or behind == 2:
                break
    return count


def rounds(
    kind: str,
    count: int,
    chosen: dict[str, list[Row]],
    indexes: dict[str, Library],
    meter: Meter,
    queries: NDArray[np.int64],
    seconds: float,
    log: Log,
) -> None:
    """Libraries take turns, round after round."""
    inputs: dict[str, Any] = {}
    total = sum(len(rows) for rows in chosen.values())
    say(f"{kind}s: {total} points of {len(chosen)} libraries in {count} rounds; {len(indexes)} indexes in memory")
    done = {(identity(row), row["round"]) for row in log.of(kind)}
    recalls = {identity(row): row["recall"] for row in log.of(kind)}
    for number in range(count):
        start = time.perf_counter()
        shuffler = random.Random(number)
        hands = [shuffler.sample(rows, len(rows)) for rows in chosen.values()]
        shuffler.shuffle(hands)
        for row in (row for layer in itertools.zip_longest(*hands) for row in layer if row is not None):
            name = row["library"]
            point = {"kind": kind, **{key: row[key] for key in ("library", "settings", "knobs")}}
            key = identity(point)
            if (key, number) in done:
                continue
            index = indexes[identity({"library": name, "settings": row["settings"]})]
            if name not in inputs:
                inputs[name] = meter.queries(index, queries)
            reached, qps = meter.measure(index, row["knobs"], queries, inputs[name], seconds, check=key not in recalls)
            recalls.setdefault(key, reached)
            log.write({**point, "round": number, "recall": recalls[key], "qps": qps, "queries": len(queries)})
        took = time.perf_counter() - start
        left = took * (count - number - 1)
        say(f"{kind} round {number + 1}/{count}: {took:.0f} s, about {left / 60:.1f} min left")


def with_threads(threads: int) -> None:
    """Start over with every thread pool set to that many threads: they are read when a library is imported."""
    if os.environ.get("PEERS_THREADS") == str(threads):
        return
    os.environ.update({**dict.fromkeys(THREAD_VARIABLES, str(threads)), "PEERS_THREADS": str(threads)})
    os.environ["OMP_WAIT_POLICY"] = "passive"  # no thread spins while another library is measured
    os.execv(sys.executable, [sys.executable, *sys.argv])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?")
    parser.add_argument("--mode", choices=("single", "batch"), default="single")
    parser.add_argument(
        "--libraries",
        default=",".join(LIBRARIES),
        help="some of " + ",".join(LIBRARIES) + ", each perhaps with :builds",
    )
    parser.add_argument("--points", type=int, help="a random subset of so many points")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--builds", type=int, help="most builds of each library")
    parser.add_argument("--knobs", type=int, help="every how many of the knobs")
    parser.add_argument("--core", type=int, default=0, help="the core of single mode")
    parser.add_argument("--build-limit", type=float, default=1800, help="seconds a build may take")
    parser.add_argument("--quick", action="store_true", help="one build of each library, fewer knobs and queries")
    parser.add_argument("--resume", action="store_true", help="go on with the last run")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--run", help="for --report: this run alone")
    parser.add_argument("--build", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.build:
        build_here(json.loads(options.build))
        return
    if not options.dataset:
        parser.error("name a data set")
    if options.report:
        report(options.dataset if not options.points else f"{options.dataset}-{options.points}", options.run)
        return
    names: dict[str, int | None] = {}  # and how many builds of each
    for word in options.libraries.split(","):
        name, _, count = word.partition(":")
        names[name] = int(count) if count else None
    if unknown := [name for name in names if name not in LIBRARIES]:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(LIBRARIES)}")
    with_threads(1 if options.mode == "single" else 2)
    data = prepare(options.dataset, options.points)
    path = OUT / f"peers-{data.name}-{options.mode}.jsonl"
    runs = [row["run"] for row in read(path)]
    log = Log(path, max(runs) if options.resume and runs else time.strftime("%Y%m%d-%H%M%S"))
    if options.mode == "single":
        os.sched_setaffinity(0, {options.core})
    effort = Effort.of(options.mode, options.quick, options.rounds, options.builds, options.knobs)
    try:
        run(data, names, log, options.mode, effort, options.build_limit, retry=not options.resume)
    except KeyboardInterrupt:
        say(f"stopped; go on with --resume, or see what there is with --report ({path})")
        sys.exit(130)


if __name__ == "__main__":
    main()
