"""
The door to the file system (DESIGN.md D11): everything that touches a file goes through it.

:class:`Files` is the native table of operations (``ls_io``) with what Python needs on top, and
:class:`FileHandle` a descriptor that is leased. ``REAL_FILES`` are the system's own; simulated and
failing ones have the same methods.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading

from logstore._native import Mapping, NativeFiles, Path, real_io
from logstore.errors import ClosedError, StorageError

__all__ = ["REAL_FILES", "FileHandle", "Files", "HeldLease", "Mapping", "Path"]

TEMPORARY_SUFFIX = ".tmp"


class Files(NativeFiles):
    """
    The file system as the rest of the library sees it.

    Failures are :class:`~logstore.errors.StorageError` with the system's errno.

    Thread rule: any thread may call anything.
    """

    __slots__ = ()

    # -- looking, which changes nothing ------------------------------------------------------------

    def exists(self, path: Path) -> bool:
        """Whether there is a file or directory of this name."""
        return os.path.exists(path)

    def is_directory(self, path: Path) -> bool:
        """Whether there is a directory of this name."""
        return os.path.isdir(path)

    def listdir(self, path: Path) -> list[str]:
        """Names in a directory, sorted."""
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            raise _storage_error(error, "list", path) from error

    def file_size(self, path: Path) -> int:
        """Size of a file in bytes."""
        return self._stat(path).st_size

    def modified_ms(self, path: Path) -> int:
        """Modification time of a file, in milliseconds since the epoch."""
        return self._stat(path).st_mtime_ns // 1_000_000

    def size(self, fd: int) -> int:
        """Size of an open file in bytes."""
        return self._stat(fd).st_size

    def link_count(self, fd: int) -> int:
        """Number of names of an open file. One with more than one is never cut in place."""
        return self._stat(fd).st_nlink

    def _stat(self, path: Path | int) -> os.stat_result:
        try:
            return os.stat(path)
        except OSError as error:
            raise _storage_error(error, "stat", path) from error

    # -- whole files -------------------------------------------------------------------------------

    def read_file(self, path: Path) -> bytes:
        """All bytes of a file."""
        fd = self.open(path, os.O_RDONLY)
        try:
            data = self.pread(fd, self.size(fd), 0)
            while more := self.pread(fd, 65536, len(data)):  # It may grow meanwhile.
                data += more
        finally:
            self.close(fd)
        return data

    def replace_file(self, path: Path, data: bytes) -> None:
        """
        Give ``path`` new contents.

        **Durability:** a crash at any moment leaves the old contents or the new, whole; on return
        the new survive a power loss.

        Source: Kafka ``CheckpointFile.write``.
        """
        path = os.fspath(path)
        temporary = path + TEMPORARY_SUFFIX
        fd = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self.pwrite(fd, data, 0)
            self.fdatasync(fd)
        finally:
            self.close(fd)
        self.rename(temporary, path)
        self.fsync_directory(os.path.dirname(path) or ".")

    # -- memory ------------------------------------------------------------------------------------

    def page_aligned_buffer(self, size: int) -> memoryview:
        """``size`` zero bytes that start at a page, writable; freed with the last view of them."""
        assert size > 0
        return memoryview(mmap.mmap(-1, size))


def _storage_error(error: OSError, action: str, path: Path | int) -> StorageError:
    reason = os.strerror(error.errno) if error.errno is not None else str(error)
    if isinstance(path, int):
        return StorageError(f"cannot {action} descriptor {path}: {reason}", error.errno)
    message = f"cannot {action} {os.fspath(path)}: {reason}; check the path"
    return StorageError(message, error.errno, path=path)


class FileHandle:
    """
    One open file whose descriptor is leased (DESIGN.md D12).

    ``close`` refuses new leases; the descriptor itself is closed when the last lease ends, so that
    no read ever meets a number that already belongs to another file.

    Thread rule: any thread may lease, release and close.

    Args:
        files: The door to the file system.
        path: Where the file is.
        flags: As :func:`os.open` takes them.
        mode: The same, of a file that is made.
        fd: The file, if it is open already: from here on it is this object's to close.

    Attributes:
        path: Where the file is; :meth:`rename` moves it.
    """

    __slots__ = (
        "__weakref__",
        "_fd",
        "_guard",
        "_is_closed",
        "_is_retired",
        "_lease_count",
        "files",
        "path",
    )

    def __init__(
        self,
        files: Files,
        path: Path,
        flags: int = os.O_RDONLY,
        mode: int = 0o666,
        *,
        fd: int | None = None,
    ) -> None:
        self._is_closed = True  # For __del__, should open raise.
        self._is_retired = False
        self.files = files
        self.path = os.fspath(path)
        self._guard = threading.Lock()
        self._lease_count = 0
        self._fd = files.open(path, flags, mode) if fd is None else fd
        files.hold()
        self._is_closed = False

    @property
    def fd(self) -> int:
        """The descriptor, for who has a lease."""
        return self._fd

    @property
    def is_closed(self) -> bool:
        """Whether new leases are refused."""
        return self._is_closed

    @property
    def is_retired(self) -> bool:
        """Whether the file was deleted: who has a lease goes on with it."""
        return self._is_retired

    @property
    def lease_count(self) -> int:
        """Leases that have not ended."""
        return self._lease_count

    def lease(self) -> FileHandle:
        """
        A context manager that gives the descriptor and keeps it open meanwhile.

        Raises:
            ClosedError: On entering, after :meth:`close`.
        """
        return self  # Leases are only counted: an object for each would be half of its time.

    def __enter__(self) -> int:
        with self._guard:
            if self._is_closed:
                raise self._closed_error()
            self._lease_count += 1
            return self._fd

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.release()

    def acquire(self) -> int:
        """Take a lease that :meth:`release` ends, for holders that are not a ``with`` block."""
        return self.__enter__()

    def release(self) -> None:
        """End a lease. The last one after :meth:`close` closes the descriptor."""
        with self._guard:
            assert self._lease_count > 0
            self._lease_count -= 1
            is_last = self._is_closed and self._lease_count == 0
        if is_last:
            self._close()

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"{self.path} is closed; open it again", path=self.path)

    def rename(self, target: Path) -> None:
        """Rename the file and remember its new path; leases go on."""
        self.files.rename(self.path, target)
        self.path = os.fspath(target)

    def close(self) -> None:
        """Refuse new leases; a second call does nothing."""
        with self._guard:
            if self._is_closed:
                return
            self._is_closed = True
            is_last = self._lease_count == 0
        if is_last:
            self._close()

    def retire(self) -> None:
        """Close as :meth:`close` does, because the file is deleted: its user goes on."""
        self._is_retired = True
        self.close()

    def _close(self) -> None:
        try:
            self.files.close(self._fd)
        finally:
            self.files.let_go()

    def __del__(self) -> None:
        if not self._is_closed:
            with contextlib.suppress(StorageError):  # Nobody could do anything about it.
                self.close()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{self._lease_count} leases"
        return f"<FileHandle {self.path!r} {state}>"


class HeldLease:
    """A lease that lasts as long as this object: a call that uses ``fd`` keeps a reference."""

    __slots__ = ("_handle", "fd")

    def __init__(self, handle: FileHandle) -> None:
        self._handle: FileHandle | None = None  # For __del__, should it be closed.
        self.fd = handle.acquire()
        self._handle = handle

    @property
    def files(self) -> Files:
        """The door that the file was opened through."""
        assert self._handle is not None
        return self._handle.files

    def __del__(self) -> None:
        if self._handle is not None:
            with contextlib.suppress(StorageError):  # Nobody could do anything about it.
                self._handle.release()


REAL_FILES = Files(real_io())
