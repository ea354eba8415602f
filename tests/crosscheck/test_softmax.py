"""Softmax attention: right kernels are never wrong, and each mistake is found and named."""

import ml_dtypes
import numpy as np
import pytest

from refimpl import softmax_attention_shifted
from refimpl.attention.softmax_attention import KVCache
from refimpl.crosscheck import plan as plans
from refimpl.crosscheck.check import crosscheck
from refimpl.crosscheck.families.softmax import SoftmaxAttention
from refimpl.crosscheck.mistakes import MISTAKES, all_families
from refimpl.systems import Float

CACHE = "q, k, v, K, V -> o, K, V"


@pytest.fixture
def short(monkeypatch):
    """Plans without texts of more than 129 tokens."""
    monkeypatch.setattr(plans, "LONG", {})


def names(report):
    return {x.words for finding in report.findings for x in finding.likely}


def wide_of(x):
    return np.promote_types(x.dtype, np.float32)


def bottom_right(n, N):
    return np.tri(n, N, N - n) > 0


def softmax(scores, seen):
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    with np.errstate(all="ignore"):
        w = np.exp(scores - top)
        return w / w.sum(axis=-1, keepdims=True)


def attention(q, k, v, seen=bottom_right, scale=None, change=lambda s: s, weights=softmax):
    wide, repeats = wide_of(q), q.shape[1] // k.shape[1]
    c = wide.type(q.shape[-1] ** -0.5 if scale is None else scale)
    k, v = (np.repeat(x.astype(wide), repeats, axis=1) for x in (k, v))
    scores = change(q.astype(wide) @ k.swapaxes(-1, -2) * c)
    w = weights(scores, seen(q.shape[-2], k.shape[-2]))
    return (w @ v).astype(q.dtype)


def rope(x, p, base=10000.0):
    wide, h = wide_of(x), x.shape[-1] // 2
    angle = np.arange(p, p + x.shape[-2])[:, None] * (1 / base ** (np.arange(h, dtype=wide) / h)).astype(wide)
    cos, sin, a, b = np.cos(angle), np.sin(angle), x[..., :h].astype(wide), x[..., h:].astype(wide)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def with_cache(q, k, v, K, V):
    K, V = np.concatenate([K, k], axis=2), np.concatenate([V, v], axis=2)
    return attention(q, K, V), K, V


def turned_with_cache(q, k, v, K, V, turn_q=rope, turn_k=rope):
    p = K.shape[2]
    return with_cache(turn_q(q, p), turn_k(k, p), v, K, V)


def capped(a):
    return lambda s: a * np.tanh(s / a)


def windowed(width):
    return lambda n, N: bottom_right(n, N) & ~(np.tri(n, N, N - n - width) > 0)


def online(q, k, v, block=16):
    """One block of keys after another, as FlashAttention reads them, with powers of 2."""
    wide, repeats = wide_of(q), q.shape[1] // k.shape[1]
    k, v = (np.repeat(x.astype(wide), repeats, axis=1) for x in (k, v))
    c = wide.type(q.shape[-1] ** -0.5 * np.log2(np.e))
    n, N = q.shape[-2], k.shape[-2]
    top = np.full((*q.shape[:-1], 1), -1e30, wide)
    num, den = np.zeros((*q.shape[:-1], v.shape[-1]), wide), np.zeros((*q.shape[:-1], 1), wide)
    for a in range(0, N, block):
        s = q.astype(wide) @ k[..., a : a + block, :].swapaxes(-1, -2) * c
        s = np.where(bottom_right(n, N)[:, a : a + block], s, -np.inf)
        higher = np.maximum(top, s.max(axis=-1, keepdims=True))
        w, less = np.exp2(s - higher), np.exp2(top - higher)
        num, den, top = num * less + w @ v[..., a : a + block, :], den * less + w.sum(-1, keepdims=True), higher
    return (num / den).astype(q.dtype)


