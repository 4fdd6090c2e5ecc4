"""
The index files of a segment that was just begun, while nobody looks anything up in them.

The writer of the active segment appends to both through their descriptors alone. A segment that is
filled and sealed before somebody reads by its indexes, as those of a bulk append are, never needs
more than that: two descriptors, and how many entries the writer has made in the end.

Source: Kafka ``LazyIndex``, which puts off the same work; decision 0072.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from logstore.errors import StorageError
from logstore.index import OffsetIndex, TimeIndex, TimestampOffset

if TYPE_CHECKING:
    from logstore._native import WriterState
    from logstore.files import Files


class FreshIndexes:
    """
    Two new index files, open to be written, that get their full size when they are looked into.

    **Thread rule**: one thread at a time; see ``SegmentFiles``.

    Args:
        offset_fd: The offset index, open to be written: from here on this object's to close.
        time_fd: The same for the time index.
        index_bytes: The size of an index that is appended to.
        files: The door to the file system.

    Attributes:
        offset_fd: Descriptor of the offset index.
        time_fd: Descriptor of the time index.
        offset_entries_max: Entries that the offset index has room for.
        time_entries_max: Entries that the time index has room for.
    """

    __slots__ = (
        "_files",
        "_is_closed",
        "_state",
        "offset_entries_max",
        "offset_fd",
        "time_entries_max",
        "time_fd",
    )

    def __init__(self, offset_fd: int, time_fd: int, index_bytes: int, files: Files) -> None:
        self.offset_entries_max: Final = index_bytes // OffsetIndex.ENTRY_BYTES
        self.time_entries_max: Final = index_bytes // TimeIndex.ENTRY_BYTES
        self._files: Final = files
        self._state: WriterState | None = None
        self.offset_fd: Final = offset_fd
        self.time_fd: Final = time_fd
        self._is_closed = False
        files.hold()

    def note_entries(self, state: WriterState) -> None:
        """Learn what the writer has made of the files; it is detached."""
        self._state = state

    def give(self, offset_index: OffsetIndex, time_index: TimeIndex) -> None:
        """
        Let two index objects go on with the files: the descriptors are theirs from here on.

        Raises:
            StorageError: The files cannot get their full size. Nothing else has changed.
        """
        state, files = self._state, self._files
        offset_count = 0 if state is None else state.offset_entry_count
        time_count = 0 if state is None else state.time_entry_count
        offset_bytes = self.offset_entries_max * OffsetIndex.ENTRY_BYTES
        time_bytes = self.time_entries_max * TimeIndex.ENTRY_BYTES
        files.ftruncate(self.offset_fd, offset_bytes)  # Readers map all that they may ever see.
        files.ftruncate(self.time_fd, time_bytes)
        self._is_closed = True
        offset_index.adopt(self.offset_fd, offset_bytes, offset_count)
        time_index.adopt(self.time_fd, time_bytes, time_count)
        files.let_go()
        if state is not None and time_count > 0:
            last = state.last_time_entry_timestamp, state.last_time_entry_offset
            time_index.note_last_entry(TimestampOffset(*last))

    def lend(self) -> None:
        """Let somebody have the descriptors who may close them: nobody here does so any more."""
        self._is_closed = True

    def take_back(self, state: WriterState | None) -> None:
        """End :meth:`lend`: they are open, with these entries; None: closed."""
        if state is None:
            self._files.let_go()
        else:
            self._state = state
            self._is_closed = False

    def close(self) -> None:
        """Close the descriptors; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            try:
                self._files.close(self.offset_fd)
            finally:
                self._files.close(self.time_fd)
        finally:
            self._files.let_go()

    def __del__(self) -> None:
        if not self._is_closed:
            with contextlib.suppress(StorageError):  # Nobody could do anything about it.
                self.close()
