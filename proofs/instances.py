"""Small instances, computed by Python, for Coq to compute again:  python instances.py > instances.v

Each is drawn at random (always the same), put through functions of refimpl in ℚ, and printed as an
Example: given the inputs of Python, the computable twin (computable.v) of the proved definitions
gives the outputs of Python, exactly. If a formula changes on either side, instances.v does not
build.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod
from typing import Any

import refimpl as ri
from refimpl import QQ, Config, Kernel, Rope, Rotary, State

FORMS = (
    ri.linear_attention,
    ri.linear_attention_quadratic,
    ri.linear_attention_recurrent,
    functools.partial(ri.linear_attention_chunked, chunk=2),
)

HEADER = """\
(* Made by instances.py: what refimpl computes in exact rationals, computed   *)
(* again by the twins of the definitions that are proved here.                *)
From Coq Require Import ZArith.
From mathcomp Require Import all_ssreflect all_algebra.
From icl Require Import linear_attention rope conversion rationals computable.
Set Implicit Arguments.
Unset Strict Implicit.
Import GRing.Theory.
Local Open Scope ring_scope.

Notation "a // b" := (frac a b) (at level 40).
Notation A := (@Array Qc_fieldType).

Definition lists_of {r m} (a : c_state Qc_fieldType r m) :=
  (lists a.1, lists a.2).
