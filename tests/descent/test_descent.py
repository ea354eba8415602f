"""In-context learning as gradient descent: every function against plain loops over the formulas.

Numbers are drawn in ℚ, where the oracle computes. Other systems are given the same numbers, and
must come to the same.
"""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import isqrt

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

import refimpl as ri
from refimpl import GF, MP, QQ, Config, Float, RunningError, balls, convert, random_model, unconvert
from refimpl.descent import dai, irie, ren_liu, von_oswald
from refimpl.descent.gradient import alignment, gradient, squared_error, step
from refimpl.descent.patch import rank_one_patch
from refimpl.systems import Dual, fractions
from refimpl.systems.balls import Balls
from refimpl.systems.floats import array_namespace
from refimpl.systems.multiprecision import Multiprecision
from refimpl.verify.cases import Case, Lesson, case_from_json
from refimpl.verify.check import Draws, check, minimal
from refimpl.verify.implementation import REFIMPL
from refimpl.verify.registry import THEOREMS
from refimpl.verify.theorem import Different, Numbers
from refimpl.verify.theorems import descent as theorems
from refimpl.verify.ways import WAYS, way_of
from tests.helpers import oracle
from tests.helpers.assertions import contains, informative, says
from tests.helpers.oracle import dot, times
from tests.helpers.strategies import MAKERS, SEEDS

EXACT = [QQ, GF(2**61 - 1)]
exact_systems = pytest.mark.parametrize("system", EXACT, ids=str)
lessons = st.builds(Lesson, *[st.integers(1, most) for most in (4, 3, 3, 3, 3)])


def torch():
    pytest.importorskip("torch")
    return Float("torch", "float64")


MANY = {
    "Q": lambda: QQ,
    "GF": lambda: GF(2**61 - 1),
    "small GF": lambda: GF(10007),
    "mpmath": lambda: MP(30),
    "float64": Float,
    "float32": lambda: Float("numpy", "float32"),
    "torch": torch,
}
in_many = pytest.mark.parametrize("name", [*MANY, *MAKERS])


def named(name):
    return MANY[name]() if name in MANY else balls(30, name)


def agrees(system, run, want, *data):
    """The result on these numbers of ℚ is `want`: by ==, enclosed, or within its running error."""
    got, want = run(*map(system.convert, data)), QQ.convert(want)
    assert tuple(got.shape) == want.shape
    if system.exact:
        assert system.equal(got, system.convert(want))
    elif isinstance(system, Balls):
        assert contains(system, got, want) and informative(system, got)
    else:
        many = isinstance(system, Multiprecision)
        analysis, finer = RunningError("float64" if many else system.kind), 2.0 ** (53 - system.ctx.prec) if many else 1
        found = ri.judge(got, want, analysis.error(run(*map(analysis.convert, data))) * finer)
        assert found.verdict in ("EXACT", "WITHIN BOUND") and not found.vacuous, found


def agrees_exactly(run, want, *data):
    for system in EXACT:
        agrees(system, run, want, *data)


def T(x):
    return ri.system_of(x).xp.matrix_transpose(x)


def lists(*arrays):
    return [x.tolist() for x in arrays]


def learn(case, seed, system=QQ):
    """W_0, η, examples X and Y, inputs x."""
    shapes = (case.m, case.d), (), (case.N, case.d), (case.N, case.m), (case.T, case.d)
    return [system.random(shape, 10 * seed + i) for i, shape in enumerate(shapes)]


# The formulas, by loops over lists


def apply(W, x):
    """W x"""
    return [dot(row, x) for row in W]


def outer(a, b):
    return [[x * y for y in b] for x in a]


def plus(A, B, by=1):
    """A + by B, of matrices."""
    return [[a + by * b for a, b in zip(*rows, strict=True)] for rows in zip(A, B, strict=True)]


def zeros(rows, columns):
    return [[Fraction(0)] * columns for _ in range(rows)]


def loss_of(W, X, Y):
    """1/(2N) Σ_i |W x_i − y_i|²"""
    return sum((a - b) ** 2 for x, y in zip(X, Y, strict=True) for a, b in zip(apply(W, x), y, strict=True)) / (
        2 * len(X)
    )


def slopes(loss, W):
    """(L(W + E) − L(W − E))/2, entry by entry: the derivative, where L is of degree 2."""

    def moved(at, by):
        return [[w + by * ((i, j) == at) for j, w in enumerate(row)] for i, row in enumerate(W)]

    return [[(loss(moved((i, j), 1)) - loss(moved((i, j), -1))) / 2 for j in range(len(W[0]))] for i in range(len(W))]


def least_squares(W, X, Y):
    """(1/N) Σ_i (W x_i − y_i) x_iᵀ, by hand."""
    total = zeros(len(W), len(W[0]))
    for x, y in zip(X, Y, strict=True):
        total = plus(total, outer([a - b for a, b in zip(apply(W, x), y, strict=True)], x))
    return [[a / len(X) for a in row] for row in total]


def descent(W, eta, X, Y, steps):
    """The weights before the first step, and after each."""
    all_of = [W]
    for _ in range(steps):
        all_of.append(plus(all_of[-1], least_squares(all_of[-1], X, Y), -eta))
    return all_of


# Gradients


@given(case=lessons, seed=SEEDS)
def test_the_gradient_of_least_squares(case, seed):
    W, eta, X, Y, _ = learn(case, seed)
    by_hand = least_squares(*lists(W, X, Y))
    assert by_hand == slopes(lambda W: loss_of(W, *lists(X, Y)), W.tolist())
    agrees_exactly(lambda *data: gradient(squared_error, *data), by_hand, W, X, Y)
    agrees_exactly(
        lambda W, eta, X, Y: step(squared_error, W, eta, X, Y), plus(W.tolist(), by_hand, -eta.tolist()), W, eta, X, Y
    )


@in_many
@pytest.mark.parametrize("case", [Lesson(3, 2, 2), Lesson(1, 1, 1), Lesson(5, 1, 3)], ids=str)
def test_the_gradient_in_every_kind_of_numbers(name, case):
    system = named(name)
    W, eta, X, Y, _ = learn(case, 3)
    by_hand = least_squares(*lists(W, X, Y))
    agrees(system, lambda *data: gradient(squared_error, *data), by_hand, W, X, Y)
    agrees(
        system,
        lambda W, eta, X, Y: step(squared_error, W, eta, X, Y),
        plus(W.tolist(), by_hand, -eta.tolist()),
        W,
        eta,
        X,
        Y,
    )
    got = gradient(squared_error, *map(system.convert, (W, X, Y)))
    assert type(got) is type(system.convert(W)) and got.dtype == system.convert(W).dtype


@given(case=lessons, seed=SEEDS)
def test_losses_are_numbers_for_each_W(case, seed):
    W, _, X, Y, _ = learn(case, seed)
    agrees_exactly(squared_error, loss_of(*lists(W, X, Y)), W, X, Y)
    agrees_exactly(lambda W, X, Y: irie.half_squares(X @ T(W), Y), loss_of(*lists(W, X, Y)), W, X, Y)
    pointing = sum(dot(y, apply(W.tolist(), x)) for x, y in zip(*lists(X, Y), strict=True))
    agrees_exactly(alignment, pointing, W, Y, X)
    both = functools.reduce(plus, (outer(y, x) for x, y in zip(*lists(X, Y), strict=True)))
    agrees_exactly(lambda *data: gradient(alignment, *data), both, W, Y, X)


