"""A context as a rank-one change of the first weights of an MLP, exact for one token only.

If attention gives a for a token without the context, and a + δ with it, then

    W (a + δ) = (W + ΔW) a,        ΔW = (W δ) aᵀ / |a|²

so for this token the context acts as ΔW, of rank one. Another token has another a and δ. So ΔW
depends on the token, while the biases of ICLCA (prompt/conversion.py) do not.

Source   "Learning without training", arXiv 2507.16003
"""

from __future__ import annotations

from ..arrays import Array
from ..checks import check_finite_arrays, check_shape, divide


def rank_one_patch(W: Array, a: Array, delta: Array) -> Array:
    """ΔW = (W δ) aᵀ / |a|².

    W : (h, width)    a, delta : (..., width)    ->  (..., h, width), one for each token
    Needs    field; |a|² ≠ 0

    >>> from refimpl import QQ
    >>> W, a, delta = QQ.convert([[1, 2], [0, 1]]), QQ.convert([3, 4]), QQ.convert([1, 0])
    >>> QQ.equal((W + rank_one_patch(W, a, delta)) @ a[:, None], W @ (a + delta)[:, None])
    True
    """
    xp = check_finite_arrays("rank_one_patch", W=W, a=a, delta=delta)
    check_shape("rank_one_patch", "W", W, "hidden", "width", all_axes=True)
    for name, x in (("a", a), ("delta", delta)):
        check_shape("rank_one_patch", name, x, W.shape[-1], like="to match `W`")
    rows = a if a.ndim > 1 else a[None, :]
    scaled = divide("rank_one_patch", rows, xp.sum(rows * rows, axis=-1, keepdims=True), "|a|²")
    return (W @ delta[..., None]) * xp.reshape(scaled, a.shape)[..., None, :]
