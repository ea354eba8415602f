"""Files that ask for much, or that are no files: refused in a sentence, before the work is done."""

from __future__ import annotations

import io
import json
import os
import struct
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refimpl as ri
from refimpl import Compression, Config, Float, load, random_model, save
from refimpl.budget import MEMORY, budget, number, spend
from refimpl.errors import brief, printable
from refimpl.files import checkpoint, disk, safetensors
from refimpl.files.models import read_model
from refimpl.files.models.gpt2 import read_gpt2, read_nano
from refimpl.files.models.llama import read_llama, read_llama2c
from refimpl.files.models.rwkv_file import read_rwkv
from refimpl.files.safetensors import read_safetensors, write_safetensors
from refimpl.files.tokenizers import read_tokenizer
from tests.helpers.assertions import says

F = Float()
READERS: dict[str, Any] = {"load": load, "read_model": read_model, "read_tokenizer": read_tokenizer}
READERS |= {"read_safetensors": read_safetensors}
READERS |= {
    read.__name__: lambda path, read=read: read(path, system=F)
    for read in (read_gpt2, read_nano, read_llama, read_llama2c, read_rwkv)
}
WRITERS: dict[str, Any] = {
    "save": lambda path: save(path, random_model(F, Config(1, 2), 0)),
    "write_safetensors": lambda path: write_safetensors(path, {"x": np.ones(2)}, {}),
}


# Budget