def test_the_loss_is_given_every_direction_at_once():
    seen = []

    def loss(W, x):
        seen.append((W.shape, x.shape))
        return squared_error(W, x, x)

    gradient(loss, QQ.ones((2, 2)), QQ.ones((3, 2)))
    gradient(loss, np.ones((2, 2)), np.ones((3, 2)))
    assert seen == [((4, 2, 2), (3, 2))] * 2


def total(x):
    xp = ri.system_of(x).xp
    return xp.sum(xp.sum(x, axis=-1), axis=-1)


def fourth_power(W):
    return total(W * W * W * W)


def test_a_loss_of_degree_four():
    """4 W³, where a difference would have given 4 W³ + 4 W."""
    W = QQ.random((2, 3), 5)
    cubes = [[4 * w**3 for w in row] for row in W.tolist()]
    for system in (*EXACT, balls(30), Float(), Float("numpy", "float32"), MP(30)):
        agrees(system, functools.partial(gradient, fourth_power), cubes, W)


@pytest.mark.parametrize("system", [MP(30), balls(30), Float()], ids=lambda system: system.name)
def test_a_loss_that_is_no_polynomial(system):
    """∂/∂w Σ exp w = exp w."""
    W = system.convert([[Fraction(1, 2), -1], [3, 0]])
    slope, want = gradient(lambda W: total(array_namespace(W).exp(W)), W), array_namespace(W).exp(W)
    near = (slope - want) if isinstance(system, Float) else ri.floats(slope) - ri.floats(want)
    assert abs(near).max() <= 16 * 2.0**-53 * np.exp(3)  # 4 units in the last place each, twice


@exact_systems
def test_a_loss_that_divides(system):
    """∂/∂w Σ 1/w = −1/w²; no difference would do."""
    W = system.convert([[2, -3], [5, Fraction(1, 2)]])
    assert system.equal(gradient(lambda W: total(1 / W), W), -1 / (W * W))


@exact_systems
def test_a_gradient_along_a_direction(system):
    """Over dual numbers the gradient has tangents (1/N) Σ (V x_i) x_iᵀ, by second derivatives."""
    W, _, X, Y, _ = learn(Lesson(3, 2, 2), 1, system)
    V, dual = system.random((2, 2), 77), Dual(system)
    data = (dual.join(x, 0 * x) for x in (X, Y))
    along = dual.tangent(gradient(squared_error, dual.join(W, V), *data))
    assert system.equal(along, gradient(squared_error, V, X, 0 * Y))


# Irie


@given(case=lessons, seed=SEEDS)
def test_a_trained_layer_attends_to_its_history(case, seed):
    W, _, X, E, x = learn(case, seed)
    trained = functools.reduce(plus, (outer(e, a) for a, e in zip(*lists(X, E), strict=True)), W.tolist())
    agrees_exactly(irie.trained_weights, trained, W, E, X)
    attended = []
    for query in x.tolist():
        o = apply(W.tolist(), query)
        for a, e in zip(*lists(X, E), strict=True):
            o = [b + c * dot(a, query) for b, c in zip(o, e, strict=True)]
        attended.append(o)
    agrees_exactly(irie.dual_form, attended, W, E, X, x)
    assert attended == [apply(trained, query) for query in x.tolist()]


@settings(max_examples=8)
@given(case=lessons, seed=SEEDS, steps=st.integers(0, 3))
def test_the_history_of_gradient_descent(case, seed, steps):
    W, eta, X, Y, x = learn(case, seed)
    weights = descent(W.tolist(), eta.tolist(), *lists(X, Y), steps)
    errors = []
    for before in weights[:-1]:
        for a, y in zip(*lists(X, Y), strict=True):
            errors.append([-eta.tolist() * (b - c) / case.N for b, c in zip(apply(before, a), y, strict=True)])

    def history(W, eta, X, Y):
        return irie.training_history(W, X, Y, eta, steps, irie.half_squares)

    if steps:
        agrees_exactly(lambda *data: history(*data)[0], errors, W, eta, X, Y)
        agrees_exactly(lambda *data: history(*data)[1], X.tolist() * steps, W, eta, X, Y)
    assert [a.shape for a in history(W, eta, X, Y)] == [(steps * case.N, case.m), (steps * case.N, case.d)]
    end = [apply(weights[-1], query) for query in x.tolist()]
    agrees_exactly(lambda W, eta, X, Y, x: irie.dual_form(W, *history(W, eta, X, Y), x), end, W, eta, X, Y, x)


def test_the_history_of_other_losses():
    """Σ y·Y, whose every step is the same; and Σ (y − Y)⁴ where numbers are exact."""
    W, eta, X, Y, _ = learn(Lesson(3, 2, 2), 4)

    def errors(loss):
        return lambda W, eta, X, Y: irie.training_history(W, X, Y, eta, 2, loss)[0]

    steady = [[-eta.tolist() * a for a in y] for y in Y.tolist() * 2]
    for system in (*EXACT, MP(30), balls(30), Float()):
        agrees(system, errors(lambda y, Y: total(y * Y)), steady, W, eta, X, Y)
    weights, want = W.tolist(), []
    for _ in range(2):
        e = [
            [-eta.tolist() * 4 * (b - c) ** 3 for b, c in zip(apply(weights, a), y, strict=True)]
            for a, y in zip(*lists(X, Y), strict=True)
        ]
        weights, want = (
            functools.reduce(plus, (outer(b, a) for a, b in zip(X.tolist(), e, strict=True)), weights),
            want + e,
        )
    agrees_exactly(errors(lambda y, Y: fourth_power(y - Y)), want, W, eta, X, Y)


# von Oswald


@given(case=lessons, seed=SEEDS)
def test_linear_self_attention(case, seed):
    """e_j + P Σ_i (W_V e_i) (W_K e_i)·(W_Q e_j), whatever the weights."""
    width = case.d + case.m
    tokens, context = QQ.random((case.T, width), seed), QQ.random((case.N, width), seed + 1)
    weights = [QQ.random((width, width), seed + 2 + i) for i in range(4)]
    W_Q, W_K, W_V, P = lists(*weights)
    want = []
    for e in tokens.tolist():
        change = [Fraction(0)] * width
        for c in context.tolist():
            score = dot(apply(W_K, c), apply(W_Q, e))
            change = [a + score * b for a, b in zip(change, apply(W_V, c), strict=True)]
        want.append(oracle.plus(e, apply(P, change)))
    agrees_exactly(von_oswald.self_attention, want, tokens, context, *weights)


def test_the_weights_of_proposition_1():
    W_Q, W_K, W_V, P = von_oswald.proposition_1(QQ.convert([[5, 6], [7, 8]]), Fraction(1, 2), 3)
    assert W_Q.tolist() == W_K.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert W_V.tolist() == [[0, 0, 0, 0], [0, 0, 0, 0], [5, 6, -1, 0], [7, 8, 0, -1]]
    assert P.tolist() == [[Fraction(1, 6) * (i == j) for j in range(4)] for i in range(4)]
    assert von_oswald.examples(QQ.convert([[1, 2]]), QQ.convert([[3]])).tolist() == [[1, 2, 3]]
    assert von_oswald.queries(QQ.convert([[1, 2]]), QQ.convert([[3, 4]])).tolist() == [[1, 2, -11]]
    assert von_oswald.predictions(QQ.convert([[1, 2, 3]]), 2).tolist() == [[-2, -3]]
    assert von_oswald.model_examples(QQ.convert([[1, 2]]), QQ.convert([[3]])).tolist() == [[1, 2, 1, 2, 3]]
    assert von_oswald.model_queries(QQ.convert([[1, 2]]), QQ.convert([[3, 4]])).tolist() == [[0, 0, 1, 2, -11]]


