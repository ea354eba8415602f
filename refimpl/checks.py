"""Checks of arguments. Each error names function, argument, what must hold and what came."""

from __future__ import annotations

import operator
from fractions import Fraction
from typing import Any

from array_api_compat import is_array_api_obj

from .arrays import Array, Namespace
from .errors import NotFinite, ZeroDenominator, brief, choose
from .systems import ArraySystem, SystemArray, refuse_masked, system_of
from .systems.floats import array_namespace, device, integer_array, quiet, surely_finite

inf = float("inf")
Shape = tuple[int, ...]
Axes = tuple[str, ...]  # names of the last axes of an array, for its errors
TOKENS: Axes = ("token", "column")
MOST_AXES = 32  # of an array: NumPy has room for 64, but not in all functions, and formulas add some
_checked_kinds: set[tuple[type, Any]] = set()  # (type, dtype) of arrays that were found to be floats


def common_namespace(who: str, **arrays: Any) -> Namespace:
    """The array namespace that all these arrays share."""
    check_kinds(who, **arrays)
    return array_namespace(next(iter(arrays.values())))


def check_kinds(who: str, **arrays: Any) -> None:
    """Refuse arrays of different libraries, number systems, devices or dtypes."""
    first, x = next(iter(arrays.items()))
    usual = isinstance(x, SystemArray) or (type(x), getattr(x, "dtype", None)) in _checked_kinds
    for name, y in arrays.items():
        if not (usual and type(y) is type(x) and y.dtype is x.dtype and y.device == x.device):
            check_kind(who, name, y, first, x)


def check_kind(who: str, name: str, y: Any, first: str, x: Any) -> None:
    """Refuse y unless it is an array of numbers, and of the same kind as x."""
    if not isinstance(y, SystemArray):
        if isinstance(y, type) or not is_array_api_obj(y):
            kinds = "(NumPy, torch, JAX, or of a refimpl system)"
            raise TypeError(f"{who}: `{name}` must be an array {kinds}, got {type(y).__name__}")
        refuse_masked(who, name, y)
        check_dtype(who, name, y)
    kind = "number system" if isinstance(x, SystemArray) or isinstance(y, SystemArray) else "library"
    same = (kind, library_of(y), library_of(x)), ("device", device(y), device(x)), ("dtype", y.dtype, x.dtype)
    for what, a, b in same:
        if a != b:
            raise TypeError(f"{who}: `{name}` has {what} {a}, `{first}` has {b}; convert one of them explicitly")
    if hasattr(y, "device"):
        _checked_kinds.add((type(y), y.dtype))


def library_of(x: Any) -> str:
    """The name of the number system or the library of an array."""
    if isinstance(x, SystemArray):
        return x.system.name
    return array_namespace(x).__name__.removeprefix("array_api_compat.")


def check_dtype(who: str, name: str, x: Any) -> None:
    kind = str(x.dtype)
    if kind == "object":
        advice = "make it exact with QQ.convert or another system's convert"
        raise TypeError(f"{who}: `{name}` is an object array; {advice}")
    if library_of(x) == "numpy" and x.dtype.kind == "V":
        advice = f"use Rounded({kind!r}) or torch"
        raise TypeError(f"{who}: `{name}` is {kind}, whose products NumPy forms in float32; {advice}")
    if not array_namespace(x).isdtype(x.dtype, ("real floating", "complex floating")):
        raise TypeError(f"{who}: `{name}` must be real or complex floating, got {kind}; convert it explicitly")


def check_finite_arrays(who: str, **arrays: Array) -> Namespace:
    """The namespace that all these arrays share. None of them may hold nan or inf."""
    xp = common_namespace(who, **arrays)
    for name, x in arrays.items():
        check_finite(who, name, x, axes=("row", "column")[-x.ndim :])
    return xp


def is_true(condition: Any) -> bool:
    """Is this boolean true? Arrays without values (torch meta, traced JAX) give False."""
    try:
        return bool(condition)
    except (TypeError, RuntimeError, NotImplementedError):
        return False


def is_zero(x: Any) -> bool:
    """Is this number zero? It is a Python number or an array of shape ()."""
    return is_true(x.system.singular(x) if isinstance(x, SystemArray) else x == 0)


def check_type(who: str, name: str, x: object, kind: type) -> None:
    if not isinstance(x, kind):
        raise TypeError(f"{who}: `{name}` must be a {kind.__name__}, got {type(x).__name__}")


def check_integer(who: str, name: str, x: Any, *, least: float = -inf, most: float = inf, other: str = "") -> int:
    """x as a Python integer. Refuse bool, other types, and integers outside the limits."""
    try:
        i = operator.index(x)
        right = not isinstance(x, bool) and least <= i <= most
    except TypeError:
        right = False
    if not right:
        limits = "" if least == -inf else f" ≥ {least}" if most == inf else f" between {least} and {most}"
        raise ValueError(f"{who}: `{name}` must be {other}an integer{limits}, got {brief(x)}")
    return i


