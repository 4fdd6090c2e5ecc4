"""
The record batches of Arrow that a range of a log is: C decodes and copies, Python steers.

============  ===============================================================================
bytes         how they are read
============  ===============================================================================
plain v2      C, straight from a mapping of a sealed segment, or from a piece that was read
compressed    ``compression.py`` first, within its bound; then C
magic 0, 1    ``legacy.py``; record batches of their own
transaction   as above; read_committed leaves out what was aborted
control       never delivered
damaged       CorruptRecordError, once what is before it was delivered
============  ===============================================================================

A mapping is made only by the process that writes the log: it alone knows that no file is cut under
it (DESIGN.md D6). Elsewhere, and in the active segment, pieces are read into memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from logstore._native import (
    GATHER_COUNT,
    GATHER_CRC,
    GATHER_PASS_CONTROL,
    GATHER_TRANSACTIONAL,
    BlockStop,
    Mapping,
    Record,
    address_of,
    gather_batches,
    gather_section,
    new_gather,
)
from logstore.arrow_buffers import KEY_BYTES_MIN, ColumnBuffers, Layout
from logstore.damage import ensure_gap
from logstore.errors import (
    ClosedError,
    CorruptRecordError,
    InvalidRecordError,
    LogStoreError,
    OffsetOutOfRangeError,
    UnsupportedCompressionTypeError,
)
from logstore.file_records import HEADER_UP_TO_MAGIC, LOG_OVERHEAD
from logstore.reader import (
    NONE_ABORTED,
    AbortedTransactions,
    Isolation,
    ReadableLog,
    ensure_in_place,
)
from logstore.record import RecordBatch, iterate_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logstore.file_records import Batch
    from logstore.files import FileHandle
    from logstore.index import AbortedTxn
    from logstore.segment import LogSegment

# What a column of a record batch has at most. Larger ones fall out of the cache between decoding
# and use, smaller ones cost too much Python for each (PERFORMANCE.md C: 1 to 4 MiB).
BATCH_BYTES: Final = 3 << 20
# Views take little memory themselves: this is what they point into.
VIEWED_BATCH_BYTES: Final = 8 << 20
BATCH_ROWS: Final = 128 << 10
BATCH_ROWS_MAX: Final = 1 << 20
ROWS_MIN: Final = 256

# What is read at once where nothing is mapped. Smaller pieces cost more Python for each, and end
# more often inside a batch, which is read again.
FIRST_CHUNK_BYTES: Final = 16 << 10
CHUNK_BYTES: Final = 1 << 20
PAGE_BYTES: Final = 4096

MALFORMED: Final = "the records of a batch break the format; run `logstore verify`"
RECORD_COUNT_AT: Final = 57
RECORD_BYTES_MIN: Final = 7
HEADER_BYTES: Final = 61


class ScannableLog(ReadableLog, Protocol):
    """What scanning needs of a log."""

    @property
    def directory(self) -> str:
        """Where it is."""
        ...


class ArrowBatches:
    """
    An iterator over the record batches of a range of a log.

    **Lifetime**: a record batch owns its memory, or holds the mapping that it points into. The
    iterator raises ClosedError at the next step after the log was closed.

    **Thread rule**: one thread at a time; any number of iterators.

    Args:
        log: The log.
        layout: The columns; None: nothing but :meth:`count` is wanted.
        start: The first offset.
        stop: The offset to end before; it may be read at this isolation.
        isolation: As in :meth:`Log.read`.
        batch_rows: Rows of a record batch at most.
        verify_crc: Check the CRC-32C of each batch right before it is decoded.
        truncations: ``log.truncations`` when the range was fixed.

    Raises:
        CorruptRecordError: At damage, with its path, offset and position.
        OffsetOutOfRangeError: The log was cut at one of its ends while it was read.
    """

    __slots__ = (
        "__weakref__",
        "_aborted",
        "_address",
        "_batch_rows",
        "_buffer",
        "_chunk_bytes",
        "_columns",
        "_error",
        "_filled",
        "_gather",
        "_handle",
        "_has_found",
        "_isolation",
        "_key_bytes",
        "_layout",
        "_log",
        "_mapped",
        "_origin",
        "_records",
        "_section",
        "_section_batch",
        "_seen",
        "_segments",
        "_stop",
        "_truncations",
        "_verify_crc",
        "_view",
    )

    def __init__(
        self,
        log: ScannableLog,
        layout: Layout | None,
        start: int,
        stop: int,
        isolation: Isolation,
        *,
        truncations: int,
        batch_rows: int | None = None,
        verify_crc: bool = True,
    ) -> None:
        assert start >= 0
        assert batch_rows is None or batch_rows > 0
        self._log = log
        self._layout = layout
        self._stop = stop
        self._truncations: Final = truncations
        self._seen = log.truncations  # Before what is held here was read.
        self._isolation: Isolation = isolation
        self._batch_rows = BATCH_ROWS if batch_rows is None else min(batch_rows, BATCH_ROWS_MAX)
        self._verify_crc = verify_crc
        self._key_bytes = KEY_BYTES_MIN
        # `start_offset` and `position` in it are where this read is.
        self._gather = new_gather()
        self._gather.start_offset = start
        self._gather.stop_offset = stop
        self._columns: ColumnBuffers | None = None  # Of the record batch that is being made.
        self._records: list[Record] = []  # The same, of magic 0 and 1.
        self._error: BaseException | None = None  # To raise once what is before it was taken.
        self._segments: list[LogSegment] = []  # Still to read; the current one is the last.
        self._has_found = False
        self._handle: FileHandle | None = None
        self._aborted: AbortedTransactions | None = None  # Of the current segment, once needed.
        self._section: Any = None  # What one compressed batch is, as an Arrow buffer, or bytes
        self._section_batch: RecordBatch | None = None
        self._mapped: Mapping | None = None  # The current segment, if it is mapped.
        self._buffer: Any = None  # An Arrow buffer of the bytes at hand, for views.
        self._view = memoryview(b"")  # The bytes at hand; [position, filled) is to do.
        self._address = 0
        self._filled = 0
        self._origin = 0  # Position in the file of the first of them.
        self._chunk_bytes = FIRST_CHUNK_BYTES
        log.readers.add(self)  # type: ignore[arg-type]  # It has the two methods that are called.

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._error is not None:
            raise self._error
        first = self._gather.start_offset
        self._check_range()
        try:
            while self._gather.start_offset < self._stop:
                is_full = self._step()
                if self._seen != self._log.truncations:
                    self._begin_again(first)
                elif is_full:
                    break
        except CorruptRecordError as error:
            if self._seen != self._log.settled_truncations():
                self._begin_again(first)
                return next(self)
            self._error = error
        except OffsetOutOfRangeError as error:
            self._error = error
        batch = self._taken()
        if batch is None:
            if self._error is not None:
                raise self._error
            self._let_go()
            raise StopIteration
        return batch

    def count(self) -> int:
        """
        Return the number of records, and end the iteration.

        Batches wholly inside the range count as their headers say; their records are not looked at.
        """
        assert self._layout is None
        first = self._gather.start_offset
        self._check_range()
        total = 0
        try:
            while self._gather.start_offset < self._stop:
                self._step()
                total += len(self._records) + self._gather.rows
                self._records.clear()
                self._gather.rows = 0
                if self._seen != self._log.truncations:
                    self._begin_again(first)
                    total = 0
        except CorruptRecordError:
            if self._seen == self._log.settled_truncations():
                raise
            self._begin_again(first)
            return self.count()
        self._let_go()
        return total

    def _begin_again(self, first: int) -> None:
        """
        Drop what was made of files that a truncation has cut, or is cutting, meanwhile.

        Raises:
            OffsetOutOfRangeError: It has cut the range.
        """
        self._seen = self._log.truncations
        self._columns = self._section = self._section_batch = None
        self._records = []
        self._gather.rows = 0
        self._gather.start_offset = first
        self.relocate()
        self._check_range()

    def discard(self) -> None:
        """Do nothing: what was made was taken."""

    def relocate(self) -> None:
        """Forget the files: the next step finds its place in the log's present segments."""
        self._has_found = False
        self._handle = None
        self._segments = []

    def _check_range(self) -> None:
        """Raise unless the log is open and the range is as it was when it was fixed."""
        log, stop = self._log, self._stop
        end = log.reading_end(self._isolation)  # ClosedError if the log was closed.
        lowest = log.truncated_to(self._truncations)
        if lowest is not None:
            end = min(end, lowest)
        if end < stop and self._gather.start_offset < stop:
            first = log.log_start_offset
            raise OffsetOutOfRangeError(
                f"offsets [{end}, {stop}) of the scan are gone, or others, since it was first used:"
                f" the log was truncated; scan again, or up to {end}",
                log_start_offset=first,
                log_end_offset=end,
                offset=end,
            )

    def _let_go(self) -> None:
        self._mapped = self._buffer = self._section = self._section_batch = None
        self._view = memoryview(b"")
        self._handle = None
        self._segments = []

    # -- record batches ----------------------------------------------------------------------------

    def _taken(self) -> Any:
        """Return the rows that there are as a record batch, None if there are none."""
        columns, self._columns = self._columns, None
        if columns is not None and self._gather.rows > 0:
            self._key_bytes = max(KEY_BYTES_MIN, self._gather.keys.size * 5 // 4)
            self._key_bytes = min(self._key_bytes, BATCH_BYTES)
            return columns.finish()
        if self._records and self._layout is not None:
            records, self._records = self._records, []
            return self._layout.from_records(records)
        return None

    def _make_columns(self, record_count: int, size_bytes: int) -> bool:
        """
        Have buffers to append rows to; False: records of magic 0 or 1 have to be taken first.

        Rows are guessed from the batch at hand: records of this size until the bytes are enough.
        """
        if self._records:
            return False
        if self._columns is not None:
            return True
        layout = self._layout
        if layout is None:
            self._gather.rows_max = 2**62
            return True
        rows_max = min(self._batch_rows, self._stop - self._gather.start_offset)
        if layout.has_bytes and record_count > 0 and size_bytes > 0:
            record_count = min(record_count, size_bytes // RECORD_BYTES_MIN)
            wanted = VIEWED_BATCH_BYTES if layout.has_views else BATCH_BYTES
            guess = wanted * record_count * 5 // (size_bytes * 4)
            rows_max = min(rows_max, max(guess, ROWS_MIN))
        self._columns = ColumnBuffers(layout, self._gather, rows_max, BATCH_BYTES, self._key_bytes)
        return True

    def _step(self) -> bool:
        """Append some rows; True: the record batch is full, or has to end here."""
        try:
            if self._section is not None:
                return self._put_section()
            if self._at_bytes():
                return self._put_batches()
        except ClosedError:
            if not self._lost_segment():
                raise
            return False
        self._gather.start_offset = self._stop  # Only offsets without records are left.
        return False

    def _lost_segment(self) -> bool:
        """Find the place again if a segment went away under the read, and the log did not."""
        self._log.reading_end(self._isolation)
        had_found = self._has_found
        self.relocate()
        return had_found

    def _flags(self) -> int:
        delivers = self._isolation != "read_committed" or self._aborted is NONE_ABORTED
        flags = GATHER_CRC if self._verify_crc else 0
        if delivers:
            flags |= GATHER_TRANSACTIONAL
        if delivers or self._aborted is None:
            flags |= GATHER_PASS_CONTROL
        return flags if self._layout is not None else flags | GATHER_COUNT

    def _put_batches(self, end: int | None = None, flags: int = 0) -> bool:
        """Append what C makes of the bytes at hand; go past a batch that it leaves to Python."""
        gather = self._gather
        at = gather.position
        header = self._view[at : at + HEADER_BYTES]
        size_bytes = LOG_OVERHEAD + int.from_bytes(header[8:LOG_OVERHEAD], "big")
        record_count = int.from_bytes(header[RECORD_COUNT_AT:], "big", signed=True)
        if not self._make_columns(record_count, size_bytes):
            return True
        columns = self._columns
        if columns is not None and columns.has_views:
            columns.point_into(self._viewed())
        gather.flags = self._flags() | flags
        stop = gather_batches(self._address, self._filled if end is None else end, gather)
        if stop == BlockStop.END:
            return False
        if stop == BlockStop.FULL:
            assert columns is not None
            return not columns.make_room()
        if stop == BlockStop.BOUND:
            self._is_beyond()
            gather.start_offset = self._stop
            return False
        if stop == BlockStop.TORN:
            self._read_more()
            return False
        if stop == BlockStop.INVALID and flags:
            raise self._damage(InvalidRecordError(MALFORMED))
        return self._take_batch(stop)

    def _take_batch(self, stop: int) -> bool:
        """Take one batch that C left to Python."""
        data = self._view[self._gather.position : self._filled]
        try:
            batch = next(iterate_batches(data), None)
            if batch is not None:
                if self._verify_crc:
                    batch.ensure_valid()
                return self._take(batch, stop)
        except (CorruptRecordError, InvalidRecordError, UnsupportedCompressionTypeError) as error:
            if self._is_beyond():
                self._gather.start_offset = self._stop  # An append that is under way.
                return False
            raise self._damage(error) from error
        self._read_more()  # C does not look at the size of a magic 0 or 1 entry.
        return False

    def _take(self, batch: Batch, stop: int) -> bool:
        if not isinstance(batch, RecordBatch):
            if self._columns is not None and self._gather.rows > 0:
                return True  # What C has made is taken first.
            self._columns = None
            first = self._gather.start_offset
            records = batch.records(bytes_max=self._log.decompressed_bytes_max)
            self._go_past(batch)
            self._records += [each for each in records if first <= each.offset < self._stop]
            return len(self._records) >= min(self._batch_rows, BATCH_ROWS)
        if self._skips(batch) or batch.record_count == 0:
            self._go_past(batch)
        elif batch.is_compressed:
            self._open_section(batch)
        elif stop == BlockStop.TRANSACTIONAL:
            if not self._flags() & GATHER_TRANSACTIONAL:
                # One batch that was not aborted, in a segment where another was.
                end = self._gather.position + batch.size_bytes
                return self._put_batches(end, GATHER_TRANSACTIONAL)
        else:
            # C refused it although its CRC is right: the records break the format.
            raise InvalidRecordError(MALFORMED)
        return False

    def _go_past(self, batch: Batch) -> None:
        gather = self._gather
        gather.start_offset = max(gather.start_offset, batch.next_offset)
        gather.position += batch.size_bytes
        gather.record_position = gather.record_index = 0

    # -- compressed batches ------------------------------------------------------------------------

    def _open_section(self, batch: RecordBatch) -> None:
        data = batch.section(bytes_max=self._log.decompressed_bytes_max)
        layout = self._layout
        self._section = data if layout is None else layout.pa.py_buffer(data)
        self._section_batch = batch

    def _put_section(self) -> bool:
        gather, section, batch = self._gather, self._section, self._section_batch
        assert batch is not None
        size_bytes = len(section)
        if not self._make_columns(batch.record_count, size_bytes):
            return True
        columns = self._columns
        if columns is not None and columns.has_views:
            columns.point_into(section)
        position = gather.position  # Of the batch; C counts in the section.
        stop = gather_section(
            address_of(section) if columns is None else section.address,
            size_bytes,
            gather,
            base_offset=batch.base_offset,
            base_timestamp=batch.base_timestamp,
            max_timestamp=batch.max_timestamp,
            last_offset_delta=batch.last_offset - batch.base_offset,
            record_count=batch.record_count,
            leader_epoch=batch.leader_epoch,
            timestamp_type=int(batch.timestamp_type),
        )
        gather.position = position
        if stop == BlockStop.FULL:
            assert columns is not None
            return not columns.make_room()
        if stop == BlockStop.INVALID:
            raise self._damage(InvalidRecordError(MALFORMED))
        self._section = self._section_batch = None
        if stop == BlockStop.BOUND:
            gather.start_offset = self._stop
        else:
            self._go_past(batch)
        return False

    # -- aborted transactions ----------------------------------------------------------------------

    def _skips(self, batch: RecordBatch) -> bool:
        if self._isolation != "read_committed" or batch.producer_id < 0:
            return batch.is_control
        if batch.is_transactional and not batch.is_control:
            self._collect_aborted()
        if self._aborted is None:
            return batch.is_control
        return self._aborted.is_aborted(batch)

    def _collect_aborted(self) -> None:
        """Learn what was aborted from here on, when the first transaction of a segment is met."""
        if self._aborted is not None:
            return
        aborted: list[AbortedTxn] = []
        for segment in reversed(self._segments):
            found, is_complete = segment.collect_aborted_txns(self._gather.start_offset, self._stop)
            aborted += found
            if is_complete:
                break
        self._aborted = AbortedTransactions(aborted) if aborted else NONE_ABORTED

    # -- files -------------------------------------------------------------------------------------

    def _at_bytes(self) -> bool:
        """Have the next batch, or a part of it, at hand; False: there is none."""
        while True:
            if not self._segments:
                if self._has_found:
                    return False  # The last segment was read.
                self._find_segments()
                continue
            if self._segments[-1].handle is not self._handle:
                self._enter_segment(self._segments[-1])
            elif self._gather.position < self._filled or self._read_chunk():
                return True
            else:
                self._segments.pop()
                self._handle = None

    def _find_segments(self) -> None:
        first, start = self._log.log_start_offset, self._gather.start_offset
        if start < first:
            raise OffsetOutOfRangeError(
                f"offset {start} is below the log start {first}: the records were deleted;"
                " scan from 'earliest'",
                log_start_offset=first,
                log_end_offset=self._log.reading_end(self._isolation),
                offset=start,
            )
        self._segments = list(reversed(self._log.reading_segments(start)))
        self._has_found = True
        assert self._segments  # A log has at least one.

    def _enter_segment(self, segment: LogSegment) -> None:
        """Go to the batch of the next offset in a segment, or to its end."""
        gather = self._gather
        self._handle = handle = segment.handle
        self._aborted = None
        self._mapped = self._buffer = None
        self._view = memoryview(b"")
        self._filled = self._origin = 0
        gather.position = gather.record_position = gather.record_index = 0
        position = 0
        if gather.start_offset > segment.base_offset:
            found = segment.translate_offset(gather.start_offset)
            position = segment.size_bytes if found is None else found.position
            if (found is None and len(self._segments) > 1) or (
                found and found.offset > gather.start_offset
            ):
                ensure_gap(segment, gather.start_offset)
        if len(self._segments) > 1 and segment.may_be_mapped:
            self._map(segment, handle, position)
        if self._mapped is None:
            self._origin = position

    def _map(self, segment: LogSegment, handle: FileHandle, position: int) -> None:
        size_bytes = segment.size_bytes
        if size_bytes <= position:
            return
        with handle.lease() as fd:
            if handle.files.size(fd) < size_bytes:
                return  # Somebody has cut it: reading says where it ends.
        mapping = self._mapped = segment.map_sealed()
        self._view = mapping.view
        self._address = mapping.address
        self._filled = min(size_bytes, mapping.size)
        self._gather.position = position

    def _viewed(self) -> Any:
        """Return the bytes at hand as an Arrow buffer that keeps them."""
        if self._buffer is None:
            mapped, layout = self._mapped, self._layout
            assert mapped is not None
            assert layout is not None
            self._buffer = layout.pa.foreign_buffer(self._address, self._filled, base=mapped)
        return self._buffer

    def _read_chunk(self, size_min: int = 0) -> bool:
        """Read the bytes from the next batch on; False: the segment ends there."""
        if self._mapped is not None:
            return False
        segment, handle, gather = self._segments[-1], self._handle, self._gather
        assert handle is not None
        start = self._origin + gather.position
        size = min(max(self._chunk_bytes, size_min), segment.size_bytes - start)
        if size <= 0:
            return False
        # The memory begins at the same place in a page as the file's bytes: copies that are 1 to 31
        # bytes off run at a quarter of the speed (PERFORMANCE.md 0.3).
        skew = start % PAGE_BYTES
        layout = self._layout
        if layout is not None and layout.has_views:
            whole = layout.pa.allocate_buffer(size + 2 * PAGE_BYTES)
            skew = (start - whole.address) % PAGE_BYTES
            self._buffer = whole.slice(skew, size)
            self._view = memoryview(whole)[skew : skew + size]
            self._address = whole.address + skew
            skew = 0
        elif len(self._view) < skew + size:
            capacity = -(-(skew + max(size, self._chunk_bytes)) // PAGE_BYTES) * PAGE_BYTES
            self._view = handle.files.page_aligned_buffer(capacity)
            self._address = address_of(self._view)
        with handle.lease() as fd:
            read = handle.files.pread_into(fd, self._view[skew : skew + size], start)
        self._chunk_bytes = min(CHUNK_BYTES, self._chunk_bytes * 4)
        self._origin = start - skew
        gather.position, self._filled = skew, skew + read
        return read > 0

    def _read_more(self) -> None:
        """Read the rest of the batch that the bytes at hand end in."""
        at = self._gather.position
        have = self._filled - at
        size = LOG_OVERHEAD + int.from_bytes(
            self._view[at + 8 : at + LOG_OVERHEAD], "big", signed=True
        )
        is_whole = self._read_chunk(size if have >= LOG_OVERHEAD else HEADER_UP_TO_MAGIC)
        if is_whole and self._filled - self._gather.position > have:
            return
        if have >= LOG_OVERHEAD and self._is_beyond():
            self._gather.start_offset = self._stop  # An append that is under way.
            return
        raise self._damage(
            CorruptRecordError("the segment ends inside a batch; run `logstore verify`")
        )

    def _is_beyond(self) -> bool:
        """Whether the batch at hand begins where the scan ends, or above; raises if it lies."""
        base_offset = self._base_offset()
        if base_offset < self._stop:
            return False
        try:
            position = self._origin + self._gather.position
            ensure_in_place(self._log, self._segments, position, base_offset)
        except CorruptRecordError as error:
            raise self._damage(error) from None
        return True

    def _base_offset(self) -> int:
        """Return the base offset of the batch at hand, unchecked."""
        at = self._gather.position
        return int.from_bytes(self._view[at : at + 8], "big", signed=True)

    def _damage(self, error: LogStoreError) -> CorruptRecordError:
        return CorruptRecordError(
            error.message,
            path=None if self._handle is None else self._handle.path,
            offset=self._gather.start_offset,
            position=self._origin + self._gather.position,
        )
