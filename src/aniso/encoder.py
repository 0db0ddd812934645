"""What training leaves behind: from a point to its partitions, its codes and the copy that rescoring reads.

An Encoder never changes. Points go in, a block of rows at a time; where the results are kept is for store.py.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from aniso import _core
from aniso.config import Config
from aniso.errors import LEAST_NORM, check_vectors
from aniso.kmeans import directions
from aniso.layout import pack_bytes, pack_nibbles
from aniso.loss import Threshold
from aniso.partition import Assigned, Partitions, Rows, train
from aniso.progress import Progress
from aniso.quantizers.codebooks import Codebooks, fit_codewords, start_codebooks
from aniso.workers import spread

__all__ = ["ROWS", "Choice", "Encoder", "check_all", "spread_blocks", "train_encoder"]

F32 = NDArray[np.float32]
Result = TypeVar("Result")
ROWS = 1024  # points that a thread handles in one step: bounds its memory, and how long an interrupt waits

_GROUP = 10  # subspaces whose table entries add up within 8 bits
_LEAST_HALF = 1e-3  # the largest value of points that float16 is to hold as exactly as others
_CODE_SAMPLE = 50_000  # most points the codebooks are trained on


class Choice(NamedTuple):
    """Some points of a block and the partition that each of them goes to."""

    rows: NDArray[np.int16] | slice  # within the block
    partitions: NDArray[np.int32]


@dataclass(frozen=True)
class Encoder:
    """All that is needed to add points, and the part of a search that does not depend on them."""

    config: Config
    d: int
    partitions: Partitions
    books: Codebooks
    shift: F32 | None  # (d,) subtracted from points and queries, for l2
    bias_low: float  # l2: a point's bias is bias_low + bias_step * (0 .. 255)
    bias_step: float
    spill_limit: float  # points spill whose second partition costs at most so many times what the first does
    distance: float  # mean squared distance of the training points to their centroids
    automatic: bool  # the number of partitions follows from the number of points
    expected: int  # points that the number of partitions suits
    biased: bool  # rows of int8 have a bias: l2 needs it, and files of earlier versions hold it for other metrics too

    @property
    def p(self) -> int:
        """How many partitions there are."""
        return len(self.partitions.bytes)

    @property
    def code_bytes(self) -> int:
        """Bytes of a point's codes."""
        return (len(self.books.codewords) + (2 if self.config.metric == "l2" else 0) + 1) // 2

    def copy_shape(self) -> tuple[int, np.dtype[Any]] | None:
        """Width and dtype of the rows kept for rescoring; None where none are kept."""
        if self.config.rescore == "none":
            return None
        width = self.d if self.config.rescore != "int8" else -(-self.d // 4) * 4 + (8 if self.biased else 4)
        return width, np.dtype(self.config.rescore)

    def prepare(self, vectors: F32) -> F32:
        """Points or queries as centroids and codes see them: of norm 1 for cosine, shifted for l2."""
        return _prepare(vectors, self.config.metric, self.shift)

    @property
    def threads(self) -> int:
        """How many threads points are added with."""
        return self.partitions.threads

    def assign(self, points: F32, threads: int) -> Assigned:
        """The partition of each point of a block, and the second one if points spill."""
        return self.partitions.assign(self.prepare(points), self.config.spill or None, threads)

    def encode(self, points: F32, choices: list[Choice], threads: int) -> tuple[list[NDArray[np.uint8]], float]:
        """The bytes (n, code_bytes) of points in each of their partitions; the sum of squares that the first leaves."""
        whole = self.prepare(points)
        packed, total = [], None
        for rows, choice in choices:
            x = whole[rows]
            residuals = x - self._centroids(choice)
            penalty = np.full(len(x), self._eta - 1.0, np.float32)
            if total is None:
                total = float(np.einsum("nd,nd->", residuals, residuals, dtype=np.float64))
            codes = self.books.encode(residuals, x, penalty, scaled=False, sweeps=10, threads=threads)
            if self.config.metric == "l2":
                biases = (_biases(x, self.partitions, choice) - self.bias_low) / self.bias_step
                level = np.clip(np.rint(biases), 0, 255).astype(np.uint8)
                codes = np.concatenate([codes, (level >> 4)[:, None], (level & 15)[:, None]], axis=1)
            packed.append(pack_nibbles(codes))
        return packed, total or 0.0

    def copy(self, points: F32) -> NDArray[Any]:
        """The copy kept for rescoring; a row of int8 ends with what the numbers need to become scores."""
        config = self.config
        if config.metric == "cosine" or config.rescore == "int8":
            x = self.prepare(points)
        if config.rescore == "int8":
            return _to_int8(x, self.biased)
        whole = x if config.metric == "cosine" else points
        return whole.astype(np.float16) if config.rescore == "float16" else whole

    def check(self, points: F32, first_row: int) -> None:
        """Refuse what the copy cannot hold."""
        if self.config.rescore == "float16" and self.config.metric != "cosine" and len(points):
            largest = np.abs(points).max(axis=1)
            if largest.max() > 65504:
                row = int(largest.argmax())
                raise ValueError(
                    f"points row {first_row + row} has a value of size {largest[row]:g}, beyond 65504, the largest "
                    'float16; use rescore="float32" or scale the points down'
                )

    def restore(self, copy: NDArray[Any]) -> F32:
        """Points from the rows kept for rescoring, as near as these are."""
        if copy.dtype != np.int8:
            return np.ascontiguousarray(copy, np.float32)
        end = -(-self.d // 4) * 4
        scales = np.ascontiguousarray(copy[:, end : end + 4]).view(np.float32)
        points: F32 = copy[:, : self.d] * scales
        return points if self.shift is None else points + self.shift

    def view(self) -> dict[str, Any]:
        """The arguments of _core.Searcher that no point changes."""
        return self._view.copy()

    @cached_property
    def _view(self) -> dict[str, Any]:
        l2 = self.config.metric == "l2"
        partitions, groups = self.partitions.packed(), self.partitions.packed_groups()
        scales = partitions.scales
        codewords = self.books.codewords.transpose(0, 2, 1)
        firsts = self.books.starts[:-1]
        if l2:
            # Two more "subspaces" carry a point's bias in their codes: they read the 1 that follows the query.
            levels = np.zeros((2, codewords.shape[1], 16), np.float32)
            levels[0, 0] = 16 * self.bias_step * np.arange(16)
            levels[1, 0] = self.bias_step * np.arange(16)
            codewords = np.concatenate([codewords, levels])
            firsts = np.concatenate([firsts, [self.d, self.d]])
            scales[3] += self.bias_low
        return {
            "d": self.d,
            "l2": l2,
            "unit_queries": self.config.metric == "cosine",
            "shift": self.shift,
            "centroids": partitions.centroids,
            "centroid_sums": partitions.sums,
            "scales": scales,
            "groups": groups and groups.centroids,
            "group_sums": groups and groups.sums,
            "group_scales": groups and groups.scales,
            "codewords": np.ascontiguousarray(codewords, np.float32),
            "firsts": np.ascontiguousarray(firsts, np.int32),
            "group": _GROUP,
        }

    @cached_property
    def _eta(self) -> float:
        return _eta(self.config.threshold, self.d)

    def _centroids(self, choice: NDArray[np.int32]) -> F32:
        rows: F32 = self.partitions.bytes[choice] * self.partitions.scales[choice, None]
        return rows


def train_encoder(
    array: Any,
    n: int,
    wish: Config,
    d: int,
    threads: int,
    progress: Progress,
    hidden: NDArray[np.int64] | None = None,
) -> Encoder:
    """Partitions and codebooks that suit n points like these; hidden rows are not trained on."""
    seen = np.arange(len(array)) if hidden is None else np.delete(np.arange(len(array)), hidden)
    config = wish.complete(n, d, len(seen))
    rng = np.random.default_rng(config.seed)
    sample = np.sort(rng.permutation(seen)[: config.sample])
    shift = _mean(array, sample, d) if config.metric == "l2" else None

    def rows(numbers: NDArray[np.int64]) -> F32:
        return _prepare(check_vectors(array[numbers], "points", d=d), config.metric, shift)

    partitions = train(
        rows,
        sample,
        config.partitions or 1,
        l2=config.metric == "l2",
        unit=config.metric == "cosine",
        rng=rng,
        iterations=config.iterations,
        eta=_eta(config.centroid_threshold, d),
        threads=threads,
        progress=progress,
    )
    chosen = np.sort(rng.permutation(sample)[:_CODE_SAMPLE])
    residuals, units, ratios, biases = _look(rows, chosen, d, partitions, config, threads)
    _core.release_memory()  # of the partitions: what they leave is of no use to the codebooks
    books = _train_codebooks(residuals, units, config, rng, threads, progress)
    low, step = 0.0, 1.0
    if config.metric == "l2":
        low, step = float(biases.min()), max(float(np.ptp(biases)) / 255, 1e-30)
    limit = float(np.sort(ratios)[math.ceil(config.spill_share * len(chosen)) - 1])
    if config.spill_share == 1:
        limit = float(np.finfo(np.float32).max)  # also for points unlike these
    distance = float(np.einsum("nd,nd->", residuals, residuals, dtype=np.float64) / len(chosen))
    automatic, biased = wish.partitions is None, config.metric == "l2"
    del residuals, units
    _core.release_memory()  # before the index takes its own
    return Encoder(config, d, partitions, books, shift, low, step, limit, distance, automatic, n, biased)


def spread_blocks(array: Any, d: int, threads: int, work: Callable[[int, F32, int], Result]) -> Iterator[Result]:
    """work(first row, block, threads) of the rows of an array, a block at a time, ready for arithmetic; in order."""

    def of_block(first: int, share: int) -> Result:
        block = check_vectors(array[first : first + ROWS], "points", d=d, first_row=first, small=True)
        return work(first, block, share)

    return spread(of_block, range(0, len(array), ROWS), threads)


def check_all(array: Any, config: Config, threads: int) -> int:
    """Check every row, a block at a time, so that nothing large is copied; how many dimensions there are."""
    if array.ndim != 2 or not len(array):
        check_vectors(array, "points", rows=1)
    d = int(array.shape[1])
    largest = max(spread_blocks(array, d, threads, lambda first, block, share: float(np.abs(block).max())))
    if 0 < largest < LEAST_NORM:
        check_vectors(array, "points")
    if config.rescore == "float16" and config.metric != "cosine" and 0 < largest < _LEAST_HALF:
        raise ValueError(
            f"no value of points is above {largest:g}; needed: {_LEAST_HALF:g} for rescore='float16', whose least step "
            "is 6e-8 (scale the points up, or use rescore='float32' or 'int8')"
        )
    return d


def _prepare(points: F32, metric: str, shift: F32 | None) -> F32:
    """Points as the codes see them: of norm 1 for cosine, shifted for l2."""
    if metric == "cosine":
        return directions(points)
    return points if shift is None else points - shift


def _mean(array: Any, sample: NDArray[np.int64], d: int) -> F32:
    total = np.zeros(d)
    for first in range(0, len(sample), ROWS):
        total += array[sample[first : first + ROWS]].sum(axis=0, dtype=np.float64)
    return (total / len(sample)).astype(np.float32)


def _eta(threshold: float, d: int) -> float:
    """How much more the parallel error counts: T is relative to a point's norm, so that all points share one eta."""
    if threshold == 0 or d < 2:
        return 1.0
    return float(Threshold(threshold).weights([1.0], d).eta[0])


def _biases(x: F32, partitions: Partitions, chosen: NDArray[np.int32]) -> NDArray[np.float64]:
    """What -|x|^2 / 2 is beyond the mean of its partition."""
    return np.asarray(partitions.halves[chosen] - np.einsum("nd,nd->n", x, x, dtype=np.float64) / 2)


def _to_int8(x: F32, biased: bool) -> NDArray[np.int8]:
    largest = np.abs(x).max(axis=1)
    steps = largest / 127
    steps[steps == 0] = 1  # also of the smallest numbers there are
    values = np.rint(x / steps[:, None]).astype(np.int8)
    # The scale that leaves no error along the point itself, where high scores come from.
    along = np.einsum("nd,nd->n", values, x, dtype=np.float64)
    squared = np.einsum("nd,nd->n", x, x, dtype=np.float64)
    scales = np.divide(squared, along, out=steps, where=along > 0)
    if not biased:
        return pack_bytes(values, scales)
    wide = values.astype(np.float32)
    biases = -np.square(scales) * np.einsum("nd,nd->n", wide, wide) / 2
    return pack_bytes(values, scales, biases)


def _look(
    rows: Rows, chosen: NDArray[np.int64], d: int, partitions: Partitions, config: Config, threads: int
) -> tuple[F32, F32, F32, NDArray[np.float64]]:
    """What partitions leave of the chosen rows, the directions of these, their ratios (spill) and biases (l2)."""
    residuals, units = np.empty((2, len(chosen), d), np.float32)
    ratios, biases = np.zeros(len(chosen), np.float32), np.zeros(len(chosen))
    centroids = partitions.centroids

    def look(first: int, share: int) -> None:
        block = slice(first, first + ROWS)
        x = rows(chosen[block])
        firsts, _, found = partitions.assign(x, config.spill or None, share)
        residuals[block] = x - centroids[firsts]
        units[block] = x if config.metric == "cosine" else directions(x)
        if found is not None:
            ratios[block] = found
        if config.metric == "l2":
            biases[block] = _biases(x, partitions, firsts)

    deque(spread(look, range(0, len(chosen), ROWS), threads), maxlen=0)
    return residuals, units, ratios, biases


def _train_codebooks(
    residuals: F32, units: F32, config: Config, rng: np.random.Generator, threads: int, progress: Progress
) -> Codebooks:
    """Codebooks of the residuals under the score-aware loss of the points themselves, whose directions are units."""
    books = start_codebooks(residuals, config.subspaces or 1, 16, rng=rng, iterations=10, threads=threads)
    penalty = np.full(len(units), _eta(config.threshold, units.shape[1]) - 1.0, np.float32)
    ones, codes = np.ones(len(units)), None
    for number in range(config.rounds):
        progress("codebooks", number, config.rounds)
        codes = books.encode(residuals, units, penalty, scaled=False, sweeps=10, start=codes)
        books = fit_codewords(books, codes, residuals, units, penalty.astype(np.float64), ones)
    progress("codebooks", config.rounds, config.rounds)
    return books
