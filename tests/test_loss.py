"""The score-aware loss: theorems 3.2 to 3.4, accuracy against independent quadrature, bad input."""

import doctest
import itertools
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from points import unit
from scipy import special

from aniso import loss
from aniso.loss import (
    ETA_PER_DIMENSION_CAP,
    IMPORTANCE_FLOOR,
    Reconstruction,
    ScoreAware,
    Threshold,
    empirical_weights,
    eta_cap,
    eta_threshold,
    h,
    log_h,
    log_h_threshold,
)

Array = NDArray[np.float64]
DIMENSIONS = [2, 3, 10, 100, 768, 4096]
NORMS = [1e-3, 0.5, 1.0, 30.0]
STEP = 0.3


def log_sine_integral(d: int) -> float:
    """log W, of the integral of sin^d from 0 to pi."""
    return float(special.betaln((d + 1) / 2, 0.5))


def reference_log_h(
    log_w: Callable[..., float], norm: float, d: int, breaks: tuple[float, ...] = ()
) -> tuple[float, float]:
    """Theorem 3.2 by quadrature with 20 digits over theta, split at the breaks of w and around the mode."""
    theta = np.linspace(0, np.pi, 401)[1:-1]
    height = np.array([float(log_w(norm * np.cos(t))) for t in theta]) + d * np.log(np.sin(theta))
    mode, peak = float(theta[np.argmax(height)]), mpmath.mpf(height.max())
    kinks = [float(np.arccos(t / norm)) for t in breaks if abs(t) < norm]
    around = [p + sign * 3.0**k / np.sqrt(d) for p in [mode, *kinks] for k in range(-6, 5) for sign in (-1, 1)]
    inside = sorted({p for p in [*around, *kinks, np.pi / 2] if 0 < p < np.pi})

    def integrand(t: mpmath.mpf) -> mpmath.mpc:  # parallel + i orthogonal, scaled to about 1
        c, s = mpmath.cos(t), mpmath.sin(t)
        return mpmath.exp(log_w(norm * c) - peak) * s ** (d - 2) * mpmath.mpc(c**2, s**2)

    with mpmath.workdps(20):
        both = mpmath.quad(integrand, [0, *inside, mpmath.pi], method="gauss-legendre")
        return float(mpmath.log((d - 1) * both.real) + peak), float(mpmath.log(both.imag) + peak)


# name: w in NumPy, its logarithm in mpmath, where it is not smooth
FUNCTIONS: dict[str, tuple[Callable[[Array], Array], Callable[..., float], tuple[float, ...]]] = {
    "smooth": (lambda t: 1 + np.sin(t) ** 2, lambda t: mpmath.log(1 + mpmath.sin(t) ** 2), ()),
    "exponential": (lambda t: np.exp(5 * t), lambda t: 5 * t, ()),
    "polynomial": (
        lambda t: np.maximum(t, 0) ** 3,
        lambda t: 3 * mpmath.log(t) if t > 0 else mpmath.mpf("-inf"),
        (0.0,),
    ),
    "step": (lambda t: t >= STEP, lambda t: mpmath.mpf(0) if t >= STEP else mpmath.mpf("-inf"), (STEP,)),
}


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_log_h_agrees_with_independent_quadrature(name: str, d: int) -> None:
    w, log_w, breaks = FUNCTIONS[name]
    parallel, orthogonal = log_h(w, NORMS, d)
    for i, norm in enumerate(NORMS):
        if name == "step" and norm <= STEP:
            assert parallel[i] == orthogonal[i] == -np.inf
        else:
            expected = reference_log_h(log_w, norm, d, breaks)
            assert (parallel[i], orthogonal[i]) == pytest.approx(expected, rel=0, abs=1e-8)  # promised: 1e-6


def test_log_h_of_log_weights_beyond_the_range_of_a_double() -> None:
    result = log_h(lambda t: 200.0 * t, [30.0], 4096, log=True)
    expected = reference_log_h(lambda t: 200 * t, 30.0, 4096)
    assert expected[0] > 1000  # exp of it is infinite
    assert np.ravel(result) == pytest.approx(expected, rel=0, abs=1e-8)


def test_h_is_exp_of_log_h_and_underflows() -> None:
    parallel, orthogonal = h(lambda t: np.exp(t), [0.5, 2.0], 7)
    assert np.log([parallel, orthogonal]) == pytest.approx(np.array(log_h(np.exp, [0.5, 2.0], 7)))
    assert h(lambda t: t >= 0.9, [1.0], 4096)[1] == 0.0
    assert -4000 < log_h(lambda t: t >= 0.9, [1.0], 4096)[1] < -3000


