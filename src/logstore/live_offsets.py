"""
Live offsets: the file in which a log's writer shows other processes how far it has got.

``live-offsets`` in the log's directory, one page, mapped by the writer and its readers. Kafka
ignores it. It may be deleted at any time: nothing in it counts after its writer is gone, readers
that have it open go on, others read what was flushed until the writer makes it again, at its next
roll, flush or truncation. It may not be cut: that is a SIGBUS in whoever has it mapped.

====  =====  ===========================================================================
pos   bytes  field, in the machine's byte order; int64 but for the header
====  =====  ===========================================================================
0     8      magic, ``LSLIVE`` and 2 zeros
8     4      version, 1
12    4      byte order mark, 0x01020304
16    40     boot id of the writer's machine, ASCII
56    72     name of the writer's machine, UTF-8
128   8      log end offset
136   8      size of the active segment
144   8      entries of its offset index
152   8      entries of its time index
160   4      not 0: somebody sleeps on the word
164   4      the word: moves before a wake-up
192   8      change count: odd while what follows changes
200   8      writer epoch
208   8      1: the log is open
216   8      base offset of the active segment
224   8      log start offset
232   8      high watermark, -1: the log end
240   8      first unstable offset, -1: none
248   8      recovery point
256   8      truncation count: odd while one is under way
264   8      pid of the writer
272   8      its pid namespace, 0: not known
320   2048   the offsets of the last 256 truncations, by truncation count / 2 mod 256; -2: sealed
             segments were replaced by cleaned ones
====  =====  ===========================================================================

**Order.** The writer stores the size, then the log end, after the bytes are written. All else moves
under the change count. Before a truncation touches a file its count becomes odd, and even again
when the log is shorter: a reader that saw the same even count before and after it read bytes has
bytes that were in the log.

**Who is alive.** The writer holds a lock on byte 0, of the open file, which ends with the process
however it ends. Readers hold a shared one on byte 1.

**Another machine** sees another boot id: it does not look at the rest.

The page has blocks before it is mapped. Stores are not reported to the door (DESIGN.md D11): what
they leave on the device is never read.

Source: DESIGN.md D3.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import resource
import socket
import struct
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore._native import (
    LIVE_BYTES,
    LIVE_HEADER_BYTES,
    LIVE_TRUNCATIONS_AT,
    READERS_SLOT,
    WRITER_SLOT,
    LivePage,
    Mapping,
    PageOffsets,
    is_slot_locked,
    lock_slot,
)
from logstore.errors import LogStoreError, StorageError
from logstore.files import REAL_FILES, Files
from logstore.process_watch import pid_namespace

if TYPE_CHECKING:
    from logstore._native import Writer

logger = logging.getLogger(__name__)

LIVE_OFFSETS_FILE: Final = "live-offsets"
MAGIC: Final = b"LSLIVE\0\0"
VERSION: Final = 1
BYTE_ORDER_MARK: Final = 0x01020304
HEADER: Final = struct.Struct("=8sII40s72s")
BOOT_ID_FILE: Final = "/proc/sys/kernel/random/boot_id"
IS_OPEN_AT: Final = 208
NOT_SET: Final = -1
SHOWN_LOGS_MAX: Final = 16_384  # Each is a mapping, too.
FILES_PER_SHOWN_LOG: Final = 4  # Of those that the process may have open.
assert HEADER.size == LIVE_HEADER_BYTES


@functools.cache
def _boot_id() -> str:
    # Not a log's file, so not through the door.
    try:
        return Path(BOOT_ID_FILE).read_bytes().decode().strip()[:40]
    except OSError:
        return ""


class Machine:
    """The machine as a page of live offsets knows it: this boot of it, and its name."""

    __slots__ = ("boot_id", "host")

    def __init__(self, boot_id: str, host: str) -> None:
        self.boot_id: Final = boot_id
        self.host: Final = host

    @classmethod
    def here(cls) -> Machine:
        """Return this machine."""
        return cls(_boot_id(), socket.gethostname()[:70])

    def header(self) -> bytes:
        """Return the header of a page whose writer runs here."""
        return HEADER.pack(
            MAGIC, VERSION, BYTE_ORDER_MARK, self.boot_id.encode(), self.host.encode()[:72]
        )

    @classmethod
    def of_header(cls, header: bytes) -> Machine | None:
        """Return the writer's machine; None if this is no header that this version understands."""
        magic, version, order, boot_id, host = HEADER.unpack(header)
        if (magic, version, order) != (MAGIC, VERSION, BYTE_ORDER_MARK):
            return None
        return cls(
            boot_id.rstrip(b"\0").decode(errors="replace"),
            host.rstrip(b"\0").decode(errors="replace"),
        )

    def is_this_boot(self, other: Machine) -> bool:
        """Whether memory shared through a file is shared with the other."""
        return (self.boot_id, self.host) == (other.boot_id, other.host)