def test_a_budget_is_one_for_all_that_a_file_asks_for() -> None:
    with budget("load", 1):
        spend("one", memory=MEMORY // 2)
        spend("two", memory=MEMORY // 2, operations=10**9)
        with says(ValueError, "three must need at most 1e9 bytes of memory, got about 1e9 in all"):
            spend("three", memory=1)
    with budget("load", 2):
        spend("one", memory=2 * MEMORY)
    with budget("load", 0):
        spend("nothing")
    spend("outside of a block each request is for itself", memory=MEMORY)
    spend("outside of a block each request is for itself", memory=MEMORY)


def test_the_bytes_of_a_file_pay_for_some_of_it() -> None:
    with budget("load", 0, paid=1000):
        spend("one", memory=4000, operations=10_000)
        with says(ValueError, "two must need at most 10000 operations, got about 10001 in all"):
            spend("two", operations=1)


def test_the_advice_is_enough() -> None:
    asked = 37 * MEMORY + 5
    with pytest.raises(ValueError, match=r"if you trust the file, raise `limit` to 38$"):
        spend("much", memory=asked)
    with budget("load", 38):
        spend("much", memory=asked)


@pytest.mark.parametrize("limit", [-1, float("nan"), float("inf"), True, "2", None])
def test_limits_that_are_none(limit: Any, tmp_path: Path) -> None:
    save(tmp_path / "m", random_model(F, Config(1, 2), 0))
    with pytest.raises(ValueError, match=r"^read_safetensors: `limit` must be a finite number ≥ 0, got"):
        load(tmp_path / "m", limit=limit)


# Small files, large costs


def drawn_from_a_seed(path: Path, r: int, d: int, kind: str) -> int:
    """A file whose one memory has r features of keys of width d, and its size."""
    config = Config(1, 1, d=d, m=1, phi="softmax", norm="none", vocabulary=2)
    model = ri.convert(random_model(F, config, 0), [1], by=Compression(kind, d))
    memory = model.biases[0].memories[0]
    arrays = {f"layers.0.{name}": x for name, x in model.biases[0].arrays().items()}
    arrays |= {"layers.0.b_KV": np.ones((1, r, 1)), "layers.0.b_scale": np.zeros((1, r))}
    maps = json.dumps([[memory.metadata()]])
    about = {"position": "1", "prompts": "[1]", "digest": ri.digest(model), "maps": maps}
    about |= {"biases": checkpoint.fingerprint(about, arrays), "config": checkpoint.config_text("save", config)}
    about |= {"format": checkpoint.FORMAT, "system": "float64"}
    write_safetensors(path, dict(model.weights) | arrays, about)
    return path.stat().st_size


@pytest.mark.parametrize(("kind", "r", "d"), [("positive", 20_000, 4_000), ("orthogonal", 900, 900)])
def test_directions_that_nobody_paid_for_are_not_drawn(
    kind: str, r: int, d: int, tmp_path: Path, monkeypatch: Any
) -> None:
    size = drawn_from_a_seed(tmp_path / "m", r, d, kind)
    assert size < 10**6
    monkeypatch.setattr(ri.attention.random_features, "draw_directions", lambda *args: pytest.fail("drawn"))
    with pytest.raises(ValueError, match=rf"^load: .*m: layer 0: {r} directions of width {d}, .*raise `limit` to \d+$"):
        load(tmp_path / "m")


def test_a_limit_allows_directions(tmp_path: Path) -> None:
    drawn_from_a_seed(tmp_path / "m", 64, 8, "positive")
    with says(ValueError, "`omega` must be the digest of the directions"):  # they were drawn
        load(tmp_path / "m")
    with says(ValueError, "raise `limit` to 1"):
        load(tmp_path / "m", limit=0)


def count_of_names_looked_at(layers: int, monkeypatch: Any) -> int:
    """How many names `choose` looked at in making a model of so many layers."""
    from refimpl.model import transformer

    looked = Counter[str]()

    class Known(dict[str, Any]):
        def __iter__(self) -> Any:
            looked["names"] += len(self)
            return super().__iter__()

        def __contains__(self, name: object) -> bool:
            looked["names"] += 1
            return super().__contains__(name)

    old = transformer.choose
    with monkeypatch.context() as patch:
        patch.setattr(transformer, "choose", lambda who, what, name, known: old(who, what, name, Known(known)))
        random_model(F, Config(layers, 1, norm="none"), 0)
    return looked["names"]


def test_the_work_of_loading_grows_with_the_number_of_layers_and_not_with_its_square(monkeypatch: Any) -> None:
    assert count_of_names_looked_at(40, monkeypatch) == 2 * count_of_names_looked_at(20, monkeypatch)


TREES = {
    "lists": b"[" + b"[]," * 30_000 + b"[]]",
    "objects": b"[" + b"{}," * 30_000 + b"{}]",
    "numbers": b"[" + b"300," * 30_000 + b"1]",
    "floats": b"[" + b"1.5," * 30_000 + b"1]",
    "words": b"[" + b",".join(b'"%d"' % i for i in range(20_000)) + b"]",
    "one object": b"{" + b",".join(b'"%d":%d' % (i, i) for i in range(20_000)) + b"}",
    "small objects": b"[" + b",".join(b'{"a":[1.5]}' for i in range(20_000)) + b"]",
    "ascii": b'"' + b"x" * 10**6 + b'"',
    "wide": b'"' + "😀".encode() + b"x" * 10**6 + b'"',
}


@pytest.mark.parametrize("tree", TREES)
def test_the_memory_of_json_is_no_more_than_what_is_spent(tree: str, monkeypatch: Any) -> None:
    spent: list[int] = []
    monkeypatch.setattr(disk, "spend", lambda what, memory: spent.append(memory))
    tracemalloc.start()
    disk.parse_json("the file", TREES[tree])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0.1 * spent[0] < peak <= spent[0]


def test_a_header_of_many_brackets_is_not_parsed(tmp_path: Path, monkeypatch: Any) -> None:
    header = b'{"x":[' + b"[]," * 5_000_000 + b"[]]}"
    (tmp_path / "m").write_bytes(struct.pack("<Q", len(header)) + header)
    monkeypatch.setattr(json, "loads", lambda *args, **options: pytest.fail("parsed"))
    for read in (read_safetensors, read_model, load):
        with says(ValueError, "m: the header: its JSON must need at most 1e9 bytes of memory, got about 1e9 in all"):
            read(tmp_path / "m")


def test_the_header_of_a_large_mixture_of_experts_is_parsed(tmp_path: Path) -> None:
    """A hundred thousand tensors, as the largest published models have them: 14 MB of header."""
    entry = {"dtype": "BF16", "shape": [0, 7168], "data_offsets": [0, 0]}
    names = (f"model.layers.{i}.mlp.experts.{j}.down_proj.weight" for i in range(61) for j in range(1640))
    header = json.dumps(dict.fromkeys(names, entry)).encode()
    assert len(header) > 10_000_000
    (tmp_path / "m").write_bytes(struct.pack("<Q", len(header)) + header)
    assert len(read_safetensors(tmp_path / "m").tensors) == 61 * 1640


def test_a_header_of_very_many_tensors_is_not_parsed(tmp_path: Path, monkeypatch: Any) -> None:
    """Each of them costs Python more than NumPy: a limit may allow it."""
    monkeypatch.setattr(safetensors, "FREE_TENSORS", 0)
    monkeypatch.setattr(safetensors, "TENSOR_OPERATIONS", 10**4 * safetensors.TENSOR_OPERATIONS)
    names = (f"x{i}" for i in range(20))
    write_safetensors(tmp_path / "m", dict.fromkeys(names, np.ones(0)), {"format": "refimpl"})
    assert len(read_safetensors(tmp_path / "m", limit=2).tensors) == 20
    monkeypatch.setattr(json, "loads", lambda *args, **options: pytest.fail("parsed"))
    for read in (read_safetensors, read_model, load):
        with says(ValueError, "m: the header: its tensors must need at most 2e9 operations, got about 3.3e9 in all"):
            read(tmp_path / "m")


def test_a_file_of_no_known_format_is_told_by_its_header(tmp_path: Path, monkeypatch: Any) -> None:
    with says(OSError, "read_safetensors: cannot read"):
        safetensors.names_in_header(tmp_path / "missing")
    write_safetensors(tmp_path / "m", {"x": np.ones(3), "y": np.ones(0)}, {})
    monkeypatch.setattr(safetensors, "read_array", lambda *args: pytest.fail("read"))
    with says(ValueError, "got tensors x, y"):
        read_model(tmp_path / "m")


def test_maps_may_be_long_but_not_longer(tmp_path: Path, monkeypatch: Any) -> None:
    drawn_from_a_seed(tmp_path / "m", 64, 8, "positive")
    monkeypatch.setattr(checkpoint, "LONGEST_MAPS", 40)
    with says(ValueError, "m: `maps` must have at most 40 characters, got "):
        load(tmp_path / "m")


# What is no path, and what is no file


@pytest.mark.parametrize("name", [*READERS, *WRITERS])
@pytest.mark.parametrize(
    "path", [0, 1, True, None, b"model", 1.5, ["m"], io.BytesIO(b"{}")], ids=lambda x: type(x).__name__
)
def test_only_paths_are_paths(name: str, path: Any) -> None:
    with pytest.raises(TypeError) as caught:
        (READERS | WRITERS)[name](path)
    assert str(caught.value) == f"{name}: `path` must be a str or a Path, got {type(path).__name__}"


@pytest.mark.parametrize("name", [*READERS, *WRITERS])
def test_no_path_has_a_null_character(name: str) -> None:
    with says(ValueError, f"{name}: `path` must have no null character, got 'a\\x00b'"):
        (READERS | WRITERS)[name]("a\0b")


class Place(os.PathLike[Any]):
    def __init__(self, name: Any) -> None:
        self.name = name

    def __fspath__(self) -> Any:
        return self.name


def test_other_kinds_of_path(tmp_path: Path) -> None:
    save(Place(str(tmp_path / "m")), random_model(F, Config(1, 2), 0))
    assert load(Place(str(tmp_path / "m"))).config == Config(1, 2)
    with says(TypeError, "load: `path` must be a str or a Path, got Place"):
        load(Place(b"m"))


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("pipe", "not a regular file"),
        ("folder", "not a regular file"),
        ("loop", "too many levels of symbolic links"),
        ("missing", "no such file"),
        ("/dev/zero", "not a regular file"),
        ("beneath a file", "not a directory"),
    ],
)
def test_what_is_no_file(name: str, kind: str, problem: str, tmp_path: Path) -> None:
    path = Path(kind) if kind.startswith("/") else tmp_path / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
        if name == "read_tokenizer":
            problem = "the folder must hold encoder.json and vocab.bpe"
        if name == "read_model":
            path, problem = path / "model.safetensors", "no such file"
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "beneath a file":
        (tmp_path / "file").write_bytes(b"")
        path = tmp_path / "file" / "m"
    who = {"load": "read_safetensors", "read_gpt2": "read_safetensors", "read_llama": "read_safetensors"}.get(
        name, name
    )
    with pytest.raises(OSError) as caught:
        READERS[name](path if name != "read_model" or kind != "folder" else path.parent)
    assert str(caught.value).startswith(f"{who}: cannot read {path}: {problem}")


