"""Damaged files of whole indexes, by the thousand: each is refused in words, or is an index that works.

    python tests/fuzz_indexes.py --count 100000

A case is a number: it picks an index, damages its file, and uses what opens. A crash, a hang, a huge allocation, an
error other than FormatError, or an id that no point has ends the run and names the case (`--only CASE` runs it again).
test_damaged_indexes.py runs it in a process of its own.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import io
import json
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import aniso
from aniso import format as file_format
from aniso.archive import to_parts
from aniso.config import METRICS, RESCORES
from aniso.header import lay_out
from aniso.index import _restored

N, D = 48, 5
MEMORY = 1 << 30  # bytes that a case may take beyond what the process has at its start
SECONDS = 30  # for a case
POINTS = np.random.default_rng(8).normal(size=(N, D)).astype(np.float32)
QUERIES = POINTS[:3] + np.float32(0.1)
DTYPES = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
VALUES: tuple[Any, ...] = (
    *(
        0,
        1,
        -1,
        2,
        7,
        N,
        N - 1,
        N + 1,
        255,
        2**31 - 1,
        2**31,
        2**32,
        2**53,
        2**62,
        2**63 - 1,
        2**63,
        -(2**63),
        2**64 - 1,
    ),
    *(0.5, -0.0, 1e300, -1e300, 1e-300, True, False, None, "", "a", "dot", "cosine", "l2", "int8", "none", "float16"),
    *([], {}, [1], [0, 1, 2, 3], {"a": 1}, "ü" * 50),
)
Parts = tuple[dict[str, Any], dict[str, NDArray[Any]]]


def indexes() -> list[Parts]:
    """Whole indexes to damage: every metric and copy, with every kind of ids, fresh and changed, tuned and not."""
    made = []
    for number, (metric, rescore) in enumerate((m, r) for m in METRICS for r in RESCORES):
        names = [f"name {i} ü" for i in range(N)]
        for at, ids in enumerate((None, np.arange(N) * 3 - 5, names)):
            few = {"partitions": 4} if (number + at) % 4 else {}
            tuned = 0.9 if at == 1 else None
            index = aniso.build(
                POINTS, metric=metric, rescore=rescore, ids=ids, recall=tuned, rounds=1, threads=1, **few
            )
            if (number + at) % 3:
                index.remove(index.ids[5:11])
                index.update(POINTS[:3] * 2, index.ids[:3])
            header, arrays = to_parts(index._store)
            arrays["hidden"] = np.array([1, 4, 30])
            made.append((header, {name: np.array(array) for name, array in arrays.items()}))
    return made


def written(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> bytes:
    """The bytes of a file, with checksums that fit."""
    out = io.BytesIO()
    file_format._write(out, header, arrays, lay_out(arrays), {})
    return out.getvalue()


# Damages: some change parts, which are then written with checksums that fit; some change the bytes.


def pick(rng: np.random.Generator, things: Any) -> Any:
    """One of them."""
    return things[int(rng.integers(len(things)))]


def change_header(rng: np.random.Generator, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    """A field gets another value, that of another field, or goes."""
    places: list[tuple[Any, Any]] = []
    todo: list[Any] = [header]
    while todo:
        holder = todo.pop()
        for key, value in holder.items() if isinstance(holder, dict) else enumerate(holder):
            places.append((holder, key))
            if isinstance(value, (dict, list)):
                todo.append(value)
    for _ in range(int(rng.integers(1, 3))):
        holder, key = pick(rng, places)
        if key not in (holder if isinstance(holder, dict) else range(len(holder))):
            continue
        kind, old = rng.random(), holder[key]
        if kind < 0.4 and type(old) is int:
            holder[key] = min(max(old + int(pick(rng, (-1, 1, 2, -7, 100, old))), -(2**63)), 2**64 - 1)
        elif kind < 0.5 and isinstance(old, float):
            holder[key] = max(min(old * float(pick(rng, (0, -1, 1e30, 1e-30))), 1e300), -1e300)
        elif kind < 0.8:
            holder[key] = copy.deepcopy(pick(rng, VALUES))
        elif kind < 0.95:
            source, name = pick(rng, places)
            if name in (source if isinstance(source, dict) else range(len(source))):
                holder[key] = copy.deepcopy(source[name])
        elif isinstance(holder, dict):
            del holder[key]


def change_array(rng: np.random.Generator, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    """Some elements of an array become others of the same dtype."""
    array = arrays[pick(rng, sorted(name for name in arrays if arrays[name].size))]
    flat = array.reshape(-1)
    where = rng.integers(0, len(flat), int(pick(rng, (1, 1, 2, 5, 1 + len(flat) // 4, len(flat)))))
    kind = rng.random()
    if kind < 0.3:  # bits
        raw = flat.view(np.uint8)
        raw[where] ^= (1 << rng.integers(0, 8, len(where))).astype(np.uint8)
    elif kind < 0.4:  # any bytes
        raw = flat.view(np.uint8)
        raw[where] = rng.integers(0, 256, len(where))
    elif kind < 0.5:  # two parts in each other's place
        flat[where] = flat[rng.permutation(where)]
    elif array.dtype.kind == "f":
        flat[where] = pick(rng, (0, np.nan, np.inf, -np.inf, -1, 1e30, -1e30, 1e-40))
    else:
        limits = np.iinfo(array.dtype)
        value = int(
            pick(rng, (0, -1, 1, N, N - 1, N + 1, 31, 32, limits.min, limits.max, limits.max - 1, 2**31, 2**33))
        )
        flat[where] = min(max(value, limits.min), limits.max)


def change_sizes(rng: np.random.Generator, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    """An array gets another dtype or shape, goes, or takes another's place."""
    names = sorted(arrays)
    name = pick(rng, names)
    array, kind = arrays[name], rng.random()
    if kind < 0.15:
        del arrays[name]
    elif kind < 0.3:
        other = pick(rng, names)
        arrays[name], arrays[other] = arrays[other], arrays[name]
    elif kind < 0.4:
        arrays[pick(rng, ("more", "live", "places", "numbers", "names_text", "shift", "points"))] = arrays.pop(name)
    elif kind < 0.6 and array.ndim:
        length = int(pick(rng, (0, 1, max(len(array) - 1, 0), len(array) + 1, 2 * len(array), 3000)))
        arrays[name] = np.resize(array, (length, *array.shape[1:]))
    elif kind < 0.8:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            arrays[name] = array.astype(pick(rng, DTYPES))
    else:
        arrays[name] = pick(
            rng, (array[None], array.reshape(-1), array.T.copy(), array[..., None], np.array(array.sum()))
        )


