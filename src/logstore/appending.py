"""
One append of encoded batches, step by step.

1. Look at every batch: rules of the origin, sizes, CRCs, order. No lock is needed.
2. Leader: assign offsets and the epoch, perhaps compress again. Follower: check that the offsets go
   on from the log end.
3. Note leader epochs; refuse what no segment can hold; roll if this segment should not.
4. Check the producers; a duplicate ends here with the answer of the first time.
5. Write. Only now anything can be seen in the file, and nothing by readers.
6. Let producer state, the transaction index and the watermarks know; then publish the log end.

An append that fails before 6 leaves the log as before, but for an epoch in the cache or a roll.

Source: Kafka ``UnifiedLog.append``; spec 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logstore._native import BATCH_DTYPE, Buffer, PatchedBatch, size_of, view_of
from logstore.append_analysis import NO_LEADER_EPOCH, LogAppendInfo, analyze
from logstore.append_origin import AppendOrigin
from logstore.compression import CompressionType
from logstore.errors import (
    InvalidTxnStateError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    UnexpectedAppendOffsetError,
)
from logstore.file_records import LogOffsetMetadata
from logstore.leader_epoch import LEADER_EPOCH_MAX
from logstore.legacy import LegacyEntry
from logstore.partition import FLUSH_MESSAGES_NEVER
from logstore.partition_watermarks import WatermarkedPartition
from logstore.producer_snapshot import NO_PRODUCER_ID
from logstore.record import RecordBatch, TimestampType, iterate_batches
from logstore.records_builder import MAGIC_V2
from logstore.validator import LogValidator

if TYPE_CHECKING:
    from logstore.config import LogConfig
    from logstore.producer_state import (
        BatchMetadata,
        CompletedTxn,
        ProducerAppendInfo,
        VerificationGuard,
    )
    from logstore.segment import LogSegment


class _Producers(NamedTuple):
    """What an append changes in producer state, once it is written."""

    updated: dict[int, ProducerAppendInfo]
    completed: list[CompletedTxn]
    duplicate: BatchMetadata | None


class AppendingPartition(WatermarkedPartition):
    """
    A partition that can be appended to, with batches that are encoded already, and rolled.

    Source: Kafka ``UnifiedLog.append``, ``maybeRoll``, ``roll``.
    """

    # -- append ------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        batches: Buffer,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verification_guard: VerificationGuard | None = None,
    ) -> LogAppendInfo:
        """
        Append encoded batches as the leader: validate them, assign offsets and the epoch.

        All or nothing, for errors and for readers.

        Source: Kafka ``UnifiedLog.appendAsLeader``; spec 5.3.
        """
        return self._append_batches(batches, origin, leader_epoch, verification_guard)

    def append_as_follower(
        self, batches: Buffer, leader_epoch: int = LEADER_EPOCH_MAX
    ) -> LogAppendInfo:
        """
        Append batches whose offsets a leader has assigned.

        Args:
            batches: Encoded batches.
            leader_epoch: The epoch of this replica; batches from the first one with a higher epoch
                on are dropped.

        Source: Kafka ``UnifiedLog.appendAsFollower``.
        """
        return self._append_batches(batches, AppendOrigin.REPLICATION, leader_epoch, None)

    def prepare_append(self) -> None:
        """
        Make the writer ready for records that it encodes itself: attached, the epoch known.

        The lock is held.
        """
        self.flush_metadata()
        epoch = self.leader_epoch
        if self.leader_epochs.latest_epoch != epoch:
            self.leader_epochs.assign(epoch, self.log_end_offset)
        self._local_log.attach()
        self.refresh_fast_path()

    def must_roll(self, headers: npt.NDArray[Any], size_bytes: int) -> bool:
        """Whether batches that fit a segment do not belong to the active one."""
        config = self.config
        return self._local_log.active_segment.should_roll(
            max_segment_ms=config.max_segment_ms,
            max_segment_bytes=config.segment_bytes,
            max_timestamp=int(headers["max_timestamp"].max()),
            last_offset=int(headers["last_offset"].max()),
            append_bytes=size_bytes,
            now_ms=self._clock.milliseconds(),
        )

    def write_batches(
        self,
        data: Buffer | PatchedBatch,
        headers: npt.NDArray[Any],
        *,
        last_offset: int,
        updated: Iterable[ProducerAppendInfo] = (),
        completed: Iterable[CompletedTxn] = (),
    ) -> None:
        """
        Write checked batches, let producer state know of them, and publish; the lock is held.

        Raises:
            StorageError: The log is as before.
        """
        self._local_log.append(data, headers)
        self._publish_written(last_offset, updated, completed)

    def write_pieces(
        self, pieces: Iterable[tuple[Buffer, npt.NDArray[Any]]], last_offset: Callable[[], int]
    ) -> None:
        """
        Do what :meth:`write_batches` does with batches without producer that come in pieces.

        They are published together, after the last piece. The lock is held.

        Args:
            pieces: What makes them may raise to end it all: nothing is appended.
            last_offset: Returns the offset of the last record, once all pieces are made.

        Raises:
            StorageError: The log is as before.
        """
        self._local_log.append_pieces(pieces)
        self._publish_written(last_offset())

    def _publish_written(
        self,
        last_offset: int,
        updated: Iterable[ProducerAppendInfo] = (),
        completed: Iterable[CompletedTxn] = (),
    ) -> None:
        state = self.producer_state
        for append_info in updated:
            state.update(append_info)
        for transaction in completed:
            last_stable_offset = state.last_stable_offset(transaction)
            self._local_log.active_segment.update_txn_index(transaction, last_stable_offset)
            state.complete_txn(transaction)
        state.update_map_end_offset(last_offset + 1)
        if self._watermarks.mode == "log_end":
            state.on_high_watermark_updated(last_offset + 1)
        self._refresh_first_unstable_offset()
        self._local_log.publish(last_offset + 1)
        if self._watermarks.first_unstable_offset is not None:
            # One that was raised to the log start, in a gap, is the batch behind the gap.
            self._refresh_first_unstable_offset()
        self._update_high_watermark_with_log_end()
        self.refresh_fast_path()

    def flush_if_due(self) -> None:
        """Flush if flush.messages says so; without the lock, which a flush takes itself."""
        messages = self.config.flush_messages
        if messages == FLUSH_MESSAGES_NEVER or self._depth:
            return
        if self.log_end_offset - self.recovery_point >= messages:
            self.flush()

    def maybe_start_transaction_verification(
        self,
        producer_id: int,
        sequence: int,
        producer_epoch: int,
        *,
        supports_epoch_bump: bool = False,
    ) -> VerificationGuard:
        """
        Return the guard that a producer's first transactional append must present.

        Source: Kafka ``maybeStartTransactionVerification``, KIP-890.
        """
        with self.changing():
            return self.producer_state.maybe_start_transaction_verification(
                producer_id, sequence, producer_epoch, supports_epoch_bump
            )

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a producer has a transaction open here, with this epoch."""
        with self._lock:
            return self.producer_state.has_ongoing_transaction(producer_id, producer_epoch)

    def _append_batches(
        self,
        data: Buffer,
        origin: AppendOrigin,
        leader_epoch: int,
        verification_guard: VerificationGuard | None,
    ) -> LogAppendInfo:
        """
        Append batches as a leader or a follower.

        Raises:
            ValueError: The epoch is none.
            UnexpectedAppendOffsetError: A follower's batches begin below the log end.
            RecordBatchTooLargeError: They do not fit a segment.
            InvalidTxnStateError: A transaction was not verified, or something else is written into
                it.
        """
        lowest = NO_LEADER_EPOCH if origin is AppendOrigin.REPLICATION else 0
        if not lowest <= leader_epoch <= LEADER_EPOCH_MAX:
            raise ValueError(
                f"leader_epoch {leader_epoch} is not within [{lowest}, {LEADER_EPOCH_MAX}]"
            )
        plain = self._append_plain(data, origin, leader_epoch)
        if plain is not None:
            return plain
        assign_offsets = origin in (AppendOrigin.CLIENT, AppendOrigin.COORDINATOR)
        self.check_writable()
        self.flush_metadata()
        info = analyze(
            data,
            origin=origin,
            leader_epoch=leader_epoch,
            max_message_bytes=(
                None if origin is AppendOrigin.REPLICATION else self.config.max_message_bytes
            ),
            assign_offsets=assign_offsets,
            topic_partition=self.name,
        )
        info.log_start_offset = self.log_start_offset
        if info.valid_bytes <= 0:
            return info
        with self.changing():
            records, headers = (
                _assigned(self, data, origin, leader_epoch, info)
                if assign_offsets
                else _following(self, data, info)
            )
            append_locked(self, records, headers, origin, info, verification_guard)
        if not info.duplicate:
            self.flush_if_due()
        return info

    def _append_plain(
        self, data: Buffer, origin: AppendOrigin, leader_epoch: int
    ) -> LogAppendInfo | None:
        """Append in C if there is nothing to decide; None: nothing was done."""
        if origin not in (AppendOrigin.CLIENT, AppendOrigin.REPLICATION):
            return None
        ready = self._writer.append_ready(
            data, leader_epoch, as_follower=origin is AppendOrigin.REPLICATION
        )
        if ready is None:
            return None
        epoch = ready.last_leader_epoch
        return LogAppendInfo(
            first_offset=ready.first_offset,
            last_offset=ready.last_offset,
            last_leader_epoch=None if epoch == NO_LEADER_EPOCH else epoch,
            max_timestamp=ready.max_timestamp,
            offset_of_max_timestamp=ready.offset_of_max_timestamp,
            log_start_offset=self.log_start_offset,
            source_compression=CompressionType.for_id(ready.last_codec),
            valid_bytes=size_of(data),
            last_offset_of_first_batch=ready.last_offset_of_first_batch,
        )

    # -- roll --------------------------------------------------------------------------------------

    def maybe_roll(self, append_bytes: int, append_info: LogAppendInfo) -> LogSegment:
        """
        Roll if an append does not belong to the active segment; return the one that it goes to.

        Source: Kafka ``UnifiedLog.maybeRoll``; spec 4.3.
        """
        config = self.config
        active = self._local_log.active_segment
        if active.should_roll(
            max_segment_ms=config.max_segment_ms,
            max_segment_bytes=config.segment_bytes,
            max_timestamp=append_info.max_timestamp,
            last_offset=append_info.last_offset,
            append_bytes=append_bytes,
            now_ms=self._clock.milliseconds(),
        ):
            # Without a first offset (magic 0 and 1) this is surely not above it.
            expected = append_info.first_offset
            if expected < 0:
                expected = append_info.last_offset - (2**31 - 1)
            return self.roll_segment(expected, is_to_append=True)
        return active

    def roll(self, expected_next_offset: int | None = None) -> LogSegment:
        """
        Begin a new segment at the log end, or at a higher offset; the old one is flushed later.

        Source: Kafka ``UnifiedLog.roll``; spec 5.8.
        """
        with self.changing():
            return self.roll_segment(0 if expected_next_offset is None else expected_next_offset)

    def roll_segment(
        self, expected_next_offset: int = 0, *, is_to_append: bool = False
    ) -> LogSegment:
        """
        Roll; the lock is held.

        Args:
            expected_next_offset: The base offset of the new segment, if it is above the log end.
            is_to_append: Attach the writer to the new segment, too.
        """
        sealed, recovery_point = self._local_log.segments.active, self._flusher.recovery_point
        was_flushed = (
            self._writer.log_end_offset <= recovery_point
        )  # Then its indexes are, by the roll.
        segment = self._local_log.roll(
            expected_next_offset, recovery_point=recovery_point, is_to_append=is_to_append
        )
        base_offset = segment.base_offset
        self._flush_later(sealed, base_offset, base_offset if was_flushed else sealed.base_offset)
        self._show_active_segment()
        # The base offset may be above the log end: the snapshot belongs to the segment.
        self.producer_state.update_map_end_offset(base_offset)
        self.producer_state.take_snapshot(sync=False)
        if self._watermarks.mode != "log_end":  # It has moved with the append.
            self._update_high_watermark_with_log_end()
        if is_to_append and not segment.is_attached:
            self._local_log.attach()
        if segment.index_interval_bytes != sealed.index_interval_bytes:
            self.refresh_fast_path()  # No other rule of the writer is a segment's.
        return segment


