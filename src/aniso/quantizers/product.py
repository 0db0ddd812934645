"""Anisotropic product quantization: one small codebook per subspace, trained jointly on the score-aware loss.

n points, d dimensions, m subspaces, k codewords in each (16 or 256); c the codebooks, B_i the choice of point i, so
that B_i c is its quantization (paper, section 4.1 and appendix 7.5); eta and importance as in aniso.loss.

With scale_bits, every point also stores a scale s and decodes to s * B_i c, with s = |x|^2 / <x, B_i c>, which makes
the parallel error zero; codes and codebooks are then chosen for the loss that is left under the best scale, and that
is to say for the largest cosine of x and B_i c.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aniso.errors import NotFittedError, check_count, check_seed, check_threads, check_vectors
from aniso.kmeans import directions
from aniso.loss import Loss, QueryTransform, Weights, check_loss
from aniso.progress import Progress, silent
from aniso.quantizers.codebooks import Codebooks, Codes, fit_codewords, start_codebooks
from aniso.quantizers.protocol import check_bits, check_codes, score_decoded
from aniso.quantizers.scale import ScaleCodes

__all__ = ["ProductQuantizer"]

_ROWS = 65536  # points encoded in one call into the core: the longest an interrupt waits


class ProductQuantizer:
    """Codes of m numbers per point, each naming one of k = 2^bits_per_code codewords of its subspace.

    subspaces       m; the widths of the subspaces differ by at most one dimension
    bits_per_code   4 or 8
    loss            Reconstruction() (default) or a score-aware loss from aniso.loss
    scale_bits      0, 8 or 16: the bits of the per-point scale, 0 for none
    rounds          joint codebook updates after the plain (L2) initialisation
    sweeps          most sweeps of coordinate descent over a point's codes; 0 takes each subspace's nearest codeword
    sample          most points used in training, chosen by the seed

    >>> import numpy as np
    >>> from aniso.loss import Threshold
    >>> points = np.random.default_rng(0).normal(size=(2000, 10)).astype(np.float32)
    >>> quantizer = ProductQuantizer(5, loss=Threshold(1.0)).fit(points)
    >>> codes = quantizer.encode(points)
    >>> codes.shape, quantizer.bits
    ((2000, 5), 20)
    >>> quantizer.score(points[:3], codes).shape
    (3, 2000)

    After fit: books (codewords and where subspaces start), scales, transform (with queries), and losses: the mean
    loss of the sample after the initialisation and after each round, which never rises.
    """

    books: Codebooks
    scales: ScaleCodes | None
    transform: QueryTransform | None
    losses: list[float]

    def __init__(
        self,
        subspaces: int,
        *,
        bits_per_code: int = 4,
        loss: Loss | None = None,
        scale_bits: int = 0,
        rounds: int = 6,
        sweeps: int = 10,
        sample: int = 100_000,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        self.subspaces = check_count(subspaces, "subspaces")
        self.bits_per_code, self.scale_bits = check_bits(bits_per_code, scale_bits)
        self.loss = check_loss(loss)
        self.rounds = check_count(rounds, "rounds", least=0)
        self.sweeps = check_count(sweeps, "sweeps", least=0, most=1000)
        self.sample = check_count(sample, "sample")
        self.seed = check_seed(seed)
        self.threads = check_threads(threads)

    @property
    def bits(self) -> int:
        """Bits that the code of one point takes, its scale included."""
        return self.subspaces * self.bits_per_code + self.scale_bits

    def fit(
        self,
        points: ArrayLike,
        *,
        queries: ArrayLike | None = None,
        start: Codebooks | None = None,
        progress: Progress = silent,
    ) -> ProductQuantizer:
        """Learn the codebooks from points (n, d), or from a sample of them.

        With queries (a sample of those expected), the loss is that of the elliptical query distribution they suggest.
        start are codebooks to go on from, instead of those of the plain loss that k-means finds.
        """
        x = check_vectors(points, "points", rows=1)
        d = x.shape[1]
        if self.subspaces > d:
            raise ValueError(f"subspaces is {self.subspaces}; needed: at most the {d} dimensions of the points")
        transform = None if queries is None else QueryTransform.fit(check_vectors(queries, "queries", d=d, rows=1))
        rng = np.random.default_rng(self.seed)
        if len(x) > self.sample:
            x = x[np.sort(rng.choice(len(x), self.sample, replace=False))]
        if transform is not None:
            x = transform.points(x).astype(np.float32)

        weights = self._weights(x)
        k = 1 << self.bits_per_code
        if start is not None and ((*start.codewords.shape[:2], start.d) != (self.subspaces, k, d)):
            given = f"{start.codewords.shape[0]} codebooks of {start.codewords.shape[1]} over {start.d} dimensions"
            raise ValueError(f"start has {given}; needed: {self.subspaces} of {k} over {d}")
        books = start or start_codebooks(x, self.subspaces, k, rng=rng, threads=self.threads, progress=progress)
        units = directions(x)
        codes = self._codes(books, x, weights)
        losses = [self._loss(books, x, units, codes, weights)]
        for number in range(self.rounds):
            progress("codebooks", number, self.rounds)
            moved = self._update(books, x, units, codes, weights)
            moved_codes = self._codes(moved, x, weights, start=codes)
            loss = self._loss(moved, x, units, moved_codes, weights)
            if loss >= losses[-1]:
                break
            books, codes = moved, moved_codes
            losses.append(loss)
        progress("codebooks", self.rounds, self.rounds)

        self.books, self.losses, self.transform = books, losses, transform
        self.scales = ScaleCodes.fit(self._scales(books, x, codes), bits=self.scale_bits) if self.scale_bits else None
        return self

    def encode(self, points: ArrayLike, *, progress: Progress = silent) -> Codes:
        """The codes of points: (n, subspaces) bytes, then the bytes of the scale where there is one."""
        books = self._fitted()
        x = check_vectors(points, "points", d=books.d)
        codes = np.empty((len(x), self.subspaces + self.scale_bits // 8), np.uint8)
        for first in range(0, len(x), _ROWS):
            progress("encode", first, len(x))
            rows = slice(first, first + _ROWS)
            block = x[rows] if self.transform is None else self.transform.points(x[rows]).astype(np.float32)
            codes[rows, : self.subspaces] = chosen = self._codes(books, block, self._weights(block))
            if self.scales:
                codes[rows, self.subspaces :] = self.scales.encode(self._scales(books, block, chosen))
        progress("encode", len(x), len(x))
        return codes

    def decode(self, codes: NDArray[Any]) -> NDArray[np.float32]:
        """The points that the codes stand for, (n, d)."""
        books = self._fitted()
        names = check_codes(codes, self.subspaces, self.scale_bits // 8, books.codewords.shape[1])
        decoded = books.decode(names[:, : self.subspaces])
        if self.scales:
            decoded *= self.scales.decode(names[:, self.subspaces :])[:, None]
        return decoded if self.transform is None else self.transform.points_back(decoded).astype(np.float32)

    def score(self, queries: ArrayLike, codes: NDArray[Any]) -> NDArray[np.float32]:
        """Inner products of queries (q, d) with the decoded points, (q, n)."""
        return score_decoded(self, queries, codes)

    def _fitted(self) -> Codebooks:
        if not hasattr(self, "books"):
            raise NotFittedError("this ProductQuantizer has no codebooks yet: call fit(points) first")
        return self.books

    def _weights(self, x: NDArray[np.float32]) -> Weights:
        norms = np.sqrt(np.einsum("nd,nd->n", x, x, dtype=np.float64))
        return self.loss.weights(norms, x.shape[1])

    def _codes(self, books: Codebooks, x: NDArray[np.float32], weights: Weights, start: Codes | None = None) -> Codes:
        # Under the best scale the loss is a falling function of cos(x, y)^2 whatever eta is, so the penalty can be 0.
        scaled = self.scale_bits > 0
        penalty = np.zeros(len(x)) if scaled else weights.eta - 1.0
        return books.encode(x, x, penalty.astype(np.float32), scaled=scaled, sweeps=self.sweeps, start=start)

    def _sums(
        self, books: Codebooks, x: NDArray[np.float32], units: NDArray[np.float32], codes: Codes, weights: Weights
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of y = B c: N = <y, x + (eta - 1) <x, u> u> = eta <y, x>, and D = |y|^2 + (eta - 1) <y, u>^2."""
        y = books.decode(codes)
        along = np.einsum("nd,nd->n", y, units, dtype=np.float64)
        n = weights.eta * np.einsum("nd,nd->n", y, x, dtype=np.float64)
        return n, np.einsum("nd,nd->n", y, y, dtype=np.float64) + (weights.eta - 1.0) * along**2

    def _loss(
        self, books: Codebooks, x: NDArray[np.float32], units: NDArray[np.float32], codes: Codes, weights: Weights
    ) -> float:
        """The mean loss of the points, under the best scale where there is one."""
        n, d = self._sums(books, x, units, codes, weights)
        constant = weights.eta * np.einsum("nd,nd->n", x, x, dtype=np.float64)
        saved = np.divide(n * n, d, out=np.zeros_like(d), where=d > 0) if self.scale_bits else 2.0 * n - d
        return float(np.mean(weights.importance * (constant - saved)))

    def _update(
        self, books: Codebooks, x: NDArray[np.float32], units: NDArray[np.float32], codes: Codes, weights: Weights
    ) -> Codebooks:
        """All codewords at once for these codes; with scales, |x - s y|^2 = s^2 |x / s - y|^2 of the best scale s."""
        penalty = weights.eta - 1.0
        if not self.scale_bits:
            return fit_codewords(books, codes, x, units, penalty, weights.importance)
        n, d = self._sums(books, x, units, codes, weights)
        scales = np.divide(n, d, out=np.zeros_like(d), where=d > 0)
        inverse = np.divide(1.0, scales, out=np.zeros_like(d), where=scales > 0)
        targets = (x * inverse[:, None]).astype(np.float32)
        return fit_codewords(books, codes, targets, units, penalty, weights.importance * scales**2)

    def _scales(self, books: Codebooks, x: NDArray[np.float32], codes: Codes) -> NDArray[np.float64]:
        """|x|^2 / <x, y>: the scale without parallel error; 0 where y does not point along x at all."""
        squared = np.einsum("nd,nd->n", x, x, dtype=np.float64)
        along = books.dot(x, codes).astype(np.float64)
        scales: NDArray[np.float64] = np.divide(squared, along, out=np.zeros_like(squared), where=along > 0)
        return scales
