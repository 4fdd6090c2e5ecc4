"""
How Spark finds the format ``logstore`` by itself, in every session, without ``register``.

Spark imports each module whose name begins with ``pyspark_`` in the process that looks for formats,
and asks its ``DefaultSource``. So this imports nothing of logstore before somebody uses it.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Stands for ``logstore.spark.data_source.LogStoreDataSource``, which making one gives."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "logstore"

    def __new__(cls, options: dict[str, str]) -> DataSource:
        """Return the real one."""
        from logstore.spark.data_source import LogStoreDataSource  # noqa: PLC0415

        return LogStoreDataSource(options)
