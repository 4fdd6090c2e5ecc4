"""
One segment of a log: a ``.log`` file and its indexes, and what changes them.

=======================  =================================================================
``segment_files.py``     the four files under their names
``segment_reading.py``   what any thread may ask: sizes, offsets, timestamps
``attached_segment.py``  the native writer has it, and rolls to the next one
this module              append, seal, recover, truncate, flush, close, delete
=======================  =================================================================

Source: Kafka ``LogSegment``; spec section 4.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NamedTuple

from logstore.attached_segment import AttachableSegment
from logstore.clock import SYSTEM_CLOCK, Clock
from logstore.entries import largest_timestamp
from logstore.errors import (
    ClosedError,
    CorruptRecordError,
    SegmentOffsetOverflowError,
    StorageError,
)
from logstore.files import REAL_FILES, FileHandle, Files
from logstore.index import TimestampOffset
from logstore.open_files import OPEN_FILES
from logstore.recovery import StepBuffer, recover_segment
from logstore.segment_files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_BYTES_MAX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRUNCATED_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_file_name,
)
from logstore.segment_reading import OffsetLocation, TimestampAndOffset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np
    import numpy.typing as npt

    from logstore._native import Buffer, PatchedBatch
    from logstore.config import LogConfig
    from logstore.leader_epoch import LeaderEpochCache
    from logstore.producer_state import ProducerStateManager

__all__ = [
    "CLEANED_SUFFIX",
    "DELETED_SUFFIX",
    "INDEX_SUFFIX",
    "LOG_SUFFIX",
    "SEGMENT_BYTES_MAX",
    "SEGMENT_SUFFIXES",
    "SWAP_SUFFIX",
    "TIME_INDEX_SUFFIX",
    "TRUNCATED_SUFFIX",
    "TXN_INDEX_SUFFIX",
    "LogSegment",
    "OffsetLocation",
    "TimestampAndOffset",
    "segment_file_name",
]


class UnflushedLog(NamedTuple):
    """A ``.log`` file that is leased to be made durable."""

    segment: LogSegment
    handle: FileHandle
    change_count: int
    is_attached: bool


class LogSegment(AttachableSegment):
    """
    One ``.log`` file and its indexes: the unit of roll, retention and compaction.

    Only the active (last) segment of a log is written.

    Invariants:
        * every byte below ``size_bytes`` belongs to a complete entry;
        * offsets lie in ``[base_offset, base_offset + 2^31 - 1]``;
        * an index entry is a hint: it is checked against the batch it names before it is used.

    **Thread rule**: changes under the log's lock; any thread may read.

    Args:
        directory: Where the files are, or will be.
        base_offset: A lower bound of the offsets here; names the files.
        config: ``segment.bytes`` (with preallocate), ``segment.index.bytes``,
            ``index.interval.bytes`` and the roll jitter are fixed here for the segment's life.
        file_suffix: ``.cleaned``, ``.swap`` or nothing.
        file_already_exists: False creates the ``.log`` file if it is missing.
        is_fresh: The ``.log`` file is missing, and made later: by :meth:`make`, or by the roll of
            the segment before. Indexes that are there are no segment's, and go when this one's are
            made.
        size_bytes: Its size, if the caller has looked already.
        roll_jitter_ms: How much earlier than segment.ms to roll.
        writable: False opens every file read-only.

    Source: Kafka ``LogSegment``.
    """

    __slots__ = ("_clock", "_flushed_change_count")

    def __init__(
        self,
        directory: str | os.PathLike[str],
        base_offset: int,
        config: LogConfig,
        *,
        files: Files = REAL_FILES,
        clock: Clock = SYSTEM_CLOCK,
        file_suffix: str = "",
        file_already_exists: bool = False,
        size_bytes: int | None = None,
        roll_jitter_ms: int = 0,
        writable: bool = True,
        is_fresh: bool = False,
    ) -> None:
        assert size_bytes is None or file_already_exists
        assert not is_fresh or not file_already_exists
        super().__init__(
            directory,
            base_offset,
            config,
            files=files,
            clock=clock,
            file_suffix=file_suffix,
            are_indexes_sure=not file_already_exists,
            roll_jitter_ms=roll_jitter_ms,
            writable=writable,
            is_fresh=is_fresh,
        )
        self._clock = clock
        self._flushed_change_count = -1  # What it was before a flush of everything; -1: never.
        if is_fresh:
            size_bytes = 0
        elif not (file_already_exists or files.exists(self.log_path)):
            self._make(config, os.O_RDWR | os.O_CREAT)
            size_bytes = 0
        self._size_bytes = files.file_size(self.log_path) if size_bytes is None else size_bytes
        if self._size_bytes > SEGMENT_BYTES_MAX:
            raise CorruptRecordError(
                f"a segment of {self._size_bytes} bytes is over {SEGMENT_BYTES_MAX};"
                " move it out of the directory",
                path=self.log_path,
            )

    def make(self, config: LogConfig) -> None:
        """
        Make the ``.log`` file of a fresh segment.

        Raises:
            StorageError: One is there (EEXIST), or none can be made.
        """
        self._make(config, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        if self._files.exists(self._path(TXN_INDEX_SUFFIX)):
            self._files.unlink(self._path(TXN_INDEX_SUFFIX))

    def _make(self, config: LogConfig, flags: int) -> None:
        handle = self._open(flags)
        if config.preallocate:
            with handle.lease() as fd:
                self._files.ftruncate(fd, config.segment_bytes)

    def __repr__(self) -> str:
        return f"LogSegment({self.log_path!r}, size_bytes={self.size_bytes})"

    def resize_indexes(self) -> None:
        """Give both indexes room for appends; makes them if they are not there yet."""
        self.offset_index.resize(self.offset_index.max_index_size)
        self.time_index.resize(self.time_index.max_index_size)

    # -- append and roll ---------------------------------------------------------------------------

    def should_roll(
        self,
        *,
        max_segment_ms: int,
        max_segment_bytes: int,
        max_timestamp: int,
        last_offset: int,
        append_bytes: int,
        now_ms: int,
    ) -> bool:
        """
        Return whether an append must go to a new segment.

        Time counts from the first batch's timestamp to ``max_timestamp``, the append's; from the
        segment's creation to now if that batch has no timestamp.

        Source: Kafka ``LogSegment.shouldRoll``; spec 4.3.
        """
        size_bytes = self.size_bytes
        if size_bytes > max_segment_bytes - append_bytes:
            return True
        if size_bytes > 0:
            first_timestamp = self.rolling_based_timestamp()
            if first_timestamp is not None and first_timestamp >= 0:
                waited_ms = max_timestamp - first_timestamp
            else:
                waited_ms = now_ms - self.created_ms
            if waited_ms > max_segment_ms - self.roll_jitter_ms:
                return True
        self.take_index_entries()
        if self.offset_index.is_full or self.time_index.is_full:
            return True
        return not self.can_append_offset(last_offset)

    def append(self, batches: Buffer | PatchedBatch, headers: npt.NDArray[np.void]) -> int:
        """
        Write complete batches at the end, make their index entries, and return their position.

        The writer must be attached. The log end offset does not move: publishing it is the
        log's.

        Raises:
            SegmentOffsetOverflowError: An offset is too far above the base offset.
            StorageError: The segment is as before.

        Source: Kafka ``LogSegment.append``; spec 4.2.
        """
        assert self._writer is not None
        assert len(headers) > 0
        last_offset = int(headers["last_offset"].max())
        if not self.can_append_offset(last_offset):
            raise SegmentOffsetOverflowError(
                f"offset {last_offset} is not within 2^31 - 1 of base offset {self.base_offset};"
                " roll the log first",
                path=self.log_path,
                offset=last_offset,
            )
        return self._writer.append_encoded(batches, headers, publish=False)

    def append_pieces(self, pieces: Iterable[tuple[Buffer, npt.NDArray[np.void]]]) -> None:
        """
        Do what :meth:`append` does with batches that come in pieces: all of them, or nothing.

        The size moves with the last piece. What makes the pieces may raise to end it all.
        """
        assert self._writer is not None
        self._writer.append_pieces(pieces)

    def append_sealed(self, data: Buffer, offset_entries: bytes, time_entries: bytes) -> None:
        """
        Write batches and their index entries to a segment that is no log's yet.

        Raises:
            StorageError: The segment is of no use any more.
        """
        assert self._writer is None
        assert not self.has_suffix("")
        self._change_count += 1
        with self.handle.lease() as fd:
            self._size_bytes += self._files.pwrite(fd, data, self._size_bytes)
        self.append_index_entries(offset_entries, time_entries)

    def on_become_inactive(self) -> None:
        """
        Seal the segment: last time index entry, indexes and file cut to what is in them.

        Source: Kafka ``onBecomeInactiveSegment``; spec 4.4.
        """
        self.detach()
        self._change_count += 1
        self._append_last_time_entry()
        self.offset_index.trim_to_valid_size()
        self.time_index.trim_to_valid_size()
        self._trim(self._size_bytes)

    def _append_last_time_entry(self) -> None:
        largest = self.max_timestamp_and_offset_so_far()
        self.time_index.maybe_append(largest.timestamp, largest.offset, skip_full_check=True)

    # -- recover and truncate ----------------------------------------------------------------------

    def recover(
        self,
        producer_state: ProducerStateManager,
        leader_epochs: LeaderEpochCache | None = None,
        *,
        before_cut: Callable[[LogSegment, int], None] | None = None,
        buffer: StepBuffer | None = None,
        unflushed_from: int | None = None,
    ) -> int:
        """
        Rebuild the indexes from the ``.log`` file, cut it after its valid prefix.

        Producer state and leader epochs learn what is there.

        Args:
            producer_state: State of everything before this segment.
            leader_epochs: Its cache, or None.
            before_cut: Called with the segment and the position from which on it will be cut.
            buffer: To read into, if there is one already.
            unflushed_from: Batches from this offset on may be torn; None: all were flushed.

        Returns:
            The number of bytes that were cut.

        Raises:
            SegmentOffsetOverflowError: An offset does not fit; the segment must be split.

        **Cost**: one pass, without more space than the indexes need.

        Source: Kafka ``LogSegment.recover``; spec 4.7.
        """
        assert self._writer is None
        self._change_count += 1
        self._are_indexes_sure = True
        valid_bytes, largest = recover_segment(
            self, producer_state, leader_epochs, buffer, unflushed_from
        )
        if before_cut is not None and valid_bytes < self._size_bytes:
            before_cut(self, valid_bytes)
        return self._set_recovered(valid_bytes, largest)

    def _set_recovered(self, size_bytes: int, largest: TimestampOffset) -> int:
        cut_bytes = self._size_bytes - size_bytes
        assert cut_bytes >= 0
        if cut_bytes > 0:
            self._cut(size_bytes, in_place=True)
        self._size_bytes = size_bytes
        self._max_timestamp_and_offset = largest
        self._rolling_based_timestamp = None
        return cut_bytes

    def prepare_truncation(self, offset: int) -> FileHandle | None:
        """
        Copy what :meth:`truncate_to` will keep of the ``.log`` file, changing nothing yet.

        Returns:
            The copy, to be given to :meth:`truncate_to` or :meth:`forget_truncation`; None if
            nothing is cut, or if it can be cut in place and has to be, for want of space.

        Raises:
            StorageError: Nothing was changed.

        Source: DESIGN.md D6.
        """
        found = self.translate_offset(offset)
        return None if found is None else self._kept_prefix(found.position)

    def forget_truncation(self, kept: FileHandle | None) -> None:
        """Delete a copy that :meth:`prepare_truncation` has made and nothing came of."""
        self._discard(kept)

    def truncate_to(
        self, offset: int, *, in_place: bool = False, kept: FileHandle | None = None
    ) -> int:
        """
        Remove every batch that has an offset >= ``offset`` and return the number of bytes cut.

        **Durability**: the cut is not undone by a crash after the return; before it, the segment is
        whole or cut.

        Args:
            offset: The first offset that must not stay.
            in_place: Nobody can hold bytes of this file: nothing of it was published.
            kept: What :meth:`prepare_truncation` has made.

        Source: Kafka ``LogSegment.truncateTo``; spec 4.8, DESIGN.md D6.
        """
        assert self._writer is None
        self._change_count += 1
        found = self.translate_offset(offset)
        largest = self.max_timestamp_and_offset_so_far()
        cut_bytes = 0
        if found is not None:
            cut_bytes = self._size_bytes - found.position
            self._size_bytes = found.position  # First: if the cut fails, it may have been made.
            if kept is None:
                self._cut(found.position, in_place=in_place)
            else:
                self._put_in_place(kept)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        if self._aborted is not None:
            self._aborted.truncate_to(offset)
        self._unwritten_aborted = tuple(
            aborted for aborted in self._unwritten_aborted if aborted.last_offset < offset
        )
        self.resize_indexes()
        if self._size_bytes == 0:
            self.created_ms = self._clock.milliseconds()
            self._rolling_based_timestamp = None
        self.bytes_since_last_index_entry = 0
        if largest.timestamp >= 0:
            self._max_timestamp_and_offset = self._read_largest_timestamp()
        return cut_bytes

    def _read_largest_timestamp(self) -> TimestampOffset:
        known = self.time_index.last_entry
        return largest_timestamp(self.headers_from(known.offset), known)

    # -- flush, close, delete ----------------------------------------------------------------------

    def lease_unflushed(self) -> UnflushedLog | None:
        """
        Lease the ``.log`` file for whoever makes it durable with others; None: it is.

        Then come :meth:`note_flushed`, if that worked, and the end of the lease.

        Raises:
            ClosedError: The segment was closed or deleted.
            StorageError: The file cannot be opened.
        """
        change_count, is_attached = self._change_count, self._writer is not None
        if change_count == self._flushed_change_count:
            return None
        handle = self.handle
        handle.acquire()
        return UnflushedLog(self, handle, change_count, is_attached)

    def note_flushed(self, log: UnflushedLog) -> None:
        """Note that the ``.log`` file is durable as it was when it was leased."""
        if not log.is_attached:  # A writer changes files without saying so here.
            self._flushed_change_count = log.change_count

    @property
    def is_flushed(self) -> bool:
        """Whether the ``.log`` file is known to be durable as it is."""
        return self._writer is None and self._change_count == self._flushed_change_count

    def start_flush(self) -> None:
        """Let the device begin with what :meth:`flush` will wait for of the ``.log`` file."""
        if self._change_count != self._flushed_change_count:
            with self.handle.lease() as fd:
                self._files.start_writeback(fd)

    def start_flush_of_indexes(self) -> None:
        """Let the device begin with what :meth:`flush_indexes` will wait for."""
        self.offset_index.start_flush()
        self.time_index.start_flush()

    def flush(self, *, with_indexes: bool = True) -> None:
        """
        Make the segment durable: the log file first, then its indexes.

        A sealed segment that has not changed since it was flushed is left alone: the device has
        it, and would be waited for again.

        Args:
            with_indexes: False: the segment is recovered after a crash, which rebuilds them, until
                :meth:`flush_indexes` was called.

        Source: Kafka ``LogSegment.flush``; spec 4.9.
        """
        unflushed = self.lease_unflushed()
        if unflushed is not None:
            try:
                self._files.fdatasync(unflushed.handle.fd)
            finally:
                unflushed.handle.release()
            self.note_flushed(unflushed)
        if with_indexes:
            self.flush_indexes()

    def flush_indexes(self) -> None:
        """Make the indexes durable; nothing happens if they are."""
        OPEN_FILES.with_room(self._flush_indexes)

    def _flush_indexes(self) -> None:
        self._write_aborted()
        if (writer := self._writer) is not None:
            writer.settle_entries()
        self.offset_index.flush()
        self.time_index.flush()
        self.txn_index.flush()

    def close(self) -> None:
        """Flush, write the last time index entry, cut preallocated space, and close the files."""
        if self._is_closed:
            return
        self.detach()
        if self._max_timestamp_and_offset is not None:
            self._append_last_time_entry()
        self._write_aborted()
        for index in (self._offset_index, self._time_index):
            if index is not None:
                if index.is_open and index.writable:  # After a clean end nobody looks at them.
                    index.trim_to_valid_size()
                    index.flush()
                index.close()
        if self._handle is not None:
            self._trim(self._size_bytes)
            with self._handle.lease() as fd:
                self._files.fdatasync(fd)
        if self._txn_index is not None:
            self._txn_index.close()
        self._close_handle()

    def close_handlers(self) -> None:
        """Close the files as a process that is killed does: nothing is flushed or cut."""
        if self._is_closed:
            return
        try:
            self.detach()
        except (ClosedError, StorageError) as error:
            if getattr(error, "errno", None) == errno.EDEADLK:
                raise  # Called by an append to this log, which goes on to write.
            # What a failed append left could not be cut; the writer is detached all the same.
            self._end_leases()
            self._close_files()
            raise
        self._close_files()

    def delete_if_exists(self) -> None:
        """
        Delete the four files; all are tried, then the first failure is raised.

        Source: Kafka ``LogSegment.deleteIfExists``.
        """
        self.detach()
        self._delete_files()
