"""
What a coordinator knows of one transactional id, and how it may change.

A ``prepare_…`` method returns what is to be written to ``__transaction_state``; nothing has changed
then. Once that is durable, :meth:`TransactionMetadata.complete_transition_to` makes it so.

=========  =======================================================================================
epoch      grows by one
=========  =======================================================================================
begin      when somebody takes the transactional id over, or comes to it anew
end        with the decision: markers carry the epoch behind the transaction's, and what comes late
           with the old one is refused in every partition (KIP-890, transaction version 2)
=========  =======================================================================================

An epoch at 32,766 is exhausted: the end gives the transactional id a new producer id, at epoch 0.

Source: Kafka ``TransactionMetadata``; KIP-98, KIP-360, KIP-890; spec 8.10.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Final

from logstore.checkpoint import TopicPartition
from logstore.timestamp_type import NO_TIMESTAMP
from logstore.transaction_log import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TRANSACTION_VERSION,
    TransactionLogValue,
    TransactionState,
)

INT16_MAX: Final = 2**15 - 1
EXHAUSTED_EPOCH: Final = INT16_MAX - 1


class TransactionMetadata:
    """
    The state of one transactional id.

    Attributes:
        transactional_id: Its name.
        lock: Held by whoever changes it, while the change is written.
        value: As it was written last; for a new id with an epoch of -1, which was not written.
        is_held: A producer of this process has the id and its epoch.
        is_initialized: This process has given out an epoch of it.

    Source: Kafka ``TransactionMetadata``.
    """

    __slots__ = ("is_held", "is_initialized", "lock", "transactional_id", "value")

    def __init__(self, transactional_id: str, value: TransactionLogValue) -> None:
        self.transactional_id: Final = transactional_id
        self.lock: Final = threading.RLock()
        self.value = value
        self.is_held = False
        self.is_initialized = False

    @classmethod
    def new(
        cls, transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int
    ) -> TransactionMetadata:
        """Return what is known of an id that nobody has used."""
        empty = TransactionLogValue(
            producer_id, NO_PRODUCER_EPOCH, timeout_ms, TransactionState.EMPTY, (), now_ms
        )
        return cls(transactional_id, empty)

    @property
    def state(self) -> TransactionState:
        """Where it stands."""
        return self.value.state

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the producer id has no epoch left to give out; one is kept to fence it."""
        return self.value.producer_epoch >= EXHAUSTED_EPOCH

    def has_timed_out(self, now_ms: int) -> bool:
        """Whether a transaction is open for longer than it may be."""
        value = self.value
        return (
            value.state is TransactionState.ONGOING and value.start_ms + value.timeout_ms < now_ms
        )

    def has_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether nobody has used it for so long that it may be forgotten."""
        value = self.value
        return (
            TransactionState.DEAD.may_follow(value.state)
            and not self.is_held
            and value.last_update_ms + expiration_ms <= now_ms
        )

    # -- transitions -------------------------------------------------------------------------------

    def prepare_increment_producer_epoch(self, timeout_ms: int, now_ms: int) -> TransactionLogValue:
        """Return the state in which the next producer begins, with the next epoch."""
        assert not self.is_epoch_exhausted
        return self._prepare(
            TransactionState.EMPTY,
            producer_epoch=self.value.producer_epoch + 1,
            timeout_ms=timeout_ms,
            partitions=(),
            start_ms=NO_TIMESTAMP,
            last_update_ms=now_ms,
            client_transaction_version=0,
        )

    def prepare_producer_id_rotation(
        self, producer_id: int, timeout_ms: int, now_ms: int
    ) -> TransactionLogValue:
        """Return the same with a new producer id, whose first epoch is 0."""
        return self._prepare(
            TransactionState.EMPTY,
            producer_id=producer_id,
            producer_epoch=0,
            timeout_ms=timeout_ms,
            partitions=(),
            start_ms=NO_TIMESTAMP,
            last_update_ms=now_ms,
            client_transaction_version=0,
        )

    def prepare_add_partitions(
        self, partitions: Iterable[TopicPartition], now_ms: int
    ) -> TransactionLogValue:
        """Return the state in which the transaction has these partitions too."""
        value = self.value
        is_open = value.state is TransactionState.ONGOING
        return self._prepare(
            TransactionState.ONGOING,
            partitions=tuple(dict.fromkeys((*value.partitions, *partitions))),
            start_ms=value.start_ms if is_open else now_ms,
            last_update_ms=now_ms,
            client_transaction_version=TRANSACTION_VERSION,
        )

    def prepare_abort_or_commit(
        self, state: TransactionState, next_producer_id: int, now_ms: int
    ) -> TransactionLogValue:
        """
        Return the decision, with the epoch behind the transaction's.

        Args:
            state: PREPARE_COMMIT or PREPARE_ABORT.
            next_producer_id: If the epoch is exhausted, the id to go on with; else -1.
            now_ms: Milliseconds.
        """
        assert state.is_decided
        return self._prepare(
            state,
            producer_epoch=min(self.value.producer_epoch + 1, INT16_MAX),
            next_producer_id=next_producer_id,
            last_update_ms=now_ms,
            client_transaction_version=TRANSACTION_VERSION,
        )

    def prepare_complete(self, now_ms: int) -> TransactionLogValue:
        """Return the state in which every marker is written."""
        value = self.value
        rotates = value.next_producer_id != NO_PRODUCER_ID
        return self._prepare(
            TransactionState.COMPLETE_COMMIT
            if value.state is TransactionState.PREPARE_COMMIT
            else TransactionState.COMPLETE_ABORT,
            producer_id=value.next_producer_id if rotates else value.producer_id,
            producer_epoch=0 if rotates else value.producer_epoch,
            previous_producer_id=value.producer_id if rotates else NO_PRODUCER_ID,
            next_producer_id=NO_PRODUCER_ID,
            partitions=(),
            last_update_ms=now_ms,
        )

    def complete_transition_to(self, value: TransactionLogValue) -> None:
        """Take over what was prepared, now that it is written."""
        assert value.state.may_follow(self.value.state)
        self.value = value

    def _prepare(self, state: TransactionState, **changes: Any) -> TransactionLogValue:
        assert state.may_follow(self.value.state), (self.value.state, state)
        value: TransactionLogValue = self.value._replace(state=state, **changes)
        assert value.producer_id >= 0
        assert 0 <= value.producer_epoch <= INT16_MAX
        return value

    def __repr__(self) -> str:
        return f"TransactionMetadata({self.transactional_id!r}, {self.value!r})"
