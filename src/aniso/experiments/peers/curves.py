"""Curves of recall and speed: recall, the front of a set of measurements, and the speed at a recall."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aniso.experiments.report import Row

__all__ = ["front", "recall", "speed_at"]


def recall(found: Iterable[NDArray[Any]], truth: NDArray[np.int64], n: int) -> float:
    """The share of the k true best points of each query (queries, k) among the first k ids found.

    Ids outside of 0 to n - 1 count for nothing, and repeated ones once.
    """
    hits, k = 0, truth.shape[1]
    for ids, best in zip(found, truth, strict=True):
        valid = {int(i) for i in ids[:k] if 0 <= i < n}
        hits += len(valid.intersection(best.tolist()))
    return hits / truth.size


def front(rows: Sequence[Row], speed: str = "qps") -> list[Row]:
    """The rows that no other beats in both recall and speed, by rising recall."""
    kept: list[Row] = []
    for row in sorted(rows, key=lambda row: (-row["recall"], -row[speed])):
        if not kept or row[speed] > kept[-1][speed]:
            kept.append(row)
    return kept[::-1]


def speed_at(rows: Sequence[Row], target: float, speed: str = "qps") -> tuple[float, str] | None:
    """Queries per second at a recall, with ">= " where the front starts above it; None where it is not reached.

    Between neighbours of the front the logarithm of the speed is linear in recall.
    """
    line = front(rows, speed)
    if not line or line[-1]["recall"] < target:
        return None
    if line[0]["recall"] >= target:
        return float(line[0][speed]), ">= "
    low, high = next((a, b) for a, b in itertools.pairwise(line) if a["recall"] < target <= b["recall"])
    share = (target - low["recall"]) / (high["recall"] - low["recall"])
    return float(np.exp((1 - share) * np.log(low[speed]) + share * np.log(high[speed]))), ""
