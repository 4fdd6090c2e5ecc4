"""
The native door to the file system, typed: one method for each operation of ``ls_io``.

Every failure of the native core becomes an exception in :func:`check`, and nowhere else.

Thread rule: any thread may call anything. Each call releases the GIL.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import weakref
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from logstore._native._core import ffi, lib
from logstore._native.objects import objects
from logstore.errors import (
    ClosedError,
    CorruptRecordError,
    DiskFullError,
    ForkedError,
    LogStoreError,
    PoisonedError,
    RecordTooLargeError,
    SimulatedCrashError,
    StorageError,
    UnsupportedForMessageFormatError,
)

# Looked up once: these two are called per record.
_read_all = lib.ls_io_read_all
_write_all = lib.ls_io_write_all
_MappedMemory = objects.MappedMemory

Path = str | os.PathLike[str]

_ENCODING: Final = sys.getfilesystemencoding()
_ERRORS: Final = sys.getfilesystemencodeerrors()
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

# What to do about an errno; the end of the message.
_ADVICE: Final = {
    errno.ENOSPC: "free space and try again",
    errno.EDQUOT: "raise the quota or free space and try again",
    errno.ENOENT: "check the path",
    errno.EACCES: "check the owner and the mode of the path",
    errno.EPERM: "check the owner and the mode of the path",
    errno.EROFS: "the file system is read-only; remount it or use another",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files",
    errno.EIO: "check the device and the kernel's log",
    errno.EEXIST: "remove it or use another path",
    errno.EBADF: "the descriptor is not open for this",
}

_OURS: Final[dict[int, tuple[type[LogStoreError], str]]] = {
    lib.LS_E_CORRUPT: (CorruptRecordError, "bytes are damaged; run logstore verify"),
    lib.LS_E_POISONED: (PoisonedError, "an earlier fsync failed; close the log and open it again"),
    lib.LS_E_CLOSED: (ClosedError, "it is closed; open it again"),
    lib.LS_E_TOO_LARGE: (
        RecordTooLargeError,
        "it exceeds max.message.bytes; raise it or send less",
    ),
    lib.LS_E_FORKED: (ForkedError, "the handle belongs to the parent; open the log in the child"),
    lib.LS_E_LEGACY: (UnsupportedForMessageFormatError, "magic 0 or 1; only v2 is possible here"),
    lib.LS_E_CRASHED: (SimulatedCrashError, "the simulated power failed; call crash()"),
}


def check(rc: int, action: str, path: Path | None = None) -> int:
    """
    Return ``rc`` if the native core reports success, else raise what it reports.

    Args:
        rc: The native result: >= 0, -errno, or a value of ``enum ls_error``.
        action: What was tried: ``"pwrite 123 bytes at 456"``.
        path: The file concerned.

    Raises:
        DiskFullError: ENOSPC or EDQUOT.
        StorageError: Any other errno.
        LogStoreError: The class that belongs to a value of ``enum ls_error``.
    """
    if rc < 0:
        _fail(rc, action, path)
    return rc


def _fail(rc: int, action: str, path: Path | None) -> NoReturn:
    where = "" if path is None else os.fspath(path)
    if where and where not in action:
        # "open PATH", but "pwrite 3 bytes at 9 of PATH".
        action = f"{action} of {where}" if " " in action else f"{action} {where}"
    if rc >= -4095:
        code = -rc
        advice = _ADVICE.get(code, "see the errno")
        message = f"cannot {action}: {os.strerror(code)}; {advice}"
        kind = DiskFullError if code in _NO_SPACE else StorageError
        raise kind(message, code, path=path)
    if rc in _OURS:
        ours, advice = _OURS[rc]
        raise ours(f"cannot {action}: {advice}", path=path)
    # Results that steer a caller (LS_E_ROLL, LS_E_SLOW, ...) never get here.
    message = f"unexpected native result {rc} for: {action}"
    raise AssertionError(message)


def path_of(fd: int) -> str | None:
    """The path that ``fd`` was opened by, for error messages; None if the system cannot tell."""
    try:
        if hasattr(fcntl, "F_GETPATH"):
            return os.fsdecode(fcntl.fcntl(fd, fcntl.F_GETPATH, b"\0" * 1024).rstrip(b"\0"))
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None


def encode_path(path: Path) -> bytes:
    """Return a path as the system takes it."""
    # What os.fsencode does, without its calls: they are most of what opening a file takes here.
    encoded = path.encode(_ENCODING, _ERRORS) if type(path) is str else os.fsencode(path)
    if b"\0" in encoded:
        message = f"embedded null byte in path {path!r}"
        raise ValueError(message)
    return encoded


class Mapping:
    """
    A mapped range of a file, from its first byte on.

    Lifetime: the memory stays mapped until this object and every view of it are gone, so that
    neither a view nor a native call that was given :attr:`address` by a holder of this object can
    meet unmapped memory. :meth:`close` gives up this object's own claim. The file must not shrink
    below the mapped range while anybody may touch it (DESIGN.md D6).
    """

    __slots__ = ("__weakref__", "_address", "_io", "_memory", "is_closed", "size")

    def __init__(self, io: Any, address: int, size: int) -> None:
        self._io = io
        self.size = size
        self.is_closed = False
        # Each buffer made of it keeps it alive, and it keeps the io.
        self._memory = _MappedMemory(int(ffi.cast("uintptr_t", io)), address, size)
        self._address = address

    @property
    def address(self) -> int:
        """Address of the first byte; valid while the caller holds this object."""
        assert not self.is_closed
        return self._address

    @property
    def view(self) -> memoryview:
        """The mapped bytes, read-only."""
        return self.writable_view.toreadonly()

    @property
    def writable_view(self) -> memoryview:
        """The mapped bytes, to store into if the mapping was made for that."""
        assert not self.is_closed
        return memoryview(self._memory)

    def claim(self) -> weakref.ref[Any]:
        """Return a reference that is dead once nobody, no view either, holds the memory."""
        return weakref.ref(self._memory)

    def stored(self, position: int, size: int) -> None:
        """Report that bytes were stored to, before they are published to anybody."""
        assert not self.is_closed
        check(lib.ls_io_stored(self._io, self.address, position, size), "report stored bytes")

    def close(self) -> None:
        """Refuse further use of this object; a second call does nothing."""
        self.is_closed = True

    def __len__(self) -> int:
        return self.size


class NativeFiles:
    """
    The operations of one ``ls_io``.

    Every call either does all it was asked to or raises :class:`~logstore.errors.StorageError`
    with its errno. Descriptors are plain numbers of this process.

    Attributes:
        io: The ``ls_io *``, for native handles, which take their own hold on it.
    """

    __slots__ = ("__weakref__", "io")

    def __init__(self, io: Any) -> None:
        if io == ffi.NULL:
            message = "no memory for a file door"
            raise MemoryError(message)
        self.io = io

    def hold(self) -> None:
        """
        Keep the ``ls_io`` until :meth:`let_go`, for an object that closes something when collected.

        A cycle of objects is collected in any order: the ``ls_io`` may be the first to go.
        """
        lib.ls_io_hold(self.io)

    def let_go(self) -> None:
        """End a :meth:`hold`; nothing here may be called afterwards by its holder."""
        lib.ls_io_free(self.io)

    # -- files -------------------------------------------------------------------------------------

    def open(self, path: Path, flags: int, mode: int = 0o666) -> int:
        """Open ``path`` with the system's ``os.O_*`` flags and return its descriptor."""
        fd = lib.ls_io_open(self.io, encode_path(path), flags, mode)
        if fd < 0:
            _fail(fd, "open", path)
        return fd  # type: ignore[no-any-return]

    def close(self, fd: int) -> None:
        """Close ``fd``, which is gone even if this raises."""
        rc = lib.ls_io_close(self.io, fd)
        if rc < 0:
            _fail(rc, f"close descriptor {fd}", None)

    def pwrite(self, fd: int, data: Any, position: int) -> int:
        """
        Write all of ``data`` at ``position`` and return its size in bytes.

        If this raises, a part of it may have been written.
        """
        if type(data) is not bytes:
            data = ffi.from_buffer(data)
        size = len(data)
        rc = _write_all(self.io, fd, data, size, position)
        if rc < 0:
            _fail(rc, f"pwrite {size} bytes at {position}", path_of(fd))
        return size

    def pwritev(self, fd: int, pieces: Sequence[Any], position: int) -> int:
        """Write all ``pieces`` one behind the other at ``position``; their size in bytes."""
        buffers = [ffi.from_buffer(piece) for piece in pieces]
        spans = ffi.new("struct ls_io_span[]", len(buffers))
        for span, buffer in zip(spans, buffers, strict=True):
            span.bytes = int(ffi.cast("uintptr_t", buffer))
            span.size = len(buffer)
        rc = lib.ls_io_write_all_spans(self.io, fd, spans, len(buffers), position)
        if rc < 0:
            _fail(rc, f"pwrite {len(buffers)} pieces at {position}", path_of(fd))
        return rc  # type: ignore[no-any-return]

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Read ``size`` bytes at ``position``; fewer only at the end of the file."""
        # Filled in place, as os.pread does it: the object is new and nobody else has it.
        data = bytes(size)
        if size > 0:
            rc = _read_all(self.io, fd, data, size, position)
            if rc < 0:
                _fail(rc, f"pread {size} bytes at {position}", path_of(fd))
            if rc < size:
                return data[:rc]
        return data

    def pread_into(self, fd: int, buffer: Any, position: int) -> int:
        """Fill ``buffer`` from ``position`` on; the number of bytes, fewer only at the end."""
        target = ffi.from_buffer(buffer, require_writable=True)
        rc = _read_all(self.io, fd, target, len(target), position)
        if rc < 0:
            _fail(rc, f"pread {len(target)} bytes at {position}", path_of(fd))
        return rc  # type: ignore[no-any-return]

    def fail_to_read(self, rc: int, fd: int, position: int) -> NoReturn:
        """Raise StorageError for what C got that read a file by itself, below 0."""
        _fail(rc, f"pread at {position}", path_of(fd))

    def file_equals(self, path: Path, data: bytes) -> bool:
        """Whether a file has exactly these contents; a missing one has not."""
        rc = lib.ls_io_file_equals(self.io, encode_path(path), data, len(data))
        if rc < 0 and rc != -errno.ENOENT:
            _fail(rc, "read", path)
        return rc == 1  # type: ignore[no-any-return]

    def put_file(self, path: Path, data: bytes, *, sync: bool) -> None:
        """
        Give a file new contents, in place: a crash may leave anything of the old and the new ones.

        One that has a second name leaves it the old ones.

        **Durability:** with ``sync`` the contents survive a power loss on return.
        """
        rc = lib.ls_io_put_file(self.io, encode_path(path), data, len(data), sync)
        if rc < 0:
            _fail(rc, f"write {len(data)} bytes", path)

    def create_indexes(self, timeindex: str, index: str) -> tuple[int, int]:
        """
        Make the index files of a new segment and return the descriptors: offset index, time index.

        Files of these names are in nobody's use and are replaced. If this raises, neither is there.
        """
        fds = ffi.new("int32_t[2]")
        rc = lib.ls_io_create_indexes(self.io, encode_path(timeindex), encode_path(index), fds)
        if rc < 0:
            _fail(rc, "make the index files", index)
        return fds[0], fds[1]

    def fallocate(self, fd: int, position: int, size: int) -> bool:
        """Reserve space without changing the file's size; False where that does not exist."""
        rc = lib.ls_io_fallocate(self.io, fd, position, size)
        if rc in (-errno.EOPNOTSUPP, -errno.ENOTSUP, -errno.ENOSYS):
            return False
        if rc < 0:
            _fail(rc, f"reserve {size} bytes at {position}", path_of(fd))
        return True

    def ftruncate(self, fd: int, size: int) -> None:
        """Set the file's size."""
        rc = lib.ls_io_ftruncate(self.io, fd, size)
        if rc < 0:
            _fail(rc, f"truncate to {size} bytes", path_of(fd))

    def fdatasync(self, fd: int) -> None:
        """**Durability:** on return the file's data and size survive a power loss."""
        rc = lib.ls_io_fdatasync(self.io, fd)
        if rc < 0:
            _fail(rc, "fdatasync", path_of(fd))

    def fdatasync_together(self, fds: Sequence[int]) -> tuple[int, StorageError | None]:
        """
        Do what :meth:`fdatasync` does with several files, all of which the device gets at once.

        Returns:
            How many are durable, the first ones, and why the one behind them is not, if there is.
        """
        flushed = ffi.new("int32_t *")
        rc = lib.ls_io_fdatasync_together(self.io, fds, len(fds), flushed)
        count: int = flushed[0]
        if rc == 0:
            return count, None
        try:
            _fail(rc, "fdatasync", path_of(fds[count]))
        except StorageError as error:
            return count, error

    def start_writeback(self, fd: int) -> None:
        """
        Let the device begin with what :meth:`fdatasync` will wait for; promises nothing.

        Raises:
            StorageError: As from an fdatasync: what reaches the device is not known.
        """
        rc = lib.ls_io_start_writeback(self.io, fd)
        if rc < 0:
            _fail(rc, "write back", path_of(fd))

    def copy_range(
        self, source: int, source_position: int, target: int, target_position: int, size: int
    ) -> int:
        """Copy between descriptors, in the kernel if it can; fewer bytes only at the end."""
        rc = lib.ls_io_copy_all(self.io, source, source_position, target, target_position, size)
        if rc < 0:
            _fail(rc, f"copy {size} bytes to {target_position}", path_of(target))
        return rc  # type: ignore[no-any-return]

    def sendfile(self, socket: int, fd: int, position: int, size: int) -> int:
        """
        Send bytes of a file to a socket within the kernel; return how many, 0 at the file's end.

        Raises:
            OSError: What the socket says; BlockingIOError if it would have to wait; ENOSYS if this
                system cannot, or these files are not real.
        """
        while True:
            rc: int = lib.ls_io_sendfile(self.io, socket, fd, position, size)
            if rc >= 0:
                return rc
            if rc < -4095:
                _fail(rc, f"send {size} bytes at {position}", path_of(fd))
            if rc != -errno.EINTR:  # Else Python runs its signal handlers first.
                raise OSError(-rc, os.strerror(-rc))

    def map(self, fd: int, size: int, *, writable: bool = False) -> Mapping:
        """Map the first ``size`` bytes, shared; stores into it are reported by ``stored``."""
        address = ffi.new("uintptr_t *")
        flags = lib.LS_IO_MAP_READ | (lib.LS_IO_MAP_STORE if writable else 0)
        rc = lib.ls_io_map(self.io, fd, size, flags, address)
        if rc < 0:
            _fail(rc, f"map {size} bytes", path_of(fd))
        return Mapping(self.io, int(address[0]), size)

    def lock(self, fd: int) -> bool:
        """
        Take the exclusive record lock of the whole file; False if somebody else holds one.

        It belongs to the open file: a fork shares it, and it ends when the last descriptor of this
        ``open`` closes. Java's ``FileLock`` and this one exclude each other.
        """
        rc = lib.ls_io_lock(self.io, fd)
        if rc == -errno.EAGAIN:
            return False
        if rc < 0:
            _fail(rc, "lock", path_of(fd))
        return True

    def is_locked(self, fd: int) -> bool:
        """Whether another open file holds the record lock; a read-only descriptor will do."""
        rc = lib.ls_io_is_locked(self.io, fd)
        if rc < 0:
            _fail(rc, "look for a lock", path_of(fd))
        return bool(rc == 1)

    @property
    def locks_are_of_files(self) -> bool:
        """Whether locks exclude other descriptors of this process; else they are the process's."""
        return bool(lib.ls_io_locks_are_of_files())

    def unlock(self, fd: int) -> None:
        """Give the record lock back."""
        rc = lib.ls_io_unlock(self.io, fd)
        if rc < 0:
            _fail(rc, "unlock", path_of(fd))

    # -- directories -------------------------------------------------------------------------------

    def fsync_directory(self, path: Path, *, missing_ok: bool = False) -> None:
        """
        **Durability:** on return the directory's entries survive a power loss.

        Source: Kafka ``Utils.flushDir``; with ``missing_ok``, ``Utils.flushDirIfExists``.
        """
        rc = lib.ls_io_fsync_dir(self.io, encode_path(path))
        if rc < 0 and not (missing_ok and rc == -errno.ENOENT):
            _fail(rc, "fsync", path)

    def rename(self, source: Path, target: Path) -> None:
        """Rename atomically, replacing ``target``."""
        rc = lib.ls_io_rename(self.io, encode_path(source), encode_path(target))
        if rc < 0:
            _fail(rc, f"rename {os.fspath(source)} to {os.fspath(target)}", source)

    def link(self, source: Path, target: Path) -> None:
        """Give the file ``source`` a second name."""
        rc = lib.ls_io_link(self.io, encode_path(source), encode_path(target))
        if rc < 0:
            _fail(rc, f"link {os.fspath(source)} to {os.fspath(target)}", source)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        """Remove a file's name."""
        rc = lib.ls_io_unlink(self.io, encode_path(path))
        if rc < 0 and not (missing_ok and rc == -errno.ENOENT):
            _fail(rc, "delete", path)

    def mkdir(self, path: Path, mode: int = 0o777) -> None:
        """Make a directory."""
        rc = lib.ls_io_mkdir(self.io, encode_path(path), mode)
        if rc < 0:
            _fail(rc, "mkdir", path)

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""
        rc = lib.ls_io_rmdir(self.io, encode_path(path))
        if rc < 0:
            _fail(rc, "rmdir", path)

    def set_modified_ms(self, path: Path, modified_ms: int) -> None:
        """Set the modification time, in milliseconds since the epoch."""
        rc = lib.ls_io_set_modified(self.io, encode_path(path), modified_ms)
        if rc < 0:
            _fail(rc, "set the modification time", path)

    # -- counters ----------------------------------------------------------------------------------

    def count_operations(self, counting: bool = True) -> None:
        """Start or stop counting; see :meth:`operation_counts`."""
        lib.ls_io_set_counting(self.io, counting)

    def operation_counts(self) -> dict[str, int]:
        """Operations counted so far, by name, those of native handles included."""
        return {
            ffi.string(lib.ls_io_name(op)).decode(): lib.ls_io_count(self.io, op)
            for op in range(lib.LS_IO_OP_COUNT)
        }


def real_io() -> Any:
    """A new ``ls_io`` over the system's files; never freed, native handles may outlive all else."""
    return lib.ls_io_real_new()
