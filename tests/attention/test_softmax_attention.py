"""Softmax attention: the shifted form and the cache equal the definition."""

from __future__ import annotations

import copy
import io
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refimpl as ri
from refimpl import MP, QQ, Dependencies, Float, RunningError, balls
from refimpl.attention import softmax_attention
from refimpl.systems import fractions
from refimpl.systems.floats import append_rows
from tests.helpers import oracle
from tests.helpers.assertions import contains, informative, peak_memory, says
from tests.helpers.strategies import problems

FORMS = [ri.softmax_attention, ri.softmax_attention_shifted]
both = pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)


def build(problem, system, placement="before"):
    (q, k, v), options = problem.build(system)
    options = {"mask": options["mask"]}
    if problem.rope:
        options["rope"] = ri.Rope(ri.angle_table(system, problem.rope[2]), problem.rope[0], placement)
    return (q, k, v), options


@given(problem=problems(max_n=5))
def test_shifted_equals_definition_in_balls(problem):
    """The difference contains zero: |a − b| ≤ 2 radius is proved. More digits prove more."""
    radii = []
    for digits in (30, 60):
        system = balls(digits)
        arrays, options = build(problem, system)
        a, b = (form(*arrays, **options)[0] for form in FORMS)
        assert system.equal(a, b) and informative(system, a) and informative(system, b)
        radii.append(system.radius(a - b))
    assert radii[1] < radii[0] or radii == [0, 0]


def within(system, x, real, want):
    """Every ball contains the oracle's number.

    The oracle has 60 digits. Positions are below 2^6, scores at most √5, so its weights are right
    to 10^-56 of themselves and its outputs, weighted means of numbers up to 1, to 10^-55: 10^-50 is
    more than its own rounding, and far less than any radius.
    """
    ends = [system.ends(a) for a in x.planes[0].ravel()]
    slack, want = (
        Fraction(1, 10**50),
        [Fraction(*map(int, mpmath.libmp.to_rational(real.mpf(a)._mpf_))) for row in want for a in row],
    )
    return all(a - slack <= w <= b + slack for (a, b), w in zip(ends, want, strict=True))


@both
@given(problem=problems(max_n=4), old=st.integers(0, 3), cached=st.booleans(), pad=st.booleans())
def test_definition_equals_plain_python(form, problem, old, cached, pad):
    """Against loops that share no code with refimpl: the scale 1/√d, RoPE, masks, cache, padding
    and positions, head by head.
    """
    system, real, rng = balls(40), mpmath.MPContext(), np.random.default_rng(problem.seed)
    real.dps = 60
    arrays = q, k, v = [
        rng.uniform(-1, 1, (*lead, problem.n, w))
        for lead, w in ((problem.lead_q, problem.d), (problem.lead_k, problem.d), (problem.lead_k, problem.m))
    ]
    old_k, old_v = (rng.uniform(-1, 1, (*problem.lead_k, old, w)) for w in (problem.d, problem.m))
    kept, keep = (rng.integers(0, 2, n).astype(bool) for n in (old, problem.n))
    options = {"mask": problem.mask, "padding": keep if pad else None}
    if problem.rope:
        options["rope"] = ri.Rope(ri.angle_table(system, problem.rope[2]), problem.rope[0], "before")
    if cached:
        options["cache"] = ri.KVCache(system.convert(old_k), system.convert(old_v), kept[None, :], problem.position)
    o, end = form(*map(system.convert, arrays), **options)
    assert informative(system, o)

    def exactly(x):
        return [[real.mpf(a) for a in row] for row in x.tolist()]

    key_axes = (1,) * (len(problem.lead_q) - len(problem.lead_k)) + problem.lead_k
    for head in np.ndindex(*problem.lead_q):
        key = tuple(i if n > 1 else 0 for i, n in zip(head, key_axes, strict=True))[
            len(problem.lead_q) - len(problem.lead_k) :
        ]
        want, keys, values, shown, position = oracle.softmax(
            exactly(q[head]),
            exactly(k[key]),
            exactly(v[key]),
            real=real,
            mask=problem.mask,
            keep=keep.tolist() if pad else None,
            rope=(10000, problem.rope[2], problem.rope[0]) if problem.rope else None,
            cache=(exactly(old_k[key]), exactly(old_v[key]), kept.tolist(), problem.position) if cached else None,
        )
        assert within(system, o[head], real, want)
        assert end.position == position and end.keep.reshape(-1).tolist() == shown
        assert end.k.shape[-2] == end.v.shape[-2] == len(keys) == (old if cached else 0) + problem.n
        first = old if cached else 0
        seen = np.array(
            [s < first or shown[s] for s in range(len(keys))], dtype=bool
        )  # what padded tokens held is not kept
        assert within(system, end.k[key][seen, :], real, [x for x, s in zip(keys, seen, strict=True) if s])
        assert within(system, end.v[key][seen, :], real, [x for x, s in zip(values, seen, strict=True) if s])


