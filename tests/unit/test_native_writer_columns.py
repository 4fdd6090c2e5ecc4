"""The native writer: columns and lists of records, and where a segment ends."""

from __future__ import annotations

import os

import numpy as np
import pytest
from native_segments import NOW, Log, Segment, columns_of, segments_in

from logstore._native.columns import Columns
from logstore._native.records import Record
from logstore._native.writer import (
    Appended,
)
from logstore.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
)


@pytest.fixture
def make_segment(tmp_path):
    with segments_in(tmp_path) as make:
        yield make


@pytest.fixture
def segment(make_segment):
    return make_segment()


class TestAppendColumns:
    def test_records_and_result(self, segment):
        """Offsets from the log end on, one batch, timestamps of the column."""
        timestamps = np.array([NOW, NOW + 9, NOW + 4])
        columns = columns_of([b"a", b"", b"cc"], timestamps=timestamps)
        appended = segment.writer.append_columns(columns)
        assert Appended(0, 3, 0, len(segment.data()), NOW + 9, 2) == appended
        assert [
            Record(0, NOW, None, b"a"),
            Record(1, NOW + 9, None, b""),
            Record(2, NOW + 4, None, b"cc"),
        ] == segment.records()
        assert 3 == segment.writer.append_columns(columns, 1, 1).first_offset
        assert [b"a", b"", b"cc", b""] == segment.values()

    def test_batches_have_the_target_size(self, make_segment):
        """Many records make batches of up to batch_bytes, coalesced into few writes."""
        segment = make_segment(batch_bytes=1000)
        columns = columns_of([b"%04d" % i for i in range(10_000)])
        assert 10_000 == segment.writer.append_columns(columns).record_count
        sizes = segment.batches()["size_bytes"]
        assert 1000 >= sizes.max() > 980
        assert [b"%04d" % i for i in range(10_000)] == segment.values()

    def test_large_append(self, segment):
        """Several pieces of 1 MiB, appended to an end that is not aligned."""
        values = [bytes([i % 256]) * (i % 7000) for i in range(6000)]
        segment.writer.append_columns(columns_of([b"first"]))
        appended = segment.writer.append_columns(columns_of(values))
        assert (1, 6000) == appended[:2]
        assert appended.size_bytes > 5 << 20
        assert [b"first", *values] == segment.values()

    def test_records_larger_than_a_batch(self, make_segment):
        """One batch each, up to max.message.bytes; memory for it is given back."""
        segment = make_segment(max_message_bytes=6 << 20)
        values = [b"small", bytes(100_000), bytes(5 << 20), b"small", bytes(65536)]
        assert 5 == segment.writer.append_columns(columns_of(values)).record_count
        assert values == segment.values()

    def test_empty(self, segment):
        """No records: an empty result at the log end."""
        appended = segment.writer.append_columns(columns_of([]))
        assert Appended(0, 0, 0, 0, -1, -1) == appended

    def test_index_entries_per_batch(self, make_segment):
        """Entries point to the batches that the interval has come due for."""
        segment = make_segment(batch_bytes=500, index_interval_bytes=900)
        segment.writer.append_columns(columns_of([b"x" * 50] * 100))
        batches = segment.batches()
        due, since = [], 0
        for batch in batches:
            if since > 900:
                due.append((batch["last_offset"], batch["position"]))
                since = 0
            since += batch["size_bytes"]
        assert due == segment.offset_entries()

    def test_the_end_moves_once(self, make_segment):
        """Until all is written, readers see nothing of an append."""
        segment = make_segment(segment_bytes=4000, batch_bytes=500)
        columns = columns_of([b"x" * 400] * 20)
        appended = segment.writer.append_columns(columns, all_or_nothing=True)
        assert 0 == appended.record_count
        assert (b"", 0) == (segment.data(), segment.writer.log_end_offset)

    @pytest.mark.parametrize(
        ("config", "arguments", "error", "index"),
        [
            ({"max_message_bytes": 100}, {}, RecordTooLargeError, 2),
            ({"segment_bytes": 100}, {}, RecordBatchTooLargeError, 2),
            ({"key_required": True}, {}, InvalidRecordError, 0),
            (
                {"key_required": True},
                {"keys": b"kk", "key_offsets": np.array([0, 1, 1, 2]), "key_validity": b"\x05"},
                InvalidRecordError,
                1,
            ),
            ({}, {"timestamps": np.array([NOW, NOW, -2])}, InvalidTimestampError, 2),
            ({"timestamp_before_max_ms": 9}, {"timestamp": NOW - 10}, InvalidTimestampError, 0),
            (
                {"timestamp_after_max_ms": 9},
                {"timestamps": np.array([NOW, NOW + 10, NOW])},
                InvalidTimestampError,
                1,
            ),
            ({}, {"timestamps": np.array([NOW, NOW // 1000, NOW])}, ValueError, 1),
            ({}, {"timestamp": NOW * 1000}, ValueError, 0),
        ],
    )
    def test_refused_records(self, make_segment, config, arguments, error, index):
        """The error names the record, and nothing of the call is written."""
        segment = make_segment(**config)
        columns = columns_of([b"a", b"b", bytes(100)], **arguments)
        with pytest.raises(error, match=f"record {index}:") as info:
            segment.writer.append_columns(columns)
        if isinstance(info.value, InvalidRecordError):
            assert index == info.value.record_errors[0][0]
        assert (b"", 0) == (segment.data(), segment.writer.log_end_offset)
        segment.writer.configure()
        assert 3 == segment.writer.append_columns(columns_of([b"a"] * 3)).record_count

    def test_accepted_timestamps(self, make_segment):
        """The bounds themselves, none (-1), and other units if nobody asks to check them."""
        segment = make_segment(timestamp_before_max_ms=10, timestamp_after_max_ms=10)
        timestamps = np.array([NOW - 10, NOW + 10, -1])
        assert 3 == segment.writer.append_columns(columns_of([b""] * 3, timestamps=timestamps))[1]
        segment.writer.configure()
        columns = columns_of([b""], timestamp=10**15)
        assert 1 == segment.writer.append_columns(columns, check_units=False).record_count

    def test_log_append_time_needs_no_bounds(self, make_segment):
        """The clock's time is written, whatever the records say."""
        segment = make_segment(log_append_time=True, timestamp_before_max_ms=0)
        segment.writer.append_columns(columns_of([b"a"], timestamp=5))
        segment.writer.append_columns(columns_of([b"a"], timestamp=5), timestamp_now=NOW + 3)
        assert [NOW, NOW + 3] == [record.timestamp for record in segment.records()]

    def test_column_offsets_are_checked(self, segment):
        """Offsets that leave the values are refused before memory is read."""
        columns = Columns(b"abc", np.array([0, 2, 1, 3]), timestamp=NOW)
        with pytest.raises(ValueError, match="record"):
            segment.writer.append_columns(columns)
        columns = Columns(b"abc", np.array([0, 2, 400]), timestamp=NOW)
        with pytest.raises(ValueError, match="record"):
            segment.writer.append_columns(columns)
        assert b"" == segment.data()
        with pytest.raises(ValueError, match="outside"):
            segment.writer.append_columns(columns_of([b"a"]), 1, 1)


class TestAppendList:
    def test_all_kinds_of_items(self, segment):
        """bytes, bytearray, memoryview, array and None, in a list or a tuple."""
        values = [
            b"a",
            bytearray(b"b"),
            memoryview(b"xcx")[1:2],
            np.frombuffer(b"d", np.uint8),
            None,
        ]
        assert 5 == segment.writer.append_list(values).record_count
        assert 5 == segment.writer.append_list(tuple(values)).first_offset
        assert [b"a", b"b", b"c", b"d", None] * 2 == segment.values()
        assert [NOW] * 10 == [record.timestamp for record in segment.records()]

    def test_keys_timestamps_and_headers(self, segment):
        """All columns of a record, each nullable where the format is."""
        segment.writer.append_list(
            [b"a", None, b"c", b""],
            [b"k", None, bytearray(b""), b"kk"],
            [NOW, NOW + 5, NOW - 3, -1],
            [None, [("h", b"v"), ("h", None)], {"é": bytearray(b"x")}, ()],
        )
        assert [
            Record(0, NOW, b"k", b"a"),
            Record(1, NOW + 5, None, None, [("h", b"v"), ("h", None)]),
            Record(2, NOW - 3, b"", b"c", [("é", b"x")]),
            Record(3, -1, b"kk", b""),
        ] == segment.records()
        assert NOW + 5 == segment.writer.state().max_timestamp

    def test_is_the_same_as_columns(self, make_segment, tmp_path):
        """The same records give the same bytes, whatever their sizes."""
        values = [bytes([i % 256]) * (i * i % 1000) for i in range(3000)]
        by_columns = make_segment(batch_bytes=5000)
        by_columns.writer.append_columns(columns_of(values))
        os.mkdir(tmp_path / "other")
        by_list = Segment(tmp_path / "other", batch_bytes=5000)
        by_list.writer.append_list(values)
        assert by_columns.data() == by_list.data()
        by_list.close()

    @pytest.mark.parametrize("with_keys", [False, True])
    def test_many_slices(self, segment, with_keys):
        """More items than one slice holds: offsets go on, the end is published once."""
        count = 150_000
        values = [b"%d" % i for i in range(count)]
        keys = [b"k"] * count if with_keys else None
        appended = segment.writer.append_list(values, keys)
        assert (0, count) == appended[:2]
        assert values == segment.values()

    def test_large_items_make_slices_too(self, make_segment):
        """Slices are bounded by bytes, batches by max.message.bytes."""
        segment = make_segment(max_message_bytes=4 << 20)
        values = [bytes([i]) * (3 << 20) for i in range(5)]
        assert 5 == segment.writer.append_list(values).record_count
        assert values == segment.values()

    @pytest.mark.parametrize("bad", ["text", 5, object(), ["a"]])
    @pytest.mark.parametrize("index", [0, 3, 140_000])
    def test_wrong_items(self, segment, bad, index):
        """A wrong item anywhere is named, and nothing of the call stays."""
        values = [b"x" * 20] * 140_001
        values[index] = bad
        with pytest.raises(TypeError, match=f"item {index} of values"):
            segment.writer.append_list(values)
        with pytest.raises(TypeError, match=f"item {index} of keys"):
            segment.writer.append_list([b""] * len(values), values)
        assert (b"", 0) == (segment.data(), segment.writer.log_end_offset)

    def test_wrong_columns(self, segment):
        """Other types, and columns of other lengths."""
        for arguments in (
            (b"abc",),
            ("abc",),
            (None,),
            ([b"a"], b"k"),
            ([b"a"], None, [1.5]),
            ([b"a"], None, None, [5]),
            ([b"a"], None, None, ["ab"]),
            ([b"a"], None, None, [[("h",)]]),
            ([b"a"], None, None, [[(b"h", b"v")]]),
            ([b"a"], None, None, [[("h", "v")]]),
        ):
            with pytest.raises(TypeError):
                segment.writer.append_list(*arguments)
        for arguments in (
            ([b"a"], []),
            ([b"a"], None, [1, 2]),
            ([b"a"], None, None, []),
            ([b"a"], None, None, [[("\ud800", b"")]]),
        ):
            with pytest.raises(ValueError):
                segment.writer.append_list(*arguments)
        with pytest.raises(ValueError, match="first"):
            segment.writer.append_list([b"a"], first=2)
        with pytest.raises(OverflowError):
            segment.writer.append_list([b"a"], None, [2**63])
        with pytest.raises(BufferError):
            segment.writer.append_list([memoryview(b"abcd")[::2]])
        assert b"" == segment.data()

    def test_exports_end_with_the_call(self, segment):
        """A bytearray can be resized afterwards, also when the call failed."""
        value = bytearray(b"abc")
        segment.writer.append_list([value] * 3)
        value.append(1)
        with pytest.raises(TypeError):
            segment.writer.append_list([value, "text"])
        value.append(1)

    def test_header_keys_round_trip(self, segment):
        """Keys read with surrogateescape are written back as the bytes they were."""
        name = b"\xff\xfe".decode("utf-8", "surrogateescape")
        segment.writer.append_list([b""], None, None, [[(name, b"")]])
        assert ((name, b""),) == segment.records()[0].headers

    def test_refused_records(self, make_segment):
        """The index counts from the start of the list, whatever `first` and slices are."""
        segment = make_segment(max_message_bytes=1000, key_required=True)
        values, keys = [b"a"] * 70_000, [b"k"] * 70_000
        values[69_000] = bytes(1000)
        with pytest.raises(RecordTooLargeError, match="record 69000:"):
            segment.writer.append_list(values, keys, first=10)
        keys[68_000] = None
        with pytest.raises(InvalidRecordError, match="record 68000:"):
            segment.writer.append_list(values, keys)
        timestamps = [NOW] * 70_000
        timestamps[66_000] = 10**9
        with pytest.raises(ValueError, match="record 66000:"):
            segment.writer.append_list(values, keys, timestamps)
        assert b"" == segment.data()
        assert 0 == segment.writer.state().size_bytes

    def test_empty(self, segment):
        """No records: an empty result at the log end."""
        assert Appended(0, 0, 0, 0, -1, -1) == segment.writer.append_list([])
        assert 0 == segment.writer.append_list([b"a"], first=1).record_count


class TestRoll:
    def test_columns_end_where_lists_do(self, make_segment):
        """A batch of columns that cannot fit is not even encoded; one that can always is."""
        values = [bytes(7 * number % 23) for number in range(60)]
        counts = set()
        for segment_bytes in range(400, 900, 9):
            config = {"segment_bytes": segment_bytes, "batch_bytes": 256}
            by_columns = make_segment(**config).writer.append_columns(columns_of(values))
            assert by_columns == make_segment(**config).writer.append_list(values)
            counts.add(by_columns.record_count)
        assert len(counts) >= 3

    def test_size(self, make_segment):
        """A batch that would exceed segment.bytes is left for the next segment."""
        segment = make_segment(segment_bytes=210)
        values = [bytes(1)] * 4
        segment.writer.configure(segment_bytes=210, batch_bytes=69)  # One record a batch.
        assert 3 == segment.writer.append_list(values).record_count
        assert 0 == segment.writer.append_list(values, first=3).record_count
        assert 207 == segment.writer.state().size_bytes

    def test_message_time(self, make_segment):
        """The largest timestamp against the first batch's, not the clock; only if not empty."""
        segment = make_segment()
        segment.attach(segment_ms=100)
        segment.clock.set(NOW + 10_000)
        log = Log()
        log._bind_writer(segment.writer)
        assert 0 == log.append(b"", timestamp=NOW)
        assert 1 == log.append(b"", timestamp=NOW + 100)
        assert -1 == log.append(b"", timestamp=NOW + 101)
        assert 2 == log.append(b"", timestamp=NOW - 5000)
        assert 0 == segment.writer.append_list([b""], None, [NOW + 101]).record_count
        assert 1 == segment.writer.append_list([b""], None, [NOW + 99]).record_count

    def test_clock_time_without_message_time(self, make_segment):
        """If the first batch has no timestamp, the segment's age counts."""
        segment = make_segment()
        segment.attach(segment_ms=100)
        columns = columns_of([b""], timestamp=-1)
        assert 1 == segment.writer.append_columns(columns).record_count
        segment.clock.set(NOW + 100)
        assert 1 == segment.writer.append_columns(columns).record_count
        segment.clock.set(NOW + 101)
        assert 0 == segment.writer.append_columns(columns).record_count
        assert -1 == segment.writer.state().rolling_based_timestamp

    @pytest.mark.parametrize(
        ("offset_max", "time_max", "count"), [(2, 100, 3), (100, 3, 3), (100, 1, 0), (0, 100, 0)]
    )
    def test_full_index(self, make_segment, offset_max, time_max, count):
        """A full offset index, or a time index with only the last slot left."""
        segment = make_segment(index_interval_bytes=0)
        segment.attach(offset_entries_max=offset_max, time_entries_max=time_max)
        log = Log()
        log._bind_writer(segment.writer)
        appended = [log.append(b"", timestamp=NOW + i) for i in range(10)]
        assert [*range(count)] == [offset for offset in appended if offset >= 0]
        assert 0 == segment.writer.append_list([b""]).record_count

    def test_offset_overflow(self, make_segment):
        """The last relative offset is 2^31 - 1."""
        segment = make_segment(base_offset=5)
        segment.attach(next_offset=5 + 2**31 - 2)
        log = Log()
        log._bind_writer(segment.writer)
        assert 5 + 2**31 - 2 == log.append(b"")
        assert 5 + 2**31 - 1 == log.append(b"")
        assert -1 == log.append(b"")
        assert 0 == segment.writer.append_list([b""]).record_count
        assert 0 == segment.writer.append_columns(columns_of([b""])).record_count

    @pytest.mark.parametrize("count", [30, 3000, 300_000])
    def test_what_does_not_fit_is_checked_to_the_end(self, make_segment, count):
        """Before going on in parts the caller hears of a wrong item; nothing is written."""
        segment = make_segment(segment_bytes=2000, batch_bytes=500, key_required=True)
        values, keys = [b"x" * 100] * count, [b"k"] * count
        for column, wrong, error in (
            (values, "text", TypeError),
            (keys, None, InvalidRecordError),
            (keys, 5, TypeError),
        ):
            kept, column[-1] = column[-1], wrong
            with pytest.raises(error, match=str(count - 1)):
                segment.writer.append_list(values, keys, all_or_nothing=True)
            column[-1] = kept
        timestamps = [NOW] * (count - 1) + [NOW // 1000]
        with pytest.raises(ValueError, match="looks like seconds"):
            segment.writer.append_list(values, keys, timestamps, all_or_nothing=True)
        with pytest.raises(TypeError, match="header"):
            segment.writer.append_list(
                values, keys, None, [None] * (count - 1) + [[("h", "v")]], all_or_nothing=True
            )
        assert 0 == segment.writer.append_list(values, keys, all_or_nothing=True).record_count
        assert (b"", 0) == (segment.data(), segment.writer.log_end_offset)
        assert 0 < segment.writer.append_list(values, keys).record_count < 30

    def test_columns_that_do_not_fit(self, make_segment):
        """All or nothing writes nothing; the rules are checked once, by the call that may say 0."""
        segment = make_segment(segment_bytes=2000, batch_bytes=500)
        timestamps = np.full(3000, NOW)
        columns = columns_of([b"x" * 100] * 3000, timestamps=timestamps)
        assert 0 == segment.writer.append_columns(columns, all_or_nothing=True).record_count
        timestamps[-1] = NOW // 1000
        with pytest.raises(
            ValueError, match="record 2999: timestamp 1700000000 looks like seconds"
        ):
            segment.writer.append_columns(columns, all_or_nothing=True)
        assert b"" == segment.data()
        assert 0 < segment.writer.append_columns(columns, checked=True).record_count < 30

    @pytest.mark.parametrize(
        ("timestamp", "unit"),
        [(10**9, "seconds"), (10**15, "microseconds"), (10**18, "nanoseconds")],
    )
    def test_the_unit_is_guessed(self, segment, timestamp, unit):
        """The error says what the time looks like and what to do."""
        with pytest.raises(ValueError, match=f"{timestamp} looks like {unit}; give milliseconds"):
            segment.writer.append_list([b""], timestamp=timestamp)

    def test_partial_appends_add_up(self, make_segment):
        """Rolling and going on from `first`, as a log does, loses and repeats nothing."""
        values = [b"%d" % i * (i % 30) for i in range(2000)]
        found, first, base = [], 0, 0
        while first < len(values):
            segment = make_segment(segment_bytes=3000, batch_bytes=500, base_offset=base)
            appended = segment.writer.append_list(values, first=first)
            assert appended.record_count > 0
            first += appended.record_count
            base = appended.first_offset + appended.record_count
            found += segment.values()
        assert values == found
        assert 2000 == base
