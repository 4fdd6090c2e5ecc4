"""
Kernels: CRC-32C, scan, decode: typed wrappers of the pure functions in logstore.h.

Buffers are anything with the buffer protocol. Nothing here keeps a reference to one after the call,
and all calls release the GIL.
"""

from __future__ import annotations

import mmap
import struct
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from logstore._native._core import ffi, lib
from logstore.errors import CorruptRecordError, InvalidRecordError

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap | npt.NDArray[Any]

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1

BATCH_DTYPE = np.dtype(
    [
        ("position", np.int64),
        ("base_offset", np.int64),
        ("last_offset", np.int64),
        ("base_timestamp", np.int64),
        ("max_timestamp", np.int64),
        ("producer_id", np.int64),
        ("size_bytes", np.int64),
        ("leader_epoch", np.int32),
        ("base_sequence", np.int32),
        ("record_count", np.int32),
        ("crc", np.uint32),
        ("attributes", np.int16),
        ("producer_epoch", np.int16),
        ("magic", np.int8),
        ("crc_ok", np.int8),
        ("reserved", np.int16),
    ]
)
CHECK_DTYPE = np.dtype(
    [
        ("max_timestamp", np.int64),
        ("min_timestamp", np.int64),
        ("timestamps_outside", np.int32),
        ("null_keys", np.int32),
        ("last_offset_delta", np.int32),
        ("flags", np.int32),
    ]
)


def _has_layout_of(dtype: np.dtype[Any], struct: str) -> bool:
    end = 0
    for name in dtype.names or ():
        if ffi.offsetof(struct, name) != end:
            return False
        end += dtype[name].itemsize
    return bool(end == dtype.itemsize == ffi.sizeof(struct))


assert _has_layout_of(BATCH_DTYPE, "struct ls_batch")
assert _has_layout_of(CHECK_DTYPE, "struct ls_record_check")

CRC_VARIANTS = ("table", "sse42", "sse42_3way", "vpclmul", "fused", "armv8")
assert len(CRC_VARIANTS) == lib.LS_CRC_VARIANT_COUNT

SCAN_STOP_END: int = lib.LS_STOP_END
SCAN_STOP_TORN: int = lib.LS_STOP_TORN
SCAN_STOP_INVALID: int = lib.LS_STOP_INVALID
SCAN_STOP_FULL: int = lib.LS_STOP_FULL
SCAN_STOP_LEGACY: int = lib.LS_STOP_LEGACY

CHECK_SEQUENTIAL: int = lib.LS_CHECK_SEQUENTIAL
CHECK_INCREASING: int = lib.LS_CHECK_INCREASING
CHECK_SKIPPED: int = lib.LS_CHECK_SKIPPED

# A scan without a cap begins with room for this many batches and doubles it while they last.
_FIRST_CAP = 256


def address_of(data: Buffer) -> int:
    """Return the address of the first byte; valid while ``data`` is referenced and not resized."""
    return int(ffi.cast("uintptr_t", ffi.from_buffer(data)))


def size_of(data: Buffer) -> int:
    """Return the number of bytes of ``data``, whatever its item size."""
    return len(data) if isinstance(data, bytes | bytearray) else len(ffi.from_buffer(data))


def view_of(data: Buffer) -> memoryview:
    """Return ``data`` as bytes, whatever its item size; not a copy."""
    return memoryview(cast("bytes", data)).cast("B")


# ---- CRC-32C -------------------------------------------------------------------------------------
def crc32c(data: Buffer, crc: int = 0) -> int:
    """
    Return the CRC-32C (Castagnoli) of ``data``.

    Args:
        data: Any bytes.
        crc: The result for the bytes before ``data``, or 0 to start.
    """
    view = ffi.from_buffer(data)
    return int(lib.ls_crc32c(crc, ffi.cast("uintptr_t", view), len(view)))


def crc32c_with(variant: str, data: Buffer, crc: int = 0) -> int | None:
    """Return :func:`crc32c` by one of ``CRC_VARIANTS``, or None if the machine lacks it."""
    view = ffi.from_buffer(data)
    result = lib.ls_crc32c_with(
        CRC_VARIANTS.index(variant), crc, ffi.cast("uintptr_t", view), len(view)
    )
    return None if result < 0 else int(result)


