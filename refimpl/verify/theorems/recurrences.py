"""The theorems of recurrent layers: a running state is a sum, and a prompt is an initial state.

The right side is the sum over the positions of prompt and text, without a state; the left side has
only the text and a state.
"""

from __future__ import annotations

import functools
import random
from fractions import Fraction
from typing import Any

from ...arrays import Array
from ...model.rwkv import Rwkv
from ...model.transformer import Model
from ...systems import seed_of
from ...systems.floats import array_namespace, constant
from ..cases import RecurrentCase
from ..implementation import Implementation
from ..theorem import DERIVED, Numbers, Sides, Theorem
from .formulas import norm_formula, positive_part
from .identities import part, tokens


def problem(case: RecurrentCase, numbers: Numbers) -> tuple[list[Array], dict[str, Array], dict[str, Array]]:
    """The arguments of a recurrence, its options S and u, and its options a and b, by token."""
    n, d, m = case.M + case.n, case.d, case.m
    arrays = [numbers.draw(*case.heads, n, width) for width in (d, d, d, m)]
    options = {"S": numbers.draw(*case.heads, d, m)} if case.start else {}
    options |= {"u": numbers.draw(d)} if case.bonus else {}
    return arrays, options, {name: numbers.draw(*case.heads, n, d) for name in ("a", "b") if case.turned}


def recurrence_eq_sum(case: RecurrentCase, numbers: Numbers, impl: Implementation) -> Sides:
    """S_t = (Diag(w_t) + b_t a_tᵀ) S_{t-1} + k_t v_tᵀ, read before or after writing, is a sum."""
    arrays, options, turned = problem(case, numbers)
    (o, S), (want, end) = (form(*arrays, **options, **turned) for form in (impl.recurrence, impl.recurrence_sum))
    yield "o", o, want
    yield "S", S, end


def recurrence_split(case: RecurrentCase, numbers: Numbers, impl: Implementation) -> Sides:
    """A prompt is an initial state: a text read from it gives the sum over prompt and text.

    Prompt and text together are split at every position, long ones at two.
    """
    arrays, options, turned = problem(case, numbers)
    N = case.M + case.n
    want, end = impl.recurrence_sum(*arrays, **options, **turned)

    def read(start: int, stop: int, **past: Any) -> Any:
        rank_one = dict(zip(turned, part(turned.values(), start, stop), strict=True))
        return impl.recurrence(*part(arrays, start, stop), **options | past, **rank_one)

    for t in (case.M, N - 1) if N > 16 else range(N + 1):
        first, middle = read(0, t)
        rest, last = read(t, N, S=middle)
        yield f"split at {t}: o", tokens(first, rest), want
        yield f"split at {t}: S", last, end


def wkv4_eq_sum(case: RecurrentCase, numbers: Numbers, impl: Implementation) -> Sides:
    """RWKV-4's running quotient is a quotient of sums; a prompt is its initial state."""
    w, u = numbers.draw(case.d), numbers.draw(case.d)
    k, v = (numbers.draw(*case.heads, case.M + case.n, case.d) for _ in range(2))
    state = tuple(numbers.draw(*case.heads, case.d) for _ in range(3)) if case.start else None
    if state:  # a denominator is a sum of exponentials
        num, den, exponent = state
        state = num, den * den, exponent
    want, end = impl.wkv4_sum(w, u, k, v, state=state)
    o, after = impl.wkv4(w, u, k, v, state=state)
    _, middle = impl.wkv4(w, u, k[..., : case.M, :], v[..., : case.M, :], state=state)
    text, last = impl.wkv4(w, u, k[..., case.M :, :], v[..., case.M :, :], state=middle)
    yield "o", o, want
    yield "o after a prompt", text, want[..., case.M :, :]
    for i, name in enumerate(("num", "den", "exponent")):
        yield name, after[i][..., None, :], end[i][..., None, :]
        yield f"{name} after a prompt", last[i][..., None, :], end[i][..., None, :]


