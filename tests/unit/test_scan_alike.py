"""Scans of records that are alike, which C compares at once: at every size where a varint grows."""

from __future__ import annotations

import itertools

import pytest

import logstore
from logstore.records_builder import encode_batch

pytest.importorskip("pyarrow")

COLUMNS = ("offset", "timestamp", "value")


def rows_of(log, **options):
    """Return what a scan has, one tuple for each record."""
    table = log.scan(columns=COLUMNS, **options).to_table()
    times = table["timestamp"].cast("int64").to_pylist()
    return list(zip(table["offset"].to_pylist(), times, table["value"].to_pylist(), strict=True))


def expected_of(log):
    return [(record.offset, record.timestamp, record.value) for record in log.read()]


def assert_scans(log):
    expected = expected_of(log)
    for views, verify_crc in itertools.product([False, True], repeat=2):
        assert expected == rows_of(log, views=views, verify_crc=verify_crc)


@pytest.fixture(name="log", params=["sealed", "active"])
def _log(request, tmp_path):
    with logstore.open(tmp_path / "orders-0") as log:
        yield log
        if request.param == "sealed":
            log.roll()
            log.append(b"behind")
        assert_scans(log)


@pytest.mark.parametrize("size", [0, 1, 12, 13, 54, 55, 63, 64, 65, 100, 8183, 8184, 8192])
def test_sizes(log, size):
    """Values of one size, in batches of more records than one byte can number."""
    count = 200 if size > 1000 else 9000
    log.extend([bytes([at % 251]) * size for at in range(count)])


@pytest.mark.parametrize("step", [0, 1, 63, 64, -1, 8192])
def test_timestamps(log, step):
    """Deltas of one byte and of more, rising and falling."""
    log.extend(
        [b"%064d" % at for at in range(300)],
        timestamps=[1_700_000_000_000 + at * step for at in range(300)],
    )


def test_others_in_between(log):
    """Nulls, keys, headers and other sizes, one at a time and several in a row."""
    values = [b"%032d" % at for at in range(400)]
    keys, headers = [None] * 400, [()] * 400
    for at in (3, 50, 51, 64, 65, 120):
        values[at] = None
    for at in (7, 60, 61, 130):
        values[at] = b"another size"
    for at in (9, 66, 140, 141, 142):
        keys[at] = b"k"
    for at in (11, 68, 150):
        headers[at] = [("h", b"v")]
    log.extend(values, keys=keys, headers=headers)
    log.extend(values)


def test_gaps(log):
    """Offsets that skip some, in a leader's batches that a follower takes as they are."""
    kept = [at for at in range(500) if at % 7 and at % 64 != 63]
    rows = [(at, 1_700_000_000_000 + at, None, b"%020d" % at, ()) for at in kept]
    batch = encode_batch(rows, base_offset=kept[0], leader_epoch=0)
    log.append_batches(batch, leader_epoch=0, origin="replication")


def test_log_append_time(tmp_path):
    """One time for all records of a batch."""
    config = {"message.timestamp.type": "LogAppendTime"}
    with logstore.open(tmp_path / "orders-0", config=config) as log:
        log.extend([b"%064d" % at for at in range(300)])
        log.roll()
        assert_scans(log)


def test_a_damaged_header_among_them(tmp_path):
    """Each byte of a record in the middle, changed: what is delivered is what iteration finds."""
    with logstore.open(tmp_path / "orders-0") as log:
        log.extend([b"%064d" % at for at in range(40)])
        path, size = log.active_segment.log_path, log.active_segment.size_bytes
        record_size = (size - 61) // 40
        log.roll()
        with open(path, "r+b") as file:
            for at in range(9):
                position = 61 + 20 * record_size + at
                before = file.seek(position) and file.read(1)
                for changed in (before[0] ^ 0x80, before[0] ^ 1):
                    file.seek(position)
                    file.write(bytes([changed]))
                    file.flush()
                    with pytest.raises(logstore.CorruptRecordError):
                        rows_of(log)
                    try:
                        rows = rows_of(log, verify_crc=False)
                    except logstore.CorruptRecordError:
                        pass
                    else:
                        assert 40 == len(rows)
                        assert rows[19][2] == b"%064d" % 19
                file.seek(position)
                file.write(before)
        assert_scans(log)
