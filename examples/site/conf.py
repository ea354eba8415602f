"""Sphinx's configuration of the site. `python examples/site/build.py` builds it.

Docstrings and the prose of the examples are plain text with formulas, not reStructuredText:
`plain_to_rst` turns them into it. The tables of the theory come from the registry of `verify` and
from formal.toml, each time the site is built.
"""

import importlib
import inspect
import re
import shutil
import warnings
from importlib.util import find_spec
from pathlib import Path

from docutils import nodes
from sphinx_gallery import py_source_parser
from sphinx_gallery.scrapers import figure_rst

import refimpl
from refimpl.verify import formal
from refimpl.verify.registry import MODULES, THEOREMS

HERE = Path(__file__).parent
PICTURE = HERE / "_build" / "example.png"

project, author = "refimpl", "the authors of refimpl"
version = release = refimpl.__version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.mathjax", "myst_parser", "sphinx_gallery.gen_gallery"]
exclude_patterns = ["_build", "course/GALLERY_HEADER.rst"]
source_suffix = {".rst": "restructuredtext", ".md": "markdown"}
html_theme, html_title = "furo", "refimpl"
html_copy_source, html_show_copyright = False, False
html_static_path, html_css_files = ["static"], ["site.css"]
templates_path = []
pygments_style, pygments_dark_style = "friendly", "monokai"
highlight_language, smartquotes = "none", False  # --full stays --full

nitpicky = True  # types in signatures are often private, and then have no page
nitpick_ignore_regex = [("py:class", ".*")]
autodoc_typehints_format, python_use_unqualified_type_names = "short", True
autodoc_member_order = "bysource"
suppress_warnings = ["config.cache"]  # functions in sphinx_gallery_conf
myst_enable_extensions, myst_fence_as_directive = ["substitution", "dollarmath"], ["math"]
myst_heading_anchors = 3


usual_filters = []


def strict_warnings(conf, name, when):
    """Around each example: a warning is an error, as under `python -W error`."""
    if when == "before":
        usual_filters[:] = warnings.filters
        warnings.simplefilter("error")
    else:
        warnings.filters[:] = usual_filters


def arguments(conf, example):
    """Examples that can write a picture do so."""
    PICTURE.parent.mkdir(exist_ok=True)
    return ["--plot", str(PICTURE)] if "--plot" in Path(example["src_file"]).read_text(encoding="utf-8") else []


def written_picture(block, example, conf):
    """The picture that a block of an example has written, for its page."""
    if not PICTURE.exists():
        return ""
    shown = next(example["image_path_iterator"])
    shutil.move(PICTURE, shown)
    return figure_rst([shown], conf["src_dir"])


# Two examples train in torch. Where it is missing, they are shown without their output.
runs = [path.name for path in HERE.parent.glob("*.py") if find_spec("torch") or "import torch" not in path.read_text()]

sphinx_gallery_conf = {
    "examples_dirs": "..",
    "gallery_dirs": "course",
    "filename_pattern": "|".join(map(re.escape, runs)),
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "reset_modules": ("matplotlib", strict_warnings),
    "reset_modules_order": "both",
    "reset_argv": arguments,
    "image_scrapers": (written_picture,),
    "capture_repr": (),
    "notebook_extensions": set(),
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
    "min_reported_time": 5,
}


def plain_to_rst(text):
    """Formulas, tables and doctests stay as they are; in prose, nothing is markup but `code`."""
    blocks = []
    for paragraph in re.split(r"\n[ \t]*\n", text.strip("\n")):
        lines = paragraph.splitlines()
        table = any(re.search(r"\S {3,}\S", line) for line in lines) or all(line.startswith("  ") for line in lines)
        if ">>> " in paragraph:
            blocks.append(".. code-block:: pycon\n\n" + indented(lines))
        elif table or re.match(r"\S+ : ", paragraph):
            blocks.append(".. code-block:: none\n\n" + indented(lines))
        else:
            code = " ".join(line.strip() for line in lines).split("`")
            code[::2] = [re.sub(r"([*|_\\])", r"\\\1", part) for part in code[::2]]
            blocks.append("``".join(code))
    return "\n\n".join(blocks) + "\n"


def indented(lines):
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    return "\n".join(f"    {line[margin:]}" for line in lines)


