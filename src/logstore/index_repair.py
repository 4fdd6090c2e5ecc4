"""
Indexes of a sealed segment that cannot be right: found at their first use, and made again.

A load looks at names and at the active segment only, so that a log of a thousand segments opens at
once. The indexes of a sealed one are looked at when they are first needed: their size, the order of
their entries, where the last ones point. What a wrong entry between right ones could do is not
much: answers are checked against the batches that they name (DESIGN.md D5).

The new entries come from the batch headers, whether the batches themselves are whole or not: damage
further on does not make what lies behind it slow to find. On a full disk the indexes stay empty,
which is slow and right.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from logstore._native import (
    BATCH_DTYPE,
    SCAN_STOP_END,
    SCAN_STOP_TORN,
    IndexState,
    index_batches,
    offset_index_check,
    scan_batches,
    time_index_check,
)
from logstore.entries import EntryHeader, largest_timestamp
from logstore.errors import CorruptRecordError, DiskFullError
from logstore.index import TimestampOffset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logstore.recovery import RecoverableSegment

    class RepairableSegment(RecoverableSegment, Protocol):
        """What a repair needs of a segment."""

        def append_index_entries(self, offset_entries: bytes, time_entries: bytes) -> None:
            """Append ready-made entries to both indexes."""
            ...

        @property
        def is_writable(self) -> bool:
            """Whether the files may be changed."""
            ...

        def read_at(self, position: int, size: int) -> bytes:
            """Return bytes of the log file."""
            ...

        def headers(self, start: int = 0, end: int | None = None) -> Iterator[EntryHeader]:
            """Yield the headers of its entries."""
            ...

        def holds_time_entry(self, entry: TimestampOffset) -> bool:
            """Whether the batch that a time index entry names has its timestamp."""
            ...

        def rolling_based_timestamp(self) -> int | None:
            """Return the first batch's largest timestamp."""
            ...

        def set_max_timestamp(self, largest: TimestampOffset) -> None:
            """Take over the largest timestamp and the last offset of its batch."""
            ...


logger = logging.getLogger(__name__)

STEP_BYTES: Final = 1 << 20


def index_problem(segment: RepairableSegment) -> str | None:
    """
    Return why a segment's indexes cannot be right, None if nothing is seen.

    Cost: a pass over the index entries, in C, and one batch header.
    """
    offset_index, time_index = segment.offset_index, segment.time_index
    problem = offset_index.tail_problem(segment.size_bytes)
    if problem is None and offset_index.unordered_slot(offset_index_check) >= 0:
        problem = "entries are not in order"
    if problem is not None:
        return f"offset index: {problem}"
    problem = time_index.tail_problem()
    if problem is None and time_index.unordered_slot(time_index_check) >= 0:
        problem = "entries are not in order"
    if problem is None and time_index.entry_count > 0:
        last = time_index.last_entry
        if not segment.holds_time_entry(last):
            problem = f"no batch has the timestamp {last.timestamp} at offset {last.offset}"
    elif problem is None and (segment.rolling_based_timestamp() or -1) >= 0:
        problem = "it is empty, and the segment has timestamps"
    return None if problem is None else f"time index: {problem}"


def repair_indexes(segment: RepairableSegment) -> None:
    """Look at the indexes of a segment and make them again if they cannot be right."""
    problem = index_problem(segment)
    if problem is None:
        return
    if not segment.is_writable:
        logger.warning("%s: %s; reading without the indexes", segment.log_path, problem)
        segment.offset_index.limit_entry_count(0)
        segment.time_index.limit_entry_count(0)
        segment.set_max_timestamp(_largest_timestamp(segment))
        return
    logger.warning("%s: %s; making the indexes again", segment.log_path, problem)
    try:
        _rebuild(segment)
    except DiskFullError as error:
        logger.warning("%s: the indexes stay empty: %s", segment.log_path, error)
        segment.offset_index.truncate()
        segment.time_index.truncate()
        segment.set_max_timestamp(_largest_timestamp(segment))


def _largest_timestamp(segment: RepairableSegment) -> TimestampOffset:
    """Return what the time index would tell. Cost: all headers of the segment."""
    return largest_timestamp(_until_damage(segment), TimestampOffset(-1, segment.base_offset))


def _until_damage(segment: RepairableSegment) -> Iterator[EntryHeader]:
    with contextlib.suppress(CorruptRecordError):
        yield from segment.headers()


def _rebuild(segment: RepairableSegment) -> None:
    segment.offset_index.reset()
    segment.time_index.reset()
    state = IndexState(
        segment.base_offset,
        segment.index_interval_bytes,
        offset_entries_room=segment.offset_index.max_entries,
        time_entries_room=segment.time_index.max_entries - 1,
    )
    position, end = 0, segment.size_bytes
    last_offset = segment.base_offset - 1
    step_bytes = STEP_BYTES
    while position < end:
        data = segment.read_at(position, min(step_bytes, end - position))
        scan = scan_batches(data, position=position, crc=False)
        batches = scan.batches
        consumed, step_bytes = scan.valid_bytes, STEP_BYTES
        if scan.stop not in (SCAN_STOP_END, SCAN_STOP_TORN):
            foreign = _foreign_batch(segment, position + consumed)
            if foreign is None and consumed == 0:
                return
            if foreign is not None:
                batches = np.concatenate([batches, foreign])
                consumed += int(foreign["size_bytes"][0])
        elif consumed == 0:
            step_bytes = 12 + int.from_bytes(data[8:12], "big", signed=True)
            if not len(data) < step_bytes <= end - position:
                return
        # An entry for a batch that is there twice would not be above the one before.
        before = np.maximum.accumulate(np.concatenate([[last_offset], batches["last_offset"]]))
        batches = batches[batches["last_offset"] > before[:-1]]
        last_offset = int(before[-1])
        try:
            entries = index_batches(batches, state)
        except OverflowError:
            return  # A damaged base offset. Without entries the segment is scanned.
        segment.append_index_entries(*entries)
        position += consumed
    largest = state.struct
    segment.time_index.maybe_append(
        int(largest.max_timestamp), int(largest.offset_of_max_timestamp), skip_full_check=True
    )
    segment.offset_index.trim_to_valid_size()
    segment.time_index.trim_to_valid_size()


def _foreign_batch(segment: RepairableSegment, position: int) -> Any:
    """Return a row for an entry that is not a v2 batch, None if there is none."""
    with contextlib.suppress(CorruptRecordError):
        for header in segment.headers(position):
            row = np.zeros(1, BATCH_DTYPE)
            for name in ("position", "size_bytes", "base_offset", "last_offset", "max_timestamp"):
                row[name] = getattr(header, name)
            return row
    return None
