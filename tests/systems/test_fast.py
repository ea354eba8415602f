"""Each fast way equals the plain expression in its docstring, on every kind of array."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl import GF, QQ, Float, Rounded
from refimpl.systems.floats import Pieces, array_namespace, itemsize, keep_where, sums, surely_finite

FLOATS = [Float("numpy", dtype) for dtype in ("float64", "float32", "float16", "complex128")]
SYSTEMS = [*FLOATS, Float("array_api_strict"), GF(10007), QQ, Rounded("bfloat16")]
systems = pytest.mark.parametrize("system", SYSTEMS, ids=str)
LEADS = st.sampled_from([(), (1,), (2, 3), (0,)])
SIZES = st.integers(0, 5)
SEEDS = st.integers(0, 99)


def equal(system, x, y):
    return x.shape == y.shape and system.equal(x, y)


@systems
@given(lead=LEADS, n=SIZES, m=SIZES, seed=SEEDS)
def test_masked(system, lead, n, m, seed):
    x, keep = system.random((*lead, n, m), seed), np.random.default_rng(seed).random((n, m)) < 0.5
    xp = array_namespace(x)
    keep = keep if not isinstance(system, Float) else xp.asarray(keep)
    want = xp.where(keep, x, xp.zeros_like(x))
    assert equal(system, keep_where(x, keep), want)


@pytest.mark.parametrize("system", FLOATS, ids=str)
def test_masked_leaves_nothing_of_nan_and_inf(system):
    x = np.array([[np.nan, 1], [np.inf, -np.inf]], dtype=system.dtype)
    assert keep_where(x, np.array([[False, True], [False, False]])).tolist() == [[0, 1], [0, 0]]


@systems
@pytest.mark.parametrize("axis", [-1, -2])
@given(lead=LEADS, n=SIZES, m=SIZES, seed=SEEDS)
def test_sums(system, axis, lead, n, m, seed):
    x = system.convert(np.random.default_rng(seed).integers(-9, 9, (*lead, n, m)).astype(float))
    assert equal(system, sums(x, axis=axis), array_namespace(x).sum(x, axis=axis, keepdims=True))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("system", FLOATS, ids=str)
@given(
    lead=st.sampled_from([(), (1,), (2, 3)]),
    n=st.sampled_from([1, 2, 3000]),
    m=st.integers(1, 5),
    seed=SEEDS,
    other=st.booleans(),
)
def test_never_surely_finite_with_one_bad_entry(system, bad, lead, n, m, seed, other):
    x = np.array(system.random((*lead, n, m), seed))
    places = np.random.default_rng(seed).integers(0, x.size, 2)
    x.reshape(-1)[places[0]] = bad
    if other:  # inf − inf must not cancel
        x.reshape(-1)[places[1]] = -bad
    assert not surely_finite(x)


def test_surely_finite():
    x = np.ones((2, 80, 64), dtype=np.float32)
    assert surely_finite(x) and surely_finite(x[:, :0]) and surely_finite(x[:, :, 1:3]) and surely_finite(x[0, 0])
    # it is finite, but that takes longer to find out
    assert not surely_finite(x * np.float32(2e38))
    assert surely_finite(x[0, :1] * np.float32(2e38)) and surely_finite(QQ.ones((2, 2)))


def test_itemsize():
    assert [itemsize(s.zeros((2,))) for s in (GF(7), QQ, Rounded("bfloat16"))] == [8, 64, 8]
    assert [itemsize(np.zeros(2, t)) for t in ("float16", "float64")] == [2, 8] and itemsize(
        Float("array_api_strict").random((2,), 0)
    ) == 8


@systems
@given(lead=LEADS, lengths=st.lists(st.integers(0, 3), max_size=4), m=SIZES, seed=SEEDS)
def test_pieces(system, lead, lengths, m, seed):
    pieces = [system.random((*lead, n, m), seed + i) for i, n in enumerate(lengths)]
    like, shape = system.random((2, 2), 0), (*lead, sum(lengths), m)
    collected = Pieces(like, shape)
    for piece in pieces:
        collected.append(piece)
    whole, start = collected.array(), 0
    assert whole.shape == shape and whole.dtype == like.dtype
    for piece in pieces:
        assert equal(system, whole[..., start : start + piece.shape[-2], :], piece)
        start += piece.shape[-2]
