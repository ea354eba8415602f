"""Norms, activations and the MLP: against mpmath, entry by entry; the rational stand-ins touch what
they stand for.
"""

from __future__ import annotations

from fractions import Fraction

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refimpl as ri
from refimpl import GF, MP, QQ, Dual, Float, NotDefined, RunningError
from refimpl.model.transformer import ACTIVATIONS, GELU, NORMS, mlp, norm
from refimpl.systems import fractions
from tests.helpers.assertions import says

DIGITS = mpmath.MPContext()
DIGITS.dps = 60
EPSILON = Fraction(1, 100000)


def number(x):
    return DIGITS.mpf(x.numerator) / x.denominator


def exactly(x):
    return Fraction(*map(int, mpmath.libmp.to_rational(x._mpf_)))


def normed(kind, x, gain, offset):
    mean = sum(x) / len(x) if kind == "layer" else 0
    root = DIGITS.sqrt(sum((a - mean) ** 2 for a in x) / len(x) + number(EPSILON))
    return [(a - mean) / root * g + b for a, g, b in zip(x, gain, offset, strict=True)]


def gelu(x):
    return x / 2 * (1 + DIGITS.tanh(DIGITS.mpf(0.7978845608028654) * (x + number(Fraction("0.044715")) * x**3)))


def silu(x):
    return x / (1 + DIGITS.exp(-x))


WANTED = {"gelu": gelu, "silu": silu, "relu": lambda x: max(x, 0), "quadratic": lambda x: x / 2 + x**2 / 4}


def within(system, f, *arrays, want):
    """f on floats is within the error that f finds on numbers with errors; that error says
    something.
    """
    analysis = RunningError("float64" if isinstance(system, type(MP(20))) else system.kind)
    finer = 2.0 ** (53 - system.ctx.prec) if isinstance(system, type(MP(20))) else 1.0
    bound = analysis.error(f(*(analysis.convert(x) for x in arrays))) * finer
    found = ri.judge(f(*arrays), want, bound)
    assert found.verdict in ("WITHIN BOUND", "EXACT", *["VACUOUS"] * (not found.rows)) and not found.vacuous, found


@pytest.mark.parametrize("system", [Float(), Float("numpy", "float32"), MP(40)], ids=str)
@pytest.mark.parametrize("kind", ["layer", "rms"])
@settings(max_examples=10)
@given(n=st.integers(0, 3), width=st.integers(2, 6), seed=st.integers(0, 99))
def test_norms(kind, system, n, width, seed):
    x, gain, offset = (system.random(shape, seed + i) for i, shape in enumerate(((2, n, width), (width,), (width,))))
    g, b = ([number(a) for a in fractions(y, "test")] for y in (gain, offset))
    rows = fractions(x, "test").reshape(2 * n, width)
    want = [[exactly(a) for a in normed(kind, [number(a) for a in row], g, b)] for row in rows]
    within(
        system,
        lambda x, g, b: norm(x, g, b, kind=kind),
        x,
        gain,
        offset,
        want=QQ.reshape(QQ.convert(want), (2, n, width)),
    )


@pytest.mark.parametrize("system", [Float(), Float("numpy", "float32"), MP(40)], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name, system):
    """Each entry in a row of its own, so that its error is held against itself; not where they
    vanish, and errors are all there is.
    """
    x = system.convert([[Fraction(a, 8)] for a in range(-15, 41) if a])
    want = QQ.convert([[exactly(DIGITS.mpf(WANTED[name](number(a)))) for a in row] for row in fractions(x, "test")])
    f, _ = ACTIVATIONS[name]
    within(system, f, x, want=want)


def test_activations_do_not_overflow():
    x = Float().convert([-(10**4), 10**4])
    for name in ("gelu", "silu", "relu"):
        assert ACTIVATIONS[name][0](x).tolist() == [0, 10**4]


def test_the_constant_of_gelu():
    """The nearest float64 to √(2/π)."""
    assert float(DIGITS.sqrt(2 / DIGITS.pi)) == GELU == 0.7978845608028654


def tangent(f, at):
    """f(at) and f'(at), exactly."""
    numbers = Dual(QQ)
    y = f(numbers.join(QQ.convert([[at]]), QQ.ones((1, 1))))
    return numbers.value(y).tolist()[0][0], numbers.tangent(y).tolist()[0][0]


