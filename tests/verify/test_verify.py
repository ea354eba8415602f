"""verify finds what it should, and nothing else."""

import random
import re
import time
from dataclasses import replace
from fractions import Fraction
from importlib.util import find_spec

import numpy as np
import pytest

import refimpl as ri
from refimpl import nano
from refimpl.systems import ObjectSystem
from refimpl.verify import check as checking
from refimpl.verify.cases import Case
from refimpl.verify.check import Draws, check
from refimpl.verify.implementation import REFIMPL
from refimpl.verify.registry import THEOREMS, default_systems, tasks, usual_cases, verify
from refimpl.verify.report import summary
from refimpl.verify.theorem import Different, Numbers, Theorem
from refimpl.verify.theorems.identities import CASES, more_cases
from refimpl.verify.theorems.identities import THEOREMS as IDENTITIES
from refimpl.verify.theorems.large import P
from refimpl.verify.theorems.tester import FORMS, off_at_the_end
from refimpl.verify.ways import WAYS, way_of

SYSTEMS = [ri.QQ, ri.GF(10007), ri.MP(30), ri.balls(30), ri.balls(30, "iv"), ri.Float(), ri.Float("numpy", "float32")]
HOLDS = {"EXACT", "ENCLOSED", "WITHIN BOUND", "MEASURED"}


@pytest.mark.parametrize("theorem", THEOREMS.values(), ids=THEOREMS)
def test_every_theorem_says_what_it_says(theorem):
    assert theorem.statement.endswith(".") and theorem.assumes and theorem.source and theorem.ways
    assert sum(map(theorem.fits, (*theorem.cases, *theorem.more(0)))) >= (5 if theorem in IDENTITIES else 1)


@pytest.mark.slow  # README's first command does the same
def test_every_theorem_holds_wherever_it_can_be_checked():
    results = verify()
    assert {r.verdict for r in results} == HOLDS | {"N/A"}
    for r in results:
        least = (
            1
            if THEOREMS[r.theorem] not in IDENTITIES or r.system == f"GF({P})"  # there, only shapes people use
            else 2
            if r.system in ("mpmath(50)", "balls(30)", "float64", "float32")
            else 5
        )
        assert r.instances >= least if r.verdict != "N/A" else r.evidence, r
    large = {t.name for t in THEOREMS.values() if t.only}
    assert {r.theorem for r in results if r.verdict != "N/A"} == set(THEOREMS) - large
    certain = [
        r
        for r in results
        if r.system.startswith("GF(") and r.verdict == "EXACT" and r.probability is not None
        if "equality" in THEOREMS[r.theorem].ways
    ]
    shapes = re.compile(r"all values at (these|\d+ of \d+) shapes")
    assert len(certain) >= 30 and all(0 <= r.probability < 2**-40 and shapes.search(r.evidence) for r in certain)


USUAL = {name: theorem for name, theorem in THEOREMS.items() if theorem.usual and not theorem.only}


@pytest.mark.parametrize("theorem", USUAL.values(), ids=USUAL)
def test_every_theorem_holds_at_shapes_that_people_use(theorem):
    """As in a quick run of the default seed: one shape of each group, where that is fast."""
    usual, results = usual_cases(theorem, 0, False), []
    for task in tasks([theorem.name], None, full=False, seed=0):
        if cases := [case for case in task.cases if case in usual]:
            results.append(check(theorem, task.system, cases))
    assert usual and sum(r.instances for r in results) >= 1
    assert {r.verdict for r in results} <= HOLDS, results


def test_as_many_seeds_as_a_group_has_shapes_take_each_of_them_once():
    for theorem in USUAL.values():
        for group in theorem.usual:
            one = replace(theorem, usual=(tuple(filter(theorem.fits, group)),))
            taken = [case for seed in range(len(one.usual[0])) for case in usual_cases(one, seed, full=False)]
            assert sorted(map(str, taken)) == sorted(map(str, one.usual[0])), theorem.name


def test_why_not():
    reasons = {
        (r.theorem, r.system): r.evidence
        for r in verify(["kv_cache", "shift", "causality", "exact_probes"])
        if r.verdict == "N/A"
    }
    assert reasons["kv_cache", "Q"] == "exp is not defined in ℚ; softmax attention needs a real system"
    assert reasons["shift", "rounded(bfloat16)"] == "at this precision exact_probes decide"
    assert reasons["shift", "dependencies"] == "dependency sets say nothing of values"
    assert reasons["causality", "Q"] == "causality is read off dependency sets"
    assert reasons["exact_probes", "Q"] == "exact_probes speak of float formats"


