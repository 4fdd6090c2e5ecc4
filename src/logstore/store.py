"""
The store: directories full of topic-partitions that look after themselves.

``logstore.open_store`` gives a :class:`LogStore`, which is what Kafka calls the log manager.

===========================  =====================================================================
``hosting_store.py``         what a store has, and how it is found
``topic_store.py``           topics come, change and go
``loading_store.py``         what is on the disk is hosted and loaded
``transactional_store.py``   transactions over partitions, and positions of groups
``sink_store.py``            commits of staged batches that happen once
this module                  opening and closing
``store_directories.py``     the log directories: locked together, and what is in each
``log_directory.py``         one of them: its lock, clean marker and checkpoints
``topic_configs.py``         what is known of topics: ids, partitions, settings
``hosted_partition.py``      a partition that the store has, and its log once that is open
``store_tasks.py``           background work
``topic.py``                 a topic as a program uses it
===========================  =====================================================================

Source: Kafka ``LogManager``; spec section 6.
"""

from __future__ import annotations

import contextlib
import copyreg
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from logstore.bootstrap_metadata import MetadataExport, export_metadata
from logstore.clock import SYSTEM_CLOCK, Clock
from logstore.closing import Closing
from logstore.config import LogConfig
from logstore.config_import import ConfigImport, import_configs
from logstore.errors import (
    LogStoreError,
    StorageError,
)
from logstore.files import REAL_FILES, Files
from logstore.hosted_partition import HostedPartition
from logstore.hosting_store import WAITING_THREADS
from logstore.loading_store import ProgressListener
from logstore.log_directory import STORE, LogDirectory
from logstore.opening import MODES, Mode
from logstore.reporting import Listener, Reports
from logstore.scheduler import Scheduler
from logstore.sink_store import SinkStore
from logstore.snapshot import Snapshot, copy_store
from logstore.store_config import StoreConfig
from logstore.store_directories import (
    absolute_paths,
    check_for_reading,
    lock_directories,
)


def open_store(
    *paths: str | os.PathLike[str],
    mode: Mode = "a",
    config: StoreConfig | LogConfig | Mapping[str, object] | None = None,
    lock_timeout: float = 0.0,
    lazy: bool = False,
    on_error: Listener | None = None,
    progress: ProgressListener | None = None,
) -> LogStore:
    """
    Open a store: one or several log directories, full of partitions.

    Args:
        paths: Its directories (Kafka's ``log.dirs``); created if they are missing. New partitions
            go to the one that has the fewest.
        mode: ``"a"`` creates or continues the store, ``"x"`` creates it, ``"r"`` reads it and
            changes nothing.
        config: Settings by Kafka's names: of the store, and defaults for its topics. Without any
            nothing is ever deleted.
        lock_timeout: How many seconds to wait for another writer to close the store.
        lazy: Open each partition when it is first used, or when a round of retention finds that
            its settings let records go: after ``log.initial.task.delay.ms``, or later.
        on_error: Called with each :class:`Report` of background work that failed, and of
            partitions and directories that cannot be used.
        progress: Called with a :class:`LoadProgress` after each partition.

    Raises:
        LockedError: Another process, or another handle of this one, is writing there.
        LogExistsError: Mode ``"x"``, and there is a store.
        LogNotFoundError: Mode ``"r"``, and there is none.
        ConfigError: Every wrong setting; directories that do not belong together.
        StorageError: None of the directories can be used.
    """
    return open_log_store(
        *paths,
        mode=mode,
        config=config,
        lock_timeout=lock_timeout,
        lazy=lazy,
        on_error=on_error,
        progress=progress,
    )


