"""
A segment that replaces others: written under ``.cleaned`` names, and made durable before the swap.

What is appended gets Kafka's index entries, as in a live segment; the files are nobody's before
``LocalLog.replace_segments`` has given them their place. The next load deletes what a crash leaves.

Source: Kafka ``UnifiedLog.createNewCleanedSegment``, ``LogSegment.append``; spec 6.3, 7.4.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from logstore._native import BATCH_DTYPE, IndexState, index_batches, scan_batches, size_of, view_of
from logstore.entries import EntryHeader, entry_headers
from logstore.errors import SegmentOffsetOverflowError, StorageError
from logstore.index import AbortedTxn, OffsetIndex, TimeIndex, TimestampOffset
from logstore.index_file import RELATIVE_OFFSET_MAX
from logstore.segment import (
    CLEANED_SUFFIX,
    SEGMENT_BYTES_MAX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    LogSegment,
    segment_file_name,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from logstore._native import Buffer
    from logstore.clock import Clock
    from logstore.config import LogConfig
    from logstore.files import Files
    from logstore.flushing import Poison

COPY_BYTES: Final = 1 << 20


class CleanedSegment:
    """
    One ``.cleaned`` segment while it is written.

    Args:
        directory: The log's.
        base_offset: That of the first segment that it replaces.
        config: The log's.

    Attributes:
        segment: The segment; sealed after :meth:`finish`.

    **Thread rule**: one thread.
    """

    __slots__ = ("_directory", "_files", "_state", "segment")

    def __init__(
        self,
        directory: str,
        base_offset: int,
        config: LogConfig,
        *,
        files: Files,
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._files = files
        for suffix in SEGMENT_SUFFIXES:  # A leftover of a cleaning that failed.
            name = segment_file_name(base_offset, suffix) + CLEANED_SUFFIX
            files.unlink(os.path.join(directory, name), missing_ok=True)
        self.segment: Final = LogSegment(
            directory,
            base_offset,
            config,
            files=files,
            clock=clock,
            file_suffix=CLEANED_SUFFIX,
            is_fresh=True,
        )
        self.segment.make(config)
        self._state = IndexState(
            base_offset,
            config.index_interval_bytes,
            offset_entries_room=config.segment_index_bytes // OffsetIndex.ENTRY_BYTES,
            # One is kept for the last entry.
            time_entries_room=config.segment_index_bytes // TimeIndex.ENTRY_BYTES - 1,
        )

    @property
    def base_offset(self) -> int:
        """The segment's base offset."""
        return self.segment.base_offset

    @property
    def size_bytes(self) -> int:
        """Bytes written."""
        return self.segment.size_bytes

    def append(self, data: Buffer) -> None:
        """
        Write whole batches behind those that are there.

        Raises:
            SegmentOffsetOverflowError: An offset is too far above the base offset.
            StorageError: They cannot be written; the segment is of no use any more.
        """
        if size_of(data) == 0:
            return
        headers = _headers_of(data, self.segment.size_bytes)
        last_offset = int(headers["last_offset"].max())
        if last_offset - self.base_offset > RELATIVE_OFFSET_MAX:
            raise SegmentOffsetOverflowError(
                f"offset {last_offset} is not within 2^31 - 1 of base offset {self.base_offset};"
                " the segment must be split",
                path=self.segment.log_path,
                offset=last_offset,
            )
        offset_entries, time_entries = index_batches(headers, self._state)
        self.segment.append_sealed(data, offset_entries, time_entries)

    def append_aborted(self, txn: AbortedTxn) -> None:
        """Note an aborted transaction whose marker is in this segment."""
        self.segment.txn_index.append(txn)

    def finish(self, modified_ms: int) -> LogSegment:
        """
        Seal the segment and return it.

        **Durability**: its files survive a power loss, under their ``.cleaned`` names.

        Args:
            modified_ms: The modification time it gets: that of the last segment it replaces.
        """
        state = self._state.struct
        self.segment.set_max_timestamp(
            TimestampOffset(int(state.max_timestamp), int(state.offset_of_max_timestamp))
            if state.max_timestamp >= 0
            else TimestampOffset(-1, self.base_offset)
        )
        self.segment.on_become_inactive()
        self.segment.flush()
        self.segment.set_modified_ms(modified_ms)
        self._files.fsync_directory(self._directory)
        return self.segment

    @property
    def is_unused(self) -> bool:
        """Whether no log has taken the segment over."""
        return self.segment.has_suffix(CLEANED_SUFFIX)

    def discard(self) -> None:
        """Delete the files, as far as that is possible: a load does so, too."""
        with contextlib.suppress(StorageError):
            self.segment.delete_if_exists()