@settings(max_examples=60, deadline=None)
@given(
    d=st.sampled_from(DIMENSIONS),
    jumps=st.sets(st.integers(-47, 47), min_size=1, max_size=4),
    heights=st.lists(st.sampled_from([0.0, 1e-3, 0.5, 1.0, 100.0]), min_size=5, max_size=5),
    norm=st.floats(0.05, 20.0),
)
def test_log_h_finds_every_jump(d: int, jumps: set[int], heights: list[float], norm: float) -> None:
    scores = np.sort([0.0201 * jump * norm for jump in jumps])
    level = np.array([*heights[: scores.size], 1.0])
    result = np.array(log_h(lambda t: level[np.searchsorted(scores, t, side="right")], [norm], d))[:, 0]
    # The integral over an interval on one side of 0 is a difference of two thresholds.
    edges = np.unique([-norm, *scores, 0.0, norm])
    terms = []
    for low, high in itertools.pairwise(edges):
        weight = level[np.searchsorted(scores, (low + high) / 2)]
        near, far = sorted((abs(float(low)), abs(float(high))))
        a, b = (np.array(log_h_threshold(T, [norm], d))[:, 0] for T in (near, far))
        if weight > 0:
            terms.append(np.log(weight) + a + np.log1p(-np.exp(b - a)))
    assert result == pytest.approx(np.logaddexp.reduce(terms, axis=0), rel=0, abs=1e-8)  # promised: 1e-6


@pytest.mark.parametrize("T", [0.3, 0.665, 0.755, 0.815, 0.9])
def test_log_h_finds_a_jump_whose_mass_the_first_nodes_hardly_see(T: float) -> None:
    # w = I(t >= T) + a constant that makes the part above T 1e-5 of h_orthogonal, and far less at the first nodes
    d, whole = 4096, log_sine_integral(4096)
    above = np.array(log_h_threshold(T, [1.0], d))[:, 0]
    constant = above[1] - whole + np.log(1e5)
    result = log_h(lambda t: np.where(t >= T, np.logaddexp(0.0, constant), constant), [1.0], d, log=True)
    assert np.ravel(result) == pytest.approx(np.logaddexp(constant + whole, above), rel=0, abs=1e-8)


@pytest.mark.parametrize("d", [2, 100, 4096])
@pytest.mark.parametrize("w", [lambda t: np.exp(5 * t), lambda t: t >= STEP, lambda t: np.maximum(t, 0) ** 1.5])
def test_log_h_of_many_norms_agrees_with_one_by_one(w: Callable[[Array], Array], d: int) -> None:
    norms = np.random.default_rng(1).uniform(0.2, 3.0, 5000)
    norms[:3] = 0.0, 1e-9, STEP + 1e-9
    many, few = np.array(log_h(w, norms, d)), np.array(log_h(w, norms[:300], d))
    assert np.array_equal(many[:, :300] == -np.inf, few == -np.inf)
    seen = few > -np.inf
    assert many[:, :300][seen] == pytest.approx(few[seen], rel=0, abs=1e-7)


@pytest.mark.parametrize("d", [2, 3, 20])
@pytest.mark.parametrize("w", [lambda t: t >= 0.4, lambda t: np.exp(2 * t), lambda t: np.maximum(t, 0.0) ** 2])
def test_theorem_3_2_against_monte_carlo(w: Callable[[Array], Array], d: int) -> None:
    rng = np.random.default_rng(d)
    x, r = 1.5 * unit(rng, 1, d)[0], rng.normal(size=d)
    q = unit(rng, 200_000, d)
    samples = w(q @ x) * (q @ r) ** 2
    along = r @ x / np.linalg.norm(x)
    h_parallel, h_orthogonal = h(w, [1.5], d)
    expected = (h_parallel * along**2 + h_orthogonal * (r @ r - along**2)) / (d * np.exp(log_sine_integral(d)))
    error = samples.std() / np.sqrt(samples.size)
    assert samples.mean() == pytest.approx(expected[0], rel=0, abs=4.5 * error)  # 4.5 standard errors
    assert error < 0.02 * expected[0]  # and the check means something


