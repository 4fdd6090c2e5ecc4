"""
One Spark for all tests here, as small as it starts: it costs 5 s, a stream 1 to 2 s.

What needs no Spark is tested without one, on the same readers and writers.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from pathlib import Path

import pytest
from sampling import IS_CI, IS_NIGHTLY

from logstore.testing import open_log_store

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


def pytest_collection_modifyitems(items):
    """Let Spark's own warnings be: they are of its sockets and of what it imports."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.filterwarnings("ignore"))


CONNECT = "org.apache.spark.sql.connect.SparkConnectPlugin"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def store(tmp_path):
    """A store whose invariants are checked after the test."""
    with open_log_store(tmp_path / "store") as store:
        yield store
        if not store.is_closed:
            assert [] == list(store.check())
            assert [] == [str(report) for report in store.errors]


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """A session with the format registered."""
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("needs the extra [spark-local]")
    import logstore.spark
    from logstore.errors import MissingExtraError

    directory = tmp_path_factory.mktemp("spark")
    environment = {
        "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_DIRS": str(directory),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_HOME": os.environ.get("JAVA_HOME", ""),
    }
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[2]").appName("tests")
        for name, value in SETTINGS.items():
            builder = builder.config(name, value)
        builder = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        if IS_CI or IS_NIGHTLY:  # A client of Spark Connect comes.
            builder = builder.config("spark.plugins", CONNECT)
            builder = builder.config("spark.connect.grpc.binding.address", "127.0.0.1")
            builder = builder.config("spark.connect.grpc.binding.port", str(free_port()))
        try:
            builder = logstore.spark.configure(builder)
        except MissingExtraError as error:
            pytest.skip(str(error))
        session = builder.getOrCreate()
        logstore.spark.register(session)
        yield session
        session.stop()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