@pytest.mark.skipif(not os.path.exists("/proc/kallsyms"), reason="no /proc")
def test_files_longer_than_they_say() -> None:
    """A file of /proc has size 0, and is not read on and on."""
    for name, read in READERS.items():
        with pytest.raises((ValueError, OSError)) as caught:
            read("/proc/kallsyms")
        assert "/proc/kallsyms: " in str(caught.value), name
    with says(ValueError, "the file must have at most 100 bytes, got 101 or more"):
        disk.read_bytes("read", "/proc/kallsyms", 100)


def test_files_that_may_not_be_read(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / "m").write_bytes(b"")
    (tmp_path / "m").chmod(0)
    if os.geteuid() == 0:  # root reads everything, so be nobody
        for folder in (x for x in (tmp_path, *tmp_path.parents) if "pytest-" in str(x)):
            folder.chmod(0o755)
        os.seteuid(65534)
        request.addfinalizer(lambda: os.seteuid(0))
    for name, read in READERS.items():
        with says(OSError, f"{tmp_path}/m: permission denied"):
            read(tmp_path / "m")
        assert name


# What is printed


def test_what_does_not_print_is_escaped() -> None:
    assert printable("\x1b[2J é\n\u202e\ud800") == "\\x1b[2J é\\n\\u202e\\ud800"
    assert printable("x" * 200) == "x" * 200 and printable("x" * 201) == "x" * 200 + "…"
    assert printable("\n" * 150) == "\\n" * 100 + "…"


