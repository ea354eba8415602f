"""RoPE: laws of rotations with ==, both layouts, and tables that are right far from the origin."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refimpl as ri
from refimpl import GF, MP, QQ, Float, balls
from refimpl.attention.rope import check_positions
from refimpl.systems import fractions
from tests.helpers.assertions import contains, informative, says
from tests.helpers.strategies import MAKERS

layouts = pytest.mark.parametrize("layout", ri.rope.LAYOUTS)
exact_systems = pytest.mark.parametrize("system", [QQ, GF(10007), GF(2**61 - 1)], ids=str)
positions = st.integers(-50, 50)


def turning(system, pairs, layout, seed=0, placement="after"):
    return ri.Rope(ri.power_table(*ri.circle_point(system.random((pairs,), seed))), layout, placement)


@exact_systems
@layouts
@given(pairs=st.integers(0, 3), rest=st.integers(0, 2), a=positions, b=positions, seed=st.integers(0, 99))
def test_rotations_are_a_group(system, layout, pairs, rest, a, b, seed):
    """R_a R_b = R_{a+b}, R_0 = 1, and R_a R_{-a} = 1."""
    R, x = turning(system, pairs, layout, seed), system.random((2, 1, 2 * pairs + rest), seed + 1)
    assert system.equal(R(R(x, [b]), [a]), R(x, [a + b]))
    assert system.equal(R(x, [0]), x)
    assert system.equal(R(R(x, [a]), [-a]), x)


@exact_systems
@layouts
@given(pairs=st.integers(1, 3), rest=st.integers(0, 2), a=positions, b=positions, c=positions, seed=st.integers(0, 99))
def test_scores_depend_on_distance_alone(system, layout, pairs, rest, a, b, c, seed):
    """(R_a x)·(R_b y) = (R_{a+c} x)·(R_{b+c} y), and R keeps x·x."""
    R, x, y = turning(system, pairs, layout, seed), *(system.random((1, 2 * pairs + rest), seed + i) for i in (1, 2))
    dot = lambda p, q: R(x, [p]) @ system.matrix_transpose(R(y, [q]))  # noqa: E731
    assert system.equal(dot(a, b), dot(a + c, b + c))
    assert system.equal(R(x, [a]) @ system.matrix_transpose(R(x, [a])), x @ system.matrix_transpose(x))


@exact_systems
@given(pairs=st.integers(0, 3), rest=st.integers(0, 2), n=st.integers(0, 4), start=positions, seed=st.integers(0, 99))
def test_permutation_between_layouts(system, pairs, rest, n, start, seed):
    """P rotate(x, half) = rotate(P x, interleaved), and P⁻¹ undoes P."""
    half, inter = (turning(system, pairs, layout, seed) for layout in ("half", "interleaved"))
    x, at = system.random((2, n, 2 * pairs + rest), seed + 1), range(start, start + n)
    P = lambda x: ri.rope.interleave(x, pairs=pairs)  # noqa: E731
    assert system.equal(P(half(x, at)), inter(P(x), at))
    assert system.equal(ri.rope.deinterleave(P(x), pairs=pairs), x)
    assert system.equal(P(ri.rope.deinterleave(x, pairs=pairs)), x)


def test_layouts_by_hand():
    """A quarter turn sends (a, b) to (−b, a); which pairs turn is the layout."""
    c, s = QQ.convert([0, 0]), QQ.convert([1, 1])
    x = QQ.convert([[1, 2, 3, 4, 5]])
    assert ri.rotate(x, c[None, :], s[None, :], layout="half").tolist() == [[-3, -4, 1, 2, 5]]
    assert ri.rotate(x, c[None, :], s[None, :], layout="interleaved").tolist() == [[-2, 1, -4, 3, 5]]


@layouts
def test_two_published_formulas(layout):
    """Half: x cos + rotate_half(x) sin, as in Llama's code. Interleaved: multiplication of complex
    numbers, as in llama2.c.
    """
    system = Float()
    x, at = system.random((3, 7, 8), 0), np.arange(700, 707)
    theta = 10000.0 ** (-np.arange(0, 8, 2) / 8)
    angle = at[:, None] * theta
    if layout == "half":
        cos, sin = (np.concatenate([f(angle)] * 2, axis=-1) for f in (np.cos, np.sin))
        want = x * cos + np.concatenate([-x[..., 4:], x[..., :4]], axis=-1) * sin
    else:
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)
        want = np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)
    got = ri.Rope(ri.angle_table(system, 8), layout)(x, at)
    # the naive angle is wrong by up to half an ulp of 706 from rounding, as much again from theta:
    # 2^-43 each
    assert np.max(np.abs(got - want)) <= 2 * 2.0**-43


@pytest.mark.parametrize(("dtype", "u"), [("float64", 2.0**-51), ("float32", 2.0**-24), ("float16", 2.0**-11)])
@pytest.mark.parametrize("position", [0, 1, 4095, 10**6, -(10**6), 2**40 + 1])
def test_tables_far_from_the_origin(dtype, u, position):
    """Against 60 digits: half a unit of the dtype (|cos| ≤ 1), plus 2⁻⁵¹ for the float64 the table
    is made in.
    """
    got = [fractions(t, "test")[0] for t in ri.angle_table(Float("numpy", dtype), 64)([position])]
    want = [fractions(t, "test")[0] for t in ri.angle_table(MP(60), 64)([position])]
    assert max(abs(a - b) for g, w in zip(got, want, strict=True) for a, b in zip(g, w, strict=True)) <= Fraction(
        u
    ) + Fraction(1, 2**51)


def test_table_from_the_definition():
    """θ_i = base^(−2i/width), by mpmath alone."""
    ctx, system = mpmath.MPContext(), MP(40)
    ctx.dps = 60
    cos, sin = ri.angle_table(system, 6, base=500)([3, 1000])
    # The system's angle is good to 2^-8 of the last place, cos and sin add one unit: 2·2^-prec of
    # numbers up to 1. Here angles
    # up to 1000 have 60 digits and are right to 10^-56.
    bound = ctx.mpf(2) ** (1 - system.ctx.prec) + ctx.mpf(10) ** -56
    for row, p in enumerate([3, 1000]):
        for i in range(3):
            angle = p * ctx.mpf(500) ** (-ctx.mpf(2 * i) / 6)
            assert abs(ctx.cos(angle) - cos.tolist()[row][i]) <= bound
            assert abs(ctx.sin(angle) - sin.tolist()[row][i]) <= bound


def test_explicit_frequencies():
    cos, _ = ri.angle_table(Float(), 4, frequencies=[0.5, 0.25])([0, 2])
    assert np.max(np.abs(cos - np.cos([[0, 0], [1, 0.5]]))) <= 2.0**-51


def test_many_explicit_frequencies():
    """A table of 70 pairs has the columns of 70 tables of one pair."""
    frequencies = [Fraction(1, i) for i in range(1, 71)]
    both = ri.angle_table(Float(), 140, frequencies=frequencies)([1, 300])
    for i, f in enumerate(frequencies):
        for many, one in zip(both, ri.angle_table(Float(), 2, frequencies=[f])([1, 300]), strict=True):
            assert many[:, i].tolist() == one[:, 0].tolist()


@pytest.mark.parametrize("maker", MAKERS)
def test_balls_enclose_the_tables(maker):
    radii = []
    for digits in (30, 60):
        system = balls(digits, maker)
        for got, want in zip(ri.angle_table(system, 8)([10**6]), ri.angle_table(MP(100), 8)([10**6]), strict=True):
            assert contains(system, got, want) and informative(system, got)
            radii.append(system.radius(got))
    assert 0 < radii[2] < radii[0] and 0 < radii[3] < radii[1]


@given(p=st.integers(-(10**6), 10**6))
def test_powers_stay_on_the_circle(p):
    system = GF(2**61 - 1)
    c, s = ri.power_table(*ri.circle_point(system.random((3,), 1)))([p])
    assert system.equal(c * c + s * s, system.ones_like(c))


def test_quarter_turns_are_exact_in_floats():
    c, s = ri.power_table(np.array([0.0]), np.array([1.0]))(range(-5, 6))
    assert c[:, 0].tolist() == [0, 1, 0, -1, 0, 1, 0, -1, 0, 1, 0]
    assert s[:, 0].tolist() == [-1, 0, 1, 0, -1, 0, 1, 0, -1, 0, 1]


def test_placement_after_leaves_the_denominator_unturned():
    q, k = (QQ.random((3, 4), i) for i in (0, 1))
    fq, fk, gq, gk = ri.state.features(q, k, ri.Kernel(rope=turning(QQ, 2, "half")), position=5)
    assert QQ.equal(gq, q) and QQ.equal(gk, k) and not QQ.equal(fq, q) and not QQ.equal(fk, k)
    fq, fk, gq, gk = ri.state.features(q, k, ri.Kernel(rope=turning(QQ, 2, "half", placement="before")), position=5)
    assert QQ.equal(gq, fq) and QQ.equal(gk, fk) and not QQ.equal(gq, q)


def test_positions_up_to_2_to_the_53():
    assert check_positions("f", [2**53, -(2**53)]) == [2**53, -(2**53)]
    for far in (2**53 + 1, -(2**53) - 1):
        with says(ValueError, f"f: `positions` must not exceed 2^53 in size, got {far}"):
            check_positions("f", [0, far, 1])


def test_one_row_of_a_table_is_for_all_tokens():
    x = QQ.random((4, 6), 1)
    cos, sin = ri.power_table(QQ.convert([Fraction(3, 5)]), QQ.convert([Fraction(4, 5)]))([7])
    rows = [ri.rope.rotate(x[t : t + 1, :], cos, sin) for t in range(4)]
    assert QQ.equal(ri.rope.rotate(x, cos, sin), QQ.concat(rows, axis=0))
