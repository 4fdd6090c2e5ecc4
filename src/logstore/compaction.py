"""
The log cleaner: keeps compacted logs compact, the filthiest first, in the background.

A log is worth a round when the dirty share of its bytes is above ``min.cleanable.dirty.ratio``, or
when records are dirty for longer than ``max.compaction.lag.ms``. Of those the one with the greatest
share is cleaned. A look every ``log.cleaner.backoff.ms`` finds them; threads are there only while
there is something to do. After each look, segments of compacted logs go that the log start or, with
``compact,delete``, time and size let go.

States of a log: none, in progress, aborted (as soon as the cleaner notices, it is paused), paused
(as often as it was asked for). One that could not be cleaned is set aside and reported, so that the
others are not held up; after a full disk, or without memory, it is tried again.

Source: Kafka ``LogCleaner``, ``LogCleanerManager``; spec 7.1, 7.5 to 7.7.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.cleaner import Cleaner
from logstore.cleaner_config import CleanerConfig, CleanerSettings
from logstore.cleaner_stats import CleanerStats
from logstore.errors import (
    ClosedError,
    ConfigError,
    DiskFullError,
    LogCleaningAbortedError,
    LogStoreError,
    StorageError,
)
from logstore.log_to_clean import LogToClean, cleanable_offsets, max_compaction_delay
from logstore.offset_map import OffsetMap
from logstore.throttler import Throttler

if TYPE_CHECKING:
    from logstore.clock import Clock
    from logstore.scheduler import Scheduler, Task
    from logstore.unified_log import UnifiedLog

logger = logging.getLogger(__name__)

IO_BUFFER_BYTES_MIN: Final = 4096
RETRY_BACKOFFS: Final = 10  # Looks that a log is left alone after disk or memory was full.
ABORT_POLL_SECONDS: Final = 0.05

Report = Callable[[BaseException, str], object]


def compact(
    log: UnifiedLog,
    *,
    config: CleanerSettings | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    refuse_null_keys: bool = True,
) -> CleanerStats:
    """
    Clean all of a log that may be cleaned now, in as many rounds as the offset map asks for.

    See ``Log.compact``.
    """
    if not log.config.compact:
        raise ConfigError(
            [f"cleanup.policy={','.join(sorted(log.config.cleanup_policy))} must have compact"]
        )
    settings = CleanerConfig() if config is None else config
    cleaner = _new_cleaner(
        settings,
        1,
        _new_throttler(settings, log.clock),
        lambda each: each.check_open(),
        on_progress=on_progress,
        refuse_null_keys=refuse_null_keys,
    )
    total: CleanerStats | None = None
    while True:
        now_ms = log.clock.milliseconds()
        offsets = cleanable_offsets(log, log.cleaner_offset, now_ms)
        cleanable = LogToClean.of(
            log, offsets.first_dirty_offset, offsets.first_uncleanable_dirty_offset
        )
        if cleanable.cleanable_bytes == 0:
            # Tombstones whose time has come are in the clean part: no new record is needed.
            first = offsets.first_dirty_offset
            return total or CleanerStats(first_dirty_offset=first, next_first_dirty_offset=first)
        stats = cleaner.clean(cleanable, now_ms)
        log.update_cleaner_offset(stats.next_first_dirty_offset)
        if total is None:
            total = stats
        else:
            total.add(stats)
        if stats.next_first_dirty_offset >= cleanable.first_uncleanable_offset:
            return total


def _new_throttler(settings: CleanerSettings, clock: Clock) -> Throttler:
    rate = settings.log_cleaner_io_max_bytes_per_second
    return Throttler(float("inf") if rate >= sys.float_info.max else rate, clock)


def _new_cleaner(
    settings: CleanerSettings,
    threads: int,
    throttler: Throttler,
    check_done: Callable[[UnifiedLog], None],
    *,
    on_progress: Callable[[int, int], None] | None = None,
    refuse_null_keys: bool = False,
) -> Cleaner:
    """Return a cleaner with one thread's share of the memory."""
    return Cleaner(
        OffsetMap(
            settings.log_cleaner_dedupe_buffer_size // threads,
            settings.log_cleaner_io_buffer_load_factor,
        ),
        io_buffer_bytes=max(
            IO_BUFFER_BYTES_MIN, settings.log_cleaner_io_buffer_size // threads // 2
        ),
        throttler=throttler,
        check_done=check_done,
        on_progress=on_progress,
        refuse_null_keys=refuse_null_keys,
    )


