"""What the header of a file may say: JSON that comes back as it was, and where each array lies; checked both ways.

docs/format.md is the definition. Every number of a file is checked as a Python integer, which cannot overflow, before
NumPy sees it.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from aniso.errors import FormatError

__all__ = ["Entry", "aligned", "check_array", "check_json", "decode", "encode", "lay_out", "refuse"]

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register
LARGEST = 1 << 20  # bytes of a header: bounds what a damaged length can make us read

_DTYPES = {name: np.dtype("<" + name) for name in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")}
_MOST_AXES = 32  # what NumPy 1 can make an array of
_INTEGERS = 2**64  # beyond it a number is not one that another language could read
_DEEPEST = 64  # levels of the header: far from any recursion limit
_KEYS = {"crc32", "dtype", "offset", "shape", "size"}  # what is said of an array


class Entry(NamedTuple):
    """An array of a file that was found to be possible."""

    dtype: np.dtype[Any]
    shape: list[int]
    offset: int  # bytes from the beginning of the file
    size: int  # bytes
    crc32: str  # 8 hexadecimal digits


def aligned(position: int) -> int:
    """The first multiple of the alignment that is not below the position."""
    return -(-position // ALIGNMENT) * ALIGNMENT


# What a caller wants to save


def check_array(name: Any, array: Any) -> None:
    """Refuse what a file cannot hold."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"the name of an array is {name!r}; needed: a str that is not empty")
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):  # whose mask would be lost
        raise TypeError(f"array {name!r} is a {type(array).__name__}; needed: a NumPy array")
    if array.dtype.newbyteorder("<") not in _DTYPES.values():
        needed = f"one of {', '.join(_DTYPES)} (bool: view it as u1; strings: pack_strings)"
        raise TypeError(f"array {name!r} has dtype {array.dtype}; needed: {needed}")
    if array.ndim > _MOST_AXES:
        raise ValueError(f"array {name!r} has {array.ndim} axes; needed: at most {_MOST_AXES}")


def check_json(value: Any, where: str, depth: int = 1) -> None:
    """Only what comes back as it was: JSON would turn a tuple into a list and a key 1 into "1" without a word."""
    if depth > _DEEPEST:
        raise ValueError(f"{where[:60]}... is nested more than {_DEEPEST} deep")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}; needed: a str")
            check_json(item, f"{where}[{key!r}]", depth + 1)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            check_json(item, f"{where}[{at}]", depth + 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value}, which JSON cannot hold (leave it out, or use None)")
    elif isinstance(value, int):
        if abs(value) >= _INTEGERS:
            raise ValueError(f"{where} is {value}; needed: less than 2**64 in size")
    elif value is not None and not isinstance(value, str):
        raise TypeError(f"{where} is a {type(value).__name__}; needed: dict, list, str, int, float, bool or None")


def lay_out(arrays: dict[str, NDArray[Any]]) -> dict[str, dict[str, Any]]:
    """What the header says of each array; the checksums have their length already, and are filled in later."""
    entries, position = {}, 0
    for name in sorted(arrays):
        array = arrays[name]
        position = aligned(position)
        entries[name] = {
            "crc32": "00000000",
            "dtype": array.dtype.str[1:],
            "offset": position,  # from the end of the header
            "shape": list(array.shape),
            "size": array.nbytes,
        }
        position += array.nbytes
    return entries


def encode(header: dict[str, Any], entries: dict[str, dict[str, Any]]) -> bytes:
    """The header as ASCII, with one text for one content."""
    content = {"arrays": entries, "header": header}
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


# What a file says


def refuse(path: str, what: str, offset: int, problem: str) -> NoReturn:
    """Raise FormatError."""
    raise FormatError(f"{path}: {what} at byte {offset} {problem}")


