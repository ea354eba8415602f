"""The site: its reference has every public name, and its check of links sees a dead one."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import runpy
from pathlib import Path
from types import ModuleType

import pytest

import refimpl
from refimpl import descent
from refimpl.public import __all__ as PUBLIC

SITE = Path(__file__).parent.parent / "examples/site"
REFERENCE = (SITE / "api.rst").read_text()
MODULES = [f"refimpl.descent.{found.name}" for found in pkgutil.iter_modules(descent.__path__)]
MODULES += [getattr(refimpl, name).__name__ for name in PUBLIC if isinstance(getattr(refimpl, name), ModuleType)]


def listed() -> set[str]:
    """The names that the reference has, in full."""
    names = set(re.findall(r"^\.\. auto(?:function|class|exception|data):: ([\w.]+)", REFERENCE, flags=re.M))
    return {name if name.startswith("refimpl.") else f"refimpl.{name}" for name in names}


def own(module: str) -> dict[str, object]:
    """The functions and classes that a module defines, without those that begin with _."""
    found = vars(importlib.import_module(module)).items()
    is_own = {name: x for name, x in found if inspect.isfunction(x) or inspect.isclass(x)}
    return {name: x for name, x in is_own.items() if x.__module__ == module and not name.startswith("_")}


def documented(x: object) -> bool:
    """Has it a docstring of its own, which neither a base class nor @dataclass has made?"""
    words = x.__dict__.get("__doc__") if inspect.isclass(x) else x.__doc__
    return bool(words) and not words.startswith(f"{getattr(x, '__name__', '')}(")


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_in_the_reference(name: str) -> None:
    value = getattr(refimpl, name)
    if isinstance(value, ModuleType):
        assert f".. automodule:: {value.__name__}\n   :members:" in REFERENCE
    else:
        assert f"refimpl.{name}" in listed()


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_a_docstring(name: str) -> None:
    value = getattr(refimpl, name)
    if name == "FEATURE_MAPS":  # an object of a class of Python, which has none of its own
        assert isinstance(value, dict) and all(documented(phi) for phi in value.values())
    elif name != "__version__":
        assert documented(type(value) if isinstance(value, refimpl.systems.System) else value), name


@pytest.mark.parametrize("module", MODULES)
def test_modules_are_in_the_reference_with_all_that_they_define(module: str) -> None:
    assert f".. automodule:: {module}\n   :members:" in REFERENCE
    assert [name for name, x in own(module).items() if not documented(x)] == []


def test_the_reference_names_nothing_that_does_not_exist() -> None:
    for name in listed():
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module), last), name


def test_what_has_no_docstring_is_seen() -> None:
    class Bare(refimpl.State):
        pass

    def bare() -> None:
        pass

    assert not documented(Bare) and not documented(bare) and documented(refimpl.State)


def open_fences(text: str) -> list[str]:
    """The lines that look like the end of a code block and are not, so that prose becomes code."""
    ends = re.findall(r"^```.*", text, flags=re.M)[1::2]
    return [line for line in ends if line != "```"]


@pytest.mark.parametrize("page", [SITE.parents[1] / "README.md", *SITE.glob("*.md")], ids=lambda page: page.name)
def test_code_blocks_end_where_they_seem_to(page: Path) -> None:
    assert open_fences(page.read_text()) == []


def test_a_code_block_that_does_not_end_is_seen() -> None:
    assert open_fences("```python\n>>> 1\n``` And so on.\n") == ["``` And so on."]


def test_a_dead_link_is_seen(tmp_path: Path) -> None:
    dead_links = runpy.run_path(str(SITE / "build.py"))["dead_links"]
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="b.html#there">1</a> <a href="#here">2</a> <a href="c.html">3</a>'
        '<a href="b.html#nowhere">4</a> <img src="missing.png"> <a href="https://example.org/x">5</a>'
    )
    (tmp_path / "b.html").write_text('<p id="there"><a href="a.html">6</a>')
    dead = ["a.html: b.html#nowhere", "a.html: c.html", "a.html: missing.png"]
    assert sorted(dead_links(tmp_path)) == dead
