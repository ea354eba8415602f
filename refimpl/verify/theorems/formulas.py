"""The parts of a model equal their formulas: feature maps, rotations, norms, MLPs, whole layers.

The other theorems compare two programs that share these parts, and so cannot see a mistake in them.
Here the right side is the formula written out once more, with as few functions of the library as
possible: sums over columns, one head after the other, rotations one position after the other.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from ...arrays import Array
from ...attention.feature_maps import hedgehog, taylor2_pair
from ...attention.linear_attention import State
from ...attention.state import no_text
from ...model.transformer import Model
from ...systems import SystemArray
from ...systems.floats import array_namespace, constant, device
from ..cases import Case, ModelCase
from ..implementation import Implementation
from ..theorem import DERIVED, Numbers, Sides, Theorem
from .iclca import ABSOLUTE, BEFORE, GPT, GROUPED, LLAMA, NO_PROMPT, PARALLEL, PREFIX, TURN, TURNED, WIDE, Problem
from .identities import feature_count, linear_forms, problem, states, tokens

EPSILON = Fraction(1, 10**5)
ROOT_2_PI = Fraction(math.sqrt(2 / math.pi))  # the float64 that published code has


def columns(x: Array) -> list[Any]:
    """The columns of x, each (..., n, 1)."""
    return [x[..., i : i + 1] for i in range(x.shape[-1])]


def total(parts: list[Any]) -> Any:
    return functools.reduce(lambda a, b: a + b, parts)


# Feature maps, of one token x, by their definitions


def positive_part(x: Array) -> Any:
    """(x + |x|) / 2"""
    return (x + array_namespace(x).abs(x)) / 2


def elu_plus_one(x: Array) -> Any:
    """x + 1 for x ≥ 0, and exp x below"""
    return positive_part(x) + array_namespace(x).exp(-positive_part(-x))


def dpfp(nu: int, x: Array) -> Any:
    a = [positive_part(y) for y in columns(x)] + [positive_part(-y) for y in columns(x)]
    both = [a[i] * a[i - j] for j in range(1, nu + 1) for i in range(len(a))]
    return array_namespace(x).concat(both, axis=-1)


def polynomial(degree: int, x: Array) -> Any:
    """All products of `degree` factors, each of them 1 or an entry of x."""
    xp = array_namespace(x)
    step = [xp.ones_like(x[..., :1]), *columns(x)]
    one = xp.ones_like(x[..., :1])
    return xp.concat(
        [functools.reduce(lambda a, b: a * b, word, one) for word in itertools.product(step, repeat=degree)], axis=-1
    )


FORMULAS: dict[str, Callable[[Array], Any]] = {
    "identity": lambda x: 1 * x,
    "elu+1": elu_plus_one,
    "relu": positive_part,
    "relu2": lambda x: positive_part(x) ** 2,
    "exp": lambda x: 1 / array_namespace(x).exp(-x),
    "polynomial(1)": functools.partial(polynomial, 1),
    "polynomial(2)": functools.partial(polynomial, 2),
    "polynomial(3)": functools.partial(polynomial, 3),
    "dpfp(1)": functools.partial(dpfp, 1),
    "dpfp(2)": functools.partial(dpfp, 2),
}


def feature_maps(case: Case, numbers: Numbers, impl: Implementation) -> Sides:
    """Every named feature map is its formula; those of 1 + u + u²/2 have this kernel."""
    x, y = numbers.draw(*case.heads[0], case.n, case.d), numbers.draw(*case.heads[0], case.n, case.d)
    if case.phi in FORMULAS:
        yield f"φ = {case.phi}", impl.feature_map(case.phi)(x), FORMULAS[case.phi](x)
        return
    xp = array_namespace(x)
    phi, u = impl.feature_map(case.phi), total([a * b for a, b in zip(columns(x), columns(y), strict=True)])
    root = xp.sqrt(xp.ones_like(u) * case.d)
    yield "φ(x)·φ(y)", xp.sum(phi(x) * phi(y), axis=-1, keepdims=True), 1 + u / root + (u / root) ** 2 / 2
    scale = numbers.draw()
    phi_q, phi_k = taylor2_pair(scale)
    yield "φ_q(x)·φ_k(y)", xp.sum(phi_q(x) * phi_k(y), axis=-1, keepdims=True), 1 + scale * u + (scale * u) ** 2 / 2
    W, b = numbers.draw(3, case.d), numbers.draw(3)
    z = xp.exp(4 * (x @ xp.matrix_transpose(W) + b))  # exp(2a) / (Σ exp(2a) + Σ exp(−2a))
    sums = total([xp.sqrt(c) + 1 / xp.sqrt(c) for c in columns(z)])
    yield "hedgehog", hedgehog(W, b)(x), xp.concat([xp.sqrt(z) / sums, 1 / (xp.sqrt(z) * sums)], axis=-1)


# Rotations


def rope_angles(case: Case, numbers: Numbers, impl: Implementation) -> Sides:
    """The usual table has cos pθ_i and sin pθ_i, θ_i = 10000^(−2i/width), at any position p.

    R_p rotates the pairs (i, i + width/2) or (2i, 2i + 1) by them. Other θ_i may be given.
    """
    assert case.rope
    layout, _, width = case.rope
    x, system = numbers.draw(case.n, case.d), numbers.system
    at = [
        -7,
        1,
        *numbers.integers(4097, 5000, 1),
        *numbers.integers(10**6, 2**21, 1),
        *numbers.integers(1, 300, case.n),
    ]
    at = at[: case.n]
    table = impl.angle_table(system, width)
    cos, sin = angles(system, width, at)
    yield from zip(("cos pθ", "sin pθ"), table(at), (cos, sin), strict=True)
    given = [Fraction(1, i + 1) for i in range(width // 2)]
    both = impl.angle_table(system, width, frequencies=given)(at), cos_and_sin(system, system.convert(given), at)
    yield from zip(("cos pθ of given θ", "sin pθ of given θ"), *both, strict=True)
    yield f"R_p x, {layout}", impl.rope(table, layout)(x, at), rotated(x, cos, sin, layout)


def angles(system: Any, width: int, at: list[int], base: int = 10000) -> tuple[Any, Any]:
    """cos pθ_i and sin pθ_i, (positions, width/2), by exp, log, cos and sin."""
    xp = array_namespace(system.convert([1]))
    powers = system.convert([Fraction(-2 * i, width) for i in range(width // 2)])
    return cos_and_sin(system, xp.exp(powers * xp.log(system.convert([base]))), at)


def cos_and_sin(system: Any, theta: Any, at: list[int]) -> tuple[Any, Any]:
    """cos pθ_i and sin pθ_i, (positions, θ)."""
    xp = array_namespace(theta)
    angle = system.convert([[p] for p in at]) * theta[None, :]
    return xp.cos(angle), xp.sin(angle)


def rotated(x: Array, cos: Array, sin: Array, layout: str) -> Any:
    """Pairs of columns, (a, b) -> (a cos − b sin, a sin + b cos); further columns stay."""
    old, h = columns(x), cos.shape[-1]
    new = list(old)
    for i in range(h):
        j, k = (i, i + h) if layout == "half" else (2 * i, 2 * i + 1)
        c, s = cos[..., i : i + 1], sin[..., i : i + 1]
        new[j], new[k] = old[j] * c - old[k] * s, old[j] * s + old[k] * c
    return array_namespace(x).concat(new, axis=-1)


def turns_of(model: Model, at: range, numbers: Numbers, width: int) -> tuple[Any, Any]:
    """cos and sin at consecutive positions: the usual angles, or powers of points of the circle."""
    if "rope.c" not in model.weights:
        return angles(numbers.system, width, list(at))
    c, s = model.weights["rope.c"], model.weights["rope.s"]
    s, xp = s if at.start >= 0 else -s, array_namespace(c)
    x, y = xp.ones_like(c), xp.zeros_like(c)
    for bit in f"{abs(at.start):b}":  # by repeated squaring, then one by one
        x, y = x * x - y * y, 2 * x * y
        x, y = (x * c - y * s, x * s + y * c) if bit == "1" else (x, y)
    rows, s = [(x, y)], model.weights["rope.s"]
    for _ in at[1:]:
        x, y = x * c - y * s, x * s + y * c
        rows.append((x, y))
    return tuple(xp.stack(list(part), axis=0) for part in zip(*rows, strict=True))  # type: ignore[return-value]


# Norms, MLPs, layers


def norm_formula(kind: str, x: Array, gain: Any = 1, offset: Any = 0, epsilon: Fraction = EPSILON) -> Any:
    """(x − mean) / √(variance + ε), variance = mean(x²) − mean²; rms: without the mean"""
    xp, width = array_namespace(x), x.shape[-1]
    if kind == "none":
        return x
    mean = total(columns(x)) / width if kind.startswith("layer") else 0 * x[..., :1]
    u = total([y * y for y in columns(x)]) / width - mean * mean + constant(x, epsilon)
    scale = 2 / (1 + u) if kind.endswith("rational") else 1 / xp.sqrt(u)
    return (x - mean) * scale * gain + offset


def norms(case: ModelCase, numbers: Numbers, impl: Implementation) -> Sides:
    """Layer and RMS norms, and their rational stand-ins, are their formulas, at any width."""
    x, gain, offset = numbers.draw(case.n, case.width), numbers.draw(case.width), numbers.draw(case.width)
    yield f"{case.norm} norm", impl.norm(x, kind=case.norm), norm_formula(case.norm, x)
    affine = impl.norm(x, gain, offset, kind=case.norm)
    yield f"{case.norm} norm, with gain and offset", affine, norm_formula(case.norm, x, gain, offset)


def activation_formula(name: str, x: Array) -> Any:
    """x σ(2√(2/π)(x + 0.044715x³)), x σ(x), max(x, 0), ((x + 1)² − 1)/4;  σ(y) = 1/(1 + e^−y)"""
    xp = array_namespace(x)
    if name == "quadratic":
        return ((x + 1) ** 2 - 1) / 4
    if name == "relu":
        return positive_part(x)
    y = x if name == "silu" else 2 * constant(x, ROOT_2_PI) * (x + constant(x, Fraction(44715, 10**6)) * x**3)
    return x / (1 + xp.exp(-y))


def mlp_formula(case: ModelCase, w: dict[str, Any], x: Array) -> Any:
    transpose = array_namespace(x).matrix_transpose
    hidden = transpose(transpose(w["W_up"]) @ transpose(x)) + w.get("b_up", 0)
    if case.gated:
        hidden = activation_formula(case.activation, transpose(transpose(w["W_gate"]) @ transpose(x))) * hidden
    else:
        hidden = activation_formula(case.activation, hidden)
    return transpose(transpose(w["W_down"]) @ transpose(hidden)) + w.get("b_down", 0)


def mlps(case: ModelCase, numbers: Numbers, impl: Implementation) -> Sides:
    """An MLP is σ(x W_up + b_up) W_down + b_down; gated, σ(x W_gate) (x W_up + b_up) W_down."""
    x, scale = numbers.draw(case.n, case.width), 1 if numbers.system.exact else 4
    shapes = {"W_up": (case.width, case.hidden), "W_down": (case.hidden, case.width)}
    shapes |= {"W_gate": (case.width, case.hidden)} if case.gated else {}
    w = {name: numbers.draw(*shape) / scale for name, shape in shapes.items()}
    w |= {"b_up": numbers.draw(case.hidden), "b_down": numbers.draw(case.width)} if case.biased else {}
    arguments = w["W_up"], w["W_down"], w.get("W_gate"), w.get("b_up", 0), w.get("b_down", 0)
    yield f"{case.activation} MLP", impl.mlp(x, *arguments, activation=case.activation), mlp_formula(case, w, x)


def attention_formula(
    case: ModelCase, q: Array, k: Array, v: Array, turns: Any, past: tuple[Any, Any] | None, seen: Any
) -> Any:
    """One head: Σ_s [t sees s] sim(q_t, k_s) v_s / Σ_s [t sees s] sim(q_t, k_s), with its past."""
    xp, placement = array_namespace(q), case.rope[1] if case.rope else ""
    transpose = xp.matrix_transpose

    def turn(x: Any, where: str) -> Any:
        if placement != where or not case.rope:
            return x
        cos, sin = turns
        return rotated(x, cos, sin, case.rope[0])

    q, k = turn(q, "before"), turn(k, "before")
    if case.phi == "softmax":
        weights = seen * xp.exp(q @ transpose(k) / xp.sqrt(xp.ones_like(q[:1, :1]) * case.d))
        return weights @ v / total(columns(weights))
    phi = FORMULAS[case.phi]
    gq, gk = phi(q), phi(k)
    fq, fk = turn(gq, "after"), turn(gk, "after")
    num, den = (seen * (fq @ transpose(fk))) @ v, total(columns(seen * (gq @ transpose(gk))))
    if past is not None:
        num, den = num + fq @ past[0], den + gq @ past[1][:, None]
    return num / den if case.normalise else num


def model_formula(case: ModelCase, numbers: Numbers, model: Model, text: Any, prefix: int) -> Any:
    """The output of a model of one text, head by head and layer by layer."""
    w, heads, per = model.weights, case.heads, case.heads // (case.groups or case.heads)
    xp, n = array_namespace(model.like), len(text) if case.vocabulary else text.shape[-2]
    x = tokens(*(w["embedding"][i : i + 1, :] for i in text)) if case.vocabulary else text
    first = case.position
    if case.table:
        x = x + tokens(*(w["positions"][first + t : first + t + 1, :] for t in range(n)))
    sees = [[int(s <= t or s < prefix) for s in range(n)] for t in range(n)]
    seen = numbers.system.convert(np.array(sees))
    turns = turns_of(model, range(first, first + n), numbers, case.rope[2]) if case.rope else None
    for i in range(case.layers):
        own = model.layer_weights(i)

        def norm(j: int, y: Any, own: Any = own) -> Any:
            return norm_formula(case.norm, y, own.get(f"gain_{j}", 1), own.get(f"offset_{j}", 0))

        y, o = x if case.order == "post" else norm(1, x), own.get("b_O", 0)
        for h in range(heads):
            g = h // per

            def project(name: str, at: int, size: int, y: Any = y, own: Any = own) -> Any:
                columns = slice(at * size, (at + 1) * size)
                bias = own[f"b_{name}"][columns] if case.biased else 0
                return y @ own[f"W_{name}"][:, columns] + bias

            past = None if model.biases is None else (model.biases[i].S[g, :, :], model.biases[i].z[g, :])
            q, k, v = project("Q", h, case.d), project("K", g, case.d), project("V", g, case.m)
            head = attention_formula(case, q, k, v, turns, past, seen)
            o = o + head @ own["W_O"][h * case.m : (h + 1) * case.m, :]
        if case.order == "post":
            x = norm(1, x + o)
            x = norm(2, x + mlp_formula(case, own, x)) if case.hidden else x
        elif case.order == "parallel":
            x = x + o + (mlp_formula(case, own, y) if case.hidden else 0)
        else:
            x = x + o
            x = x + mlp_formula(case, own, norm(2, x)) if case.hidden else x
    if case.order != "post":
        x = norm_formula(case.norm, x, w.get("gain", 1), w.get("offset", 0))
    if case.vocabulary:
        x = x @ (xp.matrix_transpose(w["embedding"]) if case.tied else w["unembedding"])
    return x


def transformer_formula(case: ModelCase, numbers: Numbers, impl: Implementation) -> Sides:
    """A model is its formula, head by head: any order, norm, MLP, grouping, RoPE, head and past."""
    problem = Problem.of(case, numbers, impl)
    prefix = case.M if case.mask == "full" else 0
    text = (
        problem.both[0]
        if case.batch and case.vocabulary
        else problem.both[(0,) * len(case.batch)]
        if case.batch
        else problem.both
    )
    got, after = impl.transformer(problem.model, problem.both, mask=prefix or "causal")
    yield (
        "output",
        got[(0,) * len(case.batch)] if case.batch else got,
        model_formula(case, numbers, problem.model, text, prefix),
    )
    for i, past in enumerate(after):
        yield f"layer {i}: position", past.position, case.position + case.M + case.n


def decoding(case: ModelCase, numbers: Numbers, impl: Implementation) -> Sides:
    """A text read token after token, each from the past so far, gives the output of one pass."""
    problem = Problem.of(case, numbers, impl)
    want = problem.prompted()
    _, past = impl.transformer(problem.model, problem.prompt)
    outputs = []
    for t in range(case.M, case.M + case.n):
        o, past = impl.transformer(problem.model.with_biases(past), problem.cut(t, t + 1))
        outputs.append(o)
    yield "outputs", tokens(*outputs), want
    yield "position", past[0].position, case.position + case.M + case.n


def generation(case: ModelCase, numbers: Numbers, impl: Implementation) -> Sides:
    """Without temperature, each generated id has the largest logit after all ids before it.

    The right side reads the whole text anew for each id.
    """
    problem = Problem.of(case, numbers, impl)
    text = list(problem.prompt)
    ids = list(impl.generate(problem.model, text, case.n))
    yield "ids", len(ids), case.n
    logits, _ = impl.transformer(problem.model, text + ids[:-1])
    last, xp = logits[case.M - 1 :, :], array_namespace(logits)
    chosen = xp.stack([last[t, i] for t, i in enumerate(ids)], axis=0)
    yield "logit of the id", chosen[:, None], xp.max(last, axis=-1, keepdims=True)


def draw_padding(case: Case, numbers: Numbers, like: Array, first: bool = False) -> tuple[list[int], Any]:
    """The tokens that count, and the mask that says so, in the library of `like`.

    first : whether the first token must count
    """
    rows = [bool(i) or (first and t == 0) for t, i in enumerate(numbers.integers(0, 3, case.n))]
    mask: Any = np.array(rows, dtype=bool)
    if not isinstance(like, SystemArray):
        mask = array_namespace(like).asarray(mask, device=device(like))
    return [t for t, keep in enumerate(rows) if keep], mask


def select(x: Any, kept: list[int]) -> Any:
    """These tokens of x."""
    return tokens(x[..., :0, :], *(x[..., t : t + 1, :] for t in kept))


def zeroed(x: Any, kept: list[int]) -> Any:
    """x, with 0 for all other tokens."""
    return tokens(x[..., :0, :], *(x[..., t : t + 1, :] * int(t in kept) for t in range(x.shape[-2])))


def nothing_at_padded(name: str, o: Any, kept: list[int]) -> Sides:
    """1 + o = 1 at all other tokens; a relative bound on 0 would say nothing."""
    if len(kept) < o.shape[-2]:
        rest = 1 + select(o, [t for t in range(o.shape[-2]) if t not in kept])
        yield f"{name}1 + o of padded tokens", rest, array_namespace(o).ones_like(rest)


def padding(case: Case, numbers: Numbers, impl: Implementation) -> Sides:
    """Padded tokens count for nothing, and put out 0.

    For φ = identity the right side gives them the key 0; for other maps it leaves them out.
    """
    (q, k, v), options = problem(case, numbers)
    # Without a past, the right side must see a key even where the token itself is padded.
    kept, mask = draw_padding(case, numbers, q, first=case.phi == "identity" and case.start is None)
    if case.phi == "identity":
        want, end = impl.linear_attention(q, zeroed(k, kept), v, **options)
        want = select(want, kept)
    else:
        want, end = impl.linear_attention(*(select(x, kept) for x in (q, k, v)), **options)
    end = State(end.S, end.z, case.position + case.n)
    for name, form in linear_forms(case, impl).items():
        o, after = form(q, k, v, **options, padding=mask)
        yield f"{name}: o", select(o, kept), want
        yield from nothing_at_padded(f"{name}: ", o, kept)
        yield from states(f"{name}:", after, end)
    start = options.get("state") or no_text(v, feature_count(case), case.m, lead=case.heads[1], position=case.position)
    yield from states("absorbed:", impl.absorb(start, k, v, options["kernel"], padding=mask), end)


def softmax_padding(case: Case, numbers: Numbers, impl: Implementation) -> Sides:
    """In softmax attention padded tokens count for nothing, in the text and in the KV cache."""
    q, k, v = problem(case, numbers)[0]
    kept, mask = draw_padding(case, numbers, q)
    want, _ = impl.softmax_attention(*(select(x, kept) for x in (q, k, v)))
    for name, form in (("sum", impl.softmax_attention), ("shifted", impl.softmax_attention_shifted)):
        for t in (0, case.n // 2):
            first, cache = form(*(x[..., :t, :] for x in (q, k, v)), padding=mask[:t])
            rest, _ = form(*(x[..., t:, :] for x in (q, k, v)), padding=mask[t:], cache=cache)
            o = tokens(first, rest)
            yield f"{name}, split at {t}: o", select(o, kept), want
            yield from nothing_at_padded(f"{name}, split at {t}: ", o, kept)


# In a quick run, systems that round see every second of these, and of all that follow.
MAPS = tuple(
    Case(2, d, 1, heads=heads, phi=phi)
    for phi, d, heads in (
        ("elu+1", 3, ((2,), ())),
        ("relu", 4, ((), ())),
        ("taylor2", 3, ((), ())),
        ("relu2", 2, ((3,), ())),
        ("exp", 2, ((), ())),
        ("polynomial(2)", 2, ((2,), ())),
        ("dpfp(2)", 3, ((), ())),
        ("polynomial(3)", 1, ((), ())),
        ("polynomial(1)", 3, ((), ())),
        ("dpfp(1)", 2, ((), ())),
    )
)
WIDE_MAPS = (
    tuple(Case(2, d, 1, ((6,), ()), phi="polynomial(2)", chunk=None) for d in (65, 33)),
    tuple(Case(300, d, 1, phi="elu+1", chunk=None) for d in (65, 129)),
    tuple(Case(3, d, 1, ((5,), ()), phi=phi, chunk=None) for phi, d in (("dpfp(2)", 66), ("relu2", 129), ("relu", 67))),
    tuple(Case(3, d, 1, phi=phi, chunk=None) for phi, d in (("taylor2", 65), ("exp", 70))),
)
ROTATED = (Case(6, 4, 1, rope=("half", "before", 4)), Case(5, 5, 1, rope=("interleaved", "before", 4)))
FAR = (
    tuple(
        Case(7, d, 1, rope=(layout, "before", turned), chunk=None)
        for d, turned, layout in ((65, 64, "half"), (130, 130, "interleaved"), (129, 128, "half"))
    ),
)
plain = ModelCase(0, 2, width=3)
NORMED = tuple(replace(plain, norm=norm) for norm in ("layer", "layer_rational", "rms", "rms_rational"))
WIDELY = tuple(
    tuple(replace(plain, n=3, width=width, norm=norm, chunk=None) for width in (65, 130, 257))
    for norm in ("layer", "layer_rational", "rms", "rms_rational")
)
hidden = replace(plain, hidden=4, width=2)
SIGMAS = (
    replace(hidden, activation="gelu", biased=True),
    replace(hidden, gated=True, biased=True),
    replace(hidden, activation="silu", gated=True),
    hidden,
    replace(hidden, activation="relu"),
)
MLPS = tuple(
    tuple(replace(case, n=3, width=width, hidden=many, chunk=None) for width, many in ((65, 70), (70, 129)))
    for case in (SIGMAS[0], SIGMAS[1], SIGMAS[2])
)
SOFTMAX = ModelCase(2, 1, 1, 3, 4, 2, m=2, phi="softmax", rope=("half", "before", 2), norm="rms", hidden=2, gated=True)
SOFTMAX = replace(SOFTMAX, activation="silu", vocabulary=4)
LAYERS = (
    replace(GPT, M=1, layers=1),
    TURNED,
    replace(LLAMA, layers=1),
    BEFORE,
    SOFTMAX,
    PREFIX,
    replace(NO_PROMPT, hidden=2, gated=True, biased=True),
    GROUPED,
    ABSOLUTE,
    PARALLEL,
)
BROAD = replace(WIDE, M=128, n=2, layers=1, start=3, millions=1)
MODELS = (
    (
        BROAD,
        replace(BROAD, heads=12, groups=6, order="post", norm="rms_rational", gated=True, biased=True),
        replace(BROAD, order="parallel", vocabulary=131, tied=False, rope=("half", "before", 8)),
        replace(BROAD, groups=None, gated=True, vocabulary=67, mask="full", d=66, rope=("half", "after", 66)),
        replace(BROAD, heads=5, groups=1, normalise=False, table=200, millions=0, rope=None, restart=False),
    ),
    (
        replace(GPT, M=66, n=2, layers=1, width=66, heads=6, hidden=66, chunk=None),
        replace(LLAMA, M=64, n=2, layers=1, width=65, heads=5, vocabulary=70, hidden=67, chunk=None),
        replace(SOFTMAX, M=66, n=3, width=65, heads=6, groups=3, d=66, rope=("half", "before", 66), chunk=None),
    ),
)
DECODED = (
    (replace(BROAD, M=257, n=2), replace(BROAD, M=1001, n=2, width=8, heads=5, groups=5, hidden=2)),
    (
        replace(SOFTMAX, M=258, n=2, heads=2, groups=1, chunk=None),
        replace(SOFTMAX, M=130, n=2, heads=8, groups=8, width=66, chunk=None),
    ),
)
READ = (replace(SOFTMAX, n=2), replace(BEFORE, n=2), replace(LLAMA, layers=1, n=2), replace(GROUPED, n=3))
ASKED = (
    ModelCase(3, 3, 1, 4, 2, phi="softmax", norm="layer", vocabulary=7),
    ModelCase(2, 3, 1, 3, 2, vocabulary=5, rope=TURN),
    ModelCase(3, 3, 2, 4, 2, phi="elu+1", norm="rms", vocabulary=6),
    ModelCase(1, 2, 1, 2, vocabulary=4, table=9, restart=False),
)
SPOKEN = (
    (
        ModelCase(258, 3, 1, 66, 6, 2, phi="elu+1", rope=TURN, norm="layer", vocabulary=200, chunk=None),
        ModelCase(257, 3, 1, 33, phi="softmax", norm="rms", vocabulary=200, tied=False, chunk=None),
    ),
)
PADDED = (
    Case(5, 2, 3, phi="elu+1", heads=((2,), (2,))),
    Case(6, 2, 1, start=3, rope=("half", "after", 2)),
    Case(4, 3, 2, mask="full", phi="elu+1", start=2),
    Case(5, 3, 2, mask=3, rope=("interleaved", "before", 2)),
    Case(0, 2, 2, start=1),
)
MUCH = (
    (
        Case(257, 3, 2, start=9, millions=1, rope=("half", "after", 2), chunk=None),
        Case(130, 66, 1, ((6,), ()), 70, rope=("interleaved", "before", 66), chunk=None),
        Case(65, 2, 3, ((8,), (8,)), start=4096, rope=("half", "after", 2), chunk=None),
    ),
)
HIDDEN = (Case(5, 2, 3, heads=((2,), (2,))), Case(4, 3, 1), Case(1, 1, 1))
CACHED = ((Case(130, 3, 2, chunk=None), Case(66, 65, 1, ((6,), ()), chunk=None)),)


def one_text(case: ModelCase) -> bool:
    return not case.batch and case.mask == "causal" and case.n > 0


ANY, PLAIN = "a ring; a field, an order, or exp and roots where the formula has them", "definition"
theorem = functools.partial(Theorem.of, group="formulas")
token_wise = functools.partial(theorem, needs=("field", "a model"), phi=False)
ORDER = 9
THEOREMS = (
    theorem(
        feature_maps,
        ANY,
        f"{PLAIN}, as cited in feature_maps.py",
        needs=("ring", "a feature map"),
        cases=MAPS,
        usual=WIDE_MAPS,
    ),
    theorem(
        rope_angles,
        "a real system",
        "Su et al. 2021 (RoFormer), eq. 15",
        needs=("real", "angles"),
        phi=False,
        cases=ROTATED,
        usual=FAR,
    ),
    token_wise(norms, ANY, "Ba et al. 2016, Zhang and Sennrich 2019", cases=NORMED, usual=WIDELY, ours="the stand-ins"),
    token_wise(mlps, ANY, "Shazeer 2020, Hendrycks and Gimpel 2016", cases=SIGMAS, usual=MLPS, ours="the stand-in"),
    token_wise(transformer_formula, f"{ANY}; denominators ≠ 0", PLAIN, cases=LAYERS, usual=MODELS),
    token_wise(decoding, "causal; denominators ≠ 0", DERIVED, one_text, cases=READ, usual=DECODED),
    token_wise(
        generation,
        "an order; denominators ≠ 0",
        PLAIN,
        needs=("ordered", "generate"),
        ways=("equality", "bound"),
        cases=ASKED,
        usual=SPOKEN,
    ),
    theorem(padding, "a field; denominators ≠ 0", PLAIN, cases=PADDED, usual=MUCH),
    theorem(
        softmax_padding,
        "a real, ordered system",
        PLAIN,
        needs=("real", "softmax attention"),
        phi=False,
        cases=HIDDEN,
        usual=CACHED,
    ),
)
