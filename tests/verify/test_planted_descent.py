"""Verify can fail.

Every planted bug in the dual forms turns the right rows red, and without one they are green.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil

import pytest

import refimpl as ri
from refimpl.verify import theorems
from refimpl.verify.check import check
from refimpl.verify.implementation import REFIMPL
from refimpl.verify.registry import THEOREMS
from refimpl.verify.theorem import Numbers
from refimpl.verify.theorems import descent
from tests.helpers import planted_descent
from tests.helpers.planted_descent import BUGS, FIELDS, FIXED, rejects

PAIRS = [(name, theorem) for name, bug in BUGS.items() for theorem in bug.rejected_by]


@pytest.mark.parametrize(("name", "theorem"), PAIRS, ids=[f"{name}-{theorem}" for name, theorem in PAIRS])
def test_a_planted_bug_turns_the_row_red(name, theorem):
    assert rejects(theorem, name), BUGS[name].catches


@pytest.mark.parametrize("theorem", descent.DESCENTS, ids=lambda t: t.name)
def test_without_a_bug_the_row_is_green(theorem):
    real = any(bug.real and theorem.name in bug.rejected_by for bug in BUGS.values())
    verdicts = {
        check(theorem, system, theorem.cases, FIXED).verdict
        for system in (ri.QQ, ri.GF(2**61 - 1), *[ri.MP(30)] * real)
    }
    assert verdicts & {"EXACT", "WITHIN BOUND"} and verdicts <= {"EXACT", "WITHIN BOUND", "N/A"}


@pytest.mark.parametrize(
    "theorem", [t for t in descent.DESCENTS if t.needs[0] not in ("real", "ordered")], ids=lambda t: t.name
)
def test_it_is_certified_for_all_values(theorem):
    """No branch stands in the way of the degrees."""
    assert check(theorem, ri.GF(2**61 - 1), theorem.cases, FIXED).probability < 2.0**-40


@pytest.mark.parametrize(
    "name", ["ascent", "causal_model", "dual_model_from_zero", "decay_read_as_penalty", "no_map", "not_dampened"]
)
def test_it_is_seen_in_other_numbers_too(name):
    theorem = THEOREMS[BUGS[name].rejected_by[0]]
    with planted_descent.planted(name) as impl:
        for system in (ri.GF(2**61 - 1), ri.balls(30), ri.Float(), ri.Float("numpy", "float32")):
            result = check(theorem, system, theorem.cases[:1], FIXED, impl)
            assert result.verdict == "FAIL" and " instead of " in result.evidence, result


def test_there_are_enough_and_each_says_what_it_catches():
    assert len(BUGS) >= 40 and all(bug.catches and bug.rejected_by for bug in BUGS.values())
    assert {theorem for _, theorem in PAIRS} == {t.name for t in descent.DESCENTS}


@pytest.mark.parametrize("theorem", [t for t in descent.DESCENTS if t.needs[0] != "real"], ids=lambda t: t.name)
def test_every_pair_of_sides_falls_to_some_bug(theorem):
    """A pair that nothing turns red might say nothing."""

    def pairs(impl=REFIMPL):
        return [pair for case in theorem.cases for pair in theorem.sides(case, Numbers(ri.QQ, 5), impl)]

    fallen = set()
    for name, bug in BUGS.items():
        if theorem.name in bug.rejected_by and not bug.real:
            with planted_descent.planted(name) as impl:
                fallen |= {what for what, left, right in pairs(impl) if not ri.QQ.equal(left, right)}
    assert fallen == {what for what, *_ in pairs()}


def test_every_function_of_descent_is_planted_and_every_field_is_read():
    """A field that no theorem reads would hide whatever is wrong with it."""
    functions = {name for name in FIELDS if getattr(REFIMPL, name).__module__.startswith("refimpl.descent")}
    assert functions <= {bug.place for bug in BUGS.values()}
    modules = [
        importlib.import_module(f"{theorems.__name__}.{m.name}") for m in pkgutil.iter_modules(theorems.__path__)
    ]
    nodes = [node for module in modules for node in ast.walk(ast.parse(inspect.getsource(module)))]
    read = {n.attr for n in nodes if isinstance(n, ast.Attribute) and ast.unparse(n.value) in ("impl", "self.impl")}
    assert read == FIELDS


def test_the_sides_of_descent_take_no_gradient_by_formula():
    """Every gradient comes from a loss: with the losses gone, no side of descent is left."""
    for name in ("dual_form", "von_oswald", "von_oswald_model", "gd_plus_plus", "token_map"):
        with planted_descent.mock.patch("refimpl.descent.gradient.gradient", lambda loss, W, *data: 0 * W):
            assert check(THEOREMS[name], ri.QQ, THEOREMS[name].cases, FIXED).verdict == "FAIL", name
