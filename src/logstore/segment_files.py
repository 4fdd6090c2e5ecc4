"""
The four files of a segment under their names: opened when they are needed, renamed, deleted.

========================  ==================================================================
``<base>.log``            entries, one after the other (spec 1.1)
``<base>.index``          last offset of a batch -> its position, every index.interval.bytes
``<base>.timeindex``      largest timestamp so far -> last offset of its batch
``<base>.txnindex``       aborted transactions whose marker is here; absent when there are none
========================  ==================================================================

``<base>`` is the base offset in 20 digits. Index files are made when they are first needed, as in
Kafka, and preallocated when they are first read (decision 0072); they are cut to what is in them
when the segment is sealed or closed.

Source: Kafka ``LogFileUtils``, ``LazyIndex``, ``FileRecords``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from logstore.errors import ClosedError, DiskFullError, StorageError, raise_first
from logstore.file_views import FileViews
from logstore.files import FileHandle, Files
from logstore.fresh_indexes import FreshIndexes
from logstore.index import OffsetIndex, TimeIndex, TransactionIndex
from logstore.open_files import OPEN_FILES

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore._native import WriterState

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
INDEX_SUFFIXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, *INDEX_SUFFIXES)
DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
TRUNCATED_SUFFIX: Final = ".truncated"  # Ours (DESIGN.md D6): the kept prefix before its rename.

SEGMENT_BYTES_MAX: Final = 2**31 - 1
OFFSET_DIGITS: Final = 20

# Of an open file: the segment's, the local name, the lease's, and getrefcount's own.
REFERENCES_OF_AN_UNREAD_FILE: Final = 4


def segment_file_name(base_offset: int, suffix: str) -> str:
    """Return the name of a segment's file: 20 digits and the suffix."""
    assert base_offset >= 0
    return f"{base_offset:0{OFFSET_DIGITS}d}{suffix}"


class FileOwner(Protocol):
    """The log that segments belong to."""

    def start_giving_up(self, segment: Any) -> None:
        """Let the device begin with what :meth:`give_up_files` has to wait for."""
        ...

    def give_up_files(self, segment: Any) -> bool:
        """Close a segment's files, if nobody needs them now; raises nothing."""
        ...


