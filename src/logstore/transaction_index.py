"""
The transaction index of a segment: the aborted transactions whose abort marker lies in it.

``.txnindex``, 34 bytes an entry::

    pos  size  type  field
    0    2     i16   version, 0
    2    8     i64   producer id
    10   8     i64   first offset of the transaction
    18   8     i64   last offset: that of the marker
    26   8     i64   last stable offset when the marker was appended

All numbers are big-endian. Entries are in the order of strictly increasing last offsets. There is
no file for a segment without aborted transactions, nothing is preallocated, and what follows the
last whole entry is ignored.

Source: Kafka ``TransactionIndex``, ``AbortedTxn``; spec 2.9, 3.4.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from logstore.errors import ClosedError, CorruptIndexError, StorageError
from logstore.files import REAL_FILES, FileHandle, Files, Path

ENTRY: Final = struct.Struct(">hqqqq")
ENTRY_BYTES: Final = 34
ENTRY_DTYPE: Final = np.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),
        ("last_stable_offset", ">i8"),
    ]
)
CURRENT_VERSION: Final = 0
STEP_ENTRIES: Final = 4096  # Entries read at once.

assert ENTRY.size == ENTRY_BYTES
assert ENTRY_DTYPE.itemsize == ENTRY_BYTES


class AbortedTxn(NamedTuple):
    """One aborted transaction."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        """Return the entry as it is in the file."""
        return ENTRY.pack(CURRENT_VERSION, *self)


class TxnIndexSearchResult(NamedTuple):
    """What one segment's index tells about a fetch, and whether the following ones are needed."""

    aborted_transactions: list[AbortedTxn]
    is_complete: bool