class LiveFile:
    """
    The open file and its mapped page.

    **Lifetime**: the mapping lives as long as an object uses it; :meth:`close` gives up the
    descriptor, and with it the locks.

    **Fork**: a child closes its copy of a writer's descriptor at once, else it would seem alive.
    """

    __slots__ = ("__weakref__", "_fd", "_files", "is_writable", "page", "path")

    def __init__(self, path: str, fd: int, files: Files, *, writable: bool) -> None:
        self.path: Final = path
        self._fd = fd
        self._files = files
        self.is_writable: Final = writable
        files.hold()
        try:
            self.page: Final = LivePage(self._map())
        except BaseException:
            self._fd = -1  # It stays the caller's, who closes it: its number may be used again.
            files.let_go()
            raise

    def _map(self) -> Mapping:
        """Map the file by another descriptor: a mapping would keep the locks of its own alive."""
        flags = os.O_RDWR if self.is_writable else os.O_RDONLY
        fd = self._files.open(self.path, flags)
        try:
            if not os.path.samestat(os.fstat(fd), os.fstat(self._fd)):
                raise StorageError(f"{self.path} was replaced; try again", path=self.path)
            return self._files.map(fd, LIVE_BYTES, writable=self.is_writable)
        finally:
            self._files.close(fd)

    @property
    def is_writer_alive(self) -> bool:
        """Whether a writer holds its lock. Not for the writer itself."""
        return self._fd >= 0 and is_slot_locked(self._fd, WRITER_SLOT)

    @property
    def has_readers(self) -> bool:
        """Whether another process, or another handle of this one, has the file open to read."""
        return self._fd >= 0 and is_slot_locked(self._fd, READERS_SLOT)

    @property
    def is_deleted(self) -> bool:
        """Whether the file has no name at all any more."""
        return self._fd < 0 or os.fstat(self._fd).st_nlink == 0

    @property
    def is_current(self) -> bool:
        """Whether the file still has its name: else somebody has deleted it."""
        if self._fd < 0:
            return False
        try:
            named = os.stat(self.path)
        except OSError:
            return False
        return os.path.samestat(named, os.fstat(self._fd))

    def take(self, slot: int) -> bool:
        """Take one of the two locks; False: it is taken."""
        return lock_slot(self._fd, slot)

    def close(self) -> None:
        """Give the descriptor and its locks up; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            self._files.close(fd)
        finally:
            self._files.let_go()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


class ShownMarks(NamedTuple):
    """
    The marks of a log as they are shown; the attributes are those of ``PageOffsets``.

    A page has them from its first moment on: a reader is woken by the opening itself, and without
    the first unstable offset it would deliver what a killed writer left undecided.
    """

    log_start_offset: int
    high_watermark: int
    first_unstable_offset: int
    recovery_point: int


class LiveOffsets:
    """
    The writer's end: shows where its log stands.

    **Thread rule**: under the log's lock, but for the log end, which the native writer publishes.
    """

    __slots__ = ("_file", "_offsets", "_writer")

    def __init__(self, file: LiveFile, offsets: PageOffsets, writer: Writer) -> None:
        self._file = file
        self._offsets = offsets
        self._writer: Writer | None = writer
        file.page.open(Machine.here().header(), offsets)
        file.page.bind(writer)
        _held_files.add(file)

    @classmethod
    def create(
        cls,
        directory: str,
        *,
        writer: Writer,
        writer_epoch: int,
        active_base_offset: int,
        size_bytes: int,
        log_end_offset: int,
        marks: ShownMarks,
        before: LiveOffsets | None = None,
        files: Files = REAL_FILES,
    ) -> LiveOffsets | None:
        """
        Begin to show a log's offsets; None, with a warning, if that is not possible here.

        The caller is the log's only writer. ``marks`` are those of now. ``before`` is what it has
        shown in a file that was deleted: the truncations in there are taken along. A process shows
        a quarter as many logs as it may have files open: each keeps one.
        """
        path = os.path.join(directory, LIVE_OFFSETS_FILE)
        if len(_held_files) >= _shown_logs_max():
            _tell_of_limit()
            return None
        try:
            file = _open_to_write(path, files, None if before is None else before.page)
        except LogStoreError as error:
            logger.warning("readers in other processes see only what is flushed: %s", error)
            return None
        return cls(
            file,
            PageOffsets(
                change_count=0,
                writer_epoch=writer_epoch,
                is_open=1,
                log_end_offset=log_end_offset,
                active_base_offset=active_base_offset,
                size_bytes=size_bytes,
                offset_entry_count=NOT_SET,
                time_entry_count=NOT_SET,
                **marks._asdict(),
                truncation_count=0,
                writer_pid=os.getpid(),
                pid_namespace=pid_namespace(),
            ),
            writer,
        )

    @property
    def page(self) -> LivePage:
        """What is shared."""
        return self._file.page

    @property
    def is_deleted(self) -> bool:
        """Whether the file has no name at all any more; takes less than :attr:`is_current`."""
        return self._file.is_deleted

    @property
    def is_current(self) -> bool:
        """Whether the file still has its name."""
        return self._file.is_current

    def leave(self) -> None:
        """Show no more in a file that was deleted, after another one has taken its place."""
        self._writer = None
        _held_files.discard(self._file)
        self._file.close()
        self.page.close()  # Readers find the lock free, and look for the other file.

    @property
    def has_readers(self) -> bool:
        """Whether readers of other handles may hold bytes of the log's files."""
        return self._file.has_readers

    def set_marks(self, marks: ShownMarks) -> None:
        """Show what has moved."""
        self.page.set_marks(self._offsets._replace(**marks._asdict()))

    def place(self, active_base_offset: int, size_bytes: int) -> None:
        """Show that another segment is active, or that it has become shorter."""
        self.page.place(active_base_offset, size_bytes)

    def truncating(self, target_offset: int) -> None:
        """Say, before files change, that everything from an offset on goes."""
        self.page.truncating(target_offset)

    def replacing(self) -> None:
        """Say, before files change, that sealed segments get other ones; nothing goes."""
        self.page.replacing()

    def truncated(self) -> None:
        """Say that it is gone, or replaced."""
        self.page.truncated()

    def close(self, *, closed: bool) -> None:
        """
        Show no more; a second call does nothing.

        Args:
            closed: The log was closed; else the writer ends as if it were killed.
        """
        writer, self._writer = self._writer, None
        if writer is None:
            return
        self.page.unbind(writer)
        if closed:
            self.page.close()
        _held_files.discard(self._file)
        self._file.close()
        self.page.poke()  # Whoever sleeps finds the lock free.


