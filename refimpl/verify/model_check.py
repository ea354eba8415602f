"""Compare a model with another program that should compute the same, stage by stage.

Each stage is judged by itself: our model starts from *their* numbers of the stage before, so that
differences do not add up, and the first stage that differs is where the mistake is. In an exact
system the two must be equal. In floats they may be as far apart as rounding explains: both sides
are executions of one program, theirs in their dtype, ours in float64, and RunningError bounds how
far either is from the true value. Where a stage differs, changes of our model are tried, one at a
time (model_variants.py); those that make it agree name the likely mistake.

The bound is that of our program. One that computes the same in other steps, such as a variance as
E[x²] − E[x]², may round a little more than the bound allows for.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import numpy as np

from ..checks import check_flag, check_function, check_integer, check_type
from ..errors import NotDefined, brief, choose
from ..model.attention_layers import Config
from ..model.transformer import Model, check_text
from ..systems import Float, RunningError, SystemArray, floats, system_of
from ..systems.array import host
from ..systems.floats import dtype_name, quiet
from ..systems.formats import FORMATS
from .bounds import Judgement, judge
from .conversion_check import judge_exact, random_text
from .model_stages import AS_IT_IS, Change, Part, part_between, run_part, stage_names
from .model_variants import changes

DTYPES = ("float64", "float32", "float16", "bfloat16")  # of which RunningError knows the roundings
TOKENS = 16  # of the text that is drawn where none is given
UP = 1 + 2.0**-50  # covers the rounding of a difference of float64
NARROWER = "computed in float32 somewhere, such as RoPE's angles or a norm: dtype='float32' allows for it"
GELU = "GELU by erf, the default of torch, is none of ours; nn.GELU(approximate='tanh') is."


@dataclass(frozen=True)
class StageCheck:
    """The verdict on one stage: EXACT, WITHIN BOUND, EXCESS or VACUOUS, as in `judge`.

    where          (token, channel) of the entry whose error is largest beside its bound
    error, bound   of that entry
    rows, vacuous  the number of rows, and of those whose bound is vacuous
    """

    stage: str
    verdict: str
    where: tuple[int, ...]
    error: float
    bound: float
    rows: int
    vacuous: int

    def __str__(self) -> str:
        found = []
        if self.verdict == "EXCESS":
            found.append(f"off by {self.error:.2g} at {located_at(self.where)}; bound {self.bound:.2g}")
        elif self.verdict == "WITHIN BOUND":
            found.append(f"off by {self.error:.2g}, bound {self.bound:.2g}")
        if self.vacuous:
            found.append(f"{self.vacuous} of {self.rows} rows vacuous")
        return f"{self.stage:18} {self.verdict:12} {'; '.join(found)}".rstrip()


def located_at(where: tuple[int, ...]) -> str:
    return ", ".join(f"{axis} {i}" for axis, i in zip(("token", "channel"), where, strict=True))


@dataclass(frozen=True)
class Comparison:
    """The verdicts on all stages, and what the first one that differs points to.

    likely  the changes of our model that make that stage agree, the nearest first
    unseen  where all agrees: other readings of the model that agree too, so that this text does not
            tell them apart; by their words, the stages
    notes   what was taken for granted
    tokens  the length of the text
    """

    stages: tuple[StageCheck, ...]
    dtype: str
    likely: tuple[str, ...] = ()
    unseen: dict[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    tokens: int = 0

    @property
    def first(self) -> StageCheck | None:
        """The first stage that differs."""
        return next((s for s in self.stages if s.verdict == "EXCESS"), None)

    @property
    def verdict(self) -> str:
        """AGREES, DIFFERS or UNDECIDED."""
        if self.first:
            return "DIFFERS"
        return "UNDECIDED" if any(s.verdict == "VACUOUS" for s in self.stages) else "AGREES"

    def report(self) -> dict[str, Any]:
        """The comparison as data for JSON, with None for inf and nan."""
        data = {"verdict": self.verdict, "first": self.first and self.first.stage, **asdict(self)}
        for part in data["stages"]:
            part |= {key: None for key, x in part.items() if isinstance(x, float) and not math.isfinite(x)}
        return data

    def __str__(self) -> str:
        notes = [line for note in self.notes for line in wrap(note)]
        return "\n".join([*map(str, self.stages), *notes, *self.conclusion()])

    def conclusion(self) -> list[str]:
        """What matters, in lines of at most 80 columns."""
        if self.first is None and self.verdict == "UNDECIDED":
            where = ", ".join(s.stage for s in self.stages if s.verdict == "VACUOUS")
            advice = "return the states of every layer, or compute in float64"
            return wrap(f"UNDECIDED: the bound is as large as the numbers at {where}; {advice}")
        if self.first is None:
            text = f"{self.tokens} token{'s' * (self.tokens != 1)}"
            return [*self.blind_spots(), f"AGREES: every stage, in {self.dtype}, on {text}"]
        lines = [f"DIFFERS: first at {self.first.stage}, {located_at(self.first.where)}"]
        if not self.likely:
            return [*lines, *wrap("No change of our model that was tried makes this stage agree.")]
        lines += wrap(f"This stage agrees with: {self.likely[0]}")
        if others := self.likely[1:]:
            lines += wrap(f"Within the bound too, and no nearer: {'; '.join(others)}") + self.advice()
        if "transposed" in self.likely[0]:
            each = " and ".join(f"'{name}' for '{name}.T'" for name in re.findall(r"W_\w+", self.likely[0]))
            lines += wrap(f"In the mapping, write {each}, or the reverse.")
        return lines

    def blind_spots(self) -> list[str]:
        lines = []
        for words, stages in self.unseen.items():
            where = stages[0] if len(stages) == 1 else f"{stages[0]} and {len(stages) - 1} more"
            lines += wrap(f"- {words} ({where})")
        return ["This text does not tell from the model as it is:", *lines, *self.advice()] if lines else []

    def advice(self) -> list[str]:
        return ["In float64 the bounds are far smaller, and tell more apart."] if self.dtype in DTYPES[1:] else []


def wrap(text: str) -> list[str]:
    return textwrap.wrap(text, 80, subsequent_indent="  ", break_on_hyphens=False)


@quiet()
def compare(
    model: Model,
    my_forward: Callable[[Any], Any],
    tokens: Any = None,
    *,
    dtype: str | None = None,
    unseen: bool = True,
    seed: int = 0,
    progress: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Does `my_forward` compute what `model` does, and if not, which layer is the first to differ?

    my_forward : tokens (n,) -> logits (n, vocabulary), or (logits, states), or stages by name. The
        states are the embedding and the output of every layer; an object with `logits` and
        `hidden_states`, as of transformers, is such a pair. The stages are "embedding", "layer 0
        attention" (after x + attention), "layer 0", …, "norm", "logits"; some are enough. A first
        axis of length 1 may stand before the tokens.
    tokens : one text, ids or vectors; by default drawn from `seed`
    dtype  : the narrowest dtype in which it computes; by default that of the logits
    unseen : find out, too, which other readings of the model this text would not tell from it
    Needs    attention layers without biases, in an exact system or in floats

    >>> from refimpl import Config, Float, random_model
    >>> from refimpl.model.transformer import transformer
    >>> config = Config(layers=2, width=4, d=4, m=4, phi="softmax", vocabulary=5)
    >>> model = random_model(Float(), config, seed=0)
    >>> compare(model, model).verdict
    'AGREES'
    >>> W_Q = model.weights["layers.1.W_Q"]
    >>> wrong = Model(config, dict(model.weights) | {"layers.1.W_Q": W_Q.T})
    >>> def my_forward(tokens):
    ...     states = [wrong.weights["embedding"][tokens, :]]
    ...     logits, _ = transformer(wrong, tokens, between=lambda i, x: states.append(x) or x)
    ...     return logits, states
    >>> print("\\n".join(compare(model, my_forward).conclusion()[:2]))
    DIFFERS: first at layer 1, token 7, channel 3
    This stage agrees with: W_Q transposed
    """
    who = "compare"
    check_type(who, "model", model, Model)
    check_function(who, "my_forward", my_forward)
    check_flag(who, "unseen", unseen)
    check_integer(who, "seed", seed, least=0)
    if not isinstance(model.config, Config) or model.biases is not None:
        got = f"family {model.config.family!r}" + (" with biases" if model.biases else "")
        raise NotDefined(f"compare: `model` must have attention layers and no biases, got {got}")
    system = system_of(model.like)
    if not system.exact and not (isinstance(system, Float) and system.kind in DTYPES):
        raise NotDefined(f"compare: no error bound is known for {system.name}")
    if dtype is not None:
        choose(who, "dtype", dtype, DTYPES)
    text = check_text(model, random_text(model, TOKENS, seed) if tokens is None else tokens, who, "tokens")
    if len(text.shape) != (1 if text.dtype == int else 2) or not text.shape[0]:
        raise ValueError(f"compare: `tokens` must be one text of a token or more, got shape {tuple(text.shape)}")
    stages = read_stages(model, my_forward(text), text.shape[0])
    return TwoModels(model, text, stages, dtype, progress).compare(unseen)


