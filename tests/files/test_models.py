"""Real checkpoints: what is read computes what other people's code computes, stage by stage;
damaged files are refused in words.
"""

import base64
import json
import math
import struct
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl import MP, Config, Float, random_model, save, softmax_attention, transformer
from refimpl.attention.rope import deinterleave
from refimpl.cli.main import main
from refimpl.files import models
from refimpl.files.disk import LARGEST_TEXT, read_bytes
from refimpl.files.models import read_model
from refimpl.files.models.gpt2 import read_arrays, read_gpt2, read_nano
from refimpl.files.models.llama import HEADER, llama2c_shapes, read_llama, read_llama2c
from refimpl.files.models.reading import Settings
from refimpl.files.safetensors import write_safetensors
from refimpl.files.tokenizers import ByteTokenizer, check_vocabulary
from refimpl.model.attention_layers import keys_values, split_heads
from refimpl.model.transformer import Pass, embed, gelu, norm
from refimpl.systems import system_of
from tests.helpers.assertions import says
from tests.helpers.real_weights import folder

KNOWN = (
    "refimpl's safetensors, GPT-2's safetensors, llm-viz's JSON, Llama's safetensors, "
    "llama2.c's .bin of version 0 or rwkv.cpp's .bin"
)

U = 2.0**-24  # unit roundoff of float32


