"""Files of arrays: what is written comes back, bit for bit; what was damaged is refused in words; a
failed write leaves no trace.
"""

import errno
import json
import math
import os
import struct
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.files import safetensors as files
from refimpl.files.disk import replacing, target_file
from refimpl.files.safetensors import DTYPES, read_safetensors, write_safetensors

WORDS = st.text('ab.é\uffff𝄞\u2028\x7f\0\x1f\n\t"\\/', max_size=5)
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
DTYPE_OF = {code: ml_dtypes.bfloat16 if code == "BF16" else name for code, name in DTYPES.items()}


def filled(code, shape, seed):
    """Any bits at all: nan with a payload, −0 and subnormal numbers too."""
    n = math.prod(shape)
    rng = np.random.default_rng(seed)
    bits = (
        rng.integers(0, 2, n, np.uint8)
        if code == "BOOL"
        else rng.integers(0, 256, n * np.dtype(DTYPE_OF[code]).itemsize, np.uint8)
    )
    return bits.view(DTYPE_OF[code]).reshape(shape)


@st.composite
def contents(draw):
    """(codes, arrays) by name"""
    names = draw(st.sets(WORDS.filter(lambda name: name != "__metadata__"), max_size=6))
    codes = {name: draw(st.sampled_from(list(DTYPES))) for name in sorted(names)}
    return codes, {name: filled(code, draw(SHAPES), draw(st.integers(0, 99))) for name, code in codes.items()}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("files") / "a.safetensors"


def same(x, y):
    return (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())


def widened(code, x):
    return (
        (x.view(np.uint16).reshape(-1).astype(np.uint32) << 16).view(np.float32).reshape(x.shape)
        if code == "BF16"
        else x
    )


@given(contents(), st.dictionaries(WORDS, WORDS, max_size=3))
def test_what_is_written_comes_back(path, made, metadata):
    codes, tensors = made
    write_safetensors(path, tensors, metadata)
    found = read_safetensors(path)
    assert found.metadata == metadata and found.dtypes == codes and found.tensors.keys() == tensors.keys()
    for name, x in tensors.items():
        assert same(found.tensors[name], widened(codes[name], x)), name
        assert (
            found.tensors[name].flags.writeable
            and found.tensors[name].flags.aligned
            and type(found.tensors[name]) is np.ndarray
        )
    whole = path.read_bytes()
    write_safetensors(path, dict(reversed(tensors.items())), dict(reversed(metadata.items())))
    assert path.read_bytes() == whole


def test_every_bfloat16_comes_back_as_the_same_number(path):
    every = np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    write_safetensors(path, {"x": every}, {})
    tensors, _, dtypes = read_safetensors(path)
    assert dtypes == {"x": "BF16"} and tensors["x"].dtype == np.float32
    np.testing.assert_array_equal(tensors["x"], every.astype(np.float32))


def test_what_was_read_as_float32_is_written_as_bfloat16_again(path):
    x = np.array([[1.5, -0.0, 2**-133], [np.inf, -3e38, 0.1]]).astype(ml_dtypes.bfloat16)
    write_safetensors(path, {"x": x, "y": np.float32([0.1])}, {})
    whole, (tensors, _, dtypes) = path.read_bytes(), read_safetensors(path)
    for same_numbers in (tensors["x"], np.asfortranarray(tensors["x"]), tensors["x"].repeat(2, axis=1)[:, ::2]):
        write_safetensors(path, {"x": same_numbers, "y": tensors["y"]}, {}, {"x": dtypes["x"]})
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "x",
    [np.float32([0.1]), np.float64([1]), np.ones(2, ml_dtypes.bfloat16), [1.0]],
    ids=["fine", "wide", "made", "list"],
)
def test_only_bfloat16_numbers_in_float32_are_narrowed(x, tmp_path):
    with pytest.raises(TypeError) as caught:
        write_safetensors(tmp_path / "x", {"x": x}, {}, {"x": "BF16"})
    assert (
        str(caught.value)
        == "write_safetensors: tensor 'x' must hold bfloat16 numbers in float32, to be written as BF16"
    )
    assert not list(tmp_path.iterdir())


