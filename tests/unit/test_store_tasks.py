"""A store's background work: checkpoints, retention, deletion; what fails is told."""

from __future__ import annotations

import errno
import os
import threading
import time

import pytest

from logstore.checkpoint import OffsetCheckpointFile
from logstore.clock import ManualClock
from logstore.errors import ClosedError, ConfigError, OfflineError, StorageError
from logstore.scheduler import ManualScheduler
from logstore.simulated_files import FailingFiles
from logstore.store import open_log_store

MINUTE_MS = 60_000


class Session:
    """A store in a directory, with its clock and scheduler."""

    def __init__(self, *paths, **options):
        self.clock = ManualClock()
        self.scheduler = ManualScheduler(self.clock)
        self.reports = []
        self.store = open_log_store(
            *paths,
            clock=self.clock,
            scheduler=self.scheduler,
            on_error=self.reports.append,
            **options,
        )

    def run_for(self, ms):
        return self.scheduler.advance_to(self.clock.milliseconds() + ms)


@pytest.fixture(name="session")
def _session(tmp_path):
    sessions = []

    def make(*paths, **options):
        session = Session(*(paths or (tmp_path / "data",)), **options)
        sessions.append(session)
        return session

    yield make
    for session in sessions:
        if not session.store.is_closed:
            assert [] == list(session.store.check())
            session.store.close()


def checkpoint(path, name):
    return OffsetCheckpointFile(path / name).read()


class TestCheckpoints:
    def test_written_periodically(self, session, tmp_path):
        """One file for all partitions, with what is in force; not with each flush."""
        s = session()
        topic = s.store.create_topic("orders", partitions=3)
        for log in topic.logs():
            log.append(b"v", sync=True)
        data = tmp_path / "data"
        assert {} == checkpoint(data, "recovery-point-offset-checkpoint")
        s.run_for(MINUTE_MS)
        expected = {("orders", n): 1 for n in range(3)}
        assert expected == checkpoint(data, "recovery-point-offset-checkpoint")
        assert expected == checkpoint(data, "replication-offset-checkpoint")

    def test_log_start_is_durable_at_once(self, session, tmp_path):
        """As in a log that stands alone."""
        s = session()
        s.store.create_topic("orders", partitions=2)
        log = s.store["orders", 1]
        log.extend([b"a", b"b"])
        log.maybe_increment_log_start_offset(1)
        assert 1 == checkpoint(tmp_path / "data", "log-start-offset-checkpoint")["orders", 1]

    def test_truncation_lowers_the_recovery_point_first(self, session, tmp_path):
        """What was flushed may go: the file must not promise it."""
        s = session()
        s.store.create_topic("orders")
        log = s.store["orders", 0]
        log.extend([b"a", b"b", b"c"], sync=True)
        s.run_for(MINUTE_MS)
        name = "recovery-point-offset-checkpoint"
        assert {("orders", 0): 3} == checkpoint(tmp_path / "data", name)
        log.truncate_to(1)
        assert 1 >= checkpoint(tmp_path / "data", name)["orders", 0]

    def test_recovery_point_waits_for_the_indexes_of_sealed_segments(self, session, tmp_path):
        """The one on the disk: what it is below is not recovered, indexes and all."""
        s = session()
        s.store.create_topic("orders")
        log = s.store["orders", 0]
        for _ in range(3):
            log.append(b"v", sync=True)
            log.roll()
        log.append(b"v", sync=True)
        s.store._tasks.checkpoint_recovery_points(s.store)
        with log._lock:
            kept = log._offsets_to_keep().recovery_point
        assert kept < log.recovery_point == 4
        name = "recovery-point-offset-checkpoint"
        assert {("orders", 0): kept} == checkpoint(tmp_path / "data", name)
        s.run_for(2 * MINUTE_MS)
        assert {("orders", 0): 4} == checkpoint(tmp_path / "data", name)

    def test_entries_of_deleted_partitions_go(self, session, tmp_path):
        """With the topic."""
        s = session()
        for name in ("orders", "other"):
            s.store.create_topic(name)[0].append(b"v", sync=True)
        s.run_for(MINUTE_MS)
        s.store.delete_topic("orders")
        name = "recovery-point-offset-checkpoint"
        assert {("other", 0): 1} == checkpoint(tmp_path / "data", name)

    def test_unreadable_checkpoint(self, session, tmp_path, caplog):
        """It is taken for empty: everything is recovered from the start, and nothing is lost."""
        s = session()
        s.store.create_topic("orders")[0].append(b"v", sync=True)
        s.store.close()
        path = tmp_path / "data" / "recovery-point-offset-checkpoint"
        path.write_text("0\nnonsense\n")
        s = session()
        assert "taken for empty" in caplog.text
        assert [b"v"] == [record.value for record in s.store["orders", 0]]


