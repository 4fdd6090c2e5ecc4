"""Disks that are full or fail: each call of each operation of a log, one after the other."""

from __future__ import annotations

import contextlib
import errno
import os

import crash_workload as workload
import pytest
from sampling import IS_NIGHTLY

from logstore.errors import (
    CorruptRecordError,
    DiskFullError,
    LogStoreError,
    PoisonedError,
    StorageError,
)
from logstore.records_builder import encode_batch
from logstore.simulated_files import FailingFiles

VALUES = [b"value-%d" % number for number in range(12)]
APPENDS = {
    "append": lambda log: log.append(b"one"),
    "append sync": lambda log: log.append(b"one", headers=[("h", b"1")]),
    "extend": lambda log: log.extend(VALUES),
    "extend zstd": lambda log: log.extend(VALUES, compression="zstd"),
    "append_batches": lambda log: log.append_batches(
        encode_batch([(None, workload.NOW_MS, None, value, ()) for value in VALUES]),
        leader_epoch=0,
    ),
    "roll": lambda log: log.roll(),
}
CALLS_MAX = 60


@pytest.fixture
def session(tmp_path):
    """A log with some segments, on files that fail when told so."""
    session = workload.Session(os.fspath(tmp_path / "log-0"), FailingFiles())
    log = session.open()
    log.extend([b"before-%d" % number for number in range(70)])
    log.append(b"last", key=b"k")
    yield session
    session.drop()


def reopened(session):
    """Return the batches that are there after an unclean end."""
    session.drop()
    session.files.clear()
    log = session.open()
    assert list(log.check()) == []
    return workload.batches_of(log)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("name", APPENDS)
def test_append(session, name, code):
    """Whichever call fails: the log is as before, the error typed, and the next append works."""
    files, log = session.files, session.log
    failures = 0
    for at in range(1, CALLS_MAX):
        before = workload.state_of(log)
        # A single append that fails is tried again, once, by the general path.
        files.fail(None, code, at=at, persistent=name == "append")
        try:
            APPENDS[name](log)
        except StorageError as error:
            failures += 1
            assert code == error.errno
            assert isinstance(error, DiskFullError) == (code == errno.ENOSPC)
            files.clear()
            assert before == workload.state_of(log)
            assert list(log.check()) == []
            offset = log.append(b"space is back")
            assert before.log_end_offset == offset
        else:
            files.clear()
            if workload.state_of(log) != before and files.calls() and at > 8:
                break
    assert failures > 0
    expected = workload.batches_of(log)
    assert expected == reopened(session)


@pytest.mark.parametrize("name", APPENDS)
def test_short_and_interrupted(session, name):
    """A short write and an EINTR are no failures: the rest is written."""
    files, log = session.files, session.log
    for at in range(1, 6):
        files.shorten("pwrite", at=at)
        files.fail("pwrite", errno.EINTR, at=at + 1)
        APPENDS[name](log)
        files.clear()
        assert list(log.check()) == []
    expected = workload.batches_of(log)
    assert expected == reopened(session)


@pytest.mark.parametrize("sync", [False, True])
def test_failed_fsync_poisons(session, sync):
    """After a failed fsync nothing is acknowledged until the log is opened again."""
    files, log = session.files, session.log
    files.fail("fdatasync", errno.EIO)
    with pytest.raises(StorageError):
        log.append(b"x", sync=True) if sync else log.flush()
    expected = workload.batches_of(log)
    for act in (
        lambda: log.append(b"y"),
        lambda: log.extend([b"y"]),
        log.flush,
        lambda: log.truncate_to(3),
        log.roll,
    ):
        with pytest.raises(PoisonedError):
            act()
    assert expected == reopened(session)
    session.log.append(b"works", sync=True)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("name", ["truncate", "truncate fully", "increment", "flush", "close"])