def open_log_store(
    *paths: str | os.PathLike[str],
    mode: Mode = "a",
    config: StoreConfig | LogConfig | Mapping[str, object] | None = None,
    lock_timeout: float = 0.0,
    lazy: bool = False,
    on_error: Listener | None = None,
    progress: ProgressListener | None = None,
    files: Files = REAL_FILES,
    clock: Clock = SYSTEM_CLOCK,
    scheduler: Scheduler | None = None,
    live_offsets: bool | None = None,
) -> LogStore:
    """
    Open a store as :func:`open_store` does, over files, a clock and a scheduler of the caller's.

    ``live_offsets`` is as for ``open_log``.
    """
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is not one of {', '.join(MODES)}")
    settings = StoreConfig.of(config)
    real_paths = absolute_paths(paths)
    reports = Reports(clock, on_error)
    if mode == "r":
        for path in real_paths:
            check_for_reading(path, files)
        live: dict[str, LogDirectory | None] = dict.fromkeys(real_paths)
        offline: dict[str, BaseException] = {}
    else:
        locked, offline = lock_directories(
            real_paths,
            must_be_new=mode == "x",
            config=settings,
            files=files,
            clock=clock,
            lock_timeout=lock_timeout,
            report=reports.report,
        )
        live = dict(locked)
    store = LogStore(
        live,
        offline,
        settings,
        reports=reports,
        files=files,
        clock=clock,
        scheduler=scheduler,
        live_offsets=live_offsets,
        is_read_only=mode == "r",
        is_lazy=lazy,
    )
    _open_stores.add(store)
    try:
        store._load(progress)
    except BaseException:
        store.abandon()
        raise
    return store


