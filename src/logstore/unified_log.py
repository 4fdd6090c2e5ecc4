"""
One partition as a broker sees it: append, roll, flush, read, truncate, delete.

===========================  =====================================================================
``local_log.py``             segments: append, roll, read, truncate, delete
``partition.py``             the lock, offsets, settings, listeners
``partition_flush.py``       what a flush does, and when the recovery point rises
``partition_watermarks.py``  how high watermark, last stable offset and log start move
``appending.py``             one append, step by step (spec 5.3); roll
``cleanable_log.py``         what the cleaner does to a log: segments replaced by others
``partition_retention.py``   what goes by log start, size and age (spec 5.11)
this module                  the other operations of Kafka's ``UnifiedLog``
``log.py``                   what a Python program uses: records in, records out
===========================  =====================================================================

Appends of single records take a path in C that never comes here, as long as nothing needs to know
of each append (see :meth:`Partition.refresh_fast_path`).

Source: Kafka ``UnifiedLog``; spec section 5.
"""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from logstore.checkpoint import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA
from logstore.errors import ClosedError, StorageError
from logstore.file_records import FetchDataInfo
from logstore.partition_retention import RetainingLog
from logstore.producer_rebuild import rebuild_producer_state
from logstore.segment import LogSegment, TimestampAndOffset
from logstore.timestamp_type import NO_TIMESTAMP

if TYPE_CHECKING:
    from logstore.files import Files
    from logstore.index import AbortedTxn

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL_TIMESTAMP: Final = -4
LATEST_TIERED_TIMESTAMP: Final = -5


