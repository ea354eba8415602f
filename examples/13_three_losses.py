"""Three losses: that of which attention is a step, beside one that learns without negatives and one that learns with them.

That attention is a step on −1/(ηD) Σ v_iᵀ W φ(k_i) is Ren & Liu's. Their slides read v_i and W
φ(k_i) as two views of a token, drawn together as in SimSiam and BYOL, and with negatives as
contrastive learning of a kernel. Ours: the losses 2 and 3 as written here (SimSiam and BYOL scale
both views to length 1 first, nobody does here; contrastive losses have a logarithm, none here), and
what their steps are.
"""

# %%
# Four demonstrations and one token of the query's own, in ℚ, φ(k) = k, η = 1. Each demonstration
# has one negative, the least alike by key.
from dataclasses import replace
from fractions import Fraction

from refimpl import QQ
from refimpl.descent.gradient import alignment, gradient, squared_error
from refimpl.descent.ren_liu import W_0, QueryContext, Variant, attention, least_similar

seen = QueryContext(
    *map(QQ.convert, ([[2, 0], [1, 1], [0, 2], [2, 1]], [[3, 0], [2, 1], [0, 3], [3, 1]], [[1, 1]], [[1, 1]], [3, 2]))
)
negatives, beta, start, q, T = (
    least_similar(seen.K_D, 1),
    Fraction(1, 2),
    W_0(seen),
    seen.q[:, None],
    QQ.matrix_transpose,
)
away = QQ.stack([seen.V_D[j, :] for [j] in negatives], axis=0)
show = lambda x: str(x).replace("\n", "").strip("ℚ()")  # noqa: E731
print(
    "negatives",
    negatives,
    "  D =",
    show(seen.D[0]),
    "  before any step: W =",
    show(start),
    "  W q =",
    show((start @ q)[:, 0]),
)


# %%
# The views of a token are drawn together by their product; or by their distance; or by their
# product, and apart from another's view. Since no v_i depends on W, its gradient is stopped, as in
# SimSiam, and nothing can collapse.
def dual(W, V, K, away, D):
    return -alignment(W, V, K) / D[0]


def without_negatives(W, V, K, away, D):
    return squared_error(W, K, V) * K.shape[0] / D[0]


def with_negatives(W, V, K, away, D):
    return -(alignment(W, V, K) - beta * alignment(W, away, K)) / D[0]


# %%
# One step on each is attention: to the values; to what W_0 has not yet learned of them; to the
# values, less β of another's. By `==`.
left = attention(replace(seen, V_D=seen.V_D - seen.K_D @ T(start)))
equals = {
    dual: attention(seen),
    without_negatives: left,
    with_negatives: attention(seen, Variant(negatives=negatives, beta=beta)),
}
data = (seen.V_D, seen.K_D, away, seen.D)
for loss, o in equals.items():
    slope = gradient(loss, start, *data)
    W = start - slope
    assert QQ.equal((W @ q)[:, 0], o)
    own, others = (alignment(W, views, seen.K_D) - alignment(start, views, seen.K_D) for views in (seen.V_D, away))
    print(
        f"{loss.__name__}: L = {show(loss(start, *data))}, ∂L/∂W = {show(slope)}; after a step {show(loss(W, *data))}, W q = {show(o)}"
    )
    print(
        f"    Σ v_i·W k_i grew by {show(own)}, and with the v of its negative for v_i by {float((others / own).tolist()):.3f} of that"
    )

# %%
# Where it goes from there. The first and the third loss are linear in W: every step is the same,
# without end. The second comes to rest.
for loss in equals:
    W, lengths = start, []
    for _ in range(40):
        W = W - gradient(loss, W, *data)
        lengths.append(sum(x * x for row in W.tolist() for x in row) ** 0.5)
    print(
        f"{loss.__name__:18} |W| after 1, 2, 10, 20, 40 steps:", *(f"{lengths[i - 1]:.3f}" for i in (1, 2, 10, 20, 40))
    )
