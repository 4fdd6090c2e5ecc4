"""
What one append does to the state of one producer: checked and prepared, applied when it is written.

Source: Kafka ``ProducerAppendInfo``, ``VerificationStateEntry``, ``VerificationGuard``,
``TxnMetadata``, ``CompletedTxn``; KIP-98, KIP-360, KIP-890; spec 5.9.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, NamedTuple, Protocol

from logstore.append_origin import AppendOrigin
from logstore.control_record import ControlRecordType, EndTransactionMarker
from logstore.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from logstore.file_records import LogOffsetMetadata
from logstore.producer_snapshot import NO_PRODUCER_EPOCH, NO_SEQUENCE, ProducerStateEntry
from logstore.records_builder import INT32_MAX

_logger: Final = logging.getLogger(__name__)


class ControlRecord(Protocol):
    """The record of a control batch."""

    @property
    def key(self) -> bytes | None:
        """Its type."""
        ...

    @property
    def value(self) -> bytes | None:
        """What it says."""
        ...

    @property
    def timestamp(self) -> int:
        """When it was made."""
        ...


class ProducerBatch(Protocol):
    """What producer state asks of a batch; :class:`~logstore.record.RecordBatch` has it."""

    producer_epoch: int
    base_sequence: int
    base_offset: int
    last_offset: int
    max_timestamp: int

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record."""
        ...

    @property
    def is_control(self) -> bool:
        """Whether it holds a marker."""
        ...

    @property
    def is_transactional(self) -> bool:
        """Whether it belongs to a transaction."""
        ...

    def records(self) -> Sequence[ControlRecord]:
        """Return the records; asked of control batches only."""
        ...


class VerificationGuard:
    """
    A token for one verification of a transaction; only the same one passes.

    Source: Kafka ``VerificationGuard``.
    """

    __slots__ = ("_number",)

    SENTINEL: ClassVar[VerificationGuard]
    _numbers: ClassVar[itertools.count[int]] = itertools.count(1)

    def __init__(self, number: int | None = None) -> None:
        self._number = next(self._numbers) if number is None else number

    @property
    def is_sentinel(self) -> bool:
        """Whether it stands for "no verification" and never passes."""
        return self._number == 0

    def verify(self, other: VerificationGuard | None) -> bool:
        """Whether ``other`` is this guard; the sentinel never is."""
        return other is not None and self._number != 0 and self._number == other._number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VerificationGuard) and self._number == other._number

    def __hash__(self) -> int:
        return hash(self._number)

    def __repr__(self) -> str:
        return f"VerificationGuard({self._number})"


VerificationGuard.SENTINEL = VerificationGuard(0)


class VerificationStateEntry:
    """
    A verification that is under way for a producer's first transactional append.

    Attributes:
        timestamp: When it began.
        verification_guard: What the append must present.
        lowest_sequence: Lowest sequence seen in this epoch: what comes before it is missing.
        epoch: Highest epoch seen.
        supports_epoch_bump: The producer speaks transaction version 2.

    Source: Kafka ``VerificationStateEntry``.
    """

    __slots__ = (
        "epoch",
        "lowest_sequence",
        "supports_epoch_bump",
        "timestamp",
        "verification_guard",
    )

    def __init__(
        self, timestamp: int, sequence: int, epoch: int, *, supports_epoch_bump: bool
    ) -> None:
        self.timestamp: Final = timestamp
        self.verification_guard: Final = VerificationGuard()
        self.lowest_sequence = sequence
        self.epoch = epoch
        self.supports_epoch_bump: Final = supports_epoch_bump

    def maybe_update_lowest_sequence_and_epoch(self, sequence: int, epoch: int) -> None:
        """Take a lower sequence of the same epoch, or any of a higher one."""
        if epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence
        if epoch > self.epoch:
            self.epoch = epoch
            self.lowest_sequence = sequence


@dataclass(slots=True)
class TxnMetadata:
    """
    A transaction of which the log holds records.

    Attributes:
        producer_id: Whose it is.
        first_offset: Where it begins.
        last_offset: Offset of its marker, None while it is open.

    Source: Kafka ``TxnMetadata``.
    """

    producer_id: int
    first_offset: LogOffsetMetadata
    last_offset: int | None = None


