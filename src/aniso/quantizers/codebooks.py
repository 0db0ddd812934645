"""The codebooks of all subspaces as one object: encode, decode, and the joint update of all codewords.

The arithmetic on (n, d) arrays is in the C++ core (cpp/encode.h, cpp/sums.h); this file says what is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aniso import _core
from aniso.kmeans import refill_empty, spread_sample
from aniso.progress import Progress, silent
from aniso.quantizers.conjugate_gradients import conjugate_gradients

__all__ = ["Codebooks", "fit_codewords", "start_codebooks"]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Codes = NDArray[np.uint8]
_ROWS = 8192  # points looked at together


@dataclass(frozen=True)
class Codebooks:
    """Codebook j holds k codewords over the dimensions starts[j] to starts[j + 1] - 1."""

    codewords: F32  # (m, k, width), zeros past a subspace's own width
    starts: NDArray[np.int32]  # (m + 1,) from 0 to d
    threads: int = 1

    @property
    def d(self) -> int:
        """Dimensions of the points."""
        return int(self.starts[-1])

    def encode(
        self,
        residuals: F32,
        points: F32,
        penalty: F32,
        *,
        scaled: bool,
        sweeps: int,
        start: Codes | None = None,
        threads: int | None = None,
    ) -> Codes:
        """Codes (n, m) by coordinate descent, from the nearest codewords or from the codes given as start.

        The loss is |r - y|^2 + penalty <r - y, u>^2 for the decoded y and u = points / |points|, and with
        scaled=True the same under the scale of y that makes it least.
        """
        codes = np.zeros((len(residuals), len(self.codewords)), np.uint8) if start is None else start.copy()
        _core.encode(
            residuals,
            points,
            penalty,
            self.codewords,
            self.starts,
            codes,
            scaled=scaled,
            warm=start is not None,
            sweeps=sweeps,
            threads=self.threads if threads is None else threads,
        )
        return codes

    def decode(self, codes: Codes) -> F32:
        """The codewords that codes (n, m) name, side by side: (n, d)."""
        decoded = np.empty((len(codes), self.d), np.float32)
        for j, words in enumerate(self.codewords):
            first, last = self.starts[j], self.starts[j + 1]
            decoded[:, first:last] = words[codes[:, j], : last - first]
        return decoded

    def dot(self, values: F32, codes: Codes) -> F32:
        """<values[i], decode(codes)[i]> for every i, without decoding: (n,)."""
        out = np.empty(len(values), np.float32)
        _core.dot_decoded(values, codes, self.codewords, self.starts, out, threads=self.threads)
        return out

    def sums(self, values: F32, weights: F32, codes: Codes) -> F64:
        """Of each codeword, the weighted sum of values over the points that chose it: (m, k, width)."""
        out = np.empty(self.codewords.shape)
        _core.sum_by_code(values, weights, codes, self.codewords, self.starts, out, threads=self.threads)
        return out

    def counts(self, weights: F64, codes: Codes) -> F64:
        """Of each codeword, the sum of weights of the points that chose it: (m, k)."""
        k = self.codewords.shape[1]
        return np.stack([np.bincount(column, weights, minlength=k) for column in codes.T])


def start_codebooks(
    x: F32,
    m: int,
    k: int,
    *,
    rng: np.random.Generator,
    iterations: int = 15,
    threads: int = 1,
    progress: Progress = silent,
) -> Codebooks:
    """Codebooks of the plain loss: k-means in m subspaces whose widths differ by at most 1, all in one go."""
    starts = np.linspace(0, x.shape[1], m + 1).astype(np.int32)
    codewords = np.zeros((m, k, int(np.diff(starts).max())), np.float32)
    ones = np.ones(len(x), np.float32)
    for j in range(m):
        codewords[j, :, : starts[j + 1] - starts[j]] = spread_sample(x[:, starts[j] : starts[j + 1]], k, rng=rng)
    books = Codebooks(codewords, starts, threads)
    for iteration in range(iterations):
        progress("initial codebooks", iteration, iterations)
        codes = books.encode(x, x, np.zeros_like(ones), scaled=False, sweeps=0)
        counts = books.counts(ones.astype(np.float64), codes)
        means = books.sums(x, ones, codes) / np.maximum(counts, 1)[:, :, None]
        codewords = np.where(counts[:, :, None] > 0, means, books.codewords).astype(np.float32)
        for j in np.flatnonzero((counts == 0).any(axis=1)).tolist():
            part = x[:, starts[j] : starts[j + 1]]
            error = part - books.codewords[j, codes[:, j], : part.shape[1]]
            refill_empty(codewords[j, :, : part.shape[1]], counts[j] == 0, part, np.einsum("nd,nd->n", error, error))
        books = Codebooks(codewords, starts, threads)
    progress("initial codebooks", iterations, iterations)
    return books


def fit_codewords(
    books: Codebooks,
    codes: Codes,
    targets: F32,
    units: F32,
    penalty: F64,
    importance: F64,
    *,
    iterations: int = 30,
    tolerance: float = 1e-3,
) -> Codebooks:
    """The joint codebook update of appendix 7.5: all codewords of all subspaces at once, for fixed codes.

    Minimises sum_i importance_i (|t_i - B_i c|^2 + penalty_i <t_i - B_i c, u_i>^2) over c, t the targets, u the units,
    i.e. solves A c = b with
        A = sum_i importance_i B_i^T (I + penalty_i u_i u_i^T) B_i
        b = sum_i importance_i B_i^T (t_i + penalty_i <t_i, u_i> u_i)
    A has (k d)^2 entries, so it is never formed: conjugate gradients, preconditioned by A's diagonal and started at the
    present codewords, need only A c, and every step lowers the loss. Codewords that no point chose stay as they are.
    """
    along = np.einsum("nd,nd->n", targets, units, dtype=np.float64)
    counts = books.counts(importance, codes)[:, :, None]
    weight = (importance * penalty).astype(np.float32)

    def times_a(c: F64) -> F64:
        if not weight.any():
            return counts * c
        trial = Codebooks(c.astype(np.float32), books.starts, books.threads)
        return counts * c + trial.sums(units, weight * trial.dot(units, codes), codes)

    b = books.sums(targets, importance.astype(np.float32), codes)
    b += books.sums(units, (importance * penalty * along).astype(np.float32), codes)
    diagonal = np.broadcast_to(counts, books.codewords.shape).copy()
    for first in range(0, len(units), _ROWS):  # a block at a time: squares take memory
        block = slice(first, first + _ROWS)
        diagonal += books.sums(units[block] ** 2, weight[block], codes[block])
    inverse = np.divide(1.0, diagonal, out=np.zeros_like(diagonal), where=counts > 0)

    start = books.codewords.astype(np.float64)
    residual = np.where(counts > 0, b - times_a(start), 0.0)
    c = conjugate_gradients(times_a, start, residual, inverse, iterations=iterations, tolerance=tolerance)
    return Codebooks(c.astype(np.float32), books.starts, books.threads)
