"""Readers of tokenizers: GPT-2's two files, and llama2.c's one. All contents are checked."""

from __future__ import annotations

import math
import struct
from collections import Counter
from pathlib import Path
from typing import Any

from ...budget import budget
from ...errors import brief
from ..disk import PathLike, check_path, located, opened, read_bytes, read_object, read_text
from .byte_pairs import letters
from .tokenizer import BYTES, Gpt2Tokenizer, LlamaTokenizer, Tokenizer

# the names of GPT-2's two files: ids, merges
PAIRS = {"encoder.json": "vocab.bpe", "gpt2-encoder.json": "gpt2-vocab.bpe", "vocab.json": "merges.txt"}


def read_tokenizer(path: PathLike, *, limit: float = 1) -> Tokenizer:
    """The tokenizer in a file or folder: one of GPT-2's two files, or llama2.c's tokenizer.bin.

    limit : how many times the usual memory the file may ask for, beyond its own size
    """
    check_path("read_tokenizer", path)
    with budget("read_tokenizer", limit):
        return read_known_tokenizer("read_tokenizer", Path(path))


def read_known_tokenizer(who: str, path: Path) -> Tokenizer:
    """The tokenizer in a file, known by its name or its first bytes, or in a folder."""
    if path.is_dir():
        for ids, merges in PAIRS.items():
            if (path / ids).is_file() and (path / merges).is_file():
                return read_gpt2_tokenizer(path / ids, path / merges)
        pairs = ", or ".join(map(" and ".join, PAIRS.items()))
        raise OSError(f"{who}: cannot read {path}: the folder must hold {pairs}")
    with opened(who, path) as (file, _):
        start = file.read(8)
    for ids, merges in PAIRS.items():
        if path.name in (ids, merges):
            return read_gpt2_tokenizer(path.with_name(ids), path.with_name(merges))
    if start.lstrip().startswith(b"{") or start.startswith(b"#version"):
        names = ", ".join(name for pair in PAIRS.items() for name in pair)
        wanted = f"one of GPT-2's two files must have one of the names {names}, to find the other by"
        raise ValueError(f"{who}: {path}: {wanted}")
    return read_llama_tokenizer(path)


def read_gpt2_tokenizer(encoder: PathLike, merges: PathLike) -> Gpt2Tokenizer:
    """GPT-2's tokenizer, from {token: id} in JSON and lines of two tokens that merge.

    Tokens are written in GPT-2's letters for bytes.
    """
    who = "read_tokenizer"
    lines = read_text(who, merges).removesuffix("\n").split("\n")
    ids, byte = read_object(who, encoder), {letter: b for b, letter in letters().items()}
    with located(f"{who}: {encoder}"):
        tokens = vocabulary_bytes(ids, byte)
    with located(f"{who}: {merges}"):
        return Gpt2Tokenizer(tokens, read_merges(lines, ids, set(byte)))


def vocabulary_bytes(ids: dict[str, Any], byte: dict[str, int]) -> list[bytes]:
    tokens: list[bytes] = [b""] * len(ids)
    for token, i in ids.items():
        if type(i) is not int or not 0 <= i < len(ids) or tokens[i]:
            raise ValueError(f"the ids must be 0 … {len(ids) - 1}, once each, got {brief(i)} for {brief(token)}")
        if not token or not all(letter in byte for letter in token):
            raise ValueError(f"a token must be written in GPT-2's letters for bytes, got {brief(token)}")
        tokens[i] = bytes(byte[letter] for letter in token)
    if missing := [b for letter, b in byte.items() if letter not in ids]:
        raise ValueError(f"there must be a token for every byte, got none for {missing[0]:#04x}")
    return tokens


def read_merges(lines: list[str], ids: dict[str, int], made: set[str]) -> dict[tuple[int, int], tuple[int, int]]:
    """(id, id) -> (rank, id of both).

    Each token must be made of tokens made before it. So merging all pairs of least rank at once, as
    GPT-2 does, equals merging them one after another.
    """
    merges: dict[tuple[int, int], tuple[int, int]] = {}
    for number, line in enumerate(lines, 1):
        if number == 1 and line.startswith("#version"):
            continue
        pair = line.removesuffix("\r").split(" ")
        if len(pair) != 2 or not made.issuperset(pair):
            raise ValueError(f"line {number} must be two tokens made by the lines before it, got {brief(line)}")
        both = "".join(pair)
        if both not in ids or both in made:
            wanted = "must make a token that has an id, and was not made before"
            raise ValueError(f"line {number} {wanted}, got {brief(line)}")
        made.add(both)
        merges[ids[pair[0]], ids[pair[1]]] = (number, ids[both])
    return merges


def read_llama_tokenizer(path: PathLike) -> LlamaTokenizer:
    """llama2.c's tokenizer: int32 greatest length; then float32 score, int32 length, bytes."""
    who = f"read_tokenizer: {path}"
    data = read_bytes("read_tokenizer", path)
    if len(data) < 4:
        wanted = "an int32, the greatest length of a token"
        raise ValueError(f"{who}: the file must begin with {wanted}, got {len(data)} bytes")
    (most,), at = struct.unpack_from("<i", data), 4
    tokens: list[bytes] = []
    scores: list[float] = []
    while at < len(data):
        if at + 8 > len(data):
            raise ValueError(f"{who}: token {len(tokens)} must have a score and a length, got {len(data) - at} bytes")
        score, length = struct.unpack_from("<fi", data, at)
        if not math.isfinite(score):
            raise ValueError(f"{who}: token {len(tokens)} must have a finite score, got {score}")
        if not 1 <= length <= min(most, len(data) - at - 8):
            limits = f"at most {most}, with {len(data) - at - 8} bytes left"
            raise ValueError(f"{who}: token {len(tokens)} must have a length from 1 on, {limits}, got {length}")
        tokens.append(data[at + 8 : at + 8 + length])
        scores.append(score)
        at += 8 + length
    for i in BYTES:
        name, got = b"<0x%02X>" % (i - BYTES.start), tokens[i] if i < len(tokens) else "no such token"
        if got != name:
            raise ValueError(f"{who}: token {i} must be {name!r}, got {brief(got)}")
    token, times = Counter(tokens).most_common(1)[0]
    if times > 1:
        raise ValueError(f"{who}: tokens must differ, got {brief(token)} {times} times")
    if b" " not in tokens:
        raise ValueError(f"{who}: there must be a token for the space, with which every text begins, got none")
    return LlamaTokenizer(tokens, scores)
