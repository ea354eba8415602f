"""The theorems of ICLCA: a prompt becomes biases.

The two sides are computed independently. The prompted side is the definition, summed over all M + n
positions of prompt and input. The converted side has only the input and the biases.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from ...attention.feature_maps import feature_map
from ...attention.linear_attention import State
from ...model.attention_layers import Config, Rotary, keys_values
from ...model.transformer import Model, norm
from ...systems.array import seed_of
from ...systems.floats import array_namespace
from ..cases import Case, ModelCase
from ..conversion_check import weighted_form
from ..implementation import Implementation
from ..probes import Probe
from ..theorem import DERIVED, Numbers, Sides, Theorem
from .identities import PROBED, WITHIN, draw_probe, large, split_points, states

TURN = ("half", "after", 2)
# Exact systems run the cases of MODELS without roots and exponentials: all but the last two.
TURNED = ModelCase(3, 2, layers=2, width=3, heads=2, rope=TURN)
BEFORE = ModelCase(2, 3, layers=2, d=3, m=2, normalise=False, rope=("interleaved", "before", 2), biased=True, start=5)
PREFIX = ModelCase(3, 1, width=3, heads=2, mask="full", rope=("interleaved", "after", 2), start=-4)
ABSOLUTE = ModelCase(2, 2, layers=2, mask="full", table=7, restart=False, start=3)
GROUPED = ModelCase(1, 1, width=3, heads=4, groups=2, norm="layer_rational", hidden=2, gated=True, vocabulary=5)
PARALLEL = ModelCase(
    2, 1, 2, order="parallel", hidden=2, phi="polynomial(2)", d=1, vocabulary=4, tied=False, batch=(2,)
)
NO_PROMPT = ModelCase(0, 2, order="post", norm="rms_rational", start=2)
GPT = ModelCase(3, 1, 2, 4, 2, phi="elu+1", rope=TURN, norm="layer", hidden=3, activation="gelu", biased=True)
POST = ModelCase(2, 1, 2, 4, 2, 1, phi="elu+1", rope=("half", "before", 2), restart=False, order="post", norm="rms")
LLAMA = replace(POST, hidden=3, activation="silu", gated=True, vocabulary=6)
MODELS = (TURNED, BEFORE, PREFIX, ABSOLUTE, GROUPED, PARALLEL, NO_PROMPT, GPT, LLAMA)
DEEP = (
    ModelCase(2, 1, 2, 2, 2, 1, phi="polynomial(2)", order="post", norm="rms_rational", hidden=2, mask="full"),
    ModelCase(2, 1, layers=3, width=3, heads=2, rope=TURN, norm="layer_rational", hidden=2, gated=True),
)
ONE_LAYER = (
    ModelCase(3, 1, d=4, m=3, rope=("half", "after", 4), start=2),
    ModelCase(2, 1, d=3, m=2, normalise=False, rope=("interleaved", "before", 2), start=-3),
    ModelCase(3, 1, heads=2, groups=1, phi="elu+1", rope=("half", "before", 2), restart=False, norm="layer"),
    ModelCase(2, 1, norm="rms_rational", phi="polynomial(2)"),
)
# Denominators that are sums of positive numbers, so that errors are those of rounding and not of
# one badly conditioned quotient.
ROUNDING = (
    replace(GPT, M=6, n=5, layers=2, width=6, m=3, hidden=6),
    replace(LLAMA, M=6, n=5, width=6, m=3, hidden=6, vocabulary=0),
)
# Shapes that people use: prompts of over 256 and of over 1000 tokens, eight heads and more, grouped
# heads, widths beyond 64, all orders and options. The last group is for floats.
PROMPT = ModelCase(1026, 3, width=66, heads=2, d=3, m=2, rope=TURN, start=90, millions=1, chunk=None)
PROMPTS = (
    PROMPT,
    replace(PROMPT, M=1001, m=65, rope=("interleaved", "before", 2), biased=True, batch=(2,)),
    replace(PROMPT, M=1300, normalise=False, d=66, m=1, rope=None, norm="rms_rational"),
    replace(PROMPT, M=1024, heads=5, table=2000, start=3, millions=0, rope=None, restart=False),
)
# A prompt that is read in three pieces, unless stated otherwise
PIECES = (replace(PROMPT, M=2050, width=5),)
WIDE = ModelCase(257, 3, 2, 65, 8, 2, d=9, m=8, norm="layer_rational", hidden=67, chunk=None)
WIDE = replace(WIDE, rope=("interleaved", "after", 8))
WIDES = (
    WIDE,
    replace(WIDE, M=129, heads=12, groups=6, order="post", norm="rms_rational", gated=True, biased=True),
    replace(WIDE, M=258, order="parallel", vocabulary=131, tied=False, rope=("half", "after", 8)),
    replace(WIDE, M=300, groups=None, gated=True, vocabulary=67, hidden=130),
    replace(WIDE, M=130, mask="full", start=4090),
    replace(WIDE, M=257, mask="full", groups=1, rope=("half", "before", 8), table=400, restart=False),
)
REAL = (
    replace(GPT, M=130, n=3, layers=1, width=66, heads=6, chunk=None),
    replace(LLAMA, M=129, n=3, layers=1, width=65, heads=5, vocabulary=70, chunk=None),
)
# One layer, of vectors
LAYER = replace(PROMPT, M=258)
SINGLE = (
    (LAYER, replace(LAYER, M=257, m=65, rope=("interleaved", "before", 2), norm="layer_rational")),
    (
        replace(LAYER, M=65, heads=8, groups=8, d=5, norm="rms_rational"),
        replace(LAYER, M=1001, heads=12, groups=6, rope=None, restart=False, order="post", norm="layer_rational"),
    ),
)


def more_models(seed: int) -> tuple[ModelCase, ...]:
    """All of MODELS, and twenty shapes drawn from the seed.

    Those with rational norms have one layer, because in ℚ their numbers grow too long.
    """
    rng = random.Random(seed_of("models", seed))

    def draw() -> ModelCase:
        d, heads, real, plain = rng.randint(1, 3), rng.choice([1, 2, 4]), rng.random() < 0.4, rng.random() < 0.5
        phi = rng.choice(["elu+1", "exp", "taylor2"] if real else ["identity", "identity", "polynomial(2)"])
        turned = 2 * rng.randint(0, d // 2) if phi in ("elu+1", "exp", "identity") else 0
        M, n, layers = rng.randint(0, 5), rng.randint(0, 4), rng.randint(1, 2) if plain or real else 1
        width, groups, m = rng.randint(2, 4), rng.choice([None, 1, heads]), rng.randint(1, 3)
        normalise, layout = rng.random() < 0.7, rng.choice(["half", "interleaved"])
        rope = rng.choice([None, (layout, rng.choice(["after", "before"]), turned)])
        order = rng.choice(["pre", "post", "parallel"])
        norm = "none" if plain else rng.choice(["layer", "rms"]) + "_rational" * (not real)
        activation = rng.choice(["gelu", "silu", "relu"]) if real else "quadratic"
        gated, biased, vocabulary, tied = rng.random() < 0.5, rng.random() < 0.5, rng.choice([0, 5]), rng.random() < 0.5
        mask, start = rng.choice(["causal", "full"]), rng.choice([None, rng.randint(-5, 900)])
        attention, hidden = (heads, groups, d, m, phi, normalise, rope), 0 if plain else 2
        case = ModelCase(M, n, layers, width, *attention, order, norm, hidden, activation, gated, biased)
        return replace(case, vocabulary=vocabulary, tied=tied, mask=mask, start=start)

    drawn = (draw() for _ in range(1000))
    return (*MODELS, *itertools.islice((case for case in drawn if case.valid()), 20))


@dataclass(frozen=True)
class Problem:
    """A model, a prompt and an input, drawn for a case; `both` is the prompt, then the input."""

    case: ModelCase
    impl: Implementation
    model: Model
    both: Any

    @classmethod
    def of(cls, case: ModelCase, numbers: Numbers, impl: Implementation) -> Problem:
        model = numbers.model(case)
        if case.start is not None:
            model = replace(model, biases=tuple(draw_state(case, numbers) for _ in range(case.layers)))
        if case.vocabulary:
            count = case.batch[0] if case.batch else 1
            ids = [numbers.integers(0, case.vocabulary - 1, case.M + case.n) for _ in range(count)]
            return cls(case, impl, model, ids if case.batch else ids[0])
        return cls(case, impl, model, numbers.draw(*case.batch, case.M + case.n, case.width))

    def cut(self, first: int, last: int) -> Any:
        """The tokens from `first` to `last` of prompt and input, which are ids or vectors."""
        if not self.case.vocabulary:
            return self.both[..., first:last, :]
        return [row[first:last] for row in self.both] if self.case.batch else self.both[first:last]

    @property
    def prompt(self) -> Any:
        return self.cut(0, self.case.M)

    @property
    def text(self) -> Any:
        return self.cut(self.case.M, self.case.M + self.case.n)

    @property
    def definition(self) -> Any:
        """The form of the prompted side; masked scores where the definition would take seconds."""
        if self.case.phi == "softmax":
            return self.impl.softmax_attention_shifted if large(self.case) else self.impl.softmax_attention
        return self.impl.linear_attention_quadratic if large(self.case) else self.impl.linear_attention

    def prompted(self, form: Any = None, **options: Any) -> Any:
        """The output for the input, by the definition (or another form) over all positions."""
        case = self.case
        mask, form = case.M if case.mask == "full" else "causal", form or self.definition
        o, _ = self.impl.transformer(self.model, self.both, form=form, mask=mask, **options)
        return o[..., case.M :, :]

    def converted(self, **options: Any) -> Model:
        form = {} if large(self.case) else {"form": self.impl.linear_attention_recurrent}
        asked = {"mask": self.case.mask, "restart": self.case.restart}
        model: Model = self.impl.convert(self.model, self.prompt, **asked, **form, **options)
        return model

    def read(self, converted: Model, **options: Any) -> Any:
        """The output of the converted model on the input alone."""
        form = {} if large(self.case) else {"form": self.impl.linear_attention_chunked}
        return self.impl.transformer(converted, self.text, **form, **options)[0]


def draw_state(case: ModelCase, numbers: Numbers) -> State:
    groups, r = case.groups or case.heads, feature_map(case.phi)(numbers.draw(1, case.d)).shape[-1]
    return State(numbers.draw(groups, r, case.m), numbers.draw(groups, r), case.position)


def iclca(case: ModelCase, numbers: Numbers, impl: Implementation) -> Sides:
    """The converted model gives, on the input alone, the model's output on prompt and input."""
    problem = Problem.of(case, numbers, impl)
    yield "output", problem.read(problem.converted()), problem.prompted()


