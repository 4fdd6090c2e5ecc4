"""A controller's records, to bytes and back, and as Kafka's tool shows them."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from logstore.cli import main
from logstore.control_record import ControlRecordType, LeaderChange, SnapshotHeader
from logstore.errors import InvalidRecordError
from logstore.metadata_record import SCHEMAS, decode_metadata_record, encode_metadata_record
from logstore.records_builder import control_batch, encode_batch

TOPIC_ID = UUID(int=7)
TOPIC_TEXT = "AAAAAAAAAAAAAAAAAAAABw"
# Of a broker 4.1: its first feature level, and a partition that lost its leader.
FEATURE = bytes.fromhex("010c00116d657461646174612e76657273696f6e001b00")
CHANGE = b"".join(
    [
        bytes.fromhex("01050200000001"),  # Frame, type and version; partition 1.
        TOPIC_ID.bytes,
        bytes.fromhex("04000101"),  # Four tagged fields: no replica in sync,
        bytes.fromhex("0104ffffffff"),  # no leader,
        bytes.fromhex("06050200000001"),  # and who may be one.
        bytes.fromhex("07050200000001"),
    ]
)


def shown(value):
    return decode_metadata_record(value).shown()


class TestKafkasBytes:
    def test_feature_level(self):
        """A plain record."""
        assert {
            "type": "FEATURE_LEVEL_RECORD",
            "version": 0,
            "data": {"name": "metadata.version", "featureLevel": 27},
        } == shown(FEATURE)
        fields = {"name": "metadata.version", "featureLevel": 27}
        assert encode_metadata_record(12, 0, fields) == FEATURE

    def test_partition_change(self):
        """Tagged fields are told where they are not at their default: null, or -2 of a leader."""
        assert {
            "partitionId": 1,
            "topicId": TOPIC_TEXT,
            "isr": [],
            "leader": -1,
            "eligibleLeaderReplicas": [1],
            "lastKnownElr": [1],
        } == shown(CHANGE)["data"]
        found = decode_metadata_record(CHANGE)
        assert encode_metadata_record(5, 2, found.values) == CHANGE


class TestEveryType:
    @pytest.mark.parametrize("record_type", sorted(SCHEMAS))
    def test_there_and_back(self, record_type):
        """In its newest version, with something in every field."""
        schema = SCHEMAS[record_type]
        values = {field.name: sample(field.type) for field in schema.fields}
        encoded = encode_metadata_record(record_type, schema.last_version, values)
        found = decode_metadata_record(encoded)
        assert (record_type, schema.last_version, values) == tuple(found)
        assert json.loads(json.dumps(found.shown()))["type"].endswith("_RECORD")


def sample(kind):
    """A value of a field's type that is not its default."""
    if isinstance(kind, str):
        return {
            "string": "é",
            "bytes": b"\xff",
            "uuid": TOPIC_ID,
            "bool": True,
            "float64": 0.5,
        }.get(kind, 3)
    if hasattr(kind, "item"):
        return [sample(kind.item)] * 2
    return {field.name: sample(field.type) for field in kind.fields}


class TestRefusals:
    def test_newer_controller(self):
        """A type that is not known is none; of a version nothing is guessed."""
        assert decode_metadata_record(b"\1\x7f\0\0") is None
        with pytest.raises(InvalidRecordError, match="version 1 of TopicRecord"):
            decode_metadata_record(b"\1\2\1\0")
        with pytest.raises(InvalidRecordError, match="frame version 2"):
            decode_metadata_record(b"\2\2\0\0")

    @pytest.mark.parametrize("size", range(len(CHANGE)))
    def test_cut_short(self, size):
        """Wherever it ends."""
        with pytest.raises(InvalidRecordError, match=r"ends early|no room"):
            decode_metadata_record(CHANGE[:size])


class TestDump:
    def test_log(self, tmp_path, capsys):
        """Records and control records of the log; a newer type is told as unknown."""
        path = tmp_path / "__cluster_metadata-0"
        path.mkdir()
        leader = LeaderChange(1, ((1, UUID(int=0)),), ((1, UUID(int=0)),))
        batches = [
            control_batch(
                ControlRecordType.LEADER_CHANGE, leader.value(), timestamp=1, leader_epoch=1
            ),
            encode_batch([(None, 1, None, v, ()) for v in (FEATURE, b"\1\x7f\0\0")], base_offset=1),
        ]
        (path / f"{0:020}.log").write_bytes(b"".join(batches))
        first, second = self.dumped(path / f"{0:020}.log", capsys)
        assert [
            {
                "offset": 0,
                "controlType": "LEADER_CHANGE",
                "leaderId": 1,
                "voters": [1],
                "grantingVoters": [1],
            }
        ] == first["records"]
        assert ["FEATURE_LEVEL_RECORD", "<UNKNOWN>"] == [
            found["payload"] if found["payload"] == "<UNKNOWN>" else found["payload"]["type"]
            for found in second["records"]
        ]

    def test_snapshot(self, tmp_path, capsys):
        """What a controller begins with, which lies in no partition."""
        path = tmp_path / "bootstrap.checkpoint"
        header = control_batch(
            ControlRecordType.SNAPSHOT_HEADER,
            SnapshotHeader(5).value(),
            timestamp=1,
            leader_epoch=0,
        )
        path.write_bytes(header + encode_batch([(None, 1, None, FEATURE, ())], base_offset=1))
        first, second = self.dumped(path, capsys)
        assert 5 == first["records"][0]["lastContainedLogTimestamp"]
        assert 27 == second["records"][0]["payload"]["data"]["featureLevel"]

    @staticmethod
    def dumped(path, capsys):
        assert 0 == main(["dump", "--json", str(path)])
        return map(json.loads, capsys.readouterr().out.splitlines())
