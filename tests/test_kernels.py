"""Every kernel of aniso._core on every usable instruction set against tests/reference.py.

Small integers make float32 arithmetic exact, so that results must be EQUAL and ties must go to the lowest code.
"""

from typing import Any, NamedTuple

import numpy as np
import pytest
import reference
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from aniso import _core

Array = NDArray[Any]
EPSILON = float(np.finfo(np.float32).eps)  # 2^-23
UNTOUCHED = 77  # what outputs hold before a call: a kernel that forgets one leaves it there

# Around the lanes of 4, 8 and 16, the tile of 6 rows and the group of 48.
ROWS = st.one_of(st.integers(0, 70), st.sampled_from([3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 47, 48, 49, 53, 54, 55]))
CODEWORDS = st.one_of(st.integers(1, 40), st.sampled_from([7, 8, 9, 15, 16, 17, 31, 32, 33, 255, 256]))
SEEDS = st.integers(0, 2**32 - 1)
THREADS = st.integers(1, 4)


@st.composite
def subspaces(draw: st.DrawFn, most: int = 40) -> Array:
    """Where subspaces start: any widths, those of 1 to 4 (which have code of their own) more often."""
    widths = draw(st.lists(st.one_of(st.integers(1, 5), st.integers(1, 13)), min_size=1, max_size=12))
    while sum(widths) > most:
        widths.pop()
    return np.cumsum([0, *widths]).astype(np.int32)


def integers(rng: np.random.Generator, shape: tuple[int, ...], least: int, most: int) -> Array:
    return rng.integers(least, most + 1, shape).astype(np.float32)


def codebooks(words: Array, starts: Array) -> Array:
    """Codewords (m, k, any width) as the kernels want them: as wide as the widest subspace, zeros past each width."""
    widths = np.diff(starts)
    words = words[:, :, : widths.max()].copy()
    words[np.broadcast_to(np.arange(words.shape[2]) >= widths[:, None, None], words.shape)] = 0
    return np.ascontiguousarray(words)


def run_assign(
    points: Array, codewords: Array, squared_norms: Array, linear: Array, quadratic: Array, **how: Any
) -> tuple[Array, Array]:
    codes, costs = np.full(len(points), UNTOUCHED, np.int32), np.full(len(points), UNTOUCHED, np.float32)
    _core.assign(points, codewords, squared_norms, linear, quadratic, codes, costs, **how)
    return codes, costs


@given(n=ROWS, d=st.integers(1, 40), k=CODEWORDS, threads=THREADS, seed=SEEDS, plain=st.booleans())
@example(n=1025, d=3, k=17, threads=2, seed=0, plain=False)
@example(n=2049, d=40, k=5, threads=3, seed=1, plain=True)
def test_assign_integers(isa: str, n: int, d: int, k: int, threads: int, seed: int, plain: bool) -> None:
    rng = np.random.default_rng(seed)
    # |g| <= 160, so that |cost| <= 160 (4 + 3 * 160) + 160 < 2^24: exact, and full of ties.
    points, codewords = integers(rng, (n, d), -2, 2), integers(rng, (k, d), -2, 2)
    squared_norms = (codewords**2).sum(axis=1)
    linear = np.full(n, -2, np.float32) if plain else integers(rng, (n,), -4, 4)
    quadratic = np.zeros(n, np.float32) if plain else integers(rng, (n,), -1, 3)
    given_ = points, codewords, squared_norms, linear, quadratic
    codes, costs = run_assign(*given_, threads=threads, isa=isa)
    expected_codes, expected_costs = reference.assign(*given_)
    assert_array_equal(codes, expected_codes)
    assert_array_equal(costs, expected_costs)


