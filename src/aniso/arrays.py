"""Arrays of other libraries as NumPy arrays: torch, anything with DLPack, pyarrow, pandas, bfloat16.

None of these libraries is imported here: a value can only be theirs if its library is loaded already. Nothing is copied
where NumPy can look at the same memory. docs/input.md has the table of what is accepted.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["as_array"]

_HOST_DEVICES = (1, 3)  # DLPack's numbers for a CPU, and for memory of the host that a GPU can read too


def as_array(vectors: Any, name: str) -> NDArray[Any]:
    """The vectors as a NumPy array of their own dtype, without a copy where possible; bfloat16 becomes float32.

    Whether dtype and shape are those of vectors is not looked at: that is for errors.check_vectors, which calls this.

    >>> as_array([[1, 2], [3, 4]], "points").shape
    (2, 2)
    """
    if isinstance(vectors, np.ndarray):
        array = _unmasked(vectors, name)
    elif _is("torch", "Tensor", vectors):
        array = _from_torch(vectors, name)
    elif _is("pyarrow", "Array", vectors) or _is("pyarrow", "ChunkedArray", vectors):
        array = _from_arrow(vectors, name)
    elif _is("pyarrow", "Table", vectors) or _is("pyarrow", "RecordBatch", vectors):
        columns = ", ".join(map(str, vectors.schema.names))
        raise TypeError(f"{name} are a table; needed: one column of it, table[column] (there: {columns})")
    elif _is("pandas", "DataFrame", vectors):
        array = _from_pandas(vectors, name)
    elif hasattr(vectors, "__dlpack_device__"):
        array = _from_dlpack(vectors, name)
    elif isinstance(vectors, (list, tuple)) and vectors and _is_foreign(vectors[0]):
        array = _joined([as_array(row, name) for row in vectors], name)
    else:
        try:
            array = np.asarray(vectors)
        except ValueError as error:
            raise ValueError(f"{name} must be a matrix of numbers, one row per vector: {error}") from None
    if array.dtype.kind == "V" and array.dtype.name == "bfloat16":  # a dtype that ml_dtypes adds to NumPy
        return array.astype(np.float32)
    return array


def _is(library: str, kind: str, value: Any) -> bool:
    """Whether the value is of that class of a library, which is not loaded for the question."""
    found = getattr(sys.modules.get(library), kind, None)
    return isinstance(found, type) and isinstance(value, found)


def _is_foreign(row: Any) -> bool:
    return hasattr(row, "__dlpack_device__") and not isinstance(row, (np.ndarray, np.generic))


def _unmasked(vectors: NDArray[Any], name: str) -> NDArray[Any]:
    if _is("numpy.ma", "MaskedArray", vectors) and np.ma.is_masked(vectors):
        row = int(np.argwhere(np.ma.getmaskarray(vectors))[0][0])
        raise ValueError(f"{name} have masked values, the first in row {row}; needed: every value (fill or drop them)")
    return np.asarray(vectors)


def _joined(rows: list[NDArray[Any]], name: str) -> NDArray[Any]:
    try:
        return np.stack(rows)
    except ValueError as error:
        raise ValueError(f"{name} must be a matrix of numbers, one row per vector: {error}") from None


def _from_torch(tensor: Any, name: str) -> NDArray[Any]:
    if tensor.device.type != "cpu":
        raise TypeError(f"{name} are a tensor on device {str(tensor.device)!r}; needed: one on the CPU (use .cpu())")
    if str(tensor.dtype) == "torch.bfloat16":
        tensor = tensor.float()  # NumPy has no bfloat16; each one is a float32
    try:
        return np.asarray(tensor.numpy(force=True))  # force: although it may record gradients
    except TypeError as error:
        raise TypeError(f"{name} are a tensor that NumPy cannot hold: {error}") from None


def _from_dlpack(vectors: Any, name: str) -> NDArray[Any]:
    device = vectors.__dlpack_device__()
    if int(device[0]) not in _HOST_DEVICES:
        where = f"device {(int(device[0]), int(device[1]))} of DLPack"
        raise TypeError(f"{name} are a {type(vectors).__name__} on {where}; needed: an array in memory of the CPU")
    try:
        if hasattr(vectors, "__array__"):  # it knows dtypes that DLPack does not
            return np.asarray(vectors)
        array: NDArray[Any] = np.from_dlpack(vectors)
        return array
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"{name} are a {type(vectors).__name__} that NumPy cannot hold: {error}") from None


def _from_pandas(frame: Any, name: str) -> NDArray[Any]:
    """Columns of pandas' own dtypes, which can miss values, would become objects."""
    if not any(hasattr(dtype, "numpy_dtype") for dtype in frame.dtypes):
        return np.asarray(frame)
    missing = np.asarray(frame.isna())
    if missing.any():
        row, column = (int(x) for x in np.argwhere(missing)[0])
        where = f"row {row}, column {frame.columns[column]!r}"
        raise ValueError(f"{name} {where} is missing; needed: a number in every place (fill or drop that row)")
    dtypes = [np.dtype(getattr(dtype, "numpy_dtype", dtype)) for dtype in frame.dtypes]
    for column, dtype in zip(frame.columns, dtypes, strict=True):
        if dtype.kind not in "fiu":  # which may not hide behind the dtype that all columns share
            raise TypeError(f"{name} column {column!r} has dtype {frame[column].dtype}; needed: numbers")
    return np.asarray(frame.to_numpy(dtype=np.result_type(*dtypes)))


