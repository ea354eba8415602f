"""RoPE alone: right kernels are never wrong, and each mistake is found and named."""

import ml_dtypes
import numpy as np
import pytest

from refimpl.crosscheck.check import crosscheck
from refimpl.crosscheck.families.rope import RotaryEmbedding
from refimpl.crosscheck.mistakes import MISTAKES, all_families
from refimpl.crosscheck.plan import Case
from refimpl.systems import Float

AT = "x, position -> o"


def names(report):
    return {x.words for finding in report.findings for x in finding.likely}


def wide_of(x):
    return np.promote_types(x.dtype, np.float32)


def frequencies(x, base=10000.0, width=None):
    w = width or x.shape[-1]
    return (1 / base ** (np.arange(0, w, 2, dtype=wide_of(x)) / w)).astype(wide_of(x))


def turn_half(x, cos, sin):
    y = x.astype(wide_of(x))
    h = cos.shape[-1]
    a, b = y[..., :h], y[..., h : 2 * h]
    out = [a * cos - b * sin, b * cos + a * sin, y[..., 2 * h :]]
    return np.concatenate(out, axis=-1).astype(x.dtype)


def turn_neighbours(x, cos, sin):
    out = x.astype(wide_of(x))
    w = 2 * cos.shape[-1]
    a, b = out[..., 0:w:2].copy(), out[..., 1:w:2].copy()
    out[..., 0:w:2], out[..., 1:w:2] = a * cos - b * sin, a * sin + b * cos
    return out.astype(x.dtype)


def rope(x, p=0, turn=turn_half, theta=frequencies):
    angle = np.arange(p, p + x.shape[-2])[:, None] * theta(x)
    return turn(x, np.cos(angle), np.sin(angle))


def rotate_whole_rows(x, p=0):
    """As transformers writes it, in the dtype of x throughout."""
    import torch

    n, d = x.shape[-2:]
    theta = 1.0 / 10000.0 ** (torch.arange(0, d, 2, dtype=torch.float32) / d)
    if x.dtype == torch.float64:
        theta = 1.0 / 10000.0 ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
    angle = torch.outer(torch.arange(p, p + n).to(theta.dtype), theta)
    cos, sin = (f(torch.cat((angle, angle), dim=-1)).to(x.dtype) for f in (torch.cos, torch.sin))
    turned = torch.cat((-x[..., d // 2 :], x[..., : d // 2]), dim=-1)
    return x * cos + turned * sin


def complex_product(x, p=0):
    """As Llama's own code writes it, with neighbours as complex numbers."""
    import torch

    d, wide = x.shape[-1], torch.float64 if x.dtype == torch.float64 else torch.float32
    theta = 10000.0 ** -(torch.arange(0, d, 2, dtype=wide) / d)
    angle = torch.outer(torch.arange(p, p + x.shape[-2], dtype=wide), theta)
    pairs = torch.view_as_complex(x.to(wide).contiguous().unflatten(-1, (-1, 2)))
    turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle))
    return turned.flatten(-2).to(x.dtype)


RIGHT = {
    "half": (rope, {}),
    "neighbours": (lambda x, p: rope(x, p, turn_neighbours), {"layout": "interleaved"}),
    "DeepSeek": (
        lambda x, p: rope(np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1), p),
        {"layout": "interleaved-to-half"},
    ),
    "backwards": (lambda x, p: rope(x, p, lambda x, c, s: turn_half(x, c, -s)), {"sign": "-"}),
    "partial": (lambda x, p: rope(x, p, theta=lambda x: frequencies(x, width=4)), {"width": 4}),
    "partial, of all of d": (
        lambda x, p: rope(x, p, theta=lambda x: frequencies(x)[:2]),
        {"width": 4, "exponent": "d"},
    ),
    "partial, last": (
        lambda x, p: np.concatenate([x[..., :-4], rope(x[..., -4:], p)], axis=-1),
        {"width": 4, "part": "last"},
    ),
    "another base": (lambda x, p: rope(x, p, theta=lambda x: frequencies(x, 5e5)), {"base": 5e5}),
    "linear scaling": (
        lambda x, p: rope(x, p, theta=lambda x: frequencies(x) / 8),
        {"scaling": "linear", "factor": 8.0},
    ),
    "scaled positions": (
        lambda x, p: turn_half(
            x, *(f(np.arange(p, p + x.shape[-2])[:, None] / 3 * frequencies(x)) for f in (np.cos, np.sin))
        ),
        {"scaling": "linear", "factor": 3.0},
    ),
    "tokens before heads": (lambda x, p: rope(x.swapaxes(1, 2), p).swapaxes(1, 2), {"axes": "BTHD"}),
}


