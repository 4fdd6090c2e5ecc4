"""
Make a damaged partition readable again without deleting a byte.

What is cut goes into a file beside the segment, ``<segment>.log.<position>.quarantine``; valid
batches behind the damage stay in the log, at their offsets. Files that only repeat what the log
says (indexes, snapshots, checkpoints) are set aside as ``<name>.quarantine`` when they are damaged,
and made again when the log is opened.
Kafka and logstore ignore names ending in ``.quarantine``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from logstore.files import REAL_FILES, Files
from logstore.inspection import Damage, Part, scan_log_file, segment_paths
from logstore.verification import verify_partition

QUARANTINE_SUFFIX = ".quarantine"
REPAIRED_SUFFIX = ".repaired"
INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")


class Repair(NamedTuple):
    """
    One thing that was set aside.

    Attributes:
        path: The file that was damaged.
        quarantine: Where the bytes are now.
        position: Where they were in ``path``.
        size_bytes: How many.
        first_offset: First offset that may be lost, or None if no record is.
        last_offset: Last offset that may be lost, inclusive; None if it is not known or none is.
        reason: What was wrong.
    """

    path: Path
    quarantine: Path
    position: int
    size_bytes: int
    first_offset: int | None
    last_offset: int | None
    reason: str

    def __str__(self) -> str:
        if self.first_offset is None:
            lost = "no record is lost"
        elif self.last_offset is None:
            lost = f"lost: what there was from offset {self.first_offset} on"
        else:
            lost = f"lost: offsets {self.first_offset} to {self.last_offset}"
        return (
            f"{self.path}: position {self.position}: {self.size_bytes} bytes moved to "
            f"{self.quarantine.name} ({self.reason}); {lost}"
        )


def repair_partition(
    directory: Path,
    *,
    files: Files = REAL_FILES,
    advance: Callable[[int], None] = lambda _: None,
) -> Iterator[Repair]:
    """
    Repair one partition directory and yield what was set aside, each when it is done.

    The caller holds the writer's lock. Needs free space for a copy of each damaged segment. May be
    interrupted at any time and run again: a segment is replaced by one rename.

    **Durability:** when an item is yielded, its quarantine and the repaired file are on the device.
    """
    for base_offset, path in segment_paths(directory):
        yield from _repair_segment(path, base_offset, files, advance)
    damaged: dict[Path, Damage] = {}
    for damage in verify_partition(directory):
        if damage.kind in {"index", "snapshot", "checkpoint"} and damage.path.exists():
            damaged.setdefault(damage.path, damage)
    for path, damage in damaged.items():
        yield _set_aside(path, damage.reason, files)
    files.fsync_directory(directory)


def _repair_segment(
    path: Path, base_offset: int, files: Files, advance: Callable[[int], None]
) -> Iterator[Repair]:
    """Replace a segment by its valid parts, after the rest is safe in quarantine files."""
    damages: list[tuple[Damage, int | None]] = []
    expected: Damage | None = None
    for found in scan_log_file(path, files=files):
        if isinstance(found, Damage):
            advance(found.size_bytes)
            expected = found
            damages.append((found, None))
            continue
        advance(len(found.data))
        if expected is not None:
            damages[-1] = (expected, int(found.batches["base_offset"][0]) - 1)
            expected = None
    if not damages:
        return
    repairs: list[Repair] = []
    for damage, last_offset in damages:
        quarantine = _free_name(path.with_name(f"{path.name}.{damage.position}{QUARANTINE_SUFFIX}"))
        _copy_range(path, damage.position, damage.size_bytes, quarantine, files)
        is_lossless = damage.kind == "zeros"
        repairs.append(
            Repair(
                path, quarantine, damage.position, damage.size_bytes,
                None if is_lossless else damage.offset,
                None if is_lossless else last_offset,
                damage.reason,
            )
        )  # fmt: skip
    files.fsync_directory(path.parent)
    _write_repaired(path, files)
    for suffix in INDEX_SUFFIXES:
        index = path.with_name(f"{base_offset:020d}{suffix}")
        if index.exists():
            repairs.append(_set_aside(index, "its segment was repaired", files))
    yield from repairs


def _write_repaired(path: Path, files: Files) -> None:
    repaired = path.with_name(path.name + REPAIRED_SUFFIX)
    descriptor = files.open(repaired, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        position = 0
        for found in scan_log_file(path, files=files):
            if isinstance(found, Part):
                files.pwrite(descriptor, found.data, position)
                position += len(found.data)
        files.fdatasync(descriptor)
    finally:
        files.close(descriptor)
    files.set_modified_ms(repaired, files.modified_ms(path))
    files.rename(repaired, path)
    files.fsync_directory(path.parent)


def _copy_range(source: Path, position: int, size: int, target: Path, files: Files) -> None:
    source_descriptor = files.open(source, os.O_RDONLY)
    try:
        target_descriptor = files.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            files.copy_range(source_descriptor, position, target_descriptor, 0, size)
            files.fdatasync(target_descriptor)
        finally:
            files.close(target_descriptor)
    finally:
        files.close(source_descriptor)


def _set_aside(path: Path, reason: str, files: Files) -> Repair:
    quarantine = _free_name(path.with_name(path.name + QUARANTINE_SUFFIX))
    size_bytes = files.file_size(path)
    files.rename(path, quarantine)
    return Repair(path, quarantine, 0, size_bytes, None, None, reason)


def _free_name(path: Path) -> Path:
    """Return ``path``, or the first name like it that does not exist: a repair may be repeated."""
    candidate = path
    number = 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(
            f"{path.name.removesuffix(QUARANTINE_SUFFIX)}.{number}{QUARANTINE_SUFFIX}"
        )
    return candidate
