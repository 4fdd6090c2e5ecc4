"""
How many segments of this process hold files and mappings open (DESIGN.md D12).

A segment opens its files when they are needed and keeps them. Beyond a number, the one that was
used longest ago gives its own up, whatever log it belongs to, and opens them again at its next use:

===============  ===========================  ===================================================
segment          holds                        gives up
===============  ===========================  ===================================================
sealed           ``.log``, mapped indexes     both; ranges that were read go on, with a lease
active           three files, mapped indexes  when no append is under way: its writer is detached
===============  ===========================  ===================================================

A segment counts as three files and two mappings, whether it has them all open or not. The default
is half of ``RLIMIT_NOFILE``, and at most 8,192 segments, whose mappings are a quarter of what Linux
gives a process (``max_map_count``). The other half is for what cannot be given up: ranges that are
being read, locks, sockets.

What was written and not flushed is flushed before its descriptor goes: a device's error is told to
a descriptor that was open when the write was made, and it must not get lost.

Source: DESIGN.md D12; Kafka keeps every file of every segment open.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
import weakref
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from logstore.errors import StorageError

FILES_PER_SEGMENT: Final = 3  # .log, .index, .timeindex
SEGMENTS_MAX: Final = 8192
SEGMENTS_MIN: Final = 4  # One that is written, one that is rolled to, and a reader's.
TOGETHER_DIVISOR: Final = 16  # So many parts of the bound go at once: the device takes them so.
OUT_OF_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})

ResultT = TypeVar("ResultT")


class FileHolder(Protocol):
    """What holds files open and can do without: a segment."""

    def take_use(self) -> bool:
        """Return whether the files were used since this was last asked."""
        ...

    def start_giving_up(self) -> None:
        """Let the device begin with what :meth:`give_up_files` has to wait for."""
        ...

    def give_up_files(self) -> bool:
        """Close them all; False: they are in use now, and stay open. Raises nothing."""
        ...


def default_segments_max() -> int:
    """Return how many segments may hold files if nobody says: see above."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return SEGMENTS_MAX
    return min(max(soft // 2 // FILES_PER_SEGMENT, SEGMENTS_MIN), SEGMENTS_MAX)


class _Held(weakref.ref[FileHolder]):
    """A segment that holds files; knows its key when the segment is gone."""

    __slots__ = ("key",)

    key: int


class OpenFiles:
    """
    The segments that hold files, the longest unused first.

    Used ones get another turn: who holds files says so once, and is asked whether it has used them
    before it must give them up.

    **Thread rule**: any thread may call anything.
    """

    __slots__ = ("_default", "_forget", "_held", "_lock", "_segments_max", "_thread")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None  # That has others give up.
        held: dict[int, _Held] = {}
        self._held = held
        # Knows no more than that: the collector may call it inside any lock.
        self._forget = lambda gone: held.pop(gone.key, None)
        self._segments_max: int | None = None
        self._default = 0  # As it was when there were more, or when files ran out.

    @property
    def segments_max(self) -> int:
        """How many segments may hold files; None sets the default again."""
        if self._segments_max is not None:
            return self._segments_max
        if len(self._held) > self._default or self._default == 0:
            self._default = default_segments_max()
        return self._default

    @segments_max.setter
    def segments_max(self, count: int | None) -> None:
        assert count is None or count >= 1
        self._segments_max = count
        self.keep_within_bounds()

    @property
    def held_count(self) -> int:
        """How many segments hold files now."""
        return len(self._held)

    def add(self, holder: FileHolder) -> None:
        """Count a segment that is about to open a file; nothing happens if it is counted."""
        key = id(holder)
        if key not in self._held:
            held = self._held[key] = _Held(holder, self._forget)
            held.key = key

    def remove(self, holder: FileHolder) -> None:
        """Do not count a segment any more: it holds nothing."""
        self._held.pop(id(holder), None)

    def keep_within_bounds(self) -> None:
        """
        Have the longest unused segments give their files up if there are too many.

        Some more go then, so that this is done for many at a time. What is in use stays, and the
        bound is exceeded until it is not.

        Called by whoever opens files, with no lock of a segment's held.
        """
        segments_max = self.segments_max
        if len(self._held) > segments_max:
            self._give_up(lambda held: held - segments_max + segments_max // TOGETHER_DIVISOR)

    def with_room(self, action: Callable[[], ResultT]) -> ResultT:
        """
        Return what ``action`` does, which opens files; once more if the system has no more of them.

        Raises:
            StorageError: As ``action`` says.
        """
        try:
            return action()
        except StorageError as error:
            if error.errno not in OUT_OF_FILES:
                raise
            self._default = 0  # The limit may have been lowered.
            if self._give_up(lambda held: held // 2 + 1) == 0:
                raise
        return action()

    def _give_up(self, count_of: Callable[[int], int]) -> int:
        """
        Have as many segments give up as ``count_of`` says, told how many there are.

        Whoever opens files waits here while another thread is at it, with locks of its own log
        held: nobody who gives up waits for those.
        """
        if self._thread == threading.get_ident():
            return 0  # To flush what it gives up, this one opens a file.
        with self._lock:
            self._thread = threading.get_ident()
            try:
                return self._give_up_now(count_of(len(self._held)))
            finally:
                self._thread = None

    def _give_up_now(self, wanted: int) -> int:
        holders = self._longest_unused(wanted)
        for holder in holders:
            holder.start_giving_up()
        given_up = 0
        for holder in holders:
            if holder.give_up_files():
                self.remove(holder)
                given_up += 1
            else:
                self._requeue(holder)
        return given_up

    def _longest_unused(self, wanted: int) -> list[FileHolder]:
        found: list[FileHolder] = []
        if wanted <= 0:
            return found
        for reference in list(self._held.values()):
            if len(found) == wanted:
                break
            holder = reference()
            if holder is None:
                continue
            if holder.take_use():
                self._requeue(holder)
            else:
                found.append(holder)
        if not found:  # All were used: the one that says so longest ago.
            references = list(self._held.values())[:wanted]
            found = [each for reference in references if (each := reference()) is not None]
        return found

    def _requeue(self, holder: FileHolder) -> None:
        reference = self._held.pop(id(holder), None)
        if reference is not None:
            self._held[id(holder)] = reference

    def after_fork(self) -> None:
        """Begin anew in a forked child: the lock may be held, and the logs are the parent's."""
        self._lock = threading.Lock()
        self._thread = None
        self._held.clear()


OPEN_FILES: Final = OpenFiles()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=OPEN_FILES.after_fork)