def iclca_prefix(case: ModelCase, numbers: Numbers, impl: Implementation) -> Sides:
    """ICLCA also holds if the prompt's tokens all see each other, and the input is causal."""
    yield from iclca(case, numbers, impl)


def iclca_error(case: ModelCase, numbers: Numbers, impl: Implementation) -> Sides:
    """Over all instances, the converted model has at most twice the error of the prompted one."""
    yield from iclca(case, numbers, impl)


def iclca_layers(case: ModelCase, numbers: Numbers, impl: Implementation) -> Sides:
    """At any depth, a layer that is given equal inputs on both sides gives equal outputs.

    After each layer both sides are compared, and then given the same new activations.
    """
    problem, seen = Problem.of(case, numbers, impl), {}
    fresh = [numbers.draw(*case.batch, case.M + case.n, case.width) for _ in range(case.layers)]

    def record_and_renew(side: str, first: int, last: int) -> Callable[[int, Any], Any]:
        def between(i: int, x: Any) -> Any:
            seen[side, i] = x
            return fresh[i][..., first:last, :]

        return between

    want = problem.prompted(between=record_and_renew("prompted", 0, case.M + case.n))
    converted = problem.converted(between=record_and_renew("prompt", 0, case.M))
    got = problem.read(converted, between=record_and_renew("input", case.M, case.M + case.n))
    for i in range(case.layers):
        yield f"prompt after layer {i}", seen["prompt", i], seen["prompted", i][..., : case.M, :]
        yield f"input after layer {i}", seen["input", i], seen["prompted", i][..., case.M :, :]
    yield "output", got, want


