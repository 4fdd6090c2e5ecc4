"""What a reader hears of a truncation that takes more than its target says."""

from __future__ import annotations

import pytest

import logstore


@pytest.fixture(name="log")
def _log(tmp_path):
    with logstore.open(tmp_path / "orders-0") as log:
        yield log
        assert [] == list(log.check())


def test_a_scan_that_ends_at_a_target_inside_a_batch(log):
    """The batch goes as a whole: the scan's last records went, though the target is its stop."""
    log.extend([b"a", b"b", b"c", b"d"])
    scan = log.scan(0, 2, columns=["value"])
    assert 0 == scan.start
    log.truncate_to(2)
    with pytest.raises(logstore.OffsetOutOfRangeError):
        scan.to_table()


def test_an_iterator_inside_the_batch_of_the_target(log):
    """The records below the target went, too; the read does not end as if there had been none."""
    log.extend([b"a"])
    log.extend([b"b", b"c", b"d"])
    records = log.read(2)
    seen = log.truncations
    log.truncate_to(3)
    assert 1 == log.truncated_to(seen)
    with pytest.raises(logstore.OffsetOutOfRangeError):
        list(records)


def test_a_log_that_starts_above_its_end(log):
    """Nothing of the log is left, below the new offset as little as above it."""
    log.extend([b"a", b"b"])
    seen = log.truncations
    log.truncate_fully_and_start_at(7)
    assert 0 == log.truncated_to(seen)


def test_the_range_when_more_was_deleted_since(log):
    """It is a range, also if the log start has moved above the truncation's target."""
    for _ in range(20):
        log.append(b"x")
    records = log.read(15)
    log.truncate_to(10)
    for _ in range(20):
        log.append(b"y")
    log.maybe_increment_log_start_offset(14)
    with pytest.raises(logstore.OffsetOutOfRangeError, match="read on from 14") as caught:
        next(records)
    assert (14, 14) == (caught.value.log_start_offset, caught.value.log_end_offset)
