"""--prompt @FILE: hostile .npy files, texts without end, and what is no file."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refimpl import Config, Float, random_model, save
from refimpl.budget import budget
from refimpl.cli.main import main
from refimpl.cli.prompt import TEXT_BYTES, read_prompt
from refimpl.files.tokenizers import ByteTokenizer
from tests.helpers.fuzz import llama_tokenizer

IDS = random_model(Float(), Config(1, 2, vocabulary=5), 0)
VECTORS = random_model(Float(), Config(1, 2), 0)


def npy(
    header: str | bytes, data: bytes = bytes(32), version: tuple[int, int] = (1, 0), length: int | None = None
) -> bytes:
    text = header.encode() if isinstance(header, str) else header
    width = "<H" if version == (1, 0) else "<I"
    return b"\x93NUMPY" + bytes(version) + struct.pack(width, len(text) if length is None else length) + text + data


def described(shape: str = "(4,)", descr: str = "'<f8'", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}\n"


NO_NUMBERS = "must be a .npy file of numbers: "
HOSTILE: dict[str, tuple[bytes, str]] = {
    "nothing but magic": (b"\x93NUMPY", NO_NUMBERS),
    "no such version": (npy(described(), version=(9, 9)), NO_NUMBERS),
    "unterminated": (npy(described()[:-3]), NO_NUMBERS),
    "header beyond the file": (npy(described(), length=60000), NO_NUMBERS),
    "header of 4 GB": (npy(described(), version=(2, 0), length=2**32 - 1), NO_NUMBERS),
    "version 3, not UTF-8": (npy(b"{'descr': '\xff'}", version=(3, 0)), NO_NUMBERS),
    "nested parentheses": (npy("(" * 9000), NO_NUMBERS),
    "nested parentheses in a shape": (npy(described("(" * 500 + ")" * 500)), NO_NUMBERS),
    "nested brackets": (npy("[" * 199 + "]" * 199), NO_NUMBERS),
    "minus signs": (npy("-" * 9000 + "1"), NO_NUMBERS),
    "a huge shape": (npy(described("(10000000000000,)")), NO_NUMBERS),
    "a product beyond 64 bits": (npy(described("(9223372036854775807, 9)")), NO_NUMBERS),
    "a negative size": (npy(described("(-4,)")), NO_NUMBERS),
    "a size of 1.5": (npy(described("(1.5,)")), NO_NUMBERS),
    "a size of a thousand digits": (npy(described(f"({'9' * 1000},)")), NO_NUMBERS),
    "objects": (npy(described(descr="'|O'")), NO_NUMBERS),
    "a call": (npy(described("__import__('os')")), NO_NUMBERS),
    "a code for terminals": (npy("{'\x1b[2J': 1}"), NO_NUMBERS),
    "no dtype": (npy(described(descr="'\x1b[2J'")), NO_NUMBERS),
    "fields": (npy(described("(2,)", "[('\\x1b[2J', '<f8')]")), "must be float64, got [('\\x1b[2J', '<f8')]"),
    "a thousand fields": (
        npy(described("(0,)", str([(f"f{i}", "<f8") for i in range(400)]))),
        "must be float64, got [('f0",
    ),
    "words": (npy(described("(2,)", "'<U1'")), "must be float64, got <U1"),
    "times": (npy(described("(4,)", "'<M8[s]'")), "must be float64, got datetime64[s]"),
    "complex numbers": (npy(described("(2,)", "'<c16'")), "must be float64, got complex128"),
    "nine axes": (
        npy(described("(1, 1, 1, 1, 1, 1, 1, 2, 2)")),
        "must be a .npy file of numbers with at most 8 axes, got 9",
    ),
    "33 axes": (npy(described("(" + "1, " * 33 + ")")), "must be a .npy file of numbers with at most 8 axes, got 33"),
    "70 axes": (npy(described("(" + "1, " * 70 + ")")), NO_NUMBERS),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_arrays(name: str, tmp_path: Path, recwarn: Any) -> None:
    data, message = HOSTILE[name]
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(ValueError) as caught:
        read_prompt(f"@{tmp_path}/x.npy", VECTORS)
    said = str(caught.value)
    assert said.startswith(f"--prompt @{tmp_path}/x.npy: ") and message in said, said
    assert said.isprintable() and len(said) < 400 and not recwarn.list


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f8", ">f8"])
def test_arrays_in_any_order(order: Any, dtype: str, tmp_path: Path) -> None:
    x = np.asarray(np.arange(6.0).reshape(3, 2), dtype, order=order)
    np.save(tmp_path / "x.npy", x)
    read = read_prompt(f"@{tmp_path}/x.npy", VECTORS)
    assert np.array_equal(read, x) and read.dtype == np.float64 and read.dtype.isnative


@pytest.mark.parametrize(("kind", "problem"), [("pipe", "not a regular file"), ("/dev/zero", "not a regular file")])
@pytest.mark.parametrize("flag", ["--prompt", "MODEL", "--replay", "--baked", "--tokenizer"])
def test_no_command_waits_for_a_pipe(flag: str, kind: str, problem: str, tmp_path: Path, capsys: Any) -> None:
    path = kind if kind.startswith("/") else str(tmp_path / "pipe")
    if kind == "pipe":
        os.mkfifo(path)
    save(tmp_path / "m", IDS)
    argv = ["generate", str(tmp_path / "m"), "--prompt", "1", "--tokens", "1"]
    argv = {"MODEL": ["generate", path], "--replay": ["verify", "--replay", path]}.get(flag, argv)
    argv = (
        [*argv, flag, f"@{path}" if flag == "--prompt" else path]
        if flag.startswith("--") and flag != "--replay"
        else argv
    )
    assert main(argv) == 2
    assert f"cannot read {path}: {problem}" in capsys.readouterr().err


def test_a_text_may_be_long_but_not_longer(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "text").write_text("1 " * 500)
    with budget("--prompt", 1000 * TEXT_BYTES / 10**9):
        assert len(read_prompt(f"@{tmp_path}/text", IDS)) == 500
    with (
        budget("--prompt", 999 * TEXT_BYTES / 10**9),
        pytest.raises(ValueError, match="a text of 1000 bytes must need"),
    ):
        read_prompt(f"@{tmp_path}/text", IDS)
    save(tmp_path / "m", IDS)
    argv = ["generate", str(tmp_path / "m"), "--prompt", f"@{tmp_path}/text", "--limit", "4e-5", "--tokens", "1"]
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert f"--prompt @{tmp_path}/text: a text of 1000 bytes must need" in said and "raise --limit to 1" in said
    assert main([*argv[:-4], "--tokens", "1"]) == 0


@pytest.mark.skipif(not os.path.exists("/proc/cpuinfo"), reason="no /proc")
def test_a_text_that_says_it_is_empty() -> None:
    """A file of /proc has size 0, and a text."""
    assert len(read_prompt("@/proc/cpuinfo", IDS, ByteTokenizer())) > 100


def test_a_limit_reaches_every_file_that_a_command_reads(tmp_path: Path, monkeypatch: Any) -> None:
    from refimpl.cli import prompt

    save(tmp_path / "m", IDS)
    (tmp_path / "t").write_bytes(llama_tokenizer())
    limits = []
    for name in ("read_model", "load", "read_tokenizer"):
        old = getattr(prompt, name)

        def noting(*args: Any, old: Any = old, limit: float, **options: Any) -> Any:
            limits.append(limit)
            return old(*args, limit=limit, **options)

        monkeypatch.setattr(prompt, name, noting)
    monkeypatch.setattr(prompt, "check_vocabulary", lambda *args: None)
    assert main(["convert", str(tmp_path / "m"), "--prompt", "1", "--out", str(tmp_path / "b")]) == 0
    argv = ["generate", str(tmp_path / "m"), "--prompt", "", "--baked", str(tmp_path / "b")]
    main([*argv, "--tokenizer", str(tmp_path / "t"), "--limit", "3"])
    assert limits == [1, 3, 3, 3]
