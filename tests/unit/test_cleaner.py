"""One round of compaction: what stays, byte by byte, and what readers and a crash see of it."""

from __future__ import annotations

import errno
import os

import pytest
from sampling import stride

from logstore.append_origin import AppendOrigin
from logstore.cleaner import Cleaner
from logstore.clock import ManualClock
from logstore.config import LogConfig
from logstore.control_record import ControlRecordType, EndTransactionMarker
from logstore.errors import (
    CorruptRecordError,
    LogCleaningAbortedError,
    OffsetGapError,
    StorageError,
)
from logstore.log_to_clean import LogToClean, cleanable_offsets
from logstore.offset_map import OffsetMap
from logstore.record import RecordBatch, encode_batch, end_transaction_marker
from logstore.scheduler import ManualScheduler
from logstore.simulated_files import FailingFiles
from logstore.testing import open_log
from logstore.throttler import Throttler

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig.of(
    {
        "cleanup.policy": "compact",
        "segment.bytes": 1000,
        "segment.index.bytes": 240,
        "index.interval.bytes": 100,
        "delete.retention.ms": 1000,
        "file.delete.delay.ms": 1000,
        "transaction.partition.verification.enable": False,
    }
)


class Opened:
    """A log on a clock that stands still, and its cleaner's checkpoint."""

    def __init__(self, path, config=CONFIG, **options):
        self.clock = ManualClock(NOW_MS)
        self.scheduler = ManualScheduler(self.clock)
        self.log = open_log(
            path, config=config, clock=self.clock, scheduler=self.scheduler, **options
        )
        self.checkpoint = None

    def put(self, **values):
        """Append records, one batch for all; None is a tombstone."""
        rows = [
            (None, NOW_MS, key.encode(), None if value is None else value.encode(), ())
            for key, value in values.items()
        ]
        return self.log.append_batches(encode_batch(rows), leader_epoch=0)

    def clean(self, memory=24_000, check_done=lambda _: None, on_progress=None):
        log = self.log
        now_ms = self.clock.milliseconds()
        bounds = cleanable_offsets(log, self.checkpoint, now_ms)
        cleaner = Cleaner(
            OffsetMap(memory),
            io_buffer_bytes=300,
            throttler=Throttler(float("inf"), self.clock),
            check_done=check_done,
            on_progress=on_progress,
        )
        stats = cleaner.clean(LogToClean.of(log, *bounds[:2]), now_ms)
        self.checkpoint = stats.next_first_dirty_offset
        return stats


@pytest.fixture(name="opened")
def _opened(tmp_path):
    opened = Opened(tmp_path / "log-0")
    yield opened
    if not opened.log.is_closed:
        opened.log.close()


def contents(log):
    return {record.offset: (record.key, record.value) for record in log.read("earliest")}


def batches(log):
    return [
        RecordBatch(segment.read_at(header.position, header.size_bytes))
        for segment in log.segments
        for header in segment.headers()
    ]


def of_producer(values, sequence, *, producer_id=1, transactional=False, **fields):
    rows = [(None, NOW_MS, key.encode(), value.encode(), ()) for key, value in values.items()]
    return encode_batch(
        rows,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=transactional,
        **fields,
    )


def end_transaction(log, kind, producer_id=1):
    marker = end_transaction_marker(
        EndTransactionMarker(ControlRecordType[kind], 0),
        timestamp=NOW_MS,
        producer_id=producer_id,
        producer_epoch=0,
    )
    log.append_as_leader(marker, 0, AppendOrigin.COORDINATOR)