@given(case=lessons, seed=SEEDS, zero=st.booleans(), steps=st.integers(0, 3))
def test_layers_are_steps(case, seed, zero, steps):
    """Vector targets, several queries, W_0 = 0 or not; and what becomes of the examples."""
    W, eta, X, Y, x = learn(case, seed)
    W = 0 * W if zero else W
    last = descent(W.tolist(), eta.tolist(), *lists(X, Y), steps)[-1]
    data, count = (W, eta, X, Y, x), steps

    def asked(W, eta, X, Y, x):
        return von_oswald.steps(von_oswald.queries(x, W), von_oswald.examples(X, Y), W, eta, count)

    def shown(W, eta, X, Y, x):
        return von_oswald.steps(von_oswald.examples(X, Y), von_oswald.examples(X, Y), W, eta, count)

    want = [apply(last, query) for query in x.tolist()]
    agrees_exactly(lambda *data: von_oswald.predictions(asked(*data), case.m), want, *data)
    change = plus(last, W.tolist(), -1)
    moved = [a + [b - c for b, c in zip(y, apply(change, a), strict=True)] for a, y in zip(*lists(X, Y), strict=True)]
    agrees_exactly(shown, moved, *data)


@given(case=lessons, seed=SEEDS)
def test_dampened_layers_are_smaller_steps(case, seed):
    """e + λ (layer(e) − e), layer after layer, by loops over tokens; they are steps of rate λη."""
    W, eta, X, Y, x = learn(case, seed)
    factor = Fraction(seed % 7, 5)
    shown, asked = lists(von_oswald.examples(X, Y), von_oswald.queries(x, W))
    for _ in range(case.steps):
        layer = {
            id(tokens): von_oswald.steps(QQ.convert(tokens), QQ.convert(shown), W, eta, 1).tolist()
            for tokens in (shown, asked)
        }
        shown, asked = (
            plus([[(1 - factor) * a for a in e] for e in tokens], layer[id(tokens)], factor)
            for tokens in (shown, asked)
        )
    last = descent(W.tolist(), factor * eta.tolist(), *lists(X, Y), case.steps)[-1]
    assert [[-a for a in e[case.d :]] for e in asked] == [apply(last, query) for query in x.tolist()]

    def dampened(W, eta, X, Y, x):
        return von_oswald.steps(
            von_oswald.queries(x, W), von_oswald.examples(X, Y), W, eta, case.steps, dampening=factor
        )

    agrees_exactly(dampened, asked, W, eta, X, Y, x)


@settings(max_examples=8)
@given(case=lessons, seed=SEEDS, hidden=st.integers(1, 3))
def test_behind_a_map_the_model_descends_on_what_it_makes(case, seed, hidden):
    """m(x) = x + W_2 σ(W_1 x) with σ(h) = h/2 + h²/4, on lists; then descent on (m(x_i), y_i)."""
    W, eta, X, Y, x = learn(case, seed)
    W_1, W_2 = QQ.random((hidden, case.d), seed + 50), QQ.random((case.d, hidden), seed + 51)

    def mapped(row):
        return oracle.plus(row, apply(W_2.tolist(), [h / 2 + h**2 / 4 for h in apply(W_1.tolist(), row)]))

    inputs, queries = [[mapped(row) for row in a.tolist()] for a in (X, x)]
    last = descent(W.tolist(), eta.tolist(), inputs, Y.tolist(), case.steps)[-1]

    def run(W, eta, X, Y, x, W_1, W_2):
        model = von_oswald.mapped_model(von_oswald.regression_model(W, eta, case.N, layers=case.steps), W, W_1, W_2)
        both = [von_oswald.model_examples(X, Y), von_oswald.model_queries(x, W)]
        out = model(ri.system_of(x).xp.concat(both, axis=0), mask=case.N)[case.N :, :]
        assert not ri.system_of(x).xp.any(out[:, : case.d] != 0)  # a query is no key
        return von_oswald.predictions(out, case.m)

    agrees_exactly(run, [apply(last, query) for query in queries], W, eta, X, Y, x, W_1, W_2)


def test_no_gamma_is_no_gamma_in_any_numbers():
    for W, zeros in ((QQ.ones((1, 2)), (0, Fraction(0), QQ.convert(0))), (np.ones((1, 2)), (0, 0.0, np.asarray(0.0)))):
        assert {von_oswald.regression_model(W, 1, 2, gamma=gamma).config.heads for gamma in zeros} == {1}
        assert von_oswald.regression_model(W, 1, 2, gamma=1).config.heads == 3


def test_the_bias_of_gd_plus_plus():
    """Where d > m heads are d wide: m columns of the first are the step, the rest is 0."""
    W, eta, X, Y, _ = learn(Lesson(3, 3, 2), 8)
    bias = (
        convert(
            von_oswald.regression_model(W, eta, 3, gamma=Fraction(1, 3)), von_oswald.model_examples(X, Y), mask="full"
        )
        .biases[0]
        .S[0]
    )
    assert bias.shape == (3, 3) and QQ.equal(bias[:, 2:], QQ.zeros((3, 1)))
    assert QQ.equal(von_oswald.weight_update(bias[:, :2], eta, 3), step(squared_error, W, eta, X, Y) - W)


@settings(max_examples=8)
@given(case=lessons, seed=SEEDS)
def test_an_ordinary_model_of_the_same(case, seed):
    """The examples as a prompt, converted, and taken out again; every layer's bias is its step."""
    W, eta, X, Y, x = learn(case, seed)
    weights = descent(W.tolist(), eta.tolist(), *lists(X, Y), case.steps)
    want = [apply(weights[-1], query) for query in x.tolist()]
    for system in EXACT:
        numbers = [system.convert(a) for a in (W, eta, X, Y, x)]
        model = von_oswald.regression_model(*numbers[:2], case.N, layers=case.steps)
        shown, asked = von_oswald.model_examples(*numbers[2:4]), von_oswald.model_queries(numbers[4], numbers[0])
        prompted = model(system.concat([shown, asked], axis=0), mask=case.N)
        converted = convert(model, shown, mask="full")
        for out in (prompted[case.N :, :], converted(asked)):
            assert system.equal(von_oswald.predictions(out, case.m), system.convert(QQ.convert(want)))
            assert system.equal(out[:, : 2 * case.d], asked[:, : 2 * case.d])
        for (before, after), bias in zip(pairwise(weights), converted.biases, strict=True):
            change = von_oswald.weight_update(bias.S[0], numbers[1], case.N)
            assert system.equal(change, system.convert(QQ.convert(plus(after, before, -1))))
        restored = unconvert(converted, shown, mask="full")
        assert system.equal(restored(asked), asked) and system.equal(model(asked), asked)


