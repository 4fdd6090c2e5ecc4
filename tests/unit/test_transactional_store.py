"""``store.transaction`` and ``store.positions`` on a real store."""

from __future__ import annotations

import gc
import json
import shutil
import weakref

import pytest

import logstore
from logstore.checkpoint import TopicPartition
from logstore.clock import ManualClock
from logstore.errors import (
    InvalidTransactionTimeoutError,
    OfflineError,
    ReadOnlyError,
    StorageError,
)
from logstore.producer_ids import FIRST_PRODUCER_ID
from logstore.records_builder import encode_batch
from logstore.scheduler import ManualScheduler
from logstore.store import open_log_store

FEW = {"transaction.state.log.num.partitions": 2, "offsets.topic.num.partitions": 3}


@pytest.fixture(name="path")
def _path(tmp_path):
    return tmp_path / "data"


def values(store, topic, partition=0):
    return list(store[topic, partition].read_values())


def test_exactly_once(path):
    """Consume, process, produce and commit the position, over a clean end and a kill."""
    with logstore.open_store(path, config=FEW) as store:
        store.create_topic("in")
        store.create_topic("out", partitions=2)
        store["in", 0].extend([b"%d" % at for at in range(6)])
    for killed in (False, True, False):
        store = logstore.open_store(path, config=FEW)
        positions = store.positions("copy")
        with store.transaction("copy") as transaction:
            start = positions.get(("in", 0), 0)
            for record in store["in", 0].read(start, limit=3):
                transaction.append("out", record.value, key=record.value)
                start = record.offset + 1
            transaction.commit_positions("copy", {("in", 0): start})
            if killed:
                transaction.flush()
                store.abandon()
                transaction.abort = lambda: None
                transaction.commit = lambda: None
        store.close()
    with logstore.open_store(path, mode="r") as store:
        assert [b"%d" % at for at in range(6)] == sorted(
            values(store, "out") + values(store, "out", 1)
        )
        assert {TopicPartition("in", 0): 0} == store.positions("copy").lag()
        assert ["copy"] == store.groups()
        with pytest.raises(ReadOnlyError):
            store.transaction("copy")
        with pytest.raises(ReadOnlyError):
            store.positions("copy").commit({("in", 0): 1})


def test_internal_topics(path):
    """They are made when they are needed, with Kafka's settings."""
    with logstore.open_store(path, config=FEW) as store:
        orders = store.create_topic("orders")
        assert ["orders"] == list(store)
        with store.transaction("t") as transaction:
            transaction.append("orders", b"1")
        assert 2 == store["__transaction_state"].partition_count
        store.positions("g").commit({("orders", 0): 1})
        topic = store["__consumer_offsets"]
        assert (3, True) == (topic.partition_count, topic.is_internal)
        assert (True, False, 104_857_600) == (
            topic.config.compact,
            topic.config.delete,
            topic.config.segment_bytes,
        )
        assert [b"1"] == list(orders[0].read_values())
        assert [] == list(store.check())
        assert not store.errors


def test_deleted_positions(path):
    """Who deletes the topic has deleted every position, also where it is made again."""
    with logstore.open_store(path, config=FEW) as store:
        store.create_topic("orders", partitions=2)
        positions = store.positions("g")
        positions.commit({("orders", 0): 0})
        assert 1 == len(positions)
        store.delete_topic("__consumer_offsets")
        assert 0 == len(positions)
        positions.commit({("orders", 1): 0})
        positions.commit({("orders", 1): 0})
        assert [("orders", 1)] == list(positions)


def test_taken_over_from_a_broker(path):
    """Producer ids begin above all that the logs know."""
    with logstore.open_store(path, config=FEW) as store:
        store.create_topic("orders")
        batch = encode_batch(
            [(None, store.clock.milliseconds(), None, b"x", ())],
            producer_id=FIRST_PRODUCER_ID + 4711,
            producer_epoch=0,
            base_sequence=0,
        )
        store["orders", 0].append_batches(batch, leader_epoch=0)
        with store.transaction("t") as transaction:
            assert FIRST_PRODUCER_ID + 5000 == transaction.producer.producer_id
            transaction.append("orders", b"1")
    block = json.loads((path / "latest-producer-id-block").read_text())
    assert FIRST_PRODUCER_ID + 5000 == int(block["block_start"])


def test_unreadable_state(path):
    """Ids of a partition that cannot be read are refused; the others go on."""
    with logstore.open_store(path, config=FEW) as store:
        store.create_topic("orders")
        for name in ("a", "b"):
            with store.transaction(name) as transaction:
                transaction.append("orders", name.encode())
    shutil.rmtree(path / "__transaction_state-1")
    with logstore.open_store(path, config=FEW, on_error=lambda report: None) as store:
        assert store.errors
        with store.transaction("b") as transaction:
            transaction.append("orders", b"c")
        with pytest.raises(OfflineError):
            store.transaction("a")
        assert [b"a", b"b", b"c"] == values(store, "orders")


