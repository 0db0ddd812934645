"""Anisotropic vector quantization: Theorem 4.2 and the iteration of section 4 as properties, and odd data."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from aniso.errors import NotFittedError
from aniso.kmeans import kmeans, nearest, spread_sample
from aniso.loss import Reconstruction, ScoreAware, Threshold, Weights
from aniso.quantizers import VectorQuantizer
from aniso.quantizers.vector import update_codewords

Array = NDArray[Any]
LOSSES = [Reconstruction(), Threshold(1.0), Threshold(1.0, limit=True), Threshold(-1.0), ScoreAware(np.exp)]


def normal_points(n: int, d: int, seed: int = 0, *, spread: float = 0.5) -> Array:
    """Points whose norms vary: normal, times a log-normal factor."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, d)) * np.exp(spread * rng.normal(size=(n, 1)))).astype(np.float32)


def loss_of(points: Array, decoded: Array, weights: Weights) -> Array:
    """importance * (eta |r_parallel|^2 + |r_orthogonal|^2) of r = x - x~, for each point in float64, from its parts."""
    x, r = points.astype(np.float64), points.astype(np.float64) - decoded
    norms = np.linalg.norm(x, axis=1)
    u = np.divide(x, norms[:, None], out=np.zeros_like(x), where=norms[:, None] > 0)
    parallel = np.einsum("nd,nd->n", r, u)[:, None] * u
    sizes = [np.einsum("nd,nd->n", part, part) for part in (parallel, r - parallel)]
    return weights.importance * (weights.eta * sizes[0] + sizes[1])


def weights_of(loss: Any, points: Array) -> Weights:
    return loss.weights(np.linalg.norm(points.astype(np.float64), axis=1), points.shape[1])


