"""Codecs and batches: what goes in comes out, and damage is noticed or does not matter."""

from __future__ import annotations

import contextlib
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore._native import crc32c
from logstore.compression import LEVELS, CompressionType, compress, decompress
from logstore.errors import CorruptRecordError, LogStoreError
from logstore.record import (
    RecordBatch,
    TimestampType,
    encode_batch,
    iterate_batches,
    logical_sha256,
    parse_control_record,
)
from logstore.validator import AppendOrigin, LogValidator, analyze

CODECS = list(CompressionType)
PACKED = CODECS[1:]
NOW = 1_700_000_000_000

# Pieces that repeat (long matches), that do not, and that end on block boundaries.
PIECES = [
    b"",
    b"a",
    b"abc",
    bytes(200),
    b"xy" * 300,
    bytes(range(256)),
    b"q" * 32_768,
    b"z" * 65_536,
]
plains = st.lists(st.sampled_from(PIECES), max_size=4).map(b"".join)

items = st.sampled_from([None, b"", b"a", b"key", b"v" * 70])
timestamps = st.sampled_from([-1, 0, NOW - 3, NOW, NOW + 2])
headers = st.lists(st.tuples(st.sampled_from(["", "h", "ä"]), items), max_size=2).map(tuple)
rows = st.lists(st.tuples(st.none(), timestamps, items, items, headers), min_size=1, max_size=12)


def fields(batch):
    return [
        (record.offset, record.timestamp, record.key, record.value, record.headers)
        for record in batch.records()
    ]


def changes(max_size=3):
    """Positions, as fractions of the length, and what is xored in there."""
    change = st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from([1, 2, 16, 128, 255]))
    return st.lists(change, min_size=1, max_size=max_size)


def changed(data, xors, start=0):
    data = bytearray(data)
    for fraction, bits in xors:
        data[start + int(fraction * (len(data) - start))] ^= bits
    return data


class TestCodecs:
    @pytest.mark.parametrize("codec", CODECS)
    @given(plain=plains, data=st.data())
    def test_decompress_undoes_compress(self, codec, plain, data):
        """At every level, with exactly as much room as it needs."""
        level = None
        if codec in LEVELS:
            low, high = LEVELS[codec]
            level = data.draw(st.sampled_from([None, low, 1, high]))
        stored = compress(codec, plain, level)
        assert plain == decompress(codec, stored, bytes_max=len(plain))
        if plain:
            with pytest.raises(CorruptRecordError, match="beyond the bound"):
                decompress(codec, stored, bytes_max=len(plain) - 1)

    @pytest.mark.parametrize("codec", PACKED)
    @given(
        plain=plains,
        xors=changes(),
        end=st.floats(0, 1),
        tail=st.sampled_from([b"", b"\0", b"xyz"]),
    )
    def test_damage_gives_bounded_bytes_or_an_error(self, codec, plain, xors, end, tail):
        """No crash, no other error, no more than asked for."""
        stored = changed(compress(codec, plain), xors)
        stored = stored[: int(end * len(stored)) + 1] + tail
        with contextlib.suppress(CorruptRecordError):
            assert len(decompress(codec, stored, bytes_max=300_000)) <= 300_000

    @pytest.mark.parametrize("codec", PACKED)
    @given(data=st.binary(max_size=40))
    def test_any_bytes(self, codec, data):
        """The same for what never was compressed."""
        prefix = compress(codec, b"")[: len(data) % 16]
        for stored in (data, prefix + data):
            with contextlib.suppress(CorruptRecordError):
                decompress(codec, stored, bytes_max=10_000, magic=len(data) % 3)


