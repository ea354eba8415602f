"""Checks the arguments of the core, and words every error about them."""

from __future__ import annotations

import operator
from fractions import Fraction
from typing import Any

from array_api_compat import is_array_api_obj

from .arrays import Array, Namespace
from .errors import NotFinite, ZeroDenominator, brief, choose
from .systems import SystemArray, ArraySystem, system_of
from .systems.array import array_namespace, device, elementwise, host
from .systems.fast import quiet, surely_finite

_usual: set[tuple[type, Any]] = set()  # kinds of arrays that were found to be in order


def namespace(who: str, **arrays: Any) -> Namespace:
    """The one array namespace of all arrays. Libraries, number systems, devices and dtypes do not mix."""
    first, x = next(iter(arrays.items()))
    for name, y in arrays.items():
        if isinstance(y, SystemArray) and isinstance(x, SystemArray) and y.system is x.system:
            continue
        if (
            type(y) is type(x)
            and (type(y), getattr(y, "dtype", None)) in _usual
            and y.dtype == x.dtype
            and device(y) == device(x)
        ):
            continue
        if not isinstance(y, SystemArray) and (isinstance(y, type) or not is_array_api_obj(y)):
            raise TypeError(
                f"{who}: `{name}` must be an array (NumPy, torch, JAX, or of a refimpl system), got {type(y).__name__}"
            )
        check_dtype(who, name, y)
        kind = "number system" if isinstance(x, SystemArray) or isinstance(y, SystemArray) else "library"
        for what, a, b in ((kind, home(y), home(x)), ("device", device(y), device(x)), ("dtype", y.dtype, x.dtype)):
            if a != b:
                raise TypeError(f"{who}: `{name}` has {what} {a}, `{first}` has {b}; convert one of them explicitly")
        if not isinstance(y, SystemArray):
            _usual.add((type(y), y.dtype))
    return array_namespace(x)


def home(x: Any) -> str:
    return (
        x.system.name if isinstance(x, SystemArray) else array_namespace(x).__name__.removeprefix("array_api_compat.")
    )


def finite_arrays(who: str, **arrays: Any) -> Namespace:
    """The same, of arrays without nan or inf."""
    xp = namespace(who, **arrays)
    for name, x in arrays.items():
        finite(who, name, xp, x, axes=("row", "column")[-x.ndim :])
    return xp


def check_dtype(who: str, name: str, x: Any) -> None:
    if isinstance(x, SystemArray):
        return
    kind = str(x.dtype)
    if kind == "object":
        raise TypeError(
            f"{who}: `{name}` is an object array; make it exact with QQ.convert or another system's convert"
        )
    if home(x) == "numpy" and x.dtype.kind == "V":
        raise TypeError(
            f"{who}: `{name}` is {kind}, whose products NumPy forms in float32; use Rounded({kind!r}) or torch"
        )
    if not array_namespace(x).isdtype(x.dtype, ("real floating", "complex floating")):
        raise TypeError(f"{who}: `{name}` must be real or complex floating, got {kind}; convert it explicitly")


def known(condition: Any) -> bool:
    """Is this boolean known to be true? Arrays without values (torch meta, traced JAX) know nothing."""
    try:
        return bool(condition)
    except (TypeError, RuntimeError, NotImplementedError):
        return False


def is_zero(x: Any) -> bool:
    """Is this number, Python's or an array of one, known to be 0?"""
    return known(x.system.singular(x) if isinstance(x, SystemArray) else x == 0)


def instance(who: str, name: str, x: Any, kind: type) -> None:
    if not isinstance(x, kind):
        raise TypeError(f"{who}: `{name}` must be a {kind.__name__}, got {type(x).__name__}")


def integer(who: str, name: str, x: Any, *, least: int | None = None, most: int | None = None, other: str = "") -> int:
    """An integer of any kind but bool, within limits."""
    try:
        i = operator.index(x)
        right = not isinstance(x, bool) and (least is None or least <= i) and (most is None or i <= most)
    except TypeError:
        right = False
    if not right:
        limits = "" if least is None else f" ≥ {least}" if most is None else f" between {least} and {most}"
        raise ValueError(f"{who}: `{name}` must be {other}an integer{limits}, got {brief(x)}")
    return i


