"""
The frame that clients of a schema registry put around a value: which schema it was written with.

::

    0 │ schema id, 4 bytes, big endian │ [Protobuf: path of the message in its file] │ value

The path is a count and so many indexes, as zigzag varints; a single 0 stands for the first message.

Source: Confluent's wire format.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

MAGIC_BYTE = 0
_HEAD = struct.Struct(">bi")


def framed(schema_id: int, data: bytes, message_path: Sequence[int] | None = None) -> bytes:
    """Return a value in its frame; ``message_path`` for Protobuf alone."""
    path = b"" if message_path is None else _encode_path(message_path)
    return _HEAD.pack(MAGIC_BYTE, schema_id) + path + data


def unframed(data: bytes) -> tuple[int, bytes]:
    """
    Return the schema id, and what follows it.

    Raises:
        ValueError: There is no frame.
    """
    if len(data) < _HEAD.size:
        raise ValueError(f"a frame has {_HEAD.size} bytes before the value, this has {len(data)}")
    magic, schema_id = _HEAD.unpack_from(data)
    if magic != MAGIC_BYTE:
        raise ValueError(f"a frame begins with byte 0, this with {magic & 0xFF}")
    return schema_id, data[_HEAD.size :]


def split_path(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """
    Return the path of a Protobuf message in its file, and the message.

    Raises:
        ValueError: The bytes end inside the path.
    """
    count, position = _read_zigzag(data, 0)
    if count == 0:
        return (0,), data[position:]
    if not 0 < count <= len(data):
        raise ValueError(f"a path of {count} indexes")
    path = []
    for _ in range(count):
        index, position = _read_zigzag(data, position)
        path.append(index)
    return tuple(path), data[position:]


def _encode_path(path: Sequence[int]) -> bytes:
    if tuple(path) == (0,):
        return b"\0"
    return b"".join(_zigzag(number) for number in (len(path), *path))


def _zigzag(number: int) -> bytes:
    rest = number << 1 if number >= 0 else (-number << 1) - 1
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _read_zigzag(data: bytes, position: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 35, 7):
        if position == len(data):
            break
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position
    raise ValueError("the path of the message is no varint")