def test_layout_in_memory_does_not_matter(path):
    x = np.arange(24.0).reshape(2, 3, 4)
    for same_numbers in (x, np.asfortranarray(x), x.astype(">f8"), np.repeat(x, 2, axis=1)[:, ::2], x[::-1][::-1]):
        write_safetensors(path, {"x": same_numbers, "y": same_numbers.astype(ml_dtypes.bfloat16)}, {})
        assert same(read_safetensors(path).tensors["x"], x) and same(
            read_safetensors(path).tensors["y"], x.astype(np.float32)
        )


def test_the_bytes_of_one_file(path):
    write_safetensors(
        path, {"b": np.array([[1, 2]], np.int16), "a": np.float32([1])[0:0], "c": np.array(True)}, {"k": "é"}
    )
    header = (
        '{"__metadata__":{"k":"é"},"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},'
        '"b":{"dtype":"I16","shape":[1,2],"data_offsets":[0,4]},"c":{"dtype":"BOOL","shape":[],"data_offsets":[4,5]}}'
    ).encode()
    assert path.read_bytes() == struct.pack("<Q", 192) + header + b" " * 4 + b"\1\0\2\0\1"


@given(contents(), st.dictionaries(WORDS, WORDS, max_size=1))
def test_the_official_library_writes_the_same_bytes(path, made, metadata):
    official = pytest.importorskip("safetensors.numpy")
    _, tensors = made
    write_safetensors(path, tensors, metadata)
    assert path.read_bytes() == official.save(tensors, metadata or None)


@given(contents(), st.dictionaries(WORDS, WORDS, max_size=3))
def test_the_official_library_reads_the_same_arrays(path, made, metadata):
    official = pytest.importorskip("safetensors")
    codes, tensors = made
    write_safetensors(path, tensors, metadata)
    found = {
        name: (e["dtype"], tuple(e["shape"]), bytes(e["data"])) for name, e in official.deserialize(path.read_bytes())
    }
    assert found == {name: (codes[name], x.shape, x.tobytes()) for name, x in tensors.items()}
    with official.safe_open(path, "numpy") as file:
        assert (file.metadata() or {}) == metadata


def raw(header, data=b""):
    """A file with this header, whatever it says."""
    text = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text)) + text + data


def x(shape=(2, 3), offsets=(0, 24), dtype="F32", **more):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def test_arrays_may_stand_in_any_order_and_unaligned(path):
    header = {"late": x([1], [3, 7]), "early": x([3], [0, 3], "U8"), "none": x([0, 9], [3, 3])}
    path.write_bytes(raw(header, b"abc" + struct.pack("<f", 2.5)))
    tensors = read_safetensors(path).tensors
    assert list(tensors) == ["early", "none", "late"] and tensors["none"].shape == (0, 9)
    assert bytes(tensors["early"]) == b"abc" and tensors["late"] == 2.5 and tensors["late"].flags.aligned


