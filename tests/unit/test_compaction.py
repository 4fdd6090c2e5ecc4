"""Which log is cleaned, when and by whom; and cleaning one log on request."""

from __future__ import annotations

import errno
import os
import threading
import time

import pytest
from patience import PATIENCE_SECONDS, until

import logstore
from logstore.cleaner_config import CleanerConfig
from logstore.clock import ManualClock
from logstore.compaction import LogCleaner, LogCleanerManager
from logstore.config import LogConfig
from logstore.errors import (
    ConfigError,
    CorruptRecordError,
    DiskFullError,
    InvalidRecordError,
    LogCleaningAbortedError,
)
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
        "file.delete.delay.ms": 1000,
        "message.timestamp.before.max.ms": 2**63 - 1,
    }
)
SETTINGS = CleanerConfig(log_cleaner_dedupe_buffer_size=24_000, log_cleaner_backoff_ms=1000)


class Logs:
    """Some logs on one clock."""

    def __init__(self, path, files=None):
        self.path = path
        self.clock = ManualClock(NOW_MS)
        self.scheduler = ManualScheduler(self.clock)
        self.open = []
        self.reports = []
        self.options = {} if files is None else {"files": files}

    def new(self, name, config=CONFIG, rounds=30):
        log = open_log(
            self.path / name,
            config=config,
            clock=self.clock,
            scheduler=self.scheduler,
            **self.options,
        )
        self.open.append(log)
        for number in range(rounds):
            log.append(b"%d" % number + b"x" * 30, key=b"k", timestamp=NOW_MS)
        if rounds:
            log.roll()
        return log

    def cleaner(self, config=SETTINGS, **options):
        options.setdefault("in_background", False)
        return LogCleaner(
            lambda: self.open,
            scheduler=self.scheduler,
            config=config,
            clock=self.clock,
            report=lambda error, what: self.reports.append((what, error)),
            **options,
        )

    def grabbed(self, manager):
        found = manager.grab_filthiest_compacted_log(lambda *_: None)
        return None if found is None else found.log

    def manager(self):
        return LogCleanerManager(lambda: self.open, self.clock)


@pytest.fixture(name="logs")
def _logs(tmp_path):
    logs = Logs(tmp_path)
    yield logs
    for log in logs.open:
        if not log.is_closed:
            log.close()


