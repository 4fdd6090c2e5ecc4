"""Segments that give their files up while nobody needs them, and open them again."""

from __future__ import annotations

import errno
import gc
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

import pytest
from patience import PATIENCE_SECONDS
from sampling import IS_NIGHTLY

from logstore.clock import ManualClock
from logstore.config import LogConfig
from logstore.errors import PoisonedError, StorageError
from logstore.files import REAL_FILES
from logstore.open_files import OPEN_FILES, SEGMENTS_MAX, default_segments_max
from logstore.scheduler import ManualScheduler
from logstore.segment import LogSegment
from logstore.simulated_files import FailingFiles
from logstore.testing import open_log

PROGRAM = Path(__file__).resolve().parents[1] / "support" / "many_partitions.py"
IN_MEMORY = "/dev/shm"


@pytest.fixture(name="few", autouse=True)
def _few():
    """Let three segments hold files."""
    gc.collect()  # Those of other tests' logs that nobody closed.
    OPEN_FILES.segments_max = 3
    yield OPEN_FILES
    OPEN_FILES.segments_max = None


def opened(path, files=None, **config):
    clock = ManualClock()
    return open_log(
        path,
        config={"segment.bytes": 300, **config},
        clock=clock,
        scheduler=ManualScheduler(clock),
        files=files or FailingFiles(),
    )


def filled(path, count=3, **options):
    """Return a log with a record in each of its segments."""
    log = opened(path, **options)
    for number in range(count):
        if number > 0:
            log.roll()
        log.append(b"%d" % number)
    return log


def values_of(log):
    return [record.value for record in log.read("earliest")]


def holds_files(segment):
    return segment.has_open_log


