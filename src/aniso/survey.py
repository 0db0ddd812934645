"""A survey of an index: how many partitions and candidates it takes to find each true neighbour of a sample of queries.

One exact search gives the true neighbours. The core says, for a ladder of numbers, which partitions a query would look
at, and, from one scan of the most of them, the candidates in the order in which they would be taken. From these follows
the recall of every pair of a step of the ladder and a number of candidates, without searching for each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aniso import _core
from aniso.exact import ExactIndex
from aniso.layout import BLOCK
from aniso.store import Store

__all__ = ["Survey", "exact_rows", "homes", "slot_partitions", "survey", "without"]

F32 = NDArray[np.float32]
Ints = NDArray[np.int64]
Places = NDArray[np.int16] | NDArray[np.int32]

_CHUNK = 4096  # points scored exactly together
_QUERIES = 32  # queries surveyed together
_FEW = 4  # of them, whose candidates are looked at for every step of the ladder at once
_MOST = 1024  # candidates looked at; 16 bits count them
_STEP = 2**0.25  # from one number of partitions to the next
_ENOUGH = 0.999  # of the true neighbours: more partitions are not looked at
_NEVER = 255  # no step of the ladder


class Survey(NamedTuple):
    """What was found."""

    partitions: Ints  # (steps,) ascending
    ranks: NDArray[np.int16]  # (steps, queries, k) candidates it takes to find each true neighbour
    enough: dict[int, NDArray[np.int16]]  # of some k: (steps, queries) candidates that make k different points
    most: int  # ranks above stand for: not found

    def recalls(self, k: int) -> NDArray[np.float64]:
        """The recall at k of each step with 0, 1, .. `most` candidates: (steps, most + 1)."""
        counts = [np.bincount(ranks[:, :k].ravel(), minlength=self.most + 2) for ranks in self.ranks]
        return np.asarray(np.cumsum(counts, axis=1)[:, :-1] / (self.ranks.shape[1] * k))

    def short(self, k: int) -> NDArray[np.float64]:
        """The share of queries that find fewer than k points: (steps, most + 1)."""
        counts = [np.bincount(enough, minlength=self.most + 2) for enough in self.enough[k]]
        return np.asarray(1 - np.cumsum(counts, axis=1)[:, :-1] / self.ranks.shape[1])

    def shares(self, k: int, step: int, candidates: int) -> NDArray[np.float64]:
        """The recall at k of each query."""
        return np.asarray((self.ranks[step, :, :k] <= candidates).mean(axis=1))


def survey(store: Store, queries: F32, own: Ints, truth: Ints, ks: list[int], threads: int) -> Survey:
    """Survey a state; truth are the rows of true neighbours, own those of the queries where these are points.

    How many candidates make k different points is counted for ks.
    """
    places = slot_partitions(store)
    standing_in = homes(store, truth, places)
    _core.release_memory()
    ladder, buckets = _route(store, queries, standing_in, threads)
    del standing_in
    store.forget_searcher()
    _core.release_memory()
    standing = store.slot_rows[: store.blocks].reshape(-1)
    bits, there = None, store.entries
    if store.live is not None:
        live = np.unpackbits(store.live, count=store.n, bitorder="little").view(np.bool_)
        slots = live[standing] & (places >= 0).reshape(-1)
        bits, there = np.packbits(slots, bitorder="little"), int(np.count_nonzero(slots))
    most = min(_MOST, there)
    # Query by query, so that memory is touched as it is needed.
    ranks = np.empty((len(queries), len(ladder), truth.shape[1]), np.int16).transpose(1, 0, 2)
    enough = np.full((len(ladder), len(queries), len(ks)), most + 1, np.int16)
    searcher, numbers = _slot_searcher(store), np.arange(len(ladder), dtype=np.uint8)
    for first in range(0, len(queries), _QUERIES):
        part = slice(first, min(first + _QUERIES, len(queries)))
        ranks[:, part] = most + 1
        first_steps = buckets.popleft()  # memory goes from buckets to ranks, a few queries at a time
        _core.release_memory()
        shape = part.stop - first, most
        found, scores = np.empty(shape, np.int64), np.empty(shape, np.float32)
        searcher.search(queries[part], int(ladder[-1]), most, found, scores, allowed=bits, threads=threads)
        for few in (slice(at, min(at + _FEW, part.stop)) for at in range(first, part.stop, _FEW)):
            here = slice(few.start - first, few.stop - first)
            taken_slots = found[here]
            steps = np.take_along_axis(first_steps[here], places.reshape(-1)[taken_slots], axis=1)
            rows = standing[taken_slots]
            if len(own):
                steps[rows == own[few, None]] = _NEVER
            within = steps[:, :, None] <= numbers
            taken = np.cumsum(within, axis=1, dtype=np.int16)
            _rank(within, taken, rows, truth[few], ranks[:, few])
            near = slice(0, 2 * ks[-1])
            _distinct(within[:, near], taken[:, near], rows[:, near], ks, enough[:, few])
    return Survey(ladder, ranks, {k: enough[:, :, at] for at, k in enumerate(ks)}, most)


def exact_rows(
    store: Store, queries: F32, own: Ints, k: int, rows: Callable[[Ints], F32], threads: int
) -> NDArray[np.int64]:
    """The rows of the k best points of each query, but for its own; a chunk of points at a time."""
    wanted = k + (len(own) > 0)
    best, scores = np.empty((len(queries), wanted), np.int64), np.empty((len(queries), wanted), np.float32)
    known = 0  # how many of the wanted there are so far
    for first in range(0, store.n, _CHUNK):
        numbers = store.rows_between(first, first + _CHUNK)
        if not len(numbers):
            continue
        found = ExactIndex(rows(numbers), metric=store.encoder.config.metric).search(queries, wanted, threads=threads)
        for few in (slice(at, at + _QUERIES) for at in range(0, len(queries), _QUERIES)):
            merged = np.concatenate([best[few, :known], numbers[found.ids[few]]], axis=1)
            both = np.concatenate([scores[few, :known], found.scores[few]], axis=1)
            order = np.argsort(-both, axis=1, kind="stable")[:, :wanted]
            best[few, : order.shape[1]] = np.take_along_axis(merged, order, axis=1)
            scores[few, : order.shape[1]] = np.take_along_axis(both, order, axis=1)
        known = min(known + found.ids.shape[1], wanted)
    return without(best[:, :known], own)


def without(rows: Ints, own: Ints) -> Ints:
    """Rows (queries, k + 1), best first, without that of the query, or without the last where it is not among them."""
    if not len(own):
        return rows
    others = rows != own[:, None]
    others[others.all(axis=1), -1] = False
    return np.asarray(rows[others].reshape(len(rows), -1))


def _rank(
    within: NDArray[np.bool_],  # (queries, candidates, steps) whether a candidate is one at a step
    taken: NDArray[np.int16],  # (queries, candidates, steps) and how many there are up to it
    rows: NDArray[np.int32],  # (queries, candidates)
    truth: Ints,  # (queries, k)
    ranks: NDArray[np.int16],  # (steps, queries, k) out; as they are where a neighbour is not found
) -> None:
    """How many candidates it takes to find each true neighbour."""
    order, missed = np.argsort(truth, axis=1), ranks[0, 0, 0]
    for query in range(len(truth)):
        near = truth[query, order[query]]
        place = np.minimum(np.searchsorted(near, rows[query]), len(near) - 1)
        hits = np.flatnonzero(near[place] == rows[query])
        which = order[query, place[hits]]
        needed = np.where(within[query, hits], taken[query, hits], missed).T
        # A point that spilled is there twice: the second time is written first.
        ranks[:, query, which[::-1]] = needed[:, ::-1]
        ranks[:, query, which] = np.minimum(ranks[:, query, which], needed)


def _distinct(
    within: NDArray[np.bool_],
    taken: NDArray[np.int16],
    rows: NDArray[np.int32],
    ks: list[int],
    enough: NDArray[np.int16],  # (steps, queries, ks) out
) -> None:
    """How many candidates make k different points."""
    order = np.argsort(rows, axis=1, kind="stable")
    ordered = np.take_along_axis(rows, order, axis=1)
    query, at = np.nonzero(ordered[:, 1:] == ordered[:, :-1])  # a point that is there twice counts once
    new = within.copy()
    new[query, order[query, at + 1]] &= ~within[query, order[query, at]]
    different = np.cumsum(new, axis=1, dtype=np.int16)
    for number, k in enumerate(ks):
        reached = different >= k
        needed = np.take_along_axis(taken, reached.argmax(axis=1)[:, None], axis=1)[:, 0]
        enough[:, :, number] = np.where(reached[:, -1], needed, enough[:, :, number].T).T


def _route(store: Store, queries: F32, near: NDArray[np.int32], threads: int) -> tuple[Ints, deque[NDArray[np.uint8]]]:
    """A ladder of numbers of partitions, and the first step at which each query looks at each of them.

    The steps are (queries, p), of a few queries at a time.
    """
    p, parts = len(store.sizes), range(0, len(queries), _QUERIES)
    buckets = deque(np.full((len(queries[first : first + _QUERIES]), p), _NEVER, np.uint8) for first in parts)
    ladder: list[int] = []
    count = 1
    while True:
        reached = 0
        for first, block in zip(parts, buckets, strict=True):
            chosen = np.empty(block.shape, np.int32)
            store.searcher.route(queries[first : first + _QUERIES], count, chosen, threads=threads)
            for own, row in zip(block, chosen, strict=True):
                looked = row[: np.count_nonzero(row >= 0)]
                own[looked] = np.minimum(own[looked], np.uint8(len(ladder)))
            seen = np.take_along_axis(block[:, None, :], near[first : first + _QUERIES], axis=2) < _NEVER
            reached += int(np.count_nonzero(seen.any(axis=1)))
        ladder.append(count)
        if count == p or reached >= _ENOUGH * near[:, 0].size or len(ladder) == _NEVER:
            return np.array(ladder), buckets
        count = min(p, max(count + 1, round(count * _STEP)))


def homes(store: Store, truth: Ints, places: Places) -> NDArray[np.int32]:
    """The partitions of the rows of truth, (queries, 2, k): a point in one has it twice. Places are slot_partitions."""
    wanted = np.zeros(store.n, np.bool_)
    wanted[truth] = True
    standing = store.slot_rows[: store.blocks]
    slots = np.nonzero(wanted[standing] & (places >= 0))
    rows, partitions = standing[slots], places[slots]
    found, last = np.empty((len(truth), 2, truth.shape[1]), np.int32), np.empty(store.n, np.int32)
    last[rows] = partitions
    found[:, 0] = last[truth]
    last[rows[::-1]] = partitions[::-1]
    found[:, 1] = last[truth]
    return found


def slot_partitions(store: Store) -> Places:
    """The partition of each slot, (blocks, 32), in as few bytes as hold it; -1 where it is empty."""
    blocks = -(-store.sizes.astype(np.int64) // BLOCK)
    within = np.arange(int(blocks.sum())) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    used = np.repeat(store.first_blocks, blocks) + within
    filled = np.repeat(store.sizes, blocks) - within * BLOCK
    dtype = np.int16 if len(blocks) < 2**15 else np.int32
    partitions = np.full((store.blocks, BLOCK), -1, dtype)
    numbers = np.repeat(np.arange(len(blocks), dtype=dtype), blocks)
    partitions[used] = np.where(np.arange(BLOCK) < filled[:, None], numbers[:, None], dtype(-1))
    return partitions


def _slot_searcher(store: Store) -> _core.Searcher:
    """Finds slots in the order in which they become candidates: nothing is rescored, and no slot is like another."""
    return _core.Searcher(
        n=store.blocks * BLOCK,
        first_blocks=store.first_blocks,
        sizes=store.sizes,
        codes=store.codes[: store.blocks],
        slot_rows=np.arange(store.blocks * BLOCK, dtype=np.int32),
        points=None,
        row_ids=None,
        effort=store.effort,
        **store.encoder.view(),
    )