def token_ids(who: str, name: str, x: Any, vocabulary: int) -> Any:
    """Token ids (..., n) on the host, from integers of any kind; None if x is an array of other numbers."""
    if isinstance(x, SystemArray) or (is_array_api_obj(x) and not array_namespace(x).isdtype(x.dtype, "integral")):
        return None
    try:
        ids = elementwise(operator.index, host(x))
    except TypeError:
        raise TypeError(
            f"{who}: `{name}` must be token ids (..., tokens) or an array of vectors, got {brief(x)}"
        ) from None
    shape(who, name, ids, "tokens")
    wrong = (ids < 0) | (ids >= vocabulary)
    if wrong.any():
        at = first(wrong)
        raise ValueError(
            f"{who}: `{name}` must hold ids from 0 to {vocabulary - 1}, got {ids[at]} at {locate(wrong, ('token',))}"
        )
    return ids.astype(int)


def scalar(who: str, name: str, x: Any, **like: Any) -> Any:
    """A factor: an array of the same kind with one number, or a Python number that such an array takes without a cast."""
    if isinstance(x, SystemArray) or is_array_api_obj(x):
        namespace(who, **like, **{name: x})
        if x.ndim:
            raise ValueError(f"{who}: `{name}` must be one number, of shape (), got shape {tuple(x.shape)}")
        return x
    exact = isinstance(next(iter(like.values())), SystemArray)
    if isinstance(x, bool) or not isinstance(
        x, int | float | Fraction if exact else int | float
    ):  # ℚ has words of its own for floats
        raise TypeError(
            f"{who}: `{name}` must be an integer, a {'Fraction' if exact else 'float'} or an array, got {brief(x)}"
        )
    if x - x != 0:
        raise ValueError(f"{who}: `{name}` must be finite, got {x}")
    return x


def boolean(who: str, name: str, x: Any, like: str, y: Any) -> None:
    """A mask must be a boolean array where y is; beside an array over a number system, of NumPy."""
    if not is_array_api_obj(x) or not array_namespace(x).isdtype(x.dtype, "bool"):
        raise TypeError(f"{who}: `{name}` must be a boolean array, got {getattr(x, 'dtype', type(x).__name__)}")
    for what, a, b in (
        ("library", home(x), "numpy" if isinstance(y, SystemArray) else home(y)),
        ("device", device(x), device(y)),
    ):
        if a != b:
            raise TypeError(f"{who}: `{name}` has {what} {a}, `{like}` needs {b}; convert it explicitly")


def shape(who: str, name: str, x: Any, *tail: int | str, like: str = "", whole: bool = False) -> None:
    """The last axes of x must have these lengths (a word: any); if `whole`, they must be all its axes."""
    got = tuple(x.shape)
    if (
        len(got) < len(tail)
        or (whole and len(got) > len(tail))
        or any(isinstance(n, int) and n != g for n, g in zip(tail, got[len(got) - len(tail) :], strict=True))
    ):
        words = ", ".join([*["..."] * (not whole), *map(str, tail), *[""] * (whole and len(tail) == 1)]).rstrip(" ")
        raise ValueError(f"{who}: `{name}` must have shape ({words}){like and ' '}{like}, got {got}")


def lead(who: str, **arrays: Any) -> tuple[int, ...]:
    """The common shape of what stands before the last two axes."""
    common: tuple[int, ...] = ()
    for i, (name, x) in enumerate(arrays.items()):
        axes = tuple(x.shape[:-2])
        width = max(len(common), len(axes))
        a, b = ((1,) * (width - len(t)) + t for t in (common, axes))
        if any(i != j and 1 not in (i, j) for i, j in zip(a, b, strict=True)):
            others = ", ".join(f"`{other}`" for other in list(arrays)[:i])
            raise ValueError(f"{who}: leading axes {axes} of `{name}` must broadcast with {common} of {others}")
        common = tuple(j if i == 1 else i for i, j in zip(a, b, strict=True))
    return common


