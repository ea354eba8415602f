"""What is proved is what runs: Coq computes Python's numbers; a changed formula breaks the build.

Only what instances.v needs is built here, and of that file a few instances; `make -C proofs` builds
it all.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

from refimpl import ZeroDenominator
from refimpl.model import transformer
from tests.helpers import planted, planted_conversions
from tests.helpers.coq import PROOFS, ROOMS, coqc


def load(path):
    spec = importlib.util.spec_from_file_location(f"proofs_{path.stem}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


instances = load(PROOFS / "instances.py")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the files that the instances stand on, built."""
    if not os.environ.get("REFIMPL_COQ") or shutil.which("coqc") is None:
        pytest.skip(
            "needs Coq (apt install coq libcoq-mathcomp-algebra) and REFIMPL_COQ=1: it takes more than a minute"
        )
    folder = tmp_path_factory.mktemp("proofs")
    (folder / "mathcomp.v").write_text("From mathcomp Require Import all_ssreflect all_algebra.\n", encoding="utf-8")
    if coqc(folder, "mathcomp") is not None:
        pytest.skip("MathComp is not there: apt install libcoq-mathcomp-algebra")
    for names in ROOMS:
        for name in names:
            shutil.copy(PROOFS / f"{name}.v", folder)
        with ThreadPoolExecutor(2) as threads:
            wrong = dict(zip(names, threads.map(lambda name: coqc(folder, name), names), strict=True))
        assert not any(wrong.values()), wrong
    return folder


@pytest.fixture
def build(built, tmp_path):
    """Build some instances on top of the modules, or of computable.v with one line changed."""

    def run(*examples, change=None):
        folder = Path(shutil.copytree(built, tmp_path / "proofs"))
        if change:
            twins, (old, new) = folder / "computable.v", change
            text = twins.read_text(encoding="utf-8")
            assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in computable.v"
            twins.write_text(text.replace(old, new), encoding="utf-8")
            if wrong := coqc(folder, "computable"):
                return "computable.v", wrong
        (folder / "some.v").write_text("\n".join([instances.HEADER, *examples]), encoding="utf-8")
        return "some.v", coqc(folder, "some")

    return run


def attention(name):
    return instances.attention(f"attention_{name}", instances.ATTENTION[name])


def conversion(name):
    return instances.conversion(f"conversion_{name}", instances.CONVERSION[name])


def planted_attention(bug, name):
    """An instance that Python gets wrong."""
    with mock.patch.object(instances, "FORMS", (planted.BUGS[bug].kernel,)):
        return instances.attention(f"{bug}_{name}", instances.ATTENTION[name])


def planted_conversion(bug, name):
    entry, wrong = planted_conversions.BUGS[bug].entry, planted_conversions.BUGS[bug].wrong
    with mock.patch.object(instances.ri, entry, wrong):
        return instances.conversion(f"{bug}_{name}", instances.CONVERSION[name])


def planted_activation(name):
    with mock.patch.dict(transformer.ACTIVATIONS, {"quadratic": (lambda x: x * (2 + x) / 2, "field")}):
        return instances.conversion(f"activation_{name}", instances.CONVERSION[name])


KERNELS = {
    "strict_mask": "causal",
    "epsilon_in_denominator": "no_state",
    "starting_z_ignored": "causal",
    "z_not_updated": "full",
    "square_state_transposed": "unnormalised_square",
    "chunk_without_mask": "no_state",
    "prefix_off_by_one": "prefix",
    "rope_layout_wrong": "rope_half",
    "rope_off_by_one": "rope_interleaved",
    "rope_sign_flipped": "rope_before",
    "rope_all_backwards": "rope_half",
    "rope_in_denominator": "rope_half",
    "position_restarted": "rope_negative_position",
    "position_not_advanced": "causal",
}
CONVERSIONS = {
    "forgotten_b_D": "one_layer",
    "unshifted": "one_layer",
    "doubly_shifted": "one_layer",
    "shifted_forwards": "one_layer",
    "rotated_b_D": "one_layer",
    "pushed_with_the_new_biases": "no_biases",
    "wrong_head": "grouped",
    "wrong_layer": "no_biases",
    "restart_off_by_one": "one_layer",
    "mask_ignored": "prefix_layers",
    "overwritten": "one_layer",
    "epsilon_in_b_D": "no_positions",
    "backwards": "one_layer",
    "strength_once": "one_layer",
    "strength_of_everything": "one_layer",
    "removal_at_full_strength": "one_layer",
    "removal_with_the_new_biases": "no_biases",
    "removal_keeps_b_D": "one_layer",
}


def test_python_and_coq_agree(build):
    some = [*map(attention, sorted(set(KERNELS.values()))), *map(conversion, sorted(set(CONVERSIONS.values())))]
    closing = (
        instances.definition_attention("definition_attention"),
        instances.definition_conversion("definition_conversion"),
    )
    assert build(*some, *closing) == ("some.v", None)


def test_a_formula_changed_in_python_breaks_the_build(build):
    text = planted_attention("rope_off_by_one", "rope_half")
    _, (line, message) = build(text)
    assert "\n".join([instances.HEADER, text]).split("\n")[line - 1].startswith("Proof. by vm_compute."), message


def test_every_bug_planted_in_python_is_refuted(build):
    """In one run Coq finds the claims false with the bug; with four, Python divides by zero."""

    def refuted(name, lets, claims):
        return example(name, lets, [f"~~ ({' && '.join(f'({claim})' for claim in claims)})"])

    example, makers = instances.example, [(planted_attention, pair) for pair in KERNELS.items()]
    makers += [(planted_conversion, pair) for pair in CONVERSIONS.items()] + [(planted_activation, ("no_positions",))]
    wrong, refused = [], []
    with mock.patch.object(instances, "example", refuted):
        for make, arguments in makers:
            try:
                wrong.append(make(*arguments))
            except ZeroDenominator:  # with the bug Python refuses, and there is no instance to build
                refused.append(arguments)
    assert build(*wrong) == ("some.v", None) and len(wrong) >= 29 and len(refused) <= 4


TWINS = {
    "mask": ("seq s <- iota 0 n | seen P t s]", "seq s <- iota 0 n | seen P t s.+1]"),
    "position": ("turn (p + t%:Z) (c_row t f)", "turn (p + t.+1%:Z) (c_row t f)"),
    "sine": ("a i * cos 0%N i - b i * sin 0%N i", "a i * cos 0%N i + b i * sin 0%N i"),
    "shift": ("c_shift_all ws (- M%:Z) (c_absorb", "c_shift_all ws M%:Z (c_absorb"),
    "definition": ("map_mx activation (x *m W_up w + b_up w)", "map_mx activation (x *m W_up w)"),
}


@pytest.mark.parametrize("change", TWINS)
def test_a_twin_that_is_not_its_definition_is_no_twin(build, change):
    file, (_, message) = build(change=TWINS[change])
    assert file == "computable.v" and "syntax" not in message.lower()


def test_a_definition_changed_with_its_twin_breaks_the_instances(build):
    """All theorems hold of x (2 + x) / 2 too; but Python computes something else."""
    file, (_, message) = build(conversion("no_positions"), change=("x * (2%:R + x) / 4%:R", "x * (2%:R + x) / 2%:R"))
    assert file == "some.v" and "tactic" in message
