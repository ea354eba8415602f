"""Kernels of linear attention, wrong and right, written without a look at the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from refimpl.crosscheck.families.linear_attention import LinearAttention


class Kernel(NamedTuple):
    """A kernel, the conventions it was written for, and what is wrong ("" if it is right)."""

    name: str
    function: Callable[..., Any]
    spec: dict[str, Any]
    wrong: str = ""


class Trial(NamedTuple):
    """An ordinary input: its shape, whether it starts from a state, where, and its signs."""

    batch: int
    heads: int
    groups: int
    n: int
    d: int
    m: int
    start: int = 0
    position: int = 0
    negative: bool = False


WRONG: list[Kernel] = []
RIGHT: list[Kernel] = []

STATE = {"call": "q, k, v, S, z -> o, S, z"}
ONLY_S = {"call": "q, k, v, S -> o, S", "normalise": False}
ROPE = {"call": "q, k, v, S, z, position -> o, S, z", "rope": "half"}
ROPE_S = {"call": "q, k, v, S, position -> o, S", "rope": "half", "normalise": False}
ELU = {"phi": "elu+1"}


def wrong(sentence: str, **spec: Any) -> Callable[[Any], Any]:
    def keep(function: Any) -> Any:
        WRONG.append(Kernel(function.__name__, function, {"dtype": "float32"} | spec, wrong=sentence))
        return function

    return keep


def right(**spec: Any) -> Callable[[Any], Any]:
    def keep(function: Any) -> Any:
        RIGHT.append(Kernel(function.__name__, function, {"dtype": "float32"} | spec))
        return function

    return keep


# Helpers that many kernels share. All are right.


def elu1(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def relu(x):
    return np.maximum(x, 0)


def grouped(x, heads):
    """k, v, S or z (B, G, ...) with a head for each head of q."""
    return np.repeat(x, heads // x.shape[1], axis=1)


def table(n, width, first=0, base=10000.0):
    angles = np.outer(np.arange(first, first + n), base ** (-np.arange(0, width, 2) / width))
    return np.cos(angles), np.sin(angles)


def half(x, first=0, base=10000.0):
    """RoPE, pairs (i, i + d/2); tokens are the axis before the last."""
    c, s = (a.astype(x.dtype) for a in table(x.shape[-2], x.shape[-1], first, base))
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * c - b * s, a * s + b * c], axis=-1)


def pairs(x, first=0, base=10000.0):
    """RoPE, pairs (2i, 2i + 1)."""
    c, s = (a.astype(x.dtype) for a in table(x.shape[-2], x.shape[-1], first, base))
    a, b = x[..., ::2], x[..., 1::2]
    return np.stack([a * c - b * s, a * s + b * c], axis=-1).reshape(x.shape)


def causal(q, k):
    """The masked scores of q and of k with as many heads."""
    return np.tril(q @ k.swapaxes(-1, -2))


# Wrong: loops over chunks


@wrong("the tokens after the last whole chunk are never computed", **ELU)
def chunk_drops_tail(q, k, v):
    C = 16
    q, k, v = elu1(q), grouped(elu1(k), q.shape[1]), grouped(v, q.shape[1])
    o = np.zeros((*q.shape[:3], v.shape[-1]), q.dtype)
    S, z = np.swapaxes(k[:, :, :0], -1, -2) @ v[:, :, :0], k[:, :, :0].sum(2)
    for i in range(q.shape[2] // C):
        c = slice(i * C, (i + 1) * C)
        w = causal(q[:, :, c], k[:, :, c])
        num = w @ v[:, :, c] + q[:, :, c] @ S
        o[:, :, c] = num / (w.sum(-1, keepdims=True) + q[:, :, c] @ z[..., None])
        S, z = S + k[:, :, c].swapaxes(-1, -2) @ v[:, :, c], z + k[:, :, c].sum(2)
    return o


@wrong("the ragged last chunk does not read the state of the chunks before it", **ONLY_S)
def chunk_tail_starts_anew(q, k, v, S):
    C, n, S_new = 32, q.shape[2], S.copy()
    K, V = grouped(k, q.shape[1]), grouped(v, q.shape[1])
    o = []
    for i in range(0, n, C):
        a, b, c = q[:, :, i : i + C], K[:, :, i : i + C], V[:, :, i : i + C]
        part = causal(a, b) @ c
        if i + C <= n or i == 0:
            part = part + a @ grouped(S_new, q.shape[1])
        o.append(part)
        S_new = S_new + k[:, :, i : i + C].swapaxes(-1, -2) @ v[:, :, i : i + C]
    return np.concatenate(o, axis=2), S_new


@wrong("the state is updated before the chunk reads it, so the chunk's keys count twice", **ONLY_S)
def chunk_updates_first(q, k, v, S):
    C, S_new = 64, S.copy()
    K, V = grouped(k, q.shape[1]), grouped(v, q.shape[1])
    o = np.empty((*q.shape[:3], v.shape[-1]), q.dtype)
    for i in range(0, q.shape[2], C):
        c = slice(i, i + C)
        S_new = S_new + k[:, :, c].swapaxes(-1, -2) @ v[:, :, c]
        o[:, :, c] = causal(q[:, :, c], K[:, :, c]) @ V[:, :, c] + q[:, :, c] @ grouped(S_new, q.shape[1])
    return o, S_new


@wrong("the mask of a ragged last chunk is the bottom left of the full one: it hides nothing", **ELU, **STATE)
def chunk_mask_cut_wrong(q, k, v, S, z):
    C, h, mask, o = 64, q.shape[1], np.tri(64, dtype=q.dtype), []
    q, k = elu1(q), elu1(k)
    for i in range(0, q.shape[2], C):
        a, b, c = q[:, :, i : i + C], k[:, :, i : i + C], v[:, :, i : i + C]
        size = a.shape[2]
        w = a @ grouped(b, h).swapaxes(-1, -2) * mask[C - size :, :size]
        den = w.sum(-1, keepdims=True) + a @ grouped(z, h)[..., None]
        o.append((w @ grouped(c, h) + a @ grouped(S, h)) / den)
        S, z = S + b.swapaxes(-1, -2) @ c, z + b.sum(2)
    return np.concatenate(o, axis=2), S, z


@wrong("the normaliser starts from zero in every chunk", **ELU, **STATE)
def chunk_resets_z(q, k, v, S, z):
    C, h = 16, q.shape[1]
    q, k, S_new, z_new, o = elu1(q), elu1(k), S.copy(), z.copy(), []
    for i in range(0, q.shape[2], C):
        a, b, c = q[:, :, i : i + C], k[:, :, i : i + C], v[:, :, i : i + C]
        zs = np.cumsum(b, axis=2) + (z[:, :, None] if i == 0 else 0)
        w = causal(a, grouped(b, h))
        o.append((w @ grouped(c, h) + a @ grouped(S_new, h)) / (a * grouped(zs, h)).sum(-1, keepdims=True))
        S_new, z_new = S_new + b.swapaxes(-1, -2) @ c, z_new + b.sum(2)
    return np.concatenate(o, axis=2), S_new, z_new


@wrong("keys are padded with 0 before elu+1, so each padded key adds 1 to the last z", **ELU, **STATE)
def chunk_pads_before_phi(q, k, v, S, z):
    C, n, h = 16, q.shape[2], q.shape[1]
    q, k, v = (np.pad(x, ((0, 0), (0, 0), (0, -n % C), (0, 0))) for x in (q, k, v))
    q, k, o = elu1(q), elu1(k), []
    for i in range(0, q.shape[2], C):
        a, b, c = q[:, :, i : i + C], k[:, :, i : i + C], v[:, :, i : i + C]
        w = causal(a, grouped(b, h))
        den = w.sum(-1, keepdims=True) + a @ grouped(z, h)[..., None]
        o.append((w @ grouped(c, h) + a @ grouped(S, h)) / den)
        S, z = S + b.swapaxes(-1, -2) @ c, z + b.sum(2)
    return np.concatenate(o, axis=2)[:, :, :n], S, z


@wrong("it pads on the left, and φ(0) = 1 of the padding counts in every denominator", **ELU)
def pads_on_the_left(q, k, v):
    pad = -q.shape[2] % 8
    q, k, v = (np.pad(x, ((0, 0), (0, 0), (pad, 0), (0, 0))) for x in (q, k, v))
    w = causal(elu1(q), grouped(elu1(k), q.shape[1]))
    return (w @ grouped(v, q.shape[1]) / w.sum(-1, keepdims=True))[:, :, pad:]


@wrong("the state is updated from one key beyond the chunk", **ONLY_S)
def chunk_overlaps_by_one(q, k, v, S):
    C, S_new, o = 16, S, []
    K, V = grouped(k, q.shape[1]), grouped(v, q.shape[1])
    for i in range(0, q.shape[2], C):
        c, more = slice(i, i + C), slice(i, i + C + 1)
        o.append(causal(q[:, :, c], K[:, :, c]) @ V[:, :, c] + q[:, :, c] @ grouped(S_new, q.shape[1]))
        S_new = S_new + np.einsum("bhtd,bhtm->bhdm", k[:, :, more], v[:, :, more])
    return np.concatenate(o, axis=2), S_new


@wrong("the state is assigned and not added to: only the previous chunk is remembered", normalise=False)
def chunk_remembers_one_chunk(q, k, v):
    C, o = 16, []
    k, v = grouped(k, q.shape[1]), grouped(v, q.shape[1])
    S = np.zeros((*q.shape[:2], q.shape[3], v.shape[3]), q.dtype)
    for i in range(0, q.shape[2], C):
        a, b, c = q[:, :, i : i + C], k[:, :, i : i + C], v[:, :, i : i + C]
        o.append(causal(a, b) @ c + a @ S)
        S = b.swapaxes(-1, -2) @ c
    return np.concatenate(o, axis=2)


@wrong("o[:, :, :-pad] of a length that needs no padding is empty", **ELU)
def unpads_with_minus_zero(q, k, v):
    pad = -q.shape[2] % 16
    q, k, v = (np.pad(x, ((0, 0), (0, 0), (0, pad), (0, 0))) for x in (q, k, v))
    w = causal(elu1(q), grouped(elu1(k), q.shape[1]))
    return (w @ grouped(v, q.shape[1]) / w.sum(-1, keepdims=True))[:, :, :-pad]


@wrong("states of chunks are shifted with roll, so the first chunk reads the sum of all", normalise=False)
def chunk_states_rolled(q, k, v):
    C, n = 16, q.shape[2]
    pad = ((0, 0), (0, 0), (0, -n % C), (0, 0))
    q, k, v = (np.pad(x, pad) for x in (q, grouped(k, q.shape[1]), grouped(v, q.shape[1])))
    q, k, v = (x.reshape(*x.shape[:2], -1, C, x.shape[-1]) for x in (q, k, v))
    S = np.roll(np.cumsum(k.swapaxes(-1, -2) @ v, axis=2), 1, axis=2)
    o = causal(q, k) @ v + q @ S
    return o.reshape(*o.shape[:2], -1, o.shape[-1])[:, :, :n]


@wrong("a chunk reads the inclusive sum of the chunks' states, its own keys too", **ELU)
def chunk_states_inclusive(q, k, v):
    C, n = 8, q.shape[2]
    pad = ((0, 0), (0, 0), (0, -n % C), (0, 0))
    q, k, v = (np.pad(x, pad) for x in (elu1(q), grouped(elu1(k), q.shape[1]), grouped(v, q.shape[1])))
    q, k, v = (x.reshape(*x.shape[:2], -1, C, x.shape[-1]) for x in (q, k, v))
    S, z = np.cumsum(k.swapaxes(-1, -2) @ v, axis=2), np.cumsum(k.sum(3), axis=2)
    w = causal(q, k)
    with np.errstate(invalid="ignore"):
        o = (w @ v + q @ S) / (w.sum(-1, keepdims=True) + q @ z[..., None])
    return o.reshape(*o.shape[:2], -1, o.shape[-1])[:, :, :n]


@wrong("only the first chunk reads the state that was given", **ONLY_S)
def chunk_first_state_once(q, k, v, S):
    C, h, run, o = 32, q.shape[1], np.zeros_like(S), []
    for i in range(0, q.shape[2], C):
        a, b, c = q[:, :, i : i + C], k[:, :, i : i + C], v[:, :, i : i + C]
        part = causal(a, grouped(b, h)) @ grouped(c, h) + a @ grouped(run, h)
        o.append(part + a @ grouped(S, h) if i == 0 else part)
        run = run + b.swapaxes(-1, -2) @ c
    return np.concatenate(o, axis=2), S + run


@wrong("the mask inside a chunk leaves out the token itself", **ELU)
def chunk_strict_inside(q, k, v):
    C, S, z, o = 8, 0.0, 0.0, []
    q, k, v = elu1(q), grouped(elu1(k), q.shape[1]), grouped(v, q.shape[1])
    for i in range(0, q.shape[2], C):
        a, b, c = q[:, :, i : i + C], k[:, :, i : i + C], v[:, :, i : i + C]
        S, z = S + np.zeros((b.shape[-1], c.shape[-1]), q.dtype), z + np.zeros((b.shape[-1], 1), q.dtype)
        w = np.tril(a @ b.swapaxes(-1, -2), -1)
        o.append((w @ c + a @ S) / (w.sum(-1, keepdims=True) + a @ z + 1e-20))
        S, z = S + b.swapaxes(-1, -2) @ c, z + b.sum(2)[..., None]
    return np.concatenate(o, axis=2)


# Wrong: recurrences


@wrong("the list of states holds the same array, added to in place, so all tokens read the last one", normalise=False)
def recurrent_states_alias(q, k, v):
    k, v, states = grouped(k, q.shape[1]), grouped(v, q.shape[1]), []
    S = np.zeros((*q.shape[:2], q.shape[3], v.shape[3]), q.dtype)
    for t in range(q.shape[2]):
        S += k[:, :, t, :, None] * v[:, :, t, None, :]
        states.append(S)
    return np.stack([np.einsum("bhd,bhdm->bhm", q[:, :, t], states[t]) for t in range(q.shape[2])], axis=2)


@wrong("S and z are added to in place, so the caller's state changes", **ELU, **STATE)
def recurrent_writes_into_state(q, k, v, S, z):
    q, k, r = elu1(q), elu1(k), q.shape[1] // k.shape[1]
    o = np.empty((*q.shape[:3], v.shape[-1]), q.dtype)
    for t in range(q.shape[2]):
        S += k[:, :, t, :, None] * v[:, :, t, None, :]
        z += k[:, :, t]
        num = np.einsum("bhd,bhdm->bhm", q[:, :, t], np.repeat(S, r, axis=1))
        o[:, :, t] = num / (q[:, :, t] * np.repeat(z, r, axis=1)).sum(-1, keepdims=True)
    return o, S, z


@wrong("the first token is never written: the loop starts at 1 and o[0] is v[0]", **ELU)
def recurrent_from_one(q, k, v):
    q, k, v = elu1(q), grouped(elu1(k), q.shape[1]), grouped(v, q.shape[1])
    o, z = v.copy(), np.zeros_like(k[:, :, 0])
    S = np.zeros((*q.shape[:2], q.shape[3], v.shape[3]), q.dtype)
    for t in range(1, q.shape[2]):
        S, z = S + k[:, :, t, :, None] * v[:, :, t, None, :], z + k[:, :, t]
        o[:, :, t] = np.einsum("bhd,bhdm->bhm", q[:, :, t], S) / (q[:, :, t] * z).sum(-1, keepdims=True)
    return o


STORE: dict[tuple[int, ...], Any] = {}


@wrong("the running state lives in a module-level buffer by shape, and the second call goes on from it", **ELU)
def recurrent_keeps_buffer(q, k, v):
    q, k, v = elu1(q), grouped(elu1(k), q.shape[1]), grouped(v, q.shape[1])
    key = (*q.shape[:2], q.shape[3], v.shape[3])
    if key not in STORE:
        STORE[key] = np.zeros(key, q.dtype), np.zeros(key[:3], q.dtype)
    (S, z), o = STORE[key], np.empty_like(v)
    for t in range(q.shape[2]):
        S += k[:, :, t, :, None] * v[:, :, t, None, :]
        z += k[:, :, t]
        o[:, :, t] = np.einsum("bhd,bhdm->bhm", q[:, :, t], S) / (q[:, :, t] * z).sum(-1, keepdims=True)
    return o


KEYS: dict[tuple[int, ...], Any] = {}


@wrong("φ(k) is cached by the shape of k, so another k of that shape is not seen", **ELU)
def caches_phi_by_shape(q, k, v):
    if k.shape not in KEYS:
        KEYS[k.shape] = elu1(k)
    w = causal(elu1(q), grouped(KEYS[k.shape], q.shape[1]))
    return w @ grouped(v, q.shape[1]) / w.sum(-1, keepdims=True)


@wrong("the state that comes back lacks the last token", **ONLY_S)
def returns_state_one_early(q, k, v, S):
    o, r = [], q.shape[1] // k.shape[1]
    before = S
    for t in range(q.shape[2]):
        before, S = S, S + k[:, :, t, :, None] * v[:, :, t, None, :]
        o.append(np.einsum("bhd,bhdm->bhm", q[:, :, t], np.repeat(S, r, axis=1)))
    return np.stack(o, axis=2), before


@wrong("z adds k and not φ(k)", **ELU, **STATE)
def z_of_bare_keys(q, k, v, S, z):
    q, f, r, o = elu1(q), elu1(k), q.shape[1] // k.shape[1], []
    for t in range(q.shape[2]):
        S, z = S + f[:, :, t, :, None] * v[:, :, t, None, :], z + k[:, :, t]
        num = np.einsum("bhd,bhdm->bhm", q[:, :, t], np.repeat(S, r, axis=1))
        o.append(num / (q[:, :, t] * np.repeat(z, r, axis=1)).sum(-1, keepdims=True))
    return np.stack(o, axis=2), S, z


@wrong("the state that comes back was divided by z, as if it were an output", **ELU, **STATE)
def returns_normalised_state(q, k, v, S, z):
    q, k, h = elu1(q), elu1(k), q.shape[1]
    w = causal(q, grouped(k, h))
    den = w.sum(-1, keepdims=True) + q @ grouped(z, h)[..., None]
    o = (w @ grouped(v, h) + q @ grouped(S, h)) / den
    S, z = S + k.swapaxes(-1, -2) @ v, z + k.sum(2)
    return o, S / z[..., None], z


@wrong("all batch rows start from the state of row 0", **ONLY_S)
def state_of_first_row(q, k, v, S):
    S0 = S[0]
    o = causal(q, grouped(k, q.shape[1])) @ grouped(v, q.shape[1]) + q @ grouped(S0[None], q.shape[1])
    return o, S0 + k.swapaxes(-1, -2) @ v


@wrong("the normaliser is summed over the heads", **ELU, **STATE)
def z_summed_over_heads(q, k, v, S, z):
    q, k, h = elu1(q), elu1(k), q.shape[1]
    z_all = z[:, :, None] + np.cumsum(k, axis=2)
    den = np.einsum("bhtd,bgtd->bht", q, z_all)[..., None]
    num = causal(q, grouped(k, h)) @ grouped(v, h) + q @ grouped(S, h)
    return num / den, S + k.swapaxes(-1, -2) @ v, z + k.sum(2)


@wrong("o of the first token is set to v, also when there is a state", **ELU, **STATE)
def first_token_is_its_value(q, k, v, S, z):
    q, k, h = elu1(q), elu1(k), q.shape[1]
    w = causal(q, grouped(k, h))
    num, den = w @ grouped(v, h) + q @ grouped(S, h), w.sum(-1) + (q @ grouped(z, h)[..., None])[..., 0]
    o = num / den[..., None]
    o[:, :, :1] = grouped(v, h)[:, :, :1]
    return o, S + k.swapaxes(-1, -2) @ v, z + k.sum(2)


@wrong("for one token it takes a branch for decoding that does not write the token into the state", **ELU, **STATE)
def decode_does_not_write(q, k, v, S, z):
    q, k, h = elu1(q), elu1(k), q.shape[1]
    w = causal(q, grouped(k, h))
    o = (w @ grouped(v, h) + q @ grouped(S, h)) / (w.sum(-1, keepdims=True) + q @ grouped(z, h)[..., None])
    if q.shape[2] == 1:
        return o, S, z
    return o, S + k.swapaxes(-1, -2) @ v, z + k.sum(2)


@wrong("for one token it takes a branch for decoding that forgets the scale", scale="d", **ONLY_S)
def decode_forgets_scale(q, k, v, S):
    r = q.shape[1] // k.shape[1]
    if q.shape[2] == 1:
        S = S + k.swapaxes(-1, -2) @ v
        return q @ np.repeat(S, r, axis=1), S
    q, o = q * q.shape[-1] ** -0.5, np.empty((*q.shape[:3], v.shape[-1]), q.dtype)
    for t in range(q.shape[2]):
        S = S + k[:, :, t, :, None] * v[:, :, t, None, :]
        o[:, :, t] = np.einsum("bhd,bhdm->bhm", q[:, :, t], np.repeat(S, r, axis=1))
    return o, S


@wrong("the state decays by 0.999 for each token", **ONLY_S)
def state_decays(q, k, v, S):
    o, r = [], q.shape[1] // k.shape[1]
    for t in range(q.shape[2]):
        S = 0.999 * S + k[:, :, t, :, None] * v[:, :, t, None, :]
        o.append(np.einsum("bhd,bhdm->bhm", q[:, :, t], np.repeat(S, r, axis=1)))
    return np.stack(o, axis=2), S.astype(q.dtype)


@wrong("heads of k and v are tiled, not repeated, for the queries", **ELU)
def groups_tiled(q, k, v):
    k, v = (np.tile(x, (1, q.shape[1] // x.shape[1], 1, 1)) for x in (k, v))
    w = causal(elu1(q), elu1(k))
    return w @ v / w.sum(-1, keepdims=True)


@wrong("queries are split as (repeats, groups): head h takes h mod groups in z alone", **ELU, **STATE)
def groups_split_wrong_for_z(q, k, v, S, z):
    q, k, h, g = elu1(q), elu1(k), q.shape[1], k.shape[1]
    z_all = z[:, :, None] + np.cumsum(k, axis=2)
    split = q.reshape(q.shape[0], h // g, g, *q.shape[2:])
    den = np.einsum("brgtd,bgtd->brgt", split, z_all).reshape(*q.shape[:3], 1)
    o = (causal(q, grouped(k, h)) @ grouped(v, h) + q @ grouped(S, h)) / den
    return o, S + k.swapaxes(-1, -2) @ v, z + k.sum(2)


@wrong("all heads use the keys of the first group", **ELU)
def groups_take_first(q, k, v):
    w = causal(elu1(q), elu1(k[:, :1]))
    return w @ grouped(v, q.shape[1]) / w.sum(-1, keepdims=True)


# Wrong: einsum, cumsum and masks


@wrong("k is summed over all its entries before the product: 'bhtd,bhse->bhts'", **ELU)
def einsum_sums_apart(q, k, v):
    w = np.tril(np.einsum("bhtd,bhse->bhts", elu1(q), grouped(elu1(k), q.shape[1])))
    return w @ grouped(v, q.shape[1]) / w.sum(-1, keepdims=True)


@wrong("the denominator is that of bidirectional attention", **ELU)
def denominator_sees_all(q, k, v):
    q, k, v = elu1(q), grouped(elu1(k), q.shape[1]), grouped(v, q.shape[1])
    den = np.einsum("bhtd,bhsd->bht", q, k)
    return np.einsum("bhts,bhsm->bhtm", causal(q, k), v) / den[..., None]


@wrong("every query head reads the keys of all groups: 'bhtd,bgsd->bhts'", normalise=False)
def einsum_sums_groups(q, k, v):
    w = np.tril(np.einsum("bhtd,bgsd->bhts", q, k))
    return np.einsum("bhts,bhsm->bhtm", w, grouped(v, q.shape[1]))


@wrong("the keys of z are added up along the heads, not along the tokens", **ELU)
def cumsum_over_heads(q, k, v):
    q, k, v = elu1(q), grouped(elu1(k), q.shape[1]), grouped(v, q.shape[1])
    den = np.einsum("bhtd,bhtd->bht", q, np.cumsum(k, axis=1))
    return causal(q, k) @ v / den[..., None]


@wrong("the mean of all keys so far stands for their sum", **ELU)
def mean_for_sum(q, k, v):
    q, k, v = elu1(q), grouped(elu1(k), q.shape[1]), grouped(v, q.shape[1])
    count = np.arange(1, q.shape[2] + 1, dtype=q.dtype)[:, None]
    den = (q * np.cumsum(k, axis=2) / count).sum(-1, keepdims=True)
    return causal(q, k) @ v / den


@wrong("the numerator reads exclusive sums and the denominator inclusive ones", **ELU)
def exclusive_over_inclusive(q, k, v):
    q, k, v = elu1(q), grouped(elu1(k), q.shape[1]), grouped(v, q.shape[1])
    kv = np.cumsum(k[..., :, None] * v[..., None, :], axis=2)
    kv = np.concatenate([np.zeros_like(kv[:, :, :1]), kv[:, :, :-1]], axis=2)
    den = (q * np.cumsum(k, axis=2)).sum(-1, keepdims=True)
    return np.einsum("bhtd,bhtdm->bhtm", q, kv) / den


@wrong("triu: each token sees itself and the future", normalise=False)
def mask_upside_down(q, k, v):
    return np.triu(q @ grouped(k, q.shape[1]).swapaxes(-1, -2)) @ grouped(v, q.shape[1])


@wrong("the mask lets each token see the next one", **ELU)
def mask_sees_next(q, k, v):
    w = np.tril(elu1(q) @ grouped(elu1(k), q.shape[1]).swapaxes(-1, -2), k=1)
    return w @ grouped(v, q.shape[1]) / w.sum(-1, keepdims=True)


@wrong("hidden scores are set to -1e9, as for softmax, but nothing exponentiates them", **ELU)
def mask_of_softmax(q, k, v):
    w = elu1(q) @ grouped(elu1(k), q.shape[1]).swapaxes(-1, -2)
    w = np.where(np.tri(q.shape[2], dtype=bool), w, np.float32(-1e9))
    return w @ grouped(v, q.shape[1]) / w.sum(-1, keepdims=True)


@wrong("a token sees only the last 48 tokens", **ELU)
def mask_is_a_window(q, k, v):
    w = np.tril(np.triu(elu1(q) @ grouped(elu1(k), q.shape[1]).swapaxes(-1, -2), -47))
    return w @ grouped(v, q.shape[1]) / w.sum(-1, keepdims=True)


@wrong("scores are normalised over all keys, and masked after that", **ELU)
def mask_after_division(q, k, v):
    w = elu1(q) @ grouped(elu1(k), q.shape[1]).swapaxes(-1, -2)
    return np.tril(w / w.sum(-1, keepdims=True)) @ grouped(v, q.shape[1])


# Wrong: RoPE


def with_state(fq, fk, gq, gk, v, S, z):
    """The rest of a kernel with RoPE, from the rotated features f and those that z takes."""
    h = fq.shape[1]
    num = causal(fq, grouped(fk, h)) @ grouped(v, h) + fq @ grouped(S, h)
    den = causal(gq, grouped(gk, h)).sum(-1, keepdims=True) + gq @ grouped(z, h)[..., None]
    return num / den, S + fk.swapaxes(-1, -2) @ v, z + gk.sum(2)


@wrong("positions start at 0 in every call, whatever position is given", **ELU, **ROPE)
def rope_forgets_position(q, k, v, S, z, position):
    q, k = elu1(q), elu1(k)
    return with_state(half(q), half(k), q, k, v, S, z)


@wrong("queries are rotated from the position, keys from 0", **ROPE_S)
def rope_position_of_q_alone(q, k, v, S, position):
    fq, fk, h = half(q, position), half(k), q.shape[1]
    return causal(fq, grouped(fk, h)) @ grouped(v, h) + fq @ grouped(S, h), S + fk.swapaxes(-1, -2) @ v


@wrong("the table of RoPE has 128 rows, and later positions take its last row", **ROPE_S)
def rope_table_ends(q, k, v, S, position):
    rows, h = np.minimum(np.arange(q.shape[2]) + position, 127), q.shape[1]
    c, s = (a.astype(q.dtype)[rows] for a in table(128, q.shape[3]))

    def turn(x):
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * c - b * s, a * s + b * c], axis=-1)

    fq, fk = turn(q), turn(k)
    return causal(fq, grouped(fk, h)) @ grouped(v, h) + fq @ grouped(S, h), S + fk.swapaxes(-1, -2) @ v


@wrong("pairs of RoPE are neighbours, though halves were agreed on", **ELU, **ROPE)
def rope_other_layout(q, k, v, S, z, position):
    q, k = elu1(q), elu1(k)
    return with_state(pairs(q, position), pairs(k, position), q, k, v, S, z)


@wrong("the denominator too is made of rotated features", **ELU, **ROPE)
def rope_in_denominator(q, k, v, S, z, position):
    fq, fk = half(elu1(q), position), half(elu1(k), position)
    return with_state(fq, fk, fq, fk, v, S, z)


@wrong("RoPE comes before φ, though after φ was agreed on", **ELU, **ROPE)
def rope_before_phi(q, k, v, S, z, position):
    q, k = elu1(half(q, position)), elu1(half(k, position))
    return with_state(q, k, q, k, v, S, z)


@wrong("the frequencies are base^(-i/d), not base^(-2i/d)", **ROPE_S)
def rope_frequencies(q, k, v, S, position):
    d, h = q.shape[-1], q.shape[1]
    angles = np.outer(np.arange(q.shape[2]) + position, 10000.0 ** (-np.arange(d // 2) / d))
    c, s = np.cos(angles).astype(q.dtype), np.sin(angles).astype(q.dtype)

    def turn(x):
        a, b = x[..., : d // 2], x[..., d // 2 :]
        return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)

    fq, fk = turn(q), turn(k)
    return causal(fq, grouped(fk, h)) @ grouped(v, h) + fq @ grouped(S, h), S + fk.swapaxes(-1, -2) @ v


@wrong("rotate_half without its minus", normalise=False, rope="half")
def rope_without_minus(q, k, v):
    c, s = (np.concatenate([a, a], axis=-1).astype(q.dtype) for a in table(q.shape[2], q.shape[3]))
    q, k = (x * c + np.roll(x, x.shape[-1] // 2, axis=-1) * s for x in (q, grouped(k, q.shape[1])))
    return causal(q, k) @ grouped(v, q.shape[1])


@wrong("the tables are joined as repeat, as for neighbours, while x is turned by halves", normalise=False, rope="half")
def rope_mixes_layouts(q, k, v):
    c, s = (np.repeat(a, 2, axis=-1).astype(q.dtype) for a in table(q.shape[2], q.shape[3]))

    def turn(x):
        a, b = np.split(x, 2, axis=-1)
        return x * c + np.concatenate([-b, a], axis=-1) * s

    return causal(turn(q), grouped(turn(k), q.shape[1])) @ grouped(v, q.shape[1])


@wrong("of a partial RoPE the frequencies are those of the full width", normalise=False, rope="half", rope_width=4)
def rope_partial_frequencies(q, k, v):
    d, w = q.shape[-1], 4
    angles = np.outer(np.arange(q.shape[2]), 10000.0 ** (-np.arange(0, d, 2) / d))[:, : w // 2]
    c, s = np.cos(angles).astype(q.dtype), np.sin(angles).astype(q.dtype)

    def turn(x):
        a, b = x[..., : w // 2], x[..., w // 2 : w]
        return np.concatenate([a * c - b * s, b * c + a * s, x[..., w:]], axis=-1)

    return causal(turn(q), grouped(turn(k), q.shape[1])) @ grouped(v, q.shape[1])


@wrong("values are rotated as well", rope="half", **ELU)
def rope_of_values(q, k, v):
    q, k, h = elu1(q), elu1(k), q.shape[1]
    w = causal(half(q), grouped(half(k), h))
    even = v.shape[-1] // 2 * 2
    v = np.concatenate([half(v[..., :even]), v[..., even:]], axis=-1)
    return w @ grouped(v, h) / causal(q, grouped(k, h)).sum(-1, keepdims=True)


@wrong("the axis of positions is that of the heads, for arrays in BTHD", axes="BTHD", rope="half", normalise=False)
def rope_along_heads(q, k, v):
    k, v = (np.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    w = np.tril(np.einsum("bthd,bshd->bhts", half(q), half(k)))
    return np.einsum("bhts,bshm->bthm", w, v)


@wrong("positions start anew in each chunk", **ROPE_S)
def rope_per_chunk(q, k, v, S, position):
    C, h, o = 32, q.shape[1], []
    for i in range(0, q.shape[2], C):
        a, b, c = q[:, :, i : i + C], k[:, :, i : i + C], v[:, :, i : i + C]
        a, b = half(a, position), half(b, position)
        o.append(causal(a, grouped(b, h)) @ grouped(c, h) + a @ grouped(S, h))
        S = S + b.swapaxes(-1, -2) @ c
    return np.concatenate(o, axis=2), S


@wrong("angles are formed in bfloat16", library="torch", rope="half", normalise=False)
def rope_angles_bfloat16(q, k, v):
    n, d, r = q.shape[2], q.shape[3], q.shape[1] // k.shape[1]
    inv = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.bfloat16) / d)
    angles = torch.outer(torch.arange(n, dtype=torch.bfloat16), inv).float()
    c, s = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)

    def turn(x):
        a, b = x.chunk(2, dim=-1)
        return x * c + torch.cat([-b, a], -1) * s

    w = torch.tril(turn(q) @ turn(k).repeat_interleave(r, 1).mT)
    return w @ v.repeat_interleave(r, 1)


# Wrong: layouts


@wrong("BTHD is reshaped to BHTD, not transposed", axes="BTHD", **ELU)
def reshape_for_transpose(q, k, v):
    k, v = (np.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    q, k, v = (x.reshape(x.shape[0], x.shape[2], x.shape[1], x.shape[3]) for x in (q, k, v))
    w = causal(elu1(q), elu1(k))
    return (w @ v / w.sum(-1, keepdims=True)).reshape(q.shape[0], q.shape[2], q.shape[1], -1)


@wrong("a packed row is split as (D, H), not (H, D)", axes="BT(HD)", normalise=False, call="q, k, v, heads, groups -> o")
def packed_split_wrong(q, k, v, heads, groups):
    q, k, v = (x.reshape(*x.shape[:2], -1, h) for x, h in ((q, heads), (k, groups), (v, groups)))
    k, v = (np.repeat(x, heads // groups, axis=3) for x in (k, v))
    w = np.tril(np.einsum("btdh,bsdh->bhts", q, k))
    return np.einsum("bhts,bsmh->btmh", w, v).reshape(*q.shape[:2], -1)


@wrong("the scale is H^(-1/2): it reads axis 2 as the width, in BTHD", axes="BTHD", normalise=False, scale="d")
def scale_of_wrong_axis(q, k, v):
    k, v = (np.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    w = np.tril(np.einsum("bthd,bshd->bhts", q, k)) * q.shape[2] ** -0.5
    return np.einsum("bhts,bshm->bthm", w, v)


@wrong("the output has width d: values beyond it are cut, missing ones are 0", **ELU)
def output_like_q(q, k, v):
    o, width = np.zeros_like(q), min(q.shape[-1], v.shape[-1])
    w = causal(elu1(q), grouped(elu1(k), q.shape[1]))
    o[..., :width] = (w @ grouped(v, q.shape[1]) / w.sum(-1, keepdims=True))[..., :width]
    return o


# Wrong: φ, ε, scale, dtypes


@wrong("elu(x) for positive x lacks the + 1", **ELU)
def elu_without_one(q, k, v):
    q, k = (np.where(x > 0, x, np.exp(np.minimum(x, 0))) for x in (q, grouped(k, q.shape[1])))
    w = causal(q, k)
    return w @ grouped(v, q.shape[1]) / w.sum(-1, keepdims=True)


@wrong("the largest key entry of each token is subtracted before exp, and never given back", phi="exp")
def exp_minus_max_of_token(q, k, v):
    q, k = (np.exp(x - x.max(-1, keepdims=True)) for x in (q, grouped(k, q.shape[1])))
    w = causal(q, k)
    return w @ grouped(v, q.shape[1]) / w.sum(-1, keepdims=True)


@wrong("q goes into the product without φ", phi="relu", eps=1e-3, eps_place="add")
def phi_of_k_alone(q, k, v):
    w = causal(q, grouped(relu(k), q.shape[1]))
    return w @ grouped(v, q.shape[1]) / (w.sum(-1, keepdims=True) + 1e-3)


@wrong("relu is spelt abs", phi="relu", normalise=False)
def relu_is_abs(q, k, v):
    return causal(np.abs(q), grouped(np.abs(k), q.shape[1])) @ grouped(v, q.shape[1])


@wrong("the denominator is made positive with abs")
def denominator_abs(q, k, v):
    w = causal(q, grouped(k, q.shape[1]))
    return w @ grouped(v, q.shape[1]) / np.abs(w.sum(-1, keepdims=True))


@wrong("the denominator is never below 1, as in mLSTM", phi="relu", eps=1e-6, eps_place="max", scale="d")
def denominator_at_least_one(q, k, v):
    w = causal(relu(q * q.shape[-1] ** -0.5), grouped(relu(k), q.shape[1]))
    return w @ grouped(v, q.shape[1]) / np.maximum(w.sum(-1, keepdims=True), 1)


@wrong("ε is added to the quotient", **ELU, eps=1e-3)
def eps_after_division(q, k, v):
    w = causal(elu1(q), grouped(elu1(k), q.shape[1]))
    return w @ grouped(v, q.shape[1]) / w.sum(-1, keepdims=True) + 1e-3


@wrong("ε is added to each score, so it counts once for each token", **ELU, eps=1e-3)
def eps_in_each_score(q, k, v):
    w = elu1(q) @ grouped(elu1(k), q.shape[1]).swapaxes(-1, -2)
    den = np.tril(w + 1e-3).sum(-1, keepdims=True)
    return np.tril(w) @ grouped(v, q.shape[1]) / den


@wrong("q is scaled after φ, though before φ was agreed on", phi="silu", normalise=False, scale="d")
def scale_after_phi(q, k, v):
    def silu(x):
        return x / (1 + np.exp(-x))

    w = causal(silu(q) * q.shape[-1] ** -0.5, grouped(silu(k), q.shape[1]))
    return w @ grouped(v, q.shape[1])


@wrong("both q and the scores are scaled", normalise=False, scale="d")
def scale_twice(q, k, v):
    s = q.shape[-1] ** -0.5
    return s * causal(q * s, grouped(k, q.shape[1])) @ grouped(v, q.shape[1])


@wrong("it works in float32 though given float64", dtype="float64", **ELU)
def hidden_float32(q, k, v):
    q, k, v = (x.astype(np.float32) for x in (q, grouped(k, q.shape[1]), grouped(v, q.shape[1])))
    w = causal(elu1(q), elu1(k))
    return (w @ v / w.sum(-1, keepdims=True)).astype(np.float64)


@wrong("the running state is added up in float16", dtype="float16", **ONLY_S)
def state_in_float16(q, k, v, S):
    r, o, S = q.shape[1] // k.shape[1], np.empty((*q.shape[:3], v.shape[-1]), q.dtype), S.astype(q.dtype)
    for t in range(q.shape[2]):
        S = S + k[:, :, t, :, None] * v[:, :, t, None, :]
        a, b = q[:, :, t].astype(np.float32), np.repeat(S, r, axis=1).astype(np.float32)
        o[:, :, t] = np.einsum("bhd,bhdm->bhm", a, b)
    return o, S.astype(np.float32)


@wrong("the running state is rounded to bfloat16 at each step", library="torch", dtype="bfloat16", **STATE, **ELU)
def state_in_bfloat16(q, k, v, S, z):
    r, o = q.shape[1] // k.shape[1], torch.empty(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    f, g = (torch.where(x > 0, x + 1, x.clamp(max=0).exp()) for x in (q.float(), k.float()))
    for t in range(q.shape[2]):
        S = (S + g[:, :, t, :, None] * v[:, :, t, None, :].float()).bfloat16().float()
        z = (z + g[:, :, t]).bfloat16().float()
        num = torch.einsum("bhd,bhdm->bhm", f[:, :, t], S.repeat_interleave(r, 1))
        o[:, :, t] = (num / (f[:, :, t] * z.repeat_interleave(r, 1)).sum(-1, keepdim=True)).to(q.dtype)
    return o, S, z


@wrong("dropout of the scores stays on: F.dropout has training=True by default", library="torch", **ELU)
def dropout_stays_on(q, k, v):
    r = q.shape[1] // k.shape[1]
    q, k = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    w = torch.tril(q @ k.repeat_interleave(r, 1).mT)
    w = torch.nn.functional.dropout(w / w.sum(-1, keepdim=True), 0.1)
    return w @ v.repeat_interleave(r, 1)


@wrong("q is scaled in place, so the caller's q changes", library="torch", scale="d", **ELU)
def scales_in_place(q, k, v):
    r = q.shape[1] // k.shape[1]
    q.mul_(q.shape[-1] ** -0.5)
    f, g = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k).repeat_interleave(r, 1) + 1
    w = torch.tril(f @ g.mT)
    return w @ v.repeat_interleave(r, 1) / w.sum(-1, keepdim=True)


# Right


@right(**ELU)
def quadratic(q, k, v):
    w = causal(elu1(q), grouped(elu1(k), q.shape[1]))
    return w @ grouped(v, q.shape[1]) / w.sum(-1, keepdims=True)


@right(**STATE, phi="elu+1", dtype="float32,float64")
def chunks_of_seven(q, k, v, S, z):
    h, o = q.shape[1], np.empty((*q.shape[:3], v.shape[-1]), q.dtype)
    for i in range(0, q.shape[2], 7):
        c = slice(i, i + 7)
        a, b = elu1(q[:, :, c]), elu1(k[:, :, c])
        w = causal(a, grouped(b, h))
        num, den = (
            w @ grouped(v[:, :, c], h) + a @ grouped(S, h),
            w.sum(-1) + np.einsum("bhtd,bhd->bht", a, grouped(z, h)),
        )
        o[:, :, c] = num / den[..., None]
        S, z = S + b.swapaxes(-1, -2) @ v[:, :, c], z + b.sum(2)
    return o, S, z


@right(axes="BTHD", call="q, k, v, initial_state=(S, z), output_final_state=True -> o, (S, z)", phi="elu+1")
def fla_like(q, k, v, initial_state=None, output_final_state=False):
    S, z = initial_state
    r, o = q.shape[2] // k.shape[2], np.empty((*q.shape[:3], v.shape[-1]), q.dtype)
    q, k = elu1(q), elu1(k)
    for t in range(q.shape[1]):
        S = S + np.einsum("bhd,bhm->bhdm", k[:, t], v[:, t])
        z = z + k[:, t]
        num = np.einsum("bhd,bhdm->bhm", q[:, t], S.repeat(r, 1))
        o[:, t] = num / np.einsum("bhd,bhd->bh", q[:, t], z.repeat(r, 1))[..., None]
    return o, (S, z)


@right(axes="TD", phi="relu", eps=1e-6)
def single_head(q, k, v):
    w = np.tril(relu(q) @ relu(k).T)
    return w @ v / (w.sum(1, keepdims=True) + np.float32(1e-6))


@right(axes="HTD", call="q, k, v, S -> o, S", state_axes="HKV", normalise=False)
def no_batch(q, k, v, S):
    r = len(q) // len(k)
    big = np.cumsum(k[..., None] * v[:, :, None], axis=1) + S[:, None]
    return np.einsum("htd,htdm->htm", q, np.repeat(big, r, axis=0)), S + np.einsum("htd,htm->hdm", k, v)


@right(axes="TD", state_axes="KV", z_axes="K", phi="elu+1", **STATE)
def scalar_loops(q, k, v, S, z):
    q, k, o = elu1(q), elu1(k), np.zeros((len(q), v.shape[1]), q.dtype)
    S, z = S.copy(), z.copy()
    for t in range(len(q)):
        for i in range(q.shape[1]):
            z[i] += k[t, i]
            for j in range(v.shape[1]):
                S[i, j] += k[t, i] * v[t, j]
        for j in range(v.shape[1]):
            o[t, j] = sum(q[t, i] * S[i, j] for i in range(q.shape[1])) / sum(q[t, i] * z[i] for i in range(q.shape[1]))
    return o, S, z


@right(axes="BHDT", normalise=False)
def tokens_last(q, k, v):
    r = q.shape[1] // k.shape[1]
    w = np.triu(np.einsum("bhds,bhdt->bhst", np.repeat(k, r, axis=1), q))
    return np.repeat(v, r, axis=1) @ w


@right(axes="TBHD", phi="elu+1")
def tokens_first(q, k, v):
    k, v = (np.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    q, k = elu1(q), elu1(k)
    num = np.einsum("tbhd,tbhdm->tbhm", q, np.cumsum(np.einsum("tbhd,tbhm->tbhdm", k, v), axis=0))
    return num / np.einsum("tbhd,tbhd->tbh", q, np.cumsum(k, axis=0))[..., None]


@right(state_axes="BHVK", **STATE, phi="elu+1")
def state_values_first(q, k, v, S, z):
    h, q, k = q.shape[1], elu1(q), elu1(k)
    w = causal(q, grouped(k, h))
    num = w @ grouped(v, h) + np.einsum("bhtk,bhvk->bhtv", q, grouped(S, h))
    den = w.sum(-1) + np.einsum("bhtk,bhk->bht", q, grouped(z, h))
    return num / den[..., None], S + np.einsum("bhtv,bhtk->bhvk", v, k), z + k.sum(2)


@right(**ONLY_S)
def reversed_sums(q, k, v, S):
    h, o = q.shape[1], np.zeros((*q.shape[:3], v.shape[-1]), q.dtype)
    for s in reversed(range(q.shape[2])):
        score = np.einsum("bhtd,bhd->bht", q[:, :, s:], grouped(k, h)[:, :, s])
        o[:, :, s:] += score[..., None] * grouped(v, h)[:, :, s, None]
    last = sum((k[:, :, s, :, None] * v[:, :, s, None] for s in reversed(range(q.shape[2]))), np.zeros_like(S))
    return o + q @ grouped(S, h), last + S


@right(**STATE, phi="elu+1")
def parallel_prefix(q, k, v, S, z):
    q, k, h, n = elu1(q), elu1(k), q.shape[1], q.shape[2]
    one = np.ones((*v.shape[:3], 1), v.dtype)
    x = k[..., None] * np.concatenate([v, one], axis=-1)[:, :, :, None]
    step = 1
    while step < n:
        x = np.concatenate([x[:, :, :step], x[:, :, step:] + x[:, :, :-step]], axis=2)
        step *= 2
    first = np.concatenate([S, z[..., None]], axis=-1)
    x = x + first[:, :, None]
    read = np.einsum("bhtd,bhtdm->bhtm", q, grouped(x, h))
    last = x[:, :, -1] if n else first
    return read[..., :-1] / read[..., -1:], last[..., :-1], last[..., -1]


@right(dtype="float32", phi="exp", normalise=True, sums="float64", **STATE)
def float64_inside(q, k, v, S, z):
    h, kind = q.shape[1], q.dtype
    q, k, v = np.exp(q.astype(float)), np.exp(k.astype(float)), v.astype(float)
    w = causal(q, grouped(k, h))
    num, den = w @ grouped(v, h) + q @ grouped(S, h), w.sum(-1, keepdims=True) + q @ grouped(z, h)[..., None]
    return (num / den).astype(kind), S + k.swapaxes(-1, -2) @ v, z + k.sum(2)


@right(dtype="float16", **STATE, phi="elu+1")
def half_precision(q, k, v, S, z):
    h = q.shape[1]
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    q, k = elu1(q), elu1(k)
    w = causal(q, grouped(k, h))
    num, den = w @ grouped(v, h) + q @ grouped(S, h), w.sum(-1, keepdims=True) + q @ grouped(z, h)[..., None]
    return (num / den).astype(np.float16), S + k.swapaxes(-1, -2) @ v, z + k.sum(2)


@right(library="torch", dtype="bfloat16,float16,float32", phi="relu", eps=1e-6, eps_place="max")
def torch_low_precision(q, k, v):
    r = q.shape[1] // k.shape[1]
    f, g = q.float().relu(), k.float().relu().repeat_interleave(r, 1)
    w = (f @ g.mT).tril()
    den = w.sum(-1, keepdim=True).clamp(min=1e-6)
    return (w @ v.float().repeat_interleave(r, 1) / den).to(q.dtype)


@right(library="torch", dtype="float64,float32", phi="elu+1", axes="BTHD", **STATE)
def torch_groups_by_index(q, k, v, S, z):
    heads = torch.arange(q.shape[2]) // (q.shape[2] // k.shape[2])
    q, k = (torch.where(x > 0, x + 1, torch.exp(x.clamp(max=0))) for x in (q, k))
    zs = z[:, None] + k.cumsum(1)
    Ss = S[:, None] + torch.einsum("bthd,bthm->bthdm", k, v).cumsum(1)
    o = (
        torch.einsum("bthd,bthdm->bthm", q, Ss[:, :, heads])
        / torch.einsum("bthd,bthd->bth", q, zs[:, :, heads])[..., None]
    )
    return o, S + torch.einsum("bthd,bthm->bhdm", k, v), z + k.sum(1)


@right(library="torch", normalise=False, sharing="cyclic")
def torch_cyclic_heads(q, k, v):
    r = q.shape[1] // k.shape[1]
    return torch.tril(q @ k.repeat(1, r, 1, 1).mT) @ v.repeat(1, r, 1, 1)


@right(library="torch", phi="elu+1", eps=1e-6, dtype="float64")
def torch_elu_plus_one(q, k, v):
    r = q.shape[1] // k.shape[1]
    q, k = (torch.nn.functional.elu(x) + 1 for x in (q, k.repeat_interleave(r, 1)))
    z = 1 / (torch.einsum("nhlm,nhlm->nhl", q, k.cumsum(2)) + 1e-6)
    return torch.einsum("nhls,nhsm,nhl->nhlm", torch.tril(q @ k.mT), v.repeat_interleave(r, 1), z)


@right(phi="elu+1")
def phi_as_min_and_max(q, k, v):
    q, k = (np.exp(np.minimum(x, 0)) + np.maximum(x, 0) for x in (q, k))
    o, h = [], q.shape[1]
    for t in range(q.shape[2]):
        w = np.einsum("bhd,bhsd->bhs", q[:, :, t], grouped(k[:, :, : t + 1], h))
        o.append(np.einsum("bhs,bhsm->bhm", w / w.sum(-1, keepdims=True), grouped(v[:, :, : t + 1], h)))
    return np.stack(o, axis=2) if o else grouped(v, h)


@right(phi="silu", normalise=False, scale="d", scale_place="scores")
def silu_scaled_scores(q, k, v):
    q, k = (x / (1 + np.exp(-x)) for x in (q, grouped(k, q.shape[1])))
    return (causal(q, k) * q.shape[-1] ** -0.5) @ grouped(v, q.shape[1])


@right(phi="relu2", eps=1e-3, eps_place="max", scale="d")
def relu_squared(q, k, v):
    q, k = relu(q * q.shape[-1] ** -0.5) ** 2, grouped(relu(k) ** 2, q.shape[1])
    w = causal(q, k)
    return w @ grouped(v, q.shape[1]) / np.maximum(w.sum(-1, keepdims=True), np.float32(1e-3))


@right(phi="elu+1", scale="0.25")
def scale_a_number(q, k, v):
    w = causal(elu1(q * 0.25), grouped(elu1(k), q.shape[1]))
    return (w / w.sum(-1, keepdims=True)) @ grouped(v, q.shape[1])


@right(reads="before", **ONLY_S)
def reads_before_write(q, k, v, S):
    r, o = q.shape[1] // k.shape[1], np.empty((*q.shape[:3], v.shape[-1]), q.dtype)
    for t in range(q.shape[2]):
        o[:, :, t] = (q[:, :, t, None] @ np.repeat(S, r, axis=1))[:, :, 0]
        S = S + k[:, :, t, :, None] @ v[:, :, t, None]
    return o, S


@right(reads="before", phi="elu+1", eps=1e-5, **STATE)
def reads_before_normalised(q, k, v, S, z):
    q, k, h = elu1(q), elu1(k), q.shape[1]
    w = np.tril(q @ grouped(k, h).swapaxes(-1, -2), -1)
    den = w.sum(-1, keepdims=True) + q @ grouped(z, h)[..., None]
    return (w @ grouped(v, h) + q @ grouped(S, h)) / (den + np.float32(1e-5)), S + k.swapaxes(-1, -2) @ v, z + k.sum(2)


@right(**ROPE, phi="elu+1")
def rope_complex(q, k, v, S, z, position):
    n, d, q, k = q.shape[2], q.shape[3], elu1(q), elu1(k)
    turns = np.exp(1j * np.outer(np.arange(position, position + n), 10000.0 ** (-np.arange(0, d, 2) / d)))

    def turn(x):
        y = (x[..., : d // 2] + 1j * x[..., d // 2 :]) * turns
        return np.concatenate([y.real, y.imag], axis=-1).astype(x.dtype)

    return with_state(turn(q), turn(k), q, k, v, S, z)


@right(call="q, k, v, S, z, position -> o, S, z", rope="interleaved", phi="elu+1", rope_base=500000.0)
def rope_reshaped(q, k, v, S, z, position):
    q, k = elu1(q), elu1(k)

    def turn(x):
        c, s = (a.astype(x.dtype) for a in table(x.shape[2], x.shape[3], position, 500000.0))
        y = x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
        return np.stack([y[..., 0] * c - y[..., 1] * s, y[..., 1] * c + y[..., 0] * s], -1).reshape(x.shape)

    return with_state(turn(q), turn(k), q, k, v, S, z)


@right(call="q, k, v, S, z, position -> o, S, z", rope="half", rope_place="before", phi="elu+1")
def rope_then_phi(q, k, v, S, z, position):
    q, k = elu1(half(q, position)), elu1(half(k, position))
    return with_state(q, k, q, k, v, S, z)


@right(call="q, k, v, S, offset=position -> o, S", rope="half", rope_width=2, normalise=False)
def rope_of_two_entries(q, k, v, S, offset=0):
    q, k = (np.concatenate([half(x[..., :2], offset), x[..., 2:]], axis=-1) for x in (q, k))
    h = q.shape[1]
    return causal(q, grouped(k, h)) @ grouped(v, h) + q @ grouped(S, h), S + k.swapaxes(-1, -2) @ v


@right(library="torch", rope="interleaved", axes="BTHD", phi="elu+1", dtype="float64")
def torch_rope_as_complex(q, k, v):
    n, d, r = q.shape[1], q.shape[3], q.shape[2] // k.shape[2]
    inv = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    turns = torch.polar(torch.ones(n, d // 2, dtype=torch.float64), torch.outer(torch.arange(n).double(), inv))
    q, k = (torch.where(x > 0, x + 1, x.clamp(max=0).exp()) for x in (q, k.repeat_interleave(r, 2)))

    def turn(x):
        return torch.view_as_real(
            torch.view_as_complex(x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)) * turns[:, None]
        ).flatten(-2)

    w = torch.einsum("bthd,bshd->bhts", turn(q), turn(k)).tril()
    num = torch.einsum("bhts,bshm->bthm", w, v.repeat_interleave(r, 2))
    return num / (q * k.cumsum(1)).sum(-1, keepdim=True)


@right(axes="BTD", normalise=False)
def row_by_row(q, k, v):
    return np.stack([np.tril(a @ b.T) @ c for a, b, c in zip(q, k, v, strict=True)])


@right(axes="BT(HD)", phi="elu+1", call="q, k, v, num_heads=heads, kv_num_heads=groups -> o")
def packed(q, k, v, num_heads, kv_num_heads):
    q, k, v = (
        x.reshape(*x.shape[:2], h, x.shape[2] // h) for x, h in ((q, num_heads), (k, kv_num_heads), (v, kv_num_heads))
    )
    k, v = (np.repeat(x, num_heads // kv_num_heads, axis=2) for x in (elu1(k), v))
    w = np.tril(np.einsum("bthd,bshd->bhts", elu1(q), k))
    w = w / w.sum(-1, keepdims=True)
    return np.einsum("bhts,bshm->bthm", w, v).reshape(*q.shape[:2], num_heads * v.shape[3])


@right(axes="TD", call="q, k, v -> o, S, z", state_axes="KV", z_axes="K", phi="elu+1")
def no_state_in(q, k, v):
    q, k = elu1(q), elu1(k)
    w = np.tril(q @ k.T)
    return w @ v / w.sum(1, keepdims=True), k.T @ v, k.sum(0)


@right(phi="elu+1", axes="BTHD", call="q, k, v, None, (S, z) -> _, o, [S, z]", z_axes="BH1K")
def other_signature(q, k, v, mask=None, state=None):
    S, z = state
    k, q, h = elu1(k), elu1(q), q.shape[2] // k.shape[2]
    a, b, c = (x.transpose(0, 2, 1, 3) for x in (q, k.repeat(h, 2), v.repeat(h, 2)))
    w = causal(a, b)
    den = w.sum(-1, keepdims=True) + a @ z.repeat(h, 1).swapaxes(-1, -2)
    o = (w @ c + a @ S.repeat(h, 1)) / den
    S, z = S + np.einsum("bthd,bthm->bhdm", k, v), z + k.sum(1)[:, :, None]
    return w, o.transpose(0, 2, 1, 3), [S, z]


# A plain formula, to see that each right kernel is right and each wrong one wrong

TRIALS = (
    Trial(2, 4, 2, 65, 6, 5, 1, 3),
    Trial(1, 1, 1, 5, 4, 4),
    Trial(2, 2, 2, 64, 8, 3, 1),
    Trial(1, 3, 1, 1, 4, 6, 1, 7),
    Trial(2, 4, 2, 130, 6, 5),
    Trial(1, 4, 2, 33, 4, 7, 1, 700),
    Trial(1, 2, 2, 16, 4, 3, negative=True),
    Trial(1, 1, 1, 700, 4, 3),
)
MAPS: dict[str, Callable[[Any], Any]] = {
    "identity": lambda x: x,
    "relu": lambda x: x * (x > 0),
    "relu2": lambda x: x * x * (x > 0),
    "exp": np.exp,
    "elu+1": lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}
NEAR = {"float64": 1e-11, "float32": 3e-5, "float16": 1e-3, "bfloat16": 8e-3}


def rotated(x, p, spec):
    """R_p x for the vectors in the last axis, entry by entry."""
    w = spec.rope_width or x.shape[-1]
    out = x.copy()
    for i in range(w // 2):
        a, b = (i, i + w // 2) if spec.rope == "half" else (2 * i, 2 * i + 1)
        angle = p * spec.rope_base ** (-2 * i / w)
        out[..., a] = x[..., a] * np.cos(angle) - x[..., b] * np.sin(angle)
        out[..., b] = x[..., a] * np.sin(angle) + x[..., b] * np.cos(angle)
    return out


def direct(q, k, v, S, z, position, spec):
    """The recurrence in float64, one head and one token after the other."""
    phi, d = MAPS[spec.phi], q.shape[-1]
    s = d**-0.5 if spec.scale == "d" else float(spec.scale)
    S, z, G, H = S.copy(), z.copy(), k.shape[1], q.shape[1]
    o = np.zeros((*q.shape[:3], v.shape[-1]))
    of = [h % G if spec.sharing == "cyclic" else h // (H // G) for h in range(H)]
    for t in range(q.shape[2]):
        a, b = q[:, :, t] * (s if spec.scale_place == "q" else 1), k[:, :, t]
        if spec.rope != "none" and spec.rope_place == "before":
            a, b = rotated(a, position + t, spec), rotated(b, position + t, spec)
        ga, gb = phi(a), phi(b)
        fa, fb = ga, gb
        if spec.rope != "none" and spec.rope_place == "after":
            fa, fb = rotated(ga, position + t, spec), rotated(gb, position + t, spec)
        before = S, z
        S, z = S + fb[..., None] * v[:, :, t, None], z + gb
        read_S, read_z = before if spec.reads == "before" else (S, z)
        for h in range(H):
            num, den = np.einsum("bd,bdm->bm", fa[:, h], read_S[:, of[h]]), (ga[:, h] * read_z[:, of[h]]).sum(-1)
            num, den = (x * s if spec.scale_place == "scores" else x for x in (num, den))
            den = np.maximum(den, spec.eps) if spec.eps_place == "max" and spec.eps else den + spec.eps
            o[:, h, t] = num / den[:, None] if spec.normalise else num
    return {"o": o, "S": S, "z": z}


def rounded(x, dtype):
    return torch.tensor(x).to(getattr(torch, dtype)).double().numpy()


def inputs(trial: Trial, spec: LinearAttention, dtype: str, seed: int) -> dict[str, Any]:
    rng, c = np.random.default_rng(seed), trial
    q, k = (rng.normal(size=(c.batch, h, c.n, c.d)) for h in (c.heads, c.groups))
    v = rng.normal(size=(c.batch, c.groups, c.n, c.m)) + 0.5
    S, z = rng.normal(size=(c.batch, c.groups, c.d, c.m)), rng.uniform(0.5, 2, (c.batch, c.groups, c.d))
    if spec.normalise and spec.phi in ("identity", "relu", "relu2"):
        q[..., 0], k[..., 0] = np.abs(q[..., 0]) + 0.5, np.abs(k[..., 0]) + 0.5
        if spec.phi == "identity":
            q, k = np.abs(q) + 0.1, np.abs(k) + 0.1
            k, z = (-k, -z) if c.negative else (k, z)
    x = {"q": q, "k": k, "v": v, "S": S * c.start, "z": z * c.start}
    return {name: rounded(a, dtype) for name, a in x.items()} | {"position": c.position}


def fitted(trial: Trial, spec: LinearAttention) -> Trial:
    """The trial as far as the kernel's arrays and arguments allow it."""
    one = {"batch": 1} if "B" not in spec.axes else {}
    if "H" not in spec.axes:
        one |= {"heads": 1, "groups": 1}
    if "(H" in spec.axes:  # the number of heads is in the call
        one |= {"heads": 4, "groups": 2}
    if not spec.calls.given >= set(spec.state):
        one["start"] = 0
    if "position" not in spec.calls.given:
        one["position"] = 0
    return trial._replace(**one)


