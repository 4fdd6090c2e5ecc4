"""
One thread for all who wait for logs and must not sleep themselves: event loops, selectors.

It sleeps on the futexes of up to 127 logs at once; beyond that, and for logs that cannot wake, it
looks every few milliseconds. It begins with the first who waits. While nobody does, it sleeps.

Source: Kafka ``DelayedOperationPurgatory``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from logstore._native import LIVE_WAIT_MAX, LivePage, wait_any
from logstore.errors import LogStoreError
from logstore.readable_log import ReadableLog

if TYPE_CHECKING:
    from logstore.segment import LogSegment

logger = logging.getLogger(__name__)

Tell: TypeAlias = Callable[[], object]

SLICE_SECONDS: Final = 0.1
POLL_SECONDS: Final = 0.02  # Of logs that cannot wake.
CROWD_SECONDS: Final = 0.005  # Of the logs beyond what one wait takes.


class WatchedLog(ReadableLog, Protocol):
    """What waiting needs of a log."""

    @property
    def is_closed(self) -> bool:
        """Whether the log was closed."""
        ...

    @property
    def active_segment(self) -> LogSegment:
        """The segment that is written."""
        ...

    @property
    def live_page(self) -> LivePage | None:
        """What shows its moves and wakes; None: look at the log from time to time."""
        ...


class Waiter(Protocol):
    """Somebody who waits for one log."""

    @property
    def page(self) -> LivePage | None:
        """What shows the moves of its log."""
        ...

    def has_news(self) -> bool:
        """Whether there is something to do."""
        ...


class Signal:
    """
    A descriptor that is readable while it is set.

    **Thread rule**: any thread.
    """

    __slots__ = ("_ends", "_guard", "_is_set")

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._is_set = False
        if hasattr(os, "eventfd"):
            fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._ends: tuple[int, int] | None = (fd, fd)
        else:
            self._ends = os.pipe()
            os.set_blocking(self._ends[0], False)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        assert self._ends is not None
        return self._ends[0]

    def set(self) -> None:
        """Make it readable."""
        with self._guard:
            if self._ends is not None and not self._is_set:
                self._is_set = True
                os.write(self._ends[1], (1).to_bytes(8, "little"))

    def clear(self) -> None:
        """Make it not readable."""
        with self._guard:
            if self._ends is not None and self._is_set:
                self._is_set = False
                os.read(self._ends[0], 8)

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        with self._guard:
            ends, self._ends = self._ends, None
            for fd in set(ends or ()):
                os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


class Watcher:
    """
    Tells those who wait when their logs move.

    **Thread rule**: any thread. Who is told is told in the watcher's thread, once, and should be
    short.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._armed: dict[Waiter, Tell] = {}
        self._control = LivePage.private()
        self._thread: threading.Thread | None = None

    def arm(self, waiter: Waiter, tell: Tell) -> Callable[[], None]:
        """Call ``tell`` when ``waiter`` has news, also if it has some now; returns what disarms."""
        with self._guard:
            self._armed[waiter] = tell
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="logstore-watcher", daemon=True
                )
                self._thread.start()
        self._control.poke()

        def disarm() -> None:
            with self._guard:
                if self._armed.get(waiter) is tell:
                    del self._armed[waiter]

        return disarm

    def disarm(self, waiter: Waiter) -> None:
        """Tell somebody nothing more."""
        with self._guard:
            self._armed.pop(waiter, None)

    def look(self) -> None:
        """Look at all logs now."""
        if self._armed:
            self._control.poke()

    def _run(self) -> None:
        control = self._control
        while True:
            pages: dict[int, LivePage] = {id(control): control}
            word = control.prepare()
            words = [word]
            seconds = 3600.0
            with self._guard:
                armed = list(self._armed.items())
            for page in [waiter.page for waiter, _ in armed]:
                if page is None:
                    seconds = min(seconds, POLL_SECONDS)
                elif id(page) in pages:
                    pass
                elif len(pages) < LIVE_WAIT_MAX:
                    pages[id(page)] = page
                    words.append(page.prepare())
                    seconds = min(seconds, SLICE_SECONDS)
                else:
                    seconds = CROWD_SECONDS
            if self._tell(armed):
                continue
            armed.clear()  # Nobody is kept alive by this.
            if not wait_any(list(pages.values()), words, seconds):
                control.wait(word, min(seconds, CROWD_SECONDS))

    def _tell(self, armed: list[tuple[Waiter, Tell]]) -> bool:
        is_any = False
        for waiter, tell in armed:
            try:
                has_news = waiter.has_news()
            except (LogStoreError, OSError):
                has_news = True  # Whoever waits will meet it, too.
            if not has_news:
                continue
            is_any = True
            with self._guard:
                if self._armed.get(waiter) is not tell:
                    continue
                del self._armed[waiter]
            try:
                tell()
            except Exception:
                logger.exception("%r could not be told of news", waiter)
        return is_any


_watcher: Watcher | None = None
_watcher_guard = threading.Lock()


def watcher() -> Watcher:
    """Return the watcher of this process."""
    global _watcher  # noqa: PLW0603  One thread of the process serves all logs.
    with _watcher_guard:
        if _watcher is None:
            _watcher = Watcher()
        return _watcher


def _after_fork() -> None:
    global _watcher, _watcher_guard  # noqa: PLW0603  The thread is not in the child.
    _watcher = None
    _watcher_guard = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
