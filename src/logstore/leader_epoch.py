"""
Leader epochs: which leader wrote which offsets, so that replicas find where their logs diverge.

Each epoch has the offset of its first record; it ends where the next one begins. Epochs and start
offsets both increase.

Source: Kafka ``LeaderEpochFileCache``; KIP-101, KIP-279; spec 5.10.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Final

from logstore.checkpoint import EpochEntry, LeaderEpochCheckpointFile
from logstore.errors import CorruptCheckpointError
from logstore.scheduler import Scheduler

__all__ = [
    "LEADER_EPOCH_MAX",
    "UNDEFINED_EPOCH",
    "UNDEFINED_EPOCH_OFFSET",
    "EpochEntry",
    "LeaderEpochCache",
]

UNDEFINED_EPOCH: Final = -1
UNDEFINED_EPOCH_OFFSET: Final = -1
LEADER_EPOCH_MAX: Final = 2**31 - 1

_logger: Final = logging.getLogger(__name__)


def _epoch_of(entry: EpochEntry) -> int:
    return entry.epoch


def _start_of(entry: EpochEntry) -> int:
    return entry.start_offset


class LeaderEpochCache:
    """
    The leader epochs of one log, kept in ``leader-epoch-checkpoint``.

    **Durability**: an assigned epoch is on disk on return. A truncation is written soon after, in
    the background: what a crash leaves behind, the next load cuts off again.

    **Thread rule**: any thread may call anything; readers see a consistent moment, without a lock.

    A checkpoint that cannot be read counts as empty (DESIGN.md D8): :attr:`problem` says why, and
    the log's own batches can tell the epochs again.

    Args:
        checkpoint: The file.
        scheduler: Runs the writes after truncations.
        name: For the scheduler's task, such as ``orders-0``.

    Attributes:
        problem: What was wrong with the checkpoint, or None.

    Source: Kafka ``LeaderEpochFileCache``.
    """

    __slots__ = (
        "_checkpoint",
        "_deferring",
        "_entries",
        "_file_lock",
        "_is_dirty",
        "_lock",
        "_name",
        "_scheduler",
        "problem",
    )

    def __init__(
        self, checkpoint: LeaderEpochCheckpointFile, scheduler: Scheduler, name: str = ""
    ) -> None:
        self._checkpoint = checkpoint
        self._scheduler = scheduler
        self._name = name
        self._lock = threading.Lock()
        self._file_lock = threading.RLock()  # Taken before _lock.
        self._deferring = 0
        self._is_dirty = False
        self._entries: tuple[EpochEntry, ...] = ()  # Replaced as a whole.
        self.problem: CorruptCheckpointError | None = None
        try:
            entries = checkpoint.read()
        except CorruptCheckpointError as error:
            _logger.warning("%s", error)
            self.problem = error
            entries = []
        known: list[EpochEntry] = []
        for entry in entries:
            _assign(known, entry)
        self._entries = tuple(known)

    def __repr__(self) -> str:
        return f"LeaderEpochCache({self._checkpoint.path!r}, {list(self._entries)})"

    # -- changes -----------------------------------------------------------------------------------

    def assign(self, epoch: int, start_offset: int) -> None:
        """
        Note that ``epoch`` begins at ``start_offset``, unless that is known already.

        Entries that the new one contradicts are removed: those of the same or a later epoch, and
        those that start at or behind the offset.

        Raises:
            ValueError: Epoch or offset is negative, or the epoch above ``LEADER_EPOCH_MAX``.
            StorageError: The entry is known from now on, but not on disk.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"epoch {epoch} and start offset {start_offset} must not be negative")
        if epoch > LEADER_EPOCH_MAX:
            raise ValueError(f"epoch {epoch} must be at most {LEADER_EPOCH_MAX}")
        with self._lock:
            entries = list(self._entries)
            if not _assign(entries, EpochEntry(epoch, start_offset)):
                return
            self._entries = tuple(entries)
        self._is_dirty = True
        if not self._deferring:
            self.flush()

    def truncate_from_end(self, end_offset: int) -> None:
        """
        Remove every epoch that starts at or behind ``end_offset``; written in the background.

        Source: Kafka ``truncateFromEndAsyncFlush``.
        """
        with self._lock:
            kept = _kept_from_end(self._entries, end_offset)
            if len(kept) == len(self._entries):
                return
            self._entries = kept
        self._flush_later()

    def truncate_from_start(self, start_offset: int) -> None:
        """
        Remove the epochs that end at or before ``start_offset``; written in the background.

        The epoch that covers the offset stays and now starts there.

        Source: Kafka ``truncateFromStartAsyncFlush``.
        """
        with self._lock:
            kept = _kept_from_start(self._entries, start_offset)
            if kept == self._entries:
                return  # As when a log is opened, as a rule.
            self._entries = kept
        self._flush_later()

    def clear_and_flush(self) -> None:
        """Remove every entry, durably."""
        with self._lock:
            self._entries = ()
        self._is_dirty = True
        self.flush()

    def clear(self) -> None:
        """Remove every entry; the file stays as it is, it goes with its directory."""
        with self._lock:
            self._entries = ()
        self._is_dirty = False

    # -- the file ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write the entries if they have changed since the last write; durable on return."""
        self._write(self._checkpoint.write)

    def _flush_later(self) -> None:
        self._is_dirty = True
        if not self._deferring:
            self._scheduler.schedule(
                f"leader-epoch-cache-flush-{self._name}", self._flush_truncation
            )

    def _flush_truncation(self) -> None:
        self._write(self._checkpoint.write_for_truncation)

    def _write(self, write: Callable[[tuple[EpochEntry, ...]], None]) -> None:
        with self._file_lock:
            if not self._is_dirty:
                return
            self._is_dirty = False
            try:
                write(self._entries)
            except BaseException:
                self._is_dirty = True
                raise

    @contextlib.contextmanager
    def one_write(self) -> Iterator[None]:
        """
        Write the file once at the end of the block, whatever happens in it: for recovery.

        Without it a log with many epochs is recovered in quadratic time.
        """
        with self._file_lock:
            self._deferring += 1
        try:
            yield
        finally:
            with self._file_lock:
                self._deferring -= 1
            if not self._deferring:
                self.flush()

    def with_checkpoint(self, checkpoint: LeaderEpochCheckpointFile) -> LeaderEpochCache:
        """Return a cache with the same entries over another file, which is not written yet."""
        other = LeaderEpochCache.__new__(LeaderEpochCache)
        other._checkpoint = checkpoint
        other._scheduler = self._scheduler
        other._name = self._name
        other._lock = threading.Lock()
        other._file_lock = threading.RLock()
        other._deferring = 0
        other._is_dirty = True
        other._entries = self._entries
        other.problem = None
        return other

    def update_path(self, path: str) -> None:
        """Learn that the file has another name now."""
        self._checkpoint.update_path(path)

    # -- questions ---------------------------------------------------------------------------------

    @property
    def epoch_entries(self) -> tuple[EpochEntry, ...]:
        """All entries, ascending."""
        return self._entries

    @property
    def is_empty(self) -> bool:
        """Whether no epoch is known."""
        return not self._entries

    @property
    def earliest_entry(self) -> EpochEntry | None:
        """The first entry."""
        entries = self._entries
        return entries[0] if entries else None

    @property
    def latest_entry(self) -> EpochEntry | None:
        """The last entry."""
        entries = self._entries
        return entries[-1] if entries else None

    @property
    def latest_epoch(self) -> int | None:
        """The last epoch."""
        entries = self._entries
        return entries[-1].epoch if entries else None

    def epoch_entry(self, epoch: int) -> EpochEntry | None:
        """Return the entry of exactly this epoch."""
        entries = self._entries
        slot = bisect_left(entries, epoch, key=_epoch_of)
        return entries[slot] if slot < len(entries) and entries[slot].epoch == epoch else None

    def previous_epoch(self, epoch: int | None = None) -> int | None:
        """Return the epoch before ``epoch``, or before the latest one."""
        entries = self._entries
        if epoch is None:
            return entries[-2].epoch if len(entries) > 1 else None
        slot = bisect_left(entries, epoch, key=_epoch_of)
        return entries[slot - 1].epoch if slot else None

    def next_epoch(self, epoch: int) -> int | None:
        """Return the first epoch after ``epoch``."""
        entries = self._entries
        slot = bisect_right(entries, epoch, key=_epoch_of)
        return entries[slot].epoch if slot < len(entries) else None

    def end_offset_for(self, requested_epoch: int, log_end_offset: int) -> tuple[int, int]:
        """
        Return the largest epoch <= the requested one, and the offset where it ends.

        ========================================  ====================================
        requested epoch                           answer
        ========================================  ====================================
        -1, or above every known epoch            (-1, -1)
        the latest one                            (it, ``log_end_offset``)
        below every known epoch                   (it, start of the first epoch)
        else                                      (floor epoch, start of the next one)
        ========================================  ====================================

        Source: Kafka ``endOffsetFor``, KIP-279.
        """
        entries = self._entries
        if requested_epoch == UNDEFINED_EPOCH:
            return UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
        if entries and entries[-1].epoch == requested_epoch:
            return requested_epoch, log_end_offset
        slot = bisect_right(entries, requested_epoch, key=_epoch_of)
        if slot == len(entries):
            return UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
        if slot == 0:
            return requested_epoch, entries[0].start_offset
        return entries[slot - 1].epoch, entries[slot].start_offset

    def epoch_for_offset(self, offset: int) -> int | None:
        """Return the epoch that covers an offset, None before the first one."""
        entries = self._entries
        slot = bisect_right(entries, offset, key=_start_of)
        return entries[slot - 1].epoch if slot else None

    def epoch_entries_in_range(self, start_offset: int, end_offset: int) -> list[EpochEntry]:
        """
        Return the entries of ``[start_offset, end_offset)``; the first one starts there.

        A negative start or end means no limit.

        Source: Kafka ``epochEntriesInRange``.
        """
        entries = self._entries
        if start_offset >= 0:
            entries = _kept_from_start(entries, start_offset)
        return list(_kept_from_end(entries, end_offset))


