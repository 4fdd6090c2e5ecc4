"""
The offset index and the time index of a segment: files of fixed entries, found by binary search.

``.index``, 8 bytes an entry::

    pos  size  type  field
    0    4     u32   relative offset: last offset of a batch, minus the segment's base offset
    4    4     u32   position of that batch's first byte in the ``.log`` file

``.timeindex``, 12 bytes an entry::

    pos  size  type  field
    0    8     i64   timestamp: the largest in the segment so far
    8    4     u32   relative offset: last offset of the batch that has it

All numbers are big-endian. A valid index has strictly increasing offsets and positions, strictly
increasing timestamps with non-decreasing offsets. The file of the active segment is preallocated
with zeros and cut to its entries when the segment is sealed or closed; of a file that was there
before, every whole entry counts as in use. An index is a hint (DESIGN.md D5): who uses an answer
checks it against the batch that it names.

Source: Kafka ``OffsetIndex``, ``TimeIndex``; spec section 3.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from logstore._native import (
    BATCH_DTYPE,
    IndexView,
    offset_index_check,
    offset_index_lookup,
    offset_index_upper_bound,
    time_index_check,
    time_index_lookup,
    time_index_lookup_offset,
)
from logstore.errors import InvalidOffsetError
from logstore.index_file import RELATIVE_OFFSET_MAX, UINT32_MAX, IndexFile, View
from logstore.timestamp_type import NO_TIMESTAMP
from logstore.transaction_index import AbortedTxn, TransactionIndex, TxnIndexSearchResult

__all__ = [
    "AbortedTxn",
    "OffsetIndex",
    "OffsetPosition",
    "TimeIndex",
    "TimestampOffset",
    "TransactionIndex",
    "TxnIndexSearchResult",
]


# An index up to this size is read through when it is mapped; a larger one is searched without the
# GIL, as any search may wait for the disk.
WARM_BYTES_MAX: Final = 4 << 20

_new_tuple: Final = tuple.__new__  # Half the time of calling a NamedTuple.


class OffsetPosition(NamedTuple):
    """An entry of the offset index: the batch that ends with ``offset`` begins at ``position``."""

    offset: int
    position: int


class TimestampOffset(NamedTuple):
    """An entry of the time index; timestamp -1 when there is none."""

    timestamp: int
    offset: int


class OffsetIndex(IndexFile):
    """
    The ``.index`` file: finds the position of the batch that holds an offset.

    Entries are sparse lower bounds: scanning the ``.log`` from the position found always meets the
    wanted batch.

    Source: Kafka ``OffsetIndex``; spec 3.2.
    """

    ENTRY_BYTES = 8
    _ENTRY = struct.Struct(">II")

    __slots__ = ()

    @property
    def last_offset(self) -> int:
        """Offset of the last entry, the base offset when there is none."""
        last = self._last_raw()
        return self.base_offset if last is None else self.base_offset + last[0]

    def append(self, offset: int, position: int) -> None:
        """
        Append the entry for a batch that ends with ``offset`` and begins at ``position``.

        Raises:
            InvalidOffsetError: The offset is not above the last one.
            IndexOffsetOverflowError: It is too far above the base offset.
            StorageError: The index is as before.
        """
        assert 0 <= position <= 2**31 - 1
        assert not self.is_full
        relative_offset = self.relative_offset(offset)
        with self._lock:
            last = self._last_raw()
            if last is not None and relative_offset <= last[0]:
                raise InvalidOffsetError(
                    f"offset {offset} is not above the last one, {self.last_offset}",
                    path=self.path,
                    offset=offset,
                )
            self.append_entries(self._ENTRY.pack(relative_offset, position))

    def lookup(self, target_offset: int) -> OffsetPosition:
        """
        Return the last entry whose offset is <= ``target_offset``.

        Falls back to ``(base_offset, 0)``: scanning from the segment's first byte is always right,
        only slower. The caller checks bounds.

        Cost: O(log entry_count), one C call.
        """
        assert target_offset >= self.base_offset
        view = self._view or self._map()
        if view.finder is not None:
            found = view.finder.find(target_offset)
            if found is None:
                return OffsetPosition(self.base_offset, 0)
            return _new_tuple(OffsetPosition, found)
        relative_offset = min(target_offset - self.base_offset, UINT32_MAX)
        slot = offset_index_lookup(view.address, view.count, relative_offset)
        if slot < 0:
            return OffsetPosition(self.base_offset, 0)
        relative_offset, position = self._read(view, slot)
        return OffsetPosition(self.base_offset + relative_offset, position)

    def make_lookup(self) -> Callable[[int], int]:
        """
        Return a function in C from an offset to the position that :meth:`lookup` finds.

        It sees the entries that there are now, whatever happens to the index, and keeps the memory.

        Cost: 60 to 80 ns a call at 10,000 entries.
        """
        return self.finder().position

    def finder(self) -> IndexView:
        """Return the entries that there are now, which keep their memory whatever happens."""
        return self._finder(self._current_view())

    def _finder(self, view: View) -> IndexView:
        return IndexView(view.mapping, view.address, view.capacity, view.count, self.base_offset)

    def _prepare(self, view: View) -> None:
        if view.count * self.ENTRY_BYTES <= WARM_BYTES_MAX:
            # Without the GIL: from here on searches, which keep it, do not wait for the disk.
            offset_index_check(view.address, view.count)
            view.finder = self._finder(view)

    def fetch_upper_bound_offset(
        self, start: OffsetPosition, fetch_bytes: int
    ) -> OffsetPosition | None:
        """
        Return the first entry at or behind the end of a fetch, None if there is none.

        If that would be the index's very first entry, and exactly there, it is the one after it:
        Kafka's search never compares the first one for equality. A later bound is right, too.
        """
        view = self._current_view()
        end = start.position + fetch_bytes
        slot = offset_index_upper_bound(view.address, view.count, end)
        if slot == 0 and self._read(view, 0)[1] == end:
            slot = 1 if view.count > 1 else -1
        if slot < 0:
            return None
        relative_offset, position = self._read(view, slot)
        return OffsetPosition(self.base_offset + relative_offset, position)

    def entry(self, slot: int) -> OffsetPosition:
        """Return the entry in one slot, counted from 0."""
        view = self._current_view()
        assert 0 <= slot < view.count
        relative_offset, position = self._read(view, slot)
        return OffsetPosition(self.base_offset + relative_offset, position)

    def _slot_of_offset(self, view: View, relative_offset: int) -> int:
        return offset_index_lookup(view.address, view.count, relative_offset)

    def entries(self) -> npt.NDArray[np.int64]:
        """
        Return a copy of all entries.

        Shapes: int64, shape (entry_count, 2): offset, position.
        """
        view = self._current_view()
        raw = np.frombuffer(view.bytes, ">u4", view.count * 2).reshape(-1, 2)
        entries = raw.astype(np.int64)
        entries[:, 0] += self.base_offset
        return entries

    def sanity_check(self) -> None:
        """
        Look at size and ends of the index, as Kafka does when it loads a segment.

        Raises:
            CorruptIndexError: The file must be rebuilt.
        """
        last = self._last_raw()
        if last is not None and last[0] > RELATIVE_OFFSET_MAX:
            self._corrupt(f"its last offset is not above the base offset {self.base_offset}")
        self._sanity_check_size()

    def tail_problem(self, log_bytes: int) -> str | None:
        """
        Return what is wrong with the last entries, as far as the log's size can tell, or None.

        Finds in O(1) the usual remains of a crash: a preallocated file (zeros at the end), and
        entries beyond the end of the log.
        """
        with self._lock:
            if self.file_bytes % self.ENTRY_BYTES != 0:
                return f"size {self._file_bytes} is not a multiple of {self.ENTRY_BYTES}"
            last = self._last_raw()
            if last is None:
                return None
            relative_offset, position = last
        if position >= log_bytes:
            return f"the last entry points to {position}, beyond the log's end at {log_bytes}"
        if relative_offset > RELATIVE_OFFSET_MAX:
            return "the last offset does not fit the segment"
        if position == 0:
            return "the last entry points to the segment's first byte, as unused space does"
        return None

    def check(self, batches: npt.NDArray[Any], *, allow_padding: bool = False) -> Iterator[str]:
        """
        Compare the entries with the log and yield a sentence for each that is wrong.

        An entry is right if it points to the first byte of a batch, its offset is the last offset
        of this or a later batch (releases up to 3.x wrote one entry for a whole append), and every
        batch before it ends below that offset.

        Args:
            batches: ``BATCH_DTYPE``, all batches of the segment in order; of magic 0 and 1 entries
                only ``position`` and ``last_offset`` are looked at.
            allow_padding: Zeros at the end are unused space: the index of an active segment.
        """
        assert batches.dtype == BATCH_DTYPE
        yield from self._check_order(offset_index_check, allow_padding=allow_padding)
        used_count = self._used_count(self._current_view(), allow_padding=allow_padding)
        entries = self.entries()[:used_count]
        offsets, positions = entries[:, 0], entries[:, 1]
        starts = np.ascontiguousarray(batches["position"])
        ends = np.maximum.accumulate(np.append(np.int64(-1), batches["last_offset"]))[1:]
        batch = np.searchsorted(starts, positions)
        holder = np.searchsorted(ends, offsets)  # The first batch that ends there or later.
        begins = _equal_at(starts, batch, positions)
        for slot in np.flatnonzero(~begins).tolist():
            offset, position = entries[slot].tolist()
            yield self._problem(
                slot, f"offset {offset} points to {position}, where no batch begins"
            )
        for slot in np.flatnonzero(begins & (holder < batch)).tolist():
            yield self._problem(slot, f"offset {offsets[slot]} is in a batch before the position")
        ends_there = _equal_at(ends, holder, offsets)
        for slot in np.flatnonzero(begins & (holder >= batch) & ~ends_there).tolist():
            yield self._problem(slot, f"no batch ends with offset {offsets[slot]}")


class TimeIndex(IndexFile):
    """
    The ``.timeindex`` file: finds an offset before which every record is older than a timestamp.

    Source: Kafka ``TimeIndex``; spec 3.3.
    """

    ENTRY_BYTES = 12
    _ENTRY = struct.Struct(">qI")

    __slots__ = ()

    @property
    def is_full(self) -> bool:
        """Whether the segment must roll; one slot is kept for the entry written at the roll."""
        return self.entry_count >= self.max_entries - 1

    @property
    def last_entry(self) -> TimestampOffset:
        """The last entry, ``(-1, base_offset)`` when there is none."""
        last = self._last_raw()
        if last is None:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        return TimestampOffset(last[0], self.base_offset + last[1])

    @classmethod
    def encode(cls, timestamp: int, relative_offset: int) -> bytes:
        """Return an entry as it is in the file."""
        return cls._ENTRY.pack(timestamp, relative_offset)

    def note_last_entry(self, last: TimestampOffset) -> None:
        """Learn what the last entry is from the writer that appended it: it need not be read."""
        with self._lock:
            assert self._entry_count > 0
            self._last = (last.timestamp, last.offset - self.base_offset)

    def maybe_append(self, timestamp: int, offset: int, *, skip_full_check: bool = False) -> None:
        """
        Append an entry if the timestamp is above the last one, else do nothing.

        Args:
            timestamp: The largest in the segment so far.
            offset: The last offset of the batch that has it.
            skip_full_check: Use the slot that is kept for the roll.

        Raises:
            InvalidOffsetError: The offset is below the last one.
            IndexOffsetOverflowError: It is too far above the base offset.
            StorageError: The index is as before.
        """
        assert skip_full_check or not self.is_full
        with self._lock:
            last = self.last_entry
            if self._entry_count > 0:
                if offset < last.offset:
                    raise InvalidOffsetError(
                        f"offset {offset} is below the last one, {last.offset}",
                        path=self.path,
                        offset=offset,
                    )
                assert timestamp >= last.timestamp
            if timestamp > last.timestamp:
                self.append_entries(self._ENTRY.pack(timestamp, self.relative_offset(offset)))

    def lookup(self, target_timestamp: int) -> TimestampOffset:
        """
        Return the last entry whose timestamp is <= the target, or ``(-1, base_offset)``.

        Cost: O(log entry_count), one C call.
        """
        view = self._current_view()
        slot = time_index_lookup(view.address, view.count, target_timestamp)
        if slot < 0:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        timestamp, relative_offset = self._read(view, slot)
        return TimestampOffset(timestamp, self.base_offset + relative_offset)

    def entry(self, slot: int) -> TimestampOffset:
        """Return the entry in one slot, counted from 0."""
        view = self._current_view()
        assert 0 <= slot < view.count
        timestamp, relative_offset = self._read(view, slot)
        return TimestampOffset(timestamp, self.base_offset + relative_offset)

    def _slot_of_offset(self, view: View, relative_offset: int) -> int:
        return time_index_lookup_offset(view.address, view.count, relative_offset)

    def entries(self) -> npt.NDArray[np.int64]:
        """
        Return a copy of all entries.

        Shapes: int64, shape (entry_count, 2): timestamp, offset.
        """
        view = self._current_view()
        dtype = np.dtype([("timestamp", ">i8"), ("relative_offset", ">u4")])
        raw = np.frombuffer(view.bytes, dtype, view.count)
        entries = np.empty((view.count, 2), np.int64)
        entries[:, 0] = raw["timestamp"]
        entries[:, 1] = raw["relative_offset"]
        entries[:, 1] += self.base_offset
        return entries

    def sanity_check(self) -> None:
        """
        Look at size and ends of the index, as Kafka does when it loads a segment.

        Raises:
            CorruptIndexError: The file must be rebuilt.
        """
        last = self._last_raw()
        if last is not None:
            if last[0] < self.entry(0).timestamp:
                self._corrupt("its last timestamp is below the first one")
            if last[1] > RELATIVE_OFFSET_MAX:
                self._corrupt(f"its last offset is below the base offset {self.base_offset}")
        self._sanity_check_size()

    def tail_problem(self) -> str | None:
        """Return what is wrong with the last entries, as far as they themselves tell, or None."""
        if self.file_bytes % self.ENTRY_BYTES != 0:
            return f"size {self._file_bytes} is not a multiple of {self.ENTRY_BYTES}"
        view = self._current_view()
        count = view.count
        if count == 0:
            return None
        last = self._read(view, count - 1)
        if last[1] > RELATIVE_OFFSET_MAX:
            return "the last offset does not fit the segment"
        if last[0] < 0:
            return "the last timestamp is negative"
        if count > 1:
            before = self._read(view, count - 2)
            if last[0] <= before[0] or last[1] < before[1]:
                return "the last entry is not above the one before it, as in unused space"
        return None

    def check(self, batches: npt.NDArray[Any], *, allow_padding: bool = False) -> Iterator[str]:
        """
        Compare the entries with the log and yield a sentence for each that is wrong.

        An entry is right if its offset is in a batch whose largest timestamp is the entry's, and no
        batch before has a larger one.

        Args:
            batches: ``BATCH_DTYPE``, all batches of the segment in order; of magic 0 and 1 entries
                only ``last_offset`` and ``max_timestamp`` are looked at.
            allow_padding: Zeros at the end are unused space: the index of an active segment.
        """
        assert batches.dtype == BATCH_DTYPE
        yield from self._check_order(time_index_check, allow_padding=allow_padding)
        used_count = self._used_count(self._current_view(), allow_padding=allow_padding)
        entries = self.entries()[:used_count]
        timestamps, offsets = entries[:, 0], entries[:, 1]
        ends = np.maximum.accumulate(np.append(np.int64(-1), batches["last_offset"]))[1:]
        largest = np.maximum.accumulate(np.append(np.int64(-1), batches["max_timestamp"]))[1:]
        holder = np.searchsorted(ends, offsets)  # The first batch that ends there or later.
        exists = holder < len(ends)
        has_it = _equal_at(np.ascontiguousarray(batches["max_timestamp"]), holder, timestamps)
        is_first = _equal_at(largest, holder, timestamps)
        for slot in np.flatnonzero(~exists).tolist():
            yield self._problem(slot, f"offset {offsets[slot]} is beyond the log's end")
        for slot in np.flatnonzero(exists & ~has_it).tolist():
            yield self._problem(
                slot,
                f"timestamp {timestamps[slot]} is not the largest of the batch with offset"
                f" {offsets[slot]}",
            )
        for slot in np.flatnonzero(has_it & ~is_first).tolist():
            yield self._problem(slot, f"a batch before offset {offsets[slot]} is younger")


def _equal_at(
    column: npt.NDArray[Any], slots: npt.NDArray[np.intp], values: npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """Return where ``column[slot] == value``; a slot beyond the end is never equal."""
    inside = slots < len(column)
    if len(column) == 0:
        return inside
    equal: npt.NDArray[np.bool_] = column[np.where(inside, slots, 0)] == values
    return inside & equal
