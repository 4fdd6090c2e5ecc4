"""
One round of compaction on one log: a record whose key has a later one goes.

1. Build the offset map: the last offset of each key in the dirty part, as far as the map reaches.
2. Group the segments from the log's beginning to there, so that each group fits a new segment.
3. Write of each group what stays to a ``.cleaned`` segment, and swap it for the group.

Records above the end of the map stay, as do those in the active segment, above the last stable
offset and younger than ``min.compaction.lag.ms``. Offsets never change. A batch from which nothing
goes is copied byte for byte; of another one a new batch is made, of the same base and last offset,
producer, epoch, codec and timestamp type.

Batches pass through C, which decides record by record; what it leaves to Python are compressed and
control batches, those of transactions, and magic 0 and 1.

Where this is not Kafka (DESIGN.md D8): the CRC of every batch is checked before a record of it is
looked at, so that damage is neither believed nor sealed under a new CRC; renames are made durable
one step after the other; a round is given up, not completed, if the log was truncated meanwhile.

Source: Kafka ``Cleaner``; spec 7.2 to 7.5.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from logstore._native import (
    CLEAN_FULL,
    CLEAN_INVALID,
    CLEAN_LEGACY,
    CLEAN_SPECIAL,
    CLEAN_TORN,
    Pieces,
)
from logstore.batch_filter import BatchFilter
from logstore.cleaned_segment import CleanedSegment
from logstore.cleaned_transactions import CleanedTransactionMetadata
from logstore.cleaner_stats import CleanerStats
from logstore.errors import (
    CorruptRecordError,
    InvalidRecordError,
    LogCleaningAbortedError,
    SegmentOffsetOverflowError,
)
from logstore.legacy import LegacyEntry
from logstore.offset_map_builder import STOPPED, OffsetMapBuilder, damaged_batch, size_of_entry
from logstore.record import RecordBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logstore._native import Cleaned
    from logstore.log_to_clean import LogToClean
    from logstore.offset_map import OffsetMap
    from logstore.segment import LogSegment
    from logstore.throttler import Throttler
    from logstore.unified_log import UnifiedLog

INT_MAX: Final = 2**31 - 1
PIECES_AT_ONCE: Final = 16  # Read before somebody is asked whether to go on.
GROWTH_PER_RECORD: Final = 14  # What ls_clean_batches wants room for, with 7 bytes a record.


class Cleaner:
    """
    Cleans one log at a time.

    **Thread rule**: one thread; the log may be read, and appended to, meanwhile.

    Args:
        offset_map: Its memory bounds a round.
        io_buffer_bytes: Read at once; what is to be written takes as much again. Both grow for a
            batch that is larger.
        throttler: Bounds what is read and written per second.
        check_done: Called with the log between two steps; raises to end the round.
        on_progress: Called with the bytes read, of how many, of the segments to be cleaned.
        refuse_null_keys: Raise if a record of the dirty part has no key, before anything is
            changed; else those records go, as in Kafka.

    Source: Kafka ``Cleaner``.
    """

    def __init__(
        self,
        offset_map: OffsetMap,
        *,
        io_buffer_bytes: int,
        throttler: Throttler,
        check_done: Callable[[UnifiedLog], None],
        on_progress: Callable[[int, int], None] | None = None,
        refuse_null_keys: bool = False,
    ) -> None:
        assert io_buffer_bytes > 0
        self.offset_map = offset_map
        self._io_buffer_bytes: Final = io_buffer_bytes
        self._throttler = throttler
        self._check_done = check_done
        self._on_progress = on_progress
        self._refuse_null_keys = refuse_null_keys
        self._read_buffer = memoryview(b"")
        self._write_buffer = memoryview(b"")

    # -- a round -----------------------------------------------------------------------------------

    def clean(self, cleanable: LogToClean, now_ms: int) -> CleanerStats:
        """
        Clean the log's cleanable part, or as much of it as the offset map has room for.

        **Durability**: what was replaced is durable on return.

        Raises:
            LogCleaningAbortedError: The log was truncated, somebody else cleans it, or
                ``check_done`` has said so. Groups that were done before stay as they are: they hold
                no less than they should.
            InvalidRecordError: Records without a key were refused.
            CorruptRecordError: A batch is damaged; its group is as it was.
            StorageError: A file cannot be read or written; likewise.

        Source: Kafka ``Cleaner.doClean``.
        """
        with cleanable.log.cleaning():
            try:
                return self._clean(cleanable, now_ms)
            except BaseException as error:
                _release_buffers(error)
                raise

    def _clean(self, cleanable: LogToClean, now_ms: int) -> CleanerStats:
        log = cleanable.log
        clock = log.clock
        started = clock.monotonic()
        stats = CleanerStats(first_dirty_offset=cleanable.first_dirty_offset)
        truncations = log.settled_truncations()
        # Tombstones of magic 0 and 1 stay for a time after the last clean segment was written.
        clean = log.segments_between(0, cleanable.first_dirty_offset)
        legacy_horizon_ms = clean[-1].modified_ms() - log.config.delete_retention_ms if clean else 0
        try:
            upper_bound = cleanable.first_uncleanable_offset
            self.build_offset_map(log, cleanable.first_dirty_offset, upper_bound, stats)
            if self._refuse_null_keys and stats.map_null_keys > 0:
                raise InvalidRecordError(
                    f"{log.directory} has {stats.map_null_keys} records without a key, which"
                    " cleaning would remove; read them first, or allow it"
                )
            end_offset = self.offset_map.latest_offset + 1
            stats.elapsed_index_seconds = clock.monotonic() - started
            segments = log.segments_between(0, end_offset)
            groups = group_segments_by_size(
                segments,
                max_size=log.config.segment_bytes,
                max_index_size=log.config.segment_index_bytes,
                first_uncleanable_offset=upper_bound,
            )
            cleaning = _Cleaning(
                log,
                now_ms=now_ms,
                upper_bound_offset=upper_bound,
                legacy_horizon_ms=legacy_horizon_ms,
                truncations=truncations,
                total_bytes=sum(segment.size_bytes for segment in segments),
                stats=stats,
            )
            for group in groups:
                self._clean_segments(cleaning, group)
        finally:
            self._read_buffer = self._write_buffer = memoryview(b"")
        stats.offset_map_size = self.offset_map.size
        stats.buffer_utilization = self.offset_map.utilization
        stats.next_first_dirty_offset = end_offset
        stats.elapsed_seconds = clock.monotonic() - started
        return stats

    # -- the offset map ----------------------------------------------------------------------------

    def build_offset_map(self, log: UnifiedLog, start: int, end: int, stats: CleanerStats) -> None:
        """
        Map the last offset of each key in the segments of ``[start, end)``, until the map is full.

        Source: Kafka ``Cleaner.buildOffsetMap``; spec 7.2.
        """
        offset_map = self.offset_map
        offset_map.clear(start, end)
        dirty = log.segments_between(start, end)
        transactions = CleanedTransactionMetadata()
        transactions.add_aborted_transactions(log.collect_aborted_transactions(start, end))
        ends = [segment.base_offset for segment in dirty[1:]] + [end]
        for segment, segment_end in zip(dirty, ends, strict=True):
            mapping = OffsetMapBuilder(
                offset_map, start, transactions, log.decompressed_bytes_max, stats
            )
            position = _first_position(segment, start)
            is_full = not self._read_through(log, segment, position, mapping)
            stats.map_bytes_read += mapping.bytes_taken
            if is_full:
                return
            # Offsets that are missing at the end of the segment were looked at, too.
            offset_map.update_latest_offset(segment_end - 1)

    # -- reading -----------------------------------------------------------------------------------

    def _read_through(
        self, log: UnifiedLog, segment: LogSegment, position: int, taker: _Taker
    ) -> bool:
        """
        Give the batches of a segment to ``taker``, from a position on.

        C reads and takes piece after piece; what it leaves of one is taken here.

        Args:
            log: The log.
            segment: One of its sealed segments.
            position: Of a batch.
            taker: Whose they are.

        Returns:
            Whether the end was reached.
        """
        end = segment.size_bytes
        wanted = self._io_buffer_bytes
        while position < end:
            self._check_done(log)
            data = memoryview(b"")
            if wanted == self._io_buffer_bytes:
                taken, data = self._take_pieces(segment, position, taker)
                if taken == STOPPED:
                    return False
                position += taken
                if taken > 0 and not data:
                    continue
            if not data:
                data = self._read(segment, position, min(wanted, end - position))
                self._throttler.maybe_throttle(len(data))
            try:
                taken = taker.take(data)
            except CorruptRecordError as error:
                raise _damage(segment, error, position) from error
            if taken == STOPPED:
                return False
            position += taken
            wanted = self._io_buffer_bytes
            if taken == 0:  # Not one batch is whole: read all of the first one.
                wanted = size_of_entry(data)
                if not len(data) < wanted <= end - position:
                    raise _damage(segment, CorruptRecordError(_CUT), position)
        return True

    def _take_pieces(
        self, segment: LogSegment, position: int, taker: _Taker
    ) -> tuple[int, memoryview]:
        """Return the bytes taken, or STOPPED, and what was read behind them."""
        self._have_read_buffer(segment, self._io_buffer_bytes)
        buffer = self._read_buffer[: self._io_buffer_bytes]
        count = 1 if self._throttler.is_limited else PIECES_AT_ONCE
        end, base_offset = segment.size_bytes, segment.base_offset
        with segment.handle.lease() as fd:
            pieces = Pieces(segment.files, fd, position, end, buffer, count, base_offset)
            taken = taker.take_pieces(pieces)
        if taken != STOPPED:
            self._throttler.maybe_throttle(pieces.bytes_read)
        return taken, pieces.held

    def _read(self, segment: LogSegment, position: int, size: int) -> memoryview:
        self._have_read_buffer(segment, size)
        with segment.handle.lease() as fd:
            read = segment.files.pread_into(fd, self._read_buffer[:size], position)
        if read < size:
            raise _damage(segment, CorruptRecordError(_CUT), position + read)
        return self._read_buffer[:size]

    def _have_read_buffer(self, segment: LogSegment, size: int) -> None:
        if len(self._read_buffer) < size:
            self._read_buffer = segment.files.page_aligned_buffer(size)

    # -- a group -----------------------------------------------------------------------------------

    def _clean_segments(self, cleaning: _Cleaning, group: Sequence[LogSegment]) -> None:
        """
        Replace a group of segments by one with what stays of them.

        Source: Kafka ``Cleaner.cleanSegments``; spec 7.4.
        """
        log, stats = cleaning.log, cleaning.stats
        cleaned = log.new_cleaned_segment(group[0].base_offset)
        cleaning.transactions.on_retained = cleaned.append_aborted
        try:
            output = _Output(self, cleaned)
            batch_filter = BatchFilter(
                self.offset_map,
                cleaning.transactions,
                now_ms=cleaning.now_ms,
                delete_retention_ms=log.config.delete_retention_ms,
                upper_bound_offset=cleaning.upper_bound_offset,
                last_records=log.last_records_of_active_producers(),
                bytes_max=log.decompressed_bytes_max,
            )
            for index, segment in enumerate(group):
                upper = (
                    group[index + 1].base_offset
                    if index + 1 < len(group)
                    else segment.read_next_offset()
                )
                cleaning.transactions.add_aborted_transactions(
                    log.collect_aborted_transactions(segment.base_offset, upper)
                )
                batch_filter.retains_legacy_deletes = (
                    segment.modified_ms() > cleaning.legacy_horizon_ms
                )
                try:
                    self._clean_into(cleaning, segment, batch_filter, output)
                except SegmentOffsetOverflowError as error:
                    # Safest is to begin again once the split is done.
                    log.split_overflowed_segment(segment)
                    raise LogCleaningAbortedError(
                        f"{segment.log_path} held offsets that do not fit it, and was split; clean"
                        " the log again",
                        path=log.directory,
                    ) from error
            modified_ms = group[-1].modified_ms()
            self._check_done(log)
            new = cleaned.finish(modified_ms)
            log.replace_segments(
                [new],
                list(group),
                end_offset=cleaning.end_of(group[-1]),
                truncations=cleaning.truncations,
            )
        except BaseException:
            if cleaned.is_unused:
                cleaned.discard()
            raise
        stats.invalid_messages_read += batch_filter.invalid_count

    def _clean_into(
        self,
        cleaning: _Cleaning,
        segment: LogSegment,
        batch_filter: BatchFilter,
        output: _Output,
    ) -> None:
        """Append what stays of one segment; source: Kafka ``Cleaner.cleanInto``."""
        taker = _FilteredBatches(batch_filter, output, cleaning, self._on_progress)
        self._read_through(cleaning.log, segment, 0, taker)
        output.flush()  # Whatever the segment's offsets do to the new one, they do it now.


class _Cleaning:
    """What the groups of one round share."""

    def __init__(
        self,
        log: UnifiedLog,
        *,
        now_ms: int,
        upper_bound_offset: int,
        legacy_horizon_ms: int,
        truncations: int,
        total_bytes: int,
        stats: CleanerStats,
    ) -> None:
        self.log = log
        self.now_ms = now_ms
        self.upper_bound_offset = upper_bound_offset
        self.legacy_horizon_ms = legacy_horizon_ms
        self.truncations = truncations
        self.total_bytes = total_bytes
        self.stats = stats
        self.transactions = CleanedTransactionMetadata()
        bases = [segment.base_offset for segment in log.segments]
        self._following = dict(itertools.pairwise(bases))

    def end_of(self, segment: LogSegment) -> int:
        """Return where the segment behind one began when the round did."""
        return self._following[segment.base_offset]


class _Taker(Protocol):
    """Takes the batches of a segment."""

    def take(self, data: memoryview) -> int:
        """Take the whole batches at the start of some bytes; returns their size, or STOPPED."""
        ...

    def take_pieces(self, pieces: Pieces) -> int:
        """Take batches of a file as far as C can; returns their size, or STOPPED."""
        ...


class _FilteredBatches:
    """Appends what stays of the batches that it takes."""

    def __init__(
        self,
        batch_filter: BatchFilter,
        output: _Output,
        cleaning: _Cleaning,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self._filter = batch_filter
        self._output = output
        self._stats = cleaning.stats
        self._total_bytes = cleaning.total_bytes
        self._on_progress = on_progress

    def take_pieces(self, pieces: Pieces) -> int:
        """Filter batches of a file, as far as they need no look and the output has room."""
        cleaned = self._filter.records.clean_file(pieces, self._output.room)
        self._count(cleaned)
        self._tell()
        return cleaned.bytes_read

    def take(self, data: memoryview) -> int:
        """Filter the whole batches at the start of some bytes, and return their size."""
        at = 0
        while at < len(data):
            cleaned = self._filter.records.clean_batches(data[at:], self._output.room)
            self._count(cleaned)
            at += cleaned.bytes_read
            stop = cleaned.stop
            if stop == CLEAN_FULL:
                self._output.make_room(_room_for(data[at:]))
                continue
            if stop == CLEAN_INVALID:
                raise damaged_batch(data, at)
            if stop in (CLEAN_SPECIAL, CLEAN_LEGACY):
                size = size_of_entry(data[at:])
                if size > len(data) - at:
                    break
                self._take_special(data[at : at + size], is_legacy=stop == CLEAN_LEGACY)
                at += size
            elif stop == CLEAN_TORN:
                break
        self._tell()
        return at

    def _take_special(self, entry: memoryview, *, is_legacy: bool) -> None:
        retained = (
            self._filter.filter_legacy(LegacyEntry(entry))
            if is_legacy
            else self._filter.filter_batch(RecordBatch(entry))
        )
        self._stats.count_batch(len(entry), retained)
        self._output.write(retained.data)

    def _count(self, cleaned: Cleaned) -> None:
        self._output.advance(cleaned.bytes_written)
        self._stats.count(cleaned)
        self._filter.invalid_count += cleaned.records_invalid

    def _tell(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self._stats.bytes_read, self._total_bytes)


class _Output:
    """Memory for what stays, on its way to a cleaned segment."""

    def __init__(self, cleaner: Cleaner, segment: CleanedSegment) -> None:
        self._cleaner = cleaner
        self._segment = segment
        self._used = 0
        if len(cleaner._write_buffer) < cleaner._io_buffer_bytes:
            self._grow(cleaner._io_buffer_bytes)

    def _grow(self, size: int) -> None:
        files = self._segment.segment.files
        self._cleaner._write_buffer = files.page_aligned_buffer(size)

    @property
    def room(self) -> memoryview:
        """What is not used yet."""
        return self._cleaner._write_buffer[self._used :]

    def advance(self, size: int) -> None:
        """Count bytes that were put into :attr:`room`."""
        self._used += size

    def make_room(self, size: int) -> None:
        """Have room for so many bytes, or for more than there was."""
        if self._used > 0:
            self.flush()
        else:
            self._grow(max(size, 2 * len(self._cleaner._write_buffer)))

    def write(self, data: bytes | memoryview) -> None:
        """Take some bytes."""
        size = len(data)
        if size > len(self.room):
            self.flush()
            if size > len(self.room):
                self._append(data)
                return
        self.room[:size] = data
        self._used += size

    def flush(self) -> None:
        """Write what is here to the segment."""
        if self._used > 0:
            used, self._used = self._used, 0
            self._append(self._cleaner._write_buffer[:used])

    def _append(self, data: bytes | memoryview) -> None:
        self._segment.append(data)
        self._cleaner._throttler.maybe_throttle(len(data))


def group_segments_by_size(
    segments: Sequence[LogSegment],
    *,
    max_size: int,
    max_index_size: int,
    first_uncleanable_offset: int,
) -> list[list[LogSegment]]:
    """
    Return neighbouring segments in groups, each of which fits one segment even if nothing goes.

    Source: Kafka ``Cleaner.groupSegmentsBySize``; spec 7.3.
    """
    groups: list[list[LogSegment]] = []
    sizes = (0, 0, 0)
    for index, segment in enumerate(segments):
        segment.take_index_entries()
        own = (
            segment.size_bytes,
            segment.offset_index.size_bytes,
            segment.time_index.size_bytes,
        )
        last_offset = (
            segments[index + 1].base_offset
            if index + 1 < len(segments)
            else first_uncleanable_offset
        ) - 1
        fits = groups and (
            sizes[0] + own[0] <= max_size
            and sizes[1] + own[1] <= max_index_size
            and sizes[2] + own[2] <= max_index_size
            and (own[0] == 0 or last_offset - groups[-1][0].base_offset <= INT_MAX)
        )
        if fits:
            groups[-1].append(segment)
            sizes = (sizes[0] + own[0], sizes[1] + own[1], sizes[2] + own[2])
        else:
            groups.append([segment])
            sizes = own
    return groups


_CUT: Final = "a segment ends inside a batch; run `logstore verify`"


def _release_buffers(error: BaseException | None) -> None:
    """
    Let the frames that an error has left go of what they held.

    A log keeps the error that poisoned it, and its cleaner keeps others. Memoryviews in the garbage
    of such a cycle crash Python before 3.12.4 (python/cpython#77894).
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _first_position(segment: LogSegment, offset: int) -> int:
    """Return the position of the first batch that an offset from there on may be in."""
    for header in segment.headers_from(offset):
        return header.position
    return segment.size_bytes


def _room_for(data: memoryview) -> int:
    """Return the room that the first of these batches needs to be filtered."""
    size = size_of_entry(data)
    return size + GROWTH_PER_RECORD * (size // 7)


def _damage(segment: LogSegment, error: CorruptRecordError, position: int) -> CorruptRecordError:
    """Return the error with its place in the segment's file."""
    return CorruptRecordError(
        error.message,
        path=segment.log_path,
        offset=error.offset,
        position=position + (error.position or 0),
    )
