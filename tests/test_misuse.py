"""Misuse of the interface: every public function × every argument × kinds of bad values.

Each cell of this table is a call that is right but for one argument. It is refused by a `raise` of
this package, in a sentence of at most 400 characters, or it gives a result, as misuse.toml says.
"""

from __future__ import annotations

import inspect
import itertools
import time
import tomllib
import traceback
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refimpl as ri
from refimpl import GF, QQ, feature_maps, state
from refimpl.systems import SystemArray
from tests.helpers.bad_input import (
    S,
    a,
    bias,
    config,
    converted,
    d,
    directions,
    k,
    m,
    model,
    n,
    q,
    recalled,
    softmax_model,
    table,
    v,
    z,
)
from tests.helpers.fuzz import llama_tokenizer

PACKAGE = str(Path(ri.__file__).parent)
RESULTS: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("misuse.toml").read_text())
F = ri.Float()


class Odd:
    """An object of no use to anyone."""

    def __repr__(self) -> str:
        return "Odd()"


def nested() -> list[Any]:
    x: list[Any] = []
    for _ in range(5000):
        x = [x]
    return x


BAD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "0": lambda: 0,
    "-1": lambda: -1,
    "10**30": lambda: 10**30,
    "1.5": lambda: 1.5,
    "nan": lambda: float("nan"),
    "1j": lambda: 1j,
    "Fraction": lambda: Fraction(1, 3),
    "'x'": lambda: "x",
    "''": lambda: "",
    "a long text": lambda: "x" * 10**5,
    "a surrogate": lambda: "\udc80",
    "a null": lambda: "a\0b",
    "bytes": lambda: b"x",
    "[]": list,
    "ragged": lambda: [[1], [2, 3]],
    "nested": nested,
    "{}": dict,
    "a set": lambda: {1},
    "object": Odd,
    "a class": lambda: Odd,
    "a function": lambda: lambda *args, **options: None,
    "an iterator": lambda: iter([1.0, 2.0]),
    "a module": lambda: np,
    "integers": lambda: np.arange(6).reshape(2, 3),
    "booleans": lambda: np.ones((5, 3), dtype=bool),
    "objects": lambda: np.array([[Odd()]], dtype=object),
    "texts": lambda: np.array([["x"]]),
    "dates": lambda: np.array(["2020-01-01"], dtype="M8[D]"),
    "records": lambda: np.zeros(3, dtype=[("x", float)]),
    "shape ()": lambda: np.array(1.0),
    "shape (0,)": lambda: np.zeros(0),
    "shape (0, 0)": lambda: np.zeros((0, 0)),
    "shape (7, 11)": lambda: a(7, 11),
    "20 axes": lambda: np.ones((1,) * 20),
    "64 axes": lambda: np.ones((1,) * 64),
    "nans": lambda: np.full((5, 3), np.nan),
    "infinities": lambda: np.full((5, 3), np.inf),
    "huge": lambda: np.full((5, 3), 1e300),
    "complex": lambda: np.ones((5, 3), dtype=complex),
    "float16": lambda: np.ones((5, 3), dtype=np.float16),
    "masked": lambda: np.ma.masked_array(a(5, 3), mask=True),
    "a matrix": lambda: np.asmatrix(a(5, 3)),
    "rationals": lambda: QQ.random((5, 3), 1),
    "residues": lambda: GF(10007).random((5, 3), 1),
    "a system": lambda: QQ,
    "a model": lambda: model,
    "a softmax model": lambda: softmax_model,
    "a state": lambda: state.no_text(q, 2, 2),
    "an error": lambda: ValueError("x"),
}

fine = ri.Rope(table(2))
text = np.array([1, 2, 3])
gates = np.full((n, d), 0.5)
attention = {"q": q, "k": k, "v": v, "kernel": ri.Kernel("elu+1"), "mask": "causal"}
attention |= {"state": ri.State(S, z, 3), "padding": np.ones(n, dtype=bool)}
softmax = {"q": q, "k": k, "v": v, "scale": 1.0, "mask": "causal", "rope": ri.Rope(table(2), placement="before")}
softmax |= {"cache": None, "padding": np.ones(n, dtype=bool)}
recurrent = {"r": a(n, d), "w": gates, "k": k, "v": v, "S": S, "u": a(d), "a": a(n, d), "b": a(n, d)}
changes = {"mask": "causal", "restart": True, "strength": 1}
exact, bound = ri.exact_with_bound(q, k, v, ri.Kernel("elu+1"), u=Fraction(1, 2**53))

