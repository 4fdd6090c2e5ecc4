"""What the comparisons with Kafka share: module path and the golden set."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

# The files here are a program as well (replay.py): they import each other by their plain names.
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session", name="golden")
def _golden(pytestconfig):
    """The directory of the golden set, unpacked once; LOGSTORE_GOLDEN names one that is there."""
    import golden_set

    return golden_set.directory(Path(pytestconfig.cache.mkdir("golden")))
