"""What is asked of a library that aniso is compared with: to be built, saved, loaded and asked; its grids."""

from __future__ import annotations

import importlib
import importlib.metadata
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["F32", "Knobs", "Library", "Series", "Settings", "library", "rising", "scaled"]

F32 = NDArray[np.float32]
Settings = dict[str, Any]
Knobs = dict[str, Any]
Series = list[Knobs]

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
    """The module of that name, imported when it is needed."""
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
