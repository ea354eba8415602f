"""The float bound can be wrong in two ways, too small or saying nothing: both are seen here."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refimpl as ri
from refimpl import QQ, Float, Rounded, State


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
    assert ri.judge(np.ones((0, 2)), QQ.ones((0, 2)), np.zeros((0, 2))).verdict == "EXACT"


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