@settings(max_examples=100, deadline=None)
@given(
    d=st.integers(2, 4096),
    steps=st.lists(st.tuples(st.floats(0, 3), st.floats(0, 10)), max_size=4),
    slope=st.floats(0, 5),
    norm=st.floats(0.1, 3.0),
)
def test_theorem_3_3_parallel_error_costs_more(
    d: int, steps: list[tuple[float, float]], slope: float, norm: float
) -> None:
    def w(t: Array) -> Array:  # zero below 0, then non-decreasing
        return np.where(t >= 0, slope * t + sum(height * (t >= at) for at, height in steps), 0.0)

    parallel, orthogonal = log_h(w, [norm], d)
    assert parallel[0] >= orthogonal[0] - 1e-9


@pytest.mark.parametrize("d", DIMENSIONS)
def test_theorem_3_3_equality_for_constant_w_only(d: int) -> None:
    parallel, orthogonal = log_h(lambda t: np.full_like(t, 3.0), NORMS, d)
    assert parallel == pytest.approx(orthogonal, rel=0, abs=1e-12)
    assert orthogonal == pytest.approx(np.log(3) + log_sine_integral(d), rel=0, abs=1e-9)
    parallel, orthogonal = log_h(lambda t: 3.0 + (t > 0.1 / np.sqrt(d)), [1.0], d)
    assert parallel[0] > orthogonal[0] + 1e-3


@pytest.mark.parametrize("norm", [0.3, 0.5, 1.0])
def test_theorem_3_4_limit_and_monotone_in_d(norm: float) -> None:
    ratio = np.array([eta_threshold(0.2, [norm], d)[0] / (d - 1) for d in range(2, 3000, 7)])
    limit = 0.2**2 / (norm**2 - 0.2**2)
    assert np.all(np.diff(ratio) < 0)
    assert np.all(ratio > limit)
    assert ratio[-1] == pytest.approx(limit, rel=0.02)
    far = eta_threshold(0.2, [norm], 100_000)[0] / 99_999
    assert far == pytest.approx(limit, rel=0.001)


@settings(max_examples=60, deadline=None)
@given(d=st.integers(2, 4000), c=st.floats(-0.999, 0.999))
def test_appendix_7_3_recursion_and_ratio_monotone(d: int, c: float) -> None:
    log_i = [log_h_threshold(c, [1.0], p)[1][0] for p in (d, d + 2, d + 4)]
    log_s = 0.5 * np.log1p(-(c**2))
    # (d+2) I_(d+2) = (d+1) I_d - c s^(d+1), divided by I_d
    assert (d + 2) * np.exp(log_i[1] - log_i[0]) == pytest.approx(
        d + 1 - c * np.exp((d + 1) * log_s - log_i[0]), rel=1e-9, abs=1e-9 * d
    )
    assert log_i[0] - log_i[1] >= log_i[1] - log_i[2] - 1e-10


@pytest.mark.parametrize("d", DIMENSIONS)
def test_threshold_agrees_with_high_precision_incomplete_beta(d: int) -> None:
    T = np.array([-0.99, -0.5, -0.1, -1e-3, 0.0, 1e-6, 1e-3, 0.02, 0.1, 0.3, 0.7, 0.95, 0.999])
    with mpmath.workdps(40):
        for t in T:
            c = mpmath.mpf(float(t))
            tail = mpmath.betainc(mpmath.mpf(d + 1) / 2, mpmath.mpf(1) / 2, 0, 1 - c**2) / 2
            orthogonal = tail if t >= 0 else mpmath.beta(mpmath.mpf(d + 1) / 2, mpmath.mpf(1) / 2) - tail
            parallel = orthogonal + c * (1 - c**2) ** (mpmath.mpf(d - 1) / 2)
            expected = float(mpmath.log(parallel)), float(mpmath.log(orthogonal))
            result = log_h_threshold(float(t), [1.0], d)
            assert np.ravel(result) == pytest.approx(expected, rel=1e-12, abs=1e-10)


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("T", [0.2, -0.2])
def test_threshold_of_many_norms_agrees_with_one_by_one(T: float, d: int) -> None:
    norms = np.random.default_rng(2).uniform(0.1, 2.0, 40_000)
    norms[:4] = 0.2, 0.2 + 1e-12, 0.0, 1e6
    many, few = np.array(log_h_threshold(T, norms, d)), np.array(log_h_threshold(T, norms[:400], d))
    seen = few > -np.inf
    assert np.array_equal(many[:, :400] > -np.inf, seen)
    assert many[:, :400][seen] == pytest.approx(few[seen], rel=0, abs=1e-8)
    assert eta_threshold(T, norms, d)[:400] == pytest.approx(eta_threshold(T, norms[:400], d), rel=1e-8)


