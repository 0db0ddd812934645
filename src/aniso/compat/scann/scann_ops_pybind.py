"""ScaNN's module of this name: builder, create_searcher, load_searcher and the searcher they return.

docs/migrating-from-scann.md has a table of every call, and where it differs.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aniso.arrays import as_array
from aniso.compat.scann import folder, scann_builder
from aniso.compat.scann.collection import Collection
from aniso.compat.scann.config_text import write
from aniso.compat.scann.index_engine import IndexEngine
from aniso.compat.scann.scann_builder import IncrementalMode, ReorderType, ScannBuilder
from aniso.compat.scann.statistics import health
from aniso.errors import check_count, check_threads, check_vectors
from aniso.ids import as_ids, check_unique

__all__ = [
    "IncrementalMode",
    "ReorderType",
    "ScannBuilder",
    "ScannSearcher",
    "builder",
    "create_searcher",
    "load_searcher",
    "scann_builder",
]

F32 = NDArray[np.float32]


class ScannSearcher:
    """Points that can be searched, and changed if they have docids.

    >>> import numpy as np
    >>> points = np.eye(4, dtype=np.float32)
    >>> searcher = builder(points, 2, "dot_product").score_brute_force().build(docids=["a", "b", "c", "d"])
    >>> searcher.upsert("e", 2 * points[1])
    >>> searcher.search(points[1])
    (['e', 'b'], array([2., 1.], dtype=float32))
    """

    def __init__(self, searcher: Collection) -> None:
        self.searcher = searcher
        self._threads = check_threads(None)
        self._watched = False  # whether statistics are kept

    @property
    def docids(self) -> list[Any] | None:
        """The docids, or None where points are numbered."""
        return self.searcher.docids if self.searcher.named else None

    @property
    def docid_to_id(self) -> dict[Any, int]:
        """The place of each docid in docids."""
        return {name: place for place, name in enumerate(self.searcher.docids)}

    def search(
        self,
        q: Any,
        final_num_neighbors: int = -1,
        pre_reorder_num_neighbors: int = -1,
        leaves_to_search: int = -1,
    ) -> tuple[Any, F32]:
        """The best points of one query: their numbers or docids, and distances. -1 takes what the builder said."""
        array = as_array(q, "q")
        if array.ndim != 1:
            raise ValueError(f"q has shape {array.shape}; needed: one query, (dimensions,) (search_batched takes many)")
        engine = self.searcher.engine
        if isinstance(engine, IndexEngine):
            found = engine.search_one(
                array, *self._asked(final_num_neighbors, pre_reorder_num_neighbors, leaves_to_search)
            )
            if found is not None:
                return self._returned(*found)
        ids, distances = self._search(
            array[None], final_num_neighbors, pre_reorder_num_neighbors, leaves_to_search, threads=1
        )
        return ids[0], distances[0]

    def search_batched(
        self,
        queries: Any,
        final_num_neighbors: int | None = None,
        pre_reorder_num_neighbors: int | None = None,
        leaves_to_search: int | None = None,
    ) -> tuple[Any, F32]:
        """The best points of each query, on one thread. None takes what the builder said."""
        return self._search(queries, final_num_neighbors, pre_reorder_num_neighbors, leaves_to_search, threads=1)

    def search_batched_parallel(
        self,
        queries: Any,
        final_num_neighbors: int | None = None,
        pre_reorder_num_neighbors: int | None = None,
        leaves_to_search: int | None = None,
        batch_size: int = 256,
    ) -> tuple[Any, F32]:
        """The same on all threads; how queries are divided among them is not up to batch_size."""
        check_count(batch_size, "batch_size")
        return self._search(
            queries, final_num_neighbors, pre_reorder_num_neighbors, leaves_to_search, threads=self._threads
        )

    def serialize(
        self, artifacts_dir: str | os.PathLike[str], relative_path: bool = False, *, scann_files: bool = True
    ) -> None:
        """Write the searcher into a folder, which can be moved whatever relative_path is.

        scann_files=False leaves out the files that are only there to look like ScaNN's: about half the bytes.
        """
        folder.save(artifacts_dir, self.searcher, scann_files=scann_files)

    def get_health_stats(self) -> dict[str, Any]:
        """The balance of the leaves and what they leave of the points; zeros before initialize_health_stats()."""
        return health(self.searcher if self._watched else None)

    def initialize_health_stats(self) -> None:
        """Begin to keep statistics."""
        self._watched = True

    def upsert(self, docids: Any, database: Any, batch_size: int = 1) -> None:
        """Write points under their docids, new or not; of a docid that is given twice, the last point stays."""
        check_count(batch_size, "batch_size")
        if not self.searcher.named:
            raise ValueError("the points have no docids; needed: build(docids=...) to change them later")
        names = _listed(docids)
        array = as_array(database, "database")
        if array.ndim == 1:
            array = array[None]
        if array.ndim == 3 and array.shape[1] == 1:  # a list of rows that are matrices themselves
            array = array[:, 0]
        if len(names) != len(array):
            raise ValueError(f"{len(names)} docids were given for {len(array)} points; needed: one for each")
        points = check_vectors(array, "database", d=self.searcher.d)
        last = list({name: row for row, name in enumerate(names)}.values())
        if len(last) < len(names):
            names, points = [names[row] for row in last], points[last]
        self.searcher.upsert(as_ids(names), points)

    def delete(self, docids: Any) -> None:
        """Remove points by their docids; KeyError names one that is not there, and then nothing is removed."""
        if not self.searcher.named:
            raise ValueError("the points have no docids; needed: build(docids=...) to change them later")
        self.searcher.delete(as_ids(_listed(docids)))

    def rebalance(self, config: str | None = None) -> int:
        """Train anew on the points that are there, with another config if one is given; how many points there are."""
        return self.searcher.rebalance(config)

    def reserve(self, num_datapoints: int) -> None:
        """Nothing: room is made as points come."""
        check_count(num_datapoints, "num_datapoints", least=0)

    def size(self) -> int:
        """How many points there are."""
        return len(self.searcher)

    def set_num_threads(self, num_threads: int) -> None:
        """The threads of search_batched_parallel."""
        self._threads = check_count(num_threads, "num_threads", most=1024)

    def config(self) -> str:
        """The settings as a text; create_searcher and rebalance read it."""
        return write(self.searcher.config)

    def _search(self, queries: Any, final: Any, pre_reorder: Any, leaves: Any, *, threads: int) -> tuple[Any, F32]:
        q = check_vectors(queries, "queries", d=self.searcher.d)
        return self._returned(*self.searcher.search(q, *self._asked(final, pre_reorder, leaves), threads))

    def _asked(self, final: Any, pre_reorder: Any, leaves: Any) -> tuple[int, int | None, int | None]:
        """How many results, candidates and leaves a search is to have; None: as the builder said."""
        return (
            _given(final, "final_num_neighbors") or self.searcher.settings.k,
            _given(pre_reorder, "pre_reorder_num_neighbors"),
            _given(leaves, "leaves_to_search"),
        )

    def _returned(self, ids: NDArray[Any], scores: F32) -> tuple[Any, F32]:
        """Ids and scores as ScaNN returns them."""
        distances = np.maximum(0 - scores, 0) if self.searcher.settings.metric == "l2" else scores
        return (ids.tolist() if self.searcher.named else ids.astype(np.uint32)), distances


def builder(db: Any, num_neighbors: int, distance_measure: str) -> ScannBuilder:
    """A builder for a searcher of these points, by "dot_product" or "squared_l2".

    >>> import numpy as np
    >>> points = np.random.default_rng(0).normal(size=(2000, 16)).astype(np.float32)
    >>> searcher = builder(points, 10, "squared_l2").tree(40, 8).score_ah(2).reorder(50).build()
    >>> neighbors, distances = searcher.search(points[7])
    >>> int(neighbors[0]), float(distances[0])
    (7, 0.0)
    """
    return ScannBuilder(db, num_neighbors, distance_measure).set_builder_lambda(create_searcher)


def create_searcher(
    db: Any, scann_config: str, training_threads: int = 0, docids: Any = None, **unused_kwargs: Any
) -> ScannSearcher:
    """A searcher of these points by a config, as ScannBuilder.create_config writes it."""
    points = check_vectors(db, "db")
    names = None
    if docids is not None:
        if len(docids) != len(points):
            raise ValueError(f"{len(docids)} docids were given for {len(points)} points; needed: one for each")
        names = as_ids(list(docids))
        check_unique(names)
    threads = check_count(training_threads, "training_threads", least=0, most=1024) or None
    return ScannSearcher(Collection.build(points, names, scann_config, threads))


def load_searcher(artifacts_dir: str | os.PathLike[str], assets_backcompat_shim: bool = True) -> ScannSearcher:
    """The searcher that serialize() wrote into a folder; FormatError, a ValueError, says what is wrong with it."""
    return ScannSearcher(folder.load(artifacts_dir))


def _listed(docids: Any) -> list[Any]:
    """One docid or many, as a list."""
    return [docids] if np.ndim(docids) == 0 and not isinstance(docids, (set, frozenset)) else list(docids)


def _given(value: Any, name: str) -> int | None:
    """A number that the caller gave; None and -1 stand for what the builder said."""
    return None if value is None or (type(value) is int and value == -1) else check_count(value, name)
