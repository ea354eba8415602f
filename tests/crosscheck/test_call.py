"""How a kernel is called, and the order of its axes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.crosscheck.axes import Axes
from refimpl.crosscheck.call import Call, ReturnedOther
from tests.helpers.assertions import says

GIVEN, MADE = ("q", "k", "S", "z"), ("o", "S", "z")


def test_a_call_with_constants_and_tuples():
    call = Call.read("q, 1.5, state=(S, z), train=False, name='a' -> o, (S, _)", GIVEN, MADE)
    assert call.given == {"q", "S", "z"} and call.made == {"o", "S"}

    def kernel(q, factor, *, state, train, name):
        assert (factor, train, name) == (1.5, False, "a") and isinstance(state, tuple)
        return q + state[0], [state[1], "anything"]

    assert call.make(kernel, {"q": 1, "S": 2, "z": 3}) == {"o": 3, "S": 3}


@pytest.mark.parametrize(
    "text", ["q, k", "q ->", "-> (o", "q + 1 -> o", "**q -> o", "q -> f(o)", "a b -> o", 3, "(" * 999]
)
def test_what_is_no_call(text):
    with says(ValueError, "call must be a call such as 'q, k, v, initial_state=(S, z) -> o, (S, z)', got"):
        Call.read(text, GIVEN, MADE)


def test_names_that_are_not_known():
    with says(ValueError, "call: `name` must be one of S, k, q, z, got 'v'"):
        Call.read("v -> o", GIVEN, MADE)
    with says(ValueError, "call: `name` must be one of S, _, o, z, got 'q'"):
        Call.read("q -> q", GIVEN, MADE)


@pytest.mark.parametrize(
    ("back", "words"), [((1,), "2 values, got 1 of them"), (1, "2 values, got int"), ("ab", "got str")]
)
def test_a_kernel_that_returns_other_things(back, words):
    with says(ReturnedOther, words):
        Call.read("q -> o, S", GIVEN, MADE).make(lambda q: back, {"q": 0})


WORDS = ["BHTD", "BTHD", "TBHD", "BT(HD)", "B(HT)D", "DTHB", "1BHTD", "B1HTD", "(BH)TD", "TD", "HTD", "THD", "BTD"]


@given(st.sampled_from(WORDS), st.tuples(*[st.integers(0, 3)] * 4))
def test_arrays_come_back_as_they_were_given(word, shape):
    axes = Axes.read("axes", word, "BHTD")
    sizes = {c: 1 if c in axes.missing else n for c, n in zip("BHTD", shape, strict=True)}
    x = np.arange(np.prod(list(sizes.values())), dtype=float).reshape(list(sizes.values()))
    theirs = axes.give(x)
    assert theirs.shape == axes.shape(sizes) and theirs.flags.c_contiguous
    assert np.array_equal(axes.take(theirs, sizes), x)


def test_axes_by_hand():
    x = np.arange(6.0).reshape(1, 2, 3, 1)  # two heads, three tokens
    assert Axes.read("axes", "T(HD)", "BHTD").give(x).tolist() == [[0, 3], [1, 4], [2, 5]]
    with says(ValueError, "axes TD have no H, which must then be 1, got"):
        Axes.read("axes", "TD", "BHTD").give(x)


@pytest.mark.parametrize("word", ["BHTX", "BB", "B(HT", "bhtd", 4, "B H"])
def test_what_are_no_axes(word):
    with says(ValueError, "axes must have each of the letters BHTD at most once"):
        Axes.read("axes", word, "BHTD")
