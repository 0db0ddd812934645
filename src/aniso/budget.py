"""memory=: the settings of an index that takes no more bytes than it may."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from aniso.config import Config
from aniso.errors import check_count
from aniso.layout import BLOCK

__all__ = ["fit_memory"]


def fit_memory(config: Config, memory: Any, n: int, d: int) -> Config:
    """The same settings with the most exact copy of n points that fits the bytes; spill goes before the copy does.

    >>> fit_memory(Config(), 120_000_000, 400_000, 100).rescore
    'float16'
    """
    most = check_count(memory, "memory")
    options = [replace(config, rescore=rescore) for rescore in ("float32", "float16", "int8")]
    options += [replace(options[-1], spill=0.0), replace(config, rescore="none", spill=0.0)]
    needed = [_size(option, n, d) for option in options]
    fitting = next((option for option, size in zip(options, needed, strict=True) if size <= most), None)
    if fitting is None:
        raise ValueError(f"memory is {most} bytes; needed: at least {needed[-1]} for {n} points of {d} dimensions")
    return fitting


def _size(config: Config, n: int, d: int) -> int:
    """The bytes of an index of n points, at most: codes, their rows, the copy, an int64 id each, and the partitions."""
    whole = config.complete(n, d, n)
    p, m = whole.partitions or 1, (whole.subspaces or 1) + (2 if whole.metric == "l2" else 0)
    # The last block of a partition is filled in part, and the share is that of a sample.
    entries = n + (math.ceil(min(whole.spill_share + 0.02, 1) * n) if whole.spill else 0)
    blocks = entries // BLOCK + p + 1
    row = d + (11 if whole.metric == "l2" else 7)
    copy = {"float32": 4 * d, "float16": 2 * d, "int8": row, "none": 0}[whole.rescore]
    return blocks * BLOCK * ((m + 1) // 2 + 4) + n * (copy + 8) + p * (5 * d + 40) + 64 * (d + 2 * m)