class TestCompact:
    def test_a_log_alone(self, tmp_path):
        """Only last values stay; the checkpoint is there at the next open."""
        path = tmp_path / "orders-0"
        with logstore.open(path, config={"cleanup.policy": "compact"}) as log:
            log.extend([b"1", b"1", b"2"], keys=[b"a", b"b", b"a"])
            log.roll()
            stats = log.compact()
            assert (3, 2) == (stats.messages_read, stats.messages_written)
            assert [1, 2] == [record.offset for record in log.read()]
        assert (path / "cleaner-offset-checkpoint").read_text().splitlines()[2:] == ["orders 0 3"]
        with logstore.open(path, config={"cleanup.policy": "compact"}) as log:
            assert 3 == log.cleaner_offset
            assert 0 == log.compact().messages_read

    def test_many_rounds(self, tmp_path):
        """A small map takes them all the same."""
        config = {"cleanup.policy": "compact", "segment.bytes": 1000}
        with logstore.open(tmp_path / "log-0", config=config) as log:
            for number in range(3):
                log.extend([b"%d" % number] * 100, keys=[b"key %d" % key for key in range(100)])
            log.roll()
            seen = []
            log.compact(
                config=CleanerConfig(log_cleaner_dedupe_buffer_size=24 * 30),
                on_progress=lambda done, total: seen.append((done, total)),
            )
            assert [(b"key %d" % key, b"2") for key in range(100)] == [
                (record.key, record.value) for record in log.read()
            ]
            assert seen
            assert all(done <= total for done, total in seen)

    def test_it_has_to_be_asked_for(self, tmp_path):
        """cleanup.policy says so; records without a key are not removed by the way."""
        with logstore.open(tmp_path / "log-0") as log:
            log.append(b"x")
            log.append(b"1", key=b"a")
            log.roll()
            with pytest.raises(ConfigError, match=r"cleanup\.policy=delete must have compact"):
                log.compact()
            log.update_config({"cleanup.policy": "compact"})
            with pytest.raises(InvalidRecordError, match="1 records without a key"):
                log.compact()
            assert 2 == len(list(log.read()))
            assert 1 == log.compact(refuse_null_keys=False).invalid_messages_read
            assert 1 == len(list(log.read()))

    def test_one_at_a_time(self, logs):
        """A second cleaning of the same log says so."""
        log = logs.new("a-0")
        with log.cleaning(), pytest.raises(LogCleaningAbortedError, match="already"):
            log.compact()

    def test_a_truncation_sets_the_checkpoint_back(self, logs):
        """What is written there again is dirty."""
        log = logs.new("a-0")
        log.compact()
        for number in range(60):
            log.append(b"%d" % number + b"x" * 30, key=b"k", timestamp=NOW_MS)
        log.truncate_to(29)

        assert log.active_segment.base_offset == log.cleaner_offset

    def test_readers_in_other_processes(self, tmp_path):
        """They reopen the files, whatever they had open."""
        path = tmp_path / "log-0"
        config = {"cleanup.policy": "compact", "segment.bytes": 2000}
        with logstore.open(path, config=config) as log, logstore.open(path, "r") as reader:
            for count in range(4):
                log.extend(
                    [b"%d-%d" % (count, number) + b"x" * 50 for number in range(200)],
                    keys=[b"%d" % (number % 10) for number in range(200)],
                )
                assert {record.key for record in reader.read()} == {
                    b"%d" % number for number in range(10)
                }
                half = reader.read("earliest")
                first = [next(half).offset for _ in range(3)]
                log.roll()
                log.compact()
                rest = [record.offset for record in half]
                assert first + rest == sorted({*first, *rest})
                assert (count + 1) * 200 - 1 == rest[-1]
                expected = [(record.offset, record.value) for record in log.read()]
                assert 10 == len(expected)
                assert expected == [(record.offset, record.value) for record in reader.read()]
                offset = expected[0][0]
                assert expected[0][1] == reader[offset].value
                fetched = reader.fetch(0, max_bytes=10**6)
                assert offset in [
                    record.offset for batch in fetched.batches() for record in batch.records()
                ]


class TestManager:
    def test_the_filthiest_first(self, logs):
        """By the dirty share of the bytes, above min.cleanable.dirty.ratio."""
        clean = logs.new("clean-0")
        clean.compact()
        for number in range(3):
            clean.append(b"%d" % number, key=b"k", timestamp=NOW_MS)
        clean.roll()
        dirty = logs.new("dirty-0")
        logs.new("deleted-0", CONFIG.replace(cleanup_policy="delete"))
        logs.new("lenient-0", CONFIG.replace(min_cleanable_dirty_ratio=1.0))
        manager = logs.manager()

        assert dirty is logs.grabbed(manager)
        assert clean is logs.grabbed(manager)  # The other one is in progress.
        assert None is logs.grabbed(manager)
        manager.done_cleaning(dirty)
        assert dirty is logs.grabbed(manager)

    def test_max_compaction_lag(self, logs):
        """However small the dirty share is."""
        log = logs.new(
            "a-0", CONFIG.replace(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=5000)
        )
        manager = logs.manager()

        assert None is logs.grabbed(manager)
        logs.clock.advance(5001)
        assert log is logs.grabbed(manager)

    def test_pause(self, logs):
        """As often as it was paused it has to be resumed; who pauses waits for the cleaning."""
        log = logs.new("a-0")
        manager = logs.manager()
        with manager.paused(log), manager.paused(log):
            assert None is logs.grabbed(manager)
        assert log is logs.grabbed(manager)
        pausing = threading.Thread(target=manager.abort_and_pause_cleaning, args=(log,))
        pausing.start()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            try:
                manager.check_cleaning_aborted(log)
            except LogCleaningAbortedError:
                break
            time.sleep(0.001)
        assert pausing.is_alive()
        manager.done_cleaning(log)
        pausing.join(PATIENCE_SECONDS)
        assert not pausing.is_alive()
        assert None is logs.grabbed(manager)
        manager.resume_cleaning(log)
        assert log is logs.grabbed(manager)

    def test_a_checkpoint_below_the_log_start(self, logs):
        """It is written anew."""
        log = logs.new("a-0")
        log.update_cleaner_offset(5)
        log.maybe_increment_log_start_offset(20)
        logs.grabbed(logs.manager())

        assert 20 == log.cleaner_offset


