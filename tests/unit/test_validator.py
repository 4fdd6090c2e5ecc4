from __future__ import annotations

import struct
import zlib

import pytest

from logstore._native import PatchedBatch, crc32c, scan_batches
from logstore.compression import CompressionType, compress
from logstore.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    OffsetsOutOfOrderError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
)
from logstore.record import (
    ControlRecordType,
    EndTransactionMarker,
    RecordBatch,
    TimestampType,
    empty_batch,
    encode_batch,
    end_transaction_marker,
    iterate_batches,
)
from logstore.validator import AppendOrigin, LogAppendInfo, LogValidator, analyze

NONE, GZIP, SNAPPY, LZ4, ZSTD = CompressionType
CLIENT, COORDINATOR = AppendOrigin.CLIENT, AppendOrigin.COORDINATOR
RAFT_LEADER, REPLICATION = AppendOrigin.RAFT_LEADER, AppendOrigin.REPLICATION
CREATE_TIME, LOG_APPEND_TIME = TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME

NOW = 1_700_000_000_000
ROWS = [
    (None, NOW - 5, b"a", b"1", ()),
    (None, NOW, None, None, (("h", b"x"),)),
    (None, -1, b"", b"", ()),
]
VALID_FROM = {"max_message_bytes": 1 << 20, "leader_epoch": 0}


def analyzed(data, origin=CLIENT, *, assign_offsets=True, **settings):
    return analyze(data, origin=origin, assign_offsets=assign_offsets, **(VALID_FROM | settings))


def validated(data, next_offset=0, *, origin=CLIENT, **settings):
    """The result of a leader's analysis and validation, for a topic that keeps the codec."""
    info = analyzed(data, origin, leader_epoch=settings.get("leader_epoch", 0))
    fields = {
        "now_ms": NOW,
        "source_compression": info.source_compression,
        "target_compression": info.source_compression,
    }
    validator = LogValidator(origin=origin, **(fields | settings))
    with_info = validator.validate_messages_and_assign_offsets(data, next_offset, info)
    without = validator.validate_messages_and_assign_offsets(data, next_offset)
    assert bytes(with_info.records) == bytes(without.records)
    assert with_info[1:-1] == without[1:-1]
    with_info = with_info._replace(records=bytes(with_info.records))
    batches = scan_batches(with_info.records).batches  # Verifies CRCs.
    for name in set(batches.dtype.names) - {"crc_ok"}:
        assert batches[name].tolist() == with_info.batches[name].tolist()
    return with_info


def rows_of(result):
    return [
        (record.offset, record.timestamp, record.key, record.value, record.headers)
        for batch in iterate_batches(result.records)
        for record in batch.records()
    ]


