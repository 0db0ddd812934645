"""The codes of per-point scales, and the query expected for a point, along which a scale may remove the error."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from points import normal_points, skewed_queries

from aniso.quantizers.scale import ScaleCodes, ScaleLevels, expected_query

Array = NDArray[Any]


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=50), st.sampled_from([8, 16]))
def test_scale_codes_are_within_half_a_step(values: list[float], bits: int) -> None:
    scales = np.array(values)
    codes = ScaleCodes.fit(scales, bits=bits)
    encoded = codes.encode(scales)
    assert (encoded.shape, encoded.dtype) == ((len(values), bits // 8), np.uint8)
    # half a step in the logarithm, and the rounding of float32
    assert (np.abs(np.log(codes.decode(encoded).astype(np.float64) / scales)) <= codes.step / 2 + 1e-6).all()


def test_scale_codes_at_and_beyond_the_ends() -> None:
    codes = ScaleCodes.fit(np.array([0.5, 2.0]), bits=8)
    encoded = codes.encode(np.array([0.0, -1.0, 1e-300, 1e300, 0.5, 2.0]))
    assert_array_equal(encoded[:4, 0], [0, 0, 1, 255])
    decoded = codes.decode(encoded)
    assert_array_equal(decoded[:2], 0)
    assert decoded[2] < 0.5 < 2.0 < decoded[3] < 3.0
    nothing = ScaleCodes.fit(np.zeros(3), bits=16)
    assert_array_equal(nothing.decode(nothing.encode(np.zeros(3))), 0)


def test_scale_levels_have_less_error_than_even_ones() -> None:
    scales = np.exp(np.random.default_rng(0).normal(size=20_000))
    levels = ScaleLevels.fit(scales)
    assert list(levels.logarithms) == sorted(levels.logarithms)
    codes = levels.encode(scales)
    assert (codes.shape, codes.dtype, codes.min(), codes.max()) == ((20_000, 1), np.uint8, 1, 15)
    logs = np.log(scales)
    error = np.mean((np.log(levels.decode(codes).astype(np.float64)) - logs) ** 2)
    assert error < 0.0155  # the least that 15 levels leave of a normal variable of variance 1 is about 0.013
    nearest = np.abs(np.array(levels.logarithms) - logs[:, None]).argmin(axis=1)
    assert_array_equal(codes[:, 0], nearest + 1)


@pytest.mark.parametrize("scales", [[1.0], [0.0], [-1.0, 0.0], [0.5, 0.5, 2.0], [1e-30, 1e30]])
def test_scale_levels_of_few_scales_are_these(scales: list[float]) -> None:
    values = np.array(scales)
    levels = ScaleLevels.fit(values)
    assert_allclose(levels.decode(levels.encode(values)), np.maximum(values, 0), rtol=1e-6)
    with pytest.raises(ValueError, match="codes of scales go up to 16; needed: at most 15"):
        levels.decode(np.array([[16]], np.uint8))


def ridge_regression(x: Array, q: Array) -> Array:
    """The least |x W - q|^2 + ridge |W - c I|^2, solved as one least-squares problem with d more rows."""
    d = x.shape[1]
    moment = x.T.astype(np.float64) @ x
    ridge = np.trace(moment) / d * (0.1 + d / len(q))
    c = np.trace(x.T.astype(np.float64) @ q) / np.trace(moment)
    rows = np.concatenate([x.astype(np.float64), np.sqrt(ridge) * np.eye(d)])
    targets = np.concatenate([q.astype(np.float64), np.sqrt(ridge) * c * np.eye(d)])
    return np.linalg.lstsq(rows, targets, rcond=None)[0]


@pytest.mark.parametrize("count", [1, 3, 40])
def test_expected_query_is_the_ridge_regression(count: int) -> None:
    points, queries = normal_points(100, 5), skewed_queries(count, 5)
    best = (queries.astype(np.float64) @ points.T).argmax(axis=1)
    found = expected_query(points, queries)
    assert (found.shape, found.dtype) == ((5, 5), np.float32)
    assert_allclose(found, ridge_regression(points[best], queries), atol=1e-5)  # float32
    assert_array_equal(expected_query(points, queries, threads=2), found)


def second_best(points: Array, queries: Array) -> Array:
    """The best point of each query that is not the query itself."""
    scores = queries.astype(np.float64) @ points.T
    scores[(queries[:, None] == points[None]).all(axis=2)] = -np.inf
    return scores.argmax(axis=1)


def test_expected_query_excludes_the_query_itself() -> None:
    """Some queries are points, far apart: each is matched with the best of the other points."""
    points = normal_points(100, 5, spread=0)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    scores = points @ points.T
    far = [0]
    for i in range(1, 100):  # no two of them are the best of each other
        if all(scores[i, j] < 0.5 for j in far):
            far.append(i)
    assert len(far) >= 4
    queries = np.concatenate([points[far], skewed_queries(10, 5)])
    matched = points[second_best(points, queries)]
    assert_allclose(expected_query(points, queries), ridge_regression(matched, queries), atol=1e-5)  # float32
    with_itself = points[(queries @ points.T).argmax(axis=1)]
    assert np.abs(ridge_regression(with_itself, queries) - ridge_regression(matched, queries)).max() > 0.01


def test_expected_query_excludes_only_the_query_itself() -> None:
    """Two queries that are each other's best point, and queries that are all of the points."""
    points = normal_points(60, 5, spread=0)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    points[1] = points[0] + 0.01 * points[2]
    points[1] /= np.linalg.norm(points[1])
    for queries in (points[:2], points):
        matched = points[second_best(points, queries)]
        assert_allclose(expected_query(points, queries), ridge_regression(matched, queries), atol=1e-5)  # float32


def test_expected_query_of_few_queries_is_nearly_a_multiple_of_the_identity() -> None:
    points, queries = normal_points(2000, 16), skewed_queries(2000, 16)
    off = []
    for count in (1, 4, 2000):
        W = expected_query(points, queries[:count]).astype(np.float64)
        off.append(np.linalg.norm(W - np.trace(W) / 16 * np.eye(16)) / np.linalg.norm(W))
    assert off[0] < 0.3  # 0.20; the regression without a ridge has rank 1, which is off by sqrt(15 / 16) = 0.97
    assert off[0] < off[1] < off[2]  # 0.34 and 0.46: the queries are far from even, and the more are seen, the surer


@pytest.mark.parametrize("count", [1, 7])
def test_expected_query_of_zeros_and_of_one_point(count: int) -> None:
    points = normal_points(10, 4)
    zeros = np.zeros((count, 4), np.float32)
    assert_array_equal(expected_query(np.zeros_like(points), points[:count]), np.eye(4))
    assert_allclose(expected_query(points, zeros), 0, atol=1e-6)
    assert np.isfinite(expected_query(points[:1], points[:count])).all()
    assert_allclose(expected_query(points[:1], points[:1]), np.eye(4), atol=1e-6)  # there is no other point
