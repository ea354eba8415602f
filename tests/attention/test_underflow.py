"""Underflow: an output without a right digit is refused, and nothing else is."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import refimpl as ri
from refimpl.attention import linear_attention, underflow
from refimpl.attention.linear_attention import LINEAR
from refimpl.systems import fractions
from refimpl.systems.formats import FORMATS
from refimpl.verify.bounds import exact_with_bound, unit_roundoff
from tests.helpers.assertions import says

DTYPES = ("float16", "float32", "float64")
forms = pytest.mark.parametrize("form", LINEAR)


@st.composite
def tiny_texts(draw):
    """q, k, v and perhaps a state, whose products may underflow, or be zero for other reasons."""
    dtype = draw(st.sampled_from(DTYPES))
    bits, low, _ = FORMATS[dtype]
    n, r, m = (draw(st.integers(1, size)) for size in (4, 3, 2))

    def array(*shape):
        e = draw(st.integers(low, 0))  # the magnitudes of one array, and how much they differ
        spread = draw(st.sampled_from([0, 2, 8, -low]))
        signs = st.sampled_from([0, 1, 1, 1, -1] if draw(st.booleans()) else [0, 1])
        entries = st.tuples(signs, st.integers(2 ** (bits - 1), 2**bits - 1), st.integers(0, spread))
        flat = draw(st.lists(entries, min_size=math.prod(shape), max_size=math.prod(shape)))
        values = [np.ldexp(float(s * x), max(e - i, low) - bits) for s, x, i in flat]
        return np.array(values).astype(dtype).reshape(shape)

    state = ri.State(array(r, m), array(r)) if draw(st.booleans()) else None
    kernel = ri.Kernel(normalise=draw(st.booleans()))
    return (array(n, r), array(n, r), array(n, m), kernel), {"state": state}


def unjudged(form, text, options, monkeypatch):
    """What the form computes if nobody looks for underflow; None if it refuses otherwise."""
    with monkeypatch.context() as patch:
        patch.setattr(underflow.Judge, "check", lambda *_: None)
        patch.setattr(linear_attention, "check_columns", lambda *_: None)
        try:
            return form(*text, **options)[0]
        except (ri.ZeroDenominator, ri.NotFinite):
            return None


def lost_columns(text, state):
    """Is there a column of S that is not 0, and whose products are all too small for the dtype?"""
    _, k, v, _ = text
    _, low, _ = FORMATS[k.dtype.name]
    K, V, S = (fractions(x, "test") for x in (k, v, np.zeros((k.shape[1], v.shape[1])) if state is None else state.S))
    exact, terms = S + K.T @ V, abs(K.T)[:, :, None] * abs(V)[None]
    small = (terms < Fraction(2) ** (low - 1)).all(axis=(0, 1)) & (S == 0).all(axis=0)
    return (small & (exact != 0).any(axis=0)).any()


@pytest.fixture
def counts():
    """How many texts were lost, and how many small ones were right."""
    found = {"lost": 0, "right": 0}
    yield found
    assert min(found.values()) > 0, found


@forms
def test_exactly_what_is_lost_is_refused(form, counts, monkeypatch):
    @settings(max_examples=20 * settings.default.max_examples)
    @given(tiny_texts())
    def check(case):
        text, options = case
        dtype = text[0].dtype.name
        _, low, _ = FORMATS[dtype]
        normal = Fraction(2) ** (low - 1)
        try:
            exact, bound = exact_with_bound(*text, **options, u=unit_roundoff(dtype))
        except ZeroDivisionError:
            reject()
        got = unjudged(form, text, options, monkeypatch)
        try:
            form(*text, **options)
            refused = False
        except ri.Underflow as error:
            refused = True
            if "`S`" in str(error):
                assert lost_columns(text, options["state"])
                return
        except (ri.ZeroDenominator, ri.NotFinite):
            assert got is None
            return
        if got is None:  # the denominator was 0 or the output overflowed, though the exact ones do not
            counts["lost"] += refused
            return
        wrong = np.abs(fractions(got, "test") - fractions(exact, "test"))
        beyond = wrong > bound
        size = np.abs(fractions(exact, "test"))
        if refused:
            counts["lost"] += 1
            assert beyond.any()
        else:
            # zero where the exact number is a normal one, and rounding does not explain it
            assert not (beyond & (fractions(got, "test") == 0) & (size >= normal)).any()
            counts["right"] += bool((np.abs(fractions(got, "test")) < normal).any())

    check()


@forms
@pytest.mark.parametrize("dtype, x", [("float16", 1e-3), ("float32", 1e-20), ("float64", 1e-120)])
def test_small_inputs(form, dtype, x):
    small = np.full((2, 5, 3), x, dtype)
    where = f"the output underflows numpy {dtype} at token 0, column 0, head (0,)"
    advice = "scale `q`, `k` or `v` up, or use a wider dtype"
    with says(ri.Underflow, f"{form.__name__}: {where}; {advice}"):
        form(small, small, small)
    ones = np.ones_like(small)
    np.testing.assert_array_equal(form(ones, ones, small)[0][..., 0, :], small[..., 0, :])  # scaled up
    # Without division the output is x³ itself, which rounds to 0.
    assert not form(small, small, small, ri.Kernel(normalise=False))[0].any()


@forms
def test_zeros_that_are_right(form):
    tiny = np.float16(1e-3)
    zero, one = np.zeros((4, 2), np.float16), np.ones((4, 2), np.float16)
    assert not form(one, one, zero)[0].any()
    assert not form(one * tiny, one, zero)[0].any()
    apart = np.array([[1, 0]] * 4, np.float16), np.array([[0, 1]] * 4, np.float16)  # orthogonal
    assert not form(*apart, one * tiny, ri.Kernel(normalise=False))[0].any()
    with pytest.raises(ri.ZeroDenominator):
        form(apart[0] * tiny, apart[1] * tiny, one)
    with pytest.raises(ri.ZeroDenominator):
        form(one, -one * tiny, one, ri.Kernel("relu"))
    with pytest.raises(ri.ZeroDenominator):
        form(one * tiny, np.array([[1, -1]] * 4, np.float16) * tiny, one)
    opposite = np.array([[1], [-1], [0], [0]], np.float16) * tiny  # 1 − 1 = 0
    assert not form(one[:, :1] * tiny, one[:, :1], opposite, mask="full")[0].any()


@forms
def test_what_rounding_explains_is_not_lost(form):
    """(1 + 2⁻²⁶) − 1 may be 0 in float32. The second feature underflows, and does not matter."""
    x = np.array([[1, 2.0**-70]] * 3, np.float32)
    o, _ = form(x, x, np.array([[1], [2.0**-26], [-1]], np.float32), mask="full")
    assert np.isin(o, [0, np.float32(2.0**-26) / 3]).all()
    assert form is not ri.linear_attention_recurrent or not o.any()


@forms
def test_numbers_that_the_reference_cannot_hold_are_not_judged(form):
    """The last key or value is 2¹⁰⁷³ times the first, which lose digits when scaled alike."""
    q, k = np.full((3, 1), 2.0**-560), np.array([[1.25 * 2.0**-473], [1.265625 * 2.0**-473], [2.0**600]])
    o, _ = form(q, k, np.array([[1.0], [-1.0], [1.0]]))
    assert o[1, 0] == (1.25 - 1.265625) / (1.25 + 1.265625)
    q, k = np.full((3, 1), 2.0**-500), np.full((3, 1), 2.0**-470)
    o, _ = form(q, k, np.array([[20.5 * 2.0**-73], [-21.5 * 2.0**-73], [2.0**1000]]))
    assert o[1, 0] == -(2.0**-74)


@forms
def test_padded_tokens_are_not_judged(form):
    small, keep = np.full((5, 3), 1e-5, np.float16), np.array([True, True, False, True, True])
    large = np.where(keep[:, None], np.float16(1), small)
    assert not form(large, large, np.ones_like(large), padding=keep)[0][2].any()
    keep = ~keep  # only one token counts
    with pytest.raises(ri.Underflow, match="at token 2"):
        form(small, small, small, padding=keep)


@forms
def test_a_denominator_that_underflows_to_zero(form):
    small = np.full((3, 2), 1e-23, np.float32)
    with pytest.raises(ri.Underflow, match=r"the denominator φ.q.·z underflows numpy float32 at token 0; scale"):
        form(small, small, np.ones_like(small))


def test_a_long_text_and_a_state():
    """Beyond the first chunk; and where a state alone is small."""
    rng = np.random.default_rng(0)
    q, k, v = rng.random((3, 8, 300, 4)).astype(np.float32)
    q[5, 290] = v[5, :, 2] = 1e-25
    with pytest.raises(ri.Underflow, match=r"at token 290, column 2, head .5,."):
        ri.linear_attention_chunked(q, k, v)
    state = ri.State(np.full((4, 4), 1e-30, np.float32), np.full(4, 1e-20, np.float32))
    with pytest.raises(ri.Underflow, match="at token 0, column 0"):
        ri.linear_attention_chunked(q[0, :1] * np.float32(1e-20), k[0, :1] * 0, v[0, :1], state=state)


@pytest.mark.parametrize("library", ["torch", "jax", "array_api_strict"])
def test_other_libraries(library):
    if library != "array_api_strict":
        pytest.importorskip(library)
    x = ri.Float(library, "float32").convert(np.full((5, 3), 1e-20))
    with pytest.raises(ri.Underflow, match=r"underflows .*float32 at token 0.*; scale"):
        ri.linear_attention_chunked(x, x, x)


@forms
def test_only_the_denominator_of_a_state_underflows(form):
    """A hundred products of 0.49 2^-149 are lost, beside one of 2^-149 that is not."""
    q, k = np.full((1, 101), 2.0**-80, np.float32), np.zeros((1, 101), np.float32)
    q[0, 100], k[0, 100] = 0, 1
    z = np.full(101, 0.49 * 2.0**-69, np.float32)
    z[0], z[100] = 2.0**-69, 1
    state = ri.State(np.full((101, 1), 2.0**-40, np.float32), z)
    with says(ri.Underflow, "the output underflows"):
        form(q, k, np.ones((1, 1), np.float32), state=state)
    z[:100] = 2.0**-60
    form(q, k, np.ones((1, 1), np.float32), state=ri.State(state.S, z))


@forms
def test_a_state_without_a_right_digit_is_refused(form):
    """The output is right, and whatever would be read from the state is 0."""
    q, k = np.full((1, 2), 1e3, np.float16), np.full((1, 2), 1e-4, np.float16)
    column = "underflows numpy float16 at column 0; scale `k` or `v` up, or use a wider dtype"
    with says(ri.Underflow, "underflows numpy float16 at"):
        form(q, k, k)
    with says(ri.Underflow, f"absorb: `S` {column}"):
        ri.state.absorb(ri.state.no_text(k, 2, 2), k, k)
    bare = ri.State(np.zeros((2, 2), np.float16), None)  # without z nothing is divided, and 0 is near
    assert not ri.state.absorb(bare, k, k).S.any()
    both = np.concatenate([k, k])
    for values in (0 * both, both * np.array([[1], [-1]], np.float16)):  # the sum is 0
        assert not ri.state.absorb(ri.state.no_text(k, 2, 2), both, values).S.any()


def test_a_state_that_is_scaled_to_nothing_is_refused():
    state = ri.State(np.full((2, 3), 1e-4, np.float16), np.full(2, 1e-4, np.float16))
    with says(ri.Underflow, "scale: `S` underflows numpy float16 at column 0"):
        ri.state.scale(state, 1e-5)
    with says(ri.Underflow, "scale: `z` underflows numpy float16 at all features"):
        ri.state.scale(ri.State(state.S * 10000, state.z), 1e-4)
    assert not ri.state.scale(state, 0).S.any() and ri.state.scale(state, 0.5).S.all()


def test_a_prompt_that_is_weighed_to_nothing_is_refused():
    config = ri.Config(layers=1, width=2, d=2, m=2, phi="elu+1", norm="none")
    model, prompt = ri.random_model(ri.Float("numpy", "float32"), config, 0), np.ones((3, 2), np.float32)
    assert ri.convert(model, prompt, strength=1e-30).biases[0].S.all()
    with says(ri.Underflow, "convert: `S` underflows numpy float32"):
        ri.convert(model, prompt, strength=1e-50)


@pytest.mark.parametrize("normalise", [True, False])
def test_lost_is_what_lies_beyond_the_bound(normalise):
    """An output of 0 where A = 1: rounding explains up to γ, or γ/(1 − γ) where it divides."""
    text = SimpleNamespace(n=5, kernel=SimpleNamespace(normalise=normalise), who="form", q=np.zeros((5, 3), np.float32))
    S, one, u = np.zeros((3, 1), np.float32), np.ones((5, 1)), 2.0**-24
    judge = underflow.Judge(text, S, S[:, 0], 0, None, 5)
    judge.k = judge.v = 0
    most = 10 * u / (1 - 10 * u)  # of 5 tokens, 3 features, and 2 more roundings
    most = most / (1 - most) if normalise else most

    def check(share):
        judge.reference = np.zeros((5, 1), int), share * most * one, one, one, one
        judge.check(np.zeros((5, 1), np.float32), np.ones((5, 1), np.float32), 0, None)

    check(0.98)
    with says(ri.Underflow, "the output underflows"):
        check(1.02)
