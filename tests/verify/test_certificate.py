"""A certificate can be repeated, and says so when something else comes out; a failure comes with
its smallest instance.
"""

import json
from dataclasses import replace

import pytest

import refimpl as ri
from refimpl.cli.main import main
from refimpl.verify import check as checking
from refimpl.verify.cases import Case, ModelCase, case_from_json
from refimpl.verify.certificate import FORMAT, certificate, failure, replay
from refimpl.verify.check import Draws, check, minimal
from refimpl.verify.implementation import REFIMPL
from refimpl.verify.registry import THEOREMS, verify
from refimpl.verify.theorem import Theorem
from refimpl.verify.theorems.iclca import MODELS
from refimpl.verify.theorems.identities import CASES
from tests.helpers.planted import use_implementation

NAMES = ["quadratic_eq_sum", "iclca_linear", "needs_separation", "causality"]
SYSTEMS = ["Q", "GF(10007)", "float64", "rounded(bfloat16)", "dependencies"]


@pytest.fixture(scope="module")
def made():
    """A certificate as JSON has it."""
    draws = Draws(5)
    results = verify(NAMES, [ri.system(name) for name in SYSTEMS], draws=draws)
    return json.dumps(certificate(results, draws, full=False, seconds=1.0), allow_nan=False)


def entry(data, theorem, system):
    return next(r for r in data["results"] if (r["theorem"], r["system"]) == (theorem, system))


def test_it_says_all_that_was_done(made):
    data = json.loads(made)
    assert (data["format"], data["seed"], data["full"], data["primes"]) == (FORMAT, 5, False, [10007])
    assert len(data["source"]) == 64 and data["versions"]["numpy"] and data["versions"]["machine"]
    row = entry(data, "quadratic_eq_sum", "GF(10007)")
    assert row["verdict"] == "EXACT" and 0 < row["probability"] < 1 and row["degree"] > 10 and row["seconds"] > 0
    assert len(row["shapes"]) == len(row["cases"]) == row["instances"] and row["shapes"][0].startswith("n=0 d=3")
    assert row["inputs"] != row["outputs"] and len(row["inputs"]) == 16
    assert entry(data, "quadratic_eq_sum", "float64")["error"] < entry(data, "quadratic_eq_sum", "float64")["bound"]
    assert entry(data, "causality", "Q")["verdict"] == "N/A" and entry(data, "causality", "Q")["cases"] == []


def test_a_replay_gives_the_same(made):
    results, differences = replay(json.loads(made))
    assert differences == [] and len(results) == 9  # the rest is N/A


@pytest.mark.parametrize(
    ("field", "value"),
    [("outputs", "0" * 16), ("inputs", "0" * 16), ("verdict", "FAIL"), ("degree", 1), ("instances", 3)],
)
def test_a_replay_sees_what_was_changed(made, field, value):
    data = json.loads(made)
    entry(data, "quadratic_eq_sum", "GF(10007)")[field] = value
    _, (difference,) = replay(data)
    assert difference.startswith(f"quadratic_eq_sum in GF(10007): {field} is ") and difference.endswith(
        f"in the certificate {value!r}"
    )


def test_a_row_without_shapes_cannot_claim_a_verdict(made):
    data = json.loads(made)
    entry(data, "causality", "Q")["verdict"] = "EXACT"
    assert replay(data)[1] == ["causality in Q: no shape is given, yet the verdict is 'EXACT'"]


def test_a_replay_sees_another_seed(made):
    data = json.loads(made) | {"seed": 6}
    assert {d.split(":")[0] for d in replay(data)[1]} >= {
        f"quadratic_eq_sum in {s}" for s in ("Q", "GF(10007)", "float64")
    }


def test_on_other_versions_floats_need_only_agree_in_the_verdict(made):
    data = json.loads(made)
    data["versions"]["numpy"] = "1.0"
    entry(data, "quadratic_eq_sum", "float64")["error"] = 1.0
    assert replay(data)[1] == []
    entry(data, "quadratic_eq_sum", "Q")["outputs"] = "?"
    entry(data, "quadratic_eq_sum", "float64")["verdict"] = "FAIL"
    assert [d.split(":")[0] for d in replay(data)[1]] == ["quadratic_eq_sum in Q", "quadratic_eq_sum in float64"]


