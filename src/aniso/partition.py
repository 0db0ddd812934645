"""Partitions: train centroids, give every point a first and a second one, and order them for a query.

dot and cosine share one geometry: partitions are sets of directions, found by k-means on the unit sphere, and a query
searches them in the order of <q, c/|c|> times a large norm of their points (for cosine every norm is 1). l2 partitions
are cells of plain k-means, searched in the order of their distance.

Centroids are stored in 8 bits, and what is stored is what they are: residuals are taken from the stored centroid, so
that its score plus that of the residual's code loses nothing to the rounding. Points are assigned by what is stored
too.

Many partitions are grouped: a query scores the groups first, then only the partitions of the nearest groups. Partitions
are numbered so that 8 in a row are a group.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aniso import _core
from aniso.kmeans import directions, kmeans, nearest, refill_empty
from aniso.layout import pack_centroids
from aniso.progress import Progress, silent
from aniso.workers import spread

__all__ = ["Assigned", "Packed", "Partitions", "Rows", "train"]

F32 = NDArray[np.float32]
_ROWS = 1024  # points looked at together, by one thread
_WORST = 8  # of them, those farthest from their centroids: where empty partitions may move
_COARSE_SAMPLE, _COARSE_POINTS = 25_000, 12  # points that coarse iterations look at: in all, and per partition
_FINE_ITERATIONS = 3
_LOSS_STEPS = 6  # of conjugate gradients, for centroids of the score-aware loss: within 1% of the solution
_LARGE = 4.0  # times the mean size: larger partitions are divided
_NORM_QUANTILE = 0.9  # of the norms of a partition, by which it is ordered
_LOOKED, _LOOKED_SPILL = 4, 24  # near partitions among which a point's first, or first and second are chosen
_GROUP = 8  # partitions in a group: as many as the kernel scores at once
_PACKED = 256  # centroids looked at together when they are packed
_GROUPED = 1024  # partitions from which on they are grouped: for fewer, scoring all is as fast

Rows = Callable[[NDArray[np.int64]], F32]  # the points of some row numbers, ready for arithmetic
Looked = tuple[F32, NDArray[np.int32], NDArray[Any]]  # points, their partitions, and their costs or norms


class Assigned(NamedTuple):
    """The partitions of points. The cost of a second one is |x-c|^2 + spill <x-c, r/|r|>^2, r what the first leaves."""

    firsts: NDArray[np.int32]
    seconds: NDArray[np.int32] | None  # of least cost
    ratios: F32 | None  # that cost over |r|^2, the largest float32 where r is 0


class Packed(NamedTuple):
    """Centroids as a query meets them: what counts is s * unit * scale + bias, s = <query bytes, centroid bytes>."""

    centroids: NDArray[np.int8]  # (blocks, d4 / 4, 8, 4)
    sums: NDArray[np.int32]  # (8 * blocks,) 64 times their sums
    scales: F32  # (2 or 4, 8 * blocks) scales and biases of the order, and of the base of scores


@dataclass(frozen=True)
class Partitions:
    """Trained partitions."""

    l2: bool
    kept: F32 | None  # (p, d) assigners, where they do not follow from the centroids
    bytes: NDArray[np.int8]  # (p, d) the centroids, in units of scales
    scales: F32  # (p,)
    norms: F32  # (p,) a large norm of the points of each partition
    halves: F32  # (p,) the mean of |x|^2 / 2 over the points of each partition
    unit: bool = False  # points come with norm 1
    threads: int = 1

    @property
    def centroids(self) -> F32:
        """The centroids that residuals are taken from, (p, d)."""
        return self.bytes * self.scales[:, None]

    @property
    def assigners(self) -> F32:
        """What points are assigned by, (p, d): the directions of the centroids, or for l2 the centroids."""
        if self.kept is not None:
            return self.kept
        return self.centroids if self.l2 else directions(self.centroids)

    def assign(self, points: F32, spill: float | None = None, threads: int | None = None) -> Assigned:
        """The partition of each point and, unless spill is None, a second one (SOAR)."""
        x = points if self.l2 or self.unit else directions(points)
        return self._routes.assign(x, spill, self.threads if threads is None else threads)

    @cached_property
    def _routes(self) -> Routes:
        return Routes.to(self.assigners, self.l2)

    def forget_routes(self) -> None:
        """Let go of what only assigning needs; the next time makes it anew."""
        self.__dict__.pop("_routes", None)

    def packed(self) -> Packed:
        """The partitions for the search, with four rows of scales: order and base."""
        p = len(self.bytes)
        packed = _pack(self.bytes, self.scales, self.norms, self.l2)
        table = np.zeros((4, packed.scales.shape[1]), np.float32)
        table[:2] = packed.scales
        table[2, :p] = self.scales
        if self.l2:
            table[3, :p] = -self.halves
        return packed._replace(scales=table)

    def packed_groups(self) -> Packed | None:
        """The groups for the search: the means of their partitions' assigners, with the largest of their norms."""
        return _pack_groups(self.assigners, self.norms, self.l2)


