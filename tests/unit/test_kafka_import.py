"""Imports that end before there is a broker: its own tests are in tests/compat."""

from __future__ import annotations

import socket

import pytest

from logstore.errors import ConfigError, KafkaImportError
from logstore.kafka_import import KafkaImporter
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
