"""QUIPS: codes that minimise the expected error of scores, and its constraints."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from aniso.errors import NotFittedError
from aniso.quantizers import ProductQuantizer, QuipsQuantizer

Array = NDArray[Any]


def normal(n: int, d: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def skewed(n: int, d: int, seed: int = 5) -> Array:
    """Queries that are ten times as long in the last dimension as in the first."""
    return (normal(n, d, seed) * np.linspace(0.2, 2, d)).astype(np.float32)


def score_error(queries: Array, points: Array, decoded: Array) -> float:
    return float(np.mean((queries @ (points - decoded).T) ** 2))


@pytest.mark.parametrize("variant", ["cov(x)", "cov(q)", "opt"])
@pytest.mark.parametrize(("d", "m"), [(1, 1), (3, 1), (7, 3)])
def test_shapes_and_scores(d: int, m: int, variant: str) -> None:
    points, queries = normal(300, d), skewed(20, d)
    quantizer = QuipsQuantizer(m, variant=variant)
    assert quantizer.fit(points, queries=queries) is quantizer
    codes = quantizer.encode(points)
    assert (codes.shape, codes.dtype, quantizer.bits) == ((300, m), np.uint8, 4 * m)
    decoded = quantizer.decode(codes)
    assert (decoded.shape, decoded.dtype) == ((300, d), np.float32)
    assert_allclose(quantizer.score(queries, codes), queries @ decoded.T, rtol=1e-4, atol=1e-4)  # float32 sums
    assert quantizer.decode(codes[:0]).shape == (0, d)


def test_the_maps_are_inverse_and_keep_scores() -> None:
    quantizer = QuipsQuantizer(4, variant="cov(q)").fit(normal(500, 9), queries=skewed(200, 9))
    assert_allclose(quantizer.forward @ quantizer.back, np.eye(9), atol=1e-5)  # float32


def test_queries_lower_the_error_of_their_scores() -> None:
    """0.64 to 0.79 of that without queries, for three seeds."""
    points, queries = normal(3000, 12), skewed(1500, 12)
    errors = []
    for variant in ("cov(q)", "cov(x)"):
        quantizer = QuipsQuantizer(4, variant=variant).fit(points, queries=queries[:1000])
        errors.append(score_error(queries[1000:], points, quantizer.decode(quantizer.encode(points))))
    assert errors[0] < 0.9 * errors[1]


def test_equal_moments_make_it_product_quantization() -> None:
    """The errors differ by the order of the dimensions alone."""
    points = normal(4000, 12)
    quips, product = QuipsQuantizer(6).fit(points), ProductQuantizer(6).fit(points)
    errors = [np.mean((points - q.decode(q.encode(points))) ** 2) for q in (quips, product)]
    assert errors[0] == pytest.approx(errors[1], rel=0.03)


def violations(quantizer: QuipsQuantizer, points: Array, queries: Array) -> float:
    """The mean number of points that score above the true best one."""
    best = (queries @ points.T).argmax(axis=1)
    scores = queries @ quantizer.decode(quantizer.encode(points)).T
    own = scores[np.arange(len(queries)), best]
    return float(np.mean(np.sum(scores > own[:, None], axis=1)))


def test_constraints_are_violated_less() -> None:
    """0.69 to 0.79 as often, for three seeds."""
    points, queries = normal(1500, 12), skewed(300, 12)
    plain = QuipsQuantizer(4, variant="cov(q)").fit(points, queries=queries)
    constrained = QuipsQuantizer(4, variant="opt", strength=0.3).fit(points, queries=queries)
    assert len(constrained.losses) > 2
    assert (np.diff(constrained.losses) < 0).all()
    assert violations(constrained, points, queries) < 0.9 * violations(plain, points, queries)


def test_the_same_seed_gives_the_same_codes() -> None:
    points, queries = normal(800, 10), skewed(100, 10)
    first, second = (
        QuipsQuantizer(5, variant="opt", iterations=3, threads=threads).fit(points, queries=queries)
        for threads in (1, 2)
    )
    assert_array_equal(first.books.codewords, second.books.codewords)
    assert_array_equal(first.encode(points), second.encode(points))


@pytest.mark.parametrize("points", [np.zeros((50, 6), np.float32), np.eye(6, dtype=np.float32)[:2]])
def test_points_that_span_little(points: Array) -> None:
    for variant in ("cov(x)", "cov(q)", "opt"):
        quantizer = QuipsQuantizer(3, variant=variant).fit(points, queries=points)
        assert_allclose(quantizer.decode(quantizer.encode(points)), points, atol=1e-4)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"variant is 'cov'; needed: one of 'cov\(x\)', 'cov\(q\)', 'opt'"):
        QuipsQuantizer(3, variant="cov")
    with pytest.raises(ValueError, match="strength is -1; needed: a number of at least 0"):
        QuipsQuantizer(3, strength=-1)
    with pytest.raises(ValueError, match="needs a sample of queries"):
        QuipsQuantizer(3, variant="opt").fit(normal(50, 4))
    with pytest.raises(ValueError, match="subspaces is 3; needed: at most the 2 dimensions"):
        QuipsQuantizer(3).fit(normal(50, 2))
    with pytest.raises(NotFittedError, match=r"fit\(points\)"):
        QuipsQuantizer(3).encode(normal(50, 4))
    with pytest.raises(ValueError, match="codes have shape"):
        QuipsQuantizer(2).fit(normal(50, 4)).decode(np.zeros((3, 5), np.uint8))
