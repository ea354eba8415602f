"""Models on disk: what is saved comes back bit for bit, what was changed is refused in words, and a
file is all that the input needs.
"""

import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import refimpl as ri
from refimpl import (
    GF,
    MP,
    QQ,
    Config,
    Float,
    Model,
    NotDefined,
    Rotary,
    State,
    convert,
    digest,
    load,
    random_model,
    save,
    transformer,
)
from refimpl.files.checkpoint import FORMAT, fingerprint
from refimpl.files.safetensors import read_safetensors, write_safetensors
from refimpl.model.rwkv import Rwkv
from refimpl.prompt.compression import Compression
from refimpl.prompt.fidelity import sizes_in_bytes
from refimpl.systems.array import host
from refimpl.verify.bounds import judge
from refimpl.verify.conversion_check import check_conversion
from tests.helpers.assertions import says

SMALL = {"layers": 2, "width": 4, "heads": 2, "d": 2, "m": 3, "vocabulary": 7}
REAL = Config(**SMALL, groups=1, hidden=5, biased=True, gated=True, activation="silu", rope=Rotary(width=2))
RATIONAL = Config(
    **SMALL, phi="identity", norm="layer_rational", hidden=3, activation="quadratic", rope=Rotary(width=2, base=None)
)
TABLE = Config(**SMALL, order="post", norm="rms", table=9, tied=False, phi=("elu+1", "exp"))
PLAIN = Config(layers=1, width=3, d=2, m=2, phi="polynomial(2)", normalise=False, norm="none", epsilon=Fraction(1, 3))
SYSTEMS = ["float64", "float32", "float16", "GF(10007)", "GF(2305843009213693951)", "torch float32", "torch bfloat16"]
PROMPT, INPUT = [3, 1, 4, 1, 5], [2, 6, 0]


def numbers(name):
    if name.startswith("torch"):
        pytest.importorskip("torch")
    return ri.system(name)


def bits(x):
    return (x.planes[0] if isinstance(x, ri.systems.SystemArray) else host(x)).tobytes()


def same(a, b):
    """The same model, down to the signs of zeros."""
    pairs = [(a.weights[name], b.weights[name]) for name in a.config.shapes]
    assert a.weights.keys() == b.weights.keys() and a.prompts == b.prompts and a.position == b.position
    assert (a.biases is None) == (b.biases is None)
    for old, new in zip(a.biases or (), b.biases or (), strict=True):
        assert (old.z is None) == (new.z is None)
        pairs += [(old.S, new.S)] + ([] if old.z is None else [(old.z, new.z)])
    for x, y in pairs:
        assert (x.shape, x.dtype, bits(x)) == (y.shape, y.dtype, bits(y))
    return True


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize(
    "prompt", [None, PROMPT, [PROMPT, PROMPT[::-1]]], ids=["no prompt", "a prompt", "a batch of prompts"]
)
def test_what_is_saved_comes_back_bit_for_bit(name, prompt, path):
    system = numbers(name)
    model = random_model(system, RATIONAL if system.exact else REAL, seed=1)
    model = model if prompt is None else convert(convert(model, [6, 6]), prompt)
    library = "torch" if "torch" in name else "numpy"
    save(path, model)
    again = load(path, library=library)
    assert same(again, model) and again.config == model.config and digest(again) == digest(model)
    if prompt is None:
        return
    assert bits(again(INPUT)) == bits(model(INPUT)) and again.prompts == (2, 5)
    base = replace(model, biases=None, prompts=())
    save(path, model, biases_only=True)
    assert set(read_safetensors(path).tensors) == {f"layers.{i}.{b}" for i in (0, 1) for b in ("b_KV", "b_D")}
    assert same(load(path, base), model) and same(load(path, model), model)


@pytest.mark.parametrize(
    "config", [TABLE, PLAIN, replace(PLAIN, phi=("identity", "identity"))], ids=["table", "plain", "a pair"]
)
def test_every_kind_of_configuration(config, path):
    model = random_model(Float(), config, seed=2)
    prompt = PROMPT if config.vocabulary else Float().random((5, 3), 0)
    model = convert(model, prompt, restart=not config.table, chunk=2, strength=0.5)
    save(path, model)
    again = load(path)
    assert same(again, model)
    assert [phi.__name__ for phi in again.kernel.maps] == [phi.__name__ for phi in ri.Kernel(config.phi).maps]
    assert again.position == (5 if config.table else 0)


