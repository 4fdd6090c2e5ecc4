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
from collections.abc import Callable, Iterator
from typing import TypeVar

from logstore._native import ALONE, Flusher
from logstore.errors import PoisonedError, StorageError

ResultT = TypeVar("ResultT")


class Poison:
    """
    Why a log takes no changes any more until it is opened again; nothing, as a rule.

    Args:
        path: The log's directory, for errors.
    """

    __slots__ = ("cause", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.cause: StorageError | None = None

    def note(self, error: BaseException) -> None:
        """Keep what an error says, if it is the first; not the error, which holds frames."""
        if self.cause is None:
            said = getattr(error, "message", None) or repr(error)
            self.cause = StorageError(said, getattr(error, "errno", None), path=self.path)

    def check(self) -> None:
        """Raise PoisonedError if something has failed that leaves the files in doubt."""
        cause = self.cause
        if cause is not None:
            raise PoisonedError(
                f"an earlier operation failed halfway ({cause.message});"
                " close the log and open it again",
                cause.errno,
                path=self.path,
            )

    @contextlib.contextmanager
    def if_it_fails(self) -> Iterator[None]:
        """Poison the log if the block raises anything, be it an interruption."""
        try:
            yield
        except BaseException as error:
            self.note(error)
            raise


class GroupCommit:
    """
    Turns many waits for durability into few flushes.

    Args:
        flush: Makes everything below an offset durable, and raises the recovery point; called by
            one thread at a time, and by none while a flush is made in C.
        flusher: Whose turn it is, and the recovery point.
        poison: Set when a flush fails.

    **Thread rule**: any thread may wait.
    """

    __slots__ = ("_flush", "_flusher", "_poison")

    def __init__(self, flush: Callable[[int], None], flusher: Flusher, poison: Poison) -> None:
        self._flush = flush
        self._flusher = flusher
        self._poison = poison

    @property
    def waiting_count(self) -> int:
        """Threads that wait for the end of a flush."""
        return self._flusher.waiting_count

    def outcome(self, result: int) -> bool:
        """
        Return whether a flush that was made in C has done what was wanted of it.

        Raises:
            StorageError: It failed; the log is poisoned.
        """
        with self._noting_failure():
            return self._flusher.outcome(result)

    def wait_for(self, offset: int) -> None:
        """
        Return when everything below ``offset`` is durable.

        Raises:
            StorageError: The flush failed; the log is poisoned.
            PoisonedError: An earlier one had failed.
        """
        wanted = self._begin(offset)
        if wanted is not None:
            self._in_turn(lambda: self._flush(wanted))

    def alone(self, flush: Callable[[], ResultT]) -> ResultT:
        """Run a flush that is not an offset's, such as one of an empty segment, in turn."""
        self._begin(ALONE)
        return self._in_turn(flush)

    def if_free(self, flush: Callable[[], None]) -> bool:
        """Run such a flush if nobody else flushes now; False: somebody does."""
        is_free = self._flusher.try_begin()
        if is_free:
            self._in_turn(flush)
        return is_free

    def _begin(self, offset: int) -> int | None:
        """Wait for the turn; None: what is wanted is durable."""
        try:
            wanted = self._flusher.begin(offset)
        except PoisonedError as error:
            # Who has met the failure may not have come to say so yet.
            self._poison.note(error)
            self._poison.check()
            raise
        if wanted is not None and self._poison.cause is not None:
            self._flusher.end(failed=False)
            self._poison.check()
        return wanted

    def _in_turn(self, flush: Callable[[], ResultT]) -> ResultT:
        failed = False
        try:
            with self._noting_failure():
                return flush()
        except StorageError:
            failed = True
            raise
        finally:
            self._flusher.end(failed=failed)

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            self._poison.note(error)
            raise
