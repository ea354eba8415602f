"""The identities of linearized and softmax attention, RoPE and the state, each with its two sides.

The right side is the definition, or the shortest sum; the left side reaches the same numbers by another road.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterable
from typing import Any

from ...attention.feature_maps import feature_map
from ...attention.linear_attention import (
    linear_attention,
    linear_attention_chunked,
    linear_attention_quadratic,
    linear_attention_recurrent,
)
from ...attention.rope import Rope, deinterleave, interleave
from ...attention.softmax_attention import softmax_attention, softmax_attention_shifted
from ...attention.state import State, absorb, join, no_text, remove, shift
from ...systems import Dependencies, seed_of
from ...systems.floats import array_namespace
from ..probes import exact_probe
from ..theorem import Case, Numbers, Sides, Theorem, record

# What is verified. A test that plants a bug replaces an entry.
FORMS: dict[str, Callable[..., Any]] = {
    "sum": linear_attention,
    "quadratic": linear_attention_quadratic,
    "recurrent": linear_attention_recurrent,
    "chunked": linear_attention_chunked,
    "softmax": softmax_attention,
    "softmax_shifted": softmax_attention_shifted,
}

# In a quick run, systems that round see every second of these, and of all that follow.
CASES = (
    Case(0, 3, 2, start=4),
    Case(1, 1, 1),
    Case(3, 2, 4, heads=((2,), (2,)), start=1),
    Case(3, 2, 1, heads=((2, 3), (2, 1)), rope=("interleaved", "before", 2)),
    Case(4, 4, 3, start=7, rope=("half", "after", 4)),
    Case(4, 5, 2, mask=2, start=2, rope=("interleaved", "after", 4)),
    Case(4, 2, 5, mask="full", chunk=3),
    Case(3, 4, 2, normalise=False, start=-3, rope=("half", "before", 2)),
    Case(4, 2, 3, phi="elu+1", rope=("half", "after", 2)),
    Case(4, 2, 1, heads=((2,), ()), mask=2, phi="polynomial(2)", chunk=5),
)
# Probes over three chunks; what they cost is their expected value in ℚ, O(n² r m).
LONG = (Case(40, 4, 1, start=3, rope=("half", "after", 4), chunk=16), Case(66, 4, 3, chunk=32))


def more_cases(seed: int) -> tuple[Case, ...]:
    """Longer texts around a chunk of 64, and forty shapes drawn from the seed."""
    rng = random.Random(seed_of("cases", seed))

    def draw() -> Case:
        n, d = rng.randint(0, 12), rng.randint(1, 6)
        layout, placement, turned = (
            rng.choice(["half", "interleaved"]),
            rng.choice(["after", "before"]),
            2 * rng.randint(0, d // 2),
        )
        return Case(
            n,
            d,
            rng.randint(0, 5),
            rng.choice([((), ()), ((2,), (2,)), ((2, 3), (2, 1)), ((3,), ())]),
            ("causal", "full", rng.randint(0, n))[rng.randrange(3)],
            rng.random() < 0.7,
            rng.choice([None, rng.randint(-5, 900)]),
            rng.choice([None, (layout, placement, turned)]),
            rng.choice(["identity", "polynomial(2)", "elu+1"]),
            rng.randint(1, 5),
        )

    return (*(Case(n, 2, 3, start=700, chunk=64) for n in (63, 64, 65)), *(draw() for _ in range(40)))


def problem(case: Case, numbers: Numbers) -> tuple[tuple[Any, Any, Any], dict[str, Any]]:
    """Arguments and options of linear_attention."""
    phi = feature(case)
    q, k = (numbers.draw(*heads, case.n, case.d) for heads in case.heads)
    v = numbers.draw(*case.heads[1], case.n, case.m)
    options: dict[str, Any] = {
        "phi": phi,
        "mask": case.mask,
        "normalise": case.normalise,
        "rope": case.rope and numbers.rope(*case.rope),
    }
    if case.start is not None:
        r = features(case)
        options["state"] = State(numbers.draw(*case.heads[1], r, case.m), numbers.draw(*case.heads[1], r), case.start)
    return (q, k, v), options


def feature(case: Case) -> Any:
    return feature_map(case.phi)


def features(case: Case) -> int:
    return (case.d + 1) ** 2 if case.phi == "polynomial(2)" else case.d


def states(name: str, left: State, right: State) -> Sides:
    """Two states are equal."""
    yield f"{name} S", left.S, right.S
    if right.z is not None:
        yield f"{name} z", left.z, right.z
    yield f"{name} position", left.position, right.position


def part(arrays: Iterable[Any], start: int, stop: int) -> list[Any]:
    return [x[..., start:stop, :] for x in arrays]


def tokens(*pieces: Any) -> Any:
    return array_namespace(pieces[0]).concat(list(pieces), axis=-2)


def equals_sum(form: str) -> Callable[[Case, Numbers], Sides]:
    def sides(case: Case, numbers: Numbers) -> Sides:
        arrays, options = problem(case, numbers)
        want, end = FORMS["sum"](*arrays, **options)
        o, last = FORMS[form](*arrays, **options, **({"chunk": case.chunk} if form == "chunked" else {}))
        yield "o", o, want
        yield from states("final", last, end)

    return sides


def split_invariance(case: Case, numbers: Numbers) -> Sides:
    arrays, options = problem(case, numbers)
    want, end = FORMS["sum"](*arrays, **options)
    for t in range(case.mask if isinstance(case.mask, int) else 0, case.n + 1):
        first, middle = FORMS["chunked"](*part(arrays, 0, t), **options, chunk=case.chunk)
        rest, last = FORMS["recurrent"](*part(arrays, t, case.n), **options | {"state": middle, "mask": "causal"})
        yield f"split at {t}: o", tokens(first, rest), want
        yield from states(f"split at {t}: final", last, end)


def softmax_options(case: Case, numbers: Numbers) -> dict[str, Any]:
    return {"mask": case.mask, "rope": case.rope and numbers.rope(case.rope[0], "before", min(case.rope[2], case.d))}


def softmax_shifted(case: Case, numbers: Numbers) -> Sides:
    arrays, options = problem(case, numbers)[0], softmax_options(case, numbers)
    yield "o", FORMS["softmax_shifted"](*arrays, **options)[0], FORMS["softmax"](*arrays, **options)[0]


def kv_cache(case: Case, numbers: Numbers) -> Sides:
    arrays, options = problem(case, numbers)[0], softmax_options(case, numbers)
    want, _ = FORMS["softmax"](*arrays, **options)
    for t in range(case.mask if isinstance(case.mask, int) else 0, case.n + 1):
        first, cache = FORMS["softmax_shifted"](*part(arrays, 0, t), **options)
        rest, _ = FORMS["softmax_shifted"](*part(arrays, t, case.n), **options | {"cache": cache, "mask": "causal"})
        yield f"split at {t}: o", tokens(first, rest), want


def rope_relative(case: Case, numbers: Numbers) -> Sides:
    x, y = numbers.draw(case.n, case.d), numbers.draw(case.n, case.d)
    xp = array_namespace(x)
    R = numbers.rope(case.rope[0], "after", case.rope[2])  # type: ignore[index]
    a, b = numbers.integers(-50, 1100, case.n), numbers.integers(-50, 1100, case.n)
    yield "R_b R_a x", R(R(x, a), b), R(x, [i + j for i, j in zip(a, b, strict=True)])
    yield "R_-a R_a x", R(R(x, a), [-i for i in a]), x
    turned = xp.sum(R(x, a) * R(y, b), axis=-1)
    yield "(R_a x)·(R_b y)", turned, xp.sum(x * R(y, [j - i for i, j in zip(a, b, strict=True)]), axis=-1)


def rope_layouts(case: Case, numbers: Numbers) -> Sides:
    x, at = numbers.draw(case.n, case.d), numbers.integers(-50, 1100, case.n)
    half = numbers.rope("half", "after", case.rope[2])  # type: ignore[index]
    pairs = case.rope[2] // 2  # type: ignore[index]
    P = interleave(x, pairs=pairs)
    yield "P R x", interleave(half(x, at), pairs=pairs), Rope(half.table, "interleaved")(P, at)
    yield "P⁻¹ P x", deinterleave(P, pairs=pairs), x


def state_monoid(case: Case, numbers: Numbers) -> Sides:
    rope, phi, r = case.rope and numbers.rope(*case.rope), feature(case), features(case)
    lengths = (case.n, 1, 2)
    k, v = (numbers.draw(*case.heads[1], sum(lengths), width) for width in (case.d, case.m))
    empty = no_text(v, r, case.m, lead=case.heads[1])
    ends = [sum(lengths[:i]) for i in range(4)]
    texts = [part((k, v), i, j) for i, j in itertools.pairwise(ends)]
    a, b, c = (absorb(empty, *text, phi=phi, rope=rope) for text in texts)

    def then(x: State, y: State) -> State:
        return join(x, y, rope=rope, phi=phi)

    yield from states("a(bc)", then(a, then(b, c)), then(then(a, b), c))
    yield from states("abc", then(then(a, b), c), absorb(empty, k, v, phi=phi, rope=rope))
    yield from states("a after no text", then(empty, a), a)
    yield from states("a before no text", then(a, empty), a)
    yield from states("ab without b", remove(then(a, b), b, rope=rope, phi=phi), a)


def shifted_state(case: Case, numbers: Numbers) -> Sides:
    arrays, options = problem(case, numbers)
    want, _ = FORMS["sum"](*arrays, **options)
    M, start = case.n // 2, options.pop("state", None)
    prompt, text = part(arrays, 0, M), part(arrays, M, case.n)
    empty = no_text(arrays[2], features(case), case.m, lead=case.heads[1])
    past = absorb(start or empty, *prompt[1:], phi=options["phi"], rope=options["rope"])
    for by in (-past.position, 5):
        moved = shift(past, by, rope=options["rope"], phi=options["phi"])
        o, last = FORMS["recurrent"](*text, **options, state=moved)
        yield f"shifted by {by}: o", o, want[..., M:, :]
        yield f"shifted by {by}: position", last.position, past.position + by + case.n - M


def causality(case: Case, numbers: Numbers) -> Sides:
    deps: Dependencies = numbers.system
    widths = zip((*case.heads, case.heads[1]), (case.d, case.d, case.m), strict=True)
    arrays = [deps.tokens((*heads, case.n, width)) for heads, width in widths]
    options: dict[str, Any] = {"phi": feature(case), "mask": case.mask, "normalise": case.normalise}
    options["rope"] = case.rope and numbers.rope(*case.rope)
    if case.start is not None:  # a past that depends on no token of this text
        r = features(case)
        options["state"] = State(deps.ones((*case.heads[1], r, case.m)), deps.ones((*case.heads[1], r)), case.start)
    P = {"full": case.n, "causal": 0}.get(str(case.mask), case.mask)
    each = deps.tokens((case.n, case.m))
    seen = tokens(each[:0, :], *(deps.sum(each[: max(t + 1, int(P)), :], axis=0)[None, :] for t in range(case.n)))
    for name in ("sum", "quadratic", "recurrent", "chunked"):
        o, _ = FORMS[name](*arrays, **options, **({"chunk": case.chunk} if name == "chunked" else {}))
        yield f"{name}: o", o, deps.broadcast_to(seen, o.shape)
    for name in ("softmax", "softmax_shifted"):
        o, _ = FORMS[name](*arrays, **softmax_options(case, numbers))
        yield f"{name}: o", o, deps.broadcast_to(seen, o.shape)


def exact_probes(case: Case, numbers: Numbers) -> Sides:
    shape = {
        "n": case.n,
        "r": case.d,
        "m": case.m,
        "mask": case.mask,
        "normalise": case.normalise,
        "start": case.start is not None,
    }
    probe = exact_probe(numbers.system, **shape, layout=case.rope and case.rope[0], seed=numbers.seed)  # type: ignore[arg-type]
    record(numbers.digest, probe.q, probe.k, probe.v)
    for name in ("sum", "quadratic", "recurrent", "chunked"):
        o, state = FORMS[name](
            probe.q, probe.k, probe.v, **probe.options, **({"chunk": case.chunk} if name == "chunked" else {})
        )
        yield f"{name}: o", o, probe.expected
        yield from states(f"{name}:", state, probe.expected_state)


ANY_FIELD = "a field; denominators ≠ 0"
SOFTMAX, ROTATION, STATE = ("real", "softmax attention"), ("ring", "a rotation"), ("ring", "a state")
KATHAROPOULOS = "Katharopoulos et al. 2020; with starting state and masks, our derivation"


def splits(case: Case) -> bool:
    return case.mask != "full"


def turns(case: Case) -> bool:
    return case.rope is not None


def moves(case: Case) -> bool:
    """Can a state be shifted under this placement and map?"""
    return case.rope is None or case.rope[1] == "after" or case.phi == "identity"


identity = functools.partial(Theorem, cases=CASES, more=more_cases)
IDENTITIES = (
    identity(
        "quadratic_eq_sum",
        "Masked scores give the output and state of the definition.",
        ANY_FIELD,
        KATHAROPOULOS,
        equals_sum("quadratic"),
    ),
    identity(
        "recurrent_eq_sum",
        "A running state gives the output and state of the definition.",
        ANY_FIELD,
        KATHAROPOULOS,
        equals_sum("recurrent"),
    ),
    identity(
        "chunked_eq_sum",
        "Chunks of any length give the output and state of the definition.",
        ANY_FIELD,
        KATHAROPOULOS,
        equals_sum("chunked"),
    ),
    identity(
        "split_invariance",
        "Prefill and decode, split anywhere, give what one pass over the whole text gives.",
        ANY_FIELD + "; causal, or split after the prefix",
        "our derivation",
        split_invariance,
        splits,
    ),
    identity(
        "softmax_shifted_eq_sum",
        "Subtracting the largest visible score changes nothing.",
        "a real, ordered system",
        "folklore",
        softmax_shifted,
        needs=SOFTMAX,
    ),
    identity(
        "kv_cache",
        "Softmax attention continued from its KV cache gives what one pass gives.",
        "a real, ordered system; causal, or split after the prefix",
        "folklore",
        kv_cache,
        splits,
        needs=SOFTMAX,
    ),
    identity(
        "rope_relative",
        "R_b R_a = R_{a+b}, R_{-a} undoes R_a, and (R_a x)·(R_b y) depends on b − a only.",
        "a ring; c² + s² = 1",
        "Su et al. 2021 (RoFormer)",
        rope_relative,
        turns,
        needs=ROTATION,
        phi=False,
    ),
    identity(
        "rope_layouts",
        "One permutation carries the half layout into the interleaved one.",
        "a ring",
        "our derivation",
        rope_layouts,
        turns,
        needs=ROTATION,
        phi=False,
    ),
    identity(
        "state_monoid",
        "Joining is associative, no text is neutral, remove undoes, and the join is the state of the joined text.",
        "a ring; RoPE after φ, or φ = identity",
        "our derivation",
        state_monoid,
        moves,
        needs=STATE,
    ),
    identity(
        "shift",
        "A shifted state, read from its new position, gives the output of the whole text.",
        ANY_FIELD + "; causal; RoPE after φ, or φ = identity",
        "Chen et al. 2024, as read in notes on it",
        shifted_state,
        lambda case: moves(case) and case.mask == "causal",
        ours="RoPE before the kernel",
    ),
    identity(
        "exact_probes",
        "Where no operation rounds, every form equals the definition over ℚ bit for bit.",
        "sums and denominators the format holds exactly; φ = identity",
        "our derivation",
        exact_probes,
        ways=("probe",),
        cases=(*CASES, LONG[0]),
        more=lambda seed: (LONG[1], *more_cases(seed)),
    ),
    identity(
        "causality",
        "Token t depends on exactly the tokens that its mask lets it see.",
        "none: by structure, in every form",
        "our derivation",
        causality,
        ways=("structure",),
    ),
)
