"""What every quantizer can do: fit, encode, decode, score."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aniso.errors import check_vectors

__all__ = ["Quantizer", "score_decoded"]

Self = TypeVar("Self", bound="Quantizer")

_SCORE_ROWS = 65536


class Quantizer(Protocol):
    """A map from points (n, d) to small codes and back, such that scores survive."""

    @property
    def bits(self) -> int:
        """Bits that the code of one point takes."""

    def fit(self: Self, points: ArrayLike) -> Self:
        """Learn the codebooks from points (n, d); returns the quantizer itself."""

    def encode(self, points: ArrayLike) -> NDArray[Any]:
        """The codes of points, one row per point."""

    def decode(self, codes: NDArray[Any]) -> NDArray[np.float32]:
        """The points that the codes stand for, (n, d)."""

    def score(self, queries: ArrayLike, codes: NDArray[Any]) -> NDArray[np.float32]:
        """Inner products of queries (q, d) with the decoded points, (q, n)."""


def score_decoded(quantizer: Quantizer, queries: ArrayLike, codes: NDArray[Any]) -> NDArray[np.float32]:
    """Scores by decoding a block of points at a time: exact, for any quantizer."""
    vectors = check_vectors(queries, "queries")
    scores = np.empty((len(vectors), len(codes)), np.float32)
    for first in range(0, len(codes), _SCORE_ROWS):
        block = slice(first, first + _SCORE_ROWS)
        decoded = quantizer.decode(codes[block])
        if vectors.shape[1] != decoded.shape[1]:
            raise ValueError(f"queries have {vectors.shape[1]} dimensions, the quantizer has {decoded.shape[1]}")
        np.matmul(vectors, decoded.T, out=scores[:, block])
    return scores
