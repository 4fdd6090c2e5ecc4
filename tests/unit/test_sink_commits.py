"""Commits of sinks: each version once, whatever becomes of records, process or topic."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

import pytest
from patience import until
from staged_records import staged

import logstore
from logstore.checkpoint import TopicPartition
from logstore.clock import ManualClock
from logstore.compression import CompressionType
from logstore.errors import (
    ClosedError,
    InvalidRecordError,
    InvalidTopicError,
    LogStoreError,
    ReadOnlyError,
    RecordTooLargeError,
    SinkVersionError,
    StagedBatchesError,
    UnknownTopicError,
)
from logstore.scheduler import ManualScheduler
from logstore.sink_commits import CLEAN_BYTES, ORPHAN_MS, PLACE, SinkCommit, sweep_staged
from logstore.staged_batches import StagedFile
from logstore.store import open_log_store
from logstore.topic_names import SINK_COMMITS_TOPIC

FEW = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}


@pytest.fixture(name="clock")
def _clock():
    return ManualClock()


@pytest.fixture(name="store")
def _store(tmp_path, clock):
    with opened(tmp_path, clock) as store:
        store.create_topic("t", partitions=2)
        store.create_topic("u")
        yield store
        assert [] == list(store.errors)
        assert store.is_closed or [] == list(store.check())


def opened(path, clock):
    """Return the store."""
    return open_log_store(
        path / "data", config=FEW, clock=clock, scheduler=ManualScheduler(clock), live_offsets=False
    )


def values(store, topic="t", partition=0, **options):
    """Return what a reader sees."""
    return list(store[topic, partition].read_values(**options))


def staged_in(store):
    """Return the names of staged files."""
    return [name for name in os.listdir(store.paths[0]) if name.startswith(".logstore-")]


def versions(store):
    """Return what is noted."""
    return {(each.sink_id, each.topic): each.version for each in store.sinks()}


class TestCommit:
    """What is appended."""

    def test_a_store_of_short_transactions(self, tmp_path, clock):
        """Tasks have none open, however long they take; a commit has what the store gives one."""
        config = {**FEW, "transaction.max.timeout.ms": 1000}
        scheduler = ManualScheduler(clock)
        with open_log_store(tmp_path, config=config, clock=clock, scheduler=scheduler) as store:
            store.create_topic("t")
            file = staged(store, "s", 1, {("t", 0): [b"a"]})
            scheduler.advance_to(clock.milliseconds() + 60_000)
            store.commit_staged("s", 1, [file])
            assert [b"a"] == values(store)

    def test_order_is_that_of_tasks_then_rows(self, store):
        """Within a partition; several topics and partitions in one transaction."""
        files = [
            staged(store, "q", 0, {("t", 0): [b"1", b"2"], ("t", 1): [b"a"]}, task=0),
            staged(store, "q", 0, {("t", 0): [b"3"], ("u", 0): [b"x"]}, task=1),
            staged(store, "q", 0, {}, task=2),
        ]
        assert SinkCommit({"t": 4, "u": 1}, ()) == store.commit_staged("q", 0, files)
        assert [b"1", b"2", b"3"] == values(store)
        assert ([b"a"], [b"x"]) == (values(store, "t", 1), values(store, "u"))
        assert {("q", "t"): 0, ("q", "u"): 0} == versions(store)
        assert [] == staged_in(store)

    def test_nothing_is_seen_before_the_commit(self, store, monkeypatch):
        """Also not by a reader that is there while it happens."""
        seen = []
        append = logstore.Transaction.add_rows

        def look(self, place, rows):
            seen.append((values(store), len(values(store, isolation="read_uncommitted"))))
            append(self, place, rows)

        monkeypatch.setattr(logstore.Transaction, "add_rows", look)
        store.commit_staged("q", 0, [staged(store, "q", 0, {("t", 0): [b"1"]})])
        assert [([], 1)] == seen
        assert [b"1"] == values(store)

    def test_two_sinks_alternate(self, store):
        """Each has versions of its own."""
        for version in range(4):
            for sink in ("q", "r"):
                text = f"{sink}{version}".encode()
                store.commit_staged(
                    sink, version, [staged(store, sink, version, {("t", 0): [text]})]
                )
        assert [b"q0", b"r0", b"q1", b"r1", b"q2", b"r2", b"q3", b"r3"] == values(store)
        assert {("q", "t"): 3, ("r", "t"): 3} == versions(store)

    def test_from_several_threads(self, store):
        """They wait for each other."""
        files = {n: staged(store, f"s{n}", 0, {("t", 0): [b"%d" % n]}) for n in range(4)}
        threads = [
            threading.Thread(target=store.commit_staged, args=(f"s{n}", 0, [path]))
            for n, path in files.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [b"0", b"1", b"2", b"3"] == sorted(values(store))

    def test_missing_topic(self, store):
        """It is an error, unless it may be made; a partition that is missing always is."""
        path = staged(store, "q", 0, {("new", 1): [b"1"]})
        with pytest.raises(UnknownTopicError, match="no topic 'new'"):
            store.commit_staged("q", 0, [path])
        store.commit_staged("q", 0, [path], create_partitions=3)
        assert (3, [b"1"]) == (len(store["new"]), values(store, "new", 1))
        path = staged(store, "q", 1, {("t", 2): [b"1"], ("u", 0): [b"1"]})
        with pytest.raises(UnknownTopicError, match="t has no partition 2"):
            store.commit_staged("q", 1, [path])
        assert [] == values(store, "u")

    def test_more_files_than_may_be_open(self, store):
        """A write of many tasks."""
        files = [
            staged(store, "q", 0, {("u", 0): [b"%d" % task]}, task=task) for task in range(120)
        ]
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        few = len(os.listdir("/dev/fd")) + 60
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, limits[1]))
        try:
            store.commit_staged("q", 0, files)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert [b"%d" % task for task in range(120)] == values(store, "u")

    def test_settings_of_the_topic_hold(self, store):
        """Batches are compressed, and times set, as the topic says."""
        store.alter_topic(
            "u", {"compression.type": "gzip", "message.timestamp.type": "LogAppendTime"}
        )
        store.commit_staged("q", 0, [staged(store, "q", 0, {("u", 0): [b"1" * 99, b"2"]})])
        found = list(store["u", 0])
        assert [b"1" * 99, b"2"] == [record.value for record in found]
        assert {1} == {record.timestamp_type for record in found}
        batch = next(iter(store["u", 0].fetch(0, max_bytes=1 << 20).records.batches()))
        assert (CompressionType.GZIP, True) == (batch.compression_type, batch.is_transactional)

    def test_what_a_topic_refuses(self, store):
        """All or nothing."""
        store.alter_topic("u", {"max.message.bytes": "100"})
        path = staged(store, "q", 0, {("t", 0): [b"1"], ("u", 0): [b"x" * 200]})
        with pytest.raises(RecordTooLargeError):
            store.commit_staged("q", 0, [path])
        assert ([], {}) == (values(store), versions(store))
        assert [os.path.basename(path)] == staged_in(store)
        store.alter_topic("u", {"max.message.bytes": None})
        store.commit_staged("q", 0, [path])
        assert ([b"1"], [b"x" * 200]) == (values(store), values(store, "u"))

    @pytest.mark.parametrize("what", ["zeros", "another batch", "its index"])
    def test_a_file_that_is_not_whole(self, store, what):
        """It was not flushed, and the power failed: nothing of it is appended."""
        records = {("t", 0): [b"1" * 5000], ("t", 1): [b"2" * 5000], ("u", 0): [b"3" * 5000]}
        path = staged(store, "q", 0, records)
        whole = Path(path).read_bytes()
        with StagedFile(path) as file:
            second, third = file.batches[1:]
        assert second.size_bytes == third.size_bytes
        damaged = bytearray(whole)
        if what == "zeros":
            damaged[second.position + 100 : second.position + 1100] = bytes(1000)
        elif what == "another batch":
            damaged[second.position : third.position] = whole[third.position :][: third.size_bytes]
        else:
            damaged[third.position + third.size_bytes + 20] ^= 1
        Path(path).write_bytes(damaged)
        with pytest.raises(StagedBatchesError, match="not whole"):
            store.commit_staged("q", 0, [path])
        assert ([], [], [], {}) == (
            values(store),
            values(store, "t", 1),
            values(store, "u"),
            versions(store),
        )
        Path(path).write_bytes(whole)
        store.commit_staged("q", 0, [path])
        assert [b"2" * 5000] == values(store, "t", 1)

    def test_files_are_freed_as_they_are_read(self, store, monkeypatch):
        """One that was read is gone while the next is appended, and that one is not."""
        files = [staged(store, "q", 0, {("u", 0): [b"%d" % task]}, task=task) for task in range(3)]
        left = []
        append = logstore.Transaction.append_batches

        def look(self, place, batches):
            until(lambda: not any(map(os.path.exists, files[: len(left)])))
            left.append([os.path.exists(path) for path in files])
            append(self, place, batches)

        monkeypatch.setattr(logstore.Transaction, "append_batches", look)
        store.commit_staged("q", 0, files, frees_staged=True)
        assert [[n <= number for number in range(3)] for n in range(3)] == left
        assert [b"0", b"1", b"2"] == values(store, "u")

    def test_what_failed_and_was_freed_is_no_commit(self, store, monkeypatch):
        """It is staged again; also where another topic has the version."""
        store.commit_staged("q", 1, [staged(store, "q", 1, {("t", 0): [b"1"]})])
        records = {("t", 1): [b"2"], ("u", 0): [b"3"]}
        for places in ([("u", 0)], [("t", 1), ("u", 0)]):
            path = staged(store, "q", 1, {place: records[place] for place in places})
            with monkeypatch.context() as patch:
                patch.delattr(logstore.Transaction, "add_rows")
                with pytest.raises(AttributeError):
                    store.commit_staged("q", 1, [path], frees_staged=True)
            with pytest.raises(StagedBatchesError, match="are not here"):
                store.commit_staged("q", 1, [path], frees_staged=True)
        path = staged(store, "q", 1, records)
        done = SinkCommit({"u": 1}, ("t",))
        assert done == store.commit_staged("q", 1, [path], frees_staged=True)
        assert ([b"1"], [], [b"3"]) == (values(store), values(store, "t", 1), values(store, "u"))
        assert ("t", "u") == store.commit_staged("q", 1, [path]).repeated

    def test_two_writes_of_one_version(self, store):
        """To topics of their own: neither is taken for the other, nor deletes what it has."""
        first = staged(store, "q", 1, {("t", 0): [b"1"]})
        second = staged(store, "q", 1, {("u", 0): [b"2"]})
        assert SinkCommit({"t": 1}, ()) == store.commit_staged("q", 1, [first])
        assert SinkCommit({"u": 1}, ()) == store.commit_staged("q", 1, [second])
        assert ([b"1"], [b"2"]) == (values(store), values(store, "u"))

    def test_a_file_that_is_given_twice(self, store):
        """Is appended once."""
        path = staged(store, "q", 1, {("t", 0): [b"1"], ("u", 0): [b"2"]})
        done = store.commit_staged("q", 1, [path, path], frees_staged=True)
        assert SinkCommit({"t": 1, "u": 1}, ()) == done

    def test_a_torn_file_is_not_one_that_was_committed(self, store):
        """Though a topic of it has the version: another one may not."""
        store.commit_staged("q", 1, [staged(store, "q", 1, {("t", 0): [b"1"]})])
        path = staged(store, "q", 1, {("t", 0): [b"1"], ("u", 0): [b"2"]})
        os.truncate(path, os.path.getsize(path) - 1)
        with pytest.raises(StagedBatchesError, match="not whole"):
            store.commit_staged("q", 1, [path])
        assert [] == values(store, "u")

    def test_arguments(self, store, tmp_path, clock):
        """An empty id, a file that is missing, a store that may not be written."""
        with pytest.raises(ValueError, match="id is empty"):
            store.commit_staged("", 0, [])
        with pytest.raises(StagedBatchesError, match="are not here"):
            store.commit_staged("q", 0, [tmp_path / "data" / ".logstore-staged-q.0.0-0.01234567"])
        assert SinkCommit({}, ()) == store.commit_staged("q", 0, [])
        with pytest.raises(InvalidTopicError), store.transaction("t") as transaction:
            transaction.append((SINK_COMMITS_TOPIC, 0), b"1")
        with logstore.open_store(tmp_path / "data", mode="r") as reader:
            with pytest.raises(ReadOnlyError):
                reader.commit_staged("q", 0, [])
            assert [] == reader.sinks()
        store.close()
        with pytest.raises(ClosedError):
            store.commit_staged("q", 0, [])


class TestVersions:
    """A version is committed once."""

    def test_again(self, store, tmp_path, clock):
        """Nothing happens, in this process and the next, with the same files and with others."""
        first = staged(store, "q", 5, {("t", 0): [b"1"]})
        store.commit_staged("q", 5, [first])
        again = SinkCommit({}, ("t",))
        assert again == store.commit_staged("q", 5, [first])
        path = staged(store, "q", 5, {("t", 0): [b"1"]}, attempt=1)
        assert again == store.commit_staged("q", 5, [path])
        store.close()
        with opened(tmp_path, clock) as second:
            path = staged(second, "q", 5, {("t", 0): [b"1"]})
            assert again == second.commit_staged("q", 5, [path])
            assert [b"1"] == values(second)
            assert [] == staged_in(second)

    def test_lower(self, store):
        """An older checkpoint was restored: that is said, and nothing is written."""
        store.commit_staged("q", 5, [staged(store, "q", 5, {("t", 0): [b"5"]})])
        path = staged(store, "q", 4, {("t", 0): [b"4"]})
        with pytest.raises(SinkVersionError, match="'q' has committed version 5 to t, and 4") as at:
            store.commit_staged("q", 4, [path])
        assert ("q", 4, 5) == (at.value.sink_id, at.value.version, at.value.committed_version)
        assert [b"5"] == values(store)

    def test_another_topic_of_the_same_version(self, store):
        """Versions are each topic's: what is missing is written, what is there is not."""
        store.commit_staged("q", 1, [staged(store, "q", 1, {("t", 0): [b"1"]})])
        path = staged(store, "q", 1, {("t", 0): [b"1"], ("u", 0): [b"1"]})
        assert SinkCommit({"u": 1}, ("t",)) == store.commit_staged("q", 1, [path])
        assert ([b"1"], [b"1"]) == (values(store), values(store, "u"))

    def test_outlives_the_records(self, store, clock):
        """Deleted records, compaction and expired producers leave it alone."""
        for version in range(3):
            store.commit_staged(
                "q", version, [staged(store, "q", version, {("t", 0): [b"%d" % version]})]
            )
        log = store["t", 0]
        log.maybe_increment_log_start_offset(log.high_watermark)
        log = store[PLACE]
        log.roll()
        log.compact()
        clock.advance(30 * 86_400_000)
        for place in (PLACE, TopicPartition("t", 0)):
            store[place].remove_expired_producers()
        path = staged(store, "q", 2, {("t", 0): [b"2"]})
        assert SinkCommit({}, ("t",)) == store.commit_staged("q", 2, [path])
        assert [] == values(store)

    def test_goes_with_the_topic(self, store):
        """A new topic of the same name knows nothing of it, and the note is removed in time."""
        store.commit_staged("q", 5, [staged(store, "q", 5, {("u", 0): [b"1"]})])
        store.delete_topic("u")
        assert {} == versions(store)
        store.create_topic("u")
        assert {} == versions(store)
        store.commit_staged("r", 0, [staged(store, "r", 0, {("t", 0): [b"1"]})])
        assert None in [record.value for record in store[PLACE]]
        store.commit_staged("q", 1, [staged(store, "q", 1, {("u", 0): [b"1"]})])
        assert ({("q", "u"): 1, ("r", "t"): 0}, [b"1"]) == (versions(store), values(store, "u"))

    def test_forget(self, store):
        """One topic's, or all."""
        for sink in ("q", "r"):
            path = staged(store, sink, 5, {("t", 0): [b"1"], ("u", 0): [b"1"]})
            store.commit_staged(sink, 5, [path])
        assert [("q", "u", 5)] == [each[:3] for each in store.forget_sink("q", "u")]
        assert {("q", "t"): 5, ("r", "t"): 5, ("r", "u"): 5} == versions(store)
        assert 2 == len(store.forget_sink("r"))
        assert [] == store.forget_sink("r")
        path = staged(store, "r", 0, {("t", 0): [b"2"]})
        assert SinkCommit({"t": 1}, ()) == store.commit_staged("r", 0, [path])

    def test_jobs_are_forgotten(self, store, clock):
        """Jobs without a number of their own are recognised for a day, and not shown."""
        store.commit_staged("job_1", 0, [staged(store, "job_1", 0, {("t", 0): [b"1"]})])
        path = staged(store, "job_1", 0, {("t", 0): [b"1"]})
        assert SinkCommit({}, ("t",)) == store.commit_staged("job_1", 0, [path])
        assert {} == versions(store)
        clock.advance(2 * 86_400_000)
        store.commit_staged("q", 0, [staged(store, "q", 0, {("t", 0): [b"2"]})])
        assert [b"1", b"2"] == values(store)
        keys = [record.key for record in store[PLACE] if record.value is None]
        assert [b'{"sink":"job_1","topic":"t"}'] == keys

    def test_notes_stay_few(self, store):
        """A process that comes for one commit cleans the topic, once it is worth it."""
        log = store.create_topic(SINK_COMMITS_TOPIC, config={"cleanup.policy": "compact"})[0]
        key, value = b'{"sink":"q","topic":"t"}', b'{"topic_id":null,"version":1,"time":1}'
        pad = value[:-1] + b" " * (CLEAN_BYTES // 40) + b"}"
        for _ in range(50):
            log.append(pad, key=key)
        store.commit_staged("q", 7, [staged(store, "q", 7, {("t", 0): [b"1"]})])
        assert log.size_bytes < CLEAN_BYTES // 10
        assert {("q", "t"): 7} == versions(store)

    def test_foreign_records(self, store):
        """What is no note is named, and nothing is committed."""
        log = store.create_topic(SINK_COMMITS_TOPIC, config={"cleanup.policy": "compact"})[0]
        log.append(b"?", key=b"k")
        with pytest.raises(InvalidRecordError, match="no note of a sink"):
            store.commit_staged("q", 0, [staged(store, "q", 0, {("t", 0): [b"1"]})])
        assert [] == values(store)


class TestOrphans:
    """What attempts leave that nobody commits."""

    def test_of_the_sink(self, store):
        """Below the version; another write may be at work at this one, or at a later one."""
        old = staged(store, "q", 3, {("t", 0): [b"x"]}, attempt=0)
        lost = staged(store, "q", 4, {("t", 0): [b"x"]}, attempt=0)
        new = staged(store, "q", 5, {("t", 0): [b"5"]})
        other = staged(store, "r", 1, {("t", 0): [b"5"]})
        store.commit_staged("q", 4, [staged(store, "q", 4, {("t", 0): [b"4"]}, attempt=1)])
        assert sorted(map(os.path.basename, (lost, new, other))) == sorted(staged_in(store))
        assert not os.path.exists(old)
        store.commit_staged("q", 5, [new])
        assert [os.path.basename(other)] == staged_in(store)

    def test_of_a_job(self, store):
        """It has one version, and commits once."""
        staged(store, "job_1", 0, {("t", 0): [b"x"]}, attempt=0)
        store.commit_staged("job_1", 0, [staged(store, "job_1", 0, {("t", 0): [b"1"]}, attempt=1)])
        assert ([], [b"1"]) == (staged_in(store), values(store))

    def test_by_age(self, store, clock):
        """Any that is older than a week."""
        path = staged(store, "q", 3, {("t", 0): [b"x"]})
        os.utime(path, (0, 0))
        assert [] == sweep_staged(store.paths, store.files, now_ms=ORPHAN_MS)
        assert [path] == sweep_staged(store.paths, store.files, now_ms=ORPHAN_MS + 1)


def test_a_commit_that_failed_is_ended_by_the_next(store, monkeypatch):
    """Of whichever sink: what is noted is known before anybody decides."""
    add_rows = logstore.Transaction.add_rows

    def fail(self, place, rows):
        monkeypatch.setattr(logstore.Transaction, "add_rows", add_rows)
        monkeypatch.setattr(self._coordinator, "end", broken)
        raise LogStoreError("no power")

    def broken(*_arguments, **_options):
        monkeypatch.undo()
        raise LogStoreError("no power")

    monkeypatch.setattr(logstore.Transaction, "add_rows", fail)
    path = staged(store, "q", 0, {("t", 0): [b"1"]})
    with pytest.raises(LogStoreError, match="no power"):
        store.commit_staged("q", 0, [path])
    assert store["t", 0].last_stable_offset < store["t", 0].log_end_offset
    store.commit_staged("r", 0, [staged(store, "r", 0, {("t", 0): [b"2"]})])
    store.commit_staged("q", 0, [path])
    assert [b"2", b"1"] == values(store)
    store.errors.clear()
