"""How points find their partitions: assign_partitions against NumPy, groups of partitions, and their training."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import reference
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from aniso import _core
from aniso.kmeans import directions
from aniso.partition import Assigned, Partitions, Routes, _in_groups, _score_aware, train

Array = NDArray[Any]
EPSILON = float(np.finfo(np.float32).eps)
SEEDS = st.integers(0, 2**32 - 1)
UNTOUCHED = -77  # what outputs hold before a call


def clusters(rng: np.random.Generator, n: int, d: int, centers: int) -> Array:
    """Points around some centers; the last few are duplicates of the first."""
    middle = 3 * rng.normal(size=(centers, d))
    points = (middle[rng.integers(0, centers, n)] + rng.normal(size=(n, d))).astype(np.float32)
    points[n - n // 10 :] = points[: n // 10]
    return points


def run(
    points: Array, assigners: Array, strength: float | None, *, l2: bool = True, looked: int = 10**6, **how: Any
) -> Assigned:
    routes = Routes.to(assigners, l2)
    firsts = np.full(len(points), UNTOUCHED, np.int32)
    seconds = None if strength is None else firsts.copy()
    ratios = None if strength is None else np.full(len(points), np.nan, np.float32)
    groups = routes.groups or (None, None, None)
    _core.assign_partitions(
        points, assigners, *routes.partitions, *groups, looked, strength or 0.0, firsts, seconds, ratios, **how
    )
    return Assigned(firsts, seconds, ratios)


def tolerance(points: Array, assigners: Array, strength: float) -> float:
    """Float32 sums of d products, each at most the product of the largest norms, in up to 1 + strength terms."""
    largest = max(float(np.abs(points).max(initial=0.0)), float(np.abs(assigners).max()))
    d = points.shape[1]
    return 16 * (d + 4) * EPSILON * (1 + strength) * d * largest**2


@given(
    n=st.integers(0, 40),
    d=st.integers(1, 30),
    p=st.one_of(st.integers(2, 40), st.sampled_from([2, 7, 8, 9, 16, 63, 64, 65])),
    strength=st.sampled_from([0.0, 0.5, 1.5, 100.0]),
    l2=st.booleans(),
    threads=st.integers(1, 3),
    seed=SEEDS,
)
@example(n=1030, d=3, p=17, strength=1.0, l2=True, threads=2, seed=0)
def test_looking_at_all_gives_the_exact_choice(
    isa: str, n: int, d: int, p: int, strength: float, l2: bool, threads: int, seed: int
) -> None:
    """The costs of what is chosen are the least there are; which of two near-equal ones it is, is left to rounding."""
    rng = np.random.default_rng(seed)
    points, assigners = clusters(rng, n, d, 5), clusters(rng, p, d, 5)
    firsts, seconds, ratios = run(points, assigners, strength, l2=l2, looked=p, threads=threads, isa=isa)
    assert seconds is not None
    assert ratios is not None
    assert np.all(ratios >= 0)
    off, rows = tolerance(points, assigners, strength), np.arange(n)
    plain = reference.partition_costs(points, assigners, firsts, 0.0)
    assert np.all(plain[rows, firsts] <= plain.min(axis=1) + off)
    # The direction of a residual is as uncertain as its length is short: far from zero it does not matter.
    spilled = reference.partition_costs(points, assigners, firsts, strength)
    spilled[rows, firsts] = np.inf
    short = np.sqrt(plain[rows, firsts]) < 1e-2
    assert np.all(spilled[rows, seconds] <= spilled.min(axis=1) + np.where(short, np.inf, 10 * off))
    assert np.all(firsts != seconds)
    alone, *none = run(points, assigners, None, l2=l2, looked=p, threads=threads, isa=isa)
    assert none == [None, None]
    assert_array_equal(alone, firsts)


@given(n=st.integers(1, 60), d=st.integers(1, 12), p=st.integers(2, 40), seed=SEEDS)
def test_whole_numbers_give_the_reference(isa: str, n: int, d: int, p: int, seed: int) -> None:
    """Small whole numbers are exact and full of ties, which go to the lowest number."""
    rng = np.random.default_rng(seed)
    points, assigners = (rng.integers(-2, 3, (count, d)).astype(np.float32) for count in (n, p))
    firsts, seconds, _ = run(points, assigners, 0.0, looked=p, isa=isa)
    expected = reference.assign_partitions(points, assigners, 0.0)
    assert_array_equal(firsts, expected[0])
    assert_array_equal(seconds, expected[1])


def test_the_second_choice_is_the_loss_of_soar(isa: str) -> None:
    rng = np.random.default_rng(0)
    points, assigners = (rng.normal(size=(count, 12)).astype(np.float32) for count in (300, 50))
    for strength in (0.0, 1.5):
        firsts, seconds, ratios = run(points, assigners, strength, looked=50, isa=isa)
        expected = reference.assign_partitions(points, assigners, strength)
        assert_array_equal(firsts, expected[0])
        assert_array_equal(seconds, expected[1])
        cost, rows = reference.partition_costs(points, assigners, expected[0], strength), np.arange(300)
        plain = reference.partition_costs(points, assigners, expected[0], 0.0)
        # Differences of float32 sums around |x|^2 = 12, over |r|^2 of at least 1.
        assert_allclose(ratios, cost[rows, expected[1]] / plain[rows, expected[0]], rtol=1e-4)


def test_a_point_at_its_assigner_has_the_largest_ratio(isa: str) -> None:
    assigners = np.eye(3, dtype=np.float32)
    ratios = run(assigners.copy(), assigners, 1.0, looked=3, isa=isa).ratios
    assert_array_equal(ratios, np.full(3, np.finfo(np.float32).max))


def grouped(seed: int, p: int, d: int = 16) -> tuple[Array, Array]:
    """Points of p clusters, and their centers in groups of 8."""
    rng = np.random.default_rng(seed)
    coarse = 4 * rng.normal(size=(40, d))
    centers = (coarse[rng.integers(0, 40, p)] + rng.normal(size=(p, d))).astype(np.float32)
    points = centers[rng.integers(0, p, 3000)] + 0.4 * rng.normal(size=(3000, d)).astype(np.float32)
    return points.astype(np.float32), centers[_in_groups(centers, rng)]


@pytest.mark.parametrize("l2", [True, False])
@pytest.mark.parametrize("p", [1024, 1100, 1537])
def test_groups_seldom_miss_the_nearest(isa: str, p: int, l2: bool) -> None:
    points, assigners = grouped(p, p)
    if not l2:
        points, assigners = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (points, assigners))
    assert Routes.to(assigners, l2).groups is not None
    firsts, seconds, _ = run(points, assigners, 1.0, l2=l2, looked=24, isa=isa)
    assert seconds is not None
    rows = np.arange(len(points))
    distances = np.concatenate(
        [reference.partition_costs(part, assigners, np.zeros(len(part), np.int64), 0.0) for part in np.split(points, 6)]
    )
    off = tolerance(points, assigners, 0.0)
    assert np.all(distances[rows, firsts] >= distances.min(axis=1) - off)
    assert np.mean(distances[rows, firsts] <= distances.min(axis=1) + off) >= 0.97
    assert np.all(firsts != seconds)
    assert seconds.min() >= 0
    assert seconds.max() < p


@pytest.mark.parametrize("p", [37, 1100])
def test_threads_do_not_change_an_assignment(isa: str, p: int) -> None:
    """A thread starts each range of points afresh: what it learnt from others would show here."""
    points, assigners = grouped(1, p)
    one = run(points, assigners, 1.0, looked=24, threads=1, isa=isa)
    for threads in (2, 3, 7, 1000):
        many = run(points, assigners, 1.0, looked=24, threads=threads, isa=isa)
        assert_array_equal(one[0], many[0])
        assert_array_equal(one[1], many[1])


@pytest.mark.parametrize("p", [37, 1100])
def test_what_came_before_does_not_change_an_assignment(isa: str, p: int) -> None:
    points, assigners = grouped(2, p)
    points = points[:1000]
    odd = points.copy()
    odd[0::4] *= np.float32(1e12)
    odd[1::4] = 0
    odd[2::4] *= np.float32(1e-12)
    mixed = run(odd, assigners, 1.0, looked=24, isa=isa)
    for i in range(0, 1000, 37):
        alone = run(odd[i : i + 1], assigners, 1.0, looked=24, isa=isa)
        assert (alone[0], alone[1]) == (mixed[0][i], mixed[1][i] if mixed[1] is not None else None)


@given(p=st.integers(1, 600), d=st.integers(1, 5), equal=st.booleans(), seed=SEEDS)
@example(p=1100, d=3, equal=False, seed=0)
@example(p=1025, d=3, equal=True, seed=0)
def test_groups_are_an_order_of_the_partitions(p: int, d: int, equal: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    assigners = np.ones((p, d), np.float32) if equal else clusters(rng, p, d, 4)
    assert_array_equal(np.sort(_in_groups(assigners, rng)), np.arange(p))


def test_groups_hold_neighbours() -> None:
    """Groups are worth having: the squared distance within them is a small part of that between any two."""
    _, assigners = grouped(3, 1100)
    groups = assigners[:1096].reshape(-1, 8, assigners.shape[1])
    within = np.square(groups - groups.mean(axis=1, keepdims=True)).sum(axis=2).mean()
    assert within < 0.2 * np.square(assigners - assigners.mean(axis=0)).sum(axis=1).mean()


def trained(points: Array, p: int, **how: Any) -> Partitions:
    how = {"l2": True, "unit": False, "iterations": 10} | how
    return train(lambda rows: points[rows], np.arange(len(points)), p, rng=np.random.default_rng(0), **how)


@pytest.mark.parametrize("l2", [True, False])
@pytest.mark.parametrize("kind", ["clustered", "skewed", "many duplicates"])
def test_no_partition_is_much_too_large(kind: str, l2: bool) -> None:
    """8 times the mean; points that are all equal share a partition, so there are fewer of each than that."""
    rng = np.random.default_rng(0)
    points = clusters(rng, 8000, 12, 30)
    if kind == "skewed":  # half of all points in one cluster, a tenth as wide
        points[::2] = points[0] + 0.1 * rng.normal(size=(4000, 12)).astype(np.float32)
    if kind == "many duplicates":  # 200 points, 40 times each
        points = points[rng.integers(0, 200, 8000)]
    p = 100
    firsts = trained(points, p, l2=l2).assign(points).firsts
    assert np.bincount(firsts, minlength=p).max() <= 8 * len(points) / p


@pytest.mark.parametrize("p", [1024, 1100])
def test_training_of_grouped_partitions(p: int) -> None:
    """Every partition exists, is used by someone, and the assignment is almost always the exact one."""
    rng = np.random.default_rng(0)
    points = clusters(rng, 12_000, 8, 60)
    partitions = trained(points, p, iterations=5)
    assert partitions.assigners.shape == (p, 8)
    assert partitions.packed_groups() is not None
    firsts, seconds, _ = partitions.assign(points, 1.0)
    assert seconds is not None
    sizes = np.bincount(firsts, minlength=p)
    assert sizes.max() <= 8 * len(points) / p
    assert np.mean(sizes == 0) < 0.1
    part = points[:1500]
    exact, _ = reference.assign_partitions(part, partitions.assigners, 0.0)
    assert np.mean(firsts[:1500] == exact) >= 0.97


def test_training_does_not_depend_on_threads() -> None:
    points = clusters(np.random.default_rng(0), 9000, 8, 60)
    one, two = (trained(points, 1030, iterations=4, threads=threads) for threads in (1, 2))
    assert_array_equal(one.assigners, two.assigners)
    assert_array_equal(one.bytes, two.bytes)
    assert_array_equal(one.norms, two.norms)


@pytest.mark.parametrize("eta", [1.5, 6.0, 50.0])
def test_score_aware_centroids_solve_their_equations(eta: float) -> None:
    """Conjugate gradients against a dense solution, partition by partition; one of them is empty."""
    rng = np.random.default_rng(3)
    p, points = 6, clusters(rng, 400, 12, 5)
    codes = rng.integers(0, p - 1, len(points)).astype(np.int32)
    totals = np.bincount(codes, minlength=p).astype(np.float64)
    sums = np.stack([points[codes == j].sum(axis=0, dtype=np.float64) for j in range(p)])
    means = sums / np.maximum(totals, 1)[:, None]
    parts = np.array_split(np.arange(len(points)), 3)
    rounds = (directions(points[part]) for part in itertools.cycle(parts))
    found = _score_aware(means, rounds, [codes[part] for part in parts], sums, totals, eta, 2)

    def loss(c: Array, x: Array) -> float:
        residuals = x - c
        along = np.einsum("nd,nd->n", residuals, directions(x))
        return float((residuals**2).sum() + (eta - 1) * (along**2).sum())

    for j in range(p - 1):
        x = points[codes == j].astype(np.float64)
        units = directions(points[codes == j]).astype(np.float64)
        best = np.linalg.solve(len(x) * np.eye(12) + (eta - 1) * units.T @ units, eta * x.sum(axis=0))
        least, start = loss(best, x), loss(means[j], x)
        assert least < start
        assert loss(found[j], x) - least < 0.01 * (start - least)
    assert_array_equal(found[p - 1], means[p - 1])