@both
@given(problem=problems(max_n=5), data=st.data())
def test_cache_is_the_state(form, problem, data):
    """Split at every point: the rest, read from the KV cache, equals the definition over all
    tokens; enclosed by balls.
    """
    system = balls(40)
    (q, k, v), options = build(problem, system)
    options["mask"] = "causal"
    whole, end = ri.softmax_attention(q, k, v, **options)
    for i in range(problem.n + 1):
        head, cache = form(*(x[..., :i, :] for x in (q, k, v)), **options)
        tail, last = form(*(x[..., i:, :] for x in (q, k, v)), cache=cache, **options)
        joined = system.concat([head, tail], axis=-2)
        assert system.equal(joined, whole) and informative(system, joined) and informative(system, whole)
        assert system.equal(last.k, end.k) and last.position == end.position


def test_definition_by_hand():
    """With scale log 2 and integer scores, the weights are powers of two."""
    system, high = balls(30, "iv"), MP(60)
    q, k, v = system.convert([[1], [2]]), system.convert([[1], [3]]), system.convert([[1], [10]])
    log2 = fractions(
        high.wrap((np.array([high.ctx.log(2)], dtype=object),)), "test"
    ).item()  # right to 60 digits, so to ± 10^-50
    scale = system.hull(*(system.number(log2 + e) for e in (Fraction(-1, 10**50), Fraction(1, 10**50))))
    o, _ = ri.softmax_attention(q, k, v, scale=system.wrap((np.array(scale, dtype=object),)))
    assert contains(system, o, QQ.convert([1, Fraction(2**2 * 1 + 2**6 * 10, 2**2 + 2**6)])) and informative(system, o)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@both
@given(problem=problems())
def test_floats_within_their_running_error(form, dtype, problem):
    system, oracle = RunningError(dtype), MP(50)
    arrays, options = build(problem, system)
    o, _ = form(*arrays, **options)
    exactly = options | (
        {"rope": ri.Rope(ri.angle_table(oracle, problem.rope[2]), problem.rope[0], "before")} if problem.rope else {}
    )
    truth, _ = ri.softmax_attention(*(oracle.convert(x) for x in arrays), **exactly)
    distance = abs(fractions(o, "test") - fractions(truth, "test"))
    assert all(d <= Fraction(e) for d, e in zip(distance.ravel(), system.error(o).ravel(), strict=True))
    if problem.m:  # else VACUOUS
        assert np.all(system.error(o).max(axis=-1) < np.abs(system.value(o)).max(axis=-1))


def test_large_scores():
    """The definition overflows and says where; the shifted form does not."""
    q = k = np.array([[30.0, 30.0], [40.0, 40.0]])
    v = np.array([[1.0], [2.0]])
    with (
        pytest.raises(
            ri.NotFinite, match="softmax_attention: the output overflows numpy float64: nan or inf at token 0, column 0"
        ),
        np.errstate(all="ignore"),
    ):
        ri.softmax_attention(q, k, v, scale=1.0)
    assert np.array_equal(ri.softmax_attention_shifted(q, k, v, scale=1.0)[0], v)


@pytest.mark.parametrize(("n", "mask"), [(97, "causal"), (130, 60), (96, "full")])
def test_tiles_of_rows_equal_the_whole(monkeypatch, n, mask):
    """Of 48 rows each; with a cache, padding and a memory. Digits do not depend on the order of
    sums, so in mpmath they are equal; in floats, no further apart than their errors.
    """
    keep, memory = np.arange(n) % 7 != 3, [Float().random(shape, i) for i, shape in enumerate(((4, 2), (4, 2)))]

    def attend(system, tile):
        monkeypatch.setattr(softmax_attention, "TILE", tile)
        q, k, v = (system.random((2, n, 2), i) for i in range(3))
        points, S = (system.convert(x) for x in memory)
        recalled = ri.Memory(ri.Points(points), S)
        cache = ri.KVCache(k[..., :5, :], v[..., :5, :], np.ones((1, 5), bool), 5, (recalled,))
        return ri.softmax_attention_shifted(q, k, v, mask=mask, padding=keep, cache=cache)[0]

    a, b = (attend(MP(20), tile) for tile in (1, 2**40))
    assert (a == b).all()
    for dtype in ("float64", "float32"):
        running, floats = RunningError(dtype), Float("numpy", dtype)
        error = sum(running.error(attend(running, tile)) for tile in (1, 2**40))
        a, b = (attend(floats, tile) for tile in (1, 2**40))
        assert np.all(abs(a - b) <= error) and np.all(error.max(axis=-1)[:, keep] < abs(b).max(axis=-1)[:, keep])


