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

The values of the others are messages of Kafka's consensus protocol in its "flexible" encoding:
unsigned varints, compact arrays and strings (count + 1), and tagged fields behind every struct,
which are stepped over.

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

KEY: Final = struct.Struct(">hh")
END_TRANSACTION_VALUE: Final = struct.Struct(">hi")

NO_UUID: Final = UUID(int=0)


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
        reader = _Reader(value)
        version = reader.int16()
        leader_id = reader.int32()
        voters = tuple(cls._voter(reader, version) for _ in reader.array(5))
        granting = tuple(cls._voter(reader, version) for _ in reader.array(5))
        reader.tagged_fields()
        return cls(leader_id, voters, granting, version)

    @staticmethod
    def _voter(reader: _Reader, version: int) -> tuple[int, UUID]:
        node_id = reader.int32()
        directory_id = reader.uuid() if version > 0 else NO_UUID
        reader.tagged_fields()
        return node_id, directory_id

    def value(self) -> bytes:
        """Return the value of the control record."""
        parts = [struct.pack(">hi", self.version, self.leader_id)]
        for voters in (self.voters, self.granting_voters):
            parts.append(_unsigned_varint(len(voters) + 1))
            for node_id, directory_id in voters:
                directory = directory_id.bytes if self.version > 0 else b""
                parts.append(struct.pack(">i", node_id) + directory + _NO_TAGGED_FIELDS)
        parts.append(_NO_TAGGED_FIELDS)
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
        reader = _Reader(value)
        reader.int16()
        message = cls(reader.int64())
        reader.tagged_fields()
        return message

    def value(self) -> bytes:
        """Return the value of the control record."""
        return struct.pack(">hq", 0, self.last_contained_log_timestamp) + _NO_TAGGED_FIELDS


@dataclass(frozen=True, slots=True)
class SnapshotFooter:
    """
    The last record of a metadata snapshot.

    Source: Kafka ``SnapshotFooterRecord.json``.
    """

    @classmethod
    def parse(cls, value: bytes) -> SnapshotFooter:
        """Return the message; InvalidRecordError if it is malformed."""
        reader = _Reader(value)
        reader.int16()
        reader.tagged_fields()
        return cls()

    def value(self) -> bytes:
        """Return the value of the control record."""
        return struct.pack(">h", 0) + _NO_TAGGED_FIELDS


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
        reader = _Reader(value)
        reader.int16()
        message = cls(reader.int16())
        reader.tagged_fields()
        return message

    def value(self) -> bytes:
        """Return the value of the control record."""
        return struct.pack(">hh", 0, self.kraft_version) + _NO_TAGGED_FIELDS


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
        reader = _Reader(value)
        reader.int16()
        voters = tuple(cls._voter(reader) for _ in reader.array(27))
        reader.tagged_fields()
        return cls(voters)

    @staticmethod
    def _voter(reader: _Reader) -> KRaftVoter:
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
        parts = [struct.pack(">h", 0), _unsigned_varint(len(self.voters) + 1)]
        for voter in self.voters:
            parts.append(struct.pack(">i", voter.voter_id) + voter.directory_id.bytes)
            parts.append(_unsigned_varint(len(voter.endpoints) + 1))
            for name, host, port in voter.endpoints:
                parts.append(_compact_string(name) + _compact_string(host))
                parts.append(struct.pack(">H", port) + _NO_TAGGED_FIELDS)
            parts.append(struct.pack(">hh", voter.min_version, voter.max_version))
            parts.append(_NO_TAGGED_FIELDS * 2)
        parts.append(_NO_TAGGED_FIELDS)
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


# ---- the flexible message encoding ---------------------------------------------------------------

_NO_TAGGED_FIELDS: Final = b"\0"
_UNSIGNED_VARINT_BYTES_MAX: Final = 5


class _Reader:
    """A position in a message; every length is checked against the bytes that are left."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, size: int) -> bytes:
        if size > len(self._data) - self._position:
            message = f"a control record ends early, at byte {self._position}; run verify"
            raise InvalidRecordError(message)
        taken = self._data[self._position : self._position + size]
        self._position += size
        return taken

    def int16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def uint16(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self.take(8), "big", signed=True)

    def uuid(self) -> UUID:
        return UUID(bytes=self.take(16))

    def unsigned_varint(self) -> int:
        result = 0
        for index in range(_UNSIGNED_VARINT_BYTES_MAX):
            byte = self.take(1)[0]
            result |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return result
        message = "a varint longer than 5 bytes in a control record; run verify"
        raise InvalidRecordError(message)

    def string(self) -> str:
        size = self.unsigned_varint() - 1
        if size < 0:
            message = "a null string in a control record where none may be; run verify"
            raise InvalidRecordError(message)
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            message = "a string in a control record is not UTF-8; run verify"
            raise InvalidRecordError(message) from None

    def array(self, item_bytes_min: int) -> range:
        """Return one number for each item of a compact array; null has none."""
        count = max(0, self.unsigned_varint() - 1)
        if count * item_bytes_min > len(self._data) - self._position:
            message = f"a control record has no room for {count} items; run verify"
            raise InvalidRecordError(message)
        return range(count)

    def tagged_fields(self) -> None:
        for _ in range(self.unsigned_varint()):
            self.unsigned_varint()
            self.take(self.unsigned_varint())


def _unsigned_varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _compact_string(text: str) -> bytes:
    encoded = text.encode()
    return _unsigned_varint(len(encoded) + 1) + encoded
