"""Anisotropic product quantization: one small codebook per subspace, trained jointly on the score-aware loss.

n points, d dimensions, m subspaces, k codewords in each (16 or 256); c the codebooks, B_i the choice of point i, so
that B_i c is its quantization (paper, section 4.1 and appendix 7.5); eta and importance as in aniso.loss.

With scale_bits, every point also stores a scale s and decodes to s * B_i c, with s = |x|^2 / <x, B_i c>, which makes
the parallel error zero; codes and codebooks are then chosen for the loss that is left under the best scale, and that
is to say for the largest cosine of x and B_i c. A scale of 4 bits is too coarse for that: there it is the scale of
least loss, and the codes are chosen again, by the loss, for the scale as stored. With queries in training all of this
happens in another space, and the parallel error is that along the query expected for the point
(aniso.quantizers.query_space).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aniso.errors import NotFittedError, check_count, check_seed, check_threads, check_vectors
from aniso.kmeans import directions
from aniso.loss import Loss, Weights, check_loss
from aniso.progress import Progress, silent
from aniso.quantizers.codebooks import Codebooks, Codes, fit_codewords, start_codebooks
from aniso.quantizers.protocol import check_bits, check_codes, score_decoded
from aniso.quantizers.query_space import QuerySpace
from aniso.quantizers.scale import ScaleCodes, ScaleLevels

__all__ = ["ProductQuantizer"]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

_ROWS = 65536  # points encoded in one call into the core: the longest an interrupt waits


class ProductQuantizer:
    """Codes of m numbers per point, each naming one of k = 2^bits_per_code codewords of its subspace.

    subspaces       m; the widths of the subspaces differ by at most one dimension
    bits_per_code   4 or 8
    loss            Reconstruction() (default) or a score-aware loss from aniso.loss
    scale_bits      the bits of the per-point scale: 0 for none, 8 or 16 for no parallel error, 4 for the least loss
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

    After fit: books (codewords and where subspaces start), scales, space (of queries, or None), and losses: the mean
    loss of the sample after the initialisation and after each round, which never rises.
    """

    books: Codebooks
    scales: ScaleCodes | ScaleLevels | None
    space: QuerySpace | None
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
        self.bits_per_code, self.scale_bits = check_bits(bits_per_code, scale_bits, scales=(0, 4, 8, 16))
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
        queries: ArrayLike | QuerySpace | None = None,
        start: Codebooks | None = None,
        progress: Progress = silent,
    ) -> ProductQuantizer:
        """Learn the codebooks from points (n, d), or from a sample of them.

        With queries (a sample of those expected, or a QuerySpace made from one), the loss is the one for such queries.
        start are codebooks to go on from, instead of those of the plain loss that k-means finds.
        """
        x = check_vectors(points, "points", rows=1)
        d = x.shape[1]
        if self.subspaces > d:
            raise ValueError(f"subspaces is {self.subspaces}; needed: at most the {d} dimensions of the points")
        space: QuerySpace | None = queries if isinstance(queries, QuerySpace) else None
        if space is not None and len(space.forward) != d:
            raise ValueError(f"the QuerySpace has {len(space.forward)} dimensions, the points have {d}")
        asked = None if queries is space else check_vectors(queries, "queries", d=d, rows=1)
        rng = np.random.default_rng(self.seed)
        if len(x) > self.sample:
            x = x[np.sort(rng.choice(len(x), self.sample, replace=False))]
        weights = self._weights(x)
        if asked is not None:
            space = QuerySpace.fit(x, asked, self.subspaces, threads=self.threads)
        x, towards = _seen(space, x)

        k = 1 << self.bits_per_code
        if start is not None and ((*start.codewords.shape[:2], start.d) != (self.subspaces, k, d)):
            given = f"{start.codewords.shape[0]} codebooks of {start.codewords.shape[1]} over {start.d} dimensions"
            raise ValueError(f"start has {given}; needed: {self.subspaces} of {k} over {d}")
        books = start or start_codebooks(x, self.subspaces, k, rng=rng, threads=self.threads, progress=progress)
        units = directions(towards)
        codes = self._codes(books, x, towards, weights)
        losses = [self._loss(books, x, units, codes, weights)]
        for number in range(self.rounds):
            progress("codebooks", number, self.rounds)
            moved = self._update(books, x, units, codes, weights)
            moved_codes = self._codes(moved, x, towards, weights, start=codes)
            loss = self._loss(moved, x, units, moved_codes, weights)
            if loss >= losses[-1]:
                break
            books, codes = moved, moved_codes
            losses.append(loss)
        progress("codebooks", self.rounds, self.rounds)

        self.books, self.losses, self.space, self.scales = books, losses, space, None
        if self.scale_bits == 4:
            self.scales = ScaleLevels.fit(self._best_scales(books, x, units, codes, weights))
        elif self.scale_bits:
            self.scales = ScaleCodes.fit(_scales(books, x, towards, codes), bits=self.scale_bits)
        return self

    def encode(self, points: ArrayLike, *, progress: Progress = silent) -> Codes:
        """The codes of points: (n, subspaces) bytes, then the bytes of the scale (4 bits take one)."""
        books = self._fitted()
        x = check_vectors(points, "points", d=books.d)
        codes = np.empty((len(x), self.subspaces + self._scale_bytes), np.uint8)
        for first in range(0, len(x), _ROWS):
            progress("encode", first, len(x))
            rows = slice(first, first + _ROWS)
            block, towards = _seen(self.space, x[rows])
            weights = self._weights(x[rows])
            chosen = self._codes(books, block, towards, weights)
            if isinstance(self.scales, ScaleCodes):
                codes[rows, self.subspaces :] = self.scales.encode(_scales(books, block, towards, chosen))
            elif self.scales:
                wanted = self._best_scales(books, block, directions(towards), chosen, weights)
                codes[rows, self.subspaces :] = stored = self.scales.encode(wanted)
                targets = block * _inverse(self.scales.decode(stored).astype(np.float64))[:, None].astype(np.float32)
                penalty = (weights.eta - 1.0).astype(np.float32)
                chosen = books.encode(targets, towards, penalty, scaled=False, sweeps=self.sweeps, start=chosen)
            codes[rows, : self.subspaces] = chosen
        progress("encode", len(x), len(x))
        return codes

    def decode(self, codes: NDArray[Any]) -> F32:
        """The points that the codes stand for, (n, d)."""
        books = self._fitted()
        names = check_codes(codes, self.subspaces, self._scale_bytes, books.codewords.shape[1])
        decoded = books.decode(names[:, : self.subspaces])
        if self.scales:
            decoded *= self.scales.decode(names[:, self.subspaces :])[:, None]
        return decoded if self.space is None else self.space.points_back(decoded)

    def score(self, queries: ArrayLike, codes: NDArray[Any]) -> F32:
        """Inner products of queries (q, d) with the decoded points, (q, n)."""
        return score_decoded(self, queries, codes)

    def _fitted(self) -> Codebooks:
        if not hasattr(self, "books"):
            raise NotFittedError("this ProductQuantizer has no codebooks yet: call fit(points) first")
        return self.books

    @property
    def _scale_bytes(self) -> int:
        return -(-self.scale_bits // 8)

    def _weights(self, x: F32) -> Weights:
        norms = np.sqrt(np.einsum("nd,nd->n", x, x, dtype=np.float64))
        return self.loss.weights(norms, x.shape[1])

    def _codes(self, books: Codebooks, x: F32, towards: F32, weights: Weights, start: Codes | None = None) -> Codes:
        # Under the best scale the loss is a falling function of cos(x, y)^2 whatever eta is, so the penalty can be 0.
        scaled = self.scale_bits > 0
        penalty = np.zeros(len(x)) if scaled else weights.eta - 1.0
        return books.encode(x, towards, penalty.astype(np.float32), scaled=scaled, sweeps=self.sweeps, start=start)

    def _sums(self, books: Codebooks, x: F32, units: F32, codes: Codes, weights: Weights) -> tuple[F64, F64]:
        """Of y = B c: N = <y, x> + (eta - 1) <y, u> <x, u>, and D = |y|^2 + (eta - 1) <y, u>^2."""
        y, penalty = books.decode(codes), weights.eta - 1.0
        along = _dots(y, units)
        return _dots(y, x) + penalty * along * _dots(x, units), _dots(y, y) + penalty * along**2

    def _best_scales(self, books: Codebooks, x: F32, units: F32, codes: Codes, weights: Weights) -> F64:
        """The scales of least loss, N / D; 0 where y points away."""
        n, d = self._sums(books, x, units, codes, weights)
        return np.asarray(np.divide(n, d, out=np.zeros_like(d), where=(n > 0) & (d > 0)))

    def _loss(self, books: Codebooks, x: F32, units: F32, codes: Codes, weights: Weights) -> float:
        """The mean loss of the points, under the best scale where there is one."""
        n, d = self._sums(books, x, units, codes, weights)
        constant = _dots(x, x) + (weights.eta - 1.0) * _dots(x, units) ** 2
        saved = np.divide(n * n, d, out=np.zeros_like(d), where=d > 0) if self.scale_bits else 2.0 * n - d
        return float(np.mean(weights.importance * (constant - saved)))

    def _update(self, books: Codebooks, x: F32, units: F32, codes: Codes, weights: Weights) -> Codebooks:
        """All codewords at once for these codes; with scales, |x - s y|^2 = s^2 |x / s - y|^2 of the best scale s."""
        penalty = weights.eta - 1.0
        if not self.scale_bits:
            return fit_codewords(books, codes, x, units, penalty, weights.importance)
        scales = self._best_scales(books, x, units, codes, weights)
        targets = (x * _inverse(scales)[:, None]).astype(np.float32)
        return fit_codewords(books, codes, targets, units, penalty, weights.importance * scales**2)


def _seen(space: QuerySpace | None, x: F32) -> tuple[F32, F32]:
    """The points as they are coded, and where the queries that matter to them are: at the points, if none are known."""
    return (x, x) if space is None else (space.points(x), space.directions(x))


def _scales(books: Codebooks, x: F32, towards: F32, codes: Codes) -> F64:
    """<x, u> / <y, u>: the scale without error along u, which is |x|^2 / <x, y> for u = x; 0 where y points away.

    Along another u it is kept within a factor of 2 of that along x.
    """
    dots = books.dot(x, codes).astype(np.float64)
    plain: F64 = np.divide(_dots(x, x), dots, out=np.zeros_like(dots), where=dots > 0)
    if towards is x:
        return plain
    above, below = _dots(x, towards), books.dot(towards, codes).astype(np.float64)
    scales = np.divide(above, below, out=plain.copy(), where=(above > 0) & (below > 0))
    return np.asarray(np.clip(scales, plain / 2, plain * 2))


def _inverse(scales: F64) -> F64:
    """1 / scales, and 0 for 0."""
    return np.asarray(np.divide(1.0, scales, out=np.zeros_like(scales), where=scales > 0))


def _dots(a: F32, b: F32) -> F64:
    return np.asarray(np.einsum("nd,nd->n", a, b, dtype=np.float64))
