"""The score-aware loss: what an error along a point, and one across it, costs (paper, section 3).

    x, x~        a point and its quantization;   r = x - x~ its residual, r_parallel the part of r along x
    q            a query, uniform on the unit sphere of R^d, or elliptical (QueryTransform)
    w(t)         the weight of an error made at score t = <q, x>;   T the threshold of w(t) = I(t >= T)
    h_parallel   = (d-1) Int_0^pi w(|x| cos theta) (sin^(d-2) theta - sin^d theta) dtheta         Theorem 3.2
    h_orthogonal =       Int_0^pi w(|x| cos theta) sin^d theta dtheta                             Theorem 3.2
    eta          = h_parallel / h_orthogonal
    c, s         cos alpha = T / |x| and sin alpha
    J(c)         = Int_0^alpha sin^d theta dtheta, I_d in appendix 7.3;   W = J(-1), the integral from 0 to pi

    E_q[w(<q,x>) <q,r>^2] = (h_parallel |r_parallel|^2 + h_orthogonal |r_orthogonal|^2) / (d W)
                          ~ importance * (|r|^2 + (eta - 1) <r, x/|x|>^2)

The h are the paper's integrals, with no other factor, as natural logarithms: sin^d underflows for large d.
A point whose reachable scores [-|x|, |x|] all have weight 0 (T >= |x|) gets the largest eta, `eta_cap(d)`,
for the paper's limit, where only parallel error counts. The zero vector has no direction: its eta is 1.
"""

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aniso.errors import check_count, check_vectors
from aniso.exact import multiply
from aniso.quadrature import Floats, LogWeight, log_integrals, log_sine_integral, tail

__all__ = [
    "Loss",
    "QueryTransform",
    "Reconstruction",
    "ScoreAware",
    "Threshold",
    "Weights",
    "check_loss",
    "empirical_weights",
    "eta_cap",
    "eta_threshold",
    "h",
    "log_h",
    "log_h_threshold",
]

WeightFunction = Callable[[Floats], ArrayLike]

ETA_PER_DIMENSION_CAP = 100.0  # eta <= 100 (d-1), which the limit (Theorem 3.4) reaches at T = 0.995 |x|
IMPORTANCE_FLOOR = 1e-6  # no point has less, so that codebook training never sees an all-zero matrix
LEAST_SHRINKAGE = 1e-3  # of a second moment chosen automatically: it bounds the condition number by 1000 d


class Weights(NamedTuple):
    """The loss of a point is importance * (|r|^2 + (eta - 1) <r, x/|x|>^2)."""

    eta: Floats  # (points,) h_parallel / h_orthogonal, in [0, eta_cap(d)]
    importance: Floats  # (points,) h_orthogonal relative to its largest value here, in [IMPORTANCE_FLOOR, 1]


class Loss(Protocol):
    """What a quantizer asks of a loss."""

    def weights(self, norms: ArrayLike, d: int) -> Weights:
        """The weights of points with these norms in d dimensions."""


@dataclass(frozen=True)
class Reconstruction:
    """The plain loss |r|^2: every eta and importance is 1.

    >>> Reconstruction().weights([1.0, 2.0], 8).eta
    array([1., 1.])
    """

    def weights(self, norms: ArrayLike, d: int) -> Weights:
        """Ones, whatever the norms."""
        x, _ = _check_norms(norms), check_count(d, "d")
        return Weights(np.ones_like(x), np.ones_like(x))


@dataclass(frozen=True)
class Threshold:
    """The loss of w(t) = I(t >= T); limit=True takes eta from Theorem 3.4 (see eta_threshold).

    With T >= |x| for every point, all get the largest eta and, having nothing to rank them by, importance 1.

    >>> Threshold(0.2).weights([0.5, 1.0], 100).eta.round(3)
    array([21.139,  5.953])
    """

    T: float
    limit: bool = False

    def __post_init__(self) -> None:
        _check_threshold(self.T)

    def weights(self, norms: ArrayLike, d: int) -> Weights:
        """The weights of points with these norms in d dimensions."""
        x, d, T = _check_norms(norms), check_count(d, "d"), float(self.T)
        if d == 1:
            return _weights_on_a_line(_log_weight(lambda t: t >= T, log=False), x)
        weights = _weights(*log_h_threshold(T, x, d), x, d)
        return weights._replace(eta=eta_threshold(T, x, d, limit=True)) if self.limit else weights


