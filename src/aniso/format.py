"""The file format: a JSON header and aligned arrays in one file, saved whole or not at all, opened by memory map.

docs/format.md is its definition. This file knows nothing of what the arrays mean: it saves and opens a header and named
arrays. A file is an input like any other: whatever its bytes are, opening it gives arrays or a FormatError.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import secrets
import stat
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from aniso.errors import FormatError
from aniso.header import ALIGNMENT, LARGEST, Entry, aligned, check_array, check_json, decode, encode, lay_out, refuse
from aniso.layout import huge_empty

__all__ = ["MAGIC", "VERSION", "File", "open_file", "pack_strings", "save", "unpack_strings"]

MAGIC = b"\x89ANISO\r\n"  # not text, and spoiled by whatever mends line ends
VERSION = 1

_PREFIX = struct.Struct("<8sIII")  # magic, version, length of the header, checksum
_CHECKED = _PREFIX.size - 4  # bytes of the prefix that the checksum covers: all before it
_BLOCK = 1 << 18  # bytes checked and written together: small enough to stay in the cache between the two


@dataclass(frozen=True)
class File:
    """An open file. Its arrays are read-only views of one memory map or buffer, which lives as long as any of them."""

    path: str
    header: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    _entries: dict[str, Entry] = field(repr=False)
    _start: int = field(repr=False)  # where the arrays begin
    _buffer: Any = field(repr=False)  # what they are views of

    def verify(self) -> None:
        """Read every byte and compare the checksums; FormatError names the first array that is damaged."""
        position = self._start
        for name, entry in self._entries.items():
            if any(self._buffer[position : entry.offset]):
                refuse(self.path, f"the padding before array {name!r}", position, "is not zero (the file is damaged)")
            found = 0
            for block in _blocks(self.arrays[name]):
                found = zlib.crc32(block, found)
            if f"{found:08x}" != entry.crc32:
                what = f"has checksum {found:08x}; needed: {entry.crc32} (the file is damaged: use another copy of it)"
                refuse(self.path, f"array {name!r}", entry.offset, what)
            position = entry.offset + entry.size


def save(
    path: str | os.PathLike[str],
    header: dict[str, Any],
    arrays: dict[str, NDArray[Any]],
    pieces: Mapping[str, Callable[[], Iterator[NDArray[Any]]]] | None = None,
) -> None:
    """Write a file that holds the header and the arrays; the same content gives the same bytes.

    pieces gives what to write in place of some arrays, a few rows at a time, where they are not to be written as they
    stand.

    Until all of it is on the disk, path keeps what it had before: a crash, an error or an interrupt leaves the old file
    or the new one, never a part. The new file is written beside it, so the folder needs room for both.
    """
    if not isinstance(header, dict):
        raise TypeError(f"header is a {type(header).__name__}; needed: a dict")
    check_json(header, "header")
    for name, array in arrays.items():
        check_array(name, array)
    entries = lay_out(arrays)
    _head(header, entries)  # too long a header is refused before anything is written
    target = Path(os.path.realpath(path))  # a link stays, what it names is replaced
    mode = _mode(target)
    temporary = target.parent / f".aniso-{secrets.token_hex(8)}.tmp"
    try:
        # 0o666 leaves the permissions of a new file to the umask, which the tempfile module would not.
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        with open(descriptor, "wb") as file:
            if mode is not None:
                os.chmod(temporary, mode)
            _write(file, header, arrays, entries, pieces or {})
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, target)
    except BaseException as error:
        try:
            os.unlink(temporary)
        except OSError:
            pass  # it was not made, or it is the new file already
        if isinstance(error, OSError):
            raise OSError(error.errno, f"cannot save: {error.strerror} (nothing was changed)", str(target)) from error
        raise
    _sync_folder(target.parent)


def open_file(path: str | os.PathLike[str], *, verify: bool = False, mapped: bool = True) -> File:
    """Open a saved file by memory map: only the header is read and checked, in the same time for any size.

    mapped=False reads it into memory instead. verify=True reads every array as well and compares its checksum;
    File.verify does so later.
    """
    name = os.fspath(path)
    kind = os.stat(name).st_mode  # before opening, which would wait for ever on a pipe
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, "a folder; needed: a file that aniso saved", name)
    if not stat.S_ISREG(kind):
        raise FormatError(f"{name}: not a regular file; needed: a file that aniso saved")
    with open(name, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:  # which cannot be mapped
            refuse(name, "the file", 0, "ends: it is empty (was it truncated?)")
        opened = _parse(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if mapped else _read(file), name)
    if verify:
        opened.verify()
    return opened


def pack_strings(strings: Iterable[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Strings as two arrays that a file can hold: UTF-8 bytes end to end, and where each string begins, and the end.

    >>> text, offsets = pack_strings(["cat", "", "dog"])
    >>> offsets
    array([0, 3, 3, 6])
    >>> unpack_strings(text, offsets)
    ['cat', '', 'dog']
    """
    parts: list[bytes] = []
    for row, string in enumerate(strings):
        if not isinstance(string, str):
            raise TypeError(f"string {row} is {string!r}; needed: a str")
        try:
            parts.append(string.encode())
        except UnicodeEncodeError as error:
            raise ValueError(f"string {row} cannot be written as UTF-8: {error} (mend it)") from None
    text = np.frombuffer(b"".join(parts), np.uint8)
    return text, np.array([0, *itertools.accumulate(map(len, parts))], np.int64)