DATA = bytes(24)
NATURALS = "tensor 'x' must have a shape of at most 32 integers ≥ 0 with a product below 2^60, got"
OFFSETS = "tensor 'x' must have two integers ≥ 0 as offsets, got"
KEYS = "tensor 'x' must have dtype, shape, data_offsets and nothing else, got"
WRONG = {
    "empty file": (b"", "the file must have at least 8 bytes, got 0"),
    "seven bytes": (b"\2" + bytes(6), "the file must have at least 8 bytes, got 7"),
    "header beyond the file": (struct.pack("<Q", 9) + b"{}", "the header must have at most 2 bytes, got a length of 9"),
    "header of 2^64-1": (
        b"\xff" * 8 + b"{}",
        "the header must have at most 2 bytes, got a length of 18446744073709551615",
    ),
    "no header": (bytes(8), "the header must begin with {, got b''"),
    "space first": (raw(" {}"), "the header must begin with {, got b' '"),
    "not an object": (raw("[1]"), "the header must begin with {, got b'['"),
    "not UTF-8": (raw(b'{"\xff":1}'), "the header must be JSON in UTF-8: 'utf-8' codec can't decode byte 0xff"),
    "UTF-16": (raw("{}".encode("utf-16-le")), "the header must be JSON in UTF-8: "),
    "not JSON": (raw("{'x': 1}"), "the header must be JSON in UTF-8: Expecting property name"),
    "more after JSON": (raw("{}{}"), "the header must be JSON in UTF-8: Extra data"),
    "NUL padding": (raw("{}\0"), "the header must be JSON in UTF-8: Extra data"),
    "NaN": (raw('{"x": NaN}'), "the header must be JSON in UTF-8: NaN is not a number of JSON"),
    "-Infinity": (raw('{"x": -Infinity}'), "the header must be JSON in UTF-8: -Infinity is not a number of JSON"),
    "an endless integer": (
        raw('{"x": %s}' % ("9" * 5000)),
        "the header must be JSON in UTF-8: an integer must have at most 4300 characters, got 5000",
    ),
    "a name twice": (raw('{"y": 1, "x": 1, "x": 2}'), "the header must be JSON in UTF-8: the key 'x' occurs twice"),
    "dtype twice": (
        raw('{"x": {"dtype": 1, "dtype": 2}}'),
        "the header must be JSON in UTF-8: the key 'dtype' occurs twice",
    ),
    "metadata null": (raw({"__metadata__": None}), "the metadata must map str to str, got None"),
    "metadata a list": (raw({"__metadata__": ["a"]}), "the metadata must map str to str, got ['a']"),
    "metadata of integers": (raw({"__metadata__": {"a": 1}}), "the metadata must map str to str, got {'a': 1}"),
    "half a character": (raw({"\ud800": x()}, DATA), "names and metadata must be Unicode text, got '\\ud800'"),
    "half a word": (raw({"__metadata__": {"a": "\udfff"}}), "names and metadata must be Unicode text, got '\\udfff'"),
    "entry a list": (raw({"x": ["F32", [6], [0, 24]]}, DATA), f"{KEYS} ['F32', [6], [0, 24]]"),
    "no offsets": (raw({"x": {"dtype": "F32", "shape": []}}, DATA), f"{KEYS} {{'dtype': 'F32', 'shape': []}}"),
    "a key too many": (raw({"x": x(strides=[3, 1])}, DATA), f"{KEYS} a value of type dict"),
    "dtype unknown": (
        raw({"x": x(dtype="F8_E4M3")}, DATA),
        f"tensor 'x' must have one of the dtypes {', '.join(DTYPES)}, got 'F8_E4M3'",
    ),
    "dtype a list": (
        raw({"x": x(dtype=["F32"])}, DATA),
        f"tensor 'x' must have one of the dtypes {', '.join(DTYPES)}, got ['F32']",
    ),
    "shape a number": (raw({"x": x(6)}, DATA), f"{NATURALS} 6"),
    "shape negative": (raw({"x": x([-2, -3])}, DATA), f"{NATURALS} [-2, -3]"),
    "shape of floats": (raw({"x": x([6.0])}, DATA), f"{NATURALS} [6.0]"),
    "shape of booleans": (raw({"x": x([True, 6])}, DATA), f"{NATURALS} [True, 6]"),
    "33 axes": (raw({"x": x([6] + 32 * [1])}, DATA), f"{NATURALS} a value of type list"),
    "product wraps to 6": (raw({"x": x([2**32, 2**32, 6])}, DATA), f"{NATURALS} [4294967296, 4294967296, 6]"),
    "nothing, but huge": (raw({"x": x([0, 2**31, 2**31], [0, 0])}), f"{NATURALS} [0, 2147483648, 2147483648]"),
    "offsets a number": (raw({"x": x(offsets=24)}, DATA), f"{OFFSETS} 24"),
    "offsets of floats": (raw({"x": x(offsets=[0, 24.0])}, DATA), f"{OFFSETS} [0, 24.0]"),
    "offsets negative": (raw({"x": x(offsets=[-24, 0])}, DATA), f"{OFFSETS} [-24, 0]"),
    "three offsets": (raw({"x": x(offsets=[0, 8, 24])}, DATA), f"{OFFSETS} [0, 8, 24]"),
    "beyond the data": (
        raw({"x": x([32], [0, 128])}, bytes(96)),
        "tensor 'x' must have offsets within the data (0 … 96), got [0, 128]",
    ),
    "backwards": (
        raw({"x": x(offsets=[24, 0])}, DATA),
        "tensor 'x' must have offsets within the data (0 … 24), got [24, 0]",
    ),
    "not the size of the shape": (
        raw({"x": x([2, 2])}, DATA),
        "tensor 'x' must have 16 bytes for F32 of shape [2, 2], got 24",
    ),
    "overlap": (
        raw({"w": x([4], [0, 16]), "x": x([4], [8, 24])}, DATA),
        "tensor 'x' must begin where the one before it ends, at 16, got [8, 24]",
    ),
    "the same twice": (
        raw({"w": x(), "x": x()}, DATA),
        "tensor 'x' must begin where the one before it ends, at 24, got [0, 24]",
    ),
    "a hole": (
        raw({"w": x([2], [0, 8]), "x": x([2], [16, 24])}, DATA),
        "tensor 'x' must begin where the one before it ends, at 8, got [16, 24]",
    ),
    "a hole at the start": (
        raw({"x": x([4], [8, 24])}, DATA),
        "tensor 'x' must begin where the one before it ends, at 0, got [8, 24]",
    ),
    "trailing bytes": (raw({"x": x()}, DATA + b"!"), "the tensors must fill all 25 bytes of data, got 24"),
    "no tensors, but data": (raw("{}", DATA), "the tensors must fill all 24 bytes of data, got 0"),
    "a boolean of 7": (raw({"x": x([2], [0, 2], "BOOL")}, b"\1\7"), "tensor 'x' must hold booleans as 0 and 1, got 7"),
}