def rwkv_problem(case: RecurrentCase, numbers: Numbers) -> tuple[Model, Any]:
    """A model, and the prompt and text."""
    heads = case.heads[0] if case.heads else 1
    ranks = (case.m,) * (4 * (case.version == "7"))
    config = Rwkv(case.version, case.layers, case.d * heads, heads, case.m, case.vocabulary, ranks)
    weights = {name: numbers.draw(*shape) for name, shape in config.shapes.items()}
    N = case.M + case.n
    text: Any = numbers.integers(0, case.vocabulary - 1, N) if case.vocabulary else numbers.draw(N, config.width)
    return Model(config, weights), text


def rwkv_state(case: RecurrentCase, numbers: Numbers, impl: Implementation) -> Sides:
    """An RWKV model, given the states after a prompt, gives its output on prompt and text."""
    model, text = rwkv_problem(case, numbers)
    want, end = impl.transformer(model, text, form="sum")
    _, states = impl.transformer(model, text[: case.M])
    o, last = impl.transformer(model.with_biases(states), text[case.M :])
    yield "output", o, want[case.M :, :]
    for i, (a, b) in enumerate(zip(last, end, strict=True)):
        for name in b.parts:
            yield f"layer {i}: {name}", *(x.parts[name] if name == "S" else x.parts[name][None, :] for x in (a, b))
        yield f"layer {i}: position", a.position, b.position


def logistic(x: Any) -> Any:
    return 1 / (1 + array_namespace(x).exp(-x))


def time_mixing(case: RecurrentCase, w: dict[str, Any], x: dict[str, Any], past: dict[str, Any]) -> Any:
    """One token through the time mixing of a layer, head after head; `past` is changed."""
    r, k, v = (x[name] @ w[f"W_{name}"] for name in "RKV")
    xp, heads, version = array_namespace(r), case.heads[0] if case.heads else 1, case.version
    if version == "4":
        own, decay = xp.exp(w["bonus"] + k), xp.exp(w["decay"])
        o = (past.get("num", 0) + own * v) / (past.get("den", 0) + own)
        past["num"] = decay * past.get("num", 0) + xp.exp(k) * v
        past["den"] = decay * past.get("den", 0) + xp.exp(k)
        return (logistic(r) * o) @ w["W_O"]
    decay, bonus = w["decay"], w["bonus"]
    if version == "7":
        low = xp.tanh(x["W"] @ w["W_decay_1"]) @ w["W_decay_2"]
        decay = xp.exp(-constant(r, Fraction(606531, 10**6)) * logistic(decay + low))
        rate = logistic(w["rate"] + x["A"] @ w["W_rate_1"] @ w["W_rate_2"])
        removed, k = k * w["removal"], k * (1 + (rate - 1) * w["replacement"])
        if "blend" in w:
            v = v + (past["first"] - v) * logistic(w["blend"] + x["V"] @ w["W_blend_1"] @ w["W_blend_2"])
        past["first"] = v
    epsilon, outputs = Fraction(64 if version == "7" else 1, 10**5), []
    for h in range(heads):
        at = slice(h * case.d, (h + 1) * case.d)
        R, K, V = r[:, at], k[:, at], v[:, at]
        S, new = past.get(f"S{h}", 0 * xp.matrix_transpose(K) @ V), xp.matrix_transpose(K) @ V
        if version == "7":
            key = removed[:, at] / xp.sqrt(xp.sum(removed[:, at] * removed[:, at], axis=-1, keepdims=True))
            past[f"S{h}"] = decay[0, at, None] * S - xp.matrix_transpose(key * rate[:, at]) @ (key @ S) + new
            direct = xp.sum(R * K * bonus[h, :], axis=-1, keepdims=True) * V
            o = R @ past[f"S{h}"]
        else:
            o, direct = R @ S + xp.sum(R * bonus[h] * K, axis=-1, keepdims=True) * V, 0
            past[f"S{h}"] = (decay[h] if version == "5.1" else decay[h, :, None]) * S + new
        outputs.append(norm_formula("layer", o, w["gain_heads"][at], w["offset_heads"][at], epsilon) + direct)
    o = xp.concat(outputs, axis=-1)
    if version == "5.2":
        gate = x["G"] @ w["W_G"]
        o = o * gate * logistic(gate)
    return (o * (logistic(x["G"] @ w["W_G_1"]) @ w["W_G_2"]) if version == "7" else o) @ w["W_O"]


