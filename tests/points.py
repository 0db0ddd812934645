"""Points and queries for tests of losses and quantizers, and the loss of what is decoded."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aniso.loss import Weights

__all__ = ["loss_of", "normal_points", "skewed_queries", "unit", "weights_of"]

Array = NDArray[Any]


def normal_points(n: int, d: int, seed: int = 0, *, spread: float = 0.3) -> Array:
    """Points whose norms vary: correlated normal, times a log-normal factor."""
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(d).normal(size=(d, d)) / np.sqrt(d) + np.eye(d)
    return (rng.normal(size=(n, d)) @ mix * np.exp(spread * rng.normal(size=(n, 1)))).astype(np.float32)


def skewed_queries(n: int, d: int, seed: int = 5) -> Array:
    """Queries that are ten times as long in the last dimension as in the first."""
    return (normal_points(n, d, seed) * np.linspace(0.2, 2, d)).astype(np.float32)


def unit(rng: np.random.Generator, n: int, d: int) -> Array:
    z = rng.normal(size=(n, d))
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def weights_of(loss: Any, points: Array) -> Weights:
    return loss.weights(np.linalg.norm(points.astype(np.float64), axis=1), points.shape[1])


def loss_of(points: Array, decoded: Array, weights: Weights) -> Array:
    """importance * (|r|^2 + (eta - 1) <r, x/|x|>^2) of r = x - x~, for each point, in float64."""
    x, r = points.astype(np.float64), points.astype(np.float64) - decoded
    norms = np.linalg.norm(x, axis=1)
    along = np.divide(np.einsum("nd,nd->n", r, x), norms, out=np.zeros_like(norms), where=norms > 0)
    return weights.importance * (np.einsum("nd,nd->n", r, r) + (weights.eta - 1) * along**2)
