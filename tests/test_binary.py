"""Binary codes by stochastic generative hashing, with either loss."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from aniso.errors import NotFittedError
from aniso.loss import Threshold
from aniso.quantizers import BinaryQuantizer

Array = NDArray[Any]


def normal_points(n: int, d: int, seed: int = 0) -> Array:
    """Correlated, and not around zero."""
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(d).normal(size=(d, d)) * np.linspace(2, 0.2, d)
    return (rng.normal(size=(n, d)) @ mix.T + 3.0).astype(np.float32)


def mean_loss(points: Array, decoded: Array, eta: Array | float = 1.0) -> float:
    x = points.astype(np.float64)
    error = x - decoded
    along = np.einsum("nd,nd->n", error, x) / np.linalg.norm(x, axis=1)
    return float(np.mean(np.sum(error**2, axis=1) + (eta - 1) * along**2))


@pytest.mark.parametrize("restarts", [None, 0, 2])
@pytest.mark.parametrize(("d", "length"), [(1, 8), (5, 24), (20, 8)])
def test_shapes_and_scores(d: int, length: int, restarts: int | None) -> None:
    points, queries = normal_points(300, d), normal_points(20, d, seed=1)
    quantizer = BinaryQuantizer(length, steps=20, restarts=restarts)
    assert quantizer.fit(points) is quantizer
    codes = quantizer.encode(points)
    assert (codes.shape, codes.dtype, quantizer.bits) == ((300, length // 8), np.uint8, length)
    decoded = quantizer.decode(codes)
    assert (decoded.shape, decoded.dtype) == ((300, d), np.float32)
    bits = np.unpackbits(codes, axis=1).astype(np.float32)
    assert_allclose(decoded, bits @ quantizer.decoder + quantizer.shift, rtol=1e-4, atol=1e-3)  # float32 sums
    assert_allclose(quantizer.score(queries, codes), queries @ decoded.T, rtol=1e-4, atol=1e-2)  # float32 sums
    assert quantizer.decode(codes[:0]).shape == (0, d)
    assert quantizer.encode(points[:0]).shape == (0, length // 8)


def test_bits_are_the_signs_of_the_encoder() -> None:
    points = normal_points(400, 8)
    quantizer = BinaryQuantizer(16, steps=50).fit(points)
    logits = points.astype(np.float64) @ quantizer.encoder + quantizer.threshold
    clear = np.abs(logits) > 1e-4  # elsewhere float32 may round to the other side
    assert_array_equal(np.unpackbits(quantizer.encode(points), axis=1)[clear], (logits > 0)[clear])


def test_training_lowers_the_loss() -> None:
    """To 0.15 of the points' variance with these 24 bits; without training it is above 1."""
    points = normal_points(2000, 10)
    quantizer = BinaryQuantizer(24, steps=600).fit(points)
    variance = float(np.sum(np.var(points, axis=0)))
    assert quantizer.losses[-1] < 0.7 * quantizer.losses[0]  # 0.53 to 0.56, for three seeds
    assert mean_loss(points, quantizer.decode(quantizer.encode(points))) < 0.3 * variance


def test_score_aware_training_has_the_smaller_score_aware_loss() -> None:
    points = normal_points(2000, 10)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    loss = Threshold(0.6)
    eta = loss.weights([1.0], 10).eta
    found = []
    for given in (loss, None):
        quantizer = BinaryQuantizer(24, loss=given, steps=600).fit(points)
        found.append(mean_loss(points, quantizer.decode(quantizer.encode(points)), eta))
    assert found[0] < 0.9 * found[1]  # 0.78 to 0.83, for three seeds


@pytest.mark.parametrize("loss", [None, Threshold(3.0)])
def test_searched_bits_have_less_loss(loss: Threshold | None) -> None:
    points = normal_points(1000, 10)
    eta = 1.0 if loss is None else loss.weights(np.linalg.norm(points, axis=1), 10).eta
    found = []
    for restarts in (None, 0, 8):
        quantizer = BinaryQuantizer(24, loss=loss, steps=200, restarts=restarts).fit(points)
        found.append(mean_loss(points, quantizer.decode(quantizer.encode(points)), eta))
    assert found[0] > 1.1 * found[1]
    assert found[1] > found[2]


def test_the_same_seed_gives_the_same_codes() -> None:
    points = normal_points(800, 10)
    first, second = (BinaryQuantizer(16, steps=30, restarts=1, threads=threads).fit(points) for threads in (1, 2))
    assert_array_equal(first.encoder, second.encoder)
    assert_array_equal(first.encode(points), second.encode(points))
    other = BinaryQuantizer(16, steps=30, seed=1).fit(points)
    assert (other.encoder != first.encoder).any()


def test_scaled_points_have_scaled_models() -> None:
    points = normal_points(500, 6)
    one, thousand = (BinaryQuantizer(16, steps=100).fit(points * factor) for factor in (1, 1024))
    assert_array_equal(one.encode(points), thousand.encode(points * 1024))
    assert_allclose(one.decoder * 1024, thousand.decoder, rtol=1e-3, atol=1e-2)


def test_equal_points() -> None:
    points = np.ones((50, 4), np.float32)
    quantizer = BinaryQuantizer(8, steps=200).fit(points)
    assert np.isfinite(quantizer.decode(quantizer.encode(points))).all()


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="length is 12; needed: a multiple of 8"):
        BinaryQuantizer(12)
    with pytest.raises(ValueError, match="steps is -1"):
        BinaryQuantizer(8, steps=-1)
    with pytest.raises(NotFittedError, match=r"fit\(points\)"):
        BinaryQuantizer(8).encode(normal_points(50, 4))
    quantizer = BinaryQuantizer(8, steps=2).fit(normal_points(50, 4))
    with pytest.raises(ValueError, match="codes have shape"):
        quantizer.decode(np.zeros((3, 2), np.uint8))
    with pytest.raises(ValueError, match="5 dimensions, needed: 4"):
        quantizer.encode(normal_points(50, 5))
