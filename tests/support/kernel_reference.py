"""
The v2 format in slow, plain Python, written from the specification alone: the kernels' judge.

Also :class:`Guarded`: bytes whose end is the end of readable memory, so that reading one byte too
many is a crash in every build and not only under a sanitizer.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from typing import NamedTuple

HEADER = struct.Struct(">qiibIhiqqqhii")
assert HEADER.size == 61

Headers = tuple[tuple[bytes, bytes | None], ...]


class Row(NamedTuple):
    """One record before it has an offset."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def crc32c(data: bytes) -> int:
    """CRC-32C, bit by bit."""
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def unsigned_varint(bits: int) -> bytes:
    out = bytearray()
    while bits > 127:
        out.append(bits % 128 + 128)
        bits //= 128
    out.append(bits)
    return bytes(out)


def varint(number: int) -> bytes:
    """Zig-zag varint; the same for 32 and 64 bits."""
    return unsigned_varint(2 * number if number >= 0 else -2 * number - 1)


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def encode_headers(headers: Headers) -> bytes:
    return varint(len(headers)) + b"".join(sized(key) + sized(value) for key, value in headers)


def encode_record(row: Row, offset_delta: int, base_timestamp: int) -> bytes:
    delta = row.timestamp - base_timestamp
    if not -(2**63) <= delta < 2**63:  # Java's long arithmetic wraps.
        delta = (delta + 2**63) % 2**64 - 2**63
    body = b"\0" + varint(delta) + varint(offset_delta)
    body += sized(row.key) + sized(row.value) + encode_headers(row.headers)
    return varint(len(body)) + body


def encode_batch(
    rows: list[Row],
    *,
    base_offset: int = 0,
    leader_epoch: int = 0,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    last_offset_delta: int | None = None,
    section: bytes | None = None,
) -> bytes:
    if base_timestamp is None:
        base_timestamp = rows[0].timestamp
    if max_timestamp is None:
        max_timestamp = max([-1, *(row.timestamp for row in rows)])
    if section is None:
        section = b"".join(
            encode_record(row, delta, base_timestamp) for delta, row in enumerate(rows)
        )
    if last_offset_delta is None:
        last_offset_delta = len(rows) - 1
    fields = (attributes, last_offset_delta, base_timestamp, max_timestamp)
    producer = (producer_id, producer_epoch, base_sequence, len(rows))
    length = 49 + len(section)
    without_crc = HEADER.pack(base_offset, length, leader_epoch, 2, 0, *fields, *producer) + section
    crc = crc32c(without_crc[21:])
    return HEADER.pack(base_offset, length, leader_epoch, 2, crc, *fields, *producer) + section


class MalformedError(Exception):
    """The section breaks a rule of spec 1.4."""


class Decoded(NamedTuple):
    """One record as the section has it; ``headers_at`` is where headersCount begins."""

    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers_at: int
    end: int


class _Reader:
    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data, self.at, self.end = data, at, end

    def byte(self) -> int:
        if self.at >= self.end:
            raise MalformedError
        self.at += 1
        return self.data[self.at - 1]

    def varint(self, bytes_max: int, bits_max: int) -> int:
        bits = 0
        for index in range(bytes_max):
            byte = self.byte()
            bits |= (byte & 127) << (7 * index)
            if byte < 128:
                bits &= 2**bits_max - 1
                return bits // 2 if bits % 2 == 0 else -(bits // 2) - 1
        raise MalformedError

    def sized(self, *, nullable: bool = True) -> bytes | None:
        size = self.varint(5, 32)
        if size < 0:
            if nullable:
                return None
            raise MalformedError
        if size > self.end - self.at:
            raise MalformedError
        self.at += size
        return self.data[self.at - size : self.at]


def decode_section(section: bytes, record_count: int) -> list[Decoded]:
    if record_count < 0:
        raise MalformedError
    records = []
    at = 0
    for _ in range(record_count):
        outer = _Reader(section, at, len(section))
        size = outer.varint(5, 32)
        if size < 0 or size > len(section) - outer.at:
            raise MalformedError
        reader = _Reader(section, outer.at, outer.at + size)
        reader.byte()
        timestamp_delta = reader.varint(10, 64)
        offset_delta = reader.varint(5, 32)
        key = reader.sized()
        value = reader.sized()
        headers_at = reader.at
        header_count = reader.varint(5, 32)
        if header_count < 0 or header_count > reader.end - reader.at:
            raise MalformedError
        for _ in range(header_count):
            reader.sized(nullable=False)
            reader.sized()
        if reader.at != reader.end:
            raise MalformedError
        at = reader.end
        records.append(Decoded(offset_delta, timestamp_delta, key, value, headers_at, at))
    if at != len(section):
        raise MalformedError
    return records


_libc = ctypes.CDLL(None, use_errno=True)


class Guarded:
    """Up to ``size_max`` bytes that end (or, not ``at_end``, begin) at an unreadable page."""

    def __init__(self, size_max: int) -> None:
        page = mmap.PAGESIZE
        self.size = -(-size_max // page) * page
        self._map = mmap.mmap(-1, self.size + 2 * page)
        self._bytes = (ctypes.c_char * len(self._map)).from_buffer(self._map)
        self._first = ctypes.addressof(self._bytes) + page
        for guard in (self._first - page, self._first + self.size):
            if _libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")

    def __call__(self, data: bytes, *, at_end: bool = True) -> ctypes.Array[ctypes.c_char]:
        """Return a buffer holding ``data``; valid until the next call."""
        assert len(data) <= self.size
        address = self._first + (self.size - len(data) if at_end else 0)
        ctypes.memmove(address, data, len(data))
        return (ctypes.c_char * len(data)).from_address(address)
