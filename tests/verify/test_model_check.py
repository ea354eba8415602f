"""A model against another program: agreement is seen, and every planted mistake is found in its
layer and named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refimpl import (
    GF,
    MP,
    QQ,
    Config,
    Float,
    Model,
    NotDefined,
    Rotary,
    Rwkv,
    compare,
    convert,
    model_from_weights,
    random_model,
    transformer,
)
from refimpl.model.transformer import Pass, check_text, embed, final_norm
from tests.helpers.assertions import says

BEFORE = Rotary(4, placement="before")
SQUARE = Config(layers=2, width=12, heads=3, d=4, m=4, hidden=12, vocabulary=12, phi="softmax", biased=True, table=30)
LLAMA = Config(
    layers=2,
    width=12,
    heads=3,
    d=4,
    m=4,
    phi="softmax",
    norm="rms",
    hidden=12,
    gated=True,
    activation="silu",
    vocabulary=7,
    tied=False,
    rope=BEFORE,
)
LINEAR = Config(layers=2, width=8, heads=2, d=4, m=4, hidden=8, vocabulary=7, rope=Rotary(4))


def program(
    model: Model, dtype: Any = np.float64, attention: bool = False, mask: str = "causal"
) -> Callable[[Any], Any]:
    """Another program: the same formulas in a dtype, with its states as a dict."""
    weights = {name: w.astype(dtype) if isinstance(w, np.ndarray) else w for name, w in model.weights.items()}
    model, c = Model(model.config, weights), model.config

    def forward(tokens: Any) -> dict[str, Any]:
        x = embed(model, check_text(model, tokens, "program", "tokens"))
        stages = {"embedding": x}
        for i in range(c.layers):
            y, _ = c.attention_step(model, i, model.layer_weights(i), x, None, Pass(mask=mask))
            if attention:
                stages[f"layer {i} attention"] = y
            x = c.mlp_step(model.layer_weights(i), y, x)
            stages[f"layer {i}"] = x
        stages["logits"] = transformer(model, tokens, mask=mask)[0]
        return stages

    return forward


def changed(model: Model, **weights: Callable[[Any], Any]) -> Model:
    """The model with some weights of layer 1 changed."""
    own = {f"layers.1.{name}": change(model.weights[f"layers.1.{name}"]) for name, change in weights.items()}
    return Model(model.config, dict(model.weights) | own)


def swapped(model: Model, *pairs: tuple[str, str]) -> Model:
    w = dict(model.weights)
    for a, b in pairs:
        a, b = f"layers.1.{a}", f"layers.1.{b}"
        w[a], w[b] = w[b], w[a]
    return Model(model.config, w)


# what agrees


@pytest.mark.parametrize(
    "config", [SQUARE, LLAMA, LINEAR, replace(LINEAR, order="parallel"), replace(LINEAR, order="post")]
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_same_formulas_agree_in_every_stage(config, dtype):
    model = random_model(Float(), config, 0)
    found = compare(model, program(model, dtype, attention=True))
    assert found.verdict == "AGREES" and found.first is None
    assert [s.stage for s in found.stages] == [
        "embedding",
        "layer 0 attention",
        "layer 0",
        "layer 1 attention",
        "layer 1",
        "logits",
    ]
    if dtype == np.float64:  # nothing but a smaller ε can hide in float64
        assert not [words for words in found.unseen if "epsilon" not in words]


@given(
    st.integers(1, 2).flatmap(
        lambda groups: st.builds(
            Config,
            layers=st.integers(1, 2),
            width=st.integers(2, 6),
            heads=st.integers(1, 2).map(lambda k: k * groups),
            groups=st.just(groups),
            d=st.integers(1, 5),
            m=st.integers(1, 5),
            phi=st.sampled_from(["softmax", "elu+1", "relu"]),
            norm=st.sampled_from(["layer", "rms"]),
            hidden=st.integers(0, 5),
            biased=st.booleans(),
            vocabulary=st.integers(2, 6),
            tied=st.booleans(),
        )
    ),
    st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_models_of_any_shape_agree_with_themselves_and_show_a_changed_value(config, seed):
    model = random_model(Float(), config, seed)
    weights = {name: abs(w) if name.endswith(("W_K", "W_Q")) else w for name, w in model.weights.items()}
    model = Model(config, weights)
    try:
        forward = program(model)
        forward(np.arange(2) % config.vocabulary)
        found = compare(model, forward, unseen=False)
    except ZeroDivisionError:  # relu may see no key at all
        return
    assert found.verdict != "DIFFERS"
    wrong = Model(config, weights | {"layers.0.W_V": weights["layers.0.W_V"] + 1})
    found = compare(model, program(wrong), unseen=False)
    assert found.verdict == "UNDECIDED" or found.first.stage == "layer 0"


def test_an_exact_model_is_compared_by_equality():
    config = Config(layers=2, width=3, heads=1, d=3, m=3, phi="identity", norm="none", vocabulary=5)
    for system in (QQ, GF(2**31 - 1)):
        model = random_model(system, config, 0)
        found = compare(model, program(model))
        assert found.verdict == "AGREES" and {s.verdict for s in found.stages} == {"EXACT"}
        wrong = changed(model, W_Q=system.matrix_transpose)
        found = compare(model, program(wrong))
        assert found.first.stage == "layer 1" and found.likely == ("W_Q transposed",)
        assert "off by" in str(found.first)


def test_a_text_of_one_token_does_not_show_what_queries_do():
    model = random_model(Float(), LLAMA, 0)
    found = compare(model, program(model), [3])
    assert found.verdict == "AGREES"
    assert {"W_Q transposed", "W_Q and W_K swapped", "no RoPE", "RoPE's layout 'interleaved'"} <= set(found.unseen)
    assert "This text does not tell from the model as it is:" in str(found)
    wrong = changed(model, W_Q=np.transpose)
    assert compare(model, program(wrong), [3]).verdict == "AGREES"
    assert compare(model, program(wrong), [3, 1]).likely[0] == "W_Q transposed"


def test_logits_alone_in_float32_are_undecided_and_in_float64_are_not():
    model = random_model(Float(), SQUARE, 0)
    found = compare(model, lambda tokens: program(model, np.float32)(tokens)["logits"], unseen=False)
    assert found.verdict == "UNDECIDED" and "compute in float64" in " ".join(found.conclusion())
    wrong = changed(model, W_O=np.transpose)
    found = compare(model, lambda tokens: program(wrong)(tokens)["logits"])
    assert found.first.stage == "logits" and found.likely == ("W_O transposed in layer 1",)


# planted mistakes: where, and the words that name them


MATRICES = ("W_Q", "W_K", "W_V", "W_O", "W_up", "W_down")


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("attention", [True, False])
def test_a_square_matrix_that_is_not_transposed_is_found_out(name, dtype, attention):
    model = random_model(Float(), SQUARE, 0)
    found = compare(model, program(changed(model, **{name: np.transpose}), dtype, attention))
    where = "layer 1 attention" if attention and name in MATRICES[:4] else "layer 1"
    assert found.first.stage == where and found.likely[0] == f"{name} transposed"
    assert all(s.verdict in ("EXACT", "WITHIN BOUND") for s in found.stages if s.stage != where)


ALL = dict.fromkeys(("W_Q", "W_K", "W_V", "W_O"), np.transpose)


def by_head(model: Model, kinds: str = "Wb") -> Model:
    w = model.layer_weights(1)
    found = {}
    for kind in kinds:
        names = [f"{kind}_{x}" for x in "QKV"]
        x = np.concatenate([w[name] for name in names], axis=-1)
        x = x.reshape(*x.shape[:-1], 2, 3, 6)
        found |= {f"layers.1.{name}": x[..., j, :].reshape(w[name].shape) for j, name in enumerate(names)}
    return Model(model.config, dict(model.weights) | found)


def config_of(**changes: Any) -> Callable[[Model], Model]:
    def change(model: Model) -> Model:
        config = replace(model.config, **changes)
        return Model(config, {name: w for name, w in model.weights.items() if name in config.shapes})

    return change


MISTAKES: dict[str, tuple[Config, Callable[[Model], Model], str]] = {
    "W_Q, W_K, W_V and W_O transposed": (SQUARE, lambda m: changed(m, **ALL), "layer 1"),
    "W_Q and W_K swapped": (SQUARE, lambda m: swapped(m, ("W_Q", "W_K"), ("b_Q", "b_K")), "layer 1"),
    "W_K and W_V swapped, but not their biases": (SQUARE, lambda m: swapped(m, ("W_K", "W_V")), "layer 1"),
    "W_gate and W_up swapped": (LLAMA, lambda m: swapped(m, ("W_gate", "W_up")), "layer 1"),
    "fused weights head by head": (replace(SQUARE, heads=2, d=6, m=6), by_head, "layer 1"),
    "RoPE's layout 'interleaved'": (LLAMA, config_of(rope=replace(BEFORE, layout="interleaved")), "layer 0"),
    "RoPE's base 500000": (LLAMA, config_of(rope=replace(BEFORE, base=500000)), "layer 0"),
    "RoPE's placement 'before'": (LINEAR, config_of(rope=BEFORE), "layer 0"),
    "no RoPE": (LLAMA, config_of(rope=None), "layer 0"),
    "epsilon 1e-06 in the norm": (LLAMA, config_of(epsilon=Fraction(1, 10**6)), "layer 0"),
    "norm 'rms'": (LINEAR, config_of(norm="rms"), "layer 0"),
    "no norm": (LINEAR, config_of(norm="none"), "layer 0"),
    "order 'parallel'": (LINEAR, config_of(order="parallel"), "layer 0"),
    "order 'post'": (LINEAR, config_of(order="post"), "layer 0"),
    "the two norms swapped": (LLAMA, lambda m: swapped(m, ("gain_1", "gain_2")), "layer 1"),
    "activation 'relu'": (LLAMA, config_of(activation="relu"), "layer 0"),
    "normalise=False": (LINEAR, config_of(normalise=False), "layer 0"),
    "phi='softmax'": (replace(LINEAR, rope=BEFORE), config_of(phi="softmax"), "layer 0"),
    "a scale 1/√d of the scores missing": (
        SQUARE,
        lambda m: changed(m, W_Q=lambda w: 2 * w, b_Q=lambda w: 2 * w),
        "layer 1",
    ),
    "a scale 1/√d of the scores once more": (LINEAR, lambda m: changed(m, W_Q=lambda w: w / 2), "layer 1"),
    "no b_O": (SQUARE, lambda m: changed(m, b_O=lambda b: 0 * b), "layer 1"),
    "no b_up": (SQUARE, lambda m: changed(m, b_up=lambda b: 0 * b), "layer 1"),
    "a head tied to the embedding": (
        LLAMA,
        lambda m: Model(m.config, dict(m.weights) | {"unembedding": m.weights["embedding"].T}),
        "logits",
    ),
    "unembedding transposed before the logits": (
        replace(SQUARE, tied=False),
        lambda m: Model(m.config, dict(m.weights) | {"unembedding": m.weights["unembedding"].T}),
        "logits",
    ),
    "no table of positions": (
        SQUARE,
        lambda m: Model(m.config, dict(m.weights) | {"positions": 0 * m.weights["positions"]}),
        "embedding",
    ),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_planted_mistake_is_found_and_named(words):
    config, plant, where = MISTAKES[words]
    model = random_model(Float(), config, 1)
    found = compare(model, program(plant(model)))
    assert found.verdict == "DIFFERS" and found.first.stage == where
    assert words in found.likely
    assert found.likely == (words,)


def test_the_nearest_change_is_named_first_and_float64_tells_more_apart():
    model = random_model(Float(), replace(LLAMA, epsilon=Fraction(1, 2)), 0)
    theirs = config_of(epsilon=Fraction(1, 10**5))(model)
    found = compare(model, program(theirs, np.float32))
    assert found.likely[0] == "epsilon 1e-05 in the norm" and "epsilon 1e-06 in the norm" in found.likely[1:]
    assert "Within the bound too, and no nearer: " in str(found) and "In float64 the bounds are far smaller" in str(
        found
    )
    assert compare(model, program(theirs)).likely == ("epsilon 1e-05 in the norm",)


def test_no_causal_mask():
    model = random_model(Float(), LLAMA, 0)
    found = compare(model, program(model, mask="full"))
    assert found.first.stage == "layer 0" and found.likely == ("no causal mask",)


def test_groups_in_the_other_order():
    config = replace(LLAMA, heads=4, groups=2)
    model = random_model(Float(), config, 0)
    order = [0, 2, 1, 3]
    columns = np.concatenate([np.arange(4 * h, 4 * h + 4) for h in order])
    wrong = changed(model, W_Q=lambda w: w[:, columns], W_O=lambda w: w[columns, :])
    assert compare(model, program(wrong)).likely == ("head h reads keys h mod groups, not h // (heads/groups)",)


def test_an_embedding_that_is_scaled():
    model = random_model(Float(), LLAMA, 0)
    scaled = Model(LLAMA, dict(model.weights) | {"embedding": model.weights["embedding"] * np.sqrt(12)})
    found = compare(model, program(scaled))
    assert found.first.stage == "embedding" and found.likely == ("embedding times the root of the width",)


def test_a_mistake_that_is_none_of_ours_is_found_and_not_named():
    model = random_model(Float(), SQUARE, 0)
    found = compare(model, program(changed(model, W_up=lambda w: w + 0.01)))
    assert found.first.stage == "layer 1" and found.likely == ()
    assert "No change of our model that was tried" in str(found)


def test_numbers_that_are_not_finite_differ():
    model = random_model(Float(), LINEAR, 0)

    def forward(tokens):
        stages = program(model)(tokens)
        stages["layer 0"] = np.full_like(stages["layer 0"], np.nan)
        return stages

    found = compare(model, forward)
    assert found.first.stage == "layer 0" and [s.verdict for s in found.stages if s.stage == "layer 1"] != ["EXCESS"]
    assert found.report()["stages"][1]["error"] is None


def test_the_last_state_after_the_last_norm_is_recognised():
    model = random_model(Float(), LLAMA, 0)

    def forward(model):
        def run(tokens):
            *states, logits = program(model)(tokens).values()
            return logits, [*states[:-1], final_norm(model, states[-1])]

        return run

    found = compare(model, forward(model))
    assert found.verdict == "AGREES" and "after the last norm" in found.notes[0]
    found = compare(model, forward(changed(model, W_down=np.transpose)))
    assert found.first.stage == "norm" and found.likely == ("W_down transposed",)


def test_a_longer_text_is_cut_to_lines_of_80_columns():
    model = random_model(Float(), SQUARE, 0)
    for wrong, tokens in ((model, [3]), (changed(model, **ALL), None), (changed(model, W_V=lambda w: w + 1), None)):
        lines = str(compare(model, program(wrong, np.float32), tokens)).split("\n")
        assert len(lines) > 4 and max(map(len, lines)) <= 80


# torch and transformers


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def own_module(torch: Any, norm_first: bool = True) -> Any:
    """A transformer as people write it, with torch's own attention: 2 layers, 3 heads, width 12."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_a, self.norm_b = nn.LayerNorm(12), nn.LayerNorm(12)
            self.qkv, self.out = nn.Linear(12, 36, bias=False), nn.Linear(12, 12)
            self.up, self.down = nn.Linear(12, 12), nn.Linear(12, 12)

        def forward(self, x):
            q, k, v = (y.view(*y.shape[:-1], 3, 4).transpose(-2, -3) for y in self.qkv(self.norm_a(x)).split(12, -1))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(-2, -3).flatten(-2))
            return x + self.down(nn.functional.gelu(self.up(self.norm_b(x)), approximate="tanh"))

    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tok, self.pos = nn.Embedding(11, 12), nn.Embedding(20, 12)
            self.blocks, self.norm = nn.ModuleList([Block(), Block()]), nn.LayerNorm(12)
            self.head = nn.Linear(12, 11, bias=False)

        def forward(self, tokens):
            x = self.tok(tokens) + self.pos(torch.arange(len(tokens)))
            states = [x]
            for block in self.blocks:
                states.append(x := block(x))
            return self.head(self.norm(x)), states

    torch.manual_seed(0)
    return Mine().eval()


