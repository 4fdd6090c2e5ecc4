"""Indexes of sealed segments, and snapshots, wait: for a flush of many, never for a promise."""

from __future__ import annotations

import errno
import os

import crash_workload as workload
import pytest

from logstore.checkpoint import RECOVERY_POINT_CHECKPOINT, OffsetCheckpointFile
from logstore.errors import PoisonedError, StorageError
from logstore.log_flush import flush_log_files
from logstore.partition_flush import FLUSH_INDEXES_DELAY_MS
from logstore.sealed_files import SealedFiles
from logstore.simulated_files import FailingFiles, SimulatedFiles


def rolled(path, files, rolls=3):
    """Return a session whose log has sealed some segments, none of which was flushed."""
    session = workload.Session(os.fspath(path / "log-0"), files)
    log = session.open()
    for first in range(0, 10 * rolls, 10):
        log.extend([b"value-%d" % number for number in range(first, first + 10)])
        log.roll()
    return session


def kept_recovery_point(session):
    """Return what a load would begin with after a crash."""
    path = os.path.join(session.path, RECOVERY_POINT_CHECKPOINT)
    return next(iter(OffsetCheckpointFile(path).read().values()), 0)


def advance(session, milliseconds):
    """Let time pass, and with it the background work that falls due."""
    return session.scheduler.advance_to(session.clock.milliseconds() + milliseconds)


def test_one_flush_for_many_rolls(tmp_path):
    """It waits for each .log file and the directory; nothing is left to the other tasks."""
    session = rolled(tmp_path, FailingFiles())
    before = session.files.calls("fdatasync")
    assert ["flush-log"] == advance(session, 0)
    assert before + 3 == session.files.calls("fdatasync")
    assert 30 == session.log.recovery_point == session.log.log_end_offset
    session.log.close()


