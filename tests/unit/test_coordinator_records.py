"""Records of ``__transaction_state`` and ``__consumer_offsets``: Kafka's bytes, both ways."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from logstore.checkpoint import TopicPartition
from logstore.coordinator_record import partition_for, string_hash, type_id_of
from logstore.errors import InvalidRecordError
from logstore.file_dump import dump_file
from logstore.group_metadata import (
    GROUP_METADATA,
    RECORD_TYPES,
    OffsetCommitValue,
    decode_group_record,
    offset_commit_key,
    shown_group_record,
)
from logstore.protocol_message import Array, Struct
from logstore.records_builder import encode_batch
from logstore.transaction_log import (
    TransactionLogValue,
    TransactionState,
    decode_transaction_record,
    transaction_log_key,
)

# Spec 11, G13: made by Kafka's serialisers.
OFFSET_KEY = "00010002673100017400000003"
OFFSET_V3 = "0003000000000000002a0000000700016d0000018bcfe56800"
OFFSET_V1 = "0001000000000000002a00016d0000018bcfe56800ffffffffffffffff"
GROUP_KEY = "000200026731"
GROUP_V3 = (
    "00030008636f6e73756d657200000002000572616e676500026d310000018bcfe568000000000100026d31"
    "ffff00016300022f680000ea60000027100000000201020000000103"
)
TRANSACTION_KEY = "000000027478"
TRANSACTION_V0 = (
    "000000000000000004d200050000ea600100000001000174000000020000000000000001"
    "00000000000000020000000000000001"
)
NOW = 1_700_000_000_000


class TestPartition:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("", 0),
            ("a", 97),
            ("my-group", -1_906_497_762),
            ("polygenelubricants", -(2**31)),
            ("\U0001f600", 1_772_899),
        ],
    )
    def test_string_hash(self, text, expected):
        """Java's, over UTF-16 code units, with its sign."""
        assert expected == string_hash(text)

    def test_partition_for(self):
        """The absolute value counts, and of the smallest number it is 0, as in Kafka."""
        assert 12 == partition_for("my-group", 50)
        assert 0 == partition_for("polygenelubricants", 50)
        assert {0} == {partition_for(name, 1) for name in ("a", "b")}


class TestOffsetCommit:
    def test_golden_vectors(self):
        """Key, version 3, and version 1 of a position without expiry."""
        assert OFFSET_KEY == offset_commit_key("g1", "t", 3).hex()
        value = OffsetCommitValue(42, 7, "m", NOW)
        assert OFFSET_V3 == value.encode(3).hex()
        assert OFFSET_V1 == value.encode(1).hex()

    @pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
    def test_versions(self, version):
        """What a version has comes back; the rest has its default."""
        value = OffsetCommitValue(42, 7, "é", NOW, NOW + 5)
        record = decode_group_record(offset_commit_key("g", "t", 3), value.encode(version))
        expected = value._replace(
            leader_epoch=7 if version >= 3 else -1,
            expire_timestamp=NOW + 5 if version == 1 else -1,
        )
        assert expected == OffsetCommitValue.of(record)
        assert {"group": "g", "topic": "t", "partition": 3} == record.key

    def test_version_that_a_broker_takes(self):
        """4; and 1 where the position has an expiry of its own."""
        assert b"\0\4" == OffsetCommitValue(42).encode()[:2]
        assert b"\0\1" == OffsetCommitValue(42, expire_timestamp=5).encode()[:2]

    def test_tombstone(self):
        """No value: the position is gone."""
        record = decode_group_record(bytes.fromhex(OFFSET_KEY), None)
        assert OffsetCommitValue.of(record) is None
        assert "<DELETE>" == record.shown()["payload"]


class TestGroupRecords:
    def test_group_metadata(self):
        """Kafka's vector, and its own bytes again; odd member data is shown as it is."""
        record = decode_group_record(bytes.fromhex(GROUP_KEY), bytes.fromhex(GROUP_V3))
        assert GROUP_METADATA is record.record_type
        assert GROUP_V3 == GROUP_METADATA.value_bytes(record.value, 3).hex()
        (member,) = shown_group_record(record)["payload"]["data"]["members"]
        assert ("m1", "AQI=", "Aw==") == (
            member["memberId"],
            member["subscription"],
            member["assignment"],
        )

    def test_every_type_comes_back(self):
        """Each schema, in each of its versions, reads what it writes."""
        for record_type in RECORD_TYPES.values():
            key = {field.name: sample(field) for field in record_type.key.fields}
            for version in range(record_type.value.last_version + 1):
                value = {
                    field.name: sample(field) if field.is_in(version) else field.default
                    for field in record_type.value.fields
                }
                record = decode_group_record(
                    record_type.key_bytes(key), record_type.value_bytes(value, version)
                )
                assert (key, value) == (record.key, trimmed(record.value, value))
                json.dumps(shown_group_record(record))

    def test_unknown_type(self):
        """It is None: a newer broker's record is skipped, not refused."""
        assert decode_group_record(b"\0\x63rest", b"") is None
        assert 99 == type_id_of(b"\0\x63rest")

    @pytest.mark.parametrize("key", [None, b"", b"\0"])
    def test_no_type(self, key):
        """A key without a type is damage."""
        with pytest.raises(InvalidRecordError):
            decode_group_record(key, None)


