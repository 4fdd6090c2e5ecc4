"""The index files of a new segment, before anybody looks anything up in them."""

from __future__ import annotations

import errno
import gc
import os

import pytest

from logstore.attached_segment import AttachableSegment
from logstore.clock import ManualClock
from logstore.errors import LogStoreError, PoisonedError, StorageError
from logstore.scheduler import ManualScheduler
from logstore.simulated_files import FailingFiles
from logstore.testing import open_log

SETTINGS = {"segment.index.bytes": 1024, "index.interval.bytes": 0}
OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12


def opened(path, files, settings=SETTINGS):
    clock = ManualClock()
    scheduler = ManualScheduler(clock)
    return open_log(path, config=settings, clock=clock, scheduler=scheduler, files=files)


@pytest.fixture(name="files")
def _files():
    return FailingFiles()


@pytest.fixture(name="log")
def _log(tmp_path, files):
    """A log with an active segment that a roll has made: a load looks into its own."""
    log = opened(tmp_path / "log-0", files)
    append(log, 1)
    log.roll()
    yield log
    files.clear()
    assert [] == list(log.check())
    log.close()


def append(log, count=3):
    """Append batches with ascending timestamps; all but a segment's first get index entries."""
    for _ in range(count):
        log.append(b"value", timestamp=1000 + log.log_end_offset)


def index_sizes(segment):
    """Return how long the two files are."""
    return tuple(os.stat(segment._path(suffix)).st_size for suffix in (".index", ".timeindex"))


def test_a_segment_that_nobody_looks_into_has_no_index_objects(log):
    """Neither while it is written nor by the roll; the files are as with them."""
    append(log)
    segment = log.active_segment
    log.roll()
    assert segment._offset_index is None
    assert (2 * OFFSET_ENTRY_BYTES, 2 * TIME_ENTRY_BYTES) == index_sizes(segment)
    assert [[2, 73], [3, 146]] == segment.offset_index.entries().tolist()
    assert [[1002, 2], [1003, 3]] == segment.time_index.entries().tolist()


@pytest.mark.parametrize("looks", ["before", "between", "after"])
def test_a_look_at_any_time_finds_the_entries(log, looks):
    """Before the segment is written, in the middle, or when it is sealed."""
    segment = log.active_segment
    if looks == "before":
        assert 0 == segment.offset_index.entry_count == segment.time_index.entry_count
        assert (1024, 1020) == index_sizes(segment)  # As Kafka has them.
    append(log)
    if looks == "between":
        assert 2 == log.fetch_offset_by_timestamp(1002).offset
        assert segment._offset_index is not None
        assert (1024, 1020) == index_sizes(segment)
    append(log)
    log.roll()
    assert 5 == segment.offset_index.entry_count == segment.time_index.entry_count
    assert 6 == log.fetch_offset_by_timestamp(1006).offset


def test_the_last_time_entry_is_written_by_the_roll(tmp_path, files):
    """The index interval is not reached, and the largest timestamp is not the last one."""
    clock = ManualClock()
    with open_log(
        tmp_path / "log-0", clock=clock, scheduler=ManualScheduler(clock), files=files
    ) as log:
        log.append(b"value")
        segment = log.roll()
        log.append(b"value", timestamp=1000)
        log.append(b"value", timestamp=3000)
        log.append(b"value", timestamp=2000)
        log.roll()
        assert (0, TIME_ENTRY_BYTES) == index_sizes(segment)
        assert (3000, 2) == segment.time_index.last_entry


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_with_a_second_name_is_not_cut(log, tmp_path, suffix):
    """A snapshot by hard links keeps its bytes, zeros at the end and all."""
    append(log)
    segment = log.active_segment
    path = segment._path(suffix)
    with open(path, "ab") as file:
        file.write(bytes(600))  # As a failed append leaves them.
    copy = tmp_path / "copy"
    os.link(path, copy)
    before = len(copy.read_bytes())
    log.roll()
    assert before <= len(copy.read_bytes())  # Only a cut would take from it.
    assert (2 * OFFSET_ENTRY_BYTES, 2 * TIME_ENTRY_BYTES) == index_sizes(segment)


@pytest.mark.parametrize("name", ["open", "ftruncate", "pwrite", "close"])
def test_a_roll_that_fails_anywhere(log, files, name):
    """The error is typed, and the next roll finds every entry."""
    failures = 0
    for at in range(1, 20):
        append(log)
        segment, end = log.active_segment, log.log_end_offset
        files.fail(name, errno.EIO, at=at)
        try:
            log.roll()
            append(log, 1)
        except StorageError as error:
            failures += 1
            assert errno.EIO == error.errno
        files.clear()
        assert [] == list(log.check())
        if log.active_segment is segment:
            append(log, 1)
            log.roll()
        if name != "pwrite":  # Entries that could not be written are hints less.
            assert segment.offset_index.entry_count >= 2
        assert log.log_end_offset >= end
    assert failures > 0


