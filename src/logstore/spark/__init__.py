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
from typing import Any

from logstore.spark.java import java_home
from logstore.spark.progress import lag

__all__ = ["configure", "java_home", "lag", "register"]


def register(spark: Any) -> None:
    """
    Make the format ``logstore`` known to a Spark session; a second call changes nothing.

    Every Python process of the cluster has to be able to import logstore.

    Args:
        spark: A SparkSession, classic or of Spark Connect.
    """
    from logstore.spark.data_source import LogStoreDataSource  # noqa: PLC0415

    spark.dataSource.register(LogStoreDataSource)


def configure(builder: Any) -> Any:
    """
    Set what a Spark on this machine needs to be fast and to find its parts; the rest is yours.

    To be called before there is a session: Java is found (:func:`java_home`), Python's workers use
    this interpreter, and they talk to Spark over Unix domain sockets, which saves 40 ms for each
    task. What is set already in the environment or in the builder stays.

    Args:
        builder: ``SparkSession.builder``.

    Returns:
        The builder.

    Raises:
        MissingExtraError: There is no Java; not asked for if Spark Connect goes to a server.
    """
    options: dict[str, Any] = builder._options
    remote = str(options.get("spark.remote") or os.environ.get("SPARK_REMOTE") or "")
    if not remote.startswith("sc://"):
        os.environ["JAVA_HOME"] = java_home()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if "spark.python.unix.domain.socket.enabled" not in options:
        builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
    return builder
