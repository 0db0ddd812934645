"""The same seed gives the same bits whatever the number of threads, of the kernels and of NumPy's BLAS.

Each setting runs in a process of its own, since a BLAS counts its threads when it is loaded.
"""

import itertools
import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import hashlib, json, sys
import numpy as np
from aniso.loss import Threshold
from aniso.quantizers import AdditiveQuantizer, BinaryQuantizer, ProductQuantizer, QuipsQuantizer, RotatedQuantizer
from aniso.quantizers import VectorQuantizer

def digest(*arrays):
    return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()[:16]

threads = int(sys.argv[1])
rng = np.random.default_rng(0)
# More than 10,000 points and over 2^18 multiplications in a product: a BLAS takes a second thread from there on.
x = (rng.normal(size=(12_000, 50)) * np.linspace(0.3, 2, 50)).astype(np.float32)
q = (rng.normal(size=(400, 50)) * np.linspace(2, 0.3, 50)).astype(np.float32)
found = {"points": {"codebooks": digest(x, q), "codes": "", "losses": ""}}

def keep(name, quantizer, *codebooks):
    found[name] = {
        "codebooks": digest(*codebooks), "codes": digest(quantizer.encode(x)), "losses": digest(quantizer.losses)
    }

vector = VectorQuantizer(5, loss=Threshold(1.0), iterations=3, threads=threads).fit(x)
keep("vector", vector, vector.codewords)
for name, queries in (("", None), (" with queries", q)):
    product = ProductQuantizer(25, loss=Threshold(1.0), scale_bits=8, rounds=2, threads=threads)
    product.fit(x, queries=queries)
    keep("product" + name, product, product.books.codewords)
    coarse = ProductQuantizer(25, loss=Threshold(1.0), scale_bits=4, rounds=1, threads=threads).fit(x, queries=queries)
    keep("product with a scale of 4 bits" + name, coarse, coarse.books.codewords, coarse.scales.logarithms)
    additive = AdditiveQuantizer(25, rounds=1, restarts=1, sample=3000, threads=threads).fit(x, queries=queries)
    keep("additive" + name, additive, additive.codewords, [] if queries is None else additive.direction)
aware = AdditiveQuantizer(25, loss=Threshold(1.0), scale_bits=0, rounds=1, restarts=1, sample=3000, threads=threads)
keep("score-aware additive", aware.fit(x), aware.codewords)
rotated = RotatedQuantizer(25, iterations=3, rounds=1, threads=threads).fit(x)
keep("rotated", rotated, rotated.rotation, rotated.product.books.codewords)
quips = QuipsQuantizer(25, variant="opt", iterations=2, threads=threads).fit(x, queries=q)
keep("quips", quips, quips.books.codewords, quips.forward)
binary = BinaryQuantizer(64, loss=Threshold(1.0), steps=40, restarts=0, threads=threads).fit(x)
keep("binary", binary, binary.encoder, binary.decoder)
print(json.dumps(found))
"""
CASES = ["vector", "product", "additive", "product with queries", "additive with queries"]
CASES += ["score-aware additive", "rotated", "quips", "binary"]
Digests = dict[str, dict[str, str]]  # of a quantizer's parts


def run(blas_threads: int, threads: int) -> Digests:
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, str(threads)],
        env={**os.environ, **dict.fromkeys(names, str(blas_threads))},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: Digests = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def digests() -> dict[tuple[int, int], Digests]:
    """By the threads of the BLAS and of the kernels."""
    found = {setting: run(*setting) for setting in itertools.product((1, 2), (1, 2))}
    assert len({one["points"]["codebooks"] for one in found.values()}) == 1
    return found


@pytest.mark.parametrize("part", ["codebooks", "codes", "losses"])
@pytest.mark.parametrize("name", CASES)
def test_threads_of_the_kernels_do_not_change_a_bit(
    digests: dict[tuple[int, int], Digests], name: str, part: str
) -> None:
    for blas_threads in (1, 2):
        assert digests[blas_threads, 1][name][part] == digests[blas_threads, 2][name][part]


@pytest.mark.parametrize("part", ["codebooks", "codes", "losses"])
@pytest.mark.parametrize("name", CASES)
def test_threads_of_the_blas_do_not_change_a_bit(digests: dict[tuple[int, int], Digests], name: str, part: str) -> None:
    assert digests[1, 1][name][part] == digests[2, 1][name][part]