def test_biases_without_a_denominator(path):
    model = replace(random_model(Float(), PLAIN, 0), biases=(State(np.ones((1, 9, 2)), None, -3),))
    save(path, model)
    assert same(load(path), model)


def test_a_long_cache_comes_back(path):
    model = random_model(Float(), Config(layers=1, width=4, d=2, m=2, phi="softmax", vocabulary=7), seed=0)
    converted = convert(model, [i % 7 for i in range(1030)])
    save(path, converted)
    loaded = load(path)
    assert loaded.biases[0].keep.shape[-1] == 1030 and loaded.biases[0].keep.all()
    assert np.array_equal(loaded([1, 2]), converted([1, 2]))


def test_numbers_at_the_edge(path):
    model = random_model(Float(), replace(PLAIN, phi="identity"), seed=0)
    edge = np.array([[-0.0, 5e-324], [math.nextafter(math.inf, 0), -1.0], [0.1, 2**-1022]])
    model = Model(model.config, {**model.weights, "layers.0.W_Q": edge})
    save(path, model)
    assert same(load(path), model)


def test_the_same_model_gives_the_same_bytes_whatever_its_library(path):
    torch = pytest.importorskip("torch")
    model = convert(random_model(Float("numpy", "float32"), REAL, 1), PROMPT)
    save(path, model)
    moved = load(path, library="torch")
    assert isinstance(moved.like, torch.Tensor) and digest(moved) == digest(model)
    whole = path.read_bytes()
    save(path, moved)
    assert path.read_bytes() == whole
    save(path, moved, biases_only=True)
    assert isinstance(load(path, model).biases[0].S, np.ndarray)


def test_a_digest_is_of_configuration_system_and_weights_alone():
    model = random_model(Float(), REAL, 1)
    assert len(digest(model)) == 64 and digest(model) == digest(convert(model, PROMPT)) == digest(
        random_model(Float(), REAL, 1)
    )
    others = [
        random_model(Float(), REAL, 2),
        random_model(Float("numpy", "float32"), REAL, 1),
        Model(replace(REAL, activation="gelu"), model.weights),
        Model(replace(REAL, epsilon=Fraction(0)), model.weights),
        Model(REAL, {**model.weights, "gain": -model.weights["gain"]}),
    ]
    assert len({digest(m) for m in (model, *others)}) == 6


def test_sizes():
    model = convert(convert(random_model(Float("numpy", "float16"), REAL, 1), [1, 2, 3]), [PROMPT] * 4)
    assert sizes_in_bytes(model) == {"biases": 2 * (2 * 4 * (2 * 3 + 2)), "kv_cache": 2 * (4 * 2 * 8 * (2 + 3))}
    assert sizes_in_bytes(random_model(Float(), REAL, 1)) == {"biases": 0, "kv_cache": 0}


# What is refused on saving


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (random_model(Float(), REAL, 1), ValueError, "save: `model` must carry biases to save them alone, got none"),
        (None, TypeError, "save: `model` must be a Model, got NoneType"),
        (
            random_model(QQ, PLAIN, 1),
            NotDefined,
            "save: numbers of ℚ cannot be written; floats of at most 64 bits and GF(p) can",
        ),
        (random_model(MP(20), PLAIN, 1), NotDefined, "save: numbers of mpmath"),
        (random_model(Float("numpy", "longdouble"), PLAIN, 1), NotDefined, "save: numbers of numpy "),
        (
            random_model(Float(), replace(PLAIN, phi=ri.feature_maps.relu), 1),
            NotDefined,
            "φ must be given by name, as in Config(phi='elu+1')",
        ),
    ],
)
def test_not_saved(model, error, message, path):
    if model is not None and "carry" not in message:
        prompt = ri.system_of(model.like).random((2, 3), 0)
        model = convert(model, prompt)
    with says(error, message):
        save(path, model, biases_only=True)
    assert not list(path.parent.iterdir())