# One right call of each public function and class: its arguments by name.
GOOD: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "GF": (GF, {"p": 10007}),
    "MP": (ri.MP, {"digits": 20}),
    "Float": (ri.Float, {"library": "numpy", "dtype": "float64", "device": None}),
    "balls": (ri.balls, {"digits": 20, "maker": None}),
    "Rounded": (ri.Rounded, {"format": "bfloat16", "points": ("sums",)}),
    "RunningError": (ri.RunningError, {"dtype": "float64"}),
    "Dual": (ri.Dual, {"base": QQ}),
    "system": (ri.system, {"name": "Q"}),
    "system_of": (ri.system_of, {"x": q}),
    "floats": (ri.floats, {"x": QQ.random((2, 2), 1)}),
    "linear_attention": (ri.linear_attention, attention),
    "linear_attention_quadratic": (ri.linear_attention_quadratic, attention),
    "linear_attention_recurrent": (ri.linear_attention_recurrent, attention),
    "linear_attention_chunked": (ri.linear_attention_chunked, attention | {"chunk": 2}),
    "Kernel": (ri.Kernel, {"phi": "elu+1", "rope": fine, "normalise": True}),
    "feature_map": (ri.feature_map, {"name": "elu+1"}),
    "Rope": (ri.Rope, {"table": table(2), "layout": "half", "placement": "after"}),
    "rotate": (ri.rotate, {"x": a(n, 4), "cos": a(n, 2), "sin": a(n, 2), "layout": "half"}),
    "angle_table": (ri.angle_table, {"like": F, "width": 4, "base": 100, "frequencies": None}),
    "power_table": (ri.power_table, {"c": a(2), "s": a(2)}),
    "circle_point": (ri.circle_point, {"t": a(2)}),
    "State": (ri.State, {"S": S, "z": z, "position": 3}),
    "softmax_attention": (ri.softmax_attention, softmax),
    "softmax_attention_shifted": (ri.softmax_attention_shifted, softmax),
    "KVCache": (ri.KVCache, {"k": k, "v": v, "keep": None, "position": n, "memories": ()}),
    "Memory": (ri.Memory, {"phi": directions, "S": recalled.S, "z": recalled.z, "scale": recalled.scale}),
    "Points": (ri.Points, {"points": a(4, d)}),
    "linear_attention_carried": (
        ri.linear_attention_carried,
        {"q": q, "k": k, "v": v, "phi": directions, "memory": recalled},
    ),
    "RandomFeatures": (ri.RandomFeatures, {"kind": "positive", "omega": a(4, d), "A": 0, "seed": 1, "turn": 0}),
    "random_features": (ri.random_features, {"kind": "positive", "r": 4, "d": d, "seed": 0, "system": F, "a": None}),
    "mean_squared_error": (ri.mean_squared_error, {"kind": "positive", "x": a(d), "y": a(d), "r": 4, "a": None}),
    "recurrence": (ri.recurrence, recurrent),
    "recurrence_sum": (ri.recurrence_sum, recurrent),
    "Carried": (ri.Carried, {"parts": {"S": S}, "position": 3}),
    "Config": (
        ri.Config,
        {"layers": 1, "width": 4, "heads": 2, "groups": 1, "d": 2, "m": 2, "phi": "elu+1", "normalise": True}
        | {"rope": ri.Rotary(2), "order": "pre"},
    ),
    "Rotary": (ri.Rotary, {"width": 2, "layout": "half", "placement": "after", "base": 100}),
    "Rwkv": (ri.Rwkv, {"version": "5.2", "layers": 1, "width": 4, "heads": 2, "hidden": 5, "vocabulary": 7}),
    "Model": (
        ri.Model,
        {"config": config, "weights": dict(model.weights), "biases": converted.biases, "prompts": (3,)},
    ),
    "random_model": (ri.random_model, {"system": F, "config": config, "seed": 1}),
    "draw_model": (ri.draw_model, {"draw": lambda *shape, **more: a(*shape), "config": config}),
    "transformer": (ri.transformer, {"model": model, "text": text, "form": None, "mask": "causal"}),
    "generate": (
        lambda *args, **options: list(itertools.islice(ri.generate(*args, **options), 3)),
        {"model": model, "text": text, "tokens": 2, "temperature": 1.0, "seed": 1},
    ),
    "convert": (ri.convert, {"model": model, "prompt": text, **changes, "chunk": 2, "by": None, "form": None}),
    "unconvert": (ri.unconvert, {"model": converted, "prompt": np.array([3, 1, 4]), **changes, "form": None}),
    "Compression": (ri.Compression, {"kind": "positive", "r": 4, "seed": 0, "rank": None}),
    "Best": (ri.Best, {"budget": 1000, "error": None, "within": None, "seed": 0, "kinds": ("positive",)}),
    "fidelity": (
        ri.fidelity,
        {"model": model, "converted": converted, "prompt": np.array([3, 1, 4]), "text": text, "mask": "causal"},
    ),
    "save": (ri.save, {"path": "saved", "model": model, "biases_only": False}),
    "load": (ri.load, {"path": "model", "base": None, "library": "numpy", "device": None, "limit": 1}),
    "digest": (ri.digest, {"model": model}),
    "read_model": (
        ri.read_model,
        {"path": "model", "dtype": "float64", "library": "numpy", "device": None, "limit": 1},
    ),
    "model_from_weights": (
        ri.model_from_weights,
        {"config": ri.Config(1, 3, norm="none"), "weights": {x: a(3, 1) for x in "qkv"} | {"o": a(1, 3)}}
        | {"mapping": {f"{x}": f"layers.0.W_{x.upper()}" for x in "qkvo"}, "zeros": [], "system": F},
    ),
    "read_tokenizer": (ri.read_tokenizer, {"path": "tokenizer.bin", "limit": 1}),
    "compare": (
        ri.compare,
        {"model": model, "my_forward": model, "tokens": text, "dtype": None, "unseen": False, "seed": 1},
    ),
    "check_conversion": (
        ri.check_conversion,
        {"model": model, "converted": converted, "prompt": np.array([3, 1, 4]), "text": text, **changes, "chunk": 2},
    ),
    "exact_probe": (
        ri.exact_probe,
        {"system": F, "n": 5, "r": 2, "m": 3, "heads": 2, "seed": 0, "mask": "causal", "normalise": True}
        | {"layout": None, "start": True},
    ),
    "exact_with_bound": (
        ri.exact_with_bound,
        {"q": q, "k": k, "v": v, "kernel": ri.Kernel("elu+1"), "u": Fraction(1, 2**53), "mask": "causal"}
        | {"state": None},
    ),
    "judge": (ri.judge, {"got": a(n, m), "exact": exact, "bound": bound}),
    "unit_roundoff": (ri.unit_roundoff, {"dtype": "float64"}),
    "feature_maps.polynomial": (feature_maps.polynomial, {"degree": 2}),
    "feature_maps.dpfp": (feature_maps.dpfp, {"nu": 2}),
    "feature_maps.taylor2_pair": (feature_maps.taylor2_pair, {"scale": 2}),
    "feature_maps.hedgehog": (feature_maps.hedgehog, {"W": a(d, d), "b": a(d)}),
    "state.no_text": (state.no_text, {"like": q, "r": 2, "m": 2, "lead": (2,), "position": 3}),
    "state.features": (state.features, {"q": q, "k": k, "kernel": ri.Kernel("elu+1"), "position": 3}),
    "state.absorb": (
        state.absorb,
        {"state": ri.State(S, z, 3), "k": k, "v": v, "kernel": ri.Kernel(), "padding": np.ones(n, dtype=bool)},
    ),
    "state.shift": (state.shift, {"state": ri.State(a(2, m), a(2), 3), "by": 2, "kernel": ri.Kernel(rope=fine)}),
    "state.join": (state.join, {"a": bias, "b": bias, "kernel": ri.Kernel(), "origin": 0}),
    "state.remove": (state.remove, {"both": bias, "b": bias, "kernel": ri.Kernel(), "origin": 0}),
    "state.scale": (state.scale, {"state": bias, "strength": 2.0}),
}
for name, phi in ri.FEATURE_MAPS.items():
    GOOD[f"FEATURE_MAPS[{name!r}]"] = (phi, {"x": q})