class TestRetention:
    def config(self, **more):
        return {"segment.bytes": 200, "file.delete.delay.ms": 0, **more}

    def fill(self, log, count=20):
        for n in range(count):
            log.append(b"%050d" % n)

    def test_of_partitions_that_nobody_uses(self, session):
        """A lazy store opens those whose settings let records go, and no other."""
        s = session()
        for name, config in (
            ("kept", {}),
            ("small", {"retention.bytes": 300}),
            ("states", {"cleanup.policy": "compact"}),
        ):
            topic = s.store.create_topic(name, config=self.config(**config))
            self.fill(topic[0], 0 if config.get("cleanup.policy") else 20)
        s.store.close()
        s = session(lazy=True)
        assert [] == list(s.store.logs())
        s.run_for(6 * MINUTE_MS)
        names = {os.path.basename(log.directory) for log in s.store.logs()}
        assert {"small-0", "states-0"} == names
        assert s.store["small", 0].log_start_offset > 0
        assert 0 == s.store["kept", 0].log_start_offset
        assert not s.reports

    def test_by_size(self, session):
        """The task applies what each topic says; without a word nothing goes."""
        s = session(config=self.config())
        kept = s.store.create_topic("kept")[0]
        small = s.store.create_topic("small", config={"retention.bytes": 300})[0]
        self.fill(kept)
        self.fill(small)
        s.run_for(6 * MINUTE_MS)
        assert 0 == kept.log_start_offset
        assert 0 < small.log_start_offset < small.log_end_offset
        assert 300 <= small.size_bytes < 600

    def test_log_starts_are_written_together(self, session, tmp_path, monkeypatch):
        """Many partitions lose segments in a round: their checkpoint is written once."""
        s = session(config=self.config(**{"retention.bytes": 300}))
        topic = s.store.create_topic("orders", partitions=5)
        for log in topic.logs():
            self.fill(log)
        written = []
        write = OffsetCheckpointFile.write
        monkeypatch.setattr(
            OffsetCheckpointFile,
            "write",
            lambda self, offsets: (
                written.append(os.path.basename(self.path)),
                write(self, offsets),
            ),
        )
        s.store._tasks.delete_old_segments(s.store)
        assert 1 == written.count("log-start-offset-checkpoint")
        starts = checkpoint(tmp_path / "data", "log-start-offset-checkpoint")
        assert starts == {("orders", n): topic[n].log_start_offset for n in range(5)}
        assert all(start > 0 for start in starts.values())

    def test_altered_at_run_time(self, session):
        """The next round goes by the new settings; the log stays open."""
        s = session(config=self.config())
        log = s.store.create_topic("orders")[0]
        self.fill(log)
        s.run_for(6 * MINUTE_MS)
        assert 0 == log.log_start_offset
        s.store.alter_topic("orders", {"retention.ms": 1000})
        s.run_for(6 * MINUTE_MS)
        assert log.log_start_offset == log.log_end_offset
        assert not log.is_closed

    def test_compacted_logs_are_the_cleaners(self, session):
        """As in Kafka."""
        config = self.config(**{"retention.bytes": 300})
        s = session(config=config)
        log = s.store.create_topic("orders", config={"cleanup.policy": "compact,delete"})[0]
        for n in range(20):
            log.append(b"%050d" % n, key=b"%d" % n)
        s.store._tasks.delete_old_segments(s.store)
        assert 0 == log.log_start_offset
        s.run_for(MINUTE_MS)
        assert 0 < log.log_start_offset

    def test_held_until_somebody_says(self, session, tmp_path):
        """A topic that was found keeps everything, whatever the store's defaults are."""
        s = session()
        s.store.create_topic("orders")
        s.store.close()
        os.unlink(tmp_path / "data" / "logstore-topics")  # As a broker leaves a directory.
        s = session(
            config=self.config(**{"retention.ms": 1000, "cleanup.policy": "compact,delete"})
        )
        topic = s.store["orders"]
        self.fill(topic[0])
        assert topic.is_held
        assert (-1, False) == (topic[0].config.retention_ms, topic[0].config.compact)
        s.run_for(6 * MINUTE_MS)
        assert 0 == topic[0].log_start_offset
        s.store.alter_topic("orders", {"segment.bytes": 300})
        assert topic.is_held  # That says nothing of retention.
        s.store.alter_topic("orders", {"cleanup.policy": "delete"})
        assert not topic.is_held
        s.run_for(6 * MINUTE_MS)
        assert 0 < topic[0].log_start_offset


