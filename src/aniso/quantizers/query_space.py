"""The space in which product codes are made when a sample of queries is given to training.

With q the queries, x a point, r its error and S ~ E[q q^T], the error of a score is <q, r>. Three things make codes
good at scores with such queries:

    metric      E <q, r>^2 = r^T S r is the plain squared error of S^(1/2) x (loss.QueryTransform)
    axes        S^(1/2) x has few long axes that run across all subspaces, each of which would code them again; turned
                to its principal axes, and these dealt out so that subspaces hold alike products of variances, every
                subspace has something of its own to code
    direction   the queries that matter to x are those that x answers best: their mean E[q | x], by regression, is where
                the score-aware loss puts its weight. An elliptical distribution would put it along S x, but queries lie
                near the points they ask for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aniso.exact import multiply
from aniso.loss import QueryTransform
from aniso.quantizers.scale import expected_query

__all__ = ["QuerySpace", "balanced_axes"]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class QuerySpace:
    """Points of the space are z = x forward; inner products there with q back^T are those of q with x.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x, q = (rng.normal(size=(n, 4)).astype(np.float32) for n in (100, 30))
    >>> space = QuerySpace.fit(x, q, 2)
    >>> np.allclose(space.points_back(space.points(x)), x, atol=1e-5)
    True
    """

    forward: F32  # (d, d) S^(1/2) R, R the axes
    back: F32  # (d, d) R^T S^(-1/2)
    direction: F32  # (d, d) of E[q | x] seen from the space

    @classmethod
    def fit(cls, points: F32, queries: F32, subspaces: int, *, threads: int = 1) -> QuerySpace:
        """From points and a sample of queries, for product codes of so many subspaces."""
        transform = QueryTransform.fit(queries)
        axes = balanced_axes(transform.points(points).astype(np.float32), subspaces)
        inverse = transform.forward_queries @ axes
        regression = expected_query(points, queries, threads=threads).astype(np.float64)
        made = (transform.forward_points @ axes, inverse.T, regression @ inverse)
        return cls(*(np.ascontiguousarray(matrix, np.float32) for matrix in made))

    def points(self, x: F32) -> F32:
        """Points (n, d) in the space."""
        return multiply(x, self.forward)

    def points_back(self, z: F32) -> F32:
        """The inverse of points."""
        return multiply(z, self.back)

    def directions(self, x: F32) -> F32:
        """Where the queries that x answers are expected, from points x (n, d); of any length."""
        return multiply(x, self.direction)


def balanced_axes(points: F32, subspaces: int) -> F64:
    """Principal axes of the points as columns (d, d), in an order that gives subspaces alike products of variances.

    The longest axis that is left goes to the subspace with room whose product is least, as in the parametric solution
    of OPQ.

    >>> import numpy as np
    >>> points = np.random.default_rng(0).normal(size=(500, 4)) * [4, 3, 2, 1]
    >>> np.abs(balanced_axes(points.astype(np.float32), 2)).round().argmax(axis=0).tolist()
    [0, 3, 1, 2]
    """
    d = points.shape[1]
    centred = points - points.mean(axis=0)
    values, vectors = np.linalg.eigh(np.einsum("ni,nj->ij", centred, centred, dtype=np.float64, optimize=True))
    room = np.diff(np.linspace(0, d, subspaces + 1).astype(np.int64))
    logs = np.log(np.maximum(values, 1e-12 * max(values[-1], 1e-300)) / max(values[-1], 1e-300))
    logs -= logs.min()  # every further axis makes a product larger
    dealt: list[list[int]] = [[] for _ in room]
    products = np.zeros(subspaces)
    for axis in range(d - 1, -1, -1):
        j = int(np.argmin(np.where([len(own) < most for own, most in zip(dealt, room, strict=True)], products, np.inf)))
        dealt[j].append(axis)
        products[j] += logs[axis]
    return np.asarray(vectors[:, [axis for own in dealt for axis in own]])
