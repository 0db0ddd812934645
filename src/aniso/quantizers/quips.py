"""QUIPS: product codes for the least expected error of scores, block by block (Guo et al., "Quantization based fast
inner product search").

n points, d dimensions, m subspaces. If the subspaces of a query are independent of each other, the expected squared
error of a score is a sum over subspaces j of (x - y)_j^T S_j (x - y)_j, S_j the second moment of the queries there.
With S_j = L_j L_j^T that is the plain squared error of L_j^T x_j: codes and codebooks are k-means in that space.

    cov(x)  S from the points themselves: no queries are needed
    cov(q)  S from a sample of queries
    opt     cov(q), and a hinge loss for every point that scores above the true best one of a sampled query
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aniso.errors import NotFittedError, check_count, check_seed, check_threads, check_vectors
from aniso.exact import ExactIndex, multiply
from aniso.progress import Progress, silent
from aniso.quantizers.codebooks import Codebooks, Codes, start_codebooks
from aniso.quantizers.protocol import check_bits, check_codes, score_decoded

__all__ = ["QuipsQuantizer"]

_VARIANTS = ("cov(x)", "cov(q)", "opt")
_RIDGE = 1e-4  # of a second moment, relative to its mean eigenvalue: a direction without queries keeps its place
_LISTED = 16  # points looked at per query for one that scores above the true best
_LEAST_STEP = 1 / 16

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


class QuipsQuantizer:
    """Codes of m numbers per point, one per subspace of a random order of the dimensions.

    subspaces       m
    variant         "cov(x)", "cov(q)" or "opt"; the last two need queries in fit
    bits_per_code   4 or 8
    strength        of the hinge losses of "opt", in units of the standard error of a score
    iterations      updates of the codewords with the hinge losses
    sample          most points used in training, chosen by the seed

    >>> import numpy as np
    >>> points = np.random.default_rng(0).normal(size=(2000, 10)).astype(np.float32)
    >>> quantizer = QuipsQuantizer(5).fit(points)
    >>> codes = quantizer.encode(points)
    >>> codes.shape, quantizer.bits
    ((2000, 5), 20)

    After fit: books, forward and back (the map into the space of the codes, and out of it), and losses: of "opt", the
    mean squared error of scores plus the hinge losses after each update, which never rises; else the former alone.
    """

    books: Codebooks
    forward: F32
    back: F32
    losses: list[float]

    def __init__(
        self,
        subspaces: int,
        *,
        variant: str = "cov(x)",
        bits_per_code: int = 4,
        strength: float = 0.02,
        iterations: int = 20,
        sample: int = 100_000,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        self.subspaces = check_count(subspaces, "subspaces")
        if variant not in _VARIANTS:
            raise ValueError(f"variant is {variant!r}; needed: one of {', '.join(map(repr, _VARIANTS))}")
        self.variant = variant
        self.bits_per_code, _ = check_bits(bits_per_code, 0)
        if not (isinstance(strength, (int, float)) and strength >= 0):
            raise ValueError(f"strength is {strength!r}; needed: a number of at least 0")
        self.strength = float(strength)
        self.iterations = check_count(iterations, "iterations", least=0)
        self.sample = check_count(sample, "sample")
        self.seed = check_seed(seed)
        self.threads = check_threads(threads)

    @property
    def bits(self) -> int:
        """Bits that the code of one point takes."""
        return self.subspaces * self.bits_per_code

    def fit(
        self, points: ArrayLike, *, queries: ArrayLike | None = None, progress: Progress = silent
    ) -> QuipsQuantizer:
        """Learn the codebooks from points (n, d), or from a sample of them; queries are a sample of those expected."""
        x = check_vectors(points, "points", rows=1)
        d = x.shape[1]
        if self.subspaces > d:
            raise ValueError(f"subspaces is {self.subspaces}; needed: at most the {d} dimensions of the points")
        if queries is None and self.variant != "cov(x)":
            raise ValueError(f'variant "{self.variant}" needs a sample of queries: fit(points, queries=...)')
        asked = None if queries is None else check_vectors(queries, "queries", d=d, rows=1)
        rng = np.random.default_rng(self.seed)
        if len(x) > self.sample:
            x = x[np.sort(rng.choice(len(x), self.sample, replace=False))]
        order = rng.permutation(d)
        seen = x if asked is None or self.variant == "cov(x)" else asked
        forward, back = _maps(seen[:, order], order, self.subspaces)
        y = multiply(x, forward, threads=self.threads)
        k = 1 << self.bits_per_code
        books = start_codebooks(y, self.subspaces, k, rng=rng, threads=self.threads, progress=progress)
        codes = _nearest(books, y)
        losses = [_squared_error(books, y, codes)]
        if self.variant == "opt" and asked is not None:
            # <q, x> = <p, y>
            p = multiply(asked, np.ascontiguousarray(back.T), threads=self.threads)
            books, losses = self._constrain(books, y, codes, p, x, asked, progress)
        self.books, self.forward, self.back, self.losses = books, forward, back, losses
        return self

    def encode(self, points: ArrayLike) -> Codes:
        """The codes of points: (n, subspaces) bytes."""
        self._fitted()
        x = check_vectors(points, "points", d=len(self.forward))
        return _nearest(self.books, multiply(x, self.forward, threads=self.threads))

    def decode(self, codes: NDArray[Any]) -> F32:
        """The points that the codes stand for, (n, d)."""
        books = self._fitted()
        names = check_codes(codes, self.subspaces, 0, books.codewords.shape[1])
        return multiply(books.decode(names), self.back, threads=self.threads)

    def score(self, queries: ArrayLike, codes: NDArray[Any]) -> F32:
        """Inner products of queries (q, d) with the decoded points, (q, n)."""
        return score_decoded(self, queries, codes)

    def _fitted(self) -> Codebooks:
        if not hasattr(self, "books"):
            raise NotFittedError("this QuipsQuantizer has no codebooks yet: call fit(points) first")
        return self.books

    def _constrain(
        self, books: Codebooks, y: F32, codes: Codes, p: F32, x: F32, queries: F32, progress: Progress
    ) -> tuple[Codebooks, list[float]]:
        """Codewords of least |y - u|^2 + strength * hinge: while the violated constraints stay the same, a mean that
        each of them pulls on. Steps towards it that do not lower the loss are halved.
        """
        best = _best_others(x, queries, self.threads)
        unit = self.strength * np.sqrt(_squared_error(books, y, codes))
        loss, violated = self._violations(books, y, codes, p, best, unit)
        losses, step = [loss], 1.0
        for iteration in range(self.iterations):
            progress("constraints", iteration, self.iterations)
            if step < _LEAST_STEP:
                break
            pulled = _pulled(books, y, codes, p, best, violated, unit * len(y) / (2 * len(p)))
            words = (1 - step) * books.codewords + step * pulled
            moved = Codebooks(words.astype(np.float32), books.starts, books.threads)
            moved_codes = _nearest(moved, y)
            loss, moved_violated = self._violations(moved, y, moved_codes, p, best, unit)
            if loss >= losses[-1]:
                step /= 2
                continue
            books, codes, violated = moved, moved_codes, moved_violated
            losses.append(loss)
        progress("constraints", self.iterations, self.iterations)
        return books, losses

    def _violations(
        self, books: Codebooks, y: F32, codes: Codes, p: F32, best: NDArray[np.int64], unit: float
    ) -> tuple[float, tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """The loss, and the violated constraints as numbers of queries and of points that score above the best."""
        decoded = books.decode(codes)
        found = ExactIndex(decoded, threads=self.threads).search(p, _LISTED)
        own = np.einsum("qd,qd->q", p, decoded[best], dtype=np.float64)
        excess = found.scores - own[:, None]
        above = (excess > 0) & (found.ids != best[:, None])
        hinge = float(np.where(above, excess, 0.0).sum() / len(p))
        rows, columns = np.nonzero(above)
        return _squared_error(books, y, codes) + unit * hinge, (rows, found.ids[rows, columns])


def _maps(seen: F32, order: NDArray[np.int64], m: int) -> tuple[F32, F32]:
    """The matrices A, with x A = (L_j^T x_j for every j), and its inverse, from vectors in the new order."""
    d = seen.shape[1]
    starts = np.linspace(0, d, m + 1).astype(np.int32)
    forward, back = np.zeros((d, d)), np.zeros((d, d))
    for first, last in itertools.pairwise(starts):
        part = seen[:, first:last].astype(np.float64)
        moment = np.einsum("ni,nj->ij", part, part) / len(part)
        mean = np.trace(moment) / (last - first)
        moment[np.diag_indices(last - first)] += _RIDGE * mean if mean > 0 else 1.0
        factor = np.linalg.cholesky(moment)
        forward[order[first:last], first:last] = factor
        back[first:last, order[first:last]] = np.linalg.inv(factor)
    return forward.astype(np.float32), back.astype(np.float32)


def _best_others(points: F32, queries: F32, threads: int) -> NDArray[np.int64]:
    """The best point of each query that is not the query itself."""
    found = ExactIndex(points, threads=threads).search(queries, 8).ids
    same = (points[found] == queries[:, None]).all(axis=2)
    return np.asarray(found[np.arange(len(queries)), np.argmin(same, axis=1)])


def _pulled(
    books: Codebooks,
    y: F32,
    codes: Codes,
    p: F32,
    best: NDArray[np.int64],
    violated: tuple[NDArray[np.int64], NDArray[np.int64]],
    pull: float,
) -> F64:
    """The means of the points of each codeword, moved away from queries it scores too high with, and the reverse."""
    rows, above = violated
    ones, weights = np.ones(len(y), np.float32), np.full(len(rows), pull, np.float32)
    counts = books.counts(ones.astype(np.float64), codes)[:, :, None]
    sums = books.sums(y, ones, codes)
    if len(rows):
        asked = np.ascontiguousarray(p[rows])
        sums -= books.sums(asked, weights, np.ascontiguousarray(codes[above]))
        sums += books.sums(asked, weights, np.ascontiguousarray(codes[best[rows]]))
    return np.where(counts > 0, sums / np.maximum(counts, 1), books.codewords)


def _nearest(books: Codebooks, y: F32) -> Codes:
    return books.encode(y, y, np.zeros(len(y), np.float32), scaled=False, sweeps=0)


def _squared_error(books: Codebooks, y: F32, codes: Codes) -> float:
    error = y - books.decode(codes)
    return float(np.mean(np.einsum("nd,nd->n", error, error, dtype=np.float64)))
