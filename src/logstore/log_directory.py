"""
One log directory of this process: its lock, its clean marker and its checkpoints.

=====================================  ===========================================================
``.lock``                              record lock of the writer; who it is, for error messages
``.kafka_cleanshutdown``               exists between a clean close and the next open for writing
``recovery-point-offset-checkpoint``   below it everything is on the device
``log-start-offset-checkpoint``        the first offset that may be read
``replication-offset-checkpoint``      the high watermark
``cleaner-offset-checkpoint``          the first offset that is not cleaned yet
=====================================  ===========================================================

Each checkpoint has the offsets of all partitions. A writer holds them in memory and replaces a file
as a whole; who waits for that shares it with the others. A store writes them periodically, as a
broker does; one log that is opened by itself in a log directory writes what it has to say.

The marker speaks for all logs of the directory: it comes back only if every log that was opened was
closed cleanly, and the others were clean before or there are no others.

Source: Kafka ``LogManager``; spec 2.3, 2.6, 2.7, 6.1, 6.6; DESIGN.md D3.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from logstore.checkpoint import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    NO_BROKER_EPOCH,
    RECOVERY_POINT_CHECKPOINT,
    CleanShutdownFile,
    OffsetCheckpointFile,
    TopicPartition,
)
from logstore.clock import Clock
from logstore.errors import ClosedError, StorageError
from logstore.files import REAL_FILES, Files
from logstore.writer_lock import LOCK_FILE, WriterLock, locked_error

logger = logging.getLogger(__name__)

META_PROPERTIES: Final = "meta.properties"
CHECKPOINTS: Final = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
)
ALL_CHECKPOINTS: Final = (*CHECKPOINTS, CLEANER_CHECKPOINT)
LOG_DIRECTORY_FILES: Final = (META_PROPERTIES, LOCK_FILE, *ALL_CHECKPOINTS)


def is_log_directory(path: str, files: Files = REAL_FILES) -> bool:
    """Return whether a directory holds the state of the partitions in it, as a broker's does."""
    return any(files.exists(os.path.join(path, name)) for name in LOG_DIRECTORY_FILES)


class HeldCheckpoint:
    """
    An offset checkpoint that its only writer has in memory.

    **Thread rule**: any thread. Those that wait for the file at the same time share one write.
    """

    __slots__ = ("_changes", "_file", "_guard", "_offsets", "_turn", "_written")

    def __init__(self, path: str, files: Files) -> None:
        self._file = OffsetCheckpointFile(path, files=files)
        self._guard = threading.Lock()  # Of what is in memory; never held while a file is written.
        self._turn = threading.Lock()
        self._changes = 0
        self._written = 0
        self._offsets: dict[TopicPartition, int] = {}

    def read(self) -> None:
        """Take what is in the file; one that cannot be read says nothing (DESIGN.md D8)."""
        self._offsets = read_offsets(self._file)

    def get(self, topic_partition: TopicPartition) -> int | None:
        """Return a partition's offset, None if there is none."""
        return self._offsets.get(topic_partition)

    def offsets(self) -> dict[TopicPartition, int]:
        """Return a copy of all."""
        with self._guard:
            return self._offsets.copy()

    def set(self, topic_partition: TopicPartition, offset: int | None) -> None:
        """Set a partition's offset in memory, or remove it with None."""
        with self._guard:
            if self._offsets.get(topic_partition) == offset:
                return
            if offset is None:
                del self._offsets[topic_partition]
            else:
                self._offsets[topic_partition] = offset
            self._changes += 1

    def keep_only(self, is_kept: Callable[[TopicPartition], bool]) -> None:
        """Remove the partitions that are not there any more."""
        for topic_partition in self.offsets():
            if not is_kept(topic_partition):
                self.set(topic_partition, None)

    @property
    def is_written(self) -> bool:
        """Whether the file says what memory does."""
        return self._written == self._changes

    def write(self) -> None:
        """Make what is in memory now durable; nothing happens if it is."""
        wanted = self._changes
        with self._turn:
            if self._written >= wanted:
                return
            with self._guard:
                changes = self._changes
                offsets = self._offsets.copy()
            self._file.write(offsets)
            self._written = changes

    def delete(self) -> None:
        """Delete the file, which then says 0 of all; the next write has what is in memory."""
        with self._turn:
            self._file.delete()
            with self._guard:
                self._changes += 1

    def update_path(self, path: str) -> None:
        """Learn that the file has another name now."""
        self._file.update_path(path)


def read_offsets(file: OffsetCheckpointFile) -> dict[TopicPartition, int]:
    """Return what a checkpoint says; nothing, with a warning, if it cannot be read."""
    try:
        return file.read()
    except (StorageError, ValueError) as error:
        logger.warning("%s is taken for empty: %s", file.path, error)
        return {}


