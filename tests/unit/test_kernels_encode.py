"""Encoders: what they write is what the reference writes, for every shape of columns."""

from __future__ import annotations

import itertools
import random

import kernel_reference as reference
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import Guarded, Row
from sampling import examples

from logstore import _native
from logstore.errors import RecordTooLargeError

SIZES = st.one_of(
    st.integers(0, 9),
    st.sampled_from([15, 16, 31, 32, 33, 57, 58, 59, 60, 63, 64, 65, 100, 127, 128, 129]),
    st.sampled_from([191, 192, 255, 256, 257, 300, 511, 512, 513, 2047, 2048, 2049, 8191, 8192]),
)
NOISE = random.Random(7).randbytes(9000)
ITEMS = st.builds(lambda size, start: NOISE[start : start + size], SIZES, st.integers(0, 700))
HEADERS = st.lists(
    st.tuples(st.sampled_from([b"", b"h", b"key"]), st.sampled_from([None, b"", b"value"])),
    max_size=3,
).map(tuple)
TIMESTAMPS = st.one_of(
    st.sampled_from([-1, 0, 1, 63, 64, 1000]),
    st.sampled_from([1_700_000_000_000, 2**62, 2**63 - 1, -(2**63)]),
)
GUARDED_VALUES = Guarded(1 << 20)
GUARDED_KEYS = Guarded(1 << 19)
GUARDED_OUT = Guarded(1 << 20)


def joined(items, dtype, lead):
    """Bytes and offsets of ``items`` behind ``lead`` bytes that belong to none."""
    sizes = [lead, *(len(item or b"") for item in items)]
    return bytes(lead) + b"".join(item or b"" for item in items), np.cumsum(sizes, dtype=dtype)


def bitmap(items, bit_offset):
    bits = [0] * bit_offset + [item is not None for item in items]
    return np.packbits(bits, bitorder="little")


def columns_of(rows, *, dtype=np.int32, key_dtype=np.int64, lead=0, bit_offset=0, timestamps=True):
    """Columns of ``rows`` whose buffers end at unreadable memory."""
    values, value_offsets = joined([row.value for row in rows], dtype, lead)
    keys, key_offsets = joined([row.key for row in rows], key_dtype, lead)
    shapes = {}
    if any(row.key is not None for row in rows):
        shapes |= {"keys": GUARDED_KEYS(keys), "key_offsets": key_offsets}
        if any(row.key is None for row in rows):
            shapes["key_validity"] = bitmap([row.key for row in rows], bit_offset)
    if any(row.value is None for row in rows):
        shapes["value_validity"] = bitmap([row.value for row in rows], bit_offset)
    if any(row.headers for row in rows):
        headers = [reference.encode_headers(row.headers) if row.headers else b"" for row in rows]
        shapes["headers"], shapes["header_offsets"] = joined(headers, np.int64, lead)
    if timestamps:
        shapes["timestamps"] = np.array([row.timestamp for row in rows], np.int64)
    else:
        shapes["timestamp"] = rows[0].timestamp
    return _native.Columns(GUARDED_VALUES(values), value_offsets, bit_offset=bit_offset, **shapes)


def reference_batches(rows, batch_bytes, base_offset=0):
    """Batches of ``rows`` as many to a batch as fit, at least one."""
    batches = []
    first = 0
    while first < len(rows):
        base = rows[first].timestamp
        size, count = 61, 0
        while first + count < len(rows):
            record = len(reference.encode_record(rows[first + count], count, base))
            if count and size + record > batch_bytes:
                break
            size, count = size + record, count + 1
        batch = reference.encode_batch(rows[first : first + count], base_offset=base_offset + first)
        batches.append(batch)
        first += count
    return batches


def native_batches(columns, batch_bytes, base_offset=0):
    batches = []
    first = 0
    while first < columns.count:
        encoded = _native.encode_batch(
            columns, first, base_offset=base_offset + first, batch_bytes=batch_bytes
        )
        batches.append(encoded.data)
        first += encoded.record_count
    return batches


