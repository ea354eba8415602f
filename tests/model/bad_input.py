"""Bad input to models and generation: every message, word for word."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

import refimpl as ri
from refimpl import GF, QQ, Config, NotDefined, NotFinite, Rotary, State, ZeroDenominator
from tests.helpers.bad_input import (
    F,
    Table,
    W,
    a,
    before,
    bias,
    cases,
    config,
    converted,
    f32,
    inf,
    kept,
    la,
    model,
    nan,
    put,
    soft,
    softmax_model,
    table_model,
    unrolled,
)


def with_biases(*biases: State) -> ri.Model:
    return replace(model, biases=biases)


def in_Q(**options: Any) -> Any:
    return ri.random_model(QQ, replace(config, phi="identity", norm="none", **options), 1)([1])


def loud() -> Any:
    untied = replace(config, tied=False)
    weights = {name: w * 0 for name, w in ri.random_model(ri.Float("numpy", "float16"), untied, 1).weights.items()}
    for name, value in (
        ("offset", 300),
        ("unembedding", 300),
        ("embedding", 1),
        ("layers.0.W_K", 1),
        ("layers.0.W_Q", 1),
    ):
        weights[name] = weights[name] + np.float16(value)
    return ri.Model(untied, weights)([0])


def small16(*, width: int = 1, norm: str = "none", **values: float) -> Any:
    """A small model in float16, its weights 1 but for those given."""
    plain = ri.random_model(ri.Float("numpy", "float16"), Config(layers=1, width=width, phi="identity", norm=norm), 1)
    weights = {name: np.full_like(x, values.get(name.rpartition(".")[2], 1)) for name, x in plain.weights.items()}
    return ri.Model(plain.config, weights)


def overflowing() -> Any:
    """x + o beyond float16: x and v are large, nothing else is."""
    plain = ri.random_model(ri.Float("numpy", "float16"), Config(layers=1, width=1, norm="none"), 1)
    large = ri.Model(
        plain.config, {name: np.full_like(x, name.endswith(("W_V", "W_O"))) for name, x in plain.weights.items()}
    )
    return large(np.array([[60000]], np.float16))


def zero_keys() -> Any:
    """A model whose keys are all 0, and with φ = identity its denominators."""
    return ri.Model(replace(config, phi="identity"), W | {"layers.0.W_K": 0 * W["layers.0.W_K"]})([1, 2])


VALUE_ERRORS: Table = {
    # Configurations
    "Rotary: did you mean 'half'? `layout` must be one of half, interleaved, got 'halves'": lambda: Rotary(2, "halves"),
    "Rotary: did you mean 'before'? `placement` must be one of after, before, got 'befor'": lambda: Rotary(
        2, placement="befor"
    ),
    "Rotary: `width` must be an integer between 0 and 65536, got -2": lambda: Rotary(width=-2),
    "Rotary: `width` must be even, to pair features, got 3": lambda: Rotary(width=3),
    "Rotary: `base` must be an integer ≥ 1, got 10000.0": lambda: Rotary(2, base=1e4),
    "Config: `layers` must be an integer ≥ 1, got 0": lambda: Config(0, 3),
    "Config: `width` must be an integer ≥ 1, got 3.0": lambda: Config(1, 3.0),
    "Config: `groups` must be an integer ≥ 1, got 0": lambda: Config(1, 3, groups=0),
    "Config: `groups` must divide heads = 4, got 3": lambda: Config(1, 3, heads=4, groups=3),
    "Config: did you mean 'pre'? `order` must be one of parallel, post, pre, got 'prenorm'": lambda: Config(
        1, 3, order="prenorm"
    ),
    (
        "Config: did you mean 'rms'? `norm` must be one of layer, layer_rational, none, rms, rms_rational, got 'rsm'"
    ): lambda: Config(1, 3, norm="rsm"),
    "Config: `activation` must be one of gelu, quadratic, relu, silu, got 'swish'": lambda: Config(
        1, 3, activation="swish"
    ),
    "Config: `epsilon` must be a Fraction ≥ 0, got 1e-05": lambda: Config(1, 3, epsilon=1e-5),
    "Config: `epsilon` must be a Fraction ≥ 0, got Fraction(-1, 2)": lambda: Config(1, 3, epsilon=Fraction(-1, 2)),
    # Models
    (
        "Model: `weights` must be one of embedding, gain, layers.0.W_K, layers.0.W_O, layers.0.W_Q, layers.0.W_V, "
        "layers.0.gain_1, layers.0.offset_1, offset, got 'W_Q'"
    ): lambda: ri.Model(config, W | {"W_Q": 0}),
    "Model: `weights` must have 'layers.0.W_Q' of shape (3, 4), got no such name": lambda: ri.Model(
        config, {name: x for name, x in W.items() if name != "layers.0.W_Q"}
    ),
    "Model: `layers.0.W_K` must have shape (3, 2), got (2, 3)": lambda: ri.Model(
        config, W | {"layers.0.W_K": W["layers.0.W_K"].T}
    ),
    "Model: `layers.0.W_K` must be finite, got nan or inf at row 2, column 1": lambda: ri.Model(
        config, W | {"layers.0.W_K": put(W["layers.0.W_K"], (2, 1), nan)}
    ),
    "Model: `offset` must be finite, got nan or inf at column 1": lambda: ri.Model(
        config, W | {"offset": put(W["offset"], 1, inf)}
    ),
    "Model: `biases` must be 1 states read from one position, got [0, 0]": lambda: with_biases(bias, bias),
    "Model: `biases` must be 2 states read from one position, got [0, 1]": lambda: replace(
        ri.random_model(F, replace(config, layers=2), 1), biases=(bias, replace(bias, position=1))
    ),
    "Model: `prompts` must be an integer ≥ 0, got 1.5": lambda: ri.Model(
        converted.config, converted.weights, converted.biases, (1.5,)
    ),
    "Model: `biases[0].S` must have shape (..., 1, features, 2), got (2, 2)": lambda: with_biases(
        State(bias.S[0], bias.z)
    ),
    "Model: `biases[0]` has b_KV but no b_D; a normalised layer needs both": lambda: with_biases(State(bias.S, None)),
    "Model: `biases[0].z` must have shape (..., 2) (features), got (1, 3)": lambda: with_biases(State(bias.S, a(1, 3))),
    "Model: `biases[0].S` must be finite, got nan or inf at feature 1, column 0, head (0,)": lambda: with_biases(
        State(put(bias.S, (0, 1, 0), nan), bias.z)
    ),
    "transformer: `text` must have shape (..., tokens), got ()": lambda: model(3),
    "transformer: `text` must hold ids from 0 to 4, got 5 at token 2": lambda: model([1, 4, 5]),
    "transformer: `text` must hold ids from 0 to 4, got -1 at token 1, head (1,)": lambda: model(
        np.array([[1, 2], [3, -1]])
    ),
    "transformer: `text` must have shape (..., tokens, 3), got (2, 4)": lambda: model(a(2, 4)),
    "transformer: `text` must be finite, got nan or inf at token 1, column 2": lambda: model(put(a(2, 3), (1, 2), nan)),
    "transformer: `text` must fit the table of 4 absolute positions, got 5 tokens read from position 0 on": lambda: (
        table_model([0] * 5)
    ),
    "transformer: `text` must fit the table of 4 absolute positions, got 2 tokens read from position 3 on": lambda: (
        ri.convert(table_model, [1, 2, 3], restart=False)([0, 0])
    ),
    # Models with a softmax, and without sums
    (
        "Config: `phi` 'softmax' must go with normalise=True and RoPE before the kernel (or none), "
        "got normalise=False, rope=None"
    ): lambda: Config(1, 2, phi="softmax", normalise=False),
    (
        "Config: `phi` 'softmax' must go with normalise=True and RoPE before the kernel (or none), "
        "got normalise=True, rope=Rotary(width=2, layout='half', placement='after', base=10000)"
    ): lambda: Config(1, 2, d=2, phi="softmax", rope=Rotary(2)),
    "Model: `biases[0].k` must have shape (..., 1, tokens, 2), got (3, 2)": lambda: replace(
        softmax_model, biases=(replace(kept, k=kept.k[0]),)
    ),
    "Model: `biases[0].v` must have shape (..., 1, 3, 2) to match its k, got (1, 2, 2)": lambda: replace(
        softmax_model, biases=(replace(kept, v=kept.v[:, 1:]),)
    ),
    # Text, and how near
    "generate: `tokens` must be an integer ≥ 0, got -1": lambda: ri.generate(model, [1], -1),
    "generate: `seed` must be an integer ≥ 0, got None": lambda: ri.generate(model, [1], 1, seed=None),
    "generate: `temperature` must be a finite number ≥ 0, got nan": lambda: ri.generate(model, [1], 1, temperature=nan),
    "generate: `temperature` must be a finite number ≥ 0, got True": lambda: ri.generate(
        model, [1], 1, temperature=True
    ),
    "generate: `model` must have a vocabulary, got one from vectors to vectors": lambda: ri.generate(
        ri.random_model(F, Config(1, 2), 1), [1], 1
    ),
    "generate: `text` must hold ids from 0 to 4, got 5 at token 0": lambda: ri.generate(model, [5], 1),
    "generate: `text` must be one text of token ids, one or more, got none": lambda: ri.generate(model, [], 1),
    "generate: `text` must be one text of token ids, one or more, got a batch of shape (2, 1)": lambda: ri.generate(
        model, [[1], [2]], 1
    ),
    "generate: `text` must be one text of token ids, one or more, got vectors": lambda: ri.generate(model, a(2, 3), 1),
    "generate: `model` must carry one prompt, got a batch of shape (2,)": lambda: ri.generate(
        ri.convert(model, [[1], [2]]), [1], 1
    ),
    "generate: `tokens` must be at most 3 after this text, for a table of 4 positions, got 4": lambda: ri.generate(
        table_model, [1, 2], 4
    ),
}


TYPE_ERRORS: Table = {
    # Configurations
    "Config: `phi` must be a function, a name, or a pair (φ_q, φ_k) of them, got None": lambda: Config(1, 3, phi=None),
    "Config: `rope` must be a Rotary, got Rope": lambda: Config(1, 3, rope=before),
    # Models
    "Model: `config` must be a Config or another Family, got dict": lambda: ri.Model({}, W),
    "Model: `gain` has dtype float32, `layers.0.W_Q` has float64; convert one of them explicitly": lambda: ri.Model(
        config, W | {"gain": W["gain"].astype(np.float32)}
    ),
    "Model: `biases[0]` must be a State, got int": lambda: ri.Model(converted.config, converted.weights, (1,)),
    "transformer: `model` must be a Model, got Config": lambda: ri.transformer(config, [1]),
    "transformer: `text` must be token ids (..., tokens) or an array of vectors, got [0.5]": lambda: model([0.5]),
    "transformer: `text` must be token ids (..., tokens) or an array of vectors, got 'hello'": lambda: model("hello"),
    "transformer: `text` has dtype float32, `weights` has float64; convert one of them explicitly": lambda: model(
        np.ones((2, 3), np.float32)
    ),
    "random_model: `system` must be a System, got str": lambda: ri.random_model("float64", config, 1),
    "Model: `weights` must be a Mapping, got NoneType": lambda: ri.Model(config, None),
    # Models with a softmax, and without sums
    "Model: `biases[0].v` has dtype float32, `weights` has float64; convert one of them explicitly": lambda: replace(
        softmax_model, biases=(replace(kept, v=f32(kept.v)[0]),)
    ),
    # Text, and how near
    "generate: `model` must be a Model, got dict": lambda: ri.generate(W, [1], 1),
}


NOT_DEFINED: Table = {
    # Models
    "exp is not defined in ℚ; layer norm needs a real system": lambda: ri.random_model(
        QQ, replace(config, phi="identity"), 1
    )([1]),
    "exp is not defined in ℚ; gelu needs a real system": lambda: in_Q(hidden=2),
    # Models with a softmax, and without sums
    "transformer: `form` must be of softmax attention, as the model is, got linear_attention": lambda: softmax_model(
        [1], form=la
    ),
    "transformer: `form` must be of linear attention, as the model is, got softmax_attention": lambda: model(
        [1], form=soft
    ),
    "transformer: a recurrence reads its text from left to right; `mask` must be 'causal', got 'full'": lambda: (
        unrolled([1], mask="full")
    ),
    # Text, and how near
    "maximum is not defined in GF(7); generate needs an ordered system": lambda: ri.generate(
        ri.random_model(GF(7), replace(config, phi="identity", norm="none"), 1), [1], 1
    ),
}


ZERO_DENOMINATORS: Table = {
    # Models
    (
        "layer 0: linear_attention_chunked: the denominator φ(q)·z is zero at token 0, head (0, 0) (no ε is added)"
    ): zero_keys
}


NOT_FINITE: Table = {
    # Models
    "layer 0: transformer: q overflows numpy float16: nan or inf at token 0, column 0, head (0, 0)": lambda: small16(
        W_Q=60000
    )(np.array([[2]], np.float16)),
    "layer 0: rms norm: mean(y²) + ε overflows numpy float16: nan or inf at token 0, column 0": lambda: small16(
        norm="rms"
    )(np.array([[300]], np.float16)),
    "transformer: the output overflows numpy float16: nan or inf at token 0, column 1": lambda: small16(
        width=2, norm="rms", gain=60000
    )(np.array([[2, -6]], np.float16)),
    "layer 0: transformer: its output overflows numpy float16: nan or inf at token 0, column 0": overflowing,
    "transformer: the output overflows numpy float16: nan or inf at token 0, column 0": loud,
}


CASES = cases(
    {
        ValueError: VALUE_ERRORS,
        TypeError: TYPE_ERRORS,
        NotDefined: NOT_DEFINED,
        ZeroDenominator: ZERO_DENOMINATORS,
        NotFinite: NOT_FINITE,
    }
)
