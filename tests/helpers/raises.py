"""Which lines of the package have refused something in this session.

`record` changes how the package is imported: a call before each `raise` notes the lines of the
package that are being executed. Files, line numbers and tracebacks stay as they are.
"""

from __future__ import annotations

import ast
import builtins
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType
from typing import Any

from tests.helpers.source import ROOT, Refusal, refusals

NAME = "__note_raise__"
seen: set[tuple[str, int]] = set()

# Lines that no test of this process can reach, and why
PHI, DIGEST = "the φ of a model was checked when it was made", "`digest` has refused such a model before"
RATIONAL = "these numbers are rationals of a system of ours, or floats that were found to be finite"
LIMIT = "the limit was checked when the file was opened"
UNREACHED = {
    "files/checkpoint.py: budget('load', limit, sum((x.nbytes for x in contents.tensors.values())))": LIMIT,
    "files/models/__init__.py: budget('read_model', limit, opening.size)": LIMIT,
    "files/checkpoint.py: config_text('load', config)": PHI,
    "model/attention_layers.py: pair_of_maps('charge', self.phi)": PHI,
    "files/checkpoint.py: config_text('save', model.config)": DIGEST,
    "files/checkpoint.py: arrays_on_disk('save', model.weights)": DIGEST,
    "systems/running_error.py: fractions(x.planes[0], self.name)": RATIONAL,
    "verify/bounds.py: fractions(exact, 'judge')": RATIONAL,
    "verify/bounds.py: fractions(np.where(not_finite, np.zeros_like(a), a), 'finite_fractions')": RATIONAL,
    "verify/bounds.py: fractions(x.system.where(not_finite, 0, x), 'finite_fractions')": RATIONAL,
    "verify/ways.py: fractions(left, name)": RATIONAL,
    "verify/ways.py: fractions(right, name)": RATIONAL,
    "verify/ways.py: fractions(x, 'verify')": RATIONAL,
    "verify/ways.py: fractions(x, name)": RATIONAL,
}


def note() -> None:
    frame = sys._getframe(1)
    while frame:
        if frame.f_code.co_filename.startswith(str(ROOT)):
            seen.add((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]


class Noting(ast.NodeTransformer):
    def visit_Raise(self, node: ast.Raise) -> list[ast.stmt]:
        call = ast.Expr(ast.Call(ast.Name(NAME, ast.Load()), [], []))
        return [ast.fix_missing_locations(ast.copy_location(call, node)), node]


class Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(self.get_data(self.path))
        return compile(Noting().visit(tree), self.path, "exec", dont_inherit=True)


class Finder:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name.split(".")[0] == "refimpl" else None
        if spec and spec.origin and spec.origin.startswith(str(ROOT)):
            spec.loader = Loader(name, spec.origin)
        return spec


def record() -> None:
    assert "refimpl" not in sys.modules, "refimpl was imported before its raises could be recorded"
    setattr(builtins, NAME, note)
    sys.meta_path.insert(0, Finder)


def silent() -> list[Refusal]:
    """The statements and calls that may refuse something, and in this session have not."""
    return [r for r in refusals() if not any((str(r.path), line) in seen for line in r.lines)]


def untested() -> list[str]:
    """What a session with every test has not refused and should have, or the other way round."""
    quiet = {f"{r.path.relative_to(ROOT)}: {r.code}": r.lines[0] for r in silent()}
    missing = [f"line {line} of {code}: no test" for code, line in quiet.items() if code not in UNREACHED]
    return missing + [f"{code}: no test reaches it, and yet one did" for code in sorted(set(UNREACHED) - set(quiet))]
