"""Files: what is saved comes back, in the same bytes each time, and what cannot be saved or opened is said clearly."""

import hashlib
import os
import stat
import tempfile
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from aniso.errors import FormatError
from aniso.format import MAGIC, VERSION, open_file, pack_strings, save, unpack_strings

GOLDEN = Path(__file__).parent / "data" / "v1.aniso"
DTYPES = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(1 - 2**64, 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip
ARRAYS = hnp.arrays(
    st.sampled_from([order + name for name in DTYPES for order in "<>"]),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7),
)


def golden() -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """What the golden file holds: every dtype, every kind of JSON value, an empty array and one without axes."""
    header = {"config": {"metric": "dot", "seed": 7, "spill": None, "rates": [0.5, 1e-300, -2.0]}, "ß": True}
    arrays = {name: np.arange(21).reshape(3, 7).astype(name) for name in DTYPES}
    arrays["empty"] = np.zeros((0, 5), "f4")
    arrays["scalar"] = np.array(-1.5, "f8")
    arrays["text"], arrays["text offsets"] = pack_strings(["cat", "", "Straße", "猫"])
    return header, arrays


def same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """The same dtype, shape and bits: NaN and its payload, and the sign of zero, count."""
    little = [array.astype(array.dtype.newbyteorder("<")) for array in (one, other)]
    return (
        little[0].dtype == little[1].dtype and one.shape == other.shape and little[0].tobytes() == little[1].tobytes()
    )


def leftovers(folder: Path) -> list[Path]:
    return list(folder.glob(".aniso-*"))


@given(
    header=st.dictionaries(st.text(), JSON, max_size=4), arrays=st.dictionaries(st.text(min_size=1), ARRAYS, max_size=4)
)
def test_what_is_saved_comes_back(tmp_path: Path, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    save(tmp_path / "a", header, arrays)
    opened = open_file(tmp_path / "a", verify=True)
    assert opened.header == header
    assert opened.path == str(tmp_path / "a")
    assert opened.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        found = opened.arrays[name]
        assert same(found, array)
        assert type(found) is np.ndarray
        assert not found.flags.writeable
        assert found.size == 0 or found.ctypes.data % 64 == 0
    assert not leftovers(tmp_path)


BIG = np.arange(600_000, dtype=np.float32).reshape(300, 2000)  # several blocks
FORMS = {
    "rows": BIG,
    "fortran": np.asfortranarray(BIG),
    "transposed": BIG.T,
    "backwards": BIG[::-1, ::-1],
    "every third": BIG[::3, ::3],
    "one long axis": BIG.reshape(-1)[::2],
    "broadcast": np.broadcast_to(BIG[0], BIG.shape),
    "big-endian": BIG.astype(">f4"),
    "big-endian and transposed": BIG.astype(">f4").T,
    "not aligned": np.frombuffer(b"." + BIG.tobytes(), np.float32, offset=1).reshape(BIG.shape),
}


@pytest.mark.parametrize("form", FORMS)
def test_any_layout_in_memory_gives_the_same_file(tmp_path: Path, form: str) -> None:
    plain = np.ascontiguousarray(FORMS[form], "<f4")
    save(tmp_path / "a", {}, {"x": FORMS[form]})
    save(tmp_path / "b", {}, {"x": plain})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert_array_equal(open_file(tmp_path / "a", verify=True).arrays["x"], plain)


@pytest.mark.parametrize("form", ["rows", "transposed", "big-endian"])
def test_saving_needs_no_second_copy_in_memory(tmp_path: Path, form: str) -> None:
    array = np.concatenate([FORMS[form]] * 8)
    tracemalloc.start()
    save(tmp_path / "a", {}, {"x": array})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < array.nbytes / 10


def test_same_content_same_bytes(tmp_path: Path) -> None:
    header, arrays = golden()
    save(tmp_path / "a", header, arrays)
    save(tmp_path / "b", dict(reversed(header.items())), dict(reversed(arrays.items())))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    if VERSION == 1:
        assert (tmp_path / "a").read_bytes() == GOLDEN.read_bytes()


def test_the_golden_file_of_version_1() -> None:
    """Saved once by the first release that had the format, and never made again: old files must stay readable."""
    assert (
        hashlib.sha256(GOLDEN.read_bytes()).hexdigest()
        == "316665caec16f92e797a14215b7cc0dae156d4fa661deba7d54e3ea8d0b12975"
    )
    header, arrays = golden()
    opened = open_file(GOLDEN, verify=True)
    assert opened.header == header
    assert opened.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert same(opened.arrays[name], array)
    assert unpack_strings(opened.arrays["text"], opened.arrays["text offsets"]) == ["cat", "", "Straße", "猫"]


def test_a_map_outlives_the_name_of_its_file(tmp_path: Path) -> None:
    path, moved = tmp_path / "a", tmp_path / "b"
    save(path, {"save": 1}, {"x": BIG})
    first = open_file(path)
    os.rename(path, moved)
    assert_array_equal(first.arrays["x"], BIG)
    save(moved, {"save": 2}, {"x": -BIG})
    second = open_file(moved)
    assert_array_equal(first.arrays["x"], BIG)
    first.verify()
    save(moved, second.header, second.arrays)  # over the file that the arrays come from
    os.unlink(moved)
    view = second.arrays["x"]
    del first, second
    assert_array_equal(view, -BIG)


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "a", tmp_path / "link"
    before = os.umask(0o027)
    try:
        save(path, {}, {})
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o604)
    link.symlink_to(path)
    save(link, {"new": True}, {})
    assert link.is_symlink()
    assert open_file(path).header == {"new": True}
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user may enter, and this process as a user whom permissions bind."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            if root:
                os.seteuid(0)
            os.chmod(name, 0o777)