class CompletedTxn(NamedTuple):
    """
    A transaction that a marker has ended; ``last_offset`` is the marker's.

    Source: Kafka ``CompletedTxn``.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ProducerAppendInfo:
    """
    The batches of one producer in one append.

    Each :meth:`append` checks a batch against the producer's state and the batches before, and
    prepares the new state. Nothing of the log's state changes before
    ``ProducerStateManager.update``.

    ====================  =======================  =============================================
    origin                older epoch, coordinator  sequences
    ====================  =======================  =============================================
    client                refused                  checked
    coordinator, raft     refused                  not checked
    replication           logged: it is written    not checked
    ====================  =======================  =============================================

    Args:
        producer_id: Whose batches these are.
        current_entry: What the log knows; it is not changed.
        origin: Where the append comes from.
        verification_state_entry: A verification that is under way, or None.
        name: Of the partition, for messages.

    Source: Kafka ``ProducerAppendInfo``.
    """

    __slots__ = (
        "_current_entry",
        "_name",
        "_origin",
        "_started",
        "_updated_entry",
        "_verification_state_entry",
        "producer_id",
    )

    def __init__(
        self,
        producer_id: int,
        current_entry: ProducerStateEntry,
        origin: AppendOrigin,
        verification_state_entry: VerificationStateEntry | None = None,
        name: str = "",
    ) -> None:
        assert isinstance(origin, AppendOrigin)
        self.producer_id: Final = producer_id
        self._current_entry = current_entry
        self._origin = origin
        self._verification_state_entry = verification_state_entry
        self._name = name
        self._started: list[TxnMetadata] = []
        self._updated_entry = replace(current_entry, batch_metadata=())

    def to_entry(self) -> ProducerStateEntry:
        """Return the prepared entry; it holds only the batches of this append."""
        return self._updated_entry

    @property
    def started_transactions(self) -> list[TxnMetadata]:
        """The transactions that begin in this append."""
        return self._started

    def append(
        self, batch: ProducerBatch, first_offset_metadata: LogOffsetMetadata | None = None
    ) -> CompletedTxn | None:
        """
        Check one batch and prepare what it changes; return the transaction that it ends, if any.

        A marker without an open transaction ends none, and a control batch without a record
        changes nothing: the cleaner leaves those.

        Args:
            batch: A batch of this producer.
            first_offset_metadata: Where it will be, if that is known.

        Raises:
            InvalidProducerEpochError: A newer epoch of the producer has written.
            OutOfOrderSequenceError: Records before this batch are missing.
            InvalidTxnStateError: It is not transactional while a transaction is open.
            TransactionCoordinatorFencedError: A newer coordinator has written a marker.
            InvalidRecordError: It is a control batch, but no marker.
        """
        if batch.is_control:
            records = batch.records()
            if not records:
                return None
            marker = EndTransactionMarker.parse(records[0].key, records[0].value)
            return self.append_end_txn_marker(
                marker, batch.producer_epoch, batch.base_offset, records[0].timestamp
            )
        self.append_data_batch(
            batch.producer_epoch,
            batch.base_sequence,
            batch.last_sequence,
            batch.max_timestamp,
            first_offset_metadata or LogOffsetMetadata(batch.base_offset),
            batch.last_offset,
            is_transactional=batch.is_transactional,
        )
        return None

    def append_data_batch(
        self,
        producer_epoch: int,
        first_sequence: int,
        last_sequence: int,
        last_timestamp: int,
        first_offset_metadata: LogOffsetMetadata,
        last_offset: int,
        *,
        is_transactional: bool,
    ) -> None:
        """Check a batch of records and prepare what it changes; see :meth:`append`."""
        first_offset = first_offset_metadata.message_offset
        self._check_producer_epoch(producer_epoch, first_offset)
        if self._origin is AppendOrigin.CLIENT:
            self._check_sequence(producer_epoch, first_sequence, first_offset)

        updated = self._updated_entry
        updated.add_batch(
            producer_epoch, last_sequence, last_offset, last_offset - first_offset, last_timestamp
        )
        if updated.current_txn_first_offset is not None and not is_transactional:
            raise InvalidTxnStateError(
                f"producer {self.producer_id} has a transaction open since offset"
                f" {updated.current_txn_first_offset}{self._where()};"
                " send transactional batches until it ends",
                offset=first_offset,
            )
        if updated.current_txn_first_offset is None and is_transactional:
            updated.current_txn_first_offset = first_offset
            self._started.append(TxnMetadata(self.producer_id, first_offset_metadata))

    def append_end_txn_marker(
        self, marker: EndTransactionMarker, producer_epoch: int, offset: int, timestamp: int
    ) -> CompletedTxn | None:
        """Check a marker and prepare what it changes; see :meth:`append`."""
        self._check_producer_epoch(producer_epoch, offset)
        self._check_coordinator_epoch(marker, offset)
        updated = self._updated_entry
        first_offset = updated.current_txn_first_offset
        updated.end_transaction(producer_epoch, marker.coordinator_epoch, timestamp)
        if first_offset is None:
            return None
        is_aborted = marker.control_type is ControlRecordType.ABORT
        return CompletedTxn(self.producer_id, first_offset, offset, is_aborted)

    # -- checks ------------------------------------------------------------------------------------

    def _check_producer_epoch(self, producer_epoch: int, offset: int) -> None:
        known_epoch = self._updated_entry.producer_epoch
        if producer_epoch < known_epoch:
            message = (
                f"epoch {producer_epoch} of producer {self.producer_id} at offset {offset}"
                f"{self._where()} is older than {known_epoch}; another instance has taken over"
            )
            if self._origin is not AppendOrigin.REPLICATION:
                raise InvalidProducerEpochError(message, offset=offset)
            _logger.warning("%s", message)

    def _check_coordinator_epoch(self, marker: EndTransactionMarker, offset: int) -> None:
        known_epoch = self._updated_entry.coordinator_epoch
        if marker.coordinator_epoch < known_epoch:
            message = (
                f"coordinator epoch {marker.coordinator_epoch} of a marker for producer"
                f" {self.producer_id} at offset {offset}{self._where()} is older than"
                f" {known_epoch}; a newer coordinator has taken over"
            )
            if self._origin is not AppendOrigin.REPLICATION:
                raise TransactionCoordinatorFencedError(message, offset=offset)
            _logger.info("%s", message)

    def _check_sequence(self, producer_epoch: int, first_sequence: int, offset: int) -> None:
        verification = self._verification_state_entry
        current, updated = self._current_entry, self._updated_entry
        if verification is not None and updated.is_empty:  # It is about the first batch.
            if verification.supports_epoch_bump and first_sequence != 0 and current.is_empty:
                raise self._out_of_order(first_sequence, "0, the first one", offset)
            if first_sequence > verification.lowest_sequence:
                expected = f"{verification.lowest_sequence}, the lowest seen so far"
                raise self._out_of_order(first_sequence, expected, offset)

        if producer_epoch != updated.producer_epoch:
            if first_sequence != 0 and updated.producer_epoch != NO_PRODUCER_EPOCH:
                expected = f"0, as epoch {producer_epoch} is new"
                raise self._out_of_order(first_sequence, expected, offset)
            return
        if not updated.is_empty:
            last_sequence = updated.last_sequence
        elif producer_epoch == current.producer_epoch:
            last_sequence = current.last_sequence
        else:
            last_sequence = NO_SEQUENCE
        # An unknown producer may go on anywhere: its records were deleted, or it expired.
        is_known = current.producer_epoch != NO_PRODUCER_EPOCH
        if is_known and not _in_sequence(last_sequence, first_sequence):
            expected = f"the one after {last_sequence}"
            raise self._out_of_order(first_sequence, expected, offset)

    def _out_of_order(
        self, first_sequence: int, expected: str, offset: int
    ) -> OutOfOrderSequenceError:
        return OutOfOrderSequenceError(
            f"sequence {first_sequence} of producer {self.producer_id} at offset {offset}"
            f"{self._where()} is not {expected}; send what is missing first",
            offset=offset,
        )

    def _where(self) -> str:
        return f" in {self._name}" if self._name else ""


def _in_sequence(last_sequence: int, next_sequence: int) -> bool:
    return next_sequence == last_sequence + 1 or (next_sequence == 0 and last_sequence == INT32_MAX)