def _assigned(
    log: AppendingPartition,
    data: Buffer,
    origin: AppendOrigin,
    leader_epoch: int,
    info: LogAppendInfo,
) -> tuple[Buffer | PatchedBatch, npt.NDArray[Any]]:
    """Validate as a leader; return the bytes with offsets from the log end on, and the headers."""
    info.first_offset = log.log_end_offset
    validator = validator_of(log, info.source_compression, leader_epoch, origin)
    result = validator.validate_messages_and_assign_offsets(
        view_of(data)[: info.valid_bytes], info.first_offset, info
    )
    info.max_timestamp = result.max_timestamp
    info.last_offset = result.next_offset - 1
    info.offset_of_max_timestamp = info.last_offset if result.max_timestamp >= 0 else -1
    info.records_converted = result.records_converted
    if validator.timestamp_type is TimestampType.LOG_APPEND_TIME:
        info.log_append_time = result.log_append_time
    if result.size_maybe_changed:
        largest = int(result.batches["size_bytes"].max(initial=0))
        if largest > log.config.max_message_bytes:
            raise RecordTooLargeError(
                f"a batch has {largest} bytes after it was encoded again, over max.message.bytes"
                f" {log.config.max_message_bytes}; raise it, or send less at once",
                path=log.directory,
            )
    return result.records, result.batches