def iclca_bias(case: ModelCase, numbers: Numbers, impl: Implementation) -> Sides:
    """b'_KV = R_{-M} b_KV + Σ R_{j-M} φ(k'_j) v'_jᵀ; for RoPE after φ, b'_D = b_D + Σ φ(k'_j)."""
    problem, by = Problem.of(case, numbers, impl), -case.M if case.restart else 0
    model, start = problem.model, case.position
    weights = model.layer_weights(0)
    gain = [weights[name] for name in ("gain_1", "offset_1") if name in weights]
    y = problem.prompt
    if case.order != "post":
        y = norm(y, *gain, kind=case.norm, epsilon=model.config.epsilon)
    k, v = keys_values(cast(Config, model.config), weights, y)
    phi, rope = model.kernel.maps[1], model.kernel.rope
    at, xp = [start + j + by for j in range(case.M)], array_namespace(v)
    before, after = (rope if rope and rope.placement == p else lambda x, _: x for p in ("before", "after"))
    g = phi(before(k, at))
    f = after(g, at)
    S, z = xp.sum(f[..., :, None] * v[..., None, :], axis=-3), xp.sum(g, axis=-2)
    if model.biases:
        old = model.biases[0]
        S = S + xp.matrix_transpose(after(before(xp.matrix_transpose(old.S), [by] * case.m), [by] * case.m))
        z = z + before(old.z[..., None, :], [by])[..., 0, :]
    yield from states("bias", first_bias(problem.converted()), State(S, z, start + case.M + by))


