"""Random batches as Kafka's encoder takes them, and damage to their bytes."""

from __future__ import annotations

import contextlib
import struct
import zlib

from logstore._native import crc32c
from logstore.compression import CompressionType
from logstore.errors import LogStoreError
from logstore.record import RecordBatch, iterate_batches

NOW = 1_700_000_000_000

# What Java, with 512 MiB, may be asked to allocate: a damaged size inside a compressed batch is
# allocated before anything is read, up to 2 GiB.
ALLOCATED_MAX = 64 << 20

CODEC_MASK = 7
RECORDS_AT = 61
SNAPPY_HEADER_BYTES = 16


def draw_timestamp(draw):
    return draw.choice(
        [NOW, NOW - draw.randrange(100), NOW - 1000, NOW + 1000, NOW - 10**7, NOW + 10**7, 0, -1, 1]
    )


def draw_record(draw, magic, *, is_plain):
    record = {
        "key": b"k" if is_plain else draw.choice([None, b"", b"k", b"key" * 10]),
        "value": draw.choice([None, b"", b"v" * draw.choice([1, 100, 3000, 70_000])]),
        "timestamp": -1,
    }
    if magic > 0:
        record["timestamp"] = NOW - draw.randrange(50) if is_plain else draw_timestamp(draw)
    if magic == 2 and draw.random() < 0.2:
        record["headers"] = [
            [draw.choice(["", "h", "ä"]), draw.choice([None, b"", b"x"])]
            for _ in range(draw.randrange(4))
        ]
    return record


def draw_batch(draw):
    magic = draw.choice([2, 2, 2, 2, 2, 1, 1, 0])
    codecs = ["none", "none", "gzip", "snappy", "lz4", "zstd"][: 6 if magic == 2 else 5]
    is_plain = draw.random() < 0.5
    count = draw.choice([1, 1, 2, 3, 10, 40])
    batch = {
        "magic": magic,
        "codec": draw.choice(codecs),
        "records": [draw_record(draw, magic, is_plain=is_plain) for _ in range(count)],
    }
    if magic > 0 and draw.random() < 0.1:
        batch["timestamp_type"] = "LogAppendTime"
        batch["log_append_time"] = draw.choice([NOW, NOW - 5, NOW - 10**7, -1])
    if draw.random() < 0.1:
        batch["base_offset"] = draw.choice([1, 5])
    return draw_v2_fields(draw, batch) if magic == 2 else batch


def draw_v2_fields(draw, batch):
    base_offset = batch.get("base_offset", 0)
    if draw.random() < 0.3:
        batch |= {
            "producer_id": draw.choice([1, 1000]),
            "producer_epoch": draw.choice([0, 3]),
            "base_sequence": draw.choice([0, 5, 2**31 - 1]),
            "transactional": draw.random() < 0.5,
        }
    kind = draw.random()
    if kind < 0.05:
        batch["last_offset"] = base_offset + len(batch["records"]) + draw.randrange(3)
    elif kind < 0.1:
        return {
            "codec": draw.choice(["none", "none", "none", "gzip"]),
            "transactional": True,
            "control": True,
            "producer_id": 5,
            "producer_epoch": 1,
            "records": [],
            "marker": {
                "type": draw.choice(["COMMIT", "ABORT"]),
                "coordinator_epoch": 2,
                "timestamp": draw.choice([NOW, NOW - 10**7]),
            },
        }
    elif kind < 0.13:
        return {
            "empty": True,
            "last_offset": draw.randrange(3),
            "max_timestamp": draw_timestamp(draw),
            "records": [],
        }
    elif kind < 0.18:
        batch["delete_horizon"] = NOW + 5
    elif kind < 0.23:
        offset = base_offset
        for record in batch["records"]:
            record["offset"] = offset
            offset += draw.choice([1, 1, 2])
    return batch


HEADER_FIELDS = {21: ">h", 23: ">i", 27: ">q", 35: ">q", 43: ">q", 51: ">h", 53: ">i", 57: ">i"}


def damaged(draw, data):
    """The bytes as they are, or with one change; mostly with a CRC that hides it."""
    changed = _changed(draw, data)
    return data if asks_for_too_much(changed) else changed


def _changed(draw, data):
    data = bytearray(data)
    kind = draw.random()
    if kind < 0.7 or len(data) < 26:
        return bytes(data)
    magic = data[16]
    is_compressed = bool(data[22 if magic == 2 else 17] & 7)
    if kind < 0.8 and magic == 2:
        at = draw.choice(list(HEADER_FIELDS))
        value = draw.choice([0, 1, -1, 2, 3, 4, 8, 16, 32, 100])
        struct.pack_into(HEADER_FIELDS[at], data, at, value)
    elif kind < 0.95 and len(data) > 61 and not (magic < 2 and is_compressed):
        # Not in old wrappers: Kafka allocates what a damaged size inside asks for.
        at = draw.randrange(61, len(data))
        data[at] = draw.choice([0, 1, 2, 255, data[at] ^ 1, data[at] ^ 128])
    else:
        del data[draw.randrange(1, len(data)) :]
        return bytes(data)
    if draw.random() < 0.9 and struct.unpack_from(">i", data, 8)[0] + 12 == len(data):
        at, crc = (17, crc32c(data[21:])) if magic == 2 else (12, zlib.crc32(data[16:]))
        struct.pack_into(">I", data, at, crc)
    return bytes(data)


def asks_for_too_much(data):
    """
    Whether Java would allocate more than ALLOCATED_MAX for a size inside a compressed batch.

    As far as can be told from what decompresses as a whole: Java reads a damaged stream up to the
    damage, and may find such a size there.
    """
    with contextlib.suppress(LogStoreError):
        for batch in iterate_batches(data):
            if not isinstance(batch, RecordBatch) or not batch.attributes & CODEC_MASK:
                continue
            if batch.attributes & CODEC_MASK == CompressionType.SNAPPY:
                sizes = _snappy_sizes(batch.data[RECORDS_AT:])
                if any(not 0 <= size <= ALLOCATED_MAX for size in sizes):
                    return True
            with contextlib.suppress(LogStoreError):
                if any(size > ALLOCATED_MAX for size in _record_sizes(batch.section())):
                    return True
    return False


def _snappy_sizes(stored):
    """Yield the sizes of the blocks, as stored and as they say they are when decompressed."""
    position = SNAPPY_HEADER_BYTES
    while position + 4 < len(stored):
        (size,) = struct.unpack_from(">i", stored, position)
        yield size
        yield _varint(stored, position + 4)[0]
        position += 4 + max(0, size)


def _record_sizes(section):
    position = 0
    while position < len(section):
        number, position = _varint(section, position)
        size = number >> 1 ^ -(number & 1)
        yield size
        position += max(0, size)


def _varint(data, position):
    """Return an unsigned varint of at most 5 bytes and the position behind it."""
    number = 0
    for index, byte in enumerate(data[position : position + 5]):
        number |= (byte & 127) << 7 * index
        if byte < 128:
            return number, position + index + 1
    return number, position + 5
