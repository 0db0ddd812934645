"""aniso demo: search the docstrings of the installed Python packages in words."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import aniso
from aniso.bench import RECALLS, bench
from aniso.cli.measure import bench_plot, bench_table
from aniso.cli.terminal import Commands, Help, check_plot, print_json, progress
from aniso.demo import Docstring, Embedding, collect

__all__ = ["add_demo"]

_QUESTIONS = (
    "compress data with gzip",
    "parse command line arguments",
    "eigenvalues of a symmetric matrix",
    "wait until a thread has finished",
    "random numbers from a normal distribution",
    "open a web page in the browser",
)
_ASKED = 1000  # summaries asked to measure with, and as many to tune with
_SHOWN = 3  # answers to each question
_WIDTH = 72  # of an answer's summary


def add_demo(commands: Commands) -> None:
    """aniso demo"""
    parser = commands.add_parser(
        "demo",
        help="search the docstrings of this Python in words",
        description="Make a vector of every docstring of the installed Python packages, build an index, search it in\n"
        "words, and compare its speed and recall with exact search. Needs no data file and no network.",
        epilog="examples:\n"
        '  aniso demo\n  aniso demo --ask "sort a list" --ask "open a web page"\n  aniso demo --plot demo.png',
        formatter_class=Help,
    )
    parser.add_argument("--ask", action="append", metavar="WORDS", help="a question of your own; may be given again")
    parser.add_argument("--most", type=int, default=30_000, metavar="N", help="docstrings to read at most (30000)")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw speed over recall into this file")
    parser.add_argument("--threads", type=int, metavar="N", help="cores to use (all)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=demo)


def demo(options: argparse.Namespace) -> int:
    """Read, embed, build, search, measure."""
    check_plot(options.plot)
    if options.most < 100:
        raise ValueError(f"--most is {options.most}; needed: at least 100, for something to search")
    start = time.perf_counter()
    with progress() as show:
        found = collect(options.most, progress=show)
        words = Embedding([one.words for one in found], dimensions=256, progress=show)
        # Summaries are asked for the docstrings they belong to: half of them tune the index, the others measure it.
        order = np.random.default_rng(0).permutation(len(found))[: 2 * _ASKED]
        asked = words([found[at].summary for at in order])
        asked = asked[np.linalg.norm(asked, axis=1) > 0]
        half = len(asked) // 2
        read = time.perf_counter() - start
        names = [one.name for one in found]
        index = aniso.build(
            words.points, metric="cosine", ids=names, queries=asked[:half], threads=options.threads, progress=show
        )
        built = time.perf_counter() - start - read
        answers = _answers(index, words, {one.name: one for one in found}, options.ask or _QUESTIONS)
        lines = bench(index, asked[half:], recalls=RECALLS, seconds=0.7, threads=options.threads, progress=show)
    n, d = len(index), index.d
    if options.plot is not None:
        bench_plot(lines, options.plot, f"{n:,} docstrings of Python, {d} dimensions, k = 10")
    if options.json:
        measured = [line._asdict() for line in lines]
        print_json({"docstrings": n, "dimensions": d, "seconds": built, "answers": answers, "bench": measured})
        return 0
    packages = len({one.package for one in found})
    print(f"{n:,} docstrings of {packages} packages, read and made into vectors of {d} dimensions in {read:.1f} s")
    print(f"an index of them, tuned to find 95% of the ten best, built in {built:.1f} s\n")
    for answer in answers:
        print(answer["question"])
        for one in answer["found"]:
            print(f"  {one['score']:.2f}  {one['name']}: {one['summary']}")
    print(
        f"\n{len(asked) - half:,} summaries asked for the ten nearest docstrings, one by one on a core and in a batch\n"
    )
    print(bench_table(lines))
    if options.plot is not None:
        print(f"\nplot: {options.plot}")
    return 0


def _answers(index: aniso.Index, words: Embedding, known: dict[str, Docstring], questions: Any) -> list[dict[str, Any]]:
    """The best docstrings for each question."""
    vectors = words(list(questions))
    answers = []
    for question, vector in zip(questions, vectors, strict=True):
        if not vector.any():
            raise ValueError(f"no word of {question!r} is in any docstring; ask in other words")
        result = index.search(vector, _SHOWN)
        found = [
            {"name": name, "score": round(score, 4), "summary": known[name].summary[:_WIDTH]}
            for name, score in zip(result.ids.tolist(), result.scores.tolist(), strict=True)
        ]
        answers.append({"question": question, "found": found})
    return answers
