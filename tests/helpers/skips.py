"""Which tests did not run, and what would let them run: a line for each reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

# what is imported and not in refimpl.packages by this name: the extra that installs it
OTHERS = {"flint": "fast", "ml_dtypes": "test", "array_api_strict": "test", "safetensors": "test"}
OTHERS |= {"transformers": "peers", "regex": "peers"}
WEIGHTS, COQ = "REFIMPL_MODELS=FOLDER names a folder that has them", "apt install coq libcoq-mathcomp-algebra"
# a word of a reason: what these tests are, and what lets them run
KNOWN = {
    "HYPOTHESIS_PROFILE": ("are slow", "HYPOTHESIS_PROFILE=ci runs them"),
    "real weights": ("need real weights", WEIGHTS),
    "REFIMPL_COQ": ("need Coq", f"REFIMPL_COQ=1, after {COQ}"),
    "MathComp": ("need MathComp", COQ),
    "flint": ("need flint", "pip install '.[fast]'"),
}


def explain(reason: str) -> tuple[str, str]:
    """What the tests with this reason are or need, and what lets them run."""
    from refimpl.packages import OPTIONAL  # only now: tests record how the package is imported

    if missing := re.search(r"could not import '([\w.]+)'", reason):
        library = missing[1].split(".")[0]
        extra = OPTIONAL[library][0] if library in OPTIONAL else OTHERS.get(library)
        return f"need {library}", f"pip install '.[{extra}]'" if extra else f"pip install {library}"
    found = [words for word, words in KNOWN.items() if word in reason]
    return found[0] if found else (f"skipped: {reason.removeprefix('Skipped: ')}"[:60], "")


def summary(reasons: Iterable[str]) -> list[str]:
    """A line for each reason, the most frequent first; of equals, by their words."""
    counts = sorted(Counter(map(explain, reasons)).items(), key=lambda item: (-item[1], item[0]))
    return [f"{n:6} {what:20} {remedy}".rstrip() for (what, remedy), n in counts]