def read_stages(model: Model, output: Any, tokens: int) -> dict[str, Any]:
    """Their numbers by stage, in the order of the model."""
    c = model.config
    names = stage_names(c.layers)
    if hasattr(output, "logits"):
        output = (output.logits, output.hidden_states) if getattr(output, "hidden_states", None) else output.logits
    if isinstance(output, Mapping):
        found = dict(output)
        for name in found:
            choose("my_forward", "stage", name, names)
        if not found:
            raise ValueError("compare: `my_forward` must return a stage or more, got an empty dict")
    elif isinstance(output, tuple | list) and not hasattr(output, "shape"):
        if len(output) != 2 or not isinstance(output[1], tuple | list):
            raise ValueError(
                "compare: `my_forward` must return logits, (logits, [states]) or stages by name, got others"
            )
        states = list(output[1])
        of_states = [name for name in names if "attention" not in name][: c.layers + 1]
        if len(states) != len(of_states):
            wanted = f"{len(of_states)} states, of the embedding and of each layer"
            raise ValueError(f"compare: `my_forward` must return {wanted}, got {len(states)}")
        found = dict(zip(of_states, states, strict=True)) | {"logits": output[0]}
    else:
        found = {"logits": output}
    width = {"logits": c.vocabulary or c.width}
    return {n: read_stage(model, n, found[n], (tokens, width.get(n, c.width))) for n in names if n in found}


