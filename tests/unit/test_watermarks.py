"""Watermarks of a replica: what moves the last stable offset, and when."""

from __future__ import annotations

import pytest

from logstore.control_record import ControlRecordType, EndTransactionMarker
from logstore.record import encode_batch, end_transaction_marker
from logstore.testing import ManualClock, open_log

COMMIT = EndTransactionMarker(ControlRecordType.COMMIT, 0)
CONFIG = {"transaction.partition.verification.enable": False}


@pytest.fixture(name="log")
def _log(tmp_path):
    with open_log(
        tmp_path / "t-0", config=CONFIG, clock=ManualClock(0), high_watermark="replicas"
    ) as log:
        yield log
        assert [] == list(log.check())


def begin(log, producer_id):
    batch = encode_batch(
        [(None, 0, None, b"v", ())],
        base_offset=0,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    log.append_batches(batch, leader_epoch=0)


def commit(log, producer_id):
    marker = end_transaction_marker(COMMIT, timestamp=0, producer_id=producer_id, producer_epoch=0)
    log.append_batches(marker, leader_epoch=0, origin="coordinator")


@pytest.mark.parametrize(
    "look",
    [
        lambda log: log.fetch(0, max_bytes=0, isolation="read_uncommitted"),
        lambda log: log.fetch(0, max_bytes=0, isolation="read_committed"),
        lambda log: log.offset_snapshot(),
    ],
    ids=["read_uncommitted", "read_committed", "offset_snapshot"],
)
def test_looking_up_the_high_watermark_forgets_transactions_below_it(log, look):
    """
    A truncation revives a completed transaction whose marker stays, and is below the watermark.

    Kafka forgets it again with the next look at a watermark of which it knows the offset only,
    whether or not the last stable offset comes first: ``fetchHighWatermarkMetadata``.
    """
    begin(log, 1)
    begin(log, 2)
    commit(log, 1)
    log.extend([b"3", b"4"])
    log.update_high_watermark(3)
    assert 1 == log.first_unstable_offset
    log.truncate_to(4)
    begin(log, 3)
    assert 0 == log.first_unstable_offset

    look(log)
    assert (1, 1) == (log.first_unstable_offset, log.last_stable_offset)


def test_reading_moves_no_watermark(log):
    """One inside a batch, or in no place that is known, stays where it was set (decision 0043)."""
    log.append_batches(
        encode_batch([(None, at, None, b"v", ()) for at in range(10)], base_offset=0),
        leader_epoch=0,
    )
    for high_watermark in (7, 4, 0, 10):
        log.update_high_watermark(high_watermark)
        log.fetch(0, max_bytes=100, isolation="read_uncommitted")
        log.fetch(0, max_bytes=100, isolation="read_committed")
        list(log.read(isolation="read_uncommitted"))
        log.offset_snapshot()
        assert high_watermark == log.high_watermark == log.offsets.high_watermark
