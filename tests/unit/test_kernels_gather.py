"""Gathering columns: as the reference decodes, with any room, and safe on any bytes."""

from __future__ import annotations

import random
from typing import NamedTuple

import kernel_reference as reference
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import Guarded, MalformedError, Row
from sampling import examples

from logstore import _native
from logstore._native import BlockStop, GatherFull

NOISE = random.Random(8).randbytes(9000)
GUARDED = Guarded(1 << 17)
BYTES = st.sampled_from(
    [None, b"", b"a", NOISE[:12], NOISE[:13], NOISE[:64], NOISE[:65], NOISE[:129], NOISE[:300]]
)
HEADERS = st.lists(
    st.tuples(
        st.sampled_from([b"", b"h", "ü€🎉".encode(), b"\xff\xe2\x82x", b"\xed\xa0\x80"]),
        st.sampled_from([None, b"", b"value"]),
    ),
    max_size=3,
).map(tuple)
TIMESTAMPS = st.sampled_from([-1, 0, 100, 164, 10_000, 2**62])
ROWS = st.lists(st.builds(Row, TIMESTAMPS, BYTES, BYTES, HEADERS), min_size=1, max_size=8)
WANTED = st.sets(
    st.sampled_from(["offset", "timestamp", "type", "epoch", "key", "value", "headers"]),
    min_size=1,
)
CANARY = 0xA5


class Memory:
    """Buffers for the columns, each followed by bytes that nobody may touch."""

    def __init__(self):
        self.arrays = []

    def of(self, size, slack=0):
        array = np.full(size + slack + 64, CANARY, np.uint8)
        self.arrays.append((array, size + slack))
        return array

    def check(self):
        assert all((array[end:] == CANARY).all() for array, end in self.arrays)


class Out(NamedTuple):
    """One record as it came out."""

    offset: int | None
    timestamp: int | None
    type: int | None
    epoch: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple | None


