"""
Record batches of a log as Spark wants them: its names, order, types and nullability, exactly.

C has made the columns; here they get other types over the same buffers. Only times are computed
anew (micro- instead of milliseconds), and constant columns made once for many record batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from logstore.arrow_buffers import Layout, constant_array
from logstore.checkpoint import TopicPartition
from logstore.extras import import_extra
from logstore.spark.errors import SparkSourceError
from logstore.spark.source_columns import Column

# Of a scan, by the names here; topic and partition are constants.
SCANNED: Final = {"timestampType": "timestamp_type", "topic": None, "partition": None}
# Spark is fastest with record batches of 1 to 4 MiB; with small records the rows end one. Numbers
# alone are as large only with more rows.
BATCH_ROWS: Final = 32 << 10
NARROW_BATCH_ROWS: Final = 128 << 10
BYTES: Final = ("key", "value", "headers", "topic")


class SparkColumns:
    """
    Turns a scan's record batches of one partition into Spark's.

    Args:
        columns: What Spark wants.
        topic_partition: What the constant columns say.
    """

    def __init__(self, columns: Sequence[Column], topic_partition: TopicPartition) -> None:
        self._pa: Final = import_extra("pyarrow")
        self._columns: Final = tuple(columns)
        self._topic_partition: Final = topic_partition
        self.schema: Final = self._pa.schema(
            [
                self._pa.field(each.name, self._type_of(each), nullable=each.nullable)
                for each in columns
            ]
        )
        self._types: Final = [field.type for field in self.schema]
        is_wide = any(each.source in BYTES for each in columns)
        #: Of a record batch at most.
        self.batch_rows: Final = BATCH_ROWS if is_wide else NARROW_BATCH_ROWS
        self._constants: dict[str, Any] = {}
        wanted = {SCANNED.get(each.source, each.source) for each in columns}
        self._names: Final = sorted(name for name in wanted if name) or ["offset"]
        #: Of the scan that reads what is needed.
        self.layout: Final = Layout.of(self._names, None, views=False)

    def _type_of(self, column: Column) -> Any:
        pa, source = self._pa, column.source
        if source == "headers":
            item, key, value = column.nested_nullable
            header = pa.struct(
                [
                    pa.field("key", pa.string(), nullable=key),
                    pa.field("value", pa.binary(), nullable=value),
                ]
            )
            return pa.list_(pa.field("element", header, nullable=item))
        if source in ("key", "value"):
            return pa.string() if column.is_text else pa.binary()
        types = {
            "topic": pa.string(),
            "offset": pa.int64(),
            "timestamp": pa.timestamp("us", tz="UTC"),
        }
        return types.get(source, pa.int32())

    @property
    def empty(self) -> Any:
        """A record batch without rows."""
        arrays = [self._pa.nulls(0, kind) for kind in self._types]
        return self._pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def convert(self, batch: Any) -> Any:
        """
        Return a record batch of the scan as Spark's.

        Raises:
            SparkSourceError: NULL_VALUE, MALFORMED_RECORD_TIMESTAMP.
        """
        arrays = [
            self._array(column, kind, batch)
            for column, kind in zip(self._columns, self._types, strict=True)
        ]
        return self._pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, column: Column, kind: Any, batch: Any) -> Any:
        source = column.source
        if source in ("topic", "partition"):
            return self._constant(source, kind, batch.num_rows)
        array = batch.column(self._names.index(SCANNED.get(source) or source))
        if source == "timestamp":
            return self._microseconds(array, kind)
        if source == "headers":
            return self._headers(column, kind, array)
        if array.null_count and not column.nullable:
            raise self._null(f"column {column.name} is")
        return array if array.type == kind else array.view(kind)

    def _constant(self, source: str, kind: Any, rows: int) -> Any:
        found = self._constants.get(source)
        if found is None or len(found) < rows:
            value = getattr(self._topic_partition, source)
            # Later ones may be a little larger; a task of a few rows needs no more.
            found = constant_array(self._pa, kind, value, rows + rows // 4)
            self._constants[source] = found
        return found.slice(0, rows)

    def _microseconds(self, array: Any, kind: Any) -> Any:
        try:
            return array.cast(kind)
        except self._pa.ArrowInvalid:
            raise SparkSourceError(
                "MALFORMED_RECORD_TIMESTAMP",
                f"{self._topic_partition}: a record has a time beyond what Spark can hold; it may"
                " be in microseconds or nanoseconds. Leave out the column timestamp",
            ) from None

    def _headers(self, column: Column, kind: Any, array: Any) -> Any:
        pa, rows = self._pa, len(array)
        offsets = array.buffers()[1]
        items = array.values
        names, values = items.field(0), items.field(1)
        if values.null_count and not column.nested_nullable[2]:
            raise self._null(f"the value of a header in column {column.name} is")
        children = [names, values]
        item = pa.Array.from_buffers(kind.value_type, len(items), [None], 0, children=children)
        bitmap, null_count = None, 0
        if column.nullable:  # A record without headers has none, as the connector says.
            ends = np.frombuffer(offsets, np.int32, rows + 1)
            has_some = ends[1:] > ends[:-1]
            null_count = rows - int(has_some.sum())
            if null_count:
                bitmap = pa.py_buffer(np.packbits(has_some, bitorder="little"))
        return pa.Array.from_buffers(kind, rows, [bitmap, offsets], null_count, children=[item])

    def _null(self, what: str) -> SparkSourceError:
        return SparkSourceError(
            "NULL_VALUE",
            f"{self._topic_partition}: {what} NOT NULL in the schema, but a record has none;"
            " leave out NOT NULL",
        )
