"""Gradients, computed from the loss alone."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable
from fractions import Fraction
from importlib import import_module
from typing import cast

from ..arrays import Array
from ..checks import check_finite_arrays, check_scalar, check_shape, common_namespace, library_of
from ..systems import Dual, Rounded, SystemArray
from ..systems.array import GLOBAL_STATE
from ..systems.floats import device, dtype_name

Loss = Callable[..., Array]
Number = int | float | Fraction | Array  # Python's, or an array of shape ()


def gradient(loss: Loss, W: Array, *data: Array) -> Array:
    """∂L/∂W of loss(W, *data), which returns one number for each W.

        ∂L/∂W_ij = the ε-part of L(W + ε E_ij)

    W : (m, r)    ->  (m, r)
    The loss receives W with a leading axis, one direction E_ij for each entry, and must keep that
    axis.
    Needs    ring, and what the loss needs

    >>> from refimpl import QQ
    >>> W, X, Y = QQ.convert([[1, 2]]), QQ.convert([[1, 0], [3, 1]]), QQ.convert([[1], [2]])
    >>> gradient(squared_error, W, X, Y)
    ℚ([[9/2, 3/2]])
    """
    xp = check_finite_arrays("gradient", W=W, **{f"data[{i}]": x for i, x in enumerate(data)})
    if W.ndim != 2:
        raise ValueError(f"gradient: `W` must have shape (outputs, inputs), got {tuple(W.shape)}")
    m, r = W.shape
    E = xp.reshape(xp.eye(m * r, dtype=W.dtype, device=device(W)), (m * r, m, r))
    return xp.reshape(slope(loss, W, E, *data), (m, r))


def slope(loss: Loss, W: Array, E: Array, *data: Array) -> Array:
    """The ε-part of loss(W + ε E): by dual numbers, or by the forward mode of torch and JAX.

    NumPy's floats are differentiated by dual numbers over `Rounded`.
    """
    if isinstance(W, SystemArray):
        dual = Dual(W.system)
        join = cast(Callable[[Array, Array], Array], dual.join)
        return dual.tangent(cast(SystemArray, loss(join(W, E), *(join(x, 0 * x) for x in data))))
    library = library_of(W)
    if library == "numpy":
        rounded = Rounded(dtype_name(W.dtype))
        return cast(SystemArray, slope(loss, *map(rounded.convert, (W, E, *data)))).planes[0].astype(W.dtype)
    if library not in ("torch", "jax.numpy"):
        raise ValueError(f"gradient: `W` must be of NumPy, torch, JAX or a number system of ours, got one of {library}")
    return forward_mode(library)(loss, (W + 0 * E, *data), (E, *(0 * x for x in data)))[1]


@functools.cache
def forward_mode(library: str) -> Callable[..., tuple[Array, Array]]:
    """jvp of torch or JAX. torch warns of deprecated code of its own at the first use: here."""
    jvp: Callable[..., tuple[Array, Array]] = import_module("torch.func" if library == "torch" else "jax").jvp
    if library == "torch":
        one = import_module(library).ones(1)
        with GLOBAL_STATE, warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            jvp(operator.neg, (one,), (one,))
    return jvp


def step(loss: Loss, W: Array, eta: Number, *data: Array) -> Array:
    """One step of gradient descent, W − η ∂L/∂W."""
    check_scalar("step", "eta", eta, W=W)
    return W - eta * gradient(loss, W, *data)


def squared_error(W: Array, X: Array, Y: Array) -> Array:
    """L(W) = 1/(2N) Σ_i |W x_i − y_i|².   W (..., m, d), X (N, d), Y (N, m)"""
    xp = common_namespace("squared_error", W=W, X=X, Y=Y)
    check_shape("squared_error", "X", X, "examples", W.shape[-1], like="to match `W`")
    check_shape("squared_error", "Y", Y, X.shape[-2], W.shape[-2], like="to match `X` and `W`")
    if not X.shape[-2]:
        raise ValueError("squared_error: `X` must hold one or more examples, for there to be a mean, got none")
    e = X @ xp.matrix_transpose(W) - Y
    return xp.sum(xp.sum(e * e, axis=-1), axis=-1) / (2 * X.shape[-2])


def alignment(W: Array, values: Array, keys: Array) -> Array:
    """Σ_i v_iᵀ W k_i: how well the predictions W k_i align with the values.

    W : (..., m, r)    values : (N, m)    keys : (N, r)
    """
    xp = common_namespace("alignment", W=W, values=values, keys=keys)
    check_shape("alignment", "keys", keys, "examples", W.shape[-1], like="to match `W`")
    check_shape("alignment", "values", values, keys.shape[-2], W.shape[-2], like="to match `keys` and `W`")
    return xp.sum(xp.sum(values * (keys @ xp.matrix_transpose(W)), axis=-1), axis=-1)
