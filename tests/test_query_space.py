"""Product codes trained with a sample of queries: their space, its axes, and what is gained."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from points import normal_points

from aniso.loss import Threshold
from aniso.quantizers import ProductQuantizer
from aniso.quantizers.query_space import QuerySpace, balanced_axes


def test_queries_in_training_make_their_scores_better() -> None:
    """Queries that live in every fourth dimension: with them, errors of scores are far smaller than without."""
    points = np.random.default_rng(0).normal(size=(3000, 16)).astype(np.float32)
    spread = np.where(np.arange(16) % 4 == 0, 3.0, 0.1)
    queries = (np.random.default_rng(1).normal(size=(400, 16)) * spread).astype(np.float32)
    sample, held_out = queries[:200], queries[200:]
    exact = held_out @ points.T
    errors = []
    for given_queries in (sample, None):
        quantizer = ProductQuantizer(8, loss=Threshold(1.0)).fit(points, queries=given_queries)
        assert (quantizer.space is None) == (given_queries is None)
        errors.append(np.mean((quantizer.score(held_out, quantizer.encode(points)) - exact) ** 2))
    assert errors[0] < 0.3 * errors[1]  # 0.11 to 0.12 for three seeds


def test_query_aware_fit_is_a_fit_in_the_other_space() -> None:
    """With the plain loss, which has no direction."""
    points, queries = normal_points(500, 6), normal_points(80, 6, seed=1)
    aware = ProductQuantizer(3).fit(points, queries=queries)
    assert aware.space is not None
    inside = ProductQuantizer(3).fit(aware.space.points(points))
    codes = aware.encode(points)
    assert_array_equal(codes, inside.encode(aware.space.points(points)))
    there = (queries.astype(np.float64) @ aware.space.back.T) @ inside.decode(codes).T
    assert_allclose(aware.score(queries, codes), there, rtol=1e-3, atol=1e-3)  # two float32 maps, there and back


def test_the_space_of_queries_keeps_the_metric_of_their_scores() -> None:
    points = normal_points(400, 6)
    queries = (np.random.default_rng(1).normal(size=(3000, 6)) * [4, 1, 1, 1, 1, 0.5]).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    space = QuerySpace.fit(points, queries, 3)
    scores = np.mean((queries.astype(np.float64) @ points.T) ** 2, axis=0)
    inside = np.sum(space.points(points).astype(np.float64) ** 2, axis=1) / 6
    assert_allclose(inside, scores, rtol=0.02)  # S is shrunk by 0.1 %
    assert_allclose(space.points(points) @ (queries @ space.back.T).T, points @ queries.T, atol=1e-4)


def test_a_space_may_be_given_in_place_of_queries() -> None:
    points, queries = normal_points(300, 6), normal_points(50, 6, seed=1)
    space = QuerySpace.fit(points, queries, 3)
    given_space = ProductQuantizer(3, loss=Threshold(1.0)).fit(points, queries=space)
    given_queries = ProductQuantizer(3, loss=Threshold(1.0)).fit(points, queries=queries)
    assert_array_equal(given_space.encode(points), given_queries.encode(points))
    with pytest.raises(ValueError, match="the QuerySpace has 6 dimensions, the points have 5"):
        ProductQuantizer(2).fit(points[:, :5], queries=space)


def test_axes_are_dealt_out() -> None:
    points = (np.random.default_rng(0).normal(size=(4000, 7)) * [1, 9, 2, 8, 4, 3, 6]).astype(np.float32)
    axes = balanced_axes(points, 3)  # 2, 2 and 3 dimensions
    assert_allclose(axes.T @ axes, np.eye(7), atol=1e-10)
    order = np.abs(axes).argmax(axis=0).tolist()
    assert [order[0], order[2], order[4]] == [1, 3, 6]  # the longest three begin a subspace each
    assert sorted(order) == list(range(7))
    assert np.isfinite(balanced_axes(np.ones((5, 4), np.float32), 2)).all()


def test_queries_help_where_long_axes_cross_all_subspaces() -> None:
    """Points and queries share three long axes; without axes of their own, all subspaces would code just these."""
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(3, 24))
    points, queries = (
        (rng.normal(size=(n, 3)) @ mix + rng.normal(size=(n, 24))).astype(np.float32) for n in (3000, 1200)
    )
    points, queries = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (points, queries))
    best = (queries @ points.T).argmax(axis=1)
    errors, found = [], []
    for given_queries in (queries[:800], None):
        quantizer = ProductQuantizer(6, loss=Threshold(0.2)).fit(points, queries=given_queries)
        decoded = quantizer.decode(quantizer.encode(points))
        errors.append(np.mean(np.einsum("nd,nd->n", queries[800:], (points - decoded)[best[800:]]) ** 2))
        scores = queries[800:] @ decoded.T
        found.append(np.mean(np.sum(scores > np.take_along_axis(scores, best[800:, None], axis=1), axis=1) < 10))
    assert errors[0] < 0.8 * errors[1]  # 0.72
    assert found[0] > found[1] + 0.03