def test_eta_of_the_paper() -> None:
    assert eta_threshold(0.2, [1.0], 100, limit=True)[0] == pytest.approx(4.125)
    assert np.all(eta_threshold(0.0, np.linspace(0.0, 5.0, 20_000), 100) == 1.0)
    assert np.all(eta_threshold(0.0, [0.0, 0.5, 7.0], 33) == 1.0)
    exact, limit = (eta_threshold(0.05, [1.0, 2.0], 100, limit=flag) for flag in (False, True))
    assert np.all(limit == 1.0)  # the formula gives 0.248 and 0.062
    assert np.all(exact > 1.0)


def test_eta_cap_for_a_threshold_at_or_above_the_norm() -> None:
    d, norms = 50, np.array([0.1, 1.0, np.nextafter(1.0, 2), 1.0001, 0.0])
    assert eta_cap(d) == ETA_PER_DIMENSION_CAP * 49
    for limit in (False, True):
        eta = eta_threshold(1.0, norms, d, limit=limit)
        assert np.all(eta[:4] == eta_cap(d))
        assert eta[4] == 1.0
        rising = eta_threshold(1.0, np.linspace(2.0, 0.5, 4000), d, limit=limit)
        assert np.all(np.diff(rising) >= 0)
        assert rising[-1] == eta_cap(d)
    assert eta_threshold(0.99503, [1.0], d, limit=True)[0] < eta_cap(d)
    assert eta_threshold(0.99504, [1.0], d, limit=True)[0] == eta_cap(d)


def test_negative_threshold_is_the_integral() -> None:
    norms = np.array([0.1, 0.3, 0.31, 1.0, 20.0])
    eta = eta_threshold(-0.3, norms, 10)
    assert np.all(eta[:2] == 1.0)  # every score counts
    assert np.all((eta[2:] > 0.64) & (eta[2:] < 1.0))
    assert np.all(eta_threshold(-0.3, norms, 10, limit=True) == 1.0)
    assert log_h_threshold(-0.3, norms, 10)[0][2:] == pytest.approx(
        log_h(lambda t: t >= -0.3, norms, 10)[0][2:], rel=0, abs=1e-8
    )


def test_weights_of_the_three_losses() -> None:
    norms = np.array([0.5, 1.0, 0.8, 0.1, 0.0])
    plain = Reconstruction().weights(norms, 100)
    assert np.all(plain.eta == 1)
    assert np.all(plain.importance == 1)
    exact, general = Threshold(0.2).weights(norms, 100), ScoreAware(lambda t: t >= 0.2).weights(norms, 100)
    assert exact.eta == pytest.approx(eta_threshold(0.2, norms, 100))
    assert general.eta == pytest.approx(exact.eta, rel=1e-8)
    assert general.importance == pytest.approx(exact.importance, rel=1e-8)
    assert np.array_equal(exact.eta[3:], [eta_cap(100), 1.0])
    assert np.array_equal(exact.importance[[1, 3, 4]], [1.0, IMPORTANCE_FLOOR, IMPORTANCE_FLOOR])
    orthogonal = log_h_threshold(0.2, norms, 100)[1]
    assert exact.importance[2] == pytest.approx(np.exp(orthogonal[2] - orthogonal[1]))
    limit = Threshold(0.2, limit=True).weights(norms, 100)
    assert limit.eta[1] == pytest.approx(4.125)
    assert np.array_equal(limit.importance, exact.importance)
    logs = ScoreAware(lambda t: np.where(t >= 0.2, 5.0, -np.inf), log=True).weights(norms, 100)
    assert logs.eta == pytest.approx(exact.eta, rel=1e-8)
    for result in (Threshold(0.2).weights([], 8), ScoreAware(np.exp).weights([], 8)):
        assert result.eta.shape == result.importance.shape == (0,)


