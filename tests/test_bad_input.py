"""What a user can get wrong: every bad call gives an error that names what was given, and changes nothing."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from aniso.errors import check_count, check_seed, check_threads, check_vectors
from aniso.loss import Threshold
from aniso.quantizers import (
    AdditiveQuantizer,
    BinaryQuantizer,
    ProductQuantizer,
    QuipsQuantizer,
    RotatedQuantizer,
    VectorQuantizer,
)

Array = NDArray[Any]
D = 6
GOOD = np.random.default_rng(0).normal(size=(40, D)).astype(np.float32)


def spoiled(row: int, column: int, value: float, dtype: Any = np.float64) -> Array:
    array = GOOD.astype(dtype)
    array[row, column] = value
    return array


# name, vectors, the exception, what its message must hold
BAD_VECTORS: list[tuple[str, Any, type[Exception], list[str]]] = [
    ("nan", spoiled(3, 2, np.nan), ValueError, ["row 3", "dimension 2", "nan"]),
    ("nan float32", spoiled(3, 2, np.nan, np.float32), ValueError, ["row 3", "dimension 2", "nan"]),
    ("nan float16", spoiled(39, 5, np.nan, np.float16), ValueError, ["row 39", "dimension 5", "nan"]),
    ("inf", spoiled(0, 0, np.inf), ValueError, ["row 0", "dimension 0", "inf"]),
    ("-inf", spoiled(1, 1, -np.inf, np.float32), ValueError, ["row 1", "dimension 1", "-inf"]),
    ("too large", spoiled(4, 1, 1e300), ValueError, ["row 4", "dimension 1", "1e+300", "float32"]),
    ("just too large", spoiled(4, 1, -3.5e38), ValueError, ["row 4", "dimension 1", "-3.5e+38"]),
    ("inf and -inf", np.stack([GOOD[0] * np.inf, -GOOD[0] * np.inf]), ValueError, ["row 0", "inf"]),
    ("0 dimensional", np.float32(3), ValueError, ["shape ()"]),
    ("1 dimensional", GOOD[0], ValueError, ["shape (6,)", "[None, :]"]),
    ("3 dimensional", GOOD[None], ValueError, ["shape (1, 40, 6)"]),
    ("no dimensions", GOOD[:, :0], ValueError, ["0 dimensions"]),
    ("bool", GOOD > 0, TypeError, ["bool"]),
    ("complex", GOOD.astype(complex), TypeError, ["complex128"]),
    ("object", GOOD.astype(object), TypeError, ["object"]),
    ("strings", GOOD.astype(str), TypeError, ["<U"]),
    ("bytes", GOOD.astype(bytes), TypeError, ["|S"]),
    ("dates", np.zeros((40, D), "datetime64[s]"), TypeError, ["datetime64"]),
    ("long double", GOOD.astype(np.longdouble), TypeError, [str(np.dtype(np.longdouble))]),
    ("records", np.zeros((40, D), [("a", "f4")]), TypeError, ["'a'"]),
    ("ragged", [[1.0, 2.0], [3.0]], ValueError, ["(2,)"]),
    ("None", None, TypeError, ["object"]),
    ("a string", "points.npy", TypeError, ["<U10"]),
    ("a dict", {"points": GOOD}, TypeError, ["object"]),
    ("a set", {1.0, 2.0}, TypeError, ["object"]),
    ("None within", [[1.0, None]], TypeError, ["object"]),
    ("empty list", [], ValueError, ["shape (0,)"]),
]
BAD_IDS = [case[0] for case in BAD_VECTORS]

GOOD_FORMS: dict[str, Callable[[Array], Any]] = {
    "float32": lambda x: x,
    "float16": lambda x: x.astype(np.float16),
    "float64": lambda x: x.astype(np.float64),
    "big-endian": lambda x: x.astype(">f4"),
    "fortran": np.asfortranarray,
    "negative strides": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "every second": lambda x: np.repeat(np.repeat(x, 2, axis=0), 2, axis=1)[::2, ::2],
    "a broadcast": lambda x: np.broadcast_to(x, (1, *x.shape))[0],
    "read-only": lambda x: np.frombuffer(x.tobytes(), np.float32).reshape(x.shape),
    "lists": lambda x: x.tolist(),
    "tuples": lambda x: tuple(map(tuple, x.tolist())),
    "rows": list,
    "not aligned": lambda x: np.frombuffer(b"." + x.tobytes(), np.float32, offset=1).reshape(x.shape),
    "a matrix of a subclass": lambda x: x.view(np.recarray),
}
WHOLE = np.rint(GOOD * 20)  # exact in every dtype, float16 and int8 included
for _dtype in ("i1", "i2", "i4", "i8"):
    GOOD_FORMS[_dtype] = lambda x, dtype=_dtype: x.astype(dtype)


@pytest.mark.parametrize(("vectors", "error", "words"), [case[1:] for case in BAD_VECTORS], ids=BAD_IDS)
def test_check_vectors_refuses(vectors: Any, error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        check_vectors(vectors, "queries")
    message = str(caught.value)
    assert "queries" in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("form", GOOD_FORMS)
def test_check_vectors_accepts(form: str) -> None:
    checked = check_vectors(GOOD_FORMS[form](WHOLE), "points", d=D, rows=1)
    assert_array_equal(checked, WHOLE)
    assert (checked.dtype, type(checked)) == (np.dtype(np.float32), np.ndarray)
    assert checked.flags.c_contiguous
    assert checked.flags.aligned


def test_check_vectors_copies_only_what_it_must() -> None:
    assert np.shares_memory(check_vectors(GOOD, "points"), GOOD)
    assert not np.shares_memory(check_vectors(np.asfortranarray(GOOD), "points"), GOOD)


def test_check_vectors_counts() -> None:
    with pytest.raises(ValueError, match=r"queries have 6 dimensions, needed: 7 \(was one of them truncated\?\)"):
        check_vectors(GOOD, "queries", d=7)
    with pytest.raises(ValueError, match="points have 0 rows; needed: at least 1"):
        check_vectors(GOOD[:0], "points", rows=1)
    with pytest.raises(ValueError, match="points have 40 rows; needed: at least 41"):
        check_vectors(GOOD, "points", rows=41)
    assert check_vectors(GOOD[:0], "points").shape == (0, D)


def test_check_vectors_finds_a_bad_row_far_down() -> None:
    points = np.zeros((200_000, 2), np.float32)
    points[199_999, 1] = np.nan
    with pytest.raises(ValueError, match="row 199999, dimension 1 is not finite: nan"):
        check_vectors(points, "points")


@pytest.mark.parametrize("value", [1e18, 1e25, 3.4e38, -3.4e38, 1e-16, 1e-45])
def test_check_vectors_refuses_lengths_whose_squares_leave_float32(value: float) -> None:
    """The values fit, the arithmetic on them does not; and no warning is for the user to puzzle over."""
    with pytest.raises(ValueError, match=r"float32.*scale"):
        check_vectors(np.full((3, 2), value), "points")


@pytest.mark.parametrize("value", [5e14, -5e14, 1e-14, 0.0, 1e-320])
def test_check_vectors_accepts_lengths_within_limits(value: float) -> None:
    assert_array_equal(check_vectors(np.full((3, 2), value), "points"), np.full((3, 2), np.float32(value)))


@pytest.mark.parametrize("value", [1.0, "3", None, np.float64(2), [1], 1j, np.array([1, 2])])
def test_counts_are_whole_numbers(value: Any) -> None:
    with pytest.raises(TypeError) as caught:
        check_count(value, "k")
    assert f"k must be a whole number, not {value!r}" in str(caught.value)


def test_counts_have_limits() -> None:
    for value in (0, -1, -(10**30)):
        with pytest.raises(ValueError, match=rf"k is {value}; needed: at least 1"):
            check_count(value, "k")
    with pytest.raises(ValueError, match="k is 11; needed: 1 to 10"):
        check_count(np.uint8(11), "k", most=10)
    for value in (7, np.int8(7), np.uint64(7)):
        assert check_count(value, "k") == 7
        assert type(check_count(value, "k")) is int
    with pytest.raises(ValueError, match="seed is -1"):
        check_seed(-1)
    assert check_seed(0) == 0
    for threads in (0, -1, 1025):
        with pytest.raises(ValueError, match=f"threads is {threads}"):
            check_threads(threads)
    assert check_threads(None) >= 1
    assert check_threads(3) == 3


def vector_quantizer() -> VectorQuantizer:
    return VectorQuantizer(8, loss=Threshold(0.5), iterations=3, threads=1)


def product_quantizer() -> ProductQuantizer:
    return ProductQuantizer(3, loss=Threshold(0.5), rounds=1, threads=1)


def scaled_quantizer() -> ProductQuantizer:
    return ProductQuantizer(3, scale_bits=16, rounds=1, threads=1)


def additive_quantizer() -> AdditiveQuantizer:
    return AdditiveQuantizer(3, rounds=1, restarts=1, threads=1)


def rotated_quantizer() -> RotatedQuantizer:
    return RotatedQuantizer(3, iterations=2, rounds=1, threads=1)


def quips_quantizer() -> QuipsQuantizer:
    return QuipsQuantizer(3, threads=1)


def binary_quantizer() -> BinaryQuantizer:
    return BinaryQuantizer(8, steps=5, threads=1)


QUANTIZERS: list[Callable[[], Any]] = [vector_quantizer, product_quantizer, scaled_quantizer, additive_quantizer]
QUANTIZERS += [rotated_quantizer, quips_quantizer, binary_quantizer]


@pytest.fixture(params=QUANTIZERS, ids=lambda make: make.__name__)
def fitted(request: pytest.FixtureRequest) -> Any:
    """A fitted quantizer, which the test must leave as it is."""
    quantizer = request.param().fit(GOOD)
    codes, losses, settings = quantizer.encode(GOOD), list(quantizer.losses), quantizer.bits
    decoded = quantizer.decode(codes)
    yield quantizer
    assert_array_equal(quantizer.encode(GOOD), codes)
    assert_array_equal(quantizer.decode(codes), decoded)
    assert (quantizer.losses, quantizer.bits) == (losses, settings)


@pytest.mark.parametrize(("vectors", "error", "words"), [case[1:] for case in BAD_VECTORS], ids=BAD_IDS)
def test_quantizers_refuse(fitted: Any, vectors: Any, error: type[Exception], words: list[str]) -> None:
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("points", lambda: fitted.fit(vectors)),
        ("points", lambda: fitted.encode(vectors)),
        ("queries", lambda: fitted.score(vectors, fitted.encode(GOOD))),
    ]
    if isinstance(fitted, (ProductQuantizer, AdditiveQuantizer, QuipsQuantizer)) and vectors is not None:
        calls.append(("queries", lambda: fitted.fit(GOOD, queries=vectors)))
    for name, call in calls:
        with pytest.raises(error) as caught:
            call()
        for word in (name, *words):
            assert word in str(caught.value)


@pytest.mark.parametrize("form", GOOD_FORMS)
@pytest.mark.parametrize("make", QUANTIZERS, ids=lambda make: make.__name__)
def test_quantizers_accept(make: Callable[[], Any], form: str) -> None:
    """Any form of the same numbers gives the same bits."""
    one, other = make().fit(WHOLE), make().fit(GOOD_FORMS[form](WHOLE))
    codes = one.encode(WHOLE)
    assert_array_equal(other.encode(GOOD_FORMS[form](WHOLE)), codes)
    assert_array_equal(one.encode(GOOD_FORMS[form](WHOLE)), codes)
    assert_array_equal(one.score(GOOD_FORMS[form](WHOLE), codes), one.score(WHOLE, codes))


def test_quantizers_refuse_other_dimensions(fitted: Any) -> None:
    codes = fitted.encode(GOOD)
    for wrong in (GOOD[:, :5], np.zeros((2, 7)), np.zeros((0, 5))):
        for call in (
            lambda wrong=wrong: fitted.encode(wrong),
            lambda wrong=wrong: fitted.score(wrong, codes),
            lambda wrong=wrong: fitted.score(wrong, codes[:0]),
        ):
            with pytest.raises(ValueError, match=f"{wrong.shape[1]} dimensions.*{D}"):
                call()


def test_fit_refuses_no_points(fitted: Any) -> None:
    for nothing in (GOOD[:0], [], [[]], np.zeros((0, 9))):
        with pytest.raises(ValueError, match="points"):
            fitted.fit(nothing)


def test_product_fit_refuses() -> None:
    quantizer = product_quantizer().fit(GOOD)
    codes = quantizer.encode(GOOD)
    with pytest.raises(ValueError, match="subspaces is 3; needed: at most the 2 dimensions"):
        quantizer.fit(GOOD[:, :2])
    with pytest.raises(ValueError, match="queries have 5 dimensions, needed: 6"):
        quantizer.fit(GOOD, queries=GOOD[:, :5])
    with pytest.raises(ValueError, match="queries have 0 rows"):
        quantizer.fit(GOOD, queries=GOOD[:0])
    with pytest.raises(ValueError, match="all of the 40 queries are zero"):
        quantizer.fit(GOOD, queries=GOOD * 0)
    assert_array_equal(quantizer.encode(GOOD), codes)


def test_additive_fit_refuses() -> None:
    quantizer = additive_quantizer().fit(GOOD)
    codes = quantizer.encode(GOOD)
    with pytest.raises(ValueError, match="codebooks is 3; needed: at most the 2 dimensions"):
        quantizer.fit(GOOD[:, :2])
    with pytest.raises(ValueError, match="queries have 5 dimensions, needed: 6"):
        quantizer.fit(GOOD, queries=GOOD[:, :5])
    with pytest.raises(ValueError, match="queries have 0 rows"):
        quantizer.fit(GOOD, queries=GOOD[:0])
    assert_array_equal(quantizer.encode(GOOD), codes)


# codes, what the message must hold
BAD_VECTOR_CODES: list[tuple[Any, str]] = [
    (np.array([0, 8]), "0 to 8"),
    (np.array([-1, 3]), "-1 to 3"),
    (np.array([2**40]), str(2**40)),
    (np.array([2**64 - 1], np.uint64), str(2**64 - 1)),
    (np.array([0.0, 1.0]), "float64"),
    (np.array([True]), "bool"),
    (np.array(["0"]), "<U1"),
    (np.array([None]), "object"),
    (np.array([[0, 1]]), "(1, 2)"),
    (np.array(3), "()"),
    (None, "object"),
]


@pytest.mark.parametrize(("codes", "word"), BAD_VECTOR_CODES)
def test_vector_decode_refuses(codes: Any, word: str) -> None:
    quantizer = vector_quantizer().fit(GOOD)
    before = quantizer.codewords.copy()
    for call in (lambda: quantizer.decode(codes), lambda: quantizer.score(GOOD, codes)):
        with pytest.raises((ValueError, TypeError)) as caught:
            call()
        assert word in str(caught.value)
    assert_array_equal(quantizer.codewords, before)


def test_vector_decode_accepts_any_integers() -> None:
    quantizer = vector_quantizer().fit(GOOD)
    for codes in ([0, 7, 3], np.array([0, 7, 3], np.uint8), np.array([3, 7, 0], np.int64)[::-1]):
        assert_array_equal(quantizer.decode(codes), quantizer.codewords[[0, 7, 3]])
        assert_array_equal(quantizer.score(GOOD, codes), quantizer.score(GOOD, np.array([0, 7, 3], np.int32)))


# codes of a quantizer with 3 subspaces, or codebooks, of 16 codewords, what the message must hold
BAD_PRODUCT_CODES: list[tuple[Any, str]] = [
    (np.full((4, 3), 16, np.uint8), "16"),
    (np.array([[0, 0, 255]], np.uint8), "255"),
    (np.zeros((4, 2), np.uint8), "(4, 2)"),
    (np.zeros((4, 4), np.uint8), "(4, 4)"),
    (np.zeros((0, 4), np.uint8), "(0, 4)"),
    (np.zeros(3, np.uint8), "(3,)"),
    (np.zeros((1, 4, 3), np.uint8), "(1, 4, 3)"),
    (np.zeros((4, 3), np.int8), "int8"),
    (np.zeros((4, 3), np.int64), "int64"),
    (np.zeros((4, 3)), "float64"),
    (np.zeros((4, 3), bool), "bool"),
    (np.zeros((4, 3), str), "<U1"),
    (np.uint8(3), "()"),
    (None, "object"),
]


@pytest.mark.parametrize(("codes", "word"), BAD_PRODUCT_CODES)
def test_product_decode_refuses(codes: Any, word: str) -> None:
    quantizer = product_quantizer().fit(GOOD)
    before = quantizer.books.codewords.copy()
    for call in (lambda: quantizer.decode(codes), lambda: quantizer.score(GOOD, codes)):
        with pytest.raises((ValueError, TypeError)) as caught:
            call()
        assert word in str(caught.value)
    assert_array_equal(quantizer.books.codewords, before)


@pytest.mark.parametrize(("codes", "word"), BAD_PRODUCT_CODES)
def test_additive_decode_refuses(codes: Any, word: str) -> None:
    quantizer = AdditiveQuantizer(3, rounds=1, restarts=1, scale_bits=0, threads=1).fit(GOOD)
    before = quantizer.codewords.copy()
    for call in (lambda: quantizer.decode(codes), lambda: quantizer.score(GOOD, codes)):
        with pytest.raises((ValueError, TypeError)) as caught:
            call()
        assert word in str(caught.value)
    assert_array_equal(quantizer.codewords, before)


@pytest.mark.parametrize("make", [scaled_quantizer, additive_quantizer], ids=lambda make: make.__name__)
def test_decode_needs_the_scale(make: Callable[[], Any]) -> None:
    quantizer = make().fit(GOOD)
    codes = quantizer.encode(GOOD)
    for wrong in (codes[:, :3], codes[:, :-1], np.concatenate([codes, codes[:, :1]], axis=1)):
        with pytest.raises(ValueError, match=rf"\(40, {wrong.shape[1]}\).*\(n, {codes.shape[1]}\)"):
            quantizer.decode(wrong)


def test_decode_accepts_any_order() -> None:
    for make in (product_quantizer, scaled_quantizer, additive_quantizer):
        quantizer = make().fit(GOOD)
        codes = quantizer.encode(GOOD)
        expected = quantizer.decode(codes)
        codes.flags.writeable = False
        assert_array_equal(quantizer.decode(codes), expected)
        assert_array_equal(quantizer.decode(np.asfortranarray(codes)), expected)
        assert_array_equal(quantizer.decode(codes[::-1])[::-1], expected)
        wide = np.repeat(codes, 2, axis=1)[:, ::2]
        assert_array_equal(quantizer.decode(wide), expected)
        assert_array_equal(quantizer.score(GOOD, wide), quantizer.score(GOOD, codes))


# a name for the test, how the quantizer is made, what the message must hold besides the value
BAD_SETTINGS: list[tuple[str, Callable[..., Any], str, list[Any]]] = [
    ("vector", VectorQuantizer, "k", [0, -3, 2.0, "4", None, (1 << 24) + 1]),
    ("vector", lambda **setting: VectorQuantizer(4, **setting), "iterations", [-1, 2.5, "5", None]),
    ("vector", lambda **setting: VectorQuantizer(4, **setting), "seed", [-1, 1.0, "0", None]),
    ("vector", lambda **setting: VectorQuantizer(4, **setting), "threads", [0, -2, 1.5, "2", 1025]),
    ("product", ProductQuantizer, "subspaces", [0, -1, 2.0, "4", None]),
    (
        "product",
        lambda **setting: ProductQuantizer(3, **setting),
        "bits_per_code",
        [0, 1, 5, 16, -4, 4.0, 8.0, "4", None, 4.5],
    ),
    (
        "product",
        lambda **setting: ProductQuantizer(3, **setting),
        "scale_bits",
        [1, 3, 5, 32, -8, 8.0, 16.0, "8", None],
    ),
    ("product", lambda **setting: ProductQuantizer(3, **setting), "rounds", [-1, 1.5, "2", None]),
    ("product", lambda **setting: ProductQuantizer(3, **setting), "sweeps", [-1, 1001, 0.5, "2", None]),
    ("product", lambda **setting: ProductQuantizer(3, **setting), "sample", [0, -1, 1e5, "2", None]),
    ("product", lambda **setting: ProductQuantizer(3, **setting), "seed", [-1, 1.0, "0", None]),
    ("product", lambda **setting: ProductQuantizer(3, **setting), "threads", [0, -2, 1.5, "2", 1025]),
    ("additive", AdditiveQuantizer, "codebooks", [0, -1, 2.0, "4", None]),
    (
        "additive",
        lambda **setting: AdditiveQuantizer(3, **setting),
        "bits_per_code",
        [0, 1, 5, 16, -4, 4.0, 8.0, "4", None, 4.5],
    ),
    (
        "additive",
        lambda **setting: AdditiveQuantizer(3, **setting),
        "scale_bits",
        [1, 3, 4, 32, -8, 8.0, 16.0, "8", None],
    ),
    ("additive", lambda **setting: AdditiveQuantizer(3, **setting), "rounds", [-1, 1.5, "2", None]),
    ("additive", lambda **setting: AdditiveQuantizer(3, **setting), "restarts", [-1, 10_001, 0.5, "2", None]),
    ("additive", lambda **setting: AdditiveQuantizer(3, **setting), "sample", [0, -1, 1e5, "2", None]),
    ("additive", lambda **setting: AdditiveQuantizer(3, **setting), "seed", [-1, 1.0, "0", None]),
    ("additive", lambda **setting: AdditiveQuantizer(3, **setting), "threads", [0, -2, 1.5, "2", 1025]),
    ("additive", lambda **setting: AdditiveQuantizer(3, **setting), "loss", [0.2, "Threshold"]),
    ("rotated", RotatedQuantizer, "subspaces", [0, -1, 2.0, "4", None]),
    ("rotated", lambda **setting: RotatedQuantizer(3, **setting), "iterations", [-1, 1.5, "2", None]),
    ("rotated", lambda **setting: RotatedQuantizer(3, **setting), "bits_per_code", [0, 5, 4.0]),
    ("quips", QuipsQuantizer, "subspaces", [0, -1, 2.0, "4", None]),
    ("quips", lambda **setting: QuipsQuantizer(3, **setting), "variant", ["cov", "", None, 1]),
    ("quips", lambda **setting: QuipsQuantizer(3, **setting), "strength", [-0.1, float("nan"), "1", None]),
    ("quips", lambda **setting: QuipsQuantizer(3, **setting), "iterations", [-1, 1.5, "2", None]),
    ("quips", lambda **setting: QuipsQuantizer(3, **setting), "sample", [0, -1, 1e5, "2", None]),
    ("binary", BinaryQuantizer, "length", [0, -8, 8.0, 12, "8", None]),
    ("binary", lambda **setting: BinaryQuantizer(8, **setting), "steps", [-1, 1.5, "2", None]),
    ("binary", lambda **setting: BinaryQuantizer(8, **setting), "restarts", [-1, 10_001, 0.5, "2"]),
    ("binary", lambda **setting: BinaryQuantizer(8, **setting), "seed", [-1, 1.0, "0", None]),
]


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        pytest.param(make, name, value, id=f"{family}-{name}-{value!r}")
        for family, make, name, values in BAD_SETTINGS
        for value in values
    ],
)
def test_settings_are_refused_when_they_are_given(make: Callable[..., Any], name: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        make(**{name: value})
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)


def test_settings_may_be_numpy_integers() -> None:
    quantizer = ProductQuantizer(
        np.int64(3),
        bits_per_code=np.int32(4),
        scale_bits=np.int16(8),
        rounds=np.uint8(1),
        sweeps=np.int8(2),
        sample=np.int64(30),
        seed=np.uint64(3),
        threads=np.int8(1),
    ).fit(GOOD)
    plain = ProductQuantizer(3, scale_bits=8, rounds=1, sweeps=2, sample=30, seed=3, threads=1).fit(GOOD)
    assert_array_equal(quantizer.encode(GOOD), plain.encode(GOOD))
    assert quantizer.bits == 20


@pytest.mark.parametrize(
    "make", [lambda loss: VectorQuantizer(4, loss=loss), lambda loss: ProductQuantizer(3, loss=loss)]
)
@pytest.mark.parametrize("loss", ["plain", 0.2, Threshold])
def test_a_loss_is_refused_when_it_is_given(make: Callable[[Any], Any], loss: Any) -> None:
    """Not an AttributeError from within fit: an instance of a loss is needed, and the message says so."""
    with pytest.raises(TypeError, match="loss"):
        make(loss)


@pytest.mark.parametrize("make", QUANTIZERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("unit", [1e25, 1e-25])
def test_points_whose_squares_leave_float32(make: Callable[[], Any], unit: float) -> None:
    """1e25 is a float32, its square is not: an error that says so, or codes as good as in any other unit."""
    points = GOOD * np.float32(unit)
    try:
        quantizer = make().fit(points)
    except ValueError as error:
        message = str(error)
    else:
        message = ""
        decoded = quantizer.decode(quantizer.encode(points)).astype(np.float64) / unit
        assert np.mean((GOOD - decoded) ** 2) < 0.9 * np.mean(GOOD**2)
    assert not message or "float32" in message
