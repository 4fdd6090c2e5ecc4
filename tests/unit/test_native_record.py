from __future__ import annotations

import copy
import gc
import pickle
import struct
import sys
from datetime import UTC, datetime

import pytest

from logstore._native.kernels import crc32c
from logstore._native.records import (
    BlockIterator,
    BlockStop,
    Record,
    fill_records,
    read_block,
)
from logstore.errors import InvalidRecordError

# Golden vectors G1, G2 and G4 of the format: made by Kafka's own code.
G1 = bytes.fromhex(
    "00000000000000000000003affffffff02a31103050000000000000000000000000001000000"
    "0000000001ffffffffffffffffffffffffffff000000011000000002610231"
    "00"
)
G2 = bytes.fromhex(
    "000000000000000a0000005c0000000302ef37d5c300000000000300000000000003e800000000000003ed"
    "00000000000004d20005000000070000000414000000046b310476310010000a0201047632001e00060404"
    "6b33010402680278026e010c000806000000"
)
G4 = bytes.fromhex(
    "00000000000000050000003a00000002027e47a0a60008000000000000000000000064000000000000270f"
    "ffffffffffffffffffffffffffff00000001100000000261026200"
)
G2_RECORDS = [
    Record(10, 1000, b"k1", b"v1"),
    Record(11, 1005, None, b"v2"),
    Record(12, 1003, b"k3", None, [("h", b"x"), ("n", None)]),
    Record(13, 1004, b"", b""),
]


def varint(value: int) -> bytes:
    bits = (value << 1) ^ (value >> 63)
    out = bytearray()
    while bits >= 128:
        out.append(bits & 127 | 128)
        bits >>= 7
    return bytes([*out, bits])


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def encode_record(delta, value, key=None, headers=(), timestamp_delta=0) -> bytes:
    parts = [b"\0", varint(timestamp_delta), varint(delta), sized(key), sized(value)]
    parts.append(varint(len(headers)))
    parts += [sized(name) + sized(content) for name, content in headers]
    body = b"".join(parts)
    return varint(len(body)) + body


def encode_batch(base_offset, records, *, count=None, attributes=0, last_delta=None, magic=2):
    section = b"".join(records)
    count = len(records) if count is None else count
    last_delta = max(len(records) - 1, 0) if last_delta is None else last_delta
    covered = (
        struct.pack(">hiqqqhii", attributes, last_delta, 100, 100, -1, -1, -1, count) + section
    )
    return struct.pack(">qiibI", base_offset, len(covered) + 9, 7, magic, crc32c(covered)) + covered


def plain_batch(base_offset, values):
    return encode_batch(base_offset, [encode_record(i, value) for i, value in enumerate(values)])


