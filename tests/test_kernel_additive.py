"""The kernel encode_additive on every usable instruction set against tests/reference.py.

Small integers make float32 arithmetic exact, so that codes must be EQUAL and ties must go to the lowest code.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
import reference
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from aniso import _core

Array = NDArray[Any]
EPSILON = float(np.finfo(np.float32).eps)  # 2^-23
UNTOUCHED = 77  # what outputs hold before a call: a kernel that forgets one leaves it there
SEEDS = st.integers(0, 2**32 - 1)


def integers(rng: np.random.Generator, shape: tuple[int, ...], least: int, most: int) -> Array:
    return rng.integers(least, most + 1, shape).astype(np.float32)


class Sum(NamedTuple):
    """Arguments of encode_additive."""

    points: Array
    penalty: Array
    codewords: Array  # (m, k, d)


def run_additive(
    task: Sum,
    *,
    scaled: bool,
    sweeps: int = 100,
    restarts: int = 0,
    kicks: int = 3,
    seed: int = 0,
    start: Array | None = None,
    threads: int = 1,
    isa: str = "",
) -> Array:
    m, k, d = task.codewords.shape
    flat = task.codewords.reshape(m * k, d).astype(np.float64)
    gram = (flat @ flat.T).astype(np.float32)
    codes = np.full((len(task.points), m), UNTOUCHED, np.uint8) if start is None else start.astype(np.uint8)
    search: dict[str, Any] = {"sweeps": sweeps, "restarts": restarts, "kicks": kicks, "seed": seed}
    how: dict[str, Any] = {"threads": threads, "isa": isa}
    _core.encode_additive(*task, gram, codes, scaled=scaled, warm=start is not None, **search, **how)
    return codes


def exact_sum(rng: np.random.Generator, n: int, m: int, k: int, d: int, *, scaled: bool) -> Sum:
    """Arguments for which every step of encode_additive is exact in float32, and no gain is near 1e-6 of the value.

    Not scaled: |x|^2 is 0, 1, 4 or 16, so that values are multiples of 1/16 below 2^13. Scaled: two values T^2 / B
    that differ do so by at least 1 / (T^2 B) of the larger; T <= m d, B <= m^2 d and m^4 d^3 < 6.7e5 make that 1.5e-6.
    """
    if scaled:
        assert m**4 * d**3 < 6.7e5
        return Sum(integers(rng, (n, d), -1, 1), integers(rng, (n,), 0, 3), integers(rng, (m, k, d), -1, 1))
    points = np.zeros((n, d), np.float32)
    for point in points:
        count = 4 if d >= 4 and rng.random() < 0.5 else 1
        point[rng.choice(d, count, replace=False)] = rng.choice([-2, -1, 1, 2]) * rng.choice([-1, 1], count)
    points[rng.random(n) < 0.1] = 0
    return Sum(points, integers(rng, (n,), 0, 8), integers(rng, (m, k, d), -2, 2))


@given(
    n=st.integers(0, 20),
    m=st.integers(1, 6),
    k=st.sampled_from([16, 32, 48, 240, 256]),
    d=st.integers(1, 8),
    scaled=st.booleans(),
    warm=st.booleans(),
    sweeps=st.integers(0, 6),
    threads=st.integers(1, 4),
    seed=SEEDS,
)
@settings(max_examples=60)
@example(n=140, m=3, k=16, d=7, scaled=False, warm=False, sweeps=5, threads=3, seed=0)
@example(n=140, m=5, k=16, d=8, scaled=True, warm=True, sweeps=5, threads=2, seed=0)
def test_encode_additive_integers(
    isa: str, n: int, m: int, k: int, d: int, scaled: bool, warm: bool, sweeps: int, threads: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    task = exact_sum(rng, n, m, k, d, scaled=scaled)
    start = rng.integers(0, k, (n, m)) if warm else None
    codes = run_additive(task, scaled=scaled, sweeps=sweeps, start=start, threads=threads, isa=isa)
    assert_array_equal(codes, reference.encode_additive(*task, scaled=scaled, sweeps=sweeps, start=start))


def float_sum(rng: np.random.Generator, n: int, m: int, k: int, d: int, penalty: float) -> Sum:
    """Points of norms that vary, some of them 0, and codewords whose sums are about as long as the points."""
    points = (rng.normal(size=(n, d)) * np.exp(0.5 * rng.normal(size=(n, 1)))).astype(np.float32)
    points[: n // 8] = 0
    words = (rng.normal(size=(m, k, d)) / np.sqrt(m)).astype(np.float32)
    return Sum(points, np.full(n, penalty, np.float32), words)


def additive_values(task: Sum, codes: Array, *, scaled: bool) -> Array:
    """The value of every point's codes in float64, (n,)."""
    y = reference.decode_additive(codes, task.codewords)
    rows = zip(y, *(a.astype(np.float64) for a in task[:2]), strict=True)
    return np.array([reference.additive_value(*row, scaled=scaled) for row in rows])


