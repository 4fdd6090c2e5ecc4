"""
Where a read goes on behind damage.

A batch is sound if its header, its length and its CRC are. Behind a damaged one the next is looked
for where it should be:

1. at the end that the damaged batch's length gives, which is right if its records are what is
   damaged;
2. at the positions of the offset index, one after the other.

Never anywhere in between: a value may itself hold a batch that is sound. What lies between the
damage and the place where the read goes on is lost to it, and reported.

Source: DESIGN.md D5; Kafka has only a consumer's ``seek`` behind the damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from logstore.errors import (
    CorruptRecordError,
    InvalidRecordError,
    UnsupportedCompressionTypeError,
)
from logstore.record import iterate_batches
from logstore.records_builder import HEADER_UP_TO_MAGIC, LOG_OVERHEAD, MAGIC_V2

if TYPE_CHECKING:
    from logstore.entries import EntryHeader
    from logstore.file_records import Batch
    from logstore.segment import LogSegment


class SkippedRange(NamedTuple):
    """
    Offsets that a read left out because of damage: ``[start, stop)``.

    Some of them may never have had a record.
    """

    start: int
    stop: int
    path: str | None  #: of the damaged file
    position: int  #: of the damaged batch in it
    reason: str


class SoundBatch(NamedTuple):
    """A batch whose CRC is right, and where it is."""

    position: int
    base_offset: int


def sound_batch_after(
    segment: LogSegment, position: int, next_offset: int, end_offset: int
) -> SoundBatch | None:
    """
    Return the next sound batch behind a damaged one, None if there is none in the segment.

    Args:
        segment: Where the damage is.
        position: Of the damaged batch.
        next_offset: The batch ends above this,
        end_offset: and begins below this.

    Cost: reads each place that is tried, a batch as a rule.
    """
    for candidate in _candidates(segment, position):
        batch = _sound_batch_at(segment, candidate)
        if batch is not None and batch.base_offset < end_offset and batch.next_offset > next_offset:
            return SoundBatch(candidate, batch.base_offset)
    return None


def batch_of(segment: LogSegment, offset: int) -> EntryHeader | None:
    """
    Return the header of the first batch whose last offset is >= ``offset``, None if there is none.

    Raises:
        CorruptRecordError: It begins below the end of one before it: its offsets are wrong.
    """
    end = segment.base_offset
    for header in segment.headers_from(offset):
        if header.last_offset >= offset:
            if header.magic >= MAGIC_V2 and header.base_offset < end:
                raise _disorder(segment, header, end, offset)
            return header
        end = max(end, header.next_offset)
    return None


def ensure_gap(segment: LogSegment, offset: int) -> None:
    """
    Raise if a segment has no batch of an offset only because one before it is damaged.

    Raises:
        CorruptRecordError: The offsets step back before the gap: no CRC covers a base offset, and
            one that is too low hides its batch. Or the batch before the gap, whose header says
            where it ends, has a wrong CRC.

    Cost: reads from the index entry before the one below the gap on.
    """
    before, end = None, segment.base_offset
    for header in segment.headers_around(offset):
        if header.last_offset >= offset:
            break
        if (
            header.magic >= MAGIC_V2
            and header.base_offset < end
            and not is_repeat(segment, header.position, header.size_bytes, None)
        ):
            raise _disorder(segment, header, end, offset)
        before, end = header, max(end, header.next_offset)
    if before is not None and _sound_batch_at(segment, before.position) is None:
        raise CorruptRecordError(
            f"the batch at offset {before.base_offset}, before a gap, is damaged;"
            " run `logstore verify`",
            path=segment.log_path,
            offset=offset,
            position=before.position,
        )


def is_repeat(segment: LogSegment, position: int, size_bytes: int, following: int | None) -> bool:
    """
    Whether the batch at a position is, byte for byte, the one before it, and hides no other.

    An append that was made twice, as some brokers left it: the next batch goes on where both end.

    Args:
        segment: Where it is.
        position: Of the batch that begins below the end of the one before it.
        size_bytes: Of it.
        following: The offset at which what follows the segment begins; None: not where it ends.

    Cost: walks the headers from the segment's first on.
    """
    start = position - size_bytes
    before = next((each for each in segment.headers(end=position) if each.end == position), None)
    if before is None or before.position != start:
        return False
    after = next(segment.headers(position + size_bytes), None)
    if before.next_offset != (following if after is None else after.base_offset):
        return False
    return segment.read_at(start, size_bytes) == segment.read_at(position, size_bytes)


def _disorder(
    segment: LogSegment, header: EntryHeader, end: int, offset: int
) -> CorruptRecordError:
    return CorruptRecordError(
        f"a batch says that it begins at offset {header.base_offset}, and the one before it ends"
        f" at {end - 1}; run `logstore verify`",
        path=segment.log_path,
        offset=offset,
        position=header.position,
    )


def _candidates(segment: LogSegment, position: int) -> Iterator[int]:
    head = segment.read_at(position, LOG_OVERHEAD)
    length = int.from_bytes(head[8:LOG_OVERHEAD], "big", signed=True)
    if len(head) == LOG_OVERHEAD and length > 0:
        yield position + LOG_OVERHEAD + length
    segment.take_index_entries()
    for _, indexed in segment.offset_index.entries().tolist():
        if indexed > position:
            yield indexed


def _sound_batch_at(segment: LogSegment, position: int) -> Batch | None:
    left = segment.size_bytes - position
    if left < HEADER_UP_TO_MAGIC:
        return None
    head = segment.read_at(position, LOG_OVERHEAD)
    size = LOG_OVERHEAD + int.from_bytes(head[8:LOG_OVERHEAD], "big", signed=True)
    if not HEADER_UP_TO_MAGIC <= size <= left:
        return None
    try:
        for batch in iterate_batches(segment.read_at(position, size)):
            batch.ensure_valid()
            return batch
    except (CorruptRecordError, InvalidRecordError, UnsupportedCompressionTypeError):
        return None
    return None
