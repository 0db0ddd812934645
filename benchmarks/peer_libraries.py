"""The libraries that benchmarks/peers.py compares: how each is built, saved, loaded and asked, and the grids it gets.

Every library is used as its documentation says: native cosine where it has one, else unit vectors with inner product
(`unit`). Knobs are set before the clock starts wherever the library lets them be set on the index. Grids are in series
of rising cost, so that a sweep can stop once a series has nothing left to find.

What could not be used here, with scann 1.4.2, faiss-cpu 1.15.1, hnswlib 0.8.0, usearch 2.26.6, ngt 2.8.0.post1,
rabitqlib 0.7.1 and scalable-vs 0.5.0 on an AMD CPU with AVX2, is in MISSING.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import math
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Settings = dict[str, Any]
Knobs = dict[str, Any]
Series = list[Knobs]

MISSING = {
    "ngt QG": "the wheel has ngtpy alone; quantizing a graph needs the command line tool qbg, built from source",
    "scalable-vs LVQ": 'its library says "LVQ and Leanvec functionality of SVS is not supported on non-Intel '
    'hardware" and ends the process on this AMD CPU; float32 and float16 are used instead',
}

_GLOVE = 331_479  # the number of points that the grids of partitions are meant for


class Library(ABC):
    """A built index of one library, and all that is known of the library itself."""

    name: ClassVar[str]
    package: ClassVar[str]
    module: ClassVar[str]
    unit: ClassVar[bool] = False  # cosine is given to it as inner product of unit vectors
    row: ClassVar[bool] = False  # its single query is a matrix of one row
    size: ClassVar[str] = "saved files"  # what bytes() counts

    def __init__(self, index: Any, metric: str) -> None:
        self.index = index
        self.metric = metric

    @classmethod
    def version(cls) -> str:
        return importlib.metadata.version(cls.package)

    @classmethod
    def unfit(cls, metric: str) -> str:
        """Why the library is left out for this metric, or nothing."""
        return ""

    @classmethod
    @abstractmethod
    def builds(cls, n: int, d: int, metric: str) -> list[Settings]:
        """The grid of build settings, the most promising first."""

    @classmethod
    @abstractmethod
    def series(cls, settings: Settings, n: int) -> Iterator[Series]:
        """The grid of knobs of one build: series of rising cost."""

    @classmethod
    @abstractmethod
    def tiny(cls) -> tuple[Settings, Knobs]:
        """A build and knobs for a few hundred points, where a query has next to nothing to do."""

    @classmethod
    @abstractmethod
    def build(cls, points: F32, metric: str, settings: Settings, threads: int, scratch: Path) -> Library: ...

    @abstractmethod
    def save(self, folder: Path) -> None: ...

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, metric: str, settings: Settings, d: int) -> Library: ...

    def bytes(self, folder: Path) -> int:
        """The size of the index, given where it was saved."""
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    @abstractmethod
    def one(self, k: int, knobs: Knobs) -> Callable[[F32], Any]:
        """The library's ordinary call for a single query, ready to be timed."""

    @abstractmethod
    def batch(self, k: int, knobs: Knobs, threads: int) -> Callable[[F32], Any]:
        """The library's call for many queries, ready to be timed."""

    def rest(self) -> None:
        """After a batch: let no thread spin while another library is measured."""
        return

    def ids_of_one(self, answer: Any) -> NDArray[Any]:
        return np.asarray(answer[0]).reshape(-1)

    def ids_of_batch(self, answer: Any, k: int) -> NDArray[Any]:
        return np.asarray(answer[0])

    # What peers.py is for; the calls above are for timing.
    def search_one(self, query: F32, k: int, knobs: Knobs) -> NDArray[Any]:
        return self.ids_of_one(self.one(k, knobs)(query[None] if self.row else query))

    def search_batch(self, queries: F32, k: int, knobs: Knobs, threads: int) -> NDArray[Any]:
        return self.ids_of_batch(self.batch(k, knobs, threads)(queries), k)


def library(module: str) -> Any:
    return importlib.import_module(module)


def scaled(counts: list[int], n: int) -> list[int]:
    """Numbers of partitions meant for GloVe's 331k points, for n points: they go with the square root."""
    factor = math.sqrt(n / _GLOVE)
    return [max(2, round(count * factor)) for count in counts]


def rising(first: float, last: float, ratio: float) -> list[int]:
    """Whole numbers from first to last, each about ratio times the one before."""
    values, value = [], float(first)
    while value < last:
        values.append(round(value))
        value *= ratio
    return sorted({*values, round(last)})


class Aniso(Library):
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
        return [
            {"partitions": partitions, "spill": spill, "rescore": rescore}
            for rescore, spill, counts in (
                ("float16", 1, [4000, 2800, 6000]),
                ("int8", 1, [4000]),
                ("float32", 1, [4000]),
                ("float16", 0, [4000]),
            )
            for partitions in scaled(counts, n)
        ]

    @classmethod
    def series(cls, settings: Settings, n: int) -> Iterator[Series]:
        for candidates in (30, 45, 60, 80, 110, 160, 220, 300):
            counts = rising(4, settings["partitions"], 1.3)
            yield [{"partitions": count, "candidates": candidates} for count in counts]

    @classmethod
    def tiny(cls) -> tuple[Settings, Knobs]:
        return {"partitions": 2, "spill": 0, "rescore": "float32"}, {"partitions": 1, "candidates": 1}

    @classmethod
    def build(cls, points: F32, metric: str, settings: Settings, threads: int, scratch: Path) -> Aniso:
        index = library(cls.module).build(points, metric=metric, recall=None, threads=threads, **settings)
        index.search(points[0], 1, partitions=1, candidates=1)  # the first search arranges the partitions: part of it
        return cls(index, metric)

    def save(self, folder: Path) -> None:
        self.index.save(folder / "index.aniso")

    @classmethod
    def load(cls, folder: Path, metric: str, settings: Settings, d: int) -> Aniso:
        index = library("aniso").open(folder / "index.aniso")
        index.search(np.ones(d, np.float32), 1, partitions=1, candidates=1)  # the first search looks at the arrays
        return cls(index, metric)

    def one(self, k: int, knobs: Knobs) -> Callable[[F32], Any]:
        return partial(self.index.search, k=k, **knobs)

    def batch(self, k: int, knobs: Knobs, threads: int) -> Callable[[F32], Any]:
        return partial(self.index.search, k=k, threads=threads, **knobs)


class Scann(Library):
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
            training_sample_size=min(len(points), 250_000),
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


class Hnswlib(Library):
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


LIBRARIES: dict[str, type[Library]] = {
    "aniso": Aniso,
    "scann": Scann,
    "faiss-ivf": FaissFastScan,
    "faiss-hnsw": FaissHnsw,
    "hnswlib": Hnswlib,
    "usearch": Usearch,
    "ngt": Ngt,
    "symphonyqg": SymphonyQG,
    "svs": Svs,
}
