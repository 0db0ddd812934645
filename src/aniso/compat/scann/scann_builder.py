"""The builder: collects settings call by call, writes them as a config, and builds a searcher from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from aniso.arrays import as_array
from aniso.compat.scann import stanzas
from aniso.compat.scann.config_text import Message, Word, write
from aniso.compat.scann.settings import Settings
from aniso.compat.scann.stanzas import IncrementalMode, ReorderType, parse_reorder
from aniso.errors import check_count

__all__ = ["IncrementalMode", "ReorderType", "ScannBuilder", "parse_reorder"]

_NAN = float("nan")


class ScannBuilder:
    """The settings of a searcher; each method sets a part of them and returns the builder.

    >>> import numpy as np
    >>> points = np.random.default_rng(0).normal(size=(2000, 16)).astype(np.float32)
    >>> builder = ScannBuilder(points, 10, "dot_product").tree(40, 8).score_ah(2).reorder(50)
    >>> "num_children: 40" in builder.create_config()
    True
    """

    def __init__(self, db: Any, num_neighbors: int, distance_measure: str) -> None:
        self.params: dict[str, dict[str, Any]] = {}
        self.training_threads = 0
        self.builder_lambda: Callable[..., Any] | None = None
        self.db: NDArray[Any] = as_array(db, "db")
        if self.db.ndim != 2:
            raise ValueError(f"db has shape {self.db.shape}; needed: (points, dimensions)")
        self.num_neighbors = num_neighbors
        self.distance_measure = distance_measure

    def set_n_training_threads(self, threads: int) -> ScannBuilder:
        """Train on so many threads; 0, the default, on all cores."""
        self.training_threads = check_count(threads, "threads", least=0, most=1024)
        return self

    def set_builder_lambda(self, builder_lambda: Callable[..., Any]) -> ScannBuilder:
        """What build() calls: with the points, the config, the training threads, and docids."""
        self.builder_lambda = builder_lambda
        return self

    def _set(self, name: str, **arguments: Any) -> ScannBuilder:
        if name in self.params:
            raise ValueError(f"{name} has already been configured; needed: one call of it")
        self.params[name] = arguments
        return self

    def pca(
        self,
        reduction_dim: int | None = None,
        pca_significance_threshold: float | None = 0.80,
        pca_truncation_threshold: float | None = 0.6,
    ) -> ScannBuilder:
        """Partition and code the principal components: so many, or as many as keep a share of the variance."""
        given = {"dimensions": reduction_dim, "significance": pca_significance_threshold}
        return self._set("pca", **given, most=pca_truncation_threshold)

    def truncate(self, reduction_dim: int) -> ScannBuilder:
        """Partition and code the first dimensions only, for embeddings that are made for it."""
        return self._set("truncate", dimensions=reduction_dim)

    def upper_tree(
        self,
        num_leaves: int,
        num_leaves_to_search: int,
        avq: float = _NAN,
        soar_lambda: float | None = None,
        overretrieve_factor: float | None = None,
        scoring_mode: ReorderType = ReorderType.INT8,
        anisotropic_quantization_threshold: float = _NAN,
    ) -> ScannBuilder:
        """A tree over the leaves. An index groups its partitions by itself once there are many."""
        soar: Message = {"enabled": soar_lambda is not None, "lambda": soar_lambda or 1.5}
        return self._set(
            "upper_tree",
            enabled=True,
            num_centroids=check_count(num_leaves, "num_leaves"),
            num_centroids_to_search=check_count(num_leaves_to_search, "num_leaves_to_search"),
            avq=avq,
            soar={**soar, "overretrieve_factor": overretrieve_factor or 2.0},
            quantization=Word("FIXED8" if scoring_mode == ReorderType.INT8 else scoring_mode.name),
            noise_shaping_threshold=anisotropic_quantization_threshold,
        )

    def tree(
        self,
        num_leaves: int,
        num_leaves_to_search: int,
        training_sample_size: int = 100000,
        min_partition_size: int = 50,
        training_iterations: int = 12,
        spherical: bool = False,
        quantize_centroids: bool = False,
        random_init: bool = True,
        incremental_threshold: int | float | None = None,
        avq: float | None = None,
        soar_lambda: float | None = None,
        overretrieve_factor: float | None = None,
    ) -> ScannBuilder:
        """Divide the points among leaves, of which a search looks at a few."""
        return self._set(
            "tree",
            leaves=num_leaves,
            searched=num_leaves_to_search,
            sample=training_sample_size,
            least=min_partition_size,
            iterations=training_iterations,
            spherical=spherical,
            quantized=quantize_centroids,
            random=random_init,
            incremental=incremental_threshold,
            avq=avq,
            soar_lambda=soar_lambda,
            overretrieve_factor=overretrieve_factor,
        )

    def score_ah(
        self,
        dimensions_per_block: int,
        anisotropic_quantization_threshold: float = _NAN,
        training_sample_size: int = 100000,
        min_cluster_size: int = 100,
        hash_type: str = "lut16",
        training_iterations: int = 10,
        residual_quantization: bool | None = None,
    ) -> ScannBuilder:
        """Score points by codes: 4 bits ("lut16") or 8 ("lut256") for each block of dimensions."""
        return self._set(
            "score_ah",
            per_block=dimensions_per_block,
            threshold=anisotropic_quantization_threshold,
            sample=training_sample_size,
            hash_type=hash_type,
            iterations=training_iterations,
            residual=residual_quantization,
        )

    def score_brute_force(self, quantize: ReorderType | bool = ReorderType.FLOAT32) -> ScannBuilder:
        """Compute every score, from the points themselves or from a smaller copy."""
        return self._set("score_bf", kind=parse_reorder(quantize))

    def reorder(
        self,
        reordering_num_neighbors: int,
        quantize: ReorderType | bool = ReorderType.FLOAT32,
        anisotropic_quantization_threshold: float = _NAN,
    ) -> ScannBuilder:
        """Rescore the best candidates, from the points themselves or from a smaller copy."""
        given = {"candidates": reordering_num_neighbors, "threshold": anisotropic_quantization_threshold}
        return self._set("reorder", **given, kind=parse_reorder(quantize))

    def autopilot(
        self,
        mode: IncrementalMode = IncrementalMode.NONE,
        quantize: ReorderType | bool = ReorderType.FLOAT32,
    ) -> ScannBuilder:
        """Let the number of points decide between brute force and a tree, and on its settings."""
        return self._set("autopilot", mode=mode, kind=parse_reorder(quantize))

    def create_config(self) -> str:
        """The settings as a text; an autopilot's are those for the points that the builder has."""
        config: Message = {
            "num_neighbors": check_count(self.num_neighbors, "num_neighbors"),
            "distance_measure": stanzas.measure(self.distance_measure),
        }
        if "autopilot" in self.params:
            config["autopilot"] = stanzas.autopilot(**self.params["autopilot"])
            return write(stanzas.suggest(config, *self.db.shape))
        if ("score_ah" in self.params) == ("score_bf" in self.params):
            raise ValueError("needed: one of score_ah and score_brute_force, and only one")
        projected = self._projection()
        if "tree" in self.params:
            config["partitioning"] = self._tree(projected)
        if "score_ah" in self.params:
            config["hash"] = self._hash(projected)
            reorder = self.params.get("reorder")
            if reorder is not None and reorder["kind"] != ReorderType.NO_REORDER:
                config["exact_reordering"] = stanzas.exact_reordering(**reorder)
        else:
            config["brute_force"] = stanzas.brute_force(**self.params["score_bf"])
        Settings.read(config)  # which names what cannot be
        return write(config)

    def build(self, docids: Any = None, **kwargs: Any) -> Any:
        """The searcher. docids are strings, one for each point; they are needed to change points later."""
        if self.builder_lambda is None:
            raise ValueError(
                "build() knows not what to call; needed: scann_ops_pybind.builder(), or set_builder_lambda()"
            )
        return self.builder_lambda(self.db, self.create_config(), self.training_threads, docids=docids, **kwargs)

    def _projection(self) -> Message | None:
        d, pca, truncate = self.db.shape[1], self.params.get("pca"), self.params.get("truncate")
        if pca is not None and truncate is not None:
            raise ValueError("pca and truncate were both called; needed: one of them at most")
        if truncate is not None:
            kept = check_count(truncate["dimensions"], "reduction_dim")
            if kept >= d:
                raise ValueError(f"reduction_dim is {kept}; needed: less than the {d} dimensions of the points")
            return stanzas.projection("TRUNCATE", d, num_dims_per_block=kept)
        if pca is None:
            return None
        if (pca["dimensions"] is None) == (pca["significance"] is None):
            raise ValueError("pca needs reduction_dim or pca_significance_threshold; the other one must be None")
        if pca["dimensions"] is not None:
            return stanzas.projection("PCA", d, num_dims_per_block=pca["dimensions"])
        limits = {"pca_significance_threshold": pca["significance"], "pca_truncation_threshold": pca["most"]}
        return stanzas.projection("PCA", d, **limits)

    def _tree(self, projected: Message | None) -> Message:
        given = self.params["tree"]
        for name, meaning in (("avq", "avq"), ("soar_lambda", "soar_lambda")):
            if given[name] is not None and self.distance_measure != "dot_product":
                raise ValueError(f"{meaning} goes with dot_product only; the distance is {self.distance_measure}")
        upper = self.params.get("upper_tree")
        return stanzas.partitioning(self.distance_measure, **given, projected=projected, upper=upper)

    def _hash(self, projected: Message | None) -> Message:
        given = dict(self.params["score_ah"])
        kind = given.pop("hash_type")
        if kind not in ("lut16", "lut256"):
            raise ValueError(f"hash_type is {kind!r}; needed: one of ['lut16', 'lut256']")
        check_count(given["per_block"], "dimensions_per_block")
        if given["residual"] is None:
            given["residual"] = "tree" in self.params and self.distance_measure == "dot_product"
        stanza = stanzas.asymmetric_hash(None if projected else self.db.shape[1], wide=kind == "lut256", **given)
        if projected and "tree" not in self.params:
            stanza = {"projection": projected, **stanza}
        return stanza