def _from_arrow(column: Any, name: str) -> NDArray[Any]:
    """A column of lists that all have one length; a chunk at a time, joined only if there are several."""
    arrow = sys.modules["pyarrow"]
    kind = getattr(column.type, "storage_type", column.type)  # of an extension, such as a tensor of fixed shape
    lists = (arrow.types.is_fixed_size_list, arrow.types.is_list, arrow.types.is_large_list)
    if not any(is_lists(kind) for is_lists in lists):
        raise TypeError(f"{name} are a column of {column.type}; needed: a column of lists, one per vector")
    value = kind.value_type
    if not arrow.types.is_floating(value) and not arrow.types.is_integer(value):
        raise TypeError(f"{name} are a column of {column.type}; needed: lists of floats or integers")
    chunks = column.chunks if hasattr(column, "chunks") else [column]
    widths = [kind.list_size] if arrow.types.is_fixed_size_list(kind) else []
    parts: list[NDArray[Any]] = []
    first = 0
    for chunk in chunks:
        parts.append(_from_chunk(getattr(chunk, "storage", chunk), name, first, widths))
        first += len(chunk)
    if len(parts) == 1:
        return parts[0]
    nothing = np.empty((0, widths[0] if widths else 0), value.to_pandas_dtype())
    return np.concatenate([part for part in parts if len(part)] or [nothing])


def _from_chunk(chunk: Any, name: str, first: int, widths: list[int]) -> NDArray[Any]:
    """The rows of one chunk. widths gets the length of the lists, once it is known from a first list."""
    if chunk.null_count:
        row = int(np.argmax(chunk.is_null().to_numpy(zero_copy_only=False)))
        raise ValueError(f"{name} row {first + row} is null; needed: a vector in every row (drop that row)")
    if hasattr(chunk, "value_lengths") and len(chunk):
        lengths = chunk.value_lengths().to_numpy(zero_copy_only=False)
        if not widths:
            widths.append(int(lengths[0]))
        wrong = np.flatnonzero(lengths != widths[0])
        if len(wrong):
            row = int(wrong[0])
            was = f"row {first + row} has {lengths[row]} dimensions, those before it {widths[0]}"
            raise ValueError(f"{name} {was}; needed: the same in every row (was one of them truncated?)")
    width = widths[0] if widths else 0
    values = chunk.flatten()
    if values.null_count:
        at = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
        where = f"row {first + at // width}, dimension {at % width}"
        raise ValueError(f"{name} {where} is null; needed: a number in every place (drop or mend that row)")
    return np.asarray(values.to_numpy(zero_copy_only=True)).reshape(len(chunk), width)