class LogStore(SinkStore, Closing):
    """
    Topics and their partitions, in one or several directories.

    Example::

        with logstore.open_store("data") as store:
            orders = store.create_topic("orders", partitions=4)
            orders.append(b"value", key=b"k")  # -> TopicOffset(partition, offset)
            for record in store["orders", 0].read():
                print(record.offset, record.value)

    A mapping of names to topics: ``store["orders"]``, ``"orders" in store``, ``len(store)``,
    iteration over names. ``store["orders", 0]`` is a partition's :class:`Log`, which the store
    owns.

    Attributes:
        config: The store's settings.
        clock: What time it is.
        files: The door to the file system.
        scheduler: Runs background work; what that raises goes to :meth:`report`.

    **Durability**: creating, altering and deleting topics is durable on return; after a crash in
    between it is finished, or taken back, at the next open.

    **Thread rule**: any thread may call anything.

    **Fork**: a child may read. Writing raises ForkedError; nothing there flushes or unlocks.

    Source: Kafka ``LogManager``.
    """

    def import_configs(self, path: str | os.PathLike[str] | None = None) -> ConfigImport:
        """
        Take over the settings of held topics from the metadata of the broker that had them.

        Topics that are not held stay as they are. A topic whose retention and cleanup policy were
        the broker's defaults stays held, as does one that the metadata does not know.

        Args:
            path: ``__cluster_metadata-0``, or the directory that it is in; None: one of the
                store's.

        **Durability**: durable on return.

        Raises:
            LogNotFoundError: There is no such directory.
            CorruptRecordError: The metadata is damaged or not whole; nothing was changed.
            InvalidRecordError: A newer broker wrote it; nothing was changed.
        """
        self.check_writable()
        return import_configs(self, path)

    def snapshot(
        self,
        dest: str | os.PathLike[str],
        *,
        base: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> Snapshot:
        """
        Make a store of what this one is at one moment, while it goes on to be written.

        Of all partitions, positions and transactions it has what was there at the same moment; a
        transaction that was not decided by then is aborted there. It opens as any other store does.

        Sealed segments are shared, as hard links: that takes no space, and neither store can change
        what the other one has. On another file system they are copied.

        Args:
            dest: A directory that is not there, or empty.
            base: An earlier snapshot on the same file system as ``dest``: what it has copied, and
                is as it was, is linked from there instead of being copied again.
            progress: Called with the bytes that are in place, and those that there are in all.

        **Durability**: on return it survives a power loss; until then there is nothing at ``dest``,
        but a directory ``<dest>.incomplete``, which the next snapshot to ``dest`` takes away.

        **Cost**: a few files for each segment; what is in active segments is copied and read.
        Appends wait while it is noted where each partition ends: tens of microseconds for each.

        Raises:
            LogExistsError: There is something at ``dest``.
            LogNotFoundError: ``base`` is no snapshot.
            OfflineError: A partition cannot be used; a snapshot would not have it.
            DiskFullError: There is no space; nothing is left at ``dest``.
            StorageError: It could not be made; likewise.

        Source: decision 0067.
        """
        return copy_store(self, dest, open_log_store, base=base, progress=progress)

    def fork(
        self,
        dest: str | os.PathLike[str],
        *,
        progress: Callable[[int, int], object] | None = None,
    ) -> LogStore:
        """
        Return another store, open, that begins with what this one is now, and goes its own way.

        What is sealed is shared, as in a :meth:`snapshot`; both may be written. It has the same
        settings, its own background work, and transactions of its own: those that are open here are
        aborted there.

        Args:
            dest: A directory that is not there, or empty.
            progress: As for :meth:`snapshot`.

        **Durability**: what it begins with survives a power loss.

        Raises:
            LogExistsError, OfflineError, DiskFullError, StorageError: As of :meth:`snapshot`.
        """
        made = copy_store(self, dest, open_log_store, is_snapshot=False, progress=progress)
        return open_log_store(
            made.path,
            config=self.config,
            files=self.files,
            clock=self.clock,
            live_offsets=self.live_offsets,
        )

    def export_metadata(self, path: str | os.PathLike[str]) -> MetadataExport:
        """
        Tell a broker that has never run of the topics of this store, so that it serves them.

        Topics, partitions and settings are added to what its controller begins with. Retention and
        cleanup policy are told of every topic: a broker's defaults are others. What an earlier call
        has added is replaced.

        Args:
            path: ``bootstrap.checkpoint`` in the broker's ``metadata.log.dir``, as ``kafka-storage
                format`` has made it. The broker's ``node.id``, ``cluster.id`` and ``log.dirs`` are
                those of the store.

        **Durability**: durable on return.

        Raises:
            LogExistsError: The controller has run: it does not read the file any more.
            InvalidRecordError: It is older than Kafka 3.7, or newer than what is known.
            CorruptRecordError: The file is damaged; nothing was changed.
            OfflineError: A partition or a directory's id is missing; nothing was changed.
            StorageError: The file cannot be read or written.
        """
        self.check_writable()
        return export_metadata(self, path)

    def flush(self) -> None:
        """Make everything that was appended durable, in every log that is open."""
        self.check_writable()
        for log in self.logs():
            log.flush()

    def check(self) -> Iterator[str]:
        """
        Yield a sentence for every invariant that does not hold; nothing means all is well.

        Cost: reads every log that is open.
        """
        self.check_open()
        for topic_partition, hosted in sorted(self._hosted.items()):
            if topic_partition.partition not in self._numbers.get(topic_partition.topic, ()):
                yield f"{topic_partition} is hosted, but its topic does not have it"
            log = hosted.open_log
            if log is None:
                continue
            if log.directory != hosted.path:
                yield f"{topic_partition} is in {log.directory}, not in {hosted.path}"
            if log.config != self.config_of(topic_partition.topic):
                yield f"{topic_partition} has other settings than its topic"
            for sentence in log.check():
                yield f"{topic_partition}: {sentence}"

    def close(self) -> None:
        """
        End background work, flush and close every log, mark the directories clean.

        **Durability**: on return everything survives a power loss, and the next open scans nothing.
        A second call does nothing.

        Raises:
            StorageError: Something could not be flushed; everything is closed, but not all clean.

        Source: Kafka ``LogManager.shutdown``; spec 6.6.
        """
        if self._is_closed:
            return
        if self._is_forked() or self._is_read_only:
            self.abandon()
            return
        self._close_sinks()
        if not self._transactions.close():  # The next open has to end what is left.
            self._failed_to_close.update(self._live)
        self._tasks.stop()
        self.cleaner.shutdown()
        self.scheduler.shutdown(wait=True)
        with self._lock:
            if not self._begin_to_close():
                return
            errors: list[BaseException] = []
            if not self.configs.is_written:
                try:
                    self.configs.write(self._live)
                except StorageError as error:
                    errors.append(error)
            try:
                errors += self._close_logs()
                for directory in self._directories():
                    errors += self._close_directory(directory)
            except BaseException:  # An interruption: what was closed is, the rest is recovered.
                self._drop()
                raise
        for each in errors:
            self.report(each, "close the store")
        if errors:
            raise errors[0]

    def _begin_to_close(self) -> bool:
        """Return False if another thread was first."""
        was_closed, self._is_closed = self._is_closed, True
        return not was_closed

    def _close_logs(self) -> list[BaseException]:
        """Close every log, many at the same time: the device takes their flushes together."""

        def close(hosted: HostedPartition) -> LogStoreError | None:
            try:
                hosted.close()
            except LogStoreError as error:
                if hosted.directory is not None:
                    failed.add(hosted.directory.path)
                return error
            return None

        failed = self._failed_to_close
        for directory in self._directories():
            directory.is_closing = True
        errors = self._together(close, list(self._hosted.values()), WAITING_THREADS)
        return [error for error in errors if error is not None]

    def _close_directory(self, directory: LogDirectory) -> list[BaseException]:
        """Write the checkpoints of a directory, and mark it clean if all went well."""
        errors: list[BaseException] = []
        try:
            directory.write_checkpoints()
        except LogStoreError as error:
            errors.append(error)
        # After an unclean start: what was not opened has not been recovered.
        directory.is_loaded = all(
            hosted.was_loaded for hosted in self._hosted.values() if hosted.directory is directory
        )
        is_clean = not errors and directory.path not in self._failed_to_close
        try:
            directory.leave(STORE, clean=is_clean)
        except LogStoreError as error:
            errors.append(error)
        return errors

    def abandon(self) -> None:
        """Drop the store as a process that is killed does: nothing is flushed or marked clean."""
        if self._is_closed:
            return
        self._is_closed = True
        is_forked = self._is_forked()
        if not is_forked:
            self._transactions.stop()
            self._tasks.stop()
            self.cleaner.shutdown()
            self.scheduler.shutdown(wait=False)
        self._drop()

    def _drop(self) -> None:
        """Drop logs and locks as they are."""
        for hosted in list(self._hosted.values()):
            hosted.abandon()
        if self._is_forked():
            return
        for directory in self._directories():
            with contextlib.suppress(StorageError):
                directory.leave(STORE, clean=False)

    def _is_ended(self) -> bool:
        return self._is_closed or self._is_forked()

    def _leak(self) -> str | None:
        if self._is_read_only:
            return None
        return (
            f"{self!r} was not closed; it is recovered at the next open."
            " Use `with logstore.open_store(…)`, or call close()"
        )


# ---- fork ----------------------------------------------------------------------------------------

_open_stores: weakref.WeakSet[LogStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_open_stores):
        store._lock = threading.RLock()
        for hosted in list(store._hosted.values()):
            hosted.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# ---- pickle --------------------------------------------------------------------------------------


def _reduce(store: LogStore) -> tuple[Any, ...]:
    """Pickle a reader as "open these paths read-only"."""
    if not store.is_read_only:
        raise TypeError("the store is open for writing; open it with mode 'r' to pickle it")
    return _open_again, (store.paths, store.config.to_properties(), store._is_lazy)


def _open_again(paths: tuple[str, ...], properties: dict[str, str], lazy: bool) -> LogStore:
    return open_log_store(*paths, mode="r", config=properties, lazy=lazy)


copyreg.pickle(LogStore, _reduce)
