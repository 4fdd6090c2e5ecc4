"""
A copy of a log: its batches as they are, at the offsets that they have.

A copy is written as a follower writes: leader epochs, producers and markers of transactions are
those of the source, so that idempotence and ``read_committed`` mean the same there. Only what must
be is encoded anew: batches that the range cuts, those that get another codec, and entries of
magic 0 and 1, which become v2 batches.

Source: Kafka ``ReplicaFetcherThread.processPartitionData``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore._native import SCAN_STOP_END, SCAN_STOP_TORN, Buffer, scan_batches
from logstore.compression import CompressionType
from logstore.errors import CorruptRecordError, LogExistsError, OffsetOutOfRangeError
from logstore.legacy import LegacyEntry
from logstore.readable_log import Isolation, Start, start_offset, stop_offset
from logstore.record import RecordBatch, encode_batch, increment_sequence, iterate_batches
from logstore.records_builder import INT32_MAX
from logstore.timestamp_type import NO_TIMESTAMP, TimestampType

if TYPE_CHECKING:
    from logstore.log import Log

# What is read and appended at once; less where a segment is smaller.
COPIED_BYTES: Final = 1 << 20


class LogCopy(NamedTuple):
    """
    What was copied.

    Attributes:
        offsets: From the first offset to the end, exclusive; those without a record count as well.
        size_bytes: What was appended.
    """

    offsets: range
    size_bytes: int


def copy_log(
    source: Log,
    target: Log,
    start: Start = "earliest",
    stop: int | datetime | None = None,
    *,
    isolation: Isolation = "read_committed",
    compression: str | None = None,
    advance: Callable[[int], None] | None = None,
) -> LogCopy:
    """
    Copy a range of a log to the end of another one.

    An empty target begins where the range begins. One that has records already goes on where it
    ends, if what it has there is the source's.

    Args:
        source: What is copied; it may be written meanwhile.
        target: What is appended to.
        start: Where the range begins; without effect on a target that has records.
        stop: Where it ends, exclusive; None: at the end that ``isolation`` shows.
        isolation: With ``read_committed`` it ends before the first open transaction.
        compression: The codec that data batches get; None: each keeps its own.
        advance: Told how many offsets more are copied.

    **Durability**: as of any append: ``target.flush()`` makes it durable.

    Raises:
        LogExistsError: The target has other records, or more than the source.
        OffsetOutOfRangeError: The source does not begin before the range, or the target's end.
        CorruptRecordError: The source is damaged; what lies before is copied.
        RecordTooLargeError: A batch is larger than a segment of the target.
    """
    codec = None if compression is None else CompressionType.of(compression)
    first = start_offset(source, start, isolation)
    end = stop_offset(source, stop, isolation)
    if target.log_end_offset:
        check_continues(source, target)
        first = target.log_end_offset
    elif first:
        target.truncate_fully_and_start_at(first)
    chunk_bytes = min(COPIED_BYTES, target.config.segment_bytes)
    position, size_bytes = first, 0
    while position < end:
        fetched = source.fetch(position, max_bytes=chunk_bytes, isolation=isolation)
        next_offset = fetched.next_offset
        if next_offset is None:
            break  # Nothing but a gap is left.
        if next_offset > source.log_end_offset:
            raise _out_of_order(source, next_offset)
        data = fetched.memoryview()
        # Offsets and lengths are outside of the CRCs, and appends look at last offsets only.
        scan = scan_batches(data, next_offset=position, crc=False, order=True)
        is_as_it_is = (
            codec is None
            and scan.stop in (SCAN_STOP_END, SCAN_STOP_TORN)
            and scan.next_offset == next_offset <= end
        )
        epoch = max(0, target.leader_epoch)
        parts: Iterable[Buffer] = [data[: scan.valid_bytes]]
        if not is_as_it_is:
            parts = _rewritten(data, range(position, end), codec, epoch)
        for part in filter(len, parts):
            target.append_batches(part, leader_epoch=INT32_MAX, origin="replication")
            size_bytes += len(part)
        next_offset = min(next_offset, end)
        if advance is not None:
            advance(next_offset - position)
        position = next_offset
    return LogCopy(range(first, max(first, target.log_end_offset)), size_bytes)


def check_continues(source: Log, target: Log) -> None:
    """
    Check that a log ends where a source still has records, and as the source does there.

    Raises:
        LogExistsError, OffsetOutOfRangeError: It does not.
    """
    end = target.log_end_offset
    if end > source.log_end_offset:
        raise LogExistsError(
            f"{target.directory} ends at offset {end}, behind {source.directory}, which ends at"
            f" {source.log_end_offset}; copy to a new place",
            path=target.directory,
        )
    if end < source.log_start_offset:
        raise OffsetOutOfRangeError(
            f"{target.directory} ends at offset {end}, and {source.directory} begins at"
            f" {source.log_start_offset} only; copy to a new place",
            log_start_offset=source.log_start_offset,
            log_end_offset=source.log_end_offset,
            offset=end,
        )
    theirs, ours = _last_records(source, end), _last_records(target, end)
    different = [offset for offset in theirs.keys() & ours.keys() if theirs[offset] != ours[offset]]
    if different:
        raise LogExistsError(
            f"{target.directory} has another record at offset {min(different)} than"
            f" {source.directory}; copy to a new place",
            path=target.directory,
        )


def _last_records(log: Log, end: int) -> dict[int, tuple[object, ...]]:
    """Return what the last records before an offset say, by offset: those of one batch."""
    if end <= log.log_start_offset:
        return {}
    fetched = log.fetch(end - 1, max_bytes=1, isolation="log_end")
    return {
        record.offset: (record.timestamp, record.key, record.value, record.headers)
        for batch in fetched.batches()
        for record in batch.records()
        if record.offset < end
    }


def _out_of_order(source: Log, offset: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"{source.directory} has offset {offset - 1} where it cannot be; run `logstore verify`",
        path=source.directory,
        offset=offset - 1,
    )


def _rewritten(
    data: Buffer, offsets: range, codec: CompressionType | None, leader_epoch: int
) -> Iterator[Buffer]:
    """
    Yield the batches in a buffer as v2 batches that reach no further than ``offsets``, some empty.

    Args:
        data: Whole batches; a cut one at the end is ignored.
        offsets: What lies outside is left out.
        codec: What data batches are compressed with; None: each keeps its own.
        leader_epoch: Of those that had none.

    Raises:
        CorruptRecordError: A batch is damaged.
    """
    next_offset = 0
    for batch in iterate_batches(data):
        batch.ensure_valid()
        if batch.base_offset < next_offset:
            # Else what a damaged offset puts behind the range would be left out.
            raise CorruptRecordError(
                f"offset {batch.base_offset} comes behind {next_offset - 1}; run `logstore verify`",
                offset=batch.base_offset,
            )
        next_offset = batch.next_offset
        if batch.last_offset < offsets.start or batch.base_offset >= offsets.stop:
            continue
        if isinstance(batch, LegacyEntry):
            yield _as_v2(batch, offsets, codec, leader_epoch)
        elif batch.base_offset < offsets.start or batch.last_offset >= offsets.stop:
            yield cut_batch(batch, offsets, codec)
        elif (
            codec is None
            or codec is batch.compression_type
            or batch.is_control
            or batch.record_count == 0
        ):
            yield batch.data
        else:
            yield _recompressed(batch, codec)


def _recompressed(batch: RecordBatch, codec: CompressionType) -> bytes:
    return batch.with_section(
        batch.section(),
        codec,
        record_count=batch.record_count,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
        has_delete_horizon=batch.delete_horizon_ms is not None,
    )


def cut_batch(batch: RecordBatch, offsets: range, codec: CompressionType | None = None) -> bytes:
    """
    Return what of a batch lies within ``offsets``, nothing if no record does.

    Its producer's numbers move along with the first record.

    Args:
        batch: The batch.
        offsets: What lies outside is left out.
        codec: What it is compressed with; None: as it was.
    """
    base_offset = max(batch.base_offset, offsets.start)
    base_sequence = batch.base_sequence
    if base_sequence >= 0:
        base_sequence = increment_sequence(base_sequence, base_offset - batch.base_offset)
    return encode_batch(
        [record for record in batch.records() if record.offset in offsets],
        base_offset=base_offset,
        last_offset=min(batch.last_offset, offsets.stop - 1),
        compression=batch.compression_type if codec is None else codec,
        timestamp_type=batch.timestamp_type,
        log_append_time=batch.max_timestamp,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=base_sequence,
        leader_epoch=batch.leader_epoch,
        is_transactional=batch.is_transactional,
        is_control=batch.is_control,
        delete_horizon=NO_TIMESTAMP if batch.delete_horizon_ms is None else batch.delete_horizon_ms,
    )


def _as_v2(
    entry: LegacyEntry, offsets: range, codec: CompressionType | None, leader_epoch: int
) -> bytes:
    return encode_batch(
        [record for record in entry.records() if record.offset in offsets],
        compression=entry.compression_type if codec is None else codec,
        timestamp_type=TimestampType(entry.timestamp_type),
        log_append_time=entry.max_timestamp,
        leader_epoch=leader_epoch,
    )
