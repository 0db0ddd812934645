"""Statements of the paper that no other file checks: its lemma, identities of its appendix, and its metrics."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.integrate import quad

from aniso.datasets import Dataset
from aniso.exact import ranks, relative_error, top
from aniso.kmeans import directions, nearest
from aniso.loss import Threshold, empirical_weights, eta_threshold, h
from aniso.quantizers import ProductQuantizer
from aniso.quantizers.codebooks import Codebooks

Array = NDArray[Any]


def test_isotropic_queries_weigh_all_errors_equally() -> None:
    """Section 3, after equation (1): E[q q^T] = c I makes the expected squared error of a score c |r|^2."""
    x = np.random.default_rng(0).normal(size=(20, 6))
    axes = np.concatenate([np.eye(6), -np.eye(6)]) * 3
    h_parallel, h_orthogonal = empirical_weights(np.ones_like, x, axes)
    assert_allclose(h_parallel, 9 / 6)
    assert_allclose(h_orthogonal, 9 / 6)


@pytest.mark.parametrize("d", [2, 5, 100])
@pytest.mark.parametrize("t", [-0.9, 0.1, 0.5])
def test_lemma_7_1_at_one_score(t: float, d: int) -> None:
    """Of queries with score t |x|, a parallel error counts t^2 and an orthogonal one (1 - t^2) / (d - 1)."""
    width = 0.01  # half of the band of scores around t |x|, as narrow as log_h promises to find
    h_parallel, h_orthogonal = h(lambda s: (np.abs(s - 2 * t) <= width).astype(float), [2.0], d)
    assert h_parallel[0] / h_orthogonal[0] == pytest.approx((d - 1) * t**2 / (1 - t**2), rel=0.1)


@pytest.mark.parametrize("d", [2, 3, 10, 60])
@pytest.mark.parametrize(
    ("w", "slope"),
    [(np.exp, np.exp), (lambda t: t**4, lambda t: 4 * t**3), (lambda t: 1 + np.sin(t), np.cos)],
    ids=["exp", "t^4", "1 + sin"],
)
def test_appendix_7_2_integration_by_parts(w: Callable[[Array], Array], slope: Callable[[Any], Any], d: int) -> None:
    """h_parallel - h_orthogonal = (d - 1) I_(d-2) - d I_d = |x| Int_0^pi w'(|x| cos) cos sin^d."""
    for norm in (0.5, 2.0):
        h_parallel, h_orthogonal = h(w, [norm], d)
        excess = norm * quad(lambda a, n=norm: slope(n * np.cos(a)) * np.cos(a) * np.sin(a) ** d, 0, np.pi)[0]
        assert h_parallel[0] - h_orthogonal[0] == pytest.approx(excess, rel=1e-6, abs=1e-7 * h_orthogonal[0])


@pytest.mark.parametrize(("T", "norm"), [(0.2, 1.0), (0.2, 0.5), (0.6, 1.0), (0.0, 1.0)])
def test_eta_by_the_recursion(T: float, norm: float) -> None:
    """Section 3.2 and appendix 7.3: eta = (d - 1) (I_(d-2) / I_d - 1), where I_d comes from I_(d-2)."""
    alpha = math.acos(T / norm)
    integrals = [alpha, 1 - math.cos(alpha)]  # I_0 and I_1
    for d in range(2, 40):
        integrals.append(((d - 1) * integrals[d - 2] - math.cos(alpha) * math.sin(alpha) ** (d - 1)) / d)
        eta = (d - 1) * (integrals[d - 2] / integrals[d] - 1)
        assert eta_threshold(T, [norm], d)[0] == pytest.approx(eta, rel=1e-6)


def test_eta_of_the_paper_is_the_limit_and_not_exact() -> None:
    assert eta_threshold(0.2, [1.0], 100)[0] == pytest.approx(5.953, abs=5e-4)
    assert eta_threshold(0.2, [1.0], 100, limit=True)[0] == pytest.approx(4.125)


def test_points_of_one_norm_share_one_eta() -> None:
    """The last formula of section 3.2."""
    weights = Threshold(0.2).weights(np.full(5, 1.5), 30)
    assert_array_equal(weights.eta, eta_threshold(0.2, [1.5], 30)[0])
    assert_array_equal(weights.importance, 1)


