"""
Recovery of one segment: read the ``.log`` file once, keep its valid prefix, rebuild the rest.

The file is read in large steps into one buffer, which serves all segments of a load. Batches are
judged and their index entries made in C; Python sees only what needs it: batches of transactions,
the last ones of idempotent producers, changes of the leader epoch, magic 0 and 1. A small segment
with none of these, and with right indexes, takes one call into C: a log may have thousands.

Indexes are compared with what was found, and written only if they are not that already: after most
crashes they are. On a full disk an index stays empty, which is slow and right.

A batch is valid if its size and CRC are right and its offsets fit the segment. A batch of an
unknown magic with a right CRC is valid too, for a reader that knows it.

No CRC covers a base offset. A power loss may leave its bytes as they were before the write, zeros,
and the rest of the batch as written: so what was not flushed ends before a batch whose offsets are
not above those before it. Kafka keeps that batch, at offsets that others have. Below the recovery
point order is not asked for: a batch that is there twice stays, as in Kafka, without index entry.

Source: Kafka ``LogSegment.recover``; spec 4.7.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from logstore._native import (
    BATCH_DTYPE,
    SCAN_STOP_END,
    SCAN_STOP_LEGACY,
    SCAN_STOP_TORN,
    IndexState,
    PlainSegments,
    crc32c,
    index_batches,
    scan_batches,
)
from logstore.append_origin import AppendOrigin
from logstore.entries import LENGTH_MIN
from logstore.errors import (
    CorruptRecordError,
    DiskFullError,
    InvalidRecordError,
    SegmentOffsetOverflowError,
)
from logstore.index import AbortedTxn, OffsetIndex, TimeIndex, TimestampOffset
from logstore.index_file import RELATIVE_OFFSET_MAX
from logstore.legacy import LegacyEntry
from logstore.producer_batches import ProducerBatches
from logstore.producer_snapshot import NO_PRODUCER_ID
from logstore.record import RecordBatch
from logstore.records_builder import BATCH_OVERHEAD, LOG_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from logstore.files import Files
    from logstore.index import TransactionIndex
    from logstore.leader_epoch import LeaderEpochCache
    from logstore.producer_state import CompletedTxn, ProducerStateManager

    class RecoverableSegment(Protocol):
        """What recovery needs of a segment."""

        @property
        def offset_index(self) -> OffsetIndex:
            """Its ``.index`` file."""
            ...

        @property
        def time_index(self) -> TimeIndex:
            """Its ``.timeindex`` file."""
            ...

        @property
        def txn_index(self) -> TransactionIndex:
            """Its ``.txnindex`` file."""
            ...

        @property
        def base_offset(self) -> int:
            """A lower bound of its offsets."""
            ...

        @property
        def index_interval_bytes(self) -> int:
            """Bytes between two index entries."""
            ...

        @property
        def files(self) -> Files:
            """The door to the file system."""
            ...

        @property
        def index_bytes(self) -> int:
            """The size of an index that is appended to."""
            ...

        @property
        def log_path(self) -> str:
            """Its name."""
            ...

        @property
        def size_bytes(self) -> int:
            """Its size."""
            ...

        def holds_indexes(self, offset_entries: bytes, time_entries: bytes, aborted: bytes) -> bool:
            """Whether the index files are exactly these already."""
            ...

        def holds_plain(self, is_plain: Callable[[str], bool]) -> bool:
            """Whether this is said of the three files, which are all."""
            ...

        def update_txn_index(self, completed: CompletedTxn, last_stable_offset: int) -> None:
            """Note a transaction that was aborted."""
            ...


logger = logging.getLogger(__name__)

# PERFORMANCE.md A: reading more at once is not faster; a batch that is larger is read alone.
STEP_BYTES: Final = 1 << 20
LEADER_EPOCH_MAX: Final = 2**31 - 1
NOWHERE: Final = np.empty(0, np.int64)

_Batches = Any  # npt.NDArray with BATCH_DTYPE


class StepBuffer:
    """
    Memory that a recovery reads into, from the first segment to the last one.

    Attributes:
        may_be_plain: The segment before was of no producer, as far as was looked.
    """

    __slots__ = ("_files", "_plain_segments", "_step", "may_be_plain")

    def __init__(self, files: Files) -> None:
        self._files = files
        self._step: memoryview | None = None
        self._plain_segments: PlainSegments | None = None
        self.may_be_plain = True

    @property
    def plain_segments(self) -> PlainSegments:
        """What looks at segments that fit here."""
        if self._plain_segments is None:
            self._plain_segments = PlainSegments(self._files, self.of(STEP_BYTES))
        return self._plain_segments

    def of(self, size: int) -> memoryview:
        """Return ``size`` bytes; what was in them does not count any more."""
        if size > STEP_BYTES:
            return self._files.page_aligned_buffer(size)
        if self._step is None:
            self._step = self._files.page_aligned_buffer(STEP_BYTES)
        return self._step[:size]


class _Recovery:
    """What one pass over a segment has found so far."""

    def __init__(
        self,
        segment: RecoverableSegment,
        producer_state: ProducerStateManager,
        leader_epochs: LeaderEpochCache | None,
        buffer: StepBuffer,
        unflushed_from: int | None,
    ) -> None:
        self.segment = segment
        self.unflushed_from = unflushed_from
        self.producer_state = producer_state
        self.leader_epochs = leader_epochs
        self.buffer = buffer
        self.valid_bytes = 0
        self.index_state = _empty_index_state(segment)
        self.has_producers = False
        self.producer_batches = ProducerBatches(producer_state)
        self.largest_offset = segment.base_offset - 1
        self.offset_entries: list[bytes] = []
        self.time_entries: list[bytes] = []
        self.completed: list[tuple[CompletedTxn, int]] = []  # With the last stable offset.

    # -- the pass ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Walk the file to its end or to the first damage."""
        end = self.segment.size_bytes
        step_bytes = STEP_BYTES
        files = self.segment.files
        fd = files.open(self.segment.log_path, os.O_RDONLY)
        try:
            while self.valid_bytes < end:
                wanted = min(step_bytes, end - self.valid_bytes)
                buffer = self.buffer.of(wanted)
                size = files.pread_into(fd, buffer, self.valid_bytes)
                if size == 0:
                    return
                needed = self.take(buffer[:size])
                if needed == 0:
                    return
                step_bytes = max(STEP_BYTES, needed)
                if needed > end - self.valid_bytes:
                    return
        finally:
            files.close(fd)

    def take(self, data: memoryview) -> int:
        """
        Take the valid entries at the start of ``data``.

        Returns:
            0 if the segment ends here; else how many bytes the next step needs at least.
        """
        start = 0
        while True:
            scan = scan_batches(data[start:], position=self.valid_bytes)
            if not self.take_batches(data[start:], scan.batches):
                return 0
            start += scan.valid_bytes
            rest = data[start:]
            if scan.stop == SCAN_STOP_END:
                return 1
            if scan.stop == SCAN_STOP_TORN:
                return _size_of_entry(rest)
            if scan.stop == SCAN_STOP_LEGACY:
                taken = self.take_legacy(rest)
            else:
                taken = self.take_unknown_magic(rest)
            if taken <= 0:
                return -taken
            start += taken

    def take_legacy(self, data: memoryview) -> int:
        """Take one magic 0 or 1 entry: its size, 0 if it is damaged, minus what it needs."""
        size_bytes = _size_of_entry(data)
        if size_bytes > len(data) or size_bytes == 0:
            return -size_bytes
        try:
            entry = LegacyEntry(data[:size_bytes])
            entry.ensure_valid()
            header = _header(
                self.valid_bytes, size_bytes, entry.magic, entry.last_offset, entry.max_timestamp
            )
        except (CorruptRecordError, InvalidRecordError):
            return 0
        return size_bytes if self.take_batches(data, header) else 0

    def take_unknown_magic(self, data: memoryview) -> int:
        """Take one batch of a magic above 2 whose CRC is right; returns as take_legacy does."""
        size_bytes = _size_of_entry(data)
        if size_bytes < BATCH_OVERHEAD or not 2 < data[16] < 128:
            return 0
        if size_bytes > len(data):
            return -size_bytes
        if crc32c(data[21:size_bytes]) != int.from_bytes(data[17:21], "big"):
            return 0
        batch = RecordBatch(data[:size_bytes])
        header = _header(
            self.valid_bytes, size_bytes, data[16], batch.last_offset, batch.max_timestamp
        )
        header["base_offset"] = batch.base_offset
        return size_bytes if self.take_batches(data, header) else 0

    # -- what is found -----------------------------------------------------------------------------

    def take_batches(self, data: memoryview, batches: _Batches) -> bool:
        """Take valid batches that begin at ``valid_bytes``; False if one ends the segment."""
        if len(batches) == 0:
            return True
        base_offset = self.segment.base_offset
        fitting = batches
        below = above = NOWHERE
        if int(batches["base_offset"].min()) < base_offset:
            below = np.flatnonzero(batches["base_offset"] < base_offset)
            fitting = batches[: below[0]]
        if len(fitting) and int(fitting["last_offset"].max()) - base_offset > RELATIVE_OFFSET_MAX:
            above = np.flatnonzero(fitting["last_offset"] - base_offset > RELATIVE_OFFSET_MAX)
            fitting = fitting[: above[0]]
        in_order = fitting if self.unflushed_from is None else self._in_order(fitting)
        is_in_order = len(in_order) == len(fitting)
        fitting = in_order

        if len(fitting):
            self._index(fitting)
            self._assign_epochs(fitting)
            self._update_producers(data, fitting)
            self.valid_bytes = int(fitting["position"][-1] + fitting["size_bytes"][-1])
        if not is_in_order:
            return False
        if len(above):
            if self._goes_back(data, batches, int(above[0])):
                return False
            offset = int(batches["last_offset"][above[0]])
            raise SegmentOffsetOverflowError(
                f"offset {offset} is not within 2^31 - 1 of base offset {base_offset};"
                " the segment must be split",
                path=self.segment.log_path,
                offset=offset,
                position=self.valid_bytes,
            )
        return len(below) == 0

    def _goes_back(self, data: memoryview, batches: _Batches, at: int) -> bool:
        """
        Whether the batch behind one that is too far up begins below it.

        Then that one's base offset is damaged, which no CRC covers: a segment that only holds too
        much has rising offsets. Of the last batch nobody can tell.
        """
        if at + 1 < len(batches):
            following = int(batches["base_offset"][at + 1])
        else:
            end = batches["position"][at] + batches["size_bytes"][at] - batches["position"][0]
            header = data[int(end) :][:BATCH_OVERHEAD]
            if len(header) < BATCH_OVERHEAD or header[16] != 2:
                return False
            following = int.from_bytes(header[:8], "big", signed=True)
        return self.segment.base_offset <= following < int(batches["base_offset"][at])

    def _in_order(self, batches: _Batches) -> _Batches:
        """Return the batches before the first one that was not flushed and goes back."""
        base_offsets, last_offsets = batches["base_offset"], batches["last_offset"]
        if len(batches) == 0 or (
            base_offsets[0] > self.largest_offset and (base_offsets[1:] > last_offsets[:-1]).all()
        ):
            return batches
        before = np.maximum.accumulate(np.concatenate(([self.largest_offset], last_offsets[:-1])))
        goes_back = (base_offsets <= before) & (before + 1 >= self.unflushed_from)
        return batches[: int(goes_back.argmax())] if goes_back.any() else batches

    def _index(self, batches: _Batches) -> None:
        last_offsets = batches["last_offset"]
        if last_offsets[0] > self.largest_offset and (last_offsets[1:] > last_offsets[:-1]).all():
            self.largest_offset = int(last_offsets[-1])
            self._make_entries(batches)
            return
        before = np.maximum.accumulate(np.concatenate(([self.largest_offset], last_offsets[:-1])))
        self.largest_offset = max(int(before[-1]), int(last_offsets[-1]))
        repeated = np.flatnonzero(last_offsets <= before)
        start = 0
        for at in [*repeated.tolist(), len(batches)]:
            self._make_entries(batches[start:at])
            if at < len(batches):  # An entry for it would not be above the last one.
                size_bytes = int(batches["size_bytes"][at])
                self.index_state.struct.bytes_since_last_index_entry += size_bytes
            start = at + 1

    def _make_entries(self, batches: _Batches) -> None:
        offset_entries, time_entries = index_batches(batches, self.index_state)
        self.offset_entries.append(offset_entries)
        self.time_entries.append(time_entries)

    def _assign_epochs(self, batches: _Batches) -> None:
        if self.leader_epochs is None:
            return
        latest = self.leader_epochs.latest_epoch
        epochs = batches["leader_epoch"]
        if int(epochs.max()) <= (-1 if latest is None else latest):
            return
        highest = np.maximum.accumulate(epochs)
        risen = np.flatnonzero(np.diff(highest, prepend=-1 if latest is None else latest) > 0)
        for at in risen.tolist():
            epoch = int(epochs[at])
            if batches["magic"][at] >= 2 and epoch >= 0 and (latest is None or epoch > latest):
                self.leader_epochs.assign(epoch, int(batches["base_offset"][at]))
                latest = epoch

    def _update_producers(self, data: memoryview, batches: _Batches) -> None:
        start = int(batches["position"][0])
        of_producers = batches[batches["producer_id"] != NO_PRODUCER_ID]
        if len(of_producers):
            self.has_producers = True
            if not self.producer_batches.add(of_producers):
                self.producer_batches.apply()
                for position in of_producers["position"].tolist():
                    self._apply(RecordBatch(data, position - start))
        if batches["magic"][-1] >= 2:
            self.producer_state.update_map_end_offset(int(batches["last_offset"][-1]) + 1)

    def _apply(self, batch: RecordBatch) -> None:
        """
        Bring producer state up to a batch with a producer id that is in the log already.

        Source: Kafka ``LogSegment.updateProducerState``.
        """
        producer_state = self.producer_state
        append_info = producer_state.prepare_update(batch.producer_id, AppendOrigin.REPLICATION)
        completed = append_info.append(batch)
        producer_state.update(append_info)
        if completed is not None:
            last_stable_offset = producer_state.last_stable_offset(completed)
            self.completed.append((completed, last_stable_offset))
            producer_state.complete_txn(completed)

    # -- the indexes -------------------------------------------------------------------------------

    def write_indexes(self) -> None:
        """Make the indexes what was found; those that are so already are left alone."""
        segment, state = self.segment, self.index_state.struct
        if (
            state.max_timestamp > state.last_time_entry_timestamp
            and state.offset_of_max_timestamp >= state.last_time_entry_offset
        ):  # The entry that a segment gets when it is sealed.
            relative_offset = int(state.offset_of_max_timestamp) - segment.base_offset
            self.time_entries.append(TimeIndex.encode(int(state.max_timestamp), relative_offset))
        offset_entries, time_entries = b"".join(self.offset_entries), b"".join(self.time_entries)
        aborted = b"".join(
            AbortedTxn(
                each.producer_id, each.first_offset, each.last_offset, last_stable_offset
            ).encode()
            for each, last_stable_offset in self.completed
            if each.is_aborted
        )
        if segment.holds_indexes(offset_entries, time_entries, aborted):
            return
        _set_entries(segment.offset_index, offset_entries)
        _set_entries(segment.time_index, time_entries)
        segment.txn_index.reset()
        for completed, last_stable_offset in self.completed:
            segment.update_txn_index(completed, last_stable_offset)