def read(cache, seed, n=1):
    """One more token (or n) behind a cache of 2 heads."""
    return ri.softmax_attention_shifted(*(Float().random((2, n, 16), seed + i) for i in range(3)), cache=cache)


def test_a_text_of_more_than_a_thousand_tokens():
    """Its last tokens see its first ones, in both forms."""
    q, k, v = (Float().random((1030, 2), seed) for seed in range(3))
    by_sum, shifted = (form(q, k, v)[0] for form in FORMS)
    assert np.allclose(by_sum, shifted, rtol=0, atol=1e-13)


def test_hidden_keys_beside_scores_far_below_zero():
    """The stand-in for a score that is not seen is one that is, so nothing vanishes."""
    one, v = np.ones((2, 1)), np.array([[5.0], [3.0]])
    _, cache = ri.softmax_attention_shifted(one, one, v, padding=np.array([False, True]))
    o, _ = ri.softmax_attention_shifted(-3000 * one[:1], one[:1], v[:1], cache=cache, scale=1)
    assert o.tolist() == [[4.0]]


def test_a_cache_is_not_copied_for_each_token():
    _, cache = read(None, 0, 4000)
    for seed in range(3, 6):
        kept, (_, cache) = cache, read(cache, seed)
        assert np.shares_memory(cache.k, kept.k) and np.shares_memory(cache.v, kept.v)
    assert peak_memory(lambda: read(cache, 2)) < cache.k.nbytes


def test_what_a_cache_holds_never_changes():
    """Two continuations of each cache, in turns: each is what it is from a copy of that cache."""
    caches, alone = [read(None, 0, 5)[1]], []
    for seed in range(1, 90):  # beyond the room of the first
        start = caches[-1 if seed % 3 else seed // 3]
        copied = ri.KVCache(start.k.copy(), start.v.copy(), start.keep.copy(), start.position)
        caches.append(read(start, seed)[1])
        alone.append(read(copied, seed)[1])
    for got, want in zip(caches[1:], alone, strict=True):
        assert np.array_equal(got.k, want.k) and np.array_equal(got.v, want.v)
    with pytest.raises(ValueError, match="read-only"):
        caches[-1].k[0, 0, 0] = np.nan


def test_threads_continue_one_cache():
    _, cache = read(read(None, 0, 5)[1], 1)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda seed: read(cache, seed)[1], range(200)))
    for seed, got in enumerate(found):
        assert np.array_equal(got.k[:, 6], Float().random((2, 1, 16), seed + 1)[:, 0])


def test_a_cache_with_an_overflow_written_in_place_is_refused():
    k = append_rows(append_rows(np.ones((0, 2)), np.ones((3, 2)), ()), np.full((1, 2), np.inf), ())
    cache = ri.KVCache(k, np.ones((4, 2)), np.ones((1, 4), bool), 4)
    with says(ValueError, "softmax_attention: `cache.k` must be finite, got nan or inf at token 3, column 0"):
        ri.softmax_attention(*[np.ones((1, 2))] * 3, cache=cache)


def test_a_cache_read_in_another_dtype_is_checked_anew():
    """Half of the bits of a float64 may be a nan of float32."""
    nan = np.frombuffer(np.array([np.nan, 1], np.float32).tobytes())  # a finite float64
    k = append_rows(np.ones((0, 1)), nan[None], ()).view(np.float32)
    cache = ri.KVCache(k, np.ones((1, 2), np.float32), np.ones((1, 1), bool), 1)
    with says(ValueError, "softmax_attention: `cache.k` must be finite, got nan or inf at token 0, column 0"):
        ri.softmax_attention(*[np.ones((1, 2), np.float32)] * 3, cache=cache)


