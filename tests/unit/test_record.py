from __future__ import annotations

import random
import struct
from uuid import UUID

import pytest

from logstore.compression import CompressionType
from logstore.control_record import (
    KRaftVersion,
    KRaftVoter,
    KRaftVoters,
    LeaderChange,
    SnapshotFooter,
    SnapshotHeader,
)
from logstore.errors import (
    CorruptRecordError,
    InvalidRecordError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
)
from logstore.legacy import LegacyEntry
from logstore.record import (
    BATCH_OVERHEAD,
    ControlRecordType,
    EndTransactionMarker,
    Record,
    RecordBatch,
    TimestampType,
    control_batch,
    decrement_sequence,
    empty_batch,
    encode_batch,
    end_transaction_marker,
    increment_sequence,
    iterate_batches,
    leader_change,
    logical_sha256,
    parse_control_record,
)
from logstore.records_builder import varint

NONE, GZIP, SNAPPY, LZ4, ZSTD = CompressionType
INT32_MAX = 2**31 - 1

# The records and bytes of the golden vectors: spec 11.
G2_RECORDS = [
    (None, 1000, b"k1", b"v1", ()),
    (None, 1005, None, b"v2", ()),
    (None, 1003, b"k3", None, (("h", b"x"), ("n", None))),
    (None, 1004, b"", b"", ()),
]
G2_FIELDS = {
    "base_offset": 10,
    "leader_epoch": 3,
    "producer_id": 1234,
    "producer_epoch": 5,
    "base_sequence": 7,
}
G1 = bytes.fromhex(
    "00000000000000000000003affffffff02a31103050000000000000000000000000001"
    "0000000000000001ffffffffffffffffffffffffffff00000001100000000261023100"
)
G2 = bytes.fromhex(
    "000000000000000a0000005c0000000302ef37d5c300000000000300000000000003e800000000000003ed"
    "00000000000004d20005000000070000000414000000046b310476310010000a0201047632001e00060404"
    "6b33010402680278026e010c000806000000"
)
G3 = {  # Records section, CRC.
    GZIP: (
        (
            "1f8b08000000000000ff1361606060c936642933641060e06262642933629063606361c936666461ca60aa60"
            "ca63e461e060032a0300b8fad20e2b000000"
        ),
        "84660648",
    ),
    SNAPPY: ("82534e41505059000000000100000001" + "0000002d2ba8" + G2[61:].hex(), "b8b1fcbd"),
    LZ4: ("04224d186040822b000080" + G2[61:].hex() + "00000000", "45ae9106"),
    ZSTD: ("28b52ffd0058580100" + G2[61:].hex() + "010000", "7d82473c"),
}
G4 = bytes.fromhex(
    "00000000000000050000003a00000002027e47a0a60008000000000000000000000064000000000000270f"
    "ffffffffffffffffffffffffffff00000001100000000261026200"
)
G5 = bytes.fromhex(
    "00000000000000140000004200000003028054f1ca00300000000000000000000007d000000000000007d0"
    "00000000000004d20005ffffffff00000001200000000800000001" + "0c00000000000900"
)
G6_LEADER = bytes.fromhex(
    "0000000000000000000000540000000402e9d5f9070020000000000000000000000bb80000000000000bb8"
    "ffffffffffffffffffffffffffff000000014400000008000000023000000000000103000000010000000002"
    "0002000000010000" + "00"
)
G6_HEADER = bytes.fromhex(
    "0000000000000000000000470000000402b1133e210020000000000000000000000bb80000000000000bb8"
    "ffffffffffffffffffffffffffff000000012a00000008000000031600000000000000000bb70000"
)
G6_FOOTER = bytes.fromhex(
    "00000000000000000000003f0000000402c500fb210020000000000000000000000bb80000000000000bb8"
    "ffffffffffffffffffffffffffff000000011a00000008000000040600000000"
)
G7 = bytes.fromhex(
    "000000000000000a0000003100000003025e7dccbf000000000003ffffffffffffffff00000000000003ed"
    "00000000000004d200050000000700000000"
)
G8 = bytes.fromhex(
    "000000000000000a000000570000000302aab83813004000000003000000000000ea6000000000000003ed"
    "00000000000004d2000500000007000000031400e599070201047632002200e9990704046b330104026802"
    "78026e011000e7990706000000"
)


