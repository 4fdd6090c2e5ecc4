"""
A topic of a store: partitions that records are spread over.

Source: Kafka's producer, ``KafkaProducer.partition`` and ``BuiltInPartitioner``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Protocol

from logstore._native import Buffer
from logstore.arrow_columns import arrow_rows
from logstore.clock import Clock
from logstore.config import LogConfig
from logstore.errors import UnknownTopicError
from logstore.given_records import Headers, check_buffer, given_records
from logstore.log import Log
from logstore.partitioner import (
    HEADER_BYTES,
    RECORD_OVERHEAD_BYTES,
    GivenT,
    SpreadRecords,
    StickyPartition,
    partition_of_key,
    spread_records,
)
from logstore.topic_extending import TopicExtender, TopicOffset, TopicOffsets
from logstore.topic_names import INTERNAL_TOPICS, check_not_internal


class TopicSource(Protocol):
    """What a topic asks its store for."""

    @property
    def clock(self) -> Clock:
        """What time it is."""
        ...

    def log(self, topic: str, partition: int) -> Log:
        """Return a partition's log; it is opened if it is not."""
        ...

    def partitions_of(self, topic: str) -> tuple[int, ...]:
        """Return the numbers of a topic's partitions, ascending."""
        ...

    def online_partitions_of(self, topic: str) -> tuple[int, ...]:
        """Return the numbers of those that can be used."""
        ...

    def topic_id_of(self, topic: str) -> str | None:
        """Return a topic's id, None if it has none."""
        ...

    def config_of(self, topic: str) -> LogConfig:
        """Return the settings in force for a topic."""
        ...

    def is_held(self, topic: str) -> bool:
        """Whether retention and compaction of a topic wait for its settings."""
        ...