def test_what_is_read_from_a_cache_is_a_plain_array():
    """Its class, its copies and what is saved of it have nothing of the room behind it."""
    _, cache = read(None, 0, 5)
    made = (cache.k, cache.k + 1, cache.k[0], cache.k.copy(), copy.deepcopy(cache).k, np.asanyarray(cache.k))
    assert all(type(x) is np.ndarray for x in made)
    saved = io.BytesIO()
    np.save(saved, cache.k)
    assert len(saved.getvalue()) < cache.k.nbytes + 256


@pytest.mark.parametrize("mask", ["causal", "full"])
def test_memory_grows_no_faster_than_the_text(mask):
    def peak(n):
        x = [Float().random((n, 2), i) for i in range(3)]
        return peak_memory(lambda: ri.softmax_attention_shifted(*x, mask=mask))

    short, long = map(peak, (1500, 3000))
    assert long <= 2 * short <= 2 * 6 * softmax_attention.TILE


@both
def test_padding(form):
    """Padded tokens, nan or not, are as if they were not there, also through the cache."""
    system = Float()
    q, k, v = (system.random((2, 6, 3), i) for i in range(3))
    keep = np.array([True, False, True, True, False, True])
    alone, _ = form(*(x[:, keep] for x in (q, k, v)))
    # Both are executions in float64 of sums with one truth. With zeros in place of padding or
    # without it, each stays within its error.
    running = RunningError()
    follow = [running.convert(x) for x in (q, k, v)]
    (one, _), (other, _) = form(*(x[:, keep, :] for x in follow)), form(*follow, padding=keep)
    error = running.error(one) + running.error(other)[:, keep]
    assert np.all(error.max(axis=-1) < np.abs(alone).max(axis=-1))
    for x in (q, k, v):
        x[:, ~keep] = np.nan
    o, _ = form(q, k, v, padding=keep)
    head, cache = form(q[:, :3], k[:, :3], v[:, :3], padding=keep[:3])
    tail, _ = form(q[:, 3:], k[:, 3:], v[:, 3:], padding=keep[3:], cache=cache)
    for got in (o, np.concatenate([head, tail], axis=1)):
        assert np.array_equal(got[:, ~keep], np.zeros((2, 2, 3)))
        assert np.all(np.abs(got[:, keep] - alone) <= error)


@both
@pytest.mark.parametrize(("mask", "P"), [("causal", 0), (2, 2), ("full", 4)])
def test_causality_by_structure(form, mask, P):
    system = Dependencies()
    tokens = [system.tokens((2, 4, 3)) for _ in range(3)]
    o, _ = form(*tokens, mask=mask)
    for t in range(4):
        assert all(seen == set(range(max(t + 1, P))) for seen in system.sets(o)[:, t].ravel())


def test_grouped_heads_and_broadcast_cache():
    system = balls(30)
    q, k, v = system.random((2, 3, 5, 4), 0), system.random((2, 1, 5, 4), 1), system.random((2, 1, 5, 3), 2)
    for form in FORMS:
        o, cache = form(q, k, v)
        start = ri.KVCache(cache.k[0, 0, :4], cache.v[0, 0, :4], cache.keep[..., :4], 4)
        again, _ = form(q[0, 1, 4:], k[0, 0, 4:], v[0, 0, 4:], cache=start)
        assert system.equal(o[0, 1, 4:], again) and informative(system, again)


@both
def test_every_text_of_a_batch_has_its_own_padding(form):
    system = balls(30)
    q, k, v = (system.random((3, 5, 2), i) for i in range(3))
    keep = np.array([[True] * 5, [True, False] * 2 + [True], [True, True, True, False, False]])
    o, cache = form(q, k, v, padding=keep)
    first, rest = (slice(None), slice(0, 2)), (slice(None), slice(2, 5))
    head, before = form(*(x[(*first, slice(None))] for x in (q, k, v)), padding=keep[first])
    tail, after = form(*(x[(*rest, slice(None))] for x in (q, k, v)), padding=keep[rest], cache=before)
    assert o.shape == (3, 5, 2) and cache.keep.shape == after.keep.shape == (3, 1, 5)
    for i in range(3):
        alone, _ = form(q[i], k[i], v[i], padding=keep[i])
        assert system.equal(o[i], alone) and informative(system, alone)
        assert system.equal(system.concat([head[i], tail[i]], axis=0), alone)
