"""The integrals behind the score-aware loss: w sin^d over the latitudes of a sphere, as logarithms (paper, 3.1).

`tail` is the special case of the indicator, an incomplete beta function; `log_integrals` takes any weight
function, by adaptive quadrature and, for many norms, interpolation. Symbols as in aniso.loss.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

__all__ = ["Floats", "LogWeight", "log_integrals", "log_sine_integral", "tail"]

Floats = NDArray[np.float64]
LogWeight = Callable[[Floats], Floats]  # from scores to the logarithms of their weights

_PANEL_ERROR = 1e-10  # of one panel of the quadrature, relative to the whole integral
_MAX_PANELS = 4000  # unconverged panels per norm before w counts as too irregular
_BLOCK = 128  # norms integrated at once: some 100,000 nodes
_DIRECT = 1024  # up to this many different norms are integrated one by one, more are interpolated
_INTERPOLATION_ERROR = 2e-8  # in log h, where interpolation over the norms is checked


def log_integrals(log_w: LogWeight, x: Floats, d: int) -> tuple[Floats, Floats]:
    """(log h_parallel, log h_orthogonal) for norms x: each different norm once, many of them by interpolation."""
    different, inverse = np.unique(x, return_inverse=True)
    if different.size <= _DIRECT:
        result = _integrate(log_w, different, d)
    else:
        result = np.empty((2, different.size))
        first = int(different[0] == 0)
        result[:, :first] = _integrate(log_w, different[:first], d)
        _interpolate(log_w, different[first:], d, result[:, first:])
    return result[0, inverse], result[1, inverse]


def log_sine_integral(d: int) -> float:
    """log W = log Int_0^pi sin^d theta dtheta."""
    return 0.5 * math.log(math.pi) + math.lgamma((d + 1) / 2) - math.lgamma(d / 2 + 1)


def tail(c: Floats, d: int) -> Floats:
    """F(c) = J(c) / s^(d+1) for c in [0, 1): smooth, from W/2 at 0 to 1/(d+1) at 1.

    For many c, cubic Hermite interpolation: F varies over 1/sqrt(d), and F' = ((d+1) c F - 1) / s^2 is known.
    """
    steps = math.ceil(64 * math.sqrt(d))
    if c.size <= 4 * steps:
        return _exact_tail(c, d)
    grid = np.arange(steps) / steps
    F = np.append(_exact_tail(grid, d), 1 / (d + 1))
    slope = np.append(((d + 1) * grid * F[:-1] - 1) / (1 - grid**2), -1 / (d + 3)) / steps
    position = c * steps
    left = np.minimum(position.astype(np.int64), steps - 1)
    u, rise = position - left, np.diff(F)
    first, second = slope[:-1] - rise, rise - slope[1:]  # of the cubic, against its chord
    return F[left] + u * (rise[left] + (1 - u) * ((1 - u) * first[left] + u * second[left]))


def _exact_tail(c: Floats, d: int) -> Floats:
    a, x = (d + 1) / 2, c**2
    F = np.empty_like(c)
    far = x > 3 / (d + 6)  # J(c) = B(s^2; a, 1/2) / 2, whose fraction converges quickly here
    F[far] = c[far] / (d + 1) * _beta_fraction(a, 0.5, 1 - x[far])
    near = ~far  # J(c) = W/2 - B(c^2; 1/2, a) / 2
    half = np.exp(log_sine_integral(d) - a * np.log1p(-x[near])) / 2
    F[near] = half - c[near] * _beta_fraction(0.5, a, x[near])
    return F


def _beta_fraction(a: float, b: float, x: Floats) -> Floats:
    """a B(x; a, b) / (x^a (1-x)^b), incomplete beta: continued fraction (DLMF 8.17.22), Lentz's method."""
    ratio, inverse = np.ones_like(x), 1 / (1 - (a + b) * x / (a + 1))
    value: Floats = inverse.copy()
    for m in range(1, 1000):
        even = m * (b - m) / ((a + 2 * m - 1) * (a + 2 * m)) * x
        odd = -(a + m) * (a + b + m) / ((a + 2 * m) * (a + 2 * m + 1)) * x
        for term in (even, odd):
            inverse, ratio = 1 / (1 + term * inverse), 1 + term / ratio
            value *= ratio * inverse
        if np.all(np.abs(ratio * inverse - 1) < 1e-14):
            break
    return value


def _clenshaw_curtis(n: int) -> tuple[Floats, Floats]:
    """n + 1 Chebyshev nodes on [-1, 1], ends included, and weights exact for degree n (n even)."""
    nodes, k = chebyshev.chebpts2(n + 1), np.arange(0, n + 1, 2)
    moments = np.zeros(n + 1)
    moments[::2] = 2 / (1 - k**2)
    return nodes, np.linalg.solve(chebyshev.chebvander(nodes, n).T, moments)


_NODES, _FINE = _clenshaw_curtis(16)
_COARSE = np.zeros(17)
_COARSE[::2] = _clenshaw_curtis(8)[1]


def _integrate(log_w: LogWeight, x: Floats, d: int) -> Floats:
    """log h_parallel and log h_orthogonal (2, norms) by adaptive quadrature over latitude."""
    blocks = [_integrate_block(log_w, x[i : i + _BLOCK], d) for i in range(0, x.size, _BLOCK)]
    return np.concatenate(blocks, axis=1) if blocks else np.empty((2, 0))


