"""
The watermarks of one log: the one place where their order is kept.

``log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset``, and the recovery
point is at most the last (after a restart from a higher offset it may lie below the first, until
the next flush, as in Kafka). Each change replaces one immutable snapshot, so that a reader in
another thread never sees half of a change.

=====================  ==================================  =====================================
mode                   high watermark                      moved by
=====================  ==================================  =====================================
``log_end`` (default)  the log end, always                 appends and truncation
``replicas``           what replication has confirmed      the three operations of Kafka, log
                                                           start increments, truncation
=====================  ==================================  =====================================

A watermark is kept with its place in the log (segment, position) when that is known. A read never
moves one, which Kafka 4.1 does when it looks the place up.

Source: Kafka ``UnifiedLog``; spec 5.5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, TypeAlias

from logstore.file_records import LogOffsetMetadata
from logstore.live_offsets import NOT_SET, ShownMarks

if TYPE_CHECKING:
    from logstore._native import Flusher
    from logstore.live_offsets import LiveOffsets

HighWatermarkMode: TypeAlias = Literal["log_end", "replicas"]
HIGH_WATERMARK_MODES: Final = ("log_end", "replicas")
OFFSET_MAX: Final = 2**63 - 1


class LogOffsets(NamedTuple):
    """
    The five offsets of a log at one moment.

    Source: Kafka ``LogOffsetSnapshot``.
    """

    log_start_offset: int  #: the first offset that may be read
    last_stable_offset: int  #: below it every transaction is decided
    high_watermark: int  #: below it everything is replicated
    recovery_point: int  #: below it everything is on the device
    log_end_offset: int  #: what the next record gets


class Checkpoints(Protocol):
    """Where a log's offsets are kept between two opens (DESIGN.md D3)."""

    def write(self, offsets: LogOffsets) -> None:
        """Make the offsets durable."""
        ...

    def write_at_close(self, offsets: LogOffsets) -> None:
        """Make the offsets durable before the log is marked clean."""
        ...

    def maybe_write(self, offsets: Callable[[], LogOffsets]) -> None:
        """Ask for the offsets and make them durable if that was not done for a while."""
        ...

    @property
    def cleaner_offset(self) -> int | None:
        """The first dirty offset; None if the log was never cleaned."""
        ...

    def write_cleaner_offset(self, offset: int) -> None:
        """Make the first dirty offset durable."""
        ...

    def update_directory(self, directory: str) -> None:
        """Learn that the log's directory was renamed."""
        ...

    def forget(self) -> None:
        """Drop what is known of the log: its directory was deleted."""
        ...

    def close(self, *, clean: bool) -> None:
        """Give the writer's lock back; ``clean``: everything was flushed and closed."""
        ...


class _Marks(NamedTuple):
    log_start_offset: int
    high_watermark: LogOffsetMetadata
    first_unstable_offset: LogOffsetMetadata | None


