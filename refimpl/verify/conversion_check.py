"""Compare a converted model with the prompted one, layer by layer.

In exact numbers they must be equal; in floats they may differ by a derived bound.

Apart from attention, a layer is the same function of each token in both models. So only attention
is compared, in each layer on the same queries, keys and values. Those of the prompt are recorded
while the model reads it; those of the input come from the prompted model. So at any depth the error
of one attention is compared with the bound for one attention.

    compared     converted model                  compared with
    prompt       attention over the prompt        the definition
    b_KV, b_D    its biases                       the biases from the prompt's keys and values
    output       attention from those biases      the definition, over prompt and input

For the bounds, the same programs run on floats that carry their errors; the errors of both sides
are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, cast

import numpy as np

from ..attention.feature_maps import Kernel
from ..attention.linear_attention import State, linear_attention, linear_attention_chunked
from ..attention.rope import Rope, angle_table, power_table
from ..attention.softmax_attention import concatenate
from ..checks import check_flag, check_integer, check_scalar, check_token_ids, check_type
from ..errors import NotDefined, choose
from ..model.attention_layers import Config
from ..model.generation import generate
from ..model.transformer import AttentionCall, Model, Pass, check_text, embed, run_layers, token_vectors, unembed
from ..prompt.conversion import piece_length
from ..systems import Float, RunningError, System, system_of
from ..systems.array import host, seed_of
from ..systems.floats import array_namespace, quiet
from .bounds import Judgement, finite_fractions, judge

Calls = list[AttentionCall]
SEVERITY = ("EXACT", "WITHIN BOUND", "VACUOUS", "EXCESS")


@dataclass(frozen=True)
class LayerCheck:
    """The verdict on one layer: EXACT, WITHIN BOUND, EXCESS or VACUOUS.

    worst          the largest error as a fraction of its bound
    what           the array and the entry that have this error
    rows, vacuous  the number of rows of the output, and of those whose bound is vacuous
    """

    layer: int
    verdict: str
    worst: float
    what: str
    rows: int
    vacuous: int

    def __str__(self) -> str:
        found = []
        if self.verdict not in ("EXACT", "VACUOUS"):
            ratio = "unequal" if math.isinf(self.worst) else f"error/bound ≤ {self.worst:.2g}"
            found.append(f"{ratio} at {self.what}")
        if self.vacuous or not self.rows:
            found.append(f"{self.vacuous} of {self.rows} rows vacuous" if self.rows else "no rows to compare")
        return f"layer {self.layer:3}  {self.verdict:12}  {'; '.join(found)}".rstrip()


@dataclass(frozen=True)
class ConversionCheck:
    """The verdicts on all layers, and the difference between the outputs of the two models.

    difference  the largest |converted − prompted|; in an exact system 0 or inf
    size        the largest |prompted|; in an exact system nan
    """

    layers: tuple[LayerCheck, ...]
    difference: float
    size: float

    @property
    def verdict(self) -> str:
        """The worst of the layers."""
        return max((c.verdict for c in self.layers), key=SEVERITY.index)

    def __str__(self) -> str:
        """One line for each layer, and one for the difference end to end."""
        end = f"{self.difference:.2g} apart" if self.difference else "equal"
        end = "unequal" if math.isinf(self.difference) else end
        size = f", of outputs up to {self.size:.2g}" if self.size > 0 else ""
        return "\n".join([*map(str, self.layers), f"end to end  {end}{size}"])

    def report(self) -> dict[str, Any]:
        """The check as data for JSON, with None for inf and nan."""
        data = {"verdict": self.verdict, **asdict(self)}
        for part in (data, *data["layers"]):
            part |= {key: None for key, x in part.items() if isinstance(x, float) and not math.isfinite(x)}
        return data


def held_out(model: Model, prompt: Any, tokens: int, seed: int) -> tuple[Any, str]:
    """A text that fits after the prompt, drawn from the seed; and what it is, in words.

    It is what the model itself writes there, at temperature 1; of a batch of prompts, after the
    first. Vectors are uniform, and ids too if the numbers have no order, or the prompt no ids.
    Since attention is causal, every prefix of the text is tested as an input too.
    """
    c, own = model.config, seed_of("held out", seed)
    ids = check_token_ids("held_out", "prompt", prompt, c.vocabulary) if c.vocabulary else None
    after = np.shape(prompt)[-2] if ids is None else ids.shape[-1]
    writes = ids is not None and ids.size and "ordered" in system_of(model.like).can
    if ids is None or not writes or model(ids.reshape(-1)[:1]).ndim != 2:
        text = random_text(model, tokens, seed, after)
        return text, f"{len(text)} random {'tokens' if c.vocabulary else 'vectors'} of seed {seed}"
    first, n = ids.reshape(-1, after)[0], room_after(model, after, tokens)
    text = np.array([*generate(model, first, n, temperature=1, seed=own)])
    return text, f"{n} tokens that the model wrote after the prompt, seed {seed}"


def random_text(model: Model, tokens: int, seed: int, after: int = 0) -> Any:
    """Uniform ids, or vectors for a model without a vocabulary, that fit after so many tokens."""
    n, own = room_after(model, after, tokens), seed_of("held out", seed)
    if model.config.vocabulary:
        return np.random.default_rng(own).integers(0, model.config.vocabulary, n)
    return system_of(model.like).random((n, model.config.width), own)


def room_after(model: Model, after: int, tokens: int) -> int:
    """So many tokens, or as many as a table of positions has room for."""
    table = model.config.table
    room = min(tokens, table - model.position - after) if table else tokens
    if room < 1:
        words = f"the table of {table} absolute positions"
        raise ValueError(f"held_out: {words} must have room for `tokens` after the prompt, got none")
    return room


@quiet()
def check_conversion(
    model: Model,
    converted: Model,
    prompt: Any,
    text: Any,
    *,
    mask: str = "causal",
    restart: bool = True,
    strength: Any = 1,
    chunk: int | None = None,
    form: Any = linear_attention_chunked,
    definition: Any = linear_attention,
    progress: Callable[[str], None] = lambda line: None,
) -> ConversionCheck:
    """Is `converted` the model with the prompt as biases? It is compared on a held-out text.

    mask, restart, strength, chunk, form    as they were for `convert`
    prompt, text                            as for `transformer`, in one piece
    definition    the form of the prompted side; it must not carry a state from prompt to input
    Needs         an exact system, or floats whose format RunningError knows

    >>> from refimpl import Config, Float, convert, random_model
    >>> model = random_model(Float(), Config(layers=2, width=4, d=2, m=2, vocabulary=5), seed=0)
    >>> check_conversion(model, convert(model, [3, 1, 4]), [3, 1, 4], [1, 0]).verdict
    'WITHIN BOUND'
    """
    require_same_model(model, converted)
    choose("check_conversion", "mask", mask, ("causal", "full"))
    check_flag("check_conversion", "restart", restart)
    check_scalar("check_conversion", "strength", strength, weights=model.like)
    if chunk is not None:
        check_integer("check_conversion", "chunk", chunk, least=1)
    system, layers = system_of(model.like), model.config.layers
    both = Attention(cast(Config, model.config), model.kernel, form, definition, mask, restart, strength)
    twin = None if system.exact else both.with_errors(model)
    texts = (check_text(model, x, "check_conversion", name) for name, x in (("prompt", prompt), ("text", text)))
    P, X = (token_vectors(model, x) for x in texts)
    M, everything = P.shape[-2], concat_tokens(P, X)
    inputs = [embed(model, everything)[..., M:, :]]

    def watch(i: int, x: Any) -> Any:
        progress(f"layer {i + 1} of {layers}: the prompted model")
        inputs.append(x[..., M:, :])
        return x

    prompted, over_both = weighted_form(definition, M, strength), both.mask_over_both(M)
    x, _ = run_layers(model, embed(model, everything), Pass(prompted, over_both, watch))
    wanted = unembed(model, x[..., M:, :])
    calls, checks = prompt_calls(model, P, chunk, form, mask), []
    for i, state in enumerate(converted.biases or ()):
        progress(f"layer {i + 1} of {layers}: prompted against converted")
        model.config.layer(model, i, inputs[i], state, Pass(form, on_attention=lambda j, call: calls[j].append(call)))
        checks.append(check_layer(i, system, both, twin, calls[i]))
    difference, size = largest_difference(system, converted(text), wanted)
    return ConversionCheck(tuple(checks), difference, size)


def require_same_model(model: Model, converted: Model) -> None:
    """Refuse models that differ in anything but their biases."""
    for name, x in (("model", model), ("converted", converted)):
        check_type("check_conversion", name, x, Model)
    if model.config.past is not State:
        raise NotDefined(
            "check_conversion: bounds are known for linearized attention only; compare outputs by fidelity"
        )
    if converted.config != model.config or converted.biases is None:
        got = "another configuration or no biases"
        raise ValueError(f"check_conversion: `converted` must be `model` with biases, got {got}")
    for name, w in model.weights.items():
        if converted.weights[name] is not w and not system_of(w).equal(converted.weights[name], w):
            raise ValueError(f"check_conversion: `converted` must have the weights of `model`, got another {name}")


def prompt_calls(model: Model, P: Any, chunk: int | None, form: Any, mask: str) -> list[Calls]:
    """For each layer, the calls of attention while the model reads the prompt in pieces.

    This is a pass of its own, because the pass of `convert` is what is being checked.
    """
    calls: list[Calls] = [[] for _ in range(model.config.layers)]
    run = Pass(form, mask, on_attention=lambda i, call: calls[i].append(call))
    n = max(P.shape[-2], 1)
    step = piece_length(n, chunk, mask)
    for start in range(0, n, step):
        _, pasts = run_layers(model, embed(model, P[..., start : start + step, :]), run)
        model = model.carry(pasts, model.prompts)
    return calls


def call_with_errors(call: AttentionCall, numbers: RunningError) -> AttentionCall:
    """The same call in floats that carry their errors, all 0 at first."""
    q, k, v = (without_error(numbers, x) for x in call[:3])
    past = call.past and call.past.map_arrays(lambda x, _: without_error(numbers, x))
    return AttentionCall(q, k, v, past)


@dataclass(frozen=True)
class Attention:
    """The attention of a layer, converted and prompted, as programs for any number system."""

    config: Config
    kernel: Kernel
    form: Any
    definition: Any
    mask: str
    restart: bool
    strength: Any
    numbers: Any = None

    def mask_over_both(self, M: int) -> str | int:
        """The mask over prompt and input."""
        return M if self.mask == "full" else self.mask

    def converted(
        self, prompt: Sequence[AttentionCall], text: AttentionCall, stored: State | None = None
    ) -> tuple[dict[str, Any], State]:
        """Attention over the prompt in pieces, then over the text, and the biases between them.

        The text is read from the biases `stored`, or without them from those computed here.
        """
        start = state = prompt[0].past
        outputs = []
        for q, k, v, _ in prompt:
            o, state = self.form(q, k, v, self.kernel, state=state, mask=self.mask)
            outputs.append(o)
        assert state is not None
        if not counts_once(self.strength):
            state = state.weighed(start, self.strength)
        if self.restart:
            state = state.shifted(-sum(call.q.shape[-2] for call in prompt), self.kernel)
        o, _ = self.form(text.q, text.k, text.v, self.kernel, state=stored or state)
        return {"prompt": concat_tokens(*outputs), **bias_rows(state), "output": o}, state

    def prompted(self, prompt: Sequence[AttentionCall], text: AttentionCall) -> dict[str, Any]:
        """Attention over prompt and text, by the definition."""
        q, k, v = (concat_tokens(*pieces) for pieces in zip(*(call[:3] for call in (*prompt, text)), strict=True))
        M = q.shape[-2] - text.q.shape[-2]
        form = weighted_form(self.definition, M, self.strength)
        o, _ = form(q, k, v, self.kernel, state=prompt[0].past, mask=self.mask_over_both(M))
        return {"prompt": o[..., :M, :], "output": o[..., M:, :]}

    def with_errors(self, model: Model) -> Attention:
        """The same attention on floats that carry their errors."""
        system, rotary, strength = system_of(model.like), self.config.rope, self.strength
        try:
            numbers = RunningError(system.kind if isinstance(system, Float) else system.name)
        except ValueError as error:
            why = "which neither decides nor rounds as floats do"
            raise NotDefined(f"check_conversion: no error bound is known for {system.name}, {why}") from error
        if isinstance(strength, float):
            strength = Fraction(strength)
        elif not isinstance(strength, int):
            strength = without_error(numbers, strength)
        rope = None
        if rotary:
            if rotary.base is None:
                table = power_table(*(without_error(numbers, model.weights[name]) for name in ("rope.c", "rope.s")))
            else:
                table = angle_table(numbers, rotary.width, base=rotary.base)
            rope = Rope(table, rotary.layout, rotary.placement)
        return replace(self, kernel=replace(self.kernel, rope=rope), strength=strength, numbers=numbers)

    def bounds(self, prompt: Sequence[AttentionCall], text: AttentionCall) -> dict[str, np.ndarray]:
        """For each array, by name, how far rounding may make the two sides differ."""
        *prompt, text = (call_with_errors(c, self.numbers) for c in (*prompt, text))
        left, _ = self.converted(prompt, text)
        right = left | self.prompted(prompt, text)
        return {name: self.numbers.error(left[name]) + self.numbers.error(right[name]) for name in left}


def weighted_form(definition: Any, M: int, strength: Any) -> Any:
    """Attention in which each of the first M tokens counts λ = strength times for later tokens.

    For those tokens φ(k_s) becomes λ φ(k_s).
    """

    def attention(q: Any, k: Any, v: Any, /, kernel: Kernel, **options: Any) -> Any:
        phi_q, phi_k = kernel.maps

        def weighted(x: Any, /) -> Any:
            y = phi_k(x)
            return concat_tokens(strength * y[..., :M, :], y[..., M:, :])

        prompt, _ = definition(*(x[..., :M, :] for x in (q, k, v)), kernel, **options)
        o, after = definition(q, k, v, replace(kernel, phi=(phi_q, weighted)), **options)
        return concat_tokens(prompt, o[..., M:, :]), after

    return definition if counts_once(strength) else attention


def counts_once(strength: Any) -> bool:
    """Is the strength the number 1, so that every token counts once?"""
    return isinstance(strength, int) and strength == 1


def concat_tokens(*pieces: Any) -> Any:
    """Texts one after another; axes before the tokens broadcast, so one prompt serves a batch."""
    return concatenate(np.broadcast_shapes(*(x.shape[:-2] for x in pieces)), *pieces, axis=-2)


def bias_rows(state: State) -> dict[str, Any]:
    """b_KV and b_D as rows."""
    return {"b_KV": state.S} | ({} if state.z is None else {"b_D": state.z[..., None, :]})


def without_error(numbers: RunningError, x: Any) -> Any:
    """Floats as numbers without error; `convert` would give the same, but slower."""
    return numbers.wrap((host(x), np.zeros(tuple(x.shape))))


def check_layer(i: int, system: System, both: Attention, twin: Attention | None, calls: Calls) -> LayerCheck:
    """The verdict on layer i; the last of its calls is on the text, the others on the prompt."""
    *prompt, text = calls
    assert text.past is not None
    left, again = both.converted(prompt, text, stored=text.past)
    right = left | both.prompted(prompt, text)
    got, wanted = ((tuple(s.S.shape), s.z is not None, s.position) for s in (text.past, again))
    if got != wanted:
        name = f"`converted.biases[{i}]`"
        raise ValueError(f"check_conversion: {name} must have b_KV, b_D and position as in {wanted}, got {got}")
    xp = array_namespace(right["output"])
    left |= bias_rows(text.past) | {"prompt": xp.broadcast_to(left["prompt"], right["prompt"].shape)}
    if twin is None:
        found = {name: judge_exact(system, left[name], right[name]) for name in left}
    else:
        bounds = twin.bounds(prompt, text)
        found = {name: judge(left[name], right[name], bounds[name]) for name in left}
    return worst_of(i, found)


def judge_exact(system: Any, left: Any, right: Any) -> Judgement:
    """EXACT or EXCESS; VACUOUS if there is nothing to compare."""
    wrong = system.unequal(left, right)
    if not wrong.size:
        return Judgement("VACUOUS", 0.0, (), 0, 0)
    index = tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.any() else ()
    return Judgement("EXCESS" if index else "EXACT", math.inf if index else 0.0, index, 0, math.prod(wrong.shape[:-1]))


def worst_of(i: int, found: dict[str, Judgement]) -> LayerCheck:
    """One verdict from those on prompt, biases and output.

    A vacuous bound makes the verdict VACUOUS only if it is that of the output. An array without
    rows, such as an empty prompt, does not count, but an output without rows decides nothing.
    """
    compared = {name: j for name, j in found.items() if j.rows or name == "output"}
    verdicts = [j.verdict for name, j in compared.items() if j.verdict != "VACUOUS" or name == "output"]
    name, output = max(found, key=lambda name: found[name].worst), found["output"]
    verdict = max("EXACT" if len(verdicts) == len(compared) else "WITHIN BOUND", *verdicts, key=SEVERITY.index)
    what = f"{name} {list(found[name].index)}" if found[name].worst else ""
    return LayerCheck(i, verdict, found[name].worst, what, output.rows, output.vacuous)


def largest_difference(system: System, got: Any, wanted: Any) -> tuple[float, float]:
    """The largest |got − wanted|, and the largest |wanted|."""
    if system.exact:
        return (0.0 if system.equal(got, wanted) else math.inf), math.nan
    (a, not_finite), (b, _) = finite_fractions(got), finite_fractions(wanted)
    return (math.inf if not_finite.any() else float(abs(a - b).max(initial=0))), float(abs(b).max(initial=0))
