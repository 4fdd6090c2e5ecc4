"""
A log as reads see it: from where to where may be read, where its segments are, who reads.

Source: DESIGN.md, "The interface at a glance"; Kafka ``UnifiedLog.read``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias
from weakref import WeakSet

from logstore.errors import OffsetOutOfRangeError
from logstore.given_records import milliseconds_of

if TYPE_CHECKING:
    from logstore.file_records import LogOffsetMetadata
    from logstore.segment import LogSegment
    from logstore.segment_reading import TimestampAndOffset

Start: TypeAlias = int | datetime | Literal["earliest", "latest"]
Isolation: TypeAlias = Literal["read_committed", "read_uncommitted", "log_end"]
ISOLATIONS: Final = ("read_committed", "read_uncommitted", "log_end")


class Reader(Protocol):
    """A read that has begun, as its log sees it."""

    def discard(self) -> None:
        """Drop what was made but not taken: the log was closed."""
        ...

    def relocate(self) -> None:
        """Forget the files: the next step finds its place in the log's present segments."""
        ...


class ReadableLog(Protocol):
    """What reading needs of a log."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        ...

    @property
    def truncations(self) -> int:
        """A number that changes when a truncation begins, and when it ends."""
        ...

    def settled_truncations(self) -> int:
        """Return ``truncations`` after waiting for whoever changes the log now."""
        ...

    def truncated_to(self, since: int) -> int | None:
        """Return the lowest offset truncated to since ``truncations`` was that, else None."""
        ...

    @property
    def readers(self) -> WeakSet[Reader]:
        """Reads that have begun."""
        ...

    @property
    def decompressed_bytes_max(self) -> int:
        """Largest decompressed batch."""
        ...

    def reading_end(self, isolation: Isolation) -> int:
        """Return the offset up to which may be read; ClosedError if the log is closed."""
        ...

    @property
    def log_end_offset_metadata(self) -> LogOffsetMetadata:
        """The log end offset and its place."""
        ...

    def reading_segments(self, offset: int) -> Sequence[LogSegment]:
        """Return the segments from the one that may hold ``offset`` on, ascending."""
        ...

    def fetch_offset_by_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        """Return the first record whose timestamp is at least this."""
        ...


def check_isolation(isolation: str) -> None:
    """Raise ValueError for an unknown isolation."""
    if isolation not in ISOLATIONS:
        raise ValueError(f"isolation {isolation!r} is not one of {', '.join(ISOLATIONS)}")


def start_offset(log: ReadableLog, start: Start, isolation: Isolation) -> int:
    """
    Return the offset at which a read begins.

    ``start`` is an offset within the log, a time (the first record at or after it, else the end),
    ``"earliest"`` or ``"latest"``.

    Raises:
        OffsetOutOfRangeError: The offset is below the log start or above the log end.
    """
    check_isolation(isolation)
    if isinstance(start, datetime):
        found = log.fetch_offset_by_timestamp(milliseconds_of(start))
        end = log.reading_end(isolation)
        return end if found is None else min(found.offset, end)
    if start == "earliest":
        return log.log_start_offset
    if start == "latest":
        return log.reading_end(isolation)
    if isinstance(start, bool) or not isinstance(start, int):
        raise TypeError(f"start is an offset, a datetime, 'earliest' or 'latest', not {start!r}")
    first, end = log.log_start_offset, log.reading_end("log_end")
    if not first <= start <= end:
        raise OffsetOutOfRangeError(
            f"offset {start} is not in the log, [{first}, {end}); read from 'earliest' or 'latest'",
            log_start_offset=first,
            log_end_offset=end,
            offset=start,
        )
    return start


def stop_offset(log: ReadableLog, stop: int | datetime | None, isolation: Isolation) -> int:
    """
    Return the offset before which a read ends: ``stop``, but never beyond what may be read.

    ``stop`` is an offset, exclusive; a time: the first record at or after it; None: the end.
    """
    end = log.reading_end(isolation)
    if stop is None:
        return end
    if isinstance(stop, datetime):
        found = log.fetch_offset_by_timestamp(milliseconds_of(stop))
        return end if found is None else min(found.offset, end)
    if isinstance(stop, bool) or not isinstance(stop, int):
        raise TypeError(f"stop is an offset, a datetime or None, not {stop!r}")
    if stop < 0:
        raise ValueError(f"stop {stop} is negative; give an offset, or None for the end")
    return min(stop, end)
