"""Scanning: where the valid prefix ends and why, and nothing read beyond it."""

from __future__ import annotations

import random

import kernel_reference as reference
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import Guarded, Row
from sampling import examples

from logstore import _native
from logstore.errors import CorruptRecordError

NOISE = random.Random(9).randbytes(4000)
GUARDED = Guarded(1 << 16)
V1 = bytes.fromhex(
    "00000000000000030000001ab1a6ec76010000000000000003e8000000026b31000000027631"
    "000000000000000400000018ef17230e010000000000000003e9ffffffff000000027632"
)


def batch_of(base_offset, count=2, **fields):
    rows = [Row(1000 + index, b"key", NOISE[: 30 + index]) for index in range(count)]
    return reference.encode_batch(rows, base_offset=base_offset, **fields)


BATCHES = [batch_of(0), batch_of(2, 3, leader_epoch=4), batch_of(9, 1), batch_of(10, 4)]
LOG = b"".join(BATCHES)
ENDS = np.cumsum([0, *(len(batch) for batch in BATCHES)]).tolist()
END, TORN, INVALID = _native.SCAN_STOP_END, _native.SCAN_STOP_TORN, _native.SCAN_STOP_INVALID


def scan(data, **options):
    return _native.scan_batches(GUARDED(data), **options)


def test_whole_log():
    """Positions, offsets and sizes of every batch, and the next offset."""
    result = scan(LOG, position=5000, records=True, order=True)
    assert (len(LOG), 14, END) == result[:3]
    assert [5000 + end for end in ENDS[:-1]] == result.batches["position"].tolist()
    assert [len(batch) for batch in BATCHES] == result.batches["size_bytes"].tolist()
    assert [1, 4, 9, 13] == result.batches["last_offset"].tolist()
    assert [1, 1, 1, 1] == result.batches["crc_ok"].tolist()


def test_nothing():
    """No bytes: the end, and the next offset that was passed."""
    result = scan(b"", next_offset=7)
    assert (0, 7, END, 0) == (*result[:3], len(result.batches))


def test_every_truncation():
    """Cut at any byte, the whole batches before the cut are valid, and the rest is torn."""
    for size in range(len(LOG) + 1):
        valid = max(end for end in ENDS if end <= size)
        result = scan(LOG[:size], records=True)
        assert (valid, END if valid == size else TORN) == (result.valid_bytes, result.stop), size
        assert ENDS.index(valid) == len(result.batches)


@pytest.mark.parametrize("crc", [True, False])
def test_every_bit_flip(crc):
    """With CRCs every flip behind byte 16 of a batch is found; without, no flip leads outside."""
    for at in range(len(LOG)):
        batch = max(index for index, end in enumerate(ENDS) if end <= at)
        field = at - ENDS[batch]
        for bit in range(8):
            damaged = bytearray(LOG)
            damaged[at] ^= 1 << bit
            result = scan(bytes(damaged), crc=crc, records=True)
            if crc and field >= 17:
                assert (ENDS[batch], INVALID, batch) == (
                    result.valid_bytes,
                    result.stop,
                    len(result.batches),
                )
            assert result.valid_bytes <= len(LOG)


def test_order_finds_going_back():
    """With ``order`` a base offset below the end before it is damage; without, it is not."""
    log = batch_of(5) + batch_of(6)
    assert (len(batch_of(5)), INVALID) == scan(log, order=True)[::2][:2]
    assert (len(log), 8, END) == scan(log)[:3]
    assert (0, 6, INVALID) == scan(log, order=True, next_offset=6)[:3]


def test_next_offset_never_goes_back():
    """A repeated batch leaves the next offset where it was."""
    assert 14 == scan(LOG + BATCHES[0]).next_offset


