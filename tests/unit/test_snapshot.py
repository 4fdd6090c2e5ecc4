"""Snapshots of a store: what is in them, what they share, what changes neither side afterwards."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import crash_workload as workload
import pytest

import logstore
from logstore.checkpoint import TopicPartition
from logstore.clock import ManualClock
from logstore.errors import (
    ConfigError,
    DiskFullError,
    LockedError,
    LogExistsError,
    LogNotFoundError,
    OfflineError,
    ReadOnlyError,
    StorageError,
)
from logstore.files import REAL_FILES
from logstore.records_builder import encode_batch
from logstore.scheduler import ManualScheduler
from logstore.simulated_files import FailingFiles
from logstore.snapshot_manifest import SNAPSHOT_FILE
from logstore.store import open_log_store

CONFIG = {
    "segment.bytes": 2000,
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 2,
}
MEMORY = "/dev/shm"


def filled(store):
    """Give a store two topics: three partitions with some segments each, a compacted one."""
    store.create_topic("orders", partitions=3)
    store.create_topic("state", partitions=1, config={"cleanup.policy": "compact"})
    for number in range(90):
        store["orders", number % 3].append(b"%d" % number * 20, key=b"%d" % number)
        store["state", 0].append(b"%d" % number * 20, key=b"%d" % (number % 5))
    return store


@pytest.fixture(name="store")
def _store(tmp_path):
    clock = ManualClock()
    store = open_log_store(
        tmp_path / "store",
        config=CONFIG,
        clock=clock,
        scheduler=ManualScheduler(clock),
        live_offsets=False,
    )
    yield filled(store)
    if not store.is_closed:
        assert [] == list(store.check())
    assert [] == [str(report) for report in store.errors]
    store.close()


def contents(path):
    """Return a digest of each file of a directory, but for lock and clean marker."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(Path(path).rglob("*"))
        if file.is_file() and file.name not in (".lock", ".kafka_cleanshutdown")
    }


def records(store):
    """Return what a reader of committed records sees, by partition, but for internal topics."""
    return {
        each: [(record.offset, record.key, record.value) for record in store[each].read()]
        for each in store.partitions()
        if not each.topic.startswith("__")
    }


@pytest.fixture(name="memory")
def _memory(tmp_path_factory):
    """A directory in memory if there is one, for what syncs all the time."""
    with workload.directory_for_crashes(tmp_path_factory) as path:
        yield path


def read_only(path):
    return logstore.open_store(path, mode="r", config=CONFIG)