def section_by(variant, columns, first, batch_bytes):
    """Records section by one variant of the encoder, or None if the machine lacks it."""
    encoded = _native.ffi.new("struct ls_encoded *")
    fields = _native.batch_fields(base_offset=0, batch_bytes=batch_bytes)
    room = batch_bytes + _native.lib.LS_ENCODE_SLACK + 20_000
    out = GUARDED_OUT(bytes(room))
    size = _native.lib.ls_encode_records_with(
        variant, columns.struct, first, fields, _native.address_of(out), room, encoded
    )
    if size == _native.lib.LS_E_SLOW:
        return None
    assert size == encoded.size_bytes > 0
    return bytes(out)[:size]


VARIANTS = [
    variant
    for variant in (_native.lib.LS_ENCODE_PORTABLE, _native.lib.LS_ENCODE_AVX2)
    if section_by(variant, _native.Columns(b"a", np.array([0, 1])), 0, 100) is not None
]


ROWS = st.lists(
    st.builds(Row, TIMESTAMPS, st.none() | ITEMS, st.none() | ITEMS, HEADERS),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(150))
@given(
    ROWS,
    st.sampled_from([np.int32, np.int64]),
    st.sampled_from([np.int32, np.int64]),
    st.sampled_from([0, 1, 5]),
    st.sampled_from([0, 1, 7, 9]),
    st.sampled_from([62, 150, 400, 1024, 16384]),
)
def test_any_columns(rows, dtype, key_dtype, lead, bit_offset, batch_bytes):
    """Keys, timestamps, headers and nulls, both offset widths, slices: the reference's bytes."""
    columns = columns_of(rows, dtype=dtype, key_dtype=key_dtype, lead=lead, bit_offset=bit_offset)
    expected = reference_batches(rows, batch_bytes)
    assert expected == native_batches(columns, batch_bytes)
    for variant in VARIANTS:
        assert expected[0][61:] == section_by(variant, columns, 0, batch_bytes)


def grown_batches(columns, order, pieces, batch_bytes):
    """Batches of records that come in pieces; in memory that ends where nothing may be written."""
    count = columns.count if order is None else len(order)
    rows = None if order is None else np.array(order, np.int64)
    given_counts = itertools.cycle(pieces)
    batches, batch, first = [], None, 0

    def seal():
        batches.append(bytes(batch.seal(base_offset=first - batch.record_count)))
        assert len(batches[-1]) == batch.size_bytes

    while first < count:
        if batch is None:
            memory = GUARDED_OUT(bytes(batch_bytes + _native.ENCODING_SLACK))
            batch = _native.GrowingBatch(batch_bytes, np.frombuffer(memory, np.uint8))
        wanted = min(next(given_counts), count - first)
        taken = batch.add(columns, rows, first, wanted)
        first += taken
        if taken < wanted:
            seal()
            batch = None
    if batch is not None:
        seal()
    return batches


