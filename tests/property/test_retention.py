"""The plan of retention is what Kafka's own loops delete, segment by segment."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from logstore.retention import plan_retention

NOW_MS = 1000


class Segment(NamedTuple):
    base_offset: int
    size_bytes: int
    timestamp: int


@st.composite
def segments(draw):
    """Return segments of 1 to 5 offsets each, the last one perhaps empty, and the log end."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    if draw(st.booleans()):
        lengths[-1] = 0
    bases = [0, *accumulate(lengths)]
    found = [
        Segment(
            base,
            0 if length == 0 else draw(st.integers(1, 30)),
            draw(st.integers(NOW_MS - 30, NOW_MS + 5)),
        )
        for base, length in zip(bases, lengths, strict=False)
    ]
    return found, bases[-1]


def kafka_deletes(log, end, start, high_watermark, config):
    """
    Return the base offsets that Kafka's ``deleteOldSegments`` deletes.

    Written after spec 5.11: three passes over what is left, each with its own predicate.
    """
    left = list(log)
    gone = []

    def one_pass(breaches):
        while left:
            upper = left[1].base_offset if len(left) > 1 else end
            is_last_and_empty = len(left) == 1 and left[0].size_bytes == 0
            if high_watermark < upper or is_last_and_empty or not breaches():
                return
            gone.append(left.pop(0).base_offset)

    one_pass(lambda: len(left) > 1 and left[1].base_offset <= start)
    if config["deletes"]:
        if config["retention_bytes"] >= 0:
            one_pass(lambda: sum(each.size_bytes for each in left[1:]) >= config["retention_bytes"])
        if config["retention_ms"] >= 0:
            one_pass(lambda: NOW_MS - left[0].timestamp > config["retention_ms"])
    return gone


@given(
    segments(),
    st.floats(0, 1),
    st.floats(0, 1),
    st.fixed_dictionaries(
        {
            "deletes": st.booleans(),
            "retention_bytes": st.integers(-1, 100),
            "retention_ms": st.integers(-1, 30),
        }
    ),
)
def test_plan_is_kafkas(drawn, start_part, watermark_part, config):
    """For any log; and what stays says truly when it goes."""
    log, end = drawn
    start, high_watermark = round(start_part * end), round(watermark_part * end)

    def plan(now_ms=NOW_MS):
        return plan_retention(
            log,
            log_start_offset=start,
            high_watermark=high_watermark,
            log_end_offset=end,
            now_ms=now_ms,
            largest_timestamp=lambda segment: segment.timestamp,
            **config,
        )

    found = plan()
    expected = kafka_deletes(log, end, start, high_watermark, config)
    assert expected == [each.segment.base_offset for each in found.deletions]
    assert log[len(expected) :][:1] == ([] if found.first_kept is None else [found.first_kept])
    if found.due_ms is not None and not found.waits_for_replication:
        assert found.due_ms > NOW_MS
        assert len(plan(found.due_ms - 1).deletions) <= len(expected)
        assert len(plan(found.due_ms).deletions) > len(expected)
