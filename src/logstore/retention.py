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

Source: Kafka ``UnifiedLog.deletableSegments`` and the three callers; spec 5.11.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

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
    now_ms: int, retention_ms: int, largest_timestamp: Callable[[S], int]
) -> Callable[[S, S | None], bool]:
    """
    Return the rule for ``retention.ms``; negative means unlimited.

    Args:
        now_ms: The time now.
        retention_ms: The limit.
        largest_timestamp: The largest record timestamp of a segment, or when it was last written
            if its records have none.
    """

    def rule(segment: S, _following: S | None) -> bool:
        return retention_ms >= 0 and now_ms - largest_timestamp(segment) > retention_ms

    return rule
