"""
Damage to any byte of a small log alters no key, value, header or timestamp, and crashes nothing.

Base offset and leader epoch of a batch lie outside its CRC: docs/durability.md lists what a change
there can do. It may move records to other offsets; it may not change what is in them.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from logstore.clock import ManualClock
from logstore.config import LogConfig
from logstore.errors import LogStoreError
from logstore.log import Log
from logstore.scheduler import ManualScheduler

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=400, segment_index_bytes=48, index_interval_bytes=100)
RECORD_COUNT = 9
CHANGES = (0x01, 0x80, 0xFF)


@pytest.fixture(name="original", scope="module")
def _original(tmp_path_factory):
    """Return the directory of a small log and what is in its records."""
    path = tmp_path_factory.mktemp("damage") / "t-0"
    clock = ManualClock(NOW_MS)
    with Log.create(path, CONFIG, clock=clock, scheduler=ManualScheduler(clock)) as log:
        for number in range(4):
            log.append(b"value %d" % number, key=b"k", headers=[("h", b"x")], timestamp=NOW_MS)
        log.extend([b"a", None, b""], keys=[None, b"k", b""], compression="lz4")
        log.extend([b"b", b"c"], timestamps=[NOW_MS + 7, NOW_MS - 7])
        rows = {content(record) for record in log.read()}
    assert len(list(path.glob("*.log"))) > 1
    return path, rows


def content(record):
    """Return all of a record but its offset."""
    return record.timestamp, record.key, record.value, tuple(record.headers)


def open_log(path, *, clean):
    clock = ManualClock(NOW_MS)
    return Log.create(
        path,
        CONFIG,
        had_clean_shutdown=clean,
        recovery_point=10**6 if clean else 0,
        clock=clock,
        scheduler=ManualScheduler(clock),
    )


def records_until_an_error(log):
    rows = []
    # Damage below the recovery point is found by who reads it.
    with contextlib.suppress(LogStoreError):
        rows += (content(record) for record in log.read(isolation="log_end"))
    return rows


@pytest.mark.parametrize("clean", [False, True], ids=["unclean", "clean"])
def test_no_byte_of_a_segment_changes_a_record(original, tmp_path, clean):
    """Each byte of each segment, three ways: what is read is what was written, or less."""
    path, rows = original
    copy = tmp_path / "t-0"
    for segment in sorted(path.glob("*.log")):
        data = segment.read_bytes()
        for position in range(len(data)):
            changed = bytearray(data)
            changed[position] ^= CHANGES[position % len(CHANGES)]
            shutil.copytree(path, copy)
            Path(copy, segment.name).write_bytes(changed)
            where = f"byte {position} of {segment.name}"
            try:
                log = open_log(copy, clean=clean)
            except LogStoreError as error:
                pytest.fail(f"{where}: {error!r}")
            with log:
                assert set(records_until_an_error(log)) <= rows, where
            shutil.rmtree(copy)


@pytest.mark.parametrize("pattern", ["*.index", "*.timeindex", "*.snapshot", "leader-epoch-*"])
def test_no_byte_of_another_file_costs_a_record(original, tmp_path, pattern):
    """Indexes, snapshots and checkpoints are hints: damage there costs nothing."""
    path, rows = original
    copy = tmp_path / "t-0"
    for file in sorted(path.glob(pattern)):
        data = file.read_bytes()
        for position in range(len(data)):
            changed = bytearray(data)
            changed[position] ^= CHANGES[position % len(CHANGES)]
            shutil.copytree(path, copy)
            Path(copy, file.name).write_bytes(changed)
            with open_log(copy, clean=True) as log:
                found = records_until_an_error(log)
                for offset in range(log.log_end_offset):
                    assert content(log[offset]) in rows
            assert set(found) == rows, f"byte {position} of {file.name}"
            assert len(found) == RECORD_COUNT
            shutil.rmtree(copy)
