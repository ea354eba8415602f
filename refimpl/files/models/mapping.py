"""The weights of anybody's transformer by our names, through a small mapping.

    mapping = {
        "tok.weight": "embedding",
        "blocks.{}.attn.qkv.weight": ["W_Q.T", "W_K.T", "W_V.T"],
        "blocks.{}.attn.out.weight": "W_O.T",
        "blocks.{}.attn.mask": "",
    }

A key is the name of a tensor; {} stands for the number of a layer. The value says what it holds:

    "W_O"                     a weight of ours; under a name with {}, of that layer
    "W_O.T"                   its transpose: torch's Linear is (out, in), our matrices are (in, out)
    ["W_Q.T", "W_K.T"]        several, one after another along their outputs
    {"by_head": [...]}        several, head by head: q, k, v of the first head, then of the next
    ""                        nothing that the model needs, such as a mask of attention

Two tensors that hold one weight, as where a head is tied to the embedding, must be equal.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from ...checks import check_type
from ...errors import brief, choose, printable
from ...model.attention_layers import Config, Rotary
from ...model.transformer import Model
from ...systems import Float, System
from ...systems.array import host
from ..disk import PathLike, check_path, located, read_text
from ..safetensors import read_safetensors
from .reading import Settings, Tensors

FUSED = (("W_Q", "W_K", "W_V"), ("W_K", "W_V"), ("W_gate", "W_up"), ("W_up", "W_gate"))  # that others keep together
BY_HEAD = {"W_Q", "W_K", "W_V", "b_Q", "b_K", "b_V"}
MAY_BE_ZERO = ("b_", "offset")  # how the names of vectors begin that a model may lack
LAYER = "layers.{}."
LARGEST_MAPPING = 2**18  # bytes of a file


class Holding(NamedTuple):
    """What a tensor holds: weights of ours by full name, transposed or not, by head or not."""

    names: tuple[str, ...]
    transposed: bool = False
    by_head: bool = False

    def __str__(self) -> str:
        words = [name.rpartition(".")[2] + ".T" * self.transposed for name in self.names]
        return f"{{'by_head': {words}}}" if self.by_head else repr(words[0] if len(words) == 1 else words)

    def shape(self, config: Config) -> tuple[int, ...]:
        """The shape that such a tensor has."""
        shapes = [config.shapes[name] for name in self.names]
        whole = (*shapes[0][:-1], sum(shape[-1] for shape in shapes))
        return whole[::-1] if self.transposed else whole


def model_from_weights(
    config: Config,
    weights: Mapping[str, Any] | PathLike,
    mapping: Mapping[str, Any],
    *,
    zeros: Sequence[str] = (),
    system: System | None = None,
) -> Model:
    """A model with the weights of another program, such as a `state_dict` of torch.

    weights : arrays by name, of any library, or the path of a safetensors file
    mapping : as at the top of this file. Every weight of ours must be held by a tensor, and every
              tensor must be in the mapping.
    zeros   : vectors of ours that the other model lacks, such as "b_Q", which are then 0
    system  : of the numbers; by default float64, which holds those of every narrower dtype exactly

    >>> import numpy as np
    >>> config = Config(layers=1, width=2, heads=1, d=2, m=2, norm="none")
    >>> weights = {f"layer0.{x}": np.eye(2) for x in "qkvo"}
    >>> mapping = {f"layer{{}}.{x.lower()}": f"W_{x}.T" for x in "QKVO"}
    >>> model = model_from_weights(config, weights, mapping)
    >>> model.weights["layers.0.W_Q"].shape
    (2, 2)
    """
    who = "model_from_weights"
    check_type(who, "config", config, Config)
    check_type(who, "mapping", mapping, Mapping)
    system = Float() if system is None else system
    if isinstance(weights, Mapping):
        about, arrays = "weights", {name: numpy_floats(who, name, x) for name, x in weights.items()}
    else:
        check_path(who, weights)
        about, arrays = str(weights), dict(read_safetensors(weights).tensors)
    tensors = Tensors(who, printable(about), arrays, system)
    found = take_weights(tensors, config, mapping, zeros)
    if tensors.arrays:
        raise ValueError(f"{tensors.about}: {unmapped(tensors.arrays, config, mapping)}")
    return tensors.model(config, found)


def read_mapping_file(path: PathLike) -> tuple[Config, dict[str, Any], list[str]]:
    """The configuration, the mapping and the zeros in a TOML file: [config], [weights], zeros."""
    who = "read_mapping_file"
    about = f"{who}: {path}"
    try:
        found = tomllib.loads(read_text(who, path, LARGEST_MAPPING))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{about}: the file must be TOML: {printable(error)}") from error
    for key in found:
        choose(about, "key", key, ("config", "weights", "zeros"))
    for table in ("config", "weights"):
        if not isinstance(found.get(table), dict):
            raise ValueError(f"{about}: the file must have a table [{table}], got {brief(found.get(table))}")
    return config_from_file(about, found["config"]), found["weights"], found.get("zeros", [])


def config_from_file(about: str, values: dict[str, Any]) -> Config:
    """A Config from the values of a file: `epsilon` a decimal, `rope` a table."""
    for key in values:
        choose(about, "config", key, [f.name for f in fields(Config)])
    for key in ("layers", "width"):
        if key not in values:
            raise ValueError(f"{about}: `config` must have {key!r}")
    values = dict(values)
    if "epsilon" in values:
        values["epsilon"] = Settings("", "", values).fraction("epsilon", "1e-5")
    if isinstance(rope := values.get("rope"), dict):
        for key in rope:
            choose(about, "rope", key, [f.name for f in fields(Rotary)])
        with located(about):
            values["rope"] = Rotary(**{"width": values.get("d", 1)} | rope)
    if isinstance(values.get("phi"), list):
        values["phi"] = tuple(values["phi"])
    try:
        config = Config(**values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{about}: {error}") from error
    config.charge()
    return config


def numpy_floats(who: str, name: object, x: Any) -> np.ndarray:
    """A weight as an array of NumPy; bfloat16, which NumPy lacks, as float32."""
    if not isinstance(name, str):
        raise TypeError(f"{who}: `weights` must have names that are str, got {brief(name)}")
    if isinstance(x, type) or not hasattr(x, "dtype") or not hasattr(x, "shape"):
        raise TypeError(f"{who}: `weights` must hold arrays, got {type(x).__name__} at {printable(name)!r}")
    found = host(x)
    return found.astype(np.float32) if found.dtype.name == "bfloat16" else found


def take_weights(
    tensors: Tensors, config: Config, mapping: Mapping[str, Any], zeros: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """All weights of a model by our names; tensors that hold none are left out."""
    about = tensors.about
    if config.layers > len(tensors.arrays):
        got = f"{config.layers} layers for {len(tensors.arrays)} tensors"
        raise ValueError(f"{about}: `config` must have no more layers than there are tensors, got {got}")
    weights: dict[str, np.ndarray] = {}
    holdings = read_mapping(about, config, mapping)
    for name, holding in holdings.items():
        if holding is None:
            tensors.arrays.pop(name, None)
            continue
        if name not in tensors:
            near = difflib.get_close_matches(name, tensors.arrays.keys() - holdings.keys(), n=1)
            hint = f"; did you mean {printable(near[0])!r}?" if near else ""
            wanted = f"must be there to hold {holding}"
            raise ValueError(f"{about}: tensor {printable(name)!r} {wanted}, got no such name{hint}")
        for ours, x in split_tensor(config, holding, take_tensor(tensors, config, name, holding)).items():
            if ours in weights and not np.array_equal(weights[ours], x):
                raise ValueError(f"{about}: tensor {name!r} must equal the other tensor that holds {ours!r}")
            weights[ours] = x
    allowed = check_zeros(about, config, zeros)
    for ours, shape in config.shapes.items():
        if ours not in weights:
            if short_name(ours) not in allowed:
                advice = f"; if the other model has none, zeros=[{short_name(ours)!r}]"
                advice = advice if short_name(ours).startswith(MAY_BE_ZERO) else ""
                raise ValueError(f"{about}: `mapping` must name the tensor that holds {ours!r} {shape}{advice}")
            weights[ours] = np.zeros(shape)
    return {name: weights[name] for name in config.shapes}


def short_name(name: str) -> str:
    """The name of a weight without its layer."""
    return name.rpartition(".")[2] if name.startswith("layers.") else name


def read_mapping(about: str, config: Config, mapping: Mapping[str, Any]) -> dict[str, Holding | None]:
    """What each tensor holds, by its full name; None for what the model does not need."""
    found: dict[str, Holding | None] = {}
    for name, value in mapping.items():
        if not isinstance(name, str) or name.count("{}") > 1:
            raise ValueError(f"{about}: `mapping` must have names with at most one {{}}, got {brief(name)}")
        for i in range(config.layers) if "{}" in name else [None]:
            of_layer = name if i is None else name.replace("{}", str(i))
            found[of_layer] = read_holding(f"{about}: mapping of {printable(name)!r}", config, value, i)
    return found


def read_holding(about: str, config: Config, value: Any, layer: int | None) -> Holding | None:
    if isinstance(value, str) and not value:
        return None
    by_head = isinstance(value, Mapping)
    if by_head and set(value) != {"by_head"}:
        raise ValueError(f"{about}: `by_head` must be the only key, got {brief(list(value))}")
    words = value["by_head"] if by_head else [value] if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not words or not all(isinstance(word, str) for word in words):
        wanted = "a name such as 'W_Q.T', a list of names, {'by_head': [...]} or ''"
        raise ValueError(f"{about}: `value` must be {wanted}, got {brief(value)}")
    prefix = "" if layer is None else LAYER.format(layer)
    known = [name.removeprefix(prefix) for name in config.shapes if name.startswith(prefix)]
    names = [word.removesuffix(".T") for word in words]
    for name in names:
        choose(about, "value", name, known)
    transposed = {word.endswith(".T") for word in words}
    axes = {len(config.shapes[prefix + name]) for name in names}
    if len(transposed) > 1 or len(axes) > 1 or len({config.shapes[prefix + name][:-1] for name in names}) > 1:
        wanted = "weights with the same inputs, all of them transposed or none"
        raise ValueError(f"{about}: `value` must be {wanted}, got {brief(words)}")
    if by_head and not set(map(short_name, names)) <= BY_HEAD:
        raise ValueError(f"{about}: `by_head` must list {', '.join(sorted(BY_HEAD))}, got {brief(words)}")
    if axes == {1} and transposed == {True}:
        raise ValueError(f"{about}: `value` must have no .T, since {names[0]} is a vector, got {brief(words)}")
    return Holding(tuple(prefix + name for name in names), transposed == {True}, by_head)


def take_tensor(tensors: Tensors, config: Config, name: str, holding: Holding) -> np.ndarray:
    """The tensor of this name. If its shape is wrong, the error says what it may hold instead."""
    wanted, got = holding.shape(config), tensors.arrays[name].shape
    if got != wanted:
        others = [str(other) for other in other_readings(config, holding) if other.shape(config) == got]
        hint = f"; {others[0]} would fit" if others else ""
        wanted_as = f"must have shape {wanted} to hold {holding}"
        raise ValueError(f"{tensors.about}: tensor {printable(name)!r} {wanted_as}, got {got}{hint}")
    return tensors.take(name, *wanted)


def other_readings(config: Config, holding: Holding) -> list[Holding]:
    """What a tensor may hold instead: the transpose, one weight of several, or several."""
    prefix, name = holding.names[0][: -len(short_name(holding.names[0]))], short_name(holding.names[0])
    groups = [tuple(prefix + part for part in parts) for parts in FUSED if name in parts]
    groups += [(one,) for one in holding.names]
    known = [names for names in (holding.names, *groups) if all(one in config.shapes for one in names)]
    return [
        Holding(names, transposed) for names in known for transposed in (not holding.transposed, holding.transposed)
    ]


def split_tensor(config: Config, holding: Holding, x: np.ndarray) -> dict[str, np.ndarray]:
    """The weights that a tensor holds, by our names."""
    y = x.T if holding.transposed else x
    blocks = config.kv_heads if holding.by_head else 1
    sizes = [config.shapes[name][-1] // blocks for name in holding.names]
    pieces = np.split(y.reshape(*y.shape[:-1], blocks, sum(sizes)), np.cumsum(sizes)[:-1], axis=-1)
    shapes = [config.shapes[name] for name in holding.names]
    return {name: piece.reshape(shape) for name, piece, shape in zip(holding.names, pieces, shapes, strict=True)}


def unmapped(arrays: Mapping[str, np.ndarray], config: Config, mapping: Mapping[str, Any]) -> str:
    """In words: a tensor that nobody asked for."""
    name = min(arrays)
    for template in mapping:
        start, hole, end = template.partition("{}")
        number = name[len(start) : len(name) - len(end)]
        if hole and name.startswith(start) and name.endswith(end) and number.isdecimal():
            return f"tensor {printable(name)!r} is of layer {number[:20]}, but `config` has {config.layers} layers"
    got = f"{printable(name)!r} {arrays[name].shape}" + (f" and {len(arrays) - 1} more" if len(arrays) > 1 else "")
    return f"`mapping` must name every tensor, with '' for those that are no weights, got none for {got}"


def check_zeros(about: str, config: Config, zeros: Sequence[str]) -> set[str]:
    if isinstance(zeros, str) or not isinstance(zeros, Sequence):
        raise ValueError(f"{about}: `zeros` must be a list of names such as 'b_Q', got {brief(zeros)}")
    known = {short_name(name) for name in config.shapes if short_name(name).startswith(MAY_BE_ZERO)}
    for name in zeros:
        choose(about, "zeros", name, known)
    return set(zeros)
