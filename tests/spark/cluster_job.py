"""
A job on a cluster of Spark's whose parts fail and are killed; the program of test_cluster.py.

    python tests/spark/cluster_job.py STORE DIRECTORY

``in`` is copied to ``failing`` while tasks raise and processes are killed, to ``slow`` while one is
run twice, and to ``dying`` by a stream that ends this driver: so it has no end of its own.

Spark runs a task twice only on two hosts, and a local cluster is one: another worker joins it, with
an address of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]

import pyspark  # noqa: E402 - found by the line above
from pyspark import TaskContext  # noqa: E402
from spark_session import JVM_OPTIONS, local_spark  # noqa: E402

from logstore.spark.data_source import LogStoreDataSource  # noqa: E402
from logstore.spark.sink_options import parse_stream_sink_options  # noqa: E402
from logstore.spark.stream_writer import LogStoreStreamWriter  # noqa: E402

EXECUTORS = "local-cluster[1,1,512]"
OTHER_HOST = "127.0.0.2"
SETTINGS = {
    "spark__executor__memory": "512m",
    "spark__executor__extraJavaOptions": JVM_OPTIONS,
    "spark__speculation": "true",
    "spark__speculation__interval": "100ms",
    "spark__speculation__minTaskRuntime": "500ms",
    "spark__speculation__multiplier": "1.5",
    "spark__speculation__quantile": "0.5",
}
STRAGGLE_SECONDS = 60.0


def first_to(path: str) -> bool:
    """Whether nobody was here before."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def parent_of(pid: int | str) -> int:
    """The process that started another one."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return int(stat.rpartition(")")[2].split()[1])


def java_above() -> int:
    """The JVM that this process works for."""
    pid = os.getppid()
    while Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() != "java":
        pid = parent_of(pid)
    return pid


def kill_siblings() -> None:
    """Kill what else works in Python for the same JVM: who writes the rows of here."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid = int(path.name)
            if pid != os.getpid() and parent_of(pid) == os.getppid():
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def another_host(spark):
    """Let a worker with another address join the cluster."""
    backend = spark.sparkContext._jsc.sc().schedulerBackend()
    masters = backend.getClass().getDeclaredField("masters")
    masters.setAccessible(True)
    home = Path(pyspark.__file__).parent
    command = [home / "bin/spark-class", "org.apache.spark.deploy.worker.Worker"]
    command += ["--host", OTHER_HOST, "--webui-port", "0", "--cores", "1", "--memory", "512m"]
    command += ["--work-dir", os.environ["SPARK_LOCAL_DIRS"], masters.get(backend)[0]]
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_DAEMON_JAVA_OPTS": JVM_OPTIONS}
    environment["SPARK_LOCAL_IP"] = OTHER_HOST
    with subprocess.Popen(command, env=environment) as worker:
        try:
            yield
        finally:
            worker.kill()


def failing(directory: str):
    """What rows go through on the way: the first attempt of each task ends badly."""

    def through(batches):
        task = TaskContext.get().partitionId()
        for batch in batches:
            yield batch
            if task < 3 and first_to(f"{directory}/failed-{task}"):
                if task == 0:
                    raise RuntimeError("on the way")
                if task == 1:
                    kill_siblings()
                if task == 2:
                    os.kill(java_above(), signal.SIGKILL)

    return through


def slow(directory: str):
    """The same: the first attempt of the first task waits until another was faster."""

    def through(batches):
        for batch in batches:
            yield batch
            if TaskContext.get().partitionId() == 0:
                if first_to(f"{directory}/waits"):
                    time.sleep(STRAGGLE_SECONDS)
                first_to(f"{directory}/was-faster")

    return through


class DyingWriter(LogStoreStreamWriter):
    """A sink whose driver is killed behind its second commit."""

    def commit(self, messages, batchId):  # noqa: N803
        """Append what was staged, and let Spark not know."""
        super().commit(messages, batchId)
        if batchId == 1:
            os.kill(java_above(), signal.SIGKILL)


class DyingSource(LogStoreDataSource):
    """The format with that sink."""

    @classmethod
    def name(cls):
        """The name of the format."""
        return "dying"

    def streamWriter(self, schema, overwrite):  # noqa: N802
        """Return the sink."""
        return DyingWriter(parse_stream_sink_options(self.options), schema)


def main(store: str, directory: Path) -> None:
    """Copy ``in`` three times."""
    with local_spark(directory, EXECUTORS, **SETTINGS) as spark, another_host(spark):
        rows = spark.read.format("logstore").option("subscribe", "in").load(store)
        rows = rows.select("key", "value")
        for topic, way in (("failing", failing), ("slow", slow)):
            begin = time.monotonic()
            through = rows.mapInArrow(way(str(directory)), rows.schema)
            through.write.format("logstore").option("topic", topic).mode("append").save(store)
            print(topic, f"{time.monotonic() - begin:.1f}", flush=True)
        spark.dataSource.register(DyingSource)
        stream = spark.readStream.format("logstore").option("startingOffsets", "earliest")
        stream = stream.option("subscribe", "in").option("maxOffsetsPerTrigger", "40")
        writer = stream.load(store).select("key", "value").writeStream.format("dying")
        writer = writer.option("topic", "dying").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(directory / "checkpoint")).start(store)
        query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