class Gathered:
    """The columns of one fill, and what is in them."""

    def __init__(self, wanted, *, rows=16, bytes_max=8000, headers=64, views=False, flags=0):
        self.wanted, self.views, self.memory = wanted, views, Memory()
        self.gather = gather = _native.new_gather()
        gather.stop_offset = 2**62
        gather.rows_max = rows
        gather.flags = flags
        self.fixed = {}
        for name, field, width in (
            ("offset", "offsets", 8),
            ("timestamp", "timestamps", 8),
            ("type", "timestamp_types", 4),
            ("epoch", "leader_epochs", 4),
        ):
            if name in wanted:
                self.fixed[name] = self.memory.of(width * rows)
                setattr(gather, field, _native.address_of(self.fixed[name]))
        self.columns = {}
        for name, struct in (("key", gather.keys), ("value", gather.values)):
            if name in wanted:
                self.columns[name] = self.bytes_column(struct, rows, bytes_max, views=views)
        if "headers" in wanted:
            self.lists = self.memory.of(4 * (rows + 1))
            gather.headers.offsets = _native.address_of(self.lists)
            gather.headers.count_max = headers
            self.columns["names"] = self.bytes_column(gather.headers.names, headers, bytes_max)
            self.columns["contents"] = self.bytes_column(gather.headers.values, headers, bytes_max)

    def bytes_column(self, struct, rows, bytes_max, *, views=False):
        offsets = self.memory.of(16 * rows if views else 4 * (rows + 1))
        validity = self.memory.of(-(-rows // 8))
        data = self.memory.of(bytes_max, _native.GATHER_SLACK)
        struct.offsets = _native.address_of(offsets)
        struct.validity = _native.address_of(validity)
        struct.bytes = _native.address_of(data)
        struct.capacity = bytes_max
        return offsets, validity, data

    def batches(self, data, size=None):
        self.data = data
        address = _native.address_of(data)
        if self.views:
            self.gather.view_base = address
        return BlockStop(
            _native.gather_batches(address, len(data) if size is None else size, self.gather)
        )

    def item(self, name, index, *, nullable=True):
        offsets, validity, data = self.columns[name]
        if nullable and not validity[index // 8] >> index % 8 & 1:
            return None
        if self.views and name in ("key", "value"):
            view = offsets[16 * index : 16 * index + 16]
            size = int(view[:4].view(np.int32)[0])
            if size <= 12:
                assert not view[4 + size :].any()
                return view[4 : 4 + size].tobytes()
            buffer, position = (int(number) for number in view[8:].view(np.int32))
            assert buffer == self.gather.view_buffer
            found = bytes(self.data)[position : position + size]
            assert found[:4] == view[4:8].tobytes()
            return found
        first, end = offsets[4 * index : 4 * index + 8].view(np.int32)
        return data[first:end].tobytes()

    def headers(self, row):
        first, end = self.lists[4 * row : 4 * row + 8].view(np.int32)
        return tuple(
            (self.item("names", at, nullable=False), self.item("contents", at))
            for at in range(first, end)
        )

    def rows(self):
        """Return the rows, and see that nothing was written beyond the buffers."""
        self.memory.check()
        rows = []
        for row in range(self.gather.rows):
            fixed = [
                int(self.fixed[name].view(np.uint8)[: 8 * 64].view(kind)[row])
                if name in self.fixed
                else None
                for name, kind in (
                    ("offset", np.int64),
                    ("timestamp", np.int64),
                    ("type", np.int32),
                    ("epoch", np.int32),
                )
            ]
            pair = [
                self.item(name, row) if name in self.columns else None for name in ("key", "value")
            ]
            headers = self.headers(row) if "headers" in self.wanted else None
            rows.append(Out(*fixed, *pair, headers))
        for name, struct in (("key", self.gather.keys), ("value", self.gather.values)):
            if name in self.columns:
                assert sum(getattr(row, name) is None for row in rows) == struct.null_count
        return rows


def text(name):
    return name.decode("utf-8", "replace").encode()


def expected(batches, wanted):
    """What comes out of (base offset, rows) pairs."""
    return [
        Out(
            base + delta if "offset" in wanted else None,
            row.timestamp if "timestamp" in wanted else None,
            0 if "type" in wanted else None,
            0 if "epoch" in wanted else None,
            row.key if "key" in wanted else None,
            row.value if "value" in wanted else None,
            tuple((text(name), value) for name, value in row.headers)
            if "headers" in wanted
            else None,
        )
        for base, rows in batches
        for delta, row in enumerate(rows)
    ]


def encoded(batches):
    return b"".join(reference.encode_batch(rows, base_offset=base) for base, rows in batches)


@given(parts=st.lists(ROWS, min_size=1, max_size=4), wanted=WANTED, views=st.booleans())
def test_like_reference(parts, wanted, views):
    """Every selection gives what was encoded; bytes end at memory that cannot be read."""
    batches = [(100 * number, rows) for number, rows in enumerate(parts)]
    data = GUARDED(encoded(batches))
    out = Gathered(wanted, rows=40, views=views, flags=_native.GATHER_CRC)
    assert BlockStop.END == out.batches(data)
    assert expected(batches, wanted) == out.rows()
    assert out.gather.position == len(data)
    assert out.gather.start_offset == batches[-1][0] + len(batches[-1][1])


@given(
    parts=st.lists(ROWS, min_size=1, max_size=3),
    wanted=WANTED,
    views=st.booleans(),
    rows_max=st.integers(1, 3),
    start=st.integers(0, 120),
    stop=st.integers(0, 250),
)
def test_pieces(parts, wanted, views, rows_max, start, stop):
    """Fills of few rows, one after the other, give the same within bounds."""
    batches = [(100 * number, rows) for number, rows in enumerate(parts)]
    data = GUARDED(encoded(batches))
    found, at = [], (start, 0, 0, 0)
    for _ in range(100):
        out = Gathered({*wanted, "offset"}, rows=rows_max, views=views, flags=_native.GATHER_CRC)
        gather = out.gather
        gather.stop_offset = stop
        gather.start_offset, gather.position, gather.record_position, gather.record_index = at
        why = out.batches(data)
        found += out.rows()
        at = (
            gather.start_offset,
            gather.position,
            gather.record_position,
            gather.record_index,
        )
        if why != BlockStop.FULL:
            break
        assert GatherFull.ROWS == gather.full
    whole = expected(batches, {*wanted, "offset"})
    assert [row for row in whole if start <= row.offset < stop] == found


@settings(max_examples=examples(300))
@given(
    rows=ROWS,
    wanted=WANTED,
    views=st.booleans(),
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 40),
)
def test_damaged_records(rows, wanted, views, changes, cut):
    """Whatever a section holds, it is decoded as the reference does or refused as a whole."""
    section = bytearray(
        b"".join(reference.encode_record(row, delta, 0) for delta, row in enumerate(rows))
    )
    for at, byte in changes:
        section[at % len(section)] = byte
    section = bytes(section[: max(1, len(section) - cut)])
    data = GUARDED(reference.encode_batch(rows, base_timestamp=0, section=section))
    out = Gathered(wanted, rows=20, bytes_max=1 << 16, headers=256, views=views)
    why = out.batches(data)
    try:
        records = reference.decode_section(section, len(rows))
    except MalformedError:
        assert BlockStop.INVALID == why
        assert [] == out.rows()
        return
    deltas = [record.offset_delta for record in records]
    if any(b <= a for a, b in zip([-1, *deltas], deltas, strict=False)) or deltas[-1] >= len(rows):
        assert BlockStop.INVALID == why
        return
    assert BlockStop.END == why
    for row, record in zip(out.rows(), records, strict=True):
        assert row.offset in (None, record.offset_delta)
        assert row.value == (record.value if "value" in wanted else None)
        assert row.key == (record.key if "key" in wanted else None)


@settings(max_examples=examples(200))
@given(noise=st.binary(max_size=200), flags=st.integers(0, 15), views=st.booleans())
def test_noise(noise, flags, views):
    """Bytes that are no batches end the fill, and nothing outside is touched."""
    data = GUARDED(noise)
    out = Gathered({"offset", "key", "value", "headers"}, views=views, flags=flags)
    out.batches(data)
    out.rows()


@pytest.mark.parametrize("at_end", [True, False])
def test_no_byte_outside_is_touched(at_end):
    """Neither before the bytes nor behind them, however small the last record is."""
    for size in (0, 1, 12, 13, 63, 64, 255, 256, 257):
        rows = [Row(0, None, NOISE[:size])] * 3
        data = GUARDED(encoded([(0, rows)]), at_end=at_end)
        out = Gathered({"value"})
        assert BlockStop.END == out.batches(data)
        assert [NOISE[:size]] * 3 == [row.value for row in out.rows()]


class TestStops:
    ROWS: list[Row] = [Row(5, b"k", b"v", ((b"h", b"x"),))] * 2

    @pytest.mark.parametrize(
        ("attributes", "flags", "stop", "rows"),
        [
            (0x01, 0, BlockStop.COMPRESSED, 0),
            (0x10, 0, BlockStop.TRANSACTIONAL, 0),
            (0x10, _native.GATHER_TRANSACTIONAL, BlockStop.END, 2),
            (0x20, 0, BlockStop.CONTROL, 0),
            (0x30, _native.GATHER_TRANSACTIONAL, BlockStop.CONTROL, 0),
            (0x30, _native.GATHER_PASS_CONTROL, BlockStop.END, 0),
            (0x01, _native.GATHER_COUNT, BlockStop.END, 2),
            (0x10, _native.GATHER_COUNT, BlockStop.TRANSACTIONAL, 0),
        ],
    )
    def test_kinds(self, attributes, flags, stop, rows):
        """What is left to Python, and what is not."""
        data = GUARDED(reference.encode_batch(self.ROWS, attributes=attributes))
        out = Gathered(set() if flags & _native.GATHER_COUNT else {"value"}, flags=flags)
        assert stop == out.batches(data)
        assert rows == out.gather.rows

    def test_wrong_crc(self):
        """Damage is found before anything is delivered, unless nobody asked."""
        good = encoded([(0, self.ROWS)])
        bad = bytearray(encoded([(2, self.ROWS)]))
        bad[22] ^= 0x08
        data = GUARDED(good + bytes(bad))
        out = Gathered({"offset"}, flags=_native.GATHER_CRC)
        assert BlockStop.INVALID == out.batches(data)
        assert (2, len(good)) == (out.gather.rows, out.gather.position)
        out = Gathered({"offset"})
        assert BlockStop.END == out.batches(data)
        assert 4 == out.gather.rows

    @pytest.mark.parametrize("codec", [0, 1])
    def test_header_says_all(self, codec):
        """Offsets without a gap, types and epochs: with a right CRC nobody looks at the records."""
        section = b"\xff" * 9
        data = GUARDED(
            reference.encode_batch(
                self.ROWS * 9, attributes=codec | 0x08, base_offset=7, section=section
            )
        )
        names = {"offset", "timestamp", "type", "epoch"}
        out = Gathered(names, rows=20, flags=_native.GATHER_CRC)
        assert BlockStop.END == out.batches(data)
        assert list(range(7, 25)) == [row.offset for row in out.rows()]
        assert {(5, 1, 0)} == {(row.timestamp, row.type, row.epoch) for row in out.rows()}
        assert (25, len(data)) == (out.gather.start_offset, out.gather.position)
        refused = BlockStop.COMPRESSED if codec else BlockStop.INVALID
        for wanted, flags in (({"offset", "key"}, _native.GATHER_CRC), ({"offset"}, 0)):
            assert refused == Gathered(wanted, rows=20, flags=flags).batches(data)
        assert refused == Gathered({"offset"}, rows=17, flags=_native.GATHER_CRC).batches(data)

    @pytest.mark.parametrize("name", ["timestamp", "offset"])
    def test_header_does_not_say_all(self, name):
        """Each record has a time of its own; and where there is a gap, only records say where."""
        gap = {"last_offset_delta": 2} if name == "offset" else {}
        data = GUARDED(reference.encode_batch(self.ROWS, section=b"\xff" * 9, **gap))
        assert BlockStop.INVALID == Gathered({name}, flags=_native.GATHER_CRC).batches(data)

    def test_torn(self):
        """A batch that is not all there."""
        data = encoded([(0, self.ROWS)])
        for size in range(1, len(data)):
            assert BlockStop.TORN == Gathered({"value"}).batches(GUARDED(data[:size]))

    def test_log_append_time(self):
        """The header's time and type are every record's."""
        data = GUARDED(reference.encode_batch(self.ROWS, attributes=0x08, max_timestamp=77))
        out = Gathered({"timestamp", "type", "epoch"})
        assert BlockStop.END == out.batches(data)
        assert [(77, 1, 0)] * 2 == [(row.timestamp, row.type, row.epoch) for row in out.rows()]
        out = Gathered({"timestamp", "value"})
        assert BlockStop.END == out.batches(data)
        assert [77] * 2 == [row.timestamp for row in out.rows()]

    @pytest.mark.parametrize(
        ("options", "full", "wanted"),
        [
            ({"rows": 1}, GatherFull.ROWS, None),
            ({"bytes_max": 1}, GatherFull.VALUES, 3),
            ({"headers": 1}, GatherFull.HEADERS, 1),
        ],
    )
    def test_full(self, options, full, wanted):
        """What has no room is named, with what it takes; the fill goes on when there is room."""
        rows = [Row(0, b"k", b"v", ((b"h", None),)), Row(0, b"", b"vvv", ((b"hh", b"x"),))]
        data = GUARDED(encoded([(0, rows)]))
        out = Gathered({"key", "value", "headers"}, flags=_native.GATHER_CRC, **options)
        gather = out.gather
        assert BlockStop.FULL == out.batches(data)
        assert (full, 1) == (gather.full, gather.rows)
        if full == GatherFull.HEADERS:
            headers = gather.headers
            assert (2, 1, wanted) == (
                headers.wanted_names,
                headers.wanted_values,
                headers.wanted_count,
            )
        elif wanted is not None:
            assert wanted == gather.wanted
        rest = Gathered({"key", "value", "headers"})
        rest.gather.record_position = gather.record_position
        rest.gather.record_index = gather.record_index
        assert BlockStop.END == rest.batches(data)
        assert expected([(0, rows)], {"key", "value", "headers"})[1:] == rest.rows()


def test_section():
    """A decompressed section, with the header's fields beside it."""
    rows = [Row(5, None, b"a"), Row(9, b"k", None)]
    section = b"".join(reference.encode_record(row, delta, 5) for delta, row in enumerate(rows))
    data = GUARDED(section)
    fields = {
        "base_offset": 40,
        "base_timestamp": 5,
        "max_timestamp": 9,
        "last_offset_delta": 1,
        "record_count": 2,
        "leader_epoch": 3,
        "timestamp_type": 0,
    }
    out = Gathered({"offset", "timestamp", "epoch", "key", "value"})
    address = _native.address_of(data)
    assert BlockStop.END == _native.gather_section(address, len(data), out.gather, **fields)
    assert [(40, 5, 3, None, b"a"), (41, 9, 3, b"k", None)] == [
        (row.offset, row.timestamp, row.epoch, row.key, row.value) for row in out.rows()
    ]
    for damage in ({"record_count": 3}, {"record_count": 1}, {"base_offset": -1}):
        out = Gathered({"value"})
        stop = _native.gather_section(address, len(data), out.gather, **{**fields, **damage})
        assert BlockStop.INVALID == stop


def test_null_behind_a_whole_batch():
    """A batch that is taken in part finds bits set by the one before it; a null clears its own."""
    rows = [Row(0, None, None), Row(0, None, None)]
    data = GUARDED(encoded([(0, [Row(0, b"k", b"v")]), (1, rows)]))
    out = Gathered({"offset", "key", "value", "headers"})
    out.gather.stop_offset = 2
    assert BlockStop.BOUND == out.batches(data)
    assert [(b"k", b"v"), (None, None)] == [(row.key, row.value) for row in out.rows()]