def fields(record):
    return (record.offset, record.timestamp, record.key, record.value, record.headers)


def rows_of(batch):
    return [fields(record) for record in RecordBatch(batch).records()]


def sealed(batch: bytearray) -> bytearray:
    """The batch with a right CRC, after a change inside its range."""
    from logstore._native import crc32c

    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return batch


def changed(batch: bytes, at: int, form: str, value: int) -> bytearray:
    """The batch with another header field, and a right CRC."""
    result = bytearray(batch)
    struct.pack_into(form, result, at, value)
    return sealed(result)


def with_section(section: bytes, record_count: int = 1, attributes: int = 0) -> bytes:
    """A valid batch around any records section."""
    batch = bytearray(G1[:BATCH_OVERHEAD] + section)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, attributes)
    struct.pack_into(">i", batch, 57, record_count)
    return bytes(sealed(batch))


class TestGoldenVectors:
    def test_g1_one_record(self):
        """The smallest batch with defaults."""
        assert G1 == encode_batch([(None, 1, b"a", b"1", ())])
        assert [(0, 1, b"a", b"1", ())] == rows_of(G1)

    def test_g2_every_shape_of_record(self):
        """Null and empty keys and values, headers, descending timestamps, producer fields."""
        assert G2 == encode_batch(G2_RECORDS, **G2_FIELDS)
        batch = RecordBatch(G2)
        batch.ensure_valid()
        expected = [(10 + i, *row[1:]) for i, row in enumerate(G2_RECORDS)]
        assert expected == [fields(record) for record in batch.records()]
        assert (10, 13, 14, 1000, 1005) == (
            batch.base_offset,
            batch.last_offset,
            batch.next_offset,
            batch.base_timestamp,
            batch.max_timestamp,
        )
        assert (1234, 5, 7, 10) == (
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            batch.last_sequence,
        )
        assert (3, 2, 4, 104) == (
            batch.leader_epoch,
            batch.magic,
            batch.record_count,
            batch.size_bytes,
        )
        assert not batch.is_transactional
        assert not batch.is_control
        assert batch.delete_horizon_ms is None
        assert all(3 == record.leader_epoch for record in batch.records())

    @pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
    def test_g3_codecs(self, codec):
        """Kafka's compressed batches are read; ours are the same bytes, zstd's apart."""
        section, crc = G3[codec]
        ours = encode_batch(G2_RECORDS, **G2_FIELDS, compression=codec, is_transactional=True)
        assert 0x10 | codec == RecordBatch(ours).attributes
        section = bytes.fromhex(section)
        header = bytearray(G2[:BATCH_OVERHEAD])
        struct.pack_into(">i", header, 8, BATCH_OVERHEAD - 12 + len(section))
        struct.pack_into(">I", header, 17, int(crc, 16))
        struct.pack_into(">h", header, 21, 0x10 | codec)
        kafkas = bytes(header) + section

        RecordBatch(kafkas).ensure_valid()
        assert codec is RecordBatch(kafkas).compression_type
        assert RecordBatch(kafkas).is_transactional
        assert rows_of(G2) == rows_of(kafkas) == rows_of(ours)
        assert logical_sha256(kafkas) == logical_sha256(ours)
        if codec is not ZSTD:
            assert kafkas == ours

    def test_g4_log_append_time(self):
        """Readers see the append time; the record keeps its delta."""
        assert G4 == encode_batch(
            [(None, 100, b"a", b"b", ())],
            base_offset=5,
            leader_epoch=2,
            timestamp_type=TimestampType.LOG_APPEND_TIME,
            log_append_time=9999,
        )
        assert [(5, 9999, b"a", b"b", ())] == rows_of(G4)
        assert TimestampType.LOG_APPEND_TIME is RecordBatch(G4).timestamp_type
        assert TimestampType.LOG_APPEND_TIME == RecordBatch(G4).records()[0].timestamp_type

    @pytest.mark.parametrize("kind", [ControlRecordType.COMMIT, ControlRecordType.ABORT])
    def test_g5_transaction_markers(self, kind):
        """78 bytes, control and transactional."""
        marker = EndTransactionMarker(kind, 9)
        encoded = end_transaction_marker(
            marker,
            timestamp=2000,
            producer_id=1234,
            producer_epoch=5,
            base_offset=20,
            leader_epoch=3,
        )
        if kind is ControlRecordType.COMMIT:
            assert G5 == encoded
        else:
            assert bytes.fromhex("746a2782") == encoded[17:21]
        batch = RecordBatch(encoded)
        assert (78, True, True) == (batch.size_bytes, batch.is_control, batch.is_transactional)
        (record,) = batch.records()
        assert marker == EndTransactionMarker.parse(record.key, record.value)

    @pytest.mark.parametrize(
        ("golden", "kind", "message"),
        [
            (
                G6_LEADER,
                ControlRecordType.LEADER_CHANGE,
                LeaderChange(1, ((1, UUID(int=0)), (2, UUID(int=0))), ((1, UUID(int=0)),)),
            ),
            (G6_HEADER, ControlRecordType.SNAPSHOT_HEADER, SnapshotHeader(2999)),
            (G6_FOOTER, ControlRecordType.SNAPSHOT_FOOTER, SnapshotFooter()),
        ],
        ids=["leader", "header", "footer"],
    )
    def test_g6_consensus_batches(self, golden, kind, message):
        """Control batches without a producer."""
        assert golden == control_batch(kind, message.value(), timestamp=3000, leader_epoch=4)
        (record,) = RecordBatch(golden).records()
        assert kind is ControlRecordType.parse(record.key)
        assert message == parse_control_record(record.key, record.value)
        if isinstance(message, LeaderChange):
            assert golden == leader_change(message, timestamp=3000, leader_epoch=4)

    def test_g7_empty_batch(self):
        """What compaction leaves of a producer's last batch."""
        assert G7 == empty_batch(**G2_FIELDS, last_offset=13, max_timestamp=1005)
        batch = RecordBatch(G7)
        assert (10, 13, 10, 0) == (
            batch.base_offset,
            batch.last_offset,
            batch.last_sequence,
            batch.record_count,
        )
        assert [] == batch.records()

    def test_g8_delete_horizon(self):
        """The horizon replaces the base timestamp; records keep their timestamps."""
        rows = [(10 + i, *row[1:]) for i, row in enumerate(G2_RECORDS)][1:]
        assert G8 == encode_batch(rows, **G2_FIELDS, delete_horizon=60000)
        assert 60000 == RecordBatch(G8).delete_horizon_ms
        assert rows == rows_of(G8)