class TransactionIndex:
    """
    The ``.txnindex`` file of a segment.

    **Thread rule**: one thread at a time changes it, under the log's lock; any thread may read.

    Attributes:
        path: The file; :meth:`rename` and :meth:`update_path` change it.
    """

    __slots__ = (
        "_files",
        "_handle",
        "_is_closed",
        "_is_dirty",
        "_last_offset",
        "_lock",
        "_size_bytes",
        "base_offset",
        "path",
        "writable",
    )

    def __init__(
        self, path: Path, base_offset: int, *, writable: bool = True, files: Files = REAL_FILES
    ) -> None:
        assert base_offset >= 0
        self.path = os.fspath(path)
        self.base_offset: Final = base_offset
        self.writable: Final = writable
        self._files = files
        self._lock = threading.RLock()
        self._handle: FileHandle | None = None
        self._is_closed = False
        self._is_dirty = False
        self._size_bytes = 0  # Whole entries, when the file is open.
        self._last_offset: int | None = None  # Of the last entry appended here.

    def __repr__(self) -> str:
        return f"<TransactionIndex {self.path!r}>"

    # -- the file ----------------------------------------------------------------------------------

    def _open_to_write(self, *, create: bool) -> FileHandle | None:
        """Return the file, kept open from now on; None if it is missing and not to be created."""
        with self._lock:
            if self._handle is None:
                handle = self._open_file(os.O_RDWR | (os.O_CREAT if create else 0))
                if handle is None:
                    return None
                with handle.lease() as fd:
                    size = self._files.size(fd)
                self._size_bytes = size - size % ENTRY_BYTES
                self._handle = handle
            return self._handle

    def _open_file(self, flags: int) -> FileHandle | None:
        self._refuse_if_closed()
        try:
            return FileHandle(self._files, self.path, flags)
        except StorageError as error:
            if error.errno == errno.ENOENT and not flags & os.O_CREAT:
                return None
            raise

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise ClosedError(f"{self.path} is closed; open the log again", path=self.path)

    @property
    def is_open(self) -> bool:
        """Whether the file is kept open to write."""
        return self._handle is not None

    @property
    def exists(self) -> bool:
        """Whether there is a file."""
        return self._handle is not None or self._files.exists(self.path)

    def _steps(self) -> Iterator[npt.NDArray[Any]]:
        """
        Yield the whole entries, some thousands at a time.

        A file that is not being written is open only meanwhile.
        """
        self._refuse_if_closed()
        with self._lock:
            handle = self._handle
            size_bytes = self._size_bytes
        is_own = handle is None
        if handle is None:
            handle = self._open_file(os.O_RDONLY)
            if handle is None:
                return
        try:
            with handle.lease() as fd:
                if is_own:
                    size_bytes = self._files.size(fd)
                yield from self._steps_of(fd, size_bytes - size_bytes % ENTRY_BYTES)
        finally:
            if is_own:
                handle.close()

    def _steps_of(self, fd: int, size_bytes: int) -> Iterator[npt.NDArray[Any]]:
        position = 0
        while position < size_bytes:
            wanted = min(STEP_ENTRIES * ENTRY_BYTES, size_bytes - position)
            data = self._files.pread(fd, wanted, position)
            count = len(data) // ENTRY_BYTES
            if count == 0:
                return  # Cut meanwhile.
            entries = np.frombuffer(data, ENTRY_DTYPE, count)
            newer = np.flatnonzero(entries["version"] > CURRENT_VERSION)
            if len(newer):
                at = position + int(newer[0]) * ENTRY_BYTES
                raise CorruptIndexError(
                    f"transaction index {self.path}: unknown version"
                    f" {int(entries['version'][newer[0]])}; recover the log to rebuild it",
                    path=self.path,
                    position=at,
                )
            yield entries
            position += count * ENTRY_BYTES

    # -- reading -----------------------------------------------------------------------------------

    def all_aborted_txns(self) -> list[AbortedTxn]:
        """Return every whole entry."""
        return [txn for entries in self._steps() for txn in _transactions(entries)]

    def collect_aborted_txns(
        self, fetch_offset: int, upper_bound_offset: int
    ) -> TxnIndexSearchResult:
        """
        Return the aborted transactions in ``[fetch_offset, upper_bound_offset)``, of a fetch.

        The result is complete if an entry tells that nothing before the upper bound is undecided;
        else the following segments may have more.

        Raises:
            CorruptIndexError: An entry has an unknown version.
        """
        found: list[AbortedTxn] = []
        for entries in self._steps():
            ends = np.flatnonzero(entries["last_stable_offset"] >= upper_bound_offset)
            if len(ends):
                entries = entries[: int(ends[0]) + 1]  # noqa: PLW2901 - the rest is not wanted
            wanted = (entries["last_offset"] >= fetch_offset) & (
                entries["first_offset"] < upper_bound_offset
            )
            found += _transactions(entries[wanted])
            if len(ends):
                return TxnIndexSearchResult(found, is_complete=True)
        return TxnIndexSearchResult(found, is_complete=False)

    # -- changes -----------------------------------------------------------------------------------

    def append(self, txn: AbortedTxn) -> None:
        """
        Append one entry; its last offset is above the last one appended here.

        A torn entry at the end of the file, left by a crash, is overwritten.

        Raises:
            StorageError: The index is as before.
        """
        assert self.writable
        assert self._last_offset is None or txn.last_offset > self._last_offset
        with self._lock:
            handle = self._open_to_write(create=True)
            assert handle is not None
            with self._own(handle).lease() as fd:
                self._files.pwrite(fd, txn.encode(), self._size_bytes)
            self._size_bytes += ENTRY_BYTES
            self._last_offset = txn.last_offset
            self._is_dirty = True

    def truncate_to(self, offset: int) -> None:
        """Remove the first entry whose last offset is >= ``offset`` and all behind it."""
        with self._lock:
            position = 0
            last_offset: int | None = None
            for entries in self._steps():
                ends = np.flatnonzero(entries["last_offset"] >= offset)
                kept = int(ends[0]) if len(ends) else len(entries)
                if kept:
                    last_offset = int(entries["last_offset"][kept - 1])
                position += kept * ENTRY_BYTES
                if len(ends):
                    self._open_to_write(create=False)
                    self._cut(position)
                    self._last_offset = last_offset
                    return

    def reset(self) -> None:
        """Remove all entries; a missing file stays missing."""
        with self._lock:
            self._last_offset = None
            if self._open_to_write(create=False) is not None:
                self._cut(0)

    def _cut(self, size_bytes: int) -> None:
        handle = self._handle
        assert handle is not None
        with self._own(handle).lease() as fd:
            self._files.ftruncate(fd, size_bytes)
        self._size_bytes = size_bytes
        self._is_dirty = True

    def _own(self, handle: FileHandle) -> FileHandle:
        """Return a file that is nobody else's, to be changed in place: a snapshot may have it."""
        with handle.lease() as fd:
            if self._files.link_count(fd) < 2:
                return handle
            self._files.replace_file(self.path, self._files.pread(fd, self._size_bytes, 0))
        self._handle = FileHandle(self._files, self.path, os.O_RDWR)
        handle.close()
        return self._handle

    def mark_unsynced(self) -> None:
        """Have the next flush make the file durable: it is not known whether it is."""
        self._is_dirty = True

    # -- flush, close, delete ----------------------------------------------------------------------

    def flush(self) -> None:
        """Make the entries durable."""
        with self._lock:
            if not self._is_dirty:
                return
            self._is_dirty = False
            handle = self._open_to_write(create=False)
        if handle is None:
            return
        try:
            with handle.lease() as fd:
                self._files.fdatasync(fd)
        except BaseException:
            self._is_dirty = True
            raise

    def release(self) -> None:
        """Close the descriptor; the next need opens the file again."""
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with self._lock:
            self._is_closed = True
            self._last_offset = None
            self.release()

    def delete(self) -> None:
        """Close and delete the file; a missing one is fine."""
        self.close()
        self._files.unlink(self.path, missing_ok=True)

    def rename(self, path: Path) -> None:
        """Rename the file if it exists."""
        with self._lock:
            try:
                self._files.rename(self.path, path)
            except StorageError as error:
                if error.errno != errno.ENOENT:
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
        Look at every entry, as Kafka does when it loads a segment.

        Raises:
            CorruptIndexError: An entry has an unknown version, or belongs to an earlier segment.
        """
        for entries in self._steps():
            below = np.flatnonzero(entries["last_offset"] < self.base_offset)
            if len(below):
                raise CorruptIndexError(
                    f"transaction index {self.path}: last offset"
                    f" {int(entries['last_offset'][below[0]])} is below the base offset"
                    f" {self.base_offset}; recover the log to rebuild it",
                    path=self.path,
                )

    def check(self) -> Iterator[str]:
        """Yield a sentence for each thing that is wrong with the entries themselves."""
        name = os.path.basename(self.path)
        if not self.exists:
            return
        torn_bytes = self._files.file_size(self.path) % ENTRY_BYTES
        if torn_bytes:
            yield f"{name}: {torn_bytes} bytes behind the last whole entry"
        try:
            entries = self.all_aborted_txns()
        except CorruptIndexError as error:
            yield f"{name}: {error.message}"
            return
        last_offset = self.base_offset - 1
        for slot, txn in enumerate(entries):
            if txn.last_offset <= last_offset:
                yield f"{name}: entry {slot}: last offset {txn.last_offset} is not increasing"
            if txn.first_offset > txn.last_offset:
                yield f"{name}: entry {slot}: the first offset is above the last one"
            last_offset = max(last_offset, txn.last_offset)


def _transactions(entries: npt.NDArray[Any]) -> list[AbortedTxn]:
    return [AbortedTxn(*fields[1:]) for fields in entries.tolist()]
