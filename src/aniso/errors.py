"""What a user can get wrong about arrays and numbers, checked once, with a message that says what to do.

Every check returns the value in the form the library works with, so that a caller writes
``points = check_vectors(points, "points")`` and goes on.
"""

from __future__ import annotations

import operator
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aniso.arrays import as_array

__all__ = [
    "LEAST_NORM",
    "FormatError",
    "NotFittedError",
    "check_count",
    "check_number",
    "check_seed",
    "check_threads",
    "check_vectors",
]

_LARGEST_NORM, LEAST_NORM = 1e15, 1e-15  # squares and cubes of lengths must fit float32
_WHOLE = 1 << 24  # up to it, float32 holds every integer
_CHECK_ROWS = 65536  # rows looked at together, so that the check itself needs little memory


class NotFittedError(RuntimeError):
    """A quantizer was used before its ``fit``."""


class FormatError(ValueError):
    """A file that is damaged, truncated or not one of ours; the message names the file, the field and the offset."""


def check_vectors(
    vectors: Any, name: str, *, d: int | None = None, rows: int = 0, first_row: int = 0, small: bool = False
) -> NDArray[np.float32]:
    """The vectors as a C-contiguous float32 matrix of finite values; no copy where they are one already.

    first_row is the number of the first row in messages, for a part of something larger. small: all may be tiny.
    Floats and integers of any size are converted, and arrays of other libraries (docs/input.md). float64 is rounded; a
    value too large for float32 is an error, not an infinity, and so is an integer that float32 would round.
    """
    array = vectors if type(vectors) is np.ndarray and vectors.dtype.kind == "f" else as_array(vectors, name)
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise TypeError(f"{name} have dtype {array.dtype}; needed: float16, bfloat16, float32, float64 or integers")
    if array.ndim != 2:
        hint = f" (one vector alone: {name}[None, :])" if array.ndim == 1 else ""
        raise ValueError(f"{name} have shape {array.shape}; needed: (rows, dimensions){hint}")
    if array.shape[1] == 0:
        raise ValueError(f"{name} have 0 dimensions; needed: at least 1")
    if d is not None and array.shape[1] != d:
        raise ValueError(f"{name} have {array.shape[1]} dimensions, needed: {d} (was one of them truncated?)")
    if array.shape[0] < rows:
        raise ValueError(f"{name} have {array.shape[0]} rows; needed: at least {rows}")
    with np.errstate(over="ignore"):  # what overflows is found and named below
        matrix = np.require(array, np.float32, ["C", "A"])
    wide = array.dtype.kind != "f" and array.dtype.itemsize > 2  # integers that float32 may not hold
    largest = 0.0
    for first in range(0, len(matrix), _CHECK_ROWS):
        block = matrix[first : first + _CHECK_ROWS]
        with np.errstate(over="ignore", invalid="ignore"):
            squares = float(np.dot(block.ravel(), block.ravel()))
        largest = max(largest, squares)
        if not squares <= _LARGEST_NORM**2:  # the slow look happens only when something may be wrong
            _check_rows(array[first : first + _CHECK_ROWS], block, first_row + first, name)
        if wide and squares >= _WHOLE**2:  # no sum of squares is less than one of them
            _check_integers(array[first : first + _CHECK_ROWS], first_row + first, name)
    if not small and len(matrix) and largest < LEAST_NORM**2 and (largest > 0 or matrix.any()):
        raise ValueError(f"no row of {name} is longer than {LEAST_NORM:g}, too small for float32 (scale them up)")
    return matrix


def _check_rows(array: NDArray[Any], block: NDArray[np.float32], first: int, name: str) -> None:
    """Name the first value of a block that is not finite, or its first row that is too long."""
    bad = np.flatnonzero(~np.isfinite(block).all(axis=1))
    if len(bad):
        row = int(bad[0])
        column = int(np.flatnonzero(~np.isfinite(block[row]))[0])
        value = array[row, column]
        why = "is not finite" if not np.isfinite(value) else "is too large for float32"
        raise ValueError(f"{name} row {first + row}, dimension {column} {why}: {value} (drop or mend that row)")
    norms = np.linalg.norm(block.astype(np.float64), axis=1)
    if norms.max() > _LARGEST_NORM:
        row = int(norms.argmax())
        raise ValueError(
            f"{name} row {first + row} has norm {norms[row]:g}; needed: at most {_LARGEST_NORM:g}, so that its square "
            "fits float32 (scale the vectors down)"
        )


def _check_integers(block: NDArray[Any], first: int, name: str) -> None:
    """Name the first integer that float32 would round: its highest and lowest set bits lie 24 places apart or more."""
    size = np.abs(block).astype(np.uint64)  # the least int64 stays negative, and is right again as a uint64
    lowest = size & (~size + np.uint64(1))
    bad = np.argwhere(size >> np.uint64(24) >= np.maximum(lowest, 1))
    if len(bad):
        row, column = (int(x) for x in bad[0])
        value = block[row, column]
        raise ValueError(
            f"{name} row {first + row}, dimension {column} is {value}, which float32 would round to "
            f"{int(np.float32(value))} (scale the vectors down, or accept it: {name}.astype(np.float32))"
        )


def check_count(value: Any, name: str, *, least: int = 1, most: int | None = None) -> int:
    """The value as an int within [least, most]."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None
    if number < least or (most is not None and number > most):
        limits = f"at least {least}" if most is None else f"{least} to {most}"
        raise ValueError(f"{name} is {number}; needed: {limits}")
    return number


def check_seed(seed: Any) -> int:
    """The seed as a non-negative int."""
    return check_count(seed, "seed", least=0)


def check_number(value: Any, name: str) -> float:
    """A number, perhaps infinite."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} is {value!r}; needed: a number")
    if np.isnan(value):
        raise ValueError(f"{name} is {value}; needed: a number")
    return float(value)


def check_threads(threads: Any) -> int:
    """The number of threads: as given, or every core this process may use for None."""
    if threads is None:
        affinity = getattr(os, "sched_getaffinity", None)
        return len(affinity(0)) if affinity else (os.cpu_count() or 1)
    return check_count(threads, "threads", most=1024)
