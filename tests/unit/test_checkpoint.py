"""Checkpoint files: Kafka's text byte for byte, and what of it is refused."""

from __future__ import annotations

import os
import uuid

import pytest

from logstore.checkpoint import (
    CleanShutdownFile,
    EpochEntry,
    LeaderEpochCheckpointFile,
    OffsetCheckpointFile,
    PartitionMetadata,
    PartitionMetadataFile,
    TopicPartition,
    random_topic_id,
    text_of_uuid,
    topic_partition_of,
    uuid_of,
)
from logstore.errors import CorruptCheckpointError, InconsistentTopicIdError, StorageError

TOPIC_ID = "ASNFZ4mrze-BI0VniavN7w"


def contents(path):
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def write(path, text):
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)


class TestOffsetCheckpoint:
    def test_bytes_are_kafkas(self, tmp_path):
        """Golden G12: the text, written and read, with the temporary file gone."""
        file = OffsetCheckpointFile(tmp_path / "recovery-point-offset-checkpoint")
        offsets = {("t", 0): 151, ("other.topic-1", 2): 7}
        file.write(offsets)
        assert "0\n2\nt 0 151\nother.topic-1 2 7\n" == contents(file.path)
        assert offsets == file.read()
        assert ["recovery-point-offset-checkpoint"] == os.listdir(tmp_path)

    def test_a_missing_file_has_no_entries(self, tmp_path):
        """Reading makes no file; `create` makes an empty one, as Kafka does."""
        file = OffsetCheckpointFile(tmp_path / "c")
        assert {} == file.read()
        assert not file.exists()
        OffsetCheckpointFile(file.path, create=True)
        assert ("", {}) == (contents(file.path), file.read())
        file.write({("t", 0): 1})
        file.create()
        assert {("t", 0): 1} == file.read()

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("", {}),
            ("0\n", {}),
            ("0\n0\n", {}),
            ("0\n1\nt 0 5", {("t", 0): 5}),
            ("0\r\n1\r\nt\t 0  +5 \r\n", {("t", 0): 5}),
            ("0\n2\nt 0 5\nt 0 6\n", {("t", 0): 6}),
            ("0\n1\nt 0 -5\n", {("t", 0): -5}),
            ("0\n1\nt 0 00000000000000000000000000005\n", {("t", 0): 5}),
        ],
    )
    def test_accepted(self, tmp_path, text, expected):
        """White space between fields is free, numbers are Java's, the last of two lines wins."""
        write(tmp_path / "c", text)
        assert expected == OffsetCheckpointFile(tmp_path / "c").read()

    @pytest.mark.parametrize(
        "text",
        [
            "1\n0\n",
            "x\n0\n",
            "0 \n0\n",
            "\n",
            "0\nx\n",
            "0\n1\n",
            "0\n0\nt 0 5\n",
            "0\n1\nt 0 5\n\n",
            "0\n1\n t 0 5\n",
            "0\n1\nt 0\n",
            "0\n1\nt 0 5 6\n",
            "0\n1\nt x 5\n",
            "0\n1\nt 0 5.0\n",
            "0\n1\nt 0 ٥\n",
            "0\n1\nt 0 9223372036854775808\n",
            "0\n1\nt 2147483648 5\n",
            "0\n1\nt 0 " + "9" * 5000 + "\n",
            "0\n-1\n",
            "\0" * 40,
        ],
    )
    def test_refused(self, tmp_path, text):
        """Anything else is corrupt, and the error names the file."""
        write(tmp_path / "c", text)
        with pytest.raises(CorruptCheckpointError) as caught:
            OffsetCheckpointFile(tmp_path / "c").read()
        assert str(tmp_path / "c") == caught.value.path

    def test_bytes_that_are_not_text(self, tmp_path):
        """Damage to a topic's name is not an exception of another kind."""
        (tmp_path / "c").write_bytes(b"0\n1\nt\xff 0 5\n")
        assert {("t\ufffd", 0): 5} == OffsetCheckpointFile(tmp_path / "c").read()

    def test_a_huge_file_is_refused_before_it_is_read(self, tmp_path):
        """A file that can be no checkpoint is not loaded."""
        with open(tmp_path / "c", "wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(CorruptCheckpointError, match="too many"):
            OffsetCheckpointFile(tmp_path / "c").read()

    def test_other_failures_are_storage_errors(self, tmp_path):
        """A directory where the file should be is no missing file."""
        (tmp_path / "c").mkdir()
        with pytest.raises(StorageError):
            OffsetCheckpointFile(tmp_path / "c").read()


class TestLeaderEpochCheckpoint:
    def test_bytes_are_kafkas(self, tmp_path):
        """Golden G12."""
        file = LeaderEpochCheckpointFile(tmp_path / "leader-epoch-checkpoint")
        file.write([EpochEntry(0, 0), EpochEntry(3, 100)])
        assert "0\n2\n0 0\n3 100\n" == contents(file.path)
        assert [(0, 0), (3, 100)] == file.read()

    @pytest.mark.parametrize("text", ["0\n1\n0\n", "0\n1\nx 0\n", "0\n1\n0 -1\n", "0\n1\n-1 0\n"])
    def test_refused(self, tmp_path, text):
        """Malformed and negative entries are corrupt; Kafka would not start."""
        write(tmp_path / "c", text)
        with pytest.raises(CorruptCheckpointError):
            LeaderEpochCheckpointFile(tmp_path / "c").read()

    def test_truncation_after_the_directory_is_gone(self, tmp_path):
        """Only the background write ignores a directory that was renamed meanwhile."""
        file = LeaderEpochCheckpointFile(tmp_path / "gone" / "c")
        file.write_for_truncation([EpochEntry(0, 0)])
        with pytest.raises(StorageError):
            file.write([EpochEntry(0, 0)])


class TestPartitionMetadata:
    def test_bytes_are_kafkas(self, tmp_path):
        """Golden G12: no newline at the end."""
        file = PartitionMetadataFile(tmp_path / "partition.metadata")
        file.write(TOPIC_ID)
        assert f"version: 0\ntopic_id: {TOPIC_ID}" == contents(file.path)
        assert PartitionMetadata(0, TOPIC_ID) == file.read()

    def test_recorded_then_flushed(self, tmp_path):
        """A recorded id is written by the next flush, once; another one is refused."""
        file = PartitionMetadataFile(tmp_path / "partition.metadata")
        file.maybe_flush()
        assert not file.exists()
        file.record(TOPIC_ID)
        file.record(TOPIC_ID)
        assert TOPIC_ID == file.recorded_topic_id
        with pytest.raises(InconsistentTopicIdError):
            file.record(random_topic_id())
        file.maybe_flush()
        assert file.recorded_topic_id is None
        assert TOPIC_ID == file.read().topic_id
        file.delete()
        file.delete()
        with pytest.raises(StorageError):
            file.read()

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "version: 0",
            "version: x\ntopic_id: " + TOPIC_ID,
            "version: -1\ntopic_id: " + TOPIC_ID,
            "version:0\ntopic_id: " + TOPIC_ID,
            "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
            "version: 0\ntopic_id: short",
            "version: 0\ntopic_id: !!!!!!!!!!!!!!!!!!!!!!",
            "version: 0\ntopic_id:",
        ],
    )
    def test_refused(self, tmp_path, text):
        """Malformed lines and the zero id are corrupt."""
        write(tmp_path / "partition.metadata", text)
        with pytest.raises(CorruptCheckpointError):
            PartitionMetadataFile(tmp_path / "partition.metadata").read()

    def test_a_later_version_is_read(self, tmp_path):
        """So that a downgrade works."""
        write(tmp_path / "p", f"version: 1\ntopic_id: {TOPIC_ID}\nmore\n")
        assert PartitionMetadata(1, TOPIC_ID) == PartitionMetadataFile(tmp_path / "p").read()


