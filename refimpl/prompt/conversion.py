"""ICLCA: a prompt becomes biases of the attention, exactly, with no training.

For a prompt of M tokens before the input, in each layer and head,

    b'_KV = R_{-M} b_KV + Σ_{j=0..M-1} R_{j-M} φ(k'_j) v'_jᵀ        b'_D = b_D + Σ_{j=0..M-1} φ(k'_j)

and the model with b'_KV, b'_D, run on the input alone, gives exactly what it gives on the prompt and the input, for every
input of every length. The biases are the state of the attention after the prompt, seen from where the input will be read.

With RoPE before the kernel, R_{j-M} stands inside φ, and in b_D too; positions can then begin anew only for φ = identity.

Where attention is softmax, the state after the prompt is its KV cache, exact and as long as the prompt. ICLAA makes of it, approximately,
a memory of fixed size: b_KV = Σ φ(R_{j-M} k'_j) v'_jᵀ and b_D = Σ φ(R_{j-M} k'_j) for a map φ whose products are nearly exp(q·k/√d).
Prompt tokens are pushed through by exact softmax, and input tokens see each other by exact softmax: only the prompt's part of the
sums is approximate. A recurrent layer has its state, which is exact again.

Assumes  prompt activations do not depend on the input (causal; that prefix masks do is our extension); relative positions,
         unless positions go on where the prompt ended; a denominator that is a sum over tokens
Source   Chen, Hu, Jin, Lee, Kawaguchi 2024 (arXiv 2406.02847), Theorem 4.5, as read in notes on it; here positions start at 0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from ..attention.linear_attention import linear_attention_chunked
from ..attention.memory import Memory, join, write
from ..attention.random_features import same_draw
from ..attention.softmax_attention import softmax_attention_shifted
from ..attention.state import State, absorb, no_text, remove, scale, shift
from ..checks import instance, integer, is_zero, scalar, token_ids
from ..errors import NotDefined, NotFinite, choose
from ..model.transformer import Form, Model, through_layers, vectors
from ..systems.floats import array_namespace

Maker = Callable[[Any, Any, Any, int], Memory]  # (keys, values, queries to expect, layer) -> memory; see compression/


def convert(
    model: Model,
    prompt: Any,
    *,
    mask: str = "causal",
    restart: bool = True,
    strength: Any = 1,
    chunk: int | None = None,
    by: Maker | None = None,
    form: Form | None = None,
    between: Callable[[int, Any], Any] = lambda i, x: x,
) -> Model:
    """The same model, carrying the prompt as biases.

        state_i = the state of layer i after the prompt, pushed through it with the old biases
        b'_i = shift(state_i, −M)

    prompt : token ids (..., M) or vectors (..., M, width), leading axes a batch of prompts; or an iterator over consecutive pieces
    mask : "causal", or "full": prompt tokens see each other, as under a prefix mask
    restart : read the input where the prompt began; False: where it ended, as absolute positions need, and RoPE before the kernel.
              With `by`, absolute positions may start again too: that is one more approximation
    strength : λ, how often the prompt counts for the input: b_KV + λ Σ …, b_D + λ Σ …
    chunk : push it through in pieces of so many tokens, in memory that does not grow with M (but for a KV cache)
    by : for softmax, how the prompt becomes a memory, as Compression("tilted", 32); None: its KV cache, exact
    form, between : as in `transformer`
    Equals   the prompted model (theorem iclca)
    Cost     one forward pass over the prompt

    >>> from refimpl import QQ, Config, random_model
    >>> model = random_model(QQ, Config(layers=2, width=3, heads=2, d=2, m=1, phi="identity", norm="none", vocabulary=5), seed=0)
    >>> converted = convert(model, [3, 1, 4])
    >>> QQ.equal(converted([1, 2]), model([3, 1, 4, 1, 2])[3:, :])
    True
    """
    instance("convert", "model", model, Model)
    choose("convert", "mask", mask, ("causal", "full"))
    scalar("convert", "strength", strength, weights=model.like)
    plain, softmax = isinstance(strength, int) and strength == 1, model.config.softmax
    if model.config.recurrent and not plain:
        raise NotDefined("convert: the state of a recurrence is not a sum of its tokens; `strength` must be 1")
    if by is not None and not softmax:
        raise NotDefined("convert: `by` makes a memory for softmax attention; this model converts exactly without it")
    if by is None and softmax and not plain:
        raise NotDefined(
            "convert: tokens of a KV cache count once; pass `by`, to make a memory that can count `strength` times"
        )
    asked: list[Any] = []
    form = recording(form or softmax_attention_shifted, asked) if by else form
    after, M = model, 0
    for piece in pieces(model, prompt, chunk, mask):
        try:
            _, states = through_layers(after, piece, form=form, mask=mask, between=between)
        except (ZeroDivisionError, NotFinite) as error:
            raise type(error)(f"{error}; counted from token {M} of the prompt") if M else error from None
        after, M = after.carrying(states), M + piece.shape[-2]
    biases = after.biases or ()
    if not plain and not softmax:
        biases = tuple(blend(old, new, strength) for old, new in zip(model.states, biases, strict=True))
    after = after.carrying(biases, (*model.prompts, M))
    if restart and M and model.config.table and by is None:
        raise NotDefined(
            "convert: absolute positions cannot start again at 0 after a prompt; pass restart=False to let them go on"
        )
    after = turned(after, -M) if restart else after
    return remembering(after, M, by, asked, strength) if by and M else after


def recording(form: Form, asked: list[Any]) -> Form:
    """The form, keeping the queries that it is asked."""

    def recorded(q: Any, k: Any, v: Any, /, **options: Any) -> Any:
        asked.append(q)
        return form(q, k, v, **options)

    return recorded


def remembering(model: Model, M: int, by: Maker, asked: list[Any], strength: Any) -> Model:
    """The last M tokens of each cache as a memory, beside older tokens and memories: joined with one that is read through the same map.

    What queries to expect of the input, the prompt's own suggest, as if they were asked where the input begins.
    """
    c, xp, biases = model.config, array_namespace(model.like), []
    asked = [q for q in asked if q.shape[-2]]
    root = xp.sqrt(xp.sqrt(xp.ones_like(model.weights["layers.0.W_Q"][:1, :1]) / c.d))  # √c = d^-¼
    for i, cache in enumerate(model.biases or ()):
        old = slice(0, cache.k.shape[-2] - M), slice(cache.k.shape[-2] - M, None)
        q = xp.concat(asked[i :: c.layers], axis=-2)  # each piece of the prompt goes through the layers in turn
        x = model.rope(q, range(model.position, model.position + M)) if model.rope else q
        y, v = root * cache.k[..., old[1], :], cache.v[..., old[1], :]
        rest = replace(cache, k=cache.k[..., old[0], :], v=cache.v[..., old[0], :], keep=cache.keep[..., old[0]])
        if is_zero(strength):  # a memory that counts for nothing would still have the largest exponent
            biases.append(rest)
            continue
        memory = by(y, v, root * x, i)
        *others, last = cache.memories or (None,)
        joins = last if last and last.mix is None and memory.mix is None and same_draw(last.phi, memory.phi) else None
        memory = write(joins.phi, y, v) if joins else memory  # through its directions as they have turned since
        memory = memory if isinstance(strength, int) and strength == 1 else memory.scaled(strength)
        memories = (*others, join(joins, memory)) if joins else (*cache.memories, memory)
        biases.append(replace(rest, memories=memories))
    return model.carrying(biases)


def unconvert(
    model: Model,
    prompt: Any,
    *,
    mask: str = "causal",
    restart: bool = True,
    strength: Any = 1,
    form: Form = linear_attention_chunked,
) -> Model:
    """Takes the prompt that was converted last out again: unconvert(convert(model, prompt), prompt) = model.

        b_KV = R_M (b'_KV − λ Σ_j R_{j-M} φ(k'_j) v'_jᵀ)        b_D = b'_D − λ Σ_j φ(k'_j)

    layer by layer, since the keys of a layer need the old biases of those below it. Arguments as they were for `convert`,
    the prompt in one piece.
    A prompt below another cannot be taken out: the one above was read with it in sight. Of the prompt only the length is known here,
    so that it is the right one is the caller's to know.
    """
    instance("unconvert", "model", model, Model)
    choose("unconvert", "mask", mask, ("causal", "full"))
    scalar("unconvert", "strength", strength, weights=model.like)
    if model.config.past is not State:
        raise NotDefined(
            "unconvert: only out of the sums of linearized attention can a prompt be taken; keep the model without it"
        )
    x = vectors(model, prompt, "unconvert", "prompt")
    M = x.shape[-2]
    if model.prompts[-1:] != (M,):
        last = f"of {model.prompts[-1]} tokens" if model.prompts else "but there is none"
        raise ValueError(f"unconvert: `prompt` must be the last one converted, {last}, got {M} tokens")
    model = turned(model, M) if restart else model
    start = model.position - M

    def removing(q: Any, k: Any, v: Any, /, *, phi: Any, rope: Any, state: State, **options: Any) -> tuple[Any, State]:
        """Attention from a state out of which its own text is first taken."""
        empty = no_text(v, *state.S.shape[-2:], position=start)
        text = absorb(empty if state.z is not None else replace(empty, z=None), k, v, phi=phi, rope=rope)
        before = remove(replace(state, position=start + M), scale(text, strength), rope=rope, phi=phi, origin=start)
        return form(q, k, v, phi=phi, rope=rope, state=before, **options)[0], before

    full = model.carrying([replace(b, position=start) for b in model.biases or ()])
    _, before = through_layers(full, x, form=removing, mask=mask)
    return model.carrying(before, model.prompts[:-1])


def pieces(model: Model, prompt: Any, chunk: int | None, mask: str) -> Iterator[Any]:
    """The prompt as vectors: whole, or in consecutive pieces of which only one exists at a time."""
    if chunk is not None:
        integer("convert", "chunk", chunk, least=1)
    streamed = isinstance(prompt, Iterator)
    if mask != "causal" and (streamed or chunk):
        raise NotDefined(f"convert: a prompt can be read in pieces only under mask 'causal', got {mask!r}")
    nothing = model.weights["layers.0.W_K"][:, :0]  # (width, 0)
    nothing = array_namespace(nothing).matrix_transpose(nothing)
    for part in chain((nothing,), prompt) if streamed else (prompt,):
        ids = token_ids("convert", "prompt", part, model.config.vocabulary) if model.config.vocabulary else None
        x, columns = (vectors(model, part, "convert", "prompt"), (slice(None),)) if ids is None else (ids, ())
        n = max(x.shape[-1 - len(columns)], 1)
        for start in range(0, n, chunk or n):
            yield vectors(model, x[(..., slice(start, start + (chunk or n)), *columns)])


def blend(old: State | None, new: State, strength: Any) -> State:
    """b + λ (b' − b) = (1 − λ) b + λ b', at the new position."""
    text = scale(new, strength)
    if old is None:
        return text
    rest = scale(replace(old, position=new.position), 1 - strength)
    return State(rest.S + text.S, None if text.z is None or rest.z is None else rest.z + text.z, new.position)


def turned(model: Model, by: int) -> Model:
    """The same past, seen from `by` positions further on. It must look the same from there: positions must be relative."""
    rope, phi = model.rope, model.config.phi
    return model.carrying(
        [shift(b, by, rope=rope, phi=phi) if isinstance(b, State) else b.shifted(by, rope) for b in model.biases or ()]
    )