def test_a_save_that_fails_leaves_the_old_file(path, monkeypatch):
    model = convert(random_model(Float(), REAL, 1), PROMPT)
    save(path, model)
    monkeypatch.setattr(ri.files.disk.os, "replace", lambda *args: (_ for _ in ()).throw(OSError("half way")))
    with says(OSError, "half way"):
        save(path, convert(model, PROMPT))
    monkeypatch.undo()
    assert same(load(path), model) and list(path.parent.iterdir()) == [path]


# What is refused on loading


def rewrite(path, tensors=None, dtypes=None, **words):
    """The same file with other tensors, or other words; None takes one out."""
    found = read_safetensors(path)
    tensors = {name: x for name, x in (found.tensors | (tensors or {})).items() if x is not None}
    metadata = {name: x for name, x in (found.metadata | words).items() if x is not None}
    write_safetensors(path, tensors, metadata, dtypes)


def sealed(path, tensors=None, **words):
    """The same, by someone who can compute a digest of biases too."""
    rewrite(path, tensors, **words)
    found = read_safetensors(path)
    biases = {
        name: x for name, x in found.tensors.items() if ".b_KV" in name or ".b_D" in name or name.endswith(OTHERS)
    }
    said = {name: found.metadata[name] for name in ("position", "prompts", "digest", "maps") if name in found.metadata}
    rewrite(path, biases=fingerprint(said, biases))


OTHERS = (
    "cache.k",
    "cache.v",
    "b_points",
    "b_mix",
    "b_scale",
    "b_omega",
    *(f"state.{name}" for name in ("S", "time_shift", "channel_shift")),
)


@pytest.fixture
def saved(path):
    model = convert(random_model(Float(), REAL, 1), PROMPT)
    save(path, model)
    return model


WORDS = ("config", "system", "position", "prompts", "digest", "biases")


def config(path, **changes):
    return json.dumps(json.loads(read_safetensors(path).metadata["config"]) | changes, sort_keys=True)


