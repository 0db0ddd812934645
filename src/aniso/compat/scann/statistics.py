"""How the leaves of a searcher are doing, under ScaNN's names."""

from __future__ import annotations

from typing import Any

import numpy as np

from aniso.compat.scann.collection import Collection

__all__ = ["health"]


def health(collection: Collection | None) -> dict[str, Any]:
    """The statistics of the leaves; zeros where there are none.

    avg_quantization_error                       mean squared distance of a point to the centroid of its leaf
    partition_weighted_avg_relative_imbalance    how much larger than the mean leaf that of an average point is
    partition_avg_relative_positive_imbalance    the same over the leaves that are larger than the mean
    sum_partition_sizes                          points in all leaves; each counts twice with soar_lambda
    """
    stats: dict[str, Any] = {
        "avg_quantization_error": 0.0,
        "partition_weighted_avg_relative_imbalance": 0.0,
        "partition_avg_relative_positive_imbalance": 0.0,
        "sum_partition_sizes": 0,
    }
    index = None if collection is None or collection.engine is None else collection.engine.codes_from
    if collection is None or index is None or collection.settings.tree is None:
        return stats
    store = index._store
    slots, chosen = store.filled()
    if store.live is not None:
        there = np.unpackbits(store.live, count=store.n, bitorder="little").astype(bool)
        chosen = chosen[there[store.slot_rows.reshape(-1)[slots]]]
    sizes = np.bincount(chosen, minlength=len(store.sizes)).astype(np.float64)
    total = float(sizes.sum())
    if not total:
        return stats
    relative = sizes / sizes.mean() - 1
    larger = relative[relative > 0]
    return {
        "avg_quantization_error": store.distance / store.added if store.added else store.encoder.distance,
        "partition_weighted_avg_relative_imbalance": float(np.dot(relative, sizes) / total),
        "partition_avg_relative_positive_imbalance": float(larger.mean()) if len(larger) else 0.0,
        "sum_partition_sizes": int(total),
    }
