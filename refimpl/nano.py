"""ICLCA on one page: a prompt becomes biases of linearized attention, exactly.

The formulas are those of the paper (Chen et al. 2024, arXiv 2406.02847); positions start at 0 here.
There are no checks, no options and no speed. The library is this page made robust and fast;
`refimpl verify nano` checks that the two are equal, in exact numbers and in floats.

    n tokens   t query   s ≤ t key   d key width   m value width   r features   M prompt length
    q, k (heads, n, d)   v (heads, n, m)   x (n, width)   phi φ: (..., d) -> (..., r)   sigma σ
    layers: the weights w of each   biases: the pair b_KV (heads, r, m), b_D (heads, r) of each
    rope: circle points (c, s)   R_p: the rotation of position p, which only the numerator has
"""

from fractions import Fraction as F

import numpy as np
from array_api_compat import array_namespace


def rotate(x, p, rope):
    """R_p x: pair i of features, (x_i, x_{i+h}), is rotated p times by (c_i, s_i)."""
    c, h = rope[0], len(rope[0])
    s = rope[1] if p >= 0 else -rope[1]
    a, b, rest = x[..., :h], x[..., h : 2 * h], x[..., 2 * h :]  # the rest is not rotated
    for _ in range(abs(p)):
        a, b = a * c - b * s, a * s + b * c
    return array_namespace(x).concat([a, b, rest], axis=-1)


def rotate_tokens(x, first, rope):
    """R_{first+t} x_t for every token t."""
    rows = [rotate(x[..., t : t + 1, :], first + t, rope) for t in range(x.shape[-2])]
    return array_namespace(x).concat(rows, axis=-2)


def attention(q, k, v, phi, rope, b_KV, b_D):
    """o_t = (R_t φ(q_t))ᵀ [b_KV + Σ_{s≤t} R_s φ(k_s) v_sᵀ] / φ(q_t)ᵀ [b_D + Σ_{s≤t} φ(k_s)]"""
    xp, o = array_namespace(q), []
    Rq, Rk = rotate_tokens(phi(q), 0, rope), rotate_tokens(phi(k), 0, rope)
    for t in range(q.shape[-2]):
        S = b_KV + xp.matrix_transpose(Rk[..., : t + 1, :]) @ v[..., : t + 1, :]
        z = b_D + xp.sum(phi(k[..., : t + 1, :]), axis=-2)
        o.append(Rq[..., t : t + 1, :] @ S / (phi(q[..., t : t + 1, :]) @ z[..., None]))
    return xp.concat(o, axis=-2)


def project(x, w, heads):
    """q, k, v = x W_Q, x W_K, x W_V, with the heads on an axis of their own."""
    xp, split = array_namespace(x), (x.shape[0], heads, -1)
    return [xp.moveaxis(xp.reshape(x @ w[name], split), 1, 0) for name in ("W_Q", "W_K", "W_V")]


def layer(x, w, heads, phi, rope, sigma, b_KV, b_D):
    """x ← x + [o_1 … o_H] W_O, then x ← x + σ(x W_up) W_down: all but attention is token-wise."""
    xp, o = array_namespace(x), attention(*project(x, w, heads), phi, rope, b_KV, b_D)
    x = x + xp.reshape(xp.moveaxis(o, 0, 1), (x.shape[0], -1)) @ w["W_O"]
    return x + sigma(x @ w["W_up"]) @ w["W_down"]


def transformer(x, layers, heads, phi, rope, sigma, biases):
    """x ← layer_i(x), each with its biases."""
    for w, (b_KV, b_D) in zip(layers, biases, strict=True):
        x = layer(x, w, heads, phi, rope, sigma, b_KV, b_D)
    return x


def convert(prompt, layers, heads, phi, rope, sigma, biases):
    """The biases that stand for a prompt with keys k_j and values v_j: for every text,

      transformer(text, …, convert(prompt, …, biases)) = transformer(prompt ++ text, …, biases)[M:]

    new b_KV = R_{-M} b_KV + Σ_j R_{j-M} φ(k_j) v_jᵀ    new b_D = b_D + Σ_j φ(k_j)      j = 0 … M-1
    """
    xp, M, x, new = array_namespace(prompt), prompt.shape[0], prompt, []
    for w, (b_KV, b_D) in zip(layers, biases, strict=True):
        _, k, v = project(x, w, heads)
        R_b = xp.matrix_transpose(rotate(xp.matrix_transpose(b_KV), -M, rope))
        S = xp.matrix_transpose(rotate_tokens(phi(k), -M, rope)) @ v
        new.append((R_b + S, b_D + xp.sum(phi(k), axis=-2)))
        x = layer(x, w, heads, phi, rope, sigma, b_KV, b_D)  # the prompt reads the old biases
    return new


def example():
    """Two layers in exact fractions: the prompt is deleted, and the output stays what it was."""
    rng, rope = np.random.default_rng(0), (np.array([F(3, 5)]), np.array([F(4, 5)]))
    draw = lambda *shape: rng.integers(-8, 9, shape).astype(object) * F(1, 8)
    sizes = dict(W_Q=(2, 4), W_K=(2, 4), W_V=(2, 2), W_O=(2, 2), W_up=(2, 3), W_down=(3, 2))
    layers = [{name: draw(*sizes[name]) for name in sizes} for _ in range(2)]
    model = layers, 2, lambda x: x * x + 1, rope, lambda x: x * x  # two heads, φ, R, σ
    none, prompt, text = [(0 * draw(2, 2, 1), 0 * draw(2, 2))] * 2, draw(3, 2), draw(1, 2)
    biases, both = convert(prompt, *model, none), np.concat([prompt, text])
    runs = [transformer(x, *model, b)[-1:] for x, b in ((both, none), (text, biases), (text, none))]
    for name, o in zip(("prompt ++ text", "biases, text", "text"), runs, strict=True):
        print(f"{name:16}", *(f"{float(y):+.12f}" for y in o[0]))
    print("b_KV, layer 0, head 0:", *biases[0][0][0].flat)
    print("equal, as fractions:  ", bool((runs[0] == runs[1]).all()))


if __name__ == "__main__":
    example()
