"""The kernels of aniso._core in NumPy and float64: one obvious function each, written to be read, not to be fast.

n points, d dimensions, m subspaces, k codewords in each; codebook j spans dimensions starts[j] to starts[j + 1] - 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "additive_value",
    "assign",
    "assign_partitions",
    "blocks",
    "decode",
    "decode_additive",
    "dot_decoded",
    "encode",
    "encode_additive",
    "gram",
    "objective",
    "partition_costs",
    "sum_by_code",
    "sum_by_group",
    "terms",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def assign(
    points: ArrayLike, codewords: ArrayLike, squared_norms: ArrayLike, linear: ArrayLike, quadratic: ArrayLike
) -> tuple[Ints, Floats]:
    """codes[i] = argmin_c cost[i, c] (the lowest c among equals) and costs[i] = min_c cost[i, c], where
    cost[i, c] = squared_norms[c] + g (linear[i] + quadratic[i] g) and g = <points[i], codewords[c]>.
    """
    g = _floats(points) @ _floats(codewords).T  # (n, k)
    cost = _floats(squared_norms) + g * (_floats(linear)[:, None] + _floats(quadratic)[:, None] * g)
    return cost.argmin(axis=1), cost.min(axis=1)


def gram(codewords: ArrayLike, columns: int) -> Floats:
    """out[:, :k] = codewords @ codewords.T; the other columns, up to `columns`, are 0."""
    words = _floats(codewords)
    out = np.zeros((len(words), columns))
    out[:, : len(words)] = words @ words.T
    return out


def partition_costs(points: ArrayLike, assigners: ArrayLike, firsts: ArrayLike, strength: float) -> Floats:
    """cost[i, c] = |x - c|^2 + strength <x - c, r / |r|>^2, where r = x - assigners[firsts[i]] (0 if r is 0)."""
    left = _floats(points)[:, None] - _floats(assigners)[None]  # (n, p, d)
    r = left[np.arange(len(left)), _ints(firsts)]
    lengths = np.sqrt((r * r).sum(axis=1))
    along = np.einsum("npd,nd->np", left, r) / np.where(lengths > 0, lengths, 1.0)[:, None]
    cost: Floats = (left * left).sum(axis=2) + strength * along**2
    return cost


def assign_partitions(points: ArrayLike, assigners: ArrayLike, strength: float) -> tuple[Ints, Ints]:
    """firsts[i] = argmin_c |x - c|^2; seconds[i] = argmin of partition_costs over the others."""
    firsts = partition_costs(points, assigners, np.zeros(len(_floats(points)), np.int64), 0.0).argmin(axis=1)
    cost = partition_costs(points, assigners, firsts, strength)
    cost[np.arange(len(cost)), firsts] = np.inf
    return firsts, cost.argmin(axis=1)


def decode(codes: ArrayLike, codewords: ArrayLike, starts: ArrayLike) -> Floats:
    """decoded[i, starts[j]:starts[j + 1]] = codewords[j, codes[i, j], :starts[j + 1] - starts[j]]."""
    names, words, bounds = _ints(codes), _floats(codewords), _ints(starts)
    decoded = np.zeros((len(names), bounds[-1]))
    for j in range(len(words)):
        first, last = bounds[j], bounds[j + 1]
        decoded[:, first:last] = words[j, names[:, j], : last - first]
    return decoded


def terms(y: Floats, residual: Floats, point: Floats, penalty: float) -> tuple[Floats, Floats]:
    """N = <y, v> and D = |y|^2 + penalty <y, u>^2 for each row of y, where u = point / |point| (0 for a zero point) and
    v = residual + penalty <residual, u> u.
    """
    norm = np.sqrt(point @ point)
    u = point / norm if norm > 0 else np.zeros_like(point)
    v = residual + penalty * (residual @ u) * u
    return y @ v, (y * y).sum(axis=-1) + penalty * (y @ u) ** 2


def objective(y: Floats, residual: Floats, point: Floats, penalty: float, *, scaled: bool) -> Floats:
    """What encode minimises, for each row of y: D - 2 N, or where scaled -N^2 / D if N > 0, else 0."""
    N, D = terms(y, residual, point, penalty)
    if not scaled:
        return D - 2 * N
    return np.where(N > 0, -(N**2) / np.where(D > 0, D, 1.0), 0.0)


def encode(
    residuals: ArrayLike,
    points: ArrayLike,
    penalty: ArrayLike,
    codewords: ArrayLike,
    starts: ArrayLike,
    *,
    scaled: bool,
    sweeps: int,
    start: ArrayLike | None = None,
) -> Ints:
    """codes[i] by coordinate descent on objective(decode(codes[i])): at most `sweeps` times over the subspaces in their
    order, each takes the first codeword of least objective with all others held, if that is less than it has. It
    begins at start[i], or at the codewords nearest to residuals[i] in each subspace (the first among equals).
    """
    r, x, eta_minus_1 = _floats(residuals), _floats(points), _floats(penalty)
    words, bounds = _floats(codewords), _ints(starts)
    m, k, _ = words.shape
    codes = np.zeros((len(r), m), np.int64) if start is None else _ints(start).copy()
    for i in range(len(r)):
        if start is None:
            for j in range(m):
                first, last = bounds[j], bounds[j + 1]
                c = words[j, :, : last - first]
                codes[i, j] = np.argmin((c * c).sum(axis=1) - 2 * c @ r[i, first:last])
        y = decode(codes[i : i + 1], words, bounds)[0]
        for _ in range(sweeps):
            before = codes[i].copy()
            for j in range(m):
                first, last = bounds[j], bounds[j + 1]
                trials = np.repeat(y[None], k, axis=0)
                trials[:, first:last] = words[j, :, : last - first]
                values = objective(trials, r[i], x[i], eta_minus_1[i], scaled=scaled)
                if values.min() < values[codes[i, j]]:
                    codes[i, j] = values.argmin()
                    y = trials[codes[i, j]]
            if (codes[i] == before).all():
                break
    return codes


def decode_additive(codes: ArrayLike, codewords: ArrayLike) -> Floats:
    """decoded[i] = the sum over j of codewords[j, codes[i, j]], every codeword as long as a point."""
    names, words = _ints(codes), _floats(codewords)
    m, _, d = words.shape
    return sum((words[j, names[:, j]] for j in range(m)), np.zeros((len(names), d)))


def additive_value(y: Floats, point: Floats, penalty: float, *, scaled: bool) -> Floats:
    """What encode_additive maximises, for each row of y, with T = <y, point> and B = |y|^2: where scaled T^2 / B if T
    and B are positive, else 0; if not, 2 (1 + penalty) T - B - penalty (T / |point|)^2 (its last term 0 for a zero
    point), which is a constant minus the score-aware loss of y.
    """
    T, B, squared = y @ point, (y * y).sum(axis=-1), float(point @ point)
    if scaled:
        return np.where((T > 0) & (B > 0), T**2 / np.where(B > 0, B, 1.0), 0.0)
    value: Floats = 2 * (1 + penalty) * T - B - (penalty * T**2 / squared if squared > 0 else 0.0)
    return value


def encode_additive(
    points: ArrayLike,
    penalty: ArrayLike,
    codewords: ArrayLike,
    *,
    scaled: bool,
    sweeps: int,
    start: ArrayLike | None = None,
) -> Ints:
    """codes[i] by coordinate descent on additive_value(decode_additive(codes[i])), without restarts: at most `sweeps`
    times over the codebooks in their order, each takes the first codeword of largest value with all others held, if
    that is more than it has. It begins at start[i], or with the codewords in turn: of each codebook the one nearest to
    what those before it leave of the point (the first among equals).

    The kernel also wants a gain of 1e-6 of the value; inputs on which the two must agree have no smaller ones.
    """
    x, eta_minus_1, words = _floats(points), _floats(penalty), _floats(codewords)
    m = len(words)
    codes = np.zeros((len(x), m), np.int64) if start is None else _ints(start).copy()
    for i in range(len(x)):
        if start is None:
            left = x[i].copy()
            for j in range(m):
                codes[i, j] = ((left - words[j]) ** 2).sum(axis=1).argmin()
                left -= words[j, codes[i, j]]
        for _ in range(sweeps):
            before = codes[i].copy()
            for j in range(m):
                rest = decode_additive(codes[i : i + 1], words)[0] - words[j, codes[i, j]]
                values = additive_value(rest + words[j], x[i], eta_minus_1[i], scaled=scaled)
                if values.max() > values[codes[i, j]]:
                    codes[i, j] = values.argmax()
            if (codes[i] == before).all():
                break
    return codes


def dot_decoded(values: ArrayLike, codes: ArrayLike, codewords: ArrayLike, starts: ArrayLike) -> Floats:
    """out[i] = <values[i], decode(codes)[i]>."""
    out: Floats = (_floats(values) * decode(codes, codewords, starts)).sum(axis=1)
    return out


def sum_by_code(
    values: ArrayLike, weights: ArrayLike, codes: ArrayLike, codewords: ArrayLike, starts: ArrayLike
) -> Floats:
    """out[j, c] = the sum over i with codes[i, j] == c of weights[i] * values[i, starts[j]:starts[j + 1]], then zeros.

    Of codewords only the shape counts.
    """
    names, bounds = _ints(codes), _ints(starts)
    weighted = _floats(weights)[:, None] * _floats(values)
    out = np.zeros_like(_floats(codewords))
    m, k, _ = out.shape
    for j in range(m):
        first, last = bounds[j], bounds[j + 1]
        for c in range(k):
            out[j, c, : last - first] = weighted[names[:, j] == c, first:last].sum(axis=0)
    return out


def sum_by_group(values: ArrayLike, weights: ArrayLike, groups: ArrayLike, k: int) -> tuple[Floats, Floats]:
    """sums[c] = the sum over i with groups[i] == c of weights[i] * values[i], totals[c] = that of weights[i]."""
    w, v = _floats(weights), _floats(values)
    chosen = (_ints(groups)[None, :] == np.arange(k)[:, None]).astype(np.float64)  # (k, n)
    return chosen @ (w[:, None] * v), chosen @ w


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64)


def _ints(values: ArrayLike) -> Ints:
    return np.asarray(values, dtype=np.int64)


def blocks(packed: ArrayLike) -> NDArray[np.uint8]:
    """out[i // 32, :, i % 32] = packed[i], the bytes of a point; zeros where there is none."""
    rows = np.asarray(packed, dtype=np.uint8)
    n, width = rows.shape
    out = np.zeros((-(-n // 32), width, 32), np.uint8)
    out[np.arange(n) // 32, :, np.arange(n) % 32] = rows
    return out


def scan(codes: ArrayLike, tables: ArrayLike) -> Ints:
    """sums[i] = tables[m, codes[i, m]].sum(over m)"""
    chosen, entries = _ints(codes), _ints(tables)
    sums: Ints = entries[np.arange(entries.shape[0])[None, :], chosen].sum(axis=1)
    return sums


def tables(query: ArrayLike, codewords: ArrayLike, firsts: ArrayLike) -> Floats:
    """T[m, c] = sum_j query[firsts[m] + j] * codewords[m, j, c]"""
    q, words = _floats(query), _floats(codewords)
    width = words.shape[1]
    return np.stack([q[first : first + width] @ words[m] for m, first in enumerate(_ints(firsts))])
