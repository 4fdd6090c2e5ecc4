"""
Columns: records as contiguous buffers with offsets; what encodes them, what makes them of batches.

The layout is Arrow's: ``values`` holds all value bytes, value *i* is
``values[value_offsets[i]:value_offsets[i + 1]]``, and bit *i* of a validity bitmap (least
significant first) is 0 for null.
"""

from __future__ import annotations

import mmap
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logstore._native._core import ffi, lib
from logstore._native.kernels import Buffer, address_of, size_of
from logstore.errors import RecordTooLargeError
from logstore.large_memory import LargeMemory, room_for

BATCH_OVERHEAD = 61
DEFAULT_BATCH_BYTES = 65536
ENCODING_SLACK: int = lib.LS_ENCODE_SLACK


class Columns:
    """
    Records to encode.

    ``struct`` is the C struct ``ls_columns``, at ``address``. The buffers are referenced, not
    copied: they must not change or be resized while the columns are in use.
    """

    __slots__ = ("_references", "address", "count", "struct")

    def __init__(
        self,
        values: Buffer | None,
        value_offsets: npt.NDArray[Any] | None,
        *,
        value_validity: Buffer | None = None,
        keys: Buffer | None = None,
        key_offsets: npt.NDArray[Any] | None = None,
        key_validity: Buffer | None = None,
        timestamps: npt.NDArray[np.int64] | None = None,
        timestamp: int = -1,
        headers: Buffer | None = None,
        header_offsets: npt.NDArray[np.int64] | None = None,
        count: int | None = None,
        bit_offset: int = 0,
        values_slack: int = 0,
        keys_slack: int = 0,
    ) -> None:
        """
        Check the shapes and keep the addresses.

        Args:
            values: All value bytes; None with ``value_offsets`` None: every value is null.
            value_offsets: int32 or int64, shape (count + 1,), ascending.
            value_validity: Bitmap; None: no value is null.
            keys: All key bytes; None with ``key_offsets`` None: every key is null.
            key_offsets: Like ``value_offsets``.
            key_validity: Like ``value_validity``.
            timestamps: int64 milliseconds, shape (count,); None: ``timestamp`` for all.
            timestamp: See ``timestamps``.
            headers: headersCount and headers of each record as the format has them.
            header_offsets: int64, shape (count + 1,); an item without bytes is "no headers".
            count: Number of records; needed when ``value_offsets`` is None.
            bit_offset: First bit of both bitmaps.
            values_slack: Bytes readable behind ``values``; a few hundred make encoding faster.
            keys_slack: The same behind ``keys``.

        Raises:
            ValueError: A shape, type or size does not fit. Offsets that descend or exceed their
                buffer are found while encoding.
        """
        if count is None:
            if value_offsets is None:
                message = "count is needed when value_offsets is None; pass it"
                raise ValueError(message)
            count = len(value_offsets) - 1
        if count < 0 or bit_offset < 0 or values_slack < 0 or keys_slack < 0:
            message = f"count {count}, bit_offset and slacks must not be negative"
            raise ValueError(message)
        self.count = count
        self._references: list[Any] = []
        struct = ffi.new("struct ls_columns *")
        struct.count = count
        struct.timestamp = timestamp
        struct.bit_offset = bit_offset
        struct.values, struct.values_size = self._bytes(values)
        struct.keys, struct.keys_size = self._bytes(keys)
        struct.headers, struct.headers_size = self._bytes(headers)
        struct.value_offsets, struct.value_offset_width = self._offsets("value", value_offsets)
        struct.key_offsets, struct.key_offset_width = self._offsets("key", key_offsets)
        struct.header_offsets, width = self._offsets("header", header_offsets)
        if width == 4:
            message = "header_offsets must be int64; use astype('int64')"
            raise ValueError(message)
        struct.value_validity = self._bitmap("value", value_validity, bit_offset)
        struct.key_validity = self._bitmap("key", key_validity, bit_offset)
        struct.values_slack = values_slack
        struct.keys_slack = keys_slack
        if timestamps is not None:
            if timestamps.dtype != np.int64 or timestamps.shape != (count,):
                message = f"timestamps must be int64 of shape ({count},); use astype('int64')"
                raise ValueError(message)
            struct.timestamps, _ = self._bytes(np.require(timestamps, requirements=["C", "A"]))
        self.struct = struct
        self.address = int(ffi.cast("uintptr_t", struct))

    def _bytes(self, data: Buffer | None) -> tuple[int, int]:
        if data is None:
            return 0, 0
        view = ffi.from_buffer(data)
        self._references.append(view)
        return int(ffi.cast("uintptr_t", view)), len(view)

    def _offsets(self, name: str, offsets: npt.NDArray[Any] | None) -> tuple[int, int]:
        if offsets is None:
            return 0, 8
        if offsets.dtype not in (np.int32, np.int64) or offsets.shape != (self.count + 1,):
            message = f"{name}_offsets must be int32 or int64 of shape ({self.count + 1},)"
            raise ValueError(message)
        aligned = np.require(offsets, requirements=["C", "A"])
        return self._bytes(aligned)[0], offsets.dtype.itemsize

    def _bitmap(self, name: str, validity: Buffer | None, bit_offset: int) -> int:
        address, size = self._bytes(validity)
        if validity is not None and 8 * size < bit_offset + self.count:
            message = f"{name}_validity has {8 * size} bits, {bit_offset + self.count} are needed"
            raise ValueError(message)
        return address


