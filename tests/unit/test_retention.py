"""What retention lets go, why, and what may not let anything go by itself."""

from __future__ import annotations

import logging
import os
import struct
import subprocess
import sys
import threading
from typing import NamedTuple

import pytest
from patience import PATIENCE_SECONDS

from logstore.append_times import APPEND_TIMES_FILE, append_time, noted
from logstore.clock import ManualClock
from logstore.config import LogConfig
from logstore.errors import CorruptRecordError, RetentionBlockedError
from logstore.index import TimestampOffset
from logstore.opening import open_log
from logstore.partition_retention import blocked_retention
from logstore.record import LOG_OVERHEAD
from logstore.records_builder import encode_batch
from logstore.retention import AHEAD_MS_MAX, BY_AGE, BY_LOG_START, BY_SIZE, plan_retention
from logstore.scheduler import ManualScheduler
from logstore.segment import LogSegment
from logstore.store import open_log_store

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
SMALL = {"segment.bytes": 200, "file.delete.delay.ms": 0}


class Segment(NamedTuple):
    base_offset: int
    size_bytes: int
    timestamp: int | None


def plan_of(segments, **given):
    """Return the plan for segments of ten records each; nothing is limited unless it is given."""
    options = {
        "log_start_offset": 0,
        "high_watermark": 10 * len(segments),
        "log_end_offset": 10 * len(segments),
        "deletes": True,
        "retention_bytes": -1,
        "retention_ms": -1,
        "now_ms": NOW_MS,
        "largest_timestamp": lambda segment: segment.timestamp,
    }
    return plan_retention(segments, **{**options, **given})


def segments_of(*timestamps, size=100):
    return [Segment(10 * number, size, each) for number, each in enumerate(timestamps)]


def gone(plan):
    return [(each.segment.base_offset, each.rule) for each in plan.deletions]


class TestPlan:
    def test_rules_follow_each_other(self):
        """Each is given what the one before leaves."""
        segments = segments_of(NOW_MS, NOW_MS, NOW_MS - 101, NOW_MS, NOW_MS)
        plan = plan_of(segments, log_start_offset=10, retention_bytes=300, retention_ms=100)
        assert [(0, BY_LOG_START), (10, BY_SIZE), (20, BY_AGE)] == gone(plan)
        assert (30, NOW_MS, NOW_MS + 101) == (
            plan.first_kept.base_offset,
            plan.first_kept_timestamp,
            plan.due_ms,
        )
        assert [10, 20, 30] == [each.next_offset for each in plan.deletions]
        assert [None, None, NOW_MS - 101] == [each.largest_timestamp for each in plan.deletions]

    def test_without_delete_only_the_log_start_counts(self):
        """As in a compacted topic."""
        plan = plan_of(
            segments_of(0, 0, 0),
            log_start_offset=10,
            retention_bytes=0,
            retention_ms=0,
            deletes=False,
        )
        assert [(0, BY_LOG_START)] == gone(plan)
        assert (None, None) == (plan.due_ms, plan.due_bytes)

    def test_age_is_more_than_the_limit(self):
        """At the limit a segment stays; it is due a millisecond later."""
        assert [] == gone(plan_of(segments_of(NOW_MS - 100), retention_ms=100))
        assert NOW_MS + 1 == plan_of(segments_of(NOW_MS - 100), retention_ms=100).due_ms
        assert [(0, BY_AGE)] == gone(plan_of(segments_of(NOW_MS - 101), retention_ms=100))

    def test_due_by_size(self):
        """It says how many bytes may still come."""
        segments = segments_of(0, 0, 0)
        plan = plan_of(segments, retention_bytes=250)
        assert (0, 50) == (plan.first_kept.base_offset, plan.due_bytes)
        grown = [*segments[:2], segments[2]._replace(size_bytes=150)]
        assert [(0, BY_SIZE)] == gone(plan_of(grown, retention_bytes=250))

    def test_stops_at_the_first_that_stays(self):
        """A log never gets a hole."""
        plan = plan_of(segments_of(0, NOW_MS, 0), retention_ms=100)
        assert [(0, BY_AGE)] == gone(plan)

    def test_high_watermark(self):
        """What is not replicated stays, even if the log start is beyond it."""
        plan = plan_of(segments_of(0, 0), high_watermark=15, retention_ms=0)
        assert [(0, BY_AGE)] == gone(plan)
        assert plan.waits_for_replication

    def test_last_segment(self):
        """It may go, unless it is empty."""
        assert [(0, BY_AGE), (10, BY_AGE)] == gone(plan_of(segments_of(0, 0), retention_ms=0))
        empty = [*segments_of(0), Segment(10, 0, 0)]
        plan = plan_of(empty, high_watermark=10, log_end_offset=10, retention_ms=0)
        assert [(0, BY_AGE)] == gone(plan)
        assert (None, False) == (plan.due_ms, plan.has_no_timestamps)

    def test_no_timestamps(self):
        """Nothing says how old the records are: they stay, and what is behind them."""
        plan = plan_of(segments_of(None, 0), retention_ms=0)
        assert [] == gone(plan)
        assert plan.has_no_timestamps
        assert not plan_of(segments_of(None, 0)).has_no_timestamps  # Nobody limits the age.

    def test_timestamp_in_the_future(self):
        """One that is a little ahead is a clock's; more of it is a mistake that blocks."""
        assert not plan_of(segments_of(NOW_MS + AHEAD_MS_MAX, 0), retention_ms=0).is_ahead
        assert plan_of(segments_of(NOW_MS + AHEAD_MS_MAX + 1, 0), retention_ms=0).is_ahead


