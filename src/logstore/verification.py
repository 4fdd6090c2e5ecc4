"""
Every damage of a partition, found by reading it; nothing is written and no lock is taken.

The batches are the truth: indexes, snapshots, epochs and checkpoints are judged against them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logstore import _native
from logstore.checkpoint import (
    LeaderEpochCheckpointFile,
    OffsetCheckpointFile,
    PartitionMetadataFile,
    topic_partition_of,
)
from logstore.errors import LogStoreError
from logstore.file_dump import kind_of
from logstore.index import OffsetIndex, TimeIndex, TransactionIndex
from logstore.inspection import Damage, Part, base_offset_of, scan_log_file, segment_paths
from logstore.producer_snapshot import read_snapshot
from logstore.record import RecordBatch

CODEC_MASK = 0x07
CONTROL = 0x20
DELETE_HORIZON = 0x40
RELATIVE_OFFSET_MAX = 2**31 - 1
ROOT_CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)


def verify_partition(
    directory: Path, *, advance: Callable[[int], None] = lambda _: None
) -> Iterator[Damage]:
    """
    Yield every damage of one partition directory, in the order of its files.

    Args:
        directory: A partition directory.
        advance: Told how many bytes of segments were read, for a progress bar.

    Cost: One pass over all segments with CRC; compressed batches are decompressed.
    """
    segments = segment_paths(directory)
    headers: list[npt.NDArray[Any]] = []
    next_offset = 0
    for number, (base_offset, path) in enumerate(segments):
        batches, next_offset = yield from _verify_segment(path, next_offset, advance)
        headers.append(batches)
        is_active = number == len(segments) - 1
        yield from _verify_indexes(directory, base_offset, batches, is_active=is_active)
    batches = np.concatenate(headers) if headers else np.empty(0, _native.BATCH_DTYPE)
    paths = dict(segments)
    if not _was_compacted(directory, batches):
        yield from _verify_gaps(paths, batches)
    yield from _verify_other_files(directory, batches)


def verify_root(directory: Path) -> Iterator[Damage]:
    """Yield the damages of the checkpoint files of a log directory."""
    for name in ROOT_CHECKPOINTS:
        path = directory / name
        if path.exists():
            yield from _problem(path, "checkpoint", OffsetCheckpointFile(path).read)


def _verify_segment(
    path: Path, next_offset: int, advance: Callable[[int], None]
) -> Generator[Damage, None, tuple[npt.NDArray[Any], int]]:
    """Yield damages of one ``.log`` file; return its headers and the next offset."""
    base_offset = base_offset_of(path)
    found = [np.empty(0, _native.BATCH_DTYPE)]
    for part in scan_log_file(path, next_offset=max(next_offset, base_offset)):
        if isinstance(part, Damage):
            advance(part.size_bytes)
            yield part
            continue
        advance(len(part.data))
        found.append(part.batches)
        next_offset = int(part.batches["last_offset"][-1]) + 1
        yield from _verify_compressed(path, part)
        if next_offset - 1 - base_offset > RELATIVE_OFFSET_MAX:
            yield Damage(
                path, part.position, len(part.data), next_offset - 1, "order",
                f"offset {next_offset - 1} is more than 2^31 - 1 above the segment's base offset",
            )  # fmt: skip
    return np.concatenate(found), next_offset


def _verify_compressed(path: Path, part: Part) -> Iterator[Damage]:
    """Decompress what the scan could not look into: compressed v2 batches and legacy wrappers."""
    batches = part.batches
    compressed = ((batches["attributes"] & CODEC_MASK) != 0) & (batches["magic"] == 2)
    if (batches["magic"] < 2).any():  # Magic.
        entries = list(part.entries())
    else:
        entries = [
            (int(position), RecordBatch(part.data, int(position) - part.position))
            for position in batches["position"][compressed]
        ]
    for position, entry in entries:
        try:
            entry.records()
        except LogStoreError as error:
            yield Damage(
                path, position, entry.size_bytes, entry.last_offset, "corrupt", error.message
            )


def _verify_indexes(
    directory: Path, base_offset: int, batches: npt.NDArray[Any], *, is_active: bool
) -> Iterator[Damage]:
    stem = directory / f"{base_offset:020d}"
    for kind in (OffsetIndex, TimeIndex):
        path = stem.with_suffix(".index" if kind is OffsetIndex else ".timeindex")
        if not path.exists():
            if len(batches):
                yield Damage(path, 0, 0, base_offset, "index", "the file is missing")
            continue
        index = kind(path, base_offset, writable=False)
        try:
            for problem in index.check(batches, allow_padding=is_active):
                yield Damage(path, 0, index.size_bytes, base_offset, "index", problem)
        except LogStoreError as error:
            yield Damage(path, 0, 0, base_offset, "index", error.message)
        finally:
            index.close_handler()
    path = stem.with_suffix(".txnindex")
    if path.exists():
        yield from _verify_transaction_index(path, base_offset, batches)


def _verify_transaction_index(
    path: Path, base_offset: int, batches: npt.NDArray[Any]
) -> Iterator[Damage]:
    index = TransactionIndex(path, base_offset)
    try:
        index.sanity_check()
        markers = set(batches["last_offset"][(batches["attributes"] & CONTROL) != 0].tolist())
        for number, aborted in enumerate(index.all_aborted_txns()):
            if aborted.last_offset not in markers:
                yield Damage(
                    path, number * 34, 34, aborted.last_offset, "index",
                    f"entry {number} names offset {aborted.last_offset}, which is no marker",
                )  # fmt: skip
    except LogStoreError as error:
        yield Damage(path, 0, 0, base_offset, "index", error.message)
    finally:
        index.close()


def _was_compacted(directory: Path, batches: npt.NDArray[Any]) -> bool:
    """
    Return whether the log was ever compacted, as far as its files tell.

    The topic's configuration is not on disk; a cleaner checkpoint, a delete horizon or a batch with
    fewer records than offsets are.
    """
    v2 = batches[batches["magic"] == 2]  # Magic.
    holes = v2["record_count"] < v2["last_offset"] - v2["base_offset"] + 1
    if holes.any() or ((v2["attributes"] & DELETE_HORIZON) != 0).any():
        return True
    checkpoint = directory.parent / "cleaner-offset-checkpoint"
    try:
        return topic_partition_of(directory.name) in OffsetCheckpointFile(checkpoint).read()
    except LogStoreError:
        return False


def _verify_gaps(paths: dict[int, Path], batches: npt.NDArray[Any]) -> Iterator[Damage]:
    """Yield offset gaps before v2 batches; a legacy entry does not tell its first offset."""
    expected = batches["last_offset"][:-1] + 1
    gaps = np.flatnonzero((batches["base_offset"][1:] > expected) & (batches["magic"][1:] == 2))
    bases = sorted(paths)
    for slot in gaps.tolist():
        row = batches[slot + 1]
        offset = int(expected[slot])
        base = bases[int(np.searchsorted(bases, int(row["base_offset"]), "right")) - 1]
        yield Damage(
            paths[base], int(row["position"]), 0, offset, "gap",
            f"offsets {offset} to {int(row['base_offset']) - 1} are missing, "
            "and the log shows no sign of compaction",
        )  # fmt: skip


def _verify_other_files(directory: Path, batches: npt.NDArray[Any]) -> Iterator[Damage]:
    for path in sorted(directory.iterdir()):
        if path.suffix == ".snapshot" and kind_of(path.name) == "snapshot":
            yield from _problem(path, "snapshot", partial(read_snapshot, path))
        elif path.name == "partition.metadata":
            yield from _problem(path, "checkpoint", PartitionMetadataFile(path).read)
        elif path.name == "leader-epoch-checkpoint":
            problems = list(_problem(path, "checkpoint", LeaderEpochCheckpointFile(path).read))
            yield from problems or _verify_epochs(path, batches)
        elif kind_of(path.name) == "checkpoint":
            yield from _problem(path, "checkpoint", OffsetCheckpointFile(path).read)


def _verify_epochs(path: Path, batches: npt.NDArray[Any]) -> Iterator[Damage]:
    """Judge the epoch file against the leader epochs in batch headers."""
    entries = LeaderEpochCheckpointFile(path).read()
    starts = np.array([entry.start_offset for entry in entries], np.int64)
    epochs = np.array([entry.epoch for entry in entries], np.int64)
    # Epochs below the log start are cut off, so what is before the first entry says nothing.
    judged = (batches["magic"] == 2) & (batches["leader_epoch"] >= 0)
    judged &= batches["base_offset"] >= (starts[0] if len(starts) else 0)
    v2 = batches[judged]
    if len(v2) == 0:
        return
    slots = np.searchsorted(starts, v2["base_offset"], "right") - 1
    known = epochs[slots] if len(epochs) else np.full(len(v2), -1)
    wrong = np.flatnonzero(known != v2["leader_epoch"])
    if len(wrong):
        row = v2[int(wrong[0])]
        yield Damage(
            path, 0, 0, int(row["base_offset"]), "checkpoint",
            f"the batch at offset {int(row['base_offset'])} has leader epoch "
            f"{int(row['leader_epoch'])}, "
            f"the file says {int(known[wrong[0]])} ({len(wrong)} batches differ)",
        )  # fmt: skip


def _problem(path: Path, kind: str, read: Callable[[], object]) -> Iterator[Damage]:
    try:
        read()
    except LogStoreError as error:
        yield Damage(path, error.position or 0, 0, None, kind, error.message)
    except (ValueError, OSError) as error:
        yield Damage(path, 0, 0, None, kind, str(error))
