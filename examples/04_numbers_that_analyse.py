"""Numbers that analyse: run on other numbers, the same source shows how it behaves."""

# %%
# The source is `linear_attention`; four tokens are enough.
import numpy as np

from refimpl import (
    QQ,
    Degrees,
    Dependencies,
    Dual,
    Float,
    RunningError,
    floats,
    linear_attention,
    linear_attention_recurrent,
)

n, d, m = 4, 3, 2

# %%
# Dependency sets: every input carries the number of its token, and outputs carry the union. This
# shows causality, by structure.
deps = Dependencies()
o, _ = linear_attention(*(deps.tokens((n, width)) for width in (d, d, m)))
print("token t depends on", [sorted(deps.sets(o)[t, 0]) for t in range(n)])

# %%
# Degrees: o_t is a rational function of its inputs, and this is how complicated it is. Identity
# testing modulo p needs these numbers.
deg = Degrees()
o, _ = linear_attention(*(deg.variables((n, width)) for width in (d, d, m)))
print("degrees of numerator and denominator:", deg.worst(o))

# %%
# Running error: each float of the computation comes with a bound on its distance from the truth.
run = RunningError("float32")
inputs = [QQ.random((n, width), seed) for seed, width in enumerate((d, d, m))]
o, _ = linear_attention_recurrent(*(run.convert(x) for x in inputs))
truth = floats(linear_attention(*inputs)[0])
print(f"float32: error {np.max(abs(run.value(o) - truth)):.1e}, bound {np.max(run.error(o)):.1e}")

# %%
# Dual numbers: v_0 moves in one direction, and the tangent of the output is the exact derivative,
# here over ℚ.
dual = Dual(QQ)
q, k, v = inputs
direction = QQ.convert([[1, 0], *[[0, 0]] * (n - 1)])
o, _ = linear_attention(dual.convert(q), dual.convert(k), dual.join(v, direction))
weights = [row[0] for row in dual.tangent(o).tolist()]
print("∂o_t/∂v_0, the weight of token 0 in token t:", *map(str, weights))

# %%
# A difference quotient checks it: o is linear in v, so a step of any length gives exactly the same.
step = linear_attention(q, k, v + direction)[0] - linear_attention(q, k, v)[0]
assert [row[0] for row in step.tolist()] == weights
print("and in floats:", Float().convert(weights))
