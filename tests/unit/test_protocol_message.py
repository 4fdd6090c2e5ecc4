"""Messages of Kafka's protocol: plain, flexible, tagged, and malformed ones."""

from __future__ import annotations

from uuid import UUID

import pytest

from logstore.errors import InvalidRecordError
from logstore.protocol_message import Array, Field, MessageSchema, Struct, unsigned_varint

SCHEMA = MessageSchema(
    "Sample",
    (
        Field("id", "int16"),
        Field("name", "string"),
        Field("note", "string", is_nullable=True),
        Field("data", "bytes", 1, is_nullable=True),
        Field("places", Array(Struct((Field("at", "int32"), Field("key", "uuid")))), 1, default=[]),
        Field("extra", "int64", 2, tag=3, default=-1),
        Field("inner", Struct((Field("x", "int8"),)), 2, tag=1, is_nullable=True),
    ),
    last_version=2,
    flexible_version=2,
)
PLACE = {"at": 7, "key": UUID(int=5)}
VALUES = {"id": -2, "name": "é", "note": None, "data": b"\0", "places": [PLACE]}


def test_plain():
    """Lengths are fixed integers, -1 is null; what a version lacks has its default."""
    encoded = SCHEMA.encode(VALUES, 0)
    assert bytes.fromhex("fffe 0002c3a9 ffff") == encoded
    decoded = {**VALUES, "data": None, "places": [], "extra": -1, "inner": None}
    assert decoded == SCHEMA.decode(encoded, 0)

    with_array = SCHEMA.encode(VALUES, 1)
    uuid = "00000000000000000000000000000005"
    assert encoded + bytes.fromhex("00000001 00 00000001 00000007" + uuid) == with_array
    assert {**decoded, "data": b"\0", "places": [PLACE]} == SCHEMA.decode(with_array, 1)


def test_flexible():
    """Lengths are varints of one more, structs end with tagged fields; defaults are left out."""
    encoded = SCHEMA.encode(VALUES, 2)
    place = "00000007 00000000000000000000000000000005 00"
    assert bytes.fromhex("fffe 03c3a9 00 0200 02" + place + "00") == encoded
    assert {**VALUES, "extra": -1, "inner": None} == SCHEMA.decode(encoded, 2)


def test_tagged_fields():
    """In ascending order; a struct that may be null says in front that it is none."""
    values = {**VALUES, "places": [], "extra": 9, "inner": {"x": -1}}
    encoded = SCHEMA.encode(values, 2)
    assert encoded.endswith(bytes.fromhex("02 01 03 01ff00 03 08 0000000000000009"))
    assert values == SCHEMA.decode(encoded, 2)


def test_unknown_tags_are_stepped_over():
    """A newer writer's fields do no harm, and neither do bytes behind the message."""
    plain = SCHEMA.encode(VALUES, 2)
    newer = plain[:-1] + bytes.fromhex("02 03 08 0000000000000001 e807 01 aa") + b"more"
    assert 1 == SCHEMA.decode(newer, 2)["extra"]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_cut_short(version):
    """Every prefix is refused, whatever it cuts."""
    encoded = SCHEMA.encode({**VALUES, "extra": 4}, version)
    for size in range(len(encoded)):
        with pytest.raises(InvalidRecordError):
            SCHEMA.decode(encoded[:size], version)


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (0, "0001 ffff ffff"),  # A name that is null.
        (0, "0001 fffe"),  # A length below -1.
        (0, "0001 0001ff ffff"),  # No UTF-8.
        (1, "0001 0000 ffff ffffffff 7fffffff"),  # More items than bytes.
        (2, "0001 ffffffffff01"),  # A varint of more than five bytes.
        (2, "0001 00 00 00 01 00"),  # A flexible null name.
    ],
)
def test_malformed(version, data):
    """A length lies, a null stands where none may, a string is none."""
    with pytest.raises(InvalidRecordError, match="Sample"):
        SCHEMA.decode(bytes.fromhex(data), version)


@pytest.mark.parametrize("version", [-1, 3])
def test_unknown_version(version):
    """It is refused for reading and for writing."""
    with pytest.raises(InvalidRecordError, match="unknown"):
        SCHEMA.decode(b"", version)
    with pytest.raises(InvalidRecordError, match="unknown"):
        SCHEMA.encode(VALUES, version)


def test_unsigned_varint():
    """Seven bits a byte, the lowest first."""
    expected = {0: "00", 127: "7f", 128: "8001", 300: "ac02", 2**32 - 1: "ffffffff0f"}
    assert expected == {value: unsigned_varint(value).hex() for value in expected}
