"""
Recovery of one segment: read the ``.log`` file once, keep its valid prefix, rebuild the rest.

The file is read in large steps into one buffer. Batches are judged and their index entries made in
C; Python sees only what needs it: batches of producers (idempotence, transactions), changes of the
leader epoch, magic 0 and 1 entries.

A batch is valid if its size and CRC are right and its offsets fit the segment. What order tells is
not asked: a batch that is there twice stays, as in Kafka, and gets no index entry. A batch of an
unknown magic with a right CRC stays too, for a reader that knows it.

Source: Kafka ``LogSegment.recover``; spec 4.7.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from logstore._native import (
    BATCH_DTYPE,
    SCAN_STOP_END,
    SCAN_STOP_LEGACY,
    SCAN_STOP_TORN,
    IndexState,
    crc32c,
    index_batches,
    scan_batches,
)
from logstore.append_origin import AppendOrigin
from logstore.entries import BATCH_OVERHEAD, LENGTH_MIN, LOG_OVERHEAD
from logstore.errors import CorruptRecordError, InvalidRecordError, SegmentOffsetOverflowError
from logstore.index import TimestampOffset
from logstore.legacy import LegacyEntry
from logstore.record import RecordBatch

if TYPE_CHECKING:
    import numpy.typing as npt

    from logstore.files import FileHandle, Files
    from logstore.index import OffsetIndex, TimeIndex, TransactionIndex
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
        def handle(self) -> FileHandle:
            """The open log file."""
            ...

        @property
        def log_path(self) -> str:
            """Its name."""
            ...

        @property
        def size_bytes(self) -> int:
            """Its size."""
            ...

        def append_index_entries(self, offset_entries: bytes, time_entries: bytes) -> None:
            """Append ready-made entries to both indexes."""
            ...

        def update_txn_index(self, completed: CompletedTxn, last_stable_offset: int) -> None:
            """Note a transaction that was aborted."""
            ...


# PERFORMANCE.md A: reading more at once is not faster; a batch that is larger is read alone.
STEP_BYTES: Final = 1 << 20
RELATIVE_OFFSET_MAX: Final = 2**31 - 1
NO_PRODUCER_ID: Final = -1

_Batches = Any  # npt.NDArray with BATCH_DTYPE


class _Recovery:
    """What one pass over a segment has found so far."""

    def __init__(
        self,
        segment: RecoverableSegment,
        producer_state: ProducerStateManager,
        leader_epochs: LeaderEpochCache | None,
    ) -> None:
        self.segment = segment
        self.producer_state = producer_state
        self.leader_epochs = leader_epochs
        self.valid_bytes = 0
        self.index_state = IndexState(
            segment.base_offset,
            segment.index_interval_bytes,
            offset_entries_room=segment.offset_index.max_entries,
            time_entries_room=segment.time_index.max_entries - 1,
        )
        self.largest_offset = segment.base_offset - 1

    # -- the pass ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Walk the file to its end or to the first damage."""
        end = self.segment.size_bytes
        step_bytes = STEP_BYTES
        files = self.segment.files
        buffer = files.page_aligned_buffer(step_bytes)
        with self.segment.handle.lease() as fd:
            while self.valid_bytes < end:
                wanted = min(step_bytes, end - self.valid_bytes)
                if wanted > len(buffer):
                    buffer = files.page_aligned_buffer(wanted)
                size = files.pread_into(fd, buffer[:wanted], self.valid_bytes)
                if size == 0:
                    return
                needed = self.take(buffer[:size])
                if needed == 0:
                    return
                step_bytes = max(STEP_BYTES, needed)
                if needed > end - self.valid_bytes:
                    return

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
        below = np.flatnonzero(batches["base_offset"] < base_offset)
        if len(below):
            batches = batches[: below[0]]
        above = np.flatnonzero(batches["last_offset"] - base_offset > RELATIVE_OFFSET_MAX)
        fitting = batches[: above[0]] if len(above) else batches

        if len(fitting):
            self._index(fitting)
            self._assign_epochs(fitting)
            self._update_producers(data, fitting)
            self.valid_bytes = int(fitting["position"][-1] + fitting["size_bytes"][-1])
        if len(above):
            offset = int(batches["last_offset"][above[0]])
            raise SegmentOffsetOverflowError(
                f"offset {offset} is not within 2^31 - 1 of base offset {base_offset};"
                " the segment must be split",
                path=self.segment.log_path,
                offset=offset,
                position=self.valid_bytes,
            )
        return len(below) == 0

    def _index(self, batches: _Batches) -> None:
        last_offsets = batches["last_offset"]
        before = np.maximum.accumulate(np.concatenate(([self.largest_offset], last_offsets[:-1])))
        self.largest_offset = max(int(before[-1]), int(last_offsets[-1]))
        repeated = np.flatnonzero(last_offsets <= before)
        start = 0
        for at in [*repeated.tolist(), len(batches)]:
            offset_entries, time_entries = index_batches(batches[start:at], self.index_state)
            self.segment.append_index_entries(offset_entries, time_entries)
            if at < len(batches):  # An entry for it would not be above the last one.
                size_bytes = int(batches["size_bytes"][at])
                self.index_state.struct.bytes_since_last_index_entry += size_bytes
            start = at + 1

    def _assign_epochs(self, batches: _Batches) -> None:
        if self.leader_epochs is None:
            return
        latest = self.leader_epochs.latest_epoch
        epochs = batches["leader_epoch"]
        highest = np.maximum.accumulate(epochs)
        risen = np.flatnonzero(np.diff(highest, prepend=-1 if latest is None else latest) > 0)
        for at in risen.tolist():
            epoch = int(epochs[at])
            if batches["magic"][at] >= 2 and epoch >= 0 and (latest is None or epoch > latest):
                self.leader_epochs.assign(epoch, int(batches["base_offset"][at]))
                latest = epoch

    def _update_producers(self, data: memoryview, batches: _Batches) -> None:
        start = int(batches["position"][0])
        for at in np.flatnonzero(batches["producer_id"] != NO_PRODUCER_ID).tolist():
            batch = RecordBatch(data, int(batches["position"][at]) - start)
            apply_batch(self.segment, self.producer_state, batch)
        if batches["magic"][-1] >= 2:
            self.producer_state.update_map_end_offset(int(batches["last_offset"][-1]) + 1)