def test_time_out_by_the_store(path):
    """The store's scheduler aborts what is open for too long."""
    clock = ManualClock()
    scheduler = ManualScheduler(clock)
    with open_log_store(path, config=FEW, clock=clock, scheduler=scheduler) as store:
        store.create_topic("orders")
        transaction = store.transaction("t", timeout_ms=1000)
        transaction.append("orders", b"1")
        transaction.flush()
        scheduler.advance_to(clock.milliseconds() + 20_000)
        assert 2 == store["orders", 0].last_stable_offset
        assert not store.errors
        with pytest.raises(logstore.ProducerFencedError):
            transaction.commit()


def test_longest_time_out(path):
    """It is a setting of the store, by Kafka's name."""
    with logstore.open_store(path, config=FEW | {"transaction.max.timeout.ms": 1000}) as store:
        store.transaction("t", timeout_ms=1000).abort()
        with pytest.raises(InvalidTransactionTimeoutError, match="1000"):
            store.transaction("t", timeout_ms=1001)


def test_two_directories(tmp_path):
    """A transaction spans directories; both know the newest block of producer ids."""
    paths = [tmp_path / "1", tmp_path / "2"]
    with logstore.open_store(*paths, config=FEW) as store:
        store.create_topic("orders", partitions=4)
        with store.transaction("t") as transaction:
            for partition in range(4):
                transaction.append(("orders", partition), b"1")
        assert [[b"1"]] * 4 == [values(store, "orders", partition) for partition in range(4)]
    blocks = [(path / "latest-producer-id-block").read_text() for path in paths]
    assert blocks[0] == blocks[1]


def test_lazy_store(path):
    """What was open is ended although nobody has asked for its partition."""
    store = logstore.open_store(path, config=FEW)
    store.create_topic("orders")
    transaction = store.transaction("t")
    transaction.append("orders", b"1")
    transaction.flush()
    store.abandon()
    with logstore.open_store(path, config=FEW, lazy=True) as store:
        assert [] == values(store, "orders")
        assert 2 == store["orders", 0].last_stable_offset


def test_forgotten_store(path):
    """Scheduled work keeps no store alive."""
    store = logstore.open_store(path, config=FEW)
    store.create_topic("orders")
    with store.transaction("t") as transaction:
        transaction.append("orders", b"1")
    gone = weakref.ref(store)
    held = [store, transaction]
    del store, transaction

    def forget():
        held.clear()
        gc.collect()

    with pytest.warns(ResourceWarning):
        forget()
    assert gone() is None


class TestLazyOpen:
    """Who comes for one transaction does not read what is known of all the others."""

    def read(self, store):
        """Return the partitions of the transactions' states that are open."""
        return [number for number in store["__transaction_state"] if self.is_open(store, number)]

    def is_open(self, store, number):
        return store._hosted[TopicPartition("__transaction_state", number)].open_log is not None

    def filled(self, path):
        with logstore.open_store(path, config=FEW) as store:
            store.create_topic("t")
            for name in "abcd":
                with store.transaction(name) as transaction:
                    transaction.append("t", b"1")
            return {name: store._transactions.describe(name) for name in "abcd"}

    def test_after_a_clean_end(self, path):
        """One partition is read when one of its ids is used; epochs go on."""
        before = self.filled(path)
        with logstore.open_store(path, lazy=True) as store:
            assert [] == self.read(store)
            with store.transaction("a") as transaction:
                transaction.append("t", b"2")
            assert 1 == len(self.read(store))
            assert transaction.producer.producer_id == before["a"].producer_id
            assert transaction.producer.producer_epoch > before["a"].producer_epoch
        with logstore.open_store(path) as store:
            assert before["b"] == store._transactions.describe("b")

    def test_after_a_kill_or_a_broker(self, path):
        """What was left open is ended, whosever it was."""
        self.filled(path)
        with logstore.open_store(path, lazy=True) as store:
            transaction = store.transaction("b")
            transaction.append("t", b"lost")
            transaction.flush()
            store.abandon()
        with logstore.open_store(path, lazy=True) as store:
            assert 2 == len(self.read(store))
            log = store["t", 0]
            assert log.last_stable_offset == log.log_end_offset
            list(store.logs())
        (path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":7}')
        with logstore.open_store(path, lazy=True) as store:
            assert 2 == len(self.read(store))

    def test_what_could_not_be_ended(self, path, monkeypatch):
        """The end is no clean one: the next open ends it."""
        store = logstore.open_store(path, config=FEW)
        store.create_topic("t")
        transaction = store.transaction("b")
        transaction.append("t", b"lost")
        transaction.flush()

        def broken(_metadata):
            raise StorageError("no power")

        monkeypatch.setattr(store._transactions, "_write_markers", broken)
        store.close()
        assert not (path / ".kafka_cleanshutdown").exists()
        with logstore.open_store(path, lazy=True) as again:
            assert again["t", 0].last_stable_offset == again["t", 0].log_end_offset
        assert 1 == len(store.errors)
