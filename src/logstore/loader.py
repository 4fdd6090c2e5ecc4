"""
What is on disk -> a recovered log.

1. Delete what a crash left unfinished: ``.deleted``, ``.cleaned``, and ``.swap`` files of a split
   that was not committed (``leftovers.py`` has the first three steps).
2. Committed replacements (``.swap``): delete what they replace.
3. Give them their final names.
4. Make a segment of each ``.log`` file; rebuild the one whose index is missing or cannot be right.
5. After an unclean end, recover the segments from the recovery point on.
6. Bring log start, leader epochs and producer state to what was found.

Each step leaves a directory that the next load can begin with: it may be interrupted anywhere. No
step needs free space: an index or a snapshot that cannot be written is made again later.

Where this is not Kafka (DESIGN.md D8; docs/decisions):

* A clean start looks at the active segment's tail. If it does not parse, the segment is recovered;
  Kafka stops, or falls back to the segment's first offset. What is cut is kept in quarantine.
* Segments that Kafka would delete (behind damage; all, if the log start lies beyond the end) are
  moved into quarantine.
* A committed replacement that does not parse stops the load before anything is deleted for it.
* A read error during recovery is an error; Kafka empties the segment.
* A clean start without producer snapshots reads the log for them.

Source: Kafka ``LogLoader``; spec 6.2.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from logstore.aborted_finder import AbortedFinder
from logstore.errors import (
    CorruptIndexError,
    CorruptRecordError,
    SegmentOffsetOverflowError,
)
from logstore.file_records import LogOffsetMetadata
from logstore.leftovers import PartitionDirectory
from logstore.producer_rebuild import rebuild_producer_state, take_snapshot
from logstore.producer_snapshot import SNAPSHOT_SUFFIX
from logstore.quarantine import Quarantine
from logstore.recovery import StepBuffer
from logstore.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    LogSegment,
    segment_file_name,
)
from logstore.segment_files import INDEX_SUFFIXES
from logstore.segment_split import split_overflowed_segment

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore.clock import Clock
    from logstore.config import LogConfig
    from logstore.files import Files
    from logstore.leader_epoch import LeaderEpochCache
    from logstore.producer_state import ProducerStateManager

logger = logging.getLogger(__name__)

TXN_ENTRY_BYTES: Final = 34

Result = TypeVar("Result")


class LoadedLog(NamedTuple):
    """
    What a load found.

    Source: Kafka ``LoadedLogOffsets``.
    """

    segments: list[LogSegment]  #: ascending, at least one
    log_start_offset: int
    recovery_point: int
    log_end_offset_metadata: LogOffsetMetadata

    @property
    def log_end_offset(self) -> int:
        """What the next record gets."""
        return self.log_end_offset_metadata.message_offset


class LogLoader(PartitionDirectory):
    """
    Loads one partition's directory.

    Args:
        directory: It exists, and this process is its only writer.
        config: Of the log.
        leader_epochs: Its cache; is brought to what the log holds.
        producer_state: Its manager, empty; is filled.
        new_producer_state: Makes another one for the same directory.
        log_start_offset: As checkpointed, 0 if it was not.
        recovery_point: As checkpointed, 0 if it was not.
        had_clean_shutdown: Everything below the log end was flushed and closed.

    Source: Kafka ``LogLoader``.
    """

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        *,
        leader_epochs: LeaderEpochCache,
        producer_state: ProducerStateManager,
        new_producer_state: Callable[[], ProducerStateManager],
        log_start_offset: int,
        recovery_point: int,
        had_clean_shutdown: bool,
        files: Files,
        clock: Clock,
    ) -> None:
        assert log_start_offset >= 0
        assert recovery_point >= 0
        super().__init__(directory, config, files=files, clock=clock)
        self._leader_epochs = leader_epochs
        self._producer_state = producer_state
        self._new_producer_state = new_producer_state
        self._log_start_checkpoint = log_start_offset
        self._recovery_point_checkpoint = recovery_point
        self._had_clean_shutdown = had_clean_shutdown
        self._segments: dict[int, LogSegment] = {}  # Ascending.
        self._quarantine = Quarantine(directory, files)
        self._names_before: Final = frozenset(self._names())
        # For recovering one segment after the other: the state behind the last one.
        self._buffer: Final = StepBuffer(files)
        self._predecessors: dict[int, int] = {}  # Base offset -> that of the segment before.
        self._recovery_state: ProducerStateManager | None = None
        self._recovered_base: int | None = None
        self._recovered: set[int] = set()
        self._txn_indexed: set[int] = set()  # Segments that have a .txnindex file.

    def load(self) -> LoadedLog:
        """
        Load the log.

        Raises:
            CorruptRecordError: A committed replacement is damaged; nothing was changed for it.
            StorageError: A file cannot be read or changed. Loading again later goes on.
        """
        try:
            self._remove_unfinished()
            self._complete_swaps()
            with self._leader_epochs.one_write():
                self._without_overflow(self._load_segments)
                next_offset, recovery_point = self._without_overflow(self._recover_log)
            return self._finish(next_offset, recovery_point)
        except BaseException:
            for segment in self._segments.values():
                segment.close_handlers()
            raise

    # -- pass 4: segments --------------------------------------------------------------------------

    def _load_segments(self) -> None:
        for segment in self._segments.values():
            segment.close_handlers()
        self._segments.clear()
        self._recovery_state = None
        self._recovered.clear()
        self._txn_indexed.clear()

        names = self._names()
        self._producer_state.look_for_snapshots(names)
        present = set(names)
        damaged: list[LogSegment] = []
        for name in names:
            stem, dot, rest = name.partition(".")
            suffix = dot + rest
            if not (stem.isascii() and stem.isdecimal()):
                continue
            if suffix in INDEX_SUFFIXES and stem + LOG_SUFFIX not in present:
                logger.warning(
                    "%s: %s is of no use, as its log is not there", self._directory, name
                )
                self._delete(name)
            elif suffix == LOG_SUFFIX:
                offset = int(stem)
                self._segments[offset] = self._make_segment(offset)
        self._segments = dict(sorted(self._segments.items()))
        first = self._first_to_recover()
        for offset, segment in self._segments.items():
            # What is recovered anyway must not lose its tail here already: the segments behind a
            # tail that was cut go, and only the recovery itself sees to that.
            is_recovered = first is not None and offset >= first
            problem = self._index_problem(segment, present, only_kafkas=is_recovered)
            if problem is not None:
                logger.warning("%s: %s; recovering the segment", segment.log_path, problem)
                damaged.append(segment)
        bases = list(self._segments)
        self._predecessors = dict(zip(bases[1:], bases, strict=False))
        for segment in damaged:
            self._recover_segment(segment, while_loading=True)

    def _first_to_recover(self) -> int | None:
        """Return the base offset of the first segment to recover, None after a clean end."""
        if self._had_clean_shutdown:
            return None
        bases = (base for base in self._segments if base <= self._recovery_point_checkpoint)
        return max(bases, default=0)

    def _index_problem(
        self, segment: LogSegment, present: set[str], *, only_kafkas: bool
    ) -> str | None:
        """
        Return why a segment's indexes have to be rebuilt, as far as can be told in O(1).

        Args:
            segment: The segment.
            present: Names of all files.
            only_kafkas: Only what Kafka rebuilds a segment for at this point.
        """
        stem = segment_file_name(segment.base_offset, "")
        # Kafka makes a replacement's offset index when it looks where that ends.
        is_made = only_kafkas and segment.base_offset in self._swapped
        if stem + INDEX_SUFFIX not in present and not is_made:
            return f"{stem}{INDEX_SUFFIX} is missing"
        if stem + TIME_INDEX_SUFFIX not in present and not only_kafkas:
            return f"{stem}{TIME_INDEX_SUFFIX} is missing"
        if stem + TXN_INDEX_SUFFIX not in present:
            return None
        if not only_kafkas:
            self._txn_indexed.add(segment.base_offset)
            if self._files.file_size(self._path(stem + TXN_INDEX_SUFFIX)) % TXN_ENTRY_BYTES:
                return f"{stem}{TXN_INDEX_SUFFIX} ends inside an entry"
        return self._txn_index_problem(segment)

    @staticmethod
    def _txn_index_problem(segment: LogSegment) -> str | None:
        try:
            segment.txn_index.sanity_check()
        except CorruptIndexError as error:
            return str(error)
        return None

    def _without_overflow(self, step: Callable[[], Result]) -> Result:
        """Run a step; split a segment that turns out to hold too large offsets, and begin anew."""
        while True:
            try:
                return step()
            except SegmentOffsetOverflowError as error:
                overflowed = self._segment_of(error)
                logger.warning("%s: splitting it: %s", overflowed.log_path, error)
                self._keep_tail(overflowed, _parsed_bytes(overflowed))
                parts = split_overflowed_segment(overflowed, self._files)
                self._listing = None
                self._complete_swaps()
                if overflowed.base_offset not in parts:
                    overflowed.delete_if_exists()
                self._load_segments()

    def _segment_of(self, error: SegmentOffsetOverflowError) -> LogSegment:
        for segment in self._segments.values():
            if segment.log_path == error.path:
                return segment
        raise error

    # -- recovery ----------------------------------------------------------------------------------

    def _recover_segment(self, segment: LogSegment, *, while_loading: bool = False) -> int:
        """
        Rebuild a segment's indexes, cut it behind damage, leave a snapshot behind it.

        Segments are recovered in order, and producer state goes from one to the next: Kafka loads
        the directory's snapshots for each one again.

        Args:
            segment: The segment.
            while_loading: Those behind it do not count yet: snapshots are left at the two before.

        Source: Kafka ``LogLoader.recoverSegment``.
        """
        self._listing = None
        now_ms = self._clock.milliseconds()
        state = self._recovery_state
        if (
            state is None
            or self._predecessors.get(segment.base_offset) != self._recovered_base
            # Kafka finds no snapshot of it then: those up to the log start are gone.
            or state.map_end_offset <= self._log_start_checkpoint
        ):
            state = self._new_producer_state()
            segments = list(self._segments.values())
            if while_loading:
                segments = segments[: list(self._segments).index(segment.base_offset)]
            rebuild_producer_state(
                state,
                segments,
                self._log_start_checkpoint,
                segment.base_offset,
                now_ms,
                reload_from_clean_shutdown=False,
                withdraw=True,
            )
            self._recovery_state = state
        else:
            # What loading the snapshot again would do.
            state.remove_expired_producers(now_ms)
            state.update_map_end_offset(max(state.map_end_offset, segment.base_offset))
            take_snapshot(state, sync=False)
        self._recovered_base = segment.base_offset
        self._recovered.add(segment.base_offset)
        cut_bytes = segment.recover(
            state,
            self._leader_epochs,
            before_cut=self._keep_tail,
            buffer=self._buffer,
            unflushed_from=None if self._had_clean_shutdown else self._recovery_point_checkpoint,
        )
        segment.release()
        take_snapshot(state, sync=False)
        return cut_bytes

    def _keep_tail(self, segment: LogSegment, position: int) -> None:
        """
        Keep what a segment loses from ``position`` on, if it was on the device already.

        What lies above the recovery point of an unclean end was never promised to be whole, and is
        cut as in Kafka. But a batch that is whole is kept, and what follows it: it goes because its
        offsets go back, which Kafka does not ask for.
        """
        if position >= segment.size_bytes:
            return
        if not self._had_clean_shutdown and not _is_whole_batch(segment, position):
            next_offset = segment.base_offset
            for header in segment.headers(0, position):
                next_offset = header.next_offset
            if next_offset >= self._recovery_point_checkpoint:
                return
        name = os.path.basename(segment.log_path)
        self._quarantine.copy_tail(name, position, "bytes that were on the device are damaged")
        self._quarantine.sync()

    def _recover_log(self) -> tuple[int, int]:
        """Recover what may not be on the device, and return log end and recovery point."""
        if self._had_clean_shutdown:
            self._check_tail()
        else:
            self._recover_from()
        if self._segments:
            next_offset = self._active.read_next_offset()
            if next_offset < self._log_start_checkpoint:
                self._set_all_aside(next_offset)
        survived = bool(self._segments)
        if not survived:
            next_offset = self._log_start_checkpoint
            self._segments[next_offset] = self._make_segment(next_offset, is_new=True)
        if self._had_clean_shutdown and survived:
            recovery_point = next_offset
        else:
            recovery_point = min(self._recovery_point_checkpoint, next_offset)
        self._active.resize_indexes()
        return next_offset, recovery_point

    @property
    def _active(self) -> LogSegment:
        return self._segments[max(self._segments)]

    def _recover_from(self) -> None:
        bases = list(self._segments)
        first = self._first_to_recover()
        assert first is not None
        for base in bases:
            if base < first or base not in self._segments:
                continue
            segment = self._segments[base]
            logger.info("%s: recovering it", segment.log_path)
            cut_bytes = self._recover_segment(segment)
            if cut_bytes > 0:
                behind = [other for other in bases if other > base]
                logger.warning(
                    "%s: cut %d bytes behind its last valid batch; %d later segments go",
                    segment.log_path,
                    cut_bytes,
                    len(behind),
                )
                self._set_aside(behind, "they lie behind damage")
                return

    def _check_tail(self) -> None:
        """Recover the active segment of a log that ended cleanly, if its tail does not parse."""
        if not self._segments:
            return
        active = self._active
        problem = self._tail_problem(active)
        if problem is None:
            return
        logger.warning("%s: %s; recovering the segment", active.log_path, problem)
        self._recover_segment(active)

    def _tail_problem(self, active: LogSegment) -> str | None:
        """
        Return why the end of the active segment cannot be told from its last index entry on.

        Cost: an index entry, and the headers of the batches after it.
        """
        problem = active.offset_index.tail_problem(active.size_bytes)
        if problem is not None:
            return f"offset index: {problem}"
        start = 0
        if active.offset_index.entry_count > 0:
            entry = active.offset_index.entry(active.offset_index.entry_count - 1)
            start = entry.position
        end = start
        try:
            for header in active.headers(start):
                if header.position == start > 0 and not (
                    active.base_offset <= header.base_offset <= entry.offset
                ):
                    return f"no batch of offset {entry.offset} begins at {start}"
                if (
                    header.last_offset < header.base_offset
                    or header.base_offset < active.base_offset
                ):
                    return f"the batch at {header.position} has impossible offsets"
                end = header.end
        except CorruptRecordError as error:
            return str(error)
        if end != active.size_bytes:
            return f"it ends inside a batch, at {end} of {active.size_bytes} bytes"
        return None

    def _set_all_aside(self, next_offset: int) -> None:
        logger.warning(
            "%s: its log start %d is beyond its end %d: it continues empty from the log start",
            self._directory,
            self._log_start_checkpoint,
            next_offset,
        )
        self._set_aside(list(self._segments), "the log start lies beyond the end")
        self._leader_epochs.clear_and_flush()
        self._producer_state.truncate_fully_and_start_at(self._log_start_checkpoint)

    def _set_aside(self, bases: list[int], reason: str) -> None:
        """Move segments and their snapshots into quarantine."""
        names = set(self._names())
        self._listing = None
        for base in bases:
            self._segments.pop(base).close_handlers()
        gone = [
            name
            for base in bases
            for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)
            if (name := segment_file_name(base, suffix)) in names
            # A snapshot that this load has made is right, whatever segment begins there.
            and (suffix != SNAPSHOT_SUFFIX or name in self._names_before)
        ]
        self._quarantine.move(gone, reason)
        self._quarantine.sync()
        self._producer_state.look_for_snapshots(self._names())

    # -- finish ------------------------------------------------------------------------------------

    def _distrust_missing_txn_indexes(self, log_end_offset: int) -> None:
        """Have markers looked for in segments without a ``.txnindex`` that were not recovered."""
        segments = list(self._segments.values())
        finder = AbortedFinder(
            self._directory,
            self._config,
            segments,
            log_end_offset,
            files=self._files,
            clock=self._clock,
        )
        for segment in segments:
            base_offset = segment.base_offset
            if base_offset not in self._recovered and base_offset not in self._txn_indexed:
                segment.distrust_missing_txn_index(finder, log_end_offset)

    def _finish(self, next_offset: int, recovery_point: int) -> LoadedLog:
        self._leader_epochs.truncate_from_end(next_offset)
        first = min(self._segments)
        log_start_offset = max(self._log_start_checkpoint, first)
        self._leader_epochs.truncate_from_start(self._log_start_checkpoint)
        assert self._producer_state.is_empty
        self._producer_state.remove_stray_snapshots(list(self._segments))
        self._producer_state.delete_withdrawn_snapshots()
        rebuild_producer_state(
            self._producer_state,
            list(self._segments.values()),
            log_start_offset,
            next_offset,
            self._clock.milliseconds(),
            reload_from_clean_shutdown=self._had_clean_shutdown,
        )
        self._distrust_missing_txn_indexes(next_offset)
        active = self._active
        return LoadedLog(
            list(self._segments.values()),
            log_start_offset,
            recovery_point,
            LogOffsetMetadata(next_offset, active.base_offset, active.size_bytes),
        )


def _is_whole_batch(segment: LogSegment, position: int) -> bool:
    """Return whether a batch with a right CRC begins there."""
    with contextlib.suppress(CorruptRecordError):
        for header in segment.headers(position):
            return segment.batch_at(header).is_valid
    return False


def _parsed_bytes(segment: LogSegment) -> int:
    """Return where the entries of a segment end, as far as their lengths tell."""
    end = 0
    with contextlib.suppress(CorruptRecordError):
        for header in segment.headers():
            end = header.end
    return end
