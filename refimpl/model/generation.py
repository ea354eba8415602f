"""Generation of text. Each token is read once, from the state after all earlier tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..arrays import HostArray
from ..checks import check_integer, check_token_ids, check_type
from ..errors import brief
from ..systems import floats, require, system_of
from ..systems.floats import CUT, quiet
from .transformer import Model, Pass, embed, run_layers, unembed


def generate(model: Model, text: Any, tokens: int, *, temperature: float = 0, seed: int = 0) -> Iterator[int]:
    """The ids that follow a text, one after the other.

        temperature 0   the likeliest (of equals the first)
        T > 0           id i with probability softmax(logits / T)_i

    text : token ids, one or more; a model that carries a prompt reads them behind it

    >>> from refimpl import Config, Float, convert, random_model
    >>> model = random_model(Float(), Config(layers=2, width=4, d=2, m=2, vocabulary=5), seed=0)
    >>> list(generate(model, [3, 1, 4, 1], 6)) == list(generate(convert(model, [3, 1, 4]), [1], 6))
    True
    """
    ids = check_request(model, text, tokens, temperature, seed)
    return generate_ids(*read_tokens(model, ids), tokens, temperature, seed)


def check_request(model: Model, text: Any, tokens: int, temperature: float, seed: int) -> HostArray:
    """The text as ids, if all arguments of `generate` are in order."""
    check_integer("generate", "tokens", tokens, least=0)
    check_integer("generate", "seed", seed, least=0)
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 <= temperature < float("inf"):
        raise ValueError(f"generate: `temperature` must be a finite number ≥ 0, got {brief(temperature)}")
    check_type("generate", "model", model, Model)
    require(system_of(model.like), "ordered", "generate")
    c = model.config
    if not c.vocabulary:
        raise ValueError("generate: `model` must have a vocabulary, got one from vectors to vectors")
    ids: HostArray | None = check_token_ids("generate", "text", text, c.vocabulary)
    if ids is None or ids.ndim != 1 or not len(ids):
        got = "vectors" if ids is None else "none" if ids.ndim == 1 else f"a batch of shape {ids.shape}"
        raise ValueError(f"generate: `text` must be one text of token ids, one or more, got {got}")
    room = c.table - model.position - len(ids) + 1  # the last id is not read
    if c.table and 1 <= room < tokens:
        table = f"for a table of {c.table} positions"
        raise ValueError(f"generate: `tokens` must be at most {room} after this text, {table}, got {tokens}")
    return ids


def read_tokens(model: Model, ids: HostArray) -> tuple[HostArray, Model]:
    """The logits of the next token, (vocabulary,) in float64; the model that carries the text."""
    x, pasts = run_layers(model, embed(model, ids), Pass())
    if x.ndim != 2:
        raise ValueError(f"generate: `model` must carry one prompt, got a batch of shape {tuple(x.shape[:-2])}")
    some = max(x.shape[-2] - CUT, 0) // CUT * CUT  # tokens whose logits are not needed
    return floats(unembed(model, x[some:, :])[-1, :]), model.carry(pasts, model.prompts)


def generate_ids(logits: HostArray, model: Model, tokens: int, temperature: float, seed: int) -> Iterator[int]:
    """The ids that follow the text which `read_tokens` has read."""
    rng = np.random.default_rng(seed)
    for left in reversed(range(tokens)):
        token = choose_token(logits, temperature, rng)
        yield token
        if left:
            logits, model = read_tokens(model, np.array([token]))


def choose_token(logits: HostArray, temperature: float, rng: np.random.Generator) -> int:
    """The likeliest id at temperature 0, else one drawn from softmax(logits / temperature)."""
    if not temperature:
        return int(np.argmax(logits))
    with quiet():  # at temperatures near 0 the others are infinitely less likely
        p = np.exp((logits - logits.max()) / temperature)
    return int(rng.choice(len(p), p=p / p.sum()))
