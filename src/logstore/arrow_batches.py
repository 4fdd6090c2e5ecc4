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
from logstore.arrow_buffers import INT32_MAX, KEY_BYTES_MIN, ColumnBuffers, Layout
from logstore.errors import (
    ClosedError,
    CorruptRecordError,
    InvalidRecordError,
    OffsetOutOfRangeError,
    UnsupportedCompressionTypeError,
)
from logstore.large_memory import LARGE_BYTES
from logstore.readable_log import ReadableLog
from logstore.record import RecordBatch
from logstore.records_builder import LOG_OVERHEAD
from logstore.segment_walk import MALFORMED, PAGE_BYTES, SegmentWalk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logstore.file_records import Batch
    from logstore.files import FileHandle
    from logstore.large_memory import LargeMemory
    from logstore.readable_log import Isolation
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
CHUNK_BYTES: Final = 1 << 20

RECORD_COUNT_AT: Final = 57
RECORD_BYTES_MIN: Final = 7
HEADER_BYTES: Final = 61


class ScannableLog(ReadableLog, Protocol):
    """What scanning needs of a log."""

    @property
    def directory(self) -> str:
        """Where it is."""
        ...


class MappedWalk(SegmentWalk):
    """A walk whose bytes C finds by their address: a mapping of a whole segment where it may be."""

    __slots__ = ("_buffer", "_large_memory", "_layout", "_mapped", "address")

    def __init__(
        self,
        log: ReadableLog,
        isolation: Isolation,
        start: int,
        stop: int,
        layout: Layout | None,
        large_memory: LargeMemory | None,
    ) -> None:
        super().__init__(log, isolation, start, stop, chunk_bytes=CHUNK_BYTES)
        self._layout = layout
        self._large_memory = large_memory
        self._mapped: Mapping | None = None  # The current segment.
        self._buffer: Any = None  # An Arrow buffer of the bytes at hand, for views.
        #: Of the first byte of ``view``.
        self.address = 0

    def let_go(self) -> None:
        """Give the memory back."""
        super().let_go()
        self._mapped = self._buffer = None
        self.relocate()

    def _entered(self, segment: LogSegment) -> None:
        if self._mapped is not None:
            self.view = memoryview(b"")
        self._mapped = self._buffer = None
        size_bytes = segment.size_bytes
        if len(self.segments) == 1 or not segment.may_be_mapped or size_bytes <= self.origin:
            return
        with segment.handle.lease() as fd:
            if segment.handle.files.size(fd) < size_bytes:
                return  # Somebody has cut it: reading says where it ends.
        mapping = self._mapped = segment.map_sealed()
        self.view = mapping.view
        self.address = mapping.address
        self.filled = min(size_bytes, mapping.size)
        self.position, self.origin = self.origin, 0

    def arrow_buffer(self) -> Any:
        """Return the bytes at hand as an Arrow buffer that keeps them."""
        if self._buffer is None:
            mapped, layout = self._mapped, self._layout
            assert mapped is not None
            assert layout is not None
            self._buffer = layout.pa.foreign_buffer(self.address, self.filled, base=mapped)
        return self._buffer

    def _read_chunk(self, size_min: int = 0) -> bool:
        return self._mapped is None and super()._read_chunk(size_min)

    def _memory(self, handle: FileHandle, size_bytes: int) -> memoryview:
        if self._large_memory is not None and size_bytes > LARGE_BYTES:
            return self._large_memory.take(size_bytes)
        return super()._memory(handle, size_bytes)

    def _make_room(self, start: int, size: int) -> int:
        layout = self._layout
        if layout is None or not layout.has_views:
            skew = super()._make_room(start, size)
            self.address = address_of(self.view)
            return skew
        whole = layout.pa.allocate_buffer(size + 2 * PAGE_BYTES)
        skew = (start - whole.address) % PAGE_BYTES
        self._buffer = whole.slice(skew, size)
        self.view = memoryview(whole)[skew : skew + size]
        self.address = whole.address + skew
        return 0


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
        batch_bytes: Bytes that a column of a record batch should have at most, up to 2^31 - 1.
        verify_crc: Check the CRC-32C of each batch right before it is decoded.
        truncations: ``log.truncations`` when the range was fixed.
        large_memory: For records that are very large; None: ordinary memory. Not with views.

    Raises:
        CorruptRecordError: At damage, with its path, offset and position.
        OffsetOutOfRangeError: The log was cut at one of its ends while it was read.
    """

    __slots__ = (
        "__weakref__",
        "_batch_bytes",
        "_batch_rows",
        "_columns",
        "_error",
        "_gather",
        "_key_bytes",
        "_large_memory",
        "_layout",
        "_log",
        "_records",
        "_section",
        "_section_batch",
        "_seen",
        "_truncations",
        "_verify_crc",
        "_walk",
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
        batch_bytes: int = BATCH_BYTES,
        verify_crc: bool = True,
        large_memory: LargeMemory | None = None,
    ) -> None:
        assert start >= 0
        assert batch_rows is None or batch_rows > 0
        assert 0 < batch_bytes <= INT32_MAX
        self._log = log
        self._layout = layout
        self._truncations: Final = truncations
        self._seen = log.truncations  # Before what is held here was read.
        self._batch_rows = BATCH_ROWS if batch_rows is None else min(batch_rows, BATCH_ROWS_MAX)
        self._verify_crc = verify_crc
        self._batch_bytes = batch_bytes
        self._key_bytes = min(KEY_BYTES_MIN, batch_bytes)
        self._gather = new_gather()
        self._gather.stop_offset = stop
        self._large_memory = large_memory
        self._walk: Final = MappedWalk(log, isolation, start, stop, layout, large_memory)
        self._columns: ColumnBuffers | None = None  # Of the record batch that is being made.
        self._records: list[Record] = []  # The same, of magic 0 and 1.
        self._error: BaseException | None = None  # To raise once what is before it was taken.
        self._section: Any = None  # What one compressed batch is, as an Arrow buffer, or bytes
        self._section_batch: RecordBatch | None = None
        log.readers.add(self)

    @property
    def next_offset(self) -> int:
        """Below it everything was delivered, or stepped over."""
        return self._walk.next_offset

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._error is not None:
            raise self._error
        walk = self._walk
        first = walk.next_offset
        self._check_range()
        try:
            while walk.next_offset < walk.stop:
                is_full = self._step()
                if self._seen != self._log.truncations:
                    self._begin_again(first)
                elif is_full:
                    break
        except CorruptRecordError as error:
            if self._seen != self._log.settled_truncations():
                self._begin_again(first)
                return next(self)
            if error.offset is None:
                error.offset = walk.next_offset
            self._error = error
        except OffsetOutOfRangeError as error:
            self._error = error
        batch = self._taken()
        if batch is None:
            if self._error is not None:
                raise self._error
            self._section = self._section_batch = None
            walk.let_go()
            raise StopIteration
        return batch

    def count(self) -> int:
        """
        Return the number of records, and end the iteration.

        Batches wholly inside the range count as their headers say; their records are not looked at.
        """
        assert self._layout is None
        walk = self._walk
        first = walk.next_offset
        self._check_range()
        total = 0
        try:
            while walk.next_offset < walk.stop:
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
        walk.let_go()
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
        self._walk.next_offset = first
        self.relocate()
        self._check_range()

    def discard(self) -> None:
        """Do nothing: what was made was taken."""

    def relocate(self) -> None:
        """Forget the files: the next step finds its place in the log's present segments."""
        self._walk.relocate()

    def _check_range(self) -> None:
        """Raise unless the log is open and the range is as it was when it was fixed."""
        log, walk = self._log, self._walk
        stop = walk.stop
        end = log.reading_end(walk.isolation)  # ClosedError if the log was closed.
        lowest = log.truncated_to(self._truncations)
        if lowest is not None:
            end = min(end, lowest)
        if end < stop and walk.next_offset < stop:
            first = log.log_start_offset
            raise OffsetOutOfRangeError(
                f"offsets [{end}, {stop}) of the scan are gone, or others, since it was first used:"
                f" the log was truncated; scan again, or up to {end}",
                log_start_offset=first,
                log_end_offset=end,
                offset=end,
            )

    # -- record batches ----------------------------------------------------------------------------

    def _taken(self) -> Any:
        """Return the rows that there are as a record batch, None if there are none."""
        columns, self._columns = self._columns, None
        if columns is not None and self._gather.rows > 0:
            self._key_bytes = max(KEY_BYTES_MIN, self._gather.keys.size * 5 // 4)
            self._key_bytes = min(self._key_bytes, self._batch_bytes)
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
        rows_max = min(self._batch_rows, self._walk.stop - self._walk.next_offset)
        if layout.has_bytes and record_count > 0 and size_bytes > 0:
            record_count = min(record_count, size_bytes // RECORD_BYTES_MIN)
            wanted = VIEWED_BATCH_BYTES if layout.has_views else self._batch_bytes
            guess = wanted * record_count * 5 // (size_bytes * 4)
            rows_max = min(rows_max, max(guess, ROWS_MIN))
        self._columns = ColumnBuffers(
            layout,
            self._gather,
            rows_max,
            self._batch_bytes,
            self._key_bytes,
            self._large_memory,
        )
        return True

    def _step(self) -> bool:
        """Append some rows; True: the record batch is full, or has to end here."""
        walk = self._walk
        try:
            if self._section is not None:
                return self._put_section()
            if walk.at_bytes():
                return self._put_batches()
        except ClosedError:
            if not walk.find_again():
                raise
            return False
        walk.end()  # Only offsets without records are left.
        return False

    def _flags(self) -> int:
        delivers = self._walk.passes_transactions
        flags = GATHER_CRC if self._verify_crc else 0
        if delivers:
            flags |= GATHER_TRANSACTIONAL
        if delivers or self._walk.aborted is None:
            flags |= GATHER_PASS_CONTROL
        return flags if self._layout is not None else flags | GATHER_COUNT

    def _put_batches(self, end: int | None = None, flags: int = 0) -> bool:
        """Append what C makes of the bytes at hand; go past a batch that it leaves to Python."""
        gather, walk = self._gather, self._walk
        at = walk.position
        header = walk.view[at : at + HEADER_BYTES]
        size_bytes = LOG_OVERHEAD + int.from_bytes(header[8:LOG_OVERHEAD], "big")
        record_count = int.from_bytes(header[RECORD_COUNT_AT:], "big", signed=True)
        if not self._make_columns(record_count, size_bytes):
            return True
        columns = self._columns
        if columns is not None and columns.has_views:
            columns.point_into(walk.arrow_buffer())
        gather.flags = self._flags() | flags
        gather.position = walk.position
        gather.base_offset_min = walk.base_offset_min
        self._tell_place()
        stop = gather_batches(walk.address, walk.filled if end is None else end, gather)
        walk.position = gather.position
        walk.base_offset_min = gather.base_offset_min
        self._take_place()
        if stop == BlockStop.END:
            return False
        if stop == BlockStop.FULL:
            assert columns is not None
            return not columns.make_room()
        if stop == BlockStop.BOUND:
            walk.is_beyond()
            walk.end()
            return False
        if stop == BlockStop.TORN:
            walk.read_more()
            return False
        if stop == BlockStop.DISORDER:
            walk.pass_repeat()
            return False
        if stop == BlockStop.INVALID and flags:
            raise walk.damage(InvalidRecordError(MALFORMED))
        return self._take_batch(stop)

    def _tell_place(self) -> None:
        gather, walk = self._gather, self._walk
        gather.start_offset = walk.next_offset
        gather.record_position, gather.record_index = walk.resume

    def _take_place(self) -> None:
        gather, walk = self._gather, self._walk
        walk.next_offset = gather.start_offset
        walk.resume = (gather.record_position, gather.record_index)

    def _take_batch(self, stop: int) -> bool:
        """Take one batch that C left to Python."""
        walk = self._walk
        try:
            batch = walk.batch_at_hand(verify_crc=self._verify_crc)
            if batch is not None:
                return self._take(batch, stop)
        except (CorruptRecordError, InvalidRecordError, UnsupportedCompressionTypeError) as error:
            walk.judge(error)
            return False
        walk.read_more()  # C does not look at the size of a magic 0 or 1 entry.
        return False

    def _take(self, batch: Batch, stop: int) -> bool:
        walk = self._walk
        if not isinstance(batch, RecordBatch):
            if self._columns is not None and self._gather.rows > 0:
                return True  # What C has made is taken first.
            self._columns = None
            first = walk.next_offset
            records = batch.records(bytes_max=self._log.decompressed_bytes_max)
            walk.go_past(batch)
            self._records += [each for each in records if first <= each.offset < walk.stop]
            return len(self._records) >= min(self._batch_rows, BATCH_ROWS)
        if walk.skips(batch) or batch.record_count == 0:
            walk.go_past(batch)
        elif batch.is_compressed:
            self._open_section(batch)
        elif stop == BlockStop.TRANSACTIONAL:
            if not self._flags() & GATHER_TRANSACTIONAL:
                # One batch that was not aborted, in a segment where another was.
                return self._put_batches(walk.position + batch.size_bytes, GATHER_TRANSACTIONAL)
        else:
            # C refused it although its CRC is right: the records break the format.
            raise InvalidRecordError(MALFORMED)
        return False

    # -- compressed batches ------------------------------------------------------------------------

    def _open_section(self, batch: RecordBatch) -> None:
        data = batch.section(self._log.decompressed_bytes_max, self._large_memory)
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
        self._tell_place()
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
        self._take_place()
        if stop == BlockStop.FULL:
            assert columns is not None
            return not columns.make_room()
        if stop == BlockStop.INVALID:
            raise self._walk.damage(InvalidRecordError(MALFORMED))
        self._section = self._section_batch = None
        if stop == BlockStop.BOUND:
            self._walk.end()
        else:
            self._walk.go_past(batch)
        return False
