"""What `verify` and `show` print, on terminals of two sizes, to pipes and in ASCII."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from dataclasses import replace

import pytest

import refimpl as ri
from refimpl.cli import screen
from refimpl.cli.main import main
from refimpl.cli.screen import Look
from refimpl.verify.implementation import REFIMPL
from refimpl.verify.matrix import MARKS, Matrix, mark_of, share, short_names, strength
from refimpl.verify.papers import ARXIV, links
from refimpl.verify.registry import THEOREMS
from refimpl.verify.theorem import Result
from tests.helpers.planted import use_implementation
from tests.helpers.source import ROOT

ASKED = ["verify", "quadratic_eq_sum", "kv_cache", "iclca_linear", "--system", "Q", "--system", "float64"]
ASKED += ["--system", "GF(2305843009213693951)"]
BROKEN = (
    "import sys, pytest; from dataclasses import replace\n"
    "from refimpl.cli.main import main; from refimpl.verify.implementation import REFIMPL as R\n"
    "from tests.helpers.planted import use_implementation\n"
    "def wrong(q, k, v, *rest, real=R.linear_attention_quadratic, **options):\n"
    "    o, state = real(q, k, v, *rest, **options)\n"
    "    return o + o, state\n"
    "use_implementation(pytest.MonkeyPatch(), replace(R, linear_attention_quadratic=wrong))\n"
    "sys.exit(main(sys.argv[1:]))"
)
SIZES = [(80, 24), (120, 40)]
ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def environment(**variables):
    """Ours, without what says how terminals are to be treated."""
    kept = {name: x for name, x in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR", "TERM")}
    return kept | {"PYTHONPATH": str(ROOT.parent), "PYTHONIOENCODING": "utf-8", "TERM": "xterm"} | variables


def on_terminal(argv, size, *, code=None, interrupt=None, cwd=None, **variables):
    """(status, what a terminal of this size was sent); `interrupt`: Ctrl-C once this was shown."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    command = [sys.executable, *(["-c", code] if code else ["-m", "refimpl"]), *argv]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**variables), cwd=cwd, close_fds=True
    )
    os.close(theirs)
    text = b""
    with suppress(OSError):  # the end, on Linux
        while block := os.read(ours, 4096):
            text += block
            if interrupt and interrupt in text:
                process.send_signal(signal.SIGINT)
                interrupt = None
    os.close(ours)
    return process.wait(60), text.decode().replace("\r\n", "\n")


def lines_of(text):
    """The lines that stay on the screen: progress is written over, colours take no place."""
    rows = [row.rpartition("\r")[2] for row in text.split("\x1b[K")[-1].split("\n")]
    return [ESCAPES.sub("", row).rstrip() for row in rows]


def without_numbers(lines):
    """Draws depend on the source, so the strengths do."""
    text = "\n".join(lines).strip("\n")
    text = re.sub(r"([≤<])[.\d]+ *", r"\1.# ", re.sub(r"=\d\d?\b", "=##", text))
    text = re.sub(r"2\^-\d+|\b\d+\.\d s|\d+ of \d+ rows|\d+ instances", "#", text)
    return re.sub(r"difference is [.\d]+|[ \t]+$", lambda m: m[0].rstrip(" .0123456789"), text, flags=re.M)


PASSING = """\
                   Coq ℚ f64  p₁
attention
  quadratic_eq_sum ·   = ≤.# =##
softmax
  kv_cache         ·     ≤.#
ICLCA
  iclca_linear     ·   = ≤.# =##
"""


@pytest.mark.parametrize("size", SIZES)
def test_all_is_well(size):
    status, text = on_terminal(ASKED, size)
    lines = lines_of(text)
    assert status == 0 and max(map(len, lines)) <= size[0]
    start = without_numbers(lines[: lines.index("")]).replace("∀", "·")  # where Coq was run
    assert start == PASSING.rstrip("\n")
    first, last = (i for i, line in enumerate(lines) if line == "─" * size[0])
    assert lines[first + 1] == "3 theorems, 7 of 7 checks hold, 0 fail" and not any(lines[last + 1 :])
    inside = " ".join(lines[first + 1 : last])
    assert ("3 proofs NOT CHECKED" in inside) != ("3 theorems proved by Coq" in inside)
    assert re.search(r"\d+ instances, seed 0, \d+\.\d s more: refimpl verify iclca, refimpl show iclca", inside)
    assert "\x1b[32m" in text  # in colour
    assert "n/a" not in text.lower()


