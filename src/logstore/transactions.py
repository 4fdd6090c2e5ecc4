"""
A transaction: records for several partitions, and positions, that are seen all or not at all.

::

    with store.transaction("billing") as transaction:
        transaction.append("invoices", b"...", key=b"customer")
        transaction.commit_positions("billing", {("orders", 0): 42})

Records are collected, and written when they fill a batch or at the end. Until the commit nobody
who reads committed records sees any of them; whoever reads uncommitted ones sees what is written.

Source: Kafka ``KafkaProducer``, ``TransactionManager``; KIP-98, KIP-447, KIP-890.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias

from logstore._native import Buffer, size_of, view_of
from logstore.checkpoint import TopicPartition
from logstore.compression import CompressionType
from logstore.coordinator_store import CoordinatorStore
from logstore.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    LogStoreError,
    ProducerFencedError,
)
from logstore.extending import encoded_batch
from logstore.finished_batches import append_finished
from logstore.given_records import (
    GivenRecords,
    Headers,
    check_buffer,
    columns_of,
    given_records,
    header_pairs,
    milliseconds_of,
)
from logstore.pending_records import PendingRecords
from logstore.positions import Offsets
from logstore.record import increment_sequence
from logstore.records_builder import (
    RECORD_OVERHEAD_MAX,
    TRANSACTIONAL_FLAG,
    RecordFields,
)
from logstore.topic_names import check_not_internal
from logstore.transaction_coordinator import (
    ProducerIdAndEpoch,
    TransactionCoordinator,
)
from logstore.transaction_log import TransactionState

if TYPE_CHECKING:
    from logstore.log import Log
    from logstore.producer_state import VerificationGuard

Outcome: TypeAlias = Literal["open", "committed", "aborted", "fenced", "in doubt"]
Place: TypeAlias = str | tuple[str, int]

#: Of one partition: so much is worth that the device begins with it before the end.
START_FLUSH_BYTES: Final = 8 << 20


class Transaction:
    """
    One transaction; ``store.transaction(id)`` makes it, and leaving its block ends it.

    An exception in the block aborts, everything else commits.

    **Durability**: on return of :meth:`commit` everything survives a power loss.

    **Thread rule**: any thread may call anything. Calls wait for each other, but for
    :meth:`append_batches` to different partitions.

    Args:
        store: Where the partitions are.
        coordinator: Its coordinator.
        transactional_id: A lasting name: who comes with the same one fences this.
        timeout_ms: After so long the coordinator aborts it.
        compression: Codec of the batches; None: none, unless the topic says so.
        position_records: Makes the records of positions; None: there are no positions.
    """

    def __init__(
        self,
        store: CoordinatorStore,
        coordinator: TransactionCoordinator,
        transactional_id: str,
        *,
        timeout_ms: int,
        compression: str | None = None,
        position_records: PositionRecords | None = None,
    ) -> None:
        self._store = store
        self._coordinator = coordinator
        self._transactional_id = transactional_id
        self._codec = (
            CompressionType.NONE if compression is None else CompressionType.of(compression)
        )
        self._position_records = position_records
        self._lock = threading.RLock()
        self._outcome: Outcome = "open"
        self._pending: dict[TopicPartition, PendingRecords] = {}
        self._added: set[TopicPartition] = set()
        # With the topic's id: a topic that was made anew knows of no record of this producer.
        self._sequences: dict[tuple[TopicPartition, str | None], int] = {}
        self._unflushed: dict[TopicPartition, int] = {}
        # Where finished batches are appended just now, each by one thread without the lock.
        self._busy: set[TopicPartition] = set()
        self._idle = threading.Condition(self._lock)
        self._producer = coordinator.begin(transactional_id, timeout_ms)

    @property
    def transactional_id(self) -> str:
        """The name that it was begun with."""
        return self._transactional_id

    @property
    def producer(self) -> ProducerIdAndEpoch:
        """Who its records are from."""
        return self._producer

    @property
    def outcome(self) -> Outcome:
        """
        How it stands.

        ==============  ====================================================================
        ``open``        neither committed nor aborted
        ``committed``   everything is seen, or will be once a failed disk is back
        ``aborted``     nothing will be seen
        ``fenced``      aborted by the coordinator: it timed out, or somebody took the id over
        ``in doubt``    the disk failed while the decision was written: the next open of the
                        store tells, and ends it
        ==============  ====================================================================
        """
        return self._outcome

    # -- records -----------------------------------------------------------------------------------

    def append(
        self,
        topic: Place,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: Headers = (),
        timestamp: int | datetime | None = None,
    ) -> None:
        """
        Add one record.

        Args:
            topic: A topic, whose partitioner decides, or a topic and a partition.
            value: A buffer; None is a tombstone.
            key: A buffer.
            headers: A mapping or a sequence of pairs.
            timestamp: Milliseconds or an aware datetime; None: now.

        Raises:
            InvalidTxnStateError: The transaction has ended.
            InvalidTopicError: The topic is internal.
            ProducerFencedError: It has ended by other hands.
            UnknownTopicError: There is no such topic.
            RecordTooLargeError: A batch of the topic has no room for the record.
            StorageError: It cannot be written; abort.
        """
        check_buffer(value, "value")
        check_buffer(key, "key")
        with self._lock:
            self._check_open()
            place = self._place(topic, key, value, headers)
            self._add(
                place,
                (
                    None,
                    self._now() if timestamp is None else milliseconds_of(timestamp),
                    None if key is None else bytes(key),
                    None if value is None else bytes(value),
                    header_pairs(headers),
                ),
            )

    def extend(
        self,
        topic: Place,
        values: Iterable[Buffer | None],
        *,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[int | datetime] | None = None,
    ) -> None:
        """
        Add many records, each to the partition of its key; arguments as in ``Topic.extend``.

        Args:
            topic: A topic, whose partitioner decides, or a topic and a partition.
            values: Buffers; None is a tombstone.
            keys: One for each value; None: no keys.
            headers: A mapping or pairs for each record.
            timestamps: Milliseconds or aware datetimes; None: now.

        Raises:
            TypeError: A value or a key is neither a buffer nor None.
            ValueError: Columns of different lengths, or a time in another unit.

        The other errors are those of :meth:`append`.
        """
        with self._lock:
            self._check_open()
            for given in given_records(values, keys, timestamps, headers):
                self._extend(topic, given)

    def _extend(self, topic: Place, given: GivenRecords) -> None:
        check_not_internal(_topic_of(topic))
        if not isinstance(topic, str):
            self._add_many(TopicPartition(*topic), given)
            return
        spread = self._store[topic].spread(given)
        for partition in spread.grouped.partitions():
            self._add_many(TopicPartition(topic, partition), spread.part(partition).taken())

    def append_batches(self, place: tuple[str, int], batches: bytearray | memoryview) -> None:
        """
        Append finished batches, which become this transaction's; their records stay as they are.

        Args:
            place: A topic and a partition.
            batches: Batches of format 2 that no producer has numbered, and nothing behind them.
                Their headers are changed in place; afterwards the buffer is the caller's again.

        Raises:
            InvalidTxnStateError, InvalidTopicError, ProducerFencedError, StorageError: As in
                :meth:`append`.
            CorruptRecordError: A batch is damaged.
            InvalidRecordError: One is a producer's already, or the topic refuses its records.
            RecordTooLargeError: One is larger than the topic's max.message.bytes.

        After an error, batches before the one in question may be there: abort.
        """
        found = TopicPartition(*place)
        with self._lock:
            check_not_internal(_topic_of(place))
            self._idle.wait_for(lambda: found not in self._busy)
            self._check_open()
            pending = self._pending.get(found)
            if pending is not None and pending.values:
                self._write([found])  # What came before stays before it.
            with self._ended_by_others(found):
                self._note_places([found])
                log = self._store[found]
                sequence = self._sequences.get((found, log.topic_id), 0)
                guard = self._guard(log, sequence)
            self._busy.add(found)
        try:
            with self._ended_by_others(found):
                sequence = append_finished(
                    log,
                    view_of(batches),
                    producer_id=self._producer.producer_id,
                    producer_epoch=self._producer.producer_epoch,
                    base_sequence=sequence,
                    leader_epoch=log.leader_epoch,
                    verification_guard=guard,
                )
                self._start_flush(found, log, len(batches))
        finally:
            with self._lock:
                self._sequences[found, log.topic_id] = sequence
                self._busy.discard(found)
                self._idle.notify_all()

    def note_partitions(self, places: Iterable[tuple[str, int]]) -> None:
        """
        Say which partitions will be written to: one step for all of them, instead of one for each.

        Raises:
            InvalidTxnStateError, ProducerFencedError, StorageError: As in :meth:`append`.
        """
        with self._lock:
            self._check_open()
            found = [TopicPartition(*place) for place in places]
            if found:
                with self._ended_by_others(found[0]):
                    self._note_places(found)

    def add_rows(self, place: TopicPartition, rows: Iterable[RecordFields]) -> None:
        """Add records of a coordinator's own topic; errors as in :meth:`append`."""
        with self._lock:
            self._check_open()
            for row in rows:
                self._add(place, row)

    def commit_positions(
        self,
        group: str,
        positions: Offsets,
        *,
        metadata: str = "",
    ) -> None:
        """
        Set a group's positions as a part of the transaction.

        Until the commit the group is where it was; after an abort it stays there.

        Args:
            group: Its name.
            positions: For each partition the offset of the next record to read.
            metadata: What to remember with them.

        Raises:
            InvalidTxnStateError, ProducerFencedError, StorageError: As in :meth:`append`.
            ValueError: The group is empty or an offset negative.
            OffsetMetadataTooLargeError: The metadata is larger than offset.metadata.max.bytes.

        Source: Kafka ``sendOffsetsToTransaction``.
        """
        with self._lock:
            self._check_open()
            if self._position_records is None:
                raise InvalidTxnStateError("there are no positions here; use a store")
            self.add_rows(*self._position_records(group, positions, metadata, self._now()))

    def _place(
        self, topic: Place, key: Buffer | None, value: Buffer | None, headers: Headers
    ) -> TopicPartition:
        check_not_internal(_topic_of(topic))
        if isinstance(topic, str):
            return TopicPartition(topic, self._store[topic].choose_partition(key, value, headers))
        return TopicPartition(*topic)

    def _add(self, place: TopicPartition, row: RecordFields) -> None:
        size_bytes = RECORD_OVERHEAD_MAX + sum(
            0 if item is None else size_of(item) for item in (row[2], row[3])
        )
        for name, value in row[4]:
            size_bytes += len(name) * 4 + 10 + (0 if value is None else len(value))
        pending = self._pending_of(place)
        if pending.values and pending.size_bytes + size_bytes > pending.bytes_max:
            self._write([place])
        pending.add(row, size_bytes)
        if pending.size_bytes >= pending.bytes_max:
            self._write([place])

    def _add_many(self, place: TopicPartition, given: GivenRecords) -> None:
        pending = self._pending_of(place)
        pending.extend(given, self._now())
        if pending.size_bytes >= pending.bytes_max:
            self._write([place], last_waits=True)

    def _pending_of(self, place: TopicPartition) -> PendingRecords:
        pending = self._pending.get(place)
        if pending is None:
            pending = self._pending[place] = PendingRecords(self._store[place])
        return pending

    def flush(self) -> None:
        """
        Write what was collected, to be seen by whoever reads uncommitted records.

        Raises:
            ProducerFencedError: The transaction has ended by other hands.
            StorageError: It cannot be written; abort.
        """
        with self._lock:
            self._check_open()
            self._write([place for place, pending in self._pending.items() if pending.values])

    def _write(self, places: list[TopicPartition], *, last_waits: bool = False) -> None:
        self._wait_for_appends()
        if places:
            with self._ended_by_others(places[0]):
                self._note_places(places)
        for place in places:
            with self._ended_by_others(place):
                self._append(place, self._pending[place], last_waits=last_waits)

    def _wait_for_appends(self) -> None:
        """Wait for those without the lock, which is given away meanwhile."""
        self._idle.wait_for(lambda: not self._busy)

    @contextlib.contextmanager
    def _ended_by_others(self, place: TopicPartition) -> Iterator[None]:
        """Tell of a transaction that has ended by other hands as what it is: fenced."""
        try:
            yield
        except ProducerFencedError:
            self._outcome = "fenced"
            raise
        except (InvalidProducerEpochError, InvalidTxnStateError) as error:
            # A marker was there first: it has ended the transaction, and raised the epoch.
            self._outcome = "fenced"
            raise ProducerFencedError(
                f"the transaction of {self._transactional_id!r} has ended by other hands: a newer"
                " producer took the id over, or it timed out; begin another one",
                topic=place.topic,
                partition=place.partition,
            ) from error

    def _note_places(self, places: list[TopicPartition]) -> None:
        new = [place for place in dict.fromkeys(places) if place not in self._added]
        if new:
            self._coordinator.add_partitions(self._transactional_id, self._producer, new)
            self._added.update(new)

    def _append(self, place: TopicPartition, pending: PendingRecords, *, last_waits: bool) -> None:
        """Write what waits for a partition, perhaps but for the last batch, which may grow."""
        if pending.log.is_closed:  # The topic was deleted; another one of this name is a new log.
            pending.log = self._store[place]
        key = (place, pending.log.topic_id)
        columns = columns_of(pending.given(), self._now()).columns
        done = size_bytes = 0
        try:
            while done < columns.count:
                batch, count = encoded_batch(
                    columns,
                    done,
                    self._codec,
                    batch_bytes=pending.bytes_max,
                    base_offset=0,
                    leader_epoch=-1,
                    producer_id=self._producer.producer_id,
                    producer_epoch=self._producer.producer_epoch,
                    base_sequence=self._sequences.get(key, 0),
                    attributes=TRANSACTIONAL_FLAG,
                )
                if last_waits and done + count == columns.count:
                    size_bytes = len(batch)
                    break
                self._append_batch(place, pending.log, batch, count)
                done += count
        finally:
            pending.drop(done, size_bytes)

    def _append_batch(self, place: TopicPartition, log: Log, batch: Buffer, count: int) -> None:
        key = (place, log.topic_id)
        sequence = self._sequences.get(key, 0)
        guard = self._guard(log, sequence)
        log.append_batches(batch, leader_epoch=log.leader_epoch, verification_guard=guard)
        self._sequences[key] = increment_sequence(sequence, count)
        self._start_flush(place, log, len(batch))

    def _guard(self, log: Log, sequence: int) -> VerificationGuard | None:
        """Return what the first append to a partition must present."""
        if sequence != 0:
            return None
        return log.maybe_start_transaction_verification(
            self._producer.producer_id,
            0,
            self._producer.producer_epoch,
            supports_epoch_bump=True,
        )

    def _start_flush(self, place: TopicPartition, log: Log, size_bytes: int) -> None:
        """Let the device begin with what was written, if that is much by now."""
        unflushed = self._unflushed.get(place, 0) + size_bytes
        if unflushed >= START_FLUSH_BYTES:
            log.start_flush()
            unflushed = 0
        self._unflushed[place] = unflushed

    # -- end ---------------------------------------------------------------------------------------

    def commit(self) -> None:
        """
        Commit: on return everything is seen, and survives a power loss.

        Raises:
            InvalidTxnStateError: The transaction was aborted.
            ProducerFencedError: It has ended by other hands.
            StorageError: A disk has failed; :attr:`outcome` says what became of it.
        """
        with self._lock:
            self._wait_for_appends()
            if self._outcome == "committed":
                return
            self.flush()
            self._end(committed=True)

    def abort(self) -> None:
        """
        Abort: nothing of it will be seen. What has been fenced is aborted already.

        Raises:
            InvalidTxnStateError: The transaction was committed.
            StorageError: A disk has failed; the coordinator aborts it later.
        """
        with self._lock:
            self._wait_for_appends()
            if self._outcome in ("aborted", "fenced"):
                return
            self._check_open()
            self._pending.clear()
            self._end(committed=False)

    def _end(self, *, committed: bool) -> None:
        wanted: Outcome = "committed" if committed else "aborted"
        try:
            self._coordinator.end(self._transactional_id, self._producer, committed=committed)
        except ProducerFencedError:
            self._outcome = "fenced"
            if committed:
                raise
        except BaseException:
            # An abort that fails is the coordinator's to repeat, as is whatever is decided.
            if self._decision() is not None or not committed:
                self._outcome = wanted
            else:
                self._outcome = self._aborted_instead()
            raise
        else:
            self._outcome = wanted
        finally:
            self._pending.clear()

    def _decision(self) -> TransactionState | None:
        return self._coordinator.decision(self._transactional_id, self._producer)

    def _aborted_instead(self) -> Outcome:
        """Abort what could not be committed; that fails if the decision may be on the disk."""
        try:
            self._coordinator.end(self._transactional_id, self._producer, committed=False)
        except LogStoreError:
            return "in doubt" if self._decision() is None else "aborted"
        return "aborted"

    def _check_open(self) -> None:
        if self._outcome == "open":
            return
        message = f"the transaction of {self._transactional_id!r} has ended: {self._outcome}"
        if self._outcome == "fenced":
            raise ProducerFencedError(message + "; begin another one")
        raise InvalidTxnStateError(message + "; begin another one")

    def _now(self) -> int:
        return self._store.clock.milliseconds()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._outcome != "open":
            return  # It was ended in the block, or fenced.
        if error is None:
            try:
                self.commit()
            finally:
                if self.outcome == "open":  # A last batch could not be written.
                    self._abort_quietly()
        else:
            self._abort_quietly()

    def _abort_quietly(self) -> None:
        """Abort because of another error, which is the one to see."""
        try:
            self.abort()
        except LogStoreError as error:
            self._store.report(error, "transaction-abort")

    def __repr__(self) -> str:
        return f"<Transaction {self._transactional_id!r} {self._outcome}>"


PositionRecords: TypeAlias = Callable[
    [str, Offsets, str, int],
    tuple[TopicPartition, list[RecordFields]],
]


def _topic_of(place: Place) -> str:
    return place if isinstance(place, str) else TopicPartition.of(place).topic
