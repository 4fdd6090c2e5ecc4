"""Imports that end before there is a broker: its own tests are in tests/compat."""

from __future__ import annotations

import socket

import pytest

from logstore.checkpoint import TopicPartition
from logstore.errors import ConfigError, KafkaImportError
from logstore.kafka_import import Copied, KafkaImporter
from logstore.testing import open_log_store

pytest.importorskip("confluent_kafka", reason="needs the extra [kafka]")


@pytest.fixture(name="store")
def _store(tmp_path):
    with open_log_store(tmp_path) as store:
        yield store


def test_setting_that_the_client_refuses(store):
    """One line with its name, as for the consumer."""
    with pytest.raises(ConfigError, match=r'No such configuration property: "nonsense"'):
        KafkaImporter(store, "127.0.0.1:9092", settings={"nonsense": "1"})


def test_nobody_answers(store, capfd):
    """The error says what the client met; the client itself prints nothing."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # And does not listen.
        importer = KafkaImporter(store, f"127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(KafkaImportError, match=r"cannot be asked: .*Connection refused"):
            importer.topics(timeout_seconds=1.0)
    assert ("", "") == capfd.readouterr()


def test_what_does_not_read_as_it_was_copied(store):
    """Is named with the offset where that part begins; earlier parts were read back."""
    log = store.create_topic("orders", partitions=1)[0]
    copied = Copied(log, TopicPartition("orders", 0), 0)
    for offset, value in enumerate([b"a", b"b"]):
        log.append(value, timestamp=5)
        copied.add([(offset, 5, None, value, ())])
    copied.verify()
    log.append(b"c", timestamp=5)
    copied.add([(2, 5, None, b"C", ())])
    with pytest.raises(KafkaImportError, match=r"orders-0 does not read as .* from offset 2 on"):
        copied.verify()
    assert 3 == copied.record_count