class TestSequences:
    @pytest.mark.parametrize(
        ("sequence", "increment", "expected"),
        [(0, 0, 0), (5, 3, 8), (INT32_MAX, 0, INT32_MAX), (INT32_MAX, 1, 0), (INT32_MAX - 1, 5, 3)],
    )
    def test_increment_wraps_to_zero(self, sequence, increment, expected):
        """2^31 - 1 is followed by 0, and back again."""
        assert expected == increment_sequence(sequence, increment)
        assert sequence == decrement_sequence(expected, increment)

    def test_the_last_sequence_wraps(self):
        """A batch may begin near the end of the numbers."""
        batch = encode_batch(G2_RECORDS, **{**G2_FIELDS, "base_sequence": INT32_MAX - 1})
        assert 1 == RecordBatch(batch).last_sequence


class TestVarint:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (0, "00"),
            (-1, "01"),
            (1, "02"),
            (-2, "03"),
            (63, "7e"),
            (-64, "7f"),
            (64, "8001"),
            (300, "d804"),
            (INT32_MAX, "feffffff0f"),
            (-(2**31), "ffffffff0f"),
            (2**63 - 1, "feffffffffffffffff01"),
            (-(2**63), "ffffffffffffffffff01"),
        ],
    )
    def test_golden_vectors(self, value, expected):
        """Spec 11."""
        assert expected == varint(value).hex()


