"""The bytes that Kafka's own serializers made: the kernels read and write them exactly."""

from __future__ import annotations

import kernel_reference as reference
import numpy as np
import pytest
from kernel_reference import Row

from logstore import _native

G1 = bytes.fromhex(
    "00000000000000000000003affffffff02a31103050000000000000000000000000001000000000000000"
    "1ffffffffffffffffffffffffffff00000001100000000261023100"
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
G5_COMMIT = bytes.fromhex(
    "00000000000000140000004200000003028054f1ca00300000000000000000000007d000000000000007d0"
    "00000000000004d20005ffffffff000000012000000008000000010c00000000000900"
)
G6_LEADER_CHANGE = bytes.fromhex(
    "0000000000000000000000540000000402e9d5f9070020000000000000000000000bb80000000000000bb8"
    "ffffffffffffffffffffffffffff0000000144000000080000000230000000000001030000000100000000"
    "020002000000010000"
    "00"
)
G6_SNAPSHOT_HEADER = bytes.fromhex(
    "0000000000000000000000470000000402b1133e210020000000000000000000000bb80000000000000bb8"
    "ffffffffffffffffffffffffffff000000012a00000008000000031600000000000000000bb70000"
)
G6_SNAPSHOT_FOOTER = bytes.fromhex(
    "00000000000000000000003f0000000402c500fb210020000000000000000000000bb80000000000000bb8"
    "ffffffffffffffffffffffffffff000000011a00000008000000040600000000"
)
G7_EMPTY = bytes.fromhex(
    "000000000000000a0000003100000003025e7dccbf000000000003ffffffffffffffff00000000000003ed"
    "00000000000004d200050000000700000000"
)
G8_HORIZON = bytes.fromhex(
    "000000000000000a000000570000000302aab83813004000000003000000000000ea6000000000000003ed"
    "00000000000004d2000500000007000000031400e599070201047632002200e9990704046b330104026802"
    "78026e011000e7990706000000"
)
ALL = {
    "G1": G1,
    "G2": G2,
    "G4": G4,
    "G5": G5_COMMIT,
    "G6 leader change": G6_LEADER_CHANGE,
    "G6 snapshot header": G6_SNAPSHOT_HEADER,
    "G6 snapshot footer": G6_SNAPSHOT_FOOTER,
    "G7": G7_EMPTY,
    "G8": G8_HORIZON,
}
G3_CRC = {1: 0x84660648, 2: 0xB8B1FCBD, 3: 0x45AE9106, 4: 0x7D82473C}
G3_SECTIONS = {
    1: "1f8b08000000000000ff1361606060c936642933641060e06262642933629063606361c936666461ca60aa"
    "60ca63e461e060032a0300b8fad20e2b000000",
    2: "82534e415050590000000001000000010000002d2ba814000000046b310476310010000a0201047632001e"
    "000604046b33010402680278026e010c000806000000",
    3: "04224d186040822b00008014000000046b310476310010000a0201047632001e000604046b330104026802"
    "78026e010c00080600000000000000",
    4: "28b52ffd005858010014000000046b310476310010000a0201047632001e000604046b3301040268027802"
    "6e010c000806000000010000",
}
G2_ROWS = [
    Row(1000, b"k1", b"v1"),
    Row(1005, None, b"v2"),
    Row(1003, b"k3", None, ((b"h", b"x"), (b"n", None))),
    Row(1004, b"", b""),
]


def columns_of(rows: list[Row]) -> _native.Columns:
    """Columns of ``rows`` with int64 offsets and both bitmaps."""

    def joined(items):
        offsets = np.cumsum([0, *(len(item or b"") for item in items)], dtype=np.int64)
        validity = np.packbits([item is not None for item in items], bitorder="little")
        return b"".join(item or b"" for item in items), offsets, validity

    values, value_offsets, value_validity = joined([row.value for row in rows])
    keys, key_offsets, key_validity = joined([row.key for row in rows])
    headers, header_offsets, _ = joined(
        [reference.encode_headers(row.headers) if row.headers else b"" for row in rows]
    )
    return _native.Columns(
        values,
        value_offsets,
        value_validity=value_validity,
        keys=keys,
        key_offsets=key_offsets,
        key_validity=key_validity,
        timestamps=np.array([row.timestamp for row in rows], np.int64),
        headers=headers,
        header_offsets=header_offsets,
    )


def test_crc32c_check_value():
    """The CRC of the digits 1 to 9, which every CRC catalogue lists."""
    assert 0xE3069283 == _native.crc32c(b"123456789")


@pytest.mark.parametrize("name", ALL)
def test_golden_batch_is_valid(name):
    """Each is one whole batch with a correct CRC and well-formed records."""
    batch = ALL[name]
    assert (len(batch), _native.SCAN_STOP_END) == _native.scan_batches(batch, records=True)[::2]


def test_header_fields_of_g2():
    """Every field of a header is read from its place."""
    header = _native.scan_batches(G2, position=1000).batches[0]
    expected = {
        "position": 1000,
        "base_offset": 10,
        "last_offset": 13,
        "base_timestamp": 1000,
        "max_timestamp": 1005,
        "producer_id": 1234,
        "size_bytes": 104,
        "leader_epoch": 3,
        "base_sequence": 7,
        "record_count": 4,
        "crc": 0xEF37D5C3,
        "attributes": 0,
        "producer_epoch": 5,
        "magic": 2,
        "crc_ok": 1,
        "reserved": 0,
    }
    assert expected == {name: header[name].item() for name in header.dtype.names}


def test_g1_is_encoded():
    """A record with key and value, no producer, no epoch."""
    columns = _native.Columns(
        b"1",
        np.array([0, 1], np.int32),
        keys=b"a",
        key_offsets=np.array([0, 1], np.int32),
        timestamp=1,
    )
    assert (G1, 1, 1, 1) == _native.encode_batch(columns, 0, base_offset=0, leader_epoch=-1)


def test_g2_is_encoded():
    """Null and empty keys and values, headers, producer fields."""
    producer = {"producer_id": 1234, "producer_epoch": 5, "base_sequence": 7}
    encoded = _native.encode_batch(
        columns_of(G2_ROWS), 0, base_offset=10, leader_epoch=3, **producer
    )
    assert (G2, 4, 1005, 1000) == encoded


def test_reference_encodes_g2():
    """The reference of the other tests is itself Kafka's format."""
    producer = {"producer_id": 1234, "producer_epoch": 5, "base_sequence": 7}
    assert G2 == reference.encode_batch(G2_ROWS, base_offset=10, leader_epoch=3, **producer)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_g3_is_sealed(codec):
    """A compressed section gets the header that Kafka gives it, and its batch scans."""
    section = bytes.fromhex(G3_SECTIONS[codec])
    batch = _native.seal_batch(
        section,
        base_timestamp=1000,
        max_timestamp=1005,
        last_offset_delta=3,
        record_count=4,
        base_offset=10,
        leader_epoch=3,
        producer_id=1234,
        producer_epoch=5,
        base_sequence=7,
        attributes=0x10 | codec,
    )
    assert len(section) + 61 == len(batch)
    assert G3_CRC[codec] == int.from_bytes(batch[17:21])
    assert _native.SCAN_STOP_END == _native.scan_batches(batch, records=True).stop


def test_g4_is_encoded():
    """LogAppendTime sets the type bit and the max timestamp, and keeps the record's own delta."""
    columns = columns_of([Row(100, b"a", b"b")])
    encoded = _native.encode_batch(columns, 0, base_offset=5, leader_epoch=2, log_append_time=9999)
    assert (G4, 1, 9999, 100) == encoded


def test_g5_is_encoded():
    """A commit marker is a transactional control batch of one record."""
    columns = columns_of([Row(2000, bytes.fromhex("00000001"), bytes.fromhex("000000000009"))])
    producer = {"producer_id": 1234, "producer_epoch": 5}
    encoded = _native.encode_batch(
        columns, 0, base_offset=20, leader_epoch=3, attributes=0x30, **producer
    )
    assert G5_COMMIT == encoded.data


def test_g6_is_encoded():
    """A leader change is a control batch without producer."""
    value = G6_LEADER_CHANGE[-25:-1]
    columns = columns_of([Row(3000, bytes.fromhex("00000002"), value)])
    encoded = _native.encode_batch(columns, 0, base_offset=0, leader_epoch=4, attributes=0x20)
    assert G6_LEADER_CHANGE == encoded.data


def test_g7_is_sealed():
    """The batch that compaction leaves of a producer's last sequence."""
    batch = _native.seal_batch(
        b"",
        base_timestamp=-1,
        max_timestamp=1005,
        last_offset_delta=3,
        record_count=0,
        base_offset=10,
        leader_epoch=3,
        producer_id=1234,
        producer_epoch=5,
        base_sequence=7,
    )
    assert G7_EMPTY == batch


def test_g8_is_decoded():
    """Deltas to a delete horizon give back the records' own timestamps."""
    columns = _native.decode_records(
        G8_HORIZON[61:], base_offset=10, base_timestamp=60000, record_count=3
    )
    assert [1005, 1003, 1004] == columns.timestamps.tolist()
    assert [11, 12, 13] == columns.offsets.tolist()
    check = _native.check_records(G8_HORIZON[61:], 3, 60000)
    assert (1005, 1003, False, True) == (
        check.max_timestamp,
        check.min_timestamp,
        check.sequential,
        check.increasing,
    )


def test_delete_horizon_is_encoded():
    """A horizon replaces the base timestamp and sets bit 6."""
    encoded = _native.encode_batch(
        columns_of([Row(1005, None, b"v2")]), 0, base_offset=11, delete_horizon=60000
    )
    header = _native.scan_batches(encoded.data).batches[0]
    assert (60000, 0x40, 60000) == (
        header["base_timestamp"],
        header["attributes"],
        encoded.base_timestamp,
    )
    assert bytes.fromhex("1400e599070001047632") == encoded.data[61:71]


def test_g10_index_entries():
    """Entries of both indexes, and their search."""
    offset_index = bytes.fromhex("0000000a000010680000003200002328")
    time_index = bytes.fromhex("0000018bcfe568000000000a0000018bcfe569f400000032")
    address = _native.address_of(offset_index)
    assert [-1, 0, 0, 1, 1] == [
        _native.offset_index_lookup(address, 2, relative) for relative in (9, 10, 49, 50, 2**32 - 1)
    ]
    assert [0, 0, 1, 1, -1] == [
        _native.offset_index_upper_bound(address, 2, position)
        for position in (0, 4200, 4201, 9000, 9001)
    ]
    address = _native.address_of(time_index)
    assert [-1, 0, 0, 1] == [
        _native.time_index_lookup(address, 2, timestamp)
        for timestamp in (1699999999999, 1700000000000, 1700000000499, 1700000000500)
    ]
    assert [-1, 0, 1] == [
        _native.time_index_lookup_offset(address, 2, relative) for relative in (9, 49, 50)
    ]


def test_g10_is_made():
    """Batches 110 at 4200 and 150 at 9000 become the two golden entries of each index."""
    batches = np.zeros(3, _native.BATCH_DTYPE)
    batches["position"] = [0, 4200, 9000]
    batches["size_bytes"] = [4200, 4800, 100]
    batches["base_offset"] = batches["last_offset"] = [101, 110, 150]
    batches["max_timestamp"] = [-1, 1700000000000, 1700000000500]
    state = _native.IndexState(100, 4096)
    assert (
        bytes.fromhex("0000000a000010680000003200002328"),
        bytes.fromhex("0000018bcfe568000000000a0000018bcfe569f400000032"),
    ) == _native.index_batches(batches, state)