# ---- scan ----------------------------------------------------------------------------------------
class ScanResult(NamedTuple):
    """
    The valid batches at the start of some bytes, and why there are no more.

    Attributes:
        valid_bytes: End of the last valid batch, relative to the bytes.
        next_offset: Largest last offset seen + 1, or what was passed.
        stop: One of ``SCAN_STOP_*``.
        batches: Their headers, ``BATCH_DTYPE``, shape (batch count,).
    """

    valid_bytes: int
    next_offset: int
    stop: int
    batches: npt.NDArray[Any]


def scan_batches(
    data: Buffer,
    *,
    position: int = 0,
    next_offset: int = 0,
    crc: bool = True,
    records: bool = False,
    order: bool = False,
    cap: int | None = None,
) -> ScanResult:
    """
    Walk v2 batches from the first byte and stop at the first that is not valid.

    Args:
        data: Bytes from a batch boundary on.
        position: Added to the position of each batch found: that of ``data`` in its file.
        next_offset: Where the result's ``next_offset`` begins; with ``order`` the smallest base
            offset the first batch may have.
        crc: Verify each CRC-32C.
        records: Check the structure of every record of uncompressed batches, too.
        order: A base offset below the last batch's end makes a batch invalid.
        cap: Stop with ``SCAN_STOP_FULL`` after this many batches; None is all of them.

    Cost: One pass over the bytes with ``crc`` or ``records``, else one read per batch.
    """
    flags = (
        (lib.LS_SCAN_CRC if crc else 0)
        | (lib.LS_SCAN_RECORDS if records else 0)
        | (lib.LS_SCAN_ORDER if order else 0)
    )
    view = ffi.from_buffer(data)
    address = int(ffi.cast("uintptr_t", view))
    size = len(view)
    scan = ffi.new("struct ls_scan *")
    scan.next_offset = next_offset
    parts: list[npt.NDArray[Any]] = []
    valid_bytes = 0
    batch_count = 0
    room = _FIRST_CAP if cap is None else cap
    while True:
        batches = np.empty(max(1, room), BATCH_DTYPE)
        lib.ls_scan_batches(
            address + valid_bytes,
            size - valid_bytes,
            position + valid_bytes,
            scan.next_offset,
            flags,
            address_of(batches),
            room,
            scan,
        )
        parts.append(batches[: scan.batch_count])
        valid_bytes += scan.valid_bytes
        batch_count += scan.batch_count
        if scan.stop != SCAN_STOP_FULL or cap is not None:
            break
        room *= 2
    found = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return ScanResult(valid_bytes, scan.next_offset, scan.stop, found)


class BatchRow(NamedTuple):
    """One header of ``BATCH_DTYPE`` as plain numbers."""

    position: int
    base_offset: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    size_bytes: int
    leader_epoch: int
    base_sequence: int
    record_count: int
    crc: int
    attributes: int
    producer_epoch: int
    magic: int
    crc_ok: int
    reserved: int = 0


BATCH_ROW = struct.Struct("=7q3iI2h2bh")  # A row of BATCH_DTYPE.
_CHECK_ROW = struct.Struct("=2q4i")
_SCAN = ffi.typeof("struct ls_scan *")
_UINTPTR = ffi.typeof("uintptr_t")
assert BATCH_ROW.size == BATCH_DTYPE.itemsize
assert _CHECK_ROW.size == CHECK_DTYPE.itemsize
assert BatchRow._fields == BATCH_DTYPE.names
_CHECK_AND_SCAN_BYTES = _CHECK_ROW.size + ffi.sizeof("struct ls_scan")


class ScannedBatch(NamedTuple):
    """
    The only batch of some bytes.

    Attributes:
        header: One row of ``BATCH_DTYPE``, writable.
        row: The same as numbers.
        check: What :func:`check_records` tells; None: not asked for, or the batch is compressed.
    """

    header: bytearray
    row: BatchRow
    check: RecordCheck | None


