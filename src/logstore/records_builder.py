"""
Builder of record batches, format 2; the format itself is told in :mod:`logstore.record`.

Records that follow each other without a gap are encoded by the native core, a few or scattered
ones here.

Source: Kafka ``MemoryRecordsBuilder``, ``DefaultRecordBatch.writeHeader``; spec 1.5 to 1.7.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from logstore._native import Buffer, Columns, Record, crc32c, encode_records, size_of, view_of
from logstore.compression import CompressionType, compress
from logstore.control_record import ControlRecordType, EndTransactionMarker, LeaderChange
from logstore.errors import RecordTooLargeError
from logstore.timestamp_type import NO_TIMESTAMP, TimestampType

BATCH_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
BATCH_OVERHEAD: Final = 61
LOG_OVERHEAD: Final = 12  # Base offset and length, which the length does not count.
HEADER_UP_TO_MAGIC: Final = 17
ATTRIBUTES_AT: Final = 21  # Where the CRC's range begins.
assert BATCH_HEADER.size == BATCH_OVERHEAD

INT32_MAX: Final = 0x7FFF_FFFF
MAGIC_V2: Final = 2

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40

_PREFIX: Final = struct.Struct(">qiib")
CRC_FIELDS: Final = struct.Struct(">hiqqqhii")  # The header from the attributes on.
assert _PREFIX.size == HEADER_UP_TO_MAGIC
assert _PREFIX.size + 4 + CRC_FIELDS.size == BATCH_OVERHEAD

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
RecordFields: TypeAlias = tuple[int | None, int, bytes | None, bytes | None, Headers]


def encode_batch(
    records: Iterable[Record | RecordFields],
    *,
    base_offset: int | None = None,
    compression: CompressionType = CompressionType.NONE,
    level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    log_append_time: int = NO_TIMESTAMP,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
    delete_horizon: int = NO_TIMESTAMP,
    last_offset: int | None = None,
) -> bytes:
    """
    Return one batch; without records no bytes, as in Kafka.

    Args:
        records: Records, or tuples ``(offset, timestamp, key, value, headers)``; an offset of None
            is the one behind the record before.
        base_offset: None is the first record's offset, or 0 if that is None.
        compression: Codec of the records section.
        level: Of the codec; None is its default.
        timestamp_type: With LOG_APPEND_TIME readers see ``log_append_time`` for every record.
        log_append_time: See ``timestamp_type``.
        producer_id: -1 for none.
        producer_epoch: -1 for none.
        base_sequence: -1 for none.
        leader_epoch: -1 for unknown, as producers send it.
        is_transactional: The records belong to a transaction.
        is_control: The records are control records.
        delete_horizon: >= 0: the cleaner's, stored in place of the base timestamp.
        last_offset: Where the batch ends; None is the last record's offset.

    Raises:
        ValueError: Offsets do not increase or do not fit 31 bits above the base, a timestamp is
            below -1, or producer fields contradict each other.
        RecordTooLargeError: It would be larger than 2^31 - 1 bytes.

    Source: Kafka ``MemoryRecordsBuilder``; spec 1.5.
    """
    rows = [_fields_of(record) for record in records]
    if not rows:
        return b""
    problem = producer_problem(
        producer_id,
        producer_epoch,
        base_sequence,
        is_transactional=is_transactional,
        is_control=is_control,
    )
    if problem is not None:
        raise ValueError(problem)
    offsets = _offsets_of(rows, base_offset)
    first_offset = offsets[0] if base_offset is None else base_offset
    timestamps = [row[1] for row in rows]
    if min(timestamps) < NO_TIMESTAMP:
        message = f"timestamp {min(timestamps)} is negative; use -1 for none"
        raise ValueError(message)
    if last_offset is None:
        last_offset = offsets[-1]
    if not 0 <= offsets[0] - first_offset <= offsets[-1] - first_offset <= INT32_MAX:
        message = f"offsets {offsets[0]} to {offsets[-1]} do not fit base offset {first_offset}"
        raise ValueError(message)
    if not offsets[-1] <= last_offset <= first_offset + INT32_MAX:
        message = f"last offset {last_offset} does not fit a batch that ends at {offsets[-1]}"
        raise ValueError(message)

    base_timestamp = delete_horizon if delete_horizon >= 0 else timestamps[0]
    section = _encode_section(rows, offsets, first_offset, base_timestamp)
    if compression is not CompressionType.NONE:
        section = compress(compression, section, level)
    is_log_append_time = timestamp_type is TimestampType.LOG_APPEND_TIME
    return seal(
        section,
        base_offset=first_offset,
        last_offset=last_offset,
        leader_epoch=leader_epoch,
        attributes=attributes_of(
            compression,
            timestamp_type,
            is_transactional=is_transactional,
            is_control=is_control,
            has_delete_horizon=delete_horizon >= 0,
        ),
        base_timestamp=base_timestamp,
        max_timestamp=log_append_time if is_log_append_time else max(timestamps),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(rows),
    )


def empty_batch(
    *,
    base_offset: int,
    last_offset: int,
    max_timestamp: int = NO_TIMESTAMP,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytes:
    """
    Return a batch without records, which keeps offsets and a producer's last sequence alive.

    Source: Kafka ``DefaultRecordBatch.writeEmptyHeader``; spec 1.6.
    """
    assert base_offset <= last_offset <= base_offset + INT32_MAX
    return seal(
        b"",
        base_offset=base_offset,
        last_offset=last_offset,
        leader_epoch=leader_epoch,
        attributes=attributes_of(
            CompressionType.NONE,
            timestamp_type,
            is_transactional=is_transactional,
            is_control=is_control,
        ),
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=0,
    )


def attributes_of(
    compression: CompressionType,
    timestamp_type: TimestampType,
    *,
    is_transactional: bool,
    is_control: bool,
    has_delete_horizon: bool = False,
) -> int:
    """Return the attributes field; see the module's table."""
    return (
        int(compression)
        | (LOG_APPEND_TIME_FLAG if timestamp_type is TimestampType.LOG_APPEND_TIME else 0)
        | (TRANSACTIONAL_FLAG if is_transactional else 0)
        | (CONTROL_FLAG if is_control else 0)
        | (DELETE_HORIZON_FLAG if has_delete_horizon else 0)
    )