class TestEncode:
    def test_no_records_give_no_bytes(self):
        """As a builder of Kafka's that is closed empty."""
        assert b"" == encode_batch([])

    @pytest.mark.parametrize("count", [1, 7, 8, 9, 300])
    @pytest.mark.parametrize("codec", CompressionType)
    def test_records_come_back(self, count, codec):
        """Through the kernel and the path for few records alike."""
        shapes = random.Random(count)
        rows = [
            (
                70 + i,
                shapes.choice([-1, 0, 5, 10**12]),
                shapes.choice([None, b"", b"key"]),
                shapes.choice([None, b"", b"v" * 300]),
                shapes.choice([(), (), (("", None), ("ä", b""), ("a", b"x" * 200))]),
            )
            for i in range(count)
        ]
        batch = encode_batch(rows, compression=codec)
        RecordBatch(batch).ensure_valid()
        assert rows == rows_of(batch)
        assert max(row[1] for row in rows) == RecordBatch(batch).max_timestamp
        assert batch == encode_batch(RecordBatch(batch).records(), compression=codec)

    def test_both_paths_make_the_same_bytes(self):
        """With a hole the records are encoded one by one, without it by the kernel."""
        rows = [(i, 1000 - i, b"k%d" % i, None if i % 3 else b"v", ()) for i in range(20)]
        dense = encode_batch(rows)
        scattered = encode_batch([*rows, (25, 0, None, None, ())])
        tail = encode_batch([(25, 0, None, None, ())], base_offset=0)[BATCH_OVERHEAD:]
        assert scattered[BATCH_OVERHEAD:].startswith(dense[BATCH_OVERHEAD:])
        assert len(tail) + 1 == len(scattered) - len(dense)  # Its timestamp delta is one longer.

    def test_holes_stay(self):
        """After compaction offsets are scattered, and the batch may end behind its last record."""
        rows = [(5, 0, None, b"a", ()), (9, 0, None, b"b", ())]
        batch = encode_batch(rows, base_offset=3, last_offset=12)
        assert rows == rows_of(batch)
        assert (3, 12) == (RecordBatch(batch).base_offset, RecordBatch(batch).last_offset)

    def test_header_keys_need_not_be_utf8(self):
        """What was read is written again, whatever bytes it was."""
        batch = with_section(
            bytes.fromhex("16" + "000000" + "01" + "01" + "02" + "04fffe" + "0278")
        )
        (record,) = RecordBatch(batch).records()
        assert batch[BATCH_OVERHEAD:] == encode_batch([record])[BATCH_OVERHEAD:]

    @pytest.mark.parametrize(
        ("rows", "fields", "what"),
        [
            ([(5, 0, None, None, ()), (5, 0, None, None, ())], {}, "offset 5 after offset 5"),
            ([(5, 0, None, None, ()), (4, 0, None, None, ())], {}, "offset 4 after offset 5"),
            ([(4, 0, None, None, ())], {"base_offset": 5}, "do not fit base offset 5"),
            ([(2**31, 0, None, None, ())], {"base_offset": 0}, "do not fit base offset 0"),
            ([(4, 0, None, None, ())], {"last_offset": 3}, "last offset 3"),
            ([(4, 0, None, None, ())], {"last_offset": 2**31 + 4}, "last offset"),
            ([(4, -2, None, None, ())], {}, "timestamp -2"),
            ([(4, 0, None, None, ())], {"is_transactional": True}, "needs a producer id"),
            ([(4, 0, None, None, ())], {"producer_id": 1}, "producer epoch -1"),
            ([(4, 0, None, None, ())], {"producer_id": 1, "producer_epoch": 0}, "base sequence -1"),
        ],
    )
    def test_contradictions_are_refused(self, rows, fields, what):
        """As Kafka's builder refuses them."""
        with pytest.raises(ValueError, match=what):
            encode_batch(rows, **fields)

    def test_markers_need_producer_and_epoch(self):
        """Kafka refuses to build them without."""
        marker = EndTransactionMarker(ControlRecordType.COMMIT, 0)
        with pytest.raises(ValueError, match="producer id"):
            end_transaction_marker(marker, timestamp=0, producer_id=-1, producer_epoch=0)
        with pytest.raises(ValueError, match="leader epoch"):
            leader_change(LeaderChange(1, (), ()), timestamp=0, leader_epoch=-1)

    def test_too_large_is_refused(self, monkeypatch):
        """Sizes are 31 bits."""
        monkeypatch.setattr("logstore.records_builder.INT32_MAX", 1000)
        with pytest.raises(RecordTooLargeError):
            encode_batch([(None, 0, None, b"x" * 2000, ())])
        with pytest.raises(RecordTooLargeError):
            encode_batch([(None, 0, None, b"x" * 200, ())] * 10)


