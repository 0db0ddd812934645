"""Libraries that walk a graph of the points."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from aniso.experiments.peers.library import F32, Knobs, Library, Series, Settings, library, rising

__all__ = ["Hnswlib", "Ngt", "Svs", "SymphonyQG", "Usearch"]


class Hnswlib(Library):
    """HNSW by its inventors."""

    name = "hnswlib"
    package = "hnswlib"
    module = "hnswlib"
    SPACES: ClassVar = {"cosine": "cosine", "l2": "l2", "dot": "ip"}

    @classmethod
    def builds(cls, n: int, d: int, metric: str) -> list[Settings]:
        return [{"M": 16, "ef_construction": 300}, {"M": 32, "ef_construction": 300}]

    @classmethod
    def series(cls, settings: Settings, n: int) -> Iterator[Series]:
        yield [{"ef": ef} for ef in rising(10, 1200, 1.35)]

    @classmethod
    def tiny(cls) -> tuple[Settings, Knobs]:
        return {"M": 4, "ef_construction": 20}, {"ef": 1}

    @classmethod
    def build(cls, points: F32, metric: str, settings: Settings, threads: int, scratch: Path) -> Hnswlib:
        index = library(cls.module).Index(space=cls.SPACES[metric], dim=points.shape[1])
        index.init_index(max_elements=len(points), random_seed=0, **settings)
        index.add_items(points, num_threads=threads)
        return cls(index, metric)

    def save(self, folder: Path) -> None:
        self.index.save_index(str(folder / "index"))

    @classmethod
    def load(cls, folder: Path, metric: str, settings: Settings, d: int) -> Hnswlib:
        index = library(cls.module).Index(space=cls.SPACES[metric], dim=d)
        index.load_index(str(folder / "index"))
        return cls(index, metric)

    def one(self, k: int, knobs: Knobs) -> Callable[[F32], Any]:
        return self.batch(k, knobs, 1)

    def batch(self, k: int, knobs: Knobs, threads: int) -> Callable[[F32], Any]:
        self.index.set_ef(max(knobs["ef"], k))
        return partial(self.index.knn_query, k=k, num_threads=threads)


class Usearch(Library):
    """HNSW in one header."""

    name = "usearch"
    package = "usearch"
    module = "usearch.index"
    KINDS: ClassVar = {"cosine": "cos", "l2": "l2sq", "dot": "ip"}

    @classmethod
    def builds(cls, n: int, d: int, metric: str) -> list[Settings]:
        return [
            {"connectivity": 16, "expansion_add": 200, "dtype": "f32"},
            {"connectivity": 32, "expansion_add": 200, "dtype": "f32"},
            {"connectivity": 16, "expansion_add": 200, "dtype": "bf16"},
        ]

    @classmethod
    def series(cls, settings: Settings, n: int) -> Iterator[Series]:
        yield [{"expansion_search": ef} for ef in rising(10, 1200, 1.35)]

    @classmethod
    def tiny(cls) -> tuple[Settings, Knobs]:
        return {"connectivity": 4, "expansion_add": 20, "dtype": "f32"}, {"expansion_search": 1}

    @classmethod
    def build(cls, points: F32, metric: str, settings: Settings, threads: int, scratch: Path) -> Usearch:
        index = library(cls.module).Index(ndim=points.shape[1], metric=cls.KINDS[metric], **settings)
        index.add(np.arange(len(points), dtype=np.uint64), points, threads=threads)
        return cls(index, metric)

    def save(self, folder: Path) -> None:
        self.index.save(str(folder / "index"))

    @classmethod
    def load(cls, folder: Path, metric: str, settings: Settings, d: int) -> Usearch:
        index = library(cls.module).Index(ndim=d, metric=cls.KINDS[metric], **settings)
        index.load(str(folder / "index"))
        return cls(index, metric)

    def one(self, k: int, knobs: Knobs) -> Callable[[F32], Any]:
        return self.batch(k, knobs, 1)

    def batch(self, k: int, knobs: Knobs, threads: int) -> Callable[[F32], Any]:
        self.index.expansion_search = max(knobs["expansion_search"], k)
        return partial(self.index.search, count=k, threads=threads)

    def ids_of_one(self, answer: Any) -> NDArray[Any]:
        return np.asarray(answer.keys).astype(np.int64)

    def ids_of_batch(self, answer: Any, k: int) -> NDArray[Any]:
        keys = np.asarray(answer.keys).astype(np.int64)
        keys[np.arange(keys.shape[1]) >= np.asarray(answer.counts)[:, None]] = -1  # padding
        return keys


class Ngt(Library):
    """NGT: a graph of near neighbours (ANNG), refined (ONNG)."""

    name = "NGT"
    package = "ngt"
    module = "ngtpy"
    KINDS: ClassVar = {"cosine": "Normalized Cosine", "l2": "L2"}

    @classmethod
    def unfit(cls, metric: str) -> str:
        return "" if metric in cls.KINDS else "ngtpy offers no inner product"

    @classmethod
    def builds(cls, n: int, d: int, metric: str) -> list[Settings]:
        # onng: the graph refined to that many edges out of and into each point, as NGT recommends.
        return [{"edges": 40, "onng": [10, 60]}, {"edges": 40, "onng": None}]

    @classmethod
    def series(cls, settings: Settings, n: int) -> Iterator[Series]:
        for edges in (-2, 0, 20, 40):  # -2: as many as NGT finds right, 0: all
            yield [{"epsilon": 0.02 * step - 0.08, "edge_size": edges} for step in range(20)]

    @classmethod
    def tiny(cls) -> tuple[Settings, Knobs]:
        return {"edges": 10, "onng": None}, {"epsilon": -0.9, "edge_size": 2}

    @classmethod
    def build(cls, points: F32, metric: str, settings: Settings, threads: int, scratch: Path) -> Ngt:
        ngtpy = library(cls.module)
        first, second = str(scratch / "anng"), str(scratch / "onng")
        ngtpy.create(
            first,
            points.shape[1],
            edge_size_for_creation=settings["edges"],
            edge_size_for_search=0,
            distance_type=cls.KINDS[metric],
        )
        index = ngtpy.Index(first, log_disabled=True)
        index.batch_insert(points, num_threads=threads)
        index.save()
        index.close()
        if settings["onng"]:
            optimizer = ngtpy.Optimizer(log_disabled=True)
            out, into = settings["onng"]
            optimizer.set(num_of_outgoings=out, num_of_incomings=into)
            # The search for parameters takes minutes even on 20,000 points; the grid of knobs does its work.
            optimizer.set_processing_modes(True, False, False, False)
            optimizer.execute(first, second)
        made = Path(second if settings["onng"] else first)
        built = cls(ngtpy.Index(str(made), read_only=True, log_disabled=True), metric)
        built.made = made
        return built

    made: Path

    def save(self, folder: Path) -> None:
        shutil.copytree(self.made, folder / "index")

    @classmethod
    def load(cls, folder: Path, metric: str, settings: Settings, d: int) -> Ngt:
        return cls(library(cls.module).Index(str(folder / "index"), read_only=True, log_disabled=True), metric)

    def one(self, k: int, knobs: Knobs) -> Callable[[F32], Any]:
        return partial(self.index.search, size=k, with_distance=False, **knobs)

    def batch(self, k: int, knobs: Knobs, threads: int) -> Callable[[F32], Any]:
        results = library(self.module).BatchResults()
        self.index.set(num_of_search_objects=k, **knobs)

        def search(queries: F32) -> Any:
            self.index.batch_search(queries, results, k, with_distance=False)  # threads: OMP_NUM_THREADS
            return results

        return search

    def ids_of_one(self, answer: Any) -> NDArray[Any]:
        return np.asarray(answer)

    def ids_of_batch(self, answer: Any, k: int) -> NDArray[Any]:
        return np.asarray(answer.get_ids()).reshape(-1, k)


class SymphonyQG(Library):
    """A graph whose edges are scored by RaBitQ codes."""

    name = "SymphonyQG"
    package = "rabitqlib"
    module = "rabitqlib"
    unit = True
    row = True

    @classmethod
    def builds(cls, n: int, d: int, metric: str) -> list[Settings]:
        kinds = ("l2", "ip") if metric == "cosine" else ("l2",) if metric == "l2" else ("ip",)
        return [
            {"max_degree": degree, "quantization_bits": 0, "ef_construction": 400, "init": "pipnn", "metric": kind}
            for degree in (32, 64)
            for kind in kinds
        ]

    @classmethod
    def series(cls, settings: Settings, n: int) -> Iterator[Series]:
        yield [{"ef": ef} for ef in rising(10, 1500, 1.3)]

    @classmethod
    def tiny(cls) -> tuple[Settings, Knobs]:
        return cls.builds(256, 2, "l2")[0], {"ef": 1}

    @classmethod
    def build(cls, points: F32, metric: str, settings: Settings, threads: int, scratch: Path) -> SymphonyQG:
        index = library(cls.module).SymqgIndex(
            points.shape[1], settings["max_degree"], settings["metric"], settings["quantization_bits"]
        )
        index.build(points, settings["ef_construction"], num_threads=threads, init=settings["init"])
        return cls(index, metric)

    def save(self, folder: Path) -> None:
        self.index.save(str(folder / "index"))

    @classmethod
    def load(cls, folder: Path, metric: str, settings: Settings, d: int) -> SymphonyQG:
        return cls(library(cls.module).SymqgIndex.load(str(folder / "index")), metric)

    def one(self, k: int, knobs: Knobs) -> Callable[[F32], Any]:
        return partial(self.index.search, k=k, ef=max(knobs["ef"], k), num_threads=1)

    def batch(self, k: int, knobs: Knobs, threads: int) -> Callable[[F32], Any]:
        return partial(self.index.search_batch, k=k, ef=max(knobs["ef"], k), num_threads=threads)


class Svs(Library):
    """Vamana by Intel's library for scalable vector search."""

    name = "SVS Vamana"
    package = "scalable-vs"
    module = "svs"
    unit = True

    @classmethod
    def builds(cls, n: int, d: int, metric: str) -> list[Settings]:
        return [{"degree": degree, "window": 200, "dtype": dtype} for degree in (32, 64) for dtype in ("f32", "f16")]

    @classmethod
    def series(cls, settings: Settings, n: int) -> Iterator[Series]:
        yield [{"window": window} for window in rising(10, 1200, 1.3)]

    @classmethod
    def tiny(cls) -> tuple[Settings, Knobs]:
        return {"degree": 4, "window": 20, "dtype": "f32"}, {"window": 1}

    @classmethod
    def distance(cls, metric: str) -> Any:
        kinds = library(cls.module).DistanceType
        return kinds.L2 if metric == "l2" else kinds.MIP

    @classmethod
    def build(cls, points: F32, metric: str, settings: Settings, threads: int, scratch: Path) -> Svs:
        svs = library(cls.module)
        parameters = svs.VamanaBuildParameters(
            graph_max_degree=settings["degree"], window_size=settings["window"], alpha=1.2 if metric == "l2" else 0.95
        )
        data = points.astype(np.float16) if settings["dtype"] == "f16" else points
        return cls(svs.Vamana.build(parameters, data, cls.distance(metric), num_threads=threads), metric)

    def save(self, folder: Path) -> None:
        self.index.save(*(str(folder / part) for part in ("config", "graph", "data")))

    @classmethod
    def load(cls, folder: Path, metric: str, settings: Settings, d: int) -> Svs:
        svs = library(cls.module)
        kind = svs.DataType.float16 if settings["dtype"] == "f16" else svs.DataType.float32
        index = svs.Vamana(
            str(folder / "config"),
            svs.GraphLoader(str(folder / "graph")),
            svs.VectorDataLoader(str(folder / "data"), kind),
            cls.distance(metric),
        )
        return cls(index, metric)

    def one(self, k: int, knobs: Knobs) -> Callable[[F32], Any]:
        return self.batch(k, knobs, 1)

    def batch(self, k: int, knobs: Knobs, threads: int) -> Callable[[F32], Any]:
        if self.index.num_threads != threads:
            self.index.num_threads = threads
        self.index.search_window_size = max(knobs["window"], k)
        return partial(self.index.search, n_neighbors=k)

    def rest(self) -> None:
        if self.index.num_threads != 1:
            self.index.num_threads = 1
