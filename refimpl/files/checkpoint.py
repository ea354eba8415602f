"""Models on disk: safetensors files in which the biases of a prompt are weights like any others.

    layers.0.b_KV (..., groups, features, values)      layers.0.b_D (..., groups, features)      and every weight by its name

Other pasts than a State have other names, see pasts.py. The metadata say
what the numbers mean: the configuration, the number system, the position at which the input is read, the lengths of the prompts, the
maps of memories, and two digests: of the model without biases, and of the biases. Biases alone can be saved too, and go back only onto
the model they came from.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any

import numpy as np

from ..attention.memory import numbers_of
from ..checks import instance, integer
from ..errors import NotDefined, brief
from ..model.config import Config, Rotary
from ..model.rwkv import Rwkv
from ..model.transformer import Model
from ..systems import GF, Float, System, system_of
from ..systems.floats import FILE_DTYPES
from . import pasts
from .safetensors import STORED, Contents, read_safetensors, write_safetensors

FORMAT = "refimpl 1"
CONVENTIONS = "tokens are rows; positions from 0; b_KV = sum of phi(k) v^T and b_D = sum of phi(k), read from `position` on; no epsilon"
FARTHEST = 2**53  # a position that every number system turns by
LONGEST = 10**6  # characters of one word of metadata


def save(path: str | os.PathLike[str], model: Model, *, biases_only: bool = False) -> None:
    """Write a model: all its weights and biases, or the biases alone.

    Floats of at most 64 bits and GF(p) have a place in a file; φ must be given by name.
    """
    instance("save", "model", model, Model)
    if biases_only and model.biases is None:
        raise ValueError("save: `model` must carry biases to save them alone, got none")
    biases, system = stored("save", named(model.biases)), system_of(model.like)
    words = {"position": str(model.position), "prompts": json.dumps(model.prompts), "digest": digest(model)}
    if any(maps := [pasts.words(b) for b in model.biases or ()]):
        words["maps"] = json.dumps(maps)
    metadata = words | {
        "format": FORMAT,
        "conventions": CONVENTIONS,
        "system": system.file_label,
        "config": config_text("save", model.config),
        "biases": fingerprint(words, biases),
    }
    tensors = biases if biases_only else stored("save", model.weights) | biases
    write_safetensors(path, tensors, metadata, {name: "BF16" for name in tensors if system.file_dtype == "BF16"})


def load(
    path: str | os.PathLike[str], base: Model | None = None, *, library: str = "numpy", device: Any = None
) -> Model:
    """Read a model; or biases that were saved alone, onto the model they belong to.

    base : the model whose biases these are, else refused      library, device : where floats go; biases go where `base` is
    """
    if base is not None:
        instance("load", "base", base, Model)
    contents = read_safetensors(path)
    try:
        return assembled(contents, base, library, device)
    except (ValueError, TypeError) as error:
        kind = NotDefined if isinstance(error, NotDefined) else ValueError
        raise kind(f"load: {path}: {error}") from error


def digest(model: Model) -> str:
    """SHA-256 of a model without its biases: configuration, number system, and names, shapes and bits of its weights."""
    instance("digest", "model", model, Model)
    words = {"config": config_text("digest", model.config), "system": system_of(model.like).file_label}
    return fingerprint(words, stored("digest", model.weights))


def memory(model: Model) -> dict[str, int]:
    """Bytes of its biases, and of the KV cache of the prompts that they carry."""
    c, arrays, size = model.config, named(model.biases), STORED[system_of(model.like).file_dtype].itemsize
    seeds = sum(numbers_of(memory.phi) for b in model.biases or () for memory in getattr(b, "memories", ()))
    found = {"biases": size * sum(math.prod(x.shape) for x in arrays.values()) + seeds}
    if not isinstance(c, Config):
        return found
    lead = next((x.shape[:-3] for name, x in arrays.items() if name.endswith(("b_KV", "cache.k"))), ())
    return found | {"kv_cache": size * math.prod(lead) * c.layers * c.kv_heads * sum(model.prompts) * (c.d + c.m)}


def fingerprint(words: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of words and arrays; NumPy holds bfloat16 as float32 of the same values."""
    sha = hashlib.sha256(json.dumps([FORMAT, sorted(words.items())]).encode())
    for name, x in sorted(arrays.items()):
        sha.update(json.dumps([name, x.dtype.name, x.shape]).encode())
        sha.update(np.ascontiguousarray(x, x.dtype.newbyteorder("<")).reshape(-1).data)
    return sha.hexdigest()


def assembled(contents: Contents, base: Model | None, library: str, device: Any) -> Model:
    """The model in a file of which nothing is believed; every error says what is wrong with it."""
    tensors, words = contents.tensors, contents.metadata
    if words.get("format") != FORMAT:
        raise ValueError(f"`format` must be {FORMAT!r}, as `save` writes it, got {brief(words.get('format'))}")
    for name in ("config", "system", "position", "prompts", "digest", "biases"):
        if len(words.get(name, "")) not in range(1, LONGEST):
            raise ValueError(f"`{name}` must stand among the metadata, got {brief(words.get(name))}")
    if base is None:
        config = config_from(words["config"])
        if config.layers > len(tensors):
            raise ValueError(
                f"`config` must have at most as many layers as there are tensors, {len(tensors)}, got {brief(config.layers)}"
            )
        refuse_foreign(tensors, config)
        base = Model(config, weights_of(contents, config, words["system"], library, device))
    elif tensors.keys() & base.config.shapes:
        raise ValueError("`base` is given for biases alone, but this file holds a whole model")
    if (found := digest(base)) != words["digest"]:
        raise ValueError(
            f"`digest` must be that of the weights, {found[:12]}…, got {words['digest'][:12]}…: another model, or changed"
        )
    refuse_foreign(tensors, base.config)
    return with_biases(contents, base)