@dataclass(frozen=True)
class ScoreAware:
    """The loss of any weight function w, see log_h; with log=True w returns the logarithm of the weight.

    >>> ScoreAware(np.exp).weights([0.0, 1.0, 20.0], 10).eta.round(3)
    array([ 1.   ,  1.083, 16.141])
    """

    w: WeightFunction
    log: bool = False

    def weights(self, norms: ArrayLike, d: int) -> Weights:
        """The weights of points with these norms in d dimensions."""
        x, d = _check_norms(norms), check_count(d, "d")
        if d == 1:
            return _weights_on_a_line(_log_weight(self.w, self.log), x)
        log_parallel, log_orthogonal = log_h(self.w, x, d, log=self.log)
        if x.size and np.all(log_orthogonal == -np.inf):
            raise ValueError(
                f"w is zero for every score up to the largest norm, {x.max():g}; it must be positive for "
                "a score that some point can reach (is its threshold above every norm?)"
            )
        return _weights(log_parallel, log_orthogonal, x, d)


def check_loss(loss: object) -> Loss:
    """The loss given to a quantizer, Reconstruction() for None."""
    if loss is None:
        return Reconstruction()
    if isinstance(loss, type) or not callable(getattr(loss, "weights", None)):
        raise TypeError(f"loss is {loss!r}; needed: a loss such as aniso.loss.Threshold(0.2), or None")
    return loss  # type: ignore[return-value]


def eta_cap(d: int) -> float:
    """The largest eta in d dimensions, 100 (d - 1); the paper's value for T >= |x| is infinity.

    >>> eta_cap(101)
    10000.0
    """
    return ETA_PER_DIMENSION_CAP * (check_count(d, "d", least=2) - 1)


def eta_threshold(T: float, norms: ArrayLike, d: int, *, limit: bool = False) -> Floats:
    """eta of w(t) = I(t >= T) for every norm: at most eta_cap(d), which T >= |x| > 0 gets, and 1 for |x| = 0.

    T = 0 gives exactly 1. For T < 0 the integrals still hold; what they leave out are errors along x, so that
    eta is below 1 (above 0.64). limit=True takes (d-1) (T/|x|)^2 / (1 - (T/|x|)^2) of Theorem 3.4 instead: at
    least 1, which the formula is not for a small T, and 1 for T <= 0, where eta/(d-1) tends to 0.

    >>> eta_threshold(0.2, [1.0], 100, limit=True).round(3), eta_threshold(0.2, [1.0], 100).round(3)
    (array([4.125]), array([5.953]))
    """
    if not limit:
        x = _check_norms(norms)
        return _eta(*log_h_threshold(T, x, d), x, d)
    T, x, cap = _check_threshold(T), _check_norms(norms), eta_cap(d)
    if T <= 0:
        return np.ones_like(x)
    eta = np.where(x > 0, cap, 1.0)
    inside = x > T
    c = T / x[inside]
    eta[inside] = np.clip((d - 1) * c**2 / _sine_squared(T, x[inside]), 1.0, cap)
    return eta


