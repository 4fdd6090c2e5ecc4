"""
``df.write.format("logstore")``: one write, appended in one transaction.

With ``txnAppId`` and ``txnVersion`` it happens once, whoever repeats it; in ``foreachBatch`` the
batch id is the version. Without them it happens once for each job: Spark repeats tasks,
never a job.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from logstore.spark.errors import SparkSourceError
from logstore.spark.sink import SinkPlan
from logstore.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa


class LogStoreBatchWriter(DataSourceArrowWriter):
    """
    Writes the rows of one action.

    Args:
        options: The sink's.
        schema: Spark's StructType.
        overwrite: Whether the mode is overwrite, which is refused: a log is only appended to.

    Raises:
        SparkSourceError: What can be known to be wrong before a task runs.
    """

    def __init__(self, options: SinkOptions, schema: Any, *, overwrite: bool) -> None:
        if overwrite:
            raise SparkSourceError(
                "UNSUPPORTED_SAVE_MODE",
                "Save mode overwrite not allowed for logstore. Allowed save modes are append and"
                " errorifexists (default): use mode('append')",
            )
        self._plan = SinkPlan.make(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        context = TaskContext.get()
        assert context is not None
        options = self._plan.options
        return self._plan.stage(
            iterator,
            context.partitionId(),
            context.attemptNumber(),
            options.application or self._plan.job_id,
            options.version,
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append what was staged."""
        self._plan.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what was staged."""
        self._plan.abort(messages)
