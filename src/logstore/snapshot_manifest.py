"""
``logstore-snapshot``: what a snapshot says of itself, a JSON object that a broker ignores.

::

    {
        "version": 0,
        "complete": true,
        "taken_ms": 1700000000000,
        "end_offsets": {"orders": {"0": 17}},
        "copies": {"orders-0/00000000000000000000.log": [device, inode, size, mtime, ctime]},
    }

``complete``     false while the snapshot is being made
``end_offsets``  where the store's partitions ended at the moment of the snapshot
``copies``       of which state of which of the store's files the copies are, for the next snapshot;
                 files that are linked are not there
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from logstore.checkpoint import TopicPartition
from logstore.errors import CorruptCheckpointError, LogNotFoundError
from logstore.file_sharing import FileIdentity
from logstore.files import REAL_FILES, Files

SNAPSHOT_FILE: Final = "logstore-snapshot"
VERSION: Final = 0


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """
    What a snapshot says of itself.

    Attributes:
        is_complete: Whether it was finished.
        taken_ms: When it was taken, in milliseconds since the epoch.
        end_offsets: Where each partition of the store ended then.
        copies: Of which state of which files its copies are, by name.
    """

    is_complete: bool = False
    taken_ms: int = -1
    end_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    copies: Mapping[str, FileIdentity] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return it as the file has it."""
        ends: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in self.end_offsets.items():
            ends.setdefault(topic, {})[str(partition)] = offset
        content = {
            "version": VERSION,
            "complete": self.is_complete,
            "taken_ms": self.taken_ms,
            "end_offsets": ends,
            "copies": self.copies,
        }
        return json.dumps(content, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> SnapshotManifest:
        """Return what a file says; ValueError, KeyError, TypeError, AttributeError if nothing."""
        content = json.loads(data)
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']} is unknown")
        return cls(
            bool(content["complete"]),
            int(content["taken_ms"]),
            {
                TopicPartition(topic, int(partition)): int(offset)
                for topic, ends in content["end_offsets"].items()
                for partition, offset in ends.items()
            },
            {
                str(name): FileIdentity(*map(int, fields))
                for name, fields in content["copies"].items()
            },
        )

    def write(self, directory: str, files: Files = REAL_FILES) -> None:
        """Replace the file, durably."""
        files.replace_file(os.path.join(directory, SNAPSHOT_FILE), self.encode())


def read_manifest(directory: str, files: Files = REAL_FILES) -> SnapshotManifest | None:
    """
    Return what a snapshot says of itself, None if it is none.

    Raises:
        CorruptCheckpointError: The file says nothing.
        StorageError: It cannot be read.
    """
    path = os.path.join(directory, SNAPSHOT_FILE)
    if not files.exists(path):
        return None
    try:
        return SnapshotManifest.parse(files.read_file(path))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptCheckpointError(
            f"{path} does not say what the snapshot is: {error}; take another one", path=path
        ) from None


def existing_snapshot(directory: str, files: Files = REAL_FILES) -> SnapshotManifest:
    """
    Return what a finished snapshot says of itself.

    Raises:
        LogNotFoundError: There is none, or it was not finished.
        CorruptCheckpointError: It does not say what it is.
    """
    manifest = read_manifest(directory, files)
    if manifest is None or not manifest.is_complete:
        what = "no snapshot" if manifest is None else "a snapshot that was not finished"
        raise LogNotFoundError(
            f"there is {what} in {directory}; give a directory that store.snapshot() has made",
            path=directory,
        )
    return manifest
