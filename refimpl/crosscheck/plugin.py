"""A plugin of pytest: a kernel is a test, with a case of its plan for each run.

    @pytest.mark.crosscheck(LinearAttention(phi="elu+1", dtype="float32"), mykernel)
    def test_mykernel(crosscheck):
        crosscheck()

The fixture `crosscheck` asks the kernel about one case, and fails with what is wrong. Without the
marker it takes a kernel and a specification, and makes the whole check: crosscheck(mykernel, spec).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

NAME = "crosscheck"


def pytest_configure(config: pytest.Config) -> None:
    line = f"{NAME}(spec, kernel, full=False): the test runs once for each case of the plan"
    config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker(NAME)
    if marker is not None and NAME in metafunc.fixturenames:
        spec, _, full = arguments(*marker.args, **marker.kwargs)
        pairs = [(dtype, case) for dtype in spec.dtypes for case in spec.plan(full=full)]
        metafunc.parametrize(NAME, pairs, indirect=True, ids=[f"{dtype} {case}" for dtype, case in pairs])


def arguments(spec: Any, kernel: Callable[..., Any], full: bool = False) -> tuple[Any, Callable[..., Any], bool]:
    return spec, kernel, full


@pytest.fixture(name=NAME)
def fixture(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Ask a kernel about a case of the marker, or check the kernel that is given."""
    from .check import attempt
    from .check import crosscheck as check_all
    from .subject import Function

    marker = request.node.get_closest_marker(NAME)

    def one() -> None:
        spec, kernel, _ = arguments(*marker.args, **marker.kwargs)
        dtype, case = request.param
        trial = attempt(Function(kernel), spec, dtype, case)
        if wrong := [f"{j.result}: {j.verdict} {j.words}".rstrip() for j in trial.wrong]:
            pytest.fail(f"{case}, {dtype}: {'; '.join(wrong)} ({case.why})", pytrace=False)

    def whole(kernel: Callable[..., Any], spec: Any, **options: Any) -> None:
        report = check_all(kernel, spec, **options)
        if report.verdict not in ("EXACT", "WITHIN BOUND"):
            pytest.fail(str(report), pytrace=False)

    return one if marker is not None else whole
