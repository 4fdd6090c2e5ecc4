"""
Reading that waits for more: the records of a log as they come.

===========================  ======================================================================
who waits                    how
===========================  ======================================================================
a thread                     sleeps on the futex of the log's live offsets; a signal, a close and
                             the end of the writer wake it
asyncio, selectors, trio     one thread of the process sleeps on up to 127 logs at once, and tells
                             who waits for them: ``waiting.py``
a log without live offsets   is looked at every 20 to 100 ms
===========================  ======================================================================

Behind the last batch of the active segment a thread waits in C (``TailReader``), which reads what
comes and makes records of it; what is unusual in any way, from a roll to damage, goes the general
way. A wait neither takes the C append path away from the writer nor costs it more than a wake-up.

Source: Kafka ``KafkaConsumer.poll``; DESIGN.md D3.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import numbers
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from logstore._native import TailReader, ffi
from logstore.clock import SYSTEM_CLOCK
from logstore.errors import ClosedError, OffsetOutOfRangeError, StorageError
from logstore.files import HeldLease
from logstore.readable_log import Isolation
from logstore.reader import RecordIterator
from logstore.waiting import Signal, WatchedLog, watcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore._native import LivePage

ItemT_co = TypeVar("ItemT_co", covariant=True)

POLL_SECONDS: Final = 0.02  # Where the system cannot sleep on a word.
HAS_FUTEX: Final = sys.platform == "linux"
SPIN_SECONDS: Final = 0.02  # In one go: then signals and a close are looked for.
NANOSECONDS: Final = 1_000_000_000
# A signal that comes right before a sleep does not end it. Only the main thread takes signals.
SIGNAL_SECONDS: Final = 1.0
_NOTHING: Final = object()
# Of parents of this process, which use them: letting go takes locks that nobody here would free.
_inherited: Final[list[TailReader]] = []


class Follower(RecordIterator[ItemT_co], Generic[ItemT_co]):
    """
    The records of a log from one offset on, for as long as it is open.

    Iterating waits for the next record; so does ``async for``. Ends after ``timeout`` seconds
    without a record, when it is closed, and when the log is closed. After a timeout it may be gone
    on with.

    Example::

        with log.follow("earliest", timeout=5.0) as records:
            for record in records:
                print(record.offset, record.value)

    **Lifetime**: keep it in a ``with`` block, or call :meth:`close`.

    **Thread rule**: one thread, or task, at a time; :meth:`close` from any.

    **Cost**: as reading; 256 KiB of memory while it reads, none while it waits.

    Raises:
        OffsetOutOfRangeError: The records at its position were deleted, or the log was truncated
            below it; the error has the valid range.
        CorruptRecordError: At damage.
    """

    __slots__ = (
        "_event",
        "_is_over",
        "_page",
        "_patience",
        "_signal",
        "_spin",
        "_tail",
        "_timeout",
        "_watched",
    )

    def __init__(
        self,
        log: WatchedLog,
        start: int,
        isolation: Isolation,
        *,
        timeout: float | None = None,
        spin: float = 0.0,
        values_only: bool = False,
    ) -> None:
        _check_seconds("timeout", timeout)
        if spin is None:
            raise TypeError("spin is a number of seconds, not None")
        _check_seconds("spin", spin)
        self._watched = log
        self._timeout = timeout
        self._patience = timeout
        self._spin = spin
        self._is_over = False
        self._event = threading.Event()
        self._page: LivePage | None = None  # The last one it slept on: the log may be closed since.
        self._signal: Signal | None = None
        self._tail: TailReader | None = None  # It begins where the walk is.
        super().__init__(log, start, None, isolation, values_only=values_only)

    # -- where it is -------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The offset of the next record, or where it will be looked for."""
        return self.next_offset

    @property
    def lag(self) -> int:
        """How many offsets are readable and not taken yet."""
        return max(0, self._log.reading_end(self._walk.isolation) - self.position)

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_over

    def __repr__(self) -> str:
        state = " closed" if self._is_over else ""
        return f"<{type(self).__name__} position={self.position}{state}>"

    # -- blocks ------------------------------------------------------------------------------------

    def _next_block(self) -> list[Any] | None:
        patience = self._patience
        deadline = None if patience is None else SYSTEM_CLOCK.monotonic() + patience
        while not self._is_over:
            tail = self._tail
            try:
                block = self._block_at_hand() if tail is None else self._tail_block(tail, 0, 0)
            except ClosedError:
                if self._watched.is_closed:
                    return None
                raise
            if block is not None:
                return block
            seconds = self._watched.wait_seconds
            if deadline is not None:
                rest = deadline - SYSTEM_CLOCK.monotonic()
                if rest <= 0 and tail is None:
                    return None
                seconds = min(seconds, rest)
            tail = tail or self._new_tail()
            if tail is None:
                self._sleep(seconds)
                continue
            if threading.current_thread() is threading.main_thread():
                seconds = min(seconds, SIGNAL_SECONDS)
            block = self._tail_block(tail, min(self._spin, seconds), seconds)
            if block is not None:
                return block
            self._tail = None  # Look in the general way.
        return None

    def _block_at_hand(self) -> list[Any] | None:
        """Return a block if there is one now."""
        log = self._watched
        while True:
            end = log.reading_end(self._walk.isolation)
            walk = self._walk
            if end <= walk.next_offset and self._truncations == log.truncations:
                self._check_start()
                return None
            self._check_start()
            self._has_begun = True
            if end != walk.stop:
                walk.stop = end  # It is where it is now.
                walk.aborted = None  # Transactions were decided since.
            is_rolled = walk.segments and walk.segments[0] is not log.active_segment
            if is_rolled or walk.is_at_last_end:
                walk.relocate()
            block = super()._next_block()
            if block:
                return block
            # Only batches without records, or a truncation: look again.

    # -- the general way, but in C -----------------------------------------------------------------

    def _new_tail(self) -> TailReader | None:
        """Return what waits and reads in C from here on; None: only the general way will do."""
        log, walk = self._watched, self._walk
        page = log.live_page
        if page is None or not HAS_FUTEX or self._values_only:
            return None
        shown = page.load()
        if (
            shown is None
            or not shown.is_open
            or shown.truncation_count % 2
            or (shown.high_watermark >= 0 and walk.isolation != "log_end")
            or (shown.first_unstable_offset >= 0 and walk.isolation == "read_committed")
            or walk.handle is None
            or walk.resume != (0, 0)
            or self._section is not None
        ):
            return None
        try:
            # Now the log is as it is shown, or as it was later: files and marks are the same
            # unless the page has moved on, which C will see.
            end = log.reading_end("log_end")
            if (
                shown.log_end_offset > end
                or self._truncations != log.truncations
                or log.live_page is not page
                or walk.segments != [log.active_segment]
                or walk.handle is not walk.segments[-1].handle
                or shown.active_base_offset != walk.segments[-1].base_offset
            ):
                return None
            lease = HeldLease(walk.handle)
        except (ClosedError, StorageError):
            return None
        walk.let_go()
        tail = TailReader(
            (page, lease),
            page.address,
            shown.change_count,
            int(ffi.cast("uintptr_t", lease.files.io)),
            lease.fd,
            walk.isolation != "read_committed",
            walk.origin,
            walk.next_offset,
            walk.base_offset_min,
        )
        self._page = page
        self._tail = tail
        if self._is_over or log.is_closed:
            tail.stop()  # Whoever closes did not know of it.
        return tail

    def _tail_block(
        self, tail: TailReader, spin_seconds: float, seconds: float
    ) -> list[Any] | None:
        """Return what comes within some seconds, if C can read it."""
        block = tail.next(int(spin_seconds * NANOSECONDS), int(seconds * NANOSECONDS))
        if block is not None:
            walk = self._walk
            self._block_first = walk.next_offset
            walk.next_offset = tail.next_offset
            walk.base_offset_min = tail.base_offset_min
            walk.origin = tail.position
        return block

    def relocate(self) -> None:
        """Forget the files, in a forked child."""
        tail, self._tail = self._tail, None
        if tail is not None:
            _inherited.append(tail)
        super().relocate()

    def _check_start(self) -> None:
        first, offset = self._log.log_start_offset, self._walk.next_offset
        if offset < first:
            raise OffsetOutOfRangeError(
                f"offset {offset} is below the log start {first}: the records were deleted"
                f" before they were read; follow from {first}",
                log_start_offset=first,
                log_end_offset=self._log.reading_end(self._walk.isolation),
                offset=offset,
            )

    def has_news(self) -> bool:
        """Whether the next step has something to do other than to wait."""
        if self._is_over or self._watched.is_closed or self.has_items:
            return True
        log = self._watched
        return (
            log.reading_end(self._walk.isolation) > self._walk.next_offset
            or self._truncations != log.truncations
            or self._walk.next_offset < log.log_start_offset
        )

    @property
    def page(self) -> LivePage | None:
        """What shows the moves of the log."""
        return self._watched.live_page

    @property
    def wait_seconds(self) -> float:
        """How long a wait for them may sleep."""
        return self._watched.wait_seconds

    @property
    def has_items(self) -> bool:
        """Whether an item can be taken at once."""
        block = self._block
        return block is not None and self._index < len(block)

    # -- a thread waits ----------------------------------------------------------------------------

    def _sleep(self, seconds: float) -> None:
        """Return after a move of the log, or a time; too early is no harm."""
        page = self._page = self._watched.live_page
        if page is None:
            self._event.wait(seconds)
            return
        if threading.current_thread() is threading.main_thread():
            seconds = min(seconds, SIGNAL_SECONDS)
        if self._spin > 0 and self._spin_until_news(page, min(seconds, self._spin)):
            return
        word = page.prepare()
        if self.has_news() or self._watched.live_page is not page:
            return
        if not page.wait(word, seconds):
            self._event.wait(min(seconds, POLL_SECONDS))

    def _spin_until_news(self, page: LivePage, seconds: float) -> bool:
        until = SYSTEM_CLOCK.monotonic() + seconds
        while seconds > 0:
            end, changes = page.log_end_offset, page.change_count
            if self.has_news() or page.spin(end, changes, min(seconds, SPIN_SECONDS)):
                return True
            seconds = until - SYSTEM_CLOCK.monotonic()
        return False

    def _wake(self) -> None:
        self._event.set()
        tail = self._tail
        if tail is not None:
            tail.stop()
        for page in (self._page, self._watched.live_page):
            if page is not None:
                page.poke()
        watcher().look()

    def discard(self) -> None:
        """Drop what was made but not taken, and stop waiting: the log was closed."""
        super().discard()
        self._wake()

    def close(self) -> None:
        """End the iteration, also one that waits in another thread; a second call does nothing."""
        if self._is_over:
            return
        self._is_over = True
        self._discard()
        self._wake()
        signal, self._signal = self._signal, None
        if signal is not None:
            watcher().disarm(self)
            signal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.close()

    # -- many at once ------------------------------------------------------------------------------

    def batch(self, max_records: int | None = None, timeout: float | None = None) -> list[ItemT_co]:
        """
        Return the records at hand, waiting for the first one.

        Args:
            max_records: As many at most; None: what one read gives.
            timeout: Seconds to wait; None: as long as the follower does. 0 does not wait.

        Returns:
            An empty list after the timeout, or at the end.
        """
        _check_count(max_records)
        _check_seconds("timeout", timeout)
        if max_records == 0:
            return []
        first = self._next_item(self._timeout if timeout is None else timeout)
        if first is _NOTHING:
            self._note_emptiness()
            return []
        block = self._block
        rest = 0 if block is None else len(block) - self._index
        if max_records is not None:
            rest = min(rest, max_records - 1)
        return [first, *itertools.islice(self, rest)] if rest else [first]

    def _next_item(self, patience: float | None) -> Any:
        """Return the next item, or _NOTHING after some seconds, or at the end."""
        if self.has_items:
            return next(self)
        before, self._patience = self._patience, patience
        try:
            return next(self, _NOTHING)
        finally:
            self._patience = before

    # -- somebody else waits -----------------------------------------------------------------------

    def fileno(self) -> int:
        """
        Return a descriptor that is readable when :meth:`batch` has something to do, for selectors.

        After it became readable, take batches with ``timeout=0`` until one is empty.
        """
        if self._is_over:
            raise ClosedError("the follower is closed; follow the log again")
        if self._signal is None:
            self._signal = Signal()
            self._note_emptiness()
        return self._signal.fileno()

    def _note_emptiness(self) -> None:
        """Have the descriptor become readable again at the next move."""
        signal = self._signal
        if signal is not None:
            signal.clear()
            watcher().arm(self, signal.set)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ItemT_co:
        if self.has_items:
            return next(self)
        item = await self._next_item_later(self._timeout)
        if item is _NOTHING:
            raise StopAsyncIteration
        return item  # type: ignore[no-any-return]

    async def batch_later(
        self,
        max_records: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the same signature
    ) -> list[ItemT_co]:
        """Return what :meth:`batch` does, without holding up the event loop meanwhile."""
        _check_count(max_records)
        _check_seconds("timeout", timeout)
        if not self.has_items and max_records != 0:
            await self._wait_later(self._timeout if timeout is None else timeout)
        return self.batch(max_records, timeout=0)

    async def _next_item_later(self, patience: float | None) -> Any:
        deadline = None if patience is None else SYSTEM_CLOCK.monotonic() + patience
        while True:
            rest = None if deadline is None else deadline - SYSTEM_CLOCK.monotonic()
            has_news = await self._wait_later(rest)
            item = self._next_item(0)
            if item is not _NOTHING or not has_news or self._is_over or self._watched.is_closed:
                return item

    async def _spin_later(self, patience: float | None) -> bool:
        """Look in each turn of the loop for a time; return whether there is news."""
        seconds = self._spin if patience is None else min(self._spin, patience)
        until = SYSTEM_CLOCK.monotonic() + seconds
        while SYSTEM_CLOCK.monotonic() < until:
            await asyncio.sleep(0)
            if self.has_news():
                return True
        return False

    async def _wait_later(self, patience: float | None) -> bool:
        """Return True when there is news, False after some seconds. May be cancelled any time."""
        if self.has_news():
            await asyncio.sleep(0)  # In a backlog, too, others have a turn, and a cancellation.
            return True
        if patience is not None and patience <= 0:
            return False
        if self._spin > 0 and await self._spin_later(patience):
            return True
        loop = asyncio.get_running_loop()
        news: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # The loop was closed.
                loop.call_soon_threadsafe(_set_result, news)

        disarm: Callable[[], None] = watcher().arm(self, tell)
        try:
            await asyncio.wait_for(news, patience)
        except TimeoutError:
            return False
        finally:
            disarm()
        return True


def _check_seconds(name: str, seconds: Any) -> None:
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float, numbers.Real)):
        raise TypeError(f"{name} is a number of seconds, not {seconds!r}")
    if not float(seconds) >= 0:  # Nor is NaN.
        raise ValueError(f"{name} {seconds} is not a time; give seconds, 0 or more")


def _check_count(max_records: Any) -> None:
    if max_records is None:
        return
    if isinstance(max_records, bool) or not isinstance(max_records, int):
        raise TypeError(f"max_records is a number of records, not {max_records!r}")
    if max_records < 0:
        raise ValueError(f"max_records {max_records} is negative; give how many, or None")


def _set_result(news: asyncio.Future[None]) -> None:
    if not news.done():
        news.set_result(None)