def test_the_matrix_to_the_letter():
    """Marks under their columns; what does not apply is empty."""
    results = [
        Result("quadratic_eq_sum", "Q", "EXACT", "e"),
        Result("quadratic_eq_sum", "float64", "WITHIN BOUND", "e", error=0.031, bound=1.0),
        Result("quadratic_eq_sum", "GF(2305843009213693951)", "EXACT", "e", probability=2.0**-54),
        Result("kv_cache", "Q", "N/A", "e"),
        Result("kv_cache", "float64", "WITHIN BOUND", "e", error=0.99999, bound=1.0),
        Result("kv_cache", "balls(30)", "ENCLOSED", "e", bound=3e-27),
        Result("iclca", "Q", "FAIL", "e"),
        Result("iclca", "float64", "VACUOUS", "e"),
    ]
    proofs = [Result("quadratic_eq_sum", "Coq", "PROVED", "e"), Result("iclca", "Coq", "NOT CHECKED", "e")]
    shown = screen.matrix_lines(Matrix.of(results, proofs), Look())
    assert shown == [
        "                   Coq ℚ f64  p₁  ball",
        "attention",
        "  quadratic_eq_sum ∀   = ≤.04 =54",
        "softmax",
        "  kv_cache               ≤1       ∈26",
        "ICLCA",
        "  iclca            ·   ✗ ?",
    ]
    ascii = screen.matrix_lines(Matrix.of(results, proofs), Look(ascii=True))
    assert ascii[2] == "  quadratic_eq_sum A   = <.04 =54" and "\n".join(ascii).isascii()
    painted = screen.matrix_lines(Matrix.of(results, proofs), Look(colour=True))
    assert [ESCAPES.sub("", line) for line in painted] == shown and "\x1b[31;1m✗" in painted[-1]


def test_headings_come_in_one_order():
    names = ["rope_relative", "causality", "kv_cache"]  # causality comes last of all attention
    few, every = (Matrix.of([Result(name, "Q", "EXACT", "e") for name in x]).groups() for x in (names, THEOREMS))
    assert list(few) == [group for group in every if group in few] == ["attention", "softmax", "RoPE"]


def test_more_columns_than_fit_follow_below():
    labels = [f"mpmath({n})" for n in range(100, 130)]
    results = [Result("iclca", label, "WITHIN BOUND", "e", error=0.5, bound=1.0) for label in labels]
    lines = screen.matrix_lines(Matrix.of(results), Look())
    assert max(map(len, lines)) <= 80 and sum("iclca" in line for line in lines) == 3
    assert [head for line in lines for head in line.split() if head.endswith("d")] == [f"{n}d" for n in range(100, 130)]


def test_a_long_name_is_cut(monkeypatch):
    name = "a_theorem_of_a_name_that_is_far_too_long_for_a_terminal_of_eighty_columns"
    monkeypatch.setitem(THEOREMS, name, replace(THEOREMS["iclca"], name=name))
    lines = screen.matrix_lines(Matrix.of([Result(name, "Q", "EXACT", "e")]), Look())
    assert lines[-1].startswith("  a_theorem_of_a_name") and "… =" in lines[-1] and len(lines[-1]) <= 80


@pytest.mark.parametrize("size", SIZES)
def test_a_failure_is_told_simplest_first(size, tmp_path):
    asked = ["verify", "iclca", "quadratic_eq_sum", "kv_cache", "nano", "--system", "Q", "--system", "float64"]
    status, text = on_terminal(asked, size, code=BROKEN, cwd=tmp_path)
    lines = lines_of(text)
    assert status == 1 and max(map(len, lines)) <= size[0]
    at = lines.index("quadratic_eq_sum FAILS in Q")  # though iclca was named first
    assert lines[at + 1] == "  Masked scores give the output and state of the definition."
    assert " instead of " in lines[at + 2] and " at n=" in lines[at + 2]
    assert "    refimpl verify --replay refimpl-failures/quadratic_eq_sum-Q.json" in lines
    rule = "─" * size[0]
    box = lines[lines.index(rule) + 1 :]
    assert (lines.index(rule) > at and box[0] == "4 theorems, 4 of 7 checks hold, 3 FAIL") or "FAIL" in box[0]
    assert {path.name for path in tmp_path.iterdir()} == {"refimpl-failures"}
    again = on_terminal(["verify", "--replay", "refimpl-failures/quadratic_eq_sum-Q.json"], size, cwd=tmp_path)
    assert again[0] == 1 and "verdict is 'EXACT', in the certificate 'FAIL'" in again[1]