@settings(max_examples=examples(150))
@given(
    ROWS,
    st.sampled_from([np.int32, np.int64]),
    st.sampled_from([0, 1, 7, 9]),
    st.sampled_from([62, 150, 400, 1024, 16384]),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_growing(rows, dtype, bit_offset, batch_bytes, pieces, chance, has_times):
    """In pieces, in the columns' order or another one: what one call writes."""
    if not has_times:
        rows = [row._replace(timestamp=5) for row in rows]
    columns = columns_of(rows, dtype=dtype, bit_offset=bit_offset, timestamps=has_times)
    assert reference_batches(rows, batch_bytes) == grown_batches(columns, None, pieces, batch_bytes)
    order = chance.sample(range(len(rows)), chance.randint(1, len(rows)))
    picked = [rows[at] for at in order]
    assert reference_batches(picked, batch_bytes) == grown_batches(
        columns, order, pieces, batch_bytes
    )


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("pieces", [[1], [63, 1], [777], [9000]])
def test_growing_with_many_small_records(dtype, keyed, pieces):
    """Pieces that end where the offset delta gets longer, or far from it."""
    rows = [
        Row(5 + index % 3 * keyed, b"k%d" % index if keyed else None, NOISE[:40])
        for index in range(8300)
    ]
    columns = columns_of(rows, dtype=dtype, timestamps=keyed)
    expected = native_batches(columns, 1 << 19)
    assert expected == grown_batches(columns, None, pieces, 1 << 19)
    assert expected == grown_batches(columns, range(len(rows)), pieces, 1 << 19)


def test_growing_leaves_a_batch_as_it_was():
    """By what is wrong with columns; a record that is too large for it is for the next one."""
    batch = _native.GrowingBatch(100)
    good = _native.Columns(b"12", np.array([0, 1, 2]), timestamp=5)
    assert 2 == batch.add(good, None, 0, 2)
    size = batch.size_bytes
    rows = np.array([1], np.int64)
    for offsets in ([0, 1, 0], [-1, -1, 2], [0, 1, 99]):
        wrong = _native.Columns(b"12", np.array(offsets), timestamp=5)
        for given_rows in (None, rows):
            with pytest.raises(ValueError, match="offsets of a column"):
                batch.add(wrong, given_rows, 0 if given_rows is not None else 1, 1)
    large = _native.Columns(bytes(200), np.array([0, 200]), timestamp=5)
    assert 0 == batch.add(large, None, 0, 1)
    assert (2, size) == (batch.record_count, batch.size_bytes)
    assert _native.encode_batch(good, 0, base_offset=3).data == batch.seal(base_offset=3)
    batch = _native.GrowingBatch(100)
    assert 1 == batch.add(large, np.array([0], np.int64), 0, 1)
    assert _native.encode_batch(large, 0, base_offset=0).data == batch.seal(base_offset=0)


@settings(max_examples=examples(100))
@given(
    st.lists(ITEMS, min_size=1, max_size=12),
    st.sampled_from([np.int32, np.int64]),
    st.integers(0, 300),
)
def test_values_alone(values, dtype, slack):
    """No keys, one timestamp: the common shape, whether or not bytes behind it are readable."""
    rows = [Row(1_700_000_000_000, None, value) for value in values]
    data, offsets = joined(values, dtype, 3)
    columns = _native.Columns(
        GUARDED_VALUES(data + bytes(slack)),
        offsets,
        timestamp=1_700_000_000_000,
        values_slack=0,
    )
    columns.struct.values_size -= slack
    columns.struct.values_slack = slack
    expected = reference_batches(rows, 4096)
    assert expected == native_batches(columns, 4096)
    for variant in VARIANTS:
        assert expected[0][61:] == section_by(variant, columns, 0, 4096)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("size", [0, 1, 40, 100])
def test_many_small_records(dtype, keyed, size):
    """Offset deltas of one, two and three bytes in one batch."""
    count = 8300 if size else 9000
    rows = [
        Row(5 + index % 3 * keyed, b"k%d" % index if keyed else None, NOISE[:size])
        for index in range(count)
    ]
    columns = columns_of(rows, dtype=dtype, timestamps=keyed)
    (batch,) = native_batches(columns, 1 << 21, base_offset=77)
    assert 77 == int.from_bytes(batch[:8])
    section = b"".join(reference.encode_record(row, delta, 5) for delta, row in enumerate(rows))
    assert section == batch[61:]
    for variant in VARIANTS:
        assert section == section_by(variant, columns, 0, len(batch))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("nulls", [0, 3])
@pytest.mark.parametrize(("key_size", "value_size"), [(10, 100), (63, 20), (0, 0)])
def test_runs_of_records_of_one_form(dtype, nulls, key_size, value_size):
    """Sizes and times repeat, and then one of them does not; batches end in the middle of runs."""
    for changed in (None, "value", "key", "time", "long key", "long value"):
        rows = []
        for i in range(150):
            key = None if nulls and i % nulls == 1 else bytes([i % 256]) * key_size
            value, time = bytes([i % 251]) * value_size, 1000 + i // 97
            if i % 50 == 33:
                value = b"another" if changed == "value" else value
                value = NOISE[:9000] if changed == "long value" else value
                key = b"another" if changed == "key" else key
                key = NOISE[:64] if changed == "long key" else key
                time = 5000 if changed == "time" else time
            rows.append(Row(time, key, value))
        columns = columns_of(rows, dtype=dtype, key_dtype=dtype, lead=3, bit_offset=5)
        assert reference_batches(rows, 12_000) == native_batches(columns, 12_000)


@pytest.mark.parametrize("size", [*range(50, 70), *range(8175, 8195), 2**20 - 20, 2**20])
def test_sizes_around_each_varint_length(size):
    """Where the length varints grow by a byte, and a record larger than batch_bytes."""
    row = Row(1, None, bytes(size))
    columns = _native.Columns(bytes(size), np.array([0, size]), timestamp=1)
    encoded = _native.encode_records(columns, 0, base_offset=0, batch_bytes=100)
    assert reference.encode_record(row, 0, 1) == encoded.data


def test_batch_bytes_is_a_bound():
    """A batch never exceeds batch_bytes unless its first record does alone."""
    values = bytes(100 * 200)
    columns = _native.Columns(values, np.arange(0, 20001, 100, np.int32), timestamp=1)
    for batch_bytes in range(160, 900, 13):
        sizes = [len(batch) for batch in native_batches(columns, batch_bytes)]
        assert max(sizes) <= max(batch_bytes, 61 + 109)
        assert all(size + 109 > batch_bytes for size in sizes[:-1])


@pytest.mark.parametrize("keyed", [False, True])
def test_out_may_be_exactly_as_large_as_promised(keyed):
    """Only LS_ENCODE_SLACK bytes behind batch_bytes are written, at every batch size."""
    rows = [Row(index, b"key" if keyed else None, NOISE[: index % 300]) for index in range(600)]
    columns = columns_of(rows)
    encoded = _native.ffi.new("struct ls_encoded *")
    for batch_bytes in range(400, 5000, 37):
        fields = _native.batch_fields(base_offset=0, batch_bytes=batch_bytes)
        room = batch_bytes + _native.lib.LS_ENCODE_SLACK
        out = GUARDED_OUT(bytes(room))
        size = _native.lib.ls_encode_batch(
            columns.struct, 100, fields, _native.address_of(out), room, encoded
        )
        assert 61 < size == encoded.size_bytes <= batch_bytes
        count = encoded.record_count
        assert reference.encode_batch(rows[100 : 100 + count]) == bytes(out)[:size]


def test_too_little_room_is_said():
    """An `out` that cannot hold the batch gives LS_E_NO_ROOM, and nothing is written beyond it."""
    columns = columns_of([Row(1, None, NOISE[:1000])] * 3)
    encoded = _native.ffi.new("struct ls_encoded *")
    fields = _native.batch_fields(base_offset=0, batch_bytes=65536)
    for room in range(0, 1400, 7):
        out = GUARDED_OUT(bytes(room))
        result = _native.lib.ls_encode_batch(
            columns.struct, 0, fields, _native.address_of(out), room, encoded
        )
        if result > 0:
            assert room >= 61 + 1010 + _native.lib.LS_ENCODE_SLACK
        else:
            assert _native.lib.LS_E_NO_ROOM == result


@pytest.mark.parametrize("width", [np.int32, np.int64])
@pytest.mark.parametrize("column", ["value", "key"])
@pytest.mark.parametrize(
    "offsets", [[0, 3, 2, 4], [-1, 1, 2, 3], [0, 1, 2, 11], [0, 11, 11, 11], [0, 2**31 - 1, 5, 6]]
)
def test_bad_offsets_are_refused(width, column, offsets):
    """Offsets that descend or exceed the buffer never lead outside it."""
    offsets = np.array(offsets, width)
    good = np.array([0, 1, 2, 3], width)
    data = GUARDED_VALUES(bytes(10))
    if column == "value":
        columns = _native.Columns(data, offsets, keys=bytes(10), key_offsets=good)
        bare = _native.Columns(data, offsets)
    else:
        columns = _native.Columns(bytes(10), good, keys=data, key_offsets=offsets)
        bare = columns
    for each in (columns, bare):
        with pytest.raises(ValueError, match="offsets of a column"):
            _native.encode_batch(each, 0, base_offset=0)


@pytest.mark.parametrize("first", [0, 64])
def test_offsets_that_descend_by_one_at_the_start(first):
    """Of a batch, or of the records whose offset delta is longer: -1 once passed for "no size"."""
    offsets = np.array([*range(1, first + 2), first])
    columns = _native.Columns(GUARDED_VALUES(bytes(100)), offsets)
    with pytest.raises(ValueError, match="offsets of a column"):
        _native.encode_batch(columns, 0, base_offset=0)


@pytest.mark.parametrize("last", [2**31, 2**40, 2**63 - 1, -(2**63)])
def test_huge_offsets_are_refused(last):
    """An int64 offset beyond every buffer is found before a byte is read."""
    columns = _native.Columns(bytes(10), np.array([0, 1, last]))
    with pytest.raises(ValueError, match="offsets of a column"):
        _native.encode_batch(columns, 0, base_offset=0)


def test_a_record_beyond_the_format_is_refused():
    """A body over 2^31 - 1 bytes is refused before it is copied."""
    columns = _native.Columns(b"", np.array([0, 2**31 - 1]))
    columns.struct.values_size = 2**31  # Never read: the size is judged first.
    encoded = _native.ffi.new("struct ls_encoded *")
    fields = _native.batch_fields(base_offset=0)
    result = _native.lib.ls_encode_batch(
        columns.struct, 0, fields, _native.address_of(bytearray(1000)), 1000, encoded
    )
    assert _native.lib.LS_E_TOO_LARGE == result


def test_strided_and_unaligned_columns():
    """Offsets and timestamps in any memory layout; they are copied where C cannot read them."""
    rows = [Row(7 + index, None, NOISE[:index]) for index in range(5)]
    data, offsets = joined([row.value for row in rows], np.int64, 0)
    shifted = np.frombuffer(b"x" + offsets.tobytes(), np.uint8)[1:].view(np.int64)
    strided = np.repeat(np.arange(7, 12), 2)[::2]
    assert not shifted.flags.aligned
    assert not strided.flags.c_contiguous
    columns = _native.Columns(data, shifted, timestamps=strided)
    assert reference_batches(rows, 4096) == native_batches(columns, 4096)


def test_all_values_null():
    """No value buffer at all: every value is null, as in a batch of tombstones."""
    columns = _native.Columns(
        None, None, keys=b"abc", key_offsets=np.arange(4, dtype=np.int32), timestamp=9, count=3
    )
    rows = [Row(9, key, None) for key in (b"a", b"b", b"c")]
    assert [reference.encode_batch(rows)] == native_batches(columns, 4096)


@pytest.mark.parametrize(
    "arguments",
    [
        {"value_offsets": np.array([0, 1], np.int16)},
        {"value_offsets": np.array([[0, 1]])},
        {"value_offsets": None},
        {"value_offsets": np.array([], np.int64)},
        {"value_validity": b""},
        {"value_validity": b"\1", "bit_offset": 8},
        {"keys": b"ab", "key_offsets": np.array([0, 1, 2])},
        {"timestamps": np.array([1, 2])},
        {"timestamps": np.array([1], np.int32)},
        {"headers": b"\0", "header_offsets": np.array([0, 1], np.int32)},
        {"bit_offset": -1},
        {"values_slack": -1},
    ],
)
def test_shapes_are_checked(arguments):
    """A column that does not fit the others is refused when the columns are made."""
    with pytest.raises(ValueError):
        _native.Columns(b"a", **({"value_offsets": np.array([0, 1])} | arguments))


def test_seal_refuses_what_the_format_cannot_tell():
    """The length field has 31 bits."""
    fields = _native.batch_fields(base_offset=0)
    size = 2**31 + 12
    arguments = (size, fields, 0, 0, 0, 1)
    assert _native.lib.LS_E_TOO_LARGE == _native.lib.ls_seal_batch(
        _native.address_of(bytearray(61)), *arguments
    )


def test_too_large_has_its_error(monkeypatch):
    """The wrapper turns LS_E_TOO_LARGE into RecordTooLargeError."""
    columns = _native.Columns(b"", np.array([0, 2**31 - 1]))
    columns.struct.values_size = 2**31
    with pytest.raises(RecordTooLargeError):
        _native.encode_batch(columns, 0, base_offset=0)


@given(ROWS)
@settings(max_examples=examples(50))
def test_record_bound(rows):
    """The bound is never below what the encoder writes."""
    columns = columns_of(rows)
    bound = _native.lib.ls_record_bound(columns.struct, 0, len(rows))
    section = _native.encode_records(columns, 0, base_offset=0, batch_bytes=1 << 20).data
    assert len(section) <= bound <= len(section) + 32 * len(rows)
