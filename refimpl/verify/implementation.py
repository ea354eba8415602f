"""The implementation under test, as an argument: the functions that the theorems speak of.

`replace(REFIMPL, linear_attention_chunked=broken)` is the library with one planted bug. A theorem
must reject it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import nano
from ..attention import feature_error, feature_maps, memory, state
from ..attention import linear_attention as linear
from ..attention import random_features as features
from ..attention import rope as rotations
from ..attention import softmax_attention as softmax
from ..descent import dai, gradient, irie, patch, ren_liu, von_oswald
from ..model import generation
from ..model import recurrence as recurrences
from ..model import transformer as models
from ..prompt import conversion
from ..prompt.compression.landmarks import landmarks as choose_landmarks

Function = Callable[..., Any]


@dataclass(frozen=True)
class Implementation:
    """One function for each field; by default the library's function of that name."""

    # Attention
    linear_attention: Function = linear.linear_attention
    linear_attention_quadratic: Function = linear.linear_attention_quadratic
    linear_attention_recurrent: Function = linear.linear_attention_recurrent
    linear_attention_chunked: Function = linear.linear_attention_chunked
    softmax_attention: Function = softmax.softmax_attention
    softmax_attention_shifted: Function = softmax.softmax_attention_shifted
    feature_map: Function = feature_maps.feature_map
    rope: Function = rotations.Rope
    angle_table: Function = rotations.angle_table
    interleave: Function = rotations.interleave
    deinterleave: Function = rotations.deinterleave
    absorb: Function = state.absorb
    join: Function = state.join
    remove: Function = state.remove
    shift: Function = state.shift

    # Random features, and memories made of them
    random_features: Function = features.random_features
    mean_squared_error: Function = feature_error.mean_squared_error
    write_memory: Function = memory.write
    join_memories: Function = memory.join
    linear_attention_carried: Function = memory.linear_attention_carried
    landmarks: Function = choose_landmarks

    # Models and prompts
    norm: Function = models.norm
    mlp: Function = models.mlp
    transformer: Function = models.transformer
    generate: Function = generation.generate
    convert: Function = conversion.convert
    unconvert: Function = conversion.unconvert
    recurrence: Function = recurrences.recurrence
    recurrence_sum: Function = recurrences.recurrence_sum
    wkv4: Function = recurrences.wkv4
    wkv4_sum: Function = recurrences.wkv4_sum

    # Gradient descent
    squared_error: Function = gradient.squared_error
    dual_form: Function = irie.dual_form
    training_history: Function = irie.training_history
    von_oswald_steps: Function = von_oswald.steps
    regression_model: Function = von_oswald.regression_model
    mapped_model: Function = von_oswald.mapped_model
    weight_update: Function = von_oswald.weight_update
    pairing_model: Function = von_oswald.pairing_model
    f_icl: Function = dai.f_icl
    f_ft: Function = dai.f_ft
    momentum_attention: Function = dai.momentum_attention
    ren_liu_attention: Function = ren_liu.attention
    through_relu: Function = ren_liu.through_relu
    rank_one_patch: Function = patch.rank_one_patch

    # The theory on one page
    nano_attention: Function = nano.attention
    nano_transformer: Function = nano.transformer
    nano_convert: Function = nano.convert


REFIMPL = Implementation()
