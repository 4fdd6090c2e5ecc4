"""
A broker's disk is taken over, written to, and given back; and once more.

What the broker's clients wrote and committed, and what was written here, is judged by the other
side each time: by consumers of a real broker, and by the store.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import kafka_broker
import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from patience import PATIENCE_SECONDS
from staged_records import staged

import logstore
from logstore.cli import main
from logstore.file_dump import dump_file

pytestmark = pytest.mark.skipif(
    kafka_broker.missing() is not None, reason=f"no broker: {kafka_broker.missing()}"
)

ROOT = Path(__file__).resolve().parents[2]
METADATA = "__cluster_metadata-0"
PARTITIONS = 3
CODECS = ("gzip", "snappy", "lz4", "zstd")
TOPICS = {
    "orders": (PARTITIONS, {}),
    "latest": (1, {"cleanup.policy": "compact", "segment.bytes": "1048576"}),
    **{f"packed-{codec}": (1, {"retention.ms": "-1"}) for codec in CODECS},
}
# Nothing is cleaned behind the test's back: it compares all that was written.
BROKER = {"log.cleaner.enable": "false"}
AUDITED = 7  # A position of a group.
LASTS = {b"last %d" % number for number in range(4)}


def client(broker, **settings):
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "log_level": 0,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }


@contextlib.contextmanager
def consumer_of(broker, **settings):
    consumer = Consumer(client(broker, **settings))
    try:
        yield consumer
    finally:
        consumer.close()


def served(broker):
    """What a ``read_committed`` consumer is given, by topic and partition: offset, key, value."""
    records = defaultdict(list)
    settings = {"group_id": "judge", "enable_partition_eof": True, "enable_auto_commit": False}
    with consumer_of(broker, isolation_level="read_committed", **settings) as consumer:
        places = [
            (topic, number) for topic, (count, _) in TOPICS.items() for number in range(count)
        ]
        consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in places])
        ended = set()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(ended) < len(places):
            assert time.monotonic() < deadline, f"{set(places) - ended} have no end"
            for message in consumer.consume(500, timeout=1):
                place = (message.topic(), message.partition())
                if message.error() is None:
                    records[place].append((message.offset(), message.key(), message.value()))
                else:
                    assert KafkaError._PARTITION_EOF == message.error().code(), message.error()
                    ended.add(place)
    return records


def stored(store):
    """The same, as the store reads it."""
    return {
        (topic, number): found
        for topic, (count, _) in TOPICS.items()
        for number in range(count)
        if (found := [(each.offset, each.key, each.value) for each in store[topic, number]])
    }


def committed_positions(broker, group):
    """What a group has committed, as the broker's coordinator says."""
    admin = AdminClient(client(broker))
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result(PATIENCE_SECONDS).topic_partitions
    return {(each.topic, each.partition): each.offset for each in found}


def produce(producer, topic, *values, key=None, partition=-1):
    for value in values:
        producer.produce(topic, value, key=key, partition=partition)


def first_value(broker, topic, offset):
    """The first value that a ``read_committed`` consumer finds in partition 0 from there on."""
    settings = {"group_id": "judge", "isolation_level": "read_committed"}
    with consumer_of(broker, **settings) as consumer:
        consumer.assign([TopicPartition(topic, 0, offset)])
        (message,) = consumer.consume(1, timeout=PATIENCE_SECONDS)
        assert message.error() is None
        return message.value()


def create_topics(broker, topics):
    admin = AdminClient(client(broker))
    created = admin.create_topics(
        [NewTopic(name, count, 1, config=config) for name, (count, config) in topics.items()]
    )
    for future in created.values():
        future.result(PATIENCE_SECONDS)


