"""Additive quantization: a point is a sum of codewords, one from each codebook, all as long as the point itself.

n points, d dimensions, m codebooks, k codewords in each (16 or 256); y = sum_j codewords[j, codes[j]]. A score is a sum
of m table lookups, as with product codes, but codewords that may point anywhere fit the points better: product
quantization is the special case in which codebook j is zero outside of subspace j, and training starts there.

With scale_bits, codes and codebooks are chosen for the largest cosine of x and y, and the scale removes the error along
the direction in which queries are expected: that of x, or E[q | x] where a sample of queries is given to fit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aniso import _core
from aniso.errors import NotFittedError, check_count, check_seed, check_threads, check_vectors
from aniso.exact import multiply
from aniso.progress import Progress, silent
from aniso.quantizers.codebooks import Codes, start_codebooks
from aniso.quantizers.protocol import check_bits, check_codes, score_decoded
from aniso.quantizers.scale import ScaleCodes, expected_query

__all__ = ["AdditiveQuantizer"]

_ROWS = 8192  # points encoded in one call into the core: the longest an interrupt waits
_SWEEPS = 20  # most sweeps of one descent
_KICKS = 4  # codes replaced at random before a new descent
_RIDGE = 1e-3  # of the codebook update, towards the present codewords and relative to a codeword's mean count

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


class AdditiveQuantizer:
    """Codes of m numbers per point, each naming one of k = 2^bits_per_code codewords of its codebook.

    codebooks       m
    bits_per_code   4 or 8
    scale_bits      0, 8 or 16: the bits of the per-point scale, 0 for none (the plain squared error is then minimised)
    rounds          codebook updates
    restarts        new descents from a disturbed code, in encoding: more is slower and better
    sample          most points used in training, chosen by the seed

    >>> import numpy as np
    >>> points = np.random.default_rng(0).normal(size=(2000, 12)).astype(np.float32)
    >>> quantizer = AdditiveQuantizer(6, rounds=4).fit(points)
    >>> codes = quantizer.encode(points)
    >>> codes.shape, quantizer.bits
    ((2000, 7), 32)

    After fit: codewords (m, k, d), scales, direction (the matrix of E[q | x], or None), and losses: the mean loss of
    the sample after each round, which never rises.
    """

    codewords: F32
    scales: ScaleCodes | None
    direction: F32 | None
    losses: list[float]

    def __init__(
        self,
        codebooks: int,
        *,
        bits_per_code: int = 4,
        scale_bits: int = 8,
        rounds: int = 12,
        restarts: int = 8,
        sample: int = 40_000,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        self.codebooks = check_count(codebooks, "codebooks")
        self.bits_per_code, self.scale_bits = check_bits(bits_per_code, scale_bits)
        self.rounds = check_count(rounds, "rounds", least=0)
        self.restarts = check_count(restarts, "restarts", least=0, most=10_000)
        self.sample = check_count(sample, "sample")
        self.seed = check_seed(seed)
        self.threads = check_threads(threads)

    @property
    def bits(self) -> int:
        """Bits that the code of one point takes, its scale included."""
        return self.codebooks * self.bits_per_code + self.scale_bits

    def fit(
        self, points: ArrayLike, *, queries: ArrayLike | None = None, progress: Progress = silent
    ) -> AdditiveQuantizer:
        """Learn the codebooks from points (n, d), or from a sample of them; queries are a sample of those expected."""
        x = check_vectors(points, "points", rows=1)
        d = x.shape[1]
        if self.codebooks > d:
            raise ValueError(f"codebooks is {self.codebooks}; needed: at most the {d} dimensions of the points")
        asked = None if queries is None else check_vectors(queries, "queries", d=d, rows=1)
        rng = np.random.default_rng(self.seed)
        if len(x) > self.sample:
            x = x[np.sort(rng.choice(len(x), self.sample, replace=False))]

        k = 1 << self.bits_per_code
        start = start_codebooks(x, self.codebooks, k, rng=rng, threads=self.threads, progress=progress)
        codes = start.encode(x, x, np.zeros(len(x), np.float32), scaled=False, sweeps=0)
        codewords = np.zeros((self.codebooks, k, d), np.float32)
        for j, words in enumerate(start.codewords):
            first, last = start.starts[j], start.starts[j + 1]
            codewords[j, :, first:last] = words[:, : last - first]
        losses = [self._loss(codewords, x, codes)]
        for number in range(self.rounds):
            progress("codebooks", number, self.rounds)
            moved = self._update(codewords, x, codes)
            moved_codes = self._encode(moved, x, start=codes, restarts=min(self.restarts, 6), seed=number)
            loss = self._loss(moved, x, moved_codes)
            if loss >= losses[-1]:
                break
            codewords, codes = moved, moved_codes
            losses.append(loss)
        progress("codebooks", self.rounds, self.rounds)

        direction = None if asked is None or not self.scale_bits else expected_query(x, asked, threads=self.threads)
        scales = None
        if self.scale_bits:
            scales = ScaleCodes.fit(_scales(x, _decode(codewords, codes), direction), bits=self.scale_bits)
        self.codewords, self.scales, self.direction, self.losses = codewords, scales, direction, losses
        return self

    def encode(self, points: ArrayLike, *, progress: Progress = silent) -> Codes:
        """The codes of points: (n, codebooks) bytes, then the bytes of the scale where there is one."""
        codewords = self._fitted()
        x = check_vectors(points, "points", d=codewords.shape[2])
        codes = np.empty((len(x), self.codebooks + self.scale_bits // 8), np.uint8)
        gram = _gram(codewords)
        for first in range(0, len(x), _ROWS):
            progress("encode", first, len(x))
            rows = slice(first, first + _ROWS)
            chosen = self._encode(codewords, x[rows], gram=gram, restarts=self.restarts, seed=self.seed)
            codes[rows, : self.codebooks] = chosen
            if self.scales:
                scales = _scales(x[rows], _decode(codewords, chosen), self.direction)
                codes[rows, self.codebooks :] = self.scales.encode(scales)
        progress("encode", len(x), len(x))
        return codes

    def decode(self, codes: NDArray[Any]) -> F32:
        """The points that the codes stand for, (n, d)."""
        codewords = self._fitted()
        names = check_codes(codes, self.codebooks, self.scale_bits // 8, codewords.shape[1])
        decoded = _decode(codewords, names[:, : self.codebooks])
        if self.scales:
            decoded *= self.scales.decode(names[:, self.codebooks :])[:, None]
        return decoded

    def score(self, queries: ArrayLike, codes: NDArray[Any]) -> F32:
        """Inner products of queries (q, d) with the decoded points, (q, n)."""
        return score_decoded(self, queries, codes)

    def _fitted(self) -> F32:
        if not hasattr(self, "codewords"):
            raise NotFittedError("this AdditiveQuantizer has no codebooks yet: call fit(points) first")
        return self.codewords

    def _encode(
        self,
        codewords: F32,
        x: F32,
        *,
        restarts: int,
        seed: int,
        gram: F32 | None = None,
        start: Codes | None = None,
    ) -> Codes:
        codes = np.zeros((len(x), self.codebooks), np.uint8) if start is None else start.copy()
        _core.encode_additive(
            x,
            np.zeros(len(x), np.float32),
            codewords,
            _gram(codewords) if gram is None else gram,
            codes,
            scaled=self.scale_bits > 0,
            warm=start is not None,
            sweeps=_SWEEPS,
            restarts=restarts,
            kicks=_KICKS,
            seed=seed % 2**64,
            threads=self.threads,
        )
        return codes

    def _best_scales(self, x: F32, y: F32) -> F64:
        """The scale of y nearest to x, <x, y> / |y|^2, or 1 where scales are not used."""
        if not self.scale_bits:
            return np.ones(len(x))
        dots, squares = _dots(x, y), _dots(y, y)
        return np.divide(dots, squares, out=np.zeros_like(dots), where=(squares > 0) & (dots > 0))

    def _loss(self, codewords: F32, x: F32, codes: Codes) -> float:
        """The mean squared error, under the best scale where there is one."""
        y = _decode(codewords, codes)
        error = x - y * self._best_scales(x, y)[:, None].astype(np.float32)
        return float(np.mean(_dots(error, error)))

    def _update(self, codewords: F32, x: F32, codes: Codes) -> F32:
        """The codewords of least loss for these codes and their best scales s: least squares on targets x / s.

        All dimensions share one matrix: how often two codewords meet in a point, weighted by s^2.
        """
        m, k, d = codewords.shape
        scales = self._best_scales(x, _decode(codewords, codes))
        meetings = np.zeros((m, k, m, k))
        for a in range(m):
            for b in range(a, m):
                pairs = codes[:, a].astype(np.int64) * k + codes[:, b]
                meetings[a, :, b] = np.bincount(pairs, scales**2, minlength=k * k).reshape(k, k)
                meetings[b, :, a] = meetings[a, :, b].T
        matrix = meetings.reshape(m * k, m * k)
        sums, totals = np.empty((m, k, d)), np.empty(k)
        for j in range(m):
            groups = codes[:, j].astype(np.int32)
            _core.sum_by_group(x, scales.astype(np.float32), groups, sums[j], totals, threads=self.threads)
        ridge = _RIDGE * len(x) / k
        targets = sums.reshape(m * k, d) + ridge * codewords.reshape(m * k, d)
        matrix[np.diag_indices(m * k)] += ridge
        solved = np.ascontiguousarray(targets.T)
        _core.solve_spd(matrix, solved, threads=self.threads)
        return np.ascontiguousarray(solved.T, np.float32).reshape(m, k, d)


def _gram(codewords: F32) -> F32:
    flat = codewords.reshape(-1, codewords.shape[2])
    out = np.empty((len(flat), (len(flat) + 31) // 32 * 32), np.float32)
    _core.gram(flat, out)
    return np.ascontiguousarray(out[:, : len(flat)])


def _decode(codewords: F32, codes: Codes) -> F32:
    decoded = np.zeros((len(codes), codewords.shape[2]), np.float32)
    for j, words in enumerate(codewords):
        decoded += words[codes[:, j]]
    return decoded


def _dots(a: F32, b: F32) -> F64:
    return np.asarray(np.einsum("nd,nd->n", a, b, dtype=np.float64))


def _scales(x: F32, y: F32, direction: F32 | None) -> F64:
    """<x, u> / <y, u> along u = x, or u = E[q | x] where that is known and the scale stays near the first one."""
    squares, dots = _dots(x, x), _dots(x, y)
    plain = np.divide(squares, dots, out=np.zeros_like(dots), where=dots > 0)
    if direction is None:
        return plain
    u = multiply(x, direction)
    above, below = _dots(x, u), _dots(y, u)
    scales = np.divide(above, below, out=plain.copy(), where=(above > 0) & (below > 0))
    return np.asarray(np.clip(scales, plain / 2, plain * 2))
