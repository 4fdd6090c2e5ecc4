"""Index entries of batches, and searches in them: typed wrappers of the pure functions in C."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from logstore._native._core import ffi, lib
from logstore._native.kernels import BATCH_DTYPE, INT64_MAX, address_of


class IndexState:
    """
    What a segment's appends keep from batch to batch to make Kafka's index entries.

    ``struct`` is the C struct ``ls_index_state``; its fields can be read and set.

    Source: Kafka ``LogSegment.append``; spec 4.2 and 4.7 have the same rule.
    """

    __slots__ = ("struct",)

    def __init__(
        self,
        base_offset: int,
        index_interval_bytes: int,
        *,
        offset_entries_room: int = INT64_MAX,
        time_entries_room: int = INT64_MAX,
        bytes_since_last_index_entry: int = 0,
        max_timestamp: int = -1,
        offset_of_max_timestamp: int = -1,
        last_time_entry_timestamp: int = -1,
        last_time_entry_offset: int = -1,
    ) -> None:
        self.struct = ffi.new("struct ls_index_state *")
        self.struct.base_offset = base_offset
        self.struct.index_interval_bytes = index_interval_bytes
        self.struct.offset_entries_room = offset_entries_room
        self.struct.time_entries_room = time_entries_room
        self.struct.bytes_since_last_index_entry = bytes_since_last_index_entry
        self.struct.max_timestamp = max_timestamp
        self.struct.offset_of_max_timestamp = offset_of_max_timestamp
        self.struct.last_time_entry_timestamp = last_time_entry_timestamp
        self.struct.last_time_entry_offset = last_time_entry_offset


def index_batches(batches: npt.NDArray[Any], state: IndexState) -> tuple[bytes, bytes]:
    """
    Return the offset and time index entries that Kafka makes for ``batches``, and update ``state``.

    Args:
        batches: ``BATCH_DTYPE``, positions as in the segment file.
        state: From the batches before.

    Raises:
        OverflowError: An offset or position does not fit the segment's 31 bits; the entries and
            the state of the batches before are lost with it.
    """
    assert batches.dtype == BATCH_DTYPE
    assert batches.flags.c_contiguous
    count = len(batches)
    offset_entries = bytearray(8 * count)
    time_entries = bytearray(12 * count)
    made = ffi.new("struct ls_index_made *")
    result = lib.ls_index_batches(
        address_of(batches),
        count,
        state.struct,
        address_of(offset_entries),
        count,
        address_of(time_entries),
        count,
        made,
    )
    if result < 0:
        message = (
            f"batch {made.batches} is not within 2^31 - 1 of base offset {state.struct.base_offset}"
        )
        raise OverflowError(message)
    assert result == count
    return bytes(offset_entries[: 8 * made.offset_entries]), bytes(
        time_entries[: 12 * made.time_entries]
    )


def offset_index_lookup(address: int, count: int, relative_offset: int) -> int:
    """Return the slot of the last entry whose relative offset is <= the target, or -1."""
    return int(lib.ls_offset_index_lookup(address, count, relative_offset))


def offset_index_upper_bound(address: int, count: int, position: int) -> int:
    """Return the slot of the first entry whose position is >= the target, or -1."""
    return int(lib.ls_offset_index_upper_bound(address, count, position))


def time_index_lookup(address: int, count: int, timestamp: int) -> int:
    """Return the slot of the last entry whose timestamp is <= the target, or -1."""
    return int(lib.ls_time_index_lookup(address, count, timestamp))


def time_index_lookup_offset(address: int, count: int, relative_offset: int) -> int:
    """Return the slot of the last entry whose relative offset is <= the target, or -1."""
    return int(lib.ls_time_index_lookup_offset(address, count, relative_offset))


def offset_index_check(address: int, count: int) -> int:
    """Return the first slot whose offset or position does not increase, or -1."""
    return int(lib.ls_offset_index_check(address, count))


def time_index_check(address: int, count: int) -> int:
    """Return the first slot whose timestamp does not increase or offset decreases, or -1."""
    return int(lib.ls_time_index_check(address, count))
