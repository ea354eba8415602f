"""`verify` checks itself: it rejects what is wrong, and its bounds are those of the formulas.

Everything here is a number 0 or 1, or a small fraction. If a check let a mistake pass, or granted
more than rounding needs, these would differ.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from ...attention.linear_attention import State
from ...systems import GF, MP, QQ, Float, balls
from ...systems.floats import array_namespace
from ..bounds import exact_with_bound, judge
from ..cases import Case, ModelCase
from ..check import Draws, check
from ..identity_testing import at, survival
from ..implementation import Implementation
from ..probes import exact_probe
from ..theorem import DERIVED, Different, Numbers, Sampled, Sides, Theorem
from ..ways import MANY
from . import iclca, identities

FORMS = {t.name: replace(t, certified=False) for t in (*identities.THEOREMS, *iclca.THEOREMS)}
LONG = GF(2**31 - 1)  # in which long texts are fast
CHUNKED, PREFIXES = FORMS["chunked_eq_sum"], (Case(3, 2, 1, mask=2), Case(258, 1, 1, mask=256, chunk=None))
BALLS = 130
WRONG = {  # a theorem, and the function in which a mistake is planted
    "quadratic_eq_sum": "linear_attention_quadratic",
    "recurrent_eq_sum": "linear_attention_recurrent",
    "chunked_eq_sum": "linear_attention_chunked",
    "iclca": "linear_attention_chunked",
}


def off_at_the_end(form: Callable[..., Any]) -> Callable[..., Any]:
    """The form, but the output of the last token is 1 too large."""

    def wrong(*args: Any, **options: Any) -> Any:
        o, after = form(*args, **options)
        last = o[..., -1:, :] + 1
        return array_namespace(o).concat([o[..., :-1, :], last], axis=-2), after

    return wrong


def mistakes_are_seen(case: Case, numbers: Numbers, impl: Implementation) -> Iterator[Any]:
    """`verify` rejects one wrong entry, an error beyond rounding, an exception, and nothing.

    It also rejects a wrong position, and a side that rounds five times as badly as the other.
    """
    draws = Draws(numbers.seed)
    small, prompt, long = (
        (numbers.system, Case(3, 2, 1)),
        (numbers.system, ModelCase(2, 1)),
        (LONG, Case(66, 2, 1, chunk=None)),
    )
    for name, field in WRONG.items():
        broken = replace(impl, **{field: off_at_the_end(getattr(impl, field))})
        for system, each in (prompt,) if name == "iclca" else (small, long):
            verdicts = [check(FORMS[name], system, [each], draws, form).verdict for form in (impl, broken)]
            yield f"{name} at {each}: right and wrong are told apart", int(verdicts == ["EXACT", "FAIL"]), 1
    broken = replace(impl, linear_attention_chunked=off_at_the_end(impl.linear_attention_chunked))
    for each in PREFIXES:
        yield f"chunked_eq_sum at {each}: wrong", int(check(CHUNKED, LONG, [each], draws, broken).verdict == "FAIL"), 1
    yield Different("two draws", numbers.draw(2, 2), numbers.draw(2, 2))
    for name, sides, verdict in (("nothing", nothing, "NOT RUN"), ("an exception", raising, "FAIL")):
        yield name, int(check(theorem_of(sides), numbers.system, [case], draws).verdict == verdict), 1
    for system, bits in ((Float(), 53), (Float("numpy", "float32"), 24), (MP(50), MP(50).ctx.prec)):
        for name, ulps in (("product", 5), ("exp", 45), ("sum", 75), ("scalar product", 75)):
            far = theorem_of(functools.partial(off_by, name, Fraction(-ulps, 2**bits)))
            near = theorem_of(functools.partial(off_by, name, Fraction(0)))
            verdicts = [check(one, system, [case], draws).verdict for one in (near, far)]
            yield f"{name} in {system.label}, {ulps} roundings off", int(verdicts[0] != "FAIL" == verdicts[1]), 1
    for name, by in (("right", 0), ("wrong", 1)):
        rows = theorem_of(functools.partial(last_of_many, by))
        yield f"{BALLS} balls, the last one {name}", int(check(rows, balls(30), [case], draws).verdict == "FAIL"), by
    for name, off, verdict in (("as well", 0, "MEASURED"), ("five times as badly", 2, "FAIL")):
        third = theorem_of(functools.partial(a_third, Fraction(off, 2**25)), ways=("oracle",))
        found = check(third, Float("numpy", "float32"), [case] * MANY, draws)
        yield f"a side that rounds {name}", int(found.verdict == verdict), 1
    probe = exact_probe(Float(), n=3, r=2, m=1, seed=numbers.seed)
    o, after = impl.linear_attention(probe.q, probe.k, probe.v, **probe.options)
    for name, by in (("right", 0), ("wrong", 1)):
        wrong = probe.mismatch(o, replace(after, position=after.position + by))
        yield f"a {name} position", int(wrong is not None), by
    sampled = theorem_of(off_by_ten_standard_errors, ways=("sampled",))
    yield "a mean far from its formula", int(check(sampled, Float(), [case], draws).verdict == "FAIL"), 1


def theorem_of(sides: Any, **options: Any) -> Theorem:
    return Theorem("planted", "", "", "", sides, **{"phi": False} | options)


def nothing(case: Case, numbers: Numbers, impl: Implementation) -> Sides:
    yield "nothing", numbers.draw(0, 2), numbers.draw(0, 2)


def raising(case: Case, numbers: Numbers, impl: Implementation) -> Sides:
    raise RuntimeError("planted")
    yield


def off_by(name: str, off: Fraction, case: Case, numbers: Numbers, impl: Implementation) -> Sides:
    """1, as a product or as exp 0, and the same with an error; or 1 and a sum of 64 terms.

    Only one side of a sum rounds.
    """
    one, error = (numbers.system.convert([[x]]) for x in (1, off))
    xp = array_namespace(one)
    if name in ("product", "exp"):
        right = one * one if name == "product" else xp.exp(0 * one)
        yield name, right + error, right
    else:
        x = numbers.system.convert(np.full((1, 64), 0.125))
        right = xp.sum(x / 8, axis=-1, keepdims=True) if name == "sum" else x @ xp.matrix_transpose(x)
        yield name, one, right + error


def last_of_many(by: int, case: Case, numbers: Numbers, impl: Implementation) -> Sides:
    """Rows of 1, and the same with an error in the last one."""
    left, right = (numbers.system.convert([[1]] * (BALLS - 1) + [[x]]) for x in (1, 1 + by))
    yield "rows", left, right


def a_third(off: Fraction, case: Case, numbers: Numbers, impl: Implementation) -> Sides:
    """1/3, with an error and without; in float32 rounding alone is off by 2^-25/3."""
    third = 1 / numbers.system.convert([[3]])
    yield "1/3", third + numbers.system.convert([[off]]), third


def off_by_ten_standard_errors(case: Case, numbers: Numbers, impl: Implementation) -> Iterator[Sampled]:
    yield Sampled("mean", numbers.system.convert(np.array([-1.0, 1.0] * 5000)), 0.1)


def bounds_are_right(case: Case, numbers: Numbers, impl: Implementation) -> Sides:
    """The bound on rounding is its formula, and an error of more than that is an excess.

        |ô − o| ≤ [γ (A_num + |o| A_den)/|den| + u|o|] / (1 − γ A_den/|den|),   γ = Ku/(1 − Ku)

    K = n + r + 2. The right side is written out for one token that reads a state.
    """
    u, draw = Fraction(1, 2**24), np.random.default_rng(numbers.seed)
    q, k, v, S, z = (Fraction(int(x), 8) for x in (*draw.integers(1, 48, 4), draw.integers(64, 96)))
    S += Fraction(1, 128)  # kv is a multiple of 1/64, so o is not 0, for which any bound is vacuous
    state = State(np.array([[float(S)]]), np.array([float(z)]))
    arrays: list[Any] = [np.array([[float(x)]]) for x in (q, -k, v)]
    exact, bound = exact_with_bound(*arrays, u=u, state=state)
    den, A_den, A_num = q * z - q * k, q * z + q * k, q * S + q * k * v
    o, g = (q * S - q * k * v) / den, 4 * u / (1 - 4 * u)
    want = (g * A_num / den + g * abs(o) * A_den / den + u * abs(o)) / (1 - g * A_den / den)
    yield "o", int(QQ.equal(exact, QQ.convert([[o]]))), 1
    yield "the bound, to 40 bits", round(float(bound[0, 0]) / float(want) * 2**40), 2**40
    for name, ratio, verdict in (("less", Fraction(99, 100), "WITHIN BOUND"), ("more", Fraction(101, 100), "EXCESS")):
        got = QQ.convert([[o + ratio * Fraction(float(bound[0, 0]))]])
        yield f"an error of {name} than the bound", int(judge(got, exact, bound).verdict == verdict), 1
    yield "nan", int(judge(np.array([[math.nan]]), exact, bound).verdict == "EXCESS"), 1
    large = np.array([[2 * abs(float(o)) + 1]])
    yield "a bound larger than the output", int(judge(QQ.convert([[o + 1]]), exact, large).verdict == "VACUOUS"), 1
    yield "δ/(p − Δ)", int(survival(3, 2, 11) == Fraction(1, 3)), 1
    yield "1 + 2s + 3s² at s = 2", at([1, 2, 3], 2, 101), 17


theorem = functools.partial(Theorem.of, ways=("witness",), needs=("field", "a form of attention"), group="verify")
ORDER = 10
THEOREMS = (
    theorem(mistakes_are_seen, "none", DERIVED, cases=(Case(1, 1, 1),)),
    theorem(bounds_are_right, "none: proofs/bounds.v derives the bound", DERIVED, cases=(Case(1, 1, 1),)),
)
