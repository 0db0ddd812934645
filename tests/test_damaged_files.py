"""Damaged and hostile files: whatever the bytes are, opening gives what was saved or a FormatError that says where."""

import copy
import json
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aniso import format as file_format
from aniso.errors import FormatError
from aniso.format import open_file, save

HEADER = {"config": {"metric": "dot", "seed": 7}}
ARRAYS = {
    "codes": np.arange(30, dtype=np.uint8).reshape(5, 6),
    "empty": np.zeros((0, 4), np.float32),
    "points": np.arange(12, dtype=np.float32).reshape(3, 4),
    "sizes": np.array([3, 2], np.int64),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "a"
    save(path, HEADER, ARRAYS)
    return path.read_bytes()


def content(data: bytes) -> dict[str, Any]:
    """The JSON of a file."""
    return json.loads(data[20 : 20 + struct.unpack_from("<I", data, 12)[0]])


def body(data: bytes) -> bytes:
    """The arrays of a file."""
    return data[20 + struct.unpack_from("<I", data, 12)[0] :]


def sealed(text: str | bytes, *, pad: int = 64) -> bytes:
    """All that comes before the arrays, with a length and a checksum that fit: only its meaning can be wrong."""
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    raw = raw.ljust(-(-(20 + len(raw)) // pad) * pad - 20)
    prefix = b"\x89ANISO\r\n" + struct.pack("<II", 1, len(raw))
    return prefix + struct.pack("<I", zlib.crc32(raw, zlib.crc32(prefix))) + raw


def parse(data: bytes) -> file_format.File:
    opened = file_format._parse(data, "some.aniso")
    opened.verify()
    return opened


def outcome(data: bytes) -> file_format.File | None:
    """The file, or None if it was refused in words that name it and a place; any other exception fails the test."""
    try:
        return parse(data)
    except FormatError as error:
        message = str(error)
        assert message.startswith("some.aniso: ")
        assert " at byte " in message
        assert len(message) < 1000
        return None


def test_the_helpers_make_a_good_file(good: bytes) -> None:
    assert sealed(json.dumps(content(good))) + body(good) != good  # other spaces, same meaning
    assert parse(sealed(json.dumps(content(good))) + body(good)).header == HEADER


def test_truncated_anywhere(good: bytes, tmp_path: Path) -> None:
    start = len(good) - len(body(good))
    for length in range(len(good)):
        with pytest.raises(FormatError, match=rf"at byte {length} ends.*truncated"):
            parse(good[:length])
    for length in (0, 1, 7, 8, 12, 16, 19, 20, start - 1, start, start + 30, start + 64, len(good) - 1):
        (tmp_path / "a").write_bytes(good[:length])
        with pytest.raises(FormatError, match=rf"{tmp_path / 'a'}: .*at byte {length} ends.*truncated"):
            open_file(tmp_path / "a")


def test_longer_than_it_should_be(good: bytes) -> None:
    for more in (1, 63, 64, 4096):
        with pytest.raises(FormatError, match=f"{more} bytes too many"):
            parse(good + bytes(more))


def test_every_flipped_bit_is_found(good: bytes) -> None:
    """In prefix, header, arrays and padding alike; the header's on opening, before verify."""
    start = len(good) - len(body(good))
    for at in range(len(good)):
        for bit in range(8):
            damaged = bytearray(good)
            damaged[at] ^= 1 << bit
            with pytest.raises(FormatError):
                (parse if at >= start else lambda data: file_format._parse(data, "a"))(bytes(damaged))


def test_what_is_found_on_opening_and_what_on_verifying(good: bytes, tmp_path: Path) -> None:
    damaged = good[:-1] + b"\xff"  # the last byte of "sizes"
    (tmp_path / "a").write_bytes(damaged)
    opened = open_file(tmp_path / "a")
    for call in (opened.verify, lambda: open_file(tmp_path / "a", verify=True)):
        with pytest.raises(FormatError, match=rf"a: array 'sizes' at byte {len(good) - 16} has checksum"):
            call()


def test_any_size_opens_at_once(tmp_path: Path) -> None:
    """Nothing but the header is read: 64 GB of nothing, a file that has no blocks on the disk, open like any other."""
    size = 1 << 36
    entry = {"crc32": "00000000", "dtype": "u1", "offset": 0, "shape": [size], "size": size}
    head = sealed(json.dumps({"arrays": {"x": entry}, "header": {}}))
    with open(tmp_path / "a", "wb") as file:
        file.write(head)
        try:
            file.truncate(len(head) + size)
        except OSError:
            pytest.skip("no file with holes of that size here")
    tracemalloc.start()
    opened = open_file(tmp_path / "a")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert opened.arrays["x"].shape == (size,)
    assert opened.arrays["x"][-1] == 0


def change(*keys: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    """An edit of the JSON: the value under the keys becomes another."""

    def edit(tree: Any) -> None:
        for key in keys[:-1]:
            tree = tree[key]
        tree[keys[-1]] = to

    return edit


def drop(*keys: Any) -> Callable[[dict[str, Any]], None]:
    def edit(tree: Any) -> None:
        for key in keys[:-1]:
            tree = tree[key]
        del tree[keys[-1]]

    return edit


POINTS = ("arrays", "points")
HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "no arrays": (drop("arrays"), "an object of arrays and header"),
    "no header": (drop("header"), "an object of arrays and header"),
    "more than both": (change("more", to=1), "nothing else"),
    "arrays a list": (change("arrays", to=[]), r"arrays, at byte 20 is \[\]; needed: an object"),
    "header a number": (change("header", to=3), "header, at byte 20 is 3; needed: an object"),
    "an array without a name": (change("arrays", "", to={}), "not empty"),
    "an array that is a list": (change(*POINTS, to=[1, 2]), r"arrays\['points'\], at byte 20 is \[1, 2\]"),
    "no dtype": (drop(*POINTS, "dtype"), "crc32, dtype, offset, shape, size, nothing else"),
    "one key more": (change(*POINTS, "more", to=1), "nothing else"),
    "crc32 as a number": (change(*POINTS, "crc32", to=12345678), "8 hexadecimal digits"),
    "crc32 too short": (change(*POINTS, "crc32", to="123"), "8 hexadecimal digits"),
    "crc32 in capitals": (change(*POINTS, "crc32", to="ABCDEF00"), "8 hexadecimal digits"),
    "crc32 of another": (change(*POINTS, "crc32", to="00000000"), "array 'points' at byte .* has checksum"),
    "shape a number": (change(*POINTS, "shape", to=12), "at most 32 integers"),
    "shape of strings": (change(*POINTS, "shape", to=["3", "4"]), "at most 32 integers"),
    "shape of floats": (change(*POINTS, "shape", to=[3.0, 4.0]), "at most 32 integers"),
    "shape of bools": (change(*POINTS, "shape", to=[True, 12]), "at most 32 integers"),
    "shape of lists": (change(*POINTS, "shape", to=[[3], 4]), "at most 32 integers"),
    "shape negative": (change(*POINTS, "shape", to=[-3, -4]), "none negative"),
    "shape of many axes": (change(*POINTS, "shape", to=[1] * 33 + [12]), "at most 32 integers"),
    "shape huge": (change(*POINTS, "shape", to=[2**40, 4]), "size.* needed: 17592186044416"),
    "shape overflowing": (change(*POINTS, "shape", to=[2**32, 2**32]), r"less than 2\*\*63"),
    "shape overflowing to what it was": (change(*POINTS, "shape", to=[2**62 + 3, 4]), r"less than 2\*\*63"),
    "shape overflowing and empty": (change("arrays", "empty", "shape", to=[0, 2**62, 2**62]), r"less than 2\*\*63"),
    "shape of another size": (change(*POINTS, "shape", to=[3, 5]), "needed: 60, as dtype and shape give it"),
    "size of another shape": (change(*POINTS, "size", to=52), "is 52; needed: 48"),
    "size negative": (change(*POINTS, "size", to=-48), "is -48; needed: 48"),
    "size a float": (change(*POINTS, "size", to=48.0), "is 48.0; needed: 48"),
    "size huge": (change(*POINTS, "size", to=2**63), "needed: 48"),
    "offset unaligned": (change(*POINTS, "offset", to=65), "is 65; needed: a multiple of 64"),
    "offset negative": (change(*POINTS, "offset", to=-64), "is -64; needed: a multiple of 64"),
    "offset a float": (change(*POINTS, "offset", to=64.0), "needed: a multiple of 64"),
    "offset a string": (change(*POINTS, "offset", to="64"), "needed: a multiple of 64"),
    "offset outside": (change("arrays", "sizes", "offset", to=1 << 40), "needed: 128 .*gap"),
    "offset huge": (change("arrays", "sizes", "offset", to=2**64 - 64), "gap"),
    "overlapping": (change(*POINTS, "offset", to=0), "is 0; needed: 64 .*overlaps"),
    "a gap": (change("arrays", "sizes", "offset", to=192), "is 192; needed: 128 .*gap"),
    "one array fewer": (drop("arrays", "sizes"), "bytes too many"),
    "no array": (change("arrays", to={}), "bytes too many"),
    "the last one longer": (
        lambda tree: tree["arrays"]["sizes"].update(shape=[1000], size=8000),
        "at byte .* ends within array 'sizes'",
    ),
    **{
        f"dtype {dtype!r}": (change(*POINTS, "dtype", to=dtype), "dtype.*needed: one of i1")
        for dtype in ("O", "|O", "<f4", "f", "f16", "c8", "V4", "U1", "S4", "M8[s]", "float32", "", 4, None, ["f4"], {})
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_with_true_checksums(good: bytes, name: str) -> None:
    edit, words = HOSTILE[name]
    tree = content(good)
    edit(tree)
    with pytest.raises(FormatError, match=words) as caught:
        parse(sealed(json.dumps(tree)) + body(good))
    assert " at byte " in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("null", "is None; needed: an object"),
        ("[]", r"is \[\]; needed"),
        ('"text"', "is 'text'; needed"),
        ("{", "not JSON"),
        ('{"arrays":{},"header":{}} {}', "not JSON"),
        ('{"arrays":{},"header":{"a":1,"a":1}}', "the key 'a' is there twice"),
        ('{"arrays":{},"arrays":{},"header":{}}', "the key 'arrays' is there twice"),
        ('{"arrays":{},"header":{"a":NaN}}', "NaN is not a number of JSON"),
        ('{"arrays":{},"header":{"a":-Infinity}}', "-Infinity is not a number of JSON"),
        ('{"arrays":{},"header":{"a":1e999}}', "1e999' is not finite"),
        ('{"arrays":{},"header":{"a":18446744073709551616}}', "beyond 64 bits"),
        ('{"arrays":{},"header":{"a":' + "9" * 900_000 + "}}", "beyond 64 bits"),
        ("[" * 900_000, "not JSON"),
        ('{"a":' * 100_000, "not JSON"),
        (b"\xff\xfe{\x00}\x00", "not JSON"),
        (b'{"arrays":{},"header":{"\xff":1}}', "not JSON"),
        ('{"arrays":{},"header":{"' + "\ud800" + '":1}}', "not JSON"),
        ('{"arrays":{"' + "x" * 900_000 + '":1},"header":{}}', r"arrays\['xxx"),
    ],
    ids=range(19),
)
def test_hostile_text_with_true_checksums(text: str | bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words) as caught:
        parse(sealed(text))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("depth", [10, 62, 63, 64, 100, 300, 500, 700, 900, 950, 1000, 5000])
def test_nested_headers(depth: int) -> None:
    """However deep, neither reading it nor showing it in a message may exceed the recursion limit."""
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        nested = opening * (depth - 1) + opening[0] + closing[0] + closing * (depth - 1)
        for text in (
            nested,
            f'{{"arrays":{{"a":{nested}}},"header":{{}}}}',
            f'{{"arrays":{{}},"header":{{"a":{nested}}}}}',
        ):
            opened = outcome(sealed(text))
            assert (opened is not None) == (text.startswith('{"arrays":{}') and depth < 64)


def test_hostile_prefixes(good: bytes) -> None:
    def prefix(magic: bytes, version: int, length: int) -> bytes:
        return magic + struct.pack("<II", version, length) + good[16:]

    magic, length = good[:8], struct.unpack_from("<I", good, 12)[0]
    tracemalloc.start()
    for data, words in [
        (prefix(b"\x93NUMPY\1\0", 1, length), r"magic number at byte 0 is b'\\x93NUMPY"),
        (prefix(b"\x89ANISO\n\n", 1, length), "magic number at byte 0"),
        (b"text", "magic number at byte 0"),
        (prefix(magic, 0, length), "version at byte 8 is 0; needed: 1"),
        (prefix(magic, 2, length), "version at byte 8 is 2; needed: 1"),
        (prefix(magic, 2**32 - 1, length), "version at byte 8 is 4294967295"),
        (prefix(magic, 1, length + 1), "length of the header at byte 12 .* multiple of 64"),
        (prefix(magic, 1, 0), "length of the header at byte 12 is 0"),
        (prefix(magic, 1, 2**32 - 20), "length of the header at byte 12 is 4294967276; needed: at most 1048576"),
        (prefix(magic, 1, 2**20 - 20), "ends within the header, which ends at 1048576"),
        (prefix(magic, 1, length - 64), "checksum of the header at byte 16"),
        (sealed(json.dumps(content(good)), pad=1) + body(good), "multiple of 64|ends within"),
    ]:
        with pytest.raises(FormatError, match=words):
            parse(data)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def mutated(rng: np.random.Generator, data: bytes) -> bytes:
    """A few random edits: bytes set, inserted, removed, copied from elsewhere, or the end cut off."""
    changed = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        at, other = (int(x) for x in rng.integers(0, max(1, len(changed)), 2))
        length = int(rng.integers(1, 9))
        match rng.integers(6):
            case 0:
                changed[at : at + 1] = rng.bytes(1)
            case 1:
                changed[at : at + length] = bytes([rng.choice([0, 1, 0x7F, 0x80, 0xFF])]) * length
            case 2:
                changed[at:at] = rng.bytes(length)
            case 3:
                del changed[at : at + length]
            case 4:
                changed[at : at + length] = changed[other : other + length]
            case _:
                if rng.random() < 0.2:
                    del changed[at:]
    return bytes(changed)


def assert_sound(opened: file_format.File) -> None:
    """What was opened can be read from end to end and says what it is."""
    for name, array in opened.arrays.items():
        assert name
        assert not array.flags.writeable
        assert array.tobytes() is not None
    json.dumps(opened.header, allow_nan=False)


def test_random_damage_is_found(good: bytes) -> None:
    """12,000 files with damage that the checksums must catch: none may open but the undamaged."""
    rng = np.random.default_rng(1)
    for _ in range(12_000):
        damaged = mutated(rng, good)
        assert (outcome(damaged) is None) == (damaged != good)


def test_random_headers_with_true_checksums(good: bytes) -> None:
    """12,000 files whose header's text was edited at random and sealed again: the checks behind the checksum."""
    rng = np.random.default_rng(2)
    text, arrays = good[20 : len(good) - len(body(good))].rstrip(), body(good)
    opened = 0
    for _ in range(12_000):
        found = outcome(sealed(mutated(rng, text)) + arrays)
        if found is not None:
            assert_sound(found)
            opened += 1
    assert opened > 0  # edits of the user's own part are not ours to judge


VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 3, 4, 12, 48, 63, 64, 128, 192, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
    -(2**63), 0.0, 1.5, 48.0, 1e308, "", "f4", "f8", "u1", "O", "codes", "00000000", {}, {"a": 1},
    [], [0], [3, 4], [4, 3], [0, 2**62], [2**31] * 3, [-1, 4], [1] * 40,
]  # fmt: skip


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every container of a tree with each of its keys."""
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []
    return [(tree, key) for key in keys] + [place for key in keys for place in places(tree[key])]


def test_random_meanings_with_true_checksums(good: bytes) -> None:
    """12,000 headers with values and names exchanged: well-formed JSON that lies about the arrays."""
    rng = np.random.default_rng(3)
    arrays, opened = body(good), 0
    for _ in range(12_000):
        tree = content(good)
        for _ in range(rng.integers(1, 4)):
            where = places(tree)
            if not where:
                break
            holder, key = where[rng.integers(len(where))]
            match rng.integers(4):
                case 0 | 1:
                    holder[key] = copy.deepcopy(VALUES[rng.integers(len(VALUES))])
                case 2:
                    source, name = where[rng.integers(len(where))]
                    holder[key] = copy.deepcopy(source[name])
                case _:
                    value = holder.pop(key)
                    if isinstance(holder, dict) and rng.random() < 0.7:
                        holder[str(rng.choice(["a", "codes", "points", "shape", "size", ""]))] = value
        found = outcome(sealed(json.dumps(tree)) + arrays)
        if found is not None:
            assert_sound(found)
            opened += 1
    assert opened > 0


def test_random_damage_on_the_disk(good: bytes, tmp_path: Path) -> None:
    """The same through the file system and the memory map."""
    rng = np.random.default_rng(4)
    for _ in range(500):
        damaged = mutated(rng, good)
        (tmp_path / "a").write_bytes(damaged)
        if damaged != good:
            with pytest.raises(FormatError, match=str(tmp_path / "a")):
                open_file(tmp_path / "a", verify=True)
