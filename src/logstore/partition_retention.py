"""
What a log deletes by itself: the one place where retention's plan is carried out.

Source: Kafka ``UnifiedLog.deleteOldSegments``; spec 5.11.
"""

from __future__ import annotations

import logging
import os
from typing import NamedTuple

from logstore.append_times import (
    APPEND_TIMES_FILE,
    AppendTime,
    append_time,
    noted,
    read_append_times,
    write_append_times,
)
from logstore.cleanable_log import CleanableLog
from logstore.errors import CorruptRecordError, RetentionBlockedError
from logstore.retention import BY_AGE, BY_LOG_START, BY_SIZE, RetentionPlan, plan_retention
from logstore.segment import LogSegment

logger = logging.getLogger(__name__)


class _Walked(NamedTuple):
    """What a walk over the headers of a segment of a size has found."""

    size_bytes: int
    largest_timestamp: int


class RetainingLog(CleanableLog):
    """
    One partition log whose oldest segments go by log start, size and age.

    **Thread rule**: any thread may call anything. Changes take the log's lock.

    Source: Kafka ``UnifiedLog``.
    """

    _has_deleted = False
    _append_times: tuple[AppendTime, ...] | None = None  # As they were written.

    def retention_plan(self) -> RetentionPlan[LogSegment]:
        """
        Return what :meth:`delete_old_segments` would delete now, and what it waits for then.

        Cost: the batch headers of each segment that would go by age, and of the next one.
        """
        self.check_open()
        now_ms = self._clock.milliseconds()
        return self._plan_retention(now_ms, self._append_times_at(now_ms), {})

    def _plan_retention(
        self,
        now_ms: int,
        times: tuple[AppendTime, ...] | None,
        walked: dict[LogSegment, _Walked],
    ) -> RetentionPlan[LogSegment]:
        """
        Return the plan.

        Args:
            now_ms: The time now.
            times: If given, retention goes by these and not by the records' timestamps.
            walked: What walks over headers have found; it is used, and added to.
        """
        config = self.config
        segments = tuple(self._local_log.segments)
        log_end_offset = self.log_end_offset
        upper_bounds = dict(zip(segments, _upper_bounds(segments, log_end_offset), strict=True))

        def largest_timestamp(segment: LogSegment) -> int | None:
            if times is None:
                return _largest_timestamp(segment, now_ms, config.retention_ms, walked)
            time_ms = append_time(times, upper_bounds[segment])
            # Somebody has written there since, or has put another file in its place.
            return None if time_ms is None else max(time_ms, segment.modified_ms())

        return plan_retention(
            segments,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            log_end_offset=log_end_offset,
            deletes=config.delete,
            retention_bytes=config.retention_bytes,
            retention_ms=config.retention_ms,
            now_ms=now_ms,
            largest_timestamp=largest_timestamp,
        )

    def _append_times_at(self, now_ms: int) -> tuple[AppendTime, ...] | None:
        """Return by when what was appended; None: retention goes by the records' timestamps."""
        config = self.config
        if config.logstore_retention_timestamp_type != "LogAppendTime":
            return None
        if not config.delete or config.retention_ms < 0:
            return None
        times = self._append_times
        if times is None or self._is_read_only:
            times = read_append_times(self._append_times_path, self._files)
        segments = tuple(self._local_log.segments)
        log_end_offset = self.log_end_offset
        return noted(times, log_end_offset, now_ms, _upper_bounds(segments, log_end_offset))

    def _note_append_times(self, now_ms: int | None = None) -> tuple[AppendTime, ...] | None:
        """Write down by when what was appended, and return it; the lock is held."""
        times = self._append_times_at(self._clock.milliseconds() if now_ms is None else now_ms)
        if times is not None and times != self._append_times:
            write_append_times(self._append_times_path, times, self._files)
        self._append_times = times
        return times

    @property
    def _append_times_path(self) -> str:
        return os.path.join(self._directory, APPEND_TIMES_FILE)

    def delete_old_segments(self) -> int:
        """
        Delete segments that the log start, retention.bytes or retention.ms let go.

        Size and age count only if cleanup.policy has delete. Files are renamed to ``.deleted`` and
        go after file.delete.delay.ms. A segment goes by age when its batch headers were walked for
        the largest timestamp; one whose records have no timestamps never does. With
        ``logstore.retention.timestamp.type=LogAppendTime`` it is the time of the append that counts
        (``append_times.py``).

        Returns:
            The number of segments deleted.

        Source: Kafka ``deleteOldSegments``; spec 5.11.
        """
        return len(self.apply_retention().deletions)

    def apply_retention(self) -> RetentionPlan[LogSegment]:
        """Do what :meth:`delete_old_segments` does, and return the plan that was carried out."""
        self.check_writable()
        # Headers are walked before the lock is taken: appends do not wait for that.
        truncations, walked = self.settled_truncations(), dict[LogSegment, _Walked]()
        now_ms = self._clock.milliseconds()
        self._plan_retention(now_ms, self._append_times_at(now_ms), walked)
        with self.changing():
            now_ms = self._clock.milliseconds()
            times = self._note_append_times(now_ms)
            if self.truncations != truncations:
                walked.clear()
            plan = self._plan_retention(now_ms, times, walked)
            if plan.deletions:
                self._log_deletions(plan)
                self._delete([each.segment for each in plan.deletions])
            return plan

    def _log_deletions(self, plan: RetentionPlan[LogSegment]) -> None:
        """Say what goes and why: aloud the first time, since somebody may not have meant it."""
        level = logging.DEBUG if self._has_deleted else logging.INFO
        self._has_deleted = True
        for rule in (BY_LOG_START, BY_SIZE, BY_AGE):
            found = [each for each in plan.deletions if each.rule == rule]
            if not found:
                continue
            timestamps = [each.largest_timestamp for each in found]
            logger.log(
                level,
                "%s: offsets %d to %d (%d segments) are deleted by %s=%d%s",
                self._directory,
                found[0].segment.base_offset,
                found[-1].next_offset - 1,
                len(found),
                rule,
                {
                    BY_LOG_START: self.log_start_offset,
                    BY_SIZE: self.config.retention_bytes,
                    BY_AGE: self.config.retention_ms,
                }[rule],
                f"; their largest timestamp is {max(filter(None, timestamps), default=0)}"
                if rule == BY_AGE
                else "",
            )

    def _delete(self, deletable: list[LogSegment]) -> None:
        gone = deletable
        if len(deletable) == len(self._local_log.segments):
            # One segment must remain: a new one at the log end.
            new = self.roll_segment()
            if new.base_offset == deletable[-1].base_offset:
                gone = deletable[:-1]
        if gone:
            following = self._local_log.segments.higher(gone[-1].base_offset)
            assert following is not None
            self.maybe_increment_log_start_offset(following.base_offset)
            self.forget_places()
            self._local_log.remove_and_delete_segments(gone)
        self._delete_producer_snapshots(deletable)


