"""
Settings of the whole suite.

Environment:
    LOGSTORE_HYPOTHESIS: ``commit`` (default), ``small``, which tries less, or ``nightly``, which
        draws a hundred times as much and leaves no crash or failure out (support/sampling.py).
    LOGSTORE_NO_SKIPS: With 1, a test skipped for want of a download, of Java or of strace fails the
        run.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys

import pytest
from hypothesis import HealthCheck, settings
from sampling import IS_CI, IS_NIGHTLY, PROFILE, examples

# Deadlines measure the machine, not the code: sanitizers and a busy core would trip them.
settings.register_profile("commit", deadline=None, print_blob=True, derandomize=IS_CI)
settings.register_profile(
    "small",
    deadline=None,
    print_blob=True,
    derandomize=IS_CI,
    max_examples=examples(100),
)
settings.register_profile(
    "nightly",
    deadline=None,
    print_blob=True,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(PROFILE)


# A test that tries everything takes longer than pyproject.toml's timeout.
NIGHTLY_SECONDS_MAX = 4 * 3600


def pytest_collection_modifyitems(items):
    """Skip what only Linux does where this is not Linux; give the nightly run time."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            # Its own warnings are of its sockets and of what it imports.
            item.add_marker(pytest.mark.filterwarnings("ignore"))
    if IS_NIGHTLY:
        for item in items:
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(NIGHTLY_SECONDS_MAX))
    if sys.platform != "linux":
        for item in items:
            if item.get_closest_marker("linux") is not None:
                item.add_marker(pytest.mark.skip(reason="needs Linux"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """A session of Apache Spark with the format registered: one for all tests of a process."""
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("needs the extra [spark-local]")
    from spark_session import local_spark

    from logstore.errors import MissingExtraError

    session = local_spark(tmp_path_factory.mktemp("spark"))
    try:
        entered = session.__enter__()
    except MissingExtraError as error:
        pytest.skip(str(error))
    yield entered
    session.__exit__(None, None, None)


# How a test says that something has to be fetched or installed first.
MISSING = re.compile(r"download|fetch|java|jdk|jars|maven|oracle|strace|ptrace", re.IGNORECASE)


def _forbidden_skips(config):
    """Return a line for each test or module skipped for want of something that CI has to have."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("LOGSTORE_NO_SKIPS") != "1" or terminal is None:
        return []
    skipped = [
        (report.nodeid, report.longrepr[2].removeprefix("Skipped: "))
        for report in terminal.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    ]
    return [f"{test}: {reason}" for test, reason in skipped if MISSING.search(reason)]


def pytest_sessionfinish(session):
    """Fail a run that promised not to skip."""
    if _forbidden_skips(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    """Say which skips failed the run."""
    lines = _forbidden_skips(config)
    if lines:
        terminalreporter.section("skipped, which LOGSTORE_NO_SKIPS forbids", red=True)
        for line in lines:
            terminalreporter.line(line)
