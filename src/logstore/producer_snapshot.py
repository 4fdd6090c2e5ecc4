"""
What a log remembers of one producer, and the snapshot files that hold it for all producers.

``<offset>.snapshot`` is the state of all batches below ``offset``::

    pos  size  type  field
    0    2     i16   version, 1
    2    4     u32   CRC-32C over everything from byte 6 on
    6    4     i32   number of entries
    10   46*n        entries

An entry::

    pos  size  type  field
    0    8     i64   producer id
    8    2     i16   producer epoch
    10   4     i32   last sequence, -1: no data batch
    14   8     i64   last offset, -1: no data batch
    22   4     i32   offset delta: last offset - first offset of the last batch
    26   8     i64   timestamp
    34   4     i32   coordinator epoch of the last marker, -1 none
    38   8     i64   first offset of the open transaction, -1 none

All numbers are big-endian; entries come in any order. Only the newest batch of a producer is kept:
after a restart an older one is no longer recognised as a duplicate.

Source: Kafka ``ProducerStateEntry``, ``BatchMetadata``, ``ProducerStateManager.readSnapshot``;
spec 2.8.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from logstore._native import crc32c
from logstore.errors import CorruptSnapshotError
from logstore.files import REAL_FILES, FileHandle, Files, Path
from logstore.records_builder import INT32_MAX
from logstore.timestamp_type import NO_TIMESTAMP

HEADER: Final = struct.Struct(">hIi")
ENTRY: Final = struct.Struct(">qhiqiqiq")
HEADER_BYTES: Final = 10
ENTRY_BYTES: Final = 46
CRC_START: Final = 6
CURRENT_VERSION: Final = 1
STEP_ENTRIES: Final = 16384  # Entries read at once: 750 KiB.

assert HEADER.size == HEADER_BYTES
assert ENTRY.size == ENTRY_BYTES

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
BATCHES_RETAINED: Final = 5

SNAPSHOT_SUFFIX: Final = ".snapshot"
OFFSET_DIGITS: Final = 20


class BatchMetadata(NamedTuple):
    """
    A batch of a producer, as far as duplicates are recognised by it.

    Source: Kafka ``BatchMetadata``.
    """

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """Sequence number of the first record; 2^31 - 1 for one record without, as in Kafka."""
        return (self.last_sequence - self.offset_delta) & INT32_MAX

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return self.last_offset - self.offset_delta


class SequencedBatch(Protocol):
    """What is compared to recognise a duplicate."""

    @property
    def producer_epoch(self) -> int:
        """Epoch of its producer."""
        ...

    @property
    def base_sequence(self) -> int:
        """Sequence number of the first record."""
        ...

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record."""
        ...


