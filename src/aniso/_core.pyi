"""The boundary: every function of the compiled core. Arithmetic on arrays that NumPy owns; arrays marked "out" are
allocated by the caller and written. All arrays are C-contiguous. n points, d dimensions, m subspaces, k codewords.

`isa` names an instruction set and is "" for the one in use; `threads` never changes a result.
"""

import numpy as np
from numpy.typing import NDArray

def isas() -> list[str]:
    """The instruction sets this machine can run, best first."""

def isa() -> str:
    """The instruction set in use: the best, or the one ANISO_ISA names."""

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
    threads: int = 1,
    isa: str = "",
) -> None:
    """Weighted sums of rows by group, and the sum of weights of each group."""
