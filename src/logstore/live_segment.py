"""
Segments of a log that another process may be writing.

Their files are read with pread only (DESIGN.md D6): the writer may cut an index, and a mapping of
it would kill the reader. Indexes are copied into memory when they are first needed.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from logstore._native import Mapping, address_of
from logstore.entries import largest_timestamp
from logstore.errors import CorruptRecordError, StorageError
from logstore.index import OffsetIndex, TimeIndex, TimestampOffset, TransactionIndex
from logstore.index_file import IndexFile, View
from logstore.segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from logstore.view_loader import ViewSegment

if TYPE_CHECKING:
    import numpy.typing as npt

    from logstore.clock import Clock
    from logstore.config import LogConfig
    from logstore.files import Files

# A copy of an index is made again when so many entries are missing: until then more is scanned.
ENTRIES_MISSING_MAX = 64


class _Copy:
    """Memory that stands in for a mapping."""

    __slots__ = ("address", "view")

    def __init__(self, memory: memoryview) -> None:
        self.view = memory
        self.address = address_of(memory)


class _CopiedIndex(IndexFile):
    """An index that is read into memory; see the module."""

    __slots__ = ("_limit",)

    _DTYPE: ClassVar[np.dtype[Any]]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, writable=False, **options)
        self._limit: int | None = None

    def limit(self, entry_count: int) -> None:
        """Learn how many entries its writer has made."""
        self._limit = entry_count
        view = self._view
        if view is not None and entry_count - view.count >= ENTRIES_MISSING_MAX:
            with self._lock:
                self._view = None
                self._is_open = False
                self._last = None

    def _map(self) -> View:
        with self._lock:
            if self._view is not None:
                return self._view
            self._open()
            self._refuse_if_closed()
            count = self._entry_count
            if self._limit is not None:
                count = min(count, self._limit)
            size = count * self.ENTRY_BYTES
            copy: _Copy | None = None
            count = 0
            if size > 0:
                memory = self._files.page_aligned_buffer(size)
                try:
                    with self.handle.lease() as fd:
                        size = self._files.pread_into(fd, memory, 0)
                except StorageError as error:
                    if error.errno != errno.ENOENT:
                        raise
                    size = 0  # Deleted with its segment, which will say so: a hint less.
                self._release_handle()
                count = self._ascending(memory, size // self.ENTRY_BYTES)
                copy = _Copy(memory)
            view = View(cast("Mapping | None", copy), count, count)
            self._entry_count = count
            self._prepare(view)
            self._view = view
            return view

    def _ascending(self, memory: memoryview, count: int) -> int:
        """Return the number of entries before room that is not used yet, or was."""
        entries: npt.NDArray[Any] = np.frombuffer(memory, self._DTYPE, count)
        column = entries[(self._DTYPE.names or ("",))[0]].astype(np.int64)
        falling = np.flatnonzero(column[1:] <= column[:-1])
        if len(falling):
            count = int(falling[0]) + 1
        if count == 1 and not any(entries[0].item()):
            return 0  # Room without entries.
        return count


class CopiedOffsetIndex(_CopiedIndex, OffsetIndex):
    """An offset index that is read into memory."""

    __slots__ = ()
    _DTYPE = np.dtype([("relative_offset", ">u4"), ("position", ">u4")])


class CopiedTimeIndex(_CopiedIndex, TimeIndex):
    """A time index that is read into memory."""

    __slots__ = ()
    _DTYPE = np.dtype([("timestamp", ">i8"), ("relative_offset", ">u4")])

    def _last_raw(self) -> tuple[int, int] | None:
        view = self._view or self._map()
        return self._read(view, view.count - 1) if view.count else None


class LiveSegment(ViewSegment):
    """
    A segment of a log that another process may be writing, up to where it said that it was.

    **Thread rule**: any thread may read; what changes is set under the log's lock.
    """

    __slots__ = ("_entry_counts", "_is_active")

    def __init__(
        self,
        directory: str,
        base_offset: int,
        config: LogConfig,
        *,
        files: Files,
        clock: Clock,
        size_bytes: int,
        is_active: bool,
    ) -> None:
        self._is_active = is_active
        # As far as the writer has said; without it the room ahead is read, too: 10 MiB for each.
        self._entry_counts: tuple[int | None, int | None] = (None, None)
        super().__init__(
            directory,
            base_offset,
            config,
            files=files,
            clock=clock,
            file_already_exists=True,
            size_bytes=size_bytes,
        )
        self._are_indexes_sure = True  # Each entry is checked against its batch before use.

    def _new_indexes(self) -> tuple[OffsetIndex, TimeIndex, TransactionIndex]:
        base_offset = self.base_offset
        offset_index = CopiedOffsetIndex(self._path(INDEX_SUFFIX), base_offset, files=self._files)
        time_index = CopiedTimeIndex(self._path(TIME_INDEX_SUFFIX), base_offset, files=self._files)
        for index, entry_count in zip((offset_index, time_index), self._entry_counts, strict=True):
            if entry_count is not None:
                index.limit(entry_count)
        return (
            offset_index,
            time_index,
            TransactionIndex(
                self._path(TXN_INDEX_SUFFIX), base_offset, writable=False, files=self._files
            ),
        )

    @property
    def is_active(self) -> bool:
        """Whether the segment is the one that is written."""
        return self._is_active

    def grow(self, size_bytes: int, offset_entry_count: int, time_entry_count: int) -> None:
        """Learn how far the writer has got; a negative number of entries: that is not known."""
        self._entry_counts = (
            offset_entry_count if offset_entry_count >= 0 else self._entry_counts[0],
            time_entry_count if time_entry_count >= 0 else self._entry_counts[1],
        )
        if offset_entry_count >= 0 and self._offset_index is not None:
            cast("CopiedOffsetIndex", self._offset_index).limit(offset_entry_count)
        if time_entry_count >= 0 and self._time_index is not None:
            cast("CopiedTimeIndex", self._time_index).limit(time_entry_count)
        self._size_bytes = size_bytes

    def seal(self, size_bytes: int) -> None:
        """Learn that the segment is written no more."""
        self._is_active = False
        self._entry_counts = (None, None)
        self._size_bytes = size_bytes
        self.release()
        self._offset_index = self._time_index = self._txn_index = None

    def end(self, log_end_offset: int) -> tuple[int, int]:
        """Return the log end offset and the size."""
        return log_end_offset, self._size_bytes

    def max_timestamp_and_offset_so_far(self) -> TimestampOffset:
        """Return the largest timestamp and the last offset of the batch that has it, or -1."""
        if not self._is_active:
            return super().max_timestamp_and_offset_so_far()
        known = self.time_index.last_entry
        start = self.offset_index.lookup(known.offset).position
        return largest_timestamp(self.headers(start), known)

    def find_end(self, log_end_offset: int) -> int:
        """Set the size to where the batches below an offset end; return the offset after them."""
        count = self.offset_index.lookup(max(log_end_offset - 1, self.base_offset))
        end = start = count.position
        found = self.base_offset
        try:
            for header in self.headers(start, self._files.file_size(self.log_path)):
                if header.base_offset >= log_end_offset or header.base_offset < self.base_offset:
                    break
                end, found = header.end, header.next_offset
        except CorruptRecordError:
            pass  # Room ahead, or an append that is under way.
        self._size_bytes = end
        return found