class TestAlter:
    def test_kept_in_the_store(self, session):
        """Overrides are there after the next open; unset ones are the store's again."""
        s = session()
        topic = s.store.create_topic("orders", config={"segment.bytes": 1000})
        s.store.alter_topic("orders", {"retention.ms": 5, "segment_ms": 7})
        s.store.close()
        s = session(config={"log.segment.bytes": 2000, "log.retention.hours": 1})
        topic = s.store["orders"]
        assert (1000, 5, 7) == (
            topic.config.segment_bytes,
            topic.config.retention_ms,
            topic[0].config.segment_ms,
        )
        config = s.store.alter_topic("orders", {"segment.bytes": None, "retention.ms": None})
        assert (2000, 3_600_000, 7) == (
            config.segment_bytes,
            config.retention_ms,
            config.segment_ms,
        )
        assert config == topic[0].config

    def test_refused_as_a_whole(self, session):
        """With every reason, also those between settings."""
        s = session()
        topic = s.store.create_topic("orders", config={"max.compaction.lag.ms": 10})
        before = topic.config
        with pytest.raises(ConfigError) as caught:
            s.store.alter_topic(
                "orders",
                {"retention.ms": -7, "segment.byte": 1, "flush.ms": 4, "nonsense": None},
            )
        assert 3 == len(caught.value.problems)
        with pytest.raises(ConfigError, match="must not exceed"):
            s.store.alter_topic("orders", {"min.compaction.lag.ms": 11})
        assert before == topic.config == topic[0].config
        with pytest.raises(ConfigError):
            s.store.create_topic("other", config={"segment.bytes": 0})
        assert ["orders"] == list(s.store)


