"""How close the kernels of a search come to what the processor can do, and where a query's time goes.

    python benchmarks/kernels.py [--data glove-100-angular] [--clock 3.24] [--width 256]

The limit of the scan is two shuffles per cycle, of 256 bits or of the `width` that the processor does at that rate: 64
lookups. That of centroid scores is as many multiply-adds (two vpmaddubsw of 32 products each, or vpdpbusd). Figures are
the best of many short runs on one pinned core: a shared host only ever makes it worse. `clock` is the processor's
rate in GHz while it runs vector code, which no counter tells on a virtual machine.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from aniso import _core, datasets
from aniso.index import Index, build
from aniso.layout import pack_centroids

BLOCK, SUBSPACES, GROUP = 32, 50, 10
MOST = 1 << 16  # points of one call
NEVER = 60_000  # no sum gets there: lookups alone are timed
SETTINGS = ((26, 60), (50, 90), (175, 160))  # partitions, candidates: recall 0.90, 0.95, 0.99 on glove-100-angular


def best(call: Callable[[], object], seconds: float = 1.5) -> float:
    """The shortest time of one call."""
    shortest, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest


def scan_one(
    codes: NDArray[np.uint8], tables: NDArray[np.uint8], parts: list[tuple[int, int]], hits: NDArray[np.uint32]
) -> None:
    for first, count in parts:
        _core.scan(codes, tables, GROUP, first, count, NEVER, hits)


def scan_four(
    codes: NDArray[np.uint8],
    tables: NDArray[np.uint8],
    parts: list[tuple[int, int]],
    least: NDArray[np.uint32],
    hits: NDArray[np.uint32],
) -> None:
    for first, count in parts:
        _core.scan_four(codes, tables, GROUP, first, count, least, hits)


def scan(clock: float, limit: float) -> Iterator[str]:
    rng = np.random.default_rng(0)
    tables = rng.integers(0, 25, (4, SUBSPACES, 16), dtype=np.uint8)
    least = np.full(4, NEVER, np.uint32)
    yield f"| codes | queries at a time | ns per point and query | lookups per cycle | of {limit:.0f} |"
    yield "|---|---|---|---|---|"
    for kilobytes in (200, 8_000, 64_000):
        blocks = kilobytes * 1000 // (SUBSPACES // 2 * BLOCK)
        codes = rng.integers(0, 256, (blocks, SUBSPACES // 2, BLOCK), dtype=np.uint8)
        n = blocks * BLOCK
        hits = np.empty((4, n, 2), np.uint32)
        parts = [(first, min(MOST, n - BLOCK * first)) for first in range(0, blocks, MOST // BLOCK)]
        one = best(partial(scan_one, codes, tables[0], parts, hits[0]))
        four = best(partial(scan_four, codes, tables, parts, least, hits)) / 4
        for queries, took in ((1, one), (4, four)):
            rate = n * SUBSPACES / (took * clock * 1e9)
            yield f"| {kilobytes:,} kB | {queries} | {took / n * 1e9:.2f} | {rate:.1f} | {rate / limit:.2f} |"


def centroids(clock: float, limit: float) -> Iterator[str]:
    rng = np.random.default_rng(0)
    yield f"| centroids x dimensions | us | multiply-adds per cycle | of {limit:.0f} |"
    yield "|---|---|---|---|"
    for p in (500, 2000, 4000):
        packed = pack_centroids(rng.integers(-63, 64, (p, 100)).astype(np.int8))
        query = rng.integers(0, 128, 4 * packed.shape[1]).astype(np.uint8)
        sums = np.zeros(8 * len(packed), np.int32)
        scales = np.ones((2, 8 * len(packed)), np.float32)
        seconds = []
        for times in (1, 101):  # the checks of the binding, once per call, take longer than the scores
            blocks = np.tile(np.arange(len(packed), dtype=np.uint32), times)
            scores, order = np.empty(8 * len(blocks), np.int32), np.empty(8 * len(blocks), np.float32)
            call = partial(_core.score_centroids, query, packed, sums, scales, 1.0, blocks, scores, order)
            seconds.append(best(call))
        took = (seconds[1] - seconds[0]) / 100
        rate = p * 100 / (took * clock * 1e9)
        yield f"| {p} x 100 | {took * 1e6:.2f} | {rate:.1f} | {rate / limit:.2f} |"


def stages(name: str, partitions: int, rescore: str) -> Iterator[str]:
    data = datasets.load(name)
    index: Index = build(data.points, metric=data.metric, recall=None, partitions=partitions, rescore=rescore)
    queries = np.ascontiguousarray(data.queries[np.random.default_rng(1).permutation(len(data.queries))[:1000]])
    searcher = index._store.searcher
    width = data.points.shape[1] * {"float32": 4, "float16": 2, "int8": 1}[rescore]
    yield "| partitions, candidates | us | route | tables | scan | rescore | points | ns per point | rescored GB/s |"
    yield "|---|---|---|---|---|---|---|---|---|"
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for looked, kept in SETTINGS:
        runs = [searcher.profile(queries, 10, looked, kept) for _ in range(12)]
        names = ("prepare", "route", "tables", "scan", "rescore")
        least = min(runs, key=lambda run: sum(run[stage] for stage in names))
        us = {stage: least[stage] / len(queries) * 1e6 for stage in names}
        total, points = sum(us.values()), least["scanned"] / len(queries)
        cells = [f"{us[stage]:.1f} ({us[stage] / total:.0%})" for stage in names[1:]]
        cells += [f"{points:,.0f}", f"{us['scan'] / points * 1e3:.2f}", f"{kept * width / us['rescore'] / 1e3:.1f}"]
        yield f"| {looked}, {kept} | {total:.1f} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="glove-100-angular")
    parser.add_argument("--partitions", type=int, default=4000)
    parser.add_argument("--rescore", default="float16")
    parser.add_argument("--clock", type=float, default=3.24, help="GHz")
    parser.add_argument("--width", type=int, default=256, help="bits that each of two shuffles in a cycle works on")
    options = parser.parse_args()
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    limit = 2 * options.width / 8  # lookups, or multiply-adds, per cycle
    for title, lines in (("The scan", scan(options.clock, limit)), ("Centroids", centroids(options.clock, limit))):
        print(f"## {title}\n", *lines, "", sep="\n")
    os.sched_setaffinity(0, cores)
    print("## Where a query's time goes\n", *stages(options.data, options.partitions, options.rescore), sep="\n")


if __name__ == "__main__":
    main()
