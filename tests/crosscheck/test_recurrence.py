"""Recurrences in the cross-check: right kernels are never wrong, and each mistake is named.

The kernels are written here from the formulas, without the steps of the family.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from refimpl.crosscheck.check import crosscheck
from refimpl.crosscheck.families.recurrence import FIELD, Recurrence
from refimpl.crosscheck.judge import PLAIN, expect
from refimpl.crosscheck.mistakes import MISTAKES, all_families
from refimpl.crosscheck.plan import Case
from refimpl.systems.formats import round_to

FINE = ("EXACT", "WITHIN BOUND")
slow = pytest.mark.slow

LINEAR = Recurrence(call="q, k, v, S -> o, S")
SIMPLE = Recurrence(call="q, k, v, g, S -> o, S", decay="head", scale="d")
GLA = replace(SIMPLE, decay="key")
RETNET = Recurrence(call="q, k, v, S -> o, S", decay="head", gate="retnet", scale="d")
CONSTANT = replace(SIMPLE, gate="factor", gate_axes="H")
DELTA = Recurrence(call="q, k, v, beta, S -> o, S", write="delta", beta="write", scale="d")
GATED = Recurrence(call="q, k, v, g, beta, S -> o, S", decay="head", write="delta", beta="write", scale="d")
KDA = replace(GATED, decay="key")
NORMED = replace(GATED, l2norm="inside")
RWKV5 = Recurrence(
    call="q, k, v, g, u, S -> o, S", decay="key", gate="-exp", gate_axes="HK", reads="before", bonus=True
)
RWKV6 = replace(RWKV5, gate="log", gate_axes="")
RWKV7 = Recurrence(call="q, k, v, g, a, b, S -> o, S", decay="key", write="rank", erases="before")
MAMBA = replace(FIELD["mamba2"], library="numpy", call="v, beta, g, k, q, S -> o, S")
HGRN = Recurrence(call="v, g, S -> o, S", axes="BTD", decay="value", state_axes="BV")


def T(x):
    return x.swapaxes(-1, -2)


def steps(q, k, v, A, S, write, read=lambda S, before, t: S, bonus=0.0):
    """S ← A_t S + write_t, token by token, with whole matrices."""
    o = np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype) + bonus
    for t in range(q.shape[2]):
        before, S = S, A[:, :, t] @ S + write[:, :, t]
        o[:, :, t] += (q[:, :, t, None, :] @ read(S, before, t))[..., 0, :]
    return o, S


def outer(a, b):
    return a[..., :, None] * b[..., None, :]


def eye(x):
    return np.eye(x.shape[-1], dtype=x.dtype)


def scaled(q):
    return q * q.dtype.type(q.shape[-1] ** -0.5)


@pytest.fixture(autouse=True)
def one_thread():
    """Small products are slow in several threads where other tests run."""
    if torch := sys.modules.get("torch"):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(threads)
    else:
        yield


# Right kernels


def linear_cumulative(q, k, v, S):
    states = S[:, :, None] + np.cumsum(outer(k, v), axis=2, dtype=S.dtype)
    o = np.einsum("bhtk,bhtkv->bhtv", q, states)
    return o.astype(q.dtype), states[:, :, -1] if q.shape[2] else S


def simple_parallel(q, k, v, g, S):
    """One matrix of decays e^(c_t − c_s) for the whole text."""
    c = np.cumsum(g, axis=-1, dtype=g.dtype)
    later = np.tri(g.shape[-1], dtype=bool)
    D = np.exp(np.where(later, c[..., :, None] - c[..., None, :], -np.inf))
    o = (scaled(q) @ T(k) * D) @ v + np.exp(c)[..., None] * (scaled(q) @ S)
    end = c[..., -1:] if g.shape[-1] else np.zeros_like(S[..., 0, :1])
    return o, np.exp(end)[..., None] * S + T(k * np.exp(end - c)[..., None]) @ v


def gla_chunked(q, k, v, g, S, size=16):
    """Chunks, with the differences of sums of logarithms for each pair of tokens."""
    outputs = [q[:, :, :0, :1] * v[:, :, :0]]
    for i in range(0, q.shape[2], size):
        a, b, c, f = (x[:, :, i : i + size] for x in (scaled(q), k, v, np.asarray(g)))
        f = np.cumsum(f, axis=2, dtype=f.dtype)
        pairs = np.where(np.tri(f.shape[2], dtype=bool)[..., None], f[:, :, :, None] - f[:, :, None], -np.inf)
        scores = np.einsum("bhik,bhjk,bhijk->bhij", a, b, np.exp(pairs))
        outputs.append(scores @ c + (a * np.exp(f)) @ S)
        S = np.exp(f[:, :, -1])[..., None] * S + T(b * np.exp(f[:, :, -1:] - f)) @ c
    return np.concatenate(outputs, axis=2), S


def retnet_powers(q, k, v, S):
    """Powers γ^(t−s)."""
    n = q.shape[2]
    gamma = (1 - 2.0 ** (-5 - np.arange(q.shape[1]))).astype(q.dtype)[:, None, None]
    lag = np.arange(n)[:, None] - np.arange(n)
    D = np.where(lag >= 0, gamma ** np.maximum(lag, 0).astype(q.dtype), q.dtype.type(0))
    along = np.arange(1, n + 1)[:, None].astype(q.dtype)
    o = (scaled(q) @ T(k) * D) @ v + gamma**along * (scaled(q) @ S)
    return o, gamma**n * S + T(k * gamma ** (n - along)) @ v


def constant_logs(q, k, v, g, S):
    """A decay that is given as a factor, by way of logarithms."""
    return simple_parallel(q, k, v, np.broadcast_to(np.log(g)[None, :, None], q.shape[:3]), S)


def delta_matrices(q, k, v, beta, S):
    A = eye(k) - beta[..., None, None] * outer(k, k)
    return steps(scaled(q), k, v, A, S, beta[..., None, None] * outer(k, v))


def delta_solved(q, k, v, beta, S, size=64):
    """All tokens of a chunk at once: (I + tril(β K Kᵀ)) U = β (V − K S)."""
    outputs = [q[:, :, :0, :1] * v[:, :, :0]]
    for i in range(0, q.shape[2], size):
        a, b, c, f = (x[:, :, i : i + size] for x in (scaled(q), k, v, beta[..., None]))
        B = np.eye(b.shape[2], dtype=q.dtype) + np.tril(f * (b @ T(b)), -1)
        U = np.linalg.solve(B, f * (c - b @ S))
        outputs.append(np.tril(a @ T(b)) @ U + a @ S)
        S = S + T(b) @ U
    return np.concatenate(outputs, axis=2), S


def gated_matrices(q, k, v, g, beta, S):
    w = np.exp(g if g.ndim == 4 else g[..., None])
    A = (eye(k) - beta[..., None, None] * outer(k, k)) * w[..., None, :]
    return steps(scaled(q), k, v, A, S, beta[..., None, None] * outer(k, v))


def normed_matrices(q, k, v, g, beta, S):
    q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + x.dtype.type(1e-6)) for x in (q, k))
    return gated_matrices(q, k, v, g, beta, S)


def rwkv5_loop(q, k, v, g, u, S):
    return rwkv6_loop(q, k, v, np.broadcast_to(-np.exp(g)[None, :, None], k.shape), u, S)


def rwkv6_loop(q, k, v, g, u, S):
    o, S = np.zeros_like(v), S.copy()
    for t in range(q.shape[2]):
        for i in range(k.shape[-1]):
            x = k[:, :, t, i, None] * v[:, :, t]
            o[:, :, t] += q[:, :, t, i, None] * (u[None, :, i, None] * x + S[:, :, i])
            S[:, :, i] = np.exp(g[:, :, t, i, None]) * S[:, :, i] + x
    return o, S


def rwkv7_matrices(q, k, v, g, a, b, S):
    return steps(q, k, v, np.exp(g)[..., None] * eye(k) + outer(b, a), S, outer(k, v))


def mamba_segments(x, dt, A, B, C, S):
    """The sum of logarithms between each two tokens, added up on its own."""
    n, times = x.shape[1], x.shape[2] // B.shape[2]
    B, C = (np.repeat(y, times, axis=2) for y in (B, C))
    logs = np.moveaxis(dt * A, 1, 2)
    later = np.tri(n, k=-1, dtype=bool)
    sums = np.cumsum(np.where(later, logs[..., :, None], 0).astype(x.dtype), axis=2, dtype=x.dtype)
    L = np.exp(np.where(np.tri(n, dtype=bool), sums, -np.inf))
    along = np.exp(np.cumsum(logs, axis=2, dtype=x.dtype))
    y = np.einsum("bthk,bshk,bhts,bsh,bshv->bthv", C, B, L, dt, x, optimize=True)
    y = y + np.einsum("bthk,bhvk,bht->bthv", C, S, along, optimize=True)
    if n:
        S = along[..., -1, None, None] * S + np.einsum("bhs,bsh,bshk,bshv->bhvk", L[:, :, -1], dt, B, x, optimize=True)
    return y, S


def hgrn_doubling(x, g, h):
    """A scan in log n rounds: (f, y) after (f', y') is (f f', f y' + y)."""
    f, y, by = np.exp(g), x.copy(), 1
    while by < x.shape[1]:
        y[:, by:] = y[:, by:] + f[:, by:] * y[:, :-by]
        f = np.concatenate([f[:, :by], f[:, by:] * f[:, :-by]], axis=1)
        by *= 2
    y = y + f * h[:, None]
    return y, y[:, -1] if x.shape[1] else h


RIGHT = [
    (linear_cumulative, LINEAR),
    (simple_parallel, SIMPLE),
    (gla_chunked, GLA),
    (retnet_powers, RETNET),
    (constant_logs, CONSTANT),
    (delta_matrices, DELTA),
    (delta_solved, DELTA),
    (gated_matrices, GATED),
    (gated_matrices, KDA),
    (normed_matrices, NORMED),
    (rwkv5_loop, RWKV5),
    (rwkv6_loop, RWKV6),
    (rwkv7_matrices, RWKV7),
    (mamba_segments, MAMBA),
    (hgrn_doubling, HGRN),
]


@pytest.mark.parametrize(("kernel", "spec"), RIGHT)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=slow)])
def test_a_right_kernel_is_right(kernel, spec, dtype):
    report = crosscheck(kernel, replace(spec, dtype=dtype))
    assert report.verdict in FINE, str(report)


def test_a_right_kernel_in_low_precision_with_wide_sums_is_right():
    def kernel(q, k, v, g, beta, S):
        q, k, v, g, beta = (x.astype(np.float32) for x in (q, k, v, g, beta))
        o, S = gated_matrices(q, k, v, g, beta, S)
        return o.astype(np.float16), S

    report = crosscheck(kernel, replace(KDA, dtype="float16"))
    assert report.verdict in FINE, str(report)


def torch_loop(q, k, v, g, beta, S):
    """Gated DeltaNet, BTHD, in the dtype of its arrays, with the state as V×K."""
    outputs = [q[:, :0, :, :1] * v[:, :0]]
    for t in range(q.shape[1]):
        S = S * g[:, t].exp()[..., None, None]
        known = (S @ k[:, t][..., None])[..., 0]
        S = S + (beta[:, t][..., None] * (v[:, t] - known))[..., None] * k[:, t][..., None, :]
        outputs.append((S @ (q[:, t] * q.shape[-1] ** -0.5)[..., None])[..., 0][:, None])
    return __import__("torch").cat(outputs, dim=1), S


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_right_kernel_of_torch_is_right(dtype):
    pytest.importorskip("torch")
    spec = replace(GATED, axes="BTHD", library="torch", state_axes="BHVK", dtype=dtype, sums=dtype)
    report = crosscheck(torch_loop, spec)
    assert report.verdict in FINE, str(report)


# Kernels of the field


@pytest.mark.parametrize(
    ("module", "name", "spec"),
    [
        ("qwen3_next", "torch_recurrent_gated_delta_rule", "gated_delta_net"),
        ("qwen3_next", "torch_recurrent_gated_delta_rule", "qwen3_next"),
        ("qwen3_next", "torch_chunk_gated_delta_rule", "gated_delta_net"),
        ("qwen3_next", "torch_chunk_gated_delta_rule", "qwen3_next"),
        ("kimi_linear", "recurrent_kimi_delta_attention", "kda"),
        ("kimi_linear", "chunk_kimi_delta_attention", "kda"),
        ("mamba2", "mamba2_chunk_scan", "mamba2"),
    ],
)
def test_references_of_transformers_are_right(module, name, spec):
    pytest.importorskip("torch")
    place = f"transformers.models.{module}.modeling_{module}"
    pytest.importorskip("transformers")
    report = crosscheck(getattr(pytest.importorskip(place), name), FIELD[spec])
    verdicts = {facet.result: facet.verdict for facet in report.findings[0].facets}
    assert verdicts == {"o": "WITHIN BOUND", "S": "WITHIN BOUND"}, str(report)


def test_a_gate_of_the_field_in_bfloat16_is_found():
    transformers = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")

    def kernel(q, k, v, g, beta, **more):
        return transformers.torch_recurrent_gated_delta_rule(q, k, v, g.bfloat16().float(), beta, **more)

    report = crosscheck(kernel, FIELD["gated_delta_net"])
    assert "g is rounded to bfloat16" in names(report), str(report)


def test_onnx_gated_delta_is_right():
    onnx = pytest.importorskip("onnx.reference.ops.op_linear_attention")

    def kernel(q, k, v, S, g, beta):
        heads, keys = S.shape[1], S.shape[2]
        sizes = {"q_num_heads": q.shape[-1] // keys, "kv_num_heads": heads, "update_rule": "gated_delta"}
        return onnx.LinearAttention.eval(q, k, v, S, g, beta, **sizes)

    assert crosscheck(kernel, FIELD["onnx_gated_delta"]).verdict in FINE


@pytest.mark.parametrize("name", FIELD)
def test_conventions_of_the_field_agree_with_themselves(name):
    spec = replace(FIELD[name], library="numpy")
    if name in ("gla", "rwkv7", "hgrn", "qwen3_next"):
        assert crosscheck(kernel_of(spec), spec).verdict in FINE
    for case in spec.plan()[::9]:
        x = spec.inputs(case, "float32")
        for array in spec.calls.given:
            spec.axes_of(array).give(x[array])
        found = spec.compute(x, PLAIN)
        assert {key: found[key].shape for key in found} == {key: spec.shape_of(key, case) for key in found}


# Mistakes


def names(report):
    return [likely.words for finding in report.findings for likely in finding.likely]


def kernel_of(spec):
    """A kernel that is this specification, mistakes included."""
    order = [name.split("=")[-1] for name in re.split(r", ", spec.call.split(" -> ")[0])]
    order = [name for name in order if name in spec.given]

    def kernel(*places, **named):
        arrays = [*places, *(x for x in named.values() if isinstance(x, np.ndarray))]
        x, dtype = {}, arrays[0].dtype
        for name, array in zip(order, arrays, strict=True):
            axes = spec.axes_of(name)
            letters = [c for word in axes.theirs for c in word if c != "1"]
            x[name] = axes.take(array, dict(zip(letters, array.shape, strict=True)) | dict.fromkeys(axes.missing, 1))
        keys = x["v"].shape[:-1]
        x = {"q": np.ones((*keys, 1)), "k": np.ones((*keys, 1))} | x
        found = spec.compute(x, PLAIN)
        return tuple(spec.axes_of(name).give(found[name].astype(dtype)) for name in ("o", "S"))

    return kernel


SPECS = {"Bonus": RWKV6, "Rank": RWKV7, "Normalised": NORMED, "RootOfMean": NORMED, "WrittenTimesRest": GLA}
all_families()
QUICK = ("DecayOnOtherAxis", "BetaSquared", "RankExchanged", "BonusWritten", "TailNotWritten", "RootOfMean")


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(
            m, id=f"{m.name}-{m.number or ''}", marks=() if m.name in QUICK and m.number in (None, 32) else slow
        )
        for m in MISTAKES[Recurrence]
    ],
)
def test_each_mistake_is_found_and_named(mistake):
    spec = next((spec for word, spec in SPECS.items() if word in mistake.name), replace(KDA, sharing="repeat"))
    report = crosscheck(kernel_of(mistake.of(spec)), spec)
    assert report.verdict == "WRONG"
    assert mistake.said in names(report)[:2], str(report)


def gated(q, k, v, g, beta, S, wrong=""):
    """Gated DeltaNet with a decay of each key entry, and one thing wrong."""
    n, dtype = q.shape[2], q.dtype
    w = g if wrong == "log as factor" else np.exp(g)
    if wrong == "decay of the token before":
        w = np.concatenate([np.ones_like(w[:, :, :1]), w[:, :, :-1]], axis=2)[:, :, :n]
    if wrong == "decay of the next token":
        w = np.concatenate([w[:, :, 1:], np.ones_like(w[:, :, :1])], axis=2)
    if wrong == "no decay":
        w = np.ones_like(w)
    if wrong == "decay twice":
        w = w**2
    if wrong == "decay of head 0":
        w = w[:, :1].repeat(w.shape[1], 1)
    if wrong == "g of row 0":
        w = w[:1].repeat(w.shape[0], 0)
    if wrong == "decay in bfloat16":
        w = round_to(w, "bfloat16").astype(dtype)
    if wrong == "border of 16":
        w[:, :, ::16] = 1
    if wrong == "clamped":
        w = np.exp(np.diff(np.maximum(np.cumsum(g, axis=2), -20), axis=2, prepend=dtype.type(0)))
    if wrong in ("no β", "β twice", "β squared"):
        beta = {"no β": beta**0, "β twice": 2 * beta, "β squared": beta**2}[wrong]
    scale = {"no scale": 0.0, "scale twice": -1.0}.get(wrong, -0.5)
    q = q * dtype.type(q.shape[-1] ** scale)
    if wrong == "first state ignored":
        S = np.zeros_like(S)
    if wrong == "state transposed":
        S = np.ascontiguousarray(T(S))
    o, before = np.zeros(v.shape, dtype), S
    for t in range(n):
        before, w_t, k_t, b = S, w[:, :, t, :, None], k[:, :, t, :, None], beta[:, :, t, None, None]
        if wrong == "lost between chunks of 32" and t % 32 == 0 and t:
            S = np.zeros_like(S)
        if wrong == "decay on the other axis":
            w_t = T(w_t)
        D = S if wrong == "decay after the write" else w_t * S
        R = before if wrong == "reads the state before the decay" else D
        if wrong == "reads the new state":
            R = D + k_t * b * v[:, :, t, None, :]
        known = T(k_t) @ R * (0 if wrong == "no subtraction" else 1)
        error = b * v[:, :, t, None, :] - known if wrong == "β on v only" else b * (v[:, :, t, None, :] - known)
        S = D + k_t * error
        if wrong == "decay after the write":
            S = w_t * S
        if wrong == "state in bfloat16":
            S = round_to(S, "bfloat16").astype(dtype)
        read = before if wrong == "reads before the write" else S
        o[:, :, t] = (q[:, :, t, None, :] @ read)[..., 0, :]
    if wrong == "state transposed":
        S = np.ascontiguousarray(T(S))
    return o, before if wrong == "last token not written" else S


GATED_WRONG = {
    "log as factor": "--gate factor,",
    "decay after the write": "the decay falls on what the token itself writes, too",
    "decay of the token before": "the decay is that of the token before",
    "decay of the next token": "the decay is that of the next token",
    "no decay": "--decay none,",
    "decay twice": "the decay is applied twice",
    "decay on the other axis": "the decays of keys fall on values, or the reverse",
    "decay of head 0": "the decay of head 0 is that of all heads",
    "g of row 0": "the decay of batch row 0 is that of all rows",
    "decay in bfloat16": "a decay is rounded to bfloat16",
    "border of 16": "the first token of each chunk of 16 does not decay the state",
    "clamped": "the sum of the logarithms of all decays is clamped at -20",
    "no β": "--beta none,",
    "β twice": "β is doubled",
    "β squared": "β is squared",
    "β on v only": "--beta v,",
    "reads the state before the decay": "--erases before,",
    "reads the new state": "the delta rule erases what the token itself has written",
    "no subtraction": "--write add,",
    "reads before the write": "--reads before,",
    "no scale": "--scale 1,",
    "scale twice": "the scale is applied twice",
    "first state ignored": "the first state is ignored",
    "state transposed": "the state is transposed, given and returned",
    "lost between chunks of 32": "the state is lost between chunks of 32",
    "state in bfloat16": "the state is rounded to bfloat16 at each token",
    "last token not written": "the state that is returned lacks the last token",
}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        pytest.param(wrong, words, id=wrong, marks=() if i % 5 == 0 else slow)
        for i, (wrong, words) in enumerate(GATED_WRONG.items())
    ],
)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=slow)])
def test_a_wrong_kernel_is_found_and_named(wrong, words, dtype):
    report = crosscheck(lambda *arrays: gated(*arrays, wrong=wrong), replace(KDA, dtype=dtype))
    assert report.verdict == "WRONG"
    assert names(report)[0].startswith(words), str(report)


def test_the_kernel_of_these_mistakes_is_right_without_one():
    assert crosscheck(gated, KDA).verdict in FINE


OTHERS = [
    ("--bonus no,", RWKV6, lambda q, k, v, g, u, S: rwkv6_loop(q, k, v, g, 0 * u, S)),
    ("--reads after,", RWKV6, lambda q, k, v, g, u, S: after_with_bonus(q, k, v, g, u, S)),
    ("--gate log,", RWKV5, lambda q, k, v, g, u, S: rwkv6_loop(q, k, v, g[None, :, None] + 0 * k, u, S)),
    ("--l2norm none,", NORMED, gated_matrices),
    ("--l2norm outside,", NORMED, lambda q, k, *more: gated_matrices(outside(q), outside(k), *more)),
    ("--gate log,", replace(GLA, gate="factor"), gla_chunked),
    ("--erases after,", RWKV7, lambda *x: rwkv7_after(*x)),
]


def after_with_bonus(q, k, v, g, u, S):
    bonus = (q * u[:, None] * k).sum(-1, keepdims=True) * v
    return steps(q, k, v, np.exp(g)[..., None] * eye(k), S, outer(k, v), bonus=bonus)


def outside(x):
    return x / (np.sqrt((x * x).sum(-1, keepdims=True)) + x.dtype.type(1e-6))


def rwkv7_after(q, k, v, g, a, b, S):
    return steps(q, k, v, (eye(k) + outer(b, a)) * np.exp(g)[..., None, :], S, outer(k, v))


@slow
@pytest.mark.parametrize(("words", "spec", "kernel"), OTHERS)
def test_another_convention_is_found_and_named(words, spec, kernel):
    report = crosscheck(kernel, spec)
    assert report.verdict == "WRONG"
    assert names(report)[0].startswith(words), str(report)


# What it is tried on


@pytest.mark.parametrize("spec", [KDA, RWKV6, RWKV7, SIMPLE, MAMBA], ids=lambda spec: spec.call)
def test_nothing_rounds_in_exact_cases(spec):
    """States are multiples of 1/8 up to 8, so that even bfloat16 has them."""
    exact = [case for case in spec.plan() if case.n and spec.is_exact(case, "bfloat16")]
    assert max(case.n for case in exact) > 1024
    for case in exact[::4]:
        x = spec.inputs(case, "bfloat16")
        S = np.array(states_of(spec, x))
        assert np.all(np.abs(S) <= 8) and np.all(np.rint(8 * S) == 8 * S)
        assert np.any(S)
        assert {0.0, 1.0}.issuperset(spec.decays(x, PLAIN).flat)


def states_of(spec, x):
    states = []

    class Watched(Recurrence):
        def stored(self, S):
            states.append(S)
            return S

    spec.mistaken(Watched).compute(x, PLAIN)
    return states


@pytest.mark.parametrize("spec", [GLA, KDA, NORMED, RWKV5, RWKV7], ids=lambda spec: spec.call)
def test_bounds_of_short_texts_are_small(spec):
    """Float32 is told from bfloat16."""
    case = Case(n=17, batch=2, heads=2, groups=2, start=True, values="plain")
    for want in expect(spec, case, "float32", spec.inputs(case, "float32"), exact=False).values():
        assert np.median(want.bound) < 2.0**-8 * np.median(np.abs(want.value))


def test_decays_are_not_below_the_least():
    spec = replace(SIMPLE, least_decay=0.5)
    for case in spec.plan()[::5]:
        assert np.all(spec.decays(spec.inputs(case, "float64"), PLAIN) >= 0.5 * (1 - 2.0**-50))
        assert not spec.is_exact(case, "float64")


@pytest.mark.parametrize(
    ("missing", "conventions"),
    [
        ("g", {"decay": "head"}),
        ("beta", {"beta": "v"}),
        ("beta", {"decay": "head", "gate": "dt", "call": "q, k, v, g -> o"}),
        ("u", {"bonus": True}),
        ("a and b", {"write": "rank"}),
    ],
)
def test_a_call_must_give_what_the_formula_needs(missing, conventions):
    with pytest.raises(ValueError, match=f"Recurrence: `call` must give {missing}, got 'q, k, v"):
        Recurrence(**conventions)


def test_unknown_dtypes_of_states_are_refused():
    with pytest.raises(ValueError, match="`state_dtype` must be one of"):
        Recurrence(state_dtype="float8")
