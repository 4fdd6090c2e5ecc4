"""
Iteration over the records of a log, in blocks that C makes.

============  =====================================  ==============================================
batch         decoded by                             delivered
============  =====================================  ==============================================
plain v2      C, what is in the buffer at a time     yes
compressed    ``compression.py``, then C             yes
magic 0, 1    ``legacy.py``                          yes
transaction   as above                               read_committed: unless it was aborted
control       only its type is looked at             never; its offsets are stepped over
damaged       nobody                                 CorruptRecordError, once what is before it was
============  =====================================  ==============================================

Reads are bounded: the end is fixed when the first record is asked for. Nothing here takes a lock
or writes, and no read holds a file open between two blocks.

Source: Kafka ``UnifiedLog.read`` and the consumer's ``CompletedFetch``; spec 5.6.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar
from weakref import WeakSet

from logstore._native import BLOCK_RECORDS_MAX, BlockIterator, BlockStop, fill_records, read_block
from logstore.aborted_finder import is_abort_marker
from logstore.damage import SkippedRange, ensure_gap, sound_batch_after
from logstore.errors import (
    ClosedError,
    CorruptRecordError,
    InvalidRecordError,
    LogStoreError,
    OffsetOutOfRangeError,
    UnsupportedCompressionTypeError,
)
from logstore.file_records import HEADER_UP_TO_MAGIC, LOG_OVERHEAD, AbortedTransaction
from logstore.given_records import milliseconds_of
from logstore.record import Record, RecordBatch, iterate_batches

if TYPE_CHECKING:
    from logstore.file_records import Batch, LogOffsetMetadata
    from logstore.files import FileHandle
    from logstore.index import AbortedTxn
    from logstore.segment import LogSegment, TimestampAndOffset

Start: TypeAlias = int | datetime | Literal["earliest", "latest"]
Isolation: TypeAlias = Literal["read_committed", "read_uncommitted", "log_end"]
OnCorrupt: TypeAlias = Literal["raise", "skip"]
ON_CORRUPT: Final = ("raise", "skip")
ISOLATIONS: Final = ("read_committed", "read_uncommitted", "log_end")

BLOCK_RECORDS: Final = min(4096, BLOCK_RECORDS_MAX)

# Of one decoded section: C walks to the first of each block again, so they are larger.
SECTION_BLOCK_RECORDS: Final = min(8192, BLOCK_RECORDS_MAX)

# The first read of a file is small, for reads of a few records; later ones grow to what fits the
# second level cache, where the records are made from.
FIRST_CHUNK_BYTES: Final = 16 << 10
CHUNK_BYTES: Final = 256 << 10
PAGE_BYTES: Final = 4096

ItemT_co = TypeVar("ItemT_co", covariant=True)


logger = logging.getLogger(__name__)


class ReadableLog(Protocol):
    """What reading needs of a log."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        ...

    @property
    def truncations(self) -> int:
        """A number that changes when a truncation begins, and when it ends."""
        ...

    def settled_truncations(self) -> int:
        """Return ``truncations`` after waiting for whoever changes the log now."""
        ...

    def truncated_to(self, since: int) -> int | None:
        """Return the lowest offset truncated to since ``truncations`` was that, else None."""
        ...

    @property
    def readers(self) -> WeakSet[RecordIterator[Any]]:
        """Reads that have begun; each is told to discard what it holds when the log closes."""
        ...

    @property
    def decompressed_bytes_max(self) -> int:
        """Largest decompressed batch."""
        ...

    def reading_end(self, isolation: Isolation) -> int:
        """Return the offset up to which may be read; ClosedError if the log is closed."""
        ...

    @property
    def log_end_offset_metadata(self) -> LogOffsetMetadata:
        """The log end offset and its place."""
        ...

    def reading_segments(self, offset: int) -> Sequence[LogSegment]:
        """Return the segments from the one that may hold ``offset`` on, ascending."""
        ...

    def fetch_offset_by_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        """Return the first record whose timestamp is at least this."""
        ...


def check_isolation(isolation: str) -> None:
    """Raise ValueError for an unknown isolation."""
    if isolation not in ISOLATIONS:
        raise ValueError(f"isolation {isolation!r} is not one of {', '.join(ISOLATIONS)}")