def with_field(batch, at, form, value):
    """The batch with another header field and a right CRC."""
    changed = bytearray(batch)
    struct.pack_into(form, changed, at, value)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def legacy(offset, value, *, key=None, magic=1, timestamp=NOW, attributes=0):
    body = struct.pack(">bB", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    for item in (key, value):
        body += struct.pack(">i", -1 if item is None else len(item)) + (item or b"")
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


class TestAnalyze:
    @pytest.mark.parametrize("origin", AppendOrigin)
    @pytest.mark.parametrize("assign_offsets", [True, False])
    def test_one_batch(self, origin, assign_offsets):
        """What a producer sends as a rule."""
        batch = encode_batch(ROWS, compression=LZ4, leader_epoch=3)
        info = analyzed(batch, origin, assign_offsets=assign_offsets, leader_epoch=3)
        assert (
            LogAppendInfo(
                first_offset=0,
                last_offset=2,
                last_leader_epoch=3,
                max_timestamp=NOW,
                offset_of_max_timestamp=2,
                source_compression=LZ4,
                valid_bytes=len(batch),
                last_offset_of_first_batch=2,
            )
            == info
        )
        assert 3 == info.message_count
        assert 1 == len(info.batches)

    @pytest.mark.parametrize("data", [b"", b"x", encode_batch(ROWS)[:-1], encode_batch(ROWS)[:20]])
    def test_nothing_complete(self, data):
        """No bytes, or a cut batch: the append has no effect."""
        for origin in (CLIENT, REPLICATION):
            info = analyzed(data, origin, assign_offsets=origin is CLIENT)
            assert (0, -1, -1, 0) == (
                info.valid_bytes,
                info.first_offset,
                info.last_offset,
                info.message_count,
            )

    @pytest.mark.parametrize("tail_bytes", [0, 5, 12, 20, 70])
    def test_several_batches_and_a_cut_one(self, tail_bytes):
        """As a follower gets them: codecs mixed, gaps, and an end that is not whole."""
        batches = [
            encode_batch([(10, 5, None, b"a", ())], leader_epoch=1, compression=GZIP),
            encode_batch([(12, 9, None, b"b", ()), (13, 2, None, b"c", ())], leader_epoch=1),
            encode_batch([(20, 9, None, b"d", ())], leader_epoch=2),
        ]
        cut = encode_batch([(21, 99, None, bytes(100), ())], leader_epoch=2)[:tail_bytes]
        data = b"".join(batches)
        info = analyzed(
            data + cut, REPLICATION, assign_offsets=False, leader_epoch=9, max_message_bytes=None
        )
        assert (10, 20, 2, 9, 13, GZIP, len(data), 10, 11) == (
            info.first_offset,
            info.last_offset,
            info.last_leader_epoch,
            info.max_timestamp,
            info.offset_of_max_timestamp,
            info.source_compression,
            info.valid_bytes,
            info.last_offset_of_first_batch,
            info.message_count,
        )
        positions = [0, len(batches[0]), len(batches[0]) + len(batches[1])]
        assert positions == info.batches["position"].tolist()

    def test_a_follower_leaves_out_batches_of_a_higher_epoch(self):
        """From the first one on; the answer may come from a leader that it does not know yet."""
        batches = [encode_batch([(n, 0, None, None, ())], leader_epoch=n) for n in (1, 2, 3, 2)]
        for epoch, kept in ((0, 0), (1, 1), (2, 2), (3, None)):
            data = b"".join(batches[: 3 if kept is None else 4])
            info = analyzed(data, REPLICATION, assign_offsets=False, leader_epoch=epoch)
            kept = 3 if kept is None else kept  # noqa: PLW2901
            assert len(b"".join(batches[:kept])) == info.valid_bytes
            assert kept == len(info.batches)
            assert (kept or None) == info.last_leader_epoch
        unknown = encode_batch(ROWS)
        assert len(unknown) == analyzed(unknown, REPLICATION, assign_offsets=False).valid_bytes

    @pytest.mark.parametrize(
        ("data", "origin", "settings", "error"),
        [
            (encode_batch(ROWS, base_offset=1), CLIENT, {}, InvalidRecordError),
            (encode_batch(ROWS, leader_epoch=2), RAFT_LEADER, {}, InvalidRecordError),
            (encode_batch(ROWS), CLIENT, {"max_message_bytes": 80}, RecordTooLargeError),
            (encode_batch(ROWS)[:-1] + b"x", CLIENT, {}, CorruptRecordError),
            (b"\0" * 20, CLIENT, {}, CorruptRecordError),
            (
                with_field(encode_batch(ROWS), 21, ">h", 5),
                CLIENT,
                {},
                UnsupportedCompressionTypeError,
            ),
        ],
        ids=["base", "epoch", "size", "crc", "length", "codec"],
    )
    def test_refusals(self, data, origin, settings, error):
        """Alone, behind a good batch, and on the path that assigns nothing."""
        for assign_offsets in (True, False):
            with pytest.raises(error):
                analyzed(data, origin, assign_offsets=assign_offsets, **settings)
        good = encode_batch(ROWS[:1])
        with pytest.raises(error):
            analyzed(good + data, origin, assign_offsets=True, **settings)

    def test_offsets_must_increase_where_none_are_assigned(self):
        """Last offsets decide; a leader does not care."""
        data = encode_batch([(5, 0, None, None, ())]) + encode_batch([(5, 0, None, None, ())])
        with pytest.raises(OffsetsOutOfOrderError):
            analyzed(data, REPLICATION, assign_offsets=False)
        assert 5 == analyzed(data, COORDINATOR).last_offset

    def test_damage_behind_a_rule_is_not_reached(self):
        """The first problem in the order of the bytes is the one that is told."""
        damaged = encode_batch(ROWS)[:-1] + b"x"
        with pytest.raises(InvalidRecordError):
            analyzed(encode_batch(ROWS, base_offset=1) + damaged)
        with pytest.raises(CorruptRecordError):
            analyzed(damaged + encode_batch(ROWS, base_offset=1))

    def test_old_formats(self):
        """Their first offset is not known, and they have no epoch."""
        data = legacy(3, b"a") + legacy(4, b"b", timestamp=NOW + 1)
        info = analyzed(data)
        assert (-1, 4, None, NOW + 1, 4, 3, 3) == (
            info.first_offset,
            info.last_offset,
            info.last_leader_epoch,
            info.max_timestamp,
            info.offset_of_max_timestamp,
            info.last_offset_of_first_batch,
            info.first_or_last_offset_of_first_batch,
        )
        assert 0 == info.message_count
        assert info.batches is None

    def test_broken_records_are_left_to_the_validator(self):
        """The analysis does not look inside batches."""
        batch = with_field(encode_batch(ROWS), 57, ">i", 4)
        assert len(batch) == analyzed(batch).valid_bytes


class TestInPlace:
    @pytest.mark.parametrize("codec", CompressionType)
    def test_only_offset_and_epoch_change(self, codec):
        """They are outside the CRC; every other byte is the producer's."""
        batch = encode_batch(
            ROWS, compression=codec, producer_id=7, producer_epoch=1, base_sequence=4
        )
        result = validated(batch, 100, leader_epoch=5)
        expected = struct.pack(">q", 100) + batch[8:12] + struct.pack(">i", 5) + batch[16:]
        assert expected == bytes(result.records)
        assert (103, NOW, NOW, False, 0) == result[1:6]
        assert [(100 + i, *row[1:]) for i, row in enumerate(ROWS)] == rows_of(result)

    @pytest.mark.parametrize("codec", CompressionType)
    def test_the_callers_bytes_stay(self, codec):
        """A batch may be appended twice."""
        batch = bytearray(encode_batch(ROWS, compression=codec))
        before = bytes(batch)
        validated(batch, 9, timestamp_type=LOG_APPEND_TIME)
        assert before == batch

    @pytest.mark.parametrize("codec", CompressionType)
    def test_log_append_time_is_stamped(self, codec):
        """Readers see it for every record; deltas stay."""
        batch = encode_batch(ROWS, compression=codec)
        result = validated(batch, 0, timestamp_type=LOG_APPEND_TIME, now_ms=NOW + 77)
        assert NOW + 77 == result.max_timestamp
        assert [NOW + 77] * 3 == [row[1] for row in rows_of(result)]
        assert bytes(batch[61:]) == bytes(result.records[61:])

    @pytest.mark.parametrize("codec", CompressionType)
    def test_a_wrong_max_timestamp_is_mended(self, codec):
        """The maximum of the records counts, not what the producer says."""
        batch = with_field(encode_batch(ROWS, compression=codec), 35, ">q", 12345)
        result = validated(batch)
        assert NOW == result.max_timestamp == RecordBatch(result.records).max_timestamp
        RecordBatch(result.records).ensure_valid()

    @pytest.mark.parametrize("timestamp_type", [CREATE_TIME, LOG_APPEND_TIME])
    @pytest.mark.parametrize("value_bytes", [10, 100_000])
    def test_large_batches_are_not_copied(self, timestamp_type, value_bytes):
        """Only their header is made anew; the bytes to write are the same."""
        batch = encode_batch([(None, NOW - 1, None, bytes(value_bytes), ())])
        info = analyzed(batch)
        result = LogValidator(
            now_ms=NOW,
            source_compression=NONE,
            target_compression=NONE,
            timestamp_type=timestamp_type,
            leader_epoch=4,
        ).validate_messages_and_assign_offsets(batch, 9, info)
        assert isinstance(result.records, PatchedBatch if value_bytes > 10 else bytearray)
        assert len(batch) == len(result.records)
        expected = encode_batch(
            [(None, NOW - 1, None, bytes(value_bytes), ())],
            base_offset=9,
            leader_epoch=4,
            timestamp_type=timestamp_type,
            log_append_time=NOW,
        )
        assert expected == bytes(result.records)

    def test_a_delete_horizon_stays(self):
        """Like every other bit."""
        batch = encode_batch(ROWS, delete_horizon=NOW)
        assert NOW == RecordBatch(validated(batch).records).delete_horizon_ms

    def test_a_marker_of_the_coordinator_is_never_compressed(self):
        """Whatever the topic's codec."""
        marker = end_transaction_marker(
            EndTransactionMarker(ControlRecordType.COMMIT, 1),
            timestamp=NOW,
            producer_id=1,
            producer_epoch=0,
        )
        result = validated(marker, 30, origin=COORDINATOR, target_compression=ZSTD)
        assert struct.pack(">q", 30) + marker[8:12] + bytes(4) + marker[16:] == result.records

    def test_an_empty_batch_of_the_coordinator(self):
        """It has no record to give the next offset to."""
        batch = empty_batch(base_offset=0, last_offset=2, max_timestamp=NOW)
        result = validated(batch, 30, origin=COORDINATOR, target_compression=ZSTD)
        assert (30, -1) == (result.next_offset, result.max_timestamp)
        with pytest.raises(InvalidRecordError, match="does not fit log end offset 2"):
            validated(batch, 2, origin=COORDINATOR)


class TestEncodedAgain:
    @pytest.mark.parametrize("source", CompressionType)
    @pytest.mark.parametrize("target", CompressionType)
    @pytest.mark.parametrize("timestamp_type", [CREATE_TIME, LOG_APPEND_TIME])
    def test_the_codec_changes_and_nothing_else(self, source, target, timestamp_type):
        """Producer fields, flags, records and their order stay."""
        fields = {
            "producer_id": 7,
            "producer_epoch": 1,
            "base_sequence": 4,
            "is_transactional": True,
        }
        batch = encode_batch(ROWS * 5, compression=source, **fields)
        result = validated(
            batch,
            50,
            target_compression=target,
            timestamp_type=timestamp_type,
            leader_epoch=2,
        )
        is_converted = source is not target
        assert (65, NOW, NOW, is_converted, 15 if is_converted else 0) == result[1:6]
        expected = encode_batch(
            ROWS * 5,
            base_offset=50,
            compression=target,
            timestamp_type=timestamp_type,
            log_append_time=NOW,
            leader_epoch=2,
            **fields,
        )
        assert expected == bytes(result.records)

    @pytest.mark.parametrize(
        "change",
        ["non-minimal", "base timestamp", "horizon", "holes"],
    )
    def test_unusual_encodings_are_made_usual(self, change):
        """What an encoder would not have written is written as it would."""
        rows = [(i, NOW + i, b"k", b"v", ()) for i in range(3)]
        batch = encode_batch(rows)
        origin = CLIENT
        if change == "non-minimal":
            section = batch[61:]
            assert 0x10 == section[0]
            batch = bytearray(batch[:61] + b"\x90\x00" + section[1:])
            struct.pack_into(">i", batch, 8, len(batch) - 12)
            batch = with_field(batch, 57, ">i", 3)
        elif change == "base timestamp":
            batch = with_field(batch, 27, ">q", NOW + 1)
            rows = [(offset, timestamp + 1, *rest) for offset, timestamp, *rest in rows]
        elif change == "horizon":
            batch = encode_batch(rows, delete_horizon=NOW + 10)
        else:
            rows = [(2 * offset, *rest) for offset, *rest in rows]
            batch = encode_batch(rows)
            origin = COORDINATOR
        result = validated(batch, 7, origin=origin, target_compression=GZIP)
        expected = encode_batch(
            [(None, *rest) for _, *rest in rows], base_offset=7, leader_epoch=0, compression=GZIP
        )
        assert expected == bytes(result.records)

    def test_the_level_alone_changes_nothing(self):
        """As in Kafka."""
        batch = encode_batch(ROWS, compression=GZIP, level=1)
        assert not validated(batch, target_level=9).size_maybe_changed

    def test_a_log_append_time_from_outside(self):
        """
        A batch that says so is let through if its time is in bounds.

        In place the flag goes, and the records have their own times again; encoded again, they
        have the batch's. Both as in Kafka.
        """
        batch = encode_batch(ROWS, timestamp_type=LOG_APPEND_TIME, log_append_time=NOW - 1)
        result = validated(batch)
        assert [NOW - 5, NOW, -1] == [row[1] for row in rows_of(result)]
        assert NOW - 1 == result.max_timestamp
        result = validated(batch, target_compression=ZSTD)
        assert [NOW - 1] * 3 == [row[1] for row in rows_of(result)]
        assert CREATE_TIME is RecordBatch(result.records).timestamp_type

    def test_a_timestamp_that_cannot_be_encoded(self):
        """It can be kept, but not written again."""
        batch = with_field(encode_batch([(None, 5, None, b"", ())]), 27, ">q", -7)
        assert -7 == RecordBatch(validated(batch).records).records()[0].timestamp
        with pytest.raises(InvalidTimestampError, match="-7"):
            validated(batch, target_compression=GZIP)

    def test_producer_fields_that_contradict_each_other(self):
        """Only another origin can send them."""
        batch = with_field(encode_batch(ROWS), 43, ">q", 9)
        with pytest.raises(InvalidRecordError, match="producer epoch -1"):
            validated(batch, origin=COORDINATOR, target_compression=GZIP)


class TestLegacy:
    @pytest.mark.parametrize("target", CompressionType)
    @pytest.mark.parametrize("magic", [0, 1])
    @pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4])
    def test_old_formats_become_one_batch(self, target, magic, codec):
        """Of the newest format, with the log's offsets."""
        messages = b"".join(legacy(i, b"v%d" % i, key=b"k", magic=magic) for i in range(3))
        if codec is not NONE:
            if codec is LZ4 and magic == 0:
                stored = bytearray(compress(LZ4, messages))
                stored[6] = 0x1A  # The old wrong header checksum.
            else:
                stored = compress(codec, messages)
            messages = legacy(2, bytes(stored), magic=magic, attributes=codec)
        result = validated(messages, 40, target_compression=target)
        timestamp = NOW if magic else -1
        assert [(40 + i, timestamp, b"k", b"v%d" % i, ()) for i in range(3)] == rows_of(result)
        assert (43, timestamp, NOW, True, 3) == result[1:6]
        (batch,) = iterate_batches(result.records)
        assert target is batch.compression_type

    def test_inner_crcs_are_verified(self):
        """Of messages in a wrapper, whose own CRC covers the compressed form only."""
        inner = bytearray(legacy(0, b"abc"))
        inner[-1] ^= 1
        data = legacy(0, compress(GZIP, inner), attributes=GZIP)
        with pytest.raises(CorruptRecordError, match="inside the wrapper"):
            validated(data)

    def test_magics_inside_and_beside_must_match(self):
        """A wrapper of format 1 holds messages of format 1."""
        data = legacy(0, compress(GZIP, legacy(0, b"a", magic=0)), attributes=GZIP)
        with pytest.raises(InvalidRecordError) as error:
            validated(data)
        assert [0] == [index for index, _ in error.value.record_errors]
        with pytest.raises(InvalidRecordError, match="magic 0 behind a batch with magic 1"):
            validated(legacy(0, b"a") + legacy(1, b"a", magic=0))
        with pytest.raises(InvalidRecordError, match="magic 2 behind a batch with magic 1"):
            validated(legacy(0, b"a") + encode_batch(ROWS))


