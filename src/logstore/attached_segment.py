"""
A segment while a native writer has it: handed over, taken back, and followed by another one.

Source: Kafka ``LogSegment``, ``LocalLog.roll``; spec 4.2, 5.8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from logstore._native import RollStage, WriterState, check
from logstore.files import FileHandle
from logstore.index import TimestampOffset
from logstore.segment_reading import ReadableSegment

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from logstore._native import Writer
    from logstore.clock import Clock
    from logstore.config import LogConfig
    from logstore.files import Files
    from logstore.fresh_indexes import FreshIndexes


class AttachableSegment(ReadableSegment):
    """
    A segment that a native writer may be attached to.

    While it is, the writer owns the counters (size, index entries, largest timestamp); detaching
    brings them back here.

    **Thread rule**: under the log's lock.

    Attributes:
        created_ms: When the object was made.
        roll_jitter_ms: How much earlier than segment.ms to roll.
        bytes_since_last_index_entry: See spec 4.2.
    """

    __slots__ = (
        "_change_count",
        "_end_at_last_look",
        "_leased",
        "bytes_since_last_index_entry",
        "created_ms",
        "roll_jitter_ms",
    )

    def __init__(
        self,
        directory: str | os.PathLike[str],
        base_offset: int,
        config: LogConfig,
        *,
        files: Files,
        clock: Clock,
        file_suffix: str,
        are_indexes_sure: bool,
        roll_jitter_ms: int,
        writable: bool,
        is_fresh: bool,
    ) -> None:
        super().__init__(
            directory,
            base_offset,
            config,
            files=files,
            file_suffix=file_suffix,
            writable=writable,
            are_indexes_sure=are_indexes_sure,
            is_fresh=is_fresh,
        )
        self._change_count = 0
        self._leased: Sequence[FileHandle] = ()  # By the writer, while it is attached.
        self._end_at_last_look = -1  # Of an attached segment, see take_use.
        self.roll_jitter_ms: Final = roll_jitter_ms
        self.created_ms = clock.milliseconds()
        self.bytes_since_last_index_entry = 0

    def attach(self, writer: Writer, *, segment_ms: int) -> None:
        """
        Hand the counters and the open files to the native writer.

        Makes and opens the index files if they are not there yet.
        """
        assert self._writer is None
        self._change_count += 1
        fresh = self._open_fresh_indexes()
        if fresh is not None:
            self._attach_fresh(writer, fresh, segment_ms)
            return
        offset_index, time_index = self.offset_index, self.time_index
        self._unshare(self._size_bytes)
        offset_index.unshare()
        time_index.unshare()
        largest = self.max_timestamp_and_offset_so_far()
        last = time_index.last_entry
        next_offset = writer.log_end_offset
        rolling_based = self.rolling_based_timestamp()
        leased: list[FileHandle] = []
        try:
            for handle in (self.handle, offset_index.handle, time_index.handle):
                handle.acquire()
                leased.append(handle)
            writer.attach(
                log_fd=leased[0].fd,
                index_fd=leased[1].fd,
                timeindex_fd=leased[2].fd,
                base_offset=self.base_offset,
                next_offset=next_offset,
                size_bytes=self._size_bytes,
                offset_entry_count=offset_index.entry_count,
                offset_entries_max=offset_index.max_entries,
                time_entry_count=time_index.entry_count,
                time_entries_max=time_index.max_entries,
                last_time_entry=(last.timestamp, last.offset),
                bytes_since_last_index_entry=self.bytes_since_last_index_entry,
                max_timestamp=largest.timestamp,
                offset_of_max_timestamp=largest.offset,
                rolling_based_timestamp=rolling_based,
                created_ms=self.created_ms,
                segment_ms=segment_ms - self.roll_jitter_ms,
                path=self.log_path,
            )
        except BaseException:
            _release_all(leased)
            raise
        self._leased = leased
        self._writer = writer

    def _attach_fresh(self, writer: Writer, fresh: FreshIndexes, segment_ms: int) -> None:
        """Hand over the files of a new, empty segment: there is nothing to be looked up in it."""
        assert self._size_bytes == 0
        handle = self.handle
        log_fd = handle.acquire()
        try:
            writer.attach(
                log_fd=log_fd,
                index_fd=fresh.offset_fd,
                timeindex_fd=fresh.time_fd,
                base_offset=self.base_offset,
                next_offset=writer.log_end_offset,
                offset_entries_max=fresh.offset_entries_max,
                time_entries_max=fresh.time_entries_max,
                offset_of_max_timestamp=self.base_offset,
                created_ms=self.created_ms,
                segment_ms=segment_ms - self.roll_jitter_ms,
                path=self.log_path,
            )
        except BaseException:
            handle.release()
            raise
        self._leased = [handle]
        self._writer = writer

    def detach(self) -> None:
        """Take the counters back from the writer; nothing happens if none is attached."""
        writer = self._writer
        if writer is None:
            return
        with self._guard:
            state = writer.detach()
            is_fresh = self._note_fresh_entries(state)
            if not is_fresh:
                self._note_entries(state.offset_entry_count, state.time_entry_count)
            self._writer = None
            self._size_bytes = state.size_bytes
        self._take_back(state)
        if is_fresh:
            self._make_indexes()
        elif state.last_time_entry_timestamp >= 0:
            self.time_index.note_last_entry(
                TimestampOffset(state.last_time_entry_timestamp, state.last_time_entry_offset)
            )
        self._end_leases()

    def _take_back(self, state: WriterState) -> None:
        self.bytes_since_last_index_entry = state.bytes_since_last_index_entry
        self._max_timestamp_and_offset = TimestampOffset(
            state.max_timestamp, state.offset_of_max_timestamp
        )
        self._rolling_based_timestamp = (
            state.rolling_based_timestamp if state.size_bytes > 0 else None
        )

    def _end_leases(self) -> None:
        leased, self._leased = self._leased, ()
        _release_all(leased)

    def take_use(self) -> bool:
        """Return whether files were used, or written, since this was last asked."""
        was_used = super().take_use()
        writer = self._writer
        if writer is None:
            return was_used
        end, self._end_at_last_look = self._end_at_last_look, writer.log_end_offset
        return was_used or end != self._end_at_last_look

    def roll_to(self, following: AttachableSegment, until: int, *, segment_ms: int) -> bool:
        """
        Seal a segment whose indexes nobody has needed, and make the next one, in one native call.

        Args:
            following: A fresh segment: what is made is its. With :attr:`has_open_log` its ``.log``
                file is there, with :attr:`is_attached` the writer has it; else that was not wanted,
                or it could not be made.
            until: How far to go, of ``RollStage``: ``SEALED``, ``MADE`` or ``ATTACHED``.
            segment_ms: As :meth:`attach` takes it.

        Returns:
            False: this one is not sealed. :meth:`detach` and :meth:`on_become_inactive` go on.

        Raises:
            StorageError: Each file is as before, or sealed.

        Source: Kafka ``LocalLog.roll``.
        """
        with self._guard, self._making_indexes:
            writer, fresh = self._writer, self._fresh_indexes
            if writer is None or fresh is None:
                return False
            fresh.lend()  # First: after an interruption a number may be another file's.
            stage, why, log_fd, index_fd, time_fd, left = writer.roll(
                following._stem,
                until,
                following.base_offset,
                following._index_bytes,
                following.created_ms,
                segment_ms - following.roll_jitter_ms,
            )
            state = WriterState._make(left)
            is_sealed = stage >= RollStage.SEALED
            fresh.take_back(None if is_sealed else state)
            if stage == RollStage.NOTHING:
                return False
            if is_sealed:
                self._fresh_indexes = None
                self._are_indexes_unsynced = True  # A flush has to care for them.
            self._writer = None
            self._size_bytes = state.size_bytes
        self._change_count += 1
        self._take_back(state)
        self._end_leases()
        if stage >= RollStage.MADE:
            following._take_log(log_fd)
            if stage == RollStage.ATTACHED:
                following._take_writer(writer, index_fd, time_fd)
        elif stage != RollStage.REFUSED:
            if not is_sealed:
                self._make_indexes()  # They know which entries there are; the next roll goes on.
            check(why, "seal a segment", self.log_path)
        return is_sealed

    def _take_log(self, fd: int) -> None:
        """Take over the ``.log`` file that a roll has made for this segment."""
        self._handle = FileHandle(self._files, self.log_path, self._open_flags, fd=fd)
        self._note_use()

    def _take_writer(self, writer: Writer, index_fd: int, time_fd: int) -> None:
        """Know that the writer is attached, to index files that were made for this segment."""
        handle = self.handle
        self._take_fresh_indexes(index_fd, time_fd)
        self._change_count += 1
        handle.acquire()
        self._leased = (handle,)
        self._writer = writer
        writer.path = handle.path


def _release_all(leased: Sequence[FileHandle]) -> None:
    """End all leases, even if the end of one fails, as the last one of a closed file may."""
    for number, handle in enumerate(leased):
        try:
            handle.release()
        except BaseException:
            _release_all(leased[number + 1 :])
            raise
