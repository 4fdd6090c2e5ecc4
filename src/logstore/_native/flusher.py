"""
Flushes of a log, one at a time, and how far they have got.

Most of them take one fdatasync, of the active segment's log file, and are made in C, where whoever
waits shares them. The others are made in Python, by who has the turn; see ``flushing.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from logstore._native._core import lib
from logstore._native.io import check
from logstore._native.objects import objects
from logstore._native.writer import load_published

if TYPE_CHECKING:
    from logstore._native.writer import Writer

ALONE: Final = 2**63 - 1  # An offset that is never durable.
_flush = objects.writer_flush


class Flusher:
    """
    What makes a writer's log durable, and the log's recovery point.

    **Thread rule**: any thread may call anything. The recovery point is lowered while no segment is
    attached, so that no flush raises it meanwhile.
    """

    __slots__ = ("_flushed_address", "_handle", "_writer")

    def __init__(self, writer: Writer) -> None:
        self._writer = writer  # Keeps the handle.
        self._handle: Any = writer.handle
        self._flushed_address = int(lib.ls_writer_flushed(self._handle))

    @property
    def recovery_point(self) -> int:
        """Below it everything is on the device."""
        offset: int = load_published(self._flushed_address)
        return offset

    @property
    def flushed_ms(self) -> int:
        """When a flush last raised the recovery point, in milliseconds since the epoch."""
        milliseconds: int = load_published(self._flushed_address + 8)
        return milliseconds

    def set_recovery_point(self, offset: int) -> None:
        """Set the recovery point, higher or lower."""
        lib.ls_writer_set_recovery_point(self._handle, offset)

    def raise_recovery_point(self, offset: int, *, flushed_ms: int = -1) -> None:
        """Raise the recovery point if it is lower; ``flushed_ms``: a flush did, at this time."""
        lib.ls_writer_raise_recovery_point(self._handle, offset, flushed_ms)

    # -- flushes made in C -------------------------------------------------------------------------

    def flush(self, offset: int) -> int:
        """Make everything below ``offset`` durable, and what else is published: see outcome."""
        result: int = _flush(self._writer.address, offset)
        return result

    def outcome(self, result: int) -> bool:
        """
        Return what :meth:`flush`, or the same in C, has ended with.

        **Durability**: if it is True, the recovery point was the offset asked for, or above it.

        Returns:
            False: it is for the general way.

        Raises:
            StorageError: The flush failed: what reached the device is not known.
        """
        if result in (lib.LS_E_SLOW, lib.LS_E_POISONED, lib.LS_E_FORKED):
            return False
        check(result, "fdatasync", self._writer.path)
        return True

    def allow(self) -> None:
        """
        Let flushes be made in C from now on, until the segment is detached.

        Its log file is all that they take: the directory has its name, and what comes before it is
        durable. Once a second one is made in Python all the same.
        """
        lib.ls_writer_allow_flush(self._handle)

    # -- the turn ----------------------------------------------------------------------------------

    def begin(self, offset: int) -> int | None:
        """
        Wait for the turn to flush; :meth:`end` has to follow.

        Args:
            offset: Wanted. ``ALONE``: the turn, whatever is durable.

        Returns:
            The highest offset that somebody wants; None: ``offset`` is durable, and somebody else
            has the turn, or nobody.

        Raises:
            PoisonedError: A flush has failed.
        """
        wanted: int = lib.ls_writer_begin_flush(self._handle, offset)
        if wanted == -1:
            return None
        return check(wanted, "flush", self._writer.path)

    def try_begin(self) -> bool:
        """
        Take the turn if nobody has it; :meth:`end` has to follow then.

        Raises:
            PoisonedError: A flush has failed.
        """
        result: int = lib.ls_writer_try_begin_flush(self._handle)
        return result != lib.LS_E_SLOW and check(result, "flush", self._writer.path) == 0

    def end(self, *, failed: bool) -> None:
        """Give up the turn; ``failed``: what reached the device is not known, nor ever will be."""
        lib.ls_writer_end_flush(self._handle, failed)

    @property
    def waiting_count(self) -> int:
        """Threads that wait for the end of a flush."""
        return int(lib.ls_writer_flush_waiters(self._handle))
