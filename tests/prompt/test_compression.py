"""Every way from keys and values to a memory of fixed size: exact where that is promised, unbiased
where that is, certified where that is.

Where chance decides, seeds are given, and intervals hold a true mean with probability 99.99 %, as
in tests/helpers/chance.py.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from math import prod
from unittest import mock

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refimpl as ri
from refimpl import MP, Best, Compression, Float, Memory, NotDefined, Points, balls
from refimpl.attention.memory import sums_and_scale
from refimpl.attention.random_features import KINDS as RANDOM
from refimpl.attention.random_features import PAIRS, RandomFeatures
from refimpl.prompt import compression
from refimpl.prompt.compression import KINDS, truncate_rank
from refimpl.prompt.compression.best import attention_error, certificate
from refimpl.prompt.compression.landmarks import landmarks
from refimpl.systems.array import host
from refimpl.systems.balls import Balls
from tests.helpers.assertions import informative, peak_memory, says
from tests.helpers.backends import BACKENDS, kept
from tests.helpers.chance import interval
from tests.helpers.strategies import SEEDS

F = Float()
BY_KEYS = tuple(compression.BY_KEYS)
COUNTS = st.integers(2, 6)


def asked(kind, r=4, **options):
    return Compression(kind, None if kind in ("cache", "taylor") else r, **options)


def prompt(M=6, d=3, m=2, lead=(2,), *, heads=3, n=5, system=F, seed=0, size=1.0):
    """Keys, values, and queries of heads that share them."""
    y, v, x = (system.random((*lead, *s), seed + i) for i, s in enumerate(((M, d), (M, m), (heads, n, d))))
    return size * y if size != 1 else y, v, size * x if size != 1 else x


def wide(memory):
    """For queries that share keys."""
    return memory.map_arrays(lambda a, axes: a[(..., None, *[slice(None)] * axes)])


def output(memory, x):
    num, den, _ = wide(memory).read(x)
    return num / den


def softmax(y, v, x):
    xp = ri.system_of(x).xp
    scores = x @ xp.matrix_transpose(y[..., None, :, :])
    sim = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    return (sim @ v[..., None, :, :]) / xp.sum(sim, axis=-1, keepdims=True)


def sums(memory, x):
    """φ(x)ᵀ [b_KV b_D]"""
    num, den, top = memory.read(x)
    return np.exp(top) * np.concatenate([num, den], axis=-1)


def true_sums(y, v, x):
    return np.exp(x @ np.swapaxes(y, -1, -2)) @ np.concatenate([v, np.ones_like(v[..., :1])], axis=-1)


# Exact where that is promised


@pytest.mark.parametrize("kind", [kind for kind in (*BY_KEYS, "cache") if kind != "directions"])
@given(
    M=COUNTS,
    d=st.integers(1, 4),
    m=st.integers(1, 3),
    more=st.integers(0, 2),
    lead=st.sampled_from([(), (2,), (2, 2)]),
    seed=SEEDS,
)
def test_as_many_features_as_keys_are_exact(kind, M, d, m, more, lead, seed):
    system = balls(30)
    y, v, x = prompt(M, d, m, lead, system=system, seed=seed)
    got = output(asked(kind, M + more)(y, v, x, 0), x)
    assert system.equal(got, softmax(y, v, x)) and informative(system, got)


@pytest.mark.parametrize("system", [MP(40), balls(60), F], ids=str)
@given(M=COUNTS, d=st.integers(2, 4), seed=SEEDS)
def test_landmarks_at_every_key_are_softmax(system, M, d, seed):
    """In an order of their own, by elimination, without the short cut."""
    y, v, x = prompt(M, d, 2, (), system=system, seed=seed)
    weight = np.random.default_rng(seed).uniform(0.5, 1, M)
    points, S, z, scale = landmarks(y, v, np.arange(M), weight, M)
    got, want = output(Memory(Points(points), S, z, scale), x), softmax(y, v, x)
    if isinstance(system, Balls):
        assert system.equal(got, want) and informative(system, got)
    else:
        # numerator and denominator are sums of M products of numbers that took some tens of
        # roundings
        u = 2.0 ** -(system.ctx.prec if system == MP(40) else 53)
        K = np.exp(ri.floats(y) @ ri.floats(y).T)
        worst = np.abs(ri.floats(got - want)).max()
        assert worst <= 64 * M * np.linalg.cond(K) * u * np.abs(ri.floats(v)).max()


@pytest.mark.parametrize("kind", ["nystrom", "cholesky"])
@given(M=st.integers(3, 7), r=st.integers(1, 5), seed=SEEDS)
def test_landmarks_solve_the_normal_equations(kind, M, r, seed):
    """S = K_PP⁻¹ K_PY [V 1], by mpmath's LU at 60 digits, from whichever keys were chosen; and
    padded points weigh nothing.
    """
    r = min(r, M - 1)
    y, v, x = prompt(M, 4, 2, (), seed=seed)
    memory = Compression(kind, r, seed=seed)(y, v, x, 0)
    P = memory.phi.points
    assert all(any(np.array_equal(p, key) for key in y) for p in P) and len({tuple(p) for p in P}) == r
    with mpmath.workdps(60):
        K = mpmath.matrix([[mpmath.exp(mpmath.fdot(p, q)) for q in P] for p in P])
        columns = (*v.T, np.ones(M))
        right = mpmath.matrix(
            [[mpmath.fsum(mpmath.exp(mpmath.fdot(p, y[j])) * c[j] for j in range(M)) for c in columns] for p in P]
        )
        want = np.array([[float(a) for a in mpmath.lu_solve(K, right[:, j])] for j in range(3)]).T
        condition = float(mpmath.cond(K))
    got = np.exp(memory.scale)[:, None] * np.concatenate([memory.S, memory.z[:, None]], axis=-1)
    assert np.all(np.abs(got - want) <= 64 * M * condition * 2.0**-53 * np.abs(want).max())


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_becomes_the_same_memory_alone_and_in_a_batch(kind):
    """But for favor++, whose A is that of all prompts of the batch."""
    y, v, x = prompt(9, 3, 2, (2, 2))
    batch, alone = asked(kind)(y, v, x, 0), asked(kind)(y[1], v[1], x[1], 0)
    same = np.array_equal(output(batch, x)[1], output(alone, x[1]))
    assert same == (kind != "favor++")


@pytest.mark.parametrize("kind", ["nystrom", "cholesky"])
def test_landmarks_in_half_precision(kind):
    """Where 4 M u exceeds 1, one landmark is all that rounding lets one tell apart; and it is one,
    not none.
    """
    half = Float("numpy", "float16")
    y, v, x = prompt(600, 4, 2, (1,), system=half)
    memory = Compression(kind, 16)(y, v, x, 0)
    assert memory.S.shape == (1, 16, 2) and np.all(np.isfinite(output(memory, x)))


def test_a_large_budget_is_for_the_cache():
    y, v, x = prompt(6)
    assert Best(budget=2**40)(y, v, x, 0).about == "cache: measured error 0"


def test_queries_against_keys_leave_favor_a_statistic():
    """|x + y|² is 0 on average only if it is always: what rounding makes of it must not be less."""
    y = np.tile(F.random((1, 3), 5) * 0.1, (3, 1))
    assert compression.expected_statistic(-y[None], y) >= 0


@pytest.mark.parametrize("kind", BY_KEYS)
@pytest.mark.parametrize("system", [F, Float("numpy", "float32"), MP(30)], ids=str)
def test_keys_that_are_there_twice(kind, system):
    """K is singular: three keys, each three times. Three landmarks or clusters then say all, and no
    more than three weigh anything.
    """
    y, v, x = prompt(3, 4, 2, (2,), system=system)
    xp = system.xp
    y, more = xp.concat([y, y, y], axis=-2), system.random((2, 6, 2), 7)
    v = xp.concat([v, more], axis=-2)
    got, want = (ri.floats(t) for t in (output(Compression(kind, 5, seed=3)(y, v, x, 0), x), softmax(y, v, x)))
    assert np.all(np.isfinite(got))
    if kind in ("cholesky", "clusters"):
        u = 2.0**-24 if system.name == "numpy float32" else 2.0**-53
        # 9 keys, exponents below 4, a well-conditioned K of three
        assert np.all(np.abs(got - want) <= 4096 * u)


@pytest.mark.parametrize("kind", ["nystrom", "cholesky", "clusters"])
def test_points_of_no_weight_hide_no_others(kind):
    """Points that pad a singular K, and empty clusters, stand where others do: a query far on the
    other side still reads these.
    """
    y = np.array([[-30.0, 0.0]] * 4 + [[-33.0, 0.0]])
    v, x = F.random((5, 2), 1), np.array([[[40.0, 0.0], [-1.0, 5.0]]])
    got = output(Compression(kind, 4, seed=1)(y, v, x, 0), x)
    # of nearest keys that are e^-117 apart, or one
    assert np.all(np.abs(got - softmax(y, v, x)) <= 1e-12)


def test_empty_clusters_hide_no_others():
    """Should all keys end up with one centre: the others weigh nothing, and must not be the ones
    whose exponent is subtracted.
    """
    y, v, x = np.array([[-100.0], [-110.0], [120.0]]), F.random((3, 2), 1), np.array([[[50.0], [-50.0]]])
    with mock.patch("refimpl.prompt.compression.clusters.nearest_centres", lambda Y, centres: np.zeros(len(Y), int)):
        memory = Compression("clusters", 2)(y, v, x, 0)
    assert np.array_equal(memory.z, [3, 0]) and np.all(np.abs(output(memory, x) - v.mean(0)) <= 2.0**-50)


def test_landmarks_of_large_and_small_norm_stand_together():
    """exp(|y|²/2) differs by e^±200 among the keys: rounding of the large ones must not swamp the
    small ones, in float32 either.
    """
    rng = np.random.default_rng(0)
    y = rng.standard_normal((20, 8)) * np.linspace(0.2, 7, 20)[:, None]
    v, x = F.random((20, 3), 1), y[None] + 0.1 * rng.standard_normal((1, 20, 8))
    want = softmax(y, v, x)
    for system, most in ((F, 1e-9), (Float("numpy", "float32"), 1e-2)):
        memory = Compression("cholesky", 19)(*(system.convert(a) for a in (y, v, x)), 0)
        got = output(memory, system.convert(x))
        assert np.all(np.isfinite(got)) and np.linalg.norm(got - want) <= 0.05 * np.linalg.norm(want)
        at_points = output(memory, memory.phi.points[None])
        assert np.linalg.norm(at_points - softmax(y, v, ri.floats(memory.phi.points)[None])) <= most * np.linalg.norm(
            want
        )


# Clusters, and what is certified of them


@given(M=st.integers(2, 9), d=st.integers(1, 4), seed=SEEDS)
def test_a_tilted_cluster_is_exact_at_its_query(M, d, seed):
    """One cluster, one query: its value is what that query reads, whatever its centre; and its
    weight too.
    """
    y, v, x = prompt(M, d, 2, (), heads=1, n=1, seed=seed)
    memory = Compression("tilted", 1)(y, v, x, 0)
    want, size = true_sums(y, v, x[0]), np.exp(np.abs(x[0] @ y.T).max())
    assert np.all(np.abs(sums(memory, x[0]) - want) <= 64 * M * d * 2.0**-53 * M * size)


def test_tilted_clusters_are_tilted_by_the_queries_that_look_at_them():
    """Two groups of keys far apart, two groups of queries, each looking at one: the sums of the
    definition, written out.
    """
    rng = np.random.default_rng(3)
    near = 0.1 * rng.standard_normal((4, 2))
    y, v = np.concatenate([near[:2] + np.array([4, 0]), near[2:] - np.array([4, 0])]), rng.standard_normal((4, 3))
    x = np.array([[[3.0, 0.2], [3.2, -0.4], [-3.0, 0.1]]])
    memory = Compression("tilted", 2)(y, v, x, 0)
    p = np.exp(x[0] @ y.T) / np.exp(x[0] @ y.T).sum(-1, keepdims=True)
    for i, centre in enumerate(memory.phi.points):
        keys = [0, 1] if centre[0] > 0 else [2, 3]
        weights = (p**2).mean(0)[keys]
        looks = p[:, keys].sum(-1)
        tilt = np.exp((y[keys] - centre) @ (looks @ x[0] / looks.sum()))
        assert np.allclose(centre, weights @ y[keys] / weights.sum(), rtol=1e-12, atol=0)
        assert np.allclose(memory.S[i], tilt @ v[keys] / tilt.sum(), rtol=1e-11, atol=1e-12)
        assert np.isclose(memory.scale[i], np.log(tilt.sum()), rtol=1e-11)


def test_tilted_clusters_do_better_where_queries_are_as_expected():
    """What they are for: other queries of the same law, 40 prompts; the mean error is at most half
    that of plain clusters.
    """
    plain, tilted = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        y, v = 2 * rng.standard_normal((30, 4)), rng.standard_normal((30, 3))
        expected, asked_later = (rng.standard_normal((1, 20, 4)) + 2 * np.eye(4)[0] for _ in range(2))
        for kind, found in (("clusters", plain), ("tilted", tilted)):
            found.append(attention_error(Compression(kind, 8)(y, v, expected, 0), y, v, asked_later))
    assert np.mean(tilted) <= np.mean(plain) / 2


@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0])
def test_no_tilted_cluster_is_empty(size):
    """Keys that coincide, and queries for which those of a cluster are alike: every point weighs as
    much as it has keys, seven in all.
    """
    y = np.concatenate([np.ones((6, 2)), [[size, -size]]])
    memory = Compression("tilted", 5)(y, F.random((7, 2), 1), np.full((1, 3, 2), [size, 0]), 0)
    assert memory.z is None and np.all(np.abs(np.sort(np.exp(memory.scale)) - [1, 1, 1, 1, 3]) <= 2.0**-48)


@given(M=st.integers(2, 12), d=st.integers(1, 3), r=st.integers(1, 6), twice=st.booleans(), seed=SEEDS)
def test_clusters_count_every_key_once(M, d, r, twice, seed):
    """r < M; centres are means of their keys, S sums of their values, and every key stands at its
    nearest centre.
    """
    y, v, x = prompt(M, d, 2, (), seed=seed)
    y = np.concatenate([y, y]) if twice else y
    v = np.concatenate([v, v]) if twice else v
    r = min(r, len(y) - 1)
    memory = Compression("clusters", r, seed=seed)(y, v, x, 0)
    P, S, z = memory.phi.points, memory.S, memory.z
    assert z.sum() == len(y) and np.all(z == np.rint(z)) and P.shape == (r, d) and memory.scale is None
    assert np.allclose(S.sum(0), v.sum(0)) and np.allclose(z @ P, y.sum(0))
    nearest = np.argmin(((y[:, None] - P) ** 2).sum(-1), axis=-1)
    assert np.array_equal(np.bincount(nearest, minlength=r), z) or len({tuple(p) for p in P}) < r


@given(M=st.integers(2, 12), r=st.integers(1, 6), within=st.floats(0, 5), seed=SEEDS)
def test_a_certificate_is_never_exceeded(M, r, within, seed):
    """For queries of every direction up to that length, and values chosen as badly as they can be:
    0 or 1 by the sign of the error.
    """
    y, v, x = prompt(M, 3, 1, (), seed=seed)
    r, rng = min(r, M - 1), np.random.default_rng(seed)
    x = rng.standard_normal((50, 3))
    x = x * within / np.linalg.norm(x, axis=-1, keepdims=True) * rng.uniform(0, 1, (50, 1)) ** 0.2
    memory = Compression("clusters", r)(y, v, x[None], 0)
    most = certificate(y, memory.phi.points, within)
    assert 0 <= most < 1
    nearest = np.argmin(((y[:, None] - memory.phi.points) ** 2).sum(-1), axis=-1)
    w, approximate = np.exp(x @ y.T), np.exp(x @ memory.phi.points[nearest].T)
    w, approximate = (a / a.sum(-1, keepdims=True) for a in (w, approximate))
    assert np.all(np.maximum(w - approximate, 0).sum(-1) <= most + 2.0**-48)
    off = np.abs(output(memory, x[None]) - softmax(y, v, x[None]))
    assert np.all(off <= (most + 2.0**-48) * (v.max() - v.min()))


def test_a_certificate_is_nearly_attained():
    """Two keys ±δ, one centre, values 0 and 1: off by ½ tanh δ|x| of a certified tanh δ|x|/2."""
    delta, within = 0.1, 1.0
    y, v, x = np.array([[delta], [-delta]]), np.array([[1.0], [0.0]]), np.array([[[within]]])
    memory = Compression("clusters", 1)(y, v, x, 0)
    off, most = abs(output(memory, x) - softmax(y, v, x)).item(), certificate(y, memory.phi.points, within)
    assert abs(off - np.tanh(delta) / 2) <= 2.0**-50 and abs(most - np.tanh(delta / 2)) <= 2.0**-50
    assert 0.99 * most < off <= most


def test_a_certificate_is_of_the_farthest_key():
    y, centres = np.array([[0.0], [0.0], [0.0], [3.0]]), np.array([[0.0], [2.5]])
    assert certificate(y, centres, 2.0) == np.tanh(0.5)


# Unbiased: Monte Carlo over seeds

MANY = 4000


@functools.cache
def estimates(kind, r, plant=""):
    """φ(x)ᵀ [b_KV b_D] over many seeds, and what it is a mean of; small norms. A batch of one
    prompt: each of it has draws of its own.
    """
    y, v, x = prompt(5, 2, 2, (), heads=1, n=2, seed=3)
    many = [np.broadcast_to(a, (MANY, *a.shape)) for a in (y, v, x)]
    with mock.patch.dict(compression.BY_KEYS, {kind: PLANTED[plant]} if plant else {}):
        memory = Compression(kind, r)(*many, 0)
    return sums(memory, many[2][:, 0]).reshape(MANY, -1), true_sums(y, v, x[0]).ravel()


def uniform_weights(y, v, x, r, rng):
    points, values, z, scale = compression.sample_tokens(y, v, x, r, rng)
    return points, values, z, 0 * scale + np.log(len(y) / r)


def without_r(y, v, x, r, rng):
    points, values, z, scale = compression.sample_tokens(y, v, x, r, rng)
    return points, values, z, scale + 0.5 * np.log(r)


def no_density(y, v, x, r, rng):
    """Directions drawn around the keys, but summed as if they had been drawn around 0."""
    omega, _, _, _ = compression.sample_directions(y, v, x, r, rng)
    memory = compression.write(RandomFeatures("positive", omega), y, v)
    return omega, memory.S, None, memory.scale


PLANTED = {"tokens by uniform weights": uniform_weights, "1/√r for 1/r": without_r, "no density": no_density}
UNBIASED = {"tokens": 3, "directions": 4}


@pytest.mark.parametrize("kind", UNBIASED)
def test_importance_sampling_is_unbiased(kind):
    got, want = estimates(kind, UNBIASED[kind])
    for column, truth in zip(got.T, want, strict=True):
        mean, half = interval(column)
        assert abs(mean - truth) <= half < 0.1 * np.abs(want).max()


@pytest.mark.parametrize(
    ("kind", "plant"),
    [("tokens", "tokens by uniform weights"), ("tokens", "1/√r for 1/r"), ("directions", "no density")],
)
def test_a_wrong_weight_is_seen(kind, plant):
    got, want = estimates(kind, UNBIASED[kind], plant)
    assert any(abs(mean - truth) > half for (mean, half), truth in zip(map(interval, got.T), want, strict=True))


def test_directions_have_as_much_weight_as_there_are_keys():
    """b_D,i = M r^-½ whatever the keys; each value is a mean of values."""
    y, v, x = prompt(7, 3, 2, (2,))
    memory = Compression("directions", 5)(y, v, x, 0)
    assert memory.z is None and np.allclose(memory.scale, np.log(7) - np.log(5) / 2)
    assert np.all((v.min(-2, keepdims=True) <= memory.S) & (v.max(-2, keepdims=True) >= memory.S))
    assert memory.phi.seed is None and memory.nbytes == 8 * 2 * 5 * (3 + 2 + 1)


# Reduced rank


@given(
    rank=st.integers(1, 4),
    kind=st.sampled_from(["positive", "trigonometric", "clusters", "cholesky", "cache"]),
    seed=SEEDS,
)
def test_eckart_and_young(rank, kind, seed):
    """|φ(x)ᵀ (B − B_ρ)| ≤ |φ(x)| σ_{ρ+1}, where σ are NumPy's, of B made here; nearly attained by
    the worst φ.
    """
    y, v, x = prompt(9, 3, 4, (2,), seed=seed)
    whole = asked(kind, 6, seed=seed)(y, v, x, 0)
    low = asked(kind, 6, seed=seed, rank=rank)(y, v, x, 0)
    S, z, scale = sums_and_scale(whole)
    B = np.exp(scale)[..., None] * np.concatenate([S, z[..., None]], axis=-1)
    sigma = np.linalg.svd(B, compute_uv=False)
    f, c = whole.phi.log(y)
    phi = f * np.exp(c)
    off = np.linalg.norm(sums(low, y) - sums(whole, y), axis=-1)
    small = 2.0**-44 * sigma[:, :1] * np.linalg.norm(phi, axis=-1)
    beyond = sigma[:, rank : rank + 1] if rank < sigma.shape[-1] else 0 * sigma[:, :1]
    assert np.all(off <= np.linalg.norm(phi, axis=-1) * beyond + small)
    left = B - np.exp(low.scale)[..., None] * (low.S @ low.mix)
    assert np.allclose(np.linalg.norm(left, ord=2, axis=(-2, -1)), beyond[:, 0], atol=2.0**-44 * sigma.max())


def test_full_rank_is_all_of_it():
    y, v, x = prompt(9, 3, 4, (2,))
    for kind in ("positive", "trigonometric", "clusters", "cholesky"):
        whole = asked(kind, 6)(y, v, x, 0)
        got, want = sums(truncate_rank(whole, 5), y), sums(whole, y)
        assert np.all(np.abs(got - want) <= 2.0**-44 * np.abs(want).max(-1, keepdims=True))
    for kind, r, most in (("positive", 6, 5), ("clusters", 2, 2)):
        with says(ValueError, f"truncate_rank: `rank` must be an integer between 1 and {most}, got 6"):
            asked(kind, r, rank=6)(y, v, x, 0)


def test_singular_values_need_numpy():
    y, v, x = prompt(4, 3, 2, (), system=MP(20))
    with says(NotDefined, "truncate_rank: singular values are made by NumPy, got mpmath(20 digits)"):
        asked("positive", rank=1)(y, v, x, 0)


# What they have in common


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_fixes_everything(kind):
    y, v, x = prompt(9, 3, 2)
    one, again, other, below = (asked(kind, 4, seed=s)(y, v, x, layer) for s, layer in ((1, 0), (1, 0), (2, 0), (1, 1)))
    arrays = ([], [])
    for memory, found in zip((one, again), arrays, strict=True):
        memory.map_arrays(lambda a, axes, found=found: found.append(a) or a)
    assert len(arrays[0]) >= 2 and all(np.array_equal(a, b) for a, b in zip(*arrays, strict=True))
    chance = kind not in ("cache", "taylor", "cholesky", "clusters", "tilted")
    assert chance == (not np.array_equal(one.S, other.S)) == (not np.array_equal(one.S, below.S)) or kind == "clusters"


@pytest.mark.parametrize("kind", KINDS)
def test_heads_are_made_apart(kind):
    """Prompts of a batch know nothing of each other: the first is what it is alone (chance of its
    own apart).
    """
    y, v, x = prompt(9, 3, 2, (2, 2), size=0.5)
    many = asked(kind, 4)(y, v, x, 0)
    y, v = (a * np.array([1, 5])[:, None, None, None] for a in (y, v))
    if kind != "favor++":  # its statistic is one for all
        again = asked(kind, 4)(y, v, x, 0)
        assert np.array_equal(again.S[0], many.S[0]) and not np.array_equal(again.S[1], many.S[1])
    assert many.S.shape[:2] == (2, 2) and many.nbytes == 8 * prod(many.S.shape[:2]) * per_head(kind, 9, 3, 2) + 16 * (
        kind in RANDOM[:-1]
    ) + 8 * (kind == "favor++")


def per_head(kind, M, d, m, r=4):
    """Numbers that each head needs, as the room says; random maps that are not positive have a
    scale beside, as have landmarks.
    """
    if kind == "cache":
        return M * (d + m)
    r = 1 + d + d * d if kind == "taylor" else r
    return r * (m + 1 + (d if kind in BY_KEYS else 0)) + (kind in ("trigonometric", "taylor", "nystrom", "cholesky"))


def test_queries_may_have_fewer_axes_than_keys():
    """A batch of prompts, and one unbatched prompt after them: its queries are equal for all."""
    y, v, x = prompt(6, 3, 2, (2, 2))
    for kind in BY_KEYS:
        got, want = (Compression(kind, 3)(y, v, q, 0) for q in (x[0], np.broadcast_to(x[:1], x.shape)))
        assert np.array_equal(got.S, want.S)


def test_the_statistic_of_favor_is_the_mean_over_all_pairs():
    """Of the queries and keys that the prompt has; nothing else goes into it."""
    y, v, x = prompt(4, 3, 2)
    want = np.mean([np.sum((a + b) ** 2) for a in x.reshape(-1, 3) for b in y.reshape(-1, 3)])
    assert abs(compression.expected_statistic(x, y) - want) <= 2.0**-45 * want
    phi = asked("favor++")(y, v, x, 0).phi
    assert (
        phi.A
        == ri.random_features("favor++", 4, 3, seed=phi.seed, system=F, a=compression.expected_statistic(x, y)).A
        < 0
    )


def test_the_statistic_of_favor_depends_on_the_prompt_only():
    """Whatever is read afterwards, and however large it is: the map was fixed before."""
    model = ri.random_model(F, ri.Config(1, 4, heads=2, d=3, m=2, phi="softmax"), 0)
    converted = ri.convert(model, F.random((6, 4), 1), by=asked("favor++", 8))
    phi, text = converted.biases[0].memories[0].phi, F.random((5, 4), 2)
    for later in (text, np.concatenate([text, 100 * text])):
        memory = ri.transformer(converted, later)[1][0].memories[0]
        assert memory.phi.A == phi.A < 0 and np.array_equal(memory.phi.omega, phi.omega)


@pytest.mark.parametrize("backend", [b for b in BACKENDS if "jax" not in b and "16" not in b])
@pytest.mark.parametrize("kind", KINDS)
def test_every_backend(backend, kind):
    """Memories stay in the library, dtype and device of the keys, and are what NumPy makes of the
    same numbers.
    """
    system = BACKENDS[backend]()
    y, v, x = prompt(7, 4, 2, (2,), system=system)
    memory = asked(kind)(y, v, x, 0)
    assert all(kept(system, a) for a in (memory.S, memory.z, memory.scale) if a is not None) and kept(
        system, output(memory, x)
    )
    plain = asked(kind)(*(host(a) for a in (y, v, x)), 0)
    got, want = (
        np.concatenate([ri.floats(a) for a in wide(m).read(q)], axis=-1) for m, q in ((memory, x), (plain, host(x)))
    )
    u = float(ri.unit_roundoff(system.dtype))
    assert np.all(
        np.abs(got - want) <= 2**12 * u
    )  # values within ±1, exponents within ±4, K of 4 keys: the same, but for the order of sums


# Best


BUDGETS = (60, 100, 300, 900, 3000)


@pytest.mark.parametrize("budget", BUDGETS)
def test_best_keeps_its_budget_and_is_the_best_of_its_candidates(budget):
    y, v, x = prompt(16, 4, 3, (2,), n=8)
    best = Best(budget=budget)
    # a feature and a scale for each of two heads; a seed, a turn, A
    if budget < 2 * 8 * (3 + 1 + 1) + 24:
        with says(ValueError, f"Best: `budget` must hold a memory of one feature, got {budget} bytes"):
            best(y, v, x, 0)
        return
    chosen = best(y, v, x, 0)
    assert chosen.nbytes <= budget
    tried = [how(y, v, x[..., ::2, :], 0) for how in best.candidates(y, v)]
    within = [m for m in tried if m.nbytes <= budget]
    assert len(tried) >= len(within) >= 8 or budget < 300
    want = softmax(y, v, x[..., 1::2, :])
    errors = [np.linalg.norm(output(m, x[..., 1::2, :]) - want) / np.linalg.norm(want) for m in within]
    said = float(chosen.about.rpartition(" ")[2])
    assert (
        abs(attention_error(chosen, y, v, x[..., 1::2, :]) - min(errors)) <= 2.0**-40
        and abs(said - min(errors)) <= 0.05 * said + 2.0**-40
    )
    assert ("cache" in chosen.about) == (budget >= 8 * 2 * 16 * 7)


def test_every_kind_is_a_candidate_and_fills_its_budget():
    y, v, _ = prompt(64, 4, 3, (2,))
    found = list(Best(budget=2000).candidates(y, v))
    assert {c.kind for c in found} == set(KINDS) and any(c.rank for c in found)
    for c in found:
        if c.kind in (*RANDOM[:-1], *BY_KEYS) and not c.rank:
            more = per_head(c.kind, 64, 4, 3, c.r + (2 if c.kind in PAIRS else 1)) * 16 + 16 * (c.kind in RANDOM)
            assert per_head(c.kind, 64, 4, 3, c.r) * 16 + 16 * (c.kind in RANDOM) <= 2000 < more + 40
    # no memory is larger than the cache, which is exact
    for c in Best(budget=10**6).candidates(y, v):
        assert c.r is None or c.rank or per_head(c.kind, 64, 4, 3, c.r) * 16 <= 64 * (4 + 3) * 16 + 16


@pytest.mark.parametrize("error", [0, 0.01, 0.2, 1])
def test_best_meets_its_error_with_the_fewest_bytes(error):
    y, v, x = prompt(16, 4, 3, (2,), n=8)
    best = Best(error=error)
    chosen = best(y, v, x, 0)
    assert attention_error(chosen, y, v, x[..., 1::2, :]) <= error
    for how in best.candidates(y, v):
        memory = how(y, v, x[..., ::2, :], 0)
        assert memory.nbytes >= chosen.nbytes or attention_error(memory, y, v, x[..., 1::2, :]) > error
    assert chosen.about == "cache: measured error 0" or error


@pytest.mark.parametrize("options", [{"budget": 900}, {"error": 0.3}])
def test_best_with_a_certificate(options):
    """Only what can be certified is tried, and what is said of it holds."""
    y, v, x = prompt(16, 2, 3, (2,), size=0.3)
    chosen = Best(within=1.5, **options)(y, v, x, 0)
    assert chosen.about.startswith("clusters(") and "certified error" in chosen.about
    most = certificate(y, chosen.phi.points, 1.5)
    assert 0 < most <= options.get("error", 1) and chosen.nbytes <= options.get("budget", 10**9)
    x = np.random.default_rng(0).standard_normal((2, 1, 400, 2))
    x = 1.5 * x / np.linalg.norm(x, axis=-1, keepdims=True)
    off = np.abs(output(chosen, x) - softmax(y, v, x))
    assert np.all(off <= most * (v.max((-2, -1), keepdims=True) - v.min((-2, -1), keepdims=True))[:, None])
    assert Best(within=1.5, error=1e-9)(y, v, x, 0).about == "cache: certified error 0"


@pytest.mark.parametrize(
    "by", [*(asked(kind) for kind in (*BY_KEYS, "positive")), Best(budget=400)], ids=lambda by: str(by).split("(")[0]
)
def test_memory_of_the_work_grows_no_faster_than_the_prompt(by):
    """What queries give to keys is made in tiles of rows."""

    def peak(M):
        y, v, x = prompt(M, lead=(), heads=1, n=M)
        return peak_memory(lambda: by(y, v, x, 0))

    short, long = map(peak, (1500, 3000))
    assert long <= 2 * short


def test_best_on_other_shapes_and_libraries():
    """One query, width 1 (of which there is no simplex), a library without singular values."""
    y, v, x = prompt(8, 1, 2, (2,), n=1)
    assert Best(budget=400)(y, v, x, 0).nbytes <= 400
    strict = BACKENDS["strict device1 float64"]()
    y, v, x = prompt(8, 2, 2, (2,), system=strict)
    chosen = Best(budget=400)(y, v, x, 0)
    assert chosen.nbytes <= 400 and kept(strict, chosen.S)
    with says(ValueError, "Best: `kinds` must have one that comes within an error of 0, as cache does, got none"):
        Best(error=0, kinds=("positive",))(*prompt(), 0)


def test_best_keeps_its_budget_to_the_byte():
    y, v, x = prompt()
    size = Compression("cache")(y, v, x, 0).nbytes
    assert Best(budget=size, kinds=("cache",))(y, v, x, 0).nbytes == size
    with says(ValueError, f"Best: `budget` must hold a memory of one feature, got {size - 1} bytes"):
        Best(budget=size - 1, kinds=("cache",))(y, v, x, 0)


def test_an_error_that_is_not_finite_is_the_worst():
    y, v, x = prompt()
    memory = Compression("clusters", 2)(y, v, x, 0)
    assert attention_error(replace(memory, S=0 * memory.S, z=0 * memory.z), y, v, x) == np.inf
    assert attention_error(Memory(Points(y), v), y, v, x) == 0