for kind in (F, QQ, GF(10007), ri.MP(20)):
    GOOD[f"{kind.name}.convert"] = kind.convert, {"values": np.array([[1, 2]])}
    GOOD[f"{kind.name}.random"] = kind.random, {"shape": (2, 3), "seed": 1}


# Given a function of the caller's, these call it. What it raises is not ours.
CALLED = {"draw_model draw", "transformer form", "convert form", "unconvert form", "compare my_forward"}
# Made by the library, or without arguments.
NOT_CALLED = {"Comparison", "Degrees", "Dependencies", "Fidelity", "Judgement", "Probe"}
FUNCTIONS = {"a class", "a function", "a model", "a softmax model"}


def call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Some parameters are for positions only, so all that may be given by position are."""
    try:
        kinds = {p.name: p.kind for p in inspect.signature(function).parameters.values()}
    except ValueError:
        return function(*arguments.values())
    only = {x for x in arguments if kinds.get(x) is inspect.Parameter.POSITIONAL_ONLY}
    named = {x: y for x, y in arguments.items() if x not in only}
    return function(*(y for x, y in arguments.items() if x in only), **named)


def outcome(name: str, argument: str, kind: str) -> str:
    """What came of one cell: "a result", "refused", or what is wrong with the refusal."""
    function, arguments = GOOD[name]
    raises = f"{name} {argument}" in CALLED and kind in FUNCTIONS
    return refusal(lambda: call(function, arguments | {argument: BAD[kind]()}), raises)


def refusal(run: Callable[[], Any], raises: bool = False) -> str:
    """The same of any call. raises : it calls a function that may raise what it likes"""
    try:
        with np.errstate(all="ignore"):
            run()
    except Exception as error:
        where, said = traceback.extract_tb(error.__traceback__)[-1], str(error)
        if raises:
            return "refused"
        if not where.filename.startswith(PACKAGE) or "raise" not in (where.line or ""):
            return f"{type(error).__name__} at {where.filename}:{where.lineno}: {said[:200]}"
        return "refused" if len(said) <= 400 else f"a message of {len(said)} characters: {said[:200]}"
    return "a result"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the files are that the right calls read."""
    monkeypatch.chdir(tmp_path)
    ri.save("model", model)
    (tmp_path / "tokenizer.bin").write_bytes(llama_tokenizer())


