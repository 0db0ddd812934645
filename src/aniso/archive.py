"""An index as a header and named arrays, and back: what a file or a pickle holds, checked field by field.

docs/format.md lists the arrays. A file is not trusted: sizes, shapes, dtypes and ranges are checked here in a time that
does not depend on the number of points; that slots name rows which exist is checked by the core on the first use.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import asdict, fields
from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from aniso import format as file_format
from aniso.config import Config
from aniso.encoder import Encoder
from aniso.errors import FormatError
from aniso.ids import Names
from aniso.layout import BLOCK
from aniso.partition import Partitions
from aniso.quantizers.codebooks import Codebooks
from aniso.store import Store
from aniso.tune import Measured

__all__ = ["from_parts", "save", "to_parts"]

Parts = tuple[dict[str, Any], dict[str, NDArray[Any]]]

_SLOTS = ("codes", "slot_rows")  # the arrays of blocks
_BLOCKS = 1024  # of them written at a time
_MOST_DIMENSIONS = 1 << 20
_LARGEST = 1e31  # in the arrays of partitions and codebooks: what comes from points, whose norms are at most 1e15
_COUNTS = ("added", "blocks", "count", "d", "expected", "n", "next_id")  # header fields that are whole numbers
_NUMBERS = ("added_distance", "bias_low", "bias_step", "distance", "spill_limit")  # and those that are floats
_EARLY: dict[str, Any] = {"spill_limit": float(np.finfo(np.float32).max)}  # what files did not say once, as it was then
_EARLY_CONFIG: dict[str, Any] = {"centroid_threshold": 0.0, "spill_share": 1.0}


def save(path: str | os.PathLike[str], store: Store) -> None:
    """Write the index into one file."""
    header, arrays = _parts(store)
    used = store.used_slots()
    file_format.save(path, header, arrays, {name: partial(_used, arrays[name], used) for name in _SLOTS})


def to_parts(store: Store) -> Parts:
    """The header and the arrays of an index, for a pickle."""
    header, arrays = _parts(store)
    used = store.used_slots()
    return header, arrays | {name: np.concatenate([arrays[name][:0], *_used(arrays[name], used)]) for name in _SLOTS}


def _used(array: NDArray[Any], used: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
    """An array of blocks, some at a time, with zeros in the slots not in use: there a writer may be at work."""
    for first in range(0, len(array), _BLOCKS):
        part = array[first : first + _BLOCKS]
        mask = np.arange(BLOCK) < used[first : first + _BLOCKS, None]
        yield part * mask.reshape(len(part), *[1] * (part.ndim - 2), BLOCK)


def _parts(store: Store) -> Parts:
    """The header and the arrays of an index, which say anything in slots that are not in use."""
    measured: dict[str, Any] = {}
    if store.target is not None:
        effort = {} if store.effort is None else {"effort": store.effort.tolist()}
        measured = {"curve": [list(row) for row in store.curve], "recall": store.target, **effort}
    encoder = store.encoder
    partitions, books = encoder.partitions, encoder.books
    header = {
        "added": store.added,
        "added_distance": store.distance,
        "automatic": encoder.automatic,
        "bias_low": encoder.bias_low,
        "bias_step": encoder.bias_step,
        "blocks": store.blocks,
        "config": asdict(encoder.config),
        "count": store.count,
        "d": encoder.d,
        "distance": encoder.distance,
        "expected": encoder.expected,
        "given": store.given,
        "kind": "index",
        "measured": measured,
        "n": store.n,
        "next_id": store.next_id,
        "spill_limit": encoder.spill_limit,
    }
    n, blocks = store.n, store.blocks
    arrays: dict[str, NDArray[Any] | None] = {
        "assigners": partitions.kept,
        "centroid_bytes": partitions.bytes,
        "centroid_scales": partitions.scales,
        "codes": store.codes[:blocks],
        "codewords": books.codewords,
        "first_blocks": store.first_blocks,
        "halves": partitions.halves,
        "hidden": store.hidden,
        "live": store.live,
        "norms": partitions.norms,
        "numbers": None if store.numbers is None else store.numbers[:n],
        "places": store.places,
        "points": None if store.points is None else store.points[:n],
        "room": store.room,
        "shift": encoder.shift,
        "sizes": store.sizes,
        "slot_rows": store.slot_rows[:blocks],
        "starts": books.starts,
    }
    if store.names is not None:
        arrays["names_text"], arrays["names_offsets"] = store.names.packed(n)
    return header, {name: array for name, array in arrays.items() if array is not None}


def from_parts(header: dict[str, Any], arrays: dict[str, NDArray[Any]], threads: int, path: str) -> Store:
    """The index that a header and arrays make; FormatError names what does not fit."""
    header = _EARLY | header
    reader = _Reader(header, arrays, path)
    config, counts = reader.config(), {name: reader.count(name) for name in _COUNTS}
    reals = {name: reader.number(name) for name in _NUMBERS}
    d, n, blocks, p, l2 = counts["d"], counts["n"], counts["blocks"], config.partitions or 0, config.metric == "l2"
    reader.need(reals["bias_step"] > 0, "bias_step", reals["bias_step"], "above 0")
    reader.need(1 <= d <= _MOST_DIMENSIONS, "d", d, f"1 to {_MOST_DIMENSIONS}")
    reader.need(n < 2**31 and counts["count"] <= n, "count", counts["count"], f"at most n, {n}, and that below 2**31")
    reader.need(p > 1 or not config.spill, "config.spill", config.spill, "0 where there is one partition")
    given, automatic = header["given"], header["automatic"]
    reader.need(isinstance(given, bool), "given", given, "true or false")
    reader.need(isinstance(automatic, bool), "automatic", automatic, "true or false")
    next_id = counts["next_id"]
    reader.need(given or next_id < 2**62, "next_id", next_id, "below 2**62, for the numbers of later points")
    measured = reader.measured()

    shift = reader.finite("shift", (d,)) if l2 else None
    reader.need(l2 or "shift" not in arrays, "metric", config.metric, "l2 where there is an array 'shift'")
    partitions = Partitions(
        l2,
        reader.finite("assigners", (p, d)) if config.centroid_threshold or "assigners" in arrays else None,
        reader.array("centroid_bytes", np.int8, (p, d)),
        reader.finite("centroid_scales", (p,)),
        reader.finite("norms", (p,)),
        reader.finite("halves", (p,)),
        config.metric == "cosine",
        threads,
    )
    small = bool((np.abs(partitions.bytes.astype(np.int16)) <= 63).all())
    reader.need(small, "centroid_bytes", partitions.bytes[:1].tolist(), "-63 to 63")
    encoder = Encoder(
        config,
        d,
        partitions,
        _codebooks(reader, config, d, threads),
        shift,
        reals["bias_low"],
        reals["bias_step"],
        reals["spill_limit"],
        reals["distance"],
        automatic,
        counts["expected"],
        l2 or ("points" in arrays and arrays["points"].shape[-1:] == (-(-d // 4) * 4 + 8,)),
    )
    store = Store(encoder)
    store.n, store.count, store.blocks, store.given = n, counts["count"], blocks, given
    store.added, store.distance, store.next_id = counts["added"], reals["added_distance"], counts["next_id"]
    store.codes = reader.array("codes", np.uint8, (blocks, encoder.code_bytes, BLOCK))
    store.slot_rows = reader.array("slot_rows", np.int32, (blocks, BLOCK))
    store.first_blocks = reader.array("first_blocks", np.int64, (p,))
    store.sizes = reader.array("sizes", np.int32, (p,))
    store.room = reader.array("room", np.int64, (p,))
    _check_slots(reader, store)
    shape = encoder.copy_shape()
    store.points = None if shape is None else reader.array("points", shape[1], (n, shape[0]))
    _read_ids(reader, store)
    store.hidden = reader.array("hidden", np.int64, (None,))
    reader.need(
        bool(((store.hidden >= 0) & (store.hidden < n)).all()), "hidden", store.hidden.tolist(), f"rows below {n}"
    )
    if "effort" in measured:
        store.share_out(np.array(measured["effort"], np.float32))
    store.curve, store.target = [Measured(*row) for row in measured.get("curve", [])], measured.get("recall")
    store.come_from(path)
    return store


def _codebooks(reader: _Reader, config: Config, d: int, threads: int) -> Codebooks:
    m = config.subspaces or 0
    starts = reader.array("starts", np.int32, (m + 1,))
    widths = np.diff(starts.astype(np.int64))
    reader.need(
        starts[0] == 0 and starts[-1] == d and bool((widths >= 1).all()),
        "starts",
        starts.tolist(),
        f"0 to {d}, ascending",
    )
    codewords = reader.finite("codewords", (m, 16, int(widths.max())))
    return Codebooks(codewords, starts, threads)


def _check_slots(reader: _Reader, store: Store) -> None:
    """Partitions lie within the blocks, apart from each other, and hold no more than they have room for."""
    firsts, room, sizes = store.first_blocks, store.room, store.sizes
    blocks = store.blocks
    reader.need(bool(((firsts >= 0) & (firsts <= blocks)).all()), "first_blocks", firsts.tolist(), f"0 to {blocks}")
    reader.need(bool(((room >= 0) & (room <= blocks - firsts)).all()), "room", room.tolist(), "within the blocks")
    reader.need(bool(((sizes >= 0) & (sizes <= room * BLOCK)).all()), "sizes", sizes.tolist(), "within the room")
    entries = int(sizes.sum(dtype=np.int64))
    reader.need(store.n <= entries, "n", store.n, f"at most {entries}, what the partitions hold")
    order = np.argsort(firsts[room > 0], kind="stable")
    begins, ends = firsts[room > 0][order], (firsts + room)[room > 0][order]
    reader.need(bool((ends[:-1] <= begins[1:]).all()), "room", room.tolist(), "no overlap of partitions")


def _read_ids(reader: _Reader, store: Store) -> None:
    n, arrays = store.n, reader.arrays
    if "names_text" in arrays or "names_offsets" in arrays:
        offsets = reader.array("names_offsets", np.int64, (n + 1,))
        text = reader.array("names_text", np.uint8, (None,))
        reader.need(offsets[0] == 0 and offsets[-1] == len(text), "names_offsets", offsets[-1], f"0 to {len(text)}")
        store.names = Names((text, offsets), path=reader.path)
    elif "numbers" in arrays:
        store.numbers = reader.array("numbers", np.int64, (n,))
    if "places" in arrays:
        store.places = reader.array("places", np.int64, (n,))
    live = n
    if "live" in arrays:
        store.live = reader.array("live", np.uint8, ((n + 7) // 8,))
        live = int(np.unpackbits(store.live).sum(dtype=np.int64))
        inside = int(np.unpackbits(store.live, count=n, bitorder="little").sum(dtype=np.int64))
        reader.need(live == inside, "live", live, f"no bit beyond row {n}")
    reader.need(live == store.count, "count", store.count, f"{live}, the rows that are left")


class _Reader:
    """Takes the fields of a header and the arrays one by one, and refuses what they must not be."""

    def __init__(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]], path: str) -> None:
        self.header, self.arrays, self.path = header, arrays, path
        known = {"automatic", "config", "given", "kind", "measured", *_COUNTS, *_NUMBERS}
        self.need(header.get("kind") == "index", "kind", header.get("kind"), "'index' (is this the file of an index?)")
        self.need(set(header) == known, "the header", sorted(header), f"{', '.join(sorted(known))}")

    def need(self, holds: bool, what: str, value: Any, needed: str) -> None:
        """FormatError unless it holds."""
        if not holds:
            self.refuse(what, value, needed)

    def refuse(self, what: str, value: Any, needed: str) -> NoReturn:
        """FormatError."""
        text = repr(value)
        text = text if len(text) <= 60 else text[:57] + "..."
        raise FormatError(f"{self.path}: {what} is {text}; needed: {needed} (the file is damaged)")

    def count(self, name: str) -> int:
        """A whole number that is not negative."""
        value = self.header[name]
        most = 2**63 if name == "next_id" else 2**62  # ids may be the largest int64; the others are to be added to
        self.need(type(value) is int and 0 <= value < most, name, value, f"a whole number, not negative, below {most}")
        return int(value)

    def number(self, name: str) -> float:
        """A finite number."""
        value = self.header[name]
        self.need(type(value) in (int, float) and math.isfinite(value), name, value, "a finite number")
        return float(value)

    def measured(self) -> dict[str, Any]:
        """What tuning found: a recall to aim at, rows of k, partitions, candidates and recall, and the effort."""
        said = self.header["measured"]
        whole = isinstance(said, dict) and set(said) in (set(), {"curve", "recall"}, {"curve", "recall", "effort"})
        self.need(whole, "measured", said, "an object of curve, recall and perhaps effort, or an empty one")
        if said:
            share = type(said["recall"]) in (int, float) and 0 < said["recall"] <= 1
            self.need(share, "measured.recall", said["recall"], "a number above 0, at most 1")
            effort = said.get("effort", [0, 0, 0])
            fits = isinstance(effort, list) and len(effort) == 3
            fits = fits and all(type(x) in (int, float) and abs(x) <= 1e30 for x in effort)
            self.need(fits, "measured.effort", effort, "three numbers up to 1e30")
            curve = said["curve"]
            self.need(isinstance(curve, list) and len(curve) < 10_000, "measured.curve", curve, "a list of rows")
            for row in curve:
                fits = isinstance(row, list) and len(row) == 4 and all(type(x) is int for x in row[:3])
                fits = fits and all(0 < x < 2**31 for x in row[:3])
                fits = fits and type(row[3]) in (int, float) and 0 <= row[3] <= 1
                self.need(fits, "measured.curve", row, "rows of k, partitions, candidates and recall")
        return dict(said)

    def config(self) -> Config:
        """The settings, all of them said but for those that early files do not know."""
        said = self.header["config"]
        known = {field.name for field in fields(Config)}
        fits = isinstance(said, dict) and set(said) | set(_EARLY_CONFIG) == known
        self.need(fits, "config", said, f"an object of {', '.join(sorted(known))}")
        said = _EARLY_CONFIG | said
        for name in ("spill", "spill_share", "threshold", "centroid_threshold"):
            self.need(type(said[name]) in (int, float), f"config.{name}", said[name], "a number")
        for name in ("partitions", "subspaces", "sample"):
            self.need(type(said[name]) is int and said[name] < 2**31, f"config.{name}", said[name], "a whole number")
        try:
            return Config(**said)
        except (TypeError, ValueError) as error:
            raise FormatError(f"{self.path}: in config: {error} (the file is damaged)") from None

    def finite(self, name: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
        """A float32 array whose squares can be added up."""
        found = self.array(name, np.float32, shape)
        largest = np.abs(found).max(initial=0)
        self.need(bool(largest <= _LARGEST), f"the largest size in array {name!r}", largest, f"at most {_LARGEST:g}")
        return found

    def array(self, name: str, dtype: Any, shape: tuple[int | None, ...]) -> NDArray[Any]:
        """The array of that name, not to be written to; None in its shape stands for any length."""
        found = self.arrays.get(name)
        if found is None:
            raise FormatError(f"{self.path}: there is no array {name!r} (the file is damaged)")
        fits = len(found.shape) == len(shape) and all(
            b is None or a == b for a, b in zip(found.shape, shape, strict=True)
        )
        self.need(fits, f"the shape of array {name!r}", found.shape, str(shape))
        self.need(
            found.dtype == np.dtype(dtype), f"the dtype of array {name!r}", str(found.dtype), str(np.dtype(dtype))
        )
        view: NDArray[Any] = found.view()
        view.flags.writeable = False
        return view
