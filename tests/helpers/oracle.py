"""Attention in plain Python: lists and loops. It imports nothing of refimpl, so that it can
disagree with it.

A transformer of one text stands at the end. One head: q, k (n lists of d numbers), v (n lists of
m), S (r lists of m), z (r numbers).
"""

from __future__ import annotations

from fractions import Fraction


def turn(x, position, points, layout):
    """R_p x by p turns (or −p turns back), one after the other; points: the (c, s) of each pair."""
    x = list(x)
    for i, (c, s) in enumerate(points):
        a, b = (i, i + len(points)) if layout == "half" else (2 * i, 2 * i + 1)
        for _ in range(abs(position)):
            sine = s if position > 0 else -s
            x[a], x[b] = x[a] * c - x[b] * sine, x[a] * sine + x[b] * c
    return x


def sees(t, s, mask):
    """Does token t see token s?"""
    if mask == "full":
        return True
    return s <= t or (mask != "causal" and s < mask)


def attention(q, k, v, *, phi_q, phi_k, mask="causal", normalise=True, rope=None, start=None, keep=None):
    """(o, S, z, position). rope : (points, layout, placement)   start : (S, z, position)   keep :
    booleans
    """
    n, m = len(q), len(v[0]) if v else 0
    points, layout, placement = rope or ([], "half", "after")
    S0, z0, first = start or (None, None, 0)

    def features(phi, rows):
        """For each token its features in the numerator and in the denominator."""
        both = []
        for t, x in enumerate(rows):
            if placement == "before":
                turned = phi(turn(x, first + t, points, layout))
                both.append((turned, turned))
            else:
                both.append((turn(phi(x), first + t, points, layout), phi(x)))
        return both

    queries, keys = features(phi_q, q), features(phi_k, k)
    r = len(keys[0][0]) if n else len(z0 or [])
    S = [[Fraction(S0[i][j]) if S0 else Fraction(0) for j in range(m)] for i in range(r)]
    z = [Fraction(z0[i]) if z0 else Fraction(0) for i in range(r)]

    def past(seen):
        tokens = [s for s in range(n) if seen(s) and (keep is None or keep[s])]
        S_t = [[S[i][j] + sum(keys[s][0][i] * v[s][j] for s in tokens) for j in range(m)] for i in range(r)]
        return S_t, [z[i] + sum(keys[s][1][i] for s in tokens) for i in range(r)]

    o = []
    for t in range(n):
        if keep is not None and not keep[t]:
            o.append([Fraction(0)] * m)
            continue
        S_t, z_t = past(lambda s, t=t: sees(t, s, mask))
        den = sum(a * b for a, b in zip(queries[t][1], z_t, strict=True)) if normalise else Fraction(1)
        o.append([sum(queries[t][0][i] * S_t[i][j] for i in range(r)) / den for j in range(m)])
    return o, *past(lambda s: True), first + n