def split_blocks(path, return_node=False, split=py_source_parser.split_code_and_text_blocks):
    """As sphinx-gallery splits an example, with its prose as reStructuredText under a title."""
    conf, blocks, node = split(path, return_node=True)
    (kind, head, line, *rest), *others = blocks
    title, _, intro = head.strip().partition(": ")
    title = f"{Path(path).name[:2]} {title}"
    intro = intro[:1].upper() + intro[1:]
    shown = [type(blocks[0])(kind, f"{title}\n{'=' * len(title)}\n\n{plain_to_rst(intro)}", line, *rest)]
    for block in others:
        shown.append(block._replace(content=plain_to_rst(block.content)) if block.type == "text" else block)
    return (conf, shown, node) if return_node else (conf, shown)


py_source_parser.split_code_and_text_blocks = split_blocks  # what the parser of .py files is asked for


def theorems_of(module):
    """A table of the theorems of a module: what each says, its source, its code, its proof."""
    lines = ["| theorem of `verify`, and its equation | code | Coq |", "|---|---|---|"]
    for theorem in module.THEOREMS:
        name = theorem.name
        ours = f" **Ours:** {plain(theorem.ours)}." if theorem.ours else ""
        source = plain(theorem.source)
        statements = [s for s in formal.STATEMENTS if name in s.verify]
        code = dict.fromkeys(link(place) for s in statements for place in s.python)
        coq = " ".join(f"`{each}`" for each in formal.PROVED.get(name, ()))
        part = formal.IN_PART.get(name) or ("" if coq else formal.NOT_PROVED.get(name, "no proof yet"))
        note = f" {'In part: ' if coq else 'None: '}{plain(part)}." if part else ""
        words = f"`{name}` {plain(theorem.statement)}. *{source[:1].upper()}{source[1:]}.*{ours}"
        lines.append(f"| {words} | {' '.join(code) or '–'} | {coq}{note} |")
    return "\n".join(lines)


def plain(text):
    """Text in which Markdown sees no markup but `code`, for a cell of a table."""
    parts = " ".join(text.split()).rstrip(".").split("`")
    parts[::2] = [re.sub(r"([\\*_|<>\[\]$#{}~])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def link(place):
    """`prompt.conversion.convert` by its public name, with a link where the reference has it."""
    module, _, name = place.rpartition(".")
    public = getattr(refimpl, name, None)
    if name in refimpl.public.__all__ and public is getattr(importlib.import_module(f"refimpl.{module}"), name, None):
        return f"{{py:obj}}`{name} <refimpl.{name}>`"
    if f"automodule:: refimpl.{module}\n" in (HERE / "api.rst").read_text(encoding="utf-8"):
        return f"{{py:obj}}`{name} <refimpl.{module}.{name}>`"
    return f"`{place}`"


def heading(module):
    return (module.__doc__ or "").strip().partition("\n\n")[0].replace("\n", " ").rstrip(".")


myst_substitutions = {
    "theorems": "\n\n".join(
        f"**{plain(heading(module))}**\n\n{theorems_of(module)}"
        for module in sorted(MODULES, key=lambda m: getattr(m, "ORDER", 100))
    ),
    "count": len(THEOREMS),
    "statements": len(formal.STATEMENTS),
}


def setup(app):
    def docstring(app, what, name, object_, options, lines):
        lines[:] = plain_to_rst("\n".join(lines)).splitlines()

    def signature(app, what, name, object_, options, arguments, returned):
        """A class shows no return value, also where a cache wraps it: __init__ returns None."""
        return (arguments, None) if inspect.isclass(inspect.unwrap(object_)) else None

    def breaks(app, doctree, page):
        """In tables, names may break after dots and underscores only."""
        for name in {code for table in doctree.findall(nodes.table) for code in table.findall(nodes.literal)}:
            first, *others = re.split(r"(?<=[_.])(?=\w)", name.astext())
            pieces = [piece for x in others for piece in (nodes.raw("", "<wbr>", format="html"), nodes.Text(x))]
            name[:] = [nodes.Text(first), *pieces]

    app.connect("autodoc-process-docstring", docstring)
    app.connect("autodoc-process-signature", signature)
    app.connect("doctree-resolved", breaks)
