"""The points of a searcher under a config: searched, changed, and trained anew when that is due.

A search reads one engine from beginning to end. A change goes to the engine in place; training anew makes another one
beside it and puts it in its place.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aniso.compat.scann.config_text import Message, read, write
from aniso.compat.scann.exact_engine import ExactEngine
from aniso.compat.scann.index_engine import IndexEngine, Parts, ProjectedEngine
from aniso.compat.scann.settings import Settings
from aniso.compat.scann.stanzas import ReorderType, first_tree, suggest
from aniso.errors import FormatError
from aniso.ids import IdArray

__all__ = ["Collection", "Engine"]

F32 = NDArray[np.float32]
Engine = ExactEngine | IndexEngine | ProjectedEngine

_GROWTH = 4  # times the points it was trained on: until there are enough, a searcher that began empty is trained anew
_ENOUGH = 100  # points to train on for each leaf


class Collection:
    """Points and their ids, the engine that searches them, and the config that says how."""

    def __init__(self, config: Message, d: int, named: bool, threads: int | None = None) -> None:
        self.config, self.settings = config, Settings.read(config)
        self.d, self.named, self.threads = d, named, threads
        self.engine: Engine | None = None  # None as long as there was never a point
        self._trained_on = 0
        self._changes = 0  # since training
        self._young = False  # began empty, and has not enough points yet
        self.lock = threading.RLock()  # held by who changes it, and by who must see one state of it all

    @classmethod
    def build(cls, points: F32, ids: IdArray | None, config: str, threads: int | None) -> Collection:
        """A collection of the points; ids None numbers them, and they stay as they are."""
        made = cls(_resolved(read(config), *points.shape), points.shape[1], ids is not None, threads)
        if len(points):
            made._train(points, ids)
        elif made.settings.hash is not None and not made.settings.keeps_points:
            raise ValueError(
                "score_ah alone cannot start from no points: there is no copy of them to train on later; needed: "
                "points to begin with, or reorder()"
            )
        else:
            made._young = True
        return made

    def __len__(self) -> int:
        return 0 if self.engine is None else len(self.engine)

    @property
    def docids(self) -> list[Any]:
        """The ids of all points."""
        return [] if self.engine is None else self.engine.docids

    def search(
        self, queries: F32, k: int, candidates: int | None, leaves: int | None, threads: int
    ) -> tuple[NDArray[Any], F32]:
        """Ids and scores of the k best points of each query, or of all if there are fewer."""
        engine = self.engine
        if engine is None:
            return np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32)
        return engine.search(queries, k, candidates, leaves, threads)

    def upsert(self, ids: IdArray, points: F32) -> None:
        """Write points that were checked, each under an id of its own."""
        if not len(points):
            return
        with self.lock:
            if self.engine is None:
                self._train(points, ids)
            else:
                self.engine.upsert(ids, points)
                self._changes += len(points)
            self._train_if_due()

    def delete(self, ids: IdArray) -> None:
        """Remove points; KeyError names an id that none has, or that is given twice, and then none is removed."""
        with self.lock:
            seen: set[Any] = set()
            there = np.zeros(len(ids), np.bool_) if self.engine is None else self.engine.contains(ids)
            for name, known in zip(ids.tolist(), there.tolist(), strict=True):
                if not known or name in seen:
                    why = "is given twice" if known else "is not there"
                    raise KeyError(f"docid {name!r} {why} (nothing was removed; docids lists those that are there)")
                seen.add(name)
            if self.engine is not None and len(ids):
                self.engine.delete(ids)
                self._changes += len(ids)
                self._train_if_due()

    def rebalance(self, config: str | None) -> int:
        """Train anew on the points that are there, with another config if one is given; how many points there are."""
        with self.lock:
            wanted = read(config) if config else self.config
            wanted = _resolved(wanted, len(self), self.d)
            settings = Settings.read(wanted)
            if len(self):
                if not self.settings.keeps_points:
                    raise ValueError(
                        "the searcher keeps no copy of its points to train on; needed: reorder() in its builder"
                    )
                self._retrain(wanted)
            elif write(wanted) != write(self.config):  # what was trained survives, but not for something else
                self.config, self.settings, self.engine = wanted, settings, None
                self._young = True
            return len(self)

    def _train(self, points: F32, ids: IdArray | None) -> None:
        settings = self.settings
        if settings.hash is not None and settings.projection is not None:
            self.engine = ProjectedEngine.build(points, ids, settings, self.threads)
        elif settings.hash is None and settings.tree is None and settings.copy == ReorderType.FLOAT32:
            self.engine = ExactEngine(points, ids, settings.metric)
        else:
            self.engine = IndexEngine.build(points, ids, settings, self.threads)
        self._trained_on, self._changes = len(points), 0

    def _retrain(self, config: Message) -> None:
        """The same points under a config, which may be another."""
        if self.engine is None:
            return
        points, ids, before = self.engine.points(), self.engine.ids(), (self.config, self.settings)
        self.config, self.settings = config, Settings.read(config)
        try:
            self._train(points, ids)
        except BaseException:
            self.config, self.settings = before
            raise

    def _train_if_due(self) -> None:
        """Training anew that a change makes due: what autopilot and incremental_threshold ask for."""
        n, settings = len(self), self.settings
        if not n or not settings.keeps_points:
            return
        tree, wanted = settings.tree, n
        if settings.online:
            least = first_tree(self.d)
            if (tree is None and n >= least) or (tree is not None and n < least // 2):
                self._retrain(_resolved(self.config, n, self.d))
                return
            wanted = max(n, least)  # a tree stays until half its least number of points is left
        if tree is not None and tree.incremental is not None:
            share = isinstance(tree.incremental, float)
            if self._changes > tree.incremental * (self._trained_on if share else 1):
                self._retrain(_resolved(self.config, wanted, self.d))
        elif self._young and (settings.hash is not None or tree is not None):
            enough = _ENOUGH * (tree.leaves if tree else 16)
            if n >= _GROWTH * self._trained_on and self._trained_on < enough:
                self._retrain(self.config)

    def parts(self) -> Parts:
        """What a file holds of it."""
        header, arrays = ({}, {}) if self.engine is None else self.engine.parts()
        return {
            "kind": "scann",
            "config": write(self.config),
            "d": self.d,
            "named": self.named,
            "trained_on": self._trained_on,
            "changes": self._changes,
            "young": self._young,
            "engine": header,
        }, arrays

    @classmethod
    def restored(cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]], path: str) -> Collection:
        """The collection that `parts` described; FormatError names what does not fit."""
        types = {
            "config": str,
            "d": int,
            "named": bool,
            "trained_on": int,
            "changes": int,
            "young": bool,
            "engine": dict,
        }
        for name, kind in types.items():
            if type(header.get(name)) is not kind:
                raise FormatError(
                    f"{path}: {name} is {header.get(name)!r}; needed: {kind.__name__} (is this a searcher?)"
                )
        try:
            made = cls(read(header["config"]), header["d"], header["named"])
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{path}: in config: {error} (the file is damaged)") from None
        made._trained_on, made._changes, made._young = header["trained_on"], header["changes"], header["young"]
        inner, settings = header["engine"], made.settings
        if inner:
            try:
                made.engine = _restored_engine(inner, arrays, settings, path)
            except KeyError as error:
                raise FormatError(f"{path}: there is no {error} (the file is damaged)") from None
            if made.engine.d != made.d:
                raise FormatError(f"{path}: d is {made.d}; needed: {made.engine.d}, as in the engine")
        return made


def _restored_engine(header: dict[str, Any], arrays: dict[str, NDArray[Any]], settings: Settings, path: str) -> Engine:
    kind = header.get("kind")
    projected = settings.hash is not None and settings.projection is not None
    exact = settings.hash is None and settings.tree is None and settings.copy == ReorderType.FLOAT32
    needed = "projected" if projected else "exact" if exact else "index"
    if kind != needed:
        raise FormatError(f"{path}: the engine is {kind!r}; needed: {needed!r}, by the config (the file is damaged)")
    if exact:
        return ExactEngine.restored(header, arrays, path)
    made: Engine = (ProjectedEngine if projected else IndexEngine).restored(header, arrays, settings, path)
    return made


def _resolved(config: Message, n: int, d: int) -> Message:
    """The config, with an autopilot's choice for so many points."""
    return suggest(config, n, d) if "autopilot" in config else config
