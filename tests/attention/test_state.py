"""The algebra of states, with ==."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import refimpl as ri
from refimpl import GF, QQ, State

systems = pytest.mark.parametrize("system", [QQ, GF(2**61 - 1)], ids=str)


def rope_of(system, layout, placement="after", pairs=2):
    return ri.Rope(ri.power_table(*ri.circle_point(system.random((pairs,), 77))), layout, placement)


ropes = st.sampled_from([None, "half", "interleaved"])
lengths = st.integers(0, 3)


def equal(system, a, b):
    return system.equal(a.S, b.S) and system.equal(a.z, b.z) and a.position == b.position


def text(system, n, seed, position=0, rope=None):
    """The state of n random tokens of 2 heads, width 5 and 3, read from `position` on."""
    k, v = system.random((2, n, 5), seed), system.random((2, n, 3), seed + 1)
    return ri.state.absorb(ri.state.no_text(v, 5, 3, lead=(2,), position=position), k, v, ri.Kernel(rope=rope))


def test_a_long_text_is_absorbed_as_it_is_read():
    system, kernel = GF(10007), ri.Kernel(normalise=False)
    k, v, S, z = (system.random(shape, seed) for seed, shape in enumerate([(1030, 2), (1030, 1), (2, 1), (2,)]))
    _, want = ri.linear_attention_chunked(k, k, v, kernel, state=State(S, z, 5))
    assert equal(system, ri.state.absorb(State(S, z, 5), k, v, kernel), want) and want.position == 1035


@systems
@given(n=st.tuples(lengths, lengths, lengths), layout=ropes, seed=st.integers(0, 999))
def test_states_form_a_group(system, n, layout, seed):
    """join is associative, no_text neutral on both sides, remove undoes join."""
    rope = layout and rope_of(system, layout)
    a, b, c = (text(system, i, seed + 10 * j, rope=rope) for j, i in enumerate(n))
    empty = ri.state.no_text(a.S, 5, 3, lead=(2,))
    join, remove = (lambda x, y, f=f: f(x, y, ri.Kernel(rope=rope)) for f in (ri.state.join, ri.state.remove))
    assert equal(system, join(join(a, b), c), join(a, join(b, c)))
    assert equal(system, join(a, empty), a) and equal(system, join(empty, a), a)
    assert equal(system, remove(join(a, b), b), a)


@systems
@given(
    n=st.tuples(lengths, lengths),
    layout=ropes,
    placement=st.sampled_from(["after", "before"]),
    start=st.integers(-4, 9),
    seed=st.integers(0, 999),
)
def test_join_is_reading_on(system, n, layout, placement, start, seed):
    """Reading b after a equals joining b's own state, whether b was read from 0 or at its place."""
    rope = layout and rope_of(system, layout, placement)
    k, v = system.random((2, n[1], 5), seed), system.random((2, n[1], 3), seed + 1)
    a = text(system, n[0], seed + 20, position=start, rope=rope)
    whole = ri.state.absorb(a, k, v, ri.Kernel(rope=rope))
    in_place = ri.state.absorb(ri.state.no_text(v, 5, 3, lead=(2,), position=a.position), k, v, ri.Kernel(rope=rope))
    assert equal(system, ri.state.join(a, in_place, ri.Kernel(rope=rope), origin=a.position), whole)
    assert equal(system, ri.state.remove(whole, in_place, ri.Kernel(rope=rope), origin=a.position), a)
    from_zero = ri.state.absorb(ri.state.no_text(v, 5, 3, lead=(2,)), k, v, ri.Kernel(rope=rope))
    assert equal(system, ri.state.join(a, from_zero, ri.Kernel(ri.feature_maps.identity, rope=rope)), whole)


@systems
@given(by=st.integers(-9, 9), layout=ropes, placement=st.sampled_from(["after", "before"]), seed=st.integers(0, 999))
def test_a_shifted_past_reads_the_same(system, by, layout, placement, seed):
    """The input read at position p after a state equals the input read at p + by after the shifted
    state, for every output.
    """
    rope = layout and rope_of(system, layout, placement)
    past = text(system, 3, seed, rope=rope)
    moved = ri.state.shift(past, by, ri.Kernel(ri.feature_maps.identity, rope=rope))
    q, k, v = (system.random((2, 4, w), seed + i) for i, w in ((30, 5), (31, 5), (32, 3)))
    try:
        here, _ = ri.linear_attention(q, k, v, ri.Kernel(rope=rope), state=past)
    except ri.ZeroDenominator:
        assume(False)
    there, _ = ri.linear_attention_chunked(q, k, v, ri.Kernel(rope=rope), state=moved, chunk=3)
    assert system.equal(here, there)
    if layout and placement == "after" and by % 4:
        unmoved = State(past.S, past.z, moved.position)
        assert not system.equal(here, ri.linear_attention(q, k, v, ri.Kernel(rope=rope), state=unmoved)[0]), (
            "a shift that turns nothing must show"
        )


def test_a_join_needs_only_the_map_of_the_keys():
    """Under RoPE before the kernel: states are written by φ_k; φ_q matters where they are read, so
    to shift.
    """
    rope, mixed = rope_of(QQ, "half", "before"), (ri.feature_maps.relu, ri.feature_maps.identity)
    a, b = text(QQ, 2, 0, rope=rope), text(QQ, 3, 5, rope=rope)
    assert equal(
        QQ,
        ri.state.join(a, b, ri.Kernel(mixed, rope=rope)),
        ri.state.join(a, b, ri.Kernel(ri.feature_maps.identity, rope=rope)),
    )
    with pytest.raises(ri.NotDefined, match="allows a shift only for φ = identity, not for relu"):
        ri.state.shift(a, 1, ri.Kernel(mixed, rope=rope))


def test_shift_without_rope_moves_only_the_position():
    past = text(QQ, 3, 0)
    assert equal(QQ, ri.state.shift(past, -3), State(past.S, past.z, 0))


@systems
def test_scale_counts_the_past_several_times(system):
    """A prompt of strength 3 is the prompt read three times."""
    past = text(system, 3, 0)
    thrice = ri.state.scale(past, 3)
    assert system.equal(thrice.S, past.S + past.S + past.S) and system.equal(thrice.z, past.z + past.z + past.z)
    assert ri.state.scale(State(past.S, None), 2).z is None


def test_states_without_z_join():
    a, b = (State(QQ.random((4, 3), i), None, 2) for i in (0, 1))
    joined = ri.state.join(a, b)
    assert joined.z is None and QQ.equal(joined.S, a.S + b.S) and joined.position == 4
    turned = ri.state.shift(a, 1, ri.Kernel(ri.feature_maps.identity, rope=rope_of(QQ, "half", "before")))
    assert turned.z is None and not QQ.equal(turned.S, a.S)