class TestBatches:
    @given(
        rows=rows,
        codec=st.sampled_from(CODECS),
        base_offset=st.sampled_from([0, 5, 2**40]),
        gaps=st.lists(st.sampled_from([0, 0, 0, 1, 9]), min_size=12, max_size=12),
        horizon=st.sampled_from([-1, NOW]),
    )
    def test_records_come_back(self, rows, codec, base_offset, gaps, horizon):
        """With gaps and without, in every codec."""
        offset = base_offset
        expected = []
        for (_, *rest), gap in zip(rows, gaps, strict=False):
            offset += gap
            expected.append((offset, *rest))
            offset += 1
        batch = encode_batch(
            expected, base_offset=base_offset, compression=codec, delete_horizon=horizon
        )
        (found,) = iterate_batches(batch)
        found.ensure_valid()
        assert expected == fields(found)
        assert expected[-1][0] == found.last_offset
        assert max(row[1] for row in expected) == found.max_timestamp

    @given(rows=rows, codec=st.sampled_from(CODECS), xors=changes())
    def test_damage_inside_the_crc_is_found(self, rows, codec, xors):
        """From byte 17 on; what is before is judged by its place in the log."""
        batch = encode_batch(rows, compression=codec)
        damaged = changed(batch, xors, start=17)
        assert RecordBatch(damaged).is_valid == (damaged == batch)

    @given(rows=rows, codec=st.sampled_from(CODECS), xors=changes())
    def test_damage_outside_the_crc_leaves_the_records(self, rows, codec, xors):
        """Offsets may differ then, and the epoch; never a key, value, header or timestamp."""
        batch = encode_batch(rows, compression=codec)
        damaged = changed(batch[:17], xors) + batch[17:]
        with contextlib.suppress(CorruptRecordError):
            for found in iterate_batches(damaged):
                found.ensure_valid()
                assert [row[1:] for row in rows] == [row[1:] for row in fields(found)]

    @given(
        rows=rows, codec=st.sampled_from(CODECS), xors=changes(), start=st.sampled_from([21, 61])
    )
    def test_damage_under_a_right_crc_is_an_error_or_records(self, rows, codec, xors, start):
        """What a broken producer sends: no crash, and no error of another kind."""
        damaged = changed(encode_batch(rows, compression=codec), xors, start=start)
        struct.pack_into(">I", damaged, 17, crc32c(bytes(damaged[21:])))
        logical_sha256(damaged, bytes_max=100_000)
        with contextlib.suppress(LogStoreError):
            batch = RecordBatch(damaged)
            batch.ensure_valid()
            records = batch.records(bytes_max=100_000)
            assert batch.record_count == len(records)
            for record in records:
                with contextlib.suppress(LogStoreError):
                    parse_control_record(record.key, record.value)

    @given(
        data=st.lists(
            st.sampled_from(
                [
                    b"\0" * 7,
                    b"\0\0\0\x0e",
                    b"\0\0\0\x40",
                    b"\x01",
                    b"\x02",
                    b"\xff" * 4,
                    bytes(30),
                    b"\0\0\0\x01",
                ]
            ),
            max_size=12,
        ).map(b"".join)
    )
    def test_any_bytes(self, data):
        """Iteration, old formats and the analysis of an append."""
        with contextlib.suppress(LogStoreError):
            for batch in iterate_batches(data):
                batch.records(bytes_max=1000)
        for origin in AppendOrigin:
            with contextlib.suppress(LogStoreError):
                info = analyze(
                    data,
                    origin=origin,
                    leader_epoch=0,
                    max_message_bytes=1000,
                    assign_offsets=origin is AppendOrigin.CLIENT,
                )
                assert 0 <= info.valid_bytes <= len(data)


def legacy_entry(offset, value, key, *, magic, attributes=0):
    body = struct.pack(">bB", magic, attributes) + (struct.pack(">q", NOW) if magic else b"")
    for item in (key, value):
        body += struct.pack(">i", -1 if item is None else len(item)) + (item or b"")
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


class TestLegacy:
    @given(
        pairs=st.lists(st.tuples(items, items), min_size=1, max_size=5),
        magic=st.sampled_from([0, 1]),
        codec=st.sampled_from([1, 2]),
        xors=changes(),
        fix_crc=st.booleans(),
    )
    def test_wrappers(self, pairs, magic, codec, xors, fix_crc):
        """What is inside comes back; damage is found, or an error of the known kinds."""
        inner = b"".join(
            legacy_entry(index, value, key, magic=magic) for index, (key, value) in enumerate(pairs)
        )
        data = legacy_entry(
            len(pairs) - 1,
            compress(CompressionType(codec), inner),
            None,
            magic=magic,
            attributes=codec,
        )
        (entry,) = iterate_batches(data)
        entry.ensure_valid()
        assert pairs == [(record.key, record.value) for record in entry.records()]

        damaged = changed(data, xors, start=17)
        if fix_crc:
            struct.pack_into(">I", damaged, 12, zlib.crc32(damaged[16:]))
        with contextlib.suppress(LogStoreError):
            (entry,) = iterate_batches(damaged)
            assert entry.is_valid == (fix_crc or damaged == data)
            entry.records(bytes_max=10_000)


class TestValidator:
    @given(
        rows=rows,
        source=st.sampled_from(CODECS),
        target=st.sampled_from(CODECS),
        topic=st.sampled_from([TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME]),
        origin=st.sampled_from([AppendOrigin.CLIENT, AppendOrigin.COORDINATOR]),
        next_offset=st.sampled_from([0, 7, 2**40]),
        xors=st.one_of(st.none(), changes()),
    )
    def test_what_is_written_can_be_read(
        self, rows, source, target, topic, origin, next_offset, xors
    ):
        """The producer's records with the log's offsets; or an error, and nothing is written."""
        data = encode_batch(rows, compression=source)
        if xors is not None:
            data = changed(data, xors, start=21)
            struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
        try:
            info = analyze(
                data, origin=origin, leader_epoch=3, max_message_bytes=10**6, assign_offsets=True
            )
            result = LogValidator(
                now_ms=NOW,
                source_compression=info.source_compression,
                target_compression=target,
                timestamp_type=topic,
                leader_epoch=3,
                origin=origin,
                decompressed_bytes_max=10**6,
            ).validate_messages_and_assign_offsets(data, next_offset, info)
        except LogStoreError:
            assert xors is not None
            return
        batches = list(iterate_batches(bytes(result.records)))
        found = [row for batch in batches for row in fields(batch)]
        for batch in batches:
            batch.ensure_valid()
            assert 3 == batch.leader_epoch
        if origin is AppendOrigin.CLIENT:
            assert list(range(next_offset, result.next_offset)) == [row[0] for row in found]
        if xors is None:
            assert [row[2:] for row in rows] == [row[2:] for row in found]
            if topic is TimestampType.CREATE_TIME:
                assert [row[1] for row in rows] == [row[1] for row in found]
            else:
                assert {NOW} == {row[1] for row in found}
