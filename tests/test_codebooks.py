"""Codebooks of subspaces: how these divide the dimensions, and the joint update of appendix 7.5."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from points import loss_of, normal_points

from aniso.kmeans import directions
from aniso.loss import Weights
from aniso.quantizers.codebooks import Codebooks, fit_codewords, start_codebooks

Array = NDArray[Any]


def selector(codes: Array, starts: Array, k: int, width: int) -> Array:
    """B of appendix 7.5 for one point, (d, m k width): B c is what codes (m,) decode to, c the codewords in a row."""
    B = np.zeros((starts[-1], len(codes), k, width))
    for j, code in enumerate(codes):
        for i in range(starts[j + 1] - starts[j]):
            B[starts[j] + i, j, code, i] = 1
    return B.reshape(starts[-1], -1)


def dense_codewords(x: Array, codes: Array, books: Codebooks, weights: Weights) -> Array:
    """The joint update of appendix 7.5 as it is written there: the matrix of every codeword, solved."""
    m, k, width = books.codewords.shape
    matrix, right = np.zeros((m * k * width, m * k * width)), np.zeros(m * k * width)
    for i, point in enumerate(x.astype(np.float64)):
        B = selector(codes[i], books.starts, k, width)
        h_orthogonal = weights.importance[i]
        h_parallel = weights.importance[i] * weights.eta[i]
        squared = point @ point
        outer = np.outer(point, point) / squared if squared > 0 else np.zeros((len(point), len(point)))
        matrix += B.T @ ((h_parallel - h_orthogonal) * outer + h_orthogonal * np.eye(len(point))) @ B
        right += h_parallel * B.T @ point
    used = np.diag(matrix) > 0
    c = books.codewords.astype(np.float64).ravel()
    c[used] = np.linalg.solve(matrix[np.ix_(used, used)], right[used])
    return c.reshape(m, k, width)


def small_case(seed: int, *, zeros: bool = False, eta: float = 20.0) -> tuple[Array, Array, Codebooks, Weights]:
    """90 points of 7 dimensions, 3 subspaces (2, 2, 3 wide) of 4 codewords, codes at random; one codeword unused."""
    rng = np.random.default_rng(seed)
    x = normal_points(90, 7, seed)
    if zeros:
        x[:9] = 0
    codes = rng.integers(0, 4, (90, 3)).astype(np.uint8)
    codes[codes[:, 1] == 2, 1] = 3  # nothing chooses codeword 2 of subspace 1
    words = rng.normal(size=(3, 4, 3)).astype(np.float32)
    words[:2, :, 2] = 0
    books = Codebooks(words, np.array([0, 2, 4, 7], np.int32))
    return x, codes, books, Weights(rng.uniform(0.7, eta, 90), rng.uniform(0.01, 1, 90))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_joint_update_is_the_dense_solution(seed: int, zeros: bool) -> None:
    x, codes, books, weights = small_case(seed, zeros=zeros)
    how = {"iterations": 500, "tolerance": 1e-7}
    found = fit_codewords(books, codes, x, directions(x), weights.eta - 1, weights.importance, **how)
    # Conjugate gradients multiply in float32: eps times the condition of the system, some 100 here.
    assert_allclose(found.codewords, dense_codewords(x, codes, books, weights), atol=1e-4)
    assert_array_equal(found.codewords[1, 2], books.codewords[1, 2])  # unused: as it was
    assert_array_equal(found.codewords[:2, :, 2], 0)  # past the width: zero


@pytest.mark.parametrize("seed", range(4))
def test_joint_update_as_called_has_nearly_the_least_loss(seed: int) -> None:
    """The default number of steps and tolerance: within 1e-3 of what can be gained, and no perturbation is better."""
    x, codes, books, weights = small_case(seed)
    found = fit_codewords(books, codes, x, directions(x), weights.eta - 1, weights.importance)
    best = Codebooks(dense_codewords(x, codes, books, weights).astype(np.float32), books.starts)
    start, reached, least = (loss_of(x, b.decode(codes), weights).sum() for b in (books, found, best))
    assert least <= reached * (1 + 1e-6)
    assert reached - least <= 1e-3 * (start - least)
    rng = np.random.default_rng(seed)
    for size in (0.03, 0.3, 3):
        other = Codebooks(
            found.codewords + rng.normal(size=(3, 4, 3)).astype(np.float32) * np.float32(size), books.starts
        )
        assert loss_of(x, other.decode(codes), weights).sum() > reached


def test_joint_update_with_eta_1_is_the_weighted_mean() -> None:
    x, codes, books, weights = small_case(0)
    found = fit_codewords(books, codes, x, directions(x), np.zeros(90), weights.importance)
    for j in range(3):
        for c in set(codes[:, j]):
            chosen = codes[:, j] == c
            part = x[chosen, books.starts[j] : books.starts[j + 1]]
            mean = np.average(part, axis=0, weights=weights.importance[chosen])
            assert_allclose(found.codewords[j, c, : part.shape[1]], mean, atol=1e-5)  # float32


@given(st.integers(1, 80), st.data())
@settings(max_examples=60)
def test_subspaces_differ_by_at_most_one_dimension(d: int, data: st.DataObject) -> None:
    m = data.draw(st.integers(1, d))
    books = start_codebooks(normal_points(3, d), m, 2, rng=np.random.default_rng(0), iterations=1)
    widths = np.diff(books.starts)
    assert (books.starts[0], books.starts[-1], len(widths)) == (0, d, m)
    assert set(widths) <= {d // m, -(-d // m)}
    assert books.codewords.shape == (m, 2, widths.max())
