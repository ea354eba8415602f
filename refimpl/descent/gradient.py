"""Gradients, taken from the loss and from nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..shapes import namespace, scalar, shape
from ..systems import Array, Dual
from ..systems.array import device
from ..systems.balls import Balls

Loss = Callable[..., Any]


def gradient(loss: Loss, W: Any, *data: Any) -> Any:
    """∂L/∂W of loss(W, *data), a number for each W.

        ∂L/∂W_ij = the ε-part of L(W + ε E_ij)

    W : (m, r)    ->  (m, r).   The loss sees W with a leading axis, one direction E_ij for each entry of W, and must keep that axis.
    By dual numbers in exact systems and in balls. In floats and mpmath by (L(W + E_ij) − L(W − E_ij))/2, the same number wherever the
    loss is of degree at most 2 in W, as are all in this house.
    Needs    field

    >>> from refimpl import QQ
    >>> W, X, Y = QQ.convert([[1, 2]]), QQ.convert([[1, 0], [3, 1]]), QQ.convert([[1], [2]])
    >>> gradient(squared_error, W, X, Y)
    ℚ([[9/2, 3/2]])
    """
    xp = namespace("gradient", W=W, **{f"data[{i}]": x for i, x in enumerate(data)})
    shape("gradient", "W", W, "outputs", "inputs")
    m, r = W.shape
    E = xp.reshape(xp.eye(m * r, dtype=W.dtype, device=device(W)), (m * r, m, r))
    if isinstance(W, Array) and (W.system.exact or isinstance(W.system, Balls)):
        dual = Dual(W.system)
        slope = dual.tangent(loss(dual.join(W, E), *(dual.join(x, xp.zeros_like(x)) for x in data)))
    else:
        slope = (loss(W + E, *data) - loss(W - E, *data)) / 2
    return xp.reshape(slope, (m, r))


def step(loss: Loss, W: Any, eta: Any, *data: Any) -> Any:
    """One step of gradient descent, W − η ∂L/∂W."""
    scalar("step", "eta", eta, W=W)
    return W - eta * gradient(loss, W, *data)


def squared_error(W: Any, X: Any, Y: Any) -> Any:
    """L(W) = 1/(2N) Σ_i |W x_i − y_i|².   W (..., m, d), X (N, d), Y (N, m)"""
    xp = namespace("squared_error", W=W, X=X, Y=Y)
    shape("squared_error", "X", X, "examples", W.shape[-1], like="to match `W`")
    shape("squared_error", "Y", Y, X.shape[-2], W.shape[-2], like="to match `X` and `W`")
    e = X @ xp.matrix_transpose(W) - Y
    return xp.sum(xp.sum(e * e, axis=-1), axis=-1) / (2 * X.shape[-2])


def alignment(W: Any, values: Any, keys: Any) -> Any:
    """Σ_i v_iᵀ W k_i: how far the predictions W k_i point where the values do.   W (..., m, r), values (N, m), keys (N, r)"""
    xp = namespace("alignment", W=W, values=values, keys=keys)
    shape("alignment", "keys", keys, "examples", W.shape[-1], like="to match `W`")
    shape("alignment", "values", values, keys.shape[-2], W.shape[-2], like="to match `keys` and `W`")
    return xp.sum(xp.sum(values * (keys @ xp.matrix_transpose(W)), axis=-1), axis=-1)
