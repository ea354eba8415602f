"""A model of the shape of GPT-2 small: 85 million weights modulo a prime, `==` on every output.

The prompted side reads all positions by masked scores. The converted side reads the prompt in
chunks, and then the input token by token, from the biases alone. The degree of so deep a model is
far beyond p. So the agreement is proof for the numbers drawn, and says nothing of others.
"""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from itertools import pairwise

from ..cases import ModelCase
from ..implementation import Implementation
from ..theorem import Numbers, Sides
from .iclca import ASSUMES, CHEN, Problem, theorem

# A matrix product modulo P is one product of floats. One draw in eleven or so has a zero
# denominator, and is drawn again.
P = 2**21 - 9


def shape(*, layers: int = 12, heads: int = 12, width: int = 768, prompt: int = 1024, text: int = 64) -> ModelCase:
    """The shape of GPT-2, without exponentials, roots and tables.

    It has RoPE for absolute positions, φ = identity for softmax, rational norms and activation, and
    vectors for token ids.
    """
    d = width // heads
    case = ModelCase(prompt, text, layers, width, heads, d=d, m=d, rope=("half", "after", d), hidden=4 * width)
    return replace(case, norm="layer_rational", biased=True)


def iclca_gpt2_small(case: ModelCase, numbers: Numbers, impl: Implementation) -> Sides:
    """A model of the shape of GPT-2 small, converted, gives its output on prompt and input.

    The two sides use forms that share no formula; the notes give the time of each.
    """
    problem, clock = Problem.of(case, numbers, impl), [time.perf_counter()]
    want = problem.prompted(form=impl.linear_attention_quadratic)
    clock.append(time.perf_counter())
    converted = impl.convert(problem.model, problem.prompt, form=impl.linear_attention_chunked)
    clock.append(time.perf_counter())
    got, _ = impl.transformer(converted, problem.text, form=impl.linear_attention_recurrent)
    clock.append(time.perf_counter())
    prompted, convert, read = (after - before for before, after in pairwise(clock))
    numbers.notes = f"; prompted {prompted:.1f} s, convert {convert:.1f} s, converted {read:.1f} s"
    yield "output", got, want


large = functools.partial(theorem, ways=("equality",), cases=(), usual=(), more=lambda seed: (shape(),))
GPT2_SMALL = large(iclca_gpt2_small, ASSUMES, CHEN, certified=False, only=f"GF({P})")
ORDER = 3
THEOREMS = (GPT2_SMALL,)
