"""The parts of a ScaNN config, each made from the arguments of the builder's method of about that name."""

from __future__ import annotations

import enum
import math
from typing import Any

import numpy as np

from aniso.compat.scann.config_text import Message, Word

__all__ = [
    "IncrementalMode",
    "ReorderType",
    "asymmetric_hash",
    "autopilot",
    "brute_force",
    "exact_reordering",
    "first_tree",
    "parse_reorder",
    "partitioning",
    "projection",
    "suggest",
]

MEASURES = {"dot_product": "DotProductDistance", "squared_l2": "SquaredL2Distance"}

_NAN = float("nan")
_LEAST_LEAVES = 42  # a tree of fewer is not worth it: autopilot stays with brute force
_LEAF_VALUES, _LEAST_LEAF = 131072, 200  # numbers, and points, of a leaf that autopilot aims at
_MOST_TREE_VALUES = 1.92e10  # leaves squared times dimensions, up to which autopilot adds leaves


class ReorderType(enum.Enum):
    """The copy of the points that exact scores are computed from."""

    NO_REORDER = 0
    FLOAT32 = 1
    INT8 = 2
    BFLOAT16 = 3


class IncrementalMode(enum.Enum):
    """Whether an autopilot trains anew by itself as points come and go (the ONLINE ones), or only in rebalance()."""

    NONE = 1
    ONLINE = 2
    ONLINE_INCREMENTAL = 3


def parse_reorder(quantize: Any) -> ReorderType:
    """A ReorderType, also from the bool that older programs give: True is INT8."""
    if isinstance(quantize, (bool, np.bool_)):
        return ReorderType.INT8 if quantize else ReorderType.FLOAT32
    if not isinstance(quantize, ReorderType):
        names = ", ".join(f"ReorderType.{kind.name}" for kind in ReorderType)
        raise ValueError(f"quantize is {quantize!r}; needed: one of {names}, or a bool")
    return quantize


def measure(distance_measure: str) -> Message:
    """The distance by its short name."""
    if distance_measure not in MEASURES:
        raise ValueError(f"distance_measure is {distance_measure!r}; needed: one of {list(MEASURES)}")
    return {"distance_measure": MEASURES[distance_measure]}


def projection(kind: str, d: int, **fields: Any) -> Message:
    """A projection to fewer dimensions."""
    return {"projection_type": Word(kind), "input_dim": d, **fields}


def partitioning(
    distance_measure: str,
    *,
    leaves: int,
    searched: int,
    sample: int,
    least: int = 50,
    iterations: int = 12,
    spherical: bool = False,
    quantized: bool = False,
    random: bool = True,
    incremental: Any = None,
    avq: float | None = None,
    soar_lambda: float | None = None,
    overretrieve_factor: float | None = None,
    projected: Message | None = None,
    upper: Message | None = None,
) -> Message:
    """The tree."""
    stanza: Message = {
        "num_children": leaves,
        "max_clustering_iterations": iterations,
        "min_cluster_size": least,
        "partitioning_distance": measure("squared_l2"),
    }
    if projected is not None:
        stanza["projection"] = projected
    if soar_lambda is not None:
        stanza["database_spilling"] = {
            "spilling_type": Word("TWO_CENTER_ORTHOGONALITY_AMPLIFIED"),
            "orthogonality_amplification_lambda": soar_lambda,
        }
        if overretrieve_factor is not None:
            stanza["database_spilling"]["overretrieve_factor"] = overretrieve_factor
    stanza |= {
        "query_spilling": {"spilling_type": Word("FIXED_NUMBER_OF_CENTERS"), "max_spill_centers": searched},
        "partitioning_type": Word("SPHERICAL" if spherical else "GENERIC"),
        "query_tokenization_distance_override": measure(distance_measure),
        "query_tokenization_type": Word("FIXED_POINT_INT8" if quantized else "FLOAT"),
        "expected_sample_size": sample,
        "single_machine_center_initialization": Word("RANDOM_INITIALIZATION" if random else "DEFAULT_KMEANS_PLUS_PLUS"),
    }
    if isinstance(incremental, dict):
        stanza["incremental_training_config"] = incremental
    elif isinstance(incremental, float):
        stanza["incremental_training_config"] = {"fraction": incremental}
    elif incremental is not None:
        stanza["incremental_training_config"] = {"number_of_datapoints": incremental}
    if avq is not None:
        stanza["avq"] = avq
    if upper is not None:
        stanza["bottom_up_top_level_partitioner"] = upper
    return stanza


