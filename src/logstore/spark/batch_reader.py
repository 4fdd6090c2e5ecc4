"""
A batch query: a snapshot of a range of offsets, taken when the query is first planned.

Source: Spark ``KafkaBatch``, ``KafkaOffsetReader.getOffsetRangesFromUnresolvedOffsets``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from logstore.checkpoint import TopicPartition
from logstore.spark.errors import SparkSourceError
from logstore.spark.offsets import EARLIEST, LATEST, OffsetSpec
from logstore.spark.options import SourceOptions
from logstore.spark.planning import OffsetRange, shared, split_ranges
from logstore.spark.reading import DataLoss, read_task
from logstore.spark.source_columns import Column
from logstore.spark.source_logs import SourceLogs
from logstore.spark.worker_process import settle

FROM_EARLIEST = OffsetSpec("startingOffsets", default=EARLIEST)
TO_LATEST = OffsetSpec("endingOffsets", default=LATEST)


def batch_ranges(logs: SourceLogs, options: SourceOptions) -> list[OffsetRange]:
    """
    Return what a batch query reads, partition by partition.

    Raises:
        SparkSourceError: UNKNOWN_TOPIC_OR_PARTITION, START_OFFSET_DOES_NOT_MATCH_ASSIGNED and its
            like, RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET, NO_OFFSET_FOR_TIMESTAMP, DATA_LOSS.
    """
    logs.check_known()
    starting, ending = options.starting or FROM_EARLIEST, options.ending or TO_LATEST
    starting.check_covers(logs.assigned)
    ending.check_covers(logs.assigned)
    loss = DataLoss(options.fail_on_data_loss)
    return [_range(logs, each, starting, ending, loss) for each in logs.assigned]


def _range(
    logs: SourceLogs,
    topic_partition: TopicPartition,
    starting: OffsetSpec,
    ending: OffsetSpec,
    loss: DataLoss,
) -> OffsetRange:
    start = logs.offset_of(starting, topic_partition)
    stop = logs.offset_of(ending, topic_partition)
    bounds = logs.bounds(topic_partition)
    if start == LATEST:  # No record is at or after the time.
        start = bounds.end
    elif start == EARLIEST:
        start = bounds.start
    if stop == LATEST:
        stop = bounds.end
    if start > stop:
        raise SparkSourceError(
            "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
            f"{topic_partition}: {starting.option} is offset {start}, above {ending.option}, which"
            f" is {stop}; the log has [{bounds.start}, {bounds.end})",
        )
    if start < bounds.start:
        gone = min(bounds.start, stop)
        loss.report(
            f"{topic_partition}: offsets [{start}, {gone}) are gone: the log begins at"
            f" {bounds.start}"
        )
        start = gone
    if stop > bounds.end:
        loss.report(
            f"{topic_partition}: offsets [{max(start, bounds.end)}, {stop}) are not there: the log"
            f" has [{bounds.start}, {bounds.end})"
        )
        start, stop = min(start, bounds.end), bounds.end
    return OffsetRange(topic_partition, start, stop)


def plan_partitions(
    logs: SourceLogs, ranges: Sequence[OffsetRange], options: SourceOptions
) -> list[InputPartition]:
    """
    Return Spark's partitions for ranges: cut by bytes first, then by the connector's rules.

    A partition's value is a tuple of one :class:`ReadTask`, or of several if there may be fewer
    partitions than that.
    """
    parts = split_ranges(
        [part for each in ranges for part in logs.cut_by_bytes(each)],
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
    )
    return [
        InputPartition(tuple(logs.tasks(each))) for each in shared(parts, options.max_partitions)
    ]


def read_partition(
    partition: InputPartition, columns: Sequence[Column], options: SourceOptions
) -> Iterator[Any]:
    """Return the record batches of a partition of Spark's; where nothing is to read it has none."""
    for task in partition.value or ():
        yield from read_task(task, columns, options)
    settle()


class LogStoreBatchReader(DataSourceReader):
    """
    Reads a range of offsets.

    Spark plans once for each ``load()``: what is appended later is seen by a new one.

    Args:
        options: The source's.
        columns: What Spark wants.
    """

    def __init__(self, options: SourceOptions, columns: tuple[Column, ...]) -> None:
        self.options = options
        self.columns = columns

    def ranges(self, logs: SourceLogs) -> list[OffsetRange]:
        """Return what to read."""
        return batch_ranges(logs, self.options)

    def partitions(self) -> list[InputPartition]:
        """Return the tasks."""
        with contextlib.closing(SourceLogs(self.options)) as logs:
            partitions = plan_partitions(logs, self.ranges(logs), self.options)
        settle()
        return partitions

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Return the record batches of one task."""
        return read_partition(partition, self.columns, self.options)