def change_rows(rng: np.random.Generator, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    """All that says how many rows there are says another number, so that only the slots know better."""
    old = header["n"]
    new = int(pick(rng, (0, 1, old - 1, old + 1, old // 2, 2 * old)))
    if not {"points", "numbers", "places", "names_text", "live"} & set(arrays) and rng.random() < 0.5:
        new = 2**31 - 1  # which no array contradicts
        header["n"] = header["count"] = new
        return
    header["n"] = new
    for name in ("points", "numbers", "places"):
        if name in arrays:
            arrays[name] = np.resize(arrays[name], (new, *arrays[name].shape[1:]))
    if "names_offsets" in arrays:
        offsets = np.resize(arrays["names_offsets"], new + 1)
        offsets[-1] = len(arrays["names_text"])
        offsets[0] = 0
        arrays["names_offsets"] = np.sort(offsets)
    bits = np.ones(new, np.uint8)
    if "live" in arrays:
        bits = np.resize(np.unpackbits(arrays["live"], bitorder="little"), new)
        arrays["live"] = np.packbits(bits, bitorder="little")
    header["count"] = int(bits.sum())
    arrays["hidden"] = arrays["hidden"][arrays["hidden"] < new]


def change_slots(rng: np.random.Generator, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    """Partitions and their sizes change to what is possible, but is not what was saved."""
    p, blocks = len(arrays["sizes"]), header["blocks"]
    kind = rng.random()
    if kind < 0.5:
        at = int(rng.integers(p))
        arrays["sizes"][at] = int(rng.integers(0, 32 * arrays["room"][at] + 1))
    elif kind < 0.75:
        order = rng.permutation(p)
        for name in ("first_blocks", "room", "sizes"):
            arrays[name] = arrays[name][order]
    else:
        cuts = np.sort(rng.integers(0, blocks + 1, p))
        arrays["first_blocks"] = cuts.astype(np.int64)
        arrays["room"] = np.diff([*cuts, blocks]).astype(np.int64)
        arrays["sizes"] = rng.integers(0, 32 * arrays["room"] + 1).astype(np.int32)


def change_entries(rng: np.random.Generator, data: bytes) -> bytes:
    """What the header says of the arrays changes, under a checksum that fits."""
    length = int.from_bytes(data[12:16], "little")
    content = json.loads(data[20 : 20 + length])
    entry = content["arrays"][pick(rng, sorted(content["arrays"]))]
    key = pick(rng, sorted(entry))
    other = [*content["arrays"][pick(rng, sorted(content["arrays"]))]["shape"], 1]
    entry[key] = pick(rng, DTYPES) if key == "dtype" and rng.random() < 0.5 else copy.deepcopy(pick(rng, VALUES))
    if key == "shape" and rng.random() < 0.7:
        entry[key] = [int(x) for x in rng.permutation(other)]
    raw = json.dumps(content).encode()
    raw = raw.ljust(-(-(20 + len(raw)) // 64) * 64 - 20)
    prefix = data[:12] + len(raw).to_bytes(4, "little")
    checksum = file_format.zlib.crc32(raw, file_format.zlib.crc32(prefix))
    return prefix + checksum.to_bytes(4, "little") + raw + data[20 + length :]


def change_bytes(rng: np.random.Generator, data: bytes) -> bytes:
    """Bits flip, bytes change, parts move or go missing."""
    damaged = bytearray(data)
    at, end = sorted(rng.integers(0, len(data) + 1, 2).tolist())
    match int(rng.integers(5)):
        case 0:
            for place in rng.integers(0, len(data), int(rng.integers(1, 6))):
                damaged[place] ^= 1 << int(rng.integers(8))
        case 1:
            damaged[at : at + 16] = rng.bytes(16)
        case 2:
            del damaged[at:]
        case 3:
            del damaged[at:end]
        case _:
            damaged[at:at] = damaged[at:end]
    return bytes(damaged)


PARTS: tuple[Callable[..., None], ...] = (
    change_header,
    change_array,
    change_array,
    change_sizes,
    change_rows,
    change_slots,
)
BYTES: tuple[Callable[..., bytes], ...] = (change_entries, change_bytes)


def damaged_file(rng: np.random.Generator, good: list[Parts]) -> tuple[str, bytes]:
    """What was done, and the file."""
    header, arrays = copy.deepcopy(pick(rng, good))
    number = int(rng.integers(len(PARTS) + len(BYTES)))
    if number >= len(PARTS):
        done = BYTES[number - len(PARTS)]
        return done.__name__, done(rng, written(header, arrays))
    PARTS[number](rng, header, arrays)
    if rng.random() < 0.1:
        change_header(rng, header, arrays)
    return PARTS[number].__name__, written(header, arrays)


# What is done with a file that opens


def use(index: aniso.Index, rng: np.random.Generator) -> None:
    """Search and change it; what is found exists."""
    check_search(index, rng)
    index.info()
    named = index.ids.dtype.kind == "U"
    given = index._store.given
    new: Any = ["new", "newer"] if named else [2**40, -(2**40)] if given else None
    points = np.random.default_rng(1).normal(size=(2, index.d)).astype(np.float32)
    kind = int(rng.integers(6))
    if kind != 1 and not set(new or ()) & set(index.ids.tolist()):
        index.add(points, new)
    if kind != 2 and len(index):
        index.remove(pick(rng, index.ids))
    if kind == 3 and len(index):
        index.update(points[:1], [pick(rng, index.ids)])
    if kind == 4:
        index.compact()
    check_search(index, rng)
    if kind == 5 and len(index) > 3:
        if index.config.rescore != "none":
            index.measure_recall(k=3)
        again = file_format._parse(written(*to_parts(index._store)), "saved again")
        check_search(_restored(again.header, again.arrays, 1, again.path), rng)


def check_search(index: aniso.Index, rng: np.random.Generator) -> None:
    """Every result is a point that is there, each at most once for a query."""
    ids = index.ids
    assert len(ids) == len(index)
    if not len(ids):
        return
    queries = np.random.default_rng(2).normal(size=(3, index.d)).astype(np.float32)
    k = int(pick(rng, (1, 3, len(ids), 10**6)))
    wish: dict[str, Any] = pick(
        rng, ({}, {"partitions": 10**6, "candidates": 10**6}, {"partitions": 1}, {"candidates": 1})
    )
    known = set(ids.tolist())
    allowed, most = known, len(ids)
    if rng.random() < 0.3:
        chosen = pick(rng, (ids[:1], ids[::2], ids))
        wish, allowed, most = {**wish, "where": chosen}, set(chosen.tolist()), len(chosen)
    asked = queries if rng.random() < 0.7 else queries[0]
    found = index.search(asked, k, threads=1, **wish)
    assert found.ids.shape == found.scores.shape
    assert found.ids.shape[-1] == min(k, most)
    for row in np.atleast_2d(found.ids).tolist():
        assert len(known) < len(ids) or len(set(row)) == len(row), f"found one point twice: {row}"
    strange = set(found.ids.ravel().tolist()) - allowed
    assert not strange, f"found {sorted(strange)[:5]}, which no point has"


def run_case(case: int, seed: int, good: list[Parts], path: Path, apart: bool) -> tuple[str, str]:
    """What was damaged and how it ended: refused, refused later, or used."""
    rng = np.random.default_rng([seed, case])
    kind, data = damaged_file(rng, good)
    path.write_bytes(data)
    opened = None
    try:
        if apart:  # every array in memory of its own, where the sanitizer sees a step beyond its end
            file = file_format.open_file(path)
            opened = _restored(file.header, {name: array.copy() for name, array in file.arrays.items()}, 1, file.path)
        else:
            opened = aniso.open(path, threads=1, verify=rng.random() < 0.2)
        use(opened, rng)
        return kind, "used"
    except aniso.FormatError as error:
        message = str(error)
    assert str(path) in message, f"no file named: {message}"
    assert len(message) < 600, f"too long: {message}"
    return kind, "refused" if opened is None else "refused later"


def main() -> int:
    """Run cases; 0 where all went well."""
    parser = argparse.ArgumentParser(description="Open and use damaged files of indexes.")
    parser.add_argument("--count", type=int, default=20_000, help="how many files (20000)")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other files (0)")
    parser.add_argument("--only", type=int, metavar="CASE", help="one case alone")
    parser.add_argument("--apart", action="store_true", help="each array in memory of its own, for the sanitizers")
    parser.add_argument("--go-on", action="store_true", help="report every failure, not the first alone")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # arithmetic on damaged numbers overflows
    good, outcomes, failed = indexes(), Counter[str](), 0
    if not options.apart and sys.platform == "linux":  # the sanitizers need all the address space there is
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged.aniso"
        for case in range(options.count) if options.only is None else [options.only]:
            if case % 20 == 0:
                faulthandler.dump_traceback_later(SECONDS, exit=True)
                print(f"\r{case}", end="", file=sys.stderr, flush=True)  # what a crash leaves behind
            try:
                outcomes[" ".join(run_case(case, options.seed, good, path, options.apart))] += 1
            except Exception:
                print(f"\ncase {case} of seed {options.seed}:", file=sys.stderr)
                traceback.print_exc()
                failed += 1
                if not options.go_on:
                    return 1
    faulthandler.cancel_dump_traceback_later()
    spent = round(time.process_time() - start, 1)
    print(json.dumps({"outcomes": dict(sorted(outcomes.items())), "failed": failed, "seconds": spent}))
    return 1 if failed else 0


if __name__ == "__main__":
    faulthandler.enable()
    sys.exit(main())
