"""A Spark of this process's own, for a job that runs and ends."""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import logstore.spark
from logstore.extras import import_extra

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
}
# Derby, which comes with Spark, would write derby.log where the program is started.
JAVA_OPTIONS: Final = "-Dderby.stream.error.file=/dev/null"
LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")


def local_session(
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
    *,
    java_options: str = "",
    log_level: str = "error",
) -> Any:
    """
    Return a session with the format ``logstore``, times in UTC, and no page to look at.

    If this process has a session already, it is that one, with the settings that can be changed.
    Else it is stopped when the process ends.

    Args:
        master: Of Spark: how many cores.
        settings: More of Spark's, which go before those here.
        java_options: More for its Java.
        log_level: From which level on Spark tells what it does, on stderr; ``off``: nothing.

    Raises:
        MissingExtraError: There is no Spark, or no Java for it.
    """
    sessions = import_extra("pyspark.sql").SparkSession
    is_new = sessions.getActiveSession() is None
    builder = sessions.builder.master(master)
    log_options = (
        f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()} -Dlogstore.log.level={log_level}"
    )
    builder = builder.config(
        "spark.driver.extraJavaOptions", f"{JAVA_OPTIONS} {log_options} {java_options}".strip()
    )
    progress = {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    for name, value in {**SETTINGS, **progress, **(settings or {})}.items():
        builder = builder.config(name, value)
    spark = logstore.spark.configure(builder).getOrCreate()
    logstore.spark.register(spark)
    if is_new:
        atexit.register(_stop, spark)
    return spark


def _stop(spark: Any) -> None:
    """End a session; its idle workers, which then find a pipe broken, print no traceback each."""
    with contextlib.suppress(Exception):  # A session of Spark Connect has no Java here.
        spark._jvm.java.lang.System.err.close()
    spark.stop()