def test_values_whose_text_is_too_long_are_not_made_to_text() -> None:
    class Long(list[Any]):
        def __repr__(self) -> str:
            pytest.fail("made to text")

    deep: list[Any] = []
    for _ in range(10**5):
        deep = [deep]
    assert brief(Long([1] * 41)) == "a value of type Long" and brief(deep) == "a value of type list"
    assert brief(10**5000) == "a value of type int" and brief([10**5000]) == "a value of type list"
    while deep:
        deep = deep[0]


CODE = "\x1b]0;owned\x07"


def hostile_names(folder: Path) -> dict[str, Any]:
    """Files that hold a code of terminals wherever a text can stand, and their readers."""
    model = ri.convert(random_model(F, Config(1, 2, vocabulary=3), 0), [1])
    save(folder / "ours", model)
    tensors, metadata, _ = read_safetensors(folder / "ours")
    config = json.loads(metadata["config"])

    def ours(name: str, arrays: dict[str, Any] | None = None, **words: str) -> None:
        write_safetensors(folder / name, tensors | (arrays or {}), metadata | words)

    ours("tensor", {CODE: np.ones(1)})
    ours("digest", digest=CODE)
    ours("key", config=json.dumps(config | {CODE: 1}))
    ours("phi", config=json.dumps(config | {"phi": CODE}))
    ours("format", format="refimpl" + CODE)
    ours("system", system=CODE)
    ours("bias", {"layers.0.b_KV" + CODE: np.ones(1)})
    write_safetensors(folder / "others", {CODE: np.ones(1)}, {})
    write_safetensors(folder / "gpt2", {"wte.weight": np.ones((2, 64), np.float32), CODE: np.ones(1)}, {})
    (folder / "nano").write_text(json.dumps({"config": {}, CODE: 1}))
    (folder / "twice").write_text('{"config": {}, "\\u001b]": 1, "\\u001b]": 1}')
    head = struct.pack("<6I", 0x67676D66, 101, 1, 1, 1, 0) + bytes(600)
    (folder / "rwkv").write_bytes(head[:24] + struct.pack("<4I", 1, len(CODE), 0, 1) + CODE.encode() + head[24:])
    (folder / "start").write_bytes(CODE.encode() * 9)
    (folder / "tokenizer").write_bytes(struct.pack("<ifi", 99, 0, len(CODE)) + CODE.encode())
    (folder / "encoder.json").write_text(json.dumps({CODE: 0}))
    (folder / "vocab.bpe").write_text(CODE)
    names = ("tensor", "digest", "key", "phi", "format", "system", "bias", "others", "gpt2", "nano", "twice", "rwkv")
    found: dict[str, Any] = dict.fromkeys((*names, "start"), read_model)
    return found | {"tokenizer": read_tokenizer, "encoder.json": read_tokenizer}