class TestRefusedBatches:
    @pytest.mark.parametrize(
        ("data", "what"),
        [
            (b"", "without a batch"),
            (encode_batch(ROWS) * 2, "more than one batch"),
            (encode_batch(ROWS) + legacy(0, b""), "more than one batch"),
            (legacy(0, compress(GZIP, legacy(0, b"")), attributes=1) * 2, "more than one batch"),
            (encode_batch(ROWS, last_offset=3), "3 records for 4 offsets"),
            (with_field(encode_batch(ROWS), 23, ">i", -1), "offsets 0 to -1"),
            (with_field(encode_batch(ROWS), 57, ">i", 0), "a record count of 0"),
            (with_field(encode_batch(ROWS), 57, ">i", -1), "a record count of -1"),
            (empty_batch(base_offset=0, last_offset=0), "a record count of 0"),
            (with_field(encode_batch(ROWS), 21, ">h", 0x20), "control records"),
            (with_field(encode_batch(ROWS), 43, ">q", 9), "base sequence -1"),
        ],
    )
    def test_the_batch_as_a_whole(self, data, what):
        """No record is blamed."""
        with pytest.raises(InvalidRecordError, match=what) as error:
            validated(data)
        assert [] == error.value.record_errors

    @pytest.mark.parametrize("codec", CompressionType)
    @pytest.mark.parametrize("target", [NONE, ZSTD])
    def test_broken_records(self, codec, target):
        """Their structure is checked before it is in the log."""
        section = encode_batch(ROWS)[61:-1]
        batch = bytearray(encode_batch(ROWS)[:61] + compress(codec, section))
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        batch = with_field(batch, 21, ">h", codec)
        with pytest.raises(InvalidRecordError) as error:
            validated(batch, target_compression=target)
        assert [] == error.value.record_errors

    def test_offsets_inside_must_increase(self):
        """Kafka would write it, and readers could not use it."""
        section = encode_batch([(0, 0, None, b"", ())])[61:] * 2
        batch = bytearray(encode_batch(ROWS[:2])[:61] + section)
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        with pytest.raises(InvalidRecordError, match="do not increase"):
            validated(with_field(batch, 57, ">i", 2))

    def test_a_bomb(self):
        """A decompressed batch has a bound."""
        batch = encode_batch([(None, NOW, None, bytes(100_000), ())], compression=ZSTD)
        with pytest.raises(CorruptRecordError, match="decompressed_bytes_max"):
            validated(batch, decompressed_bytes_max=10_000)


