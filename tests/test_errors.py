"""How an unknown name is understood: apart from case and punctuation; gibberish is not."""

import pytest

from refimpl import FEATURE_MAPS
from refimpl.errors import choose, find_name, similar
from refimpl.prompt.compression import KINDS
from refimpl.systems import classes_by_word
from refimpl.systems.floats import LIBRARIES
from refimpl.verify.registry import THEOREMS
from tests.helpers.assertions import says

KNOWN = {"theorems": THEOREMS, "φ": FEATURE_MAPS, "systems": classes_by_word(), "libraries": LIBRARIES, "kinds": KINDS}
MEANT = {
    "theorems": {"ICLCA": "iclca", "kv cache": "kv_cache", "KVCache": "kv_cache", "quadratic": "quadratic_eq_sum"},
    "φ": {"elu_plus_one": "elu+1", "ELU": "elu+1", "rleu": "relu", "RELU2": "relu2", "Exp": "exp"},
    "systems": {"q": "Q", "ℚ": "Q", "GFF": "GF", "flota64": "float64", "Ball": "balls"},
    "libraries": {"touch": "torch", "jax": "jax.numpy", "NumPy": "numpy", "cuppy": "cupy"},
    "kinds": {"nyström": "nystrom", "favor": "favor++", "FAVOR plus plus": "favor++", "cash": "cache"},
}
GIBBERISH = ["asdf", "qwerty", "xyzzy", "lorem", "ipsum", "banana", "hello", "foo", "bar", "12345", "!!!", "zzz", "y"]


@pytest.mark.parametrize("kind", KNOWN)
def test_what_is_meant(kind):
    assert {value: similar(value, sorted(KNOWN[kind])) for value in MEANT[kind]} == MEANT[kind]
    assert {value: similar(value, sorted(KNOWN[kind])) for value in (*GIBBERISH, "")} == dict.fromkeys(
        (*GIBBERISH, ""), ""
    )


def test_the_suggestion_comes_first():
    with says(ValueError, "f: did you mean 'elu+1'? `phi` must be one of elu+1, relu, got 'elu_plus_one'"):
        choose("f", "phi", "elu_plus_one", ["relu", "elu+1"])
    with says(ValueError, "f: `phi` must be one of elu+1, relu, got 'xyzzy'"):
        choose("f", "phi", "xyzzy", ["relu", "elu+1"])


def test_a_name_is_found_only_if_it_is_the_only_one():
    assert find_name("ICLCA", THEOREMS) == "iclca" and find_name("iclc", THEOREMS) == "iclc"
    assert find_name("A", ["a", "A"]) == "A" and find_name("a-b", ["a_b", "A.B"]) == "a-b"


@pytest.mark.parametrize("kind", KNOWN)
def test_no_two_names_are_alike(kind):
    assert all(find_name(name.upper(), KNOWN[kind]) == name for name in KNOWN[kind])