class Uncleanable(NamedTuple):
    """
    A log that is left alone.

    Attributes:
        error: Why.
        retry_at_ms: When it is tried again; None: when it was opened again.
    """

    error: BaseException
    retry_at_ms: int | None


class LogCleanerManager:
    """
    Knows which log is cleaned next, and which may not be.

    **Thread rule**: any thread.

    Args:
        logs: Returns the logs that are open.
        clock: What time it is.
        is_held: Whether a log waits for its settings, and is not to be cleaned.

    Source: Kafka ``LogCleanerManager``.
    """

    def __init__(
        self,
        logs: Callable[[], Iterable[UnifiedLog]],
        clock: Clock,
        is_held: Callable[[UnifiedLog], bool] = lambda _: False,
    ) -> None:
        self._logs = logs
        self._clock = clock
        self._is_held = is_held
        self._guard = threading.Condition()
        self._in_progress: set[UnifiedLog] = set()
        self._aborted: set[UnifiedLog] = set()  # Of those in progress.
        self._paused: dict[UnifiedLog, int] = {}
        self._uncleanable: dict[UnifiedLog, Uncleanable] = {}

    @property
    def uncleanable(self) -> dict[UnifiedLog, Uncleanable]:
        """The logs that are left alone, and why."""
        with self._guard:
            return {log: why for log, why in self._uncleanable.items() if not log.is_closed}

    def _candidates(self) -> Iterator[UnifiedLog]:
        now_ms = self._clock.milliseconds()
        with self._guard:
            for log in [log for log in self._uncleanable if log.is_closed]:
                del self._uncleanable[log]
            for log, why in list(self._uncleanable.items()):
                if why.retry_at_ms is not None and why.retry_at_ms <= now_ms:
                    del self._uncleanable[log]
            left_alone = {*self._uncleanable, *self._in_progress, *self._paused}
        for log in self._logs():
            if (
                log.config.compact
                and not log.is_closed
                and not log.is_read_only
                and log not in left_alone
                and not self._is_held(log)
            ):
                yield log

    def grab_filthiest_compacted_log(
        self, on_error: Callable[[UnifiedLog, BaseException], object]
    ) -> LogToClean | None:
        """
        Return the log to be cleaned next, in progress from now on; None if none is worth it.

        Args:
            on_error: Called with a log that cannot be looked at.

        Source: Kafka ``grabFilthiestCompactedLog``.
        """
        now_ms = self._clock.milliseconds()
        eligible = []
        for log in self._candidates():
            try:
                cleanable = self._look_at(log, now_ms)
            except ClosedError:
                continue
            except LogStoreError as error:
                on_error(log, error)
                continue
            is_dirty = cleanable.cleanable_ratio > log.config.min_cleanable_dirty_ratio
            if cleanable.cleanable_bytes > 0 and (is_dirty or cleanable.needs_compaction_now):
                eligible.append(cleanable)
        eligible.sort(key=lambda each: each.cleanable_ratio, reverse=True)
        with self._guard:
            for cleanable in eligible:
                log = cleanable.log
                if log not in self._in_progress and log not in self._paused:
                    self._in_progress.add(log)
                    return cleanable
        return None

    @staticmethod
    def _look_at(log: UnifiedLog, now_ms: int) -> LogToClean:
        offsets = cleanable_offsets(log, log.cleaner_offset, now_ms)
        if offsets.force_update_checkpoint:
            log.update_cleaner_offset(offsets.first_dirty_offset)
        delay_ms = max_compaction_delay(log, offsets.first_dirty_offset, now_ms)
        return LogToClean.of(
            log, offsets.first_dirty_offset, offsets.first_uncleanable_dirty_offset, delay_ms
        )

    def check_cleaning_aborted(self, log: UnifiedLog) -> None:
        """Raise LogCleaningAbortedError if a log's cleaning is to end now."""
        if log in self._aborted or log.is_closed:
            raise LogCleaningAbortedError(
                "somebody asked for the end of this cleaning", path=log.directory
            )

    def done_cleaning(self, log: UnifiedLog) -> None:
        """Note that nobody cleans a log any more; one that was aborted is paused."""
        with self._guard:
            self._in_progress.discard(log)
            if log in self._aborted:
                self._aborted.discard(log)
                self._paused[log] = self._paused.get(log, 0) + 1
            self._guard.notify_all()

    def mark_uncleanable(
        self, log: UnifiedLog, error: BaseException, retry_ms: int | None = None
    ) -> None:
        """Leave a log alone until it is opened again, or for a time."""
        retry_at_ms = None if retry_ms is None else self._clock.milliseconds() + retry_ms
        with self._guard:
            self._uncleanable[log] = Uncleanable(error, retry_at_ms)

    def abort_and_pause_cleaning(self, log: UnifiedLog) -> None:
        """
        End a log's cleaning, wait until it has ended, and begin no other before it is resumed.

        Source: Kafka ``abortAndPauseCleaning``.
        """
        with self._guard:
            if log not in self._in_progress:
                self._paused[log] = self._paused.get(log, 0) + 1
                return
            self._aborted.add(log)
            while log in self._in_progress:
                self._guard.wait(ABORT_POLL_SECONDS)

    def resume_cleaning(self, log: UnifiedLog) -> None:
        """Undo one :meth:`abort_and_pause_cleaning`."""
        with self._guard:
            count = self._paused.get(log, 0) - 1
            if count > 0:
                self._paused[log] = count
            else:
                self._paused.pop(log, None)

    @contextlib.contextmanager
    def paused(self, log: UnifiedLog) -> Iterator[None]:
        """Keep a log from being cleaned in this block; a cleaning under way ends before it."""
        self.abort_and_pause_cleaning(log)
        try:
            yield
        finally:
            self.resume_cleaning(log)

    def deletable_logs(self) -> list[UnifiedLog]:
        """
        Return the compacted logs whose old segments may be deleted now.

        Source: Kafka ``deletableLogs``.
        """
        return list(self._candidates())