class SegmentFiles:
    """
    One segment's ``.log`` file and its indexes, as files.

    **Thread rule**: any thread may have them opened; names change under the log's lock.

    Args:
        directory: Where the files are, or will be.
        base_offset: Names the files.
        index_bytes: The size of an index that is appended to.
        file_suffix: ``.cleaned``, ``.swap`` or nothing.
        writable: False opens every file read-only.
        is_fresh: No file of these names is the log's yet.
    """

    __slots__ = (
        "__weakref__",
        "_are_indexes_unsynced",
        "_directory",
        "_file_suffix",
        "_files",
        "_former_handles",
        "_fresh_indexes",
        "_guard",
        "_handle",
        "_index_bytes",
        "_is_closed",
        "_is_fresh",
        "_is_kept_open",
        "_is_used",
        "_making_indexes",
        "_offset_index",
        "_open_flags",
        "_stem",
        "_time_index",
        "_txn_index",
        "_views",
        "base_offset",
        "owner",
    )

    #: Whether the ``.log`` file is ours alone to cut, so that mappings of it are safe.
    may_be_mapped: ClassVar[bool] = True

    def __init__(
        self,
        directory: str | os.PathLike[str],
        base_offset: int,
        *,
        index_bytes: int,
        files: Files,
        file_suffix: str,
        writable: bool,
        is_fresh: bool,
    ) -> None:
        assert base_offset >= 0
        self.base_offset: Final = base_offset
        self._set_directory(os.fspath(directory))
        self._files = files
        self._file_suffix = file_suffix
        self._open_flags: Final = os.O_RDWR if writable else os.O_RDONLY
        self._guard = threading.Lock()
        self._handle: FileHandle | None = None
        # Of files that were let go of; ranges may hold them, and are closed with the segment.
        self._former_handles: tuple[weakref.ref[FileHandle], ...] = ()
        self._views: FileViews | None = None  # Of the present file; made when it is first mapped.
        self._is_closed = False
        self._is_kept_open = False
        self._is_used = False  # Since OPEN_FILES asked last; once it is, it is counted there.
        #: Of the log that the segment belongs to: it knows when files may be closed.
        self.owner: FileOwner | None = None
        self._index_bytes: Final = index_bytes
        self._is_fresh = is_fresh
        # Of what follows; behind _guard. The collector may close a log that nobody has any more.
        self._making_indexes = threading.RLock()
        # Of a new segment, in place of the first two objects until one of them is needed.
        self._fresh_indexes: FreshIndexes | None = None
        # Made when they are first needed: a log of a thousand segments has to open at once.
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TransactionIndex | None = None
        self._are_indexes_unsynced = False

    # -- names -------------------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """Where the files are."""
        return self._directory

    @property
    def files(self) -> Files:
        """The door to the file system."""
        return self._files

    @property
    def log_path(self) -> str:
        """The ``.log`` file."""
        return self._path(LOG_SUFFIX)

    def _path(self, suffix: str) -> str:
        return self._stem + suffix + self._file_suffix

    def _set_directory(self, directory: str) -> None:
        self._directory = directory
        self._stem = f"{directory}{os.sep}{self.base_offset:0{OFFSET_DIGITS}d}"

    @property
    def is_writable(self) -> bool:
        """Whether the files may be changed."""
        return self._open_flags == os.O_RDWR

    @property
    def is_closed(self) -> bool:
        """Whether the segment was closed or deleted."""
        return self._is_closed

    def has_suffix(self, suffix: str) -> bool:
        """Whether the files carry a suffix such as ``.deleted``."""
        return self._file_suffix == suffix

    # -- open --------------------------------------------------------------------------------------

    @property
    def offset_index(self) -> OffsetIndex:
        """The ``.index`` file."""
        if not self._is_used:
            self._note_use()
        index = self._offset_index
        return self._make_indexes()[0] if index is None else index

    @property
    def time_index(self) -> TimeIndex:
        """The ``.timeindex`` file."""
        if not self._is_used:
            self._note_use()
        index = self._time_index
        return self._make_indexes()[1] if index is None else index

    @property
    def txn_index(self) -> TransactionIndex:
        """The ``.txnindex`` file."""
        index = self._txn_index
        return self._make_indexes()[2] if index is None else index

    def _make_indexes(self) -> tuple[OffsetIndex, TimeIndex, TransactionIndex]:
        """Make the three objects, which make no file, in one thread only."""
        with self._making_indexes:
            if self._offset_index is None or self._time_index is None or self._txn_index is None:
                offset_index, time_index, txn_index = self._new_indexes()
                if self._is_closed:
                    offset_index.close_handler()
                    time_index.close_handler()
                    txn_index.close()
                if self._fresh_indexes is not None:
                    self._fresh_indexes.give(offset_index, time_index)
                    self._fresh_indexes = None
                self._txn_index, self._time_index = txn_index, time_index
                self._offset_index = offset_index
                if self._are_indexes_unsynced:
                    self._mark_indexes_unsynced()
            return self._offset_index, self._time_index, self._txn_index

    def _new_indexes(self) -> tuple[OffsetIndex, TimeIndex, TransactionIndex]:
        door: dict[str, Any] = {
            "writable": self._open_flags == os.O_RDWR,
            "files": self._files,
        }
        base_offset, index_bytes = self.base_offset, self._index_bytes
        fresh: dict[str, Any] = {"is_fresh": self._is_fresh, **door}
        return (
            OffsetIndex(self._path(INDEX_SUFFIX), base_offset, index_bytes, **fresh),
            TimeIndex(self._path(TIME_INDEX_SUFFIX), base_offset, index_bytes, **fresh),
            TransactionIndex(self._path(TXN_INDEX_SUFFIX), base_offset, **door),
        )

    def _open_fresh_indexes(self) -> FreshIndexes | None:
        """Make the index files of a new segment, to be written; None: the objects care for them."""
        with self._making_indexes:
            if not self._is_fresh or self._offset_index is not None:
                return None
            assert self._fresh_indexes is None
            if not self._is_used:
                self._note_use()
            offset_fd, time_fd = self._files.create_indexes(
                self._path(TIME_INDEX_SUFFIX), self._path(INDEX_SUFFIX)
            )
            return self._take_fresh_indexes(offset_fd, time_fd)

    def _take_fresh_indexes(self, offset_fd: int, time_fd: int) -> FreshIndexes:
        """Take over index files that were made for this segment."""
        fresh = FreshIndexes(offset_fd, time_fd, self._index_bytes, self._files)
        self._fresh_indexes = fresh
        self._is_fresh = False  # Whoever finds files of these names finds the log's.
        return fresh

    def _note_fresh_entries(self, state: WriterState) -> bool:
        """Note what the writer has left in the index files; False: both objects are there."""
        with self._making_indexes:
            if self._fresh_indexes is None:
                return False
            self._fresh_indexes.note_entries(state)
            return True

    @property
    def index_bytes(self) -> int:
        """The size of an index that is appended to."""
        return self._index_bytes

    def holds_indexes(self, offset_entries: bytes, time_entries: bytes, aborted: bytes) -> bool:
        """
        Whether exactly these are the contents of the index files, none of which is open.

        Then they need not be written; the next flush syncs them all the same, because whoever
        wrote them may not have got there.
        """
        if self._is_an_index_open():
            return False
        path = self._path(TXN_INDEX_SUFFIX)
        is_same = (
            self._files.file_equals(self._path(INDEX_SUFFIX), offset_entries)
            and self._files.file_equals(self._path(TIME_INDEX_SUFFIX), time_entries)
            and (
                self._files.file_equals(path, aborted) if aborted else not self._files.exists(path)
            )
        )
        if is_same:
            self._mark_indexes_unsynced()
        return is_same

    @property
    def known_entry_counts(self) -> tuple[int, int]:
        """Entries of both indexes as far as this object knows without opening a file or a lock."""
        offset_index, time_index = self._offset_index, self._time_index
        return (
            0 if offset_index is None else offset_index.known_entry_count,
            0 if time_index is None else time_index.known_entry_count,
        )

    def _is_an_index_open(self) -> bool:
        offset_index, time_index, txn_index = self._offset_index, self._time_index, self._txn_index
        return (
            (offset_index is not None and offset_index.is_open)
            or (time_index is not None and time_index.is_open)
            or (txn_index is not None and txn_index.is_open)
        )

    def holds_plain(self, is_plain: Callable[[str], bool]) -> bool:
        """
        Whether ``is_plain`` says so of the ``.log`` file and both indexes, the only ones there.

        It is given their path without the suffix. As in :meth:`holds_indexes` none is open, and the
        next flush syncs them all the same.
        """
        if self._file_suffix or self._is_an_index_open():
            return False
        path = self._path("")
        if self._files.exists(path + TXN_INDEX_SUFFIX) or not is_plain(path):
            return False
        self._mark_indexes_unsynced()
        return True

    def _mark_indexes_unsynced(self) -> None:
        self._are_indexes_unsynced = True
        for index in (self._offset_index, self._time_index, self._txn_index):
            if index is not None:
                index.mark_unsynced()

    @property
    def handle(self) -> FileHandle:
        """
        The open ``.log`` file; opened when it is first needed.

        Raises:
            ClosedError: The segment was closed or deleted.
        """
        self._is_used = True  # It is counted since it was opened.
        handle = self._handle
        return self._open(self._open_flags) if handle is None else handle

    def _open(self, flags: int) -> FileHandle:
        def open_file() -> FileHandle:
            with self._guard:
                if self._is_closed:
                    raise ClosedError(f"{self.log_path} is closed; open the log again")
                if self._handle is None:
                    self._handle = FileHandle(self._files, self.log_path, flags)
                return self._handle

        self._note_use()
        OPEN_FILES.keep_within_bounds()
        return OPEN_FILES.with_room(open_file)

    # -- give files up -----------------------------------------------------------------------------

    @property
    def is_attached(self) -> bool:
        """Whether a native writer has the open files."""
        return False

    @property
    def has_open_log(self) -> bool:
        """Whether the ``.log`` file is open."""
        return self._handle is not None

    def _note_use(self) -> None:
        self._is_used = True
        if not self._is_closed:
            OPEN_FILES.add(self)

    def take_use(self) -> bool:
        """Return whether files were used since this was last asked."""
        is_used, self._is_used = self._is_used, False
        return is_used

    def start_giving_up(self) -> None:
        """Let the device begin with what :meth:`give_up_files` has to wait for."""
        if self.owner is not None:
            self.owner.start_giving_up(self)

    def give_up_files(self) -> bool:
        """Close what is open, as the log that the segment belongs to does it; False: not now."""
        if self.owner is not None:
            return self.owner.give_up_files(self)
        self.release()
        return not self.is_attached

    def release(self) -> None:
        """Forget the open files, if no writer needs them: the last range read closes its file."""
        with self._guard:
            if self.is_attached or self._is_kept_open:
                return
            handle, self._handle = self._handle, None
            if handle is not None:
                former = [each for each in self._former_handles if each() is not None]
                self._former_handles = (*former, weakref.ref(handle))
        for index in (self._offset_index, self._time_index, self._txn_index):
            if index is not None:
                index.release()
        self._is_used = False
        OPEN_FILES.remove(self)

    @property
    def views(self) -> FileViews:
        """Who looks at mapped bytes of the ``.log`` file; of an older one after a truncation."""
        with self._guard:
            if self._views is None:
                self._views = FileViews()
            return self._views

    def keep_open(self) -> None:
        """
        Open the ``.log`` file and both indexes, and keep them open until the segment is deleted.

        Its names are about to be another segment's: whoever still reads this one must not open
        them.
        """
        self._is_kept_open = True
        _ = self.handle
        self.offset_index.look()
        self.time_index.look()

    def let_close(self) -> None:
        """Undo :meth:`keep_open`: by now nobody looks at the segment, as a rule."""
        self._is_kept_open = False
        self.release()

    def read_at(self, position: int, size: int) -> bytes:
        """Return ``size`` bytes of the ``.log`` file, fewer at its end."""
        with self.handle.lease() as fd:
            return self._files.pread(fd, size, position)

    def modified_ms(self) -> int:
        """Return when the ``.log`` file was last written."""
        return self._files.modified_ms(self.log_path)

    def set_modified_ms(self, modified_ms: int) -> None:
        """Set the modification time of the ``.log`` file and of both indexes."""
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            if self._files.exists(self._path(suffix)):
                self._files.set_modified_ms(self._path(suffix), modified_ms)

    # -- cut ---------------------------------------------------------------------------------------

    def _trim(self, size_bytes: int) -> None:
        """Cut what was preallocated behind ``size_bytes``, or left there by a failed append."""
        with self.handle.lease() as fd:
            if self._files.size(fd) <= size_bytes:
                return
            if self._files.link_count(fd) < 2:
                self._files.ftruncate(fd, size_bytes)
                return
        self._cut(size_bytes, in_place=False)

    def _unshare(self, size_bytes: int) -> None:
        """
        Have a ``.log`` file of its own before it is appended to: a snapshot may have the same one.

        Raises:
            DiskFullError: There is no space for a copy.
        """
        with self.handle.lease() as fd:
            is_shared = self._files.link_count(fd) > 1
        if is_shared:
            self._cut(size_bytes, in_place=False)

    def _cut(self, size_bytes: int, *, in_place: bool) -> None:
        """
        Make the file end at ``size_bytes``, durably.

        Unless in place, the kept prefix becomes a new file under the old name: bytes that were
        published never vanish under a reader. A file with a second name is never cut in place.
        """
        with self.handle.lease() as fd:
            is_to_copy = not in_place or self._files.link_count(fd) > 1
        kept = self._kept_prefix(size_bytes) if is_to_copy else None
        if kept is not None:
            self._put_in_place(kept)
            return
        with self.handle.lease() as fd:
            self._files.ftruncate(fd, size_bytes)
            self._files.fdatasync(fd)

    def _kept_prefix(self, size_bytes: int) -> FileHandle | None:
        """
        Copy the first bytes to a file of their own, durably but for its name.

        Returns:
            The copy, for :meth:`_put_in_place`; None if there is no space for it, and the file may
            be cut in place because nobody reads from it.

        Raises:
            DiskFullError: There is no space, and somebody does.
        """
        old = self.handle
        path = self.log_path + TRUNCATED_SUFFIX
        with old.lease() as fd:
            kept: FileHandle | None = None
            try:
                kept = FileHandle(self._files, path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
                with kept.lease() as kept_fd:
                    self._files.copy_range(fd, 0, kept_fd, 0, size_bytes)
                    self._files.fdatasync(kept_fd)
            except BaseException as error:
                self._discard(kept)
                if not isinstance(error, DiskFullError):
                    raise
                # No range of the file, and no read under way but this one.
                if old.lease_count > 1 or sys.getrefcount(old) > REFERENCES_OF_AN_UNREAD_FILE:
                    raise
                if self.views.is_viewed or self._files.link_count(fd) > 1:
                    raise
                return None
        return kept

    def _put_in_place(self, kept: FileHandle) -> None:
        """Give a copy of the file's beginning the file's name, durably."""
        path = self.log_path
        self._files.rename(kept.path, path)
        kept.path = path
        with self._guard:
            self._handle = kept  # Ranges read before keep the old file.
            self._views = None
        self._files.fsync_directory(self._directory)

    def _discard(self, kept: FileHandle | None) -> None:
        """Delete a copy that did not get into place, as far as possible: a load does so, too."""
        if kept is not None and kept is not self._handle:
            with contextlib.suppress(StorageError):
                kept.close()
            with contextlib.suppress(StorageError):
                self._files.unlink(kept.path, missing_ok=True)

    # -- close, delete, rename ---------------------------------------------------------------------

    def _close_files(self) -> None:
        """Close the files as a process that is killed does: nothing is flushed or cut."""
        with self._making_indexes:
            fresh, self._fresh_indexes = self._fresh_indexes, None
        if fresh is not None:
            fresh.close()
        if self._offset_index is not None:
            self._offset_index.close_handler()
        if self._time_index is not None:
            self._time_index.close_handler()
        if self._txn_index is not None:
            self._txn_index.close()
        self._close_handle()

    def _close_handle(self, *, is_deleted: bool = False) -> None:
        with self._guard:
            self._is_closed = True
            handles = [self._handle, *(each() for each in self._former_handles)]
            self._handle = None
        OPEN_FILES.remove(self)
        for handle in handles:
            if handle is None:
                continue
            if is_deleted:
                handle.retire()
            else:
                handle.close()

    def _delete_files(self) -> None:
        """Delete the four files; all are tried, then the first failure is raised."""
        errors: list[OSError] = []
        for delete in (
            self._delete_log,
            self.offset_index.delete,
            self.time_index.delete,
            self.txn_index.delete,
        ):
            try:
                delete()
            except OSError as error:
                errors.append(error)
        if errors:
            raise_first(errors)

    def _delete_log(self) -> None:
        path = self.log_path
        self._close_handle(is_deleted=True)
        self._files.unlink(path, missing_ok=True)

    def change_file_suffixes(self, old_suffix: str, new_suffix: str) -> None:
        """
        Rename the four files: log, offset index, time index, transaction index.

        Raises:
            StorageError: They have their old names again; if that failed, too, :meth:`has_suffix`
                denies the old suffix.
        """
        assert self._file_suffix == old_suffix
        self._make_indexes()  # While the files have the old names.
        renamed: list[str] = []
        try:
            for suffix in SEGMENT_SUFFIXES:
                self._rename(suffix, old_suffix, new_suffix)
                renamed.append(suffix)
        except BaseException:
            for suffix in reversed(renamed):
                self._rename(suffix, new_suffix, old_suffix)
            raise

    def _rename(self, suffix: str, old_suffix: str, new_suffix: str) -> None:
        plain = self._stem + suffix
        if suffix == LOG_SUFFIX:
            with self._guard:  # Who opens the file meanwhile must not get another one's.
                self._files.rename(plain + old_suffix, plain + new_suffix)
                self._file_suffix = new_suffix
                if self._handle is not None:
                    self._handle.path = plain + new_suffix
            return
        indexes: dict[str, OffsetIndex | TimeIndex | TransactionIndex] = {
            INDEX_SUFFIX: self.offset_index,
            TIME_INDEX_SUFFIX: self.time_index,
            TXN_INDEX_SUFFIX: self.txn_index,
        }
        indexes[suffix].rename(plain + new_suffix)

    def update_directory(self, directory: str) -> None:
        """Learn that the directory was renamed."""
        self._set_directory(directory)
        if self._handle is not None:
            self._handle.path = self.log_path
        if self._offset_index is not None:
            self._offset_index.update_path(self._path(INDEX_SUFFIX))
        if self._time_index is not None:
            self._time_index.update_path(self._path(TIME_INDEX_SUFFIX))
        if self._txn_index is not None:
            self._txn_index.update_path(self._path(TXN_INDEX_SUFFIX))