class TestRecord:
    def test_has_the_fields_it_was_given(self):
        """All fields are attributes, in order of the constructor's arguments."""
        record = Record(5, 1000, b"k", b"v", [("h", b"x"), ("n", None)], 1, 3)
        fields = (record.offset, record.timestamp, record.key, record.value, record.headers)
        assert (5, 1000, b"k", b"v", (("h", b"x"), ("n", None))) == fields
        assert (1, 3) == (record.timestamp_type, record.leader_epoch)

    def test_defaults(self):
        """Without headers, type and epoch: none, create time, unknown."""
        record = Record(0, -1, None, None)
        assert ((), 0, -1) == (record.headers, record.timestamp_type, record.leader_epoch)

    def test_takes_other_buffers(self):
        """Buffers become bytes: a record never changes under its reader."""
        value = bytearray(b"abc")
        record = Record(0, 0, memoryview(b"k"), value)
        value[0] = 0
        assert (b"k", b"abc") == (record.key, record.value)

    @pytest.mark.parametrize(
        "arguments",
        [
            (0, 0, "k", b"v"),
            (0, 0, b"k", "v"),
            (0, 0, b"k", 5),
            (0, 0, b"k", [1, 2]),
            ("0", 0, None, None),
            (0, 1.5, None, None),
            (0, 0, None, None, ["ab"]),
            (0, 0, None, None, [(b"h", b"v")]),
            (0, 0, None, None, [("h", "v")]),
            (0, 0, None, None, [("h",)]),
            (0, 0, None, None, 5),
        ],
    )
    def test_refuses_wrong_types(self, arguments):
        """Text is never encoded silently."""
        with pytest.raises(TypeError):
            Record(*arguments)

    def test_refuses_values_out_of_range(self):
        """Offsets are 64 bits, timestamp types three."""
        with pytest.raises(OverflowError):
            Record(2**63, 0, None, None)
        with pytest.raises(ValueError, match="timestamp_type"):
            Record(0, 0, None, None, (), 2)

    def test_is_immutable(self):
        """Neither fields nor new attributes can be set, and the type is final."""
        record = Record(0, 0, None, b"v")
        with pytest.raises(AttributeError):
            record.value = b"w"
        with pytest.raises(AttributeError):
            record.other = 1
        with pytest.raises(TypeError):
            type("Sub", (Record,), {})
        with pytest.raises(TypeError):
            Record.value = None

    def test_equality_and_hash(self):
        """Every field but the leader epoch counts."""
        record = Record(5, 1000, b"k", b"v", [("h", b"x")], 1, 3)
        same = Record(5, 1000, b"k", b"v", (("h", b"x"),), 1, 9)
        assert record == same
        assert hash(record) == hash(same)
        others = [
            Record(6, 1000, b"k", b"v", [("h", b"x")], 1),
            Record(5, 1001, b"k", b"v", [("h", b"x")], 1),
            Record(5, 1000, None, b"v", [("h", b"x")], 1),
            Record(5, 1000, b"k", None, [("h", b"x")], 1),
            Record(5, 1000, b"k", b"v", [("h", b"y")], 1),
            Record(5, 1000, b"k", b"v", [("h", b"x")], 0),
        ]
        assert [False] * 6 == [record == other for other in others]
        assert record != (5, 1000)
        with pytest.raises(TypeError):
            sorted([record, same])

    def test_repr_can_be_evaluated(self):
        """The representation is the constructor call."""
        for record in G2_RECORDS:
            assert record == eval(repr(record))

    def test_pickles_and_copies(self):
        """Records cross process borders, for Spark."""
        pytest.importorskip("logstore.record")
        for record in G2_RECORDS:
            assert record == pickle.loads(pickle.dumps(record))
            assert record == copy.deepcopy(record)

    def test_datetime(self):
        """Milliseconds are exact; -1 is no time; what datetime cannot hold is an error."""
        assert (
            datetime(2023, 11, 14, 22, 13, 20, 1000, UTC)
            == Record(0, 1_700_000_000_001, None, None).datetime
        )
        assert (
            datetime(1969, 12, 31, 23, 59, 59, 998_000, UTC) == Record(0, -2, None, None).datetime
        )
        assert Record(0, -1, None, None).datetime is None
        with pytest.raises(OverflowError):
            _ = Record(0, 2**62, None, None).datetime

    def test_has_no_gc_header(self):
        """It holds nothing that could be part of a cycle."""
        assert not gc.is_tracked(Record(0, 0, None, None))


