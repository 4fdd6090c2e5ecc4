"""Settings of topics out of a controller's metadata: as it was read, and what a store takes."""

from __future__ import annotations

import base64
import json
import os
import shutil
from uuid import UUID

import pytest

from logstore.cluster_metadata import (
    ABORT_TRANSACTION,
    BEGIN_TRANSACTION,
    CONFIG,
    END_TRANSACTION,
    REMOVE_TOPIC,
    TOPIC,
    decode_value,
    read_cluster_metadata,
)
from logstore.errors import CorruptRecordError, InvalidRecordError, LogNotFoundError
from logstore.files import REAL_FILES
from logstore.metadata_record import SCHEMAS
from logstore.protocol_message import unsigned_varint
from logstore.records_builder import encode_batch
from logstore.store import open_log_store
from logstore.topic_configs import TOPICS_FILE

ORDERS, OTHER = UUID(int=7), UUID(int=8)


def text(topic_id):
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def value_of(record_type, **fields):
    schema = SCHEMAS.get(record_type)
    message = b"\0\0" if schema is None else schema.encode(fields, 0)
    return unsigned_varint(1) + unsigned_varint(record_type) + unsigned_varint(0) + message


def topic(name, topic_id):
    return value_of(TOPIC, name=name, topicId=topic_id)


def config(name, key, value, kind=2):
    return value_of(CONFIG, resourceType=kind, resourceName=name, name=key, value=value)


def batch(offset, *values):
    records = [(None, 1, None, value, ()) for value in values]
    return encode_batch(records, base_offset=offset)


class Metadata:
    """A metadata log that is written record by record."""

    def __init__(self, path):
        self.path = path
        path.mkdir(parents=True)
        self.end = 0

    def append(self, *values):
        with (self.path / f"{0:020}.log").open("ab") as file:
            file.write(batch(self.end, *values))
        self.end += len(values)

    def read(self):
        return read_cluster_metadata(os.fspath(self.path), REAL_FILES)


@pytest.fixture(name="metadata")
def _metadata(tmp_path):
    return Metadata(tmp_path / "data" / "__cluster_metadata-0")


class TestRead:
    def test_last_value_counts(self, metadata):
        """A null takes a setting back; other records are stepped over."""
        metadata.append(topic("orders", ORDERS), value_of(24 + 1), bytes([1, 12, 0]))
        metadata.append(config("orders", "retention.ms", "5"), config("orders", "segment.ms", "9"))
        metadata.append(config("orders", "retention.ms", "7"), config("orders", "segment.ms", None))
        metadata.append(config("", "log.retention.ms", "3", kind=4))
        found = metadata.read()
        assert {"orders": text(ORDERS)} == found.topics
        assert {"orders": {"retention.ms": "7"}} == found.topic_configs
        assert {"": {"log.retention.ms": "3"}} == found.broker_configs

    def test_topic_that_was_made_again(self, metadata):
        """What the first of the name had does not hold for the second."""
        metadata.append(topic("orders", ORDERS), config("orders", "retention.ms", "5"))
        metadata.append(value_of(REMOVE_TOPIC, topicId=ORDERS), topic("orders", OTHER))
        found = metadata.read()
        assert ({"orders": text(OTHER)}, {}) == (found.topics, found.topic_configs)

    def test_transactions(self, metadata):
        """One that was aborted, or that has not ended, says nothing."""
        setting = [config("orders", "retention.ms", str(n)) for n in range(3)]
        metadata.append(value_of(BEGIN_TRANSACTION), setting[0], value_of(END_TRANSACTION))
        metadata.append(value_of(BEGIN_TRANSACTION), setting[1], value_of(ABORT_TRANSACTION))
        metadata.append(value_of(BEGIN_TRANSACTION), setting[2])
        assert {"orders": {"retention.ms": "0"}} == metadata.read().topic_configs

    def test_damage(self, metadata):
        """A byte that is wrong: what was meant is not known."""
        metadata.append(config("orders", "retention.ms", "500"))
        path = metadata.path / f"{0:020}.log"
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptRecordError):
            metadata.read()

    def test_missing_part(self, metadata):
        """The beginning, or the end of a snapshot."""
        (metadata.path / f"{5:020}.log").write_bytes(batch(5, topic("orders", ORDERS)))
        with pytest.raises(CorruptRecordError, match="from offset 0 to 5 is missing"):
            metadata.read()
        snapshot = metadata.path / f"{5:020}-{1:010}.checkpoint"
        snapshot.write_bytes(batch(0, topic("other", OTHER)))
        with pytest.raises(CorruptRecordError, match="no end"):
            metadata.read()

    def test_newer_broker(self):
        """It is not guessed what a version says that is not known."""
        with pytest.raises(InvalidRecordError, match="frame version 2"):
            decode_value(b"\2\2\0")
        with pytest.raises(InvalidRecordError, match="version 1 of TopicRecord"):
            decode_value(b"\1\2\1")


