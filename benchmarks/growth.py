"""How aniso grows with the number of points: speed at recall 0.95, build seconds, bytes, and which stage grows.

    python benchmarks/growth.py                        10k, 30k, 100k, all of GloVe, and 3 million synthetic points
    python benchmarks/growth.py --sizes 10000,30000    some sizes (above GloVe's: synthetic)

Method
- Up to 331,479 points: random subsets of glove-100-angular, truth by brute force on the subset.
- Above: a mixture model with GloVe's spectrum. Each point is a GloVe point of norm 1, all used equally often, plus
  Gaussian noise, normalised. The noise has a tenth (--noise) of the second moments of GloVe's own points, so that the
  sum has their eigenvectors and shares. Queries are made the same way from GloVe's queries, which are no parents of
  points. How much noise: 331,479 points made from a ninth of GloVe (--sizes 331479 --parents 36831), as 3 million are
  from all of it, should cost about what GloVe's 331,479 cost; benchmarks/README.md has the figures.
- At each size the index has default settings (but for --spill, --rescore). For each number of candidates the fewest
  partitions that reach recall@10 of 0.95 are found by bisection; the fastest pair is measured: single queries, pinned
  to one core, the best of 7 passes. All of it with the same queries, so that recall is equal at all sizes.
- Builds use all cores. The shares of the stages are those that the core's profile reports, where it has one.
- The exponent is the slope of log time over log n, by least squares.
Truths and finished sizes are kept in out/; --again measures anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plot
from numpy.typing import NDArray

from aniso import datasets
from aniso.experiments.peers import Aniso
from aniso.index import Index, build

OUT = Path(__file__).resolve().parent.parent / "out"
RESULTS = Path(__file__).resolve().parent / "results"
K = 10
TARGET = 0.95
SIZES = (10_000, 30_000, 100_000, 331_479, 3_000_000)
CANDIDATES = (30, 45, 60, 90, 130, 200, 300)

F32 = NDArray[np.float32]
Ids = NDArray[np.int64]
Row = dict[str, Any]


def unit(x: F32) -> F32:
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), np.float32)


def top(points: F32, queries: F32, k: int) -> Ids:
    """The k best points of each query by inner product, in blocks of points."""
    best = np.empty((len(queries), 0), np.int64)
    scores = np.empty((len(queries), 0), np.float32)
    columns = max(k, (1 << 26) // len(queries))
    for first in range(0, len(points), columns):
        block = queries @ points[first : first + columns].T
        found = np.argpartition(-block, min(k, block.shape[1]) - 1, axis=1)[:, :k]
        scores = np.concatenate([scores, np.take_along_axis(block, found, axis=1)], axis=1)
        best = np.concatenate([best, found + first], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        scores, best = np.take_along_axis(scores, order, axis=1), np.take_along_axis(best, order, axis=1)
    return best


def synthetic(points: F32, queries: F32, n: int, noise: float) -> tuple[F32, F32]:
    """n points of the mixture model, and queries."""
    rng = np.random.default_rng(7)
    spectrum = points.T.astype(np.float64) @ points / len(points)  # of trace 1
    root = np.asarray(np.linalg.cholesky(noise * spectrum).T, np.float32)
    made = np.empty((n, points.shape[1]), np.float32)
    parents = np.resize(rng.permutation(len(points)), n)
    for first in range(0, n, 100_000):
        own = points[parents[first : first + 100_000]]
        made[first : first + 100_000] = unit(own + rng.standard_normal(own.shape, np.float32) @ root)
    return made, unit(queries + rng.standard_normal(queries.shape, np.float32) @ root)


def vectors(n: int, count: int, noise: float, parents: int | None) -> tuple[F32, F32, Ids]:
    """Points, queries and the true neighbours for a size; the truth from out/ if it is there."""
    data = datasets.load("glove-100-angular")
    points, queries = unit(data.points), unit(data.queries)
    queries = queries[np.random.default_rng(5).permutation(len(queries))[:count]]
    if parents:
        points = points[np.sort(np.random.default_rng(8).permutation(len(points))[:parents])]
    if n > len(points):
        points, queries = synthetic(points, queries, n, noise)
    elif n < len(points):
        points = points[np.sort(np.random.default_rng(6).permutation(len(points))[:n])]
    digest = hashlib.sha256(points[:: max(1, n // 1000)].tobytes() + queries.tobytes()).hexdigest()[:10]
    path = OUT / f"growth-truth-{n}-{digest}.npy"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        truth = top(points, queries, K)
        np.save(OUT / "growth-part.npy", truth)
        os.replace(OUT / "growth-part.npy", path)
    return points, queries, np.load(path)


def recall(index: Index, queries: F32, truth: Ids, partitions: int, candidates: int) -> float:
    found = index.search(queries, K, partitions=partitions, candidates=candidates).ids
    pairs = zip(found.tolist(), truth.tolist(), strict=True)
    return sum(len(set(ids) & set(best)) for ids, best in pairs) / truth.size


def fewest_partitions(index: Index, queries: F32, truth: Ids, candidates: int) -> int | None:
    """The fewest partitions that reach the target with so many candidates."""
    high, most = 8, int(index.config.partitions or 1)
    while recall(index, queries, truth, min(high, most), candidates) < TARGET:
        if high >= most:
            return None
        high *= 2
    low, high = (high // 2 if high > 8 else 0), min(high, most)
    while high - low > 1:
        middle = (low + high) // 2
        if recall(index, queries, truth, middle, candidates) < TARGET:
            low = middle
        else:
            high = middle
    return high


def seconds_per_query(index: Index, queries: F32, knobs: dict[str, int], passes: int) -> float:
    rows, best = list(queries), float("inf")
    for _ in range(passes):
        start = time.perf_counter()
        for row in rows:
            index.search(row, K, **knobs)
        best = min(best, (time.perf_counter() - start) / len(rows))
    return best


def stages(index: Index, queries: F32, knobs: dict[str, int]) -> dict[str, float]:
    """The share of each stage in a query's time, if the core tells it."""
    searcher = index._store.searcher
    seconds = searcher.profile(queries, K, knobs["partitions"], knobs["candidates"])
    seconds = {name: float(value) for name, value in seconds.items() if name not in ("scanned", "hits")}
    total = sum(seconds.values())
    return {name: value / total for name, value in seconds.items()}


