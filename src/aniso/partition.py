"""Partitions: train centroids, give every point a first and a second one, and order them for a query.

dot and cosine share one geometry: partitions are sets of directions, found by k-means on the unit sphere, and a query
searches them in the order of <q, c/|c|> times a large norm of their points (for cosine every norm is 1). l2 partitions
are cells of plain k-means, searched in the order of their distance.

Centroids are stored in 8 bits, and what is stored is what they are: residuals are taken from the stored centroid, so
that its score plus that of the residual's code loses nothing to the rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aniso import _core
from aniso.kmeans import directions, nearest, refill_empty
from aniso.layout import pack_centroids
from aniso.progress import Progress, silent

__all__ = ["Partitions", "train"]

F32 = NDArray[np.float32]
_ROWS = 16384  # points looked at together
_COARSE_SAMPLE, _COARSE_POINTS = 50_000, 32  # points that coarse iterations look at: in all, and per partition
_FINE_ITERATIONS = 3
_LARGE = 4.0  # times the mean size: larger partitions are divided
_NORM_QUANTILE = 0.9  # of the norms of a partition, by which it is ordered

Rows = Callable[[NDArray[np.int64]], F32]  # the points of some row numbers, ready for arithmetic


@dataclass(frozen=True)
class Partitions:
    """Trained partitions."""

    l2: bool
    assigners: F32  # (p, d) what points are assigned by: unit vectors, or means for l2
    bytes: NDArray[np.int8]  # (p, d) the centroids, in units of scales
    scales: F32  # (p,)
    norms: F32  # (p,) a large norm of the points of each partition
    halves: F32  # (p,) the mean of |x|^2 / 2 over the points of each partition
    threads: int = 1

    @property
    def centroids(self) -> F32:
        """The centroids that residuals are taken from, (p, d)."""
        return self.bytes * self.scales[:, None]

    def assign(self, points: F32) -> NDArray[np.int32]:
        """The partition of each point."""
        return nearest(points if self.l2 else directions(points), self.assigners, threads=self.threads)[0]

    def spill(self, points: F32, firsts: NDArray[np.int32], strength: float, gram: F32) -> NDArray[np.int32]:
        """The second partition of each point (SOAR): least |x-c|^2 + strength <x-c, r/|r|>^2, r = x - first."""
        x = points if self.l2 else directions(points)
        residuals = x - self.assigners[firsts]
        lengths = np.sqrt(np.einsum("nd,nd->n", residuals, residuals, dtype=np.float64))
        inverse = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        along = np.einsum("nd,nd->n", x, residuals, dtype=np.float64) * inverse
        codes, costs = np.empty(len(x), np.int32), np.empty(len(x), np.float32)
        _core.assign_spill(
            x,
            self.assigners,
            gram,
            firsts,
            along.astype(np.float32),
            inverse.astype(np.float32),
            strength,
            codes,
            costs,
            threads=self.threads,
        )
        return codes

    def gram(self) -> F32:
        """Inner products of the assigners, as `spill` needs them."""
        p = len(self.assigners)
        out = np.empty((p, -(-p // 32) * 32), np.float32)
        _core.gram(self.assigners, out, threads=self.threads)
        return out

    def packed(self) -> tuple[NDArray[np.int8], NDArray[np.int32], F32]:
        """For the search: packed centroids, 64 times their sums, and (4, p padded) scales and biases of order and base.

        What counts is s * unit * scale + bias, of the integer s = <query bytes, centroid bytes> and the query's unit.
        """
        p = len(self.bytes)
        padded = -(-p // 8) * 8
        sums = np.zeros(padded, np.int32)
        sums[:p] = 64 * self.bytes.astype(np.int32).sum(axis=1)
        centroids = self.centroids.astype(np.float64)
        squared = np.einsum("pd,pd->p", centroids, centroids)
        table = np.zeros((4, padded), np.float32)
        table[1, p:] = -np.finfo(np.float32).max / 2  # places without a partition come last
        table[0, :p] = table[2, :p] = self.scales
        if self.l2:
            table[1, :p], table[3, :p] = -squared / 2, -self.halves
        else:
            lengths = np.sqrt(squared)
            table[0, :p] *= np.divide(self.norms, lengths, out=np.zeros(p), where=lengths > 0)
        return pack_centroids(self.bytes), sums, table


def train(
    rows: Rows,
    sample: NDArray[np.int64],
    p: int,
    *,
    l2: bool,
    rng: np.random.Generator,
    iterations: int,
    threads: int = 1,
    progress: Progress = silent,
) -> Partitions:
    """K-means over the sampled rows, a block at a time, then centroids and norms from the final assignment.

    All but the last few iterations look at a part of a large sample; partitions that get too large are divided.
    """

    def blocks(numbers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        return [numbers[first : first + _ROWS] for first in range(0, len(numbers), _ROWS)]

    def ready(block: NDArray[np.int64]) -> F32:
        x = rows(block)
        return x if l2 else directions(x)

    part = sample[:: max(1, len(sample) // max(_COARSE_SAMPLE, _COARSE_POINTS * p))]
    assigners = ready(np.sort(rng.choice(sample, p, replace=False)))
    for iteration in range(iterations):
        progress("partitions", iteration, iterations)
        fine = iteration >= iterations - _FINE_ITERATIONS
        sums, totals, worst = np.zeros(assigners.shape), np.zeros(p), []
        for block in blocks(sample if fine else part):
            x = ready(block)
            codes, costs = nearest(x, assigners, threads=threads)
            _add_sums(x, codes, sums, totals, threads)
            far = np.argsort(-costs, kind="stable")[:32]
            worst.append((costs[far], x[far]))
        assigners = _means(sums, totals, assigners, l2)
        costs, candidates = np.concatenate([c for c, _ in worst]), np.concatenate([x for _, x in worst])
        refill_empty(assigners, totals == 0, candidates, costs)
        if iteration < iterations - 1:
            _divide_large(assigners, totals, rng, l2)
    progress("partitions", iterations, iterations)

    sums, totals = np.zeros(assigners.shape), np.zeros(p)
    all_codes, all_norms = [], []
    for block in blocks(sample):
        x = rows(block)
        codes = nearest(x if l2 else directions(x), assigners, threads=threads)[0]
        _add_sums(x, codes, sums, totals, threads)
        all_codes.append(codes)
        all_norms.append(np.sqrt(np.einsum("nd,nd->n", x, x, dtype=np.float64)))
    means = np.where(totals[:, None] > 0, sums / np.maximum(totals, 1)[:, None], assigners)
    largest = np.abs(means).max(axis=1)
    scales = np.where(largest > 0, largest / 63, 1.0).astype(np.float32)
    values = np.rint(means / scales[:, None]).astype(np.int8)
    norms, codes = np.concatenate(all_norms), np.concatenate(all_codes)
    halves = np.bincount(codes, norms**2 / 2, p) / np.maximum(np.bincount(codes, minlength=p), 1)
    return Partitions(l2, assigners, values, scales, _quantiles(norms, codes, p), halves.astype(np.float32), threads)


def _add_sums(
    x: F32, codes: NDArray[np.int32], sums: NDArray[np.float64], totals: NDArray[np.float64], threads: int
) -> None:
    part, count = np.empty_like(sums), np.empty_like(totals)
    _core.sum_by_group(x, np.ones(len(x), np.float32), codes, part, count, threads=threads)
    sums += part
    totals += count


def _means(sums: NDArray[np.float64], totals: NDArray[np.float64], before: F32, l2: bool) -> F32:
    """Means, made unit vectors unless l2; what no point chose, or what cancels out, stays as it was."""
    lengths = np.ones(len(sums)) if l2 else np.sqrt(np.einsum("pd,pd->p", sums, sums))
    divisor = totals if l2 else lengths
    good = (totals > 0) & (divisor > 1e-12)
    return np.where(good[:, None], sums / np.where(good, divisor, 1.0)[:, None], before).astype(np.float32)


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
