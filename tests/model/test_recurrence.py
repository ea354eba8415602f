"""The recurrence against its explicit sum, and against sums of matrix products written out here;
RWKV-4's quotient likewise.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refimpl as ri
from refimpl.model.recurrence import NOTHING, Carried, check_matrix, recurrence, recurrence_sum, wkv4, wkv4_sum
from refimpl.systems import fractions
from refimpl.verify.cases import RecurrentCase, case_from_json
from refimpl.verify.check import check
from refimpl.verify.implementation import REFIMPL
from refimpl.verify.theorems import recurrences
from tests.helpers.assertions import says

HUGE = ri.GF(2**61 - 1)
THEOREMS = {t.name: t for t in recurrences.THEOREMS}


@st.composite
def problems(draw: Any, system: Any) -> tuple[list[Any], dict[str, Any]]:
    n, d, m = draw(st.sampled_from([0, 1, 2, 3, 5])), draw(st.integers(1, 4)), draw(st.integers(0, 4))
    heads = draw(st.sampled_from([(), (2,), (3,), (2, 2)]))
    seeds = iter(range(draw(st.integers(0, 10**6)) * 100, 2**62))
    shapes = {
        "S": (*heads, d, m),
        "u": draw(st.sampled_from([(d,), (*heads, d)])),
        "a": (*heads, n, d),
        "b": (*heads, n, d),
    }
    given = [name for group in (("S",), ("u",), ("a", "b")) if draw(st.booleans()) for name in group]
    arrays = [system.random((*heads, n, width), next(seeds)) for width in (d, d, d, m)]
    return arrays, {name: system.random(shapes[name], next(seeds)) for name in given}


def cut(
    arrays: list[Any], options: dict[str, Any], start: int, stop: int, **past: Any
) -> tuple[list[Any], dict[str, Any]]:
    tokens = {name: x[..., start:stop, :] for name, x in options.items() if name in ("a", "b")}
    return [x[..., start:stop, :] for x in arrays], options | past | tokens


@pytest.mark.parametrize("system", [ri.QQ, HUGE], ids=str)
@given(data=st.data())
def test_recurrence_is_its_sum_split_anywhere(system: Any, data: Any) -> None:
    arrays, options = data.draw(problems(system))
    want, end = recurrence_sum(*arrays, **options)
    n = arrays[0].shape[-2]
    for t in range(n + 1):
        prompt, of_prompt = cut(arrays, options, 0, t)
        first, S = recurrence(*prompt, **of_prompt)
        for form in (recurrence, recurrence_sum):
            text, of_text = cut(arrays, options, t, n, S=S)
            rest, last = form(*text, **of_text)
            assert system.equal(system.concat([first, rest], axis=-2), want)
            assert system.equal(last, end)


def by_matrices(
    r: Any, w: Any, k: Any, v: Any, S: Any = None, u: Any = None, a: Any = None, b: Any = None
) -> tuple[Any, Any]:
    """One head, of Fractions in NumPy: every product of transitions formed, for each pair of
    tokens.
    """
    (n, d), m = r.shape, v.shape[1]
    one, none = np.array([[Fraction(i == j) for j in range(d)] for i in range(d)]), np.full((d, m), Fraction(0))
    S = none if S is None else S
    A = [
        np.array([[w[x, i] * (i == j) + (0 if a is None else b[x, i] * a[x, j]) for j in range(d)] for i in range(d)])
        for x in range(n)
    ]

    def product(first: int, last: int) -> Any:
        return one if last < first else A[last] @ product(first, last - 1)

    def state(t: int) -> Any:
        """After token t."""
        return sum((product(s + 1, t) @ np.outer(k[s], v[s]) for s in range(t + 1)), product(0, t) @ S)

    rows = [r[t] @ (state(t) if u is None else state(t - 1) + np.outer(u * k[t], v[t])) for t in range(n)]
    return np.array(rows, dtype=object).reshape(n, m), state(n - 1)


@pytest.mark.parametrize("bonus", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_both_forms_are_sums_of_matrix_products(bonus: bool, turned: bool) -> None:
    n, d, m = 4, 3, 2
    shapes = {"r": (n, d), "w": (n, d), "k": (n, d), "v": (n, m), "S": (d, m)}
    shapes |= {"u": (d,)} if bonus else {}
    shapes |= {"a": (n, d), "b": (n, d)} if turned else {}
    x = {name: ri.QQ.random(shape, seed) for seed, (name, shape) in enumerate(shapes.items())}
    o, S = by_matrices(**{name: fractions(y, "test") for name, y in x.items()})
    options = {name: y for name, y in x.items() if name not in "rwkv"}
    for form in (recurrence, recurrence_sum):
        got, end = form(x["r"], x["w"], x["k"], x["v"], **options)
        assert ri.QQ.equal(got, ri.QQ.convert(o)) and ri.QQ.equal(end, ri.QQ.convert(S))


def test_a_recurrence_by_hand() -> None:
    """d = m = 1: S = 2·5 + 3·7 = 31, read by r = 10; before the write, with bonus u = 4: 10 (5 +
    4·21) = 890.
    """
    r, w, k, v, S, u = (ri.QQ.convert(x) for x in ([[10]], [[2]], [[3]], [[7]], [[5]], [4]))
    a, b = ri.QQ.convert([[1]]), ri.QQ.convert([[-2]])
    for form in (recurrence, recurrence_sum):
        assert [x.tolist() for x in form(r, w, k, v, S=S)] == [[[310]], [[31]]]
        assert [x.tolist() for x in form(r, w, k, v, S=S, u=u)] == [[[890]], [[31]]]
        # A = 2 − 2 = 0
        assert [x.tolist() for x in form(r, w, k, v, S=S, a=a, b=b)] == [[[210]], [[21]]]


def test_leading_axes_broadcast() -> None:
    """Keys and decay shared by heads, a state and a bonus for each."""
    draw = ri.QQ.random
    r, w, k, v = draw((2, 3, 4, 2), 1), draw((4, 2), 2), draw((3, 4, 2), 3), draw((2, 1, 4, 3), 4)
    S, u = draw((2, 1, 2, 3), 5), draw((3, 2), 6)
    o, end = recurrence(r, w, k, v, S=S, u=u)
    want, last = recurrence_sum(r, w, k, v, S=S, u=u)
    assert o.shape == (2, 3, 4, 3) and end.shape == (2, 3, 2, 3)
    assert ri.QQ.equal(o, want) and ri.QQ.equal(end, last)
    one, _ = recurrence(r[1, 2, :, :], w, k[2, :, :], v[1, 0, :, :], S=S[1, 0, :, :], u=u[2, :])
    assert ri.QQ.equal(o[1, 2, :, :], one)


SYSTEMS = [
    ri.Float(),
    ri.Float("numpy", "float32"),
    ri.Float("array_api_strict"),
    ri.MP(30),
    ri.balls(30, "iv"),
    ri.RunningError(),
]


def peers() -> list[Any]:
    systems = list(SYSTEMS)
    for library in ("torch", "jax"):
        try:
            system = ri.Float(library, "float32")
        except ImportError:
            continue
        systems.append(
            pytest.param(system, marks=pytest.mark.slow) if library == "jax" else system
        )  # it compiles for seconds
    return systems


@pytest.mark.parametrize("system", peers(), ids=str)
def test_every_kind_of_array(system: Any) -> None:
    """Read-only where the library has that, near the same in ℚ."""
    shapes = [(2, 3, 2), (2, 3, 2), (2, 3, 2), (2, 3, 4), (2, 2, 4), (2,), (2, 3, 2), (2, 3, 2)]
    host = [np.random.default_rng(i).integers(-8, 9, shape) / 8 for i, shape in enumerate(shapes)]
    arrays = [system.convert(x) for x in host]
    for x in arrays:
        if isinstance(x, np.ndarray):
            x.flags.writeable = False
    exact = [ri.QQ.convert(x) for x in host]
    for options in ((), ("S",), ("S", "u"), ("S", "a", "b"), ("S", "u", "a", "b")):
        for form in (recurrence, recurrence_sum):
            o, S = form(*arrays[:4], **{name: x for name, x in zip("Suab", arrays[4:], strict=True) if name in options})
            want, end = recurrence(
                *exact[:4], **{name: x for name, x in zip("Suab", exact[4:], strict=True) if name in options}
            )
            assert (
                np.abs(ri.floats(o) - ri.floats(want)).max() < 1e-5
                and np.abs(ri.floats(S) - ri.floats(end)).max() < 1e-5
            )
    o, S = wkv4(arrays[5], -arrays[5], arrays[0], arrays[1])
    want, end = wkv4_sum(arrays[5], -arrays[5], arrays[0], arrays[1])
    for x, y in zip((o, *S), (want, *end), strict=True):
        assert np.abs(ri.floats(x) - ri.floats(y)).max() < 1e-5


@pytest.mark.slow
def test_the_sum_over_a_long_text() -> None:
    r, k, v, a, b = (np.random.default_rng(i).standard_normal((4096, 64)) / 8 for i in range(5))
    w = np.random.default_rng(9).uniform(0.9, 1, (4096, 64))
    a, b = a / np.linalg.norm(a, axis=-1, keepdims=True), -a / np.linalg.norm(a, axis=-1, keepdims=True) * 0.5
    for options in ({"u": r[0]}, {"a": a, "b": b}):
        o, S = recurrence(r, w, k, v, **options)
        want, end = recurrence_sum(r, w, k, v, **options)
        assert np.abs(o - want).max() < 1e-12 * np.abs(want).max() and np.abs(S - end).max() < 1e-12 * np.abs(end).max()


# Planted bugs: a small edit of the right form each.


def matrix_form(body: Any) -> Any:
    """body(xp, r, w, k, v, S, u, a, b) -> o, S, with the arguments of a recurrence."""

    @functools.wraps(body)
    def form(r: Any, w: Any, k: Any, v: Any, /, *, S: Any = None, u: Any = None, a: Any = None, b: Any = None) -> Any:
        return body(*check_matrix(body.__name__, r, w, k, v, S, u, a, b))

    return form


@matrix_form
def decay_after_the_write(xp, r, w, k, v, S, u, a, b):
    return _scan(xp, r, w, k, v, S, u, a, b, write=lambda w_t, S, kv, turned: w_t * (S + kv) + turned)


@matrix_form
def bonus_forgotten(xp, r, w, k, v, S, u, a, b):
    return _scan(xp, r, w, k, v, S, None if u is None else 0 * u, a, b)


@matrix_form
def rank_one_transposed(xp, r, w, k, v, S, u, a, b):
    return _scan(xp, r, w, k, v, S, u, b, a)


@matrix_form
def read_after_instead_of_before(xp, r, w, k, v, S, u, a, b):
    return _scan(xp, r, w, k, v, S, None, a, b)


@matrix_form
def rank_one_of_the_decayed_state(xp, r, w, k, v, S, u, a, b):
    return _scan(xp, r, w, k, v, S, u, a, b, turn=lambda w_t, S: w_t * S)


@matrix_form
def bonus_for_the_past(xp, r, w, k, v, S, u, a, b):
    return _scan(xp, r, w, k, v, S, u, a, b, read=lambda S, u, kv: u * (S + kv))


@matrix_form
def start_forgotten(xp, r, w, k, v, S, u, a, b):
    return _scan(xp, r, w, k, v, 0 * S, u, a, b)


@matrix_form
def right(xp, r, w, k, v, S, u, a, b):
    return _scan(xp, r, w, k, v, S, u, a, b)


def _scan(  # type: ignore[no-untyped-def]
    xp,
    r,
    w,
    k,
    v,
    S,
    u,
    a,
    b,
    *,
    write=lambda w_t, S, kv, turned: w_t * S + kv + turned,
    turn=lambda w_t, S: S,
    read=lambda S, u, kv: S + u * kv,
):
    """The right form, with places to put a wrong one in."""
    o = [r[..., :0, :] @ S]
    for t in range(r.shape[-2]):
        kv, w_t = k[..., t, :, None] * v[..., t, None, :], w[..., t, :, None]
        turned = 0 * S if a is None else b[..., t, :, None] * (a[..., t : t + 1, :] @ turn(w_t, S))
        before, S = S, write(w_t, S, kv, turned)
        o.append(r[..., t : t + 1, :] @ (S if u is None else read(before, u[..., 0, :, None], kv)))
    return xp.concat(o, axis=-2), S


def product_one_factor_short(r, w, k, v, /, *, S=None, u=None, a=None, b=None):
    """r_t (Π_{s<x<t} A_x) k_s for a token that reads after its write: the sum of one that reads
    before it, with a bonus of 1.
    """
    return recurrence_sum(r, w, k, v, S=S, u=1 + 0 * r[..., 0, :] if u is None and r.shape[-2] else u, a=a, b=b)


BUGS = [
    decay_after_the_write,
    bonus_forgotten,
    rank_one_transposed,
    read_after_instead_of_before,
    rank_one_of_the_decayed_state,
    bonus_for_the_past,
    start_forgotten,
    product_one_factor_short,
]


@pytest.mark.parametrize("theorem", ["recurrence_eq_sum", "recurrence_split"])
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_planted_bugs_are_found_out(bug: Any, theorem: str) -> None:
    for system in (ri.QQ, HUGE, ri.Float()):
        for broken in (replace(REFIMPL, recurrence=bug), replace(REFIMPL, recurrence_sum=bug)):
            assert check(THEOREMS[theorem], system, THEOREMS[theorem].cases, impl=broken).verdict == "FAIL"


def test_where_the_bugs_were_planted_the_right_form_passes() -> None:
    theorem, same = THEOREMS["recurrence_split"], replace(REFIMPL, recurrence=right)
    assert check(theorem, HUGE, theorem.cases, impl=same).verdict == "EXACT"


@pytest.mark.parametrize("system", [ri.QQ, HUGE, ri.MP(50), ri.balls(30), ri.Float()], ids=str)
@pytest.mark.parametrize("name", THEOREMS)
def test_theorems(name: str, system: Any) -> None:
    theorem = THEOREMS[name]
    result = check(theorem, system, theorem.cases)
    wanted = {"EXACT"} if system.exact else {"ENCLOSED"} if system == ri.balls(30) else {"WITHIN BOUND", "EXACT"}
    assert result.verdict in ({"N/A"} if theorem.needs[0] == "real" and system.exact else wanted), result


def test_cases_go_into_a_file_and_back() -> None:
    for theorem in THEOREMS.values():
        for case in (*theorem.cases, *theorem.more(1)):
            assert case.valid() and case_from_json(case.to_json() | {"heads": list(case.heads)}) == case
            assert all(smaller.valid() for smaller in case.smaller())
    with says(ValueError, "RecurrentCase: `version` must be one of 4, 5.1, 5.2, 7, got '6'"):
        case_from_json({"kind": "RecurrentCase", "M": 1, "n": 1, "d": 2, "m": 1, "heads": [1], "version": "6"})
    assert not RecurrentCase(1, 1, 2, 1, heads=(2,), version="4").valid()


# RWKV-4's quotient.


def quotient_by_hand(w: float, u: float, k: list[float], v: list[float]) -> list[Any]:
    """One column at 60 digits, without any unit: exponentials of the exponents as they are."""
    with mpmath.workdps(60):
        w, u, k, v = mpmath.mpf(w), mpmath.mpf(u), [mpmath.mpf(x) for x in k], [mpmath.mpf(x) for x in v]
        rows = []
        for t in range(len(k)):
            e = [mpmath.exp((t - 1 - s) * w + k[s]) for s in range(t)] + [mpmath.exp(u + k[t])]
            rows.append(float(sum(x * y for x, y in zip(e, v, strict=False)) / sum(e)))
        return rows


@given(st.integers(0, 6), st.sampled_from([1.0, 30.0, 900.0]), st.integers(0, 10**6))
def test_the_quotient_by_hand(n: int, size: float, seed: int) -> None:
    """At exponents up to ±900, where e^k is beyond float64 in both directions."""
    rng = np.random.default_rng(seed)
    w, u, (k, v) = -rng.uniform(0, size, 3), rng.uniform(-size, size, 3), rng.uniform(-size, size, (2, n, 3))
    want = np.array([quotient_by_hand(w[j], u[j], k[:, j], v[:, j]) for j in range(3)]).T.reshape(n, 3)
    for form in (wkv4, wkv4_sum):
        o, _ = form(w, u, k, v)
        np.testing.assert_allclose(o, want, rtol=0, atol=1e-12 * size**2)


@given(st.integers(0, 5), st.booleans(), st.integers(0, 10**6))
def test_the_quotient_is_its_sum_split_anywhere(n: int, start: bool, seed: int) -> None:
    system = ri.MP(30)
    w, u = (system.random((2,), seed + i) for i in range(2))
    k, v = (system.random((3, n, 2), seed + 2 + i) for i in range(2))
    state = (
        (system.random((3, 2), seed + 4), 1 + system.random((3, 2), seed + 5), system.random((3, 2), seed + 6))
        if start
        else None
    )
    want, end = wkv4_sum(w, u, k, v, state=state)
    for t in range(n + 1):
        first, middle = wkv4(w, u, k[:, :t, :], v[:, :t, :], state=state)
        for form in (wkv4, wkv4_sum):
            rest, last = form(w, u, k[:, t:, :], v[:, t:, :], state=middle)
            pairs = [(system.concat([first, rest], axis=-2), want), *zip(last, end, strict=True)]
            assert all(np.abs(ri.floats(x - y)).max(initial=0) < 1e-26 for x, y in pairs)


def test_no_past_counts_for_nothing() -> None:
    w, u, k, v = np.array([-1.0]), np.array([0.5]), np.array([[-700.0], [-710.0]]), np.array([[3.0], [5.0]])
    for form in (wkv4, wkv4_sum):
        o, (num, den, exponent) = form(w, u, k[:1], v[:1])
        assert o.tolist() == [[3.0]] and (num, den, exponent) == (3.0, 1.0, -700.0)
        _, empty = form(w, u, k[:0], v[:0])
        assert [x.tolist() for x in empty] == [[0.0], [0.0], [float(NOTHING)]]
        again, _ = form(w, u, k, v, state=empty)
        assert again.tolist() == form(w, u, k, v)[0].tolist()


def test_planted_quotients_are_found_out() -> None:
    def wrong(change: Any) -> Any:
        def form(w: Any, u: Any, k: Any, v: Any, *, state: Any = None) -> Any:
            return wkv4(*change(w, u, k, v), state=state)

        return form

    def never_rescaled(w: Any, u: Any, k: Any, v: Any, *, state: Any = None) -> Any:
        o, (num, den, exponent) = wkv4(w, u, k, v, state=state)
        return o, (num, den, 0 * exponent)

    bugs = [
        wrong(lambda w, u, k, v: (w, 0 * u, k, v)),
        wrong(lambda w, u, k, v: (0 * w, u, k, v)),
        wrong(lambda w, u, k, v: (-w, u, k, v)),
        never_rescaled,
    ]
    theorem = THEOREMS["wkv4_eq_sum"]
    for form in bugs:
        for system in (ri.MP(50), ri.balls(30), ri.Float()):
            assert check(theorem, system, theorem.cases, impl=replace(REFIMPL, wkv4=form)).verdict == "FAIL"


# Words.

X, V = np.ones((3, 2)), np.ones((3, 4))


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "message"),
    [
        ((X, X, X, V), {"a": X}, TypeError, "must come together, for A_t = Diag(w_t) + b_t a_tᵀ, got `a` alone"),
        ((X, X, X, V), {"b": X}, TypeError, "got `b` alone"),
        (([1], X, X, V), {}, TypeError, "`r` must be an array"),
        ((X, X, X.astype("float32"), V), {}, TypeError, "`k` has dtype float32, `r` has float64"),
        ((X[0], X, X, V), {}, ValueError, "`r` must have shape (..., tokens, width), got (2,)"),
        ((X, X[1:], X, V), {}, ValueError, "`w` must have shape (..., 3, 2) to match `r`, got (2, 2)"),
        ((X, X, V, V), {}, ValueError, "`k` must have shape (..., 3, 2) to match `r`, got (3, 4)"),
        ((X, X, X, V[:1]), {}, ValueError, "`v` must have shape (..., 3, values) to match `r`, got (1, 4)"),
        ((X, X, X, V), {"S": X}, ValueError, "`S` must have shape (..., 2, 4) to match `r` and `v`, got (3, 2)"),
        ((X, X, X, V), {"u": V}, ValueError, "`u` must have shape (..., 2) to match `r`, got (3, 4)"),
        ((X, X, X, V), {"a": V, "b": X}, ValueError, "`a` must have shape (..., 3, 2) to match `r`, got (3, 4)"),
        (
            (X, X, np.ones((2, 3, 2)), np.ones((5, 3, 4))),
            {},
            ValueError,
            "leading axes (5,) of `v` must broadcast with (2,) of",
        ),
        ((X, X, X * math.nan, V), {}, ValueError, "`k` must be finite, got nan or inf at token 0, column 0"),
        (
            (X, X, X, V),
            {"S": np.full((2, 4), math.inf)},
            ValueError,
            "`S` must be finite, got nan or inf at key 0, value 0",
        ),
        (
            (X * 1e200, X, X * 1e200, V),
            {},
            ri.NotFinite,
            "the output overflows numpy float64: nan or inf at token 0, column 0",
        ),
        ((X[:, :0], X[:, :0], X[:, :0], V), {"S": V[:1]}, ValueError, "`S` must have shape (..., 0, 4)"),
    ],
)
def test_words(arguments: Any, options: Any, kind: Any, message: str) -> None:
    for form in (recurrence, recurrence_sum):
        with says(kind, message) as raised:
            form(*arguments, **options)
        assert str(raised.value).startswith(form.__name__ + ": ")


def test_a_state_that_overflows_says_so() -> None:
    for form in (recurrence, recurrence_sum):
        with says(ri.NotFinite, "S overflows numpy float64: nan or inf at key 0, value 0"):
            form(0 * X[:1], X[:1], X[:1], V[:1] * 1e308, S=V[:2] * 1e308, u=0 * X[0])


W, HALF = np.ones(2), np.ones((3, 2), dtype="float32")


@pytest.mark.parametrize(
    ("arguments", "state", "kind", "message"),
    [
        ((W, W, X, X), [W, W, W], TypeError, "`state` must be a tuple (num, den, exponent), got list"),
        ((W, W, X, HALF), None, TypeError, "`v` has dtype float32, `k` has float64"),
        ((W, W, W, X), None, ValueError, "`k` must have shape (..., tokens, width), got (2,)"),
        ((W, W, X, V), None, ValueError, "`v` must have shape (..., 3, 2) to match `k`, got (3, 4)"),
        ((W[:1], W, X, X), None, ValueError, "`w` must have shape (..., 2) to match `k`, got (1,)"),
        ((W, W[:1], X, X), None, ValueError, "`u` must have shape (..., 2) to match `k`, got (1,)"),
        ((W, W, X, X), (W, W[:1], W), ValueError, "`den` must have shape (..., 2) to match `k`, got (1,)"),
        ((W, W, X, X), (W, W, W * math.inf), ValueError, "`exponent` must be finite"),
        (
            (W, W, X - 2000, X),
            (0 * W, 0 * W, 0 * W),
            ri.ZeroDenominator,
            "Σ exp(k) is zero at token 0, column 0 (no ε is added)",
        ),
        ((W, W, X, X * 1e308), (W * 1e308, 1e-9 * W, W), ri.NotFinite, "the output overflows"),
        (
            (np.ones((2, 2)), W, np.ones((3, 3, 2)), X),
            None,
            ValueError,
            "leading axes (2,) of `w` must broadcast with (3,)",
        ),
        (
            (0 * W, W - 1000, 0 * X[:1], X[:1] * 1e308),
            (W * 1e308, W, 0 * W),
            ri.NotFinite,
            "the state overflows numpy float64: nan or inf at state 0, column 0",
        ),
    ],
)
def test_words_of_the_quotient(arguments: Any, state: Any, kind: Any, message: str) -> None:
    for form in (wkv4, wkv4_sum):
        with says(kind, message):
            form(*arguments, state=state)


def test_the_quotient_needs_exponentials() -> None:
    x = ri.QQ.convert([[1]])
    with says(ri.NotDefined, "exp is not defined in ℚ; wkv4 needs a real system"):
        wkv4(x[0, :], x[0, :], x, x)


def test_words_of_what_is_carried() -> None:
    with says(TypeError, "Carried: `parts` must be a Mapping, got list"):
        Carried([])  # type: ignore[arg-type]
    with says(TypeError, "Carried: `the name of a part` must be a str, got int"):
        Carried({1: X})  # type: ignore[dict-item]
    with says(ValueError, "Carried: `position` must be an integer, got 0.5"):
        Carried({}, 0.5)  # type: ignore[arg-type]
    parts = {"S": X}
    carried = Carried(parts, 3)
    parts.clear()
    assert carried.parts["S"] is X and carried.position == 3
    assert carried.shifted(-3).position == 0 and carried.shifted(-3).parts["S"] is X
    with says(ValueError, "Carried: `by` must be an integer, got 0.5"):
        carried.shifted(0.5)  # type: ignore[arg-type]
