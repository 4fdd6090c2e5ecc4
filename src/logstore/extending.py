"""
Appending records as a leader that makes the batches itself: ``extend`` in all its forms.

C walks lists and columns, encodes, checks and writes (``Writer``); here is decided when to roll,
what is all or nothing, and what must be compressed on the way, which happens in Python because the
codecs are not in C.

Source: DESIGN.md, "The interface at a glance".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from logstore._native import Buffer, Columns, encode_batch, encode_records, scan_batches, seal_batch
from logstore.arrow_columns import ArrowRows, arrow_rows
from logstore.compression import CompressionType, compress
from logstore.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    LogStoreError,
    PartialAppendError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
)
from logstore.given_records import (
    GivenColumns,
    GivenRecords,
    Headers,
    columns_of,
    given_records,
)
from logstore.timestamp_type import NO_TIMESTAMP

if TYPE_CHECKING:
    import numpy.typing as npt

    from logstore.config import LogConfig
    from logstore.unified_log import UnifiedLog

# Writes records [first, …) in one go, all or nothing if asked; returns how many it wrote.
_Write = Callable[[int, bool], int]

COMPRESSIONS: Final = ("gzip", "snappy", "lz4", "zstd")
# Compressed batches are written when they have this size, so that few of them are in memory.
PIECE_BYTES: Final = 1 << 20


class Extender:
    """One append of records that are not encoded yet."""

    __slots__ = ("_log",)

    def __init__(self, log: UnifiedLog) -> None:
        self._log = log

    def extend(
        self,
        values: Iterable[Buffer | None],
        keys: Iterable[Buffer | None] | None,
        timestamps: Iterable[int | datetime] | None,
        headers: Iterable[Headers] | None,
        compression: str | None,
    ) -> range:
        """Append what a caller gave; see ``Log.extend``."""
        in_c = self._codec(compression) is CompressionType.NONE
        parts = given_records(values, keys, timestamps, headers, check_items=not in_c)
        return self.extend_parts(parts, compression)

    def extend_parts(
        self, parts: Iterator[GivenRecords | ArrowRows], compression: str | None
    ) -> range:
        """Append what a caller gave and was looked at; see ``given_records``, ``arrow_rows``."""
        codec = self._codec(compression)
        now_ms = self._log.clock.milliseconds()
        # Of sized input the first part is all there is: it is looked at before the lock is taken.
        parts = _chain(next(parts, None), parts)
        return self._append(self._write_of(part, codec, now_ms) for part in parts)

    def extend_arrow(
        self, data: Any, value: str, key: str | None, timestamp: str | None, compression: str | None
    ) -> range:
        """Append rows of Arrow data; see ``Log.extend_arrow``."""
        in_c = self._codec(compression) is CompressionType.NONE
        now_ms = self._log.clock.milliseconds()
        # All of them are looked at before the first is written.
        parts = list(arrow_rows(data, value, key, timestamp, now_ms, check_times=not in_c))
        return self.extend_parts(iter(parts), compression)

    def _codec(self, compression: str | None) -> CompressionType:
        if compression is None:
            configured = self._log.config.compression_type
            compression = "none" if configured in ("producer", "uncompressed") else configured
        if compression not in ("none", *COMPRESSIONS):
            raise ValueError(f"compression {compression!r} is not one of {', '.join(COMPRESSIONS)}")
        return CompressionType.of(compression)

    # -- several writes, one range -----------------------------------------------------------------

    def _append(self, writes: Iterator[tuple[int, _Write]]) -> range:
        """
        Write part after part, rolling in between, and return the offsets of all of them.

        Raises:
            PartialAppendError: A part failed after another one was published.
        """
        log = self._log
        with log.changing():
            first = end = log.log_end_offset
            try:
                for count, write in writes:
                    log.prepare_append()
                    self._write_part(count, write)
                    end = log.log_end_offset
            except (LogStoreError, ValueError, TypeError) as error:
                end = log.log_end_offset
                if end == first:
                    raise
                raise PartialAppendError(
                    f"the append failed after offsets {first} to {end - 1}: {error}",
                    appended=range(first, end),
                    path=log.directory,
                ) from error
        log.flush_if_due()
        return range(first, end)

    def _write_part(self, count: int, write: _Write) -> None:
        """
        Write a part: in one piece if it fits a segment, else in pieces of at most a segment.

        Source: DESIGN.md: sized input that fits one segment is all or nothing.
        """
        log = self._log
        if count == 0 or write(0, True) == count:
            return
        if log.active_segment.size_bytes > 0:
            log.roll_segment(is_to_append=True)
            if write(0, True) == count:
                return
        done = 0
        while done < count:
            written = write(done, False)
            done += written
            if done < count:
                if written == 0 and log.active_segment.size_bytes == 0:
                    raise RecordBatchTooLargeError(
                        f"record {done} does not fit a segment of"
                        f" {log.config.segment_bytes} bytes; raise segment.bytes",
                        path=log.directory,
                    )
                log.roll_segment(is_to_append=True)

    # -- what writes -------------------------------------------------------------------------------

    def _write_of(
        self, part: GivenRecords | ArrowRows, codec: CompressionType, now_ms: int
    ) -> tuple[int, _Write]:
        in_c = codec is CompressionType.NONE
        if isinstance(part, ArrowRows):
            if in_c:
                return self._columns_write(part.columns(now_ms))
            return self._compressed_write(part.given(now_ms), codec)
        return (
            self._list_write(part)
            if in_c
            else self._compressed_write(columns_of(part, now_ms), codec)
        )

    def _list_write(self, part: GivenRecords) -> tuple[int, _Write]:
        writer = self._log.writer

        def write(first: int, all_or_nothing: bool) -> int:
            return writer.append_list(
                part.values,
                part.keys,
                part.timestamps,
                part.headers,
                first=first,
                all_or_nothing=all_or_nothing,
                order=part.order,
            ).record_count

        return len(part), write

    def _columns_write(self, columns: Columns) -> tuple[int, _Write]:
        writer = self._log.writer

        def write(first: int, all_or_nothing: bool) -> int:
            return writer.append_columns(
                columns,
                first,
                columns.count - first,
                all_or_nothing=all_or_nothing,
                checked=not all_or_nothing,  # By the first call, which is for all or nothing.
            ).record_count

        return columns.count, write

    def _compressed_write(self, given: GivenColumns, codec: CompressionType) -> tuple[int, _Write]:
        log = self._log
        config = log.config
        columns = given.columns
        now_ms = log.clock.milliseconds()
        check_settings(config, given.null_key, given.timestamps, now_ms, path=self._log.directory)
        level = {
            CompressionType.GZIP: config.compression_gzip_level,
            CompressionType.LZ4: config.compression_lz4_level,
            CompressionType.ZSTD: config.compression_zstd_level,
        }.get(codec)

        def write(first: int, all_or_nothing: bool) -> int:
            run = _CompressedRun(log, columns, first, codec, level, now_ms)
            try:
                log.write_pieces(run.pieces(all_or_nothing), run.last_offset)
            except _NotWrittenError:
                return 0
            return run.done - first

        return columns.count, write


def encoded_batch(
    columns: Columns,
    first: int,
    codec: CompressionType,
    level: int | None = None,
    *,
    batch_bytes: int,
    attributes: int = 0,
    **fields: int,
) -> tuple[bytes, int]:
    """
    Return one batch of records from ``first`` on, and how many it has.

    Args:
        columns: The records.
        first: Index of the first.
        codec: Of the records section.
        level: Of the codec; None is its default.
        batch_bytes: Size to aim at, before compression.
        attributes: Without codec bits.
        **fields: As ``batch_fields`` takes them.

    Raises:
        RecordTooLargeError: It would be larger than 2^31 - 1 bytes.
    """
    fields["batch_bytes"] = batch_bytes
    if codec is CompressionType.NONE:
        encoded = encode_batch(columns, first, attributes=attributes, **fields)
        return encoded.data, encoded.record_count
    section = encode_records(columns, first, attributes=attributes, **fields)
    batch = seal_batch(
        compress(codec, section.data, level),
        base_timestamp=section.base_timestamp,
        max_timestamp=section.max_timestamp,
        last_offset_delta=section.record_count - 1,
        record_count=section.record_count,
        attributes=attributes | int(codec),
        **fields,
    )
    return batch, section.record_count


def check_settings(
    config: LogConfig,
    null_key: int | None,
    timestamps: npt.NDArray[np.int64] | None,
    now_ms: int,
    path: str | None = None,
) -> None:
    """
    Refuse what the settings do not allow, as C does for what it takes at once.

    Args:
        config: The settings.
        null_key: Index of the first record without a key.
        timestamps: Of each record; None: the time of the append.
        now_ms: What time it is.
        path: Where the records were to go.

    Raises:
        InvalidRecordError: A record has no key, and the log is compacted.
        InvalidTimestampError: A time is outside the bounds.
    """
    if config.compact and null_key is not None:
        raise InvalidRecordError(
            f"record {null_key} has no key, and the log is compacted; give keys",
            record_errors=[(null_key, "a record without key")],
            path=path,
        )
    if timestamps is None or config.message_timestamp_type == "LogAppendTime":
        return
    lowest = now_ms - config.message_timestamp_before_max_ms
    highest = now_ms + config.message_timestamp_after_max_ms
    wrong = np.flatnonzero(
        (timestamps != NO_TIMESTAMP) & ((timestamps < lowest) | (timestamps > highest))
    )
    if len(wrong):
        first = int(wrong[0])
        problem = f"timestamp {timestamps[first]} is outside [{lowest}, {highest}]"
        raise InvalidTimestampError(
            f"record {first}: {problem}; see message.timestamp.before.max.ms and after.max.ms",
            record_errors=[(first, problem)],
            path=path,
        )


class _NotWrittenError(Exception):
    """What is to be written in one go has to wait for another segment."""


class _CompressedRun:
    """
    Records that are compressed and written in one go, a piece at a time.

    Attributes:
        done: The first record that is not in a batch yet.
    """

    __slots__ = (
        "_append_time",
        "_base_offset",
        "_codec",
        "_columns",
        "_first",
        "_level",
        "_log",
        "done",
    )

    def __init__(
        self,
        log: UnifiedLog,
        columns: Columns,
        first: int,
        codec: CompressionType,
        level: int | None,
        now_ms: int,
    ) -> None:
        self._log = log
        self._columns = columns
        self._codec = codec
        self._level = level
        self._first = first
        self._base_offset = log.log_end_offset
        is_append_time = log.config.message_timestamp_type == "LogAppendTime"
        self._append_time = now_ms if is_append_time else NO_TIMESTAMP
        self.done = first

    def last_offset(self) -> int:
        """Return the offset of the last record that is in a batch."""
        return self._base_offset + self.done - self._first - 1

    def pieces(self, all_or_nothing: bool) -> Iterator[tuple[bytes, npt.NDArray[Any]]]:
        """
        Yield as many batches as the active segment takes, with their headers.

        Raises:
            _NotWrittenError: It takes none of them, or not all of those that must stay together.
        """
        log = self._log
        size_bytes = 0
        for sealed in self._sealed(all_or_nothing):
            data = b"".join(sealed)
            size_bytes += len(data)
            headers = scan_batches(data, crc=False).batches
            # The segment's size does not move before the last piece: all of them are asked for.
            if log.must_roll(headers, size_bytes):
                raise _NotWrittenError
            yield data, headers
        if size_bytes == 0:
            raise _NotWrittenError

    def _sealed(self, all_or_nothing: bool) -> Iterator[list[bytes]]:
        """Yield batches, a piece at a time, until the segment is full or the records end."""
        log = self._log
        room = log.config.segment_bytes - log.active_segment.size_bytes
        sealed: list[bytes] = []
        size_bytes = 0
        while self.done < self._columns.count:
            batch, record_count = self._batch()
            room -= len(batch)
            if room < 0:
                if all_or_nothing:
                    raise _NotWrittenError
                break
            sealed.append(batch)
            size_bytes += len(batch)
            self.done += record_count
            if size_bytes >= PIECE_BYTES:
                yield sealed
                sealed = []
                size_bytes = 0
        if sealed:
            yield sealed

    def _batch(self) -> tuple[bytes, int]:
        """Return the next batch and how many records it has."""
        config = self._log.config
        fields = {
            "base_offset": self.last_offset() + 1,
            "leader_epoch": self._log.leader_epoch,
            "log_append_time": self._append_time,
        }
        batch, record_count = encoded_batch(
            self._columns,
            self.done,
            self._codec,
            self._level,
            batch_bytes=config.batch_bytes,
            **fields,
        )
        if len(batch) > config.max_message_bytes:
            raise RecordTooLargeError(
                f"the batch of record {self.done} has {len(batch)} bytes, over"
                f" max.message.bytes {config.max_message_bytes}; split the record",
                path=self._log.directory,
            )
        return batch, record_count


def _chain(
    first: GivenRecords | ArrowRows | None, rest: Iterator[GivenRecords | ArrowRows]
) -> Iterator[GivenRecords | ArrowRows]:
    return rest if first is None else itertools.chain([first], rest)
