"""From a path to a log: modes, the writer's lock, closing, forking, pickling."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from patience import PATIENCE_SECONDS

import logstore
from logstore.checkpoint import CleanShutdownFile
from logstore.files import REAL_FILES
from logstore.log import make_directory
from logstore.testing import open_log

SMALL = {"segment.bytes": 500, "segment.index.bytes": 120, "index.interval.bytes": 100}


@pytest.fixture(name="path")
def _path(tmp_path):
    return str(tmp_path / "orders-0")


def fill(path, count=30, **options):
    with logstore.open(path, config=SMALL, **options) as log:
        log.extend([b"%d" % at for at in range(log.log_end_offset, count)])


def tree(directory):
    return {
        str(path): (
            path.stat().st_mtime_ns,
            path.stat().st_size,
            path.is_file() and path.read_bytes(),
        )
        for path in Path(directory).rglob("*")
    }


class TestModes:
    def test_append_creates_with_parents(self, tmp_path):
        """Mode "a" makes the directory and those above it, and continues what is there."""
        path = tmp_path / "a" / "b" / "orders-0"
        with logstore.open(path) as log:
            assert 0 == log.append(b"x")
        with logstore.open(path, "a") as log:
            assert 1 == log.append(b"y")
            assert [b"x", b"y"] == list(log.read_values())

    def test_directories_that_two_make(self, tmp_path):
        """Whoever comes second goes on with what the first one has made."""
        start = threading.Barrier(4)
        paths = [tmp_path / str(turn) / "a" / "orders-0" for turn in range(20)]

        def make_all():
            for path in paths:
                start.wait()
                make_directory(str(path), REAL_FILES)

        with ThreadPoolExecutor(4) as pool:
            for made in [pool.submit(make_all) for _ in range(4)]:
                made.result(timeout=PATIENCE_SECONDS)
        assert all(path.is_dir() for path in paths)

    def test_exclusive(self, path):
        """Mode "x" is for a new log; an empty directory is none."""
        os.mkdir(path)
        with logstore.open(path, "x") as log:
            log.append(b"x")
        with pytest.raises(logstore.LogExistsError) as caught:
            logstore.open(path, "x")
        assert isinstance(caught.value, FileExistsError)
        assert path == caught.value.path

    def test_read_needs_a_log(self, path):
        """Mode "r" creates nothing."""
        for _ in range(2):
            with pytest.raises(logstore.LogNotFoundError) as caught:
                logstore.open(path, "r")
            assert isinstance(caught.value, FileNotFoundError)
            assert not os.path.exists(path) or [] == os.listdir(path)
            os.makedirs(path, exist_ok=True)

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ({"mode": "w"}, ValueError),
            ({"high_watermark": "all"}, ValueError),
            ({"config": {"segment.byte": 1}}, logstore.ConfigError),
        ],
    )
    def test_wrong_arguments(self, path, arguments, error):
        """A mistake is told before anything is made."""
        with pytest.raises(error):
            logstore.open(path, **arguments)
        assert not os.path.exists(path)

    def test_path_is_text(self):
        """A path of bytes is refused."""
        with pytest.raises(TypeError, match="path is bytes"):
            logstore.open(b"log")

    def test_path_stays_when_the_program_moves(self, tmp_path, monkeypatch):
        """A relative path is taken once."""
        monkeypatch.chdir(tmp_path)
        with logstore.open("log-0") as log:
            os.mkdir("elsewhere")
            monkeypatch.chdir("elsewhere")
            log.append(b"x")
            log.roll()
            log.append(b"y")
        assert [] == os.listdir()


@pytest.mark.parametrize("mode", ["a", "x", "r"])
def test_a_store_is_no_log(tmp_path, mode):
    """Who gives a store's directory is told so, and nothing is made there."""
    logstore.open_store(tmp_path / "data").close()
    before = sorted(os.listdir(tmp_path / "data"))
    with pytest.raises(logstore.ConfigError, match="is a store, not a log; give a partition in it"):
        logstore.open(tmp_path / "data", mode=mode)
    assert before == sorted(os.listdir(tmp_path / "data"))


