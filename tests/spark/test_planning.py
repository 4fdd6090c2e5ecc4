"""What a micro-batch reads and how it is split: the connector's rules, and their edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.checkpoint import TopicPartition
from logstore.spark import lag
from logstore.spark.errors import SparkSourceError
from logstore.spark.offsets import (
    EARLIEST,
    LATEST,
    from_json,
    parse_assignment,
    parse_offsets,
    parse_timestamps,
    to_json,
)
from logstore.spark.planning import OffsetRange, rate_limited, shared, split_ranges

ORDERS = [TopicPartition("orders", number) for number in range(4)]


def ranges(*sizes):
    return [OffsetRange(ORDERS[number], 0, size) for number, size in enumerate(sizes)]


def sizes(sized, *, parts=None, most=None):
    found = split_ranges(ranges(*sized), min_partitions=parts, max_records=most)
    return [
        [each.size for each in found if each.topic_partition == partition]
        for partition in ORDERS[: len(sized)]
    ]


@pytest.mark.parametrize(
    ("limit", "backlogs", "taken"),
    [
        (10, (101, 11, 1), (8, 1, 1)),
        (10, (93, 10, 0), (9, 1, 0)),
        (5, (0, 0), (0, 0)),
        (2**63 - 1, (5, 2**40), (5, 2**40)),
        (1, (1, 1, 1), (1, 1, 1)),  # No partition starves, though that is more than the limit.
    ],
)
def test_rate_limit(limit, backlogs, taken):
    """In proportion to the backlogs."""
    starts = {ORDERS[number]: 100 for number in range(len(backlogs))}
    ends = {ORDERS[number]: 100 + size for number, size in enumerate(backlogs)}
    found = rate_limited(limit, starts, ends)
    assert tuple(found[each] - 100 for each in starts) == taken


@pytest.mark.parametrize(
    ("sized", "limits", "expected"),
    [
        ((5, 0, 3), {}, [[5], [], [3]]),
        ((4, 20), {"parts": 4}, [[4], [6, 7, 7]]),
        ((10, 10, 1), {"parts": 6}, [[3, 3, 4], [3, 3, 4], [1]]),
        ((1, 1, 10000), {"parts": 6}, [[1], [1], [2500] * 4]),
        ((100, 100), {"parts": 1}, [[100], [100]]),
        ((10,), {"parts": 3}, [[3, 3, 4]]),
        ((3,), {"parts": 10}, [[1, 1, 1]]),
        ((39,), {"most": 20}, [[19, 20]]),
        ((40, 20), {"most": 20}, [[20, 20], [20]]),
        ((40, 4), {"most": 20, "parts": 6}, [[6, 7, 7, 6, 7, 7], [4]]),
    ],
)
def test_splitting(sized, limits, expected):
    """Large ranges share the tasks, small ones stay whole."""
    assert sizes(sized, **limits) == expected


@given(
    st.lists(st.integers(0, 10**12), min_size=1, max_size=4),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(10**9, 10**12),
)
def test_splitting_loses_nothing(sized, parts, most):
    """The parts of a range follow one another from its start to its end."""
    whole = ranges(*sized)
    found = split_ranges(whole, min_partitions=parts, max_records=most)
    assert all(each.size > 0 for each in found)
    assert most is None or all(each.size <= most for each in found)
    for each in whole:
        edge = each.start
        for part in found:
            if part.topic_partition == each.topic_partition:
                assert part.start == edge
                edge = part.stop
        assert edge == each.stop


@pytest.mark.parametrize(
    ("sized", "most", "expected"),
    [
        ((1, 1, 1, 1), None, [[1], [1], [1], [1]]),
        ((1, 1, 1, 1), 4, [[1], [1], [1], [1]]),
        ((1, 1, 1, 1), 2, [[1, 1], [1, 1]]),
        ((1, 1, 1, 1), 1, [[1, 1, 1, 1]]),
        ((1, 1, 1, 1), 3, [[1], [1, 1], [1]]),
        ((9, 1, 1, 1), 2, [[9], [1, 1, 1]]),
        ((1, 1, 1, 9), 2, [[1, 1, 1], [9]]),
        ((1, 1, 9, 1), 3, [[1, 1], [9], [1]]),
        ((10**18, 1, 1, 1), 3, [[10**18], [1, 1, 1]]),
        ((), 1, []),
    ],
)
def test_sharing(sized, most, expected):
    """About the same number of offsets for each task."""
    found = shared(ranges(*sized), most)
    assert [[each.size for each in task] for task in found] == expected
    assert [each for task in found for each in task] == ranges(*sized)


def test_json_has_one_spelling():
    """Topics by name, partitions by number, whatever order they were found in."""
    offsets = {TopicPartition("b", 10): 1, TopicPartition("b", 9): 2, TopicPartition("a", 0): 3}
    text = str(to_json(offsets))
    assert text == "{'a': {'0': 3}, 'b': {'9': 2, '10': 1}}"
    assert from_json(to_json(offsets)) == offsets
    assert str(to_json(dict(reversed(offsets.items())))) == text


@pytest.mark.parametrize("value", [None, 3, {"orders": 3}, {"orders": {"x": 3}}, ["orders"]])
def test_another_checkpoint_is_refused(value):
    """The checkpoint of a query over files, say."""
    with pytest.raises(SparkSourceError, match="LOGSTORE_INVALID_OFFSETS"):
        from_json(value)


def test_lag():
    """By partition, of sources with topics' offsets; before the first report there is none."""
    sources = [
        {"latestOffset": '{"a": {"0": 9, "1": 5}}', "endOffset": '{"a": {"0": 7}}'},
        {"latestOffset": "7", "endOffset": "5"},
        {"latestOffset": None, "endOffset": None},
    ]
    assert lag({"sources": sources}) == {("a", 0): 2, ("a", 1): 5}
    assert lag(None) == {}


def test_offset_forms():
    """Words, numbers, and both mixed by topic."""
    assert parse_offsets("startingOffsets", " Earliest ").default == EARLIEST
    spec = parse_offsets("startingOffsets", '{"orders": {"0": 7, "1": -2, "2": -1}, "b": "latest"}')
    assert [spec.offset_of(each) for each in ORDERS[:3]] == [7, EARLIEST, LATEST]
    assert spec.offset_of(TopicPartition("b", 5)) == LATEST
    spec.check_covers([*ORDERS[:3], TopicPartition("b", 0)])
    with pytest.raises(SparkSourceError, match=r"Specified: \[b, orders-0, .*Assigned: \[orders-0"):
        spec.check_covers(ORDERS[:3])
    times = parse_timestamps("startingOffsetsByTimestamp", '{"orders": {"0": 5}}')
    assert times.timestamp_of(ORDERS[0]) == 5
    assert parse_assignment("assign", '{"orders": [1, 0, 1]}') == tuple(ORDERS[:2])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("somewhere", "is 'somewhere'; give earliest, latest, or JSON such as"),
        ("[1]", r"is '\[1\]'; give earliest, latest, or JSON such as"),
        ('{"orders": 3}', "has 3 for topic orders"),
        ('{"orders": {"0": "3"}}', "both are whole numbers"),
        ('{"orders": {"0": -3}}', "cannot be -3"),
        ('{"orders": {"0": true}}', "both are whole numbers"),
    ],
)
def test_malformed_offsets(text, problem):
    """The option is named, and what it should be."""
    with pytest.raises(SparkSourceError, match=f"LOGSTORE_INVALID_OPTION: option .*{problem}"):
        parse_offsets("startingOffsets", text)
