"""What a log keeps outside its segments: who may write, what was checkpointed, was it closed."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys

import pytest

from logstore._native import real_io
from logstore.checkpoint import CleanShutdownFile, OffsetCheckpointFile
from logstore.clock import ManualClock
from logstore.errors import ClosedError, ConfigError, DiskFullError, LockedError, StorageError
from logstore.files import REAL_FILES, Files
from logstore.log_directory import is_log_directory
from logstore.partition_state import PartitionState
from logstore.writer_lock import has_writer


@pytest.fixture(name="log_path")
def _log_path(tmp_path):
    path = tmp_path / "orders-0"
    path.mkdir()
    return str(path)


@pytest.fixture(name="broker_path")
def _broker_path(tmp_path):
    """A partition's directory inside a log directory."""
    (tmp_path / "meta.properties").write_text("version=1\n")
    path = tmp_path / "orders-0"
    path.mkdir()
    return str(path)


class Offsets:
    def __init__(self, recovery_point, log_start_offset, high_watermark):
        self.recovery_point = recovery_point
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark


def read_all(state):
    return state.recovery_point, state.log_start_offset, state.high_watermark


class TestStandAlone:
    def test_new_log(self, log_path):
        """A new directory has no state: not clean, everything at 0."""
        state = PartitionState.for_writing(log_path)
        assert not state.had_clean_shutdown
        assert (0, 0, 0) == read_all(state)
        assert (log_path, ("orders", 0), 1) == (
            state.path,
            state.topic_partition,
            state.writer_epoch,
        )
        state.close(clean=False)

    def test_offsets_and_clean_marker_survive(self, log_path):
        """What was written is read again; the marker is there between close and open only."""
        marker = CleanShutdownFile(log_path)
        state = PartitionState.for_writing(log_path)
        state.write(Offsets(7, 3, 9))
        assert not marker.exists()
        state.close(clean=True)
        assert marker.exists()

        state = PartitionState.for_writing(log_path)
        assert (state.had_clean_shutdown, marker.exists()) == (True, False)
        assert (7, 3, 9) == read_all(state)
        assert 2 == state.writer_epoch
        state.close(clean=False)
        assert not marker.exists()

    def test_files_are_kafkas(self, log_path):
        """The checkpoints have Kafka's names and format."""
        state = PartitionState.for_writing(log_path)
        state.write_recovery_point(42)
        state.close(clean=True)
        path = os.path.join(log_path, "recovery-point-offset-checkpoint")
        assert {("orders", 0): 42} == OffsetCheckpointFile(path).read()

    def test_renamed_directory(self, tmp_path, log_path):
        """The one entry of a stand-alone log is its own, whatever the directory is called now."""
        state = PartitionState.for_writing(log_path)
        state.write_recovery_point(42)
        state.close(clean=True)
        os.rename(log_path, tmp_path / "any name")
        state = PartitionState.for_writing(str(tmp_path / "any name"))
        assert (42, ("log", 0)) == (state.recovery_point, state.topic_partition)
        state.write_log_start_offset(3)
        assert 3 == state.log_start_offset
        state.close(clean=True)

    def test_unreadable_checkpoint_is_empty(self, log_path, caplog):
        """Damage costs a longer recovery and says so."""
        for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
            with open(os.path.join(log_path, name), "w") as file:
                file.write("0\n5\nno numbers\n")
        state = PartitionState.for_writing(log_path)
        assert (0, 0, 0) == read_all(state)
        assert "recovery-point-offset-checkpoint is taken for empty" in caplog.text
        state.close(clean=False)

    def test_full_disk(self, log_path):
        """A recovery point that cannot be written goes away, which says 0; others raise."""

        class FullDisk(Files):
            __slots__ = ("is_full",)

            def replace_file(self, path, data):
                if self.is_full:
                    raise DiskFullError("no space; free some", 28, path=path)
                super().replace_file(path, data)

        files = FullDisk(real_io())
        files.is_full = False
        state = PartitionState.for_writing(log_path, files=files)
        state.write(Offsets(7, 3, 9))
        files.is_full = True
        state.write_recovery_point(5)
        assert (0, 3, 9) == read_all(PartitionState.for_reading(log_path))
        with pytest.raises(DiskFullError):
            state.write_log_start_offset(4)
        files.is_full = False
        state.write_recovery_point(5)
        assert (5, 3, 9) == read_all(PartitionState.for_reading(log_path))
        state.close(clean=False)

    def test_closed(self, log_path):
        """After close nothing is written any more; a second close does nothing."""
        state = PartitionState.for_writing(log_path)
        state.close(clean=False)
        with pytest.raises(ClosedError):
            state.write_recovery_point(1)
        state.close(clean=True)
        assert not CleanShutdownFile(log_path).exists()


