"""
The lock that makes one process the only writer of a directory.

``.lock`` is locked as a whole by a record lock of the open file. For error messages it says who
holds it, a word and its value on each line: ``epoch`` (how many writers there have been), ``pid``,
``host``. A broker leaves the file empty and does not read it.

Source: Kafka ``FileLock``; spec 2.7; DESIGN.md D3.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import weakref
from typing import Final

from logstore.clock import Clock
from logstore.errors import DiskFullError, LockedError, StorageError
from logstore.files import REAL_FILES, Files

LOCK_FILE: Final = ".lock"
LOCK_POLL_SECONDS: Final = 0.01
LOCK_FILE_BYTES_MAX: Final = 4096
FORBIDDEN: Final = (errno.EACCES, errno.EPERM)


class WriterLock:
    """
    The lock that makes its holder the only writer of a directory.

    A record lock of the open file: it excludes Java's ``FileLock``, ends with the process, and is
    not lost when another descriptor of the file is closed. The file says who holds it, and counts
    the writers there have been: the *writer epoch*.

    **Fork**: a child shares the open file. It closes its descriptor at once and holds nothing.

    Source: Kafka ``FileLock``.
    """

    __slots__ = ("__weakref__", "_fd", "_file", "_files", "epoch", "path")

    def __init__(
        self, directory: str, *, files: Files, clock: Clock, timeout_seconds: float = 0.0
    ) -> None:
        self.path = os.path.join(directory, LOCK_FILE)
        self._files = files
        self._fd = -1
        self._file = (-1, -1)
        self.epoch = 0
        deadline = clock.monotonic() + timeout_seconds
        while not self._try():
            if clock.monotonic() >= deadline:
                raise locked_error(self.path, files)
            clock.sleep(LOCK_POLL_SECONDS)
        _held_locks.add(self)
        try:
            self._sign()
        except BaseException:
            self.release()
            raise

    def _try(self) -> bool:
        with _changing:
            if _is_held_here(self.path):
                return False
            fd = self._files.open(self.path, os.O_RDWR | os.O_CREAT)
            try:
                # A broker deletes the file in the end: a lock on a file without a name is none.
                if self._files.lock(fd) and _is_file(fd, self.path):
                    self._check_that_it_excludes(fd)
                    self._fd = fd
                    self._file = _identity(os.fstat(fd))
                    _held_files[self._file] = fd
                    self._files.hold()
                    return True
            finally:
                if self._fd != fd:
                    self._files.close(fd)
        return False

    def _check_that_it_excludes(self, fd: int) -> None:
        """
        Try to lock another open file: some mounts give one lock to all who ask.

        Only to ask whether it is locked is not enough: some of them say yes, and give it.

        Raises:
            StorageError: It does not. Two writers would overwrite each other's records.
        """
        if not self._files.locks_are_of_files:
            return  # And closing another descriptor would give the lock back.
        other = self._files.open(self.path, os.O_RDWR)
        try:
            is_same = _identity(os.fstat(other)) == _identity(os.fstat(fd))
            if is_same and self._files.lock(other):
                raise StorageError(
                    f"the file system of {self.path} lets several processes have one lock, so that"
                    " two could write there; mount it in another way, or use another one",
                    errno=errno.ENOLCK,
                    path=self.path,
                )
        finally:
            self._files.close(other)

    def _sign(self) -> None:
        holder = _Holder.parse(self._files.pread(self._fd, LOCK_FILE_BYTES_MAX, 0))
        self.epoch = holder.epoch + 1
        signature = _Holder(self.epoch, os.getpid(), socket.gethostname()).text()
        with contextlib.suppress(DiskFullError):  # It only serves error messages.
            self._files.pwrite(self._fd, signature, 0)
            self._files.ftruncate(self._fd, len(signature))

    def release(self) -> None:
        """Let others write; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        _held_locks.discard(self)
        with contextlib.suppress(StorageError):
            unsigned = _Holder(self.epoch, None, None).text()
            self._files.pwrite(fd, unsigned, 0)
            self._files.ftruncate(fd, len(unsigned))
        with _changing:
            try:
                self._files.unlock(fd)
            finally:
                self._close(fd)
                _held_files.pop(self._file, None)

    def forget(self) -> None:
        """Close the descriptor that a forked child has inherited; the parent keeps the lock."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._close(fd)

    def _close(self, fd: int) -> None:
        try:
            self._files.close(fd)
        finally:
            self._files.let_go()

    @property
    def is_held(self) -> bool:
        """Whether this object still holds the lock."""
        return self._fd >= 0

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.release()


class _Holder:
    """What a lock file says: ``epoch 3``, ``pid 4711``, ``host name``, one a line."""

    __slots__ = ("epoch", "host", "pid")

    def __init__(self, epoch: int, pid: int | None, host: str | None) -> None:
        self.epoch = epoch
        self.pid = pid
        self.host = host

    @classmethod
    def parse(cls, data: bytes) -> _Holder:
        fields = dict(
            line.split(" ", 1) for line in data.decode(errors="replace").splitlines() if " " in line
        )
        epoch, pid = fields.get("epoch", ""), fields.get("pid", "")
        return cls(
            int(epoch) if epoch.isdecimal() else 0,
            int(pid) if pid.isdecimal() else None,
            fields.get("host"),
        )

    def text(self) -> bytes:
        lines = [f"epoch {self.epoch}"]
        if self.pid is not None:
            lines += [f"pid {self.pid}", f"host {self.host}"]
        return "".join(f"{line}\n" for line in lines).encode()


# Locks of this process: a forked child has to close its copies of their descriptors, and an object
# that nobody reaches any more cannot do that.
_held_locks: weakref.WeakSet[WriterLock] = weakref.WeakSet()

# Locked files of this process, by device and inode, with the descriptor that holds the lock. Where
# a record lock belongs to the process instead of the open file (macOS), the system would grant it
# twice, and would drop it as soon as any descriptor of the file is closed: such a file is not
# opened again. Reentrant, because a collected log may release its lock at any moment.
_held_files: dict[tuple[int, int], int] = {}
_changing = threading.RLock()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _is_held_here(path: str) -> bool:
    """Return whether this process holds the lock on the file of this name."""
    with contextlib.suppress(OSError):
        file = _identity(os.stat(path))
        fd = _held_files.get(file, -1)
        # A simulated crash takes the descriptor away, and with it the lock.
        return fd >= 0 and _identity(os.fstat(fd)) == file
    return False


def _forget_locks() -> None:
    global _changing  # noqa: PLW0603 - Another thread of the parent may have held it.
    _changing = threading.RLock()
    for lock in list(_held_locks):
        lock.forget()
    _held_locks.clear()
    _held_files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


def _is_file(fd: int, path: str) -> bool:
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    return _identity(named) == _identity(os.fstat(fd))


def locked_error(path: str, files: Files) -> LockedError:
    """Return the error that names who is writing in a directory, as its lock file tells."""
    holder = _Holder(0, None, None)
    if _is_held_here(path):
        holder = _Holder(0, os.getpid(), socket.gethostname())
    else:
        with contextlib.suppress(StorageError):
            holder = _Holder.parse(files.read_file(path)[:LOCK_FILE_BYTES_MAX])
    directory = os.path.dirname(path)
    if holder.pid is None:
        who = "another program (a broker?)"
    elif holder.host != socket.gethostname():
        who = f"process {holder.pid} on {holder.host}"
    elif holder.pid == os.getpid():
        who = "another handle of this process"
    else:
        who = f"process {holder.pid}"
    return LockedError(
        f"{who} is writing in {directory}; close it there, or wait with lock_timeout=",
        host=holder.host,
        pid=holder.pid,
        path=directory,
    )


def is_signed(directory: str, files: Files = REAL_FILES) -> bool:
    """
    Return whether the last writer of a directory was a logstore: a broker leaves no name.

    Who may not read the file takes it for a logstore's: of that, less is safe to read.
    """
    try:
        data = files.read_file(os.path.join(directory, LOCK_FILE))
    except StorageError as error:
        return error.errno in FORBIDDEN
    return _Holder.parse(data[:LOCK_FILE_BYTES_MAX]).epoch > 0


def has_writer(directory: str, files: Files = REAL_FILES) -> bool:
    """
    Return whether somebody holds the lock of a directory; needs no right to write there.

    Who may not read the file has to expect that somebody does.
    """
    path = os.path.join(directory, LOCK_FILE)
    if _is_held_here(path):
        return True
    try:
        fd = files.open(path, os.O_RDONLY)
    except StorageError as error:
        if error.errno in FORBIDDEN:
            return True
        if isinstance(error, DiskFullError) or error.errno != errno.ENOENT:
            raise
        return False
    try:
        return files.is_locked(fd)
    finally:
        files.close(fd)
