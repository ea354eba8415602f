"""Planted bugs in the conversion of a prompt: each a small edit of `convert` or `unconvert`, and
the rows of verify that it turns red.

`python tests/helpers/planted_conversions.py` prints which theorem rejects which bug.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import refimpl as ri
from refimpl.attention.state import State, no_text, scale, shift
from refimpl.prompt.conversion import convert, unconvert
from refimpl.verify.implementation import REFIMPL, Implementation
from refimpl.verify.registry import verify
from refimpl.verify.theorems.iclca import THEOREMS as CONVERSIONS


@dataclass(frozen=True)
class Bug:
    wrong: Callable[..., Any]
    entry: str
    catches: str
    rejected_by: tuple[str, ...]


BUGS: dict[str, Bug] = {}


def bug(catches: str, *rejected_by: str, entry: str = "convert") -> Callable[[Callable], Callable]:
    def plant(wrong: Callable) -> Callable:
        BUGS[wrong.__name__] = Bug(wrong, entry, catches, rejected_by)
        return wrong

    return plant


def length(prompt: Any) -> int:
    return (
        prompt.shape[-2]
        if hasattr(prompt, "shape")
        else len(prompt[0] if prompt and isinstance(prompt[0], list) else prompt)
    )


def edited(model: Any, edit: Callable[[State], State]) -> Any:
    return replace(model, biases=tuple(map(edit, model.biases)))


def shifted(model: Any, by: int) -> Any:
    """The model whose biases are seen from `by` positions further on."""
    return edited(model, lambda b: b.shifted(by, model.kernel))


def old_states(model: Any, like: Any) -> list[State]:
    """The biases before the conversion, of no text if there were none."""
    olds = model.biases or (None,) * model.config.layers
    return [b or no_text(a.S, *a.S.shape[-2:], lead=a.S.shape[:-2]) for b, a in zip(olds, like.biases, strict=True)]


@bug("S alone is not the state of a normalised layer", "iclca", "iclca_layers", "iclca_bias")
def forgotten_b_D(model, prompt, **options):
    done = convert(model, prompt, **options)
    return replace(
        done, biases=tuple(replace(b, z=a.z) for b, a in zip(done.biases, old_states(model, done), strict=True))
    )


@bug("biases seen from the end of the prompt, read from its beginning", "iclca", "iclca_layers", "iclca_bias")
def unshifted(model, prompt, *, restart=True, **options):
    return edited(
        convert(model, prompt, restart=False, **options),
        lambda b: replace(b, position=model.position if restart else b.position),
    )


@bug("the shift made twice", "iclca", "iclca_layers", "iclca_bias")
def doubly_shifted(model, prompt, *, restart=True, **options):
    done = convert(model, prompt, restart=restart, **options)
    return edited(shifted(done, -length(prompt)), lambda b: replace(b, position=done.position)) if restart else done


@bug("R_{+M} in place of R_{-M}", "iclca", "iclca_layers", "iclca_bias")
def shifted_forwards(model, prompt, *, restart=True, **options):
    done = convert(model, prompt, restart=False, **options)
    return edited(shifted(done, length(prompt)), lambda b: replace(b, position=model.position)) if restart else done


@bug("b_D turned along with b_KV, though RoPE stands after φ", "iclca", "iclca_layers", "iclca_bias")
def rotated_b_D(model, prompt, *, restart=True, **options):
    done = convert(model, prompt, restart=restart, **options)
    rope = model.kernel.rope
    if rope is None or not restart or rope.placement == "before":
        return done
    return edited(
        done,
        lambda b: replace(b, z=shift(State(b.z[..., None], None), -length(prompt), ri.Kernel(rope=rope)).S[..., 0]),
    )


@bug("the prompt pushed through with the new biases: it sees itself twice", "iclca", "iclca_layers")
def pushed_with_the_new_biases(model, prompt, **options):
    once = convert(model, prompt, **options | {"restart": False})
    return convert(
        replace(model, biases=tuple(replace(b, position=model.position) for b in once.biases)), prompt, **options
    )


@bug("the biases of another head", "iclca", "iclca_layers")
def wrong_head(model, prompt, **options):
    xp = ri.system_of(model.like).xp

    def roll(b):
        S = xp.concat([b.S[..., 1:, :, :], b.S[..., :1, :, :]], axis=-3)
        return State(S, xp.concat([b.z[..., 1:, :], b.z[..., :1, :]], axis=-2), b.position)

    return edited(convert(model, prompt, **options), roll)


@bug("the biases of another layer", "iclca", "iclca_layers")
def wrong_layer(model, prompt, **options):
    done = convert(model, prompt, **options)
    return replace(done, biases=done.biases[::-1])


@bug("positions that begin at 1 after the prompt", "iclca", "iclca_layers", "iclca_bias")
def restart_off_by_one(model, prompt, **options):
    return edited(convert(model, prompt, **options), lambda b: replace(b, position=b.position + 1))


@bug("λ applied to b_KV only", "iclca_strength")
def strength_once(model, prompt, *, strength=1, **options):
    full, some = convert(model, prompt, **options), convert(model, prompt, strength=strength, **options)
    return replace(some, biases=tuple(replace(b, z=a.z) for b, a in zip(some.biases, full.biases, strict=True)))


@bug("λ applied to the biases that were there before", "iclca_strength")
def strength_of_everything(model, prompt, *, strength=1, **options):
    return edited(convert(model, prompt, **options), lambda b: scale(b, strength))


@bug("a prompt whose tokens see each other, pushed through causally", "iclca_prefix", "iclca_layers")
def mask_ignored(model, prompt, *, mask="causal", **options):
    return convert(model, prompt, **options)


@bug("the last token of the prompt is lost", "iclca", "iclca_layers", "iclca_bias", "iclca_linear")
def last_token_lost(model, prompt, **options):
    if not length(prompt):
        return convert(model, prompt, **options)
    if hasattr(prompt, "shape"):
        prompt = prompt[..., :-1, :]
    else:
        prompt = [row[:-1] for row in prompt] if isinstance(prompt[0], list) else prompt[:-1]
    if "between" in options:
        options["between"] = padded(options["between"])
    done = convert(model, prompt, **options)
    if options.get("restart", True):
        return edited(shifted(done, -1), lambda b: replace(b, position=done.position))
    return edited(done, lambda b: replace(b, position=b.position + 1))


def padded(between):
    """The hook gives activations of the whole prompt; what is pushed through is one shorter."""
    return lambda i, x: between(i, x)[..., : x.shape[-2], :]


@bug("biases that were there are overwritten", "iclca", "iclca_bias", "iclca_linear")
def overwritten(model, prompt, **options):
    done, old = convert(model, prompt, **options), convert(model, prompt, **options | {"strength": 0})
    pairs = zip(done.biases, old.biases, strict=True)
    return replace(done, biases=tuple(State(b.S - a.S, b.z - a.z, b.position) for b, a in pairs))


@bug("streaming forgets the state between pieces", "iclca_composition")
def stream_forgets(model, prompt, *, chunk=None, **options):
    return convert(
        model,
        prompt[..., -chunk:, :] if chunk and hasattr(prompt, "shape") else prompt[-chunk:] if chunk else prompt,
        **options,
    )


@bug("an ε in b_D", "iclca", "iclca_layers", "iclca_bias")
def epsilon_in_b_D(model, prompt, **options):
    tiny = Fraction(1, 10**6) if isinstance(ri.system_of(model.like).xp, ri.systems.ArraySystem) else 1e-6
    return edited(convert(model, prompt, **options), lambda b: replace(b, z=b.z + tiny))


@bug("keys of the prompt counted from the wrong end", "iclca", "iclca_layers", "iclca_bias")
def backwards(model, prompt, **options):
    if hasattr(prompt, "shape"):
        rows = [prompt[..., i : i + 1, :] for i in reversed(range(prompt.shape[-2]))]
        return convert(model, ri.system_of(prompt).xp.concat(rows, axis=-2) if rows else prompt, **options)
    return convert(
        model, [row[::-1] for row in prompt] if prompt and isinstance(prompt[0], list) else prompt[::-1], **options
    )


@bug("removal that forgets the strength", "iclca_removal", entry="unconvert")
def removal_at_full_strength(model, prompt, *, strength=1, **options):
    return unconvert(model, prompt, **options)


@bug(
    "removal by the keys that the model with the prompt gives, not the one without", "iclca_removal", entry="unconvert"
)
def removal_with_the_new_biases(model, prompt, *, restart=True, **options):
    back = shifted(model, length(prompt)) if restart else model
    start = back.position - length(prompt)
    back = replace(back, biases=tuple(replace(b, position=start) for b in back.biases))
    again = convert(back, prompt, **options, restart=False)
    pairs = list(zip(back.biases, again.biases, strict=True))
    return replace(
        model,
        biases=tuple(State(a.S - (b.S - a.S), a.z - (b.z - a.z), start) for a, b in pairs),
        prompts=model.prompts[:-1],
    )


@bug("removal that leaves b_D as it is", "iclca_removal", entry="unconvert")
def removal_keeps_b_D(model, prompt, **options):
    done = unconvert(model, prompt, **options)
    return replace(done, biases=tuple(replace(b, z=a.z) for b, a in zip(done.biases, model.biases, strict=True)))


@bug("biases stored with 24 bits in a model of 53", "iclca", "iclca_layers", "iclca_bias")
def rounded_to_float32(model, prompt, **options):
    import numpy as np

    done = convert(model, prompt, **options)
    if ri.system_of(model.like) != ri.Float():
        return forgotten_b_D(model, prompt, **options)  # in exact numbers there is no such bug
    return edited(
        done, lambda b: State(b.S.astype(np.float32) + 0.0 * b.S, b.z.astype(np.float32) + 0.0 * b.z, b.position)
    )


@bug("b_D wrong in its tenth digit", "iclca", "iclca_layers", "iclca_bias")
def slightly_wrong_b_D(model, prompt, **options):
    few = Fraction(1, 10**10) if isinstance(ri.system_of(model.like).xp, ri.systems.ArraySystem) else 1e-10
    return edited(convert(model, prompt, **options), lambda b: replace(b, z=b.z + few * b.z))


def broken(name: str) -> Implementation:
    """The library with one bug."""
    return replace(REFIMPL, **{BUGS[name].entry: BUGS[name].wrong})


def rejects(theorem: str, name: str, system: Any, *, full: bool = False) -> bool:
    """Does this theorem fail with the bug planted, because of what comes out? A slip in the bug
    itself must not count.
    """
    (result,) = verify([theorem], [system], full=full, implementation=broken(name))
    slip = result.evidence.startswith("raised") and "the denominator φ(q)·z is zero" not in result.evidence
    return result.verdict == "FAIL" and not slip


def table() -> str:
    names = [t.name for t in CONVERSIONS if "equality" in t.ways]
    rows = [f"{name:28} {' '.join(t for t in names if rejects(t, name, ri.GF(2**61 - 1)))}" for name in BUGS]
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