def test_weights_that_leave_no_score() -> None:
    result = Threshold(1.0).weights([1.0, 0.5, 0.0], 10)
    assert np.array_equal(result.eta, [eta_cap(10), eta_cap(10), 1.0])
    assert np.array_equal(result.importance, [1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match=r"w is zero for every score up to the largest norm, 1;.*threshold"):
        ScoreAware(lambda t: t >= 2.0).weights([1.0, 0.5], 10)


def test_one_dimension_has_no_orthogonal_error() -> None:
    for score_aware in (Threshold(0.2), Threshold(0.2, limit=True), ScoreAware(lambda t: t >= 0.2)):
        result = score_aware.weights([0.1, 0.5, 1.0], 1)
        assert np.array_equal(result.eta, [1.0, 1.0, 1.0])
        assert np.array_equal(result.importance, [IMPORTANCE_FLOOR, 1.0, 1.0])
    line = ScoreAware(np.exp).weights([0.0, 1.0], 1)
    assert line.importance == pytest.approx([1 / np.cosh(1.0), 1.0])


def test_zero_vector_always_has_score_zero() -> None:
    assert np.ravel(log_h(lambda t: np.full_like(t, 2.0), [0.0], 9)) == pytest.approx(np.log(2) + log_sine_integral(9))
    assert np.ravel(log_h_threshold(0.0, [0.0], 9)) == pytest.approx(log_sine_integral(9))
    assert np.all(np.ravel(log_h_threshold(1e-9, [0.0], 9)) == -np.inf)


@pytest.mark.parametrize(
    ("norms", "message"),
    [
        ([1.0, np.nan], "norm of row 1 is nan"),
        ([1.0, 2.0, np.inf], "norm of row 2 is inf"),
        ([-1.0], "norm of row 0 is -1.0"),
        ([[1.0]], r"shape \(1, 1\)"),
        (1.0, r"shape \(\)"),
    ],
)
def test_bad_norms(norms: object, message: str) -> None:
    for score_aware in (Reconstruction(), Threshold(0.2), ScoreAware(np.exp)):
        with pytest.raises(ValueError, match=message):
            score_aware.weights(norms, 4)  # type: ignore[arg-type]
    for limit in (False, True):
        with pytest.raises(ValueError, match=message):
            eta_threshold(0.2, norms, 4, limit=limit)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="norms have type"):
        log_h(np.exp, ["1"], 4)


@pytest.mark.parametrize("T", [np.nan, np.inf, -np.inf])
def test_bad_threshold(T: float) -> None:
    with pytest.raises(ValueError, match=f"T is {T}"):
        Threshold(T)
    for limit in (False, True):
        with pytest.raises(ValueError, match=f"T is {T}"):
            eta_threshold(T, [1.0], 4, limit=limit)
    with pytest.raises(TypeError, match=r"T is '0\.2'"):
        Threshold("0.2")  # type: ignore[arg-type]


@pytest.mark.parametrize("d", [1, 0, -3])
def test_too_few_dimensions(d: int) -> None:
    calls: list[Callable[[], object]] = [
        lambda: log_h(np.exp, [1.0], d),
        lambda: log_h_threshold(0.2, [1.0], d),
        lambda: eta_threshold(0.2, [1.0], d),
        lambda: eta_threshold(0.2, [1.0], d, limit=True),
        lambda: eta_cap(d),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"d is {d}"):
            call()
    if d < 1:
        with pytest.raises(ValueError, match=f"d is {d}"):
            ScoreAware(np.exp).weights([1.0], d)
    with pytest.raises(TypeError, match="d must be a whole number"):
        log_h(np.exp, [1.0], 2.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("w", "error", "message"),
    [
        (lambda t: t, ValueError, r"w\(-.*\) is -.*not negative"),
        (lambda t: np.where(t > 0.5, np.nan, 1.0), ValueError, "is nan"),
        (lambda t: np.where(t > 0.5, np.inf, 1.0), ValueError, "is inf.*scale w"),
        (lambda t: 1.0, ValueError, r"w gave shape \(\)"),
        (lambda t: t[:3] ** 2, ValueError, r"w gave shape \(3,\)"),
        (0.2, TypeError, "w is a float"),
    ],
)
def test_bad_w(w: Callable[[Array], Array], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        log_h(w, [1.0], 8)
    with pytest.raises(error, match=message):
        empirical_weights(w, np.eye(8), np.concatenate([np.eye(8), -np.eye(8)]))


def test_w_too_irregular_is_an_error() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"too irregular for \|x\| = 1"):
        log_h(lambda t: rng.random(t.size), [1.0], 8)
    with pytest.raises(ValueError, match="logarithm below"):
        log_h(lambda t: np.full_like(t, np.nan), [1.0], 8, log=True)


def test_examples() -> None:
    result = doctest.testmod(loss)
    assert result.attempted >= 10
    assert result.failed == 0
