"""
The format ``logstore``: from options to readers and writers.

Spark makes an object of this in a process of its own for every ``load()``, pickles it, and makes
readers of it elsewhere; so nothing here holds a file or a log.

Source: Spark ``KafkaSourceProvider``.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

from logstore.spark.options import check_names, parse_source_options
from logstore.spark.source_columns import schema_ddl


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
        check_names(options)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "logstore"

    def schema(self) -> str:
        """Return what a query reads, unless its user gives a schema."""
        options = parse_source_options(self.options)
        return schema_ddl(options.columns, include_headers=options.include_headers)