def measure(n: int, count: int, noise: float, parents: int | None, core: int, settings: dict[str, Any]) -> Row:
    """All that is reported of one size."""
    cores = os.sched_getaffinity(0)
    points, queries, truth = vectors(n, count, noise, parents)
    nearest = np.einsum("qd,qd->q", queries, points[truth[:, 0]]).mean()
    print(f"{n:,} points: truth known; mean cosine of the nearest {nearest:.3f}", flush=True)
    start = time.perf_counter()
    index = build(points, metric="cosine", **settings)
    index.search(queries[0], K)  # the first search arranges the partitions
    seconds = time.perf_counter() - start
    print(f"{n:,} points: built in {seconds:.1f} s", flush=True)
    tried: list[tuple[float, dict[str, int]]] = []
    try:
        for candidates in CANDIDATES:
            partitions = fewest_partitions(index, queries, truth, candidates)
            if partitions:
                knobs = {"partitions": partitions, "candidates": candidates}
                os.sched_setaffinity(0, {core})
                tried.append((seconds_per_query(index, queries, knobs, 2), knobs))
                os.sched_setaffinity(0, cores)
        if not tried:
            raise SystemExit(f"{n} points: no setting reaches recall {TARGET}")
        _, knobs = min(tried, key=lambda pair: pair[0])
        os.sched_setaffinity(0, {core})
        best = seconds_per_query(index, queries, knobs, 7)
        shares = stages(index, queries, knobs)
    finally:
        os.sched_setaffinity(0, cores)
    return {
        "n": n,
        "us": best * 1e6,
        "recall": recall(index, queries, truth, **knobs),
        "in": index.config.partitions,
        **knobs,
        "build s": seconds,
        "bytes": index.info()["bytes"],
        "stages": shares,
        "load": os.getloadavg()[0],
    }


