"""The identities of linearized and softmax attention, RoPE and the state, each with its two sides.

The right side is the definition, or the shortest sum; the left side is another program for it.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from ...arrays import Array
from ...attention.feature_maps import Kernel
from ...attention.linear_attention import State
from ...attention.rope import Rope
from ...attention.state import no_text
from ...systems import Dependencies, seed_of
from ...systems.floats import array_namespace
from ..cases import Case, ModelCase
from ..implementation import Implementation
from ..probes import Probe, exact_probe
from ..theorem import DERIVED, Numbers, Sides, Theorem, record

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
# Shapes that people use. Forms run with their default chunks, of 128 tokens for one head and of 64
# for eight, and blocks of 256 rows; the definition takes O(n² d m) for each head of keys. The first
# group is long, wide and far out, the second has many heads, the third is for floats.
USUAL = (
    (
        Case(257, 65, 1, ((8,), (1,)), start=90, millions=1, rope=("half", "after", 64), chunk=None),
        Case(385, 66, 1, ((4,), ()), start=7, millions=3, rope=("interleaved", "after", 66), chunk=None),
        Case(300, 129, 1, ((5,), ()), 258, start=5, millions=1, rope=("half", "after", 128), chunk=None),
        Case(513, 67, 1, ((8,), (1,)), start=3, millions=2, rope=("interleaved", "before", 66), chunk=None),
        Case(258, 128, 1, ((6,), ()), "full", start=0, millions=1, rope=("half", "before", 128), chunk=None),
    ),
    (
        Case(65, 2, 65, ((8,), (8,)), start=5000, rope=("half", "before", 2), chunk=None),
        Case(63, 3, 64, ((9,), (9,)), start=1, rope=("interleaved", "after", 2), chunk=None),
        Case(129, 2, 33, ((12, 2), (12, 1)), 65, normalise=False, start=-5, chunk=None),
        Case(64, 1, 128, ((8,), (8,)), phi="polynomial(2)", start=10, chunk=None),
        Case(128, 3, 8, ((2, 8), (2, 8)), start=4096, rope=("half", "after", 2), chunk=None),
    ),
    (
        Case(130, 5, 2, ((5,), (5,)), start=4096, rope=("half", "after", 4), phi="elu+1", chunk=None),
        Case(129, 67, 1, ((6,), (1,)), 70, phi="elu+1", chunk=None),
        Case(259, 3, 2, ((2,), (1,)), start=40, rope=("interleaved", "before", 2), phi="elu+1", chunk=None),
    ),
)
# For floats: rows of over 512 scores, and a long prefix that begins far before 0
LONG_ROWS = Case(516, 1, 1, phi="elu+1", chunk=None)
LONG_PREFIX = Case(1029, 2, 1, mask=1026, start=-5000, rope=("half", "after", 2), phi="elu+1", chunk=None)
# For rotations; their positions are drawn, up to 2²¹.
TURNED = (
    tuple(
        Case(9, d, 1, rope=(layout, "after", turned), chunk=None)
        for d, turned in ((65, 64), (129, 128), (200, 130))
        for layout in ("half", "interleaved")
    ),
)
# For softmax, in floats
SOFTMAX = (
    (
        Case(130, 65, 2, ((6,), (1,)), rope=("half", "before", 64), chunk=None),
        Case(129, 4, 3, ((8,), (8,)), 70, rope=("interleaved", "before", 4), chunk=None),
        Case(258, 3, 1, ((2,), ()), chunk=None),
        Case(257, 2, 66, mask="full", chunk=None),
    ),
    (Case(1026, 2, 1, mask=800, chunk=None), Case(1030, 1, 2, mask=700, rope=("half", "before", 0), chunk=None)),
)
CACHED = (
    (
        Case(1027, 3, 2, rope=("half", "before", 2), chunk=None),
        Case(1030, 67, 1, rope=("interleaved", "before", 66), chunk=None),
    ),
    (
        Case(129, 3, 2, ((5,), ()), chunk=None),
        Case(130, 2, 3, ((8,), (8,)), rope=("interleaved", "before", 2), chunk=None),
    ),
)
ABSORBED = (
    Case(1001, 3, 2, start=5, rope=("half", "after", 2), chunk=None),
    Case(1030, 4, 1, start=5, rope=("interleaved", "before", 4), chunk=None),
)
SEEN = (
    (
        Case(130, 1, 1, chunk=None),
        Case(66, 2, 1, ((8,), (8,)), start=5, chunk=None),
        Case(129, 1, 1, mask=100, chunk=None),
    ),
)
PROBED = (
    (
        Case(130, 66, 1, start=3, rope=("half", "after", 66), chunk=None),
        Case(257, 5, 3, rope=("interleaved", "after", 4), chunk=None),
        Case(258, 9, 1, mask=140, normalise=False, start=3, rope=("half", "after", 8), chunk=None),
        Case(300, 4, 3, mask="full", chunk=None),
    ),
)
# Probes over three chunks each.
LONG = (Case(40, 4, 1, start=3, rope=("half", "after", 4), chunk=16), Case(66, 4, 3, chunk=32))


def more_cases(seed: int) -> tuple[Case, ...]:
    """Longer texts around a chunk of 64, and forty shapes drawn from the seed."""
    rng = random.Random(seed_of("cases", seed))

    def draw() -> Case:
        n, d = rng.randint(0, 12), rng.randint(1, 6)
        layout, placement = rng.choice(["half", "interleaved"]), rng.choice(["after", "before"])
        rope = (layout, placement, 2 * rng.randint(0, d // 2))
        m, heads = rng.randint(0, 5), rng.choice([((), ()), ((2,), (2,)), ((2, 3), (2, 1)), ((3,), ())])
        mask, normalise = ("causal", "full", rng.randint(0, n))[rng.randrange(3)], rng.random() < 0.7
        start, turned = rng.choice([None, rng.randint(-5, 900)]), rng.choice([None, rope])
        phi = rng.choice(["identity", "polynomial(2)", "elu+1"])
        return Case(n, d, m, heads, mask, normalise, start, turned, phi, rng.randint(1, 5))

    return (*(Case(n, 2, 3, start=700, chunk=64) for n in (63, 64, 65)), *(draw() for _ in range(40)))


def problem(case: Case, numbers: Numbers) -> tuple[list[Array], dict[str, Any]]:
    """q, k, v and the options of linear_attention."""
    arrays = [numbers.draw(*shape) for shape in attention_shapes(case)]
    return arrays, attention_options(case, numbers, numbers.draw)


def attention_shapes(case: Case) -> Iterator[tuple[int, ...]]:
    """The shapes of q, k and v."""
    widths = zip((*case.heads, case.heads[1]), (case.d, case.d, case.m), strict=True)
    return ((*heads, case.n, width) for heads, width in widths)


def attention_options(case: Case, numbers: Numbers, draw: Callable[..., Array]) -> dict[str, Any]:
    """Kernel, mask and, if the case has one, a starting state from draw(*shape)."""
    options: dict[str, Any] = {"kernel": kernel(case, numbers), "mask": case.mask}
    if case.start is not None:
        lead, r = case.heads[1], feature_count(case)
        options["state"] = State(draw(*lead, r, case.m), draw(*lead, r), case.position)
    return options


def kernel(case: Case, numbers: Numbers) -> Kernel:
    return Kernel(case.phi, numbers.rope(*case.rope) if case.rope else None, case.normalise)


def linear_forms(case: Case, impl: Implementation) -> dict[str, Callable[..., Any]]:
    """The forms of linear attention, with the chunk of the case."""
    options = {} if case.chunk is None else {"chunk": case.chunk}
    return {
        "sum": impl.linear_attention,
        "quadratic": impl.linear_attention_quadratic,
        "recurrent": impl.linear_attention_recurrent,
        "chunked": functools.partial(impl.linear_attention_chunked, **options),
    }


def large(case: Case | ModelCase) -> bool:
    """Is it a shape that people use?"""
    return case.chunk is None


def split_points(case: Case) -> Iterable[int]:
    """Where a text is split: everywhere, or a long text in the middle and near its end."""
    first = case.mask if isinstance(case.mask, int) else 0
    return (max(first, case.n // 2), case.n - 3) if large(case) else range(first, case.n + 1)


def feature_count(case: Case) -> int:
    """The number of features of a key."""
    return (case.d + 1) ** 2 if case.phi == "polynomial(2)" else case.d


def states(name: str, left: State, right: State) -> Sides:
    """Two states are equal."""
    yield f"{name} S", left.S, right.S
    if right.z is not None:
        yield f"{name} z", left.z, right.z
    yield f"{name} position", left.position, right.position


def part(arrays: Iterable[Array], start: int, stop: int) -> list[Array]:
    """The tokens from start to stop of each array."""
    return [x[..., start:stop, :] for x in arrays]


def tokens(*pieces: Any) -> Any:
    """One text after another."""
    return array_namespace(pieces[0]).concat(list(pieces), axis=-2)


def equals_sum(form: str, subject: str, *more: tuple[Case, ...]) -> Theorem:
    """The theorem that a form of linear attention equals the definition."""

    def sides(case: Case, numbers: Numbers, impl: Implementation) -> Sides:
        arrays, options = problem(case, numbers)
        want, end = impl.linear_attention(*arrays, **options)
        o, last = linear_forms(case, impl)[form](*arrays, **options)
        yield "o", o, want
        yield from states("final", last, end)

    statement = f"{subject} the output and state of the definition."
    options = {"name": f"{form}_eq_sum", "statement": statement, "usual": (*USUAL, *more)}
    return identity(sides, ANY_FIELD, KATHAROPOULOS, **options)


def split_invariance(case: Case, numbers: Numbers, impl: Implementation) -> Sides:
    """Prefill and decode, split anywhere, give the output of one pass over the text."""
    arrays, options = problem(case, numbers)
    want, end = impl.linear_attention(*arrays, **options)
    for t in split_points(case):
        first, middle = linear_forms(case, impl)["chunked"](*part(arrays, 0, t), **options)
        now = options | {"state": middle, "mask": "causal"}
        rest, last = impl.linear_attention_recurrent(*part(arrays, t, case.n), **now)
        yield f"split at {t}: o", tokens(first, rest), want
        yield from states(f"split at {t}: final", last, end)


def softmax_options(case: Case, numbers: Numbers) -> dict[str, Any]:
    return {"mask": case.mask, "rope": case.rope and numbers.rope(case.rope[0], "before", min(case.rope[2], case.d))}


def softmax_shifted_eq_sum(case: Case, numbers: Numbers, impl: Implementation) -> Sides:
    """Subtracting the largest visible score changes nothing."""
    arrays, options = problem(case, numbers)[0], softmax_options(case, numbers)
    yield "o", impl.softmax_attention_shifted(*arrays, **options)[0], impl.softmax_attention(*arrays, **options)[0]


def kv_cache(case: Case, numbers: Numbers, impl: Implementation) -> Sides:
    """Softmax attention continued from its KV cache gives the output of one pass.

    A long text is split near its beginning and near its end. Only its last rows are compared,
    with a plain sum.
    """
    arrays, options = problem(case, numbers)[0], softmax_options(case, numbers)
    last = case.n - 3 if large(case) else 0
    q, k, v = arrays
    want = (
        softmax_rows(q, k, v, options["rope"], last) if large(case) else impl.softmax_attention(q, k, v, **options)[0]
    )
    for t in (case.n // 4, last) if large(case) else split_points(case):
        first, cache = impl.softmax_attention_shifted(*part(arrays, 0, t), **options)
        now = options | {"cache": cache, "mask": "causal"}
        rest, after = impl.softmax_attention_shifted(*part(arrays, t, case.n), **now)
        yield f"split at {t}: o", tokens(first, rest)[..., last:, :], want
        yield f"split at {t}: position", after.position, case.n


def softmax_rows(q: Array, k: Array, v: Array, rope: Rope | None, first: int) -> Any:
    """Causal softmax attention of the tokens from `first` on, each by its sum."""
    xp, n, d = array_namespace(q), q.shape[-2], q.shape[-1]
    q, k = (q, k) if rope is None else (rope(q, range(n)), rope(k, range(n)))
    root, rows = xp.sqrt(xp.ones_like(q[..., :1, :1]) * d), []
    for t in range(first, n):
        weights = xp.exp(xp.sum(q[..., t : t + 1, :] * k[..., : t + 1, :], axis=-1)[..., None, :] / root)
        rows.append(weights @ v[..., : t + 1, :] / xp.sum(weights, axis=-1, keepdims=True))
    return tokens(*rows)


def positions(case: Case, numbers: Numbers) -> tuple[list[int], list[int]]:
    """Two positions for each token: of a large case, one far out and one near 0, or both far."""
    if not large(case):
        return numbers.integers(-50, 1100, case.n), numbers.integers(-50, 1100, case.n)
    far, near = numbers.integers(4000, 2**21, case.n), numbers.integers(-64, 64, case.n // 2)
    return far, near + numbers.integers(4000, 10**4, case.n - case.n // 2)


def rope_relative(case: Case, numbers: Numbers, impl: Implementation) -> Sides:
    """R_b R_a = R_{a+b}, R_{-a} undoes R_a, and (R_a x)·(R_b y) depends on b − a only."""
    assert case.rope
    x, y = numbers.draw(case.n, case.d), numbers.draw(case.n, case.d)
    drawn = numbers.rope(case.rope[0], "after", case.rope[2])
    R = impl.rope(drawn.table, drawn.layout)
    a, b = positions(case, numbers)
    yield "R_b R_a x", R(R(x, a), b), R(x, [i + j for i, j in zip(a, b, strict=True)])
    yield "R_-a R_a x", R(R(x, a), [-i for i in a]), x
    xp = array_namespace(x)
    turned = xp.sum(R(x, a) * R(y, b), axis=-1)
    yield "(R_a x)·(R_b y)", turned, xp.sum(x * R(y, [j - i for i, j in zip(a, b, strict=True)]), axis=-1)


def rope_layouts(case: Case, numbers: Numbers, impl: Implementation) -> Sides:
    """One permutation maps the half layout to the interleaved one."""
    x, (at, _) = numbers.draw(case.n, case.d), positions(case, numbers)
    assert case.rope
    table, pairs = numbers.rope("half", "after", case.rope[2]).table, case.rope[2] // 2
    P = impl.interleave(x, pairs=pairs)
    half, interleaved = impl.rope(table, "half"), impl.rope(table, "interleaved")
    yield "P R x", impl.interleave(half(x, at), pairs=pairs), interleaved(P, at)
    yield "P⁻¹ P x", impl.deinterleave(P, pairs=pairs), x


def state_monoid(case: Case, numbers: Numbers, impl: Implementation) -> Sides:
    """States are a monoid: `join` gives the state of the joined text, and `remove` undoes it.

    Of a pair of maps, only φ_k enters a state.
    """
    K, lengths, at = kernel(case, numbers), (case.n, 1, 2), case.position
    k, v = (numbers.draw(*case.heads[1], sum(lengths), width) for width in (case.d, case.m))
    empty = no_text(v, feature_count(case), case.m, lead=case.heads[1], position=at)
    ends = itertools.accumulate(lengths, initial=0)
    a, b, c = (impl.absorb(empty, *part((k, v), i, j), K) for i, j in itertools.pairwise(ends))

    def then(x: State, y: State) -> Any:
        return impl.join(x, y, K, origin=at)

    yield from states("a(bc)", then(a, then(b, c)), then(then(a, b), c))
    yield from states("abc", then(then(a, b), c), impl.absorb(empty, k, v, K))
    yield from states("a after no text", then(empty, a), a)
    yield from states("a before no text", then(a, empty), a)
    yield from states("ab without b", impl.remove(then(a, b), b, K, origin=at), a)
    pair = replace(K, phi=(lambda x: 2 * K.maps[0](x), K.maps[1]))
    yield from states("abc by a pair of maps", impl.absorb(empty, k, v, pair), impl.absorb(empty, k, v, K))


def shifted_state(case: Case, numbers: Numbers, impl: Implementation) -> Sides:
    """A shifted state, read from its new position, gives the output of the whole text."""
    arrays, options = problem(case, numbers)
    want, _ = impl.linear_attention(*arrays, **options)
    M, start = case.n // 2, options.pop("state", None)
    prompt, text = part(arrays, 0, M), part(arrays, M, case.n)
    empty = no_text(arrays[2], feature_count(case), case.m, lead=case.heads[1])
    past = impl.absorb(start or empty, *prompt[1:], options["kernel"])
    for name, by in (("shifted to 0", -past.position), ("shifted by 5", 5)):
        moved = impl.shift(past, by, options["kernel"])
        o, last = impl.linear_attention_recurrent(*text, **options, state=moved)
        yield f"{name}: o", o, want[..., M:, :]
        yield f"{name}: position", last.position, past.position + by + case.n - M


def causality(case: Case, numbers: Numbers, impl: Implementation) -> Sides:
    """Token t depends on exactly the tokens that its mask lets it see."""
    deps: Dependencies = numbers.system
    arrays = [deps.tokens(shape) for shape in attention_shapes(case)]
    options = attention_options(case, numbers, lambda *shape: deps.ones(shape))  # a past that depends on no token
    P = {"full": case.n, "causal": 0}.get(str(case.mask), case.mask)
    each = deps.tokens((case.n, case.m))
    seen = tokens(each[:0, :], *(deps.sum(each[: max(t + 1, int(P)), :], axis=0)[None, :] for t in range(case.n)))
    softmax = {"softmax": impl.softmax_attention, "softmax_shifted": impl.softmax_attention_shifted}
    for name, form in (linear_forms(case, impl) | softmax).items():
        o, _ = form(*arrays, **softmax_options(case, numbers) if name in softmax else options)
        yield f"{name}: o", o, deps.broadcast_to(seen, o.shape)


def draw_probe(case: Case, numbers: Numbers) -> Probe:
    """The probe of this shape; its numbers go into the digest."""
    shape = {"n": case.n, "r": case.d, "m": case.m, "seed": numbers.seed}
    options = {"mask": case.mask, "normalise": case.normalise, "start": case.start is not None}
    layout = case.rope[0] if case.rope else None
    probe = exact_probe(numbers.system, **shape, **options, layout=layout)  # type: ignore[arg-type]
    record(numbers.digest, probe.q, probe.k, probe.v)
    return probe


def exact_probes(case: Case, numbers: Numbers, impl: Implementation) -> Sides:
    """Where no operation rounds, every form equals the definition over ℚ bit for bit."""
    probe = draw_probe(case, numbers)
    for name, form in linear_forms(case, impl).items():
        o, state = form(probe.q, probe.k, probe.v, **probe.options)
        yield f"{name}: o", o, probe.expected
        yield from states(f"{name}:", state, probe.expected_state)


def splits(case: Case) -> bool:
    """Can the text be read in two passes?"""
    return case.mask != "full"


def turns(case: Case) -> bool:
    return case.rope is not None


def moves(case: Case) -> bool:
    """Can a state be shifted under this placement and map?"""
    return case.rope is None or case.rope[1] == "after" or case.phi == "identity"


identity = functools.partial(Theorem.of, cases=CASES, more=more_cases, usual=USUAL, group="attention")
softmax_identity = functools.partial(identity, needs=("real", "softmax attention"), usual=SOFTMAX, group="softmax")
rotation = functools.partial(identity, needs=("ring", "a rotation"), phi=False, usual=TURNED, group="RoPE")
ANY_FIELD, REAL = "a field; denominators ≠ 0", "a real, ordered system"
KATHAROPOULOS = "Katharopoulos et al. 2020; with starting state and masks, our derivation"
MOVES, IN_TWO = "RoPE after φ, or φ = identity", "causal, or split after the prefix"
WITHIN = "sums and denominators the format holds exactly; φ = identity"
LONGER: dict[str, Any] = {
    "usual": PROBED,
    "cases": (*CASES, LONG[0]),
    "more": lambda seed: (LONG[1], *more_cases(seed)),
}
ORDER = 1
THEOREMS = (
    equals_sum("quadratic", "Masked scores give", (LONG_ROWS,)),
    equals_sum("recurrent", "A running state gives"),
    equals_sum("chunked", "Chunks of any length give", (LONG_PREFIX,)),
    identity(split_invariance, f"{ANY_FIELD}; {IN_TWO}", DERIVED, splits),
    softmax_identity(softmax_shifted_eq_sum, REAL, "folklore"),
    softmax_identity(kv_cache, f"{REAL}; {IN_TWO}", "folklore", splits, usual=CACHED),
    rotation(rope_relative, "a ring; c² + s² = 1", "Su et al. 2021 (RoFormer)", turns),
    rotation(rope_layouts, "a ring", DERIVED, turns),
    identity(state_monoid, f"a ring; {MOVES}", DERIVED, moves, needs=("ring", "a state"), usual=(*USUAL, ABSORBED)),
    identity(
        shifted_state,
        f"{ANY_FIELD}; causal; {MOVES}",
        "Chen et al. 2024",
        lambda case: moves(case) and case.mask == "causal",
        name="shift",
        ours="RoPE before the kernel",
    ),
    identity(exact_probes, WITHIN, DERIVED, ways=("probe",), **LONGER),
    identity(causality, "none: by structure, in every form", DERIVED, ways=("structure",), usual=SEEN),
)
