from __future__ import annotations

import struct
import zlib

import pytest

from logstore.compression import CompressionType, compress
from logstore.errors import CorruptRecordError, InvalidRecordError, UnsupportedCompressionTypeError
from logstore.legacy import LegacyEntry
from logstore.record import TimestampType, iterate_batches

NONE, GZIP, SNAPPY, LZ4, ZSTD = CompressionType

# Golden vectors G9 of spec 11.
V1 = bytes.fromhex(
    "00000000000000030000001ab1a6ec76010000000000000003e8000000026b31000000027631"
    "000000000000000400000018ef17230e010000000000000003e9ffffffff000000027632"
)
V0 = bytes.fromhex("00000000000000030000001257e7496e0000000000026b31000000027631")
V1_GZIP = bytes.fromhex(
    "0000000000000004000000515a2b9eaa010100000000000003e9ffffffff0000003b1f8b08000000000000ff"
    "63608003a98dcbde94314239cc2f800453b621882c33840a822425de8b2bf3c155bdfc0f0460354600d084e0"
    "744a000000"
)
V0_LZ4 = bytes.fromhex(
    "0000000000000003000000376fe2ff920003ffffffff0000002904224d1860401a1a00000012000100910300"
    "00001257e7496e0f0090026b3100000002763100000000"
)


def entry(offset, value, *, key=None, magic=1, timestamp=0, attributes=0):
    """One message; a wrapper if the attributes have a codec."""
    body = struct.pack(">bB", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    for item in (key, value):
        body += struct.pack(">i", -1 if item is None else len(item)) + (item or b"")
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(message)) + message


def wrapper(offset, inner, *, codec=GZIP, magic=1, timestamp=0, attributes=0):
    value = compress(codec, b"".join(inner))
    return entry(offset, value, magic=magic, timestamp=timestamp, attributes=attributes | codec)


def fields(found):
    return [
        (record.offset, record.timestamp, record.key, record.value, record.timestamp_type)
        for record in found.records()
    ]


class TestGoldenVectors:
    def test_v1(self):
        """Two messages: each an entry of its own."""
        first, second = iterate_batches(V1)
        assert [(3, 1000, b"k1", b"v1", 0)] == fields(first)
        assert [(4, 1001, None, b"v2", 0)] == fields(second)
        assert (3, 4) == (first.base_offset, first.next_offset)
        assert V1 == entry(3, b"v1", key=b"k1", timestamp=1000) + entry(4, b"v2", timestamp=1001)

    def test_v0(self):
        """No timestamp at all."""
        (found,) = iterate_batches(V0)
        assert [(3, -1, b"k1", b"v1", -1)] == fields(found)
        assert TimestampType.NO_TIMESTAMP_TYPE is found.timestamp_type
        assert -1 == found.max_timestamp

    def test_v1_gzip_has_relative_offsets(self):
        """The wrapper has the last one's absolute offset."""
        (found,) = iterate_batches(V1_GZIP)
        assert [(3, 1000, b"k1", b"v1", 0), (4, 1001, None, b"v2", 0)] == fields(found)
        assert (3, 4, 1001) == (found.base_offset, found.last_offset, found.max_timestamp)
        assert GZIP is found.compression_type

    def test_v0_lz4_has_a_wrong_header_checksum(self):
        """It is not checked in magic 0, as every old client wrote it so."""
        (found,) = iterate_batches(V0_LZ4)
        assert [(3, -1, b"k1", b"v1", -1)] == fields(found)

    @pytest.mark.parametrize("data", [V0, V1_GZIP, V0_LZ4])
    def test_every_damaged_byte_is_found(self, data):
        """CRC-32 over all behind it; the size says where it ends."""
        LegacyEntry(data).ensure_valid()
        for at in range(12, len(data)):
            damaged = bytearray(data)
            damaged[at] ^= 0x20
            with pytest.raises(CorruptRecordError):
                LegacyEntry(damaged).ensure_valid()

    def test_what_the_format_does_not_have_is_none(self):
        """The interface of a batch."""
        found = LegacyEntry(V1)
        assert (-1, -1, -1, -1, -1) == (
            found.leader_epoch,
            found.producer_id,
            found.producer_epoch,
            found.base_sequence,
            found.last_sequence,
        )
        assert (None, None) == (found.record_count, found.delete_horizon_ms)
        assert not found.is_transactional
        assert not found.is_control


