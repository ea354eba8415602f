"""Every form equals the definition: exactly where numbers are exact, within a derived bound where
they are floats.
"""

from __future__ import annotations

import functools
import re
import sys
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import refimpl as ri
from refimpl import GF, MP, QQ, Degrees, Dual, Float, Rounded, RunningError, State, balls
from refimpl.attention.linear_attention import chunk_length
from tests.helpers import oracle
from tests.helpers.assertions import informative
from tests.helpers.strategies import MAKERS, Problem, problems

FORMS = [ri.linear_attention_quadratic, ri.linear_attention_recurrent, ri.linear_attention_chunked]
EXACT = [QQ, GF(10007), GF(2**61 - 1), Dual(QQ), Dual(GF(2**31 - 1))]

forms = pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__.removeprefix("linear_attention_"))
exact_systems = pytest.mark.parametrize("system", EXACT, ids=str)


def same(system, a, b):
    """Outputs and final states equal, with ==."""
    (o, end), (o2, end2) = a, b
    assert system.equal(o, o2)
    assert system.equal(end.S, end2.S)
    assert (end.z is None) == (end2.z is None)
    assert end.z is None or system.equal(end.z, end2.z)
    assert end.position == end2.position


@forms
@exact_systems
@given(problem=problems())
def test_form_equals_definition(system, form, problem):
    same(system, *problem.solve(system, ri.linear_attention, form))


def plain(x):
    return x


def positive(x):
    return [max(a, 0) for a in x]


def quadratic(x):
    return [a * b for a in (1, *x) for b in (1, *x)]


# (φ_q, φ_k) of refimpl, the same two in plain Python, and their width.
PHIS = {
    "identity": (ri.feature_maps.identity, (plain, plain), lambda d: d),
    "relu": (ri.feature_maps.relu, (positive, positive), lambda d: d),
    "quadratic": (ri.feature_maps.polynomial(2), (quadratic, quadratic), lambda d: (d + 1) ** 2),
    "relu, relu2": (
        (ri.feature_maps.relu, ri.feature_maps.relu2),
        (positive, lambda x: [max(a, 0) ** 2 for a in x]),
        lambda d: d,
    ),
    "taylor2_pair": (
        ri.feature_maps.taylor2_pair(Fraction(1, 3)),
        (
            lambda x: [1, *(a / 3 for a in x), *(a * b / 18 for a in x for b in x)],
            lambda x: [1, *x, *(a * b for a in x for b in x)],
        ),
        lambda d: 1 + d + d * d,
    ),
}