@pytest.mark.parametrize("dtype", [pytest.param("float64", marks=pytest.mark.slow), "float32", "float16"])
@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_pass(name, dtype):
    kernel, conventions = RIGHT[name]
    assert crosscheck(kernel, RotaryEmbedding(call=AT, dtype=dtype, **conventions)).verdict == "WITHIN BOUND"


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_right_kernels_of_torch_pass(dtype):
    pytest.importorskip("torch")
    plain = RotaryEmbedding(call=AT, dtype=dtype, sums=dtype, library="torch")
    assert crosscheck(rotate_whole_rows, plain).verdict == "WITHIN BOUND"
    wide = RotaryEmbedding(call=AT, dtype=dtype, layout="interleaved", library="torch")
    assert crosscheck(complex_product, wide).verdict == "WITHIN BOUND"


def test_positions_may_be_an_array():
    def of_rows(x, positions):
        angle = positions[:, None, :, None] * frequencies(x)
        return turn_half(x, np.cos(angle), np.sin(angle))

    def of_all(x, positions):
        return of_rows(x, positions[None])

    by_rows = RotaryEmbedding(call="x, positions -> o", positions_axes="BT", dtype="float64,float32")
    assert crosscheck(of_rows, by_rows).verdict == "WITHIN BOUND"
    assert crosscheck(of_all, RotaryEmbedding(call="x, positions -> o")).verdict == "WITHIN BOUND"
    first_row = crosscheck(lambda x, p: of_rows(x, p[:1]), by_rows)
    assert names(first_row) == {"all batch rows have the positions of the first"}
    on = crosscheck(lambda x, p: of_rows(x, p[:, :1] + np.arange(x.shape[-2])), by_rows)
    assert names(on) == {"given positions are counted on from the first of them"}
    ignored = crosscheck(lambda x, p: of_rows(x, 0 * p[:, :1] + np.arange(x.shape[-2])), by_rows)
    assert names(ignored) == {"the given position is ignored: each call begins at 0"}


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("columns", ["pairs", "entries"])
def test_a_kernel_may_be_given_cos_and_sin(layout, columns):
    def by_entries(x, cos, sin):
        """As flash-attention and transformers write it."""
        if layout == "half":
            other = np.concatenate([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], axis=-1)
        else:
            other = np.stack([-x[..., 1::2], x[..., 0::2]], axis=-1).reshape(x.shape)
        return x * cos + other * sin

    turn = turn_half if layout == "half" else turn_neighbours
    kernel = turn if columns == "pairs" else by_entries
    spec = RotaryEmbedding(call="x, cos, sin -> o", layout=layout, columns=columns, dtype="float64,float32")
    assert crosscheck(kernel, spec).verdict == "WITHIN BOUND"
    found = crosscheck(lambda x, cos, sin: kernel(x, sin, cos), spec)
    assert found.verdict == "WRONG" and names(found) == {"sin and cos are swapped"}
    assert all(f.verdict == "WRONG" for finding in found.findings for f in finding.facets)


def test_given_tables_are_exact_where_they_are_of_quarter_turns():
    spec = RotaryEmbedding(call="x, cos, sin -> o", table_axes="1TD")
    case = Case(n=65, values="whole")
    x = spec.inputs(case, "float16")
    assert spec.is_exact(case, "float16") and {*x["cos"].ravel()} == {-1, 0, 1}
    assert np.all(x["cos"] ** 2 + x["sin"] ** 2 == 1)


# Scaled frequencies, against transformers

CONFIGURATIONS = [
    ({"rope_type": "linear", "factor": 4.0}, {"scaling": "linear", "factor": 4.0}),
    (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        {"scaling": "llama3", "factor": 8.0},
    ),
    (
        {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096},
        {"scaling": "yarn", "factor": 16.0, "original": 4096},
    ),
    (
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        {"scaling": "yarn", "factor": 40.0, "original": 4096, "magnitude": 1.0},
    ),
    (
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "truncate": False,
        },
        {"scaling": "yarn", "factor": 4.0, "original": 1024, "fast": 16.0, "slow": 2.0, "truncate": False},
    ),
]