def start_offset(log: ReadableLog, start: Start, isolation: Isolation) -> int:
    """
    Return the offset at which a read begins.

    ``start`` is an offset within the log, a time (the first record at or after it, else the end),
    ``"earliest"`` or ``"latest"``.

    Raises:
        OffsetOutOfRangeError: The offset is below the log start or above the log end.
    """
    check_isolation(isolation)
    if isinstance(start, datetime):
        found = log.fetch_offset_by_timestamp(milliseconds_of(start))
        end = log.reading_end(isolation)
        return end if found is None else min(found.offset, end)
    if start == "earliest":
        return log.log_start_offset
    if start == "latest":
        return log.reading_end(isolation)
    if isinstance(start, bool) or not isinstance(start, int):
        raise TypeError(f"start is an offset, a datetime, 'earliest' or 'latest', not {start!r}")
    first, end = log.log_start_offset, log.reading_end("log_end")
    if not first <= start <= end:
        raise OffsetOutOfRangeError(
            f"offset {start} is not in the log, [{first}, {end}); read from 'earliest' or 'latest'",
            log_start_offset=first,
            log_end_offset=end,
            offset=start,
        )
    return start


def stop_offset(log: ReadableLog, stop: int | datetime | None, isolation: Isolation) -> int:
    """
    Return the offset before which a read ends: ``stop``, but never beyond what may be read.

    ``stop`` is an offset, exclusive; a time: the first record at or after it; None: the end.
    """
    end = log.reading_end(isolation)
    if stop is None:
        return end
    if isinstance(stop, datetime):
        found = log.fetch_offset_by_timestamp(milliseconds_of(stop))
        return end if found is None else min(found.offset, end)
    if isinstance(stop, bool) or not isinstance(stop, int):
        raise TypeError(f"stop is an offset, a datetime or None, not {stop!r}")
    if stop < 0:
        raise ValueError(f"stop {stop} is negative; give an offset, or None for the end")
    return min(stop, end)


def ensure_in_place(
    log: ReadableLog, segments: Sequence[LogSegment], position: int, base_offset: int
) -> None:
    """
    Raise if a batch that begins where a read ends, or above, cannot be there.

    No CRC covers base offsets: one that is too high would hide everything behind it.

    Args:
        log: What is read.
        segments: Still to be read; the last one has the batch.
        position: Of the batch.
        base_offset: The batch says that it begins there.

    Raises:
        CorruptRecordError: The next segment begins below it, or the log ends below it.
    """
    if len(segments) > 1:
        end = segments[-2].base_offset
    else:
        log_end = log.log_end_offset_metadata
        if (
            segments[-1].base_offset != log_end.segment_base_offset
            or position >= log_end.relative_position_in_segment
        ):
            return  # An append that is under way, or was made since.
        end = log_end.message_offset
    if base_offset >= end:
        raise CorruptRecordError(
            f"a batch says that it begins at offset {base_offset}, and what follows it is at {end};"
            " run `logstore verify`"
        )


class AbortedTransactions:
    """
    Says which batches of a read_committed read belong to aborted transactions.

    Batches are shown to it in offset order, from the offset that the list was collected for.

    Source: Kafka ``CompletedFetch.consumeAbortedTransactionsUpTo``; spec 5.6.
    """

    __slots__ = ("_coming", "_open")

    def __init__(self, aborted: Iterable[AbortedTransaction | AbortedTxn]) -> None:
        self._coming = [(txn.first_offset, txn.producer_id) for txn in aborted]
        heapq.heapify(self._coming)
        self._open: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._coming or self._open)

    def is_aborted(self, batch: RecordBatch) -> bool:
        """Return whether a batch is to be skipped; an abort marker ends its transaction."""
        if batch.producer_id < 0:
            return False
        while self._coming and self._coming[0][0] <= batch.last_offset:
            self._open.add(heapq.heappop(self._coming)[1])
        if batch.is_control:
            if is_abort_marker(batch):
                self._open.discard(batch.producer_id)
            return True
        return batch.is_transactional and batch.producer_id in self._open


NONE_ABORTED: Final = AbortedTransactions(())


class _Section:
    """The records of one batch that C does not walk, delivered in blocks."""

    __slots__ = ("_arguments", "_data", "batch")

    def __init__(self, batch: RecordBatch, bytes_max: int) -> None:
        self.batch: Final = batch
        self._data = batch.section(bytes_max=bytes_max)
        self._arguments: dict[str, Any] = {
            "base_offset": batch.base_offset,
            "base_timestamp": batch.base_timestamp,
            "record_count": batch.record_count,
            "last_offset_delta": batch.last_offset - batch.base_offset,
            "timestamp_type": int(batch.timestamp_type),
            "max_timestamp": batch.max_timestamp,
            "leader_epoch": batch.leader_epoch,
        }

    def records(self, first: int, stop: int, limit: int) -> list[Record]:
        """Return at most ``limit`` records with offsets in [first, stop)."""
        return fill_records(
            self._data, **self._arguments, start_offset=first, stop_offset=stop, limit=limit
        )


