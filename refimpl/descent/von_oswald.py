"""Linear self-attention whose layers are steps of gradient descent on the examples in the prompt.

A token is e_j = (x_j, y_j). One layer, with these weights,

    e_j ← e_j + P Σ_i (W_V e_i) (W_K e_i)·(W_Q e_j)        i over the context, the N examples
    W_K = W_Q = [[I, 0], [0, 0]]        W_V = [[0, 0], [W_0, −I]]        P = (η/N) I

makes y_j ← y_j − ΔW x_j, where ΔW = −(η/N) Σ_i (W_0 x_i − y_i) x_iᵀ is one step from W_0 on L(W) =
1/(2N) Σ_i |W x_i − y_i|². A query enters as (x, −W_0 x) and leaves as (x, −W_1 x). The context
moves likewise, so the next layer is the next step, if the tokens of the context see all of the
context (a prefix mask), and no query.

Source   von Oswald et al. 2023 (arXiv 2212.07677), Proposition 1; our reading, checked in numbers
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from ..arrays import Array
from ..attention.state import absorb, no_text
from ..checks import check_finite_arrays, check_integer, check_scalar, check_shape, common_namespace, is_zero
from ..model.attention_layers import Config
from ..model.transformer import Model
from ..systems.floats import array_namespace, device
from .gradient import Number


def examples(X: Array, Y: Array) -> Array:
    """The tokens (x_j, y_j).   X (N, d), Y (N, m)  ->  (N, d + m)"""
    return common_namespace("examples", X=X, Y=Y).concat([X, Y], axis=-1)


def queries(X: Array, W_0: Array) -> Array:
    """The tokens (x, −W_0 x), which ask for a prediction."""
    return examples(X, -(X @ common_namespace("queries", X=X, W_0=W_0).matrix_transpose(W_0)))


def predictions(tokens: Array, m: int) -> Array:
    """Minus the y-part of tokens that went through."""
    return -tokens[..., tokens.shape[-1] - check_integer("predictions", "m", m, least=0, most=tokens.shape[-1]) :]


def self_attention(tokens: Array, context: Array, W_Q: Array, W_K: Array, W_V: Array, P: Array) -> Array:
    """One layer of linear self-attention: e_j ← e_j + P Σ_i (W_V e_i) (W_K e_i)·(W_Q e_j).

    tokens : (n, width)    context : (N, width), whose tokens are the keys
    W_Q, W_K, W_V, P : (width, width)    ->  (n, width)
    """
    xp = check_finite_arrays("self_attention", tokens=tokens, context=context, W_Q=W_Q, W_K=W_K, W_V=W_V, P=P)
    width = tokens.shape[-1]
    for name, x in (("context", context), ("W_Q", W_Q), ("W_K", W_K), ("W_V", W_V), ("P", P)):
        rows = "tokens" if name == "context" else width
        check_shape("self_attention", name, x, rows, width, like="to match `tokens`")
    T = xp.matrix_transpose
    S = absorb(no_text(context, width, width), context @ T(W_K), context @ T(W_V)).S
    return tokens + tokens @ T(W_Q) @ S @ T(P)


def proposition_1(W_0: Array, eta: Number, N: int) -> tuple[Array, Array, Array, Array]:
    """(W_Q, W_K, W_V, P), the weights of one step from W_0 (m, d)."""
    xp = check_finite_arrays("proposition_1", W_0=W_0)
    check_shape("proposition_1", "W_0", W_0, "outputs", "inputs", all_axes=True)
    check_scalar("proposition_1", "eta", eta, W_0=W_0)
    (m, d), eye = W_0.shape, identity(W_0)
    select = eye(d + m)[:, :d] @ eye(d + m)[:d, :]
    W_V = xp.concat([0 * eye(d + m)[:d, :], xp.concat([W_0, -eye(m)], axis=1)], axis=0)
    return select, select, W_V, eta * eye(d + m) / check_integer("proposition_1", "N", N, least=1)


def identity(like: Array) -> Callable[[int], Array]:
    """n -> the n × n identity, in the numbers of `like`."""
    xp = array_namespace(like)
    return lambda n: xp.eye(n, dtype=like.dtype, device=device(like))


def steps(tokens: Array, context: Array, W_0: Array, eta: Number, count: int, *, dampening: Number = 1) -> Array:
    """The tokens after `count` steps of gradient descent: one layer, applied so many times.

    dampening : λ, by which a layer changes a token, e ← e + λ (layer(e) − e): the rate is then λη
    """
    check_scalar("steps", "dampening", dampening, W_0=W_0)
    weights = proposition_1(W_0, eta, context.shape[-2])
    for _ in range(check_integer("steps", "count", count, least=0)):
        tokens, context = (e + dampening * (self_attention(e, context, *weights) - e) for e in (tokens, context))
    return tokens


def regression_model(W_0: Array, eta: Number, N: int, *, layers: int = 1, gamma: Number = 0) -> Model:
    """The same as a model of the library, for tokens by `model_examples` and `model_queries`.

    In such a model a token always sees itself. A query must not be a key, so x stands twice in a
    token (our own construction): (key, x, y), key = x for an example and 0 for a query. Run it
    under mask=N, or convert the examples with mask="full": the biases of layer j then hold

        ΔW_j = W_{j+1} − W_j = −(η/N) b_KVᵀ        b_KV : of head 1, the first m columns

    gamma : γ of GD++, by which the context also moves its inputs, x_j ← (I − γ Σ_i x_i x_iᵀ) x_j.
            This takes two heads more, one for each place of x, and heads are max(m, d) wide. In the
            paper W_0 = 0. Otherwise only one layer is a step: the next one reads W_0 x of inputs
            that have moved, and targets that were moved for the inputs before.
    """
    xp = check_finite_arrays("regression_model", W_0=W_0)
    check_shape("regression_model", "W_0", W_0, "outputs", "inputs", all_axes=True)
    for name, x in (("eta", eta), ("gamma", gamma)):
        check_scalar("regression_model", name, x, W_0=W_0)
    layers, N = (check_integer("regression_model", name, n, least=1) for name, n in (("layers", layers), ("N", N)))
    (m, d), (key, x, y), T = W_0.shape, places(W_0), xp.matrix_transpose
    heads = [(x, key, key @ T(W_0) - y, eta * T(y) / N)]  # W_Q, W_K, W_V, W_O of each
    if not is_zero(gamma):
        heads += [(x, key, key, -gamma * T(x)), (key, key, key, -gamma * T(key))]
    wide = m if len(heads) == 1 else max(m, d)
    zeros = 0 * identity(W_0)(max(wide, 2 * d + m))

    def pad(W: Array) -> Array:
        return xp.concat([W, zeros[: W.shape[0], : wide - W.shape[1]]], axis=1)

    W_Q, W_K, W_V, W_O = zip(*heads, strict=True)
    columns = {"W_Q": W_Q, "W_K": W_K, "W_V": [pad(W) for W in W_V]}
    weights = {name: xp.concat(parts, axis=1) for name, parts in columns.items()}
    weights["W_O"] = xp.concat([T(pad(T(W))) for W in W_O], axis=0)
    config = Config(layers, 2 * d + m, len(heads), d=d, m=wide, phi="identity", normalise=False, norm="none")
    return Model(config, {f"layers.{i}.{name}": W for i in range(layers) for name, W in weights.items()})


def places(W_0: Array) -> tuple[Array, Array, Array]:
    """Matrices that pick key, x and y from a token of a `regression_model`."""
    m, d = W_0.shape
    every = identity(W_0)(2 * d + m)
    return every[:, :d], every[:, d : 2 * d], every[:, 2 * d :]


def mapped_model(model: Model, W_0: Array, W_1: Array, W_2: Array) -> Model:
    """A `regression_model` behind a token-wise map f(x) = x + W_2 σ(W_1 x): it descends on f(x).

    Proposition 2; this map is ours: the MLP of one layer more, in front, whose attention is zero.
    It maps both places of x (a key of 0 stays 0), and in a query turns −W_0 x into −W_0 f(x).

    W_0 : (m, d), as in the model    W_1 : (h, d)    W_2 : (d, h)    σ "quadratic", h (2 + h) / 4
    """
    xp = check_finite_arrays("mapped_model", W_0=W_0, W_1=W_1, W_2=W_2)
    check_shape("mapped_model", "W_1", W_1, "hidden", W_0.shape[-1], like="to match `W_0`", all_axes=True)
    check_shape("mapped_model", "W_2", W_2, *reversed(W_1.shape), like="to match `W_1`", all_axes=True)
    T, (key, x, y) = xp.matrix_transpose, places(W_0)
    up = xp.concat([key @ T(W_1), x @ T(W_1)], axis=1)
    down = xp.concat([T(key @ W_2 + y @ W_0 @ W_2), T(x @ W_2 - y @ W_0 @ W_2)], axis=0)
    config, weights = cast(Config, model.config), dict[str, Array]()
    config = replace(config, layers=config.layers + 1, hidden=up.shape[1], activation="quadratic")
    for i in range(config.layers):
        layer = {name: model.weights[f"layers.{max(i - 1, 0)}.{name}"] for name in ("W_Q", "W_K", "W_V", "W_O")}
        layer |= {"W_up": up, "W_down": 0 * down} if i else {"W_O": 0 * layer["W_O"], "W_up": up, "W_down": down}
        weights |= {f"layers.{i}.{name}": W for name, W in layer.items()}
    return replace(model, config=config, weights=weights)


def model_examples(X: Array, Y: Array) -> Array:
    """Examples as tokens (x, x, y) of a `regression_model`."""
    return common_namespace("model_examples", X=X, Y=Y).concat([X, X, Y], axis=-1)


def model_queries(X: Array, W_0: Array) -> Array:
    """Queries as tokens (0, x, −W_0 x) of a `regression_model`."""
    xp = common_namespace("model_queries", X=X, W_0=W_0)
    return xp.concat([0 * X, X, -(X @ xp.matrix_transpose(W_0))], axis=-1)


def weight_update(b_KV: Array, eta: Number, N: int) -> Array:
    """ΔW (m, d) = −(η/N) b_KVᵀ: the bias of ICLCA in a `regression_model` is the gradient step."""
    xp = check_finite_arrays("weight_update", b_KV=b_KV)
    check_scalar("weight_update", "eta", eta, b_KV=b_KV)
    return -eta * xp.matrix_transpose(b_KV) / check_integer("weight_update", "N", N, least=1)


def pairing_model(like: Array, d: int, m: int, N: int) -> Model:
    """An attention layer that builds the tokens (x_j, y_j) from separate ones x_1, y_1, x_2, y_2, …

    Proposition 3; the construction is ours. A token is (x, y, place), where x or y is 0; a table of
    absolute positions adds the place, which is one-hot. Token t looks for place t − 1 and adds the
    x there to its own: a y-token gets the x before it, an x-token gets the x of a y-token, which is
    0. like : an array, in whose numbers the model is
    """
    xp, eye = common_namespace("pairing_model", like=like), identity(like)
    for name, n in (("d", d), ("m", m), ("N", N)):
        check_integer("pairing_model", name, n, least=1)
    width = d + m + 2 * N
    x, place = eye(width)[:, :d], eye(width)[:, d + m :]  # each picks its part of a token
    before = xp.concat([place[:, 1:], 0 * place[:, :1]], axis=1)
    layer = {"W_Q": before, "W_K": place, "W_V": x, "W_O": xp.matrix_transpose(x)}
    weights = {f"layers.0.{name}": W for name, W in layer.items()} | {"positions": xp.matrix_transpose(place)}
    return Model(Config(1, width, d=2 * N, m=d, phi="identity", normalise=False, norm="none", table=2 * N), weights)
