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
from refimpl.crosscheck.mistakes import MISTAKES, all_families
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
    "packed": {"call": "q, k, v, heads=heads -> o", "axes": "BT(HD)"},
    "rope before": {**ELU, "rope": "interleaved", "rope_place": "before"},
    "rope without z": {"rope": "half", "normalise": False, "scale": "d"},
    "rope, no state": {**ELU, "rope": "half", "call": "q, k, v -> o"},
    "read before": {**ELU, "reads": "before", "eps": 1e-6},
    "groups": {"sharing": "repeat"},
    "exp": {"phi": "exp"},
}


def spec_of(name, **more):
    return LinearAttention(**{"call": STATE, **SPECS[name], **more})


def unpacked(x, heads):
    """BT(HD) as BTHD."""
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads)


def packed(x):
    return x.reshape(*x.shape[:2], x.shape[2] * x.shape[3])


def planted(steps, library="numpy"):
    """The formula of these steps as a function of a library, with the axes of its specification."""

    def kernel(q, k, v, S=None, z=None, position=0, heads=0):
        x = {"q": q, "k": k, "v": v}
        if heads:
            x = {name: unpacked(a, heads).swapaxes(1, 2) for name, a in x.items()}
        B, G, _, d = x["k"].shape
        nothing = {"S": np.zeros((B, G, d, x["v"].shape[3])), "z": np.zeros((B, G, d))}
        x = {name: host(a) for name, a in x.items()} | (nothing if S is None else {"S": host(S), "z": host(z)})
        out = steps.compute(x | {"position": position}, Float(library, steps.dtype))
        o = packed(out["o"].swapaxes(1, 2)) if heads else out["o"]
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
    "PositionsWrapped 512": ("RoPE begins again in each chunk of 512", "every text begins at position 0"),
    "RotatesBackwards": ("RoPE takes sines for cosines", "a quarter turn more for q and for k cancels"),
    "HeadForPosition": ("--rope none, where half was stated", "q and k of a head are turned by the same"),
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
        yield next((m for m in numbers if m.number == 64), numbers[0])


# Those that show, or differ from chunks of 256 or 512, on longer texts alone
LONG = {"LengthCap 512", "FirstTokenNotKept", "StateNeverUpdated", "NotCausal"}
LONG_WITHOUT_POSITION = {"PositionsClamped 512", "PositionsWrapped 512", "PositionsRounded bfloat16"}


def under(specs, mistakes, first):
    """Each mistake under the first conventions that it needs, or under all others."""
    for mistake in mistakes:
        can = [s for s in specs if mistake.needs(spec_of(s))]
        for s in can[:1] if first else can[1:]:
            marks = [pytest.mark.slow] if label(mistake) in LONG else []
            yield pytest.param(s, mistake, id=f"{label(mistake)}, {s}", marks=marks)


def check_name(spec, mistake):
    spec = spec_of(spec)
    long = LONG if "position" in spec.calls.given else LONG | LONG_WITHOUT_POSITION
    cases = [case for case in spec.plan() if case.n <= SHORT or label(mistake) in long]
    assert named(mistake, spec, cases) == names(mistake, spec)


@pytest.mark.parametrize("spec, mistake", [*under(SPECS, one_of_each(), first=True)])
def test_a_mistake_is_named(spec, mistake):
    check_name(spec, mistake)


@pytest.mark.slow
@pytest.mark.parametrize("spec, mistake", [*under(SPECS, one_of_each(), first=False)])
def test_a_mistake_is_named_under_other_conventions(spec, mistake):
    check_name(spec, mistake)


@pytest.mark.slow
@pytest.mark.parametrize("spec, mistake", [*under(SPECS, KNOWN, first=True)])
def test_a_mistake_is_named_in_torch(spec, mistake):
    pytest.importorskip("torch")
    spec = spec_of(spec, library="torch", dtype="float32")
    assert named(mistake, spec, spec.plan()) == names(mistake, spec)


