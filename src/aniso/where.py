"""where=: which points a search may return, and how best to search among them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aniso import _core
from aniso.ids import as_ids
from aniso.results import Result
from aniso.store import Store

__all__ = ["Allowed", "allowed_by"]

_FEW = 3  # queries that read a mask as it is sooner than it is turned into bits
_SPARSE = 64  # times as many rows as ids: sorting these is faster than marking them among all
_EXACT = 16  # points scanned by their codes in the time that one is gathered and scored exactly


class Allowed:
    """The points that a search may return; `Index.allow` makes one, for use as where= in many searches.

    They are known by a mask in the order of ids, which one query reads as it is, by their rows, or by bits; the other
    forms are made when they are needed, and so is their count. The share of all that they are may come from a part of
    a mask: it decides how many partitions are looked at, or that none are, not which points may be found.
    """

    def __init__(
        self,
        store: Store,
        share: float,
        *,
        mask: NDArray[np.bool_] | None = None,
        rows: NDArray[np.int64] | None = None,
        bits: NDArray[np.uint8] | None = None,
    ) -> None:
        self.store, self.share = store, share
        self._mask, self._rows, self._bits = mask, rows, bits

    @cached_property
    def count(self) -> int:
        """How many they are."""
        if self._rows is not None:
            return len(self._rows)
        return _core.count_set(self._by_row() if self._mask is None else self._mask)

    @property
    def bits(self) -> NDArray[np.uint8]:
        """Bit row % 8 of byte row // 8 for each of them."""
        if self._bits is None:
            self._bits = np.packbits(self._by_row(), bitorder="little")
        return self._bits

    @property
    def rows(self) -> NDArray[np.int64]:
        """Their rows, ascending."""
        if self._rows is None:
            rows = np.empty(self.count, np.int64)
            _core.places_set(self._by_row(), rows)
            self._rows = rows
        return self._rows

    def _by_row(self) -> NDArray[np.bool_]:
        """Whether each row is one of them."""
        if self._bits is not None:
            return np.unpackbits(self._bits, count=self.store.n, bitorder="little").view(np.bool_)
        if self._mask is not None and self.store.ranks is None:
            return self._mask
        by_row = np.zeros(self.store.n, np.bool_)
        if self._mask is not None:
            by_row[self.store.rows] = self._mask
        else:
            by_row[self.rows] = True
        return by_row

    def kept(self) -> Allowed:
        """The same, whatever becomes of the mask that was given."""
        return Allowed(self.store, self.share, bits=self.bits)

    def form(self, queries: int) -> dict[str, Any]:
        """What the core is given: bits are smaller, a mask needs no conversion."""
        if self._mask is None or queries > _FEW:
            return {"allowed": self.bits}
        return {"mask": self._mask, "places": self.store.ranks}

    def on(self, store: Store) -> Allowed:
        """The same points, by their ids, in another state of the index; those that are gone are left out."""
        if store is self.store:
            return self
        ids = self.store.ids_of(self.rows)
        return allowed_by(store, ids[store.there(ids)])

    def best_exact(self, k: int, partitions: int) -> bool:
        """Whether scoring all of them takes less than a scan of as many partitions as they need."""
        if self.store.points is None:
            return False
        entries = float(self.store.entries)
        scanned = min(partitions / max(self.share, 1e-9) * entries / len(self.store.sizes), entries)
        count = self.share * self.store.count
        return count <= 2 * k or count * _EXACT <= scanned

    def widened(self, partitions: int) -> int:
        """Partitions to look at for the same recall among fewer points: their best are farther from the query.

        Found by measuring on GloVe, where this keeps recall level from all points down to 3% of them.
        """
        widened: float = partitions * max(1.0, 0.94 * max(self.share, 1e-6) ** (-1 / 3))
        return min(round(widened), len(self.store.sizes))

    def answer(
        self, plain: _core.Searcher, store: Store, query: Any, k: Any, partitions: Any, candidates: Any
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
        """The answer to one query by the shortest way, or None where that does not do."""
        whole = type(k) is int and type(partitions) is int and 0 < partitions < 1 << 31
        if not whole or store is not self.store or self.best_exact(k, partitions):
            return None
        looked = self.widened(partitions)
        if self._mask is not None:
            return plain.answer(query, k, looked, candidates, None, self._mask, store.ranks)
        return plain.answer(query, k, looked, candidates, self.bits)

    def search_exact(self, queries: NDArray[np.float32], k: int, threads: int) -> Result:
        """The best of them, all of which are scored."""
        ids, scores = np.empty((len(queries), k), np.int64), np.empty((len(queries), k), np.float32)
        self.store.searcher.among(queries, self.rows, ids, scores, threads=threads)
        return Result(ids, scores)


def allowed_by(store: Store, where: Any) -> Allowed:
    """What where= allows: a boolean for each point in the order of index.ids, the ids of points, or an Allowed."""
    if isinstance(where, Allowed):
        return where.on(store)
    mask = _as_mask(where)
    if mask is not None:
        if mask.shape != (store.count,):
            shape = mask.shape[0] if mask.ndim == 1 else mask.shape
            raise ValueError(f"where= is a mask of length {shape}; needed: {store.count}, one for each of index.ids")
        mask = np.ascontiguousarray(mask)
        return Allowed(store, _share(store, mask), mask=mask)
    rows = store.rows_of(as_ids(where))
    if _SPARSE * len(rows) < store.n:
        rows = np.unique(rows)  # an id may be given twice
        return Allowed(store, len(rows) / max(store.count, 1), rows=rows)
    by_row = np.zeros(store.n, np.bool_)
    by_row[rows] = True
    return Allowed(store, _share(store, by_row), bits=np.packbits(by_row, bitorder="little"))


def _share(store: Store, mask: NDArray[np.bool_]) -> float:
    """The share of all points that a mask by ids or by rows allows, the same for both."""
    return _core.share_set(mask) if store.in_order else _core.count_set(mask) / max(store.count, 1)


def _as_mask(where: Any) -> NDArray[np.bool_] | None:
    """where= as booleans, if it is that."""
    if isinstance(where, np.ndarray):
        return where if where.dtype == np.bool_ else None
    if isinstance(where, (list, tuple)):
        return np.array(where) if where and all(isinstance(x, (bool, np.bool_)) for x in where) else None
    if isinstance(where, (set, frozenset, str, int, range)) or not hasattr(where, "__array__"):
        return None
    array = np.asarray(where)
    return array if array.dtype == np.bool_ else None
