"""The state of linearized attention: all that the past is to the future.

    S = Σ φ(k_s) v_sᵀ  (..., r, m)      z = Σ φ(k_s)  (..., r)      position: where the next token is read

A state belongs to its position: under RoPE the same tokens seen from elsewhere are another S.
States of stretches of text form a group: `join` is associative, `no_text` is neutral, `remove` undoes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from array_api_compat import array_namespace, device

from .errors import NotDefined
from .feature_maps import identity
from .rope import Rope, rotate
from .shapes import namespace, shape


@dataclass(frozen=True, eq=False)
class State:
    """S (..., r, m), z (..., r) or None, and the position at which the next token is read."""

    S: Any
    z: Any
    position: int = 0


def no_text(like: Any, r: int, m: int, *, lead: tuple[int, ...] = (), position: int = 0) -> State:
    """The state of no text, in the numbers of the array `like`."""
    for name, value in (("r", r), ("m", m)):
        if not isinstance(value, int) or value < 0:
            raise ValueError(f"no_text: `{name}` must be an integer ≥ 0, got {value!r}")
    xp = array_namespace(like)
    S, z = (xp.zeros((*lead, *tail), dtype=like.dtype, device=device(like)) for tail in ((r, m), (r,)))
    return State(S, z, position)


def check(who: str, state: State, like: Any, r: int, m: int) -> None:
    namespace(who, q=like, S=state.S, **({} if state.z is None else {"z": state.z}))
    shape(who, "state.S", state.S, r, m, like="(features, values)")
    if state.z is not None:
        shape(who, "state.z", state.z, r, like="(features)")


def shift(state: State, by: int, *, rope: Rope | None = None, phi: Any = None) -> State:
    """The same past, seen from `by` positions further on: position + by, S ↦ R_by S, z unchanged.

    RoPE before the kernel keeps φ(R_s k_s) in the state, which turns linearly only for φ = identity (z turns too).
    Converting a prompt of M tokens ends with shift(state, −M): the input then starts where the prompt did.
    """
    if by == 0 or rope is None:
        return replace(state, position=state.position + by)
    if rope.placement == "before":
        if phi is not identity:
            name = getattr(phi, "__name__", "this feature map")
            raise NotDefined(f"shift: RoPE stands before the kernel and {name} is not rotation-covariant; keep running positions")
        z = None if state.z is None else _turn(state.z[..., None], by, rope)[..., 0]
        return State(_turn(state.S, by, rope), z, state.position + by)
    return State(_turn(state.S, by, rope), state.z, state.position + by)


def _turn(S: Any, by: int, rope: Rope) -> Any:
    """R_by acts on the feature axis."""
    xp = array_namespace(S)
    cos, sin = rope.table([by])
    rows = xp.matrix_transpose(S)  # (..., m, r)
    return xp.matrix_transpose(rotate(rows, cos, sin, layout=rope.layout))


def join(a: State, b: State, *, rope: Rope | None = None, phi: Any = None, origin: int = 0) -> State:
    """The state of text a followed by text b, where b was read starting at position `origin`.

    S = S_a + R_{p_a − origin} S_b      z = z_a + z_b      position = p_a + p_b − origin
    """
    b = shift(b, a.position - origin, rope=rope, phi=phi)
    return _add("join", a, b, 1, b.position)


def remove(whole: State, b: State, *, rope: Rope | None = None, phi: Any = None, origin: int = 0) -> State:
    """Takes the last text out again: remove(join(a, b), b) = a."""
    start = whole.position - (b.position - origin)
    return _add("remove", whole, shift(b, start - origin, rope=rope, phi=phi), -1, start)


def _add(who: str, a: State, b: State, sign: int, position: int) -> State:
    if (a.z is None) != (b.z is None):
        raise ValueError(f"{who}: both states or neither must have z")
    namespace(who, a=a.S, b=b.S)
    return State(a.S + sign * b.S, None if a.z is None else a.z + sign * b.z, position)


def scale(state: State, strength: Any) -> State:
    """A past that counts `strength` times: λS, λz."""
    return State(strength * state.S, None if state.z is None else strength * state.z, state.position)
