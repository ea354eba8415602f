"""Checks the arguments of the core, and words every error about them."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace, device, is_array_api_obj

from .errors import NotFinite, ZeroDenominator, choose
from .systems import Array, ArraySystem, system_of


def namespace(who: str, **arrays: Any) -> Any:
    """The one array namespace of all arrays. Libraries, number systems, devices and dtypes do not mix."""
    first, x = next(iter(arrays.items()))
    for name, y in arrays.items():
        if not isinstance(y, Array) and not is_array_api_obj(y):
            raise TypeError(f"{who}: `{name}` must be an array (NumPy, torch, JAX, or of a refimpl system), got {type(y).__name__}")
        check_dtype(who, name, y)
        for what, a, b in (("library", home(y), home(x)), ("device", device(y), device(x)), ("dtype", y.dtype, x.dtype)):
            if a != b:
                raise TypeError(f"{who}: `{name}` has {what} {a}, `{first}` has {b}; convert one of them explicitly")
    return array_namespace(x)


def home(x: Any) -> str:
    return x.system.name if isinstance(x, Array) else array_namespace(x).__name__.removeprefix("array_api_compat.")


def check_dtype(who: str, name: str, x: Any) -> None:
    if isinstance(x, Array):
        return
    kind = str(x.dtype)
    if kind == "object":
        raise TypeError(f"{who}: `{name}` is an object array; make it exact with QQ.convert or another system's convert")
    if home(x) == "numpy" and x.dtype.kind == "V":
        raise TypeError(f"{who}: `{name}` is {kind}, whose products NumPy forms in float32; use Rounded({kind!r}) or torch")
    if not array_namespace(x).isdtype(x.dtype, ("real floating", "complex floating")):
        raise TypeError(f"{who}: `{name}` must be real or complex floating, got {kind}; convert it explicitly")


def known(condition: Any) -> bool:
    """Is this boolean known to be true? Arrays without values (torch meta, traced JAX) know nothing."""
    try:
        return bool(condition)
    except (TypeError, RuntimeError, NotImplementedError):
        return False


def shape(who: str, name: str, x: Any, *tail: int | None, like: str) -> None:
    """The last axes of x must have these lengths (None: any)."""
    got = tuple(x.shape)
    if len(got) < len(tail) or any(want is not None and want != n for want, n in zip(tail, got[len(got) - len(tail) :], strict=True)):
        words = ", ".join(["...", *("*" if n is None else str(n) for n in tail)])
        raise ValueError(f"{who}: `{name}` must have shape ({words}) {like}, got {got}")


def lead(who: str, **arrays: Any) -> tuple[int, ...]:
    """The common shape of what stands before the last two axes."""
    common: tuple[int, ...] = ()
    for name, x in arrays.items():
        axes = tuple(x.shape[:-2])
        width = max(len(common), len(axes))
        a, b = ((1,) * (width - len(t)) + t for t in (common, axes))
        if any(i != j and 1 not in (i, j) for i, j in zip(a, b, strict=True)):
            raise ValueError(f"{who}: leading axes {axes} of `{name}` do not broadcast with {common}")
        common = tuple(j if i == 1 else i for i, j in zip(a, b, strict=True))
    return common


def prefix_length(who: str, mask: str | int, n: int) -> int:
    """How many leading tokens every token sees: none of its future ("causal"), all ("full"), or the first P."""
    if isinstance(mask, str):
        choose(who, "mask", mask, ("causal", "full"))
        return n if mask == "full" else 0
    if not isinstance(mask, int) or isinstance(mask, bool) or not 0 <= mask <= n:
        raise ValueError(f"{who}: `mask` must be 'causal', 'full' or a prefix length between 0 and {n}, got {mask!r}")
    return mask


def visible(q: Any, keys: int, before: int, P: int) -> Any:
    """(n, keys) booleans: does token t see key s?   s < before + max(t+1, P)"""
    xp = array_namespace(q)
    t, s = (xp.arange(n, device=device(q)) for n in (q.shape[-2], keys))
    return (s[None, :] <= before + t[:, None]) | (s[None, :] < before + P)


def check_padding(who: str, padding: Any, xp: Any, k: Any) -> Any:
    """Padding (..., n) as (..., n, 1), ready to select tokens."""
    if padding is None:
        return None
    if not is_array_api_obj(padding) or str(padding.dtype).removeprefix("torch.") != "bool":
        raise TypeError(f"{who}: `padding` must be a boolean array, got {getattr(padding, 'dtype', type(padding).__name__)}")
    if padding.ndim < 1 or padding.shape[-1] != k.shape[-2]:
        raise ValueError(f"{who}: `padding` must have shape (..., {k.shape[-2]}) to match `k`, got {tuple(padding.shape)}")
    if isinstance(k, Array) != (home(padding) == "numpy") and home(padding) != home(k):
        raise TypeError(f"{who}: `padding` has library {home(padding)}, `k` has {home(k)}; convert one of them explicitly")
    return padding[..., None]


def finite(who: str, name: str, xp: Any, x: Any, keep: Any = None) -> None:
    """Refuse nan and inf (in tokens that count), and say where the first one stands."""
    bad = ~xp.isfinite(x) if keep is None else ~xp.isfinite(x) & keep
    if known(xp.any(bad)):
        raise ValueError(f"{who}: `{name}` must be finite, got {locate(bad)}")


def locate(bad: Any) -> str:
    """The first True of (..., n, width), in words."""
    index = first(bad)
    where = f"token {index[-2]}, column {index[-1]}" if len(index) > 1 else f"index {index}"
    return f"nan or inf at {where}" + (f", head {index[:-2]}" if len(index) > 2 else "")


def first(bad: Any) -> tuple[int, ...]:
    """Index of the first True."""
    index: list[int] = []
    for n in bad.shape:
        i = next(i for i in range(n) if bool(array_namespace(bad).any(bad[i, ...])))
        index.append(i)
        bad = bad[i, ...]
    return tuple(index)


def divide(who: str, numerator: Any, denominator: Any) -> Any:
    """numerator (..., n, m) / denominator (..., n, 1); says which token and head divides by zero or overflows."""
    xp = array_namespace(numerator)
    zero = xp.singular(denominator) if isinstance(xp, ArraySystem) else denominator == 0
    if known(xp.any(zero)):
        *head, token, _ = first(zero)
        raise ZeroDenominator(
            f"{who}: the denominator φ(q)·z is zero at token {token}" + (f", head {tuple(head)}" if head else "") + " (no ε is added)"
        )
    o = numerator / denominator
    return whole(who, o)


def whole(who: str, o: Any) -> Any:
    """The output, if it is finite."""
    xp = array_namespace(o)
    bad = ~xp.isfinite(o)
    if known(xp.any(bad)):
        raise NotFinite(f"{who}: the output overflows {system_of(o).name}: {locate(bad)}")
    return o
