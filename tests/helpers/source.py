"""The package as its source says it is: modules, imports, and the lines that may refuse an
argument.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2] / "refimpl"


@functools.cache
def modules(root: Path = ROOT) -> dict[str, ast.Module]:
    """The modules below root by name, as in "attention.rope". A package has the name of its folder,
    the root has "".
    """
    paths = {path.relative_to(root).with_suffix("").parts: path for path in sorted(root.rglob("*.py"))}
    return {".".join(p for p in parts if p != "__init__"): ast.parse(path.read_text()) for parts, path in paths.items()}


def is_package(name: str) -> bool:
    return (ROOT / name.replace(".", "/")).is_dir()


def path_of(name: str) -> Path:
    place = ROOT / name.replace(".", "/")
    return place / "__init__.py" if is_package(name) else place.with_suffix(".py")


def imported(name: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(name in the module, full name) of all that a module imports: at the top, within functions,
    for types, by a string.
    """
    here = ["refimpl", *name.split(".")] if name else ["refimpl"]
    package = here if is_package(name) else here[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else []
            for alias in node.names:
                yield alias.asname or alias.name, ".".join([*start, *filter(None, [node.module]), alias.name])
        elif isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and called(node).endswith("import_module"):
            yield from (("", ast.literal_eval(arg)) for arg in node.args if isinstance(arg, ast.Constant))


def called(node: ast.Call) -> str:
    """The last name of what is called."""
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


@functools.cache
def names_imported(name: str) -> dict[str, str]:
    """What a module of the package imports, by its names there."""
    return dict(imported(name, modules()[name]))


@functools.cache
def functions() -> dict[str, ast.FunctionDef]:
    """Full name: function, of all top-level functions."""
    return {
        ".".join(filter(None, ["refimpl", name, node.name])): node
        for name, tree in modules().items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }


@functools.cache
def defined_as(full: str) -> str:
    """The full name under which a function is defined, given one by which a package exports it."""
    module, _, own = full.removeprefix("refimpl.").rpartition(".")
    exported = names_imported(module) if full.startswith("refimpl.") and module in modules() else {}
    return defined_as(exported[own]) if own in exported else full


def calls(name: str, tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """(full name, call) of the calls of top-level functions of the package."""
    known = names_imported(name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield defined_as(known.get(node.func.id, ".".join(filter(None, ["refimpl", name, node.func.id])))), node


@functools.cache
def checkers() -> frozenset[str]:
    """Functions that are told the name of another function, `who`, and may raise on its behalf."""
    about = {full: f for full, f in functions().items() if any(arg.arg == "who" for arg in f.args.args)}
    found = {full for full, f in about.items() if any(isinstance(node, ast.Raise) for node in ast.walk(f))}
    while new := {
        full
        for full, f in about.items()
        if full not in found and any(called in found for called, _ in calls(".".join(full.split(".")[1:-1]), f))
    }:
        found |= new
    return frozenset(found)


@functools.cache
def checking_methods() -> frozenset[str]:
    """The names of methods that are told `who` asks: checks of a past, each by its own class."""
    classes = (node for tree in modules().values() for node in tree.body if isinstance(node, ast.ClassDef))
    methods = (f for c in classes for f in c.body if isinstance(f, ast.FunctionDef) and f.name.startswith("check_"))
    return frozenset(f.name for f in methods if any(arg.arg == "who" for arg in f.args.args))


class Refusal(NamedTuple):
    """A statement or a call that may refuse an argument."""

    path: Path
    lines: range
    code: str


@functools.cache
def refusals() -> tuple[Refusal, ...]:
    """Every statement that raises, and every call of a checker, be it a function or a method."""
    found = []
    for name, tree in modules().items():
        nodes: list[ast.stmt | ast.expr] = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
        nodes += [call for full, call in calls(name, tree) if full in checkers()]
        attributes = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
        # type: ignore[attr-defined]
        nodes += [n for n in attributes if n.func.attr in checking_methods()]
        for node in nodes:
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            found.append(Refusal(path_of(name), lines, ast.unparse(node)))
    return tuple(found)