def _set_entries(index: OffsetIndex | TimeIndex, entries: bytes) -> None:
    try:
        index.set_entries(entries)
    except DiskFullError as error:
        logger.warning("%s stays empty: %s", index.path, error)
        index.set_entries(b"")


def recover_segment(
    segment: RecoverableSegment,
    producer_state: ProducerStateManager,
    leader_epochs: LeaderEpochCache | None,
    buffer: StepBuffer | None = None,
    unflushed_from: int | None = None,
) -> tuple[int, TimestampOffset]:
    """
    Rebuild a segment's indexes from its valid prefix; see :meth:`LogSegment.recover`.

    Returns:
        The size of the prefix, and the largest timestamp with its batch's last offset.
    """
    buffer = buffer or StepBuffer(segment.files)
    if 0 < segment.size_bytes <= STEP_BYTES and buffer.may_be_plain:
        index_state = _recover_plain(segment, producer_state, leader_epochs, buffer)
        if index_state is not None:
            return segment.size_bytes, _largest_timestamp(index_state)
    recovery = _Recovery(segment, producer_state, leader_epochs, buffer, unflushed_from)
    recovery.run()
    recovery.producer_batches.apply()
    recovery.write_indexes()
    buffer.may_be_plain = not recovery.has_producers
    return recovery.valid_bytes, _largest_timestamp(recovery.index_state)


