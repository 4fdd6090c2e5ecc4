"""
Logs for asyncio: the method names of :class:`~logstore.Log`, awaited.

What is short is done at once, in the event loop's thread: single appends, what was read ahead. What
reads files, appends much or waits for the device is done in a thread of the loop's executor.

Example::

    async with await logstore.aio.open("data/orders-0") as log:
        offset = await log.append(b"value", key=b"k")
        async for record in log.follow("earliest"):
            print(record.offset, record.value)
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from logstore._native import Buffer, Record
from logstore.config import LogConfig
from logstore.follow import Follower
from logstore.given_records import Headers
from logstore.log import Log
from logstore.opening import Mode
from logstore.opening import open as open_log
from logstore.readable_log import Isolation, Start
from logstore.reader import OnCorrupt, RecordIterator

if TYPE_CHECKING:
    from logstore.arrow import Scan
    from logstore.cleaner_stats import CleanerStats
    from logstore.damage import SkippedRange
    from logstore.file_records import FetchDataInfo, LogOffsetMetadata
    from logstore.segment import TimestampAndOffset
    from logstore.validator import LogAppendInfo
    from logstore.watermarks import HighWatermarkMode, LogOffsets

__all__ = ["AsyncFollower", "AsyncLog", "AsyncRecords", "open"]

ItemT = TypeVar("ItemT")

_END: Final = object()
_in_thread = asyncio.to_thread


async def open(
    path: str | os.PathLike[str],
    mode: Mode = "a",
    *,
    config: LogConfig | Mapping[str, object] | None = None,
    high_watermark: HighWatermarkMode = "log_end",
    lock_timeout: float = 0.0,
) -> AsyncLog:
    """
    Open one partition log; arguments and errors are those of :func:`logstore.open`.

    If this is cancelled, the log is closed as soon as it is open.
    """
    opening = asyncio.get_running_loop().run_in_executor(
        None,
        functools.partial(
            open_log,
            path,
            mode,
            config=config,
            high_watermark=high_watermark,
            lock_timeout=lock_timeout,
        ),
    )
    try:
        await asyncio.wait([opening])
    except asyncio.CancelledError:
        opening.add_done_callback(_close_unwanted)
        raise
    return AsyncLog(opening.result())


def _close_unwanted(opening: asyncio.Future[Log]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


class AsyncLog:
    """
    A log whose methods are awaited; see :class:`~logstore.Log` for what each does.

    Attributes:
        log: The log itself, for what has no counterpart here.

    **Durability** and errors: as there. A cancelled append may be done all the same.

    **Thread rule**: any task, of any loop.
    """

    def __init__(self, log: Log) -> None:
        self.log: Final = log

    # -- append ------------------------------------------------------------------------------------

    async def append(
        self,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: Headers = (),
        timestamp: int | datetime | None = None,
        sync: bool = False,
    ) -> int:
        """Append one record and return its offset; with ``sync``, once it is on the device."""
        offset = self.log.append(value, key=key, headers=headers, timestamp=timestamp)
        if sync:
            await _in_thread(self.log.make_durable, offset + 1)
        return offset

    async def extend(self, values: Iterable[Buffer | None], **options: Any) -> range:
        """Append many records and return their offsets."""
        return await _in_thread(self.log.extend, values, **options)

    async def extend_arrow(self, data: Any, **options: Any) -> range:
        """Append the rows of Arrow data and return their offsets."""
        return await _in_thread(self.log.extend_arrow, data, **options)

    async def append_batches(self, batches: Buffer, **options: Any) -> LogAppendInfo:
        """Append encoded batches, all or nothing."""
        return await _in_thread(self.log.append_batches, batches, **options)

    async def flush(self, offset: int | None = None, *, force: bool = False) -> None:
        """Return when everything below ``offset``, or all of it, is on the device."""
        await _in_thread(self.log.flush, offset, force=force)

    # -- read --------------------------------------------------------------------------------------

    def read(
        self,
        start: Start = "earliest",
        stop: int | datetime | None = None,
        *,
        isolation: Isolation = "read_committed",
        limit: int | None = None,
        on_corrupt: OnCorrupt = "raise",
    ) -> AsyncRecords[Record]:
        """Return an asynchronous iterator over the records from ``start`` up to ``stop``."""
        return AsyncRecords(
            lambda: self.log.read(
                start, stop, isolation=isolation, limit=limit, on_corrupt=on_corrupt
            )
        )

    def read_values(
        self,
        start: Start = "earliest",
        stop: int | datetime | None = None,
        *,
        isolation: Isolation = "read_committed",
        limit: int | None = None,
        on_corrupt: OnCorrupt = "raise",
    ) -> AsyncRecords[bytes | None]:
        """Return an asynchronous iterator over the values alone."""
        return AsyncRecords(
            lambda: self.log.read_values(
                start, stop, isolation=isolation, limit=limit, on_corrupt=on_corrupt
            )
        )

    def scan(
        self, start: Start = "earliest", stop: int | datetime | None = None, **options: Any
    ) -> Scan:
        """
        Return a range of the log as Arrow data, lazily; see :meth:`Log.scan`.

        It is read by whoever takes it: ``await asyncio.to_thread(scan.to_table)``.
        """
        return self.log.scan(start, stop, **options)

    def follow(
        self,
        start: Start = "latest",
        *,
        timeout: float | None = None,
        isolation: Isolation = "read_committed",
        spin: float = 0.0,
    ) -> AsyncFollower[Record]:
        """
        Return an asynchronous iterator from ``start`` on that waits for more records.

        ``spin``: for so many seconds it looks in each turn of the loop before it sleeps.
        """
        return AsyncFollower(
            self.log.follow(start, timeout=timeout, isolation=isolation, spin=spin)
        )

    def __aiter__(self) -> AsyncRecords[Record]:
        return self.read()

    def __getitem__(self, offset: int) -> Awaitable[Record]:
        """Return the record at an offset: ``await log[offset]``."""
        return _in_thread(self.log.__getitem__, offset)

    async def first(self) -> Record | None:
        """Return the first readable record, None if there is none."""
        return await _in_thread(self.log.first)

    async def last(self) -> Record | None:
        """Return the last readable record, None if there is none."""
        return await _in_thread(self.log.last)

    async def fetch(self, start: int, *, max_bytes: int, **options: Any) -> FetchDataInfo:
        """Return the range of the log that begins with the batch of ``start``."""
        return await _in_thread(self.log.fetch, start, max_bytes=max_bytes, **options)

    async def offset_at(self, when: int | datetime) -> TimestampAndOffset | None:
        """Return the first record whose timestamp is at or after a time."""
        return await _in_thread(self.log.offset_at, when)

    async def max_timestamp(self) -> TimestampAndOffset | None:
        """Return the first record that has the largest timestamp."""
        return await _in_thread(self.log.max_timestamp)

    async def offset_metadata(self, offset: int) -> LogOffsetMetadata:
        """Return where an offset is; with positions -1 if it is not in the log."""
        return await _in_thread(self.log.offset_metadata, offset)

    async def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int] | None:
        """Return (epoch, end offset) of the largest epoch <= ``leader_epoch``, None if unknown."""
        return await _in_thread(self.log.end_offset_for_epoch, leader_epoch)

    # -- what is known at once ---------------------------------------------------------------------

    @property
    def offsets(self) -> LogOffsets:
        """The five offsets of one moment."""
        return self.log.offsets

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """What the next record gets."""
        return self.log.log_end_offset

    @property
    def high_watermark(self) -> int:
        """Below it everything is replicated."""
        return self.log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided."""
        return self.log.last_stable_offset

    @property
    def recovery_point(self) -> int:
        """Below it everything is on the device."""
        return self.log.recovery_point

    @property
    def size_bytes(self) -> int:
        """The size of all segments."""
        return self.log.size_bytes

    @property
    def config(self) -> LogConfig:
        """The settings in force."""
        return self.log.config

    @property
    def directory(self) -> str:
        """The log's directory."""
        return self.log.directory

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.log.name

    @property
    def is_closed(self) -> bool:
        """Whether the log was closed."""
        return self.log.is_closed

    @property
    def is_read_only(self) -> bool:
        """Whether it was opened with mode ``"r"``."""
        return self.log.is_read_only

    # -- change and close --------------------------------------------------------------------------

    async def update_config(self, config: LogConfig | Mapping[str, object]) -> None:
        """Put other settings in force; those of a segment count from the next one on."""
        await _in_thread(self.log.update_config, config)

    async def compact(self, **options: Any) -> CleanerStats:
        """Remove every record whose key has a later one; see :meth:`Log.compact`."""
        return await _in_thread(self.log.compact, **options)

    async def roll(self) -> None:
        """Begin a new segment."""
        await _in_thread(self.log.roll)

    async def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Give up the records below an offset; return whether there were any."""
        return await _in_thread(self.log.maybe_increment_log_start_offset, offset)

    async def truncate_fully_and_start_at(
        self, new_offset: int, log_start_offset: int | None = None
    ) -> None:
        """Remove everything; the next record gets ``new_offset``."""
        await _in_thread(self.log.truncate_fully_and_start_at, new_offset, log_start_offset)

    async def rename(self, name: str) -> None:
        """Give the directory another name beside its old one; durable on return."""
        await _in_thread(self.log.rename, name)

    async def delete(self) -> None:
        """Close the log and delete its directory."""
        await _in_thread(self.log.delete)

    async def truncate_to(self, target_offset: int) -> bool:
        """Remove everything from ``target_offset`` on; return whether the log had any of it."""
        return await _in_thread(self.log.truncate_to, target_offset)

    async def delete_old_segments(self) -> int:
        """Delete segments that the log start or retention let go; return how many."""
        return await _in_thread(self.log.delete_old_segments)

    async def close(self) -> None:
        """Flush everything and close the log; a second call does nothing."""
        await _in_thread(self.log.close)

    def __repr__(self) -> str:
        return f"<AsyncLog {self.log!r}>"

    async def __aenter__(self) -> Self:
        self.log.check_open()
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        await _in_thread(self.log.__exit__, kind, error, traceback)


class AsyncRecords(Generic[ItemT]):
    """
    The records, or values, of a bounded read, a block at a time from a thread.

    A cancelled step loses nothing: the next one gives what the thread has read meanwhile.

    **Thread rule**: one task at a time.
    """

    def __init__(self, read: Callable[[], RecordIterator[ItemT]]) -> None:
        self._read = read
        self._records: RecordIterator[ItemT] | None = None
        self._step: asyncio.Future[Any] | None = None  # In a thread, or what it gave, not taken.
        self._step_offset = 0  # Where that began.

    @property
    def next_offset(self) -> int | None:
        """Where to read on; None before the first item."""
        if self._step is not None:
            return self._step_offset
        return None if self._records is None else self._records.next_offset

    @property
    def skipped(self) -> list[SkippedRange]:
        """What ``on_corrupt="skip"`` has left out so far."""
        return [] if self._records is None else self._records.skipped

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ItemT:
        records = self._records
        if records is None:
            records = self._records = await _in_thread(self._read)
        step = self._step
        if step is None:
            block = records._block
            if block is not None and records._index < len(block):
                return next(records)
            self._step_offset = records.next_offset
            loop = asyncio.get_running_loop()
            step = self._step = loop.run_in_executor(None, next, records, _END)
        await asyncio.wait([step])  # If this is cancelled, the thread goes on all the same.
        self._step = None
        item = step.result()
        if item is _END:
            raise StopAsyncIteration
        return item  # type: ignore[no-any-return]


class AsyncFollower(Generic[ItemT]):
    """
    A follower for asyncio; see :class:`~logstore.follow.Follower`.

    **Thread rule**: one task at a time; :meth:`close` from any.
    """

    def __init__(self, follower: Follower[ItemT]) -> None:
        self._follower = follower

    @property
    def position(self) -> int:
        """The offset of the next record, or where it will be looked for."""
        return self._follower.position

    @property
    def lag(self) -> int:
        """How many offsets are readable and not taken yet."""
        return self._follower.lag

    def __aiter__(self) -> Follower[ItemT]:
        return self._follower

    async def __anext__(self) -> ItemT:
        return await self._follower.__anext__()

    async def batch(
        self,
        max_records: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the same signature
    ) -> list[ItemT]:
        """Return the records at hand, waiting for the first one; empty after the timeout."""
        return await self._follower.batch_later(max_records, timeout)

    def close(self) -> None:
        """End the iteration."""
        self._follower.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        self.close()