class TestDamage:
    @pytest.mark.parametrize("size", [0, 1, 60, 103])
    def test_a_batch_must_fit_its_buffer(self, size):
        """The header's length is bounded by what there is."""
        with pytest.raises(CorruptRecordError):
            RecordBatch(G2[:size])

    @pytest.mark.parametrize("length", [-1, 0, 48, 93, INT32_MAX])
    def test_impossible_lengths_are_refused(self, length):
        """Too small for a header, or behind the buffer's end."""
        with pytest.raises(CorruptRecordError, match="does not fit"):
            RecordBatch(G2[:8] + struct.pack(">i", length) + G2[12:])

    def test_every_damaged_byte_inside_the_crc_is_found(self):
        """The CRC covers attributes to end."""
        for at in range(17, len(G2)):
            damaged = bytearray(G2)
            damaged[at] ^= 0x10
            assert not RecordBatch(damaged).is_valid
            with pytest.raises(CorruptRecordError, match="wrong CRC-32C"):
                RecordBatch(damaged).ensure_valid()

    @pytest.mark.parametrize(
        ("section", "count"),
        [
            ("10000000026102310000", 1),  # A byte left.
            ("100000000261023100", 2),  # A record missing.
            ("1000000002610231", 1),  # Body runs past the end.
            ("120000000261023100", 1),  # Size too large.
            ("0e0000000261023100", 1),  # Size too small.
            ("100000000261023101", 1),  # Negative header count.
            ("100000000261023102", 1),  # More headers than bytes.
            ("14000000026102310201", 1),  # Null header key; cut.
            ("160000000261023102010100", 1),  # Null header key.
            ("ffffffffff0f", 1),  # Varint of more than five bytes.
            ("01", 1),  # Negative size.
        ],
    )
    def test_records_that_break_the_format(self, section, count):
        """Spec 1.4: each is INVALID_RECORD, whatever the CRC says."""
        batch = RecordBatch(with_section(bytes.fromhex(section), count))
        batch.ensure_valid()
        with pytest.raises(InvalidRecordError):
            batch.records()

    def test_a_non_minimal_varint_is_read(self):
        """Writers make minimal ones, readers take all."""
        batch = with_section(bytes.fromhex("9200" + "00" + "8000" + "00" + "0261" + "0231" + "00"))
        assert [(0, 1, b"a", b"1", ())] == rows_of(batch)

    def test_a_negative_count_is_refused_and_zero_reads_nothing(self):
        """A batch that declares no records is empty, even if bytes or a broken codec follow."""
        with pytest.raises(InvalidRecordError, match="declares -1 records"):
            RecordBatch(with_section(b"x", -1)).records()
        assert [] == RecordBatch(with_section(b"x", 0, attributes=1)).records()

    def test_records_of_a_negative_base_offset_are_not_left_out(self):
        """No CRC covers it: damage there must not make records vanish without a word."""
        data = bytearray(encode_batch([(None, 0, None, b"v", ())] * 2))
        data[0] |= 0x80
        assert [-(2**63), 1 - 2**63] == [record.offset for record in RecordBatch(data).records()]

    def test_an_unknown_codec_is_refused(self):
        """Ids 5 to 7."""
        batch = RecordBatch(with_section(b"x", 1, attributes=6))
        with pytest.raises(UnsupportedCompressionTypeError):
            batch.records()

    @pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
    def test_damaged_compressed_data_is_found(self, codec):
        """A right CRC does not help."""
        batch = RecordBatch(with_section(b"not compressed", 1, attributes=codec))
        with pytest.raises(CorruptRecordError, match=f"damaged {codec.label}"):
            batch.records()

    def test_the_bound_reaches_the_codec(self):
        """A batch that decompresses to too much is refused."""
        batch = RecordBatch(encode_batch([(None, 0, None, bytes(10_000), ())], compression=ZSTD))
        with pytest.raises(CorruptRecordError, match="bound of 5000 bytes"):
            batch.records(bytes_max=5000)

    def test_negative_timestamps_are_read(self):
        """They cannot be built, but must not crash a reader."""
        batch = changed(G1, 27, ">q", -1_000_000)
        assert -1_000_000 == RecordBatch(batch).records()[0].timestamp

    def test_later_attribute_bits_are_ignored(self):
        """Bits 7 to 15 mean nothing yet."""
        batch = RecordBatch(changed(G1, 21, ">h", -0x80))
        assert (NONE, TimestampType.CREATE_TIME) == (batch.compression_type, batch.timestamp_type)
        assert [(0, 1, b"a", b"1", ())] == [fields(record) for record in batch.records()]