def by_age(config=None):
    return {**SMALL, "retention.ms": HOUR_MS, **(config or {})}


class Session:
    """Opens one log, again and again, at a time that a test sets."""

    def __init__(self, path):
        self.path = str(path)
        self.clock = ManualClock(NOW_MS)
        self.log = None

    def open(self, **config):
        self.close()
        scheduler = ManualScheduler(self.clock)
        self.log = open_log(self.path, config=by_age(config), clock=self.clock, scheduler=scheduler)
        return self.log

    def close(self):
        if self.log is not None and not self.log.is_closed:
            assert [] == list(self.log.check())
            self.log.close()


@pytest.fixture(name="session")
def _session(tmp_path):
    session = Session(tmp_path / "orders-0")
    yield session
    session.close()


def fill(log, timestamps):
    for n, timestamp in enumerate(timestamps):
        log.append(b"%0120d" % n, timestamp=timestamp)
        log.roll()


def offsets(log):
    return [record.offset for record in log]


class TestNominations:
    """Indexes and file times nominate; batch headers decide (DESIGN.md D5)."""

    def damage_time_index(self, path, timestamp):
        """Let the index of the first segment say that its largest timestamp is another."""
        name = os.path.join(path, f"{0:020}.timeindex")
        assert os.path.getsize(name) % 12 == 0
        with open(name, "wb") as file:
            file.write(struct.pack(">qi", timestamp, 0))

    def test_time_index_that_says_old(self, session):
        """Young records stay."""
        fill(session.open(), [NOW_MS] * 3)
        session.close()
        self.damage_time_index(session.path, 1000)
        log = session.open()
        assert 0 == log.delete_old_segments()
        log.segments[0].set_max_timestamp(TimestampOffset(1000, 0))  # As if it was believed.
        assert 0 == log.delete_old_segments()
        assert [0, 1, 2] == offsets(log)
        log.abandon()

    def test_time_index_that_says_future(self, session):
        """It does not block old records, nor is it told as a timestamp."""
        fill(session.open(), [NOW_MS - 2 * HOUR_MS, NOW_MS])
        session.close()
        self.damage_time_index(session.path, NOW_MS + 100 * HOUR_MS)
        log = session.open()
        log.segments[0].set_max_timestamp(TimestampOffset(NOW_MS + 100 * HOUR_MS, 0))
        plan = log.apply_retention()
        assert [(0, BY_AGE)] == gone(plan)
        assert NOW_MS - 2 * HOUR_MS == plan.deletions[0].largest_timestamp
        assert [1] == offsets(log)

    def test_file_time(self, session):
        """A copy with wrong times loses nothing, also where records have no timestamps."""
        log = session.open()
        fill(log, [NOW_MS] * 2)
        log.append_batches(encode_batch([(None, -1, None, b"v", ())]), leader_epoch=0)
        for name in os.listdir(session.path):
            os.utime(os.path.join(session.path, name), (0, 0))
        assert 0 == log.delete_old_segments()
        assert [0, 1, 2] == offsets(log)

    def test_records_without_timestamps(self, session):
        """They stay, and it is told; by size they go."""
        log = session.open()
        for _ in range(2):
            log.append_batches(encode_batch([(None, -1, None, b"v", ())]), leader_epoch=0)
            log.roll()
        for name in os.listdir(session.path):
            os.utime(os.path.join(session.path, name), (0, 0))
        session.clock.advance(100 * HOUR_MS)
        plan = log.apply_retention()
        assert ((), True) == (plan.deletions, plan.has_no_timestamps)
        assert "records without timestamps" in str(blocked_retention(plan))
        log.update_config(LogConfig.of(by_age({"retention.bytes": 0})))
        assert 2 == log.delete_old_segments()

    def test_walked_before_the_lock(self, session, monkeypatch):
        """Appends go on meanwhile; what they have brought counts."""
        log = session.open(**{"segment.bytes": 100_000})
        log.append(b"v", timestamp=NOW_MS - 2 * HOUR_MS)
        walk, walks = LogSegment.headers, []

        def meanwhile(segment, *arguments):
            walks.append(segment.size_bytes)
            yield from walk(segment, *arguments)
            if len(walks) == 1:
                thread = threading.Thread(
                    target=log.append, args=(b"w",), kwargs={"timestamp": NOW_MS}
                )
                thread.start()
                thread.join(PATIENCE_SECONDS)
                assert not thread.is_alive()

        monkeypatch.setattr(LogSegment, "headers", meanwhile)
        assert 0 == log.delete_old_segments()
        monkeypatch.undo()
        assert [0, 1] == offsets(log)
        log.roll()
        session.clock.advance(2 * HOUR_MS)
        monkeypatch.setattr(LogSegment, "headers", lambda *given: walks.append(0) or walk(*given))
        del walks[:]
        assert 1 == log.delete_old_segments()
        assert 1 == len(walks)  # Once for both looks.

    @pytest.mark.parametrize("length", [1, 2**30])
    def test_damaged_batch(self, session, length):
        """What cannot be walked to its end is not deleted: young records may be behind it."""
        log = session.open(**{"segment.bytes": 100_000})
        log.append(b"old", timestamp=NOW_MS - 2 * HOUR_MS)
        log.append(b"young", timestamp=NOW_MS)
        log.roll()
        with open(os.path.join(session.path, f"{0:020}.log"), "r+b") as file:
            file.seek(8)
            second = LOG_OVERHEAD + int.from_bytes(file.read(4), "big")
            file.seek(second + 8)
            file.write(struct.pack(">i", length))
        log.segments[0].set_max_timestamp(TimestampOffset(1000, 0))  # A wrong index.
        with pytest.raises(CorruptRecordError):
            log.delete_old_segments()
        assert 0 == log.log_start_offset
        log.abandon()


