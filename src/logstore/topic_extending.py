"""
Appending many records to a topic: each partition takes its own in one append.

Source: Kafka ``RecordAccumulator``, which gathers records by partition as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from logstore.arrow_columns import ArrowRows
from logstore.errors import (
    LogStoreError,
    PartialAppendError,
    RecordTooLargeError,
    TopicAppendError,
)
from logstore.extending import Extender, check_settings
from logstore.given_records import GivenRecords, checked_times

if TYPE_CHECKING:
    import numpy.typing as npt

    from logstore.config import LogConfig
    from logstore.log import Log
    from logstore.partitioner import GivenT, SpreadRecords

# What the append of one partition may raise without a mistake of this library.
_FAILURES = (LogStoreError, ValueError, TypeError)


class TopicOffset(NamedTuple):
    """Where a record of a topic is."""

    partition: int
    offset: int


class TopicOffsets:
    """
    Where the records of one call are, in the caller's order.

    Attributes:
        partitions: int32, shape (count,).
        offsets: int64, shape (count,).
    """

    __slots__ = ("offsets", "partitions")

    def __init__(self, partitions: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64]) -> None:
        assert partitions.shape == offsets.shape
        self.partitions = partitions
        self.offsets = offsets

    def of(self, partition: int) -> npt.NDArray[np.int64]:
        """Return the offsets of the records of one partition, ascending."""
        offsets: npt.NDArray[np.int64] = self.offsets[self.partitions == partition]
        return offsets

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, index: int) -> TopicOffset:
        """Return where the record of this index is."""
        return TopicOffset(int(self.partitions[index]), int(self.offsets[index]))

    def __iter__(self) -> Iterator[TopicOffset]:
        return map(TopicOffset, self.partitions.tolist(), self.offsets.tolist())

    def __repr__(self) -> str:
        count = len(set(self.partitions.tolist()))
        return f"<TopicOffsets of {len(self)} records in {count} partitions>"


class ExtendedTopic(Protocol):
    """What is asked of a topic; :class:`~logstore.topic.Topic` has it."""

    name: str

    @property
    def config(self) -> LogConfig:
        """The settings in force."""
        ...

    def spread(self, given: GivenT) -> SpreadRecords[GivenT]:
        """Return records with the partition of each."""
        ...

    def __getitem__(self, partition: int, /) -> Log:
        """Return a partition's log."""
        ...