def prefix_length(who: str, mask: str | int, n: int) -> int:
    """How many leading tokens every token sees: none of its future ("causal"), all ("full"), or the first P."""
    if isinstance(mask, str):
        choose(who, "mask", mask, ("causal", "full"))
        return n if mask == "full" else 0
    return integer(who, "mask", mask, least=0, most=n, other="'causal', 'full' or a prefix length, ")


def visible(q: Any, keys: int, before: int, P: int) -> Any:
    """(n, keys) booleans: does token t see key s?   s < before + max(t+1, P)"""
    xp = array_namespace(q)
    t, s = (xp.arange(n, device=device(q)) for n in (q.shape[-2], keys))
    return (s[None, :] <= before + t[:, None]) | (s[None, :] < before + P)


def check_padding(who: str, padding: Any, **arrays: Any) -> Any:
    """Padding (..., n) as (..., n, 1), ready to select tokens."""
    if padding is None:
        return None
    boolean(who, "padding", padding, "k", arrays["k"])
    shape(who, "padding", padding, arrays["k"].shape[-2], like="to match `k`")
    lead(who, **arrays, padding=padding[..., None])
    return padding[..., None]


def hide(keep: Any, *arrays: Any) -> tuple[Any, ...]:
    """Zero in place of what a padded token holds, be it nan."""
    return (
        arrays
        if keep is None
        else tuple(array_namespace(x).where(keep, x, array_namespace(x).zeros_like(x)) for x in arrays)
    )


def finite(
    who: str, name: str, xp: Any, x: Any, keep: Any = None, axes: tuple[str, ...] = ("token", "column"), start: int = 0
) -> None:
    """Refuse nan and inf (in tokens that count), and say where the first one stands."""
    if all_finite(xp) or surely_finite(x):
        return
    bad = ~xp.isfinite(x) if keep is None else ~xp.isfinite(x) & keep
    if known(xp.any(bad)):
        raise ValueError(f"{who}: `{name}` must be finite, got nan or inf at {locate(bad, axes, start)}")


def all_finite(xp: Any) -> bool:
    """Does this system have neither nan nor inf?"""
    return isinstance(xp, ArraySystem) and type(xp).isfinite is ArraySystem.isfinite


def locate(bad: Any, axes: tuple[str, ...], start: int = 0) -> str:
    """The first True, in words: `axes` names the last axes (tokens count from `start`), before them are heads."""
    index = first(bad)
    head, (i, *rest) = index[: len(index) - len(axes)], index[len(index) - len(axes) :]
    tail = (start + i, *rest)
    return ", ".join([f"{axis} {i}" for axis, i in zip(axes, tail, strict=True)] + ([f"head {head}"] if head else []))


def first(bad: Any) -> tuple[int, ...]:
    """Index of the first True."""
    index: list[int] = []
    for n in bad.shape:
        i = next(i for i in range(n) if bool(array_namespace(bad).any(bad[i, ...])))
        index.append(i)
        bad = bad[i, ...]
    return tuple(index)


def divide(who: str, numerator: Any, denominator: Any, formula: str = "φ(q)·z", start: int = 0) -> Array:
    """numerator (..., n, m) / denominator (..., n, 1); says which token (from `start`) and head divides by zero or overflows."""
    xp = array_namespace(numerator)
    if surely_finite(denominator):
        with quiet():
            o = numerator / denominator  # by zero: inf or nan
        if o.size and surely_finite(o):
            return o
    zero = xp.singular(denominator) if isinstance(xp, ArraySystem) else denominator == 0
    if known(xp.any(zero)):
        raise ZeroDenominator(
            f"{who}: the denominator {formula} is zero at {locate(zero[..., 0], ('token',), start)} (no ε is added)"
        )
    o = whole(who, "the output", numerator / denominator, start=start)
    whole(who, f"the denominator {formula}", denominator, start=start)  # inf would make the output 0, silently
    return o


def whole(who: str, name: str, x: Any, axes: tuple[str, ...] = ("token", "column"), start: int = 0) -> Any:
    """A result, if it is finite."""
    if all_finite(array_namespace(x)) or surely_finite(x):
        return x
    bad = ~array_namespace(x).isfinite(x)
    if known(array_namespace(x).any(bad)):
        raise NotFinite(f"{who}: {name} overflows {system_of(x).name}: nan or inf at {locate(bad, axes, start)}")
    return x
