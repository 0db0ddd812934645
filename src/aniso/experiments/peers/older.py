"""Libraries that ann-benchmarks had when the paper was written, and that PyPI still has: Annoy and NMSLIB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from aniso.experiments.peers.library import F32, Knobs, Library, Series, Settings, library, rising

__all__ = ["Annoy", "NmslibHnsw", "NmslibSwGraph"]


class Annoy(Library):
    """Trees of random splits."""

    name = "Annoy"
    package = "annoy"
    module = "annoy"
    KINDS: ClassVar = {"cosine": "angular", "l2": "euclidean", "dot": "dot"}

    @classmethod
    def builds(cls, n: int, d: int, metric: str) -> list[Settings]:
        return [{"trees": 100}, {"trees": 200}]

    @classmethod
    def series(cls, settings: Settings, n: int) -> Iterator[Series]:
        yield [{"search_k": count} for count in rising(100, 100_000, 1.5)]

    @classmethod
    def tiny(cls) -> tuple[Settings, Knobs]:
        return {"trees": 1}, {"search_k": 1}

    @classmethod
    def build(cls, points: F32, metric: str, settings: Settings, threads: int, scratch: Path) -> Annoy:
        index = library(cls.module).AnnoyIndex(points.shape[1], cls.KINDS[metric])
        index.set_seed(1)
        for number, point in enumerate(points):
            index.add_item(number, point)
        index.build(settings["trees"], n_jobs=threads)
        return cls(index, metric)

    def save(self, folder: Path) -> None:
        self.index.save(str(folder / "index"))

    @classmethod
    def load(cls, folder: Path, metric: str, settings: Settings, d: int) -> Annoy:
        index = library(cls.module).AnnoyIndex(d, cls.KINDS[metric])
        index.load(str(folder / "index"))
        return cls(index, metric)

    def one(self, k: int, knobs: Knobs) -> Callable[[F32], Any]:
        return partial(self.index.get_nns_by_vector, n=k, **knobs)

    def batch(self, k: int, knobs: Knobs, threads: int) -> Callable[[F32], Any]:
        """One query after the other: it has no other call."""
        search = self.one(k, knobs)
        return lambda queries: [search(query) for query in queries]

    def ids_of_one(self, answer: Any) -> NDArray[Any]:
        return np.asarray(answer)

    def ids_of_batch(self, answer: Any, k: int) -> NDArray[Any]:
        return np.array([[*ids, *[-1] * (k - len(ids))] for ids in answer])


class NmslibHnsw(Library):
    """NMSLIB's own HNSW."""

    name = "NMSLIB HNSW"
    package = "nmslib"
    module = "nmslib"
    METHOD: ClassVar = "hnsw"
    SPACES: ClassVar = {"cosine": "cosinesimil", "l2": "l2", "dot": "negdotprod"}

    @classmethod
    def builds(cls, n: int, d: int, metric: str) -> list[Settings]:
        return [{"M": 16, "efConstruction": 200}]

    @classmethod
    def series(cls, settings: Settings, n: int) -> Iterator[Series]:
        yield [{"efSearch": ef} for ef in rising(10, 1200, 1.35)]

    @classmethod
    def tiny(cls) -> tuple[Settings, Knobs]:
        return {"M": 4, "efConstruction": 20}, {"efSearch": 1}

    @classmethod
    def empty(cls, metric: str) -> Any:
        """An index without points."""
        return library(cls.module).init(method=cls.METHOD, space=cls.SPACES[metric])

    @classmethod
    def build(cls, points: F32, metric: str, settings: Settings, threads: int, scratch: Path) -> NmslibHnsw:
        index = cls.empty(metric)
        index.addDataPointBatch(points)
        index.createIndex({**settings, "indexThreadQty": threads})
        return cls(index, metric)

    def save(self, folder: Path) -> None:
        self.index.saveIndex(str(folder / "index"), save_data=True)

    @classmethod
    def load(cls, folder: Path, metric: str, settings: Settings, d: int) -> NmslibHnsw:
        index = cls.empty(metric)
        index.loadIndex(str(folder / "index"), load_data=True)
        return cls(index, metric)

    def one(self, k: int, knobs: Knobs) -> Callable[[F32], Any]:
        self.index.setQueryTimeParams(knobs)
        return partial(self.index.knnQuery, k=k)

    def batch(self, k: int, knobs: Knobs, threads: int) -> Callable[[F32], Any]:
        self.index.setQueryTimeParams(knobs)
        return partial(self.index.knnQueryBatch, k=k, num_threads=threads)

    def ids_of_batch(self, answer: Any, k: int) -> NDArray[Any]:
        return np.array([[*ids, *[-1] * (k - len(ids))] for ids, _ in answer])


class NmslibSwGraph(NmslibHnsw):
    """NMSLIB's graph without levels."""

    name = "NMSLIB SW-graph"
    METHOD = "sw-graph"

    @classmethod
    def builds(cls, n: int, d: int, metric: str) -> list[Settings]:
        return [{"NN": 15, "efConstruction": 200}]

    @classmethod
    def tiny(cls) -> tuple[Settings, Knobs]:
        return {"NN": 4, "efConstruction": 20}, {"efSearch": 1}
