"""
A segment as it is read: sizes, headers, and where an offset or a timestamp is.

While a native writer is attached it owns the counters (size, index entries, largest timestamp);
what is asked here asks the writer then. Index entries are hints: each is checked against the batch
that it names before it is used.

Source: Kafka ``LogSegment``; spec 4.1, 4.5, 4.6.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.entries import EntryHeader, entry_headers
from logstore.errors import ClosedError, CorruptRecordError, StorageError
from logstore.file_records import NO_RECORDS, FetchDataInfo, FileRecords, LogOffsetMetadata
from logstore.files import Files, Mapping
from logstore.index import AbortedTxn, OffsetPosition, TimestampOffset, TxnIndexSearchResult
from logstore.index_file import RELATIVE_OFFSET_MAX
from logstore.index_repair import repair_indexes
from logstore.segment_files import SegmentFiles
from logstore.timestamp_type import NO_TIMESTAMP
from logstore.unindexed_aborted import Finder, UnindexedAborted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logstore._native import Writer
    from logstore.config import LogConfig
    from logstore.file_records import Batch
    from logstore.producer_state import CompletedTxn


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


class ReadableSegment(SegmentFiles):
    """
    What any thread may ask of a segment, whether it is written meanwhile or not.

    Args:
        config: ``segment.index.bytes`` and ``index.interval.bytes`` are fixed here.
        are_indexes_sure: Whether they need no look before their first use.
        is_fresh: No file of these names is the log's yet.

    Source: Kafka ``LogSegment``.
    """

    __slots__ = (
        "_aborted",
        "_are_indexes_sure",
        "_max_timestamp_and_offset",
        "_rolling_based_timestamp",
        "_size_bytes",
        "_unwritten_aborted",
        "_writer",
        "index_interval_bytes",
    )

    def __init__(
        self,
        directory: str | os.PathLike[str],
        base_offset: int,
        config: LogConfig,
        *,
        files: Files,
        file_suffix: str,
        writable: bool,
        are_indexes_sure: bool,
        is_fresh: bool,
    ) -> None:
        super().__init__(
            directory,
            base_offset,
            index_bytes=config.segment_index_bytes,
            files=files,
            file_suffix=file_suffix,
            writable=writable,
            is_fresh=is_fresh,
        )
        self.index_interval_bytes: Final = config.index_interval_bytes
        self._size_bytes = 0
        self._writer: Writer | None = None
        self._rolling_based_timestamp: int | None = None
        self._max_timestamp_and_offset: TimestampOffset | None = None
        self._are_indexes_sure = are_indexes_sure
        self._aborted: UnindexedAborted | None = None
        self._unwritten_aborted: tuple[AbortedTxn, ...] = ()

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

    def read_next_offset(self) -> int:
        """
        Return the offset after the last entry; the base offset of an empty segment.

        Cost: reads the headers after the last index entry.

        Source: Kafka ``readNextOffset``.
        """
        self.take_index_entries()
        next_offset = self.base_offset
        for header in self.headers_from(self.offset_index.last_offset):
            next_offset = header.next_offset
        return next_offset

    # -- its indexes -------------------------------------------------------------------------------

    def take_index_entries(self) -> None:
        """Tell the indexes what the attached writer has appended to their files."""
        with self._guard:
            writer = self._writer
            if writer is not None:
                writer.settle_entries()
                self._note_entries(writer.offset_entry_count, writer.time_entry_count)
                return
        if not self._are_indexes_sure:
            self._make_sure_of_indexes()

    def _note_entries(self, offset_entry_count: int, time_entry_count: int) -> None:
        for index, count in (
            (self.offset_index, offset_entry_count),
            (self.time_index, time_entry_count),
        ):
            if count > index.entry_count:
                index.advance_entry_count(count - index.entry_count)

    def _make_sure_of_indexes(self) -> None:
        """Look at the indexes of a segment that was there before, once, and repair them."""
        with self._guard:
            if self._are_indexes_sure or self._is_closed:
                return
            self._are_indexes_sure = True
        repair_indexes(self)

    def append_index_entries(self, offset_entries: bytes, time_entries: bytes) -> None:
        """Append entries that the native core has made; the writer must not be attached."""
        assert self._writer is None
        self.offset_index.append_entries(offset_entries)
        self.time_index.append_entries(time_entries)

    def headers_end(self, offset: int) -> int:
        """Return where a walk over the headers from an offset on ends: the size, or damage."""
        self.take_index_entries()
        end = self.offset_index.lookup(max(offset, self.base_offset)).position
        for header in self.headers_from(offset):
            end = header.end
        return end

    def headers_from(self, offset: int, starting_position: int = 0) -> Iterator[EntryHeader]:
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

    def headers_around(self, offset: int) -> Iterator[EntryHeader]:
        """Yield headers from an index entry earlier than :meth:`headers_from` does."""
        self.take_index_entries()
        found = self.offset_index.lookup(max(offset, self.base_offset))
        before = self.offset_index.lookup(max(found.offset - 1, self.base_offset))
        return self.headers_from(before.offset)

    # -- by offset ---------------------------------------------------------------------------------

    def map_sealed(self) -> Mapping:
        """
        Map the ``.log`` file of a segment that takes no more appends, up to its last entry.

        Raises:
            ClosedError: The segment was closed or deleted, or a truncation has just cut it.
        """
        # The file before its views: those of an older one must not count it as theirs.
        with self.handle.lease() as fd:
            size_bytes = self.size_bytes
            if not 0 < size_bytes <= self._files.size(fd):  # Beyond the file memory is a SIGBUS.
                raise ClosedError(
                    f"{self.log_path} was cut while it was about to be read; read again",
                    path=self.log_path,
                )
            return self.views.map(self._files, fd, size_bytes)

    def translate_offset(self, offset: int, starting_position: int = 0) -> OffsetLocation | None:
        """
        Return the first batch whose last offset is >= ``offset``, None if there is none.

        Source: Kafka ``translateOffset``; spec 4.5.
        """
        for header in self.headers_from(offset, starting_position):
            if header.last_offset >= offset:
                return OffsetLocation(header.base_offset, header.position, header.size_bytes)
        return None

    def read(
        self,
        start_offset: int,
        max_bytes: int,
        max_position: int | None = None,
        *,
        min_one_message: bool = False,
        is_to_map: bool = False,
    ) -> FetchDataInfo | None:
        """
        Return the range that begins with the batch of ``start_offset``, None if it is beyond.

        Args:
            start_offset: A lower bound of the offsets to read.
            max_bytes: The range is not longer, unless ``min_one_message`` needs it.
            max_position: The range ends there at the latest; None: nothing may be read.
            min_one_message: The first batch is whole even if it is larger than ``max_bytes``.
            is_to_map: Nothing is appended here any more, and the range may be mapped.

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
        if size_bytes == 0:
            return FetchDataInfo(metadata, NO_RECORDS, adjusted_bytes < found.size_bytes)
        handle = self.handle  # Before its views: those of an older file must not count it.
        views = self.views if is_to_map else None
        records = FileRecords(handle, found.position, size_bytes, views)
        return FetchDataInfo(metadata, records, adjusted_bytes < found.size_bytes)

    def fetch_upper_bound_offset(self, start: OffsetPosition, fetch_bytes: int) -> int | None:
        """Return an offset above all in the ``fetch_bytes`` after ``start``, None if not known."""
        self.take_index_entries()
        found = self.offset_index.fetch_upper_bound_offset(start, fetch_bytes)
        return None if found is None else found.offset

    def batch_at(self, header: EntryHeader) -> Batch:
        """Return the whole batch that a header belongs to."""
        for batch in FileRecords(self.handle, header.position, header.size_bytes).batches():
            return batch
        raise CorruptRecordError(
            "the batch cannot be read; run `logstore verify`",
            path=self.log_path,
            position=header.position,
        )

    # -- by timestamp ------------------------------------------------------------------------------

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
        for header in self.headers_from(max(indexed.offset, starting_offset)):
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
                return TimestampAndOffset(
                    record.timestamp, record.offset, _known_epoch(header.leader_epoch)
                )
        return None

    def holds_time_entry(self, entry: TimestampOffset) -> bool:
        """Whether the batch that a time index entry names has the entry's timestamp."""
        for header in self.headers_from(entry.offset):
            if header.last_offset >= entry.offset:
                return header.max_timestamp == entry.timestamp
        return False

    def offset_of_max_timestamp(self) -> TimestampAndOffset | None:
        """
        Return the first record that has the segment's largest timestamp, -1 if none has one.

        None if the first batch that has it is a message of magic 0, which has no timestamps.

        Source: Kafka ``UnifiedLog.fetchOffsetByTimestamp``, MAX_TIMESTAMP; spec 5.7.
        """
        largest = self.max_timestamp_and_offset_so_far()
        for header in self.headers_from(largest.offset):
            if header.max_timestamp == largest.timestamp:
                return None if header.magic == 0 else self._largest_record(header)
        return None

    def _largest_record(self, header: EntryHeader) -> TimestampAndOffset | None:
        """Return the first record of a batch whose timestamp is what its header calls largest."""
        for record in self.batch_at(header).records():
            # Not one that is larger: of a batch that came as one with the time of an append, which
            # its records did not have, the header goes by that time.
            if record.timestamp == header.max_timestamp:
                return TimestampAndOffset(
                    record.timestamp, record.offset, _known_epoch(header.leader_epoch)
                )
        return None

    # -- aborted transactions ----------------------------------------------------------------------

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

    @property
    def has_unwritten_aborted(self) -> bool:
        """Whether an entry of the transaction index could not be written yet."""
        return bool(self._unwritten_aborted)

    def _write_aborted(self) -> None:
        while self._unwritten_aborted:
            self.txn_index.append(self._unwritten_aborted[0])
            self._unwritten_aborted = self._unwritten_aborted[1:]

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


def _known_epoch(leader_epoch: int) -> int | None:
    return None if leader_epoch < 0 else leader_epoch
