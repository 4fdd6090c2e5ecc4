"""
The end of other processes: who waits for a writer hears of its end, however it ends.

One thread of the process sleeps on descriptors of all processes that are watched (pidfd), and costs
nothing while they live. Where there are none, or the process is of another pid namespace, whoever
waits looks from time to time.

Source: pidfd_open(2), epoll(7).
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import weakref
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

PID_NAMESPACE_FILE: Final = "/proc/self/ns/pid"


def pid_namespace() -> int:
    """Return what names the pid namespace of this process, 0 if that is not known."""
    try:
        return os.stat(PID_NAMESPACE_FILE).st_ino
    except OSError:
        return 0


class ProcessWatch:
    """
    One process that is watched for somebody.

    **Lifetime**: :meth:`cancel`, or the end of this object, ends the watch.

    **Thread rule**: any thread.
    """

    __slots__ = ("__weakref__", "_is_over", "_tell", "_watcher", "pid")

    def __init__(self, pid: int, tell: Callable[[], object], watcher: _Processes | None) -> None:
        self.pid: Final = pid
        self._tell = tell
        self._watcher = watcher
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether the process has ended, or nobody watches any more."""
        return self._is_over

    def end(self) -> None:
        """Tell that the process has ended."""
        self._is_over = True
        self._tell()

    def cancel(self) -> None:
        """Watch no more; a second call does nothing."""
        self._is_over = True
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.remove(self)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.cancel()


class _Processes:
    """The thread and what it sleeps on."""

    def __init__(self) -> None:
        self._guard = threading.RLock()  # A watch may be collected anywhere.
        self._epoll: select.epoll | None = None
        self._watches: dict[int, tuple[int, weakref.WeakSet[ProcessWatch]]] = {}  # pid: pidfd, who

    def add(self, pid: int, tell: Callable[[], object]) -> ProcessWatch | None:
        """See :func:`watch_process`."""
        with self._guard:
            if pid not in self._watches:
                try:
                    pidfd = os.pidfd_open(pid)
                except (AttributeError, OSError):
                    return None
                if self._epoll is None:
                    self._epoll = select.epoll()
                    threading.Thread(
                        target=self._run,
                        args=(self._epoll,),
                        name="logstore-processes",
                        daemon=True,
                    ).start()
                self._epoll.register(pidfd, select.EPOLLIN)
                self._watches[pid] = pidfd, weakref.WeakSet()
            watch = ProcessWatch(pid, tell, self)
            self._watches[pid][1].add(watch)
            return watch

    def remove(self, watch: ProcessWatch) -> None:
        """Watch for one fewer; with the last one the descriptor goes."""
        with self._guard:
            pidfd, watches = self._watches.get(watch.pid, (-1, None))
            if watches is None:
                return
            watches.discard(watch)
            if not watches:
                del self._watches[watch.pid]
                self._close(pidfd)

    def _close(self, pidfd: int) -> None:
        assert self._epoll is not None
        self._epoll.unregister(pidfd)
        os.close(pidfd)

    def _run(self, epoll: select.epoll) -> None:
        while True:
            for pidfd, _ in epoll.poll():
                for watch in self._ended(pidfd):
                    try:
                        watch.end()
                    except Exception:
                        logger.exception("the end of process %d could not be told", watch.pid)

    def _ended(self, pidfd: int) -> list[ProcessWatch]:
        with self._guard:
            for pid, (descriptor, watches) in self._watches.items():
                if descriptor == pidfd:
                    del self._watches[pid]
                    self._close(pidfd)
                    return list(watches)
        return []

    def leave(self) -> None:
        """Close what a forked child has inherited; the thread is not in it."""
        self._guard = threading.RLock()  # Another thread of the parent may have held it.
        if self._epoll is not None:
            self._epoll.close()
        for pidfd, _ in self._watches.values():
            os.close(pidfd)
        self._watches = {}


_processes = _Processes()


def watch_process(pid: int, tell: Callable[[], object]) -> ProcessWatch | None:
    """
    Call ``tell`` once when a process ends, in a thread of its own; None: it cannot be watched.

    The caller makes sure, afterwards, that the process is still the one that it means: a pid is
    used again.
    """
    if pid == os.getpid():
        return ProcessWatch(pid, tell, None)  # It ends with the caller.
    return _processes.add(pid, tell)


def _after_fork() -> None:
    global _processes
    before, _processes = _processes, _Processes()
    before.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
