"""Damaged files of every kind; `python tests/fuzz.py --cases 100000` runs many more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

import refimpl as ri
from refimpl.prompt.compression import KINDS
from tests.helpers import fuzz

# 6 of each kind for README's command, 104 in CI
CASES = settings.default.max_examples**2 // 6  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: Any) -> dict[str, fuzz.Kind]:
    return fuzz.kinds(tmp_path_factory.mktemp("valid"))


def test_damaged_files_are_read_or_refused_in_a_sentence_that_names_them(kinds: Any, tmp_path: Path) -> None:
    total = fuzz.Tally()
    for name, kind in kinds.items():
        for number in range(CASES):
            total.add(fuzz.run_case(kind, name, number, 1, tmp_path, seconds=float("inf")))
    assert not total.wrong, "\n".join(total.wrong[:3])
    assert total.loaded > len(kinds) and total.refused > CASES * len(kinds) // 2


def test_there_is_a_kind_for_everything_that_can_be_saved(kinds: Any) -> None:
    assert {f"memory: {kind}" for kind in KINDS if kind != "cache"} <= set(kinds)
    assert {f"rwkv {version}" for version in ri.model.rwkv.VERSIONS} <= set(kinds)
    assert len({name.split(":")[0] for name in kinds}) >= 12


# The fuzzer itself sees what is wrong


def wrong(read: Any, tmp_path: Path, number: int = 1) -> str:
    kind = fuzz.Kind({"m": b"valid"}, read, (lambda rng, files: files,))
    return "".join(fuzz.run_case(kind, "planted", number, 0, tmp_path).wrong)


def refuse(error: Exception) -> None:
    raise error


def test_the_fuzzer_sees_what_is_wrong(tmp_path: Path, monkeypatch: Any) -> None:
    assert "KeyError" in wrong(lambda path: {}[path], tmp_path)
    assert "RecursionError" in wrong(lambda path: refuse(RecursionError("deep")), tmp_path)
    assert "raised by others" in wrong(lambda path: int("x"), tmp_path)
    ours = ri.files.disk
    assert "the file is not named" in wrong(lambda path: ri.checks.check_integer("who", "x", 1.5), tmp_path)
    said = "not printable, or too long"
    assert said in wrong(lambda path: ours.check_path("\x1b" + str(path), 1), tmp_path)
    assert said in wrong(lambda path: ours.check_path("x" * 999 + str(path), 1), tmp_path)
    assert not wrong(lambda path: ours.check_path(str(path), 1), tmp_path)
    assert "a valid file is refused" in wrong(lambda path: ours.check_path(str(path), 1), tmp_path, 0)
    monkeypatch.setattr(fuzz, "BYTES", 10**8)
    assert not wrong(lambda path: None, tmp_path)
    assert "it took 2.0e+08 bytes" in wrong(lambda path: np.ones(25 * 10**6), tmp_path)
    if fuzz.RESET.exists():  # a case is seen though a larger one came before it
        assert "it took 1.6e+08 bytes" in wrong(lambda path: np.ones(20 * 10**6), tmp_path)
    monkeypatch.setattr(fuzz.time, "process_time", iter((0.0, 2 * fuzz.SECONDS)).__next__)
    assert f"it took {2 * fuzz.SECONDS:.1f} s" in wrong(lambda path: None, tmp_path)
    assert fuzz.SECONDS >= 2