def of_transformers(rope_parameters):
    """A kernel with the frequencies of transformers, which are in float32."""
    torch = pytest.importorskip("torch")
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    def frequencies(d):
        config = LlamaConfig(
            hidden_size=4 * d,
            num_attention_heads=4,
            head_dim=d,
            max_position_embeddings=131072,
            rope_parameters={"rope_theta": 10000.0, **rope_parameters},
        )
        return utils.ROPE_INIT_FUNCTIONS[rope_parameters["rope_type"]](config, "cpu")

    def kernel(x, p):
        theta, magnitude = frequencies(x.shape[-1])
        angle = torch.outer(torch.arange(p, p + x.shape[-2]).float(), theta)
        cos, sin = torch.cos(angle) * magnitude, torch.sin(angle) * magnitude
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)

    return kernel, frequencies


@pytest.mark.parametrize(("theirs", "ours"), CONFIGURATIONS)
def test_scaled_frequencies_are_those_of_transformers(theirs, ours):
    kernel, frequencies = of_transformers(theirs)
    spec = RotaryEmbedding(call=AT, dtype="float32", library="torch", **ours)
    for d in (4, 16, 64, 128):
        theta, magnitude = frequencies(d)
        assert np.allclose(spec.frequencies(d, Float("numpy", "float64")), theta.numpy(), rtol=2e-6, atol=0)
        assert magnitude == (spec.magnitude_of() if ours["scaling"] == "yarn" else 1)
    assert crosscheck(kernel, spec).verdict == "WITHIN BOUND"


# Mistakes


def at(positions):
    def kernel(x, p):
        angle = positions(x, p)[..., None] * frequencies(x)
        return turn_half(x, np.cos(angle), np.sin(angle))

    return kernel


def with_frequencies(change):
    return lambda x, p: rope(x, p, theta=lambda x: change(frequencies(x)))


def narrow(x, dtype=ml_dtypes.bfloat16):
    return np.asarray(x).astype(dtype).astype(x.dtype)


def phases(x, p, positions=narrow, theta=narrow, angle=narrow, table=narrow):
    found = angle(positions(np.arange(p, p + x.shape[-2], dtype=wide_of(x)))[:, None] * theta(frequencies(x)))
    return turn_half(x, table(np.cos(found)), table(np.sin(found)))


def same(x):
    return x


def half_precision(x):
    return narrow(x, np.float16)


def mixed_columns(x, p):
    angle = np.arange(p, p + x.shape[-2])[:, None] * frequencies(x)
    cos, sin = (np.repeat(f(angle), 2, axis=-1) for f in (np.cos, np.sin))
    h = x.shape[-1] // 2
    return (x * cos + np.concatenate([-x[..., h:], x[..., :h]], axis=-1) * sin).astype(x.dtype)


def in_place(x, cos, sin):
    out, h = x.astype(wide_of(x)), cos.shape[-1]
    out[..., :h] = out[..., :h] * cos - out[..., h:] * sin
    out[..., h:] = out[..., h:] * cos + out[..., :h] * sin
    return out.astype(x.dtype)


