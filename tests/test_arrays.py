"""Vectors from other libraries: the same numbers, without a copy where possible, and clear words for the rest."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from aniso.arrays import as_array
from aniso.errors import check_vectors

WHOLE = np.arange(24, dtype=np.float32).reshape(6, 4) - 5  # exact in every dtype but unsigned ones


class Elsewhere:
    """An array of a library that speaks DLPack alone."""

    def __init__(self, array: NDArray[Any], device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i2", "i4", "i8"])
def test_dlpack(dtype: str) -> None:
    array = WHOLE.astype(dtype)
    found = as_array(Elsewhere(array), "points")
    assert np.shares_memory(found, array)
    assert found.dtype == array.dtype
    assert_array_equal(check_vectors(Elsewhere(array), "points"), WHOLE)
    assert_array_equal(check_vectors([Elsewhere(row) for row in array], "points"), WHOLE)
    with pytest.raises(TypeError, match=r"queries are a Elsewhere on device \(2, 0\) of DLPack; needed: .* of the CPU"):
        check_vectors(Elsewhere(array, (2, 0)), "queries")


def test_dlpack_that_numpy_cannot_hold() -> None:
    class Broken(Elsewhere):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("no dtype for that")

    with pytest.raises(TypeError, match="points are a Broken that NumPy cannot hold: no dtype for that"):
        check_vectors(Broken(WHOLE), "points")
    with pytest.raises(ValueError, match="points must be a matrix"):
        check_vectors([Elsewhere(WHOLE[0]), Elsewhere(WHOLE[0, :2])], "points")


def test_numpy_arrays_are_not_copied(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", WHOLE)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert as_array(WHOLE, "points") is WHOLE
    assert np.shares_memory(check_vectors(mapped, "points"), mapped)
    assert type(as_array(mapped, "points")) is np.ndarray
    assert_array_equal(check_vectors(memoryview(WHOLE), "points"), WHOLE)


def test_masked_arrays() -> None:
    masked = np.ma.masked_equal(WHOLE, 3)
    with pytest.raises(ValueError, match="points have masked values, the first in row 2"):
        check_vectors(masked, "points")
    assert_array_equal(check_vectors(np.ma.masked_array(WHOLE), "points"), WHOLE)


def test_bfloat16() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    half = WHOLE.astype(ml_dtypes.bfloat16)
    for form in (half, np.asfortranarray(half), list(half), half[::-1].copy()[::-1]):
        found = as_array(form, "points")
        assert found.dtype == np.float32
        assert_array_equal(check_vectors(form, "points"), WHOLE)
    with pytest.raises(TypeError, match=r"points have dtype float8_e4m3fn; needed: float16, bfloat16"):
        check_vectors(WHOLE.astype(ml_dtypes.float8_e4m3fn), "points")
    with pytest.raises(ValueError, match="row 0, dimension 0 is not finite: nan"):
        check_vectors(np.full((2, 2), np.nan, ml_dtypes.bfloat16), "points")


SHIFTED = st.builds(lambda x, bits: x << bits, st.integers(-(2**25), 2**25), st.integers(0, 24))
INTEGERS = st.one_of(
    st.tuples(st.just("i4"), st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.just("u4"), st.integers(0, 2**32 - 1)),
    st.tuples(st.just("i8"), st.integers(-(10**14), 10**14)),
    st.tuples(st.just(">i8"), SHIFTED),
    st.tuples(st.just("u8"), st.integers(0, 10**14)),
)


@given(case=INTEGERS, column=st.integers(0, 2))
def test_integers_are_exact_or_refused(case: tuple[str, int], column: int) -> None:
    dtype, value = case
    array = np.zeros((3, 3), dtype)
    array[0, 0] = 1
    array[1, column] = value
    if int(np.float32(value)) == value:
        assert_array_equal(check_vectors(array, "points").astype(object), array.astype(object))
    else:
        with pytest.raises(
            ValueError, match=rf"points row 1, dimension {column} is {value}, which float32 would round"
        ):
            check_vectors(array, "points")


def test_integers_at_the_limits() -> None:
    for value in (2**24, -(2**24), 2**24 + 2, 2**40, 3 << 40):
        assert check_vectors(np.array([[value]]), "points")[0, 0] == value
    for value in (2**24 + 1, -(2**24) - 1, 2**40 + 1, 10**15 + 1):
        with pytest.raises(ValueError, match=f"row 7, dimension 0 is {value}.*astype"):
            check_vectors(np.array([[value]]), "points", first_row=7)
    for value in (2**63 - 1, -(2**63), 2**64 - 1):
        with pytest.raises(ValueError, match="points row 0"):
            check_vectors(np.array([[value]]), "points")
    assert check_vectors(np.array([[2.0**24 + 1]]), "points")[0, 0] == 2**24  # float64 is rounded


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(WHOLE.copy())
    assert as_array(tensor, "points").ctypes.data == tensor.data_ptr()
    assert as_array(tensor.clone().requires_grad_(), "points").dtype == np.float32
    kinds = (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
    )
    for kind in kinds:
        assert_array_equal(check_vectors(tensor.to(kind), "points"), WHOLE)
    assert as_array(tensor.to(torch.float16), "points").dtype == np.float16
    forms = [
        tensor.to(torch.bfloat16).requires_grad_(),
        torch.nn.Parameter(tensor.clone()),
        tensor.T.contiguous().T,
        list(tensor),
        list(tensor.to(torch.bfloat16).requires_grad_()),
    ]
    for form in forms:
        assert_array_equal(check_vectors(form, "points"), WHOLE)
    with pytest.raises(
        TypeError, match=r"points are a tensor on device 'meta'; needed: one on the CPU \(use .cpu\(\)\)"
    ):
        check_vectors(tensor.to("meta"), "points")
    with pytest.raises(TypeError, match=r"points are a tensor that NumPy cannot hold: .*to_dense"):
        check_vectors(tensor.to_sparse(), "points")
    for kind in (torch.bool, torch.complex64):
        with pytest.raises(TypeError, match=r"points have dtype (bool|complex64)"):
            check_vectors(tensor.to(kind), "points")


def test_a_tensor_that_is_not_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As above without torch, which is too large for every test run: what as_array asks of a tensor."""

    class Tensor:
        def __init__(self, device: str, dtype: str = "torch.float32") -> None:
            self.device, self.dtype = type("device", (str,), {"type": device.partition(":")[0]})(device), dtype

        def float(self) -> "Tensor":
            return Tensor("cpu")

        def numpy(self, *, force: bool) -> NDArray[Any]:
            assert force
            assert self.dtype == "torch.float32"
            return WHOLE

    monkeypatch.setitem(sys.modules, "torch", type("torch", (), {"Tensor": Tensor}))
    with pytest.raises(TypeError, match="points are a tensor on device 'cuda:0'"):
        check_vectors(Tensor("cuda:0"), "points")
    assert as_array(Tensor("cpu"), "points") is WHOLE
    assert_array_equal(check_vectors(Tensor("cpu", "torch.bfloat16"), "points"), WHOLE)


