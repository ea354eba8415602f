"""`python proofs/table.py` writes what follows from refimpl/verify/formal.toml and the proofs.

That is the table of README.md and, at the end of formal.toml, the digests of all sources and of all
statements. It believes no file about them: it audits what `make -C proofs check` has built, and
asks Coq for each statement.
"""

import sys
from pathlib import Path

import audit

from refimpl.verify import formal

HERE = Path(__file__).parent
README, DATA = HERE / "README.md", Path(formal.__file__).with_name("formal.toml")
BEGIN, END = "<!-- table: begin, written by proofs/table.py -->\n", "\n<!-- table: end -->"
DIGESTS = "# Digests, written by proofs/table.py: of the sources, and of the statements as Coq prints them\n"


def with_table(text: str) -> str:
    """The text with a new table between the markers."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + formal.table() + END + after


def with_digests(text: str, printed: dict[str, str]) -> str:
    """The text with new digests at its end."""
    lines = [
        "[sources]",
        *(f'"{path.name}" = "{formal.hex_digest(path.read_bytes())}"' for path in sorted(HERE.glob("*.v"))),
    ]
    names = sorted(name for statement in formal.STATEMENTS for name in statement.coq)
    for module in dict.fromkeys(name.partition(".")[0] for name in names):
        lines += ["", f"[printed.{module}]"]
        lines += [
            f'"{n.partition(".")[2]}" = "{printed[n]}"' for n in names if n.startswith(f"{module}.") and n in printed
        ]
    return text.partition(DIGESTS)[0] + DIGESTS + "\n".join(lines) + "\n"


def main() -> None:
    build, modules = HERE / "_build", sorted(path.stem for path in HERE.glob("*.v"))
    for module in modules:
        built = build / f"{module}.v"
        if not built.is_file() or built.read_bytes() != (HERE / f"{module}.v").read_bytes():
            sys.exit(f"table: {module}.v is not what was built; run {formal.COMMAND} first")
    if wrong := audit.main(build, modules):
        sys.exit("\n".join(["table: not in order", *filter(None, wrong)]))
    printed = audit.printed(build, modules)
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
    DATA.write_text(with_digests(DATA.read_text(encoding="utf-8"), printed), encoding="utf-8")


if __name__ == "__main__":
    main()