def seal(
    section: Buffer,
    *,
    base_offset: int,
    last_offset: int,
    leader_epoch: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
) -> bytes:
    """
    Return a batch of these header fields around a records section that is compressed already.

    Raises:
        RecordTooLargeError: It would be larger than 2^31 - 1 bytes.
    """
    length = BATCH_OVERHEAD - LOG_OVERHEAD + size_of(section)
    if length > INT32_MAX - LOG_OVERHEAD:
        message = f"a batch of {length + LOG_OVERHEAD} bytes is beyond the format; split it"
        raise RecordTooLargeError(message)
    tail = CRC_FIELDS.pack(
        attributes,
        last_offset - base_offset,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    crc = crc32c(section, crc32c(tail))
    prefix = _PREFIX.pack(base_offset, length, leader_epoch, 2)
    return b"".join((prefix, crc.to_bytes(4, "big"), tail, view_of(section)))


def producer_problem(
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    *,
    is_transactional: bool,
    is_control: bool,
) -> str | None:
    """Return how the producer fields of a batch contradict each other, or None."""
    if is_transactional and producer_id == -1:
        return "a transactional batch needs a producer id"
    if producer_id != -1 and producer_epoch < 0:
        return f"producer epoch {producer_epoch} does not go with producer id {producer_id}"
    if producer_id != -1 and base_sequence < 0 and not is_control:
        return f"base sequence {base_sequence} does not go with producer id {producer_id}"
    return None


def _fields_of(record: Record | RecordFields) -> RecordFields:
    if isinstance(record, Record):
        return record.offset, record.timestamp, record.key, record.value, record.headers
    return record


def _offsets_of(rows: list[RecordFields], base_offset: int | None) -> list[int]:
    offsets: list[int] = []
    next_offset = base_offset or 0
    for given, *_ in rows:
        offset = next_offset if given is None else given
        if offsets and offset < next_offset:
            message = f"offset {offset} after offset {offsets[-1]}; offsets must increase"
            raise ValueError(message)
        offsets.append(offset)
        next_offset = offset + 1
    return offsets


# From so many records on, numpy's and the kernel's set-up costs less than it saves.
_KERNEL_RECORDS_MIN: Final = 8
RECORD_OVERHEAD_MAX: Final = 36  # Size, attributes, deltas, key and value sizes, header count.


def _encode_section(
    rows: list[RecordFields], offsets: list[int], base_offset: int, base_timestamp: int
) -> bytes:
    is_dense = offsets[0] == base_offset and offsets[-1] - base_offset == len(rows) - 1
    if not is_dense or len(rows) < _KERNEL_RECORDS_MIN:
        return b"".join(
            _encode_record(row, offset - base_offset, row[1] - base_timestamp)
            for row, offset in zip(rows, offsets, strict=True)
        )
    values, value_offsets, value_validity = _column([row[3] for row in rows])
    keys, key_offsets, key_validity = _column([row[2] for row in rows])
    headers, header_offsets, _ = _column(
        [encode_headers(row[4]) if row[4] else b"" for row in rows]
    )
    bound = len(values) + len(keys) + len(headers) + RECORD_OVERHEAD_MAX * len(rows)
    if bound > INT32_MAX - BATCH_OVERHEAD:
        raise RecordTooLargeError(f"records of {bound} bytes do not fit one batch; split them")
    columns = Columns(
        values,
        value_offsets,
        value_validity=value_validity,
        keys=keys,
        key_offsets=key_offsets,
        key_validity=key_validity,
        timestamps=np.array([row[1] for row in rows], np.int64),
        headers=headers if len(headers) else None,
        header_offsets=header_offsets if len(headers) else None,
    )
    # The kernel takes deltas to the first timestamp unless there is a horizon.
    horizon = base_timestamp if base_timestamp != rows[0][1] else NO_TIMESTAMP
    encoded = encode_records(
        columns, 0, base_offset=base_offset, batch_bytes=bound, delete_horizon=horizon
    )
    assert encoded.record_count == len(rows)
    return encoded.data


def _column(
    items: list[bytes | None],
) -> tuple[bytes, npt.NDArray[np.int64], npt.NDArray[np.uint8] | None]:
    """Return the items joined, where each begins, and a bitmap of those that are not None."""
    sizes = [0 if item is None else len(item) for item in items]
    offsets = np.fromiter(accumulate(sizes, initial=0), np.int64, len(items) + 1)
    if None not in items:
        return b"".join(cast("list[bytes]", items)), offsets, None
    joined = b"".join(item for item in items if item is not None)
    validity = np.packbits([item is not None for item in items], bitorder="little")
    return joined, offsets, validity


def _encode_record(row: RecordFields, offset_delta: int, timestamp_delta: int) -> bytes:
    _, _, key, value, headers = row
    body = b"".join(
        (
            b"\0",
            varint(timestamp_delta),
            varint(offset_delta),
            *_sized(key),
            *_sized(value),
            encode_headers(headers),
        )
    )
    return varint(len(body)) + body


def encode_headers(headers: Headers) -> bytes:
    """Return headers as a record has them: their number, then each name and value."""
    parts = [varint(len(headers))]
    for name, value in headers:
        parts += _sized(name.encode("utf-8", "surrogateescape"))
        parts += _sized(value)
    return b"".join(parts)


def _sized(item: bytes | None) -> tuple[bytes, bytes]:
    return (b"\x01", b"") if item is None else (varint(len(item)), item)


def varint(value: int) -> bytes:
    """Return a number (32 or 64 bits) as a zig-zag varint."""
    assert -(1 << 63) <= value < 1 << 63
    rest = value << 1 if value >= 0 else ~(value << 1)
    encoded = bytearray()
    while rest >= 0x80:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


# ---- control batches -----------------------------------------------------------------------------


def end_transaction_marker(
    marker: EndTransactionMarker,
    *,
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """
    Return the batch of 78 bytes that commits or aborts a producer's transaction.

    Source: Kafka ``MemoryRecords.withEndTransactionMarker``; spec 1.7.
    """
    if producer_id < 0:
        message = f"a transaction marker needs a producer id, not {producer_id}"
        raise ValueError(message)
    return encode_batch(
        [(None, timestamp, marker.control_type.key(), marker.value(), ())],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        leader_epoch=leader_epoch,
        is_transactional=True,
        is_control=True,
    )


def control_batch(
    kind: ControlRecordType,
    value: bytes,
    *,
    timestamp: int,
    leader_epoch: int,
    base_offset: int = 0,
) -> bytes:
    """
    Return a control batch of the consensus protocol: one record of type ``kind``.

    Args:
        kind: Not a transaction marker: see :func:`end_transaction_marker`.
        value: What :mod:`logstore.control_record`'s class of that type makes.
        timestamp: Of the record.
        leader_epoch: Of the leader that writes it; not -1.
        base_offset: Its offset.
    """
    if leader_epoch < 0:
        message = f"a {kind.name} record needs a leader epoch, not {leader_epoch}"
        raise ValueError(message)
    return encode_batch(
        [(None, timestamp, kind.key(), value, ())],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        is_control=True,
    )


def leader_change(
    change: LeaderChange, *, timestamp: int, leader_epoch: int, base_offset: int = 0
) -> bytes:
    """Return the batch with which a new leader of a consensus group begins."""
    return control_batch(
        ControlRecordType.LEADER_CHANGE,
        change.value(),
        timestamp=timestamp,
        leader_epoch=leader_epoch,
        base_offset=base_offset,
    )