class TestContents:
    def test_same_records(self, store, tmp_path):
        """All that was there, and nothing of later; it opens clean, for reading and writing."""
        before = records(store)
        snapshot = store.snapshot(tmp_path / "copy")
        store["orders", 0].append(b"later")
        assert str(tmp_path / "copy") == snapshot.path
        assert f"copy' partitions={len(before)} linked_bytes=" in repr(snapshot)
        assert {each: log[-1][0] + 1 for each, log in before.items()} == snapshot.end_offsets
        with read_only(tmp_path / "copy") as copy:
            assert before == records(copy)
            assert [] == list(copy.check())
        with logstore.open_store(tmp_path / "copy", mode="a", config=CONFIG) as copy:
            assert before == records(copy)
            assert [] == list(copy.errors)
            assert 30 == copy["orders", 0].append(b"another later")
            assert [] == list(copy.check())

    def test_sealed_segments_are_shared(self, store, tmp_path):
        """They take no space; what is written is a copy."""
        snapshot = store.snapshot(tmp_path / "copy")
        for log in store.logs():
            for segment in log.segments:
                copy = tmp_path / "copy" / log.name / os.path.basename(segment.log_path)
                is_sealed = segment is not log.active_segment
                assert is_sealed == os.path.samefile(segment.log_path, copy)
        assert (0, None) == (snapshot.reused_bytes, snapshot.copied_because)
        tails = sum(log.active_segment.size_bytes for log in store.logs())
        assert tails == snapshot.copied_bytes
        assert snapshot.linked_bytes > sum(log.size_bytes for log in store.logs()) - tails

    def test_topics_as_they_are(self, store, tmp_path):
        """Ids, settings, log start, epochs, cleaner offset, cluster; another directory id."""
        store["orders", 1].maybe_increment_log_start_offset(7)
        store["orders", 2].assign_epoch_start_offset(4, 30)
        store["orders", 2].append(b"of epoch 4")
        store["state", 0].compact()
        offset = store["state", 0].cleaner_offset
        store.snapshot(tmp_path / "copy")
        with logstore.open_store(tmp_path / "copy", config=CONFIG) as copy:
            for name in ("orders", "state"):
                assert store.topic_id_of(name) == copy.topic_id_of(name)
                assert store.config_of(name) == copy.config_of(name)
                assert not copy.is_held(name)
            assert 7 == copy["orders", 1].log_start_offset
            assert 4 == copy["orders", 2].leader_epoch
            assert offset == copy["state", 0].cleaner_offset
            assert records(store) == records(copy)
        found = [
            dict(
                line.split("=")
                for line in (path / "meta.properties").read_text().splitlines()
                if "=" in line
            )
            for path in (tmp_path / "store", tmp_path / "copy")
        ]
        assert found[0].pop("directory.id") != found[1].pop("directory.id")
        assert found[0] == found[1]

    def test_sealed_file_with_a_tail(self, store, tmp_path):
        """What is behind the end of a sealed segment, such as space in reserve, is left out."""
        path = store["orders", 0].segments[0].log_path
        with open(path, "ab") as file:
            file.write(bytes(100))
        store.snapshot(tmp_path / "copy")
        os.truncate(path, os.path.getsize(path) - 100)
        with read_only(tmp_path / "copy") as copy:
            assert records(store) == records(copy)
            assert [] == list(copy.check())

    def test_active_segment_without_records(self, store, tmp_path):
        """What was rolled just before has nothing to copy."""
        for log in store.logs():
            log.roll()
        assert 0 == store.snapshot(tmp_path / "copy").copied_bytes
        with read_only(tmp_path / "copy") as copy:
            assert records(store) == records(copy)
            assert [] == list(copy.check())

    def test_empty_store(self, tmp_path):
        """There is nothing to be had, and that is a snapshot, too."""
        with logstore.open_store(tmp_path / "store") as store:
            assert {} == store.snapshot(tmp_path / "copy").end_offsets
        with read_only(tmp_path / "copy") as copy:
            assert [] == list(copy)

    def test_directories_become_one(self, tmp_path):
        """A store over two directories has a snapshot in one."""
        with logstore.open_store(tmp_path / "a", tmp_path / "b", config=CONFIG) as store:
            before = records(filled(store))
            store.snapshot(tmp_path / "copy")
        with read_only(tmp_path / "copy") as copy:
            assert before == records(copy)

    def test_lazy_store(self, store, tmp_path):
        """Partitions that nobody has used are in it."""
        before = records(store)
        store.close()
        with logstore.open_store(tmp_path / "store", config=CONFIG, lazy=True) as lazy:
            lazy.snapshot(tmp_path / "copy")
        with read_only(tmp_path / "copy") as copy:
            assert before == records(copy)

    def test_append_times(self, store, tmp_path):
        """What keeps records by the time of their append goes on with the notes of before."""
        config = {"logstore.retention.timestamp.type": "LogAppendTime", "retention.ms": 1000}
        store.alter_topic("orders", config)
        store["orders", 0].delete_old_segments()
        store.snapshot(tmp_path / "copy")
        name = Path("orders-0", "logstore-append-times")
        assert (tmp_path / "store" / name).read_text() == (tmp_path / "copy" / name).read_text()

    def test_progress(self, store, tmp_path):
        """Bytes in place, and bytes in all, which it ends with or gets close to."""
        seen = []
        store.snapshot(tmp_path / "copy", progress=lambda done, total: seen.append((done, total)))
        assert seen == sorted(seen)
        assert all(done <= total for done, total in seen)
        assert seen[-1][0] >= sum(log.size_bytes for log in store.logs())