class Routes(NamedTuple):
    """What finds the nearest of many assigners fast: they and their groups in 8 bits."""

    assigners: F32
    partitions: Packed
    groups: Packed | None

    @classmethod
    def to(cls, assigners: F32, l2: bool) -> Routes:
        """Routes to these assigners."""
        ones = np.ones(len(assigners), np.float32)
        return cls(assigners, _pack(*_to_bytes(assigners), ones, l2), _pack_groups(assigners, ones, l2))

    def assign(self, x: F32, spill: float | None, threads: int) -> Assigned:
        """The nearest assigner of each point, and the one to spill into unless spill is None."""
        if spill is None and self.groups is None:  # comparing with all of them is faster than a choice in 8 bits
            return Assigned(nearest(x, self.assigners, threads=threads)[0], None, None)
        firsts = np.empty(len(x), np.int32)
        seconds = None if spill is None else np.empty_like(firsts)
        ratios = None if spill is None else np.empty(len(x), np.float32)
        groups = self.groups
        _core.assign_partitions(
            x,
            self.assigners,
            *self.partitions,
            groups and groups.centroids,
            groups and groups.sums,
            groups and groups.scales,
            _LOOKED if spill is None else _LOOKED_SPILL,
            spill or 0.0,
            firsts,
            seconds,
            ratios,
            threads=threads,
        )
        return Assigned(firsts, seconds, ratios)


