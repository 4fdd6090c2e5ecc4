"""
The producer snapshots of one directory: which there are, and how they come and go.

A recovery goes back to a snapshot and makes those behind it again. Until it has done so the old
files are *withdrawn*: they do not count, and stay where they are. One that would be written again
as it is, is left alone; what is not taken up again is deleted in the end.

Source: Kafka ``ProducerStateManager``, ``SnapshotFile``; spec 2.8, 5.9.
"""

from __future__ import annotations

import os
from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import TYPE_CHECKING

from logstore.errors import StorageError
from logstore.files import REAL_FILES, Files, Path
from logstore.producer_snapshot import (
    SNAPSHOT_SUFFIX,
    encode_snapshot,
    snapshot_file_name,
    snapshot_offset_of,
)
from logstore.segment_files import DELETED_SUFFIX

if TYPE_CHECKING:
    from logstore.producer_snapshot import ProducerStateEntry


def list_snapshot_offsets(directory: Path, *, files: Files = REAL_FILES) -> list[int]:
    """Return the offsets of the snapshot files in a directory, ascending."""
    if not files.exists(directory):
        return []
    return _offsets_among(files.listdir(directory))


def _offsets_among(names: Iterable[str]) -> list[int]:
    offsets = (snapshot_offset_of(name) for name in names if name.endswith(SNAPSHOT_SUFFIX))
    return sorted(offset for offset in offsets if offset is not None)


class SnapshotFiles:
    """
    The ``.snapshot`` files of a partition.

    The directory is listed when that is first needed.

    **Thread rule**: changes under the log's lock; any thread may ask what there is.
    """

    __slots__ = ("_directory", "_files", "_listed", "_withdrawn")

    def __init__(self, directory: Path, *, files: Files = REAL_FILES) -> None:
        self._directory = os.fspath(directory)
        self._files = files
        self._listed: list[int] | None = None  # Ascending; each change of it is one operation.
        self._withdrawn: set[int] = set()

    # -- which there are ---------------------------------------------------------------------------

    @property
    def _offsets(self) -> list[int]:
        offsets = self._listed
        if offsets is None:
            offsets = self._listed = list_snapshot_offsets(self._directory, files=self._files)
        return offsets

    @property
    def offsets(self) -> tuple[int, ...]:
        """Their offsets, ascending."""
        return tuple(self._offsets)

    @property
    def latest(self) -> int | None:
        """Offset of the newest one."""
        last = self._offsets[-1:]
        return last[0] if last else None

    @property
    def oldest(self) -> int | None:
        """Offset of the oldest one."""
        first = self._offsets[:1]
        return first[0] if first else None

    def __contains__(self, offset: int) -> bool:
        return offset in self._offsets

    def look(self, names: Iterable[str]) -> None:
        """Learn the names in the directory; those that were withdrawn stay so."""
        found = _offsets_among(names)
        self._listed = [offset for offset in found if offset not in self._withdrawn]

    def path(self, offset: int) -> str:
        """Return the path of the one at an offset, whether it is there or not."""
        return f"{self._directory}{os.sep}{snapshot_file_name(offset)}"

    # -- changes -----------------------------------------------------------------------------------

    def write(self, offset: int, entries: Iterable[ProducerStateEntry], *, sync: bool) -> str:
        """
        Write one; without ``sync`` one that was withdrawn and is the same is taken up again.

        **Durability**: with ``sync``, the file's contents survive a power loss on return.
        """
        path = self.path(offset)
        data = encode_snapshot(entries)
        is_same = offset in self._withdrawn and not sync and self._files.file_equals(path, data)
        if not is_same:
            self._files.put_file(path, data, sync=sync)
        self._withdrawn.discard(offset)
        offsets = self._offsets
        if not offsets or offset > offsets[-1]:
            offsets.append(offset)
        elif offset not in self:
            insort(offsets, offset)
        return path

    def delete(self, offset: int) -> None:
        """Delete one; a missing one is fine."""
        self.forget(offset)
        self._files.unlink(self.path(offset), missing_ok=True)

    def forget(self, offset: int) -> None:
        """Know nothing of one from now on; its file stays."""
        offsets = self._offsets
        at = bisect_left(offsets, offset)
        if at < len(offsets) and offsets[at] == offset:
            del offsets[at]

    def withdraw(self, offset: int) -> None:
        """Let one count no more, until it is written again or :meth:`delete_withdrawn`."""
        self.forget(offset)
        self._withdrawn.add(offset)

    def delete_withdrawn(self) -> None:
        """
        Delete what was withdrawn and not written again.

        **Durability**: on return none of them can come back.
        """
        if not self._withdrawn:
            return
        for offset in sorted(self._withdrawn):
            self._files.unlink(self.path(offset), missing_ok=True)
        self.sync()
        self._withdrawn.clear()

    def mark_for_deletion(self, offset: int) -> str | None:
        """Rename one to ``.deleted`` and return its new path, None if there is none."""
        if offset not in self:
            return None
        self.forget(offset)
        path = self.path(offset)
        try:
            self._files.rename(path, path + DELETED_SUFFIX)
        except StorageError:
            if self._files.exists(path):
                raise
            return None
        return path + DELETED_SUFFIX

    def sync(self) -> None:
        """Make creations and deletions durable."""
        self._files.fsync_directory(self._directory)

    def update_directory(self, directory: Path) -> None:
        """Learn that the directory was renamed."""
        self._directory = os.fspath(directory)
