"""The boundary: every function and constant of the compiled core. Arithmetic on arrays that NumPy owns; arrays marked
"out" are allocated by the caller and written. All arrays are C-contiguous. n points, d dimensions, m subspaces,
k codewords.

`isa` names an instruction set and is "" for the one in use; `threads` never changes a result.
"""

import numpy as np
from numpy.typing import NDArray

EFFORT_DEPTH: int  # the partition whose score tells how far the best one stands out
EFFORT_FURTHEST: float  # times fewer, or more, partitions than were asked for, at most

def isas() -> list[str]:
    """The instruction sets this machine can run, best first."""

def isa() -> str:
    """The instruction set in use: the best, or the one ANISO_ISA names."""

def release_memory() -> None:
    """Give memory that was freed back to the system; does what it can."""

def assign(
    points: NDArray[np.float32],  # (n, d)
    codewords: NDArray[np.float32],  # (k, d)
    squared_norms: NDArray[np.float32],  # (k,)
    linear: NDArray[np.float32],  # (n,)
    quadratic: NDArray[np.float32],  # (n,)
    codes: NDArray[np.int32],  # (n,) out
    costs: NDArray[np.float32],  # (n,) out
    *,
    threads: int = 1,
    isa: str = "",
) -> None:
    """The cheapest codeword of each point; cost = |c|^2 + g (linear + quadratic g), g = <point, c>."""

def gram(
    codewords: NDArray[np.float32],  # (k, d)
    out: NDArray[np.float32],  # (k, columns) out, columns >= k and a multiple of 32
    *,
    threads: int = 1,
    isa: str = "",
) -> None:
    """out[:, :k] = codewords @ codewords.T, the other columns 0."""

def assign_partitions(
    points: NDArray[np.float32],  # (n, d)
    assigners: NDArray[np.float32],  # (p, d)
    centroids: NDArray[np.int8],  # (ceil(p / 8), d4 / 4, 8, 4) the assigners in bytes
    sums: NDArray[np.int32],  # (p padded to 8,)
    scales: NDArray[np.float32],  # (2, p padded to 8) a scale and a bias each
    groups: NDArray[np.int8] | None,  # (ceil(p / 64), d4 / 4, 8, 4) one for every 8 assigners
    group_sums: NDArray[np.int32] | None,
    group_scales: NDArray[np.float32] | None,
    looked: int,  # how many near assigners the choice is among
    strength: float,  # lambda
    firsts: NDArray[np.int32],  # (n,) out
    seconds: NDArray[np.int32] | None,  # (n,) out
    ratios: NDArray[np.float32] | None,  # (n,) out: the cost of the second over |r|^2
    *,
    threads: int = 1,
    isa: str = "",
) -> None:
    """The nearest assigner, the second of least cost |x-c|^2 + strength <x-c, r/|r|>^2, and that over |r|^2."""

def encode(
    residuals: NDArray[np.float32],  # (n, d)
    points: NDArray[np.float32],  # (n, d)
    penalty: NDArray[np.float32],  # (n,)
    codewords: NDArray[np.float32],  # (m, k, width)
    starts: NDArray[np.int32],  # (m + 1,)
    codes: NDArray[np.uint8],  # (n, m) out, and in where warm
    *,
    scaled: bool,
    warm: bool,
    sweeps: int,
    threads: int = 1,
    isa: str = "",
) -> None:
    """Product codes by coordinate descent on the score-aware loss, or on that loss under the best scale."""

def encode_additive(
    points: NDArray[np.float32],  # (n, d)
    penalty: NDArray[np.float32],  # (n,)
    codewords: NDArray[np.float32],  # (m, k, d)
    gram: NDArray[np.float32],  # (m * k, m * k) inner products of the codewords
    codes: NDArray[np.uint8],  # (n, m) out, and in where warm
    *,
    scaled: bool,
    warm: bool,
    sweeps: int,
    restarts: int,
    kicks: int,
    seed: int,
    threads: int = 1,
    isa: str = "",
) -> None:
    """Additive codes by iterated local search."""

def dot_decoded(
    values: NDArray[np.float32],  # (n, d)
    codes: NDArray[np.uint8],  # (n, m)
    codewords: NDArray[np.float32],  # (m, k, width)
    starts: NDArray[np.int32],  # (m + 1,)
    out: NDArray[np.float32],  # (n,) out
    *,
    threads: int = 1,
    isa: str = "",
) -> None:
    """out[i] = <values[i], decode(codes)[i]>."""

