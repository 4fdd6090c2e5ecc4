"""The cleaner on what very old releases wrote: magic 0 and 1, and offsets that do not fit."""

from __future__ import annotations

import pytest

from logstore.batch_filter import BatchFilter
from logstore.cleaned_transactions import CleanedTransactionMetadata
from logstore.clock import ManualClock
from logstore.compression import CompressionType, compress
from logstore.config import LogConfig
from logstore.legacy import LegacyEntry, _encode_message
from logstore.log import Log
from logstore.offset_map import OffsetMap
from logstore.record import encode_batch
from logstore.scheduler import ManualScheduler

NOW_MS = 1_700_000_000_000


def wrapper(magic, codec, messages, timestamp=NOW_MS):
    """Return a compressed entry with (offset, key, value) messages."""
    first = messages[0][0] if magic == 1 else 0
    inner = b"".join(
        _encode_message(offset - first, magic, 0, timestamp, key, value)
        for offset, key, value in messages
    )
    last = messages[-1][0]
    return _encode_message(last, magic, int(codec), timestamp, None, compress(codec, inner))


def batch_filter(offset_map, upper_bound=10**6):
    return BatchFilter(
        offset_map,
        CleanedTransactionMetadata(),
        now_ms=NOW_MS,
        delete_retention_ms=1000,
        upper_bound_offset=upper_bound,
        last_records={},
        bytes_max=10**6,
    )


@pytest.fixture(name="offset_map")
def _offset_map():
    offset_map = OffsetMap(2400)
    for key, offset in ((b"a", 12), (b"b", 11), (b"c", 20)):
        offset_map.put(key, offset)
    return offset_map


@pytest.mark.parametrize("magic", [0, 1])
def test_messages(offset_map, magic):
    """Kept or dropped as a whole."""
    filtering = batch_filter(offset_map)
    kept = _encode_message(12, magic, 0, NOW_MS, b"a", b"1")
    gone = _encode_message(10, magic, 0, NOW_MS, b"a", b"0")
    without_key = _encode_message(10, magic, 0, NOW_MS, None, b"0")

    assert (kept, 1, 1) == filtering.filter_legacy(LegacyEntry(kept))
    assert (b"", 1, 0) == filtering.filter_legacy(LegacyEntry(gone))
    assert (b"", 1, 0) == filtering.filter_legacy(LegacyEntry(without_key))
    assert 1 == filtering.invalid_count


@pytest.mark.parametrize(
    ("magic", "codec"),
    [(0, "GZIP"), (0, "SNAPPY"), (1, "GZIP"), (1, "SNAPPY"), (1, "LZ4")],
)
def test_wrappers_are_written_anew(offset_map, magic, codec):
    """With the same offsets, format and codec, and a right CRC."""
    codec = CompressionType[codec]
    data = wrapper(magic, codec, [(10, b"a", b"0"), (11, b"b", b"1"), (12, b"a", b"2")])
    entry = LegacyEntry(data)
    assert [10, 11, 12] == [record.offset for record in entry.records()]
    found = batch_filter(offset_map).filter_legacy(entry)
    rebuilt = LegacyEntry(found.data)
    rebuilt.ensure_valid()

    assert (3, 2) == found[1:]
    assert (magic, codec, 12) == (rebuilt.magic, rebuilt.compression_type, rebuilt.last_offset)
    assert [(11, b"b", b"1"), (12, b"a", b"2")] == [
        (record.offset, record.key, record.value) for record in rebuilt.records()
    ]
    assert [NOW_MS if magic else -1] * 2 == [record.timestamp for record in rebuilt.records()]


def test_tombstones_of_magic_1(offset_map):
    """They go with the segments that were not written for delete.retention.ms."""
    filtering = batch_filter(offset_map)
    data = _encode_message(12, 1, 0, NOW_MS, b"a", None)
    assert 1 == filtering.filter_legacy(LegacyEntry(data)).records_retained
    filtering.retains_legacy_deletes = False
    assert 0 == filtering.filter_legacy(LegacyEntry(data)).records_retained


def test_what_nobody_can_write_stays(offset_map):
    """The entry that ends the round, and lz4 of magic 0."""
    last = _encode_message(10, 1, 0, NOW_MS, b"a", b"0")
    assert last == batch_filter(offset_map, upper_bound=11).filter_legacy(LegacyEntry(last)).data


def test_split_overflowed_segment(tmp_path):
    """Its batches are in segments that they fit, at their offsets, and are there again later."""
    clock = ManualClock(NOW_MS)
    config = LogConfig.of({"segment.index.bytes": 240, "segment.bytes": 10_000})
    offsets = [0, 1, 2**31 - 1, 2**31 + 5, 2**33]
    data = b"".join(
        encode_batch(
            [(offset, NOW_MS, b"k", b"%d" % offset, ())], base_offset=offset, leader_epoch=0
        )
        for offset in offsets
    )
    path = tmp_path / "log-0"
    path.mkdir()
    log = Log.create(path, config, clock=clock, scheduler=ManualScheduler(clock))
    log.append_as_follower(encode_batch([(0, NOW_MS, b"k", b"0", ())], leader_epoch=0))
    log.roll(2**33 + 1)
    segment = log.segments[0]
    with open(segment.log_path, "r+b") as file:
        file.write(data)
    segment._size_bytes = len(data)
    parts = log.split_overflowed_segment(segment)

    assert [0, 2**31 + 5, 2**33] == parts
    assert [*parts, 2**33 + 1] == [each.base_offset for each in log.segments]
    log.abandon()
    again = Log.create(path, config, clock=clock, scheduler=ManualScheduler(clock))
    assert offsets == [record.offset for record in again.read("earliest")]
    assert [] == list(again.check())
    again.close()