class TestRefusedRecords:
    @pytest.mark.parametrize("codec", CompressionType)
    @pytest.mark.parametrize("target", [NONE, GZIP])
    def test_null_keys_on_a_compacted_topic(self, codec, target):
        """Each is told by its index; an empty key is a key."""
        batch = encode_batch([*ROWS, ROWS[1]], compression=codec)
        with pytest.raises(InvalidRecordError, match=r"2 records .* without key") as error:
            validated(batch, compacted=True, target_compression=target)
        assert [1, 3] == [index for index, _ in error.value.record_errors]
        assert not isinstance(error.value, InvalidTimestampError)
        keyed = encode_batch([ROWS[0], ROWS[2]], compression=codec)
        assert 2 == validated(keyed, compacted=True, target_compression=target).next_offset

    @pytest.mark.parametrize("codec", CompressionType)
    @pytest.mark.parametrize("target", [NONE, GZIP])
    @pytest.mark.parametrize(
        ("before_ms", "after_ms", "rejected"),
        [(100, 100, []), (99, 100, [0]), (100, 99, [1]), (0, 0, [0, 1]), (2**63 - 1, 99, [1])],
    )
    def test_timestamp_bounds(self, codec, target, before_ms, after_ms, rejected):
        """Both ends are allowed; -1 always; a LogAppendTime topic does not look."""
        rows = [(None, timestamp, b"k", b"", ()) for timestamp in (NOW - 100, NOW + 100, -1, NOW)]
        batch = encode_batch(rows, compression=codec)
        bounds = {
            "timestamp_before_max_ms": before_ms,
            "timestamp_after_max_ms": after_ms,
            "target_compression": target,
        }
        if rejected:
            with pytest.raises(InvalidTimestampError, match="outside") as error:
                validated(batch, **bounds)
            assert rejected == [index for index, _ in error.value.record_errors]
        else:
            assert 4 == validated(batch, **bounds).next_offset
        assert 4 == validated(batch, timestamp_type=LOG_APPEND_TIME, **bounds).next_offset

    def test_a_timestamp_error_names_the_whole(self):
        """INVALID_TIMESTAMP if one record has it, whatever the others have."""
        rows = [(None, NOW, None, b"", ()), (None, 0, b"k", b"", ())]
        with pytest.raises(InvalidTimestampError) as error:
            validated(encode_batch(rows), compacted=True, timestamp_before_max_ms=10)
        assert [0, 1] == [index for index, _ in error.value.record_errors]
        assert 32 == error.value.kafka_error_code

    @pytest.mark.parametrize("codec", [NONE, LZ4])
    def test_log_append_times_of_producers(self, codec):
        """Refused on a LogAppendTime topic, and where they have no time."""
        for when, topic in ((NOW, LOG_APPEND_TIME), (-1, CREATE_TIME), (-1, LOG_APPEND_TIME)):
            batch = encode_batch(
                ROWS, compression=codec, timestamp_type=LOG_APPEND_TIME, log_append_time=when
            )
            with pytest.raises(InvalidTimestampError, match="only the log may set") as error:
                validated(batch, timestamp_type=topic)
            assert [0, 1, 2] == [index for index, _ in error.value.record_errors]

    def test_the_message_shows_three(self):
        """However many there are."""
        with pytest.raises(InvalidRecordError) as error:
            validated(encode_batch([ROWS[1]] * 20), compacted=True)
        assert 20 == len(error.value.record_errors)
        assert 3 == str(error.value).count("without key")


class TestScanOne:
    def test_it_finds_what_the_general_scan_finds(self):
        """For one batch alone; anything else is None."""
        from logstore._native import scan_checked, scan_one

        plain = encode_batch(ROWS, leader_epoch=4, producer_id=3, producer_epoch=2, base_sequence=1)
        packed = encode_batch(ROWS, compression=ZSTD)
        for batch in (plain, packed, memoryview(plain), bytearray(packed)):
            scan, checks = scan_checked(batch)
            found = scan_one(batch, records=True)
            assert scan.batches.tobytes() == bytes(found.header)
            assert scan.batches.item() == tuple(found.row)
            assert found.row == scan_one(batch, records=False).row
            assert scan_one(batch, records=False).check is None
            if found.check is not None:
                assert checks.item()[:5] == found.check[:5]
                assert found.check.sequential
                assert found.check.increasing
        assert scan_one(packed, records=True).check is None
        for broken in (b"", plain[:-1], plain + b"x", plain + plain, plain[:-1] + b"x", plain[:60]):
            assert scan_one(broken, records=True) is None
            assert scan_one(broken, records=False) is None