Definition past_of {r m} (a : c_past Qc_fieldType r m) := (lists_of a.1, a.2).
"""


# Coq's words


def number(x: Fraction) -> str:
    return f"{x.numerator if x >= 0 else f'({x.numerator})'}//{x.denominator}"


def integer(p: int) -> str:
    return f"(Posz {p})" if p >= 0 else f"(Negz {-p - 1})"


def seq(items: Any) -> str:
    return f"[:: {'; '.join(items)}]" if (items := list(items)) else "[::]"


def lists(x: Any) -> str:
    return seq(seq(map(number, row)) for row in QQ.fractions(x))


def array(x: Any) -> str:
    return f"(A {x.shape[0]} {x.shape[1]} {lists(x)})"


def boolean(x: bool) -> str:
    return "true" if x else "false"


def state(b: State, show: Callable[[Any], str] = array) -> str:
    """S and, as a column, z."""
    return f"({show(b.S)}, {show(b.z[:, None])})"


def past(b: State, show: Callable[[Any], str] = array) -> str:
    return f"({state(b, show)}, {integer(b.position)})"


def biases(states: Any, show: Callable[[Any], str] = array) -> str:
    """For each layer, for each group."""
    return seq(seq(state(State(b.S[g, :, :], b.z[g, :]), show) for g in range(b.S.shape[0])) for b in states)


def feature_map(name: str, d: int) -> str:
    """φ by its name in Python."""
    return "id" if name == "identity" else f"(@c_polynomial _ {d} {name.removeprefix('polynomial(').removesuffix(')')})"


def turns(rope: Any, c: Any, s: Any, r: int) -> tuple[str, str]:
    """What turns the features of the numerator, and of the denominator."""
    still = "c_no_rotation"
    if rope is None:
        return still, still
    h = c.shape[-1]
    turn = f"(@c_rope _ {h} {r - 2 * h} {rope.layout.capitalize()} {array(c[None, :])} {array(s[None, :])})"
    return turn, turn if rope.placement == "before" else still


def equal(x: str, values: Any) -> str:
    """x is each of these values, of which the same is not written twice."""
    values = list(dict.fromkeys(values))
    assert values, f"{x} is compared with nothing"
    return f"all (eq_op {x}) {seq(values)}"


def example(name: str, lets: dict[str, str], claims: list[str]) -> str:
    """All claims hold, by computation."""
    lines = [f"  let {x} := {value} in" for x, value in lets.items()]
    all_of_them = " &&\n  ".join(f"({claim})" for claim in claims)
    return "\n".join([f"\nExample {name} :", *lines, f"  {all_of_them}.", "Proof. by vm_compute. Qed."])


# Drawing


class Draw:
    """Small rationals, none of them 0 or 1: circle_point(t) is then no quarter turn."""

    numbers = tuple(Fraction(a, 2) for a in (-6, -4, -3, -1, 1, 3, 4, 6))

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)

    def __call__(self, *shape: int) -> Any:
        return QQ.reshape(QQ.convert(self.random.choices(self.numbers, k=prod(shape))), shape)

    def state(self, *lead: int, r: int, m: int, position: int) -> State:
        return State(self(*lead, r, m), self(*lead, r), position)

    def circle(self, h: int) -> tuple[Any, Any]:
        return ri.circle_point(self(h))


def draw_instance(name: str, make: Callable[[Draw], str]) -> str:
    """Draw once: if Python refuses, there is no instance, so too many refusals are found out."""
    return make(Draw(f"{name} 0"))


# Attention


@dataclass(frozen=True)
class Attention:
    n: int
    d: int
    m: int
    mask: str | int = "causal"
    normalise: bool = True
    phi: str = "identity"
    pairs: int | None = None
    layout: str = "half"
    placement: str = "after"
    position: int = 0
    start: bool = True

    @property
    def P(self) -> int:
        return self.mask if isinstance(self.mask, int) else {"causal": 0, "full": self.n}[self.mask]

    def inputs(self, draw: Draw) -> tuple[dict[str, str], tuple[Any, ...], State, tuple[str, str]]:
        """The definitions for Coq, the arguments for Python, the state, and both rotations."""
        q, k, v = draw(self.n, self.d), draw(self.n, self.d), draw(self.n, self.m)
        phi = ri.feature_map(self.phi)
        r = phi(k).shape[-1]
        c, s = draw.circle(self.pairs or 0)
        rope = None if self.pairs is None else Rope(ri.power_table(c, s), self.layout, self.placement)
        begin = (
            draw.state(r=r, m=self.m, position=self.position)
            if self.start
            else ri.state.no_text(v, r, self.m, position=self.position)
        )
        f, g = turns(rope, c, s, r)
        given = array(q), array(k)
        lets = {x: f"c_each {feature_map(self.phi, self.d)} {y}" for x, y in zip("qk", given, strict=True)}
        lets |= {"v": array(v), "past": past(begin)}
        return lets, (q, k, v, Kernel(self.phi, rope, self.normalise)), begin, (f, g)


def attention(name: str, a: Attention) -> str:
    """Every form, and the state after it; which `absorb` gives too."""

    def make(draw: Draw) -> str:
        lets, (q, k, v, kernel), begin, (f, g) = a.inputs(draw)
        done = [form(q, k, v, kernel, mask=a.mask, state=begin) for form in FORMS]
        after = ri.state.absorb(begin, k, v, kernel)
        claims = [f"c_accepts {g} past q k {a.P} {boolean(a.normalise)}"]
        lets["o"] = f"lists (c_attend {f} {g} past q k v {a.P} {boolean(a.normalise)})"
        lets["after"] = f"past_of (c_absorb_text {f} {g} past k v)"
        claims += [equal("o", (lists(o) for o, _ in done))]
        claims += [equal("after", (past(b, lists) for _, b in (*done, (None, after))))]
        return example(name, lets, claims)

    return draw_instance(name, make)


def refused(name: str, a: Attention, query: Callable[[Any, Any, State], Any]) -> str:
    """A query with a zero denominator: program and twin refuse it; with q neither does."""
    lets, (q, *rest), begin, (_, g) = a.inputs(Draw(name))
    bad = query(q, rest[0], begin)
    for form in FORMS:
        form(q, *rest, mask=a.mask, state=begin)
        refuses(form, bad, *rest, mask=a.mask, state=begin)
    lets["bad"] = array(bad)
    accepts = [f"c_accepts {g} past {x} k {a.P} {boolean(a.normalise)}" for x in ("q", "bad")]
    return example(name, lets, [accepts[0], f"~~ {accepts[1]}"])


def orthogonal(q: Any, k: Any, begin: State) -> Any:
    """q, with the first query, not 0, orthogonal to the z that it reads: causal, two features."""
    z = begin.z + k[0, :]
    assert any(QQ.fractions(z))
    return QQ.concat([QQ.stack([-z[1], z[0]])[None, :], q[1:, :]], axis=0)


def refuses(run: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    try:
        run(*arguments, **options)
    except ri.ZeroDenominator:
        return
    raise AssertionError("a zero denominator is not refused")


ATTENTION = {
    "causal": Attention(n=4, d=2, m=3),
    "no_state": Attention(n=5, d=3, m=2, start=False),
    "full": Attention(n=3, d=2, m=1, mask="full"),
    "prefix": Attention(n=5, d=2, m=2, mask=3),
    "unnormalised": Attention(n=4, d=3, m=2, normalise=False),
    "unnormalised_square": Attention(n=3, d=2, m=2, normalise=False),
    "polynomial": Attention(n=3, d=2, m=2, phi="polynomial(2)"),
    "no_tokens": Attention(n=0, d=2, m=3),
    "no_values": Attention(n=2, d=2, m=0),
    "no_features": Attention(n=2, d=0, m=2, normalise=False),
    "one_token": Attention(n=1, d=1, m=1),
    "rope_half": Attention(n=4, d=4, m=2, pairs=2),
    "rope_interleaved": Attention(n=4, d=4, m=2, pairs=2, layout="interleaved"),
    "rope_partial": Attention(n=3, d=5, m=2, pairs=2, layout="interleaved", position=3),
    "rope_negative_position": Attention(n=5, d=3, m=2, pairs=1, position=-3),
    "rope_before": Attention(n=4, d=2, m=3, pairs=1, placement="before", position=2),
    "rope_before_interleaved": Attention(n=3, d=5, m=1, pairs=2, layout="interleaved", placement="before", mask=2),
    "rope_after_polynomial": Attention(n=3, d=2, m=2, phi="polynomial(2)", pairs=4, mask="full", position=1),
    "rope_no_pairs": Attention(n=2, d=3, m=2, pairs=0, normalise=False),
}


# The algebra of states


def algebra(name: str, a: Attention) -> str:
    draw = Draw(name)
    _, (*_, kernel), one, (f, g) = a.inputs(draw)
    two, strength, by, origin = draw.state(r=one.S.shape[0], m=a.m, position=4), Fraction(-3, 7), 5, 1
    pairs = {
        f"c_shift_past {f} {g} a {integer(by)}": ri.state.shift(one, by, kernel),
        f"c_shift_past {f} {g} a {integer(-by)}": ri.state.shift(one, -by, kernel),
        f"c_join {f} {g} a b {integer(origin)}": ri.state.join(one, two, kernel, origin=origin),
        f"c_remove {f} {g} b a {integer(origin)}": ri.state.remove(two, one, kernel, origin=origin),
        f"c_scale_past a ({number(strength)})": ri.state.scale(one, strength),
    }
    return example(
        name, {"a": past(one), "b": past(two)}, [f"past_of ({x}) == {past(b, lists)}" for x, b in pairs.items()]
    )


ALGEBRA = {
    "states": Attention(n=0, d=2, m=3, position=2),
    "states_half": Attention(n=0, d=3, m=2, pairs=1, position=2),
    "states_interleaved": Attention(n=0, d=4, m=1, pairs=2, layout="interleaved", position=-1),
    "states_before": Attention(n=0, d=4, m=2, pairs=2, placement="before", position=2),
}


# Models


@dataclass(frozen=True)
class Conversion:
    """A prompt of M tokens before a text of n, on a model that carries random biases or none."""

    M: int
    n: int
    mask: str = "causal"
    position: int = 0
    carries: bool = True
    config: dict[str, Any] = field(default_factory=dict)


STRENGTH = Fraction(-3, 2)
EXACT = {"norm": "none", "activation": "quadratic", "phi": "identity"}


def conversion(name: str, a: Conversion) -> str:
    """The prompted model in every form, with its states; the biases of the converted one, also in
    pieces, and its output, from where the prompt began or ended; strength and removal."""
    config = Config(**EXACT | a.config)
    P = a.M if a.mask == "full" else 0

    def make(draw: Draw) -> str:
        model = ri.draw_model(draw, config)
        r = ri.feature_map(config.phi)(draw(1, config.d)).shape[-1]
        if a.carries:
            start = {"r": r, "m": config.m, "position": a.position}
            model = model.with_biases([draw.state(config.kv_heads, **start) for _ in range(config.layers)])
        prompt, text = draw(a.M, config.width), draw(a.n, config.width)
        whole = QQ.concat([prompt, text], axis=-2)
        prompted = [ri.transformer(model, whole, form=form, mask=P) for form in FORMS]
        converted = ri.convert(model, prompt, mask=a.mask)
        in_pieces = [ri.convert(model, prompt, chunk=chunk) for chunk in (1, 2) if a.mask == "causal" and a.M]
        going_on = ri.convert(model, prompt, mask=a.mask, restart=False)
        weaker = ri.convert(model, prompt, mask=a.mask, strength=STRENGTH)
        f, g = turns(config.rope, model.weights.get("rope.c"), model.weights.get("rope.s"), r)
        flags = f"{boolean(config.normalise)} {boolean(config.order == 'parallel')}"
        options = f"{feature_map(config.phi, config.d)} {f} {g} {flags} ws"
        lets = {
            "ws": seq(weights(config, model.layer_weights(i)) for i in range(config.layers)),
            "bs": biases(model.biases or ()),
            "p": integer(model.position),
            "whole": array(whole),
            "prompt": array(prompt),
            "new": f"c_convert {options} p {P} bs prompt",
            "going_on": f"c_absorb {options} bs p {P} prompt",
            "weaker": f"c_convert_strength {options} ({number(STRENGTH)}) p {P} bs prompt",
        }
        removed = [
            biases(ri.unconvert(weaker, prompt, mask=a.mask, strength=STRENGTH, form=form).biases, lists)
            for form in FORMS
        ]
        claims = [
            f"c_defined_run {options} bs p {P} whole",
            equal(f"(lists (c_run {options} bs p {P} whole))", (lists(o) for o, _ in prompted)),
            equal(f"(map (map lists_of) (c_absorb {options} bs p {P} whole))", (biases(b, lists) for _, b in prompted)),
            equal("(map (map lists_of) new)", (biases(done.biases, lists) for done in (converted, *in_pieces))),
            f"lists (c_run {options} new p 0 {array(text)}) == {lists(converted(text))}",
            f"map (map lists_of) going_on == {biases(going_on.biases, lists)}",
            f"lists (c_run {options} going_on {integer(model.position + a.M)} 0 {array(text)}) == "
            f"{lists(going_on(text))}",
            f"map (map lists_of) weaker == {biases(weaker.biases, lists)}",
            equal(f"(map (map lists_of) (c_unconvert {options} ({number(STRENGTH)}) p {P} weaker prompt))", removed),
        ]
        return example(name, lets, claims)

    return draw_instance(name, make)


def refused_model(name: str) -> str:
    """Queries that are 0 in the last layer."""
    draw, config = Draw(name), Config(**EXACT, layers=2, width=2, d=2)
    model = ri.draw_model(draw, config)
    model = ri.Model(config, model.weights | {"layers.1.W_Q": QQ.zeros((2, 2))})
    text = draw(2, 2)
    for form in FORMS:
        refuses(ri.transformer, model, text, form=form)
    ws = seq(weights(config, model.layer_weights(i)) for i in range(2))
    run = f"c_defined_run id c_no_rotation c_no_rotation true false ws [::] {integer(0)} 0 {array(text)}"
    return example(name, {"ws": ws}, [f"~~ {run}"])


def weights(c: Config, given: dict[str, Any]) -> str:
    """Those of one layer, 0 where it has none."""
    q, k, v = c.heads * c.d, c.kv_heads * c.d, c.kv_heads * c.m
    shapes = {
        "W_Q": (c.width, q),
        "b_Q": (1, q),
        "W_K": (c.width, k),
        "b_K": (1, k),
        "W_V": (c.width, v),
        "b_V": (1, v),
    }
    shapes |= {"W_O": (c.heads * c.m, c.width), "b_O": (1, c.width)}
    shapes |= {
        "W_up": (c.width, c.hidden),
        "b_up": (1, c.hidden),
        "W_down": (c.hidden, c.width),
        "b_down": (1, c.width),
    }
    parts = (QQ.reshape(given[name], shape) if name in given else QQ.zeros(shape) for name, shape in shapes.items())
    numbers = c.width, c.kv_heads, c.heads // c.kv_heads, c.d, c.m, c.hidden
    return f"@Weights (array Qc_fieldType) {' '.join(map(str, numbers))} {' '.join(map(array, parts))}"


def rotary(width: int, **options: Any) -> Rotary:
    return Rotary(width, base=None, **options)


CONVERSION = {
    "one_layer": Conversion(M=3, n=2, config={"layers": 1, "width": 2, "d": 2, "m": 2, "rope": rotary(2)}),
    "two_heads": Conversion(
        M=2, n=2, position=3, config={"layers": 1, "width": 3, "heads": 2, "d": 2, "rope": rotary(2)}
    ),
    "grouped": Conversion(
        M=2, n=1, config={"layers": 1, "width": 2, "heads": 4, "groups": 2, "d": 3, "m": 2, "rope": rotary(2)}
    ),
    "no_positions": Conversion(M=2, n=3, config={"layers": 1, "width": 2, "d": 2, "m": 1, "hidden": 3, "biased": True}),
    "no_biases": Conversion(
        M=3, n=1, carries=False, config={"layers": 2, "width": 2, "d": 2, "m": 1, "rope": rotary(2)}
    ),
    "two_layers": Conversion(
        M=1,
        n=1,
        position=-1,
        config={"layers": 2, "width": 2, "heads": 2, "groups": 1, "d": 2, "biased": True, "rope": rotary(2)},
    ),
    "parallel": Conversion(
        M=2,
        n=1,
        config={
            "order": "parallel",
            "layers": 2,
            "width": 1,
            "heads": 2,
            "d": 2,
            "hidden": 2,
            "rope": rotary(2, layout="interleaved"),
        },
    ),
    "post": Conversion(M=1, n=2, config={"order": "post", "layers": 1, "width": 2, "heads": 2, "d": 2, "hidden": 2}),
    "before": Conversion(
        M=2,
        n=2,
        position=1,
        config={"layers": 1, "width": 2, "heads": 2, "d": 4, "rope": rotary(4, placement="before")},
    ),
    "before_interleaved": Conversion(
        M=2, n=1, config={"layers": 2, "width": 2, "d": 5, "rope": rotary(4, layout="interleaved", placement="before")}
    ),
    "unnormalised_layers": Conversion(
        M=2,
        n=2,
        config={
            "layers": 2,
            "width": 2,
            "heads": 2,
            "d": 2,
            "m": 2,
            "normalise": False,
            "rope": rotary(2),
            "hidden": 1,
        },
    ),
    "polynomial_layer": Conversion(
        M=2, n=1, config={"layers": 1, "width": 2, "d": 2, "m": 2, "phi": "polynomial(2)", "rope": rotary(8)}
    ),
    "prefix_layers": Conversion(
        M=3, n=1, mask="full", config={"layers": 2, "width": 1, "d": 2, "m": 2, "rope": rotary(2)}
    ),
    "no_prompt": Conversion(M=0, n=2, config={"layers": 1, "width": 2, "d": 2, "rope": rotary(2)}),
    "no_text": Conversion(M=2, n=0, config={"layers": 1, "width": 2, "d": 2, "rope": rotary(2)}),
}


# On the definitions themselves: the theorems of computable.v close the chain


def section(name: str, lets: dict[str, str], R: str, statement: str, proof: str) -> str:
    """R : which RoPE, of the points c, s of the circle."""
    lines = [f"Let {x} := {value}." for x, value in lets.items()]
    lines += [f"Lemma circle_{name} : c_circle c s. Proof. by vm_compute. Qed."]
    lines += [f"Let R := {R} (power_table (circle_c circle_{name})) Half."]
    return "\n".join(
        [
            f"\nSection {name.capitalize()}.",
            *lines,
            f"Example {name} :\n  {statement}.",
            proof,
            f"End {name.capitalize()}.",
        ]
    )


def definition_attention(name: str) -> str:
    """linear_attention.v's attend, with RoPE after φ, under a prefix mask and from a state."""

    def make(draw: Draw) -> str:
        q, k, v, (c, s), begin = draw(4, 3), draw(4, 3), draw(4, 2), draw.circle(1), draw.state(r=3, m=2, position=-1)
        o, _ = ri.linear_attention(q, k, v, Kernel(rope=Rope(ri.power_table(c, s))), state=begin, mask=2)
        lets = {x: array(y) for x, y in {"c": c[None, :], "s": s[None, :], "q": q, "k": k, "v": v}.items()} | {
            "past": past(begin)
        }
        statement = f"""attend R (no_rotation _ _) (to_past past) (to_mx q) (to_mx k) (to_mx v) 2 true =
  to_mx {array(o)}"""
        proof = """Proof.
have H_R : turns R (c_rope Half c s) by exact: rope_c.
rewrite -(attend_c H_R (@no_rotation_c _ _)).
by apply: eq_to_mx; vm_compute.
Qed."""
        return section(name, lets, "rope 1", statement, proof)

    return draw_instance(name, make)


