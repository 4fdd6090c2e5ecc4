"""
Validator: what a leader checks of a batch before it is written, and the offsets it assigns.

The batch stays as it is where it can. One that is neither compressed nor to be compressed gets its
offset, epoch and maximum timestamp written into a copy of its bytes; the records are only looked
at, in the native core, in the pass that the analysis has already made. One that is compressed as
the topic wants it is decompressed to be looked at, then treated in the same way. Otherwise the
records are encoded again.

All rejected records of a batch are reported together, each with its index.

Source: Kafka ``LogValidator``; spec 5.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from logstore._native import (
    BATCH_DTYPE,
    BATCH_OVERHEAD,
    BATCH_ROW,
    BatchRow,
    Buffer,
    PatchedBatch,
    Record,
    RecordCheck,
    ScannedBatch,
    check_records,
    crc32c,
    scan_batches,
    view_of,
)
from logstore.append_analysis import (
    LeaderHwChange,
    LogAppendInfo,
    analyze,
)
from logstore.append_origin import AppendOrigin
from logstore.compression import DECOMPRESSED_BYTES_MAX, CompressionType, compress
from logstore.encoded_form import is_as_encoded
from logstore.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
)
from logstore.legacy import LegacyEntry
from logstore.record import (
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    RecordBatch,
    TimestampType,
    encode_batch,
    iterate_batches,
)
from logstore.records_builder import (
    BATCH_HEADER,
    CONTROL_FLAG,
    CRC_FIELDS,
    DELETE_HORIZON_FLAG,
    LOG_APPEND_TIME_FLAG,
    TRANSACTIONAL_FLAG,
    attributes_of,
    producer_problem,
    seal,
)

__all__ = [
    "AppendOrigin",
    "LeaderHwChange",
    "LogAppendInfo",
    "LogValidator",
    "ValidationResult",
    "analyze",
]

INT64_MAX: Final = 2**63 - 1

Batch: TypeAlias = RecordBatch | LegacyEntry

# From this size on, writing the header apart costs less than copying the records behind it.
_COPY_BYTES_MAX: Final = 64 << 10

# Bits 7 to 15 mean nothing yet; Kafka leaves them out when it writes the attributes again.
_KNOWN_ATTRIBUTES: Final = 0x7F

# The message of an error shows the first few rejected records; all are in record_errors.
_ERRORS_SHOWN: Final = 3


class ValidationResult(NamedTuple):
    """
    What a leader writes.

    Attributes:
        records: The batches, offsets assigned; ``bytes(records)`` gives them in one piece.
        next_offset: The offset behind the last one.
        max_timestamp: Of the records, or the append time.
        log_append_time: When they were validated.
        size_maybe_changed: They were encoded again, so that sizes are to be checked again.
        records_converted: How many were encoded again.
        batches: Their headers, ``BATCH_DTYPE``.

    Source: Kafka ``LogValidator.ValidationResult``.
    """

    records: bytes | bytearray | PatchedBatch
    next_offset: int
    max_timestamp: int
    log_append_time: int
    size_maybe_changed: bool
    records_converted: int
    batches: npt.NDArray[Any]


@dataclass(slots=True, kw_only=True)
class LogValidator:
    """
    The rules of one append on a leader.

    Attributes:
        now_ms: The time.
        source_compression: Codec of the last compressed batch: ``LogAppendInfo`` has it.
        target_compression: Codec to store.
        target_level: Its level; None is the codec's default.
        timestamp_type: Of the topic.
        timestamp_before_max_ms: How much older than now a create time may be.
        timestamp_after_max_ms: How much later.
        compacted: The topic is; then a record needs a key.
        leader_epoch: Written into the batches.
        origin: Whose rules apply.
        decompressed_bytes_max: Bound of a decompressed batch.
        topic_partition: For messages.

    Source: Kafka ``LogValidator``.
    """

    now_ms: int
    source_compression: CompressionType
    target_compression: CompressionType
    target_level: int | None = None
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    timestamp_before_max_ms: int = INT64_MAX
    timestamp_after_max_ms: int = INT64_MAX
    compacted: bool = False
    leader_epoch: int = 0
    origin: AppendOrigin = AppendOrigin.CLIENT
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
    topic_partition: str = "the log"

    def validate_messages_and_assign_offsets(
        self, data: Buffer, next_offset: int, info: LogAppendInfo | None = None
    ) -> ValidationResult:
        """
        Check every record and return the bytes to write, offsets from ``next_offset`` on.

        Args:
            data: What :func:`analyze` found valid: one v2 batch, or entries of an old format. It
                is not changed.
            next_offset: The log end offset.
            info: The analysis; it saves looking at the records again.

        Raises:
            InvalidRecordError: The batch as a whole is refused (``record_errors`` is empty), or
                records are.
            InvalidTimestampError: Records are, at least one for its timestamp.
            CorruptRecordError: Compressed data is damaged or too large, or a message inside a
                wrapper is.
        """
        assert next_offset >= 0
        if info is not None and info.found is not None:
            result = self._assign_at_once(data, next_offset, info.found)
            if result is not None:
                return result
        batches = self._batches_of(data)
        first = batches[0]
        if isinstance(first, RecordBatch):
            assert len(batches) == 1
            return self._validate_v2(first, next_offset, info)
        return self._convert_legacy(batches, next_offset)

    def _assign_at_once(
        self, data: Buffer, next_offset: int, found: ScannedBatch
    ) -> ValidationResult | None:
        """
        Assign offsets in place if the analysis shows that there is no more to do; else None.

        Everything here is decided again, with its reasons and errors, by :meth:`_validate_v2`.
        """
        row, check = found.row, found.check
        if check is None or not self.keeps_records(row, check):
            return None
        if self.timestamp_type is TimestampType.LOG_APPEND_TIME:
            attributes = row.attributes | LOG_APPEND_TIME_FLAG
            return self._renumbered(row, data, next_offset, self.now_ms, attributes)
        return self._renumbered(row, data, next_offset, check.max_timestamp, row.attributes)

    def keeps_records(self, row: BatchRow, check: RecordCheck) -> bool:
        """Whether a batch that is whole is in order, and needs only offsets, epoch and times."""
        return (
            check.sequential
            and 0 < row.record_count == check.last_offset_delta + 1
            and row.record_count == row.last_offset - row.base_offset + 1
            and not row.attributes & ~(TRANSACTIONAL_FLAG | DELETE_HORIZON_FLAG)
            and self.target_compression is CompressionType.NONE
            and not (row.producer_id >= 0 and row.base_sequence < 0)
            and not (self.compacted and check.null_keys)
            and (
                self.timestamp_type is TimestampType.LOG_APPEND_TIME
                or (
                    check.min_timestamp >= self.now_ms - self.timestamp_before_max_ms
                    and check.max_timestamp <= self.now_ms + self.timestamp_after_max_ms
                )
            )
        )

    # ---- batches ---------------------------------------------------------------------------------

    def _batches_of(self, data: Buffer) -> list[Batch]:
        iterator = iterate_batches(data)
        first = next(iterator, None)
        if first is None:
            message = f"an append to {self.topic_partition} without a batch; send one"
            raise InvalidRecordError(message)
        is_alone = (
            isinstance(first, RecordBatch) or self.source_compression is not CompressionType.NONE
        )
        batches = [first]
        for batch in iterator:
            if is_alone:
                message = (
                    f"an append to {self.topic_partition} of more than one batch, which only old "
                    "formats without compression may be; send each alone"
                )
                raise InvalidRecordError(message)
            batches.append(batch)
        return batches

    def _check_batch(self, batch: Batch, first: Batch) -> None:
        problem = None
        if batch.magic != first.magic:
            problem = f"magic {batch.magic} behind a batch with magic {first.magic}"
        elif self.origin is AppendOrigin.CLIENT:
            if isinstance(batch, RecordBatch):
                offset_count = batch.last_offset - batch.base_offset + 1
                if offset_count <= 0:
                    problem = f"offsets {batch.base_offset} to {batch.last_offset}"
                elif batch.record_count <= 0:
                    problem = f"a record count of {batch.record_count}"
                elif offset_count != batch.record_count:
                    problem = f"{batch.record_count} records for {offset_count} offsets"
            if problem is None and batch.is_control:
                problem = "control records, which clients must not write"
            elif problem is None and batch.producer_id >= 0 and batch.base_sequence < 0:
                problem = f"base sequence {batch.base_sequence} and a producer id"
        if problem is not None:
            message = f"a batch in the append to {self.topic_partition} has {problem}"
            raise InvalidRecordError(f"{message}; mend the producer")

    # ---- v2 --------------------------------------------------------------------------------------

    def _validate_v2(
        self, batch: RecordBatch, next_offset: int, info: LogAppendInfo | None
    ) -> ValidationResult:
        self._check_batch(batch, batch)
        section: bytes | memoryview | None = None
        check = None if info is None or info.found is None else info.found.check
        if check is None or batch.attributes & LOG_APPEND_TIME_FLAG:
            section, check = self._check_section(batch)
        # Kafka takes offsets inside a batch as they come, and leaves what they break to readers.
        if not check.increasing or check.last_offset_delta > batch.last_offset - batch.base_offset:
            message = (
                f"the offsets inside a batch in the append to {self.topic_partition} do not "
                "increase up to its last one; mend the producer"
            )
            raise InvalidRecordError(message)
        if not self._is_faultless(batch, check, section):
            self._reject(batch, batch.records(self.decompressed_bytes_max))

        max_timestamp = check.max_timestamp
        if batch.attributes & LOG_APPEND_TIME_FLAG and batch.record_count > 0:
            max_timestamp = max(NO_TIMESTAMP, batch.max_timestamp)  # Every record's.
        if self._is_kept(batch, check):
            return self._assign_in_place(batch, next_offset, max_timestamp)
        if section is None:
            section = batch.section(self.decompressed_bytes_max)
        return self._encode_again(batch, section, check, next_offset)

    def _check_section(self, batch: RecordBatch) -> tuple[bytes | memoryview | None, RecordCheck]:
        """Return the decompressed records and what is to know of them."""
        if batch.record_count == 0:  # The codec is not asked.
            return b"", RecordCheck(NO_TIMESTAMP, INT64_MAX, 0, 0, -1, True, True)
        if batch.record_count < 0:
            message = f"a batch that declares {batch.record_count} records; mend the producer"
            raise InvalidRecordError(message)
        section = batch.section(self.decompressed_bytes_max)
        lowest, highest = self._timestamp_bounds()
        return section, check_records(
            section,
            batch.record_count,
            batch.base_timestamp,
            lowest_timestamp=lowest,
            highest_timestamp=highest,
        )

    def _timestamp_bounds(self) -> tuple[int, int]:
        """Return the lowest and the highest create time; Kafka's subtraction is in 64 bits."""
        lowest = self.now_ms - min(self.timestamp_before_max_ms, INT64_MAX)
        return lowest, min(self.now_ms + self.timestamp_after_max_ms, INT64_MAX)

    def _is_faultless(
        self, batch: RecordBatch, check: RecordCheck, section: bytes | memoryview | None
    ) -> bool:
        """Whether no record is to be rejected."""
        if self.compacted and check.null_keys:
            return False
        if batch.attributes & LOG_APPEND_TIME_FLAG:
            return batch.record_count == 0  # Rare, and decided record by record.
        if self.timestamp_type is TimestampType.LOG_APPEND_TIME or batch.record_count == 0:
            return True
        lowest, highest = self._timestamp_bounds()
        if check.min_timestamp >= lowest and check.max_timestamp <= highest:
            return True
        if section is None:
            section, check = self._check_section(batch)
        return check.timestamps_outside == 0

    def _is_kept(self, batch: RecordBatch, check: RecordCheck) -> bool:
        """Whether the records stay as they are."""
        if batch.record_count == 0:
            return True
        if self.source_compression is CompressionType.NONE and (
            batch.is_control or self.target_compression is CompressionType.NONE
        ):
            return True
        if self.source_compression is not self.target_compression:
            return False
        # Old producers left offsets inside as they came; such a batch is encoded again.
        return batch.base_offset == 0 and check.sequential

    def _assign_in_place(
        self, batch: RecordBatch, next_offset: int, max_timestamp: int
    ) -> ValidationResult:
        attributes = batch.attributes
        if self.timestamp_type is TimestampType.LOG_APPEND_TIME:
            max_timestamp = self.now_ms
        if batch.timestamp_type is not self.timestamp_type or batch.max_timestamp != max_timestamp:
            attributes &= _KNOWN_ATTRIBUTES & ~LOG_APPEND_TIME_FLAG
            if self.timestamp_type is TimestampType.LOG_APPEND_TIME:
                attributes |= LOG_APPEND_TIME_FLAG
        row = BatchRow(
            0,
            batch.base_offset,
            batch.last_offset,
            batch.base_timestamp,
            batch.max_timestamp,
            batch.producer_id,
            batch.size_bytes,
            batch.leader_epoch,
            batch.base_sequence,
            batch.record_count,
            batch.crc,
            batch.attributes,
            batch.producer_epoch,
            batch.magic,
            1,
        )
        return self._renumbered(row, batch.data, next_offset, max_timestamp, attributes)

    def _renumbered(
        self, row: BatchRow, data: Buffer, next_offset: int, max_timestamp: int, attributes: int
    ) -> ValidationResult:
        """Return the batch with other header fields."""
        end_offset = next_offset + row.record_count
        last_offset_delta = row.last_offset - row.base_offset
        base_offset = end_offset - 1 - last_offset_delta
        if base_offset < 0:  # Kafka would write it, and nobody could read the log then.
            message = (
                f"a batch with {row.record_count} records for {last_offset_delta + 1} offsets does "
                f"not fit log end offset {next_offset}; mend the producer"
            )
            raise InvalidRecordError(message)
        crc = row.crc
        if max_timestamp != row.max_timestamp or attributes != row.attributes:
            crc = self._crc_of(row, data, last_offset_delta, max_timestamp, attributes)
        head = BATCH_HEADER.pack(
            base_offset,
            row.size_bytes - LOG_OVERHEAD,
            self.leader_epoch,
            row.magic,
            crc,
            attributes,
            last_offset_delta,
            row.base_timestamp,
            max_timestamp,
            row.producer_id,
            row.producer_epoch,
            row.base_sequence,
            row.record_count,
        )
        records: bytearray | PatchedBatch
        # Of a control batch the log reads the records too.
        if row.size_bytes < _COPY_BYTES_MAX or attributes & CONTROL_FLAG:
            records = bytearray(data)
            records[: len(head)] = head
        else:
            records = PatchedBatch(head, data)
        header = BATCH_ROW.pack(
            0,
            base_offset,
            end_offset - 1,
            row.base_timestamp,
            max_timestamp,
            row.producer_id,
            row.size_bytes,
            self.leader_epoch,
            row.base_sequence,
            row.record_count,
            crc,
            attributes,
            row.producer_epoch,
            row.magic,
            1,
            0,
        )
        return ValidationResult(
            records,
            end_offset,
            max_timestamp,
            self.now_ms,
            False,
            0,
            np.frombuffer(header, BATCH_DTYPE),
        )

    @staticmethod
    def _crc_of(
        row: BatchRow, data: Buffer, last_offset_delta: int, max_timestamp: int, attributes: int
    ) -> int:
        """Return the CRC-32C of a batch with these header fields."""
        fields = CRC_FIELDS.pack(
            attributes,
            last_offset_delta,
            row.base_timestamp,
            max_timestamp,
            row.producer_id,
            row.producer_epoch,
            row.base_sequence,
            row.record_count,
        )
        return crc32c(view_of(data)[BATCH_OVERHEAD:], crc32c(fields))

    def _encode_again(
        self, batch: RecordBatch, section: bytes | memoryview, check: RecordCheck, next_offset: int
    ) -> ValidationResult:
        problem = producer_problem(
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            is_transactional=batch.is_transactional,
            is_control=batch.is_control,
        )
        if problem is not None:
            raise InvalidRecordError(f"{problem}, so it cannot be encoded again; mend the producer")
        if not is_as_encoded(batch, section, check):
            return self._build(batch.records(self.decompressed_bytes_max), batch, next_offset)
        # The section is what an encoder would make of its records: only the codec changes.
        is_append_time = self.timestamp_type is TimestampType.LOG_APPEND_TIME
        max_timestamp = self.now_ms if is_append_time else check.max_timestamp
        data = seal(
            section
            if self.target_compression is CompressionType.NONE
            else compress(self.target_compression, section, self.target_level),
            base_offset=next_offset,
            last_offset=next_offset + batch.record_count - 1,
            leader_epoch=self.leader_epoch,
            attributes=attributes_of(
                self.target_compression,
                self.timestamp_type,
                is_transactional=batch.is_transactional,
                is_control=batch.is_control,
            ),
            base_timestamp=batch.base_timestamp,
            max_timestamp=max_timestamp,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            record_count=batch.record_count,
        )
        return self._converted(data, next_offset, batch.record_count, max_timestamp)

    # ---- old formats, and records that are encoded again -----------------------------------------

    def _convert_legacy(self, batches: list[Batch], next_offset: int) -> ValidationResult:
        first = batches[0]
        records: list[Record] = []
        for batch in batches:
            self._check_batch(batch, first)
            assert isinstance(batch, LegacyEntry)
            messages = batch.messages(self.decompressed_bytes_max)
            if batch.is_compressed:
                for message in messages:
                    if not message.is_valid:
                        text = (
                            f"a message inside the wrapper at offset {batch.last_offset} has a "
                            "wrong CRC-32; mend the producer"
                        )
                        raise CorruptRecordError(text, offset=message.offset)
            found = batch.records_of(messages)
            self._reject(batch, found, [message.magic for message in messages])
            records += found
        return self._build(records, first, next_offset)

    def _build(self, records: list[Record], first: Batch, next_offset: int) -> ValidationResult:
        is_append_time = self.timestamp_type is TimestampType.LOG_APPEND_TIME
        lowest = min((record.timestamp for record in records), default=NO_TIMESTAMP)
        if lowest < NO_TIMESTAMP:
            message = f"timestamp {lowest} cannot be encoded again; use -1 for none"
            raise InvalidTimestampError(message)
        data = encode_batch(
            [
                (None, record.timestamp, record.key, record.value, record.headers)
                for record in records
            ],
            base_offset=next_offset,
            compression=self.target_compression,
            level=self.target_level,
            timestamp_type=self.timestamp_type,
            log_append_time=self.now_ms,
            producer_id=first.producer_id,
            producer_epoch=first.producer_epoch,
            base_sequence=first.base_sequence,
            leader_epoch=self.leader_epoch,
            is_transactional=first.is_transactional,
            is_control=first.is_control,
        )
        max_timestamp = max((record.timestamp for record in records), default=NO_TIMESTAMP)
        if is_append_time:
            max_timestamp = self.now_ms
        return self._converted(data, next_offset, len(records), max_timestamp)

    def _converted(
        self, data: bytes, next_offset: int, record_count: int, max_timestamp: int
    ) -> ValidationResult:
        return ValidationResult(
            records=data,
            next_offset=next_offset + record_count,
            max_timestamp=max_timestamp,
            log_append_time=self.now_ms,
            size_maybe_changed=True,
            records_converted=record_count,
            batches=scan_batches(data, crc=False).batches,
        )

    # ---- rejected records ------------------------------------------------------------------------

    def _reject(self, batch: Batch, records: list[Record], magics: list[int] | None = None) -> None:
        """Raise the error of the records that break a rule, if any does."""
        errors: list[tuple[int, str]] = []
        has_timestamp_error = False
        for index, record in enumerate(records):
            if magics is not None and magics[index] != batch.magic:
                magic = magics[index]
                errors.append((index, f"magic {magic} inside a wrapper of magic {batch.magic}"))
            elif self.compacted and record.key is None:
                errors.append(
                    (index, f"a record without key, but {self.topic_partition} is compacted")
                )
            elif (problem := self._timestamp_problem(batch, record)) is not None:
                errors.append((index, problem))
                has_timestamp_error = True
        if not errors:
            return
        shown = "; ".join(f"record {index}: {problem}" for index, problem in errors[:_ERRORS_SHOWN])
        message = (
            f"{len(errors)} records of an append to {self.topic_partition} are refused: {shown}"
        )
        if has_timestamp_error:
            raise InvalidTimestampError(message, record_errors=errors)
        raise InvalidRecordError(message, record_errors=errors)

    def _timestamp_problem(self, batch: Batch, record: Record) -> str | None:
        if self.timestamp_type is TimestampType.CREATE_TIME and record.timestamp != NO_TIMESTAMP:
            lowest, highest = self._timestamp_bounds()
            if lowest <= record.timestamp <= highest:
                return None
            return f"timestamp {record.timestamp} is outside [{lowest}, {highest}]"
        if batch.timestamp_type is TimestampType.LOG_APPEND_TIME:
            return "a log append time, which only the log may set"
        return None
