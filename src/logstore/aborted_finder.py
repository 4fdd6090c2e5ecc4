"""
The aborted transactions of a segment whose ``.txnindex`` file is missing, from the log itself.

A missing file means "none was aborted" in Kafka; a lost one then makes aborted records visible. The
markers in the log know better (DESIGN.md D5). They are looked for when a committed reader first
asks for a segment that had no such file when the log was loaded. What is found is kept in memory,
no file is written.

Most logs never pay for that: a snapshot of the segment's end that knows of no marker says that
there was none.

Source: DESIGN.md D8; Kafka ignores a missing transaction index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from logstore.append_origin import AppendOrigin
from logstore.control_record import ControlRecordType
from logstore.errors import CorruptSnapshotError, StorageError
from logstore.index import AbortedTxn
from logstore.producer_rebuild import producer_batches, rebuild_producer_state
from logstore.producer_snapshot import read_snapshot
from logstore.producer_view import ViewProducerState
from logstore.record import RecordBatch

if TYPE_CHECKING:
    from logstore.clock import Clock
    from logstore.config import LogConfig
    from logstore.files import Files
    from logstore.segment import LogSegment

TRANSACTIONAL_CONTROL: Final = 0x30  # The two attribute bits of a marker.


class AbortedFinder:
    """
    Finds the aborted transactions of one log's segments.

    Args:
        directory: The log's.
        config: The log's.
        segments: Those of the log when it was loaded, ascending.
        log_end_offset: At that time.
    """

    __slots__ = ("_clock", "_config", "_directory", "_ends", "_files", "_segments")

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        segments: Sequence[LogSegment],
        log_end_offset: int,
        *,
        files: Files,
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._config = config
        self._segments = segments
        ends = [*(segment.base_offset for segment in segments[1:]), log_end_offset]
        self._ends = {segment.base_offset: end for segment, end in zip(segments, ends, strict=True)}
        self._files = files
        self._clock = clock

    def find(self, segment: LogSegment, end_offset: int) -> list[AbortedTxn]:
        """
        Return the transactions whose abort marker is in a segment, below ``end_offset``.

        Cost: a snapshot file; if that knows of markers, the headers of the segment; if one of them
        aborts, the batches of producers up to there.
        """
        if self._snapshot_excludes(segment):
            return []
        markers = producer_batches(segment, segment.base_offset, end_offset, TRANSACTIONAL_CONTROL)
        if not any(is_abort_marker(batch) for batch in markers):
            return []
        return self._replayed(segment, end_offset)

    def _new_state(self) -> ViewProducerState:
        return ViewProducerState(
            self._directory, config=self._config, clock=self._clock, files=self._files
        )

    def _snapshot_excludes(self, segment: LogSegment) -> bool:
        """Whether the snapshot of the segment's end says that no marker is in it."""
        path = self._new_state().fetch_snapshot(self._ends.get(segment.base_offset, -1))
        if path is None:
            return False
        try:
            entries = read_snapshot(path, files=self._files)
        except (CorruptSnapshotError, StorageError):
            return False
        if any(entry.coordinator_epoch >= 0 for entry in entries):
            return False
        # A producer that was idle for that long had been forgotten before the snapshot.
        first = segment.rolling_based_timestamp()
        last = segment.max_timestamp_and_offset_so_far().timestamp
        expiration_ms = self._config.producer_id_expiration_ms
        return first is None or (first >= 0 and last - first < expiration_ms)

    def _replayed(self, segment: LogSegment, end_offset: int) -> list[AbortedTxn]:
        state = self._new_state()
        rebuild_producer_state(
            state,
            [each for each in self._segments if not each.is_closed],
            0,
            segment.base_offset,
            self._clock.milliseconds(),
            reload_from_clean_shutdown=False,
        )
        found = []
        for batch in producer_batches(segment, segment.base_offset, end_offset):
            append_info = state.prepare_update(batch.producer_id, AppendOrigin.REPLICATION)
            completed = append_info.append(batch)
            state.update(append_info)
            if completed is None:
                continue
            if completed.is_aborted:
                found.append(
                    AbortedTxn(
                        completed.producer_id,
                        completed.first_offset,
                        completed.last_offset,
                        state.last_stable_offset(completed),
                    )
                )
            state.complete_txn(completed)
        return found


def is_abort_marker(batch: RecordBatch) -> bool:
    """Return whether a control batch ends a transaction by aborting it."""
    for record in batch.records():
        return ControlRecordType.parse(record.key) is ControlRecordType.ABORT
    return False  # The cleaner empties control batches.
