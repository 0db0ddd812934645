"""Anisotropic vector quantization: one codeword per point, trained on the score-aware loss (paper, section 4).

n points, d dimensions, k codewords; eta and importance as in aniso.loss:
h_orthogonal = importance, h_parallel = importance * eta.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aniso import _core
from aniso.errors import NotFittedError, check_count, check_seed, check_threads, check_vectors
from aniso.kmeans import nearest, refill_empty, spread_sample
from aniso.loss import Loss, Weights, check_loss
from aniso.progress import Progress, silent
from aniso.quantizers.protocol import score_decoded

__all__ = ["VectorQuantizer", "update_codewords"]


class VectorQuantizer:
    """K codewords of d dimensions; a point's code is the number of the codeword with the least loss.

    >>> import numpy as np
    >>> from aniso.loss import Threshold
    >>> points = np.random.default_rng(0).normal(size=(500, 8))
    >>> quantizer = VectorQuantizer(16, loss=Threshold(1.0)).fit(points)
    >>> codes = quantizer.encode(points)
    >>> codes.shape, quantizer.decode(codes).shape, quantizer.bits
    ((500,), (500, 8), 4)

    After fit: codewords (k, d) float32, and losses, the total loss after every iteration, which never rises.
    """

    codewords: NDArray[np.float32]
    losses: list[float]

    def __init__(
        self,
        k: int,
        *,
        loss: Loss | None = None,
        iterations: int = 25,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        self.k = check_count(k, "k", most=1 << 24)
        self.loss = check_loss(loss)
        self.iterations = check_count(iterations, "iterations", least=0)
        self.seed = check_seed(seed)
        self.threads = check_threads(threads)

    @property
    def bits(self) -> int:
        """Bits that the code of one point takes."""
        return (self.k - 1).bit_length()

    def fit(self, points: ArrayLike, *, progress: Progress = silent) -> VectorQuantizer:
        """Learn the codewords: assign every point, update every codeword in closed form, until nothing improves."""
        x = check_vectors(points, "points", rows=1)
        weights = self._weights(x)
        eta, importance = weights.eta.astype(np.float32), weights.importance
        rng = np.random.default_rng(self.seed)
        codewords = spread_sample(x, self.k, rng=rng)
        codes, costs = nearest(x, codewords, eta=eta, threads=self.threads)
        losses = [float(np.sum(costs * importance))]
        for iteration in range(self.iterations):
            progress("vector quantizer", iteration, self.iterations)
            moved = update_codewords(x, codes, weights, codewords)
            empty = np.bincount(codes, minlength=self.k) == 0
            refill_empty(moved, empty, x, costs * importance.astype(np.float32))
            moved_codes, moved_costs = nearest(x, moved, eta=eta, threads=self.threads)
            loss = float(np.sum(moved_costs * importance))
            if loss >= losses[-1]:
                break
            codewords, codes, costs = moved, moved_codes, moved_costs
            losses.append(loss)
        progress("vector quantizer", self.iterations, self.iterations)
        self.codewords, self.losses = codewords, losses
        return self

    def encode(self, points: ArrayLike) -> NDArray[np.int32]:
        """The codes of points, (n,)."""
        x = check_vectors(points, "points", d=self._fitted().shape[1])
        eta = self._weights(x).eta.astype(np.float32)
        return nearest(x, self.codewords, eta=eta, threads=self.threads)[0]

    def decode(self, codes: NDArray[Any]) -> NDArray[np.float32]:
        """The codewords that the codes name, (n, d)."""
        codewords = self._fitted()
        numbers = np.asarray(codes)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise ValueError(f"codes have shape {numbers.shape} and dtype {numbers.dtype}; needed: (n,) integers")
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= self.k):
            raise ValueError(f"codes run from {numbers.min()} to {numbers.max()}; needed: 0 to {self.k - 1}")
        return np.take(codewords, numbers, axis=0)

    def score(self, queries: ArrayLike, codes: NDArray[Any]) -> NDArray[np.float32]:
        """Inner products of queries (q, d) with the decoded points, (q, n)."""
        return score_decoded(self, queries, codes)

    def _weights(self, points: NDArray[np.float32]) -> Weights:
        return self.loss.weights(np.linalg.norm(points.astype(np.float64), axis=1), points.shape[1])

    def _fitted(self) -> NDArray[np.float32]:
        if not hasattr(self, "codewords"):
            raise NotFittedError("this VectorQuantizer has no codewords yet: call fit(points) first")
        return self.codewords


def update_codewords(
    points: NDArray[np.float32], codes: NDArray[np.int32], weights: Weights, codewords: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Theorem 4.2: the codeword of least loss for the points of each code; unused codewords stay.

    c* = (I sum h_orthogonal + sum (h_parallel - h_orthogonal) / |x|^2 x x^T)^-1  sum h_parallel x
    """
    d = points.shape[1]
    updated: NDArray[np.float32] = codewords.copy()
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(codewords) + 1))
    for j in np.flatnonzero(np.diff(bounds)):
        members = order[bounds[j] : bounds[j + 1]]
        x = points[members]
        eta, importance = weights.eta[members], weights.importance[members]
        squared = np.einsum("nd,nd->n", x, x, dtype=np.float64)
        excess = np.divide(importance * (eta - 1.0), squared, out=np.zeros(len(x)), where=squared > 0)
        matrix = np.empty((d, d))
        _core.moments(x, x, excess, matrix)
        matrix[np.diag_indices(d)] += importance.sum()
        right = np.einsum("n,nd->d", importance * eta, x)[None]
        _core.solve_spd(matrix, right)
        updated[j] = right[0]
    return updated
