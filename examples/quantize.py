"""What quantization does to search: the docstrings of the Python library as vectors, squeezed to a few bytes each.

Reads the sources of the standard library and of NumPy, makes a 64-dimensional vector of every docstring (TF-IDF, then a
truncated SVD), quantizes them with and without the score-aware loss, and searches in words. Needs no data file.
"""

from __future__ import annotations

import ast
import re
import sysconfig
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aniso.exact import ranks, relative_error, top
from aniso.loss import Threshold
from aniso.quantizers import ProductQuantizer

DIMENSIONS = 64
WORDS = 4000
QUESTIONS = ["compress data with gzip", "parse command line arguments", "eigenvalues of a symmetric matrix"]


def docstrings() -> tuple[list[str], list[str]]:
    """Names and docstrings of the functions and classes of the standard library and NumPy."""
    library = Path(sysconfig.get_path("stdlib"))
    files = [p for p in sorted(library.rglob("*.py")) if "site-packages" not in p.parts and "test" not in str(p)]
    files += [p for p in sorted(Path(np.__file__).parent.rglob("*.py")) if "tests" not in p.parts]
    names, texts = [], []
    for path in files:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
                names.append(f"{path.stem}.{node.name}")
                texts.append(f"{node.name} {text}")
    return names, texts


class Embedding:
    """TF-IDF over the most frequent words, reduced by a randomised truncated SVD."""

    def __init__(self, texts: list[str]) -> None:
        counts = [Counter(self.split(text)) for text in texts]
        documents = Counter(word for count in counts for word in count)
        self.words = {word: i for i, (word, _) in enumerate(documents.most_common(WORDS))}
        self.idf = np.log(len(texts) / np.array([documents[word] for word in self.words], np.float32))
        matrix = self.tf_idf(counts)
        rng = np.random.default_rng(0)
        basis = np.linalg.qr(matrix.T @ (matrix @ rng.normal(size=(WORDS, DIMENSIONS)).astype(np.float32)))[0]
        self.directions = np.linalg.qr(matrix.T @ (matrix @ basis))[0].astype(np.float32)
        self.points = self.unit(matrix @ self.directions)

    def __call__(self, texts: list[str]) -> NDArray[np.float32]:
        return self.unit(self.tf_idf([Counter(self.split(text)) for text in texts]) @ self.directions)

    def tf_idf(self, counts: list[Counter[str]]) -> NDArray[np.float32]:
        matrix = np.zeros((len(counts), len(self.words)), np.float32)
        for row, count in enumerate(counts):
            for word, number in count.items():
                if (column := self.words.get(word)) is not None:
                    matrix[row, column] = (1 + np.log(number)) * self.idf[column]
        return self.unit(matrix)

    @staticmethod
    def split(text: str) -> list[str]:
        return re.findall(r"[a-z]{3,}", text.lower())

    @staticmethod
    def unit(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12), np.float32)


def main() -> None:
    """Build, compare, search."""
    start = time.perf_counter()
    names, texts = docstrings()
    embedding = Embedding(texts)
    points = embedding.points
    print(f"{len(points):,} docstrings as {DIMENSIONS}-dimensional vectors, {time.perf_counter() - start:.1f} s\n")

    # Queries: every seventh docstring, each a little blurred so that it is not a point itself.
    rng = np.random.default_rng(1)
    queries = Embedding.unit(points[::7] + 0.1 * rng.normal(size=points[::7].shape).astype(np.float32))
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
        best = list(dict.fromkeys(names[i] for i in np.argsort(-row)[:12]))[:5]
        print(f"{question!r}\n    {', '.join(best)}")


if __name__ == "__main__":
    main()
