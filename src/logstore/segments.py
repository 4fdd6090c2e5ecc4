"""
The segments of one log in order, as a value: what is changed is a copy.

Source: Kafka ``LogSegments``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logstore.segment import LogSegment


class Segments:
    """
    The segments of a log, oldest first; immutable, so that a reader may keep it.

    Source: Kafka ``LogSegments``.
    """

    __slots__ = ("_base_offsets", "_segments")

    def __init__(self, segments: Iterable[LogSegment] = ()) -> None:
        self._segments = tuple(sorted(segments, key=lambda segment: segment.base_offset))
        self._base_offsets = [segment.base_offset for segment in self._segments]
        assert len(set(self._base_offsets)) == len(self._base_offsets)

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    def __contains__(self, base_offset: int) -> bool:
        return self.get(base_offset) is not None

    @property
    def first(self) -> LogSegment:
        """The oldest segment."""
        return self._segments[0]

    @property
    def active(self) -> LogSegment:
        """The newest segment, the only one that is written."""
        return self._segments[-1]

    def get(self, base_offset: int) -> LogSegment | None:
        """Return the segment with this base offset, None if there is none."""
        at = bisect_left(self._base_offsets, base_offset)
        if at < len(self._segments) and self._base_offsets[at] == base_offset:
            return self._segments[at]
        return None

    def floor(self, offset: int) -> LogSegment | None:
        """Return the segment that an offset belongs to: the last one that begins at or below it."""
        at = bisect_right(self._base_offsets, offset) - 1
        return self._segments[at] if at >= 0 else None

    def higher(self, base_offset: int) -> LogSegment | None:
        """Return the first segment that begins above an offset, None if there is none."""
        at = bisect_right(self._base_offsets, base_offset)
        return self._segments[at] if at < len(self._segments) else None

    def above(self, base_offset: int) -> tuple[LogSegment, ...]:
        """Return the segments that begin above an offset."""
        return self._segments[bisect_right(self._base_offsets, base_offset) :]

    def between(self, start: int, end: int) -> tuple[LogSegment, ...]:
        """
        Return the segments that may hold offsets of ``[start, end)``.

        Source: Kafka ``LogSegments.values(from, to)``.
        """
        assert start <= end
        if start == end:
            return ()
        first = max(0, bisect_right(self._base_offsets, start) - 1)
        return self._segments[first : bisect_left(self._base_offsets, end)]

    def with_segment(self, segment: LogSegment) -> Segments:
        """Return a copy with one more segment, which replaces one of the same base offset."""
        if self._base_offsets and segment.base_offset > self._base_offsets[-1]:
            longer = Segments.__new__(Segments)  # There is nothing to be sorted.
            longer._segments = (*self._segments, segment)
            longer._base_offsets = [*self._base_offsets, segment.base_offset]
            return longer
        kept = [other for other in self._segments if other.base_offset != segment.base_offset]
        return Segments([*kept, segment])

    def without(self, segments: Iterable[LogSegment]) -> Segments:
        """Return a copy without some segments."""
        gone = {id(segment) for segment in segments}
        return Segments(segment for segment in self._segments if id(segment) not in gone)