def test_an_interrupt_says_what_was_done():
    for asked in (["*"], ["--jobs", "1"]):
        status, text = on_terminal(["verify", *asked], (80, 24), interrupt=b"12 of ")
        last = lines_of(text)[-2]
        assert status == 130 and re.fullmatch(r"refimpl: interrupted after \d+ checks?; none failed", last)


def test_an_interrupt_says_what_failed_while_failures_are_made_small(tmp_path):
    asked, slow = ["verify", "nano", "quadratic_eq_sum", "--system", "Q"], "import refimpl.cli.verify as v, time\n"
    slow += "v.write_failure = lambda *which: time.sleep(60)\n" + BROKEN
    status, text = on_terminal(asked, (80, 24), code=slow, interrupt=b"making failure 1 of 1 small", cwd=tmp_path)
    assert status == 130
    assert lines_of(text)[-2] == "refimpl: interrupted after 2 checks; 1 failed: quadratic_eq_sum in Q"


def piped(*argv, **variables):
    done = subprocess.run(
        [sys.executable, "-m", "refimpl", *argv], capture_output=True, env=environment(**variables), check=True
    )
    assert done.stderr == b""
    return done.stdout


def test_a_pipe_gets_no_colours_and_80_columns():
    text = piped(*ASKED).decode()
    assert "\x1b" not in text and max(map(len, text.splitlines())) == 80
    assert max(map(len, piped(*ASKED, COLUMNS="100").decode().splitlines())) == 100
    assert max(map(len, piped(*ASKED, COLUMNS="20").decode().splitlines())) == 80  # no fewer


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_terminals_without_colour(variables):
    assert "\x1b[3" not in on_terminal(ASKED, (80, 24), **variables)[1]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_few_characters(encoding):
    """Every mark has a form in ASCII, and columns stay under their heads."""
    text = piped(*ASKED, PYTHONIOENCODING=encoding).decode("ascii")
    lines = text.splitlines()
    assert max(map(len, lines)) == 80 and "-" * 80 in lines and "\\u" not in text
    head = next(line for line in lines if line.split()[:1] == ["Coq"])
    row = next(line for line in lines if "quadratic_eq_sum" in line)
    assert head.split() == ["Coq", "Q", "f64", "p1"] and row[head.index("f64")] == "<" and row[head.index("Q")] == "="


def test_statements_have_only_marks_that_are_written_in_ascii():
    listed = piped("verify", "--list", PYTHONIOENCODING="ascii").decode("ascii")
    assert "sigma(x W_up + b_up)" in listed and "lambda1, lambda2, lambda3 times" in listed
    assert not re.search(r"\\[ux]", listed)


def run(capsys, *argv):
    status = main(list(argv))
    return status, *capsys.readouterr()


def test_one_theorem_in_words(capsys, monkeypatch, tmp_path):
    status, out, _ = run(capsys, "verify", "kv_cache", "--system", "Q", "--system", "float32")
    assert status == 0 and out.startswith("kv_cache  (softmax)\n") and "  float32: WITHIN BOUND\n" in out
    assert "not checked, since it does not apply:\n    Q: exp is not defined in ℚ" in out
    monkeypatch.chdir(tmp_path)

    def wrong(*args, **options):
        o, state = ri.linear_attention_recurrent(*args, **options)
        return o * 2, state

    use_implementation(monkeypatch, replace(REFIMPL, linear_attention_recurrent=wrong))
    status, out, _ = run(capsys, "verify", "recurrent_eq_sum", "--system", "Q")
    assert status == 1 and "a failing instance, as small as it gets:\n  refimpl verify --replay refimpl-fail" in out


def test_nothing_applies(capsys):
    status, out, _ = run(capsys, "verify", "kv_cache", "iclaa", "--system", "Q")
    assert status == 2 and "0 theorems, 0 of 0 checks hold, 0 fail" in out


def test_every_mark_has_a_meaning():
    assert len({(m.sign, m.claims) for m in MARKS}) == len(MARKS) and all(m.ascii.isascii() for m in MARKS)
    verdicts = ["PROVED", "IN PART", "NOT CHECKED", "EXACT", "ENCLOSED", "WITHIN BOUND", "MEASURED", "FAIL", "VACUOUS"]
    signs = "".join(mark_of(Result("iclca", "Q", v, "")).sign for v in verdicts)
    assert signs == "∀∀-·=∈≤~✗?"
    assert mark_of(Result("causality", "dependencies", "EXACT", "")).sign == "∀v"
    assert strength(Result("iclca", "Q", "WITHIN BOUND", "", error=0.0, bound=1.0)) == "0"
    assert [share(x) for x in (0, 1e-9, 0.011, 0.99, 0.991, 1)] == ["0", ".01", ".02", ".99", "1", "1"]


