"""All public names of the package, in the order of reading."""

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
from .errors import NotDefined, NotFinite, Underflow, ZeroDenominator
from .files.checkpoint import digest, load, save
from .files.models import read_model
from .files.models.mapping import model_from_weights
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

# Those of refimpl.verify are imported on first use.
__all__ = ["QQ", "GF", "MP", "Float", "balls", "Rounded", "RunningError", "Degrees", "Dependencies", "Dual"]
__all__ += ["system", "system_of", "floats"]
__all__ += ["linear_attention", "linear_attention_quadratic", "linear_attention_recurrent", "linear_attention_chunked"]
__all__ += ["Kernel", "feature_maps", "FEATURE_MAPS", "feature_map"]
__all__ += ["rope", "Rope", "rotate", "angle_table", "power_table", "circle_point", "state", "State"]
__all__ += ["softmax_attention", "softmax_attention_shifted", "KVCache", "Memory", "Points", "linear_attention_carried"]
__all__ += ["RandomFeatures", "random_features", "mean_squared_error", "recurrence", "recurrence_sum", "Carried"]
__all__ += ["Config", "Rotary", "Rwkv", "Model", "random_model", "draw_model", "transformer", "generate"]
__all__ += ["convert", "unconvert", "Compression", "Best", "Fidelity", "fidelity"]
__all__ += ["save", "load", "digest", "read_model", "model_from_weights", "read_tokenizer"]
__all__ += ["compare", "Comparison"]
__all__ += ["check_conversion", "exact_probe", "Probe", "exact_with_bound", "judge", "Judgement", "unit_roundoff"]
__all__ += ["NotDefined", "NotFinite", "Underflow", "ZeroDenominator", "__version__"]

_VERIFY = {"check_conversion": "conversion_check", "exact_probe": "probes", "Probe": "probes"}
_VERIFY |= {"compare": "model_check", "Comparison": "model_check"}
_VERIFY |= dict.fromkeys(["exact_with_bound", "judge", "Judgement", "unit_roundoff"], "bounds")


def __getattr__(name: str) -> Any:
    if name not in _VERIFY:
        raise AttributeError(f"module 'refimpl' has no attribute {name!r}")
    return getattr(importlib.import_module(f"refimpl.verify.{_VERIFY[name]}"), name)
