"""Brute force over points that change: every score of float32 points computed, rows written and removed in place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aniso import _core
from aniso.errors import FormatError
from aniso.exact import measure_distances
from aniso.format import pack_strings, unpack_strings
from aniso.ids import IdArray, as_ids
from aniso.layout import PANEL

__all__ = ["ExactEngine"]

F32 = NDArray[np.float32]


class ExactEngine:
    """Points in panels of 16, as _core.exact_search reads them, and their ids.

    The last row takes the place of a removed one, so that a change costs no more than what it changes.
    """

    kind = "exact"

    def __init__(self, points: F32, ids: IdArray | None, metric: str) -> None:
        self.metric, self.n, self.d = metric, len(points), int(points.shape[1])
        self._turns = _Turns()
        # Shifted by the mean, squared distances lose less to rounding.
        mean = points.mean(axis=0, dtype=np.float64) if metric == "l2" and len(points) else np.zeros(self.d)
        self._shift: F32 = mean.astype(np.float32)
        self._panels = np.zeros((0, self.d, PANEL), np.float32)
        self._biases = np.zeros(0, np.float32)
        self._reserve(self.n)
        self._put(np.arange(self.n), points)
        self._ids: list[Any] | None = None if ids is None else ids.tolist()
        self._rows: dict[Any, int] = {} if ids is None else {name: row for row, name in enumerate(ids.tolist())}

    def __len__(self) -> int:
        return self.n

    @property
    def docids(self) -> list[Any]:
        """The ids of the rows, in their order."""
        return list(self._ids or [])

    @property
    def codes_from(self) -> None:
        """There are no codes."""
        return None

    def search(
        self, queries: F32, k: int, candidates: int | None, leaves: int | None, threads: int
    ) -> tuple[NDArray[Any], F32]:
        """The k best points of each query: ids and scores, which for l2 are negative squared distances."""
        with self._turns.read():
            k = min(k, self.n)
            rows, scores = np.empty((len(queries), k), np.int64), np.empty((len(queries), k), np.float32)
            if k == 0:
                return rows, scores
            q = queries - self._shift if self.metric == "l2" else queries
            panels = self._panels[: -(-self.n // PANEL)]
            _core.exact_search(q, panels, self._biases[: self.n], rows, scores, threads=threads)
            if self.metric == "l2":
                measure_distances(q, panels, rows, scores)
            if self._ids is None:
                return rows, scores
            named = np.empty(rows.size, object)
            named[:] = [self._ids[row] for row in rows.ravel().tolist()]
            return named.reshape(rows.shape), scores

    def upsert(self, ids: IdArray, points: F32) -> None:
        """Write points under ids of their own; those that are there already get the new points."""
        with self._turns.write():
            names = [] if self._ids is None else self._ids
            if names and isinstance(names[0], str) != (ids.dtype == object):
                raise TypeError(f"id {ids.tolist()[0]!r} is not of the kind of {names[0]!r}; needed: one kind of ids")
            rows = np.empty(len(points), np.int64)
            self._reserve(self.n + int(np.count_nonzero(~self.contains(ids))))
            for number, name in enumerate(ids.tolist()):
                row = self._rows.get(name)
                if row is None:
                    row = self._rows[name] = len(names)
                    names.append(name)
                rows[number] = row
            self._ids, self.n = names, len(names)
            self._put(rows, points)

    def delete(self, ids: IdArray) -> None:
        """Remove points that are there."""
        names = [] if self._ids is None else self._ids
        with self._turns.write():
            for name in ids.tolist():
                row, last = self._rows.pop(name), self.n - 1
                moved = names.pop()
                if row != last:
                    names[row], self._rows[moved] = moved, row
                    self._panels[row // PANEL, :, row % PANEL] = self._panels[last // PANEL, :, last % PANEL]
                    self._biases[row] = self._biases[last]
                self.n = last

    def contains(self, ids: IdArray) -> NDArray[np.bool_]:
        """Which of the ids are there."""
        return np.array([name in self._rows for name in ids.tolist()], np.bool_)

    def points(self) -> F32:
        """All points, in the order of docids."""
        rows = self._panels[: -(-self.n // PANEL)].transpose(0, 2, 1).reshape(-1, self.d)[: self.n]
        return np.ascontiguousarray(rows + self._shift if self.metric == "l2" else rows)

    def ids(self) -> IdArray | None:
        """The ids in their order; None where points are numbered."""
        return None if self._ids is None else as_ids(self._ids)

    def parts(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """What a file holds of it."""
        arrays: dict[str, NDArray[Any]] = {
            "panels": self._panels[: -(-self.n // PANEL)],
            "biases": self._biases[: self.n],
            "shift": self._shift,
        }
        ids = self.ids()
        if ids is not None and ids.dtype == object:
            arrays["names_text"], arrays["names_offsets"] = pack_strings(ids.tolist())
        elif ids is not None:
            arrays["numbers"] = ids
        return {"kind": self.kind, "metric": self.metric, "n": self.n, "d": self.d}, arrays

    @classmethod
    def restored(cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]], path: str) -> ExactEngine:
        """The engine that `parts` described."""
        n, d = header["n"], header["d"]
        whole = all(type(value) is int and value >= 0 for value in (n, d)) and header["metric"] in ("dot", "l2")
        shapes = {"panels": (-(-n // PANEL), d, PANEL), "biases": (n,), "shift": (d,)} if whole else {}
        fits = whole and all(
            name in arrays and arrays[name].shape == shape and arrays[name].dtype == np.float32
            for name, shape in shapes.items()
        )
        ids: IdArray | None = None
        if "names_text" in arrays and "names_offsets" in arrays:
            ids = as_ids(np.array(unpack_strings(arrays["names_text"], arrays["names_offsets"]), object))
        elif "numbers" in arrays and arrays["numbers"].dtype == np.int64:
            ids = arrays["numbers"]
        if not fits or (ids is not None and (ids.shape != (n,) or len(set(ids.tolist())) != n)):
            raise FormatError(f"{path}: the arrays of the points do not fit together (the file is damaged)")
        engine = cls(np.empty((0, d), np.float32), None, header["metric"])
        engine.n, engine._shift = n, arrays["shift"].copy()
        engine._panels, engine._biases = arrays["panels"].copy(), arrays["biases"].copy()
        if ids is not None:
            engine._ids = ids.tolist()
            engine._rows = {name: row for row, name in enumerate(engine._ids)}
        return engine

    def _reserve(self, n: int) -> None:
        """Room for n rows; what grows is expected to grow on."""
        if n > len(self._biases):
            room = max(n, len(self._biases) * 3 // 2)
            panels = np.zeros((-(-room // PANEL), self.d, PANEL), np.float32)
            panels[: len(self._panels)] = self._panels
            biases = np.zeros(PANEL * len(panels), np.float32)
            biases[: len(self._biases)] = self._biases
            self._panels, self._biases = panels, biases

    def _put(self, rows: NDArray[np.int64], points: F32) -> None:
        step = 65536  # rows written together: bounds the memory that it takes
        for first in range(0, len(rows), step):
            at, x = rows[first : first + step], points[first : first + step]
            if self.metric == "l2":
                x = x - self._shift
                self._biases[at] = -np.einsum("nd,nd->n", x, x, dtype=np.float64) / 2
            self._panels[at // PANEL, :, at % PANEL] = x


class _Turns:
    """Many may read at a time, or one may write."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = self._writers = 0  # who read, and who wait to write

    @contextmanager
    def read(self) -> Iterator[None]:
        with self._changed:
            while self._writers:
                self._changed.wait()
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def write(self) -> Iterator[None]:
        with self._changed:
            self._writers += 1
            try:
                while self._readers:
                    self._changed.wait()
                yield
            finally:
                self._writers -= 1
                self._changed.notify_all()
