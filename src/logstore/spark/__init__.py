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

from typing import Any

__all__ = ["register"]


def register(spark: Any) -> None:
    """
    Make the format ``logstore`` known to a Spark session; a second call changes nothing.

    Every Python process of the cluster has to be able to import logstore.

    Args:
        spark: A SparkSession, classic or of Spark Connect.
    """
    from logstore.spark.data_source import LogStoreDataSource  # noqa: PLC0415

    spark.dataSource.register(LogStoreDataSource)
