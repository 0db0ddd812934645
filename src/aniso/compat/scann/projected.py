"""Fewer dimensions: the first ones or the principal components, for what partitions and codes see of a point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aniso.compat.scann.settings import Projection
from aniso.exact import multiply

__all__ = ["Axes", "fit_axes"]

F32 = NDArray[np.float32]
_SAMPLE = 100_000  # most points that principal components are computed from


@dataclass(frozen=True)
class Axes:
    """The directions that are kept."""

    d: int
    kept: int
    matrix: F32 | None  # (d, kept) orthonormal columns; None: the first dimensions
    rest: F32 | None  # (d,) what the mean of the points has along the directions that are not kept

    def apply(self, vectors: F32) -> F32:
        """Vectors (n, d) along the axes, (n, kept)."""
        if self.matrix is None:
            return np.ascontiguousarray(vectors[:, : self.kept])
        return multiply(vectors, self.matrix)

    def offset(self, queries: F32) -> F32 | None:
        """What inner products lack on average, one number for each query; None where it is not known."""
        return None if self.rest is None else queries @ self.rest


def fit_axes(wanted: Projection, points: F32) -> Axes:
    """The first dimensions, or the principal components of the points."""
    d = points.shape[1]
    if wanted.kind == "TRUNCATE":
        return Axes(d, min(wanted.dimensions or d, d), None, None)
    some = points[:: -(-len(points) // _SAMPLE)].astype(np.float64)
    mean = some.mean(axis=0)
    variances, axes = np.linalg.eigh((some - mean).T @ (some - mean) / len(some))
    variances, axes = np.maximum(variances[::-1], 0), axes[:, ::-1]  # the largest first
    kept = wanted.dimensions
    if kept is None:
        total = variances.sum()
        shares = np.cumsum(variances) / total if total > 0 else np.ones(d)
        kept = min(int(np.searchsorted(shares, wanted.significance - 1e-9)) + 1, d)
        kept = kept if kept <= wanted.most * d else d
    matrix = np.ascontiguousarray(axes[:, : min(kept, d)])
    rest = mean - matrix @ (matrix.T @ mean)
    return Axes(d, matrix.shape[1], matrix.astype(np.float32), rest.astype(np.float32))
