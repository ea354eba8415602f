"""Results for people to read: a table, and a line that sums it up."""

from __future__ import annotations

from collections.abc import Sequence

from .theorem import Result


def table(results: Sequence[Result], proofs: Sequence[Result] = ()) -> str:
    """One row for each theorem and system, proofs first; then reasons for not checking."""
    rows = [("theorem", "system", "verdict", "instances", "redrawn", "seconds", "evidence")]
    reasons: dict[str, list[Result]] = {}
    order = list(dict.fromkeys(r.theorem for r in results))
    for r in sorted((*proofs, *results), key=lambda r: order.index(r.theorem)):
        if r.verdict == "N/A":
            reasons.setdefault(r.evidence, []).append(r)
            continue
        where = (f" at {r.worst}" if r.verdict in ("FAIL", "NOT RUN") else f"; worst: {r.worst}") if r.worst else ""
        counts = (str(r.instances), str(r.redraws), f"{r.seconds:.2f}") if r.system != "Coq" else ("", "", "")
        rows.append((r.theorem, r.system, r.verdict, *counts, r.evidence + where + r.notes))
    widths = [*(max(len(row[i]) for row in rows) for i in range(6)), 0]
    align = [str.ljust] * 3 + [str.rjust] * 3 + [str.ljust]
    lines = ["  ".join(put(cell, width) for put, cell, width in zip(align, row, widths, strict=True)) for row in rows]
    for reason, which in reasons.items():
        names, systems = (", ".join(dict.fromkeys(x)) for x in ([r.theorem for r in which], [r.system for r in which]))
        lines.append(f"n/a: {names} in {systems}: {reason}")
    return "\n".join(line.rstrip() for line in lines)


def summary(results: Sequence[Result], seconds: float, seed: int) -> str:
    ran = [r for r in results if r.verdict != "N/A"]
    count = {v: sum(r.verdict == v for r in ran) for v in ("VACUOUS", "NOT RUN", "FAIL")}
    held = len(ran) - sum(count.values())
    rest = "".join(f", {n} {v.lower()}" for v, n in count.items() if n or v == "FAIL")
    total, again, rows, vacuous = (sum(getattr(r, x) for r in ran) for x in ("instances", "redraws", "rows", "vacuous"))
    bounded = f", {vacuous} of {rows} rows vacuous" if vacuous else ""
    drawn = f"{total} instances{bounded}, {again} redrawn for a zero denominator or a vacuous bound, seed {seed}"
    return f"{held} of {len(ran)} checks hold{rest}: {drawn}, {seconds:.1f} s"
