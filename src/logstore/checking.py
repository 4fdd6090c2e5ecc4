"""
The invariants of a log, checked against its files: what must hold whatever was done before.

Source: spec 5.1 (invariants), 3 (indexes), 5.10 (epochs).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from logstore._native import BATCH_DTYPE
from logstore.errors import CorruptRecordError, InvalidRecordError
from logstore.segment import SEGMENT_BYTES_MAX

if TYPE_CHECKING:
    from logstore.segment import LogSegment
    from logstore.unified_log import UnifiedLog


def broken_invariants(log: UnifiedLog) -> Iterator[str]:
    """Yield a sentence for each invariant that does not hold; nothing else may write meanwhile."""
    yield from _offsets(log)
    segments = log.segments
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        end = log.log_end_offset if following is None else following.base_offset
        yield from _segment(segment, end, is_active=following is None)
    yield from _epochs(log)


def _offsets(log: UnifiedLog) -> Iterator[str]:
    offsets = log.offsets
    if not (
        0
        <= offsets.log_start_offset
        <= offsets.last_stable_offset
        <= offsets.high_watermark
        <= offsets.log_end_offset
    ):
        yield f"the offsets are not in order: {offsets}"
    if not 0 <= offsets.recovery_point <= offsets.log_end_offset:
        yield f"the recovery point is beyond the log end: {offsets}"
    unstable = log.first_unstable_offset
    if unstable is not None and unstable < offsets.last_stable_offset:
        yield f"the first unstable offset {unstable} is below the last stable one: {offsets}"
    if log.segments[0].base_offset > offsets.log_start_offset:
        yield (
            f"the first segment begins at {log.segments[0].base_offset}, above the log start"
            f" {offsets.log_start_offset}"
        )
    if log.active_segment.base_offset > offsets.log_end_offset:
        yield f"the active segment begins beyond the log end: {offsets}"


def _segment(segment: LogSegment, end: int, *, is_active: bool) -> Iterator[str]:
    name = segment.log_path
    size_bytes = segment.size_bytes
    file_bytes = segment.files.file_size(name)
    if size_bytes > min(file_bytes, SEGMENT_BYTES_MAX):
        yield f"{name}: {size_bytes} bytes are recorded, the file has {file_bytes}"
    if not is_active and file_bytes != size_bytes:
        yield f"{name}: a sealed segment of {size_bytes} bytes has a file of {file_bytes}"

    rows = []
    next_offset = segment.base_offset
    position = 0
    try:
        for header in segment.headers():
            if header.base_offset < next_offset and header.magic >= 2:
                yield f"{name}: the batch at {header.position} goes back below {next_offset}"
            segment.batch_at(header).ensure_valid()
            next_offset = header.next_offset
            position = header.end
            rows.append((header.position, header.last_offset, header.max_timestamp))
    except (CorruptRecordError, InvalidRecordError) as error:
        yield f"{name}: {error}"
    if position != size_bytes:
        yield f"{name}: batches end at {position}, the segment at {size_bytes}"
    if next_offset > end:
        yield f"{name}: ends at offset {next_offset}, beyond {end}"
    segment.take_index_entries()
    batches = _batches(rows)
    for index in (segment.offset_index, segment.time_index):
        for problem in index.check(batches):
            yield f"{name}: {problem}"
    for problem in segment.txn_index.check():
        yield f"{name}: {problem}"


def _batches(rows: list[tuple[int, int, int]]) -> Any:
    batches = np.zeros(len(rows), BATCH_DTYPE)
    if rows:
        batches["position"], batches["last_offset"], batches["max_timestamp"] = zip(
            *rows, strict=True
        )
    return batches


def _epochs(log: UnifiedLog) -> Iterator[str]:
    before = None
    for entry in log.leader_epochs.epoch_entries:
        if before is not None and not (
            before.epoch < entry.epoch and before.start_offset < entry.start_offset
        ):
            yield f"leader epochs are not ascending: {before}, {entry}"
        before = entry
