"""
What a cleaning round retains of one batch that C leaves to Python.

Source: Kafka ``Cleaner.cleanInto``, ``MemoryRecords.filterTo``; spec 7.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from logstore._native import CLEAN_END, RecordFilter
from logstore.compression import CompressionType
from logstore.control_record import ControlRecordType
from logstore.errors import CorruptRecordError
from logstore.legacy import LegacyEntry, rebuild_entry
from logstore.record import BATCH_OVERHEAD, RecordBatch, empty_batch, encode_batch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logstore._native import NativeOffsetMap
    from logstore.cleaned_transactions import CleanedTransactionMetadata

LONG_MAX: Final = 2**63 - 1


class Retained(NamedTuple):
    """What stays of a batch; no bytes: nothing."""

    data: bytes | memoryview
    records_read: int
    records_retained: int


NOTHING: Final = Retained(b"", 0, 0)


class BatchFilter:
    """
    Decides about batches in the order of their offsets.

    Args:
        offset_map: The last offset of each key.
        transactions: Of the round.
        now_ms: Delete horizons that have come are at or before it.
        delete_retention_ms: How long tombstones and markers stay from now on.
        upper_bound_offset: The round's end: the batch that ends there keeps its offsets.
        last_records: Of active producers: last data offset, or -1, and epoch.
        bytes_max: Bound of a decompressed batch.

    Attributes:
        records: The part in C.
        retains_legacy_deletes: Whether tombstones of magic 0 and 1 stay.
        invalid_count: Records without a key that were dropped.

    Source: Kafka ``MemoryRecords.RecordFilter``.
    """

    __slots__ = (
        "_bytes_max",
        "_delete_horizon",
        "_last_records",
        "_map",
        "_now_ms",
        "_transactions",
        "_upper_bound_offset",
        "invalid_count",
        "records",
        "retains_legacy_deletes",
    )

    def __init__(
        self,
        offset_map: NativeOffsetMap,
        transactions: CleanedTransactionMetadata,
        *,
        now_ms: int,
        delete_retention_ms: int,
        upper_bound_offset: int,
        last_records: Mapping[int, tuple[int, int]],
        bytes_max: int,
    ) -> None:
        self._map = offset_map
        self._transactions = transactions
        self._now_ms = now_ms
        self._delete_horizon = min(now_ms + delete_retention_ms, LONG_MAX)
        self._upper_bound_offset = upper_bound_offset
        self._last_records = last_records
        self._bytes_max = bytes_max
        ends = {offset for offset, _ in last_records.values() if offset >= 0}
        self.records: Final = RecordFilter(
            offset_map,
            now_ms=now_ms,
            delete_horizon=self._delete_horizon,
            kept_ends=[*ends, upper_bound_offset - 1],
        )
        self.retains_legacy_deletes = True
        self.invalid_count = 0

    def _keeps_shell(self, batch: RecordBatch) -> bool:
        """
        Whether a batch stays, without records, if all of them go.

        It may hold a producer's last sequence or epoch, or be what says where the round ended.
        """
        if batch.next_offset == self._upper_bound_offset:
            return True
        last = self._last_records.get(batch.producer_id) if batch.producer_id >= 0 else None
        if last is None:
            return False
        last_data_offset, producer_epoch = last
        if last_data_offset >= 0:
            return batch.last_offset == last_data_offset
        return batch.is_control and batch.producer_epoch == producer_epoch

    def filter_batch(self, batch: RecordBatch) -> Retained:
        """
        Return what stays of a v2 batch.

        Raises:
            CorruptRecordError: It is damaged.
        """
        batch.ensure_valid()
        if batch.is_control:
            return self._filter_control(batch)
        if self._transactions.on_batch_read(batch):
            if not self._keeps_shell(batch):
                return NOTHING
            return Retained(_shell_of(batch), max(0, batch.record_count), 0)
        return self._filter_data(batch)

    def _filter_control(self, batch: RecordBatch) -> Retained:
        """Filter markers: they go once all data of their transaction has, and the horizon came."""
        can_discard = self._transactions.on_control_batch_read(batch, control_type_of(batch))
        horizon = batch.delete_horizon_ms
        is_discarded = can_discard and horizon is not None and horizon <= self._now_ms
        keeps_shell = self._keeps_shell(batch)
        if is_discarded and not keeps_shell:
            return NOTHING
        count = max(0, batch.record_count)
        if is_discarded or count == 0:
            return Retained(_shell_of(batch) if keeps_shell else b"", count, 0)
        records = batch.records(self._bytes_max)
        has_tombstones = any(record.value is None for record in records)
        if horizon is not None or not (can_discard or has_tombstones):
            return Retained(batch.data, count, count)
        rebuilt = encode_batch(
            records,
            base_offset=batch.base_offset,
            last_offset=batch.last_offset,
            compression=batch.compression_type,
            timestamp_type=batch.timestamp_type,
            log_append_time=batch.max_timestamp,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            leader_epoch=batch.leader_epoch,
            is_transactional=batch.is_transactional,
            is_control=True,
            delete_horizon=self._delete_horizon,
        )
        return Retained(rebuilt, count, count)

    def _filter_data(self, batch: RecordBatch) -> Retained:
        count = batch.record_count
        if count == 0:
            return Retained(_shell_of(batch) if self._keeps_shell(batch) else b"", 0, 0)
        found, section = self.records.clean_section(
            batch.data[:BATCH_OVERHEAD], batch.section(self._bytes_max), count
        )
        if found.stop != CLEAN_END:
            raise CorruptRecordError(
                "the records of a batch break the format; run `logstore verify`",
                offset=batch.base_offset,
            )
        self.invalid_count += found.records_invalid
        retained_count = found.records_retained
        if retained_count == 0:
            return Retained(_shell_of(batch) if self._keeps_shell(batch) else b"", count, 0)
        if found.is_unchanged:
            return Retained(batch.data, count, count)
        rebuilt = batch.with_section(
            section,
            batch.compression_type,
            record_count=retained_count,
            base_timestamp=found.base_timestamp,
            max_timestamp=found.max_timestamp,
            has_delete_horizon=found.has_horizon,
        )
        return Retained(rebuilt, count, retained_count)

    def filter_legacy(self, entry: LegacyEntry) -> Retained:
        """
        Return what stays of a magic 0 or 1 entry.

        One that ends the round stays as it is: its format has no batch without records (Kafka
        gives up the log there). So does a wrapper that nobody can write any more.

        Raises:
            CorruptRecordError, InvalidRecordError: It is damaged.
        """
        entry.ensure_valid()
        messages = entry.messages(self._bytes_max)
        latest_offset = self._map.latest_offset
        retained = []
        for message in messages:
            if message.offset <= latest_offset:
                if message.key is None:
                    self.invalid_count += 1
                    continue
                if message.value is None and not self.retains_legacy_deletes:
                    continue
                if message.offset < self._map.get(message.key):
                    continue
            retained.append(message)
        count = len(messages)
        if len(retained) == count or (
            not retained and entry.next_offset == self._upper_bound_offset
        ):
            return Retained(entry.data, count, count)
        if not retained:
            return Retained(b"", count, 0)
        if entry.magic == 0 and entry.compression_type is CompressionType.LZ4:
            return Retained(entry.data, count, count)
        return Retained(rebuild_entry(entry, retained), count, len(retained))


def control_type_of(batch: RecordBatch) -> int | None:
    """Return the type of a control batch's first record, None if it has none."""
    records = batch.records()
    return int(ControlRecordType.parse(records[0].key)) if records else None


def _shell_of(batch: RecordBatch) -> bytes:
    return empty_batch(
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        max_timestamp=batch.max_timestamp,
        timestamp_type=batch.timestamp_type,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        leader_epoch=batch.leader_epoch,
        is_transactional=batch.is_transactional,
        is_control=batch.is_control,
    )