class RecordIterator(BlockIterator[ItemT_co], Generic[ItemT_co]):
    """
    The records, or values, of a log from one offset up to an end that is fixed at the first step.

    **Lifetime**: raises ClosedError at the next step after the log was closed.

    **Thread rule**: one thread at a time; any number of iterators.

    Raises:
        CorruptRecordError: At damage, with its path, offset and position. What lies before it was
            delivered; a read from a later offset goes on behind it. With ``on_corrupt="skip"`` this
            one does, and ``skipped`` has what it left out.
        OffsetOutOfRangeError: The log start has overtaken this read.

    **Cost**: per record 100 ns, values 40 ns. 256 KiB of memory, more for larger batches.
    """

    __slots__ = (
        "__weakref__",
        "_aborted",
        "_block_first",
        "_buffer",
        "_chunk_bytes",
        "_filled",
        "_handle",
        "_has_begun",
        "_isolation",
        "_log",
        "_next",
        "_origin",
        "_position",
        "_records",
        "_remaining",
        "_replay",
        "_resume",
        "_section",
        "_segments",
        "_stop",
        "_stop_wanted",
        "_truncations",
        "_values_only",
        "on_corrupt",
        "skipped",
    )

    def __init__(
        self,
        log: ReadableLog,
        start: int,
        stop: int | datetime | None,
        isolation: Isolation,
        *,
        limit: int | None = None,
        values_only: bool = False,
        on_corrupt: OnCorrupt = "raise",
    ) -> None:
        assert start >= 0
        if on_corrupt not in ON_CORRUPT:
            raise ValueError(f"on_corrupt {on_corrupt!r} is not one of {', '.join(ON_CORRUPT)}")
        self.on_corrupt: Final[OnCorrupt] = on_corrupt
        #: What ``on_corrupt="skip"`` has left out so far, in the order of the offsets.
        self.skipped: list[SkippedRange] = []
        if limit is not None and limit < 0:
            raise ValueError(f"limit {limit} is negative; give how many records at most, or None")
        self._log = log
        self._isolation: Isolation = isolation
        self._values_only = values_only
        self._remaining = limit
        self._stop_wanted = stop
        self._stop = start
        self._has_begun = False
        self._next = start  # Below it everything is delivered, or is in the current block.
        self._block_first = start  # Below it everything was delivered before the current block.
        self._records: list[Record] | None = None  # Of a block of values, if Python made it,
        self._replay: tuple[int, int, int] | None = None  # and where C began, if it did.
        self._segments: list[LogSegment] = []  # Still to read; the current one is the last.
        self._handle: FileHandle | None = None  # The file that ``_origin`` is a position of.
        self._aborted: AbortedTransactions | None = None  # Of the current segment, once needed.
        self._section: _Section | None = None
        self._buffer = memoryview(b"")
        self._chunk_bytes = FIRST_CHUNK_BYTES
        self._origin = 0  # Position in the file of the buffer's first byte.
        self._filled = 0  # End of what was read into the buffer.
        self._position = 0  # In the buffer, of the next batch.
        self._resume = (0, 0)  # In a batch that was begun: position and index of the next record.
        self._truncations = log.truncations  # When the buffer was filled, or later.
        log.readers.add(self)

    @property
    def next_offset(self) -> int:
        """
        Where to read on: the offset after the last item that was taken.

        At the end it is after everything that was stepped over.
        """
        block, index = self._block, self._index
        if block is None or index == len(block):
            return self._next
        if index == 0:
            return self._block_first
        if not self._values_only:
            last: Any = block[index - 1]
            return int(last.offset) + 1
        if self._records is not None:
            return self._records[index - 1].offset + 1
        # Values do not know their offsets. The buffer is as it was when C made them.
        assert self._replay is not None
        position, record_position, record_index = self._replay
        replayed = read_block(
            self._buffer,
            position,
            self._filled,
            start_offset=self._block_first,
            max_records=index,
            verify_crc=False,
            transactional=True,
            record_position=record_position,
            record_index=record_index,
        )
        return int(replayed.items[-1].offset) + 1

    def discard(self) -> None:
        """Drop what was made but not taken: the log was closed, and the next step has to say so."""
        self._next = self.next_offset
        self._discard()

    def relocate(self) -> None:
        """Forget the files: the next block finds its place in the log's present segments."""
        self._handle = None
        self._segments = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} next_offset={self.next_offset}>"

    # -- blocks ------------------------------------------------------------------------------------

    def _next_block(self) -> list[Any] | None:
        end = self._log.reading_end(self._isolation)  # ClosedError if the log was closed.
        if self._has_begun:
            self._stop = min(self._stop, end)  # The log may have been truncated.
        else:
            self._has_begun = True
            self._stop = stop_offset(self._log, self._stop_wanted, self._isolation)
        self._block_first = self._next
        self._records = self._replay = None
        if self._truncations != self._log.truncations:
            self._read_again()

        while self._next < self._stop and self._remaining != 0:
            items: list[Any] | None = None
            try:
                if self._section is not None:
                    items = self._section_block(self._section)
                elif self._at_bytes():
                    items = self._plain_block()
                else:
                    self._next = self._stop  # Only offsets without records are left.
            except ClosedError:
                if not self._lost_segment():
                    raise
                continue
            except CorruptRecordError as error:
                if self._truncations == self._log.settled_truncations():
                    if self.on_corrupt == "raise" or not self._segments:
                        if error.offset is None:
                            error.offset = self._next
                        raise
                    self._skip(error)
                    continue
            if self._truncations != self._log.truncations and not self._is_kept(items):
                self._read_again()
                continue
            if items:
                if self._remaining is not None:
                    self._remaining -= len(items)
                return items
        self._buffer = memoryview(b"")
        self._origin += self._position  # Where a read that goes on does so.
        self._filled = self._position = 0
        return None

    def _is_kept(self, items: list[Any] | None) -> bool:
        """Whether items were in the log when they were read: truncations since went less deep."""
        lowest = self._log.truncated_to(self._truncations)
        return bool(items) and lowest is not None and lowest >= self._next

    def _read_again(self) -> None:
        """
        Drop what was not delivered yet of files that a truncation has cut, or is cutting.

        Raises:
            OffsetOutOfRangeError: The log was truncated below this read.
        """
        lowest = self._log.truncated_to(self._truncations)
        self._truncations = self._log.truncations
        self._next = self._block_first
        self._section = None
        self._filled = self._position = 0
        self._resume = (0, 0)
        self.relocate()
        self._stop = min(self._stop, self._log.reading_end(self._isolation))
        if lowest is not None and lowest < self._next:
            raise OffsetOutOfRangeError(
                f"offset {self._next} is beyond {lowest}, to which the log was truncated while it"
                f" was read; read on from {lowest}",
                log_start_offset=self._log.log_start_offset,
                log_end_offset=lowest,
                offset=self._next,
            )

    def _skip(self, error: CorruptRecordError) -> None:
        """Go on behind damage in the current segment, and report what that leaves out."""
        segment = self._segments[-1]
        position = self._origin + self._position if error.position is None else error.position
        end_offset = self._segments[-2].base_offset if len(self._segments) > 1 else self._stop
        sound = sound_batch_after(segment, position, self._next, end_offset)
        self._section = None
        self._aborted = None  # The marker that ends a transaction may be among what is skipped.
        self._resume = (0, 0)
        self._filled = self._position = 0
        if sound is None:
            self._segments.pop()
        else:
            self._handle, self._origin = segment.handle, sound.position
            end_offset = sound.base_offset
        stop = min(max(end_offset, self._next), self._stop)
        skipped = SkippedRange(self._next, stop, segment.log_path, position, error.message)
        self._next = stop
        if skipped.start == stop:
            message = "%s: damage at position %d, where no offset is missing: %s"
            logger.warning(message, skipped.path, position, skipped.reason)
            return
        self.skipped.append(skipped)
        logger.warning(
            "%s: skipped offsets %d to %d because of damage at position %d: %s",
            skipped.path,
            skipped.start,
            skipped.stop - 1,
            skipped.position,
            skipped.reason,
        )

    def _lost_segment(self) -> bool:
        """Find the place again if a segment went away under the read, and the log did not."""
        self._log.reading_end(self._isolation)
        handle = self._handle
        self.relocate()
        return handle is not None

    def _limit(self, records_max: int) -> int:
        return records_max if self._remaining is None else min(records_max, self._remaining)

    def _plain_block(self) -> list[Any] | None:
        """Return what C makes of the buffer; go past a batch that it leaves to Python."""
        position, (record_position, record_index) = self._position, self._resume
        first = self._next
        block = read_block(
            self._buffer,
            position,
            self._filled,
            start_offset=first,
            stop_offset=self._stop,
            max_records=self._limit(BLOCK_RECORDS),
            values_only=self._values_only,
            transactional=self._passes_transactions(),
            record_position=record_position,
            record_index=record_index,
        )
        self._position = block.next_position
        self._resume = (block.record_position, block.record_index)
        self._next = block.next_offset
        if block.items:
            self._replay = (position, record_position, record_index)
            return block.items
        stop = block.stop
        if stop in (BlockStop.END, BlockStop.FULL):
            return None
        if stop == BlockStop.BOUND:
            self._is_beyond()
            self._next = self._stop
            return None
        if stop == BlockStop.TORN:
            self._read_more()
            return None
        return self._batch_block()

    def _batch_block(self) -> list[Any] | None:
        """Take one batch that C left to Python; its section is delivered by later calls."""
        data = self._buffer[self._position : self._filled]
        try:
            batch = next(iterate_batches(data), None)
            if batch is not None:
                batch.ensure_valid()
                return self._take(batch)
        except (CorruptRecordError, InvalidRecordError, UnsupportedCompressionTypeError) as error:
            if self._is_beyond():
                self._next = self._stop  # An append that is under way.
                return None
            raise self._damage(error) from error
        self._read_more()  # C does not look at the size of a magic 0 or 1 entry.
        return None

    def _take(self, batch: Batch) -> list[Any] | None:
        if isinstance(batch, RecordBatch):
            if self._skips(batch) or batch.record_count == 0:
                self._go_past(batch)
            elif not (batch.is_compressed or batch.is_transactional):
                # C refused it although its CRC is right: the records break the format.
                raise InvalidRecordError("the records of a batch break the format")
            else:
                self._section = _Section(batch, self._log.decompressed_bytes_max)
            return None
        records = batch.records(bytes_max=self._log.decompressed_bytes_max)
        self._go_past(batch)
        wanted = [record for record in records if self._block_first <= record.offset < self._stop]
        return self._made(wanted[: self._limit(len(wanted))])

    def _skips(self, batch: RecordBatch) -> bool:
        if self._isolation != "read_committed" or batch.producer_id < 0:
            return batch.is_control
        if batch.is_transactional and not batch.is_control:
            self._collect_aborted()
        if self._aborted is None:
            return batch.is_control
        return self._aborted.is_aborted(batch)

    def _go_past(self, batch: Batch) -> None:
        self._next = max(self._next, batch.next_offset)
        self._position += batch.size_bytes
        self._resume = (0, 0)

    def _section_block(self, section: _Section) -> list[Any] | None:
        limit = self._limit(SECTION_BLOCK_RECORDS)
        try:
            records = section.records(self._next, self._stop, limit)
        except InvalidRecordError as error:
            raise self._damage(error) from error
        if len(records) == limit:
            self._next = records[-1].offset + 1
        else:
            self._go_past(section.batch)
            self._section = None
        return self._made(records)

    def _made(self, records: list[Record]) -> list[Any]:
        """Return a block of what Python decoded."""
        if records and self._remaining == len(records):
            self._next = records[-1].offset + 1  # The last of a limited read.
        if not self._values_only:
            return records
        self._records = records
        return [record.value for record in records]

    # -- aborted transactions ----------------------------------------------------------------------

    def _passes_transactions(self) -> bool:
        """Whether C may deliver the batches of transactions: none in this segment was aborted."""
        return self._isolation != "read_committed" or self._aborted is NONE_ABORTED

    def _collect_aborted(self) -> None:
        """Learn what was aborted from here on, when the first transaction of a segment is met."""
        if self._aborted is not None:
            return
        aborted: list[AbortedTxn] = []
        for segment in reversed(self._segments):
            found, is_complete = segment.collect_aborted_txns(self._next, self._stop)
            aborted += found
            if is_complete:
                break
        self._aborted = AbortedTransactions(aborted) if aborted else NONE_ABORTED

    # -- files -------------------------------------------------------------------------------------

    def _at_bytes(self) -> bool:
        """Have the next batch, or a part of it, in the buffer; False: there is none."""
        while True:
            if not self._segments:
                if self._handle is not None:
                    return False  # The last segment was read.
                self._find_segments()
                continue
            if self._segments[-1].handle is not self._handle:
                self._enter_segment(self._segments[-1])
            elif self._position < self._filled or self._read_chunk():
                return True
            else:
                self._segments.pop()
                self._aborted = None
                if self._segments:
                    self._enter_segment(self._segments[-1])

    def _find_segments(self) -> None:
        first = self._log.log_start_offset
        if self._next < first:
            raise OffsetOutOfRangeError(
                f"offset {self._next} is below the log start {first}: the records were deleted"
                " while they were read; read from 'earliest'",
                log_start_offset=first,
                log_end_offset=self._log.reading_end(self._isolation),
                offset=self._next,
            )
        self._segments = list(reversed(self._log.reading_segments(self._next)))
        assert self._segments  # A log has at least one.

    def _enter_segment(self, segment: LogSegment) -> None:
        """Go to the batch of the next offset in a segment, or to its end."""
        self._handle = segment.handle
        self._aborted = None
        self._resume = (0, 0)
        self._filled = self._position = 0
        self._origin = 0
        if self._next > segment.base_offset:
            found = segment.translate_offset(self._next)
            if (found is None and len(self._segments) > 1) or (found and found.offset > self._next):
                try:
                    ensure_gap(segment, self._next)
                except CorruptRecordError:
                    self._handle = None  # Another step finds the same.
                    raise
            # None is there; or damage is in the way, which is met from there on.
            self._origin = segment.headers_end(self._next) if found is None else found.position

    def _read_chunk(self, size_min: int = 0) -> bool:
        """Fill the buffer from the next batch on; False: the segment ends there."""
        segment, handle = self._segments[-1], self._handle
        assert handle is not None
        start = self._origin + self._position
        size = min(max(self._chunk_bytes, size_min), segment.size_bytes - start)
        if size <= 0:
            return False
        # The buffer begins at the same place in a page as the file's bytes: copies that are
        # 1 to 31 bytes off run at a quarter of the speed (PERFORMANCE.md 0.3).
        skew = start % PAGE_BYTES
        if len(self._buffer) < skew + size:
            capacity = -(-(skew + max(size, self._chunk_bytes)) // PAGE_BYTES) * PAGE_BYTES
            self._buffer = handle.files.page_aligned_buffer(capacity)
        with handle.lease() as fd:
            read = handle.files.pread_into(fd, self._buffer[skew : skew + size], start)
        self._chunk_bytes = min(CHUNK_BYTES, self._chunk_bytes * 4)
        if read == 0:
            raise self._damage(
                CorruptRecordError("the file ends before what was written; run `logstore verify`")
            )
        self._origin = start - skew
        self._position, self._filled = skew, skew + read
        self._resume = (0, 0)
        return True

    def _read_more(self) -> None:
        """Read the rest of the batch that the buffer ends in."""
        have = self._filled - self._position
        size = LOG_OVERHEAD + int.from_bytes(
            self._buffer[self._position + 8 : self._position + LOG_OVERHEAD], "big", signed=True
        )
        is_whole = self._read_chunk(size if have >= LOG_OVERHEAD else HEADER_UP_TO_MAGIC)
        if is_whole and self._filled - self._position > have:
            return
        if have >= LOG_OVERHEAD and self._is_beyond():
            self._next = self._stop  # An append that is under way.
            return
        raise self._damage(
            CorruptRecordError("the segment ends inside a batch; run `logstore verify`")
        )

    def _is_beyond(self) -> bool:
        """Whether the batch at hand begins where the read ends, or above; raises if it lies."""
        base_offset = self._base_offset()
        if base_offset < self._stop:
            return False
        try:
            ensure_in_place(self._log, self._segments, self._origin + self._position, base_offset)
        except CorruptRecordError as error:
            raise self._damage(error) from None
        return True

    def _base_offset(self) -> int:
        """Return the base offset of the batch at hand, unchecked."""
        return int.from_bytes(self._buffer[self._position : self._position + 8], "big", signed=True)

    def _damage(self, error: LogStoreError) -> CorruptRecordError:
        return CorruptRecordError(
            error.message,
            path=None if self._handle is None else self._handle.path,
            offset=self._next,
            position=self._origin + self._position,
        )