class Encoded(NamedTuple):
    """
    Encoded bytes and what they hold.

    Attributes:
        data: A whole batch, or a records section.
        record_count: Records taken from the columns.
        max_timestamp: Of these records (-1 or more), or the log append time.
        base_timestamp: Of the first, or the delete horizon.
    """

    data: bytes
    record_count: int
    max_timestamp: int
    base_timestamp: int


def batch_fields(
    *,
    base_offset: int,
    leader_epoch: int = 0,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
    log_append_time: int = -1,
    delete_horizon: int = -1,
) -> Any:
    """Return a C struct ``ls_batch_fields``: what every batch of one encode carries."""
    fields = ffi.new("struct ls_batch_fields *")
    fields.base_offset = base_offset
    fields.producer_id = producer_id
    fields.log_append_time = log_append_time
    fields.delete_horizon = delete_horizon
    fields.leader_epoch = leader_epoch
    fields.base_sequence = base_sequence
    fields.producer_epoch = producer_epoch
    fields.attributes = attributes
    fields.batch_bytes = batch_bytes
    return fields


def encode_batch(columns: Columns, first: int, **fields: int) -> Encoded:
    """
    Encode records from ``first`` on into one batch, as many as fit ``batch_bytes``, at least one.

    Args:
        columns: The records.
        first: Index of the first to encode.
        **fields: As :func:`batch_fields`; ``attributes`` without codec bits.

    Raises:
        RecordTooLargeError: A record is larger than 2^31 - 1 bytes.
        ValueError: Offsets of a column descend or exceed its buffer.
    """
    return _encode(lib.ls_encode_batch, BATCH_OVERHEAD, columns, first, fields)


def encode_records(columns: Columns, first: int, **fields: int) -> Encoded:
    """Like :func:`encode_batch` without header: a records section for a codec to compress."""
    return _encode(lib.ls_encode_records, 0, columns, first, fields)


def _encode(
    encoder: Any, overhead: int, columns: Columns, first: int, fields: dict[str, int]
) -> Encoded:
    out, size, encoded = _encode_into(bytearray(), encoder, overhead, columns, first, fields)
    return Encoded(
        bytes(memoryview(out)[:size]),
        encoded.record_count,
        encoded.max_timestamp,
        encoded.base_timestamp,
    )


def _encode_into(
    out: bytearray,
    encoder: Any,
    overhead: int,
    columns: Columns,
    first: int,
    fields: dict[str, int],
) -> tuple[bytearray, int, Any]:
    """Return the memory, how much of it was filled, and the ``struct ls_encoded``."""
    assert 0 <= first < columns.count
    struct = batch_fields(**fields)
    encoded = ffi.new("struct ls_encoded *")
    room = struct.batch_bytes + ENCODING_SLACK
    if len(out) < room:
        out = bytearray(room)
    result = encoder(columns.struct, first, struct, address_of(out), room, encoded)
    if result == lib.LS_E_NO_ROOM:  # The first record alone is larger than batch_bytes.
        bound = lib.ls_record_bound(columns.struct, first, 1)
        room = overhead + bound + ENCODING_SLACK
        out = bytearray(room)
        result = encoder(columns.struct, first, struct, address_of(out), room, encoded)
    if result < 0:
        raise _encoding_error(result, first)
    return out, result, encoded


