"""
One segment of a log: a ``.log`` file and its indexes.

========================  ==================================================================
``<base>.log``            entries, one after the other (spec 1.1)
``<base>.index``          last offset of a batch -> its position, every index.interval.bytes
``<base>.timeindex``      largest timestamp so far -> last offset of its batch
``<base>.txnindex``       aborted transactions whose marker is here; absent when there are none
========================  ==================================================================

``<base>`` is the base offset in 20 digits. Index files are made when they are first needed, as in
Kafka, and preallocated; they are cut to what is in them when the segment is sealed or closed.

Source: Kafka ``LogSegment``; spec section 4.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from logstore.clock import SYSTEM_CLOCK, Clock
from logstore.entries import NO_TIMESTAMP, EntryHeader, entry_headers
from logstore.errors import (
    ClosedError,
    CorruptRecordError,
    DiskFullError,
    SegmentOffsetOverflowError,
    StorageError,
)
from logstore.file_records import NO_RECORDS, FetchDataInfo, FileRecords, LogOffsetMetadata
from logstore.files import REAL_FILES, FileHandle, Files
from logstore.index import (
    AbortedTxn,
    OffsetIndex,
    OffsetPosition,
    TimeIndex,
    TimestampOffset,
    TransactionIndex,
    TxnIndexSearchResult,
)
from logstore.index_repair import repair_indexes
from logstore.recovery import recover_segment
from logstore.unindexed_aborted import Finder, UnindexedAborted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    import numpy.typing as npt

    from logstore._native import Buffer, PatchedBatch, Writer
    from logstore.config import LogConfig
    from logstore.leader_epoch import LeaderEpochCache
    from logstore.producer_state import CompletedTxn, ProducerStateManager

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
TRUNCATED_SUFFIX: Final = ".truncated"  # Ours (DESIGN.md D6): the kept prefix before its rename.

SEGMENT_BYTES_MAX: Final = 2**31 - 1
RELATIVE_OFFSET_MAX: Final = 2**31 - 1
OFFSET_DIGITS: Final = 20

# Of an open file: the segment's, the local name, the lease's, and getrefcount's own.
REFERENCES_OF_AN_UNREAD_FILE: Final = 4

_making_indexes: Final = threading.Lock()


def segment_file_name(base_offset: int, suffix: str) -> str:
    """Return the name of a segment's file: 20 digits and the suffix."""
    assert base_offset >= 0
    return f"{base_offset:0{OFFSET_DIGITS}d}{suffix}"


class OffsetLocation(NamedTuple):
    """
    Where a batch is.

    Source: Kafka ``FileRecords.LogOffsetPosition``.
    """

    offset: int  #: its base offset
    position: int
    size_bytes: int


class TimestampAndOffset(NamedTuple):
    """
    A record found by its timestamp.

    Source: Kafka ``FileRecords.TimestampAndOffset``.
    """

    timestamp: int
    offset: int
    leader_epoch: int | None


