"""RWKV: published logits, transcriptions of all versions, prompts as initial states, and files that
lie.
"""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import refimpl as ri
from refimpl.files.models.rwkv_file import read_rwkv
from refimpl.model import rwkv as module
from refimpl.model.recurrence import RUNNING, Carried, RecurrentForm, recurrence, wkv4
from refimpl.model.rwkv import Rwkv
from refimpl.model.transformer import Pass
from refimpl.verify.check import check
from refimpl.verify.implementation import REFIMPL
from refimpl.verify.theorems import recurrences
from tests.helpers.assertions import says
from tests.helpers.real_weights import folder


def rwkv(config: Rwkv, weights: Any, text: Any, states: Any = None, **options: Any) -> Any:
    """Logits, and what each layer carries after the text."""
    return ri.transformer(ri.Model(config, weights, states and tuple(states)), text, **options)


REAL = {"4": "4v0-660K", "5.1": "5v1-730K", "5.2": "5v2-730K", "7": "7v0-834K"}
FLOAT = ri.Float()


def real(version: str) -> tuple[Rwkv, dict[str, Any]]:
    name = f"tiny-rwkv-{REAL[version]}-FP32.bin"
    model = read_rwkv(folder(name) / name, system=FLOAT)
    return model.config, model.weights


def apart(x: Any, y: Any) -> float:
    """The largest difference, relative to the largest number."""
    return float(np.abs(x - y).max(initial=0) / np.abs(y).max(initial=1e-300))


# Files of our own making, with the names and shapes of rwkv.cpp.


