"""
Analysis of an append: what the batches are, and whether they may be appended at all.

Nothing of the log is needed but its configuration, so this runs before the log's lock is taken. A
batch of a well-behaved producer costs one pass in the native core, which verifies the CRC and at
the same time learns what the validator will ask of the records. Whatever does not pass there is
looked at again, batch by batch in Kafka's order, for the error that Kafka would raise.

Source: Kafka ``UnifiedLog.analyzeAndValidateRecords``, ``LogAppendInfo``; spec 5.2, 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from logstore._native import (
    BATCH_DTYPE,
    BATCH_OVERHEAD,
    SCAN_STOP_END,
    SCAN_STOP_TORN,
    Buffer,
    ScannedBatch,
    scan_batches,
    scan_one,
    size_of,
    view_of,
)
from logstore.append_origin import AppendOrigin
from logstore.compression import CompressionType
from logstore.errors import (
    CorruptRecordError,
    InvalidRecordError,
    OffsetsOutOfOrderError,
    RecordTooLargeError,
)
from logstore.legacy import LegacyEntry
from logstore.record import LOG_OVERHEAD, NO_TIMESTAMP, RecordBatch, iterate_batches
from logstore.records_builder import CODEC_MASK

UNKNOWN_OFFSET: Final = -1
NO_LEADER_EPOCH: Final = -1

_CODEC_MAX: Final = max(CompressionType).value


class LeaderHwChange(Enum):
    """What an append did to the leader's high watermark. Source: Kafka ``LeaderHwChange``."""

    INCREASED = "increased"
    SAME = "same"
    NONE = "none"


@dataclass(slots=True)
class LogAppendInfo:
    """
    What an append is, from the analysis on; the log fills in what it assigns.

    Attributes:
        first_offset: -1 if the first batch is of an old format and offsets are not assigned.
        last_offset: Of the last batch; -1 if there is none.
        last_leader_epoch: Of the last batch; None if unknown.
        max_timestamp: Of all batches; -1 for none.
        offset_of_max_timestamp: Last offset of the first batch that has it; -1 for none.
        log_append_time: When the log stamped the records; -1 if the producer did.
        log_start_offset: Of the log at that moment; -1 until the log fills it in.
        source_compression: Codec of the last compressed batch.
        valid_bytes: Size of the complete entries, without a cut one at the end.
        last_offset_of_first_batch: -1 if there is none.
        records_converted: Records that the validator had to encode again.
        record_errors: ``(index, message)`` of rejected records.
        leader_hw_change: Of the leader's high watermark, by this append.
        duplicate: The producer had sent the batch before; nothing was written.
        batches: Headers, as ``BATCH_DTYPE``, of data that is v2 only; else None, and None if the
            native core has appended the batches at once.
        found: What the native core found, if there is one batch only; the validator uses it.

    Source: Kafka ``LogAppendInfo``.
    """

    first_offset: int = UNKNOWN_OFFSET
    last_offset: int = UNKNOWN_OFFSET
    last_leader_epoch: int | None = None
    max_timestamp: int = NO_TIMESTAMP
    offset_of_max_timestamp: int = UNKNOWN_OFFSET
    log_append_time: int = NO_TIMESTAMP
    log_start_offset: int = UNKNOWN_OFFSET
    source_compression: CompressionType = CompressionType.NONE
    valid_bytes: int = 0
    last_offset_of_first_batch: int = UNKNOWN_OFFSET
    records_converted: int = 0
    record_errors: list[tuple[int, str]] = field(default_factory=list)
    leader_hw_change: LeaderHwChange = LeaderHwChange.NONE
    duplicate: bool = False
    batches: npt.NDArray[Any] | None = field(default=None, repr=False, compare=False)
    found: ScannedBatch | None = field(default=None, repr=False, compare=False)

    @property
    def message_count(self) -> int:
        """Offsets that the append covers; 0 if the first or the last is unknown."""
        if self.first_offset < 0 or self.last_offset < 0:
            return 0
        return self.last_offset - self.first_offset + 1

    @property
    def first_or_last_offset_of_first_batch(self) -> int:
        """The first offset; for old formats, which do not tell it, the first batch's last."""
        return self.first_offset if self.first_offset >= 0 else self.last_offset_of_first_batch


