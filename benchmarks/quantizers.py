"""Recall of quantized search at a fixed number of bits: no partitions, no rescoring, exact scores on decoded points.

    python benchmarks/quantizers.py                 the table and the sweep over T, written to benchmarks/results/
    python benchmarks/quantizers.py --peers         with ScaNN and FAISS RaBitQ where they are installed
    python benchmarks/quantizers.py --seeds 3       mean and spread over seeds
    python benchmarks/quantizers.py --times         measures fit and encode alone, for a quiet moment; recalls stay
    python benchmarks/quantizers.py --only paper    only methods whose name contains this; other rows stay as they are
    python benchmarks/quantizers.py --queries 2000  quicker, with noise of about 0.01

1@N is the share of queries whose true best point is among the N best by decoded score; the relative error is that of
the true best point's score. Points and queries are divided by their norms.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aniso import datasets
from aniso.exact import ranks, relative_error
from aniso.loss import Reconstruction, Threshold
from aniso.quantizers import AdditiveQuantizer, ProductQuantizer, Quantizer

RESULTS = Path(__file__).parent / "results"
QUERY_AWARE = "additive + scale along the expected query"
Row = dict[str, Any]
F32 = NDArray[np.float32]


def methods(bits: int, seed: int) -> dict[str, Callable[[], Quantizer]]:
    """The quantizers of the table; `bits` counts codes of 4 bits without the scale."""
    m = bits // 4
    limit, exact = Threshold(0.2, limit=True), Threshold(0.2)  # eta = 4.125, as in the paper, and 5.953
    return {
        "PQ": lambda: ProductQuantizer(m, sweeps=0, rounds=0, seed=seed),
        "PQ, codes by the score-aware loss": lambda: ProductQuantizer(m, loss=limit, rounds=0, seed=seed),
        "the paper's method, eta of the limit": lambda: ProductQuantizer(m, loss=limit, seed=seed),
        "the paper's method, exact eta": lambda: ProductQuantizer(m, loss=exact, seed=seed),
        "PQ + scale": lambda: ProductQuantizer(m, sweeps=0, rounds=0, scale_bits=8, seed=seed),
        "PQ + scale, codes by cosine": lambda: ProductQuantizer(m, rounds=0, scale_bits=8, seed=seed),
        "PQ + scale, codes and codebooks by cosine": lambda: ProductQuantizer(m, scale_bits=8, seed=seed),
        "additive + scale": lambda: AdditiveQuantizer(m, seed=seed),
        QUERY_AWARE: lambda: AdditiveQuantizer(m, seed=seed),
    }


def measure(
    quantizer: Quantizer, points: F32, queries: F32, truth: NDArray[np.int64], expected: F32 | None = None
) -> Row:
    """Fit, encode, decode and rank; `expected` are the queries that training may know, never those measured with."""
    start = time.perf_counter()
    if isinstance(quantizer, AdditiveQuantizer):
        quantizer.fit(points, queries=expected)
    else:
        quantizer.fit(points)
    fitted = time.perf_counter()
    codes = quantizer.encode(points)
    encoded = time.perf_counter()
    if not len(queries):
        return {"bits": quantizer.bits, "fit s": fitted - start, "encode s": encoded - fitted}
    decoded = quantizer.decode(codes)
    rank = ranks(queries, decoded, truth)
    return {
        "bits": quantizer.bits,
        **{f"1@{n}": float(np.mean(rank < n)) for n in (1, 10, 100)},
        "error": relative_error(queries, points, decoded, truth),
        "fit s": fitted - start,
        "encode s": encoded - fitted,
    }


def table(bits: int, seeds: int, only: str, points: F32, queries: F32, truth: NDArray[np.int64]) -> Iterator[Row]:
    for name in [name for name in methods(bits, 0) if only in name]:
        runs = []
        for seed in range(seeds):
            # Points as a stand-in for queries: what a user knows who expects queries to look like points.
            some = np.random.default_rng(seed).choice(len(points), 8000, replace=False)
            expected = points[some] if name == QUERY_AWARE else None
            runs.append(measure(methods(bits, seed)[name](), points, queries, truth, expected))
        mean = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
        if not len(queries):
            yield {"method": name, **mean}
            continue
        spread = {key: float(np.ptp([run[key] for run in runs])) for key in ("1@1", "1@10", "1@100", "error")}
        yield {"method": name, "seeds": seeds, **mean, "spread": spread}


def sweep(points: F32, queries: F32, truth: NDArray[np.int64]) -> Iterator[Row]:
    """Figure 3a: codebooks of the plain loss, codes by the score-aware loss for each T; T = 0 is the plain loss."""
    for T in (0.0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6):
        loss = Threshold(T) if T else Reconstruction()
        row = measure(ProductQuantizer(50, loss=loss, rounds=0), points, queries, truth)
        yield {"T": T, "eta": float(loss.weights([1.0], points.shape[1]).eta[0]), **row}


def peers(points: F32, queries: F32, truth: NDArray[np.int64]) -> Iterator[Row]:
    """The same search by ScaNN and by FAISS RaBitQ; their own scores, so no error of the best score from RaBitQ."""
    try:
        scann: Any = importlib.import_module("scann")
    except ImportError:
        print("scann is not installed (pip install scann==1.4.2)")
    else:
        for dimensions, bits in ((2, 200), (4, 100)):
            searcher = (
                scann.scann_ops_pybind.builder(points, 100, "dot_product")
                .score_ah(dimensions, anisotropic_quantization_threshold=0.2)
                .build()
            )
            ids, scores = searcher.search_batched(queries)
            yield peer_row("ScaNN, T = 0.2", bits, ids, scores, points, queries, truth)
    try:
        faiss: Any = importlib.import_module("faiss")
    except ImportError:
        print("faiss is not installed (pip install faiss-cpu)")
    else:
        for per_dimension in (2, 1):
            index = faiss.IndexRaBitQ(points.shape[1], faiss.METRIC_INNER_PRODUCT, per_dimension)
            index.qb = 0  # queries in full precision
            rotated = faiss.IndexPreTransform(faiss.RandomRotationMatrix(points.shape[1], points.shape[1]), index)
            rotated.train(points)
            rotated.add(points)
            some = slice(0, 2000)  # its flat search takes minutes for more
            scores, ids = rotated.search(queries[some], 100)
            name = f"RaBitQ, {per_dimension} bits (faiss), {len(ids)} queries"
            yield peer_row(name, 8 * index.code_size, ids, scores, points, queries[some], truth[some])


def peer_row(
    name: str, bits: int, ids: NDArray[Any], scores: F32, points: F32, queries: F32, truth: NDArray[np.int64]
) -> Row:
    found = ids == truth[:, None]
    hit = found.any(axis=1)
    exact = np.einsum("qd,qd->q", queries, points[truth])[hit]
    error = np.abs((exact - scores[found]) / exact)
    return {
        "method": name,
        "bits": bits,
        **{f"1@{n}": float(found[:, :n].any(axis=1).mean()) for n in (1, 10, 100)},
        "error": float(error.mean()),
    }


def as_markdown(rows: list[Row]) -> str:
    lines = ["| bits | method | 1@1 | 1@10 | 1@100 | top-1 relative error | fit s | encode s | seeds |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        times = " | ".join(f"{row[key]:.1f}" if key in row else "" for key in ("fit s", "encode s"))
        recall = " | ".join(f"{row[key]:.4f}" for key in ("1@1", "1@10", "1@100", "error"))
        lines.append(f"| {row['bits']:.0f} | {row['method']} | {recall} | {times} | {row.get('seeds', '')} |")
    return "\n".join(lines) + "\n"


def plot(rows: list[Row], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    axis.plot([row["T"] for row in rows], [row["1@10"] for row in rows], "o-", label="score-aware loss")
    axis.axhline(rows[0]["1@10"], color="gray", linestyle="--", label="reconstruction loss")
    axis.set(xlabel="threshold T", ylabel="recall 1@10", title="glove-100-angular, 200 bits per point")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--bits", type=int, nargs="*", default=[200, 100])
    parser.add_argument("--only", default="")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--no-sweep", action="store_true")
    options = parser.parse_args()

    data = datasets.load("glove-100-angular")
    points, queries = data.unit()
    count = 0 if options.times else options.queries
    chosen = np.sort(np.random.default_rng(0).permutation(len(queries))[:count])
    queries, truth = queries[chosen], data.neighbors[chosen, 0]

    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "quantizers.json"
    known = {(row["method"], row["bits"]): row for row in json.loads(path.read_text())} if path.exists() else {}
    measured = [table(bits, options.seeds, options.only, points, queries, truth) for bits in options.bits]
    if options.peers:
        measured.append(peers(points, queries, truth))
    for rows in measured:
        for row in rows:
            row = known.get((row["method"], row["bits"]), {}) | row
            known[row["method"], row["bits"]] = row
            print(as_markdown([row]).splitlines()[-1], flush=True)
            ordered = sorted(known.values(), key=lambda row: (row["bits"] < 150, row["1@10"]))
            path.write_text(json.dumps(ordered, indent=1) + "\n")
            (RESULTS / "quantizers.md").write_text(as_markdown(ordered))
    if not (options.no_sweep or options.times):
        swept = list(sweep(points, queries, truth))
        lines = ["| T | eta | 1@1 | 1@10 | 1@100 | top-1 relative error |", "|---|---|---|---|---|---|"]
        for row in swept:
            values = " | ".join(f"{row[key]:.4f}" for key in ("1@1", "1@10", "1@100", "error"))
            lines.append(f"| {row['T']:.2f} | {row['eta']:.2f} | {values} |")
        (RESULTS / "threshold.md").write_text("\n".join(lines) + "\n")
        plot(swept, RESULTS / "threshold.png")


if __name__ == "__main__":
    main()
