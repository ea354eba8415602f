"""The report of `refimpl verify --html`: the matrix, its details and the certificate in a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from ..verify.matrix import Matrix, column_words, mark_of, short_names, strength
from ..verify.papers import links
from ..verify.registry import THEOREMS
from ..verify.theorem import Result
from .output import escape_controls
from .screen import Look, failures, simplest_first

STYLE = """
:root { color-scheme: light dark; --line: #8884; --red: #c22; --green: #181; --yellow: #a60; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; }
th, td { padding: .15rem .5rem; text-align: left; border-bottom: 1px solid var(--line); }
thead th { position: sticky; top: 0; background: Canvas; }
tr.group th { padding-top: 1rem; font-size: 16px; }
tr.theorem { cursor: pointer; }
tr.theorem:hover, tr.theorem:focus { background: #8882; }
.red { color: var(--red); font-weight: bold; }
.green { color: var(--green); }
.yellow { color: var(--yellow); }
.grey { opacity: .6; }
tr.detail td { max-width: 60rem; padding: .5rem 1.5rem 1rem; }
dt { font-weight: bold; }
code { font-size: 13px; }
.verdict p:first-child { font-weight: bold; }
.verdict { border-left: .4rem solid; padding: .2rem 1rem; margin: 1rem 0; }
@media (prefers-color-scheme: dark) { :root { --red: #f66; --green: #6c6; --yellow: #db5; } }
"""
SCRIPT = """
for (const row of document.querySelectorAll("tr.theorem")) {
  const detail = row.nextElementSibling;
  const turn = () => {
    detail.hidden = !detail.hidden;
    row.setAttribute("aria-expanded", String(!detail.hidden));
  };
  detail.hidden = true;
  row.addEventListener("click", turn);
  row.addEventListener("keydown", (event) => { if (event.key === "Enter") turn(); });
}
document.getElementById("save").addEventListener("click", () => {
  const text = document.getElementById("certificate").textContent;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = "refimpl-certificate.json";
  link.click();
});
"""


def safe(words: str) -> str:
    return escape(escape_controls(words))


def page_of(
    results: Sequence[Result], proofs: Sequence[Result], summary: Sequence[str], certificate: dict[str, Any]
) -> str:
    """A page that needs no other file. Without JavaScript all details are open."""
    matrix = Matrix.of(results, proofs)
    short = short_names(matrix.systems)
    head = "".join(f'<th title="{safe(column_words(label))}">{safe(short[label])}</th>' for label in matrix.systems)
    rows = []
    for group, names in matrix.groups().items():
        rows.append(f'<tr class="group"><th colspan="{len(short) + 1}">{safe(group or "others")}</th></tr>')
        rows += [row(name, matrix) for name in names]
    marks = "".join(
        f'<dt class="{mark.colour}">{safe(mark.sign + strength(weakest))}</dt>'
        f"<dd>{safe(mark.claims.format(strength(weakest) or '…'))}</dd>"
        for mark, weakest in matrix.marks().items()
    )
    columns = "".join(f"<dt>{safe(short[label])}</dt><dd>{safe(column_words(label))}</dd>" for label in matrix.systems)
    verdicts = {r.verdict for r in results}
    colour = "red" if "FAIL" in verdicts else "yellow" if verdicts & {"VACUOUS", "NOT RUN"} else "green"
    told = failures(simplest_first(results), (), Look(10**6))
    wrong = "".join(f"<p>{safe(line.strip())}</p>" for line in told)
    data = json.dumps(certificate, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>refimpl verify</title>
<style>{STYLE}</style>
</head>
<body>
<h1>refimpl verify</h1>
<div class="verdict {colour}">{wrong}{"<br>".join(map(safe, summary))}</div>
<p>A row is a theorem: click it for its statement and what was found. A mark says what was decided.</p>
<div class="wide"><table>
<thead><tr><th>theorem</th>{head}</tr></thead>
<tbody>
{chr(10).join(rows)}
</tbody>
</table></div>
<h2>Marks</h2>
<dl>{marks}</dl>
<h2>Columns</h2>
<dl>{columns}</dl>
<h2>Certificate</h2>
<p>Seeds, shapes, primes, digests and versions: <button id="save">save it as a file</button>, then
<code>refimpl verify --replay refimpl-certificate.json</code> checks all of it again.</p>
<script type="application/json" id="certificate">{data}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


def row(name: str, matrix: Matrix) -> str:
    """The row of a theorem, and below it the row of its details."""
    cells = [matrix.cells.get((name, label)) for label in matrix.systems]
    marks = "".join(
        f'<td class="{mark_of(r).colour}">{safe(mark_of(r).sign + strength(r))}</td>' if r else "<td></td>"
        for r in cells
    )
    t = THEOREMS[name]
    papers = " ".join(f'<a href="{safe(link)}">{safe(link.removeprefix("https://"))}</a>' for link in links(t.source))
    found = "".join(
        f'<dt class="{mark_of(r).colour}">{safe(r.system)}: {safe(r.verdict)}</dt>'
        f"<dd>{safe(r.evidence)}{safe(f'; worst: {r.worst}') if r.worst else ''}{safe(r.notes)}</dd>"
        for r in cells
        if r
    )
    return (
        f'<tr class="theorem" tabindex="0"><th scope="row">{safe(name)}</th>{marks}</tr>\n'
        f'<tr class="detail"><td colspan="{len(cells) + 1}"><p>{safe(t.statement)}</p>'
        f"<p>Needs {safe(t.assumes)}. Source: {safe(t.source)} {papers}</p><dl>{found}</dl></td></tr>"
    )