@st.composite
def partitions(draw: st.DrawFn) -> tuple[Array, Weights]:
    """Points of one codeword, with weights of any kind: eta from 0.5 to 100, importance over four orders."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, d = draw(st.integers(1, 30)), draw(st.integers(1, 8))
    points = normal_points(n, d, int(rng.integers(2**31)))
    points[rng.random(n) < 0.1] = 0
    return points, Weights(rng.uniform(0.5, 100, n) if draw(st.booleans()) else np.ones(n), 10 ** rng.uniform(-4, 0, n))


def update_one(points: Array, weights: Weights) -> Array:
    codes = np.zeros(len(points), np.int32)
    return update_codewords(points, codes, weights, np.full((1, points.shape[1]), 9, np.float32))[0]


@given(partitions(), st.integers(0, 2**32 - 1))
def test_theorem_4_2_no_perturbation_is_better(partition: tuple[Array, Weights], seed: int) -> None:
    points, weights = partition
    best = update_one(points, weights).astype(np.float64)
    least = loss_of(points, best, weights).sum()
    rng = np.random.default_rng(seed)
    for size in (1e-3, 0.1, 1, 10):
        for step in size * rng.normal(size=(10, points.shape[1])):
            # The codeword is rounded to float32, and the loss is flat there: its rounding costs eps^2 of |c|^2 weights.
            rounding = 1e-12 * (weights.importance * weights.eta).sum() * max(1.0, best @ best)
            assert loss_of(points, best + step, weights).sum() >= least - rounding


@given(partitions())
def test_theorem_4_2_the_gradient_is_zero(partition: tuple[Array, Weights]) -> None:
    points, weights = partition
    best = update_one(points, weights).astype(np.float64)
    step = 1e-3
    for axis in step * np.eye(points.shape[1]):  # central differences are exact for a quadratic
        rise = loss_of(points, best + axis, weights).sum() - loss_of(points, best - axis, weights).sum()
        # The slope is curvature times the rounding of the codeword to float32; 2e-7 |c| is some four roundings.
        curvature = 2 * (weights.importance * np.maximum(weights.eta, 1)).sum()
        assert abs(rise / (2 * step)) <= curvature * 2e-7 * max(1.0, np.linalg.norm(best)) + 1e-9


@given(partitions())
def test_theorem_4_2_with_eta_1_is_the_weighted_mean(partition: tuple[Array, Weights]) -> None:
    points, weights = partition
    weights = weights._replace(eta=np.ones(len(points)))
    mean = np.average(points.astype(np.float64), axis=0, weights=weights.importance)
    assert_allclose(update_one(points, weights), mean, rtol=1e-6, atol=1e-6)  # float32 holds 6e-8 of the codeword


def test_update_leaves_unused_codewords() -> None:
    points = normal_points(20, 3)
    old = normal_points(5, 3, seed=1)
    codes = np.repeat([1, 3], 10).astype(np.int32)
    new = update_codewords(points, codes, weights_of(Threshold(1.0), points), old)
    assert_array_equal(new[[0, 2, 4]], old[[0, 2, 4]])
    assert (new[[1, 3]] != old[[1, 3]]).all()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("seed", [0, 1])
def test_losses_fall_and_are_those_of_the_codes(loss: Any, seed: int) -> None:
    points = normal_points(400, 6, seed)
    quantizer = VectorQuantizer(12, loss=loss, seed=seed).fit(points)
    assert len(quantizer.losses) > 2
    assert (np.diff(quantizer.losses) < 0).all()
    decoded = quantizer.decode(quantizer.encode(points))
    # The assignment works in float32 on eta |x|^2 - ..., whose rounding is eps of eta |x|^2.
    assert_allclose(quantizer.losses[-1], loss_of(points, decoded, weights_of(loss, points)).sum(), rtol=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_codes_are_the_codewords_of_least_loss(loss: Any) -> None:
    points = normal_points(300, 5)
    quantizer = VectorQuantizer(20, loss=loss, iterations=3).fit(points)
    codes, weights = quantizer.encode(points), weights_of(loss, points)
    losses = np.stack([loss_of(points, word, weights) for word in quantizer.codewords.astype(np.float64)], axis=1)
    # float32: eps times the terms that are summed, eta |x|^2 and |c|^2
    size = weights.importance * weights.eta * (points.astype(np.float64) ** 2).sum(axis=1)
    assert (losses[np.arange(300), codes] <= losses.min(axis=1) + 1e-5 * size).all()
    assert (codes == losses.argmin(axis=1)).mean() > 0.99


def test_plain_loss_is_k_means() -> None:
    points = normal_points(300, 4)
    for loss in (None, Reconstruction(), Threshold(0.0), ScoreAware(np.ones_like)):
        quantizer = VectorQuantizer(10, loss=loss, iterations=100).fit(points)
        codes = quantizer.encode(points)
        distances = ((points[:, None].astype(np.float64) - quantizer.codewords) ** 2).sum(axis=2)
        assert_array_equal(codes, distances.argmin(axis=1))
        means = np.stack([points[codes == c].mean(axis=0) for c in range(10)])
        assert_allclose(quantizer.codewords, means, atol=1e-5)  # a fixed point of Lloyd's algorithm, in float32


def test_score_aware_training_has_the_smaller_score_aware_loss() -> None:
    points, loss = normal_points(2000, 8), Threshold(2.0)
    weights = weights_of(loss, points)
    means = []
    for trained in (loss, Reconstruction()):
        quantizer = VectorQuantizer(32, loss=trained).fit(points)
        means.append(loss_of(points, quantizer.decode(quantizer.encode(points)), weights).mean())
    assert means[0] < 0.8 * means[1]  # 0.58 to 0.59 for three seeds


def test_near_zero_points_do_not_spoil_the_fit() -> None:
    """One point of norm 1e-25 among 600: its own loss is nothing, and the others must be coded as without it."""
    points = normal_points(600, 12)
    points[7] *= np.float32(1e-25)
    for loss in (Reconstruction(), Threshold(1.0)):
        quantizer = VectorQuantizer(16, loss=loss).fit(points)
        assert np.isfinite(quantizer.losses).all()
        assert len(quantizer.losses) > 2, "training stopped at once"


def test_same_seed_same_bits_whatever_the_threads() -> None:
    points = normal_points(3000, 7)
    one, two, again, other = (
        VectorQuantizer(20, loss=Threshold(1.0), seed=seed, threads=threads).fit(points)
        for seed, threads in ((5, 1), (5, 2), (5, 1), (6, 1))
    )
    for same in (two, again):
        assert one.codewords.tobytes() == same.codewords.tobytes()
        assert one.losses == same.losses
        assert one.encode(points).tobytes() == same.encode(points).tobytes()
    assert one.codewords.tobytes() != other.codewords.tobytes()


@pytest.mark.parametrize(("k", "bits"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (16, 4), (17, 5), (256, 8)])
def test_bits(k: int, bits: int) -> None:
    assert VectorQuantizer(k).bits == bits


def test_shapes_and_scores() -> None:
    points, queries = normal_points(50, 6), normal_points(7, 6, seed=1)
    quantizer = VectorQuantizer(8, loss=Threshold(1.0)).fit(points)
    codes = quantizer.encode(points)
    assert (codes.shape, codes.dtype) == ((50,), np.int32)
    decoded = quantizer.decode(codes)
    assert (decoded.shape, decoded.dtype) == ((50, 6), np.float32)
    scores = quantizer.score(queries, codes)
    assert (scores.shape, scores.dtype) == ((7, 50), np.float32)
    assert_allclose(scores, queries @ decoded.T, rtol=1e-5, atol=1e-5)  # float32 sums of 6 products
    assert_array_equal(quantizer.encode(points[:1]), codes[:1])
    assert quantizer.encode(points[:0]).shape == (0,)
    assert quantizer.decode(codes[:0]).shape == (0, 6)
    assert quantizer.score(queries, codes[:0]).shape == (7, 0)
    assert quantizer.score(queries[:0], codes).shape == (0, 50)


def test_decode_gives_arrays_of_its_own() -> None:
    points = normal_points(50, 6)
    quantizer = VectorQuantizer(8).fit(points)
    before = quantizer.codewords.copy()
    quantizer.decode(quantizer.encode(points))[:] = 0
    assert_array_equal(quantizer.codewords, before)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("n", [1, 3, 8])
def test_no_more_points_than_codewords_are_coded_exactly(loss: Any, n: int) -> None:
    points = normal_points(n, 4, seed=2)
    quantizer = VectorQuantizer(8, loss=loss).fit(points)
    assert quantizer.codewords.shape == (8, 4)
    assert_allclose(quantizer.decode(quantizer.encode(points)), points, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("d", [1, 5])
@pytest.mark.parametrize("value", [0.0, 2.5, -3.0])
def test_equal_points(loss: Any, d: int, value: float) -> None:
    points = np.full((40, d), value, np.float32)
    quantizer = VectorQuantizer(4, loss=loss).fit(points)
    assert np.isfinite(quantizer.codewords).all()
    assert np.isfinite(quantizer.losses).all()
    assert_allclose(quantizer.decode(quantizer.encode(points)), points, rtol=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_one_dimension_and_zero_vectors(loss: Any) -> None:
    line = normal_points(200, 1)
    line[::5] = 0
    quantizer = VectorQuantizer(50, loss=loss).fit(line)
    decoded = quantizer.decode(quantizer.encode(line))
    assert np.mean((line - decoded) ** 2) < 0.02 * np.mean(line**2)  # 0.0003 here
    points = normal_points(200, 6)
    points[::3] = 0
    quantizer = VectorQuantizer(10, loss=loss).fit(points)
    assert np.isfinite(quantizer.codewords).all()
    assert (np.diff(quantizer.losses) < 0).all()


def test_one_codeword_is_the_minimiser() -> None:
    points = normal_points(100, 5)
    weights = weights_of(Threshold(1.0), points)
    quantizer = VectorQuantizer(1, loss=Threshold(1.0)).fit(points)
    assert_allclose(quantizer.codewords[0], update_one(points, weights), rtol=1e-5)
    assert_array_equal(quantizer.encode(points), 0)


def test_no_iterations_keep_points_as_codewords() -> None:
    points = normal_points(100, 5)
    quantizer = VectorQuantizer(10, iterations=0).fit(points)
    assert len(quantizer.losses) == 1
    for word in quantizer.codewords:
        assert (points == word).all(axis=1).any()


def test_progress_is_told_and_reaches_its_total() -> None:
    calls: list[tuple[str, int, int]] = []
    VectorQuantizer(4, iterations=5).fit(normal_points(100, 3), progress=lambda *call: calls.append(call))
    assert calls
    stages = {stage for stage, _, _ in calls}
    for stage in stages:
        done = [d for s, d, _ in calls if s == stage]
        assert done == sorted(done)
        assert [d for s, d, t in calls if s == stage and d == t] == [5]


def test_an_interrupted_fit_leaves_the_earlier_one() -> None:
    points = normal_points(200, 4)
    quantizer = VectorQuantizer(8).fit(points)
    codes, losses = quantizer.encode(points), quantizer.losses
    steps = iter(range(100))

    def stop(stage: str, done: int, total: int) -> None:
        if next(steps) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantizer.fit(normal_points(200, 7, seed=3), progress=stop)
    assert_array_equal(quantizer.encode(points), codes)
    assert quantizer.losses == losses


def test_a_refit_replaces() -> None:
    first, second = normal_points(100, 4), normal_points(120, 6, seed=1)
    quantizer = VectorQuantizer(8).fit(first)
    assert quantizer.fit(second) is quantizer
    fresh = VectorQuantizer(8).fit(second)
    assert_array_equal(quantizer.codewords, fresh.codewords)
    assert quantizer.losses == fresh.losses


def test_before_fit() -> None:
    quantizer = VectorQuantizer(4)
    points = normal_points(5, 3)
    for use in (
        lambda: quantizer.encode(points),
        lambda: quantizer.decode(np.zeros(3, np.int32)),
        lambda: quantizer.score(points, np.zeros(3, np.int32)),
        lambda: quantizer.score(points, np.zeros(0, np.int32)),
    ):
        with pytest.raises(NotFittedError, match=r"fit\(points\)"):
            use()


def test_k_means() -> None:
    points, losses = normal_points(500, 5), []
    for iterations in (0, 1, 2, 4, 200):
        found = kmeans(points, 8, rng=np.random.default_rng(0), iterations=iterations)
        distances = ((points[:, None].astype(np.float64) - found.centroids) ** 2).sum(axis=2)
        assert_array_equal(found.codes, distances.argmin(axis=1))
        losses.append(distances.min(axis=1).sum())
    assert (np.diff(losses) < 0).all()
    means = [points[found.codes == c].mean(axis=0) for c in range(8)]
    assert_allclose(found.centroids, means, atol=1e-4)  # a fixed point, in float32


def test_nearest_gives_the_loss() -> None:
    points, words = normal_points(100, 5), normal_points(9, 5, seed=1)
    points[:5] = 0
    eta = np.random.default_rng(2).uniform(0.5, 20, 100).astype(np.float32)
    codes, costs = nearest(points, words, eta=eta)
    expected = loss_of(points, words[codes].astype(np.float64), Weights(eta.astype(np.float64), np.ones(100)))
    # A zero point has no direction: its loss is |c|^2. float32 rounds terms of the size eta |x|^2 + |c|^2.
    assert_allclose(costs, expected, rtol=1e-5, atol=1e-4)


def test_spread_sample_takes_every_distinct_point_first() -> None:
    points = np.repeat(normal_points(6, 3), 10, axis=0)
    sample = spread_sample(points, 6, rng=np.random.default_rng(0))
    assert len(np.unique(sample, axis=0)) == 6
