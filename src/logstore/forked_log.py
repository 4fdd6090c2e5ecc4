"""
A log in a forked child: it goes on reading, also what its parent goes on to write.

Another thread of the parent may have been anywhere when this one forked: inside an append, or
holding any lock. So the child looks at nothing but plain values of the objects that it inherits. It
gets new locks and new segment objects, which open the files again when they are first read.

Source: DESIGN.md, "The interface at a glance".
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from logstore.entries import largest_timestamp
from logstore.errors import CorruptRecordError
from logstore.index import TimestampOffset
from logstore.live_view import LiveView
from logstore.scheduler import ThreadScheduler
from logstore.segment import LogSegment
from logstore.segments import Segments
from logstore.view_loader import ViewSegment
from logstore.watermarks import Watermarks

if TYPE_CHECKING:
    from logstore.log import Log


class InheritedSegment(ViewSegment):
    """The segment that the parent was writing; what was published is found when it is read."""

    __slots__ = ("_is_measured", "_log_end_offset", "_offset_entries", "_time_entries")

    def __init__(self, parents: LogSegment, log: Log) -> None:
        super().__init__(
            parents.directory,
            parents.base_offset,
            log.config,
            files=parents.files,
            clock=log.clock,
            file_already_exists=True,
            size_bytes=0,
        )
        self._log_end_offset: Final = log.log_end_offset
        # Behind these the index files are preallocated, or the parent is writing in them.
        self._offset_entries, self._time_entries = parents.known_entry_counts
        self._is_measured = False
        self._are_indexes_sure = True  # What of them is used was the parent's work.

    @property
    def size_bytes(self) -> int:
        """The end of what was published at the fork."""
        if not self._is_measured:
            self._measure()
        return self._size_bytes

    def end(self, log_end_offset: int) -> tuple[int, int]:
        """Return the log end offset and the size."""
        return log_end_offset, self.size_bytes

    def _measure(self) -> None:
        self._is_measured = True
        self._size_bytes = self._files.file_size(self.log_path)
        self.offset_index.limit_entry_count(self._offset_entries)
        self.time_index.limit_entry_count(self._time_entries)
        start = self._indexed_position()
        end = start
        try:
            for header in self.headers(start):
                if header.base_offset >= self._log_end_offset:
                    break
                end = header.end
        except CorruptRecordError:
            pass  # An append that was under way.
        self._size_bytes = end
        known = self.time_index.last_entry
        start = self.offset_index.lookup(known.offset).position
        self._max_timestamp_and_offset = largest_timestamp(self.headers(start), known)

    def _indexed_position(self) -> int:
        count = self.offset_index.entry_count
        return self.offset_index.entry(count - 1).position if count else 0

    def max_timestamp_and_offset_so_far(self) -> TimestampOffset:
        """Return the largest timestamp and the last offset of the batch that has it, or -1."""
        if not self._is_measured:
            self._measure()
        return super().max_timestamp_and_offset_so_far()


def become_reader_of_parent(log: Log) -> None:
    """Make an inherited log readable; called in a child before anything else uses it."""
    local_log = log._local_log
    log._lock = threading.RLock()
    log.leave_places()
    if log._view is not None:
        log._view.after_fork()
        _begin_reads_again(log)
        return
    log._bind_writer(None)
    parents = list(local_log.segments)
    segments: list[LogSegment] = [
        ViewSegment(
            segment.directory,
            segment.base_offset,
            log.config,
            files=segment.files,
            clock=log.clock,
            file_suffix=segment._file_suffix,
            file_already_exists=True,
            size_bytes=segment._size_bytes,
        )
        for segment in parents[:-1]
    ]
    segments.append(InheritedSegment(parents[-1], log))
    for segment, parents_segment in zip(segments, parents, strict=True):
        segment._aborted = parents_segment._aborted
    local_log.segments = Segments(segments)
    local_log._held = None
    if log._live is not None:
        _follow_parent(log)
    _begin_reads_again(log)


def _follow_parent(log: Log) -> None:
    """See what the parent goes on to write, once the log is looked at."""
    marks = log._watermarks._marks
    log._live = log._truncations.live = None  # Its descriptor was closed.
    log._watermarks = Watermarks(
        "replicas",
        log_start_offset=marks.log_start_offset,
        recovery_point=log._flusher.recovery_point,
        flusher=log._flusher,
        log_end=log._log_end_offset_metadata,
    )
    log.look_through(
        LiveView(
            log.directory,
            log.config,
            files=log._files,
            clock=log.clock,
            scheduler=ThreadScheduler(log.clock),
        )
    )


def _begin_reads_again(log: Log) -> None:
    for reader in log.readers:
        reader.relocate()