def log_h_threshold(T: float, norms: ArrayLike, d: int) -> tuple[Floats, Floats]:
    """(log h_parallel, log h_orthogonal) of w(t) = I(t >= T) for every norm; -inf where T >= |x|.

    h_orthogonal = J(c) is an incomplete beta function, and the recursion of appendix 7.3,
    d I_d = (d-1) I_(d-2) - c s^(d-1), makes h_parallel = J(c) + c s^(d-1). A point of norm 0 has score 0.

    >>> np.exp(log_h_threshold(0.0, [1.0], 2)).ravel().round(4)  # pi / 4
    array([0.7854, 0.7854])
    """
    T, x, d = _check_threshold(T), _check_norms(norms), check_count(d, "d", least=2)
    log_whole = log_sine_integral(d)
    log_parallel = np.where((x <= T) & (T > 0), -np.inf, log_whole)  # w is 0, or 1, on all of [-|x|, |x|]
    log_orthogonal = log_parallel.copy()
    inside = abs(T) < x
    c, log_s = abs(T) / x[inside], 0.5 * np.log(_sine_squared(abs(T), x[inside]))
    F = tail(c, d)
    log_tail = np.log(F) + (d + 1) * log_s  # log J(|c|)
    if T >= 0:
        log_orthogonal[inside] = log_tail
        log_parallel[inside] = log_tail + np.log1p(c / F * np.exp(-2 * log_s))
    else:  # J(c) = W - J(|c|)
        log_rest = log_whole + np.log1p(-np.exp(log_tail - log_whole))
        log_orthogonal[inside] = log_rest
        log_parallel[inside] = log_rest + np.log1p(-c * np.exp((d - 1) * log_s - log_rest))
    return log_parallel, log_orthogonal


def log_h(w: WeightFunction, norms: ArrayLike, d: int, *, log: bool = False) -> tuple[Floats, Floats]:
    """(log h_parallel, log h_orthogonal) of Theorem 3.2 for any w and every norm, each h to 1e-6 relative.

    w takes a 1-D float64 array of scores and returns as many weights, finite and >= 0. It may jump anywhere,
    but a feature narrower than |x|/100 may be missed. With log=True it returns their logarithms (-inf for
    zero), for weights that leave the range of a double. Where w is zero on [-|x|, |x|] both results are -inf.

    Panels of latitude phi = pi/2 - theta are bisected until each one's error is 1e-10 of the whole. More than
    1,024 different norms are interpolated by Chebyshev polynomials in log |x|, on intervals halved until they
    agree with checks to 2e-8; the norms left near a kink of h are integrated one by one.

    >>> np.exp(log_h(lambda t: t**2, [1.0], 3)).ravel().round(4)  # 4/5 and 4/15
    array([0.8   , 0.2667])
    """
    log_w, x, d = _log_weight(w, log), _check_norms(norms), check_count(d, "d", least=2)
    return log_integrals(log_w, x, d)


def h(w: WeightFunction, norms: ArrayLike, d: int) -> tuple[Floats, Floats]:
    """(h_parallel, h_orthogonal) of Theorem 3.2: exp of log_h, which underflows to 0 where log_h does not.

    >>> np.allclose(h(np.ones_like, [1.0], 2), np.pi / 2)
    True
    """
    log_parallel, log_orthogonal = log_h(w, norms, d)
    return np.exp(log_parallel), np.exp(log_orthogonal)


