"""Restoring a snapshot, whole or to a time; forks; the plan behind it as pure functions."""

from __future__ import annotations

import hashlib
import random
from datetime import UTC, datetime
from pathlib import Path

import pytest

import logstore
from logstore.checkpoint import TopicPartition
from logstore.clock import ManualClock
from logstore.errors import LockedError, LogExistsError, LogNotFoundError, StorageError
from logstore.point_in_time import (
    CommittedPart,
    Entry,
    PartitionHistory,
    history_of,
    markers_to_abort,
    transactions_of,
)
from logstore.records_builder import encode_batch
from logstore.scheduler import ManualScheduler
from logstore.store import open_log_store

CONFIG = {
    "segment.bytes": 2000,
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 2,
    "message.timestamp.after.max.ms": 10_000_000_000,
}
START = 1_700_000_000_000


@pytest.fixture(name="store")
def _store(tmp_path):
    clock = ManualClock(START)
    store = open_log_store(
        tmp_path / "store",
        config=CONFIG,
        clock=clock,
        scheduler=ManualScheduler(clock),
        live_offsets=False,
    )
    store.create_topic("a", partitions=2)
    store.create_topic("b")
    yield store
    if not store.is_closed:
        assert [] == list(store.check())
    store.close()


@pytest.fixture(name="opened")
def _opened():
    """Return a function that opens a store for reading, and checks it."""
    stores = []

    def opened(path):
        stores.append(logstore.open_store(path, mode="r", config=CONFIG))
        assert [] == list(stores[-1].check())
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


def contents(path):
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(Path(path).rglob("*"))
        if file.is_file()
    }


def values(store, *place):
    return [record.value for record in store[place].read()]


def restored(store, tmp_path, to_time=None):
    """Take a snapshot, close the store, restore it; the snapshot stays as it is."""
    store.snapshot(tmp_path / "snapshot")
    store.close()
    before = contents(tmp_path / "snapshot")
    found = logstore.restore(tmp_path / "snapshot", tmp_path / "restored", to_time=to_time)
    assert before == contents(tmp_path / "snapshot")
    return found


class TestWhole:
    def test_all_of_it(self, store, tmp_path, opened):
        """The same records, positions and settings; sealed segments are shared; writes go on."""
        for number in range(60):
            store["a", number % 2].append(b"%d" % number * 20)
        store.alter_topic("a", {"retention.ms": 12345})
        store.positions("g").commit({("a", 0): 7})
        found = restored(store, tmp_path)
        assert (0, {}, {}) == (found.aborted, found.cuts, found.clamped)
        assert found.linked_bytes > found.copied_bytes
        before = contents(tmp_path / "snapshot")
        with logstore.open_store(found.path, config=CONFIG) as copy:
            snapshot = opened(tmp_path / "snapshot")
            for partition in range(2):
                assert values(snapshot, "a", partition) == values(copy, "a", partition)
            assert 12345 == copy["a"].config.retention_ms
            assert {TopicPartition("a", 0): 7} == dict(copy.positions("g").items())
            copy["a", 0].truncate_to(copy["a", 0].segments[1].base_offset)
            copy["a", 0].extend([b"mine" * 50] * 20)
            assert [] == list(copy.check())
        assert before == contents(tmp_path / "snapshot")

    def test_refused(self, store, tmp_path):
        """No snapshot, one in use, one that was not closed, a place that is taken."""
        store["a", 0].append(b"1")
        with pytest.raises(LogNotFoundError, match="no snapshot"):
            logstore.restore(tmp_path / "store", tmp_path / "restored")
        store.snapshot(tmp_path / "snapshot")
        with logstore.open_store(tmp_path / "snapshot"), pytest.raises(LockedError):
            logstore.restore(tmp_path / "snapshot", tmp_path / "restored")
        with pytest.raises(LogExistsError):
            logstore.restore(tmp_path / "snapshot", tmp_path / "store")
        (tmp_path / "snapshot" / ".kafka_cleanshutdown").unlink()
        with pytest.raises(StorageError, match="not closed"):
            logstore.restore(tmp_path / "snapshot", tmp_path / "restored")
        assert not (tmp_path / "restored").exists()


