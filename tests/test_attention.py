"""Softmax attention: the shifted form and the cache equal the definition."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import problems

import refimpl as ri
from refimpl import MP, Dependencies, Float, RunningError, balls
from refimpl.systems import fractions

FORMS = [ri.softmax_attention, ri.softmax_attention_shifted]
both = pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)


def build(problem, system, placement="before"):
    (q, k, v), options = problem.build(system)
    options = {"mask": options["mask"]}
    if problem.rope:
        options["rope"] = ri.Rope(ri.angle_table(system, problem.rope[2]), problem.rope[0], placement)
    return (q, k, v), options


@given(problem=problems(max_n=5))
def test_shifted_equals_definition_in_balls(problem):
    """The difference contains zero, and thirty more digits shrink it by about as much."""
    radii = []
    for digits in (30, 60):
        system = balls(digits)
        arrays, options = build(problem, system)
        a, b = (form(*arrays, **options)[0] for form in FORMS)
        assert system.equal(a, b)
        radii.append(system.radius(a - b))
    assert radii[1] <= radii[0] * 1e-28


@both
@given(problem=problems(max_n=5), data=st.data())
def test_cache_is_the_state(form, problem, data):
    """Split at every point: the rest, read from the KV cache, equals the definition over all tokens; enclosed by balls."""
    system = balls(40)
    (q, k, v), options = build(problem, system)
    options["mask"] = "causal"
    whole, end = ri.softmax_attention(q, k, v, **options)
    for i in range(problem.n + 1):
        head, cache = form(*(x[..., :i, :] for x in (q, k, v)), **options)
        tail, last = form(*(x[..., i:, :] for x in (q, k, v)), cache=cache, **options)
        joined = system.concat([head, tail], axis=-2)
        assert system.equal(joined, whole) and system.radius(joined - whole) < 1e-30
        assert system.equal(last.k, end.k) and last.position == end.position


def test_definition_by_hand():
    """With scale log 2 and integer scores, the weights are powers of two."""
    system = MP(30)
    q, k, v = system.convert([[1], [2]]), system.convert([[1], [3]]), system.convert([[1], [10]])
    o, _ = ri.softmax_attention(q, k, v, scale=system.wrap((np.array(system.ctx.log(2)),)))
    want = [Fraction(1), Fraction(2**2 * 1 + 2**6 * 10, 2**2 + 2**6)]
    assert all(abs(a - b) < Fraction(1, 10**27) for a, b in zip(fractions(o, "test").ravel(), want, strict=True))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@both
@given(problem=problems())
def test_floats_within_their_running_error(form, dtype, problem):
    system, oracle = RunningError(dtype), MP(50)
    arrays, options = build(problem, system)
    o, _ = form(*arrays, **options)
    exactly = options | ({"rope": ri.Rope(ri.angle_table(oracle, problem.rope[2]), problem.rope[0], "before")} if problem.rope else {})
    truth, _ = ri.softmax_attention(*(oracle.convert(x) for x in arrays), **exactly)
    distance = abs(fractions(o, "test") - fractions(truth, "test"))
    assert all(d <= Fraction(e) for d, e in zip(distance.ravel(), system.error(o).ravel(), strict=True))
    assert np.all(system.error(o) < 2.0**-10)


def test_large_scores():
    """The definition overflows and says where; the shifted form does not."""
    q = k = np.array([[30.0, 30.0], [40.0, 40.0]])
    v = np.array([[1.0], [2.0]])
    with (
        pytest.raises(ri.NotFinite, match="softmax_attention: the output overflows numpy float64: nan or inf at token 0, column 0"),
        np.errstate(all="ignore"),
    ):
        ri.softmax_attention(q, k, v, scale=1.0)
    assert np.array_equal(ri.softmax_attention_shifted(q, k, v, scale=1.0)[0], v)


@both
def test_padding(form):
    """Padded tokens, nan or not, are as if they were not there, also through the cache."""
    system = Float()
    q, k, v = (system.random((2, 6, 3), i) for i in range(3))
    keep = np.array([True, False, True, True, False, True])
    alone, _ = form(*(x[:, keep] for x in (q, k, v)))
    for x in (q, k, v):
        x[:, ~keep] = np.nan
    o, _ = form(q, k, v, padding=keep)
    head, cache = form(q[:, :3], k[:, :3], v[:, :3], padding=keep[:3])
    tail, _ = form(q[:, 3:], k[:, 3:], v[:, 3:], padding=keep[3:], cache=cache)
    for got in (o, np.concatenate([head, tail], axis=1)):
        assert np.array_equal(got[:, ~keep], np.zeros((2, 2, 3)))
        # both sides are sums of at most 6 terms of size below e·1, normalised: 16 roundings are enough
        assert np.max(np.abs(got[:, keep] - alone)) <= 16 * 2.0**-53


@both
@pytest.mark.parametrize(("mask", "P"), [("causal", 0), (2, 2), ("full", 4)])
def test_causality_by_structure(form, mask, P):
    system = Dependencies()
    tokens = [system.tokens((2, 4, 3)) for _ in range(3)]
    o, _ = form(*tokens, mask=mask)
    for t in range(4):
        assert all(seen == set(range(max(t + 1, P))) for seen in system.sets(o)[:, t].ravel())


def test_grouped_heads_and_broadcast_cache():
    system = balls(30)
    q, k, v = system.random((2, 3, 5, 4), 0), system.random((2, 1, 5, 4), 1), system.random((2, 1, 5, 3), 2)
    for form in FORMS:
        o, cache = form(q, k, v)
        start = ri.KVCache(cache.k[0, 0, :4], cache.v[0, 0, :4], cache.keep[..., :4], 4)
        again, _ = form(q[0, 1, 4:], k[0, 0, 4:], v[0, 0, 4:], cache=start)
        assert system.equal(o[0, 1, 4:], again) and system.radius(o[0, 1, 4:] - again) < 1e-20
