"""Failing files: failures on request, retries, short transfers, full disks."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import numpy as np
import pytest

from logstore.errors import DiskFullError, SimulatedCrashError, StorageError
from logstore.files import REAL_FILES
from logstore.simulated_files import OPERATIONS, FailingFiles, SimulatedFiles

CREATE = os.O_RDWR | os.O_CREAT


def calls_of(files, directory):
    """One call of each operation."""
    fd = files.open(directory / "a", CREATE)
    files.pwrite(fd, bytes(8192), 0)
    mapping = []

    def map_it():
        mapping[:] = [files.map(fd, 4096, writable=True)]

    return fd, {
        "open": lambda: files.close(files.open(directory / "a", os.O_RDONLY)),
        "close": lambda: files.close(os.dup(fd)),
        "pwrite": lambda: files.pwrite(fd, b"abc", 0),
        "pwritev": lambda: files.pwritev(fd, [b"abc", b"def"], 0),
        "pread": lambda: files.pread(fd, 10, 0),
        "fallocate": lambda: files.fallocate(fd, 0, 10),
        "ftruncate": lambda: files.ftruncate(fd, 8192),
        "fdatasync": lambda: files.fdatasync(fd),
        "start_writeback": lambda: files.start_writeback(fd),
        "fsync_dir": lambda: files.fsync_directory(directory),
        "rename": lambda: files.rename(directory / "a", directory / "a"),
        "link": lambda: files.link(directory / "a", directory / "l"),
        "unlink": lambda: files.unlink(directory / "l"),
        "mkdir": lambda: files.mkdir(directory / "d"),
        "rmdir": lambda: files.rmdir(directory / "d"),
        "copy_file_range": lambda: files.copy_range(fd, 0, fd, 4096, 100),
        "map": map_it,
        "stored": lambda: mapping[0].stored(0, 1),
        "set_modified": lambda: files.set_modified_ms(directory / "a", 5),
    }


class TestFailingFiles:
    @pytest.mark.parametrize("inner", [REAL_FILES, SimulatedFiles()], ids=["real", "simulated"])
    @pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
    def test_each_operation_fails_once(self, tmp_path, inner, code):
        """The call that a rule names fails with its errno, and the next one works."""
        files = FailingFiles(inner)
        fd, calls = calls_of(files, tmp_path)
        assert {*calls, "unmap", "sendfile"} == set(OPERATIONS)
        for operation, call in calls.items():
            before = files.calls(operation)
            files.fail(operation, code)
            with pytest.raises(StorageError) as caught:
                call()
            assert code == caught.value.errno
            assert isinstance(caught.value, DiskFullError) == (code == errno.ENOSPC)
            assert before + 1 == files.calls(operation)
            call()
        files.close(fd)

    @pytest.mark.linux
    def test_sendfile(self, tmp_path):
        """Fails as a socket does; simulated files are not the kernel's to send."""
        files = FailingFiles()
        fd, _ = calls_of(files, tmp_path)
        sender, receiver = socket.socketpair()
        with sender, receiver:
            files.fail("sendfile", errno.EPIPE)
            with pytest.raises(BrokenPipeError):
                files.sendfile(sender.fileno(), fd, 0, 100)
            assert 100 == files.sendfile(sender.fileno(), fd, 0, 100)
            assert 0 == files.sendfile(sender.fileno(), fd, 8192, 100)
            assert bytes(100) == receiver.recv(1000)
            with pytest.raises(OSError, match="not implemented"):
                SimulatedFiles().sendfile(sender.fileno(), fd, 0, 100)
        files.close(fd)

    def test_nth_call_of_any_operation(self, tmp_path):
        """None stands for any operation."""
        files = FailingFiles()
        files.fail(None, errno.EIO, at=3)
        files.mkdir(tmp_path / "a")
        files.rmdir(tmp_path / "a")
        with pytest.raises(StorageError):
            files.mkdir(tmp_path / "a")
        assert not files.exists(tmp_path / "a")
        assert files.calls() == 3

    def test_persistent_failure_lasts_until_cleared(self, tmp_path):
        """A full disk stays full."""
        files = FailingFiles()
        fd = files.open(tmp_path / "a", CREATE)
        files.fail("pwrite", errno.ENOSPC, at=2, persistent=True)
        files.pwrite(fd, b"x", 0)
        for _ in range(3):
            with pytest.raises(DiskFullError):
                files.pwrite(fd, b"x", 0)
        files.clear()
        files.pwrite(fd, b"x", 0)
        files.close(fd)

    def test_interruptions_are_retried(self, tmp_path):
        """EINTR reaches no caller, whatever the operation; a close is not repeated."""
        files = FailingFiles()
        fd, calls = calls_of(files, tmp_path)
        for operation, call in calls.items():
            if operation in {"map", "stored"}:  # Never interrupted.
                call()
                continue
            before = files.calls(operation)
            files.fail(operation, errno.EINTR)
            call()
            # Opening to test open closes too.
            assert files.calls(operation) == before + (1 if operation == "close" else 2)
        with pytest.raises(StorageError):
            files.fail("pwrite", errno.EINTR, persistent=True)
        files.close(fd)

    def test_short_transfers_are_continued(self, tmp_path):
        """Everything is written and read, in as many calls as it takes."""
        files = FailingFiles()
        data = np.random.default_rng(1).bytes(1000)
        fd = files.open(tmp_path / "a", CREATE)
        for operation in ("pwrite", "pwritev", "pread"):
            files.shorten(operation, persistent=True)
        assert files.pwrite(fd, data, 0) == 1000
        assert files.calls("pwrite") > 5
        assert data == files.pread(fd, 1000, 0)
        assert files.calls("pread") > 5
        pieces = [data[i : i + 7] for i in range(0, 1000, 7)]
        assert files.pwritev(fd, [b"", *pieces, b""], 500) == 1000
        assert data == files.pread(fd, 1000, 500)
        assert files.copy_range(fd, 500, fd, 2000, 1000) == 1000
        assert data == files.pread(fd, 1000, 2000)
        files.close(fd)

    def test_failed_sync_leaves_data_exposed(self, tmp_path):
        """Over simulated files, what a failed fdatasync was to save can still be lost."""
        lost = 0
        for seed in range(20):
            inner = SimulatedFiles(seed)
            files = FailingFiles(inner)
            files.fail("fdatasync", errno.EIO)
            path = tmp_path / str(seed)
            path.write_bytes(b"")
            fd = files.open(path, os.O_RDWR)
            files.pwrite(fd, b"abc", 0)
            with pytest.raises(StorageError):
                files.fdatasync(fd)
            files.close(fd)
            inner.crash()
            lost += path.read_bytes() != b"abc"
            with pytest.raises(SimulatedCrashError):
                files.exists(path)
        assert 0 < lost < 20

    def test_budget_is_spent_by_growth_and_given_back(self, tmp_path):
        """A write that does not fit is done in part; deleting and cutting make room."""
        files = FailingFiles()
        assert files.budget is None
        fd = files.open(tmp_path / "a", CREATE)
        files.budget = 10
        files.pwrite(fd, b"12345678", 0)
        files.pwrite(fd, b"abc", 2)  # No growth.
        assert files.budget == 2
        with pytest.raises(DiskFullError):
            files.pwrite(fd, b"xyz", 8)
        assert files.pread(fd, 100, 0) == b"12abc678xy"
        with pytest.raises(DiskFullError):
            files.pwritev(fd, [b"x", b"y"], 10)
        with pytest.raises(DiskFullError):
            files.fallocate(fd, 0, 11)
        assert (10, 0) == (files.size(fd), files.budget)
        files.ftruncate(fd, 4)
        assert files.budget == 6
        assert files.pwritev(fd, [b"x", b"y"], 4) == 2
        files.close(fd)
        (tmp_path / "b").write_bytes(b"bb")
        files.rename(tmp_path / "b", tmp_path / "a")
        assert files.budget == 10
        files.unlink(tmp_path / "a")
        assert files.budget == 12
        files.budget = None
        fd = files.open(tmp_path / "a", CREATE)
        files.pwrite(fd, b"x" * 100, 0)
        files.close(fd)

    def test_replace_file_on_a_full_disk(self, tmp_path):
        """The old contents stay."""
        files = FailingFiles()
        files.replace_file(tmp_path / "a", b"old")
        files.budget = 2
        with pytest.raises(DiskFullError):
            files.replace_file(tmp_path / "a", b"new contents")
        assert files.read_file(tmp_path / "a") == b"old"
        assert ["a", "a.tmp"] == files.listdir(tmp_path)


