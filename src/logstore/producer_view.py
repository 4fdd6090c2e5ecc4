"""Producer state for looking: it reads what is there, and changes no file."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from logstore.files import REAL_FILES, Files, Path
from logstore.producer_state import ProducerStateManager
from logstore.snapshot_files import SnapshotFiles


class _ViewSnapshotFiles(SnapshotFiles):
    """Snapshot files that are read, and neither deleted nor renamed."""

    __slots__ = ()

    def delete(self, offset: int) -> None:
        """Leave the file: it only does not count."""
        self.forget(offset)

    def delete_withdrawn(self) -> None:
        """Leave the files."""

    def sync(self) -> None:
        """Nothing was changed."""


class ViewProducerState(ProducerStateManager):
    """Producer state that reads snapshots, and neither writes nor deletes them."""

    __slots__ = ()

    def __init__(self, directory: Path, *, files: Files = REAL_FILES, **options: Any) -> None:
        snapshots = _ViewSnapshotFiles(directory, files=files)
        super().__init__(directory, files=files, snapshots=snapshots, **options)

    def take_snapshot(self, *, sync: bool = True) -> str | None:
        """Leave the files alone."""
        del sync
        return None

    def remove_stray_snapshots(self, segment_base_offsets: Collection[int]) -> None:
        """Leave the files alone."""
