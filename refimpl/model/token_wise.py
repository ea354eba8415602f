"""What a transformer does besides attention: functions of one token at a time, which no prompt can touch.

Roots and exponentials need a real system. The rational stand-ins beside them, tangent to them at their usual argument, let
whole models run in ℚ and GF(p).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from ..attention.feature_maps import relu
from ..checks import whole
from ..systems.floats import array_namespace, constant, require_of

# √(2/π), as published code has it: the nearest float64.
GELU = Fraction(7186705221432913, 2**53)


def norm(
    x: Any, gain: Any = 1, offset: Any = 0, *, kind: str = "layer", epsilon: Fraction = Fraction(1, 100000)
) -> Any:
    """Normalise each token, (..., n, width).

        layer   y = x − mean(x)     rms   y = x       then    y / √(mean(y²) + ε) · gain + offset
        layer_rational, rms_rational: 1/√u replaced by 2/(1 + u), its tangent at u = 1

    none: x itself.   Needs field; real for the roots.   Source: Ba et al. 2016, Zhang and Sennrich 2019; the stand-ins are ours.
    """
    if kind == "none":
        return x
    xp, width = array_namespace(x), x.shape[-1]
    y = x - xp.sum(x, axis=-1, keepdims=True) / width if kind.startswith("layer") else x
    u = whole(f"{kind} norm", "mean(y²) + ε", xp.sum(y * y, axis=-1, keepdims=True) / width + constant(x, epsilon))
    if kind.endswith("rational"):
        return y * (2 / (1 + u)) * gain + offset
    require_of(x, "real", f"{kind} norm")
    return y / xp.sqrt(u) * gain + offset


NORMS = {"none": "ring", "layer": "real", "rms": "real", "layer_rational": "field", "rms_rational": "field"}


def gelu(x: Any) -> Any:
    """x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))), as in GPT-2.   Needs real.   Source: Hendrycks and Gimpel 2016."""
    inner = constant(x, GELU) * (x + constant(x, Fraction(44715, 10**6)) * x * x * x)
    return x / 2 * (1 + array_namespace(x).tanh(inner))


def silu(x: Any) -> Any:
    """x / (1 + exp(−x)) = x/2 · (1 + tanh(x/2)), which does not overflow.   Needs real."""
    return x / 2 * (1 + array_namespace(x).tanh(x / 2))


def quadratic(x: Any) -> Any:
    """x/2 + x²/4 = x (2 + x) / 4: silu to second order, its rational stand-in.   Needs field; 2 ≠ 0."""
    return x * (2 + x) / 4


ACTIVATIONS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "gelu": (gelu, "real"),
    "silu": (silu, "real"),
    "relu": (relu, "ordered"),
    "quadratic": (quadratic, "field"),
}


def mlp(
    x: Any, up: Any, down: Any, *, gate: Any = None, b_up: Any = 0, b_down: Any = 0, activation: str = "gelu"
) -> Any:
    """σ(x W_up + b_up) W_down + b_down, or gated: (σ(x W_gate) · (x W_up + b_up)) W_down + b_down.   Source: Shazeer 2020."""
    sigma, needed = ACTIVATIONS[activation]
    require_of(x, needed, activation)
    hidden = x @ up + b_up
    hidden = sigma(hidden) if gate is None else sigma(x @ gate) * hidden
    return hidden @ down + b_down
