"""The contenders of speed.py. Each maker prepares inputs and returns a function to time."""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from unittest import mock

import mpmath
import numpy as np

import refimpl as ri
from refimpl.attention.linear_attention import chunk_length
from refimpl.model.generation import read_tokens
from refimpl.systems import slices
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


def gpt2_weights(dtype, layers, heads, width, vocabulary, table):
    """Random weights of GPT-2, by the names of the original checkpoint; as large as those at the
    start of its training, but embeddings ten times so large, so that tokens matter.
    """
    rng = np.random.default_rng(0)

    def draw(*shape, scale=0.02):
        return (scale * rng.standard_normal(shape, dtype=np.float32)).astype(dtype)

    made = {"wte.weight": draw(vocabulary, width, scale=0.2), "wpe.weight": draw(table, width)}
    shapes = {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width)}
    shapes |= {"mlp.c_fc": (width, 4 * width), "mlp.c_proj": (4 * width, width)}
    for i in range(layers):
        for name, shape in shapes.items():
            made |= {f"h.{i}.{name}.weight": draw(*shape), f"h.{i}.{name}.bias": draw(shape[1])}
    for name in [*(f"h.{i}.ln_{j}" for i in range(layers) for j in (1, 2)), "ln_f"]:
        made |= {f"{name}.weight": 1 + draw(width), f"{name}.bias": draw(width)}
    return made


def generation_ids(past, tokens, vocabulary):
    ids = np.random.default_rng(1).integers(0, vocabulary, past + tokens)
    return ids[:past], ids[past:]


def our_generation(dtype, layers, heads, width, vocabulary, past, tokens):
    """The logits after some tokens, read one by one behind a past, which is read beforehand."""
    table, d = past + tokens, width // heads
    w, own = gpt2_weights(dtype, layers, heads, width, vocabulary, table), {}
    own |= {"embedding": w["wte.weight"], "positions": w["wpe.weight"]}
    own |= {"gain": w["ln_f.weight"], "offset": w["ln_f.bias"]}
    for i in range(layers):
        for kind, b in (("weight", "W"), ("bias", "b")):
            for part, x in zip("QKV", np.split(w[f"h.{i}.attn.c_attn.{kind}"], 3, axis=-1), strict=True):
                own[f"layers.{i}.{b}_{part}"] = np.ascontiguousarray(x)
            for part, name in (("O", "attn.c_proj"), ("up", "mlp.c_fc"), ("down", "mlp.c_proj")):
                own[f"layers.{i}.{b}_{part}"] = w[f"h.{i}.{name}.{kind}"]
            for j in (1, 2):
                own[f"layers.{i}.{'gain' if b == 'W' else 'offset'}_{j}"] = w[f"h.{i}.ln_{j}.{kind}"]
    shape = {"layers": layers, "width": width, "heads": heads, "d": d, "m": d, "hidden": 4 * width}
    config = ri.Config(**shape, phi="softmax", biased=True, vocabulary=vocabulary, table=table)
    before, after = generation_ids(past, tokens, vocabulary)
    _, start = read_tokens(ri.Model(config, own), before)

    def run():
        model = start
        for token in after:
            logits, model = read_tokens(model, np.array([token]))
        return logits

    return run


def their_generation(dtype, layers, heads, width, vocabulary, past, tokens):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    table = past + tokens
    shape = {"n_positions": table, "n_embd": width, "n_layer": layers, "n_head": heads}
    config = GPT2Config(vocab_size=vocabulary, **shape, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).eval().to(getattr(torch, dtype))
    w = gpt2_weights(dtype, layers, heads, width, vocabulary, table)
    missing, unknown = model.transformer.load_state_dict({k: torch.asarray(x) for k, x in w.items()}, strict=False)
    assert not unknown and not [name for name in missing if "attn.bias" not in name], (missing, unknown)
    before, after = (torch.asarray(ids)[None] for ids in generation_ids(past, tokens, vocabulary))
    with torch.inference_mode():
        cache = model(before, use_cache=True, logits_to_keep=1).past_key_values

    @torch.inference_mode()
    def run():
        for i in range(tokens):
            out = model(after[:, i : i + 1], past_key_values=cache, use_cache=True)
            logits = out.logits[0, -1]
            logits.argmax().item()
        cache.crop(-tokens)
        return logits.to(torch.float64).numpy()

    return run


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


def flint_integers(digits, size, scaled):
    """The same with its integers multiplied by python-flint."""
    import flint

    def product(x, y):
        a, b = (flint.fmpz_mat(*v.m.shape, list(map(int, v.values().flat))) for v in (x, y))
        return np.array(list(map(int, (a * b).entries())), dtype=object).reshape(size, size)

    run = many_digits_product(digits, size, scaled)
    return lambda: mock.patch.object(slices, "matmul", product)(run)()


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
    "flint integers": flint_integers,
    "mpf": object_product,
    "model": verification,
    "generation": our_generation,
    "transformers": their_generation,
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
