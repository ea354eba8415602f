"""Weights of others by a mapping: every way of keeping them gives back the same model, and every
mistake that a shape gives away is told in words.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refimpl import QQ, Config, Float, Model, Rotary, model_from_weights, random_model
from refimpl.files.models.mapping import read_mapping_file
from refimpl.files.safetensors import write_safetensors
from tests.helpers.assertions import says

SMALL = Config(layers=2, width=6, heads=2, d=4, m=3, hidden=5, biased=True, vocabulary=7, table=9)


def kept_by_others(model: Model, transposed: bool, fused: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The weights of a model as another program may keep them, and the mapping that says so.

    fused : "", or how q, k and v stand in one tensor: "in turn" or "by head"
    """
    c: Any = model.config
    weights: dict[str, Any] = {}
    mapping: dict[str, Any] = {}
    qkv = ("W_Q", "W_K", "W_V") if fused else ()
    for name, w in model.weights.items():
        layer, _, short = name.removeprefix("layers.").rpartition(".") if name.startswith("layers.") else ("", "", name)
        if short not in (*qkv, *(x.replace("W", "b") for x in qkv)):
            turn = transposed and short.startswith("W_")
            theirs = f"blocks.{layer}.{short.lower()}" if layer else f"model.{short}"
            weights[theirs] = w.T if turn else w
            mapping[theirs.replace(f".{layer}.", ".{}.") if layer else theirs] = f"{short}.T" if turn else short
    for i in range(c.layers if fused else 0):
        for kind in "Wb" if c.biased else "W":
            pieces, blocks = [model.weights[f"layers.{i}.{kind}_{x}"] for x in "QKV"], 1
            if fused == "by head":
                blocks = c.kv_heads
                pieces = [x.reshape(*x.shape[:-1], blocks, -1) for x in pieces]
            x = np.concatenate(pieces, axis=-1)
            x = x.reshape(*x.shape[: 0 if kind == "b" else 1], -1)
            turn = transposed and kind == "W"
            weights[f"blocks.{i}.{kind}.qkv"] = x.T if turn else x
            names = [f"{kind}_{x}{'.T' * turn}" for x in "QKV"]
            mapping[f"blocks.{{}}.{kind}.qkv"] = {"by_head": names} if fused == "by head" else names
    return weights, mapping


def same(a: Model, b: Model) -> bool:
    return a.config == b.config and all(np.array_equal(a.weights[name], b.weights[name]) for name in a.config.shapes)


@st.composite
def configs(draw: Any) -> Config:
    groups = draw(st.integers(1, 3))
    size = st.integers(1, 5)
    return Config(
        layers=draw(st.integers(1, 3)),
        width=draw(size),
        heads=groups * draw(st.integers(1, 2)),
        groups=groups,
        d=draw(size),
        m=draw(size),
        hidden=draw(st.integers(0, 5)),
        gated=draw(st.booleans()),
        biased=draw(st.booleans()),
        norm=draw(st.sampled_from(["layer", "rms", "none"])),
        vocabulary=draw(st.integers(0, 4)),
        tied=draw(st.booleans()),
        table=draw(st.integers(0, 3)),
    )


