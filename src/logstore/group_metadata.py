"""
Records of ``__consumer_offsets``: positions of groups, and who is in a group.

=====  ==============================  =========================================================
type   key                             value
=====  ==============================  =========================================================
0, 1   group, topic, partition         the position: see :class:`OffsetCommitValue`
2      group                           members and state of a group of the classic protocol
3      group                           epoch of a group of the consumer protocol
4      group                           what its topics looked like; no longer written
5      group, member                   a member
6      group                           epoch of the target assignment
7      group, member                   a member's target assignment
8      group, member                   what a member has now
16     group, regular expression       the topics that it stands for
=====  ==============================  =========================================================

This library writes type 1. The others, and those of share and streams groups, are a broker's;
compaction keeps them.

Source: Kafka ``OffsetCommitKey.json`` and the other schemas of the group coordinator,
``GroupCoordinatorRecordHelpers``; spec 8.9.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final, NamedTuple

from logstore.coordinator_record import (
    CoordinatorRecord,
    CoordinatorRecordType,
    decode_record,
    shown_fields,
    type_id_of,
)
from logstore.errors import InvalidRecordError
from logstore.protocol_message import Array, Field, MessageReader, MessageSchema, Struct
from logstore.timestamp_type import NO_TIMESTAMP

CONSUMER_PROTOCOL_TYPE: Final = "consumer"

VALUE_VERSION: Final = 4
# With an expiry of its own: the one version that has it.
EXPIRING_VALUE_VERSION: Final = 1

NO_LEADER_EPOCH: Final = -1

_OFFSET_COMMIT_KEY: Final = (
    Field("group", "string"),
    Field("topic", "string"),
    Field("partition", "int32"),
)
_OFFSET_COMMIT_VALUE: Final = MessageSchema(
    "OffsetCommitValue",
    (
        Field("offset", "int64"),
        Field("leaderEpoch", "int32", 3, default=NO_LEADER_EPOCH),
        Field("metadata", "string"),
        Field("commitTimestamp", "int64"),
        Field("expireTimestamp", "int64", 1, 1, default=NO_TIMESTAMP),
    ),
    last_version=VALUE_VERSION,
    flexible_version=4,
)
OFFSET_COMMIT: Final = CoordinatorRecordType(
    1, MessageSchema("OffsetCommitKey", _OFFSET_COMMIT_KEY), _OFFSET_COMMIT_VALUE
)

_MEMBER: Final = Struct(
    (
        Field("memberId", "string"),
        Field("groupInstanceId", "string", 3, is_nullable=True),
        Field("clientId", "string"),
        Field("clientHost", "string"),
        Field("rebalanceTimeout", "int32", 1, default=-1),
        Field("sessionTimeout", "int32"),
        Field("subscription", "bytes"),
        Field("assignment", "bytes"),
    )
)
GROUP_METADATA: Final = CoordinatorRecordType(
    2,
    MessageSchema("GroupMetadataKey", (Field("group", "string"),)),
    MessageSchema(
        "GroupMetadataValue",
        (
            Field("protocolType", "string"),
            Field("generation", "int32"),
            Field("protocol", "string", is_nullable=True),
            Field("leader", "string", is_nullable=True),
            Field("currentStateTimestamp", "int64", 2, default=NO_TIMESTAMP),
            Field("members", Array(_MEMBER)),
        ),
        last_version=4,
        flexible_version=4,
    ),
)

# What members of the consumer protocol type say of themselves; the leader knows more than brokers.
_NAMED_PARTITIONS: Final = Array(
    Struct((Field("topic", "string"), Field("partitions", Array("int32"))))
)
_SUBSCRIPTION: Final = MessageSchema(
    "ConsumerProtocolSubscription",
    (
        Field("topics", Array("string")),
        Field("userData", "bytes", is_nullable=True),
        Field("ownedPartitions", _NAMED_PARTITIONS, 1, default=[]),
        Field("generationId", "int32", 2, default=-1),
        Field("rackId", "string", 3, is_nullable=True),
    ),
    last_version=3,
)
_ASSIGNMENT: Final = MessageSchema(
    "ConsumerProtocolAssignment",
    (
        Field("assignedPartitions", _NAMED_PARTITIONS),
        Field("userData", "bytes", is_nullable=True),
    ),
    last_version=3,
)

_GROUP: Final = (Field("groupId", "string"),)
_GROUP_MEMBER: Final = (*_GROUP, Field("memberId", "string"))
_TOPIC_PARTITIONS: Final = Array(
    Struct((Field("topicId", "uuid"), Field("partitions", Array("int32"))))
)


def _consumer_group(
    type_id: int, name: str, key: tuple[Field, ...], value: tuple[Field, ...]
) -> CoordinatorRecordType:
    return CoordinatorRecordType(
        type_id,
        MessageSchema(f"{name}Key", key),
        MessageSchema(f"{name}Value", value, flexible_version=0),
    )


_TYPES: Final = (
    CoordinatorRecordType(
        0, MessageSchema("LegacyOffsetCommitKey", _OFFSET_COMMIT_KEY), _OFFSET_COMMIT_VALUE
    ),
    OFFSET_COMMIT,
    GROUP_METADATA,
    _consumer_group(
        3,
        "ConsumerGroupMetadata",
        _GROUP,
        (Field("epoch", "int32"), Field("metadataHash", "int64", tag=0, default=0)),
    ),
    _consumer_group(
        4,
        "ConsumerGroupPartitionMetadata",
        _GROUP,
        (
            Field(
                "topics",
                Array(
                    Struct(
                        (
                            Field("topicId", "uuid"),
                            Field("topicName", "string"),
                            Field("numPartitions", "int32"),
                            Field(
                                "partitionMetadata",
                                Array(
                                    Struct(
                                        (
                                            Field("partition", "int32"),
                                            Field("racks", Array("string")),
                                        )
                                    )
                                ),
                            ),
                        )
                    )
                ),
            ),
        ),
    ),
    _consumer_group(
        5,
        "ConsumerGroupMemberMetadata",
        _GROUP_MEMBER,
        (
            Field("instanceId", "string", is_nullable=True),
            Field("rackId", "string", is_nullable=True),
            Field("clientId", "string"),
            Field("clientHost", "string"),
            Field("subscribedTopicNames", Array("string")),
            Field("subscribedTopicRegex", "string", is_nullable=True),
            Field("rebalanceTimeoutMs", "int32", default=-1),
            Field("serverAssignor", "string", is_nullable=True),
            Field(
                "classicMemberMetadata",
                Struct(
                    (
                        Field("sessionTimeoutMs", "int32"),
                        Field(
                            "supportedProtocols",
                            Array(Struct((Field("name", "string"), Field("metadata", "bytes")))),
                        ),
                    )
                ),
                is_nullable=True,
                tag=0,
                # Not null: a broker writes null.
                default={"sessionTimeoutMs": 0, "supportedProtocols": []},
            ),
        ),
    ),
    _consumer_group(
        6, "ConsumerGroupTargetAssignmentMetadata", _GROUP, (Field("assignmentEpoch", "int32"),)
    ),
    _consumer_group(
        7,
        "ConsumerGroupTargetAssignmentMember",
        _GROUP_MEMBER,
        (Field("topicPartitions", _TOPIC_PARTITIONS),),
    ),
    _consumer_group(
        8,
        "ConsumerGroupCurrentMemberAssignment",
        _GROUP_MEMBER,
        (
            Field("memberEpoch", "int32"),
            Field("previousMemberEpoch", "int32"),
            Field("state", "int8"),
            Field("assignedPartitions", _TOPIC_PARTITIONS),
            Field("partitionsPendingRevocation", _TOPIC_PARTITIONS),
        ),
    ),
    _consumer_group(
        16,
        "ConsumerGroupRegularExpression",
        (*_GROUP, Field("regularExpression", "string")),
        (
            Field("topics", Array("string")),
            Field("version", "int64"),
            Field("timestamp", "int64"),
        ),
    ),
)
RECORD_TYPES: Final = {record_type.type_id: record_type for record_type in _TYPES}


class OffsetCommitValue(NamedTuple):
    """
    A group's position in a partition.

    Attributes:
        offset: Of the next record to read.
        leader_epoch: Of the last record read; -1: not known.
        metadata: What the reader wants to remember.
        commit_timestamp: When, in milliseconds.
        expire_timestamp: When it may go, in milliseconds; -1: the topic's rule.
    """

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp: int = NO_TIMESTAMP
    expire_timestamp: int = NO_TIMESTAMP

    def encode(self, version: int | None = None) -> bytes:
        """
        Return the value of a record; the version None is the one that a broker takes.

        Source: Kafka ``GroupCoordinatorRecordHelpers.newOffsetCommitRecord``.
        """
        if version is None:
            expires = self.expire_timestamp != NO_TIMESTAMP
            version = EXPIRING_VALUE_VERSION if expires else VALUE_VERSION
        return OFFSET_COMMIT.value_bytes(
            {
                "offset": self.offset,
                "leaderEpoch": self.leader_epoch,
                "metadata": self.metadata,
                "commitTimestamp": self.commit_timestamp,
                "expireTimestamp": self.expire_timestamp,
            },
            version,
        )

    @classmethod
    def of(cls, record: CoordinatorRecord) -> OffsetCommitValue | None:
        """Return what a decoded record of type 0 or 1 says; None for a tombstone."""
        fields = record.value
        if fields is None:
            return None
        return cls(
            fields["offset"],
            fields["leaderEpoch"],
            fields["metadata"],
            fields["commitTimestamp"],
            fields["expireTimestamp"],
        )


def offset_commit_key(group: str, topic: str, partition: int) -> bytes:
    """Return the key of a position's record."""
    return OFFSET_COMMIT.key_bytes({"group": group, "topic": topic, "partition": partition})