@pytest.mark.parametrize(
    ("change", "stop"),
    [
        ((8, (48).to_bytes(4)), INVALID),  # Shorter than a v2 header.
        ((8, (13).to_bytes(4)), INVALID),  # Shorter than any entry.
        ((8, (-1).to_bytes(4, signed=True)), INVALID),
        ((8, (2**31 - 1).to_bytes(4)), TORN),
        ((16, b"\3"), INVALID),
        ((16, b"\xff"), INVALID),
        ((17, b"\0\0\0\0"), INVALID),
        ((0, b"\xff"), INVALID),  # A negative base offset.
        ((0, b"\x7f" + b"\xff" * 7), INVALID),  # Its last offset would overflow.
    ],
)
def test_header_damage(change, stop):
    """Each bound on a header, in the second of two batches."""
    at, data = change
    damaged = bytearray(LOG[: ENDS[2]])
    damaged[ENDS[1] + at : ENDS[1] + at + len(data)] = data
    result = scan(bytes(damaged))
    assert (ENDS[1], stop, 1) == (result.valid_bytes, result.stop, len(result.batches))


def test_negative_last_offset_delta():
    """No batch ends before it begins, whatever its CRC says."""
    assert INVALID == scan(batch_of(5, last_offset_delta=-1)).stop


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"\x41"])
def test_filled_tail(fill):
    """Zeros or other filling behind the last batch is not a batch."""
    for size in (17, 61, 300):
        result = scan(LOG + fill * size)
        assert (len(LOG), 4) == (result.valid_bytes, len(result.batches))
        assert result.stop in (INVALID, TORN)
    assert INVALID == scan(LOG + bytes(12)).stop


def test_legacy_entries_are_handed_over():
    """A magic 0 or 1 entry stops the scan so that the caller can go on."""
    result = scan(BATCHES[0] + V1)
    assert (ENDS[1], _native.SCAN_STOP_LEGACY) == (result.valid_bytes, result.stop)
    assert TORN == scan(V1[:30]).stop


def test_records_finds_what_a_crc_cannot():
    """A right CRC over malformed records is valid only without ``records``."""
    bad = batch_of(0, section=b"\x10\0\0\0\2a\2" * 2)
    assert (END, INVALID) == (scan(bad).stop, scan(bad, records=True).stop)
    assert INVALID == scan(batch_of(0, section=b""), records=True).stop


def test_compressed_batches_are_not_looked_into():
    """The structure of compressed records needs their codec."""
    batch = batch_of(0, attributes=2, section=b"anything")
    assert END == scan(batch, records=True).stop
    checked = _native.scan_checked(batch)
    assert _native.CHECK_SKIPPED == checked.checks["flags"].item()


@given(st.integers(0, 9))
def test_cap(cap):
    """With a cap the scan stops when it is reached and can go on from there."""
    result = scan(LOG, cap=cap)
    count = min(cap, 4)
    assert (ENDS[count], END if cap >= 4 else _native.SCAN_STOP_FULL, count) == (
        result.valid_bytes,
        result.stop,
        len(result.batches),
    )


def test_more_batches_than_the_first_cap():
    """Without a cap all batches are returned, however many."""
    batch = batch_of(0, 1)
    result = _native.scan_batches(batch * 1000, position=50)
    assert (1000 * len(batch), END) == (result.valid_bytes, result.stop)
    positions = np.arange(1000) * len(batch) + 50
    assert positions.tolist() == result.batches["position"].tolist()


@settings(max_examples=examples(60))
@given(
    st.lists(st.integers(1, 4), max_size=12), st.integers(400, 900), st.sampled_from([0, 150, 300])
)
def test_recovery_in_pieces(counts, piece_bytes, interval):
    """A segment scanned and indexed piece by piece gives what one scan of the whole gives."""
    offsets = np.cumsum([0, *counts]).tolist()
    log = b"".join(batch_of(offset, count) for offset, count in zip(offsets, counts, strict=False))
    whole = _native.index_batches(
        _native.scan_batches(log).batches, _native.IndexState(0, interval)
    )
    state = _native.IndexState(0, interval)
    made = [b"", b""]
    position = next_offset = 0
    while position < len(log):
        result = scan(
            log[position : position + piece_bytes],
            position=position,
            next_offset=next_offset,
            order=True,
        )
        assert result.stop in (END, TORN)
        made = [
            done + more
            for done, more in zip(made, _native.index_batches(result.batches, state), strict=True)
        ]
        position, next_offset = position + result.valid_bytes, result.next_offset
    assert (list(whole), offsets[-1]) == (made, next_offset)