@given(configs(), st.booleans(), st.sampled_from(["", "in turn", "by head"]), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_every_way_of_keeping_them_gives_the_model_back(config, transposed, fused, seed):
    model = random_model(Float(), config, seed)
    weights, mapping = kept_by_others(model, transposed, fused)
    assert same(model_from_weights(config, weights, mapping), model)


@given(configs(), st.booleans(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_mapping_for_the_other_orientation_is_refused_unless_every_shape_fits(config, transposed, data):
    model = random_model(Float(), config, 0)
    weights, mapping = kept_by_others(model, transposed, "")
    name = data.draw(st.sampled_from([name for name, value in mapping.items() if value.startswith("W_")]))
    value = mapping[name]
    other = value.removesuffix(".T") if value.endswith(".T") else f"{value}.T"
    rows, columns = config.shapes[f"layers.0.{value.removesuffix('.T')}"]
    if rows == columns:  # nothing but `compare` can tell
        assert model_from_weights(config, weights, mapping | {name: other})
    else:
        with says(ValueError, f"{value!r} would fit"):
            model_from_weights(config, weights, mapping | {name: other})


def test_a_tied_head_and_a_mask_and_vectors_that_are_missing():
    model = random_model(Float(), SMALL, 0)
    weights, mapping = kept_by_others(model, True, "in turn")
    weights |= {"head": weights["model.embedding"], "blocks.0.mask": np.ones((9, 9), dtype=bool)}
    mapping |= {"head": "embedding", "blocks.{}.mask": ""}
    assert same(model_from_weights(SMALL, weights, mapping), model)
    without = {name: w for name, w in weights.items() if not name.endswith("b_o")}
    no_offset = {name: value for name, value in mapping.items() if value != "b_O"}
    found = model_from_weights(SMALL, without, no_offset, zeros=["b_O"])
    assert not found.weights["layers.1.b_O"].any() and found.weights["layers.1.b_up"].any()
    with says(ValueError, "tensor 'head' must equal the other tensor that holds 'embedding'"):
        model_from_weights(SMALL, weights | {"head": weights["model.embedding"] + 1}, mapping)


def test_numbers_of_any_dtype_and_system():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    model = random_model(Float(), SMALL, 0)
    weights, mapping = kept_by_others(model, False, "")
    for dtype in (np.float16, np.float32, ml_dtypes.bfloat16):
        narrow = {name: w.astype(dtype) for name, w in weights.items()}
        found = model_from_weights(SMALL, narrow, mapping)
        assert np.array_equal(found.weights["layers.0.W_Q"], narrow["blocks.0.w_q"].astype(np.float64))
    exact = model_from_weights(SMALL, weights, mapping, system=QQ)
    assert QQ.equal(exact.weights["layers.1.W_V"], QQ.convert(model.weights["layers.1.W_V"]))


def test_a_state_dict_of_torch():
    torch = pytest.importorskip("torch")
    model = random_model(Float(), SMALL, 0)
    weights, mapping = kept_by_others(model, True, "by head")
    theirs = {name: torch.nn.Parameter(torch.tensor(w)) for name, w in weights.items()}
    assert same(model_from_weights(SMALL, theirs, mapping), model)
    half = {name: w.detach().to(torch.bfloat16) for name, w in theirs.items()}
    found = model_from_weights(SMALL, half, mapping)
    assert np.array_equal(found.weights["embedding"], half["model.embedding"].double().numpy())


def test_a_file_of_safetensors(tmp_path: Path):
    model = random_model(Float(), SMALL, 0)
    weights, mapping = kept_by_others(model, True, "in turn")
    write_safetensors(tmp_path / "mine.safetensors", {name: np.ascontiguousarray(w) for name, w in weights.items()}, {})
    assert same(model_from_weights(SMALL, tmp_path / "mine.safetensors", mapping), model)


WEIGHTS, MAPPING = kept_by_others(random_model(Float(), SMALL, 0), True, "")
IN_TURN, IN_TURN_MAPPING = kept_by_others(random_model(Float(), SMALL, 0), True, "in turn")


def without(name: str) -> dict[str, Any]:
    return {theirs: w for theirs, w in WEIGHTS.items() if theirs != name}


# the words of an error: weights, and changes of the mapping
WRONG: dict[str, tuple[dict[str, Any], dict[Any, Any]]] = {
    "tensor 'blocks.1.w_q' must be there to hold 'W_Q.T', got no such name; did you mean 'block.1.w_q'?": (
        without("blocks.1.w_q") | {"block.1.w_q": WEIGHTS["blocks.1.w_q"]},
        {},
    ),
    "tensor 'blocks.0.w_q' must have shape (6, 8) to hold 'W_Q', got (8, 6); 'W_Q.T' would fit": (
        WEIGHTS,
        {"blocks.{}.w_q": "W_Q"},
    ),
    "tensor 'blocks.0.W.qkv' must have shape (8, 6) to hold 'W_Q.T', got (22, 6); "
    "['W_Q.T', 'W_K.T', 'W_V.T'] would fit": (IN_TURN, {"blocks.{}.W.qkv": "W_Q.T"}),
    "tensor 'blocks.0.W.qkv' must have shape (6, 22) to hold ['W_Q', 'W_K', 'W_V'], got (22, 6); "
    "['W_Q.T', 'W_K.T', 'W_V.T'] would fit": (IN_TURN, {"blocks.{}.W.qkv": ["W_Q", "W_K", "W_V"]}),
    "tensor 'blocks.0.w_q' must have shape (16, 6) to hold {'by_head': ['W_Q.T', 'W_K.T']}, got (8, 6); "
    "'W_Q.T' would fit": (WEIGHTS, {"blocks.{}.w_q": {"by_head": ["W_Q.T", "W_K.T"]}}),
    "tensor 'model.gain' must have shape (6,) to hold 'gain', got (2,)": (WEIGHTS | {"model.gain": np.ones(2)}, {}),
    "tensor 'model.gain' must be finite, got nan or inf at": (WEIGHTS | {"model.gain": np.full(6, np.nan)}, {}),
    "tensor 'model.gain' must hold floats, got int64": (WEIGHTS | {"model.gain": np.ones(6, np.int64)}, {}),
    "tensor 'blocks.2.w_q' is of layer 2, but `config` has 2 layers": (WEIGHTS | {"blocks.2.w_q": np.ones(1)}, {}),
    "`mapping` must name every tensor, with '' for those that are no weights, got none for 'extra' (1,) and 1 more": (
        WEIGHTS | {"extra": np.ones(1), "more": np.ones(1)},
        {},
    ),
    "`mapping` must name the tensor that holds 'layers.0.b_O' (6,); if the other model has none, zeros=['b_O']": (
        WEIGHTS,
        {"blocks.{}.b_o": ""},
    ),
    "`mapping` must name the tensor that holds 'layers.0.W_O' (6, 6)": (WEIGHTS, {"blocks.{}.w_o": ""}),
    "mapping of 'blocks.{}.w_q': `value` must be one of W_K, W_O, W_Q, W_V": (WEIGHTS, {"blocks.{}.w_q": "W_Z"}),
    "`value` must be a name such as 'W_Q.T', a list of names, {'by_head': [...]} or '', got 3": (
        WEIGHTS,
        {"blocks.{}.w_q": 3},
    ),
    "`value` must be weights with the same inputs, all of them transposed or none, got ['W_Q', 'W_K.T']": (
        WEIGHTS,
        {"blocks.{}.w_q": ["W_Q", "W_K.T"]},
    ),
    "`by_head` must be the only key, got ['heads']": (WEIGHTS, {"blocks.{}.w_q": {"heads": ["W_Q"]}}),
    "`by_head` must list W_K, W_Q, W_V, b_K, b_Q, b_V, got ['W_O']": (WEIGHTS, {"blocks.{}.w_q": {"by_head": ["W_O"]}}),
    "`value` must have no .T, since b_Q is a vector, got ['b_Q.T']": (WEIGHTS, {"blocks.{}.b_q": "b_Q.T"}),
    "`mapping` must have names with at most one {}, got '{}.{}'": (WEIGHTS, {"{}.{}": "W_Q"}),
    "`mapping` must have names with at most one {}, got 3": (WEIGHTS, {3: "W_Q"}),
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_mapping(words):
    weights, changes = WRONG[words]
    with says(ValueError, words):
        model_from_weights(SMALL, weights, (IN_TURN_MAPPING if weights is IN_TURN else MAPPING) | changes)


def test_wrong_arguments():
    with says(TypeError, "model_from_weights: `weights` must hold arrays, got list at 'model.gain'"):
        model_from_weights(SMALL, WEIGHTS | {"model.gain": [1.0] * 6}, MAPPING)
    with says(TypeError, "model_from_weights: `weights` must have names that are str, got 3"):
        model_from_weights(SMALL, WEIGHTS | {3: np.ones(1)}, MAPPING)
    with says(ValueError, "`config` must have no more layers than there are tensors, got 1000000000 layers for 1"):
        model_from_weights(Config(layers=10**9, width=2), {"a": np.ones(1)}, {"a": "embedding"})
    without_b_O = {name: w for name, w in WEIGHTS.items() if not name.endswith("b_o")}
    with says(ValueError, "`zeros` must be one of b_K, b_O, b_Q, b_V, b_down, b_up, offset, offset_1, offset_2, got"):
        model_from_weights(SMALL, without_b_O, {k: v for k, v in MAPPING.items() if v != "b_O"}, zeros=["W_O"])
    with says(ValueError, "`zeros` must be a list of names such as 'b_Q', got 'b_O'"):
        model_from_weights(SMALL, without_b_O, {k: v for k, v in MAPPING.items() if v != "b_O"}, zeros="b_O")


TOML = """
zeros = ["b_O"]
[config]
layers = 2
width = 6
d = 4
epsilon = 1e-6
phi = ["elu+1", "relu"]
rope = {layout = "interleaved", base = 500}
[weights]
"tok" = "embedding"
"blocks.{}.qkv" = {by_head = ["W_Q.T", "W_K.T", "W_V.T"]}
"""


def test_a_mapping_in_a_file(tmp_path: Path):
    path = tmp_path / "map.toml"
    path.write_text(TOML)
    config, mapping, zeros = read_mapping_file(path)
    assert str(config.epsilon) == "1/1000000" and config.phi == ("elu+1", "relu") and zeros == ["b_O"]
    assert config.rope == Rotary(4, "interleaved", "after", 500)
    assert mapping == {"tok": "embedding", "blocks.{}.qkv": {"by_head": ["W_Q.T", "W_K.T", "W_V.T"]}}


@pytest.mark.parametrize(
    ("text", "words"),
    {
        "[config": "the file must be TOML:",
        "x = " + "[" * 9999: "the file must be TOML:",
        "other = 1": "`key` must be one of config, weights, zeros, got 'other'",
        "config = 1": "the file must have a table [config], got 1",
        "[config]\nlayers = 1\nwidth = 1": "the file must have a table [weights], got None",
        "[config]\nlayer = 1\n[weights]": "did you mean 'layers'? `config` must be one of",
        "[config]\nlayers = 1\n[weights]": "`config` must have 'width'",
        "[config]\nlayers = 1\nwidth = 0\n[weights]": "Config: `width` must be an integer ≥ 1, got 0",
        "[config]\nlayers = 1\nwidth = 1\nepsilon = 'x'\n[weights]": "`epsilon` must be a number from 0 to 2^64",
        "[config]\nlayers = 1\nwidth = 1\nrope = 3\n[weights]": "Config: `rope` must be a Rotary, got int",
        "[config]\nlayers = 1\nwidth = 1\nrope = {x = 3}\n[weights]": "`rope` must be one of base, layout, placement",
        "[config]\nlayers = 1\nwidth = 1\nrope = {width = 3}\n[weights]": "Rotary: `width` must be even",
        "[config]\nlayers = 1\nwidth = 1\nphi = 3\n[weights]": "must be",
    }.items(),
)
def test_a_wrong_file(tmp_path: Path, text, words):
    path = tmp_path / "map.toml"
    path.write_text(text)
    with says(ValueError, words):
        read_mapping_file(path)


def test_a_file_that_is_too_long_or_missing(tmp_path: Path):
    (tmp_path / "map.toml").write_text("#" * (2**18 + 1))
    with says(ValueError, "the file must have at most 262144 bytes"):
        read_mapping_file(tmp_path / "map.toml")
    with says(OSError, "no such file"):
        read_mapping_file(tmp_path / "none.toml")