def additive_rounding(task: Sum, *codes: NDArray[np.integer], scaled: bool) -> Array:
    """How far float32 may be off in the values of these codes, (n,): 1e-6 of it, which the search counts as none, and
    10 eps of what is summed, with L the sum of the longest codewords of the codebooks: |y| <= L and |<y, x>| <= L |x|.
    Scaled, the error of |y|^2 counts T^2 / |y|^4 times: much where codewords cancel out and leave a short y.
    """
    x, penalty, words = (a.astype(np.float64) for a in task)
    L, norms = np.linalg.norm(words, axis=2).max(axis=1).sum(), np.linalg.norm(x, axis=1)
    if scaled:
        decoded = [sum(words[j][each[:, j]] for j in range(len(words))) for each in codes]
        shortest = np.min([np.einsum("nd,nd->n", y, y) for y in decoded], axis=0)
        return (1e-6 + 10 * EPSILON * L**2 / np.maximum(shortest, 1e-30)) * norms**2
    return 10 * EPSILON * (L**2 + 2 * (1 + np.abs(penalty)) * L * norms + np.abs(penalty) * L**2)


@given(
    n=st.integers(1, 30),
    m=st.integers(1, 8),
    k=st.sampled_from([16, 32]),
    d=st.integers(2, 30),
    scaled=st.booleans(),
    warm=st.booleans(),
    restarts=st.sampled_from([0, 3]),
    penalty=st.sampled_from([0.0, -0.3, 0.5, 5.0, 100.0]),
    seed=SEEDS,
)
@example(n=24, m=7, k=32, d=2, scaled=True, warm=True, restarts=0, penalty=0.0, seed=7081)  # codewords cancel out
@settings(max_examples=40)
def test_encode_additive_ends_at_a_coordinate_wise_optimum(
    isa: str, n: int, m: int, k: int, d: int, scaled: bool, warm: bool, restarts: int, penalty: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    task = float_sum(rng, n, m, k, d, penalty)
    begin = rng.integers(0, k, (n, m)) if warm else run_additive(task, scaled=scaled, sweeps=0, isa=isa)
    codes = run_additive(task, scaled=scaled, restarts=restarts, start=begin if warm else None, isa=isa)
    assert codes.max(initial=0) < k
    reached = additive_values(task, codes, scaled=scaled)
    tolerance = additive_rounding(task, codes, begin, scaled=scaled)
    assert (reached >= additive_values(task, begin, scaled=scaled) - tolerance).all(), "worse than the start"
    for j in range(m):
        for c in range(k):
            other = codes.copy()
            other[:, j] = c
            tolerance = additive_rounding(task, codes, other, scaled=scaled)
            better = additive_values(task, other, scaled=scaled) > reached + tolerance
            assert not better.any(), f"point {np.flatnonzero(better)[0]}, codebook {j}: codeword {c} is better"


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("warm", [False, True])
def test_encode_additive_restarts_never_hurt(isa: str, scaled: bool, warm: bool) -> None:
    rng = np.random.default_rng(1)
    task = float_sum(rng, 300, 8, 16, 20, 1.0)
    start = rng.integers(0, 16, (300, 8)) if warm else None
    size = (task.points.astype(np.float64) ** 2).sum(axis=1).mean()
    found = [run_additive(task, scaled=scaled, restarts=r, start=start, isa=isa) for r in (0, 1, 4, 16)]
    values = [additive_values(task, codes, scaled=scaled) for codes in found]
    for i, j in itertools.pairwise(range(4)):  # the first restarts of more are those of fewer
        assert (values[j] >= values[i] - additive_rounding(task, found[i], found[j], scaled=scaled)).all()
    assert values[-1].mean() > values[0].mean() + 0.01 * size, "16 restarts must find something"
    nothing = run_additive(task, scaled=scaled, restarts=16, kicks=0, start=start, isa=isa)
    tolerance = additive_rounding(task, nothing, found[0], scaled=scaled)
    assert (additive_values(task, nothing, scaled=scaled) >= values[0] - tolerance).all()


@pytest.mark.parametrize("scaled", [False, True])
def test_encode_additive_warm_start_keeps_or_improves(isa: str, scaled: bool) -> None:
    rng = np.random.default_rng(2)
    task = float_sum(rng, 200, 6, 16, 15, 2.0)
    start = rng.integers(0, 16, (200, 6))
    assert_array_equal(run_additive(task, scaled=scaled, sweeps=0, start=start, isa=isa), start)
    before = additive_values(task, start, scaled=scaled)
    codes = start
    for _ in range(4):
        last, codes = codes, run_additive(task, scaled=scaled, sweeps=1, start=codes, isa=isa)
        now = additive_values(task, codes, scaled=scaled)
        assert (now >= before - additive_rounding(task, last, codes, scaled=scaled)).all()
        before = now
    assert before.mean() > additive_values(task, start, scaled=scaled).mean()
    whole = exact_sum(rng, 100, 5, 16, 8, scaled=scaled)
    codes = run_additive(whole, scaled=scaled, isa=isa)
    assert_array_equal(run_additive(whole, scaled=scaled, start=codes, isa=isa), codes)  # an optimum stays


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("warm", [False, True])
def test_encode_additive_does_not_depend_on_the_batch(isa: str, scaled: bool, warm: bool) -> None:
    """Nor on the threads: the random numbers are those of the point and the seed, whatever stands around it."""
    rng = np.random.default_rng(3)
    n = 200  # four ranges of work
    task = float_sum(rng, n, 5, 16, 9, 1.0)
    start = rng.integers(0, 16, (n, 5)) if warm else None
    how: dict[str, Any] = {"scaled": scaled, "restarts": 5, "seed": 2**64 - 1, "isa": isa}
    codes = run_additive(task, start=start, **how)
    for threads in (2, 3, 100):
        assert_array_equal(run_additive(task, start=start, threads=threads, **how), codes)
    for cuts in ([1, 2, 130], [63, 64, 65], list(range(1, n))):
        for rows in np.split(np.arange(n), cuts):
            part = Sum(task.points[rows], task.penalty[rows], task.codewords)
            assert_array_equal(run_additive(part, start=None if start is None else start[rows], **how), codes[rows])
    order = rng.permutation(n)
    mixed = Sum(task.points[order], task.penalty[order], task.codewords)
    assert_array_equal(run_additive(mixed, start=None if start is None else start[order], **how), codes[order])
    assert (run_additive(task, start=start, **{**how, "seed": 1}) != codes).any(), "the seed must matter"


@pytest.mark.parametrize("scaled", [False, True])
def test_encode_additive_of_one_codebook_is_the_best_codeword(isa: str, scaled: bool) -> None:
    task = exact_sum(np.random.default_rng(4), 100, 1, 48, 8, scaled=scaled)
    codes = run_additive(task, scaled=scaled, restarts=3, isa=isa)
    found = additive_values(task, codes, scaled=scaled)
    every = [additive_values(task, np.full((100, 1), c), scaled=scaled) for c in range(48)]
    assert_array_equal(found, np.max(every, axis=0))


def test_encode_additive_of_codebooks_in_subspaces_is_encode(isa: str) -> None:
    """Codewords that are zero outside of a subspace of their own: product codes are additive codes."""
    rng = np.random.default_rng(5)
    task = exact_sum(rng, 100, 4, 16, 8, scaled=False)
    starts = np.array([0, 2, 5, 6, 8], np.int32)
    books, words = np.zeros((4, 16, 3), np.float32), np.zeros((4, 16, 8), np.float32)
    for j in range(4):
        first, last = starts[j], starts[j + 1]
        books[j, :, : last - first] = words[j, :, first:last] = task.codewords[j, :, first:last]
    expected = np.full((100, 4), UNTOUCHED, np.uint8)
    _core.encode(
        task.points, task.points, task.penalty, books, starts, expected, scaled=False, warm=False, sweeps=9, isa=isa
    )
    codes = run_additive(task._replace(codewords=words), scaled=False, sweeps=9, isa=isa)
    assert_array_equal(codes, expected)


@pytest.mark.parametrize("power", [-48, -40, -20, 15, 20, 40, 48])
@pytest.mark.parametrize("scaled", [False, True])
def test_encode_additive_does_not_depend_on_the_unit_of_length(isa: str, scaled: bool, power: int) -> None:
    """A power of two changes no mantissa: the codes are the same for all lengths that check_vectors lets through."""
    task = float_sum(np.random.default_rng(6), 60, 4, 16, 10, 2.0)
    unit = np.float32(2.0**power)
    other = Sum(task.points * unit, task.penalty, task.codewords * unit)
    expected = run_additive(task, scaled=scaled, isa=isa)
    assert_array_equal(run_additive(other, scaled=scaled, isa=isa), expected)