def validator_of(
    log: AppendingPartition, source: CompressionType, leader_epoch: int, origin: AppendOrigin
) -> LogValidator:
    """Return the rules of one append of batches with a codec."""
    config = log.config
    is_append_time = config.message_timestamp_type == "LogAppendTime"
    target, level = _target(config, source)
    return LogValidator(
        now_ms=log.clock.milliseconds(),
        source_compression=source,
        target_compression=target,
        target_level=level,
        timestamp_type=(
            TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME
        ),
        timestamp_before_max_ms=config.message_timestamp_before_max_ms,
        timestamp_after_max_ms=config.message_timestamp_after_max_ms,
        compacted=config.compact,
        leader_epoch=leader_epoch,
        origin=origin,
        decompressed_bytes_max=config.decompressed_bytes_max,
        topic_partition=log.name,
    )


def _target(config: LogConfig, source: CompressionType) -> tuple[CompressionType, int | None]:
    """Return the codec and level to store; Source: Kafka ``BrokerCompressionType``."""
    if config.compression_type == "producer":
        return source, None
    if config.compression_type == "uncompressed":
        return CompressionType.NONE, None
    target = CompressionType.of(config.compression_type)
    level = {
        CompressionType.GZIP: config.compression_gzip_level,
        CompressionType.LZ4: config.compression_lz4_level,
        CompressionType.ZSTD: config.compression_zstd_level,
    }.get(target)
    return target, level