class Topic:
    """
    A topic: ``store["orders"]``.

    Example::

        orders = store.create_topic("orders", partitions=4)
        partition, offset = orders.append(b"v", key=b"k")
        assert orders[partition][offset].value == b"v"

    **Durability**: as of each partition's log: an append is *written* when it returns.

    **Thread rule**: any thread may call anything.
    """

    def __init__(self, name: str, source: TopicSource) -> None:
        self.name = name
        self._source = source
        self._is_internal = name in INTERNAL_TOPICS
        self._logs: dict[int, Log] = {}
        self._sticky: StickyPartition | None = None

    @property
    def topic_id(self) -> str | None:
        """The topic's id, None if its directories were made without one."""
        return self._source.topic_id_of(self.name)

    @property
    def partitions(self) -> tuple[int, ...]:
        """The numbers of the partitions, ascending; also of those that are not served now."""
        return self._source.partitions_of(self.name)

    @property
    def partition_count(self) -> int:
        """The number of partitions: keys are spread over as many."""
        return self.partitions[-1] + 1

    @property
    def config(self) -> LogConfig:
        """The settings in force."""
        return self._source.config_of(self.name)

    @property
    def is_held(self) -> bool:
        """
        Whether nothing is deleted or compacted until somebody has stated retention.

        So it is for topics that were found on the disk: what a broker's settings were is not known.
        """
        return self._source.is_held(self.name)

    @property
    def is_internal(self) -> bool:
        """Whether Kafka, or the store, keeps its own state in it; nobody else appends to it."""
        return self._is_internal

    def __getitem__(self, partition: int) -> Log:
        """Return a partition's log, which the store owns."""
        log = self._logs.get(partition)
        if log is None or log.is_closed:
            log = self._logs[partition] = self._source.log(self.name, partition)
        return log

    def __len__(self) -> int:
        return len(self.partitions)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[int]:
        """Iterate over the numbers of the partitions, as a mapping of them does."""
        return iter(self.partitions)

    def logs(self) -> Iterator[Log]:
        """Yield the logs of the partitions, ascending."""
        for partition in self.partitions:
            yield self[partition]

    def __contains__(self, partition: object) -> bool:
        return partition in self.partitions

    def partition_for(self, key: Buffer) -> int:
        """Return the partition that a key's records go to."""
        return partition_of_key(key, self.partition_count)

    def choose_partition(
        self, key: Buffer | None, value: Buffer | None = None, headers: Headers = ()
    ) -> int:
        """Return the partition for a record: its key's, or without a key the one in turn."""
        return self._sticky_partition(value, headers) if key is None else self.partition_for(key)

    def append(
        self,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: Headers = (),
        timestamp: int | datetime | None = None,
        partition: int | None = None,
        sync: bool = False,
    ) -> TopicOffset:
        """
        Append one record to the partition of its key, or to one that is chosen.

        Args:
            value: The value; None is a tombstone.
            key: Decides the partition, as Kafka's producers do (murmur2).
            headers: A mapping or pairs.
            timestamp: Milliseconds since the epoch, or an aware datetime; None: now.
            partition: This partition, whatever the key.
            sync: Return when the record is on the device.

        Returns:
            The partition and the offset in it.

        Raises:
            UnknownTopicError: The topic was deleted, or has no such partition.
            OfflineError: The partition of this key is not served.
            InvalidTopicError: It is internal: see :attr:`is_internal`.

        Errors of an append are those of ``Log.append``.
        """
        if self._is_internal:
            check_not_internal(self.name)
        if partition is None:
            check_buffer(key, "key")
            check_buffer(value, "value")
            partition = self.choose_partition(key, value, headers)
        offset = self[partition].append(
            value, key=key, headers=headers, timestamp=timestamp, sync=sync
        )
        return TopicOffset(partition, offset)

    def extend(
        self,
        values: Iterable[Buffer | None],
        *,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[int | datetime] | None = None,
        compression: str | None = None,
        sync: bool = False,
    ) -> TopicOffsets:
        """
        Append many records, each to the partition of its key, or to one that is chosen.

        Records of one partition stay in the caller's order. What is wrong with a record is found
        before anything is written, as far as the records can tell. Then each partition takes its
        records as ``Log.extend`` does: all or nothing, if they fit a segment. One that fails does
        not hold up the others.

        Args:
            values: Buffers; None is a tombstone. Without a length they are taken in parts.
            keys: Decide the partitions, as Kafka's producers do; None: the partition in turn.
            headers: A mapping or pairs for each record.
            timestamps: Milliseconds since the epoch or aware datetimes; None: now.
            compression: A codec, ``"none"``, or None for the topic's.
            sync: Return when the records are on the device.

        Returns:
            Partition and offset of each record, as arrays in the caller's order.

        Raises:
            TopicAppendError: A partition failed after something was appended: it says what. If
                nothing was, the error is the partition's own.
            TypeError: A value or a key is neither a buffer nor None.
            ValueError: Columns of different lengths, or a time in another unit.
            InvalidRecordError: A record has no key, and the topic is compacted.
            InvalidTimestampError: A time is outside the topic's bounds.
            RecordTooLargeError: A value alone is larger than ``max.message.bytes``.
            UnknownTopicError: The topic was deleted.
            InvalidTopicError: It is internal: see :attr:`is_internal`.

        **Durability**: as of each partition's log; nothing holds for several of them together.
        What must be seen all or not at all takes a transaction.
        """
        check_not_internal(self.name)
        parts = given_records(values, keys, timestamps, headers, check_items=False)
        return TopicExtender(self, compression, sync=sync).extend(parts)

    def extend_arrow(
        self,
        data: Any,
        *,
        value: str = "value",
        key: str | None = None,
        timestamp: str | None = None,
        compression: str | None = None,
        sync: bool = False,
    ) -> TopicOffsets:
        """
        Append the rows of Arrow data, each to the partition of its key, or to one that is chosen.

        Rows of one partition stay in their order. All of them are looked at before the first is
        written; then one record batch of the data after the other is appended as :meth:`extend`
        appends records.

        Args:
            data: A pyarrow Table or RecordBatch, or anything with the Arrow PyCapsule interface.
            value: Column of the values: binary or string, of any layout.
            key: Column of the keys; None: the partition in turn.
            timestamp: Column of the times: a timestamp with a zone, or int64 milliseconds; a null
                is now.
            compression: As in :meth:`extend`.
            sync: Return when everything is on the device.

        Returns:
            Partition and offset of each row, as arrays in the order of the rows.

        Raises:
            MissingExtraError: pyarrow is not installed.
            KeyError: A column is not there.
            TypeError: A column has another type.
            TopicAppendError: As of :meth:`extend`. Rows of record batches that were not begun with
                have partition and offset -1.
            ValueError: A time in another unit.
            InvalidRecordError, InvalidTimestampError, RecordTooLargeError, UnknownTopicError,
                InvalidTopicError: As of :meth:`extend`.

        **Durability**: as of each partition's log; nothing holds for several of them together.

        **Cost**: the bytes of a record batch are copied once, by partition; nothing is done for
        each row in Python.
        """
        check_not_internal(self.name)
        now_ms = self._source.clock.milliseconds()
        rows = list(arrow_rows(data, value, key, timestamp, now_ms))
        return TopicExtender(self, compression, sync=sync).extend_rows(rows, now_ms)

    def spread(self, given: GivenT) -> SpreadRecords[GivenT]:
        """Return records with the partition of each, chosen as :meth:`choose_partition` does."""
        online = self._source.online_partitions_of(self.name)
        # Where none is, the error of the first one says why.
        return spread_records(
            given, self.partition_count, self._sticky_state(), online or self.partitions[:1]
        )

    def _sticky_state(self) -> StickyPartition:
        sticky = self._sticky
        if sticky is None:
            sticky = self._sticky = StickyPartition(self.config.batch_bytes)
        return sticky

    def _sticky_partition(self, value: Buffer | None, headers: Headers) -> int:
        sticky = self._sticky_state()
        size_bytes = RECORD_OVERHEAD_BYTES + _size_of(value) + HEADER_BYTES * len(headers)
        partition = sticky.take(size_bytes)
        log = self._logs.get(partition)
        if partition >= 0 and log is not None and not log.is_closed:
            return partition
        online = self._source.online_partitions_of(self.name)
        if not online:
            return self.partitions[0]  # Whose error says why.
        return partition if partition in online else sticky.choose(online, size_bytes)

    def flush(self) -> None:
        """Make everything that was appended durable; see ``Log.flush``."""
        for partition in self._source.online_partitions_of(self.name):
            self[partition].flush()

    def __repr__(self) -> str:
        try:
            return f"<Topic {self.name!r} partitions={len(self)}>"
        except UnknownTopicError:
            return f"<Topic {self.name!r} deleted>"


def _size_of(value: Buffer | None) -> int:
    """Return the bytes of a value."""
    if value is None or type(value) is bytes:
        return 0 if value is None else len(value)
    return memoryview(value).nbytes  # type: ignore[arg-type]