@given(n=ROWS, d=st.integers(1, 40), k=CODEWORDS, threads=THREADS, seed=SEEDS)
def test_assign_floats(isa: str, n: int, d: int, k: int, threads: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points, codewords = rng.normal(size=(n, d)).astype(np.float32), rng.normal(size=(k, d)).astype(np.float32)
    squared_norms = np.einsum("kd,kd->k", codewords, codewords)
    eta = rng.uniform(0.7, 50, n)
    linear = (-2 * eta).astype(np.float32)
    quadratic = ((eta - 1) / np.maximum((points**2).sum(axis=1), 1e-3)).astype(np.float32)
    codes, costs = run_assign(points, codewords, squared_norms, linear, quadratic, threads=threads, isa=isa)
    # g is a float32 sum of d products: off by at most d eps sum|x c| =: off, and d cost / d g = linear + 2 quadratic g.
    g = points.astype(np.float64) @ codewords.T.astype(np.float64)
    off = (d + 4) * EPSILON * (np.abs(points).astype(np.float64) @ np.abs(codewords.T).astype(np.float64))
    slope = np.abs(linear)[:, None] + 2 * np.abs(quadratic)[:, None] * (np.abs(g) + off)
    tolerance = off * slope + 8 * EPSILON * (squared_norms + np.abs(g) * slope)
    cost = squared_norms + g * (linear[:, None] + quadratic[:, None].astype(np.float64) * g)
    rows = np.arange(n)
    assert ((codes >= 0) & (codes < k)).all()
    assert (np.abs(costs - cost[rows, codes]) <= tolerance[rows, codes]).all()
    assert (cost[rows, codes] - tolerance[rows, codes] <= (cost + tolerance).min(axis=1)).all()


@pytest.mark.parametrize("k", [1, 2, 7, 8, 9, 16, 33, 255, 256])
def test_assign_equal_codewords_give_the_first(isa: str, k: int) -> None:
    points = np.arange(-14, 14, dtype=np.float32).reshape(14, 2)
    codes, _ = run_assign(
        points,
        np.ones((k, 2), np.float32),
        np.full(k, 2, np.float32),
        np.full(14, -2, np.float32),
        np.zeros(14, np.float32),
        isa=isa,
    )
    assert_array_equal(codes, 0)


def test_assign_never_gives_a_padded_codeword(isa: str) -> None:
    # All true costs are large; a padded codeword of cost 0 would win. With costs of +inf the first codeword does.
    points, words = np.full((9, 1), -1, np.float32), np.full((3, 1), 2, np.float32)
    for norm in (1e30, np.inf):
        norms, linear, quadratic = np.full(3, norm, np.float32), np.full(9, -2, np.float32), np.zeros(9, np.float32)
        codes, costs = run_assign(points, words, norms, linear, quadratic, isa=isa)
        assert_array_equal(codes, 0)
        assert (costs >= 1e30).all()


def run_gram(codewords: Array, *, more: int = 0, **how: Any) -> Array:
    """The inner products of codewords, in as many columns as the kernels want, and `more` times 32."""
    out = np.full((len(codewords), (len(codewords) + 31) // 32 * 32 + 32 * more), UNTOUCHED, np.float32)
    _core.gram(codewords, out, **how)
    return out


@given(k=st.integers(0, 70), d=st.integers(1, 70), more=st.integers(0, 2), threads=THREADS, seed=SEEDS)
def test_gram(isa: str, k: int, d: int, more: int, threads: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = integers(rng, (k, d), -9, 9)
    out = run_gram(whole, more=more, threads=threads, isa=isa)
    assert_array_equal(out, reference.gram(whole, out.shape[1]))
    words = rng.normal(size=(k, d)).astype(np.float32)
    out = run_gram(words, more=more, threads=threads, isa=isa)
    # A float32 sum of d products is off by at most d eps times the sum of their sizes.
    sizes = reference.gram(np.abs(words), out.shape[1])
    assert (np.abs(out - reference.gram(words, out.shape[1])) <= d * EPSILON * sizes).all()
    assert_array_equal(out[:, :k], out[:, :k].T)


class Task(NamedTuple):
    """Arguments of encode."""

    residuals: Array
    points: Array
    penalty: Array
    codewords: Array
    starts: Array


def run_encode(
    task: Task, *, scaled: bool, sweeps: int, start: Array | None = None, threads: int = 1, isa: str = ""
) -> Array:
    n, m = len(task.residuals), len(task.codewords)
    codes = np.full((n, m), UNTOUCHED, np.uint8) if start is None else start.astype(np.uint8)
    _core.encode(*task, codes, scaled=scaled, warm=start is not None, sweeps=sweeps, threads=threads, isa=isa)
    return codes


def exact_task(rng: np.random.Generator, n: int, starts: Array, k: int, *, scaled: bool) -> Task:
    """Arguments for which every step of encode is exact in float32.

    |point| is 1 or 2, so that its direction is exact: one coordinate +-1, or (not where scaled) four of +-1. Then, for
    d <= 40, sums are multiples of 1/4 below 2^12, and where scaled N <= 172 and D <= 172, so that N^2 D < 2^24.
    """
    d, m = int(starts[-1]), len(starts) - 1
    points = np.zeros((n, d), np.float32)
    for point in points:
        count = 4 if not scaled and d >= 4 and rng.random() < 0.5 else 1
        point[rng.choice(d, count, replace=False)] = rng.choice([-1, 1], count)
    points[rng.random(n) < 0.1] = 0  # no direction
    words = codebooks(integers(rng, (m, k, d), -2, 2), starts)
    words[0, :, 0] = rng.choice([-2, -1, 1, 2], k)  # no decoded point is 0; test_encode_scaled_from_zero is for that
    residuals = integers(rng, (n, d), -2, 2)
    if scaled:  # both are small enough together
        return Task(residuals, points, integers(rng, (n,), 0, 3), words, starts)
    return Task(residuals, points, integers(rng, (n,), 0, 8), words, starts)


@given(
    n=st.integers(0, 70),
    starts=subspaces(),
    k=CODEWORDS,
    scaled=st.booleans(),
    warm=st.booleans(),
    sweeps=st.integers(0, 6),
    threads=THREADS,
    seed=SEEDS,
)
@settings(max_examples=60)
@example(n=1030, starts=np.array([0, 2, 3, 6], np.int32), k=4, scaled=False, warm=False, sweeps=3, threads=2, seed=0)
@example(n=1030, starts=np.array([0, 4, 9], np.int32), k=4, scaled=True, warm=True, sweeps=3, threads=3, seed=0)
@example(n=17, starts=np.arange(41, dtype=np.int32), k=16, scaled=False, warm=False, sweeps=6, threads=1, seed=0)
@example(n=17, starts=np.array([0, 40], np.int32), k=256, scaled=True, warm=False, sweeps=6, threads=1, seed=0)
def test_encode_integers(
    isa: str, n: int, starts: Array, k: int, scaled: bool, warm: bool, sweeps: int, threads: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    task = exact_task(rng, n, starts, k, scaled=scaled)
    start = rng.integers(0, k, (n, len(starts) - 1)) if warm else None
    codes = run_encode(task, scaled=scaled, sweeps=sweeps, start=start, threads=threads, isa=isa)
    assert_array_equal(codes, reference.encode(*task, scaled=scaled, sweeps=sweeps, start=start))


def float_task(rng: np.random.Generator, n: int, starts: Array, k: int, penalty: float) -> Task:
    d, m = int(starts[-1]), len(starts) - 1
    points = rng.normal(size=(n, d)).astype(np.float32)
    residuals = (points + rng.normal(size=(n, d)) * rng.choice([0, 0.5])).astype(np.float32)
    points[: n // 8] = 0
    residuals[n // 16 : n // 8] = 0
    words = codebooks(rng.normal(size=(m, k, d)).astype(np.float32), starts)
    return Task(residuals, points, np.full(n, penalty, np.float32), words, starts)


def objectives(task: Task, codes: Array, *, scaled: bool) -> Array:
    """The objective of every point's codes in float64, (n,)."""
    y = reference.decode(codes, task.codewords, task.starts)
    rows = zip(y, *(a.astype(np.float64) for a in task[:3]), strict=True)
    return np.array([reference.objective(*row, scaled=scaled) for row in rows])


def rounding(task: Task, *, scaled: bool) -> Array:
    """How far float32 may be off in the objective of each point, (n,): the sizes of what is summed, times 10 eps.

    The sums N, X = <y, u> and |y|^2 have at most d terms and are carried from change to change; the penalty multiplies
    the square of X, so that its error counts as penalty * X * (size of X). In 300 random tasks of
    this kind the largest seen was 1.6 eps.
    """
    widths = np.diff(task.starts)
    largest = np.concatenate(
        [np.repeat(np.abs(w).max(initial=0), s) for w, s in zip(task.codewords, widths, strict=True)]
    )
    off = []
    for r, x, penalty in zip(*(a.astype(np.float64) for a in task[:3]), strict=True):
        norm = np.linalg.norm(x)
        u = np.abs(x) / norm if norm > 0 else x
        v = np.abs(r) + penalty * abs(r @ x) / max(norm, 1e-30) * u
        N, D = largest @ v, largest @ largest + penalty * (largest @ u) ** 2
        off.append(r @ r + penalty * (r @ x / max(norm, 1e-30)) ** 2 if scaled else 2 * N + D)
    return 10 * EPSILON * np.array(off)


@given(
    n=st.integers(1, 40),
    starts=subspaces(),
    k=st.integers(1, 20),
    scaled=st.booleans(),
    warm=st.booleans(),
    penalty=st.sampled_from([0.0, -0.3, 0.5, 5.0, 300.0]),
    seed=SEEDS,
)
@settings(max_examples=60)
def test_encode_ends_at_a_coordinate_wise_optimum(
    isa: str, n: int, starts: Array, k: int, scaled: bool, warm: bool, penalty: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    task, m = float_task(rng, n, starts, k, penalty), len(starts) - 1
    begin = rng.integers(0, k, (n, m)) if warm else run_encode(task, scaled=scaled, sweeps=0, isa=isa)
    codes = run_encode(task, scaled=scaled, sweeps=100, start=begin if warm else None, isa=isa)
    assert codes.max(initial=0) < k
    tolerance = rounding(task, scaled=scaled)
    reached = objectives(task, codes, scaled=scaled)
    assert (reached <= objectives(task, begin, scaled=scaled) + tolerance).all(), "worse than the start"
    for j in range(m):
        for c in range(k):
            other = codes.copy()
            other[:, j] = c
            better = objectives(task, other, scaled=scaled) < reached - tolerance
            assert not better.any(), f"point {np.flatnonzero(better)[0]}, subspace {j}: codeword {c} is better"


@pytest.mark.parametrize("scaled", [False, True])
def test_encode_never_rises_sweep_by_sweep(isa: str, scaled: bool) -> None:
    task = float_task(np.random.default_rng(3), 200, np.arange(0, 31, 3, dtype=np.int32), 16, 7.0)
    tolerance = rounding(task, scaled=scaled)
    codes = run_encode(task, scaled=scaled, sweeps=0, isa=isa)
    means = []
    for _ in range(6):
        before, codes = codes, run_encode(task, scaled=scaled, sweeps=1, start=codes, isa=isa)
        was, now = objectives(task, before, scaled=scaled), objectives(task, codes, scaled=scaled)
        assert (now <= was + tolerance).all()
        means.append(was.mean() - now.mean())
    assert means[0] > 1e-3 * abs(was.mean()), "the first sweep must find something to improve"
    assert_array_equal(run_encode(task, scaled=scaled, sweeps=6, isa=isa), codes)  # and six sweeps are six sweeps


@pytest.mark.parametrize("scaled", [False, True])
def test_encode_warm_start_at_an_optimum_stays(isa: str, scaled: bool) -> None:
    task = exact_task(np.random.default_rng(4), 100, np.array([0, 1, 3, 6, 10, 15], np.int32), 16, scaled=scaled)
    codes = run_encode(task, scaled=scaled, sweeps=100, isa=isa)
    assert_array_equal(run_encode(task, scaled=scaled, sweeps=100, start=codes, isa=isa), codes)


@pytest.mark.parametrize("sweeps", [0, 1, 10])
def test_encode_without_penalty_is_the_nearest_codeword(isa: str, sweeps: int) -> None:
    rng = np.random.default_rng(5)
    starts = np.array([0, 1, 3, 6, 10, 16], np.int32)
    task = exact_task(rng, 150, starts, 32, scaled=False)._replace(penalty=np.zeros(150, np.float32))
    codes = run_encode(task, scaled=False, sweeps=sweeps, isa=isa)
    for j in range(5):
        part, words = task.residuals[:, starts[j] : starts[j + 1]], task.codewords[j, :, : starts[j + 1] - starts[j]]
        assert_array_equal(codes[:, j], ((part[:, None] - words) ** 2).sum(axis=2).argmin(axis=1))


def test_encode_with_a_huge_penalty_removes_the_parallel_error(isa: str) -> None:
    task = float_task(np.random.default_rng(6), 64, np.arange(13, dtype=np.int32), 16, 1e6)
    units = task.points[8:] / np.linalg.norm(task.points[8:], axis=1, keepdims=True)  # the first 8 points are 0

    def parallel(codes: Array) -> Array:
        y = reference.decode(codes, task.codewords, task.starts)
        return np.abs(np.einsum("nd,nd->n", task.residuals[8:] - y[8:], units))

    start = run_encode(task, scaled=False, sweeps=0, isa=isa)
    codes = run_encode(task, scaled=False, sweeps=50, isa=isa)
    # With 12 subspaces of 16 codewords some change of one code nearly cancels any parallel error.
    assert np.median(parallel(codes)) < 0.02
    assert np.median(parallel(codes)) < 0.2 * np.median(parallel(start))
    assert np.isfinite(objectives(task, codes, scaled=False)).all()


@pytest.mark.parametrize("scaled", [False, True])
def test_encode_zero_points_use_the_plain_loss(isa: str, scaled: bool) -> None:
    task = exact_task(np.random.default_rng(7), 20, np.array([0, 2, 5], np.int32), 8, scaled=scaled)
    zero = task._replace(points=np.zeros_like(task.points))
    plain = task._replace(penalty=np.zeros_like(task.penalty))
    assert_array_equal(
        run_encode(zero, scaled=scaled, sweeps=9, isa=isa), run_encode(plain, scaled=scaled, sweeps=9, isa=isa)
    )


def test_encode_scaled_from_zero(isa: str) -> None:
    """A start that decodes to 0 has the least value of N^2 / D there is: every codeword along the point is better."""
    starts = np.array([0, 1, 2], np.int32)
    words = np.array([[[0], [4], [-4]], [[0], [4], [-4]]], np.float32)
    points = np.array([[1, 1], [1, -1], [-1, 0], [0, 0]], np.float32)
    task = Task(points, points, np.zeros(4, np.float32), words, starts)
    assert_array_equal(run_encode(task, scaled=False, sweeps=9, isa=isa), 0)  # the nearest codewords are those at 0
    codes = run_encode(task, scaled=True, sweeps=9, isa=isa)
    assert_array_equal(codes, [[1, 1], [1, 2], [2, 0], [0, 0]])


@pytest.mark.parametrize("power", [-60, -40, -30, -20, 0, 15, 20, 30, 40, 55])
@pytest.mark.parametrize("scaled", [False, True])
def test_encode_does_not_depend_on_the_unit_of_length(isa: str, scaled: bool, power: int) -> None:
    """A power of two changes no mantissa: the codes are the same wherever |x|^2 is in the range of float32."""
    task = float_task(np.random.default_rng(8), 60, np.arange(0, 13, 2, dtype=np.int32), 16, 2.0)
    unit = np.float32(2.0**power)
    other = task._replace(residuals=task.residuals * unit, points=task.points * unit, codewords=task.codewords * unit)
    expected = run_encode(task, scaled=scaled, sweeps=10, isa=isa)
    assert_array_equal(run_encode(other, scaled=scaled, sweeps=10, isa=isa), expected)


@given(n=ROWS, starts=subspaces(), k=CODEWORDS, threads=THREADS, seed=SEEDS, whole=st.booleans())
@example(n=1030, starts=np.array([0, 2, 3, 6], np.int32), k=16, threads=2, seed=0, whole=True)
def test_dot_decoded(isa: str, n: int, starts: Array, k: int, threads: int, seed: int, whole: bool) -> None:
    rng = np.random.default_rng(seed)
    d, m = int(starts[-1]), len(starts) - 1
    values, words = rng.normal(size=(n, d)).astype(np.float32), rng.normal(size=(m, k, d)).astype(np.float32)
    if whole:
        values, words = np.rint(4 * values), np.rint(4 * words)
    words, codes = codebooks(words, starts), rng.integers(0, k, (n, m)).astype(np.uint8)
    out = np.full(n, UNTOUCHED, np.float32)
    _core.dot_decoded(values, codes, words, starts, out, threads=threads, isa=isa)
    expected = reference.dot_decoded(values, codes, words, starts)
    sizes = reference.dot_decoded(np.abs(values), codes, np.abs(words), starts)
    # A float32 sum of d products is off by at most d eps times the sum of their sizes; whole numbers are exact.
    assert (np.abs(out - expected) <= (0 if whole else d * EPSILON * sizes)).all()


@given(n=ROWS, starts=subspaces(), k=CODEWORDS, threads=THREADS, seed=SEEDS, whole=st.booleans())
@example(n=1030, starts=np.array([0, 2, 3, 6], np.int32), k=16, threads=2, seed=0, whole=True)
def test_sum_by_code(isa: str, n: int, starts: Array, k: int, threads: int, seed: int, whole: bool) -> None:
    rng = np.random.default_rng(seed)
    d, m = int(starts[-1]), len(starts) - 1
    values, weights = rng.normal(size=(n, d)).astype(np.float32), rng.normal(size=n).astype(np.float32)
    if whole:
        values, weights = np.rint(9 * values), np.rint(9 * weights)
    codes = rng.integers(0, k, (n, m)).astype(np.uint8)
    words = np.full((m, k, int(np.diff(starts).max())), np.nan, np.float32)  # only their shape counts
    out = np.full(words.shape, UNTOUCHED, np.float64)
    _core.sum_by_code(values, weights, codes, words, starts, out, threads=threads, isa=isa)
    expected = reference.sum_by_code(values, weights, codes, words, starts)
    # float64 sums of n products in another order; whole numbers are exact.
    assert_allclose(out, expected, rtol=0, atol=0 if whole else 1e-14 * max(n, 1) * 20)


@given(n=ROWS, d=st.integers(1, 40), k=CODEWORDS, threads=THREADS, seed=SEEDS, whole=st.booleans())
@example(n=1030, d=5, k=7, threads=2, seed=0, whole=True)
@example(n=50, d=5, k=3000, threads=4, seed=0, whole=True)
def test_sum_by_group(isa: str, n: int, d: int, k: int, threads: int, seed: int, whole: bool) -> None:
    rng = np.random.default_rng(seed)
    values, weights = rng.normal(size=(n, d)).astype(np.float32), rng.normal(size=n).astype(np.float32)
    if whole:
        values, weights = np.rint(9 * values), np.rint(9 * weights)
    groups = rng.integers(0, k, n).astype(np.int32)
    sums, totals = np.full((k, d), UNTOUCHED, np.float64), np.full(k, UNTOUCHED, np.float64)
    _core.sum_by_group(values, weights, groups, sums, totals, threads=threads, isa=isa)
    expected_sums, expected_totals = reference.sum_by_group(values, weights, groups, k)
    # float64 sums of n products in another order; whole numbers are exact.
    tolerance = 0 if whole else 1e-14 * max(n, 1) * 20
    assert_allclose(sums, expected_sums, rtol=0, atol=tolerance)
    assert_allclose(totals, expected_totals, rtol=0, atol=tolerance)
    _core.sum_by_group(values, weights, groups, sums, totals, add=True, threads=threads, isa=isa)
    assert_allclose(sums, 2 * expected_sums, rtol=0, atol=2 * tolerance)
    assert_allclose(totals, 2 * expected_totals, rtol=0, atol=2 * tolerance)


def call_all(isa: str, threads: int) -> list[Array]:
    """The outputs of every kernel on 5,000 points, which are five ranges of work."""
    rng = np.random.default_rng(9)
    n, k, starts = 5000, 16, np.array([0, 1, 3, 6, 10, 15], np.int32)
    task = float_task(rng, n, starts, k, 4.0)
    words = rng.normal(size=(37, 15)).astype(np.float32)
    linear, quadratic = rng.normal(size=n).astype(np.float32), rng.normal(size=n).astype(np.float32)
    how: dict[str, Any] = {"threads": threads, "isa": isa}
    outputs = [*run_assign(task.points, words, (words**2).sum(axis=1), linear, quadratic, **how)]
    for scaled in (False, True):
        outputs.append(run_encode(task, scaled=scaled, sweeps=5, **how))
    out, sums = np.empty(n, np.float32), np.empty((5, k, 5))
    _core.dot_decoded(task.points, outputs[-1], task.codewords, starts, out, **how)
    _core.sum_by_code(task.points, linear, outputs[-1], task.codewords, starts, sums, **how)
    group_sums, totals = np.empty((37, 15)), np.empty(37)
    _core.sum_by_group(task.points, linear, outputs[0], group_sums, totals, **how)
    return [*outputs, out, sums, group_sums, totals, run_gram(words, **how)]


@pytest.mark.parametrize("threads", [2, 3, 4, 7, 1000])
def test_threads_do_not_change_a_bit(isa: str, threads: int) -> None:
    for one, many in zip(call_all(isa, 1), call_all(isa, threads), strict=True):
        assert one.tobytes() == many.tobytes()
