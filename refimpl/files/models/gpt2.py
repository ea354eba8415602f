"""GPT-2: its published safetensors, and llm-viz's gpt-nano, the same architecture in JSON.

    x_0 = wte[text] + wpe        x ← x + attn(ln_1 x)        x ← x + mlp(ln_2 x)
    logits = ln_f(x) wteᵀ, or ln_f(x) lm_headᵀ

attn: softmax(q kᵀ/√d) v, with c_attn = [W_Q W_K W_V]    mlp: gelu(x c_fc) c_proj, by tanh
Source   Radford et al. 2019, as published in safetensors; Bycroft's llm-viz (Karpathy's minGPT).
"""

from __future__ import annotations

import base64
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import brief
from ...model.attention_layers import Config
from ...model.transformer import Model
from ...systems import System
from ..disk import PathLike, check_path, is_shape, located, read_object
from ..safetensors import read_safetensors
from .mapping import take_weights
from .reading import Format, Settings, Tensors

LARGEST_NANO = 2**28  # bytes of a model in JSON
EMBEDDINGS = {"wte.weight", "transformer.wte.weight"}
BUFFERS = (".attn.bias", ".attn.masked_bias")  # the causal mask, which is no weight


def read_gpt2(path: PathLike, *, system: System) -> Model:
    """The model in GPT-2's safetensors, with or without the prefix "transformer." before its names.

    `config.json` beside the file gives heads and ε; without it they are width/64 and 10⁻⁵.
    Matrices are (in, out). The head is tied to the embedding if lm_head is missing or equal to it.
    """
    who = "read_gpt2"
    check_path(who, path)
    beside = Path(path).with_name("config.json")
    tensors = Tensors(who, path, without_prefix(f"{who}: {path}", read_safetensors(path).tensors), system)
    settings = Settings(who, beside, read_object(who, beside) if beside.is_file() else {})
    settings.check_one_of("model_type", "gpt2")
    settings.check_one_of("activation_function", "gelu_new", "gelu_pytorch_tanh")  # two names of one function
    settings.check_one_of("scale_attn_weights", True)
    for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        settings.check_one_of(key, False)
    width = tensors.shape("wte.weight", 2)[1]
    if settings.get("n_head", None) is None and width % 64:
        wanted = f"the width must be a multiple of 64, or {beside} must have `n_head`"
        raise ValueError(f"{tensors.about}: {wanted}, got a width of {width}")
    head, embedding = "lm_head.weight", "wte.weight"
    if head in tensors and (tensors.equal(head, embedding) or settings.boolean("tie_word_embeddings", False)):
        tensors.remove_tied(head, embedding, beside)
    heads, epsilon = settings.integer("n_head", width // 64), settings.fraction("layer_norm_epsilon", "1e-5")
    return gpt2(tensors, settings, heads, epsilon)


def read_nano(path: PathLike, *, system: System) -> Model:
    """The model in llm-viz's JSON. Matrices are (out, in); the head is a separate matrix."""
    values, arrays = read_arrays(path)
    settings = Settings("read_nano", path, values)
    tensors = Tensors("read_nano", path, without_prefix(settings.about, arrays), system)
    return gpt2(tensors, settings, settings.integer("n_head"), Fraction(1, 100000), out_first=True)


def without_prefix(about: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights by their names without "transformer."."""
    found = {}
    for name, x in arrays.items():
        short = name.removeprefix("transformer.")
        if short in found:
            both = f"both {short[:200]!r} and {f'transformer.{short}'[:200]!r}"
            raise ValueError(f"{about}: a tensor must be in the file once, got {both}")
        if not short.endswith(BUFFERS):
            found[short] = x
    return found


def read_arrays(path: PathLike) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The `config` of llm-viz's JSON, and its arrays.

    An array is {name: {"shape": [...], "dtype": "torch.float32", "data": base64}}.
    """
    found = read_object("read_nano", path, LARGEST_NANO)
    config = found.pop("config", None)
    if not isinstance(config, dict):
        raise ValueError(f"read_nano: {path}: `config` must be an object of llm-viz's JSON, got {brief(config)}")
    return config, {name: decode_array(f"read_nano: {path}: tensor {name[:200]!r}", x) for name, x in found.items()}


def decode_array(about: str, info: Any) -> np.ndarray:
    if not isinstance(info, dict) or set(info) != {"shape", "dtype", "data"}:
        raise ValueError(f"{about} must have shape, dtype, data and nothing else, got {brief(info)}")
    shape, data = info["shape"], info["data"]
    if not is_shape(shape) or len(shape) > 8 or max(shape, default=0) >= 2**31:
        raise ValueError(f"{about} must have a shape of at most 8 integers from 0 to 2^31 − 1, got {brief(shape)}")
    if info["dtype"] != "torch.float32":
        raise ValueError(f"{about} must have dtype 'torch.float32', got {brief(info['dtype'])}")
    try:
        numbers = base64.b64decode(data, validate=True)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{about} must have its data in base64, got {brief(data)}: {error}") from error
    if len(numbers) != (needed := 4 * math.prod(shape)):
        raise ValueError(f"{about} must have {needed} bytes for float32 of shape {shape}, got {len(numbers)}")
    return np.frombuffer(numbers, "<f4").reshape(shape)


def gpt2(tensors: Tensors, settings: Settings, heads: int, epsilon: Fraction, out_first: bool = False) -> Model:
    """The model of GPT-2's tensors; matrices of the file are (out, in) if `out_first`."""
    vocabulary, width = tensors.shape("wte.weight", 2)
    table = tensors.shape("wpe.weight", 2)[0]
    if width % heads:
        raise ValueError(f"{settings.about}: `n_head` must divide the width {width}, got {heads}")
    layers = tensors.count_layers("h.{}.ln_1.weight")
    hidden = tensors.shape("h.0.mlp.c_fc.bias", 1)[0]
    for key, found in {"n_layer": layers, "n_embd": width, "vocab_size": vocabulary, "n_inner": hidden}.items():
        settings.check_integer(key, found)
    for key in ("n_positions", "n_ctx", "block_size"):
        settings.check_integer(key, table)

    tied = "lm_head.weight" not in tensors
    d = width // heads
    sizes: dict[str, Any] = {"hidden": hidden, "vocabulary": vocabulary, "table": table}
    with located(tensors.about):
        config = Config(layers, width, heads, None, d, d, "softmax", epsilon=epsilon, biased=True, tied=tied, **sizes)
    mapping = mapping_of(".T" if out_first else "") | ({} if tied else {"lm_head.weight": "unembedding.T"})
    return tensors.model(config, take_weights(tensors, config, mapping))


def mapping_of(T: str) -> dict[str, Any]:
    """What each tensor holds, as in mapping.py; T: what stands behind the name of a matrix."""
    names: dict[str, Any] = {"wte.weight": "embedding", "wpe.weight": "positions"}
    for theirs, ours in {"ln_f": "", "h.{}.ln_1": "_1", "h.{}.ln_2": "_2"}.items():
        names |= {f"{theirs}.weight": f"gain{ours}", f"{theirs}.bias": f"offset{ours}"}
    for theirs, ours in {"attn.c_proj": "O", "mlp.c_fc": "up", "mlp.c_proj": "down"}.items():
        names |= {f"h.{{}}.{theirs}.weight": f"W_{ours}{T}", f"h.{{}}.{theirs}.bias": f"b_{ours}"}
    names["h.{}.attn.c_attn.weight"] = [f"W_{x}{T}" for x in "QKV"]
    names["h.{}.attn.c_attn.bias"] = [f"b_{x}" for x in "QKV"]
    return names


FORMATS = (
    Format("GPT-2's safetensors", lambda o: not EMBEDDINGS.isdisjoint(o.tensors), read_gpt2),
    Format("llm-viz's JSON", lambda o: not o.is_safetensors and o.start.lstrip().startswith(b"{"), read_nano),
)
