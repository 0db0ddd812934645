"""An index: train on a sample, add points, search.

The arrays of an index are NumPy's; `_core.Searcher` borrows them to answer queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aniso import _core
from aniso.config import Config
from aniso.errors import check_count, check_threads, check_vectors
from aniso.kmeans import directions
from aniso.layout import arrange, huge_empty, pack_blocks, pack_nibbles
from aniso.loss import Threshold
from aniso.partition import Partitions, train
from aniso.progress import Progress, silent
from aniso.quantizers.codebooks import Codebooks, fit_codewords, start_codebooks
from aniso.results import Result, search_above

__all__ = ["Index", "build"]

F32 = NDArray[np.float32]

_ROWS = 65536  # points added in one step: the longest an interrupt waits
_GROUP = 10  # subspaces whose table entries add up within 8 bits
_CODE_SAMPLE = 50_000  # most points the codebooks are trained on


@dataclass(frozen=True)
class _Trained:
    """What training leaves behind: all that is needed to add points."""

    partitions: Partitions
    books: Codebooks
    shift: F32 | None  # (d,) subtracted from points and queries, for l2
    bias_low: float  # l2: a point's bias is bias_low + bias_step * (0 .. 255)
    bias_step: float
    gram: F32 | None  # for spilling


class Index:
    """Points, searchable by inner product, cosine or distance.

    >>> import numpy as np
    >>> points = np.random.default_rng(0).normal(size=(5000, 16)).astype(np.float32)
    >>> index = build(points, metric="cosine")
    >>> index.search(points[7], k=3).ids[0]
    np.int64(7)

    Scores are inner products, cosines, or negative squared distances: higher is better. They are exact where rescore is
    "float32", else the best estimate the stored copy gives.
    """

    def __init__(self, config: Config, d: int, trained: _Trained, threads: int) -> None:
        self.config = config
        self.d = d
        self.n = 0
        self._threads = threads
        self._default_partitions = config.default_partitions()
        self._trained = trained
        self._codes: list[NDArray[np.uint8]] = []  # chunks of (entries, rows)
        self._entries: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []  # their partitions and points
        self._copies: list[NDArray[Any]] = []
        self._scales: list[F32] = []
        self._searcher: _core.Searcher | None = None

    @classmethod
    def train(
        cls,
        points: ArrayLike,
        config: Config,
        *,
        n: int | None = None,
        threads: int | None = None,
        progress: Progress = silent,
    ) -> Index:
        """An empty index whose partitions and codebooks suit points like these; n points are expected in all."""
        array = np.asarray(points)
        d = check_vectors(array[:1], "points", rows=1).shape[1]
        _check_all(array, d)
        workers = check_threads(threads)
        config = config.complete(len(array) if n is None else check_count(n, "n"), d, len(array))
        rng = np.random.default_rng(config.seed)
        sample = np.sort(rng.permutation(len(array))[: config.sample])
        shift = _mean(array, sample, d) if config.metric == "l2" else None

        def rows(numbers: NDArray[np.int64]) -> F32:
            return _prepare(check_vectors(array[numbers], "points", d=d), config.metric, shift)

        partitions = train(
            rows,
            sample,
            config.partitions or 1,
            l2=config.metric == "l2",
            rng=rng,
            iterations=config.iterations,
            threads=workers,
            progress=progress,
        )
        chosen = np.sort(rng.permutation(sample)[:_CODE_SAMPLE])
        x = rows(chosen)
        firsts = partitions.assign(x)
        residuals = x - partitions.centroids[firsts]
        books = _train_codebooks(residuals, x, config, rng, workers, progress)
        low, step = 0.0, 1.0
        if config.metric == "l2":
            biases = _biases(x, partitions, firsts)
            low, step = float(biases.min()), max(float(np.ptp(biases)) / 255, 1e-30)
        gram = partitions.gram() if config.spill else None
        return cls(config, d, _Trained(partitions, books, shift, low, step, gram), workers)

    def add(self, points: ArrayLike | Iterator[ArrayLike], *, progress: Progress = silent) -> None:
        """Append points (n, d), or an iterator of such arrays; they get the next row numbers as ids."""
        chunks: Iterable[Any] = points if isinstance(points, Iterator) else [points]
        for chunk in chunks:
            array = np.asarray(chunk)
            _check_all(array, self.d)  # before anything is added
            for first in range(0, len(array), _ROWS):
                progress("add", first, len(array))
                self._add(check_vectors(array[first : first + _ROWS], "points", d=self.d))
            progress("add", len(array), len(array))
        self._searcher = None

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        *,
        partitions: int | None = None,
        candidates: int | None = None,
        threads: int | None = None,
    ) -> Result:
        """The k best points of each query, or all there are if fewer.

        partitions    how many partitions are looked at: more find more, and take longer
        candidates    how many of the points looked at are rescored
        """
        searcher, n = self._searcher or self._seal(), self.n
        k = min(_count(k, "k"), n)
        looked = self._default_partitions if partitions is None else min(_count(partitions, "partitions"), n)
        kept = min(self.config.default_candidates(k) if candidates is None else _count(candidates, "candidates"), 2 * n)
        if type(queries) is np.ndarray and queries.shape == (self.d,):
            # One query takes the shortest way, unless its type or strides need a conversion.
            ids, scores = np.empty(k, np.int64), np.empty(k, np.float32)
            try:
                searcher.search_one(queries, looked, kept, ids, scores)
            except TypeError:
                pass
            else:
                return Result(ids, scores)
        array = np.asarray(queries)
        single = array.ndim == 1
        array = check_vectors(array[None] if single else array, "queries", d=self.d)
        all_ids, all_scores = np.empty((len(array), k), np.int64), np.empty((len(array), k), np.float32)
        workers = self._threads if threads is None else check_threads(threads)
        searcher.search(array, looked, kept, all_ids, all_scores, threads=workers)
        return Result(all_ids[0], all_scores[0]) if single else Result(all_ids, all_scores)

    def search_above(self, query: ArrayLike, least: float, *, partitions: int | None = None) -> Result:
        """The points found in the partitions looked at that score at least `least` with one query, best first."""

        def search(k: int) -> Result:
            return self.search(np.asarray(query), k, partitions=partitions, candidates=4 * k)

        return search_above(search, least, self.n)

    def _add(self, points: F32) -> None:
        trained, config = self._trained, self.config
        x = _prepare(points, config.metric, trained.shift)
        firsts = trained.partitions.assign(x)
        numbers = np.arange(self.n, self.n + len(x), dtype=np.int32)
        choices = [firsts]
        if config.spill and trained.gram is not None:
            choices.append(trained.partitions.spill(x, firsts, config.spill, trained.gram))
        penalty = _penalty(x, config)
        centroids = trained.partitions.centroids
        codes, partitions = [], []
        for choice in choices:
            found = trained.books.encode(x - centroids[choice], x, penalty, scaled=False, sweeps=10)
            if config.metric == "l2":
                biases = (_biases(x, trained.partitions, choice) - trained.bias_low) / trained.bias_step
                level = np.clip(np.rint(biases), 0, 255).astype(np.uint8)
                found = np.concatenate([found, (level >> 4)[:, None], (level & 15)[:, None]], axis=1)
            codes.append(pack_nibbles(found))
            partitions.append(choice)
        if config.rescore != "none":
            copy, scales = _copy(points, x, config)
            self._copies.append(copy)
            self._scales.append(scales)
        self._codes += codes
        self._entries += [(choice, numbers) for choice in partitions]
        self.n += len(x)

    def _seal(self) -> _core.Searcher:
        """Put all that was added into partitions and make it searchable."""
        if self.n == 0:
            raise ValueError("the index has no points yet: call add(points) first")
        trained, config = self._trained, self.config
        for name in ("_codes", "_copies", "_scales"):
            chunks = getattr(self, name)
            if len(chunks) > 1:
                shape = (sum(len(chunk) for chunk in chunks), *chunks[0].shape[1:])
                joined = huge_empty(shape, chunks[0].dtype.type)
                np.concatenate(chunks, out=joined)
                setattr(self, name, [joined])
        if len(self._entries) > 1:
            chosen, numbers = (np.concatenate(parts) for parts in zip(*self._entries, strict=True))
            self._entries = [(chosen, numbers)]
        chosen, numbers = self._entries[0]
        slots = arrange(chosen, len(trained.partitions.bytes))
        rows = np.where(slots.entries >= 0, numbers[slots.entries], -1).astype(np.int32)
        centroids, sums, scales = trained.partitions.packed()
        codewords = trained.books.codewords.transpose(0, 2, 1)
        firsts = trained.books.starts[:-1]
        biases = None
        if config.metric == "l2":
            # Two more "subspaces" carry a point's bias in their codes: they read the 1 that follows the query.
            levels = np.zeros((2, codewords.shape[1], 16), np.float32)
            levels[0, 0] = 16 * trained.bias_step * np.arange(16)
            levels[1, 0] = trained.bias_step * np.arange(16)
            codewords = np.concatenate([codewords, levels])
            firsts = np.concatenate([firsts, [self.d, self.d]])
            scales[3] += trained.bias_low
            if config.rescore == "int8":
                biases = (-np.square(self._scales[0]) * _squares(self._copies[0]) / 2).astype(np.float32)
        points = self._copies[0] if self._copies else None
        blocks = pack_blocks(self._codes[0], slots.entries)
        self._searcher = _core.Searcher(
            n=self.n,
            d=self.d,
            l2=config.metric == "l2",
            unit_queries=config.metric == "cosine",
            shift=trained.shift,
            centroids=centroids,
            centroid_sums=sums,
            scales=scales,
            first_blocks=slots.first_blocks,
            sizes=slots.sizes,
            codewords=np.ascontiguousarray(codewords, np.float32),
            firsts=np.ascontiguousarray(firsts, np.int32),
            group=_GROUP,
            codes=blocks,
            slot_rows=rows,
            points=points.view(np.uint16) if points is not None and points.dtype == np.float16 else points,
            point_scales=self._scales[0] if config.rescore == "int8" else None,
            point_biases=biases,
        )
        return self._searcher


def build(
    points: ArrayLike,
    *,
    metric: str = "dot",
    threads: int | None = None,
    progress: Progress = silent,
    **settings: Any,
) -> Index:
    """An index of the points (n, d); settings are those of aniso.config.Config."""
    array = np.asarray(points)
    index = Index.train(array, Config(metric=metric, **settings), threads=threads, progress=progress)
    index.add(array, progress=progress)
    return index


def _check_all(array: NDArray[Any], d: int) -> None:
    """Check every row, a block at a time, so that nothing large is copied."""
    for first in range(0, len(array), _ROWS):
        check_vectors(array[first : first + _ROWS], "points", d=d, first_row=first)


def _count(value: Any, name: str) -> int:
    return value if type(value) is int and value > 0 else check_count(value, name)


def _prepare(points: F32, metric: str, shift: F32 | None) -> F32:
    """Points as the codes see them: of norm 1 for cosine, shifted for l2."""
    if metric == "cosine":
        return directions(points)
    return points if shift is None else points - shift


def _mean(array: NDArray[Any], sample: NDArray[np.int64], d: int) -> F32:
    total = np.zeros(d)
    for first in range(0, len(sample), _ROWS):
        total += array[sample[first : first + _ROWS]].sum(axis=0, dtype=np.float64)
    return (total / len(sample)).astype(np.float32)


def _penalty(x: F32, config: Config) -> F32:
    """eta - 1 of each point: T is relative to its norm, so that all points share one eta."""
    if config.threshold == 0 or x.shape[1] < 2:
        return np.zeros(len(x), np.float32)
    eta = Threshold(config.threshold).weights([1.0], x.shape[1]).eta[0]
    return np.full(len(x), eta - 1.0, np.float32)


def _biases(x: F32, partitions: Partitions, chosen: NDArray[np.int32]) -> NDArray[np.float64]:
    """What -|x|^2 / 2 is beyond the mean of its partition."""
    return np.asarray(partitions.halves[chosen] - np.einsum("nd,nd->n", x, x, dtype=np.float64) / 2)


def _squares(copy: NDArray[np.int8]) -> F32:
    wide = [block.astype(np.int32) for block in np.array_split(copy, max(1, len(copy) // _ROWS))]
    return np.concatenate([np.einsum("nd,nd->n", block, block) for block in wide]).astype(np.float32)


def _copy(points: F32, x: F32, config: Config) -> tuple[NDArray[Any], F32]:
    """The copy kept for rescoring, and the scale of each int8 row."""
    nothing = np.empty(0, np.float32)
    whole = x if config.metric == "cosine" else points
    if config.rescore == "float32":
        return whole.copy(), nothing
    if config.rescore == "float16":
        half = whole.astype(np.float16)
        if not np.isfinite(half).all():
            raise ValueError('points go beyond 65504, the largest float16; use rescore="float32" or scale them down')
        return half, nothing
    largest = np.abs(x).max(axis=1)
    scales = np.where(largest > 0, largest / 127, 1.0).astype(np.float32)
    return np.rint(x / scales[:, None]).astype(np.int8), scales


def _train_codebooks(
    residuals: F32, x: F32, config: Config, rng: np.random.Generator, threads: int, progress: Progress
) -> Codebooks:
    """Codebooks of the residuals under the score-aware loss of the points themselves."""
    books = start_codebooks(residuals, config.subspaces or 1, 16, rng=rng, iterations=10, threads=threads)
    penalty, units = _penalty(x, config), directions(x)
    ones, codes = np.ones(len(x)), None
    for number in range(config.rounds):
        progress("codebooks", number, config.rounds)
        codes = books.encode(residuals, x, penalty, scaled=False, sweeps=10, start=codes)
        books = fit_codewords(books, codes, residuals, units, penalty.astype(np.float64), ones)
    progress("codebooks", config.rounds, config.rounds)
    return books
