"""refimpl: linearized attention and in-context learning, in one source over many number systems.

One notation, in code, tests and proofs:

    n tokens    t query position    s ≤ t key position    d key width    m value width    r features    M prompt length
    q, k (..., n, d)    v (..., n, m)    phi φ: (..., d) -> (..., r)    R_p the RoPE rotation of position p
    S = Σ φ(k_s) v_sᵀ (..., r, m)    z = Σ φ(k_s) (..., r)
    Positions start at 0. Leading axes (batch, heads ...) broadcast.
"""

from .attention import softmax_attention, softmax_attention_shifted
from .checkpoint import digest, load, save
from .compression import Compression
from .compression.best import Best
from .config import Config, Rotary
from .conversion import convert, unconvert
from .errors import NotDefined, NotFinite, ZeroDenominator
from .feature_error import mean_squared_error
from .feature_maps import (
    FEATURE_MAPS,
    dpfp,
    elu_plus_one,
    exp,
    feature_map,
    hedgehog,
    identity,
    polynomial,
    relu,
    relu2,
    taylor2,
    taylor2_pair,
)
from .fidelity import Fidelity, fidelity
from .generation import generate
from .linear_attention import linear_attention, linear_attention_chunked, linear_attention_quadratic, linear_attention_recurrent
from .memory import Memory, Points, linear_attention_carried
from .models import read_model
from .models.tokenizers import read_tokenizer
from .random_features import RandomFeatures, random_features
from .recurrent import Carried, Rwkv, recurrence, recurrence_sum
from .rope import Rope, angle_table, circle_point, deinterleave, interleave, power_table, rotate
from .state import KVCache, State, absorb, features, join, no_text, remove, scale, shift
from .systems import GF, MP, QQ, Degrees, Dependencies, Dual, Float, Rounded, RunningError, balls, floats, system, system_of
from .transformer import Model, draw_model, random_model, transformer
from .verify.bounds import Judgement, exact_with_bound, judge, unit_roundoff
from .verify.conversion_check import check_conversion
from .verify.probes import Probe, exact_probe

__version__ = "0.1.0"