class TestLogCleaner:
    def test_every_dirty_log_is_cleaned(self, logs):
        """When the scheduler says that it is time to look."""
        first, second = logs.new("a-0"), logs.new("b-0")
        cleaner = logs.cleaner()
        cleaner.start()
        logs.scheduler.advance_to(NOW_MS + 1000)

        assert [1, 1] == [len(list(log.read())) for log in (first, second)]
        assert [30, 30] == [log.cleaner_offset for log in (first, second)]
        assert [] == logs.reports
        cleaner.shutdown()

    def test_held_logs_are_left_alone(self, logs):
        """Nothing is compacted that nobody asked for."""
        held = logs.new("a-0")
        logs.cleaner(is_held=lambda log: log is held).run_once()

        assert 30 == len(list(held.read()))

    def test_damage_is_set_aside_and_reported(self, logs):
        """Once; the others are cleaned, and the log is cleaned again after it was opened anew."""
        bad, good = logs.new("bad-0"), logs.new("good-0")
        with open(bad.segments[0].log_path, "r+b") as file:
            file.seek(70)
            file.write(b"\xff\xff")
        cleaner = logs.cleaner()
        cleaner.run_once()
        cleaner.run_once()

        assert [("clean bad-0", CorruptRecordError)] == [
            (what, type(error)) for what, error in logs.reports
        ]
        assert [bad] == list(cleaner.manager.uncleanable)
        assert 1 == len(list(good.read()))
        bad.abandon()
        assert {} == cleaner.manager.uncleanable

    def test_a_full_disk_passes(self, tmp_path):
        """The log is tried again some time later."""
        files = FailingFiles()
        logs = Logs(tmp_path, files)
        log = logs.new("a-0")
        cleaner = logs.cleaner()
        files.fail("pwrite", errno.ENOSPC)
        cleaner.run_once()
        files.clear()
        assert [DiskFullError] == [type(error) for _, error in logs.reports]
        cleaner.run_once()
        assert 1 < len(list(log.read()))  # Groups before it are cleaned.
        logs.clock.advance(10_000)
        cleaner.run_once()
        assert 1 == len(list(log.read()))
        log.close()

    def test_retention_of_compacted_logs(self, logs):
        """With compact,delete old segments go, too."""
        log = logs.new("a-0", CONFIG.replace(cleanup_policy="compact,delete", retention_ms=5000))
        for segment in log.segments:  # What counts for one that gets empty.
            segment.set_modified_ms(NOW_MS)
        logs.clock.advance(5001)
        logs.cleaner().run_once()

        assert 30 == log.log_start_offset

    def test_threads_come_and_go(self, tmp_path):
        """They are there while there is something to clean, and share the memory."""
        names = set()
        logs = Logs(tmp_path)
        opened = [logs.new(f"log-{number}") for number in range(4)]
        cleaner = logs.cleaner(
            CleanerConfig(log_cleaner_threads=2, log_cleaner_dedupe_buffer_size=48_000),
            in_background=True,
        )
        seen = cleaner._check_done

        def check_done(log):
            names.add(threading.current_thread().name)
            seen(log)

        cleaner._check_done = check_done
        cleaner.start()
        logs.scheduler.advance_to(NOW_MS + 15_000)
        until(lambda: not cleaner.is_working)
        assert [1] * 4 == [len(list(log.read())) for log in opened]
        assert names <= {"kafka-log-cleaner-thread-0", "kafka-log-cleaner-thread-1"}
        cleaner.shutdown()
        for log in opened:
            log.close()

    def test_no_memory_passes(self, logs):
        """Without memory for a map a log is set aside, and is in nobody's way; later it goes on."""
        log = logs.new("a-0")
        cleaner = logs.cleaner(
            CleanerConfig(log_cleaner_dedupe_buffer_size=2**60, log_cleaner_backoff_ms=1000)
        )
        cleaner.run_once()
        assert 0 == cleaner.run_once()
        ((what, error),) = logs.reports
        assert "clean a-0" == what
        assert isinstance(error, MemoryError)
        with cleaner.manager.paused(log):
            assert 30 == len(list(log.read()))

        cleaner.reconfigure(SETTINGS)
        cleaner.start()
        logs.clock.advance(10_000)
        cleaner.run_once()
        assert 1 == len(list(log.read()))

    def test_no_thread_passes(self, logs):
        """Where no thread can be started, a later look tries again."""
        log = logs.new("a-0")
        cleaner = logs.cleaner(in_background=True)
        cleaner.start()
        before = threading.stack_size(2**48)  # More than there are addresses.
        try:
            logs.scheduler.advance_to(NOW_MS + 1000)
        finally:
            threading.stack_size(before)
        assert ["start a thread of the cleaner"] == [what for what, _ in logs.reports]
        assert 30 == len(list(log.read()))

        logs.scheduler.advance_to(NOW_MS + 2000)
        until(lambda: not cleaner.is_working)
        assert 1 == len(list(log.read()))
        cleaner.shutdown()

    def test_shutdown_ends_a_cleaning(self, tmp_path):
        """Soon, and without a trace; another start goes on."""
        logs = Logs(tmp_path)
        log = logs.new("a-0")
        cleaner = logs.cleaner(in_background=True)
        entered, go_on = threading.Event(), threading.Event()
        seen = cleaner._check_done

        def check_done(each):
            entered.set()
            go_on.wait(PATIENCE_SECONDS)
            seen(each)

        cleaner._check_done = check_done
        cleaner.start()
        logs.scheduler.advance_to(NOW_MS + 1000)
        assert entered.wait(PATIENCE_SECONDS)
        stopping = threading.Thread(target=cleaner.shutdown)
        stopping.start()
        until(lambda: cleaner._is_stopping)
        go_on.set()
        stopping.join(PATIENCE_SECONDS)
        assert not stopping.is_alive()
        assert 30 == len(list(log.read()))
        assert not [name for name in os.listdir(log.directory) if "cleaned" in name]
        cleaner.reconfigure(CleanerConfig(log_cleaner_dedupe_buffer_size=24_000))
        cleaner.start()
        cleaner.run_once()
        assert 1 == len(list(log.read()))
        log.close()

    def test_threads_change_by_half_or_twice(self, tmp_path):
        """Kafka's rule; a change that breaks it is no change."""
        cleaner = Logs(tmp_path).cleaner(CleanerConfig(log_cleaner_threads=4))
        for threads in (0, 1, 9):
            with pytest.raises(ConfigError, match="half to twice"):
                cleaner.reconfigure(CleanerConfig(log_cleaner_threads=threads))
        for threads in (8, 4, 2):
            cleaner.reconfigure(CleanerConfig(log_cleaner_threads=threads))


class TestThrottler:
    def test_the_average_is_kept(self):
        """Who is too fast waits, at most every 300 ms."""
        clock = ManualClock(0)
        throttler = Throttler(1000, clock)
        for _ in range(10):
            clock.advance(100)
            throttler.maybe_throttle(500)

        assert 5000 >= clock.milliseconds() >= 4500

    def test_no_limit(self):
        """Nothing is counted."""
        clock = ManualClock(0)
        Throttler(float("inf"), clock).maybe_throttle(10**12)
        assert 0 == clock.milliseconds()


def test_every_wrong_setting_is_told():
    """All at once."""
    with pytest.raises(ConfigError) as caught:
        CleanerConfig(log_cleaner_threads=-1, log_cleaner_io_max_bytes_per_second=0)
    assert 2 == len(caught.value.problems)
