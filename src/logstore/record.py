"""
Record batches, format 2: parse, verify, build. It is the format on disk and on the wire.

The header of a batch, big-endian:

======  ====  =======  ================================================================
offset  size  type     field
======  ====  =======  ================================================================
0       8     int64    base offset
8       4     int32    length: bytes behind this field
12      4     int32    partition leader epoch, -1 unknown
16      1     int8     magic: 2
17      4     uint32   CRC-32C of all bytes from 21 on
21      2     int16    attributes, below
23      4     int32    last offset delta
27      8     int64    base timestamp: the first record's, or the delete horizon
35      8     int64    max timestamp, or the log append time
43      8     int64    producer id, -1 none
51      2     int16    producer epoch, -1 none
53      4     int32    base sequence, -1 none
57      4     int32    record count
======  ====  =======  ================================================================

Attributes: bits 0-2 codec, 3 timestamp type (1: log append time), 4 transactional, 5 control, 6 the
base timestamp is a delete horizon. Behind the header come the records, compressed as a whole if a
codec is set. A record is, with zig-zag varints: its size; attributes (one zero byte); timestamp and
offset as deltas to the header's; key and value, each with its size or -1 for null; a count of
headers and for each a key (UTF-8) and a value.

A batch is valid if its CRC is right. Base offset, length, leader epoch and magic are outside the
CRC, so that a log can assign offset and epoch without a pass over the bytes; order and position
must speak for them. Parsing checks every length against the bytes that there are.

Source: Kafka ``DefaultRecordBatch``, ``DefaultRecord``, ``MemoryRecordsBuilder``,
``ByteBufferLogInputStream``; spec 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from logstore._native import Buffer, Record, crc32c, fill_records, view_of
from logstore.compression import DECOMPRESSED_BYTES_MAX, CompressionType, compress, decompress
from logstore.control_record import (
    ControlMessage,
    ControlRecordType,
    EndTransactionMarker,
    LeaderChange,
    SnapshotFooter,
    SnapshotHeader,
    parse_control_record,
)
from logstore.errors import (
    CorruptRecordError,
    InvalidRecordError,
    UnsupportedCompressionTypeError,
)
from logstore.large_memory import LargeMemory
from logstore.legacy import LegacyEntry
from logstore.records_builder import (
    ATTRIBUTES_AT,
    BATCH_HEADER,
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_UP_TO_MAGIC,
    INT32_MAX,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    TRANSACTIONAL_FLAG,
    Headers,
    RecordFields,
    attributes_of,
    control_batch,
    empty_batch,
    encode_batch,
    end_transaction_marker,
    leader_change,
    seal,
)
from logstore.timestamp_type import NO_TIMESTAMP, TimestampType

__all__ = [
    "BATCH_OVERHEAD",
    "LOG_OVERHEAD",
    "NO_TIMESTAMP",
    "ControlMessage",
    "ControlRecordType",
    "EndTransactionMarker",
    "Headers",
    "LeaderChange",
    "Record",
    "RecordBatch",
    "RecordFields",
    "SnapshotFooter",
    "SnapshotHeader",
    "TimestampType",
    "control_batch",
    "decrement_sequence",
    "empty_batch",
    "encode_batch",
    "end_transaction_marker",
    "increment_sequence",
    "iterate_batches",
    "leader_change",
    "logical_sha256",
    "parse_control_record",
]


_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
LENGTH_MIN: Final = 14  # Of a magic 0 message, the smallest entry.


def increment_sequence(sequence: int, increment: int) -> int:
    """
    Return a producer's sequence number ``increment`` further: 2^31 - 1 is followed by 0.

    Source: Kafka ``DefaultRecordBatch.incrementSequence``.
    """
    assert 0 <= sequence <= INT32_MAX
    assert 0 <= increment <= INT32_MAX
    return (sequence + increment) & INT32_MAX


def decrement_sequence(sequence: int, decrement: int) -> int:
    """Return a producer's sequence number ``decrement`` before: 0 is preceded by 2^31 - 1."""
    assert 0 <= sequence <= INT32_MAX
    assert 0 <= decrement <= INT32_MAX
    return (sequence - decrement) & INT32_MAX


