"""
What a crash left unfinished in a partition's directory: passes 1 to 3 of a load.

========================  ===========================  ============================================
``.deleted``              deleted; its file was not    deleted
``.truncated``, ``.tmp``  being written by us          deleted
``.cleaned``              a replacement not committed  deleted, after the ``.swap`` files above it
``.swap``                 a committed replacement      what it replaces goes, then it gets its name
========================  ===========================  ============================================

A split or a cleaning writes its parts as ``.cleaned``, then renames them to ``.swap`` from the last
to the first: with the last rename they count.

Source: Kafka ``LogLoader.removeTempFilesAndCollectSwapFiles`` and ``load``; spec 6.2, 6.3.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from logstore.errors import CorruptRecordError
from logstore.files import TEMPORARY_SUFFIX
from logstore.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRUNCATED_SUFFIX,
    TXN_INDEX_SUFFIX,
    LogSegment,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logstore.clock import Clock
    from logstore.config import LogConfig
    from logstore.files import Files

logger = logging.getLogger(__name__)

KRAFT_SNAPSHOT_DELETED: Final = ".checkpoint.deleted"
UNFINISHED_SUFFIXES: Final = (
    LOG_SUFFIX + TRUNCATED_SUFFIX,
    INDEX_SUFFIX + TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX + TEMPORARY_SUFFIX,
    TXN_INDEX_SUFFIX + TEMPORARY_SUFFIX,
)
LEFTOVER_SUFFIXES: Final = (*UNFINISHED_SUFFIXES, DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)
NO_OFFSET: Final = 1 << 63  # Above all.


def offset_of_file(name: str) -> int | None:
    """Return the offset that a file is called after, None if it is not."""
    stem = name.partition(".")[0]
    return int(stem) if stem.isascii() and stem.isdecimal() else None


class PartitionDirectory:
    """
    The files of one partition while it is loaded, and what puts them in order.

    Args:
        directory: It exists, and this process is its only writer.
        config: Of the log.
    """

    def __init__(self, directory: str, config: LogConfig, *, files: Files, clock: Clock) -> None:
        self._directory = directory
        self._config = config
        self._files = files
        self._clock = clock
        self._listing: list[str] | None = None
        self._swapped: set[int] = set()  # Base offsets of replacements that got their names here.

    def _path(self, name: str) -> str:
        return f"{self._directory}{os.sep}{name}"

    def _names(self) -> list[str]:
        """Return the names in the directory, listed anew only after a change."""
        if self._listing is None:
            self._listing = self._files.listdir(self._directory)
        return self._listing

    def _delete(self, name: str) -> None:
        self._listing = None
        self._files.unlink(self._path(name), missing_ok=True)

    def _remove_unfinished(self) -> None:
        """
        Delete files that are logically gone or not committed.

        A split renames its parts to ``.swap`` from the last to the first: as long as one is
        ``.cleaned``, the swaps above it do not count.
        """
        names = [name for name in self._names() if name.endswith(LEFTOVER_SUFFIXES)]
        swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
        cleaned = [name for name in names if name.endswith(CLEANED_SUFFIX)]
        first_cleaned = min(
            (offset for name in cleaned if (offset := offset_of_file(name)) is not None),
            default=NO_OFFSET,
        )
        uncommitted = [name for name in swaps if (offset_of_file(name) or 0) >= first_cleaned]
        self._check_swaps(name for name in swaps if (offset_of_file(name) or 0) < first_cleaned)
        for name in names:
            is_gone = name.endswith(DELETED_SUFFIX) and not name.endswith(KRAFT_SNAPSHOT_DELETED)
            if is_gone or name.endswith(UNFINISHED_SUFFIXES):
                self._delete(name)
        for name in uncommitted:  # Before the last .cleaned, which says that they do not count.
            self._delete(name)
        for name in cleaned:
            self._delete(name)

    def _check_swaps(self, names: Iterable[str]) -> None:
        """Refuse to load if a replacement is damaged while what it replaces may still be there."""
        for name in names:
            if not name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
                continue
            segment = self._swap_segment(name)
            if segment is None:
                continue
            try:
                end = 0
                for header in segment.headers():
                    end = header.end
                if end != segment.size_bytes:
                    raise CorruptRecordError(
                        f"{name} ends inside a batch; run `logstore verify`, then move it away",
                        path=segment.log_path,
                        position=end,
                    )
            finally:
                segment.close_handlers()

    def _swap_segment(self, name: str) -> LogSegment | None:
        base_offset = offset_of_file(name)
        return None if base_offset is None else self._make_segment(base_offset, SWAP_SUFFIX)

    def _complete_swaps(self) -> None:
        """Delete what the committed replacements replace, then give them their names."""
        names = self._names()
        swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
        if not swaps:
            return
        first, end = self._swapped_range(swaps)
        for name in names:
            offset = offset_of_file(name)
            if (
                offset is not None
                and first <= offset < end
                and not name.endswith(SWAP_SUFFIX)
                and not self._files.is_directory(self._path(name))
            ):
                logger.info("%s: %s was replaced", self._directory, name)
                self._delete(name)
        for name in stale_indexes(swaps):
            # Of a replacement without records, which covers no offsets: a transaction index that
            # it does not have would hide what its producers write later.
            self._delete(name)
        self._listing = None
        # Else a power loss could keep an old segment beside the one that replaces it.
        self._files.fsync_directory(self._directory)
        # The .log first: without it its indexes are orphans, while it can do without them.
        for name in sorted(
            swaps, key=lambda name: (offset_of_file(name) or 0, _not_log(name), name)
        ):
            self._files.rename(self._path(name), self._path(name.removesuffix(SWAP_SUFFIX)))
            self._swapped.add(offset_of_file(name) or 0)
        self._files.fsync_directory(self._directory)

    def _swapped_range(self, swaps: list[str]) -> tuple[int, int]:
        """Return the offsets that the replacements cover, (0, 0) without a ``.log`` among them."""
        first, end = None, 0
        for name in swaps:
            segment = self._swap_segment(name) if name.endswith(LOG_SUFFIX + SWAP_SUFFIX) else None
            if segment is not None:
                next_offset = segment.base_offset
                for header in segment.headers():
                    next_offset = header.next_offset
                segment.close_handlers()
                first = segment.base_offset if first is None else min(first, segment.base_offset)
                end = max(end, next_offset)
        return (0, 0) if first is None else (first, end)

    def _make_segment(
        self, base_offset: int, file_suffix: str = "", *, is_new: bool = False
    ) -> LogSegment:
        return LogSegment(
            self._directory,
            base_offset,
            self._config,
            files=self._files,
            clock=self._clock,
            file_suffix=file_suffix,
            file_already_exists=not is_new,
        )


def stale_indexes(swaps: list[str]) -> list[str]:
    """Return the names that indexes would have which are not among the replacements."""
    present = set(swaps)
    return [
        stem + suffix
        for name in swaps
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)
        for suffix in SEGMENT_SUFFIXES
        if (stem := name.removesuffix(LOG_SUFFIX + SWAP_SUFFIX)) + suffix + SWAP_SUFFIX
        not in present
    ]


def _not_log(name: str) -> bool:
    """Return whether a file is something else than a ``.log``, decorated or not."""
    return not name.startswith(name.partition(".")[0] + LOG_SUFFIX)
