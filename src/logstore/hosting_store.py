"""
What a store has: its directories, topics and partitions, and how each is found.

Source: Kafka ``LogManager``; spec 6.1, 6.8.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeVar, overload

from logstore._native import WriterPool
from logstore.checkpoint import (
    PARTITION_METADATA,
    PartitionMetadataFile,
    TopicPartition,
    topic_partition_of,
)
from logstore.clock import Clock
from logstore.compaction import LogCleaner
from logstore.config import LogConfig
from logstore.errors import (
    ClosedError,
    ConfigError,
    ForkedError,
    LogStoreError,
    OfflineError,
    ReadOnlyError,
    StorageError,
    UnknownTopicError,
)
from logstore.files import Files
from logstore.hosted_partition import HostedPartition
from logstore.log import Log
from logstore.log_directory import STORE, LogDirectory
from logstore.open_files import OPEN_FILES
from logstore.reporting import Report, ReportingScheduler, Reports
from logstore.scheduler import Scheduler, ThreadScheduler
from logstore.store_config import StoreConfig
from logstore.store_directories import contents_of
from logstore.store_tasks import StoreTasks, is_directory_failure
from logstore.thread_map import map_in_threads
from logstore.topic import Topic
from logstore.topic_configs import DELETING, TopicConfigs
from logstore.unified_log import UnifiedLog

# Threads that wait for the device together: it takes their flushes at the same time.
WAITING_THREADS: Final = 16
FILES_DIVISOR: Final = 8  # Of the segments that may have files open, for each such thread.

ResultT = TypeVar("ResultT")


class HostingStore:
    """
    A store's directories and partitions, and the rules of who may change it.

    **Thread rule**: changes under the store's lock; anybody may look.

    Source: Kafka ``LogManager``.
    """

    _is_closed = True  # For __del__, should __init__ raise.

    def __init__(
        self,
        live: dict[str, LogDirectory | None],
        offline: dict[str, BaseException],
        config: StoreConfig,
        *,
        reports: Reports,
        files: Files,
        clock: Clock,
        scheduler: Scheduler | None,
        live_offsets: bool | None,
        is_read_only: bool,
        is_lazy: bool,
    ) -> None:
        self._is_closed = False
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._live = live
        self._offline = offline
        self._is_read_only = is_read_only
        self._is_lazy = is_lazy
        self._reports = reports
        self._topics: dict[str, Topic] = {}
        self._hosted: dict[TopicPartition, HostedPartition] = {}
        self._numbers: dict[str, tuple[int, ...]] = {}  # Of the partitions of each topic.
        self._set_aside: list[str] = []
        self._failed_to_close: set[str] = set()  # Directories.
        self._deleted: deque[tuple[int, str]] = deque()  # When to delete which directory.
        self.config: Final = config
        self.files: Final = files
        self.clock: Final = clock
        self.live_offsets: Final = live_offsets
        self.writer_pool: Final = WriterPool(
            staging_bytes_max=config.staging_bytes_max,
            preallocated_bytes_max=config.preallocated_bytes_max,
        )
        self.configs: Final = TopicConfigs(config.topic_defaults, files)
        self.scheduler: Final = ReportingScheduler(
            ThreadScheduler(clock) if scheduler is None else scheduler,
            reports.report,  # Not of the store: what is scheduled must not keep it alive.
            is_owner=scheduler is None,
        )
        reference = weakref.ref(self)
        self.cleaner: Final = LogCleaner(
            lambda: () if (store := reference()) is None else store.logs(),
            scheduler=self.scheduler,
            config=config,
            clock=clock,
            report=reports.report,
            is_held=lambda log: (store := reference()) is None or store._is_log_held(log),
            in_background=scheduler is None,  # Else its owner says when anything is done.
        )
        self._tasks = StoreTasks(self)

    # -- what it is --------------------------------------------------------------------------------

    @property
    def paths(self) -> tuple[str, ...]:
        """The directories that work."""
        return tuple(self._live)

    @property
    def offline_paths(self) -> Mapping[str, BaseException]:
        """The directories that have failed, and why."""
        return dict(self._offline)

    @property
    def set_aside(self) -> tuple[str, ...]:
        """Directories of a broker's that are kept and not served: ``-future`` and ``-stray``."""
        return tuple(self._set_aside)

    @property
    def is_read_only(self) -> bool:
        """Whether the store was opened with mode ``"r"``."""
        return self._is_read_only

    @property
    def is_closed(self) -> bool:
        """Whether the store was closed."""
        return self._is_closed

    @property
    def errors(self) -> deque[Report]:
        """The last errors of background work, and what could not be loaded; oldest first."""
        return self._reports.last

    def report(self, error: BaseException, what: str) -> None:
        """
        Tell of an error that has no caller to be raised to: it is kept, logged and passed on.

        Args:
            error: What happened.
            what: What was being done.
        """
        self._reports.report(error, what)

    def __repr__(self) -> str:
        where = ", ".join(map(repr, (*self._live, *self._offline)))
        if self._is_closed:
            return f"<LogStore {where} closed>"
        return f"<LogStore {where} topics={len(self._numbers)} partitions={len(self._hosted)}>"

    # -- topics and partitions ---------------------------------------------------------------------

    @overload
    def __getitem__(self, key: str) -> Topic: ...
    @overload
    def __getitem__(self, key: tuple[str, int]) -> Log: ...
    def __getitem__(self, key: str | tuple[str, int]) -> Topic | Log:
        """
        Return a topic by its name, or a partition's log by name and number.

        Raises:
            UnknownTopicError: There is none.
            OfflineError: The partition is not served.
        """
        if isinstance(key, str):
            return self.topic(key)
        topic, partition = key
        return self.log(topic, partition)

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            return key in self._known_numbers()
        if isinstance(key, tuple) and len(key) == 2:
            topic, partition = key
            return partition in self._known_numbers().get(topic, ())
        return False

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._known_numbers()))

    def __len__(self) -> int:
        return len(self._known_numbers())

    def __bool__(self) -> bool:
        return True

    def topics(self) -> tuple[Topic, ...]:
        """Return the topics, by name."""
        return tuple(self.topic(name) for name in self)

    def topic(self, name: str) -> Topic:
        """Return a topic; see ``store[name]``."""
        self.check_open()
        if name not in self._numbers and name not in self._known_numbers():
            raise self._unknown(name)
        found = self._topics.get(name)
        if found is None:
            found = self._topics.setdefault(name, Topic(name, self))
        return found

    def partitions(self) -> tuple[TopicPartition, ...]:
        """Return every partition, also those that are not served, in order."""
        return tuple(
            TopicPartition(topic, number)
            for topic, numbers in sorted(self._known_numbers().items())
            for number in numbers
        )

    def log(self, topic: str, partition: int) -> Log:
        """Return a partition's log; see ``store[topic, partition]``."""
        self.check_open()
        topic_partition = TopicPartition(topic, partition)
        hosted = self._hosted.get(topic_partition)
        if hosted is None:
            if self._is_read_only:
                self._look()
                hosted = self._hosted.get(topic_partition)
            if hosted is None:
                raise self._missing(topic_partition)
        return hosted.log(self)

    def path_of(self, topic: str, partition: int) -> str | None:
        """Return a partition's directory, None if it is in none of those that work."""
        hosted = self._hosted.get(TopicPartition(topic, partition))
        return None if hosted is None else hosted.path

    def logs(self) -> Iterator[Log]:
        """Yield the logs that are open now, in no particular order."""
        for hosted in list(self._hosted.values()):
            log = hosted.open_log
            if log is not None:
                yield log

    def partitions_of(self, topic: str) -> tuple[int, ...]:
        """Return the numbers of a topic's partitions, ascending; also those not served."""
        numbers = self._numbers.get(topic)
        if numbers is None:
            numbers = self._known_numbers().get(topic)
            if numbers is None:
                raise self._unknown(topic)
        return numbers

    def online_partitions_of(self, topic: str) -> tuple[int, ...]:
        """Return the numbers of a topic's partitions that can be used."""
        return tuple(
            number
            for number in self.partitions_of(topic)
            if (hosted := self._hosted.get(TopicPartition(topic, number))) is not None
            and hosted.is_online
        )

    def topic_id_of(self, topic: str) -> str | None:
        """Return a topic's id, None if its directories were made without one."""
        entry = self.configs.get(topic)
        if entry is not None and entry.topic_id is not None:
            return entry.topic_id
        for number in self.partitions_of(topic):
            hosted = self._hosted.get(TopicPartition(topic, number))
            if hosted is not None:
                path = os.path.join(hosted.path, PARTITION_METADATA)
                file = PartitionMetadataFile(path, files=self.files)
                with contextlib.suppress(StorageError):
                    return file.read().topic_id
        return None

    def config_of(self, topic: str) -> LogConfig:
        """Return the settings in force for a topic: its own over the store's."""
        return self.configs.config_of(topic)

    def is_held(self, topic: str) -> bool:
        """Whether retention and compaction of a topic wait for its settings; see ``Topic``."""
        return self.configs.is_held(topic)

    def _is_log_held(self, log: UnifiedLog) -> bool:
        topic_partition = topic_partition_of(log.name)
        return topic_partition is None or self.is_held(topic_partition.topic)

    def _unknown(self, topic: object) -> UnknownTopicError:
        return UnknownTopicError(
            f"there is no topic {topic!r} here; create it with create_topic()",
            topic=topic if isinstance(topic, str) else None,
        )

    def _missing(self, topic_partition: TopicPartition) -> LogStoreError:
        """Return the error for a partition that has no directory."""
        topic, partition = topic_partition
        numbers = self._known_numbers().get(topic)
        if numbers is None:
            return self._unknown(topic)
        if partition not in numbers:
            return UnknownTopicError(
                f"topic {topic} has no partition {partition} here; it has {_shown(numbers)}",
                topic=topic,
                partition=partition,
            )
        where = ", ".join(self._offline) or "a directory that was not given"
        return OfflineError(
            f"{topic_partition} is in none of the directories that work; look for it in {where}",
            topic=topic,
            partition=partition,
        )

    def _known_numbers(self) -> dict[str, tuple[int, ...]]:
        """Return the partitions of each topic; a reader looks at the directories again."""
        self.check_open()
        if self._is_read_only and not self._is_forked():
            self._look()
        return self._numbers

    # -- what is in the directories ----------------------------------------------------------------

    def _look(self) -> None:
        """Look at what is in the directories, and host what is new; a reader forgets the rest."""
        with self._lock:
            found: dict[TopicPartition, str] = {}
            set_aside: list[str] = []
            if self._is_read_only:
                self.configs.load(self._live)
            for path in list(self._live):
                try:
                    contents = contents_of(path, self.files)
                except StorageError as error:
                    self._note_failure(path, error, f"list {path}", is_fatal=True)
                    continue
                set_aside += contents.set_aside
                for topic_partition, each in contents.partitions:
                    if topic_partition in found:
                        self._host(topic_partition, each)
                        self._isolate_twice(topic_partition, found[topic_partition], each)
                    else:
                        found[topic_partition] = each
                        self._host(topic_partition, each)
                if not self._is_read_only:
                    for each in contents.unknown:
                        self._report_unknown(each)
                    for each in contents.deleted:
                        self._queue_for_deletion(each)
            if self._is_read_only:
                for topic_partition in self._hosted.keys() - found.keys():
                    self._hosted.pop(topic_partition).abandon()
            self._set_aside = set_aside
            self._count()

    def _host(self, topic_partition: TopicPartition, path: str) -> None:
        if topic_partition not in self._hosted:
            directory = self._live[os.path.dirname(path)]
            self._hosted[topic_partition] = HostedPartition(topic_partition, path, directory)

    def _isolate_twice(self, topic_partition: TopicPartition, first: str, second: str) -> None:
        """Serve neither of two directories of the same partition: which is right is not known."""
        error = StorageError(
            f"there are two directories of {topic_partition}, {first} and {second};"
            " move the wrong one away",
            path=second,
        )
        hosted = self._hosted[topic_partition]
        if hosted.error is None:
            hosted.error = error
            self.report(error, f"load {topic_partition}")

    def _report_unknown(self, path: str) -> None:
        name = os.path.basename(path)
        error = ConfigError(
            [f"{name} is no partition's name, and a broker would refuse to start; move it away"],
            path=path,
        )
        self.report(error, f"load {path}")

    def _queue_for_deletion(self, path: str) -> None:
        topic_partition = topic_partition_of(os.path.basename(path))
        assert topic_partition is not None
        delay_ms = self.config_of(topic_partition.topic).file_delete_delay_ms
        self._deleted.append((self.clock.milliseconds() + delay_ms, path))

    def _count(self) -> None:
        """Bring the numbers of the partitions to what there is, and what there should be."""
        numbers: dict[str, set[int]] = {}
        for topic, partition in list(self._hosted):
            numbers.setdefault(topic, set()).add(partition)
        for topic, entry in self.configs.items():
            if entry.partitions and entry.state != DELETING:
                numbers.setdefault(topic, set()).update(entry.partitions)
        self._numbers = {topic: tuple(sorted(found)) for topic, found in numbers.items()}

    def _together(
        self,
        action: Callable[[HostedPartition], ResultT],
        partitions: list[HostedPartition],
        threads: int,
    ) -> list[ResultT]:
        """
        Return what an action does with each partition, with many at the same time.

        With num.recovery.threads.per.data.dir=1 one after the other, in this thread.

        Raises:
            BaseException: Of the first that failed; no action goes on.
        """
        # Each has some files open for a moment that are not counted.
        threads = min(threads, OPEN_FILES.segments_max // FILES_DIVISOR)
        if self.config.num_recovery_threads_per_data_dir == 1:
            threads = 1
        return map_in_threads(action, partitions, threads)

    # -- directories -------------------------------------------------------------------------------

    def _directories(self) -> list[LogDirectory]:
        return [directory for directory in self._live.values() if directory is not None]

    def _note_failure(
        self, path: str, error: BaseException, what: str, *, is_fatal: bool = False
    ) -> None:
        """Report an error of a directory; take it offline if the device has failed."""
        if is_fatal or is_directory_failure(error):
            self.take_offline(path, error)
        else:
            self.report(error, what)

    def take_offline(self, path: str, error: BaseException) -> None:
        """
        Serve the partitions of a directory no more: it has failed. The others go on.

        Nothing of it is flushed; it is recovered when the store is opened again.

        Source: Kafka ``LogManager.handleLogDirFailure``; spec 6.8.
        """
        with self._lock:
            if path not in self._live:
                return
            directory = self._live.pop(path)
            self._offline[path] = error
            for hosted in list(self._hosted.values()):
                if os.path.dirname(hosted.path) == path:
                    hosted.error = hosted.error or error
                    hosted.abandon()
            if directory is not None:
                with contextlib.suppress(StorageError):
                    directory.leave(STORE, clean=False)
        self.report(error, f"the log directory {path} is offline")

    def _no_directory(self) -> OfflineError:
        return OfflineError(
            f"no log directory works ({', '.join(self._offline)}); open the store again"
        )

    # -- closing -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the store's lock, if the store may be changed."""
        with self._lock:
            self.check_writable()
            yield

    def check_open(self) -> None:
        """Raise ClosedError if the store was closed."""
        if self._is_closed:
            raise ClosedError("the store is closed; open it again")

    def check_writable(self) -> None:
        """Raise if the store may not be changed: closed, forked or read-only."""
        self.check_open()
        if self._is_forked():
            raise ForkedError(f"the store was opened by process {self._pid}; open it in the child")
        if self._is_read_only:
            raise ReadOnlyError(
                'the store was opened with mode "r"; open it with mode "a" to change it'
            )
        if not self._live:
            raise self._no_directory()

    def _is_forked(self) -> bool:
        return os.getpid() != self._pid


def _shown(numbers: tuple[int, ...]) -> str:
    if numbers == tuple(range(len(numbers))):
        return f"partitions 0 to {len(numbers) - 1}" if len(numbers) > 1 else "partition 0"
    return "partitions " + ", ".join(map(str, numbers[:20])) + ("…" if len(numbers) > 20 else "")
