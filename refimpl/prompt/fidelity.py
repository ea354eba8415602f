"""How near a converted model comes to the prompted one, and whether that is nearer than without the prompt."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ..checks import instance, token_ids
from ..model.transformer import Form, Model, transformer
from ..systems import Float, floats, system_of
from ..systems.array import host
from ..systems.fast import itemsize
from ..systems.rounded import FORMATS


@dataclass(frozen=True)
class Fidelity:
    """Relative logit error and agreement of the likeliest next token, over all tokens of an input; the same with the prompt dropped."""

    error: float
    agreement: float
    dropped_error: float
    dropped_agreement: float
    bytes: int
    cache_bytes: int | None

    @property
    def worse_than_dropped(self) -> bool:
        return not self.error <= self.dropped_error

    def __str__(self) -> str:
        words = f"relative logit error {self.error:.3g}, next-token agreement {self.agreement:.1%}"
        return f"{words}; with the prompt dropped {self.dropped_error:.3g}, {self.dropped_agreement:.1%}" + (
            ": worse than without the prompt" if self.worse_than_dropped else ""
        )

    def report(self) -> dict[str, Any]:
        return {"verdict": "WORSE" if self.worse_than_dropped else "MEASURED", **asdict(self)}


def fidelity(
    model: Model, converted: Model, prompt: Any, text: Any, *, form: Form | None = None, mask: str = "causal"
) -> Fidelity:
    """Compare on an input: the prompted model over all positions (by `form`), the converted one on the input alone."""
    for name, x in (("model", model), ("converted", converted)):
        instance("fidelity", name, x, Model)
    ids = [token_ids("fidelity", name, x, model.config.vocabulary) for name, x in (("prompt", prompt), ("text", text))]
    if not model.config.vocabulary or any(x is None for x in ids):
        raise ValueError(
            "fidelity: `model` must have a vocabulary, and `prompt` and `text` be token ids of it, got vectors"
        )
    lead = np.broadcast_shapes(*(x.shape[:-1] for x in ids))
    both, M = np.concatenate([np.broadcast_to(x, (*lead, x.shape[-1])) for x in ids], axis=-1), ids[0].shape[-1]
    want, _ = transformer(model, both, form=form, mask=M if mask == "full" else mask)
    want, got, without = floats(want)[..., M:, :], floats(converted(text)), floats(model(text))
    sizes = sizes_in_bytes(converted)
    return Fidelity(*distance(got, want), *distance(without, want), sizes["biases"], sizes.get("kv_cache"))


def sizes_in_bytes(model: Model) -> dict[str, int]:
    """The size of its biases, and (of attention) of the KV cache of all prompts that they carry."""
    c, biases = model.config, model.biases or ()
    own = [getattr(b, "parts", None) or {name: getattr(b, name, None) for name in ("S", "z", "k", "v")} for b in biases]
    arrays = [x for parts in own for x in parts.values() if x is not None]
    size = itemsize(model.like) * sum(prod(x.shape) for x in arrays)
    sizes = {"biases": size + sum(memory.nbytes for b in biases for memory in getattr(b, "memories", ()))}
    if c.recurrent:
        return sizes
    lead = arrays[0].shape[:-3] if arrays else ()
    tokens = prod(lead) * c.layers * c.kv_heads * sum(model.prompts)
    return sizes | {"kv_cache": itemsize(model.like) * tokens * (c.d + c.m)}


def rounding(
    model: Model, converted: Model, prompt: Any, text: Any, *, form: Form | None = None
) -> tuple[float, float] | None:
    """How far converted and prompted logits lie from those of the prompted model in wider floats; None where there are none wider."""
    system = system_of(model.like)
    kind = "longdouble" if isinstance(system, Float) and system.kind == "float64" else "float64"
    if not isinstance(system, Float) or np.finfo(kind).nmant <= FORMATS[system.kind][0]:
        return None

    def wide(x: Any, _: int = 0) -> np.ndarray:
        return host(x).astype(kind)

    biases = model.biases and tuple(b.each(wide) for b in model.biases)
    truth = replace(model, weights={name: wide(w) for name, w in model.weights.items()}, biases=biases)
    both, M = [*map(int, host(prompt)), *map(int, host(text))], len(prompt)
    (want, _), (prompted, _) = (transformer(m, both, form=form) for m in (truth, model))
    return distance(converted(text), want[M:, :])[0], distance(prompted[M:, :], want[M:, :])[0]


def distance(got: Any, want: Any) -> tuple[float, float]:
    """Of logits (n, vocabulary): ‖got − want‖ / ‖want‖, as one long vector, and the share of tokens with the same likeliest successor."""
    got, want = floats(got), floats(want)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want)), float(np.mean(got.argmax(-1) == want.argmax(-1)))
