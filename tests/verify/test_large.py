"""A large model equals its conversion exactly, this check can fail, and its benchmark runs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import refimpl as ri
from refimpl.errors import ZeroDenominator
from refimpl.verify.check import Draws, check
from refimpl.verify.implementation import REFIMPL
from refimpl.verify.theorems.large import GPT2_SMALL, shape

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "conversion.py"
SMALL = shape(layers=2, heads=2, width=8, prompt=6, text=3)


def small(seed=0, **planted):
    return check(GPT2_SMALL, ri.system(GPT2_SMALL.only), [SMALL], Draws(seed), replace(REFIMPL, **planted))


@pytest.mark.parametrize("seed", range(3))
def test_a_small_one_is_equal(seed):
    result = small(seed)
    assert (result.verdict, result.system, result.instances) == ("EXACT", "GF(2097143)", 1), result
    assert "at these instances" in result.evidence and "2^-" not in result.evidence
    assert "prompted" in result.notes and "converted" in result.notes


def test_its_shape_is_that_of_gpt2_small():
    (case,) = GPT2_SMALL.more(0)
    weights = sum(int(np.prod(s)) for s in case.config(None).shapes.values())
    assert (
        weights == 12 * (12 * 768**2 + 13 * 768) + 2 * 768 + 64
    )  # as in GPT-2 without its tables, and 32 circle points


def test_a_zero_denominator_is_drawn_again_and_counted():
    unlucky = iter([ZeroDenominator("the denominator is zero")])

    def dividing_by_zero_once(*arguments, **options):
        for error in unlucky:
            raise error
        return ri.transformer(*arguments, **options)

    result = small(transformer=dividing_by_zero_once)
    assert (result.verdict, result.instances, result.redraws) == ("EXACT", 1, 1), result


def forgetful(field):
    """A conversion after which one layer has lost part of its bias."""

    def convert(model, prompt, **options):
        converted = ri.convert(model, prompt, **options)
        first, *rest = converted.biases
        return replace(converted, biases=(replace(first, **{field: 0 * getattr(first, field)}), *rest))

    return convert


def unshifted(model, prompt, **options):
    """Biases that start again at position 0, but were never turned."""
    converted = ri.convert(model, prompt, **options, restart=False)
    return replace(converted, biases=tuple(replace(b, position=0) for b in converted.biases))


@pytest.mark.parametrize("planted", [forgetful("z"), forgetful("S"), unshifted], ids=["no b_D", "no b_KV", "no shift"])
def test_a_planted_bug_fails(planted):
    result = small(convert=planted)
    assert result.verdict == "FAIL" and result.evidence.startswith("output[0, 0] is "), result


def test_the_sides_use_different_forms():
    used = []

    def watched(name, form):
        return lambda q, *arrays, **options: used.append((name, q.shape[-2])) or form(q, *arrays, **options)

    names = ("sum", "quadratic", "recurrent", "chunked")
    fields = ["linear_attention", *(f"linear_attention_{name}" for name in names[1:])]
    forms = {f: watched(name, getattr(REFIMPL, f)) for name, f in zip(names, fields, strict=True)}
    assert small(**forms).verdict == "EXACT"
    assert used == [("quadratic", 9)] * 2 + [("chunked", 6)] * 2 + [("recurrent", 3)] * 2


def test_the_converted_side_never_sees_the_prompt():
    def poisoning(model, prompt, **options):
        converted = ri.convert(model, prompt, **options)
        prompt.planes[0][...] = 7
        return converted

    assert small(convert=poisoning).verdict == "EXACT"


def test_the_benchmark_runs(tmp_path):
    sizes = {"layers": 2, "width": 8, "heads": 2, "vocabulary": 7, "short": 4, "long": 32, "text": 3}
    options = [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
    command = [
        sys.executable,
        "-W",
        "error",
        str(BENCHMARK),
        "--quick",
        "--json",
        str(tmp_path / "found.json"),
        *options,
    ]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["sizes"] == sizes and len(found["rows"]) == 10 and len(found["targets"]) == 3
    assert all(0 < row["min"] <= row["median"] for row in found["rows"])
    biases = [row["bytes"] for row in found["rows"] if row["what"] == "text, from biases"]
    caches = [row["bytes"] for row in found["rows"] if row["what"] == "text, from a KV cache"]
    assert biases == [2 * 2 * (4 * 4 + 4) * 4] * 2 and caches == [2 * 2 * 2 * M * 4 * 4 for M in (4, 32)]
    assert "target ≤ 1.2" in run.stdout
