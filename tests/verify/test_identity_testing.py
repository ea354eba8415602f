"""Identity testing in GF(p): computed degrees bound the true ones, and a false identity survives no
more often than is said.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

import refimpl as ri
from refimpl import GF, Degrees
from refimpl.systems import ArraySystem
from refimpl.systems.array import elementwise
from refimpl.systems.degrees import Quotient
from refimpl.verify.identity_testing import at, degree, fraction, plus, restrict, survival
from tests.helpers.assertions import says

FORMS = [ri.linear_attention, ri.linear_attention_quadratic, ri.linear_attention_recurrent, ri.linear_attention_chunked]


def computed(f, shapes, numbers=None):
    """Degrees of numerator and denominator of every entry, as nested lists."""
    numbers = numbers or Degrees()
    o = f(*(numbers.variables(shape) for shape in shapes))
    return [numbers.numerator(o).tolist(), numbers.denominator(o).tolist()]


def true(f, shapes):
    return [part.tolist() for part in restrict(f, shapes)]


def bounds(claim, truth):
    """Is no degree of the claim below the true one?"""
    return all(map(bounds, claim, truth)) if isinstance(claim, list) else claim >= truth


# True degrees


@pytest.mark.parametrize(
    ("f", "numerator", "denominator"),
    [
        (lambda x, y: x * x * y + 3, 3, 0),
        (lambda x, y: (x * x * y + 3) / (x + y) / (y - 1), 3, 2),
        (lambda x, y: (x * x - y * y) / (x - y), 1, 0),
        (lambda x, y: x / x + y / y, 0, 0),
        (lambda x, y: x * y - y * x, -math.inf, 0),
        (lambda x, y: 1 / (1 + x**20), 0, 20),
    ],
)
def test_a_random_line_shows_true_degrees(f, numerator, denominator):
    assert true(f, [(2,), (2,)]) == [[numerator] * 2, [denominator] * 2]


def test_a_line_on_which_there_is_nothing_to_see():
    assert true(lambda x: x, [(0, 3)]) == [[], []]
    seeds = itertools.count()
    with says(ValueError, "restrict: 256 points do not determine the degrees of f"):
        restrict(lambda x: GF(2**61 - 1).random((), next(seeds)), [()])


@pytest.mark.parametrize(("points", "degree"), [(8, 3), (16, 11), (32, 27), (64, 59), (128, 123)])
def test_a_fraction_fits_four_points_more_than_determine_it(points, degree):
    """A polynomial of degree n is determined by n + 1 points."""
    for power, needed in ((degree, points), (degree + 1, 2 * points)):
        seen = []

        def f(x, power=power, seen=seen):
            seen.append(x)
            return x**power

        assert [int(part) for part in restrict(f, [()])] == [power, 0] and len(seen) == needed


def test_polynomials_modulo_p():
    assert at([3, 2, 1], 5, 97) == 3 + 2 * 5 + 5 * 5 and at([3, 2, 1], 5, 7) == 38 % 7 and at([], 5, 7) == 0
    assert plus([1, 2, 3], 2, [3, 6, 2], 7) == [] and plus([1, 2], 3, [1, 1, 1], 97) == [4, 5, 3]
    assert plus([1, 2, 3], 2, [3, 6, 2], 97) == [7, 14, 7] and plus([5], 1, [2], 7) == []


def test_the_fraction_through_some_points():
    """(2 + s²)/(1 + 3s) modulo 97, up to a common factor."""
    p = 97
    N, D = fraction([(2 + s * s) * pow(1 + 3 * s, -1, p) % p for s in range(1, 10)], p)
    assert [a * pow(D[0], -1, p) % p for a in N] == [2, 0, 1] and [a * pow(D[0], -1, p) % p for a in D] == [1, 3]


# Computed degrees


@pytest.mark.parametrize("position", [0, 1, 2, -3, 7])
def test_a_rotation_has_degree_twice_its_position(position):
    def cos(t):
        return ri.power_table(*ri.circle_point(t))([position])[0]

    def turned(x, t):
        return ri.Rope(ri.power_table(*ri.circle_point(t)))(x, [position])

    p = 2 * abs(position)
    assert computed(cos, [(1,)]) == true(cos, [(1,)]) == [[[p]], [[p]]]
    assert computed(turned, [(1, 2), (1,)]) == true(turned, [(1, 2), (1,)]) == [[[p + 1] * 2], [[p] * 2]]


def attention(form, normalise, start, phi="identity", placement=None):
    """A form as a function of q, k, v, a starting state and a point of the circle."""
    r, phi = {"identity": (2, ri.feature_maps.identity), "polynomial": (9, ri.feature_maps.polynomial(2))}[phi]

    def f(q, k, v, S, z, t):
        rope = placement and ri.Rope(ri.power_table(*ri.circle_point(t)), placement=placement)
        return form(
            q, k, v, kernel=ri.Kernel(phi, rope=rope, normalise=normalise), state=ri.State(S, z, 1) if start else None
        )[0]

    return f, [(2, 2), (2, 2), (2, 1), (r, 1), (r,), (1,)]


@functools.cache
def truth(*options):
    """The forms are one function: the degrees of its definition are theirs."""
    return true(*attention(ri.linear_attention, *options))


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_degrees_of_linear_attention_are_bounds(form, normalise):
    plain = {start: computed(*attention(form, normalise, start)) for start in (False, True)}
    D = 2 if normalise else 0
    assert plain[True] == truth(normalise, True) == [[[3], [3]], [[D], [D]]]
    assert plain[False] == [[[3], [3]], [[D], [D]]]
    # The first token sees only itself: normalised, it is v_0, and that q_0·k_0 cancels is not seen.
    assert truth(normalise, False) == ([[[1], [3]], [[0], [2]]] if normalise else plain[False])
    assert (
        computed(*attention(form, normalise, False, "polynomial"))[0][1]
        == truth(normalise, False, "polynomial")[0][1]
        == [5]
    )
    for options in [("polynomial",), ("identity", "after"), ("identity", "before")]:
        assert bounds(computed(*attention(form, normalise, True, *options)), truth(normalise, True, *options))


@pytest.mark.parametrize("placement", ["after", "before"])
@pytest.mark.parametrize("normalise", [False, True])
def test_degrees_under_rope(normalise, placement):
    """Positions 1 and 2: the state is seen through R_t, a key through R_tᵀ R_s, which is R_{s−t},
    but to Degrees is of position t + s.
    """
    claim = computed(*attention(ri.linear_attention, normalise, True, "identity", placement))
    D = 2 if normalise else 0
    assert claim == [[[3 + 2 * 2], [3 + 2 * 4]], [[2 * 2 + D], [2 * 4 + D]]]
    assert truth(normalise, True, "identity", placement) == [[[3 + 2], [3 + 2 * 2]], [[2 + D], [2 * 2 + D]]]


@pytest.mark.parametrize("normalise", [False, True])
def test_degrees_of_attention_on_top_of_attention(normalise):
    def f(q, k, v):
        x, _ = ri.linear_attention(q, k, v, kernel=ri.Kernel(normalise=normalise))
        return ri.linear_attention_recurrent(x, k, x, kernel=ri.Kernel(normalise=normalise))[0]

    shapes = [(2, 2)] * 3
    claim, found = computed(f, shapes), true(f, shapes)
    assert bounds(claim, found) and (normalise or claim == found)


# Programs: sums, products and quotients of x, y, 2 and of one another

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
PROGRAMS = st.lists(st.tuples(st.sampled_from("+-**//"), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=7)


def program(steps):
    def run(x, y):
        values = [x, y, x * 0 + 2]
        for operation, i, j in steps:
            values.append(OPERATIONS[operation](values[-1 - i % len(values)], values[-1 - j % len(values)]))
        return x.system.stack(values, axis=-1)

    return run


@given(steps=PROGRAMS)
def test_degrees_of_programs_are_bounds(steps):
    f, shapes = program(steps), [(), ()]
    try:
        found = true(f, shapes)
    except ZeroDivisionError:  # by the zero polynomial, as in 1/(x − x)
        reject()
    assert bounds(computed(f, shapes), found)


# What survives


def enumerate_all(f, variables, p):
    """Of all points of GF(p): how many can be run, and at how many of these the two entries of f
    agree.
    """
    field, run, agree = GF(p), 0, 0
    for point in itertools.product(range(p), repeat=variables):
        try:
            left, right = f(*(field.convert(x) for x in point)).tolist()[-2:]
        except ZeroDivisionError:
            continue
        run, agree = run + 1, agree + (left == right)
    return run, agree


def claimed(f, variables):
    """(δ, Δ) of the same two entries."""
    numbers = Degrees()
    o = f(*(numbers.variables(()) for _ in range(variables)))
    return degree(o[..., -2], o[..., -1]), numbers.divided


# Two sides that are not equal, δ, Δ, and whether the bound is attained.
FALSE = {
    "(x−1)(x−2)(x−3) = 0": (lambda x: ((x - 1) * (x - 2) * (x - 3), x * 0), 3, 0, True),
    "(x−1)(x−2)/(x−3) = 0": (lambda x: ((x - 1) * (x - 2) / (x - 3), x * 0), 2, 1, True),
    "1/x = 1/(x−1)(x−2)": (lambda x: (1 / x, 1 / ((x - 1) * (x - 2))), 2, 3, False),
    "x/y = y/x": (lambda x, y: (x / y, y / x), 2, 2, False),
    "x/y + 1/y = y/x": (lambda x, y: (x / y + 1 / y, y / x), 2, 2, False),
    "x/y = (x+1)/y": (lambda x, y: (x / y, (x + 1) / y), 1, 1, False),
    "xy = y": (lambda x, y: (x * y, y), 2, 0, False),
    "cos 2θ = cos 3θ": (lambda t: ri.power_table(*ri.circle_point(t[None]))([2, 3])[0][:, 0], 6, 2, False),
    "1 = 2": (lambda x: (x * 0 + 1, x * 0 + 2), 0, 0, True),
}


@pytest.mark.parametrize("name", FALSE)
@pytest.mark.parametrize("p", [5, 11, 19])
def test_a_false_identity_survives_no_more_often_than_is_said(name, p):
    sides, delta, divided, attained = FALSE[name]
    variables = sides.__code__.co_argcount

    def f(*x):
        left, right = sides(*x)
        return left.system.stack([left, right], axis=-1)

    assert claimed(f, variables) == (delta, divided)
    run, agree = enumerate_all(f, variables, p)
    assert run >= p**variables * (1 - Fraction(divided, p))
    assert Fraction(agree, run) <= survival(delta, divided, p) and survival(delta, divided, 19) < Fraction(1, 2)
    assert not attained or Fraction(agree, run) == survival(delta, divided, p)


@given(steps=PROGRAMS, p=st.sampled_from([3, 5, 7]))
def test_two_values_of_a_program_agree_everywhere_or_seldom(steps, p):
    f = program(steps)
    try:
        delta, divided = claimed(f, 2)
    except ZeroDivisionError:
        reject()
    run, agree = enumerate_all(f, 2, p)
    assert run == 0 or run >= p**2 * (1 - Fraction(divided, p))
    assert agree == run or Fraction(agree, run) <= survival(delta, divided, p)


def test_delta_and_divisors_of_two_forms():
    numbers = Degrees()
    q, k, v = (numbers.variables((3, 2)) for _ in range(3))
    left, right = (
        form(q, k, v, kernel=ri.Kernel(normalise=False))[0]
        for form in (ri.linear_attention_chunked, ri.linear_attention)
    )
    assert (degree(left, right), numbers.divided) == (3, 0)
    left, right = (form(q, k, v)[0] for form in (ri.linear_attention_chunked, ri.linear_attention))
    # that their denominators are equal is not seen
    assert (degree(left, right), numbers.divided) == (3 + 2, 2 * 3 * 2)
    assert degree(right, right * right) == 3 + 3  # here it is
    assert (
        degree(numbers.convert([0, 5]), numbers.convert([0, 7]))
        == 0
        == degree(numbers.zeros((0,)), numbers.zeros((0,)))
    )


def test_what_a_far_rotation_is_worth():
    numbers = Degrees()
    table = ri.power_table(*ri.circle_point(numbers.variables((1,))))
    cos, sin = table([544, 1088])
    left, right = cos[0] * cos[0] - sin[0] * sin[0], cos[1]
    assert numbers.worst(right) == (2176, 2176) and (degree(left, right), numbers.divided) == (2176, 2)
    assert Fraction(1, 1000) < survival(2176, 2, 2**21 - 9) < Fraction(11, 10000)
    assert survival(2176, 2, 2**61 - 1) < Fraction(1, 10**15)


# Planted bugs


class ForgetsDenominators(Degrees):
    def div(self, x, y):
        return (elementwise(lambda e: Quotient(e.numerator, Counter()), super().div(x, y)[0]),)


class ForgetsToAddDegrees(Degrees):
    def mul(self, x, y):
        return self.add(x, y)


class ForgetsToRaiseToTheCommonDenominator(Degrees):
    sum, matmul = ArraySystem.sum, ArraySystem.matmul  # which add by `add`

    def add(self, x, y):
        return (elementwise(lambda a, b: Quotient(max(a.numerator, b.numerator), a.factors | b.factors), x[0], y[0]),)


class TakesAllDivisorsForOne(Degrees):
    def div(self, x, y):
        one = y[0].ravel()[0]
        return super().div(x, (elementwise(lambda e: one, y[0]),))


def layers(x):
    o, _ = ri.linear_attention(x, x, x)
    return ri.linear_attention(o, o, o, kernel=ri.Kernel(normalise=False))[0]


def test_wrong_degrees_are_rejected():
    shapes = [(3, 2)]
    found = true(layers, shapes)
    assert bounds(computed(layers, shapes, Degrees()), found)
    for wrong in (
        ForgetsDenominators,
        ForgetsToAddDegrees,
        ForgetsToRaiseToTheCommonDenominator,
        TakesAllDivisorsForOne,
    ):
        assert not bounds(computed(layers, shapes, wrong()), found), wrong