def refused(path, message, base=None, error=ValueError, **options):
    began = time.perf_counter()
    with pytest.raises(error) as caught:
        load(path, base, **options)
    said = str(caught.value)
    assert message in said and len(said) < 700, said
    assert said.startswith((f"load: {path}: ", f"read_safetensors: {path}: "))
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"format": None}, f"`format` must be {FORMAT!r}, as `save` writes it, got None"),
        ({"format": "refimpl 2"}, f"`format` must be {FORMAT!r}, as `save` writes it, got 'refimpl 2'"),
        *[({name: None}, f"the metadata must have `{name}`, of 1 to 999999 characters, got None") for name in WORDS],
        (
            {"config": "x" * 10**6},
            "the metadata must have `config`, of 1 to 999999 characters, got a value of type str",
        ),
        (
            {"prompts": "[" + "1," * 10**6 + "1]"},
            "the metadata must have `prompts`, of 1 to 999999 characters, got a value of type str",
        ),
        ({"config": "{"}, "`config` must be one that `save` writes: JSONDecodeError"),
        ({"config": "[" * 9999}, "`config` must be one that `save` writes: "),
        ({"config": "[" * 99999 + "]" * 99999}, "`config` must be one that `save` writes: RecursionError"),
        ({"config": "9" * 5000}, "ValueError: an integer must have at most 4300 characters, got 5000"),
        ({"config": "[]"}, "`config` must be one that `save` writes: TypeError"),
        ({"config": "{}"}, "`config` must be one that `save` writes: KeyError"),
        ({"config": '"layers"'}, "`config` must be one that `save` writes: AttributeError"),
        ({"system": "float8"}, "`system` must be one of float64, float32, float16, bfloat16 or GF(p), got 'float8'"),
        ({"system": "GF(10)"}, "GF: p must be a prime with 2 ≤ p ≤ 2^61-1, got 10"),
        ({"system": "GF(" + "9" * 30 + ")"}, "`system` must be one of"),
        ({"system": "GF(²)"}, "`system` must be one of"),
        ({"system": "float32"}, "` must be F32, for float32, got F64"),
        ({"system": "GF(10007)"}, "` must be I64, for GF(10007), got F64"),
        ({"digest": "0" * 64}, "got 000000000000…: another model, or changed"),
        ({"position": "3"}, "`biases` must be the digest of biases, position and prompts: one of these was changed"),
        ({"prompts": "[4]"}, "`biases` must be the digest of biases, position and prompts: one of these was changed"),
        ({"biases": "0" * 64}, "`biases` must be the digest of biases, position and prompts: one of these was changed"),
    ],
)
def test_changed_metadata(words, message, saved, path):
    rewrite(path, **words)
    refused(path, message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"layers": 10**15},
            "`config` must have at most as many layers as there are tensors, 41, got 1000000000000000",
        ),
        (
            {"layers": 10**4000},
            "`config` must have at most as many layers as there are tensors, 41, got a value of type int",
        ),
        ({"layers": 3}, "Model: `weights` must have 'layers.2.W_Q' of shape (4, 4), got no such name"),
        ({"layers": 1}, "` must be a weight of its configuration or a bias"),
        ({"layers": 2.0}, "Config: `layers` must be an integer ≥ 1, got 2.0"),
        ({"layers": True}, "Config: `layers` must be an integer ≥ 1, got True"),
        ({"layers": "2"}, "Config: `layers` must be an integer ≥ 1, got '2'"),
        ({"layers": -1}, "Config: `layers` must be an integer ≥ 1, got -1"),
        ({"width": None}, "Config: `width` must be an integer ≥ 1, got None"),
        ({"width": 10**9}, "must have shape (1000000000, 4), got (4, 4)"),
        ({"heads": 0}, "Config: `heads` must be an integer ≥ 1, got 0"),
        ({"groups": []}, "Config: `groups` must be an integer ≥ 1, got []"),
        ({"norm": ["layer"]}, "Config: `norm` must be one of"),
        ({"normalise": 1}, "`normalise` must be a bool"),
        ({"gated": "yes"}, "`gated` must be a bool"),
        ({"tied": None}, "`tied` must be a bool"),
        ({"phi": 7}, "Config: `phi` must be a function, a name, or a pair"),
        ({"phi": ["relu"]}, "Config: `phi` must be a function, a name, or a pair"),
        ({"phi": ["relu", "relu"]}, 'it must read \'"relu", "rope": '),
        ({"phi": "os.system"}, "Config: `phi` must be one of"),
        ({"phi": "r" * 10**5}, "Config: `phi` must be one of"),
        ({"phi": f"polynomial({'9' * 5000})"}, "ValueError"),
        ({"epsilon": "1e999999999"}, "ValueError: invalid literal"),
        ({"epsilon": "1/0"}, "ZeroDivisionError"),
        ({"epsilon": "9" * 5000}, "ValueError: `epsilon` must be integers of at most 4300 digits, got 5000"),
        ({"epsilon": "-1/2"}, "Config: `epsilon` must be a Fraction ≥ 0"),
        ({"epsilon": "2/4"}, 'it must read \'1/2", "gated": '),
        ({"epsilon": 0.5}, "AttributeError"),
        ({"rope": 5}, "TypeError"),
        ({"rope": {"width": 3}}, "Rotary: `width` must be even, to pair features, got 3"),
        ({"rope": {"width": 2}}, "it must read 'base\": 10000, "),
        ({"extra": 1}, "TypeError"),
        ({"activation": "gelu"}, "another model, or changed"),
    ],
)
def test_a_hostile_configuration(changes, message, saved, path):
    rewrite(path, config=config(path, **changes))
    refused(path, message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"position": "1.5"},
            "metadata: `position` must be an integer between -9007199254740992 and 9007199254740992, got 1.5",
        ),
        ({"position": "true"}, "metadata: `position` must be an integer"),
        ({"position": "9007199254740993"}, "metadata: `position` must be an integer"),
        ({"position": "x"}, "`position` must be JSON, got 'x'"),
        ({"position": "9" * 5000}, "`position` must be JSON, got a value of type str"),
        ({"prompts": "5"}, "metadata: `prompts` must be a list, got int"),
        ({"prompts": "[5, 2.5]"}, "metadata: `prompts[1]` must be an integer between 0 and 9007199254740992, got 2.5"),
        ({"prompts": "[NaN]"}, "metadata: `prompts[0]` must be an integer"),
        ({"prompts": "[-1]"}, "metadata: `prompts[0]` must be an integer"),
        ({"prompts": "[true]"}, "metadata: `prompts[0]` must be an integer"),
        ({"prompts": "[" * 99999}, "`prompts` must be JSON, got a value of type str"),
    ],
)
def test_hostile_position_and_prompts(words, message, saved, path):
    sealed(path, **words)
    refused(path, message)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"layers.0.b_KV": np.full((1, 2, 3), math.nan)},
            "Model: `biases[0].S` must be finite, got nan or inf at feature 0",
        ),
        ({"layers.1.b_D": np.full((1, 2), math.inf)}, "Model: `biases[1].z` must be finite"),
        ({"layers.1.b_KV": None}, "layer 1: `b_KV` must be in the file for each layer, since other biases are"),
        ({"layers.1.b_D": None}, "Model: `biases[1]` has b_KV but no b_D; a normalised layer needs both"),
        (
            {"layers.0.b_KV": np.ones((3, 2, 3))},
            "Model: `biases[0].S` must have shape (..., 1, features, 3), got (3, 2, 3)",
        ),
        ({"layers.0.b_KV": np.ones(3)}, "Model: `biases[0].S` must have shape (..., 1, features, 3), got (3,)"),
        ({"layers.0.b_KV": np.ones((1, 2, 3), np.float32)}, "`layers.0.b_KV` must be F64, for float64, got F32"),
        ({"layers.9.b_KV": np.ones((1, 2, 3))}, "`layers.9.b_KV` must be a weight of its configuration or a bias"),
        ({"extra": np.ones(2)}, "`extra` must be a weight of its configuration or a bias"),
        ({"x" * 10**5: np.ones(2)}, "x…` must be a weight of its configuration or a bias"),
        ({"gain": np.full(4, math.nan)}, "Model: `gain` must be finite, got nan or inf at column 0"),
        ({"gain": np.ones(5)}, "Model: `gain` must have shape (4,), got (5,)"),
        ({"gain": None}, "Model: `weights` must have 'gain' of shape (4,), got no such name"),
        ({"gain": np.ones(4)}, "another model, or changed"),
        ({"gain": np.ones(4, np.int64)}, "`gain` must be F64, for float64, got I64"),
    ],
)
def test_hostile_tensors(tensors, message, saved, path):
    sealed(path, tensors)
    refused(path, message)


