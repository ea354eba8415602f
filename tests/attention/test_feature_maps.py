"""Feature maps: what kernel each has, exactly where it is rational."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refimpl as ri
from refimpl import GF, MP, QQ, Float, balls
from tests.helpers.assertions import informative, says

shapes = st.tuples(st.integers(0, 3), st.integers(1, 4))


def gram(system, fq, fk):
    return fq @ system.matrix_transpose(fk)


@pytest.mark.parametrize("system", [QQ, GF(10007), GF(2**61 - 1)], ids=str)
@given(shape=shapes, degree=st.integers(0, 3), seed=st.integers(0, 99))
def test_polynomial_kernel(system, shape, degree, seed):
    """φ(x)·φ(y) = (1 + x·y)^degree"""
    x, y, phi = system.random(shape, seed), system.random(shape, seed + 1), ri.feature_maps.polynomial(degree)
    want = system.ones((shape[0], shape[0]))
    for _ in range(degree):
        want = want * (1 + gram(system, x, y))
    assert phi(x).shape == (shape[0], (shape[1] + 1) ** degree)
    assert system.equal(gram(system, phi(x), phi(y)), want)


@pytest.mark.parametrize("system", [QQ, GF(10007)], ids=str)
@given(shape=shapes, seed=st.integers(0, 99))
def test_taylor2_pair_kernel(system, shape, seed):
    """φ_q(x)·φ_k(y) = 1 + u + u²/2, u = x·y/3"""
    x, y = system.random(shape, seed), system.random(shape, seed + 1)
    phi_q, phi_k = ri.feature_maps.taylor2_pair(Fraction(1, 3))
    u = gram(system, x, y) * Fraction(1, 3)
    assert system.equal(gram(system, phi_q(x), phi_k(y)), 1 + u + u * u / 2)


@given(shape=shapes, seed=st.integers(0, 99))
def test_taylor2_kernel(shape, seed):
    """φ(x)·φ(y) = 1 + u + u²/2, u = x·y/√d, up to the radius of balls, which stays below the kernel
    itself.
    """
    system = balls(40)
    x, y = system.random(shape, seed), system.random(shape, seed + 1)
    u = gram(system, x, y) / system.sqrt(system.convert(shape[1]))
    got, want = gram(system, ri.feature_maps.taylor2(x), ri.feature_maps.taylor2(y)), 1 + u + u * u / 2
    assert system.equal(got, want) and informative(system, got) and informative(system, want)


@given(shape=shapes, nu=st.integers(1, 3), seed=st.integers(0, 99))
def test_dpfp_by_its_loop(shape, nu, seed):
    x = QQ.random(shape, seed)
    got = ri.feature_maps.dpfp(nu)(x).tolist()
    for row, phi in zip(x.tolist(), got, strict=True):
        both = [max(a, 0) for a in [*row, *(-a for a in row)]]
        assert phi == [both[i] * both[(i - j) % len(both)] for j in range(1, nu + 1) for i in range(len(both))]


@given(shape=shapes, seed=st.integers(0, 99))
def test_rational_maps_entry_by_entry(shape, seed):
    x = QQ.random(shape, seed)
    for phi, f in (
        (ri.feature_maps.identity, lambda a: a),
        (ri.feature_maps.relu, lambda a: max(a, 0)),
        (ri.feature_maps.relu2, lambda a: max(a, 0) ** 2),
    ):
        assert phi(x).tolist() == [[f(a) for a in row] for row in x.tolist()]


@given(shape=shapes, seed=st.integers(0, 99))
def test_real_maps_entry_by_entry(shape, seed):
    system = MP(30)
    x = system.random(shape, seed)
    for phi, f in (
        (ri.feature_maps.elu_plus_one, lambda a: a + 1 if a > 0 else system.ctx.exp(a)),
        (ri.feature_maps.exp, system.ctx.exp),
    ):
        assert phi(x).tolist() == [[f(a) for a in row] for row in x.tolist()]


def test_elu_plus_one_does_not_overflow():
    assert np.array_equal(ri.feature_maps.elu_plus_one(np.array([[1e300, -1e300, 0.0]])), [[1e300, 0.0, 1.0]])


@given(shape=shapes, width=st.integers(1, 3), seed=st.integers(0, 99))
def test_hedgehog_by_its_formula(shape, width, seed):
    """Entry by entry, with nothing subtracted in the exponent: both balls hold one number."""
    system = balls(30)
    x, W, b = system.random(shape, seed), system.random((width, shape[1]), seed + 1), system.random((width,), seed + 2)
    got = ri.feature_maps.hedgehog(W, b)(x)
    assert got.shape == (shape[0], 2 * width) and informative(system, got)
    for t in range(shape[0]):
        y = [2 * (sum(W[j, i] * x[t, i] for i in range(shape[1])) + b[j]) for j in range(width)]
        e = [system.exp(a) for a in [*y, *(-a for a in y)]]
        for i, a in enumerate(e):
            want = a / sum(e)
            assert system.equal(got[t, i], want) and informative(system, want[None])


@pytest.mark.parametrize("name", sorted(ri.FEATURE_MAPS))
def test_every_named_map_runs_where_its_need_is_met(name):
    phi = ri.feature_map(name)
    for system in (Float(), QQ, GF(10007), MP(20)):
        x = system.random((3, 4), 0)
        if phi.needs in system.can:
            assert phi(x).shape[:-1] == (3,)
        else:
            words = f"is not defined in {re.escape(system.name)}; .* needs an? {phi.needs} system"
            with pytest.raises(ri.NotDefined, match=words):
                phi(x)


@pytest.mark.parametrize(
    ("name", "phi"),
    [
        ("polynomial(2)", ri.feature_maps.polynomial(2)),
        ("polynomial(0)", ri.feature_maps.polynomial(0)),
        ("dpfp(1)", ri.feature_maps.dpfp(1)),
    ],
)
def test_families_by_name(name, phi):
    x, named = QQ.random((3, 2), 0), ri.feature_map(name)
    assert QQ.equal(named(x), phi(x)) and (named.__name__, named.needs) == (name, phi.needs)


@pytest.mark.parametrize(
    "name", ["polynomial", "polynomial()", "polynomial(-1)", "polynomial(2", "hedgehog(2)", "dpfp(1.5)"]
)
def test_names_of_no_family(name):
    hint = "" if name == "hedgehog(2)" else f"did you mean '{name.partition('(')[0]}("
    with says(ValueError, f"feature_map: {hint or '`name` must be'}"):
        ri.feature_map(name)


def test_names_in_any_case_and_spelling():
    for name in ri.FEATURE_MAPS:
        assert ri.feature_map(name.upper()) is ri.FEATURE_MAPS[name]
    assert ri.feature_map("elu_plus_one") is ri.Kernel("ELU plus 1").maps[0] is ri.FEATURE_MAPS["elu+1"]
    small = {"layers": 1, "width": 2}
    for name, meant in (("elu_plus_one", "elu+1"), ("Softmax", "softmax"), ("ReLU", "relu")):
        assert ri.Config(**small, phi=name) == ri.Config(**small, phi=meant)  # and so in files


def test_a_family_by_name_minds_its_number():
    with says(ValueError, "dpfp: `nu` must be an integer ≥ 1, got 0"):
        ri.feature_map("dpfp(0)")


@pytest.mark.parametrize(
    ("make", "argument", "bad"), [(ri.feature_maps.polynomial, "degree", -1), (ri.feature_maps.dpfp, "nu", 0)]
)
def test_bad_parameters(make, argument, bad):
    with pytest.raises(ValueError, match=f"`{argument}` must be an integer"):
        make(bad)


@pytest.mark.parametrize("name", [*ri.FEATURE_MAPS, "polynomial(0)", "polynomial(3)", "dpfp(2)"])
def test_a_map_knows_how_many_features_it_makes(name):
    for d in (1, 2, 5):
        phi = ri.feature_map(name)
        assert phi(np.ones((3, d))).shape == (3, phi.count(d))


def test_a_number_of_thousands_of_digits_is_no_degree():
    with says(ValueError, "feature_map: `name` must be one of"):
        ri.feature_map(f"polynomial({'9' * 5000})")
