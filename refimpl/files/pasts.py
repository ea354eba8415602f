"""What earlier text is to a layer, as named arrays and words that go into a file; and back.

    State      b_KV (..., groups, r, m)   b_D (..., groups, r)
    KVCache    cache.k (..., groups, M, d)    cache.v (..., groups, M, m): its tokens
               b_KV, b_D, b_scale, b_mix, b_points or b_omega: its memory (of a second one b_KV.1 …); and words that say what φ is
    Carried    state.NAME: whatever its family has

Directions that were drawn from a seed are not written, but drawn again: the words have the seed, and a digest that must come out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from ..attention.memory import Memory, Points
from ..attention.random_features import KINDS, RandomFeatures, random_features
from ..attention.state import State
from ..attention.softmax_attention import KVCache
from ..checks import check_integer, check_shape
from ..errors import brief, choose
from ..model.recurrence import Carried
from ..systems import SystemArray, floats, system_of
from ..systems.floats import array_namespace, device

MEMORY = {"S": "b_KV", "z": "b_D", "scale": "b_scale", "mix": "b_mix"}
MAP = {"points": "b_points", "omega": "b_omega"}
Past = Any  # State, KVCache or Carried


def named(past: Past) -> dict[str, Any]:
    """The arrays of a past, by the names they have in a file."""
    if isinstance(past, Carried):
        return {f"state.{name}": x for name, x in past.parts.items()}
    if isinstance(past, State):
        found = {"b_KV": past.S, "b_D": past.z}
    else:
        found = {"cache.k": past.k, "cache.v": past.v}
        for j, memory in enumerate(past.memories):
            own = {name: getattr(memory, field) for field, name in MEMORY.items()}
            own |= {name: getattr(memory.phi, field, None) for field, name in MAP.items() if not drawn(memory.phi)}
            found |= {f"{name}.{j}" if j else name: x for name, x in own.items()}
    return {name: x for name, x in found.items() if x is not None}


def drawn(phi: Any) -> bool:
    return getattr(phi, "seed", None) is not None


def words(past: Past) -> list[dict[str, Any]]:
    """What the maps of its memories are."""
    return [
        described(memory.phi) | ({"about": memory.about} if memory.about else {})
        for memory in getattr(past, "memories", ())
    ]


def described(phi: Any) -> dict[str, Any]:
    if isinstance(phi, Points):
        return {"map": "points"}
    said: dict[str, Any] = {"map": phi.kind, "A": str(Fraction(phi.A))}
    if not drawn(phi):
        return said
    return said | {
        "seed": phi.seed,
        "turn": phi.turn,
        "omega": hashlib.sha256(floats(phi.unturned).astype("<f8").tobytes()).hexdigest(),
    }


def belongs(kind: type, name: str) -> bool:
    """Could an array of this name be part of such a past?"""
    pattern = {
        State: r"b_(KV|D)",
        KVCache: r"cache\.(k|v)|b_(KV|D|scale|mix|points|omega)(\.[1-9]\d{0,3})?",
        Carried: r"state\.\w+",
    }[kind]
    return re.fullmatch(pattern, name) is not None


def past_from(kind: type, arrays: Mapping[str, Any], said: Any, position: int, *, rope: Any, width: int) -> Past:
    """The past that has these arrays and words, of which nothing is believed: a length must be paid for in numbers."""
    for name, x in arrays.items():
        if prod(n for n in x.shape[:-1] if n) > sum(prod(y.shape) for y in arrays.values()):
            raise ValueError(
                f"`{name}` must have axes no longer than there are numbers in its layer, got shape {tuple(x.shape)}"
            )
    if kind is Carried:
        return Carried({name.removeprefix("state."): x for name, x in arrays.items()}, position)
    for name in ("b_KV",) if kind is State else ("cache.k", "cache.v"):
        if name not in arrays:
            raise ValueError(f"`{name}` must be there in each layer, since other biases are")
    if kind is State:
        return State(arrays["b_KV"], arrays.get("b_D"), position)
    if not isinstance(said, list) or not all(isinstance(one, dict) for one in said):
        raise ValueError(f"`maps` must be a list of objects for each layer, got {brief(said)}")
    k, left, memories = arrays["cache.k"], dict(arrays), []
    check_shape("metadata", "cache.k", k, "tokens", "width")
    for j, one in enumerate(said):
        own = {field: left.pop(f"{name}.{j}" if j else name, None) for field, name in (MEMORY | MAP).items()}
        if own["S"] is None:
            raise ValueError(f"`b_KV{f'.{j}' if j else ''}` must be there for each map, got none for {brief(one)}")
        check_shape("metadata", "b_KV", own["S"], "features", "values")
        phi = map_from(one, own.pop("points"), own.pop("omega"), own["S"], rope, width)
        memories.append(Memory(phi, **own, about=str(one.get("about", ""))[:200]))
    if left.keys() - {"cache.k", "cache.v"}:
        raise ValueError(f"`{min(left.keys() - {'cache.k', 'cache.v'})}` must have a map among the metadata, got none")
    xp = array_namespace(k)
    n = np.arange(k.shape[-2]) if isinstance(k, SystemArray) else xp.arange(k.shape[-2], device=device(k))
    return KVCache(k, arrays["cache.v"], n[None, :] >= 0, position, tuple(memories))


def map_from(said: dict[str, Any], points: Any, omega: Any, S: Any, rope: Any, width: int) -> Any:
    """φ from its words, and the arrays it has in the file."""
    kind = str(said.get("map"))
    choose("metadata", "map", kind, ("points", *KINDS))
    if (kind == "points") != (points is not None):
        raise ValueError(f"`b_points` must be there exactly for a map 'points', got the map {brief(kind)}")
    if kind == "points":
        return Points(points)
    ratio = re.fullmatch(r"(-?\d{1,400})(?:/(\d{1,400}))?", str(said.get("A")))
    if not ratio or not int(ratio[2] or 1):
        raise ValueError(f"`A` must be a fraction such as '-1/8', got {brief(said.get('A'))}")
    A = Fraction(int(ratio[1]), int(ratio[2] or 1))
    if kind == "taylor" or "seed" not in said:
        return RandomFeatures(kind, omega, A)
    if omega is not None:
        raise ValueError("`b_omega` must not be there for directions drawn from a seed, got both")
    seed = check_integer("metadata", "seed", said["seed"], least=0, most=2**64 - 1)
    turn = check_integer("metadata", "turn", said.get("turn"), least=-(2**53), most=2**53)
    r = S.shape[-2]
    omega = random_features("positive" if kind == "favor++" else kind, r, width, seed=seed, system=system_of(S)).omega
    phi = RandomFeatures(kind, omega, A, seed, unturned=omega)
    if described(phi)["omega"] != said.get("omega"):
        raise ValueError(
            f"`omega` must be the digest of the directions of seed {seed}, got another: drawn by another library, or changed"
        )
    if turn and rope is None:
        raise ValueError(f"`turn` must be 0 in a model without RoPE, got {turn}")
    return phi.rotated(rope, turn) if turn else phi