class TestFillRecords:
    def test_golden(self):
        """Kafka's batch of four records: keys, nulls, headers, empty."""
        records = fill_records(
            G2[61:], base_offset=10, base_timestamp=1000, record_count=4, leader_epoch=3
        )
        assert G2_RECORDS == records
        assert [3] * 4 == [record.leader_epoch for record in records]

    def test_log_append_time_replaces_timestamps(self):
        """With type 1 every record has the batch's max timestamp."""
        (record,) = fill_records(
            G4[61:],
            base_offset=5,
            base_timestamp=100,
            record_count=1,
            timestamp_type=1,
            max_timestamp=9999,
        )
        assert Record(5, 9999, b"a", b"b", (), 1) == record

    def test_bounds(self):
        """Start, stop and limit cut; what lies behind is not looked at."""
        arguments = {"base_offset": 10, "base_timestamp": 1000, "record_count": 4}
        section = G2[61:]
        assert G2_RECORDS[1:] == fill_records(section, **arguments, start_offset=11)
        assert G2_RECORDS[1:3] == fill_records(
            section, **arguments, start_offset=11, stop_offset=13
        )
        assert G2_RECORDS[1:2] == fill_records(section, **arguments, start_offset=11, limit=1)
        assert [] == fill_records(section, **arguments, limit=0)
        assert [b"v1", b"v2", None, b""] == fill_records(section, **arguments, values_only=True)
        assert G2_RECORDS[:3] == fill_records(G2[61:-1], **arguments, limit=3)
        assert G2_RECORDS[:2] == fill_records(G2[61:-1], **arguments, stop_offset=12)

    def test_count_and_size_must_agree(self):
        """Bytes left, bytes missing, or a count that the bytes cannot hold are refused."""
        for section, count in [
            (G2[61:], 3),
            (G2[61:], 5),
            (G2[61:-1], 4),
            (G2[61:] + b"\0", 4),
            (G2[61:], -1),
            (G2[61:], 2**31 - 1),
            (b"", 1),
        ]:
            with pytest.raises(InvalidRecordError):
                fill_records(section, base_offset=0, base_timestamp=0, record_count=count)
        assert [] == fill_records(b"", base_offset=0, base_timestamp=0, record_count=0)

    def test_every_damaged_byte_is_survived(self):
        """Any byte set to anything gives records or an error, never more records than stated."""
        for position in range(61, len(G2)):
            for byte in (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF):
                section = bytearray(G2[61:])
                section[position - 61] = byte
                try:
                    records = fill_records(section, base_offset=0, base_timestamp=0, record_count=4)
                except InvalidRecordError:
                    continue
                assert 4 == len(records)

    def test_header_keys_that_are_not_utf_8(self):
        """They are decoded with surrogateescape, so the bytes on disk can be had back."""
        names = [b"\xff", b"\xed\xa0\x80", "é".encode(), b""]
        section = encode_record(0, b"", headers=[(name, b"") for name in names])
        (record,) = fill_records(section, base_offset=0, base_timestamp=0, record_count=1)
        assert names == [key.encode("utf-8", "surrogateescape") for key, _ in record.headers]
        assert "é" == record.headers[2][0]

    def test_many_headers(self):
        """Order and repetition are kept."""
        headers = [(b"h", b"%d" % i) for i in range(300)]
        section = encode_record(0, None, b"k", headers)
        (record,) = fill_records(section, base_offset=0, base_timestamp=0, record_count=1)
        assert tuple((key.decode(), value) for key, value in headers) == record.headers

    def test_takes_any_buffer(self):
        """bytes, bytearray, memoryview."""
        for kind in (bytes, bytearray, memoryview):
            section = kind(G2[61:])
            assert 4 == len(fill_records(section, base_offset=0, base_timestamp=0, record_count=4))