def rwkv_formula(case: RecurrentCase, numbers: Numbers, impl: Implementation) -> Sides:
    """An RWKV model is its formula, token after token and head after head."""
    model, text = rwkv_problem(case, numbers)
    got, _ = impl.transformer(model, text)
    outputs, pasts = [], [dict[str, Any]() for _ in range(case.layers)]
    for t in range(case.M + case.n):
        own = model.weights
        x = own["embedding"][text[t] : text[t] + 1, :] if case.vocabulary else text[t : t + 1, :]
        x, first = norm_formula("layer", x, own["gain_0"], own["offset_0"]), dict[str, Any]()
        for i, past in enumerate(pasts):
            w, past["first"] = model.layer_weights(i), first.get("first")

            def mixed(y: Any, before: Any, name: str, w: Any = w) -> Any:
                """μ of a token and 1 − μ of the one before it; in version 7 the other way round."""
                share = 1 - w[f"mix_{name}"] if case.version == "7" else w[f"mix_{name}"]
                return share * y + (1 - share) * before

            y = norm_formula("layer", x, w["gain_1"], w["offset_1"])
            inputs = {name: mixed(y, past.get("time", 0 * y), name) for name in "RKVGWA" if f"mix_{name}" in w}
            x, past["time"] = x + time_mixing(case, w, inputs, past), y
            first = first or dict(past)
            y, before = norm_formula("layer", x, w["gain_2"], w["offset_2"]), past.get("channel", 0 * x)
            hidden = positive_part(mixed(y, before, "up") @ w["W_up"]) ** 2 @ w["W_down"]
            x = x + (hidden if case.version == "7" else logistic(mixed(y, before, "gate") @ w["W_gate"]) * hidden)
            past["channel"] = y
        x = norm_formula("layer", x, own["gain"], own["offset"])
        outputs.append(x @ own["unembedding"] if case.vocabulary else x)
    yield "output", got, tokens(*outputs)


# In a quick run, systems that round see every second of these.
MATRICES = (
    RecurrentCase(1, 2, 3, 2, heads=(2,), start=True, turned=True),
    RecurrentCase(0, 0, 2, 3, start=True, bonus=True),
    RecurrentCase(2, 3, 2, 3, start=True, bonus=True),
    RecurrentCase(2, 3, 3, 1, turned=True),
    RecurrentCase(1, 1, 1, 2, heads=(3, 2), start=True, bonus=True, turned=True),
    RecurrentCase(1, 0, 2, 1),
)
QUOTIENTS = (RecurrentCase(2, 4, 2, 0, heads=(2,), start=True), RecurrentCase(0, 1, 1, 0), RecurrentCase(4, 3, 3, 0))
MODELS = (
    RecurrentCase(2, 1, 3, 4, version="4", layers=2, vocabulary=5),
    RecurrentCase(1, 2, 3, 2, heads=(2,), version="5.1", layers=2),
    RecurrentCase(2, 1, 3, 2, heads=(2,), version="5.2", layers=2),
    RecurrentCase(0, 2, 3, 2, heads=(1,), version="7", vocabulary=3),
    RecurrentCase(2, 1, 3, 2, heads=(2,), version="7", layers=2),
)
WRITTEN = (
    RecurrentCase(0, 2, 2, 3, version="4", layers=2, vocabulary=3),
    RecurrentCase(0, 2, 2, 3, heads=(2,), version="5.1"),
    RecurrentCase(0, 2, 2, 3, heads=(2,), version="5.2", layers=2),
    RecurrentCase(0, 3, 3, 2, heads=(1,), version="7", vocabulary=3),
    RecurrentCase(0, 2, 2, 3, heads=(2,), version="7", layers=3),
)
# Shapes that people use
LONG_WRITTEN = (
    tuple(RecurrentCase(5, 3, 13, 66, heads=(5,)[: v != "4"], version=v) for v in ("4", "5.1", "5.2", "7")),
)
LONG_MATRICES = (
    (
        RecurrentCase(130, 129, 3, 2, start=True, bonus=True),
        RecurrentCase(128, 130, 2, 3, turned=True, start=True),
        RecurrentCase(100, 200, 3, 1),
    ),
    (
        RecurrentCase(3, 4, 65, 2, start=True, turned=True),
        RecurrentCase(20, 13, 2, 66, heads=(8,), start=True, bonus=True),
        RecurrentCase(3, 5, 64, 64, heads=(5,), bonus=True),
    ),
)
LONG_QUOTIENTS = ((RecurrentCase(66, 3, 3, 0, heads=(5,), start=True), RecurrentCase(5, 64, 66, 0)),)
LONG_MODELS = tuple(
    tuple(RecurrentCase(M, 3, d, m, heads=heads[: version != "4"], version=version) for M, d, m, heads in shapes)
    for version, *shapes in (
        ("4", (66, 9, 5, ()), (5, 66, 65, ())),
        ("5.1", (66, 3, 5, (3,)), (5, 13, 66, (5,))),
        ("5.2", (66, 3, 5, (3,)), (5, 13, 66, (5,))),
        ("7", (33, 3, 5, (3,)), (5, 13, 6, (5,))),
    )
)