def softmax(q, k, v, *, real, mask="causal", rope=None, cache=None, keep=None):
    """(o, keys, values, kept, position), by o_t = Σ_s w_s v_s / Σ_s w_s with w_s = exp(q_t·k_s/√d);
    no score is subtracted.

    real : where numbers and their exp, sqrt, cos, sin come from, such as an mpmath context   rope :
    (base, width, layout)
    cache : (keys, already turned; values; kept; position)   keep : booleans
    """
    old_keys, old_values, old_kept, first = cache or ([], [], [], 0)
    kept = [*old_kept, *(keep if keep is not None else [True] * len(k))]

    def turned(x, position):
        x = list(x)
        base, width, layout = rope or (1, 0, "half")
        for i in range(width // 2):
            angle = position * real.mpf(base) ** (real.mpf(-2 * i) / width)
            a, b = (i, i + width // 2) if layout == "half" else (2 * i, 2 * i + 1)
            x[a], x[b] = (
                x[a] * real.cos(angle) - x[b] * real.sin(angle),
                x[a] * real.sin(angle) + x[b] * real.cos(angle),
            )
        return x

    M = len(old_keys)
    queries = [turned(x, first + t) for t, x in enumerate(q)]
    keys = [*old_keys, *(turned(x, first + t) for t, x in enumerate(k))]
    values = [*old_values, *v]
    o = []
    for t, x in enumerate(queries):
        if not kept[M + t]:
            o.append([0] * len(v[t]))
            continue
        weights = []
        for s, y in enumerate(keys):
            score = sum(a * b for a, b in zip(x, y, strict=True)) / real.sqrt(len(x))
            weights.append(real.exp(score) if kept[s] and (s < M or sees(t, s - M, mask)) else 0)
        o.append(
            [sum(w * row[j] for w, row in zip(weights, values, strict=True)) / sum(weights) for j in range(len(v[t]))]
        )
    return o, keys, values, kept, first + len(q)


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def times(x, W, b=None):
    """x W + b for one token."""
    return [dot(x, column) + (b[j] if b else 0) for j, column in enumerate(zip(*W, strict=True))]


def plus(x, y):
    return [a + b for a, b in zip(x, y, strict=True)]


def normed(x, kind, epsilon, gain, offset, real):
    """One token: (y / √(mean(y²) + ε)) gain + offset; rational: 2/(1 + u) stands for 1/√u."""
    if kind == "none":
        return x
    mean = sum(x) / len(x) if kind.startswith("layer") else 0
    y = [a - mean for a in x]
    u = sum(a * a for a in y) / len(y) + epsilon
    factor = 2 / (1 + u) if kind.endswith("rational") else 1 / real.sqrt(u)
    return [a * factor * g + (offset[i] if offset else 0) for i, (a, g) in enumerate(zip(y, gain, strict=True))]


def activation(kind, a, real):
    if kind == "relu":
        return max(a, 0)
    if kind == "quadratic":
        return a / 2 + a * a / 4
    if kind == "silu":
        return a / (1 + real.exp(-a))
    y = real.mpf(0.7978845608028654) * (a + real.mpf(44715) / 10**6 * a**3)
    return a / (1 + real.exp(-2 * y))


def transformer(text, w, c, *, phi, points=(), biases=None, position=0, mask="causal", prompt=0, strength=1, real=None):
    """Logits or vectors for one text, every token by its own sum over all tokens that it sees.

    text : token ids or vectors   w : the weights, by name   c : the configuration, a dict   phi :
    (φ_q, φ_k) of one token
    points : the (c, s) of RoPE   biases : for each layer, (S, z) of each group   position : of the
    first token
    prompt, strength : the first tokens count `strength` times for those after them   real : as in
    softmax
    """
    groups, rope, pre = c["groups"] or c["heads"], c["rope"] or {}, c["order"] != "post"

    def norm(x, gain):
        return normed(x, c["norm"], c["epsilon"], w.get(gain), w.get(gain.replace("gain", "offset")), real)

    def turned(x, t, placement):
        return turn(x, position + t, points, rope["layout"]) if rope.get("placement") == placement else x

    def heads(rows, width, f=None):
        """For each token and head its part of the row; given φ, its features in the numerator and
        in the denominator.
        """
        parts = [[x[h : h + width] for h in range(0, len(x), width)] for x in rows]
        if f is None:
            return parts
        inner = [[f(turned(part, t, "before")) for part in x] for t, x in enumerate(parts)]
        return [[(turned(part, t, "after"), part) for part in x] for t, x in enumerate(inner)]

    def attend(i, x):
        of = {name: (w[f"layers.{i}.W_{name}"], w.get(f"layers.{i}.b_{name}")) for name in "QKVO"}
        q, k, v = ([times(a, *of[name]) for a in x] for name in "QKV")
        q, k, v = heads(q, c["d"], phi[0]), heads(k, c["d"], phi[1]), heads(v, c["m"])
        return [times([a for h in range(c["heads"]) for a in read(i, t, h, q, k, v)], *of["O"]) for t in range(len(x))]

    def read(i, t, h, q, k, v):
        g = h // (c["heads"] // groups)
        fq, gq = q[t][h]
        S, z = biases[i][g] if biases else ([[0] * c["m"]] * len(fq), [0] * len(fq))
        num, den = times(fq, S), dot(gq, z)
        for s in range(len(q)):
            if sees(t, s, mask):
                count = strength if s < prompt <= t else 1
                score = count * dot(fq, k[s][g][0])
                num, den = [a + score * b for a, b in zip(num, v[s][g], strict=True)], den + count * dot(gq, k[s][g][1])
        return [a / den for a in num] if c["normalise"] else num

    def mlp(i, x):
        up, down, gate = (w.get(f"layers.{i}.W_{name}") for name in ("up", "down", "gate"))
        hidden = times(x, up, w.get(f"layers.{i}.b_up"))
        if gate:
            hidden = [activation(c["activation"], a, real) * b for a, b in zip(times(x, gate), hidden, strict=True)]
        else:
            hidden = [activation(c["activation"], a, real) for a in hidden]
        return times(hidden, down, w.get(f"layers.{i}.b_down"))

    x = [w["embedding"][a] if isinstance(a, int) else a for a in text]
    if c["table"]:
        x = [plus(a, w["positions"][position + t]) for t, a in enumerate(x)]
    for i in range(c["layers"]):
        first, second = f"layers.{i}.gain_1", f"layers.{i}.gain_2"
        given = [norm(a, first) for a in x] if pre else x
        x = [plus(a, o) for a, o in zip(x, attend(i, given), strict=True)]
        if not pre:
            x = [norm(a, first) for a in x]
        if c["hidden"] and c["order"] == "pre":
            x = [plus(a, mlp(i, norm(a, second))) for a in x]
        elif c["hidden"] and c["order"] == "post":
            x = [norm(plus(a, mlp(i, a)), second) for a in x]
        elif c["hidden"]:
            x = [plus(a, mlp(i, b)) for a, b in zip(x, given, strict=True)]
    if pre:
        x = [norm(a, "gain") for a in x]
    if not c["vocabulary"]:
        return x
    return [[dot(a, row) for row in w["embedding"]] if c["tied"] else times(a, w["unembedding"]) for a in x]