def test_no_code_of_terminals_is_in_any_message(tmp_path: Path) -> None:
    for name, read in hostile_names(tmp_path).items():
        with pytest.raises((ValueError, TypeError)) as caught:
            read(tmp_path / name)
        said = str(caught.value)
        assert said.isprintable() and str(tmp_path / name) in said and len(said) < 800, said


# A loaded past is the past that was saved, however long


@pytest.mark.parametrize("kind", ["cache", "memory", "state", "carried"])
def test_a_long_past_comes_back_whole(kind: str, tmp_path: Path) -> None:
    """More than a thousand tokens: the loaded model answers as the prompted one does."""
    config: Any = Config(2, 8, 2, None, 4, 4, vocabulary=11)
    if kind in ("cache", "memory"):
        config = Config(2, 8, 2, None, 4, 4, "softmax", vocabulary=11)
    elif kind == "carried":
        config = ri.Rwkv("5.2", 2, 8, 2, 6, 11)
    model = random_model(F, config, 3)
    prompt = np.random.default_rng(0).integers(0, 11, 1100)
    text = [3, 1, 4]
    by = Compression("clusters", 1100) if kind == "memory" else None
    converted = ri.convert(model, prompt, by=by, restart=False)
    save(tmp_path / "biases", converted, biases_only=True)
    loaded = load(tmp_path / "biases", model)
    assert loaded.position == converted.position == 1100 and loaded.prompts == (1100,)
    for a, b in zip(loaded.biases or (), converted.biases or (), strict=True):
        assert all(np.array_equal(x, b.arrays()[name]) for name, x in a.arrays().items())
    assert np.array_equal(loaded(text), converted(text))
    if kind != "memory":  # which is not exact
        want, short = model([*prompt, *text])[1100:], model([*prompt[:1000], *text])[1000:]
        # What a hundred hidden tokens would change is a million times what rounding does.
        assert 10**6 * np.abs(loaded(text) - want).max() < np.abs(short - want).max()


def test_numbers_in_messages():
    shown = {0: "0", 9_999_999: "9999999", 10**7: "1e7", 25 * 10**9: "2.5e10", 10**30 - 10**28: "9.9e29"}
    assert {n: number(n) for n in shown} == shown and number(10**30) == number(10**4000) == "over 1e30"


def test_a_budget_to_the_last_byte():
    """At `limit` 2 and 100 bytes: 2·10⁹ + 400 bytes of memory, 4·10⁹ + 1000 operations."""
    for kind, allowed in (("memory", 2 * 10**9 + 400), ("operations", 4 * 10**9 + 1000)):
        with budget("f", 2, paid=100):
            spend("a", **{kind: allowed - 1})
            spend("a", **{kind: 1})
            with pytest.raises(ValueError, match=r"^a must need at most .*; .*raise `limit` to 3$"):
                spend("a", **{kind: 1})
    with pytest.raises(ValueError, match=r"^a must need at most 1e9 bytes of memory, got about 1e9 in all; .* to 2$"):
        spend("a", memory=10**9 + 1)
    spend("a", memory=10**9, operations=2 * 10**9)


def test_features_that_nobody_paid_for_are_not_made(tmp_path: Path) -> None:
    """The name of a map is short, and its 17⁶ features would need gigabytes."""
    config = ri.Config(layers=2, width=32, heads=2, d=16, m=3, vocabulary=7, phi="polynomial(6)", norm="none")
    ri.save(tmp_path / "m", ri.random_model(ri.Float(), config, seed=0))
    with pytest.raises(ValueError, match=r"the 2\.4e7 features of a key must need at most 1e9 bytes of memory, got"):
        ri.load(tmp_path / "m")
    assert ri.load(tmp_path / "m", limit=1e300).config == config
