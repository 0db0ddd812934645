"""How an index changes: each function takes the present state and returns the next one, prepared beside it.

Nothing here touches the state it is given, so that searches may go on reading it; index.py puts the next in its place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aniso import _core
from aniso.arrays import as_array
from aniso.config import SMALL, Config
from aniso.encoder import ROWS, Choice, Encoder, spread_blocks, train_encoder
from aniso.errors import check_vectors
from aniso.ids import IdArray, as_ids, check_unique, in_order
from aniso.progress import Progress
from aniso.spill import choose
from aniso.store import Store
from aniso.tune import hold_out

__all__ = ["added", "checked", "outdated", "removed", "retrained", "tidied", "updated"]

_GROWTH = 4  # times the points it was trained for: from there on an index is trained anew
_DRIFT = 1.3  # Store.drift, where half of the points are new, from which on it is
_WASTE = 0.25  # Store.waste from which on a change compacts

Encoded = tuple[NDArray[np.int64], list[Choice], list[NDArray[np.uint8]], float]  # rows, and what Encoder.encode gives


def checked(encoder: Encoder, points: ArrayLike) -> NDArray[Any]:
    """Points that may be added: every row is looked at before any is."""
    array = as_array(points, "points")
    if array.ndim != 2:
        check_vectors(array, "points", d=encoder.d)
    for _ in spread_blocks(array, encoder.d, encoder.threads, lambda first, block, _: encoder.check(block, first)):
        pass
    if array.shape[1] != encoder.d:
        check_vectors(array, "points", d=encoder.d)
    return array


def added(before: Store, array: NDArray[Any], ids: Any, progress: Progress) -> Store:
    """With more points, which were checked; their ids are, here."""
    given = _new_ids(before, ids, len(array))
    draft = before.draft()
    if given is not None and given.dtype == object and draft.names is None:  # the first points decide
        draft = Store(before.encoder, named=True)
        draft.effort, draft.curve, draft.target = before.effort, before.curve, before.target
    draft.given = given is not None or before.given
    first = draft.n
    _append(draft, array, given, None, progress)
    draft.take_lookup(before, None, first)
    return draft


def removed(before: Store, ids: IdArray) -> Store:
    """Without the points of these ids."""
    rows = before.rows_of(ids)
    draft = before.draft()
    draft.remove_rows(rows)
    draft.take_lookup(before, ids, draft.n)
    return draft


def updated(before: Store, array: NDArray[Any], ids: Any, progress: Progress) -> Store:
    """With other vectors, which were checked, for the points of these ids."""
    wanted = as_ids(in_order(ids), len(array))
    check_unique(wanted)
    rows = before.rows_of(wanted)
    draft = before.draft()
    draft.remove_rows(rows)
    places = rows if before.places is None else before.places[rows]
    first, next_id = draft.n, draft.next_id
    _append(draft, array, wanted, places, progress)
    draft.next_id = next_id
    draft.take_lookup(before, wanted, first)
    return draft


def outdated(store: Store) -> bool:
    """Whether other partitions would suit better: there are many more points by now, or half are of another kind."""
    encoder = store.encoder
    if not encoder.automatic or store.points is None or store.count <= SMALL:
        return False
    replaced = 2 * store.added >= store.count and store.drift > _DRIFT
    return replaced or store.count > _GROWTH * encoder.expected


def tidied(store: Store) -> Store:
    """The same, compacted if much of it is unused."""
    return store.compacted() if store.count and store.waste > _WASTE else store


def retrained(store: Store, threads: int, progress: Progress) -> Store:
    """The same points and ids in new partitions."""
    if not store.count:
        raise ValueError("the index has no points; needed: at least 1 to train partitions for (call add(points) first)")
    wish, rows = store.encoder.config, store.rows
    if store.encoder.automatic:
        wish = replace(wish, partitions=None, sample=None, spill=wish.spill or Config.spill)
    kept = _Kept(store, rows)
    hidden = hold_out(len(rows), wish.seed)
    encoder = train_encoder(kept, len(rows), wish, store.encoder.d, threads, progress, hidden)
    new = Store(encoder, named=store.names is not None)
    new.hidden = hidden
    _append(new, kept, store.ids_of(rows), None, progress)
    new.given, new.next_id, new.added, new.distance = store.given, store.next_id, 0, 0.0
    return new


class _Kept:
    """The points of an index as training reads them: rows by number or slice, restored as they are needed."""

    ndim = 2

    def __init__(self, store: Store, rows: NDArray[np.int64]) -> None:
        self._store, self._rows = store, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, numbers: Any) -> NDArray[np.float32]:
        return self._store.kept(self._rows[numbers])


def _new_ids(store: Store, ids: Any, count: int) -> IdArray | None:
    """The ids for new points, none of which is there already; None where they are numbered."""
    if ids is None:
        if store.given:
            raise ValueError(f"the points of this index have {store.kind} ids of their own; needed: ids= for new ones")
        return None
    given = as_ids(in_order(ids), count)
    check_unique(given)
    if count and store.n and (given.dtype == object) != (store.names is not None):
        new = "str" if given.dtype == object else "int64"
        raise TypeError(f"id {given.tolist()[0]!r} is {new}, and the index has {store.kind} ids; needed: one kind")
    there = store.holds(given) if store.n else None
    if there is not None:
        raise ValueError(f"id {there!r} is in the index already (update(points, ids) replaces a point)")
    return given


def _append(
    draft: Store, array: Any, ids: IdArray | None, places: NDArray[np.int64] | None, progress: Progress
) -> None:
    """Write points that were checked into a draft: choose all partitions first, so that room is made once."""
    encoder, count, threads = draft.encoder, len(array), draft.encoder.threads
    assigned = list(spread_blocks(array, encoder.d, threads, lambda _, block, share: encoder.assign(block, share)))
    choices = choose(assigned, encoder.p, encoder.spill_limit, fill=not draft.n)
    del assigned
    _core.release_memory()  # before the index takes its own
    counts = np.zeros(encoder.p, np.int64)
    for chosen in choices:
        for choice in chosen:
            counts += np.bincount(choice.partitions, minlength=encoder.p)
    draft.reserve_slots(counts)
    draft.reserve_rows(count)

    def encode(first: int, block: NDArray[np.float32], share: int) -> Encoded:
        if draft.points is not None:
            draft.points[draft.n + first : draft.n + first + len(block)] = encoder.copy(block)
        chosen = choices[first // ROWS]
        packed, distance = encoder.encode(block, chosen, share)
        return np.arange(draft.n + first, draft.n + first + len(block)), chosen, packed, distance

    for rows, chosen, packed, distance in spread_blocks(array, encoder.d, threads, encode):
        progress("add", int(rows[0]) - draft.n, count)
        for choice, codes in zip(chosen, packed, strict=True):
            draft.put(rows[choice.rows], choice.partitions, codes)
        draft.distance += distance
    draft.added += count
    draft.use_rows(count, ids, places)
    progress("add", count, count)
