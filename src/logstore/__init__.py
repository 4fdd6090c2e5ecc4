"""
Apache Kafka's storage engine as a library: a segmented append-only log that a program imports.

    import logstore

    with logstore.open("data/orders-0") as log:
        offset = log.append(b"value", key=b"k")
        for record in log.read("earliest"):
            print(record.offset, record.key, record.value)

The names here are the public ones. What lives in the modules below may change.
"""

import sys

if sys.platform == "win32":
    raise ImportError("logstore needs a POSIX system, and Windows is none: run it inside WSL 2")

from logstore._native import Record
from logstore.aborted_transactions import AbortedTransactions
from logstore.append_analysis import LogAppendInfo
from logstore.arrow import Scan
from logstore.checkpoint import TopicPartition
from logstore.clock import Clock, ManualClock
from logstore.compression import CompressionType
from logstore.config import LogConfig
from logstore.damage import SkippedRange
from logstore.errors import (
    ClosedError,
    ConfigError,
    CorruptCheckpointError,
    CorruptIndexError,
    CorruptRecordError,
    CorruptSnapshotError,
    DiskFullError,
    ForkedError,
    InconsistentTopicIdError,
    IndexOffsetOverflowError,
    InvalidOffsetError,
    InvalidPartitionsError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    LockedError,
    LogExistsError,
    LogNotFoundError,
    LogStoreError,
    MissingExtraError,
    OfflineError,
    OffsetGapError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    OffsetsOutOfOrderError,
    OutOfOrderSequenceError,
    PartialAppendError,
    PoisonedError,
    ProducerFencedError,
    ReadOnlyError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    RetentionBlockedError,
    SegmentOffsetOverflowError,
    SinkVersionError,
    StagedBatchesError,
    StorageError,
    TopicAppendError,
    TopicExistsError,
    TransactionCoordinatorFencedError,
    UnexpectedAppendOffsetError,
    UnknownTopicError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
)
from logstore.file_records import (
    AbortedTransaction,
    FetchDataInfo,
    FileRecords,
    LogOffsetMetadata,
)
from logstore.given_records import Headers
from logstore.loading_store import LoadProgress
from logstore.log import Log
from logstore.opening import open
from logstore.positions import Positions
from logstore.producer_append import VerificationGuard
from logstore.readable_log import Isolation, Start
from logstore.reader import RecordIterator
from logstore.record import RecordBatch, TimestampType
from logstore.reporting import Report
from logstore.restoring import Restored, restore
from logstore.segment import TimestampAndOffset
from logstore.snapshot import Snapshot
from logstore.store import LogStore, open_store
from logstore.store_config import StoreConfig
from logstore.topic import Topic
from logstore.topic_extending import TopicOffset, TopicOffsets
from logstore.transactions import Transaction
from logstore.waiter import LogWaiter
from logstore.watermarks import LogOffsets

__all__ = [
    "AbortedTransaction",
    "AbortedTransactions",
    "Clock",
    "ClosedError",
    "CompressionType",
    "ConfigError",
    "CorruptCheckpointError",
    "CorruptIndexError",
    "CorruptRecordError",
    "CorruptSnapshotError",
    "DiskFullError",
    "FetchDataInfo",
    "FileRecords",
    "ForkedError",
    "Headers",
    "InconsistentTopicIdError",
    "IndexOffsetOverflowError",
    "InvalidOffsetError",
    "InvalidPartitionsError",
    "InvalidProducerEpochError",
    "InvalidRecordError",
    "InvalidTimestampError",
    "InvalidTopicError",
    "InvalidTransactionTimeoutError",
    "InvalidTxnStateError",
    "Isolation",
    "LoadProgress",
    "LockedError",
    "Log",
    "LogAppendInfo",
    "LogConfig",
    "LogExistsError",
    "LogNotFoundError",
    "LogOffsetMetadata",
    "LogOffsets",
    "LogStore",
    "LogStoreError",
    "LogWaiter",
    "ManualClock",
    "MissingExtraError",
    "OfflineError",
    "OffsetGapError",
    "OffsetMetadataTooLargeError",
    "OffsetOutOfRangeError",
    "OffsetsOutOfOrderError",
    "OutOfOrderSequenceError",
    "PartialAppendError",
    "PoisonedError",
    "Positions",
    "ProducerFencedError",
    "ReadOnlyError",
    "Record",
    "RecordBatch",
    "RecordBatchTooLargeError",
    "RecordIterator",
    "RecordTooLargeError",
    "Report",
    "Restored",
    "RetentionBlockedError",
    "Scan",
    "SegmentOffsetOverflowError",
    "SinkVersionError",
    "SkippedRange",
    "Snapshot",
    "StagedBatchesError",
    "Start",
    "StorageError",
    "StoreConfig",
    "TimestampAndOffset",
    "TimestampType",
    "Topic",
    "TopicAppendError",
    "TopicExistsError",
    "TopicOffset",
    "TopicOffsets",
    "TopicPartition",
    "Transaction",
    "TransactionCoordinatorFencedError",
    "UnexpectedAppendOffsetError",
    "UnknownTopicError",
    "UnsupportedCompressionTypeError",
    "UnsupportedForMessageFormatError",
    "VerificationGuard",
    "open",
    "open_store",
    "restore",
]
