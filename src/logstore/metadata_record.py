"""
Records of ``__cluster_metadata``: what a controller knows, one record for each change.

The metadata log is a log of records without keys, and beside it lie snapshots of what its records
come to, ``<end offset>-<epoch>.checkpoint``, in the same format.

=================  ============================================
value of a record
=================  ============================================
frame version      unsigned varint, 1
type               unsigned varint, see :data:`SCHEMAS`
version            unsigned varint
message            in the flexible encoding
=================  ============================================

Source: Kafka ``MetadataRecordSerde``, ``MetadataRecordType``, the schemas of Kafka 4.1's metadata
records, ``MetadataJsonConverters``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from logstore.coordinator_record import shown_fields
from logstore.errors import InvalidRecordError
from logstore.protocol_message import (
    Array,
    Field,
    MessageReader,
    MessageSchema,
    Struct,
    unsigned_varint,
)

FRAME_VERSION: Final = 1

_ENDPOINT: Final = Struct(
    (
        Field("name", "string"),
        Field("host", "string"),
        Field("port", "uint16"),
        Field("securityProtocol", "int16"),
    )
)
_FEATURE: Final = Struct(
    (
        Field("name", "string"),
        Field("minSupportedVersion", "int16"),
        Field("maxSupportedVersion", "int16"),
    )
)
_ENTITY: Final = Struct(
    (Field("entityType", "string"), Field("entityName", "string", is_nullable=True))
)


def _schema(
    record_type: int, name: str, last_version: int, *fields: Field
) -> tuple[int, MessageSchema]:
    return record_type, MessageSchema(name, fields, last_version, flexible_version=0)


# By type, the number that Kafka calls its API key.
SCHEMAS: Final = dict(
    [
        _schema(
            0,
            "RegisterBrokerRecord",
            3,
            Field("brokerId", "int32"),
            Field("isMigratingZkBroker", "bool", 2),
            Field("incarnationId", "uuid"),
            Field("brokerEpoch", "int64"),
            Field("endPoints", Array(_ENDPOINT)),
            Field("features", Array(_FEATURE)),
            Field("rack", "string", is_nullable=True),
            Field("fenced", "bool"),
            Field("inControlledShutdown", "bool", 1),
            Field("logDirs", Array("uuid"), 3, tag=0, default=[]),
        ),
        _schema(
            1,
            "UnregisterBrokerRecord",
            0,
            Field("brokerId", "int32"),
            Field("brokerEpoch", "int64"),
        ),
        _schema(2, "TopicRecord", 0, Field("name", "string"), Field("topicId", "uuid")),
        _schema(
            3,
            "PartitionRecord",
            2,
            Field("partitionId", "int32"),
            Field("topicId", "uuid"),
            Field("replicas", Array("int32")),
            Field("isr", Array("int32")),
            Field("removingReplicas", Array("int32")),
            Field("addingReplicas", Array("int32")),
            Field("leader", "int32"),
            Field("leaderRecoveryState", "int8", tag=0, default=0),
            Field("leaderEpoch", "int32"),
            Field("partitionEpoch", "int32"),
            Field("directories", Array("uuid"), 1),
            Field("eligibleLeaderReplicas", Array("int32"), 2, is_nullable=True, tag=1),
            Field("lastKnownElr", Array("int32"), 2, is_nullable=True, tag=2),
        ),
        _schema(
            4,
            "ConfigRecord",
            0,
            Field("resourceType", "int8"),
            Field("resourceName", "string"),
            Field("name", "string"),
            Field("value", "string", is_nullable=True),
        ),
        _schema(
            5,
            "PartitionChangeRecord",
            2,
            Field("partitionId", "int32"),
            Field("topicId", "uuid"),
            Field("isr", Array("int32"), is_nullable=True, tag=0),
            Field("leader", "int32", tag=1, default=-2),
            Field("replicas", Array("int32"), is_nullable=True, tag=2),
            Field("removingReplicas", Array("int32"), is_nullable=True, tag=3),
            Field("addingReplicas", Array("int32"), is_nullable=True, tag=4),
            Field("leaderRecoveryState", "int8", tag=5, default=-1),
            Field("directories", Array("uuid"), 1, is_nullable=True, tag=8),
            Field("eligibleLeaderReplicas", Array("int32"), 2, is_nullable=True, tag=6),
            Field("lastKnownElr", Array("int32"), 2, is_nullable=True, tag=7),
        ),
        _schema(7, "FenceBrokerRecord", 0, Field("id", "int32"), Field("epoch", "int64")),
        _schema(8, "UnfenceBrokerRecord", 0, Field("id", "int32"), Field("epoch", "int64")),
        _schema(9, "RemoveTopicRecord", 0, Field("topicId", "uuid")),
        _schema(
            10,
            "DelegationTokenRecord",
            0,
            Field("owner", "string"),
            Field("requester", "string"),
            Field("renewers", Array("string")),
            Field("issueTimestamp", "int64"),
            Field("maxTimestamp", "int64"),
            Field("expirationTimestamp", "int64"),
            Field("tokenId", "string"),
        ),
        _schema(
            11,
            "UserScramCredentialRecord",
            0,
            Field("name", "string"),
            Field("mechanism", "int8"),
            Field("salt", "bytes"),
            Field("storedKey", "bytes"),
            Field("serverKey", "bytes"),
            Field("iterations", "int32"),
        ),
        _schema(
            12, "FeatureLevelRecord", 0, Field("name", "string"), Field("featureLevel", "int16")
        ),
        _schema(
            14,
            "ClientQuotaRecord",
            0,
            Field("entity", Array(_ENTITY)),
            Field("key", "string"),
            Field("value", "float64"),
            Field("remove", "bool"),
        ),
        _schema(
            15,
            "ProducerIdsRecord",
            0,
            Field("brokerId", "int32"),
            Field("brokerEpoch", "int64"),
            Field("nextProducerId", "int64"),
        ),
        _schema(
            17,
            "BrokerRegistrationChangeRecord",
            2,
            Field("brokerId", "int32"),
            Field("brokerEpoch", "int64"),
            Field("fenced", "int8", tag=0, default=0),
            Field("inControlledShutdown", "int8", 1, tag=1, default=0),
            Field("logDirs", Array("uuid"), 2, tag=2, default=[]),
        ),
        _schema(
            18,
            "AccessControlEntryRecord",
            0,
            Field("id", "uuid"),
            Field("resourceType", "int8"),
            Field("resourceName", "string"),
            Field("patternType", "int8"),
            Field("principal", "string"),
            Field("host", "string"),
            Field("operation", "int8"),
            Field("permissionType", "int8"),
        ),
        _schema(19, "RemoveAccessControlEntryRecord", 0, Field("id", "uuid")),
        _schema(20, "NoOpRecord", 0),
        _schema(21, "ZkMigrationStateRecord", 0, Field("zkMigrationState", "int8")),
        _schema(
            22,
            "RemoveUserScramCredentialRecord",
            0,
            Field("name", "string"),
            Field("mechanism", "int8"),
        ),
        _schema(23, "BeginTransactionRecord", 0, Field("name", "string", is_nullable=True, tag=0)),
        _schema(24, "EndTransactionRecord", 0),
        _schema(
            25, "AbortTransactionRecord", 0, Field("reason", "string", is_nullable=True, tag=0)
        ),
        _schema(26, "RemoveDelegationTokenRecord", 0, Field("tokenId", "string")),
        _schema(
            27,
            "RegisterControllerRecord",
            0,
            Field("controllerId", "int32"),
            Field("incarnationId", "uuid"),
            Field("zkMigrationReady", "bool"),
            Field("endPoints", Array(_ENDPOINT)),
            Field("features", Array(_FEATURE)),
        ),
        _schema(28, "ClearElrRecord", 0, Field("topicName", "string")),
    ]
)


class MetadataRecord(NamedTuple):
    """
    One record, decoded.

    Attributes:
        record_type: A key of :data:`SCHEMAS`.
        version: Of the message.
        values: Fields by Kafka's names.
    """

    record_type: int
    version: int
    values: dict[str, Any]

    def shown(self) -> dict[str, Any]:
        """Return it as DumpLogSegments shows it, as what JSON has."""
        schema = SCHEMAS[self.record_type]
        return {
            "type": _WORD_BEGIN.sub("_", schema.name).upper(),
            "version": self.version,
            "data": shown_fields(schema, self.values, self.version),
        }


_WORD_BEGIN: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


def parse_frame(value: bytes) -> tuple[int, int, bytes]:
    """
    Return the type of a record, the version of its message, and the message.

    Raises:
        InvalidRecordError: It is malformed, or its frame version is not known.
    """
    reader = MessageReader(value, "a metadata record")
    frame_version = reader.unsigned_varint()
    if frame_version != FRAME_VERSION:
        raise InvalidRecordError(
            f"frame version {frame_version} of a metadata record is unknown;"
            " a newer broker wrote it"
        )
    return reader.unsigned_varint(), reader.unsigned_varint(), reader.rest()


def decode_metadata_record(value: bytes) -> MetadataRecord | None:
    """
    Return what the value of a record says; None: a newer controller's type.

    Raises:
        InvalidRecordError: It is malformed, or of a version or frame version that is not known.
    """
    record_type, version, message = parse_frame(value)
    schema = SCHEMAS.get(record_type)
    if schema is None:
        return None
    return MetadataRecord(record_type, version, schema.decode(message, version))


def encode_metadata_record(record_type: int, version: int, values: Mapping[str, Any]) -> bytes:
    """
    Return the value of a record.

    Raises:
        InvalidRecordError: The version is unknown.
    """
    frame = (FRAME_VERSION, record_type, version)
    message = SCHEMAS[record_type].encode(values, version)
    return b"".join(map(unsigned_varint, frame)) + message