@pytest.mark.parametrize("mode", ["a", "r", "x"])
def test_a_file_is_no_log(tmp_path, mode):
    """A path that is a file's is refused as such, in each mode."""
    path = tmp_path / "orders-0"
    path.touch()
    with pytest.raises(logstore.StorageError, match="is a file"):
        logstore.open(path, mode)


class TestReading:
    def test_nothing_is_changed(self, path):
        """A reader leaves a log as it is, after a clean end and after a crash."""
        fill(path)
        before = tree(path)
        with logstore.open(path, "r") as log:
            assert [b"%d" % at for at in range(30)] == list(log.read_values())
            assert 30 == log.log_end_offset == log.high_watermark
            assert b"7" == log[7].value
            assert log.offset_at(0).offset == 0
        assert before == tree(path)

    def test_writing_is_refused(self, path):
        """Every change is a ReadOnlyError."""
        fill(path)
        with logstore.open(path, "r") as log:
            for change in (
                lambda: log.append(b"x"),
                lambda: log.extend([b"x"]),
                log.roll,
                log.flush,
                log.delete_old_segments,
                log.delete,
                lambda: log.truncate_to(0),
            ):
                with pytest.raises(logstore.ReadOnlyError):
                    change()

    def test_beside_a_writer(self, path):
        """A reader sees what a writer appends, after it was opened, too."""
        with logstore.open(path) as log:
            log.append(b"x")
            with logstore.open(path, "r") as reader:
                log.append(b"y")
                assert [b"x", b"y"] == list(reader.read_values())

    def test_after_a_crash(self, path):
        """What recovery would cut is not read, and stays in the file."""
        fill(path)
        os.unlink(os.path.join(path, ".kafka_cleanshutdown"))
        active = max(Path(path).glob("*.log"))
        with active.open("ab") as file:
            file.write(b"\0" * 40)
        min(Path(path).glob("*.index")).unlink()
        before = tree(path)
        with logstore.open(path, "r") as log:
            assert list(range(30)) == [record.offset for record in log]
            assert 12 == log[12].offset
            assert log.offset_at(0).offset == 0
            scratch = Path(log.segments[-1].offset_index.path).parent
            assert scratch.exists()
            assert scratch != Path(path)
        assert before == tree(path)
        del log
        gc.collect()
        assert not scratch.exists()

    def test_without_the_right_to_write(self, path):
        """A log on a read-only medium can be read."""
        fill(path)
        os.unlink(os.path.join(path, ".lock"))
        for each in [path, *(os.path.join(path, name) for name in os.listdir(path))]:
            os.chmod(each, 0o555)
        code = (
            "import os, sys, logstore\n"
            "if os.getuid() == 0: os.setuid(65534)\n"
            "with logstore.open(sys.argv[1], 'r') as log:\n"
            "    print(len(list(log)), log[29].value)\n"
        )
        os.chmod(os.path.dirname(path), 0o755)
        for parent in Path(path).parents:
            if parent.stat().st_uid == os.getuid() and str(parent) not in ("/", "/tmp"):
                parent.chmod(0o755)
        shown = subprocess.run(
            [sys.executable, "-c", code, path],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(logstore.__file__).parents[1])},
        )
        assert "30 b'29'\n" == shown.stdout
        os.chmod(path, 0o755)

    def test_pickles(self, path):
        """A reader pickles as "open this path for reading"; a writer does not."""
        fill(path)
        with logstore.open(path, "r", config=SMALL) as log:
            data = pickle.dumps(log)
        with pickle.loads(data) as log:
            assert 30 == len(list(log))
            assert 500 == log.config.segment_bytes
            with pytest.raises(logstore.ReadOnlyError):
                log.append(b"x")
        with logstore.open(path) as log, pytest.raises(TypeError, match="open it with mode 'r'"):
            pickle.dumps(log)


