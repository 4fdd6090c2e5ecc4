"""
How one partition gets on the device: which files, in which order; when the recovery point rises.

``flushing.py`` lets those who wait share a flush; here is what one flush does.

Source: Kafka ``UnifiedLog.flush``, ``LogManager``; spec 5.8.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from logstore.errors import ClosedError, LogStoreError, StorageError
from logstore.flushing import GroupCommit
from logstore.log_flush import flush_log_files
from logstore.open_files import OPEN_FILES
from logstore.partition import Partition, PeriodicWork
from logstore.scheduler import weakly
from logstore.sealed_files import FILES_DIVISOR, SealedFiles
from logstore.segment import LogSegment
from logstore.watermarks import LogOffsets

logger = logging.getLogger(__name__)

FLUSH_MS_NEVER: Final = 2**63 - 1
# By then a system has written small files by itself, as a rule, and waiting for them costs little.
FLUSH_INDEXES_DELAY_MS: Final = 30_000
# Of sealed segments: a crash has a recovery read them again, at some GiB a second.
UNFLUSHED_INDEXES_BYTES_MAX: Final = 1 << 30
# A log that was not appended to from one look to the next is idle.
IDLE_CHECK_MS: Final = 60_000
FLUSHED_TOGETHER: Final = 64  # Segments that the device is given at the same time.


class FlushedPartition(Partition):
    """
    A partition that can be made durable, on demand and from time to time.

    Source: Kafka ``UnifiedLog``.
    """

    _group_commit: GroupCommit
    _sealed_files: SealedFiles
    _is_flush_due: bool
    _is_index_flush_due: bool
    _end_at_look: int  # The log end offset when somebody last looked whether the log is idle.
    _is_given_back: bool  # What an idle log can do without, since then.

    def _begin_flushes(self) -> None:
        """Finish what a new object needs."""
        self._sealed_files = SealedFiles(self._files)
        self._is_flush_due = False
        self._is_index_flush_due = False
        self._end_at_look = -1
        self._is_given_back = False
        self._local_log.set_file_owner(self)
        self._group_commit = GroupCommit(self._flush_below, self._flusher, self._poison)

    def _periodic_work(self) -> list[PeriodicWork]:
        work = super()._periodic_work()
        flush_ms = self.config.flush_ms
        if flush_ms != FLUSH_MS_NEVER:
            work.append(PeriodicWork("kafka-log-flusher", type(self)._flush_dirty, flush_ms))
        if self._own_scheduler is not None:  # Else the store looks after all of its logs.
            work.append(PeriodicWork("idle-log", type(self).give_back_if_idle, IDLE_CHECK_MS))
        return work

    def _flush_dirty(self) -> None:
        """Flush if the recovery point has not risen for flush.ms."""
        if self._clock.milliseconds() - self.last_flush_ms >= self.config.flush_ms:
            self.flush()

    def flush(self, offset: int | None = None, *, force: bool = False) -> None:
        """
        Make everything below ``offset`` durable; concurrent calls share one flush.

        What comes behind it may be made durable, too, but does not count as such.

        **Durability**: on return everything below ``offset`` survives a power loss, and
        :attr:`recovery_point` is at least ``offset``.

        Args:
            offset: None: everything that is there.
            force: Flush an empty active segment, too, as a shutdown does.

        Raises:
            StorageError: What reached the disk is unknown; the log is poisoned.

        Source: Kafka ``UnifiedLog.flush``; spec 5.8.
        """
        self.check_writable()
        log_end_offset = self.log_end_offset
        if offset is None and not force:
            self.make_durable(log_end_offset)
            return
        offset = log_end_offset if offset is None else min(offset, log_end_offset)
        with self._closing_fast_path():
            if force:
                self._group_commit.alone(lambda: self._flush(offset + 1, offset, closing=True))
            elif offset > self.recovery_point:
                self._group_commit.wait_for(offset)

    def start_flush(self) -> None:
        """
        Let the device begin with what :meth:`flush` will wait for; promises nothing.

        Raises:
            StorageError: What reached the disk is unknown; the log is poisoned.
        """
        self.check_writable()
        active = self._local_log.active_segment
        with self._closing_fast_path(), self._poison.if_it_fails():
            self._unless_deleted([active], lambda segment: segment.start_flush())

    def make_durable(self, offset: int) -> None:
        """
        Make everything below ``offset`` durable, as :meth:`flush`; what else is there counts, too.

        Raises:
            StorageError: What reached the disk is unknown; the log is poisoned.
        """
        self._finish_flush(offset, self._flusher.flush(offset))

    def _finish_flush(self, offset: int, result: int) -> None:
        """Go on after a flush was tried in C; NativeLog has done so, too, after an append."""
        with self._closing_fast_path():
            is_done = self._group_commit.outcome(result)
        if not is_done:
            self.flush(offset)

    @contextlib.contextmanager
    def _closing_fast_path(self) -> Iterator[None]:
        """Let no append pass that does not ask whether the log is poisoned, once it is."""
        try:
            yield
        except StorageError:
            with self._lock:
                if not self._is_closed:
                    self.refresh_fast_path()
            raise

    def _flush_below(self, offset: int) -> None:
        self._flush(offset, offset)

    def _flush(self, flush_offset: int, recovery_point: int, *, closing: bool = False) -> None:
        """
        Flush the segments below ``flush_offset``, then raise the recovery point.

        The segment of the recovery point is recovered after a crash, indexes and all: those of the
        active segment need not be flushed before it is sealed or closed. Those of one that was
        sealed are flushed later: :meth:`_flush_sealed_files`.
        """
        with self._lock:
            if self._is_closed:
                return
            truncations = self._truncations.count
            start = self._watermarks.recovery_point
            active = self._local_log.active_segment
            # Who wanted more may have waited when the log was longer.
            recovery_point = min(recovery_point, self.log_end_offset)
            # From the segment that ends there: sealing it has changed its files after their flush.
            segments = self._local_log.segments.between(max(0, start - 1), max(start, flush_offset))
            later = {each for each in segments if each is active or each in self._sealed_files}
        if closing:
            later.clear()
        # Their files are open from the beginning to the end of it.
        count = min(FLUSHED_TOGETHER, max(1, OPEN_FILES.segments_max // FILES_DIVISOR))
        for first in range(0, len(segments), count):
            together = segments[first : first + count]
            with_indexes = [segment for segment in together if segment not in later]
            self._unless_deleted(with_indexes, lambda segment: segment.start_flush_of_indexes())
            flush_log_files(together, self._files, self._has)
            self._unless_deleted(with_indexes, lambda segment: segment.flush_indexes())
        if segments and segments[-1].base_offset >= start:
            self._fsync_directory()
        with self._lock:  # What was the active segment may be sealed by now: its indexes wait.
            self._local_log.release_flushed()
            # A truncation in between may have put other bytes below the offset.
            if truncations == self._truncations.count and recovery_point > self.recovery_point:
                self._watermarks.raise_recovery_point(recovery_point, self._clock.milliseconds())
                self._renew_live_offsets()
                if self._checkpoints is not None:
                    self._checkpoints.maybe_write(self._offsets_to_keep)
                if self._local_log.active_segment.base_offset < recovery_point:
                    self._flusher.allow()

    def _fsync_directory(self) -> None:
        """Make the names in the directory durable, whatever it is called by then."""
        try:
            self._files.fsync_directory(self._directory)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            with self._lock:  # It is being renamed, or was deleted.
                if not self._is_closed:
                    self._files.fsync_directory(self._directory)

    def _unless_deleted(
        self, segments: Iterable[LogSegment], action: Callable[[LogSegment], None]
    ) -> None:
        """Forgive what fails because retention or a truncation has deleted a segment."""
        for segment in segments:
            try:
                action(segment)
            except (ClosedError, StorageError):
                if self._has(segment):
                    raise

    def _has(self, segment: LogSegment) -> bool:
        """Whether a segment is still one of the log."""
        return self._local_log.segments.get(segment.base_offset) is segment

    # -- indexes of sealed segments ----------------------------------------------------------------

    def _flush_later(self, sealed: LogSegment, snapshot_offset: int, limit: int) -> None:
        """
        Have a segment that was just sealed flushed, indexes and snapshot last; the lock is held.

        Until they are, the recovery point on the disk does not rise above ``limit``.
        """
        if not self._is_flush_due:  # When rolls come faster than flushes, one does for many.
            self._is_flush_due = True
            self._scheduler.schedule("flush-log", weakly(self, type(self)._flush_sealed_segments))
        self._sealed_files.add(sealed, snapshot_offset, limit)
        is_much = self._sealed_files.bytes_since_flush >= UNFLUSHED_INDEXES_BYTES_MAX
        if is_much or not self._is_index_flush_due:
            self._is_index_flush_due = True
            action = weakly(self, type(self)._flush_sealed_files)
            delay_ms = 0 if is_much else FLUSH_INDEXES_DELAY_MS
            self._scheduler.schedule("flush-indexes", action, delay_ms)

    def _flush_sealed_segments(self) -> None:
        """Flush all that is sealed by now."""
        self._is_flush_due = False
        self.flush(self._local_log.active_segment.base_offset)

    def _flush_sealed_files(self) -> None:
        """
        Make indexes of sealed segments, and producer snapshots, durable.

        Until then a crash makes a recovery longer: the recovery point on the disk, unlike
        :attr:`recovery_point`, does not rise above the first of these segments.

        Raises:
            StorageError: What reached the disk is unknown; the log is poisoned.

        Source: decision 0049.
        """
        self.check_writable()
        self._is_index_flush_due = False  # First: what is sealed from here on needs another one.
        with self._closing_fast_path(), self._poison.if_it_fails():
            self._sealed_files.flush(
                self._directory,
                self._has,
                self.producer_state.fetch_snapshot,
            )

    def _offsets_to_keep(self) -> LogOffsets:
        """Return the offsets that a recovery may begin with; the lock is held."""
        offsets = self._watermarks.snapshot()
        limit = self._sealed_files.limit(offsets.recovery_point)
        return offsets._replace(recovery_point=limit)

    # -- what is given back while it is not needed -------------------------------------------------

    def give_back_if_idle(self) -> None:
        """
        Give back memory and room ahead if nothing was appended since the last call.

        Never waits for the log, nor for an append: then it is not idle.

        Raises:
            StorageError: What a failed append has left behind the end could not be cut off.

        Source: DESIGN.md D12.
        """
        log_end_offset = self._writer.log_end_offset
        if log_end_offset != self._end_at_look:
            self._end_at_look, self._is_given_back = log_end_offset, False
            return
        if self._is_given_back or not self._lock.acquire(blocking=False):
            return
        try:
            if self._is_closed or self._depth > 0:
                return
            if self._writer.try_enter_exclusive():
                try:
                    self._writer.trim()
                    self._is_given_back = True
                finally:
                    self._writer.leave_exclusive()
        finally:
            self._lock.release()

    def start_giving_up(self, segment: LogSegment) -> None:
        """Let the device begin with what :meth:`give_up_files` will wait for."""
        if not self._is_to_flush(segment):
            return
        try:
            self._group_commit.if_free(segment.start_flush)
        except LogStoreError as error:
            self._say_it_failed(error)

    def give_up_files(self, segment: LogSegment) -> bool:
        """
        Close a segment's files until they are needed again; False: something goes on in the log.

        What is not flushed is flushed first: an error of the device is told to a descriptor that
        was open when the write was made. If it fails the log is poisoned, and the files are closed.

        Never waits for the log, nor for an append: its thread may wait for the caller's.

        Source: DESIGN.md D12.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            # If it is this thread that changes the log it needs the files, further up.
            return self._depth == 0 and self._give_up_files(segment)
        except LogStoreError as error:
            logger.warning("%s: its files stay open: %s", segment.log_path, error)
            return False
        finally:
            self._lock.release()

    def _give_up_files(self, segment: LogSegment) -> bool:
        """Do so under the log's lock."""
        if self._is_forked():  # The child of a writer reads files that it opened itself.
            segment.release()
            return not segment.is_attached
        if segment.is_attached:
            if not self._writer.try_enter_exclusive():
                return False
            try:
                self._writer.trim()
                self._local_log.detach()
            finally:
                self._writer.leave_exclusive()
        if self._is_to_flush(segment):
            try:
                if not self._group_commit.if_free(lambda: segment.flush(with_indexes=False)):
                    return False
            except StorageError as error:
                self._say_it_failed(error)
        if self._poison.cause is not None and self._writer.try_enter_exclusive():
            try:
                self.refresh_fast_path()  # Which does not ask whether the log is poisoned.
            finally:
                self._writer.leave_exclusive()
        self.forget_places()
        segment.release()
        return True

    def _is_to_flush(self, segment: LogSegment) -> bool:
        """Whether a segment is open and has bytes that may not be on the device."""
        if self._is_closed or self._is_read_only or self._poison.cause is not None:
            return False
        if self._is_forked():
            return False
        segments = self._local_log.segments
        if not segment.has_open_log or segments.get(segment.base_offset) is not segment:
            return False
        following = segments.higher(segment.base_offset)
        end = self.log_end_offset if following is None else following.base_offset
        return end > self.recovery_point

    def _say_it_failed(self, error: LogStoreError) -> None:
        """Who needs files has nothing to do with it; whoever uses this log next is told."""
        logger.error("%s: %s; close the log and open it again", self._directory, error)

    @property
    def last_flush_ms(self) -> int:
        """When the recovery point last rose, in milliseconds since the epoch."""
        return self._flusher.flushed_ms