def test_arrow() -> None:
    arrow = pytest.importorskip("pyarrow")
    fixed = arrow.FixedSizeListArray.from_arrays(arrow.array(WHOLE.reshape(-1)), 4)
    assert np.shares_memory(as_array(fixed, "points"), fixed.flatten().to_numpy())
    for dtype in ("f2", "f4", "f8", "i1", "i2", "i4", "i8"):
        column = arrow.FixedSizeListArray.from_arrays(arrow.array(WHOLE.astype(dtype).reshape(-1)), 4)
        assert as_array(column, "points").dtype == np.dtype(dtype)
        assert_array_equal(check_vectors(column, "points"), WHOLE)
    lists, large = (arrow.array(WHOLE.tolist(), kind(arrow.float64())) for kind in (arrow.list_, arrow.large_list))
    tensors = arrow.FixedShapeTensorArray.from_numpy_ndarray(WHOLE)
    nothing = fixed[:0]
    for column in (fixed, lists, large, tensors):
        assert_array_equal(check_vectors(column, "points"), WHOLE)
        assert_array_equal(check_vectors(column[2:5], "points"), WHOLE[2:5])
        chunked = arrow.chunked_array([column[:0], column[:4], column[:0], column[4:]])
        assert_array_equal(check_vectors(chunked, "points"), WHOLE)
        assert_array_equal(check_vectors(arrow.table({"v": chunked})["v"], "points"), WHOLE)
    for empty in (nothing, arrow.chunked_array([], fixed.type), arrow.chunked_array([nothing, nothing])):
        assert check_vectors(empty, "points").shape == (0, 4)