@pytest.mark.parametrize("phi", PHIS)
@given(problem=problems(max_n=4), pad=st.booleans())
def test_definition_equals_plain_python(phi, problem, pad):
    """Against loops over Fractions that share no code with refimpl: φ, RoPE, masks, state, padding,
    head by head.
    """
    maps, (phi_q, phi_k), width = PHIS[phi]
    q, k, v = (
        QQ.random((*lead, problem.n, w), problem.seed + i)
        for i, (lead, w) in enumerate(
            ((problem.lead_q, problem.d), (problem.lead_k, problem.d), (problem.lead_k, problem.m))
        )
    )
    r = width(problem.d)
    S, z = (
        QQ.random((*problem.lead_k, r, problem.m), problem.seed + 3),
        QQ.random((*problem.lead_k, r), problem.seed + 4),
    )
    keep = np.random.default_rng(problem.seed).integers(0, 2, problem.n).astype(bool) if pad else None
    options: dict = {"mask": problem.mask, "padding": keep}
    if problem.start:
        options["state"] = State(S, z, problem.position)
    points, rope, normalise = [], None, problem.normalise
    if problem.rope:
        c, s = ri.circle_point(QQ.random((problem.rope[2] // 2,), problem.seed + 5))
        points = list(zip(c.tolist(), s.tolist(), strict=True))
        rope = ri.Rope(ri.power_table(c, s), *problem.rope[:2])
    lead_k = tuple(1 for _ in problem.lead_q) if not problem.lead_k else problem.lead_k
    heads = [
        (head, tuple(i if n > 1 else 0 for i, n in zip(head, lead_k, strict=True))[len(lead_k) - len(problem.lead_k) :])
        for head in np.ndindex(*problem.lead_q)
    ]

    def expected(head, key):
        return oracle.attention(
            q[head].tolist(),
            k[key].tolist(),
            v[key].tolist(),
            phi_q=phi_q,
            phi_k=phi_k,
            keep=keep,
            mask=problem.mask,
            normalise=normalise,
            rope=(points, *problem.rope[:2]) if problem.rope else None,
            start=(S[key].tolist(), z[key].tolist(), problem.position) if problem.start else None,
        )

    try:
        o, end = ri.linear_attention(q, k, v, ri.Kernel(maps, rope, normalise), **options)
    except (
        ri.ZeroDenominator
        # the oracle divides by zero too, unless there is nothing to divide; the rest is compared
        # without division
    ):
        if problem.m:
            with pytest.raises(ZeroDivisionError):
                [expected(*pair) for pair in heads]
        normalise = False
        o, end = ri.linear_attention(q, k, v, ri.Kernel(maps, rope, normalise), **options)
    for head, key in heads:
        want, want_S, want_z, position = expected(head, key)
        assert o[head].tolist() == want and end.position == position
        if problem.n:
            assert end.S[key].tolist() == want_S and end.z[key].tolist() == want_z


def test_definition_by_hand():
    """Three tokens, one head, worked on paper: φ = identity, values 1, 10, 100."""
    q, k, v = QQ.convert([[1, 0], [1, 1], [0, 2]]), QQ.convert([[1, 2], [3, 4], [5, 6]]), QQ.convert([[1], [10], [100]])
    o, end = ri.linear_attention(q, k, v)
    # scores: 1 | 3, 7 | 4, 8, 12
    assert o.tolist() == [[1], [Fraction(3 * 1 + 7 * 10, 10)], [Fraction(4 * 1 + 8 * 10 + 12 * 100, 24)]]
    assert end.S.tolist() == [[531], [642]]
    assert end.z.tolist() == [9, 12]
    assert end.position == 3
    full, _ = ri.linear_attention(q, k, v, mask="full")
    assert full.tolist()[0] == [Fraction(1 * 1 + 3 * 10 + 5 * 100, 9)]
    assert ri.linear_attention(q, k, v, ri.Kernel(normalise=False))[0].tolist() == [[1], [73], [1284]]


@exact_systems
@given(problem=problems(masks=False), data=st.data())
def test_split_at_every_point(system, problem, data):
    """Prefill then decode: the definition over all tokens equals each form on the rest, started
    from the state of the beginning.
    """
    form = data.draw(st.sampled_from([ri.linear_attention, *FORMS]))
    (q, k, v), options = problem.draw(system)
    o, end = ri.linear_attention(q, k, v, **options)
    for i in range(problem.n + 1):
        head, middle = form(*(x[..., :i, :] for x in (q, k, v)), **options)
        tail, last = form(*(x[..., i:, :] for x in (q, k, v)), **(options | {"state": middle}))
        assert system.equal(system.xp.concat([head, tail], axis=-2), o)
        assert system.equal(last.S, end.S) and system.equal(last.z, end.z) and last.position == end.position


@given(problem=problems(), data=st.data())
def test_split_of_a_prefix(problem, data):
    """A bidirectional prefix is read whole; the causal rest can be split anywhere behind it."""
    assume(isinstance(problem.mask, int))
    (q, k, v), options = problem.draw(QQ)
    o, end = ri.linear_attention(q, k, v, **options)
    i = data.draw(st.integers(problem.mask, problem.n))
    head, middle = ri.linear_attention_chunked(*(x[..., :i, :] for x in (q, k, v)), chunk=problem.chunk, **options)
    tail, last = ri.linear_attention_recurrent(
        *(x[..., i:, :] for x in (q, k, v)), **(options | {"state": middle, "mask": "causal"})
    )
    assert QQ.equal(QQ.concat([head, tail], axis=-2), o)
    assert QQ.equal(last.S, end.S)


@given(problem=problems(), chunks=st.tuples(st.integers(1, 7), st.integers(1, 7)))
def test_chunk_size_does_not_matter(problem, chunks):
    a, b = (replace(problem, chunk=c).solve(GF(2**61 - 1), ri.linear_attention_chunked)[0] for c in chunks)
    same(GF(2**61 - 1), a, b)


@forms
@given(problem=problems(max_n=5))
def test_mpmath_residual_falls_with_digits(form, problem):
    """At every precision the residual stays below the derived bound for u = 2^-prec, so it falls as
    10^-digits.
    """
    for digits in (15, 40, 90):
        system = MP(digits)
        arrays, options = problem.draw(system)
        exact, bound = ri.exact_with_bound(*arrays, u=Fraction(1, 2**system.ctx.prec), **options)
        o, _ = form(*arrays, **options)
        judgement = ri.judge(o, exact, bound)
        expected = ("VACUOUS",) if 0 in o.shape else ("EXACT", "WITHIN BOUND")  # nothing compared is no pass
        assert judgement.verdict in expected, judgement
        assert judgement.vacuous == 0 or digits == 15, judgement


@pytest.mark.parametrize("maker", MAKERS)
@forms
@given(problem=problems(max_n=4))
def test_balls_contain_zero(maker, form, problem):
    radii = []
    for digits in (30, 60):
        system = balls(digits, maker)
        (o, end), (o2, end2) = problem.solve(system, ri.linear_attention, form)
        for a, b in ((o, o2), (end.S, end2.S), (end.z, end2.z)):
            assert system.equal(a, b)
        assert informative(system, o) and informative(system, o2)
        radii.append(system.radius(o - o2))
    assert radii[1] < radii[0] or radii == [0, 0]


@pytest.mark.parametrize("phi", ["identity", "elu+1", "relu", "exp"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@forms
@given(problem=problems())
def test_floats_stay_within_the_bound(form, dtype, phi, problem):
    system = Float("numpy", dtype)
    arrays, options = problem.build(system)
    # signed features may cancel in the denominator; these do not, so the state must not either
    if phi != "identity":
        options |= (
            {"state": State(*(abs(x) for x in (options["state"].S, options["state"].z)), problem.position)}
            if problem.start
            else {}
        )
    # one feature of every token is positive where φ sees it, so that no denominator is zero
    if phi == "relu":
        q, k, v = arrays
        arrays = q, k, v = [
            np.concatenate([abs(x[..., :1]) + x.dtype.type(0.25), x[..., 1:]], axis=-1) for x in (q, k)
        ] + [v]
        if problem.rope and problem.rope[1] == "before":
            first = problem.position if problem.start else 0
            arrays = [options["kernel"].rope(x, [-p for p in range(first, first + problem.n)]) for x in (q, k)] + [v]
    options["kernel"] = replace(options["kernel"], phi=phi)
    o, _ = form(*arrays, **options)
    exact, bound = ri.exact_with_bound(*arrays, u=ri.unit_roundoff(dtype), **options)
    judgement = ri.judge(o, exact, bound)
    assert judgement.verdict in ("EXACT", "WITHIN BOUND", "VACUOUS"), judgement
    if phi != "identity":  # positive features: no cancellation, so the bound always says something
        assert judgement.vacuous == 0, judgement


LOW = [
    Float("numpy", "float64"),
    Float("numpy", "float32"),
    Float("numpy", "float16"),
    Rounded("bfloat16"),
    Rounded("bfloat16", ("elementwise", "sums", "partial")),
]


@pytest.mark.parametrize("system", LOW, ids=str)
@pytest.mark.parametrize("form", [ri.linear_attention, *FORMS], ids=lambda f: f.__name__)
@given(data=st.data())
def test_exact_probes(form, system, data):
    n, r, m, heads = (data.draw(st.integers(*ends)) for ends in ((0, 20), (1, 5), (0, 3), (1, 2)))
    mask = data.draw(st.sampled_from(["causal", "full"]) | st.integers(0, n))
    probe = ri.exact_probe(
        system,
        n=n,
        r=r,
        m=m,
        heads=heads,
        seed=data.draw(st.integers(0, 10**6)),
        mask=mask,
        normalise=data.draw(st.booleans()),
        layout=data.draw(st.sampled_from([None, "half", "interleaved"])),
        start=data.draw(st.booleans()),
    )
    assert probe.mismatch(*form(probe.q, probe.k, probe.v, **probe.options)) is None


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("form", [ri.linear_attention, *FORMS], ids=lambda f: f.__name__)
@given(problem=problems())
def test_running_error_encloses_the_truth(form, dtype, problem):
    """φ = elu+1 and RoPE included: value ± error must contain what mpmath finds with 60 digits."""
    system, oracle = RunningError(dtype), MP(60)
    arrays, options = problem.build(system)
    options["kernel"] = problem.kernel(system, "elu+1")
    exactly = {"mask": problem.mask, "kernel": problem.kernel(oracle, "elu+1")}
    if problem.start:
        start = options["state"]
        exactly["state"] = State(oracle.convert(start.S), oracle.convert(start.z), start.position)
    o, _ = form(*arrays, **options)
    truth, _ = ri.linear_attention(*(oracle.convert(x) for x in arrays), **exactly)
    distance = abs(ri.systems.fractions(o, "test") - ri.systems.fractions(truth, "test"))
    error = system.error(o)
    assert all(d <= Fraction(e) for d, e in zip(distance.ravel(), error.ravel(), strict=True) if np.isfinite(e))
    # positive features throughout: the bound must be finite and say something
    if not problem.start:
        assert not problem.m or np.all(error.max(axis=-1) < np.abs(system.value(o)).max(axis=-1))


@given(problem=problems(rope=False))
def test_padding_is_as_if_the_token_were_not_there(problem):
    """Padded tokens of any content, at any place: the others read as if they had been cut out."""
    keep = np.random.default_rng(problem.seed).integers(0, 2, problem.n).astype(bool)
    options = {
        "kernel": ri.Kernel(normalise=False),
        "mask": problem.mask if isinstance(problem.mask, str) else "causal",
    }
    (q, k, v), _ = problem.build(QQ)
    for form in (ri.linear_attention, *FORMS):
        o, end = form(q, k, v, padding=keep, **options)
        o2, end2 = form(*(QQ.each(lambda p: p[..., keep, :], x) for x in (q, k, v)), **options)
        assert QQ.equal(QQ.each(lambda p: p[..., keep, :], o), o2)
        assert QQ.equal(end.S, end2.S) and QQ.equal(end.z, end2.z)
        assert QQ.equal(o[..., ~keep, :], QQ.zeros_like(o[..., ~keep, :]))


@pytest.mark.parametrize("form", [ri.linear_attention, *FORMS], ids=lambda f: f.__name__)
def test_padding_may_hold_nan(form):
    system = Float()
    q, k, v = (system.random((2, 5, 3), i) for i in range(3))
    keep = np.array([[False, True, True, False, True], [True, True, False, True, True]])
    clean, end = form(q, k, v, ri.Kernel("elu+1"), padding=keep)
    for x in (q, k, v):
        x[~keep] = np.nan
    poisoned, end2 = form(q, k, v, ri.Kernel("elu+1"), padding=keep)
    assert np.array_equal(clean, poisoned) and np.array_equal(end.S, end2.S) and np.array_equal(end.z, end2.z)


def test_broadcast_heads_equal_repeated_heads():
    """Grouped-query attention: one key head serves a group of query heads."""
    q, k, v = QQ.random((2, 3, 5, 4), 0), QQ.random((2, 1, 5, 4), 1), QQ.random((2, 1, 5, 3), 2)
    for form in (ri.linear_attention, *FORMS):
        o, end = form(q, k, v)
        assert end.S.shape == (2, 1, 4, 3)
        for group in range(2):
            for head in range(3):
                alone, _ = form(q[group, head], k[group, 0], v[group, 0])
                assert QQ.equal(o[group, head], alone)


def test_separate_feature_maps():
    q, k, v = (QQ.random((4, 3), i) for i in range(3))
    o, _ = ri.linear_attention(q, k, v, ri.Kernel(("relu", "identity"), normalise=False))
    o2, _ = ri.linear_attention(ri.feature_maps.relu(q), k, v, ri.Kernel(normalise=False))
    assert QQ.equal(o, o2)


def test_a_users_own_map():
    q, k, v = (QQ.random((2, 4, 3), i) for i in range(3))
    square = lambda x: x * x + 1  # noqa: E731
    for form in FORMS:
        same(QQ, ri.linear_attention(q, k, v, ri.Kernel(square)), form(q, k, v, ri.Kernel(square)))


@given(problem=problems())
def test_absorb_gives_the_state_of_the_forms(problem):
    (q, k, v), options = problem.build(QQ)
    written = replace(options["kernel"], phi=("identity", "relu"))
    state = options.pop("state", None) or ri.state.no_text(v, problem.d, problem.m, lead=problem.lead_k)
    keep = np.random.default_rng(problem.seed).integers(0, 2, problem.n).astype(bool)
    for padding in (None, keep):
        absorbed = ri.state.absorb(state, k, v, written, padding=padding)
        _, end = ri.linear_attention(q, k, v, replace(written, normalise=False), state=state, padding=padding)
        same(QQ, (absorbed.S, absorbed), (end.S, end))


def test_degrees_of_the_forms():
    """Unnormalised: q·k·v, degree 3 whatever the form. Normalised: a quotient of degree 3 by degree
    2.
    """
    system = Degrees()
    q, k, v = system.variables((3, 2)), system.variables((3, 2)), system.variables((3, 2))
    for form in (ri.linear_attention, *FORMS):
        assert system.worst(form(q, k, v, ri.Kernel(normalise=False))[0]) == (3, 0)
        assert system.worst(form(q, k, v)[0]) == (3, 2)


def test_unnormalised_state_may_lack_z():
    q, k, v = (QQ.random((4, 3), i) for i in range(3))
    start = State(QQ.random((3, 3), 5), None, 2)
    for form in FORMS:
        a, b = (
            ri.linear_attention(q, k, v, ri.Kernel(normalise=False), state=start),
            form(q, k, v, ri.Kernel(normalise=False), state=start),
        )
        same(QQ, a, b)
        assert a[1].z is None


def test_complex_numbers_are_a_field():
    """Small Gaussian integers with denominators that divide exactly: nothing rounds, so ==."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.integers(-4, 5, (5, 3)) + 1j * rng.integers(-4, 5, (5, 3)) for _ in range(3))
    q[:, 0], z = 1, np.zeros(3, dtype=complex)
    for t, den in enumerate([1, 2j, -4, 1 + 1j, -8j]):  # choose k_t so that q_t·z_t is this
        k[t, 0] = den - q[t, 1:] @ (z + k[t])[1:] - z[0]
        z += k[t]
    assert (q * np.cumsum(k, axis=0)).sum(-1).tolist() == [1, 2j, -4, 1 + 1j, -8j]
    for form in (ri.linear_attention, *FORMS):
        for normalise in (True, False):
            o, end = form(q, k, v, ri.Kernel(normalise=normalise))
            want, S, z, _ = oracle.attention(
                *(x.tolist() for x in (q, k, v)), phi_q=plain, phi_k=plain, normalise=normalise
            )
            assert o.dtype == np.complex128 and o.tolist() == want and end.S.tolist() == S and end.z.tolist() == z


# By chunks: nothing is made for the whole text at once, and what goes wrong is located in the whole
# text.


@pytest.mark.parametrize("mask", ["causal", "full", 13])
def test_features_are_made_chunk_by_chunk(mask):
    asked = []

    def phi(x):
        asked.append(x.shape[-2])
        return x * x + 1

    q, k, v = (GF(10007).random((2, 23, width), i) for i, width in enumerate((3, 3, 2)))
    got = ri.linear_attention_chunked(q, k, v, ri.Kernel(phi), mask=mask, chunk=5)
    assert max(asked) == 5
    same(GF(10007), got, ri.linear_attention(q, k, v, ri.Kernel(phi), mask=mask))


def test_rotations_are_made_chunk_by_chunk():
    table, asked = ri.angle_table(Float(), 4), []
    rope = ri.Rope(lambda positions: asked.append(len(positions)) or table(positions))
    ri.linear_attention_chunked(*(Float().random((23, 4), i) for i in range(3)), ri.Kernel(rope=rope), chunk=5)
    assert asked == [5, 5, 5, 5, 3]


@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_memory_does_not_grow_with_the_text(dtype, mask):
    heads, r, m, chunk = 4, 16, 8, 32
    rope = ri.Rope(ri.angle_table(Float("numpy", dtype), r))

    def beyond_output(n):
        x = [abs(Float("numpy", dtype).random((heads, n, width), i)) for i, width in enumerate((r, r, m))]
        ri.linear_attention_chunked(
            *x, ri.Kernel("elu+1", rope=rope), mask=mask, chunk=chunk
        )  # once, for what is kept from then on
        tracemalloc.start()
        o, _ = ri.linear_attention_chunked(*x, ri.Kernel("elu+1", rope=rope), mask=mask, chunk=chunk)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak - o.nbytes, o.itemsize

    (short, size), (long, _) = beyond_output(512), beyond_output(4096)
    assert long <= 1.1 * short
    assert long <= 12 * heads * (chunk * (chunk + r) + r * m) * size
    assert long < heads * 4096 * r * size / 2  # half of φ(k) alone


def at_token(x, t, value):
    x = np.array(x)
    x[1, t, 0] = value
    return x


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("t", [0, 5, 17, 22])
def test_what_is_not_finite_is_located_in_the_whole_text(name, t):
    x = {n: Float().random((2, 23, 3), i) for i, n in enumerate("qkv")}
    x[name] = at_token(x[name], t, np.nan)
    message = f"linear_attention_chunked: `{name}` must be finite, got nan or inf at token {t}, column 0, head (1,)"
    with pytest.raises(ValueError, match=re.escape(message) + "$"):
        ri.linear_attention_chunked(*x.values(), chunk=5)


def test_overflow_and_zero_denominators_are_located_in_the_whole_text():
    q, k, v = (abs(Float().random((2, 23, 3), i)) for i in range(3))
    with (
        np.errstate(over="ignore"),
        pytest.raises(ri.NotFinite, match=r"phi_k\(k\) overflows numpy float64: nan or inf at token 17, column 0"),
    ):
        ri.linear_attention_chunked(q, at_token(k, 17, 1000.0), v, ri.Kernel("exp"), chunk=5)
    q = q * (np.arange(23) != 17)[:, None]
    with pytest.raises(ri.ZeroDenominator, match=r"is zero at token 17, head \(0,\)"):
        ri.linear_attention_chunked(q, k, v, chunk=5)
    with pytest.raises(ri.ZeroDenominator, match=r"is zero at token 17, head \(0,\)"):
        ri.linear_attention_chunked(q, k, v, chunk=5, mask="full")


def test_an_overflow_out_of_sight_does_no_harm():
    """The score of a token with a later one may overflow: it is masked, not multiplied by 0."""
    q, k, v = (np.ones((1, 4, 1), dtype=np.float32) for _ in range(3))
    q[0, 0], k[0, 3] = 1e30, 1e30
    for form in (ri.linear_attention, *FORMS):
        o, _ = form(q, k, v)
        assert o.tolist() == np.ones((1, 4, 1)).tolist()


@exact_systems
@given(problem=problems(), rows=st.integers(1, 5))
def test_rows_of_scores_may_be_made_a_few_at_a_time(system, problem, rows):
    with mock.patch.object(sys.modules["refimpl.attention.linear_attention"], "ROWS", rows):
        same(system, *problem.solve(system, ri.linear_attention, ri.linear_attention_quadratic))


@pytest.mark.parametrize("chunk", [None, 64])
@pytest.mark.parametrize("mask", ["full", 2090])
def test_long_prefixes_are_seen_to_their_end(mask, chunk):
    field = GF(2**31 - 1)
    q, k, v = (field.random((2100, 2), i) for i in range(3))
    got = ri.linear_attention_chunked(q, k, v, mask=mask, chunk=chunk)
    same(field, ri.linear_attention_recurrent(q, k, v, mask=mask), got)


@pytest.mark.parametrize("form", [ri.linear_attention, *FORMS])
@pytest.mark.parametrize("placement", ri.rope.PLACEMENTS)
@pytest.mark.parametrize("start", [-(10**6), -5000, 5000, 10**6])
def test_a_text_may_begin_far_from_0(form, placement, start):
    """Queries and keys that are turned beforehand give the same output and state."""
    field = GF(2**31 - 1)
    rope = ri.Rope(ri.power_table(*ri.circle_point(field.random((2,), 7))), "half", "before")
    q, k, v = (field.random((5, 4), i) for i in range(3))
    at, normalise = range(start, start + 5), placement == "before"
    state = State(field.random((4, 4), 8), field.random((4,), 9), start)
    want, end = form(rope(q, at), rope(k, at), v, ri.Kernel(normalise=normalise), state=state)
    kernel = ri.Kernel(rope=replace(rope, placement=placement), normalise=normalise)
    o, after = form(q, k, v, kernel, state=state)
    assert field.equal(o, want) and field.equal(after.S, end.S) and after.position == end.position


@pytest.mark.parametrize("n", [255, 256, 257, 513])
@pytest.mark.parametrize("mask", ["causal", "full", 3, 200, 255])
def test_more_rows_than_are_made_at_once(n, mask):
    field = GF(2**31 - 1)
    q, k, v = (field.random((2, n, width), i) for i, width in enumerate((3, 3, 2)))
    rope = ri.Rope(ri.power_table(*ri.circle_point(field.random((1,), 7))))
    options = {
        "kernel": ri.Kernel(rope=rope),
        "mask": mask,
        "padding": np.arange(n) % 7 != 3,
        "state": State(field.random((3, 2), 8), field.random((3,), 9), 4),
    }
    want = ri.linear_attention_recurrent(q, k, v, **options)
    same(field, want, ri.linear_attention_quadratic(q, k, v, **options))
    same(field, want, ri.linear_attention_chunked(q, k, v, **options))


@pytest.mark.parametrize("form", [ri.linear_attention, *FORMS], ids=lambda f: f.__name__)
def test_a_map_and_a_table_need_not_know_empty_texts(form):
    """reshape(..., -1) of nothing is an error, and so is a stack of nothing."""
    q, k, v = (Float().random((5, width), i) + 2 for i, width in enumerate((3, 3, 2)))

    def products(x):
        return (x[..., :, None] * x[..., None, :]).reshape(*x.shape[:-1], -1)

    def table(at):
        return tuple(np.stack([f(i * np.ones(1) / 9) for i in at]) for f in (np.cos, np.sin))

    form(q, k, v, ri.Kernel(products, rope=ri.Rope(table)))


def test_a_table_of_too_few_rows_is_refused():
    one_row = ri.Rope(lambda at: (np.full((1, 1), 0.6), np.full((1, 1), 0.8)))
    x = [Float().random((5, 2), i) + 2 for i in range(3)]
    for use in (
        ri.linear_attention,
        *FORMS,
        lambda q, k, v, kernel: ri.state.absorb(ri.state.no_text(v, 2, 2), k, v, kernel),
    ):
        with pytest.raises(ValueError, match=r"Rope: `positions` must have one entry per token, 5, got 1"):
            use(*x, ri.Kernel(rope=one_row), **({"chunk": 5} if use is ri.linear_attention_chunked else {}))


@pytest.mark.parametrize("form", [ri.linear_attention, *FORMS], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name, d, m", [*((name, 3, 2) for name in "qkv"), ("q", 3, 0), ("k", 3, 0), ("v", 0, 2)])
def test_nan_is_refused_wherever_it_can_hide(form, name, d, m):
    """Behind zeros, behind a zero denominator, and where no output would show it."""
    x = {"q": np.ones((2, 5, d)), "k": np.ones((2, 5, d)), "v": np.ones((2, 5, m))}
    x["q"][0, 4], x["k"][1, 1] = 0, 0
    x[name][1, 3, 0] = np.nan
    sums = ri.Kernel(normalise=False)
    options = [{"kernel": sums}, {"kernel": sums, "state": State(np.zeros((d, m)), None)}, {}]
    for own in options[: 2 if d == 0 else 3]:
        with pytest.raises(
            ValueError, match=rf"`{name}` must be finite, got nan or inf at token 3, column 0, head \(1,\)"
        ):
            form(*x.values(), **own)


@pytest.mark.parametrize("form", [ri.linear_attention, *FORMS], ids=lambda f: f.__name__)
def test_zero_denominators_are_found_where_there_are_no_values(form):
    x = np.ones((5, 3))
    with pytest.raises(ri.ZeroDenominator):
        form(0 * x, x, x[:, :0])


@pytest.mark.parametrize("form", [ri.linear_attention, *FORMS], ids=lambda f: f.__name__)
def test_a_map_sees_nothing_but_finite_numbers_and_does_not_warn(form):
    x = np.ones((5, 3))
    bad = at_token(x[None].repeat(2, 0), 4, np.inf)[1]
    with np.errstate(all="raise"), pytest.raises(ValueError, match="`q` must be finite, got nan or inf at token 4"):
        form(bad, x, x, ri.Kernel(lambda y: y if np.isfinite(y).all() else 1 / 0))
    with np.errstate(all="raise"):
        form(x, x, x, ri.Kernel(lambda y: np.exp(y - 1000) + 1))  # it underflows


def test_later_pieces_are_located_too():
    q, k, v = (abs(Float().random((2, 23, 3), i)) + 1 for i in range(3))
    chunked = functools.partial(ri.linear_attention_chunked, chunk=5)
    with pytest.raises(ValueError, match=r"`k` must be finite, got nan or inf at token 17, column 0, head \(1,\)"):
        chunked(q, at_token(k, 17, np.nan), v, ri.Kernel("elu+1"))
    with pytest.raises(
        ri.NotFinite, match=r"the output overflows numpy float64: nan or inf at token 17, column 0, head \(1,\)"
    ):
        chunked(at_token(q, 17, 1e308), k, v, ri.Kernel(normalise=False))
    padding = np.arange(23) != 3
    with pytest.raises(
        ri.NotFinite, match=r"the output overflows numpy float64: nan or inf at token 17, column 0, head \(1,\)"
    ):
        chunked(at_token(at_token(q, 17, 1e308), 3, np.nan), k, v, ri.Kernel(normalise=False), padding=padding)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@given(heads=st.integers(1, 40), r=st.integers(1, 5000), m=st.integers(1, 300))
def test_the_chunk_is_chosen_by_shape_and_dtype(dtype, heads, r, m):
    q, S = (np.broadcast_to(np.zeros((), dtype), shape) for shape in ((heads, 1, r), (heads, r, m)))
    chunk = chunk_length(q, S)
    assert 32 <= chunk <= 128 and chunk % 16 == 0
    assert chunk == 32 or heads * chunk**2 * q.itemsize <= 2**18
    assert chunk == 128 or heads * (chunk + 16) ** 2 * q.itemsize > 2**18
    assert chunk_length(q[0], S) == chunk and chunk_length(q, S[0]) == chunk  # heads of either side
    assert chunk_length(q[None], S[:, None]) == chunk_length(
        np.broadcast_to(q[None], (heads, *q.shape)), S[0]
    )  # and of both together


def test_the_chunk_for_other_numbers():
    q, S = np.zeros((8, 5, 64)), np.zeros((8, 64, 64))
    assert [chunk_length(q.astype(t), S) for t in ("float32", "float64")] == [80, 64]
    assert chunk_length(GF(7).zeros(q.shape), S) == 64 and chunk_length(QQ.zeros(q.shape), S) == 32


def test_problem_strategy_reaches_the_corners():
    """The strategy itself is seen to draw empty, single and odd shapes, all masks, both layouts and
    placements.
    """
    seen: list[Problem] = []

    @settings(max_examples=40)
    @given(problem=problems())
    def collect(problem):
        seen.append(problem)

    collect()
    assert {0, 1}.issubset({p.n for p in seen}) and any(p.d % 2 for p in seen) and any(p.m == 0 for p in seen)
    assert (
        any(p.mask == "full" for p in seen)
        and any(isinstance(p.mask, int) for p in seen)
        and any(p.start for p in seen)
    )
    assert {p.rope[:2] for p in seen if p.rope} == {
        (a, b) for a in ("half", "interleaved") for b in ("after", "before")
    }