LONG_APPEND = {**SETTINGS, "segment.bytes": 1024, "batch.bytes": 256}


def long_append(log, count=60):
    """Append so many records that the append rolls on its way, again and again."""
    values = [b"%030d" % number for number in range(count)]
    log.extend(values, timestamps=list(range(10**12, 10**12 + count)))


@pytest.mark.parametrize("name", ["open", "pwrite", "close"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
def test_a_roll_inside_an_append_that_fails_anywhere(tmp_path, files, name, code):
    """However far it has come: what was published stays, and the next append goes on."""
    failures = 0
    with opened(tmp_path / "log-0", files, LONG_APPEND) as log:
        for at in range(1, 11):
            segment_count, first = len(log.segments), log.log_end_offset
            files.fail(name, code, at=at)
            try:
                long_append(log)
            except LogStoreError as error:
                failures += 1
                cause = error.__cause__ or error
                assert code == cause.errno
            files.clear()
            assert [] == list(log.check())
            assert len(log.segments) >= segment_count
            appended = [record.value for record in log.read(first)]
            assert [b"%030d" % number for number in range(len(appended))] == appended
            long_append(log)
            assert first + len(appended) + 60 == log.log_end_offset
        assert failures > 0
        names = set(os.listdir(log.directory))
        for segment in log.segments[:-1]:
            stem = f"{segment.base_offset:020d}"
            assert {f"{stem}.log", f"{stem}.index", f"{stem}.timeindex"} <= names


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
@pytest.mark.parametrize("at", [1, 2])
def test_index_files_that_cannot_be_made(log, files, code, at):
    """Neither is left, the append says so, and the next one makes them."""
    files.fail("open", code, at=at, persistent=True)
    with pytest.raises(StorageError) as raised:
        append(log)
    assert code == raised.value.errno
    files.clear()
    names = os.listdir(log.directory)
    assert 2 == len([each for each in names if each.endswith("index")])  # The first segment's.
    append(log)
    assert 4 == log.log_end_offset


def test_a_look_that_cannot_give_the_files_their_size(log, files):
    """The look fails; the append after it, the roll and the next look do not."""
    append(log)
    segment = log.active_segment
    files.fail("ftruncate", errno.EIO, at=2)
    with pytest.raises(StorageError):
        log.fetch_offset_by_timestamp(1002)
    files.clear()
    append(log)
    log.roll()
    assert 5 == segment.offset_index.entry_count


def test_files_of_these_names_are_replaced(log):
    """Nobody's: a roll that failed has left them there."""
    append(log)
    for suffix in (".index", ".timeindex"):
        with open(os.path.join(log.directory, f"{4:020d}{suffix}"), "xb") as file:
            file.write(b"\xff" * 100)
    log.roll()
    append(log)
    log.roll()
    assert 6 == log.segments[2].offset_index.last_offset


@pytest.mark.parametrize("at", ["_take_back", "_take_log", "_take_writer"])
def test_a_roll_that_is_interrupted(tmp_path, files, monkeypatch, at):
    """The writer may have files that Python does not know: no append goes on before a reopening."""

    def interrupt(*_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    log = opened(tmp_path / "log-0", files, LONG_APPEND)
    monkeypatch.setattr(AttachableSegment, at, interrupt)
    with pytest.raises(KeyboardInterrupt):
        long_append(log)
    end = log.log_end_offset
    assert end > 0
    with pytest.raises(PoisonedError):
        log.append(b"value")
    log.abandon()
    with opened(tmp_path / "log-0", files, LONG_APPEND) as log:
        assert end == log.log_end_offset
        long_append(log)
        values = [b"%030d" % number for number in (*range(end), *range(60))]
        assert values == [record.value for record in log]
        assert [] == list(log.check())


@pytest.mark.parametrize("suffix", [".log", ".txnindex", ".index", ".timeindex"])
def test_files_of_these_names_are_replaced_inside_an_append(tmp_path, files, suffix):
    """The same where one native call makes all of them."""
    with opened(tmp_path / "log-0", files, LONG_APPEND) as log:
        long_append(log)
        base_offset = log.segments[1].base_offset
        end = log.log_end_offset
        with open(os.path.join(log.directory, f"{end + base_offset:020d}{suffix}"), "xb") as file:
            file.write(b"\xff" * 100)
        log.roll()  # Like the first segment, so that the next one begins as far behind it.
        long_append(log)
        assert end + base_offset in [segment.base_offset for segment in log.segments]
        assert 120 == sum(1 for _ in log)
        assert [] == list(log.check())
        assert [] == log.collect_aborted_transactions(0, 120)


def test_a_log_that_nobody_closes_leaves_no_descriptors(tmp_path):
    """They go with the log."""
    gc.collect()
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    log = opened(tmp_path / "log-0", FailingFiles())
    append(log)
    log.roll()
    append(log)
    assert log.active_segment._offset_index is None
    log.abandon()
    del log
    gc.collect()
    if before is not None:
        assert before == len(os.listdir("/proc/self/fd"))