def sum_by_code(
    values: NDArray[np.float32],  # (n, d)
    weights: NDArray[np.float32],  # (n,)
    codes: NDArray[np.uint8],  # (n, m)
    codewords: NDArray[np.float32],  # (m, k, width), only its shape is read
    starts: NDArray[np.int32],  # (m + 1,)
    out: NDArray[np.float64],  # (m, k, width) out
    *,
    threads: int = 1,
    isa: str = "",
) -> None:
    """Weighted sums of each subspace's values over the points that chose each codeword."""

def sum_by_group(
    values: NDArray[np.float32],  # (n, d)
    weights: NDArray[np.float32],  # (n,)
    groups: NDArray[np.int32],  # (n,)
    sums: NDArray[np.float64],  # (k, d) out
    totals: NDArray[np.float64],  # (k,) out
    *,
    add: bool = False,
    threads: int = 1,
    isa: str = "",
) -> None:
    """Weighted sums of rows by group, and the sum of weights of each; add: to what sums and totals hold."""

def make_tables(
    query: NDArray[np.float32],  # (d + 1 + width,) as the search extends it
    codewords: NDArray[np.float32],  # (m, width, 16)
    firsts: NDArray[np.int32],  # (m,)
    group: int,
    tables: NDArray[np.uint8],  # (m, 16) out
    *,
    isa: str = "",
) -> tuple:  # type: ignore[type-arg]
    """Tables of a query in 8 bits; returns the sum of their lowest entries and the step of their units."""

def score_centroids(
    query: NDArray[np.uint8],  # (d4,)
    centroids: NDArray[np.int8],  # (blocks, d4 / 4, 8, 4)
    sums: NDArray[np.int32],  # (8 blocks,)
    scales: NDArray[np.float32],  # (2, 8 blocks)
    factor: float,
    list: NDArray[np.uint32],  # (count,) numbers of blocks
    scores: NDArray[np.int32],  # (8 count,) out
    order: NDArray[np.float32],  # (8 count,) out
    *,
    isa: str = "",
) -> None:
    """Integer inner products of a query in bytes with the packed centroids of some blocks, and as floats."""

def sort_keys(
    keys: NDArray[np.uint64],  # (count,)
    out: NDArray[np.uint64],  # (count,) out
    *,
    isa: str = "",
) -> None:
    """The keys, the largest first; zeros follow a key that repeats, one for each repetition."""

def scan(
    codes: NDArray[np.uint8],  # (blocks, rows, 32)
    tables: NDArray[np.uint8],  # (2 rows, 16)
    group: int,
    first_block: int,
    points: int,
    least: int,
    hits: NDArray[np.uint32],  # (points, 2) out
    *,
    isa: str = "",
) -> int:
    """Slots and sums of the points whose table entries add up to at least `least`; returns how many."""

def scan_four(
    codes: NDArray[np.uint8],  # (blocks, rows, 32)
    tables: NDArray[np.uint8],  # (4, 2 rows, 16)
    group: int,
    first_block: int,
    points: int,
    least: NDArray[np.uint32],  # (4,)
    hits: NDArray[np.uint32],  # (4, points, 2) out
    *,
    isa: str = "",
) -> tuple:  # type: ignore[type-arg]
    """The same for four queries at once; returns how many hits each has."""

def score_rows(
    query: NDArray[np.float32],  # (d,)
    points: object,  # (n, d) float32, uint16 (the bits of float16) or int8
    numbers: NDArray[np.uint32],  # (rows,) below n
    distance: bool,
    out: NDArray[np.float32],  # (rows,) out
    *,
    isa: str = "",
) -> None:
    """Inner products or squared distances of a query and the points of these numbers, as rescoring computes them."""

def multiply(
    x: NDArray[np.float32],  # (n, d)
    panels: NDArray[np.float32],  # (p, d, 16)
    out: NDArray[np.float32],  # (n, 16 p) out
    *,
    threads: int = 1,
    isa: str = "",
) -> None:
    """out = x @ points.T, for points in panels."""

def exact_search(
    queries: NDArray[np.float32],  # (q, d)
    panels: NDArray[np.float32],  # (ceil(n / 16), d, 16)
    biases: NDArray[np.float32],  # (n,)
    ids: NDArray[np.int64],  # (q, k) out
    scores: NDArray[np.float32],  # (q, k) out
    *,
    threads: int = 1,
    isa: str = "",
) -> None:
    """The k best of queries @ points.T + biases, by brute force."""

def moments(
    x: NDArray[np.float32],  # (n, a)
    y: NDArray[np.float32],  # (n, b)
    weights: NDArray[np.float64],  # (n,)
    out: NDArray[np.float64],  # (a, b) out
    *,
    threads: int = 1,
) -> None:
    """out = x.T @ (weights[:, None] * y)."""

