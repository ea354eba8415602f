"""Each catalogued mistake, planted in a kernel, is found and named; no right kernel is wrong.

The planted kernels are the formula with the wrong step, in NumPy or torch. The right ones are
written here a second time, token by token. The command of the README tries each mistake once, on
texts of up to SHORT tokens; all numbers, conventions and lengths, and torch, are for CI.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from refimpl import Float
from refimpl.crosscheck.check import check_dtype
from refimpl.crosscheck.diagnose import Trial, look_alikes
from refimpl.crosscheck.families.linear_attention import LinearAttention
from refimpl.crosscheck.judge import expect, judge
from refimpl.crosscheck.mistakes import MISTAKES, Mistake, all_families, changed_convention
from refimpl.crosscheck.plan import Case
from refimpl.crosscheck.subject import Function
from refimpl.systems.array import host

all_families()
KNOWN = MISTAKES[LinearAttention]
SHORT = 129
STATE = "q, k, v, S, z, position -> o, S, z"
ELU = {"phi": "elu+1"}
SPECS = {
    "plain": {},
    "elu+1": ELU,
    "scale": {**ELU, "scale": "d"},
    "scores": {**ELU, "scale": "d", "scale_place": "scores", "eps": 1e-6},
    "rope": {**ELU, "rope": "half"},
    "no state": {"call": "q, k, v -> o"},
    "packed": {"call": "q, k, v, heads -> o", "axes": "BT(HD)"},
    "rope before": {**ELU, "rope": "interleaved", "rope_place": "before"},
    "rope without z": {"rope": "half", "normalise": False, "scale": "d"},
    "rope, no state": {**ELU, "rope": "half", "call": "q, k, v -> o"},
    "read before": {**ELU, "reads": "before", "eps": 1e-6},
    "groups": {"sharing": "repeat"},
    "exp": {"phi": "exp"},
}


def spec_of(name, **more):
    return LinearAttention(**{"call": STATE, **SPECS[name], **more})


def planted(steps, library="numpy"):
    """The formula of these steps as a function of a library, with the axes of its specification."""

    def kernel(q, k, v, S=None, z=None, position=0, heads=0):
        x = {"q": q, "k": k, "v": v}
        if heads:
            x = {name: a.reshape(*a.shape[:2], heads, -1).swapaxes(1, 2) for name, a in x.items()}
        B, G, _, d = x["k"].shape
        nothing = {"S": np.zeros((B, G, d, x["v"].shape[3])), "z": np.zeros((B, G, d))}
        x = {name: host(a) for name, a in x.items()} | (nothing if S is None else {"S": host(S), "z": host(z)})
        out = steps.compute(x | {"position": position}, Float(library, steps.dtype))
        o = out["o"].swapaxes(1, 2).reshape(*q.shape[:2], -1) if heads else out["o"]
        return o if S is None else (o, out["S"], out["z"])

    return kernel


@cache
def expected(spec, case):
    """The inputs of a case, whether no kernel rounds there, and what is expected."""
    x, exact = spec.inputs(case, spec.dtype), spec.is_exact(case, spec.dtype)
    return x, exact, expect(spec, case, spec.dtype, x, exact)


def trials(kernel, spec, cases):
    found = []
    for case in cases:
        x, exact, want = expected(spec, case)
        answer = Function(kernel).ask(spec, case, x, spec.dtype)
        found.append(Trial(case, spec.dtype, x, want, answer, tuple(judge(spec, spec.dtype, want, answer, exact))))
    return found


def named(mistake, spec, cases):
    """The mistakes by whose names a kernel with this one is called; None if nothing is wrong."""
    found = trials(planted(mistake.of(spec), spec.library), spec, cases)
    return {x.words for x in look_alikes(spec, found)} if any(t.wrong for t in found) else None


# Mistakes that are the same on the plan, and why
TWO_NAMES = {
    "InputsRounded float16": ("q, k and v are rounded to tfloat32", "both have 11 bits; no input is below 2^-14"),
    "InputsRounded tfloat32": ("q, k and v are rounded to float16", "both have 11 bits; no input is below 2^-14"),
}
NO_STATE = {
    "RotatesBackwards": ("RoPE takes sines for cosines", "a quarter turn more for q and for k cancels"),
    "SinesForCosines": ("RoPE rotates the other way", "a quarter turn more for q and for k cancels"),
}


def label(mistake):
    return mistake.name if mistake.number is None else f"{mistake.name} {mistake.number}"


def names(mistake, spec):
    known = TWO_NAMES | (NO_STATE if "S" not in spec.calls.given else {})
    other = [known[label(mistake)][0]] if label(mistake) in known else []
    return {mistake.said, *other}


def one_of_each():
    """Each class with one number."""
    for name in dict.fromkeys(m.name for m in KNOWN):
        numbers = [m for m in KNOWN if m.name == name]
        yield next((m for m in numbers if m.number == 64), numbers[-1])


def under(specs, mistakes, first):
    """Each mistake under the first conventions that it needs, or under all others."""
    for mistake in mistakes:
        can = [s for s in specs if mistake.needs(spec_of(s))]
        for s in can[:1] if first else can[1:]:
            yield pytest.param(s, mistake, id=f"{label(mistake)}, {s}")


# Those that differ from chunks of 256 or 512 on longer texts alone
LONG = {"LengthCap 1024", "Window 1024", "FirstTokenNotKept", "StateNeverUpdated", "NotCausal"}


@pytest.mark.parametrize("spec, mistake", [*under(SPECS, one_of_each(), first=True)])
def test_a_mistake_is_named(spec, mistake):
    spec = spec_of(spec)
    cases = [case for case in spec.plan() if case.n <= SHORT or label(mistake) in LONG]
    assert named(mistake, spec, cases) == names(mistake, spec)


@pytest.mark.slow
@pytest.mark.parametrize("spec, mistake", [*under(SPECS, one_of_each(), first=False)])
def test_a_mistake_is_named_under_other_conventions(spec, mistake):
    spec = spec_of(spec)
    assert named(mistake, spec, spec.plan()) == names(mistake, spec)


@pytest.mark.slow
@pytest.mark.parametrize("spec, mistake", [*under(SPECS, KNOWN, first=True)])
def test_a_mistake_is_named_in_torch(spec, mistake):
    pytest.importorskip("torch")
    spec = spec_of(spec, library="torch", dtype="float32")
    assert named(mistake, spec, spec.plan()) == names(mistake, spec)
