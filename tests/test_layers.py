"""The package in layers: imports go downwards only, in no circle, and no public name is defined
twice.

Every list of exceptions is exact: an exception that is no longer needed fails too, so that the
lists can only shrink.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tests.helpers.source import ROOT, imported, is_package, modules

# from the lowest to the highest; the modules of one line may import each other
LAYERS = (
    ("errors", "budget", "packages", "arrays", "nano"),
    ("systems",),
    ("checks",),
    ("attention",),
    ("model",),
    ("prompt",),
    ("descent",),
    ("files",),
    ("verify",),
    ("cli",),
    ("", "public", "__main__"),  # the package itself
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# Names defined twice, and why
NAMED_TWICE = {
    # what every module of a kind has, so that they can be called alike
    "add_arguments": "a command: its arguments",
    "run": "a command: what it does",
    "evaluate": "linear and softmax attention: how a formula is evaluated",
    "sum_over_keys": "linear and softmax attention: the definition",
    "more_cases": "a module of theorems: random cases",
    "more_models": "a module of theorems: random models",
    "problem": "a module of theorems: a case in numbers",
    "table": "verify: ways, results and formal statements, each as a table",
    "matmul": "exact products on BLAS: modulo p, and of large integers",
    "plan": "exact products on BLAS: how to cut into digits",
    "digits": "exact products on BLAS: the cut",
    "join": "the algebra: of states and of memories",
    "dual_form": "a function and the theorem about it",
    "elu_plus_one": "a feature map, and its formula in a theorem",
    "dpfp": "a feature map, and its formula in a theorem",
    "polynomial": "a feature map, and its formula in a theorem",
    # different things, to be named apart
    "Probe": "the arguments of an exact probe; the way of checking by probes",
    "certificate": "a bound of a memory by landmarks; the file that verify writes",
    "degree": "of a number of Degrees; of an identity",
    "sums": "over an axis, of floats; of a model that adds",
}

# These stay: random draws, choices among memories and statistics are made on the host, in NumPy;
# its type in
# arrays.py; and nano.py's example.
ON_THE_HOST = {
    *("arrays", "attention.feature_error", "attention.random_features", "attention.underflow", "descent.ren_liu"),
    *("model.generation", "nano"),
    *("prompt.compression", "prompt.compression.best", "prompt.compression.clusters", "prompt.compression.landmarks"),
    *("prompt.compression.sampling", "prompt.fidelity"),
}
# These stay: nano.py has the library's names because "the library equals nano" is a theorem.
ONE_PAGE = {"attention", "convert", "rotate", "transformer"}


def graph(root: Path) -> dict[str, set[str]]:
    """module: the modules of the package that it imports."""
    known, edges = modules(root), {}
    for name, tree in known.items():
        ours = {full.partition(".")[2] for _, full in imported(name, tree) if full.split(".")[0] == "refimpl"}
        # a name that is imported is a module, or stands in one
        edges[name] = {target if target in known else target.rpartition(".")[0] for target in ours} - {name}
    return edges


def level(name: str) -> int:
    return LEVEL[name.split(".")[0]]


def upward(root: Path) -> set[str]:
    return {f"{a} -> {b}" for a, targets in graph(root).items() for b in targets if level(b) > level(a)}


def cycles(root: Path) -> set[frozenset[str]]:
    """The sets of modules of which each imports, through others, every other."""
    edges = graph(root)

    def reached(start: str) -> set[str]:
        found, new = set(), {start}
        while new:
            found |= new
            new = set().union(*(edges[name] for name in new)) - found
        return found

    below = {name: reached(name) for name in edges}
    groups = {frozenset(b for b in below[a] if a in below[b]) for a in edges}
    return {group for group in groups if len(group) > 1}


def defined_twice(root: Path) -> dict[str, set[str]]:
    """Public functions and classes of more than one module."""
    places = defaultdict(set)
    for module, tree in modules(root).items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(module)
    return {name: where for name, where in places.items() if len(where) > 1}


def test_imports_go_downwards() -> None:
    assert upward(ROOT) == set()


def test_no_modules_import_each_other() -> None:
    assert cycles(ROOT) == set()


def test_nano_imports_nothing_of_the_package() -> None:
    assert graph(ROOT)["nano"] == set()


def test_the_core_imports_no_array_library() -> None:
    core = {name: tree for name, tree in modules(ROOT).items() if name and level(name) <= LEVEL["descent"]}
    libraries = {"numpy", "scipy", "torch", "jax", "cupy", "mpmath", "math"}
    users = set()
    for name, tree in core.items():
        names = {full for _, full in imported(name, tree)} - {"math.inf", "math.isqrt", "math.prod"}
        if not name.startswith("systems") and libraries & {full.split(".")[0] for full in names}:
            users.add(name)
    assert users == ON_THE_HOST


def test_a_public_name_is_defined_once() -> None:
    twice = defined_twice(ROOT)
    assert {name for name, places in twice.items() if len(places - {"nano"}) > 1} == set(NAMED_TWICE)
    assert {name for name, places in twice.items() if "nano" in places} == ONE_PAGE


def test_a_package_is_introduced_in_one_sentence() -> None:
    """Its docstring begins with one line that ends with a full stop and has no other; a table may
    follow.
    """
    long = set()
    for name, tree in modules(ROOT).items():
        if is_package(name):
            first, *rest = (ast.get_docstring(tree) or "").split("\n")
            if not first.endswith(".") or ". " in first or len(first) > 97 or rest[:1] not in ([], [""]):
                long.add(name)
    assert long == set()


def test_tests_stand_where_their_code_stands_and_do_not_import_each_other() -> None:
    tests = Path(__file__).parent
    packages = {path.parent.name for path in tests.glob("*/test_*.py")}
    assert packages == {path.parent.name for path in ROOT.glob("*/__init__.py")} | {"proofs"}
    for path in tests.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").split(".")[-1].startswith("test_"), f"{path} imports {node.module}"


def test_import_refimpl_brings_no_slow_packages() -> None:
    unwanted = ("refimpl.verify", "scipy", "mpmath", "flint", "gmpy2", "torch", "jax", "cupy", "matplotlib")
    code = f"import sys, refimpl; print(*(name for name in {unwanted} if name in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    assert run.stdout.split() == []


# Every check above, seen to fail
PLANTED = {
    "attention.rope": "from ..verify import check",
    "checks": "def late():\n    from .model.attention_layers import Config",
    "systems.floats": "if TYPE_CHECKING:\n    from ..attention import rope",
    "errors": "import refimpl.systems.array",
    "model.generation": "importlib.import_module('refimpl.cli.main')",
    "descent.dai": "import refimpl as ri",
    "files.safetensors": "from refimpl import State",
    "nano": "from .systems import QQ",
    # a circle, and a second name
    "systems.array": "def late():\n    from .dual import Dual\n\ndef rotate():\n    pass",
}


def test_planted_imports_and_names_are_seen(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(ROOT, tmp_path / "refimpl"))
    for name, lines in PLANTED.items():
        with (copy / f"{name.replace('.', '/')}.py").open("a") as file:
            file.write(f"\n{lines}\n")
    assert {edge.split(" -> ")[0] for edge in upward(copy) - upward(ROOT)} == set(PLANTED) - {"systems.array"}
    assert any({"systems.array", "systems.dual"} <= group for group in cycles(copy))
    assert "systems.array" in defined_twice(copy)["rotate"]