def _encoding_error(result: int, first: int) -> RecordTooLargeError | ValueError:
    if result == lib.LS_E_TOO_LARGE:
        return RecordTooLargeError(f"record {first} is larger than 2^31 - 1 bytes; split it")
    return ValueError(
        f"offsets of a column descend or exceed its buffer near record {first}; fix them"
    )


def _too_large_for_format(size: int) -> RecordTooLargeError:
    return RecordTooLargeError(
        f"a batch of {size} bytes is larger than the format allows; split it"
    )


class GrowingBatch:
    """
    A batch that gets its records by and by, until no more fit.

    Args:
        batch_bytes: How large it may become; a record that is larger has a batch to itself.
        memory: Of a batch that is not in use any more, to use it again.
        large_memory: For a record that is very large; None: ordinary memory.

    **Thread rule**: one thread.
    """

    __slots__ = ("_batch_bytes", "_large_memory", "_struct", "memory")

    def __init__(
        self,
        batch_bytes: int,
        memory: npt.NDArray[np.uint8] | None = None,
        large_memory: LargeMemory | None = None,
    ) -> None:
        self._batch_bytes = batch_bytes
        self._large_memory = large_memory
        self._struct = ffi.new("struct ls_growing *")
        room = batch_bytes + ENCODING_SLACK
        self._use(_aligned(room) if memory is None or len(memory) < room else memory)

    def _use(self, memory: npt.NDArray[np.uint8]) -> None:
        self.memory = memory
        self._struct.batch = memory.ctypes.data
        self._struct.batch_cap = len(memory)

    @property
    def size_bytes(self) -> int:
        """Bytes so far; 0: there is no record."""
        return int(self._struct.size_bytes)

    @property
    def record_count(self) -> int:
        """Records so far."""
        return int(self._struct.record_count)

    def add(
        self, columns: Columns, rows: npt.NDArray[np.int64] | None, first: int, count: int
    ) -> int:
        """
        Put records behind those that are there; return how many fitted: 1 at least if none is.

        Args:
            columns: The records.
            rows: Indices into them, contiguous, within their count; None: the columns' own order.
            first: Where to begin, in ``rows`` or the columns.
            count: How many there are from there on, more than 0.

        Raises:
            RecordTooLargeError: A record is larger than 2^31 - 1 bytes.
            ValueError: Offsets of a column descend or exceed its buffer.
            StorageError: There is no room for a very large record.
        """
        numbers = 0 if rows is None else rows.ctypes.data
        arguments = (columns.struct, numbers, first, count, self._batch_bytes, self._struct)
        result = lib.ls_grow_batch(*arguments)
        if result == lib.LS_E_NO_ROOM:  # The first record alone is larger than batch_bytes.
            row = first if rows is None else int(rows[first])
            room = BATCH_OVERHEAD + lib.ls_record_bound(columns.struct, row, 1) + ENCODING_SLACK
            self._use(room_for(room, self._large_memory))
            result = lib.ls_grow_batch(*arguments)
        if result < 0:
            raise _encoding_error(result, first)
        return int(result)

    def seal(self, **fields: int) -> memoryview:
        """
        Make the header of a batch that has records, and return it; nothing is added any more.

        Args:
            **fields: As :func:`batch_fields`.

        **Lifetime**: that of ``memory``'s contents.

        Raises:
            RecordTooLargeError: The batch would be larger than Kafka's format can tell.
        """
        struct = self._struct
        last_delta = struct.record_count - 1
        result = lib.ls_seal_batch(
            struct.batch,
            struct.size_bytes,
            batch_fields(**fields),
            struct.base_timestamp,
            struct.max_timestamp,
            last_delta,
            struct.record_count,
        )
        if result < 0:
            raise _too_large_for_format(struct.size_bytes)
        return self.memory.data[:result]