def tensors(version: str, layers: int = 2, width: int = 4) -> dict[str, Any]:
    """Slowest axis first."""
    one, square, rng, heads, hidden, vocabulary, rank = (width,), (width, width), np.random.default_rng(0), 2, 6, 5, 3
    shapes: dict[str, tuple[int, ...]] = {
        "emb.weight": (vocabulary, width),
        "blocks.0.ln0.weight": one,
        "blocks.0.ln0.bias": one,
    }
    for i in range(layers):
        of: dict[str, tuple[int, ...]] = {f"ln{j}.{part}": one for j in (1, 2) for part in ("weight", "bias")}
        of |= {f"att.{name}.weight": square for name in ("receptance", "key", "value", "output")}
        of |= {"ffn.key.weight": (hidden, width), "ffn.value.weight": (width, hidden)}
        if version != "7":
            of |= (
                {f"att.time_mix_{x}": one for x in "rkv"}
                | {f"ffn.time_mix_{x}": one for x in "kr"}
                | {"ffn.receptance.weight": square}
            )
        if version != "4":
            of |= {"att.ln_x.weight": one, "att.ln_x.bias": one}
        if version == "4":
            of |= {"att.time_decay": one, "att.time_first": one}
        if version == "5.1":
            of |= {"att.time_decay": (heads, 1, 1), "att.time_first": (heads, 1, 1)}
        if version == "5.2":
            each = (heads, width // heads, 1)
            of |= {"att.time_decay": each, "att.time_faaaa": each, "att.time_mix_g": one, "att.gate.weight": square}
        if version == "7":
            for j, x in enumerate("wavg"):
                of |= {f"att.{x}1": (rank + j, width), f"att.{x}2": (width, rank + j)}
            of |= {f"att.{x}": (1, 1, width) for x in ("w0", "a0", "v0", "k_k", "k_a")} | {"ffn.x_k": (1, 1, width)}
            of |= {"att.x_rwkvag": (6, 1, width), "att.r_k": (heads, width // heads)}
            of = {name: s for name, s in of.items() if i or not name.startswith("att.v") or name == "att.value.weight"}
        shapes |= {f"blocks.{i}.{name}": s for name, s in of.items()}
    shapes |= {"ln_out.weight": one, "ln_out.bias": one, "head.weight": (vocabulary, width)}
    drawn = {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}
    return {
        name: x / 2 + 1
        if ".ln" in name and "weight" in name
        else np.exp(-np.exp(x))
        if "5" in version and "decay" in name
        else x
        for name, x in drawn.items()
    }


HEADER = (0x67676D66, 101, 5, 4, 2, 0)  # magic, version, vocabulary, width, layers, dtype


def file_of(found: dict[str, Any], *, header: tuple[int, ...] = HEADER, names: dict[str, bytes] | None = None) -> bytes:
    pieces = [struct.pack(f"<{len(header)}I", *header)]
    for name, x in found.items():
        key = (names or {}).get(name, name.encode())
        pieces.append(
            struct.pack(f"<{3 + x.ndim}I", x.ndim, len(key), {"float32": 0, "float16": 1}[x.dtype.name], *x.shape[::-1])
            + key
        )
        pieces.append(x.tobytes())
    return b"".join(pieces)


def parsed(data: bytes) -> dict[str, Any]:
    """A reader of our own, which believes everything."""
    at, found = 24, {}
    while at < len(data):
        axes, length, _ = struct.unpack_from("<3I", data, at)
        shape = struct.unpack_from(f"<{axes}I", data, at + 12)[::-1]
        at += 12 + 4 * axes
        name, count = data[at : at + length].decode(), int(np.prod(shape))
        found[name] = np.frombuffer(data, "<f4", count, at + length).reshape(shape).astype(np.float64)
        at += length + 4 * count
    return found


def small(tmp_path: Path, version: str, **sizes: Any) -> tuple[Rwkv, dict[str, Any]]:
    path = tmp_path / "model.bin"
    path.write_bytes(
        file_of(
            tensors(version, **sizes), header=(0x67676D66, 101, 5, sizes.get("width", 4), sizes.get("layers", 2), 0)
        )
    )
    model = read_rwkv(path, system=FLOAT)
    return model.config, model.weights


SMALL = pytest.mark.parametrize("version", REAL)


# Against what others publish.


@pytest.mark.parametrize("form", ["recurrent", "sum"])
@pytest.mark.parametrize("version", ["4", "5.1", "5.2"])
def test_the_published_logits(version: str, form: str) -> None:
    """rwkv.cpp's own logits, in float32, after the prompt `"in`."""
    config, weights = real(version)
    name = f"expected-logits-{REAL[version]}.bin"
    want = np.fromfile(folder(name) / name, "<f4")
    logits, _ = rwkv(config, weights, list(b'"in'), form=form)
    assert np.abs(logits[-1] - want).max() <= 1e-5


def transcribed_7(w: dict[str, Any], ids: list[int]) -> Any:
    """RWKV-7 token by token from the tensors of the file, by its authors' formulas; no line of the
    library is used.
    """
    layers, (heads, d) = (
        1 + max(int(name.split(".")[1]) for name in w if name.startswith("blocks")),
        w["blocks.0.att.r_k"].shape,
    )
    width = heads * d
    state = [
        {"x": np.zeros(width), "y": np.zeros(width), "S": np.zeros((heads, d, d))} for _ in range(layers)
    ]  # S: (value, key)

    def ln(x: Any, name: str, groups: int = 1, eps: float = 1e-5) -> Any:
        z = x.reshape(groups, -1)
        z = (z - z.mean(1, keepdims=True)) / np.sqrt(z.var(1, keepdims=True) + eps)
        return z.reshape(-1) * w[name + ".weight"] + w[name + ".bias"]

    def sig(x: Any) -> Any:
        return 1 / (1 + np.exp(-x))

    rows = []
    for token in ids:
        x = ln(w["emb.weight"][token], "blocks.0.ln0")
        for i in range(layers):
            p, st_i = f"blocks.{i}.att.", state[i]
            u = ln(x, f"blocks.{i}.ln1")
            xr, xw, xk, xv, xa, xg = (u + (st_i["x"] - u) * w[p + "x_rwkvag"][j, 0] for j in range(6))
            st_i["x"] = u
            r, k, v = w[p + "receptance.weight"] @ xr, w[p + "key.weight"] @ xk, w[p + "value.weight"] @ xv
            decay = np.exp(-0.606531 * sig(w[p + "w0"].ravel() + w[p + "w2"] @ np.tanh(w[p + "w1"] @ xw)))
            a = sig(w[p + "a0"].ravel() + w[p + "a2"] @ (w[p + "a1"] @ xa))
            g = w[p + "g2"] @ sig(w[p + "g1"] @ xg)
            kk = (k * w[p + "k_k"].ravel()).reshape(heads, d)
            kk = kk / np.maximum(np.linalg.norm(kk, axis=1, keepdims=True), 1e-12)
            k = k * (1 + (a - 1) * w[p + "k_a"].ravel())
            if i == 0:
                v_first = v
            else:
                v = v + (v_first - v) * sig(w[p + "v0"].ravel() + w[p + "v2"] @ (w[p + "v1"] @ xv))
            out = np.zeros((heads, d))
            for h in range(heads):
                part = slice(h * d, h * d + d)
                S = st_i["S"][h]
                S = S * decay[part] + np.outer(S @ -kk[h], kk[h] * a[part]) + np.outer(v[part], k[part])
                st_i["S"][h], out[h] = S, S @ r[part]
            o = ln(out.ravel(), p + "ln_x", heads, 64e-5)
            bonus = ((r * k).reshape(heads, d) * w[p + "r_k"]).sum(1, keepdims=True) * v.reshape(heads, d)
            x = x + w[p + "output.weight"] @ ((o + bonus.ravel()) * g)
            u = ln(x, f"blocks.{i}.ln2")
            mixed = u + (st_i["y"] - u) * w[f"blocks.{i}.ffn.x_k"].ravel()
            st_i["y"] = u
            x = x + w[f"blocks.{i}.ffn.value.weight"] @ np.maximum(w[f"blocks.{i}.ffn.key.weight"] @ mixed, 0) ** 2
        rows.append(w["head.weight"] @ ln(x, "ln_out"))
    return np.array(rows)


def test_version_7_is_its_transcription() -> None:
    name = f"tiny-rwkv-{REAL['7']}-FP32.bin"
    want = transcribed_7(parsed((folder(name) / name).read_bytes()), text(24))
    for form in ("recurrent", "sum"):
        assert apart(rwkv(*real("7"), text(24), form=form)[0], want) < 1e-9


def test_version_7_with_heads_is_its_transcription(tmp_path: Path) -> None:
    """The published model has one head; this one has two, and a rank of its own for each low-rank
    part.
    """
    config, weights = small(tmp_path, "7", width=6, layers=3)
    assert (config.heads, config.d, config.ranks) == (2, 3, (3, 4, 5, 6))
    want = transcribed_7(parsed((tmp_path / "model.bin").read_bytes()), [3, 1, 4, 1, 0, 2, 2])
    for form in ("recurrent", "sum"):
        assert apart(rwkv(config, weights, [3, 1, 4, 1, 0, 2, 2], form=form)[0], want) < 1e-12


def transcribed(version: str, w: dict[str, Any], ids: list[int]) -> Any:
    """RWKV-4, -5.1 and -5.2 token by token from the tensors of the file, as rwkv.cpp has them; no
    line of the library is used.
    """
    layers = 1 + max(int(name.split(".")[1]) for name in w if name.startswith("blocks"))
    width = w["emb.weight"].shape[1]
    heads = 1 if version == "4" else w["blocks.0.att.time_decay"].shape[0]
    d = width // heads
    before = np.zeros((layers, 2, width))
    num, den, S = np.zeros((layers, width)), np.zeros((layers, width)), np.zeros((layers, heads, d, d))

    def ln(x: Any, name: str, groups: int = 1) -> Any:
        z = x.reshape(groups, -1)
        z = (z - z.mean(1, keepdims=True)) / np.sqrt(z.var(1, keepdims=True) + 1e-5)
        return z.reshape(-1) * w[name + ".weight"] + w[name + ".bias"]

    def sig(x: Any) -> Any:
        return 1 / (1 + np.exp(-x))

    rows = []
    for token in ids:
        x = ln(w["emb.weight"][token], "blocks.0.ln0")
        for i in range(layers):
            p, u = f"blocks.{i}.att.", ln(x, f"blocks.{i}.ln1")
            mixes = {m: w[p + f"time_mix_{m}"] for m in "rkvg" if p + f"time_mix_{m}" in w}
            xs = {m: u * mix + before[i, 0] * (1 - mix) for m, mix in mixes.items()}
            before[i, 0] = u
            r, k, v = (w[f"{p}{name}.weight"] @ xs[name[0]] for name in ("receptance", "key", "value"))
            if version == "4":
                own = np.exp(w[p + "time_first"] + k)
                o = sig(r) * (num[i] + own * v) / (den[i] + own)
                decay = np.exp(w[p + "time_decay"])
                num[i], den[i] = decay * num[i] + np.exp(k) * v, decay * den[i] + np.exp(k)
            else:
                first = w[p + ("time_first" if version == "5.1" else "time_faaaa")]
                o = np.zeros((heads, d))
                for h in range(heads):
                    at = slice(h * d, h * d + d)
                    kv = np.outer(k[at], v[at])
                    o[h] = r[at] @ (first[h] * kv + S[i, h])
                    S[i, h] = w[p + "time_decay"][h] * S[i, h] + kv
                o = ln(o.ravel(), p + "ln_x", heads)
                if version == "5.2":
                    g = w[p + "gate.weight"] @ xs["g"]
                    o = o * g * sig(g)
            x = x + w[p + "output.weight"] @ o
            p, u = f"blocks.{i}.ffn.", ln(x, f"blocks.{i}.ln2")
            xk, xr = (u * w[p + f"time_mix_{m}"] + before[i, 1] * (1 - w[p + f"time_mix_{m}"]) for m in "kr")
            before[i, 1] = u
            hidden = np.maximum(w[p + "key.weight"] @ xk, 0) ** 2
            x = x + sig(w[p + "receptance.weight"] @ xr) * (w[p + "value.weight"] @ hidden)
        rows.append(w["head.weight"] @ ln(x, "ln_out"))
    return np.array(rows)


@pytest.mark.parametrize("form", ["recurrent", "sum"])
@pytest.mark.parametrize("version", ["4", "5.1", "5.2"])
def test_earlier_versions_are_their_transcription(version: str, form: str, tmp_path: Path) -> None:
    config, weights = small(tmp_path, version, width=6, layers=3)
    want = transcribed(version, parsed((tmp_path / "model.bin").read_bytes()), [3, 1, 4, 1, 0, 2, 2])
    assert apart(rwkv(config, weights, [3, 1, 4, 1, 0, 2, 2], form=form)[0], want) < 1e-12


@pytest.mark.parametrize("version", ["4", "5.1", "5.2"])
def test_the_transcription_has_the_published_logits(version: str) -> None:
    name, logits = f"tiny-rwkv-{REAL[version]}-FP32.bin", f"expected-logits-{REAL[version]}.bin"
    found = transcribed(version, parsed((folder(name) / name).read_bytes()), list(b'"in'))
    assert np.abs(found[-1] - np.fromfile(folder(logits) / logits, "<f4")).max() <= 1e-5


def test_short_keys_are_divided_by_the_least_length() -> None:
    """max(|x|, 10⁻¹²), and not |x| + 10⁻¹²"""
    keys = np.array([[3.0, 4.0], [3e-13, 4e-13], [0.0, 0.0]])
    assert np.allclose(module.unit_vectors(keys), [[0.6, 0.8], [0.3, 0.4], [0, 0]], rtol=0, atol=1e-15)


# A prompt is an initial state.


def text(n: int) -> list[int]:
    """Bytes of words, always the same."""
    rng = random.Random(0)
    words = [
        "the",
        "a",
        "cat",
        "dog",
        "sat",
        "ran",
        "to",
        "on",
        "and",
        "little",
        "red",
        "house",
        "said",
        "Lily",
        "they",
        "were",
        "it",
    ]
    return list(" ".join(rng.choice(words) + "," * (rng.random() < 0.1) for _ in range(n)).encode()[:n])


def prompt_is_a_state(version: str, M: int, n: int) -> float:
    config, weights = real(version)
    want, end = rwkv(config, weights, text(M + n), form="sum")
    _, states = rwkv(config, weights, text(M + n)[:M])
    logits, last = rwkv(config, weights, text(M + n)[M:], states)
    assert [s.position for s in last] == [s.position for s in end] == [M + n] * config.layers
    for a, b in zip(last, end, strict=True):
        assert all(apart(a.parts[name], b.parts[name]) < 1e-9 for name in b.parts)
    # the prompt does matter
    assert np.abs(rwkv(config, weights, text(M + n)[M:])[0] - logits).max() > 0.01
    return apart(logits, want[M:])


@SMALL
def test_a_prompt_is_a_state_on_real_weights(version: str) -> None:
    assert prompt_is_a_state(version, 40, 12) < 1e-9


@pytest.mark.slow
@SMALL
def test_a_long_prompt_is_a_state_on_real_weights(version: str) -> None:
    assert prompt_is_a_state(version, 2200, 40) < 1e-9


@SMALL
def test_split_anywhere_and_token_by_token(version: str, tmp_path: Path) -> None:
    config, weights = small(tmp_path, version)
    ids = [3, 1, 4, 0, 2]
    want, end = rwkv(config, weights, ids, form="sum")
    for t in range(len(ids) + 1):
        first, states = rwkv(config, weights, ids[:t])
        for form in ("recurrent", "sum"):
            rest, last = rwkv(config, weights, ids[t:], states, form=form)
            assert apart(np.concatenate([first, rest]), want) < 1e-12
            assert all(
                apart(a.parts[name], b.parts[name]) < 1e-12 for a, b in zip(last, end, strict=True) for name in b.parts
            )
    rows, states = [], None
    for i in ids:
        row, states = rwkv(config, weights, [i], states)
        rows.append(row)
    assert apart(np.concatenate(rows), want) < 1e-12


@SMALL
def test_batches(version: str, tmp_path: Path) -> None:
    config, weights = small(tmp_path, version)
    prompts, texts = [[3, 1, 4], [2, 2, 0]], [[1, 0], [4, 3]]
    _, both = rwkv(config, weights, prompts)
    _, one = rwkv(config, weights, prompts[0])
    for form in ("recurrent", "sum"):
        o, _ = rwkv(config, weights, texts, both, form=form)  # a prompt for each text
        p, _ = rwkv(config, weights, texts, one, form=form)  # one prompt for both
        q, _ = rwkv(config, weights, texts[1], both, form=form)  # both prompts, one text
        alone = [[rwkv(config, weights, prompt + t, form=form)[0][3:] for t in texts] for prompt in prompts]
        assert apart(o, np.stack([alone[0][0], alone[1][1]])) < 1e-12
        assert apart(p, np.stack(alone[0])) < 1e-12
        assert apart(q, np.stack([alone[0][1], alone[1][1]])) < 1e-12


def peers() -> list[Any]:
    systems = [ri.Float("numpy", "float32"), ri.Float("array_api_strict"), ri.MP(30), ri.balls(30, "iv")]
    try:
        return [*systems, ri.Float("torch"), ri.Float("torch", "float32")]
    except ImportError:
        return systems


@pytest.mark.parametrize("system", peers(), ids=str)
@SMALL
def test_every_kind_of_array(version: str, system: Any, tmp_path: Path) -> None:
    config, weights = small(tmp_path, version)
    want, _ = rwkv(config, weights, [3, 1, 4])
    again = read_rwkv(tmp_path / "model.bin", system=system)
    for form in ("recurrent", "sum"):
        logits, _ = rwkv(again.config, again.weights, [3, 1, 4], form=form)
        assert apart(ri.floats(logits), want) < (1e-4 if "32" in system.name else 1e-12)


@SMALL
def test_vectors_instead_of_ids(version: str, tmp_path: Path) -> None:
    config, weights = small(tmp_path, version)
    x = weights["embedding"][[3, 1, 4], :]
    seen = []
    want, _ = rwkv(config, weights, [3, 1, 4])
    # type: ignore[func-returns-value]
    got, _ = rwkv(config, weights, x, between=lambda i, y: seen.append((i, y.shape)) or y)
    assert np.array_equal(got, want) and seen == [(0, (3, 4)), (1, (3, 4))]
    bare = Rwkv(version, 2, 4, config.heads, 6, 0, config.ranks)
    weights = {name: w for name, w in weights.items() if name in bare.shapes}
    o, _ = rwkv(bare, weights, x)
    assert o.shape == (3, 4) and "embedding" not in bare.shapes
    with says(ri.NotDefined, "layer norm needs a real system"):
        rwkv(bare, {name: ri.QQ.convert(w) for name, w in weights.items()}, ri.QQ.convert(x))


def test_inputs_are_not_written_to(tmp_path: Path) -> None:
    for version in REAL:
        config, weights = small(tmp_path, version)
        _, states = rwkv(config, weights, [1, 2])
        for x in (*weights.values(), *(x for s in states for x in s.parts.values())):
            x.flags.writeable = False
        for form in ("recurrent", "sum"):
            rwkv(config, weights, [3, 4], states, form=form)


# Planted bugs.


def _forgets_shift(x: Any, last: Any) -> Any:
    return shift_tokens(x, 0 * last)


def _first_without_past(self: Rwkv, model: Any, i: int, x: Any, past: Any, run: Any) -> Any:
    """The values that the first layer leaves for the others are those of a text without a past."""
    found = layer(self, model, i, x, past, run)
    if i == 0:
        layer(self, model, i, x, None, run)
    return found


def _start_forgotten(*args: Any, S: Any = None, **options: Any) -> Any:
    return recurrence(*args, S=0 * S, **options)


def _untouched_state(*args: Any, S: Any = None, **options: Any) -> Any:
    return recurrence(*args, S=S, **options)[0], S + 0 * recurrence(*args, S=S, **options)[1]


def _runs_by(form: RecurrentForm) -> Any:
    """An implementation whose model runs by this form, where it is not asked for another."""

    def run(model: Any, text: Any, form: Any = form) -> Any:
        return ri.transformer(model, text, form=form)

    return replace(REFIMPL, transformer=run)


def _forgetful(model: Any, text: Any, **options: Any) -> Any:
    return ri.transformer(replace(model, biases=None), text, **options)


shift_tokens, layer = module.shift_tokens, Rwkv.layer
THEOREM = {t.name: t for t in recurrences.THEOREMS}["rwkv_state"]


@pytest.mark.parametrize(
    "plant",
    [mock.patch.object(module, "shift_tokens", _forgets_shift), mock.patch.object(Rwkv, "layer", _first_without_past)],
    ids=["shift", "first"],
)
def test_bugs_planted_in_a_layer_are_found_out(plant: Any) -> None:
    for system in (ri.MP(50), ri.balls(30), FLOAT):
        with plant:
            assert check(THEOREM, system, THEOREM.cases).verdict == "FAIL"


@pytest.mark.parametrize(
    "impl",
    [
        _runs_by(RecurrentForm(_start_forgotten, wkv4)),
        _runs_by(RecurrentForm(_untouched_state, wkv4)),
        _runs_by(RecurrentForm(recurrence, lambda *args, state: wkv4(*args))),
        replace(REFIMPL, transformer=_forgetful),
    ],
    ids=["start", "untouched", "quotient", "model"],
)
def test_wrong_implementations_are_found_out(impl: Any) -> None:
    for system in (ri.MP(50), ri.balls(30), FLOAT):
        result = check(THEOREM, system, THEOREM.cases, impl=impl)
        assert result.verdict == "FAIL" and " instead of " in result.evidence


def test_where_the_bugs_were_planted_the_right_form_passes() -> None:
    assert check(THEOREM, FLOAT, THEOREM.cases, impl=_runs_by(RUNNING)).verdict == "WITHIN BOUND"


# Words.


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (("6", 1, 2), ValueError, "Rwkv: `version` must be one of 4, 5.1, 5.2, 7, got '6'"),
        (("4", 0, 2), ValueError, "Rwkv: `layers` must be an integer ≥ 1, got 0"),
        (("4", 1, 0), ValueError, "Rwkv: `width` must be an integer ≥ 1, got 0"),
        (("5.2", 1, 2, 0), ValueError, "Rwkv: `heads` must be an integer ≥ 1, got 0"),
        (("4", 1, 2, 1, 0), ValueError, "Rwkv: `hidden` must be an integer ≥ 1, got 0"),
        (("4", 1, 2, 1, 1, -1), ValueError, "Rwkv: `vocabulary` must be an integer ≥ 0, got -1"),
        (("5.2", 1, 3, 2), ValueError, "Rwkv: `heads` must divide width = 3, got 2"),
        (("4", 1, 4, 2), ValueError, "Rwkv: `heads` must be 1 in version 4, which has none, got 2"),
        (("7", 1, 4, 2, 1, 0, [1, 1, 1, 1]), TypeError, "Rwkv: `ranks` must be a tuple, got list"),
        (("7", 1, 4, 2), ValueError, "Rwkv: `ranks` must be four numbers (decay, rate, blend, gate), got ()"),
        (("4", 1, 4, 1, 1, 0, (1,)), ValueError, "Rwkv: `ranks` must be () in version 4, got (1,)"),
        (("7", 1, 4, 2, 1, 0, (1, 1, 0, 1)), ValueError, "Rwkv: `ranks` must be an integer ≥ 1, got 0"),
    ],
)
def test_words_of_the_configuration(arguments: Any, kind: Any, message: str) -> None:
    with says(kind, message):
        Rwkv(*arguments)


def test_words(tmp_path: Path) -> None:
    config, weights = small(tmp_path, "7")
    _, states = rwkv(config, weights, [1])
    lacking = {name: w for name, w in weights.items() if name != "layers.1.blend"}
    for arguments, options, kind, message in (
        (("7", weights, [1]), {}, TypeError, "Model: `config` must be a Config or another Family, got str"),
        ((config, [], [1]), {}, TypeError, "Model: `weights` must be a Mapping, got list"),
        (
            (config, weights | {"layers.0.blend": 0}, [1]),
            {},
            ValueError,
            "Model: did you mean 'layers.1.blend'? `weights` must be one of",
        ),
        (
            (config, lacking, [1]),
            {},
            ValueError,
            "Model: `weights` must have 'layers.1.blend' of shape (4,), got no such name",
        ),
        ((config, weights | {"gain": np.ones(3)}, [1]), {}, ValueError, "Model: `gain` must have shape (4,), got (3,)"),
        ((config, weights | {"gain": np.ones(4, "float32")}, [1]), {}, TypeError, "Model: `gain` has dtype float32"),
        (
            (config, weights | {"gain": np.full(4, np.nan)}, [1]),
            {},
            ValueError,
            "Model: `gain` must be finite, got nan or inf at column 0",
        ),
        ((config, weights, [5]), {}, ValueError, "transformer: `text` must hold ids from 0 to 4, got 5 at token 0"),
        (
            (config, weights, np.ones((2, 3))),
            {},
            ValueError,
            "transformer: `text` must have shape (..., tokens, 4), got (2, 3)",
        ),
        (
            (config, weights, [1]),
            {"form": "chunked"},
            ValueError,
            "rwkv: `form` must be one of recurrent, sum, got 'chunked'",
        ),
        (
            (config, weights, [1], states[:1]),
            {},
            ValueError,
            "Model: `biases` must be 2 states read from one position, got [1]",
        ),
        ((config, weights, [1], (1, 2)), {}, TypeError, "Model: `biases[0]` must be a Carried, got int"),
        (
            (config, weights, [1], (states[0], Carried({}, 1))),
            {},
            ValueError,
            "Model: `biases[1]` must have the parts time_shift, channel_shift, S, got none",
        ),
        (
            (config, weights, [1], (states[0], Carried(states[1].parts, 7))),
            {},
            ValueError,
            "Model: `biases` must be 2 states read from one position, got [1, 7]",
        ),
        (
            (config, weights, [1], (Carried(states[0].parts | {"S": np.ones((2, 2, 3))}, 1), states[1])),
            {},
            ValueError,
            "Model: `biases[0].S` must have shape (..., 2, 2, 2), got (2, 2, 3)",
        ),
        (
            (config, weights, [1], (Carried(states[0].parts | {"time_shift": np.full(4, np.inf)}, 1), states[1])),
            {},
            ValueError,
            "Model: `biases[0].time_shift` must be finite, got nan or inf at column 0",
        ),
        (
            (
                config,
                weights,
                [1],
                (Carried({name: x.astype("float32") for name, x in states[0].parts.items()}, 1), states[1]),
            ),
            {},
            TypeError,
            "Model: `biases[0].time_shift` has dtype float32, `W_V` has float64",
        ),
        (
            (config, weights, [[1]] * 3, rwkv(config, weights, [[1]] * 2)[1]),
            {},
            ValueError,
            "rwkv: leading axes (2,) of `states` must broadcast with (3,) of `text`",
        ),
        (
            (config, weights | {"layers.1.W_up": np.full((4, 6), 1e200)}, [1]),
            {},
            ri.NotFinite,
            "layer 1: rwkv: its output overflows",
        ),
        (
            (config, weights | {"unembedding": np.full((4, 5), 1.7e308)}, [1]),
            {},
            ri.NotFinite,
            "transformer: the output overflows",
        ),
    ):
        with says(kind, message), np.errstate(all="ignore"):
            rwkv(*arguments, **options)  # type: ignore[arg-type]
    model = ri.Model(config, weights)
    with says(ValueError, "rwkv: `shared` must hold `first_values`, which the first layer of version 7 leaves there"):
        config.layer(model, 1, np.ones((1, 4)), states[1], Pass())
    with says(ri.NotDefined, "a recurrence reads its text from left to right; `mask` must be 'causal', got 'full'"):
        ri.transformer(model, [1], mask="full")
    with says(ri.NotDefined, "the state of a recurrence is not a sum of its tokens; `strength` must be 1"):
        states[0].weighed(None, 2)


@SMALL
def test_the_configuration_goes_into_a_file_and_back(version: str, tmp_path: Path) -> None:
    config, weights = small(tmp_path, version)
    assert Rwkv.from_json(json.loads(json.dumps(config.to_json()))) == config
    _, states = rwkv(config, weights, [1, 2])
    for state in states:
        arrays = state.arrays()
        assert set(arrays) == {f"state.{name}" for name in config.carried} and all(map(Carried.owns, arrays))
        again = Carried.from_arrays(arrays, state.metadata(), 2, None, config.d)
        assert again.position == state.position and all(again.parts[name] is x for name, x in state.parts.items())
    assert not Carried.owns("state.") and not Carried.owns("cache.k")


# Files.


@SMALL
def test_a_file_in_float16(version: str, tmp_path: Path) -> None:
    narrow = {name: x.astype(np.float16) if x.ndim == 2 else x for name, x in tensors(version).items()}
    (tmp_path / "narrow.bin").write_bytes(file_of(narrow, header=(0x67676D66, 100, 5, 4, 2, 1)))
    (tmp_path / "wide.bin").write_bytes(file_of({name: x.astype(np.float32) for name, x in narrow.items()}))
    model, wide = (read_rwkv(tmp_path / name, system=FLOAT) for name in ("narrow.bin", "wide.bin"))
    assert (
        model.config == wide.config
        and list(model.weights) == list(model.config.shapes)
        and all(np.array_equal(w, wide.weights[name]) for name, w in model.weights.items())
    )


@SMALL
def test_matrices_are_turned_and_nothing_else_is_changed(version: str, tmp_path: Path) -> None:
    _, weights = small(tmp_path, version)
    found = tensors(version)
    for theirs, ours in {"att.key.weight": "W_K", "ffn.value.weight": "W_down"}.items():
        assert np.array_equal(weights[f"layers.1.{ours}"], found[f"blocks.1.{theirs}"].T)
    decay = "att.w0" if version == "7" else "att.time_decay"
    assert np.array_equal(weights["layers.1.decay"].ravel(), found[f"blocks.1.{decay}"].ravel())
    assert np.array_equal(weights["embedding"], found["emb.weight"])


def test_one_layer_of_version_7_has_no_blend(tmp_path: Path) -> None:
    config, weights = small(tmp_path, "7", layers=1)
    assert config.ranks == (3, 4, 1, 6) and rwkv(config, weights, [1, 2])[0].shape == (2, 5)


GOOD = tensors("5.2")
DECAY, KEY = "blocks.0.att.time_decay", "blocks.1.att.key.weight"


def without(name: str) -> dict[str, Any]:
    return {n: x for n, x in GOOD.items() if n != name}


def header(**changed: int) -> tuple[int, ...]:
    return tuple(
        {"magic": 0x67676D66, "version": 101, "vocabulary": 5, "width": 4, "layers": 2, "dtype": 0, **changed}.values()
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the header must have 24 bytes, got 0 before the end of the file"),
        (file_of(GOOD)[:23], "the header must have 24 bytes, got 23"),
        (file_of(GOOD, header=header(magic=1)), "must begin with the magic number 0x67676d66 of rwkv.cpp, got 0x1"),
        (file_of(GOOD, header=header(version=102)), "the file version must be 100 or 101, got 102"),
        (
            file_of(GOOD, header=header(dtype=7)),
            "header must have data type 0 (FP32) or 1 (FP16), got 7 (Q5_0), which is not",
        ),
        (file_of(GOOD, header=header(dtype=99)), "got 99 (unknown)"),
        (file_of(GOOD, header=header(vocabulary=0)), "vocabulary in the header must be at least 1"),
        (file_of(GOOD, header=header(vocabulary=2**31)), "and fit the file of"),
        (file_of(GOOD, header=header(width=2**32 - 1)), "in the header must be at least 1 and fit the file of"),
        (file_of(GOOD, header=header(width=0)), "width in the header must be at least 1"),
        (file_of(GOOD, header=header(layers=2**32 - 1)), "layers in the header must be at least 1 and fit the file of"),
        (
            file_of(GOOD, header=header(layers=1)),
            "tensors must be those of RWKV with 1 layers, got the name 'blocks.1.ln1.weight'",
        ),
        (file_of(GOOD, header=header(layers=3)), "tensor 'blocks.2.ln1.weight' must be in the file, got no such name"),
        (file_of(GOOD, header=header(vocabulary=6)), "tensor 'emb.weight' must have shape (6, 4), got (5, 4)"),
        (file_of(GOOD, header=header(width=2)), "tensor 'emb.weight' must have shape (5, 2), got (5, 4)"),
        (file_of(GOOD)[:24] + bytes(2**11), "the first tensor must have 1 to 3 axes, got 0"),
        (
            file_of(GOOD)[:-105],
            "the head of the tensor after 'ln_out.bias' must have 12 bytes, got 6 before the end of the file",
        ),
        (file_of(GOOD)[:-95], "the shape of the tensor after 'ln_out.bias' must have 8 bytes, got 4"),
        (file_of(GOOD)[:-85], "the name of the tensor after 'ln_out.bias' must have 11 bytes, got 6"),
        (
            file_of(GOOD)[:-44],
            "tensor 'head.weight' of shape (5, 4) must have 80 bytes, got 36 before the end of the file",
        ),
        (file_of(GOOD) + b"x", "the head of the tensor after 'head.weight' must have 12 bytes, got 1"),
        (file_of(GOOD) + bytes(12), "the tensor after 'head.weight' must have 1 to 3 axes, got 0"),
        (file_of(GOOD) + struct.pack("<3I", 9, 0, 0), "must have 1 to 3 axes, got 9"),
        (
            file_of(GOOD) + struct.pack("<4I", 1, 0, 9, 1),
            "after 'head.weight' must have data type 0 (FP32) or 1 (FP16), got 9 (Q8_0)",
        ),
        (
            file_of(GOOD) + struct.pack("<4I", 1, 2**32 - 1, 0, 1),
            "name of the tensor after 'head.weight' must have 4294967295 bytes",
        ),
        (file_of(GOOD | {"x": GOOD[KEY]}), "tensors must be those of RWKV with 2 layers, got the name 'x'"),
        (file_of(GOOD | {"x": GOOD[KEY]}, names={"x": b"\xff\xfe"}), "must be UTF-8, got b'\\xff\\xfe'"),
        (
            file_of(GOOD | {"x": GOOD[KEY]}, names={"x": KEY.encode()}),
            f"a tensor must be in the file once, got '{KEY}' twice",
        ),
        (
            file_of(GOOD | {"blocks.0.att.time_maa_x": GOOD[KEY]}),
            "must be of RWKV 4, 5.1, 5.2 or 7, got tensor 'blocks.0.att.time_maa",
        ),
        (
            file_of(GOOD | {"blocks.0.att.time_first": GOOD[DECAY]}),
            "every tensor must be a weight of the model, got 'blocks.0.att.time_first', which is not",
        ),
        (file_of(without(KEY)), f"tensor '{KEY}' must be in the file, got no such name"),
        (file_of(without(DECAY)), f"tensor '{DECAY}' must be in the file, got no such name"),
        (
            file_of(GOOD | {DECAY: np.zeros((0, 2, 1), "f4")}),
            f"tensor '{DECAY}' must have 3 axes, none of them empty, got shape (0, 2, 1)",
        ),
        (file_of(GOOD | {DECAY: np.zeros((3, 2, 1), "f4")}), "Rwkv: `heads` must divide width = 4, got 3"),
        (file_of(GOOD | {KEY: np.zeros((4, 3), "f4")}), f"tensor '{KEY}' must have shape (4, 4), got (4, 3)"),
        (
            file_of(GOOD | {KEY: np.full((4, 4), np.nan, "f4")}),
            f"tensor '{KEY}' must be finite, got nan or inf at index (0, 0)",
        ),
        (
            file_of(GOOD | {KEY: np.full((4, 4), np.inf, "f2")}),
            f"tensor '{KEY}' must be finite, got nan or inf at index (0, 0)",
        ),
    ],
    ids=range(37),
)
def test_files_that_lie(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(data)
    with says(ValueError, message) as raised:
        read_rwkv(path, system=FLOAT)
    assert str(raised.value).startswith(f"read_rwkv: {path}: ")


def test_what_is_no_file(tmp_path: Path) -> None:
    with says(OSError, f"read_rwkv: cannot read {tmp_path}: not a regular file"):
        read_rwkv(tmp_path, system=FLOAT)
    with says(OSError, "no such file"):
        read_rwkv(tmp_path / "none", system=FLOAT)
    (tmp_path / "model.bin").write_bytes(file_of(GOOD))
    with says(TypeError, "read_rwkv: `system` must be a System, got str"):
        read_rwkv(tmp_path / "model.bin", system="float64")  # type: ignore[arg-type]


FILES = {version: file_of(tensors(version)) for version in REAL}


def read_or_refuse(path: Path, data: bytes) -> None:
    """Whatever comes: weights, or a ValueError; and never much memory."""
    path.write_bytes(data)
    tracemalloc.start()
    try:
        model = read_rwkv(path, system=FLOAT)
        assert {name: x.shape for name, x in model.weights.items()} == model.config.shapes
    except ValueError as error:
        assert str(error).startswith(f"read_rwkv: {path}: "), error
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 2**20 + 20 * len(data)


@SMALL
@given(data=st.data())
def test_truncated_files(version: str, data: Any, tmp_path_factory: Any) -> None:
    whole = FILES[version]
    cut = data.draw(st.integers(0, len(whole) - 1))
    path = tmp_path_factory.getbasetemp() / "cut.bin"
    read_or_refuse(path, whole[:cut])
    with pytest.raises(ValueError, match="read_rwkv"):
        read_rwkv(path, system=FLOAT)


@SMALL
@given(data=st.data())
def test_overwritten_files(version: str, data: Any, tmp_path_factory: Any) -> None:
    """Integers of the header, of a tensor's head, or any bytes, overwritten."""
    whole = bytearray(FILES[version])
    for _ in range(data.draw(st.integers(1, 3))):
        near = data.draw(
            st.sampled_from(
                [st.integers(0, 5).map(lambda i: 4 * i), st.integers(24, 60), st.integers(0, len(whole) - 4)]
            )
        )
        at = data.draw(near)
        value = data.draw(
            st.sampled_from([0, 1, 2, 3, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1]) | st.integers(0, 2**32 - 1)
        )
        whole[at : at + 4] = struct.pack("<I", value)
    read_or_refuse(tmp_path_factory.getbasetemp() / "overwritten.bin", bytes(whole))


@given(st.binary(max_size=200))
@example(struct.pack("<6I", 0x67676D66, 101, 1, 1, 1, 0))
def test_any_bytes(tmp_path_factory: Any, data: bytes) -> None:
    for start in (b"", struct.pack("<6I", 0x67676D66, 101, 1, 1, 1, 0)):
        read_or_refuse(tmp_path_factory.getbasetemp() / "bytes.bin", start + data)
