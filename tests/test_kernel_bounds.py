"""What aniso._core refuses: shapes, kinds and numbers that would make a kernel read or write out of bounds.

And that it never crashes, whatever the values; and how the instruction set is chosen.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from aniso import _core

Array = NDArray[Any]
UNTOUCHED = 77  # what outputs hold before a call: a kernel that forgets one leaves it there

f32, i32, u8, i8, f64 = np.float32, np.int32, np.uint8, np.int8, np.float64


def good_calls() -> dict[str, dict[str, Any]]:
    """Arguments of a good call of every kernel: 6 points, 5 dimensions, subspaces of 2 and 3, 4 codewords (or 16)."""
    values, ones, codes = np.ones((6, 5), f32), np.ones(6, f32), np.zeros((6, 2), u8)
    books = {"codewords": np.ones((2, 4, 3), f32), "starts": np.array([0, 2, 5], i32)}
    return {
        "assign": {
            "points": values,
            "codewords": np.ones((4, 5), f32),
            "squared_norms": np.ones(4, f32),
            "linear": ones,
            "quadratic": ones.copy(),
            "codes": np.full(6, UNTOUCHED, i32),
            "costs": np.full(6, UNTOUCHED, f32),
        },
        "encode": {
            "residuals": values,
            "points": values.copy(),
            "penalty": ones,
            **books,
            "codes": codes,
            "scaled": False,
            "warm": True,
            "sweeps": 2,
        },
        "encode_additive": {
            "points": values.copy(),
            "penalty": ones.copy(),
            "codewords": np.ones((2, 16, 5), f32),
            "gram": np.full((32, 32), 5, f32),
            "codes": codes.copy(),
            "scaled": True,
            "warm": True,
            "sweeps": 2,
            "restarts": 2,
            "kicks": 2,
            "seed": 0,
        },
        "gram": {"codewords": np.ones((4, 5), f32), "out": np.full((4, 32), UNTOUCHED, f32)},
        "assign_partitions": {
            "points": values.copy(),
            "assigners": np.ones((4, 5), f32),
            "centroids": np.zeros((1, 2, 8, 4), i8),
            "sums": np.zeros(8, i32),
            "scales": np.ones((2, 8), f32),
            "groups": np.zeros((1, 2, 8, 4), i8),
            "group_sums": np.zeros(8, i32),
            "group_scales": np.ones((2, 8), f32),
            "looked": 2,
            "strength": 1.0,
            "firsts": np.full(6, UNTOUCHED, i32),
            "seconds": np.full(6, UNTOUCHED, i32),
            "ratios": np.full(6, UNTOUCHED, f32),
        },
        "dot_decoded": {"values": values, "codes": codes, **books, "out": np.full(6, UNTOUCHED, f32)},
        "sum_by_code": {
            "values": values,
            "weights": ones,
            "codes": codes,
            **books,
            "out": np.full((2, 4, 3), UNTOUCHED, f64),
        },
        "sum_by_group": {
            "values": values,
            "weights": ones,
            "groups": np.zeros(6, i32),
            "sums": np.full((4, 5), UNTOUCHED, f64),
            "totals": np.full(4, UNTOUCHED, f64),
        },
    }


OUTPUTS = {
    "assign": ["codes", "costs"],
    "encode": ["codes"],
    "encode_additive": ["codes"],
    "gram": ["out"],
    "assign_partitions": ["firsts", "seconds", "ratios"],
    "dot_decoded": ["out"],
    "sum_by_code": ["out"],
    "sum_by_group": ["sums", "totals"],
}
KERNELS = list(OUTPUTS)
ARRAYS = [
    (kernel, name) for kernel, call in good_calls().items() for name in call if isinstance(call[name], np.ndarray)
]

# kernel, what is replaced
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("assign", {"codewords": np.ones((4, 4), f32)}),
    ("assign", {"codewords": np.ones((0, 5), f32), "squared_norms": np.ones(0, f32)}),
    ("encode", {"points": np.ones((6, 4), f32)}),
    ("encode", {"codes": np.zeros((6, 3), u8)}),
    ("encode", {"codes": np.zeros((5, 2), u8), "warm": False}),
    ("encode", {"codes": np.full((6, 2), 4, u8)}),
    *(
        ("encode_additive", {"codewords": np.ones((2, k, 5), f32), "gram": np.ones((2 * k, 2 * k), f32)})
        for k in (0, 1, 8, 15, 17, 24, 255, 257, 272)
    ),
    ("encode_additive", {"codewords": np.ones((2, 16, 4), f32)}),
    ("encode_additive", {"codewords": np.ones((0, 16, 5), f32), "gram": np.ones((0, 0), f32)}),
    ("encode_additive", {"codewords": np.ones((3, 16, 5), f32)}),
    *(
        ("encode_additive", {"gram": np.ones(shape, f32)})
        for shape in ((16, 16), (31, 32), (32, 31), (32, 33), (32, 64), (64, 32), (0, 32))
    ),
    ("encode_additive", {"codes": np.zeros((6, 3), u8)}),
    ("encode_additive", {"codes": np.zeros((6, 1), u8), "warm": False}),
    ("encode_additive", {"codes": np.zeros((5, 2), u8), "warm": False}),
    ("encode_additive", {"codes": np.full((6, 2), 16, u8)}),
    ("encode_additive", {"codes": np.array([[0, 0]] * 5 + [[0, 255]], u8)}),
    *(("encode_additive", {"seed": seed}) for seed in (-1, 2**64, 1.5, "1", None)),
    *(
        ("encode_additive", {name: value})
        for name in ("sweeps", "restarts", "kicks")
        for value in (2**31, -(2**31) - 1, 1.5, "1", None)
    ),
    *(
        ("gram", {"out": np.ones(shape, f32)})
        for shape in ((4, 0), (4, 4), (4, 31), (4, 33), (4, 48), (3, 32), (5, 32))
    ),
    ("gram", {"codewords": np.ones((33, 5), f32), "out": np.ones((33, 32), f32)}),
    *(("assign_partitions", {"assigners": np.ones(shape, f32)}) for shape in ((4, 4), (4, 6), (0, 5), (9, 5))),
    ("assign_partitions", {"assigners": np.ones((1, 5), f32)}),  # no second partition to spill into
    *(("assign_partitions", {"looked": looked}) for looked in (1, 0, -1, 1.5, "2", None)),
    *(("assign_partitions", {"strength": strength}) for strength in (-1.0, np.nan, "1", None)),
    *(
        ("assign_partitions", {name: np.zeros(shape, i8)})
        for name in ("centroids", "groups")
        for shape in ((0, 2, 8, 4), (2, 2, 8, 4), (1, 0, 8, 4), (1, 1, 8, 4), (1, 3, 8, 4), (1, 2, 7, 4), (1, 2, 8, 3))
    ),
    ("assign_partitions", {"centroids": np.zeros((1, 4, 8, 4), i8)}),  # longer than the groups
    ("assign_partitions", {"groups": np.zeros((1, 4, 8, 4), i8)}),  # longer than the centroids
    (
        "assign_partitions",  # more centroids than assigners
        {"centroids": np.zeros((2, 2, 8, 4), i8), "sums": np.zeros(16, i32), "scales": np.ones((2, 16), f32)},
    ),
    (
        "assign_partitions",  # more groups than every 8 partitions need
        {"groups": np.zeros((2, 2, 8, 4), i8), "group_sums": np.zeros(16, i32), "group_scales": np.ones((2, 16), f32)},
    ),
    *(("assign_partitions", {name: np.zeros(7, i32)}) for name in ("sums", "group_sums")),
    *(
        ("assign_partitions", {name: np.ones(shape, f32)})
        for name in ("scales", "group_scales")
        for shape in ((1, 8), (0, 8), (2, 7), (2, 9), (2, 16))
    ),
    ("assign_partitions", {"group_sums": None}),
    ("assign_partitions", {"group_scales": None}),
    ("dot_decoded", {"codes": np.full((6, 2), 255, u8)}),
    ("sum_by_code", {"codes": np.array([[0, 0]] * 5 + [[0, 4]], u8)}),
    ("sum_by_code", {"out": np.ones((2, 4, 2))}),
    ("sum_by_code", {"out": np.ones((2, 5, 3))}),
    ("sum_by_group", {"groups": np.array([0, 1, 2, 3, 4, 0], i32)}),
    ("sum_by_group", {"groups": np.array([0, 1, 2, 3, -1, 0], i32)}),
    ("sum_by_group", {"groups": np.array([0, 1, 2, 3, np.iinfo(i32).min, 0], i32)}),
    ("sum_by_group", {"sums": np.ones((4, 4))}),
    ("sum_by_group", {"totals": np.ones(3)}),
    ("sum_by_group", {"sums": np.ones((0, 5)), "totals": np.ones(0)}),
]
for _kernel in ("encode", "dot_decoded", "sum_by_code"):
    REFUSED += [
        (_kernel, {"starts": np.array(starts, i32)})
        for starts in (
            [],
            [0, 5],
            [0, 2, 4],
            [0, 2, 6],
            [1, 2, 5],
            [-1, 2, 5],
            [0, 0, 5],
            [0, 5, 5],
            [0, 6, 5],
            [0, 1, 5],  # 4 wide, the codewords are 3
            [0, -5, 5],
            [0, 2**31 - 1, 5],
            [0, -(2**31), 5],
            [0, 2, 4, 5],
        )
    ]
    REFUSED += [
        (_kernel, {"codewords": np.ones(shape, f32)})
        for shape in ((0, 4, 3), (2, 0, 3), (2, 4, 0), (2, 257, 3), (3, 4, 3))
    ]


def show(value: Any) -> str:
    return "-".join(f"{k}={np.asarray(v).shape}{np.asarray(v).ravel()[:4].tolist()}" for k, v in value.items())


def refuse(kernel: str, call: dict[str, Any]) -> str:
    """The call must raise, with a message, and leave its outputs as they were."""
    before = {name: np.array(call[name]) for name in OUTPUTS[kernel]}
    with pytest.raises((ValueError, TypeError)) as caught:
        getattr(_core, kernel)(**call)
    for name, was in before.items():
        assert_array_equal(call[name], was)
    assert str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kernel", KERNELS)
def test_good_calls_are_good(kernel: str) -> None:
    """What the tests below spoil works unspoilt, and writes every output."""
    call = good_calls()[kernel]
    getattr(_core, kernel)(**call)
    for name in OUTPUTS[kernel]:
        assert (call[name] != UNTOUCHED).all()


@pytest.mark.parametrize(("kernel", "bad"), REFUSED, ids=lambda value: value if isinstance(value, str) else show(value))
def test_refuses_values(isa: str, kernel: str, bad: dict[str, Any]) -> None:
    refuse(kernel, {**good_calls()[kernel], **bad, "isa": isa})


SPOILED: dict[str, Callable[[Array], Any]] = {
    "one row less": lambda a: a[:-1].copy(),
    "one row more": lambda a: np.concatenate([a, a[-1:]]),
    "a dimension more": lambda a: a[None],
    "a dimension less": lambda a: a.ravel() if a.ndim > 1 else a[0],
    "None": lambda a: None,
    "complex": lambda a: a.astype(complex),
    "strings": lambda a: a.astype(str),
    "objects": lambda a: a.astype(object),
    "a list": lambda a: a.tolist(),
}
# What looks spoilt and is not: partitions without groups, points without seconds, scales that serve something else too,
# and assigners as long as they fit the 8 places of a block.
WELCOME = [
    ("assign_partitions", "assigners", "one row less"),
    ("assign_partitions", "assigners", "one row more"),
    ("assign_partitions", "groups", "None"),
    ("assign_partitions", "scales", "one row more"),
    ("assign_partitions", "group_scales", "one row more"),
]


@pytest.mark.parametrize("spoil", SPOILED)
@pytest.mark.parametrize(("kernel", "name"), ARRAYS)
def test_refuses_shapes_and_kinds(kernel: str, name: str, spoil: str) -> None:
    call = good_calls()[kernel]
    call[name] = SPOILED[spoil](call[name])
    if (kernel, name, spoil) in WELCOME:
        getattr(_core, kernel)(**call)
        return
    with pytest.raises((ValueError, TypeError)):
        getattr(_core, kernel)(**call)


OUTPUT_ARRAYS = [(kernel, name) for kernel in KERNELS for name in OUTPUTS[kernel]]


def strided(a: Array) -> Array:
    """The same values, every second element of a larger array in the last dimension."""
    return np.repeat(a, 2, axis=-1)[..., ::2]


@pytest.mark.parametrize(("kernel", "name"), OUTPUT_ARRAYS)
@pytest.mark.parametrize("how", ["read-only", "strided", "reversed", "fortran", "wider", "unsigned"])
def test_refuses_outputs_it_cannot_write(kernel: str, name: str, how: str) -> None:
    """A copy of an output would be written and thrown away, and the caller would keep what was there before."""
    call = good_calls()[kernel]
    array = call[name]
    if how == "read-only":
        array.flags.writeable = False
    elif how == "strided":
        array = strided(array)
    elif how == "reversed":
        array = array[::-1]
    elif how == "fortran":
        if array.ndim == 1:
            pytest.skip("one dimension has one order")
        array = np.asfortranarray(array)
    elif how == "wider":
        array = array.astype({f32: f64, f64: np.longdouble, u8: np.uint16, i32: np.int64}[array.dtype.type])
    else:
        array = array.astype({f32: np.uint32, f64: np.uint64, u8: np.int8, i32: np.uint32}[array.dtype.type])
    refuse(kernel, {**call, name: array})


@pytest.mark.parametrize(
    ("kernel", "name"), [pair for pair in ARRAYS if pair not in OUTPUT_ARRAYS], ids=lambda value: str(value)
)
@pytest.mark.parametrize("how", ["strided", "wider"])
def test_refuses_inputs_it_would_have_to_copy(kernel: str, name: str, how: str) -> None:
    """Conversions are Python's business (check_vectors): a hidden copy of a million points is the caller's mistake."""
    call = good_calls()[kernel]
    array = call[name]
    wider = {f32: f64, u8: np.uint16, i8: np.int16, i32: np.int64}[array.dtype.type]
    refuse(kernel, {**call, name: strided(array) if how == "strided" else array.astype(wider)})


@pytest.mark.parametrize("kernel", KERNELS)
def test_accepts_read_only_inputs(kernel: str) -> None:
    call = good_calls()[kernel]
    for name in call:
        if isinstance(call[name], np.ndarray) and name not in OUTPUTS[kernel]:
            call[name].flags.writeable = False
    getattr(_core, kernel)(**call)


@pytest.mark.parametrize("kernel", KERNELS)
def test_refuses_threads_and_isas(kernel: str) -> None:
    for threads in (0, -1, -(2**31)):
        assert "threads" in refuse(kernel, {**good_calls()[kernel], "threads": threads})
    for threads in (1.5, "2", None, 2**40):
        refuse(kernel, {**good_calls()[kernel], "threads": threads})
    for isa in ("sse9", "AVX2", " portable"):
        message = refuse(kernel, {**good_calls()[kernel], "isa": isa})
        assert isa in message
        assert all(name in message for name in _core.isas())


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_points_is_no_work(isa: str, kernel: str) -> None:
    call = good_calls()[kernel]
    for name, array in call.items():
        if isinstance(array, np.ndarray) and len(array) == 6:
            call[name] = array[:0].copy()
    getattr(_core, kernel)(**call, isa=isa, threads=4)
    for name in {"sum_by_code": ["out"], "sum_by_group": ["sums", "totals"]}.get(kernel, []):
        assert_array_equal(call[name], 0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_not_finite_is_no_crash(isa: str, kernel: str) -> None:
    """The core does not look at values, but whatever they are it names only codewords that exist."""
    for value in (np.nan, np.inf, -np.inf, 3e38):
        for name, array in good_calls()[kernel].items():
            if isinstance(array, np.ndarray) and array.dtype == f32 and name not in OUTPUTS[kernel]:
                call = {**good_calls()[kernel], name: np.full_like(array, value), "isa": isa}
                getattr(_core, kernel)(**call)
                if "codes" in OUTPUTS[kernel]:
                    k = call["codewords"].shape[-2]
                    assert ((call["codes"] >= 0) & (call["codes"] < k)).all()
                if kernel == "assign_partitions":
                    assert ((call["firsts"] >= 0) & (call["firsts"] < 4)).all()
                    assert ((call["seconds"] >= 0) & (call["seconds"] < 4)).all()
                    assert (call["firsts"] != call["seconds"]).all()


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("name", ["sweeps", "restarts", "kicks"])
def test_encode_additive_counts_below_zero_are_zero(isa: str, name: str, warm: bool) -> None:
    rng = np.random.default_rng(0)
    words = rng.normal(size=(2, 16, 5)).astype(f32)
    given = {
        **good_calls()["encode_additive"],
        "points": rng.normal(size=(6, 5)).astype(f32),
        "codewords": words,
        "gram": words.reshape(32, 5) @ words.reshape(32, 5).T,
        "warm": warm,
        "isa": isa,
    }
    found = []
    for count in (0, -1, -(2**31)):
        call = {**given, "codes": np.full((6, 2), 7, u8), name: count}
        _core.encode_additive(**call)
        found.append(call["codes"])
    assert_array_equal(found[1], found[0])
    assert_array_equal(found[2], found[0])


def test_encode_additive_takes_any_codes_where_they_are_not_read(isa: str) -> None:
    call = {**good_calls()["encode_additive"], "codes": np.full((6, 2), 255, u8), "warm": False, "isa": isa}
    _core.encode_additive(**call)
    assert call["codes"].max() < 16
    words = np.ones((1, 256, 5), f32)  # with 256 codewords every byte is a code
    for seed in (0, 2**63, 2**64 - 1):
        codes = np.full((6, 1), 255, u8)
        more = {"codewords": words, "gram": np.full((256, 256), 5, f32), "codes": codes, "seed": seed}
        _core.encode_additive(**{**good_calls()["encode_additive"], **more, "isa": isa})
        assert_array_equal(codes, 255)  # all equal, so that nothing is better


def run_python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**{k: v for k, v in os.environ.items() if k != "ANISO_ISA"}, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_assign_without_dimensions_is_safe(isa: str) -> None:
    """d = 0: an error, or the codeword of least squared norm; never foreign memory (so in a process of its own)."""
    program = f"""