def test_a_learning_rate_may_be_an_integer():
    W, _, X, Y, _ = learn(Lesson(3, 2, 2), 6)
    one, third = QQ.convert(1), Fraction(1, 3)
    for eta in (1, Fraction(1), one):
        assert QQ.equal(
            von_oswald.regression_model(W, eta, 3)(von_oswald.model_examples(X, Y), mask=3)[:, 4:],
            Y - X @ change_of(W, X, Y, one),
        )
        assert QQ.equal(von_oswald.weight_update(W, eta, 3), -third * QQ.matrix_transpose(W))
        assert QQ.equal(step(squared_error, W, eta, X, Y), W + QQ.matrix_transpose(change_of(W, X, Y, one)))
        assert QQ.equal(
            ren_liu.subtract_negatives(Y, [[1, 2], [2, 0], [0, 1]], eta)[0, :], Y[0, :] - (Y[1, :] + Y[2, :]) / 2
        )
    half = np.asarray(von_oswald.weight_update(np.ones((1, 2)), 1, 2))
    assert half.tolist() == [[-0.5], [-0.5]]


def change_of(W, X, Y, eta):
    """ΔWᵀ of one step."""
    return QQ.matrix_transpose(QQ.convert(plus(zeros(*W.shape), least_squares(*lists(W, X, Y)), -eta.tolist())))


@given(case=lessons, seed=SEEDS)
def test_layers_of_gd_plus_plus(case, seed):
    """Each layer by loops, on the x_i of the layer before.

    y_j + (η/N) Σ (W_0 x_i − y_i)(x_i·x_j)        x_j − γ Σ x_i (x_i·x_j)
    """
    W, eta, X, Y, x = learn(case, seed)
    gamma = QQ.random((), seed + 99)
    layers = min(case.steps, 2)
    inputs, targets = (
        [*lists(X)[0], *lists(x)[0]],
        [*lists(Y)[0], *([-a for a in apply(W.tolist(), query)] for query in x.tolist())],
    )
    for _ in range(layers):
        keys, values = inputs[: case.N], targets[: case.N]
        values = [
            [a - b for a, b in zip(apply(W.tolist(), k), y, strict=True)] for k, y in zip(keys, values, strict=True)
        ]
        seen = [[(dot(k, a), k, v) for k, v in zip(keys, values, strict=True)] for a in inputs]
        rate = eta.tolist() / case.N
        targets = [
            [b + rate * sum(s * v[j] for s, _, v in row) for j, b in enumerate(y)]
            for y, row in zip(targets, seen, strict=True)
        ]
        inputs = [
            [b - gamma.tolist() * sum(s * k[j] for s, k, _ in row) for j, b in enumerate(a)]
            for a, row in zip(inputs, seen, strict=True)
        ]
    keys = inputs[: case.N] + zeros(case.T, case.d)

    def run(W, eta, gamma, X, Y, x):
        model = von_oswald.regression_model(W, eta, case.N, layers=layers, gamma=gamma)
        both = [von_oswald.model_examples(X, Y), von_oswald.model_queries(x, W)]
        return model(ri.system_of(x).xp.concat(both, axis=0), mask=case.N)

    agrees_exactly(run, [a + b + c for a, b, c in zip(keys, inputs, targets, strict=True)], W, eta, gamma, X, Y, x)


@given(case=lessons, seed=SEEDS)
def test_pairs_are_built_from_separate_tokens(case, seed):
    _, _, X, Y, _ = learn(case, seed)
    d, m, N = case.d, case.m, case.N
    apart = [
        token + [Fraction(0)] * 2 * N for x, y in zip(*lists(X, Y), strict=True) for token in (x + [0] * m, [0] * d + y)
    ]
    places = [[Fraction(i == j) for j in range(2 * N)] for i in range(2 * N)]
    pairs = [token for x, y in zip(*lists(X, Y), strict=True) for token in (x + [0] * m, x + y)]
    agrees_exactly(
        lambda tokens: von_oswald.pairing_model(tokens, d, m, N)(tokens),
        [token + place for token, place in zip(pairs, places, strict=True)],
        QQ.convert(apart),
    )


# Dai


@given(case=lessons, seed=SEEDS)
def test_implicit_finetuning(case, seed):
    """Each by its sum over tokens."""
    width = case.d + 1
    shapes = (
        (2, case.d),
        (case.N, width),
        (case.T, width),
        (case.d, width),
        (case.m, width),
        (case.d, width),
        (case.m, width),
    )
    q, shown, X, W_K, W_V, dW_K, dW_V = data = [QQ.random(shape, 10 * seed + i) for i, shape in enumerate(shapes)]

    def read(tokens, W_K, W_V):
        return [
            [sum(dot(apply(W_K, x), query) * apply(W_V, x)[j] for x in tokens) for j in range(case.m)]
            for query in q.tolist()
        ]

    K, V = lists(W_K, W_V)
    agrees_exactly(
        lambda q, shown, X, K, V, *_: dai.f_icl(q, shown, X, K, V), read(lists(shown)[0] + lists(X)[0], K, V), *data
    )
    agrees_exactly(lambda q, shown, X, K, V, *_: dai.f_zsl(q, X, K, V), read(X.tolist(), K, V), *data)
    tuned = plus(K, dW_K.tolist()), plus(V, dW_V.tolist())
    agrees_exactly(lambda q, shown, *rest: dai.f_ft(q, *rest), read(X.tolist(), *tuned), *data)
    change = functools.reduce(plus, (outer(apply(V, x), apply(K, x)) for x in shown.tolist()))
    agrees_exactly(lambda q, shown, X, K, V, *_: dai.delta_W(shown, K, V), change, *data)


@given(case=lessons, seed=SEEDS)
def test_momentum_attention(case, seed):
    n, m = case.N + case.T, case.m
    o, v, eta = QQ.random((n, m), seed), QQ.random((n, m), seed + 1), QQ.random((), seed + 2)
    want = [
        [a + sum(eta.tolist() ** (t - i) * v.tolist()[i][j] for i in range(t)) for j, a in enumerate(row)]
        for t, row in enumerate(o.tolist())
    ]
    agrees_exactly(dai.momentum_attention, want, o, v, eta)
    assert dai.momentum_attention(o[:0, :], v[:0, :], 2).shape == (0, m)


@given(st.lists(st.tuples(*[st.booleans()] * 3), max_size=9))
def test_rec2ftp(answers):
    zsl, icl, ft = (list(column) for column in zip(*answers, strict=True)) if answers else ([], [], [])
    to_gain = [i for i in range(len(answers)) if ft[i] and not zsl[i]]
    if to_gain:
        want = len([i for i in to_gain if icl[i]]) / len(to_gain)
        assert dai.rec2ftp(zsl, icl, ft) == dai.rec2ftp(*map(np.asarray, (zsl, icl, ft))) == want
    else:
        with says(
            ValueError, "rec2ftp: `ft` must be right somewhere where `zsl` is wrong, else there is nothing to recall"
        ):
            dai.rec2ftp(zsl, icl, ft)


def root(x):
    """√x, right to 60 digits."""
    return Fraction(isqrt(x.numerator * x.denominator * 10**140), x.denominator * 10**70)


def straight(h):
    return [a / root(dot(h, h)) for a in h]


def angle(a, b):
    return dot(a, b) / root(dot(a, a) * dot(b, b))


def parallel(a, b):
    """Then one of them is 0, or both point the same way or the opposite."""
    return dot(a, b) ** 2 == dot(a, a) * dot(b, b)


def update_angle(zsl, icl, ft):
    zsl, icl, ft = map(straight, (zsl, icl, ft))
    return angle([a - b for a, b in zip(icl, zsl, strict=True)], [a - b for a, b in zip(ft, zsl, strict=True)])