@dataclass(frozen=True, eq=False)
class QueryTransform:
    """Where elliptical queries are spherical: x -> S^(1/2) x, q -> S^(-1/2) q, with S ~ E[q q^T].

    If q = S^(1/2) z and z is spherical, <q, x> = <z, S^(1/2) x>: the loss of S^(1/2) x under z is that of x.

    >>> rng = np.random.default_rng(0)
    >>> q, x = rng.normal(size=(50, 4)) * [1, 2, 3, 4], rng.normal(size=(6, 4))
    >>> space = QueryTransform.fit(q)
    >>> np.allclose(space.queries(q) @ space.points(x).T, q @ x.T)
    True
    """

    forward_points: Floats  # (d, d) S^(1/2), symmetric
    forward_queries: Floats  # (d, d) S^(-1/2), symmetric

    @classmethod
    def fit(cls, queries: ArrayLike, *, shrinkage: float | None = None) -> "QueryTransform":
        """From a sample of queries, S = d ((1 - shrinkage) M + shrinkage I/d), whose trace is d.

        M is the mean of q q^T, not centred, over the n queries that are not zero, scaled to norm 1.
        shrinkage=None takes the closed form of Ledoit and Wolf, which for unit vectors is
        (1 - |M|^2) / ((n-1) (|M|^2 - 1/d)), but at least LEAST_SHRINKAGE and 1/(n+1), as if I/d were one more
        query: any sample with a query that is not zero works. A shrinkage of 0 needs a sample of full rank.
        """
        q = _check_double(queries, "queries", rows=1)
        lengths = np.linalg.norm(q, axis=1)
        q = q[lengths > 0] / lengths[lengths > 0, None]
        n, d = q.shape
        if n == 0:
            raise ValueError(f"all of the {lengths.size} queries are zero; a fit needs one that is not")
        M = q.T @ q / n
        if shrinkage is None:
            size = float(np.sum(M**2))  # |M|^2, in [1/d, 1]
            variance, spread = (1 - size) / max(n - 1, 1), size - 1 / d
            estimate = variance / spread if spread > variance else 1.0
            shrinkage = max(estimate, 1 / (n + 1), LEAST_SHRINKAGE)
        elif not 0 <= shrinkage <= 1:
            raise ValueError(f"shrinkage is {shrinkage}; it must lie in [0, 1] (None chooses it)")
        values, vectors = np.linalg.eigh(d * ((1 - shrinkage) * M + shrinkage / d * np.eye(d)))
        if values[0] <= 1e-10 * values[-1]:
            raise ValueError(
                f"the second moment of {n} queries in {d} dimensions is singular with shrinkage {shrinkage}; "
                "give more queries or a larger shrinkage (None chooses it)"
            )
        root = np.sqrt(values)
        return cls((vectors * root) @ vectors.T, (vectors / root) @ vectors.T)

    def points(self, x: ArrayLike) -> NDArray[np.floating]:
        """Points (n, d) in the new space, float32 if x is float32."""
        return self._apply(self.forward_points, "points", x)

    def queries(self, q: ArrayLike) -> NDArray[np.floating]:
        """Queries (n, d) in the new space: <queries(q), points(x)> = <q, x>."""
        return self._apply(self.forward_queries, "queries", q)

    def points_back(self, x: ArrayLike) -> NDArray[np.floating]:
        """The inverse of points."""
        return self._apply(self.forward_queries, "points", x)

    def _apply(self, matrix: Floats, name: str, vectors: ArrayLike) -> NDArray[np.floating]:
        checked = check_vectors(vectors, name, d=len(matrix))
        if np.asarray(vectors).dtype == np.float32:
            return multiply(checked, matrix)
        return np.asarray(np.asarray(vectors) @ matrix)