def _pack(values: NDArray[np.int8], scales: F32, norms: F32, l2: bool) -> Packed:
    """Centroids for the search, in the order of <q, c/|c|> times a norm, or of -|q - c|^2."""
    p = len(values)
    padded = -(-p // 8) * 8
    sums = np.zeros(padded, np.int32)
    sums[:p] = 64 * values.astype(np.int32).sum(axis=1)
    squared = np.empty(p)
    for first in range(0, p, _PACKED):
        part = slice(first, first + _PACKED)
        centroids = values[part] * scales[part, None].astype(np.float64)
        np.einsum("pd,pd->p", centroids, centroids, out=squared[part])
    table = np.zeros((2, padded), np.float32)
    table[0, :p] = scales
    if l2:
        table[1, :p] = -squared / 2
    else:
        lengths = np.sqrt(squared)
        table[0, :p] *= np.divide(norms, lengths, out=np.zeros(p), where=lengths > 0)
    return Packed(pack_centroids(values), sums, table)


def _pack_groups(assigners: F32, norms: F32, l2: bool) -> Packed | None:
    """The mean of every 8 assigners, with the largest of their norms; nothing where there are few."""
    p = len(assigners)
    if p < _GROUPED:
        return None
    firsts = np.arange(0, p, _GROUP)
    means = np.add.reduceat(assigners, firsts, dtype=np.float64) / np.minimum(_GROUP, p - firsts)[:, None]
    return _pack(*_to_bytes(means), np.maximum.reduceat(norms, firsts), l2)


def train(
    rows: Rows,
    sample: NDArray[np.int64],
    p: int,
    *,
    l2: bool,
    unit: bool,
    rng: np.random.Generator,
    iterations: int,
    eta: float = 1.0,
    threads: int = 1,
    progress: Progress = silent,
) -> Partitions:
    """K-means over the sampled rows, a block at a time, then centroids and norms from the final assignment.

    unit says that the rows have norm 1 as they come. With an eta above 1 the centroids are those of least score-aware
    loss instead of the means.

    All but the last few iterations look at a part of a large sample; partitions that get too large are divided.
    """

    def blocks(numbers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        return [numbers[first : first + _ROWS] for first in range(0, len(numbers), _ROWS)]

    def ready(block: NDArray[np.int64]) -> F32:
        x = rows(block)
        return x if l2 or unit else directions(x)

    def look(assigners: F32, routes: Routes | None, block: NDArray[np.int64], share: int) -> Looked:
        x = ready(block)
        return x, *_nearest(x, assigners, routes, share)

    def place(routes: Routes, block: NDArray[np.int64], share: int) -> Looked:
        x = rows(block)
        firsts = routes.assign(x if l2 or unit else directions(x), None, share).firsts
        return x, firsts, np.sqrt(np.einsum("nd,nd->n", x, x, dtype=np.float64))

    part = sample[:: max(1, len(sample) // max(_COARSE_SAMPLE, _COARSE_POINTS * p))]
    assigners = ready(np.sort(rng.choice(sample, p, replace=False)))
    coarse = max(0, iterations - _FINE_ITERATIONS)
    for iteration in range(iterations):
        progress("partitions", iteration, iterations)
        if iteration >= coarse and p >= _GROUPED:
            assigners = assigners[_in_groups(assigners, rng)]
        sums, totals, worst = np.zeros(assigners.shape), np.zeros(p), []
        routes = Routes.to(assigners, l2) if iteration >= coarse else None
        seen = blocks(sample if routes else part)
        for x, codes, costs in spread(partial(look, assigners, routes), seen, threads):
            _add_sums(x, codes, sums, totals)
            far = np.argpartition(-costs, min(_WORST, len(x)) - 1)[:_WORST]
            worst.append((costs[far], x[far]))
        assigners = _means(sums, totals, assigners, l2)
        costs, candidates = np.concatenate([c for c, _ in worst]), np.concatenate([x for _, x in worst])
        refill_empty(assigners, totals == 0, candidates, costs)
        if iteration < iterations - 1:
            _divide_large(assigners, totals, rng, l2)
    progress("partitions", iterations, iterations)

    sums, totals = np.zeros(assigners.shape), np.zeros(p)
    all_codes, all_norms = [], []
    routes = Routes.to(assigners, l2)
    for x, codes, norms in spread(partial(place, routes), blocks(sample), threads):
        _add_sums(x, codes, sums, totals)
        all_codes.append(codes)
        all_norms.append(norms)
    means = np.where(totals[:, None] > 0, sums / np.maximum(totals, 1)[:, None], assigners)
    if eta > 1:
        units = (directions(rows(block)) for block in itertools.cycle(blocks(sample)))
        means = _score_aware(means, units, all_codes, sums, totals, eta, threads)
    values, scales = _to_bytes(means)
    norms, codes = np.concatenate(all_norms), np.concatenate(all_codes)
    halves = np.bincount(codes, norms**2 / 2, p) / np.maximum(np.bincount(codes, minlength=p), 1)
    large = _quantiles(norms, codes, p)
    # A centroid of the score-aware loss is no mean, and one of 0 has no direction.
    follow = l2 or (eta == 1 and bool(values.any(axis=1).all()))
    return Partitions(
        l2, None if follow else assigners, values, scales, large, halves.astype(np.float32), unit, threads
    )


def _to_bytes(values: NDArray[np.floating]) -> tuple[NDArray[np.int8], F32]:
    """Rows as whole numbers from -63 to 63, and the unit of each row."""
    largest = np.abs(values).max(axis=1)
    scales = (largest / 63).astype(np.float32)
    scales[scales == 0] = 1  # also of the smallest numbers there are
    return np.rint(values / scales[:, None]).astype(np.int8), scales


def _nearest(x: F32, assigners: F32, routes: Routes | None, threads: int) -> tuple[NDArray[np.int32], F32]:
    """The nearest assigner of each point, by way of groups where there are routes with some; the squared distances."""
    if routes is None or routes.groups is None:
        return nearest(x, assigners, threads=threads)
    codes = routes.assign(x, None, threads).firsts
    residuals = x - assigners[codes]
    return codes, np.einsum("nd,nd->n", residuals, residuals)


def _in_groups(assigners: F32, rng: np.random.Generator) -> NDArray[np.int64]:
    """An order of the partitions in which 8 in a row are near each other.

    Sets are halved by 2-means, at multiples of 8, until 8 are left.
    """
    done, todo = [], [np.arange(len(assigners))]
    while todo:
        numbers = todo.pop()
        if len(numbers) <= _GROUP:
            done.append(numbers)
            continue
        x = assigners[numbers]
        found = kmeans(x, 2, rng=rng, iterations=3)
        along = np.einsum("nd,d->n", x, found.centroids[1] - found.centroids[0])
        most = -(-len(numbers) // _GROUP) - 1
        half = _GROUP * min(max(round(np.count_nonzero(found.codes == 0) / _GROUP), 1), most)
        order = np.argsort(along, kind="stable")
        todo += [numbers[order[half:]], numbers[order[:half]]]
    return np.concatenate(done)


def _add_sums(x: F32, codes: NDArray[np.int32], sums: NDArray[np.float64], totals: NDArray[np.float64]) -> None:
    _core.sum_by_group(x, np.ones(len(x), np.float32), codes, sums, totals, add=True)


def _means(sums: NDArray[np.float64], totals: NDArray[np.float64], before: F32, l2: bool) -> F32:
    """Means, made unit vectors unless l2; what no point chose, or what cancels out, stays as it was."""
    lengths = np.ones(len(sums)) if l2 else np.sqrt(np.einsum("pd,pd->p", sums, sums))
    divisor = totals if l2 else lengths
    good = (totals > 0) & (divisor > 1e-12)
    return np.where(good[:, None], sums / np.where(good, divisor, 1.0)[:, None], before).astype(np.float32)


def _score_aware(
    means: NDArray[np.float64],
    units: Iterator[F32],
    codes: list[NDArray[np.int32]],
    sums: NDArray[np.float64],
    totals: NDArray[np.float64],
    eta: float,
    threads: int,
) -> NDArray[np.float64]:
    """The c of each partition with the least sum of |x - c|^2 + (eta - 1) <x - c, u>^2 over its points, u = x / |x|.

    They solve (n + (eta - 1) sum u u^T) c = eta sum x, n the number of points: conjugate gradients from the means, for
    all partitions at once. `units` gives the u of block after block, again and again; codes are those of one round.
    """

    def times_a(c: NDArray[np.float64]) -> NDArray[np.float64]:
        result: NDArray[np.float64] = totals[:, None] * c
        narrow, part, count = c.astype(np.float32), np.empty_like(c), np.empty_like(totals)
        for chosen in codes:
            u = next(units)
            along = np.einsum("nd,nd->n", u, narrow[chosen])
            _core.sum_by_group(u, along, chosen, part, count, threads=threads)
            result += (eta - 1) * part
        return result

    def dot(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.einsum("pd,pd->p", a, b)[:, None])

    c: NDArray[np.float64] = means.copy()
    residual = eta * sums - times_a(c)
    residual[totals == 0] = 0
    step, length = residual.copy(), dot(residual, residual)
    for _ in range(_LOSS_STEPS):
        a_step = times_a(step)
        curvature = dot(step, a_step)
        share = np.divide(length, curvature, out=np.zeros_like(length), where=curvature > 0)
        c += share * step
        residual -= share * a_step
        length, before = dot(residual, residual), length
        step = residual + np.divide(length, before, out=np.zeros_like(length), where=before > 0) * step
    return c


def _divide_large(assigners: F32, totals: NDArray[np.float64], rng: np.random.Generator, l2: bool) -> None:
    """Put the centroids of the smallest partitions beside those of the ones over _LARGE times the mean, in place."""
    large = np.flatnonzero(totals > _LARGE * totals.mean())[: len(totals) // 4]
    small = np.argsort(totals, kind="stable")[: len(large)]
    noise = rng.normal(size=(len(large), assigners.shape[1]))
    lengths = np.sqrt(np.einsum("pd,pd->p", assigners[large], assigners[large], dtype=np.float64))
    beside = assigners[large] + 0.01 * noise * lengths[:, None] / np.sqrt(assigners.shape[1])
    assigners[small] = beside if l2 else directions(beside.astype(np.float32))


def _quantiles(norms: NDArray[np.float64], codes: NDArray[np.int32], p: int) -> F32:
    """A large quantile of the norms in each partition, that of all points where it is empty."""
    order = np.lexsort((norms, codes))
    bounds = np.searchsorted(codes[order], np.arange(p + 1))
    sizes = np.diff(bounds)
    at = bounds[:-1] + np.maximum(np.ceil(_NORM_QUANTILE * sizes).astype(np.int64) - 1, 0)
    chosen = norms[order[np.minimum(at, len(norms) - 1)]]
    return np.where(sizes > 0, chosen, np.quantile(norms, _NORM_QUANTILE)).astype(np.float32)
