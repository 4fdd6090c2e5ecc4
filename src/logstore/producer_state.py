"""
Producer state: what a log knows of its idempotent and transactional producers.

For each producer the last batches, so that a repeated one is answered and not written again, and a
lost one is noticed. For the log the open transactions, and those that a marker has ended above the
high watermark: the first of them is the first unstable offset.

The state is a function of the log's batches. Snapshots of it save reading them all; damaged ones
are thrown away for an older one or none.

Source: Kafka ``ProducerStateManager``; KIP-98, KIP-360, KIP-890; spec 5.9.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, Protocol

from logstore.append_origin import AppendOrigin
from logstore.clock import SYSTEM_CLOCK, Clock
from logstore.errors import CorruptSnapshotError, StorageError
from logstore.file_records import LogOffsetMetadata
from logstore.files import REAL_FILES, Files, Path
from logstore.producer_append import (
    CompletedTxn,
    ProducerAppendInfo,
    ProducerBatch,
    TxnMetadata,
    VerificationGuard,
    VerificationStateEntry,
)
from logstore.producer_snapshot import (
    NO_PRODUCER_ID,
    BatchMetadata,
    ProducerStateEntry,
    read_snapshot,
    write_snapshot,
)
from logstore.snapshot_files import SnapshotFiles, list_snapshot_offsets

__all__ = [
    "LATE_TRANSACTION_BUFFER_MS",
    "NO_PRODUCER_ID",
    "BatchMetadata",
    "CompletedTxn",
    "ProducerAppendInfo",
    "ProducerBatch",
    "ProducerStateEntry",
    "ProducerStateManager",
    "TxnMetadata",
    "VerificationGuard",
    "VerificationStateEntry",
    "list_snapshot_offsets",
    "read_snapshot",
    "write_snapshot",
]

LATE_TRANSACTION_BUFFER_MS: Final = 5 * 60 * 1000

_logger: Final = logging.getLogger(__name__)


class ProducerStateConfig(Protocol):
    """The settings that producer state asks for; ``LogConfig`` has them."""

    @property
    def producer_id_expiration_ms(self) -> int:
        """How long a producer without a transaction is remembered."""
        ...

    @property
    def transaction_max_timeout_ms(self) -> int:
        """How long a transaction may stay open."""
        ...

    @property
    def transaction_partition_verification_enable(self) -> bool:
        """Whether a first transactional append must present a guard."""
        ...


class _Transactions:
    """Transactions by first offset, ascending."""

    __slots__ = ("_by_offset", "_offsets")

    def __init__(self) -> None:
        self._by_offset: dict[int, TxnMetadata] = {}
        self._offsets: list[int] = []

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[TxnMetadata]:
        return map(self._by_offset.__getitem__, self._offsets)

    def first(self) -> TxnMetadata | None:
        return self._by_offset[self._offsets[0]] if self._offsets else None

    def put(self, txn: TxnMetadata) -> None:
        offset = txn.first_offset.message_offset
        if offset not in self._by_offset:
            insort(self._offsets, offset)
        self._by_offset[offset] = txn

    def pop(self, first_offset: int) -> TxnMetadata | None:
        txn = self._by_offset.pop(first_offset, None)
        if txn is not None:
            del self._offsets[bisect_left(self._offsets, first_offset)]
        return txn

    def clear(self) -> None:
        self._by_offset.clear()
        self._offsets.clear()


class ProducerStateManager:
    """
    The producers and transactions of one log, and its snapshot files.

    **Thread rule**: calls are made under the log's lock, but for :meth:`has_late_transaction`,
    :meth:`fetch_snapshot` and the properties of snapshots, which any thread may ask.

    Args:
        directory: The partition's directory.
        config: ``producer.id.expiration.ms``, ``transaction.max.timeout.ms`` and
            ``transaction.partition.verification.enable``; replace :attr:`config` to change them.
        clock: Tells when a verification begins.
        files: The door to the file system.
        name: Of the partition, for messages.
        snapshots: The snapshot files, shared with another manager of the same directory.

    Source: Kafka ``ProducerStateManager``.
    """

    __slots__ = (
        "_clock",
        "_files",
        "_last_map_offset",
        "_last_snap_offset",
        "_name",
        "_oldest_txn_last_timestamp",
        "_ongoing_txns",
        "_producers",
        "_snapshots",
        "_unreplicated_txns",
        "_verification_states",
        "config",
    )

    def __init__(
        self,
        directory: Path,
        *,
        config: ProducerStateConfig,
        clock: Clock = SYSTEM_CLOCK,
        files: Files = REAL_FILES,
        name: str = "",
        snapshots: SnapshotFiles | None = None,
    ) -> None:
        self._files = files
        self._clock = clock
        self._name = name
        self.config = config
        self._producers: dict[int, ProducerStateEntry] = {}
        self._verification_states: dict[int, VerificationStateEntry] = {}
        self._ongoing_txns = _Transactions()
        self._unreplicated_txns = _Transactions()
        self._oldest_txn_last_timestamp = -1
        self._last_map_offset = 0
        self._last_snap_offset = 0
        self._snapshots = snapshots or SnapshotFiles(directory, files=files)

    def __repr__(self) -> str:
        return (
            f"<ProducerStateManager {self._name!r} {len(self._producers)} producers,"
            f" below offset {self._last_map_offset}>"
        )

    # -- producers ---------------------------------------------------------------------------------

    @property
    def active_producers(self) -> Mapping[int, ProducerStateEntry]:
        """The entry of each known producer; a live view that must not be changed."""
        return MappingProxyType(self._producers)

    @property
    def producer_id_count(self) -> int:
        """Number of known producers."""
        return len(self._producers)

    @property
    def is_empty(self) -> bool:
        """Whether no producer and no completed transaction above the high watermark is known."""
        return not self._producers and not self._unreplicated_txns

    def last_entry(self, producer_id: int) -> ProducerStateEntry | None:
        """Return what is known of a producer."""
        return self._producers.get(producer_id)

    def prepare_update(self, producer_id: int, origin: AppendOrigin) -> ProducerAppendInfo:
        """Return a scratch copy of a producer's state, to check and prepare an append with."""
        entry = self._producers.get(producer_id) or ProducerStateEntry(producer_id)
        verification = self._verification_states.get(producer_id)
        return ProducerAppendInfo(producer_id, entry, origin, verification, self._name)

    def update(self, append_info: ProducerAppendInfo) -> None:
        """Apply what an append has prepared; its bytes are written."""
        producer_id = append_info.producer_id
        assert producer_id != NO_PRODUCER_ID
        current = self._producers.get(producer_id)
        if current is None:
            self._producers[producer_id] = append_info.to_entry()
        else:
            current.update(append_info.to_entry())
        for txn in append_info.started_transactions:
            self._ongoing_txns.put(txn)
        self._update_oldest_txn_timestamp()

    def load_producer_entry(self, entry: ProducerStateEntry) -> None:
        """Take over an entry of a snapshot."""
        self._producers[entry.producer_id] = entry
        if entry.current_txn_first_offset is not None:
            first_offset = LogOffsetMetadata(entry.current_txn_first_offset)
            self._ongoing_txns.put(TxnMetadata(entry.producer_id, first_offset))

    def remove_expired_producers(self, now_ms: int) -> None:
        """
        Forget producers without an open transaction, and verifications, that have become old.

        A forgotten producer is an unknown one: any sequence is accepted from it.
        """
        expired = [
            producer_id
            for producer_id, entry in self._producers.items()
            if self._is_expired(now_ms, entry)
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        limit_ms = self.config.producer_id_expiration_ms
        old = [
            producer_id
            for producer_id, verification in self._verification_states.items()
            if now_ms - verification.timestamp >= limit_ms
        ]
        for producer_id in old:
            del self._verification_states[producer_id]

    def _is_expired(self, now_ms: int, entry: ProducerStateEntry) -> bool:
        age_ms = now_ms - entry.last_timestamp
        is_idle = entry.current_txn_first_offset is None
        return is_idle and age_ms >= self.config.producer_id_expiration_ms

    # -- verification (KIP-890) --------------------------------------------------------------------

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a producer has a transaction open here, with this epoch."""
        entry = self._producers.get(producer_id)
        return (
            entry is not None
            and entry.current_txn_first_offset is not None
            and entry.producer_epoch == producer_epoch
        )

    def maybe_start_transaction_verification(
        self, producer_id: int, sequence: int, producer_epoch: int, supports_epoch_bump: bool
    ) -> VerificationGuard:
        """
        Return the guard that a transactional append must present; the sentinel if it needs none.

        Source: Kafka ``UnifiedLog.maybeStartTransactionVerification``.
        """
        if self.has_ongoing_transaction(producer_id, producer_epoch):
            return VerificationGuard.SENTINEL
        entry = self.maybe_create_verification_state_entry(
            producer_id, sequence, producer_epoch, supports_epoch_bump
        )
        return entry.verification_guard

    def maybe_create_verification_state_entry(
        self, producer_id: int, sequence: int, producer_epoch: int, supports_epoch_bump: bool
    ) -> VerificationStateEntry:
        """Return the verification under way for a producer, or begin one."""
        entry = self._verification_states.get(producer_id)
        if entry is None:
            entry = self._verification_states[producer_id] = VerificationStateEntry(
                self._clock.milliseconds(),
                sequence,
                producer_epoch,
                supports_epoch_bump=supports_epoch_bump,
            )
        entry.maybe_update_lowest_sequence_and_epoch(sequence, producer_epoch)
        return entry

    def verification_state_entry(self, producer_id: int) -> VerificationStateEntry | None:
        """Return the verification under way for a producer."""
        return self._verification_states.get(producer_id)

    def maybe_clear_verification_state_entry(self, producer_id: int, batch: ProducerBatch) -> None:
        """
        End a verification if ``batch``, which was accepted, is transactional data or a marker.

        But a version 2 marker already carries the epoch of the producer's next transaction: a
        verification of that one goes on.

        Source: Kafka ``UnifiedLog.updateProducers``.
        """
        if not batch.is_transactional:
            return
        entry = self._verification_states.get(producer_id)
        is_of_the_next = (
            entry is not None
            and entry.supports_epoch_bump
            and batch.is_control
            and batch.producer_epoch == entry.epoch
        )
        if not is_of_the_next:
            self._verification_states.pop(producer_id, None)

    def is_missing_required_verification(
        self,
        batch: ProducerBatch,
        producer_id: int,
        verification_guard: VerificationGuard | None,
    ) -> bool:
        """
        Whether a client's or coordinator's batch belongs to no transaction known to be open.

        Such a batch is refused with InvalidTxnStateError.

        Source: Kafka ``UnifiedLog.batchMissingRequiredVerification``.
        """
        if (
            not batch.is_transactional
            or batch.is_control
            or not self.config.transaction_partition_verification_enable
            or self.has_ongoing_transaction(producer_id, batch.producer_epoch)
        ):
            return False
        entry = self._verification_states.get(producer_id)
        return entry is None or not entry.verification_guard.verify(verification_guard)

    # -- transactions ------------------------------------------------------------------------------

    @property
    def first_unstable_offset(self) -> LogOffsetMetadata | None:
        """The first offset of a transaction that is open, or completed above the high watermark."""
        undecided = self._ongoing_txns.first()
        unreplicated = self._unreplicated_txns.first()
        if undecided is None or unreplicated is None:
            first = undecided or unreplicated
            return None if first is None else first.first_offset
        if undecided.first_offset.message_offset < unreplicated.first_offset.message_offset:
            return undecided.first_offset
        return unreplicated.first_offset

    @property
    def first_undecided_offset(self) -> int | None:
        """The first offset of an open transaction."""
        first = self._ongoing_txns.first()
        return None if first is None else first.first_offset.message_offset

    def last_stable_offset(self, completed: CompletedTxn) -> int:
        """
        Return the last stable offset that completing a transaction gives, without completing it.

        The first open transaction of another producer ends it, else it is behind the marker.
        """
        for txn in self._ongoing_txns:
            if txn.producer_id != completed.producer_id:
                return txn.first_offset.message_offset
        return completed.last_offset + 1

    def complete_txn(self, completed: CompletedTxn) -> None:
        """
        Turn an open transaction into one that is complete, but perhaps not replicated.

        Raises:
            ValueError: No transaction begins there.
        """
        txn = self._ongoing_txns.pop(completed.first_offset)
        if txn is None:
            raise ValueError(f"{completed} was not started")
        txn.last_offset = completed.last_offset
        self._unreplicated_txns.put(txn)
        self._update_oldest_txn_timestamp()

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """Forget completed transactions whose marker is below the high watermark."""
        self._remove_unreplicated_transactions(high_watermark)

    def _remove_unreplicated_transactions(self, offset: int) -> None:
        if not self._unreplicated_txns:
            return
        replicated = [
            txn.first_offset.message_offset
            for txn in self._unreplicated_txns
            if txn.last_offset is not None and txn.last_offset < offset
        ]
        for first_offset in replicated:
            self._unreplicated_txns.pop(first_offset)

    def has_late_transaction(self, now_ms: int) -> bool:
        """Whether the oldest open transaction is open for longer than it may be, and 5 minutes."""
        timestamp = self._oldest_txn_last_timestamp
        limit_ms = self.config.transaction_max_timeout_ms + LATE_TRANSACTION_BUFFER_MS
        return timestamp > 0 and now_ms - timestamp > limit_ms

    def _update_oldest_txn_timestamp(self) -> None:
        first = self._ongoing_txns.first()
        entry = None if first is None else self._producers.get(first.producer_id)
        self._oldest_txn_last_timestamp = -1 if entry is None else entry.last_timestamp

    # -- truncation --------------------------------------------------------------------------------

    @property
    def map_end_offset(self) -> int:
        """The state is that of all batches below this offset."""
        return self._last_map_offset

    def update_map_end_offset(self, last_offset: int) -> None:
        """Note how far the state goes."""
        self._last_map_offset = last_offset

    def truncate_and_reload(
        self,
        log_start_offset: int,
        log_end_offset: int,
        now_ms: int,
        *,
        withdraw: bool = False,
    ) -> None:
        """
        Go back to the newest readable snapshot in ``(log_start_offset, log_end_offset]``.

        Snapshots outside are deleted, and so are damaged ones. Nothing is loaded if the state ends
        at ``log_end_offset`` already. The caller applies the batches from :attr:`map_end_offset`
        on.

        **Durability**: on return no snapshot from behind ``log_end_offset`` can come back; with
        ``withdraw`` only after :meth:`delete_withdrawn_snapshots`, until which the same ones may be
        taken again without being written.
        """
        is_above_end = False
        for offset in self._snapshots.offsets:
            if offset > log_end_offset and withdraw:
                self._snapshots.withdraw(offset)
            elif offset > log_end_offset or offset <= log_start_offset:
                is_above_end = is_above_end or offset > log_end_offset
                self._snapshots.delete(offset)
        if is_above_end:
            # It would tell of other batches once the log has grown to its offset again.
            self._snapshots.sync()
        if log_end_offset == self._last_map_offset:
            self.on_log_start_offset_incremented(log_start_offset)
            return
        self._clear()
        self._load_from_snapshot(log_start_offset, now_ms)

    def _clear(self) -> None:
        self._producers.clear()
        self._ongoing_txns.clear()
        # What is truncated away was above the high watermark, or it is gone.
        self._unreplicated_txns.clear()
        self._update_oldest_txn_timestamp()

    def _load_from_snapshot(self, log_start_offset: int, now_ms: int) -> None:
        while (offset := self._snapshots.latest) is not None:
            path = self._snapshots.path(offset)
            try:
                entries = read_snapshot(path, files=self._files)
            except CorruptSnapshotError as error:
                _logger.warning("%s", error)
                self._snapshots.delete(offset)
                continue
            except StorageError:
                if self._files.exists(path):
                    raise
                self._snapshots.delete(offset)  # Somebody took it away.
                continue
            for entry in entries:
                if not self._is_expired(now_ms, entry):
                    self.load_producer_entry(entry)
            self._last_snap_offset = self._last_map_offset = offset
            self._update_oldest_txn_timestamp()
            return
        self._last_snap_offset = self._last_map_offset = log_start_offset

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """
        Forget everything: the log begins and ends at ``offset``. All snapshots are deleted.

        **Durability**: on return none of them can come back.
        """
        self._clear()
        snapshots = self._snapshots.offsets
        for snapshot_offset in snapshots:
            self._snapshots.delete(snapshot_offset)
        if snapshots:
            self._snapshots.sync()
        self._last_snap_offset = 0
        self._last_map_offset = offset

    def on_log_start_offset_incremented(self, log_start_offset: int) -> None:
        """
        Follow the log start: completed transactions below it are gone.

        Producers stay known: their batches below the log start are still duplicates.
        """
        self._remove_unreplicated_transactions(log_start_offset)
        self._last_map_offset = max(self._last_map_offset, log_start_offset)
        latest = self.latest_snapshot_offset
        self._last_snap_offset = log_start_offset if latest is None else latest

    # -- snapshots ---------------------------------------------------------------------------------

    @property
    def snapshot_offsets(self) -> tuple[int, ...]:
        """Offsets of the snapshots that there are, ascending."""
        return self._snapshots.offsets

    @property
    def latest_snapshot_offset(self) -> int | None:
        """Offset of the newest snapshot."""
        return self._snapshots.latest

    @property
    def oldest_snapshot_offset(self) -> int | None:
        """Offset of the oldest snapshot."""
        return self._snapshots.oldest

    def fetch_snapshot(self, offset: int) -> str | None:
        """Return the path of the snapshot at exactly this offset."""
        return self._snapshots.path(offset) if offset in self._snapshots else None

    def take_snapshot(self, *, sync: bool = True) -> str | None:
        """
        Write the state to a snapshot at :attr:`map_end_offset`, if it goes beyond the last one.

        **Durability**: with ``sync``, the file's contents survive a power loss on return.

        Returns:
            The path of the file, None if none was needed.
        """
        if self._last_map_offset <= self._last_snap_offset:
            return None
        offset = self._last_map_offset
        path = self._snapshots.write(offset, self._producers.values(), sync=sync)
        self._last_snap_offset = offset
        return path

    def look_for_snapshots(self, names: Iterable[str]) -> None:
        """Learn the names in the directory: files were deleted or renamed there."""
        self._snapshots.look(names)

    def remove_stray_snapshots(self, segment_base_offsets: Collection[int]) -> None:
        """Delete snapshots that belong to no segment, but a newest one at or above the last."""
        bases = set(segment_base_offsets)
        last_base = max(bases, default=None)
        strays = [offset for offset in self._snapshots.offsets if offset not in bases]
        if strays and (last_base is None or strays[-1] >= last_base):
            strays.pop()
        for offset in strays:
            self._snapshots.delete(offset)

    def delete_withdrawn_snapshots(self) -> None:
        """Delete those that were withdrawn and not taken again; durable on return."""
        self._snapshots.delete_withdrawn()

    def delete_snapshots_before(self, offset: int) -> None:
        """Delete snapshots below an offset."""
        for snapshot_offset in self._snapshots.offsets:
            if snapshot_offset < offset:
                self._snapshots.delete(snapshot_offset)

    def remove_and_mark_snapshot_for_deletion(self, offset: int) -> str | None:
        """
        Rename a snapshot to ``.deleted`` and return its new path, None if there is none.

        The segment with this base offset is deleted; the file goes with the segment's.
        """
        return self._snapshots.mark_for_deletion(offset)

    def update_directory(self, directory: Path) -> None:
        """Learn that the directory was renamed."""
        self._snapshots.update_directory(directory)
