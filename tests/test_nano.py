"""The theory on one page: it is one page, it stands alone, and the library computes what it
computes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from array_api_compat import array_namespace
from hypothesis import given
from hypothesis import strategies as st

import refimpl as ri
from refimpl import QQ, Config, Rotary, nano
from refimpl.model.transformer import quadratic
from tests.helpers.source import ROOT, imported, modules


def test_it_is_one_page() -> None:
    lines = (ROOT / "nano.py").read_text().splitlines()
    assert len(lines) <= 100
    assert max(map(len, lines)) <= 100


def test_it_imports_nothing_of_the_package() -> None:
    assert {full for _, full in imported("nano", modules()["nano"]) if full.split(".")[0] == "refimpl"} == set()


def test_its_example() -> None:
    run = subprocess.run([sys.executable, "-m", "refimpl.nano"], capture_output=True, text=True, check=True)
    lines = run.stdout.splitlines()
    outputs = {line[:16].strip(): line[16:].split() for line in lines[:3]}
    assert outputs.keys() == {"prompt ++ text", "biases, text", "text"}
    assert outputs["prompt ++ text"] == outputs["biases, text"] != outputs["text"]
    assert lines[-1].split(":") == ["equal, as fractions", "   True"]
    page = (Path(__file__).parent.parent / "examples/site/theory.md").read_text()
    assert "".join(f"    {line}\n" for line in ["$ python -m refimpl.nano", *lines]) in page


def squares(x: Any) -> Any:
    """A feature map whose denominators are positive: two features for each number."""
    return array_namespace(x).concat([x * x + 1, x * x * x * x + 2], axis=-1)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    d = draw(st.integers(1, 3))
    m = draw(st.integers(1, 3).filter(lambda m: m != d))
    pairs = draw(st.integers(1, d))  # of the 2d features
    sizes = {name: draw(st.integers(1, 2)) for name in ("layers", "width", "heads", "hidden")}
    rope = Rotary(2 * pairs, base=None)
    return Config(d=d, m=m, phi=squares, norm="none", activation="quadratic", rope=rope, **sizes)


@given(config=configs(), M=st.integers(1, 2), n=st.integers(1, 2), seed=st.integers(0, 999))
def test_the_library_equals_it(config: Config, M: int, n: int, seed: int) -> None:
    """Two prompts, one after the other: the biases of every layer, and the output that is read with
    them, in ℚ.
    """
    model = ri.random_model(QQ, config, seed)
    first, second, text = (QQ.random((length, config.width), seed + i) for i, length in enumerate((M, 1, n)))
    layers = [
        {name: model.weights[f"layers.{i}.{name}"] for name in ("W_Q", "W_K", "W_V", "W_O", "W_up", "W_down")}
        for i in range(config.layers)
    ]
    page = layers, config.heads, squares, (model.weights["rope.c"], model.weights["rope.s"]), quadratic
    r = 2 * config.d
    biases = [(QQ.zeros((config.heads, r, config.m)), QQ.zeros((config.heads, r))) for _ in layers]
    assert same(model(text), nano.transformer(text, *page, biases))
    whole = QQ.concat([first, second, text])
    prompted = nano.transformer(whole, *page, biases)[M + 1 :, :]
    for prompt in (first, second):
        model, biases = ri.convert(model, prompt), nano.convert(prompt, *page, biases)
        for state, (b_KV, b_D) in zip(model.biases, biases, strict=True):
            assert same(state.S, b_KV) and same(state.z, b_D)
    assert same(model(text), nano.transformer(text, *page, biases))
    assert same(model(text), prompted)


def same(x: Any, y: Any) -> bool:
    return x.shape == y.shape and bool((x == y).all())
