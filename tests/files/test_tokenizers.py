"""Tokenizers: every text comes back, ids are those of other people's code, and damaged files are
refused in words.
"""

import json
import re
import struct
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl import Config, Float, random_model
from refimpl.files.disk import LARGEST_TEXT
from refimpl.files.tokenizers import ByteTokenizer, Gpt2Tokenizer, LlamaTokenizer, check_vocabulary, read_tokenizer
from refimpl.files.tokenizers.byte_pairs import KINDS, letters, merge, split_words
from tests.helpers.assertions import says
from tests.helpers.real_weights import folder

TRICKY = [
    "",
    " ",
    "  ",
    "\n",
    "\n\n",
    " \n ",
    "a  b",
    "a   b ",
    "\ta\t\tb",
    "it's we'll I'd they've I'm you're don't",
    "it'S 'tis ''s 's's 'll'",
    " 't 'x",
    "x\x85y\xa0z\u2028w\u2029v\u3000u\u200bt\u180es",
    "a\x1cb\x1dc\x1ed\x1fe",
    "e\u0301te\u0301 ñ",
    "🎈👩‍👩‍👧‍👦 🇫🇷",
    "2¼ Ⅷ ٣४ ²",
    "漢字かな 한국어",
    "\ufeffbom\x00nul",
    "<|endoftext|> <s> <0x41> \n<s>\n",
    "   indent\n\treturn 0\n",
    "…—“quotes”",
    "\U0010ffff\ue000",
    "ǅ ʰ ª º",
    "a" * 300,
    "7" * 300,
    "''" * 9,
]
TEXTS = st.text(st.sampled_from(" \n\t'stlvredmLL0129.,!¼éß漢🎈\u0301\x85\xa0\u2028\x1c\u3000"), max_size=40) | st.text(
    max_size=20
)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """GPT-2's two files, and llama2.c's, of a few tokens."""
    made = tmp_path_factory.mktemp("tokenizers")
    merges = ["a a", "Ġ t", "h e", "Ġt he", "aa a", "' s"]
    tokens = [*letters().values(), *(m.replace(" ", "") for m in merges), "<|endoftext|>"]
    (made / "encoder.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (made / "vocab.bpe").write_text("\n".join(["#version: 0.2", *merges, ""]))
    pieces = [b" ", b"a", b"t", b"h", b"e", b"th", b"the", b" the", b"aa", b"aaa", "é".encode(), b" t"]
    (made / "tokenizer.bin").write_bytes(
        llama_file([*specials(), *pieces], {b"th": -1, b" the": -2, b"the": -3, b"aa": -4, b"aaa": -4, b" t": -9})
    )
    return made


def specials():
    return [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % b for b in range(256))]


def llama_file(tokens, scores):
    most = max(map(len, tokens))
    return struct.pack("<i", most) + b"".join(struct.pack("<fi", scores.get(t, -99.0), len(t)) + t for t in tokens)


def tokenizers(small):
    yield ByteTokenizer()
    yield read_tokenizer(small)
    yield read_tokenizer(small / "tokenizer.bin")


@given(TEXTS)
def test_every_text_comes_back(small, text):
    for t in tokenizers(small):
        ids = t.encode(text)
        assert t.decode(ids) == text and all(0 <= i < t.vocabulary for i in ids), t
        assert "".join(t.decode_stream(iter(ids))) == text


@pytest.mark.parametrize("text", TRICKY)
def test_tricky_texts_come_back(small, text):
    for t in tokenizers(small):
        assert t.decode(t.encode(text)) == text, t


def test_joining_is_that_of_the_papers(small):
    """By hand: GPT-2 joins the pair that stands first in the list; llama2.c the piece of highest
    score, the leftmost of equals.
    """
    gpt, llama = read_tokenizer(small / "vocab.bpe"), read_tokenizer(small / "tokenizer.bin")
    shown = [gpt.tokens[i] for i in gpt.encode("aaaaa the's")]
    assert shown == [b"aa", b"aaa", b" the", b"'s"] and gpt.start == gpt.vocabulary - 1
    assert [llama.tokens[i] for i in llama.encode("the")] == [b"\n<s>\n", b" the"]
    assert [llama.tokens[i] for i in llama.encode("aaaaa", begin=False)] == [b"aaa", b"aa"]
    assert llama.encode("") == [1] and llama.encode("", begin=False) == [] and llama.start == 1
    assert llama.encode("b", begin=False) == [3 + ord("b")]
    assert (
        llama.decode([1, 259, 260, 2]) == "a"
        and llama.decode([259, 260]) == " a"
        and llama.decode([0, 3 + 32]) == "<unk> "
    )