OWN = Config(2, 12, 3, d=4, m=4, phi="softmax", hidden=12, biased=True, vocabulary=11, tied=False, table=20)
OWN_MAPPING = {
    "tok.weight": "embedding",
    "pos.weight": "positions",
    "norm.weight": "gain",
    "norm.bias": "offset",
    "head.weight": "unembedding.T",
    "blocks.{}.norm_a.weight": "gain_1",
    "blocks.{}.norm_a.bias": "offset_1",
    "blocks.{}.norm_b.weight": "gain_2",
    "blocks.{}.norm_b.bias": "offset_2",
    "blocks.{}.qkv.weight": ["W_Q.T", "W_K.T", "W_V.T"],
    "blocks.{}.out.weight": "W_O.T",
    "blocks.{}.out.bias": "b_O",
    "blocks.{}.up.weight": "W_up.T",
    "blocks.{}.up.bias": "b_up",
    "blocks.{}.down.weight": "W_down.T",
    "blocks.{}.down.bias": "b_down",
}
NO_BIASES = ["b_Q", "b_K", "b_V"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_module_of_torch(torch, dtype):
    theirs = own_module(torch).to(getattr(torch, dtype))
    model = model_from_weights(OWN, theirs.state_dict(), OWN_MAPPING, zeros=NO_BIASES)
    found = compare(model, lambda tokens: theirs(torch.asarray(tokens)))
    assert found.verdict == "AGREES" and found.dtype == dtype
    for ours, spelling in {"W_O": "blocks.{}.out", "W_up": "blocks.{}.up", "W_down": "blocks.{}.down"}.items():
        wrong = OWN_MAPPING | {f"{spelling}.weight": ours}  # not transposed, and every shape fits
        model = model_from_weights(OWN, theirs.state_dict(), wrong, zeros=NO_BIASES)
        found = compare(model, lambda tokens: theirs(torch.asarray(tokens)))
        assert found.first.stage == "layer 0" and found.likely[0] == f"{ours} transposed"


@pytest.fixture(scope="module")
def hugging(torch):
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.set_verbosity_error()
    return transformers


def drawn(torch: Any, model: Any) -> Any:
    """Weights that are large enough for attention to be anything but uniform."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(0, 0.4).add_(1 if "norm" in name or ("ln_" in name and name.endswith("weight")) else 0)
    return model.eval()


H = "transformer.h.{}."
GPT2 = {"transformer.wte.weight": "embedding", "transformer.wpe.weight": "positions", "lm_head.weight": "embedding"}
GPT2 |= {"transformer.ln_f.weight": "gain", "transformer.ln_f.bias": "offset"}
GPT2 |= {f"{H}ln_{j}.{x}": f"{y}_{j}" for j in (1, 2) for x, y in (("weight", "gain"), ("bias", "offset"))}
FUSED: dict[str, Any] = {
    f"{H}attn.c_attn.{x}": [f"{y}_{z}" for z in "QKV"] for x, y in (("weight", "W"), ("bias", "b"))
}
for THEIRS, OURS in {"attn.c_proj": "O", "mlp.c_fc": "up", "mlp.c_proj": "down"}.items():
    GPT2 |= {f"{H}{THEIRS}.weight": f"W_{OURS}", f"{H}{THEIRS}.bias": f"b_{OURS}"}
GPT2_CONFIG = Config(2, 12, 3, d=4, m=4, phi="softmax", hidden=12, biased=True, vocabulary=11, table=20)

L = "model.layers.{}."
LLAMA_NAMES = {"model.embed_tokens.weight": "embedding", "model.norm.weight": "gain", "lm_head.weight": "unembedding.T"}
LLAMA_NAMES |= {f"{L}self_attn.{x.lower()}_proj.weight": f"W_{x}.T" for x in "QKVO"}
LLAMA_NAMES |= {f"{L}mlp.{x}_proj.weight": f"W_{x}.T" for x in ("gate", "up", "down")}
LLAMA_NAMES |= {f"{L}input_layernorm.weight": "gain_1", f"{L}post_attention_layernorm.weight": "gain_2"}
LLAMA_CONFIG = replace(LLAMA, vocabulary=11, epsilon=Fraction(1, 10**6))


def run(torch: Any, model: Any) -> Callable[[Any], Any]:
    def forward(tokens: Any) -> Any:
        with torch.no_grad():
            return model(torch.asarray(tokens)[None], output_hidden_states=True)

    return forward


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gpt2_of_transformers(torch, hugging, dtype):
    sizes = {"n_embd": 12, "n_layer": 2, "n_head": 3, "vocab_size": 11, "n_positions": 20, "n_inner": 12}
    theirs = drawn(torch, hugging.GPT2LMHeadModel(hugging.GPT2Config(bos_token_id=0, eos_token_id=0, **sizes)))
    theirs = theirs.to(getattr(torch, dtype))
    weights = theirs.state_dict()
    model = model_from_weights(GPT2_CONFIG, weights, GPT2 | FUSED)
    assert compare(model, run(torch, theirs)).verdict == "AGREES"
    wrong = {f"{x} transposed": {name: f"{x}.T"} for name, x in GPT2.items() if x.startswith("W_")}
    assert len(wrong) == 3
    wrong["W_Q and W_K swapped"] = {name: [x[1], x[0], x[2]] for name, x in FUSED.items()}
    wrong["fused weights one after another, not head by head"] = {name: {"by_head": x} for name, x in FUSED.items()}
    for words, changes in wrong.items():
        found = compare(model_from_weights(GPT2_CONFIG, weights, GPT2 | FUSED | changes), run(torch, theirs))
        assert found.first.stage == "layer 0" and words in found.likely, words


def test_llama_of_transformers(torch, hugging):
    sizes = {"vocab_size": 11, "intermediate_size": 12, "num_hidden_layers": 2, "hidden_size": 12}
    sizes |= {"num_attention_heads": 3, "head_dim": 4, "rms_norm_eps": 1e-6}
    theirs = drawn(torch, hugging.LlamaForCausalLM(hugging.LlamaConfig(**sizes)))
    weights = theirs.state_dict()
    assert compare(model_from_weights(LLAMA_CONFIG, weights, LLAMA_NAMES), run(torch, theirs)).verdict == "AGREES"
    for name, ours in LLAMA_NAMES.items():
        if ours.startswith("W_"):
            wrong = LLAMA_NAMES | {name: ours.removesuffix(".T")}
            found = compare(model_from_weights(LLAMA_CONFIG, weights, wrong), run(torch, theirs))
            assert found.first.stage == "layer 0" and found.likely[0] == f"{ours.removesuffix('.T')} transposed"
    other = replace(LLAMA_CONFIG, rope=replace(BEFORE, layout="interleaved"))
    found = compare(model_from_weights(other, weights, LLAMA_NAMES), run(torch, theirs))
    assert found.first.stage == "layer 0" and found.likely == ("RoPE's layout 'half'",)
    # in float64, transformers still computes norms and RoPE's angles in float32
    theirs = theirs.double()
    model = model_from_weights(LLAMA_CONFIG, theirs.state_dict(), LLAMA_NAMES)
    assert compare(model, run(torch, theirs)).likely[0].startswith("computed in float32 somewhere")
    assert compare(model, run(torch, theirs), dtype="float32").verdict == "AGREES"


# what is refused


MODEL = random_model(Float(), LINEAR, 0)


def returns(x: Any) -> Callable[[Any], Any]:
    return lambda tokens: x


WRONG: dict[str, Callable[[], Any]] = {
    "compare: `tokens` must be one text of a token or more, got shape (2, 1)": lambda: compare(
        MODEL, MODEL, [[1], [2]]
    ),
    "compare: `tokens` must be one text of a token or more, got shape (0,)": lambda: compare(
        MODEL, MODEL, np.zeros(0, dtype=int)
    ),
    "compare: `tokens` must hold ids from 0 to 6, got 7 at token 0": lambda: compare(MODEL, MODEL, [7]),
    "compare: `dtype` must be one of bfloat16, float16, float32, float64, got 'int8'": lambda: compare(
        MODEL, MODEL, dtype="int8"
    ),
    "my_forward: did you mean 'layer 1'? `stage` must be one of": lambda: compare(
        MODEL, returns({"layer 7": np.ones((16, 8))})
    ),
    "compare: `my_forward` must return a stage or more, got an empty dict": lambda: compare(MODEL, returns({})),
    "compare: `my_forward` must return logits, (logits, [states]) or stages by name, got others": lambda: compare(
        MODEL, returns((1, 2, 3))
    ),
    "compare: `my_forward` must return 3 states, of the embedding and of each layer, got 1": lambda: compare(
        MODEL, returns((1, [2]))
    ),
    "compare: `my_forward` must return shape (16, 7) for 'logits', got (16, 8)": lambda: compare(
        MODEL, returns(np.ones((16, 8)))
    ),
    "compare: `my_forward` must return arrays, got float for 'logits'": lambda: compare(MODEL, returns(1.0)),
    "compare: `my_forward` must return float64, float32, float16, bfloat16 for 'logits', got 'int64'": lambda: compare(
        MODEL, returns(np.ones((16, 7), dtype=int))
    ),
    "compare: `my_forward` must return numpy float64 for 'logits', as the model has, got ℚ": lambda: compare(
        MODEL, returns(QQ.ones((16, 7)))
    ),
    "compare: `my_forward` must return ℚ for 'logits', as the model has, got dtype float64": lambda: compare(
        random_model(QQ, replace(LINEAR, phi="identity", norm="none", activation="relu", rope=None), 0),
        returns(np.ones((16, 7))),
    ),
    "compare: `model` must have attention layers and no biases, got family 'rwkv'": lambda: compare(
        random_model(Float(), Rwkv("5.2", 1, 4, 2, 5, 7), 1), returns(1)
    ),
    "compare: `model` must have attention layers and no biases, got family 'attention' with biases": lambda: compare(
        convert(MODEL, [1]), returns(1)
    ),
    "compare: no error bound is known for mpmath(20 digits)": lambda: compare(
        random_model(MP(20), LINEAR, 0), lambda tokens: random_model(MP(20), LINEAR, 0)(tokens)
    ),
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_refused(words):
    with says((ValueError, TypeError, NotDefined), words):
        WRONG[words]()
