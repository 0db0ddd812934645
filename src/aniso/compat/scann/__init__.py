"""Google ScaNN's Python API on aniso's index: `from aniso.compat import scann`, and the rest of a program stays.

>>> import numpy as np
>>> from aniso.compat import scann
>>> points = np.random.default_rng(0).normal(size=(2000, 16)).astype(np.float32)
>>> searcher = (
...     scann.scann_ops_pybind.builder(points, 10, "dot_product")
...     .tree(num_leaves=40, num_leaves_to_search=8)
...     .score_ah(2, anisotropic_quantization_threshold=0.2)
...     .reorder(100)
...     .build()
... )
>>> neighbors, distances = searcher.search_batched(points[:5])
>>> neighbors.shape, neighbors.dtype, distances.dtype
((5, 10), dtype('uint32'), dtype('float32'))

docs/migrating-from-scann.md has a table of every call, and where it differs.
"""

from aniso.compat.scann import scann_builder, scann_ops_pybind
from aniso.compat.scann.scann_builder import IncrementalMode, ReorderType, ScannBuilder
from aniso.compat.scann.scann_ops_pybind import ScannSearcher, builder, create_searcher, load_searcher

__all__ = [
    "IncrementalMode",
    "ReorderType",
    "ScannBuilder",
    "ScannSearcher",
    "builder",
    "create_searcher",
    "load_searcher",
    "scann_builder",
    "scann_ops_pybind",
]