class TestLock:
    def test_one_writer(self, log_path):
        """A second writer of this process is told so; after close the way is free."""
        state = PartitionState.for_writing(log_path)
        with pytest.raises(LockedError, match="another handle of this process") as caught:
            PartitionState.for_writing(log_path)
        assert (os.getpid(), socket.gethostname()) == (caught.value.pid, caught.value.host)
        assert has_writer(log_path)
        state.close(clean=False)
        assert not has_writer(log_path)
        PartitionState.for_writing(log_path).close(clean=False)

    def test_looking_does_not_lose_the_lock(self, log_path):
        """A lock of the process would end where any descriptor of the file is closed."""
        state = PartitionState.for_writing(log_path)
        with pytest.raises(LockedError):
            PartitionState.for_writing(log_path)
        assert has_writer(log_path)
        code = (
            "import sys; from logstore.partition_state import PartitionState\n"
            "PartitionState.for_writing(sys.argv[1])\n"
        )
        command = [sys.executable, "-c", code, log_path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "LockedError" in done.stderr
        state.close(clean=False)

    def test_other_process(self, log_path):
        """A writer in another process is named; its death frees the lock."""
        code = (
            "import sys; from logstore.partition_state import PartitionState\n"
            "state = PartitionState.for_writing(sys.argv[1])\n"
            "print('locked', flush=True); sys.stdin.read()\n"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", code, log_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with child:
            assert "locked\n" == child.stdout.readline()
            with pytest.raises(LockedError) as caught:
                PartitionState.for_writing(log_path)
            assert child.pid == caught.value.pid
            assert not PartitionState.for_reading(log_path).had_clean_shutdown
            child.kill()
        state = PartitionState.for_writing(log_path)
        assert not state.had_clean_shutdown
        assert 2 == state.writer_epoch
        state.close(clean=False)

    def test_waiting(self, log_path):
        """lock_timeout is how long to wait, by the clock that was given."""
        clock = ManualClock(0)
        state = PartitionState.for_writing(log_path)
        with pytest.raises(LockedError):
            PartitionState.for_writing(log_path, clock=clock, lock_timeout=1.5)
        assert 1500 <= clock.milliseconds() < 1600
        state.close(clean=False)

    @pytest.mark.skipif(not REAL_FILES.locks_are_of_files, reason="nobody could see such a lock")
    def test_a_lock_that_everybody_gets(self, log_path):
        """As on some mounts: `bindfs --enable-lock-forwarding`, for one."""

        class OneForAll(Files):
            __slots__ = ()

            def lock(self, fd):
                super().lock(fd)
                return True

        with pytest.raises(StorageError, match="several processes have one lock") as caught:
            PartitionState.for_writing(log_path, files=OneForAll(real_io()))
        assert errno.ENOLCK == caught.value.errno
        PartitionState.for_writing(log_path).close(clean=False)  # Nothing of it is held.

    def test_lock_file_deleted_by_a_broker(self, log_path):
        """A lock counts only on the file that has the name."""
        first = PartitionState.for_writing(log_path)
        os.unlink(os.path.join(log_path, ".lock"))
        second = PartitionState.for_writing(log_path)  # As after a broker's release.
        with pytest.raises(LockedError):
            PartitionState.for_writing(log_path)
        first.close(clean=False)
        second.close(clean=False)

    def test_dropped(self, log_path):
        """A writer that nobody reaches any more has given its lock back, and is not clean."""
        state = PartitionState.for_writing(log_path)
        del state
        state = PartitionState.for_writing(log_path)
        assert not state.had_clean_shutdown
        state.close(clean=False)

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork in a process with threads
    def test_fork(self, log_path):
        """A child holds nothing: the parent's close frees the lock although the child lives."""
        state = PartitionState.for_writing(log_path)
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            held = state.is_held
            state.close(clean=True)  # Neither unlocks nor marks clean.
            os.read(told, 1)
            os._exit(1 if held else 0)
        try:
            assert has_writer(log_path)
            assert not CleanShutdownFile(log_path).exists()
            state.close(clean=True)
            PartitionState.for_writing(log_path).close(clean=True)
        finally:
            os.write(tell, b"x")
            assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def test_reading_leaves_no_trace(self, log_path):
        """A reader makes no lock file and needs no right to write."""
        os.chmod(log_path, 0o555)
        try:
            state = PartitionState.for_reading(log_path)
            assert (False, 0) == (state.had_clean_shutdown, state.recovery_point)
            with pytest.raises(ClosedError):
                state.write_recovery_point(1)
            state.close(clean=True)
        finally:
            os.chmod(log_path, 0o755)
        assert [] == os.listdir(log_path)

    def test_reading_state(self, log_path):
        """A reader sees what the last writer left, and leaves the marker in place."""
        state = PartitionState.for_writing(log_path)
        state.write(Offsets(7, 3, 9))
        state.close(clean=True)
        state = PartitionState.for_reading(log_path)
        assert (True, (7, 3, 9)) == (state.had_clean_shutdown, read_all(state))
        state.close(clean=True)
        assert CleanShutdownFile(log_path).exists()


class TestInALogDirectory:
    def test_which_directories_are(self, tmp_path):
        """A broker's files make a directory one; an empty one is none."""
        assert not is_log_directory(str(tmp_path))
        (tmp_path / "cleaner-offset-checkpoint").touch()
        assert is_log_directory(str(tmp_path))

    def test_state_is_the_parents(self, tmp_path, broker_path):
        """The lock and the checkpoints are the parent's; entries of other partitions stay."""
        checkpoint = OffsetCheckpointFile(tmp_path / "recovery-point-offset-checkpoint")
        checkpoint.write({("orders", 0): 5, ("other", 3): 8})
        state = PartitionState.for_writing(broker_path)
        assert (5, str(tmp_path)) == (state.recovery_point, state.path)
        assert has_writer(str(tmp_path))
        state.write_recovery_point(6)
        state.close(clean=True)
        assert {("orders", 0): 6, ("other", 3): 8} == checkpoint.read()
        assert [] == os.listdir(broker_path)

    def test_marker_is_put_back_as_it_was(self, tmp_path, broker_path):
        """It speaks for all partitions: it comes back only if it was there and all went well."""
        marker = CleanShutdownFile(tmp_path)
        marker.write(42)
        state = PartitionState.for_writing(broker_path)
        assert (True, False) == (state.had_clean_shutdown, marker.exists())
        state.close(clean=True)
        assert 42 == marker.read()

        PartitionState.for_writing(broker_path).close(clean=False)
        assert not marker.exists()
        PartitionState.for_writing(broker_path).close(clean=True)
        assert not marker.exists()

    def test_several_logs_share_the_lock(self, tmp_path, broker_path):
        """One process may write in several partitions; the last one to close releases."""
        CleanShutdownFile(tmp_path).write()
        (tmp_path / "orders-1").mkdir()
        first = PartitionState.for_writing(broker_path)
        second = PartitionState.for_writing(str(tmp_path / "orders-1"))
        assert (True, True) == (first.had_clean_shutdown, second.had_clean_shutdown)
        first.write_recovery_point(1)
        second.write_recovery_point(2)
        assert (1, 2) == (first.recovery_point, second.recovery_point)
        first.close(clean=True)
        assert has_writer(str(tmp_path))
        assert not CleanShutdownFile(tmp_path).exists()
        second.close(clean=True)
        assert not has_writer(str(tmp_path))
        assert CleanShutdownFile(tmp_path).exists()

    def test_same_log_twice(self, broker_path):
        """The shared lock does not let one log be written twice."""
        state = PartitionState.for_writing(broker_path)
        with pytest.raises(LockedError, match="another handle of this process"):
            PartitionState.for_writing(broker_path)
        state.close(clean=False)
        PartitionState.for_writing(broker_path).close(clean=False)

    @pytest.mark.parametrize("name", ["no partition", "orders", "orders-0.0123-stray"])
    def test_names_that_a_broker_would_stop_at(self, tmp_path, broker_path, name):
        """In a log directory only partitions are written."""
        (tmp_path / name).mkdir()
        with pytest.raises(ConfigError):
            PartitionState.for_writing(str(tmp_path / name))
        assert not has_writer(str(tmp_path))