def test_arrow_refuses() -> None:
    arrow = pytest.importorskip("pyarrow")
    fixed = arrow.list_(arrow.float32(), 2)
    rows = [[1.0, 2.0], [3.0, 4.0], None]
    cases: list[tuple[Any, type[Exception], str]] = [
        (arrow.array(rows, fixed), ValueError, "points row 2 is null"),
        (arrow.array(rows), ValueError, "points row 2 is null"),
        (arrow.chunked_array([arrow.array(rows[:2], fixed), arrow.array(rows, fixed)]), ValueError, "row 4 is null"),
        (arrow.array([[1.0, 2.0], [3.0, None]], fixed), ValueError, "row 1, dimension 1 is null"),
        (arrow.array([[1.0, 2.0], [3.0]]), ValueError, "row 1 has 1 dimensions, those before it 2"),
        (arrow.chunked_array([[[1.0, 2.0]], [[3.0]]]), ValueError, "row 1 has 1 dimensions"),
        (arrow.array([[]], arrow.list_(arrow.float32())), ValueError, "0 dimensions"),
        (arrow.array([1.0, 2.0]), TypeError, "column of double; needed: a column of lists"),
        (arrow.array(["a"]), TypeError, "column of string"),
        (arrow.array([[True]]), TypeError, "needed: lists of floats or integers"),
        (arrow.array([["a"]]), TypeError, "needed: lists of floats or integers"),
        (arrow.array([[[1.0]]]), TypeError, "needed: lists of floats or integers"),
        (arrow.table({"id": [1], "v": [[1.0]]}), TypeError, r"one column of it, table\[column\] \(there: id, v\)"),
    ]
    for vectors, error, words in cases:
        with pytest.raises(error, match=words):
            check_vectors(vectors, "points")


def test_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(WHOLE, columns=list("abcd"))
    kinds = ["float32", "float64", "int8", "int64", "Float32", "Int64", {"a": "Float64", "b": "int8"}]
    if importlib.util.find_spec("pyarrow"):
        kinds.append("float[pyarrow]")
    for kind in kinds:
        assert_array_equal(check_vectors(frame.astype(kind), "points"), WHOLE)
    missing = frame.astype("Float32")
    missing.iloc[3, 2] = pandas.NA
    with pytest.raises(ValueError, match="points row 3, column 'c' is missing"):
        check_vectors(missing, "points")
    missing = frame.copy()
    missing.iloc[3, 2] = np.nan
    with pytest.raises(ValueError, match="points row 3, dimension 2 is not finite: nan"):
        check_vectors(missing, "points")
    for column in ([True] * 6, list("xyzxyz")):
        with pytest.raises(TypeError, match="object"):
            check_vectors(frame.assign(b=column), "points")
    with pytest.raises(TypeError, match="column 'b' has dtype boolean"):
        check_vectors(frame.astype("Float32").assign(b=pandas.array([True] * 6)), "points")


def test_no_library_is_loaded_for_it() -> None:
    code = "import sys, aniso; sys.exit(bool({'torch', 'pyarrow', 'pandas', 'ml_dtypes', 'h5py'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
