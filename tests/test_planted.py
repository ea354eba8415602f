"""A check that was never seen to fail does not count.

Every planted bug is rejected by a check that accepts the right forms.
"""

from __future__ import annotations

import functools

import numpy as np
import planted
import pytest
from planted import BUGS, CHECKS

import refimpl as ri


def chunked_by_2(*args, **options):
    return ri.linear_attention_chunked(*args, chunk=2, **options)


PAIRS = [(name, check) for name, bug in BUGS.items() for check in bug.rejected_by]
LINEAR = (
    ri.linear_attention,
    ri.linear_attention_quadratic,
    ri.linear_attention_recurrent,
    chunked_by_2,
    planted.unedited,
)
SOFTMAX = (ri.softmax_attention, ri.softmax_attention_shifted)


verdict = functools.cache(lambda check, kernel: CHECKS[check](kernel))


@pytest.mark.parametrize(("name", "check"), PAIRS, ids=[f"{name}-rejected_by-{check}" for name, check in PAIRS])
def test_planted_bug(name, check):
    bug = BUGS[name]
    assert verdict(check, bug.right) is None
    assert verdict(check, bug.kernel) is not None, f"{check} accepts {name} ({bug.catches})\n{planted.table()}"


@pytest.mark.parametrize("check", CHECKS)
def test_check_accepts_every_right_form(check):
    for kernel in SOFTMAX if "softmax" in check else LINEAR:
        assert verdict(check, kernel) is None, f"{check} rejects {kernel.__name__}: {verdict(check, kernel)}"


def test_every_check_rejects_something_and_every_bug_says_what_it_catches():
    assert {check for _, check in PAIRS} == set(CHECKS)
    assert all(bug.catches and bug.rejected_by for bug in BUGS.values())
    assert len(BUGS) >= 20


def test_epsilon_passes_allclose():
    """Why there are exact checks.

    A hidden ε of 1e-6 is invisible to the usual comparison, in float64, at unit scale.
    """
    q, k, v = (abs(ri.Float().random(shape, i)) for i, shape in enumerate([(40, 4), (40, 4), (40, 3)]))
    right, wrong = (f(q, k, v)[0] for f in (ri.linear_attention, BUGS["epsilon_in_denominator"].kernel))
    assert np.allclose(right, wrong)
    assert CHECKS["exact_in_Q"](BUGS["epsilon_in_denominator"].kernel) == "plain: o differs"


def test_a_scale_cancels_where_attention_is_normalised():
    x, options = next((x, options) for name, x, options in planted.problems(ri.QQ) if name == "state")
    right, wrong = (f(*x, **options)[0] for f in (ri.linear_attention, BUGS["scale_slipped_in"].kernel))
    assert ri.QQ.equal(right, wrong)