def test_other_operations(tmp_path, name, code):
    """Whichever call fails: the next open finds a sound log that lost nothing it should keep."""
    acts = {
        "truncate": lambda log: log.truncate_to(40),
        "truncate fully": lambda log: log.truncate_fully_and_start_at(500),
        "increment": lambda log: log.maybe_increment_log_start_offset(30),
        "flush": lambda log: log.flush(),
        "close": lambda log: log.close(),
    }
    kept = {"truncate": 40, "truncate fully": 0}.get(name, 71)
    for at in range(1, CALLS_MAX, 1 if IS_NIGHTLY else 6):
        session = workload.Session(os.fspath(tmp_path / f"{at}-0"), FailingFiles())
        log = session.open()
        for number in range(71):
            log.append(b"%d" % number)
        before = workload.state_of(log)
        session.files.fail(None, code, at=at)
        try:
            acts[name](log)
            failed = False
        except LogStoreError as error:
            failed = True
            assert isinstance(error, StorageError)
        session.files.clear()
        found = reopened(session)
        if failed:
            by_offset = [each for each in before.batches if each.last_offset < kept]
            assert by_offset == [each for each in found if each.last_offset < kept]
            assert list(before.batches[: len(found)]) == list(found)
        session.log.append(b"works again", sync=True)
        session.log.close()
        if not failed and at > 10:
            break


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_open(tmp_path, code):
    """An open that fails changes nothing that the next one needs."""
    session = workload.Session(os.fspath(tmp_path / "log-0"), FailingFiles())
    session.open().extend([b"%d" % number for number in range(70)])
    expected = workload.batches_of(session.log)
    for at in range(1, CALLS_MAX * 3, 1 if IS_NIGHTLY else 5):
        session.drop()
        session.files.fail(None, code, at=at)
        try:
            session.open()
        except StorageError as error:
            assert code == error.errno
        session.files.clear()
    assert expected == reopened(session)
    session.drop()


def test_full_disk(session):
    """On a disk that is full appends fail whole; with space again they go on."""
    files, log = session.files, session.log
    acknowledged = []
    refused = 0
    for turn in range(60):
        files.budget = (turn * 37) % 400
        before = workload.state_of(log)
        try:
            offsets = log.extend([b"%d-%d" % (turn, number) for number in range(1 + turn % 9)])
            acknowledged.extend(offsets)
        except DiskFullError:
            refused += 1
            assert before == workload.state_of(log)
        files.budget = None
        if turn % 10 == 0:
            acknowledged.append(log.append(b"space"))
    assert refused > 5
    assert list(log.check()) == []
    there = [record.offset for record in log.read()]
    assert acknowledged == there[71:]
    expected = workload.batches_of(log)
    assert expected == reopened(session)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("name", workload.TRUNCATIONS)
def test_truncation(directory, name, code, persistent):
    """Whichever call fails: the log is as before, or takes no changes and serves nothing wrong."""
    truncate, kept = workload.TRUNCATIONS[name]
    session = workload.to_truncate(directory / f"{name}-{code}-{persistent}-0", FailingFiles())
    calls = session.files.calls()
    truncate(session.log)
    calls = session.files.calls() - calls
    session.drop()
    unchanged = poisoned = 0
    for at in range(1, calls + 1, 1 if IS_NIGHTLY else 3):
        session = workload.to_truncate(
            directory / f"{name}-{code}-{persistent}-{at}", FailingFiles()
        )
        log = session.log
        before = workload.state_of(log)
        values = [record.value for record in log.read()]
        session.files.fail(None, code, at=at, persistent=persistent)
        try:
            truncate(log)
        except StorageError:
            session.files.clear()
        else:
            session.files.clear()  # On a full disk it is cut in place: nobody reads.
            assert list(log.check()) == []
            session.drop()
            continue
        there = []
        with contextlib.suppress(CorruptRecordError):  # Of a file that was cut, and then it failed.
            there.extend(record.value for record in log.read())
        assert values[: len(there)] == there
        assert kept - 10 <= len(there)
        try:
            assert log.log_end_offset == log.append(b"after")
        except PoisonedError:
            poisoned += 1
            for act in (log.flush, log.roll, lambda log=log: truncate(log)):
                with pytest.raises(PoisonedError):
                    act()
            found = reopened(session)
            assert list(before.batches[: len(found)]) == list(found)
            assert all(each in found for each in before.batches if each.last_offset < kept)
        else:
            unchanged += 1
            assert values == there
            truncate(log)
            assert list(log.check()) == []
        session.drop()
    assert unchanged > 0
    assert poisoned > 0