class RecordBatch:
    """
    One batch somewhere in a buffer, with its header parsed.

    ``buffer`` is referenced, not copied, and must not change. Nothing is verified before
    :meth:`ensure_valid`; :meth:`records` checks the structure of what it reads.

    Attributes:
        position: Of its first byte in the buffer.
        size_bytes: Of header and records.
        base_offset: Offset of the first record that the batch was made with.
        leader_epoch: Epoch of the leader that appended it, -1 unknown.
        magic: 2.
        crc: CRC-32C that the header holds.
        attributes: Codec and flags.
        last_offset: Of the last record that it was made with; compaction keeps it.
        base_timestamp: The header's field, see :attr:`delete_horizon_ms`.
        max_timestamp: Of its records, or the log append time.
        producer_id: -1 none.
        producer_epoch: -1 none.
        base_sequence: -1 none.
        record_count: Records that are there; fewer than offsets after compaction.

    Source: Kafka ``DefaultRecordBatch``.
    """

    __slots__ = (
        "_view",
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "crc",
        "last_offset",
        "leader_epoch",
        "magic",
        "max_timestamp",
        "position",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size_bytes",
    )

    base_offset: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    size_bytes: int

    def __init__(self, buffer: Buffer, position: int = 0, *, is_header_only: bool = False) -> None:
        """
        Parse the header at ``position``.

        Args:
            buffer: Where it is.
            position: Of its first byte.
            is_header_only: The records are elsewhere, and are not asked for.

        Raises:
            CorruptRecordError: It is too small for a header, or ends behind the buffer.
        """
        assert position >= 0
        view = view_of(buffer)
        room = len(view) - position
        if room < BATCH_OVERHEAD:
            message = f"{room} bytes are too few for a batch of at least {BATCH_OVERHEAD}"
            raise CorruptRecordError(f"{message}; run verify", position=position)
        (
            self.base_offset,
            length,
            self.leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = BATCH_HEADER.unpack_from(view, position)
        self.last_offset = self.base_offset + last_offset_delta
        self.size_bytes = LOG_OVERHEAD + length
        self.position = position
        if not BATCH_OVERHEAD <= self.size_bytes <= (INT32_MAX if is_header_only else room):
            message = f"a batch of {self.size_bytes} bytes does not fit its place"
            raise CorruptRecordError(
                f"{message}; run verify", position=position, offset=self.base_offset
            )
        self._view = view

    @property
    def next_offset(self) -> int:
        """The offset behind the last one."""
        return self.last_offset + 1

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record; -1 none."""
        if self.base_sequence < 0:
            return -1
        return increment_sequence(
            self.base_sequence, (self.last_offset - self.base_offset) & INT32_MAX
        )

    @property
    def compression_type(self) -> CompressionType:
        """
        The codec.

        Raises:
            UnsupportedCompressionTypeError: It is not known.
        """
        return CompressionType.for_id(self.attributes & CODEC_MASK)

    @property
    def is_compressed(self) -> bool:
        """Whether a codec is set."""
        return self.attributes & CODEC_MASK != 0

    @property
    def timestamp_type(self) -> TimestampType:
        """Who set the timestamps."""
        if self.attributes & LOG_APPEND_TIME_FLAG:
            return TimestampType.LOG_APPEND_TIME
        return TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to a transaction."""
        return self.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def is_control(self) -> bool:
        """Whether the records are control records, which consumers never see."""
        return self.attributes & CONTROL_FLAG != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """When the cleaner may drop its tombstones and markers; None until it has decided."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_FLAG else None

    @property
    def data(self) -> memoryview:
        """The bytes of the batch; a view of the buffer."""
        return self._view[self.position : self.position + self.size_bytes]

    @property
    def is_valid(self) -> bool:
        """Whether the CRC-32C is right. Cost: a pass over the bytes."""
        return crc32c(self.data[ATTRIBUTES_AT:]) == self.crc

    def ensure_valid(self) -> None:
        """Raise CorruptRecordError unless :attr:`is_valid`."""
        if not self.is_valid:
            message = f"the batch at offset {self.base_offset} has a wrong CRC-32C; run verify"
            raise CorruptRecordError(message, offset=self.base_offset, position=self.position)

    def section(
        self, bytes_max: int = DECOMPRESSED_BYTES_MAX, large_memory: LargeMemory | None = None
    ) -> bytes | memoryview:
        """
        Return the records section: a view of the buffer, or decompressed.

        Args:
            bytes_max: Bound of what is decompressed.
            large_memory: For a section that is very large; None: ordinary memory.

        Raises:
            CorruptRecordError: The compressed data is damaged or too large.
            UnsupportedCompressionTypeError: The codec is not known.
        """
        stored = self.data[BATCH_OVERHEAD:]
        codec = self.compression_type
        if codec is CompressionType.NONE:
            return stored
        return decompress(codec, stored, bytes_max=bytes_max, large_memory=large_memory)

    def records(self, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> list[Record]:
        """
        Return the records, control records too; the CRC is not verified.

        Raises:
            CorruptRecordError: The compressed data is damaged or too large.
            InvalidRecordError: A record breaks the format, or their number is wrong.
            UnsupportedCompressionTypeError: The codec is not known.
        """
        if self.record_count == 0:
            return []  # The codec is not asked, as in Kafka.
        if self.record_count < 0:
            message = f"a batch that declares {self.record_count} records; run verify"
            raise InvalidRecordError(message, offset=self.base_offset, position=self.position)
        return fill_records(
            self.section(bytes_max),
            base_offset=self.base_offset,
            base_timestamp=self.base_timestamp,
            record_count=self.record_count,
            timestamp_type=int(self.timestamp_type),
            max_timestamp=self.max_timestamp,
            leader_epoch=self.leader_epoch,
            start_offset=_INT64_MIN,  # A damaged base offset can be negative.
            stop_offset=_INT64_MAX,
        )

    def with_section(
        self,
        section: Buffer,
        codec: CompressionType,
        *,
        record_count: int,
        base_timestamp: int,
        max_timestamp: int,
        has_delete_horizon: bool,
    ) -> bytes:
        """
        Return a batch of other records with the offsets, epoch, producer and flags of this one.

        Args:
            section: The records section, not compressed.
            codec: What it is compressed with.
            record_count: How many records it has.
            base_timestamp: What its timestamps are relative to; the horizon, if it has one.
            max_timestamp: The largest, or the log append time.
            has_delete_horizon: Whether ``base_timestamp`` is one.

        Raises:
            RecordTooLargeError: It would be larger than 2^31 - 1 bytes.
        """
        return seal(
            section if codec is CompressionType.NONE else compress(codec, section),
            base_offset=self.base_offset,
            last_offset=self.last_offset,
            leader_epoch=self.leader_epoch,
            attributes=attributes_of(
                codec,
                self.timestamp_type,
                is_transactional=self.is_transactional,
                is_control=self.is_control,
                has_delete_horizon=has_delete_horizon,
            ),
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
            record_count=record_count,
        )

    def __repr__(self) -> str:
        return (
            f"RecordBatch(base_offset={self.base_offset}, last_offset={self.last_offset}, "
            f"record_count={self.record_count}, size_bytes={self.size_bytes}, "
            f"attributes={self.attributes:#04x})"
        )


def iterate_batches(
    buffer: Buffer, max_size: int = INT32_MAX
) -> Iterator[RecordBatch | LegacyEntry]:
    """
    Yield the entries of a buffer; one that is cut off at the end is left out.

    Args:
        buffer: Entries one after the other.
        max_size: Largest length that is not damage.

    Raises:
        CorruptRecordError: A length or magic is impossible; entries before have been yielded.

    Source: Kafka ``ByteBufferLogInputStream``; spec 1.2.
    """
    view = view_of(buffer)
    position = 0
    while len(view) - position >= LOG_OVERHEAD:
        length = int.from_bytes(view[position + 8 : position + 12], "big", signed=True)
        if not LENGTH_MIN <= length <= max_size:
            message = f"an entry of length {length} is outside [{LENGTH_MIN}, {max_size}]"
            raise CorruptRecordError(f"{message}; run verify", position=position)
        if len(view) - position < HEADER_UP_TO_MAGIC:
            return
        magic = view[position + HEADER_UP_TO_MAGIC - 1]
        if magic > 2:
            raise CorruptRecordError(f"an entry with magic {magic}; run verify", position=position)
        size_bytes = LOG_OVERHEAD + length
        if size_bytes > len(view) - position:
            return
        yield (RecordBatch if magic == 2 else LegacyEntry)(view, position)
        position += size_bytes


# ---- digest --------------------------------------------------------------------------------------


def logical_sha256(data: Buffer, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> str:
    """
    Return a digest of batches that does not depend on how well a codec compressed.

    Of a valid batch count all header fields but length and CRC, then the decompressed records;
    other entries count as they are, and from damage on every byte.
    """
    view = view_of(data)
    digest = hashlib.sha256()
    position = 0
    try:
        for batch in iterate_batches(view):
            if isinstance(batch, RecordBatch) and batch.is_valid:
                section = batch.section(bytes_max)
                digest.update(batch.data[:8])
                digest.update(batch.data[12:HEADER_UP_TO_MAGIC])
                digest.update(batch.data[ATTRIBUTES_AT:BATCH_OVERHEAD])
                digest.update(section)
            else:
                digest.update(view[position : position + batch.size_bytes])
            position += batch.size_bytes
    except (CorruptRecordError, UnsupportedCompressionTypeError):
        # Damaged from here on: the rest counts byte by byte.
        pass
    digest.update(view[position:])
    return digest.hexdigest()
