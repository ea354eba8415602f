"""What a cross-check says: on a screen, as data, and as a program that shows the smallest case."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .diagnose import Likeness, Trial
from .judge import expect
from .plan import Case
from .spec import Spec

ORDER = ("NOT RUN", "WRONG", "EXCESS", "VACUOUS", "WITHIN BOUND", "EXACT")  # the worst first


@dataclass(frozen=True)
class Facet:
    """The verdict on one result, over all cases.

    share : the largest part of a bound that was used
    where : where the smallest failure is, in words
    """

    result: str
    verdict: str
    share: float = 0.0
    where: str = ""
    cases: int = 0


@dataclass(frozen=True)
class Finding:
    """What was found in one dtype."""

    dtype: str
    facets: tuple[Facet, ...]
    likely: tuple[Likeness, ...]
    common: str
    smallest: Case | None
    others: dict[str, str]  # other properties: "" if they hold, or what is wrong
    trials: int
    example: Trial | None  # the first case that fails
    died: bool  # whether all that failed are calls that returned nothing

    @property
    def verdict(self) -> str:
        found = [f.verdict for f in self.facets] + ["WRONG" for words in self.others.values() if words]
        return min(found, key=ORDER.index, default="NOT RUN")


@dataclass(frozen=True)
class Report:
    """The cross-check of a kernel."""

    name: str
    spec: Spec
    findings: tuple[Finding, ...]
    cases: tuple[Case, ...]
    seconds: float

    @property
    def verdict(self) -> str:
        return min((f.verdict for f in self.findings), key=ORDER.index, default="NOT RUN")

    def __str__(self) -> str:
        return "\n".join(lines_of(self))



COLOURS = {"WRONG": "red", "EXCESS": "red", "VACUOUS": "yellow", "NOT RUN": "yellow"}
CLAIMS = {
    "EXACT": "right: every result is the number that exact arithmetic rounds to",
    "WITHIN BOUND": "right: structure is exact where nothing rounds, and errors are what rounding explains",
    "VACUOUS": "not decided: every bound is as large as the numbers",
    "EXCESS": "not as accurate as rounding explains, and like no mistake that is known",
    "WRONG": "wrong by the conventions that were stated",
    "NOT RUN": "nothing was checked",
}
Paint = Callable[[str, str], str]


def lines_of(report: Report, width: int = 80, paint: Paint = lambda text, colour: text) -> list[str]:
    """The report in lines: a block for each dtype, and below them what matters."""
    found = [line for finding in report.findings for line in [*block(finding, width, paint), ""]]
    first, *rest = ending(report, width)
    return [*found, "─" * width, paint(first, COLOURS.get(report.verdict, "green")), *rest, "─" * width]


def ending(report: Report, width: int) -> list[str]:
    """What matters, in lines."""
    words = f"{report.verdict}: {report.name} is {CLAIMS[report.verdict]}"
    count = sum(f.trials for f in report.findings)
    how = f"{count} trials of {len(report.cases)} cases, {report.seconds:.1f} s, as {report.spec}"
    return [line for text in (words, how) for line in textwrap.wrap(text, width, break_on_hyphens=False)]


def block(finding: Finding, width: int, paint: Paint = lambda text, colour: text) -> list[str]:
    """What was found in one dtype, in lines."""
    lines: list[str] = []

    def row(head: str, text: str, colour: str = "") -> None:
        start = f"{finding.dtype if not lines else '':10}{head:13}"
        wrapped = textwrap.wrap(text, max(width - 23, 30), break_on_hyphens=False) or [""]
        shown = [paint(line, colour) if colour else line for line in wrapped]
        lines.extend([(start + shown[0]).rstrip(), *(" " * 23 + line for line in shown[1:])])

    for f in finding.facets:
        share = f" {f.share:.2g}" if f.verdict == "WITHIN BOUND" else ""
        row(NAMES.get(f.result, f.result), f"{f.verdict}{share}  {f.where}".rstrip(), COLOURS.get(f.verdict, "green"))
    if finding.likely:
        first, *others = finding.likely
        equal = "equal to the last bit" if first.equal else "but for rounding"
        row("looks like", f"{first.words} ({equal}){f'; met in {first.seen}' if first.seen else ''}", "bold")
        if others:
            row("or", "; ".join(x.words for x in others[:4]) + ("; …" if len(others) > 4 else ""))
    elif finding.verdict in ("WRONG", "EXCESS") and finding.smallest and not finding.died:
        row("looks like", "no mistake that is known")
    if finding.common:
        row("it fails", finding.common)
    if finding.smallest:
        row("smallest", str(finding.smallest))
    holds = [name for name, words in finding.others.items() if not words]
    if holds:
        row("it holds", ", ".join(holds))
    for name, words in finding.others.items():
        if words:
            row("it fails", f"{name}: {words}", "red")
    return lines


NAMES = {"call": "the call", "o": "output o", "S": "state S", "z": "state z"}


def data_of(report: Report) -> dict[str, Any]:
    """The report as data for JSON."""
    findings = []
    for f in report.findings:
        facets = [asdict(x) | {"share": x.share if np.isfinite(x.share) else None} for x in f.facets]
        likely = [asdict(x) for x in f.likely]
        smallest = f.smallest and asdict(f.smallest)
        own = {"dtype": f.dtype, "verdict": f.verdict, "trials": f.trials, "it fails": f.common, "others": f.others}
        findings.append(own | {"facets": facets, "likely": likely, "smallest": smallest})
    spec = {"family": report.spec.family} | report.spec.differences()
    return {"kernel": report.name, "verdict": report.verdict, "spec": spec, "seconds": report.seconds, "findings": findings}


def program(place: str, spec: Spec, case: Case, dtype: str) -> str:
    """A program with the numbers of a case in it; it needs the kernel, and not this library."""
    x, where, name = spec.inputs(case, dtype), *place.rpartition(":")[::2]
    want = expect(spec, case, dtype, x, spec.is_exact(case, dtype))
    given = "\n".join(literal(spec, name, x[name], case, dtype) for name in spec.given if name in spec.calls.given)
    right = "\n".join(wanted(spec, name, want[name].value) for name in spec.made if name in want)
    back = [name for name in spec.made if name in want]
    left, _, right_side = spec.call.partition("->")
    imports = IMPORTS[spec.library].format(dtype=dtype)
    load = LOAD.format(path=where, name=name) if where.endswith(".py") else f"from {where} import {name.split('.')[0]}"
    shown = "\n".join(SHOW.format(name=each) for each in back)
    return f'''"""{name}: the smallest case that fails, {case}; {dtype}."""
{imports}
{load}

{given}
{right_side.strip()} = {name}({left.strip()})

# What is right, and how far it is from that
{right}
{shown}
'''


IMPORTS = {
    "numpy": "import numpy as np\n\narray, host = np.array, np.asarray",
    "torch": "import numpy as np\nimport torch\n\narray, host = torch.tensor, lambda x: x.detach().cpu().double().numpy()",
    "jax": "import jax\nimport numpy as np\n\njax.config.update('jax_enable_x64', True)\narray, host = jax.numpy.array, np.asarray",
    "cupy": "import cupy\nimport numpy as np\n\narray, host = cupy.array, lambda x: x.get()",
}
LOAD = """
import importlib.util

spec = importlib.util.spec_from_file_location("kernel", {path!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
{name} = module.{name}"""
SHOW = """print("{name}", abs(host({name}).astype(float) - right_{name}).max(initial=0), "from", right_{name}.ravel()[:4])"""
LIBRARY = {"numpy": "np", "torch": "torch", "jax": "jax.numpy", "cupy": "cupy"}


def literal(spec: Spec, name: str, x: Any, case: Case, dtype: str) -> str:
    """An argument as the kernel takes it, as source."""
    if not isinstance(x, np.ndarray):
        return f"{name} = {x!r}"
    theirs = spec.axes_of(name).give(x)
    kind = f"{LIBRARY[spec.library]}.{spec.dtype_of(name, dtype)}"
    return f"{name} = array({numbers(theirs)}, dtype={kind}).reshape{theirs.shape}"


def wanted(spec: Spec, name: str, x: Any) -> str:
    theirs = spec.axes_of(name).give(np.asarray(x))
    return f"right_{name} = np.array({numbers(theirs)}).reshape{theirs.shape}"


def numbers(x: Any) -> str:
    return "[" + ", ".join(f"{v:g}" if float(f"{v:g}") == v else repr(v) for v in x.ravel().tolist()) + "]"
