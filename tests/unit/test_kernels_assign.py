"""Headers of scanned batches, changed in place: what an encoder would have written."""

from __future__ import annotations

import random

import kernel_reference as reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import Row
from sampling import examples

from logstore import _native
from logstore.errors import CorruptRecordError

NOISE = random.Random(9).randbytes(5000)
INT31 = st.integers(0, 2**31 - 1)
INT63 = st.integers(0, 2**63 - 1)


def batch_of(base_offset, count=2, **fields):
    """Return a batch of small records."""
    rows = [Row(1000 + index, b"key", NOISE[: 30 + index]) for index in range(count)]
    return reference.encode_batch(rows, base_offset=base_offset, **fields)


LOG = b"".join((batch_of(0), batch_of(2, 3, leader_epoch=4), batch_of(9, 1), batch_of(10, 4)))


def test_assign_batches():
    """Offsets and epoch are written in place; a right max timestamp keeps the CRC."""
    data = bytearray(batch_of(0) + batch_of(0, 3))
    checked = _native.scan_checked(data)
    batches = checked.scan.batches
    next_offset = _native.assign_batches(
        data, batches, checked.checks, next_offset=100, leader_epoch=7
    )
    expected = batch_of(100, leader_epoch=7) + batch_of(102, 3, leader_epoch=7)
    assert (105, expected) == (next_offset, bytes(data))
    again = _native.scan_batches(data).batches
    again["crc_ok"] = 1
    assert again.tolist() == batches.tolist()


def test_assign_corrects_the_max_timestamp():
    """A producer's wrong max timestamp and its LogAppendTime flag are replaced."""
    data = bytearray(batch_of(0, max_timestamp=5, attributes=8))
    checked = _native.scan_checked(data)
    _native.assign_batches(
        data, checked.scan.batches, checked.checks, next_offset=0, leader_epoch=0
    )
    assert batch_of(0) == bytes(data)


def test_assign_stamps_log_append_time():
    """LogAppendTime replaces max timestamp and type."""
    data = bytearray(batch_of(0))
    checked = _native.scan_checked(data)
    _native.assign_batches(
        data,
        checked.scan.batches,
        None,
        next_offset=0,
        leader_epoch=0,
        log_append_time=9999,
    )
    assert batch_of(0, max_timestamp=9999, attributes=8) == bytes(data)


def test_assign_trusts_no_header():
    """A header array that does not belong to the bytes is refused."""
    data = bytearray(LOG)
    batches = _native.scan_batches(data).batches
    for field, number in (("position", len(LOG)), ("position", -1), ("size_bytes", 10**9)):
        wrong = batches.copy()
        wrong[3][field] = number
        with pytest.raises(CorruptRecordError):
            _native.assign_batches(data, wrong, None, next_offset=0, leader_epoch=0)


@settings(max_examples=examples(25))
@given(
    sizes=st.lists(st.integers(0, len(NOISE)), min_size=1, max_size=3),
    offset=st.integers(0, 2**62),
    time=st.none() | INT63,
    producer=st.tuples(INT63, st.integers(0, 2**15 - 1), INT31),
)
def test_numbered_and_assigned(sizes, offset, time, producer):
    """The bytes are those of batches that were encoded so, of any size and with any numbers."""
    producer_id, producer_epoch, sequence = producer
    given_bytes, expected = bytearray(), bytearray()
    at = offset
    for number, size in enumerate(sizes):
        rows = [Row(1000 + number, None, NOISE[:size]), Row(2000, b"k", None)]
        given_bytes += reference.encode_batch(rows, leader_epoch=-1)
        expected += reference.encode_batch(
            rows,
            base_offset=at,
            leader_epoch=7,
            attributes=0x10 if time is None else 0x18,
            max_timestamp=time,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
        )
        at += len(rows)
        sequence = (sequence + len(rows)) & 0x7FFFFFFF
    scan, checks = _native.scan_checked(given_bytes)
    next_sequence = _native.number_batches(
        given_bytes,
        scan.batches,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=producer[2],
    )
    next_offset = _native.assign_batches(
        given_bytes,
        scan.batches,
        checks,
        next_offset=offset,
        leader_epoch=7,
        log_append_time=-1 if time is None else time,
    )
    assert (sequence, at) == (next_sequence, next_offset)
    assert expected == given_bytes
    again = _native.scan_batches(given_bytes)
    assert _native.SCAN_STOP_END == again.stop
    assert again.batches.tolist() == scan.batches.tolist()


def test_number_trusts_no_header():
    """A header array that does not belong to the bytes is refused."""
    data = bytearray(LOG)
    numbers = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    for field, number in (
        ("position", len(LOG)),
        ("position", -1),
        ("size_bytes", 10**9),
        ("size_bytes", 60),
        ("magic", 1),
        ("record_count", -1),
    ):
        wrong = _native.scan_batches(data).batches[3:].copy()
        wrong[0][field] = number
        with pytest.raises(CorruptRecordError):
            _native.number_batches(data, wrong, **numbers)
    assert data == LOG


def test_damage_stays_damage():
    """The new CRC is made from the old one: it does not cover up what has changed since."""
    data = bytearray(LOG)
    batches = _native.scan_batches(data).batches
    data[-1] ^= 1
    _native.number_batches(data, batches, producer_id=1, producer_epoch=0, base_sequence=0)
    found = _native.scan_batches(data)
    assert (_native.SCAN_STOP_INVALID, 3) == (found.stop, len(found.batches))
