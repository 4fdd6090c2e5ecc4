"""The door to the file system: the real files, leases, locks."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from logstore._native import check, lib, path_of
from logstore.errors import (
    ClosedError,
    CorruptRecordError,
    DiskFullError,
    ForkedError,
    PoisonedError,
    SimulatedCrashError,
    StorageError,
)
from logstore.files import REAL_FILES, FileHandle
from logstore.simulated_files import FailingFiles, SimulatedFiles

READ_WRITE = os.O_RDWR | os.O_CREAT


@pytest.fixture(name="path")
def _path(tmp_path):
    return tmp_path / "a file"


@pytest.fixture(name="fd")
def _fd(path):
    fd = REAL_FILES.open(path, READ_WRITE)
    yield fd
    os.close(fd)


class TestCheck:
    def test_passes_success_on(self):
        """What is not negative is the result."""
        assert check(0, "x") == 0
        assert check(2**40, "x") == 2**40

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
    def test_tells_a_full_disk_apart(self, code):
        """No space has a class of its own, and the message says what to do."""
        with pytest.raises(DiskFullError, match="free space") as caught:
            check(-code, "pwrite 123 bytes at 456", "/x/y")
        assert code == caught.value.errno
        assert caught.value.path == "/x/y"
        assert str(caught.value).startswith("cannot pwrite 123 bytes at 456 of /x/y: ")

    def test_keeps_the_errno(self):
        """Every other errno is a StorageError, and an OSError."""
        with pytest.raises(StorageError) as caught:
            check(-errno.EIO, "fdatasync", "/x")
        assert caught.value.errno == errno.EIO
        assert isinstance(caught.value, OSError)
        assert not isinstance(caught.value, DiskFullError)

    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            (lib.LS_E_CORRUPT, CorruptRecordError),
            (lib.LS_E_POISONED, PoisonedError),
            (lib.LS_E_CLOSED, ClosedError),
            (lib.LS_E_FORKED, ForkedError),
            (lib.LS_E_CRASHED, SimulatedCrashError),
            (lib.LS_E_ROLL, AssertionError),
            (-9999, AssertionError),
        ],
    )
    def test_maps_our_own_codes(self, code, kind):
        """Each code of the native core has its class; those that only steer must not get here."""
        with pytest.raises(kind):
            check(code, "append", "/x")


class TestTransfers:
    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, np.array])
    def test_writes_any_buffer(self, path, fd, kind):
        """Bytes go straight through, everything else by the buffer protocol."""
        data = np.frombuffer(b"abc", "u1").copy() if kind is np.array else kind(b"abc")
        assert REAL_FILES.pwrite(fd, data, 2) == 3
        assert path.read_bytes() == b"\0\0abc"

    def test_writes_pieces_one_behind_the_other(self, path, fd):
        """More pieces than one call takes, empty ones among them."""
        pieces = [bytes([i]) * (i % 4) for i in range(40)]
        assert REAL_FILES.pwritev(fd, pieces, 1) == sum(map(len, pieces))
        assert path.read_bytes() == b"\0" + b"".join(pieces)
        assert REAL_FILES.pwritev(fd, [], 1) == 0
        assert REAL_FILES.pwritev(fd, [b""], 1) == 0

    def test_reads_short_only_at_the_end(self, path, fd):
        """Pread and pread_into give what os.pread gives."""
        path.write_bytes(bytes(range(256)) * 20)
        for size, position in [(0, 0), (1, 0), (1, 5), (100, 5000), (10, 5120), (9999, 0)]:
            expected = os.pread(fd, size, position)
            assert expected == REAL_FILES.pread(fd, size, position)
            buffer = bytearray(size)
            assert len(expected) == REAL_FILES.pread_into(fd, buffer, position)
            assert expected == buffer[: len(expected)]

    def test_each_read_is_a_new_object(self, fd):
        """Reading in place must never touch an object that somebody else has."""
        REAL_FILES.pwrite(fd, b"ab", 0)
        first, second = REAL_FILES.pread(fd, 1, 0), REAL_FILES.pread(fd, 1, 1)
        assert (b"a", b"b") == (first, second)
        assert bytes(1) == b"\0"
        assert REAL_FILES.pread(fd, 0, 0) == b""

    def test_refuses_read_only_targets(self, fd):
        """Bytes are not written to."""
        with pytest.raises(BufferError):
            REAL_FILES.pread_into(fd, b"abc", 0)

    @pytest.mark.parametrize("position", [-1, 2**63 - 2])
    def test_refuses_impossible_ranges(self, fd, position):
        """A position below zero or an end beyond int64 reaches no system call."""
        for call in (
            lambda: REAL_FILES.pread(fd, 10, position),
            lambda: REAL_FILES.pwrite(fd, b"0123456789", position),
            lambda: REAL_FILES.pwritev(fd, [b"0123456789"], position),
            lambda: REAL_FILES.fallocate(fd, position, 10),
            lambda: REAL_FILES.copy_range(fd, position, fd, 0, 10),
            lambda: REAL_FILES.copy_range(fd, 0, fd, position, 10),
        ):
            with pytest.raises(StorageError) as caught:
                call()
            assert caught.value.errno == errno.EINVAL

    def test_refuses_append_mode(self, path):
        """With O_APPEND, pwrite would ignore its position on Linux."""
        with pytest.raises(StorageError) as caught:
            REAL_FILES.open(path, READ_WRITE | os.O_APPEND)
        assert caught.value.errno == errno.EINVAL
        assert not path.exists()

    def test_copies_between_files_and_within_one(self, tmp_path, path, fd):
        """The kernel copies where it can; an overlapping copy and the end of the source too."""
        data = bytes(range(256)) * 300
        path.write_bytes(data)
        other = REAL_FILES.open(tmp_path / "b", READ_WRITE)
        try:
            assert REAL_FILES.copy_range(fd, 100, other, 3, 70_000) == 70_000
            assert REAL_FILES.pread(other, 80_000, 3) == data[100:70_100]
            assert REAL_FILES.copy_range(fd, len(data) - 5, other, 0, 100) == 5
            assert REAL_FILES.copy_range(fd, 0, fd, len(data), 10) == 10
            assert REAL_FILES.pread(fd, 10, len(data)) == data[:10]
        finally:
            REAL_FILES.close(other)


class TestOperations:
    def test_errors_name_operation_and_path(self, path):
        """A descriptor's path is found for the message."""
        path.write_bytes(b"x")
        fd = REAL_FILES.open(path, os.O_RDONLY)
        try:
            assert os.fspath(path) == path_of(fd)
            with pytest.raises(
                StorageError, match=r"cannot pwrite 2 bytes at 7 of .*a file"
            ) as caught:
                REAL_FILES.pwrite(fd, b"ab", 7)
            assert caught.value.errno == errno.EBADF
        finally:
            REAL_FILES.close(fd)

    def test_closed_descriptor_is_an_error(self):
        """A programmer's mistake is visible, not swallowed."""
        with pytest.raises(StorageError) as caught:
            REAL_FILES.close(987654)
        assert caught.value.errno == errno.EBADF
        assert path_of(987654) is None

    def test_missing_file_has_errno_2(self, path):
        """ENOENT is told apart by its errno."""
        for call in (
            lambda: REAL_FILES.open(path, os.O_RDONLY),
            lambda: REAL_FILES.unlink(path),
            lambda: REAL_FILES.rename(path, path),
            lambda: REAL_FILES.link(path, path),
            lambda: REAL_FILES.rmdir(path),
            lambda: REAL_FILES.mkdir(path / "b"),
            lambda: REAL_FILES.fsync_directory(path),
            lambda: REAL_FILES.file_size(path),
            lambda: REAL_FILES.listdir(path),
            lambda: REAL_FILES.set_modified_ms(path, 0),
            lambda: REAL_FILES.read_file(path),
        ):
            with pytest.raises(StorageError) as caught:
                call()
            assert caught.value.errno == errno.ENOENT

    def test_missing_ok(self, path):
        """What Kafka tolerates is tolerated when asked for."""
        REAL_FILES.unlink(path, missing_ok=True)
        REAL_FILES.fsync_directory(path, missing_ok=True)

    def test_embedded_null_byte(self):
        """A path that the system would cut short is refused."""
        with pytest.raises(ValueError, match="null byte"):
            REAL_FILES.open("a\0b", os.O_RDONLY)

    def test_descriptors_are_not_inherited(self, fd):
        """A child started meanwhile gets none of them."""
        assert not os.get_inheritable(fd)

    @pytest.mark.parametrize(
        "files", [REAL_FILES, SimulatedFiles(), FailingFiles(), FailingFiles(SimulatedFiles())]
    )
    def test_write_back_may_begin_early(self, path, files):
        """It changes nothing, syncs nothing, and Linux tells of a descriptor that is none."""
        fd = files.open(path, READ_WRITE)
        try:
            files.pwrite(fd, b"data", 0)
            files.start_writeback(fd)
            assert b"data" == files.pread(fd, 10, 0)
        finally:
            files.close(fd)
        is_portable = os.environ.get("LOGSTORE_PORTABLE") == "1"  # Then nothing begins early.
        if files is REAL_FILES and sys.platform == "linux" and not is_portable:
            with pytest.raises(StorageError, match="write back"):
                files.start_writeback(fd)

    def test_sizes(self, path, fd):
        """Ftruncate changes the size, fallocate does not."""
        REAL_FILES.ftruncate(fd, 10)
        assert (10, 10) == (REAL_FILES.size(fd), REAL_FILES.file_size(path))
        if REAL_FILES.fallocate(fd, 0, 1 << 20):
            assert REAL_FILES.size(fd) == 10
        REAL_FILES.ftruncate(fd, 3)
        assert REAL_FILES.size(fd) == 3
        with pytest.raises(StorageError):
            REAL_FILES.ftruncate(fd, -1)

    def test_names(self, tmp_path, path):
        """rename, link, unlink, mkdir, rmdir, listdir."""
        files = REAL_FILES
        files.mkdir(tmp_path / "d")
        assert files.is_directory(tmp_path / "d")
        path.write_bytes(b"1")
        files.rename(path, tmp_path / "d" / "b")
        files.link(tmp_path / "d" / "b", path)
        assert ["a file", "d"] == files.listdir(tmp_path)
        fd = files.open(path, os.O_RDONLY)
        assert files.link_count(fd) == 2
        files.close(fd)
        files.unlink(tmp_path / "d" / "b")
        files.fsync_directory(tmp_path / "d")
        files.rmdir(tmp_path / "d")
        assert ["a file"] == files.listdir(tmp_path)
        assert files.exists(path)

    @pytest.mark.parametrize("modified_ms", [0, 1, -1, -1000, -1001, 1_700_000_000_123])
    def test_modification_time(self, path, modified_ms):
        """Milliseconds survive the round trip, those before 1970 included."""
        path.write_bytes(b"")
        REAL_FILES.set_modified_ms(path, modified_ms)
        assert modified_ms == REAL_FILES.modified_ms(path)

    @pytest.mark.parametrize(
        ("contents", "is_equal"), [(b"abc", True), (b"ab", False), (b"abcd", False), (b"", False)]
    )
    def test_file_equals(self, path, contents, is_equal):
        """Exactly these bytes, not more and not fewer; a missing file is equal to nothing."""
        assert not REAL_FILES.file_equals(path, b"abc")
        assert not REAL_FILES.file_equals(path, b"")
        path.write_bytes(contents)
        assert is_equal == REAL_FILES.file_equals(path, b"abc")
        assert (contents == b"") == REAL_FILES.file_equals(path, b"")
        with pytest.raises(StorageError):
            REAL_FILES.file_equals(path / "below a file", b"abc")

    def test_replaces_a_file_whole(self, path):
        """The new contents, and no leftover."""
        for data in (b"old", b"", b"new" * 100_000):
            REAL_FILES.replace_file(path, data)
            assert data == REAL_FILES.read_file(path)
        assert [path.name] == REAL_FILES.listdir(path.parent)

    def test_replaces_a_file_in_the_working_directory(self, tmp_path, monkeypatch):
        """A bare name has a directory to sync too."""
        monkeypatch.chdir(tmp_path)
        REAL_FILES.replace_file("bare", b"x")
        assert (tmp_path / "bare").read_bytes() == b"x"

    def test_page_aligned_buffer(self):
        """Zeros at a page boundary."""
        buffer = REAL_FILES.page_aligned_buffer(10_000)
        array = np.frombuffer(buffer, "u1")
        assert array.ctypes.data % 4096 == 0
        assert not array.any()
        buffer[9_999] = 7
        assert array[9_999] == 7


