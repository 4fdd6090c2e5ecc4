"""
Which transactions are undecided in a log that somebody writes without showing how far he is.

A broker, or a logstore on another machine, keeps that in its memory. Here it is found as a load
finds it: from the newest snapshot, and from the batches behind it. Later looks read only what has
come since.

Source: DESIGN.md D6; Kafka ``ProducerStateManager.firstUnstableOffset``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from logstore.producer_rebuild import read_producer_batches, rebuild_producer_state
from logstore.producer_view import ViewProducerState

if TYPE_CHECKING:
    from logstore.clock import Clock
    from logstore.config import LogConfig
    from logstore.files import Files
    from logstore.segment import LogSegment


class FlushedTransactions:
    """
    The undecided transactions of one log, as far as it has been looked at.

    Args:
        directory: The log's.
        config: The log's.

    **Thread rule**: one thread at a time.
    """

    def __init__(self, directory: str, config: LogConfig, *, files: Files, clock: Clock) -> None:
        self._directory: Final = directory
        self._config: Final = config
        self._files: Final = files
        self._clock: Final = clock
        self._state: ViewProducerState | None = None

    def forget(self) -> None:
        """Begin anew with the next look: the log may have been truncated."""
        self._state = None

    def first_undecided(
        self, segments: Sequence[LogSegment], log_start_offset: int, end_offset: int
    ) -> int | None:
        """
        Return where the first transaction begins that is undecided, None if all are decided.

        Args:
            segments: All of the log, ascending, up to its end.
            log_start_offset: The first offset that may be read.
            end_offset: The end of what may be read.

        **Cost**: the first time the batches behind the newest snapshot are read; later, new ones.

        Raises:
            LogStoreError: A segment cannot be read.
        """
        state = self._state
        if state is None or state.map_end_offset > end_offset:
            state = ViewProducerState(
                self._directory, config=self._config, clock=self._clock, files=self._files
            )
            rebuild_producer_state(
                state,
                segments,
                log_start_offset,
                end_offset,
                self._clock.milliseconds(),
                reload_from_clean_shutdown=False,
            )
            self._state = state
        elif state.map_end_offset < end_offset:
            read_producer_batches(state, segments, log_start_offset, end_offset)
        state.on_high_watermark_updated(end_offset)
        unstable = state.first_unstable_offset
        return None if unstable is None else unstable.message_offset