def found_on_disk(path, **topics):
    """Leave the directories of topics with these ids, as a broker does."""
    with open_log_store(path) as store:
        for name in topics:
            store.create_topic(name)[0].append(b"v")
    (path / "logstore-topics").unlink()
    for name, topic_id in topics.items():
        (path / f"{name}-0" / "partition.metadata").write_text(
            f"version: 0\ntopic_id: {text(topic_id)}"
        )


class TestImport:
    def test_held_topics_get_their_settings(self, metadata, tmp_path):
        """For good; those that stay held say why."""
        path = tmp_path / "data"
        ids = {name: UUID(int=n) for n, name in enumerate(("a", "b", "c", "d", "e", "mine"), 100)}
        found_on_disk(path, **ids)
        for name in ("a", "b", "c", "e", "mine"):
            metadata.append(topic(name, OTHER if name == "c" else ids[name]))
        metadata.append(config("a", "retention.ms", "86400000"), config("a", "segment.ms", "9"))
        metadata.append(config("b", "segment.ms", "9"))
        metadata.append(config("c", "retention.ms", "1"), config("mine", "retention.ms", "1"))
        metadata.append(config("e", "retention.ms", "1"))
        metadata.append(config("e", "remote.storage.enable", "true"))
        with open_log_store(path) as store:
            store.alter_topic("mine", {"retention.ms": -1})
            before = json.loads((path / TOPICS_FILE).read_bytes())["generation"]
            found = store.import_configs()
            # Each write is of the whole file: one for all of them.
            assert before + 1 == json.loads((path / TOPICS_FILE).read_bytes())["generation"]
            assert {"a", "b"} == found.imported.keys()
            assert {"b", "c", "d", "e"} == found.held.keys()
            assert "default" in found.held["b"]
            assert "another of this name" in found.held["c"]
            assert "does not have it" in found.held["d"]
            assert "remote.storage.enable" in found.held["e"]
        with open_log_store(path) as store:
            assert (86_400_000, 9) == (
                store["a"].config.retention_ms,
                store["a"].config.segment_ms,
            )
            assert (True, 9) == (store["b"].is_held, store["b"].config.segment_ms)
            assert -1 == store["mine"].config.retention_ms
            assert ["b", "c", "d", "e"] == [each.name for each in store.topics() if each.is_held]

    def test_policy_of_the_broker(self, metadata, tmp_path):
        """A topic that was compacted because of it is not deleted by its retention.ms."""
        path = tmp_path / "data"
        found_on_disk(path, a=ORDERS, b=OTHER)
        metadata.append(topic("a", ORDERS), config("a", "retention.ms", "1"))
        metadata.append(topic("b", OTHER), config("b", "cleanup.policy", "delete"))
        metadata.append(config("1", "log.cleanup.policy", "compact", kind=4))
        with open_log_store(path) as store:
            found = store.import_configs()
            assert ({"a"}, {"b"}) == (found.held.keys(), found.imported.keys())
            assert "the broker's: compact" in found.held["a"]
            assert (True, -1) == (store["a"].is_held, store["a"].config.retention_ms)

    def test_damage_changes_nothing(self, metadata, tmp_path):
        """Everything stays held."""
        path = tmp_path / "data"
        found_on_disk(path, orders=ORDERS)
        metadata.append(topic("orders", ORDERS), config("orders", "retention.ms", "1"))
        with (metadata.path / f"{0:020}.log").open("r+b") as file:
            file.seek(30)
            file.write(b"damaged")
        with open_log_store(path) as store:
            with pytest.raises(CorruptRecordError):
                store.import_configs()
            assert store["orders"].is_held

    def test_from_elsewhere(self, metadata, tmp_path):
        """A controller's disk may be another one."""
        metadata.append(topic("orders", ORDERS), config("orders", "cleanup.policy", "compact"))
        elsewhere = tmp_path / "controller"
        elsewhere.mkdir()
        shutil.move(metadata.path, elsewhere / "__cluster_metadata-0")
        path = tmp_path / "data"
        shutil.rmtree(path)
        found_on_disk(path, orders=ORDERS)
        with open_log_store(path) as store:
            with pytest.raises(LogNotFoundError):
                store.import_configs()
            store.import_configs(elsewhere)
            assert store["orders"].config.compact
            assert not store["orders"].is_held
