"""The contenders of speed.py. Each maker prepares inputs and returns a function to time."""

from __future__ import annotations

import importlib
import importlib.util
import random
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import mpmath
import numpy as np

import refimpl as ri
from refimpl.attention.linear_attention import chunk_length
from refimpl.verify.check import Draws, check
from refimpl.verify.theorems import large

# q, k, v are drawn from [LEAST, 1): sums of positive numbers do not cancel, so errors have a bound
LEAST = 1 / 8
EPSILON = {"fast-transformers": 1e-6, "fla naive chunk": 1e-10}  # what these add to the denominator


def chunk_of(dtype, heads, width, **_):
    """The chunk that linear_attention_chunked chooses."""
    return chunk_length(np.empty((heads, 0, width), dtype), np.empty((heads, width, width), dtype))


def inputs(dtype, heads, n, width):
    draw = np.random.default_rng(0).random((3, heads, n, width), dtype=dtype)
    return LEAST + (1 - LEAST) * draw


def ours(form, **shape):
    q, k, v = inputs(**shape)
    return lambda: getattr(ri, form)(q, k, v)[0]


def loop(xp, q, k, v, chunk):
    """The chunked form as a bare loop, in NumPy or torch."""
    S, z = xp.zeros_like(q[:, 0, :, None] * v[:, 0, None, :]), xp.zeros_like(q[:, 0, :, None])
    mask = xp.tril(xp.ones((chunk, chunk), dtype=q.dtype))
    out = []
    for a in range(0, q.shape[1], chunk):
        Q, KT, V = q[:, a : a + chunk], k[:, a : a + chunk].mT, v[:, a : a + chunk]
        A = xp.matmul(Q, KT) * mask[: Q.shape[1], : Q.shape[1]]
        num, den = xp.matmul(A, V) + xp.matmul(Q, S), A.sum(-1)[..., None] + xp.matmul(Q, z)
        out.append(num / den)
        S, z = S + xp.matmul(KT, V), z + KT.sum(-1)[..., None]
    return xp.concat(out, axis=1)


def bare_loop(library, **shape):
    xp = importlib.import_module(library)
    q, k, v = map(xp.asarray, inputs(**shape))
    return lambda: loop(xp, q, k, v, chunk_of(**shape))


def its_matrix_products(**shape):
    """The products of every chunk and nothing else."""
    (q, k, v), chunk = inputs(**shape), chunk_of(**shape)
    S = np.ones((shape["heads"], shape["width"], shape["width"]), dtype=q.dtype)

    def run():
        for a in range(0, q.shape[1], chunk):
            Q, KT, V = q[:, a : a + chunk], k[:, a : a + chunk].mT, v[:, a : a + chunk]
            last = (Q @ KT @ V, Q @ S, KT @ V)[-1]
        return last

    return run


def fast_transformers(**shape):
    """Its kernel gives the numerator; the rest is as in its CausalLinearAttention."""
    import torch
    from fast_transformers.causal_product import causal_dot_product

    q, k, v = torch.asarray(inputs(**shape))[:, None]

    def run():
        Z = 1 / (torch.einsum("nhli,nhli->nhl", q, k.cumsum(2)) + EPSILON["fast-transformers"])
        return (causal_dot_product(q, k, v) * Z[..., None])[0]

    return run


def fla_naive_chunk(**shape):
    import torch

    package = importlib.util.find_spec("fla")
    if package is None:
        raise ImportError("fla")
    # Its package imports triton, of no use to a CPU; this file of it needs only torch and einops.
    spec = importlib.util.spec_from_file_location(
        "naive", Path(package.submodule_search_locations[0], "ops/linear_attn/naive.py")
    )
    naive = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(naive)
    q, k, v = (
        x.transpose(0, 1).contiguous()[None] for x in torch.asarray(inputs(**shape))
    )  # (batch, n, heads, width), as it likes it
    return lambda: naive.naive_chunk_linear_attn(q, k, v, scale=1.0, normalize=True)[0].transpose(0, 1)


def gemm(dtype, size):
    a, b = np.random.default_rng(0).standard_normal((2, size, size)).astype(dtype)
    return lambda: a @ b


def peak(variant, **shape):
    """Bytes of NumPy's memory during one call, beyond its inputs and its output."""
    q, k, v = inputs(**shape)
    rope = ri.Rope(ri.angle_table(q, shape["width"]))
    kernel = ri.Kernel("elu+1", rope) if variant == "elu+1, RoPE" else ri.Kernel()

    def run():
        ri.linear_attention_chunked(q, k, v, kernel)  # once, for what is kept from then on
        tracemalloc.start()
        o, _ = ri.linear_attention_chunked(q, k, v, kernel)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most - o.nbytes

    return run


def residues(p, size):
    return np.random.default_rng(0).integers(0, p, (2, size, size))


def field_product(p, size):
    a, b = map(ri.GF(p).convert, residues(p, size))
    return lambda: a @ b


def flint_product(p, size):
    import flint

    a, b = (flint.nmod_mat(size, size, x.ravel().tolist(), p) for x in residues(p, size))
    return lambda: a * b


def precision(digits):
    ctx = mpmath.MPContext()
    ctx.dps = digits
    return ctx


def many_digits(digits, size, scaled):
    """Two matrices of signed Fractions of full precision; scaled: by 2**-200 to 2**200."""
    draw, bits = random.Random(0), precision(digits).prec

    def number(_):
        scale = Fraction(2) ** draw.randint(-200, 200) if scaled else 1
        return draw.choice((-1, 1)) * scale * Fraction(draw.getrandbits(bits), 1 << bits)

    return np.frompyfunc(number, 1, 1)(np.zeros((2, size, size)))


def many_digits_product(digits, size, scaled):
    a, b = map(ri.MP(digits).convert, many_digits(digits, size, scaled))
    return lambda: a @ b


def object_product(digits, size, scaled):
    ctx = precision(digits)
    a, b = np.frompyfunc(lambda x: ctx.mpf(x.numerator) / x.denominator, 1, 1)(many_digits(digits, size, scaled))
    return lambda: a @ b


def verification(p, **shape):
    theorem = replace(large.GPT2_SMALL, only="")

    def run():
        found = check(theorem, ri.GF(p), [large.shape(**shape)], Draws(0))
        return {name: getattr(found, name) for name in ("seconds", "verdict", "redraws", "notes")}

    return run


MAKERS = {
    "chunked": partial(ours, "linear_attention_chunked"),
    "recurrent": partial(ours, "linear_attention_recurrent"),
    "its matrix products": its_matrix_products,
    "gemm": gemm,
    "bare loop": bare_loop,
    "peak": peak,
    "fast-transformers": fast_transformers,
    "fla naive chunk": fla_naive_chunk,
    "GF": field_product,
    "flint": flint_product,
    "MP": many_digits_product,
    "mpf": object_product,
    "model": verification,
}


def plain(x):
    """A result as an array that can be saved: numbers, or the words for Fractions."""
    if isinstance(x, ri.systems.SystemArray):
        return np.array(x.tolist()) if x.system.exact else x.system.fractions(x).astype(str)
    if hasattr(x, "entries"):
        return np.array([int(e) for e in x.entries()]).reshape(x.nrows(), x.ncols())
    x = np.asarray(x)
    return (
        x
        if x.dtype != object
        else np.frompyfunc(lambda e: "{}/{}".format(*mpmath.libmp.to_rational(e._mpf_)), 1, 1)(x).astype(str)
    )
