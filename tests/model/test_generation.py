"""Text from a model: greedy is the argmax of full passes, draws have the right distribution, and
nothing is read twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

import refimpl as ri
from refimpl import GF, MP, QQ, Config, Float, NotDefined, Rotary, convert, generate, random_model
from refimpl.model import generation
from refimpl.model.rwkv import Rwkv
from tests.helpers.assertions import says

SMALL = {"layers": 2, "width": 6, "heads": 2, "d": 4, "m": 3, "hidden": 5, "vocabulary": 23, "tied": False}
CONFIGS: dict[str, Any] = {
    "linear": Config(**SMALL, rope=Rotary(width=4)),
    "softmax": Config(**SMALL, phi="softmax", rope=Rotary(width=4, placement="before")),
    "table": Config(**SMALL, phi="softmax", table=30, biased=True),
    "RWKV-4": Rwkv("4", 2, 6, 1, 5, 23),
    "RWKV-5.1": Rwkv("5.1", 2, 6, 2, 5, 23),
    "RWKV-5.2": Rwkv("5.2", 2, 6, 2, 5, 23),
    "RWKV-7": Rwkv("7", 2, 6, 2, 5, 23, (2, 3, 2, 3)),
}
DEFINITION = {"linear": ri.linear_attention, "softmax": ri.softmax_attention, "table": ri.softmax_attention}
KINDS = pytest.mark.parametrize("kind", CONFIGS)
TEXT = [3, 1, 4, 1, 5, 9, 2, 6]


def model(kind: str = "linear") -> ri.Model:
    """One that says more than one thing."""
    found = random_model(Float(), CONFIGS[kind], seed=2)
    return ri.Model(
        found.config, {name: 2 * x if name.endswith(("W_V", "W_O")) else x for name, x in found.weights.items()}
    )


def from_scratch(m: ri.Model, text: list[int], n: int, form: Any) -> list[int]:
    """Greedy, by the definition: for each id one pass over all that stands before it."""
    ids = list(text)
    for _ in range(n):
        ids.append(int(np.argmax(ri.floats(m(ids, form=form))[-1])))
    return ids[len(text) :]


@KINDS
def test_greedy_is_the_argmax_of_full_passes(kind: str) -> None:
    m = model(kind)
    want = from_scratch(m, TEXT, 20, DEFINITION.get(kind, "sum"))
    assert list(generate(m, TEXT, 20)) == want and len(set(want)) >= 3, want
    assert list(generate(m, TEXT[:1], 1)) == from_scratch(m, TEXT[:1], 1, DEFINITION.get(kind, "sum"))


@KINDS
@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 7}], ids=["greedy", "drawn"])
def test_a_converted_prompt_goes_on_as_the_prompt_would(kind: str, options: Any) -> None:
    m = model(kind)
    want = list(generate(m, TEXT, 12, **options))
    for M in (1, 5):
        for restart in (False,) if kind == "table" else (True, False):
            assert list(generate(convert(m, TEXT[:M], restart=restart), TEXT[M:], 12, **options)) == want
    twice = convert(convert(m, TEXT[:3], restart=kind != "table"), TEXT[3:5], restart=kind != "table")
    assert list(generate(twice, TEXT[5:], 12, **options)) == want
    assert options or list(generate(m, TEXT[5:], 12)) != want  # the prompt does matter


@pytest.mark.parametrize("system", [QQ, MP(30), Float("numpy", "float32")], ids=str)
def test_other_numbers(system: Any) -> None:
    config = Config(layers=2, width=3, heads=1, d=2, m=2, vocabulary=11, phi="identity", norm="none", normalise=False)
    exact = random_model(QQ, config, seed=3)
    m = exact if system is QQ else ri.Model(config, {name: system.convert(x) for name, x in exact.weights.items()})
    want = from_scratch(exact, [3, 1, 4], 4, ri.linear_attention)
    assert list(generate(m, [3, 1, 4], 4)) == want
    assert list(generate(m, [3, 1, 4], 4, temperature=1e-9)) == want


# What is drawn


def surprise(counts: Any, p: Any) -> float:
    """How probable counts at least so far from N p are, by the χ² statistic; cells are joined where
    N p < 5.
    """
    expected = np.asarray(p) * counts.sum()
    few = expected < 5
    pair = [np.append(x[~few], x[few].sum()) if few.any() else x for x in (counts, expected)]
    return float(stats.chi2.sf(((pair[0] - pair[1]) ** 2 / pair[1]).sum(), len(pair[0]) - 1))


def softmax(logits: Any, T: float) -> Any:
    p = np.exp((logits - logits.max(-1, keepdims=True)) / T)
    return p / p.sum(-1, keepdims=True)


@pytest.mark.parametrize("T", [0.3, 2.5])
def test_ids_come_as_often_as_softmax_says(T: float) -> None:
    """10 000 draws; a right distribution would fail 1 in 10⁶ seeds, and this seed is fixed. Another
    temperature is noticed.
    """
    logits, rng = np.array([2.0, -1, 0.5, 0.5, -30, 1.5]), np.random.default_rng(1)
    counts = np.bincount([generation.choose_token(logits, T, rng) for _ in range(10_000)], minlength=6)
    assert surprise(counts, softmax(logits, T)) > 1e-6 and counts[4] == (0 if T < 2 else counts[4])
    for wrong in (1.2 * T, 1 / T):
        assert surprise(counts, softmax(logits, wrong)) < 1e-6


def test_two_ids_in_a_row_have_their_joint_distribution() -> None:
    """p(a, b) = p(a) p(b | a), over 500 seeds: the second is drawn anew, and from what the first
    makes of the text.
    """
    m, T = random_model(Float(), Config(layers=1, width=4, d=3, m=3, vocabulary=3), seed=3), 1.3
    first = softmax(m([1, 0])[-1], T)
    joint = np.array([first[a] * softmax(m([1, 0, a])[-1], T) for a in range(3)])
    counts = np.zeros((3, 3))
    for seed in range(500):
        a, b = generate(m, [1, 0], 2, temperature=T, seed=seed)
        counts[a, b] += 1
    assert surprise(counts.ravel(), joint.ravel()) > 1e-6
    assert (
        surprise(counts.ravel(), np.outer(first, first).ravel()) < 1e-6
    )  # what a second draw from the first logits would give


def test_the_seed_decides() -> None:
    drawn = [list(generate(model(), TEXT, 30, temperature=1.5, seed=seed)) for seed in (0, 0, 1, 2**80)]
    assert drawn[0] == drawn[1] and len({tuple(ids) for ids in drawn}) == 3
    # greedy draws nothing
    assert list(generate(model(), TEXT, 30, seed=1)) == list(generate(model(), TEXT, 30))


@pytest.mark.parametrize("T", [1e-3, 1e-12, 1e-308, 5e-324])
def test_near_temperature_0_the_likeliest_is_drawn(T: float) -> None:
    """And no warning of an overflow is given: warnings are errors here."""
    logits = np.array([1.0, 3, -700, 2.9])
    assert {generation.choose_token(logits, T, np.random.default_rng(seed)) for seed in range(50)} == {1}
    assert list(generate(model(), TEXT, 12, temperature=T)) == list(generate(model(), TEXT, 12))


def test_of_equals_greedy_takes_the_first_and_a_draw_takes_each() -> None:
    logits = np.array([0.0, 2, 2, 2])
    assert generation.choose_token(logits, 0, np.random.default_rng(0)) == 1
    counts = np.bincount(
        [generation.choose_token(logits, 5e-324, np.random.default_rng(seed)) for seed in range(600)], minlength=4
    )
    assert counts[0] == 0 and surprise(counts[1:], np.full(3, 1 / 3)) > 1e-6


def test_far_from_temperature_0_all_are_equal() -> None:
    rng = np.random.default_rng(0)
    counts = np.bincount(
        [generation.choose_token(np.array([0.0, 50, 100]), 1.7e308, rng) for _ in range(3000)], minlength=3
    )
    assert surprise(counts, np.full(3, 1 / 3)) > 1e-6


# How it reads


def test_each_id_is_read_once_and_only_when_it_is_needed(monkeypatch: Any) -> None:
    seen: list[int] = []
    real = generation.read_tokens
    monkeypatch.setattr(generation, "read_tokens", lambda m, ids: seen.append(len(ids)) or real(m, ids))  # type: ignore[func-returns-value]
    ids = generate(model(), TEXT, 4)
    assert seen == [8]
    next(ids)
    assert seen == [8]
    # nothing follows the last one, which is not read
    assert len(list(ids)) == 3 and seen == [8, 1, 1, 1]
    assert not list(generate(model(), TEXT, 0)) and seen[4:] == [8]


def test_the_last_position_of_a_table_can_be_reached() -> None:
    m = model("table")
    assert len(list(generate(m, TEXT, 23))) == 23 and len(list(generate(m, [1] * 30, 1))) == 1
    assert list(generate(m, TEXT, 23)) == from_scratch(m, TEXT, 23, ri.softmax_attention)


def test_the_model_stays_as_it_was() -> None:
    m = convert(model(), TEXT)
    for x in (*m.weights.values(), *(x for b in m.biases or () for x in (b.S, b.z))):
        x.flags.writeable = False
    first, second = generate(m, [1], 9), generate(m, [1], 9)
    assert [pair for pair in zip(first, second, strict=True)] == [(i, i) for i in generate(m, [1], 9)]  # noqa: C416


# What is refused


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((TEXT, -1), {}, ValueError, "generate: `tokens` must be an integer ≥ 0, got -1"),
        ((TEXT, 1.5), {}, ValueError, "generate: `tokens` must be an integer ≥ 0, got 1.5"),
        ((TEXT, True), {}, ValueError, "generate: `tokens` must be an integer ≥ 0, got True"),
        ((TEXT, 1), {"seed": -1}, ValueError, "generate: `seed` must be an integer ≥ 0, got -1"),
        ((TEXT, 1), {"seed": "x"}, ValueError, "generate: `seed` must be an integer ≥ 0, got 'x'"),
        ((TEXT, 1), {"temperature": -0.5}, ValueError, "generate: `temperature` must be a finite number ≥ 0, got -0.5"),
        (
            (TEXT, 1),
            {"temperature": float("nan")},
            ValueError,
            "generate: `temperature` must be a finite number ≥ 0, got nan",
        ),
        (
            (TEXT, 1),
            {"temperature": float("inf")},
            ValueError,
            "generate: `temperature` must be a finite number ≥ 0, got inf",
        ),
        ((TEXT, 1), {"temperature": True}, ValueError, "generate: `temperature` must be a finite number ≥ 0, got True"),
        (
            (TEXT, 1),
            {"temperature": "hot"},
            ValueError,
            "generate: `temperature` must be a finite number ≥ 0, got 'hot'",
        ),
        (([], 1), {}, ValueError, "generate: `text` must be one text of token ids, one or more, got none"),
        (
            ([[1, 2], [3, 4]], 1),
            {},
            ValueError,
            "generate: `text` must be one text of token ids, one or more, got a batch of shape (2, 2)",
        ),
        (
            (np.ones((3, 6)), 1),
            {},
            ValueError,
            "generate: `text` must be one text of token ids, one or more, got vectors",
        ),
        (
            ("text", 1),
            {},
            TypeError,
            "generate: `text` must be token ids (..., tokens) or an array of vectors, got 'text'",
        ),
        (([1, 23], 1), {}, ValueError, "generate: `text` must hold ids from 0 to 22, got 23 at token 1"),
    ],
)
def test_what_is_refused(arguments: Any, options: Any, error: type, message: str) -> None:
    with says(error, message) as raised:
        generate(model(), *arguments, **options)  # before the first id is asked for
    assert str(raised.value) == message


def test_models_that_are_refused() -> None:
    with says(TypeError, "generate: `model` must be a Model, got str"):
        generate("model", TEXT, 1)  # type: ignore[arg-type]
    with says(ValueError, "generate: `model` must have a vocabulary, got one from vectors to vectors"):
        generate(random_model(Float(), Config(layers=1, width=4), 0), [1], 1)
    with says(NotDefined, "maximum is not defined in GF(10007); generate needs an ordered system"):
        generate(
            random_model(GF(10007), Config(layers=1, width=2, norm="none", phi="identity", vocabulary=3), 0), [1], 1
        )
    for kind in ("linear", "softmax", "RWKV-5.2"):
        with says(ValueError, "generate: `model` must carry one prompt, got a batch of shape (2,)"):
            generate(convert(model(kind), [[1, 2], [3, 4]]), [1], 1)
    with says(ValueError, "generate: `tokens` must be at most 23 after this text, for a table of 30 positions, got 24"):
        generate(model("table"), TEXT, 24)
    with says(ValueError, "generate: `tokens` must be at most 20 after this text, for a table of 30 positions, got 21"):
        generate(convert(model("table"), [1, 2, 3], restart=False), TEXT, 21)
    with says(
        ValueError,
        "transformer: `text` must fit the table of 30 absolute positions, got 31 tokens read from position 0 on",
    ):
        generate(model("table"), [1] * 31, 1)
