"""What is asked of a segment: where a timestamp is, and a mapping of its bytes."""

from __future__ import annotations

import os
import pathlib
import struct
import zlib

import pytest

import logstore
from logstore.record import TimestampType, encode_batch
from logstore.testing import ManualClock, open_log

NOW_MS = 1_000


@pytest.fixture(name="log")
def _log(tmp_path):
    with open_log(tmp_path / "t-0", clock=ManualClock(0)) as log:
        yield log
        assert [] == list(log.check())


def message_of_magic_0(offset):
    """One message without a timestamp: offset, size, CRC, magic, attributes, key, value."""
    body = struct.pack(">bbi", 0, 0, -1) + struct.pack(">i", 1) + b"v"
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


class TestOffsetOfMaxTimestamp:
    def test_without_any_timestamp(self, log):
        """As in Kafka -1 is a timestamp like others then; no record at all is none."""
        assert log.max_timestamp() is None
        batch = encode_batch([(None, -1, None, b"v", ())] * 2, base_offset=0)
        for _ in range(2):
            log.append_batches(batch, leader_epoch=3)
        assert (-1, 0, 3) == log.max_timestamp()
        log.append_batches(encode_batch([(None, 0, None, b"v", ())]), leader_epoch=3)
        assert (0, 4, 3) == log.max_timestamp()

    def test_of_a_batch_that_claims_another(self, log):
        """
        A producer's batch that says it has the time of an append: as in Kafka, that decides.

        Its records have times of their own, which nobody looks at when the header is made: found
        is the first that has the header's, not one that has a larger one.
        """
        rows = [(None, NOW_MS + delta, None, b"v", ()) for delta in (1, 0, 0)]
        options = {"timestamp_type": TimestampType.LOG_APPEND_TIME, "log_append_time": NOW_MS}
        log.append_batches(encode_batch(rows, **options), leader_epoch=0)
        assert (NOW_MS, 1, 0) == log.max_timestamp()

    def test_of_messages_that_cannot_have_one(self, log):
        """Magic 0 has no field for it."""
        log.append_as_follower(message_of_magic_0(0) + message_of_magic_0(1), 3)
        assert 2 == log.log_end_offset
        assert log.max_timestamp() is None


class TestMapSealed:
    def test_of_a_segment_that_a_truncation_has_emptied(self, log):
        """A scan that was about to map it finds its place again."""
        log.extend([b"a", b"b"])
        log.roll()
        log.append(b"c")
        segment = log.segments[0]
        log.truncate_to(0)

        with pytest.raises(logstore.ClosedError, match="was cut"):
            segment.map_sealed()

    def test_of_a_file_that_somebody_else_has_cut(self, log):
        """No byte beyond its end is ever in a mapping."""
        log.extend([b"a", b"b"])
        log.roll()
        segment = log.segments[0]
        content = pathlib.Path(segment.log_path).read_bytes()
        os.truncate(segment.log_path, segment.size_bytes - 1)

        with pytest.raises(logstore.ClosedError, match="was cut"):
            segment.map_sealed()
        pathlib.Path(segment.log_path).write_bytes(content)