class TestIterateBatches:
    LEGACY = bytes.fromhex("00000000000000030000001257e7496e0000000000026b31000000027631")

    def test_entries_of_all_formats_are_yielded(self):
        """Each where it is."""
        data = G1 + self.LEGACY + G2
        found = list(iterate_batches(data))
        assert [RecordBatch, LegacyEntry, RecordBatch] == [type(batch) for batch in found]
        assert [0, 70, 100] == [batch.position for batch in found]
        assert [0, 3, 13] == [batch.last_offset for batch in found]

    def test_a_cut_entry_ends_the_iteration(self):
        """Whatever is left of it."""
        for size in range(len(G2)):
            assert [0] == [batch.position for batch in iterate_batches(G1 + G2[:size])]

    @pytest.mark.parametrize(
        ("at", "value", "what"),
        [(8, "0000000d", "length 13"), (8, "ffffffff", "length -1"), (16, "03", "magic 3")],
    )
    def test_damage_is_raised_after_what_comes_before(self, at, value, what):
        """Length and magic are checked as Kafka does, other fields by the CRC."""
        damaged = bytearray(G1 + G2)
        damaged[70 + at : 70 + at + len(value) // 2] = bytes.fromhex(value)
        batches = iterate_batches(damaged)
        assert 0 == next(batches).position
        with pytest.raises(CorruptRecordError, match=what) as error:
            next(batches)
        assert 70 == error.value.position

    def test_a_large_entry_is_damage_if_a_bound_is_given(self):
        """The length itself, without what comes before it."""
        assert 1 == len(list(iterate_batches(G2, max_size=92)))
        with pytest.raises(CorruptRecordError, match="length 92"):
            list(iterate_batches(G2, max_size=91))

    def test_a_v2_batch_smaller_than_its_header_is_damage(self):
        """Fourteen bytes are enough for magic 0 only."""
        with pytest.raises(CorruptRecordError):
            list(iterate_batches(G1[:8] + struct.pack(">i", 20) + G1[12:]))


class TestControlRecords:
    @pytest.mark.parametrize(
        ("key", "expected"),
        [
            ("00000000", ControlRecordType.ABORT),
            ("00000001", ControlRecordType.COMMIT),
            ("00050001ff", ControlRecordType.COMMIT),
            ("00000006", ControlRecordType.KRAFT_VOTERS),
            ("00000007", ControlRecordType.UNKNOWN),
            ("0000ffff", ControlRecordType.UNKNOWN),
        ],
    )
    def test_keys(self, key, expected):
        """Later versions and bytes behind are read as version 0, later types are unknown."""
        assert expected is ControlRecordType.parse(bytes.fromhex(key))

    @pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\0"])
    def test_broken_keys(self, key):
        """Null, too short, or a negative version."""
        with pytest.raises(InvalidRecordError):
            ControlRecordType.parse(key)

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("00000002", "000000000009"),
            ("00000001", None),
            ("00000001", "0000000000"),
            ("00000001", "ffff00000009"),
        ],
    )
    def test_broken_markers(self, key, value):
        """Another type, a value that is null or short, or a negative version."""
        with pytest.raises(InvalidRecordError):
            EndTransactionMarker.parse(
                bytes.fromhex(key), None if value is None else bytes.fromhex(value)
            )

    @pytest.mark.parametrize(
        "message",
        [
            EndTransactionMarker(ControlRecordType.ABORT, -1),
            LeaderChange(7, ((1, UUID(int=5)),), (), version=1),
            LeaderChange(7, (), ()),
            SnapshotHeader(2**63 - 1),
            SnapshotFooter(),
            KRaftVersion(1),
            KRaftVoters(()),
            KRaftVoters(
                (
                    KRaftVoter(1, UUID(int=2**100), (("CONTROLLER", "häst", 65535),), 0, 1),
                    KRaftVoter(2, UUID(int=0), (), 0, 0),
                )
            ),
        ],
    )
    def test_values_round_trip(self, message):
        """All kinds, with versions and lists."""
        kinds = {
            EndTransactionMarker: ControlRecordType.ABORT,
            LeaderChange: ControlRecordType.LEADER_CHANGE,
            SnapshotHeader: ControlRecordType.SNAPSHOT_HEADER,
            SnapshotFooter: ControlRecordType.SNAPSHOT_FOOTER,
            KRaftVersion: ControlRecordType.KRAFT_VERSION,
            KRaftVoters: ControlRecordType.KRAFT_VOTERS,
        }
        key = kinds[type(message)].key()
        assert message == parse_control_record(key, message.value())
        for size in range(len(message.value())):
            with pytest.raises(InvalidRecordError):
                parse_control_record(key, message.value()[:size])

    def test_tagged_fields_are_stepped_over(self):
        """A later version may have them anywhere."""
        value = bytes.fromhex("0000" + "0000000000000bb7" + "02" + "0003aabbcc" + "0500")
        assert SnapshotHeader(0xBB7) == SnapshotHeader.parse(value)

    @pytest.mark.parametrize(
        "value",
        ["000000000001" + "03" + "ff", "000000000001ffffffff07", "000000000001ffffffffff01"],
    )
    def test_lists_without_room_are_refused(self, value):
        """A count is bounded by the bytes that there are."""
        with pytest.raises(InvalidRecordError):
            LeaderChange.parse(bytes.fromhex(value))

    def test_unknown_types_are_none(self):
        """They are skipped, not refused."""
        assert parse_control_record(b"\0\0\0\x63", b"anything") is None

    def test_values_must_be_there(self):
        """Only an unknown type may have none."""
        with pytest.raises(InvalidRecordError, match="no value"):
            parse_control_record(ControlRecordType.SNAPSHOT_HEADER.key(), None)