def test_another_source_is_said_and_its_numbers_are_drawn_again(made, monkeypatch):
    from refimpl.verify import certificate as module

    monkeypatch.setattr(module, "source", lambda: "changed")
    assert replay(json.loads(made))[1] == ["the source has changed since"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: [],
        lambda d: None,
        lambda d: d | {"format": "else"},
        lambda d: {k: v for k, v in d.items() if k != "seed"},
        lambda d: d | {"results": [{"theorem": "none", "system": "Q", "cases": []}]},
        lambda d: d | {"results": 3},
        lambda d: d | {"results": [{"theorem": "shift", "system": "Q", "cases": [{"kind": "os.system"}]}]},
        lambda d: d | {"results": [{"theorem": "shift", "system": "Q", "cases": [{"kind": "Case", "n": 1}]}]},
        lambda d: d | {"results": []},
        lambda d: d | {"seed": 1e400},
        lambda d: d | {"seed": 0.5},
        lambda d: (
            d
            | {
                "results": [
                    {"theorem": "shift", "system": "Q", "cases": [{"kind": "Case", "n": 10**9, "d": 1, "m": 1}]}
                ]
            }
        ),
        lambda d: (
            d
            | {"results": [{"theorem": "shift", "system": "Q", "cases": [{"kind": "Case", "n": "1", "d": 1, "m": 1}]}]}
        ),
        lambda d: (
            d
            | {
                "results": [
                    {
                        "theorem": "iclca",
                        "system": "Q",
                        "cases": [{"kind": "ModelCase", "M": 1, "n": 1, "norm": "none?"}],
                    }
                ]
            }
        ),
    ],
)
def test_what_is_no_certificate_is_refused(made, spoil):
    with pytest.raises(ValueError, match=r"^verify: --replay needs a certificate that --json wrote"):
        replay(spoil(json.loads(made)))


def test_cases_go_into_a_file_and_back():
    for case in (*CASES, *MODELS):
        again = case_from_json(json.loads(json.dumps(case.to_json())))
        assert again == case and hash(again) == hash(case)


def test_smaller_cases_are_valid_and_end():
    for case in (*CASES, *MODELS):
        for smaller in case.smaller():
            assert smaller != case and smaller.valid()


def drops_the_state(q, k, v, kernel, *, state=None, **options):
    return ri.linear_attention_recurrent(q, k, v, kernel, state=None, **options)


BROKEN = replace(REFIMPL, linear_attention_recurrent=drops_the_state)


def test_the_smallest_failing_case_is_found():
    case = minimal(THEOREMS["recurrent_eq_sum"], ri.QQ, CASES[5], Draws(), BROKEN)
    assert case == Case(1, 1, 1, mask=0, start=0, chunk=1)


def test_a_case_that_does_not_fail_stays_as_it_is():
    assert minimal(THEOREMS["recurrent_eq_sum"], ri.QQ, CASES[3], Draws()) == CASES[3]


def test_the_smallest_failing_model_is_found():
    from tests.helpers.planted_conversions import BUGS

    broken = replace(REFIMPL, convert=BUGS["unshifted"].wrong)
    (result,) = verify(["iclca"], [ri.GF(2**61 - 1)], implementation=broken)
    data = failure(result, Draws(), broken)
    (row,) = data["results"]
    case = case_from_json(row["cases"][0])
    assert case == ModelCase(1, 1, width=1, rope=("half", "after", 2), chunk=1) and row["verdict"] == "FAIL"
    assert [len(x) for x in data["drawn"]] and all(isinstance(x, list) for x in data["drawn"])