def _upper_bounds(segments: tuple[LogSegment, ...], log_end_offset: int) -> list[int]:
    """Return where each segment ends."""
    return [*(each.base_offset for each in segments[1:]), log_end_offset][: len(segments)]


def _largest_timestamp(
    segment: LogSegment, now_ms: int, retention_ms: int, walked: dict[LogSegment, _Walked]
) -> int | None:
    """
    Return the largest timestamp of a segment's records, None if they have none.

    What an index says is taken for true if it keeps the segment, and the clock has reached it. Else
    the batch headers have the last word (DESIGN.md D5). When a file was written says nothing: that
    changes with a copy.
    """
    if segment.size_bytes == 0:
        return segment.modified_ms()  # With it no record goes.
    timestamp = segment.max_timestamp_and_offset_so_far().timestamp
    if now_ms - retention_ms <= timestamp <= now_ms:
        return timestamp
    size_bytes = segment.size_bytes
    found = walked.get(segment)
    if found is None or found.size_bytes != size_bytes:
        found = walked[segment] = _Walked(size_bytes, _walk(segment, size_bytes))
    return found.largest_timestamp if found.largest_timestamp >= 0 else None


def _walk(segment: LogSegment, size_bytes: int) -> int:
    """
    Return the largest timestamp of all batches in a segment, -1 if none has one.

    Raises:
        CorruptRecordError: Not every batch can be reached: what the rest says is not known.
    """
    largest, end = -1, 0
    for header in segment.headers(0, size_bytes):
        largest, end = max(largest, header.max_timestamp), header.end
    if end != size_bytes:
        raise CorruptRecordError(
            "the batches from here on cannot be read, and retention deletes none of them;"
            " run `logstore repair`",
            path=segment.log_path,
            position=end,
        )
    return largest


def blocked_retention(plan: RetentionPlan[LogSegment]) -> RetentionBlockedError | None:
    """Return what to tell somebody whose log keeps more than retention.ms says; None: all well."""
    first = plan.first_kept
    if first is None or not (plan.is_ahead or plan.has_no_timestamps):
        return None
    what = "records without timestamps"
    if plan.is_ahead:
        what = f"the timestamp {plan.first_kept_timestamp}, in the future"
    return RetentionBlockedError(
        f"retention.ms waits for the segment at offset {first.base_offset}, which has {what}:"
        " it and all behind it stay; limit retention.bytes, set"
        " logstore.retention.timestamp.type=LogAppendTime, or move the log start behind it",
        path=first.log_path,
        offset=first.base_offset,
        timestamp=plan.first_kept_timestamp,
    )