@pytest.mark.parametrize("maker", MAKERS)
@given(n=st.integers(1, 3), m=st.integers(2, 4), seed=SEEDS)
def test_cosines(maker, n, m, seed):
    """Enclosed: the truth, to 60 digits, is a rational within the ball."""
    numbers = balls(25, maker)
    a, b, c = (QQ.random((n, m), 3 * seed + i) for i in range(3))
    assume(not any(parallel(x, y) for x, *rest in zip(*lists(a, b, c), strict=True) for y in rest))
    truth = QQ.convert(
        [[angle(*rows), update_angle(*rows, other)] for *rows, other in zip(*lists(a, b, c), strict=True)]
    )
    a, b, c = map(numbers.convert, (a, b, c))
    found = numbers.stack([dai.cosine(a, b), dai.sim_aou(a, b, c)], axis=-1)
    assert contains(numbers, found, truth) and informative(numbers, found)
    assert contains(numbers, dai.sim_am(b, a), truth[:, 0]) and contains(numbers, dai.cosine(-a, b), -truth[:, 0])
    assert contains(numbers, dai.unit(a), QQ.convert([straight(row) for row in lists(numbers_in_Q(a))[0]]))


def numbers_in_Q(x):
    return QQ.convert(x.system.fractions(x))


def test_cosines_of_vectors_with_whole_lengths():
    a, b = np.asarray([3.0, 4.0]), np.asarray([[4.0, 3.0], [-6.0, -8.0], [8.0, -6.0]])
    assert dai.unit(a).tolist() == [3 / 5, 4 / 5] and dai.cosine(a, a) == 1
    assert dai.cosine(a + 0 * b, b).tolist() == [24 / 25, -1, 0]
    east, up = MP(30).convert([2, 0]), MP(30).convert([0, 7])
    assert MP(30).equal(dai.sim_aou(east, up, -up), MP(30).convert(0))


def test_cosines_need_a_length():
    for zero, other in (([0.0, 0.0], [1.0, 2.0]), ([[1.0, 1.0], [0.0, 0.0]], [[1.0, 2.0]] * 2)):
        where = "token 0" if zero[0] == 0 else "token 1"
        with says(ri.ZeroDenominator, f"cosine: the denominator |a| |b| is zero at {where} (no ε is added)"):
            dai.cosine(np.asarray(zero), np.asarray(other))
        with says(ri.ZeroDenominator, f"unit: the denominator |h| is zero at {where} (no ε is added)"):
            dai.unit(np.asarray(zero))
    heads = np.asarray([[[1.0], [2.0]], [[3.0], [0.0]]])
    with says(ri.ZeroDenominator, "unit: the denominator |h| is zero at token 1, head (1,) (no ε is added)"):
        dai.unit(heads)
    with says(ri.NotDefined, "sqrt is not defined in ℚ; it needs a real system"):
        dai.cosine(QQ.ones((2,)), QQ.ones((2,)))


def test_cosines_of_long_vectors_do_not_overflow():
    """|a|² |b|² = 2⁸⁰⁰ · 2⁸⁰⁰ would; |a| |b| does not."""
    long = np.asarray([3.0, 4.0]) * 2.0**400
    assert dai.cosine(long, long) == 1 and dai.cosine(long / 2.0**900, long / 2.0**900) == 1


@given(order=st.integers(2, 9).flatmap(lambda n: st.permutations(range(n))))
def test_kendalls_tau(order):
    from scipy.stats import kendalltau

    n = len(order)
    agree = sum(1 if (order[i] - order[j]) * (i - j) > 0 else -1 for i in range(n) for j in range(i))
    for kind in (list, lambda x: np.asarray(x, dtype=float), lambda x: [Fraction(a, 3) for a in x]):
        assert dai.kendall_tau(kind(order), kind(range(n))) == 2 * agree / (n * (n - 1))
    assert (
        abs(dai.kendall_tau(order, range(n)) - kendalltau(order, range(n)).statistic) <= 6 * 2.0**-53
    )  # scipy divides by two roots
    assert (
        dai.kendall_tau([1, 1, 2], [3, 3, 5]) == 2 / 3 and dai.kendall_tau([1, 1, 2], [3, 4, 5]) == 2 / 3
    )  # a tie counts for neither


SMALL = Config(2, 3, heads=2, groups=1, d=2, m=2, phi="identity", norm="none", normalise=False)


@functools.cache
def read(system=QQ, *, tuned=False):
    """The heads of a model of two layers, in plain Python, on a text and after demonstrations."""
    model = random_model(QQ, SMALL, seed=3 + tuned)
    shown, text = QQ.random((4, 3), 20), QQ.random((3, 3), 21)
    if system is not QQ:
        model = replace(model, weights={name: system.convert(w) for name, w in model.weights.items()})
    return model, system.convert(shown), system.convert(text)


def heads_by_loops(model, text):
    """For each layer and head: q, k, v, o."""
    w, x, found = {name: a.tolist() for name, a in model.weights.items()}, text.tolist(), []
    for i in range(SMALL.layers):
        q, k, v = ([times(row, w[f"layers.{i}.W_{name}"]) for row in x] for name in "QKV")
        layer = []
        for h in range(2):
            mine = [row[2 * h : 2 * h + 2] for row in q]
            o, *_ = oracle.attention(mine, k, v, phi_q=list, phi_k=list, normalise=False)
            layer.append((mine, k, v, o))
        x = [
            oracle.plus(row, times([*layer[0][3][t], *layer[1][3][t]], w[f"layers.{i}.W_O"])) for t, row in enumerate(x)
        ]
        found.append(layer)
    return found


def test_watching_a_model_read():
    model, _, text = read()
    watched = dai.record_heads(model, text)
    for heads, by_loops in zip(watched, heads_by_loops(model, text), strict=True):
        assert heads.q.tolist() == [[q for q, *_ in by_loops]] and heads.o.tolist() == [[o for *_, o in by_loops]]
        assert (heads.k.tolist(), heads.v.tolist()) == ([[by_loops[0][1]]], [[by_loops[0][2]]])
        scores = heads.scores(slice(1, 3), slice(0, 2))
        assert scores.tolist() == [[[[dot(q[t], k[s]) for s in (0, 1)] for t in (1, 2)] for q, k, *_ in by_loops]]
    assert len(dai.record_heads(model, text, mask="full")) == 2
    assert not QQ.equal(dai.record_heads(model, text, mask="full")[0].o, watched[0].o)


def test_likeness_of_small_models():
    """In balls, against loops in ℚ and roots to 60 digits."""
    numbers = balls(30)
    model, shown, text = read()
    other = read(tuned=True)[0]
    zsl, icl, ft, both = (
        heads_by_loops(m, x)
        for m, x in (
            (model, text),
            (model, QQ.concat([shown, text], axis=0)),
            (other, text),
            (other, QQ.concat([shown, text], axis=0)),
        )
    )
    found = dai.likeness(read(numbers)[0], read(numbers, tuned=True)[0], *read(numbers)[1:])
    assert len(found) == 2
    for i, layer in enumerate(found):
        aou = [update_angle(*(heads[i][h][3][-1] for heads in (zsl, icl, ft))) for h in range(2)]
        scores = [[[dot(q[-1], a) for a in k] for q, k, *_ in heads[i]] for heads in (icl, ft, both)]
        am = [angle(a[4:], b) for a, b in zip(*scores[:2], strict=True)]
        assert contains(numbers, layer.sim_aou, QQ.convert([aou])) and contains(numbers, layer.sim_am, QQ.convert([am]))
        assert informative(numbers, layer.sim_aou) and informative(numbers, layer.sim_am)
        assert layer.kendall == [dai.kendall_tau(a[:4], b[:4]) for a, b in zip(scores[0], scores[2], strict=True)]


