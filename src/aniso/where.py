"""where=: which points a search may return, and how best to search among them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aniso import _core
from aniso.exact import ExactIndex
from aniso.ids import as_ids
from aniso.results import Result
from aniso.store import Store

__all__ = ["Allowed", "allowed_by"]

_EXACT = 16  # points scanned by their codes in the time that one is gathered and scored exactly


@dataclass(frozen=True)
class Allowed:
    """The points that a search may return; `Index.allow` makes one, for use as where= in many searches."""

    store: Store
    bits: NDArray[np.uint8]  # bit row % 8 of byte row // 8
    count: int

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """Their rows, ascending."""
        return np.flatnonzero(np.unpackbits(self.bits, count=self.store.n, bitorder="little"))

    def on(self, store: Store) -> Allowed:
        """The same points, by their ids, in another state of the index; those that are gone are left out."""
        if store is self.store:
            return self
        ids = self.store.ids_of(self.rows)
        return allowed_by(store, ids[store.there(ids)])

    @property
    def share(self) -> float:
        """How many of all."""
        return self.count / max(self.store.count, 1)

    def best_exact(self, k: int, partitions: int) -> bool:
        """Whether scoring all of them takes less than a scan of as many partitions as they need."""
        if self.store.points is None:
            return False
        entries = float(self.store.entries)
        scanned = min(partitions / max(self.share, 1e-9) * entries / len(self.store.sizes), entries)
        return self.count <= 2 * k or self.count * _EXACT <= scanned

    def widened(self, partitions: int) -> int:
        """Partitions to look at for the same recall among fewer points: their best are farther from the query.

        Found by measuring on GloVe, where the fourth root keeps recall level from all points down to 5% of them.
        """
        widened = partitions / math.sqrt(math.sqrt(max(self.share, 1e-6)))
        return min(round(widened), len(self.store.sizes))

    def answer(
        self, plain: _core.Searcher, store: Store, query: Any, k: Any, partitions: Any, candidates: Any
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
        """The answer to one query by the shortest way, or None where that does not do."""
        whole = type(k) is int and type(partitions) is int and partitions > 0
        if not whole or store is not self.store or self.best_exact(k, partitions):
            return None
        return plain.answer(query, k, self.widened(partitions), candidates, self.bits)

    def search_exact(self, queries: NDArray[np.float32], k: int, threads: int) -> Result:
        """Rows and scores of the best of them."""
        metric = self.store.encoder.config.metric
        found = ExactIndex(self.store.kept(self.rows), metric=metric).search(queries, k, threads=threads)
        return Result(self.rows[found.ids], found.scores)


def allowed_by(store: Store, where: Any) -> Allowed:
    """What where= allows: a boolean for each point in the order of index.ids, the ids of points, or an Allowed."""
    if isinstance(where, Allowed):
        return where.on(store)
    mask = _as_mask(where)
    if mask is not None:
        if mask.shape != (store.count,):
            shape = mask.shape[0] if mask.ndim == 1 else mask.shape
            raise ValueError(f"where= is a mask of length {shape}; needed: {store.count}, one for each of index.ids")
        count = int(np.count_nonzero(mask))
        if store.in_order:
            return Allowed(store, np.packbits(mask, bitorder="little"), count)
        rows = store.rows[mask]
    else:
        rows = store.rows_of(as_ids(where))
        count = len(rows)
    bits = np.zeros(store.n, np.bool_)
    bits[rows] = True
    if mask is None:
        count = int(np.count_nonzero(bits))  # an id may be given twice
    return Allowed(store, np.packbits(bits, bitorder="little"), count)


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
