"""
logstore in Apache Spark: ``spark.read.format("logstore")`` and its three siblings.

::

    import logstore.spark

    logstore.spark.register(spark)
    orders = spark.read.format("logstore").option("subscribe", "orders").load("/data/logs")

Options have the names of Spark's Kafka connector; the page ``docs/spark.md`` has them all. This
module does not import pyspark: the extra ``spark`` is for a Spark that is there already,
``spark-local`` brings one.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from logstore.spark.java import java_home
from logstore.spark.progress import lag

__all__ = ["configure", "java_home", "lag", "register"]

# Of Spark's record batches.
BATCH_BYTES: Final = 4 << 20
# What configure() sets, unless it is set.
SETTINGS: Final = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(BATCH_BYTES),
}
# With any other value Spark adds up, again for each row, how large the batch is.
NO_BOUND: Final = str(2**31 - 1)


def register(spark: Any) -> None:
    """
    Make the format ``logstore`` known to a Spark session; a second call changes nothing.

    Every Python process of the cluster has to be able to import logstore.

    Args:
        spark: A SparkSession, classic or of Spark Connect.
    """
    from logstore.spark.data_source import LogStoreDataSource  # noqa: PLC0415

    spark.dataSource.register(LogStoreDataSource)


def configure(builder: Any, *, row_bytes: int | None = None) -> Any:
    """
    Set what a Spark on this machine needs to be fast and to find its parts; the rest is yours.

    To be called before there is a session: Java is found (:func:`java_home`), and Python's workers
    use this interpreter. They talk to Spark over Unix domain sockets, which saves 40 ms for each
    task, and get rows in record batches of 4 MiB: Spark's 10,000 rows are 1 MiB of small ones, and
    up to 64 MiB of large ones. What is set already in the environment or in the builder stays.

    Args:
        builder: ``SparkSession.builder``.
        row_bytes: The size of a row that Python is handed (key, value and 16 bytes), which hardly
            any exceeds. Spark then counts rows, as many as make 4 MiB, and does not add up bytes
            after each, which is a quarter of what a write costs in the JVM. Nothing bounds a batch
            of larger rows. It means nothing if one of the two settings is there already. None: rows
            may have any size.

    Returns:
        The builder.

    Raises:
        MissingExtraError: There is no Java; not asked for if Spark Connect goes to a server.
        ValueError: ``row_bytes`` is no size.
    """
    options: dict[str, Any] = builder._options
    settings = SETTINGS
    if row_bytes is not None:
        counting = _counting(row_bytes)
        if not counting.keys() & options.keys():  # One without the other would be no bound.
            settings = SETTINGS | counting
    remote = str(options.get("spark.remote") or os.environ.get("SPARK_REMOTE") or "")
    if not remote.startswith("sc://"):
        os.environ["JAVA_HOME"] = java_home()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    for name, value in settings.items():
        if name not in options:
            builder = builder.config(name, value)
    return builder


def _counting(row_bytes: int) -> dict[str, str]:
    """Return settings with which Spark counts rows of a size into batches."""
    if row_bytes < 1:
        raise ValueError(f"row_bytes is {row_bytes}; give the size of a row, 1 or more")
    rows = max(1, BATCH_BYTES // int(row_bytes))
    return {
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(rows),
        "spark.sql.execution.arrow.maxBytesPerBatch": NO_BOUND,
    }
