"""
Durability on demand: whoever waits for the device shares one flush with the others.

While one thread flushes, others that want something durable wait; the first of them to wake then
flushes for all. A failed fsync poisons the log: what reached the disk is not known, and a second
attempt would not tell (the kernel may have dropped the pages), so nothing is acknowledged any more
until the log is opened again. The same holds after a change of several files that failed halfway.

Source: DESIGN.md D4; Kafka flushes from its scheduler and has no such sharing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from logstore.errors import PoisonedError, StorageError


class Poison:
    """
    Why a log takes no changes any more until it is opened again; nothing, as a rule.

    Args:
        path: The log's directory, for errors.
    """

    __slots__ = ("cause", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.cause: BaseException | None = None

    def check(self) -> None:
        """Raise PoisonedError if something has failed that leaves the files in doubt."""
        cause = self.cause
        if cause is not None:
            said = getattr(cause, "message", None) or repr(cause)
            raise PoisonedError(
                f"an earlier operation failed halfway ({said}); close the log and open it again",
                getattr(cause, "errno", None),
                path=self.path,
            )

    @contextlib.contextmanager
    def if_it_fails(self) -> Iterator[None]:
        """Poison the log if the block raises anything, be it an interruption."""
        try:
            yield
        except BaseException as error:
            self.cause = self.cause or error
            raise


class GroupCommit:
    """
    Turns many waits for durability into few flushes.

    Args:
        flush: Makes everything below an offset durable; called by one thread at a time.
        durable_offset: Returns the offset below which everything is durable.
        poison: Set when a flush fails.

    Attributes:
        waiting_count: Threads that wait for the end of a flush.

    **Thread rule**: any thread may wait.
    """

    __slots__ = (
        "_durable_offset",
        "_flush",
        "_is_flushing",
        "_lock",
        "_poison",
        "_turn",
        "_wanted",
        "waiting_count",
    )

    def __init__(
        self, flush: Callable[[int], None], durable_offset: Callable[[], int], poison: Poison
    ) -> None:
        self._flush = flush
        self._durable_offset = durable_offset
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)
        self.waiting_count = 0
        self._is_flushing = False
        self._wanted = -1
        self._poison = poison

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
                self._poison.check()
                if self._durable_offset() >= offset:
                    return
            self._poison.check()
            if self._durable_offset() >= offset:
                return
            self._is_flushing = True
            wanted = max(self._wanted, offset)
            self._wanted = -1
        try:
            self._flush(wanted)
        except StorageError as error:
            self._poison.cause = error
            raise
        finally:
            self._end()

    def alone(self, flush: Callable[[], None]) -> None:
        """Run a flush that is not an offset's, such as one of an empty segment, in turn."""
        with self._lock:
            while self._is_flushing:
                self._wait()
            self._poison.check()
            self._is_flushing = True
        try:
            flush()
        except StorageError as error:
            self._poison.cause = error
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
