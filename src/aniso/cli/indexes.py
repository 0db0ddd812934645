"""aniso build, search and info: an index from a file of vectors, answers to a file of queries, and what an index is."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import aniso
from aniso.cli.terminal import Commands, Help, check_output, print_json, progress, replacing, table
from aniso.config import METRICS, RESCORES
from aniso.datasets import read_vectors
from aniso.progress import Progress

__all__ = ["add_build", "add_info", "add_search", "open_index", "read_ids"]

_BATCH = 4096  # queries answered between two steps of the bar

Options = argparse.Namespace


def add_build(commands: Commands) -> None:
    """aniso build VECTORS -o INDEX"""
    parser = commands.add_parser(
        "build",
        help="build an index from a file of vectors",
        description="Build an index from a file of vectors and save it, whole or not at all.\n"
        "The settings for the recall wanted are found by measuring.",
        epilog="examples:\n"
        "  aniso build vectors.npy -o words.aniso --recall 0.95\n"
        "  aniso build glove.hdf5::train -o glove.aniso --metric cosine --queries glove.hdf5::test\n"
        "  aniso build vectors.parquet -o small.aniso --ids names.txt --rescore int8",
        formatter_class=Help,
    )
    parser.add_argument("vectors", metavar="VECTORS", help="a file of vectors, one in each row")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="INDEX", help="the file to write")
    parser.add_argument(
        "--metric",
        choices=METRICS,
        default="dot",
        help="what is searched for: the largest dot or cosine, the least l2 (dot)",
    )
    parser.add_argument(
        "--recall", type=float, default=0.95, metavar="R", help="the share of the true best points to find (0.95)"
    )
    parser.add_argument("--ids", type=Path, metavar="FILE", help="ids of the vectors: a line for each, or .npy")
    parser.add_argument("--queries", metavar="FILE", help="typical queries, to measure recall with")
    parser.add_argument("--rescore", choices=RESCORES, help="the copy kept for final scores (float32: exact)")
    parser.add_argument(
        "--memory", type=_size, metavar="BYTES", help="most bytes of the index, as 60M or 2.5G, instead of --rescore"
    )
    parser.add_argument("--partitions", type=int, metavar="N", help="parts to divide the points into (by their number)")
    parser.add_argument(
        "--spill", type=float, metavar="S", help="strength of a second partition per point, 0: none (1)"
    )
    parser.add_argument("--subspaces", type=int, metavar="N", help="4-bit codes per point (one for 2 dimensions)")
    parser.add_argument("--sample", type=int, metavar="N", help="most points that training looks at")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of everything random (0)")
    _add_threads(parser)
    _add_json(parser, "print what was built as JSON")
    parser.set_defaults(run=build)


def build(options: Options) -> int:
    """Build and save an index."""
    check_output(options.output, inputs=[options.vectors, options.queries, options.ids])
    points = read_vectors(options.vectors)
    queries = None if options.queries is None else read_vectors(options.queries)
    ids = None if options.ids is None else read_ids(options.ids)
    wishes = {name: getattr(options, name) for name in ("rescore", "partitions", "spill", "subspaces", "sample")}
    start = time.perf_counter()
    with progress() as show:
        index = aniso.build(
            points,
            metric=options.metric,
            recall=options.recall,
            ids=ids,
            queries=queries,
            memory=options.memory,
            threads=options.threads,
            progress=show,
            seed=options.seed,
            **{name: value for name, value in wishes.items() if value is not None},
        )
        show("save", 0, 1)
        index.save(options.output)
        show("save", 1, 1)
    seconds = time.perf_counter() - start
    size = options.output.stat().st_size
    if options.json:
        print_json({"index": str(options.output), "seconds": round(seconds, 3), "file_bytes": size, **index.info()})
    else:
        print(
            f"{options.output}: {len(index):,} points of {index.d} dimensions, {options.metric}, recall "
            f"{options.recall:g}, {_megabytes(size)}, built in {seconds:.1f} s"
        )
    return 0


def _size(text: str) -> int:
    """60M: 60,000,000 bytes."""
    unit = {"k": 10**3, "m": 10**6, "g": 10**9}.get(text[-1:].lower())
    try:
        return round(float(text[:-1]) * unit) if unit else int(text)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes (as 60000000, 60M or 2.5G)") from None


def add_search(commands: Commands) -> None:
    """aniso search INDEX QUERIES"""
    parser = commands.add_parser(
        "search",
        help="answer a file of queries",
        description="Find the best points for each query of a file.\n"
        "Text output has a line for each result: the query's row, the rank from 1, the id, the score.",
        epilog="examples:\n"
        "  aniso search words.aniso queries.npy -k 10\n"
        "  aniso search words.aniso queries.npy -k 100 --recall 0.99 -o results.npz\n"
        "  aniso search words.aniso queries.npy --where allowed.txt --json",
        formatter_class=Help,
    )
    parser.add_argument("index", metavar="INDEX", type=Path, help="a file that aniso build wrote")
    parser.add_argument("queries", metavar="QUERIES", help="a file of vectors")
    parser.add_argument("-k", type=int, default=10, metavar="K", help="how many points for each query (10)")
    parser.add_argument("--recall", type=float, metavar="R", help="the recall to aim at (what the index was built for)")
    parser.add_argument("--partitions", type=int, metavar="N", help="partitions to look at, instead of a recall")
    parser.add_argument("--candidates", type=int, metavar="N", help="points to rescore, instead of a recall")
    parser.add_argument("--where", type=Path, metavar="FILE", help="ids that may be found: a line for each, or .npy")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write arrays ids and scores into this .npz")
    _add_threads(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--text", action="store_true", help="print columns separated by tabs (unless -o is given)")
    _add_json(shown, "print a line of JSON for each query: query, ids, scores")
    parser.set_defaults(run=search)


def search(options: Options) -> int:
    """Answer queries, a batch at a time."""
    check_output(options.output, [".npz"])
    index = open_index(options.index, options.threads)
    queries = read_vectors(options.queries)
    where = None if options.where is None else read_ids(options.where, text=index.ids.dtype.kind == "U")
    wishes = {name: getattr(options, name) for name in ("recall", "partitions", "candidates")}
    wishes = {name: value for name, value in wishes.items() if value is not None}
    silent = options.output is not None and not options.json and not options.text
    found: list[aniso.Result] = []
    with progress() as show:
        for first, batch in _batches(queries, show):
            result = index.search(batch, options.k, where=where, threads=options.threads, **wishes)
            if options.output is not None:
                found.append(result)
            if not silent:
                _print_results(result, first, options.json)
    if options.output is not None:
        with replacing(options.output) as temporary:
            ids, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
            np.savez(temporary, ids=ids, scores=scores)
    return 0


def _batches(queries: NDArray[Any], show: Progress) -> Iterator[tuple[int, NDArray[Any]]]:
    if not len(queries):
        raise ValueError("there are no queries in the file; needed: at least one row")
    for first in range(0, len(queries), _BATCH):
        show("search", first, len(queries))
        yield first, queries[first : first + _BATCH]
    show("search", len(queries), len(queries))


def _print_results(result: aniso.Result, first: int, as_json: bool) -> None:
    for row, (ids, scores) in enumerate(zip(result.ids.tolist(), result.scores.tolist(), strict=True), first):
        if as_json:
            print(json.dumps({"query": row, "ids": ids, "scores": scores}, ensure_ascii=False))
        else:
            for rank, (name, score) in enumerate(zip(ids, scores, strict=True), 1):
                print(f"{row}\t{rank}\t{name}\t{score:.6g}")


def add_info(commands: Commands) -> None:
    """aniso info INDEX"""
    parser = commands.add_parser(
        "info",
        help="say what an index holds and how it is doing",
        description="Say what an index holds and how it is doing: sizes, balance, removed points, drift, recall.",
        epilog="examples:\n  aniso info words.aniso\n  aniso info words.aniso --verify --json",
        formatter_class=Help,
    )
    parser.add_argument("index", metavar="INDEX", type=Path, help="a file that aniso build wrote")
    parser.add_argument("--verify", action="store_true", help="read the whole file and compare its checksums")
    _add_json(parser, "print JSON, with the measured curve")
    parser.set_defaults(run=info)


def info(options: Options) -> int:
    """Print what there is to know."""
    start = time.perf_counter()
    index = open_index(options.index, None, verify=options.verify)
    seconds = time.perf_counter() - start
    facts = {"file": str(options.index), "file_bytes": options.index.stat().st_size, **index.info()}
    facts["verified"] = options.verify
    if options.json:
        print_json(facts)
        return 0
    curve = facts.pop("curve")
    facts["opened_in"] = f"{1000 * seconds:.1f} ms"
    facts["measured_settings"] = len(curve)
    print(table([[name.replace("_", " "), _shown(value)] for name, value in facts.items()], ["what", "is"]))
    return 0


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f" {value:,}".strip() if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)
    )


def open_index(path: Path, threads: int | None, verify: bool = False) -> aniso.Index:
    """The index in a file, with a message for a file of vectors in its place."""
    if path.suffix.lower() in (".npy", ".npz", ".hdf5", ".h5", ".fvecs", ".bvecs", ".ivecs", ".parquet"):
        raise ValueError(
            f"{path} looks like a file of vectors; needed: an index (aniso build {path} -o INDEX makes one)"
        )
    return aniso.open(path, threads=threads, verify=verify)


def read_ids(path: Path, text: bool | None = None) -> NDArray[Any]:
    """Ids from a .npy file or from lines of text: whole numbers if all are, unless text says which."""
    if path.suffix.lower() == ".npy":
        try:
            return np.asarray(np.load(path, allow_pickle=False))
        except (ValueError, EOFError) as error:
            raise ValueError(f"{path} is not a whole .npy file of numbers or strings: {error}") from None
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text in UTF-8: {error} (ids are lines of text, or a .npy file)") from None
    numbers = [_whole(line) for line in lines] if not text else []
    if text or (text is None and None in numbers):
        return np.array(lines, dtype=object)
    if None in numbers:
        row = numbers.index(None)
        raise ValueError(
            f"{path} line {row + 1} is {lines[row][:40]!r}; needed: a whole number, as the ids of the index"
        )
    return np.array(numbers, dtype=np.int64)


def _whole(line: str) -> int | None:
    """A whole number that int64 holds and that is written as such: 007 is a name."""
    digits = line.strip()
    if not digits.removeprefix("-").isascii() or not digits.removeprefix("-").isdigit() or len(digits) > 20:
        return None
    value = int(digits)
    return value if str(value) == digits and -(2**63) <= value < 2**63 else None


def _add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, metavar="N", help="cores to use (all)")


def _add_json(parser: Any, text: str) -> None:
    parser.add_argument("--json", action="store_true", help=text)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
