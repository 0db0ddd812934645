"""Vectors from files, and benchmark data sets by name.

The sets are HDF5 files in the ann-benchmarks layout, looked for in the folder that ANISO_DATA names.
"""

from __future__ import annotations

import importlib
import os
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aniso.arrays import as_array

__all__ = ["Dataset", "folder", "load", "read_vectors"]

_CHECK_ROWS = 1 << 20  # rows of a file of records whose dimensions are looked at together
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


def read_vectors(path: str | os.PathLike[str]) -> NDArray[Any]:
    """The matrix in a file, with the dtype it has there, memory-mapped where possible.

    The end of the name tells the kind: .npy, .npz, .hdf5, .h5, .fvecs, .bvecs, .ivecs or .parquet. "path::name" picks
    an array, a data set or a column where there are several; docs/input.md says which one it is by default.
    """
    given = os.fspath(path)
    file, name = Path(given), ""
    if "::" in given and not file.exists():
        before, _, name = given.rpartition("::")
        file = Path(before)
    read = _READERS.get(file.suffix.lower())
    if read is None:
        known = ", ".join(_READERS)
        raise ValueError(f"{file} ends in {file.suffix!r}; needed: one of {known} (or load it and pass the array)")
    if not file.is_file():
        raise FileNotFoundError(f"no file {file}" + (" (it is a folder)" if file.is_dir() else ""))
    if name and read in (_read_npy, _read_records):
        raise ValueError(f"{given}: a {file.suffix} file holds one matrix; needed: the path without ::{name}")
    array = read(file, name)
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise ValueError(f"{given} holds {array.dtype} of shape {array.shape}; needed: numbers, (rows, dimensions)")
    return array


def _read_npy(path: Path, _: str) -> NDArray[Any]:
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is not a whole .npy file of numbers: {error}") from None


def _read_npz(path: Path, name: str) -> NDArray[Any]:
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not a whole .npz file: its list of arrays is missing (was it truncated?)")
    with np.load(path, allow_pickle=False) as file:
        key = _choose(path, "array", file.files, name, "vectors")
        try:
            return np.asarray(file[key])
        except (zipfile.BadZipFile, ValueError, EOFError) as error:
            raise ValueError(f"{path} is not a whole .npz file of numbers: {key!r}: {error}") from None


def _read_hdf5(path: Path, name: str) -> NDArray[Any]:
    h5py = _library("h5py", path)
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path} is not a whole HDF5 file: {error}") from None
    with file:
        sets = {key: item for key, item in file.items() if isinstance(item, h5py.Dataset)}
        if name in file and isinstance(file[name], h5py.Dataset):
            sets[name] = file[name]  # it may lie in a group
        found = sets[_choose(path, "data set", sets, name, "train")]
        place = found.id.get_offset() if file.userblock_size == 0 else None
        if place is None or not found.size:  # in chunks, compressed, or not written at all
            return np.asarray(found[()])
        return np.asarray(np.memmap(path, found.dtype, "r", place, found.shape))


def _read_parquet(path: Path, name: str) -> NDArray[Any]:
    arrow, parquet = _library("pyarrow", path), _library("pyarrow.parquet", path)
    try:
        schema = parquet.read_schema(path)
        kinds = (arrow.types.is_fixed_size_list, arrow.types.is_list, arrow.types.is_large_list)
        lists = [field.name for field in schema if any(is_lists(field.type) for is_lists in kinds)]
        column = _choose(path, "column", [name] if name in schema.names else lists, name, "vectors")
        table = parquet.read_table(path, columns=[column])
    except arrow.ArrowInvalid as error:
        raise ValueError(f"{path} is not a whole Parquet file: {error}") from None
    return as_array(table[column], f"{path}::{column}")


def _read_records(path: Path, _: str) -> NDArray[Any]:
    """.fvecs, .bvecs and .ivecs: each vector after its dimension, an int32, all little-endian."""
    dtype = np.dtype({".fvecs": "<f4", ".bvecs": "u1", ".ivecs": "<i4"}[path.suffix.lower()])
    size = path.stat().st_size
    if size < 4:
        raise ValueError(f"{path} has {size} bytes; needed: at least one vector")
    d = int(np.fromfile(path, "<i4", 1)[0])
    if d < 1:
        raise ValueError(f"{path} begins with the dimension {d}; needed: at least 1 (is it a {path.suffix} file?)")
    length = 4 + d * dtype.itemsize
    if size % length:
        raise ValueError(
            f"{path} has {size} bytes, which is not a whole number of vectors of {d} dimensions, {length} bytes each "
            "(was it truncated?)"
        )
    records = np.memmap(path, np.uint8, "r", shape=(size // length, length))
    for first in range(0, len(records), _CHECK_ROWS):
        dimensions = records[first : first + _CHECK_ROWS, :4].view("<i4")[:, 0]
        wrong = np.flatnonzero(dimensions != d)
        if len(wrong):
            row = first + int(wrong[0])
            raise ValueError(
                f"{path} row {row} has dimension {dimensions[wrong[0]]} at byte {row * length}, those before it {d}; "
                "needed: the same in every row (was the file damaged?)"
            )
    return np.asarray(records[:, 4:].view(dtype))


def _choose(path: Path, what: str, there: Iterable[str], name: str, usual: str) -> str:
    """The name asked for, else the usual one, else the only one."""
    names = list(there)
    if name in names or (not name and usual in names):
        return name or usual
    if not name and len(names) == 1:
        return names[0]
    listed = ", ".join(names) or "none"
    if name:
        raise ValueError(f"{path} has no {what} {name!r} (there: {listed})")
    raise ValueError(f"{path} has no {what} {usual!r}; needed: {path}::name of one that it has (there: {listed})")


def _library(name: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        library = name.partition(".")[0]
        raise ImportError(f'to read {path} needs {library}: pip install "aniso[data]"', name=library) from None


_READERS: dict[str, Callable[[Path, str], NDArray[Any]]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".hdf5": _read_hdf5,
    ".h5": _read_hdf5,
    ".fvecs": _read_records,
    ".bvecs": _read_records,
    ".ivecs": _read_records,
    ".parquet": _read_parquet,
}
