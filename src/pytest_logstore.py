"""
The pytest plugin of logstore: fixtures for programs that use it.

Found by its entry point. It imports nothing of logstore before a test asks for a fixture, so that a
run without such tests pays nothing for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from logstore import Log, LogStore
    from logstore.clock import ManualClock

MARKER = (
    "logstore(**options): options of logstore.open for the fixture logstore_log, or of"
    " logstore.open_store for logstore_store, e.g. config={…}"
)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, for --strict-markers."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def logstore_clock() -> ManualClock:
    """A clock that moves only when the test says so; logs and stores go by it."""
    from logstore.testing import ManualClock  # noqa: PLC0415

    return ManualClock()


@pytest.fixture
def logstore_log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    """
    A new log in a temporary directory.

    After the test every invariant of it is checked, and it is closed. Settings come from a marker:
    ``@pytest.mark.logstore(config={"segment.bytes": 1000})``. If the test also asks for
    ``logstore_clock``, the log goes by that clock.
    """
    from logstore.testing import open_log  # noqa: PLC0415

    directory = os.fspath(tmp_path / "logstore" / "log-0")
    log = open_log(directory, **_options(request))
    try:
        yield log
        if not log.is_closed:
            broken = list(log.check())
            assert broken == [], "\n".join(broken)
    finally:
        log.close()


@pytest.fixture
def logstore_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogStore]:
    """
    A new store in a temporary directory.

    After the test every invariant of it is checked, errors of its background work fail the test,
    and it is closed. Settings and clock are given as for ``logstore_log``.
    """
    from logstore.testing import open_log_store  # noqa: PLC0415

    store = open_log_store(tmp_path / "logstore" / "store", **_options(request))
    try:
        yield store
        if not store.is_closed:
            broken = list(store.check())
            assert broken == [], "\n".join(broken)
        errors = [str(report) for report in store.errors]
        assert errors == [], "\n".join(errors)
    finally:
        store.close()


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return what the test's markers and its clock say."""
    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("logstore"))):
        options.update(marker.kwargs)
    if "logstore_clock" in request.fixturenames:
        options["clock"] = request.getfixturevalue("logstore_clock")
    return options


@pytest.fixture(name="assert_records")
def _assert_records() -> Callable[..., None]:
    """``assert_records(log, expected)``: see logstore.testing.assert_records."""
    from logstore.testing import assert_records  # noqa: PLC0415

    return assert_records
