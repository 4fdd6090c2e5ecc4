"""
Messages of Kafka's protocol: a schema names the fields, two encodings write them.

=================  ===========================  ====================================
type               plain                        flexible
=================  ===========================  ====================================
int8 to int64      big-endian                   the same
uint16, float64    likewise                     the same
bool               one byte, 0 is false         the same
uuid               16 bytes                     the same
string             int16 length (-1 null)       unsigned varint length + 1 (0 null)
bytes              int32 length (-1 null)       unsigned varint length + 1 (0 null)
array              int32 count (-1 null)        unsigned varint count + 1 (0 null)
struct             its fields                   the same; if it may be null, 0 (null)
                                                or 1 in front
end of a struct    nothing                      tagged fields: count, then tag, size
                                                and value of each, ascending
=================  ===========================  ====================================

A tagged field is written unless it has its default; a reader steps over tags that it does not know.
A message is valid iff each length lies within its bytes, a null stands where one may, and strings
are UTF-8. Bytes behind the message are ignored, as in Kafka.

Source: Kafka ``ByteBufferAccessor``, ``RawTaggedField``, the generator's ``MessageDataGenerator``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from uuid import UUID

from logstore.errors import InvalidRecordError

NO_UUID: Final = UUID(int=0)
NO_TAGGED_FIELDS: Final = b"\0"
VERSION_MAX: Final = 2**15 - 1
_UNSIGNED_VARINT_BYTES_MAX: Final = 5

_NUMBERS: Final = {
    "bool": struct.Struct(">?"),
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
    "uint16": struct.Struct(">H"),
    "float64": struct.Struct(">d"),
}


@dataclass(frozen=True, slots=True)
class Array:
    """Items of one type."""

    item: FieldType


@dataclass(frozen=True, slots=True)
class Struct:
    """Fields in a fixed order, inside a message."""

    fields: tuple[Field, ...]


FieldType: TypeAlias = str | Array | Struct


@dataclass(frozen=True, slots=True)
class Field:
    """
    One field of a message.

    Attributes:
        name: As Kafka's schema has it.
        type: ``bool``, ``int8`` to ``int64``, ``uint16``, ``float64``, ``string``, ``bytes``,
            ``uuid``, an array or a struct.
        first_version: Of the message that has it.
        last_version: Likewise.
        is_nullable: None is a value.
        tag: Its number if it is a tagged field, which it is in every version that has it.
        default: Its value where a version leaves it out.
    """

    name: str
    type: FieldType
    first_version: int = 0
    last_version: int = VERSION_MAX
    is_nullable: bool = False
    tag: int | None = None
    default: Any = None

    def is_in(self, version: int) -> bool:
        """Whether a version of the message has it."""
        return self.first_version <= version <= self.last_version


@dataclass(frozen=True, slots=True)
class MessageSchema:
    """
    The fields of a message in all its versions.

    Attributes:
        name: Of the message, in Kafka's schemas.
        fields: In order.
        last_version: The highest known.
        flexible_version: The first that is flexible; None: none is.
    """

    name: str
    fields: tuple[Field, ...]
    last_version: int = 0
    flexible_version: int | None = None

    def decode(self, data: bytes, version: int) -> dict[str, Any]:
        """
        Return the fields of a message by their names; what the version lacks has its default.

        Raises:
            InvalidRecordError: The version is unknown, or the bytes are malformed.
        """
        self._check_version(version)
        reader = MessageReader(data, self.name)
        return _read_struct(reader, self.fields, version, is_flexible=self._is_flexible(version))

    def encode(self, values: Mapping[str, Any], version: int) -> bytes:
        """
        Return a message; a field that is not given has its default.

        Raises:
            InvalidRecordError: The version is unknown.
        """
        self._check_version(version)
        return _struct_bytes(self.fields, values, version, is_flexible=self._is_flexible(version))

    def _is_flexible(self, version: int) -> bool:
        return self.flexible_version is not None and version >= self.flexible_version

    def _check_version(self, version: int) -> None:
        if not 0 <= version <= self.last_version:
            raise InvalidRecordError(
                f"version {version} of {self.name} is unknown, known are 0 to {self.last_version};"
                " a newer broker wrote it"
            )


# ---- reading -------------------------------------------------------------------------------------


class MessageReader:
    """
    A position in a message; every length is checked against the bytes that are left.

    Args:
        data: The message.
        name: What it is, for errors.
    """

    __slots__ = ("_data", "_name", "_position")

    def __init__(self, data: bytes, name: str) -> None:
        self._data = data
        self._name = name
        self._position = 0

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        if not 0 <= size <= len(self._data) - self._position:
            raise self._malformed(f"ends early, at byte {self._position}")
        taken = self._data[self._position : self._position + size]
        self._position += size
        return taken

    def rest(self) -> bytes:
        """Return what is left."""
        return self.take(len(self._data) - self._position)

    def int16(self) -> int:
        """Return an int16."""
        return int.from_bytes(self.take(2), "big", signed=True)

    def uint16(self) -> int:
        """Return a uint16."""
        return int.from_bytes(self.take(2), "big")

    def int32(self) -> int:
        """Return an int32."""
        return int.from_bytes(self.take(4), "big", signed=True)

    def int64(self) -> int:
        """Return an int64."""
        return int.from_bytes(self.take(8), "big", signed=True)

    def uuid(self) -> UUID:
        """Return a UUID."""
        return UUID(bytes=self.take(16))

    def unsigned_varint(self) -> int:
        """Return an unsigned varint of 32 bits."""
        result = 0
        for index in range(_UNSIGNED_VARINT_BYTES_MAX):
            byte = self.take(1)[0]
            result |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return result
        raise self._malformed("has a varint longer than 5 bytes")

    def string(self) -> str:
        """Return a compact string that is not null."""
        size = self.unsigned_varint() - 1
        if size < 0:
            raise self._malformed("has a null string where none may be")
        return self.text(size)

    def text(self, size: int) -> str:
        """Return the next bytes as text."""
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            raise self._malformed("has a string that is not UTF-8") from None

    def array(self, item_bytes_min: int) -> range:
        """Return one number for each item of a compact array; null has none."""
        return self.items(max(0, self.unsigned_varint() - 1), item_bytes_min)

    def items(self, count: int, item_bytes_min: int) -> range:
        """Return one number for each of ``count`` items, for which there must be room."""
        if count * item_bytes_min > len(self._data) - self._position:
            raise self._malformed(f"has no room for {count} items")
        return range(count)

    def tagged_fields(self) -> None:
        """Step over tagged fields."""
        for _ in range(self.unsigned_varint()):
            self.unsigned_varint()
            self.take(self.unsigned_varint())

    def tagged(self) -> dict[int, bytes]:
        """Return tagged fields, undecoded, by their tags."""
        fields: dict[int, bytes] = {}
        for _ in range(self.unsigned_varint()):
            tag = self.unsigned_varint()
            fields[tag] = self.take(self.unsigned_varint())
        return fields

    def length(self, wide: str, *, is_flexible: bool) -> int:
        """Return the length of a string, bytes or array; -1 is null."""
        if is_flexible:
            return self.unsigned_varint() - 1
        size: int = _NUMBERS[wide].unpack(self.take(_NUMBERS[wide].size))[0]
        if size < -1:
            raise self._malformed(f"has the length {size}")
        return size

    def sub_reader(self, data: bytes) -> MessageReader:
        """Return a reader of a part, which is told by the same name."""
        return MessageReader(data, self._name)

    def null_of(self, field: Field) -> None:
        """Return None as a field's value, if it may be."""
        if not field.is_nullable:
            raise self._malformed(f"has null for {field.name}")

    def _malformed(self, what: str) -> InvalidRecordError:
        return InvalidRecordError(f"{self._name} {what}; run verify")


