"""aniso for the ann-benchmarks project: this file, config.yml and Dockerfile make its folder algorithms/aniso.

Its runner calls fit once, then set_query_arguments for every setting of config.yml, and query for every query, or
batch_query and get_batch_results for all of them together. docs/ann-benchmarks.md says how to run it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from ann_benchmarks.algorithms.base.module import BaseANN
from numpy.typing import NDArray

import aniso

_METRICS = {"angular": "cosine", "euclidean": "l2", "ip": "dot"}


class Aniso(BaseANN):  # type: ignore[misc]
    """Searches with partitions and candidates as they are given; settings are those of aniso.Config."""

    def __init__(self, metric: str, settings: dict[str, Any]) -> None:
        if metric not in _METRICS:
            raise ValueError(f"metric is {metric!r}; needed: one of {', '.join(_METRICS)}")
        self._config = aniso.Config(metric=_METRICS[metric], **settings)
        self._settings = settings
        self._knobs: dict[str, Any] = {}
        self.name = self._named()

    def _named(self) -> str:
        given = {**self._settings, **self._knobs}
        return f"aniso({', '.join(f'{name}={value}' for name, value in given.items())})"

    def _build(self, X: NDArray[np.float32], recall: float | None) -> None:
        self._index = aniso.build(X, metric=self._config.metric, recall=recall, **self._settings)
        self._index.search(X[0], 1)  # the first search arranges the partitions: part of building

    def _set(self, **knobs: Any) -> None:
        self._knobs = knobs
        self.name = self._named()

    def fit(self, X: NDArray[np.float32]) -> None:
        """Build the index."""
        self._build(X, recall=None)

    def set_query_arguments(self, partitions: int, candidates: int) -> None:
        """How many partitions a query looks at, and how many candidates it rescores."""
        self._set(partitions=partitions, candidates=candidates)

    def query(self, v: NDArray[np.float32], n: int) -> NDArray[np.int64]:
        """The numbers of the n points nearest to a vector."""
        return self._index.search(v, n, **self._knobs).ids

    def batch_query(self, X: NDArray[np.float32], n: int) -> None:
        """Search for all queries together, on all cores."""
        self._found = self._index.search(X, n, **self._knobs).ids

    def get_batch_results(self) -> NDArray[np.int64]:
        """What batch_query found."""
        return self._found

    def get_additional(self) -> dict[str, Any]:
        """What is stored beside the results of a run."""
        info = self._index.info()
        return {"index_bytes": info["bytes"], "index_partitions": info["partitions"]}

    def done(self) -> None:
        """Let go of the index."""
        self.__dict__.pop("_index", None)


class AnisoTuned(Aniso):
    """Searches with the settings that aniso itself measures for a recall."""

    def fit(self, X: NDArray[np.float32]) -> None:
        """Build the index and measure its settings."""
        self._build(X, recall=0.95)

    def set_query_arguments(self, recall: float) -> None:  # type: ignore[override]
        """The recall to aim at."""
        self._set(recall=recall)