def shown_group_record(record: CoordinatorRecord) -> dict[str, Any]:
    """
    Return key and value as DumpLogSegments shows them, subscriptions and assignments decoded.

    Source: Kafka ``DumpLogSegments.OffsetsMessageParser``.
    """
    shown = record.shown()
    value = record.value
    if (
        record.record_type is GROUP_METADATA
        and value is not None
        and value["protocolType"] == CONSUMER_PROTOCOL_TYPE
    ):
        members = shown["payload"]["data"]["members"]
        for member, fields in zip(members, value["members"], strict=True):
            for name, schema in (("subscription", _SUBSCRIPTION), ("assignment", _ASSIGNMENT)):
                if fields[name]:
                    with contextlib.suppress(InvalidRecordError):  # It stays as base64.
                        member[name] = _shown_of_member(schema, fields[name])
    return shown


def _shown_of_member(schema: MessageSchema, data: bytes) -> dict[str, Any]:
    version = MessageReader(data, schema.name).int16()
    version = min(version, schema.last_version)  # Later versions only add at the end.
    return shown_fields(schema, schema.decode(data[2:], version), version)


def decode_group_record(key: bytes | None, value: bytes | None) -> CoordinatorRecord | None:
    """
    Return a record of ``__consumer_offsets``; None if its type is not known.

    Raises:
        InvalidRecordError: Key or value is malformed, or of an unknown version.
    """
    record_type = RECORD_TYPES.get(type_id_of(key))
    if record_type is None:
        return None
    assert key is not None
    return decode_record(record_type, key, value)
