"""Producer snapshots: Kafka's bytes, what damage is refused, and the entries themselves."""

from __future__ import annotations

import os
import struct

import pytest

from logstore._native import crc32c
from logstore.errors import CorruptSnapshotError, StorageError
from logstore.producer_snapshot import (
    BatchMetadata,
    ProducerStateEntry,
    encode_snapshot,
    read_snapshot,
    snapshot_file_name,
    snapshot_offset_of,
    write_snapshot,
)

GOLDEN = bytes.fromhex(
    "000180e73e930000000200000000000004d20005000000110000000000000096000000030000018bcfe568000000"
    "0009000000000000008c00000000000000630000ffffffffffffffffffffffff000000000000018bcfe56801ffff"
    "ffffffffffffffffffff"
)
ENTRIES = [
    ProducerStateEntry(1234, 5, 9, 1700000000000, 140, (BatchMetadata(17, 150, 3, 1700000000000),)),
    ProducerStateEntry(99, 0, -1, 1700000000001),
]


@pytest.fixture(name="path")
def _path(tmp_path):
    return tmp_path / snapshot_file_name(151)


class TestFile:
    def test_bytes_are_kafkas(self, path):
        """Golden G11: two producers in 102 bytes, one of them with an open transaction."""
        assert 102 == len(GOLDEN)
        write_snapshot(path, ENTRIES)
        assert GOLDEN == path.read_bytes()
        assert ENTRIES == read_snapshot(path)

    def test_an_empty_snapshot_is_legal(self, path):
        """No producers: ten bytes."""
        write_snapshot(path, [], sync=False)
        assert 10 == os.path.getsize(path)
        assert [] == read_snapshot(path)

    def test_a_shorter_snapshot_replaces_a_longer_one(self, path):
        """No tail of the old contents is left."""
        write_snapshot(path, ENTRIES)
        write_snapshot(path, ENTRIES[1:])
        assert ENTRIES[1:] == read_snapshot(path)

    def test_only_the_newest_batch_is_kept(self, path):
        """Five batches go in, one comes out."""
        batches = tuple(BatchMetadata(n, 10 + n, 0, 5) for n in range(5))
        write_snapshot(path, [ProducerStateEntry(1, 0, -1, 5, None, batches)])
        assert batches[-1:] == read_snapshot(path)[0].batch_metadata

    def test_many_producers(self, path):
        """More than one step of reading."""
        entries = [ProducerStateEntry(number, 1, -1, 7) for number in range(40_000)]
        write_snapshot(path, entries, sync=False)
        assert entries == read_snapshot(path)

    @pytest.mark.parametrize("position", range(102))
    def test_every_damaged_byte_is_noticed(self, path, position):
        """The CRC covers everything that version and size do not."""
        damaged = bytearray(GOLDEN)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        with pytest.raises(CorruptSnapshotError) as caught:
            read_snapshot(path)
        assert str(path) == caught.value.path

    @pytest.mark.parametrize("size", [0, 1, 9, 10, 56, 101])
    def test_a_cut_file_is_noticed(self, path, size):
        """A file that a crash left too short."""
        path.write_bytes(GOLDEN[:size])
        with pytest.raises(CorruptSnapshotError):
            read_snapshot(path)

    def test_a_tail_is_noticed(self, path):
        """A file that is longer than it says."""
        path.write_bytes(GOLDEN + b"\0")
        with pytest.raises(CorruptSnapshotError):
            read_snapshot(path)

    @pytest.mark.parametrize("count", [-1, 2**31 - 1, 2**30])
    def test_an_impossible_count_allocates_nothing(self, path, count):
        """The number of entries is believed only if the file is that long."""
        body = struct.pack(">i", count)
        path.write_bytes(struct.pack(">hI", 1, crc32c(body)) + body)
        with pytest.raises(CorruptSnapshotError):
            read_snapshot(path)

    def test_a_huge_sparse_file_is_read_in_steps(self, path):
        """A large file of zeros fails its CRC without being in memory at once."""
        count = 1 << 21
        path.write_bytes(struct.pack(">hIi", 1, 5, count))
        os.truncate(path, 10 + 46 * count)
        with pytest.raises(CorruptSnapshotError, match="CRC"):
            read_snapshot(path)

    def test_a_missing_file_is_a_storage_error(self, path):
        """It is not corrupt."""
        with pytest.raises(StorageError):
            read_snapshot(path)

    def test_nonsense_behind_a_right_crc_does_not_crash(self, path):
        """Values that no log writes come out as they are."""
        body = struct.pack(">i", 1) + b"\xff" * 46
        path.write_bytes(struct.pack(">hI", 1, crc32c(body)) + body)
        entry = read_snapshot(path)[0]
        assert (-1, ()) == (entry.producer_id, entry.batch_metadata)
        body = struct.pack(">i", 1) + b"\x7f" * 46
        path.write_bytes(struct.pack(">hI", 1, crc32c(body)) + body)
        assert read_snapshot(path)[0].first_sequence >= 0