class UnifiedLog(RetainingLog):
    """
    One partition log: what Kafka's ``UnifiedLog`` does, without tiered storage.

    **Thread rule**: any thread may call anything. Changes take the log's lock; reads do not.

    Source: Kafka ``UnifiedLog``.
    """

    # -- read --------------------------------------------------------------------------------------

    def fetch(
        self,
        start: int,
        *,
        max_bytes: int,
        isolation: str = "read_committed",
        min_one_message: bool = True,
    ) -> FetchDataInfo:
        """
        Return the range of the log that begins with the batch of ``start``.

        Args:
            start: The first offset wanted; its batch may begin before it.
            max_bytes: Length of the range at most, unless ``min_one_message`` needs more.
            isolation: ``read_committed`` ends at the last stable offset and tells the aborted
                transactions, ``read_uncommitted`` ends at the high watermark, ``log_end`` at the
                log end.
            min_one_message: The first batch is whole even if it is larger than ``max_bytes``.

        Raises:
            OffsetOutOfRangeError: ``start`` is outside [log start, log end].

        Source: Kafka ``UnifiedLog.read``; spec 5.6.
        """
        if max_bytes < 0:
            raise ValueError(f"max_bytes {max_bytes} is negative; give 0 or more")
        self.check_open()
        self._check_log_start(start)
        if isolation == "read_committed":
            # First, as in Kafka: knowing its place may settle the first unstable offset.
            self._placed(self._watermarks.high_watermark_metadata)
            watermark = self._watermarks.last_stable_offset_metadata
        elif isolation == "read_uncommitted":
            watermark = self._watermarks.high_watermark_metadata
        elif isolation == "log_end":
            watermark = self.log_end_offset_metadata
        else:
            raise ValueError(
                f"isolation {isolation!r} is not one of read_committed, read_uncommitted, log_end"
            )
        placed = self._placed(watermark)
        max_offset = placed._replace(message_offset=watermark.message_offset)
        while True:
            segments = self._local_log.segments
            truncations = None if self._view is None else self.truncations
            try:
                found = self.undisturbed(
                    lambda: self._local_log.read(
                        start,
                        max_bytes,
                        max_offset,
                        min_one_message=min_one_message,
                        include_aborted=isolation == "read_committed",
                    )
                )
                if truncations is None or truncations == self.truncations:
                    break  # Else the place may be one of an older file of that name.
            except ClosedError:  # Of a segment that was deleted meanwhile.
                self.check_open()
                self._check_log_start(start)
                if segments is self._local_log.segments:
                    raise
        if start == watermark.message_offset:
            found = found._replace(fetch_offset_metadata=placed)
        offsets = self.offsets
        return found._replace(
            high_watermark=offsets.high_watermark,
            last_stable_offset=offsets.last_stable_offset,
            log_start_offset=offsets.log_start_offset,
            log_end_offset=offsets.log_end_offset,
        )

    def reading_end(self, isolation: str) -> int:
        """Return the offset up to which a reader may read."""
        self.check_open()
        if isolation == "read_committed":
            return self._watermarks.last_stable_offset
        if isolation == "read_uncommitted":
            return self._watermarks.high_watermark
        assert isolation == "log_end"
        return self.log_end_offset

    def reading_segments(self, offset: int) -> tuple[LogSegment, ...]:
        """Return the segments from the one that may hold ``offset`` on, ascending."""
        segments = self._local_log.segments
        first = segments.floor(offset)
        if first is None:
            return tuple(segments)
        return (first, *segments.above(first.base_offset))

    def collect_aborted_transactions(
        self, start_offset: int, upper_bound_offset: int
    ) -> list[AbortedTxn]:
        """Return the aborted transactions that touch ``[start_offset, upper_bound_offset)``."""
        return self._local_log.collect_aborted_transactions(
            self.log_start_offset, start_offset, upper_bound_offset
        )

    def fetch_offset_by_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        """
        Return the first record at or after a time, or what a special timestamp asks for.

        ==  ==================================================================
        -1  the log end, with the latest epoch
        -2  the log start (-4 likewise: there is no tiered storage)
        -3  the first record with the largest timestamp
        -5  what is tiered: offset -1
        ==  ==================================================================

        Source: Kafka ``fetchOffsetByTimestamp``; spec 5.7.
        """
        self.check_open()
        if timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
            start = self.log_start_offset
            earliest = self.leader_epochs.earliest_entry
            is_known = earliest is not None and earliest.start_offset <= start
            epoch = earliest.epoch if earliest is not None and is_known else None
            return TimestampAndOffset(NO_TIMESTAMP, start, epoch)
        if timestamp == LATEST_TIMESTAMP:
            latest = self.leader_epochs.latest_epoch
            return TimestampAndOffset(NO_TIMESTAMP, self.log_end_offset, latest)
        if timestamp == LATEST_TIERED_TIMESTAMP:
            return TimestampAndOffset(NO_TIMESTAMP, -1, -1)
        return self.undisturbed(lambda: self._find_timestamp(timestamp))

    def _find_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        segments = self._local_log.segments
        if timestamp == MAX_TIMESTAMP:
            largest = max(
                segments, key=lambda each: each.max_timestamp_and_offset_so_far().timestamp
            )
            return largest.offset_of_max_timestamp()
        for segment in segments:
            if segment.largest_timestamp() >= timestamp:
                return segment.find_offset_by_timestamp(timestamp, self.log_start_offset)
        return None

    # -- leader epochs -----------------------------------------------------------------------------

    def assign_epoch_start_offset(self, leader_epoch: int, start_offset: int) -> None:
        """Note that a leader epoch begins at an offset; durable on return."""
        with self.changing():
            self.leader_epochs.assign(leader_epoch, start_offset)
            self.refresh_fast_path()

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int] | None:
        """
        Return (epoch, end offset) of the largest epoch <= ``leader_epoch``, None if not known.

        Source: Kafka ``UnifiedLog.endOffsetForEpoch``; spec 5.10.
        """
        found_epoch, found_offset = self.leader_epochs.end_offset_for(
            leader_epoch, self.log_end_offset
        )
        if found_offset < 0:
            return None
        return found_epoch, found_offset

    # -- producers ---------------------------------------------------------------------------------

    def take_producer_snapshot(self) -> None:
        """Write the producer state of the log end to a snapshot file."""
        with self.changing():
            self.sync_producer_state()
            self.producer_state.take_snapshot()

    def remove_expired_producers(self, now_ms: int | None = None) -> None:
        """Forget producers that have not written for producer.id.expiration.ms."""
        with self.changing():
            self.producer_state.remove_expired_producers(
                self._clock.milliseconds() if now_ms is None else now_ms
            )

    def has_late_transaction(self, now_ms: int | None = None) -> bool:
        """Whether a transaction is open for longer than it may be."""
        with self._lock:
            return self.producer_state.has_late_transaction(
                self._clock.milliseconds() if now_ms is None else now_ms
            )

    # -- truncate ----------------------------------------------------------------------------------

    def truncate_to(self, target_offset: int) -> bool:
        """
        Remove everything from ``target_offset`` on; return whether the log had any of it.

        Whole batches go: a target inside a batch removes all of it, and the log end is the target.

        **Durability**: durable on return. A crash in between leaves the log as before or shorter,
        and recovers it from a recovery point that was lowered first.

        Raises:
            StorageError: The log is as before; or, if files have changed already, it takes no
                changes until it is opened again, and readers see what lies below the target.

        Source: Kafka ``UnifiedLog.truncateTo``; spec 5.12.
        """
        target_offset = operator.index(target_offset)  # Else it would fail halfway.
        if target_offset < 0:
            raise ValueError(f"cannot truncate to the negative offset {target_offset}")
        with self.changing():
            if target_offset >= self.log_end_offset:
                # An epoch assigned at the end without records may be another leader's.
                self.leader_epochs.truncate_from_end(self.log_end_offset)
                self.refresh_fast_path()
                return False
            if self._local_log.segments.first.base_offset > target_offset:
                self._truncate_fully_and_start_at(target_offset, None)
                return True
            with self._truncating(self._first_to_go(target_offset)):
                self._lower_recovery_point(target_offset)
                try:
                    deleted = self._local_log.truncate_to(target_offset)
                finally:  # Also if that failed: what is above the log end must not be served.
                    self._watermarks.truncated(
                        min(self._local_log.log_end_offset, self.log_start_offset)
                    )
                with self._poison.if_it_fails():
                    self._delete_producer_snapshots(deleted)
                    self.leader_epochs.truncate_from_end(target_offset)
                    self._finish_truncation()
            return True

    def truncate_fully_and_start_at(
        self, new_offset: int, log_start_offset: int | None = None
    ) -> None:
        """
        Remove everything; the log begins and ends at ``new_offset``.

        Args:
            new_offset: Where the next record goes.
            log_start_offset: If given, the log start; at most ``new_offset``.

        **Durability**: durable on return.

        Raises:
            StorageError: The log is as before; or, if files have changed already, it takes no
                changes until it is opened again.

        Source: Kafka ``truncateFullyAndStartAt``; spec 5.12.
        """
        new_offset = operator.index(new_offset)
        if new_offset < 0:
            raise ValueError(f"cannot start at the negative offset {new_offset}")
        if log_start_offset is not None and not 0 <= log_start_offset <= new_offset:
            raise ValueError(f"log start {log_start_offset} is not in [0, {new_offset}]")
        with self.changing():
            self._truncate_fully_and_start_at(new_offset, log_start_offset)

    def _truncate_fully_and_start_at(self, new_offset: int, log_start_offset: int | None) -> None:
        with self._truncating(min(new_offset, self.log_start_offset)):
            self._lower_recovery_point(min(new_offset, self.log_start_offset))
            self._local_log.truncate_fully_and_start_at(new_offset)
            with self._poison.if_it_fails():
                self._watermarks.restart(
                    new_offset if log_start_offset is None else log_start_offset
                )
                self.leader_epochs.clear_and_flush()
                self.producer_state.truncate_fully_and_start_at(new_offset)
                self._finish_truncation()

    def _first_to_go(self, target_offset: int) -> int:
        """Return the first offset that a truncation removes: whole batches go."""
        segment = self._local_log.segments.floor(target_offset)
        found = None if segment is None else segment.translate_offset(target_offset)
        return target_offset if found is None else min(target_offset, found.offset)

    @contextlib.contextmanager
    def _truncating(self, first_offset: int) -> Iterator[None]:
        """Tell readers that what they meet from an offset on may be on its way out."""
        self._renew_live_offsets()
        with self._truncations.under_way(first_offset):
            self.forget_places()
            yield

    def _lower_recovery_point(self, offset: int) -> None:
        """Make a recovery point durable that a truncation cannot fall below."""
        if self._checkpoints is not None and self.recovery_point > offset:
            offsets = self._offsets_to_keep()
            limit = min(offsets.recovery_point, offset)
            self._checkpoints.write(offsets._replace(recovery_point=limit))

    def _finish_truncation(self) -> None:
        """Bring producer state and watermarks to a log that has become shorter."""
        rebuild_producer_state(
            self.producer_state,
            self._local_log.segments,
            self.log_start_offset,
            self.log_end_offset,
            self._clock.milliseconds(),
            reload_from_clean_shutdown=False,
        )
        if self.high_watermark >= self.log_end_offset:
            self._set_high_watermark(self.log_end_offset_metadata)
        self._show_active_segment()
        self._files.fsync_directory(self._directory)
        active = self._local_log.active_segment
        if self._cleaner_offset is not None and self._cleaner_offset > active.base_offset:
            self.update_cleaner_offset(active.base_offset)
        self._write_checkpoints()
        self.refresh_fast_path()

    # -- close, rename, delete ---------------------------------------------------------------------

    def close(self) -> None:
        """
        Flush everything, cut preallocated space, mark the log clean; a second call does nothing.

        **Durability**: on return everything survives a power loss, and the next open scans nothing.

        Raises:
            StorageError: Something could not be flushed; the log is closed, but not clean.

        Source: Kafka ``UnifiedLog.flush(true)`` and ``close``; spec 5.13.
        """
        if self._is_closed:
            return
        if self._is_forked() or self._is_read_only:
            self.abandon()
            return
        is_clean = False
        try:
            self.flush_metadata()
            self.flush(force=True)
            self._flush_sealed_files()
            # In turn: a failure that another thread's flush is told of is not told to this one's.
            is_clean = self._group_commit.alone(self._close_files)
        finally:
            self._leave(is_clean=is_clean)

    def _close_files(self) -> bool:
        """Close everything in order; False: another thread was first."""
        with self._lock, self._writer.exclusive():
            if self._is_closed:
                return False
            # What came after the flush, which did not hold the lock.
            self._flush(self.log_end_offset + 1, self.log_end_offset, closing=True)
            self._flush_sealed_files()
            self.sync_producer_state()
            self.producer_state.take_snapshot()
            self.leader_epochs.flush()
            self._note_append_times()
            offsets = self.offsets
            for segment in self._local_log.segments:
                segment.close()
            if self._checkpoints is not None:
                self._checkpoints.write_at_close(offsets)
            self._stop()
            return True

    def abandon(self) -> None:
        """
        Drop the log as a process that is killed does: nothing is flushed, cut or marked clean.

        Source: Kafka ``UnifiedLog.closeHandlers``.
        """
        self._leave(is_clean=False)

    def _leave(self, *, is_clean: bool) -> None:
        is_forked = self._is_forked()
        if not self._is_closed:
            with contextlib.nullcontext() if is_forked else self._lock:
                self._stop()
                for segment in self._local_log.segments:
                    with contextlib.suppress(ClosedError, StorageError):
                        segment.close_handlers()
        if not is_forked:
            with contextlib.suppress(StorageError):
                self._writer.trim()  # Who still holds the log keeps no memory by it.
        live, self._live = self._live, None
        if live is not None and not is_forked:
            live.close(closed=is_clean)
        view, self._view = self._view, None
        if view is not None:
            view.close()
        checkpoints, self._checkpoints = self._checkpoints, None
        if checkpoints is not None and not is_forked:
            checkpoints.close(clean=is_clean)

    def _stop(self) -> None:
        """End the C append path and background work."""
        self._is_closed = True
        self._bind_writer(None)
        self.forget_places()
        for reader in list(self._readers or ()):
            reader.discard()
        if self._is_forked():
            return
        for task in self._tasks:
            task.cancel()
        if self._own_scheduler is not None:
            self._own_scheduler.shutdown(wait=False)

    def rename(self, name: str) -> None:
        """
        Give the directory another name beside its old one; durable on return.

        Source: Kafka ``UnifiedLog.renameDir``.
        """
        if not name or os.path.basename(name) != name:
            raise ValueError(f"{name!r} is not the name of a directory")
        with self.changing():
            self.flush_metadata()
            parent = os.path.dirname(os.path.abspath(self._directory))
            directory = os.path.join(parent, name)
            self._files.rename(self._directory, directory)
            self._files.fsync_directory(parent)
            self._directory = directory
            self._local_log.update_directory(directory)
            self.producer_state.update_directory(directory)
            self.leader_epochs.update_path(os.path.join(directory, LEADER_EPOCH_CHECKPOINT))
            self._partition_metadata.update_path(os.path.join(directory, PARTITION_METADATA))
            if self._checkpoints is not None:
                self._checkpoints.update_directory(directory)

    def delete(self) -> None:
        """
        Delete the log with everything in its directory, its quarantine included, at once.

        Source: Kafka ``UnifiedLog.delete``.
        """
        with self.changing():
            self._stop()
            self.leader_epochs.clear()
            for segment in self._local_log.segments:
                segment.delete_if_exists()
            delete_tree(self._directory, self._files)
            if self._checkpoints is not None:
                self._checkpoints.forget()
        self._leave(is_clean=True)


def delete_tree(directory: str, files: Files) -> None:
    """Delete a directory with everything in it."""
    for name in files.listdir(directory):
        path = os.path.join(directory, name)
        if files.is_directory(path):
            delete_tree(path, files)
        else:
            files.unlink(path, missing_ok=True)
    files.rmdir(directory)