class TestTransactions:
    def test_open_ones_are_aborted_there(self, store, tmp_path):
        """In the copy, by a marker in each of its partitions; here it goes on, and commits."""
        with store.transaction("t") as transaction:
            for partition in range(3):
                transaction.append(("orders", partition), b"mine")
            transaction.commit_positions("group", {("orders", 0): 3})
            transaction.flush()
            before = records(store)
            snapshot = store.snapshot(tmp_path / "copy")
        with read_only(tmp_path / "copy") as copy:
            assert before == records(copy)
            assert [] == copy.groups()
            for partition in range(3):
                log = copy["orders", partition]
                assert log.last_stable_offset == log.log_end_offset
                assert log.log_end_offset == snapshot.end_offsets["orders", partition] + 1
        assert all(
            each[-1][2] == b"mine" for (name, _), each in records(store).items() if name == "orders"
        )

    def test_decided_ones_are_ended(self, store, tmp_path):
        """Committed before the first marker: the copy has all of it."""
        with store.transaction("t") as transaction:
            for partition in range(3):
                transaction.append(("orders", partition), b"mine")
            transaction.commit_positions("group", {("orders", 0): 3})
            flush = store._transactions._write_markers

            def write_markers(metadata):
                store.snapshot(tmp_path / "copy")
                flush(metadata)

            store._transactions._write_markers = write_markers
        with read_only(tmp_path / "copy") as copy:
            assert records(store) == records(copy)
            assert {TopicPartition("orders", 0): 3} == dict(copy.positions("group").items())

    def test_producers_of_another_coordinator(self, store, tmp_path):
        """Whose transactions no coordinator here knows: they are aborted in the copy, too."""
        log = store["orders", 0]
        batch = encode_batch(
            [(None, 1, None, b"mine", ())],
            base_offset=0,
            producer_id=77,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        guard = log.maybe_start_transaction_verification(77, 0, 0)
        log.append_batches(batch, leader_epoch=0, verification_guard=guard)
        store.snapshot(tmp_path / "copy")
        with logstore.open_store(tmp_path / "copy", config=CONFIG) as copy:
            assert copy["orders", 0].last_stable_offset == copy["orders", 0].log_end_offset == 32
            assert 30 == len(list(copy["orders", 0].read()))
        assert 30 == log.last_stable_offset

    def test_producer_ids_go_on(self, store, tmp_path):
        """The copy gives out none that was given out here."""
        with store.transaction("t") as transaction:
            given = transaction.producer.producer_id
        store.snapshot(tmp_path / "copy")
        with logstore.open_store(tmp_path / "copy", config=CONFIG) as copy:
            assert copy.producer_ids.generate() > given
            with copy.transaction("t") as transaction:
                transaction.append(("orders", 0), b"x")

    def test_idempotent_producers_go_on(self, store, tmp_path):
        """A retry of what the copy has is known there."""
        log = store["orders", 0]
        batch = encode_batch(
            [(None, store.clock.milliseconds(), None, b"once", ())],
            base_offset=0,
            producer_id=5,
            producer_epoch=0,
            base_sequence=0,
        )
        log.append_batches(batch, leader_epoch=0)
        store.snapshot(tmp_path / "copy")
        with open_log_store(tmp_path / "copy", config=CONFIG, clock=store.clock) as copy:
            copy["orders", 0].append_batches(batch, leader_epoch=0)
            assert 31 == copy["orders", 0].log_end_offset


class TestWhileWriting:
    @pytest.mark.parametrize("seed", range(3))
    def test_one_moment(self, memory, seed):
        """
        Writers and transactions in threads: what a snapshot has is what was there at one moment.

        Writer n appends its numbers in turn to three partitions, always one after the other, so
        that at no moment a later one is there without the earlier. Transactions write the same
        number everywhere, and move a position with it.
        """
        stop = threading.Event()
        failures = []

        def thread(work):
            try:
                number = 0
                while not stop.is_set():
                    work(number)
                    number += 1
            except Exception as error:  # noqa: BLE001 - shown by the test
                failures.append(error)

        def write(number):
            for each in range(30 * number, 30 * number + 30):
                store["plain", each % 3].append(b"%d" % each)
            time.sleep(0.001)  # Thousands of segments are another test.

        def transact(name):
            def work(number):
                with store.transaction(name) as transaction:
                    for partition in range(3):
                        transaction.append(("exact", partition), b"%s %d" % (name.encode(), number))
                        if number % 2:
                            transaction.flush()
                    transaction.commit_positions(name, {("plain", 0): number})
                    if number % 5 == 4:
                        transaction.abort()

            return work

        def clean(number):
            for log in list(store.logs()):
                if log.config.compact and not number % 3:
                    log.compact()
            store["plain", 1].apply_retention()
            stop.wait(0.01)

        config = {**CONFIG, "file.delete.delay.ms": 1}
        with logstore.open_store(memory / "store", config=config) as store:
            store.create_topic("plain", partitions=3, config={"segment.bytes": 40_000})
            store.create_topic("exact", partitions=3)
            store.alter_topic("plain", {"retention.bytes": 100_000})
            works = [write, transact("t"), transact("u"), clean]
            threads = [threading.Thread(target=thread, args=[each]) for each in works]
            for each in threads:
                each.start()
            paths = []
            interval = sys.getswitchinterval()
            sys.setswitchinterval(1e-6)  # Else the moment would be one, held or not.
            for number in range(4):
                stop.wait(random.Random(seed * 10 + number).random() / 20)
                paths.append(memory / f"copy-{number}")
                store.snapshot(paths[-1])
            sys.setswitchinterval(interval)
            stop.set()
            for each in threads:
                each.join()
            assert [] == failures
            assert [] == [str(report) for report in store.errors]
        for path in paths:
            self.check(path, config)

    def check(self, path, config):
        with logstore.open_store(path, mode="r", config=config) as copy:
            assert [] == list(copy.check())
            plain = [[int(value) for value in copy["plain", n].read_values()] for n in range(3)]
            last = max((each[-1] for each in plain if each), default=-1)
            for partition, found in enumerate(plain):
                first = found[0] if found else partition
                wanted = list(range(first, last + 1, 3))
                assert wanted == found, f"{path}, partition {partition}"
            exact = [set(copy["exact", n].read_values()) for n in range(3)]
            assert exact[0] == exact[1] == exact[2]
            for name in ("t", "u"):
                seen = [
                    int(value.split()[1]) for value in exact[0] if value.startswith(name.encode())
                ]
                moved = copy.positions(name).get(("plain", 0))
                assert max(seen, default=None) == moved
                assert not any(number % 5 == 4 for number in seen)

    def test_disturbed(self, store, tmp_path):
        """A partition that is cut in the middle of it all: the moment is chosen again."""
        sharing = []

        def progress(_done, _total):
            if len(sharing) < 3:
                sharing.append(1)
                log = store["orders", len(sharing) - 1]
                log.truncate_to(log.log_end_offset - 2)
                log.append(b"instead")

        store.snapshot(tmp_path / "copy", progress=progress)
        with read_only(tmp_path / "copy") as copy:
            assert records(store) == records(copy)

    def test_topics_come_and_go(self, store, tmp_path):
        """While it is being made: it has those of the moment."""
        seen = []

        def progress(_done, _total):
            seen.append(1)
            if len(seen) == 2:
                store.delete_topic("state")
                store.create_topic("fresh", partitions=2)
                store["fresh", 1].append(b"x")

        store.snapshot(tmp_path / "copy", progress=progress)
        with read_only(tmp_path / "copy") as copy:
            assert records(store) == records(copy)
            assert ["fresh", "orders"] == list(copy)

    def test_no_flush_of_a_log_is_waited_for(self, store, tmp_path):
        """Beside a writer that is faster than the device, each takes longer than the one before."""
        log = store["orders", 0]
        thread = threading.Thread(
            target=lambda: log._group_commit.alone(lambda: store.snapshot(tmp_path / "copy")),
            daemon=True,
        )
        with log._sealed_files._flushing:
            thread.start()
            thread.join(60)
            assert not thread.is_alive()
        with read_only(tmp_path / "copy") as copy:
            assert records(store) == records(copy)

    def test_two_at_once(self, store, tmp_path):
        """To different places both are made; to the same place, the second is refused."""
        refused = []

        def progress(_done, _total):
            if not refused:
                refused.append(1)
                with pytest.raises(LockedError):
                    store.snapshot(tmp_path / "copy")
                store.snapshot(tmp_path / "other")

        store.snapshot(tmp_path / "copy", progress=progress)
        assert contents(tmp_path / "copy").keys() == contents(tmp_path / "other").keys()


class TestAfterwards:
    def test_the_store_goes_on(self, store, tmp_path):
        """Whatever is deleted, cut, compacted and appended there: the copy stays as it is."""
        store.snapshot(tmp_path / "copy")
        before = contents(tmp_path / "copy")
        clock = store.clock
        orders = [store["orders", number] for number in range(3)]
        orders[0].truncate_to(orders[0].segments[1].base_offset)  # The first one is written again.
        orders[0].append(b"instead")
        orders[1].truncate_to(orders[1].segments[1].base_offset + 2)
        orders[1].append(b"instead")
        store.alter_topic("orders", {"retention.bytes": 500})
        orders[2].delete_old_segments()
        store["state", 0].roll()
        store["state", 0].compact()
        for log in store.logs():
            log.append(b"more", key=b"k")
            log.roll()
        clock.advance(100_000)
        store.flush()
        assert before == contents(tmp_path / "copy")
        store.delete_topic("orders")
        store.purge()
        store.close()
        assert before == contents(tmp_path / "copy")
        with read_only(tmp_path / "copy") as copy:
            assert [30, 30, 30] == [len(list(copy["orders", n].read())) for n in range(3)]

    def test_the_copy_goes_on(self, store, tmp_path):
        """The other way round: whatever is done there, the store's files stay as they are."""
        store.snapshot(tmp_path / "copy")
        store.close()
        before = contents(tmp_path / "store")
        with logstore.open_store(tmp_path / "copy", config=CONFIG) as copy:
            for number in range(3):
                log = copy["orders", number]
                log.truncate_to(log.segments[1].base_offset + number)
                log.extend([b"instead"] * 20)
            copy["state", 0].roll()
            copy["state", 0].compact()
            assert [] == list(copy.check())
        assert before == contents(tmp_path / "store")
        with read_only(tmp_path / "store") as found:
            assert [] == list(found.check())

    def test_a_crash_on_either_side(self, store, tmp_path):
        """Indexes that are gone are made again, torn tails cut: on one side only."""
        store.snapshot(tmp_path / "copy")
        store.close()
        before = contents(tmp_path / "store")
        for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
            (tmp_path / "copy" / name).unlink()
        for index in (tmp_path / "copy" / "orders-0").glob("*.timeindex"):
            with index.open("r+b") as file:  # In place: the store has the same file.
                file.seek(0)
                first = file.read(1)
                file.seek(0)
                file.write(first)
        for index in (tmp_path / "copy" / "orders-0").glob("*.index"):
            index.unlink()
        with logstore.open_store(tmp_path / "copy", config=CONFIG) as copy:
            assert [] == list(copy.check())
            assert 30 == len(list(copy["orders", 0].read()))
        assert before == contents(tmp_path / "store")

    def test_sealed_segment_that_is_active_again(self, store, tmp_path):
        """A power loss may take the file of the newest segment: the one before goes on."""
        store.snapshot(tmp_path / "copy")
        log = store["orders", 0]
        gone = log.segments[-1].base_offset
        store.close()
        before = contents(tmp_path / "copy")
        (tmp_path / "store" / ".kafka_cleanshutdown").unlink()
        for file in (tmp_path / "store" / "orders-0").glob(f"{gone:020}.*"):
            file.unlink()
        config = {**CONFIG, "segment.bytes": 10_000}  # It has room again.
        with open_log_store(tmp_path / "store", config=config, clock=store.clock) as found:
            assert gone == found["orders", 0].log_end_offset
            found["orders", 0].extend([b"instead"] * 5)
            found["orders", 0].flush()
            assert [] == list(found.check())
        assert before == contents(tmp_path / "copy")

    def test_aborted_transactions_of_a_shared_segment(self, store, tmp_path):
        """Their index is shared as well, and is not written in place when it is active again."""
        for number in range(20):
            transaction = store.transaction("t")
            transaction.append(("orders", 0), b"%d" % number * 200)
            transaction.flush()
            transaction.abort()
        store.snapshot(tmp_path / "copy")
        before = contents(tmp_path / "copy")
        log = store["orders", 0]
        sealed = log.segments[-3]
        assert (tmp_path / "copy" / "orders-0" / f"{sealed.base_offset:020}.txnindex").exists()
        log.truncate_to(log.segments[-2].base_offset)
        for number in range(4):
            transaction = store.transaction("t")
            transaction.append(("orders", 0), b"%d" % number * 20)
            transaction.flush()
            transaction.abort()
        log.flush()
        assert before == contents(tmp_path / "copy")


class TestBase:
    @pytest.fixture(name="elsewhere")
    def _elsewhere(self, tmp_path):
        """A directory on another file system."""
        if not os.access(MEMORY, os.W_OK) or os.stat(MEMORY).st_dev == tmp_path.stat().st_dev:
            pytest.skip("there is no second file system")
        with tempfile.TemporaryDirectory(dir=MEMORY, prefix="logstore-snapshot-") as path:
            yield Path(path)

    def test_only_what_is_new_is_copied(self, store, elsewhere):
        """On another file system: what the earlier one has is linked from there."""
        first = store.snapshot(elsewhere / "1")
        assert 0 == first.linked_bytes
        assert os.strerror(errno.EXDEV) == first.copied_because
        store["orders", 0].extend([b"%d" % n * 100 for n in range(30)])
        store["state", 0].roll()
        store["state", 0].compact()
        second = store.snapshot(elsewhere / "2", base=elsewhere / "1")
        assert second.linked_bytes == second.reused_bytes > 0
        shutil.rmtree(elsewhere / "1")
        with read_only(elsewhere / "2") as copy:
            assert records(store) == records(copy)
            assert [] == list(copy.check())
        third = store.snapshot(elsewhere / "3", base=elsewhere / "2")
        assert third.reused_bytes > second.reused_bytes
        with read_only(elsewhere / "3") as copy:
            assert records(store) == records(copy)

    def test_what_was_changed_is_copied_again(self, store, elsewhere):
        """A segment that was truncated, and has the same size again, is another one."""
        store.snapshot(elsewhere / "1")
        log = store["orders", 0]
        start, size = log.segments[1].base_offset, log.segments[0].size_bytes
        log.truncate_to(start - 1)
        log.append(b"9" * 40, key=b"99")
        log.roll()
        assert size - 10 < log.segments[0].size_bytes
        store.snapshot(elsewhere / "2", base=elsewhere / "1")
        with read_only(elsewhere / "2") as copy:
            assert records(store) == records(copy)

    def test_base_that_is_damaged(self, store, elsewhere):
        """What is not there any more, or is shorter, is copied."""
        store.snapshot(elsewhere / "1")
        files = sorted((elsewhere / "1" / "orders-0").glob("*.log"))
        files[0].unlink()
        os.truncate(files[1], 10)
        store.snapshot(elsewhere / "2", base=elsewhere / "1")
        with read_only(elsewhere / "2") as copy:
            assert records(store) == records(copy)

    def test_no_snapshot(self, store, tmp_path):
        """The earlier one has to be one."""
        with pytest.raises(LogNotFoundError, match="no snapshot"):
            store.snapshot(tmp_path / "copy", base=tmp_path / "store")
        assert not (tmp_path / "copy").exists()


class TestRefused:
    def test_places(self, store, tmp_path):
        """Where something is, and inside the store."""
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "x").write_text("mine")
        with pytest.raises(LogExistsError, match="something in"):
            store.snapshot(tmp_path / "full")
        (tmp_path / "copy.incomplete").mkdir()
        (tmp_path / "copy.incomplete" / "x").write_text("mine")
        with pytest.raises(LogExistsError, match="in the way"):
            store.snapshot(tmp_path / "copy")
        assert "mine" == (tmp_path / "copy.incomplete" / "x").read_text()
        with pytest.raises(ConfigError, match="inside the store"):
            store.snapshot(tmp_path / "store" / "copy")
        (tmp_path / "empty").mkdir()
        store.snapshot(tmp_path / "empty")

    def test_reader(self, store, tmp_path):
        """Who only reads cannot stop the writer for a moment."""
        with read_only(tmp_path / "store") as reader, pytest.raises(ReadOnlyError):
            reader.snapshot(tmp_path / "copy")

    def test_partition_that_is_missing(self, store, tmp_path):
        """A snapshot that silently has less is none."""
        store.close()
        shutil.rmtree(tmp_path / "store" / "orders-1")
        with (
            logstore.open_store(tmp_path / "store", config=CONFIG) as found,
            pytest.raises(OfflineError, match="orders-1"),
        ):
            found.snapshot(tmp_path / "copy")
        assert not (tmp_path / "copy").exists()

    def test_from_inside_an_append(self, store, tmp_path):
        """Code that an append runs holds the log."""
        log = store["orders", 0]
        with log.changing(), pytest.raises(StorageError, match="afterwards"):
            store.snapshot(tmp_path / "copy")
        log.append(b"goes on")


