"""Transactions over partitions: what is seen, who is fenced, what a failing disk leaves."""

from __future__ import annotations

import errno
import threading

import pytest
from plain_store import PlainStore

from logstore.checkpoint import TopicPartition
from logstore.clock import ManualClock
from logstore.errors import (
    InvalidProducerEpochError,
    InvalidTopicError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    PoisonedError,
    ProducerFencedError,
    RecordTooLargeError,
    StorageError,
)
from logstore.records_builder import encode_batch
from logstore.simulated_files import FailingFiles
from logstore.transaction_coordinator import ABORT_TIMED_OUT_INTERVAL_MS
from logstore.transaction_log import (
    TransactionLogValue,
    TransactionState,
    decode_transaction_record,
    transaction_log_key,
)
from logstore.transaction_metadata import EXHAUSTED_EPOCH
from logstore.transactions import START_FLUSH_BYTES

MINUTE = 60_000


@pytest.fixture(name="store")
def _store(tmp_path):
    store = PlainStore(tmp_path / "store")
    store.create_topic("a", 2)
    store.create_topic("b")
    yield store
    store.close()
    assert [] == store.errors


def states(store):
    """(id, state, epoch, partitions) of every record of the transaction topic."""
    found = []
    for partition in range(store["__transaction_state"].partition_count):
        for record in store["__transaction_state", partition].read(isolation="log_end"):
            decoded = decode_transaction_record(record.key, record.value)
            value = TransactionLogValue.of(decoded)
            name = decoded.key["transactionalId"]
            found.append(
                (name, None)
                if value is None
                else (name, value.state.name, value.producer_epoch, len(value.partitions))
            )
    return found