def decode(data: bytes, path: str, first: int, file_size: int) -> tuple[dict[str, Any], dict[str, Entry]]:
    """The user's header, and an entry for each array in their order in the file, after every check there is.

    first is where the header begins in the file; data reaches to where the arrays begin.
    """

    def wrong(what: str, value: Any, needed: str) -> NoReturn:
        refuse(path, f"in the header: {what},", first, f"is {_short(value)}; needed: {needed}")

    try:
        content = _loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        refuse(path, "the header", first, f"is not JSON as needed: {error}")
    if not isinstance(content, dict) or set(content) != {"arrays", "header"}:
        wrong("all of it", content, "an object of arrays and header, nothing else")
    for key, value in content.items():
        if not isinstance(value, dict):
            wrong(key, value, "an object")
    start = first + len(data)
    entries: dict[str, Entry] = {}
    position = start
    for name, said in sorted(content["arrays"].items()):
        where = f"arrays[{_short(name)}]"
        if not name or not isinstance(said, dict) or set(said) != _KEYS:
            wrong(where, said, f"an object of {', '.join(sorted(_KEYS))}, nothing else, under a name that is not empty")
        flaw = _flaw(said, aligned(position) - start)
        if flaw:
            wrong(f"{where}[{flaw[0]!r}]", said[flaw[0]], flaw[1])
        offset, size = start + said["offset"], said["size"]
        if offset + size > file_size:
            what = f"ends within array {_short(name)}, which ends at {offset + size} (was it truncated?)"
            refuse(path, "the file", file_size, what)
        entries[name] = Entry(_DTYPES[said["dtype"]], said["shape"], offset, size, said["crc32"])
        position = offset + size
    if position != file_size:
        what = f"and the file at byte {file_size}: {file_size - position} bytes too many"
        refuse(path, "what the header names ends", position, what)
    return content["header"], entries


def _flaw(said: dict[str, Any], expected: int) -> tuple[str, str] | None:
    """What is wrong about an array, as a key and what was needed there; None if nothing is."""
    dtype, shape, offset, size, crc32 = (said[key] for key in ("dtype", "shape", "offset", "size", "crc32"))
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        return "dtype", f"one of {', '.join(_DTYPES)}"
    if not isinstance(shape, list) or len(shape) > _MOST_AXES or any(type(x) is not int or x < 0 for x in shape):
        return "shape", f"at most {_MOST_AXES} integers, none negative"
    itemsize = _DTYPES[dtype].itemsize
    if math.prod(max(x, 1) for x in shape) * itemsize >= 2**63:  # NumPy's limit, for empty arrays too
        return "shape", "less than 2**63 bytes in all"
    if type(size) is not int or size != math.prod(shape) * itemsize:
        return "size", f"{math.prod(shape) * itemsize}, as dtype and shape give it"
    if type(offset) is not int or offset < 0 or offset % ALIGNMENT:
        return "offset", f"a multiple of {ALIGNMENT}"
    if offset != expected:
        return "offset", f"{expected} ({'it overlaps what is before it' if offset < expected else 'it leaves a gap'})"
    if not isinstance(crc32, str) or len(crc32) != 8 or not set(crc32) <= set("0123456789abcdef"):
        return "crc32", "8 hexadecimal digits"
    return None


def _short(value: Any) -> str:
    """A value in a message: long ones lose their end."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _loads(text: str) -> Any:
    """JSON and nothing that Python adds to it: each key once, no NaN, no number beyond what a machine holds."""

    def integer(digits: str) -> int:
        if len(digits) > 21 or abs(int(digits)) >= _INTEGERS:  # 21: longer ones need not be converted, which is slow
            raise ValueError(f"the number {_short(digits)} is beyond 64 bits")
        return int(digits)

    def number(digits: str) -> float:
        if not math.isfinite(float(digits)):
            raise ValueError(f"the number {_short(digits)} is not finite")
        return float(digits)

    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a number of JSON")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ValueError(f"the key {_short(key)} is there twice")
            found[key] = value
        return found

    content = json.loads(text, parse_int=integer, parse_float=number, parse_constant=constant, object_pairs_hook=unique)
    level = [content] if isinstance(content, (dict, list)) else []
    for _ in range(_DEEPEST + 1):
        inside = (item for holder in level for item in (holder.values() if isinstance(holder, dict) else holder))
        level = [item for item in inside if isinstance(item, (dict, list))]
    if level:  # deeper, a message that shows it could exceed the recursion limit
        raise ValueError(f"it is nested more than {_DEEPEST} deep")
    return content
