"""
The state of one partition log that must stay consistent: one lock, offsets, settings, listeners.

What is done with it is in ``partition_flush.py``, ``partition_watermarks.py``, ``appending.py`` and
``unified_log.py``. Two rules hold here: whatever changes the log does so inside
:meth:`Partition.changing`, and offsets are only set through :class:`Watermarks`.

Source: Kafka ``UnifiedLog``; spec 5.1, 5.5, 5.13.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from logstore._native import Flusher, LivePage, NativeLog, Writer
from logstore.changing import Changing
from logstore.config import LogConfig
from logstore.errors import (
    ClosedError,
    CorruptRecordError,
    ForkedError,
    InconsistentTopicIdError,
    ReadOnlyError,
)
from logstore.file_records import LogOffsetMetadata
from logstore.flushing import Poison
from logstore.live_offsets import LiveOffsets
from logstore.local_log import LocalLog
from logstore.record_places import Moment, RecordPlaces
from logstore.scheduler import weakly
from logstore.segment import LogSegment
from logstore.truncations import Truncations
from logstore.watermarks import Checkpoints, LogOffsets, Watermarks

if TYPE_CHECKING:
    from logstore._native import RecordGetter
    from logstore.checkpoint import PartitionMetadataFile
    from logstore.clock import Clock
    from logstore.files import Files
    from logstore.leader_epoch import LeaderEpochCache
    from logstore.producer_state import ProducerStateManager
    from logstore.readable_log import Reader
    from logstore.scheduler import Scheduler, Task, ThreadScheduler
    from logstore.waiter import Listener
    from logstore.watermarks import HighWatermarkMode

FLUSH_MESSAGES_NEVER: Final = 2**63 - 1
EXPIRATION_CHECK_NEVER: Final = 2**31 - 1
WOKEN_SECONDS: Final = 3600.0  # Who waits in the writer's process is woken at each move.
POLL_SECONDS: Final = 0.02  # Who waits for a log that shows nothing looks so often.

ResultT = TypeVar("ResultT")


class PeriodicWork(NamedTuple):
    """What a log's scheduler does again and again."""

    name: str
    method: Callable[[Any], None]  # Of the log.
    period_ms: int


class View(Protocol):
    """What a log that is written by another process is seen through."""

    def attach(self, log: Partition) -> None:
        """Begin with a log."""
        ...

    @property
    def page(self) -> LivePage | None:
        """What its writer shows, and wakes by."""
        ...

    @property
    def wait_seconds(self) -> float:
        """How long who waits may sleep."""
        ...

    def refresh(self) -> None:
        """Bring the log to what can be read now."""
        ...

    def moment(self) -> Moment | None:
        """Return until when the last look holds; None: nobody can tell."""
        ...

    def close(self) -> None:
        """Give up what is held for that."""
        ...

    def after_fork(self) -> None:
        """Begin anew in a forked child."""
        ...


