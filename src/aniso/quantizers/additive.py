"""Additive quantization: a point is a sum of codewords, one from each codebook, all as long as the point itself.

n points, d dimensions, m codebooks, k codewords in each (16 or 256); y = sum_j codewords[j, codes[j]]. A score is a sum
of m table lookups, as with product codes, but codewords that may point anywhere fit the points better: product
quantization is the special case in which codebook j is zero outside of subspace j, and training starts there.
With the plain loss, 8 bits per code and no scale this is local search quantization (LSQ).

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
from aniso.kmeans import directions
from aniso.loss import Loss, Weights, check_loss
from aniso.progress import Progress, silent
from aniso.quantizers.additive_codebooks import decode_sum, fit_codewords, gram, solve_codewords
from aniso.quantizers.codebooks import Codes, start_codebooks
from aniso.quantizers.protocol import check_bits, check_codes, score_decoded
from aniso.quantizers.scale import ScaleCodes, expected_query

__all__ = ["AdditiveQuantizer"]

_ROWS = 8192  # points encoded in one call into the core: the longest an interrupt waits
_SWEEPS = 20  # most sweeps of one descent
_KICKS = 4  # codes replaced at random before a new descent
_DENSE = 2048  # codewords in all up to which the plain update solves one dense system

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


class AdditiveQuantizer:
    """Codes of m numbers per point, each naming one of k = 2^bits_per_code codewords of its codebook.

    codebooks       m
    bits_per_code   4 or 8
    loss            Reconstruction() (default) or a score-aware loss from aniso.loss
    scale_bits      0, 8 or 16: the bits of the per-point scale, 0 for none
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
        loss: Loss | None = None,
        scale_bits: int = 8,
        rounds: int = 12,
        restarts: int = 8,
        sample: int = 40_000,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        self.codebooks = check_count(codebooks, "codebooks")
        self.bits_per_code, self.scale_bits = check_bits(bits_per_code, scale_bits)
        self.loss = check_loss(loss)
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
        weights, units = self._weights(x), directions(x)
        losses = [self._loss(codewords, x, units, codes, weights)]
        for number in range(self.rounds):
            progress("codebooks", number, self.rounds)
            moved = self._update(codewords, x, units, codes, weights)
            moved_codes = self._encode(moved, x, start=codes, restarts=min(self.restarts, 6), seed=number)
            loss = self._loss(moved, x, units, moved_codes, weights)
            if loss >= losses[-1]:
                break
            codewords, codes = moved, moved_codes
            losses.append(loss)
        progress("codebooks", self.rounds, self.rounds)

        direction = None if asked is None or not self.scale_bits else expected_query(x, asked, threads=self.threads)
        scales = None
        if self.scale_bits:
            scales = ScaleCodes.fit(_scales(x, decode_sum(codewords, codes), direction), bits=self.scale_bits)
        self.codewords, self.scales, self.direction, self.losses = codewords, scales, direction, losses
        return self

    def encode(self, points: ArrayLike, *, progress: Progress = silent) -> Codes:
        """The codes of points: (n, codebooks) bytes, then the bytes of the scale where there is one."""
        codewords = self._fitted()
        x = check_vectors(points, "points", d=codewords.shape[2])
        codes = np.empty((len(x), self.codebooks + self.scale_bits // 8), np.uint8)
        products = gram(codewords)
        for first in range(0, len(x), _ROWS):
            progress("encode", first, len(x))
            rows = slice(first, first + _ROWS)
            chosen = self._encode(codewords, x[rows], products=products, restarts=self.restarts, seed=self.seed)
            codes[rows, : self.codebooks] = chosen
            if self.scales:
                scales = _scales(x[rows], decode_sum(codewords, chosen), self.direction)
                codes[rows, self.codebooks :] = self.scales.encode(scales)
        progress("encode", len(x), len(x))
        return codes

    def decode(self, codes: NDArray[Any]) -> F32:
        """The points that the codes stand for, (n, d)."""
        codewords = self._fitted()
        names = check_codes(codes, self.codebooks, self.scale_bits // 8, codewords.shape[1])
        decoded = decode_sum(codewords, names[:, : self.codebooks])
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
        products: F32 | None = None,
        start: Codes | None = None,
    ) -> Codes:
        codes = np.zeros((len(x), self.codebooks), np.uint8) if start is None else start.copy()
        _core.encode_additive(
            x,
            (self._weights(x).eta - 1.0).astype(np.float32),
            codewords,
            gram(codewords) if products is None else products,
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

    def _weights(self, x: F32) -> Weights:
        """The weights of the loss; a scale removes the parallel error, so that under it every eta asks for the same."""
        weights = self.loss.weights(np.linalg.norm(x.astype(np.float64), axis=1), x.shape[1])
        return weights._replace(eta=np.ones(len(x))) if self.scale_bits else weights

    def _loss(self, codewords: F32, x: F32, units: F32, codes: Codes, weights: Weights) -> float:
        """The mean loss of the points, under the best scale where there is one."""
        y = decode_sum(codewords, codes)
        error = x - y * self._best_scales(x, y)[:, None].astype(np.float32)
        losses = _dots(error, error) + (weights.eta - 1.0) * _dots(error, units) ** 2
        return float(np.mean(weights.importance * losses))

    def _update(self, codewords: F32, x: F32, units: F32, codes: Codes, weights: Weights) -> F32:
        """The codewords of least loss for these codes; with scales, |x - s y|^2 = s^2 |x / s - y|^2 of the best s."""
        scales = self._best_scales(x, decode_sum(codewords, codes))
        inverse = np.divide(1.0, scales, out=np.zeros_like(scales), where=scales > 0)
        targets, importance = (x * inverse[:, None]).astype(np.float32), weights.importance * scales**2
        penalty = weights.eta - 1.0
        if not penalty.any() and codewords.shape[0] * codewords.shape[1] <= _DENSE:
            return solve_codewords(codewords, codes, targets, importance, threads=self.threads)
        return fit_codewords(codewords, codes, targets, units, penalty, importance, threads=self.threads)


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