def _assign(entries: list[EpochEntry], entry: EpochEntry) -> bool:
    """Put an entry at the end, removing what it contradicts; False if it says nothing new."""
    if entries:
        latest = entries[-1]
        if entry.epoch == latest.epoch and entry.start_offset >= latest.start_offset:
            return False
    removed = []
    while entries and (
        entries[-1].epoch >= entry.epoch or entries[-1].start_offset >= entry.start_offset
    ):
        removed.append(entries.pop())
    if len(removed) > 1 or (removed and removed[0].start_offset != entry.start_offset):
        _logger.warning("%s contradicts %s, which are removed", entry, removed)
    entries.append(entry)
    return True


def _kept_from_end(entries: tuple[EpochEntry, ...], end_offset: int) -> tuple[EpochEntry, ...]:
    if end_offset < 0:
        return entries
    return entries[: bisect_left(entries, end_offset, key=_start_of)]


def _kept_from_start(entries: tuple[EpochEntry, ...], start_offset: int) -> tuple[EpochEntry, ...]:
    """Return the entries from an offset on; the one that covers it starts there."""
    kept = bisect_right(entries, start_offset, key=_start_of)
    if kept == 0:
        return entries
    return (EpochEntry(entries[kept - 1].epoch, start_offset), *entries[kept:])