def solve_spd(
    matrix: NDArray[np.float64],  # (n, n) becomes its Cholesky factor
    right: NDArray[np.float64],  # (columns, n) becomes the solutions
    *,
    threads: int = 1,
) -> None:
    """Solves matrix @ x = right.T in place of right, for a symmetric positive definite matrix."""

def count_set(
    mask: NDArray[np.bool_],
    *,
    isa: str = "",
) -> int:
    """How many elements of a mask are true."""

def share_set(
    mask: NDArray[np.bool_],
) -> float:
    """The share of a mask that is set, from pieces of it where it is large."""

def check_slots(
    n: int,
    first_blocks: NDArray[np.int64],  # (p,)
    sizes: NDArray[np.int32],  # (p,)
    slot_rows: NDArray[np.int32],  # (blocks * 32,)
    most: int,
) -> tuple:  # type: ignore[type-arg]
    """What is wrong with the rows that slots name (beyond, often, missing or nothing), and a row of which it is."""

def places_set(
    mask: NDArray[np.bool_],
    places: NDArray[np.int64],  # (count_set(mask),) out
    *,
    isa: str = "",
) -> None:
    """The places where a mask is true, of which there are as many as `places` has room for."""

class Searcher:
    """A borrowed view of an index's arrays that answers queries; cpp/search.h says what each array means."""

    def __init__(
        self,
        *,
        n: int,
        d: int,
        l2: bool,
        unit_queries: bool,
        shift: NDArray[np.float32] | None,  # (d,)
        centroids: NDArray[np.int8],  # (ceil(p / 8), d4 / 4, 8, 4)
        centroid_sums: NDArray[np.int32],  # (p padded to 8,)
        scales: NDArray[np.float32],  # (4, p padded to 8) of order and base, each a scale and a bias
        groups: NDArray[np.int8] | None,  # (ceil(p / 64), d4 / 4, 8, 4) one for every 8 partitions
        group_sums: NDArray[np.int32] | None,
        group_scales: NDArray[np.float32] | None,  # (2, groups padded to 8)
        first_blocks: NDArray[np.int64],  # (p,)
        sizes: NDArray[np.int32],  # (p,)
        codewords: NDArray[np.float32],  # (m, width, 16)
        firsts: NDArray[np.int32],  # (m,)
        group: int,
        codes: NDArray[np.uint8],  # (blocks, ceil(m / 2), 32)
        slot_rows: NDArray[np.int32],  # (blocks * 32,)
        points: object | None,  # (n, d) float32 or uint16 (the bits of float16), rows of layout.pack_bytes, or None
        row_ids: NDArray[np.int64] | None,  # (n,) what points are called in results, by default their row numbers
        effort: NDArray[np.float32] | None = None,  # (3,) offset, level and gap of src/aniso/effort.py
        isa: str = "",
    ) -> None: ...
    def profile(
        self,
        queries: NDArray[np.float32],  # (q, d)
        k: int,
        partitions: int,
        candidates: int,
    ) -> dict:  # type: ignore[type-arg]
        """Seconds in each stage, points scanned and hits, summed over the queries, one after the other."""

    def route(
        self,
        queries: NDArray[np.float32],  # (q, d)
        partitions: int,
        chosen: NDArray[np.int32],  # (q, p) out
        *,
        threads: int = 1,
    ) -> None:
        """The partitions that searches of these queries would look at, each row filled up with -1."""

    def among(
        self,
        queries: NDArray[np.float32],  # (q, d)
        rows: NDArray[np.int64],
        ids: NDArray[np.int64],  # (q, k) out
        scores: NDArray[np.float32],  # (q, k) out
        *,
        threads: int = 1,
    ) -> None:
        """The k best of some rows, each once, for each query: all of them are scored."""

    def answer(
        self,
        query: object | None,
        k: object | None,
        partitions: object | None,
        candidates: object | None,
        allowed: object | None = None,
        mask: object | None = None,
        places: object | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
        """New arrays of the ids and scores of one query's k best points, or None where arguments need a closer look."""

    def search(
        self,
        queries: NDArray[np.float32],  # (q, d)
        partitions: int,
        candidates: int,
        ids: NDArray[np.int64],  # (q, k) out
        scores: NDArray[np.float32],  # (q, k) out
        *,
        allowed: NDArray[np.uint8] | None = None,  # (ceil(n / 8),) bit i % 8 of byte i / 8: point i may be found
        mask: NDArray[np.bool_] | None = None,  # (n,), or any length where there are places
        places: NDArray[np.int32] | None = None,  # (n,) the place of each point in the mask; beyond it: not to be found
        threads: int = 1,
    ) -> None:
        """The k best points of each query, best first, among those whose bit is set in `allowed`, or in `mask`."""
