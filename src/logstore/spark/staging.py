"""
From Arrow record batches of a task to its staged files: grouped by partition, encoded in C.

Each row is copied once, from Spark's record batch into the batch of its partition, which grows
until it is full. No Python object is made per row.

Memory: one record batch of Spark's, 16 MiB of batches that are not full, and where one record batch
has rows of several topics, those that are copied. What a very large row or its headers are encoded
in is mapped from a file (``large_memory.py``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logstore._native import Columns, encode_header_lists, group_partitions, partition_keys
from logstore.arrow_columns import ArrowRows, binary_array, binary_buffers
from logstore.checkpoint import TopicPartition
from logstore.large_memory import LargeMemory
from logstore.spark.errors import SparkSourceError
from logstore.staged_batches import BATCH_BYTES, StagedBatchWriter

# Larger rows are written where they are: to bring those of one topic together copies them.
LARGE_ROW_BYTES: Final = 64 << 10
# No more is copied; Spark's own bound of a record batch, beside its last row, is 64 MB.
COPIED_BYTES_MAX: Final = 80 << 20
NO_TIMESTAMP: Final = -1


class TopicPlan(NamedTuple):
    """
    What a task knows of a topic.

    Attributes:
        partition_count: How many partitions it has, or will have.
        batch_bytes: Size of the batches to write.
        max_message_bytes: The largest that the topic takes.
    """

    partition_count: int
    batch_bytes: int = BATCH_BYTES
    max_message_bytes: int = 1_048_588


class RecordStager:
    """
    Writes the rows of a task to staged files.

    Args:
        open_writer: Makes the first file; called with the first row.
        topic: Of every row; None: the column's.
        plan_of: What is to know of a topic.
        keeps_timestamps: Take the column's times.
        now_ms: The time of the write.
        turn: Where rows without a key begin; another one for each task.
        large_memory: For headers that are very large; None: ordinary memory.

    **Thread rule**: one thread.
    """

    def __init__(
        self,
        open_writer: Callable[[], StagedBatchWriter],
        *,
        topic: str | None,
        plan_of: Callable[[str], TopicPlan],
        keeps_timestamps: bool,
        now_ms: int,
        turn: int = 0,
        large_memory: LargeMemory | None = None,
    ) -> None:
        self._open_writer = open_writer
        self._topic = topic
        self._plan_of = plan_of
        self._plans: dict[str, TopicPlan] = {}
        self._keeps_timestamps = keeps_timestamps
        self._now_ms = now_ms
        self._turns: dict[str, tuple[int, int]] = {}
        self._first_turn = turn
        self._large_memory = large_memory
        self._writer: StagedBatchWriter | None = None
        self.record_count = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """
        Add rows.

        Raises:
            SparkSourceError: A row cannot be a record: NULL_TOPIC, INVALID_PARTITION,
                INVALID_TIMESTAMP, INVALID_HEADERS.
            UnknownTopicError: There is no such topic.
            RecordTooLargeError: A record is larger than its topic takes.
        """
        if batch.num_rows:
            self._write(batch)

    def finish(self) -> tuple[str, ...]:
        """Finish the files and return their paths; none if there was no row."""
        if self._writer is None:
            return ()
        self._writer.finish()
        return tuple(self._writer.paths)

    def discard(self) -> None:
        """Delete what was written."""
        if self._writer is not None:
            self._writer.discard()

    # -- columns -----------------------------------------------------------------------------------

    def _write(self, batch: pa.RecordBatch) -> None:
        columns = {name.lower(): batch.column(at) for at, name in enumerate(batch.schema.names)}
        rows = ArrowRows(
            binary_array(pa, columns["value"], "value"),
            _binary_or_none(columns.get("key"), "key"),
            self._times(columns.get("timestamp")),
            headers=_headers_or_none(columns.get("headers"), self._large_memory),
            partitions=columns.get("partition"),
        )
        if self._writer is None:
            self._writer = self._open_writer()
        self.record_count += batch.num_rows
        if self._topic is not None:
            self._write_topic(self._topic, rows)
            return
        topics = columns["topic"]
        if topics.null_count:
            raise SparkSourceError(
                "NULL_TOPIC",
                "null topic present in the data. Use the topic option for setting a default topic.",
            )
        encoded = topics.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        for at, some in _grouped(rows, _integers(encoded.indices, np.int32), len(names)):
            self._write_topic(names[at], some)

    def _times(self, column: Any) -> npt.NDArray[np.int64] | None:
        if column is None or not self._keeps_timestamps:
            return None
        micros = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
        times: npt.NDArray[np.int64] = np.floor_divide(
            _integers(micros.fill_null(0), np.int64), 1000
        )
        if column.null_count:
            times = np.where(
                _integers(column.is_null().cast(pa.int8()), np.int8), self._now_ms, times
            )
        lowest = int(times.min())
        if lowest < NO_TIMESTAMP:
            raise SparkSourceError(
                "INVALID_TIMESTAMP",
                f"a row has a timestamp {-lowest} ms before 1970, and a record cannot; set option"
                " timestamps=write, or correct it",
            )
        return times

    # -- one topic ---------------------------------------------------------------------------------

    def _write_topic(self, topic: str, rows: ArrowRows) -> None:
        plan = self._plans.get(topic)
        if plan is None:
            plan = self._plans[topic] = self._plan_of(topic)
        columns = rows.columns(self._now_ms)
        if plan.partition_count == 1 and rows.partitions is None:
            self._write_partition(TopicPartition(topic, 0), plan, columns, None)
            return
        if rows.partitions is None and _has_no_keys(rows):
            turns = self._in_turn(topic, plan, rows, slice(None))
            for start, stop in itertools.pairwise(_edges(turns)):
                place = TopicPartition(topic, int(turns[start]))
                self._write_partition(place, plan, columns, range(start, stop))
            return
        numbers = self._partitions(topic, plan, rows, columns)
        first = int(numbers[0])
        if (numbers == first).all():
            self._write_partition(TopicPartition(topic, first), plan, columns, None)
            return
        grouped = group_partitions(numbers, plan.partition_count)
        for partition in grouped.partitions():
            place = TopicPartition(topic, partition)
            self._write_partition(place, plan, columns, grouped.indices(partition))

    def _partitions(
        self, topic: str, plan: TopicPlan, rows: ArrowRows, columns: Columns
    ) -> npt.NDArray[np.int32]:
        """Return the partition of each row: the column's, its key's, or the one in turn."""
        count = len(rows)
        if _has_no_keys(rows):
            numbers = np.full(count, -1, np.int32)
        else:
            numbers = partition_keys(columns, plan.partition_count)
        if rows.partitions is not None and rows.partitions.null_count < count:
            given = _integers(rows.partitions.fill_null(-1), np.int32)
            is_given = ~_integers(rows.partitions.is_null().cast(pa.int8()), np.int8).astype(bool)
            wrong = is_given & ((given < 0) | (given >= plan.partition_count))
            if wrong.any():
                raise SparkSourceError(
                    "INVALID_PARTITION",
                    f"Partition {int(given[wrong][0])} of topic {topic} with partition count"
                    f" {plan.partition_count} is not present in metadata",
                )
            numbers = np.where(is_given, given, numbers).astype(np.int32)
        unset = np.flatnonzero(numbers < 0)
        if len(unset):
            numbers[unset] = self._in_turn(topic, plan, rows, unset)
        return numbers

    def _in_turn(
        self, topic: str, plan: TopicPlan, rows: ArrowRows, unset: npt.NDArray[np.int64] | slice
    ) -> npt.NDArray[np.int64]:
        """Return one partition for as many rows as fill a batch, then the next, as Kafka does."""
        _, offsets, _ = binary_buffers(rows.values)
        turn, filled_bytes = self._turns.get(topic, (self._first_turn, 0))
        ends = np.cumsum(np.diff(offsets)[unset], dtype=np.int64) + filled_bytes
        batches = ends // plan.batch_bytes
        self._turns[topic] = (turn + int(batches[-1]), int(ends[-1]) % plan.batch_bytes)
        turns: npt.NDArray[np.int64] = (turn + batches) % plan.partition_count
        return turns

    def _write_partition(
        self,
        place: TopicPartition,
        plan: TopicPlan,
        columns: Columns,
        rows: npt.NDArray[np.int64] | range | None,
    ) -> None:
        assert self._writer is not None
        self._writer.add(
            place, columns, rows, batch_bytes=plan.batch_bytes, max_bytes=plan.max_message_bytes
        )


def _grouped(
    rows: ArrowRows, numbers: npt.NDArray[np.int32], count: int
) -> Iterator[tuple[int, ArrowRows]]:
    """Yield rows by their numbers, those of one number in order; large ones as they come."""
    row_count = len(rows)
    columns = (rows.values, rows.keys, rows.headers)
    size_bytes = sum(column.nbytes for column in columns if column is not None)
    if (numbers == numbers[0]).all():
        yield int(numbers[0]), rows
    elif size_bytes >= min(row_count * LARGE_ROW_BYTES, COPIED_BYTES_MAX):
        for start, stop in itertools.pairwise(_edges(numbers)):
            yield int(numbers[start]), rows.slice(start, stop)
    else:
        grouped = group_partitions(numbers, count)
        ordered = rows.picked(grouped.order)
        for number in grouped.partitions():
            start, stop = int(grouped.starts[number]), int(grouped.starts[number + 1])
            yield number, ordered.slice(start, stop)


def _edges(numbers: npt.NDArray[Any]) -> list[int]:
    """Return where runs of one number begin, and the end."""
    return [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]


def _has_no_keys(rows: ArrowRows) -> bool:
    return rows.keys is None or bool(rows.keys.null_count == len(rows))


def _binary_or_none(column: Any, name: str) -> Any:
    return None if column is None else binary_array(pa, column, name)


def _headers_or_none(column: Any, large_memory: LargeMemory | None) -> Any:
    """Return headers as the format has them, large_binary; None: no row has any."""
    if column is None or column.null_count == len(column):
        return None
    names, values = (binary_array(pa, each, "headers") for each in column.flatten().flatten())
    if names.null_count:
        raise SparkSourceError("INVALID_HEADERS", "a header has no key; give it a name")
    name_data, name_offsets, _ = binary_buffers(names)
    value_data, value_offsets, value_validity = binary_buffers(values)
    items = Columns(
        value_data,
        value_offsets,
        value_validity=value_validity,
        keys=name_data,
        key_offsets=name_offsets,
    )
    counts = _integers(column.value_lengths().fill_null(0), np.int64)
    data, offsets = encode_header_lists(items, np.cumsum(counts), large_memory)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(column), buffers)


def _integers(array: Any, dtype: Any) -> npt.NDArray[Any]:
    """Return an array without nulls as numbers of a type."""
    return np.ascontiguousarray(array.to_numpy(zero_copy_only=False), dtype)