def scan_one(data: Buffer, *, records: bool) -> ScannedBatch | None:
    """
    Verify that ``data`` is one v2 batch and nothing else; None if it is not, or is damaged.

    It finds what :func:`scan_batches` or, with ``records``, :func:`scan_checked` would find, for
    the appends of one batch that producers send: a third of the time for a small one.
    """
    view = ffi.from_buffer(data)
    header = bytearray(BATCH_ROW.size)
    rest = bytearray(_CHECK_AND_SCAN_BYTES)
    address = int(ffi.cast(_UINTPTR, ffi.from_buffer(rest)))
    scan = ffi.cast(_SCAN, address + _CHECK_ROW.size)
    header_address = ffi.cast(_UINTPTR, ffi.from_buffer(header))
    data_address = ffi.cast(_UINTPTR, view)
    if records:
        lib.ls_scan_checked(
            data_address,
            len(view),
            0,
            0,
            lib.LS_SCAN_CRC,
            header_address,
            address,
            1,
            INT64_MIN,
            INT64_MAX,
            scan,
        )
    else:
        lib.ls_scan_batches(data_address, len(view), 0, 0, lib.LS_SCAN_CRC, header_address, 1, scan)
    if scan.batch_count != 1 or scan.valid_bytes != len(view):
        return None
    check = _record_check(_CHECK_ROW.unpack_from(rest)) if records else None
    return ScannedBatch(header, BatchRow._make(BATCH_ROW.unpack(header)), check)


class CheckedScan(NamedTuple):
    """A :class:`ScanResult` and, parallel to its batches, what :func:`check_records` tells."""

    scan: ScanResult
    checks: npt.NDArray[Any]

    def rows(self) -> list[tuple[BatchRow, RecordCheck | None]]:
        """Return batches and checks as :class:`ScannedBatch` has them."""
        batches = map(BatchRow._make, self.scan.batches.tolist())
        checks = (_record_check(each) for each in self.checks.tolist())
        return list(zip(batches, checks, strict=True))


def scan_checked(
    data: Buffer,
    *,
    next_offset: int = 0,
    crc: bool = True,
    lowest_timestamp: int = INT64_MIN,
    highest_timestamp: int = INT64_MAX,
    cap: int = _FIRST_CAP,
) -> CheckedScan:
    """
    Scan, and in the same pass check the records of every batch as a leader's validator must.

    ``checks`` has ``CHECK_DTYPE``; a compressed batch has ``CHECK_SKIPPED`` in its flags, and its
    decompressed section goes through :func:`check_records`. After ``SCAN_STOP_FULL`` go on from
    ``valid_bytes``.
    """
    assert cap > 0
    view = ffi.from_buffer(data)
    batches = np.empty(cap, BATCH_DTYPE)
    checks = np.empty(cap, CHECK_DTYPE)
    scan = ffi.new("struct ls_scan *")
    count = lib.ls_scan_checked(
        ffi.cast("uintptr_t", view),
        len(view),
        0,
        next_offset,
        lib.LS_SCAN_CRC if crc else 0,
        address_of(batches),
        address_of(checks),
        cap,
        lowest_timestamp,
        highest_timestamp,
        scan,
    )
    result = ScanResult(scan.valid_bytes, scan.next_offset, scan.stop, batches[:count])
    return CheckedScan(result, checks[:count])


def find_batch(data: Buffer, offset: int) -> int | None:
    """
    Return the position of the first entry whose last offset is >= ``offset``, or None.

    The bytes may end inside an entry; only headers are read, and CRCs are not checked.

    Raises:
        CorruptRecordError: A length or magic on the way is impossible.
    """
    view = ffi.from_buffer(data)
    position = lib.ls_find_batch(ffi.cast("uintptr_t", view), len(view), offset)
    if position < -1:
        message = f"no batch header where one must be, on the way to offset {offset}; run verify"
        raise CorruptRecordError(message, offset=offset)
    return None if position < 0 else int(position)


# ---- records -------------------------------------------------------------------------------------
class RecordCheck(NamedTuple):
    """
    What a leader's validator must know of the records of one batch.

    Attributes:
        max_timestamp: Of the records themselves, -1 or more, as Kafka computes it.
        min_timestamp: Of the records themselves; 2^63 - 1 without records.
        timestamps_outside: Records whose timestamp is not -1 and outside the given bounds.
        null_keys: Records whose key is null.
        last_offset_delta: Of the last record; -1 without records.
        sequential: Offset deltas are 0, 1, 2, …
        increasing: Offset deltas are >= 0 and strictly increasing.
    """

    max_timestamp: int
    min_timestamp: int
    timestamps_outside: int
    null_keys: int
    last_offset_delta: int
    sequential: bool
    increasing: bool