def unpack_strings(text: NDArray[Any], offsets: NDArray[Any]) -> list[str]:
    """The strings that pack_strings packed; FormatError where the two arrays do not fit together."""
    if text.dtype != np.uint8 or text.ndim != 1:
        raise FormatError(f"the text of strings has dtype {text.dtype} and shape {text.shape}; needed: u1, (bytes,)")
    if offsets.dtype != np.int64 or offsets.ndim != 1 or not len(offsets):
        was = f"dtype {offsets.dtype} and shape {offsets.shape}"
        raise FormatError(f"the offsets of strings have {was}; needed: i8, (strings + 1,)")
    if offsets[0] != 0 or offsets[-1] != len(text):
        raise FormatError(f"the offsets of strings run from {offsets[0]} to {offsets[-1]}; needed: 0 to {len(text)}")
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(falls):
        row = int(falls[0])
        raise FormatError(f"string {row} begins at {offsets[row]}, the next at {offsets[row + 1]}; they must not fall")
    whole = text.tobytes()
    strings: list[str] = []
    for first, last in itertools.pairwise(offsets.tolist()):
        try:
            strings.append(str(whole[first:last], "utf-8"))
        except UnicodeDecodeError as error:
            raise FormatError(f"string {len(strings)} at byte {first} of the text is not UTF-8: {error}") from None
    return strings


def _read(file: BufferedReader) -> memoryview:
    """The whole file, on huge pages."""
    memory = huge_empty((os.fstat(file.fileno()).st_size,), np.uint8).data
    done = 0
    while part := file.readinto(memory[done:]):
        done += part
    return memory[:done]