def test_a_failure_does_not_take_the_place_of_a_folder(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    use_implementation(monkeypatch, BROKEN)
    (tmp_path / "refimpl-failure-recurrent_eq_sum-Q.json").mkdir()
    assert main(["verify", "recurrent_eq_sum", "--system", "Q"]) == 2
    words = "cannot write refimpl-failure-recurrent_eq_sum-Q.json: not a regular file"
    assert capsys.readouterr().err == f"refimpl: verify: {words}\n"


def test_a_failure_is_saved_and_replayed_by_the_printed_command(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    use_implementation(monkeypatch, BROKEN)
    assert main(["verify", "recurrent_eq_sum", "--system", "Q", "--system", "float64"]) == 1
    printed = [
        line.rpartition(": ")[2]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("a failing instance")
    ]
    assert printed == [
        f"refimpl verify --replay refimpl-failure-recurrent_eq_sum-{system}.json" for system in ("Q", "float64")
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(command.split()[-1] for command in printed)
    assert main(printed[0].split()[1:]) == 1
    out = capsys.readouterr().out
    assert "FAIL" in out and "all as in the certificate" in out
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert main(printed[0].split()[1:]) == 1  # mended since: it says so
    out = capsys.readouterr().out
    assert "1 of 1 checks hold" in out and "verdict is 'EXACT', in the certificate 'FAIL'" in out


def test_replay_on_the_command_line(made, tmp_path, capsys):
    path, copy = tmp_path / "made.json", tmp_path / "copy.json"
    path.write_text(made)
    assert main(["verify", "--replay", str(path), "--json", str(copy)]) == 0
    assert capsys.readouterr().out.endswith("all as in the certificate\n")
    assert json.loads(copy.read_text())["source"] == json.loads(made)["source"]
    path.write_text(made[: len(made) // 2])
    assert main(["verify", "shift", "--replay", str(path)]) == 2
    assert "--replay goes alone" in capsys.readouterr().err
    assert main(["verify", "--replay", str(path)]) == 2
    assert "must be a JSON file" in capsys.readouterr().err


def test_the_source_is_what_lies_on_the_disk(tmp_path, monkeypatch):
    assert len(checking.source()) == 64
    (tmp_path / "verify").mkdir()
    (tmp_path / "module.py").write_text("x = 1")
    monkeypatch.setattr(checking, "__file__", str(tmp_path / "verify" / "check.py"))
    before = checking.source.__wrapped__()
    (tmp_path / "module.py").write_text("x = 2")
    assert len({before, checking.source.__wrapped__(), checking.source()}) == 3


def test_degrees_are_computed_once_for_all_primes(monkeypatch):
    draws, counted = Draws(), []
    monkeypatch.setattr(checking, "_degrees", lambda theorem, case, numbers, impl: counted.append(case) or (1, 0))
    for p in (10007, 2**61 - 1):
        check(THEOREMS["iclca_linear"], ri.GF(p), THEOREMS["iclca_linear"].cases, draws)
    assert counted == list(THEOREMS["iclca_linear"].cases)


def test_digests_follow_every_number_drawn_and_compared():
    def sides(change):
        def run(case, numbers, impl):
            x = numbers.draw(2, 2)
            at = numbers.integers(0, 5, 3)
            yield "x", x + change * (len(at) - 3), x + change

        return run

    def result(change, seed=0):
        return check(Theorem("t", "s.", "a", "b", sides(change)), ri.QQ, [Case(1, 1, 1)], Draws(seed, "fixed"))

    same, again, moved, other = result(0), result(0), result(1), result(0, seed=1)
    assert (same.inputs, same.outputs) == (again.inputs, again.outputs)
    assert same.inputs == moved.inputs != other.inputs and len({same.outputs, moved.outputs, other.outputs}) == 3

    def left(value):
        return lambda case, numbers, impl: iter([("x", numbers.system.ones((1,)) * value, numbers.system.ones((1,)))])

    one, two = (check(Theorem("t", "s.", "a", "b", left(v)), ri.QQ, [Case(1, 1, 1)], Draws(0, "fixed")) for v in (1, 2))
    assert one.outputs != two.outputs

    def ids(seed):
        return lambda case, numbers, impl: iter([("n", *[numbers.integers(0, 10**9, 1)[0]] * 2)])

    one, two = (
        check(Theorem("t", "s.", "a", "b", ids(0)), ri.QQ, [Case(1, 1, 1)], Draws(seed, "fixed")) for seed in (0, 1)
    )
    assert one.inputs != two.inputs


def test_a_failure_after_a_redraw_shows_the_numbers_that_failed():
    """The first draw divides by zero, the second fails: what is saved is the second."""

    def sides(case, numbers, impl):
        x = numbers.draw(1)
        if first.setdefault("x", x.tolist()) == x.tolist():
            raise ZeroDivisionError
        yield "x", x, x + 1

    first = {}
    theorem = Theorem("t", "s.", "a", "b", sides)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(THEOREMS, "t", theorem)
        result = check(theorem, ri.QQ, [Case(1, 1, 1, chunk=1)], Draws())
        assert result.redraws == 1 and result.verdict == "FAIL"
        data = failure(result, Draws())
    (drawn,) = data["drawn"]
    assert drawn != [[str(first["x"][0])]]