def test_equations_6_to_8_are_the_loss() -> None:
    """eta |r_parallel|^2 + |r_orthogonal|^2 by the definitions of section 3.1, as the quadratic form of appendix 7.4,
    and as kmeans.nearest computes it.
    """
    rng = np.random.default_rng(1)
    x, c, eta = rng.normal(size=(8, 6)), rng.normal(size=6), rng.uniform(1, 9, 8)
    for i in range(8):
        r = x[i] - c
        parallel = (r @ x[i]) * x[i] / (x[i] @ x[i])
        orthogonal = r - parallel
        squared, along = x[i] @ x[i], x[i] @ c
        assert orthogonal @ orthogonal == pytest.approx(squared + c @ c - 2 * along - parallel @ parallel)  # (6)
        assert parallel @ parallel == pytest.approx(squared + along**2 / squared - 2 * along)  # (7)
        matrix = (eta[i] - 1) * np.outer(x[i], x[i]) / squared + np.eye(6)
        loss = c @ matrix @ c - 2 * eta[i] * along + eta[i] * squared  # (8), and the constant it leaves out
        assert eta[i] * parallel @ parallel + orthogonal @ orthogonal == pytest.approx(loss)
        point, word = x[i : i + 1].astype(np.float32), c[None].astype(np.float32)
        _, cost = nearest(point, word, eta=eta[i : i + 1].astype(np.float32))
        assert cost[0] == pytest.approx(loss, rel=1e-5)  # float32


def test_appendix_7_5_example() -> None:
    """The codewords (-1, -1), (1, 1) and (-2, -2), (2, 2): codes (0, 1) are (-1, -1, 2, 2)."""
    words = np.array([[[-1, -1], [1, 1]], [[-2, -2], [2, 2]]], np.float32)
    books = Codebooks(words, np.array([0, 2, 4], np.int32))
    assert_array_equal(books.decode(np.array([[0, 1], [1, 0]], np.uint8)), [[-1, -1, 2, 2], [1, 1, -2, -2]])


def test_a_score_is_a_sum_of_table_entries() -> None:
    """Section 4.1: with tables T[m, c] = <query, codeword c> in subspace m, the score is the sum of T[m, codes[m]]."""
    points = np.random.default_rng(2).normal(size=(100, 7)).astype(np.float32)
    quantizer = ProductQuantizer(3, rounds=1).fit(points)
    codes, books, query = quantizer.encode(points), quantizer.books, points[0]
    scores = np.zeros(100)
    for j in range(3):
        part = query[books.starts[j] : books.starts[j + 1]]
        scores += (books.codewords[j, :, : len(part)] @ part)[codes[:, j]]
    assert_allclose(quantizer.score(query[None], codes)[0], scores, atol=1e-5)  # float32


def metric_case() -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(3)
    points, queries = rng.normal(size=(300, 8)).astype(np.float32), rng.normal(size=(40, 8)).astype(np.float32)
    return points, queries, (points + 0.3 * rng.normal(size=points.shape)).astype(np.float32)


def test_top_is_the_best_of_all_scores() -> None:
    points, queries, _ = metric_case()
    scores = queries.astype(np.float64) @ points.T
    ids, values = top(queries, points, 7)
    assert_array_equal(ids, np.argsort(-scores, axis=1)[:, :7])
    assert_allclose(values, -np.sort(-scores, axis=1)[:, :7], rtol=1e-5)
    same, _ = top(queries, np.repeat(points[:1], 5, axis=0), 3)
    assert_array_equal(same, [[0, 1, 2]] * 40)  # equals by their number
    assert top(queries, points[:4], 7)[0].shape == (40, 4)


@pytest.mark.parametrize("N", [1, 10, 100])
def test_recall_1_at_n_is_the_share_of_ranks_below_n(N: int) -> None:
    """Section 5.2: the proportion of queries where the top N retrieved results contain the true top-1 point."""
    points, queries, decoded = metric_case()
    truth = top(queries, points, 1)[0][:, 0]
    retrieved = top(queries, decoded, N)[0]
    contains = (retrieved == truth[:, None]).any(axis=1)
    found = ranks(queries, decoded, truth)
    assert_array_equal(found < N, contains)
    if N == 1:
        assert 0 < contains.mean() < 1
    assert_array_equal(ranks(queries, points, truth), 0)


def test_ties_count_against_the_rank() -> None:
    queries = np.ones((1, 2), np.float32)
    assert_array_equal(ranks(queries, np.ones((4, 2), np.float32), np.array([2])), 3)


def test_unit_points_turn_cosine_into_dot() -> None:
    points, queries, _ = metric_case()
    data = Dataset("some", "cosine", points, queries, top(queries, points, 1)[0])
    x, q = data.unit()
    cosines = queries @ points.T / np.linalg.norm(queries, axis=1)[:, None] / np.linalg.norm(points, axis=1)
    assert_allclose(q @ x.T, cosines, atol=1e-6)  # float32
    assert_allclose(directions(points), x, atol=1e-6)


def test_relative_error_is_that_of_the_best_points() -> None:
    """Section 5.1: |(<q, x> - <q, x~>) / <q, x>| of the true top-1."""
    points, queries, decoded = metric_case()
    truth = top(queries, points, 1)[0][:, 0]
    errors = [abs((q @ points[i] - q @ decoded[i]) / (q @ points[i])) for q, i in zip(queries, truth, strict=True)]
    assert relative_error(queries, points, decoded, truth) == pytest.approx(np.mean(errors), rel=1e-5)
    assert relative_error(queries, points, points, truth) == 0
    assert relative_error(queries, points, 1.25 * points, truth) == pytest.approx(0.25, rel=1e-6)