def analyze(
    data: Buffer,
    *,
    origin: AppendOrigin,
    leader_epoch: int,
    max_message_bytes: int | None,
    assign_offsets: bool,
    topic_partition: str = "",
) -> LogAppendInfo:
    """
    Return what an append is, after the checks that need no log.

    Args:
        data: Entries one after the other; one that is cut off at the end is left out.
        origin: Whose rules apply.
        leader_epoch: The leader's; a follower leaves out batches from a higher one on.
        max_message_bytes: Bound of a batch; None: not checked, as on a follower.
        assign_offsets: The leader will; if not, offsets must increase from batch to batch.
        topic_partition: For messages.

    Raises:
        InvalidRecordError: A rule of the origin is broken.
        RecordTooLargeError: A batch is larger than ``max_message_bytes``.
        CorruptRecordError: A length, magic or CRC is wrong.
        OffsetsOutOfOrderError: Offsets do not increase, and are not to be assigned.
        UnsupportedCompressionTypeError: A codec is not known.

    Cost: one pass over the bytes.
    """
    rules = _Rules(
        origin, leader_epoch, max_message_bytes, assign_offsets, topic_partition or "the log"
    )
    info = _analyze_at_once(data, rules)
    return _analyze_each(data, rules) if info is None else info


class _Rules(NamedTuple):
    origin: AppendOrigin
    leader_epoch: int
    max_message_bytes: int | None
    assign_offsets: bool
    topic_partition: str

    def leaves_out(self, batch_epoch: int) -> bool:
        """Whether a follower leaves out a batch with this leader epoch."""
        return (
            self.origin is AppendOrigin.REPLICATION
            and batch_epoch != NO_LEADER_EPOCH
            and batch_epoch > self.leader_epoch
        )


def _analyze_at_once(data: Buffer, rules: _Rules) -> LogAppendInfo | None:
    """Return the analysis if every batch is in order; None: look at each, for the error."""
    size_bytes = size_of(data)
    if size_bytes < BATCH_OVERHEAD:
        return None
    if rules.assign_offsets or _first_size(data) == size_bytes:
        found = scan_one(data, records=rules.assign_offsets)
        return None if found is None else _analyze_one(found, rules)
    scan = scan_batches(data)
    if len(scan.batches) == 0 or not (
        scan.stop == SCAN_STOP_END
        or (scan.stop == SCAN_STOP_TORN and _is_only_cut(data, scan.valid_bytes))
    ):
        return None
    return _analyze_many(scan.batches, rules)


def _first_size(data: Buffer) -> int:
    return LOG_OVERHEAD + int.from_bytes(view_of(data)[8:LOG_OVERHEAD], "big")


def _is_only_cut(data: Buffer, position: int) -> bool:
    """Whether the bytes from ``position`` on are the beginning of an entry, and no damage."""
    try:
        return next(iterate_batches(view_of(data)[position:]), None) is None
    except CorruptRecordError:
        return False


def _analyze_one(found: ScannedBatch, rules: _Rules) -> LogAppendInfo | None:
    row = found.row
    batches = np.frombuffer(found.header, BATCH_DTYPE)
    if rules.leaves_out(row.leader_epoch):
        return LogAppendInfo(batches=batches[:0])
    codec_id = row.attributes & CODEC_MASK
    if (
        codec_id > _CODEC_MAX
        or (rules.max_message_bytes is not None and row.size_bytes > rules.max_message_bytes)
        or (rules.origin is AppendOrigin.CLIENT and row.base_offset != 0)
        or (rules.origin is AppendOrigin.RAFT_LEADER and row.leader_epoch != rules.leader_epoch)
    ):
        return None
    return LogAppendInfo(
        first_offset=row.base_offset,
        last_offset=row.last_offset,
        last_leader_epoch=None if row.leader_epoch == NO_LEADER_EPOCH else row.leader_epoch,
        max_timestamp=max(NO_TIMESTAMP, row.max_timestamp),
        offset_of_max_timestamp=row.last_offset if row.max_timestamp >= 0 else UNKNOWN_OFFSET,
        source_compression=CompressionType.for_id(codec_id),
        valid_bytes=row.size_bytes,
        last_offset_of_first_batch=row.last_offset,
        batches=batches,
        found=found,
    )


