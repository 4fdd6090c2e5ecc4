"""
Message formats 0 and 1, which releases before 0.11 wrote: read only.

An entry is an offset and a size (int64, int32), then a message:

======  ======  =====  =====================================================================
magic   magic   size   field
0 at    1 at
======  ======  =====  =====================================================================
0       0       4      CRC-32 (IEEE 802.3) of all that follows
4       4       1      magic
5       5       1      attributes: bits 0-2 codec (not zstd), bit 3 timestamp type (magic 1)
        6       8      timestamp
6       14      4      key size, -1 for null
10      18      n      key
10+n    18+n    4      value size, -1 for null
14+n    22+n    m      value
======  ======  =====  =====================================================================

A message with a codec is a *wrapper*: its value is compressed entries of the same format. In magic
1 their offsets are relative; the wrapper has the last one's absolute offset. A null key of a
wrapper means nothing.

Source: Kafka ``LegacyRecord``, ``AbstractLegacyRecordBatch``; spec 1.9.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

from logstore._native import Buffer, Record, view_of
from logstore.compression import (
    DECOMPRESSED_BYTES_MAX,
    CompressionType,
    compress,
    decompress,
)
from logstore.errors import CorruptRecordError, InvalidRecordError
from logstore.timestamp_type import NO_TIMESTAMP, TimestampType

LOG_OVERHEAD: Final = 12  # Offset and size, which the size does not count.
MESSAGE_BYTES_MIN: Final = (14, 22)  # By magic: null key, null value.

_ENTRY: Final = struct.Struct(">qi")
_FIXED: Final = (struct.Struct(">IbB"), struct.Struct(">IbBq"))  # By magic, up to the key size.
_SIZE: Final = struct.Struct(">i")
_MAGIC_AT: Final = 4
_CRC_END: Final = 4
_TIMESTAMP_AT: Final = 6
_TIMESTAMP_END: Final = 14
assert MESSAGE_BYTES_MIN[0] >= _TIMESTAMP_END  # There whatever the magic.

_CODEC_MASK: Final = 0x07
_TIMESTAMP_TYPE_MASK: Final = 0x08


class LegacyMessage(NamedTuple):
    """
    One message of an entry or a wrapper, as it is stored.

    Attributes:
        offset: As stored: absolute, or relative inside a magic 1 wrapper.
        magic: 0 or 1.
        crc: Stored CRC-32.
        attributes: Codec and timestamp type.
        timestamp: As stored; -1 in magic 0.
        key: Or None.
        value: Or None.
        is_valid: Whether the CRC-32 is right.
    """

    offset: int
    magic: int
    crc: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    is_valid: bool

    @property
    def is_compressed(self) -> bool:
        """Whether this is a wrapper."""
        return self.attributes & _CODEC_MASK != 0


class LegacyEntry:
    """
    One entry of a magic 0 or 1 log: a message, or a wrapper with many.

    It has the interface of :class:`logstore.record.RecordBatch`, with "none" for what the format
    does not have. ``buffer`` is referenced, not copied, and must not change.

    Source: Kafka ``AbstractLegacyRecordBatch``.
    """

    __slots__ = ("_data", "_message", "_whole", "last_offset", "magic", "position", "size_bytes")

    leader_epoch: Final = -1
    producer_id: Final = -1
    producer_epoch: Final = -1
    base_sequence: Final = -1
    last_sequence: Final = -1
    record_count: Final = None  # Not known without decompressing.
    is_transactional: Final = False
    is_control: Final = False
    delete_horizon_ms: Final = None

    def __init__(self, buffer: Buffer, position: int = 0) -> None:
        """
        Look at the entry at ``position``.

        Raises:
            CorruptRecordError: It is too small, ends behind the buffer, or has another magic.
        """
        view = view_of(buffer)
        if len(view) - position < LOG_OVERHEAD + MESSAGE_BYTES_MIN[0]:
            message = f"{len(view) - position} bytes are too few for a message; run verify"
            raise CorruptRecordError(message, position=position)
        self.last_offset: int
        self.last_offset, size = _ENTRY.unpack_from(view, position)
        self.position = position
        self.size_bytes = LOG_OVERHEAD + size
        self.magic: int = view[position + LOG_OVERHEAD + _MAGIC_AT]
        if size < MESSAGE_BYTES_MIN[0] or size > len(view) - position - LOG_OVERHEAD:
            message = f"a message of {size} bytes does not fit its place; run verify"
            raise CorruptRecordError(message, position=position, offset=self.last_offset)
        if self.magic not in (0, 1):
            message = f"magic {self.magic} is not that of an old message; run verify"
            raise CorruptRecordError(message, position=position, offset=self.last_offset)
        self._whole = view[position : position + self.size_bytes]
        self._data = self._whole[LOG_OVERHEAD:]
        self._message: LegacyMessage | None = None

    @property
    def message(self) -> LegacyMessage:
        """
        The message itself, the wrapper if it is one.

        Raises:
            CorruptRecordError: Its sizes do not fit.
        """
        if self._message is None:
            self._message = _parse_message(self._data, self.last_offset)
        return self._message

    @property
    def data(self) -> memoryview:
        """The bytes of the entry; a view of the buffer."""
        return self._whole

    @property
    def attributes(self) -> int:
        """Codec and timestamp type."""
        return self._data[5]

    @property
    def crc(self) -> int:
        """The CRC-32 that is stored."""
        return int.from_bytes(self._data[:_CRC_END], "big")

    @property
    def is_valid(self) -> bool:
        """Whether the CRC-32 is right."""
        return zlib.crc32(self._data[_CRC_END:]) == self.crc

    def ensure_valid(self) -> None:
        """Raise CorruptRecordError unless :attr:`is_valid`."""
        if not self.is_valid:
            message = f"the message at offset {self.last_offset} has a wrong CRC-32; run verify"
            raise CorruptRecordError(message, offset=self.last_offset, position=self.position)

    @property
    def compression_type(self) -> CompressionType:
        """
        The codec.

        Raises:
            UnsupportedCompressionTypeError: It is not known.
        """
        return CompressionType.for_id(self.attributes & _CODEC_MASK)

    @property
    def is_compressed(self) -> bool:
        """Whether this is a wrapper."""
        return self.attributes & _CODEC_MASK != 0

    @property
    def timestamp_type(self) -> TimestampType:
        """Who set the timestamps; none in magic 0."""
        return _timestamp_type(self.magic, self.attributes)

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp, or the log append time; -1 in magic 0."""
        if self.magic == 0:
            return NO_TIMESTAMP
        return int.from_bytes(self._data[_TIMESTAMP_AT:_TIMESTAMP_END], "big", signed=True)

    @property
    def next_offset(self) -> int:
        """The offset behind the last record."""
        return self.last_offset + 1

    @property
    def base_offset(self) -> int:
        """
        The offset of the first record. Cost: a wrapper is decompressed.

        Raises:
            CorruptRecordError, InvalidRecordError: As :meth:`records`.
        """
        return self.records()[0].offset if self.is_compressed else self.last_offset

    def messages(self, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> list[LegacyMessage]:
        """
        Return the message, or those inside the wrapper, with absolute offsets; CRCs unchecked.

        Raises:
            CorruptRecordError: Sizes do not fit, or the compressed data is damaged or too large.
            InvalidRecordError: A rule for wrappers is broken.
        """
        if not self.is_compressed:
            return [self.message]
        inner = self._decompress(bytes_max)
        base_offset = 0
        if self.magic == 1 and self.last_offset != 0:
            # The offset of a wrapper can be 0 without meaning it: some producers left it so.
            base_offset = self.last_offset - inner[-1].offset
            if base_offset < 0:
                message = (
                    f"a wrapper at offset {self.last_offset} is below its last message's relative "
                    f"offset {inner[-1].offset}; run verify"
                )
                raise InvalidRecordError(message, offset=self.last_offset, position=self.position)
        if any(message.is_compressed for message in inner):
            message = "a message inside a wrapper is itself compressed; run verify"
            raise InvalidRecordError(message, offset=self.last_offset, position=self.position)
        if base_offset == 0:
            return inner
        return [message._replace(offset=base_offset + message.offset) for message in inner]

    def records(self, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> list[Record]:
        """
        Return the records, of a wrapper those inside it.

        Raises:
            CorruptRecordError: Sizes do not fit, or the compressed data is damaged or too large.
            InvalidRecordError: A rule for wrappers is broken.
        """
        return self.records_of(self.messages(bytes_max))

    def records_of(self, messages: list[LegacyMessage]) -> list[Record]:
        """Return the records that :meth:`messages` are."""
        # A log append time is the wrapper's, a create time each message's own.
        stamps_all = self.timestamp_type is TimestampType.LOG_APPEND_TIME
        log_append_time = self.max_timestamp if stamps_all else NO_TIMESTAMP
        timestamp_type = int(self.timestamp_type)
        return [
            Record(
                message.offset,
                log_append_time if stamps_all and message.magic == 1 else message.timestamp,
                message.key,
                message.value,
                (),
                timestamp_type if message.magic == 1 else TimestampType.NO_TIMESTAMP_TYPE,
                -1,
            )
            for message in messages
        ]

    def _decompress(self, bytes_max: int) -> list[LegacyMessage]:
        codec = self.compression_type
        value = self.message.value
        problem = None
        if codec is CompressionType.ZSTD:
            problem = "is compressed with zstd, which its format does not have"
        elif value is None:
            problem = "has no value"
        else:
            inner = _parse_entries(decompress(codec, value, magic=self.magic, bytes_max=bytes_max))
            if inner:
                return inner
            problem = "has no message inside"
        message = f"the wrapper at offset {self.last_offset} {problem}; run verify"
        raise InvalidRecordError(message, offset=self.last_offset, position=self.position)

    def __repr__(self) -> str:
        return (
            f"LegacyEntry(last_offset={self.last_offset}, magic={self.magic}, "
            f"size_bytes={self.size_bytes})"
        )


def _parse_entries(data: bytes | memoryview) -> list[LegacyMessage]:
    """Return the messages of a wrapper; one that is cut off at the end does not count."""
    view = memoryview(data)
    messages = []
    position = 0
    while len(view) - position >= LOG_OVERHEAD:
        offset, size = _ENTRY.unpack_from(view, position)
        if size < MESSAGE_BYTES_MIN[0]:
            message = f"a message of {size} bytes inside a wrapper; run verify"
            raise CorruptRecordError(message, offset=offset)
        position += LOG_OVERHEAD
        if size > len(view) - position:
            break
        messages.append(_parse_message(view[position : position + size], offset))
        position += size
    return messages


def _parse_message(data: memoryview, offset: int) -> LegacyMessage:
    magic = data[_MAGIC_AT]
    if magic not in (0, 1):
        message = f"a message with magic {magic} inside a wrapper; run verify"
        raise CorruptRecordError(message, offset=offset)
    if len(data) < MESSAGE_BYTES_MIN[magic]:
        message = f"a message of {len(data)} bytes is too short for magic {magic}; run verify"
        raise CorruptRecordError(message, offset=offset)
    fixed = _FIXED[magic]
    crc, _, attributes, *timestamp = fixed.unpack_from(data)
    key, position = _sized(data, fixed.size, offset)
    value, _ = _sized(data, position, offset)
    return LegacyMessage(
        offset,
        magic,
        crc,
        attributes,
        timestamp[0] if timestamp else NO_TIMESTAMP,
        key,
        value,
        zlib.crc32(data[_CRC_END:]) == crc,
    )


def rebuild_entry(entry: LegacyEntry, messages: list[LegacyMessage]) -> bytes:
    """
    Return a wrapper with some of the messages of one, as the cleaner leaves it.

    Args:
        entry: A wrapper; not of magic 0 with lz4, whose frames had a wrong checksum.
        messages: Of :meth:`LegacyEntry.messages`, at least one.

    Source: Kafka ``MemoryRecords.buildRetainedRecordsInto`` with a magic below 2.
    """
    assert entry.is_compressed
    codec = entry.compression_type
    assert entry.magic == 1 or codec is not CompressionType.LZ4
    base_offset = messages[0].offset if entry.magic == 1 else 0
    stamps_all = entry.timestamp_type is TimestampType.LOG_APPEND_TIME
    timestamps = [entry.max_timestamp if stamps_all else each.timestamp for each in messages]
    type_bit = entry.attributes & _TIMESTAMP_TYPE_MASK if entry.magic == 1 else 0
    inner = b"".join(
        _encode_message(
            message.offset - base_offset,
            entry.magic,
            type_bit,
            timestamp,
            message.key,
            message.value,
        )
        for message, timestamp in zip(messages, timestamps, strict=True)
    )
    value = compress(codec, inner)
    return _encode_message(
        messages[-1].offset, entry.magic, int(codec) | type_bit, max(timestamps), None, value
    )


def _encode_message(
    offset: int, magic: int, attributes: int, timestamp: int, key: bytes | None, value: bytes | None
) -> bytes:
    """Return an entry with one message."""
    fixed = _FIXED[magic]
    fields = (magic, attributes, timestamp)[: 2 + magic]
    parts = [fixed.pack(0, *fields)[_CRC_END:]]
    for item in (key, value):
        parts += [_SIZE.pack(-1 if item is None else len(item)), item or b""]
    body = b"".join(parts)
    crc = zlib.crc32(body).to_bytes(_CRC_END, "big")
    return _ENTRY.pack(offset, len(body) + _CRC_END) + crc + body


def _sized(data: memoryview, position: int, offset: int) -> tuple[bytes | None, int]:
    """Return the bytes behind a size field, and where they end."""
    start = position + _SIZE.size
    if start <= len(data):
        (size,) = _SIZE.unpack_from(data, position)
        if size < 0:
            return None, start
        if size <= len(data) - start:
            return data[start : start + size].tobytes(), start + size
    message = f"a key or value of the message at offset {offset} ends behind it; run verify"
    raise CorruptRecordError(message, offset=offset)


def _timestamp_type(magic: int, attributes: int) -> TimestampType:
    if magic == 0:
        return TimestampType.NO_TIMESTAMP_TYPE
    if attributes & _TIMESTAMP_TYPE_MASK:
        return TimestampType.LOG_APPEND_TIME
    return TimestampType.CREATE_TIME