@given(st.lists(st.sampled_from([1, 2, 3]), max_size=30))
def test_joining_by_a_heap_is_joining_the_best_pair_again_and_again(symbols):
    def ranked(a, b):
        return ((a * 7 + b * 3) % 5, a + b) if a + b < 9 else None

    slow = list(symbols)
    while found := [(*r, i) for i in range(len(slow) - 1) if (r := ranked(slow[i], slow[i + 1]))]:
        at = min(found, key=lambda f: (f[0], f[2]))[2]
        slow[at : at + 2] = [slow[at] + slow[at + 1]]
    assert merge(symbols, ranked) == slow


def test_a_character_waits_for_its_bytes():
    t = ByteTokenizer()
    assert list(t.decode_stream([*t.encode("é🎈"), 0xF0])) == ["", "é", "", "", "", "🎈", "", "\ufffd"]


ASCII = [text for text in TRICKY if text.isascii()]


@pytest.mark.parametrize("text", [*ASCII, "In 12345678 of 1,234,567.89 cases, 2024s: x2y34567", " 00000  999999"])
def test_words_of_ascii_are_those_of_the_regular_expression(text):
    """Without the package regex: in ASCII letters and numbers can be listed."""
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+"
    assert list(split_words(text)) == re.findall(pattern, text)