@pytest.mark.parametrize("case", WRONG)
def test_refused(case, path):
    data, message = WRONG[case]
    path.write_bytes(data)
    with pytest.raises(ValueError) as caught:
        read_safetensors(path)
    assert str(caught.value).startswith(f"read_safetensors: {path}: {message}")


def test_a_message_stays_short(path):
    path.write_bytes(raw({10**6 * "x": 10**6 * "y"}))
    with pytest.raises(ValueError, match=r"tensor 'x{200}' must have .* got a value of type str$"):
        read_safetensors(path)


def test_a_header_may_be_long_but_not_longer(path, monkeypatch):
    write_safetensors(path, {}, {"a": "b" * 75})
    assert path.stat().st_size == 8 + 104
    monkeypatch.setattr(files, "LONGEST_HEADER", 104)
    assert read_safetensors(path).metadata == {"a": "b" * 75}
    monkeypatch.setattr(files, "LONGEST_HEADER", 103)
    with pytest.raises(ValueError, match="the header must have at most 103 bytes, got a length of 104"):
        read_safetensors(path)
    with pytest.raises(ValueError, match="write_safetensors: the header must have at most 103 bytes, got 104"):
        write_safetensors(path, {}, {"a": "b" * 75})


def test_deep_nesting(path):
    depth = sys.getrecursionlimit()
    said = set()
    for n in (*range(depth - 120, depth + 5), 10**5):
        for deep in ("[" * n + "]" * n, '{"x":' * n + "1" + "}" * n):
            path.write_bytes(raw(json.dumps({"x": x("deep")}).replace('"deep"', deep), DATA))
            with pytest.raises(ValueError) as caught:
                read_safetensors(path)
            said.add(str(caught.value).removeprefix(f"read_safetensors: {path}: "))
    shallow = {f"{NATURALS} a value of type {kind}" for kind in ("list", "dict")}
    assert said == {*shallow, "the header must be JSON with fewer nested levels, got more than can be read"}


