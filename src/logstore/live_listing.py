"""
The segments of a log that another process writes, as a look at its directory finds them.

Source: DESIGN.md D3, D6.
"""

from __future__ import annotations

import enum
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.aborted_finder import AbortedFinder
from logstore.errors import LogStoreError, StorageError
from logstore.leftovers import offset_of_file
from logstore.live_segment import LiveSegment
from logstore.segment import LOG_SUFFIX, TXN_INDEX_SUFFIX, segment_file_name

if TYPE_CHECKING:
    from logstore._native import LivePage, PageOffsets
    from logstore.clock import Clock
    from logstore.config import LogConfig
    from logstore.file_records import LogOffsetMetadata
    from logstore.files import Files
    from logstore.live_offsets import LiveFile
    from logstore.segment import LogSegment

LISTINGS_MAX: Final = 4  # Of a look, while truncations go deeper and deeper.


class State(enum.Enum):
    """Who writes the log; see the module."""

    LIVE = "live"
    FLUSHED = "flushed"
    CLOSED = "closed"


class Seen(NamedTuple):
    """
    What a look has found.

    Attributes:
        state: Who writes the log.
        segments: Ascending, at least one.
        log_end: The log end offset, and where it is.
        log_start_offset: The first offset that may be read.
        high_watermark: Below it everything is replicated.
        first_unstable_offset: The first offset of the first undecided transaction.
        recovery_point: Below it everything is on the device.
        shown: What the writer shows, if it does.
        is_cut: It truncates; what is below that is seen.
    """

    state: State
    segments: list[LogSegment]
    log_end: LogOffsetMetadata
    log_start_offset: int
    high_watermark: int
    first_unstable_offset: int | None
    recovery_point: int
    shown: PageOffsets | None
    is_cut: bool = False


class LiveListing:
    """
    Lists one log's segments; see the module.

    **Thread rule**: any thread; segments that are gone on with change, so under the view's lock.
    """

    def __init__(self, directory: str, config: LogConfig, *, files: Files, clock: Clock) -> None:
        self._directory = directory
        self._config = config
        self._files = files
        self._clock = clock

    def below_truncations(
        self, file: LiveFile, shown: PageOffsets, before: Seen | None
    ) -> tuple[list[LogSegment] | None, int | None]:
        """
        Return the segments that belong to what is shown, and where they end if that is not the end.

        Below the lowest target of the truncations since then, the log is as it was, also while they
        are under way: a writer that truncates all the time keeps nobody from reading the rest. No
        segments: nothing is below it. None: the directory has changed meanwhile.
        """
        page = file.page
        cut = page.truncated_to(shown.truncation_count)
        for _ in range(LISTINGS_MAX):
            if cut is not None and cut <= max(shown.log_start_offset, 0):
                return ([] if cut >= 0 else None), cut
            segments = self._list(page, shown, before, cut)
            if page.replaced_since(shown.truncation_count):
                break  # Between two names of the same segment.
            lower = page.truncated_to(shown.truncation_count)
            if lower == cut:
                return segments, cut
            cut = lower
        return None, None

    def _list(
        self, page: LivePage, shown: PageOffsets, before: Seen | None, cut: int | None
    ) -> list[LogSegment] | None:
        """Return the segments below ``cut`` that belong to what is shown; None: not all there."""
        names = set(self._files.listdir(self._directory))
        bases = sorted(
            base
            for name in names
            if name.endswith(LOG_SUFFIX)
            and (base := offset_of_file(name)) is not None
            and base <= shown.active_base_offset
            and (cut is None or base < cut)
        )
        if not bases or (cut is None and bases[-1] != shown.active_base_offset):
            return None
        known = _known_segments(page, shown, before)
        segments: list[LogSegment] = []
        unindexed: list[LogSegment] = []
        for base in bases:
            is_active = base == bases[-1]
            segment = known.get(base)
            try:
                if is_active and cut is None:
                    size_bytes = shown.size_bytes
                elif segment is not None and not segment.is_active:
                    size_bytes = segment.size_bytes
                else:
                    size_bytes = self._files.file_size(
                        os.path.join(self._directory, segment_file_name(base, LOG_SUFFIX))
                    )
            except StorageError:
                return None
            if segment is None or (is_active and (cut is not None or not segment.is_active)):
                segment = self.new_segment(base, size_bytes, is_active=is_active)
                if segment_file_name(base, TXN_INDEX_SUFFIX) not in names:
                    unindexed.append(segment)
            elif segment.is_active and not is_active:
                segment.seal(size_bytes)
            if is_active and cut is None:
                segment.grow(size_bytes, shown.offset_entry_count, shown.time_entry_count)
            elif is_active:
                try:
                    if segment.find_end(shown.log_end_offset if cut is None else cut) != cut:
                        return None
                except LogStoreError:
                    return None
            segments.append(segment)
        if unindexed:
            end = shown.log_end_offset if cut is None else cut
            finder = AbortedFinder(
                self._directory, self._config, segments, end, files=self._files, clock=self._clock
            )
            for each in unindexed:
                each.distrust_missing_txn_index(finder, end)
        return segments

    def new_segment(self, base_offset: int, size_bytes: int, *, is_active: bool) -> LiveSegment:
        """Return a segment of which nothing is known yet but its size."""
        return LiveSegment(
            self._directory,
            base_offset,
            self._config,
            files=self._files,
            clock=self._clock,
            size_bytes=size_bytes,
            is_active=is_active,
        )


def _known_segments(
    page: LivePage, shown: PageOffsets, before: Seen | None
) -> dict[int, LiveSegment]:
    """Return the segments of the last look whose files are the same, by base offset."""
    if (
        before is None
        or before.shown is None
        or before.shown.writer_epoch != shown.writer_epoch
        or page.replaced_since(before.shown.truncation_count)
    ):
        return {}
    segments = [each for each in before.segments if isinstance(each, LiveSegment)]
    if before.is_cut:
        segments.pop()
    lowest = page.truncated_to(before.shown.truncation_count)
    if lowest is not None:
        ends = [each.base_offset for each in segments[1:]]
        segments = [each for each, end in zip(segments, ends, strict=False) if end <= lowest]
    return {each.base_offset: each for each in segments}
