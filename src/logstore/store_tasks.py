"""
Background work of a store.

==========================================  ======================================================
task                                        every
==========================================  ======================================================
kafka-log-retention                         log.retention.check.interval.ms
kafka-recovery-point-checkpoint             log.flush.offset.checkpoint.interval.ms
kafka-log-start-offset-checkpoint           log.flush.start.offset.checkpoint.interval.ms
highwatermark-checkpoint                    replica.high.watermark.checkpoint.interval.ms
idle-logs                                   minute: memory and room ahead are given back
kafka-delete-logs                           when a directory is due
==========================================  ======================================================

Each begins after log.initial.task.delay.ms. Each log has its own of flush.ms and of the expiry of
producers. What fails is reported, and tried again the next time.

Source: Kafka ``LogManager.startup``; spec 6.5.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from logstore.checkpoint import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    TopicPartition,
)
from logstore.errors import (
    ClosedError,
    DiskFullError,
    LockedError,
    LogStoreError,
    RetentionBlockedError,
    StorageError,
)
from logstore.hosted_partition import Host, HostedPartition
from logstore.log_directory import LogDirectory
from logstore.partition_flush import IDLE_CHECK_MS
from logstore.partition_retention import blocked_retention
from logstore.scheduler import Task
from logstore.store_config import StoreConfig
from logstore.topic_configs import TopicConfigs
from logstore.unified_log import delete_tree

# What a device says that has failed, or has gone.
DEVICE_ERRORS: Final = frozenset(
    {errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO, errno.ESTALE}
    | {getattr(errno, "EUCLEAN", errno.EIO)}
)


def is_directory_failure(error: BaseException) -> bool:
    """Return whether an error says that the device has failed, not only this operation."""
    return (
        isinstance(error, StorageError)
        and not isinstance(error, DiskFullError)
        and error.errno in DEVICE_ERRORS
    )


class TendedStore(Host, Protocol):
    """What the tasks ask of their store; :class:`~logstore.store.LogStore` has it."""

    @property
    def config(self) -> StoreConfig:
        """The store's settings."""
        ...

    @property
    def configs(self) -> TopicConfigs:
        """What is known of topics."""
        ...

    _lock: threading.RLock
    _live: dict[str, LogDirectory | None]
    _hosted: dict[TopicPartition, HostedPartition]
    _deleted: deque[tuple[int, str]]

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        ...

    def is_held(self, topic: str) -> bool:
        """Whether retention and compaction of a topic wait for its settings."""
        ...

    def report(self, error: BaseException, what: str) -> None:
        """Tell of an error."""
        ...

    def take_offline(self, path: str, error: BaseException) -> None:
        """Serve the partitions of a directory no more."""
        ...


