"""
Durability on demand: whoever waits for the device shares one flush with the others.

While one thread flushes, others that want something durable wait; the first of them to wake then
flushes for all. A failed fsync poisons the log: what reached the disk is not known, and a second
attempt would not tell (the kernel may have dropped the pages), so nothing is acknowledged any more
until the log is opened again.

Source: DESIGN.md D4; Kafka flushes from its scheduler and has no such sharing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from logstore.errors import PoisonedError, StorageError


class GroupCommit:
    """
    Turns many waits for durability into few flushes.

    Args:
        flush: Makes everything below an offset durable; called by one thread at a time.
        durable_offset: Returns the offset below which everything is durable.
        path: The log's directory, for errors.

    Attributes:
        poison: The error of the flush that failed; None: none did.
        waiting_count: Threads that wait for the end of a flush.

    **Thread rule**: any thread may wait.
    """

    __slots__ = (
        "_durable_offset",
        "_flush",
        "_is_flushing",
        "_lock",
        "_turn",
        "_wanted",
        "path",
        "poison",
        "waiting_count",
    )

    def __init__(
        self, flush: Callable[[int], None], durable_offset: Callable[[], int], path: str
    ) -> None:
        self._flush = flush
        self._durable_offset = durable_offset
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)
        self.waiting_count = 0
        self._is_flushing = False
        self._wanted = -1
        self.path = path
        self.poison: StorageError | None = None

    def check(self) -> None:
        """Raise if an earlier fsync failed."""
        if self.poison is not None:
            raise PoisonedError(
                f"an earlier fsync failed ({self.poison.message}); close the log and open it again",
                self.poison.errno,
                path=self.path,
            )

    def wait_for(self, offset: int) -> None:
        """
        Return when everything below ``offset`` is durable.

        Raises:
            StorageError: The flush failed; the log is poisoned.
            PoisonedError: An earlier one had failed.
        """
        with self._lock:
            self._wanted = max(self._wanted, offset)
            while self._is_flushing:
                self._wait()
                self.check()
                if self._durable_offset() >= offset:
                    return
            self.check()
            if self._durable_offset() >= offset:
                return
            self._is_flushing = True
            wanted = max(self._wanted, offset)
            self._wanted = -1
        try:
            self._flush(wanted)
        except StorageError as error:
            self.poison = error
            raise
        finally:
            self._end()

    def alone(self, flush: Callable[[], None]) -> None:
        """Run a flush that is not an offset's, such as one of an empty segment, in turn."""
        with self._lock:
            while self._is_flushing:
                self._wait()
            self.check()
            self._is_flushing = True
        try:
            flush()
        except StorageError as error:
            self.poison = error
            raise
        finally:
            self._end()

    def _wait(self) -> None:
        """Wait for the end of a flush; the lock is held."""
        self.waiting_count += 1
        try:
            self._turn.wait()
        finally:
            self.waiting_count -= 1

    def _end(self) -> None:
        with self._lock:
            self._is_flushing = False
            if self.waiting_count:
                self._turn.notify_all()
