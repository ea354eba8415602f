"""A prompt as a memory of fixed size, beside tokens that softmax attention sees exactly.

    sim(x, y) = exp(x·y) ≈ φ(x)·φ(y)        x = √c q, y = √c k, where attention has exp(c q·k)

    b_KV = Σ_j φ(y_j) v_jᵀ = exp(scale) S        b_D = Σ_j φ(y_j) = exp(scale) z

A feature is f exp(c), with an exponent c of its own, and a memory carries the logarithm of its
scale. So no key is too large, no ε is added, and later keys change nothing that was read before.
For maps whose features are all positive, S and z are divided by z, and `scale` grows by its
logarithm: each feature is then a token, with value S_i and log-weight scale_i.

Source   Chen et al. 2024 (ICLAA); the carried scale, feature by feature, is ours
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol, Self

from ..arrays import Array, row_tiles
from ..checks import check_finite, check_shape, check_type, common_namespace, divide, leading_axes
from ..errors import NotDefined
from ..systems.floats import array_namespace, itemsize, quiet
from .rope import Rope


class LogFeatures(Protocol):
    """A feature map of the kernel exp(x·y), evaluated by logarithms: RandomFeatures or Points.

    positive               whether all features, and all sums of them that are kept, are > 0
    nbytes                 bytes needed to evaluate it
    log                    (f, c) with φ(x) = f exp(c)
    features               the number of features of vectors of width d
    directions             the arrays (..., rows, d) by which x is multiplied, by name
    rotated                the map φ' with φ'(R_by x) = φ(x)
    map_arrays             the same map with f(x, 2) for every array x
    arrays, metadata       the arrays and the metadata that a file needs
    """

    @property
    @abstractmethod
    def positive(self) -> bool: ...
    @property
    @abstractmethod
    def directions(self) -> dict[str, Array] | None: ...
    @abstractmethod
    def log(self, x: Array, /) -> tuple[Array, Array]: ...
    @abstractmethod
    def features(self, d: int) -> int: ...
    @abstractmethod
    def rotated(self, rope: Rope, by: int) -> Self: ...
    @abstractmethod
    def map_arrays(self, f: Callable[[Array, int], Array]) -> Self: ...
    @abstractmethod
    def arrays(self) -> dict[str, Array]: ...
    @abstractmethod
    def metadata(self) -> dict[str, Any]: ...

    @property
    def nbytes(self) -> int:
        """Bytes needed to evaluate it."""
        return sum(prod(x.shape) * itemsize(x) for x in self.arrays().values())


@dataclass(frozen=True, eq=False)
class Points(LogFeatures):
    """The kernel at points of its own: φ(x)_i = exp(x·p_i).   points : (..., r, d)   Needs real

    Rotation-covariant: φ_p(R x) = φ_{Rᵀp}(x).
    """

    points: Array
    positive = False  # the features are positive, but their sums (Nyström) may not be

    def log(self, x: Array, /) -> tuple[Array, Array]:
        """(1, x·p_i)"""
        xp = common_namespace("Points", x=x, points=self.points)
        check_shape("Points", "x", x, "tokens", self.points.shape[-1], like="to match `points`")
        c = x @ xp.matrix_transpose(self.points)
        return xp.ones_like(c), c

    def features(self, d: int) -> int:
        return self.points.shape[-2]

    def rotated(self, rope: Rope, by: int) -> Points:
        """p ← R_by p"""
        return Points(rope(self.points, [by] * self.points.shape[-2]))

    def map_arrays(self, f: Callable[[Array, int], Array]) -> Points:
        return Points(f(self.points, 2))

    def arrays(self) -> dict[str, Array]:
        return {"points": self.points}

    @property
    def directions(self) -> dict[str, Array]:
        return self.arrays()

    def metadata(self) -> dict[str, Any]:
        return {"map": "points"}


# The arrays of a memory: 2 for a matrix or 1 for a vector, and the name in a file.
ARRAYS = {"S": (2, "b_KV"), "z": (1, "b_D"), "scale": (1, "b_scale"), "mix": (2, "b_mix")}


@dataclass(frozen=True, eq=False)
class Memory:
    """S (..., r, m), z (..., r) (None: 1) and scale (..., r) or (..., 1) (None: 0), read through φ.

    mix : (..., ρ, m+1), for a memory of rank ρ: [b_KV b_D] = exp(scale) S mix, with S (..., r, ρ)
    about : a sentence on where it comes from
    """

    phi: LogFeatures
    S: Array
    z: Array | None = None
    scale: Array | None = None
    mix: Array | None = None
    about: str = ""

    @quiet()
    def read(self, x: Array) -> tuple[Array, Array, Array]:
        """(num, den, top) with φ(x)ᵀ b_KV = exp(top) num and φ(x)ᵀ b_D = exp(top) den.

        x : (..., n, d), which is √c q    ->  num (..., n, m), den (..., n, 1), top (..., n, 1): the
        largest exponent of each token
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

    def own_arrays(self) -> dict[str, Array]:
        """S, z, scale and mix by name, without those that are None."""
        return {name: x for name in ARRAYS if (x := getattr(self, name)) is not None}

    def map_arrays(self, f: Callable[[Array, int], Array]) -> Memory:
        """The same memory with f(x, axes) for each array x; axes: 2 for a matrix, 1 for a vector"""
        own: dict[str, Any] = {name: f(x, ARRAYS[name][0]) for name, x in self.own_arrays().items()}
        return replace(self, phi=self.phi.map_arrays(f), **own)

    def arrays(self) -> dict[str, Array]:
        """Its arrays, by the names that they have in a file."""
        own = {ARRAYS[name][1]: x for name, x in self.own_arrays().items()}
        return own | {f"b_{name}": x for name, x in self.phi.arrays().items()}

    def metadata(self) -> dict[str, Any]:
        """The metadata that a file needs: its map, and `about`."""
        return self.phi.metadata() | ({"about": self.about} if self.about else {})

    def shifted(self, by: int, rope: Rope | None) -> Memory:
        """The same past, seen from `by` positions further on."""
        return self if rope is None or not by else replace(self, phi=self.phi.rotated(rope, by))

    def scaled(self, strength: Any) -> Memory:
        """The memory of a past that counts `strength` times."""
        if self.mix is not None:
            return replace(self, mix=strength * self.mix)
        z = array_namespace(self.S).ones_like(self.S[..., 0]) if self.z is None else self.z
        return replace(self, S=strength * self.S, z=strength * z)

    @property
    def nbytes(self) -> int:
        """The bytes of its arrays and of φ. Directions drawn from a seed count as the seed."""
        return sum(prod(x.shape) * itemsize(x) for x in self.own_arrays().values()) + self.phi.nbytes


