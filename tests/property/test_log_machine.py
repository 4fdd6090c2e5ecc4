"""
Any sequence of operations leaves a log equal to a list of records.

The model is a dictionary from offset to record: what was acknowledged, minus what a truncation, a
log start or damage took. Damage may cost a suffix, never a prefix, never a hole, and what it took
stays gone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sampling import examples

from logstore._native import scan_batches
from logstore.clock import ManualClock
from logstore.config import LogConfig
from logstore.log import Log
from logstore.records_builder import encode_batch
from logstore.scheduler import ManualScheduler

CRC_BEGINS_AT = 17
NOW_MS = 1_700_000_000_000

# Tiny alphabets: a revived or doubled record must have a chance to look like a right one.
VALUES = st.sampled_from([b"a", b"b", b"", None, b"a longer value"])
KEYS = st.sampled_from([None, b"", b"k"])
TIMESTAMPS = st.sampled_from([NOW_MS, NOW_MS + 1, NOW_MS - 5, 0])
HEADERS = st.sampled_from([(), (("h", b"x"),), (("h", None), ("", b""))])
CODECS = st.sampled_from([None, "gzip", "snappy", "lz4", "zstd"])
RECORDS = st.lists(st.tuples(VALUES, KEYS, TIMESTAMPS, HEADERS), min_size=1, max_size=4)
CONFIGS = st.fixed_dictionaries(
    {
        "segment_bytes": st.sampled_from([300, 700]),
        "segment_index_bytes": st.sampled_from([24, 48, 4096]),
        "index_interval_bytes": st.sampled_from([0, 32, 150]),
        "segment_ms": st.sampled_from([3, 10**9]),
        "flush_messages": st.sampled_from([1, 3, 2**63 - 1]),
        "preallocate": st.booleans(),
        "message_timestamp_type": st.sampled_from(["CreateTime", "LogAppendTime"]),
    }
)


def is_checked(data, position):
    """Return whether a changed byte must be noticed: base offset and epoch are outside the CRC."""
    for row in scan_batches(bytes(data)).batches:
        at = position - int(row["position"])
        if 0 <= at < row["size_bytes"]:
            return at >= CRC_BEGINS_AT or 8 <= at < 12
    return False


class LogMachine(RuleBasedStateMachine):
    """Operations on a log, and the same on a dictionary."""

    @initialize(config=CONFIGS)
    def open_empty_log(self, config):
        self.directory = tempfile.mkdtemp(
            prefix="log-machine-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None
        )
        self.path = Path(self.directory, "t-0")
        self.config = LogConfig(**config)
        self.clock = ManualClock(NOW_MS)
        self.scheduler = ManualScheduler(self.clock)
        self.records = {}
        self.end = self.start = self.flushed = 0
        self.kept_end = None  # Where the batches end after a truncation inside one.
        self.log = None
        self.open(clean=True)

    def open(self, *, clean):
        self.log = Log.create(
            self.path,
            self.config,
            log_start_offset=self.start,
            recovery_point=self.flushed,
            had_clean_shutdown=clean,
            clock=self.clock,
            scheduler=self.scheduler,
        )
        if self.kept_end is not None:
            # A log end inside a batch that is gone is not written anywhere.
            end = self.log.log_end_offset
            assert max(self.kept_end, self.start) <= end <= max(self.end, self.start)
            self.end, self.kept_end = end, None

    def acknowledge(self, offsets, records):
        self.kept_end = None
        assert offsets == range(self.end, self.end + len(records))
        is_append_time = self.config.message_timestamp_type == "LogAppendTime"
        for offset, (value, key, timestamp, headers) in zip(offsets, records, strict=True):
            stamp = self.clock.milliseconds() if is_append_time else timestamp
            self.records[offset] = (offset, stamp, key, value, headers)
        self.end = offsets.stop

    @rule(value=VALUES, key=KEYS, timestamp=TIMESTAMPS, headers=HEADERS, sync=st.booleans())
    def append(self, value, key, timestamp, headers, sync):
        offset = self.log.append(value, key=key, headers=headers, timestamp=timestamp, sync=sync)
        self.acknowledge(range(offset, offset + 1), [(value, key, timestamp, headers)])

    @rule(records=RECORDS, compression=CODECS)
    def extend(self, records, compression):
        values, keys, timestamps, headers = zip(*records, strict=True)
        offsets = self.log.extend(
            values, keys=keys, timestamps=timestamps, headers=headers, compression=compression
        )
        self.acknowledge(offsets, records)

    @rule(records=RECORDS)
    def extend_from_an_iterator(self, records):
        values, keys, timestamps, _ = zip(*records, strict=True)
        offsets = self.log.extend(iter(values), keys=iter(keys), timestamps=iter(timestamps))
        self.acknowledge(offsets, [(*record[:3], ()) for record in records])

    @rule(records=RECORDS)
    def extend_arrow(self, records):
        values, keys, timestamps, _ = zip(*records, strict=True)
        table = pa.table(
            {
                "value": pa.array(values, pa.binary()),
                "key": pa.array(keys, pa.large_binary()),
                "timestamp": pa.array(timestamps, pa.int64()),
            }
        )
        offsets = self.log.extend_arrow(table, key="key", timestamp="timestamp")
        self.acknowledge(offsets, [(*record[:3], ()) for record in records])

    @rule(records=RECORDS)
    def append_batches(self, records):
        batch = encode_batch(
            [(None, timestamp, key, value, headers) for value, key, timestamp, headers in records],
            base_offset=0,
        )
        info = self.log.append_batches(batch, leader_epoch=self.log.leader_epoch)
        self.acknowledge(range(info.first_offset, info.last_offset + 1), records)

    @rule()
    def roll(self):
        self.log.roll()

    @rule()
    def flush(self):
        self.log.flush()

    @rule(ms=st.sampled_from([1, 5, 70_000]))
    def advance_the_clock(self, ms):
        self.scheduler.advance_to(self.clock.milliseconds() + ms)

    @rule(distance=st.integers(0, 6))
    def truncate(self, distance):
        target = max(self.end - distance, 0)
        was_truncated = self.log.truncate_to(target)
        assert was_truncated == (target < self.end)
        if was_truncated:
            # Whole batches go: a target inside one takes what is before it, too.
            kept = [record.offset for record in self.log.read(isolation="log_end")]
            kept_end = kept[-1] + 1 if kept else self.log.log_start_offset
            assert kept_end <= target or target < self.start
            self.end = target
            self.kept_end = min(kept_end, target)
            self.start = min(self.start, target)
            lost = [offset for offset in self.records if offset >= kept_end]
            assert all(target - offset <= 4 for offset in lost if offset < target)
            for offset in lost:
                del self.records[offset]

    @rule(distance=st.integers(0, 6))
    def increment_log_start(self, distance):
        target = max(self.end - distance, 0)
        moved = self.log.maybe_increment_log_start_offset(target)
        assert moved == (target > self.start)
        self.start = max(self.start, target)
        self.records = {offset: row for offset, row in self.records.items() if offset >= self.start}

    @rule()
    def delete_old_segments(self):
        self.log.delete_old_segments()
        assert self.log.log_start_offset == self.start

    @rule()
    def close_and_reopen(self):
        self.log.close()
        self.flushed = self.end
        self.open(clean=True)

    @rule()
    def be_killed_and_reopen(self):
        self.flushed = self.log.recovery_point
        self.log.abandon()
        self.open(clean=False)

    @precondition(lambda self: self.log.active_segment.size_bytes > 0)
    @rule(distance_bytes=st.integers(1, 128), kind=st.sampled_from(["flip", "cut", "zero"]))
    def damage_the_tail(self, distance_bytes, kind):
        """Damage in the active segment costs a suffix of it; what it took stays gone."""
        active = self.log.active_segment
        base_offset, size = active.base_offset, active.size_bytes
        position = max(0, size - distance_bytes)
        self.flushed = min(self.log.recovery_point, base_offset)
        self.log.abandon()
        path = self.path / f"{base_offset:020d}.log"
        data = bytearray(path.read_bytes())
        if kind == "flip" and not is_checked(data[:size], position):
            position = size - 1
        if kind == "flip":
            data[position] ^= 0xFF
        elif kind == "cut":
            del data[position:]
        else:
            data[position:] = bytes(len(data) - position)
        path.write_bytes(data)
        self.kept_end = None  # Damage may take what a truncation inside a batch had kept.
        self.open(clean=False)

        end = self.log.log_end_offset
        assert end <= self.end
        assert end >= min(base_offset, self.end)
        self.end = max(end, self.start)
        self.records = {offset: row for offset, row in self.records.items() if offset < end}

    @invariant()
    def holds_exactly_the_model(self):
        if getattr(self, "log", None) is None:
            return
        assert self.end == self.log.log_end_offset
        assert self.start == self.log.log_start_offset
        iterator = self.log.read(isolation="log_end")
        found = [
            (record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
            for record in iterator
        ]
        assert list(self.records.values()) == found
        assert iterator.next_offset == self.end
        for offset, row in list(self.records.items())[-2:]:
            assert row[3] == self.log[offset].value

    @invariant()
    def breaks_no_rule(self):
        if getattr(self, "log", None) is not None:
            assert list(self.log.check()) == []

    def teardown(self):
        if getattr(self, "log", None) is not None:
            self.log.close()
        if hasattr(self, "directory"):
            shutil.rmtree(self.directory)


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=examples(40), stateful_step_count=20)