class TestFailures:
    def opened(self, tmp_path):
        files = FailingFiles(REAL_FILES)
        clock = ManualClock()
        store = open_log_store(
            tmp_path / "store",
            config=CONFIG,
            files=files,
            clock=clock,
            scheduler=ManualScheduler(clock),
            live_offsets=False,
        )
        return files, filled(store)

    def test_disk_full(self, tmp_path):
        """Nothing is left of it, and the store is as it was."""
        files, store = self.opened(tmp_path)
        with store:
            before = records(store)
            files.budget = 3000
            with pytest.raises(DiskFullError):
                store.snapshot(tmp_path / "copy")
            files.budget = None
            assert ["store"] == os.listdir(tmp_path)
            assert before == records(store)
            assert [] == list(store.check())
            store.snapshot(tmp_path / "copy")
        with read_only(tmp_path / "copy") as copy:
            assert before == records(copy)

    @pytest.mark.parametrize("error", [errno.EXDEV, errno.EMLINK, errno.EPERM])
    def test_links_that_cannot_be(self, tmp_path, error):
        """They are copied, and that is told."""
        files, store = self.opened(tmp_path)
        with store:
            files.fail("link", error, persistent=True)
            snapshot = store.snapshot(tmp_path / "copy")
            files.clear()
            assert (0, os.strerror(error)) == (snapshot.linked_bytes, snapshot.copied_because)
            before = records(store)
        with read_only(tmp_path / "copy") as copy:
            assert before == records(copy)
            assert [] == list(copy.check())

    def test_any_call_fails(self, tmp_path):
        """Whatever fails: there is a whole snapshot, or none, and the store goes on."""
        files, store = self.opened(tmp_path)
        with store:
            before = records(store)
            start = files.calls()
            store.snapshot(tmp_path / "copy")
            calls = files.calls() - start
            shutil.rmtree(tmp_path / "copy")
            for at in range(1, calls, max(1, calls // 10)):
                files.fail(None, errno.ENOMEM, at=at)
                with contextlib.suppress(StorageError, OSError):
                    store.snapshot(tmp_path / "copy")
                files.clear()
                if (tmp_path / "copy").exists():
                    with read_only(tmp_path / "copy") as copy:
                        assert before == records(copy)
                    shutil.rmtree(tmp_path / "copy")
            assert before == records(store)

    def test_leftover_is_taken_away(self, store, tmp_path):
        """Of a snapshot that was killed; it never looks finished."""
        store.snapshot(tmp_path / "copy")
        left = tmp_path / "copy.incomplete"
        (tmp_path / "copy").rename(left)
        (left / SNAPSHOT_FILE).write_text('{"version":0,"complete":false}')
        store.snapshot(tmp_path / "copy")
        assert not left.exists()
        with read_only(tmp_path / "copy") as copy:
            assert records(store) == records(copy)