@pytest.mark.parametrize(
    ("system", "words"),
    [
        (ri.Degrees(), "degrees has no way of deciding equality"),
        (
            ri.Float("numpy", "longdouble"),
            "no error bound is known for numpy .*; it must be float64, float32, float16 or bfloat16",
        ),
        (ri.Float("numpy", "complex128"), "no error bound is known for numpy complex128"),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_a_system_without_a_way_is_refused_before_the_work(system, words):
    with pytest.raises(ri.NotDefined, match=f"^verify: {words}"):
        verify(["shift"], [ri.QQ, system], progress=pytest.fail)


def test_meta_tensors_are_refused():
    pytest.importorskip("torch")
    with pytest.raises(ri.NotDefined, match="on meta has shapes but no values"):
        verify([], [ri.Float("torch", "float32", "meta")])


class Again(ObjectSystem):
    """A newcomer's field, in as few lines as it takes."""

    name, can, exact = "fractions again", frozenset({"ring", "field"}), True

    def number(self, x):
        return x


class Integers(Again):
    name, can = "ℤ", frozenset({"ring"})

    def number(self, x):
        return int(x)


@pytest.mark.parametrize("system", [ri.Dual(ri.QQ), ri.Dual(ri.GF(10007)), Again()], ids=lambda system: system.label)
def test_an_exact_system_of_any_kind_is_decided_by_equality(system):
    results = {r.theorem: r for r in verify([t.name for t in IDENTITIES], [system])}
    undone = {"softmax_shifted_eq_sum", "kv_cache", "exact_probes", "causality"}
    assert {name for name, r in results.items() if r.verdict == "N/A"} == undone
    assert all(r.verdict == "EXACT" and r.instances >= 5 for name, r in results.items() if name not in undone)
    assert [r.verdict for r in verify(["iclca", "iclca_prefix", "needs_causality"], [system])] == ["EXACT"] * 3
    broken = replace(REFIMPL, linear_attention_recurrent=drops_the_state)
    assert verify(["recurrent_eq_sum"], [system], implementation=broken)[0].verdict == "FAIL"


def test_a_ring_is_asked_only_what_a_ring_can_answer():
    results = {r.theorem: r for r in verify([*(t.name for t in IDENTITIES), "iclca"], [Integers()])}
    assert results["iclca"].evidence == "division is not defined in ℤ; a model needs a field system"
    assert results["state_monoid"].verdict == "EXACT" and results["state_monoid"].instances == 5
    assert (
        results["quadratic_eq_sum"].evidence
        == "division is not defined in ℤ; normalised linear attention needs a field system"
    )
    assert results["rope_layouts"].evidence == "division is not defined in ℤ; a random rotation needs a field system"
    assert results["kv_cache"].evidence == "exp is not defined in ℤ; softmax attention needs a real system"
    assert not {r.verdict for r in results.values()} - {"EXACT", "N/A"}


def test_no_case_is_no_pass():
    result = check(THEOREMS["rope_layouts"], ri.QQ, [Case(3, 2, 1)])
    assert (result.verdict, result.evidence) == ("N/A", "it speaks of none of these cases")


@pytest.mark.parametrize("system", default_systems(0), ids=lambda system: system.label)
def test_labels_are_what_the_command_line_takes(system):
    assert ri.system(system.label).name == system.name


def test_the_second_prime_comes_from_the_seed():
    first, again, other = (default_systems(seed)[2].p for seed in (0, 0, 1))
    assert first == again != other and min(first, other) > 2**59 and max(first, other) < 2**61


def test_draws_depend_on_source_theorem_system_shape_seed_and_attempt():
    one, other = THEOREMS["shift"], THEOREMS["kv_cache"]
    seeds = [
        Draws(0).seed_of(one, "Q", CASES[0], 0),
        Draws(0).seed_of(other, "Q", CASES[0], 0),
        Draws(0).seed_of(one, "float64", CASES[0], 0),
        Draws(0).seed_of(one, "Q", CASES[1], 0),
        Draws(1).seed_of(one, "Q", CASES[0], 0),
        Draws(0).seed_of(one, "Q", CASES[0], 1),
        Draws(0, "another source").seed_of(one, "Q", CASES[0], 0),
    ]
    assert len(set(seeds)) == len(seeds)
    assert Draws(0, checking.source()).seed_of(one, "Q", CASES[0], 0) == seeds[0]
    one, two = (Numbers(ri.QQ, 5).draw(3, 2) for _ in range(2))
    assert ri.QQ.equal(one, two)


@pytest.mark.slow
def test_more_cases_are_many_and_follow_the_seed():
    assert more_cases(1) == more_cases(1) != more_cases(2)
    assert {63, 64, 65} <= {c.n for c in more_cases(0)} and len(more_cases(0)) == 43
    theorem = THEOREMS["chunked_eq_sum"]
    assert check(theorem, ri.GF(2**61 - 1), more_cases(3), Draws(3)).verdict == "EXACT"


# Planted bugs. Each must be found in every kind of system, and not by a slip in the bug itself.


def fails(result):
    return result.verdict == "FAIL" and not result.evidence.startswith("raised TypeError")


def strict_mask(q, k, v, kernel, **options):
    """Token t does not see itself."""
    xp = ri.system_of(q).xp
    first = xp.zeros_like(k[..., :1, :])
    k = xp.concat([first, k[..., :-1, :]], axis=-2)
    return ri.linear_attention(q, k, v, replace(kernel, normalise=False), **options)


def drops_the_state(q, k, v, kernel, *, state=None, **options):
    return ri.linear_attention_recurrent(q, k, v, kernel, state=None, **options)


def off_by_one(q, k, v, kernel, *, state=None, **options):
    """Final state counts one position too many."""
    o, end = ri.linear_attention_recurrent(q, k, v, kernel, state=state, **options)
    return o, replace(end, position=end.position + 1)


def transposed(q, k, v, kernel, **options):
    o, end = ri.linear_attention_recurrent(q, k, v, kernel, **options)
    return o, replace(end, S=ri.system_of(q).xp.matrix_transpose(end.S))


def crashes(q, k, v, kernel, **options):
    raise RuntimeError("no kernel for this shape")


def gives_up(q, k, v, kernel, **options):
    raise ri.NotDefined("exp is not defined in ℚ")


@pytest.mark.parametrize(
    "bug", [strict_mask, drops_the_state, off_by_one, transposed, crashes, gives_up], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: s.name)
def test_a_planted_bug_fails_in_every_system(bug, system):
    broken = replace(REFIMPL, linear_attention_recurrent=bug)
    (result,) = verify(["recurrent_eq_sum"], [system], implementation=broken)
    assert fails(result) and result.worst.startswith("n=") and result.evidence


@pytest.mark.parametrize(
    ("theorem", "form"),
    [
        ("quadratic_eq_sum", "linear_attention_quadratic"),
        ("recurrent_eq_sum", "linear_attention_recurrent"),
        ("chunked_eq_sum", "linear_attention_chunked"),
        ("split_invariance", "linear_attention_recurrent"),
        ("shift", "linear_attention_recurrent"),
        ("softmax_shifted_eq_sum", "softmax_attention_shifted"),
        ("kv_cache", "softmax_attention_shifted"),
        ("exact_probes", "linear_attention_chunked"),
        ("causality", "linear_attention_quadratic"),
    ],
)
def test_every_theorem_about_a_form_can_fail(theorem, form):
    """A form that reads the text backwards."""
    right = getattr(REFIMPL, form)

    def backwards(q, k, v, *kernel, **options):
        return right(q, k[..., ::-1, :] if not hasattr(k, "flip") else k.flip(-2), v, *kernel, **options)

    broken = replace(REFIMPL, **{form: backwards})
    results = [r for r in verify([theorem], implementation=broken) if r.verdict != "N/A"]
    assert results and all(map(fails, results)), results


@pytest.mark.parametrize("form", ["quadratic", "recurrent", "chunked"])
@pytest.mark.parametrize("mask", ["causal", "full", 2])
@pytest.mark.parametrize("n", [3, 300])
def test_one_wrong_entry_of_a_form_is_seen_in_short_and_long_texts(form, mask, n):
    name = f"linear_attention_{form}"
    broken = replace(REFIMPL, **{name: off_at_the_end(getattr(REFIMPL, name))})
    case = Case(n, 1, 1, mask=mask, chunk=None)
    results = [check(FORMS[f"{form}_eq_sum"], ri.GF(P), [case], Draws(0), impl) for impl in (REFIMPL, broken)]
    assert [r.verdict for r in results] == ["EXACT", "FAIL"]


@pytest.mark.parametrize(
    "system",
    [ri.Float(), ri.Float("numpy", "float32"), ri.Rounded("float16"), ri.Rounded("bfloat16")],
    ids=lambda system: system.label,
)
def test_probes_cross_chunks(system):
    """A kernel that reads the keys of its third chunk of 16 or more backwards."""

    def slips(q, k, v, kernel, *, chunk, **options):
        t, xp = 2 * chunk, ri.system_of(k).xp
        if chunk >= 16 and k.shape[-2] > t:
            k = xp.concat([k[..., :t, :], k[..., t:, :][..., ::-1, :]], axis=-2)
        return ri.linear_attention_chunked(q, k, v, kernel, chunk=chunk, **options)

    (result,) = verify(["exact_probes"], [system], implementation=replace(REFIMPL, linear_attention_chunked=slips))
    assert fails(result), result


@pytest.mark.parametrize(
    ("theorem", "name", "wrong"),
    [
        ("rope_layouts", "interleave", lambda x, pairs: x),
        ("state_monoid", "join", lambda a, b, kernel, **o: ri.State(a.S + b.S, a.z + b.z, a.position + b.position)),
        ("rope_layouts", "deinterleave", lambda x, pairs: x),
        # no powers of one rotation
        ("rope_relative", "rope", lambda *a: lambda x, at: x * (2 + abs(at[0]))),
        ("state_monoid", "remove", lambda both, b, kernel, **o: both),
        ("state_monoid", "absorb", lambda empty, k, v, kernel: ri.absorb(empty, k[..., 1:, :], v[..., 1:, :], kernel)),
        ("shift", "shift", lambda state, by, kernel: replace(state, position=state.position + by)),
    ],
)
def test_every_theorem_about_states_and_layouts_can_fail(theorem, name, wrong):
    results = verify([theorem], implementation=replace(REFIMPL, **{name: wrong}))
    assert {r.verdict for r in results} == {"FAIL", "N/A"}
    assert all(fails(r) for r in results if r.verdict == "FAIL"), results


def nano_one_position_late(q, k, v, phi, rope, b_KV, b_D):
    """A text that begins at position 1, with biases that are seen from position 0."""
    T = ri.system_of(q).xp.matrix_transpose
    return nano.attention(q, k, v, phi, rope, T(nano.rotate(T(b_KV), -1, rope)), b_D)


def convert_without_shift(model, prompt, **options):
    done = ri.convert(model, prompt, restart=False, **options)
    return replace(done, biases=tuple(replace(b, position=0) for b in done.biases))


def nano_convert_with_old_biases(prompt, layers, heads, phi, rope, sigma, biases):
    return biases


def transformer_without_biases(model, text, **options):
    return ri.transformer(replace(model, biases=None), text, **options)


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: s.name)
@pytest.mark.parametrize(
    ("name", "wrong", "what"),
    [
        ("nano_attention", nano_one_position_late, "attention"),
        ("nano_convert", nano_convert_with_old_biases, "b_KV of layer 0"),
        ("convert", convert_without_shift, "b_KV of layer 0"),
        ("transformer", transformer_without_biases, "transformer"),
        ("transformer", transformer_without_biases, "converted"),
    ],
)
def test_the_library_and_nano_can_differ(name, wrong, what, system):
    broken, theorem = replace(REFIMPL, **{name: wrong}), THEOREMS["nano"]
    fresh = what not in ("transformer", "attention")  # those two differ only if there are biases to begin with
    case = next(c for c in theorem.cases if (c.start is None) == fresh and (c.phi == "elu+1") == (not system.exact))
    result = check(theorem, system, [case], Draws(0, "fixed"), broken)
    assert result.verdict == "FAIL" and result.evidence.startswith(f"{what}["), result
    assert check(theorem, system, [case], Draws(0, "fixed")).verdict in HOLDS


def test_nano_comes_first():
    assert next(iter(THEOREMS)) == "nano"


def test_the_first_differing_entry_is_named():
    def wrong(q, k, v, kernel, **options):
        o, state = ri.linear_attention_quadratic(q, k, v, kernel, **options)
        return o + ri.QQ.convert(
            [[0] * o.shape[-1]] * (o.shape[-2] - 1) + [[0] * (o.shape[-1] - 1) + [1]] * min(o.shape[-2], 1)
        ), state

    broken, theorem = replace(REFIMPL, linear_attention_quadratic=wrong), THEOREMS["quadratic_eq_sum"]
    result = check(theorem, ri.QQ, [Case(3, 2, 4, start=1)], impl=broken)
    assert (result.verdict, result.worst) == ("FAIL", "n=3 d=2 m=4 start=1")
    assert result.evidence.startswith("o[2, 3] is ") and " instead of " in result.evidence


def test_a_wrong_shape_is_a_failure():
    theorem = Theorem(
        "t", "s.", "a", "b", lambda case, numbers, impl: iter([("x", numbers.draw(2, 1), numbers.draw(1, 2))])
    )
    assert check(theorem, ri.QQ, CASES).evidence == "x has shape (2, 1) instead of (1, 2)"


def test_zero_denominators_are_redrawn_and_counted():
    results = [check(THEOREMS["quadratic_eq_sum"], ri.GF(31), CASES, Draws(seed)) for seed in range(4)]
    assert {r.verdict for r in results} == {"EXACT"} and sum(r.redraws for r in results) > 0


def test_a_field_too_small_to_draw_in_is_not_run():
    result = check(THEOREMS["quadratic_eq_sum"], ri.GF(2), CASES)
    assert result.verdict == "NOT RUN" and result.evidence == "20 draws in a row had a zero denominator"


def test_a_vacuous_bound_is_no_pass():
    def cancels(case, numbers, impl):
        """(x + 2⁶⁰) − 2⁶⁰: in float64 nothing is left of x."""
        x, big = numbers.draw(3, 2), 2**60
        xp = ri.system_of(x).xp
        big = numbers.system.convert(big) if xp is numbers.system else np.float64(big)
        yield "x", (x + big) - big, x

    theorem = Theorem("t", "s.", "a", "b", cancels)
    assert check(theorem, ri.Float(), CASES[:1]).verdict == "VACUOUS"
    assert check(theorem, ri.QQ, CASES[:1]).verdict == "EXACT"


def test_an_unbounded_ball_is_no_pass():
    def divides(case, numbers, impl):
        x = numbers.draw(1, 1)
        yield "x", x / (x - x), x

    def near_zero(case, numbers, impl):
        x = numbers.draw(1, 1)
        yield "x", 1 / (x - x), 0 * x

    def one_of_two(case, numbers, impl):
        x = numbers.draw(2, 1)
        yield "x", x + numbers.system.convert([[0], [1]]) * (1 / (x - x)), x

    def both_sides(case, numbers, impl):
        x = numbers.draw(2, 2)
        yield "x", 1 / (x - x), 1 / (x - x)

    for system in (ri.balls(30, "iv"), *([ri.balls(30, "arb")] if find_spec("flint") else [])):
        for sides in (divides, near_zero, both_sides, one_of_two):
            result = check(Theorem("t", "s.", "a", "b", sides), system, CASES[:1])
            assert result.verdict == "VACUOUS" and result.instances == 0, result


def test_rows_of_balls_are_judged_one_by_one():
    def sides(case, numbers, impl):
        x = numbers.draw(3, 2)
        big = numbers.system.convert([[0], [10**40], [0]])
        yield "x", (x + big) - big, x

    result = check(Theorem("t", "s.", "a", "b", sides), ri.balls(30, "iv"), CASES[:1])
    assert (result.verdict, result.rows, result.vacuous) == ("ENCLOSED", 3, 1)
    assert result.evidence.endswith("; 1 of 3 rows vacuous") and result.bound < 1e-20


@pytest.mark.parametrize("system", [*SYSTEMS, ri.Dependencies(), ri.Rounded("float16")], ids=lambda s: s.name)
def test_nothing_compared_is_no_pass(system):
    def sides(case, numbers, impl):
        x = numbers.system.ones((case.n, 2)) if isinstance(system, ri.Dependencies) else numbers.draw(case.n, 2)
        yield "x", x + 0, x
        if case.start is not None:
            yield "position", case.start, case.start

    ways = ("equality", "enclosure", "bound", "probe", "structure")
    theorem = Theorem("t", "s.", "a", "b", sides, ways=ways)
    empty, some, position = Case(0, 1, 1), Case(2, 1, 1), Case(0, 1, 1, start=3)
    result = check(theorem, system, [empty])
    assert (result.verdict, result.evidence) == ("NOT RUN", "nothing was compared: every array is empty")
    assert (result.instances, result.worst) == (0, "n=0 d=1 m=1")
    result = check(theorem, system, [empty, some, position])
    assert (result.verdict in HOLDS, result.instances) == (True, 2)  # an integer is something


def test_a_pair_that_is_always_empty_is_not_run():
    def sides(case, numbers, impl):
        x = numbers.draw(case.n, 2)
        yield "x", x + 0, x
        yield "none", x[:0, :] + 0, x[:0, :]

    result = check(Theorem("t", "s.", "a", "b", sides), ri.QQ, [Case(2, 1, 1), Case(3, 1, 1)])
    words = "none: nothing was compared, since every array of it is empty"
    assert (result.verdict, result.evidence) == ("NOT RUN", words)


@pytest.mark.parametrize("last", [2, 0], ids=["all empty", "one empty"])
def test_pairs_that_differ_in_a_number_alone_are_of_one_kind(last):
    """The only case with a split at 1 may have no text, if others are split elsewhere."""

    def sides(case, numbers, impl):
        x = numbers.draw(case.n, 2)
        yield "x", x + 0, x
        yield f"split at {case.d}: x", x[last:, :] + 0, x[last:, :]

    result = check(Theorem("t", "s.", "a", "b", sides), ri.QQ, [Case(0, 1, 1), Case(2, 2, 1), Case(2, -3, 1)])
    words = "split at n: x: nothing was compared, since every array of it is empty"
    assert result.verdict == ("NOT RUN" if last else "EXACT") and (not last or result.evidence == words)


def cancelling(case, numbers, impl):
    """Of two pairs, the second has (x + 2⁶⁰) − 2⁶⁰: in float64 nothing is left of x."""
    x, big = numbers.draw(3, 2), 2**60
    big = numbers.system.convert(big) if ri.system_of(x).xp is numbers.system else np.float64(big)
    yield "x", x + 0, x
    yield "x again", (x + big) - big, x


def test_a_pair_that_is_always_vacuous_is_not_run():
    result = check(Theorem("t", "s.", "a", "b", cancelling), ri.Float(), [Case(1, 1, 1), Case(2, 1, 1)])
    words = "x again: the bound is as large as the output in every row of it"
    assert (result.verdict, result.evidence, result.rows, result.vacuous) == ("NOT RUN", words, 12, 6)


def test_a_pair_that_is_vacuous_in_one_case_is_counted():
    def sides(case, numbers, impl):
        x, big = numbers.draw(3, 2), 10**60 * (case.n > 1)
        yield "x", (x + big) - big, x

    result = check(Theorem("t", "s.", "a", "b", sides), ri.balls(30, "iv"), [Case(1, 1, 1), Case(2, 1, 1)])
    assert (result.verdict, result.instances) == ("ENCLOSED", 1)
    assert result.evidence.endswith("; 3 of 6 rows vacuous, 1 of 2 pairs not run since all their rows are")


def test_ill_conditioned_numbers_are_drawn_again():
    """Where a draw leaves a pair without a bound, as a zero denominator leaves it without value."""

    def sides(case, numbers, impl):
        x, big = numbers.draw(3, 2), 2**60 * (numbers.seed == first)
        big = numbers.system.convert(big) if ri.system_of(x).xp is numbers.system else np.float64(big)
        yield "x", (x + big) - big, x

    theorem, cases = Theorem("t", "s.", "a", "b", sides), [Case(1, 1, 1)]
    first = Draws(0).seed_of(theorem, "float64", cases[0], 0)
    result = check(theorem, ri.Float(), cases, Draws(0))
    assert (result.verdict in HOLDS, result.redraws, result.vacuous) == (True, 1, 0)


def test_vacuous_rows_are_in_the_words_of_every_verdict_and_in_the_summary():
    def sides(case, numbers, impl):
        x = numbers.draw(3, 2)
        yield "x", (x + x) - x, x
        yield "x", x - x, x - x  # equal, and no bound is below 0

    result = check(Theorem("t", "s.", "a", "b", sides), ri.Float(), [Case(1, 1, 1)])
    counted = "; 3 of 6 rows vacuous, 1 of 2 pairs not run since all their rows are"
    assert (result.verdict, result.evidence) == ("EXACT", f"no rounding error at these instances{counted}")
    assert "1 instances, 3 of 6 rows vacuous, 0 redrawn" in summary([result], 1.0, 0)
    assert "vacuous, " not in summary([replace(result, vacuous=0)], 1.0, 0)


def test_way_prefers_what_decides_more():
    shift, probes, bound = THEOREMS["shift"], THEOREMS["exact_probes"], WAYS["bound"]
    assert way_of(shift, ri.Float()) is way_of(shift, ri.MP(20)) is bound
    assert way_of(probes, ri.Float()) is WAYS["probe"] and way_of(shift, ri.Rounded("float16")) is None


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_running_error_bounds_every_order(dtype):
    """The bound holds for sums in random orders, against the truth over ℚ."""
    system, rng = ri.Float("numpy", dtype), random.Random(0)
    analysis = ri.RunningError(dtype)
    for seed in range(20):
        x, y = system.random((30,), seed), system.random((30,), seed + 100)
        bounded = analysis.sum(analysis.convert(x) * analysis.convert(y), axis=0)
        truth = sum(Fraction(float(a)) * Fraction(float(b)) for a, b in zip(x, y, strict=True))
        for _ in range(10):
            total = x.dtype.type(0)
            for i in rng.sample(range(30), 30):
                total = total + x[i] * y[i]
            assert abs(Fraction(float(total)) - truth) <= Fraction(float(analysis.error(bounded)))


def test_mpmath_bound_shrinks_with_the_precision():
    bounds = [verify(["quadratic_eq_sum"], [ri.MP(digits)])[0].bound for digits in (20, 50, 80)]
    assert bounds[0] > 10**25 * bounds[1] > 10**50 * bounds[2] > 0


@pytest.mark.parametrize("library", ["torch", "array_api_strict"])
def test_other_libraries(library):
    pytest.importorskip(library)
    for r in verify(["chunked_eq_sum", "exact_probes"], [ri.Float(library, "float32")]):
        assert r.verdict in HOLDS, r


# What an agreement is worth.


def test_a_prime_too_small_for_the_degree_claims_no_more_than_its_instances():
    small, large = (verify(["rope_relative"], [ri.GF(p)])[0] for p in (1009, 2**61 - 1))
    assert (small.probability, small.evidence) == (None, "equal at these instances")
    assert (
        large.degree > 1009
        and large.probability < 2**-45
        and large.evidence.startswith("all values at these shapes, false with probability ≤ 2^-4")
    )


def test_the_probability_is_that_of_the_worst_shape():
    theorem, system = THEOREMS["quadratic_eq_sum"], ri.GF(2**61 - 1)
    alone = [check(theorem, system, [case]) for case in CASES if "real" not in {need for need, _ in case.needs(True)}]
    together = check(theorem, system, CASES)
    worst = max(alone, key=lambda r: r.probability)
    assert (together.probability, together.degree, together.worst) == (worst.probability, worst.degree, worst.worst)


def test_a_false_identity_of_low_degree_is_seen_and_one_that_holds_at_random_is_not_called_certain():
    def frobenius(case, numbers, impl):
        """x^p = x holds at every point of GF(p), and is no identity: its degree says so."""
        x = numbers.draw(1, 1)
        yield "x", x**7, x

    result = check(Theorem("t", "s.", "a", "b", frobenius), ri.GF(7), [Case(1, 1, 1)])
    assert (result.verdict, result.degree, result.probability, result.evidence) == (
        "EXACT",
        None,
        None,
        "equal at these instances",
    )
    assert check(Theorem("t", "s.", "a", "b", frobenius), ri.GF(2**61 - 1), [Case(1, 1, 1)]).verdict == "FAIL"


def test_what_is_constant_on_both_sides_leaves_no_doubt():
    theorem = Theorem(
        "t",
        "s.",
        "a",
        "b",
        lambda case, numbers, impl: iter([("x", numbers.system.ones((1,)), numbers.system.ones((1,)))]),
    )
    assert check(theorem, ri.GF(7), [Case(1, 1, 1)]).evidence == "all values at these shapes, without doubt"


def test_a_witness_that_shows_nothing_fails():
    def same(case, numbers, impl):
        x = numbers.draw(2, 2)
        yield Different("x", x, x + 0)

    for system in (ri.QQ, ri.GF(10007)):
        result = check(Theorem("t", "s.", "a", "b", same, ways=("witness",)), system, [Case(1, 1, 1)])
        assert (result.verdict, result.evidence) == ("FAIL", "x: both sides are equal, so it shows nothing")


def test_a_witness_needs_exact_numbers_and_no_tiny_prime():
    result = {r.system: r for r in verify(["needs_causality"], [ri.QQ, ri.GF(7), ri.Float(), ri.Dependencies()])}
    assert (result["Q"].verdict, result["Q"].evidence) == ("EXACT", "shown by a witness")
    assert result["GF(7)"].evidence == "needs_causality needs characteristic 0 or > 7"
    assert result["float64"].evidence == result["dependencies"].evidence == "a witness is a matter of exact numbers"


def test_the_oracle_tells_good_rounding_from_bad():
    def squared(loss):
        def sides(case, numbers, impl):
            x = numbers.draw(40, 3)
            yield "x²", (x * x + loss) - loss, x * x

        return sides

    for loss, verdict in ((0, "MEASURED"), (64, "FAIL")):
        result = check(
            Theorem("t", "s.", "a", "b", squared(loss), ways=("oracle",)),
            ri.Float(),
            [Case(n, 1, 1) for n in range(20)],
        )
        assert (
            result.verdict == verdict and result.bound > 0 and result.evidence.endswith("by 40 digits, in 20 instances")
        )
    exact = check(Theorem("t", "s.", "a", "b", squared(0), ways=("oracle",)), ri.QQ, [Case(1, 1, 1)])
    assert exact.evidence == "t is about rounding, of which there is none or it is enclosed"


def test_what_compares_nothing_or_shapes_only_is_a_failure():
    assert (
        check(Theorem("t", "s.", "a", "b", lambda case, numbers, impl: iter(())), ri.QQ, [Case(1, 1, 1)]).evidence
        == "nothing was compared"
    )
    shapes = Theorem(
        "t",
        "s.",
        "a",
        "b",
        lambda case, numbers, impl: iter([Different("x", *map(ri.QQ.zeros, ((1,), (2,))))]),
        ways=("witness",),
    )
    assert check(shapes, ri.QQ, [Case(1, 1, 1)]).evidence == "x has shape (1,) instead of (2,)"


def test_a_case_whose_every_bound_is_vacuous_does_not_count():
    def cancels(case, numbers, impl):
        x, big = numbers.draw(3, 2), 2**60 * (case.n == 1)
        big = numbers.system.convert(big) if ri.system_of(x).xp is numbers.system else np.float64(big)
        yield "x", (x + big) - big, x

    result = check(Theorem("t", "s.", "a", "b", cancels), ri.Float(), [Case(1, 1, 1), Case(2, 1, 1)])
    assert result.verdict != "VACUOUS" and result.instances == 1


def test_degrees_are_those_of_the_positions_that_were_drawn():
    results = [verify(["rope_relative"], [ri.GF(2**61 - 1)], draws=Draws(seed, "fixed"))[0] for seed in range(4)]
    assert len({r.degree for r in results}) > 1


def test_many_instances_must_not_round_twice_as_badly():
    def worse(case, numbers, impl):
        """Three times the error of x², of which one is kept on the other side."""
        x = numbers.draw(40, 3)
        yield "x²", (x * x + 4) - 4, (x * x + 1) - 1

    theorem = Theorem("t", "s.", "a", "b", worse, ways=("oracle",))
    few, many = (check(theorem, ri.Float(), [Case(n, 1, 1) for n in range(1, count)]) for count in (3, 25))
    assert (few.verdict, many.verdict) == ("MEASURED", "FAIL") and many.instances == 24
    assert few.evidence.endswith("in 2 instances, too few to judge")


def test_no_two_theorems_have_one_name():
    from types import SimpleNamespace

    from refimpl.verify.registry import theorems_by_name

    module, other = (SimpleNamespace(THEOREMS=(replace(THEOREMS["iclca"]),)) for _ in range(2))
    assert list(theorems_by_name([module])) == ["iclca"]
    with pytest.raises(ValueError, match="every theorem must have a name of its own, got iclca twice"):
        theorems_by_name([module, other])


def test_bounds_of_a_conversion_are_known_for_linearized_attention_only():
    model = ri.random_model(ri.Float(), ri.Config(layers=1, width=2, phi="softmax", vocabulary=3), seed=0)
    with pytest.raises(ri.NotDefined, match="check_conversion: bounds are known for linearized attention only"):
        ri.check_conversion(model, ri.convert(model, [1]), [1], [2])


@pytest.mark.parametrize("name", [name for name, t in THEOREMS.items() if t.group == "verify"])
def test_what_verify_says_of_itself(name):
    result = check(THEOREMS[name], ri.QQ, THEOREMS[name].cases)
    assert (result.verdict, result.instances) == ("EXACT", 1)


def test_a_theorem_that_is_named_twice_is_checked_once():
    found = verify(["shift", "norms", "shift"], [ri.QQ])
    assert [r.theorem for r in found] == ["shift", "norms"]


def test_a_result_says_how_long_it_took():
    theorem, began = THEOREMS["shift"], time.perf_counter()
    result = check(theorem, ri.QQ, theorem.cases[:1], Draws(0))
    assert 0 < result.seconds <= time.perf_counter() - began


def test_a_quick_run_tries_ways_that_round_on_every_second_case():
    assert {name for name, way in WAYS.items() if way.sparse} == {"bound", "enclosure"}
