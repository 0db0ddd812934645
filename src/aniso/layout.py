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
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BLOCK",
    "PANEL",
    "aligned_empty",
    "huge_empty",
    "pack_bytes",
    "pack_centroids",
    "pack_nibbles",
    "pack_panels",
    "unpack_blocks",
]

BLOCK = 32
PANEL = 16


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


def aligned_empty(shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
    """An array like np.empty that begins with a cache line, so that no vector of 32 or 64 bytes lies across two."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    whole = np.empty(size + 64, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + size].view(dtype).reshape(shape)


def pack_nibbles(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Codes (n, m) of 4 bits to the bytes of a point, (n, ceil(m / 2)): subspace 2r in the low bits of byte r."""
    packed: NDArray[np.uint8] = codes[:, 0::2].copy()
    packed[:, : codes.shape[1] // 2] |= codes[:, 1::2] << 4
    return packed


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
    whole = n // PANEL
    panels = np.empty((-(-n // PANEL), d, PANEL), np.float32)
    panels[:whole] = points[: PANEL * whole].reshape(whole, PANEL, d).transpose(0, 2, 1)
    panels[whole:] = 0
    panels[whole:, :, : n % PANEL] = points[PANEL * whole :].T
    return panels


def pack_centroids(centroids: NDArray[np.int8]) -> NDArray[np.int8]:
    """Centroids (p, d) to blocks (ceil(p / 8), d4 / 4, 8, 4), both padded with zeros to multiples of 8."""
    p, d = centroids.shape
    padded = np.zeros((-(-p // 8) * 8, -(-d // 8) * 8), np.int8)
    padded[:p, :d] = centroids
    packed: NDArray[np.int8] = aligned_empty((len(padded) // 8, padded.shape[1] // 4, 8, 4), np.int8)
    packed[:] = padded.reshape(-1, 8, padded.shape[1] // 4, 4).transpose(0, 2, 1, 3)
    return packed
