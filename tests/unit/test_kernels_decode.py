"""Decoding, checking and finding records: as the reference does, and safe on any bytes."""

from __future__ import annotations

import random

import kernel_reference as reference
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import Guarded, MalformedError, Row
from sampling import examples

from logstore import _native
from logstore.errors import InvalidRecordError
from logstore.offset_map import OffsetMap

NOISE = random.Random(8).randbytes(9000)
MAP_BASE = 2**31  # Offsets of the map are not negative, deltas may be.
GUARDED = Guarded(1 << 19)
BYTES = st.sampled_from([None, b"", b"a", b"four", NOISE[:20], NOISE[:63], NOISE[:64], NOISE[:300]])
HEADERS = st.lists(
    st.tuples(st.sampled_from([b"", b"h"]), st.sampled_from([None, b"", b"value"])), max_size=3
).map(tuple)
TIMESTAMPS = st.sampled_from([-1, 0, 100, 163, 164, 40, 10_000, 2**62, -(2**63), 2**63 - 1])
ROWS = st.lists(st.builds(Row, TIMESTAMPS, BYTES, BYTES, HEADERS), min_size=1, max_size=8)


def section_of(rows, base=100):
    return b"".join(reference.encode_record(row, delta, base) for delta, row in enumerate(rows))


def wrapped(number):
    return (number + 2**63) % 2**64 - 2**63


def mapped(section, count):
    """Put the records of a section into an offset map of the cleaner."""
    offset_map = OffsetMap(24 * 20_000)
    found = offset_map.map_section(
        section, count, base_offset=MAP_BASE, last_offset=MAP_BASE, start_offset=0
    )
    return found, offset_map


def check_like_reference(data, count):
    """The kernels agree with the reference on ``data``, which ends at unreadable memory."""
    section = GUARDED(data)
    try:
        records = reference.decode_section(data, count)
    except MalformedError:
        with pytest.raises(InvalidRecordError):
            _native.decode_records(section, base_offset=0, base_timestamp=0, record_count=count)
        with pytest.raises(InvalidRecordError):
            _native.check_records(section, count, 0)
        assert _native.CLEAN_INVALID == mapped(section, count)[0].stop
        return None

    found, offset_map = mapped(section, count)
    last_offsets = {each.key: MAP_BASE + each.offset_delta for each in records}
    for key, offset in last_offsets.items():
        assert key is None or offset == offset_map.get(key)
    assert (len(records), sum(each.key is None for each in records), _native.CLEAN_END) == found[1:]
    assert len(last_offsets) - (None in last_offsets) == len(offset_map)

    columns = _native.decode_records(section, base_offset=5, base_timestamp=7, record_count=count)
    for index, record in enumerate(records):
        key_at, key_size = int(columns.key_positions[index]), int(columns.key_sizes[index])
        value_at, value_size = int(columns.value_positions[index]), int(columns.value_sizes[index])
        header_at = int(columns.header_positions[index])
        assert (
            record.offset_delta,
            wrapped(record.timestamp_delta + 7),
            record.key,
            record.value,
            (record.headers_at, record.end),
        ) == (
            int(columns.offsets[index]) - 5,
            int(columns.timestamps[index]),
            None if key_size < 0 else data[key_at : key_at + key_size],
            None if value_size < 0 else data[value_at : value_at + value_size],
            (header_at, header_at + int(columns.header_sizes[index])),
        )
    timestamps = [wrapped(record.timestamp_delta + 7) for record in records]
    deltas = [record.offset_delta for record in records]
    check = _native.check_records(section, count, 7, lowest_timestamp=0, highest_timestamp=107)
    assert check == _native.RecordCheck(
        max_timestamp=max([-1, *timestamps]),
        min_timestamp=min([2**63 - 1, *timestamps]),
        timestamps_outside=sum(not (0 <= each <= 107 or each == -1) for each in timestamps),
        null_keys=sum(record.key is None for record in records),
        last_offset_delta=deltas[-1] if deltas else -1,
        sequential=deltas == list(range(count)),
        increasing=all(a < b for a, b in zip([-1, *deltas], deltas, strict=False)),
    )
    return records


