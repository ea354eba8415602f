"""The core is written against the array API alone: it runs on other libraries and keeps their dtype
and device.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refimpl as ri
from refimpl import Float
from refimpl.systems.floats import dtype_name
from tests.helpers.backends import BACKENDS, kept
from tests.helpers.model_strategies import in_numbers, probing
from tests.helpers.strategies import problems

FORMS = [ri.linear_attention, ri.linear_attention_quadratic, ri.linear_attention_recurrent, ri.linear_attention_chunked]
backends = pytest.mark.parametrize("backend", BACKENDS)


@backends
@given(data=st.data())
def test_exact_probes_on_every_backend(backend, data):
    """The same numbers, with ==, in every library and dtype; dtype and device do not change."""
    system, form = BACKENDS[backend](), data.draw(st.sampled_from(FORMS))
    if "jax" in backend:  # compiles every operation for every shape: one shape, many options
        n, r, m, heads = 5, 4, 3, 2
    else:
        n, r, m, heads = (data.draw(st.integers(*ends)) for ends in ((0, 5), (1, 5), (1, 3), (1, 2)))
    layout = data.draw(st.sampled_from([None, "half", "interleaved"]))
    probe = ri.exact_probe(
        system,
        n=n,
        r=r,
        m=m,
        heads=heads,
        seed=data.draw(st.integers(0, 99)),
        normalise=data.draw(st.booleans()),
        mask=data.draw(st.sampled_from(["causal", "full"]) | st.integers(0, n)),
        layout=layout,
    )
    o, end = form(probe.q, probe.k, probe.v, **probe.options)
    assert probe.mismatch(o, end) is None
    assert kept(system, o) and kept(system, end.S) and kept(system, end.z)


@backends
@pytest.mark.parametrize("phi", ["elu+1", "taylor2"])
def test_floats_within_bound_on_every_backend(backend, phi):
    system = BACKENDS[backend]()
    q, k, v = (system.random((2, 7, w), i) for i, w in enumerate((4, 4, 3)))
    rope = ri.Rope(ri.angle_table(q, 4), "interleaved")
    exact, bound = ri.exact_with_bound(q, k, v, ri.Kernel(phi, rope=rope), u=ri.unit_roundoff(system.dtype))
    for form in FORMS:
        o, _ = form(q, k, v, ri.Kernel(phi, rope=rope))
        judgement = ri.judge(o, exact, bound)
        assert kept(system, o)
        assert judgement.verdict == "WITHIN BOUND", judgement


@backends
def test_every_room_runs_on_every_backend(backend):
    """Feature maps, RoPE, states, softmax and its cache: shapes, dtype and device."""
    system = BACKENDS[backend]()
    q, k, v = (system.random((2, 5, w), i) for i, w in enumerate((4, 4, 3)))
    for name in ri.FEATURE_MAPS:
        assert kept(system, ri.feature_map(name)(q))
    W, b = system.random((3, 4), 5), system.random((3,), 6)
    for phi in (
        ri.feature_maps.polynomial(2),
        ri.feature_maps.dpfp(2),
        ri.feature_maps.hedgehog(W, b),
        *ri.feature_maps.taylor2_pair(0.5),
    ):
        assert kept(system, phi(q))
    rope = ri.Rope(ri.angle_table(system, 4), "half", "before")
    state = ri.state.absorb(ri.state.no_text(v, 4, 3, lead=(2,)), k, v, ri.Kernel(rope=rope))
    for s in (
        ri.state.shift(state, -5, ri.Kernel(ri.feature_maps.identity, rope=rope)),
        ri.state.scale(state, 2),
        ri.state.join(state, state, ri.Kernel(rope=rope), origin=state.position),
    ):
        assert kept(system, s.S) and kept(system, s.z)
    keep = system.xp.arange(5, device=system.device) > 0
    for form in (ri.softmax_attention, ri.softmax_attention_shifted):
        _, cache = form(q, k, v, rope=rope, padding=keep)
        o, cache = form(q, k, v, rope=rope, cache=cache)
        assert kept(system, o) and cache.k.shape == (2, 10, 4)


@backends
@pytest.mark.parametrize("layout", [None, "half", "interleaved"])
def test_conversion_of_exact_probes_on_every_backend(backend, layout):
    """The converted model, with ==, in every library and dtype."""
    system, M = BACKENDS[backend](), 3
    probe = ri.exact_probe(system, n=5, r=4, m=3, seed=1, layout=layout)
    model, x, want = probing(system, probe)

    def run(weights, S, z, prompt, text):
        converted = ri.convert(ri.Model(model.config, weights, (ri.State(S, z, model.position),)), prompt)
        return converted(text), converted.biases[0].S, converted.biases[0].z

    if "jax" in backend:  # would compile every operation by itself
        run = pytest.importorskip("jax").jit(run)
    got, S, z = run(model.weights, model.biases[0].S, model.biases[0].z, system.convert(x[:M]), system.convert(x[M:]))
    assert np.array_equal(ri.floats(got), want[M:])
    assert kept(system, got) and kept(system, S) and kept(system, z)


@pytest.mark.parametrize(
    "backend", [name for name in BACKENDS if "jax" not in name]
)  # which would compile every operation
def test_models_on_every_backend(backend):
    """Tokens, norms, MLP, RoPE and a batch of prompts: dtype and device stay; converted and
    prompted are within the errors of both.
    """
    system = BACKENDS[backend]()
    config = ri.Config(
        1,
        4,
        heads=2,
        groups=1,
        d=2,
        m=2,
        hidden=3,
        gated=True,
        biased=True,
        vocabulary=5,
        tied=False,
        rope=ri.Rotary(width=2),
    )
    model = ri.random_model(system, config, seed=3)
    prompt, text = np.array([[3, 1, 4], [1, 0, 2]]), np.array([2, 3])

    def sides(model):
        whole = np.concatenate([prompt, np.broadcast_to(text, (2, 2))], axis=-1)
        return model(whole, form=ri.linear_attention)[:, 3:, :], ri.convert(model, prompt, chunk=2)(text)

    prompted, converted = sides(model)
    assert kept(system, prompted) and kept(system, converted)
    analysis = ri.RunningError(dtype_name(system.dtype))
    errors = sides(in_numbers(model, analysis))
    found = ri.judge(converted, prompted, sum(analysis.error(e) for e in errors))
    assert found.verdict in ("WITHIN BOUND", "EXACT") or (found.verdict == "VACUOUS" and "16" in backend), found


def test_torch_meta_models_have_shapes_without_values():
    torch = pytest.importorskip("torch")
    config = ri.Config(2, 4, heads=2, d=2, m=3, hidden=5, rope=ri.Rotary(width=2, base=None))
    model = ri.Model(config, {name: torch.zeros(shape, device="meta") for name, shape in config.shapes.items()})
    converted = ri.convert(model, torch.zeros((2, 7, 4), device="meta"))
    assert converted.biases[1].S.shape == (2, 2, 2, 3) and converted(torch.zeros((2, 3, 4), device="meta")).shape == (
        2,
        3,
        4,
    )


@given(problem=problems(max_n=4))
def test_torch_meta_has_shapes_without_values(problem):
    torch = pytest.importorskip("torch")
    shapes = [
        (*problem.lead_q, problem.n, problem.d),
        (*problem.lead_k, problem.n, problem.d),
        (*problem.lead_k, problem.n, problem.m),
    ]
    arrays = [torch.zeros(shape, device="meta") for shape in shapes]
    for form in FORMS:
        o, end = form(*arrays, ri.Kernel(normalise=problem.normalise), mask=problem.mask)
        want, state = form(
            *(np.ones(shape) for shape in shapes), ri.Kernel(normalise=problem.normalise), mask=problem.mask
        )
        assert o.device.type == "meta" and tuple(o.shape) == want.shape and tuple(end.S.shape) == state.S.shape


def test_jax_traces_the_core():
    jax = pytest.importorskip("jax")
    system = Float("jax", "float32")
    q, k, v = (system.random((2, 5, w), i) for i, w in enumerate((4, 4, 3)))
    q, k = ri.feature_maps.elu_plus_one(q), ri.feature_maps.elu_plus_one(k)
    traced = jax.jit(lambda q, k, v: ri.linear_attention_chunked(q, k, v, chunk=2)[0])(q, k, v)
    exact, bound = ri.exact_with_bound(q, k, v, u=ri.unit_roundoff("float32"))
    assert ri.judge(traced, exact, bound).verdict == "WITHIN BOUND"


def test_jax_traces_a_conversion():
    jax = pytest.importorskip("jax")
    system, config = Float("jax", "float32"), ri.Config(1, 3, heads=2, d=2, m=1, hidden=2, rope=ri.Rotary(width=2))
    weights, prompt, text = (
        ri.random_model(Float(), config, seed=0).weights,
        Float().random((3, 3), 1),
        Float().random((2, 3), 2),
    )

    def run(weights, prompt, text):
        return ri.convert(ri.Model(config, weights), prompt)(text)

    arguments = {name: system.convert(w) for name, w in weights.items()}, system.convert(prompt), system.convert(text)
    traced = jax.jit(run)(*arguments)
    analysis = ri.RunningError("float32")
    bounded = run(*jax.tree.map(analysis.convert, arguments))
    found = ri.judge(traced, ri.floats(bounded), 2 * analysis.error(bounded))
    assert found.verdict == "WITHIN BOUND" and not found.vacuous, found


def test_torch_gradients_flow():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.rand((2, 4, 3), dtype=torch.float64, requires_grad=True) for _ in range(3))
    assert torch.autograd.gradcheck(
        lambda *x: ri.linear_attention_chunked(*x, ri.Kernel("elu+1"), chunk=2)[0], (q, k, v)
    )


def test_torch_gradients_flow_through_a_conversion():
    torch = pytest.importorskip("torch")
    config = ri.Config(2, 3, heads=2, d=2, m=2, hidden=3, rope=ri.Rotary(width=2))
    model = ri.random_model(Float("torch", "float64"), config, seed=0)
    prompt, text = (torch.rand((n, 3), dtype=torch.float64, requires_grad=True) for n in (3, 2))
    assert torch.autograd.gradcheck(lambda prompt, text: ri.convert(model, prompt)(text), (prompt, text))
