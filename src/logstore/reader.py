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

Reads are bounded: the end is fixed when the first record is asked for. ``segment_walk.py`` has the
way through the files.

Source: Kafka ``UnifiedLog.read`` and the consumer's ``CompletedFetch``; spec 5.6.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar

from logstore._native import BLOCK_RECORDS_MAX, BlockIterator, BlockStop, fill_records, read_block
from logstore.damage import SkippedRange, sound_batch_after
from logstore.errors import (
    ClosedError,
    CorruptRecordError,
    InvalidRecordError,
    OffsetOutOfRangeError,
    UnsupportedCompressionTypeError,
)
from logstore.readable_log import Isolation, ReadableLog, stop_offset
from logstore.record import Record, RecordBatch
from logstore.segment_walk import MALFORMED, SegmentWalk

if TYPE_CHECKING:
    from logstore.file_records import Batch

OnCorrupt: TypeAlias = Literal["raise", "skip"]
ON_CORRUPT: Final = ("raise", "skip")

BLOCK_RECORDS: Final = min(4096, BLOCK_RECORDS_MAX)

# Of one decoded section: C walks to the first of each block again, so they are larger.
SECTION_BLOCK_RECORDS: Final = min(8192, BLOCK_RECORDS_MAX)

# What fits the second level cache, where the records are made from.
CHUNK_BYTES: Final = 256 << 10

ItemT_co = TypeVar("ItemT_co", covariant=True)


logger = logging.getLogger(__name__)


