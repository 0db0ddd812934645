"""A searcher's points in an Index: leaves, codes and a copy to rescore from. In two, where codes see a projection."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aniso import archive
from aniso.compat.scann.projected import Axes, fit_axes
from aniso.compat.scann.settings import Settings
from aniso.compat.scann.stanzas import ReorderType
from aniso.errors import FormatError, check_threads
from aniso.ids import IdArray, as_ids
from aniso.index import Index

__all__ = ["IndexEngine", "ProjectedEngine"]

F32 = NDArray[np.float32]
Parts = tuple[dict[str, Any], dict[str, NDArray[Any]]]
_LARGEST = 65504  # the largest float16
_VALUES = 1 << 24  # numbers gathered together for rescoring (64 MB)


class IndexEngine:
    """An index, and how a search of it is set.

    A copy in 16 bits is one of float16, which is finer than bfloat16 but ends at 65504: `scale`, a power of 2, brings
    the points near 1, where it is at its best, and takes nothing from them.
    """

    kind = "index"

    def __init__(self, index: Index, settings: Settings, scale: float, named: bool) -> None:
        self.index, self.settings, self.scale, self.named = index, settings, scale, named
        self.d = index.d

    @classmethod
    def build(
        cls, points: F32, ids: IdArray | None, settings: Settings, threads: int | None, copy: ReorderType | None = None
    ) -> IndexEngine:
        """Train on the points, and add them."""
        kind = settings.copy if copy is None else copy
        largest = float(np.abs(points).max()) if kind == ReorderType.BFLOAT16 else 0.0
        scale = 2.0 ** -round(math.log2(largest)) if largest > 0 else 1.0
        x = points if scale == 1 else points * np.float32(scale)
        index = Index.train(x, settings.to_config(points, kind), threads=threads)
        index.add(x, ids)
        return cls(index, settings, scale, ids is not None)

    def __len__(self) -> int:
        return self.index.n

    @property
    def docids(self) -> list[Any]:
        """The ids of all points."""
        return list(self.index.ids.tolist()) if self.named else []

    @property
    def codes_from(self) -> Index:
        """The index that has the codes."""
        return self.index

    def search(
        self, queries: F32, k: int, candidates: int | None, leaves: int | None, threads: int
    ) -> tuple[NDArray[Any], F32]:
        """The k best points of each query: ids and scores, which for l2 are negative squared distances."""
        if not self.index.n:
            return np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32)
        partitions, wanted = self._depth(k, candidates, leaves)
        l2 = self.settings.metric == "l2"
        asked = queries * np.float32(self.scale) if l2 and self.scale != 1 else queries
        ids, scores = self.index.search(asked, k, partitions=partitions, candidates=wanted, threads=threads)
        return ids, scores if self.scale == 1 else scores / np.float32(self.scale ** (2 if l2 else 1))

    def search_one(
        self, query: NDArray[Any], k: int, candidates: int | None, leaves: int | None
    ) -> tuple[NDArray[Any], F32] | None:
        """The same for one query that nobody has checked, by the shortest way; None where there is none."""
        if self.scale != 1 or not self.index.n:
            return None
        partitions, wanted = self._depth(k, candidates, leaves)
        return self.index.search(query, k, partitions=partitions, candidates=wanted)

    def _depth(self, k: int, candidates: int | None, leaves: int | None) -> tuple[int, int]:
        """How many partitions to look at, and how many candidates to rescore."""
        settings, config, tree = self.settings, self.index.config, self.settings.tree
        looked = leaves or (tree.searched if tree else 1)
        if settings.hash is None:
            return looked, 2 * self.index.n
        if settings.keeps_points and config.rescore != "none":
            wanted = max(candidates or settings.candidates, k)
        else:  # more than k all the same: the sums of table entries that choose candidates are rounded
            wanted = config.default_candidates(k)
        return looked, math.ceil(wanted * (tree.overretrieve if tree else 1.0))

    def upsert(self, ids: IdArray, points: F32) -> None:
        """Write points under ids of their own; those that are there already get the new points."""
        x = points if self.scale == 1 else points * np.float32(self.scale)
        if self.index.config.rescore == "float16" and np.abs(x).max(initial=0) > _LARGEST:
            row = int(np.abs(x).max(axis=1).argmax())
            raise ValueError(
                f"database row {row} has a value of size {np.abs(points[row]).max():g}; the copy in 16 bits ends at "
                f"{_LARGEST / self.scale:g} (use ReorderType.FLOAT32, or build the searcher with such points)"
            )
        there = self.contains(ids)
        if there.all():
            self.index.update(x, ids)
        elif not there.any():
            self.index.add(x, ids)
        else:
            self.index.update(x[there], ids[there])
            self.index.add(x[~there], ids[~there])

    def delete(self, ids: IdArray) -> None:
        """Remove points that are there."""
        self.index.remove(ids)

    def contains(self, ids: IdArray) -> NDArray[np.bool_]:
        """Which of the ids are there."""
        return self.index.contains(ids)

    def points(self) -> F32:
        """All points, in the order of docids, as near as the copy kept for rescoring is."""
        return self.points_of(None)

    def points_of(self, ids: Any) -> F32:
        """The points of some ids."""
        points = self.index.points(ids)
        return points if self.scale == 1 else points / np.float32(self.scale)

    def ids(self) -> IdArray | None:
        """The ids in their order; None where points are numbered."""
        return as_ids(self.index.ids) if self.named else None

    def parts(self) -> Parts:
        """What a file holds of it."""
        header, arrays = archive.to_parts(self.index._store)
        return {"kind": self.kind, "scale": self.scale, "named": self.named, "index": header}, arrays

    @classmethod
    def restored(cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]], settings: Settings, path: str) -> Any:
        """The engine that `parts` described."""
        scale, named, inner = header.get("scale"), header.get("named"), header.get("index")
        if not (isinstance(scale, float) and 0 < scale < math.inf and isinstance(named, bool)):
            raise FormatError(f"{path}: scale is {scale!r}, named {named!r}; needed: a factor, a bool")
        if not isinstance(inner, dict):
            raise FormatError(f"{path}: there is no description of the index (the file is damaged)")
        workers = check_threads(None)
        return cls(Index(archive.from_parts(inner, arrays, workers, path), workers), settings, scale, named)


class ProjectedEngine:
    """Candidates from an index of projected points, rescored from an index of whole ones where a copy is kept.

    A point is written to the copy first and removed from it last, so that the copy has whatever is found; a search that
    still misses one was overtaken by a removal, and is done again.
    """

    kind = "projected"

    def __init__(self, coarse: IndexEngine, whole: IndexEngine | None, axes: Axes, settings: Settings) -> None:
        self.coarse, self.whole, self.axes, self.settings = coarse, whole, axes, settings
        self.d = axes.d

    @classmethod
    def build(cls, points: F32, ids: IdArray | None, settings: Settings, threads: int | None) -> ProjectedEngine:
        """Train on the points, and add them."""
        if settings.projection is None:
            raise ValueError("the settings have no projection; needed: truncate() or pca()")
        axes = fit_axes(settings.projection, points)
        coarse = IndexEngine.build(axes.apply(points), ids, settings, threads, ReorderType.NO_REORDER)
        whole = None
        if settings.keeps_points:
            whole = IndexEngine.build(points, ids, _copy_only(settings), threads)
        return cls(coarse, whole, axes, settings)

    def __len__(self) -> int:
        return len(self.coarse)

    @property
    def docids(self) -> list[Any]:
        """The ids of all points."""
        return self.coarse.docids

    @property
    def codes_from(self) -> Index:
        """The index that has the codes."""
        return self.coarse.index

    def search(
        self, queries: F32, k: int, candidates: int | None, leaves: int | None, threads: int
    ) -> tuple[NDArray[Any], F32]:
        """The k best points of each query: ids and scores, which for l2 are negative squared distances."""
        projected = self.axes.apply(queries)
        if self.whole is None:
            ids, scores = self.coarse.search(projected, k, None, leaves, threads)
            offset = self.axes.offset(queries) if self.settings.metric == "dot" else None
            return ids, scores if offset is None else scores + offset[:, None]
        wanted = max(candidates or self.settings.candidates, k)
        step = max(1, _VALUES // (wanted * self.d))
        parts = [
            self._rescored(
                self.whole, queries[first : first + step], projected[first : first + step], k, wanted, leaves, threads
            )
            for first in range(0, max(len(queries), 1), step)
        ]
        k = min(part[0].shape[1] for part in parts)  # points may go between two parts
        return np.concatenate([ids[:, :k] for ids, _ in parts]), np.concatenate([scores[:, :k] for _, scores in parts])

    def _rescored(
        self, whole: IndexEngine, queries: F32, projected: F32, k: int, wanted: int, leaves: int | None, threads: int
    ) -> tuple[NDArray[Any], F32]:
        while True:
            ids, _ = self.coarse.search(projected, wanted, None, leaves, threads)
            try:
                points = whole.points_of(ids.ravel()).reshape(*ids.shape, self.d)
                break
            except KeyError:
                continue
        if self.settings.metric == "l2":
            scores = -np.einsum("qcd->qc", np.square(points - queries[:, None]))
        else:
            scores = np.einsum("qcd,qd->qc", points, queries)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1)

    def upsert(self, ids: IdArray, points: F32) -> None:
        """Write points under ids of their own; those that are there already get the new points."""
        if self.whole is not None:
            self.whole.upsert(ids, points)
        self.coarse.upsert(ids, self.axes.apply(points))

    def delete(self, ids: IdArray) -> None:
        """Remove points that are there."""
        self.coarse.delete(ids)
        if self.whole is not None:
            self.whole.delete(ids)

    def contains(self, ids: IdArray) -> NDArray[np.bool_]:
        """Which of the ids are there."""
        return self.coarse.contains(ids)

    def points(self) -> F32:
        """All points, in the order of docids, as near as the copy kept for rescoring is."""
        if self.whole is None:
            return self.coarse.points()  # which says that there is no copy
        return self.whole.points_of(self.coarse.index.ids)

    def ids(self) -> IdArray | None:
        """The ids in their order; None where points are numbered."""
        return self.coarse.ids()

    def parts(self) -> Parts:
        """What a file holds of it."""
        header: dict[str, Any] = {"kind": self.kind, "d": self.d, "kept": self.axes.kept}
        arrays: dict[str, NDArray[Any]] = {}
        for name, engine in (("coarse", self.coarse), ("whole", self.whole)):
            if engine is not None:
                header[name], inner = engine.parts()
                arrays |= {f"{name}_{key}": array for key, array in inner.items()}
        for name, array in (("axes", self.axes.matrix), ("rest", self.axes.rest)):
            if array is not None:
                arrays[name] = array
        return header, arrays

    @classmethod
    def restored(cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]], settings: Settings, path: str) -> Any:
        """The engine that `parts` described."""

        def engine(name: str, its: Settings) -> Any:
            inner = {key.removeprefix(f"{name}_"): array for key, array in arrays.items() if key.startswith(f"{name}_")}
            return IndexEngine.restored(header[name], inner, its, path) if name in header else None

        coarse, whole = engine("coarse", settings), engine("whole", _copy_only(settings))
        d, kept, matrix, rest = header.get("d"), header.get("kept"), arrays.get("axes"), arrays.get("rest")
        if coarse is None or not isinstance(d, int) or not isinstance(kept, int):
            raise FormatError(f"{path}: there is no index of projected points (the file is damaged)")
        fits = kept == coarse.d and (whole is None or whole.d == d)
        fits = fits and (whole is not None) == settings.keeps_points and (matrix is None) == (rest is None)
        fits = fits and (matrix is None or (matrix.shape == (d, kept) and matrix.dtype == np.float32))
        fits = fits and (rest is None or (rest.shape == (d,) and rest.dtype == np.float32))
        if not fits or (matrix is None and kept > d):
            raise FormatError(f"{path}: the projection and the indexes do not fit together (the file is damaged)")
        return cls(coarse, whole, Axes(d, kept, matrix, rest), settings)


def _copy_only(settings: Settings) -> Settings:
    """The same without leaves and codes: points of which only the copy is of use."""
    return Settings(settings.k, settings.metric, None, None, None, settings.copy, 0, False)