class TestActiveSegment:
    def test_goes_by_age(self, session):
        """A new one takes its place, and the log goes on at its end."""
        log = session.open()
        log.append(b"v", timestamp=NOW_MS)
        session.clock.advance(HOUR_MS)
        assert 0 == log.delete_old_segments()
        session.clock.advance(1)
        assert 1 == log.delete_old_segments()
        assert (1, 1, []) == (log.log_start_offset, log.log_end_offset, offsets(log))
        assert 1 == log.append(b"w", timestamp=NOW_MS)

    def test_files_wait(self, session):
        """They are renamed at once, and go after file.delete.delay.ms."""
        log = session.open(**{"file.delete.delay.ms": 5000})
        log.append(b"v", timestamp=NOW_MS - 2 * HOUR_MS)
        assert 1 == log.delete_old_segments()
        waiting = [name for name in os.listdir(session.path) if name.endswith(".deleted")]
        assert f"{0:020}.log.deleted" in waiting
        log._scheduler.advance_to(NOW_MS + 5001)
        assert [] == [name for name in os.listdir(session.path) if name.endswith(".deleted")]


class TestTold:
    def test_first_deletion(self, session, caplog):
        """It is logged with its rule and its timestamp; later ones are not, unless debugging."""
        caplog.set_level(logging.INFO, "logstore")
        log = session.open()
        fill(log, [NOW_MS - 2 * HOUR_MS - 5, NOW_MS - 2 * HOUR_MS, NOW_MS])
        log.delete_old_segments()
        (line,) = [each for each in caplog.messages if "deleted by" in each]
        assert line.endswith(
            f"orders-0: offsets 0 to 1 (2 segments) are deleted by retention.ms={HOUR_MS};"
            f" their largest timestamp is {NOW_MS - 2 * HOUR_MS}"
        )
        session.clock.advance(2 * HOUR_MS)
        assert 1 == log.delete_old_segments()
        assert 1 == len([each for each in caplog.messages if "deleted by" in each])

    def test_future_timestamp(self, tmp_path):
        """The store reports it once for each topic, with the remedy."""
        clock = ManualClock(NOW_MS)
        scheduler = ManualScheduler(clock)
        store = open_log_store(
            tmp_path / "data",
            config={**by_age(), "message.timestamp.after.max.ms": 2**63 - 1},
            clock=clock,
            scheduler=scheduler,
        )
        with store:
            topic = store.create_topic("orders", partitions=2)
            for log in topic.logs():
                fill(log, [NOW_MS + 1000 * HOUR_MS, NOW_MS - 5 * HOUR_MS])
            scheduler.advance_to(NOW_MS + HOUR_MS)
            (report,) = store.errors
            error = report.error
            assert isinstance(error, RetentionBlockedError)
            assert ("orders", NOW_MS + 1000 * HOUR_MS) == (error.topic, error.timestamp)
            assert "retention.bytes" in str(error)
            assert "move the log start" in str(error)
            number = error.partition
            assert [0, 1] == offsets(topic[number])
            topic[number].maybe_increment_log_start_offset(1)  # The remedy.
            assert 2 == topic[number].delete_old_segments()


