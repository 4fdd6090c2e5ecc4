"""
Control records: what the records of a control batch say.

The key of a control record:

======  ====  =======  ==========================================
offset  size  type     field
======  ====  =======  ==========================================
0       2     int16    version (0; later ones are read as 0)
2       2     int16    type: :class:`ControlRecordType`
======  ====  =======  ==========================================

The value of an ABORT or COMMIT marker:

======  ====  =======  ==========================================
offset  size  type     field
======  ====  =======  ==========================================
0       2     int16    version (0; later ones are read as 0)
2       4     int32    coordinator epoch
======  ====  =======  ==========================================

The values of the others are messages of Kafka's consensus protocol in the flexible encoding of
:mod:`logstore.protocol_message`; tagged fields are stepped over.

Source: Kafka ``ControlRecordType``, ``EndTransactionMarker``, ``ControlRecordUtils``; KIP-98,
KIP-595, KIP-630, KIP-853.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias
from uuid import UUID

from logstore.errors import InvalidRecordError
from logstore.protocol_message import (
    NO_TAGGED_FIELDS,
    NO_UUID,
    MessageReader,
    compact_string,
    unsigned_varint,
)

KEY: Final = struct.Struct(">hh")
END_TRANSACTION_VALUE: Final = struct.Struct(">hi")


class ControlRecordType(IntEnum):
    """
    What a control record is; a type that this code does not know is ``UNKNOWN`` and is skipped.

    Source: Kafka ``ControlRecordType``.
    """

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1

    @classmethod
    def parse(cls, key: bytes | None) -> ControlRecordType:
        """
        Return the type that the key of a control record holds; bytes behind it are ignored.

        Raises:
            InvalidRecordError: The key is null or shorter than 4 bytes, or its version negative.
        """
        if key is None or len(key) < KEY.size:
            size = "null" if key is None else f"{len(key)} bytes"
            message = f"the key of a control record is {size}, not {KEY.size} bytes; run verify"
            raise InvalidRecordError(message)
        version, type_id = KEY.unpack_from(key)
        if version < 0:
            message = f"the key of a control record has version {version}; run verify"
            raise InvalidRecordError(message)
        return _BY_ID.get(type_id, cls.UNKNOWN)

    def key(self) -> bytes:
        """Return the key of a control record of this type."""
        assert self is not ControlRecordType.UNKNOWN
        return KEY.pack(0, self)


_BY_ID: Final = {kind.value: kind for kind in ControlRecordType if kind.value >= 0}


@dataclass(frozen=True, slots=True)
class EndTransactionMarker:
    """
    The end of a producer's transaction.

    Attributes:
        control_type: ``COMMIT`` or ``ABORT``.
        coordinator_epoch: Epoch of the transaction coordinator that wrote it: an older one than
            the producer's last is fenced.

    Source: Kafka ``EndTransactionMarker``.
    """

    control_type: ControlRecordType
    coordinator_epoch: int

    def __post_init__(self) -> None:
        assert self.control_type in (ControlRecordType.ABORT, ControlRecordType.COMMIT)

    @classmethod
    def parse(cls, key: bytes | None, value: bytes | None) -> EndTransactionMarker:
        """
        Return the marker that a control record holds.

        Raises:
            InvalidRecordError: It is no end-of-transaction marker, its value is too short, or a
                version is negative.
        """
        kind = ControlRecordType.parse(key)
        if kind not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
            message = f"a control record of type {kind.name} does not end a transaction"
            raise InvalidRecordError(message)
        if value is None or len(value) < END_TRANSACTION_VALUE.size:
            message = f"a {kind.name} marker's value is shorter than 6 bytes; run verify"
            raise InvalidRecordError(message)
        version, coordinator_epoch = END_TRANSACTION_VALUE.unpack_from(value)
        if version < 0:
            message = f"a {kind.name} marker's value has version {version}; run verify"
            raise InvalidRecordError(message)
        return cls(kind, coordinator_epoch)

    def value(self) -> bytes:
        """Return the value of the control record."""
        return END_TRANSACTION_VALUE.pack(0, self.coordinator_epoch)


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """
    A new leader of a consensus group.

    Attributes:
        leader_id: Its node id.
        voters: ``(node id, directory id)``; the directory id is zero in version 0.
        granting_voters: Those who voted for it.
        version: Of the message; 1 has directory ids.

    Source: Kafka ``LeaderChangeMessage.json``.
    """

    leader_id: int
    voters: tuple[tuple[int, UUID], ...]
    granting_voters: tuple[tuple[int, UUID], ...]
    version: int = 0

    @classmethod
    def parse(cls, value: bytes) -> LeaderChange:
        """Return the message; InvalidRecordError if it is malformed."""
        reader = MessageReader(value, "a control record")
        version = reader.int16()
        leader_id = reader.int32()
        voters = tuple(cls._voter(reader, version) for _ in reader.array(5))
        granting = tuple(cls._voter(reader, version) for _ in reader.array(5))
        reader.tagged_fields()
        return cls(leader_id, voters, granting, version)

    @staticmethod
    def _voter(reader: MessageReader, version: int) -> tuple[int, UUID]:
        node_id = reader.int32()
        directory_id = reader.uuid() if version > 0 else NO_UUID
        reader.tagged_fields()
        return node_id, directory_id

    def value(self) -> bytes:
        """Return the value of the control record."""
        parts = [struct.pack(">hi", self.version, self.leader_id)]
        for voters in (self.voters, self.granting_voters):
            parts.append(unsigned_varint(len(voters) + 1))
            for node_id, directory_id in voters:
                directory = directory_id.bytes if self.version > 0 else b""
                parts.append(struct.pack(">i", node_id) + directory + NO_TAGGED_FIELDS)
        parts.append(NO_TAGGED_FIELDS)
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """
    The first record of a metadata snapshot.

    Source: Kafka ``SnapshotHeaderRecord.json``.
    """

    last_contained_log_timestamp: int

    @classmethod
    def parse(cls, value: bytes) -> SnapshotHeader:
        """Return the message; InvalidRecordError if it is malformed."""
        reader = MessageReader(value, "a control record")
        reader.int16()
        message = cls(reader.int64())
        reader.tagged_fields()
        return message

    def value(self) -> bytes:
        """Return the value of the control record."""
        return struct.pack(">hq", 0, self.last_contained_log_timestamp) + NO_TAGGED_FIELDS


@dataclass(frozen=True, slots=True)
class SnapshotFooter:
    """
    The last record of a metadata snapshot.

    Source: Kafka ``SnapshotFooterRecord.json``.
    """

    @classmethod
    def parse(cls, value: bytes) -> SnapshotFooter:
        """Return the message; InvalidRecordError if it is malformed."""
        reader = MessageReader(value, "a control record")
        reader.int16()
        reader.tagged_fields()
        return cls()

    def value(self) -> bytes:
        """Return the value of the control record."""
        return struct.pack(">h", 0) + NO_TAGGED_FIELDS


@dataclass(frozen=True, slots=True)
class KRaftVersion:
    """
    The version of the consensus protocol from here on.

    Source: Kafka ``KRaftVersionRecord.json``.
    """

    kraft_version: int

    @classmethod
    def parse(cls, value: bytes) -> KRaftVersion:
        """Return the message; InvalidRecordError if it is malformed."""
        reader = MessageReader(value, "a control record")
        reader.int16()
        message = cls(reader.int16())
        reader.tagged_fields()
        return message

    def value(self) -> bytes:
        """Return the value of the control record."""
        return struct.pack(">hh", 0, self.kraft_version) + NO_TAGGED_FIELDS


@dataclass(frozen=True, slots=True)
class KRaftVoter:
    """
    One voter of a consensus group.

    Attributes:
        voter_id: Its node id.
        directory_id: Of its metadata log directory.
        endpoints: ``(listener name, host, port)``.
        min_version: Lowest version of the protocol that it supports.
        max_version: Highest.
    """

    voter_id: int
    directory_id: UUID
    endpoints: tuple[tuple[str, str, int], ...]
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True)
class KRaftVoters:
    """
    The voters of a consensus group from here on.

    Source: Kafka ``VotersRecord.json``.
    """

    voters: tuple[KRaftVoter, ...]

    @classmethod
    def parse(cls, value: bytes) -> KRaftVoters:
        """Return the message; InvalidRecordError if it is malformed."""
        reader = MessageReader(value, "a control record")
        reader.int16()
        voters = tuple(cls._voter(reader) for _ in reader.array(27))
        reader.tagged_fields()
        return cls(voters)

    @staticmethod
    def _voter(reader: MessageReader) -> KRaftVoter:
        voter_id = reader.int32()
        directory_id = reader.uuid()
        endpoints = []
        for _ in reader.array(5):
            endpoints.append((reader.string(), reader.string(), reader.uint16()))
            reader.tagged_fields()
        min_version = reader.int16()
        max_version = reader.int16()
        reader.tagged_fields()
        reader.tagged_fields()
        return KRaftVoter(voter_id, directory_id, tuple(endpoints), min_version, max_version)

    def value(self) -> bytes:
        """Return the value of the control record."""
        parts = [struct.pack(">h", 0), unsigned_varint(len(self.voters) + 1)]
        for voter in self.voters:
            parts.append(struct.pack(">i", voter.voter_id) + voter.directory_id.bytes)
            parts.append(unsigned_varint(len(voter.endpoints) + 1))
            for name, host, port in voter.endpoints:
                parts.append(compact_string(name) + compact_string(host))
                parts.append(struct.pack(">H", port) + NO_TAGGED_FIELDS)
            parts.append(struct.pack(">hh", voter.min_version, voter.max_version))
            parts.append(NO_TAGGED_FIELDS * 2)
        parts.append(NO_TAGGED_FIELDS)
        return b"".join(parts)


ControlMessage: TypeAlias = (
    EndTransactionMarker
    | LeaderChange
    | SnapshotHeader
    | SnapshotFooter
    | KRaftVersion
    | KRaftVoters
)

_PARSERS: Final[dict[ControlRecordType, Callable[[bytes], ControlMessage]]] = {
    ControlRecordType.LEADER_CHANGE: LeaderChange.parse,
    ControlRecordType.SNAPSHOT_HEADER: SnapshotHeader.parse,
    ControlRecordType.SNAPSHOT_FOOTER: SnapshotFooter.parse,
    ControlRecordType.KRAFT_VERSION: KRaftVersion.parse,
    ControlRecordType.KRAFT_VOTERS: KRaftVoters.parse,
}


def parse_control_record(key: bytes | None, value: bytes | None) -> ControlMessage | None:
    """
    Return what a control record says, or None if its type is not known.

    Raises:
        InvalidRecordError: Key or value is malformed.
    """
    kind = ControlRecordType.parse(key)
    if kind is ControlRecordType.UNKNOWN:
        return None
    if kind in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        return EndTransactionMarker.parse(key, value)
    if value is None:
        message = f"a control record of type {kind.name} has no value; run verify"
        raise InvalidRecordError(message)
    return _PARSERS[kind](value)
