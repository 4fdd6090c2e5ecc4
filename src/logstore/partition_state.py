"""
What one log keeps outside its segments: the writer's lock, the clean marker and its offsets.

A stand-alone log has them in its own directory, where Kafka ignores them. If its parent is a log
directory (``meta.properties``, ``.lock`` or a checkpoint is there), they are the parent's, so that
a broker, a store and a log that is opened by itself exclude each other and find each other's state.

A log that stood alone before its parent became a log directory is *taken over* when it is next
opened for writing: what is in its own directory is moved into the parent's.

Source: Kafka ``LogManager``; spec 2.3, 2.6, 2.7; DESIGN.md D3.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Final, Protocol

from logstore.checkpoint import (
    CLEAN_SHUTDOWN,
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
from logstore.errors import ClosedError, ConfigError, DiskFullError, StorageError
from logstore.files import REAL_FILES, Files
from logstore.log_directory import (
    CHECKPOINTS,
    LogDirectory,
    enter_for_log,
    is_log_directory,
    read_offsets,
)
from logstore.writer_lock import LOCK_FILE, WriterLock

logger = logging.getLogger(__name__)

OWN_FILES: Final = (*CHECKPOINTS, CLEAN_SHUTDOWN, LOCK_FILE)

# How often the offsets of a log that is written are recorded, unless something asks for it.
WRITE_INTERVAL_SECONDS: Final = 5.0

# What a directory that is not called like a partition has in its own checkpoints.
UNNAMED: Final = TopicPartition("log", 0)


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


class _ReadDirectory:
    """What is in a directory that somebody else may be writing in."""

    __slots__ = ("_is_alone", "files", "had_clean_shutdown", "path")

    is_held: Final = False
    writer_epoch: Final = 0

    def __init__(self, path: str, files: Files, *, is_alone: bool) -> None:
        self.path = path
        self.files: Final = files
        self.had_clean_shutdown: Final = CleanShutdownFile(path, files=files).exists()
        self._is_alone: Final = is_alone

    def offset(self, checkpoint: str, topic_partition: TopicPartition) -> int | None:
        """Return what a checkpoint says of a partition, None if nothing."""
        path = os.path.join(self.path, checkpoint)
        if self._is_alone:
            offsets = read_offsets(OffsetCheckpointFile(path, files=self.files))
            return _own_offset(offsets, topic_partition)
        return _read_lately(path, self.files).get(topic_partition)


# Checkpoints of log directories as they were read, by path: each log of a store looks there. They
# are replaced, not changed, so that another file is another state of it.
_lately: dict[str, tuple[tuple[int, ...], dict[TopicPartition, int]]] = {}
LATELY_MAX: Final = 32


def _read_lately(path: str, files: Files) -> dict[TopicPartition, int]:
    """Return what a checkpoint says, read again only if it was replaced."""
    try:
        status = files._stat(path)
    except StorageError:
        return {}
    state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    found = _lately.get(path)
    if found is None or found[0] != state:
        if len(_lately) >= LATELY_MAX:
            _lately.clear()
        # Replaced since, it is read once more: the state is that of before.
        found = _lately[path] = (state, read_offsets(OffsetCheckpointFile(path, files=files)))
    return found[1]


def _own_offset(offsets: dict[TopicPartition, int], topic_partition: TopicPartition) -> int | None:
    """Return a log's offset in a checkpoint of its own: the only one, if it was renamed."""
    if topic_partition in offsets or len(offsets) != 1:
        return offsets.get(topic_partition)
    return next(iter(offsets.values()))


