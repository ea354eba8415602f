"""The float bound can be wrong in two ways, too small or saying nothing: both are seen here."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refimpl as ri
from refimpl import MP, QQ, Float, Rounded, RunningError, State
from refimpl.verify.ways import WAYS


def draw(system, n=6, d=4, m=3, seed=0):
    return [system.random((2, n, w), seed + i) for i, w in enumerate((d, d, m))]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_unit_roundoff_by_experiment(dtype):
    """The largest u = 2^-p with 1 + u rounded to even, back to 1."""
    u = float(ri.unit_roundoff(dtype))
    one_and = Rounded(dtype).convert([1 + u, 1 + 2 * u, 1 + 1.5 * u]).tolist()
    assert one_and == [1, 1 + 2 * u, 1 + 2 * u]


def test_the_bound_by_hand():
    """One token, one feature, q = k = 1, v = 2: K = 4, A_num = 2, A_den = 1, den = 1, o = 2."""
    one, u = np.ones((1, 1)), Fraction(1, 2**10)
    o, bound = ri.exact_with_bound(one, one, 2 * one, u=u)
    g = 4 * u / (1 - 4 * u)
    assert o.tolist() == [[2]]
    assert bound.tolist() == [[math.nextafter(float((g * (2 + 2 * 1) / 1 + u * 2) / (1 - g)), math.inf)]]
    _, unnormalised = ri.exact_with_bound(one, one, 2 * one, kernel=ri.Kernel(normalise=False), u=u)
    assert unnormalised.tolist() == [[math.nextafter(float(g * 2), math.inf)]]


def by_the_formula(q, k, v, S, z, u, normalise):
    """The bound at the head of bounds.py, in fractions, with Python's own sums."""
    n, r, bounds = len(q), len(k[0]), []
    K = n + r + 2
    g = K * u / (1 - K * u)
    for t in range(n):
        weights = [sum(a * b for a, b in zip(q[t], k[s], strict=True)) for s in range(t + 1)]
        sizes = [sum(abs(a * b) for a, b in zip(q[t], k[s], strict=True)) for s in range(t + 1)]
        den = sum(weights) + sum(a * b for a, b in zip(q[t], z, strict=True))
        A_den = sum(sizes) + sum(abs(a * b) for a, b in zip(q[t], z, strict=True))
        row = []
        for j in range(len(v[0])):
            start = [a * S[i][j] for i, a in enumerate(q[t])]
            num = sum(w * v[s][j] for s, w in enumerate(weights)) + sum(start)
            A_num = sum(w * abs(v[s][j]) for s, w in enumerate(sizes)) + sum(map(abs, start))
            o, share = num / den, g * A_den / abs(den)
            assert share < 1  # else there is no bound
            row.append(
                ((g * A_num + g * abs(o) * A_den) / abs(den) + u * abs(o)) / (1 - share) if normalise else g * A_num
            )
        bounds.append(row)
    return bounds


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_the_bound_is_its_formula_and_no_more(seed, normalise):
    """To the last bit: the bound is rounded up from the formula, wherever signs cancel."""
    rng, u = np.random.default_rng(seed), Fraction(1, 2**20)
    q, k, v, S = (rng.integers(-40, 41, shape) / 8.0 + 1 / 16 for shape in ((4, 3), (4, 3), (4, 2), (3, 2)))
    z = rng.integers(300, 400, 3) / 8.0 * np.sign(q[-1])
    args = [[[Fraction(x) for x in row] for row in a.tolist()] for a in (q, k, v, S)]
    want = by_the_formula(*args, [Fraction(x) for x in z.tolist()], u, normalise)
    kernel = ri.Kernel(normalise=normalise)
    _, bound = ri.exact_with_bound(q, k, v, kernel, u=u, state=State(S, z, 0))
    assert bound.tolist() == [[math.nextafter(float(x), math.inf) for x in row] for row in want]


def test_a_verdict_ends_where_the_bound_does():
    exact, bound = QQ.convert([[1, -2]]), np.array([[2.0**-20, 2.0**-30]])
    for share, verdict in ((0.999, "WITHIN BOUND"), (1.0, "WITHIN BOUND"), (1.001, "EXCESS")):
        for sign in (1, -1):
            found = ri.judge(np.array([[1.0, -2.0 + sign * share * 2.0**-30]]), exact, bound)
            assert found.verdict == verdict and abs(found.worst - share) < 1e-6 and found.index == (0, 1)