class TestMapping:
    def test_reads_and_follows_the_file(self, fd):
        """A shared mapping shows later writes; its view is read-only."""
        REAL_FILES.pwrite(fd, b"abcd", 0)
        mapping = REAL_FILES.map(fd, 4)
        assert (b"abcd", 4, 4) == (bytes(mapping.view), mapping.size, len(mapping))
        assert mapping.address % 4096 == 0
        REAL_FILES.pwrite(fd, b"X", 1)
        assert bytes(mapping.view) == b"aXcd"
        with pytest.raises(TypeError):
            mapping.view[0] = 1

    def test_views_outlive_close(self, fd):
        """The memory stays until the last view is gone."""
        REAL_FILES.pwrite(fd, b"abcd", 0)
        REAL_FILES.count_operations()
        before = REAL_FILES.operation_counts()["unmap"]
        mapping = REAL_FILES.map(fd, 4)
        array = np.frombuffer(mapping.view, "u1")[1:]
        mapping.close()
        mapping.close()
        del mapping
        assert b"bcd" == array.tobytes()
        assert before == REAL_FILES.operation_counts()["unmap"]
        del array
        assert before + 1 == REAL_FILES.operation_counts()["unmap"]
        REAL_FILES.count_operations(False)

    def test_stores(self, path, fd):
        """What is stored into a writable mapping reaches the file."""
        REAL_FILES.ftruncate(fd, 4096)
        mapping = REAL_FILES.map(fd, 4096, writable=True)
        mapping.writable_view[10:13] = b"abc"
        mapping.stored(10, 3)
        assert path.read_bytes()[10:13] == b"abc"

    def test_lasts_through_a_cycle_of_garbage(self, fd):
        """Whoever is collected together with a mapping still finds it, whatever goes first."""

        class Holder:
            def __init__(self, mapping):
                self.mapping, self.itself = mapping, self

            def __del__(self):
                counts.append(REAL_FILES.operation_counts()["unmap"])

        REAL_FILES.pwrite(fd, b"abcd", 0)
        gc.collect()  # What other tests have left.
        REAL_FILES.count_operations()
        counts = [REAL_FILES.operation_counts()["unmap"]]
        Holder(REAL_FILES.map(fd, 4))
        gc.collect()
        counts.append(REAL_FILES.operation_counts()["unmap"])
        REAL_FILES.count_operations(False)
        assert [counts[0], counts[0], counts[0] + 1] == counts

    def test_refuses_nothing_to_map(self, fd):
        """An empty mapping does not exist."""
        with pytest.raises(StorageError):
            REAL_FILES.map(fd, 0)


