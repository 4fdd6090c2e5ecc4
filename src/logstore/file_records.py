"""
What a read of the log answers: a range of a segment file, where it is, and the watermarks then.

The bytes of a range are the segment's, unchanged: whole batches, perhaps with a cut one at the
end. Nothing is read before somebody asks for it.

Source: Kafka ``FileRecords``, ``FetchDataInfo``, ``LogOffsetMetadata``; spec 1.2, 4.5, 5.6.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from logstore.errors import CorruptRecordError
from logstore.record import iterate_batches

if TYPE_CHECKING:
    from logstore.files import FileHandle
    from logstore.legacy import LegacyEntry
    from logstore.record import RecordBatch

    Batch: TypeAlias = RecordBatch | LegacyEntry

UNKNOWN_POSITION: Final = -1

LOG_OVERHEAD: Final = 12  # Base offset and length: the bytes that `length` does not count.
HEADER_UP_TO_MAGIC: Final = 17
ENTRY_BYTES_MIN: Final = LOG_OVERHEAD + 14  # A magic 0 message.

# What one read of a file fetches; a batch that is larger is read alone. PERFORMANCE.md A: from
# 256 KiB on a larger read is not faster, and small ones cost twice.
CHUNK_BYTES: Final = 1 << 20


class LogOffsetMetadata(NamedTuple):
    """
    An offset and where it is in the log; the two positions are -1 when only the offset is known.

    Source: Kafka ``LogOffsetMetadata``.
    """

    message_offset: int
    segment_base_offset: int = UNKNOWN_POSITION
    relative_position_in_segment: int = UNKNOWN_POSITION

    @property
    def message_offset_only(self) -> bool:
        """Whether the position is not known."""
        return self.segment_base_offset == UNKNOWN_POSITION

    def on_older_segment(self, that: LogOffsetMetadata) -> bool:
        """Return whether this is in an older segment than ``that``; both positions are known."""
        assert not self.message_offset_only
        assert not that.message_offset_only
        return self.segment_base_offset < that.segment_base_offset

    def on_same_segment(self, that: LogOffsetMetadata) -> bool:
        """Return whether both are in one segment; both positions are known."""
        assert not self.message_offset_only
        assert not that.message_offset_only
        return self.segment_base_offset == that.segment_base_offset

    def position_diff(self, that: LogOffsetMetadata) -> int:
        """Return the bytes from ``that`` to this one, which is in the same segment."""
        assert self.on_same_segment(that)
        return self.relative_position_in_segment - that.relative_position_in_segment


class AbortedTransaction(NamedTuple):
    """
    An aborted transaction that a read_committed reader has to skip.

    Its records are those of ``producer_id`` from ``first_offset`` up to the abort marker.
    """

    producer_id: int
    first_offset: int


class FileRecords:
    """
    A range of one segment file, at a batch boundary.

    The first batch may begin before the offset that was asked for, and the last one may be cut:
    a reader drops the records before its offset and ignores a cut batch at the end.

    **Lifetime**: a range borrows its segment's file. It can be read while the log is open and the
    segment exists, and raises ClosedError after. What it returned stays valid.

    **Thread rule**: any number of threads may read one range.

    Source: Kafka ``FileRecords.slice``.
    """

    __slots__ = ("_handle", "_next_offset", "file_position", "size_bytes")

    def __init__(self, handle: FileHandle | None, file_position: int, size_bytes: int) -> None:
        assert file_position >= 0
        assert size_bytes >= 0
        assert handle is not None or size_bytes == 0
        self._handle = handle
        self._next_offset: int | None = None
        self.file_position = file_position
        self.size_bytes = size_bytes

    def __repr__(self) -> str:
        return f"FileRecords({self.path!r}, {self.file_position}, {self.size_bytes})"

    def __len__(self) -> int:
        return self.size_bytes

    def __bool__(self) -> bool:
        return self.size_bytes > 0

    @property
    def path(self) -> str | None:
        """The segment file; None if the range is empty because nothing could be read."""
        return None if self._handle is None else str(self._handle.path)

    @property
    def next_offset(self) -> int | None:
        """
        The offset after the last whole batch: where to read on. None if no batch is whole.

        Cost: the first use reads the range's batch headers.
        """
        if self._next_offset is None:
            for batch in self.batches():
                self._next_offset = batch.next_offset
        return self._next_offset

    def read_into(self, buffer: bytearray | memoryview, position: int = 0) -> int:
        """
        Fill ``buffer`` with the range's bytes from ``position`` on and return how many there were.

        Fewer than ``len(buffer)`` only at the end of the range.
        """
        assert 0 <= position <= self.size_bytes
        view = memoryview(buffer).cast("B")
        size = min(len(view), self.size_bytes - position)
        if size == 0:
            return 0
        assert self._handle is not None
        with self._handle.lease() as fd:
            read = self._handle.files.pread_into(fd, view[:size], self.file_position + position)
        if read != size:
            raise _cut_short(self.path, self.file_position + position, size, read)
        return size

    def to_bytes(self) -> bytes:
        """Return all bytes of the range."""
        if self.size_bytes == 0:
            return b""
        return self._read(0, self.size_bytes)

    def batches(self) -> Iterator[Batch]:
        """
        Yield the whole batches of the range, headers only parsed; see RecordBatch.ensure_valid.

        Raises:
            CorruptRecordError: At the position of an entry whose size or magic cannot be.
            ClosedError: The log was closed, or the segment deleted.
        """
        position = 0
        chunk_bytes = CHUNK_BYTES
        while self.size_bytes - position >= ENTRY_BYTES_MIN:
            data = self._read(position, min(chunk_bytes, self.size_bytes - position))
            consumed = 0
            try:
                for batch in iterate_batches(data):
                    yield batch
                    consumed += batch.size_bytes
            except CorruptRecordError as error:
                error.path = self.path
                error.position = self.file_position + position + consumed
                raise
            if consumed == 0:
                chunk_bytes = LOG_OVERHEAD + int.from_bytes(data[8:12], "big")
                if chunk_bytes > self.size_bytes - position:
                    return  # The range ends inside this batch.
            else:
                chunk_bytes = CHUNK_BYTES
            position += consumed

    def _read(self, position: int, size: int) -> bytes:
        assert self._handle is not None
        with self._handle.lease() as fd:
            data = self._handle.files.pread(fd, size, self.file_position + position)
        if len(data) != size:
            raise _cut_short(self.path, self.file_position + position, size, len(data))
        return data


def _cut_short(path: str | None, position: int, size: int, read: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"the file ends {size - read} bytes before the end of what was written;"
        " run `logstore verify`",
        path=path,
        position=position + read,
    )


NO_RECORDS: Final = FileRecords(None, 0, 0)


class FetchDataInfo(NamedTuple):
    """
    The answer to a fetch: bytes, where they are, and the watermarks of the same moment.

    Source: Kafka ``FetchDataInfo`` and ``LogReadInfo``.
    """

    #: Of the first batch in ``records``: its base offset, which may lie before the fetch offset.
    fetch_offset_metadata: LogOffsetMetadata
    records: FileRecords
    #: Whether the first batch is larger than ``max_bytes`` and was cut.
    first_entry_incomplete: bool = False
    #: None unless the isolation is read_committed; ordered as the abort markers are.
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    log_end_offset: int = -1

    @property
    def next_offset(self) -> int | None:
        """The offset to fetch next, None if no whole batch is here; see FileRecords.next_offset."""
        return self.records.next_offset
