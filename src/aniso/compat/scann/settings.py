"""What a ScaNN config means here: its fields checked, and translated into the settings of an index."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aniso.compat.scann.config_text import Message
from aniso.compat.scann.stanzas import MEASURES, IncrementalMode, ReorderType
from aniso.config import Config
from aniso.errors import check_count

__all__ = ["Hash", "Projection", "Settings", "Tree"]

RESCORES = {
    ReorderType.NO_REORDER: "none",
    ReorderType.FLOAT32: "float32",
    ReorderType.INT8: "int8",
    ReorderType.BFLOAT16: "float16",
}
_OVERRETRIEVE = 2.0  # candidates wanted for every distinct one where each point stands in two leaves
_STANZAS = {
    "num_neighbors",
    "distance_measure",
    "partitioning",
    "hash",
    "brute_force",
    "exact_reordering",
    "autopilot",
    "input_output",
}


@dataclass(frozen=True)
class Projection:
    """To fewer dimensions, before partitions and codes; rescoring sees them all."""

    kind: str  # "TRUNCATE" or "PCA"
    dimensions: int | None  # or as many as keep `significance` of the variance,
    significance: float = 0.8
    most: float = 0.6  # if that is no larger a share of the dimensions


@dataclass(frozen=True)
class Tree:
    """The partitions."""

    leaves: int
    searched: int
    sample: int
    iterations: int
    spill: float  # 0: each point stands in one leaf
    overretrieve: float
    incremental: int | float | None  # changes, or their share, after which the tree is trained anew


@dataclass(frozen=True)
class Hash:
    """The codes."""

    per_block: int
    wide: bool  # 8 bits for a block instead of 4
    threshold: float  # NaN: the plain loss
    sample: int


@dataclass(frozen=True)
class Settings:
    """A config, read."""

    k: int
    metric: str  # "dot" or "l2"
    tree: Tree | None
    projection: Projection | None
    hash: Hash | None  # None: every score is computed
    copy: ReorderType  # what scores are computed from
    candidates: int  # to rescore; 0 where nothing is
    online: bool  # an autopilot that trains anew by itself

    @classmethod
    def read(cls, config: Message) -> Settings:
        """The settings that a config says; ValueError names a field that cannot be."""
        unknown = set(config) - _STANZAS
        if unknown:
            raise ValueError(f"the config has a field {min(unknown)!r}; needed: only {', '.join(sorted(_STANZAS))}")
        measures = {value: name for name, value in MEASURES.items()}
        said = _message(config, "distance_measure").get("distance_measure")
        if said not in measures:
            raise ValueError(f"distance_measure is {said!r}; needed: one of {', '.join(sorted(measures))}")
        if ("hash" in config) == ("brute_force" in config):
            count = "both" if "hash" in config else "neither"
            raise ValueError(f"the config has {count} of hash and brute_force; needed: score_ah or score_brute_force")
        k = check_count(_need(config, "num_neighbors", ""), "num_neighbors")
        tree, projection = _tree(config) if "partitioning" in config else (None, None)
        codes = _hash(config) if "hash" in config else None
        if "projection" in _message(config, "hash"):
            projection = _projection(_message(config, "hash"))
        copy, candidates = _copy(_message(config, "brute_force")), 0
        if codes is not None:
            reorder = config.get("exact_reordering")
            copy = ReorderType.NO_REORDER if reorder is None else _copy(_message(config, "exact_reordering"))
            candidates = 0 if reorder is None else _candidates(reorder)
        pilot = _message(_message(config, "autopilot"), "tree_ah")
        online = pilot.get("incremental_mode", IncrementalMode.NONE.name) != IncrementalMode.NONE.name
        metric = "dot" if measures[said] == "dot_product" else "l2"
        return cls(k, metric, tree, projection if codes else None, codes, copy, candidates, online)

    @property
    def keeps_points(self) -> bool:
        """Whether the points can be had back, to train anew."""
        return self.copy != ReorderType.NO_REORDER

    def blocks(self, d: int) -> int:
        """Blocks of dimensions that have a code each."""
        return 0 if self.hash is None else -(-d // self.hash.per_block)

    def to_config(self, points: NDArray[np.float32], copy: ReorderType) -> Config:
        """The settings of an index of these points, which it is trained on."""
        tree, codes, d = self.tree, self.hash, points.shape[1]
        sample = max(tree.sample if tree else 0, codes.sample if codes else 0, 256)
        common: dict[str, Any] = {
            "metric": self.metric,
            "partitions": tree.leaves if tree else 1,
            "spill": tree.spill if tree else 0.0,
            "spill_share": 1.0,  # every point, as in ScaNN's files
            "iterations": tree.iterations if tree else 0,
            "sample": sample,
        }
        if codes is None:  # all that the leaves hold is rescored: the codes need not be good
            return Config(**common, subspaces=1, rounds=0, threshold=0.0, rescore=RESCORES[copy])
        # A block of 8 bits becomes two codes of 4. Where it is one dimension, a copy in 8 bits says the same.
        if codes.wide and codes.per_block == 1 and copy == ReorderType.NO_REORDER:
            copy = ReorderType.INT8
        subspaces = min(self.blocks(d) * (2 if codes.wide else 1), d)
        threshold = _relative(codes.threshold, points)
        return Config(**common, subspaces=subspaces, threshold=threshold, rescore=RESCORES[copy])


def _relative(threshold: float, points: NDArray[np.float32]) -> float:
    """T as a share of a point's norm: ScaNN's is absolute, and beyond the norm of a point it does nothing."""
    if math.isnan(threshold):
        return 0.0
    some = points[:: max(1, len(points) // 10_000)]
    norm = float(np.median(np.sqrt(np.einsum("nd,nd->n", some, some, dtype=np.float64))))
    share = threshold / norm if norm > 0 else 0.0
    return share if share < 1 else 0.0


def _message(config: Message, name: str) -> Message:
    found = config.get(name, {})
    if not isinstance(found, dict):
        raise ValueError(f"{name} is {found!r} in the config; needed: one message, {name} {{ ... }}")
    return found


def _need(message: Message, name: str, where: str) -> Any:
    if name not in message:
        raise ValueError(f"the config has no {where}{name}; needed: its value")
    return message[name]


def _number(message: Message, name: str, default: float) -> float:
    value = message.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is {value!r} in the config; needed: a number")
    return float(value)


def _copy(message: Message) -> ReorderType:
    for name, kind in (("bfloat16", ReorderType.BFLOAT16), ("fixed_point", ReorderType.INT8)):
        if _message(message, name).get("enabled") is True:
            return kind
    return ReorderType.FLOAT32


def _candidates(reorder: Message) -> int:
    return check_count(_need(reorder, "approx_num_neighbors", "exact_reordering."), "reordering_num_neighbors")


def _tree(config: Message) -> tuple[Tree, Projection | None]:
    stanza = _message(config, "partitioning")
    leaves = check_count(_need(stanza, "num_children", "partitioning."), "num_leaves")
    query = _message(stanza, "query_spilling")
    searched = check_count(_need(query, "max_spill_centers", "partitioning.query_spilling."), "num_leaves_to_search")
    spilling = _message(stanza, "database_spilling")
    spill, factor = 0.0, 1.0
    if spilling:
        spill = _number(spilling, "orthogonality_amplification_lambda", 1.0)
        factor = _number(spilling, "overretrieve_factor", _OVERRETRIEVE)
        if not 0 < spill <= 100:
            raise ValueError(f"soar_lambda is {spill}; needed: above 0, at most 100, usually 1 to 2")
        if not 1 <= factor <= 1000:
            raise ValueError(f"overretrieve_factor is {factor}; needed: 1 to 1000, usually 2")
    training = _message(stanza, "incremental_training_config")
    incremental: int | float | None = training.get("number_of_datapoints")
    if "fraction" in training:
        incremental = _number(training, "fraction", 0.5)
    if incremental is not None and not incremental > 0:
        raise ValueError(f"incremental_threshold is {incremental}; needed: above 0, a number of points or their share")
    tree = Tree(
        leaves,
        searched,
        check_count(stanza.get("expected_sample_size", 100_000), "training_sample_size"),
        check_count(stanza.get("max_clustering_iterations", 12), "training_iterations", least=0),
        spill,
        factor,
        incremental,
    )
    return tree, _projection(stanza) if "projection" in stanza else None


def _projection(stanza: Message) -> Projection:
    message = _message(stanza, "projection")
    kind, d = str(message.get("projection_type")), message.get("num_dims_per_block")
    if kind not in ("TRUNCATE", "PCA"):
        raise ValueError(f"projection_type is {kind}; needed: TRUNCATE or PCA")
    most = message.get("input_dim")
    if d is None and kind == "TRUNCATE":
        raise ValueError("TRUNCATE has no num_dims_per_block; needed: the dimensions to keep")
    if d is not None:
        check_count(d, "reduction_dim", most=most)
    significance, share = (
        _number(message, "pca_significance_threshold", 0.8),
        _number(message, "pca_truncation_threshold", 0.6),
    )
    for name, value in (("pca_significance_threshold", significance), ("pca_truncation_threshold", share)):
        if not 0 < value <= 1:
            raise ValueError(f"{name} is {value}; needed: above 0, at most 1")
    return Projection(kind, d, significance, share)


def _hash(config: Message) -> Hash:
    stanza = _message(_message(config, "hash"), "asymmetric_hash")
    blocks = _message(stanza, "projection")
    per_block = blocks.get("num_dims_per_block")
    if per_block is None and "variable_blocks" in blocks:
        first = blocks["variable_blocks"]
        per_block = (first[0] if isinstance(first, list) else first).get("num_dims_per_block")
    clusters = _need(stanza, "num_clusters_per_block", "hash.asymmetric_hash.")
    if clusters not in (16, 256):
        raise ValueError(f"num_clusters_per_block is {clusters}; needed: 16 or 256")
    threshold = _number(stanza, "noise_shaping_threshold", math.nan)
    if not math.isnan(threshold) and not threshold >= 0:
        raise ValueError(f"anisotropic_quantization_threshold is {threshold}; needed: 0 or more, or NaN for none")
    return Hash(
        check_count(per_block, "dimensions_per_block"),
        clusters == 256,
        threshold,
        check_count(stanza.get("expected_sample_size", 100_000), "training_sample_size"),
    )