def test_the_stand_in_of_the_root_touches_it():
    """Where u = x² + ε = 1, both 2x/(1 + u) and x/√u are x, with slope 1 − x² = ε. Elsewhere they
    part.
    """
    for x in (Fraction(0), Fraction(1, 2), Fraction(2, 3), Fraction(1)):
        epsilon = 1 - x * x
        assert tangent(lambda y, e=epsilon: norm(y, kind="rms_rational", epsilon=e), x) == (x, epsilon)
        slope = DIGITS.diff(lambda y, e=epsilon: y / DIGITS.sqrt(y * y + number(e)), number(x))
        assert abs(slope - number(epsilon)) < 1e-25
    assert tangent(lambda y: norm(y, kind="rms_rational", epsilon=Fraction(0)), Fraction(2)) == (
        Fraction(4, 5),
        Fraction(-6, 25),
    )


def test_quadratic_touches_silu_to_second_order():
    """Values 0, slopes 1/2, second derivatives 1/2 at 0."""
    f, _ = ACTIVATIONS["quadratic"]
    assert tangent(f, Fraction(0)) == (0, Fraction(1, 2))
    numbers = Dual(Dual(QQ))
    x = numbers.join(numbers.base.join(QQ.zeros((1,)), QQ.ones((1,))), numbers.base.join(QQ.ones((1,)), QQ.zeros((1,))))
    assert numbers.base.tangent(numbers.tangent(f(x))).tolist() == [Fraction(1, 2)]
    for order, want in enumerate([0, 0.5, 0.5]):
        assert abs(DIGITS.diff(silu, 0, order) - want) < 1e-25


@given(n=st.integers(0, 3), width=st.integers(1, 4), seed=st.integers(0, 99))
def test_rational_norms_by_hand(n, width, seed):
    x, gain, offset = QQ.random((n, width), seed), QQ.random((width,), seed + 1), QQ.random((width,), seed + 2)
    for kind in ("layer_rational", "rms_rational"):
        for row, got in zip(x.tolist(), norm(x, gain, offset, kind=kind).tolist(), strict=True):
            mean = sum(row) / width if kind == "layer_rational" else 0
            u = sum((a - mean) ** 2 for a in row) / width + EPSILON
            assert got == [
                2 * (a - mean) / (1 + u) * g + b for a, g, b in zip(row, gain.tolist(), offset.tolist(), strict=True)
            ]
    assert norm(x, kind="none") is x


@given(
    n=st.integers(0, 3), width=st.integers(1, 3), hidden=st.integers(1, 3), gated=st.booleans(), seed=st.integers(0, 99)
)
def test_mlp_by_hand(n, width, hidden, gated, seed):
    shapes = ((n, width), (width, hidden), (hidden, width), (width, hidden), (hidden,), (width,))
    x, up, down, gate, b_up, b_down = (QQ.random(shape, seed + i) for i, shape in enumerate(shapes))
    got = mlp(x, up, down, gate=gate if gated else None, b_up=b_up, b_down=b_down, activation="quadratic")
    for t in range(n):
        for j in range(width):
            total = b_down[j].tolist()
            for h in range(hidden):
                a = b_up[h].tolist() + sum((x[t, i] * up[i, h]).tolist() for i in range(width))
                g = sum((x[t, i] * gate[i, h]).tolist() for i in range(width))
                total += (WANTED["quadratic"](g) * a if gated else WANTED["quadratic"](a)) * down[h, j].tolist()
            assert got[t, j].tolist() == total


def test_what_each_needs():
    for system in (QQ, GF(10007)):
        x = system.random((2, 3), 0)
        for kind, need in NORMS.items():
            if need in system.can:
                assert norm(x, kind=kind).shape == (2, 3)
            else:
                with says(NotDefined, f"exp is not defined in {system.name}; {kind} norm needs a real system"):
                    norm(x, kind=kind)
        for name, (_, need) in ACTIVATIONS.items():
            W = system.random((3, 3), 1)
            if need in system.can:
                assert mlp(x, W, W, activation=name).shape == (2, 3)
            else:
                with says(NotDefined, f"is not defined in {system.name}; {name} needs a"):
                    mlp(x, W, W, activation=name)