def refuse_foreign(tensors: Mapping[str, Any], config: Any) -> None:
    if foreign := {name for name in tensors.keys() - config.shapes if layer_and_name(name, config)[0] is None}:
        raise ValueError(f"`{min(foreign)[:200]}` must be a weight of its configuration or a bias")


def weights_of(contents: Contents, config: Any, system: str, library: str, device: Any) -> dict[str, Any]:
    names = [name for name in config.shapes if name in contents.tensors]
    if not names:
        raise ValueError("`base` must be given: the model to which these biases belong")
    numbers = system_from(system, library, device)
    return {name: placed(name, contents, numbers) for name in names}


def with_biases(contents: Contents, model: Model) -> Model:
    """The model with the biases of the file, and no others."""
    words, config = contents.metadata, model.config
    arrays = {name: x for name, x in sorted(contents.tensors.items()) if name not in config.shapes}
    if (
        fingerprint({name: words[name] for name in ("position", "prompts", "digest", "maps") if name in words}, arrays)
        != words["biases"]
    ):
        raise ValueError("`biases` must be the digest of biases, position and prompts: one of these was changed")
    least, most = (0, config.table) if config.table else (-FARTHEST, FARTHEST)
    position = integer("metadata", "position", parsed("position", words["position"]), least=least, most=most)
    lengths = parsed("prompts", words["prompts"])
    instance("metadata", "prompts", lengths, list)
    prompts = tuple(integer("metadata", f"prompts[{i}]", n, least=0, most=FARTHEST) for i, n in enumerate(lengths))
    if not arrays and not prompts:
        return replace(model, biases=None, prompts=())
    maps = parsed("maps", words["maps"]) if "maps" in words else [[]] * config.layers
    if not isinstance(maps, list) or len(maps) != config.layers:
        raise ValueError(f"`maps` must be a list with one entry for each of {config.layers} layers, got {brief(maps)}")
    numbers = system_of(model.like)
    of_layer: list[dict[str, Any]] = [{} for _ in range(config.layers)]
    for name in arrays:
        i, short = layer_and_name(name, config)
        of_layer[i][short] = placed(name, contents, numbers)  # type: ignore[index]
    biases = []
    for i, (own, said) in enumerate(zip(of_layer, maps, strict=True)):
        try:
            biases.append(pasts.past_from(config.past, own, said, position, rope=model.rope, width=config.d))
        except ValueError as error:
            raise ValueError(f"layer {i}: {error}") from error
    return replace(model, biases=tuple(biases), prompts=prompts)


def parsed(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"`{name}` must be JSON, got {brief(text)}") from None


def layer_and_name(name: str, config: Any) -> tuple[int | None, str]:
    """The layer to which a bias belongs, and its name there; no layer if it is not one."""
    _, number, short = (*name.split(".", 2), "", "")[:3]
    ours = (
        name.startswith("layers.")
        and number.isdecimal()
        and number == str(int(number[:10]))
        and int(number) < config.layers
    )
    return (int(number) if ours and pasts.belongs(config.past, short) else None), short


def named(biases: tuple[pasts.Past, ...] | None) -> dict[str, Any]:
    """Biases by the names they have in a file."""
    return {f"layers.{i}.{name}": x for i, b in enumerate(biases or ()) for name, x in pasts.named(b).items()}


def stored(who: str, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Arrays on the host, as they are written."""
    try:
        return {name: system_of(x).to_file(x) for name, x in arrays.items()}
    except NotDefined as error:
        raise NotDefined(f"{who}: {error}") from None


def placed(name: str, contents: Contents, system: System) -> Any:
    """An array of a file in a number system."""
    if (code := contents.dtypes[name]) != system.file_dtype:
        raise ValueError(f"`{name}` must be {system.file_dtype}, for {system.file_label}, got {code}")
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


def config_text(who: str, config: Config | Rwkv) -> str:
    """The configuration as JSON, the same for the same model."""
    if isinstance(config, Rwkv):
        return json.dumps({"family": "rwkv"} | asdict(config), sort_keys=True)
    both = config.phi if isinstance(config.phi, tuple) else (config.phi, config.phi)
    if not all(isinstance(phi, str) for phi in both):
        raise NotDefined(
            f"{who}: φ must be given by name, as in Config(phi='elu+1'); a function has no place in a file"
        )
    phi = both[0] if both[0] == both[1] else both
    return json.dumps(asdict(replace(config, phi=phi)) | {"epsilon": str(config.epsilon)}, sort_keys=True)


def config_from(text: str) -> Config | Rwkv:
    """The configuration in a text, which must be just what `config_text` makes of it."""
    try:
        said = json.loads(text)
        config: Config | Rwkv
        if said.pop("family", None) == "rwkv":
            config = Rwkv(**said | {"ranks": tuple(said["ranks"])})
        else:
            epsilon = Fraction(*(int(n) for n in said["epsilon"].split("/")))  # Fraction("1e999999999") would never end
            rope = None if said["rope"] is None else Rotary(**said["rope"])
            phi = tuple(said["phi"]) if isinstance(said["phi"], list) else said["phi"]
            config = Config(**said | {"epsilon": epsilon, "rope": rope, "phi": phi})
        if config_text("load", config) != text:
            raise ValueError("`save` would have written it otherwise")
        return config
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(
            f"`config` must be one that `save` writes: {type(error).__name__}: {str(error)[:200]}"
        ) from error