class TestRecords:
    def test_the_last_value_of_each_key_stays(self, opened):
        """In the dirty part; the active segment is not touched."""
        opened.put(a="1", b="1")
        opened.put(a="2")
        opened.put(c="1", b="2")
        opened.log.roll()
        opened.put(a="3")
        stats = opened.clean()

        assert {
            2: (b"a", b"2"),
            3: (b"c", b"1"),
            4: (b"b", b"2"),
            5: (b"a", b"3"),
        } == contents(opened.log)
        assert (5, 3, 5) == (
            stats.messages_read,
            stats.messages_written,
            stats.next_first_dirty_offset,
        )
        with pytest.raises(OffsetGapError) as caught:
            _ = opened.log[0]
        assert 2 == caught.value.next_offset

    def test_batches_keep_their_offsets(self, opened):
        """Base and last offset are what a follower and a producer know a batch by."""
        opened.put(a="1", b="1", c="1")
        opened.put(a="2", c="2")
        opened.log.roll()
        opened.clean()

        first = batches(opened.log)[0]
        assert (0, 2, 1) == (first.base_offset, first.last_offset, first.record_count)
        assert [1] == [record.offset for record in first.records()]
        assert first.is_valid

    def test_an_untouched_batch_is_copied(self, opened):
        """Byte by byte, whatever it looks like."""
        opened.put(a="1", b="1")
        opened.log.roll()
        before = [bytes(batch.data) for batch in batches(opened.log)]
        opened.clean()

        assert before == [bytes(batch.data) for batch in batches(opened.log)]

    @pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
    def test_compressed_batches_keep_their_codec(self, opened, codec):
        """Dropped records are dropped from the inside."""
        opened.log.extend([b"1", b"1"], keys=[b"a", b"b"], compression=codec)
        opened.log.extend([b"2"], keys=[b"a"], compression=codec)
        opened.log.roll()
        opened.clean()

        assert {1: (b"b", b"1"), 2: (b"a", b"2")} == contents(opened.log)
        assert [codec] * 2 == [batch.compression_type.label for batch in batches(opened.log)]

    def test_records_without_a_key_go(self, opened):
        """They can never be the last of theirs; the count says how many."""
        opened.log.close()
        plain = Opened(opened.log.directory, CONFIG.replace(**{"cleanup.policy": "delete"}))
        plain.log.extend([b"x", b"y"])
        plain.log.close()
        opened = Opened(plain.log.directory)
        opened.put(a="1")
        opened.log.roll()
        stats = opened.clean()

        assert {2: (b"a", b"1")} == contents(opened.log)
        assert 2 == stats.invalid_messages_read
        opened.log.close()

    def test_timestamps_and_headers_stay(self, opened):
        """Deltas count from another record when the first one goes."""
        rows = [
            (None, NOW_MS + 5, b"a", b"1", ()),
            (None, NOW_MS - 70_000, b"b", b"1", [("h", b"x")]),
            (None, NOW_MS + 3, b"c", b"1", ()),
        ]
        opened.log.append_batches(encode_batch(rows), leader_epoch=0)
        opened.put(a="2")
        opened.log.roll()
        opened.clean()

        records = list(opened.log.read("earliest"))
        assert [NOW_MS - 70_000, NOW_MS + 3, NOW_MS] == [each.timestamp for each in records]
        assert (("h", b"x"),) == tuple(records[0].headers)
        assert NOW_MS + 3 == batches(opened.log)[0].max_timestamp

    def test_a_full_map_takes_several_rounds(self, opened):
        """Records above the end of the map stay for the next round, in a batch that is cut, too."""
        for number in range(3):
            opened.put(**{f"k{key}": str(number) for key in range(10)})
        opened.log.roll()
        rounds = 0
        while opened.checkpoint is None or opened.checkpoint < opened.log.log_end_offset:
            opened.clean(memory=24 * 6)
            rounds += 1

        assert {20 + key: (b"k%d" % key, b"2") for key in range(10)} == contents(opened.log)
        assert rounds > 3

    def test_several_segments_become_one(self, opened):
        """A group is what fits a segment; the last one's modification time stays."""
        for number in range(40):
            opened.put(a=str(number), b="x" * 40)
        opened.log.roll()
        opened.clean()
        assert len(opened.log.segments) > 4  # Each was full.
        opened.put(c="1")
        opened.log.roll()
        opened.log.segments[-2].set_modified_ms(NOW_MS - 5000)
        opened.clean()

        assert 2 == len(opened.log.segments)
        assert NOW_MS - 5000 == opened.log.segments[0].modified_ms()
        assert [] == list(opened.log.check())

    def test_lag(self, opened):
        """Records younger than min.compaction.lag.ms, and undecided ones, are not touched."""
        opened.log.update_config({"min.compaction.lag.ms": 10_000})
        opened.put(a="1")
        opened.put(a="2")
        opened.log.roll()

        assert (0, 0) == cleanable_offsets(opened.log, None, opened.clock.milliseconds())[:2]
        opened.clock.advance(10_001)
        assert (0, 2) == cleanable_offsets(opened.log, None, opened.clock.milliseconds())[:2]