class TestCleaner:
    CONFIG = {  # noqa: RUF012
        "segment.bytes": 500,
        "log.cleaner.dedupe.buffer.size": 1 << 20,
        "log.cleaner.backoff.ms": 1000,
    }

    def fill(self, log, rounds=10):
        for n in range(rounds):
            for key in (b"a", b"b", b"c"):
                log.append(b"%d" % n, key=key)

    def test_compacts_what_is_to_be_compacted(self, session, tmp_path):
        """In the background; the newest value of each key stays, others stay as they are."""
        s = session(config=self.CONFIG)
        kept = s.store.create_topic("kept")[0]
        log = s.store.create_topic("users", config={"cleanup.policy": "compact"})[0]
        for each in (kept, log):
            self.fill(each)
            each.roll()
            each.append(b"active", key=b"z")
        s.run_for(MINUTE_MS)
        assert 31 == len(list(kept))
        assert [(key, b"9") for key in (b"a", b"b", b"c")] == [
            (record.key, record.value) for record in log
        ][:3]
        name = "cleaner-offset-checkpoint"
        assert {("users", 0): 30} == checkpoint(tmp_path / "data", name)
        s.store.close()
        s = session(config=self.CONFIG)
        assert 4 == len(list(s.store["users", 0]))

    def test_off(self, session):
        """log.cleaner.enable=false."""
        s = session(config={**self.CONFIG, "log.cleaner.enable": False})
        log = s.store.create_topic("users", config={"cleanup.policy": "compact"})[0]
        self.fill(log)
        log.roll()
        s.run_for(MINUTE_MS)
        assert 30 == len(list(log))

    def test_held(self, session, tmp_path):
        """A topic that was found is not compacted before somebody says so."""
        s = session(config=self.CONFIG)
        self.fill(s.store.create_topic("users")[0])
        s.store["users", 0].roll()
        s.store.close()
        os.unlink(tmp_path / "data" / "logstore-topics")
        s = session(config={**self.CONFIG, "cleanup.policy": "compact"})
        log = s.store["users", 0]
        s.run_for(MINUTE_MS)
        assert 30 == len(list(log))
        s.store.alter_topic("users", {"cleanup.policy": "compact"})
        s.run_for(MINUTE_MS)
        assert 3 == len(list(log))

    def test_ends_with_the_store(self, tmp_path):
        """With threads of its own: a topic that is deleted, a policy that changes, a close."""
        config = {**self.CONFIG, "log.cleaner.backoff.ms": 1}
        with open_log_store(tmp_path / "data", config=config) as store:
            for name in "abc":
                store.create_topic(
                    name,
                    # Else two records stay if three are clean when they come.
                    config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0},
                )
            for _ in range(5):
                for name in store:
                    self.fill(store[name, 0], 3)
                    store[name, 0].roll()
            store.delete_topic("a")
            store.alter_topic("b", {"cleanup.policy": "delete"})
            deadline = time.monotonic() + 30
            while len(list(store["c", 0])) > 3:
                assert time.monotonic() < deadline
                time.sleep(0.005)
        assert not store.errors
        assert not [t for t in threading.enumerate() if t.name.startswith("kafka-log-cleaner")]


