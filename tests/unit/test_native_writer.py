from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from logstore._native.columns import Columns, encode_batch
from logstore._native.kernels import SCAN_STOP_END, scan_batches
from logstore._native.records import BlockStop, Record, read_block
from logstore._native.writer import (
    ROLLING_BASED_TIMESTAMP_UNKNOWN,
    Appended,
    NativeLog,
    PatchedBatch,
    Writer,
    load_published,
)
from logstore.clock import ManualClock
from logstore.errors import (
    ClosedError,
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    SegmentOffsetOverflowError,
    StorageError,
)
from logstore.files import REAL_FILES

NOW = 1_700_000_000_000


class Segment:
    """Three open files and a writer on them."""

    def __init__(self, directory, files=REAL_FILES, base_offset=0, **config):
        self.files = files
        self.clock = ManualClock(NOW)
        names = ("log", "index", "timeindex")
        self.paths = [os.path.join(directory, f"{base_offset:020d}.{name}") for name in names]
        self.fds = [files.open(path, os.O_RDWR | os.O_CREAT) for path in self.paths]
        self.base_offset = base_offset
        self.writer = Writer(files.io, clock_address=self.clock.address)
        self.writer.configure(**config)
        self.attach()

    def attach(self, **arguments):
        defaults = {"next_offset": self.base_offset, "created_ms": NOW, "path": self.paths[0]}
        defaults |= {"offset_entries_max": 1 << 20, "time_entries_max": 1 << 20}
        log_fd, index_fd, timeindex_fd = self.fds
        self.writer.attach(
            log_fd=log_fd,
            index_fd=index_fd,
            timeindex_fd=timeindex_fd,
            base_offset=self.base_offset,
            **(defaults | arguments),
        )

    def data(self):
        with open(self.paths[0], "rb") as file:
            return file.read()

    def batches(self):
        data = self.data()
        result = scan_batches(data, records=True, order=True)
        assert (SCAN_STOP_END, len(data)) == (result.stop, result.valid_bytes)
        return result.batches

    def records(self):
        data = self.data()
        block = read_block(data, 0, len(data), max_records=1 << 20)
        assert BlockStop.END == block.stop
        return block.items

    def values(self):
        return [record.value for record in self.records()]

    def offset_entries(self):
        with open(self.paths[1], "rb") as file:
            data = file.read()[: 8 * self.writer.state().offset_entry_count]
        return [struct.unpack_from(">ii", data, at) for at in range(0, len(data), 8)]

    def time_entries(self):
        with open(self.paths[2], "rb") as file:
            data = file.read()[: 12 * self.writer.state().time_entry_count]
        return [struct.unpack_from(">qi", data, at) for at in range(0, len(data), 12)]

    def close(self):
        for fd in self.fds:
            self.files.close(fd)


@pytest.fixture
def make_segment(tmp_path):
    segments = []

    def make(**arguments):
        segments.append(Segment(tmp_path, **arguments))
        return segments[-1]

    yield make
    for segment in segments:
        segment.close()


@pytest.fixture
def segment(make_segment):
    return make_segment()


class Log(NativeLog):
    """What Log makes of NativeLog, as far as append goes."""

    def __init__(self):
        self.general = []

    def _append_general(self, *args, **kwargs):
        self.general.append((args, kwargs))
        return -1


@pytest.fixture
def log(segment):
    log = Log()
    log._bind_writer(segment.writer)
    return log


def columns_of(values, **arguments):
    offsets = np.cumsum([0, *(len(value) for value in values)])
    return Columns(b"".join(values), offsets.astype(np.int64), **({"timestamp": NOW} | arguments))


def ready(values, base_offset, leader_epoch=4, timestamp=NOW):
    columns = columns_of(values, timestamp=timestamp)
    return encode_batch(columns, 0, base_offset=base_offset, leader_epoch=leader_epoch).data


def headers_of(data):
    return scan_batches(data).batches


