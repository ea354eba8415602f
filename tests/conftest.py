import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.helpers import raises

raises.record()

# Under nohup, or after &, this process starts with signals ignored, and its children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Exact arithmetic is slow per example and its speed varies: no deadline. Derandomised: CI runs what
# a user runs.
# HYPOTHESIS_PROFILE chooses: "ci" for the run with all peers, "thorough" for a night.
settings.register_profile(
    "default", deadline=None, max_examples=6, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", parent=settings.get_profile("default"), max_examples=25)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=300, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_modifyitems(config, items):
    """Tests marked slow are for CI: README's command takes three minutes without them."""
    if os.environ.get("HYPOTHESIS_PROFILE", "default") == "default":
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow; HYPOTHESIS_PROFILE=ci runs it"))
    # tests of what the whole session has done: last, and only if there is a whole session
    last = [item for item in items if item.get_closest_marker("whole_session")]
    items[:] = [item for item in items if item not in last]
    chosen = config.option.keyword or config.option.markexpr or any("::" in arg for arg in config.args)
    # Without every library, tests are skipped: CI's second run has them all.
    complete = os.environ.get("REFIMPL_NO_SKIP")
    if complete and not chosen and {item.path for item in items} >= set(Path(__file__).parent.rglob("test_*.py")):
        items += last
    else:
        config.hook.pytest_deselected(items=last)


def _no_skip(report):
    """With REFIMPL_NO_SKIP set, a skipped test is a failed one.

    CI has every library, and real weights if REFIMPL_MODELS names a folder.
    """
    elsewhere = "REFIMPL_MODELS names no folder" in str(report.longrepr) and not os.environ.get("REFIMPL_MODELS")
    if os.environ.get("REFIMPL_NO_SKIP") and report.skipped and not hasattr(report, "wasxfail") and not elsewhere:
        report.outcome, report.longrepr = (
            "failed",
            f"REFIMPL_NO_SKIP: {report.nodeid} was skipped: {report.longrepr[-1]}",
        )
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return _no_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return _no_skip((yield))