class LogSegment:
    """
    One ``.log`` file and its indexes: the unit of roll, retention and compaction.

    Only the active (last) segment of a log is written. While a native writer is attached it owns
    the counters (size, index entries, largest timestamp); detaching brings them back here.

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
        size_bytes: Its size, if the caller has looked already.
        roll_jitter_ms: How much earlier than segment.ms to roll.
        writable: False opens every file read-only.

    Source: Kafka ``LogSegment``.
    """

    __slots__ = (
        "__weakref__",
        "_aborted",
        "_are_indexes_sure",
        "_attachments",
        "_clock",
        "_directory",
        "_file_suffix",
        "_files",
        "_guard",
        "_handle",
        "_index_bytes",
        "_is_closed",
        "_max_timestamp_and_offset",
        "_offset_index",
        "_open_flags",
        "_rolling_based_timestamp",
        "_size_bytes",
        "_time_index",
        "_txn_index",
        "_unwritten_aborted",
        "_writer",
        "base_offset",
        "bytes_since_last_index_entry",
        "created_ms",
        "index_interval_bytes",
        "on_open",
        "roll_jitter_ms",
    )

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
    ) -> None:
        assert base_offset >= 0
        assert size_bytes is None or file_already_exists
        self._directory = os.fspath(directory)
        self.base_offset: Final = base_offset
        self._files = files
        self._clock = clock
        self._file_suffix = file_suffix
        self._open_flags: Final = os.O_RDWR if writable else os.O_RDONLY
        self._guard = threading.Lock()
        self._handle: FileHandle | None = None
        self._is_closed = False
        #: Called when the ``.log`` file was opened: somebody bounds the number of open files.
        self.on_open: Callable[[LogSegment], None] | None = None
        self._writer: Writer | None = None
        self._attachments: contextlib.ExitStack | None = None
        self._unwritten_aborted: tuple[AbortedTxn, ...] = ()
        self.index_interval_bytes: Final = config.index_interval_bytes
        self.roll_jitter_ms: Final = roll_jitter_ms
        self.created_ms = clock.milliseconds()
        self.bytes_since_last_index_entry = 0
        self._rolling_based_timestamp: int | None = None
        self._max_timestamp_and_offset: TimestampOffset | None = None
        self._index_bytes: Final = config.segment_index_bytes
        # Made when they are first needed: a log of a thousand segments has to open at once.
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TransactionIndex | None = None
        self._aborted: UnindexedAborted | None = None
        self._are_indexes_sure = not file_already_exists

        if not file_already_exists and not files.exists(self.log_path):
            handle = self._open(os.O_RDWR | os.O_CREAT)
            if config.preallocate:
                with handle.lease() as fd:
                    files.ftruncate(fd, config.segment_bytes)
            size_bytes = 0
        self._size_bytes = files.file_size(self.log_path) if size_bytes is None else size_bytes
        if self._size_bytes > SEGMENT_BYTES_MAX:
            raise CorruptRecordError(
                f"a segment of {self._size_bytes} bytes is over {SEGMENT_BYTES_MAX};"
                " move it out of the directory",
                path=self.log_path,
            )

    def __repr__(self) -> str:
        return f"LogSegment({self.log_path!r}, size_bytes={self.size_bytes})"

    # -- files -------------------------------------------------------------------------------------

    @property
    def offset_index(self) -> OffsetIndex:
        """The ``.index`` file."""
        index = self._offset_index
        return self._make_indexes()[0] if index is None else index

    @property
    def time_index(self) -> TimeIndex:
        """The ``.timeindex`` file."""
        index = self._time_index
        return self._make_indexes()[1] if index is None else index

    @property
    def txn_index(self) -> TransactionIndex:
        """The ``.txnindex`` file."""
        index = self._txn_index
        return self._make_indexes()[2] if index is None else index

    def _make_indexes(self) -> tuple[OffsetIndex, TimeIndex, TransactionIndex]:
        """Make the three objects, which touch no file, in one thread only."""
        with _making_indexes:
            if self._offset_index is None or self._time_index is None or self._txn_index is None:
                door: dict[str, Any] = {
                    "writable": self._open_flags == os.O_RDWR,
                    "files": self._files,
                }
                base_offset, index_bytes = self.base_offset, self._index_bytes
                offset_index = OffsetIndex(
                    self._path(INDEX_SUFFIX), base_offset, index_bytes, **door
                )
                time_index = TimeIndex(
                    self._path(TIME_INDEX_SUFFIX), base_offset, index_bytes, **door
                )
                txn_index = TransactionIndex(self._path(TXN_INDEX_SUFFIX), base_offset, **door)
                if self._is_closed:
                    offset_index.close_handler()
                    time_index.close_handler()
                    txn_index.close()
                self._txn_index, self._time_index = txn_index, time_index
                self._offset_index = offset_index
            return self._offset_index, self._time_index, self._txn_index

    @property
    def directory(self) -> str:
        """Where the files are."""
        return self._directory

    @property
    def files(self) -> Files:
        """The door to the file system."""
        return self._files

    @property
    def log_path(self) -> str:
        """The ``.log`` file."""
        return self._path(LOG_SUFFIX)

    def _path(self, suffix: str) -> str:
        name = segment_file_name(self.base_offset, suffix) + self._file_suffix
        return f"{self._directory}{os.sep}{name}"

    @property
    def handle(self) -> FileHandle:
        """
        The open ``.log`` file; opened when it is first needed.

        Raises:
            ClosedError: The segment was closed or deleted.
        """
        handle = self._handle
        return self._open(self._open_flags) if handle is None else handle

    def _open(self, flags: int) -> FileHandle:
        with self._guard:
            if self._is_closed:
                raise ClosedError(f"{self.log_path} is closed; open the log again")
            if self._handle is not None:
                return self._handle
            handle = self._handle = FileHandle(self._files, self.log_path, flags)
        if self.on_open is not None:
            self.on_open(self)
        return handle

    def release(self) -> None:
        """Forget the open files, if no writer needs them: the last range read closes its file."""
        with self._guard:
            if self._writer is not None:
                return
            self._handle = None
        for index in (self._offset_index, self._time_index, self._txn_index):
            if index is not None:
                index.release()

    def read_at(self, position: int, size: int) -> bytes:
        """Return ``size`` bytes of the ``.log`` file, fewer at its end."""
        with self.handle.lease() as fd:
            return self._files.pread(fd, size, position)

    # -- what is in it -----------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """The end of the last complete entry."""
        with self._guard:
            writer = self._writer
            return self._size_bytes if writer is None else writer.size_bytes

    def end(self, log_end_offset: int) -> tuple[int, int]:
        """Return the log end offset and the size of the active segment at one moment."""
        with self._guard:
            writer = self._writer
            if writer is None:
                return log_end_offset, self._size_bytes
            # In this order: everything below the offset is within the size.
            return writer.log_end_offset, writer.size_bytes

    @property
    def is_writable(self) -> bool:
        """Whether the files may be changed."""
        return self._open_flags == os.O_RDWR

    @property
    def is_closed(self) -> bool:
        """Whether the segment was closed or deleted."""
        return self._is_closed

    @property
    def is_attached(self) -> bool:
        """Whether a native writer owns the counters."""
        return self._writer is not None

    def can_append_offset(self, offset: int) -> bool:
        """Whether ``offset`` is representable relative to the base offset."""
        return 0 <= offset - self.base_offset <= RELATIVE_OFFSET_MAX

    def max_timestamp_and_offset_so_far(self) -> TimestampOffset:
        """
        Return the largest timestamp and the last offset of the batch that has it, or -1.

        From the time index when nothing was appended since the segment was opened.

        Source: Kafka ``readMaxTimestampAndOffsetSoFar``.
        """
        with self._guard:
            writer = self._writer
            if writer is not None:
                state = writer.state()
                return TimestampOffset(state.max_timestamp, state.offset_of_max_timestamp)
        found = self._max_timestamp_and_offset
        if found is None:
            self._make_sure_of_indexes()
            found = self._max_timestamp_and_offset or self.time_index.last_entry
            self._max_timestamp_and_offset = found
        return found

    def set_max_timestamp(self, largest: TimestampOffset) -> None:
        """Take over the largest timestamp and the last offset of its batch: no index has them."""
        self._max_timestamp_and_offset = largest

    def largest_timestamp(self) -> int:
        """Return the largest timestamp, or when the file was last written if there is none."""
        timestamp = self.max_timestamp_and_offset_so_far().timestamp
        return timestamp if timestamp >= 0 else self.modified_ms()

    def modified_ms(self) -> int:
        """Return when the ``.log`` file was last written."""
        return self._files.modified_ms(self.log_path)

    def set_modified_ms(self, modified_ms: int) -> None:
        """Set the modification time of the ``.log`` file and of both indexes."""
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            if self._files.exists(self._path(suffix)):
                self._files.set_modified_ms(self._path(suffix), modified_ms)

    def rolling_based_timestamp(self) -> int | None:
        """Return the first batch's largest timestamp, None if the segment is empty."""
        with self._guard:
            writer = self._writer
            if writer is not None:
                state = writer.state()
                return state.rolling_based_timestamp if state.size_bytes > 0 else None
        if self._rolling_based_timestamp is None and self._size_bytes > 0:
            for header in self.headers():
                self._rolling_based_timestamp = header.max_timestamp
                break
        return self._rolling_based_timestamp

    def headers(self, start: int = 0, end: int | None = None) -> Iterator[EntryHeader]:
        """
        Yield the headers of the entries from position ``start`` on.

        Raises:
            CorruptRecordError: An entry's length cannot be.
        """
        end = self.size_bytes if end is None else end
        try:
            yield from entry_headers(self.read_at, start, end)
        except CorruptRecordError as error:
            error.path = self.log_path
            raise

    # -- the writer --------------------------------------------------------------------------------

    def attach(self, writer: Writer, *, segment_ms: int) -> None:
        """
        Hand the counters and the open files to the native writer.

        Makes and opens the index files if they are not there yet.
        """
        assert self._writer is None
        offset_index, time_index = self.offset_index, self.time_index
        largest = self.max_timestamp_and_offset_so_far()
        last = time_index.last_entry
        next_offset = writer.log_end_offset
        rolling_based = self.rolling_based_timestamp()
        leases = contextlib.ExitStack()
        with leases:
            writer.attach(
                log_fd=leases.enter_context(self.handle.lease()),
                index_fd=leases.enter_context(offset_index.handle.lease()),
                timeindex_fd=leases.enter_context(time_index.handle.lease()),
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
            self._attachments = leases.pop_all()
        self._writer = writer

    def detach(self) -> None:
        """Take the counters back from the writer; nothing happens if none is attached."""
        writer = self._writer
        if writer is None:
            return
        self.take_index_entries()
        with self._guard:
            state = writer.detach()
            self._writer = None
            self._size_bytes = state.size_bytes
        self.bytes_since_last_index_entry = state.bytes_since_last_index_entry
        self._max_timestamp_and_offset = TimestampOffset(
            state.max_timestamp, state.offset_of_max_timestamp
        )
        self._rolling_based_timestamp = (
            state.rolling_based_timestamp if state.size_bytes > 0 else None
        )
        if self._attachments is not None:
            self._attachments.close()

    def take_index_entries(self) -> None:
        """Tell the indexes what the attached writer has appended to their files."""
        with self._guard:
            writer = self._writer
            if writer is not None:
                for index, count in (
                    (self.offset_index, writer.offset_entry_count),
                    (self.time_index, writer.time_entry_count),
                ):
                    if count > index.entry_count:
                        index.advance_entry_count(count - index.entry_count)
                return
        if not self._are_indexes_sure:
            self._make_sure_of_indexes()

    def _make_sure_of_indexes(self) -> None:
        """Look at the indexes of a segment that was there before, once, and repair them."""
        with self._guard:
            if self._are_indexes_sure or self._is_closed:
                return
            self._are_indexes_sure = True
        repair_indexes(self)

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

    def append_index_entries(self, offset_entries: bytes, time_entries: bytes) -> None:
        """Append entries that the native core has made; the writer must not be attached."""
        assert self._writer is None
        self.offset_index.append_entries(offset_entries)
        self.time_index.append_entries(time_entries)

    def update_txn_index(self, completed: CompletedTxn, last_stable_offset: int) -> None:
        """
        Write a completed transaction to the transaction index if it was aborted.

        The marker is in the log already: an index that cannot be written now does not fail the
        append (DESIGN.md D8). Its entry is kept and served from memory, and written by the next
        flush, without which the segment does not count as flushed.
        """
        if not completed.is_aborted:
            return
        aborted = AbortedTxn(
            completed.producer_id, completed.first_offset, completed.last_offset, last_stable_offset
        )
        self._unwritten_aborted = (*self._unwritten_aborted, aborted)
        with contextlib.suppress(StorageError):
            self._write_aborted()

    def _write_aborted(self) -> None:
        while self._unwritten_aborted:
            self.txn_index.append(self._unwritten_aborted[0])
            self._unwritten_aborted = self._unwritten_aborted[1:]

    def on_become_inactive(self) -> None:
        """
        Seal the segment: last time index entry, indexes and file cut to what is in them.

        Source: Kafka ``onBecomeInactiveSegment``; spec 4.4.
        """
        self.detach()
        self._append_last_time_entry()
        self.offset_index.trim_to_valid_size()
        self.time_index.trim_to_valid_size()
        self._trim()

    def _append_last_time_entry(self) -> None:
        largest = self.max_timestamp_and_offset_so_far()
        self.time_index.maybe_append(largest.timestamp, largest.offset, skip_full_check=True)

    def _trim(self) -> None:
        """Cut the file to its logical size: preallocated bytes go, those of a failed append too."""
        with self.handle.lease() as fd:
            if self._files.size(fd) > self._size_bytes:
                self._files.ftruncate(fd, self._size_bytes)

    # -- read --------------------------------------------------------------------------------------

    def translate_offset(self, offset: int, starting_position: int = 0) -> OffsetLocation | None:
        """
        Return the first batch whose last offset is >= ``offset``, None if there is none.

        Source: Kafka ``translateOffset``; spec 4.5.
        """
        for header in self._headers_from(offset, starting_position):
            if header.last_offset >= offset:
                return OffsetLocation(header.base_offset, header.position, header.size_bytes)
        return None

    def _headers_from(self, offset: int, starting_position: int = 0) -> Iterator[EntryHeader]:
        """
        Yield headers from where the offset index says that ``offset`` is, or from a little before.

        An index is a hint (DESIGN.md D5): the batch at an entry's position may begin no later than
        the entry's offset, else the whole segment is walked. (It may end before it: entries of
        releases up to 3.x have the last offset of a whole append.)
        """
        self.take_index_entries()
        entry = self.offset_index.lookup(max(offset, self.base_offset))
        if starting_position >= entry.position:
            yield from self.headers(starting_position)
            return
        headers = self.headers(entry.position)
        try:
            first = next(headers, None)
        except CorruptRecordError:
            first = None
        if first is None or not self.base_offset <= first.base_offset <= entry.offset:
            yield from self.headers(starting_position)
            return
        yield first
        yield from headers

    def read(
        self,
        start_offset: int,
        max_bytes: int,
        max_position: int | None = None,
        *,
        min_one_message: bool = False,
    ) -> FetchDataInfo | None:
        """
        Return the range that begins with the batch of ``start_offset``, None if it is beyond.

        Args:
            start_offset: A lower bound of the offsets to read.
            max_bytes: The range is not longer, unless ``min_one_message`` needs it.
            max_position: The range ends there at the latest; None: nothing may be read.
            min_one_message: The first batch is whole even if it is larger than ``max_bytes``.

        Source: Kafka ``LogSegment.read``; spec 4.5.
        """
        assert max_bytes >= 0
        found = self.translate_offset(start_offset)
        if found is None:
            return None
        metadata = LogOffsetMetadata(found.offset, self.base_offset, found.position)
        adjusted_bytes = max(max_bytes, found.size_bytes) if min_one_message else max_bytes
        if adjusted_bytes == 0 or max_position is None:
            return FetchDataInfo(metadata, NO_RECORDS)
        size_bytes = max(0, min(max_position - found.position, adjusted_bytes))
        records = FileRecords(self.handle, found.position, size_bytes) if size_bytes else NO_RECORDS
        return FetchDataInfo(metadata, records, adjusted_bytes < found.size_bytes)

    def fetch_upper_bound_offset(self, start: OffsetPosition, fetch_bytes: int) -> int | None:
        """Return an offset above all in the ``fetch_bytes`` after ``start``, None if not known."""
        self.take_index_entries()
        found = self.offset_index.fetch_upper_bound_offset(start, fetch_bytes)
        return None if found is None else found.offset

    def find_offset_by_timestamp(
        self, timestamp: int, starting_offset: int
    ) -> TimestampAndOffset | None:
        """
        Return the first record from ``starting_offset`` on whose timestamp is >= ``timestamp``.

        Source: Kafka ``findOffsetByTimestamp``; spec 4.6.
        """
        self.take_index_entries()
        indexed = self.time_index.lookup(timestamp)
        if indexed.offset > starting_offset and not self.holds_time_entry(indexed):
            indexed = TimestampOffset(NO_TIMESTAMP, self.base_offset)
        for header in self._headers_from(max(indexed.offset, starting_offset)):
            if header.max_timestamp < timestamp or header.last_offset < starting_offset:
                continue
            found = self._first_record(header, timestamp, starting_offset)
            if found is not None:
                return found
        return None

    def _first_record(
        self, header: EntryHeader, timestamp: int, starting_offset: int
    ) -> TimestampAndOffset | None:
        """Return the first record of a batch with at least this timestamp and offset."""
        for record in self.batch_at(header).records():
            if record.timestamp >= timestamp and record.offset >= starting_offset:
                epoch = header.leader_epoch
                return TimestampAndOffset(
                    record.timestamp, record.offset, None if epoch < 0 else epoch
                )
        return None

    def holds_time_entry(self, entry: TimestampOffset) -> bool:
        """Whether the batch that a time index entry names has the entry's timestamp."""
        for header in self._headers_from(entry.offset):
            if header.last_offset >= entry.offset:
                return header.max_timestamp == entry.timestamp
        return False

    def offset_of_max_timestamp(self) -> TimestampAndOffset | None:
        """
        Return the first record that has the segment's largest timestamp.

        Source: Kafka ``UnifiedLog.fetchOffsetByTimestamp``, MAX_TIMESTAMP; spec 5.7.
        """
        largest = self.max_timestamp_and_offset_so_far()
        if largest.timestamp < 0:
            return None
        for header in self._headers_from(largest.offset):
            if header.max_timestamp == largest.timestamp:
                return self._first_record(header, largest.timestamp, self.base_offset)
        return None

    def batch_at(self, header: EntryHeader):  # type: ignore[no-untyped-def]  # noqa: ANN201
        """Return the whole batch that a header belongs to."""
        for batch in FileRecords(self.handle, header.position, header.size_bytes).batches():
            return batch
        raise CorruptRecordError(
            "the batch cannot be read; run `logstore verify`",
            path=self.log_path,
            position=header.position,
        )

    def read_next_offset(self) -> int:
        """
        Return the offset after the last entry; the base offset of an empty segment.

        Cost: reads the headers after the last index entry.

        Source: Kafka ``readNextOffset``.
        """
        self.take_index_entries()
        next_offset = self.base_offset
        for header in self._headers_from(self.offset_index.last_offset):
            next_offset = header.next_offset
        return next_offset

    def has_overflow(self) -> bool:
        """Whether offsets here do not fit the segment, as very old releases could write."""
        next_offset = self.read_next_offset()
        return next_offset > self.base_offset and not self.can_append_offset(next_offset - 1)

    def collect_aborted_txns(
        self, fetch_offset: int, upper_bound_offset: int
    ) -> TxnIndexSearchResult:
        """Return the aborted transactions of a fetch, and whether that is all of them."""
        indexed = self.txn_index.collect_aborted_txns(fetch_offset, upper_bound_offset)
        if self._unwritten_aborted:
            indexed = self._with_unwritten(indexed, fetch_offset, upper_bound_offset)
        if self._aborted is None:
            return indexed
        return self._aborted.collect(self, fetch_offset, upper_bound_offset, indexed)

    def _with_unwritten(
        self, indexed: TxnIndexSearchResult, fetch_offset: int, upper_bound_offset: int
    ) -> TxnIndexSearchResult:
        found, is_complete = list(indexed.aborted_transactions), indexed.is_complete
        for aborted in self._unwritten_aborted:
            if is_complete:
                break
            if aborted.last_offset >= fetch_offset and aborted.first_offset < upper_bound_offset:
                found.append(aborted)
            is_complete = aborted.last_stable_offset >= upper_bound_offset
        return TxnIndexSearchResult(found, is_complete=is_complete)

    def distrust_missing_txn_index(self, finder: Finder, end_offset: int) -> None:
        """Look for aborted transactions below ``end_offset`` in the log, when they are wanted."""
        self._aborted = UnindexedAborted(finder, end_offset)

    # -- recover and truncate ----------------------------------------------------------------------

    def recover(
        self,
        producer_state: ProducerStateManager,
        leader_epochs: LeaderEpochCache | None = None,
        *,
        before_cut: Callable[[LogSegment, int], None] | None = None,
    ) -> int:
        """
        Rebuild the indexes from the ``.log`` file, cut it after its valid prefix.

        Producer state and leader epochs learn what is there.

        Args:
            producer_state: State of everything before this segment.
            leader_epochs: Its cache, or None.
            before_cut: Called with the segment and the position from which on it will be cut.

        Returns:
            The number of bytes that were cut.

        Raises:
            SegmentOffsetOverflowError: An offset does not fit; the segment must be split.

        **Cost**: one pass, without more space than the indexes need.

        Source: Kafka ``LogSegment.recover``; spec 4.7.
        """
        assert self._writer is None
        self._are_indexes_sure = True
        valid_bytes, largest = recover_segment(self, producer_state, leader_epochs)
        if before_cut is not None and valid_bytes < self._size_bytes:
            before_cut(self, valid_bytes)
        return self._set_recovered(valid_bytes, largest)

    def _set_recovered(self, size_bytes: int, largest: TimestampOffset) -> int:
        cut_bytes = self._size_bytes - size_bytes
        assert cut_bytes >= 0
        with self.handle.lease() as fd:
            if self._files.size(fd) > size_bytes:
                self._cut(size_bytes, in_place=True)
        self._size_bytes = size_bytes
        self._max_timestamp_and_offset = largest
        self._rolling_based_timestamp = None
        self.offset_index.trim_to_valid_size()
        self._append_last_time_entry()
        self.time_index.trim_to_valid_size()
        return cut_bytes

    def truncate_to(self, offset: int, *, in_place: bool = False) -> int:
        """
        Remove every batch that has an offset >= ``offset`` and return the number of bytes cut.

        **Durability**: the cut is not undone by a crash after the return; before it, the segment is
        whole or cut.

        Args:
            offset: The first offset that must not stay.
            in_place: Nobody can hold bytes of this file: nothing of it was published.

        Source: Kafka ``LogSegment.truncateTo``; spec 4.8, DESIGN.md D6.
        """
        assert self._writer is None
        found = self.translate_offset(offset)
        largest = self.max_timestamp_and_offset_so_far()
        cut_bytes = 0
        if found is not None:
            cut_bytes = self._size_bytes - found.position
            self._cut(found.position, in_place=in_place)
            self._size_bytes = found.position
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
        largest = self.time_index.last_entry
        for header in self._headers_from(largest.offset):
            if header.max_timestamp > largest.timestamp:
                largest = TimestampOffset(header.max_timestamp, header.last_offset)
        return largest

    def _cut(self, size_bytes: int, *, in_place: bool) -> None:
        """
        Make the file end at ``size_bytes``.

        Unless in place, the kept prefix becomes a new file under the old name: bytes that were
        published never vanish under a reader. A file with a second name is never cut in place.
        """
        old = self.handle
        with old.lease() as fd:
            if in_place and self._files.link_count(fd) == 1:
                self._files.ftruncate(fd, size_bytes)
                self._files.fdatasync(fd)
                return
            try:
                new = self._kept_prefix(fd, size_bytes)
            except DiskFullError:
                # Nobody reads from this file: no range and no read under way but this one.
                if old.lease_count > 1 or sys.getrefcount(old) > REFERENCES_OF_AN_UNREAD_FILE:
                    raise
                if self._files.link_count(fd) > 1:
                    raise
                self._files.ftruncate(fd, size_bytes)
                self._files.fdatasync(fd)
                return
        with self._guard:
            self._handle = new  # Ranges read before keep the old file.
        self._files.fsync_directory(self._directory)

    def _kept_prefix(self, fd: int, size_bytes: int) -> FileHandle:
        """Put a copy of the first bytes in the place of the file, durably but for its name."""
        path = self.log_path
        kept = path + TRUNCATED_SUFFIX
        new = FileHandle(self._files, kept, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            with new.lease() as kept_fd:
                self._files.copy_range(fd, 0, kept_fd, 0, size_bytes)
                self._files.fdatasync(kept_fd)
            self._files.rename(kept, path)
        except BaseException:
            new.close()
            self._files.unlink(kept, missing_ok=True)
            raise
        new.path = path
        return new

    # -- flush, close, delete ----------------------------------------------------------------------

    def flush(self, *, with_indexes: bool = True) -> None:
        """
        Make the segment durable: the log file first, then its indexes.

        Args:
            with_indexes: False: the segment is recovered after a crash, which rebuilds them.

        Source: Kafka ``LogSegment.flush``; spec 4.9.
        """
        with self.handle.lease() as fd:
            self._files.fdatasync(fd)
        if with_indexes:
            self.flush_indexes()

    def flush_indexes(self) -> None:
        """Make the indexes durable; nothing happens if they are."""
        self._write_aborted()
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
            self._trim()
            with self._handle.lease() as fd:
                self._files.fdatasync(fd)
        if self._txn_index is not None:
            self._txn_index.close()
        self._close_handle()

    def close_handlers(self) -> None:
        """Close the files as a process that is killed does: nothing is flushed or cut."""
        if self._is_closed:
            return
        self.detach()
        if self._offset_index is not None:
            self._offset_index.close_handler()
        if self._time_index is not None:
            self._time_index.close_handler()
        if self._txn_index is not None:
            self._txn_index.close()
        self._close_handle()

    def _close_handle(self) -> None:
        with self._guard:
            self._is_closed = True
            if self._handle is not None:
                self._handle.close()
                self._handle = None

    def delete_if_exists(self) -> None:
        """
        Delete the four files; all are tried, then the first failure is raised.

        Source: Kafka ``LogSegment.deleteIfExists``.
        """
        self.detach()
        first_error: OSError | None = None
        for delete in (
            self._delete_log,
            self.offset_index.delete,
            self.time_index.delete,
            self.txn_index.delete,
        ):
            try:
                delete()
            except OSError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def _delete_log(self) -> None:
        path = self.log_path
        self._close_handle()
        self._files.unlink(path, missing_ok=True)

    def has_suffix(self, suffix: str) -> bool:
        """Whether the files carry a suffix such as ``.deleted``."""
        return self._file_suffix == suffix

    def change_file_suffixes(self, old_suffix: str, new_suffix: str) -> None:
        """Rename the four files: log, offset index, time index, transaction index."""
        assert self._file_suffix == old_suffix
        path = self.log_path
        # Index objects are made when they are first needed: now, while they have the old names.
        offset_index, time_index, txn_index = self.offset_index, self.time_index, self.txn_index
        self._file_suffix = new_suffix
        self._files.rename(path, self.log_path)
        if self._handle is not None:
            self._handle.path = self.log_path
        offset_index.rename(self._path(INDEX_SUFFIX))
        time_index.rename(self._path(TIME_INDEX_SUFFIX))
        txn_index.rename(self._path(TXN_INDEX_SUFFIX))

    def update_directory(self, directory: str) -> None:
        """Learn that the directory was renamed."""
        self._directory = directory
        if self._handle is not None:
            self._handle.path = self.log_path
        if self._offset_index is not None:
            self._offset_index.update_path(self._path(INDEX_SUFFIX))
        if self._time_index is not None:
            self._time_index.update_path(self._path(TIME_INDEX_SUFFIX))
        if self._txn_index is not None:
            self._txn_index.update_path(self._path(TXN_INDEX_SUFFIX))
