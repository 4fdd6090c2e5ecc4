"""
What a log keeps outside its segments: the writer's lock, the clean marker and three checkpoints.

=================================  =============================================================
``.lock``                          record lock of the writer; who it is, for error messages
``.kafka_cleanshutdown``           exists between a clean close and the next open for writing
``recovery-point-offset-checkpoint``  below it everything is on the device
``log-start-offset-checkpoint``    the first offset that may be read
``replication-offset-checkpoint``  the high watermark
=================================  =============================================================

A stand-alone log has them in its own directory, where Kafka ignores them. If its parent is a log
directory (``meta.properties``, ``.lock`` or a checkpoint is there), they are the parent's, so that
a broker and a logstore exclude each other and find each other's state. Then the marker speaks for
all logs there: it is put back only if it was there before, and every log was closed cleanly since.

Source: Kafka ``LogManager``; spec 2.3, 2.6, 2.7; DESIGN.md D3.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Final, Protocol

from logstore.checkpoint import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    SET_ASIDE_SUFFIXES,
    CleanShutdownFile,
    OffsetCheckpointFile,
    TopicPartition,
    topic_partition_of,
)
from logstore.clock import SYSTEM_CLOCK, Clock
from logstore.errors import (
    ClosedError,
    ConfigError,
    CorruptCheckpointError,
    DiskFullError,
    StorageError,
)
from logstore.files import REAL_FILES, Files
from logstore.writer_lock import LOCK_FILE, WriterLock, locked_error

logger = logging.getLogger(__name__)

META_PROPERTIES: Final = "meta.properties"
CHECKPOINTS: Final = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
)
LOG_DIRECTORY_FILES: Final = (META_PROPERTIES, LOCK_FILE, *CHECKPOINTS, CLEANER_CHECKPOINT)

# How often the offsets of a log that is written are recorded, unless something asks for it.
WRITE_INTERVAL_SECONDS: Final = 5.0

# What a directory that is not called like a partition has in its own checkpoints.
UNNAMED: Final = TopicPartition("log", 0)


def is_log_directory(path: str, files: Files = REAL_FILES) -> bool:
    """Return whether a directory holds the state of the partitions in it, as a broker's does."""
    return any(files.exists(os.path.join(path, name)) for name in LOG_DIRECTORY_FILES)


def state_path_of(log_path: str, files: Files = REAL_FILES) -> str:
    """Return the directory that holds a log's state: its own, or the log directory it is in."""
    parent = os.path.dirname(os.path.realpath(log_path))
    return parent if is_log_directory(parent, files) else log_path


class Offsets(Protocol):
    """What is checkpointed of a log's offsets."""

    @property
    def recovery_point(self) -> int:
        """Below it everything is on the device."""
        ...

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        ...

    @property
    def high_watermark(self) -> int:
        """Below it everything is replicated."""
        ...