class TestBound:
    def test_logs_take_turns(self, tmp_path, few):
        """Appends round robin over more logs than may hold files lose nothing."""
        logs = [opened(tmp_path / f"log-{number}") for number in range(8)]
        for turn in range(12):  # They roll, too.
            for number, log in enumerate(logs):
                assert turn == log.append(b"%d of %d" % (turn, number))
                assert few.held_count <= few.segments_max + 1
        for number, log in enumerate(logs):
            assert [b"%d of %d" % (turn, number) for turn in range(12)] == values_of(log)
            log.close()
        assert few.held_count == 0

    def test_segments_of_one_log_take_turns(self, tmp_path, few):
        """A read of all segments leaves a few open."""
        log = filled(tmp_path / "log-0", 10)
        assert [b"%d" % number for number in range(10)] == values_of(log)
        assert sum(map(holds_files, log.segments)) <= few.segments_max
        log.close()

    def test_what_is_used_all_the_time_stays_open(self, tmp_path, few):
        """A log that is written stays open, as a rule, while others come and go."""
        files = FailingFiles()
        busy = opened(tmp_path / "busy-0", files=files, **{"segment.bytes": 100_000})
        logs = [opened(tmp_path / f"log-{number}") for number in range(20)]
        few.segments_max = 10
        before = files.calls("open")
        for log in [*logs, *logs]:
            busy.append(b"value")
            log.append(b"value")
        assert files.calls("open") - before <= len(logs) // 2 * 3  # Three files a time.
        assert few.held_count <= few.segments_max + 1
        for log in (busy, *logs):
            log.close()

    def test_default_is_a_part_of_the_limit(self):
        """Half of the descriptors, three a segment; never more mappings than Linux gives."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
            assert 1024 // 2 // 3 == default_segments_max()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert SEGMENTS_MAX * 2 <= 65_530 // 3

    def test_a_log_that_nobody_closed_is_forgotten(self, tmp_path, few):
        """The list does not keep it, nor does it count."""
        segment = LogSegment(tmp_path, 0, LogConfig.of({}))
        assert holds_files(segment)
        assert few.held_count == 1
        del segment
        assert few.held_count == 0


class TestGivingUp:
    def test_an_active_segment_is_opened_by_the_next_append(self, tmp_path):
        """Offsets, indexes and times go on where they were."""
        log = filled(tmp_path / "log-0", 2, **{"index.interval.bytes": 1})
        active = log.active_segment
        assert active.give_up_files()
        assert not active.is_attached
        assert not holds_files(active)
        assert 2 == log.append(b"2")
        assert active.is_attached
        assert [b"0", b"1", b"2"] == values_of(log)
        assert b"1" == log[1].value
        log.close()
        with opened(tmp_path / "log-0") as log:
            assert [b"0", b"1", b"2"] == values_of(log)

    def test_what_is_being_read_goes_on(self, tmp_path):
        """A range keeps its file."""
        log = filled(tmp_path / "log-0")
        found = log.fetch(0, max_bytes=1000)
        for segment in log.segments:
            assert segment.give_up_files()
        assert b"0" in bytes(found.records.to_bytes())
        log.close()

    def test_a_change_of_this_thread_keeps_the_files(self, tmp_path):
        """Else they would go under the hands of who needs them, further up."""
        log = filled(tmp_path / "log-0")
        with log.changing():
            assert not log.active_segment.give_up_files()
        assert log.active_segment.is_attached
        log.close()

    def test_a_change_of_another_thread_keeps_the_files(self, tmp_path):
        """Nobody waits: that thread may wait for this one."""
        log = filled(tmp_path / "log-0")
        answers = []
        with log.changing():
            other = threading.Thread(
                target=lambda: answers.append(log.active_segment.give_up_files())
            )
            other.start()
            other.join()
        assert answers == [False]
        log.close()

    def test_an_append_that_is_under_way_keeps_the_files(self, tmp_path):
        """Its own items may open other logs."""
        log = filled(tmp_path / "log-0")
        answers = []

        def values():
            for number in range(3):
                answers.append(log.active_segment.give_up_files())
                yield b"%d" % number

        log.extend(values())
        assert 6 == log.log_end_offset
        assert [b"0", b"1", b"2"] * 2 == values_of(log)
        log.close()

    def test_files_that_are_deleted_or_cut_while_closed(self, tmp_path):
        """Truncation and deletion open what they need."""
        log = filled(tmp_path / "log-0", 5)
        for segment in log.segments:
            assert segment.give_up_files()
        log.truncate_to(3)
        for segment in log.segments:
            assert segment.give_up_files()
        log.maybe_increment_log_start_offset(2)
        assert 2 == log.delete_old_segments()
        assert [b"2"] == values_of(log)
        assert 3 == log.append(b"new")
        assert [b"2", b"new"] == values_of(log)
        log.close()


class TestThreads:
    def test_many_threads_over_many_logs(self, tmp_path):
        """Nobody waits for ever, and every record is there once."""
        logs = [opened(tmp_path / f"log-{number}") for number in range(8)]
        appended = [[] for _ in logs]
        failures = []

        def use(seed):
            chance = random.Random(seed)
            for number in range(60):
                at = chance.randrange(len(logs))
                log, what = logs[at], chance.randrange(8)
                value = b"%d of %d" % (number, seed)
                if what < 4:
                    appended[at].append((log.append(value), value))
                elif what == 4:
                    log.extend([value])
                elif what == 5:
                    log.flush()
                elif what == 6 and log.log_end_offset > 0:
                    assert log[chance.randrange(log.log_end_offset)].value
                else:
                    assert len(values_of(log)) <= log.log_end_offset

        def run(seed):
            try:
                use(seed)
            except BaseException as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert failures == []
        assert not any(thread.is_alive() for thread in threads)
        for log, values in zip(logs, appended, strict=True):
            found = {record.offset: record.value for record in log.read("earliest")}
            assert list(range(log.log_end_offset)) == list(found)
            assert all(found[offset] == value for offset, value in values)
            log.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork in a process with threads
def test_a_forked_child_reads_more_logs_than_may_be_open(tmp_path, few):
    """Its logs are the parent's: it flushes nothing, and detaches nothing."""
    logs = [filled(tmp_path / f"log-{number}", 2, files=REAL_FILES) for number in range(6)]
    pid = os.fork()
    if pid == 0:
        try:
            for log in [*logs, *logs]:
                assert [b"0", b"1"] == values_of(log)
            assert few.held_count <= few.segments_max + 1
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the child ends here
            traceback.print_exc()
            os._exit(1)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for log in logs:
        assert 2 == log.append(b"2")
        log.close()