def to_kernel(x, name, spec, dtype):
    if name == "position":
        return x
    x, kind = spec.axes_of(name).give(x), spec.dtype_of(name, dtype)
    return torch.tensor(x).to(getattr(torch, kind)) if spec.library == "torch" else x.astype(kind)


def from_kernel(x, name, spec, trial):
    x = x.double().numpy() if spec.library == "torch" else np.asarray(x, dtype=np.float64)
    heads = trial.heads if name == "o" else trial.groups
    sizes = {"B": trial.batch, "H": heads, "T": trial.n, "D": trial.m, "K": trial.d, "V": trial.m}
    want = spec.axes_of(name).shape(sizes)
    if x.shape != want:
        raise ValueError(f"{name} has shape {x.shape}, not {want}")
    return spec.axes_of(name).take(x, sizes)


def copied(x):
    return x.clone() if hasattr(x, "clone") else np.array(x)


def differ(a, b):
    return not np.array_equal(*(x.double().numpy() if hasattr(x, "clone") else x for x in (a, b)), equal_nan=True)


def faults(kernel: Kernel, trials: tuple[Trial, ...] = TRIALS) -> list[str]:
    """What was seen to be wrong, in the order of the trials."""
    spec, found = LinearAttention(**kernel.spec), []
    for (number, trial), dtype in ((a, b) for a in enumerate(trials) for b in spec.dtypes):
        trial, earlier = fitted(trial, spec), []
        if spec.reads == "before" and spec.normalise and not spec.eps and not trial.start:
            continue
        for call in range(2):
            if call and "position" in spec.calls.given:
                trial = trial._replace(position=trial.position + 5)
            x = inputs(trial, spec, dtype, 2 * number + call)
            where = f"n = {trial.n}, {dtype}: "
            want = direct(**x, spec=spec)
            given = {name: to_kernel(a, name, spec, dtype) for name, a in x.items()}
            kept = {name: copied(a) for name, a in given.items()}
            try:
                with np.errstate(all="ignore"):
                    got = spec.calls.make(kernel.function, given)
                    got = {name: (a, from_kernel(a, name, spec, trial)) for name, a in got.items()}
            except Exception as error:
                found.append(where + repr(error)[:90])
                continue
            found += [where + f"{name} was written into" for name in given if differ(given[name], kept[name])]
            found += [
                where + f"{name} of the call before was written into" for name, raw, a in earlier if differ(raw, a)
            ]
            for name, (raw, a) in got.items():
                earlier.append((name, raw, copied(raw)))
                kind = spec.dtype_of(name, dtype)
                if kind not in str(raw.dtype):
                    found.append(where + f"{name} has dtype {raw.dtype}, not {kind}")
                off = np.abs(a - want[name]).max(initial=0) / max(np.abs(want[name]).max(initial=0), 1e-30)
                if not off <= NEAR[kind]:
                    found.append(where + f"{name} is off by {off:.1e}")
    return found


def self_check(wrong: list[Kernel] = WRONG, right: list[Kernel] = RIGHT) -> dict[str, list[str]]:
    """Each right kernel follows the formula, each wrong one does not; what was seen of these."""
    assert len({k.name for k in [*wrong, *right]}) == len(wrong) + len(right), "two kernels have the same name"
    for kernel in right:
        assert not kernel.wrong, kernel.name
        assert not (seen := faults(kernel)), (kernel.name, seen)
    seen_of = {kernel.name: faults(kernel) for kernel in wrong}
    same = [kernel.name for kernel in wrong if not kernel.wrong or not seen_of[kernel.name]]
    assert not same, f"nothing is wrong with {same}"
    return seen_of


if __name__ == "__main__":
    for name, seen in self_check().items():
        print(f"{name}: {len(seen)}; {seen[0]}")
    print(len(WRONG), "wrong,", len(RIGHT), "right")