def check_map(who: str, phi: object) -> None:
    if not all(callable(getattr(phi, name, None)) for name in ("log", "rotated")):
        raise TypeError(f"{who}: `phi` must be a map such as `random_features` makes, got {type(phi).__name__}")


@quiet()
def write(phi: LogFeatures, y: Array, v: Array, /) -> Memory:
    """The memory of keys and values.

        φ(y_j) = f_j exp(c_j)        scale = max_j c_j
        S = Σ_j f_j exp(c_j − scale) v_jᵀ        z = Σ_j f_j exp(c_j − scale)

    y : (..., M, d), which is √c k    v : (..., M, m)
    Features of a long prompt are made some keys at a time: all would need M r numbers.
    """
    xp = common_namespace("write", y=y, v=v)
    check_map("write", phi)
    check_shape("write", "y", y, "tokens", "width")
    check_shape("write", "v", v, y.shape[-2], "values", like="to match `y`")
    lead = leading_axes("write", y=y, v=v)
    if not y.shape[-2]:
        raise ValueError("write: `y` must have at least one token (a memory of no tokens has no scale), got none")
    memory: Memory | None = None
    for rows in row_tiles(y.shape[-2], itemsize(y) * prod(lead) * phi.features(y.shape[-1])):
        f, c = phi.log(y[..., rows, :])
        scale = xp.max(c, axis=-2, keepdims=True)
        w = f * xp.exp(c - scale)  # (..., keys, r)
        S, z = xp.matrix_transpose(w) @ v[..., rows, :], xp.sum(w, axis=-2)
        tile = Memory(phi, S, z, scale[..., 0, :])
        memory = tile if memory is None else add_sums(memory, tile)
    assert memory is not None  # there is a key
    return as_weighted_means(memory)


@quiet()
def join(a: Memory, b: Memory) -> Memory:
    """Both pasts in one memory. Both must have been written through one map.

    scale = max(scale_a, scale_b)
    S = exp(scale_a − scale) S_a + exp(scale_b − scale) S_b        z likewise
    """
    if a.phi is not b.phi or a.mix is not None or b.mix is not None:
        wanted = "if they were written through one map, in full rank"
        raise NotDefined(f"join: memories can be joined only {wanted}; keep both")
    common_namespace("join", a=a.S, b=b.S)
    check_shape("join", "b.S", b.S, *a.S.shape[-2:], like="to match `a.S`")
    both = add_sums(a, b)
    # A memory that counts λ times may have z ≤ 0, which has no logarithm.
    return as_weighted_means(both) if a.z is None and b.z is None else both


def add_sums(a: Memory, b: Memory) -> Memory:
    """The sums of both, at the larger scale."""
    (S, z, p), (T, y, q) = sums_and_scale(a), sums_and_scale(b)
    xp = array_namespace(S)
    scale = xp.maximum(p, q)
    p, q = xp.exp(p - scale), xp.exp(q - scale)
    return Memory(a.phi, p[..., None] * S + q[..., None] * T, p * z + q * y, scale)


