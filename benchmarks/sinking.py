"""A sink's records on their way: a task's file, a commit; and through Spark, as a program."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import logstore
from benchmarks.harness import Contest, Stopwatch, Target, Variant, fresh_file
from benchmarks.material import Values
from benchmarks.sizes import Size
from logstore._native import Columns
from logstore.arrow_columns import binary_buffers
from logstore.checkpoint import TopicPartition
from logstore.staged_batches import StagedBatchWriter, staged_path

VALUE_BYTES = 100
CONFIG = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
PLACE = TopicPartition("t", 0)
PIECE = 1 << 20


def sinking(directory: Path, size: Size) -> Contest:
    """
    Values of 100 bytes, staged by one task and committed; CPU time.

    The yardstick writes the bytes of the log to a file, and copies that to another one. Both flush
    the second copy, and it alone.
    """
    values = Values.of(VALUE_BYTES, size.read_bytes)
    data, offsets, _ = binary_buffers(values.plain.column("value").combine_chunks())
    columns = Columns(data, offsets, timestamp=1)
    path = tempfile.mkdtemp(dir=directory)
    store = logstore.open_store(path, config=CONFIG)
    log = store.create_topic("t")[0]
    versions = iter(range(1 << 30))

    def sink(watch: Stopwatch) -> None:
        version = next(versions)
        before = log.log_end_offset
        with watch.running():
            file = staged_path(path, "sink", version, 0, 0)
            with StagedBatchWriter(file) as writer:
                writer.add(PLACE, columns)
            store.commit_staged("sink", version, [file])
        assert before + values.count < log.log_end_offset

    def copies(watch: Stopwatch) -> None:
        with fresh_file(directory) as first, fresh_file(directory) as second, watch.running():
            view = memoryview(data)
            for at in range(0, len(view), PIECE):
                os.pwrite(first, view[at : at + PIECE], at)
            for at in range(0, len(view), PIECE):
                os.pwrite(second, os.pread(first, PIECE, at), at)
            os.fdatasync(second)

    def close() -> None:
        store.close()
        shutil.rmtree(path)

    amount = VALUE_BYTES * values.count
    return Contest(
        "sinking",
        (Variant("two copies", copies, "cpu", amount), Variant("sink", sink, "cpu", amount)),
        (Target("sink: stage and commit", "sink", "two copies", floor=0.35, ambition=0.6),),
        close=close,
    )


# ---- through Spark -------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Print how many rows a second Spark writes; no contest, as Spark alone takes half a minute."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sinking", description=main.__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=4, help="of the topic with keys")
    chosen = parser.parse_args(arguments)
    source = str(Path(__file__).resolve().parents[1] / "src")
    os.environ["PYTHONPATH"] = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as directory:
        _through_spark(Path(directory), chosen.rows, chosen.rounds, chosen.partitions)
    return 0


def _through_spark(directory: Path, rows: int, rounds: int, partitions: int) -> None:
    from pyspark.sql import SparkSession, functions  # noqa: PLC0415

    import logstore.spark  # noqa: PLC0415

    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "1g")
    builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = logstore.spark.configure(builder).getOrCreate()
    logstore.spark.register(spark)
    root = str(directory / "store")
    with logstore.open_store(root) as store:
        store.create_topic("values")
        store.create_topic("keys", partitions=partitions)
    number = functions.col("id").cast("string")
    made = spark.range(rows).select(
        functions.rpad(functions.md5(number), VALUE_BYTES, "x").cast("binary").alias("value"),
        functions.lpad(number, 8, "0").cast("binary").alias("key"),
    )
    made.repartition(4).write.option("compression", "none").parquet(str(directory / "rows"))
    table = spark.read.parquet(str(directory / "rows"))
    both = ("key", "value")

    def noop(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def sink(topic: str) -> Callable[[Any], None]:
        return lambda frame: (
            frame.write.format("logstore").option("topic", topic).mode("append").save(root)
        )

    def parquet(frame: Any) -> None:
        frame.write.option("compression", "none").mode("overwrite").parquet(str(directory / "out"))

    ways = {
        "value, noop": (table.select("value"), noop),
        "value, Parquet": (table.select("value"), parquet),
        "value, one partition": (table.select("value"), sink("values")),
        "key and value, noop": (table.select(*both), noop),
        "key and value, Parquet": (table.select(*both), parquet),
        f"key and value, {partitions} partitions": (table.select(*both), sink("keys")),
    }
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for round_number in range(rounds + 1):
        for name, (frame, way) in ways.items():
            begin, used = time.perf_counter(), _cpu_seconds()
            way(frame)
            if round_number:  # The first one warms up.
                rate = rows / (time.perf_counter() - begin) / 1e6
                figures[name].append((rate, (_cpu_seconds() - used) / rows * 1e6))
    for name, found in figures.items():
        rates, costs = zip(*found, strict=True)
        print(
            f"{name:32} {statistics.median(rates):5.2f} M rows/s, at best {max(rates):.2f};"
            f" {statistics.median(costs):.2f} s of CPU a million"
        )
    with logstore.open_store(root, mode="r") as store:
        written = sum(1 for log in store["values"].logs() for _ in log.read_values())
    assert written == rows * (rounds + 1)
    spark.stop()


def _cpu_seconds() -> float:
    """Return the CPU time of the processes below this one: Spark's and its workers', as of now."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # It has ended.
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
            ticks = sum(map(int, fields[11:15]))  # Its own, and of children that have ended.
            seconds[int(path.parent.name)] = ticks / os.sysconf("SC_CLK_TCK")
    below = {os.getpid()}
    while found := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= found
    return sum(seconds[pid] for pid in below if pid != os.getpid())


if __name__ == "__main__":
    sys.exit(main())