def _read_struct(
    reader: MessageReader, fields: tuple[Field, ...], version: int, *, is_flexible: bool
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in fields:
        has_value = field.tag is None and field.is_in(version)
        values[field.name] = (
            _read_value(reader, field, field.type, version, is_flexible=is_flexible)
            if has_value
            else field.default
        )
    if is_flexible:
        tagged = reader.tagged()
        for field in fields:
            if field.tag is not None and field.tag in tagged and field.is_in(version):
                part = reader.sub_reader(tagged[field.tag])
                values[field.name] = _read_value(part, field, field.type, version, is_flexible=True)
    return values


def _read_value(
    reader: MessageReader, field: Field, kind: FieldType, version: int, *, is_flexible: bool
) -> Any:
    if isinstance(kind, Struct):
        if field.is_nullable and kind is field.type and reader.unsigned_varint() == 0:
            return None
        return _read_struct(reader, kind.fields, version, is_flexible=is_flexible)
    if isinstance(kind, Array):
        count = reader.length("int32", is_flexible=is_flexible)
        if count < 0:
            return reader.null_of(field)
        return [
            _read_value(reader, field, kind.item, version, is_flexible=is_flexible)
            for _ in reader.items(count, 1)
        ]
    number = _NUMBERS.get(kind)
    if number is not None:
        return number.unpack(reader.take(number.size))[0]
    if kind == "uuid":
        return reader.uuid()
    size = reader.length("int16" if kind == "string" else "int32", is_flexible=is_flexible)
    if size < 0:
        return reader.null_of(field)
    return reader.text(size) if kind == "string" else reader.take(size)


# ---- writing -------------------------------------------------------------------------------------


def unsigned_varint(value: int) -> bytes:
    """Return a number as an unsigned varint."""
    assert value >= 0
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def compact_string(text: str) -> bytes:
    """Return a string in the flexible encoding."""
    encoded = text.encode()
    return unsigned_varint(len(encoded) + 1) + encoded


def _struct_bytes(
    fields: tuple[Field, ...], values: Mapping[str, Any], version: int, *, is_flexible: bool
) -> bytes:
    parts: list[bytes] = []
    tagged: list[tuple[int, bytes]] = []
    for field in fields:
        if not field.is_in(version):
            continue
        value = values.get(field.name, field.default)
        if field.tag is None:
            parts.append(_value_bytes(field, field.type, value, version, is_flexible=is_flexible))
        elif is_flexible and value != field.default:
            encoded = _value_bytes(field, field.type, value, version, is_flexible=True)
            tagged.append((field.tag, encoded))
    if is_flexible:
        parts.append(unsigned_varint(len(tagged)))
        for tag, encoded in sorted(tagged):
            parts += (unsigned_varint(tag), unsigned_varint(len(encoded)), encoded)
    return b"".join(parts)


def _value_bytes(
    field: Field, kind: FieldType, value: Any, version: int, *, is_flexible: bool
) -> bytes:
    if isinstance(kind, Struct):
        if field.is_nullable and kind is field.type:
            if value is None:
                return unsigned_varint(0)
            return unsigned_varint(1) + _struct_bytes(
                kind.fields, value, version, is_flexible=is_flexible
            )
        return _struct_bytes(kind.fields, value, version, is_flexible=is_flexible)
    if isinstance(kind, Array):
        if value is None:
            assert field.is_nullable
            return _length_bytes("int32", -1, is_flexible=is_flexible)
        items = [
            _value_bytes(field, kind.item, item, version, is_flexible=is_flexible) for item in value
        ]
        return _length_bytes("int32", len(items), is_flexible=is_flexible) + b"".join(items)
    number = _NUMBERS.get(kind)
    if number is not None:
        return number.pack(value)
    if kind == "uuid":
        assert isinstance(value, UUID)
        return value.bytes
    wide = "int16" if kind == "string" else "int32"
    if value is None:
        assert field.is_nullable
        return _length_bytes(wide, -1, is_flexible=is_flexible)
    encoded = value.encode() if kind == "string" else bytes(value)
    return _length_bytes(wide, len(encoded), is_flexible=is_flexible) + encoded


def _length_bytes(wide: str, length: int, *, is_flexible: bool) -> bytes:
    return unsigned_varint(length + 1) if is_flexible else _NUMBERS[wide].pack(length)
