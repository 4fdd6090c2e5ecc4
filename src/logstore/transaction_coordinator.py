"""
The transaction coordinator: which transaction is open, how it was decided, and its markers.

What it knows is in ``__transaction_state``, one record for each step::

    Empty ──▶ Ongoing ──▶ PrepareCommit ──▶ markers in every partition ──▶ CompleteCommit
                 └──────▶ PrepareAbort  ──▶ markers in every partition ──▶ CompleteAbort

====  ===================================================  ========================================
step  durable before it begins                             a crash in it leads to
====  ===================================================  ========================================
1     a partition is noted with the transaction            abort
2     records are written there                            abort
3     they are flushed; the decision to commit is written  abort, or commit if the decision is there
4     markers are written                                  commit
5     they are flushed; Complete is written                commit
====  ===================================================  ========================================

An abort needs no flush until its Complete: without a decision a transaction is aborted anyway.
:meth:`TransactionCoordinator.load` finishes what it finds unfinished, so that a kill at any moment
ends in one of the two. A marker that is written a second time changes nothing.

Source: Kafka ``TransactionCoordinator``, ``TransactionStateManager``; KIP-98, KIP-890; spec 8.10.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.checkpoint import TopicPartition
from logstore.control_record import ControlRecordType, EndTransactionMarker
from logstore.coordinator_record import partition_for
from logstore.coordinator_store import CoordinatorStore
from logstore.errors import (
    InvalidTransactionTimeoutError,
    LogStoreError,
    OfflineError,
    ProducerFencedError,
    StorageError,
    raise_first,
)
from logstore.records_builder import end_transaction_marker
from logstore.topic_names import TRANSACTION_STATE_TOPIC
from logstore.transaction_log import (
    NO_PRODUCER_ID,
    TransactionLogValue,
    TransactionState,
    decode_transaction_record,
    transaction_log_key,
)
from logstore.transaction_metadata import TransactionMetadata

if TYPE_CHECKING:
    from logstore.log import Log
    from logstore.producer_ids import ProducerIdManager
    from logstore.scheduler import Task

TIMEOUT_MS_DEFAULT: Final = 60_000
ABORT_TIMED_OUT_INTERVAL_MS: Final = 10_000
REMOVE_EXPIRED_INTERVAL_MS: Final = 3_600_000


class TransactionSettings(NamedTuple):
    """
    Settings of the coordinator, by the names of Kafka's properties.

    Attributes:
        num_partitions: Of ``__transaction_state``, when it is made.
        segment_bytes: Likewise.
        max_timeout_ms: The longest time-out that a transaction may ask for.
        transactional_id_expiration_ms: An id is forgotten if nobody uses it for so long.
        flush_threads: How many partitions are flushed at once; 0: one after another, by whoever
            ends the transaction.

    Source: Kafka ``TransactionLogConfig``, ``TransactionStateManagerConfig``; spec 9.2.
    """

    num_partitions: int = 50
    segment_bytes: int = 104_857_600
    max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    flush_threads: int = 0

    def topic_config(self) -> dict[str, object]:
        """Return what ``__transaction_state`` is made with; a broker enforces it."""
        return {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": self.segment_bytes,
        }


class ProducerIdAndEpoch(NamedTuple):
    """Who writes; an older epoch of the same id is refused everywhere."""

    producer_id: int
    producer_epoch: int


class TransactionCoordinator:
    """
    Begins, decides and finishes the transactions of a store.

    Args:
        store: Its topics. What loads the store calls :meth:`load` before anybody writes.
        producer_ids: Gives out producer ids.
        settings: None: the defaults.

    **Thread rule**: any thread may call anything; calls for one transactional id wait for each
    other.

    Source: Kafka ``TransactionCoordinator``, ``TransactionMarkerChannelManager``.
    """

    def __init__(
        self,
        store: CoordinatorStore,
        producer_ids: ProducerIdManager,
        settings: TransactionSettings | None = None,
    ) -> None:
        self._store = store
        self._producer_ids = producer_ids
        self._settings = settings or TransactionSettings()
        self._lock = threading.Lock()
        self._transactions: dict[str, TransactionMetadata] = {}
        self._unread: dict[int, LogStoreError] = {}
        self._to_read: set[int] = set()  # Partitions that wait until they are needed.
        self._reading = threading.RLock()
        self._tasks: list[Task] = []
        self._executor: ThreadPoolExecutor | None = None
        self._topic_lock = threading.Lock()

    # -- life --------------------------------------------------------------------------------------

    def load(self, *, was_closed_cleanly: bool = False) -> None:
        """
        Read ``__transaction_state``, and end every transaction that was open or half ended.

        A transaction without a decision is aborted: its producer was in another process. What
        cannot be read or ended now is reported. The transactional ids of a partition that cannot
        be read are refused; what cannot be ended is tried again.

        Args:
            was_closed_cleanly: Whoever had the store before has ended everything, and a partition
                is read when one of its transactional ids is used.
        """
        if TRANSACTION_STATE_TOPIC not in self._store:
            return
        with self._lock:
            self._transactions = {}
            self._unread = {}
            self._to_read = set(range(self._store[TRANSACTION_STATE_TOPIC].partition_count))
        if not was_closed_cleanly:
            self._read_all()
        self._schedule()

    def _read_all(self) -> None:
        for partition in sorted(self._to_read):
            self._read(partition)
        self._end_all_interrupted("end transactions")

    def _read(self, partition: int) -> None:
        """Take over what a partition says, unless that was done."""
        with self._reading:
            if partition not in self._to_read:
                return
            found: dict[str, TransactionMetadata] = {}
            try:
                _read_partition(self._store[TRANSACTION_STATE_TOPIC, partition], found)
            except LogStoreError as error:
                self._unread[partition] = error
                self._store.report(error, f"load {TRANSACTION_STATE_TOPIC}-{partition}")
            with self._lock:
                self._transactions.update(found)
                self._to_read.discard(partition)

    def close(self) -> bool:
        """
        Stop background work, and abort what is open, or leave that to the next load.

        Returns:
            Whether everything is ended.
        """
        self._cancel()
        is_ended = self._end_all_interrupted("end transactions")
        self.stop()
        return is_ended

    def stop(self) -> None:
        """Stop background work; what is open stays so."""
        self._cancel()
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()

    def _cancel(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()

    def _end_all_interrupted(self, what: str) -> bool:
        is_ended = not self._unread
        for metadata in self._all():
            with metadata.lock:
                try:
                    self._end_interrupted(metadata)
                except LogStoreError as error:  # The other transactions are no part of it.
                    is_ended = False
                    self._store.report(error, what)
        return is_ended

    def _end_interrupted(self, metadata: TransactionMetadata) -> None:
        metadata.is_held = False
        if metadata.state is TransactionState.ONGOING:
            self._decide(metadata, TransactionState.PREPARE_ABORT)
        if metadata.state.is_decided:
            self._write_markers(metadata)
            self._note_complete(metadata)

    def _schedule(self) -> None:
        if self._tasks:
            return
        this = weakref.ref(self)  # What is scheduled must not keep the store alive.

        def abort_timed_out() -> None:
            coordinator = this()
            if coordinator is not None:
                coordinator.abort_timed_out()

        def remove_expired() -> None:
            coordinator = this()
            if coordinator is not None:
                coordinator.remove_expired()

        schedule = self._store.scheduler.schedule
        interval = ABORT_TIMED_OUT_INTERVAL_MS
        self._tasks = [schedule("transaction-abort", abort_timed_out, interval, interval)]
        interval = REMOVE_EXPIRED_INTERVAL_MS
        self._tasks.append(
            schedule("transactionalId-expiration", remove_expired, interval, interval)
        )

    # -- what a producer asks ----------------------------------------------------------------------

    @property
    def max_timeout_ms(self) -> int:
        """The longest time-out that a transaction may ask for: transaction.max.timeout.ms."""
        return self._settings.max_timeout_ms

    def begin(self, transactional_id: str, timeout_ms: int) -> ProducerIdAndEpoch:
        """
        Return who writes the next transaction of an id; whoever held it before is fenced.

        Nothing is written if the id was given back at the end of a transaction: its epoch grew
        then.

        Raises:
            TypeError, ValueError: The id is no text, or empty.
            InvalidTransactionTimeoutError: The time-out is not in (0, transaction.max.timeout.ms].
            OfflineError: What is known of the id could not be read.
            LogStoreError: An earlier transaction could not be completed.
        """
        if not isinstance(transactional_id, str):
            raise TypeError(f"a transactional id is a str, not {type(transactional_id).__name__}")
        if not transactional_id:
            raise ValueError("the transactional id is empty; give the producer a lasting name")
        if not 0 < timeout_ms <= self._settings.max_timeout_ms:
            raise InvalidTransactionTimeoutError(
                f"a time-out of {timeout_ms} ms is not in (0, {self._settings.max_timeout_ms}],"
                " the latter being transaction.max.timeout.ms"
            )
        self._ensure_topic()
        while True:
            metadata = self._metadata(transactional_id, timeout_ms)
            with metadata.lock:
                value = metadata.value
                if value.state is TransactionState.DEAD:
                    continue  # It expired in between.
                if (
                    metadata.is_held
                    or not metadata.is_initialized
                    or value.timeout_ms != timeout_ms
                    or value.state.is_decided
                ):
                    value = self._init_producer_id(metadata, timeout_ms)
                metadata.is_held = True
                return ProducerIdAndEpoch(value.producer_id, value.producer_epoch)

    def _init_producer_id(
        self, metadata: TransactionMetadata, timeout_ms: int
    ) -> TransactionLogValue:
        """Fence who was there and write the next epoch. Source: Kafka ``handleInitProducerId``."""
        self._end_interrupted(metadata)
        now_ms = self._store.clock.milliseconds()
        if metadata.is_epoch_exhausted:
            prepared = metadata.prepare_producer_id_rotation(
                self._producer_ids.generate(), timeout_ms, now_ms
            )
        else:
            prepared = metadata.prepare_increment_producer_epoch(timeout_ms, now_ms)
        self._write(metadata, prepared)
        metadata.is_initialized = True
        return prepared

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
    ) -> None:
        """
        Note the partitions that a transaction is about to write to; durable on return.

        Raises:
            ProducerFencedError: The transaction has ended by other hands.
            StorageError: Nothing may be written there.

        Source: Kafka ``handleAddPartitionsToTransaction``.
        """
        metadata = self._existing(transactional_id, producer)
        with metadata.lock:
            self._check_producer(metadata, producer)
            now_ms = self._store.clock.milliseconds()
            prepared = metadata.prepare_add_partitions(partitions, now_ms)
            if (
                metadata.state is TransactionState.ONGOING
                and prepared.partitions == metadata.value.partitions
            ):
                return
            self._write(metadata, prepared)

    def end(self, transactional_id: str, producer: ProducerIdAndEpoch, *, committed: bool) -> None:
        """
        Decide a transaction, and write its markers.

        **Durability**: the decision is durable before the first marker, and everything on return.

        Raises:
            ProducerFencedError: It has ended by other hands.
            StorageError: It is undecided; or decided, and completed later: see :meth:`decision`.

        Source: Kafka ``handleEndTransaction``.
        """
        metadata = self._existing(transactional_id, producer)
        with metadata.lock:
            self._check_producer(metadata, producer)
            if metadata.state is TransactionState.ONGOING:
                self._decide(
                    metadata,
                    TransactionState.PREPARE_COMMIT
                    if committed
                    else TransactionState.PREPARE_ABORT,
                )
                self._write_markers(metadata)
                try:
                    self._note_complete(metadata)
                except StorageError as error:
                    # Everything is done but for saying so. Whoever comes next does it again.
                    self._store.report(error, "note that a transaction is complete")
            metadata.is_held = False

    def decision(
        self, transactional_id: str, producer: ProducerIdAndEpoch
    ) -> TransactionState | None:
        """Return how a producer's transaction was decided; None: it was not, or is complete."""
        metadata = self._transactions.get(transactional_id)
        if metadata is None or not metadata.state.is_decided:
            return None
        value = metadata.value
        is_its = (value.producer_id, value.producer_epoch - 1) == producer
        return value.state if is_its else None

    def describe(self, transactional_id: str) -> TransactionLogValue | None:
        """Return what is known of a transactional id; None: nothing."""
        self._read_for(transactional_id)
        metadata = self._transactions.get(transactional_id)
        return None if metadata is None else metadata.value

    def producer_ids(self) -> Iterator[int]:
        """Yield the producer ids that transactional ids have or will get."""
        self._read_all()
        for each in self._all():
            yield each.value.producer_id
            yield each.value.next_producer_id

    # -- background work ---------------------------------------------------------------------------

    def abort_timed_out(self) -> int:
        """
        Abort transactions that are open for too long, and complete what could not be before.

        Returns:
            How many there were.

        Source: Kafka ``abortTimedOutTransactions``.
        """
        ended = 0
        for metadata in self._all():
            if not metadata.lock.acquire(blocking=False):
                continue  # Its producer is at work: the next round will see.
            try:
                if metadata.has_timed_out(self._store.clock.milliseconds()) or (
                    metadata.state.is_decided
                ):
                    self._end_interrupted(metadata)
                    ended += 1
            except LogStoreError as error:  # The other transactions are no part of it.
                self._store.report(error, "abort transactions that have timed out")
            finally:
                metadata.lock.release()
        return ended

    def remove_expired(self) -> int:
        """
        Forget transactional ids that nobody has used for transactional.id.expiration.ms.

        Returns:
            How many there were.

        Source: Kafka ``TransactionStateManager.removeExpiredTransactionalIds``.
        """
        expiration_ms = self._settings.transactional_id_expiration_ms
        removed = 0
        for metadata in self._all():
            with metadata.lock:
                if not metadata.has_expired(self._store.clock.milliseconds(), expiration_ms):
                    continue
                self._state_log(metadata.transactional_id).append(
                    None, key=transaction_log_key(metadata.transactional_id)
                )
                with self._lock:
                    del self._transactions[metadata.transactional_id]
                # Who waits for the lock finds an id that is gone.
                metadata.value = metadata.value._replace(state=TransactionState.DEAD)
                removed += 1
        return removed

    # -- steps -------------------------------------------------------------------------------------

    def _decide(self, metadata: TransactionMetadata, decision: TransactionState) -> None:
        """Write the decision; to commit, behind all that it is about."""
        committed = decision is TransactionState.PREPARE_COMMIT
        if committed:
            self._flush(metadata.value.partitions)
        next_producer_id = (
            self._producer_ids.generate() if metadata.is_epoch_exhausted else NO_PRODUCER_ID
        )
        prepared = metadata.prepare_abort_or_commit(
            decision, next_producer_id, self._store.clock.milliseconds()
        )
        # Without a flush an abort that is lost is an abort all the same.
        self._write(metadata, prepared, sync=committed)

    def _write_markers(self, metadata: TransactionMetadata) -> None:
        """
        Write the markers of a decided transaction, and make them durable.

        Source: Kafka ``TransactionMarkerChannelManager.addTxnMarkersToSend``.
        """
        value = metadata.value
        kind = (
            ControlRecordType.COMMIT
            if value.state is TransactionState.PREPARE_COMMIT
            else ControlRecordType.ABORT
        )
        # A topic that was deleted meanwhile has no records to decide on.
        partitions = [place for place in value.partitions if place.topic in self._store]
        epoch = self._state_log(metadata.transactional_id).leader_epoch
        marker = end_transaction_marker(
            EndTransactionMarker(kind, epoch),
            timestamp=self._store.clock.milliseconds(),
            producer_id=value.producer_id,
            producer_epoch=value.producer_epoch,
        )
        for place in partitions:
            log = self._store[place]
            log.append_batches(marker, leader_epoch=log.leader_epoch, origin="coordinator")
        self._flush(partitions)

    def _note_complete(self, metadata: TransactionMetadata) -> None:
        """Write that every marker is there. Without a flush: whoever reads less does it again."""
        prepared = metadata.prepare_complete(self._store.clock.milliseconds())
        self._write(metadata, prepared, sync=False)

    def _flush(self, partitions: Iterable[TopicPartition]) -> None:
        """Make what was appended to partitions durable; all are tried, whatever fails."""
        logs = [self._store[place] for place in partitions if place.topic in self._store]
        if len(logs) < 2 or not self._settings.flush_threads:
            for log in logs:
                log.flush()
            return
        # Files that are flushed together wait for the same write of the device, not for each other.
        waiting = [self._flushers().submit(log.flush) for log in logs[1:]]
        try:
            logs[0].flush()
        finally:
            errors = list(filter(None, (future.exception() for future in waiting)))
            waiting.clear()
        if errors:
            raise_first(errors)

    def _flushers(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(
                    self._settings.flush_threads, "logstore-transaction-flush"
                )
            return self._executor

    def _write(
        self, metadata: TransactionMetadata, prepared: TransactionLogValue, *, sync: bool = True
    ) -> None:
        """Write a step, and then take it; it is durable on return with ``sync``."""
        self._state_log(metadata.transactional_id).append(
            prepared.encode(), key=transaction_log_key(metadata.transactional_id), sync=sync
        )
        metadata.complete_transition_to(prepared)

    def _check_producer(self, metadata: TransactionMetadata, producer: ProducerIdAndEpoch) -> None:
        value = metadata.value
        if (value.producer_id, value.producer_epoch) != producer or (
            value.state is TransactionState.DEAD
        ):
            raise self._fenced(metadata.transactional_id, producer)

    def _fenced(self, transactional_id: str, producer: ProducerIdAndEpoch) -> ProducerFencedError:
        return ProducerFencedError(
            f"epoch {producer.producer_epoch} of producer {producer.producer_id} no longer holds"
            f" the transactional id {transactional_id!r}: a newer producer took it over, or the"
            " transaction timed out; begin another one"
        )

    # -- what is known -----------------------------------------------------------------------------

    def _all(self) -> list[TransactionMetadata]:
        with self._lock:
            return list(self._transactions.values())

    def _existing(self, transactional_id: str, producer: ProducerIdAndEpoch) -> TransactionMetadata:
        with self._lock:
            metadata = self._transactions.get(transactional_id)
        if metadata is None:
            raise self._fenced(transactional_id, producer)
        return metadata

    def _metadata(self, transactional_id: str, timeout_ms: int) -> TransactionMetadata:
        partition = self._read_for(transactional_id)
        if self._unread:
            error = self._unread.get(partition)
            if error is not None:
                raise OfflineError(
                    f"what is known of the transactional id {transactional_id!r} could not be read"
                    " when the store was opened; see its errors"
                ) from error
        with self._lock:
            metadata = self._transactions.get(transactional_id)
        if metadata is None:
            # Without the lock: a new block is written. Of two at once one's id stays unused.
            metadata = TransactionMetadata.new(
                transactional_id,
                self._producer_ids.generate(),
                timeout_ms,
                self._store.clock.milliseconds(),
            )
            with self._lock:
                metadata = self._transactions.setdefault(transactional_id, metadata)
        return metadata

    def _read_for(self, transactional_id: str) -> int:
        """Return the partition of an id, which has been read."""
        if TRANSACTION_STATE_TOPIC not in self._store:
            return -1
        count = self._store[TRANSACTION_STATE_TOPIC].partition_count
        partition = partition_for(transactional_id, count)
        if partition in self._to_read:
            self._read(partition)
        return partition

    def _state_log(self, transactional_id: str) -> Log:
        count = self._store[TRANSACTION_STATE_TOPIC].partition_count
        return self._store[TRANSACTION_STATE_TOPIC, partition_for(transactional_id, count)]

    def _ensure_topic(self) -> None:
        with self._topic_lock:
            if TRANSACTION_STATE_TOPIC not in self._store:
                self._store.create_topic(
                    TRANSACTION_STATE_TOPIC,
                    partitions=self._settings.num_partitions,
                    config=self._settings.topic_config(),
                )
            self._schedule()


def _read_partition(log: Log, found: dict[str, TransactionMetadata]) -> None:
    """Take over what a partition of ``__transaction_state`` says; the last record holds."""
    for record in log.read("earliest", isolation="log_end"):
        try:
            decoded = decode_transaction_record(record.key, record.value)
            if decoded is None:
                continue
            transactional_id = decoded.key["transactionalId"]
            value = TransactionLogValue.of(decoded)
        except LogStoreError as error:
            error.path = log.directory
            error.offset = record.offset
            raise
        if value is None:
            found.pop(transactional_id, None)
        else:
            found[transactional_id] = TransactionMetadata(transactional_id, value)