@settings(max_examples=examples(150))
@given(ROWS)
def test_what_the_reference_wrote(rows):
    """Every part of every record is found, nulls and headers included."""
    records = check_like_reference(section_of(rows), len(rows))
    assert [(row.key, row.value) for row in rows] == [(each.key, each.value) for each in records]


@settings(max_examples=examples(100))
@given(ROWS, st.data())
def test_one_changed_byte(rows, data):
    """A section with any byte changed is decoded or refused exactly as by the reference."""
    section = bytearray(section_of(rows))
    at = data.draw(st.integers(0, len(section) - 1))
    section[at] = data.draw(st.sampled_from([0, 1, 2, 127, 128, 129, 254, 255]))
    check_like_reference(bytes(section), len(rows))


@settings(max_examples=examples(60))
@given(
    st.lists(st.sampled_from([0, 1, 2, 6, 12, 14, 16, 127, 128, 255]), max_size=40),
    st.integers(-1, 4),
)
def test_any_bytes(data, count):
    """Bytes that nobody encoded."""
    check_like_reference(bytes(data), count)


def alike(count, key=None, value=b"v" * 5, timestamp=0):
    """Records that differ in nothing but key, value and offset, and as many bytes each."""
    rows = [
        Row(timestamp, key and key[:-1] + bytes([i % 256]), value[:-1] + bytes([i % 256]))
        for i in range(count)
    ]
    return section_of(rows)


@pytest.mark.parametrize("key", [None, b"", b"k", b"k" * 40])
@pytest.mark.parametrize("value", [b"v", b"v" * 70, b"v" * 9000])
@pytest.mark.parametrize("timestamp", [0, 200])
def test_records_alike(key, value, timestamp):
    """Runs of records of one form, over the places where the offset delta gets longer."""
    count = 30 if len(value) > 1000 else 9000 if value == b"v" and key is None else 150
    assert check_like_reference(alike(count, key or None, value, timestamp), count) is not None


@pytest.mark.parametrize("key", [None, b"key"])
@pytest.mark.parametrize("damaged", [40, 63, 64, 65, 127, 128, 130])
def test_one_changed_byte_among_records_alike(key, damaged):
    """Wherever in a run a byte is another one, the reference says the same."""
    count = 140
    section = alike(count, key)
    ends = [0, *(record.end for record in reference.decode_section(section, count))]
    for at in range(ends[damaged], ends[damaged + 1]):
        for wrong in (section[at] ^ 1, section[at] ^ 2, section[at] ^ 128, 0, 127):
            changed = bytearray(section)
            changed[at] = wrong
            check_like_reference(bytes(changed), count)


SAMPLE = section_of(
    [
        Row(100, b"k", NOISE[:70]),
        Row(99, None, b"v", ((b"h", b"x"), (b"", None))),
        Row(2**62, b"", None),
        Row(101, None, NOISE[:200]),
    ]
)


def test_every_truncation():
    """A section cut at any byte is refused, and nothing behind the cut is read."""
    check_like_reference(SAMPLE, 4)
    for size in range(len(SAMPLE)):
        check_like_reference(SAMPLE[:size], 4)


def test_every_bit_flip():
    """Each bit of a section flipped: decoded or refused as by the reference."""
    for at in range(len(SAMPLE)):
        for bit in range(8):
            damaged = bytearray(SAMPLE)
            damaged[at] ^= 1 << bit
            check_like_reference(bytes(damaged), 4)


def test_wrong_counts():
    """One record more or fewer than there are, none, and a negative count are refused."""
    for count in (-1, 0, 3, 5, 2**31 - 1, -(2**31)):
        check_like_reference(SAMPLE, count) if count < 100 else None
        with pytest.raises(InvalidRecordError):
            _native.decode_records(SAMPLE, base_offset=0, base_timestamp=0, record_count=count)
        with pytest.raises(InvalidRecordError):
            _native.check_records(SAMPLE, count, 0)


def test_empty_section():
    """No record and no byte is a valid section: what compaction leaves."""
    assert [] == check_like_reference(b"", 0)


