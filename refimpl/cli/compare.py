"""`refimpl compare`: a model of somebody else's weights against the program of those weights."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..budget import budget
from ..errors import printable
from ..files.checkpoint import save
from ..files.disk import located, recording, target_file
from ..files.models import read_model
from ..files.models.mapping import model_from_weights, read_mapping_file
from ..files.safetensors import read_safetensors
from ..model.transformer import Model
from ..systems.floats import quiet
from ..verify.model_check import compare
from .output import Outcome, json_target, noting, progress, write_json
from .prompt import add_limit, naming_flags, read_ids, refusing_biases

FLAGS = {"my_forward": "--forward", "tokens": "--tokens", "dtype": "--dtype", "seed": "--seed", "limit": "--limit"}
FLAGS |= {"model": "MODEL", "mapping": "--mapping", "zeros": "zeros", "config": "[config]"}
STATUS = {"AGREES": 0, "DIFFERS": 1, "UNDECIDED": 2}
EXAMPLE = """An example of --mapping, for a model whose Linear layers are those of torch:

  [config]
  layers = 2
  width = 64
  heads = 4
  d = 16
  m = 16
  phi = "softmax"
  hidden = 256
  biased = true
  vocabulary = 1000
  table = 128

  [weights]
  "tok.weight" = "embedding"
  "pos.weight" = "positions"
  "blocks.{}.attn.qkv.weight" = ["W_Q.T", "W_K.T", "W_V.T"]
  "blocks.{}.attn.out.weight" = "W_O.T"
  "blocks.{}.attn.mask" = ""

Exit status: 0 agrees, 1 differs, 2 undecided or an error."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLE
    add = parser.add_argument
    add("model", metavar="MODEL", help="safetensors of your model; or any file that generate reads")
    add("--mapping", metavar="FILE.toml", help="what each tensor holds: needed where names are your own")
    forward = "your program: tokens (n,) to logits, (logits, states), or a dict of stages. It is run"
    add("--forward", required=True, metavar="FILE.py:NAME", help=forward)
    add("--tokens", metavar="IDS", help="the text, as '3 1 4' (default: drawn from --seed)")
    add("--dtype", metavar="T", help="narrowest dtype in which it computes (default: that of its logits)")
    add("--seed", type=int, default=0, metavar="N", help="seed of the text (default: 0)")
    add("--quick", action="store_true", help="do not look for mistakes that this text would not show")
    add("--out", metavar="FILE", help="write the model for the other commands, if it agrees")
    add("--json", metavar="FILE", help="write a report to FILE")
    add_limit(parser)


def run(options: argparse.Namespace) -> Outcome:
    """Read the weights, run the other program, and say where it first differs."""
    json, out = json_target(options.json), options.out and target_file("--out", options.out)
    show, problems = progress(), list[Exception]()
    with recording() as files:
        model = read_their_model(options)
    for flag, target in (("--json", json), ("--out", out)):
        if target and target in files | ({out} if flag == "--json" else set()):
            raise ValueError(f"{flag}: {target} must be a file of its own, not one that is read or written")
    forward = load_forward(options.forward)
    with quiet(), naming_flags(**FLAGS):
        tokens = None if options.tokens is None else read_ids("--tokens", options.tokens, model)
        how = {"dtype": options.dtype, "unseen": not options.quick, "seed": options.seed}
        found = compare(model, forward, tokens, **how, progress=show)
    show("")
    status = STATUS[found.verdict]
    lines = [str(found)]
    if out and status == 0:
        with noting(problems):
            save(out, model)
            lines.insert(0, f"{options.out} is written")
    if json:
        with noting(problems):
            write_json(json, found.report() | {"model": options.model, "forward": options.forward})
    return Outcome(status, "\n".join(lines), tuple(problems))


def read_their_model(options: argparse.Namespace) -> Model:
    """The model in MODEL: by --mapping, or in a format that is known."""
    if options.mapping is None:
        with naming_flags("MODEL", **FLAGS), refusing_biases(options.model, "name the file of the model instead"):
            return read_model(options.model, limit=options.limit)
    with naming_flags("--mapping", **FLAGS), budget("--mapping", options.limit):
        config, mapping, zeros = read_mapping_file(options.mapping)
    with naming_flags("MODEL", **FLAGS):
        tensors = read_safetensors(options.model, limit=options.limit).tensors
        with located(printable(options.model)):
            return model_from_weights(config, tensors, mapping, zeros=zeros)


def load_forward(place: str) -> Callable[[Any], Any]:
    """The function FILE.py:NAME; its folder is on the path of imports, as if it were run."""
    file, colon, name = place.rpartition(":")
    if not colon or not file.endswith(".py") or not os.path.isfile(file):
        raise ValueError(f"--forward: must be FILE.py:NAME with a file that exists, got {printable(place)!r}")
    spec = importlib.util.spec_from_file_location("refimpl_forward", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(file).resolve().parent))
    call(file, spec.loader.exec_module, module)
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"--forward: {printable(file)} must have a function {printable(name)!r}, got {function!r:.40}")
    return lambda tokens: call(place, function, tokens)


def call(place: str, function: Callable[[Any], Any], argument: Any) -> Any:
    """Code of the user; what it raises is told as one line."""
    try:
        return function(argument)
    except Exception as error:
        raise ValueError(f"--forward: {printable(place)} raised {type(error).__name__}: {printable(error)}") from error
