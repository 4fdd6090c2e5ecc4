"""What a controller begins with, and the topics of a store in it."""

from __future__ import annotations

import json
import shutil

import pytest

import logstore
from logstore.bootstrap_metadata import CONFIG, FEATURE_LEVEL, PARTITION, PRODUCER_IDS, TOPIC
from logstore.cli import main
from logstore.control_record import ControlRecordType, SnapshotFooter, SnapshotHeader
from logstore.errors import CorruptRecordError, InvalidRecordError, LogExistsError, OfflineError
from logstore.file_dump import dump_file
from logstore.meta_properties import read_meta_properties
from logstore.metadata_record import encode_metadata_record
from logstore.producer_ids import FIRST_PRODUCER_ID
from logstore.records_builder import control_batch, encode_batch


def write_bootstrap(path, level=27, *, is_whole=True, extra=()):
    """Write what `kafka-storage format` does."""
    levels = {"metadata.version": level, "group.version": 1}
    values = [
        encode_metadata_record(FEATURE_LEVEL, 0, {"name": name, "featureLevel": each})
        for name, each in levels.items()
    ] + list(extra)
    parts = [
        control_batch(
            ControlRecordType.SNAPSHOT_HEADER,
            SnapshotHeader(5).value(),
            timestamp=1,
            leader_epoch=0,
        ),
        encode_batch([(None, 1, None, value, ()) for value in values], base_offset=1),
    ]
    if is_whole:
        parts.append(
            control_batch(
                ControlRecordType.SNAPSHOT_FOOTER, SnapshotFooter().value(), timestamp=1,
                leader_epoch=0, base_offset=1 + len(values),
            )
        )  # fmt: skip
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(parts))


@pytest.fixture(name="bootstrap")
def _bootstrap(tmp_path):
    path = tmp_path / "metadata" / "bootstrap.checkpoint"
    write_bootstrap(path)
    return path


@pytest.fixture(name="data")
def _data(tmp_path):
    """A store of a node, with a topic that has settings, and one that has none."""
    path = tmp_path / "data"
    with logstore.open_store(path, config={"node.id": 7}) as store:
        store.create_topic(
            "orders",
            partitions=2,
            config={
                "retention.ms": 5,
                "segment.bytes": 4096,
                "logstore.retention.timestamp.type": "LogAppendTime",
            },
        )
        store.create_topic("users").append(b"u")
    return path


def records(path):
    """What a file says, by type of record."""
    found = {}
    entries = dump_file(path).entries
    for entry in entries[1:-1]:
        for record in entry["records"]:
            payload = record["payload"]
            found.setdefault(payload["type"].removesuffix("_RECORD"), []).append(payload["data"])
    kinds = [entry["records"][0]["controlType"] for entry in (entries[0], entries[-1])]
    assert ["SNAPSHOT_HEADER", "SNAPSHOT_FOOTER"] == kinds
    offsets = [offset for each in entries for offset in (each["baseOffset"], each["lastOffset"])]
    assert offsets == sorted(offsets)
    return found


def export(data, bootstrap):
    with logstore.open_store(data) as store:
        return store.export_metadata(bootstrap)


