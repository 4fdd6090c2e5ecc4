"""
Contests of the source in Apache Spark, beside Parquet with the same rows, in one local session.

They start a JVM and take minutes, so ``python -m benchmarks`` runs them only with ``--spark``.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import logstore
from benchmarks.harness import Contest, Stopwatch, Target, Variant
from benchmarks.material import Values
from benchmarks.sizes import Size

PARTITIONS = 4
VALUE_BYTES = 100
ROW_BYTES = VALUE_BYTES + 28  # With a key of 10, as a record batch of Arrow has them.
SMALL_PARTITIONS = 16
MICRO_BATCHES = 20
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
OFFSET = "offset bigint not null"
CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
AGGREGATES = (
    "count(key)",
    "sum(length(value))",
    "count(topic)",
    "sum(partition)",
    "max(offset)",
    "max(timestamp)",
    "sum(timestampType)",
)


def session() -> Any:
    """Return the Spark that contests share, as small as two cores want it."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    import logstore.spark as integration  # noqa: PLC0415
    from benchmarks.spark_idle import IdleSource  # noqa: PLC0415

    top = Path(__file__).resolve().parent.parent
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(top / "src"), str(top), os.environ.get("PYTHONPATH", "")]
    )
    builder = SparkSession.builder.master("local[2]").appName("benchmarks")
    for name, value in {
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
    }.items():
        builder = builder.config(name, value)
    spark = integration.configure(builder, row_bytes=ROW_BYTES).getOrCreate()
    integration.register(spark)
    spark.dataSource.register(IdleSource)
    return spark


def new_session() -> Any:
    """Return a Spark in a JVM of its own; the one that there is, is stopped."""
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    running = SparkSession.getActiveSession()
    if running is not None:
        gateway = SparkContext._gateway
        running.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None
    return session()


def make_store(directory: Path, partitions: int, rows: int) -> int:
    """Write a store with the topic ``orders``; return how many records it has."""
    values = Values.of(VALUE_BYTES, VALUE_BYTES * rows)
    with logstore.open_store(directory) as store:
        for log in store.create_topic("orders", partitions=partitions).logs():
            log.extend_arrow(values.full, value="value", key="key", timestamp="timestamp")
    return rows * partitions


def scanning(directory: Path, size: Size) -> Contest:
    """
    Every row, to nowhere and through aggregates; one column; what Python has of the time.

    So many rows that what Spark takes for any query is little beside them: 5 million.
    """
    spark = session()
    store, parquet = str(directory / "store"), str(directory / "parquet")
    rows = 2 * size.read_bytes // VALUE_BYTES
    count = make_store(directory / "store", PARTITIONS, rows)
    load(spark, store).write.option("compression", "none").parquet(parquet)

    def logs(**options: str) -> Callable[[], Any]:
        return lambda: load(spark, store, **options)

    def files() -> Any:
        return spark.read.parquet(parquet)

    def ready(schema: str | None = None) -> Callable[[], Any]:
        reader = spark.read if schema is None else spark.read.schema(schema)
        return lambda: idle(reader, PARTITIONS, rows)

    def to_nowhere(frame: Callable[[], Any]) -> Callable[[Stopwatch], None]:
        def run(watch: Stopwatch) -> None:
            with watch.running():
                frame().write.format("noop").mode("append").save()

        return run

    def aggregated(
        frame: Callable[[], Any], *expressions: str
    ) -> Callable[[Stopwatch], float | None]:
        def run(watch: Stopwatch) -> None:
            with watch.running():
                row = frame().selectExpr("count(1)", *expressions).first()
            assert row[0] == count

        return run

    def share_of_python(frame: Callable[[], Any]) -> Callable[[Stopwatch], float]:
        """Python's part of the processor time of a full scan, in percent."""

        def run(_: Stopwatch) -> float:
            before = _processor_seconds(spark)
            frame().write.format("noop").mode("append").save()
            after = _processor_seconds(spark)
            used = [then - now for then, now in zip(after, before, strict=True)]
            return max(100 * used[1] / sum(used), 0.01)

        return run

    variants = (
        Variant("Parquet", to_nowhere(files), "wall", count),
        Variant("logstore", to_nowhere(logs()), "wall", count),
        Variant("Parquet, aggregates", aggregated(files, *AGGREGATES), "wall", count),
        Variant("logstore, aggregates", aggregated(logs(), *AGGREGATES), "wall", count),
        Variant("offset", aggregated(logs(columns="offset"), "sum(offset)"), "wall", count),
        Variant("Python's share", share_of_python(logs()), "wall"),
        Variant("idle, aggregates", aggregated(ready(), *AGGREGATES), "wall", count),
        Variant("idle, offset", aggregated(ready(OFFSET), "sum(offset)"), "wall", count),
        Variant("idle, Python's share", share_of_python(ready()), "wall"),
    )
    targets = (
        Target("Spark scan", "logstore", "Parquet", 0.6, unit="Parquet"),
        Target(
            "Spark scan, 7 aggregates",
            "logstore, aggregates",
            "Parquet, aggregates",
            0.6,
            unit="Parquet",
        ),
        Target(
            "Spark scan, offset only", "offset", "logstore, aggregates", 2.5, unit="all columns"
        ),
        Target("Spark scan, Python's CPU", "Python's share", None, 20, at_most=True, unit="%"),
        Target(
            "Spark 7 aggregates, the same",
            "logstore, aggregates",
            "idle, aggregates",
            unit="idle source",
        ),
        Target("Spark offset only, the same", "offset", "idle, offset", unit="idle source"),
        Target("Idle source, Python's CPU", "idle, Python's share", None, at_most=True, unit="%"),
    )
    return Contest("spark scan", variants, targets, rounds=5)


