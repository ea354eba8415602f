"""The command `refimpl`: verify the theorems here and now, convert a prompt, generate text, or ask the doctor what this machine has.

Exit status: 0 all hold, 1 some fail, 2 some were not decided (VACUOUS, NOT RUN), or nothing could run.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files.safetensors import replacing, target_file
from ..packages import __version__

if TYPE_CHECKING:
    from ..systems import System


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    options = parser().parse_args(argv)
    try:
        return options.run(options)
    except BrokenPipeError:  # nobody reads on, as `head` does not: nothing to say, and nobody to say it to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except KeyboardInterrupt:
        return 130
    except (ValueError, TypeError, ImportError, OSError) as error:
        print(f"refimpl: {error}", file=sys.stderr)
        return 2
    except MemoryError as error:
        print(f"refimpl: out of memory: {error or 'a smaller problem may fit'}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="refimpl",
        description="Linearized attention, softmax attention and prompts as biases, in one source over many number systems.",
    )
    top.add_argument("--version", action="version", version=f"refimpl {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    verify = commands.add_parser(
        "verify",
        help="check every theorem in every number system",
        epilog="Exit status: 0 all hold, 1 some fail, 2 some were not decided (VACUOUS, NOT RUN), or nothing could run.",
    )
    verify.add_argument("names", nargs="*", metavar="NAME", help="theorems to check (default: all; see --list)")
    verify.add_argument(
        "--list", action="store_true", help="print the theorems, their assumptions and sources, and stop"
    )
    verify.add_argument(
        "--system", action="append", metavar="S", help="a number system, e.g. Q, 'GF(10007)', float32; repeatable"
    )
    depth = verify.add_mutually_exclusive_group()
    depth.add_argument(
        "--quick", action="store_false", dest="full", help="a few shapes for each theorem, in seconds (default)"
    )
    depth.add_argument(
        "--full", action="store_true", help="many more shapes, and a model of the shape of GPT-2 small, in minutes"
    )
    verify.add_argument(
        "--seed", type=int, default=0, metavar="N", help="another seed: other numbers, shapes and prime (default: 0)"
    )
    verify.add_argument("--backend", metavar="LIB", help="check the floats of torch, jax, cupy or numpy instead")
    verify.add_argument("--device", metavar="DEV", help="device of the backend: cuda, cpu ...")
    verify.add_argument(
        "--json", metavar="FILE", help="write a certificate to FILE: results, seeds, shapes, primes, digests, versions"
    )
    verify.add_argument(
        "--replay", metavar="FILE", help="check again what a certificate says, and whether the same comes out"
    )
    verify.set_defaults(run=run_verify, full=False)

    convert = commands.add_parser(
        "convert",
        help="turn a prompt into biases of a model: exactly, or for softmax into a memory",
        epilog="Exit status: 0 written (and the check, if any, holds), 1 the check fails, 2 it could not run or says nothing (VACUOUS).",
    )
    add_model(convert)
    convert.add_argument(
        "--prompt",
        required=True,
        metavar="TEXT",
        help="text, or without a tokenizer ids, '3 1 4'; @FILE: such text, or a .npy of ids or vectors",
    )
    convert.add_argument("--out", required=True, metavar="FILE", help="where to write the biases")
    convert.add_argument("--whole", action="store_true", help="write the whole model, not the biases alone")
    convert.add_argument("--baked", metavar="FILE", help="biases of MODEL, written earlier, on top of which to convert")
    convert.add_argument(
        "--mask", choices=("causal", "full"), default="causal", help="full: prompt tokens see each other"
    )
    convert.add_argument(
        "--strength",
        default="1",
        metavar="λ",
        help="how often the prompt counts for the input: 2, 0.5, 1/3 (default: 1)",
    )
    convert.add_argument(
        "--keep-positions",
        action="store_true",
        help="the input is read where the prompt ended, not where it began (if absolute: always)",
    )
    convert.add_argument("--chunk", type=int, metavar="N", help="read the prompt in pieces of N tokens")
    convert.add_argument(
        "--check",
        action="store_true",
        help="compare with the prompted model on held-out input, in O(M²) memory; write only if it holds",
    )
    convert.add_argument(
        "--by",
        metavar="KIND",
        help="softmax: make a memory of this kind: tilted, clusters, positive, favor++ ... or best (default: the KV cache, exact)",
    )
    convert.add_argument("--features", type=int, metavar="R", help="how many features the memory has in each head")
    convert.add_argument(
        "--budget", type=int, metavar="BYTES", help="with --by best: how large the memory may be, in all layers"
    )
    convert.add_argument(
        "--error",
        type=float,
        metavar="E",
        help="with --by best: how far off attention to the prompt may be, relatively",
    )
    convert.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the held-out input, and of what is drawn (default: 0)"
    )
    convert.add_argument(
        "--backend", default="numpy", metavar="LIB", help="library of the floats: torch, jax, cupy or numpy (default)"
    )
    convert.add_argument("--device", metavar="DEV", help="device of the backend: cuda, cpu ...")
    convert.add_argument("--json", metavar="FILE", help="write what was done to FILE")
    convert.set_defaults(run=run_convert)

    generate = commands.add_parser(
        "generate",
        help="text from a model: GPT-2, Llama, RWKV or one of ours",
        epilog="Only the text that follows goes to stdout, as it comes. A model without a tokenizer reads and writes token ids. "
        "Exit status: 0 all is written, 2 not.",
    )
    add_model(generate)
    generate.add_argument(
        "--prompt",
        default="",
        metavar="TEXT",
        help="what to go on from: as for convert (default: the beginning of a text)",
    )
    generate.add_argument(
        "--tokens", type=int, default=100, metavar="N", help="how many; fewer if the text ends (default: 100)"
    )
    generate.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0: always the likeliest (default)"
    )
    generate.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of what is drawn at a temperature (default: 0)"
    )
    generate.add_argument(
        "--baked", metavar="FILE", help="biases of MODEL, written by convert: a prompt that need not be read again"
    )
    generate.add_argument("--logits", metavar="FILE.npy", help="write the logits of the first token after the prompt")
    generate.set_defaults(run=run_generate)

    doctor = commands.add_parser(
        "doctor", help="versions, libraries and devices found; what is missing and how to get it"
    )
    doctor.add_argument("--json", metavar="FILE", help="write the findings to FILE")
    doctor.set_defaults(run=run_doctor)
    return top


def add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "model",
        metavar="MODEL",
        help="safetensors of refimpl, GPT-2 or Llama; .bin of llama2.c or rwkv.cpp; gpt-nano JSON",
    )
    command.add_argument(
        "--tokenizer", metavar="FILE", help="GPT-2's vocabulary or merges, or llama2.c's tokenizer .bin"
    )
    command.add_argument(
        "--dtype", default="float64", metavar="T", help="of a model that others wrote: float64 (default), float32 ..."
    )


def run_verify(options: argparse.Namespace) -> int:
    if options.backend in ("jax", "jax.numpy"):
        os.environ.setdefault("JAX_ENABLE_X64", "1")  # else JAX has no float64
    from ..verify.certificate import certificate, failure, replay
    from ..verify.check import Draws
    from ..verify.formal import formal
    from ..verify.registry import THEOREMS, verify
    from ..verify.report import described, summary, table

    if options.list:
        print("\n".join(described(t) for t in THEOREMS.values()))
        return 0
    target, began = json_target(options.json), time.perf_counter()
    differences: list[str] = []
    if options.replay:
        if options.names or options.system or options.backend or options.full or options.seed:
            raise ValueError("--replay goes alone, or with --json: the certificate says what to check")
        data = read_json(options.replay)
        results, differences = replay(data, progress())
        draws = Draws(data["seed"], data["source"])
    else:
        draws = Draws(options.seed)
        results = verify(options.names, chosen_systems(options), full=options.full, draws=draws, progress=progress())
    seconds = time.perf_counter() - began
    proofs = formal(r.theorem for r in results)
    print(table(results, proofs))
    print(summary(results, seconds, draws.seed), flush=True)
    if options.replay:
        print(*(differences or ["all as in the certificate"]), sep="\n", flush=True)
    if target:
        write_json(target, certificate(results, draws, full=options.full, seconds=seconds, proofs=proofs))
    verdicts = {r.verdict for r in results}
    if "FAIL" in verdicts and not options.replay:
        for result in (r for r in results if r.verdict == "FAIL"):
            name = re.sub(r"\W+", "-", f"{result.theorem} {result.system}").strip("-")
            path = target_file("verify", f"refimpl-failure-{name}.json")
            write_json(path, failure(result, draws))
            what = (
                "all that failed together"
                if THEOREMS[result.theorem].ways == ("oracle",)
                else "a failing instance, as small as it gets"
            )
            print(f"{what}: refimpl verify --replay {path.name}")
    if "FAIL" in verdicts or [d for d in differences if not d.startswith("the source")]:
        return 1
    return 2 if verdicts & {"VACUOUS", "NOT RUN"} or verdicts <= {"N/A"} else 0


def read_json(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"--replay: {path} must be a JSON file: {error}") from error


def chosen_systems(options: argparse.Namespace) -> list[System] | None:
    """The systems asked for; None for the default ones."""
    from ..systems import Float, system
    from ..systems.floats import LIBRARIES

    if options.device and not options.backend:
        raise ValueError("--device needs --backend: the library whose device it is")
    if options.backend and options.system:
        raise ValueError("--backend and --system exclude each other; --system 'torch float32 on cuda' names both")
    if options.backend:
        from ..errors import choose

        choose("verify", "--backend", options.backend, [*LIBRARIES, "jax"])
        found: list[System] = []
        for dtype in ("float64", "float32", "float16", "bfloat16"):
            try:
                found.append(
                    tried(
                        functools.partial(Float, options.backend, dtype, options.device),
                        options.backend,
                        options.device,
                    )
                )
            except (ValueError, TypeError):  # this library, or this device, lacks this dtype
                continue
        if not found:
            raise ValueError(f"{options.backend} has no floats on {options.device or 'its device'}")
        return found
    if options.system:
        return [tried(functools.partial(system, name), *name.partition(" on ")[::2]) for name in options.system]
    return None


def tried(make: Callable[[], System], name: str, device: str | None = None) -> System:
    """A system that has held a number once: a device that is not there is one error, not a failure of every identity."""
    try:
        system = make()
        system.convert([1])
    except (ImportError, ValueError, TypeError):
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise OSError(f"{name} cannot make an array on {device or 'its device'}: {reason}") from error
    return system


def progress() -> Callable[[str], None]:
    """A line on the terminal that says what is going on; nothing if nobody looks."""
    if not sys.stderr.isatty():
        return lambda line: None
    return lambda line: print(f"\r\x1b[K{line}", end="\r", file=sys.stderr, flush=True)


def run_convert(options: argparse.Namespace) -> int:
    if options.backend in ("jax", "jax.numpy"):
        os.environ.setdefault("JAX_ENABLE_X64", "1")
    from .convert import run

    return run(options, progress())


def run_generate(options: argparse.Namespace) -> int:
    from .generate import run

    return run(options)


def run_doctor(options: argparse.Namespace) -> int:
    from .doctor import examine, report

    target = json_target(options.json)
    findings = examine()
    print(report(findings), flush=True)
    if target:
        write_json(target, findings)
    return 0 if findings["well"] else 2


def json_target(path: str | None) -> Path | None:
    """Where `--json` will write; refused before the work, not after it."""
    return None if path is None else target_file("--json", path)


def write_json(target: Path, data: Any) -> None:
    """Write a file that is whole or not there."""
    with replacing("--json", target, "x") as file:
        json.dump(data, file, indent=1, ensure_ascii=False, allow_nan=False)
