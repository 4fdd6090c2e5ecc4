"""
A stream: micro-batches of offsets, which Spark keeps in the checkpoint.

At each trigger Spark calls ``latestOffset`` and ``reportLatestOffset``, and if something has come
``partitions``; after a restart it repeats the last batch with the offsets that it has logged. An
idle query asks every 10 ms, so a look has to cost little.

Source: Spark ``KafkaMicroBatchStream``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, ClassVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from logstore.checkpoint import TopicPartition
from logstore.clock import SYSTEM_CLOCK, Clock
from logstore.spark.batch_reader import plan_partitions, read_partition
from logstore.spark.errors import SparkSourceError
from logstore.spark.offsets import (
    EARLIEST,
    LATEST,
    OffsetJson,
    Offsets,
    OffsetSpec,
    from_json,
    to_json,
)
from logstore.spark.options import SourceOptions
from logstore.spark.planning import OffsetRange, rate_limited
from logstore.spark.reading import DataLoss
from logstore.spark.source_columns import Column
from logstore.spark.source_logs import Bounds, SourceLogs

logger = logging.getLogger("logstore.spark")

FROM_LATEST = OffsetSpec("startingOffsets", default=LATEST)


class LogStoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    Reads what is appended, batch by batch.

    One object lives as long as the query, in a process beside the driver; others, which only read,
    are in the tasks.

    Args:
        options: The source's.
        columns: What Spark wants.
    """

    clock: ClassVar[Clock] = SYSTEM_CLOCK

    def __init__(self, options: SourceOptions, columns: tuple[Column, ...]) -> None:
        self.options = options
        self.columns = columns
        self._logs: SourceLogs | None = None
        self._loss = DataLoss(options.fail_on_data_loss)
        self._target: Offsets | None = None  # Of Trigger.AvailableNow.
        self._triggered_at: float | None = None  # When the last batch was begun.
        self._topic_ids: dict[TopicPartition, str | None] = {}  # Of what was read so far.

    # -- offsets -----------------------------------------------------------------------------------

    def initialOffset(self) -> OffsetJson:  # noqa: N802
        """
        Return where a query without a checkpoint begins.

        For the latest it is -1: the first ``latestOffset`` says which that is, so that it is in the
        checkpoint as the end of an empty batch before anything is read. A query that is repeated
        from its very first batch begins at the same place.
        """
        logs = self._refreshed()
        logs.check_known()
        starting = self.options.starting or FROM_LATEST
        starting.check_covers(logs.assigned)
        found: Offsets = {}
        for each in logs.assigned:
            offset = logs.offset_of(starting, each)
            found[each] = logs.bounds(each).start if offset == EARLIEST else offset
        return to_json(found)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch; there is none that says both least and most."""
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix where the query ends."""
        self._target = {each: bounds.end for each, bounds in self._bounds().items()}

    def reportLatestOffset(self) -> OffsetJson:  # noqa: N802
        """Return how far there are records; the progress of the query tells the lag by it."""
        return to_json({each: bounds.end for each, bounds in self._bounds().items()})

    def latestOffset(self, start: OffsetJson, limit: ReadLimit) -> OffsetJson:  # noqa: N802
        """
        Return where the next micro-batch ends; ``start`` if there is none yet.

        Raises:
            SparkSourceError: DATA_LOSS, AVAILABLE_NOW_DATA_LOSS.
        """
        bounds = self._bounds()
        begun = from_json(start)
        self._check_kept(self._refreshed(), begun, bounds)
        starts = {each: self._start(begun, each, found) for each, found in bounds.items()}
        ends = {each: found.end for each, found in bounds.items()}
        if self._target is not None:
            ends = self._up_to_target(self._target, starts, bounds)
        if isinstance(limit, ReadAllAvailable):
            return to_json(ends)
        if self._target is None and self._has_to_wait(starts, ends):
            return start if LATEST not in begun.values() else to_json(starts)
        self._triggered_at = self.clock.monotonic()
        if isinstance(limit, ReadMaxRows):
            ends = rate_limited(limit.max_rows, starts, ends)
        return to_json(ends)

    def _start(self, begun: Offsets, each: TopicPartition, found: Bounds) -> int:
        """Return where the next batch begins in a partition; a new one begins at its earliest."""
        offset = begun.get(each, EARLIEST)
        if offset == LATEST:
            return found.end
        return found.start if offset == EARLIEST else offset

    def _check_kept(
        self, logs: SourceLogs, begun: Offsets, bounds: dict[TopicPartition, Bounds]
    ) -> None:
        """Look for what was there before, and is not now."""
        for each, offset in begun.items():
            if each not in bounds:
                self._topic_ids.pop(each, None)
                self._loss.report(f"{each} was deleted; the query was at offset {offset}")
                continue
            start, end = bounds[each]
            topic_id = logs.log(each).topic_id
            is_another = self._topic_ids.setdefault(each, topic_id) != topic_id
            self._topic_ids[each] = topic_id
            if offset > end:
                self._loss.report(
                    f"{each}: the end was changed from {offset} to {end}: the topic was deleted and"
                    " made anew, or is not the one of the checkpoint; its offsets"
                    f" [{start}, {end}) are not read"
                )
            elif is_another:
                self._loss.report(
                    f"{each} was deleted and made anew; of the new one offsets"
                    f" [{start}, {offset}) are not read"
                )

    def _up_to_target(
        self, target: Offsets, starts: Offsets, bounds: dict[TopicPartition, Bounds]
    ) -> Offsets:
        """Return the ends for Trigger.AvailableNow, of which nothing may be missing."""
        for each, offset in target.items():
            found = bounds.get(each)
            if found is None or found.end < offset:
                what = "was deleted" if found is None else f"ends at {found.end} now"
                raise SparkSourceError(
                    "AVAILABLE_NOW_DATA_LOSS",
                    f"{each} {what}, and was to be read up to {offset}; start the query again",
                )
        # Partitions that have come since are begun, and read by the next run.
        return {each: max(target.get(each, starts[each]), starts[each]) for each in bounds}

    def _has_to_wait(self, starts: Offsets, ends: Offsets) -> bool:
        """Whether minOffsetsPerTrigger is not reached, and maxTriggerDelay not over."""
        minimum = self.options.min_offsets_per_trigger
        if minimum is None or self._triggered_at is None:
            return False
        if sum(max(end - starts[each], 0) for each, end in ends.items()) >= minimum:
            return False
        waited = self.clock.monotonic() - self._triggered_at
        return waited * 1000 < self.options.max_trigger_delay_ms

    # -- one micro-batch ---------------------------------------------------------------------------

    def partitions(self, start: OffsetJson, end: OffsetJson) -> list[InputPartition]:
        """
        Return the tasks of a micro-batch.

        Raises:
            SparkSourceError: DATA_LOSS, with the missing offsets.
        """
        logs = self._refreshed()
        begun, ends = from_json(start), from_json(end)
        ranges = [
            found
            for each in sorted(ends)
            if (found := self._range(logs, each, begun.get(each), ends[each])) is not None
        ]
        ranges = [each for each in ranges if each.size > 0]
        if ranges:
            logger.info("micro-batch: %s", ", ".join(map(str, ranges)))
        return plan_partitions(logs, ranges, self.options)

    def _range(
        self, logs: SourceLogs, each: TopicPartition, start: int | None, end: int
    ) -> OffsetRange | None:
        if start == LATEST:
            return None  # The first batch of a query that starts at the latest: nothing is in it.
        if each not in logs.assigned:
            self._loss.report(f"{each}: offsets [{start or 0}, {end}) are gone: it was deleted")
            return None
        bounds = logs.bounds(each)
        if start is None:
            start = bounds.start
            if start > 0:
                self._loss.report(
                    f"{each}, which is new, begins at {start}: offsets [0, {start}) are gone"
                )
        elif start == EARLIEST:
            start = bounds.start
        if start > end:
            return None  # Told by latestOffset.
        if start < min(bounds.start, end):
            gone = min(bounds.start, end)
            self._loss.report(
                f"{each}: offsets [{start}, {gone}) are gone: the log begins at {bounds.start}"
            )
            start = gone
        if end > bounds.end:
            self._loss.report(
                f"{each}: the checkpoint has offsets up to {end}, but the log has"
                f" [{bounds.start}, {bounds.end})"
            )
            end = max(start, bounds.end)
        return OffsetRange(each, start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Return the record batches of one task."""
        return read_partition(partition, self.columns, self.options)

    def commit(self, end: OffsetJson) -> None:
        """Do nothing: the checkpoint of the query has the offsets."""

    def stop(self) -> None:
        """Close the logs."""
        logs, self._logs = self._logs, None
        if logs is not None:
            logs.close()

    # -- logs --------------------------------------------------------------------------------------

    def _refreshed(self) -> SourceLogs:
        if self._logs is None:
            self._logs = SourceLogs(self.options)
        else:
            self._logs.refresh()
        return self._logs

    def _bounds(self) -> dict[TopicPartition, Bounds]:
        logs = self._refreshed()
        return {each: logs.bounds(each) for each in logs.assigned}
