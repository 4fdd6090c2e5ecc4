"""
A Spark in this process, as small as it starts: 5 s, and 1 to 2 s for a stream.

The fixture ``spark`` (tests/conftest.py) is one for all tests of a process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sampling import IS_CI, IS_NIGHTLY

SOURCE = Path(__file__).resolve().parents[2] / "src"
# Derby, which comes with Spark, would write derby.log where the tests are started.
JVM_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -Dderby.stream.error.file=/dev/null"
)
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": JVM_OPTIONS,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.stopTimeout": "10s",
}
CONNECT = "org.apache.spark.sql.connect.SparkConnectPlugin"


def environment(directory: str | os.PathLike[str]) -> dict[str, str]:
    """Return the variables that Spark's own processes need, and those that a session sets."""
    return {
        "PYTHONPATH": os.pathsep.join(
            [str(SOURCE), str(SOURCE.parent), os.environ.get("PYTHONPATH", "")]
        ),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_DIRS": str(directory),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_HOME": os.environ.get("JAVA_HOME", ""),
    }


@contextlib.contextmanager
def local_spark(directory: Path, master: str = "local[2]", **more: str) -> Iterator[Any]:
    """
    Give a session with the format registered, and stop it at the end of the block.

    Args:
        directory: For its temporary files.
        master: Where its tasks run.
        more: Settings over :data:`SETTINGS`, a ``__`` for each dot.

    Raises:
        MissingExtraError: There is no Java.
    """
    variables = environment(directory)
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        from pyspark.sql import SparkSession

        import logstore.spark

        builder = SparkSession.builder.master(master).appName("tests")
        settings = {**SETTINGS, "spark.sql.warehouse.dir": str(directory / "warehouse")}
        settings |= {name.replace("__", "."): value for name, value in more.items()}
        if IS_CI or IS_NIGHTLY:  # A client of Spark Connect comes.
            settings["spark.plugins"] = CONNECT
            settings["spark.connect.grpc.binding.address"] = "127.0.0.1"
            settings["spark.connect.grpc.binding.port"] = str(free_port())
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = logstore.spark.configure(builder).getOrCreate()
        logstore.spark.register(session)
        yield session
        session.stop()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
