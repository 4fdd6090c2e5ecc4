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
from logstore.checkpoint import PARTITION_METADATA, topic_partition_of
from logstore.errors import CorruptRecordError, LogStoreError
from logstore.files import REAL_FILES, Files
from logstore.index_file import RELATIVE_OFFSET_MAX
from logstore.legacy import LegacyEntry
from logstore.record import RecordBatch, iterate_batches
from logstore.records_builder import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER_UP_TO_MAGIC,
    LOG_OVERHEAD,
    TRANSACTIONAL_FLAG,
)

CHUNK_BYTES = 4 << 20
ENTRY_BYTES_MAX = 2**31 - 1
LEGACY_OVERHEAD = 26
OFFSET_MAX = 2**63 - 1

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
            ``snapshot``, ``checkpoint``, ``epoch`` (a batch's, which no CRC covers) or ``gap``.
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

    def slice(self, start: int, end: int) -> Part:
        """Return some of the entries."""
        positions = self.batches["position"]
        first = int(positions[start]) if start < len(positions) else self.position + len(self.data)
        last = int(positions[end]) if end < len(positions) else self.position + len(self.data)
        return Part(
            first,
            self.data[first - self.position : last - self.position],
            self.batches[start:end],
        )

    def head(self, count: int) -> Part | None:
        """Return the first ``count`` entries, or None for none of them."""
        return self.slice(0, count) if count else None

    def entries(self) -> Iterator[tuple[int, Entry]]:
        """Yield each entry with its position in the file."""
        position = self.position
        for entry in iterate_batches(self.data):
            yield position, entry
            position += entry.size_bytes


def reason_of(error: LogStoreError, path: Path) -> str:
    """Return what an error says, for a line that names the file already."""
    reason = error.message.replace(str(path), path.name).partition("; ")[0]
    return reason.rpartition(f"{path.name}: ")[2]


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
    return PARTITION_METADATA in names or (
        "leader-epoch-checkpoint" in names and topic_partition_of(path.name) is not None
    )


def segment_paths(directory: Path) -> list[tuple[int, Path]]:
    """Return the base offset and path of every ``.log`` file, ascending."""
    return sorted(
        (int(name[:-4]), directory / name)
        for name in os.listdir(directory)
        if name.endswith(".log") and name[:-4].isdecimal()
    )


def segment_ranges(directory: Path) -> list[tuple[int, Path, int | None]]:
    """Return base offset, path and the next segment's base offset of every ``.log`` file."""
    segments = segment_paths(directory)
    ends = [*(base_offset for base_offset, _ in segments[1:]), None]
    return [(*segment, end) for segment, end in zip(segments, ends, strict=False)]


def scan_log_file(
    path: Path,
    *,
    next_offset: int | None = None,
    end_offset: int | None = None,
    decompress: bool = False,
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
        end_offset: Where the next segment begins: no entry here reaches it. None if there is none.
        decompress: Look into compressed batches and magic 0 and 1 entries, too.
        files: The door to the file system.
        chunk_bytes: How much is read at a time; a larger entry is read whole.

    Cost: One pass. Memory: two chunks, or one entry if that is larger.
    """
    descriptor = files.open(path, os.O_RDONLY)
    try:
        scan = _Scan(path, descriptor, files, chunk_bytes, end_offset)
        for found in scan.parts(base_offset_of(path) if next_offset is None else next_offset):
            if decompress and isinstance(found, Part):
                yield from _readable(path, found)
            else:
                yield found
    finally:
        files.close(descriptor)


def _readable(path: Path, part: Part) -> Iterator[Part | Damage]:
    """Look into what a scan cannot: yield what can be read, and a damage for each other entry."""
    batches = part.batches
    wanted = ((batches["attributes"] & CODEC_MASK) != 0) | (batches["magic"] < 2)  # Magic.
    start = 0
    for slot in np.flatnonzero(wanted).tolist():
        entry = next(iterate_batches(part.slice(slot, slot + 1).data))
        try:
            entry.records()
        except LogStoreError as error:
            if slot > start:
                yield part.slice(start, slot)
            start = slot + 1
            yield Damage(
                path, int(batches["position"][slot]), entry.size_bytes,
                int(batches["base_offset"][slot]), "corrupt",
                f"{reason_of(error, path)}; its CRC is right",
            )  # fmt: skip
    if start < len(batches):
        yield part.slice(start, len(batches))


def base_offset_of(path: Path) -> int:
    """Return the offset in a file's name: what stands before the first dot."""
    stem = path.name.split(".", 1)[0]
    return int(stem) if stem.isdecimal() else 0


class _Scan:
    """The scan of one file; see :func:`scan_log_file`."""

    def __init__(
        self, path: Path, descriptor: int, files: Files, chunk_bytes: int, end_offset: int | None
    ) -> None:
        self._path = path
        self._descriptor = descriptor
        self._files = files
        self._chunk_bytes = chunk_bytes
        self._end_offset = OFFSET_MAX if end_offset is None else end_offset
        self._size = files.size(descriptor)
        self._resumed_at = 0

    def _read(self, position: int, size: int) -> memoryview:
        return memoryview(self._files.pread(self._descriptor, size, position))

    def parts(self, next_offset: int) -> Iterator[Part | Damage]:
        position = 0
        while position < self._size:
            data = self._read(position, max(self._chunk_bytes, self._whole_bytes(position)))
            part = self._valid_part(data, position, next_offset)
            end = position if part is None else position + len(part.data)
            # What stopped the run is read as a whole, or never will be.
            is_judged = end + self._whole_bytes(end) <= position + len(data)
            if part is None and not is_judged:
                return  # Cut while it was read.
            if part is not None and end < self._size:
                count = len(part.batches)
                if not is_judged:
                    # The last entry is judged together with the one behind it.
                    part = part.head(max(1, count - 1))
                elif self._is_misplaced(part, next_offset, end):
                    part = part.head(count - 1)
            if part is not None:
                yield part
                position += len(part.data)
                next_offset = int(part.batches["last_offset"][-1]) + 1
            if is_judged and position < self._size:
                yield self._damage(position, next_offset)
                position = self._resumed_at

    def _is_misplaced(self, part: Part, next_offset: int, end: int) -> bool:
        """
        Return whether the last entry of a run has a wrong base offset, which no CRC covers.

        It leaves a gap, and the valid entry behind it has offsets that fit in there.
        """
        last = part.batches[-1]
        before = part.batches["last_offset"][:-1]
        expected = int(before[-1]) + 1 if len(before) else next_offset
        header = bytes(self._read(end, BATCH_OVERHEAD))
        return (
            int(last["base_offset"]) > expected
            and int.from_bytes(header[:8], "big", signed=True) <= int(last["last_offset"])
            and self._is_entry(end, header, expected)
        )

    def _damage(self, position: int, next_offset: int) -> Damage:
        """Return the damage at ``position``; reading goes on at ``_resumed_at``."""
        end = self._resumed_at = self._resynchronise(position, next_offset)
        size = end - position
        data = self._read(position, min(max(self._entry_bytes(position), HEADER_UP_TO_MAGIC), size))
        kind = "corrupt"
        try:
            entry = next(iterate_batches(data), None)
        except LogStoreError as error:
            reason = reason_of(error, self._path)
        else:
            if entry is None:
                kind, reason = "torn", "the last entry is not complete"
            else:
                kind, reason = self._entry_problem(entry, next_offset)
        if end < self._size:
            if kind == "torn":
                kind, reason = "corrupt", "its length reaches beyond the end of the file"
            reason = f"{reason}; {size} bytes up to the next valid batch"
        elif self._is_zero(position, end):
            kind = "zeros"
            reason = f"{size} zero bytes up to the end, as a crash leaves behind in a grown file"
        else:
            reason = f"{reason}; no valid batch follows in the last {size} bytes"
        return Damage(self._path, position, size, next_offset, kind, reason)

    def _entry_problem(self, entry: Entry, next_offset: int) -> tuple[str, str]:
        """Return the kind of damage and what is wrong with a complete entry not accepted."""
        try:
            entry.ensure_valid()
            # Of magic 0 and 1 the first offset is inside, perhaps compressed: it may be damaged.
            offsets = f"its offsets {entry.base_offset} to {entry.last_offset}"
            if entry.last_offset < next_offset or entry.base_offset < next_offset:
                return "order", f"{offsets} begin below {next_offset}"
            if entry.last_offset >= self._end_offset:
                return "order", f"{offsets} reach into the next segment, from {self._end_offset} on"
            entry.records()
        except LogStoreError as error:
            return "corrupt", reason_of(error, self._path)
        if entry.base_offset - next_offset > RELATIVE_OFFSET_MAX:
            return "order", f"{offsets} are too far above {next_offset}"
        if entry.base_offset > next_offset:
            return "order", f"{offsets} do not fit between {next_offset} and those behind it"
        return "corrupt", "its header contradicts itself"

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

    def _whole_bytes(self, position: int) -> int:
        """Size of the entry at ``position`` if the file can hold it, else 0."""
        size = self._entry_bytes(position)
        return size if size <= self._size - position else 0

    def _valid_part(self, data: memoryview, position: int, next_offset: int) -> Part | None:
        """Return the valid entries at the start of ``data``."""
        found: list[npt.NDArray[Any]] = []
        start_offset = next_offset
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
            return None
        part = Part(position, data[:valid_bytes], np.concatenate(found))
        last_offsets = part.batches["last_offset"]
        expected = np.append(max(start_offset, base_offset_of(self._path)), last_offsets[:-1] + 1)
        beyond = np.flatnonzero(
            (last_offsets >= self._end_offset)
            | (part.batches["base_offset"] - expected > RELATIVE_OFFSET_MAX)
        )
        return part.head(int(beyond[0])) if len(beyond) else part

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
        """
        Return where the next valid entry begins, or the end of the file.

        If the damaged entry's own length leads to a valid entry or to the end, a valid entry found
        on the way there may be part of a record's value: it counts only if a run of valid entries
        goes from it to exactly there.
        """
        size = self._whole_bytes(damaged)
        claimed_end = damaged + size if size >= LEGACY_OVERHEAD else 0
        if claimed_end < self._size:
            header = bytes(self._read(claimed_end, BATCH_OVERHEAD))
            if not self._is_entry(claimed_end, header, next_offset):
                claimed_end = 0
        for position in self._candidates(damaged + 1, claimed_end or self._size, next_offset):
            header = bytes(self._read(position, BATCH_OVERHEAD))
            if self._is_entry(position, header, next_offset) and (
                claimed_end == 0 or self._run_end(position, claimed_end, next_offset) == claimed_end
            ):
                return position
        return claimed_end or self._size

    def _run_end(self, position: int, end: int, next_offset: int) -> int:
        """Return where a run of valid entries from ``position`` on ends, at most at ``end``."""
        while position < end:
            part = self._valid_part(
                self._read(position, min(self._chunk_bytes, end - position)), position, next_offset
            )
            if part is None:
                break
            position += len(part.data)
            next_offset = int(part.batches["last_offset"][-1]) + 1
        return position

    def _candidates(self, start: int, end: int, next_offset: int) -> Iterator[int]:
        """Yield where an entry could begin: offset, size and magic are plausible."""
        base = base_offset_of(self._path)
        for position in range(start, end, self._chunk_bytes):
            data = self._read(position, self._chunk_bytes + HEADER_UP_TO_MAGIC - 1)
            count = min(len(data) - HEADER_UP_TO_MAGIC + 1, end - position)
            if count <= 0:
                return
            # Every position at once: columns that overlap.
            offsets = np.ndarray((count,), ">i8", data, 0, (1,))
            lengths = np.ndarray((count,), ">i4", data, 8, (1,))
            magics = np.frombuffer(data, np.uint8)[HEADER_UP_TO_MAGIC - 1 :][:count]
            plausible = (magics <= 2) & (lengths >= LEGACY_OVERHEAD - LOG_OVERHEAD)  # Magic.
            plausible &= (offsets >= max(next_offset, base)) & (offsets < self._end_offset)
            plausible &= offsets <= base + RELATIVE_OFFSET_MAX
            for slot in np.flatnonzero(plausible).tolist():
                yield position + slot

    def _is_entry(self, position: int, header: bytes, next_offset: int) -> bool:
        """Return whether a whole valid entry with plausible offsets is at ``position``."""
        size = self._whole_bytes(position)
        if size < LEGACY_OVERHEAD or len(header) < HEADER_UP_TO_MAGIC:
            return False
        if int.from_bytes(header[:8], "big", signed=True) > (
            base_offset_of(self._path) + RELATIVE_OFFSET_MAX
        ):
            return False
        part = self._valid_part(self._read(position, size), position, next_offset)
        return part is not None and len(part.data) == size


def scan_partition(directory: Path, *, files: Files = REAL_FILES) -> Iterator[Part | Damage]:
    """Scan every segment of a partition in order; offsets must increase across segments, too."""
    for base_offset, path, end_offset in segment_ranges(directory):
        yield from scan_log_file(path, next_offset=base_offset, end_offset=end_offset, files=files)


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
            transactional = (part.batches["attributes"] & TRANSACTIONAL_FLAG) != 0
            for row in part.batches[transactional]:
                producer_id = int(row["producer_id"])
                if not row["attributes"] & CONTROL_FLAG:
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


def abort_marker(part: Part, position: int) -> bool:
    """Return whether the control batch at ``position`` aborts a transaction."""
    marker = _marker(part, position)
    return marker is not None and marker[1]


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
