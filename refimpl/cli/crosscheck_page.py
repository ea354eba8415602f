"""The report of `refimpl crosscheck --html`: what was found, with pictures, in one file."""

from __future__ import annotations

import json
from itertools import groupby

import numpy as np

from ..crosscheck.diagnose import Trial
from ..crosscheck.report import COLOURS, Finding, Report, block, data_of, ending
from .page import STYLE, safe

WIDTH, HEIGHT = 640, 160
MORE = """
pre { overflow-x: auto; font-size: 14px; line-height: 1.4; }
svg { max-width: 100%; height: auto; }
.error { fill: none; stroke: var(--red); stroke-width: 1.5; }
.bound { fill: none; stroke: var(--green); stroke-width: 1.5; stroke-dasharray: 4 3; }
.bad { fill: var(--red); }
.frame { fill: none; stroke: var(--line); }
text { font: 12px system-ui, sans-serif; fill: currentColor; }
"""


def page_of_kernel(report: Report) -> str:
    """A page that needs no other file."""
    colour = COLOURS.get(report.verdict, "green")
    parts = [part for finding in report.findings for part in section(finding)]
    cases = "".join(f"<dt>{safe(str(case))}</dt><dd>{safe(case.why)}</dd>" for case in report.cases)
    data = json.dumps(data_of(report), ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>refimpl crosscheck {safe(report.name)}</title>
<style>{STYLE}{MORE}</style>
</head>
<body>
<h1>refimpl crosscheck</h1>
<div class="verdict {colour}">{"<br>".join(map(safe, ending(report, 10**6)))}</div>
{chr(10).join(parts)}
<details><summary>The plan: {len(report.cases)} cases, and why each is there</summary><dl>{cases}</dl></details>
<script type="application/json" id="report">{data}</script>
</body>
</html>
"""


def section(finding: Finding) -> list[str]:
    lines = "\n".join(map(safe, block(finding, 100)))
    return [f"<h2>{safe(finding.dtype)}</h2>", f"<pre>{lines}</pre>", *pictures(finding.example)]


def pictures(trial: Trial | None) -> list[str]:
    """Of the first case that fails: the error of each token, and where the wrong entries are."""
    if trial is None or not trial.answer.results or "o" not in trial.answer.results or not trial.case.n:
        return []
    want = trial.expected["o"]
    with np.errstate(all="ignore"):
        error = np.abs(trial.answer.results["o"] - want.value)
    error = np.where(np.isfinite(error), error, np.inf)
    bad = error > want.bound
    words = safe(f"The output at {trial.case}")
    return [f"<h3>{words}</h3>", curves(error.max((0, 1, 3)), want.bound.max((0, 1, 3))), heat(bad.any(3))]


def curves(error: np.ndarray, bound: np.ndarray) -> str:
    """Error and bound of each token, on a scale of powers of ten."""
    seen = np.concatenate([error, bound])
    seen = seen[(seen > 0) & np.isfinite(seen)]
    if not seen.size:
        return ""
    low, high = np.floor(np.log10(seen.min())), np.ceil(np.log10(seen.max())) + 1e-9
    with np.errstate(all="ignore"):
        lines = [line(np.log10(x), low, high) for x in (error, bound)]
    return f"""<svg viewBox="0 0 {WIDTH} {HEIGHT + 20}" role="img" aria-label="error of each token">
<rect class="frame" width="{WIDTH}" height="{HEIGHT}"/>
<polyline class="error" points="{lines[0]}"/><polyline class="bound" points="{lines[1]}"/>
<text x="4" y="14">10^{high:.0f}</text><text x="4" y="{HEIGHT - 4}">10^{low:.0f}</text>
<text x="{WIDTH - 4}" y="{HEIGHT + 15}" text-anchor="end">token {len(error) - 1}</text>
<text x="4" y="{HEIGHT + 15}">error (line) and bound (dashed), largest of each token</text>
</svg>"""


def line(x: np.ndarray, low: float, high: float) -> str:
    places = np.linspace(0, WIDTH, len(x))
    heights = HEIGHT * (1 - (np.clip(x, low, high) - low) / max(high - low, 1e-9))
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(places, heights, strict=True))


def heat(bad: np.ndarray) -> str:
    """A row for each batch row and head, a column for each token: red where an entry is wrong."""
    rows = bad.reshape(-1, bad.shape[2])
    cell, wide = min(16, max(4, HEIGHT // len(rows))), WIDTH / rows.shape[1]
    marks = []
    for i, row in enumerate(rows):
        at = 0
        for wrong, run in groupby(row):
            count = len(list(run))
            if wrong:
                place = f'x="{at * wide:.1f}" y="{i * cell}" width="{count * wide:.1f}" height="{cell - 1}"'
                marks.append(f'<rect class="bad" {place}/>')
            at += count
    height = cell * len(rows)
    words = f"wrong entries: a line for each batch row and head, from token 0 to {rows.shape[1] - 1}"
    return f"""<svg viewBox="0 0 {WIDTH} {height + 20}" role="img" aria-label="wrong entries">
<rect class="frame" width="{WIDTH}" height="{height}"/>{"".join(marks)}<text x="4" y="{height + 15}">{words}</text></svg>"""