def random(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def gpt2_arrays(layers=2, width=4, hidden=6, vocabulary=5, table=7, seed=0):
    """GPT-2's tensors by their published names, matrices (in, out)."""
    one = {"ln_1.weight": (width,), "ln_1.bias": (width,), "ln_2.weight": (width,), "ln_2.bias": (width,)}
    one |= {
        "attn.c_attn.weight": (width, 3 * width),
        "attn.c_attn.bias": (3 * width,),
        "attn.bias": (1, 1, table, table),
    }
    one |= {"attn.c_proj.weight": (width, width), "attn.c_proj.bias": (width,), "mlp.c_fc.weight": (width, hidden)}
    one |= {"mlp.c_fc.bias": (hidden,), "mlp.c_proj.weight": (hidden, width), "mlp.c_proj.bias": (width,)}
    shapes = {
        "wte.weight": (vocabulary, width),
        "wpe.weight": (table, width),
        "ln_f.weight": (width,),
        "ln_f.bias": (width,),
    }
    shapes |= {f"h.{i}.{name}": s for i in range(layers) for name, s in one.items()}
    return {name: random(seed + i, *s) for i, (name, s) in enumerate(shapes.items())}


def llama_arrays(layers=2, width=4, hidden=6, vocabulary=5, heads=2, groups=1, d=2):
    one = {
        "self_attn.q_proj": (heads * d, width),
        "self_attn.k_proj": (groups * d, width),
        "self_attn.v_proj": (groups * d, width),
    }
    one |= {"self_attn.o_proj": (width, heads * d), "mlp.gate_proj": (hidden, width), "mlp.up_proj": (hidden, width)}
    one |= {"mlp.down_proj": (width, hidden), "input_layernorm": (width,), "post_attention_layernorm": (width,)}
    shapes = {
        "model.embed_tokens.weight": (vocabulary, width),
        "model.norm.weight": (width,),
        "lm_head.weight": (vocabulary, width),
    }
    shapes |= {f"model.layers.{i}.{name}.weight": s for i in range(layers) for name, s in one.items()}
    return {name: random(i, *s) for i, (name, s) in enumerate(shapes.items())}


LLAMA = {"model_type": "llama", "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-6}


def llama2c_bytes(tied=True, **changes):
    """A llama2.c file: dim 4, hidden 6, layers 2, heads 2, kv_heads 1, vocabulary 5, context 3."""
    header = dict(zip(HEADER, (4, 6, 2, 2, 1, 5 if tied else -5, 3), strict=True))
    arrays = {name: random(i, *s) for i, (name, s) in enumerate(llama2c_shapes(header).items())}
    arrays["cos"], arrays["sin"] = (f(np.arange(3))[:, None] for f in (np.cos, np.sin))
    arrays |= changes
    return struct.pack("<7i", *header.values()) + b"".join(np.asarray(x, "<f4").tobytes() for x in arrays.values())


def nano_object(width=4, heads=2, **changes):
    """llm-viz's JSON: torch's orientation, a head of its own."""
    arrays = {
        f"transformer.{name}": x.T if name.endswith(("attn.weight", "proj.weight", "fc.weight")) else x
        for name, x in gpt2_arrays().items()
    }
    arrays["lm_head.weight"] = random(99, 5, width)
    config = {
        "model_type": "gpt-nano",
        "n_layer": 2,
        "n_head": heads,
        "n_embd": width,
        "vocab_size": 5,
        "block_size": 7,
    }
    return {"config": config} | {name: entry(x) for name, x in arrays.items()} | changes


def entry(x):
    return {
        "shape": list(x.shape),
        "dtype": "torch.float32",
        "data": base64.b64encode(np.ascontiguousarray(x, "<f4")).decode(),
    }


@pytest.fixture
def written(tmp_path):
    """Writes one file of a kind, and says where."""

    def write(kind, arrays=None, config=None, data=None):
        path = tmp_path / {"nano": "nano.json", "llama2c": "model.bin"}.get(kind, "model.safetensors")
        if kind in ("gpt2", "llama"):
            write_safetensors(
                path, {"gpt2": gpt2_arrays, "llama": llama_arrays}[kind]() if arrays is None else arrays, {}
            )
            (tmp_path / "config.json").write_text(
                json.dumps({"gpt2": {"n_head": 2}, "llama": LLAMA}[kind] if config is None else config)
            )
        else:
            path.write_bytes(
                data if data is not None else json.dumps(nano_object()).encode() if kind == "nano" else llama2c_bytes()
            )
        return path

    return write


# gpt-nano: PyTorch's activations, as llm-viz stores them


def stages(model, text):
    """Every stage that llm-viz stores, in the order in which it is computed: its name, our numbers,
    and how many roundings in a row
    each of them adds in float32: n for a sum of n terms, 2n + 4 for the norm, 10 for gelu, n + 2
    for softmax.
    """
    c, w, n = model.config, model.layer_weights(0), len(text)
    heads = (c.heads, n, c.d)
    x = embed(model, text)
    yield "tok_emb", model.weights["embedding"][text, :], 0
    yield "pos_emb", model.weights["positions"][:n, :], 0
    yield "x", x, 1
    ln1 = norm(x, w["gain_1"], w["offset_1"], epsilon=c.epsilon)
    yield "ln1", ln1, 2 * c.width + 4
    q, (k, v) = split_heads(ln1 @ w["W_Q"] + w["b_Q"], c.heads), keys_values(c, w, ln1)
    assert q.shape == k.shape == v.shape == heads
    yield "qkv", np.concatenate([np.moveaxis(y, 0, 1).reshape(n, c.width) for y in (q, k, v)], axis=-1), c.width + 1
    yield from (("q", q, 0), ("k", k, 0), ("v", v, 0))
    yield "att", np.where(np.tri(n, dtype=bool), q @ np.swapaxes(k, -1, -2) / math.sqrt(c.d), -np.inf), c.d + 1
    yield "attSm", softmax_attention(q, k, np.broadcast_to(np.eye(n), (c.heads, n, n)))[0], n + 2
    y = np.moveaxis(softmax_attention(q, k, v)[0], 0, 1).reshape(n, c.width)
    yield "y", y, n
    yield "yProj", y @ w["W_O"] + w["b_O"], c.width + 1
    x = x + y @ w["W_O"] + w["b_O"]
    yield "attnResid", x, 1
    ln2 = norm(x, w["gain_2"], w["offset_2"], epsilon=c.epsilon)
    yield "ln2", ln2, 2 * c.width + 4
    fc = ln2 @ w["W_up"] + w["b_up"]
    yield "fc", fc, c.width + 1
    yield "gelu", gelu(fc), 10
    yield "mlp", gelu(fc) @ w["W_down"] + w["b_down"], c.hidden + 1
    x = x + gelu(fc) @ w["W_down"] + w["b_down"]
    yield "mlpResid", x, 1
    blocks = []
    logits, _ = transformer(model, text, between=lambda i, y: blocks.append(y) or y)
    whole_layer = 2 * (2 * c.width + 4) + 3 * (c.width + 1) + c.d + 1 + 2 * n + 2 + 10 + c.hidden + 1 + 2
    for i, block in enumerate(blocks):
        yield f"block{i}", block, whole_layer if i else 0
    by_definition = c.layer(model, 0, embed(model, text), None, Pass(softmax_attention))[0]
    assert np.allclose(blocks[0], x, rtol=0, atol=1e-12) and np.allclose(by_definition, x, rtol=0, atol=1e-12)
    yield "ln_f", norm(blocks[-1], model.weights["gain"], model.weights["offset"], epsilon=c.epsilon), 2 * c.width + 4
    yield "lm_head", logits, c.width
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    yield "probs", p / p.sum(axis=-1, keepdims=True), c.vocabulary + 2


def worst(model, stored):
    """By stage: the largest difference in units of what is allowed, over all texts.

    Allowed, for numbers that passed c roundings in a row and are at most A in size: 6 √c · 2⁻²⁴ ·
    A. That is the probabilistic bound of
    Higham and Mary 2019 with λ = 6 (wrong for a number with probability 2 exp(−λ²/2) < 4·10⁻⁸),
    without the growth by ill-conditioned
    steps.
    """
    found = {}
    for b, text in enumerate(stored["idx"].astype(int)):
        chain = 0
        for name, ours, added in stages(model, text):
            chain += added
            theirs = stored[name][b if len(stored[name]) > 1 else 0].astype(np.float64)
            assert theirs.shape == ours.shape and np.array_equal(np.isfinite(theirs), np.isfinite(ours)), name
            finite = np.isfinite(ours)
            off, size = np.abs(ours[finite] - theirs[finite]).max(), np.abs(theirs[finite]).max()
            found[name] = max(found.get(name, 0), off / (6 * math.sqrt(max(chain, 1)) * U * size))
    return found


@pytest.fixture(scope="module")
def nano():
    where = folder("gpt-nano-sort-model.json", "gpt-nano-sort-t0-partials.json")
    return read_model(where / "gpt-nano-sort-model.json"), read_arrays(where / "gpt-nano-sort-t0-partials.json")[1]


@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16"])
def test_a_dtype_of_torch_has_its_library(dtype, written, tmp_path, capsys):
    torch = pytest.importorskip("torch")
    path, name = written("gpt2"), dtype.removeprefix("torch.")
    for asked in (dtype, getattr(torch, name)):
        assert system_of(read_model(path, dtype=asked).like).label == f"torch {name}"
        with says(ValueError, f"`dtype` must be of numpy, got {asked!r}; {name!r} is right for each library"):
            read_model(path, dtype=asked, library="numpy")
    assert main(["convert", str(path), "--dtype", dtype, "--prompt", "1 2", "--out", str(tmp_path / "b")]) == 0
    assert f" in torch {name}\n" in capsys.readouterr().out
    assert main(["generate", str(path), "--dtype", dtype, "--prompt", "1 2", "--tokens", "2"]) == 0
    assert len(capsys.readouterr().out.split()) == 2


def test_nano_is_pytorchs_at_every_stage(nano):
    model, stored = nano
    found = worst(model, stored)
    assert set(found) == set(stored) - {"idx"} and len(stored["idx"]) == 3
    assert max(found.values()) <= 1, found


def test_another_model_is_told_from_nano(nano):
    """The same comparison fails for ε = 10⁻⁶, for one weight changed by 1/100, and for queries and
    keys exchanged.
    """
    model, stored = nano
    w = dict(model.weights)
    changed = w | {"layers.1.W_up": w["layers.1.W_up"] + 1e-2 * (np.arange(48 * 192).reshape(48, 192) == 7)}
    exchanged = w | {"layers.0.W_Q": w["layers.0.W_K"], "layers.0.W_K": w["layers.0.W_Q"]}
    for other in (
        type(model)(Config(**vars_of(model.config) | {"epsilon": model.config.epsilon / 10}), w),
        type(model)(model.config, changed),
        type(model)(model.config, exchanged),
    ):
        assert max(worst(other, stored).values()) > 1


def vars_of(config):
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


def test_nano_sorts(nano):
    """Its task: six digits, then the same in order. (What it was trained for; 29 of 30 drawn texts
    are required.)
    """
    model, right = nano[0], 0
    for seed in range(30):
        digits = [int(i) for i in np.random.default_rng(seed).integers(0, 3, 6)]
        text = list(digits)
        for _ in range(6):
            text.append(int(model(text)[-1].argmax()))
        right += text[6:] == sorted(digits)
    assert right >= 29


# Transcriptions: the models by their authors' formulas, in float64, from the numbers of a file; no
# line of the library is used.


def rms(x, gain, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * gain


def attended(q, k, v):
    """Causal softmax attention of one head."""
    scores = np.where(np.tri(len(q), dtype=bool), q @ k.T / math.sqrt(q.shape[-1]), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def silu(x):
    return x / (1 + np.exp(-x))


def llama_logits(w, ids, heads, groups, epsilon, theta):
    """modeling_llama.py: halves of a head are rotated, keys are repeated for their heads."""
    w = {name: x.astype(np.float64) for name, x in w.items()}
    x, layers = w["model.embed_tokens.weight"][ids], sum(name.endswith("input_layernorm.weight") for name in w)
    d = len(w["model.layers.0.self_attn.q_proj.weight"]) // heads
    angle = np.arange(len(ids))[:, None] * theta ** (-np.arange(0, d, 2) / d)
    cos, sin = (np.concatenate([f(angle)] * 2, axis=-1) for f in (np.cos, np.sin))

    def turned(y):
        return y * cos + np.concatenate([-y[:, d // 2 :], y[:, : d // 2]], axis=-1) * sin

    for i in range(layers):
        p = f"model.layers.{i}."
        y = rms(x, w[p + "input_layernorm.weight"], epsilon)
        q, k, v = (y @ w[f"{p}self_attn.{name}_proj.weight"].T for name in "qkv")
        q, k, v = (np.split(z, n, axis=-1) for z, n in ((q, heads), (k, groups), (v, groups)))
        per = heads // groups
        o = [attended(turned(q[h]), turned(k[h // per]), v[h // per]) for h in range(heads)]
        x = x + np.concatenate(o, axis=-1) @ w[p + "self_attn.o_proj.weight"].T
        y = rms(x, w[p + "post_attention_layernorm.weight"], epsilon)
        gate, up = (y @ w[f"{p}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + silu(gate) * up @ w[p + "mlp.down_proj.weight"].T
    return rms(x, w["model.norm.weight"], epsilon) @ w["lm_head.weight"].T


@pytest.mark.parametrize(
    ("config", "groups", "epsilon", "theta"),
    [
        ({}, 2, 1e-6, 10000),  # the defaults of LlamaConfig, for files that do not say
        ({"num_key_value_heads": 1, "rms_norm_eps": 0.25, "rope_theta": 500}, 1, 0.25, 500),
        ({"rope_parameters": {"rope_theta": 77.0, "rope_type": "default"}}, 2, 1e-6, 77),
    ],
)
def test_llama_is_its_transcription(written, config, groups, epsilon, theta):
    arrays, ids = llama_arrays(width=8, heads=2, groups=groups, d=4), [3, 1, 4, 1, 0, 2]
    arrays["model.embed_tokens.weight"] *= 2e-3  # so that ε counts
    path = written("llama", arrays, {"model_type": "llama", "num_attention_heads": 2} | config)
    want = llama_logits(arrays, ids, 2, groups, epsilon, theta)
    assert np.allclose(read_model(path)(ids), want, rtol=0, atol=1e-11)


def test_llama2c_is_its_transcription(written):
    """run.c: neighbours are rotated, σ is applied to w1, the arrays are in this order."""
    dim, hidden, layers, heads, groups, vocabulary, context = 8, 6, 2, 2, 1, 5, 7
    d, kv, ids = dim // heads, groups * dim // heads, [3, 1, 4, 1, 0, 2]
    shapes = {"embedding": (vocabulary, dim), "att": (layers, dim), "wq": (layers, dim, dim), "wk": (layers, kv, dim)}
    shapes |= {"wv": (layers, kv, dim), "wo": (layers, dim, dim), "ffn": (layers, dim), "w1": (layers, hidden, dim)}
    shapes |= {"w2": (layers, dim, hidden), "w3": (layers, hidden, dim), "final": (dim,)}
    w = {name: random(i, *s) for i, (name, s) in enumerate(shapes.items())}
    w["embedding"] *= 3e-3  # so that ε counts
    angle = np.arange(context)[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)
    tables = (f(angle).astype("<f4") for f in (np.cos, np.sin))
    header = struct.pack("<7i", dim, hidden, layers, heads, groups, vocabulary, context)
    path = written("llama2c", data=header + b"".join(x.tobytes() for x in (*w.values(), *tables)))
    w, x = {name: y.astype(np.float64) for name, y in w.items()}, w["embedding"][ids].astype(np.float64)
    for i in range(layers):
        y = rms(x, w["att"][i], 1e-5)
        q, k, v = y @ w["wq"][i].T, y @ w["wk"][i].T, y @ w["wv"][i].T
        for z in (q, k):
            for j in range(0, z.shape[-1], 2):
                c, s = (f(np.arange(len(ids)) * 10000.0 ** (-(j % d) / d)) for f in (np.cos, np.sin))
                z[:, j], z[:, j + 1] = z[:, j] * c - z[:, j + 1] * s, z[:, j] * s + z[:, j + 1] * c
        o = [attended(q[:, h * d : (h + 1) * d], k, v) for h in range(heads)]
        x = x + np.concatenate(o, axis=-1) @ w["wo"][i].T
        y = rms(x, w["ffn"][i], 1e-5)
        x = x + silu(y @ w["w1"][i].T) * (y @ w["w3"][i].T) @ w["w2"][i].T
    want = rms(x, w["final"], 1e-5) @ w["embedding"].T
    assert np.allclose(read_model(path)(ids), want, rtol=0, atol=1e-11 * np.abs(want).max())


def test_gpt2_is_its_transcription(written):
    """picoGPT's formulas; without a configuration heads are 64 wide and ε is 1e-5."""
    arrays, ids = gpt2_arrays(width=128), [3, 1, 4, 1, 0, 2]
    arrays = {name: x / 8 if x.ndim == 2 and "h." in name else x for name, x in arrays.items()}
    arrays["wte.weight"], arrays["wpe.weight"] = arrays["wte.weight"] / 300, arrays["wpe.weight"] / 300
    path = written("gpt2", arrays)
    path.with_name("config.json").unlink()
    w = {name: x.astype(np.float64) for name, x in arrays.items()}

    def ln(x, name):
        z = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return z * w[name + ".weight"] + w[name + ".bias"]

    def linear(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    x = w["wte.weight"][ids] + w["wpe.weight"][: len(ids)]
    for p in ("h.0.", "h.1."):
        q, k, v = (np.split(y, 2, axis=-1) for y in np.split(linear(ln(x, p + "ln_1"), p + "attn.c_attn"), 3, axis=-1))
        o = [attended(*head) for head in zip(q, k, v, strict=True)]
        x = x + linear(np.concatenate(o, axis=-1), p + "attn.c_proj")
        y = linear(ln(x, p + "ln_2"), p + "mlp.c_fc")
        y = 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
        x = x + linear(y, p + "mlp.c_proj")
    want = ln(x, "ln_f") @ w["wte.weight"].T
    assert np.allclose(read_model(path)(ids), want, rtol=0, atol=1e-11 * np.abs(want).max())


# transformers: independent implementations, at random weights


@pytest.fixture(scope="module")
def hugging():
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


GAINS = ("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight")


def saved(model, tmp_path, scale, seed):
    """Weights large enough for attention to be anything but uniform, written as transformers writes
    them.
    """
    import torch

    torch.manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(0, scale).add_(1 if name.endswith(GAINS) else 0)
    model.double().eval().save_pretrained(tmp_path)
    return model


def difference(theirs, ours, n, seed):
    """The largest difference of logits, relative to the largest of them."""
    import torch

    ids = np.random.default_rng(seed).integers(0, ours.config.vocabulary, (2, n))
    with torch.no_grad():
        logits = theirs(torch.asarray(ids)).logits.numpy()
    return np.abs(logits - ours(ids)).max() / np.abs(logits).max()


GPT2_SHAPES = [
    {"n_embd": 12, "n_layer": 2, "n_head": 3, "vocab_size": 11, "n_positions": 9},
    {
        "n_embd": 64,
        "n_layer": 1,
        "n_head": 1,
        "vocab_size": 5,
        "n_positions": 20,
        "n_inner": 7,
        "layer_norm_epsilon": 0.25,
    },
    {"n_embd": 8, "n_layer": 3, "n_head": 8, "vocab_size": 3, "n_positions": 5, "tie_word_embeddings": False},
]
LLAMA_SHAPES = [
    {"hidden_size": 12, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 4, "rms_norm_eps": 1e-6},
    {
        "hidden_size": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "rms_norm_eps": 0.25,
    },
    {
        "hidden_size": 8,
        "num_attention_heads": 2,
        "head_dim": 6,
        "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
    },
]


@pytest.mark.parametrize("shape", GPT2_SHAPES, ids=str)
def test_gpt2_is_that_of_transformers(hugging, tmp_path, shape):
    config = hugging.GPT2Config(bos_token_id=0, eos_token_id=0, **shape)
    theirs = saved(hugging.GPT2LMHeadModel(config), tmp_path, 0.3, seed=1)
    ours = read_model(tmp_path)
    assert ours.config.tied == shape.get("tie_word_embeddings", True)
    assert difference(theirs, ours, shape["n_positions"], seed=2) < 1e-5
    # without config.json only where heads are as wide as in every published GPT-2
    (tmp_path / "config.json").unlink()
    if shape["n_embd"] == 64:
        assert read_gpt2(tmp_path / "model.safetensors", system=Float()).config.heads == 1
    else:
        with says(
            ValueError,
            f"the width must be a multiple of 64, or {tmp_path / 'config.json'} must have `n_head`, got a width of",
        ):
            read_gpt2(tmp_path / "model.safetensors", system=Float())


@pytest.mark.parametrize("shape", LLAMA_SHAPES, ids=str)
def test_llama_is_that_of_transformers(hugging, tmp_path, shape):
    config = hugging.LlamaConfig(vocab_size=11, intermediate_size=20, num_hidden_layers=2, **shape)
    theirs = saved(hugging.LlamaForCausalLM(config), tmp_path, 0.5, seed=3)
    ours = read_model(tmp_path)
    assert ours.config.tied == shape.get("tie_word_embeddings", False)
    assert difference(theirs, ours, 30, seed=4) < 1e-5
    said = json.loads((tmp_path / "config.json").read_text())
    # as it was written before
    said |= {"rope_theta": said.pop("rope_parameters")["rope_theta"], "rope_scaling": None}
    (tmp_path / "config.json").write_text(json.dumps(said))
    assert read_model(tmp_path).config == ours.config


# stories260K: greedy text


def as_llama(hugging, model):
    """A LlamaForCausalLM that carries the same weights; its layout is half, so columns of W_Q and
    W_K are permuted.
    """
    import torch

    c = model.config
    config = hugging.LlamaConfig(
        vocab_size=c.vocabulary,
        hidden_size=c.width,
        intermediate_size=c.hidden,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads,
        rms_norm_eps=float(c.epsilon),
        tie_word_embeddings=True,
        max_position_embeddings=512,
    )
    theirs = hugging.LlamaForCausalLM(config).double().eval()
    names = {"W_Q": "self_attn.q_proj", "W_K": "self_attn.k_proj", "W_V": "self_attn.v_proj", "W_O": "self_attn.o_proj"}
    names |= {"W_gate": "mlp.gate_proj", "W_up": "mlp.up_proj", "W_down": "mlp.down_proj"}
    names |= {"gain_1": "input_layernorm", "gain_2": "post_attention_layernorm"}
    weights = {"model.embed_tokens.weight": model.weights["embedding"], "model.norm.weight": model.weights["gain"]}
    for i in range(c.layers):
        for name, x in model.layer_weights(i).items():
            if name in ("W_Q", "W_K"):
                x = deinterleave(x.reshape(c.width, -1, c.d), pairs=c.d // 2).reshape(x.shape)
            weights[f"model.layers.{i}.{names[name]}.weight"] = x.T
    missing = theirs.load_state_dict(
        {name: torch.asarray(np.ascontiguousarray(x)) for name, x in weights.items()}, strict=False
    )
    assert missing.missing_keys == ["lm_head.weight"] and not missing.unexpected_keys
    theirs.tie_weights()
    return theirs


def test_stories_are_those_of_transformers(hugging):
    """200 greedy tokens from BOS. If after every prefix of our text their likeliest token is our
    next one, then greedy text is the same.
    """
    import torch

    model = read_model(folder("stories260K.bin") / "stories260K.bin")
    ids, after = [1], model
    for _ in range(200):
        logits, states = transformer(after, ids[-1:])
        after = model.with_biases(states)
        ids.append(int(logits[-1].argmax()))
    with torch.no_grad():
        theirs = as_llama(hugging, model)(torch.asarray([ids[:-1]])).logits[0].numpy()
    whole = model(ids[:-1])
    assert theirs.argmax(-1).tolist() == ids[1:] == whole.argmax(-1).tolist()
    assert np.abs(theirs - whole).max() < 1e-5 * np.abs(whole).max()
    top = np.sort(whole, axis=-1)
    # no token hangs on rounding
    assert (top[:, -1] - top[:, -2]).min() > 10 * np.abs(theirs - whole).max()


# what is read, of which kind, into which numbers


def test_every_kind_is_told_by_its_content(written, tmp_path):
    for kind, read in {"gpt2": read_gpt2, "llama": read_llama, "nano": read_nano, "llama2c": read_llama2c}.items():
        path = written(kind)
        model, again = read_model(path), read(path, system=Float())
        assert model.config == again.config and model.config.softmax and model([0, 1, 2]).shape == (3, 5), kind
        assert np.array_equal(model([0, 1, 2]), again([0, 1, 2]))
        assert str(read_model(path, dtype="float32").like.dtype) == "float32"
    ours = random_model(Float(dtype="float32"), Config(layers=1, width=2, vocabulary=3), 0)
    save(tmp_path / "ours.safetensors", ours)
    assert np.array_equal(read_model(tmp_path / "ours.safetensors")([0, 1]), ours([0, 1]))


def test_a_module_with_formats_is_a_reader(tmp_path, monkeypatch):
    (tmp_path / "morse.py").write_text(
        "from refimpl.files.models.reading import Format\n"
        "FORMATS = (Format('Morse code', lambda o: o.start.startswith(b'...'), lambda path, system: (path, system)),)"
    )
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    models.formats.cache_clear()
    (tmp_path / "sos").write_bytes(b"...---...")
    assert read_model(tmp_path / "sos", dtype="float32") == (tmp_path / "sos", Float(dtype="float32"))
    (tmp_path / "sos").write_bytes(b"---...---")
    with says(ValueError, f"the file must be {KNOWN.replace(' or', ',')} or Morse code, got b'---...--'"):
        read_model(tmp_path / "sos")
    monkeypatch.undo()
    models.formats.cache_clear()


def test_rwkv_files_go_to_their_own_reader(tmp_path):
    (tmp_path / "rwkv.bin").write_bytes((0x67676D66).to_bytes(4, "little") + bytes(20))
    with says(ValueError, f"read_rwkv: {tmp_path / 'rwkv.bin'}: the file version must be 100 or 101, got 0"):
        read_model(tmp_path / "rwkv.bin")


@pytest.mark.parametrize("name", ["4v0-660K", "5v1-730K", "5v2-730K", "7v0-834K"])
def test_rwkv_models_read_bytes(name):
    file = f"tiny-rwkv-{name}-FP32.bin"
    model = read_model(folder(file) / file)
    check_vocabulary(ByteTokenizer(), model)
    assert model(ByteTokenizer().encode('"in')).shape == (3, 256)


def test_nano_and_gpt2_with_the_same_weights_are_the_same_model(written):
    arrays = gpt2_arrays() | {"lm_head.weight": random(99, 5, 4)}
    a, b = read_model(written("gpt2", arrays)), read_model(written("nano"))
    assert a.config == b.config and not a.config.tied
    assert all(np.array_equal(a.weights[name], b.weights[name]) for name in a.config.shapes)
    prefixed = {name if name == "lm_head.weight" else f"transformer.{name}": x for name, x in arrays.items()}
    assert np.array_equal(read_model(written("gpt2", prefixed))([1, 2]), a([1, 2]))
    tied = read_model(written("gpt2", arrays | {"lm_head.weight": arrays["wte.weight"]}))
    assert tied.config.tied and np.array_equal(tied([1, 2]), read_model(written("gpt2"))([1, 2]))


def test_llama2c_head_of_its_own(written):
    tied, untied = read_model(written("llama2c")), read_model(written("llama2c", data=llama2c_bytes(tied=False)))
    assert tied.config.tied and not untied.config.tied and untied.weights["unembedding"].shape == (4, 5)
    one = dict(zip(HEADER, (4, 6, 2, 2, 1, 5, 3), strict=True))
    same = llama2c_bytes(tied=False, head=random(0, *llama2c_shapes(one)["embedding"]))
    assert np.allclose(read_model(written("llama2c", data=same))([1, 2, 3]), tied([1, 2, 3]), rtol=0, atol=1e-12)


def test_other_number_systems_hold_the_same_model(written):
    path = written("llama2c")
    exact, model = read_llama2c(path, system=MP(30)), read_model(path)
    there = np.array([[float(x) for x in row] for row in exact([1, 2]).planes[0]])
    assert np.allclose(there, model([1, 2]), rtol=1e-13, atol=0)


# hostile files


def test_files_that_are_no_model(tmp_path):
    path = tmp_path / "a"
    with says(OSError, f"read_model: cannot read {path}: no such file"):
        read_model(path)
    with says(OSError, f"read_model: cannot read {tmp_path / 'model.safetensors'}: no such file"):
        read_model(tmp_path)
    with says(OSError, "read_model: cannot read /dev/zero: not a regular file"):
        read_model("/dev/zero")
    for start, words in {
        b"PK\3\4": "got an archive of torch.save, whose pickle could run anything when read",
        b"GGUF": "got a GGUF file; convert it to safetensors",
        b"24ka": "got a llama2.c file of version 1 or 2; export it as version 0",
        b"": f"the file must be {KNOWN}, got b''",
        b"\x80\4\x95": "got b'\\x80\\x04\\x95\\x00\\x00\\x00\\x00\\x00' at its beginning",
    }.items():
        path.write_bytes(start + bytes(60) * bool(start))
        with says(ValueError, words):
            read_model(path)
    write_safetensors(path, {"x": np.zeros(1), "y": np.zeros(1)}, {})
    with says(ValueError, f"read_model: {path}: the file must be {KNOWN}, got tensors x, y"):
        read_model(path)
    path.write_bytes((10).to_bytes(8, "little") + b"{" * 10)
    with says(ValueError, f"read_safetensors: {path}: the header must be JSON in UTF-8"):
        read_model(path)


def test_texts_that_are_no_json(tmp_path):
    path = tmp_path / "a.json"
    for data, words in {
        b'{"a": "\xff"}': "the file must be JSON in UTF-8: 'utf-8' codec",
        b'{"a": NaN}': "the file must be JSON in UTF-8: NaN is not a number of JSON",
        b'{"config": {}, "config": {}}': "the file must be JSON in UTF-8: the key 'config' occurs twice",
        b'{"a":' * 10**5: "the file must be JSON with fewer nested levels, got more than can be read",
        b'{"a": ' + b"9" * 5000 + b"}": "the file must be JSON in UTF-8: an integer must have at most 4300 characters",
        b"{}": "`config` must be an object of llm-viz's JSON, got None",
    }.items():
        path.write_bytes(data)
        with says(ValueError, f"read_nano: {path}: {words}"):
            read_model(path)
    path.write_text("[1]")
    with says(ValueError, f"read_nano: {path}: the JSON must be an object, got [1]"):
        read_arrays(path)
    with says(ValueError, f"read_nano: {path}: the file must have at most 2 bytes, got 3"):
        read_bytes("read_nano", path, 2)
    assert LARGEST_TEXT == 2**24


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"wte.weight": None}, f"the file must be {KNOWN}, got tensors h.0.attn.bias"),
        ({"wpe.weight": None}, "tensor 'wpe.weight' must be in the file, got no such name"),
        ({"h.0.ln_1.weight": None}, "tensor 'h.0.ln_1.weight' must be in the file, got no such name"),
        ({"h.1.mlp.c_fc.weight": None}, "tensor 'h.1.mlp.c_fc.weight' must be there to hold 'W_up', got no such name"),
        (
            {"h.0.attn.c_attn.weight": np.zeros((12, 4))},
            "tensor 'h.0.attn.c_attn.weight' must have shape (4, 12) to hold ['W_Q', 'W_K', 'W_V'], got (12, 4); ",
        ),
        (
            {"wpe.weight": np.zeros((7, 5))},
            "tensor 'wpe.weight' must have shape (7, 4) to hold 'positions', got (7, 5)",
        ),
        ({"wte.weight": np.zeros(4)}, "tensor 'wte.weight' must have 2 axes, none of them empty, got shape (4,)"),
        (
            {"wte.weight": np.zeros((0, 4))},
            "tensor 'wte.weight' must have 2 axes, none of them empty, got shape (0, 4)",
        ),
        ({"ln_f.bias": np.zeros(4, int)}, "tensor 'ln_f.bias' must hold floats, got int64"),
        ({"ln_f.bias": np.array([0, np.nan, 0, 0])}, "tensor 'ln_f.bias' must be finite, got nan or inf"),
        (
            {"h.7.ln_1.weight": np.zeros(4)},
            "every tensor must be a weight of the model, got 'h.7.ln_1.weight', which is not",
        ),
        (
            {"transformer.ln_f.bias": np.zeros(4)},
            "a tensor must be in the file once, got both 'ln_f.bias' and 'transformer.ln_f.bias'",
        ),
    ],
    ids=str,
)
def test_gpt2_tensors_that_are_wrong(written, change, words):
    arrays = {name: x for name, x in (gpt2_arrays() | change).items() if x is not None}
    path = written("gpt2", arrays)
    with says(ValueError, f"{path}: {words}"):
        read_model(path)


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("gpt2", {"n_head": 3}, "`n_head` must divide the width 4, got 3"),
        ("gpt2", {"n_head": 0}, "`n_head` must be an integer ≥ 1, got 0"),
        ("gpt2", {"n_head": True}, "`n_head` must be an integer ≥ 1, got True"),
        ("gpt2", {"n_layer": 3}, "`n_layer` must be 2, as in the tensors, got 3"),
        (
            "gpt2",
            {"activation_function": "gelu"},
            '`activation_function` must be "gelu_new", "gelu_pytorch_tanh": nothing else',
        ),
        ("gpt2", {"model_type": "gptj"}, "`model_type` must be \"gpt2\": nothing else is implemented, got 'gptj'"),
        (
            "gpt2",
            {"scale_attn_weights": False},
            "`scale_attn_weights` must be true: nothing else is implemented, got False",
        ),
        (
            "gpt2",
            {"scale_attn_by_inverse_layer_idx": True},
            "`scale_attn_by_inverse_layer_idx` must be false: nothing else is implemented",
        ),
        ("gpt2", {"add_cross_attention": 1}, "`add_cross_attention` must be false: nothing else is implemented, got 1"),
        ("gpt2", {"layer_norm_epsilon": "1e-5"}, "`layer_norm_epsilon` must be a number from 0 to 2^64, got '1e-5'"),
        ("gpt2", {"layer_norm_epsilon": -1}, "`layer_norm_epsilon` must be a number from 0 to 2^64, got -1"),
        ("llama", {"num_attention_heads": None}, "`num_attention_heads` must be an integer ≥ 1, got None"),
        ("llama", {"vocab_size": 6}, "`vocab_size` must be 5, as in the tensors, got 6"),
        (
            "llama",
            {"model_type": "mistral"},
            "`model_type` must be \"llama\": nothing else is implemented, got 'mistral'",
        ),
        ("llama", {"hidden_act": "gelu"}, "`hidden_act` must be \"silu\": nothing else is implemented, got 'gelu'"),
        ("llama", {"attention_bias": True}, "`attention_bias` must be false: nothing else is implemented, got True"),
        ("llama", {"mlp_bias": True}, "`mlp_bias` must be false: nothing else is implemented, got True"),
        ("llama", {"tie_word_embeddings": 1}, "`tie_word_embeddings` must be true or false, got 1"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "llama3"}},
            '`rope_scaling`: `rope_type` must be "default": nothing else',
        ),
        ("llama", {"rope_scaling": {"type": "linear"}}, '`rope_scaling`: `type` must be "default": nothing else is'),
        (
            "llama",
            {"rope_scaling": {"factor": 8.0}},
            "`rope_scaling` must have no keys but partial_rotary_factor, rope_theta, rope_",
        ),
        (
            "llama",
            {"rope_parameters": [1]},
            "`rope_parameters` must have no keys but partial_rotary_factor, rope_theta, rope_",
        ),
        (
            "llama",
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "`rope_parameters`: `partial_rotary_factor` must be 1.0, 1",
        ),
        ("llama", {"rope_theta": 0.5}, "`rope_theta` must be a whole number ≥ 1: nothing else is implemented, got 0.5"),
        ("llama", {"rope_theta": 1e300}, "`rope_theta` must be a number from 0 to 2^64, got 1e+300"),
    ],
    ids=str,
)
def test_configurations_that_are_wrong(written, kind, change, words):
    path = written(kind, config={"gpt2": {"n_head": 2}, "llama": LLAMA}[kind] | change)
    with says(ValueError, words) as caught:
        read_model(path)
    assert str(caught.value).startswith(f"read_{kind}: {path.with_name('config.json')}: ")


def test_llama_files_that_are_wrong(written):
    path = written("llama", config=LLAMA | {"tie_word_embeddings": True})
    beside = path.with_name("config.json")
    with says(
        ValueError, f"{path}: tensor 'lm_head.weight' must equal 'model.embed_tokens.weight', since {beside} ties them"
    ):
        read_model(path)
    arrays = llama_arrays() | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(1)}
    assert not read_model(written("llama", arrays)).config.tied
    tied = read_model(
        written(
            "llama",
            arrays | {"lm_head.weight": arrays["model.embed_tokens.weight"]},
            LLAMA | {"tie_word_embeddings": True},
        )
    )
    assert tied.config.tied
    with says(
        ValueError,
        f"{path}: every tensor must be a weight of the model, got 'model.layers.0.self_attn.q_proj.bias', which is not",
    ):
        read_model(written("llama", arrays | {"model.layers.0.self_attn.q_proj.bias": np.zeros(4)}))
    with says(ValueError, f"{path}: tensor 'lm_head.weight' must be there to hold 'unembedding.T', got no such name"):
        read_model(written("llama", {name: x for name, x in arrays.items() if name != "lm_head.weight"}))
    odd = LLAMA | {"head_dim": 3}
    with says(ValueError, "`head_dim` must be even for RoPE, got 3"):
        read_model(written("llama", llama_arrays(d=3), odd))
    with says(ValueError, f"{path}: Config: `groups` must divide heads = 2, got 3"):
        read_model(written("llama", llama_arrays(groups=3), LLAMA | {"num_key_value_heads": 3}))
    beside.unlink()
    with says(OSError, f"read_llama: cannot read {beside}: no such file"):
        read_model(path)


def test_gpt2_files_that_are_wrong(written):
    with says(ValueError, "the width must be a multiple of 64, or "):
        read_model(written("gpt2", config={}))
    arrays = gpt2_arrays() | {"lm_head.weight": random(1, 5, 4)}
    with says(ValueError, "tensor 'lm_head.weight' must equal 'wte.weight', since"):
        read_model(written("gpt2", arrays, {"n_head": 2, "tie_word_embeddings": True}))
    large = gpt2_arrays() | {"ln_f.bias": np.full(4, 1e5, np.float32)}
    path = written("gpt2", large)
    with says(ValueError, f"read_gpt2: {path}: Model: `offset` must be finite, got nan or inf at column 0"):
        read_model(path, dtype="float16")


def test_nano_files_that_are_wrong(written):
    name, good = "transformer.ln_f.bias", entry(np.zeros(4))
    for info, words in [
        ([], "must have shape, dtype, data and nothing else, got []"),
        (good | {"more": 1}, "must have shape, dtype, data and nothing else, got a value of type dict"),
        (good | {"shape": [-1]}, "must have a shape of at most 8 integers from 0 to 2^31 − 1, got [-1]"),
        (good | {"shape": [2**31]}, "must have a shape of at most 8 integers from 0 to 2^31 − 1, got [2147483648]"),
        (
            good | {"shape": [1] * 9},
            "must have a shape of at most 8 integers from 0 to 2^31 − 1, got [1, 1, 1, 1, 1, 1, 1, 1, 1]",
        ),
        (good | {"shape": [2**30] * 8}, f"must have {4 * 2**240} bytes for float32 of shape"),
        (good | {"dtype": "torch.float64"}, "must have dtype 'torch.float32', got 'torch.float64'"),
        (good | {"data": "AAA"}, "must have its data in base64, got 'AAA': "),
        (good | {"data": "AA*A"}, "must have its data in base64, got 'AA*A': "),
        (good | {"data": "é"}, "must have its data in base64, got 'é': "),
        (good | {"data": 7}, "must have its data in base64, got 7: "),
        (good | {"data": "AAAA"}, "must have 16 bytes for float32 of shape [4], got 3"),
        (entry(np.full(4, np.inf)), "must be finite, got nan or inf"),
    ]:
        path = written("nano", data=json.dumps(nano_object(**{name: info})).encode())
        with says(ValueError, words) as caught:
            read_model(path)
        assert str(caught.value).startswith(f"read_nano: {path}: tensor ")
    with says(ValueError, "`n_head` must be an integer ≥ 1, got None"):
        read_model(written("nano", data=json.dumps(nano_object(config={})).encode()))


def test_llama2c_files_that_are_wrong(written):
    whole = llama2c_bytes()
    for data, words in [
        (whole[:27], "the file must begin with 7 int32, got 27 bytes"),
        (whole[:-1], f"the file must have {len(whole)} bytes for {{'dim': 4, 'hidden': 6,"),
        (whole + b"\0", f"the file must have {len(whole)} bytes for {{'dim': 4, 'hidden': 6,"),
        (struct.pack("<i", 0) + whole[4:], "`dim` must be from 1 to 16777216, got 0"),
        (struct.pack("<i", 2**24 + 1) + whole[4:], "`dim` must be from 1 to 16777216, got 16777217"),
        (
            struct.pack("<i", 6) + whole[4:],
            "kv_heads must divide heads, and heads the width, in even parts for RoPE, got 1 kv",
        ),
        (whole[:16] + struct.pack("<i", 3) + whole[20:], "kv_heads must divide heads, and heads the width"),
        (llama2c_bytes(cos=np.ones((3, 1))), "the table of cos must be that of RoPE with base 10000, got another"),
        (llama2c_bytes(wq=np.full((2, 4, 4), np.nan)), "tensor 'wq' must be finite, got nan or inf"),
    ]:
        path = written("llama2c", data=data)
        with says(ValueError, f"read_llama2c: {path}: {words}"):
            read_llama2c(path, system=Float())
    absurd = struct.pack("<7i", *[2**24, 2**24, 2**24, 1, 1, 2**24, 2**24])
    with says(ValueError, "got 28"):  # nothing of that size is allocated
        read_model(written("llama2c", data=absurd))


def test_settings_take_defaults():
    settings = Settings("who", "file", {"a": None})
    assert (
        settings.integer("a", 3) == settings.integer("b", 3) == 3
        and settings.boolean("a", True)
        and settings.fraction("a", "1e-5") * 10**5 == 1
    )


@given(st.data())
def test_damaged_files_are_refused_or_read(tmp_path_factory, data):
    """Cut at any byte, or four bytes overwritten anywhere, most often in the header: ValueError,
    OSError or a model.
    """
    where = tmp_path_factory.mktemp("damaged")
    kind = data.draw(st.sampled_from(["gpt2", "llama", "nano", "llama2c"]))
    path = where / "file"
    if kind in ("gpt2", "llama"):
        write_safetensors(path, {"gpt2": gpt2_arrays, "llama": llama_arrays}[kind](), {})
        (where / "config.json").write_text(json.dumps({"gpt2": {"n_head": 2}, "llama": LLAMA}[kind]))
    else:
        path.write_bytes(json.dumps(nano_object()).encode() if kind == "nano" else llama2c_bytes())
    target = data.draw(st.sampled_from([path, where / "config.json"] if kind in ("gpt2", "llama") else [path]))
    whole = target.read_bytes()
    at = data.draw(st.integers(0, min(63, len(whole) - 1)) | st.integers(0, len(whole) - 1))
    patch = data.draw(
        st.none()
        | st.binary(min_size=1, max_size=4)
        | st.integers(-(2**31), 2**31 - 1).map(lambda i: struct.pack("<i", i))
    )
    target.write_bytes(whole[:at] if patch is None else whole[:at] + patch + whole[at + len(patch) :])
    try:
        assert read_model(path).config.vocabulary
    except (ValueError, OSError) as error:
        assert str(where) in str(error) and len(str(error)) < 1000


def test_reading_models_imports_neither_torch_nor_transformers():
    import subprocess

    imports = (
        "import sys, refimpl.files.models.gpt2, refimpl.files.models.llama, refimpl.files.tokenizers.tokenizer_files"
    )
    code = f"{imports}; print({{'torch', 'transformers', 'regex'}} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "set()"
    )
