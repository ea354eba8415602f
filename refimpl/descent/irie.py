"""The dual form: a linear layer trained by gradient descent attends to its training history.

    (W_0 + Σ_i e_i x_iᵀ) x = W_0 x + LinearAttention(values e_i, keys x_i, query x)
    e_i = −η ∂L/∂y_i

Source   Irie et al. 2022, after Aizerman et al. 1964
"""

from __future__ import annotations

from ..arrays import Array
from ..attention.state import absorb, no_text
from ..checks import check_finite_arrays, check_integer, check_scalar, check_shape, common_namespace
from .gradient import Loss, Number, gradient


def trained_weights(W_0: Array, errors: Array, inputs: Array) -> Array:
    """W_0 + Σ_i e_i x_iᵀ, one step after the other.   W_0 (m, d), errors (n, m), inputs (n, d)"""
    check_history("trained_weights", W_0, errors=errors, inputs=inputs)
    W = W_0
    for i in range(inputs.shape[0]):
        W = W + errors[i, :, None] * inputs[i, None, :]
    return W


def dual_form(W_0: Array, errors: Array, inputs: Array, x: Array) -> Array:
    """W_0 x + Σ_i e_i (x_i·x): the same layer keeps its weights, and attends to its history.

    x : (q, d), queries    ->  (q, m)
    Equals   trained_weights(W_0, errors, inputs) x (theorem dual_form)
    """
    xp = check_finite_arrays("dual_form", W_0=W_0, x=x)
    check_history("dual_form", W_0, errors=errors, inputs=inputs)
    check_shape("dual_form", "x", x, "queries", W_0.shape[1], like="to match `W_0`", all_axes=True)
    history = absorb(no_text(errors, inputs.shape[1], errors.shape[1]), inputs, errors)
    return x @ xp.matrix_transpose(W_0) + x @ history.S


def check_history(who: str, W_0: Array, **history: Array) -> None:
    """W_0 must be (m, d); the two arrays of the history (n, m) and (n, d)."""
    check_finite_arrays(who, W_0=W_0, **history)
    check_shape(who, "W_0", W_0, "outputs", "inputs", all_axes=True)
    (errors, e), (inputs, x) = history.items()
    check_shape(who, inputs, x, "examples", W_0.shape[1], like="to match `W_0`", all_axes=True)
    check_shape(who, errors, e, x.shape[0], W_0.shape[0], like=f"to match `{inputs}` and `W_0`", all_axes=True)


def training_history(W_0: Array, X: Array, Y: Array, eta: Number, steps: int, loss: Loss) -> tuple[Array, Array]:
    """(errors, inputs) of steps of gradient descent on loss(predictions, Y), each on all of X.

        e_i = −η ∂L/∂y_i, at the predictions y_i = W x_i of that step

    X : (N, d)    Y : (N, m)    ->  (steps·N, m), (steps·N, d)
    """
    xp = common_namespace("training_history", W_0=W_0, X=X, Y=Y)
    check_history("training_history", W_0, Y=Y, X=X)
    check_scalar("training_history", "eta", eta, X=X)
    errors, inputs = Y[:0, :], X[:0, :]
    for _ in range(check_integer("training_history", "steps", steps, least=0)):
        predictions = dual_form(W_0, errors, inputs, X)
        errors = xp.concat([errors, -eta * gradient(loss, predictions, Y)], axis=0)
        inputs = xp.concat([inputs, X], axis=0)
    return errors, inputs


def half_squares(y: Array, Y: Array) -> Array:
    """1/(2N) Σ_i |y_i − Y_i|², of predictions y (..., N, m)."""
    xp = common_namespace("half_squares", y=y, Y=Y)
    check_shape("half_squares", "y", y, *Y.shape, like="to match `Y`")
    N = check_integer("half_squares", "N", Y.shape[-2], least=1)
    return xp.sum(xp.sum((y - Y) * (y - Y), axis=-1), axis=-1) / (2 * N)
