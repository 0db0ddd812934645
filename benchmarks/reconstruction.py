"""Squared error of our product, rotated and additive codes beside those of FAISS (PQ, OPQ, LocalSearchQuantizer).

    python benchmarks/reconstruction.py             the table, written to benchmarks/results/reconstruction.md
    python benchmarks/reconstruction.py --points 50000 --sets glove-100-angular --codes LSQ
    python benchmarks/reconstruction.py --rate 2                    two bits per dimension instead of one
    python benchmarks/reconstruction.py --code-bits 8 --codes LSQ   256 codewords instead of 16

Both sides train on the same points and encode the same other points, with the plain loss. FAISS's product codes need
subspaces of one width: where the rate does not give them, both sides have the next smaller number of subspaces.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aniso import datasets
from aniso.quantizers import AdditiveQuantizer, ProductQuantizer, Quantizer, RotatedQuantizer

F32 = NDArray[np.float32]
RESULTS = Path(__file__).parent / "results"


def ours(quantizer: Any, train: F32, test: F32) -> F32:
    fitted: Quantizer = quantizer.fit(train)
    return fitted.decode(fitted.encode(test))


def faiss_pq(faiss: Any, train: F32, test: F32, m: int, bits: int) -> F32:
    pq = faiss.ProductQuantizer(train.shape[1], m, bits)
    pq.train(train)
    return np.asarray(pq.decode(pq.compute_codes(test)))


def faiss_opq(faiss: Any, train: F32, test: F32, m: int, bits: int) -> F32:
    d = train.shape[1]
    pq = faiss.ProductQuantizer(d, m, bits)
    rotation = faiss.OPQMatrix(d, m)
    rotation.pq = pq
    rotation.train(train)
    pq.train(rotation.apply(train))
    return np.asarray(rotation.reverse_transform(pq.decode(pq.compute_codes(rotation.apply(test)))))


def faiss_lsq(faiss: Any, train: F32, test: F32, m: int, bits: int) -> F32:
    lsq = faiss.LocalSearchQuantizer(train.shape[1], m, bits)
    lsq.train(train)
    return np.asarray(lsq.decode(lsq.compute_codes(test)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=20_000, help="to train on, and a quarter as many to measure with")
    parser.add_argument("--sets", nargs="*", default=["glove-100-angular", "sift-128-euclidean"])
    parser.add_argument("--codes", nargs="*", default=["PQ", "OPQ", "LSQ"])
    parser.add_argument("--rate", type=int, default=1, help="bits per dimension")
    parser.add_argument("--code-bits", type=int, choices=(4, 8), default=4)
    options = parser.parse_args()
    faiss: Any = importlib.import_module("faiss")
    n = options.points
    lines = [
        "| data set | bits | codes | aniso | faiss | ratio | aniso s | faiss s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in options.sets:
        points = datasets.load(name).points[: n + n // 4]
        train, test = points[:n], points[n:]
        bits = options.code_bits
        d = points.shape[1]
        most = options.rate * d // bits
        even = max(m for m in range(1, most + 1) if d % m == 0)
        pairs: dict[str, tuple[int, Any, Callable[..., F32]]] = {
            "PQ": (even, ProductQuantizer(even, bits_per_code=bits, rounds=10), faiss_pq),
            "OPQ": (even, RotatedQuantizer(even, bits_per_code=bits, iterations=50), faiss_opq),
            "LSQ": (most, AdditiveQuantizer(most, bits_per_code=bits, scale_bits=0, rounds=25, restarts=16), faiss_lsq),
        }
        whole = float(np.sum((test - test.mean(axis=0)) ** 2, dtype=np.float64))
        for kind in options.codes:
            m, quantizer, peer = pairs[kind]
            times, errors = [time.process_time()], []
            for side in ("aniso", "faiss"):
                decoded = ours(quantizer, train, test) if side == "aniso" else peer(faiss, train, test, m, bits)
                errors.append(float(np.sum((test - decoded) ** 2, dtype=np.float64)) / whole)
                times.append(time.process_time())
            seconds = np.diff(times)
            cells = [name, bits * m, f"{kind} of {bits} bits", *(f"{error:.4f}" for error in errors)]
            cells += [f"{errors[0] / errors[1]:.3f}", *(f"{value:.0f}" for value in seconds)]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
            print(lines[-1], flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "reconstruction.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