def test_numbers_beyond_the_field(path):
    save(path, random_model(GF(7), PLAIN, 1))
    rewrite(path, {"layers.0.W_Q": np.full((3, 2), 7)})
    refused(path, "`layers.0.W_Q` must hold integers from 0 to p − 1, for GF(7), got 7 to 7")
    rewrite(path, {"layers.0.W_Q": np.full((3, 2), -1)})
    refused(path, "got -1 to -1")


def test_a_position_beyond_the_table(path):
    save(path, convert(random_model(Float(), TABLE, 1), PROMPT, restart=False))
    for position in (-1, 10):
        sealed(path, position=str(position))
        refused(path, f"metadata: `position` must be an integer between 0 and 9, got {position}")


def test_nothing_at_all(path):
    write_safetensors(path, {}, {})
    refused(path, "`format` must be 'refimpl 1'")
    save(path, random_model(Float(), PLAIN, 1))
    write_safetensors(path, {}, read_safetensors(path).metadata)
    refused(path, "`config` must have at most as many layers as there are tensors, 0, got 1")


def test_prompts_without_biases(path):
    save(path, random_model(Float(), PLAIN, 1))
    sealed(path, prompts="[3]")
    refused(path, "layer 0: `b_KV` must be in the file for each layer, since other biases are")


def test_biases_of_another_model(saved, path):
    save(path, saved, biases_only=True)
    refused(path, "`base` must be the model to which these biases belong, since the file has no weights, got None")
    for other in (
        random_model(Float(), REAL, 2),
        random_model(Float(), TABLE, 1),
        random_model(Float("numpy", "float32"), REAL, 1),
    ):
        refused(path, "another model, or changed", base=other)
    with says(TypeError, "load: `base` must be a Model, got str"):
        load(path, "float64")
    save(path, saved)
    refused(path, "the file must hold biases alone, since `base` is given, got a whole model", base=saved)


