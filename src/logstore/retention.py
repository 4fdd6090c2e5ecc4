"""
Retention: which segments may go, by log start, size and age, as pure functions.

Each rule walks from the oldest segment and stops at the first one that stays, so that a log never
gets a hole. A segment may only go when the high watermark has passed all of it, and an empty last
segment always stays.

========================  ==========================================================
log start                 the next segment begins at or below the log start offset
size (retention.bytes)    the log without the segment still has retention.bytes
age (retention.ms)        its largest timestamp is more than retention.ms ago
========================  ==========================================================

:func:`plan_retention` applies them in this order, each to what the one before leaves. Nothing here
changes anything: ``partition_retention.py`` carries the plan out.

Source: Kafka ``UnifiedLog.deletableSegments`` and the three callers; spec 5.11.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from typing import Protocol

    class SizedSegment(Protocol):
        """What the rules ask of a segment."""

        @property
        def base_offset(self) -> int:
            """The first offset that it may hold."""
            ...

        @property
        def size_bytes(self) -> int:
            """Bytes of its batches."""
            ...


S = TypeVar("S", bound="SizedSegment")

# The rules, by what sets them.
BY_LOG_START: Final = "log start offset"
BY_SIZE: Final = "retention.bytes"
BY_AGE: Final = "retention.ms"

# How far ahead of the clock a record may be: message.timestamp.after.max.ms as Kafka has it.
AHEAD_MS_MAX: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Deletion(Generic[S]):
    """
    A segment that retention lets go.

    Attributes:
        segment: Which.
        rule: ``log start offset``, ``retention.bytes`` or ``retention.ms``.
        next_offset: Where the log goes on behind it.
        largest_timestamp: Of its records, in ms; None if the rule did not ask for it.
    """

    segment: S
    rule: str
    next_offset: int
    largest_timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class RetentionPlan(Generic[S]):
    """
    What retention removes of a log now, and what it waits for then.

    Attributes:
        deletions: The segments that go now, a prefix of the log.
        first_kept: The first segment that stays, None if all go.
        first_kept_timestamp: The largest timestamp of its records, in ms; None if it was not
            asked for, or if they have none.
        due_ms: When it goes by age, in ms since the epoch; None: never.
        due_bytes: How many bytes the log has to grow until it goes by size; None: never.
        waits_for_replication: It goes when the high watermark has passed it, not earlier.
        has_no_timestamps: It does not go by age, because nothing in it says how old it is.
        is_ahead: Its largest timestamp is so far in the future that it blocks what is behind it.
    """

    deletions: tuple[Deletion[S], ...] = ()
    first_kept: S | None = None
    first_kept_timestamp: int | None = None
    due_ms: int | None = None
    due_bytes: int | None = None
    waits_for_replication: bool = False
    has_no_timestamps: bool = False
    is_ahead: bool = False


def plan_retention(
    segments: Sequence[S],
    *,
    log_start_offset: int,
    high_watermark: int,
    log_end_offset: int,
    deletes: bool,
    retention_bytes: int,
    retention_ms: int,
    now_ms: int,
    largest_timestamp: Callable[[S], int | None],
) -> RetentionPlan[S]:
    """
    Return what retention removes of a log.

    Args:
        segments: All segments of the log, oldest first.
        log_start_offset: Segments wholly below it go.
        high_watermark: Segments that reach beyond it stay.
        log_end_offset: The upper bound of the last segment.
        deletes: Whether ``cleanup.policy`` has delete: without it size and age do not count.
        retention_bytes: Negative: unlimited.
        retention_ms: Negative: unlimited.
        now_ms: The time now.
        largest_timestamp: The largest record timestamp of a segment, None if there is none. Called
            at most once for each segment.

    Source: Kafka ``UnifiedLog.deleteOldSegments``; spec 5.11.
    """
    timestamps: dict[int, int | None] = {}

    def timestamp_of(segment: S) -> int | None:
        if segment.base_offset not in timestamps:
            timestamps[segment.base_offset] = largest_timestamp(segment)
        return timestamps[segment.base_offset]

    rest = list(segments)
    deletions: list[Deletion[S]] = []

    def apply(name: str, breaches: Callable[[S, S | None], bool]) -> None:
        gone = deletable_segments(
            rest, high_watermark=high_watermark, log_end_offset=log_end_offset, breaches=breaches
        )
        for index, segment in enumerate(gone):
            next_offset = rest[index + 1].base_offset if index + 1 < len(rest) else log_end_offset
            timestamp = timestamps.get(segment.base_offset)
            deletions.append(Deletion(segment, name, next_offset, timestamp))
        del rest[: len(gone)]

    apply(BY_LOG_START, breaches_log_start(log_start_offset))
    if deletes:
        apply(BY_SIZE, breaches_size(rest, retention_bytes))
        apply(BY_AGE, breaches_age(now_ms, retention_ms, timestamp_of))
    if not rest:
        return RetentionPlan(tuple(deletions))

    first = rest[0]
    upper_bound_offset = log_end_offset if len(rest) == 1 else rest[1].base_offset
    is_empty = len(rest) == 1 and first.size_bytes == 0
    timestamp, due_ms, due_bytes = None, None, None
    has_age = deletes and retention_ms >= 0 and not is_empty
    if has_age:
        timestamp = timestamp_of(first)
        if timestamp is not None:
            due_ms = timestamp + retention_ms + 1
    if deletes and retention_bytes >= 0 and not is_empty:
        others_bytes = sum(segment.size_bytes for segment in rest) - first.size_bytes
        due_bytes = max(0, retention_bytes - others_bytes)
    return RetentionPlan(
        tuple(deletions),
        first,
        timestamp,
        due_ms,
        due_bytes,
        waits_for_replication=high_watermark < upper_bound_offset,
        has_no_timestamps=has_age and timestamp is None,
        is_ahead=timestamp is not None and timestamp > now_ms + AHEAD_MS_MAX,
    )


def deletable_segments(
    segments: Sequence[S],
    *,
    high_watermark: int,
    log_end_offset: int,
    breaches: Callable[[S, S | None], bool],
) -> list[S]:
    """
    Return the oldest segments that a rule lets go, a prefix of ``segments``.

    Args:
        segments: All segments of the log, oldest first.
        high_watermark: Segments that reach beyond it stay.
        log_end_offset: The upper bound of the last segment.
        breaches: The rule: takes a segment and the next one, None after the last.
    """
    deletable: list[S] = []
    for index, segment in enumerate(segments):
        following = segments[index + 1] if index + 1 < len(segments) else None
        upper_bound_offset = log_end_offset if following is None else following.base_offset
        if high_watermark < upper_bound_offset:
            break
        if following is None and segment.size_bytes == 0:
            break
        if not breaches(segment, following):
            break
        deletable.append(segment)

    assert deletable == list(segments[: len(deletable)])
    return deletable


def breaches_log_start(log_start_offset: int) -> Callable[[S, S | None], bool]:
    """Return the rule for segments that lie wholly below the log start offset."""

    def rule(_segment: S, following: S | None) -> bool:
        return following is not None and following.base_offset <= log_start_offset

    return rule


def breaches_size(segments: Sequence[S], retention_bytes: int) -> Callable[[S, S | None], bool]:
    """
    Return the rule for ``retention.bytes``; negative means unlimited.

    What stays has at least ``retention_bytes``. The rule counts what it let go: use it for one
    walk.
    """
    size_bytes = sum(segment.size_bytes for segment in segments)
    excess_bytes = -1 if retention_bytes < 0 else size_bytes - retention_bytes

    def rule(segment: S, _following: S | None) -> bool:
        nonlocal excess_bytes
        if excess_bytes - segment.size_bytes < 0:
            return False
        excess_bytes -= segment.size_bytes
        return True

    return rule


def breaches_age(
    now_ms: int, retention_ms: int, largest_timestamp: Callable[[S], int | None]
) -> Callable[[S, S | None], bool]:
    """
    Return the rule for ``retention.ms``; negative means unlimited.

    Args:
        now_ms: The time now.
        retention_ms: The limit.
        largest_timestamp: The largest record timestamp of a segment; None, if its records have
            none: it stays.
    """

    def rule(segment: S, _following: S | None) -> bool:
        if retention_ms < 0:
            return False
        timestamp = largest_timestamp(segment)
        return timestamp is not None and now_ms - timestamp > retention_ms

    return rule