class LogDirectory:
    """
    A log directory, open for writing: it holds the lock and has taken the clean marker away.

    One object of a process serves all logs of one directory. It is closed when the last of its
    users has left: the logs, and the store that opened it, if one did.

    Attributes:
        path: The directory.
        had_clean_shutdown: Whether the marker was there.
        was_closed_here: Whether it is a logstore's, which has ended every transaction before.
        is_gone: The directory was deleted: nothing is marked any more.
        is_loaded: Every log here has been loaded since, so that a marker may come where none was.
        writes_later: Offsets of a log that goes on wait for the next :meth:`write_checkpoints`,
            unless they have to be durable.
        is_closing: So do those of logs that are closed.

    **Thread rule**: any thread.
    """

    __slots__ = (
        "__weakref__",
        "_checkpoints",
        "_clean_marker",
        "_files",
        "_guard",
        "_is_all_clean",
        "_lock",
        "_marker",
        "_together",
        "_users",
        "had_clean_shutdown",
        "is_closing",
        "is_gone",
        "is_loaded",
        "path",
        "was_closed_here",
        "writes_later",
    )

    def __init__(self, path: str, files: Files, lock: WriterLock) -> None:
        self.path = path
        self.is_gone = False
        self.is_loaded = False
        self.writes_later = False
        self.is_closing = False
        self._together: int | None = None  # The thread whose writes are put off.
        self._files = files
        self._lock = lock
        self._guard = threading.Lock()
        self._users: set[TopicPartition] = set()
        self._is_all_clean = True
        self._marker = CleanShutdownFile(path, files=files)
        self.had_clean_shutdown: Final = self._marker.exists()
        self._clean_marker = b""
        # A broker's has its epoch, and a directory that it has closed has a new lock file.
        self.was_closed_here: Final = (
            self.had_clean_shutdown and self._marker.read() == NO_BROKER_EPOCH and lock.epoch > 1
        )
        if self.had_clean_shutdown:
            # Before anything else: a crash while the logs are loaded is an unclean end.
            self._clean_marker = files.read_file(self._marker.path)
            self._marker.delete()
        self._checkpoints = {
            name: HeldCheckpoint(os.path.join(path, name), files) for name in ALL_CHECKPOINTS
        }
        for checkpoint in self._checkpoints.values():
            checkpoint.read()

    @classmethod
    def lock(
        cls, path: str, *, files: Files, clock: Clock, lock_timeout: float = 0.0
    ) -> LogDirectory:
        """
        Become the only writer of a directory.

        Raises:
            LockedError: Somebody is, still after ``lock_timeout`` seconds.
        """
        lock = WriterLock(path, files=files, clock=clock, timeout_seconds=lock_timeout)
        try:
            return cls(path, files, lock)
        except BaseException:
            lock.release()
            raise

    @property
    def files(self) -> Files:
        """The door to the file system."""
        return self._files

    @property
    def writer_epoch(self) -> int:
        """The number of writers there have been."""
        return self._lock.epoch

    @property
    def is_held(self) -> bool:
        """Whether this process is the writer here."""
        return self._lock.is_held

    def __repr__(self) -> str:
        return f"<LogDirectory {self.path!r}{'' if self.is_held else ' closed'}>"

    # -- checkpoints -------------------------------------------------------------------------------

    def offset(self, checkpoint: str, topic_partition: TopicPartition) -> int | None:
        """Return what a checkpoint says of a partition, None if nothing."""
        return self._checkpoints[checkpoint].get(topic_partition)

    def offsets(self, checkpoint: str) -> dict[TopicPartition, int]:
        """Return a copy of what a checkpoint says."""
        return self._checkpoints[checkpoint].offsets()

    def note(self, checkpoint: str, topic_partition: TopicPartition, offset: int | None) -> None:
        """Set a partition's offset, or remove it; the next write of the checkpoint has it."""
        self._checkpoints[checkpoint].set(topic_partition, offset)

    def write(self, checkpoint: str, topic_partition: TopicPartition, offset: int) -> None:
        """
        Set a partition's offset in a checkpoint.

        **Durability**: on return it survives a power loss.
        """
        self._check_held()
        self.note(checkpoint, topic_partition, offset)
        self._checkpoints[checkpoint].write()

    def write_checkpoints(self, names: Iterable[str] = ALL_CHECKPOINTS) -> None:
        """Make durable what was noted; checkpoints that say it already are left alone."""
        self._check_held()
        for name in names:
            self._checkpoints[name].write()

    def forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions from the checkpoints; durable on return."""
        self._check_held()
        for topic_partition in topic_partitions:
            for checkpoint in self._checkpoints.values():
                checkpoint.set(topic_partition, None)
        self.write_checkpoints()

    def keep_only(self, is_kept: Callable[[TopicPartition], bool]) -> None:
        """Remove the partitions that are not here any more from what is written next."""
        for checkpoint in self._checkpoints.values():
            checkpoint.keep_only(is_kept)

    def forget_checkpoint(self, checkpoint: str) -> None:
        """Remove a checkpoint: the recovery reads more, and that needs no space on the disk."""
        self._checkpoints[checkpoint].delete()

    def _check_held(self) -> None:
        if not self.is_held:
            raise ClosedError(f"the state in {self.path} is closed; open it again", path=self.path)

    @contextlib.contextmanager
    def written_together(self) -> Iterator[None]:
        """
        Let what this thread has to write in this block be noted, and write it once at its end.

        For work on many logs of which none is lost by a crash: a retention that a crash takes back
        is made again. A recovery point that goes down is written at once all the same.
        """
        self._together = threading.get_ident()
        try:
            yield
        finally:
            self._together = None
            if self.is_held:
                self.write_checkpoints()

    @property
    def is_written_together(self) -> bool:
        """Whether this thread is in a block of :meth:`written_together`."""
        return self._together == threading.get_ident()

    # -- users -------------------------------------------------------------------------------------

    def enter(self, topic_partition: TopicPartition) -> None:
        """
        Let one more have its state here.

        Raises:
            LockedError: This process has it open already.
        """
        with self._guard:
            if topic_partition in self._users:
                raise locked_error(os.path.join(self.path, LOCK_FILE), self._files)
            self._users.add(topic_partition)

    def leave(self, topic_partition: TopicPartition, *, clean: bool) -> None:
        """Let go of one; the last one puts the clean marker in place and releases the lock."""
        with self._guard:
            self._users.discard(topic_partition)
            self._is_all_clean = self._is_all_clean and clean
            if self._users:
                return
            if _shared.get(self.path) is self:
                _shared.pop(self.path, None)
            if not self._lock.is_held:
                return
            try:
                if self._is_all_clean and not self.is_gone:
                    self._mark_clean()
            finally:
                self._lock.release()

    def _mark_clean(self) -> None:
        """Put the marker back as it was, or a new one if it may speak for every log here."""
        if self.had_clean_shutdown:
            self._files.replace_file(self._marker.path, self._clean_marker)
        elif self.is_loaded:
            self._marker.write()

    def rename_user(self, old: TopicPartition, new: TopicPartition) -> None:
        """Learn that one of the logs here has another name."""
        with self._guard:
            self._users.discard(old)
            self._users.add(new)

    def update_path(self, path: str) -> None:
        """Learn that the directory was renamed."""
        with self._guard:
            self.path = path
            for name, checkpoint in self._checkpoints.items():
                checkpoint.update_path(os.path.join(path, name))
            self._marker.update_path(CleanShutdownFile(path, files=self._files).path)
            self._lock.path = os.path.join(path, LOCK_FILE)


# Who holds a directory for a store, among its users.
STORE: Final = TopicPartition("", -1)

# Log directories that this process writes in, by path: each is locked once.
_shared: dict[str, LogDirectory] = {}
_shared_guard = threading.Lock()


def enter_for_log(
    path: str,
    topic_partition: TopicPartition,
    *,
    files: Files,
    clock: Clock,
    lock_timeout: float = 0.0,
) -> LogDirectory:
    """
    Return the directory of a log that is opened by itself, entered for that log.

    Raises:
        LockedError: A store, another process or another handle of the log is writing there.
    """
    with _shared_guard:
        directory = _shared.get(path)
        if directory is None or not directory.is_held:
            directory = LogDirectory.lock(path, files=files, clock=clock, lock_timeout=lock_timeout)
            _shared[path] = directory
        elif STORE in directory._users:
            raise locked_error(os.path.join(path, LOCK_FILE), files)
        directory.enter(topic_partition)
        return directory


def enter_for_store(
    path: str, *, files: Files, clock: Clock, lock_timeout: float = 0.0
) -> LogDirectory:
    """
    Return a directory that a store alone writes in.

    Raises:
        LockedError: Another store, another process, or a log opened by itself is writing there.
    """
    with _shared_guard:
        directory = LogDirectory.lock(path, files=files, clock=clock, lock_timeout=lock_timeout)
        directory.enter(STORE)
        directory.writes_later = True
        _shared[path] = directory
        return directory


def _forget_shared() -> None:
    global _shared_guard  # noqa: PLW0603  Another thread may have held it when this one forked.
    _shared_guard = threading.Lock()
    _shared.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_shared)
