"""The broker that other tests judge by: it starts, keeps what it was given, and says why if not."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import kafka_broker
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from patience import PATIENCE_SECONDS, until

pytestmark = pytest.mark.skipif(
    kafka_broker.missing() is not None, reason=f"no broker: {kafka_broker.missing()}"
)


def test_it_keeps_its_records_from_one_start_to_the_next(tmp_path):
    """What was produced is there after a shutdown in order, and after a kill; ids stay."""
    with kafka_broker.kafka_broker(tmp_path, log_dirs=[tmp_path / "a", tmp_path / "b"]) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result()
        cluster_id = broker.cluster_id
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        producer.produce("orders", b"one", partition=1)
        assert 0 == producer.flush(PATIENCE_SECONDS)
    assert 2 == sum(1 for path in (*tmp_path.glob("a/orders-*"), *tmp_path.glob("b/orders-*")))

    with kafka_broker.kafka_broker(tmp_path, log_dirs=[tmp_path / "a", tmp_path / "b"]) as broker:
        assert cluster_id == broker.cluster_id
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
        consumer.assign([TopicPartition("orders", 1, 0)])
        assert [b"one"] == [
            found.value() for found in consumer.consume(1, timeout=PATIENCE_SECONDS)
        ]
        consumer.close()
        broker.kill()


def test_a_setting_that_it_refuses_is_told(tmp_path):
    """The error of a broker that does not start has what it said."""
    refused = {"log.cleaner.dedupe.buffer.size": 1}
    with (
        pytest.raises(kafka_broker.BrokerError, match=r"log\.cleaner\.dedupe\.buffer\.size"),
        kafka_broker.kafka_broker(tmp_path, refused),
    ):
        pytest.fail("it started")


def test_it_ends_with_the_test_that_started_it(tmp_path):
    """Also with one that is killed: nothing listens there any more."""
    program = Path(kafka_broker.ROOT) / "tests/compat/broker.py"
    command = [sys.executable, str(program), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        host, _, port = process.stdout.readline().strip().partition(":")
        assert listens(host, int(port))
        process.kill()
    until(lambda: not listens(host, int(port)))


def listens(host, port):
    """Whether somebody takes connections there."""
    try:
        socket.create_connection((host, port)).close()
    except ConnectionRefusedError:
        return False
    except ConnectionResetError:
        return True  # It is about to end.
    return True
