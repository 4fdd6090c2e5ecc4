"""
Records of ``__transaction_state``: what a transaction coordinator knows of each transactional id.

The key is type 0 with the transactional id. The value:

==========================  ===========  ====================================================
field                       type         is
==========================  ===========  ====================================================
producerId                  int64        in use by the transactional id
previousProducerId          int64        tag 0: of the last committed transaction; -1
nextProducerId              int64        tag 1: given to the producer when this one ends; -1
producerEpoch               int16        of the producer id
transactionTimeoutMs        int32        the longest that a transaction may be open
transactionStatus           int8         :class:`TransactionState`
transactionPartitions       array        topics with their partitions; null while Empty
transactionLastUpdate...    int64        milliseconds
transactionStartTimestamp   int64        milliseconds; -1 before the first
clientTransactionVersion    int16        tag 2: 2: the epoch grows with every end; 0
==========================  ===========  ====================================================

Version 0 is plain and has no tagged fields; version 1 is flexible.

Source: Kafka ``TransactionLogKey.json``, ``TransactionLogValue.json``, ``TransactionLog``,
``TransactionState``; spec 8.10.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from logstore.checkpoint import TopicPartition
from logstore.coordinator_record import (
    CoordinatorRecord,
    CoordinatorRecordType,
    decode_record,
    type_id_of,
)
from logstore.errors import InvalidRecordError
from logstore.protocol_message import Array, Field, MessageSchema, Struct
from logstore.timestamp_type import NO_TIMESTAMP

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1

VALUE_VERSION: Final = 1
TRANSACTION_VERSION: Final = 2

TRANSACTION_LOG: Final = CoordinatorRecordType(
    0,
    MessageSchema("TransactionLogKey", (Field("transactionalId", "string"),)),
    MessageSchema(
        "TransactionLogValue",
        (
            Field("producerId", "int64"),
            Field("previousProducerId", "int64", 1, tag=0, default=NO_PRODUCER_ID),
            Field("nextProducerId", "int64", 1, tag=1, default=NO_PRODUCER_ID),
            Field("producerEpoch", "int16"),
            Field("transactionTimeoutMs", "int32"),
            Field("transactionStatus", "int8"),
            Field(
                "transactionPartitions",
                Array(Struct((Field("topic", "string"), Field("partitionIds", Array("int32"))))),
                is_nullable=True,
            ),
            Field("transactionLastUpdateTimestampMs", "int64"),
            Field("transactionStartTimestampMs", "int64"),
            Field("clientTransactionVersion", "int16", 1, tag=2, default=0),
        ),
        last_version=VALUE_VERSION,
        flexible_version=1,
    ),
)


class TransactionState(IntEnum):
    """
    Where a transactional id stands.

    ===================  ==================================================================
    state                comes after
    ===================  ==================================================================
    EMPTY                EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT
    ONGOING              ONGOING, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT
    PREPARE_COMMIT       ONGOING
    PREPARE_ABORT        ONGOING, PREPARE_EPOCH_FENCE, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT
    COMPLETE_COMMIT      PREPARE_COMMIT
    COMPLETE_ABORT       PREPARE_ABORT
    DEAD                 EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT
    PREPARE_EPOCH_FENCE  ONGOING
    ===================  ==================================================================

    Source: Kafka ``TransactionState``; spec 8.10.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def is_decided(self) -> bool:
        """Whether the decision stands and markers are missing."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    def may_follow(self, before: TransactionState) -> bool:
        """Whether a transactional id may come here from ``before``."""
        return before in _PREDECESSORS[self]


_AT_REST: Final = frozenset(
    {
        TransactionState.EMPTY,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    }
)
_PREDECESSORS: Final[dict[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: _AT_REST,
    TransactionState.ONGOING: _AT_REST | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    TransactionState.PREPARE_ABORT: _AT_REST
    | {TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: _AT_REST,
    TransactionState.PREPARE_EPOCH_FENCE: frozenset({TransactionState.ONGOING}),
}


class TransactionLogValue(NamedTuple):
    """
    What a record says of a transactional id; see the module's table.

    Attributes:
        partitions: Those that hold the transaction's records, in the order of the record.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: tuple[TopicPartition, ...]
    last_update_ms: int
    start_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_transaction_version: int = 0

    def encode(self, version: int = VALUE_VERSION) -> bytes:
        """
        Return the value of a record, its version in front.

        Source: Kafka ``TransactionLog.valueToBytes``.
        """
        assert self.state is not TransactionState.EMPTY or not self.partitions
        topics = None if self.state is TransactionState.EMPTY else _by_topic(self.partitions)
        return TRANSACTION_LOG.value_bytes(
            {
                "producerId": self.producer_id,
                "previousProducerId": self.previous_producer_id,
                "nextProducerId": self.next_producer_id,
                "producerEpoch": self.producer_epoch,
                "transactionTimeoutMs": self.timeout_ms,
                "transactionStatus": int(self.state),
                "transactionPartitions": topics,
                "transactionLastUpdateTimestampMs": self.last_update_ms,
                "transactionStartTimestampMs": self.start_ms,
                "clientTransactionVersion": self.client_transaction_version,
            },
            version,
        )

    @classmethod
    def of(cls, record: CoordinatorRecord) -> TransactionLogValue | None:
        """
        Return what a decoded record says; None for a tombstone.

        Raises:
            InvalidRecordError: The state is unknown.
        """
        fields = record.value
        if fields is None:
            return None
        try:
            state = TransactionState(fields["transactionStatus"])
        except ValueError:
            raise InvalidRecordError(
                f"transaction status {fields['transactionStatus']} is unknown;"
                " a newer broker wrote it"
            ) from None
        return cls(
            fields["producerId"],
            fields["producerEpoch"],
            fields["transactionTimeoutMs"],
            state,
            tuple(
                TopicPartition(topic["topic"], partition)
                for topic in fields["transactionPartitions"] or ()
                for partition in topic["partitionIds"]
            ),
            fields["transactionLastUpdateTimestampMs"],
            fields["transactionStartTimestampMs"],
            fields["previousProducerId"],
            fields["nextProducerId"],
            fields["clientTransactionVersion"],
        )


def _by_topic(partitions: Iterable[TopicPartition]) -> list[dict[str, object]]:
    numbers: dict[str, list[int]] = {}
    for topic, partition in partitions:
        numbers.setdefault(topic, []).append(partition)
    return [{"topic": topic, "partitionIds": found} for topic, found in numbers.items()]


def transaction_log_key(transactional_id: str) -> bytes:
    """Return the key of a record."""
    return TRANSACTION_LOG.key_bytes({"transactionalId": transactional_id})


def decode_transaction_record(key: bytes | None, value: bytes | None) -> CoordinatorRecord | None:
    """
    Return a record of ``__transaction_state``; None if its type is not known.

    Raises:
        InvalidRecordError: Key or value is malformed, or of an unknown version.
    """
    if type_id_of(key) != TRANSACTION_LOG.type_id:
        return None
    assert key is not None
    return decode_record(TRANSACTION_LOG, key, value)