def read_stage(model: Model, name: str, x: Any, shape: tuple[int, ...]) -> Any:
    """An array of theirs, of NumPy or of the exact system of the model."""
    if isinstance(x, type) or not hasattr(x, "shape") or not hasattr(x, "dtype"):
        raise TypeError(f"compare: `my_forward` must return arrays, got {type(x).__name__} for {name!r}")
    system = system_of(model.like)
    if isinstance(x, SystemArray) != system.exact or (system.exact and system_of(x).name != system.name):
        got = system_of(x).name if isinstance(x, SystemArray) else f"dtype {dtype_name(x.dtype)}"
        raise TypeError(f"compare: `my_forward` must return {system.name} for {name!r}, as the model has, got {got}")
    if not isinstance(x, SystemArray) and dtype_name(x.dtype) not in DTYPES:
        got = dtype_name(x.dtype)
        raise TypeError(f"compare: `my_forward` must return {', '.join(DTYPES)} for {name!r}, got {brief(got)}")
    if tuple(x.shape) == (1, *shape):
        x = x[0, ...]
    if tuple(x.shape) != shape:
        raise ValueError(f"compare: `my_forward` must return shape {shape} for {name!r}, got {tuple(x.shape)}")
    return x


class TwoModels:
    """A model, and the stages of another program for one text."""

    def __init__(self, model: Model, text: Any, stages: dict[str, Any], dtype: str | None, progress: Any) -> None:
        self.text, self.progress, self.layers = text, progress, model.config.layers
        self.config, self.names = cast(Config, model.config), stage_names(model.config.layers)
        self.system: Any = system_of(model.like)
        self.notes: list[str] = []
        self.bits = [dtype_name(x.dtype) for x in stages.values()] if not self.system.exact else []
        self.dtype = dtype or min(self.bits, key=lambda name: FORMATS[name][0], default=self.system.name)
        self.weights: dict[str, Any] = dict(model.weights)
        if not self.system.exact:
            self.weights = {name: floats(w) for name, w in model.weights.items()}
            self.text = text if text.dtype == int else floats(text)
            wide = {name: np.asarray(host(x), dtype=np.float64) for name, x in stages.items()}
            stages = wide
        self.stages = {self.names.index(name): x for name, x in stages.items()}

    def compare(self, unseen: bool) -> Comparison:
        self.find_final_norm()
        n = int(self.text.shape[0])
        parts, checks = self.parts(), []
        for part in parts:
            self.progress(f"stage {self.names[part.last]}")
            checks.append(self.check(part))
        wrong = [part for part, check in zip(parts, checks, strict=True) if check.verdict == "EXCESS"]
        if wrong:
            likely = self.alike(wrong[0])
            if not likely and "mlp" in wrong[0].kinds and self.config.activation == "gelu":
                self.notes.append(GELU)
            if not likely and self.dtype == "float64" and self.agrees(wrong[0], self.start(wrong[0]), dtype="float32"):
                likely = [NARROWER]
            return Comparison(tuple(checks), self.dtype, tuple(likely), {}, tuple(self.notes), n)
        seen: dict[str, tuple[str, ...]] = {}
        for part in parts if unseen else ():
            for words in self.alike(part):
                seen[words] = (*seen.get(words, ()), self.names[part.last])
        return Comparison(tuple(checks), self.dtype, (), seen, tuple(self.notes), n)

    def parts(self) -> list[Part]:
        """A part for each stage of theirs, from the last stage before it that can be its start."""
        found, first = [], -1
        for last, x in self.stages.items():
            found.append(self.part(first, last))
            of_attention = last % 2 == 1 and last < 2 * self.layers
            if not (of_attention and self.config.order == "parallel") and self.finite(x):
                first = last
        return found

    def part(self, first: int, last: int) -> Part:
        return part_between(self.config, self.weights, first, last)

    def finite(self, x: Any) -> bool:
        return bool(self.system.exact or np.isfinite(x).all())

    def find_final_norm(self) -> None:
        """transformers gives the last state after the last norm; other programs give it before."""
        last, end = 2 * self.layers, 2 * self.layers + 2
        if not {last, end} <= set(self.stages) or last + 1 in self.stages or self.config.order == "post":
            return
        raw, normed = self.part(last, end), self.part(last + 1, end)
        x = self.stages[last]
        if not self.finite(x) or self.agrees(raw, x):
            return
        before = self.parts()[list(self.stages).index(last)]
        reading = self.part(before.first, last + 1)
        if self.agrees(normed, x) or self.agrees(reading, self.start(before), stop=x):
            stages = [(last + 1 if k == last else k, y) for k, y in self.stages.items()]
            self.stages = dict(stages)
            self.notes.append("The last state is taken as the one after the last norm.")

    def start(self, part: Part) -> Any:
        return self.text if part.first < 0 else self.stages[part.first]

    def run(self, part: Part, x: Any, change: Change, only: int | None, dtype: str) -> tuple[Any, Any]:
        """The output of ours, and how far theirs may be from it; None in an exact system."""
        if self.system.exact:
            return run_part(part, x, self.system, change, only), None
        wide, narrow = RunningError(), RunningError(dtype)
        ours: Any = run_part(part, x, wide, change, only)
        theirs: Any = ours if dtype == "float64" else run_part(part, x, narrow, change, only)
        return wide.value(ours), (wide.error(ours) + narrow.error(theirs)) * UP

    def check(self, part: Part) -> StageCheck:
        got, name = self.stages[part.last], self.names[part.last]
        ours, bound = self.run(part, self.start(part), AS_IT_IS, None, self.dtype)
        found: Judgement
        if bound is None:
            found = judge_exact(self.system, got, ours)
            error, most = found.worst, 0.0
        else:
            found = judge(got, ours, bound)
            error, most = float(abs(got - ours)[found.index]), float(bound[found.index])
        return StageCheck(name, found.verdict, found.index, error, most, found.rows, found.vacuous)

    def agrees(self, part: Part, x: Any, change: Change = AS_IT_IS, **how: Any) -> bool:
        return self.difference(part, x, change, **how) is not None

    def difference(
        self, part: Part, x: Any, change: Change, only: int | None = None, dtype: str | None = None, stop: Any = None
    ) -> float | None:
        """How far a part, perhaps changed, is from theirs; None if beyond its bound or vacuous."""
        got = self.stages[part.last] if stop is None else stop
        try:
            ours, bound = self.run(part, x, change, only, dtype or self.dtype)
        except (ArithmeticError, TypeError, ValueError):  # a change that this model or text does not allow
            return None
        if bound is None:
            return 0.0 if self.system.equal(got, ours) else None
        off = np.abs(got - ours)
        informs = np.max(bound, axis=-1) < np.max(np.abs(ours), axis=-1)
        return float(off.max()) if (off <= bound).all() and (informs.any() or not off.any()) else None

    def alike(self, part: Part) -> list[str]:
        """The changes that agree with theirs, the nearest first.

        They are changes of all layers of a part or, if none of those agrees, of one.
        """
        x, known = self.start(part), list(changes(part.config, part.kinds))
        found = [(self.difference(part, x, change), change.words) for change in known]
        if len(part.own_layers) > 1 and all(off is None for off, _ in found):
            alone = [(change, i) for change in known for i in part.own_layers]
            found = [(self.difference(part, x, c, only=i), f"{c.words} in layer {i}") for c, i in alone]
        near = [(off, words) for off, words in found if off is not None]
        return [words for _, words in sorted(near, key=lambda pair: pair[0])]