class TestLogicalSha256:
    def test_codec_bytes_do_not_count(self):
        """The same records at two levels have one digest."""
        value = b"".join(b"%d:%d;" % (i % 97, i * i % 89) for i in range(1000))
        rows = [(None, 0, None, value, ())]
        low = encode_batch(rows, compression=ZSTD, level=1)
        high = encode_batch(rows, compression=ZSTD, level=19)
        assert low[17:21] != high[17:21]
        assert logical_sha256(G1 + low) == logical_sha256(G1 + high)
        assert logical_sha256(low) != logical_sha256(encode_batch(rows, compression=GZIP))

    @pytest.mark.parametrize("at", [3, 15, 25, 40])
    def test_header_fields_count(self, at):
        """Also those outside the CRC; a damaged batch counts byte by byte."""
        damaged = bytearray(G1 + G2)
        damaged[70 + at] ^= 1
        assert logical_sha256(G1 + G2) != logical_sha256(damaged)

    def test_damage_and_tails_count_as_they_are(self):
        """Nothing is left out."""
        assert logical_sha256(G1) != logical_sha256(G1 + b"x")
        assert logical_sha256(b"not a batch at all, but more than 17 bytes") is not None


def test_records_are_the_native_type():
    """Equal, hashable, and with the batch's leader epoch."""
    (record,) = RecordBatch(G1).records()
    assert Record(0, 1, b"a", b"1") == record
    assert -1 == record.leader_epoch
