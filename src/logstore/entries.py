"""
Entry headers of a segment file, read in steps: what finds a batch without decoding it.

An entry is a v2 batch or a magic 0 or 1 message. The first bytes are the same in all versions
(spec 1.1), the rest of a v2 header says which offsets and timestamps the batch has (spec 1.3)::

    0   8  base offset        magic 0 and 1: the offset of the (last inner) message
    8   4  length             of what follows
    12  4  leader epoch       magic 0 and 1: CRC
    16  1  magic
    23  4  last offset delta  v2
    18  8  timestamp          magic 1
    35  8  max timestamp      v2

Source: Kafka ``FileLogInputStream``; spec 1.2, "from a file region".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from logstore.errors import CorruptRecordError
from logstore.index import TimestampOffset
from logstore.records_builder import BATCH_OVERHEAD, HEADER_UP_TO_MAGIC, LOG_OVERHEAD
from logstore.timestamp_type import NO_TIMESTAMP

LEGACY_HEADER_BYTES: Final = 26  # Up to the end of a magic 1 message's timestamp.
LENGTH_MIN: Final = 14  # Of a magic 0 message without key and value.

_PREFIX: Final = struct.Struct(">qiib")
_V2: Final = struct.Struct(">qiibIhiqq")
_INT64: Final = struct.Struct(">q")
assert _PREFIX.size == HEADER_UP_TO_MAGIC
assert _V2.size == 43

# One read covers the default index interval and the batch after it; a scan then takes larger steps.
FIRST_STEP_BYTES: Final = 16 << 10
STEP_BYTES: Final = 256 << 10

ReadAt = Callable[[int, int], bytes]


class EntryHeader(NamedTuple):
    """Where an entry is and what its header says."""

    position: int
    size_bytes: int
    magic: int
    base_offset: int  #: magic 0 and 1: equal to ``last_offset``
    last_offset: int
    max_timestamp: int  #: -1 for magic 0
    leader_epoch: int  #: -1 for magic 0 and 1

    @property
    def next_offset(self) -> int:
        """The offset after the last one."""
        return self.last_offset + 1

    @property
    def end(self) -> int:
        """The position after the last byte."""
        return self.position + self.size_bytes


def entry_headers(read_at: ReadAt, start: int, end: int) -> Iterator[EntryHeader]:
    """
    Yield the headers of the whole entries in ``[start, end)``.

    A cut entry at the end is ignored, as Kafka does. Damage inside a body is not noticed.

    Args:
        read_at: Returns ``size`` bytes at ``position``, or fewer at the end of the file.
        start: Position of an entry's first byte.
        end: Position after the last byte to look at.

    Raises:
        CorruptRecordError: An entry's length cannot be, or the file is shorter than ``end``.
    """
    assert start >= 0
    position = start
    step_bytes = FIRST_STEP_BYTES
    data, data_start = b"", start
    while position < end - HEADER_UP_TO_MAGIC:
        wanted = min(BATCH_OVERHEAD, end - position)
        at = position - data_start
        if at + wanted > len(data):
            data = read_at(position, min(step_bytes, end - position))
            data_start, at = position, 0
            step_bytes = STEP_BYTES
            if len(data) < wanted:
                raise CorruptRecordError(
                    "the file ends before its recorded end; run `logstore verify`",
                    position=position + len(data),
                )
        base_offset, length, epoch, magic = _PREFIX.unpack_from(data, at)
        if length < LENGTH_MIN:
            raise CorruptRecordError(
                f"an entry's length is {length}, under {LENGTH_MIN}; run `logstore verify`",
                position=position,
            )
        if length > end - position - LOG_OVERHEAD:
            return
        size_bytes = LOG_OVERHEAD + length
        if magic >= 2:
            if size_bytes < BATCH_OVERHEAD:
                raise CorruptRecordError(
                    f"a batch of {size_bytes} bytes is under {BATCH_OVERHEAD};"
                    " run `logstore verify`",
                    position=position,
                )
            fields = _V2.unpack_from(data, at)
            last_offset, max_timestamp = base_offset + fields[6], fields[8]
        else:
            last_offset, epoch, max_timestamp = base_offset, -1, NO_TIMESTAMP
            if magic == 1 and size_bytes >= LEGACY_HEADER_BYTES:
                max_timestamp = _INT64.unpack_from(data, at + 18)[0]
        yield EntryHeader(
            position, size_bytes, magic, base_offset, last_offset, max_timestamp, epoch
        )
        position += size_bytes


def largest_timestamp(headers: Iterable[EntryHeader], known: TimestampOffset) -> TimestampOffset:
    """Return the largest timestamp of what is known and of entries, and its entry's last offset."""
    for header in headers:
        if header.max_timestamp > known.timestamp:
            known = TimestampOffset(header.max_timestamp, header.last_offset)
    return known