def slope(n: Sequence[float], values: Sequence[float]) -> float:
    return float(np.polyfit(np.log(n), np.log(values), 1)[0]) if len(n) > 1 else float("nan")


def report(rows: list[Row]) -> str:
    n = [row["n"] for row in rows]
    exponent = slope(n, [row["us"] for row in rows])
    lines = ["# Growth of aniso with the number of points", "", "Method: the head of benchmarks/growth.py.", ""]
    lines += [f"Time per query at recall {TARGET} grows like **n^{exponent:.2f}** (at most sqrt(n) is asked for);"]
    lines += [f"build time like n^{slope(n, [r['build s'] for r in rows]):.2f}, ", ""]
    lines[-2] += f"bytes like n^{slope(n, [r['bytes'] for r in rows]):.2f}."
    lines += ["| points | QPS | us | recall | partitions searched | candidates | build s | MB | bytes per point |"]
    lines += ["|---" * 9 + "|"]
    for row in rows:
        cells = [f"{row['n']:,}", f"{1e6 / row['us']:,.0f}", f"{row['us']:.1f}", f"{row['recall']:.4f}"]
        cells += [f"{row['partitions']} of {row['in']}", str(row["candidates"]), f"{row['build s']:.1f}"]
        cells += [f"{row['bytes'] / 1e6:.1f}", f"{row['bytes'] / row['n']:.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    names = list(rows[0]["stages"])
    if names and all(row["stages"] for row in rows):
        lines += ["", "Microseconds in each stage (share), and the exponent of each:", ""]
        lines += ["| points | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
        for row in rows:
            parts = [f"{row['us'] * row['stages'][name]:.1f} ({row['stages'][name]:.0%})" for name in names]
            lines.append(f"| {row['n']:,} | " + " | ".join(parts) + " |")
        powers = [slope(n, [max(r["us"] * r["stages"][name], 1e-3) for r in rows]) for name in names]
        lines.append("| exponent | " + " | ".join(f"{power:.2f}" for power in powers) + " |")
    lines += ["", "Sizes above 331,479 are synthetic.", "", "![growth](growth.png)", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--queries", type=int, default=4000, help="all of them for recall and for time")
    parser.add_argument(
        "--noise", type=float, default=0.1, help="of synthetic points, in parts of GloVe's second moments"
    )
    parser.add_argument("--parents", type=int, help="so many of GloVe's points are parents of synthetic ones")
    parser.add_argument("--spill", type=float)
    parser.add_argument("--rescore", default="float16")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="measure anew what out/growth.jsonl holds")
    options = parser.parse_args()
    settings = {"rescore": options.rescore} | ({} if options.spill is None else {"spill": options.spill})

    asked = {**settings, "queries": options.queries, "noise": options.noise, "parents": options.parents}
    path, known = OUT / "growth.jsonl", {}
    version = Aniso.version()
    if path.exists() and not options.again:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if [row["version"], row.get("asked")] == [version, asked]:
                known[row["n"]] = row
    rows = []
    for n in (int(size) for size in options.sizes.split(",")):
        if n not in known:
            row = measure(n, options.queries, options.noise, options.parents, options.core, settings)
            known[n] = {**row, "version": version, "asked": asked}
            OUT.mkdir(exist_ok=True)
            with open(path, "a") as file:
                file.write(json.dumps(known[n]) + "\n")
        rows.append(known[n])
        print(f"{n:,} points: {rows[-1]['us']:.1f} us at recall {rows[-1]['recall']:.4f}", flush=True)
    print(report(rows))
    if vars(options) | {"core": 0, "again": False} == vars(parser.parse_args([])):  # the run that documents show
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "growth.md").write_text(report(rows))
        plot.growth(rows, slope([row["n"] for row in rows], [row["us"] for row in rows]), RESULTS / "growth.png")


if __name__ == "__main__":
    main()