class StateDirectory:
    """
    The directory that holds state: a log's own, or the log directory that it is in.

    Open for writing it holds the lock and has taken the clean marker away. One object of a process
    serves all logs of one log directory.

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
        "_users",
        "had_clean_shutdown",
        "is_gone",
        "path",
    )

    def __init__(self, path: str, files: Files, lock: WriterLock | None) -> None:
        self.path = path
        self.is_gone = False  # Nothing is marked in a directory that was deleted.
        self._files = files
        self._lock = lock
        self._guard = threading.Lock()
        self._users: set[TopicPartition] = set()
        self._is_all_clean = True
        self._checkpoints = {
            name: OffsetCheckpointFile(os.path.join(path, name), files=files)
            for name in CHECKPOINTS
        }
        self._marker = CleanShutdownFile(path, files=files)
        self.had_clean_shutdown: Final = self._marker.exists()
        self._clean_marker = b""
        if lock is not None and self.had_clean_shutdown:
            # Before anything else: a crash while the log is loaded is an unclean end.
            self._clean_marker = files.read_file(self._marker.path)
            self._marker.delete()

    @property
    def writer_epoch(self) -> int:
        """The number of writers there have been; 0 for a reader."""
        return 0 if self._lock is None else self._lock.epoch

    @property
    def is_held(self) -> bool:
        """Whether this process is the writer here."""
        return self._lock is not None and self._lock.is_held

    def offset(self, checkpoint: str, topic_partition: TopicPartition) -> int | None:
        """
        Return what a checkpoint says of a partition, None if nothing.

        One that cannot be read says nothing: that only makes a recovery longer.
        """
        try:
            offsets = self._checkpoints[checkpoint].read()
        except (StorageError, ValueError) as error:
            logger.warning("%s/%s is taken for empty: %s", self.path, checkpoint, error)
            return None
        return offsets.get(topic_partition)

    def only_offset(self, checkpoint: str) -> int | None:
        """Return the offset of a checkpoint that has one entry: the directory was renamed."""
        try:
            offsets = list(self._checkpoints[checkpoint].read().values())
        except (StorageError, ValueError):
            return None
        return offsets[0] if len(offsets) == 1 else None

    def write(
        self, checkpoint: str, topic_partition: TopicPartition, offset: int, *, alone: bool
    ) -> None:
        """
        Set a partition's offset in a checkpoint, and keep those of the others.

        **Durability**: on return it survives a power loss. ``alone``: nobody else has entries here.
        """
        with self._guard:
            if not self.is_held:
                raise ClosedError(f"the state in {self.path} is closed; open the log again")
            file = self._checkpoints[checkpoint]
            offsets: dict[TopicPartition, int] = {}
            if not alone:
                with contextlib.suppress(StorageError, ValueError):
                    offsets.update(file.read())
            offsets[topic_partition] = offset
            file.write(offsets)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Remove a partition from the checkpoints; durable on return."""
        with self._guard:
            for file in self._checkpoints.values():
                with contextlib.suppress(CorruptCheckpointError):
                    offsets = dict(file.read())
                    if offsets.pop(topic_partition, None) is not None:
                        file.write(offsets)

    def update_path(self, path: str) -> None:
        """Learn that the directory was renamed."""
        with self._guard:
            self.path = path
            for name, file in self._checkpoints.items():
                file.update_path(os.path.join(path, name))
            self._marker = CleanShutdownFile(path, files=self._files)
            if self._lock is not None:
                self._lock.path = os.path.join(path, LOCK_FILE)

    def rename_user(self, old: TopicPartition, new: TopicPartition) -> None:
        """Learn that one of the logs here has another name."""
        with self._guard:
            self._users.discard(old)
            self._users.add(new)

    def forget_checkpoint(self, checkpoint: str) -> None:
        """Remove a checkpoint: the recovery reads more, and that needs no space on the disk."""
        self._files.unlink(os.path.join(self.path, checkpoint), missing_ok=True)
        self._files.fsync_directory(self.path)

    def enter(self, topic_partition: TopicPartition) -> None:
        """
        Let one more log have its state here.

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
            _shared.pop(self.path, None)
            lock = self._lock
            if lock is None or not lock.is_held:
                return
            try:
                if self._is_all_clean and not self.is_gone:
                    self._mark_clean()
            finally:
                lock.release()

    def _mark_clean(self) -> None:
        """Put the marker back as it was: it speaks for logs that were not opened here, too."""
        if self.had_clean_shutdown:
            self._files.replace_file(self._marker.path, self._clean_marker)


class _OwnDirectory(StateDirectory):
    """The state of a stand-alone log: the marker speaks for this log alone."""

    __slots__ = ()

    def _mark_clean(self) -> None:
        self._marker.write()


# Log directories that this process writes in, by path: each is locked once.
_shared: dict[str, StateDirectory] = {}
_shared_guard = threading.Lock()


def _forget_shared() -> None:
    global _shared_guard  # noqa: PLW0603  Another thread may have held it when this one forked.
    _shared_guard = threading.Lock()
    _shared.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_shared)


class PartitionState:
    """
    What one log keeps outside its segments, wherever that is.

    Attributes:
        topic_partition: The name that the checkpoints have for this log.
        had_clean_shutdown: Whether the last writer closed everything.

    **Thread rule**: any thread.
    """

    __slots__ = (
        "__weakref__",
        "_clock",
        "_directory",
        "_is_alone",
        "_is_left",
        "_written",
        "_written_at",
        "had_clean_shutdown",
        "topic_partition",
    )

    def __init__(
        self,
        directory: StateDirectory,
        topic_partition: TopicPartition,
        *,
        is_alone: bool,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._written_at = clock.monotonic()
        self._is_alone = is_alone
        self._is_left = False
        self._written: dict[str, int] = {}
        self.topic_partition = topic_partition
        self.had_clean_shutdown: Final = directory.had_clean_shutdown
        directory.enter(topic_partition)

    @classmethod
    def for_writing(
        cls,
        log_path: str,
        *,
        files: Files = REAL_FILES,
        clock: Clock = SYSTEM_CLOCK,
        lock_timeout: float = 0.0,
    ) -> PartitionState:
        """
        Become the only writer of a log.

        Raises:
            LockedError: Somebody is writing, still after ``lock_timeout`` seconds.
            ConfigError: The parent is a log directory, and this is no name of a partition.
        """
        parent, name = os.path.split(os.path.realpath(log_path))
        if not is_log_directory(parent, files):
            lock = WriterLock(log_path, files=files, clock=clock, timeout_seconds=lock_timeout)
            try:
                own = _OwnDirectory(log_path, files, lock)
                return cls(own, _own_name(name), is_alone=True, clock=clock)
            except BaseException:
                lock.release()
                raise
        topic_partition = _name_in_log_directory(name, parent)
        with _shared_guard:
            shared = _shared.get(parent)
            if shared is None or not shared.is_held:
                lock = WriterLock(parent, files=files, clock=clock, timeout_seconds=lock_timeout)
                try:
                    shared = StateDirectory(parent, files, lock)
                except BaseException:
                    lock.release()
                    raise
                _shared[parent] = shared
            return cls(shared, topic_partition, is_alone=False, clock=clock)

    @classmethod
    def for_reading(cls, log_path: str, *, files: Files = REAL_FILES) -> PartitionState:
        """
        Return what the last writer of a log left, or is leaving, without changing anything.

        Args:
            log_path: The log's directory.
            files: The door to the file system.
        """
        parent, name = os.path.split(os.path.realpath(log_path))
        is_alone = not is_log_directory(parent, files)
        state_path = log_path if is_alone else parent
        return cls(StateDirectory(state_path, files, None), _own_name(name), is_alone=is_alone)

    @property
    def path(self) -> str:
        """The directory that the state is in."""
        return self._directory.path

    @property
    def writer_epoch(self) -> int:
        """The number of writers there have been; 0 for a reader."""
        return self._directory.writer_epoch

    @property
    def recovery_point(self) -> int:
        """Below it everything was on the device; 0 if nothing is known."""
        return self._read(RECOVERY_POINT_CHECKPOINT)

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read; 0 if nothing is known."""
        return self._read(LOG_START_CHECKPOINT)

    @property
    def high_watermark(self) -> int:
        """The high watermark at the last checkpoint; 0 if nothing is known."""
        return self._read(HIGH_WATERMARK_CHECKPOINT)

    def _read(self, checkpoint: str) -> int:
        offset = self._directory.offset(checkpoint, self.topic_partition)
        if offset is None and self._is_alone:
            offset = self._directory.only_offset(checkpoint)
        return max(0, offset or 0)

    def write(self, offsets: Offsets) -> None:
        """
        Record recovery point, log start and high watermark; durable on return.

        The recovery point comes first if it goes down, and last if it goes up: at no moment do the
        files promise more than there is.
        """
        is_lower = offsets.recovery_point < self._written.get(RECOVERY_POINT_CHECKPOINT, 1 << 63)
        if is_lower:
            self.write_recovery_point(offsets.recovery_point)
        self.write_log_start_offset(offsets.log_start_offset)
        self.write_high_watermark(offsets.high_watermark)
        if not is_lower:
            self.write_recovery_point(offsets.recovery_point)

    def maybe_write(self, offsets: Callable[[], Offsets]) -> None:
        """
        Record the offsets if that was not done for a while; failures wait for the next time.

        Keeps recovery short: what was flushed since the last time would be read again.
        """
        now = self._clock.monotonic()
        if now - self._written_at < WRITE_INTERVAL_SECONDS:
            return
        self._written_at = now
        try:
            self.write(offsets())
        except StorageError as error:
            logger.warning("%s: the offsets were not checkpointed: %s", self.path, error)

    def write_recovery_point(self, offset: int) -> None:
        """
        Record that everything below ``offset`` is on the device; durable on return.

        Lowering it comes before any truncation (DESIGN.md D4). On a full disk the checkpoint goes
        away instead, which says 0.
        """
        try:
            self._write(RECOVERY_POINT_CHECKPOINT, offset)
        except DiskFullError:
            self._directory.forget_checkpoint(RECOVERY_POINT_CHECKPOINT)

    def write_log_start_offset(self, offset: int) -> None:
        """Record the log start; durable on return."""
        self._write(LOG_START_CHECKPOINT, offset)

    def write_high_watermark(self, offset: int) -> None:
        """Record the high watermark; durable on return."""
        self._write(HIGH_WATERMARK_CHECKPOINT, offset)

    def _write(self, checkpoint: str, offset: int) -> None:
        assert offset >= 0
        if self._written.get(checkpoint) == offset:
            return
        self._written.pop(checkpoint, None)
        self._directory.write(checkpoint, self.topic_partition, offset, alone=self._is_alone)
        self._written[checkpoint] = offset

    def update_directory(self, directory: str) -> None:
        """Learn that the log's directory was renamed; durable on return."""
        topic_partition = _own_name(os.path.basename(directory))
        if self._is_alone:
            self._directory.update_path(directory)
            self.topic_partition = topic_partition
            return
        offsets = [(name, self._read(name)) for name in CHECKPOINTS]
        self._directory.forget(self.topic_partition)
        self._directory.rename_user(self.topic_partition, topic_partition)
        self.topic_partition = topic_partition
        self._written.clear()
        for name, offset in offsets:
            self._write(name, offset)

    def forget(self) -> None:
        """Drop what is known of the log: its directory was deleted."""
        if self._is_alone:
            self._directory.is_gone = True
        else:
            self._directory.forget(self.topic_partition)

    def close(self, *, clean: bool) -> None:
        """
        Give the lock back; a second call does nothing.

        Args:
            clean: Everything is flushed and closed: the next open scans nothing.
        """
        if not self._is_left:
            self._is_left = True
            self._directory.leave(self.topic_partition, clean=clean)

    @property
    def is_held(self) -> bool:
        """Whether this process is the writer."""
        return not self._is_left and self._directory.is_held


def _own_name(name: str) -> TopicPartition:
    """Return the partition that a directory is called after, or a name for one that is not."""
    found = topic_partition_of(name)
    # The lines of a checkpoint are split at white space.
    if found is None or any(character.isspace() for character in found.topic):
        return UNNAMED
    return found


def _name_in_log_directory(name: str, parent: str) -> TopicPartition:
    if name.endswith(SET_ASIDE_SUFFIXES):
        raise ConfigError(
            [f"{name} was set aside by a broker; open it with mode 'r', or copy it elsewhere"],
            path=os.path.join(parent, name),
        )
    found = _own_name(name)
    if found is UNNAMED:
        problem = (
            f"{name} is no partition's name, but {parent} is a log directory, and a broker would"
            " refuse to start: call it <topic>-<partition>, or put it elsewhere"
        )
        raise ConfigError([problem], path=os.path.join(parent, name))
    return found
