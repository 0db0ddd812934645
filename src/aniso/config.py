"""The settings of an index: what they mean, their limits, and the defaults that follow from the data."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from aniso.errors import check_count

__all__ = ["METRICS", "RESCORES", "SMALL", "Config", "check_metric", "config_of"]

METRICS = ("dot", "cosine", "l2")
RESCORES = ("float32", "float16", "int8", "none")
SMALL = 1000  # points up to which one partition holds all, and every score is computed


@dataclass(frozen=True)
class Config:
    """How an index is built. None means: chosen from the number of points and dimensions by `complete`.

    metric       "dot", "cosine" or "l2"
    partitions   how many partitions the points are divided into
    spill        the strength (lambda) of a second partition for points (SOAR), or 0 for none
    spill_share  about the share of the points that get a second partition: those for which it costs least beside the
                 first, as many as fill blocks
    subspaces    4-bit codes per point; by default one for every 2 dimensions
    threshold    T of the score-aware loss, relative to the norm of a point: scores below T |x| do not count
    rescore      the copy of the points that final scores are computed from: "float32" gives exact scores, "float16" and
                 "int8" are smaller, "none" keeps only the codes
    sample       most points that training looks at
    iterations   of k-means, for the partitions
    rounds       of the joint codebook update
    seed         of everything random
    centroid_threshold
                 T of the score-aware loss that the centroids of partitions minimise, 0 for the means of their points.
                 0.1 finds a little more by inner product where norms vary, and less where they do not; not for l2
    """

    metric: str = "dot"
    partitions: int | None = None
    spill: float = 1.0
    subspaces: int | None = None
    threshold: float = 0.2
    rescore: str = "float32"
    sample: int | None = None
    iterations: int = 10
    rounds: int = 3
    seed: int = 0
    centroid_threshold: float = 0.0
    spill_share: float = 0.44

    def __post_init__(self) -> None:
        """Check every setting, and write it in one way: 0 and 0.0, or a NumPy number, make the same file."""
        check_metric(self.metric)
        if self.rescore not in RESCORES:
            raise ValueError(f"rescore is {self.rescore!r}; needed: one of {', '.join(RESCORES)}")
        for name in ("partitions", "subspaces", "sample"):
            if getattr(self, name) is not None:
                self._set(name, check_count(getattr(self, name), name))
        self._set("iterations", check_count(self.iterations, "iterations", least=0))
        self._set("rounds", check_count(self.rounds, "rounds", least=0))
        self._set("seed", check_count(self.seed, "seed", least=0, most=(1 << 63) - 1))  # what a file can hold
        for name in ("spill", "spill_share", "threshold", "centroid_threshold"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
                raise TypeError(f"{name} is {value!r}; needed: a number")
            self._set(name, float(value) + 0.0)  # not -0.0
        if not 0 <= self.spill <= 100:
            raise ValueError(f"spill is {self.spill}; needed: 0 (none) to 100, usually about 1")
        if not 0 < self.spill_share <= 1:
            raise ValueError(f"spill_share is {self.spill_share}; needed: above 0, at most 1 (spill=0 for none)")
        for name in ("threshold", "centroid_threshold"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; needed: 0 (the plain loss) to below 1")
        if self.centroid_threshold and self.metric == "l2":
            raise ValueError(f"centroid_threshold is {self.centroid_threshold}; needed: 0 for l2, without a direction")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # only while it is made

    def default_partitions(self) -> int:
        """How many partitions a search looks at unless it is told: a few, and one in 80."""
        return 8 + (self.partitions or 1) // 80

    def default_candidates(self, k: int) -> int:
        """How many candidates a search for k points rescores unless it is told."""
        return 3 * k + 20

    def complete(self, n: int, d: int, available: int) -> Config:
        """The same with every None replaced by what suits n points of d dimensions, with so many to train on."""
        # Small partitions, smaller where memory decides (docs/decisions/0013-how-many-partitions.md), but with spill
        # some 3 blocks of 32 points each, or blocks are mostly empty.
        wanted = self.partitions or (1 if n <= SMALL else round(min(0.355 * n**0.7, n / 64)))
        sample = min(self.sample or max(100_000, 160 * wanted), available)
        partitions = min(wanted, sample)
        return replace(
            self,
            partitions=partitions,
            spill=self.spill if partitions > 1 else 0.0,
            subspaces=min(self.subspaces or (d + 1) // 2, d),
            sample=sample,
        )


def config_of(**settings: Any) -> Config:
    """A Config of these settings; TypeError for a name that is none of them, with those that there are."""
    names = [field.name for field in fields(Config)]
    for name in settings:
        if name not in names:
            raise TypeError(f"there is no setting {name!r}; needed: one of {', '.join(names)}")
    return Config(**settings)


def check_metric(metric: Any) -> str:
    """One of METRICS."""
    if metric not in METRICS:
        raise ValueError(f"metric is {metric!r}; needed: one of {', '.join(METRICS)}")
    return str(metric)
