"""Vectors from files: every kind gives the matrix it holds, and a damaged or unclear one says what is wrong."""

import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from aniso.datasets import read_vectors
from aniso.errors import check_vectors

POINTS = np.arange(24, dtype=np.float32).reshape(6, 4)
OTHER = POINTS[:2] + 100


def write_records(path: Path, array: NDArray[Any], dtype: str) -> Path:
    path.write_bytes(b"".join(struct.pack("<i", len(row)) + row.astype(dtype).tobytes() for row in array))
    return path


def is_mapped(array: NDArray[Any]) -> bool:
    base: Any = array
    while base is not None and not isinstance(base, np.memmap):
        base = base.base
    return base is not None


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", ">f4"])
def test_npy(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "a.npy", POINTS.astype(dtype))
    found = read_vectors(tmp_path / "a.npy")
    assert found.dtype == np.dtype(dtype)
    assert is_mapped(found)
    assert_array_equal(found, POINTS)
    np.save(tmp_path / "none.npy", POINTS[:0])
    assert read_vectors(str(tmp_path / "none.npy")).shape == (0, 4)


def test_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, only=POINTS)
    assert_array_equal(read_vectors(path), POINTS)
    np.savez_compressed(path, vectors=POINTS, other=OTHER)
    assert_array_equal(read_vectors(path), POINTS)
    assert_array_equal(read_vectors(f"{path}::other"), OTHER)
    with pytest.raises(ValueError, match=r"a.npz has no array 'more' \(there: vectors, other\)"):
        read_vectors(f"{path}::more")
    np.savez(path, one=POINTS, other=OTHER)
    with pytest.raises(ValueError, match=r"no array 'vectors'; needed: .*a.npz::name .*\(there: one, other\)"):
        read_vectors(path)


def test_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        file["train"], file["test"] = POINTS, OTHER
        file["group/inner"] = OTHER.astype(">f8")
        file.create_dataset("packed", data=OTHER, chunks=(1, 4), compression="gzip")
        file.create_dataset("unwritten", (0, 4), "f4")
    found = read_vectors(path)
    assert is_mapped(found)
    assert_array_equal(found, POINTS)
    for name in ("test", "group/inner", "packed"):
        assert_array_equal(read_vectors(f"{path}::{name}"), OTHER)
    assert read_vectors(f"{path}::unwritten").shape == (0, 4)
    for name in ("more", "group", "group/more"):
        with pytest.raises(ValueError, match=f"no data set '{name}' .*there: packed, test, train"):
            read_vectors(f"{path}::{name}")
    with h5py.File(tmp_path / "b.h5", "w", userblock_size=512) as file:
        file["only"] = POINTS
    assert_array_equal(read_vectors(tmp_path / "b.h5"), POINTS)
    (tmp_path / "c.h5").write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"c.h5 is not a whole HDF5 file"):
        read_vectors(tmp_path / "c.h5")


@pytest.mark.parametrize(
    ("suffix", "dtype"), [(".fvecs", "<f4"), (".bvecs", "u1"), (".ivecs", "<i4"), (".FVECS", "<f4")]
)
def test_records(tmp_path: Path, suffix: str, dtype: str) -> None:
    for points in (POINTS, POINTS[:1], POINTS[:, :1], POINTS[:, :3]):
        path = write_records(tmp_path / f"a{suffix}", points, dtype)
        found = read_vectors(path)
        assert found.dtype == np.dtype(dtype)
        assert is_mapped(found)
        assert_array_equal(found, points)
        assert_array_equal(check_vectors(found, "points"), points)