class TestAppendOne:
    def test_golden(self, segment, log):
        """One record with a key is Kafka's golden batch G1, but for epoch and timestamp."""
        assert 0 == log.append(b"1", key=b"a", timestamp=NOW)
        expected = bytes.fromhex(
            "0000000000000000 0000003a 00000000 02 ffffffff 0000 00000000 0000018bcfe56800"
            "0000018bcfe56800 ffffffffffffffff ffff ffffffff 00000001 10 00 00 00 02 61 02 31 00"
        )
        data = segment.data()
        assert expected[:17] == data[:17]
        assert expected[21:] == data[21:]
        assert 1 == len(segment.batches())  # The scan checks the CRC.

    def test_offsets_and_defaults(self, segment, log):
        """Offsets go up by one, time is the clock's, keys are null; the end is published."""
        assert [0, 1, 2] == [log.append(value) for value in (b"a", None, b"")]
        segment.clock.advance(5)
        assert 3 == log.append(b"d", key=None, headers=(), timestamp=None, sync=False)
        expected = [
            Record(0, NOW, None, b"a"),
            Record(1, NOW, None, None),
            Record(2, NOW, None, b""),
            Record(3, NOW + 5, None, b"d"),
        ]
        assert expected == segment.records()
        assert 4 == segment.writer.log_end_offset
        assert [] == log.general

    def test_index_entries(self, make_segment):
        """Golden case of the format: interval 150, seven batches of 70 bytes."""
        segment = make_segment(index_interval_bytes=150)
        log = Log()
        log._bind_writer(segment.writer)
        for i in range(7):
            log.append(b"1", key=b"a", timestamp=NOW + i)
        segment.writer.settle_entries()
        assert [(3, 210), (6, 420)] == segment.offset_entries()
        assert [(NOW + 3, 3), (NOW + 6, 6)] == segment.time_entries()
        assert (2, 2) == (segment.writer.offset_entry_count, segment.writer.time_entry_count)

    @pytest.mark.parametrize(
        "settle",
        [
            lambda writer: writer.settle_entries(),
            lambda writer: writer.state(),
            lambda writer: writer.trim(),
            lambda writer: writer.detach(),
        ],
        ids=["settle_entries", "state", "trim", "detach"],
    )
    def test_index_entries_are_held(self, make_segment, settle):
        """Some entries wait until there are more, or somebody wants them."""
        segment = make_segment(index_interval_bytes=150)
        log = Log()
        log._bind_writer(segment.writer)
        for i in range(7):
            log.append(b"1", key=b"a", timestamp=NOW + i)
        index, timeindex = (Path(path) for path in segment.paths[1:])
        assert b"" == index.read_bytes() == timeindex.read_bytes()
        assert (0, 0) == (segment.writer.offset_entry_count, segment.writer.time_entry_count)
        settle(segment.writer)
        assert struct.pack(">4i", 3, 210, 6, 420) == index.read_bytes()
        assert struct.pack(">qiqi", NOW + 3, 3, NOW + 6, 6) == timeindex.read_bytes()
        assert (2, 2) == (segment.writer.offset_entry_count, segment.writer.time_entry_count)

    def test_held_entries_are_written_together(self, make_segment):
        """Of very many, only the last few wait; none is missing and none comes twice."""
        segment = make_segment(index_interval_bytes=150)
        log = Log()
        log._bind_writer(segment.writer)
        for i in range(100):
            log.append(b"1", key=b"a", timestamp=NOW + i // 10)
            assert i // 3 - 7 <= segment.writer.offset_entry_count <= i // 3
        segment.writer.settle_entries()
        assert [(i, 70 * i) for i in range(3, 100, 3)] == segment.offset_entries()
        times = dict(reversed([(NOW + i // 10, i) for i in range(100)]))
        for timestamp, offset in segment.time_entries():
            assert times[timestamp] == offset
        assert 10 == segment.writer.time_entry_count

    @pytest.mark.parametrize(
        ("args", "kwargs"),
        [
            ((), {}),
            ((b"a", b"b"), {}),
            (("a",), {}),
            ((bytearray(b"a"),), {}),
            ((b"a",), {"key": "k"}),
            ((b"a",), {"headers": [("h", b"v")]}),
            ((b"a",), {"headers": []}),
            ((b"a",), {"timestamp": -1}),
            ((b"a",), {"timestamp": 2**63}),
            ((b"a",), {"timestamp": 1.5}),
            ((b"a",), {"timestamp": True}),
            ((b"a",), {"other": 1}),
            ((), {"value": b"a"}),
            ((bytes(65536),), {}),
            ((bytes(65530),), {"key": bytes(6)}),
        ],
    )
    def test_what_is_not_plain_is_general(self, segment, log, args, kwargs):
        """The subclass gets the same arguments, and nothing is written."""
        assert -1 == log.append(*args, **kwargs)
        assert [(args, kwargs)] == log.general
        assert b"" == segment.data()

    @pytest.mark.parametrize(
        ("timestamp", "is_plain"),
        [
            (0, True),
            (10**8 - 1, True),
            (10**8, False),
            (10**10 - 1, False),
            (10**10, True),
            (10**14 - 1, True),
            (10**14, False),
        ],
    )
    def test_times_of_other_units_are_general(self, log, timestamp, is_plain):
        """What can only be seconds, micro- or nanoseconds is left to the path that refuses it."""
        assert is_plain == (log.append(b"a", timestamp=timestamp) == 0)

    def test_without_writer_everything_is_general(self, segment):
        """Before binding, after unbinding, and after detaching."""
        log = Log()
        assert -1 == log.append(b"a")
        log._bind_writer(segment.writer)
        assert 0 == log.append(b"a")
        log._bind_writer(None)
        assert -1 == log.append(b"a")
        log._bind_writer(segment.writer)
        segment.writer.detach()
        assert -1 == log.append(b"a")

    def test_general_rules(self, make_segment):
        """Rules that a record breaks, a roll that is due, and a switched-off fast path."""
        for config in (
            {"fast": False},
            {"key_required": True},
            {"max_message_bytes": 60},
            {"segment_bytes": 60},
            {"timestamp_before_max_ms": 0},
            {"timestamp_after_max_ms": 0},
        ):
            segment = make_segment(**config)
            log = Log()
            log._bind_writer(segment.writer)
            late, early = NOW - 1, NOW + 1
            both = [log.append(b"a", timestamp=late), log.append(b"a", timestamp=early)]
            assert -1 in both, config

    def test_exclusive_sections(self, segment, log):
        """Inside one, also a nested one, every append is general."""
        with segment.writer.exclusive():
            assert -1 == log.append(b"a")
            with segment.writer.exclusive():
                assert -1 == log.append(b"a")
            assert -1 == log.append(b"a")
        assert 0 == log.append(b"a")

    def test_errors_of_the_general_path_pass(self, segment):
        """Whatever it raises reaches the caller; without one, the type says so."""

        class Raising(NativeLog):
            def _append_general(self, value):
                raise KeyError(value)

        with pytest.raises(KeyError):
            Raising().append(b"a")
        with pytest.raises(AttributeError, match="_append_general"):
            NativeLog().append(b"a")
        with pytest.raises(AttributeError):
            Raising()._bind_writer(object())

    def test_key_required(self, make_segment):
        """A compacted topic takes plain records with keys, empty ones too."""
        segment = make_segment(key_required=True)
        log = Log()
        log._bind_writer(segment.writer)
        assert [0, 1] == [log.append(b"a", key=b"k"), log.append(None, key=b"")]

    def test_log_append_time(self, make_segment):
        """The batch carries the clock's time and its type."""
        segment = make_segment(log_append_time=True, leader_epoch=9)
        log = Log()
        log._bind_writer(segment.writer)
        log.append(b"a", timestamp=NOW - 500)
        (record,) = segment.records()
        assert (NOW, 1, 9) == (record.timestamp, record.timestamp_type, record.leader_epoch)
        (batch,) = segment.batches()
        assert (NOW - 500, NOW) == (batch["base_timestamp"], batch["max_timestamp"])


class TestAppendEncoded:
    def test_bytes_are_written_as_they_are(self, segment):
        """Position, end and state follow from the headers."""
        first, second = ready([b"a", b"b"], 0), ready([b"c"], 2, timestamp=NOW + 7)
        assert 0 == segment.writer.append_encoded(first + second, headers_of(first + second))
        third = ready([b"d"], 10)
        assert len(first + second) == segment.writer.append_encoded(third, headers_of(third))
        assert first + second + third == segment.data()
        state = segment.writer.state()
        assert (11, len(segment.data())) == (state.log_end_offset, state.size_bytes)
        assert (NOW + 7, 2) == (state.max_timestamp, state.offset_of_max_timestamp)
        assert NOW == state.rolling_based_timestamp

    @pytest.mark.parametrize("at_once", [True, False])
    def test_index_entries(self, make_segment, at_once):
        """The golden case gives the same entries, one by one and in one append."""
        segment = make_segment(index_interval_bytes=150)
        batches = [
            encode_batch(
                columns_of([b"1"], keys=b"a", key_offsets=np.array([0, 1]), timestamp=NOW + i),
                0,
                base_offset=i,
            ).data
            for i in range(7)
        ]
        assert [70] * 7 == [len(batch) for batch in batches]
        for data in [b"".join(batches)] if at_once else batches:
            segment.writer.append_encoded(data, headers_of(data))
        assert [(3, 210), (6, 420)] == segment.offset_entries()
        assert [(NOW + 3, 3), (NOW + 6, 6)] == segment.time_entries()

    @pytest.mark.parametrize("value_bytes", [1, 40_000, 3 << 20])
    def test_a_header_apart(self, segment, value_bytes):
        """What is written is the header and the rest of the batch, over piece boundaries too."""
        for offset in (0, 1):
            batch = ready([bytes(value_bytes)], offset)
            stale = b"x" * 61 + batch[61:]
            patched = PatchedBatch(batch[:61], memoryview(stale))
            assert batch == bytes(patched)
            assert len(batch) == len(patched)
            assert offset * len(batch) == segment.writer.append_encoded(patched, headers_of(batch))
            assert batch == segment.data()[offset * len(batch) :]
        assert 2 == segment.writer.log_end_offset

    def test_publishing_can_wait(self, segment):
        """Without publish the state moves and the published end does not."""
        data = ready([b"a", b"b"], 0)
        segment.writer.append_encoded(data, headers_of(data), publish=False)
        assert (0, 2) == (segment.writer.log_end_offset, segment.writer.state().log_end_offset)
        segment.writer.publish(2)
        assert 2 == segment.writer.log_end_offset

    def test_empty(self, segment):
        """No batches: no effect."""
        assert 0 == segment.writer.append_encoded(b"", headers_of(b""))
        assert (b"", 0) == (segment.data(), segment.writer.log_end_offset)

    def test_large_appends_and_any_alignment(self, make_segment):
        """Several pieces, from sources at every distance to the file position that is copied."""
        segment = make_segment()
        room = np.zeros((5 << 19) + 8192, np.uint8)
        base = (-room.ctypes.data) % 4096
        offset = 0
        parts = []
        for distance in (0, 1, 16, 31, 32, 4095):
            data = b"".join(
                ready([bytes([distance % 256]) * 60_000], offset + i)
                for i in range(40 if distance else 2)
            )
            offset += 40 if distance else 2
            size = segment.writer.state().size_bytes
            start = base + (size - distance) % 4096
            room[start : start + len(data)] = np.frombuffer(data, np.uint8)
            view = room[start : start + len(data)]
            segment.writer.append_encoded(view, headers_of(view))
            parts.append(data)
        assert b"".join(parts) == segment.data()
        assert offset == segment.writer.log_end_offset

    def test_headers_must_fit_the_bytes(self, segment):
        """Other, missing or descending headers are refused, and nothing is written."""
        data = ready([b"a"], 0) + ready([b"b"], 1)
        headers = headers_of(data)
        swapped = headers.copy()
        swapped["last_offset"] = swapped["last_offset"][::-1]
        swapped["base_offset"] = swapped["last_offset"]
        moved = headers.copy()
        moved["position"] += 1
        for wrong in (headers[:1], headers[1:], swapped, moved, np.concatenate([headers] * 2)):
            with pytest.raises(CorruptRecordError):
                segment.writer.append_encoded(data, wrong)
        assert b"" == segment.data()

    def test_offsets_must_fit_the_segment(self, make_segment):
        """More than 2^31 - 1 above the base offset, or below it: the log must roll."""
        segment = make_segment(base_offset=100)
        last = 100 + 2**31 - 1
        data = ready([b"a"], last)
        segment.writer.append_encoded(data, headers_of(data))
        for offset in (last + 1, 99):
            data = ready([b"a"], offset)
            with pytest.raises(SegmentOffsetOverflowError):
                segment.writer.append_encoded(data, headers_of(data))
        assert 1 == len(segment.batches())

    def test_an_index_that_fills_does_not_fail_the_append(self, make_segment):
        """Its entries stop; the batches are written (Kafka fails, with the bytes in the file)."""
        segment = make_segment(index_interval_bytes=0)
        segment.attach(offset_entries_max=2, time_entries_max=2)
        data = b"".join(ready([b"a"], i, timestamp=NOW + i) for i in range(6))
        segment.writer.append_encoded(data, headers_of(data))
        assert [1, 2] == [offset for offset, _ in segment.offset_entries()]
        assert [(NOW + 1, 1)] == segment.time_entries()
        assert 6 == segment.writer.log_end_offset

    def test_more_entries_than_are_kept_at_once(self, make_segment):
        """Ten thousand due entries are all written."""
        segment = make_segment(index_interval_bytes=0)
        data = b"".join(ready([b""], i, timestamp=NOW + i) for i in range(10_000))
        segment.writer.append_encoded(data, headers_of(data))
        size = len(data) // 10_000
        assert [(i, i * size) for i in range(1, 10_000)] == segment.offset_entries()
        assert [(NOW + i, i) for i in range(1, 10_000)] == segment.time_entries()


class TestAppendPieces:
    def test_nothing_moves_before_the_last_piece(self, segment):
        """Sizes, entries and state; then all of them do but the published end."""
        segment.writer.append_list([b"before"])
        before = segment.writer.state()
        parts = [ready([b"x" * 5000], at) for at in range(1, 5)]

        def pieces():
            for part in parts:
                assert before == segment.writer.state()
                assert before.size_bytes == segment.writer.size_bytes
                yield part, headers_of(part)
            assert len(segment.data()) > before.size_bytes + 10_000

        segment.writer.append_pieces(pieces())
        assert (1, 5) == (segment.writer.log_end_offset, segment.writer.state().log_end_offset)
        assert segment.data().endswith(b"".join(parts))
        assert len(segment.data()) == segment.writer.size_bytes
        segment.writer.publish(5)
        assert 5 == segment.writer.log_end_offset

    def test_none(self, segment):
        """No pieces: no effect."""
        segment.writer.append_list([b"before"])
        before = segment.writer.state(), segment.data()
        segment.writer.append_pieces([])
        assert before == (segment.writer.state(), segment.data())

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_what_makes_them_fails(self, segment, error):
        """They are cut off again, and the next append works."""
        segment.writer.append_list([b"before"])
        before = segment.writer.state(), segment.data()

        def pieces():
            part = ready([b"x"], 1)
            yield part, headers_of(part)
            raise error

        with pytest.raises(error):
            segment.writer.append_pieces(pieces())
        assert before == (segment.writer.state(), segment.data())
        assert 1 == segment.writer.append_list([b"after"]).first_offset

    def test_wrong_headers(self, segment):
        """The whole append is refused, also for its last piece."""
        segment.writer.append_list([b"before"])
        before = segment.writer.state(), segment.data()
        first, second = ready([b"x"], 1), ready([b"y"], 2)
        pieces = [(first, headers_of(first)), (second[:-1], headers_of(second))]
        with pytest.raises(CorruptRecordError):
            segment.writer.append_pieces(pieces)
        assert before == (segment.writer.state(), segment.data())

    def test_an_append_inside_of_one(self, segment):
        """It is refused, and the one outside goes on: pieces in a list append, and the reverse."""
        part = ready([b"x"], 0)

        def pieces():
            with pytest.raises(StorageError):
                segment.writer.append_list([b"inside"])
            yield part, headers_of(part)

        segment.writer.append_pieces(pieces())
        segment.writer.publish(1)
        refused = []

        def headers():
            with pytest.raises(StorageError):
                segment.writer.append_pieces([(part, headers_of(part))])
            refused.append(True)
            yield "name", b"value"

        segment.writer.append_list([b"y", b"z"], headers=[headers(), ()])
        assert [True] == refused
        assert 3 == segment.writer.log_end_offset


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


class TestState:
    def test_attach_takes_and_detach_gives_all(self, segment):
        """A detached state can be attached again; nothing is lost in between."""
        log = Log()
        log._bind_writer(segment.writer)
        segment.writer.configure(index_interval_bytes=100)
        for i in range(5):
            log.append(b"x" * 50, timestamp=NOW + i)
        state = segment.writer.detach()
        with pytest.raises(ClosedError):
            segment.writer.state()
        with pytest.raises(ClosedError):
            segment.writer.detach()
        with pytest.raises(ClosedError):
            segment.writer.append_list([b"a"])
        fields = state._asdict()
        timestamp, offset = (
            fields.pop("last_time_entry_timestamp"),
            fields.pop("last_time_entry_offset"),
        )
        next_offset = fields.pop("log_end_offset")
        segment.attach(next_offset=next_offset, last_time_entry=(timestamp, offset), **fields)
        assert state == segment.writer.state()
        assert 5 == log.append(b"x")

    def test_new_segment(self, make_segment):
        """Before the first append nothing is known of its time."""
        state = make_segment(base_offset=7).writer.state()
        assert (7, 0, 0, 0, -1, 7, 0, -1, -1, ROLLING_BASED_TIMESTAMP_UNKNOWN) == state

    def test_published_cells(self, segment):
        """Four numbers that can be loaded at any time."""
        segment.writer.configure(index_interval_bytes=0)
        segment.writer.append_list([b"a"])
        segment.writer.append_list([b"a"])
        address = segment.writer.published_address
        assert [2, 138, 1, 1] == [load_published(address + 8 * i) for i in range(4)]
        assert (2, 138) == (segment.writer.log_end_offset, segment.writer.size_bytes)

    def test_room_ahead_is_given_back(self, make_segment):
        """Large appends allocate ahead; detaching and trimming free what is not used."""
        segment = make_segment()
        segment.writer.append_list([bytes(60_000)] * 40)
        size = segment.writer.state().size_bytes
        for _ in range(2):
            segment.writer.append_list([bytes(1000)] * 500)
        state = os.stat(segment.paths[0])
        assert state.st_size == segment.writer.state().size_bytes > size
        ahead = 512 * state.st_blocks - state.st_size
        segment.writer.trim()
        assert ahead >= 512 * os.stat(segment.paths[0]).st_blocks - state.st_size
        assert 512 * os.stat(segment.paths[0]).st_blocks < state.st_size + 65536
        segment.writer.append_list([b"more"])
        segment.writer.detach()
        assert 512 * os.stat(segment.paths[0]).st_blocks < state.st_size + 65536

    def test_no_room_ahead_for_small_segments(self, make_segment):
        """Below 1 MiB an append of a few records allocates what it writes."""
        segment = make_segment()
        segment.writer.append_list([b"a"] * 10)
        assert 4096 >= 512 * os.stat(segment.paths[0]).st_blocks
