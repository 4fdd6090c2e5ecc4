"""
Producer state from what the log holds: at load and after a truncation.

A snapshot says what was known at one offset; the batches after it say the rest. Only batches with a
producer id are looked at, and their records only if they are control batches.

Source: Kafka ``UnifiedLog.rebuildProducerState``; spec 5.9, "Rebuild".
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

import numpy as np

from logstore._native import SCAN_STOP_END, SCAN_STOP_TORN, scan_batches
from logstore.errors import CorruptRecordError, DiskFullError
from logstore.producer_snapshot import NO_PRODUCER_ID
from logstore.record import RecordBatch
from logstore.validator import AppendOrigin

if TYPE_CHECKING:
    from logstore.producer_state import ProducerStateManager
    from logstore.segment import LogSegment

logger = logging.getLogger(__name__)

STEP_BYTES: Final = 1 << 20


def rebuild_producer_state(
    producer_state: ProducerStateManager,
    segments: Iterable[LogSegment],
    log_start_offset: int,
    last_offset: int,
    now_ms: int,
    *,
    reload_from_clean_shutdown: bool,
    withdraw: bool = False,
) -> None:
    """
    Bring producer state to ``last_offset`` and leave a snapshot there.

    Begins at the newest snapshot that can be read. Snapshots are also left at the base offsets of
    the last two segments, so that a truncation finds one.

    Kafka takes a log that ended cleanly and has no snapshot at all for one from before producer
    state existed, and scans nothing: an open transaction is forgotten, its records become visible.
    Here that log is read too; afterwards the same snapshots exist.

    ``segments`` are all segments, ascending. Afterwards the state is that of all batches below
    ``last_offset``. With ``withdraw`` the snapshots above it are withdrawn, not deleted: they are
    going to be taken again.
    """
    segments = list(segments)
    wanted = {segment.base_offset for segment in segments[-2:]} | {last_offset}
    if reload_from_clean_shutdown and producer_state.latest_snapshot_offset is None:
        ends = [segment.base_offset for segment in segments[1:]] + [last_offset]
        for segment, end in zip(segments, ends, strict=True):
            if (
                segment.base_offset in wanted
                and segment.base_offset >= producer_state.map_end_offset
            ):
                producer_state.update_map_end_offset(segment.base_offset)
                take_snapshot(producer_state)
            if end > log_start_offset:  # Below it, no record counts.
                _read_segment(producer_state, segment, set(), log_start_offset, last_offset)
        for offset in sorted(wanted):
            if offset >= producer_state.map_end_offset:
                producer_state.update_map_end_offset(offset)
                take_snapshot(producer_state)
        return

    was_empty_before = producer_state.is_empty and producer_state.map_end_offset >= last_offset
    producer_state.truncate_and_reload(log_start_offset, last_offset, now_ms, withdraw=withdraw)
    if last_offset > producer_state.map_end_offset and not was_empty_before:
        read_producer_batches(producer_state, segments, log_start_offset, last_offset, wanted)
    producer_state.update_map_end_offset(last_offset)
    take_snapshot(producer_state)


def read_producer_batches(
    producer_state: ProducerStateManager,
    segments: Sequence[LogSegment],
    log_start_offset: int,
    last_offset: int,
    wanted: AbstractSet[int] = frozenset(),
) -> None:
    """
    Apply the batches below ``last_offset`` that the state does not hold yet.

    ``segments`` are all segments, ascending; a snapshot is left at the base offsets in ``wanted``.
    """
    # The segment that holds the map's end, and those behind it.
    first = bisect_right(segments, producer_state.map_end_offset, key=_base_offset_of) - 1
    for segment in segments[max(0, first) :]:
        if segment.base_offset < last_offset:
            _read_segment(producer_state, segment, wanted, log_start_offset, last_offset)
    producer_state.update_map_end_offset(last_offset)


def _base_offset_of(segment: LogSegment) -> int:
    return segment.base_offset


def take_snapshot(producer_state: ProducerStateManager, *, sync: bool = True) -> None:
    """Leave a snapshot; on a full disk none, and the next load reads more of the log."""
    try:
        producer_state.take_snapshot(sync=sync)
    except DiskFullError as error:
        logger.warning("no producer snapshot was written: %s", error)


def _read_segment(
    producer_state: ProducerStateManager,
    segment: LogSegment,
    wanted: AbstractSet[int],
    log_start_offset: int,
    last_offset: int,
) -> None:
    """Apply a segment's batches below ``last_offset`` that the state does not hold yet."""
    start_offset = max(segment.base_offset, producer_state.map_end_offset, log_start_offset)
    producer_state.update_map_end_offset(start_offset)
    if segment.base_offset in wanted:
        take_snapshot(producer_state)
    for batch in producer_batches(segment, start_offset, last_offset):
        append_info = producer_state.prepare_update(batch.producer_id, AppendOrigin.REPLICATION)
        completed = append_info.append(batch)
        producer_state.update(append_info)
        if completed is not None:
            producer_state.complete_txn(completed)


def producer_batches(
    segment: LogSegment, start_offset: int, end_offset: int, attributes: int = 0
) -> Iterator[RecordBatch]:
    """
    Yield the batches of producers in a segment, from the one that holds ``start_offset`` on.

    Only those that have all bits of ``attributes`` set.

    Ends before the first batch that holds ``end_offset`` or lies above it, and at damage.
    """
    try:
        found = segment.translate_offset(start_offset)
    except CorruptRecordError:
        return
    if found is None:
        return
    position, end = found.position, segment.size_bytes
    step_bytes = STEP_BYTES
    while position < end:
        data = segment.read_at(position, min(step_bytes, end - position))
        scan = scan_batches(data, crc=False)
        batches = scan.batches
        beyond = np.flatnonzero(batches["last_offset"] >= end_offset)
        if len(beyond):
            batches = batches[: beyond[0]]
        is_wanted = batches["producer_id"] != NO_PRODUCER_ID
        if attributes:
            is_wanted &= (batches["attributes"] & attributes) == attributes
        for at in np.flatnonzero(is_wanted).tolist():
            yield RecordBatch(data, int(batches["position"][at]))
        if len(beyond):
            return
        consumed, step_bytes = scan.valid_bytes, STEP_BYTES
        if scan.stop not in (SCAN_STOP_END, SCAN_STOP_TORN):
            # Magic 0, 1, or a future one.
            foreign_bytes = _foreign_bytes(segment, position + consumed)
            if foreign_bytes == 0:
                return
            consumed += foreign_bytes
        elif consumed == 0:
            step_bytes = _entry_bytes(data)
            if step_bytes > end - position:
                return
        if consumed == 0 and step_bytes <= len(data):
            return
        position += consumed


def _foreign_bytes(segment: LogSegment, position: int) -> int:
    """Return the size of an entry that is not a v2 batch, 0 if it is none."""
    try:
        for header in segment.headers(position):
            return header.size_bytes
    except CorruptRecordError:
        pass
    return 0


def _entry_bytes(data: bytes) -> int:
    return 12 + int.from_bytes(data[8:12], "big", signed=True) if len(data) >= 12 else 1 << 62
