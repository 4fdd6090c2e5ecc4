"""A Spark of this process's own, for a job that runs and ends."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

import logstore.spark
from logstore.extras import import_extra

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
    # Derby, which comes with Spark, would write derby.log where the program is started.
    "spark.driver.extraJavaOptions": "-Dderby.stream.error.file=/dev/null",
}


def local_session(master: str = "local[*]", settings: Mapping[str, str] | None = None) -> Any:
    """
    Return a session with the format ``logstore``, times in UTC, and no page to look at.

    If this process has a session already, it is that one, with the settings that can be changed.

    Args:
        master: Of Spark: how many cores.
        settings: More of Spark's, which go before those here.

    Raises:
        MissingExtraError: There is no Spark, or no Java for it.
    """
    builder = import_extra("pyspark.sql").SparkSession.builder.master(master)
    progress = {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    for name, value in {**SETTINGS, **progress, **(settings or {})}.items():
        builder = builder.config(name, value)
    spark = logstore.spark.configure(builder).getOrCreate()
    logstore.spark.register(spark)
    return spark
