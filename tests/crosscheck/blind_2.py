"""A second set of kernels, with other mistakes and other forms than the first."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from . import blind_1
from .blind_1 import (
    ELU,
    ONLY_S,
    ROPE,
    ROPE_S,
    STATE,
    Kernel,
    causal,
    elu1,
    grouped,
    half,
    pairs,
    relu,
    table,
    with_state,
)

INTERLEAVED_S = ROPE_S | {"rope": "interleaved"}
WRONG: list[Kernel] = []
RIGHT: list[Kernel] = []


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


def last_state(k, v, S, z):
    return S + k.swapaxes(-1, -2) @ v, z + k.sum(2)


# Wrong: scans and blocks


@wrong("the scan makes floor(log2 n) steps, too few for lengths that are no power of two", **ELU)
def scan_stops_early(q, k, v):
    q, k, v = elu1(q), grouped(elu1(k), q.shape[1]), grouped(v, q.shape[1])
    x = k[..., None] * np.concatenate([v, np.ones_like(v[..., :1])], axis=-1)[:, :, :, None]
    for level in range(int(math.log2(q.shape[2]))):
        x = np.concatenate([x[:, :, : 2**level], x[:, :, 2**level :] + x[:, :, : -(2**level)]], axis=2)
    read = np.einsum("bhtd,bhtdm->bhtm", q, x)
    return read[..., :-1] / read[..., -1:]


@wrong("rows of the batch are laid end to end and the mask does not part them", **ELU)
def rows_end_to_end(q, k, v):
    B, H, n, _ = q.shape
    q, k, v = (x.swapaxes(0, 1).reshape(H, B * n, -1) for x in (elu1(q), grouped(elu1(k), H), grouped(v, H)))
    w = causal(q, k)
    return (w @ v / w.sum(-1, keepdims=True)).reshape(H, B, n, -1).swapaxes(0, 1)


@wrong("z is made once before the loop over heads and not made 0 again", **ELU)
def z_from_head_to_head(q, k, v):
    q, k, v = elu1(q), grouped(elu1(k), q.shape[1]), grouped(v, q.shape[1])
    o = np.empty_like(v)
    for b in range(q.shape[0]):
        z = np.zeros(q.shape[3], q.dtype)
        for h in range(q.shape[1]):
            S = np.zeros((q.shape[3], v.shape[3]), q.dtype)
            for t in range(q.shape[2]):
                S, z = S + np.outer(k[b, h, t], v[b, h, t]), z + k[b, h, t]
                o[b, h, t] = q[b, h, t] @ S / (q[b, h, t] @ z)
    return o


@wrong("every row of the batch takes the keys of the first", **ELU)
def keys_of_first_row(q, k, v):
    w = np.tril(np.einsum("bhtd,hsd->bhts", elu1(q), grouped(elu1(k), q.shape[1])[0]))
    return w @ grouped(v, q.shape[1]) / w.sum(-1, keepdims=True)


@wrong("all tokens of a chunk are divided by the z of its last token", **ELU)
def z_of_chunk_end(q, k, v):
    q, k, v, n = elu1(q), grouped(elu1(k), q.shape[1]), grouped(v, q.shape[1]), q.shape[2]
    ends = np.minimum(np.arange(n) // 8 * 8 + 7, n - 1)
    return causal(q, k) @ v / (q * np.cumsum(k, axis=2)[:, :, ends]).sum(-1, keepdims=True)


@wrong("tokens read the state as it was when their chunk began", **ONLY_S)
def stale_within_chunk(q, k, v, S):
    o, h = [], q.shape[1]
    for i in range(0, q.shape[2], 4):
        o.append(q[:, :, i : i + 4] @ grouped(S, h))
        S = S + k[:, :, i : i + 4].swapaxes(-1, -2) @ v[:, :, i : i + 4]
    return np.concatenate(o, axis=2), S


@wrong("it pads with copies of the last token, which go into the state that comes back", **ELU, **STATE)
def pads_with_copies(q, k, v, S, z):
    n, h = q.shape[2], q.shape[1]
    q, k, v = (np.pad(x, ((0, 0), (0, 0), (0, -n % 8), (0, 0)), mode="edge") for x in (elu1(q), elu1(k), v))
    w = causal(q, grouped(k, h))
    o = (w @ grouped(v, h) + q @ grouped(S, h)) / (w.sum(-1, keepdims=True) + q @ grouped(z, h)[..., None])
    return o[:, :, :n], *last_state(k, v, S, z)


@wrong("the chunk is a quarter of the length, and so 0 for fewer than four tokens", normalise=False)
def chunk_of_size_zero(q, k, v):
    k, v, S, o = grouped(k, q.shape[1]), grouped(v, q.shape[1]), 0, []
    C = q.shape[2] // 4
    for i in range(0, q.shape[2], C):
        a, b, c = q[:, :, i : i + C], k[:, :, i : i + C], v[:, :, i : i + C]
        o.append(causal(a, b) @ c + (a @ S if i else 0))
        S = S + b.swapaxes(-1, -2) @ c
    return np.concatenate(o, axis=2)


@wrong("short inputs take a quadratic path that does not know the state", **ELU, **STATE)
def short_path_without_state(q, k, v, S, z):
    q, k, h = elu1(q), elu1(k), q.shape[1]
    w = causal(q, grouped(k, h))
    num, den = w @ grouped(v, h), w.sum(-1, keepdims=True)
    if q.shape[2] > 16:
        num, den = num + q @ grouped(S, h), den + q @ grouped(z, h)[..., None]
    return num / den, *last_state(k, v, S, z)


@wrong("values are computed in blocks of 4 columns, and a last partial block is left 0", **ELU)
def value_block_missing(q, k, v):
    w = causal(elu1(q), grouped(elu1(k), q.shape[1]))
    w, v = w / w.sum(-1, keepdims=True), grouped(v, q.shape[1])
    o = np.zeros_like(v)
    for j in range(v.shape[3] // 4):
        o[..., 4 * j : 4 * j + 4] = w @ v[..., 4 * j : 4 * j + 4]
    return o


@wrong("scores are computed in blocks of 4 features, and each block replaces the one before", normalise=False)
def feature_block_replaces(q, k, v):
    k, v = grouped(k, q.shape[1]), grouped(v, q.shape[1])
    for j in range(0, q.shape[3], 4):
        w = causal(q[..., j : j + 4], k[..., j : j + 4])
    return w @ v


@wrong("each block of 4 features is divided by its own denominator", **ELU)
def feature_block_divides(q, k, v):
    q, k, v, o = elu1(q), grouped(elu1(k), q.shape[1]), grouped(v, q.shape[1]), 0
    for j in range(0, q.shape[3], 4):
        w = causal(q[..., j : j + 4], k[..., j : j + 4])
        o = o + w @ v / w.sum(-1, keepdims=True)
    return o


@wrong("the scale is that of the block width: d rounded up to a power of two", normalise=False, scale="d")
def scale_of_block_width(q, k, v):
    width = 1 << (q.shape[-1] - 1).bit_length()
    return causal(q * width**-0.5, grouped(k, q.shape[1])) @ grouped(v, q.shape[1])


@wrong("z is a convolution by FFT, padded to a power of two and not to 2n: the end wraps around", **ELU)
def circular_convolution(q, k, v):
    q, k, v, n = elu1(q), grouped(elu1(k), q.shape[1]), grouped(v, q.shape[1]), q.shape[2]
    size = 1 << (n - 1).bit_length()
    ones = np.fft.rfft(np.ones(n), size)[:, None]
    z = np.fft.irfft(np.fft.rfft(k.astype(float), size, axis=2) * ones, size, axis=2)[:, :, :n]
    return causal(q, k) @ v / (q * z.astype(q.dtype)).sum(-1, keepdims=True)


@wrong("o is updated as a running mean, though the query of the earlier tokens was another", **ELU)
def running_mean_of_outputs(q, k, v):
    q, k, v = elu1(q), grouped(elu1(k), q.shape[1]), grouped(v, q.shape[1])
    z, o, outs = np.zeros_like(k[:, :, 0]), np.zeros_like(v[:, :, 0]), []
    for t in range(q.shape[2]):
        z = z + k[:, :, t]
        share = (q[:, :, t] * k[:, :, t]).sum(-1) / (q[:, :, t] * z).sum(-1)
        o = o + share[..., None] * (v[:, :, t] - o)
        outs.append(o)
    return np.stack(outs, axis=2)


@wrong("it follows the delta rule: unit keys, and v − Sᵀk is written, not v", **ONLY_S)
def writes_the_difference(q, k, v, S):
    r, o = q.shape[1] // k.shape[1], []
    for t in range(q.shape[2]):
        k_t = k[:, :, t] / np.linalg.norm(k[:, :, t], axis=-1, keepdims=True)
        new = v[:, :, t] - np.einsum("bhd,bhdm->bhm", k_t, S)
        S = S + k_t[..., None] * new[:, :, None]
        o.append(np.einsum("bhd,bhdm->bhm", q[:, :, t], np.repeat(S, r, axis=1)))
    return np.stack(o, axis=2), S


@wrong("the loop goes through a flipped text and the output is not flipped back", normalise=False)
def flipped_once(q, k, v):
    q, k, v = (x[:, :, ::-1] for x in (q, grouped(k, q.shape[1]), grouped(v, q.shape[1])))
    return np.triu(q @ k.swapaxes(-1, -2)) @ v


@wrong("the result is a buffer that the next call of this shape overwrites", **ELU)
def returns_shared_buffer(q, k, v):
    w = causal(elu1(q), grouped(elu1(k), q.shape[1]))
    o = buffer((*q.shape[:3], v.shape[3]))
    np.divide(w @ grouped(v, q.shape[1]), w.sum(-1, keepdims=True), out=o)
    return o


@functools.cache
def buffer(shape):
    return np.empty(shape, np.float32)


# Wrong: heads, layouts, states


@wrong("heads of v are tiled while those of k are repeated", **ELU)
def values_tiled(q, k, v):
    w = causal(elu1(q), grouped(elu1(k), q.shape[1]))
    return w @ np.tile(v, (1, q.shape[1] // v.shape[1], 1, 1)) / w.sum(-1, keepdims=True)


@wrong("outputs of grouped heads come back with the repeats before the groups", normalise=False)
def heads_come_back_shuffled(q, k, v):
    B, H, n, d = q.shape
    G = k.shape[1]
    w = np.tril(np.einsum("bgrtd,bgsd->bgrts", q.reshape(B, G, H // G, n, d), k))
    return np.einsum("bgrts,bgsm->brgtm", w, v).reshape(B, H, n, -1)


@wrong("the state is summed over the repeats of a key head, so each key counts once for each", **ELU, **STATE)
def state_counts_repeats(q, k, v, S, z):
    q, k, h, G = elu1(q), elu1(k), q.shape[1], k.shape[1]
    K, V = grouped(k, h), grouped(v, h)
    w = causal(q, K)
    o = (w @ V + q @ grouped(S, h)) / (w.sum(-1, keepdims=True) + q @ grouped(z, h)[..., None])
    new = np.einsum("bhtd,bhtm->bhdm", K, V).reshape(k.shape[0], G, h // G, k.shape[3], v.shape[3]).sum(2)
    return o, S + new, z + k.sum(2)


@wrong("the queries of a group are averaged, as the keys' heads are fewer", **ELU)
def queries_averaged(q, k, v):
    B, H, n, d = q.shape
    mean = q.reshape(B, k.shape[1], -1, n, d).mean(2)
    w = causal(elu1(mean), elu1(k))
    return grouped(w @ v / w.sum(-1, keepdims=True), H)


@wrong("the state is kept as V×K and turned only if its shape is odd: wrong where d = m", normalise=False)
def state_turned_by_shape(q, k, v):
    k, v, o = grouped(k, q.shape[1]), grouped(v, q.shape[1]), []
    S = np.zeros((*q.shape[:2], v.shape[3], q.shape[3]), q.dtype)
    for t in range(q.shape[2]):
        S = S + v[:, :, t, :, None] * k[:, :, t, None, :]
        turned = S if S.shape[-2] == q.shape[-1] else S.swapaxes(-1, -2)
        o.append((q[:, :, t, None] @ turned)[:, :, 0])
    return np.stack(o, axis=2)


@wrong("heads and entries are merged in Fortran's order", axes="BT(HD)", call="q, k, v, heads, groups -> o", **ELU)
def merged_in_fortran_order(q, k, v, heads, groups):
    B, n = q.shape[:2]
    q, k, v = (x.reshape(B, n, h, -1).swapaxes(1, 2) for x, h in ((q, heads), (k, groups), (v, groups)))
    w = causal(elu1(q), grouped(elu1(k), heads))
    o = w @ grouped(v, heads) / w.sum(-1, keepdims=True)
    return np.stack([row.swapaxes(0, 1).reshape(n, -1, order="F") for row in o])


@wrong("keys are made stable with the maximum over all tokens, and S and z come back so scaled", phi="exp", **STATE)
def state_keeps_stabiliser(q, k, v, S, z):
    top = k.max(axis=(2, 3), keepdims=True, initial=0)
    f, g, h = np.exp(q), np.exp(k - top), q.shape[1]
    S, z = S * np.exp(-top), z * np.exp(-top[..., 0])
    w = causal(f, grouped(g, h))
    o = (w @ grouped(v, h) + f @ grouped(S, h)) / (w.sum(-1, keepdims=True) + f @ grouped(z, h)[..., None])
    return o, *last_state(g, v, S, z)


@wrong("z comes back as a unit vector", **ELU, **STATE)
def z_is_a_unit_vector(q, k, v, S, z):
    q, k, h = elu1(q), elu1(k), q.shape[1]
    w = causal(q, grouped(k, h))
    den = w.sum(-1, keepdims=True) + q @ grouped(z, h)[..., None]
    o = (w @ grouped(v, h) + q @ grouped(S, h)) / den
    S, z = last_state(k, v, S, z)
    return o, S, z / np.linalg.norm(z, axis=-1, keepdims=True)


@wrong("the state comes back for the heads of q", **ONLY_S)
def state_of_all_heads(q, k, v, S):
    K, V, first = (grouped(x, q.shape[1]) for x in (k, v, S))
    return causal(q, K) @ V + q @ first, first + K.swapaxes(-1, -2) @ V


@wrong("o comes back as float64 for arrays of float32", **ELU)
def returns_wider_dtype(q, k, v):
    q, k, v = (x.astype(np.float64) for x in (q, grouped(k, q.shape[1]), grouped(v, q.shape[1])))
    w = causal(elu1(q), elu1(k))
    return w @ v / w.sum(-1, keepdims=True)


@wrong("the output is held in bfloat16 before it is returned", library="torch", **ELU)
def output_through_bfloat16(q, k, v):
    r = q.shape[1] // k.shape[1]
    f, g = (torch.where(x > 0, x + 1, x.clamp(max=0).exp()) for x in (q, k.repeat_interleave(r, 1)))
    o = torch.empty(*q.shape[:3], v.shape[-1], dtype=torch.bfloat16)
    w = (f @ g.mT).tril()
    o.copy_(w @ v.repeat_interleave(r, 1) / w.sum(-1, keepdim=True))
    return o.to(q.dtype)


@wrong("fewer than eight tokens go to softmax attention", library="torch", scale="d", **ELU)
def short_goes_to_softmax(q, k, v):
    r = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(r, 1), v.repeat_interleave(r, 1)
    if q.shape[2] < 8:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    f, g = (torch.where(x > 0, x + 1, x.clamp(max=0).exp()) for x in (q * q.shape[-1] ** -0.5, k))
    w = (f @ g.mT).tril()
    return w @ v / w.sum(-1, keepdim=True)


# Wrong: φ, ε, norms


@wrong("q and k are made unit vectors before φ", library="torch", **ELU)
def unit_queries_and_keys(q, k, v):
    r = q.shape[1] // k.shape[1]
    f, g = (torch.nn.functional.elu(torch.nn.functional.normalize(x, dim=-1)) + 1 for x in (q, k))
    w = (f @ g.repeat_interleave(r, 1).mT).tril()
    return w @ v.repeat_interleave(r, 1) / w.sum(-1, keepdim=True)


@wrong("o is divided by its root mean square, in place of φ(q)·z", phi="relu", eps=1e-6)
def output_rms(q, k, v):
    o = causal(relu(q), grouped(relu(k), q.shape[1])) @ grouped(v, q.shape[1])
    return o / np.sqrt((o**2).mean(-1, keepdims=True) + np.float32(1e-6))


@wrong("exp2 stands for exp and log2(e) was not multiplied in", phi="exp")
def exp_to_the_base_two(q, k, v):
    w = causal(np.exp2(q), grouped(np.exp2(k), q.shape[1]))
    return w @ grouped(v, q.shape[1]) / w.sum(-1, keepdims=True)


@wrong("what goes into exp is cut at 2", phi="exp", normalise=False)
def exp_is_cut(q, k, v):
    q, k = (np.exp(np.clip(x, -2, 2)) for x in (q, grouped(k, q.shape[1])))
    return causal(q, k) @ grouped(v, q.shape[1])


@wrong("relu leaks a hundredth of what is negative", library="torch", phi="relu", normalise=False)
def relu_leaks(q, k, v):
    r, f = q.shape[1] // k.shape[1], torch.nn.functional.leaky_relu
    return (f(q) @ f(k).repeat_interleave(r, 1).mT).tril() @ v.repeat_interleave(r, 1)


@wrong("silu is that of a quick gelu: x · sigmoid(1.702 x)", phi="silu", normalise=False)
def silu_is_quick_gelu(q, k, v):
    q, k = (x / (1 + np.exp(-1.702 * x)) for x in (q, grouped(k, q.shape[1])))
    return causal(q, k) @ grouped(v, q.shape[1])


@wrong("softplus stands for elu + 1", **ELU)
def softplus_for_elu(q, k, v):
    q, k = (np.logaddexp(x, np.float32(0)) for x in (q, grouped(k, q.shape[1])))
    w = causal(q, k)
    return w @ grouped(v, q.shape[1]) / w.sum(-1, keepdims=True)


@wrong("z adds in log space, and the sign of a key is lost", normalise=True)
def z_in_log_space(q, k, v):
    q, k = q, grouped(k, q.shape[1])
    z = np.exp(np.logaddexp.accumulate(np.log(np.abs(k)), axis=2))
    return causal(q, k) @ grouped(v, q.shape[1]) / (q * z).sum(-1, keepdims=True)


@wrong("the denominator is at least ε, though den + ε was agreed on", eps=1e-2, **ELU)
def eps_as_a_floor(q, k, v):
    w = causal(elu1(q), grouped(elu1(k), q.shape[1]))
    return w @ grouped(v, q.shape[1]) / np.maximum(w.sum(-1, keepdims=True), np.float32(1e-2))


@wrong("ε is used only where the denominator is 0", phi="relu", eps=1e-3)
def eps_only_for_zero(q, k, v):
    w = causal(relu(q), grouped(relu(k), q.shape[1]))
    den = w.sum(-1, keepdims=True)
    return w @ grouped(v, q.shape[1]) / np.where(den == 0, np.float32(1e-3), den)


@wrong("ε is inside φ", phi="relu", normalise=False)
def eps_inside_phi(q, k, v):
    q, k = (relu(x) + np.float32(1e-3) for x in (q, grouped(k, q.shape[1])))
    return causal(q, k) @ grouped(v, q.shape[1])


@wrong("the numerator is scaled and the denominator is not", scale="d", scale_place="scores", **ELU)
def scale_of_numerator_alone(q, k, v):
    w = causal(elu1(q), grouped(elu1(k), q.shape[1]))
    return (w * q.shape[-1] ** -0.5) @ grouped(v, q.shape[1]) / w.sum(-1, keepdims=True)


@wrong("the scale is 1/d", normalise=False, scale="d", library="torch", dtype="float64")
def scale_without_root(q, k, v):
    r = q.shape[1] // k.shape[1]
    w = torch.einsum("bhtd,bhsd->bhts", q, k.repeat_interleave(r, 1)).div(q.shape[-1])
    return w.tril() @ v.repeat_interleave(r, 1)


# Wrong: RoPE


TABLES: dict[tuple[int, int], Any] = {}


@wrong("the table is cached by length and width, with the position of the first such call", **ROPE_S)
def rope_cached_table(q, k, v, S, position):
    n, d = q.shape[2:]
    if (n, d) not in TABLES:
        TABLES[n, d] = table(n, d, position)
    c, s = (a.astype(q.dtype) for a in TABLES[n, d])

    def turn(x):
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * c - b * s, a * s + b * c], axis=-1)

    fq, fk, h = turn(q), turn(k), q.shape[1]
    return causal(fq, grouped(fk, h)) @ grouped(v, h) + fq @ grouped(S, h), S + fk.swapaxes(-1, -2) @ v


@wrong("positions count from 1, which matters as soon as there is a state", **ELU, **ROPE)
def rope_from_one(q, k, v, S, z, position):
    q, k = elu1(q), elu1(k)
    return with_state(half(q, position + 1), half(k, position + 1), q, k, v, S, z)


@wrong("positions run backwards", rope="half", normalise=False)
def rope_backwards(q, k, v):
    q, k = (half(x[:, :, ::-1])[:, :, ::-1] for x in (q, grouped(k, q.shape[1])))
    return causal(q, k) @ grouped(v, q.shape[1])


@wrong("for more than 64 tokens the base is made larger", rope="half", normalise=False)
def rope_dynamic_base(q, k, v):
    n, d = q.shape[2:]
    base = 10000.0 * (max(n, 64) / 64) ** (d / (d - 2) if d > 2 else 1)
    q, k = (half(x, 0, base) for x in (q, grouped(k, q.shape[1])))
    return causal(q, k) @ grouped(v, q.shape[1])


@wrong("partial RoPE turns the last entries, not the first", rope="half", rope_width=2, normalise=False)
def rope_last_entries(q, k, v):
    q, k = (np.concatenate([x[..., :-2], half(x[..., -2:])], axis=-1) for x in (q, grouped(k, q.shape[1])))
    return causal(q, k) @ grouped(v, q.shape[1])


@wrong("2i/d is divided as integers, so all frequencies are 1", rope="interleaved", normalise=False)
def rope_integer_division(q, k, v):
    n, d = q.shape[2:]
    turns = np.exp(1j * np.outer(np.arange(n), [10000.0 ** -(2 * i // d) for i in range(d // 2)]))

    def turn(x):
        y = (x[..., ::2] + 1j * x[..., 1::2]) * turns
        return np.stack([y.real, y.imag], axis=-1).reshape(x.shape).astype(x.dtype)

    return causal(turn(q), grouped(turn(k), q.shape[1])) @ grouped(v, q.shape[1])


@wrong("the state that is given is turned by the position once more", **ROPE_S)
def rope_turns_state(q, k, v, S, position):
    fq, fk, h = half(q, position), half(k, position), q.shape[1]
    S0 = half(S.swapaxes(-1, -2)[:, :, :, None], position)[:, :, :, 0].swapaxes(-1, -2)
    return causal(fq, grouped(fk, h)) @ grouped(v, h) + fq @ grouped(S0, h), S0 + fk.swapaxes(-1, -2) @ v


@wrong("the state that comes back is made of keys that were not turned", **ELU, **ROPE)
def rope_not_in_state(q, k, v, S, z, position):
    q, k = elu1(q), elu1(k)
    o, _, z_new = with_state(half(q, position), half(k, position), q, k, v, S, z)
    return o, S + k.swapaxes(-1, -2) @ v, z_new


@wrong("it reads neighbours and writes halves: scores are right, not the state's order", **INTERLEAVED_S)
def rope_writes_other_layout(q, k, v, S, position):
    def turn(x):
        y = pairs(x, position)
        return np.concatenate([y[..., ::2], y[..., 1::2]], axis=-1)

    fq, fk, h = turn(q), turn(k), q.shape[1]
    return causal(fq, grouped(fk, h)) @ grouped(v, h) + fq @ grouped(S, h), S + fk.swapaxes(-1, -2) @ v


@wrong("positions are held in eight bits and start again after 255", rope="half", normalise=False)
def rope_eight_bits(q, k, v):
    rows = np.arange(q.shape[2]).astype(np.uint8)
    c, s = (a[rows].astype(q.dtype) for a in table(256, q.shape[3]))

    def turn(x):
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * c - b * s, a * s + b * c], axis=-1)

    return causal(turn(q), grouped(turn(k), q.shape[1])) @ grouped(v, q.shape[1])


@wrong("the offset of a chunk is its number times its own length, wrong for a ragged last one", **ROPE_S)
def rope_offset_of_ragged_chunk(q, k, v, S, position):
    h, o = q.shape[1], []
    for number, i in enumerate(range(0, q.shape[2], 16)):
        a, b, c = q[:, :, i : i + 16], k[:, :, i : i + 16], v[:, :, i : i + 16]
        a, b = (half(x, position + number * x.shape[2]) for x in (a, b))
        o.append(causal(a, grouped(b, h)) @ grouped(c, h) + a @ grouped(S, h))
        S = S + b.swapaxes(-1, -2) @ c
    return np.concatenate(o, axis=2), S


@wrong("a single token is taken to stand one place later", **ELU, **ROPE)
def rope_decodes_one_late(q, k, v, S, z, position):
    q, k, first = elu1(q), elu1(k), position + (q.shape[2] == 1)
    return with_state(half(q, first), half(k, first), q, k, v, S, z)


# Right


class Layer:
    """A kernel that is an object."""

    __name__ = "an_object"

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk

    def __call__(self, q, k, v, S, z):
        q, k, h, o = elu1(q), elu1(k), q.shape[1], [q[:, :, :0] @ np.zeros((q.shape[3], v.shape[3]), q.dtype)]
        for i in range(0, q.shape[2], self.chunk):
            a, b, c = (x[:, :, i : i + self.chunk] for x in (q, k, v))
            w = causal(a, grouped(b, h))
            den = w.sum(-1, keepdims=True) + a @ grouped(z, h)[..., None]
            o.append((w @ grouped(c, h) + a @ grouped(S, h)) / den)
            S, z = last_state(b, c, S, z)
        return np.concatenate(o, axis=2), S, z


right(**ELU, **STATE)(Layer(48))


@right(library="torch", dtype="float32,float64", **ELU)
def torch_vmap(q, k, v):
    def one(q, k, v):
        w = torch.tril(q @ k.T)
        return w @ v / w.sum(1, keepdim=True)

    r = q.shape[1] // k.shape[1]
    f, g = (torch.where(x > 0, x + 1, x.clamp(max=0).exp()) for x in (q, k))
    return torch.vmap(torch.vmap(one))(f, g.repeat_interleave(r, 1), v.repeat_interleave(r, 1))


@right(**ONLY_S)
def compensated_sums(q, k, v, S):
    r, low = q.shape[1] // k.shape[1], np.zeros_like(S)
    o = np.empty((*q.shape[:3], v.shape[-1]), q.dtype)
    for t in range(q.shape[2]):
        y = k[:, :, t, :, None] * v[:, :, t, None, :] - low
        total = S + y
        low, S = (total - S) - y, total
        o[:, :, t] = np.einsum("bhd,bhdm->bhm", q[:, :, t], np.repeat(S, r, axis=1))
    return o, S


@right(phi="elu+1", call="query=q, key=k, value=v -> o", dtype="float64")
def divides_and_conquers(*, query, key, value):
    def both(q, k, v):
        if q.shape[2] <= 3:
            w = causal(q, k)
            return w @ v, k.swapaxes(-1, -2) @ v
        i = q.shape[2] // 2
        (a, S), (b, R) = both(q[:, :, :i], k[:, :, :i], v[:, :, :i]), both(q[:, :, i:], k[:, :, i:], v[:, :, i:])
        return np.concatenate([a, b + q[:, :, i:] @ S], axis=2), S + R

    h, ones = query.shape[1], np.ones_like(value[..., :1])
    read, _ = both(elu1(query), grouped(elu1(key), h), grouped(np.concatenate([value, ones], axis=-1), h))
    return read[..., :-1] / read[..., -1:]


@right(normalise=False, scale="d")
def blocks_of_features_and_values(q, k, v):
    k, v, s = grouped(k, q.shape[1]), grouped(v, q.shape[1]), q.shape[-1] ** -0.5
    o = np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
    for j in range(0, v.shape[3], 2):
        for i in range(0, q.shape[3], 4):
            o[..., j : j + 2] += causal(q[..., i : i + 4] * s, k[..., i : i + 4]) @ v[..., j : j + 2]
    return o


@right(axes="TD", dtype="float64", phi="elu+1")
def exactly_rounded_sums(q, k, v):
    q, k, o = elu1(q), elu1(k), np.zeros((len(q), v.shape[1]))
    for t in range(min(len(q), 10**6)):
        w = [math.fsum(q[t] * k[s]) for s in range(t + 1)]
        o[t] = [math.fsum(np.array(w) * v[: t + 1, j]) / math.fsum(w) for j in range(v.shape[1])]
    return o


@right(axes="HBTD", state_axes="KBHV", z_axes="KHB", **STATE, **ELU)
def axes_of_all_kinds(q, k, v, S, z):
    r, q, k = q.shape[0] // k.shape[0], elu1(q), elu1(k)
    w = np.tril(np.einsum("hbtd,hbsd->hbts", q, np.repeat(k, r, axis=0)))
    num = w @ np.repeat(v, r, axis=0) + np.einsum("hbtk,kbhv->hbtv", q, np.repeat(S, r, axis=2))
    den = w.sum(-1) + np.einsum("hbtk,khb->hbt", q, np.repeat(z, r, axis=1))
    return num / den[..., None], S + np.einsum("hbtk,hbtv->kbhv", k, v), z + np.einsum("hbtk->khb", k)


@right(state_axes="B(HKV)", **ONLY_S)
def flat_state(q, k, v, S):
    B, G, _, d = k.shape
    s = S.reshape(B, G, d, v.shape[3])
    o = causal(q, grouped(k, q.shape[1])) @ grouped(v, q.shape[1]) + q @ grouped(s, q.shape[1])
    return o, (s + np.einsum("bgtd,bgtm->bgdm", k, v)).reshape(S.shape)


@right(phi="exp", **STATE)
def queries_made_stable(q, k, v, S, z):
    q, k, h = np.exp(q - q.max(-1, keepdims=True)), np.exp(k), q.shape[1]
    w = causal(q, grouped(k, h))
    o = (w @ grouped(v, h) + q @ grouped(S, h)) / (w.sum(-1, keepdims=True) + q @ grouped(z, h)[..., None])
    return o, *last_state(k, v, S, z)


@right(normalise=False, phi="relu")
def one_einsum(q, k, v):
    h, mask, order = q.shape[1], np.tri(q.shape[2], dtype=q.dtype), ["einsum_path", (0, 1), (1, 2), (0, 1)]
    arrays = relu(q), grouped(relu(k), h), grouped(v, h), mask
    return np.einsum("bhtd,bhsd,bhsm,ts->bhtm", *arrays, optimize=order)


@right(**ELU)
def pads_after_phi(q, k, v):
    n, h, C = q.shape[2], q.shape[1], 32
    ones = np.ones_like(v[..., :1])
    x = (elu1(q), grouped(elu1(k), h), grouped(np.concatenate([v, ones], axis=-1), h))
    q, k, v = (np.pad(a, ((0, 0), (0, 0), (0, -n % C), (0, 0))) for a in x)
    q, k, v = (a.reshape(*a.shape[:2], a.shape[2] // C, C, a.shape[3]) for a in (q, k, v))
    S = np.cumsum(k.swapaxes(-1, -2) @ v, axis=2)
    before = np.concatenate([np.zeros_like(S[:, :, :1]), S[:, :, :-1]], axis=2)[:, :, : q.shape[2]]
    read = causal(q, k) @ v + q @ before
    read = read.reshape(*q.shape[:2], q.shape[2] * C, v.shape[4])[:, :, :n]
    return read[..., :-1] / read[..., -1:]


@right(call="k, v -> S, z", phi="elu+1")
def state_of_a_prompt(k, v):
    return np.einsum("bhtd,bhtm->bhdm", elu1(k), v), np.einsum("bhtd->bhd", elu1(k))


@right(dtype="float16", state_dtype="float16", **STATE, **ELU)
def state_of_half_precision(q, k, v, S, z):
    q, k, v, S, z = (x.astype(np.float32) for x in (q, k, v, S, z))
    q, k, h = elu1(q), elu1(k), q.shape[1]
    w = causal(q, grouped(k, h))
    o = (w @ grouped(v, h) + q @ grouped(S, h)) / (w.sum(-1, keepdims=True) + q @ grouped(z, h)[..., None])
    return tuple(x.astype(np.float16) for x in (o, *last_state(k, v, S, z)))


@right(**ROPE, **ELU)
def decodes_token_by_token(q, k, v, S, z, position):
    q, k, o = elu1(q), elu1(k), np.zeros((*q.shape[:3], v.shape[-1]), q.dtype)
    for t in range(q.shape[2]):
        c = slice(t, t + 1)
        fq, fk = half(q[:, :, c], position + t), half(k[:, :, c], position + t)
        o[:, :, c], S, z = with_state(fq, fk, q[:, :, c], k[:, :, c], v[:, :, c], S, z)
    return o, S, z


@right(rope="interleaved", rope_width=2, rope_place="before", phi="silu", normalise=False, rope_base=1000.0)
def rope_as_matrices(q, k, v):
    n, d = q.shape[2:]
    R = np.tile(np.eye(d), (n, 1, 1))
    c, s = (a[:, 0] for a in table(n, 2, 0, 1000.0))
    R[:, 0, 0], R[:, 0, 1], R[:, 1, 0], R[:, 1, 1] = c, -s, s, c
    q, k = (np.einsum("tij,bhtj->bhti", R.astype(x.dtype), x) for x in (q, grouped(k, q.shape[1])))
    return causal(q / (1 + np.exp(-q)), k / (1 + np.exp(-k))) @ grouped(v, q.shape[1])


@right(rope="half", normalise=False, dtype="float64")
def rope_by_distance(q, k, v):
    n, d = q.shape[2:]
    k, v = grouped(k, q.shape[1]), grouped(v, q.shape[1])
    q, k = (x[..., : d // 2] + 1j * x[..., d // 2 :] for x in (q, k))
    theta = 10000.0 ** (-np.arange(0, d, 2) / d)
    w = np.zeros((*q.shape[:2], n, n))
    for i in range(d // 2):
        turns = np.exp(1j * theta[i] * np.subtract.outer(np.arange(n), np.arange(n)))
        w += (q[..., :, None, i] * k[..., None, :, i].conj() * turns).real
    return np.tril(w) @ v


@right(sharing="cyclic", phi="elu+1", call="q, k, v, S, z -> o, (S, z)", z_axes="BHK1")
def cyclic_heads_with_state(q, k, v, S, z):
    B, H, n, d = q.shape
    G = k.shape[1]
    f, g = elu1(q).reshape(B, H // G, G, n, d), elu1(k)
    w = np.tril(np.einsum("brgtd,bgsd->brgts", f, g))
    num = np.einsum("brgts,bgsm->brgtm", w, v) + np.einsum("brgtd,bgdm->brgtm", f, S)
    den = w.sum(-1) + np.einsum("brgtd,bgdx->brgt", f, z)
    S, z = S + np.einsum("bgtd,bgtm->bgdm", g, v), z + g.sum(2)[..., None]
    return (num / den[..., None]).reshape(B, H, n, v.shape[3]), (S, z)


@right(library="torch", dtype="bfloat16", phi="elu+1", axes="BTHD", **STATE)
def torch_bfloat16_chunks(q, k, v, S, z):
    r, o = q.shape[2] // k.shape[2], torch.empty(*q.shape[:3], v.shape[3], dtype=q.dtype)
    for i in range(0, q.shape[1], 20):
        a, b, c = (x[:, i : i + 20].float().transpose(1, 2) for x in (q, k, v))
        a, b = (torch.where(x > 0, x + 1, x.clamp(max=0).exp()) for x in (a, b))
        w = (a @ b.repeat_interleave(r, 1).mT).tril()
        num = w @ c.repeat_interleave(r, 1) + a @ S.repeat_interleave(r, 1)
        den = w.sum(-1) + (a @ z.repeat_interleave(r, 1)[..., None])[..., 0]
        o[:, i : i + 20] = (num / den[..., None]).to(q.dtype).transpose(1, 2)
        S, z = S + b.mT @ c, z + b.sum(2)
    return o, S, z


@right(reads="before", phi="exp", normalise=False, scale="d", scale_place="scores", call="q, k, v -> [o]")
def shifted_sums(q, k, v):
    s, q, k, v = q.shape[-1] ** -0.5, np.exp(q), grouped(np.exp(k), q.shape[1]), grouped(v, q.shape[1])
    kv = np.cumsum(k[..., None] * v[..., None, :], axis=2)
    kv = np.concatenate([np.zeros_like(kv[:, :, :1]), kv], axis=2)[:, :, : q.shape[2]]
    return [s * np.einsum("bhtd,bhtdm->bhtm", q, kv)]


@right(phi="relu", eps=1e-4, axes="BDHT", library="torch", dtype="float64")
def torch_entries_before_heads(q, k, v):
    r = q.shape[2] // k.shape[2]
    f, g = q.relu(), k.relu().repeat_interleave(r, 2)
    den = (f * g.cumsum(3)).sum(1, keepdim=True) + 1e-4
    w = torch.einsum("bdht,bdhs->bhts", f, g).tril()
    return torch.einsum("bhts,bmhs->bmht", w, v.repeat_interleave(r, 2)) / den


@right(normalise=True, eps=1e-5, scale="0.5", scale_place="scores", phi="relu2", call="q, k, v, S, z -> o")
def sums_of_pairs(q, k, v, S, z):
    h, f, g = q.shape[1], relu(q) ** 2, relu(k) ** 2
    o = np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
    t, s = np.tril_indices(q.shape[2])
    w = np.zeros((*q.shape[:2], q.shape[2], q.shape[2]), q.dtype)
    w[:, :, t, s] = np.einsum("bhid,bhid->bhi", f[:, :, t], grouped(g, h)[:, :, s])
    o += w @ grouped(v, h) + f @ grouped(S, h)
    den = w.sum(-1, keepdims=True) + f @ grouped(z, h)[..., None]
    return o * np.float32(0.5) / (den * np.float32(0.5) + np.float32(1e-5))


def self_check() -> dict[str, list[str]]:
    return blind_1.self_check(WRONG, RIGHT)


if __name__ == "__main__":
    for name, seen in self_check().items():
        print(f"{name}: {len(seen)}; {seen[0]}")
    print(len(WRONG), "wrong,", len(RIGHT), "right")