class TestReadBlock:
    def test_several_batches(self):
        """Records of plain batches in order, then the end."""
        data = G1 + G2 + G4
        block = read_block(data, 0, len(data), start_offset=0)
        assert (len(data), 14, BlockStop.END, 0, 0, -1) == block[1:]
        assert [0, 10, 11, 12, 13] == [record.offset for record in block.items]
        block = read_block(data[len(G1) + len(G2) :], 0, len(G4))
        assert [Record(5, 9999, b"a", b"b", (), 1)] == block.items
        assert (len(G4), 6) == block[1:3]

    def test_start_skips_batches_and_records(self):
        """What lies below the start is not even verified; the middle of a batch is a start, too."""
        damaged = bytearray(plain_batch(0, [b"a", b"b"]) + plain_batch(2, [b"c", b"d", b"e"]))
        damaged[30] ^= 1
        block = read_block(damaged, 0, len(damaged), start_offset=3, values_only=True)
        assert ([b"d", b"e"], len(damaged), 5, BlockStop.END, 0, 0, -1) == block

    def test_stop_offset(self):
        """The bound is exclusive, inside a batch and between two."""
        data = plain_batch(0, [b"a", b"b"]) + plain_batch(2, [b"c", b"d"])
        half = len(data) // 2
        block = read_block(data, 0, len(data), stop_offset=3, values_only=True)
        assert ([b"a", b"b", b"c"], half, 3, BlockStop.BOUND, 0, 0, -1) == block
        block = read_block(data, 0, len(data), stop_offset=2, values_only=True)
        assert ([b"a", b"b"], half, 2, BlockStop.BOUND, 0, 0, -1) == block

    def test_next_offset_passes_gaps(self):
        """A compacted batch ends at its last offset, not at its last record."""
        data = encode_batch(0, [encode_record(3, b"x")], last_delta=9)
        assert ([b"x"], len(data), 10, BlockStop.END, 0, 0, -1) == read_block(
            data, 0, len(data), values_only=True
        )

    @pytest.mark.parametrize("max_records", [1, 2, 3, 4, 7])
    def test_blocks_join_without_loss(self, max_records):
        """Cut anywhere, also inside batches, the blocks together have every value once."""
        batches = [plain_batch(0, [b"a"] * 5), plain_batch(5, []), plain_batch(6, [b"b", b"c"])]
        data = b"".join([*batches, plain_batch(8, [b"d"] * 4)])
        values, position, offset, record_position, record_index, least = [], 0, 0, 0, 0, 0
        while position < len(data):
            block = read_block(
                data,
                position,
                len(data),
                start_offset=offset,
                max_records=max_records,
                values_only=True,
                record_position=record_position,
                record_index=record_index,
                base_offset_min=least,
            )
            assert 0 < len(block.items) <= max_records or block.stop == BlockStop.END
            values += block.items
            _, position, offset, _, record_position, record_index, least = block
        assert [b"a"] * 5 + [b"b", b"c"] + [b"d"] * 4 == values
        assert 12 == offset == least

    def test_a_damaged_batch_ends_the_block(self):
        """A wrong CRC or record gives nothing of its batch; the batches before it stay."""
        first, second = plain_batch(0, [b"a", b"b"]), plain_batch(2, [b"c", b"d"])
        for position in range(12, len(second)):
            damaged = bytearray(first + second)
            damaged[len(first) + position] ^= 0x10
            block = read_block(damaged, 0, len(damaged), values_only=True)
            if position in range(12, 16):  # The leader epoch is outside the CRC.
                assert [b"a", b"b", b"c", b"d"] == block.items
            else:
                assert [b"a", b"b"] == block.items
                assert (len(first), 2) == block[1:3]
        broken = encode_batch(2, [encode_record(0, b"c"), b"\x02\0"])
        block = read_block(first + broken, 0, len(first + broken))
        assert (2, len(first), 2, BlockStop.INVALID) == (len(block.items), *block[1:4])

    def test_crc_can_be_left_out(self):
        """Without verification a wrong CRC is not seen."""
        damaged = bytearray(plain_batch(0, [b"a"]))
        damaged[17] ^= 1
        assert BlockStop.INVALID == read_block(damaged, 0, len(damaged)).stop
        assert 1 == len(read_block(damaged, 0, len(damaged), verify_crc=False).items)

    @pytest.mark.parametrize(
        ("batch", "stop"),
        [
            (encode_batch(1, [b""], attributes=1), BlockStop.COMPRESSED),
            (encode_batch(1, [b""], attributes=0x14), BlockStop.TRANSACTIONAL),
            (encode_batch(1, [b""], attributes=0x30), BlockStop.CONTROL),
            (encode_batch(1, [b""], magic=1), BlockStop.LEGACY),
            (encode_batch(1, [b""], magic=0), BlockStop.LEGACY),
            (encode_batch(1, [b""], magic=3), BlockStop.INVALID),
            (encode_batch(1, [b""])[:60], BlockStop.TORN),
            (encode_batch(1, [b""])[:16], BlockStop.TORN),
            (bytes(61), BlockStop.LEGACY),
            (encode_batch(1, [], count=-1), BlockStop.INVALID),
            (encode_batch(1, [], last_delta=-1), BlockStop.INVALID),
            (encode_batch(2**63 - 1, [b""]), BlockStop.INVALID),
            (b"\xff" * 8 + encode_batch(1, [b""])[8:], BlockStop.INVALID),
        ],
    )
    def test_batches_that_python_handles(self, batch, stop):
        """The block ends before such a batch and says why."""
        data = plain_batch(0, [b"a"]) + batch
        block = read_block(data, 0, len(data), values_only=True)
        assert ([b"a"], len(data) - len(batch), 1, stop, 0, 0, -1) == block

    def test_transactional_batches_on_request(self):
        """A reader that knows of no aborted transaction takes them as they come."""
        batch = encode_batch(0, [encode_record(0, b"a")], attributes=0x10)
        assert [b"a"] == read_block(
            batch, 0, len(batch), values_only=True, transactional=True
        ).items

    def test_arguments_are_bounded(self):
        """Positions outside the data and impossible block sizes are refused."""
        for position, end, max_records, record_position in [
            (-1, 10, 1, 0),
            (0, 71, 1, 0),
            (5, 4, 1, 0),
            (0, 70, 0, 0),
            (0, 70, 2**21, 0),
            (0, 70, 1, 71),
            (0, 70, 1, -1),
        ]:
            with pytest.raises(ValueError, match="position"):
                read_block(
                    G1, position, end, max_records=max_records, record_position=record_position
                )
        # A resume position inside the header is damage, not a read of foreign bytes.
        assert BlockStop.INVALID == read_block(G1, 0, 70, record_position=60, record_index=0).stop


