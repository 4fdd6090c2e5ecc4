"""
A thread for all who wait for logs and must not sleep themselves: event loops, selectors.

It sleeps on the futexes of up to 127 logs at once; for each 127 more there is another thread. It
begins with the first who waits. While nobody does, it sleeps.

Source: Kafka ``DelayedOperationPurgatory``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from logstore._native import LIVE_WAIT_MAX, LivePage, wait_any
from logstore.clock import SYSTEM_CLOCK
from logstore.errors import LogStoreError
from logstore.readable_log import ReadableLog

if TYPE_CHECKING:
    from logstore.segment import LogSegment

logger = logging.getLogger(__name__)

Tell: TypeAlias = Callable[[], object]

IDLE_SECONDS: Final = 3600.0
POLL_SECONDS: Final = 0.02  # Where the system cannot sleep on several words.
LOGS_MAX: Final = LIVE_WAIT_MAX - 1  # Of one thread, which has a word of its own.


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

    @property
    def wait_seconds(self) -> float:
        """How long who waits may sleep: what does not wake happens no more often."""
        ...


class Waiter(Protocol):
    """Somebody who waits for one log."""

    @property
    def page(self) -> LivePage | None:
        """What shows the moves of its log."""
        ...

    @property
    def wait_seconds(self) -> float:
        """How long it may sleep."""
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


class Armed:
    """
    Who is told of news of somebody who waits.

    Attributes:
        tell: What tells.
        page: What names the page of its log, 0: it has none.
        seen: At which page, and which word of it, a look has found no news.
        seconds: How long that holds.
    """

    __slots__ = ("page", "seconds", "seen", "tell")

    def __init__(self, tell: Tell, page: int) -> None:
        self.tell: Final = tell
        self.page: Final = page
        self.seen = (0, -1)
        self.seconds = 0.0


class WatcherThread:
    """
    A thread of the watcher: it sleeps on up to LOGS_MAX logs at once.

    Attributes:
        armed: Who waits; changes under the watcher's lock.
        control: What wakes the thread to look.
    """

    def __init__(self, guard: threading.Lock) -> None:
        self.armed: dict[Waiter, Armed] = {}
        self.control = LivePage.private()
        self._guard = guard
        self._pages: Counter[int] = Counter()
        threading.Thread(target=self._run, name="logstore-watcher", daemon=True).start()

    def has_room(self, page: int) -> bool:
        """Whether it can sleep on this page, too."""
        return page == 0 or page in self._pages or len(self._pages) < LOGS_MAX

    def add(self, waiter: Waiter, armed: Armed) -> None:
        """Begin to wait for somebody; under the watcher's lock."""
        self.armed[waiter] = armed
        if armed.page:
            self._pages[armed.page] += 1

    def remove(self, waiter: Waiter) -> None:
        """Wait for somebody no more; under the watcher's lock."""
        armed = self.armed.pop(waiter, None)
        if armed is not None and armed.page:
            self._pages[armed.page] -= 1
            if not self._pages[armed.page]:
                del self._pages[armed.page]

    def _run(self) -> None:
        control = self.control
        is_over = False
        while True:
            pages: dict[int, LivePage] = {id(control): control}
            words = {id(control): control.prepare()}
            seconds = self._look_at_all(pages, words, is_over=is_over)
            if seconds <= 0:
                continue
            began = SYSTEM_CLOCK.monotonic()
            if not wait_any(list(pages.values()), list(words.values()), seconds):
                seconds = min(seconds, POLL_SECONDS)
                control.wait(words[id(control)], seconds)
            is_over = SYSTEM_CLOCK.monotonic() - began >= seconds

    def _look_at_all(
        self, pages: dict[int, LivePage], words: dict[int, int], *, is_over: bool
    ) -> float:
        """
        Tell whoever has news, and add the pages of the others.

        Args:
            pages: What to sleep on.
            words: The same.
            is_over: What earlier looks have found holds no more.

        Returns:
            How long to sleep.
        """
        with self._guard:
            waiting = list(self.armed.items())
        seconds = IDLE_SECONDS
        is_any = False
        for waiter, armed in waiting:
            page = waiter.page
            word = -1
            if page is not None:
                if id(page) not in pages and len(pages) < LIVE_WAIT_MAX:
                    pages[id(page)] = page
                    words[id(page)] = page.prepare()
                word = words.get(id(page), -1)
            if is_over or word < 0 or (id(page), word) != armed.seen:
                if self._tell(waiter, armed) or waiter.page is not page:
                    is_any = True
                    continue
                armed.seen, armed.seconds = (id(page), word), waiter.wait_seconds
                if page is not None and word < 0:  # Another than it came with, and one too many.
                    armed.seconds = POLL_SECONDS
            seconds = min(seconds, armed.seconds)
        return 0.0 if is_any else seconds

    def _tell(self, waiter: Waiter, armed: Armed) -> bool:
        """Tell somebody for whom there is news."""
        try:
            has_news = waiter.has_news()
        except (LogStoreError, OSError):
            has_news = True  # Whoever waits will meet it, too.
        if not has_news:
            return False
        with self._guard:
            if self.armed.get(waiter) is not armed:
                return True
            self.remove(waiter)
        try:
            armed.tell()
        except Exception:
            logger.exception("%r could not be told of news", waiter)
        return True


class Watcher:
    """
    Tells those who wait when their logs move.

    **Thread rule**: any thread. Who is told is told in a thread of the watcher's, once, and should
    be short.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._threads: list[WatcherThread] = []

    def arm(self, waiter: Waiter, tell: Tell) -> Callable[[], None]:
        """Call ``tell`` when ``waiter`` has news, also if it has some now; returns what disarms."""
        page = waiter.page
        armed = Armed(tell, 0 if page is None else id(page))
        with self._guard:
            for each in self._threads:
                each.remove(waiter)
            thread = next((each for each in self._threads if each.has_room(armed.page)), None)
            if thread is None:
                thread = WatcherThread(self._guard)
                self._threads.append(thread)
            thread.add(waiter, armed)
        thread.control.poke()

        def disarm() -> None:
            with self._guard:
                if thread.armed.get(waiter) is armed:
                    thread.remove(waiter)

        return disarm

    def disarm(self, waiter: Waiter) -> None:
        """Tell somebody nothing more."""
        with self._guard:
            for each in self._threads:
                each.remove(waiter)

    def look(self) -> None:
        """Look at all logs now."""
        for each in list(self._threads):
            if each.armed:
                each.control.poke()


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
