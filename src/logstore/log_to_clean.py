"""
What of a log a cleaning round may touch, and how dirty the log is: pure functions.

::

    log start        first dirty            first uncleanable          log end
        |   clean        |      cleanable         |   too young, undecided,  |
        |                |                        |   or in the active segment

Source: Kafka ``LogCleanerManager.cleanableOffsets``, ``LogToClean``; spec 7.1.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from logstore.segment import LogSegment
    from logstore.unified_log import UnifiedLog

logger = logging.getLogger(__name__)

NO_DELAY: Final = 0


class OffsetsToClean(NamedTuple):
    """
    The bounds of a round.

    Source: Kafka ``OffsetsToClean``.
    """

    first_dirty_offset: int
    first_uncleanable_dirty_offset: int
    #: The checkpoint says what cannot be, and is to be written anew.
    force_update_checkpoint: bool = False


def cleanable_offsets(
    log: UnifiedLog, last_clean_offset: int | None, now_ms: int
) -> OffsetsToClean:
    """
    Return where the dirty part of a log begins, and where it may not be cleaned any more.

    Args:
        log: The log.
        last_clean_offset: As checkpointed, None if it was never cleaned.
        now_ms: For ``min.compaction.lag.ms``.

    Source: Kafka ``LogCleanerManager.cleanableOffsets``; spec 7.1.
    """
    log_start_offset = log.log_start_offset
    checkpoint = log_start_offset if last_clean_offset is None else last_clean_offset
    first_dirty_offset, is_forced = checkpoint, False
    if checkpoint < log_start_offset:
        first_dirty_offset, is_forced = log_start_offset, True
        if not log.config.delete:
            logger.warning(
                "%s: the cleaner's checkpoint %d is below the log start %d: starting there",
                log.directory,
                checkpoint,
                log_start_offset,
            )
    elif checkpoint > log.log_end_offset:
        logger.warning(
            "%s: the cleaner's checkpoint %d is beyond the log end %d: starting at %d",
            log.directory,
            checkpoint,
            log.log_end_offset,
            log_start_offset,
        )
        first_dirty_offset, is_forced = log_start_offset, True

    min_lag_ms = max(log.config.min_compaction_lag_ms, 0)
    bounds = [log.last_stable_offset, log.active_segment.base_offset]
    if min_lag_ms > 0:
        for segment in _non_active_segments_from(log, first_dirty_offset):
            if segment.largest_timestamp() > now_ms - min_lag_ms:
                bounds.append(segment.base_offset)
                break
    first_uncleanable = max(first_dirty_offset, min(bounds))
    return OffsetsToClean(first_dirty_offset, first_uncleanable, is_forced)


def _non_active_segments_from(log: UnifiedLog, offset: int) -> list[LogSegment]:
    """
    Return the sealed segments from the one that holds an offset on.

    Source: Kafka ``UnifiedLog.nonActiveLogSegmentsFrom``.
    """
    if offset > log.active_segment.base_offset:
        return []
    return log.segments_between(offset, log.active_segment.base_offset)


@dataclass(frozen=True)
class LogToClean:
    """
    A log, and what a round would do with it.

    Attributes:
        log: The log.
        first_dirty_offset: Below it every key is there once at most, but for records retained.
        first_uncleanable_offset: The round ends there: a segment's base.
        clean_bytes: Of the segments below the first dirty offset.
        cleanable_bytes: Of the segments between the two.
        compaction_delay_ms: How long ``max.compaction.lag.ms`` is exceeded; 0: not.

    Source: Kafka ``LogToClean``.
    """

    log: UnifiedLog
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    compaction_delay_ms: int = NO_DELAY

    @classmethod
    def of(
        cls,
        log: UnifiedLog,
        first_dirty_offset: int,
        uncleanable_offset: int,
        compaction_delay_ms: int = NO_DELAY,
    ) -> LogToClean:
        """Return what is between two offsets, the upper one brought to a segment's base."""
        sealed = _non_active_segments_from(log, uncleanable_offset)
        first_uncleanable = (sealed[0] if sealed else log.active_segment).base_offset
        cleanable = log.segments_between(
            min(first_dirty_offset, first_uncleanable), first_uncleanable
        )
        return cls(
            log,
            first_dirty_offset,
            first_uncleanable,
            sum(each.size_bytes for each in log.segments if each.base_offset < first_dirty_offset),
            sum(segment.size_bytes for segment in cleanable),
            compaction_delay_ms,
        )

    @property
    def total_bytes(self) -> int:
        """Clean and cleanable bytes."""
        return self.clean_bytes + self.cleanable_bytes

    @property
    def cleanable_ratio(self) -> float:
        """The share of the bytes that is cleanable; 0 if there are none."""
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def needs_compaction_now(self) -> bool:
        """Whether records are dirty for longer than ``max.compaction.lag.ms``."""
        return self.compaction_delay_ms > 0


def max_compaction_delay(log: UnifiedLog, first_dirty_offset: int, now_ms: int) -> int:
    """
    Return for how long the oldest dirty segment exceeds ``max.compaction.lag.ms``, 0: not.

    Source: Kafka ``LogCleanerManager.maxCompactionDelay``.
    """
    max_lag_ms = max(log.config.max_compaction_lag_ms, 0)
    timestamps = [
        timestamp
        for segment in _non_active_segments_from(log, first_dirty_offset)
        if (timestamp := segment.rolling_based_timestamp()) is not None and timestamp > 0
    ]
    earliest = min(timestamps, default=None)
    cleanable_until_ms = now_ms - max_lag_ms
    if earliest is None or earliest >= cleanable_until_ms:
        return 0
    return cleanable_until_ms - earliest
