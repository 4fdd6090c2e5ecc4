"""
From what is on the disk to a store: what is there is hosted, what a crash left is finished.

Source: Kafka ``LogManager.loadLogs``; spec 6.1.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from logstore.checkpoint import (
    TopicPartition,
)
from logstore.errors import (
    LogStoreError,
    StorageError,
)
from logstore.hosted_partition import HostedPartition
from logstore.topic_configs import CREATING, DELETING
from logstore.topic_store import TopicStore


class LoadProgress(NamedTuple):
    """How far the opening of a store has got."""

    loaded: int  #: partitions that are done, also those that cannot be loaded
    total: int
    topic_partition: TopicPartition  #: the one that was done last


ProgressListener: TypeAlias = Callable[[LoadProgress], object]


class LoadingStore(TopicStore):
    """
    A store that loads what its directories hold.

    Source: Kafka ``LogManager``.
    """

    # -- loading -----------------------------------------------------------------------------------

    def _load(self, progress: ProgressListener | None) -> None:
        """Find out what there is, finish what a crash left, open the logs, begin to work."""
        for path, error in self.configs.load(self._live).items():
            self._note_failure(path, error, "read the topics")
        self._look()
        if not self._is_read_only:
            self._forget_missing()
            self._finish_topics()
        self._report_missing()
        if not self._is_lazy:
            self._load_logs(progress)
        if not self._is_read_only:
            self._tasks.start()
            if self.config.log_cleaner_enable:
                self.cleaner.start()

    def _forget_missing(self) -> None:
        """Drop the checkpoints of partitions that are not here any more."""
        for directory in self._directories():
            here = {
                hosted.topic_partition
                for hosted in self._hosted.values()
                if hosted.directory is directory
            }
            directory.keep_only(here.__contains__)

    def _finish_topics(self) -> None:
        """Finish what a crash has left of creating and deleting topics."""
        for name, entry in self.configs.items():
            try:
                if entry.state == DELETING:
                    self._delete_partitions(name, self._present(name))
                elif entry.state == CREATING:
                    missing = set(entry.partitions) - set(self._present(name))
                    if missing and self._offline:
                        continue  # They may be there.
                    self._make_partitions(name, sorted(missing), entry.topic_id)
                    self.configs.put(name, entry.replace(state=None))
            except StorageError as error:
                self.report(error, f"finish {entry.state} {name}")
        self._count()

    def _present(self, topic: str) -> list[int]:
        return [number for name, number in self._hosted if name == topic]

    def _report_missing(self) -> None:
        for topic, numbers in self._numbers.items():
            entry = self.configs.get(topic)
            if self._is_read_only and entry is not None and entry.state == CREATING:
                continue  # Its writer is making them, or the next one will.
            for number in numbers:
                topic_partition = TopicPartition(topic, number)
                if topic_partition not in self._hosted:
                    self.report(self._missing(topic_partition), f"load {topic_partition}")

    def _load_logs(self, progress: ProgressListener | None) -> None:
        """
        Open every log; one that cannot be opened is reported, and not served.

        Source: Kafka ``LogManager.loadLogs``: a pool of threads for each directory.
        """
        waiting = [hosted for hosted in self._hosted.values() if hosted.open_log is None]
        counter = threading.Lock()
        loaded = 0

        def load(hosted: HostedPartition) -> None:
            nonlocal loaded
            if hosted.is_online:
                try:
                    hosted.log(self)
                except LogStoreError as error:
                    self.report(error.__cause__ or error, f"load {hosted.topic_partition}")
            if progress is not None:
                with counter:
                    loaded += 1
                    progress(LoadProgress(loaded, len(waiting), hosted.topic_partition))

        per_directory = self.config.num_recovery_threads_per_data_dir
        self._together(load, waiting, per_directory * max(1, len(self._live)))
