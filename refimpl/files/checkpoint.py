"""Models on disk: safetensors files in which the biases of a prompt are weights like any others.

    layers.0.b_KV (..., groups, features, values)   layers.0.b_D (..., groups, features)
    and every weight by its name

The classes of other pasts than a State name their arrays. The metadata hold the configuration, the
number system, the position at which the input is read, the lengths of the prompts, the maps of
memories, and two digests: of the model without biases, and of the biases. Biases can also be saved
alone; they can be loaded only onto the model that they came from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from math import prod
from typing import Any

import numpy as np

from ..arrays import Array
from ..budget import budget
from ..checks import check_flag, check_integer, check_type
from ..errors import NotDefined, brief, printable
from ..model.families import families
from ..model.transformer import Model
from ..systems import GF, Float, System, system_of
from ..systems.floats import FILE_DTYPES
from .disk import PathLike, check_path, short_integer
from .safetensors import Contents, read_safetensors, write_safetensors

FORMAT = "refimpl 1"
CONVENTIONS = (
    "tokens are rows; positions from 0; b_KV = sum of phi(k) v^T and b_D = sum of phi(k), read from `position` on; "
    "no epsilon"
)
FARTHEST = 2**53  # every number system can rotate by the positions up to this one
LONGEST = 10**6  # an entry of the metadata has fewer characters
LONGEST_MAPS = 10**7  # which is one entry for all memories


def save(path: PathLike, model: Model, *, biases_only: bool = False) -> None:
    """Write a model: all its weights and biases, or the biases alone.

    Floats of at most 64 bits and GF(p) can be written; φ must be given by name.
    """
    check_path("save", path)
    check_type("save", "model", model, Model)
    check_flag("save", "biases_only", biases_only)
    if biases_only and model.biases is None:
        raise ValueError("save: `model` must carry biases to save them alone, got none")
    layers = [b.arrays() for b in model.biases or ()]
    biases = {f"layers.{i}.{name}": x for i, arrays in enumerate(layers) for name, x in arrays.items()}
    biases, system = arrays_on_disk("save", biases), system_of(model.like)
    metadata = {"position": str(model.position), "prompts": json.dumps(model.prompts), "digest": digest(model)}
    if any(maps := [b.metadata() for b in model.biases or ()]):
        metadata["maps"] = json.dumps(maps)
    metadata |= {"biases": fingerprint(metadata, biases), "config": config_text("save", model.config)}
    metadata |= {"format": FORMAT, "conventions": CONVENTIONS, "system": system.file_label}
    tensors = biases if biases_only else arrays_on_disk("save", model.weights) | biases
    write_safetensors(path, tensors, metadata, {name: "BF16" for name in tensors if system.file_dtype == "BF16"})


class BiasesAlone(ValueError):
    """A file holds biases without the weights that they belong to."""


def load(
    path: PathLike, base: Model | None = None, *, library: str = "numpy", device: Any = None, limit: float = 1
) -> Model:
    """Read a model; or biases that were saved alone, onto the model they belong to.

    base : the model whose biases these are
    library, device : where floats go; biases go where `base` is
    limit : how many times the usual memory and work the file may ask for, beyond its own size
    """
    check_path("load", path)
    if base is not None:
        check_type("load", "base", base, Model)
    contents = read_safetensors(path, limit=limit)
    try:
        with budget("load", limit, sum(x.nbytes for x in contents.tensors.values())):
            return read_contents(contents, base, library, device)
    except (ValueError, TypeError) as error:
        kind = NotDefined if isinstance(error, NotDefined) else ValueError
        raise kind(f"load: {path}: {error}") from error


def digest(model: Model) -> str:
    """SHA-256 of a model without its biases.

    It covers the configuration, the number system, and names, shapes and bits of the weights.
    """
    check_type("digest", "model", model, Model)
    metadata = {"config": config_text("digest", model.config), "system": system_of(model.like).file_label}
    return fingerprint(metadata, arrays_on_disk("digest", model.weights))


def fingerprint(metadata: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of metadata and arrays; NumPy holds bfloat16 as float32 of the same values."""
    sha = hashlib.sha256(json.dumps([FORMAT, sorted(metadata.items())]).encode())
    for name, x in sorted(arrays.items()):
        sha.update(json.dumps([name, x.dtype.name, x.shape]).encode())
        sha.update(np.ascontiguousarray(x, x.dtype.newbyteorder("<")).reshape(-1).data)
    return sha.hexdigest()


def read_contents(contents: Contents, base: Model | None, library: str, device: Any) -> Model:
    """The model in a file. All of it is checked, and every error says what is wrong."""
    tensors, metadata = contents.tensors, contents.metadata
    if metadata.get("format") != FORMAT:
        raise ValueError(f"`format` must be {FORMAT!r}, as `save` writes it, got {brief(metadata.get('format'))}")
    for name in ("config", "system", "position", "prompts", "digest", "biases"):
        if len(metadata.get(name, "")) not in range(1, LONGEST):
            got = brief(metadata.get(name))
            raise ValueError(f"the metadata must have `{name}`, of 1 to {LONGEST - 1} characters, got {got}")
    if base is None:
        config = config_from_text(metadata["config"])
        if config.layers > len(tensors):
            most = f"as many layers as there are tensors, {len(tensors)}"
            raise ValueError(f"`config` must have at most {most}, got {brief(config.layers)}")
        refuse_unknown(tensors, config)
        config.charge()
        if not (names := [name for name in config.shapes if name in tensors]):
            wanted = "the model to which these biases belong, since the file has no weights"
            raise BiasesAlone(f"`base` must be {wanted}, got None")
        system = system_from(metadata["system"], library, device)
        base = Model(config, {name: place(name, contents, system) for name in names})
    elif tensors.keys() & base.config.shapes:
        raise ValueError("the file must hold biases alone, since `base` is given, got a whole model")
    if (found := digest(base)) != metadata["digest"]:
        got = printable(metadata["digest"][:12])
        raise ValueError(f"`digest` must be that of the weights, {found[:12]}…, got {got}…: another model, or changed")
    refuse_unknown(tensors, base.config)
    return read_biases(contents, base)


