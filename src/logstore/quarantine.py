"""
The place beside a log's files where data goes that a load must not serve and will not delete.

``<log>/quarantine/<n>/`` holds what one event set aside, under the names that the files had; of a
file that was cut, the part that went, as ``<name>.from-<position>``. A broker ignores directories
inside a partition's. Nothing here is ever read or deleted by logstore: look at it with ``logstore
dump``, then delete it by hand.

Source: DESIGN.md D8.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from logstore.errors import DiskFullError, StorageError

if TYPE_CHECKING:
    from logstore.files import Files

logger = logging.getLogger(__name__)

QUARANTINE: Final = "quarantine"


class Quarantine:
    """
    One event's place in a log's quarantine; made when the first file is set aside.

    **Durability**: :meth:`sync` before anything that relies on it.
    """

    __slots__ = ("_files", "_log_directory", "_path")

    def __init__(self, log_directory: str, files: Files) -> None:
        self._log_directory = log_directory
        self._files = files
        self._path: str | None = None

    @property
    def path(self) -> str:
        """The directory of this event."""
        if self._path is None:
            self._path = self._make()
        return self._path

    def _make(self) -> str:
        top = os.path.join(self._log_directory, QUARANTINE)
        self._mkdir(top)
        numbers = [int(name) for name in self._files.listdir(top) if name.isdecimal()]
        path = os.path.join(top, str(max(numbers, default=0) + 1))
        self._mkdir(path)
        return path

    def _mkdir(self, path: str) -> None:
        try:
            self._files.mkdir(path)
        except StorageError as error:
            if error.errno != errno.EEXIST:
                raise

    def move(self, names: Iterable[str], reason: str) -> None:
        """Move files of the log here by renaming them, which needs no space."""
        names = list(names)
        for name in names:
            target = os.path.join(self.path, name)
            self._files.rename(os.path.join(self._log_directory, name), target)
        if names:
            logger.warning("%s: moved %s to %s", reason, ", ".join(names), self.path)

    def copy_tail(self, name: str, position: int, reason: str) -> None:
        """
        Keep a copy of what a file holds from ``position`` on, before it is cut there.

        On a full disk nothing is kept, and a warning says so: a log has to open without space.
        """
        source_path = os.path.join(self._log_directory, name)
        source = self._files.open(source_path, os.O_RDONLY)
        try:
            size = self._files.size(source) - position
            target_path = os.path.join(self.path, f"{name}.from-{position}")
            target = self._files.open(target_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            try:
                self._files.copy_range(source, position, target, 0, size)
                self._files.fdatasync(target)
            finally:
                self._files.close(target)
            logger.warning("%s: kept %d bytes of %s in %s", reason, size, name, self.path)
        except DiskFullError as error:
            logger.warning("%s: cannot keep what %s loses: %s", reason, name, error)
        finally:
            self._files.close(source)

    def sync(self) -> None:
        """Make what was set aside durable."""
        if self._path is None:
            return
        self._files.fsync_directory(self._path)
        self._files.fsync_directory(os.path.dirname(self._path))
        self._files.fsync_directory(self._log_directory)