def asymmetric_hash(
    d: int | None,
    *,
    per_block: int,
    threshold: float = _NAN,
    sample: int,
    wide: bool = False,
    iterations: int = 10,
    residual: bool,
) -> Message:
    """The codes. d is None where a projection decides on it."""
    full, rest = divmod(d or 0, per_block)
    blocks: Message = {"projection_type": Word("CHUNK")}
    if d is not None and rest:
        blocks = {"projection_type": Word("VARIABLE_CHUNK"), "input_dim": d}
        last = {"num_blocks": 1, "num_dims_per_block": rest}
        blocks["variable_blocks"] = [{"num_blocks": full, "num_dims_per_block": per_block}, last] if full else last
    else:
        blocks |= {"num_blocks": full} if d is not None else {}
        blocks |= {"num_dims_per_block": per_block}
        blocks |= {"input_dim": d} if d is not None else {}
    return {
        "asymmetric_hash": {
            "projection": blocks,
            "num_clusters_per_block": 256 if wide else 16,
            "max_clustering_iterations": iterations,
            "quantization_distance": measure("squared_l2"),
            "lookup_type": Word("INT8" if wide else "INT8_LUT16"),
            "use_residual_quantization": residual,
            "noise_shaping_threshold": threshold,
            "expected_sample_size": sample,
            "use_global_topn": residual and not wide and full + (rest > 0) <= 256,
        }
    }


def brute_force(kind: ReorderType) -> Message:
    """Every score computed, from a copy of this kind."""
    return {"bfloat16" if kind == ReorderType.BFLOAT16 else "fixed_point": {"enabled": _rounded(kind)}}


def exact_reordering(candidates: int, kind: ReorderType, threshold: float = _NAN) -> Message:
    """How many candidates are rescored, and from what."""
    name = "bfloat16" if kind == ReorderType.BFLOAT16 else "fixed_point"
    return {
        "approx_num_neighbors": candidates,
        name: {"enabled": _rounded(kind), "noise_shaping_threshold": threshold},
    }


def _rounded(kind: ReorderType) -> bool:
    return kind in (ReorderType.INT8, ReorderType.BFLOAT16)


def autopilot(mode: IncrementalMode, kind: ReorderType) -> Message:
    """Let the number of points decide."""
    return {"tree_ah": {"incremental_mode": Word(mode.name), "reordering_dtype": Word(kind.name)}}


def first_tree(d: int) -> int:
    """How many points autopilot wants before it divides them among leaves."""
    return _LEAST_LEAVES * max(_LEAF_VALUES // d, _LEAST_LEAF)


def suggest(config: Message, n: int, d: int) -> Message:
    """The config of an autopilot for n points of d dimensions."""
    pilot = config["autopilot"]["tree_ah"]
    said = {value: name for name, value in MEASURES.items()}[config["distance_measure"]["distance_measure"]]
    chosen: Message = {"num_neighbors": config["num_neighbors"], "distance_measure": config["distance_measure"]}
    if n < first_tree(d):
        chosen["brute_force"] = {}
    else:
        most = math.ceil(math.sqrt(_MOST_TREE_VALUES / d))
        leaves = max(_LEAST_LEAVES, min(n // max(_LEAF_VALUES // d, _LEAST_LEAF), most))
        online = pilot["incremental_mode"] != IncrementalMode.NONE.name
        chosen["partitioning"] = partitioning(
            said,
            leaves=leaves,
            searched=math.ceil(_LEAST_LEAVES * (leaves / _LEAST_LEAVES) ** math.log10(2) - 1e-9),
            sample=200 * leaves,
            least=10,
            iterations=10,
            incremental={"fraction": 0.5, "autopilot": True} if online else None,
        )
        dot = said == "dot_product"
        chosen["hash"] = asymmetric_hash(d, per_block=2, threshold=0.2 if dot else _NAN, sample=32000, residual=dot)
        kind = ReorderType[pilot["reordering_dtype"]]
        if kind != ReorderType.NO_REORDER:
            k = config["num_neighbors"]
            chosen["exact_reordering"] = exact_reordering(math.ceil(max(2 * k, 100 * math.sqrt(k))), kind)
    chosen["autopilot"] = config["autopilot"]
    return chosen
