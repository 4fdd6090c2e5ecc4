"""Every contest runs at smoke size and checks its own results: benchmarks do not rot."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("pyarrow")

from benchmarks.contests import CONTESTS
from benchmarks.harness import judge, run_contest, table
from benchmarks.memory import measured
from benchmarks.sizes import MIB, SMOKE

pytestmark = pytest.mark.repository
IS_NIGHTLY = os.environ.get("LOGSTORE_HYPOTHESIS") == "nightly"


@pytest.mark.parametrize("name", CONTESTS)
def test_contest_runs_at_smoke_size(benchmark, tmp_path, name):
    """One round of each, and a line for each of its targets; figures of this size mean nothing."""
    if name == "peers: Kafka" and not IS_NIGHTLY:
        pytest.skip("a broker takes ten seconds to start: LOGSTORE_HYPOTHESIS=nightly")
    contest = CONTESTS[name](tmp_path, SMOKE)
    outcome = benchmark.pedantic(run_contest, (contest,), {"rounds": 1}, rounds=1, iterations=1)
    lines = judge(outcome)
    assert len(contest.targets) == len(lines)
    assert all(line.reached.median > 0 for line in lines)
    assert len(lines) + 2 == len(table(lines).splitlines())


def test_memory_is_found(tmp_path):
    """What a process holds at its peak is what the memory contest says, to a megabyte."""
    for size in (8 * MIB, 40 * MIB):
        assert size <= measured("hold", tmp_path, size) < size + MIB
