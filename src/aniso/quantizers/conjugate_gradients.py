"""Conjugate gradients for the joint update of codewords, whose matrix is too large to be formed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["conjugate_gradients"]

F64 = NDArray[np.float64]


def conjugate_gradients(
    times_a: Callable[[F64], F64], start: F64, residual: F64, inverse: F64, *, iterations: int, tolerance: float
) -> F64:
    """The c with A c = b, from c = start, where the residual is b - A start: only products with A are needed.

    `inverse` is that of A's diagonal, the preconditioner; where it and the residual are 0, c stays as it starts. Every
    step lowers c^T A c / 2 - b^T c, so that stopping early is safe: after so many iterations, or once the residual (in
    the norm of the preconditioner) is `tolerance` times the first one.
    """
    c: F64 = start.copy()
    residual = residual.copy()
    step = inverse * residual
    length = float((residual * step).sum())
    enough = tolerance**2 * length
    for _ in range(iterations):
        if length <= enough:
            break
        a_step = times_a(step)
        curvature = float((step * a_step).sum())
        if curvature <= 0:
            break
        c += (length / curvature) * step
        residual -= (length / curvature) * a_step
        preconditioned = inverse * residual
        length, before = float((residual * preconditioned).sum()), length
        step = preconditioned + (length / before) * step
    return c
