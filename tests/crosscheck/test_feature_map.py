"""Feature maps alone: right kernels are never wrong, and each mistake is found and named."""

import numpy as np
import pytest

from refimpl import feature_map
from refimpl.attention.feature_maps import FEATURE_MAPS
from refimpl.attention.random_features import RandomFeatures
from refimpl.crosscheck import plan as plans
from refimpl.crosscheck.check import crosscheck
from refimpl.crosscheck.families.feature_map import FeatureMap
from refimpl.crosscheck.mistakes import MISTAKES, all_families
from refimpl.systems import Float


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Plans without texts of more than 129 tokens."""
    monkeypatch.setattr(plans, "LONG", {})


def names(report):
    return {x.words for finding in report.findings for x in finding.likely}


def widely(f):
    """Computed in float32 or wider, and returned in the dtype of x."""

    def kernel(x, *omega):
        wide = np.promote_types(x.dtype, np.float32)
        with np.errstate(all="ignore"):
            return np.asarray(f(x.astype(wide), *(w.astype(wide) for w in omega))).astype(x.dtype)

    return kernel


def squares(x):
    return (x[..., :, None] * x[..., None, :]).reshape(*x.shape[:-1], x.shape[-1] ** 2)


def taylor(x, first=None, second=None):
    d = x.dtype.type(x.shape[-1])
    first = d**0.25 if first is None else first(d)
    second = np.sqrt(2 * d) if second is None else second(d)
    return np.concatenate([np.ones_like(x[..., :1]), x / first, squares(x) / second], axis=-1)


def powers(x, degree):
    one = np.concatenate([np.ones_like(x[..., :1]), x], axis=-1)
    found = one
    for _ in range(degree - 1):
        width = found.shape[-1] * one.shape[-1]
        found = (found[..., :, None] * one[..., None, :]).reshape(*x.shape[:-1], width)
    return found


def dpfp(x, nu, step=1, keep=lambda a: np.maximum(a, 0)):
    a = keep(np.concatenate([x, -x], axis=-1))
    return np.concatenate([a * np.roll(a, step * j, axis=-1) for j in range(1, nu + 1)], axis=-1)


RIGHT = {
    "identity": lambda x: x.copy(),
    "elu+1": lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))),
    "relu": lambda x: x * (x > 0),
    "relu2": lambda x: np.where(x > 0, x * x, 0),
    "exp": np.exp,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "taylor2": taylor,
    "polynomial(1)": lambda x: powers(x, 1),
    "polynomial(3)": lambda x: powers(x, 3),
    "dpfp(1)": lambda x: dpfp(x, 1),
    "dpfp(2)": lambda x: dpfp(x, 2),
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_pass(name, dtype):
    report = crosscheck(widely(RIGHT[name]), FeatureMap(phi=name, dtype=dtype))
    assert report.verdict in ("EXACT", "WITHIN BOUND")
    assert report.verdict == "EXACT" or name not in ("identity", "relu")


def test_every_map_of_the_library_has_a_kernel_here():
    assert {*FEATURE_MAPS} <= {*RIGHT}
    for name in RIGHT.keys() - {"silu"}:
        spec = FeatureMap(phi=name)
        for case in spec.plan():
            x = spec.inputs(case, "float64")
            found = spec.compute(x, Float("numpy", "float64"))["o"]
            with np.errstate(over="ignore"):
                assert np.allclose(found, feature_map(name)(x["x"]), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_right_kernels_of_torch_pass(dtype):
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    maps = {
        "elu+1": lambda x: functional.elu(x) + 1,
        "relu": functional.relu,
        "relu2": lambda x: functional.relu(x).square(),
        "exp": torch.exp,
        "silu": functional.silu,
    }
    for name, f in maps.items():
        spec = FeatureMap(phi=name, dtype=dtype, sums=dtype, library="torch")
        assert crosscheck(f, spec).verdict in ("EXACT", "WITHIN BOUND"), name

    def positive(x, omega):
        wide = torch.promote_types(x.dtype, torch.float32)
        y = x.to(wide) * x.shape[-1] ** -0.25
        exponent = torch.einsum("bhtd,rd->bhtr", y, omega.to(wide)) - (y**2).sum(-1, keepdim=True) / 2
        return (torch.exp(exponent) * omega.shape[0] ** -0.5).to(x.dtype)

    spec = FeatureMap(call="x, omega -> o", phi="positive", scale="d", dtype=dtype, library="torch")
    assert crosscheck(positive, spec).verdict == "WITHIN BOUND"


def random_features(
    x, omega, scale=0.25, half=0.5, top=lambda shown: 0, root=lambda r, d: r**-0.5, eps=0.0, after=0.0, sign=1
):
    y = x * x.dtype.type(x.shape[-1] ** -scale)
    shown = sign * y @ omega.T
    e = np.exp(shown - half * (y * y).sum(axis=-1, keepdims=True).astype(x.dtype) - top(shown))
    return (e + x.dtype.type(eps)) * x.dtype.type(root(omega.shape[0], x.shape[-1])) + x.dtype.type(after)


def of_token(shown):
    return shown.max(axis=-1, keepdims=True)


def of_all(shown):
    return shown.max(axis=(-1, -2), keepdims=True, initial=-np.inf)


def positive(**more):
    return widely(lambda x, omega: random_features(x, omega, **more))


RANDOM = {
    "plain": (positive(), {"scale": "d"}),
    "unscaled": (positive(scale=0), {}),
    "a number as scale": (widely(lambda x, omega: random_features(x / 2, omega, scale=0)), {"scale": "0.5"}),
    "stabilised": (positive(top=of_token), {"scale": "d", "stabiliser": "token"}),
    "with ε": (positive(top=of_token, eps=1e-4), {"scale": "d", "stabiliser": "token", "eps": 1e-4}),
    "ω transposed": (widely(lambda x, omega: random_features(x, omega.T)), {"scale": "d", "omega_axes": "DK"}),
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("name", RANDOM)
def test_right_random_features_pass(name, dtype):
    kernel, conventions = RANDOM[name]
    spec = FeatureMap(call="x, omega -> o", phi="positive", dtype=dtype, **conventions)
    assert crosscheck(kernel, spec).verdict in ("EXACT", "WITHIN BOUND")


def test_random_features_are_those_of_the_library():
    spec = FeatureMap(call="x, omega -> o", phi="positive")
    for case in spec.plan():
        x = spec.inputs(case, "float64")
        want = RandomFeatures("positive", x["omega"])(x["x"])
        assert np.allclose(spec.compute(x, Float("numpy", "float64"))["o"], want, rtol=1e-10, atol=1e-300)


# Mistakes: the map that is meant, and what is computed

WRONG = {
    "the 1 is missing: elu(x)": ("elu+1", lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
    "exp is missing: max(x, 0) + 1": ("elu+1", lambda x: np.maximum(x, 0) + 1),
    "exp is of all numbers: max(x, 0) + exp(x)": ("elu+1", lambda x: np.maximum(x, 0) + np.exp(x)),
    "--phi relu, where elu+1 was stated": ("elu+1", RIGHT["relu"]),
    "--phi exp, where elu+1 was stated": ("elu+1", np.exp),
    "--phi silu, where elu+1 was stated": ("elu+1", RIGHT["silu"]),
    "--phi identity, where relu was stated": ("relu", RIGHT["identity"]),
    "the sign is kept out: |x|": ("relu", np.abs),
    "--phi relu, where relu2 was stated": ("relu2", RIGHT["relu"]),
    "all numbers are squared, not the positive ones alone": ("relu2", np.square),
    "the largest entry of a token is subtracted before exp": ("exp", lambda x: np.exp(x - of_token(x))),
    "it is a softmax over the entries": (
        "exp",
        lambda x: np.exp(x - of_token(x)) / np.exp(x - of_token(x)).sum(axis=-1, keepdims=True),
    ),
    "x is missing: 1/(1 + exp(−x))": ("silu", lambda x: 1 / (1 + np.exp(-x))),
    "the sign in exp is wrong: x/(1 + exp(x))": ("silu", lambda x: x / (1 + np.exp(x))),
    "it is x/(1 + exp(−1.702 x)), which stands for gelu": (
        "silu",
        lambda x: x / (1 + np.exp(-x.dtype.type(1.702) * x)),
    ),
    "√2 is missing: vec(xxᵀ)/√d": ("taylor2", lambda x: taylor(x, None, np.sqrt)),
    "d is missing: [1, x, vec(xxᵀ)/√2]": ("taylor2", lambda x: taylor(x, lambda d: 1, lambda d: np.sqrt(2 + 0 * d))),
    "the scale is √d, not d^¼: [1, x/√d, vec(xxᵀ)/(d√2)]": (
        "taylor2",
        lambda x: taylor(x, np.sqrt, lambda d: d * np.sqrt(2 + 0 * d)),
    ),
    "entries are paired with later ones, not with earlier ones": ("dpfp(2)", lambda x: dpfp(x, 2, step=-1)),
    "relu is missing, so that features may be negative": ("dpfp(2)", lambda x: dpfp(x, 2, keep=lambda a: a)),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_found_and_named(name, dtype):
    phi, kernel = WRONG[name]
    report = crosscheck(widely(kernel), FeatureMap(phi=phi, dtype=dtype))
    assert report.verdict == "WRONG" and names(report) == {name}


WRONG_RANDOM = {
    "|x|²/2 is missing": positive(half=0),
    "|x|² is not halved": positive(half=1),
    "|x|²/2 is added, not subtracted": positive(half=-0.5),
    "|x|²/2 is of x without its scale": widely(
        lambda x, omega: (
            np.exp(x * x.dtype.type(x.shape[-1] ** -0.25) @ omega.T - (x * x).sum(axis=-1, keepdims=True) / 2)
            / np.sqrt(x.dtype.type(omega.shape[0]))
        )
    ),
    "|x|/2 instead of |x|²/2": widely(
        lambda x, omega: (
            np.exp(
                x / x.shape[-1] ** 0.25 @ omega.T - np.linalg.norm(x / x.shape[-1] ** 0.25, axis=-1, keepdims=True) / 2
            )
            / np.sqrt(x.dtype.type(omega.shape[0]))
        )
    ),
    "ω has the other sign": positive(sign=-1),
    "--scale 1, where d was stated": positive(scale=0),
    "the scale is d^(−1/2), not d^(−1/4)": positive(scale=0.5),
    "the largest ω·x of all tokens is subtracted, so later ones change earlier ones": positive(top=of_all),
    "--stabiliser token, where none was stated": positive(top=of_token),
    "1/√r is missing": positive(root=lambda r, d: 1),
    "it is divided by r, not by √r": positive(root=lambda r, d: 1 / r),
    "it is divided by √d, not by √r": positive(root=lambda r, d: d**-0.5),
    "--eps 0.0001, where 0 was stated": positive(eps=1e-4),
}


@pytest.mark.parametrize("name", WRONG_RANDOM)
def test_mistakes_of_random_features_are_named(name):
    spec = FeatureMap(call="x, omega -> o", phi="positive", scale="d", dtype="float32")
    report = crosscheck(WRONG_RANDOM[name], spec)
    assert report.verdict == "WRONG" and names(report) == {name}


def test_mistakes_of_epsilon_are_named():
    spec = FeatureMap(call="x, omega -> o", phi="positive", scale="d", eps=1e-4, dtype="float32")
    assert names(crosscheck(positive(after=1e-4), spec)) == {"ε is added after the division by √r"}
    assert names(crosscheck(positive(), spec)) == {"--eps 0, where 0.0001 was stated"}


def test_every_mistake_of_the_catalogue_is_planted():
    all_families()
    planted = {*WRONG, *WRONG_RANDOM, "ε is added after the division by √r"}
    known = {m.said for m in MISTAKES[FeatureMap]}
    assert known <= planted and len(known) > 25


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"phi": "elu"}, "feature_map: did you mean 'elu+1'?"),
        ({"phi": "positive"}, "FeatureMap: `omega` must be given for the map positive alone"),
        ({"call": "x, omega -> o"}, "FeatureMap: `omega` must be given for the map positive alone"),
        (
            {"phi": "positive", "call": "x, omega -> o", "scale": "q"},
            "FeatureMap: `scale` must be 'd' or a positive number",
        ),
        (
            {"phi": "positive", "call": "x, omega -> o", "omega_axes": "RD"},
            "FeatureMap: `omega_axes` must have each of the",
        ),
    ],
)
def test_refusals(wrong, words):
    with pytest.raises(ValueError) as refusal:
        FeatureMap(**wrong)
    assert str(refusal.value).startswith(words)