def _record_check(row: tuple[int, ...]) -> RecordCheck | None:
    """Return a native ``ls_record_check`` as what it says, None if the batch is compressed."""
    *found, flags = row
    if flags & CHECK_SKIPPED:
        return None
    return RecordCheck._make(
        (*found, bool(flags & CHECK_SEQUENTIAL), bool(flags & CHECK_INCREASING))
    )


def check_records(
    section: Buffer,
    record_count: int,
    base_timestamp: int,
    *,
    lowest_timestamp: int = INT64_MIN,
    highest_timestamp: int = INT64_MAX,
) -> RecordCheck:
    """
    Check the structure of every record of one plain records section, headers included.

    Raises:
        InvalidRecordError: A record breaks a rule of spec 1.4, or bytes are missing or left.
    """
    view = ffi.from_buffer(section)
    check = ffi.new("struct ls_record_check *")
    result = lib.ls_check_records(
        ffi.cast("uintptr_t", view),
        len(view),
        record_count,
        base_timestamp,
        lowest_timestamp,
        highest_timestamp,
        check,
    )
    if result < 0:
        raise _malformed(record_count, len(view))
    return RecordCheck(
        check.max_timestamp,
        check.min_timestamp,
        check.timestamps_outside,
        check.null_keys,
        check.last_offset_delta,
        bool(check.flags & CHECK_SEQUENTIAL),
        bool(check.flags & CHECK_INCREASING),
    )


class RecordColumns(NamedTuple):
    """
    Where the parts of each record are, relative to the section.

    Sizes are -1 for null; the position is then meaningless. ``header_positions`` is where
    headersCount begins, ``header_sizes`` the bytes from there to the record's end.

    Shapes: int64 or int32 (sizes), shape (record count,).
    """

    offsets: npt.NDArray[np.int64]
    timestamps: npt.NDArray[np.int64]
    key_positions: npt.NDArray[np.int64]
    key_sizes: npt.NDArray[np.int32]
    value_positions: npt.NDArray[np.int64]
    value_sizes: npt.NDArray[np.int32]
    header_positions: npt.NDArray[np.int64]
    header_sizes: npt.NDArray[np.int32]


def decode_records(
    section: Buffer,
    *,
    base_offset: int,
    base_timestamp: int,
    log_append_time: int = -1,
    record_count: int,
) -> RecordColumns:
    """
    Take the records section of one batch apart; it is plain, or already decompressed.

    Args:
        section: The bytes after the batch header.
        base_offset: The header's.
        base_timestamp: The header's, or its delete horizon.
        log_append_time: The header's max timestamp if its type is LogAppendTime, else -1.
        record_count: The header's.

    Raises:
        InvalidRecordError: A record breaks a rule of spec 1.4, or bytes are missing or left.
    """
    view = ffi.from_buffer(section)
    # A record takes 7 bytes or more: do not allocate for a count that cannot be.
    if not 0 <= record_count <= len(view) // 7:
        raise _malformed(record_count, len(view))
    columns = RecordColumns(
        np.empty(record_count, np.int64),
        np.empty(record_count, np.int64),
        np.empty(record_count, np.int64),
        np.empty(record_count, np.int32),
        np.empty(record_count, np.int64),
        np.empty(record_count, np.int32),
        np.empty(record_count, np.int64),
        np.empty(record_count, np.int32),
    )
    struct = ffi.new("struct ls_record_columns *", [address_of(column) for column in columns])
    result = lib.ls_decode_records(
        ffi.cast("uintptr_t", view),
        len(view),
        base_offset,
        base_timestamp,
        log_append_time,
        record_count,
        struct,
    )
    if result < 0:
        raise _malformed(record_count, len(view))
    return columns


def find_record(section: Buffer, record_count: int, offset_delta: int) -> tuple[int, int] | None:
    """
    Return (position, offset delta) of the first record at or after ``offset_delta``, or None.

    Raises:
        InvalidRecordError: A record on the way breaks a rule of the format.
    """
    view = ffi.from_buffer(section)
    found_delta = ffi.new("int32_t *")
    position = lib.ls_find_record(
        ffi.cast("uintptr_t", view), len(view), record_count, offset_delta, found_delta
    )
    if position < -1:
        raise _malformed(record_count, len(view))
    return None if position < 0 else (int(position), int(found_delta[0]))


def _malformed(record_count: int, size: int) -> InvalidRecordError:
    return InvalidRecordError(
        f"{size} bytes do not hold exactly {record_count} well-formed records; run verify"
    )