class TestToTime:
    def test_first_record_after(self, store, tmp_path, opened):
        """Each partition ends before it; in the middle of a batch, too, and of compressed ones."""
        for second in range(100):
            store["a", 0].append(b"%d" % second, timestamp=START + second * 1000)
        store["a", 1].extend([b"%d" % n for n in range(9)], timestamps=range(START, START + 9))
        store["b", 0].extend(
            [b"%d" % n * 100 for n in range(9)],
            timestamps=range(START, START + 9),
            compression="gzip",
        )
        found = restored(store, tmp_path, START + 4)
        copy = opened(found.path)
        assert [b"0"] == values(copy, "a", 0)
        assert [b"0", b"1", b"2", b"3", b"4"] == values(copy, "a", 1)
        assert [b"%d" % n * 100 for n in range(5)] == values(copy, "b", 0)
        assert {("a", 0): 1, ("a", 1): 5, ("b", 0): 5} == dict(found.cuts)
        assert dict(found.cuts) == dict(found.end_offsets)

    def test_nothing_after(self, store, tmp_path, opened):
        """All of it stays, also with the time as a datetime."""
        store["a", 0].append(b"1", timestamp=START)
        when = datetime.fromtimestamp(START / 1000, UTC)
        found = restored(store, tmp_path, when)
        assert {} == found.cuts
        assert [b"1"] == values(opened(found.path), "a", 0)

    def test_everything_after(self, store, tmp_path, opened):
        """Empty partitions, that go on at the offsets of before."""
        store["a", 0].extend([b"x" * 100] * 50)
        store["a", 0].maybe_increment_log_start_offset(30)
        found = restored(store, tmp_path, START - 1)
        copy = opened(found.path)
        assert (30, 30) == (copy["a", 0].log_start_offset, copy["a", 0].log_end_offset)
        assert {("a", 0): 30} == dict(found.cuts)

    def test_timestamps_out_of_order(self, store, tmp_path, opened):
        """The first one in the order of offsets decides; what is behind it goes."""
        for number, second in enumerate((1, 3, 2, 9, 4, 5)):
            store["a", 0].append(b"%d" % number, timestamp=START + second)
        found = restored(store, tmp_path, START + 5)
        assert [b"0", b"1", b"2"] == values(opened(found.path), "a", 0)

    def test_commit_after(self, store, tmp_path, opened):
        """A transaction whose marker comes later is aborted, and its position with it."""
        with store.transaction("t") as transaction:
            transaction.append(("a", 0), b"first")
            transaction.commit_positions("g", {("b", 0): 1})
        store.clock.advance(1000)
        with store.transaction("t") as transaction:
            transaction.append(("a", 0), b"second")
            transaction.append(("a", 1), b"second")
            transaction.commit_positions("g", {("b", 0): 2})
            transaction.flush()
            store.clock.advance(1000)
        store["b", 0].extend([b"1", b"2", b"3"], timestamps=[START] * 3)
        found = restored(store, tmp_path, START + 1500)
        assert 0 == found.aborted
        copy = opened(found.path)
        assert [b"first"] == values(copy, "a", 0)
        assert [] == values(copy, "a", 1)
        assert {TopicPartition("b", 0): 1} == dict(copy.positions("g").items())
        for log in copy.logs():
            assert log.last_stable_offset == log.log_end_offset

    def test_part_after(self, store, tmp_path, opened):
        """One of its records has a later timestamp: no part of it is seen, others are."""
        store["a", 1].append(b"before", timestamp=START)
        with store.transaction("t") as transaction:
            transaction.append(("a", 0), b"late", timestamp=START + 5000)
            transaction.append(("a", 1), b"in time", timestamp=START)
        with store.transaction("u") as transaction:
            transaction.append(("a", 1), b"other", timestamp=START)
            transaction.append(("b", 0), b"other", timestamp=START)
        store["a", 1].append(b"after", timestamp=START)
        found = restored(store, tmp_path, START + 1000)
        assert 1 == found.aborted
        assert {("a", 0): 0} == dict(found.cuts)
        copy = opened(found.path)
        assert [] == values(copy, "a", 0)
        assert [b"before", b"other", b"after"] == values(copy, "a", 1)
        assert [b"other"] == values(copy, "b", 0)
        log = copy["a", 1]
        assert [b"before", b"in time", b"other", b"after"] == list(
            log.read_values(isolation="read_uncommitted")
        )
        assert log.last_stable_offset == log.log_end_offset == store_end(tmp_path, "a", 1)

    def test_ids_go_on(self, store, tmp_path):
        """Transactional ids are fenced as before, and the next transaction commits."""
        with store.transaction("t") as transaction:
            transaction.append(("a", 0), b"1")
        store.clock.advance(1000)
        with store.transaction("t") as transaction:
            transaction.append(("a", 0), b"2")
            producer = transaction.producer
        found = restored(store, tmp_path, START)
        with logstore.open_store(found.path, config=CONFIG) as copy:
            with copy.transaction("t") as transaction:
                transaction.append(("a", 0), b"3")
                assert transaction.producer > producer
            assert [b"1", b"3"] == values(copy, "a", 0)
            assert [] == list(copy.errors)
            assert [] == list(copy.check())

    def test_positions_are_clamped(self, store, tmp_path, opened):
        """None is behind the end of its partition."""
        store["a", 0].extend([b"x"] * 4, timestamps=[START, START, START + 9, START])
        store.positions("g").commit({("a", 0): 4, ("a", 1): 0})
        found = restored(store, tmp_path, START + 5)
        assert {("g", TopicPartition("a", 0)): 4} == dict(found.clamped)
        positions = opened(found.path).positions("g")
        assert {TopicPartition("a", 0): 2, TopicPartition("a", 1): 0} == dict(positions.items())

    def test_idempotent_producer_in_the_middle_of_a_batch(self, store, tmp_path, opened):
        """The kept part of its batch has its sequence numbers."""
        rows = [(None, START + n, None, b"%d" % n, ()) for n in range(4)]
        batch = encode_batch(rows, base_offset=0, producer_id=5, producer_epoch=0, base_sequence=0)
        store["a", 0].append_batches(batch, leader_epoch=0)
        found = restored(store, tmp_path, START + 1)
        assert [b"0", b"1"] == values(opened(found.path), "a", 0)

    @pytest.mark.parametrize("seed", range(3))
    def test_model(self, store, tmp_path, opened, seed):
        """Chance: what is seen is what was there at the time, transactions whole or not at all."""
        chance = random.Random(seed)
        written = {("a", 0): [], ("a", 1): [], ("b", 0): []}
        ends = {}
        for number in range(60):
            store.clock.advance(chance.randrange(1, 50))
            place = chance.choice([*written])
            if chance.random() < 0.6:
                value = b"%d" % number
                written[place].append((store.clock.milliseconds(), None, value))
                store[place].append(value)
                continue
            with store.transaction("t") as transaction:
                for each in chance.sample([*written], chance.randrange(1, 4)):
                    value = b"%d in transaction" % number
                    transaction.append(each, value)
                    transaction.flush()
                    written[each].append((store.clock.milliseconds(), number, value))
                    store.clock.advance(chance.randrange(30))
            ends[number] = store.clock.milliseconds()
        time_ms = chance.randrange(START, store.clock.milliseconds())
        found = restored(store, tmp_path, time_ms)
        copy = opened(found.path)
        for place, entries in written.items():
            wanted = [
                value
                for when, number, value in entries
                if when <= time_ms and (number is None or ends[number] <= time_ms)
            ]
            assert wanted == values(copy, *place)


