"""Small instances of the dual forms, for Coq to compute again.

    python instances_dual.py > instances_dual.v

As in instances.py, functions of refimpl.descent run in ℚ on random numbers (always the same), and
are printed as Examples. Given the inputs of Python, the twins of computable_dual.v give its
outputs, exactly. Python takes its gradients from the losses, by dual numbers; Coq has formulas that
are proved to be the gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from instances import Draw, array, draw_instance, equal, example, lists, number, seq

import refimpl as ri
from refimpl import QQ
from refimpl.descent import dai, irie, ren_liu, von_oswald
from refimpl.descent.gradient import squared_error, step
from refimpl.descent.patch import rank_one_patch

HEADER = """\
(* Made by instances_dual.py: what refimpl/descent computes in exact          *)
(* rationals, computed again by the twins of the definitions that are proved  *)
(* here.                                                                      *)
From Coq Require Import ZArith.
From mathcomp Require Import all_ssreflect all_algebra.
From icl Require Import linear_attention conversion gradient von_oswald dual.
From icl Require Import rationals computable computable_dual.
Set Implicit Arguments.
Unset Strict Implicit.
Import GRing.Theory.
Local Open Scope ring_scope.

Notation "a // b" := (frac a b) (at level 40).
Notation A := (@Array Qc_fieldType).

