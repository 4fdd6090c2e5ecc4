"""Memory that contests keep from being given back."""

from __future__ import annotations

import os
import sys

import pytest

from benchmarks.kept_memory import AT_ONCE, kept_memory
from benchmarks.memory import resident
from benchmarks.sizes import MIB

pytestmark = pytest.mark.repository
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says what is in memory")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="ASan has memory of its own")
def test_a_page_of_each_mebibyte_stays():
    """And the rest is free."""
    before = resident("VmRSS")
    with kept_memory(2 * AT_ONCE):
        kept = resident("VmRSS") - before
    assert 2 * AT_ONCE // MIB * PAGE_BYTES <= kept + MIB
    assert kept < AT_ONCE // 4


def test_a_little_is_left_alone():
    """As in a run at smoke size."""
    with kept_memory(AT_ONCE - 1):
        pass
