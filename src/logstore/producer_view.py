"""Producer state for looking: it reads what is there, and changes no file."""

from __future__ import annotations

from collections.abc import Collection

from logstore.producer_state import ProducerStateManager


class ViewProducerState(ProducerStateManager):
    """Producer state that reads snapshots, and neither writes nor deletes them."""

    __slots__ = ()

    def take_snapshot(self, *, sync: bool = True) -> str | None:
        """Leave the files alone."""
        del sync
        return None

    def _delete_snapshot(self, offset: int) -> None:
        self._snapshots = tuple(each for each in self._snapshots if each != offset)

    def remove_stray_snapshots(self, segment_base_offsets: Collection[int]) -> None:
        """Leave the files alone."""