def test_every_public_function_is_in_the_table():
    errors = {x for x in ri.__all__ if raised(x)}
    missing = {x for x in ri.__all__ if callable(getattr(ri, x))} - set(GOOD) - errors - NOT_CALLED
    assert not missing, "each public function needs a right call in GOOD"


def raised(name: str) -> bool:
    return isinstance(getattr(ri, name), type) and issubclass(getattr(ri, name), Exception)


@pytest.mark.parametrize("name", GOOD)
def test_a_right_call(name, folder):
    with np.errstate(all="raise"):
        call(*GOOD[name])


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("name", GOOD)
def test_wrong_calls(name, folder):
    wrong, results = [], {}
    for argument in GOOD[name][1]:
        began = time.perf_counter()
        outcomes = {kind: outcome(name, argument, kind) for kind in BAD}
        assert time.perf_counter() - began < 20, f"{argument}: misuse must not cost much"
        wrong += [(argument, kind, x) for kind, x in outcomes.items() if x not in ("refused", "a result")]
        if given := [kind for kind, x in outcomes.items() if x == "a result"]:
            results[f"{name} {argument}"] = given
    assert not wrong
    expected = {cell: list(BAD) if kinds == ["anything"] else kinds for cell, kinds in RESULTS.items()}
    assert results == {cell: kinds for cell, kinds in expected.items() if cell.rpartition(" ")[0] == name}


@pytest.mark.parametrize("axes", [33, 64])
@pytest.mark.parametrize("name", GOOD)
def test_too_many_axes(name, axes, folder):
    """All arrays of a call have so many at once: a sentence, or a result."""

    def stretched(x):
        if isinstance(x, ri.State):
            return ri.State(stretched(x.S), stretched(x.z)[0], x.position)
        many = isinstance(x, np.ndarray | SystemArray) and x.ndim
        return x[(None,) * (axes - x.ndim)] if many else x

    function, arguments = GOOD[name]
    given = {argument: stretched(x) for argument, x in arguments.items()}
    assert refusal(lambda: call(function, given)) in ("refused", "a result")


def test_the_table_of_results_has_no_stale_cells():
    cells = {f"{name} {argument}" for name, (_, arguments) in GOOD.items() for argument in arguments}
    assert set(RESULTS) <= cells
    assert {kind for kinds in RESULTS.values() for kind in kinds} <= set(BAD) | {"anything"}


def test_a_raw_error_is_seen():
    GOOD["int"] = int, {"x": 1}
    try:
        assert outcome("int", "x", "'x'").startswith("ValueError at")
    finally:
        del GOOD["int"]
