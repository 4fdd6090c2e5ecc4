"""
Staged batches: record batches that are finished but for their offsets, in files of one task.

Whoever has no right to append to a store (a task on some machine, of which there may be several
attempts) writes its records to such files, in the store's first directory. A commit appends them
later, those of all tasks at once, or the files are deleted. A file is written by one and not
changed any more::

    record batch, format 2, base offset 0, no producer     one for each row of the index
    ...
    index: JSON {"version": 2, "batches": [[topic, partition, position, size, records, crc], ...]}
    trailer: size of the index (4), its CRC-32C (4), "LOGSTAGE" (8)

A large batch begins at a page: the kernel copies whole pages faster. Between two batches may be
bytes that mean nothing. A task begins a new file every 16 MiB: the log then grows into the memory
of the files that a commit has read and deleted.

They are plain files in the log directory, because a broker looks at directories only, and refuses
to start with one that has no partition's name.

**Durability**: none. What was not committed is written again by another attempt, so that no file
has to survive a power loss; one that has survived in part is refused, by the CRCs of trailer, index
and batches. Decision 0084.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import struct
import sys
import uuid
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from logstore._native import GrowingBatch, crc32c
from logstore.checkpoint import TopicPartition
from logstore.errors import (
    LogStoreError,
    RecordTooLargeError,
    StagedBatchesError,
    StorageError,
    raise_first,
)
from logstore.files import REAL_FILES, Files, Path
from logstore.large_memory import LARGE_BYTES, LargeMemory
from logstore.records_builder import (
    ATTRIBUTES_AT,
    HEADER_UP_TO_MAGIC,
    LOG_OVERHEAD,
    MAGIC_V2,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from logstore._native import Columns

STAGED_PREFIX: Final = ".logstore-staged-"
BATCH_BYTES: Final = 1 << 20
# What batches that are not full hold together, and how many that are done lend their memory.
OPEN_BYTES: Final = 16 << 20
SPARES: Final = 8
INDEX_VERSION: Final = 2
# What a commit reads at once.
STRETCH_BYTES: Final = 4 << 20
PAGE_BYTES: Final = 4096
# Batches from this size on begin at a page, and get room ahead: it takes half of the time to write.
LARGE_BATCH_BYTES: Final = 64 << 10
ROOM_BYTES: Final = 8 << 20
# Batches of a file take no more, but for one that is larger by itself.
FILE_BYTES: Final = 16 << 20

_HEAD: Final = struct.Struct(">qiibI")
_TRAILER: Final = struct.Struct(">II8s")
_MAGIC: Final = b"LOGSTAGE"
_PLAIN_ID: Final = re.compile(
    r"[A-Za-z0-9_]{1,64}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
)
_NAME: Final = re.compile(
    re.escape(STAGED_PREFIX) + r"(?P<sink>.+)\.(?P<version>-?\d+)\.(?P<task>\d+)-(?P<attempt>\d+)"
    r"\.[0-9a-f]{8}(\.\d+)?"
)


class StagedName(NamedTuple):
    """
    What the name of a staged file says.

    Attributes:
        sink: The sink's id, or a hash of it: :func:`sink_slug`.
        version: What the sink is about to commit.
        task: The task that wrote it.
        attempt: Which attempt of the task.
    """

    sink: str
    version: int
    task: int
    attempt: int

    @classmethod
    def parse(cls, name: str) -> StagedName | None:
        """Return what a file's name says, None if it is no staged file."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        return cls(found["sink"], int(found["version"]), int(found["task"]), int(found["attempt"]))


