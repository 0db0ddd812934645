"""The ids of points: whole numbers or strings, what a caller may write for them, and which row each one has.

A row is a place in the arrays of an index and never shown; an id is what the user calls the point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aniso.errors import FormatError
from aniso.format import pack_strings, unpack_strings

__all__ = ["IdArray", "Names", "as_ids", "check_unique", "in_order", "missing"]

IdArray = NDArray[Any]  # int64, or objects that are str


def as_ids(ids: Any, count: int | None = None) -> IdArray:
    """The ids as an int64 array or an array of str objects; one id alone is an array of one.

    >>> as_ids([3, 1]), as_ids({"cat"})
    (array([3, 1]), array(['cat'], dtype=object))
    """
    if isinstance(ids, (str, bytes)) or (np.ndim(ids) == 0 and not isinstance(ids, (set, frozenset))):
        ids = [ids]
    if isinstance(ids, (set, frozenset)):
        ids = list(ids)
    array = np.asarray(ids) if isinstance(ids, (np.ndarray, range)) or hasattr(ids, "__array__") else _listed(ids)
    if array.ndim != 1:
        raise ValueError(f"ids have shape {array.shape}; needed: one axis, an id per point")
    if count is not None and len(array) != count:
        raise ValueError(f"{len(array)} ids were given for {count} points; needed: one for each")
    if not len(array) and array.dtype.kind not in "iuUO":
        return np.empty(0, np.int64)
    if array.dtype.kind == "u" and array.dtype.itemsize == 8 and array.max(initial=0) > np.iinfo(np.int64).max:
        raise ValueError(f"id {array.max()} is beyond int64; needed: below 2**63 (or use str ids)")
    if array.dtype.kind in "iu":
        return np.ascontiguousarray(array, np.int64)
    if array.dtype.kind in "UT":
        array = array.astype(object)
    if array.dtype != object:
        raise TypeError(f"ids have dtype {array.dtype}; needed: whole numbers (int64) or str")
    return _objects(array)


def in_order(ids: Any) -> Any:
    """The ids of points that come in an order: TypeError for what has none, or can be read only once."""
    if isinstance(ids, (Set, Mapping)) or (isinstance(ids, Iterable) and not hasattr(ids, "__len__")):
        kind = type(ids).__name__
        raise TypeError(f"ids are a {kind}; needed: a list or an array, an id for each point in their order")
    return ids


def _listed(ids: Iterable[Any]) -> NDArray[Any]:
    """An array of objects: NumPy would turn a list of 1 and "a" into two strings."""
    values = list(ids)
    array = np.empty(len(values), object)
    array[:] = values if all(np.ndim(value) == 0 for value in values) else [str(value) for value in values]
    if any(np.ndim(value) for value in values):
        raise ValueError("ids are nested; needed: one axis, an id per point")
    return array


def _objects(array: NDArray[Any]) -> IdArray:
    """Objects as ids, if all are whole numbers or all are str."""
    values = array.tolist()
    if all(isinstance(value, str) for value in values):
        _check_strings(values)
        return array
    numbers = [value for value in values if isinstance(value, (int, np.integer)) and not isinstance(value, bool)]
    if len(numbers) < len(values):
        wrong = (
            next(v for v in values if not isinstance(v, (str, int, np.integer)) or isinstance(v, bool))
            if not any(isinstance(v, str) for v in values)
            else next(v for v in values if not isinstance(v, str))
        )
        raise TypeError(f"id {wrong!r} is a {type(wrong).__name__}; needed: all whole numbers (int64) or all str")
    try:
        return np.array(numbers, np.int64)
    except OverflowError:
        large = max(numbers, key=abs)
        raise ValueError(f"id {large} is beyond int64; needed: below 2**63 in size (or use str ids)") from None


def _check_strings(ids: list[str]) -> None:
    """ValueError for a str that neither NumPy's strings nor UTF-8 can hold."""
    try:
        "".join(ids).encode()
    except UnicodeEncodeError as error:
        at, first = error.start, 0
        for value in ids:
            first += len(value)
            if at < first:
                raise ValueError(f"id {value!r} cannot be written as UTF-8 ({error.reason}; mend it)") from None
    cut = next((value for value in ids if value.endswith("\0")), None)
    if cut is not None:
        raise ValueError(f"id {cut!r} ends in a NUL, which NumPy drops at the end of a str (leave it out)")


def check_unique(ids: IdArray) -> None:
    """Refuse ids of which one is there twice, and name it."""
    seen: set[Any] = set()
    if len(ids) > 1 and (ids.dtype == object or len(np.unique(ids)) < len(ids)):
        for value in ids.tolist():
            if value in seen:
                raise ValueError(f"id {value!r} is given twice; needed: each id once")
            seen.add(value)


def missing(value: Any, kind: str) -> KeyError:
    """The error for an id that is not in the index."""
    return KeyError(f"no point has the id {value!r} (the index has {kind} ids; index.ids lists them)")


class Names:
    """The str ids of rows: packed as a file holds them, or as objects once they change."""

    def __init__(
        self,
        packed: tuple[NDArray[np.uint8], NDArray[np.int64]] | None = None,
        objects: Sequence[str] = (),
        path: str = "",
    ) -> None:
        self._packed = packed
        self._objects = list(objects)
        self._path = path  # of the file that they are packed in

    def of(self, rows: NDArray[np.int64]) -> IdArray:
        """The ids of some rows, as objects."""
        out = np.empty(rows.size, object)
        if self._packed is None:
            names = self._objects
            out[:] = [names[row] for row in rows.ravel().tolist()]
        else:
            text, offsets = self._packed
            try:
                out[:] = [
                    str(text[offsets[row] : offsets[row + 1]].tobytes(), "utf-8") for row in rows.ravel().tolist()
                ]
            except UnicodeDecodeError as error:
                raise FormatError(
                    f"{self._path}: array 'names_text' holds an id that is not UTF-8: {error} (the file is damaged)"
                ) from None
        return out.reshape(rows.shape)

    def extended(self, n: int, ids: Sequence[str]) -> Names:
        """The names of n rows, and those of new ones. The list is shared: nobody reads beyond their own rows."""
        if self._packed is not None or len(self._objects) != n:
            return Names(objects=[*self.listed()[:n], *ids])
        grown = Names()
        grown._objects = self._objects
        grown._objects.extend(ids)
        return grown

    def listed(self) -> list[str]:
        """All of them."""
        if self._packed is None:
            return self._objects
        try:
            return unpack_strings(*self._packed)
        except FormatError as error:
            raise FormatError(f"{self._path}: array 'names_text': {error} (the file is damaged)") from None

    def packed(self, n: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The names of n rows as a file holds them."""
        return self._packed if self._packed is not None else pack_strings(self._objects[:n])