def test_bfloat16_needs_a_library_that_has_it(path):
    save(path, random_model(numbers("torch bfloat16"), REAL, 1))
    refused(path, ": NumPy has no bfloat16; pass library='torch'", error=NotDefined)
    refused(path, "Float: did you mean 'torch'? `library` must be one of", library="touch")
    assert set(read_safetensors(path).dtypes.values()) == {"BF16"}


def test_truncated_or_changed_at_any_byte(saved, path):
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    for end in (0, 7, 8, 100, start, start + 1, len(whole) - 1):
        path.write_bytes(whole[:end])
        refused(path, "")
    rng = np.random.default_rng(0)
    for at in (*range(start, len(whole), 97), *rng.integers(8, start, 200)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            again = load(path)
        except ValueError:
            continue
        assert at < start and same(again, saved), f"byte {at} was changed, and nobody noticed"


def test_files_of_others(path, tmp_path):
    write_safetensors(path, {"model.weight": np.ones(3)}, {"format": "pt"})
    refused(path, "`format` must be 'refimpl 1', as `save` writes it, got 'pt'")
    path.write_text("not a model")
    refused(path, "the header must have at most")
    with says(OSError, "cannot read"):
        load(tmp_path / "none")


# Pasts that are no sums: what a recurrence carried, a KV cache, a memory

RWKV = Rwkv("5.2", 2, 4, 2, 5, 7)
SOFTMAX = Config(**SMALL, groups=2, phi="softmax", biased=True, rope=Rotary(width=2, placement="before"))


def other(kind):
    """A model with a past of another kind than a State, and the model without it."""
    base = random_model(Float(), RWKV if kind == "state" else SOFTMAX, 1)
    return base, convert(base, PROMPT, by=Compression("clusters", 3) if kind == "memory" else None)


def arrays(model):
    return {f"layers.{i}.{name}": x for i, b in enumerate(model.biases) for name, x in b.arrays().items()}


@pytest.mark.parametrize("kind", ["state", "cache", "memory"])
def test_other_pasts_come_back(kind, path):
    base, model = other(kind)
    for biases_only in (True, False):
        save(path, model, biases_only=biases_only)
        again = load(path, base if biases_only else None)
        assert digest(again) == digest(base) and (again.position, again.prompts) == (model.position, model.prompts)
        old, new = arrays(model), arrays(again)
        assert old.keys() == new.keys() and all(bits(old[name]) == bits(new[name]) for name in old)
        assert bits(again(INPUT)) == bits(model(INPUT)) != bits(base(INPUT))
    # the biases that projections add are weights, and stay what they are beside a cache
    assert all(np.array_equal(again.weights[name], x) for name, x in base.weights.items())


def nan(x):
    return np.full(x.shape, math.nan)


STATE, TOKENS, POINTS = "layers.0.state.S", "layers.1.cache.k", "layers.0.b_points"


@pytest.mark.parametrize(
    ("kind", "name", "change", "message"),
    [
        (
            "state",
            STATE,
            None,
            "Model: `biases[0]` must have the parts time_shift, channel_shift, S, got channel_shift, time_shift",
        ),
        (
            "state",
            "layers.1.state.time_shift",
            None,
            "Model: `biases[1]` must have the parts time_shift, channel_shift, S, got S",
        ),
        (
            "state",
            "layers.0.state.channel_shift",
            nan,
            "Model: `biases[0].channel_shift` must be finite, got nan or inf at column 0",
        ),
        ("state", STATE, nan, "Model: `biases[0].S` must be finite, got nan or inf at head 0, key 0, value 0"),
        ("state", STATE, lambda x: x[:1], "Model: `biases[0].S` must have shape (..., 2, 2, 2), got (1, 2, 2)"),
        ("state", STATE, lambda x: x[0, 0, 0], "Model: `biases[0].S` must have shape (..., 2, 2, 2), got ()"),
        ("state", STATE, lambda x: x.astype(np.float32), f"`{STATE}` must be F64, for float64, got F32"),
        ("cache", TOKENS, None, "layer 1: `cache.k` must be in the file for each layer, since other biases are"),
        ("cache", TOKENS, nan, "Model: `biases[1].k` must be finite, got nan or inf at token 0, column 0, head (0,)"),
        (
            "cache",
            TOKENS,
            lambda x: x[:, 1:],
            "Model: `biases[1].v` must have shape (..., 2, 4, 3) to match its k, got (2, 5, 3)",
        ),
        ("cache", TOKENS, lambda x: x[:1], "Model: `biases[1].k` must have shape (..., 2, tokens, 2), got (1, 5, 2)"),
        (
            "cache",
            TOKENS,
            lambda x: x[0, 0, 0],
            "layer 1: metadata: `cache.k` must have shape (..., tokens, width), got ()",
        ),
        (
            "cache",
            "layers.1.cache.v",
            lambda x: x / 0.0,
            "Model: `biases[1].v` must be finite, got nan or inf at token 0, column 0",
        ),
        (
            "memory",
            POINTS,
            None,
            "layer 0: `b_points` must be in the file exactly for a map 'points', got the map 'points'",
        ),
        (
            "memory",
            POINTS,
            nan,
            "Model: `memory.phi.points` must be finite, got nan or inf at row 0, column 0, head (0,)",
        ),
        (
            "memory",
            POINTS,
            lambda x: x[..., :1],
            "`memory.phi.points` must have shape (..., 2, 3, 2) to match `memory.S`, got (2, 3, 1)",
        ),
        (
            "memory",
            POINTS,
            lambda x: x[0, 0, 0],
            "Model: `memory.phi.points` must have shape (..., 2, 3, 2) to match `memory.S`, got ()",
        ),
        (
            "memory",
            "layers.0.b_KV",
            None,
            "layer 0: `b_KV` must be in the file for each map, got none for {'map': 'points'}",
        ),
        (
            "memory",
            "layers.0.b_KV",
            nan,
            "Model: `memory.S` must be finite, got nan or inf at row 0, column 0, head (0,)",
        ),
        (
            "memory",
            "layers.0.b_KV",
            lambda x: x[..., :2],
            "Model: `memory.S` must have shape (..., 2, features, 3), got (2, 3, 2)",
        ),
        (
            "memory",
            "layers.0.b_D",
            lambda x: x[..., :2],
            "Model: `memory.z` must have shape (..., 2, 3) to match `memory.S`, got (2, 2)",
        ),
        (
            "memory",
            "layers.0.b_D",
            lambda x: x[0, 0],
            "Model: `memory.z` must have shape (..., 2, 3) to match `memory.S`, got ()",
        ),
        ("memory", TOKENS, None, "layer 1: `cache.k` must be in the file for each layer, since other biases are"),
    ],
)
def test_hostile_arrays_of_other_pasts(kind, name, change, message, path):
    base, model = other(kind)
    save(path, model, biases_only=True)
    with np.errstate(all="ignore"):
        sealed(path, {name: None if change is None else np.array(change(arrays(model)[name]))})
    refused(path, message, base=base)


@pytest.mark.parametrize("kind", ["state", "cache", "memory"])
def test_extra_arrays_of_other_pasts(kind, path):
    base, model = other(kind)
    extra = {"state": "layers.0.state.more", "cache": "layers.0.b_KV", "memory": "layers.0.b_KV.1"}[kind]
    save(path, model, biases_only=True)
    found = read_safetensors(path)
    biases = found.tensors | {extra: np.ones((2, 3, 3))}
    said = {name: found.metadata[name] for name in ("position", "prompts", "digest", "maps") if name in found.metadata}
    rewrite(path, {extra: biases[extra]}, biases=fingerprint(said, biases))
    words = (
        "must have the parts"
        if kind == "state"
        else f"`{extra.removeprefix('layers.0.')}` must have a map in the metadata `maps`, got none"
    )
    refused(path, words, base=base)
    for foreign in (
        "layers.0.more",
        "layers.9.state.S",
        "layers.0.cache.b_D",
        "state.S",
        "layers.00.state.S",
        "layers.0.b_Q.1",
    ):
        save(path, model, biases_only=True)
        rewrite(path, {foreign: np.ones(2)})
        refused(path, f"`{foreign}` must be a weight of its configuration or a bias", base=base)


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        ("[]", "`maps` must be a list with one entry for each of 2 layers, got []"),
        ("{", "`maps` must be JSON, got '{'"),
        ("[5, 5]", "layer 0: `maps` must be a list of objects for each layer, got 5"),
        ("[[5], [5]]", "layer 0: `maps` must be a list of objects for each layer, got [5]"),
        ("[[], []]", "layer 0: `b_D` must have a map in the metadata `maps`, got none"),
        ("[[{}], [{}]]", "layer 0: metadata: `map` must be one of"),
        ('[[{"map": "os.system"}], []]', "layer 0: metadata: `map` must be one of"),
        (
            '[[{"map": "positive", "A": "0"}], []]',
            "layer 0: `b_points` must be in the file exactly for a map 'points', got the map 'positive'",
        ),
    ],
)
def test_hostile_maps(maps, message, path):
    base, model = other("memory")
    save(path, model, biases_only=True)
    sealed(path, maps=maps)
    refused(path, message, base=base)
    rewrite(path, maps=None)
    refused(path, "`biases` must be the digest of biases, position and prompts: one of these was changed", base=base)