class TestClosing:
    def test_clean(self, path):
        """After close the marker and the offsets are there, and nothing is preallocated."""
        fill(path)
        assert CleanShutdownFile(path).exists()
        with open_log(path) as log:
            assert 30 == log.recovery_point
            assert not CleanShutdownFile(path).exists()
        assert all(file.stat().st_size < 120 for file in Path(path).glob("*.index"))

    def test_records_that_were_on_the_device_are_gone(self, path, caplog):
        """They cannot be brought back; that their offsets are given again is said."""
        fill(path)
        last = max(Path(path).glob("*.log"))
        os.truncate(last, 0)
        with logstore.open(path, config=SMALL) as log:
            end = log.log_end_offset
            assert end < 30
        (message,) = [text for text in caplog.messages if "records are lost" in text]
        assert f"below offset 30 was on the device, but the log ends at {end}" in message

    def test_twice(self, path):
        """A second close does nothing; another log may be open there by then."""
        log = logstore.open(path)
        log.close()
        with logstore.open(path) as other:
            log.close()
            other.append(b"x")
            with pytest.raises(logstore.ClosedError):
                log.append(b"y")

    def test_iterators_end_with_the_log(self, path):
        """A read that has begun fails at its next step, also if it has records in hand."""
        fill(path)
        log = logstore.open(path)
        records = log.read()
        values = log.read_values()
        part = log.fetch(0, max_bytes=100)
        assert (0, b"0") == (next(records).offset, next(values))
        log.close()
        for step in (lambda: next(records), lambda: next(values), part.records.to_bytes):
            with pytest.raises(logstore.ClosedError):
                step()
        assert 1 == records.next_offset

    def test_dropped(self, path):
        """A writer that is dropped warns, gives the lock back, and is recovered."""
        log = logstore.open(path, config=SMALL)
        log.extend([b"%d" % at for at in range(30)])
        with pytest.warns(ResourceWarning, match="was not closed"):  # noqa: PT031 - one act
            del log
            gc.collect()
        assert not CleanShutdownFile(path).exists()
        with logstore.open(path, config=SMALL) as log:
            assert 30 == log.log_end_offset

    def test_dropped_reader(self, path):
        """A reader may just be dropped."""
        fill(path)
        log = logstore.open(path, "r")
        next(iter(log))
        del log
        gc.collect()

    def test_failed_open_gives_the_lock_back(self, path):
        """An open that fails leaves nothing locked."""
        fill(path)
        metadata = Path(path) / "partition.metadata"
        metadata.write_text("version: x\n")
        for _ in range(2):
            with pytest.raises(logstore.CorruptCheckpointError):
                logstore.open(path)
        metadata.unlink()
        logstore.open(path).close()

    def test_config_of_an_older_broker(self, tmp_path):
        """A directory that a broker wrote in is taken over where it is."""
        (tmp_path / "meta.properties").touch()
        CleanShutdownFile(tmp_path).write(7)
        fill(tmp_path / "orders-0")
        assert 7 == CleanShutdownFile(tmp_path).read()
        text = (tmp_path / "recovery-point-offset-checkpoint").read_text()
        assert "0\n1\norders 0 30\n" == text

    def test_offsets_are_checkpointed_while_writing(self, path):
        """After a crash only what was not flushed lately is read again."""
        log = open_log(path, config=SMALL, clock=(clock := logstore.ManualClock()))
        log.append(b"x", sync=True)
        clock.advance(6000)
        log.append(b"y", sync=True)
        text = (Path(path) / "recovery-point-offset-checkpoint").read_text()
        assert text.endswith("orders 0 2\n")
        log.abandon()

    def test_rename(self, tmp_path, path):
        """A renamed log closes where it is now."""
        with logstore.open(path) as log:
            log.append(b"x")
            log.rename("sales-3")
            log.append(b"y")
        with logstore.open(tmp_path / "sales-3") as log:
            assert [b"x", b"y"] == list(log.read_values())
            assert 2 == log.recovery_point

    def test_delete(self, tmp_path, path):
        """A deleted log leaves nothing, and its name is free."""
        log = logstore.open(path)
        log.append(b"x")
        log.delete()
        log.close()
        assert [] == os.listdir(tmp_path)
        logstore.open(path, "x").close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork in a process with threads