@pytest.mark.parametrize(
    ("name", "offset"),
    [
        ("00000000000000000000.snapshot", 0),
        ("00000000000000000042.snapshot", 42),
        ("09223372036854775807.snapshot", 2**63 - 1),
        ("09223372036854775808.snapshot", None),
        ("42.snapshot", None),
        ("0000000000000000004x.snapshot", None),
        ("00000000000000000042.snapshot.deleted", None),
        ("00000000000000000042.log", None),
        (".snapshot", None),
        ("٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠.snapshot", None),
    ],
)
def test_names(name, offset):
    """Twenty digits and the suffix, nothing else."""
    assert offset == snapshot_offset_of(name)
    if offset is not None:
        assert name == snapshot_file_name(offset)


class TestEntry:
    def test_five_batches_are_kept(self):
        """The sixth one drops the oldest; first and last tell of what is kept."""
        entry = ProducerStateEntry(1, 0)
        for number in range(6):
            entry.add_batch(0, 10 * number + 9, 100 + 10 * number + 9, 9, number)
        assert (10, 59) == (entry.first_sequence, entry.last_sequence)
        assert (110, 159, 9, 5) == (
            entry.first_data_offset,
            entry.last_data_offset,
            entry.last_offset_delta,
            entry.last_timestamp,
        )
        assert 5 == len(entry.batch_metadata)

    def test_a_new_epoch_forgets_the_batches(self):
        """Whether it comes with a batch or with a marker."""
        entry = ProducerStateEntry(1, 0)
        entry.add_batch(0, 5, 10, 5, 1)
        entry.add_batch(1, 0, 11, 0, 2)
        assert [BatchMetadata(0, 11, 0, 2)] == list(entry.batch_metadata)
        entry.end_transaction(2, 7, 3)
        assert (2, 7, 3, ()) == (
            entry.producer_epoch,
            entry.coordinator_epoch,
            entry.last_timestamp,
            entry.batch_metadata,
        )

    def test_sequence_range_of_a_batch_wraps(self):
        """A batch that crosses 2^31 - 1 begins before it."""
        batch = BatchMetadata(1, 10, 3, 0)
        assert (2**31 - 2, 7) == (batch.first_sequence, batch.first_offset)

    def test_an_unknown_producer(self):
        """Kafka's values for nothing."""
        entry = ProducerStateEntry(1)
        assert (True, -1, -1, -1, -1, 0) == (
            entry.is_empty,
            entry.first_sequence,
            entry.last_sequence,
            entry.first_data_offset,
            entry.last_data_offset,
            entry.last_offset_delta,
        )


def test_entries_without_number_fields(path):
    """What encode makes is what read takes, for each optional field."""
    for first_offset in (None, 0, 5):
        for batches in ((), (BatchMetadata(2**31 - 1, 0, 0, -1),)):
            entry = ProducerStateEntry(7, 3, 2, -1, first_offset, batches)
            path.write_bytes(encode_snapshot([entry]))
            assert [entry] == read_snapshot(path)
