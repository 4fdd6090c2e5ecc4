"""
Contest with what the library stands in for: a Kafka broker, and librdkafka as its client.

Both are on this machine, with nothing but the loopback interface in between. The producer's records
are acknowledged by the leader alone, as an append is; nobody waits for the device. The client is
confluent-kafka, whose loops are in C where it has them; its settings are those that it comes with,
but for one that would have it wait for more.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import logstore
from benchmarks.following import WARM_UP, Ready, at_a_fixed_rate, delays_of, in_child
from benchmarks.harness import Contest, Stopwatch, Target, Variant
from benchmarks.material import Values
from benchmarks.sizes import Size
from tests.support.kafka_broker import kafka_broker, missing

DUE: Final = struct.Struct("=q")
CONSUMED_AT_ONCE: Final = 10_000
QUIET: Final = {"log_level": 0}
SECONDS_MAX: Final = 60.0


def _why_not() -> str | None:
    if importlib.util.find_spec("confluent_kafka") is None:
        return "confluent-kafka is not installed: pip install confluent-kafka"
    return missing()


#: Why there is no broker to measure, None: there is.
NO_BROKER: Final = _why_not()


class Client:
    """What programs do with a broker."""

    def __init__(self, servers: str) -> None:
        self.library = importlib.import_module("confluent_kafka")
        admin = importlib.import_module("confluent_kafka.admin")
        self.servers = {"bootstrap.servers": servers, **QUIET}
        self.admin = admin.AdminClient(self.servers)
        self.new_topic = admin.NewTopic

    def create(self, topic: str, partitions: int = 1) -> None:
        """Make a topic."""
        self.admin.create_topics([self.new_topic(topic, partitions, 1)])[topic].result()

    def producer(self, **config: Any) -> Any:
        """Return a producer whose records the leader acknowledges."""
        config = {"acks": "1", "queue.buffering.max.messages": 1_000_000, **config}
        return self.library.Producer(self.servers | config)

    def consumer(self, topic: str, **config: Any) -> Any:
        """Return a consumer at the beginning of a topic's first partition."""
        consumer = self.library.Consumer(self.servers | {"group.id": "benchmark", **config})
        consumer.assign([self.library.TopicPartition(topic, 0, 0)])
        return consumer


def _median(delays: list[float]) -> float:
    return delays[len(delays) // 2]


def broker(directory: Path, size: Size) -> Contest:
    """Append, read and follow, from a log and from a broker."""
    values = Values.of(100, size.read_bytes // 8)
    rows = values.as_list()
    count = WARM_UP + max(10, size.calls // 50)
    running = contextlib.ExitStack()
    served = running.enter_context(kafka_broker(directory / "broker"))
    client = Client(served.bootstrap_servers)
    log = running.enter_context(logstore.open(directory / "broker-0"))
    followed = running.enter_context(logstore.open(directory / "followed-0"))
    client.create("read")
    topics = iter(range(1 << 30))

    def produce_to(producer: Any, topic: str) -> None:
        for value in rows:
            producer.produce(topic, value, partition=0)
        assert producer.flush(SECONDS_MAX) == 0

    def extend(watch: Stopwatch) -> None:
        with watch.running():
            log.extend(rows)

    def produce(watch: Stopwatch) -> None:
        topic = f"written-{next(topics)}"
        client.create(topic)
        producer = client.producer()
        producer.list_topics(topic)
        with watch.running():
            produce_to(producer, topic)

    def read(watch: Stopwatch) -> None:
        value = None
        with watch.running():
            for record in log.read(0, limit=values.count):
                value = record.value
        assert rows[-1] == value

    def consume(watch: Stopwatch) -> None:
        consumer = client.consumer("read")
        taken, value = 0, None
        with watch.running():
            while taken < values.count:
                at_once = min(CONSUMED_AT_ONCE, values.count - taken)  # It waits for that many.
                found = consumer.consume(at_once, timeout=SECONDS_MAX)
                for message in found:
                    value = message.value()
                taken += len(found)
        consumer.close()
        assert rows[-1] == value

    def follow(ready: Ready) -> Iterator[int]:
        with followed.follow(timeout=SECONDS_MAX) as records:
            ready()
            for _, record in zip(range(count), records, strict=False):
                yield DUE.unpack(record.value or b"")[0]

    def poll(topic: str, ready: Ready) -> Iterator[int]:
        consumer = client.consumer(topic)
        consumer.poll(SECONDS_MAX)
        ready()
        for _ in range(count):
            yield DUE.unpack(consumer.poll(SECONDS_MAX).value())[0]

    def append(due: int) -> None:
        followed.append(DUE.pack(due))

    def median_of_log(_: Stopwatch) -> float:
        child = in_child(follow)
        at_a_fixed_rate(count, append)
        return _median(delays_of(*child))

    def median_of_broker(_: Stopwatch) -> float:
        topic = f"followed-{next(topics)}"
        client.create(topic)
        producer = client.producer(**{"linger.ms": 0})  # One message at a time, and out at once.

        def send(due: int) -> None:
            producer.produce(topic, DUE.pack(due), partition=0)
            producer.poll(0)

        send(0)
        assert producer.flush(SECONDS_MAX) == 0
        child = in_child(partial(poll, topic))
        at_a_fixed_rate(count, send)
        assert producer.flush(SECONDS_MAX) == 0
        return _median(delays_of(*child))

    log.extend(rows)
    produce_to(client.producer(), "read")
    return Contest(
        "peers: Kafka",
        (
            Variant("extend", extend, "wall", values.count),
            Variant("produce", produce, "wall", values.count),
            Variant("read", read, "wall", values.count),
            Variant("consume", consume, "wall", values.count),
            Variant("follow p50", median_of_log, "wall"),
            Variant("poll p50", median_of_broker, "wall"),
        ),
        (
            Target("append a list of 100 B, of librdkafka", "extend", "produce", unit="x broker"),
            Target("read Records of 100 B, of librdkafka", "read", "consume", unit="x broker"),
            Target(
                "another process has a record, p50, of librdkafka's time",
                "follow p50",
                "poll p50",
                at_most=True,
                unit="broker",
            ),
            Target("the broker's alone, p50, seconds", "poll p50", None, at_most=True, unit="s"),
        ),
        rounds=3,
        close=running.close,
    )
