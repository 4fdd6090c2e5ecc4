"""Index kernels against bisect and against Kafka's rules told in Python."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_reference import Guarded

from logstore import _native

GUARDED = Guarded(4096)
SMALL = st.integers(0, 40)


def offset_index(pairs: list[tuple[int, int]]) -> bytes:
    return b"".join(struct.pack(">II", *pair) for pair in pairs)


def time_index(pairs: list[tuple[int, int]]) -> bytes:
    return b"".join(struct.pack(">qI", *pair) for pair in pairs)


@given(st.lists(SMALL, unique=True).map(sorted), st.integers(0, 42))
def test_offset_lookup_is_bisect(offsets, target):
    """The last entry at or below the target, reading nothing beyond the entries."""
    data = GUARDED(offset_index([(offset, 7 * offset) for offset in offsets]))
    expected = bisect_right(offsets, target) - 1
    assert expected == _native.offset_index_lookup(_native.address_of(data), len(offsets), target)


@given(st.lists(SMALL, unique=True).map(sorted), st.integers(-1, 42))
def test_upper_bound_is_bisect(positions, target):
    """The first entry whose position is at or above the target."""
    data = GUARDED(offset_index([(3, position) for position in positions]))
    slot = bisect_left(positions, target)
    expected = slot if slot < len(positions) else -1
    found = _native.offset_index_upper_bound(_native.address_of(data), len(positions), target)
    assert expected == found


@given(st.lists(st.integers(-3, 40), unique=True).map(sorted), st.integers(-5, 42))
def test_time_lookup_is_bisect(timestamps, target):
    """The last entry at or below a timestamp, which may be negative."""
    data = GUARDED(time_index([(timestamp, 5) for timestamp in timestamps]))
    expected = bisect_right(timestamps, target) - 1
    assert expected == _native.time_index_lookup(_native.address_of(data), len(timestamps), target)


@given(st.lists(SMALL).map(sorted), st.integers(0, 42))
def test_time_lookup_by_offset_is_bisect(offsets, target):
    """Equal offsets are legal in the time index; the last of them is found."""
    data = GUARDED(time_index([(index, offset) for index, offset in enumerate(offsets)]))
    expected = bisect_right(offsets, target) - 1
    found = _native.time_index_lookup_offset(_native.address_of(data), len(offsets), target)
    assert expected == found


def test_large_keys():
    """Unsigned offsets beyond 2^31 and timestamps beyond 2^32 compare as numbers."""
    data = offset_index([(1, 1), (2**31, 2**31), (2**32 - 1, 2**32 - 1)])
    address = _native.address_of(data)
    assert [0, 1, 2] == [
        _native.offset_index_lookup(address, 3, key) for key in (2**31 - 1, 2**31, 2**32 - 1)
    ]
    assert 2 == _native.offset_index_upper_bound(address, 3, 2**31 + 1)
    assert -1 == _native.offset_index_upper_bound(address, 3, 2**40)
    data = time_index([(-(2**63), 0), (2**62, 1)])
    assert [0, 0, 1] == [
        _native.time_index_lookup(_native.address_of(data), 2, key)
        for key in (-(2**63), 0, 2**63 - 1)
    ]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=6))
def test_offset_check(pairs):
    """The first slot that does not increase in both columns."""
    expected = next(
        (
            slot
            for slot, (offset, position) in enumerate(pairs)
            if slot and not (offset > pairs[slot - 1][0] and position > pairs[slot - 1][1])
        ),
        -1,
    )
    data = GUARDED(offset_index(pairs))
    assert expected == _native.offset_index_check(_native.address_of(data), len(pairs))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=6))
def test_time_check(pairs):
    """The first slot whose timestamp does not increase, or whose offset decreases."""
    expected = next(
        (
            slot
            for slot, (timestamp, offset) in enumerate(pairs)
            if slot and not (timestamp > pairs[slot - 1][0] and offset >= pairs[slot - 1][1])
        ),
        -1,
    )
    data = GUARDED(time_index(pairs))
    assert expected == _native.time_index_check(_native.address_of(data), len(pairs))


@pytest.mark.parametrize("pair", [(2**31, 1), (1, 2**31), (2**32 - 1, 1)])
def test_offset_check_finds_what_is_negative_in_java(pair):
    """An offset or position beyond 31 bits is damage even in the first slot."""
    assert 0 == _native.offset_index_check(_native.address_of(offset_index([pair])), 1)


def test_time_check_finds_a_negative_timestamp():
    """-1 means "no timestamp" and never makes an entry."""
    assert 0 == _native.time_index_check(_native.address_of(time_index([(-1, 5)])), 1)


class Model:
    """LogSegment.append of spec 4.2, one batch at a time."""

    def __init__(self, base_offset: int, interval: int, offset_room: int, time_room: int) -> None:
        self.base_offset, self.interval = base_offset, interval
        self.rooms = [offset_room, time_room]
        self.bytes_since = 0
        self.max = (-1, -1)
        self.last = (-1, -1)
        self.offsets: list[tuple[int, int]] = []
        self.times: list[tuple[int, int]] = []

    def append(self, position: int, size: int, last_offset: int, timestamp: int) -> None:
        if timestamp > self.max[0]:
            self.max = (timestamp, last_offset)
        if self.bytes_since > self.interval:
            if len(self.offsets) < self.rooms[0]:
                self.offsets.append((last_offset - self.base_offset, position))
            if self.max[0] > self.last[0] and len(self.times) < self.rooms[1]:
                self.last = self.max
                self.times.append((self.max[0], self.max[1] - self.base_offset))
            self.bytes_since = 0
        self.bytes_since += size


@given(
    st.lists(st.tuples(st.sampled_from([61, 70, 100, 300]), st.integers(1, 3), st.integers(-1, 6))),
    st.sampled_from([0, 69, 70, 150, 1000]),
    st.sampled_from([0, 1, 2, 1000]),
    st.sampled_from([0, 1, 2, 1000]),
    st.integers(0, 12),
)
def test_entries_follow_kafkas_rule(appended, interval, offset_room, time_room, cut):
    """Any run of batches, in one call or two, makes the entries of the model."""
    base_offset = 1000
    model = Model(base_offset, interval, offset_room, time_room)
    batches = np.zeros(len(appended), _native.BATCH_DTYPE)
    position, offset = 0, base_offset
    for slot, (size, count, timestamp) in enumerate(appended):
        batches[slot]["position"], batches[slot]["size_bytes"] = position, size
        batches[slot]["base_offset"], batches[slot]["last_offset"] = offset, offset + count - 1
        batches[slot]["max_timestamp"] = timestamp
        model.append(position, size, offset + count - 1, timestamp)
        position, offset = position + size, offset + count

    state = _native.IndexState(
        base_offset, interval, offset_entries_room=offset_room, time_entries_room=time_room
    )
    parts = [_native.index_batches(part, state) for part in (batches[:cut], batches[cut:])]

    assert offset_index(model.offsets) == parts[0][0] + parts[1][0]
    assert time_index(model.times) == parts[0][1] + parts[1][1]
    assert (model.max, model.bytes_since) == (
        (state.struct.max_timestamp, state.struct.offset_of_max_timestamp),
        state.struct.bytes_since_last_index_entry,
    )


def test_golden_interval_case():
    """Interval 150, seven batches of 70 bytes: entries (3, 210) and (6, 420)."""
    batches = np.zeros(7, _native.BATCH_DTYPE)
    batches["position"] = np.arange(7) * 70
    batches["size_bytes"] = 70
    batches["base_offset"] = batches["last_offset"] = np.arange(7)
    batches["max_timestamp"] = -1
    entries, times = _native.index_batches(batches, _native.IndexState(0, 150))
    assert (offset_index([(3, 210), (6, 420)]), b"") == (entries, times)


@pytest.mark.parametrize(
    ("last_offset", "position"), [(99, 0), (100 + 2**31, 0), (100, 2**31), (100, -1), (-(2**63), 0)]
)
def test_what_does_not_fit_is_refused(last_offset, position):
    """An offset below the base or beyond 31 bits, or such a position, makes no entry."""
    batches = np.zeros(2, _native.BATCH_DTYPE)
    batches["last_offset"] = [100, last_offset]
    batches["position"] = [0, position]
    with pytest.raises(OverflowError, match="batch 1 "):
        _native.index_batches(batches, _native.IndexState(100, 0))


def test_full_arrays_stop_and_go_on():
    """With room for one entry a call does what fits, and the next goes on from there."""
    batches = np.zeros(5, _native.BATCH_DTYPE)
    batches["position"] = np.arange(5) * 100
    batches["size_bytes"] = 100
    batches["last_offset"] = np.arange(5)
    batches["max_timestamp"] = np.arange(5)
    state = _native.IndexState(0, 50)
    made = _native.ffi.new("struct ls_index_made *")
    slots: list[tuple[int, int]] = []
    done = 0
    while done < 5:
        entries, times = bytearray(8), bytearray(12)
        count = _native.lib.ls_index_batches(
            _native.address_of(batches[done:]),
            5 - done,
            state.struct,
            _native.address_of(entries),
            1,
            _native.address_of(times),
            1,
            made,
        )
        assert count == made.batches > 0
        assert made.offset_entries == made.time_entries <= 1
        if made.offset_entries:
            slots.append((*struct.unpack(">II", entries), *struct.unpack(">qI", times)))
        done += count
    assert [(slot, 100 * slot, slot, slot) for slot in range(1, 5)] == slots
