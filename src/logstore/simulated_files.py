"""
Files for tests: a disk that loses what was not synced, and one that fails on request.

Both have the methods of :class:`~logstore.files.Files` and work on real directories, so that
everything above runs on them unchanged, native handles included.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from logstore._native import Path, simulated_io
from logstore._native.simulated_io import FAULTS, OPERATIONS
from logstore.errors import SimulatedCrashError
from logstore.files import REAL_FILES, Files

__all__ = ["FAULTS", "OPERATIONS", "FailingFiles", "SimulatedFiles"]


class SimulatedFiles(Files):
    """
    Real files whose un-synced changes a crash may take.

    The crash comes in the middle of operation ``crash_at``, or when :meth:`crash` is called. What
    was synced survives it; of everything else each page is kept, lost, torn or garbage, each size
    is the old one, the new one or between, and each change of a directory entry is kept or lost.
    That is what DESIGN.md assumes of a disk, and no more: bytes that were durable change only if
    they were written to again.

    After the crash every operation raises :class:`~logstore.errors.SimulatedCrashError`, but for
    closing; open what is left with other files. As at the end of a process, descriptors opened here
    lead nowhere after :meth:`crash`, and record locks are free; mappings and views of before stay
    readable.

    Args:
        seed: Decides everything that chance decides: same seed, same calls, same crash.
        crash_at: The operation in which the crash comes, counted from 1; None for never. Operations
            are those that change or sync something: see :attr:`operation_count`.
        faults: Which of ``FAULTS`` a power loss may bring; all by default.
    """

    __slots__ = ()

    def __init__(
        self,
        seed: int = 0,
        crash_at: int | None = None,
        *,
        faults: Collection[str] = tuple(FAULTS),
    ) -> None:
        assert crash_at is None or crash_at > 0
        super().__init__(simulated_io.simulated_io(seed, crash_at or 0, faults))

    @property
    def operation_count(self) -> int:
        """Operations so far that changed or synced something."""
        return simulated_io.operation_count(self.io)

    @property
    def unsynced_count(self) -> int:
        """Files and directory entries with changes that a power loss now might take."""
        return simulated_io.unsynced_count(self.io)

    @property
    def has_crashed(self) -> bool:
        """Whether the crash has come."""
        return simulated_io.has_crashed(self.io)

    def crash_in(self, operations: int) -> None:
        """Let the crash come in the ``operations``-th operation from now, counted from 1."""
        assert operations > 0
        simulated_io.set_crash_at(self.io, self.operation_count + operations)

    def crash(self, *, power_loss: bool = True) -> None:
        """
        Crash now, if it has not come yet, and leave the directories as they are found afterwards.

        With ``power_loss=False`` only the process ends: everything written stays.
        """
        simulated_io.crash(self.io, power_loss)

    def exists(self, path: Path) -> bool:
        """Whether there is a file or directory of this name."""
        self._require_power()
        return super().exists(path)

    def is_directory(self, path: Path) -> bool:
        """Whether there is a directory of this name."""
        self._require_power()
        return super().is_directory(path)

    def listdir(self, path: Path) -> list[str]:
        """Names in a directory, sorted."""
        self._require_power()
        return super().listdir(path)

    def _stat(self, path: Path | int) -> os.stat_result:
        self._require_power()
        return super()._stat(path)

    def _require_power(self) -> None:
        if self.has_crashed:
            raise SimulatedCrashError("the simulated power failed; open what is left anew")


class FailingFiles(Files):
    """
    Files that fail when the test says so, and are otherwise the ones that they wrap.

    Nothing of a failing operation is done, except that a failing close closes. A failing
    ``fdatasync`` syncs nothing: over :class:`SimulatedFiles` its data stays exposed.
    """

    __slots__ = ("inner",)

    def __init__(self, inner: Files = REAL_FILES) -> None:
        super().__init__(simulated_io.failing_io(inner.io))
        self.inner = inner

    def fail(
        self, operation: str | None, error: int, *, at: int = 1, persistent: bool = False
    ) -> None:
        """
        Let a call of ``operation`` (None: of any) fail.

        Args:
            operation: One of ``OPERATIONS``.
            error: The errno. EINTR is retried by the caller, so it cannot be persistent.
            at: Which call from now, 1 being the next.
            persistent: Whether every later call fails too.
        """
        assert error > 0
        simulated_io.add_failure(self.io, operation, error, at, persistent)

    def shorten(self, operation: str, *, at: int = 1, persistent: bool = False) -> None:
        """Let a transfer (``pwrite``, ``pwritev``, ``pread``) do only half."""
        simulated_io.add_failure(self.io, operation, 0, at, persistent)

    def clear(self) -> None:
        """Fail no more; the budget stays."""
        simulated_io.clear_failures(self.io)

    def calls(self, operation: str | None = None) -> int:
        """Calls of one operation so far, or of all; every retry counts."""
        return simulated_io.call_count(self.io, operation)

    @property
    def budget(self) -> int | None:
        """
        Bytes by which files may still grow before the disk is full; None for any number.

        A write that does not fit is done in part, as systems do it. Cut and deleted bytes come
        back.
        """
        return simulated_io.budget(self.io)

    @budget.setter
    def budget(self, size: int | None) -> None:
        assert size is None or size >= 0
        simulated_io.set_budget(self.io, size)

    def exists(self, path: Path) -> bool:
        """Whether there is a file or directory of this name."""
        return self.inner.exists(path)

    def is_directory(self, path: Path) -> bool:
        """Whether there is a directory of this name."""
        return self.inner.is_directory(path)

    def listdir(self, path: Path) -> list[str]:
        """Names in a directory, sorted."""
        return self.inner.listdir(path)

    def _stat(self, path: Path | int) -> os.stat_result:
        return self.inner._stat(path)