def write_with_clients(broker):
    """Plain, compressed, compacted and transactional records, and a group's position."""
    create_topics(broker, TOPICS)
    for codec in CODECS:
        packer = Producer(client(broker, compression_type=codec, linger_ms=50))
        produce(packer, f"packed-{codec}", *(b"%d " % number * 50 for number in range(40)))
        assert 0 == packer.flush(PATIENCE_SECONDS)

    producer = Producer(client(broker, enable_idempotence=True))
    for number in range(60):
        produce(producer, "orders", b"order %d" % number, key=b"customer %d" % (number % 7))
        produce(producer, "latest", b"state %d" % number, key=b"item %d" % (number % 5))
    assert 0 == producer.flush(PATIENCE_SECONDS)

    till = Producer(client(broker, transactional_id="till"))
    till.init_transactions(PATIENCE_SECONDS)
    for name, end in (("paid", "commit"), ("void", "abort"), ("also paid", "commit")):
        till.begin_transaction()
        for number in range(PARTITIONS):
            produce(till, "orders", name.encode(), partition=number)
        getattr(till, f"{end}_transaction")(PATIENCE_SECONDS)

    with consumer_of(broker, group_id="billing", enable_auto_commit=False) as consumer:
        places = [TopicPartition("orders", number, number + 1) for number in range(PARTITIONS)]
        consumer.commit(offsets=places, asynchronous=False)


def write_with_store(store, first_position=None):
    """The same kinds of records from here, a position within a transaction; what is next."""
    for codec in CODECS:
        store[f"packed-{codec}", 0].extend([b"ours " * 50] * 20, compression=codec)
    for number in range(5):
        store["latest"].append(None if number == 4 else b"ours", key=b"item %d" % number)
    store["orders"].append(b"ours", key=b"customer 1")
    for name in ("first", "second"):
        with store.transaction("till") as transaction:  # The one that a client had.
            for number in range(PARTITIONS):
                transaction.append(("orders", number), f"our {name}".encode())
            position = store.positions("billing").get(("orders", 0), first_position)
            transaction.commit_positions("billing", {("orders", 0): position + 1})
    with contextlib.suppress(KeyError), store.transaction("our own") as transaction:
        transaction.append(("orders", 1), b"never")
        transaction.commit_positions("billing", {("orders", 1): 0})
        raise KeyError
    with store.transaction("once") as transaction:
        transaction.append(("orders", 0), b"once")
    store.positions("audit").commit({("latest", 0): AUDITED})
    # A sink's commit, and what an attempt of a task has left, which a broker does not look at.
    store.commit_staged("sink", 0, [staged(store, "sink", 0, {("orders", 2): [b"staged"]})])
    staged(store, "sink", 1, {("orders", 2): [b"never"]})


def write_more_with_clients(broker):
    """A client with a transactional id that was used here, and one without."""
    for name in ("till", "our own"):
        producer = Producer(client(broker, transactional_id=name))
        producer.init_transactions(PATIENCE_SECONDS)
        producer.begin_transaction()
        produce(producer, "orders", f"{name} again".encode(), partition=2)
        producer.commit_transaction(PATIENCE_SECONDS)
    # The broker has not heard of the producer ids that were given out here: were one the same as
    # one of its own, it would take these for repetitions, and acknowledge without writing them.
    for value in sorted(LASTS):
        producer = Producer(client(broker, enable_idempotence=True))
        produce(producer, "orders", value, partition=0)
        assert 0 == producer.flush(PATIENCE_SECONDS)


def run_page(directory):
    """Run the commands and the program of the page about it; the disk is ``directory``/disk."""
    page = (ROOT / "docs/taking-over-a-brokers-disk.md").read_text()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    (code,) = re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    command = f"{shlex.quote(sys.executable)} -m logstore "
    code = re.sub(r"\blogstore ", lambda _: command, code)

    def output(*command):
        return subprocess.check_output(command, cwd=directory, env=environment, text=True)

    assert output("bash", "-euc", code)
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    printed = output(sys.executable, "-c", code).splitlines()
    assert re.findall(r"print\(.*\)  # (.*)", code) == printed


