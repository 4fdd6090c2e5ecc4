"""The native writer: single appends, finished batches, and its state."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from native_segments import NOW, Log, columns_of, headers_of, ready, segments_in

from logstore._native.columns import encode_batch
from logstore._native.records import Record
from logstore._native.writer import (
    ROLLING_BASED_TIMESTAMP_UNKNOWN,
    NativeLog,
    PatchedBatch,
    load_published,
)
from logstore.errors import (
    ClosedError,
    CorruptRecordError,
    SegmentOffsetOverflowError,
    StorageError,
)


@pytest.fixture
def make_segment(tmp_path):
    with segments_in(tmp_path) as make:
        yield make


@pytest.fixture
def segment(make_segment):
    return make_segment()


@pytest.fixture
def log(segment):
    log = Log()
    log._bind_writer(segment.writer)
    return log


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
