"""
What a broker's controller knew of topics: their ids and settings, out of ``__cluster_metadata-0``.

Only what is said of topics and settings counts. A transaction of the metadata (KIP-868) counts when
it has ended, and not if it was aborted.

Source: Kafka ``TopicRecord``, ``ConfigRecord``, ``RemoveTopicRecord``, ``MetadataBatchLoader``,
``Snapshots``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from logstore.checkpoint import text_of_uuid
from logstore.control_record import ControlRecordType
from logstore.errors import CorruptRecordError
from logstore.files import Files
from logstore.metadata_record import SCHEMAS, parse_frame
from logstore.record import RecordBatch, iterate_batches

TOPIC: Final = 2
CONFIG: Final = 4
REMOVE_TOPIC: Final = 9
BEGIN_TRANSACTION: Final = 23
END_TRANSACTION: Final = 24
ABORT_TRANSACTION: Final = 25
RECORD_TYPES: Final = frozenset(
    {TOPIC, CONFIG, REMOVE_TOPIC, BEGIN_TRANSACTION, END_TRANSACTION, ABORT_TRANSACTION}
)

# Of ConfigRecord.ResourceType.
TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4

_SNAPSHOT_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint", re.ASCII)
_LOG_NAME = re.compile(r"(\d{20})\.log", re.ASCII)


@dataclass(slots=True)
class ClusterMetadata:
    """
    What the metadata says of topics and settings.

    Attributes:
        topics: The id of each topic, as text, by name.
        topic_configs: The settings of each topic that are its own, by Kafka's names.
        broker_configs: Settings that were altered for brokers, by broker id; ``""``: for all.
    """

    topics: dict[str, str] = field(default_factory=dict)
    topic_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)

    def apply(self, record_type: int, values: dict[str, Any]) -> None:
        """Take what a record says."""
        if record_type == TOPIC:
            self.topics[values["name"]] = text_of_uuid(values["topicId"])
        elif record_type == REMOVE_TOPIC:
            topic_id = text_of_uuid(values["topicId"])
            for name in [name for name, known in self.topics.items() if known == topic_id]:
                del self.topics[name]
                self.topic_configs.pop(name, None)
        elif record_type == CONFIG:
            configs = {TOPIC_RESOURCE: self.topic_configs, BROKER_RESOURCE: self.broker_configs}
            resources = configs.get(values["resourceType"])
            if resources is None:
                return
            settings = resources.setdefault(values["resourceName"], {})
            if values["value"] is None:
                settings.pop(values["name"], None)
            else:
                settings[values["name"]] = values["value"]


def read_cluster_metadata(directory: str, files: Files) -> ClusterMetadata:
    """
    Return what a metadata log says: its newest snapshot, and the records behind it.

    Args:
        directory: ``__cluster_metadata-0``; nothing in it is changed.
        files: The door to the file system.

    Raises:
        CorruptRecordError: Something is damaged or missing: what was meant is not known.
        InvalidRecordError: A record is malformed, or a newer broker wrote it.
        StorageError: It cannot be read.
    """
    names = sorted(files.listdir(directory))
    snapshots = [named for name in names if (named := _SNAPSHOT_NAME.fullmatch(name))]
    metadata = ClusterMetadata()
    next_offset = 0
    if snapshots:
        newest = max(snapshots, key=lambda each: (int(each[1]), int(each[2])))
        _apply_snapshot(metadata, os.path.join(directory, newest[0]), files)
        next_offset = int(newest[1])
    held_back: list[tuple[int, dict[str, Any]]] | None = None
    for name in names:
        if _LOG_NAME.fullmatch(name) is None:
            continue
        path = os.path.join(directory, name)
        for batch in metadata_batches(path, files):
            if batch.last_offset < next_offset:
                continue
            if batch.base_offset > next_offset:
                raise CorruptRecordError(
                    f"the metadata from offset {next_offset} to {batch.base_offset} is missing;"
                    " copy all of the directory",
                    path=path,
                    offset=next_offset,
                )
            for record in batch.records():
                if record.offset < next_offset or batch.is_control:
                    continue
                found = decode_value(record.value)
                if found is None:
                    continue
                if found[0] == BEGIN_TRANSACTION:
                    held_back = []
                elif found[0] == ABORT_TRANSACTION:
                    held_back = None
                elif found[0] == END_TRANSACTION:
                    for each in held_back or ():
                        metadata.apply(*each)
                    held_back = None
                elif held_back is not None:
                    held_back.append(found)
                else:
                    metadata.apply(*found)
            next_offset = batch.last_offset + 1
    return metadata


def decode_value(value: bytes | None) -> tuple[int, dict[str, Any]] | None:
    """Return the type of a record and its fields; None: it says nothing of topics or settings."""
    if value is None:
        return None
    record_type, version, message = parse_frame(value)
    if record_type not in RECORD_TYPES:
        return None
    return record_type, SCHEMAS[record_type].decode(message, version)


def _apply_snapshot(metadata: ClusterMetadata, path: str, files: Files) -> None:
    is_whole = False
    for batch in metadata_batches(path, files):
        for record in batch.records():
            if batch.is_control:
                kind = ControlRecordType.parse(record.key)
                is_whole = kind is ControlRecordType.SNAPSHOT_FOOTER
                continue
            found = decode_value(record.value)
            if found is not None:
                metadata.apply(*found)
    if not is_whole:
        raise CorruptRecordError("the snapshot has no end; copy all of the directory", path=path)


def metadata_batches(path: str, files: Files) -> Iterator[RecordBatch]:
    """
    Yield the batches of a segment of the metadata log, or of a snapshot.

    Raises:
        CorruptRecordError: One is damaged, or of an old format.
    """
    for batch in iterate_batches(files.read_file(path)):
        if not isinstance(batch, RecordBatch):
            raise CorruptRecordError("an entry of an old format is no metadata", path=path)
        batch.ensure_valid()
        yield batch