def _shown_logs_max() -> int:
    """Return how many logs of this process may keep a file open for readers elsewhere."""
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_max == resource.RLIM_INFINITY:
        return SHOWN_LOGS_MAX
    return min(SHOWN_LOGS_MAX, files_max // FILES_PER_SHOWN_LOG)


@functools.cache
def _tell_of_limit() -> None:
    """Warn, once in a process."""
    logger.warning(
        "readers in other processes see only what is flushed of any more logs: %d are shown;"
        " raise the limit of open files (ulimit -n)",
        len(_held_files),
    )


def _open_to_write(path: str, files: Files, before: LivePage | None) -> LiveFile:
    """
    Open the file, with the writer's lock and with blocks behind all of it.

    It gets the truncations of ``before``.
    """
    for _ in range(2):
        fd = files.open(path, os.O_RDWR | os.O_CREAT)
        try:
            if not lock_slot(fd, WRITER_SLOT):
                # Not the last writer any more: a child of it that did not come to close it.
                files.close(fd)
                fd = -1
                files.unlink(path, missing_ok=True)
                continue
            data = files.pread(fd, LIVE_BYTES, 0)
            if len(data) < LIVE_BYTES or Machine.of_header(data[:LIVE_HEADER_BYTES]) is None:
                if data:  # Of another version: whoever has it mapped must not be confused.
                    files.close(fd)
                    fd = -1
                    files.unlink(path, missing_ok=True)
                    continue
                files.pwrite(fd, bytes(LIVE_BYTES), 0)
            if before is not None:
                files.pwrite(fd, before.truncations, LIVE_TRUNCATIONS_AT)
            files.fallocate(fd, 0, LIVE_BYTES)
            file = LiveFile(path, fd, files, writable=True)
        except BaseException:
            if fd >= 0:
                files.close(fd)
            raise
        else:
            return file
    raise StorageError(f"cannot make {path}: somebody keeps it locked; delete it", path=path)


def is_foreign_writer(directory: str, files: Files = REAL_FILES) -> bool:
    """
    Return whether a writer on another machine may be at work: its lock may not be seen here.

    A machine that was started again has the same name: its writers are gone.
    """
    try:
        fd = files.open(os.path.join(directory, LIVE_OFFSETS_FILE), os.O_RDONLY)
    except StorageError:
        return False
    try:
        data = files.pread(fd, IS_OPEN_AT + 8, 0)
    finally:
        files.close(fd)
    if len(data) < IS_OPEN_AT + 8:
        return False
    machine = Machine.of_header(data[:LIVE_HEADER_BYTES])
    is_open = int.from_bytes(data[IS_OPEN_AT : IS_OPEN_AT + 8], sys.byteorder)
    return machine is not None and machine.host != socket.gethostname()[:70] and is_open == 1


def open_live_file(directory: str, files: Files = REAL_FILES) -> LiveFile | None:
    """
    Open the live offsets of a log to read them; None if there are none that can be read here.

    Where the file may not be written, nobody can be woken through it: poll.
    """
    path = os.path.join(directory, LIVE_OFFSETS_FILE)
    for flags in (os.O_RDWR, os.O_RDONLY):
        try:
            fd = files.open(path, flags)
        except StorageError:
            continue
        try:
            data = files.pread(fd, LIVE_BYTES, 0)
            machine = (
                Machine.of_header(data[:LIVE_HEADER_BYTES]) if len(data) == LIVE_BYTES else None
            )
            if machine is None or not machine.is_this_boot(Machine.here()):
                files.close(fd)
                return None
            file = LiveFile(path, fd, files, writable=flags == os.O_RDWR)
        except StorageError:
            with contextlib.suppress(StorageError):
                files.close(fd)
            return None
        with contextlib.suppress(LogStoreError):
            file.take(READERS_SLOT)
        return file
    return None


# ---- fork ----------------------------------------------------------------------------------------

# A forked child shares the writer's open file, and with it the lock that says that it is alive.
_held_files: weakref.WeakSet[LiveFile] = weakref.WeakSet()


def _forget_files() -> None:
    for file in list(_held_files):
        with contextlib.suppress(LogStoreError):
            file.close()
    _held_files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_files)
