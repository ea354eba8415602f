"""Recurrences with a matrix as their state, in any ring; and RWKV-4's running quotient. Each as a running state and as an explicit sum.

    S_t = A_t S_{t-1} + k_t v_tᵀ        A_t = Diag(w_t) + b_t a_tᵀ        (without a, b: Diag(w_t))
    o_t = r_tᵀ S_t                                                         read after the write
    o_t = r_tᵀ (S_{t-1} + Diag(u) k_t v_tᵀ)                                with u: before the write, with a bonus for the token itself

    r, k, w, a, b (..., n, d)    v (..., n, m)    u (..., d)    S (..., d, m)

The sums never form a state, and so know nothing of what a scan might get wrong. Leading axes (batch, heads) broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..attention.forms import named
from ..checks import check_finite, check_type, check_integer, is_true, leading_axes, locate, common_namespace, check_shape, require_finite
from ..errors import ZeroDenominator
from ..systems import ArraySystem
from ..systems.floats import device, quiet, require_of


@dataclass(frozen=True, eq=False)
class Carried:
    """All that the past is to a recurrent layer: named arrays, and where the next token is read."""

    parts: Mapping[str, Any]
    position: int = 0

    def __post_init__(self) -> None:
        check_type("Carried", "parts", self.parts, Mapping)
        vars(self)["parts"] = dict(self.parts)  # whatever becomes of the caller's
        for name in self.parts:
            check_type("Carried", "the name of a part", name, str)
        check_integer("Carried", "position", self.position)

    def each(self, f: Callable[[Any], Any]) -> Carried:
        """The same with f(x) for every array x."""
        return replace(self, parts={name: f(x) for name, x in self.parts.items()})

    def shifted(self, by: int, rope: None = None) -> Carried:
        """The same past, seen from `by` positions further on: a layer without positions sees no difference."""
        return replace(self, position=self.position + check_integer("Carried", "by", by))


def matrix_form(body: Callable) -> Callable[..., tuple[Any, Any]]:
    """The face of a recurrence: checks before its formula, and after it.

    body(xp, r, w, k, v, S, u, a, b) -> o, S, with leading axes that are all the same; u is (..., 1, d)
    """
    who = body.__name__

    def form(
        r: Any, w: Any, k: Any, v: Any, /, *, S: Any = None, u: Any = None, a: Any = None, b: Any = None
    ) -> tuple[Any, Any]:
        if (a is None) != (b is None):
            alone = "b" if a is None else "a"
            raise TypeError(
                f"{who}: `a` and `b` must come together, for A_t = Diag(w_t) + b_t a_tᵀ, got `{alone}` alone"
            )
        given = {name: x for name, x in zip("rwkvSuab", (r, w, k, v, S, u, a, b), strict=True) if x is not None}
        xp = common_namespace(who, **given)
        check_shape(who, "r", r, "tokens", "width")
        n, d = r.shape[-2:]
        for name, x in given.items():
            if name in "wkab":
                check_shape(who, name, x, n, d, like="to match `r`")
        check_shape(who, "v", v, n, "values", like="to match `r`")
        if S is None:
            given["S"] = xp.zeros((d, v.shape[-1]), dtype=v.dtype, device=device(v))
        else:
            check_shape(who, "S", S, d, v.shape[-1], like="to match `r` and `v`")
        if u is not None:
            check_shape(who, "u", u, d, like="to match `r`")
            given["u"] = u[..., None, :]
        axes = {"S": ("key", "value"), "u": ("bonus", "column")}
        for name, x in given.items():
            check_finite(who, name, x, axes=axes.get(name, ("token", "column")))
        heads = leading_axes(who, **given)
        full = {name: xp.broadcast_to(x, (*heads, *x.shape[-2:])) for name, x in given.items()}
        with quiet():
            o, S = body(xp, *(full.get(name) for name in "rwkvSuab"))
        return require_finite(who, "the output", o), require_finite(who, "S", S, axes["S"])

    return named(form, body)


@matrix_form
def recurrence(xp, r, w, k, v, S, u, a, b):  # type: ignore[no-untyped-def]
    """A running state: what it was decays (and is turned), and a key writes its value.

        S_t = Diag(w_t) S_{t-1} + b_t (a_tᵀ S_{t-1}) + k_t v_tᵀ
        o_t = r_tᵀ S_t        or, with u,        o_t = r_tᵀ (S_{t-1} + Diag(u) k_t v_tᵀ)

    r, k, w, a, b : (..., n, d)    v : (..., n, m)    u : (..., d)    S : (..., d, m)    ->  o : (..., n, m), S after the last token
    Needs    ring
    Equals   recurrence_sum (theorem recurrence_eq_sum)
    Source   RWKV-5 and -6 (u), RWKV-7 (a, b): Peng et al. 2024, 2025.
    Cost     O(n d m)
    """
    o = [r[..., :0, :] @ S]
    for t in range(r.shape[-2]):
        written = k[..., t, :, None] * v[..., t, None, :]
        before = S
        S = w[..., t, :, None] * before + written
        if a is not None:
            S = S + b[..., t, :, None] * (a[..., t : t + 1, :] @ before)
        read = S if u is None else before + u[..., 0, :, None] * written
        o.append(r[..., t : t + 1, :] @ read)
    return xp.concat(o, axis=-2), S


@matrix_form
def recurrence_sum(xp, r, w, k, v, S, u, a, b):  # type: ignore[no-untyped-def]
    """The same by its definition: for each token a sum over all tokens before it, and no state.

        α_ts = r_tᵀ (Π_{s<x≤t} A_x) k_s        (the product from x = t down to s+1; with u it ends at x = t−1, and α_tt = r_tᵀ Diag(u) k_t)
        o_t = Σ_{s≤t} α_ts v_sᵀ + r_tᵀ (Π_{x≤t} A_x) S

    Rows Y_t start as r_t and take up A_s for s descending, all t ≥ s at once. Below them stand the rows of the identity, which read
    after the last token: what they read is the state there.
    Arguments as in recurrence, which equals it.   Needs ring   Cost O(n² (d + m)), memory O(n (d + m))
    """
    n, d = r.shape[-2:]
    heads = r.shape[:-2]
    Y = xp.broadcast_to(xp.eye(d, dtype=r.dtype, device=device(r)), (*heads, d, d))
    o = xp.zeros((*heads, d, v.shape[-1]), dtype=v.dtype, device=device(v))
    for s in reversed(range(n)):
        r_s, k_s, v_s = (x[..., s : s + 1, :] for x in (r, k, v))
        if u is None:  # the token reads what it has written
            Y, o = xp.concat([r_s, Y], axis=-2), xp.concat([xp.zeros_like(v_s), o], axis=-2)
        o = o + (Y @ xp.matrix_transpose(k_s)) * v_s
        A_diagonal = Y * w[..., s : s + 1, :]
        Y = A_diagonal if a is None else A_diagonal + (Y @ b[..., s, :, None]) * a[..., s : s + 1, :]
        if u is not None:
            Y, o = xp.concat([r_s, Y], axis=-2), xp.concat([(r_s * u) @ xp.matrix_transpose(k_s) * v_s, o], axis=-2)
    o = o + Y @ S
    return o[..., :n, :], o[..., n:, :]


NOTHING = -(2**15)  # the exponent of no past: with num = den = 0 it counts for nothing, so long as it is the least


def quotient_form(body: Callable) -> Callable[..., tuple[Any, tuple[Any, Any, Any]]]:
    """The face of RWKV-4's quotient.

    body(xp, w, u, k, v, num, den, p) -> numerators and denominators (..., n, d), and num, den, p; all but k, v are (..., 1, d)
    """
    who = body.__name__

    def form(
        w: Any, u: Any, k: Any, v: Any, /, *, state: tuple[Any, Any, Any] | None = None
    ) -> tuple[Any, tuple[Any, Any, Any]]:
        if state is not None and (not isinstance(state, tuple) or len(state) != 3):
            raise TypeError(f"{who}: `state` must be a tuple (num, den, exponent), got {type(state).__name__}")
        parts = {} if state is None else dict(zip(("num", "den", "exponent"), state, strict=True))
        given = {"k": k, "v": v, "w": w, "u": u} | parts
        xp = common_namespace(who, **given)
        require_of(k, "real", who)
        check_shape(who, "k", k, "tokens", "width")
        n, d = k.shape[-2:]
        check_shape(who, "v", v, n, d, like="to match `k`")
        for name in ("w", "u", *parts):
            check_shape(who, name, given[name], d, like="to match `k`")
            given[name] = given[name][..., None, :]
        for name, x in given.items():
            check_finite(who, name, x)
        if state is None:
            zero = xp.zeros((1, d), dtype=k.dtype, device=device(k))
            given |= {"num": zero, "den": zero, "exponent": zero + NOTHING}
        heads = leading_axes(who, **given)
        full = {name: xp.broadcast_to(x, (*heads, *x.shape[-2:])) for name, x in given.items()}
        with quiet():
            num, den, after = body(xp, *(full[name] for name in ("w", "u", "k", "v", "num", "den", "exponent")))
            zero = xp.singular(den) if isinstance(xp, ArraySystem) else den == 0
            if is_true(xp.any(zero)):
                raise ZeroDenominator(
                    f"{who}: the denominator Σ exp(k) is zero at {locate(zero, ('token', 'column'))} (no ε is added)"
                )
            o = num / den
        return require_finite(who, "the output", o), tuple(
            require_finite(who, "the state", x, ("state", "column"))[..., 0, :] for x in after
        )  # type: ignore[return-value]

    return named(form, body)


@quotient_form
def wkv4(xp, w, u, k, v, num, den, p):  # type: ignore[no-untyped-def]
    """RWKV-4's average of values, column by column, from a running numerator and denominator that are kept in units of e^p.

        o_t = (e^p num + e^{u+k_t} v_t) / (e^p den + e^{u+k_t})
        num ← e^{p+w} num + e^{k_t} v_t        den ← e^{p+w} den + e^{k_t}        then in units of the larger: p ← max(p + w, k_t)

    w, u : (..., d)    k, v : (..., n, d)    state : (num, den, exponent), each (..., d)    ->  o : (..., n, d), state after the last token
    w is the logarithm of the decay, in RWKV-4 always below 0.
    Needs    real
    Equals   wkv4_sum (theorem wkv4_eq_sum)
    Source   Peng et al. 2023. Differs: no past has the exponent −2²⁰, not −10³⁰.
    Cost     O(n d)
    """
    nums, dens = [k[..., :0, :]], [k[..., :0, :]]
    for t in range(k.shape[-2]):
        k_t, v_t = k[..., t : t + 1, :], v[..., t : t + 1, :]
        top = xp.maximum(p, u + k_t)
        past, own = xp.exp(p - top), xp.exp(u + k_t - top)
        nums.append(past * num + own * v_t)
        dens.append(past * den + own)
        top = xp.maximum(p + w, k_t)
        past, own = xp.exp(p + w - top), xp.exp(k_t - top)
        num, den, p = past * num + own * v_t, past * den + own, top
    return xp.concat(nums, axis=-2), xp.concat(dens, axis=-2), (num, den, p)


@quotient_form
def wkv4_sum(xp, w, u, k, v, num, den, p):  # type: ignore[no-untyped-def]
    """The same by its definition: for each token a sum over all tokens before it, and no running anything.

        o_t = (Σ_{s<t} e^{(t−1−s)w + k_s} v_s + e^{u+k_t} v_t + e^{tw + p} num) / (Σ_{s<t} e^{(t−1−s)w + k_s} + e^{u+k_t} + e^{tw + p} den)

    Numerator and denominator both in units of e^top, where top is the largest of their exponents.
    The starting state is one more token, before the first.
    Arguments as in wkv4, which equals it.   Needs real   Cost O(n² d), memory O(n d)
    """
    n = k.shape[-2]
    K, V, D = (xp.concat([x, y], axis=-2) for x, y in ((p, k), (num, v), (den, xp.ones_like(v))))
    lags = xp.concat([j * w for j in range(n, -1, -1)], axis=-2)
    nums, dens = [k[..., :0, :]], [k[..., :0, :]]
    for t in range(n + 1):
        exponents = lags[..., n - t :, :] + K[..., : t + 1, :]
        top = xp.max(exponents, axis=-2, keepdims=True)
        if t < n:
            bonus = u + k[..., t : t + 1, :]
            top = xp.maximum(top, bonus)
        e = xp.exp(exponents - top)
        num, den = (xp.sum(e * x[..., : t + 1, :], axis=-2, keepdims=True) for x in (V, D))
        if t < n:
            own = xp.exp(bonus - top)
            nums.append(num + own * v[..., t : t + 1, :])
            dens.append(den + own)
    return xp.concat(nums, axis=-2), xp.concat(dens, axis=-2), (num, den, top)