class TestTombstones:
    def test_two_rounds(self, opened):
        """The first round removes what is deleted and stamps the horizon; a later one the rest."""
        opened.put(a="1")
        opened.put(a=None, b="1")
        opened.log.roll()
        opened.clean()

        assert {1: (b"a", None), 2: (b"b", b"1")} == contents(opened.log)
        (batch,) = (each for each in batches(opened.log) if each.record_count == 2)
        assert NOW_MS + 1000 == batch.delete_horizon_ms
        for number in range(2):
            opened.clock.advance(500)
            opened.put(x=str(number))
            opened.log.roll()
            opened.clean()
            assert (1 in contents(opened.log)) == (number == 0)

    def test_a_horizon_is_set_once(self, opened):
        """Else tombstones would stay for ever in a log that is cleaned often."""
        opened.put(a=None)
        for _ in range(3):
            opened.log.roll()
            opened.clean()
            opened.clock.advance(100)
            opened.put(b="1")

        assert NOW_MS + 1000 == batches(opened.log)[0].delete_horizon_ms


class TestProducers:
    def test_the_last_batch_of_a_producer_leaves_a_shell(self, opened):
        """It says which sequence comes next."""
        opened.log.append_batches(of_producer({"a": "1"}, 0), leader_epoch=0)
        opened.log.append_batches(of_producer({"a": "2"}, 1), leader_epoch=0)
        opened.put(a="3")
        opened.log.roll()
        opened.clean()
        found = [(each.base_offset, each.record_count) for each in batches(opened.log)]

        assert [(1, 0), (2, 1)] == found
        path = opened.log.directory
        opened.log.close()
        for name in os.listdir(path):
            if name.endswith(".snapshot"):
                os.unlink(os.path.join(path, name))
        again = Opened(path)
        assert 1 == again.log.producer_state.last_entry(1).last_sequence
        again.log.close()

    def test_aborted_data_goes_and_the_marker_later(self, opened):
        """The marker stays while data of its transaction is there, and for its own horizon."""
        opened.log.append_batches(
            of_producer({"a": "aborted"}, 0, transactional=True), leader_epoch=0
        )
        end_transaction(opened.log, "ABORT")
        opened.put(b="1")
        opened.log.roll()
        opened.clean()
        # The shell of the aborted batch tells the producer's last sequence.
        assert [0, 1, 1] == [batch.record_count for batch in batches(opened.log)]
        assert {2: (b"b", b"1")} == contents(opened.log)
        assert 1 == len(opened.log.segments[0].txn_index.all_aborted_txns())

        opened.log.append_batches(of_producer({"c": "1"}, 1, transactional=True), leader_epoch=0)
        end_transaction(opened.log, "COMMIT")
        for _ in range(3):
            opened.log.roll()
            opened.clean()
            opened.clock.advance(2000)
            opened.put(d="1")
        kinds = [(batch.base_offset, batch.is_control) for batch in batches(opened.log)]
        assert (1, True) not in kinds  # The abort marker.
        assert (4, True) in kinds  # The commit marker: its data is there.
        assert (b"c", b"1") == contents(opened.log)[3]

    def test_committed_transactions_are_compacted(self, opened):
        """Like any other records."""
        for number in range(3):
            opened.log.append_batches(
                of_producer({"a": str(number)}, number, transactional=True), leader_epoch=0
            )
            end_transaction(opened.log, "COMMIT")
        opened.log.roll()
        opened.clean()

        assert {4: (b"a", b"2")} == contents(opened.log)

    def test_a_transaction_behind_an_aborted_one_of_its_producer(self, opened):
        """
        A round that begins behind the marker takes the next one for aborted, too, as Kafka's does.

        Its records are not in the map then, but go all the same where a later key says so.
        """
        aborted = of_producer({"x": "1"}, 0, transactional=True)
        committed = of_producer({"k": "1", "l": "1"}, 1, transactional=True)
        opened.log.append_batches(aborted, leader_epoch=0)
        end_transaction(opened.log, "ABORT")
        opened.put(a="1" * 200)
        opened.put(b="1")  # The index knows where it is.
        opened.log.append_batches(committed, leader_epoch=0)
        end_transaction(opened.log, "COMMIT")
        opened.put(k="2")
        opened.log.roll()

        stats = opened.clean(memory=48)  # Of one key.
        assert 3 == stats.next_first_dirty_offset
        opened.clean()
        assert [2, 3, 5, 7] == list(contents(opened.log))

    def test_an_open_transaction_is_not_touched(self, opened):
        """Nobody knows yet whether it counts."""
        opened.put(a="1")
        opened.log.append_batches(of_producer({"a": "2"}, 0, transactional=True), leader_epoch=0)
        opened.log.roll()
        bounds = cleanable_offsets(opened.log, None, NOW_MS)

        assert 1 == bounds.first_uncleanable_dirty_offset


