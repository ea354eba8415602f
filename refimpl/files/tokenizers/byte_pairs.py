"""Byte-pair encoding: GPT-2's words, merges in the order of their rank, bytes as letters."""

from __future__ import annotations

import functools
import heapq
import re
import unicodedata
from collections.abc import Callable, Iterator

# Unicode's White_Space. Python's own isspace() counts U+001C … U+001F as well.
SPACES = frozenset(
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
CONTRACTION = re.compile("'(?:s|t|re|ve|m|ll|d)")
WORD = re.compile(" ?L+| ?N+| ?O+|[ S]+(?![LNO])|[ S]+")


class Kinds(dict[int, str]):
    """Code point -> its kind: " " itself, S other white space, L letter, N number, O other."""

    def __missing__(self, point: int) -> str:
        char = chr(point)
        first = unicodedata.category(char)[0]
        kind = char if char == " " else "S" if char in SPACES else first if first in "LN" else "O"
        self[point] = kind
        return kind


KINDS = Kinds()


def split_words(text: str) -> Iterator[str]:
    r"""The pieces into which GPT-2 cuts a text, by the regular expression

        's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+

    with the classes of Unicode that Python's unicodedata knows: a character that was assigned later
    is neither letter nor number.

    >>> list(split_words("it's  2¼ o'clock, they'll say\n"))
    ['it', "'s", ' ', ' 2¼', ' o', "'", 'clock', ',', ' they', "'ll", ' say', '\n']
    """
    kinds, start = text.translate(KINDS), 0
    while start < len(text):
        found = CONTRACTION.match(text, start) or WORD.match(kinds, start)
        end = found.end()  # type: ignore[union-attr]  # every kind begins a word
        yield text[start:end]
        start = end


def merge(symbols: list[int], rank: Callable[[int, int], tuple[float, int] | None]) -> list[int]:
    """Merge the neighbours of least rank, the leftmost first, until no neighbours merge.

    rank : neighbours -> their rank and the id of both; None if they do not merge
    Cost   O(n log n): pairs wait in a heap, and a pair that no longer exists is passed over.
    """
    symbols, n = list(symbols), len(symbols)
    before, after = list(range(-1, n - 1)), list(range(1, n + 1))
    waiting: list[tuple[float, int, int, int, int]] = []

    def offer(i: int, j: int) -> None:
        if i >= 0 and j < n and (found := rank(symbols[i], symbols[j])) is not None:
            heapq.heappush(waiting, (found[0], i, symbols[i], symbols[j], found[1]))

    for i in range(n - 1):
        offer(i, i + 1)
    while waiting:
        _, i, left, right, both = heapq.heappop(waiting)
        j = after[i]
        if symbols[i] != left or j >= n or symbols[j] != right:
            continue
        symbols[i], symbols[j], after[i] = both, -1, after[j]
        if after[i] < n:
            before[after[i]] = i
        offer(before[i], i)
        offer(i, after[i])
    return [s for s in symbols if s >= 0]


@functools.cache
def letters() -> dict[int, str]:
    """GPT-2's letter for each byte: itself if it is printable, else the next one from U+0100 on."""
    own = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    rest = [b for b in range(256) if b not in own]
    return {b: chr(b) for b in own} | {b: chr(256 + i) for i, b in enumerate(rest)}
