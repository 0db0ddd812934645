"""What every quantizer can do: fit, encode, decode, score."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aniso.errors import check_count, check_vectors

__all__ = ["Quantizer", "check_bits", "check_codes", "score_decoded"]

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
    names = np.asarray(codes)
    decoded = quantizer.decode(names[:_SCORE_ROWS] if names.ndim else names)
    vectors = check_vectors(queries, "queries", d=decoded.shape[1])
    scores = np.empty((len(vectors), len(names)), np.float32)
    for first in range(0, len(names), _SCORE_ROWS):
        block = slice(first, first + _SCORE_ROWS)
        decoded = quantizer.decode(names[block]) if first else decoded
        np.matmul(vectors, decoded.T, out=scores[:, block])
    return scores


def check_bits(bits_per_code: Any, scale_bits: Any, *, scales: tuple[int, ...] = (0, 8, 16)) -> tuple[int, int]:
    """The bits of a code, 4 or 8, and of a scale, one of `scales`."""
    code, scale = check_count(bits_per_code, "bits_per_code"), check_count(scale_bits, "scale_bits", least=0)
    if code not in (4, 8):
        raise ValueError(f"bits_per_code is {code}; needed: 4 or 8")
    if scale not in scales:
        raise ValueError(f"scale_bits is {scale}; needed: {', '.join(map(str, scales[:-1]))} or {scales[-1]}")
    return code, scale


def check_codes(codes: NDArray[Any], count: int, scale_bytes: int, k: int) -> NDArray[np.uint8]:
    """Codes as a uint8 matrix of the right width, all below k."""
    names = np.asarray(codes)
    if names.ndim != 2 or names.shape[1] != count + scale_bytes or names.dtype != np.uint8:
        needed = f"(n, {count + scale_bytes}) of uint8"
        raise ValueError(f"codes have shape {names.shape} and dtype {names.dtype}; needed: {needed}")
    if len(names) and names[:, :count].max() >= k:
        raise ValueError(f"codes go up to {names[:, :count].max()}; needed: at most {k - 1}")
    return names