class StoreTasks:
    """
    The periodic work of one store.

    **Thread rule**: the scheduler's thread runs the tasks; any thread may call :meth:`run_all`.
    """

    def __init__(self, store: TendedStore) -> None:
        self._store: Final = weakref.ref(store)
        self._tasks: list[Task] = []
        self._deletion: Task | None = None
        self._told_of_blocked: set[str] = set()

    def start(self) -> None:
        """Begin."""
        store = self._store()
        assert store is not None
        config = store.config
        kind = type(self)
        for name, work, period_ms in (
            (
                "kafka-log-retention",
                kind.delete_old_segments,
                config.log_retention_check_interval_ms,
            ),
            (
                "kafka-recovery-point-checkpoint",
                kind.checkpoint_recovery_points,
                config.log_flush_offset_checkpoint_interval_ms,
            ),
            (
                "kafka-log-start-offset-checkpoint",
                kind.checkpoint_log_starts,
                config.log_flush_start_offset_checkpoint_interval_ms,
            ),
            (
                "highwatermark-checkpoint",
                kind.checkpoint_high_watermarks,
                config.replica_high_watermark_checkpoint_interval_ms,
            ),
            ("idle-logs", kind.give_back_of_idle_logs, IDLE_CHECK_MS),
        ):
            task = store.scheduler.schedule(
                name, self._action(work), config.log_initial_task_delay_ms, period_ms
            )
            self._tasks.append(task)
        self.schedule_deletion()

    def _action(self, work: Callable[[StoreTasks, TendedStore], None]) -> Callable[[], None]:
        """Return an action that does not keep the store alive."""

        def act() -> None:
            store = self._store()
            if store is not None and not store.is_closed:
                work(self, store)

        return act

    def stop(self) -> None:
        """Begin nothing any more."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        if self._deletion is not None:
            self._deletion.cancel()

    # -- retention ---------------------------------------------------------------------------------

    def delete_old_segments(self, store: TendedStore) -> None:
        """
        Let each log delete what its settings let go; compacted and held ones keep everything.

        Logs that nobody has used yet are opened for that, and for the cleaner.

        Source: Kafka ``LogManager.cleanupLogs``.
        """
        by_directory: dict[LogDirectory, list[HostedPartition]] = {}
        for hosted in list(store._hosted.values()):
            self._open_unused(store, hosted)
            if hosted.directory is not None:
                by_directory.setdefault(hosted.directory, []).append(hosted)
        for directory, partitions in by_directory.items():
            try:
                with directory.written_together():
                    for hosted in partitions:
                        self._delete_old_segments_of(store, hosted)
            except StorageError as error:
                if is_directory_failure(error):
                    store.take_offline(directory.path, error)
                else:
                    store.report(error, f"write the log starts in {directory.path}")

    def _delete_old_segments_of(self, store: TendedStore, hosted: HostedPartition) -> None:
        log = hosted.open_log
        if log is None or log.config.compact or store.is_held(hosted.topic_partition.topic):
            return
        topic_partition = hosted.topic_partition
        try:
            plan = log.apply_retention()
            self._report_blocked(store, topic_partition, blocked_retention(plan))
        except ClosedError:
            return  # It was deleted meanwhile.
        except LogStoreError as error:
            self._note(store, hosted, error, f"delete old segments of {topic_partition}")

    def _open_unused(self, store: TendedStore, hosted: HostedPartition) -> None:
        """Open a partition that nobody has used yet, if its settings let records go."""
        config = store.config_of(hosted.topic_partition.topic)
        lets_go = config.compact or config.retention_ms >= 0 or config.retention_bytes >= 0
        if hosted.was_loaded or not hosted.is_online or not lets_go:
            return
        try:
            hosted.log(store)
        except (ClosedError, LockedError):
            return  # It was deleted meanwhile; or somebody has it open, who looks after it.
        except LogStoreError as error:
            self._note(store, hosted, error.__cause__ or error, f"load {hosted.topic_partition}")

    def _report_blocked(
        self,
        store: TendedStore,
        topic_partition: TopicPartition,
        error: RetentionBlockedError | None,
    ) -> None:
        """Tell, once for each topic, that a timestamp keeps everything behind it."""
        if error is None or topic_partition.topic in self._told_of_blocked:
            return
        self._told_of_blocked.add(topic_partition.topic)
        error.topic, error.partition = topic_partition
        store.report(error, f"delete old segments of {topic_partition}")

    def _note(
        self, store: TendedStore, hosted: HostedPartition, error: BaseException, what: str
    ) -> None:
        if is_directory_failure(error):
            store.take_offline(os.path.dirname(hosted.path), error)
        else:
            store.report(error, what)

    # -- checkpoints -------------------------------------------------------------------------------

    def checkpoint_recovery_points(self, store: TendedStore) -> None:
        """Write the recovery points, and what the cleaner has noted."""
        self._checkpoint(store, RECOVERY_POINT_CHECKPOINT, CLEANER_CHECKPOINT)
        with store._lock:
            if not store.is_closed and not store.configs.is_written:
                store.configs.write(store._live)

    def checkpoint_log_starts(self, store: TendedStore) -> None:
        """Write the log starts."""
        self._checkpoint(store, LOG_START_CHECKPOINT)

    def checkpoint_high_watermarks(self, store: TendedStore) -> None:
        """Write the high watermarks; see which devices have failed."""
        for hosted in list(store._hosted.values()):
            log = hosted.open_log
            cause = None if log is None else log._poison.cause
            if cause is not None and is_directory_failure(cause):
                store.take_offline(os.path.dirname(hosted.path), cause)
        self._checkpoint(store, HIGH_WATERMARK_CHECKPOINT)

    def _checkpoint(self, store: TendedStore, *names: str) -> None:
        for topic_partition, hosted in list(store._hosted.items()):
            log, directory = hosted.open_log, hosted.directory
            if log is None or directory is None:
                continue
            # Under the log's lock: a truncation makes a lower recovery point durable first.
            with log._lock:
                if log.is_closed:
                    continue
                offsets = log._offsets_to_keep()
                for name, offset in (
                    (RECOVERY_POINT_CHECKPOINT, offsets.recovery_point),
                    (LOG_START_CHECKPOINT, offsets.log_start_offset),
                    (HIGH_WATERMARK_CHECKPOINT, offsets.high_watermark),
                ):
                    if name in names:
                        directory.note(name, topic_partition, offset)
        for path, each in list(store._live.items()):
            if each is None:
                continue
            try:
                each.write_checkpoints(names)
            except ClosedError:
                continue  # The store was closed meanwhile.
            except StorageError as error:
                if is_directory_failure(error):
                    store.take_offline(path, error)
                else:
                    store.report(error, f"write {', '.join(names)} in {path}")

    # -- idle logs ---------------------------------------------------------------------------------

    def give_back_of_idle_logs(self, store: TendedStore) -> None:
        """Let logs that nobody appends to give back memory and room ahead: others need them."""
        for topic_partition, hosted in list(store._hosted.items()):
            log = hosted.open_log
            if log is None:
                continue
            try:
                log.give_back_if_idle()
            except ClosedError:
                continue  # It was deleted meanwhile.
            except LogStoreError as error:
                self._note(store, hosted, error, f"give back room ahead of {topic_partition}")

    # -- deletion ----------------------------------------------------------------------------------

    def schedule_deletion(self) -> None:
        """Run the deletion when the oldest directory is due."""
        store = self._store()
        if store is None or not store._deleted:
            return
        if self._deletion is not None:
            self._deletion.cancel()
        due_ms = min(due_ms for due_ms, _ in store._deleted)
        delay_ms = max(0, due_ms - store.clock.milliseconds())
        self._deletion = store.scheduler.schedule(
            "kafka-delete-logs", self._action(type(self).delete_directories), delay_ms
        )

    def delete_directories(self, store: TendedStore, *, is_due_now: bool = False) -> None:
        """
        Remove the directories that have waited for file.delete.delay.ms.

        Args:
            store: Of the directories.
            is_due_now: Remove all, however long they have waited.

        Source: Kafka ``LogManager.deleteLogs``.
        """
        now_ms = store.clock.milliseconds()
        waiting: Iterable[tuple[int, str]] = [
            store._deleted.popleft() for _ in range(len(store._deleted))
        ]
        for due_ms, path in waiting:
            if due_ms > now_ms and not is_due_now:
                store._deleted.append((due_ms, path))
                continue
            try:
                if store.files.exists(path):
                    delete_tree(path, store.files)
            except StorageError as error:
                store.report(error, f"delete {path}")  # The next open tries again.
        self.schedule_deletion()
