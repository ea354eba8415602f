"""Build the site: python examples/site/build.py. It needs pip install '.[docs]'.

Every example runs, a warning is an error, and every link inside the site must lead somewhere.
"""

import re
import shutil
import sys
import time
from html import unescape
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).parent
BUILT = HERE / "_build"


def dead_links(folder):
    """Links from page to page, each to a file or a place in it that does not exist."""
    pages = {page.resolve(): page.read_text(encoding="utf-8") for page in folder.rglob("*.html")}
    places = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in pages.items()}
    for page, text in pages.items():
        for found in re.findall(r'\b(?:href|src)="([^"]*)"', text):
            link = urlsplit(unescape(found))
            target = (page.parent / unquote(link.path)).resolve() if link.path else page
            if link.scheme or link.netloc or not found:
                continue
            place = unquote(link.fragment)
            if not target.exists() or (place and target in places and place not in places[target]):
                yield f"{page.name}: {found}"


if __name__ == "__main__":
    from sphinx.cmd.build import main

    began = time.perf_counter()
    for folder in (BUILT, HERE / "course"):  # sphinx-gallery does not run again what has not changed
        shutil.rmtree(folder, ignore_errors=True)
    if not find_spec("torch"):
        print("torch is missing: the two examples that need it are shown without their output")
    try:
        status = main(["-W", "-n", "-q", "--keep-going", "-d", f"{BUILT}/doctrees", str(HERE), f"{BUILT}/html"])
    except SystemExit as stop:
        print(f"an example ended the process: SystemExit({stop})")
        status = 1
    dead = [] if status else sorted(set(dead_links(BUILT / "html")))
    print(*(f"dead link: {link}" for link in dead), sep="\n", end="\n" if dead else "")
    print(f"{BUILT}/html/index.html: {time.perf_counter() - began:.0f} s", "and it failed" * bool(status or dead))
    sys.exit(status or bool(dead))