Lemma H_two : 2%:R != 0 :> Qc_fieldType. Proof. by vm_compute. Qed.
"""


def scalar(draw: Draw) -> Fraction:
    return draw.random.choice(draw.numbers) / 5


def T(x: Any) -> Any:
    return QQ.xp.matrix_transpose(x)


def beside(*parts: Any) -> Any:
    return QQ.concat(parts, axis=-1)


def one_row(x: Any) -> Any:
    return x[None, :]


def value(x: Any) -> Fraction:
    """The only number of an array."""
    return QQ.fractions(QQ.reshape(x, (1,)))[0]


def same(x: str, *values: Any) -> str:
    """The array x of Coq is each of these of Python."""
    return equal(f"(lists {x})", map(lists, values))


def same_seq(x: str, values: Any) -> str:
    """So are the arrays of a sequence."""
    return f"[seq lists a | a <- {x}] == {seq(map(lists, values))}"


# Regression: N examples (x, y), with x of width d and y of width m; M queries


@dataclass(frozen=True)
class Regression:
    N: int
    d: int
    m: int
    M: int
    steps: int

    def data(self, draw: Draw) -> tuple[dict[str, str], tuple[Any, ...]]:
        """Coq's let's; W_0, X, Y, the queries x and η."""
        W_0, X, Y, x, eta = (
            draw(self.m, self.d),
            draw(self.N, self.d),
            draw(self.N, self.m),
            draw(self.M, self.d),
            scalar(draw),
        )
        arrays = {"W0": W_0, "X": X, "Y": Y, "x": x}
        return {name: array(y) for name, y in arrays.items()} | {"eta": number(eta)}, (W_0, X, Y, x, eta)


def descend(W: Any, X: Any, Y: Any, eta: Any, steps: int) -> list[Any]:
    """W_0, W_1, …, by gradients of the loss."""
    found = [W]
    for _ in range(steps):
        found.append(step(squared_error, found[-1], eta, X, Y))
    return found


def training(name: str, a: Regression) -> str:
    """Steps, and the layer that attends to their history; Coq has the last step first."""
    lets, (W_0, X, Y, x, eta) = a.data(Draw(name))
    errors, inputs = irie.training_history(W_0, X, Y, eta, a.steps, irie.half_squares)
    Ws = descend(W_0, X, Y, eta, a.steps)
    lets["E"] = "c_errors X Y (fun=> eta) W0"
    history = f"(c_history (b := fun=> {a.N}%N) (fun=> X) {a.steps}) (c_history E {a.steps})"
    claims = [
        f"c_lsq X Y W0 == {number(value(squared_error(W_0, X, Y)))}",
        same_seq(f"(mkseq (c_descent X Y (fun=> eta) W0) {a.steps + 1})", Ws),
        same_seq(f"(mkseq E {a.steps})", [errors[i * a.N : (i + 1) * a.N, :] for i in range(a.steps)]),
        same(f"(c_descent X Y (fun=> eta) W0 {a.steps})", irie.trained_weights(W_0, errors, inputs), Ws[-1]),
        same(f"(x *m W0^T + c_attend_to x {history})%A", irie.dual_form(W_0, errors, inputs, x), x @ T(Ws[-1])),
    ]
    return example(name, lets, claims)


def dual_form(name: str, a: Regression) -> str:
    """Any errors: a layer that was trained with them, and one that attends to them."""
    lets, (W_0, X, E, x, _) = a.data(Draw(name))
    predicted = irie.dual_form(W_0, E, X, x)
    claims = [
        same("(c_trained W0 Y X)", irie.trained_weights(W_0, E, X)),
        same("(x *m W0^T + c_attend_to x X Y)%A", predicted),
        same("(x *m (c_trained W0 Y X)^T)%A", predicted),
    ]
    return example(name, lets, claims)


def layers(name: str, a: Regression) -> str:
    """Layers, steps, a model, the biases that its examples become: all the same descent."""
    lets, (W_0, X, Y, x, eta) = a.data(Draw(name))
    k, Ws = a.steps, descend(W_0, X, Y, eta, a.steps)
    tokens, context = von_oswald.queries(x, W_0), von_oswald.examples(X, Y)
    W_Q, W_K, W_V, P = von_oswald.proposition_1(W_0, eta, a.N)
    predicted = von_oswald.steps(tokens, context, W_0, eta, k)
    claims = [
        same(f"(c_W_QK Qc_fieldType {a.d} {a.m})", W_Q, W_K),
        same("(c_W_V W0)", W_V),
        same(f"(c_scalar ({a.d} + {a.m})%N (eta / {a.N}%:R))", P),
        same("E", context),
        same("Z", tokens),
        same(f"(c_steps W0 (fun=> eta) E 0 {k} Z)", predicted),
        same(f"(c_steps W0 (fun=> eta) E 0 {k} E)", von_oswald.steps(context, context, W_0, eta, k)),
        same(f"(x *m (W {k}%N)^T)%A", von_oswald.predictions(predicted, a.m), x @ T(Ws[-1])),
    ]
    if k:  # a model has layers
        model, examples, queries = (
            von_oswald.regression_model(W_0, eta, a.N, layers=k),
            von_oswald.model_examples(X, Y),
            von_oswald.model_queries(x, W_0),
        )
        converted = ri.convert(model, examples, mask="full")
        b_KV = [b.S[0, :, :] for b in converted.biases]
        updates = [von_oswald.weight_update(b, eta, a.N) for b in b_KV]
        through = model(QQ.concat([examples, queries], axis=-2), mask=a.N)
        outs = [beside(x, y[:, 2 * a.d :]) for y in (through[a.N :, :], converted(queries))]
        claims += [
            same(f"(c_steps W0 (fun=> eta) E 0 {k} Z)", *outs),
            same_seq("blocks", b_KV),
            same_seq(f"[seq (- (eta / {a.N}%:R)) *: (b^T) | b <- blocks]%A", updates),
            same_seq(f"(mkseq (fun i => W i.+1 - W i)%A {k})", updates),
        ]
    lets |= {"E": "c_row_mx X Y", "Z": "c_row_mx x ((- 1) *: (x *m W0^T))%A", "W": "c_descent X Y (fun=> eta) W0"}
    lets["blocks"] = f"c_xy_blocks W0 (fun=> eta) E 0 {k}"
    return example(name, lets, claims)


def self_attention(name: str, a: Regression) -> str:
    """One layer of any weights."""
    draw, width = Draw(name), a.d + a.m
    Z, E = draw(a.M, width), draw(a.N, width)
    W_Q, W_K, W_V, P = (draw(width, width) for _ in range(4))
    lets = {x: array(y) for x, y in {"Z": Z, "E": E, "W_Q": W_Q, "W_K": W_K, "W_V": W_V, "P": P}.items()}
    return example(name, lets, [same("(c_lsa W_K W_Q W_V P E Z)", von_oswald.self_attention(Z, E, W_Q, W_K, W_V, P))])


def gd_plus_plus(name: str, a: Regression) -> str:
    """GD++ from W_0 = 0: the model, whose tokens are (key, x, y), and layers on (x, y)."""
    draw = Draw(name)
    lets, (W_0, X, Y, x, eta) = a.data(draw)
    gamma, d = scalar(draw), a.d
    model = von_oswald.regression_model(0 * W_0, eta, a.N, layers=a.steps, gamma=gamma)
    tokens = QQ.concat([von_oswald.model_examples(X, Y), von_oswald.model_queries(x, 0 * W_0)], axis=-2)
    out = model(tokens, mask=a.N)
    lets |= {"gamma": number(gamma), "E0": "c_row_mx X Y", "Z0": f"c_row_mx x (c_0 {a.M} {a.m})"}
    weights = (
        f"(c_W_QK _ {d} {a.m}) (c_W_QK _ {d} {a.m}) (c_gdpp_V _ {d} {a.m}) (c_gdpp_P {d} {a.m} gamma (eta / {a.N}%:R))"
    )
    for i in range(a.steps):
        lets |= {f"{x}{i + 1}": f"c_lsa {weights} E{i} {x}{i}" for x in "EZ"}
    return example(name, lets, [same(f"E{a.steps}", out[: a.N, d:]), same(f"Z{a.steps}", out[a.N :, d:])])


# Dai et al.; the rank-one patch


def finetuning(name: str, width: int, d: int, m: int, N: int, T: int, M: int) -> str:
    draw = Draw(name)
    q, X_D, X, W_K, W_V = draw(M, d), draw(N, width), draw(T, width), draw(d, width), draw(m, width)
    dW_K, dW_V = draw(d, width), draw(m, width)
    arrays = {"q": q, "X'": X_D, "X": X, "W_K": W_K, "W_V": W_V, "dW_K": dW_K, "dW_V": dW_V}
    icl = dai.f_icl(q, X_D, X, W_K, W_V)
    claims = [
        same("(c_attend_to q (c_col_mx X' X *m W_K^T)%A (c_col_mx X' X *m W_V^T)%A)", icl),
        same("(q *m (c_W_ZSL W_K W_V X + c_dW_ICL W_K W_V X')^T)%A", icl),
        same("(c_W_ZSL W_K W_V X)", dai.delta_W(X, W_K, W_V)),
        same("(c_dW_ICL W_K W_V X')", dai.delta_W(X_D, W_K, W_V)),
        same("(c_attend_to q (X *m W_K^T)%A (X *m W_V^T)%A)", dai.f_zsl(q, X, W_K, W_V)),
        same("(c_attend_to q (X *m (W_K + dW_K)^T)%A (X *m (W_V + dW_V)^T)%A)", dai.f_ft(q, X, W_K, W_V, dW_K, dW_V)),
    ]
    return example(name, {x: array(y) for x, y in arrays.items()}, claims)


def momentum(name: str, n: int, m: int) -> str:
    draw = Draw(name)
    o, v, eta = draw(n, m), draw(n, m), scalar(draw)
    lets = {"o": array(o), "v": array(v), "eta": number(eta)}
    added = f"c_rows {n} (c_momentum eta (fun s => c_row s v))"
    return example(name, lets, [same(f"(o + {added})%A", dai.momentum_attention(o, v, eta))])


def patch(name: str, h: int, width: int, n: int) -> str:
    draw = Draw(name)
    W, a, delta = draw(h, width), draw(n, width), draw(n, width)
    dW = rank_one_patch(W, a, delta)
    lets = {"W": array(W), "a": array(a), "delta": array(delta)}
    claims = [
        same_seq(f"(mkseq (fun t => c_patch W (c_row t a) (c_row t delta)) {n})", [dW[t, :, :] for t in range(n)]),
        "all (fun t => let y := c_row t a in let e := c_row t delta in "
        "lists ((y + e) *m W^T) == lists (y *m (W + c_patch W y e)^T))%A "
        f"(iota 0 {n})",
    ]
    return example(name, lets, claims)


# Ren & Liu


@dataclass(frozen=True)
class Kernel:
    """N demonstrations, T tokens of text, r features, values of width m; options of a variant."""

    N: int
    T: int
    r: int
    m: int
    options: dict[str, Any] = field(default_factory=dict)
    augmented: bool = False


def square(x: Any) -> Any:
    return x * x


def kernel(name: str, a: Kernel) -> str:
    """Attention and its variants by their formulas, and as predictions of the dual model."""

    def make(draw: Draw) -> str:
        context = ren_liu.QueryContext(draw(a.N, a.r), draw(a.N, a.m), draw(a.T, a.r), draw(a.T, a.m), draw(a.r))
        eta, arrays = scalar(draw), {"K'": context.K_T, "V'": context.V_T, "q": one_row(context.q)}
        options, augmented = dict(a.options), {"K": "K_D", "V": "V_D"}
        if a.augmented:  # g(x) = x + c W_2 σ(W_1 x), for values and keys, σ being the square
            V_1, V_2, K_1, K_2, c = draw(2, a.m), draw(a.m, 2), draw(1, a.r), draw(a.r, 1), scalar(draw)
            options |= {"values": ren_liu.residual(V_1, V_2, c, square), "keys": ren_liu.residual(K_1, K_2, c, square)}
            arrays |= {"V_1": V_1, "V_2": V_2, "K_1": K_1, "K_2": K_2}
            for x in "KV":
                augmented[x] = f"({x}_D + ({number(c)}) *: (c_map (fun x => x * x)%R ({x}_D *m {x}_1^T) *m {x}_2^T))%A"
        variant = ren_liu.Variant(**options)
        inner, attended = variant.augment(context), ren_liu.attention(context, variant, eta=eta)
        chosen = variant.negatives or ()
        lets = (
            {"K_D": array(context.K_D), "V_D": array(context.V_D)}
            | {x: array(y) for x, y in arrays.items()}
            | augmented
        )
        lets |= {x: number(Fraction(getattr(variant, x))) for x in ("decay", "penalty", "off_diagonal", "beta")} | {
            "eta": number(eta)
        }
        lets["v"] = f"c_row {a.T - 1} V'"
        lets["neg"] = f"({seq(seq(map(str, places)) for places in chosen)}%N : seq (seq nat))"
        lets["b"] = f"beta / {len(chosen[0]) if chosen else 1}%:R"
        lets |= {"D": "c_mass q (c_col_mx K K')", "W0": "c_dual_W0 D V' K'"}
        lets["lam"] = "decay / eta + penalty"
        lets["c"] = "off_diagonal / (eta * (q *m q^T)%A 0%N 0%N)"
        own = "((1 - decay - eta * penalty) / D) *: c_attend_to q K' V'"
        claims = [
            f"D == {number(value(inner.D))}",
            same("W0", ren_liu.W_0(inner)),
            same("(c_attend_mean q (c_col_mx K K') (c_col_mx V V'))", one_row(ren_liu.attention(inner))),
            same(f"(D^-1 *: c_attend_to q K (c_apart neg b V) + {own} - off_diagonal *: v)%A", one_row(attended)),
            same("(q *m (c_step eta D V K neg b lam c v q W0)^T)%A", one_row(ren_liu.one_step(context, eta, variant))),
        ]
        if not a.options:
            one = "(fun W i => c_step eta D (c_row i V) (c_row i K) [::] 0 0 0 v q W)"
            claims += [same(f"(q *m (foldl {one} W0 (iota 0 {a.N}))^T)%A", one_row(ren_liu.one_at_a_time(inner, eta)))]
        return example(name, lets, claims)

    return draw_instance(name, make)


REGRESSION = {
    "one_example": Regression(N=1, d=2, m=3, M=2, steps=2),
    "two_examples": Regression(N=2, d=3, m=1, M=1, steps=3),
    "many_examples": Regression(N=4, d=3, m=2, M=1, steps=1),
    "deep": Regression(N=3, d=1, m=2, M=2, steps=4),
    "no_step": Regression(N=2, d=2, m=1, M=3, steps=0),
}
KERNEL = {
    "plain": Kernel(N=3, T=2, r=4, m=1),
    "one_demonstration": Kernel(N=1, T=1, r=2, m=3),
    "no_demonstration": Kernel(N=0, T=2, r=3, m=2),
    "decay": Kernel(N=2, T=3, r=1, m=2, options={"decay": Fraction(-2, 3)}),
    "penalty": Kernel(N=2, T=1, r=3, m=2, options={"penalty": Fraction(5, 2)}),
    "off_diagonal": Kernel(N=1, T=2, r=3, m=2, options={"off_diagonal": Fraction(1, 3)}),
    "negatives": Kernel(N=3, T=1, r=2, m=4, options={"negatives": ((1, 2), (0, 2), (1, 0)), "beta": Fraction(-3, 5)}),
    "augmented": Kernel(N=2, T=1, r=3, m=1, augmented=True),
    "all_at_once": Kernel(
        N=3,
        T=2,
        r=2,
        m=3,
        augmented=True,
        options={
            "decay": Fraction(1, 3),
            "penalty": Fraction(-1, 2),
            "off_diagonal": Fraction(3, 2),
            "beta": Fraction(2),
            "negatives": ((2,), (0,), (1,)),
        },
    ),
}


# On the definitions themselves: the theorems of computable_dual.v close the chain


def section(name: str, lets: dict[str, str], statement: str, proof: str) -> str:
    lines = [f"Let {x} := {value}." for x, value in lets.items()]
    return "\n".join(
        [
            f"\nSection {name.capitalize()}.",
            *lines,
            f"Example {name} :\n  {statement}.",
            proof,
            f"End {name.capitalize()}.",
        ]
    )


def definition_layers(name: str, a: Regression) -> str:
    """What queries read from von_oswald.v's layers, after their examples have become biases."""
    lets, (W_0, X, Y, x, eta) = a.data(Draw(name))
    lets["y"] = array(-(x @ T(W_0)))
    predicted = von_oswald.steps(von_oswald.queries(x, W_0), von_oswald.examples(X, Y), W_0, eta, a.steps)
    statement = f"""ask (convert 0 {a.N} (zero (stack (to_mx W0) {a.N} (fun=> eta) 0 {a.steps}))
      (row_mx (to_mx X) (to_mx Y)))
    (row_mx (to_mx x) (to_mx y)) =
  to_mx {array(predicted)}"""
    proof = """Proof.
rewrite -!to_mx_row_mx -steps_c //.
by apply: eq_to_mx; vm_compute.
Qed."""
    return section(name, lets, statement, proof)


