"""Linear self-attention whose layers are steps of gradient descent on the examples it is shown.

A token is e_j = (x_j, y_j). One layer, with these weights,

    e_j ← e_j + P Σ_i (W_V e_i) (W_K e_i)·(W_Q e_j)        i over the context, the N examples
    W_K = W_Q = [[I, 0], [0, 0]]        W_V = [[0, 0], [W_0, −I]]        P = (η/N) I

makes y_j ← y_j − ΔW x_j, where ΔW = −(η/N) Σ_i (W_0 x_i − y_i) x_iᵀ is one step from W_0 on L(W) = 1/(2N) Σ_i |W x_i − y_i|².
A query enters as (x, −W_0 x) and leaves as (x, −W_1 x). The context moves likewise, so the next layer is the next step, if the tokens
of the context see all of the context (a prefix mask), and no query.

Source   von Oswald et al. 2023 (arXiv 2212.07677), Proposition 1; in our reading, checked in numbers
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..attention.state import absorb, no_text
from ..checks import check_finite_arrays, check_integer, check_scalar, check_shape, common_namespace, is_zero
from ..model.attention_layers import Config
from ..model.transformer import Model
from ..systems.floats import array_namespace, device


def examples(X: Any, Y: Any) -> Any:
    """The tokens (x_j, y_j).   X (N, d), Y (N, m)  ->  (N, d + m)"""
    return common_namespace("examples", X=X, Y=Y).concat([X, Y], axis=-1)


def queries(X: Any, W_0: Any) -> Any:
    """The tokens (x, −W_0 x), which ask for a prediction."""
    return examples(X, -(X @ common_namespace("queries", X=X, W_0=W_0).matrix_transpose(W_0)))


def predictions(tokens: Any, m: int) -> Any:
    """Minus the y-part of tokens that went through."""
    return -tokens[..., tokens.shape[-1] - check_integer("predictions", "m", m, least=0, most=tokens.shape[-1]) :]


def self_attention(tokens: Any, context: Any, W_Q: Any, W_K: Any, W_V: Any, P: Any) -> Any:
    """One layer of linear self-attention: e_j ← e_j + P Σ_i (W_V e_i) (W_K e_i)·(W_Q e_j).

    tokens : (n, width)    context : (N, width), whose tokens are the keys    W_Q, W_K, W_V, P : (width, width)    ->  (n, width)
    """
    xp = check_finite_arrays("self_attention", tokens=tokens, context=context, W_Q=W_Q, W_K=W_K, W_V=W_V, P=P)
    width = tokens.shape[-1]
    for name, x in (("context", context), ("W_Q", W_Q), ("W_K", W_K), ("W_V", W_V), ("P", P)):
        check_shape(
            "self_attention", name, x, "tokens" if name == "context" else width, width, like="to match `tokens`"
        )
    T = xp.matrix_transpose
    S = absorb(no_text(context, width, width), context @ T(W_K), context @ T(W_V)).S
    return tokens + tokens @ T(W_Q) @ S @ T(P)


def proposition_1(W_0: Any, eta: Any, N: int) -> tuple[Any, Any, Any, Any]:
    """(W_Q, W_K, W_V, P), the weights of one step from W_0 (m, d)."""
    xp = check_finite_arrays("proposition_1", W_0=W_0)
    check_shape("proposition_1", "W_0", W_0, "outputs", "inputs", all_axes=True)
    check_scalar("proposition_1", "eta", eta, W_0=W_0)
    (m, d), eye = W_0.shape, identity(W_0)
    select = eye(d + m)[:, :d] @ eye(d + m)[:d, :]
    lower = xp.concat([W_0, -eye(m)], axis=1)
    return (
        select,
        select,
        xp.concat([0 * eye(d + m)[:d, :], lower], axis=0),
        eta * eye(d + m) / check_integer("proposition_1", "N", N, least=1),
    )


def identity(like: Any) -> Any:
    """n -> the n × n identity, in the numbers of `like`."""
    xp = array_namespace(like)
    return lambda n: xp.eye(n, dtype=like.dtype, device=device(like))


def steps(tokens: Any, context: Any, W_0: Any, eta: Any, count: int, *, dampening: Any = 1) -> Any:
    """One layer, looped so many times: as many steps of gradient descent. What the tokens are after them.

    dampening : λ, by which a layer changes a token, e ← e + λ (layer(e) − e): the steps are then of rate λη
    """
    check_scalar("steps", "dampening", dampening, W_0=W_0)
    weights = proposition_1(W_0, eta, context.shape[-2])
    for _ in range(check_integer("steps", "count", count, least=0)):
        tokens, context = (e + dampening * (self_attention(e, context, *weights) - e) for e in (tokens, context))
    return tokens


def regression_model(W_0: Any, eta: Any, N: int, *, layers: int = 1, gamma: Any = 0) -> Model:
    """The same as an ordinary model of the library, of so many layers, for tokens made by `shown` and `asked`.

    There a token always sees itself. So that a query is no key, its x stands twice in a token: (key, x, y), with key = x for an example
    and key = 0 for a query. This is our own device. Run it under mask=N, or convert the examples with mask="full": the biases are then

        ΔW_j = W_{j+1} − W_j = −(η/N) b_KVᵀ        of layer j; b_KV : of head 1, the first m columns

    gamma : γ of GD++, by which the context also moves its inputs, x_j ← (I − γ Σ_i x_i x_iᵀ) x_j: in two heads more, one for
            each place of x; and heads are then max(m, d) wide. In the paper with W_0 = 0. Otherwise only one layer is a step: the next
            reads W_0 x of inputs that have moved, and targets that were moved for those before.
    """
    xp = check_finite_arrays("regression_model", W_0=W_0)
    check_shape("regression_model", "W_0", W_0, "outputs", "inputs", all_axes=True)
    for name, x in (("eta", eta), ("gamma", gamma)):
        check_scalar("regression_model", name, x, W_0=W_0)
    (m, d), eye = W_0.shape, identity(W_0)
    heads, wide, width = (1, m, 2 * d + m) if is_zero(gamma) else (3, max(m, d), 2 * d + m)
    none, (key, x, y) = 0 * eye(max(wide, width)), places(W_0)
    fill = lambda W, n: xp.concat([W, none[: W.shape[0], : n - W.shape[1]]], axis=1)  # noqa: E731
    T, N = xp.matrix_transpose, check_integer("regression_model", "N", N, least=1)
    parts = [(x, key, key @ T(W_0) - y, eta * T(y) / N)]  # q, k, v, and where the output goes
    if heads == 3:
        parts += [(x, key, key, -gamma * T(x)), (key, key, key, -gamma * T(key))]
    W_Q, W_K, W_V = (xp.concat([fill(part[i], n) for part in parts], axis=1) for i, n in ((0, d), (1, d), (2, wide)))
    W_O = xp.concat([T(fill(T(part[3]), wide)) for part in parts], axis=0)
    config = Config(
        check_integer("regression_model", "layers", layers, least=1),
        width,
        heads,
        d=d,
        m=wide,
        phi="identity",
        normalise=False,
        norm="none",
    )
    each = {"W_Q": W_Q, "W_K": W_K, "W_V": W_V, "W_O": W_O}
    return Model(config, {f"layers.{i}.{name}": W for i in range(layers) for name, W in each.items()})


def places(W_0: Any) -> tuple[Any, Any, Any]:
    """(key, x, y), each of which picks its part of a token of a `regression_model`."""
    m, d = W_0.shape
    every = identity(W_0)(2 * d + m)
    return every[:, :d], every[:, d : 2 * d], every[:, 2 * d :]


def mapped_model(model: Model, W_0: Any, W_1: Any, W_2: Any) -> Model:
    """A `regression_model` behind a token-wise map m(x) = x + W_2 σ(W_1 x): it descends on m(x).   (Proposition 2; this map is ours.)

    The map is the MLP of one layer more, in front, whose attention puts out nothing. It maps both places of x, so a key of 0 stays 0; and
    where they differ, which is in a query, it makes −W_0 m(x) of −W_0 x.

    W_0 : (m, d), as in the model    W_1 : (h, d)    W_2 : (d, h)    σ(h) = h (2 + h) / 4, "quadratic"
    """
    xp = check_finite_arrays("mapped_model", W_0=W_0, W_1=W_1, W_2=W_2)
    check_shape("mapped_model", "W_1", W_1, "hidden", W_0.shape[-1], like="to match `W_0`", all_axes=True)
    check_shape("mapped_model", "W_2", W_2, *reversed(W_1.shape), like="to match `W_1`", all_axes=True)
    T, (key, x, y) = xp.matrix_transpose, places(W_0)
    up = xp.concat([key @ T(W_1), x @ T(W_1)], axis=1)
    down = xp.concat([T(key @ W_2 + y @ W_0 @ W_2), T(x @ W_2 - y @ W_0 @ W_2)], axis=0)
    weights: dict[str, Any] = {}
    for i in range(model.config.layers + 1):
        layer = {name: model.weights[f"layers.{max(i - 1, 0)}.{name}"] for name in ("W_Q", "W_K", "W_V", "W_O")}
        layer |= {"W_up": up, "W_down": 0 * down} if i else {"W_O": 0 * layer["W_O"], "W_up": up, "W_down": down}
        weights |= {f"layers.{i}.{name}": W for name, W in layer.items()}
    config = replace(model.config, layers=model.config.layers + 1, hidden=up.shape[1], activation="quadratic")
    return replace(model, config=config, weights=weights)


def shown(X: Any, Y: Any) -> Any:
    """Examples as tokens (x, x, y) of a `regression_model`."""
    return common_namespace("shown", X=X, Y=Y).concat([X, X, Y], axis=-1)


def asked(X: Any, W_0: Any) -> Any:
    """Queries as tokens (0, x, −W_0 x) of a `regression_model`."""
    xp = common_namespace("asked", X=X, W_0=W_0)
    return xp.concat([0 * X, X, -(X @ xp.matrix_transpose(W_0))], axis=-1)


def weight_update(b_KV: Any, eta: Any, N: int) -> Any:
    """ΔW = −(η/N) b_KVᵀ: what ICLCA writes into the bias of a `regression_model` is the gradient step.   b_KV (d, m)  ->  (m, d)"""
    xp = check_finite_arrays("weight_update", b_KV=b_KV)
    check_scalar("weight_update", "eta", eta, b_KV=b_KV)
    return -eta * xp.matrix_transpose(b_KV) / check_integer("weight_update", "N", N, least=1)


def pairing_model(like: Any, d: int, m: int, N: int) -> Model:
    """An attention layer that builds the tokens (x_j, y_j) from separate ones x_1, y_1, x_2, y_2, …  (Proposition 3; how, is our own.)

    A token is (x, y, place), x or y being 0; a table of absolute positions adds the place, which is one-hot. Token t looks for place t − 1
    and adds the x that is there to its own: a y-token gets the x before it, an x-token that of the y-token before it, which is 0.
    like : an array, in whose numbers the model is
    """
    xp, one = common_namespace("pairing_model", like=like), identity(like)
    for name, n in (("d", d), ("m", m), ("N", N)):
        check_integer("pairing_model", name, n, least=1)
    width = d + m + 2 * N
    x, place = one(width)[:, :d], one(width)[:, d + m :]  # each picks its part of a token
    before = xp.concat([place[:, 1:], 0 * place[:, :1]], axis=1)
    weights = {"W_Q": before, "W_K": place, "W_V": x, "W_O": xp.matrix_transpose(x)}
    config = Config(1, width, d=2 * N, m=d, phi="identity", normalise=False, norm="none", table=2 * N)
    return Model(
        config, {f"layers.0.{name}": W for name, W in weights.items()} | {"positions": xp.matrix_transpose(place)}
    )
