"""
Making the ``.log`` files of several segments durable at the same time.

The device writes several files in a third of the time that one after the other takes, and one
native call waits for all of them.

Source: Kafka ``UnifiedLog.flush``, which flushes segment after segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from logstore.errors import ClosedError, StorageError, raise_first

if TYPE_CHECKING:
    from logstore.files import Files
    from logstore.segment import LogSegment, UnflushedLog


def flush_log_files(
    segments: Iterable[LogSegment], files: Files, is_there: Callable[[LogSegment], bool]
) -> None:
    """
    Make the ``.log`` files of some segments durable; those that are, are left alone.

    Args:
        segments: Of one log.
        files: The door to the file system.
        is_there: Whether a segment is still the log's. What fails because retention or a truncation
            has deleted it is forgiven.

    Raises:
        StorageError: What reached the disk of the file is unknown.
    """
    unflushed: list[UnflushedLog] = []
    try:
        for segment in segments:
            try:
                log = segment.lease_unflushed()
            except (ClosedError, StorageError):
                if is_there(segment):
                    raise
                continue
            if log is not None:
                unflushed.append(log)
        fds = [log.handle.fd for log in unflushed]
        first = 0
        while first < len(fds):
            flushed_count, error = files.fdatasync_together(fds[first:])
            for log in unflushed[first : first + flushed_count]:
                log.segment.note_flushed(log)
            first += flushed_count
            if error is not None:
                if is_there(unflushed[first].segment):
                    errors, error = [error], None  # Nothing else may refer to it.
                    raise_first(errors)
                first += 1
    finally:
        for log in unflushed:
            log.handle.release()
