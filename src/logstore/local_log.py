"""
The segments of one log in order, and what moves them: roll, read, truncate, delete, close.

``LocalLog`` knows files and offsets; producers, leader epochs, watermarks and locks are
``unified_log.py``'s. Readers see one immutable :class:`Segments` at a time.

Source: Kafka ``LocalLog`` and ``LogSegments``; spec 5.1, 5.6, 5.8, 5.12.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from logstore._native import RollStage
from logstore.aborted_transactions import collect_aborted
from logstore.cleaned_segment import commit_replacements
from logstore.errors import LogStoreError, OffsetOutOfRangeError, StorageError
from logstore.file_records import (
    NO_RECORDS,
    AbortedTransaction,
    FetchDataInfo,
    LogOffsetMetadata,
)
from logstore.flushing import Poison
from logstore.index import OffsetPosition
from logstore.open_files import OPEN_FILES
from logstore.segment import (
    DELETED_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    LogSegment,
    segment_file_name,
)
from logstore.segments import Segments

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from logstore._native import Buffer, PatchedBatch, Writer
    from logstore.clock import Clock
    from logstore.config import LogConfig
    from logstore.files import Files
    from logstore.index import AbortedTxn
    from logstore.scheduler import Scheduler
    from logstore.segment_files import FileOwner

# Segments whose names other ones have got, and that must not open those.
REPLACED_KEPT_OPEN_MAX: Final = 32
# Segments whose files stay open after they were sealed, until they are flushed.
OPEN_SEALED_MAX: Final = 256


class LocalLog:
    """
    The segments of one log directory and the writer of the active one.

    The log end offset is what the writer has published. Its place in the log follows from the
    active segment's size.

    **Thread rule**: everything that changes is called under the log's lock; reads are not.

    Source: Kafka ``LocalLog``.
    """

    __slots__ = (
        "_clock",
        "_file_owner",
        "_files",
        "_held",
        "_open_sealed",
        "_replaced",
        "_scheduler",
        "config",
        "directory",
        "poison",
        "segments",
        "writer",
    )

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        segments: Iterable[LogSegment],
        *,
        writer: Writer,
        log_end_offset: int,
        files: Files,
        clock: Clock,
        scheduler: Scheduler,
    ) -> None:
        self.directory = directory
        self.config = config
        self.poison: Final = Poison(directory)
        self.segments = Segments(segments)
        self.writer = writer
        self._files = files
        self._clock = clock
        self._scheduler = scheduler
        self._held: LogOffsetMetadata | None = None
        self._open_sealed: deque[LogSegment] = deque()  # Since the last flush.
        self._file_owner: FileOwner | None = None
        self._replaced: deque[LogSegment] = deque()
        assert len(self.segments) > 0
        writer.publish(log_end_offset)

    def set_file_owner(self, owner: FileOwner) -> None:
        """Let the log say when a segment's files may be closed, of these and of later ones."""
        self._file_owner = owner
        for segment in self.segments:
            segment.owner = owner

    # -- the end -----------------------------------------------------------------------------------

    @property
    def active_segment(self) -> LogSegment:
        """The segment that is written."""
        return self.segments.active

    @property
    def log_end_offset(self) -> int:
        """What the next record gets."""
        held = self._held
        return self.writer.log_end_offset if held is None else held.message_offset

    @property
    def log_end_offset_metadata(self) -> LogOffsetMetadata:
        """The log end offset and its place: the end of the active segment."""
        active = self.segments.active
        offset, size_bytes = active.end(self.writer.log_end_offset)
        # Asked for after the size: what is held was published before the size grew.
        held = self._held
        if held is not None:
            return held
        return LogOffsetMetadata(offset, active.base_offset, size_bytes)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size_bytes for segment in self.segments)

    def show_segments(self, segments: Iterable[LogSegment]) -> None:
        """See other segments, of a log that another process writes."""
        self.segments = Segments(segments)
        for segment in self.segments:
            segment.owner = self._file_owner

    def hold(self, log_end: LogOffsetMetadata) -> None:
        """Set the log end and its place, of a log that another process writes."""
        self._held = log_end

    def attach(self) -> LogSegment:
        """Attach the writer to the active segment, if it is not yet, and return the segment."""
        active = self.segments.active
        if not active.is_attached:
            OPEN_FILES.with_room(
                lambda: active.attach(self.writer, segment_ms=self.config.max_segment_ms)
            )
        return active

    def detach(self) -> None:
        """
        Take the active segment back from the writer.

        Raises:
            StorageError: What a failed append left behind the end could not be cut off. The log
                takes no changes any more.
        """
        try:
            self.segments.active.detach()
        except StorageError as error:
            if error.errno != errno.EDEADLK:  # By code that an append runs: it goes on to write.
                self.poison.note(error)
            raise

    def append(self, batches: Buffer | PatchedBatch, headers: npt.NDArray[np.void]) -> None:
        """
        Write batches to the active segment. They are not published before :meth:`publish`.

        Raises:
            StorageError: The log is as before.
        """
        assert self._held is None
        self._held = self.log_end_offset_metadata
        try:
            self.attach().append(batches, headers)
        except BaseException:
            self._held = None
            raise

    def append_pieces(self, pieces: Iterable[tuple[Buffer, npt.NDArray[np.void]]]) -> None:
        """
        Do what :meth:`append` does with batches that come in pieces: all of them, or nothing.

        Memory is what one piece takes. What makes the pieces may raise to end it all.

        Raises:
            StorageError: The log is as before.
        """
        assert self._held is None
        self._held = self.log_end_offset_metadata
        try:
            self.attach().append_pieces(pieces)
        except BaseException:
            self._held = None
            raise

    def publish(self, log_end_offset: int) -> None:
        """Let readers see everything below ``log_end_offset``."""
        self.writer.publish(log_end_offset)
        self._held = None

    # -- roll --------------------------------------------------------------------------------------

    def new_segment(self, base_offset: int) -> LogSegment:
        """
        Return a new, empty segment; its ``.log`` file exists on return.

        Files of its names that are there are in nobody's use: a roll that failed left them behind.
        """
        segment = self._fresh_segment(base_offset)
        self._make(segment)
        return segment

    def _make(self, segment: LogSegment) -> None:
        try:
            segment.make(self.config)
        except StorageError as error:
            # One that is left empty behind the end would be the active one of the next load.
            with self.poison.if_it_fails():
                self._delete_strays(segment.base_offset)
            if error.errno != errno.EEXIST:
                raise
            segment.make(self.config)

    def _fresh_segment(self, base_offset: int) -> LogSegment:
        """Return a new segment without files."""
        jitter_ms = min(self.config.segment_jitter_ms, self.config.segment_ms)
        segment = LogSegment(
            self.directory,
            base_offset,
            self.config,
            files=self._files,
            clock=self._clock,
            roll_jitter_ms=random.randrange(jitter_ms) if jitter_ms else 0,  # noqa: S311
            is_fresh=True,
        )
        segment.owner = self._file_owner
        return segment

    def roll(
        self,
        expected_next_offset: int = 0,
        *,
        recovery_point: int = 0,
        is_to_append: bool = False,
    ) -> LogSegment:
        """
        Seal the active segment and begin a new one at the log end, or at a higher offset.

        An empty active segment with that base offset is replaced. If everything in the active
        segment was flushed, its indexes are, too, before the new one is there: from then on it is
        not recovered after a crash. Else that is the flush's that comes later.

        Args:
            expected_next_offset: The base offset of the new segment, if it is above the log end.
            recovery_point: Below it everything is durable.
            is_to_append: :meth:`attach` comes next; it has less to do then, as a rule nothing.

        Source: Kafka ``LocalLog.roll``; spec 5.8.
        """
        log_end_offset = self.log_end_offset
        base_offset = max(expected_next_offset, log_end_offset)
        active = self.segments.active
        if base_offset <= active.base_offset:
            return self._roll_empty(active, base_offset)
        was_flushed = active.base_offset < log_end_offset <= recovery_point
        until = RollStage.MADE
        if was_flushed or self.config.preallocate:
            until = RollStage.SEALED
        elif is_to_append and base_offset == log_end_offset:
            until = RollStage.ATTACHED
        segment = self._fresh_segment(base_offset)
        try:
            self._seal(active, segment, until)
            if was_flushed:
                with self.poison.if_it_fails():
                    active.flush_indexes()
            if not segment.has_open_log:
                self._make(segment)
            self.segments = self.segments.with_segment(segment)
        except LogStoreError:
            raise
        except BaseException as error:  # An interruption: the writer may have files of nobody's.
            self.poison.note(error)
            with contextlib.suppress(LogStoreError):
                self.writer.detach()
            raise
        # A flush is going to need the file, and an error of the device is told to who had it open.
        self._open_sealed.append(active)
        if len(self._open_sealed) > min(OPEN_SEALED_MAX, OPEN_FILES.segments_max // 2):
            self._open_sealed.popleft().release()
        return segment

    def _roll_empty(self, active: LogSegment, base_offset: int) -> LogSegment:
        """Replace an active segment that is empty, and has this base offset."""
        existing = self.segments.get(base_offset)
        if existing is None:
            raise StorageError(
                f"cannot roll to offset {base_offset} below the active segment"
                f" {active.base_offset}; run `logstore verify`",
                path=active.log_path,
                offset=base_offset,
            )
        if existing is not active or active.size_bytes > 0:
            raise StorageError(
                f"cannot roll to offset {base_offset}: its segment exists and is not empty;"
                " run `logstore verify`",
                path=existing.log_path,
                offset=base_offset,
            )
        return self.replace_segment(base_offset, active)

    def _seal(self, active: LogSegment, following: LogSegment, until: int) -> None:
        """Seal the active segment; makes as much of the following one as is simple."""
        OPEN_FILES.keep_within_bounds()
        if not active.roll_to(following, until, segment_ms=self.config.max_segment_ms):
            self.detach()
            active.on_become_inactive()

    def release_flushed(self) -> None:
        """Close the files of sealed segments that were kept open to be flushed, and are."""
        for _ in range(len(self._open_sealed)):
            segment = self._open_sealed.popleft()
            if segment.is_flushed or segment.is_closed:
                segment.release()
            else:
                self._open_sealed.append(segment)

    def _delete_strays(self, base_offset: int) -> None:
        """Delete files of a segment that is not there."""
        for suffix in SEGMENT_SUFFIXES:
            path = os.path.join(self.directory, segment_file_name(base_offset, suffix))
            self._files.unlink(path, missing_ok=True)

    def replace_segment(self, base_offset: int, old: LogSegment) -> LogSegment:
        """
        Make a new segment before an old one goes, so that there always is an active one.

        Source: Kafka ``LocalLog.createAndDeleteSegment``.
        """
        self.detach()
        if base_offset == old.base_offset:
            self._mark_deleted(old)
        try:
            segment = self.new_segment(base_offset)
        except BaseException:
            if base_offset == old.base_offset:
                with self.poison.if_it_fails():
                    old.change_file_suffixes(DELETED_SUFFIX, "")
            raise
        self.segments = self.segments.without([old]).with_segment(segment)
        self.delete_segment_files([old])
        return segment

    # -- read --------------------------------------------------------------------------------------

    def read(
        self,
        start_offset: int,
        max_bytes: int,
        max_offset: LogOffsetMetadata,
        *,
        min_one_message: bool,
        include_aborted: bool,
    ) -> FetchDataInfo:
        """
        Return the range from the batch of ``start_offset`` up to ``max_offset``.

        Raises:
            OffsetOutOfRangeError: ``start_offset`` is below the first segment or above the end.

        Source: Kafka ``LocalLog.read``; spec 5.6.
        """
        segments = self.segments
        end = self.log_end_offset_metadata
        segment = segments.floor(start_offset)
        if segment is None or start_offset > end.message_offset:
            raise OffsetOutOfRangeError(
                f"offset {start_offset} is not in the log, which ends at {end.message_offset};"
                " seek to its start or its end",
                offset=start_offset,
                path=self.directory,
                log_start_offset=segments.first.base_offset,
                log_end_offset=end.message_offset,
            )
        nothing = () if include_aborted else None
        if start_offset == max_offset.message_offset:
            return FetchDataInfo(max_offset, NO_RECORDS, aborted_transactions=nothing)
        if start_offset > max_offset.message_offset:
            metadata = self.offset_metadata(start_offset)
            return FetchDataInfo(metadata, NO_RECORDS, aborted_transactions=nothing)

        while segment is not None:
            if segment.base_offset < max_offset.segment_base_offset:
                max_position: int | None = segment.size_bytes
            elif segment.base_offset == max_offset.segment_base_offset:
                # The bound's place may be from before the segment was cleaned.
                max_position = min(max_offset.relative_position_in_segment, segment.size_bytes)
            else:
                max_position = None  # Also when only the offset of the bound is known.
            found = segment.read(
                start_offset,
                max_bytes,
                max_position,
                min_one_message=min_one_message,
                is_to_map=(
                    segment is not segments.active
                    and segment.may_be_mapped
                    and self.config.mapped_segments_max > 0
                ),
            )
            if found is not None:
                if include_aborted:
                    return self._with_aborted(start_offset, segments, segment, found)
                return found
            segment = segments.higher(segment.base_offset)
        # In range, but nothing is left there: compacted away up to the end.
        return FetchDataInfo(end, NO_RECORDS)

    def offset_metadata(self, offset: int) -> LogOffsetMetadata:
        """
        Return where an offset is: the batch's base offset, segment and position.

        Raises:
            OffsetOutOfRangeError: It is not in the log.

        Source: Kafka ``LocalLog.convertToOffsetMetadataOrThrow``.
        """
        return self.read(
            offset,
            1,
            self.log_end_offset_metadata,
            min_one_message=False,
            include_aborted=False,
        ).fetch_offset_metadata

    def _with_aborted(
        self, start_offset: int, segments: Segments, segment: LogSegment, found: FetchDataInfo
    ) -> FetchDataInfo:
        metadata = found.fetch_offset_metadata
        start = OffsetPosition(metadata.message_offset, metadata.relative_position_in_segment)
        upper_bound = segment.fetch_upper_bound_offset(start, found.records.size_bytes)
        if upper_bound is None:
            following = segments.higher(segment.base_offset)
            upper_bound = self.log_end_offset if following is None else following.base_offset
        following_segments = segments.above(segment.base_offset)
        aborted = collect_aborted((segment, *following_segments), start_offset, upper_bound)
        return found._replace(
            aborted_transactions=tuple(
                AbortedTransaction(txn.producer_id, txn.first_offset) for txn in aborted
            )
        )

    def collect_aborted_transactions(
        self, log_start_offset: int, start_offset: int, upper_bound_offset: int
    ) -> list[AbortedTxn]:
        """Return the aborted transactions that touch ``[start_offset, upper_bound_offset)``."""
        segments = self.segments
        segment = segments.floor(start_offset)
        if segment is None:
            return []
        return collect_aborted(
            (segment, *segments.above(segment.base_offset)), log_start_offset, upper_bound_offset
        )

    # -- truncate and delete -----------------------------------------------------------------------

    def truncate_to(self, target_offset: int) -> list[LogSegment]:
        """
        Remove every batch that has an offset >= ``target_offset``; the log ends there.

        What stays of the last segment is copied first: without space for it nothing changes.

        Returns:
            The segments that went as a whole.

        Raises:
            StorageError: The log is as before; or it is poisoned, and readers see what lies below
                the target.

        Source: Kafka ``LocalLog.truncateTo``; spec 5.12.
        """
        self.detach()
        deleted = list(self.segments.above(target_offset))
        last = self.segments.floor(target_offset)
        assert last is not None
        found = last.translate_offset(target_offset)
        position = last.size_bytes if found is None else found.position
        kept = last.prepare_truncation(target_offset)
        log_end_offset = self.log_end_offset
        # No reader may see anything beyond the new end while files change.
        self._held = LogOffsetMetadata(target_offset, last.base_offset, position)
        self.writer.publish(target_offset)
        try:
            self._mark_all_deleted(deleted)
            with self.poison.if_it_fails():
                self.remove_and_delete_segments(deleted)
                last.truncate_to(target_offset, kept=kept)
        except BaseException:
            last.forget_truncation(kept)
            if self.poison.cause is None:
                self.writer.publish(log_end_offset)
                self._held = None
            raise
        self._held = None
        return deleted

    def truncate_fully_and_start_at(self, new_offset: int) -> list[LogSegment]:
        """
        Remove everything and begin at ``new_offset``.

        Raises:
            StorageError: The log is as before; or it is poisoned.

        Source: Kafka ``LocalLog.truncateFullyAndStartAt``.
        """
        deleted = list(self.segments)
        self.detach()
        self._mark_all_deleted(deleted)
        with self.poison.if_it_fails():
            self.segments = Segments([self.new_segment(new_offset)])
            self.delete_segment_files(deleted)
            self.writer.publish(new_offset)
        return deleted

    def _mark_deleted(self, segment: LogSegment) -> None:
        """Rename a segment's files to ``.deleted``; if that fails, all of them or none are."""
        try:
            segment.change_file_suffixes("", DELETED_SUFFIX)
        except BaseException as error:
            if segment.has_suffix(DELETED_SUFFIX):  # Some of them are, and cannot be undone.
                self.poison.note(error)
            raise

    def _mark_all_deleted(self, segments: list[LogSegment]) -> None:
        """
        Rename segments' files to ``.deleted``, the last segment first, each durably.

        Renames that are not synced may survive a power loss in any order: the log would be left
        with a hole, or without its beginning.

        Raises:
            StorageError: Nothing is renamed, or the log is poisoned.
        """
        is_changed = False
        for segment in reversed(segments):
            if not segment.has_suffix(DELETED_SUFFIX):
                segment.detach()
                with self.poison.if_it_fails() if is_changed else contextlib.nullcontext():
                    self._mark_deleted(segment)
                is_changed = True
                with self.poison.if_it_fails():
                    self._files.fsync_directory(self.directory)

    def replace_segments(
        self, new_segments: list[LogSegment], old_segments: list[LogSegment]
    ) -> list[LogSegment]:
        """
        Put cleaned segments in the place of others, in one step for readers and for a crash.

        1. ``.cleaned`` -> ``.swap``, from the last to the first: as long as one is ``.cleaned``,
           a load drops them all. Once these names are durable, it completes the rest.
        2. Readers see the new segments.
        3. The old files -> ``.deleted``; they go after file.delete.delay.ms.
        4. ``.swap`` -> the final names.

        Each step is durable before the next: renames may reach the device in any order, and an old
        segment must not come back beside what replaces it. (Kafka syncs once, at the end.)

        Args:
            new_segments: Sealed and durable, ``.cleaned``; ascending.
            old_segments: Of this log, none of them active; ascending.

        Returns:
            The old segments whose base offset is no segment's any more.

        Raises:
            StorageError: Nothing was replaced, and the new files are ``.cleaned`` still; or the log
                is poisoned: it serves the new segments, and the next load completes the names.

        Source: Kafka ``LocalLog.replaceSegments``; spec 6.3.
        """
        assert new_segments
        assert old_segments
        assert self.segments.active not in old_segments
        assert all(self.segments.get(each.base_offset) is each for each in old_segments)
        reused = {segment.base_offset for segment in new_segments}
        for segment in old_segments:
            if segment.base_offset in reused:
                segment.keep_open()
                self._replaced.append(segment)
        while len(self._replaced) > REPLACED_KEPT_OPEN_MAX:
            self._replaced.popleft().let_close()
        commit_replacements(new_segments, self.poison)
        for segment in new_segments:
            segment.owner = self._file_owner
        with self.poison.if_it_fails():
            self._files.fsync_directory(self.directory)
            kept = self.segments.without(old_segments)
            self.segments = Segments([*kept, *new_segments])
            self.delete_segment_files(old_segments)
            self._files.fsync_directory(self.directory)
            for segment in new_segments:
                segment.change_file_suffixes(SWAP_SUFFIX, "")
            self._files.fsync_directory(self.directory)
        return [segment for segment in old_segments if segment.base_offset not in reused]

    def remove_and_delete_segments(
        self, segments: list[LogSegment], *, asynchronous: bool = True
    ) -> None:
        """
        Take segments out of the log, rename their files, and delete them later.

        Source: Kafka ``LocalLog.removeAndDeleteSegments``.
        """
        if not segments:
            return
        self.segments = self.segments.without(segments)
        self.delete_segment_files(segments, asynchronous=asynchronous)

    def delete_segment_files(
        self, segments: list[LogSegment], *, asynchronous: bool = True
    ) -> None:
        """
        Rename segments' files to ``.deleted``, and delete them after file.delete.delay.ms.

        Source: Kafka ``LocalLog.deleteSegmentFiles``.
        """
        for segment in segments:
            segment.detach()
            if not segment.has_suffix(DELETED_SUFFIX):
                segment.change_file_suffixes("", DELETED_SUFFIX)

        def delete() -> None:
            for segment in segments:
                segment.delete_if_exists()

        if asynchronous:
            self._scheduler.schedule("delete-file", delete, self.config.file_delete_delay_ms)
        else:
            delete()

    def update_config(self, config: LogConfig) -> None:
        """Put other settings in force; the writer is told by the log."""
        self.config = config
        self.detach()  # It is attached again with the new segment.ms.

    def update_directory(self, directory: str) -> None:
        """Learn that the directory was renamed."""
        self.directory = directory
        for segment in self.segments:
            segment.update_directory(directory)
