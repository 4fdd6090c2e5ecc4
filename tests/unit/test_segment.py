"""A segment's life: rolled, sealed, flushed, truncated; each bug found there, by name."""

from __future__ import annotations

import os
from pathlib import Path

import crash_workload as workload
import pytest

from logstore.segment import SEGMENT_SUFFIXES, segment_file_name
from logstore.simulated_files import FailingFiles
from logstore.verification import verify_partition


@pytest.fixture
def session(tmp_path):
    """A log with sealed segments and an active one, on files that count calls and can fail."""
    session = workload.Session(os.fspath(tmp_path / "log-0"), FailingFiles())
    log = session.open()
    for first in range(0, 40, 10):
        log.extend([b"value-%d" % number for number in range(first, first + 10)])
        log.roll()
    log.append(b"active")
    yield session
    assert list(session.log.check()) == []
    session.log.close()


def test_roll_over_leftovers(session):
    """Files of the new segment's names, which no segment has, do not get into the log."""
    log = session.log
    end = log.log_end_offset
    for suffix in SEGMENT_SUFFIXES:
        with open(os.path.join(log.directory, segment_file_name(end, suffix)), "wb") as file:
            file.write(b"\1" * 60)
    segment = log.roll()
    assert 0 == segment.size_bytes
    log.append(b"after")
    assert 0 == segment.offset_index.entry_count
    assert [] == segment.collect_aborted_txns(0, log.log_end_offset).aborted_transactions
    assert not os.path.exists(segment.txn_index.path)


def test_flushed_segment_is_not_flushed_again(session):
    """A flush waits for the device once for each sealed segment, until the segment changes."""
    log, files = session.log, session.files
    log.flush()
    sealed = log.segments[-2]
    before = files.calls("fdatasync")
    sealed.flush(with_indexes=False)
    assert before == files.calls("fdatasync")
    sealed.flush()
    assert before + 2 == files.calls("fdatasync")
    sealed.flush()
    assert before + 2 == files.calls("fdatasync")
    log.truncate_to(sealed.base_offset + 5)
    sealed = log.active_segment
    sealed.on_become_inactive()
    before = files.calls("fdatasync")
    sealed.flush()
    assert before < files.calls("fdatasync")


def test_verify_after_truncation_and_crash(session):
    """Entries that a truncation removed from an active index are not in its file any more."""
    log = session.log
    log.truncate_to(log.segments[1].base_offset)
    log.extend([b"%d" % number for number in range(8)])
    for number in range(8):
        log.append(b"single-%d" % number)
    log.active_segment.take_index_entries()
    assert log.active_segment.offset_index.entry_count > 3
    log.truncate_to(log.active_segment.base_offset + 10)
    log.flush()
    session.drop()
    try:
        assert [] == [str(damage) for damage in verify_partition(Path(session.path))]
    finally:
        session.open()


def test_lost_tail_of_a_sealed_segment(session):
    """Decision 0030: the gap that is left is read over, and verify names it."""
    log = session.log
    before = [record.offset for record in log.read()]
    sealed = log.segments[2]
    *_, last = sealed.headers()
    session.drop()
    os.truncate(sealed.log_path, last.position)
    gaps = [str(damage) for damage in verify_partition(Path(session.path)) if "gap" in str(damage)]
    log = session.open()
    lost = range(last.base_offset, last.next_offset)
    assert [offset for offset in before if offset not in lost] == [
        record.offset for record in log.read()
    ]
    assert before[-1] + 1 == log.log_end_offset
    assert 1 == len(gaps), gaps
    assert str(lost[0]) in gaps[0]


@pytest.mark.parametrize("flipped", [3, 4])
@pytest.mark.parametrize("bit", [31, 40, 61])
def test_flipped_base_offset(session, bit, flipped):
    """A base offset far too high, with lower ones behind it, does not move the log end there."""
    log = session.log
    for number in range(6):
        log.append(b"single-%d" % number)
    session.clock.advance(60_000)  # So that the flush writes the recovery point.
    log.flush()
    values = [(record.offset, record.value) for record in log.read()]
    segment = log.active_segment
    header = list(segment.headers())[flipped]
    session.drop()
    with open(segment.log_path, "r+b") as file:
        file.seek(header.position)
        file.write((header.base_offset | 1 << bit).to_bytes(8, "big"))
    log = session.open()
    there = [(record.offset, record.value) for record in log.read()]
    assert [each for each in values if each[0] < header.base_offset] == there
    assert header.base_offset == log.log_end_offset
    kept = list((Path(session.path) / "quarantine").rglob("*.log.from-*"))
    assert 1 == len(kept)