class TestFailures:
    def test_errors_are_told(self, session, monkeypatch, caplog):
        """To the callback, in store.errors, and in the log; the task goes on."""
        s = session()
        log = s.store.create_topic("orders")[0]
        s.store.create_topic("other")

        def fail():
            raise StorageError("no luck; try again", errno.EACCES)

        monkeypatch.setattr(type(log), "apply_retention", lambda self: fail())
        s.run_for(MINUTE_MS)
        told = ["delete old segments of orders-0", "delete old segments of other-0"]
        assert told == [report.what for report in s.reports]
        assert s.reports == list(s.store.errors)
        assert "delete old segments of orders-0: no luck" in caplog.text
        s.run_for(6 * MINUTE_MS)
        assert 4 == len(s.reports)

    def test_listener_that_fails(self, tmp_path, caplog):
        """It does not stop anything."""

        def fail(report):
            raise RuntimeError("oops")

        with open_log_store(tmp_path / "data", on_error=fail) as store:
            store.report(ValueError("what"), "try")
            assert 1 == len(store.errors)
        assert "oops" in caplog.text

    def test_task_of_a_log(self, session):
        """What a log's own background work raises comes to the store, too."""
        s = session()
        log = s.store.create_topic("orders", config={"flush.ms": 1000})[0]
        log.append(b"v")
        log.flush = lambda: (_ for _ in ()).throw(StorageError("no luck", errno.EACCES))
        s.run_for(3000)
        del log.flush
        assert "kafka-log-flusher" in {report.what for report in s.reports}

    def test_a_directory_that_fails(self, session, tmp_path):
        """It goes offline alone: the others serve, and are marked clean."""
        files = FailingFiles()
        paths = [tmp_path / "a", tmp_path / "b"]
        s = session(*paths, files=files)
        topic = s.store.create_topic("orders", partitions=4)
        for log in topic.logs():
            log.append(b"v", sync=True)
        files.fail("fdatasync", errno.EIO)
        with pytest.raises(StorageError):
            topic[0].append(b"x", sync=True)
        s.run_for(MINUTE_MS)
        assert [str(paths[0])] == list(s.store.offline_paths)
        assert (1, 3) == s.store.online_partitions_of("orders")
        with pytest.raises(ClosedError):
            topic._logs[0].append(b"x")
        with pytest.raises(OfflineError) as caught:
            topic[0].append(b"x")
        assert errno.EIO == caught.value.errno
        large = bytes(70_000)
        assert {1, 3} == {s.store["orders"].append(large).partition for _ in range(60)}
        assert "new" in repr(s.store.create_topic("new"))
        s.store.close()
        assert (False, True) == tuple((path / ".kafka_cleanshutdown").exists() for path in paths)
        s = session(*paths)
        assert 0 == len(s.store.errors)
        assert b"v" == s.store["orders", 0].first().value
        assert b"v" == s.store["orders", 2].first().value

    def test_checkpoint_on_a_failed_device(self, session, tmp_path):
        """What cannot be written takes the directory offline; a full disk does not."""
        files = FailingFiles()
        paths = [tmp_path / "a", tmp_path / "b"]
        s = session(*paths, files=files)
        s.store.create_topic("orders", partitions=2)
        s.store["orders", 0].append(b"v", sync=True)
        files.fail("open", errno.ENOSPC)
        s.run_for(MINUTE_MS)
        assert [] == list(s.store.offline_paths)
        assert 1 == len(s.reports)
        s.store["orders", 0].append(b"v", sync=True)
        files.fail("open", errno.EROFS)
        s.run_for(2 * MINUTE_MS)
        assert [str(paths[0])] == list(s.store.offline_paths)

    def test_directory_that_cannot_be_opened(self, session, tmp_path):
        """The others make a store; if there are none, that is an error."""
        (tmp_path / "a").write_text("a file")
        s = session(tmp_path / "a", tmp_path / "b")
        assert [str(tmp_path / "a")] == list(s.store.offline_paths)
        s.store.create_topic("orders", partitions=2)
        assert 2 == len(s.store.online_partitions_of("orders"))
        with pytest.raises(StorageError):
            session(tmp_path / "a")

    def test_partition_that_cannot_be_loaded(self, session, tmp_path):
        """It is isolated; its topic's others serve. What it has is not touched."""
        s = session()
        topic = s.store.create_topic("orders", partitions=3)
        for log in topic.logs():
            log.append(b"v")
        s.store.close()
        path = tmp_path / "data" / "orders-1" / "partition.metadata"
        good = path.read_bytes()
        path.write_text("version: 0\ntopic_id: nonsense\n")
        s = session()
        assert ["load orders-1"] == [report.what for report in s.reports]
        assert (0, 2) == s.store.online_partitions_of("orders")
        with pytest.raises(OfflineError, match="orders-1 is not served"):
            s.store["orders", 1]
        s.store.close()
        assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        path.write_bytes(good)
        s = session()
        assert b"v" == s.store["orders", 1].first().value

    def test_creation_that_fails(self, session, tmp_path):
        """All of a topic is there, or nothing."""
        files = FailingFiles()
        s = session(files=files)
        for at in range(1, 200):
            files.fail(None, errno.EACCES, at=at)
            try:
                s.store.create_topic("orders", partitions=2)
            except StorageError:
                files.clear()
                assert [] == list(s.store)
                continue
            break
        else:
            pytest.fail("it never succeeds")
        files.clear()
        assert at > 20
        assert 2 == len(s.store["orders"])
        s.store["orders"].append(b"v")