def _aligned(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Return memory from a page's begin on; not zeroed: what stays small takes few pages."""
    memory = np.empty(size_bytes + mmap.PAGESIZE, np.uint8)
    start = -memory.ctypes.data % mmap.PAGESIZE
    return memory[start : start + size_bytes]


def encode_header_lists(
    headers: Columns,
    row_ends: npt.NDArray[np.int64],
    large_memory: LargeMemory | None = None,
) -> tuple[memoryview, npt.NDArray[np.int64]]:
    """
    Put together the headers of records as the format has them: what :class:`Columns` takes.

    Args:
        headers: All headers of all records; their names are the keys.
        row_ends: int64, shape (record count,): where the headers of each record end.
        large_memory: For headers that are very large; None: ordinary memory.

    Returns:
        Bytes and offsets, int64, shape (record count + 1,). A record without headers has no bytes.

    Raises:
        ValueError: Offsets or ends descend or exceed their buffer.
        StorageError: There is no room for very large headers.
    """
    rows = len(row_ends)
    struct = headers.struct
    room = 5 * rows + 10 * headers.count + struct.keys_size + struct.values_size + ENCODING_SLACK
    out = room_for(room, large_memory)
    offsets = np.empty(rows + 1, np.int64)
    ends = np.require(row_ends, np.int64, ["C", "A"])
    result = lib.ls_encode_headers(
        struct, ends.ctypes.data, rows, address_of(out), offsets.ctypes.data
    )
    if result < 0:
        message = "offsets of headers descend or exceed their buffer; fix them"
        raise ValueError(message)
    return out.data[:result], offsets


def seal_batch(
    section: Buffer,
    *,
    base_timestamp: int,
    max_timestamp: int,
    last_offset_delta: int,
    record_count: int,
    **fields: int,
) -> bytes:
    """
    Return a batch of ``section``, perhaps compressed: header, CRC and the section's bytes.

    Args:
        section: Records section, compressed with the codec that ``attributes`` names.
        base_timestamp: Replaced by ``delete_horizon`` if that is >= 0.
        max_timestamp: Replaced by ``log_append_time`` if that is >= 0.
        last_offset_delta: Last offset - base offset.
        record_count: Number of records.
        **fields: As :func:`batch_fields`.

    Raises:
        RecordTooLargeError: The batch would be larger than Kafka's format can tell.
    """
    struct = batch_fields(**fields)
    size = BATCH_OVERHEAD + size_of(section)
    batch = bytearray(size)
    batch[BATCH_OVERHEAD:] = ffi.buffer(ffi.from_buffer(section))
    result = lib.ls_seal_batch(
        address_of(batch),
        size,
        struct,
        base_timestamp,
        max_timestamp,
        last_offset_delta,
        record_count,
    )
    if result < 0:
        raise _too_large_for_format(size)
    return bytes(batch)


# ---- gather --------------------------------------------------------------------------------------
GATHER_SLACK: int = lib.LS_GATHER_SLACK
GATHER_VIEW_BYTES: int = lib.LS_GATHER_VIEW_BYTES
GATHER_CRC: int = lib.LS_GATHER_CRC
GATHER_TRANSACTIONAL: int = lib.LS_GATHER_TRANSACTIONAL
GATHER_PASS_CONTROL: int = lib.LS_GATHER_PASS_CONTROL
GATHER_COUNT: int = lib.LS_GATHER_COUNT


class GatherFull(IntEnum):
    """What has no room for the next record."""

    ROWS = lib.LS_GATHER_FULL_ROWS
    KEYS = lib.LS_GATHER_FULL_KEYS
    VALUES = lib.LS_GATHER_FULL_VALUES
    HEADERS = lib.LS_GATHER_FULL_HEADERS


def new_gather() -> Any:
    """
    Return a zeroed C struct ``ls_gather``: no column is wanted.

    Addresses that are stored in it are of memory that the caller keeps.
    """
    return ffi.new("struct ls_gather *")


def gather_batches(address: int, size: int, gather: Any) -> int:
    """
    Append the records of plain batches in memory to the columns of ``gather`` as rows.

    Args:
        address: Of the first byte; the caller keeps the memory.
        size: Bytes there; ``gather.position`` says where to begin.
        gather: From :func:`new_gather`; it says how far this came, and where to go on.

    Returns:
        A :class:`BlockStop`, as an int; after FULL, ``gather.full`` is a :class:`GatherFull`.
    """
    assert 0 <= gather.position <= size
    return int(lib.ls_gather_batches(address, size, gather))


def gather_section(
    address: int,
    size: int,
    gather: Any,
    *,
    base_offset: int,
    base_timestamp: int,
    max_timestamp: int,
    last_offset_delta: int,
    record_count: int,
    leader_epoch: int,
    timestamp_type: int,
) -> int:
    """Do :func:`gather_batches` with one section that was compressed; the rest is its header's."""
    section = ffi.new("struct ls_section *")
    section.base_offset = base_offset
    section.base_timestamp = base_timestamp
    section.max_timestamp = max_timestamp
    section.last_offset_delta = last_offset_delta
    section.record_count = record_count
    section.leader_epoch = leader_epoch
    section.timestamp_type = timestamp_type
    return int(lib.ls_gather_section(address, size, section, gather))
