"""What a prompt can be to softmax attention: a memory of fixed size, beside the tokens that are seen exactly.

    sim(x, y) = exp(x·y) ≈ φ(x)·φ(y)        x = √c q, y = √c k, where attention has exp(c q·k)

    b_KV = Σ_j φ(y_j) v_jᵀ = exp(scale) S        b_D = Σ_j φ(y_j) = exp(scale) z

Features are made as φ(x) = f exp(c), and a memory carries the log-scale of its sums: nothing overflows however large a key is,
no ε is added, and what comes later changes nothing that was read before. For maps whose features are all positive S and z are
divided by z and `scale` grows by its logarithm: each feature is then a token, with value S_i and log-weight scale_i.

Source   Chen et al. 2024 (ICLAA), as read in notes on it; the carried scale, feature by feature, is ours
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ..checks import divide, finite, lead, namespace, shape
from ..errors import NotDefined
from ..systems.floats import array_namespace, itemsize
from .rope import Rope

# A map of the kernel exp(x·y) by logarithms, RandomFeatures or Points: `log(x)` -> (f, c), `rotated(rope, by)`, and is it `positive`?
LogFeatures = Any


@dataclass(frozen=True, eq=False)
class Points:
    """The kernel itself, at points of its own: φ(x)_i = exp(x·p_i).   points : (..., r, d)   Needs real

    Rotation-covariant: φ_p(R x) = φ_{Rᵀp}(x).
    """

    points: Any
    positive = False  # they are, but what is summed over them (Nyström) is not

    def log(self, x: Any) -> tuple[Any, Any]:
        """φ(x) = f exp(c): 1, and x·p_i."""
        xp = namespace("Points", x=x, points=self.points)
        shape("Points", "x", x, "tokens", self.points.shape[-1], like="to match `points`")
        c = x @ xp.matrix_transpose(self.points)
        return xp.ones_like(c), c

    def rotated(self, rope: Rope, by: int) -> Points:
        """The map with p ← R_by p, which sees R_by x as this one sees x."""
        return Points(rope(self.points, [by] * self.points.shape[-2]))


@dataclass(frozen=True, eq=False)
class Memory:
    """S (..., r, m), z (..., r) (None: 1) and scale (..., r) or (..., 1) (None: 0), read through φ.

    mix : (..., ρ, m+1), for a memory of rank ρ: [b_KV b_D] = exp(scale) S mix, S (..., r, ρ)      about : where it comes from, in words
    """

    phi: LogFeatures
    S: Any
    z: Any = None
    scale: Any = None
    mix: Any = None
    about: str = ""

    def read(self, x: Any) -> tuple[Any, Any, Any]:
        """(num, den, top) with φ(x)ᵀ b_KV = exp(top) num and φ(x)ᵀ b_D = exp(top) den; top is the largest exponent of each token.

        x : (..., n, d), which is √c q    ->  num (..., n, m), den (..., n, 1), top (..., n, 1)
        """
        xp = array_namespace(x)
        f, c = self.phi.log(x)
        c = c if self.scale is None else c + self.scale[..., None, :]
        top = xp.max(c, axis=-1, keepdims=True)
        w = f * xp.exp(c - top)  # (..., n, r)
        if self.mix is not None:
            both = w @ self.S @ self.mix
            return both[..., :-1], both[..., -1:], top
        den = xp.sum(w if self.z is None else w * self.z[..., None, :], axis=-1, keepdims=True)
        return w @ self.S, den, top

    def each(self, f: Callable[[Any, int], Any]) -> Memory:
        """The same with f(x, how many axes are its own) for every array x."""
        arrays = {name: f(x, n) for name, n in AXES.items() if (x := getattr(self, name)) is not None}
        inner = {name: f(x, 2) for name in ("points", "omega") if (x := getattr(self.phi, name, None)) is not None}
        return replace(self, phi=replace(self.phi, **inner), **arrays)  # type: ignore[type-var]

    def shifted(self, by: int, rope: Rope | None) -> Memory:
        """The same past, seen from `by` positions further on."""
        return self if rope is None or not by else replace(self, phi=self.phi.rotated(rope, by))

    def scaled(self, strength: Any) -> Memory:
        """A past that counts `strength` times."""
        if self.mix is not None:
            return replace(self, mix=strength * self.mix)
        xp = array_namespace(self.S)
        z = xp.ones_like(self.S[..., 0]) if self.z is None else self.z
        return replace(self, S=strength * self.S, z=strength * z)

    @property
    def nbytes(self) -> int:
        """All that is needed to read it: its arrays, and those of φ; directions that were drawn from a seed count as that seed."""
        own = [getattr(self, name) for name in AXES]
        drawn = getattr(self.phi, "seed", None) is not None
        inner = [] if drawn else [getattr(self.phi, name, None) for name in ("points", "omega")]
        return sum(prod(x.shape) * itemsize(x) for x in (*own, *inner) if x is not None) + numbers_of(self.phi)


def numbers_of(phi: LogFeatures) -> int:
    """Bytes of what a map is beside its arrays: the seed from which they are drawn and the turn since, and A."""
    return 16 * (getattr(phi, "seed", None) is not None) + 8 * (getattr(phi, "A", 0) != 0)


AXES = {"S": 2, "z": 1, "scale": 1, "mix": 2}


def write(phi: LogFeatures, y: Any, v: Any, /) -> Memory:
    """The memory of keys and values.

        φ(y_j) = f_j exp(c_j)        scale = max_j c_j        S = Σ_j f_j exp(c_j − scale) v_jᵀ        z = Σ_j f_j exp(c_j − scale)

    y : (..., M, d), which is √c k    v : (..., M, m)
    """
    xp = namespace("write", y=y, v=v)
    shape("write", "v", v, y.shape[-2], "values", like="to match `y`")
    lead("write", y=y, v=v)
    if not y.shape[-2]:
        raise ValueError("write: `y` must have a token or more, since nothing has no scale, got none")
    f, c = phi.log(y)
    scale = xp.max(c, axis=-2, keepdims=True)
    w = f * xp.exp(c - scale)  # (..., M, r)
    return settled(Memory(phi, xp.matrix_transpose(w) @ v, xp.sum(w, axis=-2), scale[..., 0, :]))


def join(a: Memory, b: Memory) -> Memory:
    """Both pasts in one memory. Both must have been written through one map.

    scale = max(scale_a, scale_b)        S = exp(scale_a − scale) S_a + exp(scale_b − scale) S_b        z likewise
    """
    if a.phi is not b.phi or a.mix is not None or b.mix is not None:
        raise NotDefined(
            "join: memories can be joined only if they were written through one map, in full rank; keep both"
        )
    (S, z, p), (T, y, q) = (parts(m) for m in (a, b))
    xp = namespace("join", a=S, b=T)
    scale = xp.maximum(p, q)
    p, q = xp.exp(p - scale), xp.exp(q - scale)
    both = Memory(a.phi, p[..., None] * S + q[..., None] * T, p * z + q * y, scale)
    return (
        settled(both) if a.z is None and b.z is None else both
    )  # one that counts λ times may have z ≤ 0, of which there is no logarithm


def linear_attention_carried(
    q: Any, k: Any, v: Any, /, *, phi: LogFeatures, memory: Memory | None = None
) -> tuple[Any, Memory | None]:
    """Causal linearized attention from a running memory: as the recurrent form, but no feature overflows or vanishes.

        memory_t = join(memory_{t-1}, write(φ, k_t, v_t))        o_t = φ(q_t)ᵀ b_KV / φ(q_t)ᵀ b_D

    q, k : (..., n, d), which φ takes as they are    v : (..., n, m)    ->  o : (..., n, m), the memory after the last token
    Equals   linear_attention with the same φ (theorem carried_eq_sum)
    """
    xp = namespace("linear_attention_carried", q=q, k=k, v=v)
    shape("linear_attention_carried", "k", k, *q.shape[-2:], like="to match `q`")
    shape("linear_attention_carried", "v", v, q.shape[-2], "values", like="to match `q`")
    o = [q[..., :0, :] @ (xp.matrix_transpose(k[..., :0, :]) @ v[..., :0, :])]
    for t in range(q.shape[-2]):
        token = write(phi, k[..., t : t + 1, :], v[..., t : t + 1, :])
        memory = token if memory is None else join(memory, token)
        num, den, _ = memory.read(q[..., t : t + 1, :])
        o.append(divide("linear_attention_carried", num, den, "φ(q)·z", start=t))
    return xp.concat(o, axis=-2), memory


def parts(memory: Memory) -> tuple[Any, Any, Any]:
    """S, z and scale, with their 1 and 0 written out."""
    xp, S = array_namespace(memory.S), memory.S
    one = xp.ones_like(S[..., 0])
    return S, one if memory.z is None else memory.z, 0 * one if memory.scale is None else memory.scale


def settled(memory: Memory) -> Memory:
    """Where all features are positive: means of values, and log-weights."""
    if not memory.phi.positive or memory.z is None:
        return memory
    return Memory(
        memory.phi, memory.S / memory.z[..., None], None, memory.scale + array_namespace(memory.z).log(memory.z)
    )


def remembered(memories: Sequence[Memory], x: Any) -> tuple[Any, Any, Any] | None:
    """What all memories together say of x, as `Memory.read` says it; None if there are none."""
    said = [memory.read(x) for memory in memories]
    if len(said) < 2:
        return said[0] if said else None
    xp, top = array_namespace(x), said[0][2]
    for _, _, t in said[1:]:
        top = xp.maximum(top, t)
    weights = [xp.exp(t - top) for _, _, t in said]
    num, den = (sum(w * part[i] for w, part in zip(weights, said, strict=True)) for i in (0, 1))
    return num, den, top


def check_memory(who: str, memory: Memory, d: int, m: int, *groups: int, **like: Any) -> None:
    """Refuse a memory that does not go with queries of width d, values of width m, and arrays like these."""
    phi, S, mix = memory.phi, memory.S, memory.mix
    arrays = {"S": S, "z": memory.z, "scale": memory.scale, "mix": mix, "phi.points": getattr(phi, "points", None)}
    arrays |= {"phi.omega": getattr(phi, "omega", None)}
    given = {f"memory.{name}": x for name, x in arrays.items() if x is not None}
    xp = namespace(who, **like, **given)
    shape(who, "memory.S", S, *groups, "features", m if mix is None else "rank")
    r = S.shape[-2]
    features = getattr(phi, "features", lambda d: r)(d)
    if not r or features != r:
        raise ValueError(f"{who}: `memory.S` must have the {features or 1} features of its map, got {r}")
    wanted: dict[str, tuple[int | str, ...]] = {
        "z": (*groups, r),
        "scale": (*groups, 1 if tuple(memory.scale.shape[-1:]) == (1,) else r) if memory.scale is not None else (),
        "mix": (*groups, S.shape[-1], m + 1),
        "phi.points": (*groups, r, d),
        "phi.omega": ("directions", d),
    }
    for name, x in arrays.items():
        if x is not None and name != "S":
            shape(who, f"memory.{name}", x, *wanted[name], like="to match `memory.S`")
        if x is not None:
            finite(who, f"memory.{name}", xp, x, axes=("row", "column")[-min(x.ndim, 2) :])
    matrices = {
        name: x if AXES.get(name.removeprefix("memory."), 2) == 2 else x[..., None, :] for name, x in given.items()
    }
    lead(who, **matrices)