def first_bias(model: Model) -> State:
    (bias, *_) = model.biases or ()
    assert isinstance(bias, State)
    return bias


def iclca_linear(case: ModelCase, numbers: Numbers, impl: Implementation) -> Sides:
    """Without φ, denominator and positions, b'_KV = b_KV + W_Kᵀ X'ᵀ X' W_V."""
    problem = Problem.of(case, numbers, impl)
    X, W_K, W_V = problem.prompt, problem.model.weights["layers.0.W_K"], problem.model.weights["layers.0.W_V"]
    transpose, (old,) = array_namespace(X).matrix_transpose, problem.model.biases or (None,)
    want = (transpose(W_K) @ transpose(X) @ X @ W_V)[None, ...]
    yield "b_KV", first_bias(problem.converted()).S, want if old is None else old.S + want


def composition(case: ModelCase, numbers: Numbers, impl: Implementation) -> Sides:
    """Converting P1 and then P2 is converting P1 ++ P2, for all splits, and in many pieces."""
    problem, convert = Problem.of(case, numbers, impl), functools.partial(impl.convert, restart=case.restart)
    at_once = problem.converted()
    for t in [case.M // 3] if large(case) else range(case.M + 1):
        both = convert(convert(problem.model, problem.cut(0, t)), problem.cut(t, case.M))
        yield from model_states(f"split at {t}", both, at_once)
    chunk = case.chunk or PIECE
    yield from model_states("streamed", convert(problem.model, problem.prompt, chunk=chunk), at_once)
    pieces = (problem.cut(a, min(a + chunk, case.M)) for a in range(0, case.M, chunk))
    if not case.batch:
        yield from model_states("from an iterator", convert(problem.model, pieces), at_once)


def iclca_removal(case: ModelCase, numbers: Numbers, impl: Implementation) -> Sides:
    """The prompt converted last can be removed again, at any strength.

    It is the last of three.
    """
    problem, strength = Problem.of(case, numbers, impl), numbers.draw()
    ends, options = (0, case.M // 3, case.M // 2, case.M), {"mask": case.mask, "restart": case.restart}
    *earlier, last = (problem.cut(a, b) for a, b in itertools.pairwise(ends))
    before = problem.model
    for prompt in earlier:
        before = impl.convert(before, prompt, **options)
    for name, λ in (("removed", 1), ("removed at strength λ", strength)):
        after = impl.convert(before, last, strength=λ, **options)
        yield from model_states(name, impl.unconvert(after, last, strength=λ, **options), before)


def iclca_strength(case: ModelCase, numbers: Numbers, impl: Implementation) -> Sides:
    """Biases scaled by λ count each prompt token λ times for the input.

    The prompted side counts each prompt token λ times for the input, and once for the prompt.
    """
    problem, λ = Problem.of(case, numbers, impl), numbers.draw()
    want = problem.prompted(form=weighted_form(problem.definition, case.M, λ))
    yield "output at strength λ", problem.read(problem.converted(strength=λ)), want


def iclca_join(case: ModelCase, numbers: Numbers, impl: Implementation) -> Sides:
    """In one layer, biases converted independently join by a shift: R_{-M2} b_1 + b_2."""
    problem, half = Problem.of(case, numbers, impl), case.M // 2
    prompts = (problem.cut(0, half), problem.cut(half, case.M))
    b1, b2 = (first_bias(impl.convert(problem.model, P)) for P in prompts)
    kernel, M2 = problem.model.kernel, case.M - half
    both = impl.shift(impl.join(b1, b2, kernel, origin=-M2), -M2, kernel)
    yield from states("joined", both, first_bias(problem.converted()))


PIECE = 130  # tokens of a long prompt that are streamed at a time


def model_states(name: str, left: Model, right: Model) -> Sides:
    """The biases of all layers are equal."""
    pairs: Sequence[tuple[Any, Any]] = list(zip(left.biases or (), right.biases or (), strict=True))
    for i, (a, b) in enumerate(pairs):
        yield from states(f"{name}: layer {i}", a, b)


def iclca_probes(case: Case, numbers: Numbers, impl: Implementation) -> Sides:
    """Where no operation rounds, the converted model equals the definition over ℚ at every split.

    The model of one layer selects q, k, v from x = [q k v 0] and writes o in place of the 0.
    """
    probe = draw_probe(case, numbers)
    model, x = selecting_model(numbers.system, probe, case)
    xp = array_namespace(x)
    form = {} if large(case) else {"form": impl.linear_attention_chunked}
    for M in [M for M in split_points(case) if case.n > M] or [case.n]:  # after all tokens nothing is compared
        y = impl.transformer(impl.convert(model, x[:M, :]), x[M:, :], **form)[0]
        o = xp.reshape(y[:, -2 * case.m :], (case.n - M, 2, case.m))
        yield f"after {M} tokens: o", xp.moveaxis(o, -2, -3), probe.expected[..., M:, :]


def selecting_model(system: Any, probe: Probe, case: Case) -> tuple[Model, Any]:
    """A model that selects the arrays of a probe from its input x, and x."""
    xp, n = array_namespace(probe.q), case.n
    parts = [xp.reshape(xp.moveaxis(y, -3, -2), (n, 2 * y.shape[-1])) for y in (probe.q, probe.k, probe.v, 0 * probe.v)]
    *ends, width = itertools.accumulate((y.shape[-1] for y in parts), initial=0)
    eye = np.eye(width, dtype=int)
    select = [*(eye[:, a:b] for a, b in itertools.pairwise(ends)), eye[ends[3] :, :]]
    names = ("W_Q", "W_K", "W_V", "W_O")
    weights = {f"layers.0.{name}": system.convert(w) for name, w in zip(names, select, strict=True)}
    rope, rotary = probe.options["kernel"].rope, None
    if rope is not None:
        rotary = Rotary(2 * (case.d // 2), rope.layout, rope.placement, None)
        weights["rope.c"], weights["rope.s"] = (part[0, :] for part in rope.table([1]))
    state, normalise = probe.options.get("state"), case.normalise
    config = Config(1, width, 2, None, case.d, case.m, "identity", normalise, rope=rotary, norm="none")
    return Model(config, weights, None if state is None else (state,)), xp.concat(parts, axis=-1)


def causal(case: ModelCase) -> bool:
    return case.mask == "causal"


def one_layer(case: ModelCase) -> bool:
    return case.layers == 1 and not case.vocabulary and causal(case)


def independent(case: ModelCase) -> bool:
    return one_layer(case) and case.restart and case.start is None


def rounding_again(seed: int) -> tuple[ModelCase, ...]:
    """The same shapes with other chunks, which are part of the seed, and so with other numbers."""
    return tuple(replace(case, chunk=chunk) for case in ROUNDING for chunk in range(3, 13))


CHEN = "Chen et al. 2024, Theorem 4.5"
SIMPLE = (
    ModelCase(2, 1, width=2, d=1, m=3, normalise=False, start=0),
    ModelCase(3, 1, width=3, d=2, m=2, normalise=False),
)
PROBES = (
    Case(5, 4, 3, start=3, rope=("half", "after", 4)),
    Case(4, 2, 1, rope=("interleaved", "after", 2)),
    Case(6, 3, 2, normalise=False),
)
GO_ON = "positions that go on"
ASSUMES = f"causal; relative positions, or {GO_ON}; a denominator that is a sum over tokens, and not 0"
ANY_PROMPT = ASSUMES.replace("causal", "prompt activations do not depend on the input")

COMPOSED = (replace(TURNED, M=2, chunk=1), replace(BEFORE, chunk=1), LLAMA)
MEASURED = ASSUMES + "; measured, not proved"
LINEAR = "one head; φ = identity; unnormalised; no positions"
JOINED = ModelCase(3, 1, rope=TURN), ModelCase(2, 1, normalise=False, rope=("half", "before", 2))
APART = tuple(tuple(replace(case, start=None, millions=0) for case in group) for group in SINGLE)

theorem = functools.partial(
    Theorem.of, cases=MODELS, more=more_models, usual=(WIDES, REAL), needs=("field", "a model"), group="ICLCA"
)
few = functools.partial(theorem, more=lambda seed: ())
PLAIN = ModelCase(1026, 3, width=66, d=65, m=2, normalise=False, start=0, chunk=None)
ORDER = 2
THEOREMS = (
    theorem(
        iclca,
        ASSUMES,
        CHEN,
        causal,
        usual=(PROMPTS, WIDES, REAL),
        ours=f"conversion on top of biases; grouped queries; {GO_ON}",
    ),
    theorem(
        iclca_layers, ANY_PROMPT, CHEN, cases=(*DEEP, GPT, LLAMA), ours="the check by new activations after each layer"
    ),
    theorem(
        iclca_prefix,
        ANY_PROMPT,
        "our extension of Chen et al. 2024",
        lambda case: case.mask == "full",
        cases=(ABSOLUTE, PREFIX),
        ours="all of it; the paper's assumption is a causal mask",
    ),
    theorem(
        iclca_bias,
        ASSUMES,
        CHEN,
        one_layer,
        cases=ONE_LAYER,
        usual=SINGLE,
        ours=f"positions from 0; RoPE before the kernel; {GO_ON}",
    ),
    few(
        iclca_linear,
        LINEAR,
        CHEN.replace("4.5", "4.1"),
        cases=SIMPLE,
        usual=((PLAIN, replace(PLAIN, M=257, d=3, m=129)),),
    ),
    theorem(
        composition, ASSUMES, DERIVED, causal, name="iclca_composition", cases=COMPOSED, usual=(PROMPTS, WIDES, PIECES)
    ),
    theorem(iclca_removal, ANY_PROMPT + "; last in, first out", DERIVED, cases=(TURNED, replace(PREFIX, layers=2))),
    theorem(iclca_strength, ANY_PROMPT, DERIVED, cases=(ABSOLUTE, TURNED, LLAMA)),
    theorem(iclca_join, "one layer; " + ASSUMES, DERIVED, independent, cases=JOINED, usual=APART),
    few(iclca_probes, WITHIN, DERIVED, ways=("probe",), cases=PROBES, usual=(PROBED[0][1:2],)),
    theorem(iclca_error, MEASURED, "our measurement", ways=("oracle",), cases=ROUNDING, more=rounding_again, usual=()),
)