def empirical_weights(w: WeightFunction, points: ArrayLike, queries: ArrayLike) -> tuple[Floats, Floats]:
    """(h_parallel, h_orthogonal) of each point as means over the queries as given, no distribution assumed.

    With M = mean_q w(<q,x>) q q^T, u = x/|x|: h_parallel = u^T M u, h_orthogonal = (tr M - u^T M u) / (d-1);
    both are tr M / d for x = 0. If q is uniform on the sphere they estimate those of h divided by d W.

    >>> empirical_weights(np.ones_like, [[0.0, 3.0]], [[1.0, 0.0], [0.0, 2.0]])
    (array([2.]), array([0.5]))
    """
    x = _check_double(points, "points")
    n, d = x.shape
    q, log_w = _check_double(queries, "queries", d=d, rows=1), _log_weight(w, log=False)
    check_count(d, "the number of dimensions", least=2)
    squares, norms = np.sum(q**2, axis=1), np.linalg.norm(x, axis=1)
    h_parallel, trace = np.empty(n), np.empty(n)
    step = max(1, 2**20 // len(q))
    for start in range(0, n, step):
        rows = slice(start, start + step)
        scores = x[rows] @ q.T
        weight = np.exp(log_w(scores.ravel())).reshape(scores.shape)
        trace[rows] = weight @ squares / len(q)
        lengths = np.where(norms[rows] > 0, norms[rows], 1.0)
        h_parallel[rows] = np.mean(weight * (scores / lengths[:, None]) ** 2, axis=1)
    h_parallel = np.where(norms > 0, h_parallel, trace / d)
    return h_parallel, (trace - h_parallel) / (d - 1)


def _eta(log_parallel: Floats, log_orthogonal: Floats, x: Floats, d: int) -> Floats:
    with np.errstate(invalid="ignore", over="ignore"):
        eta = np.exp(log_parallel - log_orthogonal)  # nan where both are -inf
    cap = eta_cap(d)
    return np.where(x == 0, 1.0, np.where(log_orthogonal == -np.inf, cap, np.minimum(eta, cap)))


def _importance(log_orthogonal: Floats) -> Floats:
    largest = log_orthogonal.max(initial=-np.inf)
    if largest == -np.inf:
        return np.ones_like(log_orthogonal)
    importance: Floats = np.exp(log_orthogonal - largest)
    return np.maximum(importance, IMPORTANCE_FLOOR)


def _weights(log_parallel: Floats, log_orthogonal: Floats, x: Floats, d: int) -> Weights:
    return Weights(_eta(log_parallel, log_orthogonal, x, d), _importance(log_orthogonal))


def _weights_on_a_line(log_w: LogWeight, x: Floats) -> Weights:
    """d = 1: q = +1 or -1 and nothing is orthogonal to x, so eta is 1 and w only ranks the points."""
    return Weights(np.ones_like(x), _importance(np.logaddexp(log_w(x), log_w(-x))))


def _sine_squared(T: float, x: Floats) -> Floats:
    return (x - T) / x * (1 + T / x)  # 1 - (T/|x|)^2 for 0 <= T < |x|, without cancellation


def _log_weight(w: WeightFunction, log: bool) -> LogWeight:
    """w as a checked function from scores to log weights."""
    if not callable(w):
        raise TypeError(f"w is a {type(w).__name__}; it must be a function from scores to their weights")

    def log_w(t: Floats) -> Floats:
        values = np.asarray(w(t))
        if values.shape != t.shape:
            raise ValueError(f"w gave shape {values.shape} for scores of shape {t.shape}; they must be the same")
        values = values.astype(np.float64, copy=False)
        good = values < np.inf if log else (values >= 0) & (values < np.inf)  # false for nan
        if not good.all():
            i = int(np.argmin(good))
            needed = "a logarithm below +inf" if log else "finite and not negative (scale w, or give log w)"
            raise ValueError(f"w({t[i]}) is {values[i]}; a weight must be {needed}")
        with np.errstate(divide="ignore"):
            return values if log else np.log(values, out=np.empty(t.shape))

    return log_w


def _check_norms(norms: ArrayLike) -> Floats:
    x = np.asarray(norms)
    if x.dtype.kind not in "fiu":
        raise TypeError(f"norms have type {x.dtype}; they must be real numbers")
    x = x.astype(np.float64, copy=False)
    if x.ndim != 1:
        raise ValueError(f"norms have shape {x.shape}; one norm per point is needed, shape (points,)")
    good = (x >= 0) & (x < np.inf)
    if not good.all():
        i = int(np.argmin(good))
        raise ValueError(f"the norm of row {i} is {x[i]}; a norm must be finite and not negative")
    return x


def _check_threshold(T: float) -> float:
    if isinstance(T, bool) or not isinstance(T, numbers.Real):
        raise TypeError(f"T is {T!r}; the threshold must be a real number")
    if not math.isfinite(T):
        raise ValueError(f"T is {T}; the threshold must be finite (0 gives the plain loss)")
    return float(T)


def _check_double(vectors: ArrayLike, name: str, *, d: int | None = None, rows: int = 0) -> Floats:
    check_vectors(vectors, name, d=d, rows=rows)
    return np.asarray(vectors, dtype=np.float64)