@pytest.mark.parametrize(
    "body",
    [
        "00 80808080808080808000 00 01 01 00",  # The timestamp delta 0 in ten bytes.
        "00 00 8080808000 01 01 00",  # The offset delta in five.
        "00 00 00 8180808000 01 00",
        "00 00 00 01 8180808000 00",
        "00 00 00 01 01 8080808000",
        "00 00 00 ffffffff7f 01 00",  # Bits beyond the 32nd are dropped.
    ],
)
def test_longer_varints_than_needed_are_read(body):
    """Writers emit the shortest form, readers take every form within the limit."""
    data = bytes.fromhex(body)
    record = bytes([2 * len(data)]) + data
    assert check_like_reference(record, 1) is not None
    assert check_like_reference(record + SAMPLE_FIRST, 2) is not None


SAMPLE_FIRST = reference.encode_record(Row(1, None, NOISE[:40]), 1, 1)


@pytest.mark.parametrize(
    "body",
    [
        "00 8080808080808080808000 00 01 01 00",  # Eleven bytes.
        "00 00 808080808000 01 01 00",  # Six.
        "00 00 00 01 01 01",  # -1 headers.
        "00 00 00 01 01 02 01 00",  # A null header key.
        "00 00 00 01 01 feffffff0f",  # 2^31 - 1 headers.
        "00 00 00 01 01 00 00",  # A byte too many.
        "00 00 00 04 61 01 00",  # A key that takes the value's size.
        "00 00 00 feffffff0f 61 01 00",  # A key of 2^31 - 1 bytes.
        "00 00 00 01 feffffff0f 00",
    ],
)
def test_malformed_bodies(body):
    """Each rule of the format, broken alone; more bytes follow, so only the body says so."""
    data = bytes.fromhex(body)
    record = bytes([2 * len(data)]) + data
    assert check_like_reference(record, 1) is None
    assert check_like_reference(record + SAMPLE_FIRST, 2) is None


def test_log_append_time_replaces_timestamps():
    """All records carry the batch's append time."""
    columns = _native.decode_records(
        SAMPLE, base_offset=0, base_timestamp=100, log_append_time=55, record_count=4
    )
    assert [55] * 4 == columns.timestamps.tolist()


def test_columns_not_wanted_are_not_written():
    """A pointer of 0 leaves a column out."""
    sizes = np.full(4, 77, np.int32)
    struct = _native.ffi.new("struct ls_record_columns *")
    struct.value_sizes = _native.address_of(sizes)
    section = (_native.address_of(SAMPLE), len(SAMPLE))
    assert 4 == _native.lib.ls_decode_records(*section, 0, 0, -1, 4, struct)
    assert [70, 1, -1, 200] == sizes.tolist()


def compacted(deltas):
    return b"".join(
        reference.encode_record(Row(1, None, b"v%d" % delta), delta, 1) for delta in deltas
    )


@settings(max_examples=examples(80))
@given(st.lists(st.integers(0, 20), unique=True).map(sorted), st.integers(0, 22))
def test_find_record(deltas, target):
    """The first record at or after an offset delta, also where compaction left holes."""
    section = GUARDED(compacted(deltas))
    expected = next((index for index, delta in enumerate(deltas) if delta >= target), None)
    if expected is not None:
        expected = (len(compacted(deltas[:expected])), deltas[expected])
    assert expected == _native.find_record(section, len(deltas), target)


def test_find_record_in_many():
    """Each of 300 records of an ordinary batch is found at its position."""
    section = compacted(range(300))
    for delta in range(300):
        position, found = _native.find_record(GUARDED(section), 300, delta)
        assert (delta, len(compacted(range(delta)))) == (found, position)


def test_find_record_never_leaves_a_damaged_section():
    """Each bit flipped and each cut: found, not found or refused, and nothing read behind it."""
    for at in range(len(SAMPLE)):
        for bit in range(8):
            damaged = bytearray(SAMPLE)
            damaged[at] ^= 1 << bit
            for target in (0, 3, 9):
                find_or_refuse(bytes(damaged), target)
        find_or_refuse(SAMPLE[:at], 3)


def find_or_refuse(data, target):
    try:
        found = _native.find_record(GUARDED(data), 4, target)
    except InvalidRecordError:
        return
    if found is not None:
        assert 0 <= found[0] < len(data)
        assert found[1] >= target
