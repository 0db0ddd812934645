"""What the experiments share: how large a run is, the points and queries it takes, and recall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aniso import datasets
from aniso.exact import ExactIndex, ranks, relative_error
from aniso.experiments.report import Row
from aniso.progress import Progress
from aniso.quantizers import AdditiveQuantizer, ProductQuantizer, Quantizer, QuipsQuantizer

__all__ = ["FULL", "QUICK", "Flat", "Size", "decoded_by", "flat", "recalls", "within"]

F32 = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Size:
    """How much of a data set is used, and how long training takes."""

    quick: bool
    points: int
    queries: int
    sample: int  # points used in training a quantizer

    def pick(self, full: int, quick: int) -> int:
        """A number for the full run, or that for a quick one."""
        return quick if self.quick else full


FULL = Size(quick=False, points=1 << 40, queries=2000, sample=50_000)
QUICK = Size(quick=True, points=1500, queries=60, sample=1500)


@dataclass(frozen=True)
class Flat:
    """Points and queries to score exhaustively, and the true best points of every query, best first."""

    points: F32
    queries: F32
    truth: Ids  # (queries, depth)


def flat(
    name: str, size: Size, *, unit: bool = False, depth: int = 1, queries: int | None = None, spare: int = 0
) -> tuple[Flat, F32]:
    """A data set for maximum inner product search, and `spare` more of its queries that training may see.

    `queries` is how many are measured with, size.queries unless given. Both are chosen at random, and neither contains
    any of the other. With unit=True points and queries are divided by their norms. The truth is recomputed unless the
    file has it for exactly these points.
    """
    data = datasets.load(name)
    points, asked = data.unit() if unit else (data.points, data.queries)
    rng = np.random.default_rng(0)
    count, order = queries or size.queries, rng.permutation(len(asked))
    measured, others = np.sort(order[:count]), np.sort(order[count : count + spare])
    whole = len(points) <= size.points
    if not whole:
        points = points[np.sort(rng.choice(len(points), size.points, replace=False))]
    if whole and data.metric == ("cosine" if unit else "dot"):
        truth = data.neighbors[measured, :depth]
    else:
        truth = ExactIndex(points).search(asked[measured], depth).ids
    return Flat(points, asked[measured], truth), asked[others]


def decoded_by(quantizer: Quantizer, points: F32, progress: Progress, *, queries: F32 | None = None) -> F32:
    """Points as they come back from a quantizer trained on them, and on queries where it can use them."""
    if queries is None:
        quantizer.fit(points, progress=progress)  # type: ignore[call-arg]
    elif isinstance(quantizer, (AdditiveQuantizer, ProductQuantizer, QuipsQuantizer)):
        quantizer.fit(points, queries=queries, progress=progress)
    else:
        raise TypeError(f"{type(quantizer).__name__} cannot be trained with queries")
    return quantizer.decode(quantizer.encode(points))


def recalls(data: Flat, decoded: F32, at: Sequence[int] = (1, 10, 100)) -> Row:
    """1@N for every N of `at`, the relative error of the best score, and the mean squared error relative to |x|^2."""
    best = data.truth[:, 0]
    rank = ranks(data.queries, decoded, best)
    error = data.points - decoded
    return {
        **{f"1@{n}": float(np.mean(rank < n)) for n in at},
        "relative error": relative_error(data.queries, data.points, decoded, best),
        "squared error": float(np.sum(error * error, dtype=np.float64) / np.sum(data.points**2, dtype=np.float64)),
    }


def within(progress: Progress, name: str) -> Progress:
    """The same progress, with a name before every stage."""
    return lambda stage, done, total: progress(f"{name}: {stage}", done, total)
