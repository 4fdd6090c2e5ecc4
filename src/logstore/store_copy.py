"""
A store that is being made out of another one: a directory beside its place, until it is whole.

``<dest>.incomplete`` becomes ``<dest>`` with the last step, so that nothing under that name is ever
half done. What a crash leaves is taken away by the next one who makes the same.

Source: decision 0067.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from logstore.checkpoint import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    EpochEntry,
    LeaderEpochCheckpointFile,
    OffsetCheckpointFile,
    PartitionMetadataFile,
    TopicPartition,
)
from logstore.clock import Clock, ManualClock
from logstore.config import LogConfig
from logstore.control_record import ControlRecordType, EndTransactionMarker
from logstore.errors import ConfigError, LockedError, LogExistsError, LogStoreError, StorageError
from logstore.files import REAL_FILES, Files
from logstore.hosting_store import WAITING_THREADS
from logstore.log import make_directory
from logstore.meta_properties import MetaProperties, new_directory_id, write_meta_properties
from logstore.records_builder import end_transaction_marker
from logstore.scheduler import ManualScheduler
from logstore.segment import DELETED_SUFFIX
from logstore.snapshot_manifest import SNAPSHOT_FILE, SnapshotManifest
from logstore.store_config import StoreConfig
from logstore.thread_map import map_in_threads
from logstore.topic_configs import TopicConfigs, TopicEntry
from logstore.unified_log import delete_tree
from logstore.writer_lock import WriterLock

if TYPE_CHECKING:
    from logstore.log import Log
    from logstore.reporting import Report

INCOMPLETE_SUFFIX: Final = ".incomplete"

_being_made: set[str] = set()
_guard = threading.Lock()


class PartitionFiles(NamedTuple):
    """
    What a partition gets beside its segments.

    Attributes:
        unsynced: Names of files that are there, and not durable yet.
    """

    topic_partition: TopicPartition
    epochs: Sequence[EpochEntry]
    topic_id: str | None
    unsynced: Sequence[str]


class OpenedStore(Protocol):
    """What is asked of a store that is being made; :class:`~logstore.store.LogStore` has it."""

    @property
    def clock(self) -> Clock:
        """What time it is."""
        ...

    @property
    def errors(self) -> deque[Report]:
        """What could not be loaded."""
        ...

    def logs(self) -> Iterator[Log]:
        """Yield the logs."""
        ...

    def close(self) -> None:
        """Flush and close everything."""
        ...

    def abandon(self) -> None:
        """Drop it as it is."""
        ...


class OpenStore(Protocol):
    """Opens a store, as :func:`logstore.store.open_log_store` does."""

    def __call__(
        self,
        *paths: str,
        config: StoreConfig | None,
        files: Files,
        clock: Clock,
        scheduler: ManualScheduler,
        live_offsets: bool,
    ) -> OpenedStore:
        """Return the store in a directory, open for writing."""
        ...


class StoreCopy:
    """
    A store that is being made in ``<dest>.incomplete``; a context that takes it away if it fails.

    **Thread rule**: one thread.

    Args:
        dest: Where it will be.
        sources: Directories of the store that it is made of: it is in none of them.
        files: The door to the file system.
        clock: What time it is.

    Attributes:
        dest: Where it will be; absolute.
        path: Where it is being made.

    Raises:
        LogExistsError: There is something at ``dest``, or something else at ``<dest>.incomplete``.
        LockedError: Somebody is making the same.
        ConfigError: ``dest`` is inside the store.
    """

    def __init__(
        self,
        dest: str | os.PathLike[str],
        sources: Iterable[str],
        *,
        files: Files,
        clock: Clock,
    ) -> None:
        self.dest: Final = os.path.realpath(os.fspath(dest))
        self.path: Final = self.dest + INCOMPLETE_SUFFIX
        self._files = files
        self._clock = clock
        self._lock: WriterLock | None = None
        self._is_opened = False
        self._is_finished = False
        self._directories: set[str] = set()
        for source in sources:
            if os.path.commonpath([self.dest, source]) == source:
                problem = f"{self.dest} is inside the store {source}; choose a place beside it"
                raise ConfigError([problem], path=self.dest)
        self._check_dest()
        with _guard:
            if self.path in _being_made:
                raise LockedError(
                    f"this process is making {self.dest}; wait for it", path=self.path
                )
            _being_made.add(self.path)
        try:
            self._begin()
        except BaseException:
            self._leave()
            raise

    def _check_dest(self) -> None:
        if self._files.exists(self.dest) and not (
            self._files.is_directory(self.dest) and not self._files.listdir(self.dest)
        ):
            raise LogExistsError(
                f"there is something in {self.dest} already; choose another place", path=self.dest
            )

    def _begin(self) -> None:
        files = self._files
        make_directory(os.path.dirname(self.dest), files)
        if files.exists(self.path):
            names = files.listdir(self.path) if files.is_directory(self.path) else ["a file"]
            if names and SNAPSHOT_FILE not in names and names != [SNAPSHOT_FILE + ".tmp"]:
                raise LogExistsError(
                    f"{self.path} is in the way, and no unfinished snapshot; move it away",
                    path=self.path,
                )
            WriterLock(self.path, files=files, clock=self._clock).release()
            delete_tree(self.path, files)
        make_directory(self.path, files)
        SnapshotManifest().write(self.path, files)
        self._lock = WriterLock(self.path, files=files, clock=self._clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        """Take away what was not finished, as far as that is possible: the next one does so too."""
        is_ours, self._lock = self._unlock(), None
        if is_ours and not self._is_finished:
            with contextlib.suppress(LogStoreError, OSError):
                # The manifest last: without it nobody would know what this is.
                for name in self._files.listdir(self.path):
                    if self._files.is_directory(os.path.join(self.path, name)):
                        delete_tree(os.path.join(self.path, name), self._files)
                delete_tree(self.path, self._files)
        with _guard:
            _being_made.discard(self.path)

    def _unlock(self) -> bool:
        """Let others write in the directory; False: it was never this one's."""
        if self._lock is None:
            return self._is_opened
        with contextlib.suppress(StorageError):
            self._lock.release()
        return True

    # -- contents ----------------------------------------------------------------------------------

    def directory_of(self, topic_partition: TopicPartition) -> str:
        """Return a partition's directory, made if it is not there."""
        path = os.path.join(self.path, str(topic_partition))
        if path not in self._directories:
            self._files.mkdir(path)
            self._directories.add(path)
        return path

    def drop(self, topic_partition: TopicPartition) -> None:
        """Take a partition away again."""
        path = os.path.join(self.path, str(topic_partition))
        if path in self._directories:
            self._directories.discard(path)
            delete_tree(path, self._files)

    def finish_partitions(self, partitions: Sequence[PartitionFiles]) -> None:
        """
        Write what partitions have beside their segments; durable on return.

        Many at the same time: the device takes their flushes together.
        """
        unsynced = [
            os.path.join(self.directory_of(each.topic_partition), name)
            for each in partitions
            for name in each.unsynced
        ]
        # On a test's files everything happens in order.
        threads = WAITING_THREADS if self._files is REAL_FILES else 1
        map_in_threads(self._sync_file, unsynced, threads)
        map_in_threads(self._finish_partition, partitions, threads)

    def _sync_file(self, path: str) -> None:
        fd = self._files.open(path, os.O_RDWR)
        try:
            self._files.fdatasync(fd)
        finally:
            self._files.close(fd)

    def _finish_partition(self, partition: PartitionFiles) -> None:
        files, directory = self._files, self.directory_of(partition.topic_partition)
        if partition.epochs:
            path = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
            LeaderEpochCheckpointFile(path, files=files).write(partition.epochs)
        if partition.topic_id is not None:
            path = os.path.join(directory, PARTITION_METADATA)
            PartitionMetadataFile(path, files=files).write(partition.topic_id)
        files.fsync_directory(directory)

    def write_store_files(
        self,
        *,
        recovery_points: Mapping[TopicPartition, int],
        log_starts: Mapping[TopicPartition, int],
        high_watermarks: Mapping[TopicPartition, int],
        cleaner_offsets: Mapping[TopicPartition, int],
        topics: Mapping[str, TopicEntry],
        identity: MetaProperties,
        producer_id_block: tuple[str, bytes] | None,
    ) -> None:
        """Write what a log directory has beside its partitions; durable on return."""
        for name, offsets in (
            (LOG_START_CHECKPOINT, log_starts),
            (HIGH_WATERMARK_CHECKPOINT, high_watermarks),
            (CLEANER_CHECKPOINT, cleaner_offsets),
            (RECOVERY_POINT_CHECKPOINT, recovery_points),
        ):
            OffsetCheckpointFile(os.path.join(self.path, name), files=self._files).write(offsets)
        configs = TopicConfigs(LogConfig(), self._files)
        for name, entry in topics.items():
            configs.put(name, entry)
        configs.write([self.path])
        if producer_id_block is not None:
            name, data = producer_id_block
            self._files.replace_file(os.path.join(self.path, name), data)
        write_meta_properties(
            self.path, identity._replace(directory_id=new_directory_id()), self._files
        )
        self._files.fsync_directory(self.path)

    # -- the end -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def opened(
        self, open_store: OpenStore, config: StoreConfig, clock: ManualClock
    ) -> Iterator[OpenedStore]:
        """
        Open what is here as a store, and close it: it is recovered, and its transactions are ended.

        Nothing is deleted or compacted meanwhile. A transaction that is open is aborted; one that
        was decided is ended as it was decided.

        Args:
            open_store: Opens it.
            config: Its settings meanwhile.
            clock: Its clock; decides what is old.

        **Durability**: on return all of it survives a power loss.

        Raises:
            LogStoreError: A part of it cannot be used.
        """
        assert self._lock is not None
        self._is_opened = True
        lock, self._lock = self._lock, None
        lock.release()
        try:
            store = open_store(
                self.path,
                config=config,
                files=self._files,
                clock=clock,
                scheduler=ManualScheduler(clock),  # Which nobody lets go on.
                live_offsets=False,
            )
        except LockedError:
            self._is_opened = False  # Somebody was faster, and it is theirs now.
            raise
        try:
            yield store
            abort_open_transactions(store)
            if store.errors:
                raise store.errors[0].error  # noqa: TRY301
            store.close()
        except BaseException:
            store.abandon()
            raise
        self._delete_leftovers()

    def _delete_leftovers(self) -> None:
        """Delete files that the store, had it gone on, would have deleted later."""
        for directory in self._directories:
            for name in self._files.listdir(directory):
                if name.endswith(DELETED_SUFFIX):
                    self._files.unlink(os.path.join(directory, name), missing_ok=True)

    def finish(self, manifest: SnapshotManifest | None) -> None:
        """
        Give it its name.

        **Durability**: on return it survives a power loss; before, there is nothing of that name.

        Args:
            manifest: What a snapshot says of itself; None: this is no snapshot.

        Raises:
            LogExistsError: Something has got there meanwhile.
        """
        if manifest is not None:
            manifest.write(self.path, self._files)
        self._check_dest()
        try:
            self._files.rename(self.path, self.dest)  # Which replaces an empty directory only.
        except StorageError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                self._check_dest()
            raise
        self._is_finished = True
        self._files.fsync_directory(os.path.dirname(self.dest))
        if manifest is None:  # Not before: what a crash leaves has to be known for what it is.
            self._files.unlink(os.path.join(self.dest, SNAPSHOT_FILE))
            self._files.fsync_directory(self.dest)


def abort_open_transactions(store: OpenedStore) -> int:
    """
    Write an abort marker for each transaction that is open in a partition; return their number.

    The store's coordinator has ended those that it knows; these are of producers whose coordinator
    was elsewhere.
    """
    count = 0
    for log in store.logs():
        for producer_id, entry in list(log.producer_state.active_producers.items()):
            if entry.current_txn_first_offset is None:
                continue
            marker = end_transaction_marker(
                EndTransactionMarker(ControlRecordType.ABORT, max(0, entry.coordinator_epoch)),
                timestamp=store.clock.milliseconds(),
                producer_id=producer_id,
                producer_epoch=entry.producer_epoch,
            )
            log.append_batches(marker, leader_epoch=log.leader_epoch, origin="coordinator")
            count += 1
    return count
