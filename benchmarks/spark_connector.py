"""
Contests with Spark's Kafka connector and a broker: the same rows, read and written.

The broker is on this machine, with nothing but the loopback interface in between. Each contest has
a JVM of its own: in one that has compiled scans before, writes take up to a third more of its time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import logstore
from benchmarks.broker import NO_BROKER, Client
from benchmarks.harness import Contest, Stopwatch, Target, Variant
from benchmarks.kept_memory import kept_memory
from benchmarks.sizes import Size
from benchmarks.spark_source import PARTITIONS, VALUE_BYTES, load, make_store, new_session
from tests.support.kafka_broker import kafka_broker
from tests.support.spark_connector import add_connector, why_not

SINK_ROUNDS: Final = 9

#: Why there is nothing to measure beside, None: there is.
NO_CONNECTOR: Final = NO_BROKER or why_not()


def scans(directory: Path, size: Size) -> Contest:
    """Scan all columns to nowhere."""
    with contextlib.ExitStack() as starting:
        spark, store, where = _session_store_and_topic(starting, directory, size, "orders")
        rows = load(spark, store)
        count = rows.count()
        written = rows.select("key", "value", "partition").write.format("kafka")
        written.options(topic="orders", **where).mode("append").save()

        def orders() -> Any:
            return spark.read.format("kafka").options(subscribe="orders", **where).load()

        assert count == orders().count()
        running = starting.pop_all()

    def scan(frame: Callable[[], Any]) -> Callable[[Stopwatch], None]:
        def run(watch: Stopwatch) -> None:
            with watch.running():
                frame().write.format("noop").mode("append").save()

        return run

    return Contest(
        "spark connector scan",
        (
            Variant("connector scan", scan(orders), "wall", count),
            Variant("scan", scan(lambda: load(spark, store)), "wall", count),
        ),
        (Target("Spark scan, of the connector's", "scan", "connector scan", 3, unit="connector"),),
        rounds=5,
        close=running.close,
    )


def sinks(directory: Path, size: Size) -> Contest:
    """
    Write keys and values of a table in memory.

    A sink in Python that drops the rows says what there is to gain for one that keeps them. Each
    round needs new pages for two logs, and for what is staged.
    """
    with contextlib.ExitStack() as starting:
        spark, store, where = _session_store_and_topic(starting, directory, size, "written")
        with logstore.open_store(store) as opened:
            opened.create_topic("written", partitions=PARTITIONS)
        rows = load(spark, store).select("key", "value", "partition").cache()
        starting.callback(rows.unpersist)
        count = rows.count()
        starting.enter_context(kept_memory((SINK_ROUNDS + 1) * 3 * PARTITIONS * size.read_bytes))
        running = starting.pop_all()

    def write(side: str, path: str | None, **options: str) -> Callable[[Stopwatch], None]:
        def run(watch: Stopwatch) -> None:
            writer = rows.select("key", "value").write.format(side).options(**options)
            with watch.running():
                writer.option("topic", "written").mode("append").save(path)

        return run

    return Contest(
        "spark connector sink",
        (
            Variant("connector sink", write("kafka", None, **where), "wall", count),
            Variant("sink", write("logstore", store), "wall", count),
            Variant("idle sink", write("idle", None), "wall", count),
        ),
        (
            Target("Spark sink, of the connector's", "sink", "connector sink", 3, unit="connector"),
            Target(
                "Spark sink, of one in Python that drops rows", "sink", "idle sink", unit="idle"
            ),
        ),
        rounds=SINK_ROUNDS,
        close=running.close,
    )


def _session_store_and_topic(
    starting: contextlib.ExitStack, directory: Path, size: Size, topic: str
) -> tuple[Any, str, dict[str, str]]:
    """Return a new session, a store with rows, and how the connector reaches a broker's topic."""
    spark = new_session()
    add_connector(spark)
    broker = starting.enter_context(kafka_broker(directory / "broker"))
    Client(broker.bootstrap_servers).create(topic, PARTITIONS)
    make_store(directory / "store", PARTITIONS, size.read_bytes // VALUE_BYTES)
    where = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    return spark, str(directory / "store"), where


CONTESTS: Final[dict[str, Callable[[Path, Size], Contest]]] = (
    {} if NO_CONNECTOR else {"spark connector scan": scans, "spark connector sink": sinks}
)
LEFT_OUT: Final = {"spark connector": NO_CONNECTOR} if NO_CONNECTOR else {}
