"""What tests of crashes have in common."""

from __future__ import annotations

import crash_workload as workload
import pytest


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A directory for many small logs or stores, in memory if that can be."""
    with workload.directory_for_crashes(tmp_path_factory) as path:
        yield path
