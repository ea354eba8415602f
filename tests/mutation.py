"""Mutation tests of the core: python tests/mutation.py [--sample 40] [--seed 0] [--module FILE ...]

Each mutant is the package with one small change: an operator, a constant, a condition, a call or a
result. It is written into a copy of the project, where the tests of its module must fail. A mutant
that they let pass has survived; a test is missing, or nothing can see the change. The latter are in
tests/mutation_equivalent.toml, each with its reason, and are not counted.

Without --sample every mutant is run (hours). Hypothesis is derandomized, so results repeat.
The exit status is 1 if fewer than 95 % of the mutants are killed; of a sample, if so few would be
killed with a probability below 1 in 10,000 if 95 % of all mutants were.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before NumPy is imported, and not where pytest imports this file
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "HYPOTHESIS_PROFILE": "default"}
    os.environ.pop("REFIMPL_MODELS", None)

# These are imported once, and every mutant is tested in a fork of this process.
import array_api_compat.numpy
import array_api_strict
import hypothesis.extra.numpy
import ml_dtypes
import mpmath
import numpy
import pytest
import safetensors.numpy
import scipy.linalg
import scipy.special
import scipy.stats

LOADED = array_api_compat, array_api_strict, hypothesis, ml_dtypes, mpmath, numpy, safetensors, scipy
ROOT = Path(__file__).parents[1]
GOAL, RARE = 0.95, 1e-4
MEMORY = 6 * 2**30  # bytes of address space for one mutant
BAD_INPUT = "tests/test_bad_input.py::test_bad_input"

# The tests of a module stand where the module stands, attention/rope.py in attention/test_rope.py;
# these are the others. Its doctests and the tables of bad input are always run too.
TESTS = {
    "attention/feature_error.py": "attention/test_random_features.py",
    "attention/feature_maps.py": "attention/test_feature_maps.py attention/test_linear_attention.py",
    "attention/linear_attention.py": "attention/test_linear_attention.py attention/test_inputs.py "
    "prompt/test_conversion.py",
    "attention/memory.py": "attention/test_memory.py prompt/test_compression.py",
    "attention/past.py": "model/test_transformer.py prompt/test_conversion.py model/test_recurrence.py",
    "attention/rope.py": "attention/test_rope.py attention/test_linear_attention.py",
    "attention/softmax_attention.py": "attention/test_softmax_attention.py attention/test_memory.py "
    "prompt/test_compression.py",
    "attention/state.py": "attention/test_state.py attention/test_linear_attention.py attention/test_inputs.py",
    "model/attention_layers.py": "model/test_transformer.py model/test_token_wise.py prompt/test_conversion.py",
    "model/families.py": "model/test_transformer.py",
    "model/transformer.py": "model/test_transformer.py model/test_token_wise.py prompt/test_conversion.py",
    "prompt/conversion.py": "prompt/test_conversion.py",
    "systems/__init__.py": "systems/test_systems.py",
    "systems/array.py": "systems/test_systems.py systems/test_analyses.py",
    "systems/balls.py": "systems/test_analyses.py systems/test_real_systems.py systems/test_long_sums.py",
    "systems/degrees.py": "systems/test_analyses.py verify/test_identity_testing.py",
    "systems/dependencies.py": "systems/test_analyses.py",
    "systems/dual.py": "systems/test_analyses.py",
    "systems/finite_field.py": "systems/test_finite_field.py systems/test_systems.py",
    "systems/formats.py": "systems/test_analyses.py",
    "systems/modular.py": "systems/test_finite_field.py",
    "systems/multiprecision.py": "systems/test_real_systems.py systems/test_systems.py systems/test_slices.py",
    "systems/rational.py": "systems/test_systems.py systems/test_slices.py",
    "systems/rounded.py": "systems/test_analyses.py systems/test_systems.py systems/test_long_sums.py "
    "verify/test_bounds.py",
    "systems/running_error.py": "systems/test_analyses.py verify/test_bounds.py systems/test_ulps.py",
    "systems/slices.py": "systems/test_slices.py",
    "verify/check.py": "verify/test_ways.py verify/test_verify.py",
    "verify/ways.py": "verify/test_ways.py verify/test_verify.py verify/test_large.py verify/test_planted.py",
    "budget.py": "files/test_hostile.py",
    "checks.py": "attention/test_inputs.py attention/test_linear_attention.py model/test_transformer.py",
}
MODULES = (
    *("attention/*.py", "model/*.py", "prompt/conversion.py", "systems/*.py", "checks.py", "budget.py"),
    *("verify/bounds.py", "verify/check.py", "verify/identity_testing.py", "verify/probes.py", "verify/ways.py"),
)
# These depend on the machine and its libraries, and have tests of their own in CI.
LEFT_OUT = ("systems/floats.py",)

Operator = type[ast.operator] | type[ast.cmpop]
SWAPS: dict[Operator, Operator] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
NEGATED = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)  # whose swap is the negation


def swap_operator(op: Any) -> Any:
    return SWAPS[type(op)]()


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in place of this node."""
    match node:
        case ast.BinOp(left, op, right) if type(op) in SWAPS:
            # text, lists and tuples have no difference: such a mutant dies at once and says nothing
            if not any(isinstance(x, ast.JoinedStr | ast.List | ast.Tuple) or is_text(x) for x in (left, right)):
                yield ast.BinOp(left, swap_operator(op), right)
        case ast.AugAssign(target, op, value) if type(op) in SWAPS:
            yield ast.AugAssign(target, swap_operator(op), value)
        case ast.Compare(left, ops, comparators):
            for i, op in enumerate(ops):
                yield ast.Compare(left, [*ops[:i], swap_operator(op), *ops[i + 1 :]], comparators)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values)
        case ast.UnaryOp(ast.Not() | ast.USub() | ast.Invert(), operand) if not isinstance(operand, ast.Constant):
            yield operand
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Subscript(value, ast.Constant(0), context):
            yield ast.Subscript(value, ast.Constant(1), context)  # and not −1: many tuples have one entry
        case ast.Constant(int() as value):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Constant(float() as value):
            yield ast.Constant(2 * value or 1.0)
        case ast.Expr(ast.Call()):
            yield ast.Pass()
        case ast.Return(value) if value is not None and not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
    for test in getattr(node, "ifs", [getattr(node, "test", None)]):
        simple = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], NEGATED)
        if test is not None and not simple and not isinstance(test, ast.UnaryOp):
            yield ast.copy_location(ast.UnaryOp(ast.Not(), test), test)


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def children(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of this node that compute something.

    Errors and their messages, annotations, decorators, imports and `strict=True` do not.
    """
    skipped = {"annotation", "returns", "decorator_list"}
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == 0:
        skipped.add("slice")
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or name in skipped:
                continue
            if isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
                continue
            if not (isinstance(child, ast.keyword) and child.arg == "strict"):
                yield child


@dataclass(frozen=True)
class Mutant:
    path: Path  # of the module, from the root of the project
    line: int
    function: str  # or "" for a line of the module or of a class
    before: str  # the lines that change, as one
    after: str
    source: str  # the whole module

    def __str__(self) -> str:
        return f"{self.path}:{self.line}\n    - {self.before}\n    + {self.after}"


def mutants(path: Path, root: Path = ROOT) -> Iterator[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    source = (root / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def one_line(text: bytes) -> str:
        return " ".join(text.decode().split())

    def visit(node: ast.AST, function: str = "") -> Iterator[Mutant]:
        if isinstance(node, ast.FunctionDef):
            function = function or node.name
        for new in replacements(node):
            at: Any = new if hasattr(new, "lineno") and isinstance(new, ast.UnaryOp) else node
            text = ast.unparse(new) if isinstance(new, ast.stmt | ast.Constant) else f"({ast.unparse(new)})"
            begin, end = starts[at.lineno - 1] + at.col_offset, starts[at.end_lineno - 1] + at.end_col_offset
            first, last = starts[at.lineno - 1], starts[at.end_lineno]
            changed = source[first:begin] + text.encode() + source[end:last]
            mutated = source[:first] + changed + source[last:]
            ast.parse(mutated)
            yield Mutant(path, at.lineno, function, one_line(source[first:last]), one_line(changed), mutated.decode())
        for child in children(node):
            yield from visit(child, function)

    yield from sorted(visit(ast.parse(source)), key=lambda mutant: mutant.line)


def tests_of(path: Path) -> list[str]:
    """What pytest is to run for a module."""
    module = path.relative_to("refimpl")
    names = TESTS.get(str(module), str(module.with_name(f"test_{module.name}"))).split()
    return [str(path), *(f"tests/{name}" for name in names), BAD_INPUT]


@dataclass(frozen=True)
class Task:
    tests: list[str]
    limit: float  # in seconds
    mutant: Mutant | None = None


class NoShrinking:
    """A failure is enough: Hypothesis need not make it small."""

    def pytest_configure(self) -> None:
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutants", parent=hypothesis.settings(), phases=phases)
        hypothesis.settings.load_profile("mutants")

    def pytest_collection_finish(self) -> None:
        used = sys.modules["refimpl"].__file__
        assert used and Path(used).is_relative_to(Path.cwd()), f"{used} is not the copy"


def run_task(task: Task, folder: Path) -> None:
    """Run the tests of one task here, in a copy of the project; exit with pytest's status."""
    os.setsid()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    imported = "ignore::pytest.PytestAssertRewriteWarning"  # hypothesis was
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "-W", imported, *task.tests]
    if task.mutant is not None:
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        (folder / task.mutant.path).write_text(task.mutant.source, encoding="utf-8")
        arguments += ["--tb=no", "--no-header"]
    with open(folder / "output", "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        status = pytest.main(arguments, plugins=[NoShrinking()])
        sys.stdout.flush()
    os._exit(int(status))


def run(tasks: list[Task], folders: list[Path]) -> Iterator[tuple[Task, int | None, float, str]]:
    """Each task with its exit status (None if its time was up), its seconds and its last lines.

    In each folder one task runs at a time, in a process of its own.
    """
    context, waiting, free = multiprocessing.get_context("fork"), iter(tasks), list(folders)
    running: dict[int, tuple[Any, Task, Path, float]] = {}
    while True:
        while free and (task := next(waiting, None)):
            process = context.Process(target=run_task, args=(task, folder := free.pop()))
            process.start()
            running[process.sentinel] = process, task, folder, time.monotonic()
        if not running:
            return
        wait(list(running), timeout=0.5)
        for sentinel, (process, task, folder, began) in list(running.items()):
            seconds, status = time.monotonic() - began, process.exitcode
            if status is None and seconds < task.limit:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all that it started
            process.join()
            if task.mutant is not None:
                shutil.copy2(ROOT / task.mutant.path, folder / task.mutant.path)
            output = (folder / "output").read_text(errors="replace").splitlines()
            del running[sentinel]
            free.append(folder)
            yield task, status, seconds, "\n".join(output[-20:])


def copy_project(folder: Path) -> Path:
    for name in ("refimpl", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md"):
        shutil.copy2(ROOT / name, folder / name)
    return folder


def equivalent(mutant: Mutant, known: list[dict[str, str]]) -> bool:
    """Is it in the list? An entry has a file, a reason, and some of function, before, after."""
    return any(
        str(mutant.path) == entry["file"]
        and all(entry.get(field, mine) == mine for field, mine in vars(mutant).items() if isinstance(mine, str))
        for entry in known
    )


def sample(every: list[Mutant], options: argparse.Namespace) -> list[Mutant]:
    draw: Callable[..., list[Mutant]] = random.Random(options.seed).sample
    return every if options.sample is None else draw(every, min(options.sample, len(every)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, metavar="N", help="only N mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    parser.add_argument("--module", action="append", type=Path, metavar="FILE", help="a module; repeatable")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default: 2)")
    options = parser.parse_args()
    began = time.monotonic()
    listed = tomllib.loads((ROOT / "tests/mutation_equivalent.toml").read_text(encoding="utf-8"))["mutant"]
    core = [path.relative_to(ROOT) for pattern in MODULES for path in sorted((ROOT / "refimpl").glob(pattern))]
    modules = options.module or [path for path in core if str(path.relative_to("refimpl")) not in LEFT_OUT]
    every = [mutant for path in modules for mutant in mutants(path)]
    counted = [mutant for mutant in every if not equivalent(mutant, listed)]
    chosen = sample(counted, options)
    print(f"{len(every)} mutants, {len(every) - len(counted)} of them equivalent; {len(chosen)} are run", flush=True)

    with tempfile.TemporaryDirectory() as place:
        folders = [copy_project(Path(place) / str(i)) for i in range(options.jobs)]
        needed = dict.fromkeys(test for mutant in chosen for test in tests_of(mutant.path)[1:])
        cost = {}
        for task, status, seconds, output in run([Task([test], 300) for test in needed], folders):
            cost[task.tests[0]] = seconds
            if status:
                print(f"{task.tests[0]} must pass without a mutant, and does not:\n{output}")
                return 2
        print(f"the tests pass without a mutant, {time.monotonic() - began:.0f} s", flush=True)
        tasks = []
        for mutant in chosen:
            tests = tests_of(mutant.path)
            tasks.append(Task(tests, 15 + 3 * sum(cost[test] for test in tests[1:]), mutant))
        killed, all_of, late = Counter[Path](), Counter[Path](), 0
        for task, status, _, _ in run(tasks, folders):
            assert task.mutant is not None
            all_of[task.mutant.path] += 1
            killed[task.mutant.path] += status != 0
            late += status is None
            if not status:
                print("survived" if status == 0 else "timed out", task.mutant, flush=True)
    for path in modules:
        if all_of[path]:
            print(f"{killed[path]:5} of {all_of[path]:5} killed  {path}")
    rate = killed.total() / max(1, all_of.total())
    print(f"{killed.total():5} of {all_of.total():5} killed = {100 * rate:.1f} %, {late} of them by their time limit")
    print(f"{time.monotonic() - began:.0f} s")
    chance = float(scipy.stats.binom.cdf(killed.total(), all_of.total(), GOAL))
    return 0 if rate >= GOAL or (options.sample is not None and chance >= RARE) else 1


if __name__ == "__main__":
    sys.exit(main())