class TestFailures:
    def test_what_is_not_flushed_is_flushed_first(self, tmp_path):
        """Once, and not if it is on the device."""
        files = FailingFiles()
        log = filled(tmp_path / "log-0", 1, files=files)
        before = files.calls("fdatasync")
        assert log.active_segment.give_up_files()
        assert files.calls("fdatasync") == before + 1
        log.append(b"1")
        log.flush()
        before = files.calls("fdatasync")
        assert log.active_segment.give_up_files()
        assert files.calls("fdatasync") == before
        log.close()

    @pytest.mark.parametrize("operation", ["fdatasync", "start_writeback"])
    def test_a_flush_that_fails_poisons_that_log_only(self, tmp_path, operation):
        """Whoever needed the room goes on; the log says so at its next append."""
        files = FailingFiles()
        log = filled(tmp_path / "log-0", 1, files=files)
        files.fail(operation, errno.EIO)
        others = [opened(tmp_path / f"other-{number}") for number in range(6)]
        for other in others:
            other.append(b"value")
        assert not log.active_segment.is_attached
        for _ in range(2):
            with pytest.raises(PoisonedError):
                log.append(b"not acknowledged")
        assert 1 == log.log_end_offset
        log.abandon()
        for other in others:
            other.close()

    def test_a_sealed_segment_that_cannot_be_flushed(self, tmp_path):
        """The next append says so, though its own segment is open."""
        files = FailingFiles()
        log = filled(tmp_path / "log-0", 2, files=files)
        assert [b"0", b"1"] == values_of(log)  # It is open again.
        files.fail("fdatasync", errno.EIO)
        assert log.segments[0].give_up_files()
        assert log.active_segment.is_attached
        with pytest.raises(PoisonedError):
            log.append(b"not acknowledged")
        with pytest.raises(PoisonedError):
            log.flush()
        assert 2 == log.log_end_offset
        log.abandon()

    def test_a_flush_under_way_keeps_the_files(self, tmp_path):
        """Of two on one descriptor one is told of an error."""
        log = filled(tmp_path / "log-0", 1)
        begun, may_end = threading.Event(), threading.Event()

        def flush():
            begun.set()
            may_end.wait()

        other = threading.Thread(target=lambda: log._group_commit.alone(flush))
        other.start()
        begun.wait()
        assert not log.active_segment.give_up_files()
        may_end.set()
        other.join()
        assert log.active_segment.give_up_files()
        log.close()

    @pytest.mark.parametrize("at", [1, 2, 3])
    def test_a_file_that_cannot_be_opened_again(self, tmp_path, at):
        """The append fails and has done nothing; the next one does it."""
        files = FailingFiles()
        log = filled(tmp_path / "log-0", 1, files=files)
        assert log.active_segment.give_up_files()
        files.fail("open", errno.EIO, at=at)
        with pytest.raises(StorageError):
            log.append(b"1")
        files.clear()
        assert 1 == log.log_end_offset
        assert 1 == log.append(b"1")
        assert [b"0", b"1"] == values_of(log)
        log.close()

    @pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
    def test_the_system_has_no_more_files(self, tmp_path, few, number):
        """Others give theirs up, and it is tried again."""
        few.segments_max = 100
        files = FailingFiles()
        log = filled(tmp_path / "log-0", 1, files=files)
        assert log.active_segment.give_up_files()
        other = filled(tmp_path / "other-0", 2)
        files.fail("open", number)
        assert 1 == log.append(b"1")
        assert not all(map(holds_files, other.segments))
        log.close()
        other.close()

    def test_nobody_can_give_up(self, tmp_path, few):
        """Then the error is told."""
        few.segments_max = 100
        files = FailingFiles()
        log = filled(tmp_path / "log-0", 1, files=files)
        assert log.active_segment.give_up_files()
        files.fail("open", errno.EMFILE, persistent=True)
        with pytest.raises(StorageError, match="open files"):
            log.append(b"1")
        files.clear()
        assert 1 == log.append(b"1")
        log.close()


@pytest.mark.linux
@pytest.mark.skipif(not os.path.isdir(IN_MEMORY), reason="needs a file system in memory")
def test_more_partitions_than_descriptors():
    """Each is appended to, rolled, read, truncated and recovered; nightly at full size."""
    sizes = ["10000", "10", "1024"] if IS_NIGHTLY else ["300", "3", "128"]
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
        subprocess.run(
            [sys.executable, os.fspath(PROGRAM), directory, *sizes], check=True, timeout=None
        )
