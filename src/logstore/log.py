"""
One partition as a Python program uses it: records in, records out.

``with logstore.open(path) as log:`` gives a :class:`Log`. What replication and a broker need is in
:class:`~logstore.unified_log.UnifiedLog`, which it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import index
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex

from logstore._native import PROCESS_POOL, Buffer, Record, Writer, WriterPool
from logstore.append_origin import AppendOrigin
from logstore.arrow import Scan
from logstore.checking import broken_invariants
from logstore.checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    LeaderEpochCheckpointFile,
    PartitionMetadataFile,
)
from logstore.cleaner_config import CleanerSettings
from logstore.cleaner_stats import CleanerStats
from logstore.clock import SYSTEM_CLOCK, Clock
from logstore.closing import Closing
from logstore.compaction import compact
from logstore.config import LogConfig
from logstore.errors import StorageError
from logstore.extending import Extender
from logstore.files import REAL_FILES, Files
from logstore.follow import Follower
from logstore.follower_truncation import Leader, truncate_to_divergence
from logstore.given_records import Headers, header_pairs, milliseconds_of
from logstore.leader_epoch import LeaderEpochCache
from logstore.live_view import LiveView
from logstore.loader import LoadedLog, LogLoader
from logstore.local_log import LocalLog
from logstore.producer_state import ProducerStateManager
from logstore.readable_log import Isolation, Start, start_offset
from logstore.reader import OnCorrupt, RecordIterator
from logstore.scheduler import Scheduler, ThreadScheduler
from logstore.single_record import read_first, read_last, read_one
from logstore.snapshot_files import SnapshotFiles
from logstore.unified_log import MAX_TIMESTAMP, UnifiedLog

if TYPE_CHECKING:
    from logstore.producer_state import VerificationGuard
    from logstore.segment import TimestampAndOffset
    from logstore.validator import LogAppendInfo
    from logstore.watermarks import Checkpoints, HighWatermarkMode

Origin = Literal["client", "coordinator", "raft_leader", "replication"]


class Log(UnifiedLog, Closing):
    """
    An append-only, ordered, durable log of records, each at its offset.

    Example::

        with logstore.open("data/orders-0") as log:
            offset = log.append(b"value", key=b"k")
            assert log[offset].value == b"value"
            for record in log.read("earliest"):
                print(record.offset, record.value)

    **Durability**: an append is *written* when it returns: it survives a crash of the process.
    ``sync=True`` and :meth:`flush` return when it is *flushed*: it survives a power loss.

    **Thread rule**: any thread may call anything; an append is all or nothing for readers.

    **Fork**: a child may read. Writing raises ForkedError; nothing there flushes or unlocks.
    """

    # -- making one --------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        directory: str | os.PathLike[str],
        config: LogConfig | Mapping[str, object] | None = None,
        *,
        log_start_offset: int = 0,
        recovery_point: int = 0,
        had_clean_shutdown: bool = True,
        clock: Clock = SYSTEM_CLOCK,
        scheduler: Scheduler | None = None,
        files: Files = REAL_FILES,
        topic_id: str | None = None,
        high_watermark: HighWatermarkMode = "log_end",
        high_watermark_offset: int = 0,
        checkpoints: Checkpoints | None = None,
        writer_pool: WriterPool = PROCESS_POOL,
    ) -> Self:
        """
        Load a partition's directory, recovering it after an unclean end; create it if missing.

        The caller holds the lock and keeps the checkpoints: ``logstore.open`` does.

        Args:
            directory: ``<topic>-<partition>``, or any other name for a stand-alone log.
            config: Settings; None: the defaults.
            log_start_offset: As checkpointed.
            recovery_point: As checkpointed: below it everything is on the device.
            had_clean_shutdown: The last writer flushed and closed everything.
            clock: What time it is.
            scheduler: Runs background work; None: a thread of its own, ended by :meth:`close`.
            files: The door to the file system.
            topic_id: Expected, or given to a directory without one.
            high_watermark: ``log_end`` or ``replicas``.
            high_watermark_offset: As checkpointed, for ``replicas``.
            checkpoints: Where offsets are kept between two opens.
            writer_pool: What its writer shares with others: memory, and room ahead.

        Raises:
            InconsistentTopicIdError: The directory belongs to another topic id.
            CorruptRecordError: A committed replacement is damaged; nothing was changed.
            StorageError: A file cannot be read or written.

        Source: Kafka ``UnifiedLog.create``.
        """
        path = os.fspath(directory)
        config = LogConfig.of(config)
        if not files.exists(path):
            make_directory(path, files)
        with _scheduler_of_log(scheduler, clock) as (background, own_scheduler):
            leader_epochs = LeaderEpochCache(
                LeaderEpochCheckpointFile(
                    os.path.join(path, LEADER_EPOCH_CHECKPOINT), create=True, files=files
                ),
                background,
                os.path.basename(path),
            )

            snapshots = SnapshotFiles(path, files=files)

            def new_producer_state() -> ProducerStateManager:
                return ProducerStateManager(
                    path,
                    config=config,
                    clock=clock,
                    files=files,
                    name=os.path.basename(path),
                    snapshots=snapshots,
                )

            producer_state = new_producer_state()
            loaded = LogLoader(
                path,
                config,
                leader_epochs=leader_epochs,
                producer_state=producer_state,
                new_producer_state=new_producer_state,
                log_start_offset=log_start_offset,
                recovery_point=recovery_point,
                had_clean_shutdown=had_clean_shutdown,
                files=files,
                clock=clock,
            ).load()
            log = cls._of_loaded(
                path,
                config,
                loaded,
                leader_epochs=leader_epochs,
                producer_state=producer_state,
                files=files,
                clock=clock,
                scheduler=background,
                own_scheduler=own_scheduler,
                high_watermark=high_watermark,
                checkpoints=checkpoints,
                writer_pool=writer_pool,
            )
            return log._begun(topic_id, high_watermark_offset)

    @classmethod
    def _of_loaded(
        cls,
        path: str,
        config: LogConfig,
        loaded: LoadedLog,
        *,
        files: Files,
        clock: Clock,
        scheduler: Scheduler,
        writer_pool: WriterPool = PROCESS_POOL,
        **state: Any,
    ) -> Self:
        """Return a log over loaded segments; their files are closed if there can be none."""
        try:
            local_log = LocalLog(
                path,
                config,
                loaded.segments,
                writer=Writer(files.io, clock_address=clock.address, pool=writer_pool),
                log_end_offset=loaded.log_end_offset,
                files=files,
                clock=clock,
                scheduler=scheduler,
            )
            return cls(
                path,
                local_log,
                log_start_offset=loaded.log_start_offset,
                recovery_point=loaded.recovery_point,
                files=files,
                clock=clock,
                scheduler=scheduler,
                partition_metadata=PartitionMetadataFile(
                    os.path.join(path, PARTITION_METADATA), files=files
                ),
                **state,
            )
        except BaseException:
            for segment in loaded.segments:
                segment.close_handlers()
            raise

    def _begun(self, topic_id: str | None = None, high_watermark_offset: int = 0) -> Self:
        try:
            self._begin(topic_id, high_watermark_offset)
        except BaseException:
            self.abandon()
            raise
        return self

    @classmethod
    def view(
        cls,
        directory: str | os.PathLike[str],
        config: LogConfig | Mapping[str, object] | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        scheduler: Scheduler | None = None,
        files: Files = REAL_FILES,
    ) -> Self:
        """
        Load a partition's directory for reading, and change nothing there.

        Beside a writer the log goes on with what that writes; else it is what :meth:`create` would
        make of it, until somebody begins to write. Arguments and errors are as there.
        """
        path = os.fspath(directory)
        config = LogConfig.of(config)
        with _scheduler_of_log(scheduler, clock) as (background, own_scheduler):
            view = LiveView(path, config, files=files, clock=clock, scheduler=background)
            loader, loaded = view.load()
            log = cls._of_loaded(
                path,
                config,
                loaded,
                leader_epochs=loader.leader_epochs,
                producer_state=loader.producer_state,
                files=files,
                clock=clock,
                scheduler=background,
                own_scheduler=own_scheduler,
                high_watermark="replicas",
                read_only=True,
            )
            log = log._begun()
            log.look_through(view)
            return log

    # -- append ------------------------------------------------------------------------------------
    # ``append`` and ``extend`` themselves are in C: NativeLog. What they do not take on comes here.

    def _append_general(
        self,
        value: Buffer | None,
        key: Buffer | None = None,
        headers: Headers = (),
        timestamp: int | datetime | None = None,
        sync: bool = False,
    ) -> int:
        """Append one record in the general way; see ``append``."""
        offsets = Extender(self).extend(
            [value],
            None if key is None else [key],
            None if timestamp is None else [milliseconds_of(timestamp)],
            [header_pairs(headers)] if headers else None,
            None,
        )
        if sync:
            self.make_durable(offsets.stop)
        return offsets.start

    def _extend_general(
        self,
        values: Iterable[Buffer | None],
        *,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[int | datetime] | None = None,
        compression: str | None = None,
        sync: bool = False,
    ) -> range:
        """Append many records in the general way; see ``extend``."""
        offsets = Extender(self).extend(values, keys, timestamps, headers, compression)
        if sync and offsets:
            self.make_durable(offsets.stop)
        return offsets

    def extend_arrow(
        self,
        data: Any,
        *,
        value: str = "value",
        key: str | None = None,
        timestamp: str | None = None,
        compression: str | None = None,
        sync: bool = False,
    ) -> range:
        """
        Append the rows of Arrow data and return their offsets.

        Args:
            data: A pyarrow Table or RecordBatch, or anything with the Arrow PyCapsule interface.
            value: Column of the values: binary or string, of any layout.
            key: Column of the keys.
            timestamp: Column of the times: a timestamp with a zone, or int64 milliseconds; a null
                is now.
            compression: As in :meth:`extend`.
            sync: Return when everything is on the device.

        Raises:
            MissingExtraError: pyarrow is not installed.
            KeyError: A column is not there.
            TypeError: A column has another type.
        """
        offsets = Extender(self).extend_arrow(data, value, key, timestamp, compression)
        if sync and offsets:
            self.make_durable(offsets.stop)
        return offsets

    def append_batches(
        self,
        batches: Buffer,
        *,
        leader_epoch: int,
        origin: Origin = "client",
        verification_guard: VerificationGuard | None = None,
    ) -> LogAppendInfo:
        """
        Append encoded batches, all or nothing: as a leader, or as a follower.

        Args:
            batches: Record batches; a cut one at the end is ignored.
            leader_epoch: The leader's epoch, which the batches get; as a follower the highest that
                is accepted.
            origin: ``client`` and ``coordinator``: offsets are assigned here. ``raft_leader`` and
                ``replication`` (a follower): they are taken as they are.
            verification_guard: Of a producer's first transactional append.
        """
        if origin == "replication":
            return self.append_as_follower(batches, leader_epoch)
        return self.append_as_leader(
            batches, leader_epoch, AppendOrigin(origin), verification_guard
        )

    def truncate_to_divergence(self, leader: Leader) -> int:
        """
        Remove what a leader does not have, as a follower does before it fetches from a new one.

        Where the logs part ways is found by leader epochs; records of one epoch are one leader's,
        and the same everywhere.

        Args:
            leader: Another log, or whatever asks it for the ends of its epochs.

        Returns:
            The log end, from which on to fetch.

        **Durability**: durable on return.

        Raises:
            StorageError: As of :meth:`truncate_to`.

        Source: Kafka ``AbstractFetcherThread.getOffsetTruncationState``; spec 8.5.
        """
        return truncate_to_divergence(self, leader)

    # -- read --------------------------------------------------------------------------------------

    def read(
        self,
        start: Start = "earliest",
        stop: int | datetime | None = None,
        *,
        isolation: Isolation = "read_committed",
        limit: int | None = None,
        on_corrupt: OnCorrupt = "raise",
    ) -> RecordIterator[Record]:
        """
        Return an iterator over the records from ``start`` up to ``stop``.

        The end is fixed when iteration begins. ``next_offset`` of the iterator is where to resume.

        Args:
            start: An offset, an aware datetime (the first record at or after it), ``"earliest"`` or
                ``"latest"``.
            stop: An offset or datetime, exclusive; None: what is readable when iteration begins.
            isolation: ``read_committed`` leaves out aborted and undecided transactions,
                ``read_uncommitted`` reads up to the high watermark, ``log_end`` to the log end.
            limit: The number of records at most.
            on_corrupt: ``raise`` stops at damage with CorruptRecordError, which has path, offset
                and position. ``skip`` reads on behind it: ``skipped`` of the iterator lists the
                offsets that were left out, and each range is logged as a warning.

        Raises:
            OffsetOutOfRangeError: ``start`` is not in the log.
        """
        self.check_open()
        first = start_offset(self, start, isolation)
        return RecordIterator(self, first, stop, isolation, limit=limit, on_corrupt=on_corrupt)

    def read_values(
        self,
        start: Start = "earliest",
        stop: int | datetime | None = None,
        *,
        isolation: Isolation = "read_committed",
        limit: int | None = None,
        on_corrupt: OnCorrupt = "raise",
    ) -> RecordIterator[bytes | None]:
        """Return an iterator over the values alone, which takes a third of the time of read."""
        self.check_open()
        first = start_offset(self, start, isolation)
        return RecordIterator(
            self,
            first,
            stop,
            isolation,
            limit=limit,
            values_only=True,
            on_corrupt=on_corrupt,
        )

    def scan(
        self,
        start: Start = "earliest",
        stop: int | datetime | None = None,
        *,
        columns: Sequence[str] | None = None,
        isolation: Isolation = "read_committed",
        batch_rows: int | None = None,
        verify_crc: bool = True,
        views: bool = False,
    ) -> Scan:
        """
        Return the records from ``start`` up to ``stop`` as Arrow data that is read when it is used.

        Args:
            start: As in :meth:`read`; found at the first use.
            stop: The same.
            columns: Their names, in order: ``offset``, ``timestamp``, ``key``, ``value``,
                ``headers``, and on request ``topic``, ``partition``, ``timestamp_type``,
                ``leader_epoch``. None: the first five. What is left out costs nothing.
            isolation: As in :meth:`read`.
            batch_rows: Rows of a record batch at most, which has 1 to 4 MiB as a rule.
            verify_crc: False trusts the bytes: a third faster for small records. Damage may then
                be delivered as records; it is still found where it breaks the format.
            views: Keys and values as ``binary_view`` columns that point into the segments, without
                a copy. Few functions of pyarrow take these.

        Raises:
            MissingExtraError: pyarrow is not installed.
            ValueError: A column or isolation is unknown.
        """
        self.check_open()
        return Scan(
            self,
            start,
            stop,
            columns=columns,
            isolation=isolation,
            batch_rows=batch_rows,
            verify_crc=verify_crc,
            views=views,
        )

    def follow(
        self,
        start: Start = "latest",
        *,
        timeout: float | None = None,
        isolation: Isolation = "read_committed",
        spin: float = 0.0,
    ) -> Follower[Record]:
        """
        Return an iterator over the records from ``start`` on that waits for more; also async.

        It works in the writer's process and in others, from threads and event loops.

        Args:
            start: As in :meth:`read`.
            timeout: How many seconds without a record end the iteration; None: it does not end.
            isolation: As in :meth:`read`: the default waits for transactions to be decided.
            spin: How many seconds to look without sleeping first: another process's record is
                seen sooner, for all of a core.

        Raises:
            OffsetOutOfRangeError: ``start`` is not in the log.
        """
        self.check_open()
        first = start_offset(self, start, isolation)
        return Follower(self, first, isolation, timeout=timeout, spin=spin)

    def __iter__(self) -> RecordIterator[Record]:
        return self.read()

    # ``log[offset]`` itself is in C: NativeLog. What it does not take on comes here.

    def _get_general(self, offset: SupportsIndex | slice) -> Record:
        """
        Return the record at an offset: ``log[offset]``.

        Raises:
            OffsetGapError: There is none; ``next_offset`` says where the next one is.
            OffsetOutOfRangeError: It lies outside the log.
            TypeError, IndexError: A slice or a negative number.
        """
        if isinstance(offset, slice):
            raise TypeError("a log has no slices; use read(start, stop)")
        try:
            number = index(offset)
        except TypeError:
            kind = type(offset).__name__
            raise TypeError(f"log[offset] takes an offset, an int, not {kind}") from None
        if number < 0:
            raise IndexError("offsets are not counted from the end; use last() or read()")
        self.check_open()
        # The places before the read: what is learned must not be older.
        return read_one(self, number, "read_committed", self.record_places())

    def __bool__(self) -> bool:
        return True

    def first(self) -> Record | None:
        """Return the first readable record, None if there is none."""
        self.check_open()
        return read_first(self, "read_committed")

    def last(self) -> Record | None:
        """Return the last readable record, None if there is none."""
        self.check_open()
        return read_last(self, "read_committed")

    def offset_at(self, when: int | datetime) -> TimestampAndOffset | None:
        """
        Return the first record whose timestamp is at or after a time, None if there is none.

        Args:
            when: Milliseconds since the epoch, or an aware datetime.
        """
        when = milliseconds_of(when) if isinstance(when, datetime) else index(when)
        if when < 0:
            raise ValueError(f"time {when} is negative; give milliseconds since the epoch")
        return self.fetch_offset_by_timestamp(when)

    def max_timestamp(self) -> TimestampAndOffset | None:
        """
        Return the first record that has the largest timestamp; None in a log without records.

        The largest is -1 where no record has a timestamp, and messages of magic 0 cannot be found.

        Source: Kafka ``fetchOffsetByTimestamp``, MAX_TIMESTAMP; spec 5.7.
        """
        return self.fetch_offset_by_timestamp(MAX_TIMESTAMP)

    # -- check, close ------------------------------------------------------------------------------

    def compact(
        self,
        *,
        config: CleanerSettings | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        refuse_null_keys: bool = True,
    ) -> CleanerStats:
        """
        Remove every record whose key has a later one, as Kafka's cleaner does.

        The active segment, records above the last stable offset and those younger than
        ``min.compaction.lag.ms`` are not touched: ``roll()`` first to have all of them cleaned.
        Offsets do not change. Others may append and read meanwhile.

        **Durability**: what was cleaned is durable on return. A crash leaves each segment as it was
        or cleaned.

        Args:
            config: Memory, buffers and a limit on bytes per second; None: Kafka's defaults.
            on_progress: Called with the bytes read so far, and how many there are in this round.
            refuse_null_keys: Raise if there are records without a key; False removes them.

        Raises:
            ConfigError: ``cleanup.policy`` does not have compact.
            InvalidRecordError: There are records without a key; nothing was changed.
            LogCleaningAbortedError: The log was truncated meanwhile, or somebody else cleans it.
            CorruptRecordError: A batch is damaged; its segment is as it was.
            StorageError: A file cannot be read or written; likewise.

        Source: Kafka ``Cleaner.doClean``; docs/compaction.md.
        """
        return compact(
            self, config=config, on_progress=on_progress, refuse_null_keys=refuse_null_keys
        )

    def check(self) -> Iterator[str]:
        """
        Yield a sentence for every invariant that does not hold; nothing means all is well.

        Cost: reads the whole log.
        """
        self.check_open()
        with self._lock:
            yield from broken_invariants(self)

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else f"offsets={tuple(self.offsets)}"
        return f"<Log {self.directory!r} {state}>"

    def _is_ended(self) -> bool:
        return getattr(self, "_is_closed", True) or self._is_forked()

    def _leak(self) -> str | None:
        if self._is_read_only:
            return None
        return (
            f"{self._directory} was not closed; it is recovered at the next open."
            " Use `with logstore.open(…)`, or call close()"
        )


@contextlib.contextmanager
def _scheduler_of_log(
    given: Scheduler | None, clock: Clock
) -> Iterator[tuple[Scheduler, ThreadScheduler | None]]:
    """
    Give the scheduler of a log that is being made, and once more if it is to be the log's own.

    The thread of its own ends if no log comes to have it.
    """
    if given is not None:
        yield given, None
        return
    own = ThreadScheduler(clock)
    try:
        yield own, own
    except BaseException:
        own.shutdown()
        raise


def make_directory(path: str, files: Files) -> None:
    """Create a log's directory, and the ones above it; durable on return."""
    missing = []
    while not files.exists(path):
        missing.append(path)
        path = os.path.dirname(os.path.abspath(path))
    for each in reversed(missing):
        try:
            files.mkdir(each)
        except StorageError as error:
            if error.errno != errno.EEXIST:  # Else somebody else opens the log at this moment.
                raise
        files.fsync_directory(os.path.dirname(os.path.abspath(each)))
