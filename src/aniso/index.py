"""An index: build it, search it, change it, save it.

The arrays of an index are NumPy's: store.py holds them, encoder.py fills them, `_core.Searcher` borrows them to answer
queries. A change prepares the next state beside the present one and puts it in its place in one step, so any number of
threads may search meanwhile: each search reads one state from beginning to end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aniso import archive, changes
from aniso.arrays import as_array
from aniso.budget import fit_memory
from aniso.config import Config, config_of
from aniso.encoder import check_all, train_encoder
from aniso.errors import check_count, check_number, check_threads, check_vectors
from aniso.format import open_file
from aniso.health import describe
from aniso.ids import IdArray, as_ids, check_unique, in_order
from aniso.progress import Progress, silent
from aniso.results import Result, search_above
from aniso.store import Closed, Store
from aniso.survey import exact_rows
from aniso.tune import (
    Measured,
    Recall,
    check_recall,
    hold_out,
    interpolate,
    measure_curve,
    sample_queries,
    search,
    shares,
    summary,
)
from aniso.where import Allowed, allowed_by

__all__ = ["Index", "build", "open_index"]


class Index:
    """Points, searchable by inner product, cosine or distance.

    >>> import numpy as np
    >>> points = np.random.default_rng(0).normal(size=(5000, 16)).astype(np.float32)
    >>> index = build(points, metric="cosine")
    >>> index.search(points[7], k=3).ids[0]
    np.int64(7)

    Scores are inner products, cosines, or negative squared distances: higher is better. They are exact where rescore is
    "float32", else the best estimate the stored copy gives.
    """

    def __init__(self, store: Store, threads: int) -> None:
        self._store = store
        self._threads = threads
        self._lock = threading.RLock()  # between writers; searches never take it
        self._asked: NDArray[np.float32] | None = None  # the queries that settings were measured with, if given

    @classmethod
    def train(
        cls,
        points: ArrayLike,
        config: Config,
        *,
        n: int | None = None,
        threads: int | None = None,
        progress: Progress = silent,
    ) -> Index:
        """An empty index whose partitions and codebooks suit points like these; n points are expected in all."""
        array = as_array(points, "points")
        workers = check_threads(threads)
        d = check_all(array, config, workers)
        expected = len(array) if n is None else check_count(n, "n")
        return cls(Store(train_encoder(array, expected, config, d, workers, progress)), workers)

    @property
    def config(self) -> Config:
        """The settings that the index was built with."""
        return self._store.encoder.config

    @property
    def d(self) -> int:
        """The dimensions of points and queries."""
        return self._store.encoder.d

    @property
    def n(self) -> int:
        """How many points there are."""
        return self._store.count

    def __len__(self) -> int:
        return self._store.count

    def __repr__(self) -> str:
        store = self._store
        if isinstance(store, Closed):
            return "<aniso.Index, closed>"
        encoder = store.encoder
        return f"<aniso.Index of {store.count} points, {encoder.d} dimensions, {encoder.config.metric}>"

    def __enter__(self) -> Index:
        self._store.count  # noqa: B018 (an error if it is closed)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back the memory and the file; whatever is called afterwards is a ValueError, but for close itself.

        Searches that other threads have begun go on to their end, and hold the memory until then; so does what `allow`
        made. An index that is not closed gives its memory back once nobody holds it.

        >>> with build(np.eye(3)) as index:
        ...     index.search([0.0, 1.0, 0.0], k=1).ids.tolist()
        [1]
        >>> index
        <aniso.Index, closed>
        """
        with self._lock:
            if not isinstance(self._store, Closed):
                path = self._store.path
                closed: Any = Closed(path if path is not None and os.path.isfile(path) else None)
                self._store, self._asked = closed, None

    @property
    def ids(self) -> NDArray[Any]:
        """The ids of all points, int64 or str, in the order in which they were first added."""
        store = self._store
        ids = store.ids_of(store.rows)
        return ids.copy() if ids is store.rows else _shown(store, ids)

    def contains(self, ids: Any) -> NDArray[np.bool_]:
        """Which of these ids a point has."""
        return self._store.there(as_ids(ids))

    def points(self, ids: Any = None) -> NDArray[np.float32]:
        """The points of these ids, or all in the order of `ids`, as near as the copy kept for rescoring is.

        For metric "cosine" they have norm 1. ValueError where no copy is kept, KeyError for an id that no point has.
        """
        store = self._store
        return store.kept(store.rows if ids is None else store.rows_of(as_ids(ids)))

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        *,
        recall: float | None = None,
        where: Any = None,
        partitions: int | None = None,
        candidates: int | None = None,
        threads: int | None = None,
    ) -> Result:
        """The k best points of each query, or all there are if fewer.

        recall        the share of the true k best to aim at; by default what the index was built for
        where         which points may be found: a boolean for each in the order of `ids`, an array or a set of ids, or
                      what `allow` makes of them
        partitions    how many partitions are looked at: more find more, and take longer
        candidates    how many of the points looked at are rescored
        """
        store = self._store
        if partitions is None or candidates is None:
            plain_recall = recall is None or type(recall) is float
            chosen = store.settings.get((k, recall)) if type(k) is int and plain_recall else None
            chosen = chosen or self._choose(store, k, recall)
            partitions = chosen[0] if partitions is None else partitions
            candidates = chosen[1] if candidates is None else candidates
        elif recall is not None:
            raise TypeError("recall= was given with partitions= and candidates=; needed: the one or the others")
        # One plain query takes the shortest way; whatever needs a conversion or a message comes back as None.
        if threads is not None:
            check_threads(threads)
        plain = store.plain
        if plain is not None:
            if where is None:
                found = plain.answer(queries, k, partitions, candidates, store.live)
            else:
                where = allowed_by(store, where)
                found = where.answer(plain, store, queries, k, partitions, candidates)
            if found is not None:
                return tuple.__new__(Result, found)  # as Result(*found) does, in a third of the time
        return self._search(store, queries, k, where, partitions, candidates, threads)

    def allow(self, where: Any) -> Allowed:
        """A filter to use as where= in many searches: a mask of all points takes as long to read as a search.

        It stands for these points by their ids, also after changes of the index.

        >>> points = np.random.default_rng(0).normal(size=(5000, 16)).astype(np.float32)
        >>> index = build(points)
        >>> even = index.allow(np.arange(5000) % 2 == 0)
        >>> bool((index.search(points[:9], where=even).ids % 2 == 0).all())
        True
        """
        return allowed_by(self._store, where).kept()

    def search_above(
        self, query: ArrayLike, least: float, *, partitions: int | None = None, candidates: int | None = None
    ) -> Result:
        """The points found in the partitions looked at that score at least `least` with one query, best first.

        As a search may, it misses some: with all partitions and, as candidates, twice the points, it misses none. By
        default as many partitions are looked at as a search for the ten best would, and 4 candidates for each point
        that is found.

        >>> index = build(np.eye(4), metric="dot")
        >>> index.search_above([1.0, 0.5, 0.0, 0.0], 0.4).ids.tolist()
        [0, 1]
        """
        array = as_array(query, "query")
        if array.ndim != 1:
            raise ValueError(f"query has shape {array.shape}; needed: one vector, ({self.d},)")
        score = check_number(least, "least")
        store = self._store
        looked = self._choose(store, 10, None)[0] if partitions is None else partitions
        every = 2 * max(store.n, 1)

        def search(k: int) -> Result:
            kept = every if len(store.sizes) == 1 else 4 * k if candidates is None else candidates
            return self._search(store, array, k, None, looked, kept, None)

        return search_above(search, score, store.count)

    def add(self, points: ArrayLike | Iterator[ArrayLike], ids: Any = None, *, progress: Progress = silent) -> None:
        """Append points (n, d), or an iterator of such arrays; the next search finds them.

        Each array is one step: where one of an iterator is refused, those before it stay.
        ids are int64 or str, one for each point; without them, points get the next whole numbers.
        """
        if isinstance(points, Iterator):
            if ids is not None:
                raise TypeError(
                    "ids cannot go with an iterator of arrays (add the arrays one by one, each with its ids)"
                )
            self._store.count  # noqa: B018 (an error if the index is closed, also where nothing comes)
            for chunk in points:
                self.add(chunk, progress=progress)
            return
        array = changes.checked(self._store.encoder, points)
        with self._lock:
            self._publish(changes.added(self._store, array, ids, progress), progress)

    def remove(self, ids: Any) -> None:
        """Remove points by their ids; KeyError names an id that no point has, and then none is removed."""
        wanted = as_ids(ids)
        check_unique(wanted)
        with self._lock:
            self._publish(changes.removed(self._store, wanted))

    def update(self, points: ArrayLike, ids: Any, *, progress: Progress = silent) -> None:
        """Give the points of these ids new vectors, all in one step; KeyError names an id that no point has."""
        array = changes.checked(self._store.encoder, points)
        with self._lock:
            self._publish(changes.updated(self._store, array, ids, progress), progress)

    def tune(
        self, queries: ArrayLike | None = None, *, recall: float = 0.95, progress: Progress = silent
    ) -> list[Measured]:
        """Measure the recall of settings, on these queries or on points of the index, and search by it from now on."""
        target = check_recall(recall)
        with self._lock:
            before = self._store
            store = before.draft()
            asked = self._measure(store, target, queries, store.kept, progress)
            store.take_lookup(before, None, store.n)
            self._store, self._asked = store, asked
        return store.curve

    def measure_recall(
        self,
        queries: ArrayLike | None = None,
        k: int = 10,
        *,
        points: ArrayLike | None = None,
        recall: float | None = None,
        partitions: int | None = None,
        candidates: int | None = None,
    ) -> Recall:
        """The recall of searches as they are set, on these queries or on points of the index, against exact search.

        The truth comes from the copy that the index keeps. Where that is rounded, "float16" or above all "int8", what
        rounding costs does not show, unless the points themselves are given, in the order of `ids`; "none" needs them.
        """
        store = self._store
        k = check_count(k, "k")
        rows = store.kept if points is None else store.look_in(points)
        asked, own = sample_queries(store, queries, rows)
        k = min(k, store.count - (len(own) > 0))
        truth = exact_rows(store, asked, own, k, rows, self._threads)
        chosen = self._choose(store, k, recall)
        looked = chosen[0] if partitions is None else check_count(partitions, "partitions")
        kept = chosen[1] if candidates is None else check_count(candidates, "candidates")
        found = search(store, asked, own, k, looked, kept, self._threads)
        return summary(shares(found, truth), k)

    def info(self) -> dict[str, Any]:
        """How the index is doing: sizes, balance, what removed points left behind, drift, and what tuning measured."""
        return describe(self._store)

    def rebalance(self, *, progress: Progress = silent) -> None:
        """Train partitions and codebooks anew on the points that are there, from the copy kept for rescoring.

        add and update do so themselves, unless partitions= was given, once there are 4 times the points trained for, or
        half of all points are new and of another kind: `info` shows the drift. The recall is then tuned for anew, with
        the queries that it was tuned with before.
        """
        with self._lock:
            self._store = self._retrained(self._store, progress)

    def compact(self) -> None:
        """Drop what removed and moved points left behind; a change does so itself once there is much of it."""
        with self._lock:
            self._store = self._store.compacted()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index into one file, whole or not at all; `aniso.open` opens it."""
        archive.save(path, self._store)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (*archive.to_parts(self._store), self._threads)

    def _publish(self, store: Store, progress: Progress = silent) -> None:
        """Put the next state in place of the present one, once all of it is there."""
        self._store = self._retrained(store, progress) if changes.outdated(store) else changes.tidied(store)

    def _retrained(self, store: Store, progress: Progress) -> Store:
        """The same points in new partitions, tuned anew if the index was."""
        new = changes.retrained(store, self._threads, progress)
        if store.target is not None:
            self._measure(new, store.target, self._asked, new.kept, progress)
        return new

    def _measure(
        self, store: Store, target: float, queries: Any, rows: Any, progress: Progress
    ) -> NDArray[np.float32] | None:
        """Tune a state that no search reads yet, unless every score is computed anyway; the queries that served."""
        asked = None if queries is None else sample_queries(store, queries, rows)[0]
        measures = len(store.sizes) > 1 and store.count > 1
        store.curve = measure_curve(store, asked, rows, self._threads, progress) if measures else []
        store.target = target
        return asked

    def _choose(self, store: Store, k: Any, recall: float | None) -> tuple[int, int]:
        """Partitions and candidates for a search, kept for the next one."""
        k, target = check_count(k, "k"), store.target if recall is None else check_recall(recall)
        p = len(store.sizes)
        if p == 1:  # every score is computed
            chosen = 1, max(2 * store.n, 1)
        elif store.curve and target is not None:
            chosen = interpolate(store.curve, k, target, p)
        elif recall is None:
            config = store.encoder.config
            chosen = config.default_partitions(), config.default_candidates(k)
        else:
            raise ValueError(f"recall is {recall}, and the index was never tuned; needed: index.tune() first")
        if len(store.settings) < 1000:
            store.settings[k, recall] = chosen
        return chosen

    def _search(
        self, store: Store, queries: Any, k: Any, where: Any, partitions: Any, candidates: Any, threads: Any
    ) -> Result:
        """The answer from one state."""
        k = check_count(k, "k")
        looked = min(check_count(partitions, "partitions"), len(store.sizes))
        kept = min(check_count(candidates, "candidates"), 2 * max(store.n, 1))
        workers = self._threads if threads is None else check_threads(threads)
        array = as_array(queries, "queries")
        single = array.ndim == 1
        array = check_vectors(array[None] if single else array, "queries", d=store.encoder.d, small=True)
        searcher = store.searcher
        allowed = None if where is None else allowed_by(store, where)
        k = min(k, store.count if allowed is None else allowed.count)
        if k == 0:
            ids, scores = np.empty((len(array), 0), np.int64), np.empty((len(array), 0), np.float32)
        elif allowed is not None and allowed.best_exact(k, looked):
            ids, scores = allowed.search_exact(array, k, workers)
        else:
            if allowed is not None:
                looked = allowed.widened(looked)
            form = {"allowed": store.live} if allowed is None else allowed.form(len(array))
            ids, scores = np.empty((len(array), k), np.int64), np.empty((len(array), k), np.float32)
            searcher.search(array, looked, kept, ids, scores, threads=workers, **form)
        named = _shown(store, ids if store.names is None else store.names.of(ids))
        return Result(named[0], scores[0]) if single else Result(named, scores)


def build(
    points: ArrayLike,
    *,
    metric: str = "dot",
    recall: float | None = 0.95,
    ids: Any = None,
    queries: ArrayLike | None = None,
    memory: int | None = None,
    threads: int | None = None,
    progress: Progress = silent,
    **settings: Any,
) -> Index:
    """An index of the points (n, d).

    metric      "dot", "cosine" or "l2"
    recall      the share of the true best points that a search finds unless it is told otherwise; None: not measured
    ids         int64 or str, one for each point; without them, points are numbered from 0
    queries     a sample of those to come, for measuring recall; without it, points of the index are used
    memory      most bytes that the index may take: its copy of the points is as exact as fits; str ids come on top
    threads     all cores by default
    settings    those of aniso.Config, for those who know
    """
    array = as_array(points, "points")
    target = None if recall is None else check_recall(recall)
    given = None if ids is None else as_ids(in_order(ids), len(array) if array.ndim else None)
    if given is not None:
        check_unique(given)
    config = config_of(metric=metric, **settings)
    if memory is not None:
        if "rescore" in settings:
            raise TypeError("memory= was given with rescore=; needed: the one or the other")
        if array.ndim == 2:
            config = fit_memory(config, memory, *array.shape)
    workers = check_threads(threads)
    d = check_all(array, config, workers)
    asked = None if queries is None else check_vectors(queries, "queries", d=d, rows=1)
    hidden = hold_out(0 if target is None or asked is not None else len(array), config.seed)
    encoder = train_encoder(array, len(array), config, d, workers, progress, hidden)
    index = Index(Store(encoder), workers)
    index.add(array, given, progress=progress)
    encoder.partitions.forget_routes()
    store = index._store
    store.hidden = hidden
    store.added, store.distance = 0, 0.0  # drift is that of later points
    if target is not None:

        def rows_of(numbers: NDArray[np.int64]) -> NDArray[np.float32]:
            return check_vectors(array[numbers], "points", small=True)

        index._asked = index._measure(store, target, asked, rows_of, progress)
    return index


def open_index(
    path: str | os.PathLike[str], *, threads: int | None = None, verify: bool = False, mapped: bool = True
) -> Index:
    """Open an index that `Index.save` wrote, by memory map: in milliseconds at any size.

    mapped=False reads it into memory instead: that takes a while, but searches are up to a tenth faster (on huge pages)
    and do not depend on the file any more.
    The header and the shapes of all arrays are checked now, what the arrays say on the first search or change; their
    checksums only with verify=True, which reads the whole file. What is wrong is a FormatError.
    """
    workers = check_threads(threads)
    opened = open_file(path, verify=verify, mapped=mapped)
    return _restored(opened.header, opened.arrays, workers, opened.path)


def _restored(header: dict[str, Any], arrays: dict[str, NDArray[Any]], threads: int, path: str = "a pickle") -> Index:
    return Index(archive.from_parts(header, arrays, threads, path), threads)


def _shown(store: Store, ids: IdArray) -> NDArray[Any]:
    """Ids as results hold them: str is a dtype of NumPy's own there."""
    return ids.astype(np.str_) if store.names is not None else ids
