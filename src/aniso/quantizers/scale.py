"""Per-point scales in 4, 8 or 16 bits: code 0 is the scale 0.

The others are spaced evenly in the logarithm, but with 4 bits they lie where the scales of the training points do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aniso import _core
from aniso.exact import ExactIndex

__all__ = ["ScaleCodes", "ScaleLevels", "expected_query"]

_MARGIN = 1.2  # how far beyond the scales seen in training the range goes on either side
_LEVELS = 15  # of 4 bits, without the code of zero
_MOVES = 60  # of the levels, in training


@dataclass(frozen=True)
class ScaleCodes:
    """Scale low * exp(step * (code - 1)) for code >= 1, which is within step / 2 of the scale, relatively.

    A scale outside the range of the codes gets the nearest one; zero and below get code 0.

    >>> import numpy as np
    >>> codes = ScaleCodes.fit(np.array([0.5, 1.0, 2.0]), bits=8)
    >>> codes.decode(codes.encode(np.array([0.0, 0.5, 1.0, 2.0]))).round(1).tolist()
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


@dataclass(frozen=True)
class ScaleLevels:
    """15 scales for the codes 1 to 15 of 4 bits; a scale gets the level nearest in the logarithm, 0 and below code 0.

    >>> import numpy as np
    >>> levels = ScaleLevels.fit(np.repeat([0.5, 1.0, 2.0], 100))
    >>> levels.decode(levels.encode(np.array([0.0, 0.5, 1.1, 9.0]))).round(1).tolist()
    [0.0, 0.5, 1.0, 2.0]
    """

    logarithms: tuple[float, ...]  # ascending

    @classmethod
    def fit(cls, scales: NDArray[np.floating]) -> ScaleLevels:
        """Levels of nearly the least squared error in the logarithm (Lloyd and Max), from quantiles on."""
        positive = scales[scales > 0]
        logs = np.log(positive, dtype=np.float64) if len(positive) else np.zeros(1)
        levels = np.quantile(logs, (np.arange(_LEVELS) + 0.5) / _LEVELS)
        for _ in range(_MOVES):
            nearest = _nearest(levels, logs)
            counts = np.bincount(nearest, minlength=_LEVELS)
            means = np.bincount(nearest, logs, minlength=_LEVELS) / np.maximum(counts, 1)
            levels = np.where(counts > 0, means, levels)
        return cls(tuple(levels.tolist()))

    def encode(self, scales: NDArray[np.floating]) -> NDArray[np.uint8]:
        """The codes of scales (n,), a byte each: (n, 1)."""
        positive = scales > 0
        nearest = _nearest(np.array(self.logarithms), np.log(np.where(positive, scales, 1.0)))
        return np.where(positive, nearest + 1, 0).astype(np.uint8)[:, None]

    def decode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The scales of codes (n, 1): (n,)."""
        if len(codes) and codes.max() > _LEVELS:
            raise ValueError(f"codes of scales go up to {codes.max()}; needed: at most {_LEVELS}")
        return np.concatenate([[0.0], np.exp(self.logarithms)]).astype(np.float32)[codes[:, 0]]


def _nearest(levels: NDArray[np.float64], values: NDArray[np.floating]) -> NDArray[np.intp]:
    return np.searchsorted((levels[1:] + levels[:-1]) / 2, values)


def expected_query(
    points: NDArray[np.float32], queries: NDArray[np.float32], *, threads: int = 1
) -> NDArray[np.float32]:
    """The matrix W (d, d) of the regression of a query on its best point: E[q | x is its best answer] ~ x W.

    Learnt from the best point of every query; where a query is itself one of the points, from its second best. A ridge
    pulls W towards a multiple of the identity (the paper's assumption), the more the fewer queries there are.
    """
    d = points.shape[1]
    found = ExactIndex(points, threads=threads).search(queries, 8).ids  # 8: a query may be a point, even several times
    same = (points[found] == queries[:, None]).all(axis=2)
    best = found[np.arange(len(queries)), np.argmin(same, axis=1)]
    x, ones = points[best], np.ones(len(queries))
    moment, cross = np.empty((d, d)), np.empty((d, d))
    _core.moments(x, x, ones, moment, threads=threads)
    _core.moments(queries, x, ones, cross, threads=threads)  # transposed, as solve_spd wants it
    mean = np.trace(moment) / d
    if mean == 0:
        return np.eye(d, dtype=np.float32)
    ridge, plain = mean * (0.1 + d / len(queries)), np.trace(cross) / np.trace(moment)
    moment[np.diag_indices(d)] += ridge
    cross[np.diag_indices(d)] += ridge * plain
    _core.solve_spd(moment, cross, threads=threads)
    return np.ascontiguousarray(cross.T, np.float32)