@pytest.mark.parametrize("system", [Float(), Float("numpy", "float32"), MP(40)], ids=lambda s: s.name)
def test_both_sides_of_an_identity_may_be_off_by_their_own_errors_and_no_more(system):
    """2⁻¹⁰ and 3·2⁻¹⁰, so that they may differ by 2⁻⁸ at their precision."""
    way, wide = WAYS["bound"], isinstance(system, type(MP(40)))
    numbers = way.analysis(system)
    one = numbers.convert([[1]]).planes[0]
    same = ("x", numbers.wrap((one, np.array([[2.0**-10]]))), numbers.wrap((one, np.array([[3 * 2.0**-10]]))))
    finer = Fraction(2) ** (53 - system.ctx.prec) if wide else 1
    for share, fails in ((Fraction(1, 2), False), (Fraction(1), False), (Fraction(1025, 1024), True)):
        left, right = system.convert([[1 + share * finer / 2**8]]), system.convert([[1]])
        found = way.compare(system, ("x", left, right), same)
        assert bool(found.failure) == fails and abs(found.ratio - share) < 1e-6 and found.rows == 1


# The size of an error to first order, in units of u, and what follows from errors of x and y
X, Y = 1.75, -2.5
ROUNDED = {
    "add": (lambda s, x, y: x + y, abs(X + Y), lambda e, f: e + f),
    "subtract": (lambda s, x, y: x - y, abs(X - Y), lambda e, f: e + f),
    "multiply": (lambda s, x, y: x * y, abs(X * Y), lambda e, f: abs(X) * f + abs(Y) * e),
    "divide": (lambda s, x, y: x / y, abs(X / Y), lambda e, f: (e + abs(X / Y) * f) / abs(Y)),
    "negate": (lambda s, x, y: -x, 0, lambda e, f: e),
    "maximum": (lambda s, x, y: s.maximum(x, y), 0, lambda e, f: e),
    # k + 1 roundings of the whole, one of the result
    "sum": (lambda s, x, y: s.sum(s.concat([x, y]), axis=0), 2 * (abs(X) + abs(Y)) + abs(X + Y), lambda e, f: e + f),
    "matmul": (
        lambda s, x, y: x[None, :] @ y[:, None],
        2 * abs(X * Y) + abs(X * Y),
        lambda e, f: abs(X) * f + abs(Y) * e,
    ),
    "exp": (lambda s, x, y: s.exp(x), 14 * math.exp(X), lambda e, f: math.exp(X) * e),
    "log": (lambda s, x, y: s.log(x), 12 * math.log(X), lambda e, f: e / X),
    "sqrt": (lambda s, x, y: s.sqrt(x), 4 * math.sqrt(X), lambda e, f: e / (2 * math.sqrt(X))),
    "tanh": (lambda s, x, y: s.tanh(x), 26 * math.tanh(X), lambda e, f: e),
    "cos": (lambda s, x, y: s.cos(x), 6 * abs(math.cos(X)), lambda e, f: e),
    "sin": (lambda s, x, y: s.sin(x), 6 * math.sin(X), lambda e, f: e),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_running_errors_are_as_large_as_stated_and_no_larger(name):
    run, roundings, spread = ROUNDED[name]
    numbers = RunningError()
    for e, f in ((0.0, 0.0), (2.0**-40, 0.0), (0.0, 2.0**-40), (2.0**-38, 2.0**-40)):
        x, y = (numbers.wrap((np.array([value]), np.array([error]))) for value, error in ((X, e), (Y, f)))
        want = roundings * 2.0**-53 + spread(e, f)
        assert numbers.error(run(numbers, x, y)).item() == pytest.approx(want, rel=1e-6, abs=1e-300)


@pytest.mark.parametrize("points", [("elementwise", "sums"), ("elementwise", "sums", "partial")])
@given(seed=st.integers(0, 999), n=st.integers(1, 9), normalise=st.booleans(), signed=st.booleans())
def test_low_precision_stays_within_the_bound(points, seed, n, normalise, signed):
    """bfloat16 with wide or narrow accumulators: the bound holds. Where nothing cancels it says
    something in every row.

    If features and values are positive, A_num = num and A_den = den, so the bound is (2γ + u)|o|/(1
    − γ) < |o| while 3γ + u < 1;
    here K = n + r + 2 ≤ 15, γ < 1/16. Values of both signs may cancel, and rows be vacuous.
    """
    system = Rounded("bfloat16", points)
    q, k, v = draw(system, n=n, seed=seed)
    q, k, v = ri.feature_maps.relu(q) + 1, ri.feature_maps.relu(k) + 1, v if signed else ri.feature_maps.relu(v) + 1
    exact, bound = ri.exact_with_bound(q, k, v, kernel=ri.Kernel(normalise=normalise), u=ri.unit_roundoff("bfloat16"))
    for form in (
        ri.linear_attention,
        ri.linear_attention_quadratic,
        ri.linear_attention_recurrent,
        ri.linear_attention_chunked,
    ):
        judgement = ri.judge(form(q, k, v, kernel=ri.Kernel(normalise=normalise))[0], exact, bound)
        assert judgement.verdict in ("EXACT", "WITHIN BOUND", *["VACUOUS"] * signed), judgement
        assert judgement.vacuous == 0 or signed, judgement


def test_a_hidden_cast_exceeds_the_bound():
    q, k, v = draw(Float(), n=20)
    q, k = ri.feature_maps.elu_plus_one(q), ri.feature_maps.elu_plus_one(k)
    exact, bound = ri.exact_with_bound(q, k, v, u=ri.unit_roundoff("float64"))
    cast, _ = ri.linear_attention(*(x.astype(np.float32) for x in (q, k, v)))
    judgement = ri.judge(cast.astype(np.float64), exact, bound)
    assert judgement.verdict == "EXCESS" and judgement.worst > 1e3 and len(judgement.index) == 3
    assert ri.judge(ri.linear_attention(q, k, v)[0], exact, bound).verdict == "WITHIN BOUND"


def test_vacuous_is_an_outcome():
    """Where K u ≥ 1, or the denominator cancels, nothing is claimed, and it is not a pass."""
    q, k, v = draw(Float(), n=3)
    exact, bound = ri.exact_with_bound(q, k, v, u=Fraction(1, 4))
    assert np.all(np.isinf(bound)) and ri.judge(ri.linear_attention(q, k, v)[0], exact, bound).verdict == "VACUOUS"
    assert np.all(np.isinf(ri.exact_with_bound(q, k, v, kernel=ri.Kernel(normalise=False), u=Fraction(1, 4))[1]))
    tiny = np.array([[1.0, 1.0]]), np.array([[1.0, -1.0 + 2**-30]]), np.array([[3.0]])
    exact, bound = ri.exact_with_bound(*tiny, u=ri.unit_roundoff("float32"))
    assert np.isinf(bound[0, 0])


def test_where_vacuous_begins():
    """A bound as large as the largest entry of its row, and no smaller one, proves nothing."""
    exact, got = QQ.convert([[1, -2, 0]]), np.array([[1.0, -2.0, 2.0**-30]])
    below, above = math.nextafter(2.0, 0.0), math.nextafter(2.0, 3.0)
    for most, verdict in ((below, "WITHIN BOUND"), (2.0, "VACUOUS"), (above, "VACUOUS"), (math.inf, "VACUOUS")):
        for bound in ([most, 0.25, 0.25], [0.25, 0.25, most]):  # wherever in the row it stands
            judgement = ri.judge(got, exact, np.array([bound]))
            assert (judgement.verdict, judgement.vacuous, judgement.rows) == (verdict, int(verdict == "VACUOUS"), 1)
    # each row has its own size, and one that says something is enough
    two = QQ.convert([[1, -2, 0], [4, 0, 0]])
    judgement = ri.judge(np.concatenate([got, [[4.0, 0.0, 0.0]]]), two, np.full((2, 3), 2.0))
    assert (judgement.verdict, judgement.vacuous, judgement.rows) == ("WITHIN BOUND", 1, 2)


def test_exact_is_an_outcome():
    o, bound = ri.exact_with_bound(*(np.ones((2, 2)) for _ in range(3)), u=ri.unit_roundoff("float64"))
    judgement = ri.judge(np.ones((2, 2)), o, bound)
    assert (judgement.verdict, judgement.worst, judgement.vacuous, judgement.rows) == ("EXACT", 0.0, 0, 2)


def test_nothing_compared_is_no_pass():
    for shape in ((0, 2), (3, 0), (0, 0)):
        judgement = ri.judge(np.ones(shape), QQ.ones(shape), np.zeros(shape))
        assert (judgement.verdict, judgement.worst, judgement.vacuous, judgement.rows) == ("VACUOUS", 0.0, 0, 0)


def test_an_exact_zero_bound_is_not_vacuous():
    """Nothing to round, nothing to forgive: zero values must come out as zero."""
    zero = np.zeros((2, 3))
    o, bound = ri.exact_with_bound(np.ones((2, 2)), np.ones((2, 2)), zero, u=ri.unit_roundoff("float64"))
    assert not bound.any()
    assert ri.judge(zero, o, bound).verdict == "EXACT" and ri.judge(zero + 1e-300, o, bound).verdict == "EXCESS"


def test_state_counts():
    q, k, v = draw(Float())
    start = State(np.ones((4, 3)), np.ones(4) * 50, 0)
    exact, bound = ri.exact_with_bound(q, k, v, u=ri.unit_roundoff("float64"), state=start)
    assert ri.judge(ri.linear_attention_recurrent(q, k, v, state=start)[0], exact, bound).verdict == "WITHIN BOUND"
    assert ri.judge(ri.linear_attention_recurrent(q, k, v)[0], exact, bound).verdict == "EXCESS"


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"unit_roundoff: `dtype` must be one of .*, got 'int32'"):
        ri.unit_roundoff("int32")
    with pytest.raises(
        ValueError, match=r"judge: all must have one shape, got `got` \(2, 2\), `exact` \(2, 2\), `bound` \(1, 2\)"
    ):
        ri.judge(np.ones((2, 2)), QQ.ones((2, 2)), np.zeros((1, 2)))
