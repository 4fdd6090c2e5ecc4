"""
What of a dirty part goes into the offset map, piece by piece.

Source: Kafka ``Cleaner.buildOffsetMapForSegment``; spec 7.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from logstore._native import (
    CLEAN_FULL,
    CLEAN_INVALID,
    CLEAN_LEGACY,
    CLEAN_SPECIAL,
    CLEAN_TORN,
)
from logstore.batch_filter import control_type_of
from logstore.errors import CorruptRecordError
from logstore.legacy import LegacyEntry
from logstore.record import RecordBatch

if TYPE_CHECKING:
    from logstore._native import Mapped, Pieces
    from logstore.cleaned_transactions import CleanedTransactionMetadata
    from logstore.cleaner_stats import CleanerStats
    from logstore.offset_map import OffsetMap

HEADER_UP_TO_LENGTH: Final = 12
STOPPED: Final = -1
_BROKEN: Final = "the records of a batch break the format; run `logstore verify`"


class OffsetMapBuilder:
    """Puts the records of batches into an offset map, piece by piece."""

    def __init__(
        self,
        offset_map: OffsetMap,
        start_offset: int,
        transactions: CleanedTransactionMetadata,
        bytes_max: int,
        stats: CleanerStats,
    ) -> None:
        self._map = offset_map
        self._start_offset = start_offset
        self._transactions = transactions
        self._bytes_max = bytes_max
        self._stats = stats
        self.bytes_taken = 0

    def take(self, data: memoryview) -> int:
        """
        Take the whole batches at the start of some bytes; STOPPED: the map is full.

        Source: Kafka ``Cleaner.buildOffsetMapForSegment``.
        """
        at = 0
        while at < len(data):
            mapped = self._map.map_batches(data[at:], self._start_offset)
            self._count(mapped)
            at += mapped.bytes_read
            stop = mapped.stop
            if stop == CLEAN_FULL:
                return STOPPED
            if stop == CLEAN_INVALID:
                raise damaged_batch(data, at)
            if stop in (CLEAN_SPECIAL, CLEAN_LEGACY):
                size = size_of_entry(data[at:])
                if size > len(data) - at:
                    break
                entry = data[at : at + size]
                is_taken = (
                    self._take_legacy(LegacyEntry(entry))
                    if stop == CLEAN_LEGACY
                    else self._take_batch(RecordBatch(entry))
                )
                if not is_taken:
                    return STOPPED
                at += size
            elif stop == CLEAN_TORN:
                break
        self.bytes_taken += at
        return at

    def take_pieces(self, pieces: Pieces) -> int:
        """Take batches of a file, as far as they need no look; STOPPED: the map is full."""
        mapped = self._map.map_file(pieces, self._start_offset)
        self._count(mapped)
        if mapped.stop == CLEAN_FULL:
            return STOPPED
        self.bytes_taken += mapped.bytes_read
        return mapped.bytes_read

    def _count(self, mapped: Mapped) -> None:
        self._stats.map_messages_read += mapped.records_read
        self._stats.map_null_keys += mapped.null_keys

    def _take_batch(self, batch: RecordBatch) -> bool:
        batch.ensure_valid()
        stats = self._stats
        if batch.is_control:
            self._transactions.on_control_batch_read(batch, control_type_of(batch))
            stats.map_messages_read += 1
        elif self._transactions.on_batch_read(batch):
            stats.map_messages_read += batch.record_count
        elif batch.record_count > 0:
            mapped = self._map.map_section(
                batch.section(self._bytes_max),
                batch.record_count,
                base_offset=batch.base_offset,
                last_offset=batch.last_offset,
                start_offset=self._start_offset,
            )
            self._count(mapped)
            if mapped.stop == CLEAN_FULL:
                return False
            if mapped.stop == CLEAN_INVALID:
                raise CorruptRecordError(_BROKEN, offset=batch.base_offset)
        if batch.last_offset >= self._start_offset:
            self._map.update_latest_offset(batch.last_offset)
        return True

    def _take_legacy(self, entry: LegacyEntry) -> bool:
        entry.ensure_valid()
        for record in entry.records(self._bytes_max):
            if record.key is None:
                self._stats.map_null_keys += record.offset >= self._start_offset
            elif record.offset >= self._start_offset:
                if not self._map.has_room(record.offset):
                    return False
                self._map.put(record.key, record.offset)
            self._stats.map_messages_read += 1
        if entry.last_offset >= self._start_offset:
            self._map.update_latest_offset(entry.last_offset)
        return True


def size_of_entry(data: memoryview) -> int:
    """Return the size of the entry at the start of some bytes, as its header says."""
    if len(data) < HEADER_UP_TO_LENGTH:
        return HEADER_UP_TO_LENGTH
    return HEADER_UP_TO_LENGTH + int.from_bytes(data[8:12], "big", signed=True)


def damaged_batch(data: memoryview, at: int) -> CorruptRecordError:
    """Return the error for the batch at a position of some bytes."""
    base_offset = int.from_bytes(data[at : at + 8], "big", signed=True)
    return CorruptRecordError(
        f"the batch at offset {base_offset} is damaged; run `logstore verify`",
        offset=base_offset,
        position=at,
    )
