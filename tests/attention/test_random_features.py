"""Random features: unbiased, as far off as the formulas say, covariant under rotation; in every
system, word for word when refused.

Where chance decides, it is fixed: seeds are given. An interval of confidence holds a true value
with probability 99.99 %, if the mean
of so many draws is normal. It must be narrow, and each formula is seen to fail with an error
planted in it.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from fractions import Fraction
from unittest import mock

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import hyp0f1

import refimpl as ri
from refimpl import MP, QQ, Float, Rope, RunningError, balls
from refimpl.attention.feature_error import mean_squared_error
from refimpl.attention.random_features import BLOCKS, KINDS, PAIRS, RandomFeatures, random_features, spend_on_directions
from refimpl.attention.rope import LAYOUTS
from refimpl.systems.array import host
from refimpl.systems.floats import dtype_name
from refimpl.verify.cases import FeatureCase, case_from_json
from refimpl.verify.check import Draws, check
from refimpl.verify.implementation import REFIMPL
from refimpl.verify.theorem import Numbers
from refimpl.verify.theorems.features import THEOREMS as FEATURES
from refimpl.verify.ways import WAYS
from tests.helpers.assertions import informative, says
from tests.helpers.backends import BACKENDS, backends, kept
from tests.helpers.chance import drawn, interval
from tests.helpers.strategies import MAKERS

F = Float()
# of formulas of some tens of operations, each right to 2^-45, in which little cancels
ROUNDING = 2.0**-40
D, COUNT = 6, 60_000
RANDOM = KINDS[:-1]
random_kinds = pytest.mark.parametrize("kind", RANDOM)
all_kinds = pytest.mark.parametrize("kind", KINDS)


def two_vectors(d=D, a=0.5, seed=0):
    """x, y with |x + y|² = a and x·y ≠ 0."""
    plus, minus = np.random.default_rng(seed).standard_normal((2, d))
    plus, minus = plus * np.sqrt(a / (plus @ plus)), minus / np.sqrt(2 * minus @ minus)
    return (plus + minus) / 2, (plus - minus) / 2


# How far off: Monte Carlo


@functools.cache
def estimates(kind, r, a=0.5, count=COUNT):
    """φ(x)·φ(y) of so many independent maps to r features: groups of the features of one large map,
    whole blocks apart.
    """
    x, y = two_vectors(a=a)
    rows = -(-r // D) * D if kind in BLOCKS else r
    phi = drawn(kind, count * rows, D, seed=8, a=a)
    products = (phi(x[None]) * phi(y[None]))[0] * (count * rows)
    if kind in PAIRS:  # of one direction, far apart
        products = products.reshape(2, -1).T
    return products.reshape(count, rows)[:, :r].mean(axis=1)


def error(kind, r, a=0.5, **options):
    return float(mean_squared_error(kind, *two_vectors(a=a), r, **options | ({"a": a} if kind == "favor++" else {})))


SIZES = [(kind, 2) for kind in RANDOM if kind not in BLOCKS] + [(kind, r) for kind in BLOCKS for r in (4, 6, 9)]
sizes = pytest.mark.parametrize(("kind", "r"), SIZES)


@sizes
def test_unbiased(kind, r):
    x, y = two_vectors()
    mean, half = interval(estimates(kind, r))
    assert abs(mean - np.exp(x @ y)) <= half < 0.02


@sizes
def test_mean_squared_error_by_monte_carlo(kind, r):
    x, y = two_vectors()
    mean, half = interval((estimates(kind, r) - np.exp(x @ y)) ** 2)
    assert abs(mean - error(kind, r)) <= half < 0.1 * mean


def coupled(kind, x, y, pairs, r):
    """The error of r features in blocks, if that many pairs of them were coupled."""
    positive, whole = (mean_squared_error(k, x, y, D) for k in ("positive", kind))
    return mean_squared_error("positive", x, y, r) + (whole - positive) * D / (D - 1) * 2 * pairs / r**2


WRONG = {
    "the ½ of trigonometric features dropped": (
        "trigonometric",
        2,
        lambda x, y: 2 * mean_squared_error("trigonometric", x, y, 2),
    ),
    "the ½ of hyperbolic features dropped": (
        "hyperbolic",
        2,
        lambda x, y: 2 * mean_squared_error("hyperbolic", x, y, 2),
    ),
    "hyperbolic as so many positive ones": ("hyperbolic", 2, lambda x, y: mean_squared_error("positive", x, y, 2)),
    "1 − e^−a dropped": ("positive", 2, lambda x, y: np.exp((x + y) @ (x + y) + 2 * x @ y) / 2),
    "favor++ with A = 0": ("favor++", 2, lambda x, y: mean_squared_error("favor++", x, y, 2, a=0)),
    "orthogonal as if independent": ("orthogonal", 6, lambda x, y: mean_squared_error("positive", x, y, 6)),
    "all pairs coupled, across blocks too": ("orthogonal", 9, lambda x, y: coupled("orthogonal", x, y, 36, 9)),
    "no pairs in the block that is cut": ("simplex", 9, lambda x, y: coupled("simplex", x, y, 15, 9)),
    "simplex as if orthogonal": ("simplex", 6, lambda x, y: mean_squared_error("orthogonal", x, y, 6)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_monte_carlo_rejects_wrong_formulas(wrong):
    kind, r, formula = WRONG[wrong]
    x, y = two_vectors()
    mean, half = interval((estimates(kind, r) - np.exp(x @ y)) ** 2)
    assert abs(mean - formula(x, y)) > half


def test_coupled_pairs_are_counted_right():
    x, y = two_vectors()
    for kind in BLOCKS:
        assert abs(coupled(kind, x, y, 15 + 3, 9) / mean_squared_error(kind, x, y, 9) - 1) <= ROUNDING


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("blocks", [2, 3, 10])
def test_blocks_are_independent(kind, blocks):
    """The mean of so many blocks has the error of one block, divided by their number."""
    x, y = two_vectors()
    one = mean_squared_error(kind, x, y, D)
    assert abs(mean_squared_error(kind, x, y, blocks * D) * blocks / one - 1) <= ROUNDING


def orthogonal_bound(x, y, r):
    """Choromanski et al. 2021, as read in notes on it."""
    d, SM = len(x), np.exp(x @ y)
    return (
        mean_squared_error("positive", x, y, r) - 2 * (r - 1) / (r * (d + 2)) * (SM - np.exp(-(x @ x + y @ y) / 2)) ** 2
    )


@pytest.mark.parametrize("kind", BLOCKS)
def test_covariance_in_a_block_by_monte_carlo(kind):
    """Given |ω_1 + ω_2|, the mean over all turns is ₀F₁: what remains of chance is small enough to
    tell the value from its bound.
    """
    d, a, count = 2, 2.0, 200_000
    x, y = two_vectors(d, a)
    omega = drawn(kind, 2 * count, d, seed=3).omega.reshape(count, 2, d)
    both = np.exp(-(x @ x) - y @ y) * hyp0f1(d / 2, a / 4 * np.sum(omega.sum(axis=1) ** 2, axis=-1))
    mean, half = interval((mean_squared_error("positive", x, y, 1) + both - np.exp(2 * x @ y)) / 2)
    assert abs(mean - mean_squared_error(kind, x, y, 2)) <= half < 0.02 * mean
    assert abs(mean - orthogonal_bound(x, y, 2)) > half


# How far off: the formulas among themselves


@pytest.mark.parametrize("d", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("a", [1e-4, 0.1, 1.0, 10.0, 300.0])
def test_simplex_below_orthogonal_below_its_bound_below_positive(d, a):
    x, y = two_vectors(d, a)
    for r in {1, min(d, 2), d}:
        positive, orthogonal = (mean_squared_error(kind, x, y, r) for kind in ("positive", "orthogonal"))
        assert 0 < orthogonal <= orthogonal_bound(x, y, r) * (1 + ROUNDING) <= positive * (1 + ROUNDING) ** 2
        if d > 1:
            assert 0 < mean_squared_error("simplex", x, y, r) <= orthogonal


def covariance_by_moments(a, d, kappa):
    """E ₀F₁(; d/2; a|w|²/4) e^−a − 1 from the moments of |w|² = ρ_1² + ρ_2² + 2κ ρ_1 ρ_2, term by
    term, with 60 digits to cancel.
    """
    ctx = mpmath.MPContext()
    ctx.dps = 60
    a, kappa, half = ctx.mpf(a), ctx.mpf(kappa.numerator) / kappa.denominator, ctx.mpf(d) / 2
    chi = functools.cache(
        lambda n: ctx.mpf(2) ** (ctx.mpf(n) / 2) * ctx.gamma(half + ctx.mpf(n) / 2) / ctx.gamma(half)
    )  # E ρ^n

    def moment(k):
        terms = ((i, j, k - i - j) for i in range(k + 1) for j in range(k + 1 - i))
        return ctx.fsum(
            ctx.factorial(k)
            / (ctx.factorial(i) * ctx.factorial(j) * ctx.factorial(l))
            * (2 * kappa) ** l
            * chi(2 * i + l)
            * chi(2 * j + l)
            for i, j, l in terms
        )

    series = (moment(k) * (a / 4) ** k / (ctx.rf(half, k) * ctx.factorial(k)) for k in range(25))
    return float(ctx.fsum(series) * ctx.exp(-a) - 1)


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("d", [2, 3, 7])
@pytest.mark.parametrize("a", [0.01, 2.0])
def test_covariance_by_another_road(kind, d, a):
    """By moments of the norms; for orthogonal blocks, of which they make ₁F₁(d; d/2; a/2), by that
    as well.
    """
    x, y = two_vectors(d, a)
    got = (
        (mean_squared_error(kind, x, y, d) - mean_squared_error("positive", x, y, d)) * d / (d - 1) / np.exp(2 * x @ y)
    )
    a = (x + y) @ (x + y)
    want = covariance_by_moments(a, d, Fraction(0) if kind == "orthogonal" else Fraction(-1, d - 1))
    assert abs(got - want) <= ROUNDING * np.expm1(a)
    if kind == "orthogonal":
        assert abs(got - float(mpmath.hyp1f1(d, d / 2, a / 2) * mpmath.exp(-a) - 1)) <= ROUNDING * np.expm1(a)


@given(a=st.floats(0.01, 20), d=st.integers(1, 9))
def test_favor_is_least_at_its_statistic(a, d):
    x, y = two_vectors(d, a)
    least = mean_squared_error("favor++", x, y, 2, a=a)
    for other in (0, a / 2, 0.9 * a, 1.1 * a, 2 * a):
        assert least <= mean_squared_error("favor++", x, y, 2, a=other) * (1 + ROUNDING)
    assert (
        abs(mean_squared_error("favor++", x, y, 2, a=0) / mean_squared_error("positive", x, y, 2) - 1)
        <= ROUNDING * np.exp(a) / a
    )


@given(size=st.floats(1e-6, 30), sign=st.sampled_from([-1, 1]))
def test_taylor_error(size, sign):
    """(e^u − 1 − u − u²/2)², with digits enough for what cancels."""
    u = sign * size
    with mpmath.workdps(60):
        want = (mpmath.exp(u) - 1 - u - mpmath.mpf(u) ** 2 / 2) ** 2
        assert abs(mean_squared_error("taylor", np.array([u]), np.array([1.0]), None) - want) <= ROUNDING * want


@all_kinds
def test_errors_of_many_vectors(kind):
    """Leading axes broadcast; numbers of other systems are taken as they are; x = −y costs positive
    features nothing.
    """
    x, y = F.random((2, 1, 4), 0), F.random((3, 4), 1)
    options = (None if kind == "taylor" else 6,), {"a": 1.0} if kind == "favor++" else {}
    many = mean_squared_error(kind, x, y, *options[0], **options[1])
    assert many.shape == (2, 3) and many[1, 2] == mean_squared_error(kind, x[1, 0], y[2], *options[0], **options[1])
    assert np.array_equal(mean_squared_error(kind, QQ.convert(x), MP(30).convert(y), *options[0], **options[1]), many)
    assert mean_squared_error(kind, x[:0], y, *options[0], **options[1]).shape == (0, 3)
    if kind in ("positive", "hyperbolic", *BLOCKS):
        assert mean_squared_error(kind, y, -y, 6).tolist() == [0, 0, 0]
    if kind == "trigonometric":
        assert mean_squared_error(kind, y, y, 6).tolist() == [0, 0, 0]
    far = np.full(4, 30.0)
    assert mean_squared_error(kind, far, far / 2, *options[0], **options[1]) == np.inf
    if kind not in ("trigonometric", "taylor"):
        assert (
            mean_squared_error(kind, far, -far / 3, *options[0], **options[1]) == 0
        )  # what is estimated vanishes, and e^a is beyond float64
    if kind == "trigonometric":
        assert mean_squared_error(kind, far, far, 6) == 0


# The draw


@all_kinds
def test_a_seed_fixes_the_draw(kind):
    x = F.random((3, 5), 0)
    same, again, other = (drawn(kind, 8, 5, seed=s)(x) for s in (1, 1, 2))
    assert np.array_equal(same, again) and np.array_equal(same, other) == (kind == "taylor")


@random_kinds
def test_a_map_is_the_same_map_in_every_system(kind):
    """Directions and A are those of float64, exactly."""
    wide, narrow = drawn(kind, 6, 3), drawn(kind, 6, 3, system=Float("numpy", "float32"))
    for system in (MP(30), balls(30), RunningError("float64")):
        phi = drawn(kind, 6, 3, system=system)
        assert np.array_equal(ri.floats(phi.omega), wide.omega) and phi.A == wide.A
    assert np.array_equal(narrow.omega, wide.omega.astype(np.float32)) and narrow.A == wide.A
    assert (wide.A < 0) == (kind == "favor++")


@pytest.mark.parametrize("kind", BLOCKS)
@given(d=st.integers(2, 9), r=st.integers(1, 20), seed=st.integers(0, 99))
def test_angles_in_a_block(kind, d, r, seed):
    """Orthogonal: cosines 0. Simplex: −1/(d−1). Q is orthogonal to O(d^1.5) roundings; the last
    block is cut, the others stay.
    """
    phi = drawn(kind, r, d, seed=seed)
    assert phi.omega.shape == (r, d) and np.array_equal(phi.omega, drawn(kind, -(-r // d) * d, d, seed=seed).omega[:r])
    unit = phi.omega / np.linalg.norm(phi.omega, axis=1, keepdims=True)
    cosines, i = unit @ unit.T, np.arange(r)
    inside = (i[:, None] // d == i // d) & (i[:, None] != i)
    assert np.all(np.abs(cosines[inside] + (1 / (d - 1) if kind == "simplex" else 0)) <= 8 * d**1.5 * 2.0**-52)
    outside = (i[:, None] // d != i // d) & (d > 2)
    assert np.all(np.abs(cosines[outside]) < 1 - 1e-9)


@pytest.mark.parametrize("kind", ["positive", *BLOCKS])
def test_directions_are_normal(kind):
    """Means, variances and fourth moments (of χ_d norms and uniform turns) of each coordinate; what
    QR alone gives has a sign.
    """
    omega = drawn(kind, 3 * 60_000, 3, seed=4).omega[::3]
    for power, want in ((1, 0), (2, 1), (3, 0), (4, 3)):
        for column in omega.T:
            mean, half = interval(column**power)
            assert abs(mean - want) <= half


def test_no_norm_is_shared_in_a_block():
    norms = np.sum(drawn("orthogonal", 3 * 60_000, 3, seed=5).omega.reshape(-1, 3, 3) ** 2, axis=-1) - 3
    mean, half = interval(norms[:, 0] * norms[:, 1])
    assert abs(mean) <= half


# The map


@pytest.mark.parametrize(
    "system", [F, Float("numpy", "float32"), MP(30), balls(30), balls(30, "iv"), RunningError("float64")], ids=str
)
@all_kinds
@given(
    lead=st.sampled_from([(), (2,), (0,), (2, 1)]),
    n=st.integers(0, 3),
    d=st.integers(1, 5),
    r=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_shapes_and_logarithms(system, kind, lead, n, d, r, seed):
    r, d = 2 * r if kind in PAIRS else r, max(d, 2) if kind == "simplex" else d
    phi, x = drawn(kind, r, d, seed=seed, system=system), system.random((*lead, n, d), seed)
    (f, c), got = phi.log(x), phi(x)
    R = phi.features(d)
    assert (1 + d + d * d if kind == "taylor" else r) == R and got.shape == f.shape == (*lead, n, R)
    assert c.shape == (f.shape if phi.positive else (*lead, n, 1)) and got.dtype == f.dtype == c.dtype == x.dtype
    xp = system.xp
    assert system.equal(got, f * xp.exp(c))
    if phi.positive:
        assert system.equal(f, xp.ones_like(c))
        assert np.all(ri.floats(got) > 0)


@all_kinds
def test_what_a_map_says_of_itself(kind):
    phi = drawn(kind)
    assert phi.name == phi.__name__ == f"{kind} features" and phi.needs == "real" and phi.kind == kind
    assert phi.positive == (kind not in ("trigonometric", "taylor")) and RandomFeatures.__name__ == "RandomFeatures"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@all_kinds
def test_logarithms_of_huge_vectors_are_finite(kind, dtype):
    system = Float("numpy", dtype)
    x = system.convert([[100, 0, 0], [60, 0, -80]])
    f, c = drawn(kind, 6, system=system).log(x)
    assert np.isfinite(f).all() and np.isfinite(c).all()
    if kind == "trigonometric":
        with says(ri.NotFinite, "linear_attention: phi_q(q) overflows"):
            ri.linear_attention(x, x, x, ri.Kernel(drawn(kind, 6, system=system)))


@backends("jax float32")
@all_kinds
def test_within_bound_on_every_backend(backend, kind):
    """Against 40 digits, within the running error of the dtype; dtype and device stay."""
    system = BACKENDS[backend]()
    phi, x = drawn(kind, 6, 4, system=system, a=1.0), system.random((2, 3, 4), 1)
    got = phi(x)
    assert kept(system, got) and all(kept(system, part) for part in phi.log(x))
    truth, bounded = (
        RandomFeatures(kind, None if phi.omega is None else numbers.convert(host(phi.omega)), phi.A)(
            numbers.convert(host(x))
        )
        for numbers in (MP(40), RunningError(dtype_name(system.dtype)))
    )
    found = ri.judge(got, truth, bounded.system.error(bounded))
    assert found.verdict in ("WITHIN BOUND", "EXACT") and not found.vacuous, found


@backends()
@pytest.mark.parametrize("layout", LAYOUTS)
@random_kinds
def test_quarter_turns_change_no_bit(backend, layout, kind):
    """φ_{Rω}(R x) = φ_ω(x) with ==, for integers, whose products do not round, and turns that only
    swap and negate.
    """
    system = BACKENDS[backend]()
    rng = np.random.default_rng(0)
    omega, x = (system.convert(rng.integers(-3, 4, shape)) for shape in ((3, 5), (2, 5)))
    phi, rope = (
        RandomFeatures(kind, omega),
        Rope(ri.power_table(system.convert([0, 0]), system.convert([1, 1])), layout, "before"),
    )
    turned = phi.rotated(rope, 3)
    assert (
        system.equal(turned(rope(x, [3, 3])), phi(x))
        and not system.equal(turned(x), phi(x))
        and kept(system, turned.omega)
    )


@pytest.mark.parametrize("maker", MAKERS)
@random_kinds
@given(
    n=st.integers(0, 2),
    d=st.integers(2, 5),
    r=st.integers(1, 3),
    by=st.integers(-900, 900),
    layout=st.sampled_from(LAYOUTS),
    part=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_rotation_covariance(maker, kind, n, d, r, by, layout, part, seed):
    """φ_{Rω}(R x) = φ_ω(x), partial rotary or not: the balls overlap, and say something."""
    system = balls(30, maker)
    phi, x = drawn(kind, 2 * r, d, seed=seed, system=system), system.random((n, d), seed)
    rope = Rope(ri.angle_table(system, 2 * min(part, d // 2)), layout, "before")
    got = phi.rotated(rope, by)(rope(x, [by] * n))
    assert system.equal(got, phi(x)) and informative(system, got)
    assert phi.rotated(rope, by).A == phi.A


# The theorems

IDENTITIES = [theorem for theorem in FEATURES if theorem.ways != ("sampled",)]
SAMPLED = FEATURES[-1]


def test_the_error_is_sampled():
    result = check(SAMPLED, F, SAMPLED.cases)
    assert result.verdict == "MEASURED" and result.instances == 6 and "250000 draws each within" in result.evidence
    power = re.search(r"6 would be FAIL, so that a formula wrong by (\d\.\d)% is seen$", result.evidence)
    assert power and 10 * result.error <= 0.05 and abs(float(power[1]) - 1000 * result.error) <= 0.051
    elsewhere = check(SAMPLED, MP(50), SAMPLED.cases)
    assert (elsewhere.verdict, elsewhere.evidence) == (
        "N/A",
        "feature_error is about means over draws, taken in float64",
    )


OFF = {
    "a fifth too much": ("mean_squared_error", lambda made: 1.2 * made),
    "a tenth too large": ("random_features", lambda made: lambda x: made(x) * 1.1),
    "no numbers": ("random_features", lambda made: lambda x: made(x) * np.nan),
    "always the same": ("random_features", lambda made: lambda x: np.ones_like(made(x))),
}


@pytest.mark.parametrize("seeds", [1, pytest.param(100, marks=pytest.mark.slow)])
@random_kinds
def test_five_percent_are_seen_at_every_seed_and_no_true_formula_is_accused(kind, seeds):
    (case,) = (c for c in SAMPLED.cases if c.phi == kind)
    for seed in range(seeds):
        numbers = Numbers(F, Draws(seed, "fixed").seed_of(SAMPLED, F.label, case, 0))
        for name, draws, mean in SAMPLED.sides(case, numbers, REFIMPL):
            found = {f: WAYS["sampled"].compare(F, (name, draws, f * mean), None).failure for f in (0.95, 1, 1.05)}
            assert not found[1] and "standard errors from" in found[0.95] and "standard errors from" in found[1.05]


def test_too_few_draws_to_see_five_percent_are_no_verdict(monkeypatch):
    from refimpl.verify.theorems import features

    monkeypatch.setattr(features, "MAPS", 2000)
    result = check(SAMPLED, F, SAMPLED.cases, Draws(0, "fixed"))
    assert result.verdict == "VACUOUS" and "2000 draws each within" in result.evidence, result


@pytest.mark.parametrize("plant", OFF)
def test_a_wrong_error_is_found_out(plant):
    name, wrong = OFF[plant]
    right = getattr(REFIMPL, name)
    broken = replace(REFIMPL, **{name: lambda *args, **options: wrong(right(*args, **options))})
    result = check(SAMPLED, F, SAMPLED.cases, impl=broken)
    assert result.verdict == "FAIL" and "standard errors from" in result.evidence


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["orthogonal", "simplex"])
def test_directions_in_blocks_are_told_from_others(kind, seed):
    def independent(kind, *args, **options):
        return random_features("positive", *args, **options)

    cases, broken = [c for c in SAMPLED.cases if c.phi == kind], replace(REFIMPL, random_features=independent)
    assert check(SAMPLED, F, cases, Draws(seed), broken).verdict == "FAIL"


def test_blocks_need_no_lapack(monkeypatch):
    """Whose last bits depend on the processor: what a seed draws must not."""
    monkeypatch.setattr(np.linalg, "qr", None)
    monkeypatch.setattr(np, "matmul", None)
    for kind in ("orthogonal", "simplex"):
        random_features(kind, 7, 3, seed=0, system=F)


@pytest.mark.parametrize("system", [MP(50), balls(30), balls(30, "iv"), F, Float("numpy", "float32")], ids=str)
@pytest.mark.parametrize("theorem", IDENTITIES, ids=lambda t: t.name)
def test_theorems(theorem, system):
    result = check(theorem, system, theorem.cases)
    compared = sum(case.M + case.n > 0 for case in theorem.cases)  # of no token there is nothing to compare
    assert result.verdict in ("WITHIN BOUND", "ENCLOSED") and result.instances == compared > 0, result
    assert all(case.valid() for case in theorem.cases + theorem.more(0))


@pytest.mark.slow
@pytest.mark.parametrize("system", [MP(50), balls(30), F, Float("numpy", "float32")], ids=str)
@pytest.mark.parametrize("theorem", IDENTITIES, ids=lambda t: t.name)
def test_theorems_on_more_cases(theorem, system):
    assert check(theorem, system, theorem.more(0)).verdict in ("WITHIN BOUND", "ENCLOSED")


def test_theorems_need_a_real_system():
    for theorem in IDENTITIES:
        result = check(theorem, QQ, theorem.cases)
        assert (result.verdict, result.evidence) == (
            "N/A",
            "exp is not defined in ℚ; a random feature needs a real system",
        )


def test_cases_go_into_a_file_and_back():
    for theorem in FEATURES:
        assert tuple(case_from_json(case.to_json()) for case in theorem.cases) == theorem.cases
    with says(ValueError, "FeatureCase: did you mean 'positive'? `phi` must be one of favor++, hyperbolic"):
        case_from_json({"kind": "FeatureCase", "phi": "positve", "M": 0, "n": 1, "d": 1})
    with says(ValueError, "the fields of a case must go together, got 'phi=positive M=0 n=1 d=1 rope=half/2'"):
        case_from_json(FeatureCase("positive", 0, 1, 1, rope=("half", 2)).to_json())


log, rotated = RandomFeatures.log, RandomFeatures.rotated


def logs(edit):
    return {"log": lambda self, x: edit(self, x, *log(self, x))}


PLANTED = {
    "turned the other way": ("rotation_covariance", {"rotated": lambda self, rope, by: rotated(self, rope, -by)}),
    "turned one position short": (
        "rotation_covariance",
        {"rotated": lambda self, rope, by: rotated(self, rope, by + 1)},
    ),
    "turned in the other layout": (
        "rotation_covariance",
        {
            "rotated": lambda self, rope, by: rotated(
                self, Rope(rope.table, LAYOUTS[rope.layout == "half"], "before"), by
            )
        },
    ),
    "not turned": ("rotation_covariance", {"rotated": lambda self, rope, by: self}),
    "A lost in turning": (
        "rotation_covariance",
        {"rotated": lambda self, *args: RandomFeatures(self.kind, rotated(self, *args).omega)},
    ),
    "a feature of one coordinate": ("rotation_covariance", logs(lambda self, x, f, c: (f, c + x[..., :1] / 8))),
    "r^−½ forgotten": (
        "log_features",
        logs(lambda self, x, f, c: (f, c + c.dtype.log(c.dtype.ones_like(c) * self.features(0)) / 2)),
    ),
    "an ε of 2^-20": ("log_features", logs(lambda self, x, f, c: (f + f / 2**20, c))),
    "|x|² for |x|²/2": (
        "log_features",
        logs(lambda self, x, f, c: (f, c - c.dtype.xp.sum(x * x, axis=-1, keepdims=True) / 2)),
    ),
    "without 1/√2": ("taylor_kernel", logs(lambda self, x, f, c: (f + f / 3, c))),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_theorems_reject_planted_bugs(planted):
    name, methods = PLANTED[planted]
    theorem = next(t for t in FEATURES if t.name == name)
    with mock.patch.multiple(RandomFeatures, **methods):
        for system in (MP(50), balls(30)):
            result = check(theorem, system, theorem.cases)
            assert result.verdict == "FAIL" and "raised" not in result.evidence, result


# Words


def test_directions_are_charged_for(monkeypatch):
    """24 bytes and 10 operations a number, and 4 d more where d rows are made orthogonal."""
    charged = []
    module = "refimpl.attention.random_features"
    monkeypatch.setattr(f"{module}.spend", lambda what, **costs: charged.append((what, costs)))
    for kind in ("positive", "orthogonal"):
        spend_on_directions(kind, 7, 3)
    what = "7 directions of width 3, drawn from a seed,"
    assert charged == [
        (what, {"memory": 24 * 7 * 3, "operations": 10 * 7 * 3}),
        (what, {"memory": 24 * 9 * 3, "operations": (10 + 4 * 3) * 9 * 3}),
    ]
