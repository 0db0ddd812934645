"""aniso tune and bench: what settings give, and how fast that is beside exact search."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from aniso.bench import RECALLS, Line, bench
from aniso.cli.indexes import open_index
from aniso.cli.terminal import Commands, Help, check_plot, print_json, progress, replacing, table
from aniso.datasets import read_vectors
from aniso.tune import Measured

__all__ = ["add_bench", "add_tune", "bench_plot", "bench_table"]

Options = argparse.Namespace


def add_tune(commands: Commands) -> None:
    """aniso tune INDEX"""
    parser = commands.add_parser(
        "tune",
        help="measure which settings reach which recall",
        description="Measure the recall of settings, on your queries or on points of the index, and print the curve:\n"
        "for each k, the cheapest partitions and candidates found for each recall.",
        epilog="examples:\n"
        "  aniso tune words.aniso\n"
        "  aniso tune words.aniso --queries queries.npy --recall 0.99 --save\n"
        "  aniso tune words.aniso --plot curve.png",
        formatter_class=Help,
    )
    parser.add_argument("index", metavar="INDEX", type=Path, help="a file that aniso build wrote")
    parser.add_argument("--queries", metavar="FILE", help="typical queries (points of the index)")
    parser.add_argument(
        "--recall", type=float, default=0.95, metavar="R", help="what searches aim at from now on (0.95)"
    )
    parser.add_argument("--save", action="store_true", help="write the curve and the recall into the index")
    _add_shared(parser)
    parser.set_defaults(run=tune)


def tune(options: Options) -> int:
    """Measure, print, and save where asked."""
    check_plot(options.plot)
    index = open_index(options.index, options.threads)
    queries = None if options.queries is None else read_vectors(options.queries)
    with progress() as show:
        curve = index.tune(queries, recall=options.recall, progress=show)
    if options.save:
        index.save(options.index)
    if options.plot is not None:
        _tune_plot(curve, options.plot)
    if options.json:
        print_json([row._asdict() for row in curve])
    elif curve:
        print(table([[row.k, row.partitions, row.candidates, f"{row.recall:.4f}"] for row in curve], Measured._fields))
    else:
        print(f"{options.index} has one partition: every score is computed, and there is nothing to tune")
    return 0


def add_bench(commands: Commands) -> None:
    """aniso bench INDEX"""
    parser = commands.add_parser(
        "bench",
        help="measure speed and recall against exact search",
        description="Measure speed and recall against exact search among the same points: queries one by one on one\n"
        "core, with percentiles of their latency, then in one batch on all cores.",
        epilog="examples:\n"
        "  aniso bench words.aniso\n"
        "  aniso bench words.aniso --queries queries.npy --recall 0.9 0.99 --plot bench.png\n"
        "  aniso bench small.aniso --points vectors.npy --json",
        formatter_class=Help,
    )
    parser.add_argument("index", metavar="INDEX", type=Path, help="a file that aniso build wrote")
    parser.add_argument("--queries", metavar="FILE", help="queries to ask (points of the index)")
    parser.add_argument("-k", type=int, default=10, metavar="K", help="how many points for each query (10)")
    listed = " ".join(f"{one:g}" for one in RECALLS)
    parser.add_argument("--recall", type=float, nargs="+", default=RECALLS, metavar="R", help=f"to aim at ({listed})")
    parser.add_argument(
        "--points", metavar="FILE", help="the vectors, for the truth about an index with a rounded copy or none"
    )
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="to spend on each measurement (1)")
    _add_shared(parser)
    parser.set_defaults(run=run_bench)


def run_bench(options: Options) -> int:
    """Measure and print."""
    check_plot(options.plot)
    index = open_index(options.index, options.threads)
    with progress() as show:
        lines = bench(
            index,
            None if options.queries is None else read_vectors(options.queries),
            k=options.k,
            recalls=options.recall,
            points=None if options.points is None else read_vectors(options.points),
            seconds=options.seconds,
            threads=options.threads,
            progress=show,
        )
    if options.plot is not None:
        bench_plot(lines, options.plot, f"{options.index.name}: {len(index):,} points of {index.d} dimensions")
    if options.json:
        print_json([line._asdict() for line in lines])
    else:
        print(bench_table(lines))
    return 0


def bench_table(lines: list[Line]) -> str:
    """The measurements as columns."""
    head = ["search", "recall", "queries/s", "p50 us", "p95 us", "p99 us", "batch queries/s", "times exact"]
    slowest = lines[0].single
    rows = [
        [
            line.name,
            f"{line.recall:.3f}",
            f"{line.single:,.0f}",
            f"{line.p50:,.0f}",
            f"{line.p95:,.0f}",
            f"{line.p99:,.0f}",
            f"{line.batch:,.0f}",
            f"{line.single / slowest:.1f}",
        ]
        for line in lines
    ]
    return table(rows, head)


def bench_plot(lines: list[Line], path: Path, title: str) -> None:
    """Recall to the right, speed upwards; exact search is the dashed line."""
    from aniso.experiments.charts import AWARE, PLAIN, figure, tidy

    canvas, axis = figure()
    exact, *found = lines
    found.sort(key=lambda line: line.recall)
    axis.plot([x.recall for x in found], [x.batch for x in found], "s--", color=AWARE, alpha=0.5, label="aniso, batch")
    axis.plot([x.recall for x in found], [x.single for x in found], "o-", color=AWARE, label="aniso, one by one")
    axis.axhline(exact.batch, color=PLAIN, linestyle=":", label="exact search, batch")
    axis.axhline(exact.single, color=PLAIN, linestyle="--", label="exact search, one by one")
    axis.set_yscale("log")
    tidy(axis, title=title, x="recall", y="queries per second")
    _save_plot(canvas, path)


def _tune_plot(curve: list[Measured], path: Path) -> None:
    """Recall over partitions, a line for each k; the candidates stand beside the points."""
    from aniso.experiments.charts import COLOURS, figure, tidy

    canvas, axis = figure()
    for k, colour in zip(sorted({row.k for row in curve}), COLOURS, strict=False):
        rows = [row for row in curve if row.k == k]
        axis.plot([r.partitions for r in rows], [r.recall for r in rows], "o-", color=colour, label=f"k = {k}")
        for row in rows:
            axis.annotate(row.candidates, (row.partitions, row.recall), (3, -9), textcoords="offset points", fontsize=6)
    axis.set_xscale("log")
    tidy(axis, title="partitions, and candidates beside the points", x="partitions", y="recall", legend=bool(curve))
    _save_plot(canvas, path)


def _save_plot(canvas: Any, path: Path) -> None:
    with replacing(path) as temporary:
        canvas.savefig(temporary, dpi=130)


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw it into this file, .png, .svg or .pdf")
    parser.add_argument("--threads", type=int, metavar="N", help="cores to use (all)")
    parser.add_argument("--json", action="store_true", help="print JSON")