class TestWrappers:
    @pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
    def test_offsets_may_have_gaps(self, codec):
        """Compaction leaves them; the last one's relative offset says where they begin."""
        inner = [entry(0, b"a"), entry(2, b"b"), entry(5, b"c")]
        found = LegacyEntry(wrapper(105, inner, codec=codec))
        assert [100, 102, 105] == [record.offset for record in found.records()]

    def test_magic_0_offsets_are_absolute(self):
        """Nothing is added to them."""
        inner = [entry(7, b"a", magic=0), entry(9, b"b", magic=0)]
        found = LegacyEntry(wrapper(9, inner, magic=0))
        assert [7, 9] == [record.offset for record in found.records()]

    def test_a_wrapper_offset_of_0_means_nothing(self):
        """Some producers left it so; the relative offsets are then taken as they are."""
        found = LegacyEntry(wrapper(0, [entry(0, b"a"), entry(1, b"b")]))
        assert [0, 1] == [record.offset for record in found.records()]

    def test_create_times_are_each_messages_own(self):
        """The wrapper's is their maximum."""
        inner = [entry(0, b"a", timestamp=50), entry(1, b"b", timestamp=40)]
        found = LegacyEntry(wrapper(1, inner, timestamp=50))
        assert [(50, 0), (40, 0)] == [(row[1], row[4]) for row in fields(found)]

    def test_a_log_append_time_is_the_wrappers(self):
        """For all inside."""
        inner = [entry(0, b"a", timestamp=50), entry(1, b"b", timestamp=40)]
        found = LegacyEntry(wrapper(1, inner, timestamp=99, attributes=8))
        assert [(99, 1), (99, 1)] == [(row[1], row[4]) for row in fields(found)]

    @pytest.mark.parametrize(
        ("data", "what"),
        [
            (entry(0, None, attributes=1), "no value"),
            (wrapper(0, []), "no message inside"),
            (wrapper(5, [entry(0, b"a")[:-1]]), "no message inside"),
            (entry(0, b"", attributes=4), "zstd"),
            (wrapper(1, [entry(0, b"a"), entry(2, b"b")]), "below its last message"),
            (wrapper(3, [wrapper(0, [entry(0, b"a")])]), "itself compressed"),
        ],
    )
    def test_broken_rules(self, data, what):
        """Each is INVALID_RECORD."""
        with pytest.raises(InvalidRecordError, match=what):
            LegacyEntry(data).records()

    @pytest.mark.parametrize(
        "data",
        [
            entry(0, b"not gzip", attributes=1),
            wrapper(0, [b"\0" * 11 + b"\x0d" + b"x" * 20]),
            wrapper(0, [b"\0" * 11 + b"\x0e" + b"x" * 20]),
            wrapper(0, [entry(0, b"abc")[:-7] + b"\0\0\0\x04abc"]),
        ],
    )
    def test_damage_inside(self, data):
        """Codec, sizes and magic of what is inside."""
        with pytest.raises(CorruptRecordError):
            LegacyEntry(data).records()

    def test_an_unknown_codec(self):
        """Ids 5 to 7."""
        with pytest.raises(UnsupportedCompressionTypeError):
            LegacyEntry(entry(0, b"", attributes=5)).records()

    def test_the_bound_reaches_the_codec(self):
        """A wrapper that holds too much is refused."""
        data = wrapper(0, [entry(0, bytes(10_000))])
        with pytest.raises(CorruptRecordError, match="bound of 100 bytes"):
            LegacyEntry(data).records(bytes_max=100)


class TestBounds:
    def test_a_cut_entry_is_refused(self):
        """Wherever it is cut."""
        for size in range(len(V0)):
            with pytest.raises(CorruptRecordError):
                LegacyEntry(V0[:size])

    @pytest.mark.parametrize("at", [18, 24])
    def test_key_and_value_sizes_are_bounded(self, at):
        """A size that runs behind the message is damage; a negative one is null."""
        for size in (3, 11, 2**31 - 1):
            data = bytearray(V0)
            struct.pack_into(">i", data, at, size)
            with pytest.raises(CorruptRecordError):
                LegacyEntry(data).records()
        data = bytearray(V0)
        struct.pack_into(">i", data, 24, -7)
        assert LegacyEntry(data).records()[0].value is None

    def test_magic_1_needs_room_for_its_timestamp(self):
        """Fourteen bytes are enough for magic 0 only."""
        data = entry(0, None, magic=0)
        assert 26 == len(data)
        data = data[:16] + b"\1" + data[17:]
        with pytest.raises(CorruptRecordError, match="too short"):
            LegacyEntry(data).records()
        with pytest.raises(CorruptRecordError, match="magic 2"):
            LegacyEntry(data[:16] + b"\2" + data[17:])