def commit_replacements(segments: list[LogSegment], poison: Poison) -> None:
    """
    Rename segments' files from ``.cleaned`` to ``.swap``, the last segment's first.

    The next load completes the replacement once all are renamed, and drops it before.

    Raises:
        StorageError: They are all ``.cleaned`` again, or the log is poisoned.
    """
    swapped: list[LogSegment] = []
    try:
        for segment in reversed(segments):
            segment.change_file_suffixes(CLEANED_SUFFIX, SWAP_SUFFIX)
            swapped.append(segment)
    except BaseException as error:
        try:
            for segment in reversed(swapped):
                segment.change_file_suffixes(SWAP_SUFFIX, CLEANED_SUFFIX)
        except BaseException:
            poison.note(error)
            raise
        if any(not segment.has_suffix(CLEANED_SUFFIX) for segment in segments):
            poison.note(error)
        raise


def _headers_of(data: Buffer, position: int) -> npt.NDArray[Any]:
    """Return the headers of whole entries, ``BATCH_DTYPE``."""
    scan = scan_batches(data, position=position, crc=False)
    if scan.valid_bytes == size_of(data):
        return scan.batches
    # A magic 0 or 1 entry among them.
    view = view_of(data)
    entries = entry_headers(lambda at, size: bytes(view[at : at + size]), 0, len(view))
    rows = [_row(entry) for entry in entries]
    headers = np.zeros(len(rows), BATCH_DTYPE)
    for name in ("position", "size_bytes", "magic", "base_offset", "last_offset", "max_timestamp"):
        headers[name] = [row[name] for row in rows]
    headers["position"] += position
    return headers


def _row(entry: EntryHeader) -> dict[str, int]:
    return entry._asdict()


def split_overflowed_segment(
    segment: LogSegment, config: LogConfig, *, files: Files, clock: Clock
) -> list[LogSegment]:
    """
    Return sealed ``.cleaned`` segments with the batches of one, whose offsets do not fit it.

    **Durability**: they are on the device; the segment itself is as it was.

    Raises:
        StorageError: The parts are deleted again.

    Source: Kafka ``LocalLog.splitOverflowedSegment``; spec 6.4.
    """
    parts: list[CleanedSegment] = []
    modified_ms = segment.modified_ms()
    try:
        for base_offset, start, end in _fitting_ranges(segment):
            part = CleanedSegment(segment.directory, base_offset, config, files=files, clock=clock)
            parts.append(part)
            batches = [(header.position, header.end) for header in segment.headers(start, end)]
            for first, stop in _steps(batches):
                part.append(segment.read_at(first, stop - first))
        assert sum(part.size_bytes for part in parts) == segment.size_bytes
        return [part.finish(modified_ms) for part in parts]
    except BaseException:
        for part in parts:
            part.discard()
        raise


def _fitting_ranges(segment: LogSegment) -> list[tuple[int, int, int]]:
    """Return (base offset, start, end) of ranges whose offsets each fit a segment."""
    ranges: list[tuple[int, int, int]] = []
    for header in segment.headers():
        last = ranges[-1] if ranges else None
        if (
            last is not None
            and header.last_offset - last[0] <= RELATIVE_OFFSET_MAX
            and header.end - last[1] <= SEGMENT_BYTES_MAX
        ):
            ranges[-1] = (last[0], last[1], header.end)
        else:
            ranges.append((header.base_offset, header.position, header.end))
    return ranges


def _steps(batches: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join neighbouring ranges to pieces of about ``COPY_BYTES``."""
    steps: list[tuple[int, int]] = []
    for start, end in batches:
        if steps and end - steps[-1][0] <= COPY_BYTES:
            steps[-1] = (steps[-1][0], end)
        else:
            steps.append((start, end))
    return steps
