"""The state of linearized attention: all that the past is to the future.

    S = Σ φ(k_s) v_sᵀ  (..., r, m)      z = Σ φ(k_s)  (..., r)      position: where the next token is read

A state belongs to its position: under RoPE the same tokens seen from elsewhere are another S.
States of stretches of text form a group: `join` is associative, `no_text` is neutral, `remove` undoes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..arrays import Array
from ..checks import check_padding, finite, hide, instance, integer, lead, namespace, scalar, shape
from ..errors import NotDefined
from ..systems.array import array_namespace, device
from .feature_maps import identity, pair
from .memory import Memory
from .rope import Rope, rotate


@dataclass(frozen=True, eq=False)
class State:
    """S (..., r, m), z (..., r) or None, and the position at which the next token is read."""

    S: Array
    z: Any
    position: int = 0

    def __post_init__(self) -> None:
        integer("State", "position", self.position)

    def each(self, f: Callable[[Any, int], Any]) -> State:
        """The same with f(x, how many axes are its own) for every array x."""
        return replace(self, S=f(self.S, 2), z=None if self.z is None else f(self.z, 1))


@dataclass(frozen=True, eq=False)
class KVCache:
    """All keys (turned, if there is RoPE) and values so far, which of them count, and where the next token is read.

    memories : what stands in place of tokens that came before these; see memory.py
    """

    k: Any
    v: Any
    keep: Any
    position: int
    memories: tuple[Memory, ...] = ()

    def __post_init__(self) -> None:
        integer("KVCache", "position", self.position)
        for memory in self.memories:
            instance("KVCache", "memories", memory, Memory)

    def each(self, f: Callable[[Any, int], Any]) -> KVCache:
        """The same with f(x, how many axes are its own) for every array x, but for `keep`, which broadcasts."""
        return replace(self, k=f(self.k, 2), v=f(self.v, 2), memories=tuple(memory.each(f) for memory in self.memories))

    def shifted(self, by: int, rope: Rope | None) -> KVCache:
        """The same tokens and memories, seen from `by` positions further on: k ↦ R_by k, and the maps of the memories turn likewise."""
        k = self.k if rope is None or not by else rope(self.k, [by] * self.k.shape[-2])
        return replace(
            self, k=k, position=self.position + by, memories=tuple(memory.shifted(by, rope) for memory in self.memories)
        )


def no_text(like: Any, r: int, m: int, *, lead: tuple[int, ...] = (), position: int = 0) -> State:
    """The state of no text, in the numbers of the array `like`."""
    for name, value in (("r", r), ("m", m), *(("lead", n) for n in lead)):
        integer("no_text", name, value, least=0)
    xp = namespace("no_text", like=like)
    S, z = (xp.zeros((*lead, *tail), dtype=like.dtype, device=device(like)) for tail in ((r, m), (r,)))
    return State(S, z, position)


def check_state(who: str, name: str, state: State, r: int, m: int, **like: Any) -> tuple[int, ...]:
    """Refuse a state that does not go with r features, m values and these arrays; the leading axes of all of them."""
    S = f"{name}.S"
    xp = namespace(who, **like, **{S: state.S})
    shape(who, S, state.S, r, m, like="(features, values)")
    finite(who, S, xp, state.S, axes=("feature", "column"))
    if state.z is None:
        return lead(who, **like, **{S: state.S})
    z = f"{name}.z"
    namespace(who, **like, **{z: state.z})
    shape(who, z, state.z, r, like="(features)")
    finite(who, z, xp, state.z, axes=("feature",))
    return lead(who, **like, **{S: state.S, z: state.z[..., None]})


def features(
    q: Any, k: Any, /, *, phi: Any = identity, rope: Rope | None = None, position: int = 0
) -> tuple[Any, Any, Any, Any]:
    """(fq, fk, gq, gk): the features of numerator and denominator, for tokens read from `position` on."""
    namespace("features", q=q, k=k)
    shape("features", "k", k, q.shape[-2], "width", like="to match `q`")
    phi_q, phi_k = pair("features", phi)
    if rope is not None:
        instance("features", "rope", rope, Rope)
        cos, sin = rope.rotations(range(position, position + q.shape[-2]), q.shape[-2])
    if rope is not None and rope.placement == "before":
        q, k = rotate(q, cos, sin, layout=rope.layout), rotate(k, cos, sin, layout=rope.layout)
    gq, gk = phi_q(q), phi_k(k)
    namespace("features", **{"k": k, "phi_k(k)": gk, "phi_q(q)": gq})
    shape("features", "phi_k(k)", gk, k.shape[-2], "features", like="to match `k`")
    shape("features", "phi_q(q)", gq, q.shape[-2], gk.shape[-1], like="to match phi_k(k)")
    if rope is not None and rope.placement == "after":
        return rotate(gq, cos, sin, layout=rope.layout), rotate(gk, cos, sin, layout=rope.layout), gq, gk
    return gq, gk, gq, gk


def absorb(
    state: State, k: Any, v: Any, /, *, phi: Any = identity, rope: Rope | None = None, padding: Any = None
) -> State:
    """The state after reading more text, with no query: what linear_attention returns beside its output.

        S' = S + Σ_s φ(k_s) v_sᵀ      z' = z + Σ_s φ(k_s)      position' = position + n

    phi : φ, or the pair (φ_q, φ_k), of which φ_k is used.   Needs ring
    """
    xp = namespace("absorb", k=k, v=v)
    shape("absorb", "k", k, "tokens", "width")
    shape("absorb", "v", v, k.shape[-2], "values", like="to match `k`")
    instance("absorb", "state", state, State)
    keep = check_padding("absorb", padding, k=k, v=v)
    for name, x in (("k", k), ("v", v)):
        finite("absorb", name, xp, x, keep)
    _, phi_k = pair("absorb", phi)
    _, fk, _, gk = features(k, k, phi=phi_k, rope=rope, position=state.position)
    fk, gk, v = hide(keep, fk, gk, v)
    check_state("absorb", "state", state, fk.shape[-1], v.shape[-1], k=fk, v=v)
    z = None if state.z is None else state.z + xp.sum(gk, axis=-2)
    return State(state.S + xp.matrix_transpose(fk) @ v, z, state.position + k.shape[-2])


def shift(state: State, by: int, *, rope: Rope | None = None, phi: Any = None) -> State:
    """The same past, seen from `by` positions further on: position + by, S ↦ R_by S, z unchanged.

    RoPE before the kernel keeps φ(R_s k_s) in the state, which turns linearly only for φ = identity (z turns too): pass phi.
    Converting a prompt of M tokens ends with shift(state, −M): the input then starts where the prompt did.
    """
    instance("shift", "state", state, State)
    integer("shift", "by", by)
    return _shift("shift", state, by, rope, phi, ("phi_q", "phi_k"))


def _shift(who: str, state: State, by: int, rope: Rope | None, phi: Any, matter: tuple[str, ...]) -> State:
    """Which maps matter: a shifted state is read by φ_q as well, a joined one was only written, by φ_k."""
    if by == 0 or rope is None:
        return replace(state, position=state.position + by)
    instance(who, "rope", rope, Rope)
    if rope.placement == "after":
        return State(_turn(state.S, by, rope), state.z, state.position + by)
    maps = dict(zip(("phi_q", "phi_k"), pair(who, phi), strict=True))
    for name in matter:
        if maps[name] is not identity:
            what = getattr(maps[name], "__name__", "this feature map")
            raise NotDefined(
                f"{who}: under RoPE before the kernel only states of identity turn, not of {what}; keep running positions"
            )
    z = None if state.z is None else _turn(state.z[..., None], by, rope)[..., 0]
    return State(_turn(state.S, by, rope), z, state.position + by)


def _turn(S: Any, by: int, rope: Rope) -> Any:
    """R_by acts on the feature axis."""
    xp = array_namespace(S)
    cos, sin = rope.table([by])
    rows = xp.matrix_transpose(S)  # (..., m, r)
    return xp.matrix_transpose(rotate(rows, cos, sin, layout=rope.layout))


def join(a: State, b: State, *, rope: Rope | None = None, phi: Any = None, origin: int = 0) -> State:
    """The state of text a followed by text b, where b was read starting at position `origin`.

        S = S_a + R_{p_a − origin} S_b      z = z_a + z_b      position = p_a + p_b − origin

    >>> from refimpl import QQ
    >>> k, v = QQ.random((5, 2), 0), QQ.random((5, 3), 1)
    >>> empty = no_text(v, 2, 3)
    >>> whole, joined = absorb(empty, k, v), join(absorb(empty, k[:2], v[:2]), absorb(empty, k[2:], v[2:]))
    >>> QQ.equal(joined.S, whole.S), joined.position
    (True, 5)
    """
    for name, state in (("a", a), ("b", b)):
        instance("join", name, state, State)
    b = _shift("join", b, a.position - integer("join", "origin", origin), rope, phi, ("phi_k",))
    return _add("join", a, b, 1, b.position)


def remove(whole: State, b: State, *, rope: Rope | None = None, phi: Any = None, origin: int = 0) -> State:
    """Takes the last text out again: remove(join(a, b), b) = a."""
    for name, state in (("whole", whole), ("b", b)):
        instance("remove", name, state, State)
    start = whole.position - (b.position - integer("remove", "origin", origin))
    return _add("remove", whole, _shift("remove", b, start - origin, rope, phi, ("phi_k",)), -1, start)


def _add(who: str, a: State, b: State, sign: int, position: int) -> State:
    if (a.z is None) != (b.z is None):
        raise ValueError(
            f"{who}: `b` must have z exactly if the other state has it, got z in {'`b`' if a.z is None else 'the other'} only"
        )
    check_state(who, "b", b, *a.S.shape[-2:], **{"a.S": a.S})
    return State(a.S + sign * b.S, None if a.z is None else a.z + sign * b.z, position)


def scale(state: State, strength: Any) -> State:
    """A past that counts `strength` times: λS, λz."""
    instance("scale", "state", state, State)
    scalar("scale", "strength", strength, S=state.S)
    return State(strength * state.S, None if state.z is None else strength * state.z, state.position)
