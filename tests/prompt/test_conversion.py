"""ICLCA: the converted model on the input alone equals the prompted model.

The prompted side is the definition over all positions of prompt and input. The converted side is
another form, on the input alone.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refimpl as ri
from refimpl import GF, MP, QQ, Config, Float, Rotary, Rounded, RunningError, State, convert, random_model, unconvert
from refimpl.attention.memory import write
from refimpl.prompt.conversion import add_memory
from refimpl.systems import fractions
from tests.helpers.assertions import peak_memory, says
from tests.helpers.model_strategies import (
    Scene,
    cut,
    in_numbers,
    in_plain_python,
    join,
    length,
    one_by_one,
    probing,
    prompted,
    scenes,
)

FORMS = [ri.linear_attention_quadratic, ri.linear_attention_recurrent, ri.linear_attention_chunked]
EXACT = [QQ, GF(2**61 - 1), GF(10007)]
STRENGTHS = [0, Fraction(1, 2), 3]

exact_systems = pytest.mark.parametrize("system", EXACT, ids=str)
some_form = st.sampled_from(FORMS)
some_strength = st.sampled_from(STRENGTHS)
worlds = st.sampled_from(EXACT).flatmap(lambda system: st.tuples(st.just(system), scenes(system)))
relative_worlds = st.sampled_from(EXACT).flatmap(
    lambda system: st.tuples(st.just(system), scenes(system, restart=True))
)


def same_biases(system, a, b):
    """Equal with ==, layer by layer; biases of no text are zero."""
    assert a.position == b.position
    none = (None,) * a.config.layers
    for x, y in zip(a.biases or none, b.biases or none, strict=True):
        x, y = (s or State(system.zeros(t.S.shape), system.zeros(t.z.shape)) for s, t in ((x, y), (y, x)))
        assert x.S.shape[-3:] == y.S.shape[-3:]
        assert (x.S == y.S).all() and (x.z == y.z).all()


# Exactly


@exact_systems
@settings(max_examples=30)
@given(data=st.data(), reading=some_form, running=some_form)
def test_converted_equals_prompted(system, data, reading, running):
    """Also on top of biases that the model already has."""
    scene = data.draw(scenes(system))
    model, prompt, text, want = scene.draw(system)
    assert system.equal(convert(model, prompt, restart=scene.restart, form=reading)(text, form=running), want)


@pytest.mark.parametrize("phi", ["relu2", "dpfp(1)"])
@pytest.mark.parametrize("seed", range(3))
def test_features_that_vanish_together(seed, phi):
    """Normalised, where many draws have a zero denominator; a bias makes them fewer."""
    config = Config(1, 2, d=3, m=2, phi=phi, norm="rms_rational", rope=Rotary(width=2, base=None))
    model, prompt, text, want = Scene(config, 2, 2, (), False, 1, seed).draw(QQ)
    assert QQ.equal(convert(model, prompt)(text), want)


@settings(max_examples=12)
@given(world=worlds, running=some_form)
def test_a_prefix_mask_converts_as_well(world, running):
    """Prompt tokens see each other: its activations still do not depend on the input."""
    system, scene = world
    model, prompt, text, want = scene.draw(system, lambda *x: prompted(*x, mask=scene.M))
    assert system.equal(convert(model, prompt, restart=scene.restart, mask="full")(text, form=running), want)


@settings(max_examples=8)
@given(world=worlds, running=some_form)
def test_every_split_of_a_text(world, running):
    system, scene = world
    model, prompt, text, _ = scene.draw(system)
    text = join(prompt, text)
    want = model(text, form=ri.linear_attention)
    for M in range(length(text) + 1):
        prompt, rest = cut(text, M)
        assert system.equal(convert(model, prompt, restart=scene.restart)(rest, form=running), want[..., M:, :])


@settings(max_examples=12)
@given(world=worlds, data=st.data())
def test_two_conversions_are_one(world, data):
    system, scene = world
    model, prompt, text, want = scene.draw(system)
    first, second = cut(prompt, data.draw(st.integers(0, scene.M)))
    once = convert(model, prompt, restart=scene.restart)
    twice = convert(convert(model, first, restart=scene.restart), second, restart=scene.restart)
    same_biases(system, twice, once)
    assert system.equal(twice(text), want)
    assert once.prompts == (scene.M,) and twice.prompts == (length(first), length(second))


@settings(max_examples=12)
@given(
    world=worlds, data=st.data(), strength=st.sampled_from([1, *STRENGTHS]), mask=st.sampled_from(["causal", "full"])
)
def test_what_went_in_last_comes_out_first(world, data, strength, mask):
    system, scene = world
    options = {"restart": scene.restart, "mask": mask}

    def stack(model, prompt, text):
        first, second = cut(prompt, split)
        below = convert(model, first, strength=strength, **options)
        return first, second, below, convert(below, second, **options)

    split = data.draw(st.integers(0, scene.M))
    model, _, _, (first, second, below, above) = scene.draw(system, stack)
    back = unconvert(above, second, **options)
    same_biases(system, back, below)
    same_biases(system, unconvert(back, first, strength=strength, **options), model)
    assert back.prompts == (split,) and unconvert(back, first, strength=strength, **options).prompts == ()


@pytest.mark.parametrize("restart", [True, False])
def test_many_prompts_come_out_one_by_one(restart):
    config = Config(2, 3, heads=2, d=2, m=1, phi="identity", norm="none", rope=Rotary(width=2, base=None))
    prompts = [QQ.random((n, 3), n) for n in (2, 1, 3, 1)]
    models = [random_model(QQ, config, seed=0)]
    for prompt in prompts:
        models.append(convert(models[-1], prompt, restart=restart))
    for before, after, prompt in zip(models[-2::-1], models[:0:-1], prompts[::-1], strict=True):
        back = unconvert(after, prompt, restart=restart)
        same_biases(QQ, back, before)
        assert back.prompts == before.prompts


def test_biases_without_a_denominator_come_out_too():
    config = Config(
        2, 3, heads=2, d=2, m=3, phi="identity", normalise=False, norm="none", rope=Rotary(width=2, base=None)
    )
    model, prompt = random_model(QQ, config, seed=0), QQ.random((4, 3), 50)
    model = replace(model, biases=tuple(State(QQ.random((2, 2, 3), 60 + i), None, 2) for i in range(2)))
    above = convert(model, prompt)
    back = unconvert(above, prompt)
    for before, after, top in zip(model.biases, back.biases, above.biases, strict=True):
        assert QQ.equal(after.S, before.S) and not QQ.equal(top.S, before.S) and after.z is top.z is None


@settings(max_examples=30)
@given(scene=scenes(QQ), strength=some_strength)
def test_strength_is_how_often_the_prompt_counts(scene, strength):
    """Against plain Python, where each prompt token counts λ times for the input and once for the
    prompt.
    """
    model, prompt, text, got = scene.draw(
        QQ, lambda model, prompt, text: convert(model, prompt, restart=scene.restart, strength=strength)(text)
    )
    want = in_plain_python(model, join(prompt, text), prompt=scene.M, strength=strength)
    assert one_by_one(got) == [rows[scene.M :] for rows in want]


@settings(max_examples=12)
@given(world=relative_worlds)
def test_strengths_of_nothing_and_of_one(world):
    system, scene = world[0], replace(world[1], position=None)
    model, prompt, text, bare = scene.draw(
        system, lambda model, prompt, text: (prompted(model, prompt, text), model(text))[1]
    )
    assert system.equal(convert(model, prompt, strength=0)(text), bare)
    same_biases(system, convert(model, prompt, strength=Fraction(1)), convert(model, prompt))


@settings(max_examples=12)
@given(world=worlds, data=st.data(), chunk=st.integers(1, 4))
def test_a_prompt_read_in_pieces(world, data, chunk):
    system, scene = world
    model, prompt, _, _ = scene.draw(system)
    ends = sorted(data.draw(st.lists(st.integers(0, scene.M), max_size=3)))
    whole = convert(model, prompt, restart=scene.restart)
    for other in (
        convert(model, prompt, restart=scene.restart, chunk=chunk),
        convert(model, iter(cut(prompt, *ends)), restart=scene.restart),
        convert(model, iter(cut(prompt, *ends)), restart=scene.restart, chunk=chunk),
    ):
        same_biases(system, other, whole)
        assert other.prompts == whole.prompts == (scene.M,)
    nothing = convert(model, iter(()), restart=scene.restart, strength=2)
    same_biases(system, nothing, model)
    assert nothing.prompts == (0,)


@settings(max_examples=9)
@given(world=worlds)
def test_a_batch_of_prompts_is_each_of_them(world):
    system, scene = world[0], replace(world[1], lead=(3,))
    model, prompts, text, _ = scene.draw(system)
    batch = convert(model, prompts, restart=scene.restart)
    for i in range(3):
        alone = convert(model, prompts[i], restart=scene.restart)
        same_biases(
            system, replace(batch, biases=tuple(State(b.S[i], b.z[i], b.position) for b in batch.biases)), alone
        )
        assert system.equal(batch(text[0])[i], alone(text[0]))


@settings(max_examples=10)
@given(scene=scenes(GF(10007)))
def test_a_prompt_of_tokens_is_one_of_their_vectors(scene):
    system, scene = GF(10007), replace(scene, config=replace(scene.config, vocabulary=5), tokens=True)
    model, prompt, _, _ = scene.draw(system)
    rows = system.reshape(
        system.take(model.weights["embedding"], prompt.reshape(-1), axis=0), (*prompt.shape, scene.config.width)
    )
    tokens = convert(model, prompt, restart=scene.restart)
    same_biases(system, tokens, convert(model, rows, restart=scene.restart))
    same_biases(system, tokens, convert(model, prompt.tolist(), restart=scene.restart))
    same_biases(system, tokens, convert(model, rows, restart=scene.restart, chunk=2))


@settings(max_examples=12)
@given(world=relative_worlds)
def test_running_positions_or_from_the_start_again(world):
    """Under relative positions the input may be read anywhere."""
    system, scene = world
    model, prompt, text, want = scene.draw(system)
    again, on = (convert(model, prompt, restart=restart) for restart in (True, False))
    assert system.equal(again(text), want) and system.equal(on(text), want)
    assert (again.position, on.position) == (model.position, model.position + scene.M)


@pytest.mark.parametrize("placement", ["after", "before"])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("first", [0, 7])
def test_the_formula_of_the_biases(first, layout, placement):
    """b'_KV = R_{-M} b_KV + Σ_j R_{j-M} φ(k'_j) v'_jᵀ, b'_D = b_D + Σ_j φ(k'_j), never turned
    unless the keys are; by loops.

    For an input read from position p on, j counts from p.
    """
    from tests.helpers.oracle import times, turn

    M, width = 5, 3
    config = Config(1, width, d=4, m=2, phi="identity", norm="none", rope=Rotary(4, layout, placement, None))
    model, X = random_model(QQ, config, seed=5), QQ.random((M, width), 80)
    old = State(QQ.random((1, 4, 2), 90), QQ.random((1, 4), 91), first)
    w = {name: x.tolist() for name, x in model.weights.items()}
    points = list(zip(w["rope.c"], w["rope.s"], strict=True))

    def turned(columns, by):
        return [
            list(row) for row in zip(*(turn(x, by, points, layout) for x in zip(*columns, strict=True)), strict=True)
        ]

    S, z = turned(old.S.tolist()[0], -M), [[a] for a in old.z.tolist()[0]]
    z = turned(z, -M) if placement == "before" else z
    for j, x in enumerate(X.tolist(), first):
        k, v = times(x, w["layers.0.W_K"]), times(x, w["layers.0.W_V"])
        outer, key = turned([[a * b for b in v] for a in k], j - M), [[a] for a in k]
        S = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(S, outer, strict=True)]
        z = [
            [a + b for a, b in zip(*rows, strict=True)]
            for rows in zip(z, turned(key, j - M) if placement == "before" else key, strict=True)
        ]
    (bias,) = convert(replace(model, biases=(old,)), X).biases
    assert bias.S.tolist() == [S] and bias.z.tolist() == [[a for (a,) in z]] and bias.position == first


@exact_systems
def test_the_formula_without_denominator_and_positions(system):
    """b'_KV = b_KV + W_Kᵀ X'ᵀ X' W_V"""
    config = Config(1, 4, d=3, m=2, phi="identity", norm="none", normalise=False)
    model, X = random_model(system, config, seed=1), system.random((6, 4), 50)
    old, T = State(system.random((1, 3, 2), 60), None), system.matrix_transpose
    W_K, W_V = model.weights["layers.0.W_K"], model.weights["layers.0.W_V"]
    (bias,) = convert(replace(model, biases=(old,)), X).biases
    assert system.equal(bias.S[0], old.S[0] + T(W_K) @ T(X) @ X @ W_V)


def test_a_prompt_changes_the_output_and_so_must_its_bias():
    """Each of them dropped, or not turned, is seen."""
    config = Config(2, 3, heads=2, d=2, m=2, phi="polynomial(2)", norm="rms_rational", rope=Rotary(width=4, base=None))
    system = GF(2**61 - 1)
    model, prompt, text = random_model(system, config, seed=0), system.random((4, 3), 50), system.random((3, 3), 51)
    want, converted = prompted(model, prompt, text), convert(model, prompt)
    assert system.equal(converted(text), want) and not system.equal(model(text), want)
    running = convert(model, prompt, restart=False)
    for change in (
        lambda b, r: replace(b, S=b.S * 0),
        lambda b, r: replace(b, z=b.z * 0),
        lambda b, r: replace(b, position=b.position + 1),
        lambda b, r: replace(r, position=b.position),
    ):
        biases = [change(b, r) for b, r in zip(converted.biases, running.biases, strict=True)]
        assert not system.equal(replace(converted, biases=tuple(biases))(text), want)


# In floats, layer by layer


def layer_by_layer(model, prompt, text, fresh, form, **options):
    """(prompted, converted) after each layer, and at the end. Then both sides go on with the same
    fresh activations.
    """
    M, left, right = length(prompt), [], []

    def watch(seen, start):
        def between(i, x):
            seen.append(x[..., start:, :])
            return fresh[i][..., M - start :, :] if start == 0 else fresh[i]

        return between

    left.append(prompted(model, prompt, text, between=watch(left, M)))
    converted = convert(model, prompt, between=lambda i, x: fresh[i][..., :M, :], **options)
    right.append(converted(text, form=form, between=watch(right, 0)))
    return list(zip(left, right, strict=True))


def judged(system, dtype, scene, form, **options):
    """What each layer's two sides are worth, by the errors of the same two programs."""
    model, prompt, text = scene.build(system)
    fresh = [
        system.random((*scene.lead, scene.M + scene.n, scene.config.width), 60 + i) for i in range(scene.config.layers)
    ]
    sides = layer_by_layer(model, prompt, text, fresh, form, **options)
    analysis = RunningError(dtype)
    texts = [x if scene.tokens else analysis.convert(x) for x in (prompt, text)]
    bounds = layer_by_layer(in_numbers(model, analysis), *texts, [analysis.convert(x) for x in fresh], form, **options)
    for (left, right), errors in zip(sides, bounds, strict=True):
        yield ri.judge(left, fractions(right, "test"), sum(analysis.error(e) for e in errors))


FLOATS = {
    "gelu, RoPE after": Config(3, 8, heads=2, d=4, m=3, hidden=9, rope=Rotary(width=4)),
    "post, grouped, tokens": Config(
        2,
        6,
        heads=4,
        groups=2,
        d=3,
        m=2,
        order="post",
        norm="rms",
        hidden=5,
        activation="silu",
        biased=True,
        vocabulary=7,
    ),
    "parallel, gated": Config(
        2,
        5,
        heads=2,
        groups=1,
        d=4,
        m=3,
        order="parallel",
        hidden=4,
        activation="silu",
        gated=True,
        rope=Rotary(2, "interleaved"),
    ),
    "RoPE before": Config(2, 6, heads=2, d=4, m=3, norm="rms", rope=Rotary(4, "interleaved", "before")),
    "table": Config(2, 6, heads=2, d=3, m=5, hidden=4, vocabulary=9, tied=False, table=30),
    "unnormalised": Config(
        3, 4, heads=2, d=3, m=2, phi="exp", normalise=False, norm="rms", rope=Rotary(width=2, base=100)
    ),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", FLOATS)
def test_every_layer_within_bound(name, dtype):
    config = FLOATS[name]
    restart = name not in ("RoPE before", "table")
    for seed, form in enumerate(FORMS):
        scene = Scene(config, 8 + seed, 5, (2,), bool(config.vocabulary), None, seed)
        found = list(judged(Float("numpy", dtype), dtype, scene, form, restart=restart))
        assert len(found) == config.layers + 1 and all(f.verdict in ("WITHIN BOUND", "EXACT") for f in found), found
        assert any(f.verdict == "WITHIN BOUND" for f in found) and not any(f.vacuous for f in found)


def bfloat16(kind):
    if kind == "torch":
        pytest.importorskip("torch")
        return Float("torch", "bfloat16")
    return Rounded("bfloat16")


@pytest.mark.parametrize("kind", ["torch", "rounded"])
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_every_layer_within_bound_in_bfloat16(form, kind):
    """Positive features, so that 8 bits can tell something."""
    config, rows, vacuous = Config(2, 4, heads=2, d=2, m=2, norm="none", rope=Rotary(width=2)), 0, 0
    for seed in range(4):
        found = list(judged(bfloat16(kind), "bfloat16", Scene(config, 3, 2, (2,), False, None, seed), form))
        assert all(f.verdict in ("WITHIN BOUND", "EXACT") for f in found), found
        rows, vacuous = rows + sum(f.rows for f in found), vacuous + sum(f.vacuous for f in found)
    assert vacuous <= rows / 10, (vacuous, rows)


def test_a_wrong_layer_is_beyond_its_bound(monkeypatch):
    """A prompt that is one position off, in floats."""
    scene = Scene(FLOATS["gelu, RoPE after"], 8, 5, (), False, None, 0)
    right = State.shifted

    def off_by_one(state, by, kernel):
        return replace(right(state, by + 1, kernel), position=state.position + by)

    monkeypatch.setattr(State, "shifted", off_by_one)
    assert any(f.verdict == "EXCESS" for f in judged(Float("numpy", "float32"), "float32", scene, FORMS[0]))


# In floats, end to end


@functools.cache
def instances():
    """20 models with weights that are bfloat16 numbers, so that every dtype has the same; their
    texts, and the truth to 50 digits.
    """
    config = Config(2, 6, heads=2, groups=1, d=4, m=3, hidden=8, vocabulary=11, rope=Rotary(width=4))
    scenes = [Scene(config, 8 + seed % 5, 4, (), True, None, seed).build(Rounded("bfloat16")) for seed in range(20)]
    return [
        (*scene, ri.floats(in_numbers(scene[0], MP(50))(join(*scene[1:]))[length(scene[1]) :, :])) for scene in scenes
    ]


@pytest.mark.parametrize("name", ["float64", "float32", "torch bfloat16"])
def test_conversion_is_as_good_as_prompting(name):
    """RMS error of the converted model ≤ 2 × that of the prompted one, over all instances."""
    if name.startswith("torch"):
        pytest.importorskip("torch")
    errors = {"prompted": [], "converted": []}
    for model, prompt, text, truth in instances():
        model = in_numbers(model, ri.system(name))
        for side, got in (("prompted", prompted(model, prompt, text)), ("converted", convert(model, prompt)(text))):
            errors[side].append(ri.floats(got) - truth)
    rms = {side: math.sqrt(np.mean(np.square(e))) for side, e in errors.items()}
    assert 0 < rms["converted"] <= 2 * rms["prompted"], rms


@pytest.mark.parametrize("name", ["gelu, RoPE after", "parallel, gated"])
def test_the_residual_falls_with_the_digits(name):
    """And stays below the running error, carried over to the precision."""
    scene = Scene(replace(FLOATS[name], layers=1), 6, 5, (2,), False, None, 0)
    residuals, bounds = [], []
    for digits in (15, 30, 60):
        system, analysis = MP(digits), RunningError()
        model, prompt, text = scene.build(system)
        left, right = prompted(model, prompt, text), convert(model, prompt)(text)
        residuals.append(
            max(
                abs(a - b)
                for a, b in zip(fractions(left, "test").ravel(), fractions(right, "test").ravel(), strict=True)
            )
        )
        model, prompt, text = in_numbers(model, analysis), analysis.convert(prompt), analysis.convert(text)
        error = analysis.error(prompted(model, prompt, text)) + analysis.error(convert(model, prompt)(text))
        bounds.append(Fraction(error.max()) * Fraction(2) ** (53 - system.ctx.prec))
        size = max(abs(a) for a in fractions(left, "test").ravel())
        assert residuals[-1] <= bounds[-1] < size
    assert residuals[0] > 10**10 * residuals[1] > 10**20 * residuals[2] > 0


# Where nothing rounds


NARROW = {
    "float16": lambda: Float("numpy", "float16"),
    "float32": lambda: Float("numpy", "float32"),
    "float64": Float,
    "rounded bfloat16": lambda: Rounded("bfloat16"),
    "torch bfloat16": lambda: bfloat16("torch"),
}


@pytest.mark.parametrize("kind", NARROW)
@settings(max_examples=20)
@given(data=st.data())
def test_exact_probes_convert_exactly(kind, data):
    system = NARROW[kind]()
    n, r, m = (data.draw(st.integers(*ends)) for ends in ((1, 9), (1, 5), (1, 3)))
    M, layout, normalise = (
        data.draw(st.integers(0, n)),
        data.draw(st.sampled_from([None, "half", "interleaved"])),
        data.draw(st.booleans()),
    )
    mask = data.draw(st.sampled_from(["causal", "full"]))
    probe = ri.exact_probe(
        system,
        n=n,
        r=r,
        m=m,
        seed=data.draw(st.integers(0, 99)),
        mask=M if mask == "full" else mask,
        normalise=normalise,
        layout=layout,
    )
    model, x, want = probing(system, probe)
    got = convert(model, system.convert(x[:M]), mask=mask)(system.convert(x[M:]), form=data.draw(some_form))
    assert got.dtype == probe.q.dtype
    assert np.array_equal(ri.floats(got), want[M:])


# Memory


def test_memory_does_not_grow_with_the_prompt():
    config = Config(1, 16, heads=2, d=8, m=8, hidden=8, vocabulary=50)
    model = random_model(Float("numpy", "float32"), config, seed=0)

    def stream(M):
        return (np.random.default_rng(i).integers(0, 50, 256) for i in range(M // 256))

    convert(model, stream(512))
    short, long = (peak_memory(lambda M=M: convert(model, stream(M))) for M in (4096, 16384))
    assert long <= 1.2 * short

    def growth(**options):
        """Bytes for each further token of a prompt that is there from the start."""
        short, long = (
            peak_memory(lambda M=M: convert(model, np.concatenate(list(stream(M))), **options)) for M in (4096, 8192)
        )
        return (long - short) / 4096

    # of each id: itself, as an object, as a machine integer, and whether it is in range
    assert growth(chunk=256) <= 40 and growth() <= 40


# Refusals


def test_refusals():
    plain = Config(2, 2, d=2, m=1, phi="identity", norm="none", vocabulary=5)
    model = random_model(QQ, plain, seed=0)
    with says(ri.NotDefined, "convert: absolute positions cannot start again after a prompt; pass restart=False"):
        convert(random_model(QQ, replace(plain, table=9), seed=0), [1, 2])
    before = replace(plain, phi="elu+1", rope=Rotary(width=2, placement="before"))
    with says(
        ri.NotDefined,
        "shift: RoPE before the kernel allows a shift only for φ = identity, not for elu_plus_one; let positions go on",
    ):
        convert(random_model(Float(), before, seed=0), [1, 2])
    for options in ({"chunk": 2}, {}):
        with says(
            ri.NotDefined, "convert: `chunk` reads a prompt in pieces, and `mask` must be 'causal' for that, got 'full'"
        ):
            convert(model, [1, 2] if options else iter([[1], [2]]), mask="full", **options)
    with says(ValueError, "convert: `mask` must be one of causal, full, got 'prefix'"):
        convert(model, [1], mask="prefix")
    with says(ValueError, "convert: `chunk` must be an integer ≥ 1, got 0"):
        convert(model, [1], chunk=0)
    for refused in (convert, unconvert):
        with says(TypeError, f"{refused.__name__}: `strength` must be an integer, a Fraction or an array, got None"):
            refused(model, [1], strength=None)
        with says(TypeError, f"{refused.__name__}: `model` must be a Model, got Config"):
            refused(plain, [1])
    with says(TypeError, "0.5 is a float; ℚ takes Fraction(1, 2)"):
        convert(model, [1], strength=0.5)
    with says(ValueError, "convert: `strength` must be finite, got nan"):
        convert(random_model(Float(), plain, seed=0), [1], strength=math.nan)
    with says(ValueError, "convert: `prompt` must hold ids from 0 to 4, got 5 at token 1"):
        convert(model, [1, 5])
    with says(ValueError, "convert: `prompt` must have shape (..., tokens, 2), got (3, 4)"):
        convert(model, QQ.ones((3, 4)))


def test_only_the_last_prompt_comes_out():
    model = random_model(QQ, Config(1, 2, d=2, m=1, phi="identity", norm="none", vocabulary=5), seed=0)
    with says(ValueError, "unconvert: `prompt` must be one that was converted, got a model that carries none"):
        unconvert(model, [1, 2])
    stacked = convert(convert(model, [1, 2]), [3])
    with says(ValueError, "unconvert: `prompt` must be the last one converted, of 1 tokens, got 2 tokens"):
        unconvert(stacked, [1, 2])
    with says(ValueError, "unconvert: `prompt` must hold ids from 0 to 4, got 7 at token 0"):
        unconvert(stacked, [7])


def test_biases_that_are_not_turned_do_not_drift():
    """Each restart turns older biases by rounded cos and sin, which do not keep norms."""
    config = Config(1, 8, heads=2, d=8, m=4, norm="none", vocabulary=9, rope=Rotary(width=8))
    model = random_model(Float("numpy", "float32"), config, 0)
    wide = replace(random_model(Float(), config, 0), weights={k: np.float64(x) for k, x in model.weights.items()})

    def error(restart):
        a, b = model, wide
        for token in np.random.default_rng(0).integers(0, 9, 200):
            a, b = (convert(m, [token], restart=restart) for m in (a, b))
        x, y = a.biases[0].b_KV, b.biases[0].b_KV
        return abs(x - y).max() / abs(y).max()

    kept, turned = error(restart=False), error(restart=True)
    assert 0 < 4 * kept < turned < 1e-5 and kept < 1e-6


def test_memories_are_joined_if_both_use_one_draw() -> None:
    y, v = np.random.default_rng(0).standard_normal((2, 5, 2))
    same, again, other = (ri.random_features("positive", 4, 2, seed=seed, system=Float()) for seed in (0, 0, 1))
    first = write(same, y, v)
    assert add_memory((), first, y, v, 1) == (first,)
    assert len(add_memory((first,), write(again, y, v), y, v, 1)) == 1
    apart = add_memory((first,), write(other, y, v), y, v, 1)
    assert len(apart) == 2 and apart[0] is first