def check_flag(who: str, name: str, x: object) -> None:
    if type(x).__name__ not in ("bool", "bool_"):
        raise TypeError(f"{who}: `{name}` must be True or False, got {brief(x)}")


def check_sequence(who: str, name: str, x: object) -> None:
    if not isinstance(x, tuple | list):
        raise TypeError(f"{who}: `{name}` must be a tuple, got {type(x).__name__}")


def check_function(who: str, name: str, x: object) -> None:
    if not callable(x):
        raise TypeError(f"{who}: `{name}` must be a function, got {type(x).__name__}")


def check_token_ids(who: str, name: str, x: Any, vocabulary: int) -> Any:
    """Token ids (..., n) as a NumPy array; None if x is an array of other numbers."""
    if isinstance(x, SystemArray) or (is_array_api_obj(x) and not array_namespace(x).isdtype(x.dtype, "integral")):
        return None
    refuse_masked(who, name, x)
    ids = integer_array(x)
    if ids is None:
        raise TypeError(f"{who}: `{name}` must be token ids (..., tokens) or an array of vectors, got {brief(x)}")
    check_shape(who, name, ids, "tokens")
    wrong = (ids < 0) | (ids >= vocabulary)
    if wrong.any():
        got = f"{ids[first_index(wrong)]} at {locate(wrong, ('token',))}"
        raise ValueError(f"{who}: `{name}` must hold ids from 0 to {vocabulary - 1}, got {got}")
    return ids.astype(int)


def check_scalar(who: str, name: str, x: Any, /, **like: Array) -> Any:
    """x, if it can multiply arrays like these: a number, or an array of their kind and shape ()."""
    if isinstance(x, SystemArray) or is_array_api_obj(x):
        common_namespace(who, **like, **{name: x})
        if x.ndim:
            raise ValueError(f"{who}: `{name}` must be one number, of shape (), got shape {tuple(x.shape)}")
        return x
    exact = isinstance(next(iter(like.values())), SystemArray)
    kinds = int | float | Fraction if exact else int | float  # an exact system itself refuses floats
    if isinstance(x, bool) or not isinstance(x, kinds):
        wanted = "Fraction" if exact else "float"
        raise TypeError(f"{who}: `{name}` must be an integer, a {wanted} or an array, got {brief(x)}")
    if x - x != 0:
        raise ValueError(f"{who}: `{name}` must be finite, got {x}")
    return x


def check_mask(who: str, name: str, x: Any, like: str, y: Array) -> None:
    """A mask must be a boolean array of y's library and device; of NumPy if y is a SystemArray."""
    if not is_array_api_obj(x) or not array_namespace(x).isdtype(x.dtype, "bool"):
        raise TypeError(f"{who}: `{name}` must be a boolean array, got {getattr(x, 'dtype', type(x).__name__)}")
    refuse_masked(who, name, x)
    wanted = "numpy" if isinstance(y, SystemArray) else library_of(y)
    for what, a, b in (("library", library_of(x), wanted), ("device", device(x), device(y))):
        if a != b:
            raise TypeError(f"{who}: `{name}` has {what} {a}, `{like}` needs {b}; convert it explicitly")


def check_shape(who: str, name: str, x: Array, *tail: int | str, like: str = "", all_axes: bool = False) -> None:
    """The last axes of x must have these lengths; a word allows any. all_axes : x has no others"""
    got = tuple(x.shape)
    if len(got) > MOST_AXES:
        raise ValueError(f"{who}: `{name}` must have at most {MOST_AXES} axes, got {len(got)}")
    before = len(got) - len(tail)  # how many axes stand before these
    fits = before == 0 if all_axes else before >= 0
    if not fits or any(isinstance(n, int) and n != g for n, g in zip(tail, got[before:], strict=True)):
        axes = ", ".join([*["..."] * (not all_axes), *map(str, tail)]) + "," * (all_axes and len(tail) == 1)
        raise ValueError(f"{who}: `{name}` must have shape ({axes}){like and ' '}{like}, got {got}")


def leading_axes(who: str, **arrays: Array) -> Shape:
    """The shape to which all axes before the last two broadcast. Refuse arrays that do not."""
    first, *others = arrays
    common = tuple(arrays[first].shape[:-2])
    for i, name in enumerate(others):
        if tuple(arrays[name].shape[:-2]) != common:
            common = broadcast_axes(who, common, list(arrays)[: i + 1], tuple(arrays[name].shape[:-2]), name)
    return common