class TestFdatasyncTogether:
    """Several files that the device gets at once."""

    @pytest.mark.parametrize("name", ["start_writeback", "fdatasync"])
    @pytest.mark.parametrize("at", [1, 2, 3])
    def test_failure(self, tmp_path, name, at):
        """Those before it are durable, and counted; nothing is waited for behind it."""
        files = FailingFiles()
        fds = [files.open(tmp_path / letter, CREATE) for letter in "abc"]
        for fd in fds:
            files.pwrite(fd, b"data", 0)
        files.fail(name, errno.EIO, at=at)
        flushed_count, error = files.fdatasync_together(fds)
        assert at - 1 == flushed_count
        assert isinstance(error, StorageError)
        assert (errno.EIO, tmp_path / "abc"[at - 1]) == (error.errno, Path(error.path))
        assert at - (name == "start_writeback") == files.calls("fdatasync")
        files.clear()
        assert (3, None) == files.fdatasync_together(fds)
        for fd in fds:
            files.close(fd)

    def test_one_is_not_begun_with(self, tmp_path):
        """It would be written no sooner."""
        files = FailingFiles()
        fd = files.open(tmp_path / "a", CREATE)
        assert (1, None) == files.fdatasync_together([fd])
        assert (0, None) == files.fdatasync_together([])
        assert 0 == files.calls("start_writeback")
        files.close(fd)