def test_the_kept_recovery_point_waits(tmp_path):
    """What it speaks of needs no recovery: it stays behind until indexes and snapshots are safe."""
    session = rolled(tmp_path, FailingFiles())
    advance(session, FLUSH_INDEXES_DELAY_MS // 2)
    log, files = session.log, session.files
    log.append(b"30", sync=True)
    log.maybe_increment_log_start_offset(1)
    assert (31, 0) == (log.recovery_point, kept_recovery_point(session))
    log.truncate_to(25)
    assert (25, 0) == (log.recovery_point, kept_recovery_point(session))
    log.append(b"25", sync=True)

    advance(session, 0)
    before = files.calls("fsync_dir")
    assert "flush-indexes" in advance(session, FLUSH_INDEXES_DELAY_MS)
    assert before + 1 == files.calls("fsync_dir")
    log.append(b"26", sync=True)
    assert 27 == log.recovery_point
    log.maybe_increment_log_start_offset(2)
    assert 27 == kept_recovery_point(session)
    log.close()


def test_what_is_sealed_during_a_flush_gets_one_of_its_own(tmp_path, monkeypatch):
    """It came too late for the flush that is under way, and does not wait for another roll."""
    session = rolled(tmp_path, FailingFiles())
    advance(session, 0)
    log = session.log
    flush_snapshot = SealedFiles._flush_snapshot

    def roll_once(sealed_files, path):
        monkeypatch.undo()
        log.append(b"30")
        log.roll()
        flush_snapshot(sealed_files, path)

    monkeypatch.setattr(SealedFiles, "_flush_snapshot", roll_once)
    advance(session, FLUSH_INDEXES_DELAY_MS)
    advance(session, FLUSH_INDEXES_DELAY_MS)
    log.maybe_increment_log_start_offset(1)
    assert 31 == log.recovery_point == kept_recovery_point(session)
    log.close()


def test_what_is_sealed_during_a_flush_stays_open(tmp_path, monkeypatch):
    """Until it is flushed itself: an error of the device is told to who had the file open."""
    session = rolled(tmp_path, FailingFiles())
    log = session.log

    def roll_once(*arguments):
        monkeypatch.undo()
        log.append(b"30")
        log.roll()
        flush_log_files(*arguments)

    monkeypatch.setattr("logstore.partition_flush.flush_log_files", roll_once)
    log.flush(30)
    *flushed, sealed, _ = log.segments
    assert [] == [segment for segment in flushed if segment.has_open_log]
    assert sealed.has_open_log
    log.flush()
    assert not sealed.has_open_log
    log.close()


def test_much_does_not_wait(tmp_path, monkeypatch):
    """What a recovery would have to read is bounded."""
    monkeypatch.setattr("logstore.partition_flush.UNFLUSHED_INDEXES_BYTES_MAX", 1)
    session = rolled(tmp_path, FailingFiles())
    assert "flush-indexes" in advance(session, 0)
    session.log.maybe_increment_log_start_offset(1)
    assert 30 == kept_recovery_point(session)
    session.log.close()


def test_a_segment_that_was_flushed_when_it_was_sealed(tmp_path):
    """Its indexes are on the device with the roll: the recovery point does not go back."""
    session = workload.Session(os.fspath(tmp_path / "log-0"), FailingFiles())
    log = session.open()
    log.append(b"0", sync=True)
    log.maybe_increment_log_start_offset(1)
    assert 1 == kept_recovery_point(session)
    log.roll()
    log.append(b"1", sync=True)
    log.maybe_increment_log_start_offset(2)
    assert 1 == kept_recovery_point(session)
    log.close()
    assert 2 == kept_recovery_point(session)


def test_close_leaves_nothing_waiting(tmp_path):
    """After a clean end nothing is recovered."""
    for seed in range(5):
        (tmp_path / str(seed)).mkdir()
        session = rolled(tmp_path / str(seed), SimulatedFiles(seed))
        session.log.close()
        names = sorted(os.listdir(session.path))
        session.files.crash()
        assert names == sorted(os.listdir(session.path))
        again = workload.Session(session.path, clock=session.clock)
        assert [] == list(again.open().check())
        again.log.close()


@pytest.mark.parametrize("indexes_are_flushed", [False, True])
def test_power_loss(tmp_path, indexes_are_flushed):
    """Whether the indexes were flushed or not: the log is whole, and its indexes are right."""
    for seed in range(8):
        (tmp_path / str(seed)).mkdir()
        session = rolled(tmp_path / str(seed), SimulatedFiles(seed))
        advance(session, FLUSH_INDEXES_DELAY_MS if indexes_are_flushed else 0)
        session.log.append(b"30", sync=True)
        session.log.maybe_increment_log_start_offset(1)
        session.files.crash()
        session.drop()
        again = workload.Session(session.path, clock=session.clock)
        log = again.open()
        assert 31 == log.log_end_offset
        workload.check_producers(log)
        workload.check_sound(log, None)
        log.close()


def test_failed_flush_of_an_index(tmp_path):
    """What reached the device is unknown: the log is poisoned, and single appends are refused."""
    session = rolled(tmp_path, FailingFiles())
    advance(session, 0)
    session.files.fail("fdatasync", errno.EIO)
    ran = advance(session, FLUSH_INDEXES_DELAY_MS)
    assert ran[0].startswith("flush-indexes failed")
    assert isinstance(session.scheduler.errors.pop(), StorageError)
    with pytest.raises(PoisonedError):
        session.log.append(b"refused")
    with pytest.raises(PoisonedError):
        session.log.close()
    session.files.clear()
    assert 30 == session.open().log_end_offset
    session.log.close()


def test_retention_takes_a_segment_whose_indexes_wait(tmp_path):
    """There is nothing to flush any more."""
    session = rolled(tmp_path, FailingFiles())
    advance(session, 0)
    log = session.log
    log.maybe_increment_log_start_offset(20)
    log.delete_old_segments()
    assert 20 == log.segments[0].base_offset
    advance(session, FLUSH_INDEXES_DELAY_MS)
    assert [] == session.scheduler.errors
    log.close()