def _integrate_block(log_w: LogWeight, x: Floats, d: int) -> Floats:
    # panels for where w may be and, in units of 1/sqrt(d), for where sin^d theta = cos^d phi is
    half = np.concatenate([np.linspace(0, math.pi / 2, 17), np.arange(1, 9) / math.sqrt(d)])
    half = np.unique(half[half <= math.pi / 2])
    edges = np.concatenate([-half[:0:-1], half])
    row = np.repeat(np.arange(x.size), edges.size - 1)  # the norm a panel belongs to
    low, high = np.tile(edges[:-1], x.size), np.tile(edges[1:], x.size)
    result = np.full((2, x.size), -np.inf)
    while row.size:
        value, error = _panels(log_w, x[row], low, high, d)
        total = np.logaddexp(result, _log_sums(value, row, x.size))
        middle = (low + high) / 2
        done = np.all(error <= total[:, row] + math.log(_PANEL_ERROR), axis=0)
        done |= (middle <= low) | (middle >= high)
        result = np.logaddexp(result, _log_sums(value[:, done], row[done], x.size))
        row, left = row[~done], np.bincount(row[~done], minlength=x.size)
        if left.max() > _MAX_PANELS:
            raise ValueError(
                f"w is too irregular for |x| = {x[left.argmax()]:g}: {_MAX_PANELS} panels do not reach 1e-6; "
                "w must be smooth but for at most a thousand jumps (is it random?)"
            )
        low, high = (
            np.stack([low, middle], axis=1)[~done].ravel(),
            np.stack([middle, high], axis=1)[~done].ravel(),
        )
        row = np.repeat(row, 2)
    result[0] += math.log(d - 1)
    return result


def _panels(log_w: LogWeight, x: Floats, low: Floats, high: Floats, d: int) -> tuple[Floats, Floats]:
    """Logs of Int w sin^2 phi cos^(d-2) phi and Int w cos^d phi over each panel, and of their errors.

    The error is the difference of two nested rules, both with the ends of the panel as nodes, so that no jump
    of w can hide there. A value far below the largest it could be, max w * max cos^d phi * width, hints at a
    jump not yet resolved: its error is that bound.
    """
    phi = ((low + high) / 2)[:, None] + ((high - low) / 2)[:, None] * _NODES  # (panels, nodes)
    sine, cosine = np.sin(phi), np.cos(phi)
    weight = log_w((x[:, None] * sine).ravel()).reshape(phi.shape)
    density = (d - 2) * np.log(np.maximum(cosine, 1e-300))
    both = weight + density
    scale = both.max(axis=1)
    scale[scale == -np.inf] = 0.0
    height = np.exp(both - scale[:, None])
    value, error = np.empty((2, x.size)), np.empty((2, x.size))  # (parallel and orthogonal, panels)
    with np.errstate(divide="ignore"):
        log_width = np.log((high - low) / 2)
        for i, factor in enumerate((sine**2, cosine**2)):
            f = height * factor
            fine = f @ _FINE
            value[i] = scale + log_width + np.log(fine)
            error[i] = scale + log_width + np.log(np.abs(f @ (_FINE - _COARSE)))
            bound = weight.max(axis=1) + density.max(axis=1) + np.log(2 * factor.max(axis=1)) + log_width
            error[i] = np.where(value[i] < bound + math.log(0.01), np.maximum(error[i], bound), error[i])
    return value, error


def _log_sums(values: Floats, row: NDArray[np.int64], rows: int) -> Floats:
    """log of the sums of exp(values), (2, panels), over the panels of each row: (2, rows)."""
    result = np.empty((2, rows))
    for i, v in enumerate(values):
        largest = np.full(rows, -np.inf)
        np.maximum.at(largest, row, v)
        largest[largest == -np.inf] = 0.0
        with np.errstate(divide="ignore"):
            result[i] = largest + np.log(np.bincount(row, np.exp(v - largest[row]), rows))
    return result


def _interpolate(log_w: LogWeight, x: Floats, d: int, result: Floats) -> None:
    """Fill result (2, norms) for increasing norms > 0: polynomials in log |x|, on halves where they fail."""
    order, z = 12, np.log(x)
    nodes, checks = chebyshev.chebpts2(order + 1), np.array([-0.98, -0.6, -0.2, 0.3, 0.7, 0.99])
    fit = np.linalg.inv(chebyshev.chebvander(nodes, order)).T
    pending = [(0, x.size)]
    while pending:
        many = [(i, j) for i, j in pending if j - i > 2 * nodes.size and z[j - 1] - z[i] > 1e-12]
        few = [np.arange(i, j) for i, j in pending if (i, j) not in many]
        pending = []
        if few:
            rows = np.concatenate(few)
            result[:, rows] = _integrate(log_w, x[rows], d)
        if not many:
            break
        middle = np.array([(z[i] + z[j - 1]) / 2 for i, j in many])
        radius = np.array([(z[j - 1] - z[i]) / 2 for i, j in many])
        sample = middle[:, None] + radius[:, None] * np.append(nodes, checks)
        values = _integrate(log_w, np.exp(sample).ravel(), d).reshape(2, len(many), -1)
        for k, (i, j) in enumerate(many):
            at_nodes, at_checks = values[:, k, : nodes.size], values[:, k, nodes.size :]
            if np.all(values[:, k] == -np.inf):
                result[:, i:j] = -np.inf
                continue
            if np.all(np.isfinite(values[:, k])):
                coefficients = (at_nodes @ fit).T
                if np.abs(chebyshev.chebval(checks, coefficients) - at_checks).max() < _INTERPOLATION_ERROR:
                    result[:, i:j] = chebyshev.chebval((z[i:j] - middle[k]) / radius[k], coefficients)
                    continue
            cut = i + int(np.searchsorted(z[i:j], middle[k], side="right"))
            pending += [(i, cut), (cut, j)]
