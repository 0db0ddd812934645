"""Per-point scales in 8 or 16 bits: code 0 is the scale 0, the others are spaced evenly in the logarithm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["ScaleCodes"]

_MARGIN = 1.2  # how far beyond the scales seen in training the range goes on either side


@dataclass(frozen=True)
class ScaleCodes:
    """Scale low * exp(step * (code - 1)) for code >= 1, which is within step / 2 of the scale, relatively.

    A scale outside the range of the codes gets the nearest one; zero and below get code 0.

    >>> import numpy as np
    >>> codes = ScaleCodes.fit(np.array([0.5, 1.0, 2.0]), bits=8)
    >>> codes.decode(codes.encode(np.array([0.0, 0.5, 1.0, 2.0]))).round(2).tolist()
    [0.0, 0.5, 1.0, 2.0]
    """

    low: float
    step: float
    bits: int  # 8 or 16

    @classmethod
    def fit(cls, scales: NDArray[np.floating], *, bits: int) -> ScaleCodes:
        """The range that covers the positive scales given, with some room."""
        positive = scales[scales > 0]
        low, high = (float(positive.min()), float(positive.max())) if len(positive) else (1.0, 1.0)
        low, high = low / _MARGIN, high * _MARGIN
        return cls(low, float(np.log(high / low)) / (2**bits - 2), bits)

    @property
    def bytes(self) -> int:
        """Bytes of one code."""
        return self.bits // 8

    def encode(self, scales: NDArray[np.floating]) -> NDArray[np.uint8]:
        """The codes of scales (n,), little-endian: (n, bytes)."""
        positive = scales > 0
        logs = np.log(np.where(positive, scales, self.low) / self.low)
        codes = np.where(positive, 1 + np.clip(np.rint(logs / self.step), 0, 2**self.bits - 2), 0)
        return codes.astype("<u2").view(np.uint8).reshape(len(scales), 2)[:, : self.bytes]

    def decode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The scales of codes (n, bytes): (n,)."""
        numbers = codes.astype(np.int64) @ (256 ** np.arange(self.bytes))
        return np.where(numbers > 0, self.low * np.exp(self.step * (numbers - 1)), 0.0).astype(np.float32)