def test_permissions_are_asked_for(open_folder: Path) -> None:
    path = open_folder / "a"
    save(path, {"save": 1}, {})
    path.chmod(0)
    with pytest.raises(PermissionError, match=str(path)):
        open_file(path)
    path.chmod(0o600)
    if os.stat(open_folder).st_uid == os.geteuid():
        os.chmod(open_folder, 0o555)
    else:
        os.seteuid(0)
        os.chmod(open_folder, 0o555)
        os.seteuid(65534)
    with pytest.raises(PermissionError, match=f"cannot save.*nothing was changed.*{path}"):
        save(path, {"save": 2}, {})
    assert open_file(path).header == {"save": 1}


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    for call in (open_file, lambda path: save(path, {}, {})):
        with pytest.raises(IsADirectoryError, match=str(tmp_path)):
            call(tmp_path)
        with pytest.raises(OSError, match="missing"):
            call(tmp_path / "missing" / "a")
        with pytest.raises(OSError, match="x" * 300):
            call(tmp_path / ("x" * 300))
    with pytest.raises(FileNotFoundError, match="missing"):
        open_file(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match=r"pipe: not a regular file"):
        open_file(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"not a regular file.*pipe"):
        save(tmp_path / "pipe", {}, {})
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert not leftovers(tmp_path)


def test_what_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    save(path, {"save": 1}, {"x": BIG})

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(OSError, match=f"No space left.*{path}"):
                save(path, {"save": 2}, {"x": BIG})
        assert open_file(path, verify=True).header == {"save": 1}
        assert not leftovers(tmp_path)


def test_the_disk_has_the_file_before_its_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        info = os.fstat(descriptor)
        steps.append("folder" if stat.S_ISDIR(info.st_mode) else f"file of {info.st_size}")
        fsync(descriptor)

    def note_replace(source: Any, target: Any) -> None:
        steps.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    save(tmp_path / "a", {}, {"x": BIG})
    assert steps == [f"file of {(tmp_path / 'a').stat().st_size}", "replace", "folder"]


def test_threads_may_save_to_one_path(tmp_path: Path) -> None:
    def work(number: int) -> None:
        for _ in range(10):
            save(tmp_path / "a", {"thread": number}, {"x": np.full(50_000, number)})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened = open_file(tmp_path / "a", verify=True)
    assert_array_equal(opened.arrays["x"], np.full(50_000, opened.header["thread"]))
    assert not leftovers(tmp_path)


