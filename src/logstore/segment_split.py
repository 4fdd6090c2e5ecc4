"""
Split a segment whose offsets do not fit it: more than 2^31 - 1 above its base offset.

Very old releases could write one. The parts are copies under ``.cleaned`` names, become ``.swap``
from the last to the first, and then replace the original as any committed replacement does when a
log is loaded. Only ``.log`` files are made: a load rebuilds indexes that are missing.

Source: Kafka ``LocalLog.splitOverflowedSegment``; spec 6.3, 6.4.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, NamedTuple

from logstore.errors import CorruptRecordError
from logstore.index_file import RELATIVE_OFFSET_MAX
from logstore.segment import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_BYTES_MAX,
    SWAP_SUFFIX,
    LogSegment,
    segment_file_name,
)

if TYPE_CHECKING:
    from logstore.files import Files

assert SEGMENT_BYTES_MAX == RELATIVE_OFFSET_MAX


class _Part(NamedTuple):
    base_offset: int
    start: int
    end: int


def split_overflowed_segment(segment: LogSegment, files: Files) -> list[int]:
    """
    Leave committed replacements of a segment, and return their base offsets.

    The segment's own files stay: completing the swap deletes those in the range of the parts. What
    does not parse at its end is in no part.

    **Durability**: the parts are on the device before the first is committed.

    Raises:
        StorageError: The parts are deleted again; nothing was changed.
    """
    directory = segment.directory
    parts = _parts(segment)
    names = [segment_file_name(part.base_offset, LOG_SUFFIX) for part in parts]
    cleaned = [os.path.join(directory, name + CLEANED_SUFFIX) for name in names]
    modified_ms = segment.modified_ms()
    try:
        with segment.handle.lease() as source:
            for part, path in zip(parts, cleaned, strict=True):
                target = files.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
                try:
                    files.copy_range(source, part.start, target, 0, part.end - part.start)
                    files.fdatasync(target)
                finally:
                    files.close(target)
                files.set_modified_ms(path, modified_ms)
        files.fsync_directory(directory)
    except BaseException:
        for path in cleaned:
            files.unlink(path, missing_ok=True)
        raise
    for path in reversed(cleaned):
        files.rename(path, path.removesuffix(CLEANED_SUFFIX) + SWAP_SUFFIX)
    files.fsync_directory(directory)
    return [part.base_offset for part in parts]


def _parts(segment: LogSegment) -> list[_Part]:
    """Return ranges of the file whose offsets each fit a segment."""
    parts: list[_Part] = []
    base_offset, start, end = segment.base_offset, 0, 0
    is_begun = False
    with contextlib.suppress(CorruptRecordError):
        for header in segment.headers():
            if not is_begun:
                is_begun = True
                if header.last_offset - base_offset > RELATIVE_OFFSET_MAX:
                    base_offset = header.base_offset
            elif header.last_offset - base_offset > RELATIVE_OFFSET_MAX:
                parts.append(_Part(base_offset, start, end))
                base_offset, start = header.base_offset, header.position
            end = header.end
    parts.append(_Part(base_offset, start, end))
    return parts