@dataclass(slots=True)
class ProducerStateEntry:
    """
    What the log remembers of one producer.

    Attributes:
        producer_id: Whose entry it is.
        producer_epoch: Of its last batch or marker, -1 if nothing is known.
        coordinator_epoch: Of its last marker, -1 if there was none.
        last_timestamp: Of its last batch or marker, -1 if there was none.
        current_txn_first_offset: Where its open transaction begins, or None.
        batch_metadata: Its last batches of this epoch, at most five, oldest first.

    Source: Kafka ``ProducerStateEntry``.
    """

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    coordinator_epoch: int = -1
    last_timestamp: int = NO_TIMESTAMP
    current_txn_first_offset: int | None = None
    batch_metadata: tuple[BatchMetadata, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no batch is remembered."""
        return not self.batch_metadata

    @property
    def first_sequence(self) -> int:
        """First sequence of the oldest batch, -1 if there is none."""
        return self.batch_metadata[0].first_sequence if self.batch_metadata else NO_SEQUENCE

    @property
    def first_data_offset(self) -> int:
        """First offset of the oldest batch, -1 if there is none."""
        return self.batch_metadata[0].first_offset if self.batch_metadata else -1

    @property
    def last_sequence(self) -> int:
        """Last sequence of the newest batch, -1 if there is none."""
        return self.batch_metadata[-1].last_sequence if self.batch_metadata else NO_SEQUENCE

    @property
    def last_data_offset(self) -> int:
        """Last offset of the newest batch, -1 if there is none."""
        return self.batch_metadata[-1].last_offset if self.batch_metadata else -1

    @property
    def last_offset_delta(self) -> int:
        """Offset delta of the newest batch, 0 if there is none."""
        return self.batch_metadata[-1].offset_delta if self.batch_metadata else 0

    def add_batch(
        self,
        producer_epoch: int,
        last_sequence: int,
        last_offset: int,
        offset_delta: int,
        timestamp: int,
    ) -> None:
        """Remember a batch; a new epoch forgets those before, a sixth one the oldest."""
        self.maybe_update_producer_epoch(producer_epoch)
        batch = BatchMetadata(last_sequence, last_offset, offset_delta, timestamp)
        self.batch_metadata = (*self.batch_metadata, batch)[-BATCHES_RETAINED:]
        self.last_timestamp = timestamp

    def maybe_update_producer_epoch(self, producer_epoch: int) -> bool:
        """Take over an epoch and return whether it is another one, which forgets the batches."""
        if self.producer_epoch == producer_epoch:
            return False
        self.batch_metadata = ()
        self.producer_epoch = producer_epoch
        return True

    def update(self, following: ProducerStateEntry) -> None:
        """Take over what an append has prepared: its batches come behind those that are here."""
        self.maybe_update_producer_epoch(following.producer_epoch)
        self.batch_metadata = (*self.batch_metadata, *following.batch_metadata)[-BATCHES_RETAINED:]
        self.coordinator_epoch = following.coordinator_epoch
        self.current_txn_first_offset = following.current_txn_first_offset
        self.last_timestamp = following.last_timestamp

    def end_transaction(
        self, producer_epoch: int, coordinator_epoch: int, last_timestamp: int
    ) -> None:
        """Take over what a marker says; no transaction is open afterwards."""
        self.maybe_update_producer_epoch(producer_epoch)
        self.coordinator_epoch = coordinator_epoch
        self.current_txn_first_offset = None
        self.last_timestamp = last_timestamp

    def find_duplicate_batch(self, batch: SequencedBatch) -> BatchMetadata | None:
        """Return the remembered batch that ``batch`` repeats, None if it is new."""
        if batch.producer_epoch != self.producer_epoch:
            return None
        return self.batch_with_sequence_range(batch.base_sequence, batch.last_sequence)

    def batch_with_sequence_range(
        self, first_sequence: int, last_sequence: int
    ) -> BatchMetadata | None:
        """Return the remembered batch with exactly these sequences."""
        for batch in self.batch_metadata:
            if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
                return batch
        return None


# ---- files ---------------------------------------------------------------------------------------


def snapshot_file_name(offset: int) -> str:
    """Return the name of the snapshot at an offset."""
    assert offset >= 0
    return f"{offset:0{OFFSET_DIGITS}d}{SNAPSHOT_SUFFIX}"


def snapshot_offset_of(name: str) -> int | None:
    """Return the offset of a snapshot's file name, None if it is none."""
    stem = name.removesuffix(SNAPSHOT_SUFFIX)
    if stem == name or len(stem) != OFFSET_DIGITS or not stem.isdecimal() or not stem.isascii():
        return None
    offset = int(stem)
    return offset if offset < 2**63 else None


def _in_kafkas_order(entries: list[ProducerStateEntry]) -> list[ProducerStateEntry]:
    """
    Return entries as Kafka writes them: in the order of its hash map's buckets.

    Any order is valid; with the same one the files are the same, byte for byte. (Kafka's table also
    remembers how many producers there once were. Then the orders differ.)

    Source: Java ``HashMap``, ``Long.hashCode``.
    """
    if len(entries) <= 1:
        return entries
    bucket_count = 16
    while len(entries) > bucket_count * 3 // 4:
        bucket_count *= 2

    def bucket(entry: ProducerStateEntry) -> int:
        folded = (entry.producer_id ^ (entry.producer_id >> 32)) & 0xFFFF_FFFF
        return (folded ^ (folded >> 16)) & (bucket_count - 1)

    return sorted(entries, key=bucket)  # Stable: within a bucket the first one known is first.


def encode_snapshot(entries: Iterable[ProducerStateEntry]) -> bytes:
    """Return the contents of a snapshot file."""
    given = list(entries)
    if not given:
        return NO_ENTRIES
    body = bytearray()
    count = 0
    for entry in _in_kafkas_order(given):
        first_offset = entry.current_txn_first_offset
        body += ENTRY.pack(
            entry.producer_id,
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_data_offset,
            entry.last_offset_delta,
            entry.last_timestamp,
            entry.coordinator_epoch,
            -1 if first_offset is None else first_offset,
        )
        count += 1
    return _with_header(count, body)


def _with_header(count: int, body: bytes | bytearray) -> bytes:
    data = bytearray(HEADER.pack(CURRENT_VERSION, 0, count)) + body
    struct.pack_into(">I", data, 2, crc32c(memoryview(data)[CRC_START:]))
    return bytes(data)


NO_ENTRIES: Final = _with_header(0, b"")


def write_snapshot(
    path: Path,
    entries: Iterable[ProducerStateEntry],
    *,
    sync: bool = True,
    files: Files = REAL_FILES,
) -> None:
    """
    Write a snapshot file; one that is there is overwritten.

    **Durability**: with ``sync`` the contents survive a power loss on return. A crash in between
    leaves a file that fails its CRC.
    """
    # Truncating: a shorter one over a longer one would leave a tail (spec 2.8).
    files.put_file(path, encode_snapshot(entries), sync=sync)


def read_snapshot(path: Path, *, files: Files = REAL_FILES) -> list[ProducerStateEntry]:
    """
    Return the entries of a snapshot file.

    The CRC is checked before any entry is believed; a file that is not exactly as long as it says
    is not read at all.

    Raises:
        CorruptSnapshotError: Version, size or CRC is wrong.
        StorageError: The file cannot be read.
    """
    handle = FileHandle(files, path, os.O_RDONLY)
    try:
        with handle.lease() as fd:
            return _read_entries(files, fd, os.fspath(path))
    finally:
        handle.close()


def _read_entries(files: Files, fd: int, path: str) -> list[ProducerStateEntry]:
    header = files.pread(fd, HEADER_BYTES, 0)
    if len(header) < HEADER_BYTES:
        raise _corrupt(path, f"{len(header)} bytes are too few")
    version, crc, count = HEADER.unpack(header)
    if version != CURRENT_VERSION:
        raise _corrupt(path, f"version {version} is unknown")
    size_bytes = files.size(fd)
    if count < 0 or size_bytes != HEADER_BYTES + ENTRY_BYTES * count:
        raise _corrupt(path, f"{size_bytes} bytes do not hold {count} entries")

    computed = crc32c(header[CRC_START:])
    for position, step in _steps(count):
        data = files.pread(fd, step, position)
        if len(data) < step:
            raise _corrupt(path, "the file became shorter while it was read")
        computed = crc32c(data, computed)
    if computed != crc:
        raise _corrupt(path, f"CRC-32C is {computed:08x}, not {crc:08x}")

    entries: list[ProducerStateEntry] = []
    for position, step in _steps(count):
        data = files.pread(fd, step, position)
        entries += map(_entry, ENTRY.iter_unpack(data[: len(data) - len(data) % ENTRY_BYTES]))
    return entries


def _steps(count: int) -> Iterable[tuple[int, int]]:
    for first in range(0, count, STEP_ENTRIES):
        step = min(STEP_ENTRIES, count - first)
        yield HEADER_BYTES + first * ENTRY_BYTES, step * ENTRY_BYTES


def _entry(fields: tuple[int, int, int, int, int, int, int, int]) -> ProducerStateEntry:
    (
        producer_id,
        producer_epoch,
        last_sequence,
        last_offset,
        offset_delta,
        timestamp,
        coordinator_epoch,
        current_txn_first_offset,
    ) = fields
    batches: tuple[BatchMetadata, ...] = ()
    if last_offset >= 0:
        batches = (BatchMetadata(last_sequence, last_offset, offset_delta, timestamp),)
    return ProducerStateEntry(
        producer_id,
        producer_epoch,
        coordinator_epoch,
        timestamp,
        current_txn_first_offset if current_txn_first_offset >= 0 else None,
        batches,
    )


def _corrupt(path: str, what: str) -> CorruptSnapshotError:
    return CorruptSnapshotError(
        f"producer snapshot {path}: {what}; an older one, or the log itself, takes its place",
        path=path,
    )
