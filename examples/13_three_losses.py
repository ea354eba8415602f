"""Three losses: attention is a step on one; the other two learn without negatives, and with them.

That attention is a step on −1/(ηD) Σ v_iᵀ W φ(k_i) is Ren & Liu's. Their slides read v_i and W
φ(k_i) as two views of a token, drawn together as in SimSiam and BYOL, and with negatives as
contrastive learning. Ours: losses 2 and 3 as written here (there the views have length 1, and
contrastive losses have a logarithm; not here), and what their steps are.
"""

# %%
# Four demonstrations and one token of the query's own, in ℚ, with φ(k) = k and η = 1. Each
# demonstration has one negative, the one with the least similar key.
from dataclasses import replace
from fractions import Fraction

from refimpl import QQ
from refimpl.descent.gradient import alignment, gradient, squared_error
from refimpl.descent.ren_liu import W_0, QueryContext, Variant, attention, least_similar

K, V = [[2, 0], [1, 1], [0, 2], [2, 1]], [[3, 0], [2, 1], [0, 3], [3, 1]]
c = QueryContext(*map(QQ.convert, (K, V, [[1, 1]], [[1, 1]], [3, 2])))
negatives, beta, start, q = least_similar(c.K_D, 1), Fraction(1, 2), W_0(c), c.q[:, None]
away = QQ.stack([c.V_D[j, :] for [j] in negatives], axis=0)
show = lambda x: str(x).replace("\n", "").strip("ℚ()")  # noqa: E731
print("negatives", negatives, "  D =", show(c.D[0]), end="   ")
print("before any step: W =", show(start), "  W q =", show((start @ q)[:, 0]))

# %%
# Each loss draws the two views of a token together: by their product, by their distance, or by
# their product and away from another's view. No v_i depends on W, so nothing can collapse.
losses = {
    "dual": lambda W, V, K, away, D: -alignment(W, V, K) / D[0],
    "without_negatives": lambda W, V, K, away, D: squared_error(W, K, V) * K.shape[0] / D[0],
    "with_negatives": lambda W, V, K, away, D: -(alignment(W, V, K) - beta * alignment(W, away, K)) / D[0],
}

# %%
# One step on each is attention: to the values; to the part that W_0 has not yet learned; to the
# values, less β of another's. By `==`.
left = attention(replace(c, V_D=c.V_D - c.K_D @ QQ.matrix_transpose(start)))
outputs = attention(c), left, attention(c, Variant(negatives=negatives, beta=beta))
data = (c.V_D, c.K_D, away, c.D)
for (name, loss), o in zip(losses.items(), outputs, strict=True):
    W = start - (slope := gradient(loss, start, *data))
    assert QQ.equal((W @ q)[:, 0], o)
    own, others = (alignment(W, views, c.K_D) - alignment(start, views, c.K_D) for views in (c.V_D, away))
    print(f"{name}: L = {show(loss(start, *data))}, ∂L/∂W = {show(slope)};", end=" ")
    print(f"after a step {show(loss(W, *data))}, W q = {show(o)}\n    Σ v_i·W k_i grew by {show(own)},", end=" ")
    print(f"and with the v of its negative for v_i by {float((others / own).tolist()):.3f} of that")

# %%
# Losses 1 and 3 are linear in W: every step is the same, without end. Loss 2 comes to rest.
for name, loss in losses.items():
    W, lengths = start, []
    for _ in range(40):
        W = W - gradient(loss, W, *data)
        lengths.append(sum(x * x for row in W.tolist() for x in row) ** 0.5)
    print(f"{name:18} |W| after 1, 2, 10, 20, 40 steps:", *(f"{lengths[i - 1]:.3f}" for i in (1, 2, 10, 20, 40)))
