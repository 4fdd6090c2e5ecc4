"""
Make a damaged partition readable again without deleting a byte.

1. Bytes of a segment that are no valid batch go into files beside it,
   ``<segment>.log.<position>.<first offset>-<last offset>.quarantine``, and the segment is replaced
   by its valid batches, which stay at their offsets.
2. Files that only repeat what the log says (indexes, snapshots, epochs, checkpoints) are set aside
   as ``<name>.quarantine`` if they are damaged.
3. The log is loaded as after a crash, from the first offset concerned on, which makes them again.

Each step may be interrupted, and the repair run again: a quarantine file has its name only when it
is whole, a segment is replaced by one rename, and until the last step the directory counts as not
closed. Kafka and logstore ignore names ending in ``.quarantine``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from logstore.checkpoint import LOG_START_CHECKPOINT, PARTITION_METADATA
from logstore.clock import SYSTEM_CLOCK, Clock
from logstore.errors import StorageError
from logstore.files import REAL_FILES, TEMPORARY_SUFFIX, Files
from logstore.inspection import Damage, Part, scan_log_file, segment_ranges
from logstore.log import Log
from logstore.partition_state import PartitionState
from logstore.quarantined_offsets import QUARANTINE_SUFFIX, quarantine_name
from logstore.segment_files import INDEX_SUFFIXES, SEGMENT_SUFFIXES
from logstore.state_verification import ROOT_CHECKPOINTS, offset_of, verify_root
from logstore.verification import verify_partition
from logstore.writer_lock import WriterLock

REPAIRED_SUFFIX = ".repaired"
# Kinds of damage to files that can be made again.
DERIVED = {"index", "snapshot", "checkpoint"}
COPY_BYTES = 4 << 20


class Repair(NamedTuple):
    """
    One thing that was set aside or made again.

    Attributes:
        path: The file that was damaged.
        quarantine: Where the bytes are now; None if there were none: a missing file, a number that
            was corrected.
        position: Where they were in ``path``.
        size_bytes: How many.
        first_offset: First offset that may be lost, or None if no record is.
        last_offset: Last offset that may be lost, inclusive; None if it is not known or none is.
        reason: What was wrong.
        is_consequence: It only follows from another repair: an index of a segment that was cut.
    """

    path: Path
    quarantine: Path | None
    position: int
    size_bytes: int
    first_offset: int | None
    last_offset: int | None
    reason: str
    is_consequence: bool = False

    def __str__(self) -> str:
        if self.quarantine is None:
            return f"{self.path}: made again ({self.reason}); no record is lost"
        if self.first_offset is None:
            lost = "no record is lost"
        elif self.last_offset is None:
            lost = f"lost: whatever there was from offset {self.first_offset} on"
        elif self.first_offset == self.last_offset:
            lost = f"lost: offset {self.first_offset}"
        else:
            lost = f"lost: offsets {self.first_offset} to {self.last_offset}"
        return (
            f"{self.path}: position {self.position}: {self.size_bytes} bytes moved to "
            f"{self.quarantine.name} ({self.reason}); {lost}"
        )


def repair_root(
    directory: Path, *, files: Files = REAL_FILES, clock: Clock = SYSTEM_CLOCK
) -> Iterator[Repair]:
    """
    Set aside the checkpoints of a log directory that cannot be read; takes the writer's lock.

    Logs opened afterwards are recovered, and write new ones.

    Raises:
        LockedError: Somebody is writing here.
    """
    lock = WriterLock(str(directory), files=files, clock=clock)
    try:
        for damage in verify_root(directory):
            yield _set_aside(damage.path, damage.reason, files)
        files.fsync_directory(directory)
    finally:
        lock.release()


def repair_partition(
    directory: Path,
    *,
    files: Files = REAL_FILES,
    clock: Clock = SYSTEM_CLOCK,
    lock_timeout: float = 0.0,
    advance: Callable[[int], None] = lambda _: None,
) -> Iterator[Repair]:
    """
    Repair one partition directory and yield what was set aside, each when it is done.

    Takes the writer's lock. A partition without damage is left as it is. Needs free space for a
    copy of each damaged segment.

    **Durability:** when an item is yielded, its quarantine and the repaired file are on the device.

    Raises:
        LockedError: Somebody is writing here.
        StorageError: A file cannot be read or written. Run again, it goes on.
    """
    state = PartitionState.for_writing(
        str(directory), files=files, clock=clock, lock_timeout=lock_timeout
    )
    try:
        first_offset: int | None = None
        for offset, repair in _set_damage_aside(directory, state, files, advance):
            first_offset = offset if first_offset is None else min(first_offset, offset)
            yield repair
        if first_offset is not None:
            _load(directory, state, first_offset, files, clock)
    finally:
        # If nothing was damaged the log is as clean as it was; if it was loaded, it is closed.
        state.close(clean=state.had_clean_shutdown and first_offset is None)


def _load(
    directory: Path, state: PartitionState, first_offset: int, files: Files, clock: Clock
) -> None:
    """Recover the log from an offset on, and close it."""
    Log.create(
        directory,
        log_start_offset=state.log_start_offset,
        recovery_point=min(state.recovery_point, first_offset),
        had_clean_shutdown=False,
        clock=clock,
        files=files,
        checkpoints=state,
    ).close()


def _set_damage_aside(
    directory: Path, state: PartitionState, files: Files, advance: Callable[[int], None]
) -> Iterator[tuple[int, Repair]]:
    """Yield each repair with the first offset that has to be recovered for it."""
    is_cut = False
    for base_offset, path, end_offset in segment_ranges(directory):
        for repair in _repair_segment(path, end_offset, state, files, advance):
            is_cut = True
            yield base_offset, repair
    # Once more as a whole: what is left are files that can be made again.
    damages = list(verify_partition(directory))
    starts = [_recovered_from(damage) for damage in damages if damage.kind in DERIVED]
    if starts and min(starts) < state.recovery_point:
        state.write_recovery_point(min(starts))
    for damage in damages:
        if damage.kind in DERIVED:
            for repair in _repair_derived(directory, damage, state, files):
                is_consequence = is_cut or repair.is_consequence
                yield (
                    _recovered_from(damage),
                    repair._replace(is_consequence=is_consequence),
                )
        elif damage.path.name.endswith(".log.swap"):
            for suffix in SEGMENT_SUFFIXES:
                swap = damage.path.with_name(damage.path.stem.removesuffix(".log") + suffix)
                swap = swap.with_name(swap.name + ".swap")
                if swap.exists():
                    yield 0, _set_aside(swap, damage.reason, files)
    files.fsync_directory(directory)


# ---- segments ------------------------------------------------------------------------------------
def _repair_segment(
    path: Path,
    end_offset: int | None,
    state: PartitionState,
    files: Files,
    advance: Callable[[int], None],
) -> Iterator[Repair]:
    """Replace a segment by its valid parts, after the rest is safe in quarantine files."""
    damages = _damages(path, end_offset, files, advance)
    if not damages:
        return
    base_offset = offset_of(path.name) or 0
    if state.recovery_point > base_offset:
        # Interrupted from here on, the next load makes indexes and snapshots again.
        state.write_recovery_point(base_offset)
    repairs = [_quarantine(path, *each, files) for each in damages]
    files.fsync_directory(path.parent)
    for suffix in INDEX_SUFFIXES:  # Before the segment: no index may outlive what it points to.
        index = path.with_suffix(suffix)
        if index.exists():
            aside = _set_aside(index, "its segment was repaired", files)
            repairs.append(aside._replace(is_consequence=True))
    files.fsync_directory(path.parent)
    _write_repaired(path, end_offset, files)
    yield from repairs


def _damages(
    path: Path, end_offset: int | None, files: Files, advance: Callable[[int], None]
) -> list[tuple[Damage, int | None]]:
    """Return the damages of a segment, each with the last offset that it may have taken."""
    last_of_all = None if end_offset is None else end_offset - 1
    damages: list[tuple[Damage, int | None]] = []
    undecided = 0
    for found in scan_log_file(path, end_offset=end_offset, decompress=True, files=files):
        if isinstance(found, Damage):
            advance(found.size_bytes)
            damages.append((found, last_of_all))
            undecided += 1
            continue
        advance(len(found.data))
        last_offset = int(found.batches["base_offset"][0]) - 1
        for slot in range(len(damages) - undecided, len(damages)):
            damages[slot] = (damages[slot][0], last_offset)
        undecided = 0
    return damages


def _quarantine(path: Path, damage: Damage, last_offset: int | None, files: Files) -> Repair:
    """Copy damaged bytes into a file of their own."""
    assert damage.offset is not None
    name = quarantine_name(path.name, damage.position, damage.offset, last_offset)
    target = path.with_name(name)
    number = 1
    while target.exists():
        if _has_bytes(path, damage, target, files):  # Of a repair that was interrupted.
            break
        number += 1
        stem = name.removesuffix(QUARANTINE_SUFFIX)
        target = path.with_name(f"{stem}.{number}{QUARANTINE_SUFFIX}")
    else:
        _copy_range(path, damage.position, damage.size_bytes, target, files)
    # A second copy of offsets that are elsewhere. Zeros may have been a batch.
    is_lossless = last_offset is not None and last_offset < damage.offset
    return Repair(
        path, target, damage.position, damage.size_bytes,
        None if is_lossless else damage.offset,
        None if is_lossless else last_offset,
        damage.reason,
    )  # fmt: skip


def _has_bytes(path: Path, damage: Damage, copy: Path, files: Files) -> bool:
    if files.file_size(copy) != damage.size_bytes:
        return False
    source, target = files.open(path, os.O_RDONLY), files.open(copy, os.O_RDONLY)
    try:
        return all(
            files.pread(source, COPY_BYTES, damage.position + at)[: damage.size_bytes - at]
            == files.pread(target, COPY_BYTES, at)
            for at in range(0, damage.size_bytes, COPY_BYTES)
        )
    finally:
        files.close(source)
        files.close(target)


def _copy_range(source: Path, position: int, size: int, target: Path, files: Files) -> None:
    temporary = target.with_name(target.name + TEMPORARY_SUFFIX)
    source_descriptor = files.open(source, os.O_RDONLY)
    try:
        with _removed_on_failure(temporary, files):
            descriptor = files.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            try:
                files.copy_range(source_descriptor, position, descriptor, 0, size)
                files.fdatasync(descriptor)
            finally:
                files.close(descriptor)
            files.rename(temporary, target)
    finally:
        files.close(source_descriptor)


def _write_repaired(path: Path, end_offset: int | None, files: Files) -> None:
    """Write the valid parts of a segment into a new file, and give it the segment's name."""
    repaired = path.with_name(path.name + REPAIRED_SUFFIX)
    with _removed_on_failure(repaired, files):
        descriptor = files.open(repaired, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            position = 0
            for found in scan_log_file(path, end_offset=end_offset, decompress=True, files=files):
                if isinstance(found, Part):
                    files.pwrite(descriptor, found.data, position)
                    position += len(found.data)
            files.fdatasync(descriptor)
        finally:
            files.close(descriptor)
        files.set_modified_ms(repaired, files.modified_ms(path))
        files.rename(repaired, path)
    files.fsync_directory(path.parent)


@contextlib.contextmanager
def _removed_on_failure(path: Path, files: Files) -> Iterator[None]:
    """Give back the space of a copy that was not finished."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(StorageError):
            files.unlink(path, missing_ok=True)
        raise


# ---- files that can be made again ----------------------------------------------------------------
def _recovered_from(damage: Damage) -> int:
    """Return the first offset that has to be recovered to make a file again."""
    return (offset_of(damage.path.name) or 0) if damage.kind == "index" else 0


def _repair_derived(
    directory: Path, damage: Damage, state: PartitionState, files: Files
) -> Iterator[Repair]:
    """Set a file aside that can be made again, and what has to be made again with it."""
    path, reason = damage.path, damage.reason
    if damage.kind == "index":
        # A load makes the indexes of a segment together, if one is missing.
        siblings = [path, *(path.with_suffix(suffix) for suffix in INDEX_SUFFIXES)]
        if path.exists() or damage.size_bytes == 0:
            yield _made_again(path, reason, files)
        for index in siblings:
            if index.exists():
                aside = _set_aside(index, f"made again with {path.name}", files)
                yield aside._replace(is_consequence=True)
    elif path.name in ROOT_CHECKPOINTS and damage.offset is not None:
        if path.name == LOG_START_CHECKPOINT:
            # A load would take everything below it for deleted.
            first = min((base for base, _, _ in segment_ranges(directory)), default=0)
            state.write_log_start_offset(first)
            reason += f"; what was deleted from offset {first} on may be readable again"
        yield Repair(path, None, 0, 0, None, None, reason)  # Loading corrects the others.
    elif path.name == PARTITION_METADATA:
        if path.exists():  # Else only its topic's owner knows the id.
            yield _set_aside(path, reason, files)
    else:
        yield _made_again(path, reason, files)


def _made_again(path: Path, reason: str, files: Files) -> Repair:
    if path.exists():
        return _set_aside(path, reason, files)
    return Repair(path, None, 0, 0, None, None, reason)


def _set_aside(path: Path, reason: str, files: Files) -> Repair:
    quarantine = path.with_name(path.name + QUARANTINE_SUFFIX)
    number = 1
    while quarantine.exists():
        number += 1
        quarantine = path.with_name(f"{path.name}.{number}{QUARANTINE_SUFFIX}")
    size_bytes = files.file_size(path)
    files.rename(path, quarantine)
    return Repair(path, quarantine, 0, size_bytes, None, None, reason)
