"""
Tests of the source and the sink of Apache Spark.

What needs no Spark is tested without one, on the same readers and writers.
"""

from __future__ import annotations

import pytest

from logstore.testing import open_log_store


@pytest.fixture
def store(tmp_path):
    """A store whose invariants are checked after the test."""
    with open_log_store(tmp_path / "store") as store:
        yield store
        if not store.is_closed:
            assert [] == list(store.check())
            assert [] == [str(report) for report in store.errors]
