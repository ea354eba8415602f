"""Tokenizers: GPT-2's byte-level BPE, llama2.c's pieces with scores, plain bytes.

encode(text) gives ids, and decode(encode(text)) is the text again, whatever the text. Texts are
never searched for the names of special tokens: "<|endoftext|>" in a text is thirteen characters.
"""

from __future__ import annotations

import codecs
import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from ...checks import check_integer, check_type
from ...model.transformer import Model
from .byte_pairs import merge, split_words


class Tokenizer(ABC):
    """A map from text to ids and back.

    vocabulary, start : the number of ids, and the id that begins a text, if there is one
    """

    vocabulary: int
    start: int | None = None

    def encode(self, text: str, *, begin: bool = True) -> list[int]:
        """The ids of a text; if not `begin`, of a text that continues an earlier one."""
        check_type("encode", "text", text, str)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            got = f"half of a surrogate pair at {error.start}"
            raise ValueError(f"encode: `text` must be Unicode text, got {got}") from error
        return self.ids(text, begin)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; bytes that are not UTF-8 are U+FFFD in it."""
        return "".join(self.decode_stream(ids))

    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        """The text piece by piece, as the ids come; a character waits for all of its bytes."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for piece in self.pieces(check_integer("decode", "ids", i, least=0, most=self.vocabulary - 1) for i in ids):
            yield decoder.decode(piece)
        yield decoder.decode(b"", final=True)

    @abstractmethod
    def ids(self, text: str, begin: bool) -> list[int]: ...

    @abstractmethod
    def pieces(self, ids: Iterable[int]) -> Iterator[bytes]: ...


class ByteTokenizer(Tokenizer):
    """The bytes of UTF-8.

    >>> ByteTokenizer().encode("né")
    [110, 195, 169]
    """

    vocabulary = 256

    def ids(self, text: str, begin: bool) -> list[int]:
        return list(text.encode())

    def pieces(self, ids: Iterable[int]) -> Iterator[bytes]:
        return (bytes([i]) for i in ids)


class Gpt2Tokenizer(Tokenizer):
    """GPT-2's byte-level BPE: bytes of a word are merged, pair by pair, in the order of the merges.

    tokens : id -> its bytes      merges : (id, id) -> (rank, id of both), each made of earlier ones
    Source   Radford et al. 2019, encoder.py.
    """

    def __init__(self, tokens: list[bytes], merges: dict[tuple[int, int], tuple[int, int]]) -> None:
        self.tokens, self.merges, self.vocabulary = tokens, merges, len(tokens)
        by_bytes = {token: i for i, token in enumerate(tokens)}
        self.start = by_bytes.get(b"<|endoftext|>")
        byte_ids = [by_bytes[bytes([b])] for b in range(256)]

        @functools.lru_cache(maxsize=4096)
        def word_ids(word: str) -> list[int]:
            return merge([byte_ids[b] for b in word.encode()], lambda a, b: merges.get((a, b)))

        self.word_ids = word_ids

    def ids(self, text: str, begin: bool) -> list[int]:
        return [i for word in split_words(text) for i in self.word_ids(word)]

    def pieces(self, ids: Iterable[int]) -> Iterator[bytes]:
        return (self.tokens[i] for i in ids)


UNKNOWN, BOS, EOS, BYTES = 0, 1, 2, range(3, 259)


class LlamaTokenizer(Tokenizer):
    """llama2.c's tokenizer: merges neighbours that make the piece of highest score first.

    It starts from characters, or bytes where a character has no piece. A text begins with BOS and a
    space, which decoding removes after BOS; BOS and EOS decode to nothing.
    The ids are, in order: <unk>, BOS, EOS, <0x00> … <0xFF>, and then the pieces.
    Source   Karpathy's llama2.c, run.c. Differs: text never becomes one of the ids up to 258, even
             if it reads "<0x41>".
    """

    start = BOS

    def __init__(self, tokens: list[bytes], scores: list[float]) -> None:
        self.tokens, self.scores, self.vocabulary = tokens, scores, len(tokens)
        self.by_piece = {token: i for i, token in enumerate(tokens) if i >= BYTES.stop}

    def ids(self, text: str, begin: bool) -> list[int]:
        symbols: list[int] = []
        for char in (" " if begin and text else "") + text:
            i = self.by_piece.get(char.encode())
            symbols += [BYTES.start + b for b in char.encode()] if i is None else [i]
        return [BOS] * begin + merge(symbols, self.rank)

    def rank(self, a: int, b: int) -> tuple[float, int] | None:
        i = self.by_piece.get(self.tokens[a] + self.tokens[b]) if min(a, b) >= BYTES.stop else None
        return None if i is None else (-self.scores[i], i)

    def pieces(self, ids: Iterable[int]) -> Iterator[bytes]:
        last = None
        for i in ids:
            piece = b"" if i in (BOS, EOS) else bytes([i - BYTES.start]) if i in BYTES else self.tokens[i]
            yield piece[1:] if last == BOS and i >= BYTES.stop and piece.startswith(b" ") else piece
            last = i


def check_vocabulary(tokenizer: Tokenizer, model: Model) -> None:
    """A tokenizer must have the ids of a model, all of them and no others."""
    check_type("check_vocabulary", "tokenizer", tokenizer, Tokenizer)
    if tokenizer.vocabulary != model.config.vocabulary:
        ids = f"the {model.config.vocabulary} ids of the model, got {tokenizer.vocabulary}"
        raise ValueError(f"check_vocabulary: `tokenizer` must have {ids}")
