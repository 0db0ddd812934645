"""Benchmark data sets in the ann-benchmarks HDF5 layout, found by name in the folder that ANISO_DATA names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["Dataset", "folder", "load"]

_METRICS = {"angular": "cosine", "euclidean": "l2", "dot": "dot"}


@dataclass(frozen=True)
class Dataset:
    """Points, queries, and the exact answers."""

    name: str
    metric: str  # "dot", "cosine" or "l2"
    points: NDArray[np.float32]  # (n, d)
    queries: NDArray[np.float32]  # (q, d)
    neighbors: NDArray[np.int64]  # (q, 100) ids of the best points, best first

    def unit(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Points and queries divided by their norms, which turns cosine into dot."""
        return tuple(x / np.linalg.norm(x, axis=1, keepdims=True) for x in (self.points, self.queries))


def folder() -> Path:
    """Where data sets are looked for: $ANISO_DATA, else aniso in the user's cache folder."""
    named = os.environ.get("ANISO_DATA")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(cache) / "aniso"


def load(name: str) -> Dataset:
    """The data set of that name, e.g. "glove-100-angular"; needs the extra `aniso[data]`.

    A file may hold the answers alone and name, in its attribute `vectors`, the data set it shares the vectors with.
    """
    import h5py

    path = folder() / f"{name}.hdf5"
    if not path.is_file():
        known = sorted(p.stem for p in folder().glob("*.hdf5"))
        raise FileNotFoundError(
            f"no data set {name!r} in {folder()} (there: {', '.join(known) or 'none'}); download {name}.hdf5 from "
            "ann-benchmarks into that folder, or name another folder in ANISO_DATA"
        )
    with h5py.File(path) as file:
        metric = _METRICS[str(file.attrs["distance"])]
        neighbors = file["neighbors"][:].astype(np.int64)
        if "train" in file:
            points, queries = (file[part][:].astype(np.float32) for part in ("train", "test"))
        else:
            other = load(Path(str(file.attrs["vectors"])).stem)
            points, queries = other.points, other.queries
    return Dataset(name, metric, points, queries, neighbors)
