"""
The walk of a read over a log's segments: where it is, and the bytes from there on.

::

    segments ─▶ the batch of an offset ─▶ pieces of the file ─▶ batch by batch ─▶ next segment

What a read makes of the batches is its own. Here is what all reads share: how they find a place and
find it again, which batches they leave out, and what they take for damage.

Nothing here takes a lock or writes, and no read holds a file open between two pieces.

Source: Kafka ``UnifiedLog.read``, ``FileRecords``; spec 4.5, 5.6; DESIGN.md D5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from logstore.aborted_transactions import NONE_ABORTED, AbortedTransactions, collect_aborted
from logstore.clock import SYSTEM_CLOCK
from logstore.damage import batch_of, ensure_gap, is_repeat
from logstore.errors import CorruptRecordError, LogStoreError, OffsetOutOfRangeError
from logstore.record import RecordBatch, iterate_batches
from logstore.records_builder import HEADER_UP_TO_MAGIC, LOG_OVERHEAD

if TYPE_CHECKING:
    from logstore.file_records import Batch
    from logstore.files import FileHandle
    from logstore.readable_log import Isolation, ReadableLog
    from logstore.segment import LogSegment

# The first read of a file is small, for reads of a few records; later ones grow.
FIRST_CHUNK_BYTES: Final = 16 << 10
PAGE_BYTES: Final = 4096
LOST_TIMES_MAX: Final = 50  # A deleted segment is looked for so often,
LOST_SECONDS: Final = 0.01  # with so much in between.

MALFORMED: Final = "the records of a batch break the format; run `logstore verify`"


class SegmentWalk:
    """
    The place of one read, and what is at hand there: the bytes ``view[position:filled]``.

    **Thread rule**: one thread at a time.

    Args:
        log: What is read.
        isolation: Which batches are left out, besides control batches.
        start: The offset to begin with.
        stop: The offset to end before.
        chunk_bytes: Of a file read at once, at most, unless a batch is larger.
    """

    __slots__ = (
        "_chunk_bytes",
        "_chunk_bytes_max",
        "_has_found",
        "_lost",
        "_lost_times",
        "aborted",
        "base_offset_min",
        "filled",
        "handle",
        "isolation",
        "log",
        "next_offset",
        "origin",
        "position",
        "resume",
        "segments",
        "stop",
        "view",
    )

    def __init__(
        self, log: ReadableLog, isolation: Isolation, start: int, stop: int, *, chunk_bytes: int
    ) -> None:
        self.log: Final = log
        self.isolation: Final[Isolation] = isolation
        #: Below it everything is delivered, or stepped over.
        self.next_offset = start
        self.stop = stop
        #: Still to read; the current one is the last.
        self.segments: list[LogSegment] = []
        self._has_found = False  # Else ``segments`` is not known yet.
        #: The file that ``origin`` is a position of.
        self.handle: FileHandle | None = None
        #: Of the current segment; None until its first transaction is met.
        self.aborted: AbortedTransactions | None = None
        self.view = memoryview(b"")
        #: Position in the file of the first byte of ``view``.
        self.origin = 0
        #: In ``view``, of the next batch.
        self.position = 0
        #: End of what was read into ``view``.
        self.filled = 0
        #: In a batch that was begun: position and index of the next record.
        self.resume = (0, 0)
        self._lost: LogSegment | None = None  # Was deleted under the read,
        self._lost_times = 0  # and found again so often.
        #: No batch from here on begins below it.
        self.base_offset_min = 0
        self._chunk_bytes = FIRST_CHUNK_BYTES
        self._chunk_bytes_max = chunk_bytes

    # -- place -------------------------------------------------------------------------------------

    def relocate(self) -> None:
        """Forget the files: the next step finds its place in the log's present segments."""
        self._has_found = False
        self.handle = None
        self.segments = []

    def drop(self) -> None:
        """Forget the bytes at hand; a walk that goes on reads from there again."""
        self.origin += self.position
        self.position = self.filled = 0
        self.resume = (0, 0)

    def let_go(self) -> None:
        """Give the memory back: nothing is left, or nobody knows for how long."""
        self.drop()
        self.view = memoryview(b"")

    def find_again(self) -> bool:
        """
        Find the place again after a segment went away under the read; False: there was none.

        Raises:
            ClosedError: The log was closed.
        """
        lost = self.segments[-1] if self.segments else None
        had_found = self._has_found
        if lost is None or lost is not self._lost:
            self._lost, self._lost_times = lost, 0
        else:  # The log has not learned of it yet: a writer is about to show itself.
            self._lost_times += 1
            had_found = had_found and self._lost_times < LOST_TIMES_MAX
            SYSTEM_CLOCK.sleep(LOST_SECONDS)
        self.log.reading_end(self.isolation)
        self.relocate()
        return had_found

    @property
    def is_at_last_end(self) -> bool:
        """Whether all segments that there were have been read."""
        return self._has_found and not self.segments

    def end(self) -> None:
        """Step over all that is left: only offsets without records."""
        self.next_offset = self.stop

    def go_to(self, position: int, base_offset: int) -> None:
        """Go on at the position of a batch in the current segment."""
        self.handle = self.segments[-1].handle
        self.aborted = None
        self.position = self.filled = 0
        self.resume = (0, 0)
        self.origin = position
        self.base_offset_min = base_offset

    def leave_segment(self) -> None:
        """Go on with the next segment."""
        self.segments.pop()
        self.handle = None
        self.position = self.filled = 0

    def go_past(self, batch: Batch) -> None:
        """Step over the batch at hand."""
        self.base_offset_min = max(self.base_offset_min, batch.next_offset)
        self.next_offset = max(self.next_offset, batch.next_offset)
        self.position += batch.size_bytes
        self.resume = (0, 0)

    # -- bytes -------------------------------------------------------------------------------------

    def at_bytes(self) -> bool:
        """Have the next batch, or a part of it, at hand; False: there is none."""
        while True:
            if not self.segments:
                if self._has_found:
                    return False  # The last segment was read.
                self._find_segments()
                continue
            segment = self.segments[-1]
            if segment.handle is not self.handle:
                self._enter(segment)
            elif self.position < self.filled or self._read_chunk():
                return True
            else:
                self.leave_segment()

    def read_more(self) -> None:
        """
        Read the rest of the batch that the bytes at hand end in.

        Raises:
            CorruptRecordError: The segment ends inside it, and it is not an append under way.
        """
        at, have = self.position, self.filled - self.position
        size = LOG_OVERHEAD + int.from_bytes(
            self.view[at + 8 : at + LOG_OVERHEAD], "big", signed=True
        )
        is_whole = self._read_chunk(size if have >= LOG_OVERHEAD else HEADER_UP_TO_MAGIC)
        if is_whole and self.filled - self.position > have:
            return
        if have >= LOG_OVERHEAD and self.is_beyond():
            self.end()  # An append that is under way.
            return
        raise self.damage(
            CorruptRecordError("the segment ends inside a batch; run `logstore verify`")
        )

    def _find_segments(self) -> None:
        first = self.log.log_start_offset
        if self.next_offset < first:
            raise OffsetOutOfRangeError(
                f"offset {self.next_offset} is below the log start {first}: the records were"
                " deleted while they were read; read from 'earliest'",
                log_start_offset=first,
                log_end_offset=self.log.reading_end(self.isolation),
                offset=self.next_offset,
            )
        self.segments = list(reversed(self.log.reading_segments(self.next_offset)))
        self._has_found = True
        assert self.segments  # A log has at least one.

    def _enter(self, segment: LogSegment) -> None:
        """Go to the batch of the next offset in a segment, or to its end."""
        position, base_offset_min = 0, segment.base_offset
        if self.next_offset > segment.base_offset:
            found = batch_of(segment, self.next_offset)
            if found is None or found.base_offset > self.next_offset:
                ensure_gap(segment, self.next_offset)
            if found is None:  # None is there; or damage is in the way, which is met from there on.
                position = segment.headers_end(self.next_offset)
            else:
                position, base_offset_min = found.position, found.base_offset
        self.go_to(position, base_offset_min)
        self._entered(segment)

    def _entered(self, segment: LogSegment) -> None:
        """Have a segment's bytes at hand, if there is a better way than to read pieces."""

    def _make_room(self, start: int, size: int) -> int:
        """
        Have ``view`` hold ``size`` bytes that begin at position ``start`` of the file.

        Returns:
            Where in ``view`` they go: at the same place in a page as in the file, as copies that
            are 1 to 31 bytes off run at a quarter of the speed (PERFORMANCE.md 0.3).
        """
        skew = start % PAGE_BYTES
        if len(self.view) < skew + size:
            handle = self.handle
            assert handle is not None
            capacity = -(-(skew + max(size, self._chunk_bytes)) // PAGE_BYTES) * PAGE_BYTES
            self.view = self._memory(handle, capacity)
        return skew

    def _memory(self, handle: FileHandle, size_bytes: int) -> memoryview:
        """Return page-aligned memory."""
        return handle.files.page_aligned_buffer(size_bytes)

    def _read_chunk(self, size_min: int = 0) -> bool:
        """Read the bytes from the next batch on; False: the segment ends there."""
        segment, handle = self.segments[-1], self.handle
        assert handle is not None
        start = self.origin + self.position
        size = min(max(self._chunk_bytes, size_min), segment.size_bytes - start)
        if size <= 0:
            return False
        skew = self._make_room(start, size)
        with handle.lease() as fd:
            read = handle.files.pread_into(fd, self.view[skew : skew + size], start)
        self._chunk_bytes = min(self._chunk_bytes_max, self._chunk_bytes * 4)
        if read == 0:
            raise self.damage(
                CorruptRecordError("the file ends before what was written; run `logstore verify`")
            )
        self.origin = start - skew
        self.position, self.filled = skew, skew + read
        self.resume = (0, 0)
        return True

    # -- batches -----------------------------------------------------------------------------------

    def batch_at_hand(self, *, verify_crc: bool = True) -> Batch | None:
        """
        Return the batch at hand; None: not all of it is.

        Raises:
            LogStoreError: It is damaged, or of a kind that nobody knows: for :meth:`judge`.
        """
        batch = next(iterate_batches(self.view[self.position : self.filled]), None)
        if batch is not None and verify_crc:
            batch.ensure_valid()
        if isinstance(batch, RecordBatch) and batch.base_offset < self.base_offset_min:
            raise self._disorder(batch.base_offset)
        return batch

    def judge(self, error: LogStoreError) -> None:
        """
        Take what the batch at hand broke for the end of the read, or for damage.

        Raises:
            CorruptRecordError: The batch lies below the end.
        """
        if not self.is_beyond():
            raise self.damage(error) from error
        self.end()  # An append that is under way.

    def pass_repeat(self) -> None:
        """
        Step over a batch that begins below the end of the one before, if it is that one again.

        Raises:
            CorruptRecordError: It is not: an offset is wrong, which no CRC covers.
        """
        segment, position = self.segments[-1], self.origin + self.position
        size = LOG_OVERHEAD + int.from_bytes(
            self.view[self.position + 8 : self.position + LOG_OVERHEAD], "big"
        )
        if len(self.segments) > 1:
            following = self.segments[-2].base_offset
        else:
            following = self.log.log_end_offset_metadata.message_offset
        if not is_repeat(segment, position, size, following):
            raise self.damage(self._disorder(self._base_offset()))
        self.position += size

    def _disorder(self, base_offset: int) -> CorruptRecordError:
        return CorruptRecordError(
            f"a batch says that it begins at offset {base_offset}, and the one before it ends at"
            f" {self.base_offset_min - 1}; run `logstore verify`"
        )

    def is_beyond(self) -> bool:
        """
        Whether the batch at hand begins where the read ends, or above.

        Raises:
            CorruptRecordError: It says so and cannot: the next segment begins below it, or the log
                ends below it. It would hide everything behind it.
        """
        base_offset = self._base_offset()
        if base_offset < self.stop:
            return False
        if len(self.segments) > 1:
            end = self.segments[-2].base_offset
        else:
            log_end = self.log.log_end_offset_metadata
            if (
                self.segments[-1].base_offset != log_end.segment_base_offset
                or self.origin + self.position >= log_end.relative_position_in_segment
            ):
                return True  # An append that is under way, or was made since.
            end = log_end.message_offset
        if base_offset >= end:
            raise self.damage(
                CorruptRecordError(
                    f"a batch says that it begins at offset {base_offset}, and what follows it is"
                    f" at {end}; run `logstore verify`"
                )
            )
        return True

    def _base_offset(self) -> int:
        """Return the base offset of the batch at hand, unchecked."""
        return int.from_bytes(self.view[self.position : self.position + 8], "big", signed=True)

    def damage(self, error: LogStoreError) -> CorruptRecordError:
        """Return the error to raise for the batch at hand."""
        return CorruptRecordError(
            error.message,
            path=None if self.handle is None else self.handle.path,
            offset=self.next_offset,
            position=self.origin + self.position,
        )

    # -- transactions ------------------------------------------------------------------------------

    @property
    def passes_transactions(self) -> bool:
        """Whether all transactions' batches are delivered: none in this segment was aborted."""
        return self.isolation != "read_committed" or self.aborted is NONE_ABORTED

    def skips(self, batch: RecordBatch) -> bool:
        """Whether a batch is not delivered; what was aborted is learnt when it is first needed."""
        if self.isolation != "read_committed" or batch.producer_id < 0:
            return batch.is_control
        if self.aborted is None and batch.is_transactional and not batch.is_control:
            aborted = collect_aborted(reversed(self.segments), self.next_offset, self.stop)
            self.aborted = AbortedTransactions(aborted) if aborted else NONE_ABORTED
        if self.aborted is None:
            return batch.is_control
        return self.aborted.is_aborted(batch)
