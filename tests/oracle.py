"""Linearized attention in plain Python: lists, loops and Fractions. It imports nothing of refimpl, so that it can disagree with it.

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


def attention(q, k, v, *, phi=lambda x: x, mask="causal", normalise=True, rope=None, start=None, keep=None):
    """(o, S, z). rope : (points, layout, placement)   start : (S, z, position)   keep : booleans"""
    n, m = len(q), len(v[0]) if v else 0
    points, layout, placement = rope or ([], "half", "after")
    S0, z0, first = start or (None, None, 0)
    before = placement == "before"

    def features(x, t):
        plain = phi(turn(x, first + t, points, layout) if before else x)
        return (plain, plain) if before else (turn(plain, first + t, points, layout), plain)

    numerator, denominator = ([features(x, t) for t, x in enumerate(rows)] for rows in (q, k))
    r = len(numerator[0][0]) if n else len(z0 or [])
    S = [[Fraction(S0[i][j]) if S0 else Fraction(0) for j in range(m)] for i in range(r)]
    z = [Fraction(z0[i]) if z0 else Fraction(0) for i in range(r)]

    def past(seen):
        tokens = [s for s in range(n) if seen(s) and (keep is None or keep[s])]
        S_t = [[S[i][j] + sum(denominator[s][0][i] * v[s][j] for s in tokens) for j in range(m)] for i in range(r)]
        return S_t, [z[i] + sum(denominator[s][1][i] for s in tokens) for i in range(r)]

    def sees(t, s):
        if mask == "full":
            return True
        return s <= t or (mask != "causal" and s < mask)

    o = []
    for t in range(n):
        if keep is not None and not keep[t]:
            o.append([Fraction(0)] * m)
            continue
        S_t, z_t = past(lambda s, t=t: sees(t, s))
        den = sum(a * b for a, b in zip(numerator[t][1], z_t, strict=True)) if normalise else Fraction(1)
        o.append([sum(numerator[t][0][i] * S_t[i][j] for i in range(r)) / den for j in range(m)])
    return o, *past(lambda s: True)