def merged(q, k, v):
    """Two halves of the keys, put together by the logarithms of their sums."""
    wide, repeats = wide_of(q), q.shape[1] // k.shape[1]
    k, v = (np.repeat(x.astype(wide), repeats, axis=1) for x in (k, v))
    n, N = q.shape[-2], k.shape[-2]
    parts = []
    for keys in (slice(0, N // 2), slice(N // 2, N)):
        s = q.astype(wide) @ k[..., keys, :].swapaxes(-1, -2) * wide.type(q.shape[-1] ** -0.5)
        s = np.where(bottom_right(n, N)[:, keys], s, wide.type(-1e30))
        top = s.max(axis=-1, keepdims=True, initial=-1e30)
        w = np.exp(s - top)
        total = w.sum(axis=-1, keepdims=True)
        if s.shape[-1]:
            parts.append((w @ v[..., keys, :] / total, top + np.log(total)))
    if not parts:
        return np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)
    most = np.max([log for _, log in parts], axis=0)
    shares = [np.exp(log - most) for _, log in parts]
    return (sum(o * share for (o, _), share in zip(parts, shares, strict=True)) / sum(shares)).astype(q.dtype)


def narrow_weights(scores, seen, dtype=ml_dtypes.bfloat16):
    """As FlashAttention has them in bfloat16: exp(scores), rounded."""
    w = np.exp(np.where(seen, scores, -np.inf) - top_of(scores, seen))
    return w.astype(dtype).astype(w.dtype) / w.sum(axis=-1, keepdims=True)


RIGHT = {
    "plain": (attention, {}),
    "heads in groups": (attention, {"sharing": "repeat"}),
    "past in k and v": (attention, {"keys": "all", "sharing": "repeat"}),
    "with a cache": (with_cache, {"call": CACHE}),
    "not causal": (
        lambda q, k, v: attention(q, k, v, lambda n, N: np.ones((n, N), bool)),
        {"mask": "full", "keys": "all", "sharing": "repeat"},
    ),
    "a scale": (lambda q, k, v: attention(q, k, v, scale=0.3), {"scale": "0.3"}),
    "q is scaled": (lambda q, k, v: attention(q * q.dtype.type(0.5), k, v, scale=1), {"scale": "0.5"}),
    "a window": (lambda q, k, v: attention(q, k, v, windowed(5)), {"window": 5, "keys": "all", "sharing": "repeat"}),
    "a window on both sides": (
        lambda q, k, v: attention(
            q, k, v, lambda n, N: (windowed(4)(n, N) | ~bottom_right(n, N)) & (np.tri(n, N, N - n + 3) > 0)
        ),
        {"window": 4, "mask": "full", "keys": "all", "sharing": "repeat"},
    ),
    "capped": (
        lambda q, k, v: attention(q, k, v, change=capped(20)),
        {"softcap": 20.0, "keys": "all", "sharing": "repeat"},
    ),
    "cyclic heads": (
        lambda q, k, v: attention(q, *(np.tile(x, (1, q.shape[1] // k.shape[1], 1, 1)) for x in (k, v))),
        {"sharing": "cyclic"},
    ),
    "RoPE": (lambda q, k, v: attention(rope(q, 0), rope(k, 0), v), {"rope": "half"}),
    "RoPE with a cache": (turned_with_cache, {"rope": "half", "call": CACHE}),
    "RoPE with a cache that is not turned": (
        lambda q, k, v, K, V: attention(
            rope(q, K.shape[2]), *(lambda K, V: (rope(K, 0), V))(*with_cache(q, k, v, K, V)[1:])
        ),
        {"rope": "half", "call": "q, k, v, K, V -> o", "cached": "plain"},
    ),
    "RoPE from a position": (
        lambda q, k, v, K, V, position: with_cache(rope(q, position), rope(k, position), v, K, V),
        {"rope": "half", "call": "q, k, v, K, V, position -> o, K, V"},
    ),
    "block by block": (online, {"keys": "all", "sharing": "repeat"}),
    "merged": (merged, {"keys": "all", "sharing": "repeat"}),
    "narrow weights": (
        lambda q, k, v: attention(q, k, v, weights=narrow_weights),
        {"weights": "bfloat16", "keys": "all", "sharing": "repeat"},
    ),
}


@pytest.mark.parametrize("dtype", [pytest.param("float64", marks=pytest.mark.slow), "float32", "float16"])
@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_pass(name, dtype, short):
    kernel, conventions = RIGHT[name]
    report = crosscheck(kernel, SoftmaxAttention(dtype=dtype, **conventions))
    assert report.verdict == "WITHIN BOUND", report.findings


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "with a cache", "block by block", "merged"])
def test_right_kernels_pass_on_long_texts(name):
    kernel, conventions = RIGHT[name]
    assert crosscheck(kernel, SoftmaxAttention(dtype="float32,float16", **conventions)).verdict == "WITHIN BOUND"


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_right_kernels_of_torch_pass(dtype, short):
    torch = pytest.importorskip("torch")

    def plain(q, k, v):
        """Every step in the dtype of the arrays."""
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        n, N = q.shape[-2], k.shape[-2]
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(torch.ones(n, N).tril(N - n) == 0, -torch.inf)
        return torch.softmax(scores, dim=-1) @ v

    def own(q, k, v):
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        mask = torch.ones(q.shape[-2], k.shape[-2]).tril(k.shape[-2] - q.shape[-2]) > 0
        q, k, v = (x.to(wide) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).to(
            getattr(torch, dtype)
        )

    narrow = SoftmaxAttention(dtype=dtype, sums=dtype, keys="all", sharing="repeat", library="torch")
    assert crosscheck(plain, narrow).verdict in ("WITHIN BOUND", "EXACT")
    assert (
        crosscheck(own, SoftmaxAttention(dtype=dtype, keys="all", sharing="repeat", library="torch")).verdict
        == "WITHIN BOUND"
    )


def test_the_formula_is_that_of_the_library():
    plain = Float("numpy", "float64")
    for spec in (SoftmaxAttention(call=CACHE), SoftmaxAttention(call=CACHE, mask="full")):
        for case in spec.plan():
            if case.n < 70 and case.heads == case.groups and case.values == "plain":
                x = spec.inputs(case, "float64")
                keep = np.ones((1, x["K"].shape[2]), bool)
                past = KVCache(x["K"], x["V"], keep, x["K"].shape[2])
                o, cache = softmax_attention_shifted(x["q"], x["k"], x["v"], cache=past, mask=spec.mask)
                found = spec.compute(x, plain)
                assert np.allclose(found["o"], o, atol=1e-13) and np.array_equal(found["K"], cache.k)


def test_exact_inputs_read_one_token():
    spec = SoftmaxAttention(keys="all", sharing="repeat")
    exact = [case for case in spec.plan() if spec.is_exact(case, "float32") and case.n]
    assert len(exact) > 3 and max(case.n for case in exact) > 16 and any(case.start for case in exact)
    for case in exact:
        x = spec.inputs(case, "bfloat16")
        o = spec.compute(x, Float("numpy", "float64"))["o"]
        v = np.repeat(x["v"], case.heads // case.groups, axis=1)
        assert np.all((o[..., :, None, :] == v[..., None, :, :]).all(axis=-1).any(axis=-1))


# Mistakes


def leak(change):
    """Softmax of other tokens than those that are seen."""
    return lambda q, k, v: attention(q, k, v, lambda n, N: change(bottom_right(n, N), *np.ogrid[N - n : N, 0:N]))


def scaled(factor):
    return lambda q, k, v: attention(q, k, v, scale=factor(q, k, v))


def scores(change):
    return lambda q, k, v: attention(q, k, v, change=change)


def weighed(weights):
    return lambda q, k, v: attention(q, k, v, weights=weights)


def filled(value):
    return weighed(lambda s, seen: softmax(np.where(seen, s, s.dtype.type(value)), True))


def no_shift(s, seen):
    with np.errstate(all="ignore"):
        w = np.exp(np.where(seen, s, -np.inf))
        return w / w.sum(axis=-1, keepdims=True)


def shifted_by(top):
    def weights(s, seen):
        with np.errstate(all="ignore"):
            w = np.where(seen, np.exp(s - top(s, seen)), 0)
            return w / w.sum(axis=-1, keepdims=True)

    return weights


def top_of(s, seen):
    return np.where(seen, s, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf)


def one_more(s, seen):
    with np.errstate(all="ignore"):
        top = top_of(s, seen)
        w = np.exp(np.where(seen, s, -np.inf) - top)
        return w / (w.sum(axis=-1, keepdims=True) + np.exp(-top))


def not_divided(s, seen):
    with np.errstate(all="ignore"):
        return np.exp(np.where(seen, s, -np.inf))


def not_rescaled(block):
    def kernel(q, k, v):
        n, N = q.shape[-2], k.shape[-2]
        k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
        s = np.where(bottom_right(n, N), q @ k.swapaxes(-1, -2) * q.dtype.type(q.shape[-1] ** -0.5), -np.inf)
        top = np.full((*q.shape[:-1], 1), -1e30, q.dtype)
        num, den = 0 * (q @ k[..., :1, :].swapaxes(-1, -2)) * v[..., :1, :], 0 * top
        for a in range(0, N, block):
            top = np.maximum(top, s[..., a : a + block].max(axis=-1, keepdims=True))
            w = np.exp(s[..., a : a + block] - top)
            num, den = num + w @ v[..., a : a + block, :], den + w.sum(axis=-1, keepdims=True)
        return num / den

    return kernel


def narrow(x, dtype=ml_dtypes.bfloat16):
    return x.astype(dtype).astype(x.dtype)


def half_precision(x):
    return narrow(x, np.float16)


WRONG = {
    "--mask full, where causal was stated": leak(lambda seen, t, s: seen | True),
    "the next token is seen": leak(lambda seen, t, s: s <= t + 1),
    "a token does not see itself": leak(lambda seen, t, s: s < t),
    "the mask begins at the first key, not so that it ends at the last": leak(
        lambda seen, t, s: s <= t - t.min(initial=10**6)
    ),
    "the past is ignored": leak(lambda seen, t, s: seen & (s >= t.min(initial=10**6))),
    "only the past is seen": leak(lambda seen, t, s: seen & (s < t.min(initial=10**6))),
    "the first token of the past is lost": leak(lambda seen, t, s: seen & ((s > 0) | (t.min(initial=10**6) == 0))),
    "after a past, new tokens see all new ones": leak(
        lambda seen, t, s: seen | ((s >= t.min(initial=10**6)) & (t.min(initial=10**6) > 0))
    ),
    "keys after the last full block of 16 are dropped": leak(lambda seen, t, s: seen & (s < s.size // 16 * 16)),
    "keys after the last full block of 64 are dropped": leak(lambda seen, t, s: seen & (s < s.size // 64 * 64)),
    "only keys of the same block of 64 are seen": leak(lambda seen, t, s: seen & (s // 64 == t // 64)),
    "only keys of the same block of 128 are seen": leak(lambda seen, t, s: seen & (s // 128 == t // 128)),
    "keys of a block of 16 are masked as the whole block is: no mask within": leak(
        lambda seen, t, s: s // 16 <= t // 16
    ),
    "hidden scores are −10⁴, not −∞: all is seen where scores are lower": filled(-1e4),
    "hidden scores are 0, not −∞": filled(0),
    "10⁴ is taken off hidden scores: they are seen where scores differ by more": weighed(
        lambda s, seen: softmax(s + np.where(seen, s.dtype.type(0), s.dtype.type(-1e4)), True)
    ),
    "the mask comes after the softmax, whose sum is not taken again": weighed(lambda s, seen: softmax(s, True) * seen),
    "--scale 1, where d was stated": scaled(lambda q, k, v: 1),
    "the scale is applied twice": scaled(lambda q, k, v: 1 / q.shape[-1]),
    "the scale is of the width of v, m^(-1/2)": scaled(lambda q, k, v: v.shape[-1] ** -0.5),
    "the scale is of the width of all heads": scaled(lambda q, k, v: (q.shape[1] * q.shape[-1]) ** -0.5),
    "the scale is d^(1/2): it multiplies where it should divide": scaled(lambda q, k, v: q.shape[-1] ** 0.5),
    "--softcap 30, where 0 was stated": scores(capped(30)),
    "powers of 2 instead of e": scores(lambda s: s * np.log(2).astype(s.dtype)),
    "nothing is subtracted before exp: it overflows": weighed(no_shift),
    "the largest score of all tokens is subtracted, not that of each: others vanish": weighed(
        shifted_by(lambda s, seen: top_of(s, seen).max(axis=-2, keepdims=True, initial=-np.inf))
    ),
    "the largest score is taken before the mask: what is seen vanishes": weighed(
        shifted_by(lambda s, seen: s.max(axis=-1, keepdims=True, initial=-np.inf))
    ),
    "the sum of the weights has 1 more": weighed(one_more),
    "the weights are not divided by their sum": weighed(not_divided),
    "the weights are not divided by their sum, the largest of which is 1": weighed(
        lambda s, seen: np.exp(np.where(seen, s, -np.inf) - top_of(s, seen))
    ),
    "the softmax is over the queries, not over the keys": weighed(
        lambda s, seen: np.where(seen, softmax(s.swapaxes(-1, -2), seen.T).swapaxes(-1, -2), 0)
    ),
    "the softmax is over the heads, not over the keys": weighed(
        lambda s, seen: softmax(np.moveaxis(s, 1, -1), True).transpose(0, 3, 1, 2) * seen
    ),
    "sums of earlier blocks of 16 are not scaled down when a larger score comes": not_rescaled(16),
    "sums of earlier blocks of 64 are not scaled down when a larger score comes": not_rescaled(64),
    "exp(scores) is rounded to bfloat16 before it meets v": weighed(narrow_weights),
    "exp(scores) is rounded to float16 before it meets v": weighed(lambda s, seen: narrow_weights(s, seen, np.float16)),
    "the weights are rounded to bfloat16": weighed(lambda s, seen: narrow(softmax(s, seen))),
    "the weights are rounded to float16": weighed(lambda s, seen: half_precision(softmax(s, seen))),
    "the scores are rounded to bfloat16": scores(narrow),
    "the scores are rounded to float16": scores(half_precision),
    "--sharing cyclic, where repeat was stated": RIGHT["cyclic heads"][0],
    "all heads read the first head of k and v": lambda q, k, v: attention(q, k[:, :1], v[:, :1]),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_found_and_named(name, short):
    report = crosscheck(WRONG[name], SoftmaxAttention(dtype="float32", keys="all", sharing="repeat"))
    assert report.verdict == "WRONG" and names(report) == {name}


def near(low, high):
    """Softmax of the last tokens: the token low to high back."""
    return leak(lambda seen, t, s: (t - s >= low) & (t - s < high))


WINDOW = {
    "--window 0, where 5 was stated": attention,
    "the window is one token too wide": near(0, 6),
    "the window is one token too narrow": near(0, 4),
    "--mask full, where causal was stated": near(-4, 5),
    "the next token is seen": near(-1, 5),
}


@pytest.mark.parametrize("name", WINDOW)
def test_mistakes_of_windows_are_named(name, short):
    report = crosscheck(WINDOW[name], SoftmaxAttention(dtype="float32", keys="all", sharing="repeat", window=5))
    assert report.verdict == "WRONG" and names(report) == {name}


CAP = {
    "--softcap 0, where 2 was stated": attention,
    "scores are cut off at the cap, without tanh": scores(lambda s: s.clip(-2, 2)),
    "the cap is not multiplied back: tanh(scores/a)": scores(lambda s: np.tanh(s / 2)),
    "hidden scores are capped, too, and so seen": lambda q, k, v: attention(
        q, k, v, weights=lambda s, seen: softmax(np.where(seen, capped(2)(s), s.dtype.type(-2)), True)
    ),
}


@pytest.mark.parametrize("name", CAP)
def test_mistakes_of_caps_are_named(name, short):
    report = crosscheck(CAP[name], SoftmaxAttention(dtype="float32", keys="all", sharing="repeat", softcap=2.0))
    assert report.verdict == "WRONG" and names(report) == {name}


CACHED = {
    "--cached plain, where rotated was stated": lambda q, k, v, K, V: (
        attention(rope(q, K.shape[2]), np.concatenate([rope(K, 0), rope(k, K.shape[2])], 2), np.concatenate([V, v], 2)),
        np.concatenate([K, k], 2),
        np.concatenate([V, v], 2),
    ),
    "--rope none, where half was stated": with_cache,
    "--rope-base 500000, where 10000 was stated": lambda *x: turned_with_cache(
        *x, lambda x, p: rope(x, p, 5e5), lambda x, p: rope(x, p, 5e5)
    ),
    "positions begin at 0, whatever came before": lambda *x: turned_with_cache(
        *x, lambda x, p: rope(x, 0), lambda x, p: rope(x, 0)
    ),
    "positions begin one too late": lambda *x: turned_with_cache(
        *x, lambda x, p: rope(x, p + 1), lambda x, p: rope(x, p + 1)
    ),
    "q has the positions 0, 1, …, whatever came before": lambda *x: turned_with_cache(*x, lambda x, p: rope(x, 0)),
    "q is not turned by RoPE": lambda *x: turned_with_cache(*x, lambda x, p: x),
    "k is not turned by RoPE": lambda *x: turned_with_cache(*x, rope, lambda x, p: x),
    "all batch rows have the past of the first": lambda q, k, v, K, V: (
        turned_with_cache(q, k, v, 0 * K + K[:1], 0 * V + V[:1])[0],
        *turned_with_cache(q, k, v, K, V)[1:],
    ),
}


@pytest.mark.parametrize("name", CACHED)
def test_mistakes_of_caches_are_named(name, short):
    report = crosscheck(CACHED[name], SoftmaxAttention(dtype="float32", call=CACHE, rope="half"))
    assert report.verdict == "WRONG" and names(report) == {name}


def test_a_cache_that_loses_a_token_is_wrong_where_the_text_is_split(short):
    def kernel(q, k, v, K, V):
        o, K, V = with_cache(q, k, v, K, V)
        return o, K[:, :, -64:], V[:, :, -64:]

    report = crosscheck(kernel, SoftmaxAttention(dtype="float32", call=CACHE))
    assert report.findings[0].facets[0].where.startswith("K must have shape")

    def forgetful(q, k, v, K, V):
        o, K, V = with_cache(q, k, v, K, V)
        return o, 0 * K, V

    spec = SoftmaxAttention(dtype="float32", call="q, k, v, K, V -> o, K, V")
    assert crosscheck(forgetful, spec).verdict == "WRONG"


def test_dropout_left_on_is_found_by_the_second_call(short):
    rng = np.random.default_rng(0)

    def kernel(q, k, v):
        return attention(
            q, k, v, weights=lambda s, seen: softmax(s, seen) * (rng.random(s.shape) > 0.1) / s.dtype.type(0.9)
        )

    (finding,) = crosscheck(kernel, SoftmaxAttention(dtype="float32")).findings
    assert finding.verdict == "WRONG" and finding.others["second call"].startswith("o is another at ")
    assert not finding.likely


@pytest.mark.parametrize(
    "name", ["a token does not see itself", "the next token is seen", "the scale is applied twice"]
)
def test_mistakes_are_named_in_bfloat16_of_torch(name, short):
    torch = pytest.importorskip("torch")

    def kernel(q, k, v):
        arrays = (x.to(torch.float32).numpy() for x in (q, k, v))
        return torch.from_numpy(WRONG[name](*arrays)).to(torch.bfloat16)

    report = crosscheck(kernel, SoftmaxAttention(dtype="bfloat16", keys="all", sharing="repeat", library="torch"))
    assert report.verdict == "WRONG" and names(report) == {name}


def test_every_mistake_of_the_catalogue_is_planted():
    all_families()
    planted = {*WRONG, *WINDOW, *CAP, *CACHED}
    known = {m.said for m in MISTAKES[SoftmaxAttention] if m.number in (None, 16)}
    blocks = {name.replace(f" {n} ", " 16 ") for name in planted for n in (64, 128)}
    assert known <= planted | blocks and len(known) > 40


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            {"weights": "int8"},
            "SoftmaxAttention: `weights` must be one of bfloat16, float16, float32, float64, got 'int8'",
        ),
        (
            {"angles": "int8"},
            "RotaryEmbedding: `angles` must be one of bfloat16, float16, float32, float64, got 'int8'",
        ),
        ({"scale": "-1"}, "SoftmaxAttention: `scale` must be 'd' or a positive number, got '-1'"),
        ({"scale": "D"}, "SoftmaxAttention: `scale` must be 'd' or a positive number, got 'D'"),
        (
            {"keys": "all", "call": CACHE},
            "SoftmaxAttention: `keys` must be 'new' for a kernel that takes K and V, got 'all'",
        ),
        ({"window": -1}, "SoftmaxAttention: `window` must be at least 0, got -1"),
        ({"softcap": -1.0}, "SoftmaxAttention: `softcap` must be at least 0, got -1.0"),
    ],
)
def test_refusals(wrong, words):
    with pytest.raises(ValueError) as refusal:
        SoftmaxAttention(**wrong)
    assert str(refusal.value) == words
