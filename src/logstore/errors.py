"""
The exception tree: one class for each failure that a caller can tell apart.

Every error is one line that ends in what to do, carries data fields, and pickles with them (Spark
moves exceptions between processes). ``kafka_error_code`` is the code that a broker would answer.

Source: Kafka ``Errors``; spec section 10.
"""

from __future__ import annotations

import errno as _errno
import os
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

ErrorT = TypeVar("ErrorT", bound=BaseException)


class LogStoreError(Exception):
    """
    Base of all errors raised by logstore.

    Attributes:
        path: The file or directory concerned, or None.
        topic: Topic name, or None.
        partition: Partition number, or None.
        offset: Logical offset concerned, or None.
        position: Byte position in ``path``, or None.
    """

    code: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    kafka_error_code: ClassVar[int] = -1

    path: str | None
    topic: str | None
    partition: int | None
    offset: int | None
    position: int | None

    def __init__(
        self,
        message: str,
        *,
        path: str | os.PathLike[str] | None = None,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        position: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = None if path is None else os.fspath(path)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.position = position

    def __str__(self) -> str:
        where = [
            f"{name} {value}"
            for name, value in (
                ("path", self.path),
                ("offset", self.offset),
                ("position", self.position),
            )
            if value is not None and str(value) not in self.message
        ]
        return f"{self.message} ({', '.join(where)})" if where else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call the class with positional arguments and lose the fields.
        fields = self.__dict__.copy()
        if isinstance(self, OSError):
            fields["errno"] = self.errno  # Lives in the C part of an OSError.
        return rebuilt, (type(self), self.message, fields)


def raise_first(errors: list[ErrorT]) -> NoReturn:
    """
    Raise the first of some errors, and leave the list empty: nothing else may refer to them.

    A frame that has an error which it is in the traceback of is a cycle. CPython before 3.12.4 dies
    when it collects one that leads to a memoryview (gh-77894), as frames that read and write do.
    """
    try:
        raise errors[0]
    finally:
        errors.clear()


def rebuilt(cls: type[LogStoreError], message: str, fields: dict[str, Any]) -> LogStoreError:
    """Return an error of a class with the fields that it had in another process."""
    error = cls.__new__(cls, message)
    error.args = (message,)
    for name, value in fields.items():
        setattr(error, name, value)
    return error


class StorageError(LogStoreError, OSError):
    """
    The file system refused an operation; ``errno`` says why.

    Kafka error code 56 (KAFKA_STORAGE_ERROR). What was acknowledged before stays.
    """

    code = "KAFKA_STORAGE_ERROR"
    kafka_error_code = 56

    def __init__(self, message: str, errno: int | None = None, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.errno = errno


class DiskFullError(StorageError):
    """No space is left (ENOSPC, EDQUOT); the log is as before, appends work again with space."""


class LogNotFoundError(StorageError, FileNotFoundError):
    """There is no log at this path; create it with ``mode="a"``."""

    code = "UNKNOWN_TOPIC_OR_PARTITION"
    kafka_error_code = 3

    def __init__(self, message: str, errno: int | None = _errno.ENOENT, **fields: Any) -> None:
        super().__init__(message, errno, **fields)


class LogExistsError(StorageError, FileExistsError):
    """There is a log at this path already; continue it with ``mode="a"``."""

    code = "TOPIC_ALREADY_EXISTS"
    kafka_error_code = 36

    def __init__(self, message: str, errno: int | None = _errno.EEXIST, **fields: Any) -> None:
        super().__init__(message, errno, **fields)


class PoisonedError(StorageError):
    """
    An earlier fsync, or a truncation halfway, failed: the files may not be what the log believes.

    Close the log and open it again, which looks at what is there.
    """


class SimulatedCrashError(StorageError):
    """Simulated files have reached their crash point: every operation fails until a restart."""


class CorruptCheckpointError(StorageError):
    """A checkpoint file has an unknown version, a malformed line or a wrong number of entries."""


class LockedError(LogStoreError, BlockingIOError):
    """
    Another process, or another handle of this one, is writing here.

    Attributes:
        host: Host name of the holder, or None if unknown.
        pid: Process id of the holder, or None if unknown.
    """

    code = "KAFKA_STORAGE_ERROR"
    kafka_error_code = 56

    def __init__(
        self, message: str, *, host: str | None = None, pid: int | None = None, **fields: Any
    ) -> None:
        super().__init__(message, **fields)
        self.host = host
        self.pid = pid


class ReadOnlyError(LogStoreError, PermissionError):
    """The log was opened with ``mode="r"``; open it with ``mode="a"`` to change it."""

    code = "KAFKA_STORAGE_ERROR"
    kafka_error_code = 56


class ClosedError(LogStoreError, ValueError):
    """The log was closed; open it again."""

    code = "KAFKA_STORAGE_ERROR"
    kafka_error_code = 56


class ForkedError(LogStoreError, RuntimeError):
    """A forked child used a handle of its parent; open the log in the child."""


class ConfigError(LogStoreError, ValueError):
    """
    One or more settings are wrong.

    Kafka error code 40 (INVALID_CONFIG).

    Attributes:
        problems: Every problem found, one sentence each.
    """

    code = "INVALID_CONFIG"
    kafka_error_code = 40

    def __init__(self, problems: list[str], **fields: Any) -> None:
        super().__init__("; ".join(problems), **fields)
        self.problems = list(problems)


class OffsetOutOfRangeError(LogStoreError, LookupError):
    """
    The offset is not in ``[log_start_offset, log_end_offset]``.

    Or a log start was to be set above the high watermark.

    Kafka error code 1 (OFFSET_OUT_OF_RANGE). To recover, seek to either bound, as
    ``auto.offset.reset`` would.
    """

    code = "OFFSET_OUT_OF_RANGE"
    kafka_error_code = 1

    def __init__(
        self,
        message: str,
        *,
        log_start_offset: int | None = None,
        log_end_offset: int | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(message, **fields)
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class OffsetGapError(LogStoreError, LookupError):
    """
    No record has this offset: it was compacted away or belongs to a control batch.

    Attributes:
        next_offset: The offset of the next record, or the log end.
    """

    code = "OFFSET_OUT_OF_RANGE"
    kafka_error_code = 1

    def __init__(self, message: str, *, next_offset: int, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.next_offset = next_offset


class CorruptRecordError(LogStoreError, ValueError):
    """
    Bytes of a batch are damaged: size, magic, CRC-32C or compressed data.

    Kafka error code 2 (CORRUPT_MESSAGE). Run ``logstore verify``, then ``logstore repair``.
    """

    code = "CORRUPT_MESSAGE"
    kafka_error_code = 2


class InvalidRecordError(LogStoreError, ValueError):
    """
    A record or batch breaks a rule of the format or of the topic.

    Kafka error code 87 (INVALID_RECORD).

    Attributes:
        record_errors: ``(index in batch, message)`` of each rejected record; empty if the batch
            as a whole was refused.
    """

    code = "INVALID_RECORD"
    kafka_error_code = 87

    def __init__(
        self, message: str, *, record_errors: list[tuple[int, str]] | None = None, **fields: Any
    ) -> None:
        super().__init__(message, **fields)
        self.record_errors = list(record_errors or [])


class InvalidTimestampError(InvalidRecordError):
    """A timestamp is outside the topic's bounds. Kafka error code 32 (INVALID_TIMESTAMP)."""

    code = "INVALID_TIMESTAMP"
    kafka_error_code = 32


class RecordTooLargeError(LogStoreError, ValueError):
    """A batch is larger than ``max.message.bytes``. Kafka error code 10 (MESSAGE_TOO_LARGE)."""

    code = "MESSAGE_TOO_LARGE"
    kafka_error_code = 10


class RecordBatchTooLargeError(LogStoreError, ValueError):
    """An append is larger than ``segment.bytes``. Kafka error code 18 (RECORD_LIST_TOO_LARGE)."""

    code = "RECORD_LIST_TOO_LARGE"
    kafka_error_code = 18


class UnsupportedCompressionTypeError(LogStoreError, ValueError):
    """The codec is unknown or not allowed here. Kafka error code 76."""

    code = "UNSUPPORTED_COMPRESSION_TYPE"
    kafka_error_code = 76


class UnsupportedForMessageFormatError(LogStoreError, ValueError):
    """The operation needs message format v2. Kafka error code 43."""

    code = "UNSUPPORTED_FOR_MESSAGE_FORMAT"
    kafka_error_code = 43


class OutOfOrderSequenceError(LogStoreError, ValueError):
    """A producer's sequence has a gap. Kafka error code 45 (OUT_OF_ORDER_SEQUENCE_NUMBER)."""

    code = "OUT_OF_ORDER_SEQUENCE_NUMBER"
    kafka_error_code = 45


class InvalidProducerEpochError(LogStoreError, ValueError):
    """A producer with an older epoch was fenced. Kafka error code 47 (INVALID_PRODUCER_EPOCH)."""

    code = "INVALID_PRODUCER_EPOCH"
    kafka_error_code = 47


class InvalidTxnStateError(LogStoreError, ValueError):
    """The batch does not fit the transaction. Kafka error code 48 (INVALID_TXN_STATE)."""

    code = "INVALID_TXN_STATE"
    kafka_error_code = 48


class InvalidTransactionTimeoutError(LogStoreError, ValueError):
    """
    A transaction may not be open for so long, or its time-out is no time.

    Kafka error code 50 (INVALID_TRANSACTION_TIMEOUT).
    """

    code = "INVALID_TRANSACTION_TIMEOUT"
    kafka_error_code = 50


class OffsetMetadataTooLargeError(LogStoreError, ValueError):
    """Metadata of a position is larger than offset.metadata.max.bytes. Kafka error code 12."""

    code = "OFFSET_METADATA_TOO_LARGE"
    kafka_error_code = 12


class ProducerFencedError(LogStoreError, RuntimeError):
    """
    The transaction has ended by other hands: a newer producer took its id over, or it timed out.

    Nothing of it will be seen. Kafka error code 90 (PRODUCER_FENCED).
    """

    code = "PRODUCER_FENCED"
    kafka_error_code = 90


class TransactionCoordinatorFencedError(LogStoreError, ValueError):
    """A marker came from an older coordinator. Kafka error code 52."""

    code = "TRANSACTION_COORDINATOR_FENCED"
    kafka_error_code = 52


class InconsistentTopicIdError(LogStoreError, ValueError):
    """The directory belongs to another topic id. Kafka error code 103 (INCONSISTENT_TOPIC_ID)."""

    code = "INCONSISTENT_TOPIC_ID"
    kafka_error_code = 103


class UnexpectedAppendOffsetError(LogStoreError, ValueError):
    """
    A follower append starts below the log end offset.

    Attributes:
        first_offset: First offset of the append.
        last_offset: Its last offset, inclusive.
    """

    def __init__(self, message: str, *, first_offset: int, last_offset: int, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.first_offset = first_offset
        self.last_offset = last_offset


class OffsetsOutOfOrderError(LogStoreError, ValueError):
    """The batches of one append do not have increasing offsets."""


class InvalidOffsetError(LogStoreError, ValueError):
    """An index entry's offset is not above the last one."""


class SegmentOffsetOverflowError(LogStoreError, ValueError):
    """An offset is more than 2^31 - 1 above its segment's base offset: roll or split it."""


class IndexOffsetOverflowError(LogStoreError, ValueError):
    """An offset cannot be an index entry: it is below the base offset or 2^31 or more above it."""


class CorruptIndexError(LogStoreError, ValueError):
    """An index file fails its sanity check; it is rebuilt from the log when the log is opened."""


class CorruptSnapshotError(LogStoreError, ValueError):
    """A producer snapshot fails its checks; an older one, or the log itself, is used instead."""


class LogCleaningAbortedError(LogStoreError):
    """
    A cleaning was given up: the log was truncated, deleted or closed, or somebody asked for it.

    The log is as it was, but for what earlier groups of the same round have replaced.
    """


class RetentionBlockedError(LogStoreError):
    """
    A segment cannot go by age, and nothing behind it can: what it says of its age cannot be right.

    Attributes:
        timestamp: The largest timestamp in it, in ms; None: its records have none.
    """

    timestamp: int | None = None

    def __init__(self, message: str, *, timestamp: int | None = None, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.timestamp = timestamp


class PartialAppendError(LogStoreError):
    """
    An append larger than one segment, or of unsized input, failed after a part was published.

    Attributes:
        appended: The range of offsets that stays.
    """

    def __init__(self, message: str, *, appended: range, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.appended = appended


class TopicAppendError(LogStoreError):
    """
    Records for several partitions of a topic were appended in part.

    Attributes:
        partitions: int32 array: the partition of each record, in the caller's order; of unsized
            input those that were looked at.
        offsets: int64 array: the offset of each, -1 where it was not appended. To try again, give
            the records of ``offsets < 0`` once more.
        errors: For each partition that failed, why. Records that were appended there and could not
            be made durable have offsets all the same.
    """

    def __init__(
        self,
        message: str,
        *,
        partitions: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int64],
        errors: dict[int, Exception],
        **fields: Any,
    ) -> None:
        super().__init__(message, **fields)
        self.partitions = partitions
        self.offsets = offsets
        self.errors = errors


class MissingExtraError(LogStoreError, ImportError):
    """
    An optional dependency is not installed.

    Attributes:
        extra: The extra of the distribution that brings it.
    """

    def __init__(self, message: str, *, extra: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.extra = extra


class UnknownTopicError(LogStoreError, KeyError):
    """
    The store has no such topic or partition.

    Kafka error code 3 (UNKNOWN_TOPIC_OR_PARTITION).
    """

    code = "UNKNOWN_TOPIC_OR_PARTITION"
    kafka_error_code = 3


class TopicExistsError(LogStoreError, ValueError):
    """There is a topic of this name. Kafka error code 36 (TOPIC_ALREADY_EXISTS)."""

    code = "TOPIC_ALREADY_EXISTS"
    kafka_error_code = 36


class InvalidTopicError(LogStoreError, ValueError):
    """
    No topic can have this name.

    Kafka error code 17 (INVALID_TOPIC_EXCEPTION).
    """

    code = "INVALID_TOPIC_EXCEPTION"
    kafka_error_code = 17


class InvalidPartitionsError(LogStoreError, ValueError):
    """A topic cannot have this number of partitions. Kafka error code 37 (INVALID_PARTITIONS)."""

    code = "INVALID_PARTITIONS"
    kafka_error_code = 37


class OfflineError(StorageError):
    """
    A partition is not served: its log directory has failed, or it could not be loaded.

    Kafka error code 56 (KAFKA_STORAGE_ERROR). The others go on; ``__cause__`` says what happened.
    """


class StagedBatchesError(LogStoreError, ValueError):
    """Staged records are missing, or not whole: nothing of them was appended."""


class SinkVersionError(LogStoreError, ValueError):
    """
    A sink has committed a later version already; nothing was appended.

    Attributes:
        sink_id: Whose.
        version: What was to be committed.
        committed_version: What is committed.
    """

    def __init__(
        self, message: str, *, sink_id: str, version: int, committed_version: int, **fields: Any
    ) -> None:
        super().__init__(message, **fields)
        self.sink_id = sink_id
        self.version = version
        self.committed_version = committed_version


class KafkaImportError(LogStoreError):
    """A cluster cannot be asked, or its topic and the store's are not the same."""