def small_read(directory: Path, size: Size) -> Contest:
    """A count over 16 partitions of 100 records: what a task and a query cost."""
    spark = session()
    rows = min(100, size.calls)
    count = make_store(directory / "store", SMALL_PARTITIONS, rows)

    def counted(frame: Callable[[], Any]) -> Callable[[Stopwatch], None]:
        def run(watch: Stopwatch) -> None:
            with watch.running():
                found = frame().count()
            assert found == count

        return run

    variants = (
        Variant("idle", counted(lambda: idle(spark.read, SMALL_PARTITIONS, rows)), "wall"),
        Variant("logstore", counted(lambda: load(spark, str(directory / "store"))), "wall"),
    )
    targets = (
        Target("Spark read, 16 small partitions", "logstore", None, 0.35, at_most=True, unit="s"),
        Target("Spark read, the same", "logstore", "idle", at_most=True, unit="idle source"),
    )
    return Contest("spark small read", variants, targets, rounds=9)


def micro_batches(directory: Path, size: Size) -> Contest:
    """A micro-batch of a few rows, beside Spark's own source of rates and an idle one in Python."""
    spark = session()
    store = logstore.open_store(directory / "store")
    topic = store.create_topic("orders", partitions=2)
    batches = min(MICRO_BATCHES, size.durable_batches)
    runs = iter(range(1_000))

    def started(stream: Any) -> Any:
        checkpoint = str(directory / f"checkpoint-{next(runs)}")
        writer = stream.writeStream.format("noop").option("checkpointLocation", checkpoint)
        return writer.trigger(processingTime="0 seconds").start()

    def trigger_seconds(query: Any) -> float:
        found = [
            each["durationMs"]["triggerExecution"] / 1000
            for each in query.recentProgress
            if each["numInputRows"] and each["batchId"] > 1
        ]
        return float(statistics.median(found))

    def incessant(frame: Callable[[], Any]) -> Callable[[Stopwatch], float]:
        def run(_: Stopwatch) -> float:
            query = started(frame())
            try:
                _wait(lambda: sum(each["batchId"] > 1 for each in query.recentProgress) >= batches)
                return trigger_seconds(query)
            finally:
                query.stop()

        return run

    def rates() -> Any:
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2)
        return source.option("numPartitions", 2).load()

    def appended(_: Stopwatch) -> float:
        stream = spark.readStream.format("logstore").option("subscribe", "orders")
        query = started(stream.load(str(directory / "store")))
        try:
            for _number in range(batches + 2):
                topic[0].append(b"v")
                topic[1].append(b"v")
                query.processAllAvailable()
            _wait(lambda: sum(each["batchId"] > 1 for each in query.recentProgress) >= batches // 2)
            return trigger_seconds(query)
        finally:
            query.stop()

    variants = (
        Variant("rate", incessant(rates), "wall"),
        Variant("idle", incessant(lambda: idle(spark.readStream, 2, 1)), "wall"),
        Variant("logstore", appended, "wall"),
    )
    targets = (
        Target("Spark micro-batch, noop sink", "logstore", "rate", 1.6, at_most=True, unit="rate"),
        Target("Spark micro-batch, the same", "logstore", "idle", at_most=True, unit="idle source"),
    )
    return Contest("spark micro-batch", variants, targets, rounds=3, close=store.close)


def load(spark: Any, path: str, **options: str) -> Any:
    """Return the topic ``orders`` of a store."""
    return spark.read.format("logstore").options(subscribe="orders", **options).load(path)


def idle(reader: Any, partitions: int, rows: int) -> Any:
    """Return what a source reads that has its rows ready, so many in each partition."""
    return reader.format("idle").options(partitions=str(partitions), rows=str(rows)).load()


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _processor_seconds(spark: Any) -> tuple[float, float]:
    """Return the processor time of the JVM and of the Python processes below it, in seconds."""
    jvm = spark.sparkContext._gateway.proc.pid
    children: dict[int, list[int]] = {}
    ticks: dict[int, tuple[str, int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                text = Path(f"/proc/{name}/stat").read_text(encoding="utf-8")
            except OSError:
                continue
            command, _, rest = text.partition("(")[2].rpartition(")")
            fields = rest.split()
            children.setdefault(int(fields[1]), []).append(int(name))
            # A daemon's own, and those of its children that have ended.
            own = sum(int(each) for each in fields[11:15]) if "java" not in command else 0
            ticks[int(name)] = (command, own or int(fields[11]) + int(fields[12]))
    totals = {"java": 0, "python": 0}
    waiting = [jvm]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        command, used = ticks.get(pid, ("", 0))
        totals["java" if "java" in command else "python"] += used
    return totals["java"] / CLOCK_TICKS, totals["python"] / CLOCK_TICKS


CONTESTS: dict[str, Callable[[Path, Size], Contest]] = {
    "spark scan": scanning,
    "spark small read": small_read,
    "spark micro-batch": micro_batches,
}
