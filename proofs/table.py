"""`python proofs/table.py` writes the table of README.md from refimpl/verify/formal.toml."""

from pathlib import Path

from refimpl.verify.formal import table

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- table: begin, written by proofs/table.py -->\n", "\n<!-- table: end -->"


def with_table(text: str) -> str:
    """The text with a new table between the markers."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