def definition_conversion(name: str) -> str:
    """conversion.v's convert and run: what two layers say after a prompt that has become biases."""
    config = Config(**EXACT, layers=2, width=2, heads=2, groups=1, d=2, hidden=1, rope=rotary(2))

    def make(draw: Draw) -> str:
        model = ri.draw_model(draw, config)
        model = model.with_biases([draw.state(1, r=2, m=1, position=2) for _ in range(2)])
        prompt, text = draw(2, 2), draw(1, 2)
        lets = {x: array(model.weights[f"rope.{x}"][None, :]) for x in "cs"}
        lets |= {"ws": seq(weights(config, model.layer_weights(i)) for i in range(2)), "bs": biases(model.biases)}
        statement = f"""run 2 0 (convert 2 0 (to_biases id R (no_rotation _ _) true false ws bs)
    (to_mx {array(prompt)}))
    (to_mx {array(text)}) =
  to_mx {array(ri.convert(model, prompt)(text))}"""
        proof = """Proof.
have H_phi x : to_mx (id x) = id (to_mx x) :> 'rV[Qc_fieldType]_2 by [].
have H_R : turns R (c_rope Half c s) by exact: rope_c.
rewrite -(convert_c H_phi H_R (@no_rotation_c _ _)).
rewrite -(run_c H_phi H_R (@no_rotation_c _ _)).
by apply: eq_to_mx; vm_compute.
Qed."""
        return section(name, lets, "rope 0", statement, proof)

    return draw_instance(name, make)


def examples() -> Iterator[str]:
    yield HEADER
    for name, a in ATTENTION.items():
        yield attention(f"attention_{name}", a)
    yield refused("attention_refused", Attention(n=3, d=2, m=2), lambda q, k, begin: q * 0)
    yield refused("attention_refused_orthogonal", Attention(n=3, d=2, m=2), orthogonal)
    for name, a in ALGEBRA.items():
        yield algebra(f"algebra_{name}", a)
    for name, c in CONVERSION.items():
        yield conversion(f"conversion_{name}", c)
    yield refused_model("conversion_refused")
    yield definition_attention("definition_attention")
    yield definition_conversion("definition_conversion")


if __name__ == "__main__":
    print("\n".join(examples()))
