"""Pasts in files: the arrays and metadata of a State, a KVCache or a Carried, and the way back.

    State      b_KV (..., groups, r, m)   b_D (..., groups, r)
    KVCache    cache.k (..., groups, M, d)   cache.v (..., groups, M, m): its tokens
               b_KV, b_D, b_scale, b_mix, b_points or b_omega: its memory (of a second one
               b_KV.1 …); and metadata that say what φ is
    Carried    state.NAME, for every array that its family has

Directions that were drawn from a seed are not written, but drawn again: the metadata have the seed,
and a digest that the directions must have.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array
from ..attention.memory import LogFeatures, Memory, Points
from ..attention.random_features import KINDS, RandomFeatures, random_features
from ..attention.state import KVCache, State
from ..checks import integer, shape
from ..errors import brief, choose
from ..model.recurrence import Carried
from ..systems import SystemArray, floats, system_of
from ..systems.array import array_namespace, device

MEMORY = {"S": "b_KV", "z": "b_D", "scale": "b_scale", "mix": "b_mix"}
MAP = {"points": "b_points", "omega": "b_omega"}
Past = Any  # State, KVCache or Carried


class PastFormat(NamedTuple):
    """Arrays and metadata of one kind of past, the way back, and which names are its own."""

    arrays: Callable[[Any], dict[str, Array]]
    metadata: Callable[[Any], list[dict[str, Any]]]
    from_arrays: Callable[[Mapping[str, Any], Any, int, Any, int], Any]
    owns: Callable[[str], bool]


# State


def state_arrays(state: State) -> dict[str, Array]:
    return {"b_KV": state.S} | ({} if state.z is None else {"b_D": state.z})


def state_from_arrays(arrays: Mapping[str, Any], metadata: Any, position: int, kernel: Any, width: int) -> State:
    require_arrays(arrays, "b_KV")
    return State(arrays["b_KV"], arrays.get("b_D"), position)


def state_owns(name: str) -> bool:
    return name in ("b_KV", "b_D")


def require_arrays(arrays: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if name not in arrays:
            raise ValueError(f"`{name}` must be in the file for each layer, since other biases are, got no such name")


# KVCache


def cache_arrays(cache: KVCache) -> dict[str, Array]:
    found = {"cache.k": cache.k, "cache.v": cache.v}
    for j, memory in enumerate(cache.memories):
        found |= {numbered(name, j): x for name, x in memory_arrays(memory).items()}
    return found


def cache_metadata(cache: KVCache) -> list[dict[str, Any]]:
    """For each memory, its map and where it comes from."""
    return [map_metadata(m.phi) | ({"about": m.about} if m.about else {}) for m in cache.memories]


def cache_from_arrays(arrays: Mapping[str, Any], metadata: Any, position: int, kernel: Any, width: int) -> KVCache:
    require_arrays(arrays, "cache.k", "cache.v")
    if not isinstance(metadata, list) or not all(isinstance(spec, dict) for spec in metadata):
        raise ValueError(f"`maps` must be a list of objects for each layer, got {brief(metadata)}")
    left = dict(arrays)
    k, v, memories = left.pop("cache.k"), left.pop("cache.v"), []
    shape("metadata", "cache.k", k, "tokens", "width")
    for j, spec in enumerate(metadata):
        own = {field: left.pop(numbered(name, j), None) for field, name in (MEMORY | MAP).items()}
        if own["S"] is None:
            raise ValueError(f"`{numbered('b_KV', j)}` must be in the file for each map, got none for {brief(spec)}")
        memories.append(memory_from_arrays(own, spec, kernel.rope, width))
    if left:
        raise ValueError(f"`{min(left)}` must have a map in the metadata `maps`, got none")
    n = (
        np.arange(k.shape[-2])
        if isinstance(k, SystemArray)
        else array_namespace(k).arange(k.shape[-2], device=device(k))
    )
    return KVCache(k, v, n[None, :] >= 0, position, tuple(memories))


def cache_owns(name: str) -> bool:
    return re.fullmatch(r"cache\.(k|v)|b_(KV|D|scale|mix|points|omega)(\.[1-9]\d{0,3})?", name) is not None


def numbered(name: str, j: int) -> str:
    """The name of an array of memory j: the first memory has no number."""
    return f"{name}.{j}" if j else name


def memory_arrays(memory: Memory) -> dict[str, Array]:
    found = {name: getattr(memory, field) for field, name in MEMORY.items()}
    if not is_drawn(memory.phi):
        found |= {name: getattr(memory.phi, field, None) for field, name in MAP.items()}
    return {name: x for name, x in found.items() if x is not None}


def memory_from_arrays(arrays: dict[str, Any], spec: dict[str, Any], rope: Any, width: int) -> Memory:
    shape("metadata", "b_KV", arrays["S"], "features", "values")
    phi = map_from_metadata(spec, arrays.pop("points"), arrays.pop("omega"), arrays["S"], rope, width)
    return Memory(phi, **arrays, about=str(spec.get("about", ""))[:200])


def is_drawn(phi: LogFeatures) -> bool:
    return getattr(phi, "seed", None) is not None


def map_metadata(phi: LogFeatures) -> dict[str, Any]:
    if isinstance(phi, Points):
        return {"map": "points"}
    spec: dict[str, Any] = {"map": phi.kind, "A": str(Fraction(phi.A))}
    if not is_drawn(phi):
        return spec
    digest = hashlib.sha256(floats(phi.drawn).astype("<f8").tobytes()).hexdigest()
    return spec | {"seed": phi.seed, "turn": phi.turn, "omega": digest}


def map_from_metadata(spec: dict[str, Any], points: Any, omega: Any, S: Any, rope: Any, width: int) -> LogFeatures:
    """φ from its metadata, and the arrays it has in the file."""
    kind = str(spec.get("map"))
    choose("metadata", "map", kind, ("points", *KINDS))
    if (kind == "points") != (points is not None):
        raise ValueError(f"`b_points` must be in the file exactly for a map 'points', got the map {brief(kind)}")
    if kind == "points":
        return Points(points)
    ratio = re.fullmatch(r"(-?\d{1,400})(?:/(\d{1,400}))?", str(spec.get("A")))
    if not ratio or not int(ratio[2] or 1):
        raise ValueError(f"`A` must be a fraction such as '-1/8', got {brief(spec.get('A'))}")
    A = Fraction(int(ratio[1]), int(ratio[2] or 1))
    if kind == "taylor" or "seed" not in spec:
        return RandomFeatures(kind, omega, A)
    if omega is not None:
        raise ValueError("`b_omega` must not be in the file for directions drawn from a seed, got both")
    seed = integer("metadata", "seed", spec["seed"], least=0, most=2**64 - 1)
    turn = integer("metadata", "turn", spec.get("turn"), least=-(2**53), most=2**53)
    drawn = "positive" if kind == "favor++" else kind
    omega = random_features(drawn, S.shape[-2], width, seed=seed, system=system_of(S)).omega
    phi = RandomFeatures(kind, omega, A, seed, drawn=omega)
    if map_metadata(phi)["omega"] != spec.get("omega"):
        cause = "drawn by another library, or changed"
        raise ValueError(f"`omega` must be the digest of the directions of seed {seed}, got another: {cause}")
    if turn and rope is None:
        raise ValueError(f"`turn` must be 0 in a model without RoPE, got {turn}")
    return phi.rotated(rope, turn) if turn else phi


# Carried


def carried_arrays(carried: Carried) -> dict[str, Array]:
    return {f"state.{name}": x for name, x in carried.parts.items()}


def carried_from_arrays(arrays: Mapping[str, Any], metadata: Any, position: int, kernel: Any, width: int) -> Carried:
    return Carried({name.removeprefix("state."): x for name, x in arrays.items()}, position)


def carried_owns(name: str) -> bool:
    return re.fullmatch(r"state\.\w+", name) is not None


def no_metadata(past: Past) -> list[dict[str, Any]]:
    return []


FORMATS = {
    State: PastFormat(state_arrays, no_metadata, state_from_arrays, state_owns),
    KVCache: PastFormat(cache_arrays, cache_metadata, cache_from_arrays, cache_owns),
    Carried: PastFormat(carried_arrays, no_metadata, carried_from_arrays, carried_owns),
}