def test_a_prompt_in_the_biases_is_as_like_as_can_be():
    """A model with demonstrations as biases stands for a finetuned one: cosines 1, same order."""
    numbers = balls(30)
    model, shown, text = read(numbers)
    for layer in dai.likeness(model, convert(model, shown), shown, text)[:1]:
        for cosines in (layer.sim_aou, layer.sim_am):
            assert contains(numbers, cosines, QQ.ones((1, 2))) and informative(numbers, cosines)
        assert layer.kendall == [1, 1]


def test_no_update_has_no_direction():
    model, shown, text = read(Float())
    with says(ri.ZeroDenominator, "cosine: the denominator |a| |b| is zero at token 0"):
        dai.likeness(model, model, shown, text)


# Ren & Liu


def attended(case, seed):
    """η, and what a query sees; values and features are any."""
    shapes = (), (case.N, case.d), (case.N, case.m), (case.T, case.d), (case.T, case.m), (case.d,)
    eta, *arrays = (QQ.random(shape, 10 * seed + i) for i, shape in enumerate(shapes))
    return eta, arrays


def by_definition(K_D, V_D, K_T, V_T, q, *, text=1):
    """Σ κ(k_i, q) v_i / D; D; and the weight of each token. text : a factor of its values."""
    scores = [dot(k, q) for k in [*K_D, *K_T]]
    values = [*V_D, *([text * a for a in v] for v in V_T)]
    if not sum(scores):
        reject()
    return [sum(s * v[j] for s, v in zip(scores, values, strict=True)) / sum(scores) for j in range(len(V_T[0]))], sum(
        scores
    )


@settings(max_examples=8)
@given(case=lessons, seed=SEEDS)
def test_attention_is_a_gradient_step(case, seed):
    eta, arrays = attended(case, seed)
    o, D = by_definition(*lists(*arrays))
    assume(eta.tolist() != 0)

    def of(f):
        return lambda eta, *arrays: f(ren_liu.QueryContext(*arrays), eta)

    agrees_exactly(of(lambda seen, eta: seen.D), [D], eta, *arrays)
    agrees_exactly(of(lambda seen, eta: ren_liu.attention(seen)), o, eta, *arrays)
    agrees_exactly(of(ren_liu.one_step), o, eta, *arrays)
    agrees_exactly(of(ren_liu.one_at_a_time), o, eta, *arrays)
    _, _, K_T, V_T, _ = lists(*arrays)
    first = functools.reduce(plus, (outer(v, k) for k, v in zip(K_T, V_T, strict=True)))
    agrees_exactly(of(lambda seen, eta: ren_liu.W_0(seen)), [[a / D for a in row] for row in first], eta, *arrays)


def test_the_loss_of_the_dual_model():
    """−1/(ηD) Σ v_iᵀ W φ(k_i), and the terms that the table of `Variant` adds to it."""
    eta, (K_D, V_D, K_T, V_T, q) = attended(Lesson(3, 2, 2, T=2), 5)
    W = QQ.random((2, 2), 99)
    seen = ren_liu.QueryContext(K_D, V_D, K_T, V_T, q)
    pointing = [[dot(v, apply(W.tolist(), k)) for v in V_D.tolist()] for k in K_D.tolist()]
    scale, v_q = eta.tolist() * seen.D.tolist()[0], V_T.tolist()[-1]
    assert ren_liu.dual_loss(W, V_D, K_D, seen.D, eta).tolist() == -sum(pointing[i][i] for i in range(3)) / scale
    decay, penalty, off, beta = (Fraction(i, 7) for i in range(1, 5))
    negatives = [[1, 2], [2, 0], [0, 0]]
    want = -sum(pointing[i][i] - beta / 2 * sum(pointing[i][j] for j in negatives[i]) for i in range(3)) / scale
    want += (decay / (2 * eta.tolist()) + penalty / 2) * sum(w**2 for row in W.tolist() for w in row)
    want += off / (eta.tolist() * dot(q.tolist(), q.tolist())) * dot(v_q, apply(W.tolist(), q.tolist()))
    loss = ren_liu.variant_loss(ren_liu.Variant(decay, penalty, off, negatives, beta))
    assert (
        loss(W, V_D, K_D, seen.D, eta, q, V_T[-1:, :], *map(QQ.convert, (decay, penalty, off, beta))).tolist() == want
    )


def test_with_no_demonstrations_there_is_no_step():
    eta, (K, V, K_T, V_T, q) = attended(Lesson(2, 3, 2, T=2), 0)
    seen = ren_liu.QueryContext(K[:0, :], V[:0, :], K_T, V_T, q)
    want = QQ.convert(by_definition([], [], *lists(K_T, V_T, q))[0])
    for got in (ren_liu.attention(seen), ren_liu.one_step(seen, eta), ren_liu.one_at_a_time(seen, eta)):
        assert QQ.equal(got, want)


@given(
    case=lessons,
    seed=SEEDS,
    used=st.sets(st.sampled_from(["decay", "penalty", "off_diagonal", "negatives", "values", "keys"])),
)
def test_variants_of_attention(case, seed, used):
    """The sums in the table of `Variant`, with any options at once; each is a gradient step."""
    eta, (K_D, V_D, K_T, V_T, q) = attended(case, seed)
    amounts = {name: Fraction(1 + i, 3) for i, name in enumerate(("decay", "penalty", "off_diagonal")) if name in used}
    beta, k = Fraction(1, 10), 1 + seed % 3
    chosen = [[(i + j) % case.N for j in range(1, k + 1)] for i in range(case.N)] if "negatives" in used else None
    values = [[a * a for a in row] for row in V_D.tolist()] if "values" in used else V_D.tolist()
    keys = [[3 * a + 1 for a in row] for row in K_D.tolist()] if "keys" in used else K_D.tolist()
    less = [
        [a - beta / k * sum(values[j][i] for j in chosen[n]) for i, a in enumerate(v)] if chosen else v
        for n, v in enumerate(values)
    ]
    factor = 1 - amounts.get("decay", 0) - eta.tolist() * amounts.get("penalty", 0)
    o, _ = by_definition(keys, less, *lists(K_T, V_T, q), text=factor)
    o = [a - amounts.get("off_diagonal", 0) * b for a, b in zip(o, V_T.tolist()[-1], strict=True)]
    assume(eta.tolist() != 0 and dot(q.tolist(), q.tolist()) != 0)
    variant = ren_liu.Variant(
        **amounts,
        **({"negatives": chosen, "beta": beta} if chosen else {}),
        **({"values": lambda V: V * V} if "values" in used else {}),
        **({"keys": lambda K: 3 * K + 1} if "keys" in used else {}),
    )
    data = eta, K_D, V_D, K_T, V_T, q
    agrees_exactly(lambda eta, *seen: ren_liu.attention(ren_liu.QueryContext(*seen), variant, eta=eta), o, *data)
    agrees_exactly(lambda eta, *seen: ren_liu.one_step(ren_liu.QueryContext(*seen), eta, variant), o, *data)