class TestExport:
    def test_topics(self, data, bootstrap):
        """With their ids, in the directory that they are in; the node leads and is in sync."""
        export(data, bootstrap)
        found = records(bootstrap)
        with logstore.open_store(data, mode="r") as store:
            ids = {name: store[name].topic_id for name in store}
        assert ids == {each["name"]: each["topicId"] for each in found["TOPIC"]}
        assert [("orders", 0), ("orders", 1), ("users", 0)] == [
            (next(name for name in ids if ids[name] == each["topicId"]), each["partitionId"])
            for each in found["PARTITION"]
        ]
        directory_id = read_meta_properties(str(data)).directory_id
        for each in found["PARTITION"]:
            assert [7] == each["replicas"] == each["isr"]
            assert (7, 0, [directory_id]) == (
                each["leader"],
                each["leaderEpoch"],
                each["directories"],
            )

    def test_settings(self, data, bootstrap):
        """Retention of every topic: a broker's default is seven days. None that is not Kafka's."""
        told = export(data, bootstrap).configs
        unlimited = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        assert {
            "orders": unlimited | {"retention.ms": "5", "segment.bytes": "4096"},
            "users": unlimited,
        } == told
        written = {
            (each["resourceName"], each["name"]): each["value"]
            for each in records(bootstrap)["CONFIG"]
        }
        assert written == {
            (topic, name): value for topic in told for name, value in told[topic].items()
        }

    def test_what_was_there_stays(self, data, bootstrap):
        """Features and users do; a second export replaces the first one."""
        user = {"name": "u", "mechanism": 1, "salt": b"s", "storedKey": b"", "serverKey": b""}
        broker = {"resourceType": 4, "resourceName": "", "name": "a", "value": "b"}
        write_bootstrap(
            bootstrap,
            extra=[
                encode_metadata_record(11, 0, user | {"iterations": 4096}),
                encode_metadata_record(CONFIG, 0, broker),
            ],
        )
        export(data, bootstrap)
        first = records(bootstrap)
        with logstore.open_store(data) as store:
            store.delete_topic("users")
            store.export_metadata(bootstrap)
        second = records(bootstrap)
        for found in (first, second):
            assert 2 == len(found["FEATURE_LEVEL"])
            assert 1 == len(found["USER_SCRAM_CREDENTIAL"])
            assert 1 == sum(4 == each["resourceType"] for each in found["CONFIG"])
        assert (2, 1) == (len(first["TOPIC"]), len(second["TOPIC"]))

    def test_producer_ids(self, data, bootstrap):
        """The controller goes on above those of other brokers; a store's own are far away."""
        assert 0 == export(data, bootstrap).next_producer_id
        assert "PRODUCER_IDS" not in records(bootstrap)
        batch = encode_batch(
            [(None, 1, None, b"v", ())], producer_id=41, producer_epoch=0, base_sequence=0
        )
        with logstore.open_store(data) as store:
            store["users", 0].append_batches(batch, leader_epoch=3)
            with store.transaction("t") as transaction:
                transaction.append("users", b"v")
                assert transaction.producer.producer_id >= FIRST_PRODUCER_ID
            assert 42 == store.export_metadata(bootstrap).next_producer_id
        found = records(bootstrap)
        assert [{"brokerId": 7, "brokerEpoch": -1, "nextProducerId": 42}] == found["PRODUCER_IDS"]
        assert {0, 3} == {each["leaderEpoch"] for each in found["PARTITION"]}

    def test_many_partitions(self, tmp_path, bootstrap):
        """More records than a batch has."""
        with logstore.open_store(tmp_path / "many") as store:
            for number in range(4):
                store.create_topic(f"t{number}", partitions=300)
            store.export_metadata(bootstrap)
        assert 1200 == len(records(bootstrap)["PARTITION"])


def refused(data, bootstrap, error, match):
    """An export raises this, and leaves the file as it is."""
    content = bootstrap.read_bytes()
    with logstore.open_store(data) as store:
        with pytest.raises(error, match=match):
            store.export_metadata(bootstrap)
        store.errors.clear()
    assert content == bootstrap.read_bytes()


class TestRefusals:
    def test_a_controller_that_has_run(self, data, bootstrap):
        """It would not read the file; an empty log is none."""
        log = bootstrap.parent / "__cluster_metadata-0" / f"{0:020}.log"
        log.parent.mkdir()
        log.write_bytes(b"")
        export(data, bootstrap)
        log.write_bytes(b"x")
        refused(data, bootstrap, LogExistsError, "copy into them")

    def test_an_old_release(self, data, bootstrap):
        """Its partitions have no directories."""
        write_bootstrap(bootstrap, level=16)
        refused(data, bootstrap, InvalidRecordError, r"level 16 of metadata\.version")

    def test_a_newer_release(self, data, bootstrap):
        """What its record says is not known."""
        write_bootstrap(bootstrap, extra=[b"\1\x7f\0\0"])
        refused(data, bootstrap, InvalidRecordError, "a newer Kafka")

    def test_damage(self, data, bootstrap):
        """A file that is cut short, or altered."""
        write_bootstrap(bootstrap, is_whole=False)
        refused(data, bootstrap, CorruptRecordError, "kafka-storage format")
        content = bytearray(bootstrap.read_bytes())
        content[150] ^= 1
        bootstrap.write_bytes(content)
        refused(data, bootstrap, CorruptRecordError, "CRC")

    def test_a_missing_partition(self, data, bootstrap):
        """A broker would begin it anew."""
        shutil.rmtree(data / "orders-1")
        refused(data, bootstrap, OfflineError, "orders-1 is missing")


def test_command(data, bootstrap, capsys):
    """A line for each topic; a file that is not there is told."""
    arguments = ["handover", str(data), "--bootstrap", str(bootstrap)]
    assert 0 == main(arguments)
    first, _ = capsys.readouterr().out.splitlines()
    assert first.startswith("orders  2 partitions  cleanup.policy=delete  retention.bytes=-1")
    assert 0 == main([*arguments, "--json"])
    assert ["orders", "users"] == [
        json.loads(line)["topic"] for line in capsys.readouterr().out.splitlines()
    ]
    assert 2 == main(["handover", str(data), "--bootstrap", str(bootstrap.with_name("none"))])
    assert "none" in capsys.readouterr().err


def test_record_types():
    """The numbers that Kafka has for them."""
    from logstore.metadata_record import SCHEMAS

    assert ["TopicRecord", "PartitionRecord", "ConfigRecord", "ProducerIdsRecord"] == [
        SCHEMAS[each].name for each in (TOPIC, PARTITION, CONFIG, PRODUCER_IDS)
    ]