def minus_missing(x, cos, sin):
    h = cos.shape[-1]
    a, b = x[..., :h], x[..., h:]
    return np.concatenate([a * cos + b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def tokens(x):
    return np.arange(x.shape[-2])


WRONG = {
    "--layout interleaved, where half was stated": lambda x, p: rope(x, p, turn_neighbours),
    "--layout interleaved-to-half, where half was stated": RIGHT["DeepSeek"][0],
    "--base 500000, where 10000 was stated": lambda x, p: rope(x, p, theta=lambda x: frequencies(x, 5e5)),
    "--width 2, where 0 was stated": lambda x, p: rope(x, p, theta=lambda x: frequencies(x, width=2)),
    "--sign -, where + was stated": RIGHT["backwards"][0],
    "positions begin at 1": lambda x, p: rope(x, p + 1),
    "the given position is ignored: each call begins at 0": lambda x, p: rope(x),
    "all tokens have the position of the first": at(lambda x, p: np.full(x.shape[-2], p)),
    "positions run on from one batch row to the next": at(
        lambda x, p: p + np.arange(x.shape[0] * x.shape[-2]).reshape(x.shape[0], 1, x.shape[-2])
    ),
    "the head is taken as the position": at(lambda x, p: p + np.arange(x.shape[1])[:, None] + 0 * tokens(x)),
    "positions end with a table of 2048: later ones have its last row": at(lambda x, p: (p + tokens(x)).clip(0, 2047)),
    "positions end with a table of 4096: later ones have its last row": at(lambda x, p: (p + tokens(x)).clip(0, 4095)),
    "positions begin anew after a table of 2048": at(lambda x, p: (p + tokens(x)) % 2048),
    "positions begin anew after a table of 4096": at(lambda x, p: (p + tokens(x)) % 4096),
    "positions begin anew after a table of 512": at(lambda x, p: (p + tokens(x)) % 512),
    "the exponent is −i/width, not −2i/width": with_frequencies(np.sqrt),
    "the exponent is −2(i + 1)/width, not −2i/width": lambda x, p: rope(
        x, p, theta=lambda x: np.append(frequencies(x)[1:], wide_of(x).type(1e-4))
    ),
    "the frequencies are in reversed order": with_frequencies(lambda theta: theta[::-1]),
    "all pairs have the frequency of the first": with_frequencies(np.ones_like),
    "sin and cos are swapped": lambda x, p: rope(x, p, lambda x, c, s: turn_half(x, s, c)),
    "the minus is missing: (a cos + b sin, a sin + b cos)": lambda x, p: rope(x, p, minus_missing),
    "the second of each pair is turned from the first as it is after its turn": lambda x, p: rope(x, p, in_place),
    "the columns of cos and sin are of the other layout": mixed_columns,
    "it turns twice": lambda x, p: rope(rope(x, p), p),
    "it turns nothing": lambda x, p: x.copy(),
    "the last pair is not turned": with_frequencies(lambda theta: np.append(theta[:-1], theta[:0].sum(keepdims=True))),
    "positions are rounded to bfloat16": lambda x, p: phases(x, p, theta=same, angle=same, table=same),
    "positions are rounded to float16": lambda x, p: phases(x, p, half_precision, same, same, same),
    "the frequencies are rounded to bfloat16": lambda x, p: phases(x, p, same, angle=same, table=same),
    "the frequencies are rounded to float16": lambda x, p: phases(x, p, same, half_precision, same, same),
    "the angles are rounded to bfloat16": lambda x, p: phases(x, p, same, same, table=same),
    "the angles are rounded to float16": lambda x, p: phases(x, p, same, same, half_precision, same),
    "positions, frequencies and angles are rounded to bfloat16": lambda x, p: phases(x, p, table=same),
    "positions, frequencies and angles are rounded to float16": lambda x, p: phases(x, p, *3 * [half_precision], same),
    "cos and sin are rounded to bfloat16": lambda x, p: phases(x, p, same, same, same),
    "cos and sin are rounded to float16": lambda x, p: phases(x, p, same, same, same, half_precision),
}


@pytest.mark.parametrize("dtype", [pytest.param("float64", marks=pytest.mark.slow), "float32"])
@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_found_and_named(name, dtype):
    report = crosscheck(WRONG[name], RotaryEmbedding(call=AT, dtype=dtype))
    assert report.verdict == "WRONG" and names(report) == {name}


def test_angles_of_float32_are_too_rough_for_float64():
    def kernel(x, p):
        angle = np.arange(p, p + x.shape[-2], dtype=np.float32)[:, None] * frequencies(x.astype(np.float32))
        return turn_half(x, np.cos(angle), np.sin(angle))

    assert crosscheck(kernel, RotaryEmbedding(call=AT, dtype="float64", angles="float32")).verdict == "WITHIN BOUND"
    assert crosscheck(kernel, RotaryEmbedding(call=AT)).verdict == "EXCESS"


PARTIAL = {
    "--width 0, where 4 was stated": lambda x, p: rope(x, p),
    "--part last, where first was stated": RIGHT["partial, last"][0],
    "--exponent d, where width was stated": RIGHT["partial, of all of d"][0],
    "the entries that are not turned are 0": lambda x, p: (
        RIGHT["partial"][0](x, p) * (np.arange(x.shape[-1]) < 4).astype(x.dtype)
    ),
}


@pytest.mark.parametrize("name", PARTIAL)
def test_mistakes_of_partial_rope_are_named(name):
    report = crosscheck(PARTIAL[name], RotaryEmbedding(call=AT, width=4, dtype="float32"))
    assert report.verdict == "WRONG" and names(report) == {name}


def scaled(x, p, kept, factor=8.0):
    theta = frequencies(x)
    return rope(x, p, theta=lambda x: theta * kept + theta / factor * (1 - kept))


def kept_by_llama3(x):
    return np.clip((8192 / (2 * np.pi / frequencies(x)) - 1) / 3, 0, 1)


LLAMA3 = {
    "--scaling none, where llama3 was stated": lambda x, p: rope(x, p),
    "--scaling linear, where llama3 was stated": lambda x, p: scaled(x, p, 0),
    "what is divided by the factor is kept, and the other way round": lambda x, p: scaled(x, p, 1 - kept_by_llama3(x)),
    "frequencies between the limits are not blended": lambda x, p: scaled(x, p, kept_by_llama3(x) == 1),
}


@pytest.mark.parametrize("name", LLAMA3)
def test_mistakes_of_scaling_are_named(name):
    report = crosscheck(LLAMA3[name], RotaryEmbedding(call=AT, scaling="llama3", factor=8.0, dtype="float32"))
    assert report.verdict == "WRONG" and names(report) == {name}


LINEAR = {
    "--scaling none, where linear was stated": lambda x, p: rope(x, p),
    "the angles are scaled twice": lambda x, p: rope(x, p, theta=lambda x: frequencies(x) / 64),
    "the angles are scaled by the factor, not by its inverse": lambda x, p: rope(
        x, p, theta=lambda x: frequencies(x) * 8
    ),
}


@pytest.mark.parametrize("name", LINEAR)
def test_mistakes_of_linear_scaling_are_named(name):
    report = crosscheck(LINEAR[name], RotaryEmbedding(call=AT, scaling="linear", factor=8.0, dtype="float32"))
    assert report.verdict == "WRONG" and names(report) == {name}


def test_a_magnitude_left_out_is_named():
    theirs, ours = CONFIGURATIONS[2]
    kernel, _ = of_transformers(theirs)
    magnitude = 0.1 * np.log(16) + 1
    report = crosscheck(
        lambda x, p: kernel(x, p) / magnitude, RotaryEmbedding(call=AT, dtype="float32", library="torch", **ours)
    )
    assert names(report) == {"--magnitude 1, where 0 was stated"}


def test_every_mistake_of_the_catalogue_is_planted():
    all_families()
    tables = {*WRONG, *PARTIAL, *LLAMA3, *LINEAR}
    elsewhere = {
        "given positions are counted on from the first of them",
        "all batch rows have the positions of the first",
    }
    known = {m.said for m in MISTAKES[RotaryEmbedding] if m.number in (None, 2048, 4096)}
    assert known <= tables | elsewhere and len(known) > 30


def test_one_pair_and_one_token_are_enough_for_a_position():
    """The plan has what these mistakes need: they are right everywhere else."""
    spec = RotaryEmbedding(call=AT)
    cases = spec.plan()
    assert {case.n for case in cases} >= {0, 1, 1025} and {case.d % 2 for case in cases} == {0}
    far = [case for case in cases if case.position]
    near = at(lambda x, p: np.minimum(p + tokens(x), 2047))
    for case in cases:
        x = spec.inputs(case, "float64")
        assert np.array_equal(near(x["x"], case.position), rope(x["x"], case.position)) == (
            case not in far or not case.n
        )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"width": 3}, "RotaryEmbedding: `width` must be even, to pair entries, got 3"),
        (
            {"angles": "int8"},
            "RotaryEmbedding: `angles` must be one of bfloat16, float16, float32, float64, got 'int8'",
        ),
        (
            {"layout": "neox"},
            "RotaryEmbedding: `layout` must be one of half, interleaved, interleaved-to-half, got 'neox'",
        ),
        (
            {"call": "x, positions -> o", "positions_axes": "HT"},
            "RotaryEmbedding: `positions_axes` must have each of the letters BT",
        ),
        (
            {"call": "x, cos, sin -> o", "table_axes": "BTD"},
            "RotaryEmbedding: `table_axes` must have each of the letters TD",
        ),
    ],
)
def test_refusals(wrong, words):
    with pytest.raises(ValueError, match="^" + words.replace("(", r"\(").replace("`", "`")):
        RotaryEmbedding(**wrong)