def definition_descent(name: str, a: Regression) -> str:
    """Whatever the steps of gradient.v on least squares are, they predict what the layers do."""
    lets, (W_0, X, Y, x, eta) = a.data(Draw(name))
    predicted = von_oswald.steps(von_oswald.queries(x, W_0), von_oswald.examples(X, Y), W_0, eta, a.steps)
    statement = f"""forall W, W 0%N = to_mx W0 ->
  (forall i, gd_step (lsq (to_mx X) (to_mx Y)) eta (W i) (W i.+1)) ->
  to_mx x *m (W {a.steps}%N)^T =
  to_mx {array(von_oswald.predictions(predicted, a.m))}"""
    proof = """Proof.
move=> W W_0 H_step.
have W_i i : W i = to_mx (c_descent X Y (fun=> eta) W0 i).
  rewrite descent_c; elim: i => // i IH.
  by rewrite (lsq_step H_two (H_step i)) IH.
by rewrite W_i -to_mx_tr -to_mxM; apply: eq_to_mx; vm_compute.
Qed."""
    return section(name, lets, statement, proof)


def definition_kernel(name: str, a: Kernel) -> str:
    """Whatever one step of gradient.v on the dual loss is, it predicts what attention says."""

    def make(draw: Draw) -> str:
        context, eta = (
            ren_liu.QueryContext(draw(a.N, a.r), draw(a.N, a.m), draw(a.T, a.r), draw(a.T, a.m), draw(a.r)),
            scalar(draw),
        )
        arrays = {"K": context.K_D, "V": context.V_D, "K'": context.K_T, "V'": context.V_T, "q": one_row(context.q)}
        lets = {x: array(y) for x, y in arrays.items()} | {"eta": number(eta)}
        lets["D"] = "mass (to_mx q) (col_mx (to_mx K) (to_mx K'))"
        statement = f"""forall W1,
  gd_step (dual_loss eta D (to_mx V) (to_mx K)) eta
    (dual_W0 D (to_mx V') (to_mx K')) W1 ->
  to_mx q *m W1^T = to_mx {array(one_row(ren_liu.one_step(context, eta)))}"""
        proof = """Proof.
have H_eta : eta != 0 by vm_compute.
move=> W1 /(features_gd_step H_two H_eta) <-.
rewrite -!to_mx_col_mx -attend_mean_c.
by apply: eq_to_mx; vm_compute.
Qed."""
        return section(name, lets, statement, proof)

    return draw_instance(name, make)


def examples() -> Iterator[str]:
    yield HEADER
    for name, a in REGRESSION.items():
        yield training(f"training_{name}", a)
        yield dual_form(f"dual_form_{name}", a)
        yield layers(f"layers_{name}", a)
        yield self_attention(f"self_attention_{name}", a)
        if a.steps:
            yield gd_plus_plus(f"gd_plus_plus_{name}", a)
    for name, k in KERNEL.items():
        yield kernel(f"kernel_{name}", k)
    yield finetuning("finetuning", width=3, d=2, m=1, N=4, T=2, M=2)
    yield finetuning("finetuning_one", width=2, d=3, m=2, N=1, T=1, M=1)
    yield momentum("momentum_attention", n=4, m=3)
    yield momentum("momentum_attention_one", n=1, m=2)
    yield patch("rank_one_patches", h=3, width=2, n=2)
    yield definition_layers("definition_layers", Regression(N=2, d=1, m=3, M=2, steps=3))
    yield definition_descent("definition_descent", Regression(N=3, d=2, m=1, M=1, steps=2))
    yield definition_kernel("definition_kernel", Kernel(N=2, T=1, r=3, m=2))


if __name__ == "__main__":
    print("\n".join(examples()))
