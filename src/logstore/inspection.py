"""
What is on disk, seen without opening it as a log.

Read-only and without locks: for a directory that a broker or another program is using, for a
copied disk, for one damaged file. Files are read with pread, never mapped, so that a media error
is an error and not the end of the process (DESIGN.md D6).

``dump``, ``info``, ``verify`` and ``repair`` are built on this.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logstore import _native
from logstore.checkpoint import topic_partition_of
from logstore.errors import CorruptRecordError, LogStoreError
from logstore.files import REAL_FILES, Files
from logstore.legacy import LegacyEntry
from logstore.record import RecordBatch, iterate_batches

CHUNK_BYTES = 4 << 20
ENTRY_BYTES_MAX = 2**31 - 1
HEADER_UP_TO_MAGIC = 17
LOG_OVERHEAD = 12
BATCH_OVERHEAD = 61

Entry = RecordBatch | LegacyEntry


class Damage(NamedTuple):
    """
    Bytes of a file that are not what they should be.

    Attributes:
        path: The file.
        position: First damaged byte.
        size_bytes: How many bytes are affected; 0 if a file as a whole is meant.
        offset: The next offset expected there, or None.
        kind: ``torn`` (ends inside an entry), ``zeros``, ``corrupt``, ``order``, ``index``,
            ``snapshot``, ``checkpoint`` or ``gap``.
        reason: One sentence.
    """

    path: Path
    position: int
    size_bytes: int
    offset: int | None
    kind: str
    reason: str

    def __str__(self) -> str:
        offset = "" if self.offset is None else f" offset {self.offset}:"
        return f"{self.path}: position {self.position}:{offset} {self.kind}: {self.reason}"


class Part(NamedTuple):
    """
    Consecutive valid entries of a ``.log`` file.

    Attributes:
        position: Of the first byte of ``data`` in the file.
        data: The bytes; freshly read, the caller may keep them.
        batches: Headers, ``BATCH_DTYPE``, with ``position`` relative to the file. A magic 0 or 1
            entry has its outer offset as base and last offset, and record count -1.
    """

    position: int
    data: memoryview
    batches: npt.NDArray[Any]

    def entries(self) -> Iterator[tuple[int, Entry]]:
        """Yield each entry with its position in the file."""
        position = self.position
        for entry in iterate_batches(self.data):
            yield position, entry
            position += entry.size_bytes


def find_partitions(path: Path) -> list[Path]:
    """
    Return the partition directories at or below ``path``, sorted by name.

    ``path`` may be one partition, a log directory, or a copied disk with log directories in it.
    """
    if is_partition(path):
        return [path]
    found: list[Path] = []
    for directory, names, _ in os.walk(path):
        names.sort()
        for name in list(names):
            candidate = Path(directory, name)
            if is_partition(candidate):
                found.append(candidate)
                names.remove(name)
    return found


def is_partition(path: Path) -> bool:
    """Return whether a directory holds segments, or is named and marked like a partition."""
    try:
        names = os.listdir(path)
    except (NotADirectoryError, FileNotFoundError):
        return False
    if any(name.endswith(".log") and name[:-4].isdecimal() for name in names):
        return True
    return "partition.metadata" in names or (
        "leader-epoch-checkpoint" in names and topic_partition_of(path.name) is not None
    )


def segment_paths(directory: Path) -> list[tuple[int, Path]]:
    """Return the base offset and path of every ``.log`` file, ascending."""
    return sorted(
        (int(name[:-4]), directory / name)
        for name in os.listdir(directory)
        if name.endswith(".log") and name[:-4].isdecimal()
    )


def scan_log_file(
    path: Path,
    *,
    next_offset: int | None = None,
    files: Files = REAL_FILES,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[Part | Damage]:
    """
    Read a ``.log`` file from its start: runs of valid entries, and the damage between them.

    CRCs, the structure of uncompressed records, sizes and the order of offsets are checked. After
    damage, reading goes on at the next bytes that are a valid batch with a later offset.

    Args:
        path: The file.
        next_offset: Lowest offset that its first entry may have; its base offset if None.
        files: The door to the file system.
        chunk_bytes: How much is read at a time; a larger entry is read whole.

    Cost: One pass. Memory: two chunks, or one entry if that is larger.
    """
    descriptor = files.open(path, os.O_RDONLY)
    try:
        yield from _Scan(path, descriptor, files, chunk_bytes).parts(
            base_offset_of(path) if next_offset is None else next_offset
        )
    finally:
        files.close(descriptor)


def base_offset_of(path: Path) -> int:
    """Return the offset in a file's name: what stands before the first dot."""
    stem = path.name.split(".", 1)[0]
    return int(stem) if stem.isdecimal() else 0