class TestFork:
    def in_child(self, function):
        """Run a function in a forked child and return what it returned."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                answer = function()
            except BaseException as error:  # noqa: BLE001 - told to the parent
                answer = error
            os.write(write, pickle.dumps(answer))
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            data = pipe.read()
        os.waitpid(child, 0)
        return pickle.loads(data)

    def test_child_reads_what_was_there(self, path):
        """Reading goes on from the fork's state, and parent and child do not disturb each other."""
        with logstore.open(path, config=SMALL) as log:
            log.extend([b"%d" % at for at in range(30)])
            records = log.read()
            first = next(records).offset

            def read():
                return (
                    [record.offset for record in records],
                    list(log.read_values(20)),
                    log[29].value,
                    log.fetch(28, max_bytes=10_000).next_offset,
                    log.offset_at(0).offset,
                    log.max_timestamp().offset <= 29,
                    log.log_end_offset,
                )

            assert 0 == first
            expected = (
                list(range(1, 30)),
                [b"%d" % at for at in range(20, 30)],
                b"29",
                30,
                0,
                True,
                30,
            )
            assert expected == self.in_child(read)
            assert list(range(1, 30)) == [record.offset for record in records]
            assert 30 == log.append(b"30")

    def test_child_does_not_write(self, path):
        """Every change in the child is a ForkedError."""
        with logstore.open(path) as log:
            log.append(b"x")

            def write():
                errors = []
                for change in (
                    lambda: log.append(b"y"),
                    lambda: log.extend([b"y"]),
                    log.flush,
                    log.roll,
                    lambda: log.append(b"y", sync=True),
                    log.delete,
                ):
                    with pytest.raises(logstore.ForkedError) as caught:
                        change()
                    errors.append(type(caught.value).__name__)
                return errors

            assert ["ForkedError"] * 6 == self.in_child(write)
            assert [b"x"] == list(log.read_values())

    def test_child_neither_unlocks_nor_marks(self, path):
        """Closing, dropping or exiting in the child changes nothing for the parent."""
        with logstore.open(path) as log:
            log.append(b"x")
            before = tree(path)

            def leave():
                nonlocal log
                log.close()
                log = None
                gc.collect()
                return True

            assert self.in_child(leave) is True
            assert before == tree(path)
            with pytest.raises(logstore.LockedError):
                logstore.open(path)
            log.append(b"y")
        assert CleanShutdownFile(path).exists()

    def test_child_opens_its_own(self, path, tmp_path):
        """A child may open other logs."""
        with logstore.open(path) as log:
            log.append(b"x")

            def other():
                with logstore.open(tmp_path / "other-0") as mine:
                    return mine.append(b"y")

            assert 0 == self.in_child(other)

    def test_fork_while_another_thread_appends(self, path):
        """The child does not wait for a lock that nobody in it holds."""
        import threading

        with logstore.open(path, config=SMALL) as log:
            log.append(b"x")
            stop = threading.Event()

            def append():
                # No faster than a child reads, or each has more to read than the one before.
                while not stop.wait(0.01):
                    for _ in range(10):
                        log.extend([b"y"] * 5)

            thread = threading.Thread(target=append)
            thread.start()
            try:
                for _ in range(10):
                    count, end = self.in_child(
                        lambda: (sum(1 for _ in log.read(isolation="log_end")), log.log_end_offset)
                    )
                    assert 0 < count <= end  # The parent goes on.
            finally:
                stop.set()
                thread.join()