class TestCommit:
    def test_all_at_once(self, store):
        """Before the commit readers see nothing, after it everything, over all partitions."""
        with store.transaction("t") as transaction:
            transaction.append(("a", 0), b"1")
            transaction.extend("b", [b"2", None], keys=[b"x", b"y"])
            transaction.flush()
            assert ([], []) == (store.values("a"), store.values("b"))
            assert [b"1"] == store.values("a", isolation="read_uncommitted")
        assert "committed" == transaction.outcome
        assert ([b"1"], [b"2", None]) == (store.values("a"), store.values("b"))

    def test_records_as_given(self, store):
        """Key, headers and time arrive; the topic's partitioner decides where."""
        with store.transaction("t") as transaction:
            transaction.append(
                "a", b"v", key=b"\1", headers={"h": b"1"}, timestamp=1_690_000_000_000
            )
            transaction.append("a", b"w", key=b"\2")
        (record,) = store["a", 1].read()
        assert (b"\1", b"v", 1_690_000_000_000) == (record.key, record.value, record.timestamp)
        assert (("h", b"1"),) == tuple(record.headers)
        (record,) = store["a", 0].read()
        assert store.clock.milliseconds() == record.timestamp

    def test_records_of_the_topic(self, store):
        """The steps are a broker's: states, epochs, partitions; the epoch grows with each end."""
        for value in (b"1", b"2"):
            with store.transaction("t") as transaction:
                transaction.append(("a", 0), value)
                transaction.append("b", value)
        assert [
            ("t", "EMPTY", 0, 0),
            ("t", "ONGOING", 0, 2),
            ("t", "PREPARE_COMMIT", 1, 2),
            ("t", "COMPLETE_COMMIT", 1, 0),
            ("t", "ONGOING", 1, 2),
            ("t", "PREPARE_COMMIT", 2, 2),
            ("t", "COMPLETE_COMMIT", 2, 0),
        ] == states(store)

    def test_batches_are_filled(self, store):
        """Small records share batches; what fills one is written before the end."""
        with store.transaction("t") as transaction:
            transaction.extend("b", [b"x" * 100] * 20_000)
            written = store["b", 0].log_end_offset
            assert 0 < written < 20_000
        batches = list(store["b", 0].fetch(0, max_bytes=1 << 30).records.batches())
        assert len(batches) < 50
        assert 20_000 == len(store.values("b"))

    def test_compression(self, store):
        """The codec is the batches'."""
        with store.transaction("t", compression="gzip") as transaction:
            transaction.extend("b", [b"x" * 100] * 20)
        first = next(iter(store["b", 0].fetch(0, max_bytes=1 << 20).records.batches()))
        assert (1, True) == (first.compression_type.value, first.is_transactional)
        assert [b"x" * 100] * 20 == store.values("b")

    def test_nothing_written(self, store):
        """An empty transaction writes no marker, whichever way it ends."""
        with store.transaction("t"):
            assert True
        store.transaction("t").abort()
        assert [("t", "EMPTY", 0, 0)] == states(store)
        with store.transaction("t") as transaction:
            transaction.append("b", b"1")
        assert [b"1"] == store.values("b")

    def test_interleaved(self, store):
        """Two producers in one partition: each transaction is seen when it is stable."""
        first, second = store.transaction("1"), store.transaction("2")
        first.append("b", b"1")
        first.flush()
        second.append("b", b"2")
        second.commit()
        assert [] == store.values("b")
        first.abort()
        assert [b"2"] == store.values("b")

    def test_commit_twice(self, store):
        """The second time nothing is left to do; abort comes too late."""
        transaction = store.transaction("t")
        transaction.append("b", b"1")
        transaction.commit()
        transaction.commit()
        with pytest.raises(InvalidTxnStateError, match="committed"):
            transaction.abort()
        with pytest.raises(InvalidTxnStateError, match="committed"):
            transaction.append("b", b"2")

    def test_threads(self, store):
        """Many producers at once: every transaction is whole."""

        def work(name):
            for turn in range(5):
                with store.transaction(name) as transaction:
                    for place in (("a", 0), ("a", 1), ("b", 0)):
                        transaction.append(place, f"{name}{turn}".encode())

        threads = [threading.Thread(target=work, args=(str(each),)) for each in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = sorted(f"{name}{turn}".encode() for name in range(4) for turn in range(5))
        for topic, partition in (("a", 0), ("a", 1), ("b", 0)):
            assert expected == sorted(store.values(topic, partition))


class TestAbort:
    def test_exception(self, store):
        """An error in the block aborts, and comes out."""
        transaction = store.transaction("t")

        def fails():
            with transaction:
                transaction.append("b", b"1")
                transaction.flush()
                transaction.append("b", b"2")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fails()
        assert "aborted" == transaction.outcome
        assert [] == store.values("b")
        assert [b"1"] == store.values("b", isolation="read_uncommitted")

    def test_in_the_block(self, store):
        """An explicit end is the end; leaving the block adds nothing."""
        with store.transaction("t") as transaction:
            transaction.append("b", b"1")
            transaction.abort()
            transaction.abort()
        assert [] == store.values("b")
        with pytest.raises(InvalidTxnStateError, match="aborted"):
            transaction.commit()

    def test_record_that_does_not_fit(self, store):
        """The last batch cannot be written: nothing is committed."""
        transaction = store.transaction("t")
        transaction.append("a", b"1", key=b"\0")
        with pytest.raises(RecordTooLargeError), transaction:
            transaction.append("b", b"x" * 2_000_000)
        assert "aborted" == transaction.outcome
        assert ([], []) == (store.values("a"), store.values("b"))


class TestArguments:
    def test_wrong_ones(self, store):
        """They are refused before anything is written."""
        with pytest.raises(TypeError, match="is a str, not int"):
            store.transaction(5)
        with pytest.raises(ValueError, match="empty"):
            store.transaction("")
        for timeout_ms in (0, -1, 900_001):
            with pytest.raises(InvalidTransactionTimeoutError):
                store.transaction("t", timeout_ms=timeout_ms)
        with store.transaction("t") as transaction:
            with pytest.raises(TypeError):
                transaction.append("b", "text")
            with pytest.raises(KeyError):
                transaction.append("missing", b"1")
            with pytest.raises(KeyError):
                transaction.append(("b", 7), b"1")
            with pytest.raises(InvalidTopicError, match="the store's own records"):
                transaction.append("__consumer_offsets", b"1")
            with pytest.raises(ValueError, match="different lengths"):
                transaction.extend("b", [b"1"], keys=[])
            transaction.abort()


class TestFencing:
    def test_newer_producer(self, store):
        """Who comes with the same id takes over: what the old one wrote is aborted."""
        old = store.transaction("t")
        old.append("b", b"old")
        old.flush()
        with store.transaction("t") as new:
            new.append("b", b"new")
        old.append("b", b"late")
        with pytest.raises(ProducerFencedError):
            old.commit()
        assert "fenced" == old.outcome
        old.abort()
        with pytest.raises(ProducerFencedError):
            old.append("b", b"later")
        assert [b"new"] == store.values("b")
        # As a broker does it: once for the fence, once for the new producer.
        assert [0, 0, 1, 1, 2, 2, 3, 3] == [state[2] for state in states(store)]

    def test_newer_producer_before_the_first_record(self, store):
        """The old one had written nothing yet, and cannot any more."""
        old = store.transaction("t")
        new = store.transaction("t")
        old.append("b", b"old")
        with pytest.raises(ProducerFencedError):
            old.flush()
        new.append("b", b"new")
        new.commit()
        assert [b"new"] == store.values("b")

    def test_late_write_to_a_partition(self, store):
        """The marker's epoch refuses it even if it does not ask the coordinator."""
        old = store.transaction("t")
        old.append("b", b"old")
        old.flush()
        store.transaction("t").abort()
        batch = encode_batch(
            [(None, store.clock.milliseconds(), None, b"late", ())],
            producer_id=old.producer.producer_id,
            producer_epoch=old.producer.producer_epoch,
            base_sequence=1,
            is_transactional=True,
        )
        log = store["b", 0]
        guard = log.maybe_start_transaction_verification(*old.producer[:1], 1, 0)
        with pytest.raises(InvalidProducerEpochError):
            log.append_batches(batch, leader_epoch=0, verification_guard=guard)

    def test_time_out(self, store):
        """The coordinator's task aborts it; its producer learns that it is fenced."""
        transaction = store.transaction("t", timeout_ms=MINUTE)
        transaction.append("b", b"1")
        transaction.flush()
        store.clock.advance(MINUTE)
        store.scheduler.run_due()
        assert "ONGOING" == states(store)[-1][1]
        store.clock.advance(ABORT_TIMED_OUT_INTERVAL_MS)
        store.scheduler.run_due()
        assert ("t", "COMPLETE_ABORT", 1, 0) == states(store)[-1]
        with pytest.raises(ProducerFencedError):
            transaction.commit()
        with store.transaction("t") as after:
            after.append("b", b"2")
        assert [b"2"] == store.values("b")

    def test_other_time_out(self, store):
        """It is a new producer's, and written."""
        store.transaction("t").abort()
        store.transaction("t", timeout_ms=5).abort()
        assert 5 == store.coordinator.describe("t").timeout_ms

    def test_expired_id(self, store):
        """After a week without use an id is forgotten, and begins anew with another producer."""
        with store.transaction("t") as transaction:
            transaction.append("b", b"1")
        held = store.transaction("held")
        week = 7 * 24 * 60 * MINUTE
        store.clock.advance(week - 1)
        assert 0 == store.coordinator.remove_expired()
        store.clock.advance(1)
        assert 1 == store.coordinator.remove_expired()
        assert ("t", None) in states(store)
        assert store.coordinator.describe("t") is None
        held.abort()
        again = store.transaction("t")
        assert transaction.producer.producer_id != again.producer.producer_id
        again.abort()
        reopened = store.reopened()
        assert reopened.coordinator.describe("t").producer_id == again.producer.producer_id
        reopened.close()


class TestEpochs:
    def start_at(self, store, epoch):
        """Give the id "t" an epoch as after many transactions."""
        store.transaction("other").abort()  # Makes the topic.
        value = TransactionLogValue(
            77, epoch, MINUTE, TransactionState.COMPLETE_COMMIT, (), 1, 1, -1, -1, 2
        )
        log = store.coordinator._state_log("t")
        log.append(value.encode(), key=transaction_log_key("t"))
        return store.reopened()

    def test_exhausted_by_an_end(self, store):
        """The last epoch's transaction ends with a new producer id at epoch 0."""
        store = self.start_at(store, EXHAUSTED_EPOCH - 2)
        producers = []
        for value in (b"1", b"2", b"3"):
            with store.transaction("t") as transaction:
                producers.append(transaction.producer)
                transaction.append("b", value)
        assert [(77, EXHAUSTED_EPOCH - 1), (77, EXHAUSTED_EPOCH)] == producers[:2]
        assert 0 == producers[2].producer_epoch
        assert 77 != producers[2].producer_id
        assert [b"1", b"2", b"3"] == store.values("b")
        store.close()

    def test_exhausted_at_the_beginning(self, store):
        """A producer that comes anew gets a new id."""
        store = self.start_at(store, EXHAUSTED_EPOCH)
        with store.transaction("t") as transaction:
            assert 0 == transaction.producer.producer_epoch
            transaction.append("b", b"1")
        assert [b"1"] == store.values("b")
        store.close()


class TestOpening:
    def test_kill_aborts(self, store):
        """What was open when the process ended is aborted, and later epochs go on."""
        transaction = store.transaction("t")
        transaction.append("b", b"lost")
        transaction.flush()
        store = store.reopened(killed=True)
        assert [] == store.values("b")
        with store.transaction("t") as again:
            assert again.producer.producer_epoch > transaction.producer.producer_epoch
            again.append("b", b"1")
        assert [b"1"] == store.values("b")
        store.close()

    @pytest.mark.parametrize("commits", [True, False])
    def test_decided_and_killed(self, store, commits):
        """The decision stands: missing markers are written, those that are there do no harm."""
        transaction = store.transaction("t")
        transaction.append("b", b"1")
        transaction.append(("a", 0), b"2")
        transaction.flush()
        metadata = store.coordinator._transactions["t"]
        decision = TransactionState.PREPARE_COMMIT if commits else TransactionState.PREPARE_ABORT
        prepared = metadata.prepare_abort_or_commit(decision, -1, store.clock.milliseconds())
        store.coordinator._write(metadata, prepared)
        for _ in range(2):
            store = store.reopened(killed=True)
            assert ([b"1"], [b"2"]) == (store.values("b"), store.values("a")) or not commits
            assert ([], []) == (store.values("b"), store.values("a")) or commits
        store.close()

    def test_close_aborts(self, store):
        """A clean end leaves nothing open."""
        store.transaction("t").append("b", b"0")
        transaction = store.transaction("t")
        transaction.append("b", b"1")
        transaction.flush()
        store = store.reopened()
        assert ([], 2) == (store.values("b"), store["b", 0].last_stable_offset)
        with pytest.raises(ProducerFencedError):
            transaction.commit()
        store.close()

    def test_deleted_topic(self, store):
        """A transaction over a topic that is gone ends in the others."""
        transaction = store.transaction("t")
        transaction.append("b", b"1")
        transaction.append(("a", 0), b"2")
        transaction.flush()
        store.logs.pop(("b", 0)).delete()
        transaction.commit()
        assert [b"2"] == store.values("a")

    def test_broker_of_transaction_version_0(self, store):
        """Its decision carries the transaction's own epoch; so does the marker."""
        transaction = store.transaction("t")
        transaction.append("b", b"1")
        transaction.flush()
        value = store.coordinator.describe("t")
        value = value._replace(state=TransactionState.PREPARE_COMMIT, client_transaction_version=0)
        store.coordinator._state_log("t").append(value.encode(0), key=transaction_log_key("t"))
        store = store.reopened(killed=True)
        assert [b"1"] == store.values("b")
        assert ("COMPLETE_COMMIT", 0) == states(store)[-1][1:3]
        store.close()


class TestFailures:
    """A disk that fails: the outcome says what became of the transaction."""

    @pytest.fixture(name="failing")
    def _failing(self, tmp_path):
        files = FailingFiles()
        store = PlainStore(tmp_path / "failing", files=files, clock=ManualClock())
        store.create_topic("b")
        transaction = store.transaction("t")
        transaction.append("b", b"1")
        transaction.flush()
        yield store, transaction, files
        files.clear()
        store.abandon()

    def reopen(self, store, files):
        files.clear()
        return store.reopened(killed=True)

    def test_data_cannot_be_flushed(self, failing):
        """Nothing is decided, so it is aborted."""
        store, transaction, files = failing
        files.fail("fdatasync", errno.EIO)
        with pytest.raises(StorageError):
            transaction.commit()
        assert "aborted" == transaction.outcome
        store = self.reopen(store, files)
        assert [] == store.values("b")
        store.close()

    def test_device_begins_before_the_end(self, failing):
        """With a lot of data, which a commit would wait for; it fails as a flush does."""
        store, transaction, files = failing
        before = files.calls("start_writeback")
        for _ in range(START_FLUSH_BYTES // 900_000 + 1):
            transaction.append("b", bytes(900_000))
        transaction.flush()
        assert before + 1 == files.calls("start_writeback")
        files.fail("start_writeback", errno.EIO)
        with pytest.raises(StorageError, match="write back"):  # noqa: PT012 - Whichever is last.
            for _ in range(START_FLUSH_BYTES // 900_000 + 1):
                transaction.append("b", bytes(900_000))
            transaction.flush()
        with pytest.raises(PoisonedError):
            transaction.commit()
        store = self.reopen(store, files)
        assert [] == store.values("b")
        store.close()

    def test_decision_cannot_be_flushed(self, failing):
        """Whether it is on the disk shows at the next open; no marker was written meanwhile."""
        store, transaction, files = failing
        files.fail("fdatasync", errno.EIO, at=2)
        with pytest.raises(StorageError):
            transaction.commit()
        assert "in doubt" == transaction.outcome
        with pytest.raises(InvalidTxnStateError, match="in doubt"):
            transaction.append("b", b"2")
        with pytest.raises(PoisonedError):
            store.transaction("t")
        assert [] == store.values("b")
        store = self.reopen(store, files)
        assert store.values("b") in ([], [b"1"])
        store.close()

    def test_marker_cannot_be_flushed(self, failing):
        """It is committed, and completed later."""
        store, transaction, files = failing
        files.fail("fdatasync", errno.EIO, at=3)
        with pytest.raises(StorageError):
            transaction.commit()
        assert "committed" == transaction.outcome
        store = self.reopen(store, files)
        assert [b"1"] == store.values("b")
        store.close()

    @pytest.mark.parametrize("at", [1, 2])
    def test_disk_full(self, failing, at):
        """The decision or a marker has no room; the scheduler's next round ends it."""
        store, transaction, files = failing
        files.fail("pwrite", errno.ENOSPC, at=at, persistent=True)
        with pytest.raises(StorageError):
            transaction.commit()
        assert {1: "in doubt", 2: "committed"}[at] == transaction.outcome
        files.clear()
        store.clock.advance(2 * MINUTE)
        store.scheduler.run_due()
        assert [] == store.errors
        assert {1: [], 2: [b"1"]}[at] == store.values("b")
        store = self.reopen(store, files)
        assert {1: [], 2: [b"1"]}[at] == store.values("b")
        store.close()

    def test_completion_cannot_be_noted(self, failing):
        """The commit is one; whoever comes next completes it, or says why not."""
        store, transaction, files = failing
        files.fail("pwrite", errno.ENOSPC, at=3, persistent=True)
        transaction.commit()
        assert ("committed", [b"1"]) == (transaction.outcome, store.values("b"))
        assert ["note that a transaction is complete"] == [what for what, _ in store.errors]
        with pytest.raises(StorageError):
            store.transaction("t")
        files.clear()
        with store.transaction("t") as after:
            after.append("b", b"2")
        assert [b"1", b"2"] == store.values("b")
        store = self.reopen(store, files)
        assert [b"1", b"2"] == store.values("b")
        store.close()

    def test_partition_cannot_be_noted(self, failing):
        """Then nothing is written there."""
        store, transaction, files = failing
        store.create_topic("c")
        transaction.append("c", b"2")
        files.fail("fdatasync", errno.EIO)
        with pytest.raises(StorageError):
            transaction.commit()
        assert 0 == store["c", 0].log_end_offset
        assert "open" == transaction.outcome
        with pytest.raises(StorageError):
            transaction.abort()
        assert "aborted" == transaction.outcome


@pytest.mark.parametrize("at", [1, 2, 3, None])
def test_flushed_together(tmp_path, at):
    """Whichever of the partitions cannot be flushed, nothing is committed."""
    files = FailingFiles()
    store = PlainStore(tmp_path / "store", files=files, flush_threads=4)
    store.create_topic("a", 3)
    transaction = store.transaction("t")
    for partition in range(3):
        transaction.append(("a", partition), b"1")
    transaction.flush()
    if at is not None:
        files.fail("fdatasync", errno.EIO, at=at)
        with pytest.raises(StorageError):
            transaction.commit()
        assert "aborted" == transaction.outcome
        files.clear()
    else:
        transaction.commit()
    store.coordinator.stop()
    store = store.reopened(killed=True)
    expected = [] if at else [b"1"]
    assert [expected] * 3 == [store.values("a", partition) for partition in range(3)]
    store.close()


def test_describe(store):
    """What is known of an id, for tools."""
    assert store.coordinator.describe("t") is None
    transaction = store.transaction("t")
    transaction.append("b", b"1")
    transaction.flush()
    value = store.coordinator.describe("t")
    assert (TransactionState.ONGOING, (TopicPartition("b", 0),)) == (value.state, value.partitions)
    assert "open" in repr(transaction)
    assert "t" == transaction.transactional_id
    transaction.abort()