def _following(
    log: AppendingPartition, data: Buffer, info: LogAppendInfo
) -> tuple[Buffer, npt.NDArray[Any]]:
    """Check that batches go on from the log end; return their bytes and headers."""
    first_offset = info.first_or_last_offset_of_first_batch
    if first_offset < log.log_end_offset:
        raise UnexpectedAppendOffsetError(
            f"the append begins at offset {first_offset}, below the log end {log.log_end_offset};"
            " fetch from the log end",
            first_offset=first_offset,
            last_offset=info.last_offset,
            path=log.directory,
        )
    records = view_of(data)[: info.valid_bytes]
    return records, _legacy_headers(records) if info.batches is None else info.batches


def _legacy_headers(data: memoryview) -> npt.NDArray[Any]:
    """Return headers of data that has entries of magic 0 or 1, which only Python parses."""
    rows: list[tuple[int, ...]] = []
    position = 0
    for batch in iterate_batches(data):
        is_legacy = isinstance(batch, LegacyEntry)
        rows.append(
            (
                position,
                batch.last_offset if is_legacy else batch.base_offset,
                batch.last_offset,
                batch.max_timestamp,
                batch.size_bytes,
                batch.leader_epoch,
                batch.magic,
                NO_PRODUCER_ID if is_legacy else batch.producer_id,
            )
        )
        position += batch.size_bytes
    headers = np.zeros(len(rows), BATCH_DTYPE)
    names = (
        "position",
        "base_offset",
        "last_offset",
        "max_timestamp",
        "size_bytes",
        "leader_epoch",
        "magic",
        "producer_id",
    )
    for name, column in zip(names, zip(*rows, strict=True), strict=True):
        headers[name] = column
    return headers


