"""
The format ``logstore``: from options to readers and writers.

Spark makes an object of this in a process of its own for every ``load()``, pickles it, and makes
readers of it elsewhere; so nothing here holds a file or a log.

Source: Spark ``KafkaSourceProvider``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from logstore.spark.log_lines import show_log_lines
from logstore.spark.options import check_names, parse_source_options
from logstore.spark.source_columns import columns_of, schema_ddl
from logstore.spark.worker_process import settle

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class LogStoreDataSource(DataSource):
    """
    ``spark.read.format("logstore")``, ``readStream``, ``write``, ``writeStream``.

    Args:
        options: As they were given; keys in any case.

    Raises:
        SparkSourceError: UNKNOWN_OPTION, UNSUPPORTED_OPTION; what is wrong with the values comes
            with the schema, the reader or the writer.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        show_log_lines()
        check_names(options)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "logstore"

    def schema(self) -> str:
        """Return what a query reads, unless its user gives a schema."""
        options = parse_source_options(self.options)
        settle()
        return schema_ddl(options.columns, include_headers=options.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        from logstore.spark.batch_reader import LogStoreBatchReader  # noqa: PLC0415

        options = parse_source_options(self.options)
        options.check_batch()
        if not options.filter_pushdown:  # Spark refuses a reader that could, unless it may.
            return LogStoreBatchReader(options, columns_of(schema))
        from logstore.spark.pushdown import FilteringBatchReader  # noqa: PLC0415

        return FilteringBatchReader(options, columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a stream."""
        from logstore.spark.stream_reader import LogStoreStreamReader  # noqa: PLC0415

        show_log_lines()  # This process got the object, and did not make it.

        options = parse_source_options(self.options)
        options.check_stream()
        return LogStoreStreamReader(options, columns_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch write."""
        from logstore.spark.batch_writer import LogStoreBatchWriter  # noqa: PLC0415
        from logstore.spark.sink_options import parse_sink_options  # noqa: PLC0415

        found = LogStoreBatchWriter(parse_sink_options(self.options), schema, overwrite=overwrite)
        settle()
        return found

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002 - In output mode complete; rows are appended, as by Kafka.
    ) -> DataSourceStreamWriter:
        """Return the writer of a stream."""
        from logstore.spark.sink_options import parse_stream_sink_options  # noqa: PLC0415
        from logstore.spark.stream_writer import LogStoreStreamWriter  # noqa: PLC0415

        found = LogStoreStreamWriter(parse_stream_sink_options(self.options), schema)
        settle()
        return found
