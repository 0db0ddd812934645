"""Which points spill: those whose second partition costs least beside the first, and as many as fill blocks.

A block that ends a partition is stored and scanned whole, however few points are in it. So an index that is filled for
the first time ends no partition within a block: each takes as many spilled points as make the number of blocks nearest
to what the limit on their cost gives it. What is added later is held to the limit alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aniso.encoder import Choice
from aniso.layout import BLOCK
from aniso.partition import Assigned

__all__ = ["ALL", "choose"]

ALL = float(np.finfo(np.float32).max)  # the limit under which every point spills


def choose(assigned: list[Assigned], p: int, limit: float, fill: bool) -> list[list[Choice]]:
    """The first partitions of some blocks of points, and the second ones of those that spill; fill: whole blocks."""
    choices = [[Choice(slice(None), firsts)] for firsts, _, _ in assigned]
    if not assigned or assigned[0].seconds is None:
        return choices
    firsts, seconds, ratios = (np.concatenate(part) for part in zip(*assigned, strict=True))
    spills = ratios <= np.float32(limit)
    if fill and limit < ALL:
        most = _filling(np.bincount(firsts, minlength=p), np.bincount(seconds[spills], minlength=p))
        order = np.lexsort((ratios, seconds))
        counts = np.bincount(seconds, minlength=p)
        places = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        spills[order] = places < np.repeat(most, counts)
    ends = np.cumsum([len(part.firsts) for part in assigned])[:-1]
    for chosen, spilled, others in zip(choices, np.split(spills, ends), np.split(seconds, ends), strict=True):
        rows = np.flatnonzero(spilled).astype(np.int16)
        chosen.append(Choice(rows, others[rows]))
    return choices


def _filling(firsts: NDArray[np.int64], within: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many points spill into each partition to fill blocks, where so many stand first and are within the limit."""
    blocks = np.maximum((firsts + within + BLOCK // 2) // BLOCK, -(-firsts // BLOCK))
    most: NDArray[np.int64] = BLOCK * blocks - firsts
    return most
