"""Attention in plain Python: lists and loops. It imports nothing of refimpl, so that it can disagree with it.

One head: q, k (n lists of d numbers), v (n lists of m), S (r lists of m), z (r numbers).
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
    """(o, S, z, position). rope : (points, layout, placement)   start : (S, z, position)   keep : booleans"""
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
    """(o, keys, values, kept, position), by o_t = Σ_s w_s v_s / Σ_s w_s with w_s = exp(q_t·k_s/√d); no score is subtracted.

    real : where numbers and their exp, sqrt, cos, sin come from, such as an mpmath context   rope : (base, width, layout)
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
            x[a], x[b] = x[a] * real.cos(angle) - x[b] * real.sin(angle), x[a] * real.sin(angle) + x[b] * real.cos(angle)
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
        o.append([sum(w * row[j] for w, row in zip(weights, values, strict=True)) / sum(weights) for j in range(len(v[t]))])
    return o, keys, values, kept, first + len(q)