def test_short_names_differ():
    labels = ["Q", "GF(7)", "GF(11)", "mpmath(50)", "balls(30)", "float32", "torch float32", "ratios-of-two"]
    assert list(short_names(labels).values()) == ["ℚ", "p₁", "p₂", "50d", "ball", "f32", "f32'", "ratios"]


def test_the_strongest_evidence_in_words():
    likely = Result("iclca", "GF(7)", "EXACT", "e", probability=2.0**-49)
    exact, proved = Result("iclca", "Q", "EXACT", "equal at these instances"), Result("iclca", "Coq", "PROVED", "e")
    words = [screen.iclca_in_words(x).partition(": ")[2] for x in ([exact], [exact, likely], [exact, likely, proved])]
    assert words[0] == "equal at these instances" and "2^-49" in words[1] and words[2].startswith("proved")
    assert screen.iclca_in_words([proved, Result("iclca", "Q", "FAIL", "e")]) == ""


# refimpl show


@pytest.mark.parametrize("name", THEOREMS)
def test_show_says_all_there_is(name, capsys):
    theorem = THEOREMS[name]
    status, out, _ = run(capsys, "show", name)
    flat = " ".join(out.split())
    assert status == 0 and max(map(len, out.split("  code ")[0].splitlines())) <= 80
    for words in (theorem.statement, theorem.assumes, theorem.source, theorem.ours, f"refimpl verify {name}"):
        assert " ".join(words.split()) in flat
    assert "refimpl/verify/theorems/" in out and " def " in flat  # its code


def test_show_takes_patterns_in_any_case(capsys):
    status, out, _ = run(capsys, "show", "ICLCA_B*", "Nano")
    assert status == 0 and out.startswith("iclca_bias  (ICLCA)\n") and "\nnano  (attention)\n" in out
    status, out, err = run(capsys, "show", "iclcaa_bias")
    assert (status, out) == (2, "") and err.startswith("refimpl: show: did you mean 'iclca_bias'? NAME must be")
    status, out, _ = run(capsys, "verify", "--list", "iclca_*")
    assert status == 0 and "iclca_join" in out and "quadratic_eq_sum\n" not in out


def test_links_of_sources():
    assert links("Peng et al. 2023, 2024") == [
        f"https://arxiv.org/abs/{ARXIV[f'Peng et al. {y}']}" for y in (2023, 2024)
    ]
    assert links("our derivation") == [] and links("Dai et al. 2023")[0].endswith("2212.10559")
    found = {paper for t in THEOREMS.values() for paper in links(t.source)}
    assert len(found) == len(ARXIV)  # no paper is there for nothing


# --html


def test_a_report_is_one_file(tmp_path, capsys):
    page, asked = tmp_path / "r.html", ["verify", "iclca_linear", "kv_cache", "--system", "Q", "--system", "float64"]
    assert run(capsys, *asked, "--html", str(page))[0] == 0
    text = page.read_text()
    for words in (
        "iclca_linear",
        "kv_cache",
        "WITHIN BOUND",
        "Katharopoulos" if False else "arxiv.org",
        "2 theorems, 3 of 3",
    ):
        assert words in text
    assert not re.search(r'(src|href)="(?!https://arxiv)', text)  # it needs no other file
    inside = re.search(r'<script type="application/json" id="certificate">(.*?)</script>', text, re.S)[1]
    (tmp_path / "c.json").write_text(inside)
    status, out, _ = run(capsys, "verify", "--replay", str(tmp_path / "c.json"))
    assert status == 0 and out.endswith("all as in the certificate\n")


def test_a_report_escapes_what_it_shows():
    from refimpl.cli.page import page_of

    result = Result("iclca", "Q", "FAIL", "<b>&\x1b[31m", worst="</script>")
    text = page_of([result], [], ["<i>"], {"evidence": "</script><script>alert(1)"})
    assert "<b>" not in text and "<i>" not in text and "\x1b" not in text and "</script><script>alert" not in text


def test_a_report_that_cannot_be_written(tmp_path, capsys):
    status, out, err = run(capsys, "verify", "rope_layouts", "--system", "Q", "--html", str(tmp_path / ("x" * 300)))
    assert status == 2 and "1 of 1 checks hold" in out and "--html: cannot write" in err
    same = str(tmp_path / "a")
    status, _, err = run(capsys, "verify", "rope_layouts", "--system", "Q", "--html", same, "--json", same)
    assert status == 2 and "must be another file than that of --json" in err
