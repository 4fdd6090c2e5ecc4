"""
``bootstrap.checkpoint``: what a controller begins with whose metadata log is empty.

``kafka-storage format`` writes it into the directory of the metadata log: a snapshot with the
levels of the cluster's features. A controller that starts for the first time makes its records the
first of ``__cluster_metadata``. So a store whose topics stand there is served by a broker as if
they had been created there: same topic ids, same settings.

Source: Kafka ``BootstrapDirectory``, ``BootstrapMetadata``, ``ActivationRecordsGenerator``,
``BatchFileReader``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from logstore.checkpoint import random_topic_id, uuid_of
from logstore.cluster_metadata import CONFIG, TOPIC, TOPIC_RESOURCE, metadata_batches
from logstore.control_record import (
    ControlRecordType,
    SnapshotFooter,
    SnapshotHeader,
    parse_control_record,
)
from logstore.errors import CorruptRecordError, InvalidRecordError, LogExistsError, OfflineError
from logstore.meta_properties import read_meta_properties
from logstore.metadata_record import decode_metadata_record, encode_metadata_record
from logstore.producer_ids import FIRST_PRODUCER_ID
from logstore.records_builder import control_batch, encode_batch
from logstore.topic_configs import RETENTION_PROPERTIES
from logstore.topic_names import CLUSTER_METADATA_TOPIC

if TYPE_CHECKING:
    from logstore.transactional_store import TransactionalStore

BOOTSTRAP_FILE: Final = "bootstrap.checkpoint"

PARTITION: Final = 3
FEATURE_LEVEL: Final = 12
PRODUCER_IDS: Final = 15
METADATA_VERSION: Final = "metadata.version"
# Of metadata.version: Kafka 3.7, since which a partition says in which directory it is.
FEATURE_LEVEL_MIN: Final = 17
PARTITION_VERSION: Final = 1

NO_BROKER_EPOCH: Final = -1
RECORDS_PER_BATCH: Final = 1000

# Settings that a broker does not know.
OWN_PREFIX: Final = "logstore."


class MetadataExport(NamedTuple):
    """
    What :meth:`LogStore.export_metadata` has written.

    Attributes:
        path: The file.
        configs: The topics, with the settings of each.
        next_producer_id: The first that the controller gives out.
    """

    path: str
    configs: Mapping[str, Mapping[str, str]]
    next_producer_id: int


def export_metadata(store: TransactionalStore, path: str | os.PathLike[str]) -> MetadataExport:
    """Do what :meth:`LogStore.export_metadata` says."""
    file = os.fspath(path)
    log = os.path.join(os.path.dirname(file), f"{CLUSTER_METADATA_TOPIC}-0")
    if store.files.exists(log) and any(
        name.endswith(".log") and store.files.file_size(os.path.join(log, name))
        for name in store.files.listdir(log)
    ):
        raise LogExistsError(
            f"{log} has records: its controller does not read {BOOTSTRAP_FILE} any more; create the"
            " topics there, and copy into them",
            path=log,
        )
    header, kept = _read(file, store)
    configs = {name: _settings_of(store, name) for name in store}
    next_producer_id = 1 + max(
        (each for each in store.used_producer_ids() if each < FIRST_PRODUCER_ID), default=-1
    )
    values = [*kept, *_topic_records(store, configs)]
    if next_producer_id:
        # Else the controller's ids begin at 0, of which the logs know some.
        fields = {
            "brokerId": _nodes(store)[0],
            "brokerEpoch": NO_BROKER_EPOCH,
            "nextProducerId": next_producer_id,
        }
        values.append(encode_metadata_record(PRODUCER_IDS, 0, fields))
    now_ms = store.clock.milliseconds()
    store.files.replace_file(file, b"".join(_snapshot(header, values, now_ms)))
    return MetadataExport(file, configs, next_producer_id)


def _read(path: str, store: TransactionalStore) -> tuple[SnapshotHeader, list[bytes]]:
    """Return the header, and the records but those that an export writes."""
    header: SnapshotHeader | None = None
    is_whole = False
    kept: list[bytes] = []
    level = 0
    for batch in metadata_batches(path, store.files):
        for record in batch.records():
            if batch.is_control:
                message = parse_control_record(record.key, record.value)
                is_whole = isinstance(message, SnapshotFooter)
                header = message if isinstance(message, SnapshotHeader) else header
                continue
            found = decode_metadata_record(record.value or b"")
            if found is None:
                raise InvalidRecordError(
                    f"{path} has a record of a type that is not known; a newer Kafka wrote it"
                )
            if (found.record_type, found.values.get("name")) == (FEATURE_LEVEL, METADATA_VERSION):
                level = found.values["featureLevel"]
            if not _is_of_export(found.record_type, found.values):
                assert record.value is not None
                kept.append(record.value)
    if header is None or not is_whole:
        raise CorruptRecordError(
            f"{path} is no whole snapshot; make it with `kafka-storage format`", path=path
        )
    if level < FEATURE_LEVEL_MIN:
        raise InvalidRecordError(
            f"{path} has the feature level {level} of {METADATA_VERSION}, and"
            f" {FEATURE_LEVEL_MIN} is needed, Kafka 3.7's; format with a newer --release-version"
        )
    return header, kept


def _is_of_export(record_type: int, values: Mapping[str, Any]) -> bool:
    if record_type == CONFIG:
        return bool(values["resourceType"] == TOPIC_RESOURCE)
    return record_type in (TOPIC, PARTITION, PRODUCER_IDS)


def _settings_of(store: TransactionalStore, topic: str) -> dict[str, str]:
    """
    Return the settings that a broker gets for a topic.

    Those that say what is deleted are told even at their defaults, since a broker's are others.
    """
    entry = store.configs.get(topic)
    own = {} if entry is None else entry.config
    in_force = store.config_of(topic).to_properties()
    return {
        name: value
        for name, value in in_force.items()
        if name in RETENTION_PROPERTIES or (name in own and not name.startswith(OWN_PREFIX))
    }


def _topic_records(
    store: TransactionalStore, configs: Mapping[str, Mapping[str, str]]
) -> Iterator[bytes]:
    """Yield the records of all topics, as a controller writes them when it creates one."""
    directories, nodes = _directory_ids(store), _nodes(store)
    for topic in store.topics():
        topic_id = uuid_of(topic.topic_id or random_topic_id())
        yield encode_metadata_record(TOPIC, 0, {"name": topic.name, "topicId": topic_id})
        for name, value in sorted(configs[topic.name].items()):
            fields = {
                "resourceType": TOPIC_RESOURCE,
                "resourceName": topic.name,
                "name": name,
                "value": value,
            }
            yield encode_metadata_record(CONFIG, 0, fields)
        for number in range(topic.partition_count):
            path = store.path_of(topic.name, number)
            if path is None:
                raise OfflineError(
                    f"{topic.name}-{number} is missing; a broker would begin it anew, so bring its"
                    " directory back, or delete the topic"
                )
            yield encode_metadata_record(
                PARTITION,
                PARTITION_VERSION,
                {
                    "partitionId": number,
                    "topicId": topic_id,
                    "replicas": nodes,
                    "isr": nodes,
                    "removingReplicas": [],
                    "addingReplicas": [],
                    # The controller takes it for gone, as it has never seen it, and elects whom it
                    # knows to have led last, with the next epoch.
                    "leader": nodes[0],
                    "leaderEpoch": max(0, topic[number].leader_epoch),
                    "partitionEpoch": 0,
                    "directories": [directories[os.path.dirname(path)]],
                },
            )


def _directory_ids(store: TransactionalStore) -> dict[str, UUID]:
    """Return the id of each log directory."""
    found = {}
    for path in store.paths:
        properties = read_meta_properties(path, store.files)
        if properties is None or properties.directory_id is None:
            raise OfflineError(f"{path} has no directory.id in its meta.properties; add one")
        found[path] = uuid_of(properties.directory_id)
    return found


def _nodes(store: TransactionalStore) -> list[int]:
    """Return the node that the store is, as the list of its replicas."""
    properties = read_meta_properties(store.paths[0], store.files)
    node_id = None if properties is None else properties.node_id
    return [store.config.node_id if node_id is None else node_id]


def _snapshot(header: SnapshotHeader, values: Iterable[bytes], now_ms: int) -> Iterator[bytes]:
    """Yield the batches of a snapshot of these records."""
    yield control_batch(
        ControlRecordType.SNAPSHOT_HEADER, header.value(), timestamp=now_ms, leader_epoch=0
    )
    rows = [(None, now_ms, None, value, ()) for value in values]
    for start in range(0, len(rows), RECORDS_PER_BATCH):
        part = rows[start : start + RECORDS_PER_BATCH]
        yield encode_batch(part, base_offset=1 + start, leader_epoch=0)
    yield control_batch(
        ControlRecordType.SNAPSHOT_FOOTER,
        SnapshotFooter().value(),
        timestamp=now_ms,
        leader_epoch=0,
        base_offset=1 + len(rows),
    )
