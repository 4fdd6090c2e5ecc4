"""
What is left to be made durable of sealed segments: their indexes, and the producer snapshots.

Both say only what the batches say, and a recovery makes them again. So a flush waits for ``.log``
files alone; the others get on the device some time later, many of them together. Until then the
checkpointed recovery point stays at or below the segment that they belong to, which is therefore
recovered after a crash.

Source: decision 0049; Kafka flushes them with each roll.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from logstore.errors import ClosedError, StorageError
from logstore.open_files import OPEN_FILES

if TYPE_CHECKING:
    from logstore.files import Files
    from logstore.segment import LogSegment

FLUSHED_TOGETHER: Final = 32  # Segments, with two files each, that the device gets at once.
FILES_DIVISOR: Final = 16  # Of the segments that may have files open; several flush at a time.


class SealedFiles:
    """
    The sealed segments of one log whose indexes may not be on the device, each with a snapshot.

    **Thread rule**: :meth:`add` and :meth:`limit` under the log's lock; :meth:`flush` without it.

    Args:
        files: The door to the file system.

    Attributes:
        bytes_since_flush: What a recovery would read of the segments added since a flush began.
    """

    __slots__ = ("_files", "_flushing", "_waiting", "bytes_since_flush")

    def __init__(self, files: Files) -> None:
        self._files = files
        self._flushing = threading.Lock()
        self._waiting: dict[LogSegment, tuple[int, int]] = {}  # Snapshot offset and limit.
        self.bytes_since_flush = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, segment: LogSegment) -> bool:
        return segment in self._waiting

    def add(self, segment: LogSegment, snapshot_offset: int, limit: int) -> None:
        """
        Add a segment that was just sealed.

        Args:
            segment: The segment.
            snapshot_offset: Of the snapshot behind it.
            limit: Until all of this is durable the recovery point on the disk is not above it.
        """
        self._waiting[segment] = snapshot_offset, limit
        self.bytes_since_flush += segment.size_bytes

    def limit(self, recovery_point: int) -> int:
        """Return how far the recovery point on the disk may rise, of the one that there is."""
        return min([recovery_point, *(limit for _, limit in tuple(self._waiting.values()))])

    def flush(
        self,
        directory: str,
        is_there: Callable[[LogSegment], bool],
        snapshot_path: Callable[[int], str | None],
    ) -> None:
        """
        Make all of them durable, names included; what comes meanwhile waits for the next time.

        Args:
            directory: The log's.
            is_there: Whether a segment is still the log's: others need nothing.
            snapshot_path: Returns where the snapshot of an offset is, None if there is none.

        Raises:
            StorageError: What reached the disk is unknown. The segments keep waiting.
        """
        with self._flushing:
            self.bytes_since_flush = 0  # First: what comes in between is counted, if twice.
            waiting = list(self._waiting.items())
            # Their files are open from the beginning to the end of it.
            count = min(FLUSHED_TOGETHER, max(1, OPEN_FILES.segments_max // FILES_DIVISOR))
            for first in range(0, len(waiting), count):
                together = waiting[first : first + count]
                for segment, _ in together:
                    with _unless_gone(segment, is_there):
                        OPEN_FILES.with_room(segment.start_flush_of_indexes)
                for segment, (snapshot_offset, _) in together:
                    with _unless_gone(segment, is_there):
                        segment.flush_indexes()
                    path = snapshot_path(snapshot_offset)
                    if path is not None:
                        OPEN_FILES.with_room(partial(self._flush_snapshot, path))
            if waiting:
                OPEN_FILES.with_room(partial(self._files.fsync_directory, directory))
            for segment, left in waiting:
                if self._waiting.get(segment) is left:  # Else it was sealed again meanwhile.
                    del self._waiting[segment]

    def _flush_snapshot(self, path: str) -> None:
        """Make a producer snapshot durable, if it is still there."""
        try:
            fd = self._files.open(path, os.O_RDONLY)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            return
        try:
            self._files.fdatasync(fd)
        finally:
            self._files.close(fd)


@contextlib.contextmanager
def _unless_gone(segment: LogSegment, is_there: Callable[[LogSegment], bool]) -> Iterator[None]:
    """Let an error pass only if the segment is still the log's."""
    try:
        yield
    except (ClosedError, StorageError):
        if is_there(segment):
            raise