class TopicExtender:
    """
    One append of many records to a topic.

    Args:
        topic: Where to.
        compression: See ``Topic.extend``.
        sync: Make every partition durable at the end, when all are written.
    """

    __slots__ = ("_compression", "_ends", "_errors", "_offsets", "_partitions", "_sync", "_topic")

    def __init__(self, topic: ExtendedTopic, compression: str | None, *, sync: bool) -> None:
        self._topic = topic
        self._compression = compression
        self._sync = sync
        self._partitions: list[npt.NDArray[np.int32]] = []
        self._offsets: list[npt.NDArray[np.int64]] = []
        self._errors: dict[int, Exception] = {}
        self._ends: dict[int, int] = {}

    def extend(self, parts: Iterable[GivenRecords]) -> TopicOffsets:
        """
        Append the records of all parts.

        Raises:
            TopicAppendError: Not all were appended; see ``Topic.extend``.
        """
        try:
            for given in parts:
                if given.values:
                    self._extend(self._topic.spread(given))
                if self._errors:
                    break
        except _FAILURES as error:
            # Of a later part, or nothing was appended.
            if not self._ends:
                raise
            raise self._failure(error) from error
        return self._finish()

    def extend_rows(self, rows: Sequence[ArrowRows], now_ms: int) -> TopicOffsets:
        """
        Append rows of Arrow data, part after part; all parts are looked at before.

        Raises:
            TopicAppendError: Not all were appended; see ``Topic.extend_arrow``.
        """
        spreads = [self._topic.spread(each) for each in rows]
        for spread in spreads:
            check_records(spread, self._topic.config, now_ms)
        for spread in spreads:
            if self._errors:
                self._partitions.append(np.full(len(spread.given), -1, np.int32))
                self._offsets.append(np.full(len(spread.given), -1, np.int64))
            else:
                self._write(spread, self._logs(spread))
        return self._finish()

    def _extend(self, spread: SpreadRecords[GivenRecords]) -> None:
        logs = self._logs(spread)
        if logs:
            now_ms = next(iter(logs.values())).clock.milliseconds()
            check_records(spread, self._topic.config, now_ms)
        self._write(spread, logs)

    def _write(self, spread: SpreadRecords[GivenT], logs: dict[int, Log]) -> None:
        offsets = np.full(len(spread.given), -1, np.int64)
        self._partitions.append(spread.numbers)
        self._offsets.append(offsets)
        for partition, log in logs.items():
            try:
                part = spread.part(partition)
                appended = Extender(log).extend_parts(iter([part]), self._compression)
            except PartialAppendError as error:
                appended = error.appended
                self._errors[partition] = error
            except _FAILURES as error:
                self._errors[partition] = error
                continue
            self._ends[partition] = appended.stop
            indices = spread.grouped.indices(partition)[: len(appended)]
            offsets[indices] = np.arange(appended.start, appended.stop)

    def _finish(self) -> TopicOffsets:
        """Return where everything is, durable if that was asked for; raise if something failed."""
        if self._sync:
            self._flush()
        if self._errors:
            cause = next(iter(self._errors.values()))
            if not self._ends:
                raise cause
            raise self._failure(cause) from cause
        return self._appended()

    def _logs(self, spread: SpreadRecords[GivenT]) -> dict[int, Log]:
        """Return the logs of the partitions that have records; what cannot be opened has failed."""
        logs = {}
        for partition in spread.grouped.partitions():
            try:
                logs[partition] = self._topic[partition]
            except LogStoreError as error:
                self._errors[partition] = error
        return logs

    def _flush(self) -> None:
        """Make durable what was appended, each partition up to its last record of this call."""
        for partition, end in self._ends.items():
            try:
                self._topic[partition].make_durable(end)
            except LogStoreError as error:
                self._errors.setdefault(partition, error)

    def _appended(self) -> TopicOffsets:
        if len(self._offsets) == 1:
            return TopicOffsets(self._partitions[0], self._offsets[0])
        return TopicOffsets(
            np.concatenate([np.empty(0, np.int32), *self._partitions]),
            np.concatenate([np.empty(0, np.int64), *self._offsets]),
        )

    def _failure(self, cause: Exception) -> TopicAppendError:
        appended = self._appended()
        missing = int(np.count_nonzero(appended.offsets < 0))
        failed = ", ".join(map(str, self._errors)) or "none"
        return TopicAppendError(
            f"of {len(appended)} records of topic {self._topic.name!r} {missing} were not appended,"
            f" partitions that failed: {failed}; the first error: {cause}; append those whose"
            " offset is -1 again",
            partitions=appended.partitions,
            offsets=appended.offsets,
            errors=self._errors,
            topic=self._topic.name,
        )


def check_records(spread: SpreadRecords[GivenT], config: LogConfig, now_ms: int) -> None:
    """
    Refuse what a topic's settings do not allow, before anything is written to any partition.

    Raises:
        InvalidRecordError: A record has no key, and the topic is compacted.
        InvalidTimestampError: A time is outside the topic's bounds.
        RecordTooLargeError: A value, of Arrow's rows with its key, is larger than
            ``max.message.bytes``.
        ValueError: A time is in another unit than milliseconds.
    """
    given, sizes = spread.given, spread.sizes
    largest = int(sizes.argmax())
    if sizes[largest] > config.max_message_bytes:
        what = "key and value" if isinstance(given, ArrowRows) else "the value"
        raise RecordTooLargeError(
            f"{what} of record {largest}: {sizes[largest]} bytes, over max.message.bytes"
            f" {config.max_message_bytes}; split the record"
        )
    timestamps: npt.NDArray[np.int64] | None
    if isinstance(given, ArrowRows) or given.timestamps is None:
        timestamps = given.timestamps
    else:
        timestamps = checked_times(given.timestamps)
    check_settings(config, given.null_key() if config.compact else None, timestamps, now_ms)
