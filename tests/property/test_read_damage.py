"""Reading on after damage: any byte, anywhere, costs what is reported and alters nothing."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import logstore
from logstore.record import iterate_batches

CONFIG = {"segment.bytes": 700, "batch.bytes": 160, "index.interval.bytes": 200}
RECORD_COUNT = 60
OUTSIDE_THE_CRC = {*range(8), *range(12, 16)}  # Base offset, leader epoch: docs/durability.md.


@pytest.fixture(name="log", scope="module")
def _log():
    with (
        tempfile.TemporaryDirectory() as directory,
        logstore.open(os.path.join(directory, "d-0"), config=CONFIG) as log,
    ):
        for first in range(0, RECORD_COUNT, 3):
            log.extend(
                [b"value %d" % at for at in range(first, first + 3)],
                keys=[b"%d" % at for at in range(first, first + 3)],
                compression="gzip" if first % 4 == 0 else None,
            )
        assert len(log.segments) > 2
        yield log
        assert [] == list(log.check())


def protected_positions(data):
    """Return where a change cannot pass unnoticed."""
    positions, start = [], 0
    for batch in iterate_batches(data):
        positions += [start + at for at in range(batch.size_bytes) if at not in OUTSIDE_THE_CRC]
        start += batch.size_bytes
    return positions


def expect_only_what_is_reported(log, records, start=0):
    """Read with skip: what comes is unaltered, what does not is reported; raise stops at it."""
    records = records[start:]
    reader = log.read(start, on_corrupt="skip")
    found = list(reader)
    assert found == [record for record in records if record in found]
    missing = {record.offset for record in records} - {record.offset for record in found}
    reported = {at for part in reader.skipped for at in range(part.start, part.stop)}
    assert missing <= reported
    assert not reported & {record.offset for record in found}
    assert RECORD_COUNT == reader.next_offset

    values = log.read_values(start, on_corrupt="skip")
    assert [record.value for record in found] == list(values)
    assert reader.skipped == values.skipped

    stops = log.read(start)
    before = []
    if reader.skipped:
        with pytest.raises(logstore.CorruptRecordError) as caught:
            before.extend(stops)
        first = reader.skipped[0]
        error = caught.value
        assert (first.path, first.position) == (error.path, error.position)
        assert first.start == error.offset == stops.next_offset
    else:
        before.extend(stops)
    assert [record for record in records if record.offset < stops.next_offset] == before


@settings(max_examples=60)
@given(data=st.data())
def test_one_byte(log, data):
    """Any byte of any batch, to any other value."""
    records = list(log.read())
    segment = data.draw(st.sampled_from(log.segments))
    path = Path(segment.log_path)
    original = path.read_bytes()[: segment.size_bytes]
    if not original:
        return
    position = data.draw(st.sampled_from(protected_positions(original)))
    change = data.draw(st.integers(1, 255))
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes([original[position] ^ change]))
    try:
        start = data.draw(st.integers(0, RECORD_COUNT))
        expect_only_what_is_reported(log, records, start)
        assert_scan_reports_what_read_reports(log, start)
    finally:
        with path.open("r+b") as file:
            file.write(original)


@settings(max_examples=30)
@given(data=st.data())
def test_several_pieces(log, data):
    """Zeros and noise over several batches at once, in several segments."""
    records = list(log.read())
    originals = {}
    try:
        for segment in data.draw(st.lists(st.sampled_from(log.segments), max_size=3)):
            path = Path(segment.log_path)
            original = originals.setdefault(path, path.read_bytes()[: segment.size_bytes])
            if not original:
                continue
            # From the length field of a batch on: before it is what the CRC does not cover.
            starts, at = [], 0
            for batch in iterate_batches(original):
                starts.append(at)
                at += batch.size_bytes
            start = data.draw(st.sampled_from(starts)) + 16
            noise = data.draw(st.sampled_from([b"\0", b"\xff", b"\x02\x7f"]))
            size = data.draw(st.integers(1, 40))
            with path.open("r+b") as file:
                file.seek(start)
                file.write((noise * size)[: len(original) - start][:40])
        expect_only_what_is_reported(log, records)
        assert_scan_reports_what_read_reports(log, 0)
    finally:
        for path, original in originals.items():
            with path.open("r+b") as file:
                file.write(original)


@settings(max_examples=60)
@given(data=st.data())
def test_base_offset_that_is_too_low(log, data):
    """No CRC covers it: the batch would be passed over, or its records given wrong offsets."""
    records = list(log.read())
    segment = data.draw(st.sampled_from(log.segments))
    path = Path(segment.log_path)
    original = path.read_bytes()[: segment.size_bytes]
    batches, position = [], 0
    for batch in iterate_batches(original):
        batches.append((position, batch.base_offset))
        position += batch.size_bytes
    if not batches:
        return
    position, base_offset = data.draw(st.sampled_from(batches))
    lower = data.draw(st.integers(1, 4) | st.integers(1, base_offset + 2) | st.just(2**62))
    with path.open("r+b") as file:
        file.seek(position)
        file.write((base_offset - lower).to_bytes(8, "big", signed=True))
    try:
        for start in {0, base_offset, data.draw(st.integers(0, RECORD_COUNT))}:
            expect_only_what_is_reported(log, records, start)
        assert_scan_reports_what_read_reports(log, base_offset)
    finally:
        with path.open("r+b") as file:
            file.write(original)


def assert_scan_reports_what_read_reports(log, start):
    """A scan delivers what a read does, and stops at the same place for the same reason."""
    expected, found, errors = [], [], []
    try:
        expected.extend(record.offset for record in log.read(start))
    except logstore.CorruptRecordError as error:
        errors.append(error)
    try:
        for batch in log.scan(start).to_arrow():
            found.extend(batch["offset"].to_pylist())
    except logstore.CorruptRecordError as error:
        errors.append(error)
    assert expected == found
    assert len(errors) in (0, 2)
    assert 1 >= len({(str(each), each.path, each.offset, each.position) for each in errors})


def test_file_cut_short(log):
    """A file that ends early costs its rest, and is not taken for a shorter log."""
    records = list(log.read())
    segment = log.segments[1]
    path = Path(segment.log_path)
    original = path.read_bytes()
    for size in (0, 1, 61, len(original) // 2, len(original) - 1):
        os.truncate(path, size)
        expect_only_what_is_reported(log, records)
        assert_scan_reports_what_read_reports(log, segment.base_offset + 1)
        with path.open("r+b") as file:
            file.write(original)


def test_start_behind_damage(log, caplog):
    """A read that begins in a damaged segment goes on behind the damage, and says so."""
    records = list(log.read())
    segment = log.segments[0]
    path = Path(segment.log_path)
    original = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(8)
        file.write(b"\x7f")  # The length of the first batch.
    try:
        reader = log.read(4, on_corrupt="skip")
        found = list(reader)
        missing = {record.offset for record in records[4:]} - {each.offset for each in found}
        reported = {at for part in reader.skipped for at in range(part.start, part.stop)}
        assert missing <= reported
        assert found == [record for record in records if record in found]
        assert len(reader.skipped) == caplog.text.count("skipped offsets")
    finally:
        path.write_bytes(original)


def test_unknown_choice(log):
    """Only the two that are documented."""
    with pytest.raises(ValueError, match="on_corrupt 'ignore' is not one of raise, skip"):
        log.read(on_corrupt="ignore")
