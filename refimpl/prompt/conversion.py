"""ICLCA: a prompt becomes biases of the attention, exactly, with no training.

For a prompt of M tokens before the input, in each layer and head,

    b'_KV = R_{-M} b_KV + Σ_{j=0..M-1} R_{j-M} φ(k'_j) v'_jᵀ      b'_D = b_D + Σ_{j=0..M-1} φ(k'_j)

and the model with b'_KV, b'_D, run on the input alone, gives exactly the output of the model that
reads the prompt and the input, for every input of every length. The biases are the state of the
attention after the prompt, seen from where the input will be read.

With RoPE before the kernel, R_{j-M} stands inside φ, and in b_D too; positions can then begin anew
only for φ = identity.

Where attention is softmax, the state after the prompt is its KV cache, exact and as long as the
prompt. ICLAA makes of it, approximately, a memory of fixed size: b_KV = Σ φ(R_{j-M} k'_j) v'_jᵀ and
b_D = Σ φ(R_{j-M} k'_j) for a map φ whose products are nearly exp(q·k/√d). Prompt tokens see
each other by exact softmax, and so do input tokens: only the prompt's part of the sums for the
input is approximate. The state of a recurrent layer is exact again.

Assumes  prompt activations do not depend on the input (causal; prefix masks are our extension);
         relative positions, unless positions go on where the prompt ended; a denominator that is a
         sum over tokens
Source   Chen, Hu, Jin, Lee, Kawaguchi 2024 (arXiv 2406.02847), Theorem 4.5; positions start at 0

    >>> from refimpl import QQ, Config, random_model
    >>> config = Config(2, 3, heads=2, d=2, m=1, phi="identity", norm="none", vocabulary=5)
    >>> model = random_model(QQ, config, seed=0)
    >>> converted = convert(model, [3, 1, 4])
    >>> QQ.equal(converted([1, 2]), model([3, 1, 4, 1, 2])[3:, :])
    True
    >>> converted.biases[0].b_KV.shape, converted.biases[0].b_D.shape
    ((2, 2, 1), (2, 2))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from ..arrays import Array
from ..attention import state as states
from ..attention.feature_maps import Kernel
from ..attention.linear_attention import State, linear_attention_chunked
from ..attention.memory import Memory, join, write
from ..attention.random_features import same_draw
from ..attention.softmax_attention import KVCache
from ..attention.underflow import check_scaled
from ..checks import check_flag, check_function, check_integer, check_scalar, check_type, is_zero
from ..errors import NotDefined, NotFinite, Underflow, choose
from ..model.transformer import Between, Model, Pass, check_text, embed, run_layers
from ..systems.floats import array_namespace, device, quiet

PIECE = 1024  # tokens: matrix products gain nothing from more
# (keys, values, expected queries, layer) -> memory; see compression/
Maker = Callable[[Array, Array, Array, int], Memory]


@quiet()
def convert(
    model: Model,
    prompt: Any,
    *,
    mask: str = "causal",
    restart: bool = True,
    strength: Any = 1,
    chunk: int | None = None,
    by: Maker | None = None,
    form: Any = None,
    between: Between | None = None,
) -> Model:
    """The same model, carrying the prompt as biases.

        past_i = the past of layer i after the prompt, which it reads from the old biases
        b'_i = shift(past_i, −M)

    prompt : token ids (..., M) or vectors (..., M, width); leading axes are a batch of prompts;
             or an iterator over consecutive pieces
    mask : "causal", or "full": prompt tokens see each other, as under a prefix mask
    restart : read the input where the prompt began (with `by`, this may be one more approximation);
              False: where it ended, as absolute positions and RoPE before the kernel need.
              Each restart turns the older biases once more, and rounds. After 1,000 conversions of
              one token each, float32 biases were off by 1e-5 of their size; with False, where
              nothing is turned, by less than 1e-6
    strength : λ, how often the prompt counts for the input: R_{-M} b_KV + λ Σ …, b_D + λ Σ …
    chunk : how many tokens are read at a time, under mask "causal" PIECE unless stated: memory
            grows only with a KV cache; under mask "full" all, and memory grows with M
    by : makes a memory for softmax, such as Compression("tilted", 32); None: keep the KV cache
    form, between : as in `transformer`, for each piece
    Equals   the prompted model (theorem iclca)
    Cost     one forward pass over the prompt
    """
    check_type("convert", "model", model, Model)
    choose("convert", "mask", mask, ("causal", "full"))
    check_flag("convert", "restart", restart)
    if not is_one(strength):
        check_scalar("convert", "strength", strength, weights=model.like)
    if by is not None and model.config.past is not KVCache:
        raise NotDefined("convert: `by` makes a memory for softmax attention; this model converts exactly without it")
    queries: list[tuple[int, Array]] = []
    on_attention = (lambda i, call: queries.append((i, call.q))) if by else None
    after, M = model, 0
    for piece in pieces_of(model, prompt, chunk, mask):
        x = embed(after, piece)
        try:
            _, pasts = run_layers(after, x, Pass(form, mask, between, on_attention))
        except (ZeroDivisionError, NotFinite, Underflow) as error:
            raise type(error)(f"{error}; counted from token {M} of the prompt") if M else error from None
        after, M = after.carry(pasts, model.prompts), M + x.shape[-2]
    biases = after.biases or ()
    if by is None and not is_one(strength):
        old = model.biases or (None,) * len(biases)
        weighed = tuple(new.weighed(b, strength) for b, new in zip(old, biases, strict=True))
        for b, new, now in zip(old, biases, weighed, strict=True):
            if b is None and isinstance(new, State) and new.z is not None and not is_zero(strength):
                check_scaled("convert", new, now)
        biases = weighed
    if restart:
        if M and model.config.table and by is None:
            raise NotDefined("convert: absolute positions cannot start again after a prompt; pass restart=False")
        biases = tuple(b.shifted(-M, model.kernel) for b in biases)
    store = after.carry if is_one(strength) else after.with_biases  # λ times a sum may overflow
    after = store(biases, (*model.prompts, M))
    return memorise(after, M, by, queries, strength) if by and M else after


def is_one(strength: Any) -> bool:
    return type(strength) is int and strength == 1


def memorise(model: Model, M: int, by: Maker, queries: list[tuple[int, Array]], strength: Any) -> Model:
    """Replace the last M tokens of each cache by a memory; older tokens and memories stay.

    The expected queries are those of the prompt, rotated to positions from the input's first on.
    """
    xp, rope, d = array_namespace(model.like), model.kernel.rope, model.config.d
    root = xp.sqrt(xp.sqrt(xp.ones_like(model.weights["layers.0.W_Q"][:1, :1]) / d))  # √c = d^-¼
    biases = []
    for i, cache in enumerate(model.biases or ()):
        old, new = slice(0, cache.k.shape[-2] - M), slice(cache.k.shape[-2] - M, None)
        rest = replace(cache, k=cache.k[..., old, :], v=cache.v[..., old, :], keep=cache.keep[..., old])
        if is_zero(strength):  # a memory that counts 0 times could still have the largest exponent
            biases.append(rest)
            continue
        q = xp.concat([q for j, q in queries if j == i and q.shape[-2]], axis=-2)
        x = rope(q, range(model.position, model.position + M)) if rope else q
        y, v = root * cache.k[..., new, :], cache.v[..., new, :]
        biases.append(replace(rest, memories=add_memory(cache.memories, by(y, v, root * x, i), y, v, strength)))
    return model.with_biases(biases)


def add_memory(memories: tuple[Memory, ...], memory: Memory, y: Array, v: Array, strength: Any) -> tuple[Memory, ...]:
    """The memories and one more, which joins the last one if both use one draw of directions."""
    last = memories[-1] if memories else None
    joins = last and last.mix is None and memory.mix is None and same_draw(last.phi, memory.phi)
    if last and joins:
        memory = write(last.phi, y, v)  # through its directions, as they are rotated now
    if not is_one(strength):
        memory = memory.scaled(strength)
    return (*memories[:-1], join(last, memory)) if last and joins else (*memories, memory)


@quiet()
def unconvert(
    model: Model, prompt: Any, *, mask: str = "causal", restart: bool = True, strength: Any = 1, form: Any = None
) -> Model:
    """The model without the last prompt: unconvert(convert(model, prompt), prompt) = model.

        b_KV = R_M (b'_KV − λ Σ_j R_{j-M} φ(k'_j) v'_jᵀ)        b_D = b'_D − λ Σ_j φ(k'_j)

    layer by layer, since the keys of a layer need the old biases of the layers below it. Arguments
    must be those of `convert`, with the prompt in one piece. This function checks only its length.
    Needs    linearized attention; the prompt converted last, since each was read after earlier ones
    Equals   the model before `convert` (theorem iclca_removal)
    """
    check_type("unconvert", "model", model, Model)
    choose("unconvert", "mask", mask, ("causal", "full"))
    check_flag("unconvert", "restart", restart)
    check_scalar("unconvert", "strength", strength, weights=model.like)
    if model.config.past is not State:
        only = "a prompt can be taken only out of the sums of linearized attention"
        raise NotDefined(f"unconvert: {only}; keep the model without it")
    if form is not None:
        check_function("unconvert", "form", form)
    text = check_text(model, prompt, "unconvert", "prompt")
    M = text.shape[-1 if text.dtype == int else -2]
    if model.prompts[-1:] != (M,) or model.biases is None:
        last = f"the last one converted, of {model.prompts[-1]} tokens" if model.prompts else "one that was converted"
        got = f"{M} tokens" if model.prompts else "a model that carries none"
        raise ValueError(f"unconvert: `prompt` must be {last}, got {got}")
    biases = model.biases or ()
    if restart:
        biases = tuple(b.shifted(M, model.kernel) for b in biases)
    start = biases[0].position - M

    def without_own_text(q: Array, k: Array, v: Array, kernel: Kernel, *, state: State, mask: Any) -> Any:
        """Attention from the state before this text, whose sums are first removed."""
        empty = states.no_text(v, *state.S.shape[-2:], position=start)
        text = states.absorb(empty if state.z is not None else replace(empty, z=None), k, v, kernel)
        both = replace(state, position=start + M)
        before = states.remove(both, states.scale(text, strength), kernel, origin=start)
        return (form or linear_attention_chunked)(q, k, v, kernel, state=before, mask=mask)[0], before

    full = model.carry([replace(b, position=start) for b in biases], model.prompts)
    _, before = run_layers(full, embed(full, text), Pass(without_own_text, mask))
    return model.with_biases(before, model.prompts[:-1])


def pieces_of(model: Model, prompt: Any, chunk: int | None, mask: str) -> Iterator[Any]:
    """The prompt, checked, in one piece or in consecutive pieces, made one at a time."""
    if chunk is not None:
        check_integer("convert", "chunk", chunk, least=1)
    streamed = isinstance(prompt, Iterator)
    if mask != "causal" and (streamed or chunk):
        raise NotDefined(
            f"convert: `chunk` reads a prompt in pieces, and `mask` must be 'causal' for that, got {mask!r}"
        )
    # An iterator may have no pieces: no tokens, (0, width), come before them.
    for part in chain((no_tokens(model),), prompt) if streamed else (prompt,):
        text = check_text(model, part, "convert", "prompt")
        columns = () if text.dtype == int else (slice(None),)
        n = max(text.shape[-1 - len(columns)], 1)
        step = piece_length(n, chunk, mask)
        for first in range(0, n, step):
            yield text if step >= n else text[(..., slice(first, min(first + step, n)), *columns)]


def piece_length(n: int, chunk: int | None, mask: str) -> int:
    """How many of n ≥ 1 tokens of a prompt are read at a time."""
    return chunk or (PIECE if mask == "causal" else n)


def no_tokens(model: Model) -> Array:
    like = model.like
    return array_namespace(like).zeros((0, model.config.width), dtype=like.dtype, device=device(like))
