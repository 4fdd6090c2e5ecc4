"""Topics of a real cluster, copied with their offsets."""

from __future__ import annotations

import json

import kafka_broker
import pytest

import logstore
from logstore import cli, kafka_import
from logstore.errors import KafkaImportError
from logstore.kafka_import import KafkaImporter

confluent_kafka = pytest.importorskip("confluent_kafka", reason="needs the extra [kafka]")
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402

pytestmark = pytest.mark.skipif(
    kafka_broker.missing() is not None, reason=f"no broker: {kafka_broker.missing()}"
)


@pytest.fixture(scope="module", name="broker")
def _broker(tmp_path_factory):
    with kafka_broker.kafka_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture(name="client")
def _client(broker):
    return {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}


def create(client, name, partitions, config=None):
    admin = AdminClient(client)
    admin.create_topics([NewTopic(name, partitions, 1, config=config or {})])[name].result()


def delete_records(client, topic, before):
    place = confluent_kafka.TopicPartition(topic, 0, before)
    admin = AdminClient(client)
    admin.delete_records([place])[place].result()


def records_of(store, topic, partition):
    return [
        (record.offset, record.timestamp, record.key, record.value, list(record.headers))
        for record in store[topic, partition].read("earliest")
    ]


def consumed(client, topic, partition, start=0):
    """What another client reads there, committed only."""
    consumer = confluent_kafka.Consumer(
        {**client, "group.id": "judge", "enable.partition.eof": True}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, start)])
    found = []
    while True:
        for message in consumer.consume(500, timeout=0.2):
            if message.error() is not None:
                consumer.close()
                return found, message.offset()
            found.append(
                (
                    message.offset(),
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    message.headers() or [],
                )
            )


def test_records_keep_all_they_have(broker, client, tmp_path, capsys):
    """Two partitions, headers, nulls, a transaction that was aborted; then more, and a group."""
    create(client, "orders", 2, {"retention.ms": "-1", "compression.type": "zstd"})
    producer = confluent_kafka.Producer({**client, "transactional.id": "t"})
    producer.init_transactions()
    for end in (producer.commit_transaction, producer.abort_transaction) * 2:
        producer.begin_transaction()
        for number in range(50):
            producer.produce(
                "orders",
                b"%d" % number if number % 3 else None,
                b"key" if number % 2 else None,
                number % 2,
                timestamp=1_000_000 + number,
                headers=[("a", b"1"), ("a", None)] if number % 5 == 0 else None,
            )
        end()
    expected = [consumed(client, "orders", partition) for partition in range(2)]
    assert [50, 50] == [len(records) for records, _ in expected]

    command = ["import-kafka", broker.bootstrap_servers, "orders", "--to", str(tmp_path), "--json"]
    assert 0 == cli.main(command)
    told = json.loads(capsys.readouterr().out)
    assert [50, 50] == [each["records"] for each in told["partitions"]]
    assert {"retention.ms": "-1", "compression.type": "zstd"} == told["config"]
    with logstore.open_store(tmp_path, mode="r") as store:
        for partition, (records, end) in enumerate(expected):
            assert records == records_of(store, "orders", partition)
            assert end == store["orders", partition].log_end_offset
            assert [] == list(store["orders", partition].check())

    plain = confluent_kafka.Producer(client)
    plain.produce("orders", b"more", partition=1)
    plain.flush(30)
    group = confluent_kafka.Consumer({**client, "group.id": "billing"})
    places = [confluent_kafka.TopicPartition("orders", 1, 42)]
    group.commit(offsets=places, asynchronous=False)
    group.close()
    assert 0 == cli.main([*command, "--group", "billing"])
    told, positions = map(json.loads, capsys.readouterr().out.splitlines())
    assert [0, 1] == [each["records"] for each in told["partitions"]]
    assert {"group": "billing", "positions": {"orders-1": 42}} == positions
    with logstore.open_store(tmp_path, mode="r") as store:
        assert consumed(client, "orders", 1)[0] == records_of(store, "orders", 1)
        assert 42 == store.positions("billing")["orders", 1]


def test_deleted_beginning_and_broker_times(client, tmp_path):
    """A log that begins late begins there; times that the broker set stay its own."""
    create(client, "late", 1, {"message.timestamp.type": "LogAppendTime"})
    producer = confluent_kafka.Producer({**client, "linger.ms": 0})
    for number in range(20):
        producer.produce("late", b"%d" % number, timestamp=5)
        producer.flush(30)
    delete_records(client, "late", 7)
    with logstore.open_store(tmp_path) as store:
        importer = KafkaImporter(store, client["bootstrap.servers"])
        assert 13 == importer.offset_count("late")
        (partition,) = importer.import_topic("late").partitions
        assert (7, 20, 13) == (
            partition.start_offset,
            partition.end_offset,
            partition.record_count,
        )
        assert consumed(client, "late", 0, 7)[0] == records_of(store, "late", 0)
        assert store["late", 0][7].timestamp > 5

        delete_records(client, "late", 20)
        producer.produce("late", b"20")
        producer.flush(30)
        delete_records(client, "late", 21)
        producer.produce("late", b"21")
        producer.flush(30)
        (partition,) = importer.import_topic("late").partitions
        assert range(20, 21) == partition.missing
        assert 22 == store["late", 0].log_end_offset


def test_interrupted_between_parts(client, tmp_path, monkeypatch):
    """It goes on where it was; what is there was read back, part by part."""
    monkeypatch.setattr(kafka_import, "CONSUMED_MAX", 10)
    monkeypatch.setattr(kafka_import, "VERIFIED_MAX", 25)
    create(client, "long", 1)
    producer = confluent_kafka.Producer(client)
    for number in range(100):
        producer.produce("long", b"%d" % number)
    producer.flush(30)
    done = 0

    def interrupt(count):
        nonlocal done
        done += count
        if done >= 60:
            raise KeyboardInterrupt

    with logstore.open_store(tmp_path) as store, pytest.raises(KeyboardInterrupt):
        KafkaImporter(store, client["bootstrap.servers"]).import_topic("long", interrupt)
    with logstore.open_store(tmp_path) as store:
        importer = KafkaImporter(store, client["bootstrap.servers"])
        (partition,) = importer.import_topic("long").partitions
        assert (done, 100, 100 - done) == partition[1:4]
        assert consumed(client, "long", 0)[0] == records_of(store, "long", 0)


def test_another_topic_of_the_same_name(client, tmp_path):
    """It is not mixed with what is there; and a topic that is not there is named."""
    create(client, "again", 1)
    producer = confluent_kafka.Producer(client)
    producer.produce("again", b"cluster")
    producer.flush(30)
    with logstore.open_store(tmp_path) as store:
        importer = KafkaImporter(store, client["bootstrap.servers"])
        store.create_topic("again", partitions=1)
        store["again", 0].append(b"mine")
        with pytest.raises(KafkaImportError, match="another record at offset 0"):
            importer.import_topic("again")
        store["again", 0].append(b"mine")
        with pytest.raises(KafkaImportError, match="ends at 2 in the store and at 1"):
            importer.import_topic("again")
        with pytest.raises(KafkaImportError, match="no topic nothing"):
            importer.import_topic("nothing")
        create(client, "wide", 2)
        store.create_topic("wide", partitions=1)
        with pytest.raises(KafkaImportError, match="2 in the cluster"):
            importer.import_topic("wide")
