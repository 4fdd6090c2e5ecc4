"""
A log for reading only: what a load would make of a directory, without changing anything there.

Leftovers of a crash are looked past, a committed replacement is read under its temporary name, what
a recovery would cut is not read. Indexes that a recovery would rebuild are made in a scratch
directory outside the log; snapshots and leader epochs are only kept in memory.

Works in a directory without the right to write. The end of the log is what it was when the view was
made.

Source: DESIGN.md D3.
"""

from __future__ import annotations

import errno
import logging
import os
import tempfile
import uuid
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from logstore.checkpoint import EpochEntry, LeaderEpochCheckpointFile
from logstore.errors import ClosedError, StorageError
from logstore.files import FileHandle
from logstore.leader_epoch import LeaderEpochCache
from logstore.leftovers import offset_of_file, stale_indexes
from logstore.loader import LogLoader
from logstore.producer_view import ViewProducerState
from logstore.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    LogSegment,
    segment_file_name,
)

if TYPE_CHECKING:
    from logstore.clock import Clock
    from logstore.config import LogConfig
    from logstore.files import Files
    from logstore.scheduler import Scheduler

logger = logging.getLogger(__name__)

DECORATIONS: Final = (CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX)


class Scratch:
    """A directory of the system's temporary ones, made when it is needed, gone with this object."""

    __slots__ = ("__weakref__", "_files", "_path")

    def __init__(self, files: Files) -> None:
        self._files = files
        self._path: str | None = None

    @property
    def path(self) -> str:
        """The directory."""
        if self._path is None:
            name = f"logstore-view-{uuid.uuid4().hex}"
            self._path = os.path.join(tempfile.gettempdir(), name)
            self._files.mkdir(self._path, 0o700)
            weakref.finalize(self, _remove, self._files, self._path, os.getpid())
        return self._path


def _remove(files: Files, path: str, pid: int) -> None:
    if os.getpid() != pid:
        return  # A forked child has the parent's.
    try:
        for name in files.listdir(path):
            files.unlink(os.path.join(path, name), missing_ok=True)
        files.rmdir(path)
    except StorageError as error:
        logger.warning("cannot remove %s: %s", path, error)


class ViewSegment(LogSegment):
    """
    A segment whose files are not changed.

    Made with a scratch directory it has its indexes there, and can be recovered: the file stays,
    and only its valid prefix is read.
    """

    __slots__ = ("_is_new", "_scratch")

    may_be_mapped = False  # Another process may cut the file.

    def __init__(
        self,
        *arguments: Any,
        scratch: Scratch | None = None,
        is_new: bool = False,
        **options: Any,
    ) -> None:
        self._scratch = scratch
        self._is_new = is_new
        super().__init__(*arguments, writable=scratch is not None, **options)

    def _path(self, suffix: str) -> str:
        if suffix == LOG_SUFFIX or self._scratch is None:
            return super()._path(suffix)
        return os.path.join(self._scratch.path, segment_file_name(self.base_offset, suffix))

    def holds_plain(self, is_plain: Callable[[str], bool]) -> bool:
        """Return False: a scratch directory has no indexes yet."""
        del is_plain
        return False

    def _open(self, flags: int) -> FileHandle:
        del flags
        if self._is_new:  # There is no file: nothing of the log is left.
            with self._guard:
                if self._handle is None and not self._is_closed:
                    self._handle = FileHandle(self._files, os.devnull, os.O_RDONLY)
        try:
            return super()._open(os.O_RDONLY)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            raise ClosedError(
                f"{self.log_path} was deleted; read from 'earliest'", path=self.log_path
            ) from error

    def _cut(self, size_bytes: int, *, in_place: bool) -> None:
        """Leave the file: ``size_bytes`` says what of it counts."""

    def resize_indexes(self) -> None:
        """Leave the indexes: nothing is appended."""

    def modified_ms(self) -> int:
        """Return when the file was last written."""
        return self.created_ms if self._is_new else super().modified_ms()

    def close(self) -> None:
        """Close the files, unchanged."""
        self.close_handlers()


