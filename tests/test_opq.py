"""Optimized product quantization: the rotation is one, the error falls, and inner products survive it."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from aniso.errors import NotFittedError
from aniso.loss import Threshold
from aniso.quantizers import ProductQuantizer, RotatedQuantizer
from aniso.quantizers.opq import orthogonal_factor

Array = NDArray[Any]


def mixed_points(n: int, d: int, seed: int = 0) -> Array:
    """Correlated points, which a rotation helps."""
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(d).normal(size=(d, d)) * np.linspace(2, 0.1, d)
    return (rng.normal(size=(n, d)) @ mix.T).astype(np.float32)


def squared_error(points: Array, decoded: Array) -> float:
    return float(np.mean((points.astype(np.float64) - decoded) ** 2))


def aware_loss(points: Array, decoded: Array, eta: Array) -> float:
    x = points.astype(np.float64)
    error = x - decoded
    along = np.einsum("nd,nd->n", error, x) / np.linalg.norm(x, axis=1)
    return float(np.mean(np.sum(error**2, axis=1) + (eta - 1) * along**2))


@pytest.mark.parametrize("scale_bits", [0, 4, 8])
@pytest.mark.parametrize(("d", "m"), [(1, 1), (3, 1), (7, 3)])
def test_shapes_and_scores(d: int, m: int, scale_bits: int) -> None:
    points, queries = mixed_points(300, d), mixed_points(20, d, seed=1)
    quantizer = RotatedQuantizer(m, iterations=3, scale_bits=scale_bits)
    assert quantizer.fit(points) is quantizer
    codes = quantizer.encode(points)
    assert (codes.shape, codes.dtype) == ((300, m + (scale_bits + 7) // 8), np.uint8)
    assert quantizer.bits == 4 * m + scale_bits
    decoded = quantizer.decode(codes)
    assert (decoded.shape, decoded.dtype) == ((300, d), np.float32)
    assert_allclose(quantizer.score(queries, codes), queries @ decoded.T, rtol=1e-4, atol=1e-3)  # float32 sums
    assert quantizer.decode(codes[:0]).shape == (0, d)
    assert quantizer.encode(points[:0]).shape == (0, codes.shape[1])


def test_the_rotation_is_orthogonal() -> None:
    quantizer = RotatedQuantizer(4, iterations=10).fit(mixed_points(1000, 12))
    assert_allclose(quantizer.rotation @ quantizer.rotation.T, np.eye(12), atol=1e-5)  # float32


@pytest.mark.parametrize("seed", [0, 1])
def test_losses_never_rise_and_are_those_of_the_codes(seed: int) -> None:
    points = mixed_points(2000, 12, seed)
    quantizer = RotatedQuantizer(6, iterations=15, rounds=0, seed=seed).fit(points)
    assert len(quantizer.losses) > 3
    assert (np.diff(quantizer.losses) < 0).all()
    error = 12 * squared_error(points, quantizer.decode(quantizer.encode(points)))
    assert error == pytest.approx(quantizer.losses[-1], rel=1e-3)  # float32


def test_less_error_than_without_the_rotation() -> None:
    """0.32 to 0.34 of it on these points, for three seeds."""
    points = mixed_points(3000, 16)
    errors = [
        squared_error(points, q.decode(q.encode(points)))
        for q in (RotatedQuantizer(8).fit(points), ProductQuantizer(8).fit(points))
    ]
    assert errors[0] < 0.5 * errors[1]


def test_score_aware_training_has_the_smaller_score_aware_loss() -> None:
    points = mixed_points(2000, 12)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    loss = Threshold(0.4)
    eta = loss.weights(np.linalg.norm(points, axis=1), 12).eta
    found = []
    for given in (loss, None):
        quantizer = RotatedQuantizer(6, loss=given).fit(points)
        found.append(aware_loss(points, quantizer.decode(quantizer.encode(points)), eta))
    assert found[0] < found[1]


def test_the_same_seed_gives_the_same_codes() -> None:
    points = mixed_points(800, 10)
    first, second = (RotatedQuantizer(5, iterations=4, threads=threads).fit(points) for threads in (1, 2))
    assert_array_equal(first.rotation, second.rotation)
    assert_array_equal(first.encode(points), second.encode(points))
    other = RotatedQuantizer(5, iterations=4, seed=1).fit(points)
    assert (other.encode(points) != first.encode(points)).any()


@pytest.mark.parametrize(
    "points", [np.zeros((50, 6), np.float32), np.eye(6, dtype=np.float32)[:2], np.ones((40, 6), np.float32)]
)
def test_points_that_span_little(points: Array) -> None:
    quantizer = RotatedQuantizer(3).fit(points)
    assert_allclose(quantizer.rotation @ quantizer.rotation.T, np.eye(6), atol=1e-4)
    assert_allclose(quantizer.decode(quantizer.encode(points)), points, atol=1e-4)


@pytest.mark.parametrize("d", [1, 2, 30])
def test_orthogonal_factor_is_that_of_the_decomposition(d: int) -> None:
    matrix = np.random.default_rng(d).normal(size=(d, d))
    left, _, right = np.linalg.svd(matrix)
    assert_allclose(orthogonal_factor(matrix), left @ right, atol=1e-9)


def test_start_of_the_wrong_shape_is_refused() -> None:
    points = mixed_points(200, 6)
    books = ProductQuantizer(2, rounds=0).fit(points).books
    with pytest.raises(ValueError, match="start has 2 codebooks of 16 over 6 dimensions; needed: 3 of 16 over 6"):
        ProductQuantizer(3).fit(points, start=books)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="subspaces is 3; needed: at most the 2 dimensions"):
        RotatedQuantizer(3).fit(mixed_points(50, 2))
    with pytest.raises(ValueError, match="iterations is -1"):
        RotatedQuantizer(3, iterations=-1)
    with pytest.raises(NotFittedError, match=r"fit\(points\)"):
        RotatedQuantizer(3).encode(mixed_points(50, 4))
    with pytest.raises(ValueError, match="5 dimensions, needed: 4"):
        RotatedQuantizer(2, iterations=1).fit(mixed_points(50, 4)).encode(mixed_points(50, 5))
