"""How codes lie in memory: the only Python file that knows the bit order.

A partition is a run of blocks of 32 slots. A block holds, for every pair of subspaces, a row of 32 bytes, one per slot:

    row r of a block     byte s = code of subspace 2r in bits 0-3, of subspace 2r+1 in bits 4-7, of the point in slot s

so that one load, two masks and two lookups score two subspaces of 32 points, with no shuffle across lanes. With an
odd number of subspaces the last row's high bits are 0. The last block of a partition may have empty slots: their codes
are 0 and no result comes from them.

A point kept in 8 bits is a row of bytes: its d values, zeros up to a multiple of 4, a float32 scale, and for l2 a
float32 bias (-|x|^2 / 2 of the decoded point x), so that rescoring it touches no other place.

Centroids, 8 bits per value, lie in blocks of 8: byte j of centroid p is [p // 8, j // 4, p % 8, j % 4], so that one
multiply-add takes 4 dimensions of 8 centroids.
"""

from __future__ import annotations

import mmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BLOCK",
    "PANEL",
    "Slots",
    "arrange",
    "huge_empty",
    "pack_blocks",
    "pack_bytes",
    "pack_centroids",
    "pack_nibbles",
    "pack_panels",
    "unpack_blocks",
]

BLOCK = 32
PANEL = 16
_PACK_BLOCKS = 4096  # blocks packed at a time, to bound memory


class Slots(NamedTuple):
    """Where every point stands."""

    first_blocks: NDArray[np.int64]  # (partitions,)
    sizes: NDArray[np.int32]  # (partitions,)
    entries: NDArray[np.int64]  # (blocks * 32,) the entry in each slot, -1 where empty


def arrange(partitions: NDArray[np.int32], count: int) -> Slots:
    """Entries sorted by partition, in their order, each partition starting a new block."""
    sizes = np.bincount(partitions, minlength=count)
    blocks = -(-sizes // BLOCK)
    first_blocks = np.concatenate(([0], np.cumsum(blocks)))
    order = np.argsort(partitions, kind="stable")
    starts = np.concatenate(([0], np.cumsum(sizes)))[:-1]
    sorted_partitions = partitions[order]
    slot = first_blocks[sorted_partitions] * BLOCK + np.arange(len(order)) - starts[sorted_partitions]
    entries = np.full(int(first_blocks[-1]) * BLOCK, -1, np.int64)
    entries[slot] = order
    return Slots(first_blocks[:-1], sizes.astype(np.int32), entries)


def huge_empty(shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
    """An array like np.empty on huge pages, where the system has them: random reads miss the TLB less often."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if size < 1 << 21 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty(shape, dtype)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)  # room may never be used
    memory = mmap.mmap(-1, size + (1 << 21), flags=flags)
    memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    start = -whole.ctypes.data % (1 << 21)
    return whole[start : start + size].view(dtype).reshape(shape)


def pack_nibbles(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Codes (n, m) of 4 bits to the bytes of a point, (n, ceil(m / 2)): subspace 2r in the low bits of byte r."""
    packed: NDArray[np.uint8] = codes[:, 0::2].copy()
    packed[:, : codes.shape[1] // 2] |= codes[:, 1::2] << 4
    return packed


def pack_blocks(packed: NDArray[np.uint8], entries: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Bytes of points (n, rows) to blocks (len(entries) / 32, rows, 32); zeros where a slot is empty."""
    rows, blocks = packed.shape[1], len(entries) // BLOCK
    out: NDArray[np.uint8] = huge_empty((blocks, rows, BLOCK), np.uint8)
    for first in range(0, blocks, _PACK_BLOCKS):
        here = entries[first * BLOCK : (first + _PACK_BLOCKS) * BLOCK]
        part = packed[here]
        part[here < 0] = 0
        out[first : first + _PACK_BLOCKS] = part.reshape(-1, BLOCK, rows).transpose(0, 2, 1)
    return out


def pack_bytes(
    values: NDArray[np.int8], scales: NDArray[np.floating], biases: NDArray[np.floating] | None = None
) -> NDArray[np.int8]:
    """Rows of 8-bit values (n, d) with the scale and, if given, the bias of each: (n, d padded to 4, plus 4 or 8)."""
    n, d = values.shape
    fours = -(-d // 4)
    packed = np.zeros((n, 4 * fours + (4 if biases is None else 8)), np.int8)
    packed[:, :d] = values
    ends = packed.view(np.float32)
    ends[:, fours] = scales
    if biases is not None:
        ends[:, fours + 1] = biases
    return packed


def unpack_blocks(blocks: NDArray[np.uint8], m: int) -> NDArray[np.uint8]:
    """Blocks back to the codes of every slot: (blocks * 32, m)."""
    codes = np.empty((len(blocks), BLOCK, 2 * blocks.shape[1]), np.uint8)
    codes[:, :, 0::2] = (blocks & 15).transpose(0, 2, 1)
    codes[:, :, 1::2] = (blocks >> 4).transpose(0, 2, 1)
    return codes.reshape(len(blocks) * BLOCK, 2 * blocks.shape[1])[:, :m]


def pack_panels(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """Points (n, d) side by side, 16 at a time, dimension by dimension: (ceil(n / 16), d, 16), zeros where padded."""
    n, d = points.shape
    padded = np.zeros((-(-n // PANEL) * PANEL, d), np.float32)
    padded[:n] = points
    return np.ascontiguousarray(padded.reshape(-1, PANEL, d).transpose(0, 2, 1))


def pack_centroids(centroids: NDArray[np.int8]) -> NDArray[np.int8]:
    """Centroids (p, d) to blocks (ceil(p / 8), d4 / 4, 8, 4), both padded with zeros to multiples of 8."""
    p, d = centroids.shape
    padded = np.zeros((-(-p // 8) * 8, -(-d // 8) * 8), np.int8)
    padded[:p, :d] = centroids
    return np.ascontiguousarray(padded.reshape(-1, 8, padded.shape[1] // 4, 4).transpose(0, 2, 1, 3))
