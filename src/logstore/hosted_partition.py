"""
A partition that a store has: where it is, and its log once that is open.

Source: Kafka ``LogManager.loadLog``, ``HostedPartition``; spec 6.1, 6.8.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol

from logstore._native import WriterPool
from logstore.checkpoint import TopicPartition
from logstore.clock import Clock
from logstore.config import LogConfig
from logstore.errors import ClosedError, LockedError, OfflineError
from logstore.files import Files
from logstore.log import Log
from logstore.log_directory import LogDirectory
from logstore.opening import load_log, view_log
from logstore.partition_state import PartitionState
from logstore.scheduler import Scheduler


class Host(Protocol):
    """What a partition asks of its store; :class:`~logstore.store.LogStore` has it."""

    @property
    def clock(self) -> Clock:
        """What time it is."""
        ...

    @property
    def files(self) -> Files:
        """The door to the file system."""
        ...

    @property
    def scheduler(self) -> Scheduler:
        """Runs background work."""
        ...

    @property
    def live_offsets(self) -> bool | None:
        """As for ``open_log``."""
        ...

    @property
    def writer_pool(self) -> WriterPool:
        """What the writers of its logs share."""
        ...

    def config_of(self, topic: str) -> LogConfig:
        """Return the settings in force for a topic."""
        ...


class HostedPartition:
    """
    A partition that a store has.

    Attributes:
        topic_partition: Its name.
        path: Its directory.
        directory: The log directory that it is in; None: the store only reads.
        error: Why it is not served.

    **Thread rule**: any thread; one opens the log, others wait for it.
    """

    __slots__ = (
        "_guard",
        "_is_gone",
        "_is_new",
        "_log",
        "_state",
        "directory",
        "error",
        "path",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        path: str,
        directory: LogDirectory | None,
        *,
        is_new: bool = False,
    ) -> None:
        self.topic_partition = topic_partition
        self.path = path
        self.directory = directory
        self.error: BaseException | None = None
        self._is_new = is_new
        self._is_gone = False
        self._log: Log | None = None
        self._state: PartitionState | None = None
        self._guard = threading.RLock()

    @property
    def open_log(self) -> Log | None:
        """The log if it is open."""
        log = self._log
        return None if log is None or log.is_closed else log

    @property
    def was_loaded(self) -> bool:
        """Whether the log has been opened for writing here."""
        return self._state is not None

    @property
    def is_online(self) -> bool:
        """Whether it can be used, as far as is known."""
        return self.error is None

    def log(self, host: Host, topic_id: str | None = None) -> Log:
        """
        Return the log, opened if it is not.

        Raises:
            OfflineError: It could not be loaded, now or before.
        """
        log = self._log
        if log is not None and not log.is_closed:
            return log
        with self._guard:
            log = self._log
            if log is not None and not log.is_closed:
                return log
            if self.error is not None:
                raise self.offline_error() from self.error
            if self._is_gone:
                raise ClosedError(f"{self.topic_partition} was deleted, or its store closed")
            try:
                log = self._log = self._open(host, topic_id)
            except LockedError:
                raise  # Whoever has it open may close it.
            except Exception as error:
                self.error = error
                raise self.offline_error() from error
            return log

    def offline_error(self) -> OfflineError:
        """Return the error of who wants to use it."""
        return OfflineError(
            f"{self.topic_partition} is not served ({self.error}); look at store.errors",
            getattr(self.error, "errno", None),
            path=self.path,
            topic=self.topic_partition.topic,
            partition=self.topic_partition.partition,
        )

    def _open(self, host: Host, topic_id: str | None) -> Log:
        config = host.config_of(self.topic_partition.topic)
        directory = self.directory
        if directory is None:
            return view_log(
                self.path,
                config,
                files=host.files,
                clock=host.clock,
                scheduler=host.scheduler,
                may_be_empty=True,  # It is being made.
            )
        was_clean = None if self._state is None else self._state.is_closed_cleanly
        if self._is_new:
            was_clean = True
        directory.enter(self.topic_partition)
        state = PartitionState.in_log_directory(
            self.path,
            directory,
            self.topic_partition,
            had_clean_shutdown=was_clean,
            clock=host.clock,
        )
        log = load_log(
            self.path,
            config,
            state,
            topic_id=topic_id,
            files=host.files,
            clock=host.clock,
            scheduler=host.scheduler,
            live_offsets=host.live_offsets,
            writer_pool=host.writer_pool,
        )
        self._state = state
        self._is_new = False
        return log

    def close(self) -> None:
        """Close the log if it is open, and open it no more."""
        with self._guard:
            self._is_gone = True
            log = self._log
        if log is not None:
            log.close()

    def drop(self) -> None:
        """Drop the log because it is deleted, and open it no more: nothing is flushed."""
        with self._guard:
            self._is_gone = True
            log = self._log
        if log is not None:
            log._leave(is_clean=True)

    def abandon(self) -> None:
        """Drop the log as a process that is killed does, and open it no more."""
        with self._guard:
            self._is_gone = True
            log = self._log
        if log is not None:
            log.abandon()

    def after_fork(self) -> None:
        """Begin anew in a forked child: another thread may have held the lock."""
        self._guard = threading.RLock()
        self.directory = None  # Which is the parent's: what is opened here is only read.

    @property
    def name(self) -> str:
        """The directory's name."""
        return os.path.basename(self.path)

    def __repr__(self) -> str:
        return f"<HostedPartition {self.path!r}>"