def sink_slug(sink_id: str) -> str:
    """Return an id as file names have it: as it is, or if that cannot be, a hash of it."""
    if _PLAIN_ID.fullmatch(sink_id):
        return sink_id
    return "sha256-" + hashlib.sha256(sink_id.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def staged_path(directory: str, sink_id: str, version: int, task: int, attempt: int) -> str:
    """Return a path that no other attempt, of this run or an earlier one, has."""
    name = f"{sink_slug(sink_id)}.{version}.{task}-{attempt}.{uuid.uuid4().hex[:8]}"
    return os.path.join(directory, STAGED_PREFIX + name)


class StagedBatch(NamedTuple):
    """
    One batch of a staged file.

    Attributes:
        topic: Where it goes.
        partition: Likewise.
        position: Of its first byte in the file.
        size_bytes: Of the batch.
        record_count: Records in it.
        crc: Its CRC, as in its header.
    """

    topic: str
    partition: int
    position: int
    size_bytes: int
    record_count: int
    crc: int

    @property
    def place(self) -> TopicPartition:
        """Where it goes."""
        return TopicPartition(self.topic, self.partition)


class StagedBatchWriter:
    """
    Writes staged files, one after the other; leaving its block finishes them, an exception deletes.

    Args:
        path: :func:`staged_path`, of the first; those behind it have a number at their end. There
            must be no such file.
        files: The door to the file system.

    Attributes:
        paths: The files, in the order in which they were written.

    **Thread rule**: one thread.

    Raises:
        StorageError: The file cannot be made.
    """

    def __init__(self, path: Path, *, files: Files = REAL_FILES) -> None:
        path = os.fspath(path)
        self.paths: Final[list[str]] = []
        self._files = files
        self._open: dict[TopicPartition, GrowingBatch] = {}
        self._open_bytes = 0
        self._spares: list[npt.NDArray[np.uint8]] = []
        # Where the file itself needs as much.
        self._large_memory = LargeMemory(os.path.dirname(path))
        self._begin_file(path)

    def _begin_file(self, path: str) -> None:
        self._batches: list[StagedBatch] = []  # Those of this file.
        self._position = 0
        self._room_end = 0  # Up to there is room; or, where there is none to be had, no end.
        self._fd = self._files.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self.paths.append(path)

    def add(
        self,
        place: TopicPartition,
        columns: Columns,
        rows: npt.NDArray[np.int64] | range | None = None,
        *,
        batch_bytes: int = BATCH_BYTES,
        max_bytes: int | None = None,
    ) -> None:
        """
        Write records for one partition, behind those that it was given before.

        A batch is written when it is full; or with all others, when those that are not full hold
        16 MiB together, or at the end. The columns are not needed afterwards.

        Args:
            place: The partition.
            columns: The records.
            rows: Which of them, indices in contiguous memory, or those of a range; None: all.
            batch_bytes: Size of a batch; a record that is larger has one to itself.
            max_bytes: The size of a batch that the topic takes; None: any.

        Raises:
            RecordTooLargeError: A record is larger than 2^31 - 1 bytes, or than the topic takes.
            StorageError: It cannot be written; nothing of the files can be used.
        """
        first, end = 0, columns.count if rows is None else len(rows)
        if isinstance(rows, range):
            first, end, rows = rows.start, rows.stop, None
        while first < end:
            batch = self._open.get(place)
            if batch is None:
                memory = self._spares.pop() if self._spares else None
                batch = self._open[place] = GrowingBatch(batch_bytes, memory, self._large_memory)
            before = batch.size_bytes
            first += batch.add(columns, rows, first, end - first)
            size_bytes = batch.size_bytes
            self._open_bytes += size_bytes - before
            if max_bytes is not None and size_bytes > max_bytes:
                raise RecordTooLargeError(
                    f"a record for {place} makes a batch of {size_bytes} bytes, larger than"
                    f" the topic's max.message.bytes {max_bytes}; raise it",
                    topic=place.topic,
                    partition=place.partition,
                )
            if first < end or size_bytes >= batch_bytes:
                self._write(place)
        if self._open_bytes >= OPEN_BYTES:
            self._write_all()

    def _write(self, place: TopicPartition) -> None:
        batch = self._open.pop(place)
        self._open_bytes -= batch.size_bytes
        data = batch.seal(base_offset=0, leader_epoch=-1)
        is_large = len(data) >= LARGE_BATCH_BYTES
        if is_large:
            self._position = -(-self._position // PAGE_BYTES) * PAGE_BYTES
        if self._position > 0 and self._position + len(data) > FILE_BYTES:
            self._finish_file()
            self._begin_file(f"{self.paths[0]}.{len(self.paths)}")
        if is_large:
            self._make_room(self._position + len(data))
        size_bytes = self._files.pwrite(self._fd, data, self._position)
        self._batches.append(
            StagedBatch(*place, self._position, size_bytes, batch.record_count, _crc_of(data))
        )
        self._position += size_bytes
        if len(self._spares) < SPARES and size_bytes <= BATCH_BYTES:
            self._spares.append(batch.memory)

    def _make_room(self, end: int) -> None:
        """Allocate ahead; whether there is space at all, the write will say."""
        while self._room_end < end:
            start, self._room_end = self._room_end, self._room_end + ROOM_BYTES
            try:
                if self._files.fallocate(self._fd, start, ROOM_BYTES):
                    continue
            except StorageError:
                pass
            self._room_end = sys.maxsize

    def _write_all(self) -> None:
        for place in list(self._open):
            self._write(place)

    def finish(self) -> None:
        """
        Write what is left; on return the files are whole for whoever opens them.

        Raises:
            StorageError: They are not: a file system may tell only when a file is closed.
        """
        self._write_all()
        self._finish_file()

    def _finish_file(self) -> None:
        index = json.dumps(
            {"version": INDEX_VERSION, "batches": self._batches}, separators=(",", ":")
        ).encode()
        trailer = _TRAILER.pack(len(index), crc32c(index), _MAGIC)
        end = self._position + self._files.pwrite(self._fd, index + trailer, self._position)
        if end < self._room_end < sys.maxsize:
            self._files.ftruncate(self._fd, end)  # Gives back what was allocated ahead.
        self._close()

    def discard(self) -> None:
        """Delete the files."""
        try:
            self._close()
        finally:
            delete_staged(self.paths, self._files)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._files.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        with contextlib.ExitStack() as failing:
            failing.callback(self._discard_quietly)
            if error is None:
                self.finish()
                failing.pop_all()

    def _discard_quietly(self) -> None:
        with contextlib.suppress(LogStoreError):  # The first error is the one to see.
            self.discard()


class ReadMemory:
    """
    Memory that batches are read into, again and again: new memory costs more than what is read.

    Args:
        directory: Where what is very large is mapped from a file.
        files: The door to the file system.

    **Thread rule**: one thread.
    """

    def __init__(self, directory: str, files: Files) -> None:
        self._directory = directory
        self._files = files
        self._buffer = memoryview(b"")

    def take(self, size_bytes: int, skew: int = 0) -> memoryview:
        """
        Return so many bytes of it, writable; they are whoever's was here last.

        Args:
            size_bytes: More than 0.
            skew: Where in a page they begin.
        """
        end = skew + size_bytes
        if len(self._buffer) < end:
            room = size_bytes + PAGE_BYTES  # With any skew.
            self._buffer = (
                self._files.page_aligned_buffer(room)
                if room <= LARGE_BYTES
                else LargeMemory(self._directory).take(room)
            )
        return self._buffer[skew:end]


class StagedFile:
    """
    A staged file that is finished, open for reading.

    Args:
        path: The file.
        files: The door to the file system.
        memory: What to read into, one file after the other; None: its own.

    Attributes:
        path: The file.
        batches: What is in it, in the order in which it was written.

    Raises:
        StagedBatchesError: There is no such file, or it is not whole.
        StorageError: It cannot be read.
    """

    def __init__(
        self, path: Path, *, files: Files = REAL_FILES, memory: ReadMemory | None = None
    ) -> None:
        self.path: Final = os.fspath(path)
        self._files = files
        self._memory = memory or ReadMemory(os.path.dirname(self.path), files)
        try:
            self._fd = files.open(self.path, os.O_RDONLY)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            raise StagedBatchesError(
                f"the staged records {self.path} are not here; tasks and whoever commits need the"
                " same directory, and none may be older than a week",
                path=self.path,
            ) from error
        try:
            self.batches: Final = self._read_index()
        except BaseException:
            self.close()
            raise

    def _read_index(self) -> list[StagedBatch]:
        size = self._files.size(self._fd)
        end = size - _TRAILER.size
        if end < 0:
            raise self.not_whole()
        index_size, crc, magic = _TRAILER.unpack(self._files.pread(self._fd, _TRAILER.size, end))
        if magic != _MAGIC or index_size > end:
            raise self.not_whole()
        index = self._files.pread(self._fd, index_size, end - index_size)
        if crc32c(index) != crc:
            raise self.not_whole()
        found = json.loads(index)
        if found["version"] != INDEX_VERSION:
            raise self.not_whole()
        return [StagedBatch(*row) for row in found["batches"]]

    def not_whole(self) -> StagedBatchesError:
        """Return the error that says so."""
        return StagedBatchesError(
            f"the staged records {self.path} are not whole; write them again", path=self.path
        )

    def stretches(self) -> Iterator[list[StagedBatch]]:
        """Yield the batches, those of one partition together and in order, as many as are read."""
        waiting: dict[TopicPartition, list[StagedBatch]] = {}
        for batch in self.batches:
            waiting.setdefault(batch.place, []).append(batch)
        for batches in waiting.values():
            first = size_bytes = 0
            for at, batch in enumerate(batches):
                if at > first and size_bytes + batch.size_bytes > STRETCH_BYTES:
                    yield batches[first:at]
                    first, size_bytes = at, 0
                size_bytes += batch.size_bytes
            yield batches[first:]

    def read(self, batches: Sequence[StagedBatch], skew: int = 0) -> memoryview:
        """
        Return the bytes of batches, one after the other and writable.

        Whoever appends them verifies the CRCs in them, which do not cover the first fields.

        Args:
            batches: Some of the file's.
            skew: Where in a page the first begins: as in the file that they are written to, as
                that is copied faster.

        **Lifetime**: until the next call for this memory.

        Raises:
            StagedBatchesError: This is not what was written.
            StorageError: It cannot be read.
        """
        view = self._memory.take(sum(batch.size_bytes for batch in batches), skew)
        end = 0
        for batch in batches:
            start, end = end, end + batch.size_bytes
            part = view[start:end]
            if self._files.pread_into(self._fd, part, batch.position) < batch.size_bytes:
                raise self.not_whole()
            if part[:ATTRIBUTES_AT] != _head_of(batch):
                raise self.not_whole()
        return view

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._files.close(fd)


def _crc_of(batch: memoryview) -> int:
    return int.from_bytes(batch[HEADER_UP_TO_MAGIC:ATTRIBUTES_AT], "big")


def _head_of(batch: StagedBatch) -> bytes:
    """Return what a batch begins with, up to its CRC."""
    return _HEAD.pack(0, batch.size_bytes - LOG_OVERHEAD, -1, MAGIC_V2, batch.crc)


def delete_staged(paths: Iterable[str], files: Files = REAL_FILES) -> None:
    """
    Delete staged files, also those that are gone already.

    Raises:
        StorageError: One could not be deleted; those behind it were.
    """
    errors: list[StorageError] = []
    for path in paths:
        try:
            files.unlink(path, missing_ok=True)
        except StorageError as error:
            errors.append(error)
    if errors:
        raise_first(errors)
