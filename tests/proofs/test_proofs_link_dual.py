"""As test_proofs_link.py, for refimpl/descent and computable_dual.v: Coq sees a changed formula."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path
from unittest import mock

import pytest

from refimpl.descent import dai, gradient, irie, ren_liu, von_oswald
from tests.helpers.coq import PROOFS, ROOMS, coqc, with_coq

sys.path.insert(0, str(PROOFS))
dual = importlib.import_module("instances_dual")
MORE = ("gradient", "von_oswald", "dual", "computable_dual")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the files that the instances stand on, built."""
    with_coq()
    folder = tmp_path_factory.mktemp("proofs")
    for name in (*(name for names in ROOMS for name in names), *MORE):
        shutil.copy(PROOFS / f"{name}.v", folder)
        assert coqc(folder, name) is None
    return folder


@pytest.fixture
def build(built, tmp_path):
    """Build some instances on top of the modules, or of computable_dual.v with one line changed."""

    def run(*examples, change=None):
        folder = Path(shutil.copytree(built, tmp_path / "proofs"))
        if change:
            twins, (old, new) = folder / "computable_dual.v", change
            text = twins.read_text(encoding="utf-8")
            assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in computable_dual.v"
            twins.write_text(text.replace(old, new), encoding="utf-8")
            return coqc(folder, "computable_dual")
        (folder / "some.v").write_text("\n".join([dual.HEADER, *examples]), encoding="utf-8")
        return coqc(folder, "some")

    return run


def training():
    return dual.training("training", dual.REGRESSION["two_examples"])


def dual_form():
    return dual.dual_form("dual_form", dual.REGRESSION["two_examples"])


def layers():
    return dual.layers("layers", dual.REGRESSION["two_examples"])


def self_attention():
    return dual.self_attention("self_attention", dual.REGRESSION["one_example"])


def gd_plus_plus():
    return dual.gd_plus_plus("gd_plus_plus", dual.REGRESSION["one_example"])


def finetuning():
    return dual.finetuning("finetuning", width=3, d=2, m=2, N=2, T=1, M=1)


def momentum():
    return dual.momentum("momentum", n=3, m=2)


def patch():
    return dual.patch("patch", h=2, width=3, n=1)


def kernel(name):
    return lambda: dual.kernel(f"kernel_{name}", dual.KERNEL[name])


# where, which function, what becomes of it, an instance that shows it
PLANTED = {
    "ascending layers": (von_oswald, "proposition_1", lambda f: lambda W_0, eta, N: f(W_0, -eta, N), layers),
    "layers without a mean": (von_oswald, "proposition_1", lambda f: lambda W_0, eta, N: f(W_0, eta, 1), layers),
    "queries of the wrong sign": (von_oswald, "queries", lambda f: lambda X, W_0: f(X, -W_0), layers),
    "no residual": (
        von_oswald,
        "self_attention",
        lambda f: lambda tokens, *rest: f(tokens, *rest) - tokens,
        self_attention,
    ),
    "update of the wrong sign": (von_oswald, "weight_update", lambda f: lambda b_KV, eta, N: f(b_KV, -eta, N), layers),
    "inputs moved the wrong way": (
        von_oswald,
        "regression_model",
        lambda f: lambda *a, gamma, **rest: f(*a, gamma=-gamma, **rest),
        gd_plus_plus,
    ),
    "ascent": (dual, "step", lambda f: lambda loss, W, eta, *data: f(loss, W, -eta, *data), training),
    "twice the loss": (dual, "squared_error", lambda f: lambda *a: 2 * f(*a), training),
    "another derivative": (gradient, "gradient", lambda f: lambda *a: 2 * f(*a), layers),
    "errors of the wrong sign": (
        irie,
        "training_history",
        lambda f: lambda W, X, Y, eta, *rest: f(W, X, Y, -eta, *rest),
        training,
    ),
    "no weights at the start": (irie, "dual_form", lambda f: lambda W_0, *rest: f(0 * W_0, *rest), dual_form),
    "demonstrations forgotten": (dai, "f_icl", lambda f: lambda q, X_D, *rest: f(q, X_D[:0, :], *rest), finetuning),
    "outer products transposed": (dai, "delta_W", lambda f: lambda *a: dual.T(f(*a)), finetuning),
    "momentum of the wrong sign": (dai, "momentum_attention", lambda f: lambda o, v, eta: f(o, v, -eta), momentum),
    "patch of another token": (dual, "rank_one_patch", lambda f: lambda W, a, delta: f(W, 2 * a, delta), patch),
    "starts at nothing": (ren_liu, "W_0", lambda f: lambda seen: 0 * f(seen), kernel("plain")),
    "ascent, one at a time": (ren_liu, "one_at_a_time", lambda f: lambda seen, eta: -f(seen, eta), kernel("plain")),
    "loss of the wrong sign": (ren_liu, "alignment", lambda f: lambda *a: -f(*a), kernel("decay")),
    "negatives added": (
        ren_liu,
        "subtract_negatives",
        lambda f: lambda V, negatives, beta: f(V, negatives, -beta),
        kernel("negatives"),
    ),
    "plain attention": (ren_liu, "attention", lambda f: lambda seen, *rest, **others: f(seen), kernel("off_diagonal")),
}


def planted(name):
    place, function, wrong, make = PLANTED[name]
    with mock.patch.object(place, function, wrong(getattr(place, function))):
        return make()


def test_a_formula_changed_in_python_breaks_the_build(build):
    text = planted("ascending layers")
    line, message = build(layers().replace("layers", "right"), text)
    whole = "\n".join([dual.HEADER, layers().replace("layers", "right"), text]).split("\n")
    assert whole[line - 1].startswith("Proof. by vm_compute.") and line == len(whole), message


def test_every_bug_planted_in_python_is_refuted(build):
    """In one run: Coq computes that with the bug the claims are false."""

    def refuted(name, lets, claims):
        return example(name, lets, [f"~~ ({' && '.join(f'({claim})' for claim in claims)})"])

    example, wrong = dual.example, []
    with mock.patch.object(dual, "example", refuted):
        for i, name in enumerate(PLANTED):
            wrong.append(planted(name).replace("\nExample ", f"\nExample bug_{i}_", 1))
    assert build(*wrong) is None


TWINS = {
    "step": (
        "(W - (eta i' / N%:R) *: ((X *m W^T - Y)^T *m X))%A",
        "(W + (eta i' / N%:R) *: ((X *m W^T - Y)^T *m X))%A",
    ),
    "weights": ("(c_0 n n) (c_0 n m) W0 (c_scalar m (- 1))", "(c_0 n n) (c_0 n m) W0 (c_scalar m 1)"),
    "momentum": ("eta *: (c_momentum eta v t' + v t')", "eta *: c_momentum eta v t' + v t'"),
    "loss": (
        "+ (b * (eta * D)^-1) *: ((c_negatives neg V)^T *m K)))%A",
        "+ (b * eta^-1) *: ((c_negatives neg V)^T *m K)))%A",
    ),
}


@pytest.mark.parametrize("change", TWINS)
def test_a_twin_that_is_not_its_definition_is_no_twin(build, change):
    _, message = build(change=TWINS[change])
    assert "syntax" not in message.lower()
