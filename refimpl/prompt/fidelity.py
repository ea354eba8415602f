"""How near a converted model comes to the prompted one, and the model without the prompt."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ..arrays import Array, Mask
from ..checks import check_token_ids, check_type
from ..errors import choose
from ..model.transformer import Model, Pass, embed, run_layers, unembed
from ..systems import Float, floats, system_of
from ..systems.array import host
from ..systems.floats import itemsize, quiet
from ..systems.formats import FORMATS


@dataclass(frozen=True)
class Fidelity:
    """How near the logits of a converted model come to those of the prompted one, on an input.

    error, agreement                    relative error; share of tokens with the same likeliest next
    dropped_error, dropped_agreement    the same of the model without the prompt
    bytes, cache_bytes                  of the biases; of the prompt's KV cache, or None
    """

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
        own = f"relative logit error {self.error:.3g}, next-token agreement {self.agreement:.1%}"
        dropped = f"with the prompt dropped {self.dropped_error:.3g}, {self.dropped_agreement:.1%}"
        return f"{own}; {dropped}" + (": worse than without the prompt" if self.worse_than_dropped else "")

    def report(self) -> dict[str, Any]:
        return {"verdict": "WORSE" if self.worse_than_dropped else "MEASURED", **asdict(self)}


@quiet()
def fidelity(
    model: Model, converted: Model, prompt: Any, text: Any, *, form: Any = None, mask: str = "causal"
) -> Fidelity:
    """Compare the model on prompt and text (by `form`) with the converted one on the text."""
    for name, x in (("model", model), ("converted", converted)):
        check_type("fidelity", name, x, Model)
    choose("fidelity", "mask", mask, ("causal", "full"))
    texts, size = (("prompt", prompt), ("text", text)), model.config.vocabulary
    ids = [check_token_ids("fidelity", name, x, size) for name, x in texts]
    if not size or any(x is None for x in ids):
        wanted = "have a vocabulary, and `prompt` and `text` be token ids of it"
        raise ValueError(f"fidelity: `model` must {wanted}, got vectors")
    if not ids[1].size:
        raise ValueError("fidelity: `text` must have at least one token to compare, got none")
    lead = np.broadcast_shapes(*(x.shape[:-1] for x in ids))
    both, M = np.concatenate([np.broadcast_to(x, (*lead, x.shape[-1])) for x in ids], axis=-1), ids[0].shape[-1]
    want = logits_after(model, both, M, form, M if mask == "full" else mask)
    want, got, without = floats(want), floats(converted(text)), floats(model(text))
    sizes = sizes_in_bytes(converted)
    return Fidelity(*distance(got, want), *distance(without, want), sizes["biases"], sizes.get("kv_cache"))


def logits_after(model: Model, ids: Any, M: int, form: Any, mask: Mask = "causal") -> Array:
    """The logits of the tokens after the first M. Those of the prompt would need much memory."""
    x, _ = run_layers(model, embed(model, ids), Pass(form, mask))
    return unembed(model, x[..., M:, :])


def sizes_in_bytes(model: Model) -> dict[str, int]:
    """Bytes of its biases and, for attention, of an exact KV cache of the same prompts."""
    biases = model.biases or ()
    sizes = {"biases": sum(b.nbytes for b in biases)}
    cache = model.config.cache_bytes(sum(model.prompts), itemsize(model.like))
    batch = next(iter(biases[0].arrays().values())).shape[:-3] if biases else ()
    return sizes if cache is None else sizes | {"kv_cache": prod(batch) * cache}


def rounding(model: Model, converted: Model, prompt: Any, text: Any, *, form: Any = None) -> tuple[float, float] | None:
    """The errors of converted and prompted logits against wider floats; None without such."""
    system = system_of(model.like)
    kind = "longdouble" if isinstance(system, Float) and system.kind == "float64" else "float64"
    if not isinstance(system, Float) or np.finfo(kind).nmant <= FORMATS[system.kind][0]:
        return None

    def wide(x: Array, _: int = 0) -> Array:
        return host(x).astype(kind)

    biases = model.biases and tuple(b.map_arrays(wide) for b in model.biases)
    truth = replace(model, weights={name: wide(w) for name, w in model.weights.items()}, biases=biases)
    both, M = np.array([*map(int, host(prompt)), *map(int, host(text))]), len(prompt)
    want, prompted = (logits_after(m, both, M, form) for m in (truth, model))
    return distance(converted(text), want)[0], distance(prompted, want)[0]


def distance(got: Array, want: Array) -> tuple[float, float]:
    """‖got − want‖ / ‖want‖ of logits (n, vocabulary), and the share of rows with equal argmax."""
    got, want = floats(got), floats(want)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want)), float(np.mean(got.argmax(-1) == want.argmax(-1)))
