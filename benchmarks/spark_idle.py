"""
The least that a source or a sink written in Python costs in Spark: its rows are ready, or dropped.

Spark's processes import it by name, so it imports nothing that it does not need.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

SCHEMA = (
    "key binary, value binary, topic string not null, partition int not null,"
    " offset bigint not null, timestamp timestamp not null, timestampType int not null"
)


# About as many as the source has in a record batch with values of 100 bytes.
BATCH_ROWS = 30_000


def rows_of(schema: StructType, rows: int) -> Iterator[Any]:
    """Yield record batches: one that is ready, again and again."""
    batch = ready_batch(schema.json(), min(rows, BATCH_ROWS))
    for first in range(0, rows, BATCH_ROWS):
        yield batch.slice(0, rows - first)


@functools.cache
def ready_batch(schema_json: str, rows: int) -> Any:
    """Return a record batch, made once in a process."""
    schema = StructType.fromJson(json.loads(schema_json))
    wanted = to_arrow_schema(schema, timezone="UTC")
    made = {
        "key": bytes(10),
        "value": bytes(100),
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "timestamp": 0,
        "timestampType": 0,
    }
    arrays = [pa.array([made[field.name]] * rows, field.type) for field in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


class IdleSource(DataSource):
    """Options: ``partitions``, and ``rows`` of each of them."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "idle"

    def schema(self) -> str:
        """The columns of a log."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        return IdleReader(schema, int(self.options["partitions"]), int(self.options["rows"]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a stream that has something new whenever it is asked."""
        return IdleStreamReader(schema, int(self.options["partitions"]), int(self.options["rows"]))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002
        """Return the writer of a batch write."""
        return IdleWriter()


class IdleReader(DataSourceReader):
    """So many partitions of so many rows."""

    def __init__(self, schema: StructType, partitions: int, rows: int) -> None:
        self.schema, self.count, self.rows = schema, partitions, rows

    def partitions(self) -> list[InputPartition]:
        """Return the tasks."""
        return [InputPartition(each) for each in range(self.count)]

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002
        """Return the rows."""
        return rows_of(self.schema, self.rows)


class IdleStreamReader(DataSourceStreamReader):
    """A batch each time that Spark asks."""

    def __init__(self, schema: StructType, partitions: int, rows: int) -> None:
        self.schema, self.count, self.rows = schema, partitions, rows
        self._next = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the first offset."""
        return {"offset": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: ARG002, N802
        """Return one more."""
        return {"offset": start["offset"] + 1}

    def partitions(
        self,
        start: dict[str, int],  # noqa: ARG002
        end: dict[str, int],  # noqa: ARG002
    ) -> list[InputPartition]:
        """Return the tasks."""
        return [InputPartition(each) for each in range(self.count)]

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002
        """Return the rows."""
        return rows_of(self.schema, self.rows)


class IdleWriter(DataSourceArrowWriter):
    """Takes every row, and keeps none."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Drop the rows of a task."""
        for _ in iterator:
            continue
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing."""
