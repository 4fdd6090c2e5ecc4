"""
What is in a directory, in the form of the oracle's ``DirectoryDump`` and ``RecordCodec``.

Names, sizes and digests of all files; producers of snapshots; text of checkpoints.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from logstore.errors import LogStoreError
from logstore.producer_snapshot import read_snapshot
from logstore.record import RecordBatch, iterate_batches

TRANSIENT_SUFFIXES = (".deleted", ".cleaned", ".swap")
KINDS = ("log", "index", "timeindex", "txnindex", "snapshot")

Json = Any


def listing(directory: Path, live_segments: tuple[Any, ...] = ()) -> list[Json]:
    """
    All regular files, sorted by name.

    The indexes of the active segment are preallocated: only what is in them has a digest.
    """
    valid_bytes: dict[str, int] = {}
    for segment in live_segments:
        segment.take_index_entries()
        for index in (segment.offset_index, segment.time_index):
            valid_bytes[Path(index.path).name] = index.size_bytes
    files = []
    for path in sorted(path for path in directory.iterdir() if path.is_file()):
        data = path.read_bytes()
        entry: dict[str, Json] = {"name": path.name, "size": len(data)}
        valid = valid_bytes.get(path.name)
        if valid is not None and valid != len(data):
            entry |= {"valid_bytes": valid, "valid_sha256": sha256(data[:valid])}
            files.append(entry)
            continue
        entry["sha256"] = sha256(data)
        kind = kind_of(path.name)
        if kind == "log":
            entry["logical_sha256"] = logical_sha256(data)
        elif kind == "snapshot":
            entry |= snapshot(path)
        elif kind == "text":
            entry["text"] = data.decode()
        files.append(entry)
    return files


def kind_of(name: str) -> str:
    """log, index, timeindex, txnindex, snapshot, text, or other."""
    for suffix in TRANSIENT_SUFFIXES:
        name = name.removesuffix(suffix)
    if name.endswith("-checkpoint") or name in ("partition.metadata", ".kafka_cleanshutdown"):
        return "text"
    extension = name.rpartition(".")[2]
    return extension if extension in KINDS else "other"


def snapshot(path: Path) -> dict[str, Json]:
    """The producers of a snapshot file, or that it is damaged."""
    try:
        entries = read_snapshot(path)
    except LogStoreError:
        return {"error": "CorruptSnapshotException"}
    return {
        "producers": [
            producer(entry) for entry in sorted(entries, key=lambda entry: entry.producer_id)
        ]
    }


def producer(entry: Any) -> dict[str, Json]:
    """One producer's state."""
    return {
        "producer_id": entry.producer_id,
        "producer_epoch": entry.producer_epoch,
        "coordinator_epoch": entry.coordinator_epoch,
        "last_timestamp": entry.last_timestamp,
        "current_txn_first_offset": entry.current_txn_first_offset,
        "batches": [
            [batch.last_sequence, batch.last_offset, batch.offset_delta, batch.timestamp]
            for batch in entry.batch_metadata
        ],
    }


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def base64_of(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def logical_sha256(data: bytes) -> str:
    """
    A digest that does not depend on how well a codec compresses.

    Per v2 batch the header without length and CRC, then the decompressed records section; anything
    else counts as it is.
    """
    digest = hashlib.sha256()
    position = 0
    try:
        for batch in iterate_batches(data):
            size = batch.size_bytes
            if isinstance(batch, RecordBatch) and batch.is_valid:
                section = batch.section()
                digest.update(data[position : position + 8])
                digest.update(data[position + 12 : position + 17])
                digest.update(data[position + 21 : position + 61])
                digest.update(section)
            else:
                digest.update(data[position : position + size])
            position += size
    except LogStoreError:
        pass  # Damaged from here on: the rest counts byte by byte.
    digest.update(data[position:])
    return digest.hexdigest()