def _recover_plain(
    segment: RecoverableSegment,
    producer_state: ProducerStateManager,
    leader_epochs: LeaderEpochCache | None,
    buffer: StepBuffer,
) -> IndexState | None:
    """
    Recover a segment that needs no change, as most do after a crash, in one call into C.

    Returns:
        None if it is not so, or cannot be seen in that way: nothing was changed.
    """
    latest = LEADER_EPOCH_MAX if leader_epochs is None else leader_epochs.latest_epoch
    index_state = _empty_index_state(segment)
    next_offset: int | None = None

    def is_plain(path: str) -> bool:
        nonlocal next_offset
        next_offset = buffer.plain_segments.next_offset(
            path,
            size_bytes=segment.size_bytes,
            leader_epoch=-1 if latest is None else latest,
            index=index_state,
        )
        return next_offset is not None

    if not segment.holds_plain(is_plain):
        return None
    assert next_offset is not None
    producer_state.update_map_end_offset(next_offset)
    return index_state


def _empty_index_state(segment: RecoverableSegment) -> IndexState:
    return IndexState(
        segment.base_offset,
        segment.index_interval_bytes,
        offset_entries_room=segment.index_bytes // OffsetIndex.ENTRY_BYTES,
        # One is kept for the last entry.
        time_entries_room=segment.index_bytes // TimeIndex.ENTRY_BYTES - 1,
    )


def _largest_timestamp(index_state: IndexState) -> TimestampOffset:
    state = index_state.struct
    if state.max_timestamp < 0:
        return TimestampOffset(-1, int(state.base_offset))
    return TimestampOffset(int(state.max_timestamp), int(state.offset_of_max_timestamp))


def _size_of_entry(data: memoryview) -> int:
    """Return the size that an entry's header tells, 0 if that cannot be; 12 without a header."""
    if len(data) < LOG_OVERHEAD:
        return LOG_OVERHEAD
    length = int.from_bytes(data[8:12], "big", signed=True)
    return LOG_OVERHEAD + length if length >= LENGTH_MIN else 0


def _header(
    position: int, size_bytes: int, magic: int, last_offset: int, max_timestamp: int
) -> npt.NDArray[np.void]:
    """Return one row of batch headers for an entry that the scan does not parse."""
    header = np.zeros(1, BATCH_DTYPE)
    header["position"] = position
    header["size_bytes"] = size_bytes
    header["magic"] = magic
    header["base_offset"] = last_offset
    header["last_offset"] = last_offset
    header["max_timestamp"] = max_timestamp
    header["leader_epoch"] = -1
    header["producer_id"] = NO_PRODUCER_ID
    return header
