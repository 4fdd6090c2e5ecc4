"""
What the cleaner does to a log: segments are replaced by others that hold what stays.

Source: Kafka ``UnifiedLog.replaceSegments``, ``splitOverflowedSegment``; spec 6.3, 6.4.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from logstore.appending import AppendingPartition
from logstore.cleaned_segment import CleanedSegment, split_overflowed_segment
from logstore.errors import LogCleaningAbortedError, StorageError
from logstore.segment import CLEANED_SUFFIX

if TYPE_CHECKING:
    from logstore.segment import LogSegment


class CleanableLog(AppendingPartition):
    """
    One partition log whose segments can be cleaned.

    **Thread rule**: any thread may call anything. Changes take the log's lock.

    Source: Kafka ``UnifiedLog``.
    """

    @property
    def cleaner_offset(self) -> int | None:
        """The first dirty offset: where the last cleaning ended; None if there was none."""
        return self._cleaner_offset

    def update_cleaner_offset(self, offset: int) -> None:
        """Note where the next cleaning begins; durable on return, where that is kept."""
        with self.changing():
            self._cleaner_offset = offset
            if self._checkpoints is not None:
                self._checkpoints.write_cleaner_offset(offset)

    @contextlib.contextmanager
    def cleaning(self) -> Iterator[None]:
        """
        Be the only one who cleans the log, in this block.

        Raises:
            LogCleaningAbortedError: Somebody is.
        """
        if not self._cleaning.acquire(blocking=False):
            raise LogCleaningAbortedError(
                "the log is being cleaned already; wait until that is done", path=self._directory
            )
        try:
            yield
        finally:
            self._cleaning.release()

    def last_records_of_active_producers(self) -> dict[int, tuple[int, int]]:
        """
        Return, by producer id, the last offset of its data (-1: none) and its epoch.

        Source: Kafka ``lastRecordsOfActiveProducers``.
        """
        with self._lock:
            return {
                producer_id: (entry.last_data_offset, entry.producer_epoch)
                for producer_id, entry in self.producer_state.active_producers.items()
            }

    def new_cleaned_segment(self, base_offset: int) -> CleanedSegment:
        """
        Return an empty segment to be written, which may replace others later.

        Source: Kafka ``UnifiedLog.createNewCleanedSegment``.
        """
        self.check_writable()
        return CleanedSegment(
            self._directory, base_offset, self.config, files=self._files, clock=self._clock
        )

    def replace_segments(
        self,
        new_segments: list[LogSegment],
        old_segments: list[LogSegment],
        *,
        end_offset: int,
        truncations: int,
    ) -> None:
        """
        Put cleaned segments in the place of others.

        Readers in this process and in others go over to the new files; what they hold stays valid.

        **Durability**: durable on return; a crash before it leaves the old segments or the new.

        Args:
            new_segments: Sealed and durable, ``.cleaned``; ascending.
            old_segments: What they were made of; ascending.
            end_offset: Where the segment behind them began when they were read.
            truncations: :attr:`truncations` from before the old segments were read.

        Raises:
            LogCleaningAbortedError: The log was truncated meanwhile, or retention has deleted one
                of the segments; nothing was replaced.
            StorageError: Nothing was replaced; or the log takes no changes until it is opened
                again, and serves the new segments.

        Source: Kafka ``UnifiedLog.replaceSegments``; spec 6.3.
        """
        with self.changing():
            segments = self._local_log.segments
            lowest = self._truncations.lowest_since(truncations)
            if (
                any(segments.get(each.base_offset) is not each for each in old_segments)
                or old_segments[-1] is segments.active
                or (lowest is not None and lowest < end_offset)
            ):
                raise LogCleaningAbortedError(
                    "the log was truncated, or segments were deleted, while they were cleaned;"
                    " clean it again",
                    path=self._directory,
                )
            self.forget_places()
            with self._truncations.replacing():
                gone = self._local_log.replace_segments(new_segments, old_segments)
            with self._poison.if_it_fails():
                self._delete_producer_snapshots(gone)

    def split_overflowed_segment(self, segment: LogSegment) -> list[int]:
        """
        Replace a sealed segment with offsets that do not fit it by several.

        Returns:
            The base offsets of the parts.

        Raises:
            StorageError: As :meth:`replace_segments`.

        Source: Kafka ``UnifiedLog.splitOverflowedSegment``; spec 6.4.
        """
        with self.changing():
            following = self._local_log.segments.higher(segment.base_offset)
            assert following is not None  # The active segment is not split: it rolls.
            truncations = self.truncations
            parts = split_overflowed_segment(
                segment, self.config, files=self._files, clock=self._clock
            )
            try:
                self.replace_segments(
                    parts, [segment], end_offset=following.base_offset, truncations=truncations
                )
            except BaseException:
                for part in parts:
                    if part.has_suffix(CLEANED_SUFFIX):
                        with contextlib.suppress(StorageError):
                            part.delete_if_exists()
                raise
            return [part.base_offset for part in parts]

    def _delete_producer_snapshots(
        self, segments: list[LogSegment], *, asynchronous: bool = True
    ) -> None:
        """
        Delete the snapshots that belong to deleted segments: those of the same base offset.

        Source: Kafka ``UnifiedLog.deleteProducerSnapshots``.
        """
        renamed = [
            path
            for segment in segments
            if (
                path := self.producer_state.remove_and_mark_snapshot_for_deletion(
                    segment.base_offset
                )
            )
            is not None
        ]
        if not renamed:
            return

        def delete() -> None:
            for path in renamed:
                self._files.unlink(path, missing_ok=True)

        if asynchronous:
            self._scheduler.schedule(
                "delete-producer-snapshot", delete, self.config.file_delete_delay_ms
            )
        else:
            delete()
