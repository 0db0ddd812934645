"""Where the points of an index stand: arrays with room to grow, in one state.

A Store that searches read never changes. A writer takes `draft()`, which shares the large arrays, writes only where no
older state looks (beyond its rows and the sizes of its partitions, or into new arrays), and publishes the draft in its
place. Removed points stay in their slots; a bitmap of the rows that are left hides them until `compacted()`.

Room beyond what is used is reserved, not touched: it takes address space, not memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from aniso import _core
from aniso.encoder import Encoder
from aniso.errors import FormatError, check_vectors
from aniso.ids import IdArray, Names, missing
from aniso.layout import BLOCK, huge_empty

if TYPE_CHECKING:
    from aniso.tune import Measured

__all__ = ["Closed", "Store"]

# How much longer new arrays are than needed, so that their rows are copied rarely. Blocks run out sooner, because a
# partition that moves leaves its old ones behind; an index is compacted before they fill this room.
_ROW_ROOM, _BLOCK_ROOM = 1.5, 3.0
_FEW_BLOCKS = 8  # in a partition, on average, up to which compacting leaves it room to grow


class Lookup(dict[Any, int]):
    """The row of each id, in the state that owns it; a writer hands it on to the next state.

    The owner is named by its mark: a reference to it would keep a state that nobody uses from going at once.
    """

    owner: object = None


class Closed:
    """In place of the state of an index that was closed: whatever is asked of it is an error."""

    def __init__(self, path: str | None) -> None:
        self._how = "build it again, or aniso.open a file that save wrote" if path is None else f"aniso.open({path!r})"

    def __getattr__(self, name: str) -> NoReturn:
        raise ValueError(f"the index is closed; needed: an open one ({self._how})")


class Store:
    """The arrays of an index that depend on its points."""

    def __init__(self, encoder: Encoder, *, named: bool = False) -> None:
        self.encoder = encoder
        self.n = 0  # rows in use, removed ones included
        self.count = 0  # points that are there
        self.blocks = 0  # in use, those of moved partitions included
        self.first_blocks = np.zeros(encoder.p, np.int64)
        self.sizes = np.zeros(encoder.p, np.int32)
        self.room = np.zeros(encoder.p, np.int64)  # blocks that each partition may fill
        self.codes = np.empty((0, encoder.code_bytes, BLOCK), np.uint8)
        self.slot_rows = np.empty((0, BLOCK), np.int32)  # the row in each slot
        shape = encoder.copy_shape()
        self.points: NDArray[Any] | None = None if shape is None else np.empty((0, shape[0]), shape[1])
        self.numbers: NDArray[np.int64] | None = None  # the int64 id of each row; None: its number, or names
        self.names: Names | None = Names() if named else None
        self.given = named  # the user gives ids, so that none are made up
        self.next_id = 0  # for the next point without an id
        self.live: NDArray[np.uint8] | None = None  # bit row % 8 of byte row // 8; None: nothing was removed
        self.places: NDArray[np.int64] | None = None  # the order of rows in ids; None: as they come
        self.hidden = np.empty(0, np.int64)  # rows that training did not see: fair queries to measure recall with
        self.added, self.distance = 0, 0.0  # points since training, and the sum of squared distances to their centroids
        self.effort: NDArray[np.float32] | None = None  # how partitions are shared out among queries; effort.py
        self.curve: list[Measured] = []  # the recall of settings, as tune.py measured it
        self.target: float | None = None  # the recall to search for
        self.settings: dict[Any, tuple[int, int]] = {}  # partitions and candidates of (k, recall), once chosen
        self.plain: _core.Searcher | None = None  # the searcher, where its answers need nothing more
        self._searcher: _core.Searcher | None = None
        self._lookup: Lookup | None = None
        self._mark = object()  # stands for this state in its lookup
        self.path: str | None = None  # of the file that the arrays come from
        self._checked = True  # what slots say was looked at; a file is not until its first use

    # What searches read

    @property
    def searcher(self) -> _core.Searcher:
        """The core's view of this state."""
        if self._searcher is None:
            if self.count == 0:
                raise ValueError("the index has no points: call add(points) first")
            self.check_slots()
            try:
                self._searcher = self._view()
            except ValueError as error:
                if self.path is None:
                    raise
                raise FormatError(
                    f"{self.path}: the arrays do not fit together: {error} (the file is damaged)"
                ) from None
            if self.names is None:
                self.plain = self._searcher
        return self._searcher

    def come_from(self, path: str) -> None:
        """The arrays are those of a file, not to be trusted."""
        self.path, self._checked = path, False

    def check_slots(self) -> None:
        """FormatError unless each point stands in slots as often as it should; a file is looked at once."""
        if self._checked:
            return
        if self.places is not None and self.n and not 0 <= int(self.places.min()) <= int(self.places.max()) < 2**62:
            self._refuse("places", f"runs from {self.places.min()} to {self.places.max()}; needed: 0 to below 2**62")
        if self.n == 0 and self.sizes.any():
            self._refuse("sizes", "has entries; needed: none, as there are no rows")
        most = 2 if self.encoder.config.spill else 1
        rows = self.slot_rows.reshape(-1)
        wrong, row = _core.check_slots(self.n, self.first_blocks, self.sizes, rows, most)
        if wrong == "beyond":
            self._refuse("slot_rows", f"names the row {row}; needed: rows below {self.n}")
        if wrong == "missing":
            self._refuse("slot_rows", f"does not name row {row}; needed: each of {self.n} rows in some slot")
        if wrong:
            self._refuse(
                "slot_rows", f"names row {row} too often; needed: each in at most {most} partitions, once in each"
            )
        self._checked = True

    def _refuse(self, name: str, problem: str) -> NoReturn:
        raise FormatError(f"{self.path}: array {name!r} {problem} (the file is damaged)")

    def _view(self) -> _core.Searcher:
        points = self.points
        return _core.Searcher(
            n=self.n,
            first_blocks=self.first_blocks,
            sizes=self.sizes,
            codes=self.codes,
            slot_rows=self.slot_rows.reshape(-1),
            points=points.view(np.uint16) if points is not None and points.dtype == np.float16 else points,
            row_ids=self.numbers,
            effort=self.effort,
            **self.encoder.view(),
        )

    @property
    def kind(self) -> str:
        """What ids are, in words."""
        return "str" if self.names is not None else "int64"

    @property
    def in_order(self) -> bool:
        """Whether ids are listed as the rows come, none missing."""
        return self.live is None and self.places is None

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The rows of the points that are there, in the order of ids."""
        if self.live is None:
            rows = np.arange(self.n)
        else:
            rows = np.flatnonzero(np.unpackbits(self.live, count=self.n, bitorder="little"))
        return rows if self.places is None else rows[np.argsort(self.places[rows], kind="stable")]

    def rows_between(self, first: int, last: int) -> NDArray[np.int64]:
        """The rows from first to below last whose points are there, ascending."""
        rows = np.arange(first, min(last, self.n))
        return rows[self.has(rows)]

    def has(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the points of rows are there."""
        return np.ones(len(rows), np.bool_) if self.live is None else self.live[rows >> 3] >> (rows & 7) & 1 != 0

    @cached_property
    def ranks(self) -> NDArray[np.int32] | None:
        """The place of each row in ids, or how many there are where it was removed; None: its number."""
        if self.in_order:
            return None
        ranks = np.full(self.n, self.count, np.int32)
        ranks[self.rows] = np.arange(self.count, dtype=np.int32)
        return ranks

    @cached_property
    def entries(self) -> int:
        """How many slots are in use."""
        return int(self.sizes.sum())

    def kept(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The points of rows, as near as the copy kept for rescoring is."""
        if self.points is None:
            raise ValueError('the index keeps no copy of its points; needed: one (build it with a rescore= but "none")')
        points = self.encoder.restore(self.points[rows])
        if self.path is None:
            return points
        try:
            return check_vectors(points, "points", small=True)
        except ValueError as error:
            self._refuse("points", f"holds what no point can be: {error}")

    def look_in(self, points: Any) -> Callable[[NDArray[np.int64]], NDArray[np.float32]]:
        """What gives the points of rows from an array of all points in the order of ids."""
        array, ranks = check_vectors(points, "points", d=self.encoder.d), self.ranks
        if len(array) != self.count:
            raise ValueError(f"{len(array)} points were given; needed: {self.count}, one for each of index.ids")
        return lambda rows: array[rows if ranks is None else ranks[rows]]

    def ids_of(self, rows: NDArray[np.int64]) -> IdArray:
        """The ids of rows: int64, or objects that are str."""
        if self.names is not None:
            return self.names.of(rows)
        return rows if self.numbers is None else self.numbers[rows]

    def rows_of(self, ids: IdArray) -> NDArray[np.int64]:
        """The rows of ids; KeyError names one that no point has."""
        rows = self._find(ids)
        if (rows < 0).any():
            raise missing(ids[rows < 0].tolist()[0], self.kind)
        return rows

    def holds(self, ids: IdArray) -> Any:
        """One of the ids that a point has already, or None."""
        found = self.there(ids)
        return ids[found].tolist()[0] if found.any() else None

    def there(self, ids: IdArray) -> NDArray[np.bool_]:
        """Which of the ids a point has."""
        return np.asarray(self._find(ids) >= 0)

    def _find(self, ids: IdArray) -> NDArray[np.int64]:
        """The rows of ids, -1 where there is none."""
        if len(ids) and (ids.dtype == object) != (self.names is not None):
            return np.full(len(ids), -1)
        if self.numbers is not None or self.names is not None:
            return self._look_up(ids)
        rows = np.where((ids >= 0) & (ids < self.n), ids, -1).astype(np.int64)
        if self.live is not None:
            rows[~self.has(rows)] = -1
        return rows

    def _look_up(self, ids: IdArray) -> NDArray[np.int64]:
        """The rows of ids, -1 where there is none."""
        while True:
            known = self._lookup
            if known is None or known.owner is not self._mark:
                known = Lookup(zip(self.ids_of(self.rows).tolist(), self.rows.tolist(), strict=True))
                if len(known) < self.count:
                    self._refuse("names_text" if self.names is not None else "numbers", "has an id twice")
                known.owner = self._mark
                self._lookup = known
            rows = np.fromiter((known.get(value, -1) for value in ids.tolist()), np.int64, len(ids))
            if known.owner is self._mark:  # still: no writer took it meanwhile
                return rows

    # What a writer does to a draft

    def draft(self) -> Store:
        """A state to change, which shares the arrays of this one."""
        self.check_slots()
        other = copy.copy(self)
        for derived in ("rows", "ranks", "entries"):
            other.__dict__.pop(derived, None)
        other._searcher = other.plain = other._lookup = None
        other._mark = object()
        other.settings = {}
        other.first_blocks, other.sizes, other.room = self.first_blocks.copy(), self.sizes.copy(), self.room.copy()
        return other

    def share_out(self, effort: NDArray[np.float32] | None) -> None:
        """Partitions are shared out among queries like this from now on."""
        self.effort = effort
        self.forget_searcher()

    def forget_searcher(self) -> None:
        """Let go of the memory that searches worked in; the next search makes a new view."""
        self._searcher = self.plain = None

    def reserve_slots(self, counts: NDArray[np.int64]) -> None:
        """Make room for so many more entries in each partition; those that have too little move to the end."""
        wanted = -(-(self.sizes + counts) // BLOCK)
        full = np.flatnonzero(wanted > self.room)
        # A partition that grows is expected to grow on; one that is filled for the first time is not.
        room = np.where(self.sizes[full] > 0, wanted[full] + wanted[full] // 2 + 1, wanted[full])
        firsts = self.blocks + np.cumsum(room) - room
        end = self.blocks + int(room.sum())
        self.codes = _grown(self.codes, self.blocks, end, _BLOCK_ROOM)
        self.slot_rows = _grown(self.slot_rows, self.blocks, end, _BLOCK_ROOM)
        self.codes[self.blocks : end] = 0  # so that the same history makes the same file
        self.slot_rows[self.blocks : end] = 0
        used = -(-self.sizes[full].astype(np.int64) // BLOCK)
        if used.any():
            within = np.arange(int(used.sum())) - np.repeat(np.cumsum(used) - used, used)
            old, new = np.repeat(self.first_blocks[full], used) + within, np.repeat(firsts, used) + within
            self.codes[new] = self.codes[old]
            self.slot_rows[new] = self.slot_rows[old]
        self.first_blocks[full], self.room[full] = firsts, room
        self.blocks = end

    def reserve_rows(self, count: int) -> None:
        """Make room for so many more points."""
        if self.points is not None:
            self.points = _grown(self.points, self.n, self.n + count)
        if self.numbers is not None:
            self.numbers = _grown(self.numbers, self.n, self.n + count)

    def put(self, rows: NDArray[np.int64], chosen: NDArray[np.int32], packed: NDArray[np.uint8]) -> None:
        """Write the codes of rows into the next slots of their partitions, where room was made."""
        order = np.argsort(chosen, kind="stable")
        partitions = chosen[order]
        counts = np.bincount(chosen, minlength=len(self.sizes))
        starts = np.cumsum(counts) - counts
        slots = self.first_blocks[partitions] * BLOCK + self.sizes[partitions]
        slots += np.arange(len(order)) - starts[partitions]
        self.codes[slots // BLOCK, :, slots % BLOCK] = packed[order]
        self.slot_rows[slots // BLOCK, slots % BLOCK] = rows[order]
        self.sizes += counts.astype(np.int32)

    def use_rows(self, count: int, ids: IdArray | None, places: NDArray[np.int64] | None = None) -> None:
        """Take the next rows, with their ids, or the next numbers where none are given."""
        first, last = self.n, self.n + count
        if self.names is not None and ids is not None:
            self.names = self.names.extended(first, ids.tolist())
        elif ids is not None or self.numbers is not None or self.next_id != first:
            values = np.arange(self.next_id, self.next_id + count) if ids is None else ids
            if self.numbers is None and not np.array_equal(values, np.arange(first, last)):
                self.numbers = _grown(np.arange(first), first, last)
            if self.numbers is not None:
                self.numbers = _grown(self.numbers, first, last)
                self.numbers[first:last] = values
            if count:
                self.next_id = max(self.next_id, min(int(values.max()) + 1, np.iinfo(np.int64).max - last))
        if ids is None and self.numbers is None:
            self.next_id = last
        if self.places is not None or places is not None:
            before = np.arange(first) if self.places is None else self.places
            # New points come after all that were ever there.
            after = max(int(before.max(initial=-1)) + 1, first) + np.arange(count)
            self.places = np.concatenate([before, after if places is None else places])
        if self.live is not None:
            live = np.zeros((last + 7) // 8, np.uint8)
            live[: len(self.live)] = self.live
            rows = np.arange(first, last)
            np.bitwise_or.at(live, rows >> 3, (1 << (rows & 7)).astype(np.uint8))
            self.live = live
        self.n, self.count = last, self.count + count

    def remove_rows(self, rows: NDArray[np.int64]) -> None:
        """Hide rows, each of which is there."""
        live = np.packbits(np.ones(self.n, np.uint8), bitorder="little") if self.live is None else self.live.copy()
        np.bitwise_and.at(live, rows >> 3, ~(1 << (rows & 7)).astype(np.uint8))
        self.live, self.count = live, self.count - len(rows)

    def take_lookup(self, before: Store, removed: IdArray | None, first: int) -> None:
        """Take the lookup of the state before, without some ids, and with those of the rows from first on."""
        known = before._lookup
        if known is None or known.owner is not before._mark:
            return
        known.owner = None
        for value in () if removed is None else removed.tolist():
            del known[value]
        rows = np.arange(first, self.n)
        known.update(zip(self.ids_of(rows).tolist(), rows.tolist(), strict=True))
        known.owner, self._lookup, before._lookup = self._mark, known, None

    def compacted(self) -> Store:
        """The same points in the same order of ids, without removed ones and without gaps between partitions."""
        self.check_slots()
        kept, new = self.rows, Store(self.encoder, named=self.names is not None)
        row = np.full(self.n, -1, np.int64)
        row[kept] = np.arange(len(kept))
        new.given, new.added, new.distance, new.path = self.given, self.added, self.distance, self.path
        slots, chosen = self.filled()
        standing = self.slot_rows.reshape(-1)
        there = row[standing[slots]] >= 0
        slots, chosen = slots[there], chosen[there]
        new.reserve_slots(np.bincount(chosen, minlength=len(self.sizes)))
        new.reserve_rows(len(kept))
        step = 1 << 16
        for first in range(0, len(slots), step):
            part = slots[first : first + step]
            packed = self.codes[part // BLOCK, :, part % BLOCK]
            new.put(row[standing[part]], chosen[first : first + step], packed)
        if self.points is not None and new.points is not None:
            for first in range(0, len(kept), step):
                new.points[first : first + len(kept[first : first + step])] = self.points[kept[first : first + step]]
        new.use_rows(len(kept), self.ids_of(kept))
        new.hidden = row[self.hidden][row[self.hidden] >= 0]
        new.next_id, new.effort, new.curve, new.target = self.next_id, self.effort, self.curve, self.target
        return new

    def filled(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Every slot in use, and its partition."""
        sizes = self.sizes.astype(np.int64)
        within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        chosen = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        return np.repeat(self.first_blocks * BLOCK, sizes) + within, chosen

    def used_slots(self) -> NDArray[np.int64]:
        """How many slots of each block are in use, the first of it."""
        self.check_slots()
        sizes = self.sizes.astype(np.int64)
        counts = -(-sizes // BLOCK)
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        used = np.zeros(self.blocks, np.int64)
        left = np.repeat(sizes, counts) - BLOCK * within
        used[np.repeat(self.first_blocks, counts) + within] = np.minimum(left, BLOCK)
        return used

    @property
    def drift(self) -> float:
        """How much farther, in squared distance, later points lie from their centroids than those trained on."""
        return self.distance / self.added / self.encoder.distance if self.added and self.encoder.distance > 0 else 1.0

    @property
    def waste(self) -> float:
        """The share of rows that are removed, or a part of the share of blocks that hold nothing, whichever is more.

        2/5 of those left behind by moves: partitions that grow by half each time leave up to 2/3 behind, and to compact
        sooner would make them move again. Where partitions are of a few blocks, half of all that hold nothing: there
        the slots that compacting leaves free in last blocks last for a while.
        """
        blocks, used = max(self.blocks, 1), int((-(-self.sizes // BLOCK)).sum())
        left = 0.4 * (1 - float(self.room.sum()) / blocks)
        empty = 0.5 * (1 - used / blocks) if used <= _FEW_BLOCKS * len(self.sizes) else 0.0
        return max(1 - self.count / max(self.n, 1), left, empty)


def _grown(array: NDArray[Any], used: int, needed: int, room: float = _ROW_ROOM) -> NDArray[Any]:
    """An array with room for so many rows whose first are those in use; a new one unless there is room already."""
    if needed <= len(array) and array.flags.writeable:
        return array
    new = huge_empty((int(room * needed) + 64, *array.shape[1:]), array.dtype.type)
    new[:used] = array[:used]
    return new
