"""
What a partition's state files say, judged against the batches that there are.

Snapshots, leader epochs, checkpoints, the topic id: each can be made again, but one that is
damaged, missing, or promises more than the log holds is a sign that something was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logstore.checkpoint import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    LeaderEpochCheckpointFile,
    OffsetCheckpointFile,
    PartitionMetadataFile,
    topic_partition_of,
)
from logstore.errors import LogStoreError
from logstore.file_dump import kind_of
from logstore.inspection import Damage, reason_of
from logstore.log_directory import META_PROPERTIES
from logstore.partition_state import PartitionState
from logstore.producer_snapshot import read_snapshot
from logstore.quarantined_offsets import QUARANTINE_SUFFIX
from logstore.segment_files import INDEX_SUFFIXES

DELETE_HORIZON = 0x40
EPOCH_MAX = 2**31 - 1
ROOT_CHECKPOINTS = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    CLEANER_CHECKPOINT,
)


class Contents(NamedTuple):
    """
    What was found in a partition's segments.

    Attributes:
        directory: The partition's directory.
        batches: Headers of every batch, ``BATCH_DTYPE``.
        checkpoints: What :meth:`checkpoints_of` returned before the segments were read.
        bases: Base offsets of the segments.
        is_complete: No segment is damaged: what lies beyond the end is not explained by that.
        is_compacted: See :func:`was_compacted`.
    """

    directory: Path
    batches: npt.NDArray[Any]
    checkpoints: dict[Path, int]
    bases: list[int]
    is_complete: bool
    is_compacted: bool

    @property
    def log_end_offset(self) -> int:
        """The offset behind the last batch."""
        base_offset = self.bases[-1] if self.bases else 0
        if len(self.batches) == 0:
            return base_offset
        return max(base_offset, int(self.batches["last_offset"][-1]) + 1)

    def segment_of(self, offset: int) -> Path:
        """Return the ``.log`` file that an offset is in."""
        slot = int(np.searchsorted(self.bases, offset, "right")) - 1
        return self.directory / f"{self.bases[max(0, slot)]:020d}.log"

    @staticmethod
    def checkpoints_of(directory: Path) -> dict[Path, int]:
        """Return what each checkpoint of the log says of it, by the checkpoint's path."""
        state = PartitionState.for_reading(str(directory))
        root = Path(state.path)
        return {
            root / RECOVERY_POINT_CHECKPOINT: state.recovery_point,
            root / LOG_START_CHECKPOINT: state.log_start_offset,
            root / HIGH_WATERMARK_CHECKPOINT: state.high_watermark,
        }


def offset_of(name: str) -> int | None:
    """Return the offset that a file is called after, or None."""
    stem = name.partition(".")[0]
    return int(stem) if stem.isdecimal() else None


def verify_state(contents: Contents) -> Iterator[Damage]:
    """Yield what is wrong with the files beside the segments."""
    yield from _verify_stray_indexes(contents)
    yield from _verify_snapshots(contents)
    for path in sorted(contents.directory.iterdir()):
        if path.name == LEADER_EPOCH_CHECKPOINT or path.name in ROOT_CHECKPOINTS:
            continue
        if path.name == PARTITION_METADATA:
            yield from _problem(path, "checkpoint", PartitionMetadataFile(path).read)
        elif kind_of(path.name) == "checkpoint" and path.suffix != QUARANTINE_SUFFIX:
            yield from _problem(path, "checkpoint", OffsetCheckpointFile(path).read)
    yield from verify_root(contents.directory)  # Of a log that stands alone.
    yield from _verify_epochs(contents)
    yield from _verify_topic_id(contents)
    if contents.is_complete:
        yield from _verify_ends(contents)


def verify_root(directory: Path) -> Iterator[Damage]:
    """Yield the damages of the checkpoint files of a log directory."""
    for name in ROOT_CHECKPOINTS:
        path = directory / name
        if path.exists():
            yield from _problem(path, "checkpoint", OffsetCheckpointFile(path).read)


def was_compacted(directory: Path, batches: npt.NDArray[Any]) -> bool:
    """
    Return whether the log was ever compacted, as far as its files tell.

    The topic's configuration is not on disk; a cleaner checkpoint, a delete horizon or a batch with
    fewer records than offsets are.
    """
    v2 = batches[batches["magic"] == 2]  # Magic.
    holes = v2["record_count"] < v2["last_offset"] - v2["base_offset"] + 1
    if holes.any() or ((v2["attributes"] & DELETE_HORIZON) != 0).any():
        return True
    try:
        cleaned = OffsetCheckpointFile(directory.parent / CLEANER_CHECKPOINT).read()
    except LogStoreError:
        return False
    return topic_partition_of(directory.name) in cleaned


def _verify_stray_indexes(contents: Contents) -> Iterator[Damage]:
    """Indexes, but no log: the segment is gone."""
    for path in sorted(contents.directory.iterdir()):
        offset = offset_of(path.name)
        if path.suffix in INDEX_SUFFIXES and offset not in contents.bases:
            yield Damage(
                path, 0, path.stat().st_size, offset, "index", "its .log file is missing"
            )  # fmt: skip