class Serving(BlockIterator):
    def __init__(self, *blocks):
        self.blocks = list(blocks)

    def _next_block(self):
        block = self.blocks.pop(0) if self.blocks else None
        if isinstance(block, Exception):
            raise block
        return block


class TestBlockIterator:
    def test_serves_blocks_in_order(self):
        """Empty blocks are passed over; None ends the iteration, and keeps ending it."""
        iterator = Serving([1, 2], [], [3])
        assert iter(iterator) is iterator
        assert [1, 2, 3] == list(iterator)
        assert [] == list(iterator)

    def test_index_counts_items_served(self):
        """The subclass can tell where in the block the reader stands."""
        iterator = Serving([1, 2], [3])
        assert (0, None) == (iterator._index, iterator._block)
        next(iterator)
        assert (1, [1, 2]) == (iterator._index, iterator._block)
        next(iterator)
        next(iterator)
        assert (1, [3]) == (iterator._index, iterator._block)

    def test_errors_pass_through(self):
        """An error ends nothing: the next call asks for the next block."""
        iterator = Serving([1], OSError(5, "no"), [2])
        assert 1 == next(iterator)
        with pytest.raises(OSError, match="no"):
            next(iterator)
        assert [2] == list(iterator)

    def test_wrong_block_type(self):
        """A tuple is a mistake of the subclass, told as such."""
        with pytest.raises(TypeError, match="_next_block"):
            next(Serving((1,)))
        with pytest.raises(AttributeError):
            next(BlockIterator())

    def test_a_block_may_shrink_under_the_iterator(self):
        """A list that its owner empties is an error, not a crash."""
        block = [1, 2, 3]
        iterator = Serving(block)
        next(iterator)
        block.clear()
        with pytest.raises(IndexError):
            next(iterator)

    def test_can_be_subscripted_and_collected(self):
        """It works in annotations, and a cycle through an iterator is found by the collector."""
        assert BlockIterator[Record].__origin__ is BlockIterator

        class Watched(Serving):
            alive = 0

            def __init__(self):
                super().__init__([self])
                Watched.alive += 1

            def __del__(self):
                Watched.alive -= 1

        next(Watched())
        gc.collect()
        assert 0 == Watched.alive


class TestLeaks:
    def test_reading_leaves_no_reference(self):
        """Reference counts of shared objects and the number of blocks are the same afterwards."""
        data = G2 * 200
        broken = bytearray(data)
        broken[-1] = 9

        def read():
            for _ in range(25):
                read_block(data, 0, len(data), start_offset=10)
                read_block(broken, 0, len(data), verify_crc=False)
                read_block(data, 0, len(data), values_only=True, max_records=3)
                [
                    repr(r)
                    for r in fill_records(G2[61:], base_offset=0, base_timestamp=0, record_count=4)
                ]
                list(Serving(read_block(data, 0, len(data)).items))

        read()
        gc.collect()
        before = (sys.getallocatedblocks(), sys.getrefcount(()), sys.getrefcount(Record))
        read()
        gc.collect()
        after = (sys.getallocatedblocks(), sys.getrefcount(()), sys.getrefcount(Record))
        assert [True] * 3 == [abs(b - a) < 50 for a, b in zip(before, after, strict=True)]