class _ViewEpochs(LeaderEpochCheckpointFile):
    """A leader epoch checkpoint that is read and not written."""

    __slots__ = ()

    def write(self, entries: Iterable[EpochEntry]) -> None:
        """Leave the file alone."""

    def write_for_truncation(self, entries: Iterable[EpochEntry]) -> None:
        """Leave the file alone."""


class ViewLoader(LogLoader):
    """
    Loads one partition's directory without changing it.

    ``leader_epochs`` and ``producer_state`` are made here.
    """

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        *,
        log_start_offset: int,
        recovery_point: int,
        had_clean_shutdown: bool,
        files: Files,
        clock: Clock,
        scheduler: Scheduler,
        epochs_path: str,
    ) -> None:
        name = os.path.basename(directory)
        self.leader_epochs: Final = LeaderEpochCache(
            _ViewEpochs(epochs_path, files=files), scheduler, name
        )

        def new_producer_state() -> ViewProducerState:
            return ViewProducerState(directory, config=config, clock=clock, files=files, name=name)

        self.producer_state: Final = new_producer_state()
        self.scratch: Final = Scratch(files)
        self._actual: dict[str, str] = {}
        super().__init__(
            directory,
            config,
            leader_epochs=self.leader_epochs,
            producer_state=self.producer_state,
            new_producer_state=new_producer_state,
            log_start_offset=log_start_offset,
            recovery_point=recovery_point,
            had_clean_shutdown=had_clean_shutdown,
            files=files,
            clock=clock,
        )

    def _names(self) -> list[str]:
        return sorted(self._actual)

    def _path(self, name: str) -> str:
        return super()._path(self._actual.get(name, name))

    def _delete(self, name: str) -> None:
        """Leave the file: it only is not part of the view."""
        self._actual.pop(name, None)

    def _remove_unfinished(self) -> None:
        self._actual = {name: name for name in self._files.listdir(self._directory)}
        super()._remove_unfinished()

    def _complete_swaps(self) -> None:
        """See the replacements under the names that they are to get."""
        swaps = [name for name in self._actual if name.endswith(SWAP_SUFFIX)]
        first, end = self._swapped_range(swaps)
        for name in list(self._actual):
            offset = offset_of_file(name)
            if offset is not None and first <= offset < end and name not in swaps:
                del self._actual[name]
        for name in stale_indexes(swaps):
            self._actual.pop(name, None)
        for name in swaps:
            self._actual[name.removesuffix(SWAP_SUFFIX)] = self._actual.pop(name)

    def _make_segment(
        self, base_offset: int, file_suffix: str = "", *, is_new: bool = False
    ) -> LogSegment:
        name = segment_file_name(base_offset, LOG_SUFFIX)
        if self._actual.get(name, name) != name:
            file_suffix = SWAP_SUFFIX
        return ViewSegment(
            self._directory,
            base_offset,
            self._config,
            files=self._files,
            clock=self._clock,
            file_suffix=file_suffix,
            file_already_exists=True,
            size_bytes=0 if is_new else None,
            is_new=is_new,
        )

    def _recover_segment(self, segment: LogSegment, *, while_loading: bool = False) -> int:
        base_offset = segment.base_offset
        segment.close_handlers()
        self._segments[base_offset] = ViewSegment(
            self._directory,
            base_offset,
            self._config,
            files=self._files,
            clock=self._clock,
            file_suffix=segment._file_suffix,
            file_already_exists=True,
            scratch=self.scratch,
        )
        return super()._recover_segment(self._segments[base_offset], while_loading=while_loading)

    def _keep_tail(self, segment: LogSegment, position: int) -> None:
        """Leave the file: nothing is cut."""

    def _set_aside(self, bases: list[int], reason: str) -> None:
        logger.warning("%s: segments %s are not read: %s", self._directory, bases, reason)
        for base in bases:
            self._segments.pop(base).close_handlers()