def test_a_lie_about_the_size_allocates_nothing(path, monkeypatch):
    monkeypatch.setattr(np, "fromfile", lambda *args: pytest.fail("memory was taken before the sizes were checked"))
    for shape in ([2**59], [2**30, 2**29], [10**12]):
        path.write_bytes(raw({"w": x([1], [0, 4]), "x": x(shape, [4, 4 + 4 * math.prod(shape)])}, DATA))
        with pytest.raises(ValueError, match="tensor 'x' must have offsets within the data"):
            read_safetensors(path)


@pytest.fixture(scope="module")
def small():
    header = {
        "__metadata__": {"k": "v"},
        "x": x([1, 2], [0, 8]),
        "b": x([], [8, 9], "BOOL"),
        "h": x([1], [9, 11], "BF16"),
    }
    return raw(json.dumps(header, separators=(",", ":")) + "  ", bytes(11))


def outcome(path, data):
    """Contents or ValueError: anything else is a failure of the test."""
    path.write_bytes(data)
    try:
        tensors, metadata, dtypes = read_safetensors(path)
    except ValueError as error:
        assert str(error).startswith(f"read_safetensors: {path}: ")
        return "refused"
    assert tensors.keys() == dtypes.keys() and all(isinstance(word, str) for pair in metadata.items() for word in pair)
    assert sum(a.nbytes // (2 if dtypes[name] == "BF16" else 1) for name, a in tensors.items()) == 11
    return "read"


def test_damage_at_every_byte_of_the_header(path, small):
    assert outcome(path, small) == "read"
    seen = [
        outcome(path, small[:i] + bytes([new]) + small[i + 1 :])
        for i in range(len(small) - 11)
        for new in {small[i] ^ 1, small[i] ^ 0x80, *b'\0 "0,[]}'} - {small[i]}
    ]
    assert seen.count("refused") > 5 * seen.count("read") > 0


def test_truncated_or_shifted_at_every_byte(path, small):
    assert {outcome(path, small[:i]) for i in range(len(small))} == {"refused"}
    assert {outcome(path, small[:i] + small[i + 1 :]) for i in range(len(small))} == {"refused"}
    assert {outcome(path, small[:i] + b"0" + small[i:]) for i in range(len(small))} == {"refused"}


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_at_all(path, data, framed):
    path.write_bytes(raw(b"{" + data) if framed else data)
    with pytest.raises(ValueError, match=r"^read_safetensors: "):
        read_safetensors(path)


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, problem in (("none", "no such file"), ("pipe", "not a regular file"), (".", "not a regular file")):
        with pytest.raises(OSError) as caught:
            read_safetensors(tmp_path / name)
        assert str(caught.value) == f"read_safetensors: cannot read {tmp_path / name}: {problem}"


@pytest.mark.parametrize(
    ("error", "tensors", "metadata", "message"),
    [
        (TypeError, [np.zeros(2)], {}, "`tensors` must be a dict, got list"),
        (TypeError, {"x": [1.0]}, {}, "tensor 'x' must be a NumPy array, got list"),
        (TypeError, {"x": np.float64(1)}, {}, "tensor 'x' must be a NumPy array, got float64"),
        (
            TypeError,
            {"x": np.zeros(2, complex)},
            {},
            f"tensor 'x' must have one of the dtypes {', '.join(DTYPES.values())}, got complex128",
        ),
        (
            TypeError,
            {"x": np.zeros(2, object)},
            {},
            f"tensor 'x' must have one of the dtypes {', '.join(DTYPES.values())}, got object",
        ),
        (
            TypeError,
            {"x": np.zeros(2, "f4,f4")},
            {},
            f"tensor 'x' must have one of the dtypes {', '.join(DTYPES.values())}, got [(",
        ),
        (ValueError, {1: np.zeros(2)}, {}, "the name of a tensor must be a str other than '__metadata__', got 1"),
        (
            ValueError,
            {"__metadata__": np.zeros(2)},
            {},
            "the name of a tensor must be a str other than '__metadata__', got '__metadata__'",
        ),
        (ValueError, {"\ud800": np.zeros(2)}, {}, "names and metadata must be Unicode text, got '\\ud800'"),
        (ValueError, {}, {"a": "\udfff"}, "names and metadata must be Unicode text, got '\\udfff'"),
        (ValueError, {}, {"a": 1}, "the metadata must map str to str, got {'a': 1}"),
        (ValueError, {}, {1: "a"}, "the metadata must map str to str, got {1: 'a'}"),
        (ValueError, {}, None, "the metadata must map str to str, got None"),
    ],
)
def test_not_written(error, tensors, metadata, message, tmp_path):
    with pytest.raises(error) as caught:
        write_safetensors(tmp_path / "x", tensors, metadata)
    assert str(caught.value).startswith(f"write_safetensors: {message}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("where", ["", "-", "/dev/null", "/dev/stdout", "/", "/no/such/folder/x"])
def test_no_place_for_a_file(where):
    problem = "no such folder" if "such" in where else "not a regular file"
    with pytest.raises(OSError) as caught:
        write_safetensors(where, {}, {})
    assert str(caught.value) == f"write_safetensors: cannot write {where}: {problem}"


def test_a_folder_that_is_not_writable(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *args: False)  # root may write anywhere
    with pytest.raises(OSError) as caught:
        target_file("--out", tmp_path / "x")
    assert str(caught.value) == f"--out: cannot write {tmp_path / 'x'}: the folder is not writable"


def full_disk(*args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_memory(*args):
    raise MemoryError


@pytest.mark.parametrize(
    ("where", "name", "failure", "error"),
    [
        (os, "replace", full_disk, OSError),
        (np, "ascontiguousarray", full_disk, OSError),
        (np, "ascontiguousarray", no_memory, MemoryError),
    ],
)
@pytest.mark.parametrize("before", [True, False], ids=["old file", "no file"])
def test_a_failed_write_leaves_no_trace(where, name, failure, error, before, tmp_path, monkeypatch):
    path = tmp_path / "x"
    if before:
        write_safetensors(path, {"x": np.arange(3)}, {})
    old = {p: p.read_bytes() for p in tmp_path.iterdir()}
    monkeypatch.setattr(where, name, failure)
    with pytest.raises(error) as caught:
        write_safetensors(path, {"x": np.arange(9)}, {})
    if error is OSError:
        assert str(caught.value) == f"write_safetensors: cannot write {path}: No space left on device"
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == old


def test_the_draft_stands_in_the_same_folder_under_another_name(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")
    with replacing("--out", path, "x") as file:
        file.write("né")
        assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 2
    assert path.read_bytes() == "né".encode() and list(tmp_path.iterdir()) == [path]


def test_an_error_without_a_reason_of_the_system(tmp_path):
    with pytest.raises(OSError, match=r"^--out: cannot write .*: half way$"), replacing("--out", tmp_path / "x"):
        raise OSError("half way")
    assert not list(tmp_path.iterdir())


def test_through_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    link, path = tmp_path / "link", tmp_path / "there" / "x"
    link.symlink_to(path)
    write_safetensors(link, {"x": np.arange(3)}, {})
    assert link.is_symlink() and list(read_safetensors(path).tensors["x"]) == [0, 1, 2]
