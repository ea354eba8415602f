"""What every form of attention does around its formula: checks, φ, RoPE and padding before it, the division after it.

A form is written as its formula alone and gets its public face here; `linear_attention.py` and `attention.py` hold the formulas.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..checks import (
    boolean,
    check_padding,
    divide,
    finite,
    hide,
    instance,
    lead,
    namespace,
    prefix_length,
    scalar,
    shape,
    whole,
)
from ..errors import NotDefined, NotFinite, ZeroDenominator
from ..systems.floats import Pieces, array_namespace, device, quiet, require_of
from .feature_maps import FeatureMap, identity, pair
from .memory import check_memory, remembered
from .rope import Rope
from .state import KVCache, State, check_state, features, no_text


def linear_form(body: Callable) -> Callable[..., tuple[Any, State]]:
    """The face of linearized attention whose formula takes the text as a whole.

    body(xp, fq, fk, gq, gk, v, S, z, P) -> num, den, S, z
    """

    def at_once(xp: Any, text: Text, S: Any, z: Any, P: int) -> Iterator[Any]:
        yield body(xp, *text[:], S, z, P)

    return streaming_form(functools.wraps(body)(at_once), known=None)


def streaming_form(body: Callable, known: int | None = 1) -> Callable[..., tuple[Any, State]]:
    """The face of linearized attention whose formula takes the text piece by piece.

    body(xp, text, S, z, P) yields num, den and the state S, z so far, for one piece of the text after the other
    text[a:b] is (fq, fk, gq, gk, v) of the tokens a to b
    known : of how many tokens (None: all) the features are made beforehand, to learn r
    """
    who = body.__name__

    def attention(
        q: Any,
        k: Any,
        v: Any,
        /,
        *,
        phi: Any = identity,
        mask: str | int = "causal",
        normalise: bool = True,
        rope: Rope | None = None,
        state: State | None = None,
        padding: Any = None,
        **own: Any,
    ) -> tuple[Any, State]:
        xp, P, keep = arguments(who, q, k, v, mask, padding)
        require_of(q, "field" if normalise else "ring", f"{'normalised ' * normalise}linear attention")
        if state is not None:
            instance(who, "state", state, State)
        text = Text(who, q, k, v, keep, pair(who, phi), rope, 0 if state is None else state.position)
        lost: ArithmeticError
        try:
            with quiet():
                return solved(xp, text, P, state, normalise, own)
        except (NotFinite, ZeroDenominator) as error:
            lost = error
        check_inputs(who, xp, q, k, v, keep)  # the cause, if something in them is not finite
        raise lost

    def solved(
        xp: Any, text: Text, P: int, state: State | None, normalise: bool, own: dict[str, Any]
    ) -> tuple[Any, State]:
        fq, fk, _, _, v = text[:known]
        r, m = fk.shape[-1], v.shape[-1]
        start = no_text(v, r, m) if state is None else state
        axes = check_state(who, "state", start, r, m, k=fk, v=v)
        if start.z is None and normalise:
            raise ValueError(
                f"{who}: `state` has S but no z; a normalised layer needs both (the denominator is φ(q)·z)"
            )
        heads = lead(who, q=fq, k=fk, v=v, **{"state.S": start.S})
        if 0 in (*heads, r, m):  # nothing comes out in which nan and inf would show
            check_inputs(who, xp, text.q, text.k, text.v, text.keep)
        blank = no_text(v, r, m, lead=axes)
        S = xp.broadcast_to(start.S, blank.S.shape)
        z = blank.z if start.z is None else xp.broadcast_to(start.z, blank.z.shape)

        o, n = Pieces(v, (*heads, len(text), m)), 0
        for num, den, S, z in body(xp, text, S, z, P, **own):  # noqa: B007, B020
            num, den = reveal(text.kept(n, n + num.shape[-2]), num, den)
            o.append(divide(who, num, den, start=n) if normalise else whole(who, "the output", num, start=n))
            n += num.shape[-2]
        S, z = whole(who, "S", S, ("feature", "column")), None if start.z is None else whole(who, "z", z, ("feature",))
        return o.array(), State(S, z, start.position + len(text))

    return named(attention, body, "linear")


@dataclass
class Text:
    """What a form reads: text[a:b] is (fq, fk, gq, gk, v) of the tokens a to b, their features made when asked for."""

    who: str
    q: Any
    k: Any
    v: Any
    keep: Any
    phi: tuple[FeatureMap, FeatureMap]
    rope: Rope | None
    position: int
    last: tuple[Any, Any] = (None, None)

    def __len__(self) -> int:
        return self.q.shape[-2]

    def kept(self, a: int, b: int) -> Any:
        return None if self.keep is None else self.keep[..., a:b, :]

    def __getitem__(self, tokens: slice) -> tuple[Any, Any, Any, Any, Any]:
        a, b, _ = tokens.indices(len(self))
        if self.last[0] == (a, b):
            return self.last[1]
        keep, (q, k, v) = self.kept(a, b), (x[..., a:b, :] for x in (self.q, self.k, self.v))
        mapped = [(name, x) for name, x, phi in zip("qk", (q, k), self.phi, strict=True) if phi is not identity]
        for (
            name,
            x,
        ) in (
            mapped
        ):  # what φ leaves alone, and v, is looked at if output or state is not finite: for there it comes out again
            finite(self.who, name, array_namespace(x), x, keep, start=a)
        fq, fk, gq, gk = features(q, k, phi=self.phi, rope=self.rope, position=self.position + a)
        for name, _ in mapped:
            whole(self.who, f"phi_{name}({name})", hide(keep, gq if name == "q" else gk)[0], start=a)
        shared = gk is fk
        fk, gk, v = hide(keep, fk, gk, v)
        self.last = (a, b), (fq, fk, gq, fk if shared else gk, v)
        return self.last[1]


def softmax_form(body: Callable) -> Callable[..., tuple[Any, KVCache]]:
    """The face of softmax attention.

    body(xp, c, q, k, v, shown, M, P, past) -> num, den, where k, v, shown begin with the M tokens of the cache
    past : (num, den, top) of its memories, to be counted exp(top) times; None if there are none
    """
    who = body.__name__

    def attention(
        q: Any,
        k: Any,
        v: Any,
        /,
        *,
        scale: Any = None,
        mask: str | int = "causal",
        rope: Rope | None = None,
        cache: KVCache | None = None,
        padding: Any = None,
    ) -> tuple[Any, KVCache]:
        xp, P, keep = arguments(who, q, k, v, mask, padding)
        require_of(q, "real", "softmax attention")
        check_inputs(who, xp, q, k, v, keep)
        n, d = q.shape[-2:]
        shown = xp.arange(n, device=device(q))[None, :] >= 0 if padding is None else padding[..., None, :]
        start = KVCache(k[..., :0, :], v[..., :0, :], shown[..., :0], 0) if cache is None else cache
        check_cache(who, start, q, v)
        if rope is not None:
            instance(who, "rope", rope, Rope)
            if rope.placement != "before":
                raise NotDefined(
                    f"{who}: `rope` must have placement 'before' (there is no feature map), got {rope.placement!r}"
                )
            q, k = (rope(x, range(start.position, start.position + n)) for x in (q, k))
        k, v = hide(keep, k, v)
        axes = lead(who, k=k, cache=start.k, v=v)
        lead(who, q=q, k=k, v=v, cache=start.k)
        k, v = append(axes, start.k, k, axis=-2), append(axes, start.v, v, axis=-2)
        shown = append(lead(who, padding=shown, cache=start.keep), start.keep, shown, axis=-1)
        root = xp.sqrt(max(d, 1) * xp.ones((1, 1), dtype=q.dtype, device=device(q)))
        c = 1 / root if scale is None else scalar(who, "scale", scale, q=q)

        past = remembered(start.memories, q * xp.sqrt(c * xp.ones_like(root))) if start.memories else None
        num, den = body(xp, c, q, k, v, shown, k.shape[-2] - n, P, past)
        num, den = reveal(keep, num, den)
        return divide(who, num, den, "Σ exp(c q·k)"), KVCache(k, v, shown, start.position + n, start.memories)

    return named(attention, body, "softmax")


def arguments(who: str, q: Any, k: Any, v: Any, mask: str | int, padding: Any) -> tuple[Any, int, Any]:
    """Checks q, k, v, mask and padding; their namespace, the prefix length, and which tokens count, (..., n, 1)."""
    xp = namespace(who, q=q, k=k, v=v)
    shape(who, "q", q, "tokens", "width")
    shape(who, "k", k, *q.shape[-2:], like="to match `q`")
    shape(who, "v", v, q.shape[-2], "values", like="to match `q`")
    keep = check_padding(who, padding, q=q, k=k, v=v)
    return xp, prefix_length(who, mask, q.shape[-2]), keep


def check_inputs(who: str, xp: Any, q: Any, k: Any, v: Any, keep: Any) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        finite(who, name, xp, x, keep)


def check_cache(who: str, cache: KVCache, q: Any, v: Any) -> None:
    instance(who, "cache", cache, KVCache)
    xp = namespace(who, **{"q": q, "cache.k": cache.k, "cache.v": cache.v})
    shape(who, "cache.k", cache.k, "tokens", q.shape[-1], like="to match `q`")
    shape(who, "cache.v", cache.v, cache.k.shape[-2], v.shape[-1], like="to match `cache.k` and `v`")
    boolean(who, "cache.keep", cache.keep, "cache.k", cache.k)
    shape(who, "cache.keep", cache.keep, 1, cache.k.shape[-2], like="to match `cache.k`")
    for name, x in (("cache.k", cache.k), ("cache.v", cache.v)):
        finite(who, name, xp, x)
    for memory in cache.memories:
        check_memory(who, memory, q.shape[-1], v.shape[-1], q=q, v=v)


def append(lead: tuple[int, ...], *pieces: Any, axis: int) -> Any:
    xp = array_namespace(pieces[0])
    return xp.concat([xp.broadcast_to(x, (*lead, *x.shape[-2:])) for x in pieces], axis=axis)


def reveal(keep: Any, num: Any, den: Any) -> tuple[Any, Any]:
    """A padded token may see nothing at all: its output is 0/1."""
    if keep is None:
        return num, den
    xp = array_namespace(num)
    return xp.where(keep, num, xp.zeros_like(num)), xp.where(keep, den, xp.ones_like(den))


def named(attention: Callable, body: Callable, kernel: str = "") -> Callable:
    """Name, docstring and signature, with what options of its own the body has; and the kernel, which a model must have too."""
    own = [p for p in inspect.signature(body).parameters.values() if p.kind is p.KEYWORD_ONLY]
    shared = [p for p in inspect.signature(attention).parameters.values() if p.kind is not p.VAR_KEYWORD]
    attention.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
    attention.__name__ = attention.__qualname__ = body.__name__
    attention.__doc__, attention.__module__ = body.__doc__, body.__module__
    attention.kernel = kernel  # type: ignore[attr-defined]
    return attention