def _verify_snapshots(contents: Contents) -> Iterator[Damage]:
    present: list[int] = []
    for path in sorted(contents.directory.glob("*.snapshot")):
        offset = offset_of(path.name)
        if offset is None:
            continue
        present.append(offset)
        yield from _problem(path, "snapshot", partial(read_snapshot, path))
    if not contents.is_complete:
        return
    end = contents.log_end_offset
    if present and present[-1] > end:
        yield Damage(
            contents.directory / f"{present[-1]:020d}.snapshot", 0, 0, end, "snapshot",
            f"it was taken at offset {present[-1]}, and the log ends at {end}",
        )  # fmt: skip
    with_producer = contents.batches["base_offset"][contents.batches["producer_id"] >= 0]
    # Older ones may be missing: only a truncation to where they were taken would use them.
    for base in contents.bases[1:][-2:]:
        if base not in present and len(with_producer) and int(with_producer[0]) < base:
            yield Damage(
                contents.directory / f"{base:020d}.snapshot", 0, 0, base, "snapshot",
                "the file is missing: producers before it cannot be told without reading the log",
            )  # fmt: skip


def _verify_epochs(contents: Contents) -> Iterator[Damage]:
    """Judge the epoch file against the leader epochs in batch headers."""
    path = contents.directory / LEADER_EPOCH_CHECKPOINT
    batches = contents.batches
    judged = (batches["magic"] == 2) & (batches["leader_epoch"] >= 0)
    if not path.exists():
        if judged.any():
            row = batches[judged][0]
            yield Damage(
                path, 0, 0, int(row["base_offset"]), "checkpoint",
                f"the file is missing, and batches have leader epochs, from {row['leader_epoch']}",
            )  # fmt: skip
        return
    problems = list(_problem(path, "checkpoint", LeaderEpochCheckpointFile(path).read))
    if problems:
        yield from problems
        return
    entries = LeaderEpochCheckpointFile(path).read()
    starts = np.array([entry.start_offset for entry in entries], np.int64)
    epochs = np.array([entry.epoch for entry in entries], np.int64)
    # Epochs below the log start are cut off, so what is before the first entry says nothing.
    judged &= batches["base_offset"] >= (starts[0] if len(starts) else 0)
    v2 = batches[judged]
    slots = np.searchsorted(starts, v2["base_offset"], "right") - 1
    known = epochs[slots] if len(epochs) else np.full(len(v2), -1)
    found = v2["leader_epoch"].astype(np.int64)
    # No CRC covers a batch's epoch. Epochs never go down: one that is above a later or below an
    # earlier one, and not what the file says, is the batch's own damage.
    misfit = found > np.append(np.minimum.accumulate(found[::-1])[::-1][1:], EPOCH_MAX)
    misfit |= found < np.append(-1, np.maximum.accumulate(found)[:-1])
    is_wrong = known != found
    wrong = np.flatnonzero(is_wrong & ~misfit)
    for slot in np.flatnonzero(is_wrong & misfit).tolist():
        row = v2[slot]
        yield Damage(
            contents.segment_of(int(row["base_offset"])), int(row["position"]),
            int(row["size_bytes"]), int(row["base_offset"]), "epoch",
            f"leader epoch {found[slot]} does not fit those around it, which a CRC does not tell; "
            f"{LEADER_EPOCH_CHECKPOINT} says {known[slot]}",
        )  # fmt: skip
    if len(wrong):
        row = v2[int(wrong[0])]
        yield Damage(
            path, 0, 0, int(row["base_offset"]), "checkpoint",
            f"the batch at offset {int(row['base_offset'])} has leader epoch "
            f"{int(row['leader_epoch'])}, "
            f"the file says {int(known[wrong[0]])} ({len(wrong)} batches differ)",
        )  # fmt: skip
    elif contents.is_complete and len(starts) and int(starts[-1]) > contents.log_end_offset:
        yield Damage(
            path, 0, 0, int(starts[-1]), "checkpoint",
            f"epoch {int(epochs[-1])} begins at offset {int(starts[-1])}, "
            f"and the log ends at {contents.log_end_offset}",
        )  # fmt: skip


def _verify_topic_id(contents: Contents) -> Iterator[Damage]:
    """A broker that knows topics by their id takes a partition without one for a stray."""
    path = contents.directory / PARTITION_METADATA
    properties = contents.directory.parent / META_PROPERTIES
    if path.exists() or not properties.exists() or topic_partition_of(path.parent.name) is None:
        return
    if "version=1" in properties.read_text("utf-8", "replace").split():
        yield Damage(
            path, 0, 0, None, "checkpoint",
            "the file is missing: a broker would set the directory aside as a stray",
        )  # fmt: skip


def _verify_ends(contents: Contents) -> Iterator[Damage]:
    """A checkpoint that promises more than there is."""
    end = contents.log_end_offset
    for path, offset in contents.checkpoints.items():
        if offset > end:
            yield Damage(
                path, 0, 0, offset, "checkpoint",
                f"{contents.directory.name} is said to reach {offset}, and the log ends at {end}",
            )  # fmt: skip


def _problem(path: Path, kind: str, read: Callable[[], object]) -> Iterator[Damage]:
    try:
        read()
    except LogStoreError as error:
        yield Damage(path, error.position or 0, 0, None, kind, reason_of(error, path))
    except (ValueError, OSError) as error:
        yield Damage(path, 0, 0, None, kind, str(error))
