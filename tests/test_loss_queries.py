"""The loss for a sample of queries: weights estimated from it, and the transform that makes queries spherical."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from points import unit
from scipy import special

from aniso.loss import LEAST_SHRINKAGE, QueryTransform, empirical_weights, h

Array = NDArray[np.float64]


def covariance_root(d: int) -> Array:
    rng = np.random.default_rng(7)
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    values = np.linspace(0.2, 1.8, d)  # trace d
    return (basis * np.sqrt(values)) @ basis.T


@pytest.mark.parametrize("w", [lambda t: t >= 0.5, lambda t: np.exp(2 * t)])
def test_empirical_weights_of_spherical_and_elliptical_queries(w: Callable[[Array], Array]) -> None:
    d, rng = 8, np.random.default_rng(11)
    root, sphere = covariance_root(d), d * special.beta((d + 1) / 2, 0.5)
    z, x = unit(rng, 100_000, d), rng.normal(size=(20, d)) / 2.0
    spherical = np.array(empirical_weights(w, x, z))
    expected = np.array(h(w, np.linalg.norm(x, axis=1), d)) / sphere
    assert spherical == pytest.approx(expected, rel=0.15, abs=2e-3)  # 5 standard errors of the rarest, 1e-2
    assert np.mean(spherical / expected) == pytest.approx(1.0, abs=0.03)

    space = QueryTransform(root, np.linalg.inv(root))
    q, y = z @ root, space.points(x)
    assert_allclose(space.queries(q), z, rtol=0, atol=1e-12)
    elliptical = np.array(empirical_weights(w, y, space.queries(q)))
    expected = np.array(h(w, np.linalg.norm(y, axis=1), d)) / sphere
    assert elliptical == pytest.approx(expected, rel=0.15, abs=2e-3)
    # and E[w(<q,x>) <q,r>^2] over the elliptical queries is the spherical loss of r in the new space
    r = rng.normal(size=(20, d))
    direct = np.mean(w(x @ q.T) * (r @ q.T) ** 2, axis=1)
    new = space.points(r)
    along = np.sum(new * y, axis=1) / np.linalg.norm(y, axis=1)
    spherical_loss = expected[0] * along**2 + expected[1] * (np.sum(new**2, axis=1) - along**2)
    assert direct == pytest.approx(spherical_loss, rel=0.15, abs=5e-3)
    assert np.mean(direct / spherical_loss) == pytest.approx(1.0, abs=0.03)


def test_empirical_weights_are_the_matrix_of_the_definition() -> None:
    rng = np.random.default_rng(3)
    x, q = rng.normal(size=(70, 5)), rng.normal(size=(40_000, 5))  # several blocks of points
    x[4] = 0.0
    h_parallel, h_orthogonal = empirical_weights(np.exp, x, q.astype(np.float32))
    for i in (0, 4, 69):
        M = (q * np.exp(q @ x[i])[:, None]).T @ q / len(q)
        u = x[i] / np.linalg.norm(x[i]) if i != 4 else np.zeros(5)
        expected = (u @ M @ u, (np.trace(M) - u @ M @ u) / 4) if i != 4 else (np.trace(M) / 5, np.trace(M) / 5)
        assert (h_parallel[i], h_orthogonal[i]) == pytest.approx(expected, rel=1e-4)  # float32 queries
    with pytest.raises(ValueError, match="queries have 4 dimensions, needed: 5"):
        empirical_weights(np.exp, x, q[:, :4])
    with pytest.raises(ValueError, match="queries have 0 rows"):
        empirical_weights(np.exp, x, q[:0])
    with pytest.raises(ValueError, match="at least 2"):
        empirical_weights(np.exp, x[:, :1], q[:, :1])
    with pytest.raises(ValueError, match="points row 3"):
        empirical_weights(np.exp, np.where(np.arange(70)[:, None] == 3, np.nan, x), q)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 5, 40, 2000])
def test_transform_preserves_inner_products(n: int, dtype: type) -> None:
    d, rng = 24, np.random.default_rng(n)
    q = (rng.normal(size=(n, d)) @ covariance_root(d)).astype(dtype)
    x = rng.normal(size=(50, d)).astype(dtype)
    space = QueryTransform.fit(q)
    points, queries = space.points(x), space.queries(q)
    assert points.dtype == queries.dtype == space.points_back(points).dtype == dtype
    tolerance = 1e-3 if dtype == np.float32 else 1e-9  # float32 times the condition number
    assert_allclose(queries @ points.T, q @ x.T, rtol=0, atol=tolerance)
    assert_allclose(space.points_back(points), x, rtol=0, atol=tolerance)
    S = space.forward_points @ space.forward_points
    assert np.trace(S) == pytest.approx(d)


def test_fit_recovers_the_second_moment() -> None:
    d, rng = 24, np.random.default_rng(5)
    q = 3.0 * rng.normal(size=(5000, d)) @ covariance_root(d) + 1.0  # the mean counts: not centred
    space = QueryTransform.fit(q)
    directions = q / np.linalg.norm(q, axis=1, keepdims=True)
    S = space.forward_points @ space.forward_points
    assert d * directions.T @ directions / len(q) == pytest.approx(S, rel=0, abs=0.05)
    whitened = space.queries(directions)
    assert d * whitened.T @ whitened / len(q) == pytest.approx(np.eye(d), rel=0, abs=0.05)
    exact = QueryTransform.fit(q, shrinkage=0.0)
    assert exact.forward_points @ exact.forward_points == pytest.approx(d * directions.T @ directions / len(q))
    assert QueryTransform.fit(q, shrinkage=1.0).forward_points == pytest.approx(np.eye(d))


def test_shrinkage_is_stronger_for_fewer_queries_and_helps() -> None:
    d, rng = 24, np.random.default_rng(6)
    root = covariance_root(d)
    truth = QueryTransform.fit(rng.normal(size=(30_000, d)) @ root).forward_points

    def error(n: int, shrinkage: float | None) -> float:
        return float(np.linalg.norm(QueryTransform.fit(sample[:n], shrinkage=shrinkage).forward_points - truth))

    sample = rng.normal(size=(5000, d)) @ root
    assert error(5000, None) < error(60, None) < error(4, None)
    assert error(60, None) < error(60, 0.0)
    assert error(60, None) < error(60, 1.0)


def test_fit_of_degenerate_samples() -> None:
    d, rng = 6, np.random.default_rng(8)
    single = QueryTransform.fit([[0.0, 0.0, 5.0]])
    assert np.diag(single.forward_points) ** 2 == pytest.approx([0.5, 0.5, 2.0])  # I/3 counts as one more query
    flat = np.zeros((5000, d))
    flat[:, :2] = rng.normal(size=(5000, 2))
    space = QueryTransform.fit(flat)  # rank 2
    assert np.linalg.eigvalsh(space.forward_points)[0] ** 2 >= LEAST_SHRINKAGE * 0.999
    with_zeros = np.concatenate([np.zeros((7, d)), flat])
    assert QueryTransform.fit(with_zeros).forward_points == pytest.approx(space.forward_points)
    same = QueryTransform.fit(np.ones((10, d)))
    assert np.all(np.isfinite(same.forward_queries))
    assert QueryTransform.fit([[2.0], [3.0]]).forward_points == pytest.approx(np.eye(1))  # d = 1
    with pytest.raises(ValueError, match="singular with shrinkage 0"):
        QueryTransform.fit(flat, shrinkage=0.0)
    with pytest.raises(ValueError, match="all of the 3 queries are zero"):
        QueryTransform.fit(np.zeros((3, d)))
    with pytest.raises(ValueError, match="queries have 0 rows"):
        QueryTransform.fit(np.zeros((0, d)))
    with pytest.raises(ValueError, match="queries row 1"):
        QueryTransform.fit([[1.0, 2.0], [np.nan, 0.0]])
    for bad in (-0.1, 1.1, np.nan):
        with pytest.raises(ValueError, match=f"shrinkage is {bad}"):
            QueryTransform.fit(flat, shrinkage=bad)
    with pytest.raises(ValueError, match="points have 5 dimensions, needed: 6"):
        space.points(np.zeros((2, 5)))
