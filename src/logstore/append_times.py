"""
When the records of a log were appended, whatever their timestamps are.

Each round of retention notes where the log ended at what time, and so does its close, for logs that
keep records by the time of their append (``logstore.retention.timestamp.type``). A segment was
complete at the first time at which the log had reached its end. So what is told is never earlier
than the append, and later by one round at most; for what was there before the first note, it is the
time of that.

The notes are in ``logstore-append-times`` in the log's directory, which a broker ignores::

    {"version": 0, "times": [[log end offset, ms since the epoch], …]}

They are as few as the segments are. Without the file, time begins anew.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from logstore.files import REAL_FILES, Files

logger = logging.getLogger(__name__)

APPEND_TIMES_FILE: Final = "logstore-append-times"
VERSION: Final = 0


class AppendTime(NamedTuple):
    """Where a log ended at a time, in ms since the epoch."""

    log_end_offset: int
    timestamp: int


def noted(
    times: Sequence[AppendTime], log_end_offset: int, now_ms: int, upper_bounds: Sequence[int]
) -> tuple[AppendTime, ...]:
    """
    Return the notes with that of now, without those that no segment needs any more.

    Args:
        times: What was noted, ascending by offset.
        log_end_offset: Where the log ends now. Notes beyond it are of records that were truncated.
        now_ms: The time now.
        upper_bounds: Where each segment ends.
    """
    found = [each for each in times if each.log_end_offset <= log_end_offset]
    if not found or found[-1].log_end_offset < log_end_offset:
        found.append(AppendTime(log_end_offset, now_ms))
    needed = {_note_of(found, upper_bound) for upper_bound in upper_bounds}
    return tuple(each for each in found if each in needed or each is found[-1])


def append_time(times: Sequence[AppendTime], upper_bound: int) -> int | None:
    """Return by when everything below an offset was appended, None if that was not noted."""
    note = _note_of(times, upper_bound)
    return None if note is None else note.timestamp


def _note_of(times: Sequence[AppendTime], upper_bound: int) -> AppendTime | None:
    return next((each for each in times if each.log_end_offset >= upper_bound), None)


def read_append_times(path: str, files: Files = REAL_FILES) -> tuple[AppendTime, ...]:
    """
    Return the notes of a log; none, with a warning, if they cannot be understood.

    Raises:
        StorageError: The file cannot be read.
    """
    if not files.exists(path):
        return ()
    try:
        content = json.loads(files.read_file(path))
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']} is unknown")  # noqa: TRY301
        times = [AppendTime(int(offset), int(timestamp)) for offset, timestamp in content["times"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        logger.warning("%s is taken for empty: %s", path, error)
        return ()
    return tuple(sorted(times))


def write_append_times(path: str, times: Sequence[AppendTime], files: Files = REAL_FILES) -> None:
    """Replace the notes of a log, durably."""
    content = {"version": VERSION, "times": [list(each) for each in times]}
    files.replace_file(path, json.dumps(content, separators=(",", ":")).encode() + b"\n")
