"""
Finished batches that become a transaction's: verified in one pass, appended many at a time.

A batch that a leader leaves as it is gets producer, sequence, offset, epoch and times into its
header, and the CRC that follows from the old one. Those that go to the same segment are written
together. Every other one, which is to be compressed or refused, goes the way of a client's.

Source: Kafka ``LogValidator.assignOffsetsNonCompressed``; spec 5.3, 5.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from logstore._native import (
    SCAN_STOP_END,
    SCAN_STOP_FULL,
    CheckedScan,
    assign_batches,
    number_batches,
    scan_checked,
)
from logstore.append_analysis import LogAppendInfo
from logstore.append_origin import AppendOrigin
from logstore.appending import append_locked, validator_of
from logstore.compression import CompressionType
from logstore.errors import CorruptRecordError, InvalidRecordError
from logstore.records_builder import CONTROL_FLAG, TRANSACTIONAL_FLAG

if TYPE_CHECKING:
    import numpy.typing as npt

    from logstore.appending import AppendingPartition
    from logstore.producer_state import VerificationGuard

BATCHES_MAX: Final = 64  # Of one scan; whoever has more goes on with the next ones.


def append_finished(
    log: AppendingPartition,
    data: memoryview,
    *,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    leader_epoch: int,
    verification_guard: VerificationGuard | None,
) -> int:
    """
    Append batches that no producer has numbered as a part of a producer's transaction.

    Args:
        log: Where to.
        data: Batches of format 2, and nothing behind them. Their headers are changed in place.
        producer_id: Whose they become.
        producer_epoch: Likewise.
        base_sequence: Sequence number of the first record.
        leader_epoch: The leader's.
        verification_guard: Of the producer's first append in this transaction.

    Returns:
        The sequence number of the next record.

    Raises:
        CorruptRecordError: A batch is damaged.
        InvalidRecordError: A batch is a producer's already, or the log refuses its records.
        RecordTooLargeError: A batch is larger than max.message.bytes.
        StorageError: It cannot be written.

    After an error, batches before the one in question may be in the log: the transaction has to be
    aborted.
    """
    while len(data):
        found = scan_checked(data, cap=BATCHES_MAX)
        scan = found.scan
        if scan.stop not in (SCAN_STOP_END, SCAN_STOP_FULL):
            raise CorruptRecordError(
                f"{len(data) - scan.valid_bytes} bytes begin with no whole batch of format 2, or"
                " its CRC is wrong; encode the records again"
            )
        _check_owners(scan.batches)
        base_sequence = number_batches(
            data,
            scan.batches,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )
        _append(log, data, found, leader_epoch, verification_guard)
        data = data[scan.valid_bytes :]
    return base_sequence


def _check_owners(batches: npt.NDArray[Any]) -> None:
    attributes, owners = batches["attributes"], batches["producer_id"]
    if (owners != -1).any() or (attributes & (TRANSACTIONAL_FLAG | CONTROL_FLAG)).any():
        raise InvalidRecordError(
            f"batches with attributes {attributes.tolist()} are of the producers"
            f" {owners.tolist()}; give some that are nobody's"
        )


def _append(
    log: AppendingPartition,
    data: memoryview,
    found: CheckedScan,
    leader_epoch: int,
    verification_guard: VerificationGuard | None,
) -> None:
    log.check_writable()
    log.flush_metadata()
    batches = found.scan.batches
    first = 0
    while first < len(batches):
        rest = CheckedScan(found.scan._replace(batches=batches[first:]), found.checks[first:])
        with log.changing():
            count = _count_that_goes_together(log, rest, leader_epoch)
            _append_together(log, data, rest, count, leader_epoch, verification_guard)
        if count == 0:
            count = 1
            start, size_bytes = (int(batches[first][name]) for name in ("position", "size_bytes"))
            batch = data[start : start + size_bytes]
            log.append_as_leader(batch, leader_epoch, AppendOrigin.CLIENT, verification_guard)
        first += count
    log.flush_if_due()


def _count_that_goes_together(
    log: AppendingPartition, found: CheckedScan, leader_epoch: int
) -> int:
    """Return how many of the first batches stay as they are, and belong to one segment."""
    config = log.config
    validator = validator_of(log, CompressionType.NONE, leader_epoch, AppendOrigin.CLIENT)
    room_bytes = config.segment_bytes - log.active_segment.size_bytes
    count = 0
    for row, check in found.rows():
        if (
            check is None
            or row.base_offset != 0
            or row.size_bytes > config.max_message_bytes
            or not validator.keeps_records(row, check)
        ):
            break
        if count == 0 and row.size_bytes > room_bytes:
            room_bytes = config.segment_bytes  # It begins the next one.
        room_bytes -= row.size_bytes
        if count > 0 and room_bytes < 0:
            break
        count += 1
    return count


def _append_together(
    log: AppendingPartition,
    data: memoryview,
    found: CheckedScan,
    count: int,
    leader_epoch: int,
    verification_guard: VerificationGuard | None,
) -> None:
    if count == 0:
        return
    batches = found.scan.batches[:count].copy()
    start = int(batches["position"][0])
    end = int(batches["position"][-1] + batches["size_bytes"][-1])
    batches["position"] -= start
    first_offset = log.log_end_offset
    is_append_time = log.config.message_timestamp_type == "LogAppendTime"
    next_offset = assign_batches(
        data[start:end],
        batches,
        found.checks[:count],
        next_offset=first_offset,
        leader_epoch=leader_epoch,
        log_append_time=log.clock.milliseconds() if is_append_time else -1,
    )
    info = LogAppendInfo(
        first_offset=first_offset,
        last_offset=next_offset - 1,
        max_timestamp=int(batches["max_timestamp"].max()),
    )
    append_locked(log, data[start:end], batches, AppendOrigin.CLIENT, info, verification_guard)