def _analyze_many(batches: npt.NDArray[Any], rules: _Rules) -> LogAppendInfo | None:
    epochs = batches["leader_epoch"]
    if rules.origin is AppendOrigin.REPLICATION:
        left_out = epochs > rules.leader_epoch  # -1, unknown, is never above.
        if left_out.any():
            batches = batches[: int(left_out.argmax())]
            if len(batches) == 0:
                return LogAppendInfo(batches=batches)
    codecs = batches["attributes"] & CODEC_MASK
    last_offsets = batches["last_offset"]
    bytes_max = rules.max_message_bytes
    if (
        codecs.max() > _CODEC_MAX
        or (bytes_max is not None and batches["size_bytes"].max() > bytes_max)
        or (rules.origin is AppendOrigin.CLIENT and batches["base_offset"].any())
        or (rules.origin is AppendOrigin.RAFT_LEADER and (epochs != rules.leader_epoch).any())
        or not (rules.assign_offsets or (last_offsets[1:] > last_offsets[:-1]).all())
    ):
        return None
    timestamps = batches["max_timestamp"]
    of_max = int(timestamps.argmax())  # The first one wins.
    max_timestamp = int(timestamps[of_max])
    compressed = codecs[codecs != 0]
    last = batches[-1]
    last_epoch = int(last["leader_epoch"])
    return LogAppendInfo(
        first_offset=int(batches[0]["base_offset"]),
        last_offset=int(last["last_offset"]),
        last_leader_epoch=None if last_epoch == NO_LEADER_EPOCH else last_epoch,
        max_timestamp=max(NO_TIMESTAMP, max_timestamp),
        offset_of_max_timestamp=int(last_offsets[of_max]) if max_timestamp >= 0 else UNKNOWN_OFFSET,
        source_compression=CompressionType.for_id(int(compressed[-1]) if len(compressed) else 0),
        valid_bytes=int(last["position"] + last["size_bytes"]),
        last_offset_of_first_batch=int(last_offsets[0]),
        batches=batches,
    )


def _analyze_each(data: Buffer, rules: _Rules) -> LogAppendInfo:
    """Return the analysis, one batch after the other: old formats, several batches, errors."""
    info = LogAppendInfo()
    is_first = True
    is_left_out = False
    last_offset = UNKNOWN_OFFSET
    last_epoch = NO_LEADER_EPOCH
    is_v2_only = True
    is_increasing = True
    for batch in iterate_batches(data):
        _check_origin(batch, rules)
        is_left_out = is_left_out or rules.leaves_out(batch.leader_epoch)
        if is_left_out:
            continue
        if is_first:
            if isinstance(batch, RecordBatch):
                info.first_offset = batch.base_offset
            info.last_offset_of_first_batch = batch.last_offset
            is_first = False
        is_increasing = is_increasing and last_offset < batch.last_offset
        last_offset = batch.last_offset
        last_epoch = batch.leader_epoch
        if rules.max_message_bytes is not None and batch.size_bytes > rules.max_message_bytes:
            message = (
                f"a batch of {batch.size_bytes} bytes in the append to {rules.topic_partition} is "
                f"larger than {rules.max_message_bytes}; split it or raise max.message.bytes"
            )
            raise RecordTooLargeError(message)
        batch.ensure_valid()
        if batch.max_timestamp > info.max_timestamp:
            info.max_timestamp = batch.max_timestamp
            info.offset_of_max_timestamp = last_offset
        info.valid_bytes += batch.size_bytes
        if batch.compression_type is not CompressionType.NONE:
            info.source_compression = batch.compression_type
        is_v2_only = is_v2_only and isinstance(batch, RecordBatch)
        if not (rules.assign_offsets or is_increasing):
            message = (
                f"the batch that ends at offset {last_offset} in the append to "
                f"{rules.topic_partition} does not follow the one before; sort them"
            )
            raise OffsetsOutOfOrderError(message, offset=last_offset)
    info.last_offset = last_offset
    info.last_leader_epoch = None if last_epoch == NO_LEADER_EPOCH else last_epoch
    if is_v2_only:
        info.batches = scan_batches(view_of(data)[: info.valid_bytes], crc=False).batches
    return info


def _check_origin(batch: RecordBatch | LegacyEntry, rules: _Rules) -> None:
    if rules.origin is AppendOrigin.RAFT_LEADER and batch.leader_epoch != rules.leader_epoch:
        message = (
            f"the Raft leader of epoch {rules.leader_epoch} appends a batch with epoch "
            f"{batch.leader_epoch}; set the batch's"
        )
        raise InvalidRecordError(message)
    if (
        rules.origin is AppendOrigin.CLIENT
        and isinstance(batch, RecordBatch)
        and batch.base_offset != 0
    ):
        message = (
            f"the base offset of a batch in the append to {rules.topic_partition} is "
            f"{batch.base_offset}; producers send 0"
        )
        raise InvalidRecordError(message)