@pytest.mark.parametrize(("suffix", "dtype"), [(".fvecs", "<f4"), (".bvecs", "u1"), (".ivecs", "<i4")])
def test_damaged_records(tmp_path: Path, suffix: str, dtype: str) -> None:
    path = write_records(tmp_path / f"a{suffix}", POINTS, dtype)
    data = path.read_bytes()
    length = len(data) // len(POINTS)
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        if cut % length or not cut:
            with pytest.raises(ValueError, match=r"not a whole number|at least one vector"):
                read_vectors(path)
        else:
            assert_array_equal(read_vectors(path), POINTS[: cut // length])
    path.write_bytes(data[: 3 * length] + struct.pack("<i", 7) + data[3 * length + 4 :])
    with pytest.raises(ValueError, match=f"row 3 has dimension 7 at byte {3 * length}, those before it 4"):
        read_vectors(path)
    for first in (0, -1, -(2**31)):
        path.write_bytes(struct.pack("<i", first) + data[4:])
        with pytest.raises(ValueError, match=rf"begins with the dimension {first}; needed: at least 1.*{suffix} file"):
            read_vectors(path)
    path.write_bytes(struct.pack("<i", 2**31 - 1) + data[4:])
    with pytest.raises(ValueError, match="truncated"):
        read_vectors(path)


def test_parquet(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    fixed = arrow.FixedSizeListArray.from_arrays(arrow.array(POINTS.reshape(-1)), 4)
    lists = arrow.array((POINTS + 1).tolist())
    parquet.write_table(arrow.table({"id": list(range(6)), "embedding": fixed}), path, row_group_size=2)
    assert_array_equal(read_vectors(path), POINTS)
    assert read_vectors(path).dtype == np.float32
    parquet.write_table(arrow.table({"id": list(range(6)), "vectors": fixed, "more": lists}), path)
    assert_array_equal(read_vectors(path), POINTS)
    assert_array_equal(read_vectors(f"{path}::more"), POINTS + 1)
    with pytest.raises(ValueError, match=r"no column 'title' \(there: vectors, more\)"):
        read_vectors(f"{path}::title")
    with pytest.raises(TypeError, match=r"a.parquet::id are a column of int64; needed: a column of lists"):
        read_vectors(f"{path}::id")
    parquet.write_table(arrow.table({"v": arrow.array([[1.0], None, [2.0]])}), path)
    with pytest.raises(ValueError, match=r"a.parquet::v row 1 is null"):
        read_vectors(path)
    for damaged in (b"", b"PAR1", path.read_bytes()[:-5]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"a.parquet is not a whole Parquet file"):
            read_vectors(path)


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library, suffix in (("h5py", ".hdf5"), ("pyarrow", ".parquet")):
        (tmp_path / f"a{suffix}").write_bytes(b"something")
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(ImportError, match=rf'a{suffix} needs {library}: pip install "aniso\[data\]"'):
            read_vectors(tmp_path / f"a{suffix}")


def test_damaged_numpy_files(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", POINTS)
    np.savez(tmp_path / "a.npz", POINTS)
    for name in ("a.npy", "a.npz"):
        data = (tmp_path / name).read_bytes()
        for cut in (0, 3, 10, len(data) // 2, len(data) - 1):
            (tmp_path / name).write_bytes(data[:cut])
            with pytest.raises(ValueError, match=rf"{name} is not a whole {name[1:]} file"):
                read_vectors(tmp_path / name)
    np.save(tmp_path / "b.npy", POINTS)
    (tmp_path / "b.npy").rename(tmp_path / "b.npz")
    with pytest.raises(ValueError, match=r"b.npz is not a whole .npz file"):
        read_vectors(tmp_path / "b.npz")
    for array in (np.array([{}, {}]), np.array([[object()]])):
        np.save(tmp_path / "c.npy", array, allow_pickle=True)
        np.savez(tmp_path / "c.npz", vectors=array)
        for name in ("c.npy", "c.npz"):  # a pickle could run anything: it is not even looked at
            with pytest.raises(ValueError, match=name):
                read_vectors(tmp_path / name)


def test_what_is_not_a_matrix_of_numbers(tmp_path: Path) -> None:
    for array in (POINTS[0], POINTS[None], POINTS > 3, POINTS.astype(str)):
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(ValueError, match=r"a.npy holds .* of shape .*needed: numbers, \(rows, dimensions\)"):
            read_vectors(tmp_path / "a.npy")


def test_paths(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file .*missing.npy"):
        read_vectors(tmp_path / "missing.npy")
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(FileNotFoundError, match=r"it is a folder"):
        read_vectors(tmp_path / "folder.npy")
    with pytest.raises(
        ValueError, match=r"ends in '.txt'; needed: one of .npy, .npz, .hdf5, .h5, .fvecs, .bvecs, .ivecs"
    ):
        read_vectors(tmp_path / "a.txt")
    np.save(tmp_path / "a::b.npy", POINTS)  # a name may have colons
    assert_array_equal(read_vectors(tmp_path / "a::b.npy"), POINTS)
    with pytest.raises(ValueError, match=r"a .npy file holds one matrix; needed: the path without ::x"):
        read_vectors(f"{tmp_path}/a::b.npy::x")