import numpy as np
from aniso import _core
codes, costs = np.full(5, 77, np.int32), np.full(5, 77, np.float32)
norms = np.arange(4000, 0, -1, dtype=np.float32)
f = lambda *shape: np.zeros(shape, np.float32)
try:
    _core.assign(f(5, 0), f(4000, 0), norms, f(5), f(5), codes, costs, isa={isa!r})
except ValueError:
    raise SystemExit(0)
assert (codes == 3999).all() and (costs == 1).all(), (codes, costs)
"""
    done = run_python(program)
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr}"


def test_isas() -> None:
    assert _core.isas()
    assert len(set(_core.isas())) == len(_core.isas())
    assert _core.isas()[-1] == "portable"


@pytest.mark.parametrize("value", ["", *_core.isas()])
def test_environment_chooses(value: str) -> None:
    done = run_python("from aniso import _core; print(_core.isa())", ANISO_ISA=value)
    assert (done.returncode, done.stdout.split()) == (0, [value or _core.isas()[0]]), done.stderr


def test_without_environment_the_best_is_chosen() -> None:
    assert run_python("from aniso import _core; print(_core.isa())").stdout.split() == _core.isas()[:1]


def test_environment_that_cannot_run_is_an_error() -> None:
    done = run_python("from aniso import _core; _core.isa()", ANISO_ISA="sse9")
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert message.startswith("ValueError")
    assert all(word in message for word in ("ANISO_ISA", "sse9", *_core.isas()))


def test_argument_wins_over_environment() -> None:
    program = """
import numpy as np
from aniso import _core
sums, totals = np.ones((1, 1)), np.ones(1)
f = np.ones((1, 1), np.float32)
_core.sum_by_group(f, f[0], np.zeros(1, np.int32), sums, totals, isa="portable")
try:
    _core.sum_by_group(f, f[0], np.zeros(1, np.int32), sums, totals)
except ValueError as error:
    print(error)
"""
    done = run_python(program, ANISO_ISA="sse9")
    assert done.returncode == 0, done.stderr
    assert "sse9" in done.stdout
