import os
import signal

if "PYTEST_XDIST_WORKER" in os.environ:  # one process a core: BLAS in each has one thread
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

from tests.helpers import raises, skips

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


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """A process of pytest-xdist has ended: what refused something there."""
    raises.seen.update(map(tuple, getattr(node, "workeroutput", {}).get("raises", ())))


def pytest_sessionfinish(session):
    """With every test and library, each line that may refuse something must have done so."""
    config, option = session.config, session.config.option
    if hasattr(config, "workeroutput"):
        config.workeroutput["raises"] = sorted(raises.seen)
        return
    every = config.args_source is config.ArgsSource.TESTPATHS and not (option.keyword or option.markexpr or option.lf)
    if os.environ.get("REFIMPL_NO_SKIP") and every and (found := raises.untested()):
        print("", *found, sep="\n")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    """The tests that did not run, by reason: a new user has not every library."""
    found = [report.longrepr[-1] for report in terminalreporter.stats.get("skipped", ()) if report.longrepr]
    if found:
        terminalreporter.section("tests that did not run")
        terminalreporter.write("\n".join([*skips.summary(found), ""]))


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
