"""The codebooks of additive codes: decode, inner products, and the codewords of least loss for given codes.

n points, d dimensions, m codebooks of k codewords, each as long as a point; y_i = sum_j codewords[j, codes[i, j]].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aniso import _core
from aniso.quantizers.codebooks import Codes
from aniso.quantizers.conjugate_gradients import conjugate_gradients

__all__ = ["decode_sum", "fit_codewords", "gram", "solve_codewords"]

_ROWS = 2048  # points decoded together: their sums stay in the cache while the codebooks go by
_RIDGE = 1e-3  # of the dense update, towards the present codewords and relative to a codeword's mean count

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def decode_sum(codewords: F32, codes: Codes) -> F32:
    """The sums of the codewords that codes (n, m) name: (n, d)."""
    decoded = np.zeros((len(codes), codewords.shape[2]), np.float32)
    for first in range(0, len(codes), _ROWS):
        rows = slice(first, first + _ROWS)
        for j, words in enumerate(codewords):
            decoded[rows] += words[codes[rows, j]]
    return decoded


def gram(codewords: F32) -> F32:
    """Inner products of all codewords with each other: (m k, m k)."""
    flat = codewords.reshape(-1, codewords.shape[2])
    out = np.empty((len(flat), (len(flat) + 31) // 32 * 32), np.float32)
    _core.gram(flat, out)
    return np.ascontiguousarray(out[:, : len(flat)])


def solve_codewords(codewords: F32, codes: Codes, targets: F32, weights: F64, *, threads: int) -> F32:
    """The codewords of least sum_i weights_i |t_i - y_i|^2 for these codes, by one dense system.

    All dimensions share one matrix of m k rows: how often two codewords meet in a point. Right for up to a few thousand
    codewords; a ridge keeps those that are rarely used where they are.
    """
    m, k, d = codewords.shape
    ridge = _RIDGE * float(weights.sum()) / k
    if ridge == 0:
        return codewords
    meetings = np.zeros((m, k, m, k))
    for a in range(m):
        for b in range(a, m):
            pairs = codes[:, a].astype(np.int64) * k + codes[:, b]
            meetings[a, :, b] = np.bincount(pairs, weights, minlength=k * k).reshape(k, k)
            meetings[b, :, a] = meetings[a, :, b].T
    matrix = meetings.reshape(m * k, m * k)
    sums = _sums(targets, weights.astype(np.float32), codes, k, threads)
    right = sums.reshape(m * k, d) + ridge * codewords.reshape(m * k, d)
    matrix[np.diag_indices(m * k)] += ridge
    solved = np.ascontiguousarray(right.T)
    _core.solve_spd(matrix, solved, threads=threads)
    return np.ascontiguousarray(solved.T, np.float32).reshape(m, k, d)


def fit_codewords(
    codewords: F32,
    codes: Codes,
    targets: F32,
    units: F32,
    penalty: F64,
    weights: F64,
    *,
    iterations: int = 12,
    tolerance: float = 3e-3,
    threads: int = 1,
) -> F32:
    """The codewords of least sum_i weights_i (|t_i - y_i|^2 + penalty_i <t_i - y_i, u_i>^2) for these codes.

    With a penalty the dimensions no longer share a matrix, and 256 codewords make it large, so it is never formed:
    conjugate gradients on the correction to the present codewords, each step a pass over the codes that decodes it and
    sums up what it changes. Every step lowers the loss, so that stopping early is safe. Unused codewords stay.
    """
    k = codewords.shape[1]
    ones, weight = np.ones(len(codes), np.float32), weights.astype(np.float32)
    pull = penalty.astype(np.float32)
    counts = np.stack([np.bincount(column, weights, minlength=k) for column in codes.T])[:, :, None]
    diagonal = counts + (_sums(units * units, weight * pull, codes, k, threads) if pull.any() else 0.0)
    inverse = np.divide(1.0, diagonal, out=np.zeros_like(diagonal + 0.0), where=diagonal > 0)

    def weigh(vectors: F32) -> F32:
        """weights (v + penalty <v, u> u), row by row."""
        if pull.any():
            vectors = vectors + (pull * np.einsum("nd,nd->n", vectors, units))[:, None] * units
        return vectors * weight[:, None]

    def times_a(c: F64) -> F64:
        return _sums(weigh(decode_sum(c.astype(np.float32), codes)), ones, codes, k, threads)

    residual = _sums(weigh(targets - decode_sum(codewords, codes)), ones, codes, k, threads)
    start = np.zeros_like(residual)
    change = conjugate_gradients(times_a, start, residual, inverse, iterations=iterations, tolerance=tolerance)
    return np.asarray(codewords + change, np.float32)


def _sums(values: F32, weights: F32, codes: Codes, k: int, threads: int) -> F64:
    """Of each codeword, the weighted sum of values over the points that chose it: (m, k, d)."""
    m, d = codes.shape[1], values.shape[1]
    sums, totals = np.empty((m, k, d)), np.empty(k)
    for j in range(m):
        _core.sum_by_group(values, weights, codes[:, j].astype(np.int32), sums[j], totals, threads=threads)
    return sums