def values_of(records, topic):
    return [value for place, found in records.items() if place[0] == topic for *_, value in found]


def tool_lines(paths, *options):
    """What Kafka's own tool prints of files; it fails at one that it cannot read."""
    files = ",".join(map(str, paths))
    printed = kafka_broker.run_kafka("kafka.tools.DumpLogSegments", *options, "--files", files)
    return printed.splitlines()


def check_with_kafkas_tool(data):
    """It reads every file of every partition, and has nothing to complain of."""
    suffixes = {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    partitions = [path for path in data.iterdir() if path.is_dir()]
    files = sorted(
        file
        for path in partitions
        if path.name != METADATA
        for file in path.iterdir()
        if file.suffix in suffixes
    )
    lines = tool_lines(files, "--deep-iteration", "--skip-record-metadata")
    assert len(files) == sum(line.startswith("Dumping ") for line in lines)
    complaints = ("mismatch", "isvalid: false", "corrupt", "invalid", "found timestamp")
    assert [] == [line for line in lines if any(word in line.lower() for word in complaints)]


def check_dump_of_metadata(data):
    """Every record of the controller, as Kafka's tool shows it."""
    files = [data / METADATA / "00000000000000000000.log", data / "bootstrap.checkpoint"]
    payload = re.compile(r"\| offset: (\d+) .* payload: (.*)")
    wanted = [
        (int(found[1]), json.loads(found[2]))
        for line in tool_lines(files, "--cluster-metadata-decoder")
        if (found := payload.fullmatch(line))
    ]
    assert len(wanted) > 20
    assert wanted == [
        (record["offset"], record["payload"])
        for file in files
        for entry in dump_file(file).entries
        if not entry["isControl"]
        for record in entry["records"]
    ]


@pytest.mark.timeout(600)
def test_a_brokers_disk_there_and_back(tmp_path):
    """Nothing is lost or altered on the way to us, back to the broker, and to us again."""
    data = tmp_path / "disk"
    with kafka_broker.kafka_broker(tmp_path, BROKER, log_dirs=[data]) as broker:
        write_with_clients(broker)
        before = served(broker)
        assert {("orders", number): number + 1 for number in range(PARTITIONS)} == (
            committed_positions(broker, "billing")
        )
    assert b"paid" in values_of(before, "orders")
    assert b"void" not in values_of(before, "orders")
    shutil.copytree(data, tmp_path / "page" / "disk")
    run_page(tmp_path / "page")

    with logstore.open_store(data) as store:
        assert [] == list(store.check())
        assert before == stored(store)
        imported = store.import_configs().imported
        assert {"latest", *(f"packed-{codec}" for codec in CODECS)} <= imported.keys()
        assert not store["latest"].is_held
        assert store["orders"].is_held
        write_with_store(store)
        store.create_topic("unknown").append(b"kept")
        between = stored(store)
        assert not store.errors
    for place, records in before.items():
        assert records == between[place][: len(records)]
    ours = values_of(between, "orders")
    assert [1, PARTITIONS, PARTITIONS] == [
        ours.count(value) for value in (b"ours", b"our first", b"our second")
    ]

    with kafka_broker.kafka_broker(tmp_path, BROKER, log_dirs=[data]) as broker:
        assert between == served(broker)
        assert {("orders", 0): 3, ("orders", 1): 2, ("orders", 2): 3} == (
            committed_positions(broker, "billing")
        )
        assert {("latest", 0): AUDITED} == committed_positions(broker, "audit")
        write_more_with_clients(broker)
        after = served(broker)
        # A group goes on where it was told to here.
        with consumer_of(broker, group_id="audit", auto_offset_reset="error") as consumer:
            consumer.subscribe(["latest"])
            assert AUDITED == consumer.consume(1, timeout=PATIENCE_SECONDS)[0].offset()
        create_topics(broker, {"unknown": (1, {})})
        # It crashes, with a transaction open: that is aborted, and the logs are recovered.
        late = Producer(client(broker, transactional_id="late"))
        late.init_transactions(PATIENCE_SECONDS)
        late.begin_transaction()
        produce(late, "orders", b"never", partition=0)
        assert 0 == late.flush(PATIENCE_SECONDS)
        broker.kill()
    assert {b"till again", b"our own again", *LASTS} <= set(values_of(after, "orders"))
    assert " ERROR " not in broker.log_path.read_text()
    assert 1 == len(list(data.glob(".logstore-staged-sink.1.*")))
    # Its controller does not know the topic of the notes: it has set it aside, and not changed it.
    (stray,) = data.glob("__logstore_sink_commits-0.*-stray")
    stray.rename(data / "__logstore_sink_commits-0")

    with logstore.open_store(data) as store:
        assert [("sink", "orders", 0)] == [each[:3] for each in store.sinks()]
        assert [] == list(store.check())
        assert after == stored(store)
        assert not store["latest"].is_held
        with store.transaction("till") as transaction:
            transaction.append(("orders", 0), b"ours again")
        values = store["orders", 0].read_values(after["orders", 0][-1][0])
        assert b"ours again" == list(values)[-1]
        assert not store.errors
    check_with_kafkas_tool(data)
    check_dump_of_metadata(data)

    # What the controller did not know was set aside; there is a way in.
    (stray,) = data.glob("unknown-0.*-stray")
    assert 0 == main(["copy", str(stray), str(data / "unknown-0")])
    with kafka_broker.kafka_broker(tmp_path, BROKER, log_dirs=[data]) as broker:
        last = after["orders", 0][-1][0] + 1
        assert b"kept" == first_value(broker, "unknown", 0)
        assert b"ours again" == first_value(broker, "orders", last)


@pytest.mark.timeout(600)
def test_a_store_that_was_made_here(tmp_path):
    """A broker that has never run serves it, with positions and transactional ids; and back."""
    data, metadata = tmp_path / "data", tmp_path / "metadata"
    few = {"transaction.state.log.num.partitions": 3, "offsets.topic.num.partitions": 3}
    with logstore.open_store(data, config=few) as store:
        for name, (count, config) in TOPICS.items():
            store.create_topic(name, partitions=count, config=config)
        for number in range(3):
            store["latest"].append(b"%d" % number, key=b"the same")
        store["latest", 0].roll()
        write_with_store(store, first_position=0)
        store["latest", 0].compact()
        before = stored(store)
        topic_ids = {name: store[name].topic_id for name in TOPICS}
    assert [b"2", b"ours"] == values_of(before, "latest")[:2]
    check_with_kafkas_tool(data)

    settings = BROKER | {"metadata.log.dir": str(metadata)}
    kafka_broker.format_directories(tmp_path, settings, log_dirs=[data])
    bootstrap = metadata / "bootstrap.checkpoint"
    for _ in range(2):  # The second time it is written anew.
        assert 0 == main(["handover", str(data), "--bootstrap", str(bootstrap)])

    with kafka_broker.kafka_broker(tmp_path, settings, log_dirs=[data]) as broker:
        assert before == served(broker)
        assert {("orders", 0): 2} == committed_positions(broker, "billing")
        assert {("latest", 0): AUDITED} == committed_positions(broker, "audit")
        write_more_with_clients(broker)
        after = served(broker)
        described = AdminClient(client(broker)).list_topics(timeout=PATIENCE_SECONDS).topics
        assert topic_ids.keys() <= described.keys()
    assert LASTS <= set(values_of(after, "orders"))
    assert " ERROR " not in broker.log_path.read_text()

    with logstore.open_store(data) as store:
        assert [] == list(store.check())
        assert after == stored(store)
        assert topic_ids == {name: store[name].topic_id for name in TOPICS}
        assert not store.errors
        with pytest.raises(logstore.LogExistsError, match="create the topics there"):
            store.export_metadata(bootstrap)
