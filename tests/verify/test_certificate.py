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
from refimpl.verify.certificate import FORMAT, OTHER_VERSIONS, certificate, failure, replay
from refimpl.verify.check import Draws, check, minimal
from refimpl.verify.formal import PRINTED, PROVED
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
    assert "shapes, false with probability ≤ 2^-" in row["evidence"]
    assert len(row["shapes"]) == len(row["cases"]) == row["instances"] and row["shapes"][0].startswith("n=0 d=3")
    assert row["inputs"] != row["outputs"] and len(row["inputs"]) == 16
    assert entry(data, "quadratic_eq_sum", "float64")["error"] < entry(data, "quadratic_eq_sum", "float64")["bound"]
    assert entry(data, "causality", "Q")["verdict"] == "N/A" and entry(data, "causality", "Q")["cases"] == []


def test_a_replay_gives_the_same(made):
    results, differences = replay(json.loads(made))
    assert differences == [] and len(results) == 9  # the rest is N/A


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("quadratic_eq_sum", {}, None),
        ("quadratic_eq_sum", {"verdict": "NOT CHECKED", "statements": {}}, None),
        ("quadratic_eq_sum", {"statements": {}}, "quadratic_eq_sum in Coq: PROVED by {} in the certificate"),
        ("quadratic_eq_sum", {"statements": {"rope.invented": "0" * 16}}, "PROVED by {'rope.invented': '00000000"),
        ("quadratic_eq_sum", {"verdict": "IN PART"}, "quadratic_eq_sum in Coq: IN PART by"),
        ("nano", {}, "nano in Coq: PROVED by"),
        ("invented\x1b", {"statements": {}}, "invented\\x1b in Coq: PROVED by {}"),
    ],
)
def test_a_replay_sees_proofs_that_are_not_those_of_the_library(made, name, change, said):
    data = json.loads(made)
    statements = {each: PRINTED[each] for each in PROVED["quadratic_eq_sum"]}
    data["proofs"] = [{"theorem": name, "verdict": "PROVED", "evidence": "", "statements": statements} | change]
    data["results"] = [entry(data, "causality", "dependencies")]
    differences = replay(data)[1]
    assert differences == [] if said is None else len(differences) == 1 and said in differences[0]


@pytest.mark.parametrize("proofs", [5, [5], [{}], [{"theorem": 1, "verdict": "N/A", "statements": {}}], ["x"]])
def test_proofs_that_are_none(made, proofs):
    with pytest.raises(ValueError, match=r"^replay: `data` must be a certificate that --json wrote"):
        replay(json.loads(made) | {"proofs": proofs})


def test_a_replay_wants_a_limit_that_is_a_number(made):
    with pytest.raises(ValueError, match=r"^replay: `limit` must be a finite number ≥ 0, got inf$"):
        replay(json.loads(made), limit=float("inf"))


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
    assert replay(data)[1] == [OTHER_VERSIONS]
    entry(data, "quadratic_eq_sum", "Q")["outputs"] = "?"
    entry(data, "quadratic_eq_sum", "float64")["verdict"] = "FAIL"
    assert [d.split(":")[0] for d in replay(data)[1][1:]] == ["quadratic_eq_sum in Q", "quadratic_eq_sum in float64"]


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
                    {"theorem": "shift", "system": "Q", "cases": [{"kind": "Case", "n": 10**30, "d": 1, "m": 1}]}
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
    with pytest.raises(ValueError, match=r"^replay: `data` must be a certificate that --json wrote"):
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
    (tmp_path / "refimpl-failures/recurrent_eq_sum-Q.json").mkdir(parents=True)
    assert main(["verify", "recurrent_eq_sum", "--system", "Q"]) == 1  # the check fails, whatever can be written
    words = "cannot write refimpl-failures/recurrent_eq_sum-Q.json: not a regular file"
    assert capsys.readouterr().err == f"refimpl: verify: {words}\n"