def broadcast_axes(who: str, common: Shape, others: list[str], axes: Shape, name: str) -> Shape:
    width = max(len(common), len(axes))
    a, b = ((1,) * (width - len(t)) + t for t in (common, axes))
    if any(m != n and 1 not in (m, n) for m, n in zip(a, b, strict=True)):
        listed = ", ".join(f"`{other}`" for other in others)
        raise ValueError(f"{who}: leading axes {axes} of `{name}` must broadcast with {common} of {listed}")
    return tuple(n if m == 1 else m for m, n in zip(a, b, strict=True))


def prefix_length(who: str, mask: str | int, n: int) -> int:
    """How many leading tokens every token sees: 0 ("causal"), all ("full"), or the first P."""
    if isinstance(mask, str):
        if mask != "causal":
            choose(who, "mask", mask, ("causal", "full"))
        return n if mask == "full" else 0
    return check_integer(who, "mask", mask, least=0, most=n, other="'causal', 'full' or a prefix length, ")


def visible_keys(q: Array, keys: int, before: int, P: int) -> Any:
    """(n, keys) booleans: does token t see key s?   s < before + max(t+1, P)"""
    xp = array_namespace(q)
    t, s = (xp.arange(n, device=device(q)) for n in (q.shape[-2], keys))
    return (s[None, :] <= before + t[:, None]) | (s[None, :] < before + P)


def check_padding(who: str, padding: Any, **arrays: Array) -> Any:
    """Padding (..., n) as (..., n, 1), ready to select tokens."""
    check_mask(who, "padding", padding, "k", arrays["k"])
    check_shape(who, "padding", padding, arrays["k"].shape[-2], like="to match `k`")
    leading_axes(who, **arrays, padding=padding[..., None])
    return padding[..., None]


def check_finite(who: str, name: str, x: Array, keep: Any = None, axes: Axes = TOKENS, start: int = 0) -> None:
    """Refuse nan and inf (in tokens that count), and say where the first one stands."""
    if not surely_finite(x) and (where := find_not_finite(x, axes, start, keep)):
        raise ValueError(f"{who}: `{name}` must be finite, got nan or inf at {where}")


def require_finite(who: str, name: str, x: Array, axes: Axes = TOKENS, start: int = 0) -> Array:
    """Return a result if it is finite; else raise NotFinite, which says where it is not."""
    if not surely_finite(x) and (where := find_not_finite(x, axes, start)):
        raise NotFinite(f"{who}: {name} overflows {system_of(x).name}: nan or inf at {where}")
    return x


def find_not_finite(x: Array, axes: Axes, start: int, keep: Any = None) -> str:
    """Where the first nan or inf stands, in words; '' if there is none."""
    xp = array_namespace(x)
    bad = ~xp.isfinite(x) if keep is None else ~xp.isfinite(x) & keep
    return locate(bad, axes, start) if is_true(xp.any(bad)) else ""


def locate(bad: Any, axes: Axes, start: int = 0) -> str:
    """The place of the first True, in words. The first named axis counts from `start`."""
    index = first_index(bad)
    head, (i, *rest) = index[: len(index) - len(axes)], index[len(index) - len(axes) :]
    places = [f"{axis} {i}" for axis, i in zip(axes, (start + i, *rest), strict=True)]
    return ", ".join(places + ([f"head {head}"] if head else []))


def first_index(bad: Any) -> tuple[int, ...]:
    """Index of the first True."""
    index: list[int] = []
    for n in bad.shape:
        i = next(i for i in range(n) if bool(array_namespace(bad).any(bad[i, ...])))
        index.append(i)
        bad = bad[i, ...]
    return tuple(index)


def divide(who: str, numerator: Array, denominator: Array, formula: str = "φ(q)·z", start: int = 0) -> Array:
    """numerator (..., n, m) / denominator (..., n, 1 or m); tokens count from `start` in errors."""
    if not isinstance(denominator, SystemArray) and surely_finite(denominator):
        with quiet():
            o = numerator / denominator  # division by zero gives inf or nan
        if 0 not in o.shape and surely_finite(o):
            return o
    return divide_or_say_why_not(who, numerator, denominator, formula, start)


def divide_or_say_why_not(who: str, numerator: Array, denominator: Array, formula: str, start: int) -> Array:
    """The same quotient. An error names the first token that divides by zero or overflows."""
    xp = array_namespace(numerator)
    zero = xp.singular(denominator) if isinstance(xp, ArraySystem) else denominator == 0
    if is_true(xp.any(zero)):
        where = locate(zero[..., 0], TOKENS[:1], start) if zero.shape[-1] == 1 else locate(zero, TOKENS, start)
        raise ZeroDenominator(f"{who}: the denominator {formula} is zero at {where} (no ε is added)")
    o = require_finite(who, "the output", numerator / denominator, start=start)
    require_finite(who, f"the denominator {formula}", denominator, start=start)  # inf would make the output 0, silently
    return o
