"""
The contents of one file of a partition or log directory, with the names of Kafka's dump tool.

Source: Kafka ``DumpLogSegments``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from logstore.checkpoint import LeaderEpochCheckpointFile, OffsetCheckpointFile
from logstore.control_record import (
    ControlRecordType,
    EndTransactionMarker,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    SnapshotHeader,
    parse_control_record,
)
from logstore.coordinator_record import type_id_of
from logstore.errors import LogStoreError
from logstore.group_metadata import decode_group_record, shown_group_record
from logstore.index import OffsetIndex, TimeIndex, TransactionIndex
from logstore.inspection import Damage, Entry, base_offset_of, scan_log_file
from logstore.metadata_record import decode_metadata_record
from logstore.producer_snapshot import read_snapshot
from logstore.record import Record, RecordBatch
from logstore.timestamp_type import TimestampType
from logstore.topic_names import (
    CLUSTER_METADATA_TOPIC,
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from logstore.transaction_log import decode_transaction_record

UNKNOWN_TYPE_TEXT = "<UNKNOWN>"  # A newer broker's record.
DECORATIONS = (".deleted", ".cleaned", ".swap")
# A file that a repair has set aside, or bytes of a segment.
_QUARANTINED = re.compile(
    r"(.*?(?:\.(?:log|index|timeindex|txnindex|snapshot)|checkpoint))\..*quarantine"
)
TIMESTAMP_NAMES = {
    TimestampType.NO_TIMESTAMP_TYPE: "NoTimestampType",
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}


class FileDump(NamedTuple):
    """
    A file's entries.

    Attributes:
        kind: ``log``, ``index``, ``timeindex``, ``txnindex``, ``snapshot``, ``checkpoint`` or
            ``text``.
        size_bytes: Size of the file.
        entries: One dictionary each, with DumpLogSegments' field names.
        notes: What is wrong with the file, one sentence each.
    """

    kind: str
    size_bytes: int
    entries: list[dict[str, Any]]
    notes: list[str]


def dump_file(path: Path) -> FileDump:
    """
    Decode a file by its name; a decorating suffix such as ``.deleted`` does not matter.

    Raises:
        CorruptSnapshotError, CorruptCheckpointError, CorruptIndexError: The file does not parse.
    """
    kind = kind_of(path.name)
    entries: list[dict[str, Any]] = []
    notes: list[str] = []
    if kind == "log":
        for found in log_entries(path):
            if isinstance(found, str):
                notes.append(found)
            else:
                entries.append(found)
    elif kind == "index":
        entries += _offset_entries(path)
    elif kind == "timeindex":
        entries += _time_entries(path)
    elif kind == "txnindex":
        entries += _transaction_entries(path)
    elif kind == "snapshot":
        entries += _snapshot_entries(path)
    elif kind == "checkpoint":
        entries += _checkpoint_entries(path)
    else:
        entries.append({"text": path.read_bytes().decode("utf-8", "backslashreplace")})
    return FileDump(kind, path.stat().st_size, entries, notes)


def kind_of(name: str) -> str:
    """Return what a file holds, by its name; see :class:`FileDump`."""
    quarantined = _QUARANTINED.fullmatch(name)
    if quarantined is not None:
        name = quarantined[1]
    for suffix in DECORATIONS:
        name = name.removesuffix(suffix)
    stem, _, extension = name.rpartition(".")
    if stem.isdecimal() and extension in {"log", "index", "timeindex", "txnindex", "snapshot"}:
        return extension
    if name.endswith(".checkpoint"):
        return "log"  # A KRaft snapshot: record batches, like a segment.
    return "checkpoint" if name.endswith("-checkpoint") else "text"


def log_entries(path: Path) -> Iterator[dict[str, Any] | str]:
    """
    Yield the batches of a ``.log`` file, and a sentence for what is wrong with it.

    Control records and those of ``__consumer_offsets``, ``__transaction_state`` and
    ``__cluster_metadata`` are decoded.
    """
    topic = path.absolute().parent.name.rpartition("-")[0]
    if path.suffix == ".checkpoint":
        topic = CLUSTER_METADATA_TOPIC  # A snapshot, or what a controller begins with.
    for part in scan_log_file(path, next_offset=0):
        if isinstance(part, Damage):
            yield f"position {part.position}: {part.kind}: {part.reason}"
            continue
        for position, entry in part.entries():
            fields = batch_fields(entry, position)
            if isinstance(entry, RecordBatch) and (entry.is_control or topic in _INTERNAL_FIELDS):
                shown = _control_fields if entry.is_control else _INTERNAL_FIELDS[topic]
                try:
                    fields["records"] = [shown(record) for record in entry.records()]
                except LogStoreError as error:
                    yield f"position {position}: {error}"
            yield fields


def batch_fields(entry: Entry, position: int) -> dict[str, Any]:
    """Return a header as DumpLogSegments prints it; magic 0 and 1 have their outer offset only."""
    fields: dict[str, Any] = {}
    if isinstance(entry, RecordBatch):
        fields = {
            "baseOffset": entry.base_offset,
            "lastOffset": entry.last_offset,
            "count": entry.record_count,
            "baseSequence": entry.base_sequence,
            "lastSequence": entry.last_sequence,
            "producerId": entry.producer_id,
            "producerEpoch": entry.producer_epoch,
            "partitionLeaderEpoch": entry.leader_epoch,
            "isTransactional": entry.is_transactional,
            "isControl": entry.is_control,
            "deleteHorizonMs": entry.delete_horizon_ms,
        }
    else:
        fields["offset"] = entry.last_offset
    fields["position"] = position
    fields[TIMESTAMP_NAMES[TimestampType(entry.timestamp_type)]] = entry.max_timestamp
    fields["size"] = entry.size_bytes
    fields["magic"] = entry.magic
    fields["compresscodec"] = entry.compression_type.label
    fields["crc"] = entry.crc
    fields["isvalid"] = entry.is_valid
    return fields


def _control_fields(record: Record) -> dict[str, Any]:
    kind = ControlRecordType.parse(record.key)
    fields: dict[str, Any] = {"offset": record.offset, "controlType": kind.name}
    message = parse_control_record(record.key, record.value)
    if isinstance(message, EndTransactionMarker):
        fields["coordinatorEpoch"] = message.coordinator_epoch
    elif isinstance(message, LeaderChange):
        fields["leaderId"] = message.leader_id
        fields["voters"] = [node_id for node_id, _ in message.voters]
        fields["grantingVoters"] = [node_id for node_id, _ in message.granting_voters]
    elif isinstance(message, SnapshotHeader):
        fields["lastContainedLogTimestamp"] = message.last_contained_log_timestamp
    elif isinstance(message, KRaftVersion):
        fields["kRaftVersion"] = message.kraft_version
    elif isinstance(message, KRaftVoters):
        fields["voters"] = [voter.voter_id for voter in message.voters]
    return fields


def _metadata_fields(record: Record) -> dict[str, Any]:
    if record.value is None:
        return {"offset": record.offset, "payload": None}
    decoded = decode_metadata_record(record.value)
    shown = UNKNOWN_TYPE_TEXT if decoded is None else decoded.shown()
    return {"offset": record.offset, "payload": shown}


def _group_fields(record: Record) -> dict[str, Any]:
    decoded = decode_group_record(record.key, record.value)
    return _internal_fields(record, None if decoded is None else shown_group_record(decoded))


def _transaction_fields(record: Record) -> dict[str, Any]:
    decoded = decode_transaction_record(record.key, record.value)
    return _internal_fields(record, None if decoded is None else decoded.shown())


def _internal_fields(record: Record, shown: dict[str, Any] | None) -> dict[str, Any]:
    if shown is None:
        shown = {"key": {"type": str(type_id_of(record.key))}, "payload": UNKNOWN_TYPE_TEXT}
    return {"offset": record.offset, **shown}


_INTERNAL_FIELDS = {
    GROUP_METADATA_TOPIC: _group_fields,
    TRANSACTION_STATE_TOPIC: _transaction_fields,
    CLUSTER_METADATA_TOPIC: _metadata_fields,
}


def _offset_entries(path: Path) -> list[dict[str, Any]]:
    index = OffsetIndex(path, base_offset_of(path), writable=False)
    try:
        return [
            {"offset": offset, "position": position}
            for offset, position in _without_padding(index.entries().tolist(), index.base_offset)
        ]
    finally:
        index.close_handler()


def _time_entries(path: Path) -> list[dict[str, Any]]:
    index = TimeIndex(path, base_offset_of(path), writable=False)
    base_offset = index.base_offset
    try:
        rows = [(offset, timestamp) for timestamp, offset in index.entries().tolist()]
        return [
            {"timestamp": timestamp, "offset": offset}
            for offset, timestamp in _without_padding(rows, base_offset)
        ]
    finally:
        index.close_handler()


def _without_padding(rows: list[tuple[int, int]], base_offset: int) -> list[tuple[int, int]]:
    """Cut at the first zero entry after the first: a preallocated tail (the tool's own rule)."""
    for slot, (offset, other) in enumerate(rows):
        if slot > 0 and offset == base_offset and other == 0:
            return rows[:slot]
    return rows


def _transaction_entries(path: Path) -> list[dict[str, Any]]:
    index = TransactionIndex(path, base_offset_of(path))
    try:
        return [
            {
                "version": 0,
                "producerId": aborted.producer_id,
                "firstOffset": aborted.first_offset,
                "lastOffset": aborted.last_offset,
                "lastStableOffset": aborted.last_stable_offset,
            }
            for aborted in index.all_aborted_txns()
        ]
    finally:
        index.close()


def _snapshot_entries(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for entry in read_snapshot(path):
        fields: dict[str, Any] = {
            "producerId": entry.producer_id,
            "producerEpoch": entry.producer_epoch,
            "coordinatorEpoch": entry.coordinator_epoch,
            "currentTxnFirstOffset": entry.current_txn_first_offset,
            "lastTimestamp": entry.last_timestamp,
        }
        if entry.batch_metadata:
            batch = entry.batch_metadata[-1]
            fields |= {
                "firstSequence": batch.first_sequence,
                "lastSequence": batch.last_sequence,
                "lastOffset": batch.last_offset,
                "offsetDelta": batch.offset_delta,
                "timestamp": batch.timestamp,
            }
        rows.append(fields)
    return rows


def _checkpoint_entries(path: Path) -> list[dict[str, Any]]:
    if path.name.startswith("leader-epoch-checkpoint"):
        return [
            {"epoch": entry.epoch, "startOffset": entry.start_offset}
            for entry in LeaderEpochCheckpointFile(path).read()
        ]
    return [
        {"topic": topic, "partition": partition, "offset": offset}
        for (topic, partition), offset in OffsetCheckpointFile(path).read().items()
    ]