class PartitionState:
    """
    What one log keeps outside its segments, wherever that is.

    Attributes:
        topic_partition: The name that the checkpoints have for this log.
        had_clean_shutdown: Whether the last writer closed everything.
        is_closed_cleanly: Whether this one did.

    **Thread rule**: any thread.
    """

    __slots__ = (
        "__weakref__",
        "_clock",
        "_directory",
        "_is_alone",
        "_is_left",
        "_written_at",
        "had_clean_shutdown",
        "is_closed_cleanly",
        "topic_partition",
    )

    def __init__(
        self,
        directory: LogDirectory | _ReadDirectory,
        topic_partition: TopicPartition,
        *,
        is_alone: bool = False,
        had_clean_shutdown: bool | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """
        Take the state of a log whose directory was entered for it.

        Args:
            directory: Where it is.
            topic_partition: The log's name there.
            is_alone: Nobody else has entries there.
            had_clean_shutdown: Of this log; None: as the directory's marker says.
            clock: What time it is.
        """
        self._directory = directory
        self._clock = clock
        self._written_at = clock.monotonic()
        self._is_alone = is_alone
        self._is_left = False
        self.is_closed_cleanly = False
        self.topic_partition = topic_partition
        self.had_clean_shutdown: Final = (
            directory.had_clean_shutdown if had_clean_shutdown is None else had_clean_shutdown
        )

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
            own = LogDirectory.lock(log_path, files=files, clock=clock, lock_timeout=lock_timeout)
            topic_partition = _own_name(name)
            own.enter(topic_partition)
            if not is_log_directory(parent, files):  # Else a store has taken it over just now.
                own.is_loaded = True  # Its marker speaks for this log alone.
                _keep_own_entry(own, topic_partition)
                return cls(own, topic_partition, is_alone=True, clock=clock)
            own.leave(topic_partition, clean=False)
        topic_partition = _name_in_log_directory(name, parent)
        directory = enter_for_log(
            parent, topic_partition, files=files, clock=clock, lock_timeout=lock_timeout
        )
        return cls.in_log_directory(log_path, directory, topic_partition, clock=clock)

    @classmethod
    def in_log_directory(
        cls,
        log_path: str,
        directory: LogDirectory,
        topic_partition: TopicPartition,
        *,
        had_clean_shutdown: bool | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> PartitionState:
        """
        Return the state of a log in a log directory that was entered for it.

        If the log stood alone before, it is taken over. The directory is left if that fails.

        Raises:
            LockedError: Somebody has the log open, who does not know of the log directory.
        """
        try:
            was_clean = take_over(log_path, directory, topic_partition, clock=clock)
        except BaseException:
            directory.leave(topic_partition, clean=False)
            raise
        if was_clean is None:
            was_clean = had_clean_shutdown
        return cls(directory, topic_partition, had_clean_shutdown=was_clean, clock=clock)

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
        directory = _ReadDirectory(state_path, files, is_alone=is_alone)
        return cls(directory, _own_name(name), is_alone=is_alone)

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
        return max(0, self._directory.offset(checkpoint, self.topic_partition) or 0)

    def write(self, offsets: Offsets) -> None:
        """
        Record recovery point, log start and high watermark; durable on return.

        The recovery point comes first if it goes down, and last if it goes up: at no moment do the
        files promise more than there is.
        """
        is_lower = offsets.recovery_point < self.recovery_point
        if self._writer().is_written_together and not is_lower:
            self._note(offsets)
            return
        if is_lower:
            self.write_recovery_point(offsets.recovery_point)
        self.write_log_start_offset(offsets.log_start_offset)
        self.write_high_watermark(offsets.high_watermark)
        if not is_lower:
            self.write_recovery_point(offsets.recovery_point)

    def write_at_close(self, offsets: Offsets) -> None:
        """
        Record the offsets of a log that is closed: durable on return.

        If a store is closing all of its logs, they are durable before it says that it is clean.
        """
        directory = self._writer()
        if directory.is_closing:
            self._note(offsets)
        else:
            self.write(offsets)

    def maybe_write(self, offsets: Callable[[], Offsets]) -> None:
        """
        Record the offsets if that was not done for a while; failures wait for the next time.

        Keeps recovery short: what was flushed since the last time would be read again. In a store
        they are only noted, and written with those of the other logs.
        """
        if self._writer().writes_later:
            self._note(offsets())
            return
        now = self._clock.monotonic()
        if now - self._written_at < WRITE_INTERVAL_SECONDS:
            return
        self._written_at = now
        try:
            self.write(offsets())
        except StorageError as error:
            logger.warning("%s: the offsets were not checkpointed: %s", self.path, error)

    def _note(self, offsets: Offsets) -> None:
        """Let the next write of the checkpoints have these offsets."""
        directory = self._writer()
        for checkpoint, offset in (
            (LOG_START_CHECKPOINT, offsets.log_start_offset),
            (HIGH_WATERMARK_CHECKPOINT, offsets.high_watermark),
            (RECOVERY_POINT_CHECKPOINT, offsets.recovery_point),
        ):
            directory.note(checkpoint, self.topic_partition, offset)

    def write_recovery_point(self, offset: int) -> None:
        """
        Record that everything below ``offset`` is on the device; durable on return.

        Lowering it comes before any truncation (DESIGN.md D4). On a full disk the checkpoint goes
        away instead, which says 0.
        """
        try:
            self._write(RECOVERY_POINT_CHECKPOINT, offset)
        except DiskFullError:
            self._writer().forget_checkpoint(RECOVERY_POINT_CHECKPOINT)

    def write_log_start_offset(self, offset: int) -> None:
        """Record the log start; durable on return."""
        self._write(LOG_START_CHECKPOINT, offset)

    def write_high_watermark(self, offset: int) -> None:
        """Record the high watermark; durable on return."""
        self._write(HIGH_WATERMARK_CHECKPOINT, offset)

    @property
    def cleaner_offset(self) -> int | None:
        """The first dirty offset at the end of the last cleaning, None if there was none."""
        return self._directory.offset(CLEANER_CHECKPOINT, self.topic_partition)

    def write_cleaner_offset(self, offset: int) -> None:
        """Record where the next cleaning begins; durable on return."""
        self._write(CLEANER_CHECKPOINT, offset)

    def _write(self, checkpoint: str, offset: int) -> None:
        assert offset >= 0
        self._writer().write(checkpoint, self.topic_partition, offset)

    def _writer(self) -> LogDirectory:
        """Return the directory that this process writes in."""
        directory = self._directory
        if self._is_left or not isinstance(directory, LogDirectory):
            raise ClosedError(f"the state in {self.path} is closed; open the log again")
        return directory

    def update_directory(self, directory: str) -> None:
        """Learn that the log's directory was renamed; durable on return."""
        state = self._writer()
        topic_partition = _own_name(os.path.basename(directory))
        if self._is_alone:
            state.update_path(directory)
        state.rename_user(self.topic_partition, topic_partition)
        for name in CHECKPOINTS:
            offset = state.offset(name, self.topic_partition)
            state.note(name, self.topic_partition, None)
            state.note(name, topic_partition, offset)
        self.topic_partition = topic_partition
        state.write_checkpoints()

    def forget(self) -> None:
        """Drop what is known of the log: its directory was deleted."""
        if self._is_alone:
            self._writer().is_gone = True
        else:
            self._writer().forget([self.topic_partition])

    def close(self, *, clean: bool) -> None:
        """
        Give the lock back; a second call does nothing.

        Args:
            clean: Everything is flushed and closed: the next open scans nothing.
        """
        if not self._is_left:
            self._is_left = True
            self.is_closed_cleanly = clean
            if isinstance(self._directory, LogDirectory):
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


# ---- logs that stood alone -----------------------------------------------------------------------


def _keep_own_entry(directory: LogDirectory, topic_partition: TopicPartition) -> None:
    """Let a log's own checkpoints speak of it by the name that it has now."""
    for name in CHECKPOINTS:
        directory.note(name, topic_partition, _own_offset(directory.offsets(name), topic_partition))
    directory.keep_only(topic_partition.__eq__)


def take_over(
    log_path: str,
    directory: LogDirectory,
    topic_partition: TopicPartition,
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> bool | None:
    """
    Move what a log kept while it stood alone into the log directory that it is in; durable.

    Where both know of it, somebody wrote without knowing of the other: the lower recovery point and
    the higher log start are taken, and the log was not closed cleanly.

    Returns:
        Whether it was closed cleanly; None: nothing of it is in its own directory.

    Raises:
        LockedError: Somebody has it open, and does not know of the log directory.
    """
    files = directory.files
    if not any(files.exists(os.path.join(log_path, name)) for name in OWN_FILES):
        return None
    lock = WriterLock(log_path, files=files, clock=clock)
    try:
        marker = CleanShutdownFile(log_path, files=files)
        was_clean = marker.exists()
        if was_clean:
            marker.delete()  # A crash while the log is loaded is an unclean end.
        was_known = directory.offset(RECOVERY_POINT_CHECKPOINT, topic_partition) is not None
        own = {
            name: OffsetCheckpointFile(os.path.join(log_path, name), files=files)
            for name in CHECKPOINTS
        }
        for name, file in own.items():
            offset = max(0, _own_offset(read_offsets(file), topic_partition) or 0)
            known = directory.offset(name, topic_partition)
            if known is not None:
                offset = max(offset, known) if name == LOG_START_CHECKPOINT else min(offset, known)
            directory.note(name, topic_partition, offset)
        directory.write_checkpoints(CHECKPOINTS)
        for file in own.values():
            file.delete()
        files.unlink(lock.path, missing_ok=True)
        files.fsync_directory(log_path)
    finally:
        lock.release()
    return was_clean and not was_known
