"""What cannot be done.

Every witness holds in ℚ and modulo primes, and falls when what it turns on is taken away.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace

import pytest

from refimpl import GF, QQ, NotDefined, convert
from refimpl.verify.check import check
from refimpl.verify.implementation import REFIMPL
from refimpl.verify.theorem import Different, Numbers
from refimpl.verify.theorems.witnesses import CASES, adder, additive, biases, kv, not_zero, show, sums, text, then
from refimpl.verify.theorems.witnesses import THEOREMS as WITNESSES
from refimpl.verify.ways import WAYS, way_of
from tests.helpers.assertions import says

SYSTEMS = [QQ, GF(2**61 - 1), GF(2**31 - 1), GF(11)]
NAMES = {w.name: w for w in WITNESSES}


@functools.cache
def claims(name, system=QQ, seed=0, **undone):
    """Of each pair of sides: its name, whether they are claimed to be equal, whether they are."""
    found = []
    for pair in NAMES[name].sides(CASES[0], Numbers(system, seed), REFIMPL, **undone):
        what, left, right = pair
        assert isinstance(left, int) or left.shape == right.shape, what
        found.append(
            (
                what,
                not isinstance(pair, Different),
                left == right if isinstance(left, int) else system.equal(left, right),
            )
        )
    return found


def fallen(*args, **undone):
    """The claims that do not hold."""
    return [what for what, claimed, found in claims(*args, **undone) if claimed != found]


@pytest.mark.parametrize("system", SYSTEMS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_witness_holds(name, system):
    assert not fallen(name, system)
    assert {claimed for _, claimed, _ in claims(name, system)} == {
        True,
        False,
    }  # what holds stands beside what does not


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["no_change_of_weights", "no_projection_biases"])
def test_what_holds_for_any_weights_holds_for_drawn_ones(name, seed):
    assert not any(fallen(name, system, seed) for system in SYSTEMS)


# What a witness turns on, taken away, and the claims that must fall with it.
UNDONE = {
    "needs_causality": [
        ({"mask": "causal"}, ["y, z, two layers, full mask", "the bias that layer 2 needs for inputs 1 and 2"])
    ],
    "needs_relative_positions": [
        ({"positions": (0, 0, 0)}, ["y, positions from 0 again", "the bias that inputs of 1 and 2 tokens need"])
    ],
    "needs_separation": [
        (
            {"D": additive},
            ["D = (Σ φ(k))²: b_D for inputs 1 and 2", "o for input 2, with the b_D of 1 and with its own"],
        )
    ],
    "no_change_of_weights": [
        ({"prompt": ((0, 0),)}, ["at X = 0, W_1ᵀXᵀXW_2 and W_KᵀX'ᵀX'W_V", "o(2x) and 8 o(x), after a prompt"])
    ],
    "no_projection_biases": [
        ({"prompt": ((1, 2),)}, ["det B(1)"]),
        ({"prompt": ((0, 0),)}, ["B(2) and 2 B(1)", "det B(1)"]),
    ],
    "joining_biases": [
        ({"rope": False}, ["layer 1, RoPE: b_1 + b_2"]),
        ({"layers": 1}, ["two layers: P1 P2 and P1 P3", "layer 2, RoPE: R_{-2} b_1 + b_2"]),
    ],
    "lifo_only": [({"layers": 1}, ["P1 P2 less P1, and P2", "their biases subtracted, and P2", "P2 and P3"])],
}


@pytest.mark.parametrize("system", SYSTEMS, ids=str)
@pytest.mark.parametrize(
    ("name", "undone", "falls"), [(name, *each) for name, all_of in UNDONE.items() for each in all_of]
)
def test_witness_falls_without_what_it_turns_on(name, undone, falls, system):
    assert fallen(name, system, **undone) == falls


def test_every_difference_falls_somewhere():
    for name in NAMES:
        different = {what for what, claimed, _ in claims(name) if not claimed}
        assert different == {what for _, falls in UNDONE[name] for what in falls}


def test_they_are_checked_like_theorems():
    for witness in WITNESSES:
        assert all(way_of(witness, system) is WAYS["witness"] for system in SYSTEMS)
        assert witness.statement.endswith(".") and witness.ours and witness.sides.__doc__
        assert check(witness, QQ, witness.cases).verdict == "EXACT"
        for undone, _ in UNDONE[witness.name]:
            planted = replace(witness, sides=functools.partial(witness.sides, **undone))
            assert check(planted, QQ, witness.cases).verdict == "FAIL"


def test_small_primes_are_too_small():
    """Modulo 7, 18 = 32: what `characteristic` in the assumptions is about."""
    assert fallen("needs_causality", GF(7)) == ["the bias that layer 2 needs for inputs 1 and 2"]
    assert all("characteristic 0 or > 7" in witness.assumes for witness in WITNESSES)


def test_the_adder_adds():
    x = text(QQ, 3, -1, 5)
    assert adder(QQ, 2)(x)[:, 2:].tolist() == [[3, 9], [2, 13], [7, 62]]
    assert adder(QQ, 1)(x)[:, 2:].tolist() == [[3, 0], [2, 0], [7, 0]]
    assert adder(QQ, 1, rope=True)(x)[:, 2].tolist() == [3, -1, 5 - 3]
    assert adder(QQ, 1, positions=(0, 10, 20))(x)[:, 1:3].tolist() == [[3, 3], [9, 12], [25, 37]]
    assert biases(convert(adder(QQ, 2), x)).tolist() == [[7], [62]]
    assert sums(adder(QQ, 2), then(x, text(QQ, 1))).tolist() == [8, 62 + 64]


def test_convert_refuses_what_the_witness_does_by_hand():
    with says(NotDefined, "convert: absolute positions cannot start again after a prompt; pass restart=False"):
        convert(adder(QQ, 1, positions=(0, 1, 2)), text(QQ, 5))


def test_only_the_zero_polynomial_counts_as_zero():
    assert not_zero(lambda W: W * 0, (2, 3)) == 0
    assert not_zero(lambda W: W, (2, 3)) == 6
    assert not_zero(lambda W_1, W_2: kv(W_1[:1, :], W_2[:1, :]), (2, 2), (2, 2)) == 4


def test_show():
    shown = show()
    assert len(shown.splitlines()) < 50 and max(map(len, shown.splitlines())) < 140
    assert all(f"{w.name}: {w.statement}\n" in shown for w in WITNESSES)
    assert shown.count("≠") == sum(not claimed for name in NAMES for _, claimed, _ in claims(name))
    assert "    y, z, two layers, full mask:  (3, 17) ≠ (3, 27)\n" in shown
    one = show("needs_separation")
    assert [re.sub(r".*: +", "", line) for line in one.splitlines()[1:]] == ["1 = 1", "3 ≠ 5", "5/7 ≠ 5/9"]
    with says(ValueError, "show: did you mean 'needs_separation'?"):
        show("needs_seperation")