class Watermarks:
    """
    Log start, last stable offset, high watermark and recovery point of one log.

    Args:
        mode: See the module's table.
        log_start_offset: Where the log begins; also where the high watermark starts in mode
            ``replicas``.
        recovery_point: Below it everything is on the device.
        flusher: Keeps the recovery point, which flushes raise without the log's lock.
        log_end: Returns the log end offset with its place, as published.

    **Thread rule**: changes under the log's lock; reads from any thread.
    """

    __slots__ = ("_flusher", "_live", "_log_end", "_marks", "mode")

    def __init__(
        self,
        mode: HighWatermarkMode,
        *,
        log_start_offset: int,
        recovery_point: int,
        flusher: Flusher,
        log_end: Callable[[], LogOffsetMetadata],
    ) -> None:
        assert mode in HIGH_WATERMARK_MODES
        assert log_start_offset >= 0
        self.mode: Final = mode
        self._log_end = log_end
        self._live: LiveOffsets | None = None
        self._marks = _Marks(
            log_start_offset,
            LogOffsetMetadata(log_start_offset),
            None,
        )
        self._flusher = flusher
        flusher.set_recovery_point(max(recovery_point, log_start_offset))

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        return self._marks.log_start_offset

    @property
    def recovery_point(self) -> int:
        """Below it everything is on the device."""
        return self._flusher.recovery_point

    @property
    def high_watermark_metadata(self) -> LogOffsetMetadata:
        """The high watermark and, if known, its place."""
        if self.mode == "log_end":
            return self._log_end()
        return self._marks.high_watermark

    @property
    def high_watermark(self) -> int:
        """Below it everything is replicated."""
        return self.high_watermark_metadata.message_offset

    @property
    def first_unstable_offset_metadata(self) -> LogOffsetMetadata | None:
        """The first offset of the first undecided transaction, None if there is none."""
        return self._marks.first_unstable_offset

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the first undecided transaction, None if there is none."""
        unstable = self._marks.first_unstable_offset
        return None if unstable is None else unstable.message_offset

    @property
    def last_stable_offset_metadata(self) -> LogOffsetMetadata:
        """The last stable offset and, if known, its place."""
        unstable = self._marks.first_unstable_offset
        high_watermark = self.high_watermark_metadata
        if unstable is not None and unstable.message_offset < high_watermark.message_offset:
            return unstable
        return high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided."""
        return self.last_stable_offset_metadata.message_offset

    def committed_range(self) -> tuple[int, int, object]:
        """
        Return what a committed reader may read, [start, stop), and the marks that say so.

        It holds as long as the marks are the same object, and only below the log end.
        """
        marks = self._marks
        stop = OFFSET_MAX
        if self.mode == "replicas":
            stop = marks.high_watermark.message_offset
        if marks.first_unstable_offset is not None:
            stop = min(stop, marks.first_unstable_offset.message_offset)
        return marks.log_start_offset, stop, marks

    def snapshot(self) -> LogOffsets:
        """Return the five offsets of one moment."""
        while True:
            marks = self._marks
            recovery_point = self._flusher.recovery_point  # First: it does not overtake the end.
            log_end_offset = self._log_end().message_offset
            high_watermark = (
                log_end_offset if self.mode == "log_end" else marks.high_watermark.message_offset
            )
            high_watermark = min(high_watermark, log_end_offset)
            unstable = marks.first_unstable_offset
            last_stable_offset = high_watermark
            if unstable is not None:
                last_stable_offset = min(unstable.message_offset, high_watermark)
            # A truncation may have come between the two reads.
            if marks is self._marks:
                return LogOffsets(
                    marks.log_start_offset,
                    last_stable_offset,
                    high_watermark,
                    min(recovery_point, log_end_offset),
                    log_end_offset,
                )

    # -- changes, under the log's lock -------------------------------------------------------------

    def set_high_watermark(self, high_watermark: LogOffsetMetadata) -> LogOffsetMetadata:
        """
        Set the high watermark within [log start, log end] and return what was set.

        In mode ``log_end`` nothing is kept, and the log end is returned.
        """
        assert high_watermark.message_offset >= 0
        log_end = self._log_end()
        if self.mode == "log_end":
            return log_end
        if high_watermark.message_offset < self._marks.log_start_offset:
            high_watermark = LogOffsetMetadata(self._marks.log_start_offset)
        elif high_watermark.message_offset >= log_end.message_offset:
            high_watermark = log_end
        self._set(self._marks._replace(high_watermark=high_watermark))
        return high_watermark

    def set_first_unstable_offset(self, unstable: LogOffsetMetadata | None) -> None:
        """Set or clear the first unstable offset."""
        self._set(self._marks._replace(first_unstable_offset=unstable))

    def set_log_start_offset(self, log_start_offset: int) -> None:
        """Set the log start offset; the high watermark and the recovery point rise with it."""
        assert log_start_offset >= 0
        marks = self._marks._replace(log_start_offset=log_start_offset)
        if marks.high_watermark.message_offset < log_start_offset:
            log_end = self._log_end()
            marks = marks._replace(
                high_watermark=log_end
                if log_start_offset >= log_end.message_offset
                else LogOffsetMetadata(log_start_offset)
            )
        unstable = marks.first_unstable_offset
        if unstable is not None and unstable.message_offset < log_start_offset:
            marks = marks._replace(first_unstable_offset=LogOffsetMetadata(log_start_offset))
        self._flusher.raise_recovery_point(log_start_offset)
        self._set(marks)

    def raise_recovery_point(self, recovery_point: int, flushed_ms: int) -> None:
        """Raise the recovery point after a flush."""
        assert recovery_point >= 0
        self._flusher.raise_recovery_point(recovery_point, flushed_ms=flushed_ms)
        self._set(self._marks)

    def truncated(self, log_start_offset: int) -> None:
        """
        Bring high watermark and recovery point below a log end that went down, after it did.

        No segment is attached that a flush could be of.

        The first unstable offset is producer state's: it is set when that is known.

        Args:
            log_start_offset: The log start now; may be lower than before.
        """
        log_end = self._log_end()
        marks = self._marks._replace(log_start_offset=log_start_offset)
        if marks.high_watermark.message_offset >= log_end.message_offset:
            marks = marks._replace(high_watermark=log_end)
        self._lower_recovery_point(log_end.message_offset)
        self._set(marks)

    def _lower_recovery_point(self, offset: int) -> None:
        if self._flusher.recovery_point > offset:
            self._flusher.set_recovery_point(offset)

    def restart(self, log_start_offset: int) -> None:
        """Begin anew after everything was removed: the high watermark is the log end."""
        log_end = self._log_end()
        self._lower_recovery_point(log_end.message_offset)
        self._set(_Marks(log_start_offset, log_end, None))

    def _set(self, marks: _Marks) -> None:
        """Set all marks at once; every change goes through here."""
        recovery_point = self._flusher.recovery_point
        log_end_offset = self._log_end().message_offset
        assert marks.log_start_offset <= log_end_offset
        assert recovery_point <= log_end_offset
        if self.mode == "replicas":
            assert marks.log_start_offset <= marks.high_watermark.message_offset
            assert marks.high_watermark.message_offset <= log_end_offset
        self._marks = marks
        if self._live is not None:
            self._live.set_marks(self.shown_marks)

    def show_in(self, live: LiveOffsets | None) -> None:
        """Let other processes see each move from now on, or no more; they see the marks of now."""
        self._live = live

    @property
    def shown_marks(self) -> ShownMarks:
        """What other processes are to see of the marks."""
        marks, unstable = self._marks, self._marks.first_unstable_offset
        return ShownMarks(
            log_start_offset=marks.log_start_offset,
            high_watermark=(
                NOT_SET if self.mode == "log_end" else marks.high_watermark.message_offset
            ),
            first_unstable_offset=NOT_SET if unstable is None else unstable.message_offset,
            recovery_point=self._flusher.recovery_point,
        )

    def take_over(
        self,
        *,
        log_start_offset: int,
        high_watermark: int,
        first_unstable_offset: int | None,
        recovery_point: int,
    ) -> None:
        """Set all marks to what another process's log has; the high watermark is none of ours."""
        assert self.mode == "replicas"
        self._marks = _Marks(
            log_start_offset,
            LogOffsetMetadata(high_watermark),
            None if first_unstable_offset is None else LogOffsetMetadata(first_unstable_offset),
        )
        self._flusher.set_recovery_point(recovery_point)