@pytest.mark.parametrize("text", TRICKY)
def test_words_are_those_of_the_regular_expression(text):
    regex = pytest.importorskip("regex")
    assert list(split_words(text)) == regex.findall(
        r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""", text
    )


def test_kinds_of_all_characters_are_those_of_the_regex_package():
    """All of Unicode but what Python does not know yet."""
    regex = pytest.importorskip("regex")
    for kind, pattern in {"L": r"\p{L}", "N": r"\p{N}", "S": r"\s"}.items():
        theirs = regex.compile(pattern)
        every = "".join(map(chr, range(sys.maxunicode + 1)))
        found = {m.start() for m in theirs.finditer(every)} - {ord(" ")}
        ours = {c for c in range(sys.maxunicode + 1) if every[c : c + 1].translate(KINDS) == kind}
        assert {c for c in found ^ ours if unicodedata.category(chr(c)) != "Cn"} == set(), kind


@pytest.fixture(scope="module")
def published():
    """GPT-2's own tokenizer, ours and that of transformers, from the same two files."""
    theirs = pytest.importorskip("transformers").GPT2Tokenizer
    where = folder("gpt2-encoder.json", "gpt2-vocab.bpe")
    ids = json.loads((where / "gpt2-encoder.json").read_text(encoding="utf-8"))
    merges = [
        tuple(line.split(" ")) for line in (where / "gpt2-vocab.bpe").read_text(encoding="utf-8").split("\n")[1:-1]
    ]
    return read_tokenizer(where), theirs(vocab=ids, merges=merges)


@pytest.mark.parametrize("text", TRICKY)
def test_gpt2_tricky_ids_are_those_of_transformers(published, text):
    same_ids(published, text.replace("<|endoftext|>", "<|end"))


@given(TEXTS)
def test_gpt2_ids_are_those_of_transformers(published, text):
    same_ids(published, text)


def same_ids(published, text):
    ours, theirs = published
    # transformers knows a later Unicode
    text = "".join(c for c in text if unicodedata.category(c) != "Cn")
    ids = ours.encode(text)
    assert ids == theirs(text)["input_ids"] and ours.decode(ids) == text
    assert ours.vocabulary == 50257 and ours.start == 50256


def test_llama2c_ids_of_a_text():
    """As llama2.c's own encode joins "Once upon a time" by the scores of tok512: checked by joining
    the best pair again and again.
    """
    t = read_tokenizer(folder("tok512.bin") / "tok512.bin")
    assert t.vocabulary == 512
    for text in [*TRICKY, "Once upon a time, there was a little girl named Lily."]:
        ids = t.encode(text)
        assert t.decode(ids) == text
        slow = [
            i
            for c in " " + text
            for i in ([t.by_piece[c.encode()]] if c.encode() in t.by_piece else [3 + b for b in c.encode()])
        ]
        while pairs := [
            (t.scores[j], -i) for i in range(len(slow) - 1) if (j := glued(t, slow[i], slow[i + 1])) is not None
        ]:
            i = -max(pairs)[1]
            slow[i : i + 2] = [glued(t, slow[i], slow[i + 1])]
        assert ids == ([1, *slow] if text else [1])


def glued(t, a, b):
    return t.by_piece.get(t.tokens[a] + t.tokens[b])


def test_a_long_word_takes_no_long_time(small):
    for t in tokenizers(small):
        assert t.decode(t.encode("a" * 20000)) == "a" * 20000


def test_texts_and_ids_that_are_none():
    t = ByteTokenizer()
    with says(TypeError, "encode: `text` must be a str, got bytes"):
        t.encode(b"a")
    with says(ValueError, "encode: `text` must be Unicode text, got half of a surrogate pair at 1"):
        t.encode("a\ud800")
    with says(ValueError, "decode: `ids` must be an integer between 0 and 255, got 256"):
        t.decode([256])


def test_a_tokenizer_of_another_model():
    model = random_model(Float(), Config(layers=1, width=2, vocabulary=9), 0)
    with says(ValueError, "check_vocabulary: `tokenizer` must have the 9 ids of the model, got 256"):
        check_vocabulary(ByteTokenizer(), model)
    check_vocabulary(ByteTokenizer(), random_model(Float(), Config(layers=1, width=2, vocabulary=256), 0))
    with says(TypeError, "check_vocabulary: `tokenizer` must be a Tokenizer, got str"):
        check_vocabulary("gpt2", model)


def test_what_is_read_is_told_by_its_content(small, tmp_path):
    assert isinstance(read_tokenizer(small / "encoder.json"), Gpt2Tokenizer)
    assert isinstance(read_tokenizer(small / "tokenizer.bin"), LlamaTokenizer)
    with says(
        OSError,
        f"read_tokenizer: cannot read {tmp_path}: the folder must hold encoder.json and vocab.bpe, "
        "or gpt2-encoder.json and",
    ):
        read_tokenizer(tmp_path)
    with says(OSError, "no-file: no such file"):
        read_tokenizer(tmp_path / "no-file")
    for text in ('{"a": 0}', "#version: 0.2"):
        (tmp_path / "mine").write_text(text)
        with says(
            ValueError, "one of GPT-2's two files must have one of the names encoder.json, vocab.bpe, gpt2-encoder.json"
        ):
            read_tokenizer(tmp_path / "mine")
    (tmp_path / "encoder.json").write_text('{"a": 0}')
    with says(OSError, "vocab.bpe: no such file"):
        read_tokenizer(tmp_path / "encoder.json")


def test_gpt2_files_that_are_wrong(small, tmp_path):
    ids = json.loads((small / "encoder.json").read_text())

    def read(encoder, merges="a a\n"):
        (tmp_path / "encoder.json").write_bytes(encoder if isinstance(encoder, bytes) else json.dumps(encoder).encode())
        (tmp_path / "vocab.bpe").write_bytes(merges if isinstance(merges, bytes) else merges.encode())
        return read_tokenizer(tmp_path)

    assert read(ids).encode("aaa") == [ids["aa"], ids["a"]] == read(ids, "a a\r\n").encode("aaa")
    for bad in (len(ids), -1, 1.0, True, None, 2):
        with says(ValueError, f"the ids must be 0 … {len(ids) - 1}, once each, got "):
            read(ids | {"aa": bad})
    with says(ValueError, "a token must be written in GPT-2's letters for bytes, got 'a b'"):
        read(ids | {"a b": len(ids)})
    with says(ValueError, "there must be a token for every byte, got none for 0x61"):
        read({"b" * 9 if t == "a" else t: i for t, i in ids.items()})
    with says(ValueError, "line 2 must be two tokens made by the lines before it, got 'aa a'"):
        read(ids, "' s\naa a\n")
    with says(ValueError, "line 1 must be two tokens made by the lines before it, got ''"):
        read(ids, "")
    with says(ValueError, "line 1 must make a token that has an id, and was not made before, got 'b b'"):
        read(ids, "b b")
    with says(ValueError, "line 2 must make a token that has an id, and was not made before, got 'a a'"):
        read(ids, "a a\na a")
    with says(ValueError, "vocab.bpe: the file must be text in UTF-8"):
        read(ids, b"\xff")
    with says(ValueError, "encoder.json: the file must be JSON in UTF-8: the key 'a' occurs twice"):
        read(b'{"a": 0, "a": 1}')
    with says(ValueError, "encoder.json: the JSON must be an object, got [1]"):
        read([1])
    with says(ValueError, "encoder.json: the file must be JSON with fewer nested levels, got more than can be read"):
        read(b'{"a":' * 10**5)
    with says(ValueError, f"vocab.bpe: the file must have at most {LARGEST_TEXT} bytes, got {LARGEST_TEXT + 1}"):
        read(ids, b"\n" * (LARGEST_TEXT + 1))


def test_llama2c_tokenizers_that_are_wrong(tmp_path):
    def read(data):
        (tmp_path / "t.bin").write_bytes(data)
        return read_tokenizer(tmp_path / "t.bin")

    good = [*specials(), b" "]
    token = struct.pack("<fi", 0.0, 1) + b"a"
    assert read(llama_file(good, {})).vocabulary == 260
    with says(ValueError, "the file must begin with an int32, the greatest length of a token, got 3 bytes"):
        read(b"\0\0\0")
    with says(ValueError, "token 260 must have a score and a length, got 7 bytes"):
        read(llama_file(good, {}) + token[:7])
    with says(ValueError, "token 260 must have a length from 1 on, at most 6, with 0 bytes left, got 1"):
        read(llama_file(good, {}) + token[:8])
    for length in (0, -1, 7, 2**31 - 1):
        with says(ValueError, f"token 260 must have a length from 1 on, at most 6, with 9 bytes left, got {length}"):
            read(llama_file(good, {}) + struct.pack("<fi", 0.0, length) + bytes(9))
    for score in (float("nan"), float("inf")):
        with says(ValueError, f"token 260 must have a finite score, got {score}"):
            read(llama_file(good, {}) + struct.pack("<fi", score, 1) + b"a")
    with says(ValueError, "token 3 must be b'<0x00>', got b'x'"):
        read(llama_file([*good[:3], b"x", *good[4:]], {}))
    with says(ValueError, "token 5 must be b'<0x02>', got 'no such token'"):
        read(llama_file(good[:5], {}))
    with says(ValueError, "tokens must differ, got b'a' 2 times"):
        read(llama_file([*good, b"a", b"a"], {}))
    with says(ValueError, "there must be a token for the space, with which every text begins, got none"):
        read(llama_file(specials(), {}))


@given(st.data())
def test_damaged_files_are_refused_or_read(small, tmp_path_factory, data):
    where = tmp_path_factory.mktemp("damaged")
    for name in ("encoder.json", "vocab.bpe", "tokenizer.bin"):
        (where / name).write_bytes((small / name).read_bytes())
    name = data.draw(st.sampled_from(["encoder.json", "vocab.bpe", "tokenizer.bin"]))
    whole = (small / name).read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    patch = data.draw(st.just(None) | st.binary(min_size=1, max_size=4))
    (where / name).write_bytes(whole[:at] if patch is None else whole[:at] + patch + whole[at + len(patch) :])
    try:
        assert read_tokenizer(where / name).vocabulary
    except (ValueError, OSError) as error:
        assert str(error).startswith("read_tokenizer: ") and str(where) in str(error)