def test_negatives_may_be_an_array():
    eta, arrays = attended(Lesson(3, 2, 2, T=2), 1)
    seen = ren_liu.QueryContext(*arrays)
    by_lists, by_arrays = (
        ren_liu.Variant(negatives=chosen, beta=2) for chosen in ([[1], [2], [0]], np.asarray([[1], [2], [0]]))
    )
    for f in (ren_liu.attention, lambda seen, variant: ren_liu.one_step(seen, eta, variant)):
        assert QQ.equal(f(seen, by_arrays), f(seen, by_lists)) and not QQ.equal(
            f(seen, by_arrays), f(seen, ren_liu.NORMAL)
        )


def test_the_two_readings_of_the_regulariser_differ():
    """Decay does not know η; a penalty does, and is the decay ηα; neither is the slides' form."""
    eta, arrays = attended(Lesson(2, 2, 2, T=2), 1)
    seen, alpha = ren_liu.QueryContext(*arrays), Fraction(1, 3)
    decay, penalty, slides = (ren_liu.Variant(**{name: alpha}) for name in ("decay", "penalty", "off_diagonal"))
    steps = {
        name: [ren_liu.one_step(seen, r, v) for r in (eta, 2 * eta)]
        for name, v in (("d", decay), ("p", penalty), ("s", slides))
    }
    assert QQ.equal(*steps["d"]) and not QQ.equal(*steps["p"]) and QQ.equal(*steps["s"])
    assert QQ.equal(steps["p"][0], ren_liu.attention(seen, ren_liu.Variant(decay=eta * alpha)))
    assert not QQ.equal(steps["d"][0], steps["s"][0])


@given(case=lessons, seed=SEEDS, k=st.integers(1, 3))
def test_negatives(case, seed, k):
    """Whose keys are least like, by loops; and the values less their mean."""
    case = replace(case, N=case.N + 3)
    K, V = QQ.random((case.N, case.d), seed), QQ.random((case.N, case.m), seed + 1)
    keys, values, beta = K.tolist(), V.tolist(), Fraction(1, 2)
    chosen = ren_liu.least_similar(K, k)
    for i, row in enumerate(chosen):
        others = [j for j in range(case.N) if j != i]
        assert len(set(row)) == k and set(row) <= set(others)
        assert all(dot(keys[i], keys[j]) <= dot(keys[i], keys[h]) for j in row for h in others if h not in row)
    assert ren_liu.least_similar(Float().convert(K), k) == chosen
    want = [
        [a - beta / k * sum(values[j][i] for j in row) for i, a in enumerate(v)]
        for v, row in zip(values, chosen, strict=True)
    ]
    agrees_exactly(lambda V, beta: ren_liu.subtract_negatives(V, chosen, beta), want, V, QQ.convert(beta))
    assert ren_liu.subtract_negatives(V[:0, :], [], 1).shape == (0, case.m)


def test_a_residual_map():
    W_1, W_2, x = QQ.random((4, 2), 1), QQ.random((2, 4), 2), QQ.random((3, 2), 3)
    c = Fraction(2, 7)
    want = [
        [a + c * b for a, b in zip(row, apply(W_2.tolist(), [h**2 for h in apply(W_1.tolist(), row)]), strict=True)]
        for row in x.tolist()
    ]
    agrees_exactly(lambda W_1, W_2, x: ren_liu.residual(W_1, W_2, c, lambda h: h * h)(x), want, W_1, W_2, x)


@given(case=lessons, seed=SEEDS, hidden=st.integers(1, 4))
def test_an_mlp_behind_attention(case, seed, hidden):
    eta, arrays = attended(case, seed)
    assume(eta.tolist() != 0)
    W_1, W_2 = QQ.random((hidden, case.m), seed + 1), QQ.random((2, hidden), seed + 2)
    o, _ = by_definition(*lists(*arrays))
    want = apply(W_2.tolist(), [max(a, 0) for a in apply(W_1.tolist(), o)])
    behind = ren_liu.through_relu(ren_liu.QueryContext(*arrays), W_1, W_2)
    assert ren_liu.attention(behind).tolist() == ren_liu.one_step(behind, eta).tolist() == want


@pytest.mark.parametrize("name", ["float64", "mpmath", "torch"])
def test_gram_features_of_a_known_factor(name):
    """Of small integers, where no operation rounds."""
    C = [[2, 0, 0, 0], [3, 1, 0, 0], [-4, 5, 2, 0], [1, -1, 3, 4]]
    G = QQ.convert(C) @ QQ.matrix_transpose(QQ.convert(C))
    assert ri.floats(ren_liu.gram_features(named(name).convert(G))).tolist() == C
    assert ren_liu.gram_features(np.ones((0, 0))).shape == (0, 0)


@pytest.mark.parametrize("maker", MAKERS)
@given(n=st.integers(1, 4), seed=SEEDS)
def test_gram_features_have_this_gram_matrix(maker, n, seed):
    A = QQ.random((n, n), seed)
    G, numbers = A @ QQ.matrix_transpose(A) + QQ.eye(n), balls(30, maker)
    features = ren_liu.gram_features(numbers.convert(G))
    assert contains(numbers, features @ numbers.matrix_transpose(features), G) and informative(numbers, features)
    assert all(features[i, j].tolist() == 0 for i in range(n) for j in range(i + 1, n))


@pytest.mark.parametrize("name", ["float64", "mpmath", "torch", *MAKERS])
def test_a_matrix_that_is_no_gram_matrix(name):
    for G in ([[1, 2], [2, 1]], [[0]], [[1, 1], [1, 1]]):
        with says(ValueError, f"gram_features: `G` must be positive definite, it is not at token {len(G) - 1}"):
            ren_liu.gram_features(named(name).convert(G))


SOFTMAX = [Lesson(2, 4, 2, T=1), Lesson(1, 4, 1, T=3)]


