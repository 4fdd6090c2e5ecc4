"""
``df.writeStream.format("logstore")``: each micro-batch appended in one transaction, once.

The id of the query is in its checkpoint and the same after a restart; batches are numbered. A batch
that Spark repeats, because it does not know whether it was written, is found to be there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from logstore.spark.errors import SparkSourceError
from logstore.spark.sink import SinkPlan
from logstore.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

# Spark's names of the properties that a task of a stream has.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


class LogStoreStreamWriter(DataSourceStreamArrowWriter):
    """
    Writes micro-batches; in output modes append and complete their rows are appended.

    Spark refuses update for sinks in Python.

    Args:
        options: The sink's.
        schema: Spark's StructType.

    Raises:
        SparkSourceError: What can be known to be wrong before a task runs.
    """

    def __init__(self, options: SinkOptions, schema: Any) -> None:
        self._plan = SinkPlan.make(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        context = TaskContext.get()
        assert context is not None
        query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query_id is None or batch_id is None:
            raise SparkSourceError(
                "NO_QUERY_ID", "Spark does not say which query and batch this is; use foreachBatch"
            )
        return self._plan.stage(
            iterator, context.partitionId(), context.attemptNumber(), query_id, int(batch_id)
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Append what was staged, unless this batch is there."""
        del batchId  # It is in the messages, with the query's id.
        self._plan.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete what was staged."""
        del batchId
        self._plan.abort(messages)