class Partition(NativeLog):
    """
    One partition's lock, offsets, settings and listeners, around its segments.

    **Thread rule**: any thread may call anything. Changes take the log's lock; reads do not.

    Source: Kafka ``UnifiedLog``.
    """

    def __init__(
        self,
        directory: str,
        local_log: LocalLog,
        *,
        log_start_offset: int,
        recovery_point: int,
        leader_epochs: LeaderEpochCache,
        producer_state: ProducerStateManager,
        files: Files,
        clock: Clock,
        scheduler: Scheduler,
        high_watermark: HighWatermarkMode,
        partition_metadata: PartitionMetadataFile,
        own_scheduler: ThreadScheduler | None = None,
        checkpoints: Checkpoints | None = None,
        read_only: bool = False,
    ) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._directory = directory
        self._local_log = local_log
        self._writer: Writer = local_log.writer
        self._flusher = Flusher(self._writer)
        self._poison: Poison = local_log.poison
        self._files = files
        self._clock = clock
        self._scheduler = scheduler
        self._checkpoints = checkpoints
        self._partition_metadata = partition_metadata
        self._topic_id: str | None = None
        self._own_scheduler = own_scheduler
        self._rules: tuple[int, int, bool, LogConfig] | None = None  # As the writer has them.
        self._places: RecordPlaces | None = None  # Of log[offset],
        self._inherited_places: RecordPlaces | None = None  # and those of a parent process.
        # Made with the first of them: an empty one is eight objects for the garbage collector.
        self._readers: weakref.WeakSet[Reader] | None = None
        self._is_closed = False
        self._is_read_only = read_only
        self._depth = 0  # Of nested changes, by the thread that holds the lock.
        self._pid = os.getpid()
        self._writer_epoch = 0  # The number of writers there have been.
        self._live: LiveOffsets | None = None  # What other processes see of this log.
        self._view: View | None = None  # What this one sees of another process's.
        self._truncations: Final = Truncations()
        self._cleaning = threading.Lock()  # Of who cleans the log: one at a time.
        self._cleaner_offset: int | None = (
            None if checkpoints is None else checkpoints.cleaner_offset
        )
        self._listeners: dict[object, Listener] = {}
        self._told: LogOffsets | None = None
        self._tasks: list[Task] = []
        self._watermarks = Watermarks(
            high_watermark,
            log_start_offset=log_start_offset,
            recovery_point=recovery_point,
            flusher=self._flusher,
            log_end=self._log_end_offset_metadata,
        )
        self.leader_epochs: Final = leader_epochs
        self.producer_state: Final = producer_state

    def _load_topic_id(self, expected: str | None) -> None:
        """
        Read the topic id, or record the expected one in a directory without.

        Source: Kafka ``UnifiedLog.initializeTopicId``.
        """
        metadata = self._partition_metadata
        if metadata.exists():
            found = metadata.read().topic_id
            if expected is not None and expected != found:
                raise InconsistentTopicIdError(
                    f"the directory belongs to topic id {found}, not {expected};"
                    " open the right directory",
                    path=self._directory,
                )
            self._topic_id = found
        elif expected is not None and not self._is_read_only:
            self._topic_id = expected
            metadata.record(expected)
            self._scheduler.schedule("flush-metadata-file", weakly(self, type(self).flush_metadata))

    def _schedule_tasks(self) -> None:
        """
        Begin the periodic work of this log anew, as the settings say.

        Source: Kafka ``LogManager.startup``; spec 6.5.
        """
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        for name, method, period_ms in self._periodic_work():
            period_ms = max(period_ms, 1)  # noqa: PLW2901 - 0 means "as soon as can be"
            task = self._scheduler.schedule(name, weakly(self, method), period_ms, period_ms)
            self._tasks.append(task)

    def _periodic_work(self) -> list[PeriodicWork]:
        """Return what the settings want to be done again and again."""
        period_ms = self.config.producer_id_expiration_check_interval_ms
        if period_ms == EXPIRATION_CHECK_NEVER:
            return []
        method = type(self)._expire_producers
        return [PeriodicWork("PeriodicProducerExpirationCheck", method, period_ms)]

    def _expire_producers(self) -> None:
        with self.changing():
            self.producer_state.remove_expired_producers(self._clock.milliseconds())

    # -- what it is --------------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """The directory of the partition."""
        return self._directory

    @property
    def name(self) -> str:
        """The directory's name: topic and partition, as a rule."""
        return os.path.basename(self._directory)

    @property
    def clock(self) -> Clock:
        """The log's clock."""
        return self._clock

    @property
    def writer(self) -> Writer:
        """The writing end of the active segment."""
        return self._writer

    @property
    def config(self) -> LogConfig:
        """The settings in force."""
        return self._local_log.config

    @property
    def topic_id(self) -> str | None:
        """The topic id of ``partition.metadata``, None if there is none."""
        return self._topic_id

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        """The segments, oldest first."""
        return tuple(self._local_log.segments)

    def segments_between(self, start: int, end: int) -> list[LogSegment]:
        """
        Return the segments that may hold offsets of ``[start, end)``, oldest first.

        Source: Kafka ``UnifiedLog.logSegments(from, to)``.
        """
        return list(self._local_log.segments.between(start, max(start, end)))

    @property
    def active_segment(self) -> LogSegment:
        """The segment that is written."""
        return self._local_log.active_segment

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return self._local_log.size_bytes

    @property
    def is_read_only(self) -> bool:
        """Whether the log was opened with mode ``"r"``."""
        return self._is_read_only

    @property
    def is_closed(self) -> bool:
        """Whether the log was closed."""
        return self._is_closed

    @property
    def readers(self) -> weakref.WeakSet[Reader]:
        """Reads that have begun; closing tells each to say so at its next step."""
        readers = self._readers
        if readers is None:
            # One step: of two threads that come at once both get the first one's.
            readers = self._readers = self.__dict__.setdefault("_first_readers", weakref.WeakSet())
        return readers

    @property
    def decompressed_bytes_max(self) -> int:
        """Bound of one decompressed batch."""
        return self.config.decompressed_bytes_max

    # -- offsets -----------------------------------------------------------------------------------

    @property
    def offsets(self) -> LogOffsets:
        """The five offsets of one moment."""
        self._look()
        return self._watermarks.snapshot()

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        self._look()
        return self._watermarks.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """What the next record gets."""
        if self._view is None:
            return self._writer.log_end_offset
        self._view.refresh()
        return self._local_log.log_end_offset

    @property
    def high_watermark(self) -> int:
        """Below it everything is replicated; see ``watermarks.py`` for the two modes."""
        self._look()
        return self._watermarks.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided."""
        self._look()
        return self._watermarks.last_stable_offset

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the first undecided transaction, None if there is none."""
        return self._watermarks.first_unstable_offset

    @property
    def recovery_point(self) -> int:
        """Below it everything is on the device."""
        return self._watermarks.recovery_point

    def _log_end_offset_metadata(self) -> LogOffsetMetadata:
        return self._local_log.log_end_offset_metadata

    @property
    def log_end_offset_metadata(self) -> LogOffsetMetadata:
        """The log end offset and its place."""
        return self._local_log.log_end_offset_metadata

    # -- one lock, and what every change does ------------------------------------------------------

    def changing(self) -> Changing:
        """
        Return a context: it holds the log's lock and keeps the C append path out.

        Listeners are told afterwards, outside the lock. Contexts nest.

        Raises:
            ClosedError: The log was closed.
            ForkedError: This process is a child of the one that opened the log.
            ReadOnlyError: The log was opened with mode "r".
            PoisonedError: An fsync, or a truncation halfway, failed.
        """
        return Changing(self)

    def check_open(self) -> None:
        """Raise ClosedError if the log was closed."""
        if self._is_closed:
            raise ClosedError(f"{self._directory} is closed; open the log again")
        self._look()

    def _look(self) -> None:
        """Learn what the log's writer in another process has done, if that is who writes it."""
        if self._view is not None:
            self._view.refresh()

    def check_writable(self) -> None:
        """Raise if the log may not be changed: closed, forked, read-only or poisoned."""
        self.check_open()
        if self._is_forked():
            raise ForkedError(
                f"{self._directory} was opened by process {self._pid}; open it in the child",
                path=self._directory,
            )
        if self._is_read_only:
            raise ReadOnlyError(
                f'{self._directory} was opened with mode "r"; open it with mode "a" to change it',
                path=self._directory,
            )
        self._poison.check()

    @property
    def truncations(self) -> int:
        """A number that changes when a truncation begins, and when it ends."""
        self._look()
        return self._truncations.count

    def settled_truncations(self) -> int:
        """Return :attr:`truncations` after waiting for whoever changes the log now."""
        with self._lock:
            return self.truncations

    def truncated_to(self, since: int) -> int | None:
        """Return the lowest offset truncated to since :attr:`truncations` was that, else None."""
        return self._truncations.lowest_since(since)

    def undisturbed(self, look: Callable[[], ResultT]) -> ResultT:
        """
        Return what ``look`` does, which reads; do it again if it met a file that was being cut.

        Raises:
            CorruptRecordError: There is damage.
        """
        while True:
            truncations = self.truncations
            try:
                return look()
            except CorruptRecordError:
                if self.settled_truncations() == truncations:
                    raise

    def forget_places(self) -> None:
        """
        Let ``log[offset]`` find its places anew: bytes of the log are about to go.

        Called under the log's lock before segments are cut, deleted or replaced.
        """
        self._places = None
        self._bind_getter(None)

    def leave_places(self) -> None:
        """
        Use the places no more, in a forked child; called before anything else is done there.

        The parent goes on to change the log, and may cut files that are mapped here. Nothing is
        let go of: a thread that is not in this process may have held a lock that this would take.
        """
        self._inherited_places = self._places
        self.forget_places()

    def record_places(self) -> RecordPlaces | None:
        """Return the places that C gets records from; None if something changes the log now."""
        places = self._places
        if places is None and not self._is_forked() and self._lock.acquire(blocking=False):
            try:
                places = self._places
                if places is None and not self._is_closed:
                    self._places = places = RecordPlaces(
                        self._local_log,
                        self._watermarks,
                        view=self._view,
                        bind=self._let_getter_answer,
                    )
            finally:
                self._lock.release()
        return places

    def _let_getter_answer(self, getter: RecordGetter) -> None:
        with self._lock:
            if not self._is_closed:
                self._bind_getter(getter)

    def show_live_offsets(self, writer_epoch: int) -> None:
        """Let readers in other processes see from now on where the log stands."""
        self._writer_epoch = writer_epoch
        with self._lock, self._writer.exclusive():
            active = self._local_log.active_segment
            before = self._live
            live = LiveOffsets.create(
                self._directory,
                writer=self._writer,
                writer_epoch=writer_epoch,
                active_base_offset=active.base_offset,
                size_bytes=active.size_bytes,
                log_end_offset=self.log_end_offset,
                marks=self._watermarks.shown_marks,
                before=before,
                files=self._files,
            )
            if live is None and before is not None:
                return  # Who has the file open goes on with it.
            self._live = self._truncations.live = live
            self._watermarks.show_in(live)
            if before is not None:
                before.leave()

    def _renew_live_offsets(self) -> None:
        """Show the offsets in a new file if the old one was deleted; the lock is held."""
        live = self._live
        if live is None or live.is_current or not self._files.is_directory(self._directory):
            return
        shown = live.page.load()
        if (
            shown is not None and shown.truncation_count % 2 == 0
        ):  # Its end belongs in the same file.
            self.show_live_offsets(self._writer_epoch)

    def look_through(self, view: View) -> None:
        """See from now on what another process writes."""
        view.attach(self)
        self._view = view

    @property
    def live_page(self) -> LivePage | None:
        """What shows each move of the log and wakes who waits; None: it has to be looked at."""
        if self._live is not None:
            return self._live.page
        return None if self._view is None else self._view.page

    @property
    def wait_seconds(self) -> float:
        """How long who waits for a move may sleep: what does not wake happens no more often."""
        if self._view is not None:
            return self._view.wait_seconds
        return POLL_SECONDS if self._live is None else WOKEN_SECONDS

    def _show_active_segment(self) -> None:
        """Let other processes see which segment is active, after a roll or a truncation."""
        if self._live is not None and self._live.is_deleted:
            self._renew_live_offsets()
        if self._live is not None:
            active = self._local_log.segments.active
            if not active.is_attached:  # Else the writer does so.
                self._live.place(active.base_offset, active.size_bytes)

    def _is_forked(self) -> bool:
        return self._writer.is_forked

    def sync_producer_state(self) -> None:
        """Let producer state know what the C append path has written."""
        producer_state, log_end_offset = self.producer_state, self._writer.log_end_offset
        if producer_state.map_end_offset < log_end_offset:
            producer_state.update_map_end_offset(log_end_offset)

    def refresh_fast_path(self) -> None:
        """
        Tell the writer the settings in force, and whether single appends may take the C path.

        They may if nobody has to know of each append: the high watermark is the log end, there is
        no listener, no flush.messages, nothing to compress, no topic id to be written first, and
        the leader epoch is in the cache.
        """
        config = self._local_log.config
        latest_epoch = self.leader_epochs.latest_epoch
        epoch = latest_epoch or 0
        segment = self._local_log.segments.active
        fast = (
            not self._is_closed
            and self._poison.cause is None
            and self._watermarks.mode == "log_end"
            and not self._listeners
            and config.flush_messages == FLUSH_MESSAGES_NEVER
            and config.compression_type in ("producer", "uncompressed")
            and not self._is_read_only
            and self._partition_metadata.recorded_topic_id is None
            and latest_epoch == epoch
        )
        rules = (epoch, segment.index_interval_bytes, fast, config)
        if rules == self._rules:
            return
        self._writer.configure(
            leader_epoch=epoch,
            segment_bytes=config.segment_bytes,
            index_interval_bytes=segment.index_interval_bytes,
            max_message_bytes=config.max_message_bytes,
            batch_bytes=config.batch_bytes_max,
            preallocate_bytes=config.preallocation_bytes,
            log_append_time=config.message_timestamp_type == "LogAppendTime",
            timestamp_before_max_ms=config.message_timestamp_before_max_ms,
            timestamp_after_max_ms=config.message_timestamp_after_max_ms,
            key_required=config.compact,
            fast=fast,
        )
        self._rules = rules

    @property
    def leader_epoch(self) -> int:
        """The epoch that appended records carry: the latest one known, 0 in a new log."""
        latest = self.leader_epochs.latest_epoch
        return 0 if latest is None else latest

    # -- listeners ---------------------------------------------------------------------------------

    def add_listener(self, listener: Listener) -> Callable[[], None]:
        """
        Call ``listener(log)`` after the log end, a watermark or the log start moved.

        It runs in the thread that made the move, outside all locks, and should be short. Moves that
        come close together may be told as one.

        Returns:
            A function that removes the listener.
        """
        token = object()
        with self.changing():
            if self._told is None:
                self._told = self.offsets
            self._listeners[token] = listener
            self.refresh_fast_path()

        def remove() -> None:
            with self._lock:
                self._listeners.pop(token, None)
                if not self._is_closed:
                    self.refresh_fast_path()

        return remove

    def _tell_listeners(self) -> None:
        offsets = self.offsets
        if offsets == self._told:
            return
        self._told = offsets
        for listener in list(self._listeners.values()):
            listener(self)

    # -- settings and topic id ---------------------------------------------------------------------

    def update_config(self, config: LogConfig | Mapping[str, object]) -> None:
        """
        Put other settings in force; those of a segment count from the next one on.

        Args:
            config: Complete settings, or a mapping of what changes.

        Source: Kafka ``updateConfig``.
        """
        with self.changing():
            if not isinstance(config, LogConfig):
                config = self.config.replace(**config)
            self._local_log.update_config(config)
            self.producer_state.config = config
            self._schedule_tasks()
            self.refresh_fast_path()

    def assign_topic_id(self, topic_id: str) -> None:
        """
        Give the partition a topic id; it is written before the next record.

        Raises:
            InconsistentTopicIdError: It has another one.

        Source: Kafka ``assignTopicId``.
        """
        with self.changing():
            if self._topic_id is not None and self._topic_id != topic_id:
                raise InconsistentTopicIdError(
                    f"the directory belongs to topic id {self._topic_id}, not {topic_id};"
                    " open the right directory",
                    path=self._directory,
                )
            if self._topic_id is None:
                self._topic_id = topic_id
                self._partition_metadata.record(topic_id)
                self._scheduler.schedule(
                    "flush-metadata-file", weakly(self, type(self).flush_metadata)
                )
                self.refresh_fast_path()

    def flush_metadata(self) -> None:
        """Write ``partition.metadata`` if it is not written yet."""
        if self._partition_metadata.recorded_topic_id is None:
            return
        with self._lock:
            if not self._is_closed:
                self._partition_metadata.maybe_flush()
                self.refresh_fast_path()