class Section:
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

    def covers(self, offset: int) -> bool:
        """Whether the batch spans an offset."""
        return self.batch.base_offset <= offset <= self.batch.last_offset

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
        "_block_first",
        "_has_begun",
        "_log",
        "_records",
        "_remaining",
        "_replay",
        "_section",
        "_stop_wanted",
        "_truncations",
        "_values_only",
        "_walk",
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
        self._walk: Final = SegmentWalk(log, isolation, start, start, chunk_bytes=CHUNK_BYTES)
        self._values_only = values_only
        self._remaining = limit
        self._stop_wanted = stop
        self._has_begun = False
        self._block_first = start  # Below it everything was delivered before the current block.
        self._records: list[Record] | None = None  # Of a block of values, if Python made it,
        self._replay: tuple[int, int, int] | None = None  # and where C began, if it did.
        self._section: Section | None = None
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
            return self._walk.next_offset
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
            self._walk.view,
            position,
            self._walk.filled,
            start_offset=self._block_first,
            max_records=index,
            verify_crc=False,
            transactional=True,
            record_position=record_position,
            record_index=record_index,
        )
        return int(replayed.items[-1].offset) + 1

    @property
    def section(self) -> Section | None:
        """The batch that Python took apart, if it is not read to its end."""
        return self._section

    def discard(self) -> None:
        """Drop what was made but not taken: the log was closed, and the next step has to say so."""
        self._walk.next_offset = self.next_offset
        self._discard()

    def relocate(self) -> None:
        """Forget the files: the next block finds its place in the log's present segments."""
        self._walk.relocate()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} next_offset={self.next_offset}>"

    # -- blocks ------------------------------------------------------------------------------------

    def _next_block(self) -> list[Any] | None:
        walk = self._walk
        end = self._log.reading_end(walk.isolation)  # ClosedError if the log was closed.
        if self._has_begun:
            walk.stop = min(walk.stop, end)  # The log may have been truncated.
        else:
            self._has_begun = True
            walk.stop = stop_offset(self._log, self._stop_wanted, walk.isolation)
        self._block_first = walk.next_offset
        self._records = self._replay = None
        if self._truncations != self._log.truncations:
            self._read_again()

        while walk.next_offset < walk.stop and self._remaining != 0:
            items: list[Any] | None = None
            try:
                if self._section is not None:
                    items = self._section_block(self._section)
                elif walk.at_bytes():
                    items = self._plain_block()
                else:
                    walk.end()
            except ClosedError:
                if not walk.find_again():
                    raise
                continue
            except CorruptRecordError as error:
                if self._truncations == self._log.settled_truncations():
                    if self.on_corrupt == "raise" or not walk.segments:
                        if error.offset is None:
                            error.offset = walk.next_offset
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
        walk.let_go()
        return None

    def _is_kept(self, items: list[Any] | None) -> bool:
        """Whether items were in the log when they were read: truncations since went less deep."""
        lowest = self._log.truncated_to(self._truncations)
        return bool(items) and lowest is not None and lowest >= self._walk.next_offset

    def _read_again(self) -> None:
        """
        Drop what was not delivered yet of files that a truncation has cut, or is cutting.

        Raises:
            OffsetOutOfRangeError: The log was truncated below this read.
        """
        truncations = self._log.truncations  # First: the lowest target is of these, or of more.
        lowest = self._log.truncated_to(self._truncations)
        self._truncations = truncations
        walk = self._walk
        walk.next_offset = self._block_first
        self._section = None
        walk.drop()
        walk.relocate()
        walk.stop = min(walk.stop, self._log.reading_end(walk.isolation))
        if lowest is not None and lowest < walk.next_offset:
            first = self._log.log_start_offset
            resume = max(lowest, first)  # Perhaps the records there were deleted since.
            raise OffsetOutOfRangeError(
                f"offset {walk.next_offset} is beyond {lowest}, to which the log was truncated"
                f" while it was read; read on from {resume}",
                log_start_offset=first,
                log_end_offset=resume,
                offset=walk.next_offset,
            )

    def _skip(self, error: CorruptRecordError) -> None:
        """Go on behind damage in the current segment, and report what that leaves out."""
        walk = self._walk
        segment = walk.segments[-1]
        position = walk.origin + walk.position if error.position is None else error.position
        end_offset = walk.segments[-2].base_offset if len(walk.segments) > 1 else walk.stop
        sound = sound_batch_after(segment, position, walk.next_offset, end_offset)
        self._section = None
        if sound is None:
            walk.leave_segment()
        else:
            # The marker that ends a transaction may be among what is skipped: it forgets them.
            walk.go_to(sound.position, sound.base_offset)
            end_offset = sound.base_offset
        stop = min(max(end_offset, walk.next_offset), walk.stop)
        skipped = SkippedRange(walk.next_offset, stop, segment.log_path, position, error.message)
        walk.next_offset = stop
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

    def _limit(self, records_max: int) -> int:
        return records_max if self._remaining is None else min(records_max, self._remaining)

    def _plain_block(self) -> list[Any] | None:
        """Return what C makes of the buffer; go past a batch that it leaves to Python."""
        walk = self._walk
        position, (record_position, record_index) = walk.position, walk.resume
        block = read_block(
            walk.view,
            position,
            walk.filled,
            start_offset=walk.next_offset,
            stop_offset=walk.stop,
            base_offset_min=walk.base_offset_min,
            max_records=self._limit(BLOCK_RECORDS),
            values_only=self._values_only,
            transactional=walk.passes_transactions,
            record_position=record_position,
            record_index=record_index,
        )
        walk.position = block.next_position
        walk.resume = (block.record_position, block.record_index)
        walk.next_offset = block.next_offset
        walk.base_offset_min = block.base_offset_min
        if block.items:
            self._replay = (position, record_position, record_index)
            return block.items
        stop = block.stop
        if stop in (BlockStop.END, BlockStop.FULL):
            return None
        if stop == BlockStop.BOUND:
            walk.is_beyond()
            walk.end()
            return None
        if stop == BlockStop.TORN:
            walk.read_more()
            return None
        if stop == BlockStop.DISORDER:
            walk.pass_repeat()
            return None
        return self._batch_block()

    def _batch_block(self) -> list[Any] | None:
        """Take one batch that C left to Python; its section is delivered by later calls."""
        walk = self._walk
        try:
            batch = walk.batch_at_hand()
            if batch is not None:
                return self._take(batch)
        except (CorruptRecordError, InvalidRecordError, UnsupportedCompressionTypeError) as error:
            walk.judge(error)
            return None
        walk.read_more()  # C does not look at the size of a magic 0 or 1 entry.
        return None

    def _take(self, batch: Batch) -> list[Any] | None:
        walk = self._walk
        if isinstance(batch, RecordBatch):
            if walk.skips(batch) or batch.record_count == 0:
                walk.go_past(batch)
            elif not (batch.is_compressed or batch.is_transactional):
                # C refused it although its CRC is right: the records break the format.
                raise InvalidRecordError(MALFORMED)
            else:
                self._section = Section(batch, self._log.decompressed_bytes_max)
            return None
        records = batch.records(bytes_max=self._log.decompressed_bytes_max)
        walk.go_past(batch)
        wanted = [record for record in records if self._block_first <= record.offset < walk.stop]
        return self._made(wanted[: self._limit(len(wanted))])

    def _section_block(self, section: Section) -> list[Any] | None:
        walk = self._walk
        limit = self._limit(SECTION_BLOCK_RECORDS)
        try:
            records = section.records(walk.next_offset, walk.stop, limit)
        except InvalidRecordError as error:
            raise walk.damage(error) from error
        if len(records) == limit:
            walk.next_offset = records[-1].offset + 1
        else:
            walk.go_past(section.batch)
            self._section = None
        return self._made(records)

    def _made(self, records: list[Record]) -> list[Any]:
        """Return a block of what Python decoded."""
        if records and self._remaining == len(records):
            self._walk.next_offset = records[-1].offset + 1  # The last of a limited read.
        if not self._values_only:
            return records
        self._records = records
        return [record.value for record in records]
