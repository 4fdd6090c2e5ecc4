"""
The file under an offset or time index: fixed entries, appended with pwrite, read in a mapping.

The file of the active segment is preallocated with zeros, by decision 0072 when it is first read,
and cut to its entries when the segment is sealed or closed; of a file that was there before, every
whole entry counts as in use.

**Memory** (DESIGN.md D6): entries are written with pwrite and searched in a read-only mapping. A
file never shrinks below the entries that a mapping of it has shown, so that a reader needs no lock:
to cut more than that away, what stays moves to a new file of the same name.

Source: Kafka ``AbstractIndex``, ``LazyIndex``; spec 3.1.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
from collections.abc import Callable, Iterator
from typing import ClassVar, Final

import numpy as np

from logstore._native import IndexView
from logstore.errors import (
    ClosedError,
    CorruptIndexError,
    IndexOffsetOverflowError,
    StorageError,
)
from logstore.files import REAL_FILES, TEMPORARY_SUFFIX, FileHandle, Files, Mapping, Path

RELATIVE_OFFSET_MAX: Final = 2**31 - 1
UINT32_MAX: Final = 2**32 - 1


class View:
    """
    What readers see: a mapping, and how many of its entries count.

    A reader holds the view that it began with, and with it the mapping. ``count`` only grows while
    the view is current; a truncation lowers it, and an old view keeps its last value. ``finder``
    searches an offset index with the GIL kept; without one the search drops it.
    """

    __slots__ = ("address", "bytes", "capacity", "count", "finder", "mapping")

    def __init__(self, mapping: Mapping | None, capacity: int, count: int) -> None:
        assert 0 <= count <= capacity
        self.mapping = mapping
        self.address = 0 if mapping is None else mapping.address
        self.bytes = memoryview(b"") if mapping is None else mapping.view
        self.capacity = capacity
        self.count = count
        self.finder: IndexView | None = None

    def set_count(self, count: int) -> None:
        """Publish a number of entries, whose bytes are written."""
        self.count = count
        if self.finder is not None:
            self.finder.count = count


class IndexFile:
    """
    What both indexes have in common: one file of entries.

    Making the object touches no file; the first use opens the file, and creates it if it is missing
    (writable) or behaves as if it were empty (not writable).

    **Thread rule**: one thread at a time changes an index, under the log's lock; any thread may
    look things up, without a lock.

    Args:
        path: The file.
        base_offset: Of the segment; relative offsets count from here.
        max_index_size: Bytes to preallocate, rounded down to whole entries.
        writable: False never creates or changes the file.
        is_fresh: Nothing is there yet; a file that is, is no segment's, and is replaced.

    Attributes:
        path: The file; :meth:`rename` and :meth:`update_path` change it.
    """

    ENTRY_BYTES: ClassVar[int]
    _ENTRY: ClassVar[struct.Struct]

    __slots__ = (
        "_entry_count",
        "_file_bytes",
        "_files",
        "_handle",
        "_is_closed",
        "_is_dirty",
        "_is_fresh",
        "_is_open",
        "_is_open_to_flush",
        "_is_own",
        "_last",
        "_lock",
        "_shown_count",
        "_view",
        "base_offset",
        "max_index_size",
        "path",
        "writable",
    )

    def __init__(
        self,
        path: Path,
        base_offset: int,
        max_index_size: int = -1,
        *,
        writable: bool = True,
        is_fresh: bool = False,
        files: Files = REAL_FILES,
    ) -> None:
        assert base_offset >= 0
        self.path = os.fspath(path)
        self.base_offset: Final = base_offset
        self.max_index_size: Final = max_index_size
        self.writable: Final = writable
        self._files = files
        self._lock = threading.RLock()
        self._handle: FileHandle | None = None
        self._view: View | None = None
        self._is_open = False
        self._is_open_to_flush = False
        self._is_closed = False
        self._is_dirty = False
        self._is_own = False  # The open file has no other name; only sealed segments get any.
        self._is_fresh = is_fresh
        self._file_bytes = 0
        self._entry_count = 0
        self._shown_count = 0  # The most entries that a view of the present file has shown.
        self._last: tuple[int, int] | None = None  # Raw last entry; None: not known.

    def __repr__(self) -> str:
        state = f"{self._entry_count} entries" if self._is_open else "not opened"
        return f"<{type(self).__name__} {self.path!r} {state}>"

    # -- the file ----------------------------------------------------------------------------------

    def _open(self) -> None:
        """Look at the file, or create it. Its size decides how many entries there are."""
        with self._lock:
            if self._is_open:
                return
            self._refuse_if_closed()
            if self._is_fresh:
                self._file_bytes = self._create_new()
                self._is_open = True
                return
            try:
                self._file_bytes = self._files.file_size(self.path)
            except StorageError as error:
                if error.errno != errno.ENOENT:
                    raise
                self._file_bytes = self._create() if self.writable else 0
                self._entry_count = 0
            else:
                self._entry_count = self._file_bytes // self.ENTRY_BYTES
            self._is_open = True

    def adopt(self, fd: int, file_bytes: int, entry_count: int) -> None:
        """
        Go on with a new file that is open already: the descriptor is this object's from here on.

        Args:
            fd: Open to be written.
            file_bytes: Its size, with preallocated space.
            entry_count: Entries that are in it, none of them on the device.
        """
        with self._lock:
            assert not self._is_open
            self._handle = FileHandle(self._files, self.path, fd=fd)
            self._file_bytes = file_bytes
            self._entry_count = entry_count
            self._is_dirty = True
            self._is_open = True

    def _create_new(self) -> int:
        try:
            return self._create()
        except StorageError as error:
            if error.errno != errno.EEXIST:
                raise
        self._files.unlink(self.path)
        return self._create()

    def _create(self) -> int:
        size = self._rounded(self.max_index_size)
        assert size > 0  # Room for one entry at least.
        handle = FileHandle(self._files, self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            self._files.ftruncate(handle.fd, size)  # Nobody else has it yet.
        except BaseException:
            self._files.unlink(self.path, missing_ok=True)
            handle.close()
            raise
        self._handle = handle
        self._is_dirty = True
        return size

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise ClosedError(f"{self.path} is closed; open the log again", path=self.path)

    def _rounded(self, size: int) -> int:
        return size - size % self.ENTRY_BYTES

    @property
    def handle(self) -> FileHandle:
        """
        The open file, for the native writer to append through; opened when it is first needed.

        Raises:
            ClosedError: The index was closed or deleted.
        """
        with self._lock:
            if not self._is_open:
                self._open()
            self._refuse_if_closed()
            if self._handle is None:
                flags = os.O_RDWR if self.writable else os.O_RDONLY
                self._handle = FileHandle(self._files, self.path, flags)
            return self._handle

    def _release_handle(self) -> None:
        """Close the descriptor; the next need opens the file again."""
        handle, self._handle = self._handle, None
        self._is_own = False  # While nobody writes here the file may be linked elsewhere.
        if handle is not None:
            handle.close()

    def _current_view(self) -> View:
        """Return what readers see now, mapping the file if it is not mapped."""
        view = self._view
        return self._map() if view is None else view

    def _map(self) -> View:
        with self._lock:
            if self._view is not None:
                return self._view
            self._open()
            self._refuse_if_closed()
            capacity = self._file_bytes // self.ENTRY_BYTES
            mapping = None
            if capacity > 0:
                was_open = self._handle is not None
                with self.handle.lease() as fd:
                    mapping = self._files.map(fd, capacity * self.ENTRY_BYTES)
                if not was_open:
                    self._release_handle()
            view = View(mapping, capacity, self._entry_count)
            self._prepare(view)
            self._view = view
            self._shown_count = max(self._shown_count, self._entry_count)
            return view

    def look(self) -> None:
        """Have the file mapped; later lookups open nothing."""
        self._current_view()

    def _prepare(self, view: View) -> None:
        """Do what a new view needs before readers get it."""

    def _read(self, view: View, slot: int) -> tuple[int, int]:
        assert 0 <= slot < view.capacity
        first, second = self._ENTRY.unpack_from(view.bytes, slot * self.ENTRY_BYTES)
        return first, second

    def _last_raw(self) -> tuple[int, int] | None:
        """Return the last entry as it is in the file, None when there is none."""
        with self._lock:
            if not self._is_open:
                self._open()
            if self._entry_count == 0:
                return None
            if self._last is None:
                position = (self._entry_count - 1) * self.ENTRY_BYTES
                if self._view is not None:
                    first, second = self._ENTRY.unpack_from(self._view.bytes, position)
                else:
                    was_open = self._handle is not None
                    with self.handle.lease() as fd:
                        data = self._files.pread(fd, self.ENTRY_BYTES, position)
                    if not was_open:
                        self._release_handle()
                    if len(data) < self.ENTRY_BYTES:
                        raise CorruptIndexError(
                            "the file is shorter than it was; delete it, it is rebuilt",
                            path=self.path,
                            position=position,
                        )
                    first, second = self._ENTRY.unpack(data)
                self._last = (first, second)
            return self._last

    # -- what is in it -----------------------------------------------------------------------------

    @property
    def entry_count(self) -> int:
        """Number of entries."""
        if not self._is_open:
            self._open()
        return self._entry_count

    @property
    def max_entries(self) -> int:
        """Number of entries that the file has room for."""
        if not self._is_open:
            self._open()
        return self._file_bytes // self.ENTRY_BYTES

    @property
    def size_bytes(self) -> int:
        """Size of the entries, without preallocated space."""
        return self.entry_count * self.ENTRY_BYTES

    @property
    def file_bytes(self) -> int:
        """Size of the file, with preallocated space. Source: Kafka ``AbstractIndex.length``."""
        if not self._is_open:
            self._open()
        return self._file_bytes

    @property
    def is_full(self) -> bool:
        """Whether the segment must roll because the index has no room."""
        return self.entry_count >= self.max_entries

    @property
    def is_open(self) -> bool:
        """Whether the file was looked at already."""
        return self._is_open

    def can_append_offset(self, offset: int) -> bool:
        """Whether ``offset`` is representable relative to the base offset."""
        return 0 <= offset - self.base_offset <= RELATIVE_OFFSET_MAX

    def relative_offset(self, offset: int) -> int:
        """
        Return ``offset`` relative to the base offset.

        Raises:
            IndexOffsetOverflowError: It does not fit 31 bits.
        """
        if not self.can_append_offset(offset):
            raise IndexOffsetOverflowError(
                f"offset {offset} is not within 2^31 - 1 of base offset {self.base_offset};"
                " roll the log first",
                path=self.path,
                offset=offset,
            )
        return offset - self.base_offset

    # -- changes -----------------------------------------------------------------------------------

    def append_entries(self, entries: bytes) -> None:
        """
        Append ready-made entries; they follow the last one in order, and there is room for them.

        Raises:
            StorageError: The index is as before.
        """
        assert len(entries) % self.ENTRY_BYTES == 0
        if not entries:
            return
        with self._lock:
            count = self.entry_count + len(entries) // self.ENTRY_BYTES
            assert count <= self.max_entries
            self.unshare()
            with self.handle.lease() as fd:
                self._files.pwrite(fd, entries, self._entry_count * self.ENTRY_BYTES)
            self._set_entry_count(count)
            last = self._ENTRY.unpack_from(entries, len(entries) - self.ENTRY_BYTES)
            self._last = (last[0], last[1])

    def advance_entry_count(self, count: int) -> None:
        """Learn that ``count`` entries were appended through :attr:`handle`."""
        assert count >= 0
        with self._lock:
            assert self.entry_count + count <= self.max_entries
            self._set_entry_count(self._entry_count + count)

    def _set_entry_count(self, count: int) -> None:
        """Publish a new number of entries; their bytes are written."""
        with self._lock:
            assert 0 <= count <= self._file_bytes // self.ENTRY_BYTES
            self._last = None
            self._is_dirty = True
            self._entry_count = count
            if self._view is not None:
                self._view.set_count(count)
                self._shown_count = max(self._shown_count, count)

    @property
    def known_entry_count(self) -> int:
        """Number of entries as far as this object knows without opening the file or a lock."""
        return self._entry_count

    def limit_entry_count(self, count: int) -> None:
        """Look at the first ``count`` entries only; the file is another's and stays as it is."""
        assert not self.writable
        with self._lock:
            if not self._is_open:
                self._open()
            self._entry_count = min(self._entry_count, count)

    def truncate(self) -> None:
        """Remove all entries; the file keeps its size."""
        with self._lock:
            if not self._is_open:
                self._open()
            self._set_entry_count(0)

    def truncate_to(self, offset: int) -> None:
        """
        Remove every entry whose offset is >= ``offset``; the file keeps its size.

        Zeros take the place of what is removed, if that can be written: whoever finds the file
        after a crash takes what is there for entries. A reader that still searches the old ones
        finds the segment's beginning, which is a right answer, too.
        """
        with self._lock:
            view = self._current_view()
            relative_offset = min(offset - self.base_offset - 1, UINT32_MAX)
            slot = -1 if relative_offset < 0 else self._slot_of_offset(view, relative_offset)
            removed_count = self._entry_count - (slot + 1)
            if removed_count > 0:
                self._set_entry_count(slot + 1)
                with contextlib.suppress(StorageError):
                    self._write_zeros(slot + 1, removed_count)

    def _write_zeros(self, slot: int, count: int) -> None:
        self.unshare()
        with self.handle.lease() as fd:
            self._files.pwrite(fd, bytes(count * self.ENTRY_BYTES), slot * self.ENTRY_BYTES)

    def _slot_of_offset(self, view: View, relative_offset: int) -> int:
        """Return the slot of the last entry with an offset at or below this one, or -1."""
        raise NotImplementedError

    def resize(self, size: int) -> bool:
        """
        Make the file ``size`` bytes long, rounded down to whole entries; return whether it changed.

        Entries beyond the new size are gone.

        Raises:
            StorageError: The index is as before.
        """
        assert self.writable
        assert size >= 0
        with self._lock:
            if not self._is_open:
                self._open()
            size = self._rounded(size)
            if size == self._file_bytes:
                return False
            handle = self.handle
            with handle.lease() as fd:
                shown_bytes = self._shown_count * self.ENTRY_BYTES
                if size < min(self._file_bytes, shown_bytes) or self._files.link_count(fd) > 1:
                    self._handle = self._replacement(fd, size)
                    self._is_own = True
                    self._shown_count = 0
                else:
                    self._files.ftruncate(fd, size)
                # Before the lease ends: closing may fail, but the file has changed.
                self._view = None  # Readers at work keep the old one.
                self._file_bytes = size
                self._is_dirty = True
                if self._entry_count > size // self.ENTRY_BYTES:
                    self._set_entry_count(size // self.ENTRY_BYTES)
            if handle is not self._handle:
                handle.close()
            return True

    def unshare(self) -> None:
        """
        Have a file of its own before it is changed in place: a snapshot may have the same one.

        Raises:
            StorageError: The index is as before.
        """
        with self._lock:
            handle = self.handle
            if self._is_own:
                return
            with handle.lease() as fd:
                if self._files.link_count(fd) > 1:
                    self._handle = self._replacement(fd, self._file_bytes)
                    self._shown_count = 0
                    self._view = None  # Readers at work keep the old one.
                    self._is_dirty = True
            self._is_own = True
            if handle is not self._handle:
                handle.close()

    def _replacement(self, fd: int, size: int) -> FileHandle:
        """Put the entries that stay into a new file of ``size`` bytes under the same name."""
        kept_bytes = min(self._entry_count * self.ENTRY_BYTES, size)
        temporary = self.path + TEMPORARY_SUFFIX
        handle = FileHandle(self._files, temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            with handle.lease() as new_fd:
                self._files.pwrite(new_fd, self._files.pread(fd, kept_bytes, 0), 0)
                self._files.ftruncate(new_fd, size)
            self._files.rename(temporary, self.path)
        except BaseException:
            self._files.unlink(temporary, missing_ok=True)
            handle.close()
            raise
        handle.path = self.path
        return handle

    def trim_to_valid_size(self) -> None:
        """Cut the file to its entries: the segment takes no more. Gives up the descriptor."""
        with self._lock:
            self.resize(self.entry_count * self.ENTRY_BYTES)
            self._release_handle()

    def set_entries(self, entries: bytes) -> None:
        """
        Make ``entries`` all that is in the file.

        Raises:
            StorageError: The index is empty, or was not opened yet.
        """
        assert self.writable
        with self._lock:
            self.truncate()
            self.resize(len(entries))
            self.append_entries(entries)
            self._release_handle()

    def mark_unsynced(self) -> None:
        """Have the next flush make the file durable: it is not known whether it is."""
        self._is_dirty = True

    def reset(self) -> None:
        """Remove all entries and give the file its full size again, for a rebuild."""
        with self._lock:
            self.truncate()
            self.resize(self.max_index_size)

    # -- flush, close, delete ----------------------------------------------------------------------

    def start_flush(self) -> None:
        """Let the device begin with what :meth:`flush` will wait for."""
        with self._lock:
            if not self._is_open:
                self._open()
            if not self._is_dirty or not self.writable:
                return
            self._is_open_to_flush = self._is_open_to_flush or self._handle is None
            handle = self.handle
        with handle.lease() as fd:
            self._files.start_writeback(fd)

    def flush(self) -> None:
        """Make the entries durable. Creates the file if it is missing, as Kafka does."""
        with self._lock:
            if not self._is_open:
                self._open()
            if not self._is_dirty or not self.writable:
                return
            was_open = self._handle is not None and not self._is_open_to_flush
            handle = self.handle
            self._is_open_to_flush = False
            self._is_dirty = False  # Not before it is open: a second attempt would do nothing.
        try:
            with handle.lease() as fd:  # Outside the lock: readers may map meanwhile.
                self._files.fdatasync(fd)
        except BaseException:
            self._is_dirty = True
            raise
        if not was_open:
            with self._lock:
                if self._handle is handle:
                    self._release_handle()

    def release(self) -> None:
        """Give up mapping and descriptor; the next need opens them again. Readers go on."""
        with self._lock:
            self._view = None
            self._release_handle()

    def close(self) -> None:
        """Cut the file to its entries and close it. A file that was never opened stays alone."""
        with self._lock:
            if self._is_open and not self._is_closed and self.writable:
                self.trim_to_valid_size()
            self.close_handler()

    def close_handler(self) -> None:
        """Close without cutting, as a killed process does; a second call does nothing."""
        with self._lock:
            self._is_closed = True
            self._is_open = False
            self._view = None
            self._release_handle()

    def delete(self) -> None:
        """Close and delete the file; a missing one is fine."""
        self.close_handler()
        self._files.unlink(self.path, missing_ok=True)

    def rename(self, path: Path) -> None:
        """Rename the file. One that was never made is accepted silently."""
        with self._lock:
            try:
                self._files.rename(self.path, path)
            except StorageError as error:
                if error.errno != errno.ENOENT or self._is_open:
                    raise
            self.update_path(path)

    def update_path(self, path: Path) -> None:
        """Learn that the file has another name now."""
        with self._lock:
            self.path = os.fspath(path)
            if self._handle is not None:
                self._handle.path = self.path

    # -- checks ------------------------------------------------------------------------------------

    def sanity_check(self) -> None:
        """
        Look at size and ends of the index, as Kafka does when it loads a segment.

        Raises:
            CorruptIndexError: The file must be rebuilt.
        """
        raise NotImplementedError

    def _sanity_check_size(self) -> None:
        if self.file_bytes % self.ENTRY_BYTES != 0:
            self._corrupt(f"its size {self._file_bytes} is not a multiple of {self.ENTRY_BYTES}")

    def _check_order(
        self, first_unordered: Callable[[int, int], int], *, allow_padding: bool
    ) -> Iterator[str]:
        if self.file_bytes % self.ENTRY_BYTES != 0:
            name = os.path.basename(self.path)
            yield f"{name}: size {self._file_bytes} is not a multiple of {self.ENTRY_BYTES}"
        view = self._current_view()
        slot = first_unordered(view.address, self._used_count(view, allow_padding=allow_padding))
        if slot >= 0:
            yield self._problem(slot, "is not above the entry before it")

    def unordered_slot(self, first_unordered: Callable[[int, int], int]) -> int:
        """Return the first slot that is not above the one before it, -1 if there is none."""
        view = self._current_view()
        return first_unordered(view.address, view.count)

    def _used_count(self, view: View, *, allow_padding: bool) -> int:
        """Return the number of entries, without the zeros at the end if they are padding."""
        if not allow_padding:
            return view.count
        data = np.frombuffer(view.bytes, np.uint8, view.count * self.ENTRY_BYTES)
        used = np.flatnonzero(data)
        return 0 if len(used) == 0 else int(used[-1]) // self.ENTRY_BYTES + 1

    def _problem(self, slot: int, what: str) -> str:
        return f"{os.path.basename(self.path)}: entry {slot}: {what}"

    def _corrupt(self, what: str) -> None:
        raise CorruptIndexError(
            f"index {self.path}: {what}; open the log for writing to rebuild it", path=self.path
        )
