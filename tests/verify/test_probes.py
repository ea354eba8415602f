"""Exact probes: that nothing in them can round is itself checked, in exact arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refimpl as ri
from refimpl import QQ, Float, Rounded, State

FORMATS = {"bfloat16": Rounded("bfloat16"), "float16": Float("numpy", "float16"), "float32": Float("numpy", "float32")}


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=8)
@given(data=st.data())
def test_no_partial_sum_can_round(name, data):
    """Integers whose sums of absolute values stay within 2^p, in S, z, num, den; power-of-two
    denominators.
    """
    limit = 1 / ri.unit_roundoff(name)
    n, r, m = (data.draw(st.integers(*ends)) for ends in ((0, 80), (1, 4), (1, 2)))
    mask, seed, start = (
        data.draw(st.sampled_from(["causal", "full"])),
        data.draw(st.integers(0, 99)),
        data.draw(st.booleans()),
    )
    probe = ri.exact_probe(FORMATS[name], n=n, r=r, m=m, heads=1, mask=mask, seed=seed, start=start)
    q, k, v = (QQ.convert(x) for x in (probe.q, probe.k, probe.v))
    begin = probe.options.get("state")
    S, z = (QQ.convert(begin.S), QQ.convert(begin.z)) if begin else (QQ.zeros((1, r, m)), QQ.zeros((1, r)))
    entries = [x for array in (q, k, v, S, z) for x in array.planes[0].ravel()]
    assert all(x.denominator == 1 for x in entries)

    def sums(values, start):
        state = State(QQ.abs(start), None)
        return ri.linear_attention_recurrent(
            QQ.abs(q), QQ.abs(k), QQ.abs(values), kernel=ri.Kernel(normalise=False), mask=mask, state=state
        )

    numerators, end = sums(v, S)
    masses, end_z = sums(QQ.ones((1, n, 1)), z[..., None])
    assert all(x <= limit for a in (numerators, masses, end.S, end_z.S) for x in a.planes[0].ravel())
    dens, _ = ri.linear_attention_recurrent(
        q, k, QQ.ones((1, n, 1)), kernel=ri.Kernel(normalise=False), mask=mask, state=State(z[..., None], None)
    )
    assert all(int(x) > 0 and int(x) & (int(x) - 1) == 0 for x in dens.planes[0].ravel())


def test_mismatch_says_where():
    probe = ri.exact_probe(Float(), n=5, r=3, m=2)
    o, end = ri.linear_attention(probe.q, probe.k, probe.v, **probe.options)
    assert probe.mismatch(o, end) is None
    wrong = o.copy()
    wrong[1, 3, 0] += 2.0**-40
    assert probe.mismatch(wrong).startswith("o[1, 3, 0] is ")
    assert probe.mismatch(o[:1]) == "o has shape (1, 5, 2) instead of (2, 5, 2)"
    assert probe.mismatch(o, State(end.S + 1, end.z, end.position)).startswith("S[0, 0, 0] is ")
    assert probe.mismatch(o, State(end.S, end.z * np.array([1, 1, 2]), end.position)).startswith("z[0, 2] is ")


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_probe_tells_the_layouts_apart(layout):
    other = {"half": "interleaved", "interleaved": "half"}[layout]
    probe = ri.exact_probe(Float(), n=7, r=4, m=3, layout=layout, seed=1)
    kernel = probe.options["kernel"]
    options = probe.options | {"kernel": replace(kernel, rope=ri.Rope(kernel.rope.table, other))}
    assert probe.mismatch(ri.linear_attention(probe.q, probe.k, probe.v, **options)[0]) is not None


@pytest.mark.parametrize("r", [1, 2, 4])
@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize("last", [64, pytest.param(127, marks=pytest.mark.slow)])
def test_a_probe_sees_to_the_end_of_the_text(r, start, last):
    """A kernel that writes nothing from some token on, in bfloat16, where few writes fit: seen at
    the very last one too.
    """
    probe = ri.exact_probe(Rounded("bfloat16"), n=128, r=r, m=3, start=start)
    k = QQ.convert(probe.k).tolist()
    deaf = probe.k.system.convert([[row if t < last else [0] * r for t, row in enumerate(head)] for head in k])
    assert probe.mismatch(*ri.linear_attention_recurrent(probe.q, probe.k, probe.v, **probe.options)) is None
    assert probe.mismatch(ri.linear_attention_recurrent(probe.q, deaf, probe.v, **probe.options)[0]) is not None


def test_what_a_kernel_may_return():
    """nan, a missing z, a wrong position or dtype are found, not tripped over."""
    probe = ri.exact_probe(Float("numpy", "float32"), n=5, r=3, m=2)
    o, end = ri.linear_attention(probe.q, probe.k, probe.v, **probe.options)
    broken = o.copy()
    broken[0, 2, 1] = np.nan
    assert probe.mismatch(broken).startswith("o[0, 2, 1] is nan or inf instead of ")
    assert probe.mismatch(o, State(end.S, None, end.position)) == "z is missing"
    assert probe.mismatch(o, State(end.S, end.z, 0)) == "position is 0 instead of 8"
    assert probe.mismatch(o.astype(np.float64)) == "o has dtype float64 instead of float32"


def test_bad_arguments():
    with pytest.raises(TypeError, match="exact_probe: `system` must be a Float or Rounded system, got ℚ"):
        ri.exact_probe(QQ, n=3, r=2, m=2)
    with pytest.raises(ValueError, match="exact_probe: need r ≥ 1 and n, m, heads ≥ 0, got r=0, n=3, m=2, heads=2"):
        ri.exact_probe(Float(), n=3, r=0, m=2)
    with pytest.raises(
        ValueError, match=r"exact_probe: did you mean 'causal'\? `mask` must be one of causal, full, got 'casual'"
    ):
        ri.exact_probe(Float(), n=3, r=2, m=2, mask="casual")


def written(probe):
    return np.array(QQ.convert(probe.k).planes[0], dtype=int)[0]


@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize(("name", "n", "most"), [("float16", 200, 2 * 64), ("bfloat16", 40, 2 * 8), ("float32", 4, 4)])
def test_a_probe_writes_as_often_as_it_may(name, n, most, start):
    """2^p/32 times a feature, but for the first, or at every token; once less if the last token,
    which is always written, is drawn too.
    """
    most = min(most, n if start else n - 1)  # where there is no state, token 0 writes feature 0
    counts = set()
    for seed in range(8):
        k = written(ri.exact_probe(FORMATS[name], n=n, r=3, m=2, heads=1, start=start, seed=seed))
        counts.add(int(k[:, 1:].sum()))
        assert k[-1, 1:].any() and k.sum(axis=1).max() == 1 and abs(k[:, 1].sum() - k[:, 2].sum()) <= 1
        assert k[:, 0].tolist() == [int(not start), *[0] * (n - 1)]
    assert counts <= {most - 1, most} and most in counts


@pytest.mark.parametrize("start", [True, False])
def test_a_probe_of_one_feature_doubles_its_sum(start):
    probes = [ri.exact_probe(Float(), n=20, r=1, m=2, heads=1, start=start, seed=seed) for seed in range(8)]
    for probe in probes:
        k = written(probe)[:, 0]
        sums = np.cumsum([int(start), *k[k > 0]])
        assert (probe.q == 1).all() and (sums[2:] == 2 * sums[1:-1]).all()
    assert max(written(probe).max() for probe in probes) == 8


@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize("mask", ["causal", "full", 2])
@pytest.mark.parametrize("layout", [None, "half", "interleaved"])
def test_the_expected_output_is_that_of_attention(layout, mask, start):
    for r, normalise in ((1, True), (5, True), (5, False), (8, True)):
        probe = ri.exact_probe(
            Float(), n=6, r=r, m=2, heads=3, mask=mask, seed=r, normalise=normalise, layout=layout, start=start
        )
        assert probe.mismatch(*ri.linear_attention(probe.q, probe.k, probe.v, **probe.options)) is None
        assert set(np.unique(probe.v)) == {-1, 1} and probe.q.shape == (3, 6, r)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_probe_turns_by_one_two_and_three_quarters(layout):
    """A table that is right for one and two quarters only must be seen."""
    rope = ri.exact_probe(Float(), n=7, r=8, m=3, layout=layout).options["kernel"].rope
    cos, sin = (np.asarray(x)[0].tolist() for x in rope.table([1]))
    assert (cos, sin) == ([0, -1, 0, 0], [1, 0, -1, 1])