# A mistake, its number, the conventions, and the condition under which it shows
CONDITIONS = [
    ("LostBetweenChunks", 16, "plain", lambda c: c.n > 16),
    ("LostBetweenChunks", 64, "plain", lambda c: c.n > 64),
    ("DividesByChunk", 128, "plain", lambda c: c.n > 128),
    ("PartialChunkZero", 64, "plain", lambda c: c.n % 64),
    ("PaddingCounted", 16, "elu+1", lambda c: c.n % 16),
    ("NotCausal", None, "plain", lambda c: c.n > 1),
    ("OddLengthDropped", None, "plain", lambda c: c.n % 2),
    ("NoFirstState", None, "plain", lambda c: c.start),
    ("StateOfRow0", None, "plain", lambda c: c.start and c.batch > 1),
    ("StateOfHead0", None, "plain", lambda c: c.start and c.heads > 1),
    ("SquareStateTransposed", None, "plain", lambda c: c.start and c.d == c.m),
    ("KeysOfHead0", None, "plain", lambda c: c.heads > 1),
    ("DenominatorOverHeads", None, "plain", lambda c: c.heads > 1),
    ("KeysOfRow0", None, "plain", lambda c: c.batch > 1),
    ("PositionIgnored", None, "rope", lambda c: c.position),
    ("PositionsClamped", 4096, "rope", lambda c: c.position),
    ("PositionsWrapped", 2048, "rope", lambda c: c.position),
    ("InputsRounded", "tfloat32", "plain", lambda c: c.values == "fine"),
    ("AbsoluteDenominator", None, "plain", lambda c: c.values == "whole"),
    pytest.param("LostBetweenChunks", 512, "plain", lambda c: c.n > 512, marks=pytest.mark.slow),
    pytest.param("LengthCap", 1024, "plain", lambda c: c.n > 1024, marks=pytest.mark.slow),
    pytest.param("Window", 1024, "rope", lambda c: c.n > 1024, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("name, number, spec, condition", CONDITIONS)
def test_the_plan_has_the_condition(name, number, spec, condition):
    """With these rows of the plan the kernel is wrong; without them nothing is seen."""
    spec = spec_of(spec)
    (mistake,) = (m for m in KNOWN if (m.name, m.number) == (name, number))
    cases = [case for case in spec.plan() if case.n <= SHORT or (number or 0) in (512, 1024)]
    found = trials(planted(mistake.of(spec)), spec, cases)
    with_it, without = ([t for t in found if bool(condition(t.case)) is x] for x in (True, False))
    assert any(t.wrong for t in with_it)
    assert any(t.case.n for t in without) and not any(t.wrong for t in without)


def right(spec, library="numpy"):
    """The formula once more, token by token, in float64 of NumPy or float32 of torch."""
    xp = __import__(library)
    maps = {
        "identity": lambda x: x,
        "relu": lambda x: x * (x > 0),
        "relu2": lambda x: (x * (x > 0)) ** 2,
        "exp": xp.exp,
        "silu": lambda x: x / (1 + xp.exp(-x)),
        "elu+1": lambda x: xp.where(x > 0, x + 1, xp.exp(xp.where(x > 0, 0 * x, x))),
    }
    phi, wide = maps[spec.phi], getattr(xp, spec.sums_in(spec.dtype))

    def cast(x, dtype):
        return x.astype(dtype) if library == "numpy" else x.to(dtype)

    def ordered(x, heads):
        if spec.axes == "TD":
            return x[None, None]
        x = unpacked(x, heads) if spec.axes == "BT(HD)" else x
        return x if spec.axes == "BHTD" else x.swapaxes(1, 2)

    def back(o):
        if spec.axes == "TD":
            return o[0, 0]
        o = o if spec.axes == "BHTD" else o.swapaxes(1, 2)
        return packed(o) if spec.axes == "BT(HD)" else o

    def turn(x, p):
        """x, of which each pair is a complex number, times exp(i p θ)."""
        if spec.rope == "none":
            return x
        w = spec.rope_width or x.shape[-1]
        angle = p * float(spec.rope_base) ** (-np.arange(0, w, 2) / w)
        cos, sin = (cast(xp.asarray(f(angle)), wide) for f in (np.cos, np.sin))
        half = spec.rope == "half"
        a, b = (x[..., : w // 2], x[..., w // 2 : w]) if half else (x[..., 0:w:2], x[..., 1:w:2])
        a, b = a * cos - b * sin, a * sin + b * cos
        pairs = xp.concatenate([a, b], -1) if half else xp.stack([a, b], -1).reshape(*a.shape[:-1], w)
        return xp.concatenate([pairs, x[..., w:]], -1)

    def kernel(q, k, v, S, z, position, heads, groups):
        dtype, (q, k, v) = q.dtype, (cast(ordered(x, h), wide) for x, h in ((q, heads), (k, groups), (v, groups)))
        S, S_dtype, z = cast(S, wide), S.dtype, cast(z, wide)
        S = S.swapaxes(2, 3) if spec.state_axes == "BHVK" else S
        share = np.arange(heads) % groups if spec.sharing == "cyclic" else np.arange(heads) // (heads // groups)
        scale = q.shape[-1] ** -0.5 if spec.scale == "d" else float(spec.scale)
        rows = []
        for t in range(q.shape[2]):
            p, x, y = position + t, q[:, :, t], k[:, :, t]
            x = x * scale if spec.scale_place == "q" else x
            if spec.rope_place == "before":
                x, y = turn(x, p), turn(y, p)
            x, y = phi(x), phi(y)
            fx, fy = (turn(x, p), turn(y, p)) if spec.rope_place == "after" else (x, y)
            new = S + fy[..., :, None] * v[:, :, t][..., None, :], z + y
            read_S, read_z = (a[:, share] for a in (new if spec.reads == "after" else (S, z)))
            S, z = new
            o = (fx[..., None] * read_S).sum(-2)
            den = (x * read_z).sum(-1)[..., None]
            if spec.scale_place == "scores":
                o, den = o * scale, den * scale
            den = den + spec.eps if spec.eps_place == "add" else xp.maximum(den, 0 * den + spec.eps)
            rows.append(o / den if spec.normalise else o)
        o = xp.stack(rows, 2) if rows else 0 * (q @ S[:, share])
        S = S.swapaxes(2, 3) if spec.state_axes == "BHVK" else S
        return cast(back(o), dtype), cast(S, S_dtype), cast(z, S_dtype)

    return kernel


CALL = {"call": "q, k, v, S, z, position, heads, groups -> o, S, z"}
LOW = {"library": "torch"}
RIGHT = [
    {},
    {**ELU, "eps": 1e-6, "axes": "BTHD"},
    {**ELU, "rope": "half", "sharing": "repeat", "state_axes": "BHVK"},
    {"dtype": "bfloat16", **LOW},
]
RIGHT_TOO = [
    {"eps": 1e-3},
    {"eps": 1e-6, "eps_place": "max"},
    {**ELU, "eps": 1e-12},
    {**ELU, "scale": "d"},
    {**ELU, "scale": "d", "scale_place": "scores", "eps": 1e-5},
    {"scale": "0.25", "normalise": False},
    {**ELU, "reads": "before", "eps": 1e-6},
    {"reads": "before", "normalise": False},
    {"phi": "relu", "eps": 1e-6},
    {"phi": "relu2", "normalise": False},
    {"phi": "exp"},
    {"phi": "silu", "normalise": False},
    {**ELU, "rope": "interleaved"},
    {**ELU, "rope": "half", "rope_place": "before", "rope_base": 500000.0},
    {"rope": "interleaved", "rope_width": 2, "normalise": False, "scale": "d"},
    {"sharing": "cyclic"},
    {"axes": "BT(HD)", "sharing": "repeat"},
    {"axes": "TD"},
    {"dtype": "float32"},
    {"dtype": "float32", **LOW, **ELU, "rope": "half"},
    {"dtype": "float16", **LOW},
    {"dtype": "float16", **LOW, **ELU, "eps": 1e-6, "scale": "d"},
    {"dtype": "bfloat16", **LOW, **ELU, "rope": "interleaved", "axes": "BTHD"},
    {"dtype": "bfloat16", **LOW, "normalise": False, "sharing": "repeat"},
]


@pytest.mark.parametrize(
    "conventions", [*RIGHT, *(pytest.param(c, marks=pytest.mark.slow) for c in RIGHT_TOO)], ids=str
)
def test_a_right_kernel_is_right(conventions):
    if conventions.get("library") == "torch":
        pytest.importorskip("torch")
    spec = LinearAttention(**CALL, **conventions)
    cases = spec.plan() if conventions in RIGHT_TOO else [case for case in spec.plan() if case.n <= SHORT]
    found = check_dtype(Function(right(spec, spec.library)), spec, spec.dtype, cases, lambda line: None)
    assert found.verdict in ("EXACT", "WITHIN BOUND"), (found.facets, found.others)