def apply_batch(
    segment: RecoverableSegment, producer_state: ProducerStateManager, batch: RecordBatch
) -> None:
    """
    Bring producer state up to a batch with a producer id that is in the log already.

    Source: Kafka ``LogSegment.updateProducerState``.
    """
    append_info = producer_state.prepare_update(batch.producer_id, AppendOrigin.REPLICATION)
    completed = append_info.append(batch)
    producer_state.update(append_info)
    if completed is not None:
        last_stable_offset = producer_state.last_stable_offset(completed)
        segment.update_txn_index(completed, last_stable_offset)
        producer_state.complete_txn(completed)


def recover_segment(
    segment: RecoverableSegment,
    producer_state: ProducerStateManager,
    leader_epochs: LeaderEpochCache | None,
) -> tuple[int, TimestampOffset]:
    """
    Rebuild a segment's indexes from its valid prefix; see :meth:`LogSegment.recover`.

    Returns:
        The size of the prefix, and the largest timestamp with its batch's last offset.
    """
    segment.offset_index.reset()
    segment.time_index.reset()
    segment.txn_index.reset()
    recovery = _Recovery(segment, producer_state, leader_epochs)
    with contextlib.nullcontext() if leader_epochs is None else leader_epochs.one_write():
        recovery.run()
    state = recovery.index_state.struct
    if state.max_timestamp < 0:
        return recovery.valid_bytes, TimestampOffset(-1, segment.base_offset)
    return recovery.valid_bytes, TimestampOffset(
        int(state.max_timestamp), int(state.offset_of_max_timestamp)
    )


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