@pytest.mark.parametrize("kind", ["state", "cache", "memory"])
def test_other_pasts_truncated_or_changed_or_of_another_model(kind, path):
    base, model = other(kind)
    save(path, model, biases_only=True)
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    for end in (0, 7, 100, start, len(whole) - 1):
        path.write_bytes(whole[:end])
        refused(path, "", base=base)
    for at in range(start, len(whole), 37):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        refused(
            path, "`biases` must be the digest of biases, position and prompts: one of these was changed", base=base
        )
    path.write_bytes(whole)
    for wrong in (
        random_model(Float(), base.config, 2),
        random_model(Float("numpy", "float32"), base.config, 1),
        random_model(Float(), REAL, 1),
    ):
        refused(path, "another model, or changed", base=wrong)
    deeper = Rwkv("5.2", 1, 4, 2, 5, 7) if kind == "state" else replace(SOFTMAX, layers=1)
    refused(path, "another model, or changed", base=random_model(Float(), deeper, 1))
    refused(path, "`base` must be the model to which these biases belong, since the file has no weights, got None")


# Independence: a process that has the file and the input, and neither prompt nor library state

ALONE = """
import sys
import numpy as np
import refimpl as ri
o = ri.load(sys.argv[1])([int(i) for i in sys.argv[2].split()])
np.save(sys.argv[3], o.planes[0] if isinstance(o, ri.systems.SystemArray) else o)
"""