def append_locked(
    log: AppendingPartition,
    data: Buffer | PatchedBatch,
    headers: npt.NDArray[Any],
    origin: AppendOrigin,
    info: LogAppendInfo,
    verification_guard: VerificationGuard | None,
) -> None:
    """
    Do steps 3 to 6 for batches that are checked and have their offsets; the log's lock is held.

    Args:
        log: The log.
        data: The batches.
        headers: Theirs, ``BATCH_DTYPE``.
        origin: Whose rules apply.
        info: First and last offset, and the largest timestamp, are in.
        verification_guard: Of a producer's first transactional append.
    """
    for magic, epoch, base_offset in _epoch_starts(headers):
        if magic >= MAGIC_V2:
            log.leader_epochs.assign(epoch, base_offset)
        elif not log.leader_epochs.is_empty:
            log.leader_epochs.clear_and_flush()  # Older formats know no epochs.
    size_bytes = int(headers["size_bytes"].sum())
    if size_bytes > log.config.segment_bytes:
        raise RecordBatchTooLargeError(
            f"an append of {size_bytes} bytes is larger than segment.bytes"
            f" {log.config.segment_bytes}; append less at once, or raise it",
            path=log.directory,
        )
    log.sync_producer_state()
    segment = log.maybe_roll(size_bytes, info)
    producers = _check_producers(log, data, headers, origin, segment, verification_guard)
    if producers.duplicate is not None:
        info.first_offset = producers.duplicate.first_offset
        info.last_offset = producers.duplicate.last_offset
        info.log_append_time = producers.duplicate.timestamp
        info.log_start_offset = log.log_start_offset
        info.duplicate = True
        return
    log.write_batches(
        data,
        headers,
        last_offset=info.last_offset,
        updated=producers.updated.values(),
        completed=producers.completed,
    )


def _epoch_starts(headers: npt.NDArray[Any]) -> Iterator[tuple[int, int, int]]:
    """Yield magic, epoch and base offset of each batch that begins another epoch."""
    epochs, magics = headers["leader_epoch"], headers["magic"]
    if len(headers) == 1:
        starts = [0]
    else:
        changed = (epochs[1:] != epochs[:-1]) | (magics[1:] != magics[:-1])
        starts = [0, *(np.flatnonzero(changed) + 1).tolist()]
    for at in starts:
        yield int(magics[at]), int(epochs[at]), int(headers["base_offset"][at])


def _check_producers(
    log: AppendingPartition,
    data: Buffer | PatchedBatch,
    headers: npt.NDArray[Any],
    origin: AppendOrigin,
    segment: LogSegment,
    verification_guard: VerificationGuard | None,
) -> _Producers:
    """
    Check the batches of producers against what is known of them.

    Source: Kafka ``analyzeAndValidateProducerState``; spec 5.9.
    """
    updated: dict[int, ProducerAppendInfo] = {}
    completed: list[CompletedTxn] = []
    with_producer = np.flatnonzero(headers["producer_id"] != NO_PRODUCER_ID)
    if len(with_producer) == 0:
        return _Producers(updated, completed, None)
    state = log.producer_state
    start = segment.size_bytes - int(headers["position"][0])
    for at in with_producer.tolist():
        if isinstance(data, PatchedBatch):  # Of one batch, which a client's never is a control one.
            batch = RecordBatch(data.head, is_header_only=True)
        else:
            batch = RecordBatch(data, int(headers["position"][at] - headers["position"][0]))
        producer_id = batch.producer_id
        if origin is AppendOrigin.CLIENT:
            entry = state.last_entry(producer_id)
            duplicate = None if entry is None else entry.find_duplicate_batch(batch)
            if duplicate is not None:
                return _Producers(updated, completed, duplicate)
        # Of several batches the first one begins the transaction for the others.
        asks = origin in (AppendOrigin.CLIENT, AppendOrigin.COORDINATOR)
        asks = asks and producer_id not in updated
        if asks and state.is_missing_required_verification(batch, producer_id, verification_guard):
            raise InvalidTxnStateError(
                f"the batch of producer {producer_id} is not part of an ongoing transaction;"
                " verify it first, and present the guard",
                path=log.directory,
            )
        first_offset = None
        if batch.is_transactional:
            first_offset = LogOffsetMetadata(
                batch.base_offset, segment.base_offset, start + int(headers["position"][at])
            )
        append_info = updated.get(producer_id)
        if append_info is None:
            append_info = updated[producer_id] = state.prepare_update(producer_id, origin)
        ended = append_info.append(batch, first_offset)
        if ended is not None:
            completed.append(ended)
        state.maybe_clear_verification_state_entry(producer_id, batch)
    return _Producers(updated, completed, None)
