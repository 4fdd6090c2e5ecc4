"""
Damaged bytes into every decoder: an error of ours or a result, never a crash, a hang or a bug.

Half of the damage is put under a right CRC again, so that it reaches what lies behind the check.
Under the sanitizers each read beyond a buffer is a crash.

Environment:
    LOGSTORE_FUZZ_SECONDS: Time for each decoder, 0.2 by default.
    LOGSTORE_FUZZ_SEED: A number that makes a run repeatable; it is in the message of a failure.
        In CI it is always the same.
"""

from __future__ import annotations

import os
import random
import struct
import time
import zlib

import pytest
from patience import PATIENCE_SECONDS
from sampling import IS_CI

from logstore._native import crc32c, decode_records, find_batch, read_block, scan_batches
from logstore._native.kernels import check_records, find_record
from logstore.compression import CompressionType, compress, decompress
from logstore.errors import LogStoreError
from logstore.files import REAL_FILES
from logstore.producer_snapshot import ProducerStateEntry, encode_snapshot, read_snapshot
from logstore.record import encode_batch, iterate_batches

SECONDS = float(os.environ.get("LOGSTORE_FUZZ_SECONDS", "0.2"))
SEED = int(os.environ.get("LOGSTORE_FUZZ_SEED", "0")) or (
    1 if IS_CI else random.SystemRandom().randrange(1, 2**32)
)
BYTES_MAX = 1 << 16
HEADER_BYTES = 61
LENGTHS = [0, 1, 2, 60, 61, 127, 128, 255, 0x7F, 0x80, 0xFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF]


def batches(codec):
    """Return two batches with nulls, empties, headers and long values."""
    records = [
        (None, 1_000, b"key", b"value", ()),
        (None, 1_001, None, b"", (("h", b"x"), ("null", None))),
        (None, 999, b"", None, ()),
        (None, 5_000, b"k" * 70, b"v" * 300, ()),
    ]
    first = encode_batch(
        records, compression=codec, producer_id=7, producer_epoch=1, base_sequence=3
    )
    return first + encode_batch(records * 20, base_offset=4, compression=codec)


def legacy_entries(magic):
    """Return two messages of an old format."""
    data = b""
    for offset in range(2):
        times = struct.pack(">q", 1_000) if magic else b""
        body = struct.pack(">bB", magic, 0) + times + struct.pack(">i3si5s", 3, b"key", 5, b"value")
        message = struct.pack(">I", zlib.crc32(body)) + body
        data += struct.pack(">qi", offset, len(message)) + message
    return data


def damaged(draw, seed):
    """Return a copy with a few bytes changed, cut, repeated or inserted."""
    data = bytearray(seed)
    for _ in range(draw.choice([1, 1, 1, 2, 4, 16])):
        at = draw.randrange(len(data) + 1)
        kind = draw.randrange(6)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << draw.randrange(8)
        elif kind == 1 and data:
            data[at % len(data)] = draw.choice([0, 1, 0x7F, 0x80, 0xFE, 0xFF])
        elif kind == 2:
            length = struct.pack(">I", draw.choice(LENGTHS))
            data[at : at + 4] = length
        elif kind == 3:
            del data[at:]
        elif kind == 4:
            del data[at : at + draw.randrange(1, 9)]
        else:
            data[at:at] = data[at : at + draw.randrange(1, 40)]
    return bytes(data)


def with_right_crc(data):
    """Return the bytes with length and CRC of the first batch made right."""
    if len(data) < HEADER_BYTES:
        return data
    (length,) = struct.unpack_from(">i", data, 8)
    end = 12 + length if HEADER_BYTES <= 12 + length <= len(data) else len(data)
    fixed = bytearray(data)
    struct.pack_into(">i", fixed, 8, end - 12)
    struct.pack_into(">I", fixed, 17, crc32c(bytes(fixed[21:end])))
    return bytes(fixed)


def read_everything(data):
    """Parse entries of any format and all their records."""
    for batch in iterate_batches(data):
        batch.records(BYTES_MAX)


def read_blocks(data):
    """Walk batches as an iterator does, with and without the CRC."""
    for verify_crc in (True, False):
        position = 0
        for _ in range(100):
            block = read_block(data, position, len(data), max_records=50, verify_crc=verify_crc)
            if block.next_position <= position:
                break
            position = block.next_position


def scan(data):
    """Scan with every check, and look for an offset in the middle."""
    for crc in (True, False):
        result = scan_batches(data, crc=crc, records=True, order=True)
        assert 0 <= result.valid_bytes <= len(data)
    find_batch(data, 30)


def decode_section(data):
    """Decode a records section with a record count that the header may have lied about."""
    section, count = (
        data[HEADER_BYTES:],
        int.from_bytes(data[57:61].ljust(4, b"\0"), "big", signed=True),
    )
    for record_count in {min(max(count, 0), 10_000), 4, 1}:
        find_record(section, record_count, 3)
        check_records(section, record_count, 0)
        decode_records(section, base_offset=0, base_timestamp=0, record_count=record_count)


def attack(seeds, decode, fix=None):
    """Feed damaged seeds to a decoder until the time is up."""
    draw = random.Random(SEED)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        data = damaged(draw, draw.choice(seeds))
        if fix is not None and draw.random() < 0.5:
            data = fix(data)
        begin = time.monotonic()
        try:
            decode(data)
        except LogStoreError:
            pass
        except BaseException as error:
            error.add_note(f"LOGSTORE_FUZZ_SEED={SEED}, input {data.hex()}")
            raise
        assert time.monotonic() - begin < PATIENCE_SECONDS, f"seed {SEED}: slow on {data.hex()}"


@pytest.mark.parametrize("decode", [read_everything, read_blocks, scan])
@pytest.mark.parametrize("codec", list(CompressionType), ids=lambda codec: codec.label)
def test_batches(decode, codec):
    """Batches of every codec into everything that reads batches."""
    attack([batches(codec)], decode, with_right_crc)


def test_records_section():
    """The plain records of a batch, with the count in its header and with others."""
    attack([batches(CompressionType.NONE)], decode_section)


@pytest.mark.parametrize("magic", [0, 1])
def test_legacy_entries(magic):
    """Old formats, parsed with all their records."""
    attack(
        [legacy_entries(magic), legacy_entries(magic) + batches(CompressionType.NONE)],
        read_everything,
    )


@pytest.mark.parametrize("codec", list(CompressionType), ids=lambda codec: codec.label)
def test_decompress(codec):
    """Frames of every codec; what comes out is never larger than the bound."""
    seeds = [
        compress(codec, b"x"),
        compress(codec, bytes(range(256)) * 40),
        compress(codec, b"ab" * 30_000),
    ]

    def decode(data):
        for magic in (1, 2):
            assert len(decompress(codec, data, magic=magic, bytes_max=BYTES_MAX)) <= BYTES_MAX

    attack(seeds, decode)


def test_producer_snapshot(tmp_path):
    """Snapshot files."""
    path = tmp_path / "snapshot"
    seed = encode_snapshot([ProducerStateEntry(7, 1, 2, 1_000), ProducerStateEntry(9)])

    def decode(data):
        path.write_bytes(data)
        read_snapshot(path, files=REAL_FILES)

    attack([seed], decode)