def store_end(tmp_path, *place):
    with logstore.open_store(tmp_path / "snapshot", mode="r") as snapshot:
        return snapshot[place].log_end_offset


class TestFork:
    def test_both_sides_go_on(self, store, tmp_path, opened):
        """What one of them does, the other does not see; neither is a snapshot."""
        for number in range(60):
            store["a", number % 2].append(b"%d" % number * 20)
        before = values(store, "a", 0)
        with store.fork(tmp_path / "fork") as fork:
            assert store.config == fork.config
            for each, name in ((store, b"store"), (fork, b"fork")):
                with each.transaction("t") as transaction:
                    transaction.append(("a", 0), name)
                log = each["a", 1]
                log.truncate_to(log.segments[1].base_offset + 1)
                log.extend([name * 20] * 30)
                log.roll()
            for each, name in ((store, b"store"), (fork, b"fork")):
                assert [*before, name] == values(each, "a", 0)
                assert [name * 20] * 30 == values(each, "a", 1)[-30:]
                assert [] == list(each.check())
        assert not (tmp_path / "fork" / "logstore-snapshot").exists()
        assert [*before, b"fork"] == values(opened(tmp_path / "fork"), "a", 0)


class TestPlan:
    A, B = TopicPartition("a", 0), TopicPartition("b", 0)

    @staticmethod
    def data(offset, producer=1, epoch=0, first_after=None):
        return Entry(offset, producer, epoch, True, None, 0, first_after)

    @staticmethod
    def marker(offset, producer=1, epoch=0, *, when=0, commits=True, first_after=None):
        return Entry(offset, producer, epoch, True, commits, when, first_after)

    def test_history(self):
        """The first entry after the time cuts; a marker without records ends nothing."""
        entries = [
            self.data(0),
            self.data(1, 2),
            self.marker(2),
            self.marker(3),  # Again.
            self.marker(4, 2, commits=False),
            self.data(5, first_after=6),
            self.data(7, first_after=7),
        ]
        part = CommittedPart(self.A, 1, 0, 0, 2, 0)
        assert PartitionHistory(6, [part]) == history_of(self.A, entries, {(1, 0)})
        assert PartitionHistory(6, []) == history_of(self.A, entries)

    def test_one_epoch_for_each_transaction(self):
        """However long there is between its markers."""
        histories = {
            self.A: history_of(self.A, [self.data(0), self.marker(1, when=5)], {(1, 0)}),
            self.B: history_of(self.B, [self.data(0), self.marker(1, when=10**9, first_after=1)]),
        }
        assert {(1, 0)} == histories[self.B].gone
        assert {self.A: {1}} == markers_to_abort(histories)

    def test_an_epoch_with_several(self):
        """Those whose markers are a second apart, or are in the same partition, are several."""
        first = [self.data(0), self.marker(1, when=1000)]
        second = [self.data(2), self.marker(3, when=1500, first_after=3)]
        histories = {
            self.A: history_of(self.A, first + second, {(1, 0)}),
            self.B: history_of(self.B, [self.data(0), self.marker(1, when=1001)], {(1, 0)}),
        }
        found = list(transactions_of(histories.values()))
        assert [[1, 1], [3]] == [[part.marker_offset for part in parts] for parts in found]
        assert {} == markers_to_abort(histories)
