"""
One record of a log: the first, the last, the one at an offset.

Source: DESIGN.md, "The interface at a glance".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logstore.errors import OffsetGapError, OffsetOutOfRangeError
from logstore.readable_log import start_offset, stop_offset
from logstore.reader import RecordIterator

if TYPE_CHECKING:
    from logstore.readable_log import Isolation, ReadableLog
    from logstore.record import Record
    from logstore.record_places import RecordPlaces


def read_first(log: ReadableLog, isolation: Isolation) -> Record | None:
    """Return the first record that may be read, None if there is none."""
    first = start_offset(log, "earliest", isolation)
    records: RecordIterator[Record] = RecordIterator(log, first, None, isolation, limit=1)
    return next(records, None)


def read_last(log: ReadableLog, isolation: Isolation) -> Record | None:
    """
    Return the last record that may be read, None if there is none.

    Cost: steps back over what is not delivered (markers, aborted records, gaps), further each time.
    """
    first = start_offset(log, "earliest", isolation)
    stop = stop_offset(log, None, isolation)
    distance = 1
    while True:
        start = max(first, stop - distance)
        last: Record | None = None
        records: RecordIterator[Record] = RecordIterator(log, start, stop, isolation)
        for record in records:
            last = record
        if last is not None or start == first:
            return last
        distance *= 8


def read_one(
    log: ReadableLog, offset: int, isolation: Isolation, places: RecordPlaces | None = None
) -> Record:
    """
    Return the record at an offset: ``log[offset]``.

    ``places`` remember where it was; where they know the way, it is theirs.

    Raises:
        OffsetOutOfRangeError: Below the log start, or not readable yet.
        OffsetGapError: No record has this offset; it says which is the next.
    """
    truncations = log.truncations
    first, end = log.log_start_offset, log.reading_end(isolation)
    if not first <= offset < end:
        raise OffsetOutOfRangeError(
            f"offset {offset} is not in the log, [{first}, {end}); use first(), last() or read()",
            log_start_offset=first,
            log_end_offset=end,
            offset=offset,
        )
    if places is not None:
        found = places.get(offset, truncations, first, end)
        if found is not None and log.truncations == truncations:
            return found
    records: RecordIterator[Record] = RecordIterator(log, offset, None, isolation, limit=1)
    record = next(records, None)
    if record is not None and record.offset == offset:
        if places is not None and log.truncations == truncations:
            places.learn(offset, records.section)
        return record
    next_offset = end if record is None else record.offset
    raise OffsetGapError(
        f"no record has offset {offset}; the next is at {next_offset}",
        next_offset=next_offset,
        offset=offset,
    )