def linear_attention_carried(
    q: Array, k: Array, v: Array, /, *, phi: LogFeatures, memory: Memory | None = None
) -> tuple[Array, Memory | None]:
    """Causal linearized attention from a running memory: no feature overflows or vanishes.

        memory_t = join(memory_{t-1}, write(φ, k_t, v_t))        o_t = φ(q_t)ᵀ b_KV / φ(q_t)ᵀ b_D

    q, k : (..., n, d), which φ takes as they are    v : (..., n, m)
    ->  o : (..., n, m), the memory after the last token
    Equals   linear_attention with the same φ (theorem carried_eq_sum)
    """
    who = "linear_attention_carried"
    xp = common_namespace(who, q=q, k=k, v=v)
    check_map(who, phi)
    if memory is not None:
        check_type(who, "memory", memory, Memory)
    check_shape(who, "q", q, "tokens", "width")
    check_shape(who, "k", k, *q.shape[-2:], like="to match `q`")
    check_shape(who, "v", v, q.shape[-2], "values", like="to match `q`")
    o = [q[..., :0, :] @ (xp.matrix_transpose(k[..., :0, :]) @ v[..., :0, :])]
    for t in range(q.shape[-2]):
        token = write(phi, k[..., t : t + 1, :], v[..., t : t + 1, :])
        memory = token if memory is None else join(memory, token)
        num, den, _ = memory.read(q[..., t : t + 1, :])
        o.append(divide(who, num, den, "φ(q)·z", start=t))
    return xp.concat(o, axis=-2), memory


def sums_and_scale(memory: Memory) -> tuple[Array, Array, Array]:
    """S, z and scale, with ones for z = None and zeros for scale = None."""
    one = array_namespace(memory.S).ones_like(memory.S[..., 0])
    z, scale = memory.z, memory.scale
    return memory.S, one if z is None else z, 0 * one if scale is None else scale


def as_weighted_means(memory: Memory) -> Memory:
    """For positive features: divide S by z, so that S has means of values, and put z into scale."""
    if not memory.phi.positive or memory.z is None or memory.scale is None:
        return memory
    scale = memory.scale + array_namespace(memory.z).log(memory.z)
    return Memory(memory.phi, memory.S / memory.z[..., None], None, scale)


def read_memories(memories: Sequence[Memory], x: Array) -> tuple[Array, Array, Array] | None:
    """The sums over all memories, in the form of `Memory.read`; None without memories."""
    reads = [memory.read(x) for memory in memories]
    if len(reads) < 2:
        return reads[0] if reads else None
    xp, top = array_namespace(x), reads[0][2]
    for _, _, t in reads[1:]:
        top = xp.maximum(top, t)
    weights = [xp.exp(t - top) for _, _, t in reads]
    num, den = (sum(w * read[i] for w, read in zip(weights, reads, strict=True)) for i in (0, 1))
    return num, den, top  # type: ignore[return-value]


def check_memory(who: str, memory: Memory, d: int, m: int, *groups: int, **like: Array) -> None:
    """Refuse a memory that does not fit queries of width d, m values, or these arrays."""
    S, mix, scale, r = memory.S, memory.mix, memory.scale, memory.S.shape[-2]
    arrays = {f"memory.{name}": x for name, x in memory.own_arrays().items()}
    arrays |= {f"memory.phi.{name}": x for name, x in (memory.phi.directions or {}).items()}
    common_namespace(who, **like, **arrays)
    check_shape(who, "memory.S", S, *groups, "features", m if mix is None else "rank")
    scales = 1 if scale is not None and tuple(scale.shape[-1:]) == (1,) else r
    wanted: dict[str, tuple[int | str, ...]] = {"memory.S": S.shape[-2:], "memory.z": (r,), "memory.scale": (scales,)}
    wanted |= {"memory.mix": (S.shape[-1], m + 1), "memory.phi.points": (r, d)}
    for name, x in arrays.items():
        tail = (*groups, *wanted[name]) if name in wanted else ("directions", d)
        check_shape(who, name, x, *tail, like="to match `memory.S`")
        check_finite(who, name, x, axes=("row", "column")[-min(x.ndim, 2) :])
    features = memory.phi.features(d)
    if not r or features != r:
        raise ValueError(f"{who}: `memory.S` must have the {features or 1} features of its map, got {r}")
    vectors = ("memory.z", "memory.scale")
    common = leading_axes(who, **{name: x[..., None, :] if name in vectors else x for name, x in arrays.items()})
    if groups and common != tuple(S.shape[:-2]):
        axes = f"all leading axes that its other arrays have, {common}"
        raise ValueError(f"{who}: `memory.S` must have {axes}, got {tuple(S.shape[:-2])}")