deep: list[Any] = []
for _ in range(100):
    deep = [deep]

# header, arrays, the exception, what its message must hold
BAD: list[tuple[Any, Any, type[Exception], str]] = [
    (["a"], {}, TypeError, "header is a list"),
    ({1: "a"}, {}, TypeError, "key 1; needed: a str"),
    ({"a": {"b": (1, 2)}}, {}, TypeError, r"header\['a'\]\['b'\] is a tuple"),
    ({"a": [0, np.int64(1)]}, {}, TypeError, r"header\['a'\]\[1\] is a int64"),
    ({"a": float("nan")}, {}, ValueError, r"header\['a'\] is nan"),
    ({"a": -float("inf")}, {}, ValueError, r"header\['a'\] is -inf"),
    ({"a": 2**64}, {}, ValueError, "less than 2\\*\\*64"),
    ({"a": b"bytes"}, {}, TypeError, "is a bytes"),
    ({"a": deep}, {}, ValueError, "nested more than 64 deep"),
    ({"a": "x" * (1 << 20)}, {}, ValueError, "the header takes .* at most 1048576"),
    ({}, {"": np.zeros(1)}, TypeError, "name of an array is ''"),
    ({}, {1: np.zeros(1)}, TypeError, "name of an array is 1"),
    ({}, {"a": [1.0]}, TypeError, "array 'a' is a list"),
    ({}, {"a": np.float32(1)}, TypeError, "array 'a' is a float32"),
    ({}, {"a": np.ma.masked_equal([1, 2], 2)}, TypeError, "array 'a' is a MaskedArray"),
    *(
        ({}, {"a": np.zeros(2, dtype)}, TypeError, "array 'a' has dtype .*needed: one of i1")
        for dtype in ("bool", "O", "c8", "U3", "S3", "M8[s]", "V4", [("x", "f4")], np.longdouble)
    ),
]  # fmt: skip


@pytest.mark.parametrize(("header", "arrays", "error", "words"), BAD)
def test_what_cannot_be_saved(tmp_path: Path, header: Any, arrays: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        save(tmp_path / "a", header, arrays)
    assert list(tmp_path.iterdir()) == []


@given(strings=st.lists(st.text()))
def test_strings_come_back(strings: list[str]) -> None:
    text, offsets = pack_strings(strings)
    assert (text.dtype, offsets.dtype) == (np.uint8, np.int64)
    assert unpack_strings(text, offsets) == strings


@pytest.mark.parametrize(
    ("text", "offsets", "words"),
    [
        (b"abc", np.array([0.0, 3.0]), "float64"),
        (b"abc", np.zeros((1, 2), np.int64), r"\(1, 2\)"),
        (b"abc", np.zeros(0, np.int64), r"\(0,\)"),
        (b"abc", np.array([0, 2]), "0 to 2; needed: 0 to 3"),
        (b"abc", np.array([1, 3]), "1 to 3"),
        (b"abc", np.array([0, 2**62, 3]), "string 1 begins at 4611686018427387904"),
        (b"abc", np.array([0, -1, 3]), "string 0 begins at 0, the next at -1"),
        (b"a\xff\xff", np.array([0, 1, 3]), "string 1 at byte 1 of the text is not UTF-8"),
        ("猫".encode(), np.array([0, 1, 3]), "string 0"),
    ],
)
def test_strings_that_do_not_fit(text: bytes, offsets: NDArray[Any], words: str) -> None:
    with pytest.raises(FormatError, match=words):
        unpack_strings(np.frombuffer(text, np.uint8), offsets)


def test_strings_that_cannot_be_packed() -> None:
    with pytest.raises(TypeError, match="string 1 is 7; needed: a str"):
        pack_strings(["a", 7])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="string 1 cannot be written as UTF-8"):
        pack_strings(["a", "\ud800"])
    with pytest.raises(FormatError, match="text of strings has dtype float64"):
        unpack_strings(np.zeros(3), np.array([0, 3]))


def test_the_magic_number_is_no_text() -> None:
    assert len(MAGIC) == 8
    with pytest.raises(UnicodeDecodeError):
        MAGIC.decode()