class TestCleanShutdown:
    def test_bytes_are_kafkas(self, tmp_path):
        """Golden G12."""
        file = CleanShutdownFile(tmp_path)
        assert (False, None) == (file.exists(), file.read())
        file.write(42)
        assert '{"version":0,"brokerEpoch":42}' == contents(tmp_path / ".kafka_cleanshutdown")
        assert (True, 42) == (file.exists(), file.read())
        file.delete()
        file.delete()
        assert not file.exists()

    @pytest.mark.parametrize(
        "text", ["", "{}", "[1]", "null", '{"version":1,"brokerEpoch":4}', "x"]
    )
    def test_only_existence_counts(self, tmp_path, text):
        """A body without a broker epoch is no error: old brokers wrote an empty file."""
        write(tmp_path / ".kafka_cleanshutdown", text)
        file = CleanShutdownFile(tmp_path)
        assert (True, None) == (file.exists(), file.read())


class TestNames:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("orders-0", ("orders", 0)),
            ("a-b-12", ("a-b", 12)),
            ("t--1", ("t-", 1)),
            ("orders-0.0123456789abcdef0123456789abcdef-delete", ("orders", 0)),
            ("a.b-3.0123456789abcdef0123456789abcdef-future", ("a.b", 3)),
            ("orders-0.0123456789abcdef0123456789abcdef-stray", ("orders", 0)),
            ("orders-delete", None),
            ("orders", None),
            ("-0", None),
            ("orders-", None),
            ("orders-x", None),
            ("orders-2147483648", None),
            ("", None),
        ],
    )
    def test_topic_partition_of(self, name, expected):
        """The last dash divides; directories set aside keep their partition."""
        assert expected == topic_partition_of(name)

    def test_default(self):
        """The answer for a name that is none can be chosen."""
        assert TopicPartition("", 0) == topic_partition_of("x", ("", 0))
        assert "orders-0" == str(topic_partition_of("orders-0"))

    def test_topic_ids(self):
        """22 characters of base64 and back; random ones are never reserved."""
        value = uuid.UUID("0123456789abcdef8123456789abcdef")
        assert TOPIC_ID == text_of_uuid(value)
        assert value == uuid_of(TOPIC_ID) == uuid_of(TOPIC_ID + "==")
        for text in ("", "x", TOPIC_ID + "AAAA", "ASNFZ4mrze+BI0VniavN7w"):
            with pytest.raises(ValueError):
                uuid_of(text)
        for _ in range(50):
            assert not random_topic_id().startswith("-")