class LogCleaner:
    """
    Cleans the compacted logs of a store in the background.

    **Thread rule**: any thread.

    Args:
        logs: Returns the logs that are open.
        scheduler: Runs the looks.
        config: The cleaner's settings.
        clock: What time it is.
        report: Called with each error, and what was being done.
        is_held: Whether a log waits for its settings, and is not to be cleaned.
        in_background: False cleans in the scheduler's thread, for tests that own it.

    Attributes:
        manager: Which log is cleaned next; pauses and resumes.
        last_stats: Of the last round.

    Source: Kafka ``LogCleaner``.
    """

    def __init__(
        self,
        logs: Callable[[], Iterable[UnifiedLog]],
        *,
        scheduler: Scheduler,
        config: CleanerSettings,
        clock: Clock,
        report: Report,
        is_held: Callable[[UnifiedLog], bool] = lambda _: False,
        in_background: bool = True,
    ) -> None:
        self.manager: Final = LogCleanerManager(logs, clock, is_held)
        self.last_stats: CleanerStats | None = None
        self._scheduler = scheduler
        self._config = config
        self._clock = clock
        self._report = report
        self._in_background = in_background
        self._throttler = _new_throttler(config, clock)
        self._guard = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._thread_count = 0
        self._is_stopping = False
        self._task: Task | None = None

    def start(self) -> None:
        """Begin to look for work, every ``log.cleaner.backoff.ms``."""
        with self._guard:
            self._is_stopping = False
            if self._task is None and self._config.log_cleaner_threads > 0:
                period_ms = max(1, self._config.log_cleaner_backoff_ms)
                self._task = self._scheduler.schedule(
                    "kafka-log-cleaner", self._look, period_ms, period_ms
                )

    def shutdown(self) -> None:
        """End the looks and whatever is being cleaned, and wait until it has ended."""
        with self._guard:
            self._is_stopping = True
            task, self._task = self._task, None
            threads = list(self._threads)
        if task is not None:
            task.cancel()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def reconfigure(self, config: CleanerSettings) -> None:
        """
        Put other settings in force; what is being cleaned is given up, and begun again later.

        Raises:
            ConfigError: The number of threads is less than half of what it was, or more than twice
                as much, or none; nothing was changed.

        Source: Kafka ``LogCleaner.validateReconfiguration``, ``reconfigure``.
        """
        before, threads = self._config.log_cleaner_threads, config.log_cleaner_threads
        if threads < 1 or not before // 2 <= threads <= 2 * before:
            rule = f"must be at least 1, and from half to twice the {before} that there are"
            raise ConfigError([f"log.cleaner.threads={threads} {rule}"])
        was_started = self._task is not None
        self.shutdown()
        self._config = config
        rate = config.log_cleaner_io_max_bytes_per_second
        self._throttler.update_desired_rate(float("inf") if rate >= sys.float_info.max else rate)
        if was_started:
            self.start()

    @property
    def is_working(self) -> bool:
        """Whether a thread of it is there."""
        return bool(self._threads)

    # -- work --------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Have everything cleaned that is worth it; this never raises."""
        if not self._in_background:
            self.run_once()
            return
        with self._guard:
            missing = 0 if self._is_stopping else self._missing_threads()
        if missing == 0:
            return
        cleanable = self._grab()
        if cleanable is None:
            self._delete_old_segments()
            return
        with self._guard:
            if self._is_stopping:
                self.manager.done_cleaning(cleanable.log)
                return
            try:
                for number in range(missing):
                    self._start_thread(cleanable if number == 0 else None)
            except RuntimeError as error:  # The system has no thread left.
                self._report(error, "start a thread of the cleaner")
                if number == 0:  # A later look tries again.
                    self.manager.done_cleaning(cleanable.log)

    def _start_thread(self, cleanable: LogToClean | None) -> None:
        thread = threading.Thread(
            target=self._run,
            args=(cleanable,),
            name=f"kafka-log-cleaner-thread-{self._thread_count}",
            daemon=True,
        )
        thread.start()
        self._threads.add(thread)
        self._thread_count += 1

    def _missing_threads(self) -> int:
        return max(0, self._config.log_cleaner_threads - len(self._threads))

    def _run(self, cleanable: LogToClean | None) -> None:
        """Clean until nothing is worth it: the life of a thread."""
        try:
            self._clean_all(cleanable)
        finally:
            with self._guard:
                self._threads.discard(threading.current_thread())

    def run_once(self) -> int:
        """Clean everything that is worth it now, in this thread; return the number of rounds."""
        return self._clean_all(None)

    def _clean_all(self, cleanable: LogToClean | None) -> int:
        cleaner: Cleaner | None = None
        rounds = 0
        while True:
            cleanable = cleanable or self._grab()
            if cleanable is None:
                break
            cleaner = self._clean(cleaner, cleanable)
            rounds += 1
            cleanable = None
        self._delete_old_segments()
        return rounds

    def _grab(self) -> LogToClean | None:
        if self._is_stopping:
            return None
        return self.manager.grab_filthiest_compacted_log(self._set_aside)

    def _check_done(self, log: UnifiedLog) -> None:
        if self._is_stopping:
            raise LogCleaningAbortedError("the cleaner is being closed", path=log.directory)
        self.manager.check_cleaning_aborted(log)

    def _clean(self, cleaner: Cleaner | None, cleanable: LogToClean) -> Cleaner | None:
        """
        Clean one log, whatever happens.

        Args:
            cleaner: Of this thread; None: it is made.
            cleanable: In progress; not any more on return.

        Returns:
            The cleaner; None: there was no memory for it.
        """
        log = cleanable.log
        try:
            cleaner = cleaner or _new_cleaner(
                self._config,
                max(1, self._config.log_cleaner_threads),
                self._throttler,
                self._check_done,
            )
            stats = cleaner.clean(cleanable, self._clock.milliseconds())
            log.update_cleaner_offset(stats.next_first_dirty_offset)
            self.last_stats = stats
            logger.info(
                "%s: cleaned offsets %d to %d: %d of %d bytes stay",
                log.directory,
                stats.first_dirty_offset,
                stats.next_first_dirty_offset,
                stats.bytes_written,
                stats.bytes_read,
            )
        except LogCleaningAbortedError as error:
            logger.info("%s: %s", log.directory, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other logs are cleaned
            if not log.is_closed:
                self._set_aside(log, error)
        finally:
            self.manager.done_cleaning(log)
        return cleaner

    def _set_aside(self, log: UnifiedLog, error: BaseException) -> None:
        """Leave a log alone that cannot be cleaned, and tell why."""
        retry_ms = None
        if isinstance(error, DiskFullError | MemoryError):
            retry_ms = RETRY_BACKOFFS * max(1, self._config.log_cleaner_backoff_ms)
        self.manager.mark_uncleanable(log, error, retry_ms)
        self._report(error, f"clean {log.name}")

    def _delete_old_segments(self) -> None:
        """Let compacted logs delete what their settings let go."""
        if self._is_stopping:
            return
        for log in self.manager.deletable_logs():
            try:
                log.delete_old_segments()
            except ClosedError:
                continue
            except StorageError as error:
                self._report(error, f"delete old segments of {log.name}")