class TestCounters:
    def test_count_only_while_asked_to(self, path):
        """One for each operation, and none before or after."""
        files = REAL_FILES
        before = files.operation_counts()
        fd = files.open(path, READ_WRITE)
        assert before == files.operation_counts()

        files.count_operations()
        files.pwrite(fd, b"abc", 0)
        files.pread(fd, 3, 0)
        files.fdatasync(fd)
        files.close(fd)
        files.count_operations(False)
        files.unlink(path)
        after = files.operation_counts()
        changed = {
            name: after[name] - before[name] for name in after if after[name] != before[name]
        }
        assert {"pwrite": 1, "pread": 1, "fdatasync": 1, "close": 1} == changed

    def test_lose_nothing_between_threads(self, path):
        """Eight threads count exactly."""
        path.write_bytes(b"x")
        fd = REAL_FILES.open(path, os.O_RDONLY)
        before = REAL_FILES.operation_counts()["pread"]
        REAL_FILES.count_operations()

        def read():
            for _ in range(500):
                REAL_FILES.pread(fd, 1, 0)

        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        REAL_FILES.count_operations(False)
        REAL_FILES.close(fd)
        assert before + 4000 == REAL_FILES.operation_counts()["pread"]


class TestFileHandle:
    def test_closes_when_the_last_lease_ends(self, path):
        """Close refuses new leases and waits for none; the number stays taken meanwhile."""
        handle = FileHandle(REAL_FILES, path, READ_WRITE)
        with handle.lease() as fd, handle.lease() as again:
            assert fd == again
            assert handle.lease_count == 2
            handle.close()
            handle.close()
            assert handle.is_closed
            REAL_FILES.pwrite(fd, b"still open", 0)
            with pytest.raises(ClosedError), handle.lease():
                pass
        with pytest.raises(OSError):
            os.fstat(fd)

    def test_ends_a_lease_on_errors(self, path):
        """An exception inside the block ends the lease too."""
        handle = FileHandle(REAL_FILES, path, READ_WRITE)
        with pytest.raises(ZeroDivisionError), handle.lease():
            1 // 0  # noqa: B018
        assert handle.lease_count == 0
        handle.close()

    def test_rename_moves_the_path(self, tmp_path, path):
        """The descriptor goes on, under the new name."""
        handle = FileHandle(REAL_FILES, path, READ_WRITE)
        handle.rename(tmp_path / "b")
        assert os.fspath(tmp_path / "b") == handle.path
        with handle.lease() as fd:
            REAL_FILES.pwrite(fd, b"x", 0)
        handle.close()
        assert (tmp_path / "b").read_bytes() == b"x"

    def test_dropped_handle_closes(self, path):
        """No descriptor is leaked by a handle that nobody closed."""
        handle = FileHandle(REAL_FILES, path, READ_WRITE)
        fd = handle.acquire()
        handle.release()
        del handle
        with pytest.raises(OSError):
            os.fstat(fd)

    def test_failed_open_leaves_nothing_to_close(self, tmp_path):
        """The error of open is the only one."""
        with pytest.raises(StorageError):
            FileHandle(REAL_FILES, tmp_path / "none", os.O_RDONLY)

    def test_no_read_meets_a_reused_number(self, tmp_path):
        """While handles are closed and their numbers reused, a lease reads its own file or none."""
        for name in "ab":
            (tmp_path / name).write_bytes(name.encode() * 8)
        handles = [FileHandle(REAL_FILES, tmp_path / "a")]
        wrong = []
        stop = threading.Event()

        def read():
            while not stop.is_set():
                handle = handles[0]
                try:
                    with handle.lease() as fd:
                        data = REAL_FILES.pread(fd, 8, 0)
                except ClosedError:
                    continue
                if data != os.path.basename(handle.path).encode() * 8:
                    wrong.append(data)

        threads = [threading.Thread(target=read) for _ in range(4)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                old = handles[0]
                name = "b" if old.path.endswith("a") else "a"
                old.close()  # Its number is free for the next open as soon as no lease holds it.
                handles[0] = FileHandle(REAL_FILES, tmp_path / name)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            sys.setswitchinterval(interval)
            handles[0].close()
        assert wrong == []


# Tries a lock as Java's FileLock does (a lock of the process) and as we do, from another process.
OTHER_PROCESS = """
import fcntl, os, sys
from logstore.files import REAL_FILES
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    java = "taken"
    fcntl.lockf(fd, fcntl.LOCK_UN)
except OSError:
    java = "refused"
print(java, REAL_FILES.lock(fd))
"""


def try_lock_elsewhere(path):
    done = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, os.fspath(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.linux  # Locks of an open file.
class TestLock:
    def test_excludes_other_openers(self, path, fd):
        """A second open of the same process does not get it; unlock gives it free."""
        assert REAL_FILES.lock(fd)
        assert REAL_FILES.lock(fd)  # Its own lock again.
        other = REAL_FILES.open(path, os.O_RDWR)
        assert not REAL_FILES.lock(other)
        REAL_FILES.unlock(fd)
        assert REAL_FILES.lock(other)
        REAL_FILES.close(other)

    def test_excludes_other_processes_and_java(self, path, fd):
        """Held, both kinds of lock are refused elsewhere; free, both are given."""
        assert REAL_FILES.lock(fd)
        assert ["refused", "False"] == try_lock_elsewhere(path)
        REAL_FILES.unlock(fd)
        assert ["taken", "True"] == try_lock_elsewhere(path)

    def test_survives_the_close_of_another_descriptor(self, path, fd):
        """A lock of the process would be lost here."""
        assert REAL_FILES.lock(fd)
        REAL_FILES.close(REAL_FILES.open(path, os.O_RDWR))
        assert ["refused", "False"] == try_lock_elsewhere(path)

    def test_is_shared_with_a_forked_child(self, path):
        """The child holds it too until it closes the descriptor, and may close it harmlessly."""
        fd = REAL_FILES.open(path, READ_WRITE)
        assert REAL_FILES.lock(fd)
        go, gone = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:  # Only async-safe calls from here on.
            os.read(go[0], 1)
            os.close(fd)
            os.write(gone[1], b"x")
            os.read(go[0], 1)
            os._exit(0)
        try:
            REAL_FILES.close(fd)
            assert ["refused", "False"] == try_lock_elsewhere(path)
            os.write(go[1], b"x")
            os.read(gone[0], 1)
            assert ["taken", "True"] == try_lock_elsewhere(path)
        finally:
            os.write(go[1], b"xx")
            os.waitpid(child, 0)
            for end in (*go, *gone):
                os.close(end)

    def test_needs_a_writable_descriptor(self, path):
        """An exclusive lock on a read-only descriptor is refused by the system."""
        path.write_bytes(b"")
        fd = REAL_FILES.open(path, os.O_RDONLY)
        with pytest.raises(StorageError) as caught:
            REAL_FILES.lock(fd)
        assert caught.value.errno == errno.EBADF
        REAL_FILES.close(fd)
