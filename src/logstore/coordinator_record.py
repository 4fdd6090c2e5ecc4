"""
Records of the internal topics: what a coordinator keeps, one record for each thing it knows.

======  ==========================================================================
key     int16 record type, then the key's fields in the plain encoding
value   int16 version, then the value's fields in the encoding of that version;
        null is a tombstone
======  ==========================================================================

The topics are compacted: the last record of a key is what holds. A type that is not known is
skipped. What belongs to one name is in one partition, which its hash decides.

Source: Kafka ``CoordinatorRecord``, ``CoordinatorRecordType``, ``MessageUtil``, ``Utils.abs``.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from logstore.checkpoint import text_of_uuid
from logstore.errors import InvalidRecordError
from logstore.protocol_message import (
    Array,
    Field,
    FieldType,
    MessageReader,
    MessageSchema,
    Struct,
)

TOMBSTONE_TEXT: Final = "<DELETE>"

_INT32_MASK: Final = 0xFFFF_FFFF
_INT32_MAX: Final = 2**31 - 1


def string_hash(text: str) -> int:
    """
    Return Java's hash of a string: 32 bits with a sign, over the UTF-16 code units.

    Source: Java ``String.hashCode``.
    """
    units = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for at in range(0, len(units), 2):
        result = (31 * result + (units[at] << 8 | units[at + 1])) & _INT32_MASK
    return result - (1 << 32) if result > _INT32_MAX else result


def partition_for(name: str, partition_count: int) -> int:
    """
    Return the partition that holds what belongs to a group or a transactional id.

    Source: Kafka ``TransactionStateManager.partitionFor``, ``GroupCoordinator.partitionFor``.
    """
    assert partition_count > 0
    code = string_hash(name)
    return (0 if code == -_INT32_MAX - 1 else abs(code)) % partition_count


class CoordinatorRecordType(NamedTuple):
    """
    One kind of record.

    Attributes:
        type_id: The first two bytes of its key.
        key: The rest of the key; its version is 0.
        value: Behind its version.

    Source: Kafka ``CoordinatorRecordType``.
    """

    type_id: int
    key: MessageSchema
    value: MessageSchema

    def key_bytes(self, values: Mapping[str, Any]) -> bytes:
        """Return a record's key."""
        return self.type_id.to_bytes(2, "big") + self.key.encode(values, 0)

    def value_bytes(self, values: Mapping[str, Any], version: int) -> bytes:
        """Return a record's value."""
        return version.to_bytes(2, "big") + self.value.encode(values, version)


class CoordinatorRecord(NamedTuple):
    """
    One record, decoded.

    Attributes:
        record_type: Its kind.
        key: Fields by Kafka's names.
        version: Of the value; None with a tombstone.
        value: Fields by Kafka's names; None with a tombstone.
    """

    record_type: CoordinatorRecordType
    key: dict[str, Any]
    version: int | None
    value: dict[str, Any] | None

    def shown(self) -> dict[str, Any]:
        """Return key and value as DumpLogSegments shows them, as what JSON has."""
        key = {
            "type": str(self.record_type.type_id),
            "data": shown_fields(self.record_type.key, self.key, 0),
        }
        if self.value is None:
            return {"key": key, "payload": TOMBSTONE_TEXT}
        assert self.version is not None
        data = shown_fields(self.record_type.value, self.value, self.version)
        return {"key": key, "payload": {"version": str(self.version), "data": data}}


def type_id_of(key: bytes | None) -> int:
    """
    Return the type that the key of a record begins with.

    Raises:
        InvalidRecordError: There is no key, or it has no room for a type.
    """
    if key is None:
        raise InvalidRecordError("a coordinator's record has no key; run verify")
    return MessageReader(key, "the key of a coordinator's record").int16()


def decode_record(
    record_type: CoordinatorRecordType, key: bytes, value: bytes | None
) -> CoordinatorRecord:
    """
    Return a record of a type that its key begins with.

    Raises:
        InvalidRecordError: Key or value is malformed, or of an unknown version.
    """
    key_fields = record_type.key.decode(key[2:], 0)
    if value is None:
        return CoordinatorRecord(record_type, key_fields, None, None)
    version = MessageReader(value, record_type.value.name).int16()
    return CoordinatorRecord(
        record_type, key_fields, version, record_type.value.decode(value[2:], version)
    )


def shown_fields(schema: MessageSchema, values: Mapping[str, Any], version: int) -> dict[str, Any]:
    """Return what Kafka's JSON converter makes: a tagged field is left out at its default."""
    return _shown_struct(schema.fields, values, version)


def _shown_struct(
    fields: tuple[Field, ...], values: Mapping[str, Any], version: int
) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for field in fields:
        value = values[field.name]
        if not field.is_in(version):
            continue
        if field.tag is not None and value == field.default:
            continue
        shown[field.name] = _shown_value(field.type, value, version)
    return shown


def _shown_value(kind: FieldType, value: Any, version: int) -> Any:
    if value is None:
        return None
    if isinstance(kind, Struct):
        return _shown_struct(kind.fields, value, version)
    if isinstance(kind, Array):
        return [_shown_value(kind.item, item, version) for item in value]
    if isinstance(value, UUID):
        return text_of_uuid(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value
