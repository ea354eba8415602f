"""refimpl: linearized attention and in-context learning, in one source over many number systems.

One notation, in code, tests and proofs:

    n tokens    t query position    s ≤ t key position    d key width    m value width
    r features    M prompt length
    q, k (..., n, d)    v (..., n, m)    phi φ: (..., d) -> (..., r)
    R_p the RoPE rotation of position p
    S = Σ φ(k_s) v_sᵀ (..., r, m)    z = Σ φ(k_s) (..., r)
    Positions start at 0. Leading axes (batch, heads ...) broadcast.

Start with nano.py, which has the theory on one page.
"""

from __future__ import annotations

import importlib
from typing import Any

from .attention import feature_maps, rope, state
from .attention.feature_error import mean_squared_error
from .attention.feature_maps import FEATURE_MAPS, Kernel, feature_map
from .attention.linear_attention import (
    State,
    linear_attention,
    linear_attention_chunked,
    linear_attention_quadratic,
    linear_attention_recurrent,
)
from .attention.memory import Memory, Points, linear_attention_carried
from .attention.random_features import RandomFeatures, random_features
from .attention.rope import Rope, angle_table, circle_point, power_table, rotate
from .attention.softmax_attention import KVCache, softmax_attention, softmax_attention_shifted
from .errors import NotDefined, NotFinite, ZeroDenominator
from .files.checkpoint import digest, load, save
from .files.models import read_model
from .files.tokenizers import read_tokenizer
from .model.attention_layers import Config, Rotary
from .model.generation import generate
from .model.recurrence import Carried, recurrence, recurrence_sum
from .model.rwkv import Rwkv
from .model.transformer import Model, draw_model, random_model, transformer
from .packages import __version__
from .prompt.compression import Compression
from .prompt.compression.best import Best
from .prompt.conversion import convert, unconvert
from .prompt.fidelity import Fidelity, fidelity
from .systems import (
    GF,
    MP,
    QQ,
    Degrees,
    Dependencies,
    Dual,
    Float,
    Rounded,
    RunningError,
    balls,
    floats,
    system,
    system_of,
)

# Names of refimpl.verify, which is imported when the first of them is asked for.
_VERIFY = {
    "Judgement": "bounds",
    "exact_with_bound": "bounds",
    "judge": "bounds",
    "unit_roundoff": "bounds",
    "check_conversion": "conversion_check",
    "Probe": "probes",
    "exact_probe": "probes",
}


def __getattr__(name: str) -> Any:
    if name not in _VERIFY:
        raise AttributeError(f"module 'refimpl' has no attribute {name!r}")
    return getattr(importlib.import_module(f"refimpl.verify.{_VERIFY[name]}"), name)


# In the order of reading: numbers, attention, its state, models, prompts, files, evidence, errors.
__all__ = [
    "FEATURE_MAPS",
    "GF",
    "MP",
    "QQ",
    "Best",
    "Carried",
    "Compression",
    "Config",
    "Degrees",
    "Dependencies",
    "Dual",
    "Fidelity",
    "Float",
    "Judgement",
    "KVCache",
    "Kernel",
    "Memory",
    "Model",
    "NotDefined",
    "NotFinite",
    "Points",
    "Probe",
    "RandomFeatures",
    "Rope",
    "Rotary",
    "Rounded",
    "RunningError",
    "Rwkv",
    "State",
    "ZeroDenominator",
    "__version__",
    "angle_table",
    "balls",
    "check_conversion",
    "circle_point",
    "convert",
    "digest",
    "draw_model",
    "exact_probe",
    "exact_with_bound",
    "feature_map",
    "feature_maps",
    "fidelity",
    "floats",
    "generate",
    "judge",
    "linear_attention",
    "linear_attention_carried",
    "linear_attention_chunked",
    "linear_attention_quadratic",
    "linear_attention_recurrent",
    "load",
    "mean_squared_error",
    "power_table",
    "random_features",
    "random_model",
    "read_model",
    "read_tokenizer",
    "recurrence",
    "recurrence_sum",
    "rope",
    "rotate",
    "save",
    "softmax_attention",
    "softmax_attention_shifted",
    "state",
    "system",
    "system_of",
    "transformer",
    "unconvert",
    "unit_roundoff",
]
