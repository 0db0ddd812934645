"""aniso, ScaNN, and FAISS with both of its indexes."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aniso.experiments.peers.library import F32, Knobs, Library, Series, Settings, library, rising, scaled

__all__ = ["Aniso", "FaissFastScan", "FaissHnsw", "Scann"]


class Aniso(Library):
    """This library."""

    name = "aniso"
    package = "aniso"
    module = "aniso.index"

    @classmethod
    def version(cls) -> str:
        """A digest of the code, so that no index of older code is taken for this one's."""
        digest = hashlib.sha256()
        folder = Path(str(library("aniso").__file__)).parent
        for path in sorted([*folder.rglob("*.py"), *folder.rglob("_core*.so")]):
            digest.update(path.read_bytes())
        return digest.hexdigest()[:10]

    @classmethod
    def builds(cls, n: int, d: int, metric: str) -> list[Settings]:
        # Neighbours that lie close need no fine codes: fewer bytes to scan, more candidates to rescore.
        coarse: list[tuple[Settings, list[int]]] = [
            ({"rescore": "float16", "spill": 1, "subspaces": 2 * d // 7}, [2100]),
            ({"rescore": "float16", "spill": 1, "subspaces": d // 3}, [2100, 2800]),
            ({"rescore": "int8", "spill": 1, "subspaces": d // 3}, [1500, 2100]),
        ]
        # Inner products whose norms vary want more partitions, neighbours that lie close fewer.
        fine = {"cosine": [4000, 2800, 2000], "dot": [4000, 2800, 6000], "l2": [2800]}[metric]
        kinds: list[tuple[Settings, list[int]]] = [
            *(coarse if metric == "l2" else []),
            ({"rescore": "float16", "spill": 1}, fine),
            ({"rescore": "int8", "spill": 1}, [2800]),
            ({"rescore": "float32", "spill": 1}, [2800]),
            ({"rescore": "float16", "spill": 0}, [2800]),
        ]
        return [{"partitions": partitions, **kind} for kind, counts in kinds for partitions in scaled(counts, n)]

    @classmethod
    def series(cls, settings: Settings, n: int) -> Iterator[Series]:
        for candidates in (30, 45, 60, 80, 110, 160, 220, 300, 500, 850):
            counts = rising(4, settings["partitions"], 1.3)
            yield [{"partitions": count, "candidates": candidates} for count in counts]

    @classmethod
    def tiny(cls) -> tuple[Settings, Knobs]:
        return {"partitions": 2, "spill": 0, "rescore": "float32"}, {"partitions": 1, "candidates": 1}

    @classmethod
    def build(cls, points: F32, metric: str, settings: Settings, threads: int, scratch: Path) -> Aniso:
        index = library(cls.module).build(points, metric=metric, threads=threads, **settings)
        index.search(points[0], 1, partitions=1, candidates=1)  # the first search arranges the partitions: part of it
        return cls(index, metric)

    def save(self, folder: Path) -> None:
        self.index.save(folder / "index.aniso")

    @classmethod
    def load(cls, folder: Path, metric: str, settings: Settings, d: int) -> Aniso:
        index = library("aniso").open(folder / "index.aniso", mapped=False)  # the others are in memory too
        index.search(np.ones(d, np.float32), 1, partitions=1, candidates=1)  # the first search looks at the arrays
        return cls(index, metric)

    def one(self, k: int, knobs: Knobs) -> Callable[[F32], Any]:
        return partial(self.index.search, k=k, **knobs)

    def batch(self, k: int, knobs: Knobs, threads: int) -> Callable[[F32], Any]:
        return partial(self.index.search, k=k, threads=threads, **knobs)


class Scann(Library):
    """The paper's own implementation, as it is today."""

    name = "ScaNN"
    package = "scann"
    module = "scann"
    unit = True

    @classmethod
    def builds(cls, n: int, d: int, metric: str) -> list[Settings]:
        # SOAR is for inner products: ScaNN refuses it for squared_l2.
        return [
            {"leaves": leaves, "soar": soar, "reorder": reorder}
            for reorder in ("float32", "bfloat16")
            for soar in ((False,) if metric == "l2" else (True, False))
            for leaves in scaled([1000, 2000, 600, 1500], n)
        ]

    @classmethod
    def series(cls, settings: Settings, n: int) -> Iterator[Series]:
        for reorder in (20, 30, 45, 70, 100, 150, 300, 600):
            leaves = rising(4, settings["leaves"], 1.3)
            yield [{"leaves_to_search": count, "pre_reorder_num_neighbors": reorder} for count in leaves]

    @classmethod
    def tiny(cls) -> tuple[Settings, Knobs]:
        settings = {"leaves": 2, "soar": False, "reorder": "float32"}
        return settings, {"leaves_to_search": 1, "pre_reorder_num_neighbors": 1}

    @classmethod
    def build(cls, points: F32, metric: str, settings: Settings, threads: int, scratch: Path) -> Scann:
        scann = library(cls.module)
        soar = {"soar_lambda": 1.5, "overretrieve_factor": 2.0} if settings["soar"] else {}
        builder = scann.scann_ops_pybind.builder(points, 10, "squared_l2" if metric == "l2" else "dot_product")
        builder = builder.set_n_training_threads(threads).tree(
            num_leaves=settings["leaves"],
            num_leaves_to_search=max(1, settings["leaves"] // 20),
            training_sample_size=min(len(points), settings.get("sample", 250_000)),
            spherical=metric == "cosine",
            quantize_centroids=True,
            **soar,
        )
        threshold = {} if metric == "l2" else {"anisotropic_quantization_threshold": 0.2}
        builder = builder.score_ah(2, **threshold)
        kind = getattr(scann.ReorderType, settings["reorder"].upper())
        return cls(builder.reorder(100, quantize=kind).build(), metric)

    def save(self, folder: Path) -> None:
        self.index.serialize(str(folder))

    @classmethod
    def load(cls, folder: Path, metric: str, settings: Settings, d: int) -> Scann:
        return cls(library(cls.module).scann_ops_pybind.load_searcher(str(folder)), metric)

    def one(self, k: int, knobs: Knobs) -> Callable[[F32], Any]:
        return partial(self.index.search, final_num_neighbors=k, **knobs)

    def batch(self, k: int, knobs: Knobs, threads: int) -> Callable[[F32], Any]:
        if threads == 1:
            return partial(self.index.search_batched, final_num_neighbors=k, **knobs)
        self.index.set_num_threads(threads)
        return partial(self.index.search_batched_parallel, final_num_neighbors=k, **knobs)


class Faiss(Library):
    """The parts of FAISS that its two entries share."""

    package = "faiss-cpu"
    module = "faiss"
    unit = True
    row = True

    @classmethod
    def factory(cls, d: int, description: str, metric: str) -> Any:
        faiss = library(cls.module)
        return faiss.index_factory(d, description, faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT)

    def save(self, folder: Path) -> None:
        library(self.module).write_index(self.index, str(folder / "index"))

    @classmethod
    def load(cls, folder: Path, metric: str, settings: Settings, d: int) -> Library:
        return cls(library(cls.module).read_index(str(folder / "index")), metric)

    @abstractmethod
    def set(self, knobs: Knobs) -> None: ...

    def one(self, k: int, knobs: Knobs) -> Callable[[F32], Any]:
        return self.batch(k, knobs, 1)

    def batch(self, k: int, knobs: Knobs, threads: int) -> Callable[[F32], Any]:
        library(self.module).omp_set_num_threads(threads)
        self.set(knobs)
        return partial(self.index.search, k=k)

    def ids_of_one(self, answer: Any) -> NDArray[Any]:
        return np.asarray(answer[1][0])

    def ids_of_batch(self, answer: Any, k: int) -> NDArray[Any]:
        return np.asarray(answer[1])


class FaissFastScan(Faiss):
    """Partitions, product codes of 4 bits, and rescoring."""

    name = "FAISS IVF-PQ fastscan + refine"

    @classmethod
    def builds(cls, n: int, d: int, metric: str) -> list[Settings]:
        m = d // 2 if d % 2 == 0 else d
        lists = scaled([2048, 1024, 4096], n)
        return [{"factory": f"IVF{count},PQ{m}x4{fs},RFlat"} for fs in ("fs", "fsr") for count in lists]

    @classmethod
    def series(cls, settings: Settings, n: int) -> Iterator[Series]:
        lists = int(settings["factory"].split(",")[0][3:])
        for factor in (2, 4, 6, 10, 16, 30, 60):
            yield [{"nprobe": count, "k_factor": factor} for count in rising(4, lists, 1.3)]

    @classmethod
    def tiny(cls) -> tuple[Settings, Knobs]:
        return {"factory": "IVF2,PQ{d}x4fs,RFlat"}, {"nprobe": 1, "k_factor": 1}

    @classmethod
    def build(cls, points: F32, metric: str, settings: Settings, threads: int, scratch: Path) -> Library:
        library(cls.module).omp_set_num_threads(threads)
        index = cls.factory(points.shape[1], settings["factory"].replace("{d}", str(points.shape[1])), metric)
        index.train(points)
        index.add(points)
        return cls(index, metric)

    def set(self, knobs: Knobs) -> None:
        faiss = library(self.module)
        self.index.k_factor = knobs["k_factor"]
        faiss.extract_index_ivf(faiss.downcast_index(self.index.base_index)).nprobe = knobs["nprobe"]


class FaissHnsw(Faiss):
    """HNSW by FAISS."""

    name = "FAISS HNSW"

    @classmethod
    def builds(cls, n: int, d: int, metric: str) -> list[Settings]:
        return [{"factory": "HNSW32,Flat", "efConstruction": 200}]

    @classmethod
    def series(cls, settings: Settings, n: int) -> Iterator[Series]:
        yield [{"efSearch": ef} for ef in rising(10, 1200, 1.35)]

    @classmethod
    def tiny(cls) -> tuple[Settings, Knobs]:
        return {"factory": "HNSW4,Flat", "efConstruction": 20}, {"efSearch": 1}

    @classmethod
    def build(cls, points: F32, metric: str, settings: Settings, threads: int, scratch: Path) -> Library:
        library(cls.module).omp_set_num_threads(threads)
        index = cls.factory(points.shape[1], settings["factory"], metric)
        index.hnsw.efConstruction = settings["efConstruction"]
        index.add(points)
        return cls(index, metric)

    def set(self, knobs: Knobs) -> None:
        self.index.hnsw.efSearch = knobs["efSearch"]
