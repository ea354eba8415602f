"""Good inputs: integers of any kind are taken, and nothing is written into an argument."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest

import refimpl as ri
from refimpl import Rope, State
from tests.helpers.bad_input import Q, S, a, before, d, k, keep, la, n, q, soft, table, v, z


def test_shift_is_allowed_for_identity():
    for phi in (ri.feature_maps.identity, "identity"):
        moved = ri.state.shift(State(S, z), 3, ri.Kernel(phi, rope=before))
        assert moved.position == 3
        assert moved.z[-1] == z[-1]
        assert not np.array_equal(moved.z, z)


def test_numbers_of_any_integer_kind_are_lengths_and_positions():
    want = la(q, k, v, mask=2, state=State(S, z, 3))
    got = la(q, k, v, mask=np.int64(2), state=State(S, z, np.int32(3)))
    assert np.array_equal(got[0], want[0])
    assert ri.state.scale(State(Q[1], Q[1][:, 0]), Fraction(1, 2)).S.shape == (n, d)


def frozen(x: Any) -> Any:
    x.setflags(write=False)
    return x


READ_ONLY = {
    **{f.__name__: f for f in (la, ri.linear_attention_quadratic, ri.linear_attention_recurrent)},
    "linear_attention_chunked": lambda *args, **options: ri.linear_attention_chunked(*args, chunk=2, **options),
}


@pytest.mark.parametrize("form", READ_ONLY)
@pytest.mark.parametrize("placement", ri.rope.PLACEMENTS)
def test_no_form_writes_into_its_inputs(form, placement):
    arrays = [frozen(x.copy()) for x in (q, k, v, S, z, keep[0])]
    rope = Rope(table(2), placement=placement)
    options = {"padding": arrays[5], "mask": 2, "state": State(arrays[3], arrays[4], 3)}
    READ_ONLY[form](*arrays[:3], ri.Kernel("elu+1", rope), **options)
    for x, copy in zip(arrays, (q, k, v, S, z, keep[0]), strict=True):
        assert np.array_equal(x, copy)


def test_nothing_else_writes_into_its_inputs():
    arrays = [frozen(x.copy()) for x in (q, k, v, S, z)]
    x, state, after = arrays[0], State(arrays[3], arrays[4], 3), Rope(table(2))
    for form in (soft, ri.softmax_attention_shifted):
        _, cache = form(*arrays[:3], rope=before)
        for part in (cache.k, cache.v):
            frozen(part)
        form(*arrays[:3], rope=before, cache=cache)
    ri.state.absorb(state, *arrays[1:3], ri.Kernel(rope=after))
    ri.state.remove(ri.state.join(state, state, ri.Kernel(rope=after)), state, ri.Kernel(rope=after))
    ri.state.shift(ri.state.scale(state, 2), -3, ri.Kernel(ri.feature_maps.identity, rope=before))
    for phi in (
        *ri.FEATURE_MAPS.values(),
        ri.feature_maps.polynomial(2),
        ri.feature_maps.dpfp(2),
        ri.feature_maps.hedgehog(frozen(a(4, 3)), frozen(a(4))),
    ):
        phi(x)
    for layout in ri.rope.LAYOUTS:
        ri.rotate(x, *table(2)(range(n)), layout=layout)
    ri.rope.deinterleave(ri.rope.interleave(x, pairs=1), pairs=1)
    for x, copy in zip(arrays, (q, k, v, S, z), strict=True):
        assert np.array_equal(x, copy)


def test_devices_are_compared_every_time():
    """Kinds of arrays that were found to be right are not looked at again, but for their device."""
    here, there = strict.ones((n, d)), strict.ones((n, d), device=strict.Device("device1"))
    la(here, here, here)
    for arrays in ((there, here, here), (here, there, here), (here, here, there)):
        with pytest.raises(TypeError, match=r"has device .*; convert one of them explicitly"):
            la(*arrays)