def sees(case, seed):
    width = case.d - 1
    shapes = (case.N, width), (case.T, width), (case.d, width), (case.d, width), (case.m, width)
    return [QQ.random(shape, 10 * seed + i) / 4 for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("case", SOFTMAX, ids=str)
@pytest.mark.parametrize("name", ["mpmath", *MAKERS])
def test_softmax_attention_is_a_gradient_step(name, case):
    """The last output, against plain Python at 60 digits (1/√d = 1/2) and softmax_attention."""
    system, high = named(name), MP(60)
    for seed in range(2):
        X_D, X_T, W_Q, W_K, W_V = data = sees(case, seed)
        X = lists(X_D)[0] + lists(X_T)[0]
        q, k, v = (
            [[high.ctx.mpf(a.numerator) / a.denominator for a in apply(W.tolist(), x)] for x in X]
            for W in (W_Q, W_K, W_V)
        )
        o = oracle.softmax(q, k, v, real=high.ctx)[0][-1]
        truth = fractions(high.wrap((np.array(o, dtype=object),)), "test")

        def step_of(X_D, X_T, W_Q, W_K, W_V):
            return ren_liu.one_step(ren_liu.softmax_context(X_D, X_T, X_T[-1, :], W_Q / 2, W_K, W_V), 3)

        def definition(X_D, X_T, W_Q, W_K, W_V):
            X = ri.system_of(X_D).xp.concat([X_D, X_T], axis=0)
            return ri.softmax_attention(X @ T(W_Q), X @ T(W_K), X @ T(W_V))[0][-1, :]

        for run in (step_of, definition):
            agrees(system, run, truth, *data)
        seen = ren_liu.softmax_context(
            *map(system.convert, (X_D, X_T)), system.convert(X_T)[-1, :], *map(system.convert, (W_Q, W_K, W_V))
        )
        assert seen.K_D.shape == (case.N, case.N + case.T + 1) and seen.V_T.shape == (case.T, case.m)


def test_the_gap_bound():
    """2wρ√Tr(K)/N + 6wρκ√(log(2/δ)/2N); no more than 32 roundings on the way."""
    scores, ctx = [4.0, 2.5, 3.0], MP(40).ctx
    want = 2 * 3 * (2 * ctx.sqrt(9.5) / 3 + 6 * ctx.sqrt(9) * ctx.sqrt(ctx.log(40) / 6))
    assert abs(ren_liu.gap_bound(2, 3, scores, 9, 0.05) / want - 1) <= 32 * 2.0**-53 + 2.0**-100
    bound = functools.partial(ren_liu.gap_bound, 2, 3, scores, 9)
    assert bound(0.01) > bound(0.05) > bound(0.5)
    for twice in ((4, 3, scores, 9), (2, 6, scores, 9), (2, 3, [4 * x for x in scores], 36)):
        assert ren_liu.gap_bound(*twice, 0.05) == 2 * bound(0.05)
    of_size = [ren_liu.gap_bound(1, 1, [1] * n, 1, 0.1) for n in (1, 2, 5, 50)]
    assert of_size == sorted(of_size, reverse=True) and len(set(of_size)) == 4


# A patch


@given(case=lessons, seed=SEEDS)
def test_a_rank_one_patch(case, seed):
    """(W δ) aᵀ / |a|² for each token, and what it is for."""
    W, a, delta = (
        QQ.random(shape, 3 * seed + i) for i, shape in enumerate([(case.m, case.d), (case.T, case.d), (case.T, case.d)])
    )
    assume(all(dot(row, row) for row in a.tolist()))
    want = [
        [[c / dot(row, row) for c in line] for line in outer(apply(W.tolist(), d), row)]
        for row, d in zip(*lists(a, delta), strict=True)
    ]
    agrees_exactly(rank_one_patch, want, W, a, delta)
    agrees_exactly(lambda W, a, delta: rank_one_patch(W, a[0, :], delta[0, :]), want[0], W, a, delta)
    for row, d, change in zip(*lists(a, delta), want, strict=True):
        assert apply(plus(W.tolist(), change), row) == apply(W.tolist(), oracle.plus(row, d))


@exact_systems
def test_a_patch_needs_a_token_with_a_length(system):
    W, zero = system.ones((2, 2)), system.convert([[3, 4], [0, 0]])
    with says(ri.ZeroDenominator, "rank_one_patch: the denominator |a|² is zero at token 1 (no ε is added)"):
        rank_one_patch(W, zero, zero)
    with says(ri.ZeroDenominator, "rank_one_patch: the denominator |a|² is zero at token 0 (no ε is added)"):
        rank_one_patch(W, zero[1, :], zero[0, :])


# What is verified, under --full too


@pytest.mark.parametrize("name", ["gd_plus_plus", "ren_liu_softmax"])
@pytest.mark.parametrize("system", [Float(), Float("numpy", "float32"), MP(50)], ids=str)
def test_what_is_verified_under_full(name, system):
    theorem = THEOREMS[name]
    assert check(theorem, system, theorem.more(0), Draws(0, "fixed")).verdict == "WITHIN BOUND"


@pytest.mark.parametrize("theorem", [t for t in theorems.DESCENTS if t.needs[0] != "real"], ids=lambda t: t.name)
def test_more_lessons_hold_too(theorem):
    """The least of those that --full adds. (Those of softmax are checked above.)"""
    least = min(theorem.more(0), key=lambda case: case.N * case.d * case.steps)
    assert check(theorem, QQ, [least]).verdict == "EXACT"


# Witnesses


WITNESSES = {w.name: w for w in theorems.WITNESSES}
SYSTEMS = [QQ, GF(2**61 - 1), GF(2**31 - 1), GF(11)]
UNDONE = {
    "query_among_keys": [({"W_0": 0}, ["W_0 = 1, one step"]), ({"steps": 1}, ["W_0 = 0, two steps"])],
    "causal_layers": [({"mask": 2}, ["2 layers, causal"])],
    "patch_is_for_one_token": [({"other": 1}, ["the patch, for another"]), ({"other": -1}, ["the patch, for another"])],
}


@functools.cache
def claims(name, system=QQ, **undone):
    """Of each pair of sides: its name, whether they are claimed to be equal, whether they are."""
    pairs = list(WITNESSES[name].sides(Case(1, 1, 1), Numbers(system, 0), REFIMPL, **undone))
    assert all(left.shape == right.shape for _, left, right in pairs)
    return [(pair[0], not isinstance(pair, Different), system.equal(*pair[1:])) for pair in pairs]


@pytest.mark.parametrize("system", SYSTEMS, ids=str)
@pytest.mark.parametrize("name", WITNESSES)
def test_a_witness_holds_and_falls_without_what_it_turns_on(name, system):
    assert all(claimed == found for _, claimed, found in claims(name, system))
    for undone, falls in UNDONE[name]:
        assert [what for what, claimed, found in claims(name, system, **undone) if claimed != found] == falls


def test_witnesses_are_checked_like_theorems():
    for name, witness in WITNESSES.items():
        different = {what for what, claimed, _ in claims(name) if not claimed}
        assert different == {what for _, falls in UNDONE[name] for what in falls}
        assert {claimed for _, claimed, _ in claims(name)} == {True, False} and witness.sides.__doc__ and witness.ours
        assert way_of(witness, QQ) is WAYS["witness"] and check(witness, QQ, witness.cases).verdict == "EXACT"
        for undone, _ in UNDONE[name]:
            planted = replace(witness, sides=functools.partial(witness.sides, **undone))
            assert check(planted, QQ, witness.cases).verdict == "FAIL"


# Certificates


def test_lessons_go_into_a_file_and_back_and_shrink():
    cases = {case for theorem in theorems.DESCENTS for case in (*theorem.cases, *theorem.more(0))}
    for case in cases:
        again = case_from_json(json.loads(json.dumps(case.to_json())))
        assert again == case and hash(again) == hash(case) and str(again) == str(case)
        assert all(smaller != case and smaller.valid() for smaller in case.smaller())
    assert str(Lesson(3, 2, 1, T=2)) == "N=3 d=2 m=1 T=2"
    assert set(Lesson(2, 1, 1, T=2).smaller()) == {Lesson(1, 1, 1, T=2), Lesson(2, 1, 1)}
    assert not list(Lesson(1, 1, 1).smaller())


@pytest.mark.parametrize(
    "change",
    [{"N": 0}, {"T": 0}, {"steps": -1}, {"d": "2"}, {"m": True}, {"N": 10**30}, {"kind": "Lessons"}, {"n": 3}],
    ids=str,
)
def test_what_is_no_lesson_is_refused(change):
    with pytest.raises((ValueError, KeyError, TypeError)):
        case_from_json(Lesson(3, 2, 1).to_json() | change)


def test_the_smallest_failing_lesson_is_found(monkeypatch):
    """Without 1/N, two examples are enough, of one number each."""
    right = von_oswald.proposition_1
    monkeypatch.setattr(von_oswald, "proposition_1", lambda W_0, eta, N: right(W_0, eta, 1))
    theorem, draws = THEOREMS["von_oswald"], Draws(0, "fixed")
    assert check(theorem, QQ, theorem.cases, draws).verdict == "FAIL"
    assert minimal(theorem, QQ, theorem.cases[0], draws) == Lesson(2, 1, 1)
