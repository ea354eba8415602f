"""Bad input to conversion, compression and fidelity: every message, word for word."""

from __future__ import annotations

from typing import Any

import numpy as np

import refimpl as ri
from refimpl import MP, QQ, Best, Compression, Config, NotDefined, ZeroDenominator
from tests.helpers.bad_input import (
    Table,
    a,
    bias,
    cases,
    converted,
    k,
    model,
    nan,
    q,
    remembering,
    softmax_model,
    table_model,
    unrolled,
    v,
)

KINDS = (
    "cache, cholesky, clusters, directions, favor++, hyperbolic, nystrom, orthogonal, "
    "positive, simplex, taylor, tilted, "
    "tokens, trigonometric"
)


def summing() -> Any:
    """A model whose denominators are x_t Σ x_s."""
    plain = ri.random_model(QQ, Config(layers=1, width=1, phi="identity", norm="none"), 1)
    return ri.Model(plain.config, {name: QQ.ones(x.shape) for name, x in plain.weights.items()})


VALUE_ERRORS: Table = {
    # Models
    "convert: `strength` must be one number, of shape (), got shape (2,)": lambda: ri.convert(
        model, [[3, 1], [1, 2]], strength=np.ones(2)
    ),
    "unconvert: `mask` must be one of causal, full, got 'foo'": lambda: ri.unconvert(converted, [3, 1, 4], mask="foo"),
    # Conversion
    "convert: `mask` must be one of causal, full, got 2": lambda: ri.convert(model, [1], mask=2),
    "convert: `chunk` must be an integer ≥ 1, got 0": lambda: ri.convert(model, [1], chunk=0),
    "convert: `prompt` must hold ids from 0 to 4, got 7 at token 0": lambda: ri.convert(model, [7]),
    "convert: `prompt` must have shape (..., tokens, 3), got (2, 4)": lambda: ri.convert(model, a(2, 4)),
    "unconvert: `prompt` must hold ids from 0 to 4, got 9 at token 0": lambda: ri.unconvert(converted, [9]),
    "unconvert: `prompt` must be the last one converted, of 3 tokens, got 2 tokens": lambda: ri.unconvert(
        converted, [3, 1]
    ),
    "unconvert: `prompt` must be one that was converted, got a model that carries none": lambda: ri.unconvert(
        model, [3]
    ),
    # Memories
    f"Compression: did you mean 'nystrom'? `kind` must be one of {KINDS}, got 'nyström'": lambda: Compression(
        "nyström", 2
    ),
    "Compression: `r` must be None for 'cache', which sets it, got 2": lambda: Compression("cache", 2),
    "Compression: `r` must be an integer between 1 and 1048576, got None": lambda: Compression("tokens"),
    "truncate_rank: `rank` must be an integer between 1 and 3, got 4": lambda: Compression("clusters", 4, rank=4)(
        k, v, q[None], 0
    ),
    "Compression: `seed` must be an integer ≥ 0, got -1": lambda: Compression("tokens", 2, seed=-1),
    "Compression: `rank` must be an integer ≥ 1, got 0": lambda: Compression("tokens", 2, rank=0),
    "random_features: `r` must be even for hyperbolic, which makes two features of each direction, got 3": lambda: (
        Compression("hyperbolic", 3)(k, v, q[None], 0)
    ),
    "Best: one of `budget` and `error` must be given, got both or none": {
        "best_neither": lambda: Best(),
        "best_both": lambda: Best(budget=10, error=0.1),
    },
    "Best: `budget` must be an integer ≥ 1, got 0.5": lambda: Best(budget=0.5),
    "Best: `error` must be a finite number ≥ 0, got nan": lambda: Best(error=nan),
    "Best: `within` must be a finite number ≥ 0, got True": lambda: Best(error=0.1, within=True),
    f"Best: did you mean 'cache'? `kinds` must be one of {KINDS}, got 'cash'": lambda: Best(error=0.1, kinds=("cash",)),
    "Best: `budget` must hold a memory of one feature, got 40 bytes": lambda: Best(budget=40)(k, v, q[None], 0),
    "Best: `kinds` must have one that comes within an error of 0, as cache does, got none": lambda: Best(
        error=0, kinds=("positive",)
    )(k, v, q[None], 0),
    # Text, and how near
    "fidelity: `text` must hold ids from 0 to 4, got 9 at token 0": lambda: ri.fidelity(model, converted, [1], [9]),
    "fidelity: `model` must have a vocabulary, and `prompt` and `text` be token ids of it, got vectors": lambda: (
        ri.fidelity(model, converted, [1], a(2, 3))
    ),
}


TYPE_ERRORS: Table = {
    # Conversion
    "convert: `model` must be a Model, got State": lambda: ri.convert(bias, [1]),
    "convert: `strength` must be an integer, a float or an array, got '2'": lambda: ri.convert(
        model, [1], strength="2"
    ),
    "unconvert: `model` must be a Model, got NoneType": lambda: ri.unconvert(None, [1]),
    "unconvert: `form` must be a function, got int": lambda: ri.unconvert(converted, [3, 1, 4], form=5),
    "unconvert: `strength` must be an integer, a float or an array, got None": lambda: ri.unconvert(
        converted, [3, 1, 4], strength=None
    ),
    # Text, and how near
    "fidelity: `converted` must be a Model, got tuple": lambda: ri.fidelity(model, converted.biases, [1], [2]),
}


NOT_DEFINED: Table = {
    # Conversion
    "convert: `chunk` reads a prompt in pieces, and `mask` must be 'causal' for that, got 'full'": {
        "convert_full_pieces": lambda: ri.convert(model, [1], mask="full", chunk=1),
        "convert_full_stream": lambda: ri.convert(model, iter([[1]]), mask="full"),
    },
    ("convert: absolute positions cannot start again after a prompt; pass restart=False"): lambda: ri.convert(
        table_model, [1]
    ),
    # Memories
    "truncate_rank: singular values are made by NumPy, got mpmath(30 digits)": lambda: Compression("cache", rank=1)(
        *(MP(30).convert(x) for x in (k, v, q[None])), 0
    ),
    # Models with a softmax, and without sums
    "convert: the state of a recurrence is not a sum of its tokens; `strength` must be 1": lambda: ri.convert(
        unrolled, [1], strength=2
    ),
    "convert: `by` makes a memory for softmax attention; this model converts exactly without it": lambda: ri.convert(
        model, [1], by=Compression("cache")
    ),
    "convert: tokens of a KV cache count once; pass `by`, to make a memory that can count `strength` times": lambda: (
        ri.convert(softmax_model, [1], strength=2)
    ),
    (
        "unconvert: a prompt can be taken only out of the sums of linearized attention; keep the model without it"
    ): lambda: ri.unconvert(remembering, [3, 1, 4]),
    "RandomFeatures.rotated: taylor features have no directions to rotate; let positions go on": lambda: ri.convert(
        ri.convert(softmax_model, [1], by=Compression("taylor")), [2], by=Compression("taylor")
    ),
}


ZERO_DENOMINATORS: Table = {
    # Models
    (
        "layer 0: linear_attention_chunked: the denominator φ(q)·z is zero at token 1, head (0, 0) (no ε is added); "
        "counted from token 2 of the prompt"
    ): lambda: ri.convert(summing(), QQ.convert([[1], [2], [3], [-6], [2]]), chunk=2)
}


CASES = cases(
    {ValueError: VALUE_ERRORS, TypeError: TYPE_ERRORS, NotDefined: NOT_DEFINED, ZeroDenominator: ZERO_DENOMINATORS}
)
