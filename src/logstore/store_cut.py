"""
A store at one moment: where each of its partitions ends, and what else belongs to that moment.

To look at all of them at once, all of them are held for as long as it takes to note a few numbers
of each: nobody appends, truncates or deletes meanwhile. No file is touched.

No thread waits for a log while it holds another one here: somebody who holds that may be waiting
for this. Who has to wait lets go of all, waits for that log alone, and begins again with it.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from logstore.checkpoint import EpochEntry, TopicPartition
from logstore.errors import StorageError
from logstore.log import Log
from logstore.segment import LogSegment

PATIENCE_SECONDS: Final = 0.02  # Of who holds other logs, for one that is in use.


@dataclass(frozen=True, slots=True)
class PartitionCut:
    """
    One partition at the moment.

    Attributes:
        topic_partition: Its name.
        log: Its log.
        directory: Where it is.
        truncations: How often it had been truncated.
        segments: Its segments, oldest first; all but the last one are sealed.
        active_bytes: Where the last one ended.
    """

    topic_partition: TopicPartition
    log: Log
    directory: str
    truncations: int
    segments: tuple[LogSegment, ...]
    active_bytes: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    cleaner_offset: int | None
    epochs: tuple[EpochEntry, ...]
    topic_id: str | None

    @property
    def active(self) -> LogSegment:
        """The segment that was written."""
        return self.segments[-1]

    def is_undisturbed(self) -> bool:
        """
        Whether the files are still what they were; the log's lock is held.

        What was appended since is behind them, and a segment that was sealed since is the same.
        """
        log = self.log
        present = {id(each) for each in log.segments}
        return (
            not log.is_closed and log.truncations == self.truncations and id(self.active) in present
        )


@contextlib.contextmanager
def standing_still(logs: Sequence[Log]) -> Iterator[None]:
    """
    Let nobody change any of the logs in this block; it should be short.

    Raises:
        StorageError: The caller is code that an append to one of them runs.
        ClosedError: One of them was closed.
        PoisonedError: An fsync of one of them has failed.
    """
    first = 0
    while True:
        with contextlib.ExitStack() as held:
            order = [*range(first, len(logs)), *range(first)]
            busy = next(
                (at for at in order if not _hold(logs[at], held, is_first=at == first)), None
            )
            if busy is None:
                yield
                return
        first = busy


def _hold(log: Log, held: contextlib.ExitStack, *, is_first: bool) -> bool:
    """Keep everybody out of a log; False: somebody is in, and the caller holds others."""
    if not log._lock.acquire(timeout=-1 if is_first else PATIENCE_SECONDS):
        return False
    held.callback(log._lock.release)
    if log._depth > 0:
        raise StorageError(
            "an append to the log runs the code that wants to hold it; do so afterwards",
            errno.EDEADLK,
            path=log.directory,
        )
    log.check_writable()
    deadline = log.clock.monotonic() + PATIENCE_SECONDS
    while not log.writer.try_enter_exclusive():
        if log.clock.monotonic() >= deadline:
            return False
        log.clock.sleep(0.0001)
    held.callback(log.writer.leave_exclusive)
    return True


def cut_of(topic_partition: TopicPartition, log: Log) -> PartitionCut:
    """Return where a log is; it stands still."""
    offsets = log.offsets
    active = log.active_segment
    return PartitionCut(
        topic_partition,
        log,
        log.directory,
        log.truncations,
        log.segments,
        active.size_bytes,
        offsets.log_start_offset,
        offsets.log_end_offset,
        offsets.high_watermark,
        log.cleaner_offset,
        log.leader_epochs.epoch_entries,
        log.topic_id,
    )
