"""Something to search on any machine: the docstrings of the installed Python packages, as vectors.

TF-IDF over the words of each docstring, reduced by a truncated SVD; NumPy alone. `aniso demo` builds an index of them
and searches it in words; examples/quantize.py squeezes them to a few bytes each.
"""

from __future__ import annotations

import ast
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aniso.progress import Progress, silent

__all__ = ["Docstring", "Embedding", "collect"]

_ROWS = 1024  # texts multiplied at a time: bounds memory
_WORDS = 60  # of a docstring: those that say what it is about; parameters and examples come later
_SKIPPED = {"test", "tests", "testing", "idlelib", "lib2to3", "_vendor", "node_modules"}

F32 = NDArray[np.float32]


class Docstring(NamedTuple):
    """What a function or a class says of itself."""

    name: str  # package.module.Class.method
    text: str

    @property
    def summary(self) -> str:
        """Its first line."""
        return self.text.partition("\n")[0].strip()

    @property
    def words(self) -> str:
        """What it is about: its name, which counts twice, and how it begins."""
        return " ".join([self.name, self.name, *self.text.split()[:_WORDS]])

    @property
    def package(self) -> str:
        """Where it comes from."""
        return self.name.partition(".")[0]


def collect(most: int = 30_000, *, progress: Progress = silent) -> list[Docstring]:
    """Docstrings of the standard library, then of the other installed packages; each name and each text once."""
    found: dict[str, Docstring] = {}
    texts: set[str] = set()
    files = list(_files())
    for at, (root, path) in enumerate(files):
        if at % 50 == 0:
            progress("read docstrings", at, len(files))
        for one in _read(root, path):
            if one.name not in found and one.text not in texts and len(one.text) >= 40:
                found[one.name] = one
                texts.add(one.text)
        if len(found) >= most:
            break
    progress("read docstrings", len(files), len(files))
    return list(found.values())[:most]


def _files() -> Iterator[tuple[Path, Path]]:
    """Python files and the folder that their names begin at; no tests, nothing private."""
    library = Path(sysconfig.get_path("stdlib"))
    installed = {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}
    for root in [library, *sorted(installed)]:
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).parts
            inner = root == library and parts[0] in ("site-packages", "dist-packages")
            if not inner and not _SKIPPED & set(parts) and not any(part.startswith("_") for part in parts[:-1]):
                yield root, path


def _read(root: Path, path: Path) -> Iterator[Docstring]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other people's escapes
            tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, OSError):
        return
    parts = path.relative_to(root).with_suffix("").parts
    todo: list[tuple[str, ast.AST]] = [(".".join(part for part in parts if part != "__init__"), tree)]
    while todo:
        prefix, node = todo.pop()
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{prefix}.{inner.name}"
                text = ast.get_docstring(inner)
                if text and not inner.name.startswith("_"):
                    yield Docstring(name, text)
                if isinstance(inner, ast.ClassDef):
                    todo.append((name, inner))


class Embedding:
    """Texts as unit vectors: TF-IDF of the most frequent words, then the directions in which texts differ most.

    >>> words = Embedding(["read a file", "write a file", "sort a list of numbers", "sort a table"] * 5, dimensions=2)
    >>> question, *texts = words(["sort numbers", "sort a list", "write a file"])
    >>> bool(question @ texts[0] > question @ texts[1])
    True
    """

    def __init__(
        self, texts: list[str], *, dimensions: int = 64, words: int = 8000, progress: Progress = silent
    ) -> None:
        counts = [Counter(_split(text)) for text in texts]
        documents = Counter(word for count in counts for word in count)
        self.words = {word: at for at, (word, _) in enumerate(documents.most_common(words))}
        self._idf = np.log(1 + len(texts) / np.array([documents[word] for word in self.words], np.float32))
        matrix = self._tf_idf(counts)
        d = min(dimensions, len(self.words), len(texts))
        basis = np.random.default_rng(0).normal(size=(len(self.words), d)).astype(np.float32)
        for step in range(3):  # subspace iteration: three rounds are enough for directions that need not be exact
            progress("embed", step, 4)
            basis = np.linalg.qr(matrix.transposed_times(matrix.times(basis)))[0].astype(np.float32)
        progress("embed", 3, 4)
        along = matrix.times(basis)
        turned, strengths, _ = np.linalg.svd(along.T @ along)  # of the singular values, the squares
        # The strongest directions, those of the most common words, are weakened.
        self._basis = (basis @ (turned / np.sqrt(np.sqrt(strengths + 1e-6)))).astype(np.float32)
        self.points: F32 = _unit(matrix.times(self._basis))  # (texts, d)
        progress("embed", 4, 4)

    def __call__(self, texts: list[str]) -> F32:
        """Other texts as vectors of the same kind; one without a known word is all zeros."""
        return _unit(self._tf_idf([Counter(_split(text)) for text in texts]).times(self._basis))

    def _tf_idf(self, counts: list[Counter[str]]) -> _Sparse:
        rows, columns, values = [], [], []
        for row, count in enumerate(counts):
            for word, number in count.items():
                column = self.words.get(word)
                if column is not None:
                    rows.append(row)
                    columns.append(column)
                    values.append(number)
        at = np.array(columns, np.int64)
        return _Sparse(
            np.array(rows, np.int64), at, (1 + np.log(np.array(values, np.float32))) * self._idf[at], len(counts)
        )


class _Sparse:
    """A matrix of few entries, sorted by rows, whose rows have norm 1."""

    def __init__(self, rows: NDArray[np.int64], columns: NDArray[np.int64], values: F32, height: int) -> None:
        norms = np.sqrt(np.bincount(rows, np.square(values), minlength=height))
        self._columns, self._values = columns, (values / norms[rows]).astype(np.float32)
        self._rows, self._height = rows, height
        self._starts = np.searchsorted(rows, np.arange(0, height + _ROWS, _ROWS))

    def _parts(self) -> Iterator[tuple[int, int, NDArray[np.int64], F32]]:
        """A stretch of rows as a dense matrix over the columns it has."""
        for at, (low, high) in enumerate(zip(self._starts, self._starts[1:], strict=False)):
            first, last = at * _ROWS, min((at + 1) * _ROWS, self._height)
            there, place = np.unique(self._columns[low:high], return_inverse=True)
            dense = np.zeros((last - first, len(there)), np.float32)
            dense[self._rows[low:high] - first, place.reshape(-1)] = self._values[low:high]
            yield first, last, there, dense

    def times(self, matrix: F32) -> F32:
        """self @ matrix."""
        out = np.zeros((self._height, matrix.shape[1]), np.float32)
        for first, last, there, dense in self._parts():
            out[first:last] = dense @ matrix[there]
        return out

    def transposed_times(self, matrix: F32) -> F32:
        """self.T @ matrix, of as many rows as the largest column says."""
        out = np.zeros((int(self._columns.max(initial=-1)) + 1, matrix.shape[1]), np.float32)
        for first, last, there, dense in self._parts():
            out[there] += dense.T @ matrix[first:last]
        return out


def _split(text: str) -> list[str]:
    """Words of at least three letters, in their plainest form: read_files is read and file."""
    found = re.findall(r"[a-z]{3,}", re.sub(r"([a-z])([A-Z])", r"\1 \2", text).lower())
    return [word[:-1] if len(word) > 4 and word.endswith("s") and not word.endswith("ss") else word for word in found]


def _unit(x: F32) -> F32:
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12), np.float32)
