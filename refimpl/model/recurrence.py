"""Recurrences whose state is a matrix, in any ring, and RWKV-4's running quotient.

    S_t = A_t S_{t-1} + k_t v_tᵀ        A_t = Diag(w_t) + b_t a_tᵀ        (without a, b: Diag(w_t))
    o_t = r_tᵀ S_t                                         without u: read after the write
    o_t = r_tᵀ (S_{t-1} + Diag(u) k_t v_tᵀ)                with u: read before it, with a bonus u

    r, k, w, a, b (..., n, d)    v (..., n, m)    u (..., d)    S (..., d, m)

Each recurrence stands here twice: as a running state, and as an explicit sum. The sum never forms
a state, and so cannot share a mistake with it. Leading axes (batch, heads) broadcast.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from ..arrays import Array, Namespace
from ..attention.past import Past
from ..checks import (
    check_finite,
    check_integer,
    check_shape,
    check_type,
    common_namespace,
    divide,
    leading_axes,
    require_finite,
)
from ..errors import NotDefined
from ..systems import require, system_of
from ..systems.floats import device, quiet

MATRIX = ("key", "value")  # the axes of S, in errors
Maybe = Array | None
Quotient = tuple[Array, Array, Array]  # numerator and denominator in units of e^exponent; exponent

# The exponent before any text. With num = den = 0 it has no effect while it is the least exponent.
NOTHING = -(2**15)


class Carried(Past):
    """All that a recurrent layer keeps of earlier text: arrays by name, and the next position."""

    def __init__(self, parts: Mapping[str, Array], position: int = 0) -> None:
        check_type("Carried", "parts", parts, Mapping)
        for name in parts:
            check_type("Carried", "the name of a part", name, str)
        self.parts = dict(parts)  # defensive copy
        self.position = check_integer("Carried", "position", position)

    def map_arrays(self, f: Callable[[Array, int], Array]) -> Self:
        """f(x, 2) for the matrix S, and f(x, 1) for the other arrays."""
        return type(self)({name: f(x, 2 if name == "S" else 1) for name, x in self.parts.items()}, self.position)

    def shifted(self, by: int, kernel: object = None) -> Self:
        """The same arrays at another position: a recurrent layer does not see positions."""
        return type(self)(self.parts, self.position + check_integer("Carried", "by", by))

    def weighed(self, old: Self | None, strength: object) -> Self:
        raise NotDefined("convert: the state of a recurrence is not a sum of its tokens; `strength` must be 1")

    def arrays(self) -> dict[str, Array]:
        return {f"state.{name}": x for name, x in self.parts.items()}

    @classmethod
    def owns(cls, name: str) -> bool:
        return re.fullmatch(r"state\.\w+", name) is not None

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], metadata: Any, position: int, kernel: Any, width: int) -> Self:
        """`Rwkv.check_past` says whether these arrays fit."""
        return cls({name.removeprefix("state."): x for name, x in arrays.items()}, position)


def recurrence(
    r: Array, w: Array, k: Array, v: Array, /, *, S: Maybe = None, u: Maybe = None, a: Maybe = None, b: Maybe = None
) -> tuple[Array, Array]:
    """A running state: at each token it decays, a rank-one term may change it, and a key writes.

        S_t = Diag(w_t) S_{t-1} + k_t v_tᵀ + b_t (a_tᵀ S_{t-1})
        o_t = r_tᵀ S_t        or, with u,        o_t = r_tᵀ (S_{t-1} + Diag(u) k_t v_tᵀ)

    r, k, w, a, b : (..., n, d)    v : (..., n, m)    u : (..., d)    S : (..., d, m)
        ->  o : (..., n, m), S after the last token
    Needs    ring
    Equals   recurrence_sum (theorem recurrence_eq_sum)
    Source   RWKV-5 and -6 (u), RWKV-7 (a, b): Peng et al. 2024, 2025.
    Cost     O(n d m)
    """
    xp, r, w, k, v, S, u, a, b = check_matrix("recurrence", r, w, k, v, S, u, a, b)
    with quiet():
        o = [r[..., :0, :] @ S]
        for t in range(r.shape[-2]):
            written = k[..., t, :, None] * v[..., t, None, :]
            before = S
            S = w[..., t, :, None] * before + written
            if a is not None and b is not None:
                S = S + b[..., t, :, None] * (a[..., t : t + 1, :] @ before)
            read = S if u is None else before + u[..., 0, :, None] * written
            o.append(r[..., t : t + 1, :] @ read)
        output = xp.concat(o, axis=-2)
    return require_finite("recurrence", "the output", output), require_finite("recurrence", "S", S, MATRIX)


def recurrence_sum(
    r: Array, w: Array, k: Array, v: Array, /, *, S: Maybe = None, u: Maybe = None, a: Maybe = None, b: Maybe = None
) -> tuple[Array, Array]:
    """The same by its definition: for each token a sum over it and all tokens before it.

        α_ts = r_tᵀ (Π_{s<x≤t} A_x) k_s        the product from x = t down to s+1
               with u it ends at x = t−1, and α_tt = r_tᵀ Diag(u) k_t
        o_t = Σ_{s≤t} α_ts v_sᵀ + r_tᵀ (Π_{x≤t} A_x) S

    Rows Y_t start as r_t and take up A_s for s descending, all t ≥ s at once. Below them stand the
    rows of the identity: they read after the last token, and so they read the state there.
    Needs    ring
    Equals   recurrence, with the same arguments (theorem recurrence_eq_sum)
    Cost     O((n + d) (n (d + m) + d m)), memory O((n + d) (d + m))
    """
    xp, r, w, k, v, S, u, a, b = check_matrix("recurrence_sum", r, w, k, v, S, u, a, b)
    heads, (n, d) = r.shape[:-2], r.shape[-2:]
    Y = xp.broadcast_to(xp.eye(d, dtype=r.dtype, device=device(r)), (*heads, d, d))
    o = xp.zeros((*heads, d, v.shape[-1]), dtype=v.dtype, device=device(v))
    with quiet():
        for s in reversed(range(n)):
            r_s, k_s, v_s = (x[..., s : s + 1, :] for x in (r, k, v))
            if u is None:  # the token reads after its own write
                Y, o = xp.concat([r_s, Y], axis=-2), xp.concat([xp.zeros_like(v_s), o], axis=-2)
            o = o + (Y @ xp.matrix_transpose(k_s)) * v_s
            decayed = Y * w[..., s : s + 1, :]
            Y = decayed if a is None or b is None else decayed + (Y @ b[..., s, :, None]) * a[..., s : s + 1, :]
            if u is not None:
                own = (r_s * u) @ xp.matrix_transpose(k_s) * v_s
                Y, o = xp.concat([r_s, Y], axis=-2), xp.concat([own, o], axis=-2)
        o = o + Y @ S
    S = require_finite("recurrence_sum", "S", o[..., n:, :], MATRIX)
    return require_finite("recurrence_sum", "the output", o[..., :n, :]), S


def check_matrix(who: str, *arrays: Maybe) -> tuple[Namespace, Array, Array, Array, Array, Array, Maybe, Maybe, Maybe]:
    """The namespace and r, w, k, v, S, u, a, b, with the same leading axes; u as (..., 1, d)."""
    given: dict[str, Any] = dict(zip("rwkvSuab", arrays, strict=True))
    given = {name: x for name, x in given.items() if x is not None or name in "rwkv"}
    if ("a" in given) != ("b" in given):
        alone = "a" if "a" in given else "b"
        raise TypeError(f"{who}: `a` and `b` must come together, for A_t = Diag(w_t) + b_t a_tᵀ, got `{alone}` alone")
    xp = common_namespace(who, **given)
    r, v = given["r"], given["v"]
    check_shape(who, "r", r, "tokens", "width")
    n, d = r.shape[-2:]
    for name in [name for name in given if name in "wkab"]:
        check_shape(who, name, given[name], n, d, like="to match `r`")
    check_shape(who, "v", v, n, "values", like="to match `r`")
    given.setdefault("S", xp.zeros((d, v.shape[-1]), dtype=v.dtype, device=device(v)))
    check_shape(who, "S", given["S"], d, v.shape[-1], like="to match `r` and `v`")
    if "u" in given:
        check_shape(who, "u", given["u"], d, like="to match `r`")
        given["u"] = given["u"][..., None, :]
    axes = {"S": MATRIX, "u": ("bonus", "column")}
    for name, x in given.items():
        check_finite(who, name, x, axes=axes.get(name, ("token", "column")))
    heads = leading_axes(who, **given)
    full = {name: xp.broadcast_to(x, (*heads, *x.shape[-2:])) for name, x in given.items()}
    return xp, full["r"], full["w"], full["k"], full["v"], full["S"], full.get("u"), full.get("a"), full.get("b")


def wkv4(w: Array, u: Array, k: Array, v: Array, /, *, state: Quotient | None = None) -> tuple[Array, Quotient]:
    """RWKV-4's average of values in each column: a running numerator, denominator, exponent p.

        o_t = (e^p num + e^{u+k_t} v_t) / (e^p den + e^{u+k_t})
        num ← e^{p+w} num + e^{k_t} v_t        den ← e^{p+w} den + e^{k_t}
        then in units of the larger: p ← max(p + w, k_t)

    w, u : (..., d)    k, v : (..., n, d)    state : (num, den, exponent), each (..., d)
        ->  o : (..., n, d), state after the last token
    w is the logarithm of the decay, in RWKV-4 always below 0.
    Needs    real
    Equals   wkv4_sum (theorem wkv4_eq_sum)
    Source   Peng et al. 2023. Differs: the exponent before any text is −2¹⁵, not −10³⁰.
    Cost     O(n d)
    """
    xp, w, u, k, v, num, den, p = check_quotient("wkv4", w, u, k, v, state)
    nums, dens = [k[..., :0, :]], [k[..., :0, :]]
    with quiet():
        for t in range(k.shape[-2]):
            k_t, v_t = k[..., t : t + 1, :], v[..., t : t + 1, :]
            top = xp.maximum(p, u + k_t)
            past, own = xp.exp(p - top), xp.exp(u + k_t - top)
            nums.append(past * num + own * v_t)
            dens.append(past * den + own)
            top = xp.maximum(p + w, k_t)
            past, own = xp.exp(p + w - top), xp.exp(k_t - top)
            num, den, p = past * num + own * v_t, past * den + own, top
        o = divide("wkv4", xp.concat(nums, axis=-2), xp.concat(dens, axis=-2), "Σ exp(k)")
    return o, require_finite_state("wkv4", num, den, p)


def wkv4_sum(w: Array, u: Array, k: Array, v: Array, /, *, state: Quotient | None = None) -> tuple[Array, Quotient]:
    """The same by its definition: for each token a sum over it and all tokens before it.

        o_t = (Σ_{s<t} e^{(t−1−s)w + k_s} v_s + e^{u+k_t} v_t + e^{tw + p} num)
            / (Σ_{s<t} e^{(t−1−s)w + k_s}     + e^{u+k_t}     + e^{tw + p} den)

    Numerator and denominator are in units of e^top, where top is the largest of their exponents.
    The starting state is one more token, before the first.
    Equals wkv4, with the same arguments.   Needs real   Cost O(n² d), memory O(n d)
    """
    xp, w, u, k, v, num, den, p = check_quotient("wkv4_sum", w, u, k, v, state)
    n = k.shape[-2]
    nums, dens = [k[..., :0, :]], [k[..., :0, :]]
    with quiet():
        K, V, D = (xp.concat([x, y], axis=-2) for x, y in ((p, k), (num, v), (den, xp.ones_like(v))))
        lags = xp.concat([j * w for j in range(n, -1, -1)], axis=-2)
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
        o = divide("wkv4_sum", xp.concat(nums, axis=-2), xp.concat(dens, axis=-2), "Σ exp(k)")
    return o, require_finite_state("wkv4_sum", num, den, top)


def check_quotient(
    who: str, w: Array, u: Array, k: Array, v: Array, state: Quotient | None
) -> tuple[Namespace, Array, Array, Array, Array, Array, Array, Array]:
    """The namespace and the arguments, with the same leading axes; all but k, v as (..., 1, d)."""
    if state is not None and (not isinstance(state, tuple) or len(state) != 3):
        raise TypeError(f"{who}: `state` must be a tuple (num, den, exponent), got {type(state).__name__}")
    parts = {} if state is None else dict(zip(("num", "den", "exponent"), state, strict=True))
    given = {"k": k, "v": v, "w": w, "u": u} | parts
    xp = common_namespace(who, **given)
    require(system_of(k), "real", who)
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
    return xp, full["w"], full["u"], full["k"], full["v"], full["num"], full["den"], full["exponent"]


def require_finite_state(who: str, *state: Array) -> Quotient:
    """(num, den, exponent), each (..., d), if they are finite."""
    num, den, p = (require_finite(who, "the state", x, ("state", "column"))[..., 0, :] for x in state)
    return num, den, p


@dataclass(frozen=True)
class RecurrentForm:
    """How to compute a recurrent layer: with a matrix state, or with RWKV-4's quotient."""

    matrix: Callable[..., tuple[Array, Array]]
    quotient: Callable[..., tuple[Array, Quotient]]


RUNNING = RecurrentForm(recurrence, wkv4)
FORMS = {"recurrent": RUNNING, "sum": RecurrentForm(recurrence_sum, wkv4_sum)}