def sample(field, kind=None):
    """A value of a field's type."""
    kind = kind or field.type
    if isinstance(kind, Array):
        return [sample(field, kind.item)] * 2
    if isinstance(kind, Struct):
        return {each.name: sample(each) for each in kind.fields}
    return {"string": "s", "bytes": b"\1", "uuid": UUID(int=1)}.get(kind, 5)


def trimmed(found, wanted):
    """What was read, without fields that a version of a nested struct does not have."""
    if isinstance(found, dict):
        return {name: trimmed(found[name], wanted[name]) for name in wanted} | {
            name: wanted[name]
            for name in wanted
            if found[name] in (None, -1) and wanted[name] in ("s", 5)
        }
    if isinstance(found, list) and found and isinstance(found[0], dict):
        return [trimmed(each, other) for each, other in zip(found, wanted, strict=True)]
    return found


class TestTransactionLog:
    VALUE = TransactionLogValue(
        1234,
        5,
        60_000,
        TransactionState.ONGOING,
        (TopicPartition("t", 0), TopicPartition("t", 1)),
        2,
        1,
    )

    def test_golden_vectors(self):
        """Key and version 0, and back."""
        assert TRANSACTION_KEY == transaction_log_key("tx").hex()
        assert TRANSACTION_V0 == self.VALUE.encode(0).hex()
        record = decode_transaction_record(
            bytes.fromhex(TRANSACTION_KEY), bytes.fromhex(TRANSACTION_V0)
        )
        assert self.VALUE == TransactionLogValue.of(record)
        assert {"transactionalId": "tx"} == record.key

    def test_flexible_version(self):
        """Tagged fields come back; an id that is Empty has no array of partitions at all."""
        value = self.VALUE._replace(
            state=TransactionState.PREPARE_COMMIT,
            previous_producer_id=7,
            next_producer_id=8,
            client_transaction_version=2,
        )
        record = decode_transaction_record(transaction_log_key("x"), value.encode())
        assert value == TransactionLogValue.of(record)

        empty = self.VALUE._replace(state=TransactionState.EMPTY, partitions=())
        record = decode_transaction_record(transaction_log_key("x"), empty.encode())
        assert record.value["transactionPartitions"] is None
        assert empty == TransactionLogValue.of(record)

    def test_tombstone_and_unknown(self):
        """An id that expired, a type and a state of later days."""
        record = decode_transaction_record(transaction_log_key("x"), None)
        assert TransactionLogValue.of(record) is None
        assert decode_transaction_record(b"\0\x01", None) is None
        state = 15  # Version, producer id, epoch and timeout are in front of it.
        odd = bytearray(self.VALUE.encode(0))
        odd[state + 1] = 99
        with pytest.raises(InvalidRecordError, match="status 99"):
            TransactionLogValue.of(decode_transaction_record(transaction_log_key("x"), bytes(odd)))

    def test_states(self):
        """Which state may follow which: spec 8.10, and an abort without a partition (KIP-890)."""
        rest = {"EMPTY", "COMPLETE_COMMIT", "COMPLETE_ABORT"}
        expected = {
            "EMPTY": rest,
            "ONGOING": rest | {"ONGOING"},
            "PREPARE_COMMIT": {"ONGOING"},
            "PREPARE_ABORT": rest | {"ONGOING", "PREPARE_EPOCH_FENCE"},
            "COMPLETE_COMMIT": {"PREPARE_COMMIT"},
            "COMPLETE_ABORT": {"PREPARE_ABORT"},
            "DEAD": rest,
            "PREPARE_EPOCH_FENCE": {"ONGOING"},
        }
        found = {
            after.name: {before.name for before in TransactionState if after.may_follow(before)}
            for after in TransactionState
        }
        assert expected == found


def test_dump_of_internal_topics(tmp_path):
    """A segment in such a directory shows what its records say, unknown types and damage too."""
    directory = tmp_path / "__consumer_offsets-3"
    directory.mkdir()
    path = directory / f"{0:020d}.log"
    records = [
        (None, NOW, bytes.fromhex(OFFSET_KEY), OffsetCommitValue(42, -1, "", NOW).encode(), ()),
        (None, NOW, b"\0\x63", b"", ()),
    ]
    batch = encode_batch([(None, NOW, b"\0\1", b"\0\4", ())], base_offset=2)
    path.write_bytes(encode_batch(records) + batch)
    found = dump_file(path)
    position, unknown = found.entries[0]["records"]
    assert {
        "offset": 0,
        "key": {"type": "1", "data": {"group": "g1", "topic": "t", "partition": 3}},
        "payload": {
            "version": "4",
            "data": {"offset": 42, "leaderEpoch": -1, "metadata": "", "commitTimestamp": NOW},
        },
    } == position
    assert {"offset": 1, "key": {"type": "99"}, "payload": "<UNKNOWN>"} == unknown
    (note,) = found.notes
    assert "OffsetCommitKey ends early" in note
    assert "records" not in found.entries[1]
