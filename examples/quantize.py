"""What quantization does to search: the docstrings of the Python library as vectors, squeezed to a few bytes each.

Makes 64-dimensional vectors of docstrings of the standard library and of installed packages (`aniso.demo`), quantizes
them with and without the score-aware loss, and searches in words. Needs no data file.
"""

from __future__ import annotations

import time

import numpy as np

from aniso.demo import Embedding, collect
from aniso.exact import ranks, relative_error, top
from aniso.loss import Threshold
from aniso.quantizers import ProductQuantizer

DIMENSIONS = 64
QUESTIONS = ["compress data with gzip", "parse command line arguments", "eigenvalues of a symmetric matrix"]


def main() -> None:
    """Build, compare, search."""
    start = time.perf_counter()
    found = collect(10_000)
    embedding = Embedding([one.words for one in found], dimensions=DIMENSIONS)
    points = embedding.points
    print(f"{len(points):,} docstrings as {DIMENSIONS}-dimensional vectors, {time.perf_counter() - start:.1f} s\n")

    # Queries: every seventh docstring, each a little blurred so that it is not a point itself.
    rng = np.random.default_rng(1)
    queries = points[::7] + 0.1 * rng.normal(size=points[::7].shape).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    truth = top(queries, points, 1)[0][:, 0]

    subspaces = DIMENSIONS // 4
    methods = {
        "product quantization": ProductQuantizer(subspaces),
        "score-aware, T = 0.3": ProductQuantizer(subspaces, loss=Threshold(0.3)),
        "score-aware, with per-point scale": ProductQuantizer(subspaces, loss=Threshold(0.3), scale_bits=8),
    }
    print(f"{'':36}bytes   1@1     1@10   error of the best score")
    for name, quantizer in methods.items():
        codes = quantizer.fit(points).encode(points)
        decoded = quantizer.decode(codes)
        rank = ranks(queries, decoded, truth)
        error = relative_error(queries, points, decoded, truth)
        print(f"{name:36}{quantizer.bits / 8:5.0f}   {(rank < 1).mean():.3f}   {(rank < 10).mean():.3f}   {error:.1%}")
    print(f"{'uncompressed':36}{points[0].nbytes:5d}   1.000   1.000   0.0%\n")

    scores = quantizer.score(embedding(QUESTIONS), codes)
    for question, row in zip(QUESTIONS, scores, strict=True):
        best = np.argsort(-row)[:5]
        print(f"{question!r}\n    {', '.join(found[i].name for i in best)}")


if __name__ == "__main__":
    main()
