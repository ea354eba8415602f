"""Models, prompts and inputs. Hypothesis chooses shapes and options; values are uniform draws of
the number system.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

import refimpl as ri
from refimpl import QQ, Config, Model, Rotary, State
from refimpl.model.attention_layers import ORDERS
from tests.helpers import oracle

DRAWS = 20


@dataclass(frozen=True)
class Scene:
    """A model, a prompt of M tokens and an input of n tokens. `build` fills it with numbers of a
    system.
    """

    config: Config
    M: int
    n: int
    lead: tuple[int, ...]  # batch axes of prompt and input
    tokens: bool  # ids, or vectors
    position: int | None  # of the biases the model already has
    seed: int

    @property
    def restart(self) -> bool:
        """Can the input be read where the prompt began?"""
        rope = self.config.rope
        return not self.config.table and (rope is None or rope.placement == "after" or self.config.phi == "identity")

    def build(self, system: Any, attempt: int = 0) -> tuple[Model, Any, Any]:
        seed = 1000 * (1000 * attempt + self.seed)
        model = ri.random_model(system, self.config, seed)
        if self.position is not None:
            model = replace(model, biases=self.biases(system, seed + 700))
        return model, self.text(system, self.M, seed + 800), self.text(system, self.n, seed + 801)

    def biases(self, system: Any, seed: int) -> tuple[State, ...]:
        c = self.config
        r = ri.feature_map(c.phi)(system.random((1, c.d), 0)).shape[-1]
        states = (
            (system.random((c.kv_heads, r, c.m), s), system.random((c.kv_heads, r), s + 1))
            for s in range(seed, seed + 2 * c.layers, 2)
        )
        return tuple(State(S, z, self.position or 0) for S, z in states)

    def text(self, system: Any, length: int, seed: int) -> Any:
        if self.tokens:
            return np.random.default_rng(seed).integers(0, self.config.vocabulary, (*self.lead, length))
        return system.random((*self.lead, length, self.config.width), seed)

    def draw(self, system: Any, run: Callable[[Model, Any, Any], Any] | None = None) -> tuple[Model, Any, Any, Any]:
        """Model, prompt, input, and what they give when run: prompted, unless told.

        A draw with a zero denominator is thrown away, at most 20 times.
        """
        for attempt in range(DRAWS):
            try:
                model, prompt, text = self.build(system, attempt)
                return model, prompt, text, (run or prompted)(model, prompt, text)
            except ZeroDivisionError:
                continue
        raise AssertionError(f"{DRAWS} draws in a row had a zero denominator: {self}")


def are_ids(text: Any) -> bool:
    return isinstance(text, np.ndarray) and text.dtype.kind == "i"


def join(a: Any, b: Any) -> Any:
    """Text a, then text b."""
    return np.concatenate([a, b], axis=-1) if are_ids(a) else ri.system_of(a).xp.concat([a, b], axis=-2)


def length(text: Any) -> int:
    return text.shape[-1 if are_ids(text) else -2]


def prompted(model: Model, prompt: Any, text: Any, **options: Any) -> Any:
    """The definition over all positions: for each token of prompt and input its own sum. Of that,
    the input's part.
    """
    return model(join(prompt, text), form=ri.linear_attention, **options)[..., length(prompt) :, :]


def cut(text: Any, *ends: int) -> list[Any]:
    """The text in consecutive pieces."""
    return [
        text[..., a:b] if are_ids(text) else text[..., a:b, :]
        for a, b in zip((0, *ends), (*ends, length(text)), strict=True)
    ]


def in_numbers(model: Model, system: Any) -> Model:
    """The same model in the numbers of another system."""
    weights = {name: system.convert(x) for name, x in model.weights.items()}
    biases = model.biases and tuple(State(system.convert(b.S), system.convert(b.z), b.position) for b in model.biases)
    return Model(model.config, weights, biases)


def probing(system: Any, probe: ri.Probe) -> tuple[Model, np.ndarray, np.ndarray]:
    """A model whose attention is the probe, a text for it, and what must come out: x = [q | k | v |
    0], and the output replaces the 0.
    """
    (heads, n, r), m, kernel = probe.q.shape, probe.v.shape[-1], probe.options["kernel"]
    rope = kernel.rope
    rotary = rope and Rotary(2 * (r // 2), rope.layout, rope.placement, None)
    ends = np.cumsum([0, heads * r, heads * r, heads * m, heads * m])
    config = Config(
        1, int(ends[-1]), heads=heads, d=r, m=m, phi="identity", norm="none", normalise=kernel.normalise, rope=rotary
    )
    parts = {name: np.eye(ends[-1])[:, a:b] for name, a, b in zip("QKVO", ends[:-1], ends[1:], strict=True)}
    weights = {f"layers.0.W_{name}": system.convert(part.T if name == "O" else part) for name, part in parts.items()}
    if rope:
        weights["rope.c"], weights["rope.s"] = (x[0, :] for x in rope.table([1]))
    q, k, v, o = (np.moveaxis(ri.floats(x), 0, 1).reshape(n, -1) for x in (probe.q, probe.k, probe.v, probe.expected))
    return (
        Model(config, weights, (probe.options["state"],)),
        np.concatenate([q, k, v, 0 * o], axis=-1),
        np.concatenate([q, k, v, o], axis=-1),
    )


def kronecker(x: list) -> list:
    return [a * b for a in (1, *x) for b in (1, *x)]


def dpfp(x: list) -> list:
    both = [max(a, 0) for a in [*x, *(-a for a in x)]]
    return [a * both[i - 1] for i, a in enumerate(both)]


PLAIN = {"identity": list, "polynomial(2)": kronecker, "relu2": lambda x: [max(a, 0) ** 2 for a in x], "dpfp(1)": dpfp}


def in_plain_python(model: Model, text: Any, **options: Any) -> list:
    """What the oracle says of each text of a batch."""
    w = {name: x.tolist() for name, x in model.weights.items()}
    if model.biases:
        options |= {
            "biases": [list(zip(b.S.tolist(), b.z.tolist(), strict=True)) for b in model.biases],
            "position": model.position,
        }
    options = {"points": list(zip(w.get("rope.c", []), w.get("rope.s", []), strict=True))} | options
    options = {"phi": (PLAIN.get(model.config.phi),) * 2} | options
    lead = text.shape[: text.ndim - (1 if are_ids(text) else 2)]
    return [oracle.transformer(text[at].tolist(), w, asdict(model.config), **options) for at in np.ndindex(*lead)]


def one_by_one(x: Any) -> list:
    """A batch of outputs as a list of them."""
    return [x[at].tolist() for at in np.ndindex(*x.shape[:-2])]


PHIS = {"field": ["identity", "polynomial(2)"], "ordered": ["relu2", "dpfp(1)"]}
WIDTHS = {
    "identity": lambda d: d,
    "polynomial(2)": lambda d: (d + 1) ** 2,
    "relu2": lambda d: d,
    "dpfp(1)": lambda d: 2 * d,
}


@st.composite
def scenes(draw: Any, system: Any, *, restart: bool = False) -> Scene:
    """Scenes for an exact system. restart: only those whose input can be read where the prompt
    began.

    In ℚ the numbers grow with every division and product: a deep model there has few of them.
    """
    small = system is QQ
    phi = draw(st.sampled_from([phi for need, phis in PHIS.items() if need in system.can for phi in phis]))
    # such features are often 0 together
    normalise = phi not in PHIS["ordered"] and draw(st.booleans())
    groups, shared, m, d = (draw(st.integers(1, most)) for most in (2, 2, 3, 2 if small else 3))
    norm, hidden = draw(st.sampled_from(["none", "rms_rational", "layer_rational"])), draw(st.integers(0, 3))
    rope = None
    if draw(st.booleans()):
        placement = draw(st.sampled_from(ri.rope.PLACEMENTS if not restart or phi == "identity" else ["after"]))
        widest = d if placement == "before" else min(WIDTHS[phi](d), 4)
        rope = Rotary(
            2 * draw(st.integers(min(1, widest // 2), widest // 2)),
            draw(st.sampled_from(ri.rope.LAYOUTS)),
            placement,
            None,
        )
    growth = sum(
        [normalise, phi != "identity", rope is not None, norm != "none", hidden > 0, norm != "none" and hidden > 0]
    )
    layers = draw(st.integers(1, max(1, 4 - growth) if small and growth else 3))
    M, n = draw(st.integers(0, 4 if small else 7)), draw(st.integers(0, 3 if small else 6))
    position = draw(st.none() | st.integers(0 if small else -3, 3 if small else 40))
    absolute = not restart and position in (None, 0, 1, 2, 3) and draw(st.booleans())
    vocabulary = draw(st.integers(2, 6)) if draw(st.booleans()) else 0
    config = Config(
        layers,
        draw(st.integers(1, 3 if small else 5)),
        groups * shared,
        None if shared == 1 and draw(st.booleans()) else groups,
        d,
        m,
        phi=phi,
        normalise=normalise,
        rope=rope,
        order=draw(st.sampled_from(ORDERS)),
        norm=norm,
        hidden=hidden,
        activation=draw(st.sampled_from(["quadratic", "relu"] if "ordered" in system.can else ["quadratic"])),
        gated=draw(st.booleans()),
        biased=draw(st.booleans()),
        vocabulary=vocabulary,
        tied=draw(st.booleans()),
        table=20 if absolute else 0,
    )
    lead = draw(st.sampled_from([(), (), (2,)] if small else [(), (2,), (2, 1)]))
    return Scene(config, M, n, lead, bool(vocabulary) and draw(st.booleans()), position, draw(st.integers(0, 10**6)))
