"""
Waiting for logs: one primitive for any number of them.

A listener is called after a log's end, a watermark or the log start moved, outside all locks and in
the thread that moved it. :class:`LogWaiter` is the listener for those who would rather wait.

Source: Kafka ``LogOffsetsListener`` and the purgatories, spec 8.7.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol, Self, TypeAlias

from logstore.watermarks import LogOffsets

Listener: TypeAlias = Callable[["ListenableLog"], object]


class ListenableLog(Protocol):
    """A log that tells when it moves."""

    @property
    def offsets(self) -> LogOffsets:
        """The five offsets of one moment."""
        ...

    def add_listener(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener(log)`` after every move; the result removes it again."""
        ...


class LogWaiter:
    """
    Waits until any of some logs has moved.

    A move between two waits is not lost: the next wait returns at once.

    Example::

        with LogWaiter([orders, payments]) as waiter:
            moved = waiter.wait(timeout=1.0)  # {orders}, or set() after one second

    **Thread rule**: any thread may add logs; one thread waits.
    """

    def __init__(self, logs: Iterable[ListenableLog] = ()) -> None:
        self._changed = threading.Condition()
        self._moved: dict[int, ListenableLog] = {}
        self._remove: dict[int, Callable[[], None]] = {}
        for log in logs:
            self.add(log)

    def add(self, log: ListenableLog) -> None:
        """Wait for this log, too."""
        if id(log) not in self._remove:
            self._remove[id(log)] = log.add_listener(self._note)

    def discard(self, log: ListenableLog) -> None:
        """Do not wait for this log any more."""
        remove = self._remove.pop(id(log), None)
        if remove is not None:
            remove()
        with self._changed:
            self._moved.pop(id(log), None)

    def wait(self, timeout: float | None = None) -> set[ListenableLog]:
        """
        Return the logs that moved since the last wait; empty after ``timeout`` seconds without.

        Args:
            timeout: Seconds, None: for as long as it takes.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._moved, timeout)
            moved = set(self._moved.values())
            self._moved.clear()
        return moved

    def _note(self, log: ListenableLog) -> None:
        with self._changed:
            self._moved[id(log)] = log
            self._changed.notify_all()

    def close(self) -> None:
        """Stop listening."""
        for remove in self._remove.values():
            remove()
        self._remove.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.close()