class _Scan:
    """The scan of one file; see :func:`scan_log_file`."""

    def __init__(self, path: Path, descriptor: int, files: Files, chunk_bytes: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._files = files
        self._chunk_bytes = chunk_bytes
        self._size = files.size(descriptor)
        self._resumed_at = 0

    def _read(self, position: int, size: int) -> memoryview:
        return memoryview(self._files.pread(self._descriptor, size, position))

    def parts(self, next_offset: int) -> Iterator[Part | Damage]:
        position = 0
        while position < self._size:
            data = self._read(position, self._chunk_bytes)
            if not data:
                return  # Cut while it was read.
            part, next_offset = self._valid_part(data, position, next_offset)
            if part is not None:
                yield part
                position += len(part.data)
                if position == self._size:
                    return
            entry_bytes = self._entry_bytes(position)
            if part is not None and len(part.data) + entry_bytes > len(data):
                continue  # What comes next is not yet read as a whole.
            if part is None and len(data) < entry_bytes <= self._size - position:
                # One entry larger than a chunk.
                part, next_offset = self._valid_part(
                    self._read(position, entry_bytes), position, next_offset
                )
                if part is not None:
                    yield part
                    position += len(part.data)
                    continue
            yield self._damage(position, next_offset)
            position = self._resumed_at

    def _damage(self, position: int, next_offset: int) -> Damage:
        """Return the damage at ``position``; reading goes on at ``_resumed_at``."""
        end = self._resumed_at = self._resynchronise(position, next_offset)
        size = end - position
        data = self._read(position, min(max(self._entry_bytes(position), HEADER_UP_TO_MAGIC), size))
        kind = "corrupt"
        try:
            entry = next(iterate_batches(data), None)
        except LogStoreError as error:
            reason = error.message
        else:
            if entry is None:
                kind, reason = "torn", "the last entry is not complete"
            else:
                kind, reason = _entry_problem(entry, next_offset)
        if end < self._size:
            return Damage(
                self._path, position, size, next_offset, "corrupt" if kind == "torn" else kind,
                f"{reason}; {size} bytes up to the next valid batch",
            )  # fmt: skip
        if self._is_zero(position, end):
            kind, reason = "zeros", "zero bytes, as a crash leaves behind a grown file"
        return Damage(
            self._path, position, size, next_offset, kind,
            f"{reason}; no valid batch follows in the last {size} bytes",
        )  # fmt: skip

    def _is_zero(self, position: int, end: int) -> bool:
        while position < end:
            data = self._read(position, min(self._chunk_bytes, end - position))
            if not data or any(data):
                return False
            position += len(data)
        return True

    def _entry_bytes(self, position: int) -> int:
        """Size that the entry at ``position`` claims, or 0 if it cannot be one."""
        header = self._read(position, HEADER_UP_TO_MAGIC)
        if len(header) < HEADER_UP_TO_MAGIC:
            return 0
        length = int.from_bytes(header[8:12], "big", signed=True)
        return LOG_OVERHEAD + length if 0 < length <= ENTRY_BYTES_MAX - LOG_OVERHEAD else 0

    def _valid_part(
        self, data: memoryview, position: int, next_offset: int
    ) -> tuple[Part | None, int]:
        """Return the valid entries at the start of ``data``, and the next offset expected."""
        found: list[npt.NDArray[Any]] = []
        valid_bytes = 0
        while valid_bytes < len(data):
            scan = _native.scan_batches(
                data[valid_bytes:],
                position=position + valid_bytes,
                next_offset=next_offset,
                records=True,
                order=True,
            )
            found.append(scan.batches)
            valid_bytes += scan.valid_bytes
            next_offset = scan.next_offset
            if scan.stop != _native.SCAN_STOP_LEGACY:
                break
            row = self._legacy_row(data[valid_bytes:], position + valid_bytes, next_offset)
            if row is None:
                break
            found.append(row)
            valid_bytes += int(row["size_bytes"][0])
            next_offset = int(row["last_offset"][0]) + 1
        if valid_bytes == 0:
            return None, next_offset
        return Part(position, data[:valid_bytes], np.concatenate(found)), next_offset

    def _legacy_row(
        self, data: memoryview, position: int, next_offset: int
    ) -> npt.NDArray[Any] | None:
        try:
            entry = next(iterate_batches(data), None)
            if not isinstance(entry, LegacyEntry) or entry.last_offset < next_offset:
                return None
            entry.ensure_valid()
        except LogStoreError:
            return None
        row = np.zeros(1, _native.BATCH_DTYPE)
        row["position"] = position
        row["base_offset"] = row["last_offset"] = entry.last_offset
        row["max_timestamp"] = entry.max_timestamp
        row["size_bytes"] = entry.size_bytes
        row["producer_id"] = row["leader_epoch"] = row["base_sequence"] = -1
        row["record_count"] = row["producer_epoch"] = -1
        row["magic"] = entry.magic
        row["crc_ok"] = 1
        return row

    def _resynchronise(self, damaged: int, next_offset: int) -> int:
        """Return where the next valid batch begins, or the end of the file."""
        position = damaged + 1
        while position < self._size:
            data = bytes(self._read(position, self._chunk_bytes + BATCH_OVERHEAD))
            # Magic 2 is at byte 16 of a batch.
            at = data.find(b"\x02", HEADER_UP_TO_MAGIC - 1)
            while at >= 0:
                start = at - HEADER_UP_TO_MAGIC + 1
                header = data[start : start + BATCH_OVERHEAD]
                if self._is_batch(position + start, header, next_offset):
                    return position + start
                at = data.find(b"\x02", at + 1)
            position += self._chunk_bytes
        return self._size

    def _is_batch(self, position: int, header: bytes, next_offset: int) -> bool:
        """Return whether a whole valid batch with a plausible offset is at ``position``."""
        if len(header) < BATCH_OVERHEAD:
            return False
        size = LOG_OVERHEAD + int.from_bytes(header[8:12], "big", signed=True)
        offset = int.from_bytes(header[:8], "big", signed=True)
        base = base_offset_of(self._path)
        if not BATCH_OVERHEAD <= size <= self._size - position:
            return False
        if not max(next_offset, base) <= offset <= base + ENTRY_BYTES_MAX:
            return False
        scan = _native.scan_batches(self._read(position, size), next_offset=next_offset, cap=1)
        return len(scan.batches) == 1


def _entry_problem(entry: Entry, next_offset: int) -> tuple[str, str]:
    """Return the kind of damage and what is wrong with a complete entry that was not accepted."""
    try:
        entry.ensure_valid()
        if entry.last_offset < next_offset or entry.base_offset < next_offset:
            offsets = f"{entry.base_offset} to {entry.last_offset}"
            return "order", f"its offsets {offsets} begin below {next_offset}"
        entry.records()
    except LogStoreError as error:
        return "corrupt", error.message
    return "corrupt", "its header contradicts itself"


def scan_partition(directory: Path, *, files: Files = REAL_FILES) -> Iterator[Part | Damage]:
    """Scan every segment of a partition in order; offsets must increase across segments, too."""
    next_offset = 0
    for base_offset, path in segment_paths(directory):
        for found in scan_log_file(path, next_offset=max(base_offset, next_offset), files=files):
            yield found
            if isinstance(found, Part):
                next_offset = int(found.batches["last_offset"].max()) + 1


class TransactionOutcomes:
    """
    Which data batches of a partition belong to aborted or open transactions.

    Made from the control batches themselves, not from ``.txnindex`` files, which may be missing.
    """

    def __init__(self, directory: Path, *, files: Files = REAL_FILES) -> None:
        self._markers: dict[int, list[tuple[int, bool]]] = {}
        open_since: dict[int, int] = {}
        for part in scan_partition(directory, files=files):
            if isinstance(part, Damage):
                continue
            transactional = (part.batches["attributes"] & 0x10) != 0
            for row in part.batches[transactional]:
                producer_id = int(row["producer_id"])
                if not row["attributes"] & 0x20:
                    open_since.setdefault(producer_id, int(row["base_offset"]))
                    continue
                marker = _marker(part, int(row["position"]))
                if marker is not None:
                    self._markers.setdefault(producer_id, []).append(marker)
                    open_since.pop(producer_id, None)
        #: First offset of the earliest open transaction, or None.
        self.first_unstable_offset = min(open_since.values(), default=None)

    def is_aborted(self, batch: Entry) -> bool:
        """Return whether a transactional data batch was aborted."""
        if not batch.is_transactional:
            return False
        for offset, aborted in self._markers.get(batch.producer_id, ()):
            if offset > batch.last_offset:
                return aborted
        return False


def _marker(part: Part, position: int) -> tuple[int, bool] | None:
    """Return the offset and whether it aborts, of an end transaction marker."""
    batch = RecordBatch(part.data, position - part.position)
    try:
        records = batch.records()
    except CorruptRecordError:
        return None
    if not records or records[0].key is None:
        return None
    kind = int.from_bytes(records[0].key[2:4], "big")
    return (records[0].offset, kind == 0) if kind in {0, 1} else None
