"""
Recorded traces of Kafka's log: every step answered, every answer and every file the same.

What "the same" means is in ``trace.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TRACES = sorted((Path(__file__).resolve().parent / "traces").glob("*.jsonl.gz"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.removesuffix(".jsonl.gz"))
def test_trace_replays_without_a_difference(path):
    """Answers, states, errors and files are Kafka's, step by step."""
    import trace

    import replay

    recorded = trace.read(path)

    assert [] == [str(difference) for difference in replay.differences_of(recorded)]


def test_an_unknown_operation_is_a_difference(tmp_path):
    """A step that the engine cannot answer is never taken for an equal one."""
    import trace

    from oracle_engine import LogstoreEngine

    unknown = trace.Trace({}, [({"op": "no_such_operation"}, {"result": None, "state": None})])

    differences = list(trace.replay(unknown, LogstoreEngine(), tmp_path))

    assert [".error"] == [difference.where for difference in differences]
