"""
The pytest plugin of logstore: fixtures for programs that use it.

Found by its entry point. It imports nothing of logstore before a test asks for a fixture, so that a
run without such tests pays nothing for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from logstore import Log
    from logstore.clock import ManualClock

MARKER = (
    "logstore(**options): options of logstore.open for the fixture logstore_log, e.g. config={…}"
)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, for --strict-markers."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def logstore_clock() -> ManualClock:
    """A clock that moves only when the test says so; ``logstore_log`` goes by it."""
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

    options = {}
    for marker in reversed(list(request.node.iter_markers("logstore"))):
        options.update(marker.kwargs)
    if "logstore_clock" in request.fixturenames:
        options["clock"] = request.getfixturevalue("logstore_clock")
    directory = os.fspath(tmp_path / "logstore" / "log-0")
    log = open_log(directory, **options)
    try:
        yield log
        if not log.is_closed:
            broken = list(log.check())
            assert broken == []
    finally:
        log.close()


@pytest.fixture(name="assert_records")
def _assert_records() -> Callable[..., None]:
    """``assert_records(log, expected)``: see logstore.testing.assert_records."""
    from logstore.testing import assert_records  # noqa: PLC0415

    return assert_records