class TestAppendTime:
    """Retention by the time of the append, whatever the timestamps are."""

    def opened(self, session):
        return session.open(**{"logstore.retention.timestamp.type": "LogAppendTime"})

    def set_file_times(self, session, ms=0):
        for name in os.listdir(session.path):
            if name.endswith(".log"):
                os.utime(os.path.join(session.path, name), (ms / 1000, ms / 1000))

    def round_after(self, session, ms):
        session.clock.advance(ms)
        self.set_file_times(session)
        return session.log.delete_old_segments()

    def test_counts_from_the_append(self, session):
        """Old records stay as long as new ones; the future blocks nothing."""
        log = self.opened(session)
        log.update_config(log.config.replace(message_timestamp_after_max_ms=2**63 - 1))
        fill(log, [NOW_MS + 1000 * HOUR_MS, NOW_MS - 1000 * HOUR_MS])
        assert 0 == self.round_after(session, 0)
        fill(log, [NOW_MS - 1000 * HOUR_MS])
        assert 0 == self.round_after(session, HOUR_MS)
        assert () == log.retention_plan().deletions  # At the limit they stay.
        assert 2 == self.round_after(session, 1)
        assert [2] == offsets(log)
        assert 1 == self.round_after(session, HOUR_MS)

    def test_after_the_next_open(self, session):
        """Times go on; a reader knows them, too."""
        fill(self.opened(session), [1000, 1000])
        assert 0 == self.round_after(session, 0)
        self.opened(session)
        with open_log(session.path, "r", config=session.log.config, clock=session.clock) as reader:
            self.set_file_times(session)
            session.clock.advance(HOUR_MS + 1)
            assert 2 == len(reader.retention_plan().deletions)
        assert 2 == session.log.delete_old_segments()

    def test_a_log_that_closes_before_the_first_round(self, session):
        """Its close notes the time: else a log that is open for moments only would keep all."""
        fill(self.opened(session), [1000, 1000])
        self.opened(session)
        assert 2 == self.round_after(session, HOUR_MS + 1)

    def test_file_that_was_written_since(self, session):
        """Notes alone delete nothing that is younger than they say: a broker may have been here."""
        fill(self.opened(session), [1000, 1000])
        assert 0 == self.round_after(session, 0)
        session.clock.advance(HOUR_MS + 1)
        self.set_file_times(session, session.clock.milliseconds() - 5)
        assert 0 == session.log.delete_old_segments()

    def test_notes_that_nobody_understands(self, session, caplog):
        """Time begins anew."""
        fill(self.opened(session), [1000])
        assert 0 == self.round_after(session, 0)
        with open(os.path.join(session.path, APPEND_TIMES_FILE), "w") as file:
            file.write("nonsense")
        self.opened(session)
        assert 0 == self.round_after(session, 2 * HOUR_MS)
        assert "taken for empty" in caplog.text
        assert 1 == self.round_after(session, HOUR_MS + 1)

    def test_notes(self):
        """One for each segment at most, and the last; none of what was truncated."""
        times = noted((), 10, 1, [10])
        times = noted(times, 15, 2, [10, 15])
        assert ((10, 1), (15, 2)) == times
        assert ((10, 1), (20, 3)) == noted(times, 20, 3, [10, 20])
        assert ((10, 1), (12, 4)) == noted(times, 12, 4, [10, 12])
        assert times == noted(times, 15, 9, [10, 15])
        assert (1, 2, 2, None) == tuple(append_time(times, each) for each in (3, 11, 15, 16))


def test_readers_elsewhere(session):
    """A reader in another process is told what there is; what it holds stays."""
    log = session.open()
    fill(log, [NOW_MS - 2 * HOUR_MS, NOW_MS - 2 * HOUR_MS, NOW_MS])
    code = f"""if True:
        import sys, logstore
        with logstore.open({session.path!r}, "r") as log:
            held = log[0].value
            print("ready", flush=True)
            sys.stdin.readline()
            assert held.endswith(b"0")
            try:
                log.read(0)
            except logstore.OffsetOutOfRangeError as error:
                print(error.log_start_offset, error.log_end_offset)
    """
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert "ready\n" == reader.stdout.readline()
        held = log[0]
        assert 2 == log.delete_old_segments()
        assert held.value.endswith(b"0")
        assert "2 3\n" == reader.communicate("go\n", timeout=PATIENCE_SECONDS)[0]