def more_matrices(seed: int) -> tuple[RecurrentCase, ...]:
    rng = random.Random(seed_of("recurrences", seed))

    def draw() -> RecurrentCase:
        sizes = rng.randint(0, 6), rng.randint(0, 6), rng.randint(1, 4), rng.randint(0, 4)
        start, bonus, turned = (rng.random() < 0.6 for _ in range(3))
        return RecurrentCase(*sizes, rng.choice([(), (2,), (2, 3)]), start, bonus, turned)

    return tuple(draw() for _ in range(20))


def more_quotients(seed: int) -> tuple[RecurrentCase, ...]:
    return tuple(RecurrentCase(M, n, 2, 0, start=M % 2 == 0) for M, n in ((0, 7), (5, 4), (6, 0), (9, 9)))


def more_models(seed: int) -> tuple[RecurrentCase, ...]:
    return tuple(
        RecurrentCase(M, n, 3, 4, heads=(2,) * (version != "4"), version=version, layers=layers)
        for version in ("4", "5.1", "5.2", "7")
        for M, n, layers in ((5, 3, 2), (1, 4, 3), (4, 1, 1))
    )


def matrix(case: RecurrentCase) -> bool:
    return not case.version


def model(case: RecurrentCase) -> bool:
    return bool(case.version)


theorem = functools.partial(Theorem.of, phi=False, group="recurrences")
ring = functools.partial(
    theorem, needs=("ring", "a recurrence"), cases=MATRICES, usual=LONG_MATRICES, more=more_matrices
)
wkv4 = functools.partial(
    theorem, needs=("real", "RWKV-4's quotient"), cases=QUOTIENTS, usual=LONG_QUOTIENTS, more=more_quotients
)
rwkv = functools.partial(theorem, needs=("real", "RWKV"), cases=MODELS, usual=LONG_MODELS, more=more_models)
OURS = "the statement; the sum, which is the definition"
ORDER = 7
THEOREMS = (
    ring(recurrence_eq_sum, "none", "RWKV-5, -6, -7: Peng et al. 2024, 2025", matrix, ours=OURS),
    ring(recurrence_split, "none", DERIVED, matrix),
    wkv4(wkv4_eq_sum, "none", "RWKV-4: Peng et al. 2023", matrix, ours=OURS),
    rwkv(rwkv_state, "none", DERIVED, model),
    rwkv(
        rwkv_formula,
        "none",
        "Peng et al. 2023, 2024, 2025",
        model,
        cases=WRITTEN,
        usual=LONG_WRITTEN,
        more=lambda seed: MODELS,
    ),
)