def _parse(buffer: Any, path: str) -> File:
    """The file in a buffer: bytes, or a memory map."""
    size = len(buffer)
    known = bytes(buffer[: len(MAGIC)])
    if known != MAGIC[: len(known)]:
        refuse(path, "the magic number", 0, f"is {known!r}; needed: {MAGIC!r} (is this a file that aniso saved?)")
    if size < _PREFIX.size:
        refuse(path, "the file", size, f"ends; needed: at least {_PREFIX.size} bytes (was it truncated?)")
    _, version, length, checksum = _PREFIX.unpack_from(buffer)
    if version != VERSION:
        refuse(path, "the version", 8, f"is {version}; needed: {VERSION} (was it saved by a newer aniso?)")
    start = _PREFIX.size + length
    if length > LARGEST or start % ALIGNMENT:
        what = f"at most {LARGEST}, and the end of the header at a multiple of {ALIGNMENT}"
        refuse(path, "the length of the header", 12, f"is {length}; needed: {what} (the file is damaged)")
    if start > size:
        refuse(path, "the file", size, f"ends within the header, which ends at {start} (was it truncated?)")
    data = bytes(buffer[_PREFIX.size : start])
    found = zlib.crc32(data, zlib.crc32(bytes(buffer[:_CHECKED])))
    if found != checksum:
        what = f"is {checksum:08x}; needed: {found:08x} (the file is damaged: use another copy of it)"
        refuse(path, "the checksum of the header", _CHECKED, what)
    header, entries = decode(data, path, _PREFIX.size, size)
    arrays: dict[str, NDArray[Any]] = {}
    for name, entry in entries.items():
        # An empty array may lie at the very end, where there is nothing to be a view of.
        part = buffer if entry.size else b""
        flat = np.frombuffer(part, entry.dtype, entry.size // entry.dtype.itemsize, entry.offset if entry.size else 0)
        arrays[name] = flat.reshape(entry.shape)
        arrays[name].flags.writeable = False
    return File(path, header, arrays, entries, start, buffer)


def _head(header: dict[str, Any], entries: dict[str, dict[str, Any]]) -> bytes:
    """All that comes before the arrays, filled up with spaces so that they begin aligned."""
    data = encode(header, entries)
    data = data.ljust(aligned(_PREFIX.size + len(data)) - _PREFIX.size)
    if len(data) > LARGEST:
        raise ValueError(f"the header takes {len(data)} bytes; needed: at most {LARGEST} (put data into arrays)")
    prefix = _PREFIX.pack(MAGIC, VERSION, len(data), 0)[:_CHECKED]
    return prefix + struct.pack("<I", zlib.crc32(data, zlib.crc32(prefix))) + data


def _write(
    file: BinaryIO,
    header: dict[str, Any],
    arrays: dict[str, NDArray[Any]],
    entries: dict[str, Any],
    pieces: Mapping[str, Callable[[], Iterator[NDArray[Any]]]],
) -> None:
    """The arrays first, for their checksums, then the header in the room left for it."""
    position = 0
    file.seek(len(_head(header, entries)))
    for name, entry in entries.items():
        file.write(bytes(entry["offset"] - position))
        checksum = 0
        for piece in pieces[name]() if name in pieces else [arrays[name]]:
            for block in _blocks(piece):
                checksum = zlib.crc32(block, checksum)
                file.write(block)
        entry["crc32"] = f"{checksum:08x}"
        position = entry["offset"] + entry["size"]
    file.seek(0)
    file.write(_head(header, entries))


def _blocks(array: NDArray[Any]) -> Iterator[memoryview]:
    """The elements in C order and little-endian, a block at a time; only a block that must change is copied."""
    little = array.dtype.newbyteorder("<")
    nditer: Any = np.nditer  # NumPy's stub does not know "contig"
    for block in nditer(
        array,
        flags=["buffered", "external_loop", "zerosize_ok"],
        op_flags=[["readonly", "contig"]],
        op_dtypes=[little],
        order="C",
        casting="equiv",
        buffersize=_BLOCK // little.itemsize,
    ):
        yield memoryview(block)


def _mode(target: Path) -> int | None:
    """The permissions of the file to replace, None where there is none; a folder or a device is not replaced."""
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "cannot save: no such folder", str(target.parent)) from None
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "cannot save: there is a folder of that name", str(target))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "cannot save: not a regular file", str(target))
    return stat.S_IMODE(mode)


def _sync_folder(folder: Path) -> None:
    """Make the new name last through a power cut."""
    if not hasattr(os, "O_DIRECTORY"):
        return  # Windows, where a folder cannot be opened
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot
            raise
    finally:
        os.close(descriptor)