class TestSwap:
    def fill(self, opened):
        for number in range(30):
            opened.put(a=str(number), b="x" * 40)
        opened.log.roll()
        return contents(opened.log)

    def test_readers_go_over(self, opened):
        """One that has begun reads on in the new files, and what it holds stays."""
        before = self.fill(opened)
        reader = opened.log.read("earliest", stop=opened.log.log_end_offset)
        first = next(reader)
        held = opened.log.fetch(0, max_bytes=10**6).records
        held_bytes = held.to_bytes()
        opened.clean()
        rest = {record.offset: (record.key, record.value) for record in reader}

        assert (0, (b"a", b"0")) == (first.offset, before[0])
        assert {58: (b"a", b"29"), 59: (b"b", b"x" * 40)}.items() <= rest.items()
        assert rest.items() <= before.items()
        assert held_bytes == held.to_bytes()
        opened.scheduler.advance_to(NOW_MS + 2000)
        assert held_bytes == held.to_bytes()
        assert not [name for name in os.listdir(opened.log.directory) if "deleted" in name]

    def test_replaced_segments_do_not_hold_files_for_long(self, opened):
        """However many there are before their files go."""
        for number in range(60):
            opened.put(**{f"k{number}": "x" * 900})
        opened.log.roll()
        expected = contents(opened.log)
        opened.clean()
        held = [each for each in opened.log._local_log._replaced if each._handle is not None]

        assert 61 == len(opened.log.segments)
        assert len(held) <= 32
        assert expected == contents(opened.log)

    def test_offsets_that_are_gone(self, opened):
        """A fetch of one returns the batch behind it; get says which offset is next."""
        self.fill(opened)
        opened.clean()

        assert 58 == next(iter(opened.log.read(3))).offset
        assert 58 == opened.log.fetch(3, max_bytes=1).fetch_offset_metadata.message_offset
        with pytest.raises(OffsetGapError) as caught:
            _ = opened.log[3]
        assert 58 == caught.value.next_offset

    def test_the_high_watermark_at_the_end_of_a_cleaned_segment(self, tmp_path):
        """Its place was in the old file: a fetch must not read beyond the new one."""
        opened = Opened(tmp_path / "replica-0", high_watermark="replicas")
        for number in range(5):
            opened.put(a=str(number))
        opened.log.update_high_watermark(5)
        opened.log.roll()
        opened.clean()
        found = opened.log.fetch(0, max_bytes=10**6, isolation="read_uncommitted")

        assert [4] == [batch.last_offset for batch in found.batches()]
        opened.log.close()

    def test_a_truncation_meanwhile(self, opened):
        """What it removed must not come back."""
        self.fill(opened)
        truncated = []

        def truncate(log):
            if not truncated and os.path.exists(
                os.path.join(log.directory, f"{0:020d}.log.cleaned")
            ):
                truncated.append(log.truncate_to(20))

        with pytest.raises(LogCleaningAbortedError):
            opened.clean(check_done=truncate)
        assert max(contents(opened.log)) == 19
        assert not [name for name in os.listdir(opened.log.directory) if "cleaned" in name]

    def test_damage_is_not_sealed(self, opened):
        """A wrong CRC ends the round; the log is as it was."""
        self.fill(opened)
        path = opened.log.segments[0].log_path
        with open(path, "r+b") as file:
            file.seek(75)
            byte = file.read(1)
            file.seek(75)
            file.write(bytes([byte[0] ^ 1]))
        names = sorted(os.listdir(opened.log.directory))

        with pytest.raises(CorruptRecordError) as caught:
            opened.clean()
        assert (path, 0, 0) == (caught.value.path, caught.value.position, caught.value.offset)
        assert names == sorted(os.listdir(opened.log.directory))

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
    def test_every_call_may_fail(self, tmp_path, code):
        """The error is typed, the log serves the same records, and opens again."""
        calls = 0
        for at in range(1 if code == errno.EIO else 3, 400, stride(commit=5, small=20)):
            files = FailingFiles()
            opened = Opened(tmp_path / f"{at}-0", files=files)
            expected = self.fill(opened)
            last = dict(expected.values())
            files.fail(None, code, at=at)
            try:
                opened.clean()
            except StorageError as error:
                assert code == error.errno
                calls += 1
            finally:
                fired = files.calls() >= at
                files.clear()
            assert last == dict(contents(opened.log).values())
            opened.log.abandon()
            again = Opened(tmp_path / f"{at}-0")
            assert last == dict(contents(again.log).values())
            assert [] == list(again.log.check())
            assert contents(again.log).items() <= expected.items()
            again.log.close()
            if not fired:
                break
        assert calls > 3