def test_count_only():
    """Without an array the batches are counted."""
    scanned = _native.ffi.new("struct ls_scan *")
    log = (_native.address_of(LOG), len(LOG))
    assert 4 == _native.lib.ls_scan_batches(*log, 0, 0, 1, 0, 0, scanned)
    assert (len(LOG), 0, 14) == (scanned.valid_bytes, scanned.batch_count, scanned.next_offset)


def test_scan_checked():
    """What the validator needs, for each batch in the same pass."""
    rows = [Row(50, b"k", b"v"), Row(-1, None, b"w"), Row(70, None, None)]
    log = reference.encode_batch(rows, max_timestamp=999) + batch_of(3)
    checked = _native.scan_checked(GUARDED(log), lowest_timestamp=60, highest_timestamp=1000)
    assert (len(log), END) == (checked.scan.valid_bytes, checked.scan.stop)
    both = _native.CHECK_SEQUENTIAL | _native.CHECK_INCREASING
    assert [(70, -1, 1, 2, 2, both), (1001, 1000, 1, 0, 1, both)] == checked.checks.tolist()


def test_scan_checked_goes_on():
    """A full array stops the scan; it goes on behind what was done."""
    first = _native.scan_checked(LOG, cap=3)
    assert (_native.SCAN_STOP_FULL, 3, ENDS[3]) == (
        first.scan.stop,
        len(first.checks),
        first.scan.valid_bytes,
    )
    rest = _native.scan_checked(LOG[ENDS[3] :], cap=3)
    assert (END, 1) == (rest.scan.stop, len(rest.checks))


def test_find_batch():
    """The first batch that ends at or after an offset, gaps included."""
    positions = [_native.find_batch(GUARDED(LOG), offset) for offset in range(-1, 16)]
    expected = [0, 0, 0, *[ENDS[1]] * 3, *[ENDS[2]] * 5, *[ENDS[3]] * 4, None, None]
    assert expected == positions


def test_find_batch_among_legacy_entries():
    """A legacy entry's offset is its last one; v2 batches may follow."""
    log = V1 + batch_of(5)
    assert [0, 38, len(V1)] == [_native.find_batch(GUARDED(log), offset) for offset in (3, 4, 6)]


def test_find_batch_in_part_of_a_log():
    """The bytes may end inside an entry: it is found when its header is there."""
    for size in range(len(LOG)):
        found = _native.find_batch(GUARDED(LOG[:size]), 9)
        assert (ENDS[2] if size >= ENDS[2] + 61 else None) == found


def test_find_batch_refuses_damage():
    """A length or magic that cannot be ends the walk."""
    for at, data in ((8, b"\xff"), (8, bytes(4)), (11, b"\x30"), (16, b"\5")):
        damaged = bytearray(LOG)
        start = ENDS[1] + at
        damaged[start : start + len(data)] = data
        if at == 11:
            damaged[ENDS[1] + 8 : ENDS[1] + 12] = (48).to_bytes(4)
        with pytest.raises(CorruptRecordError):
            _native.find_batch(GUARDED(bytes(damaged)), 9)


@settings(max_examples=examples(200))
@given(st.binary(max_size=200), st.integers(0, 3), st.booleans(), st.booleans())
def test_any_bytes_behind_a_log(data, count, crc, records):
    """Whatever follows valid batches, the scan keeps them and stays inside."""
    log = LOG[: ENDS[count]] + data
    result = scan(log, crc=crc, records=records)
    assert ENDS[count] <= result.valid_bytes <= len(log)
    try:
        _native.find_batch(GUARDED(log), 10**6)
    except CorruptRecordError:
        assert data