def refuse_unknown(tensors: Mapping[str, Any], config: Any) -> None:
    if unknown := {name for name in tensors.keys() - config.shapes if layer_and_name(name, config)[0] is None}:
        raise ValueError(f"`{printable(min(unknown))}` must be a weight of its configuration or a bias")


def read_biases(contents: Contents, model: Model) -> Model:
    """The model with the biases of the file, and no others."""
    metadata, config = contents.metadata, model.config
    arrays = {name: x for name, x in sorted(contents.tensors.items()) if name not in config.shapes}
    covered = {name: text for name, text in metadata.items() if name in ("position", "prompts", "digest", "maps")}
    if fingerprint(covered, arrays) != metadata["biases"]:
        raise ValueError("`biases` must be the digest of biases, position and prompts: one of these was changed")
    least, most = (0, config.table) if config.table else (-FARTHEST, FARTHEST)
    position = check_integer("metadata", "position", parse("position", metadata["position"]), least=least, most=most)
    prompts = parse("prompts", metadata["prompts"])
    check_type("metadata", "prompts", prompts, list)
    for j, n in enumerate(prompts):
        check_integer("metadata", f"prompts[{j}]", n, least=0, most=FARTHEST)
    if not arrays and not prompts:
        return replace(model, biases=None, prompts=())
    if len(metadata.get("maps", "")) > LONGEST_MAPS:
        raise ValueError(f"`maps` must have at most {LONGEST_MAPS} characters, got {len(metadata['maps'])}")
    maps = parse("maps", metadata["maps"]) if "maps" in metadata else [[]] * config.layers
    if not isinstance(maps, list) or len(maps) != config.layers:
        raise ValueError(f"`maps` must be a list with one entry for each of {config.layers} layers, got {brief(maps)}")
    system = system_of(model.like)
    by_layer: list[dict[str, Any]] = [{} for _ in range(config.layers)]
    for name in arrays:
        i, short = layer_and_name(name, config)
        by_layer[i][short] = place(name, contents, system)  # type: ignore[index]
    biases = []
    for i, (own, spec) in enumerate(zip(by_layer, maps, strict=True)):
        try:
            check_sizes(own)
            biases.append(config.past.from_arrays(own, spec, position, model.kernel, config.d))
        except ValueError as error:
            raise ValueError(f"layer {i}: {error}") from error
    return replace(model, biases=tuple(biases), prompts=tuple(prompts))


def parse(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"`{name}` must be JSON, got {brief(text)}") from None


def check_sizes(arrays: Mapping[str, Array]) -> None:
    """Refuse an empty array whose long axes would cost memory though it holds no numbers."""
    numbers = sum(prod(x.shape) for x in arrays.values())
    for name, x in arrays.items():
        if prod(n for n in x.shape[:-1] if n) > numbers:
            most = f"than there are numbers in its layer, got shape {tuple(x.shape)}"
            raise ValueError(f"`{name}` must have axes no longer {most}")


def layer_and_name(name: str, config: Any) -> tuple[int | None, str]:
    """The layer to which a bias belongs, or None if it is not a bias, and its name there."""
    start, number, short = (*name.split(".", 2), "", "")[:3]
    is_number = number.isdecimal() and number == str(int(number[:10])) and int(number) < config.layers
    is_bias = start == "layers" and is_number and config.past.owns(short)
    return (int(number) if is_bias else None), short


def arrays_on_disk(who: str, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    try:
        return {name: system_of(x).to_file(x) for name, x in arrays.items()}
    except NotDefined as error:
        raise NotDefined(f"{who}: {error}") from None


def place(name: str, contents: Contents, system: System) -> Array:
    if contents.dtypes[name] != system.file_dtype:
        wanted = f"{system.file_dtype}, for {system.file_label}"
        raise ValueError(f"`{name}` must be {wanted}, got {contents.dtypes[name]}")
    return system.from_file(name, contents.tensors[name])


def system_from(name: str, library: str, device: Any) -> System:
    number = name.removeprefix("GF(").removesuffix(")")
    if name == f"GF({number})" and number.isdecimal() and len(number) < 20:
        return GF(int(number))
    if name not in FILE_DTYPES:
        raise ValueError(f"`system` must be one of {', '.join(FILE_DTYPES)} or GF(p), got {brief(name)}")
    if name == "bfloat16" and library == "numpy":
        raise NotDefined("NumPy has no bfloat16; pass library='torch'")
    return Float(library, name, device)


def config_text(who: str, config: Any) -> str:
    """The configuration as JSON, the same for the same model."""
    try:
        return json.dumps(config.to_json(), sort_keys=True)
    except NotDefined as error:
        raise NotDefined(f"{who}: {error}") from None


def config_from_text(text: str) -> Any:
    """The configuration in a text, which must be exactly the `config_text` of it."""
    try:
        values = json.loads(text, parse_int=short_integer)
        config = families()[values.pop("family", "attention")].from_json(values)
        if (wanted := config_text("load", config)) != text:
            i = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(wanted, text, strict=False)))
            raise ValueError(f"it must read {wanted[i : i + 20]!r} at character {i}, got {text[i : i + 20]!r}")
        return config
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
        problem = f"{type(error).__name__}: {printable(error)}"
        raise ValueError(f"`config` must be one that `save` writes: {problem}") from error