def test_a_failure_is_saved_and_replayed_by_the_printed_command(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    use_implementation(monkeypatch, BROKEN)
    assert main(["verify", "recurrent_eq_sum", "--system", "Q", "--system", "float64"]) == 1
    lines = capsys.readouterr().out.splitlines()
    printed = [line.strip() for line in lines if " --replay " in line]
    assert printed == [
        f"refimpl verify --replay refimpl-failures/recurrent_eq_sum-{system}.json" for system in ("Q", "float64")
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["refimpl-failures"]  # one folder
    saved = sorted(f"refimpl-failures/{p.name}" for p in (tmp_path / "refimpl-failures").iterdir())
    assert saved == sorted(command.split()[-1] for command in printed)
    assert main(printed[0].split()[1:]) == 1
    out = capsys.readouterr().out
    assert "Q: FAIL" in out and out.endswith("all as in the certificate\n")
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
    assert "the file must be JSON in UTF-8" in capsys.readouterr().err


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
        x = numbers.draw(9)  # of which no two draws are the same
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
    assert len(drawn[0]) == 9 and drawn != [[*map(str, first["x"])]]


# What a certificate may ask for


def asking(theorem, system, case):
    row = {"theorem": theorem, "system": system, "cases": [case], "verdict": "EXACT"}
    return {"format": FORMAT, "seed": 0, "source": "", "versions": {}, "results": [row]}


SMALL = {"kind": "Case", "n": 2, "d": 2, "m": 1}


@pytest.mark.parametrize(
    "data",
    [
        asking("shift", "Q", SMALL | {"n": 65536}),
        asking("shift", "Q", SMALL | {"n": 300}),
        asking("shift", "Q", SMALL | {"start": 65536, "rope": ["half", "after", 2]}),
        asking("shift", "float64", SMALL | {"n": 65536}),
        asking("shift", "float64", SMALL | {"m": 2**40}),
        asking("shift", "float64", SMALL | {"heads": [[65536, 65536], [65536, 65536]]}),
        asking("quadratic_eq_sum", "GF(10007)", SMALL | {"phi": "polynomial(16)", "d": 4}),
        asking("shift", "mpmath(100000000)", SMALL),
        asking("shift", "mpmath(100000000)", CASES[0].to_json()),
        asking("shift", "balls(1000000)", SMALL),
        asking("shift", "dependencies", SMALL | {"n": 5000}),
        asking("iclca", "float64", {"kind": "ModelCase", "M": 1, "n": 1, "width": 2**20}),
        asking("iclca", "Q", {"kind": "ModelCase", "M": 3, "n": 1, "layers": 9, "norm": "rms_rational"}),
        asking("iclca", "float64", {"kind": "ModelCase", "M": 1, "n": 1, "batch": [10**9]}),
        asking("dual_form", "float64", {"kind": "Lesson", "N": 9999, "d": 2, "m": 1}),
        asking(
            "log_features",
            "float64",
            {"kind": "FeatureCase", "phi": "positive", "M": 1, "n": 1, "d": 2**16, "r": 2**16},
        ),
        asking(
            "feature_error", "float64", {"kind": "FeatureCase", "phi": "positive", "M": 0, "n": 1, "d": 99, "r": 99}
        ),
        asking("recurrence_eq_sum", "Q", {"kind": "RecurrentCase", "M": 2000, "n": 1, "d": 2, "m": 1}),
    ],
    ids=lambda data: f"{data['results'][0]['theorem']} {data['results'][0]['system']} {data['results'][0]['cases'][0]}"[
        :60
    ],
)
def test_a_small_certificate_does_not_ask_for_much(data, monkeypatch, capsys, tmp_path):
    from refimpl.verify import certificate as module

    monkeypatch.setattr(module, "check", lambda *args: pytest.fail("it was run"))
    name = data["results"][0]["theorem"]
    with pytest.raises(ValueError, match=rf"^replay: {name} in .* must need at most .*, got about .*; .* `limit` to "):
        replay(data)
    (tmp_path / "c.json").write_text(json.dumps(data))
    assert main(["verify", "--replay", str(tmp_path / "c.json")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"refimpl: --replay: {tmp_path}/c.json: replay: {name} in ") and "raise --limit to " in said
    assert len(said) < 600


def test_a_limit_allows_more(tmp_path, capsys):
    data = asking("shift", "float64", SMALL | {"n": 3})
    with pytest.raises(ValueError, match=r"raise `limit` to 1$"):
        replay(data, limit=0)
    assert replay(data, limit=1)[0][0].instances == 1
    (tmp_path / "c.json").write_text(json.dumps(data))
    assert main(["verify", "--replay", str(tmp_path / "c.json"), "--limit", "0"]) == 2
    assert "raise --limit to 1" in capsys.readouterr().err
    assert main(["verify", "--replay", str(tmp_path / "c.json"), "--limit", "-1"]) == 2
    assert "`limit`" not in (said := capsys.readouterr().err) and "--limit must be a finite number ≥ 0" in said


@pytest.mark.parametrize("full", [False, True], ids=["quick", "full"])
@pytest.mark.parametrize(
    "systems", [None, ["mpmath(200)", "balls(50)", "GF(10007)", "float16"]], ids=["usual", "others"]
)
def test_what_verify_writes_replays_without_a_limit(full, systems, monkeypatch):
    """Every row of the certificates that verify writes, by estimate alone: nothing is run."""
    from refimpl.verify import certificate as module
    from refimpl.verify import registry
    from refimpl.verify.theorem import Result

    def not_run(theorem, system, cases, *rest):
        fitting = tuple(case for case in cases if theorem.fits(case) and theorem.only in ("", system.label))
        return Result(theorem.name, system.label, "EXACT" if fitting else "N/A", "", cases=fitting)

    monkeypatch.setattr(registry, "check", not_run)
    monkeypatch.setattr(module, "check", not_run)
    draws = Draws(7)
    results = verify(systems=systems and [ri.system(name) for name in systems], full=full, draws=draws)
    data = json.loads(json.dumps(certificate(results, draws, full=full, seconds=1.0)))
    again, _ = replay(data, limit=0)
    assert [(r.theorem, r.system, r.cases) for r in again] == [
        (r.theorem, r.system, r.cases) for r in results if r.cases
    ]
    assert sum(len(r.cases) for r in again) > 300
    data["results"] *= 2  # the second time is not free
    with pytest.raises(ValueError, match=r"raise `limit` to"):
        replay(data, limit=0)


def test_only_some_systems_are_free(monkeypatch):
    from refimpl.verify import certificate as module

    monkeypatch.setattr(module, "check", lambda *args: pytest.fail("it was run"))
    data = asking("shift", "Q", CASES[4].to_json())
    data["results"] = [data["results"][0] | {"system": f"mpmath({n})"} for n in range(20, 37)]
    with pytest.raises(ValueError, match=r"^replay: shift in mpmath\(36\) at "):
        replay(data, limit=0)


HEADS = "tuple[tuple[int, ...], tuple[int, ...]]"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kind": "Cases"}, "`kind` must be one of Case, FeatureCase, Lesson, ModelCase, RecurrentCase, got 'Cases'"),
        ({"\x1b[2J": 1}, "a Case must have all of its fields and no others, got '\\x1b[2J' missing or unknown"),
        ({"n": -1}, "n of a case must be int; numbers from 0 to 2^53, tuples of at most 32; got -1"),
        ({"n": True}, "n of a case must be int; numbers from 0 to 2^53, tuples of at most 32; got True"),
        ({"n": 2**60}, f"n of a case must be int; numbers from 0 to 2^53, tuples of at most 32; got {2**60}"),
        (
            {"start": -(2**60)},
            "start of a case must be int | None; numbers from -2^53 to 2^53, tuples of at most 32; got",
        ),
        ({"heads": 3}, f"heads of a case must be {HEADS}; numbers from 0 to 2^53, tuples of at most 32; got 3"),
        ({"heads": [[2], [3]]}, "leading axes (3,) of `k` must broadcast with (2,) of `q`"),
        (
            {"heads": [[1] * 40, []]},
            f"heads of a case must be {HEADS}; numbers from 0 to 2^53, tuples of at most 32; got",
        ),
        ({"mask": "none"}, "Case: `mask` must be one of causal, full, got 'none'"),
        ({"mask": 9}, "the fields of a case must go together, got 'n=2 d=2 m=1 mask=9'"),
        ({"rope": ["half", "x", 2]}, "Case: `rope` must be one of after, before, got 'x'"),
        ({"rope": ["x", "after", 2]}, "Case: `rope` must be one of half, interleaved, got 'x'"),
        ({"rope": ["half", "after", 1]}, "Case: `rope` must turn an even number of features, got 1"),
        ({"phi": "polynomial(99)"}, "? `name` must be one of dpfp(1), "),
    ],
    ids=str,
)
def test_cases_that_are_none(change, problem):
    with pytest.raises(ValueError) as caught:
        replay(asking("shift", "Q", SMALL | change))
    assert problem in str(caught.value) and str(caught.value).isprintable() and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": "\x1b"}, "its format is '\\x1b'"),
        ({"seed": True}, "its seed and source must be an integer and a text, got True and ''"),
        ({"source": 3}, "its seed and source must be an integer and a text, got 0 and 3"),
        ({"results": {}}, "results and cases must be lists, got {}"),
        ({"theorem": "\x1b"}, "a result: `theorem` must be one of "),
        ({"cases": "abc"}, "results and cases must be lists, got 'abc'"),
        ({"cases": [3]}, "a case must be an object, got 3"),
        ({"cases": [Case(1, 1, 1).to_json() | {"kind": "ModelCase"}]}, "a ModelCase must have all of its fields"),
        ({"cases": [ModelCase(1, 1).to_json()]}, "shift speaks of no ModelCase"),
        ({"system": 3}, "the system must be a text of at most 80 characters, got 3"),
        ({"system": "x" * 81}, "the system must be a text of at most 80 characters, got a value of type str"),
        ({"system": f"mpmath({10**20})"}, "the system must have numbers of at most 19 digits, got 'mpmath(1"),
        ({"system": "numpy float64 on nowhere"}, "ValueError"),
    ],
    ids=str,
)
def test_rows_that_are_none(change, problem):
    data = asking("shift", "Q", SMALL)
    data |= {key: x for key, x in change.items() if key in data}
    if "results" not in change:
        data["results"][0] |= {key: x for key, x in change.items() if key not in data}
    with pytest.raises(ValueError, match=r"^replay: `data` must be a certificate that --json wrote") as caught:
        replay(data)
    assert problem in str(caught.value) and str(caught.value).isprintable() and len(str(caught.value)) < 500


def test_a_device_of_torch_that_is_not_here():
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"RuntimeError|no arrays of 'torch float32 on nowhere' can be made here"):
        replay(asking("shift", "torch float32 on nowhere", SMALL))
