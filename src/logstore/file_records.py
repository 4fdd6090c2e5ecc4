"""
What a read of the log answers: a range of a segment file, where it is, and the watermarks then.

The bytes of a range are the segment's, unchanged: whole batches, perhaps with a cut one at the
end. Nothing is read before somebody asks for it.

Source: Kafka ``FileRecords``, ``FetchDataInfo``, ``LogOffsetMetadata``; spec 1.2, 4.5, 5.6.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self, TypeAlias

from logstore.errors import ClosedError, CorruptRecordError, StorageError
from logstore.files import HeldLease
from logstore.range_sender import FileRange
from logstore.record import iterate_batches
from logstore.records_builder import LOG_OVERHEAD

if TYPE_CHECKING:
    from logstore.file_views import FileViews
    from logstore.files import FileHandle
    from logstore.legacy import LegacyEntry
    from logstore.range_sender import Sendable
    from logstore.record import RecordBatch

    Batch: TypeAlias = RecordBatch | LegacyEntry

View: TypeAlias = memoryview  # By another name than the methods'.

UNKNOWN_POSITION: Final = -1

ENTRY_BYTES_MIN: Final = LOG_OVERHEAD + 14  # A magic 0 message.

# What one read of a file fetches; a batch that is larger is read alone. PERFORMANCE.md A: from
# 256 KiB on a larger read is not faster, and small ones cost twice.
CHUNK_BYTES: Final = 1 << 20
PAGE_BYTES: Final = 4096


class BufferedFile(Protocol):
    """A binary file of Python's, as far as copying into it needs it."""

    def fileno(self) -> int:
        """Return the descriptor."""
        ...

    def flush(self) -> None:
        """Write what is buffered."""
        ...

    def tell(self) -> int:
        """Return the position."""
        ...

    def seek(self, offset: int, /) -> int:
        """Move to a position."""
        ...


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

    **Lifetime**: a range leases its segment's file: its bytes stay what they are, whether the
    segment is truncated, deleted or compacted. Once the log is closed, or the range, its next use
    raises ClosedError. What it returned stays valid after all of that. The descriptor, and the disk
    space of a deleted segment, are given back with :meth:`close`, or with the range.

    **Thread rule**: any number of threads may use one range.

    Args:
        handle: The segment's file; None: an empty range of nothing.
        file_position: Of the first byte.
        size_bytes: Length.
        views: Of the file, if it is sealed: bytes are mapped then, not read.

    Source: Kafka ``FileRecords.slice``.
    """

    __slots__ = (
        "_handle",
        "_lease",
        "_next_offset",
        "_path",
        "_views",
        "file_position",
        "size_bytes",
    )

    def __init__(
        self,
        handle: FileHandle | None,
        file_position: int,
        size_bytes: int,
        views: FileViews | None = None,
    ) -> None:
        assert file_position >= 0
        assert size_bytes >= 0
        assert handle is not None or size_bytes == 0
        self._handle = handle
        self._path = None if handle is None else str(handle.path)
        self._views = views
        self._next_offset: int | None = None
        self.file_position = file_position
        self.size_bytes = size_bytes
        self._lease: HeldLease | None = None if handle is None else HeldLease(handle)

    def __repr__(self) -> str:
        return f"FileRecords({self.path!r}, {self.file_position}, {self.size_bytes})"

    def __len__(self) -> int:
        return self.size_bytes

    def __bool__(self) -> bool:
        return self.size_bytes > 0

    @property
    def path(self) -> str | None:
        """The segment file; None if the range is empty because nothing could be read."""
        return self._path if self._handle is None else str(self._handle.path)

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.size_bytes

    @property
    def next_offset(self) -> int | None:
        """
        The offset after the last whole batch: where to read on. None if no batch is whole.

        Cost: the first use reads the range's batch headers.
        """
        if self._next_offset is None:
            for batch in self.batches():  # An offset that is wrong must not lead back.
                self._next_offset = max(batch.next_offset, self._next_offset or 0)
        return self._next_offset

    def read_into(self, buffer: bytearray | View, position: int = 0) -> int:
        """
        Fill ``buffer`` with the range's bytes from ``position`` on and return how many there were.

        Fewer than ``len(buffer)`` only at the end of the range.
        """
        assert 0 <= position <= self.size_bytes
        view = memoryview(buffer).cast("B")
        size = min(len(view), self.size_bytes - position)
        if size == 0:
            return 0
        lease = self._held()
        read = lease.files.pread_into(lease.fd, view[:size], self.file_position + position)
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
            ClosedError: The log, or the range, was closed.
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

    # -- without a copy in Python ------------------------------------------------------------------

    def memoryview(self) -> View:
        """
        Return the bytes of the range, read-only.

        Of a sealed segment they are mapped: nothing is read before it is touched, and the view
        keeps the file's pages, also when the file is deleted. Else they were read into pages of
        their own. In both cases the view stays valid and unchanged for as long as it is held.

        Raises:
            ClosedError: The log, or the range, was closed.
            CorruptRecordError: The file is shorter than what was written.
        """
        if self.size_bytes == 0:
            return memoryview(b"")
        lease = self._held()
        end = self.file_position + self.size_bytes
        if self._views is not None and lease.files.size(lease.fd) >= end:
            with contextlib.suppress(StorageError):  # No more mappings: read then.
                mapping = self._views.map(lease.files, lease.fd, end)
                return mapping.view[self.file_position : end]
        # At the same place in a page as in the file: other copies may take four times as long.
        skew = self.file_position % PAGE_BYTES
        buffer = lease.files.page_aligned_buffer(skew + self.size_bytes)[skew:]
        self.read_into(buffer)
        return buffer.toreadonly()

    def send_to(self, socket: Sendable, offset: int = 0) -> int:
        """
        Send the bytes from ``offset`` on and return how many the socket has taken.

        A blocking socket takes all. A non-blocking one may take fewer, or none: go on with
        ``offset`` plus what was returned once it is writable. With a timeout, that is the longest
        wait without progress; what was sent until then is returned.

        By sendfile, which copies nothing in this process; a TLS socket, which has to see the bytes,
        and whatever has no sendfile, get them through memory.

        Args:
            socket: A connected stream socket.
            offset: Where in the range to begin, in bytes.

        Raises:
            TimeoutError: The socket took nothing at all within its timeout.
            OSError: What the socket says, such as BrokenPipeError.
            ClosedError: The log, or the range, was closed.
            CorruptRecordError: The file is shorter than what was written.
            TypeError: No socket, nor anything with its ``fileno``.

        Source: Kafka ``FileRecords.writeTo``.
        """
        if not hasattr(socket, "fileno"):
            raise TypeError(f"send_to takes a connected socket, not {type(socket).__name__}")
        if not 0 <= offset <= self.size_bytes:
            raise ValueError(f"offset {offset} is not in the range of {self.size_bytes} bytes")
        if offset == self.size_bytes:
            return 0
        lease = self._held()
        position, size = self.file_position + offset, self.size_bytes - offset
        sending = FileRange(lease.files, lease.fd, position, size)
        if not sending.send_to(socket):
            read = sending.sent_bytes
            raise _cut_short(self.path, position, size, read)
        return sending.sent_bytes

    def copy_to(self, file: int | BufferedFile, position: int | None = None) -> int:
        """
        Copy the range into another file, within the kernel where that is possible.

        Args:
            file: A descriptor, or a binary file that is open for writing.
            position: Where in the file to begin; None: where it stands, which moves on.

        Returns:
            ``size_bytes``.

        Raises:
            StorageError: The file takes no more, or cannot be written.
            ClosedError: The log, or the range, was closed.
            CorruptRecordError: The segment is shorter than what was written.
        """
        if self.size_bytes == 0:
            return 0
        lease = self._held()
        if isinstance(file, int):
            target, start = file, os.lseek(file, 0, os.SEEK_CUR) if position is None else position
        else:
            file.flush()
            target, start = file.fileno(), file.tell() if position is None else position
        copied = lease.files.copy_range(
            lease.fd, self.file_position, target, start, self.size_bytes
        )
        if position is None:
            if isinstance(file, int):
                os.lseek(file, start + copied, os.SEEK_SET)
            else:
                file.seek(start + copied)
        if copied != self.size_bytes:
            raise _cut_short(self.path, self.file_position, self.size_bytes, copied)
        return copied

    # -- close -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give the file back; a second call does nothing. What is being sent is sent to its end."""
        self._lease = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.close()

    def _held(self) -> HeldLease:
        """Return the lease, which a call keeps for itself while it uses the descriptor."""
        lease, handle = self._lease, self._handle
        if lease is None or handle is None or (handle.is_closed and not handle.is_retired):
            raise ClosedError(
                "the log, or this range of it, is closed; fetch again", path=self.path
            )
        return lease

    def _read(self, position: int, size: int) -> bytes:
        lease = self._held()
        data = lease.files.pread(lease.fd, size, self.file_position + position)
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

    @property
    def size(self) -> int:
        """Length of the range in bytes."""
        return self.records.size_bytes

    @property
    def file_position(self) -> int:
        """Where in its segment's file the range begins."""
        return self.records.file_position

    def batches(self) -> Iterator[Batch]:
        """Yield the whole batches; see FileRecords.batches."""
        return self.records.batches()

    def memoryview(self) -> View:
        """Return the bytes, which stay valid; see FileRecords.memoryview."""
        return self.records.memoryview()

    def read_into(self, buffer: bytearray | View, position: int = 0) -> int:
        """Fill a buffer from a position of the range on; see FileRecords.read_into."""
        return self.records.read_into(buffer, position)

    def send_to(self, socket: Sendable, offset: int = 0) -> int:
        """Send the bytes from ``offset`` on and return how many; see FileRecords.send_to."""
        return self.records.send_to(socket, offset)

    def copy_to(self, file: int | BufferedFile, position: int | None = None) -> int:
        """Copy the bytes into another file; see FileRecords.copy_to."""
        return self.records.copy_to(file, position)