def elsewhere(path, text):
    """The output for the text, by a process that has nothing else but the file."""
    out = path.with_suffix(".npy")
    command = [sys.executable, "-W", "error", "-c", ALONE, str(path), " ".join(map(str, text)), str(out)]
    subprocess.run(command, check=True, cwd=path.parent)
    return np.load(out)


def test_a_fresh_process_needs_the_file_alone_in_GF(path):
    model = random_model(GF(2**61 - 1), RATIONAL, 3)
    wanted = transformer(model, PROMPT + INPUT, form=ri.linear_attention)[0][len(PROMPT) :, :]
    save(path, convert(model, PROMPT))
    del model
    assert (elsewhere(path, INPUT) == wanted.planes[0]).all()


def test_a_fresh_process_needs_the_file_alone_in_float64(path):
    model = random_model(Float(), replace(REAL, layers=1), 3)
    converted = convert(model, PROMPT)
    save(path, converted)
    got = elsewhere(path, INPUT)
    assert got.tobytes() == converted(INPUT).tobytes()
    wanted = transformer(model, PROMPT + INPUT, form=ri.linear_attention)[0][len(PROMPT) :, :]
    assert judge(got, wanted, end_to_end_bound(model)).verdict == "WITHIN BOUND"
    assert check_conversion(model, load(path), PROMPT, INPUT).verdict == "WITHIN BOUND"


def end_to_end_bound(model):
    """The errors of both models, each from its weights to its logits: not vacuous for one layer."""
    run = ri.RunningError()
    twin = Model(model.config, {name: run.convert(x) for name, x in model.weights.items()})
    prompted = transformer(twin, PROMPT + INPUT, form=ri.linear_attention)[0][len(PROMPT) :, :]
    return run.error(prompted) + run.error(convert(twin, PROMPT)(INPUT))
