"""A memory says what plain sums over its tokens say: in every system, for every map, however large
a key is, whatever comes later.

The right sides are plain sums Σ_j φ(y_j) [v_j 1], made here from φ(y) = f exp(c) in mpmath or
balls, where nothing over- or underflows.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import refimpl as ri
from refimpl import (
    MP,
    Float,
    KVCache,
    Memory,
    NotDefined,
    NotFinite,
    Points,
    Rope,
    RunningError,
    ZeroDenominator,
    balls,
)
from refimpl.attention.memory import join, linear_attention_carried, read_memories, write
from refimpl.attention.random_features import KINDS, PAIRS, RandomFeatures
from refimpl.attention.rope import LAYOUTS
from refimpl.systems.array import host
from refimpl.systems.floats import dtype_name
from tests.helpers.assertions import informative, says
from tests.helpers.backends import BACKENDS, backends, kept
from tests.helpers.chance import drawn
from tests.helpers.strategies import MAKERS, SEEDS

F = Float()
MAPS = (*KINDS, "points")
POSITIVE = tuple(kind for kind in MAPS if kind not in ("trigonometric", "taylor"))
all_maps = pytest.mark.parametrize("kind", MAPS)
makers = pytest.mark.parametrize("maker", MAKERS)
LEADS = st.sampled_from([(), (2,), (3, 2)])
COUNTS = st.sampled_from([1, 2, 5, 7])  # of tokens
FEW = st.sampled_from([1, 2, 3])


def made(kind, r, d, system=F, seed=0):
    """A map of that kind to about r features."""
    if kind == "points":
        return Points(system.random((r, d), seed + 50))
    return drawn(kind, r + r % 2 if kind in PAIRS else r, d, seed=seed, system=system)


def through(phi, x):
    """φ(x) as it is written in the papers."""
    f, c = phi.log(x)
    return f * ri.system_of(x).xp.exp(c)


def ones(v):
    return ri.system_of(v).xp.concat([v, ri.system_of(v).xp.ones_like(v[..., :1])], axis=-1)


def plainly(phi, y, v, x):
    """φ(x)ᵀ Σ_j φ(y_j) [v_j 1]"""
    xp = ri.system_of(x).xp
    return through(phi, x) @ (xp.matrix_transpose(through(phi, y)) @ ones(v))


def says_of(memories, x):
    """φ(x)ᵀ [b_KV b_D], all memories together."""
    num, den, top = read_memories(memories, x)
    xp = ri.system_of(x).xp
    return xp.exp(top) * xp.concat([num, den], axis=-1)


def within_bound(run, system, *arrays):
    """run(numbers, *arrays) in floats, against itself at 40 digits, within the errors that
    RunningError follows through it.
    """
    got = run(system, *arrays)
    truth, bounded = (
        run(s, *(s.convert(host(x)) for x in arrays)) for s in (MP(40), RunningError(dtype_name(system.dtype)))
    )
    found = ri.judge(got, truth, bounded.system.error(bounded))
    assert found.verdict in ("WITHIN BOUND", "EXACT") and not found.vacuous, found
    return got


# What is read is the plain sum


@makers
@all_maps
@given(lead=LEADS, M=COUNTS, n=COUNTS, d=FEW, m=FEW, r=FEW, at=st.integers(0, 7), seed=SEEDS)
def test_write_join_and_read_are_the_plain_sums(maker, kind, lead, M, n, d, m, r, at, seed):
    """In one piece, in two that are joined, and in two that are kept apart; heads share the map,
    not the keys.
    """
    assume(kind != "simplex" or d > 1)
    system, at = balls(30, maker), at % (M + 1)
    phi = made(kind, r, d, system, seed % 100)
    y, v, x = (system.random((*lead, *shape), seed + i) for i, shape in enumerate(((M, d), (M, m), (n, d))))
    want = plainly(phi, y, v, x)
    parts = [write(phi, y[..., a:b, :], v[..., a:b, :]) for a, b in ((0, at), (at, M)) if b > a]
    for memories in ([write(phi, y, v)], parts, [join(*parts)] if len(parts) == 2 else []):
        if memories:
            got = says_of(memories, x)
            assert got.shape == (*lead, n, m + 1) and system.equal(got, want) and informative(system, got)


@all_maps
@given(M=COUNTS, n=COUNTS, d=FEW, m=FEW, at=st.integers(0, 7), seed=SEEDS)
def test_floats_are_within_their_bound(kind, M, n, d, m, at, seed):
    assume((kind != "simplex" or d > 1) and 0 < at < M)
    y, v, x = (F.random((2, *shape), seed + i) for i, shape in enumerate(((M, d), (M, m), (n, d))))

    def run(system, y, v, x):
        phi = made(kind, 3, d, system)
        return says_of([join(*(write(phi, y[..., s, :], v[..., s, :]) for s in (slice(0, at), slice(at, M))))], x)

    within_bound(run, F, y, v, x)


@all_maps
def test_mpmath_agrees_to_its_digits(kind):
    """At 40 digits and at 80: the residual is the rounding of 40."""
    arrays = [F.random((3, w), i) for i, w in enumerate((4, 2, 4))]

    def run(system):
        y, v, x = map(system.convert, arrays)
        return says_of([write(made(kind, 3, 4, system), y, v)], x), plainly(made(kind, 3, 4, system), y, v, x)

    (got, want), (truth, _), (bound, _) = run(MP(40)), run(MP(80)), run(RunningError("float64"))
    # every step of the bound grows in proportion to u
    finer = Fraction(2) ** (53 - MP(40).ctx.prec)
    for each in (got, want):
        error = np.abs(MP(80).fractions(MP(80).convert(each)) - MP(80).fractions(truth))
        assert np.all(error <= finer * np.vectorize(Fraction)(bound.system.error(bound)))


def test_positive_maps_keep_tokens_and_others_keep_sums():
    """S is a mean of values with its weight in the scale, where that is possible: one key leaves
    its value as it is.
    """
    y, v = F.random((1, 3), 0), F.random((1, 2), 1)
    for kind in MAPS:
        phi = made(kind, 4, 3)
        memory = write(phi, y, v)
        assert (memory.z is None) == phi.positive == (kind in POSITIVE and kind != "points")
        if phi.positive:
            assert np.array_equal(memory.S, np.broadcast_to(v, memory.S.shape))
            assert np.array_equal(memory.scale, phi.log(y)[1][0])


# What comes later changes nothing that was read before, and a prompt may be split anywhere


def huge_last(seed=0, n=5, d=4, m=2, size=100.0, times=1e3):
    """q of length about 1, keys up to length 100, the last a thousand times larger."""
    q, k, v = (F.random((2, n, w), seed + i) for i, w in enumerate((d, d, m)))
    k = k * (size / np.linalg.norm(k, axis=-1, keepdims=True)) * np.linspace(0.01, 1, n)[:, None]
    later = k.copy()
    later[:, -1] *= times
    return q, k, v, later


def moved(attention, q, k, v, later):
    """How far the outputs of earlier tokens move if the last key is another."""
    return np.max(np.abs(attention(q, later, v)[:, :-1] - attention(q, k, v)[:, :-1]))


def carried(kind, d=4, system=F):
    phi = made(kind, 6, d, system)
    return lambda q, k, v: linear_attention_carried(q, k, v, phi=phi)[0]


@all_maps
def test_a_large_last_key_moves_no_bit_of_earlier_outputs(kind):
    for seed in range(4):
        assert moved(carried(kind), *huge_last(seed)) == 0.0


def performer(epsilon, system=F):
    """What implementations of Performer do: one maximum over all keys is subtracted in the
    exponent, then ε added to the features.
    """
    phi = made("positive", 6, 4, system)

    def attention(q, k, v):
        xp = ri.system_of(q).xp

        def features(x, over):
            p = x @ xp.matrix_transpose(phi.omega)
            top = p
            for axis in over:
                top = xp.max(top, axis=axis, keepdims=True)
            return xp.exp(p - xp.sum(x * x, axis=-1, keepdims=True) / 2 - top) + epsilon

        return ri.linear_attention(features(q, (-1,)), features(k, (-1, -2)), v)[0]

    return attention


def test_an_epsilon_inside_phi_is_seen_to_move_earlier_outputs():
    """By a good part of the values, which lie within ±1; without ε the maximum is harmless, and
    exact balls say so.
    """
    q, k, v, _ = huge_last(size=3.0)
    later = k.copy()
    later[:, -1] = 30 * made("positive", 6, 4).omega[0]
    assert moved(performer(1e-4), q, k, v, later) > 0.1
    assert moved(carried("positive"), q, k, v, later) == 0.0
    system = balls(60)
    small, large = (performer(0, system)(*map(system.convert, (q, keys, v)))[:, :-1, :] for keys in (k, later))
    assert system.equal(small, large) and informative(system, small)


@all_maps
@given(at=st.integers(0, 5), seed=st.integers(0, 9))
def test_a_prompt_may_be_split_anywhere(kind, at, seed):
    """The memory after the text, made token by token, in one piece or in two, however large the
    last key: in balls, and in floats.
    """
    q, _, v, k = huge_last(seed)
    x = F.random((2, 3, 4), seed + 5)

    def run(system, q, k, v, x, split):
        phi = made(kind, 6, 4, system)
        first, memory = linear_attention_carried(q[:, :split, :], k[:, :split, :], v[:, :split, :], phi=phi)
        rest, memory = linear_attention_carried(
            q[:, split:, :], k[:, split:, :], v[:, split:, :], phi=phi, memory=memory
        )
        num, den, _ = memory.read(x)
        return system.xp.concat([first, rest, num / den], axis=-2)

    system = balls(60)
    arrays = [system.convert(a) for a in (q, k, v, x)]
    want = run(system, *arrays, 0)
    assert system.equal(run(system, *arrays, at), want) and informative(system, want)
    num, den, _ = write(made(kind, 6, 4, system), *arrays[1:3]).read(arrays[3])
    assert system.equal(num / den, want[:, 5:, :])

    got, analysis = run(F, q, k, v, x, at), RunningError("float64")
    with np.errstate(all="ignore"):
        bounded = run(analysis, *(analysis.convert(a) for a in (q, k, v, x)), at)
    found = ri.judge(
        got, ri.floats(want), analysis.error(bounded) * (1 + 2.0**-50) + 2.0**-53 * np.abs(ri.floats(want))
    )
    assert found.verdict in ("WITHIN BOUND", "EXACT") and found.vacuous <= found.rows // 2, found


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@all_maps
def test_nothing_overflows_or_vanishes_where_plain_features_do(kind, dtype):
    """Plain features say which token was lost; by logarithms the output is right, and no larger
    than the values.
    """
    system = Float("numpy", dtype)
    q, k, v, _ = huge_last()
    k = k * (100 / np.linalg.norm(k, axis=-1, keepdims=True)) * [[1], [1], [1], [1], [1000]]
    q, k, v, phi = *(system.convert(a) for a in (q, k, v)), made(kind, 6, 4, system)
    lost = NotFinite if kind in ("trigonometric", "points") else ZeroDenominator
    o = linear_attention_carried(q, k, v, phi=phi)[0]
    assert np.all(np.isfinite(o))
    if kind in POSITIVE:
        assert np.all(
            np.abs(o) <= np.max(np.abs(v), axis=-2, keepdims=True) * (1 + 16 * float(ri.unit_roundoff(dtype)))
        )
    if kind == "taylor":  # has no exponential
        assert np.all(np.isfinite(ri.linear_attention(q, k, v, ri.Kernel(phi))[0]))
        return
    with pytest.raises(lost, match=r"^linear_attention: .*at token \d"):
        ri.linear_attention(q, k, v, ri.Kernel(phi if kind != "points" else lambda x: through(phi, x)))


@pytest.mark.parametrize("kind", POSITIVE)
@given(size=st.sampled_from([1e-300, 1.0, 1e3, 1e6]), seed=SEEDS)
def test_no_denominator_can_vanish(kind, size, seed):
    """Each token has a feature whose exponent is its largest: exp(0) = 1, times z ≥ 1."""
    y, v, x = (F.random((4, w), seed + i) for i, w in enumerate((3, 2, 3)))
    phi = made(kind, 4, 3)
    memory = join(write(phi, size * y[:2], v[:2]), write(phi, size * y[2:], v[2:]))
    _, den, top = memory.read(size * x)
    assert np.all(np.isfinite(top)) and np.all(den >= 1)


# Attention with memories


@all_maps
@pytest.mark.parametrize("form", [ri.softmax_attention, ri.softmax_attention_shifted])
@given(lead=LEADS, M=FEW, n=FEW, seed=SEEDS)
def test_softmax_beside_memories(kind, form, lead, M, n, seed):
    """Scores of the input are exact, those of the prompt are φ(x)·φ(y), in one sum; two memories,
    and older tokens, are one past.
    """
    system = balls(30)
    d, m, phi = 4, 2, made(kind, 3, 4, system)
    xp, (q, k, v) = system.xp, (system.random((*lead, 1 + M + n, w), seed + i) for i, w in enumerate((d, d, m)))
    root = xp.sqrt(xp.sqrt(system.ones((1, 1)) / d))
    memories = tuple(write(phi, root * k[..., 1 + s : 2 + s, :], v[..., 1 + s : 2 + s, :]) for s in range(M))
    cache = KVCache(k[..., :1, :], v[..., :1, :], np.ones((1, 1), bool), 0, memories)
    o, after = form(*(a[..., 1 + M :, :] for a in (q, k, v)), cache=cache)
    x = root * q[..., 1 + M :, :]
    past = plainly(phi, root * k[..., 1 : 1 + M, :], v[..., 1 : 1 + M, :], x)
    rows = []
    for t in range(n):
        seen = [0, *range(1 + M, 2 + M + t)]
        keys, values = (xp.concat([a[..., s : s + 1, :] for s in seen], axis=-2) for a in (k, v))
        both = xp.exp(x[..., t : t + 1, :] @ xp.matrix_transpose(root * keys)) @ ones(values) + past[..., t : t + 1, :]
        rows.append(both[..., :-1] / both[..., -1:])
    want = xp.concat(rows, axis=-2)
    assert system.equal(o, want) and informative(system, o)
    assert after.memories == memories and after.k.shape[-2] == 1 + n


def test_a_memory_of_no_weight_is_no_memory():
    q, k, v = (F.random((3, w), i) for i, w in enumerate((2, 2, 2)))
    nothing = write(made("positive", 4, 2), k, v).scaled(0)
    cache = KVCache(k[:0], v[:0], np.ones((1, 0), bool), 0, (nothing,))
    for form in (ri.softmax_attention, ri.softmax_attention_shifted):
        got, want = form(q, k, v, cache=cache)[0], form(q, k, v)[0]
        assert np.all(np.abs(got - want) <= 8 * np.spacing(np.abs(want)))


# Rotation


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", [kind for kind in MAPS if kind != "taylor"])
@given(d=st.integers(2, 5), part=st.integers(0, 2), M=COUNTS, by=st.integers(-900, 900), seed=SEEDS)
def test_a_shifted_memory_is_that_of_shifted_keys(layout, kind, d, part, M, by, seed):
    """Turning the map says of R_by x what rewriting R_by y through the turned map says; partial
    rotary or not.
    """
    system = balls(30)
    rope = Rope(ri.angle_table(system, 2 * min(part, d // 2)), layout, "before")
    phi, (y, v, x) = (
        made(kind, 3, d, system),
        (system.random((2, *s), seed + i) for i, s in enumerate(((M, d), (M, 2), (3, d)))),
    )
    memory = write(phi, y, v)
    shifted = memory.shifted(by, rope)
    rewritten = write(shifted.phi, rope(y, [by] * M), v)
    moved = rope(x, [by] * 3)
    for got in (says_of([shifted], moved), says_of([rewritten], moved)):
        assert system.equal(got, says_of([memory], x)) and informative(system, got)
    assert system.equal(says_of([shifted], x), plainly(shifted.phi, rope(y, [by] * M), v, x))
    back = shifted.shifted(-by, rope)
    assert system.equal(says_of([back], x), says_of([memory], x))
    assert shifted.S is memory.S and shifted.scale is memory.scale


def test_what_needs_no_turn_is_not_turned():
    memory = write(made("taylor", 1, 4), F.random((2, 4), 0), F.random((2, 2), 1))
    assert (
        memory.shifted(-3, None) is memory
        and memory.shifted(0, Rope(ri.angle_table(F, 4), placement="before")) is memory
    )


def test_taylor_cannot_be_stacked_under_rope():
    config = ri.Config(1, 4, d=4, m=2, phi="softmax", rope=ri.Rotary(4, placement="before"))
    model, by = ri.random_model(F, config, 0), ri.Compression("taylor")
    once = ri.convert(model, F.random((3, 4), 1), by=by)
    words = "RandomFeatures.rotated: taylor features have no directions to rotate; let positions go on"
    with says(NotDefined, words):
        ri.convert(once, F.random((2, 4), 2), by=by)
    kept_going = ri.convert(
        ri.convert(model, F.random((3, 4), 1), by=by, restart=False), F.random((2, 4), 2), by=by, restart=False
    )
    # no seed says that both are one map
    assert kept_going.position == 5 and len(kept_going.biases[0].memories) == 2


# What else a memory can do


@all_maps
@given(strength=st.fractions(-2, 2, max_denominator=4), seed=SEEDS)
def test_scaled(kind, strength, seed):
    """λ times, of either sign, and still joined with what counts once; of reduced rank too."""
    system = balls(30)
    phi, (y, v, x) = made(kind, 3, 3, system), (system.random((2, 4, w), seed + i) for i, w in enumerate((3, 2, 3)))
    first, second = write(phi, y[:, :1, :], v[:, :1, :]), write(phi, y[:, 1:, :], v[:, 1:, :])
    one, rest = (plainly(phi, a, b, x) for a, b in ((y[:, :1, :], v[:, :1, :]), (y[:, 1:, :], v[:, 1:, :])))
    assert system.equal(says_of([first.scaled(strength)], x), strength * one)
    for memory in (join(first.scaled(strength), second), join(second, first.scaled(strength))):
        got = says_of([memory], x)
        assert system.equal(got, strength * one + rest) and system.isfinite(got).all()
    low = Memory(
        phi, system.random((2, phi_count(phi), 2), 7), None, system.random((2, 1), 8), system.random((2, 2, 3), 9)
    )
    assert system.equal(says_of([low.scaled(strength)], x), strength * says_of([low], x))


def phi_count(phi, d=3):
    return phi.points.shape[-2] if isinstance(phi, Points) else phi.features(d)


def test_each_visits_every_array_with_its_own_axes():
    phi, seen = RandomFeatures("positive", F.random((4, 3), 0)), []
    memory = Memory(
        phi, F.random((2, 4, 5), 1), F.random((2, 4), 2), F.random((2, 1), 3), F.random((2, 5, 3), 4), "why"
    )

    def f(x, axes):
        seen.append((x.shape, axes))
        return 2 * x

    twice = memory.map_arrays(f)
    assert seen == [((2, 4, 5), 2), ((2, 4), 1), ((2, 1), 1), ((2, 5, 3), 2), ((4, 3), 2)]
    assert (
        np.array_equal(twice.phi.omega, 2 * phi.omega)
        and np.array_equal(twice.mix, 2 * memory.mix)
        and twice.about == "why"
    )
    assert np.array_equal(twice.z, 2 * memory.z) and np.array_equal(twice.scale, 2 * memory.scale)
    points = Memory(Points(F.random((4, 3), 0)), memory.S).map_arrays(f)
    assert points.z is points.scale is points.mix is None and np.array_equal(points.phi.points, 2 * F.random((4, 3), 0))
    assert Memory(RandomFeatures("taylor", None), memory.S).map_arrays(f).phi.omega is None


@pytest.mark.parametrize(("dtype", "size"), [("float64", 8), ("float32", 4)])
def test_nbytes_counts_all_that_is_needed_to_read(dtype, size):
    system = Float("numpy", dtype)
    y, v = system.random((2, 5, 3), 0), system.random((2, 5, 4), 1)
    S, row = 2 * 6 * 4, 2 * 6
    seeded, trigonometric = (write(made(kind, 6, 3, system), y, v) for kind in ("positive", "trigonometric"))
    # S, scale; the seed of ω, and how far it has turned
    assert seeded.nbytes == size * (S + row) + 16
    assert trigonometric.nbytes == size * (S + row + 2) + 16  # S, z, one scale for each head
    unseeded = replace(seeded, phi=RandomFeatures("positive", seeded.phi.omega))
    assert unseeded.nbytes == size * (S + row + 6 * 3)
    assert write(made("taylor", 1, 3, system), y, v).nbytes == size * 2 * (13 * 4 + 13 + 1)
    assert Memory(Points(y), v).nbytes == size * 2 * 5 * (3 + 4)
    rope = Rope(ri.angle_table(system, 2), placement="before")
    assert seeded.shifted(-4, rope).nbytes == seeded.nbytes  # a turned draw is a seed and a turn
    low = ri.prompt.compression.truncate_rank(seeded, 2)
    assert low.nbytes == size * (2 * 6 * 2 + 2 * 2 * 5 + 2) + 16


# Every library


EVERYWHERE = [(backend, kind) for backend in BACKENDS for kind in MAPS]
# which compiles every operation for every shape
QUICK = [pair for pair in EVERYWHERE if "jax" not in pair[0]]
REST = [pytest.param(*pair, marks=pytest.mark.slow) for pair in EVERYWHERE if pair not in QUICK]


@pytest.mark.parametrize(("backend", "kind"), [*QUICK, *REST])
def test_every_backend(backend, kind):
    """write, join, read and carried attention: within the bound of the dtype, which stays, as does
    the device.
    """
    system = BACKENDS[backend]()
    arrays = [system.random((2, 4, w), i) for i, w in enumerate((4, 4, 3))]

    def run(system, q, k, v):
        phi = made(kind, 4, 4, system)
        o, memory = linear_attention_carried(q, k, v, phi=phi)
        num, den, top = join(memory, write(phi, k, v)).read(q)
        return system.xp.concat([o if phi.positive else num, num, den], axis=-1) * system.xp.exp(0 * top)

    if "16" in backend:
        assert kept(system, run(system, *arrays))
        return
    assert kept(system, within_bound(run, system, *arrays))


@backends()
@pytest.mark.parametrize("kind", ["positive", "points", "trigonometric"])
def test_softmax_with_memories_on_every_backend(backend, kind):
    system = BACKENDS[backend]()
    q, k, v = (system.random((2, 4, w), i) for i, w in enumerate((4, 4, 3)))

    def run(system, q, k, v):
        rope = Rope(ri.angle_table(system, 4), "interleaved", "before")
        # (1, 0) booleans of the library
        keep = KVCache(k[:, :0, :], v[:, :0, :], None, 0).k[:1, :, 0] == 1
        past = (write(made(kind, 4, 4, system), k, v).shifted(-3, rope), write(made(kind, 4, 4, system), q, v))
        return ri.softmax_attention_shifted(q, k, v, rope=rope, cache=KVCache(k[:, :0, :], v[:, :0, :], keep, 2, past))[
            0
        ]

    if "16" in backend:
        assert kept(system, run(system, q, k, v))
        return
    assert kept(system, within_bound(run, system, q, k, v))
