"""Optimized product quantization: product codes of rotated points, with the rotation learnt (OPQ, non-parametric).

n points, d dimensions, m subspaces. With X the points and Y what the codes of X R decode to, the rotation R of least
|X R - Y|^2 is the orthogonal factor of X^T Y. Inner products do not change under a rotation, and neither does the
score-aware loss: the rotation is learnt with the plain loss, then codebooks and codes with the loss asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aniso import _core
from aniso.errors import NotFittedError, check_count, check_vectors
from aniso.exact import multiply
from aniso.loss import Loss
from aniso.progress import Progress, silent
from aniso.quantizers.codebooks import Codebooks, Codes, start_codebooks
from aniso.quantizers.product import ProductQuantizer
from aniso.quantizers.protocol import score_decoded

__all__ = ["RotatedQuantizer", "orthogonal_factor"]

_PULL = 1e-4  # of the present rotation in the next, relative to the mean singular value: an empty direction stays put

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


class RotatedQuantizer:
    """A ProductQuantizer behind a rotation of the points that makes its squared error small.

    iterations      updates of the rotation, each with one of the codebooks
    sample          most points used in training, chosen by the seed
    All other settings are those of ProductQuantizer.

    >>> import numpy as np
    >>> from aniso.loss import Threshold
    >>> points = np.random.default_rng(0).normal(size=(2000, 10)).astype(np.float32)
    >>> quantizer = RotatedQuantizer(5, loss=Threshold(1.0)).fit(points)
    >>> codes = quantizer.encode(points)
    >>> codes.shape, quantizer.bits
    ((2000, 5), 20)

    After fit: rotation (d, d), product (the quantizer of rotated points), and losses: the mean squared error of the
    sample after each update of the rotation, which never rises.
    """

    rotation: F32
    losses: list[float]

    def __init__(
        self,
        subspaces: int,
        *,
        bits_per_code: int = 4,
        loss: Loss | None = None,
        scale_bits: int = 0,
        iterations: int = 30,
        rounds: int = 6,
        sweeps: int = 10,
        sample: int = 50_000,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        self.product = ProductQuantizer(
            subspaces,
            bits_per_code=bits_per_code,
            loss=loss,
            scale_bits=scale_bits,
            rounds=rounds,
            sweeps=sweeps,
            sample=sample,
            seed=seed,
            threads=threads,
        )
        self.iterations = check_count(iterations, "iterations", least=0)

    @property
    def bits(self) -> int:
        """Bits that the code of one point takes, its scale included."""
        return self.product.bits

    def fit(self, points: ArrayLike, *, progress: Progress = silent) -> RotatedQuantizer:
        """Learn the rotation, then the codebooks, from points (n, d), or from a sample of them."""
        x = check_vectors(points, "points", rows=1)
        product, d = self.product, x.shape[1]
        if product.subspaces > d:
            raise ValueError(f"subspaces is {product.subspaces}; needed: at most the {d} dimensions of the points")
        rng = np.random.default_rng(product.seed)
        if len(x) > product.sample:
            x = x[np.sort(rng.choice(len(x), product.sample, replace=False))]
        rotation = orthogonal_factor(rng.normal(size=(d, d)))
        turned = self._turn(x, rotation)
        k = 1 << product.bits_per_code
        books = start_codebooks(turned, product.subspaces, k, rng=rng, threads=product.threads, progress=progress)
        codes = _nearest(books, turned)
        losses = [_squared_error(books, turned, codes)]
        for iteration in range(self.iterations):
            progress("rotation", iteration, self.iterations)
            moved = _means(books, turned, codes)
            moved_rotation = self._update(x, moved.decode(codes), rotation)
            turned = self._turn(x, moved_rotation)
            moved_codes = _nearest(moved, turned)
            loss = _squared_error(moved, turned, moved_codes)
            if loss >= losses[-1]:
                break
            books, rotation, codes = moved, moved_rotation, moved_codes
            losses.append(loss)
        progress("rotation", self.iterations, self.iterations)
        product.fit(self._turn(x, rotation), start=books, progress=progress)
        self.rotation, self.losses = rotation.astype(np.float32), losses
        return self

    def encode(self, points: ArrayLike, *, progress: Progress = silent) -> Codes:
        """The codes of points: (n, subspaces) bytes, then the bytes of the scale where there is one."""
        rotation = self._fitted()
        x = check_vectors(points, "points", d=len(rotation))
        return self.product.encode(self._turn(x, rotation), progress=progress)

    def decode(self, codes: NDArray[Any]) -> F32:
        """The points that the codes stand for, (n, d)."""
        rotation = self._fitted()
        return self._turn(self.product.decode(codes), rotation.T)

    def score(self, queries: ArrayLike, codes: NDArray[Any]) -> F32:
        """Inner products of queries (q, d) with the decoded points, (q, n)."""
        return score_decoded(self, queries, codes)

    def _fitted(self) -> F32:
        if not hasattr(self, "rotation"):
            raise NotFittedError("this RotatedQuantizer has no rotation yet: call fit(points) first")
        return self.rotation

    def _turn(self, x: F32, rotation: NDArray[np.floating]) -> F32:
        return multiply(x, rotation, threads=self.product.threads)

    def _update(self, x: F32, y: F32, rotation: F64) -> F64:
        """The rotation of least |x R - y|^2; the pull towards the present one cannot make that rise."""
        d = len(rotation)
        cross = np.empty((d, d))
        _core.moments(x, y, np.ones(len(x)), cross, threads=self.product.threads)
        size = float(np.sqrt(np.mean(cross**2) * d))  # the root mean square of its singular values
        return orthogonal_factor(cross + _PULL * size * rotation) if size > 0 else rotation


def orthogonal_factor(matrix: F64, *, iterations: int = 100) -> F64:
    """U V^T of the singular value decomposition U S V^T: the orthogonal matrix nearest to the matrix.

    X <- (3 X - X X^T X) / 2 takes all singular values to 1. A LAPACK's decomposition is quicker, but its last bits may
    change with the number of threads; einsum's do not.

    >>> import numpy as np
    >>> turn = orthogonal_factor(np.array([[1.0, 2.0], [3.0, -1.0]]))
    >>> np.allclose(turn @ turn.T, np.eye(2))
    True
    """
    x = matrix / np.sqrt(np.sum(matrix**2))  # singular values at most 1
    for _ in range(iterations):
        gram = np.einsum("ij,kj->ik", x, x)
        following = 1.5 * x - 0.5 * np.einsum("ij,jk->ik", gram, x)
        settled = float(np.abs(following - x).max()) < 1e-13
        x = following
        if settled:
            break
    return np.asarray(x)


def _nearest(books: Codebooks, x: F32) -> Codes:
    return books.encode(x, x, np.zeros(len(x), np.float32), scaled=False, sweeps=0)


def _means(books: Codebooks, x: F32, codes: Codes) -> Codebooks:
    """Every codeword in the middle of its points; one without points stays."""
    ones = np.ones(len(x), np.float32)
    counts = books.counts(ones.astype(np.float64), codes)[:, :, None]
    means = books.sums(x, ones, codes) / np.maximum(counts, 1)
    return Codebooks(np.where(counts > 0, means, books.codewords).astype(np.float32), books.starts, books.threads)


def _squared_error(books: Codebooks, x: F32, codes: Codes) -> float:
    error = x - books.decode(codes)
    return float(np.mean(np.einsum("nd,nd->n", error, error, dtype=np.float64)))
