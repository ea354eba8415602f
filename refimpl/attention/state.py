"""The algebra of states: absorb text, shift, join, remove, scale.

States form a group: `join` is associative, `no_text` is neutral, and `remove` undoes `join`
(theorem state_monoid).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..arrays import Array
from ..checks import (
    check_finite,
    check_integer,
    check_padding,
    check_scalar,
    check_sequence,
    check_shape,
    check_type,
    common_namespace,
    is_zero,
)
from ..systems.floats import device, quiet
from .feature_maps import Kernel, check_kernel
from .linear_attention import IDENTITY, State, check_state, finite_state, zero_padded
from .underflow import check_columns, check_scaled, smallest_normal


def no_text(like: Array, r: int, m: int, *, lead: tuple[int, ...] = (), position: int = 0) -> State:
    """The state of no text, in the numbers of the array `like`."""
    check_sequence("no_text", "lead", lead)
    for name, value in (("r", r), ("m", m), *(("lead", n) for n in lead)):
        check_integer("no_text", name, value, least=0, most=2**48)
    xp = common_namespace("no_text", like=like)
    S, z = (xp.zeros((*lead, *tail), dtype=like.dtype, device=device(like)) for tail in ((r, m), (r,)))
    return State(S, z, position)


def features(q: Array, k: Array, /, kernel: Kernel = IDENTITY, *, position: int = 0) -> tuple[Array, ...]:
    """(fq, fk, gq, gk): features of numerator and denominator, for tokens from `position` on."""
    common_namespace("features", q=q, k=k)
    check_shape("features", "q", q, "tokens", "width")
    check_integer("features", "position", position)
    check_shape("features", "k", k, q.shape[-2], "width", like="to match `q`")
    check_kernel("features", kernel)
    return kernel.features(q, k, position)


@quiet()
def absorb(state: State, k: Array, v: Array, /, kernel: Kernel = IDENTITY, *, padding: Any = None) -> State:
    """The state after reading more text, with no query: the state that linear_attention returns.

        S' = S + Σ_s φ(k_s) v_sᵀ      z' = z + Σ_s φ(k_s)      position' = position + n

    Of a pair of maps (φ_q, φ_k), φ_k is used.   Needs ring
    """
    xp = common_namespace("absorb", k=k, v=v)
    check_shape("absorb", "k", k, "tokens", "width")
    check_shape("absorb", "v", v, k.shape[-2], "values", like="to match `k`")
    check_type("absorb", "state", state, State)
    check_kernel("absorb", kernel)
    keep = None if padding is None else check_padding("absorb", padding, k=k, v=v)
    for name, x in (("k", k), ("v", v)):
        check_finite("absorb", name, x, keep)
    _, fk, _, gk = replace(kernel, phi=kernel.maps[1]).features(k, k, state.position)
    if keep is not None:
        fk, gk, v = (zero_padded(keep, x) for x in (fk, gk, v))
    check_state("absorb", "state", state, fk.shape[-1], v.shape[-1], k=fk, v=v)
    S, z = state.S + xp.matrix_transpose(fk) @ v, None if state.z is None else state.z + xp.sum(gk, axis=-2)
    if z is not None and smallest_normal(v.dtype):
        check_columns("absorb", state.S, S, lambda: iter([(fk, v)]))
    return finite_state("absorb", State(S, z, state.position + k.shape[-2]))


@quiet()
def shift(state: State, by: int, kernel: Kernel = IDENTITY) -> State:
    """The same past, seen from `by` positions further on: position + by, S ↦ R_by S, z unchanged.

    With RoPE before the kernel the state holds φ(R_s k_s). It can be shifted only if φ = identity,
    and then R_by rotates z too. Converting a prompt of M tokens ends with shift(state, −M): the
    input then starts where the prompt did (theorem shift).
    """
    check_state("shift", "state", state)
    check_kernel("shift", kernel)
    return finite_state("shift", state.shifted(check_integer("shift", "by", by), kernel))


@quiet()
def join(a: State, b: State, kernel: Kernel = IDENTITY, *, origin: int = 0) -> State:
    """The state of text a followed by text b, where b was read starting at position `origin`.

        S = S_a + R_{p_a − origin} S_b      z = z_a + z_b      position = p_a + p_b − origin

    >>> from refimpl import QQ
    >>> k, v = QQ.random((5, 2), 0), QQ.random((5, 3), 1)
    >>> empty = no_text(v, 2, 3)
    >>> both = join(absorb(empty, k[:2], v[:2]), absorb(empty, k[2:], v[2:]))
    >>> QQ.equal(both.S, absorb(empty, k, v).S), both.position
    (True, 5)
    """
    check_pair("join", a=a, b=b)
    check_kernel("join", kernel)
    by = a.position - check_integer("join", "origin", origin)
    b = b.shifted(by, kernel, read=False, who="join")  # b was only written, by φ_k
    return add("join", a, b, 1, b.position)


@quiet()
def remove(both: State, b: State, kernel: Kernel = IDENTITY, *, origin: int = 0) -> State:
    """The state without its last text b: remove(join(a, b), b) = a."""
    check_pair("remove", both=both, b=b)
    check_kernel("remove", kernel)
    start = both.position - (b.position - check_integer("remove", "origin", origin))
    return add("remove", both, b.shifted(start - origin, kernel, read=False, who="remove"), -1, start)


def check_pair(who: str, **states: State) -> None:
    """Refuse two states that are no states, or that do not fit each other."""
    (first, a), (second, b) = states.items()
    check_state(who, first, a)
    check_type(who, second, b, State)
    if (a.z is None) != (b.z is None):
        which = f"`{second}`" if a.z is None else "the other"
        raise ValueError(f"{who}: `{second}` must have z exactly if the other state has it, got z in {which} only")
    check_state(who, second, b, a.S.shape[-2], a.S.shape[-1], **{f"{first}.S": a.S})


def add(who: str, a: State, b: State, sign: int, position: int) -> State:
    """a + sign b, for states that are read from one position."""
    z = None if a.z is None or b.z is None else a.z + sign * b.z
    return finite_state(who, State(a.S + sign * b.S, z, position))


@quiet()
def scale(state: State, strength: Any) -> State:
    """The state of a past that counts `strength` = λ times: λS, λz."""
    check_state("scale", "state", state)
    scaled = state.weighed(None, check_scalar("scale", "strength", strength, S=state.S))
    if state.z is not None and not is_zero(strength):
        check_scaled("scale", state, scaled)
    return finite_state("scale", scaled)
