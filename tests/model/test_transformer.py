"""The transformer equals one in plain Python: exactly in ℚ, within a derived bound in floats."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refimpl as ri
from refimpl import GF, MP, QQ, Config, Float, Model, Rotary, RunningError, State, random_model, transformer
from refimpl.systems import fractions
from tests.helpers.assertions import says
from tests.helpers.model_strategies import Scene, are_ids, in_numbers, in_plain_python, join, one_by_one, scenes

FORMS = [ri.linear_attention, ri.linear_attention_quadratic, ri.linear_attention_recurrent, ri.linear_attention_chunked]


@settings(max_examples=40)
@given(scene=scenes(QQ), mask=st.sampled_from(["causal", "full", "prefix"]), form=st.sampled_from(FORMS))
def test_transformer_equals_plain_python(scene, mask, form):
    mask = scene.M if mask == "prefix" else mask
    model, prompt, text, got = scene.draw(QQ, lambda model, *texts: model(join(*texts), form=form, mask=mask))
    assert one_by_one(got) == in_plain_python(model, join(prompt, text), mask=mask)


REAL = {
    "pre, layer norm, gelu": Config(1, 5, heads=2, d=4, m=3, hidden=6, rope=Rotary(width=4)),
    "post, rms norm, silu": Config(
        2,
        4,
        heads=4,
        groups=2,
        d=2,
        m=1,
        order="post",
        norm="rms",
        hidden=5,
        activation="silu",
        biased=True,
        vocabulary=7,
    ),
    "parallel, gated": Config(
        1,
        6,
        heads=2,
        groups=1,
        d=3,
        m=2,
        order="parallel",
        hidden=4,
        activation="silu",
        gated=True,
        rope=Rotary(2, "half", "before"),
    ),
    "gelu, gated, table": Config(
        1, 3, d=2, m=2, norm="rms", hidden=3, gated=True, biased=True, table=9, vocabulary=5, tied=False
    ),
    "unnormalised": Config(
        1, 4, heads=2, d=2, m=2, phi="exp", normalise=False, norm="layer", rope=Rotary(width=2, base=100)
    ),
}


def real_phi(ctx, name):
    one = {"elu+1": lambda a: a + 1 if a > 0 else ctx.exp(a), "exp": ctx.exp}[name]
    return lambda x: [one(a) for a in x]


def truth(model, texts, digits=60):
    """What the oracle finds with this many digits."""
    system, rotary = MP(digits), model.config.rope
    ctx = system.ctx
    theta = (
        [ctx.mpf(rotary.base) ** (ctx.mpf(-2 * i) / rotary.width) for i in range(rotary.width // 2)] if rotary else []
    )
    model = in_numbers(model, system)
    texts = texts if are_ids(texts) else system.convert(texts)
    options = {
        "phi": (real_phi(ctx, model.config.phi),) * 2,
        "points": [(ctx.cos(t), ctx.sin(t)) for t in theta],
        "real": ctx,
    }
    return system.wrap((np.array(in_plain_python(model, texts, **options), dtype=object),))


@pytest.mark.parametrize("system", [Float(), Float("numpy", "float32"), MP(15), MP(40)], ids=str)
@pytest.mark.parametrize("config", REAL.values(), ids=REAL)
def test_real_parts_within_bound_of_plain_python(config, system):
    """Norms, activations, elu+1, exp and angles: every float within the error that a run with
    errors finds, none of them vacuous.
    """
    scene = Scene(config, 0, 5, (2,), bool(config.vocabulary), None, seed=1)
    model, _, text = scene.build(system)
    mp = isinstance(system, type(MP(15)))
    analysis = RunningError("float64" if mp else system.kind)
    bounded = in_numbers(model, analysis)(text if scene.tokens else analysis.convert(text))
    finer = 2.0 ** (53 - system.ctx.prec) if mp else 1.0
    for form in FORMS:
        found = ri.judge(model(text, form=form), truth(model, text), analysis.error(bounded) * finer)
        assert found.verdict == "WITHIN BOUND" and not found.vacuous, found


def test_a_model_by_hand():
    """One layer, one head of width 1, two tokens 1 and 2; everything else is the identity."""
    one = QQ.convert([[1]])
    weights = {f"layers.0.W_{name}": one for name in "QKVO"} | {"embedding": QQ.convert([[0], [1], [2]])}
    model = Model(Config(1, 1, phi="identity", norm="none", vocabulary=3), weights)
    # attention of [1, 2]: 1·1·1/(1·1) = 1, then 2 (1·1 + 2·2)/(2 (1 + 2)) = 5/3; logits (1 + 1)·[0,
    # 1, 2], (2 + 5/3)·[0, 1, 2]
    assert model([1, 2]).tolist() == [[0, 2, 4], [0, Fraction(11, 3), Fraction(22, 3)]]
    assert model([1, 2], mask="full").tolist()[0] == [0, Fraction(8, 3), Fraction(16, 3)]
    _, (state,) = transformer(model, [1, 2])
    assert (state.S.tolist(), state.z.tolist(), state.position) == ([[[5]]], [[3]], 2)
    # a bias of S = 1, z = 1: (1·1 + 1·1)/(1·(1 + 1)) = 1
    assert replace(model, biases=(State(QQ.ones((1, 1, 1)), QQ.ones((1, 1)), 0),))([1]).tolist() == [[0, 2, 4]]


@settings(max_examples=15)
@given(scene=scenes(GF(10007)), data=st.data())
def test_forms_give_one_output_and_one_state(scene, data):
    system = GF(10007)
    model, prompt, text, _ = scene.draw(system)
    text = join(prompt, text)
    want, states = transformer(model, text, form=ri.linear_attention)
    got, others = transformer(model, text, form=data.draw(st.sampled_from(FORMS[1:])))
    assert system.equal(got, want) and len(states) == scene.config.layers
    for a, b in zip(states, others, strict=True):
        assert (
            system.equal(a.S, b.S)
            and system.equal(a.z, b.z)
            and a.position == b.position == model.position + scene.M + scene.n
        )


@settings(max_examples=15)
@given(scene=scenes(QQ))
def test_tokens_are_rows_of_the_embedding(scene):
    scene = replace(scene, config=replace(scene.config, vocabulary=4), tokens=True)
    model, prompt, text, want = scene.draw(QQ)
    ids = join(prompt, text)
    rows = QQ.reshape(QQ.take(model.weights["embedding"], ids.reshape(-1), axis=0), (*ids.shape, scene.config.width))
    assert QQ.equal(model(rows)[..., scene.M :, :], want) and QQ.equal(model(ids.tolist())[..., scene.M :, :], want)


def test_every_layer_has_its_own_weights():
    model = random_model(QQ, Config(12, 1, phi="identity", norm="none"), seed=0)
    for i in range(12):
        assert model.layer_weights(i)["W_Q"] is model.weights[f"layers.{i}.W_Q"]


def test_between_sees_and_replaces():
    system = GF(10007)
    model = random_model(system, Config(3, 2, d=2, m=1, phi="identity", norm="none"), seed=3)
    x, fresh, seen = system.random((4, 2), 1), [system.random((4, 2), 10 + i) for i in range(3)], []

    def swap(i, x):
        seen.append((i, x))
        return fresh[i]

    assert system.equal(model(x, between=swap), fresh[2])
    assert [i for i, _ in seen] == [0, 1, 2]
    for i, got in seen:
        alone = Model(
            replace(model.config, layers=1), {f"layers.0.{name}": w for name, w in model.layer_weights(i).items()}
        )
        assert system.equal(got, alone(x if i == 0 else fresh[i - 1]))


def test_random_models():
    config = Config(
        2,
        9,
        heads=2,
        d=4,
        m=3,
        hidden=5,
        biased=True,
        vocabulary=7,
        tied=False,
        table=4,
        rope=Rotary(width=4, base=None),
    )
    model, again, other = (random_model(Float(), config, seed) for seed in (0, 0, 100))
    assert {name: x.shape for name, x in model.weights.items()} == config.shapes and len(config.shapes) == 39
    for name, x in model.weights.items():
        assert np.array_equal(x, again.weights[name]) and not np.array_equal(x, other.weights[name])
        centre, most = (1, 1 / 4) if "gain" in name else (0, 1 / int(x.shape[0] ** 0.5)) if ".W_" in name else (0, 1)
        assert np.all(np.abs(x - centre) <= most) and np.max(np.abs(x - centre)) > most / 4
    c, s = (random_model(QQ, config, 0).weights[f"rope.{part}"] for part in "cs")
    assert QQ.equal(c * c + s * s, QQ.ones((2,)))


@pytest.mark.parametrize(
    ("order", "norms"),
    [
        ("pre", ["layers.0.gain_1", "layers.0.gain_2", "gain"]),
        ("post", ["layers.0.gain_1", "layers.0.gain_2"]),
        ("parallel", ["layers.0.gain_1", "gain"]),
    ],
)
def test_which_norms_there_are(order, norms):
    assert [name for name in Config(1, 2, hidden=3, order=order).shapes if "gain" in name] == norms
    assert [name for name in Config(1, 2, hidden=3, order=order, norm="rms").shapes if "offset" in name] == []


FLAT = Config(1, 2, heads=2, d=2, m=1, phi="identity", norm="none", vocabulary=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 0}, "Config: `layers` must be an integer ≥ 1, got 0"),
        ({"width": 0}, "Config: `width` must be an integer ≥ 1, got 0"),
        ({"groups": 3}, "Config: `groups` must divide heads = 2, got 3"),
        ({"order": "prae"}, "Config: did you mean 'pre'? `order` must be one of parallel, post, pre, got 'prae'"),
        (
            {"norm": "batch"},
            "Config: `norm` must be one of layer, layer_rational, none, rms, rms_rational, got 'batch'",
        ),
        ({"activation": "tanh"}, "Config: `activation` must be one of gelu, quadratic, relu, silu, got 'tanh'"),
        (
            {"phi": "sofmax"},
            "Config: did you mean 'softmax'? `phi` must be one of dpfp(1), dpfp(2), elu+1, exp, identity, "
            "polynomial(1), polynomial(2), relu, relu2, softmax, taylor2, got 'sofmax'",
        ),
        ({"epsilon": -Fraction(1)}, "Config: `epsilon` must be a Fraction ≥ 0, got Fraction(-1, 1)"),
        ({"epsilon": 1e-5}, "Config: `epsilon` must be a Fraction ≥ 0, got 1e-05"),
    ],
)
def test_bad_configurations(options, message):
    with says(ValueError, message):
        replace(FLAT, **options)


def test_bad_rotaries():
    with says(ValueError, "Rotary: `width` must be even, to pair features, got 3"):
        Rotary(width=3)
    with says(ValueError, "Rotary: `base` must be an integer ≥ 1, got 0"):
        Rotary(2, base=0)
    with says(ValueError, "Rotary: did you mean 'half'? `layout` must be one of half, interleaved, got 'halves'"):
        Rotary(2, "halves")
    with says(TypeError, "Config: `rope` must be a Rotary, got str"):
        replace(FLAT, rope="half")


def test_bad_models():
    good = random_model(QQ, FLAT, seed=0)
    w = dict(good.weights)
    states = (State(QQ.ones((2, 2, 1)), QQ.ones((2, 2))),)
    with says(ValueError, "Model: `weights` must be one of embedding, layers.0.W_K, "):
        Model(FLAT, w | {"head": QQ.ones((1, 1))})
    with says(ValueError, "Model: `weights` must have 'embedding' of shape (3, 2), got no such name"):
        Model(FLAT, {name: x for name, x in w.items() if name != "embedding"})
    with says(ValueError, "Model: `layers.0.W_O` must have shape (2, 2), got (2, 3)"):
        Model(FLAT, w | {"layers.0.W_O": QQ.ones((2, 3))})
    with says(TypeError, "Model: `embedding` has number system GF(7), `layers.0.W_Q` has ℚ"):
        Model(FLAT, w | {"embedding": GF(7).ones((3, 2))})
    with says(ValueError, "Model: `embedding` must be finite, got nan or inf at row 1, column 0"):
        Model(
            FLAT,
            {name: Float().convert(x) for name, x in w.items()}
            | {"embedding": np.array([[0, 0], [np.nan, 0], [0, 0]])},
        )
    with says(ValueError, "Model: `biases` must be 1 states read from one position, got [0, 0]"):
        replace(good, biases=states * 2)
    with says(ValueError, "Model: `biases` must be 2 states read from one position, got [0, 1]"):
        replace(random_model(QQ, replace(FLAT, layers=2), 0), biases=(*states, replace(states[0], position=1)))
    with says(ValueError, "Model: `biases[0].S` must have shape (..., 2, features, 1), got (1, 2, 1)"):
        replace(good, biases=(State(QQ.ones((1, 2, 1)), QQ.ones((1, 2))),))
    with says(ValueError, "Model: `biases[0]` has b_KV but no b_D; a normalised layer needs both"):
        replace(good, biases=(replace(states[0], z=None),))
    assert replace(good, config=replace(FLAT, normalise=False), biases=(replace(states[0], z=None),))([0]).shape == (
        1,
        3,
    )


def test_bad_texts():
    model = random_model(QQ, FLAT, seed=0)
    with says(ValueError, "transformer: `text` must hold ids from 0 to 2, got 3 at token 1"):
        model([0, 3])
    with says(TypeError, "transformer: `text` must be token ids (..., tokens) or an array of vectors, got [0.5]"):
        model([0.5])
    with says(ValueError, "transformer: `text` must have shape (..., tokens, 2), got (4, 3)"):
        model(QQ.ones((4, 3)))
    with says(TypeError, "transformer: `text` has number system GF(7), `weights` has ℚ"):
        model(GF(7).ones((4, 2)))
    with says(TypeError, "transformer: `model` must be a Model, got Config"):
        transformer(FLAT, [0])
    absolute = random_model(QQ, replace(FLAT, table=3), seed=0)
    assert absolute([0, 1, 2]).shape == (3, 3)
    with says(
        ValueError,
        "transformer: `text` must fit the table of 3 absolute positions, got 4 tokens read from position 0 on",
    ):
        absolute([0, 1, 2, 0])
    late = replace(absolute, biases=(State(QQ.ones((2, 2, 1)), QQ.ones((2, 2)), 2),))
    with says(ValueError, "got 2 tokens read from position 2 on"):
        late([0, 1])


def test_errors_name_the_layer():
    model = random_model(Float(), replace(FLAT, layers=2), seed=0)
    with says(
        ri.ZeroDenominator, "layer 1: linear_attention_chunked: the denominator φ(q)·z is zero at token 0, head (0, 0)"
    ):
        model([0, 1], between=lambda i, x: x * 0)
    with (
        np.errstate(all="ignore"),
        says(
            ri.NotFinite, "layer 1: linear_attention_chunked: the output overflows numpy float64: nan or inf at token 0"
        ),
    ):
        replace(model, config=replace(model.config, normalise=False))([0, 1], between=lambda i, x: x + 1e150)
    with says(ri.NotDefined, "exp is not defined in ℚ; layer norm needs a real system"):
        random_model(QQ, replace(FLAT, norm="layer"), seed=0)([0])
    with says(ri.NotDefined, "maximum is not defined in GF(7); relu needs an ordered system"):
        random_model(GF(7), replace(FLAT, normalise=False, hidden=2, activation="relu"), seed=0)([0])
    assert fractions(model([0, 1]), "test").shape == (2, 3)
