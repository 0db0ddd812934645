"""How an index is doing, in numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aniso.layout import BLOCK
from aniso.store import Store

__all__ = ["describe"]


def describe(store: Store) -> dict[str, Any]:
    """What Index.info returns.

    balance    the share of all entries that a query would meet in its own partition, times the partitions: 1 if all are
               equally large, more where some are much larger
    drift      how much farther, in squared distance, points added later lie from their centroids than the first ones:
               1 is none; from about 1.3 on, rebalance() pays
    """
    encoder, sizes = store.encoder, store.sizes.astype(np.float64)
    total = float(sizes.sum())
    arrays: list[NDArray[Any] | None] = [
        store.codes[: store.blocks],
        store.slot_rows[: store.blocks],
        None if store.numbers is None else store.numbers[: store.n],
        store.live,
        store.places,
    ]
    kept = 0 if store.points is None else store.points[: store.n].nbytes
    return {
        "points": store.count,
        "dimensions": encoder.d,
        "metric": encoder.config.metric,
        "ids": store.kind if store.given or store.names is not None else "row numbers",
        "partitions": len(sizes),
        "largest_partition": int(sizes.max()),
        "balance": float(len(sizes) * np.square(sizes).sum() / total**2) if total else 1.0,
        "spill": encoder.config.spill,
        "spill_share": encoder.config.spill_share,
        "removed_rows": store.n - store.count,
        "empty_slots": int(store.blocks * BLOCK - total),
        "code_bytes": encoder.code_bytes,
        "rescore": encoder.config.rescore,
        "bytes": int(sum(array.nbytes for array in arrays if array is not None) + kept),
        "drift": float(store.drift),
        "recall": store.target,
        "curve": [list(row) for row in store.curve],
    }
