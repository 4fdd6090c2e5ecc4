"""Simulated files: what a crash leaves."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import threading

import pytest

from logstore.errors import SimulatedCrashError, StorageError
from logstore.files import REAL_FILES, FileHandle
from logstore.simulated_files import FAULTS, FailingFiles, SimulatedFiles

CREATE = os.O_RDWR | os.O_CREAT
SEEDS = range(60)


def outcomes(tmp_path, prepare, change, *, seeds=SEEDS, **options):
    """
    What is left after a power loss, over many seeds, as a set of directories.

    ``prepare(files, directory)`` is made durable by real files' nature; ``change`` happens on
    simulated ones, and then the power fails.
    """
    left = set()
    for seed in seeds:
        directory = tmp_path / str(seed)
        directory.mkdir()
        prepare(directory)
        files = SimulatedFiles(seed, **options)
        change(files, directory)
        files.crash()
        left.add(
            tuple(
                sorted(
                    (os.fspath(path.relative_to(directory)), path.read_bytes())
                    for path in directory.rglob("*")
                    if path.is_file()
                )
            )
        )
    return left


def nothing(_directory):
    """Start with an empty directory."""


def write(files, path, data, position=0, *, sync=False):
    fd = files.open(path, CREATE)
    try:
        files.pwrite(fd, data, position)
        if sync:
            files.fdatasync(fd)
    finally:
        files.close(fd)


class TestData:
    def test_synced_data_survives(self, tmp_path):
        """After fdatasync and fsync of the directory there is one outcome."""

        def change(files, directory):
            write(files, directory / "a", b"x" * 10_000, sync=True)
            files.fsync_directory(directory)
            assert files.unsynced_count == 0

        assert {(("a", b"x" * 10_000),)} == outcomes(tmp_path, nothing, change)

    def test_unsynced_pages_are_kept_lost_torn_or_garbage(self, tmp_path):
        """Each fate occurs, and the size may be durable before the data."""
        old, new = b"o" * 4096, b"n" * 4096

        def prepare(directory):
            (directory / "a").write_bytes(old * 2)

        def change(files, directory):
            write(files, directory / "a", new * 2)

        left = outcomes(tmp_path, prepare, change, faults=("drop", "tear", "garbage"))
        pages = [data[start : start + 4096] for ((_, data),) in left for start in (0, 4096)]
        assert all(len(data) == 8192 for ((_, data),) in left)
        assert old in pages
        assert new in pages
        assert any(set(page) == set(b"on") for page in pages)
        assert any(len(set(page)) > 100 for page in pages)
        assert ((("a", old + new),)) in left or ((("a", new + old),)) in left

    def test_bytes_beside_a_write_survive_it(self, tmp_path):
        """Durable bytes of the same page change under no seed."""

        def prepare(directory):
            (directory / "a").write_bytes(b"o" * 3000)

        def change(files, directory):
            write(files, directory / "a", b"n" * 100, 1000)
            write(files, directory / "a", b"n" * 500, 3000)

        for ((_, data),) in outcomes(tmp_path, prepare, change):
            assert data[:1000] == b"o" * 1000
            assert data[1100:3000] == b"o" * 1900
            assert 3000 <= len(data) <= 3500

    def test_lost_growth_reads_as_zeros_or_is_cut(self, tmp_path):
        """A new size without its data, the old size, and sizes between all occur."""

        def change(files, directory):
            write(files, directory / "a", b"n" * 9000)

        left = outcomes(
            tmp_path, lambda d: (d / "a").write_bytes(b""), change, faults=("drop", "size")
        )
        contents = {data for ((_, data),) in left}
        assert b"" in contents
        assert b"n" * 9000 in contents
        assert any(0 < len(data) < 9000 for data in contents)
        assert any(len(data) == 9000 and 0 in data for data in contents)
        assert all(set(data) <= set(b"n\0") for data in contents)

    def test_a_lost_truncation_brings_back_what_it_cut(self, tmp_path):
        """The old bytes, or what was written over the cut, never anything before the cut."""
        old = bytes(range(1, 251)) * 40

        def change(files, directory):
            fd = files.open(directory / "a", os.O_RDWR)
            files.ftruncate(fd, 5000)
            files.pwrite(fd, b"\xff" * 100, 5000)
            files.close(fd)

        left = outcomes(tmp_path, lambda d: (d / "a").write_bytes(old), change)
        contents = {data for ((_, data),) in left}
        assert old in contents
        assert old[:5000] + b"\xff" * 100 in contents
        assert all(data[:5000] == old[:5000] for data in contents)
        assert all(len(data) >= 5000 for data in contents)

    def test_opening_with_truncation_is_a_truncation(self, tmp_path):
        """O_TRUNC goes through the journal, too."""

        def change(files, directory):
            files.close(files.open(directory / "a", os.O_WRONLY | os.O_TRUNC))

        left = outcomes(tmp_path, lambda d: (d / "a").write_bytes(b"abc"), change)
        assert {(("a", b"abc"),), (("a", b""),)} <= left

    def test_only_the_synced_file_is_safe(self, tmp_path):
        """Fdatasync of one file says nothing of another."""

        def change(files, directory):
            write(files, directory / "a", b"A", sync=True)
            write(files, directory / "b", b"B")

        def prepare(directory):
            (directory / "a").write_bytes(b"")
            (directory / "b").write_bytes(b"")

        left = outcomes(tmp_path, prepare, change, faults=("drop", "size"))
        assert {(("a", b"A"), ("b", b"")), (("a", b"A"), ("b", b"B"))} <= left
        assert all(files[0] == ("a", b"A") for files in left)

    def test_copies_are_simulated(self, tmp_path):
        """copy_range falls back to writes that can be lost."""

        def change(files, directory):
            source = files.open(directory / "a", os.O_RDONLY)
            target = files.open(directory / "b", os.O_RDWR)
            assert files.copy_range(source, 0, target, 0, 3) == 3
            files.close(source)
            files.close(target)

        def prepare(directory):
            (directory / "a").write_bytes(b"abc")
            (directory / "b").write_bytes(b"")

        left = {dict(files)["b"] for files in outcomes(tmp_path, prepare, change, faults=("size",))}
        assert {b"", b"abc"} <= left

    def test_reported_stores_can_be_lost(self, tmp_path):
        """Pages stored to through a mapping are un-synced like written ones."""

        def change(files, directory):
            fd = files.open(directory / "a", os.O_RDWR)
            mapping = files.map(fd, 8192, writable=True)
            mapping.writable_view[100:103] = b"new"
            mapping.stored(100, 3)
            with pytest.raises(StorageError):
                mapping.stored(8190, 3)
            mapping.writable_view[5000:5003] = b"old"
            mapping.stored(5000, 3)
            files.fdatasync(fd)
            mapping.writable_view[5000:5003] = b"new"
            mapping.stored(5000, 3)
            mapping.close()
            files.close(fd)

        def prepare(directory):
            (directory / "a").write_bytes(bytes(8192))

        left = outcomes(tmp_path, prepare, change, faults=("drop",))
        kinds = {(data[100:103], data[5000:5003]) for ((_, data),) in left}
        assert {(b"new", b"old"), (b"new", b"new")} == kinds

    def test_writes_under_a_mapping_are_what_a_lost_store_leaves(self, tmp_path):
        """A store after a synced write falls back to that write, not to what was mapped first."""

        def change(files, directory):
            fd = files.open(directory / "a", os.O_RDWR)
            mapping = files.map(fd, 4096, writable=True)
            files.pwrite(fd, b"synced", 0)
            files.fdatasync(fd)
            mapping.writable_view[0:6] = b"stored"
            mapping.stored(0, 6)
            mapping.close()
            files.close(fd)

        left = outcomes(
            tmp_path, lambda d: (d / "a").write_bytes(bytes(4096)), change, faults=["drop"]
        )
        assert {b"synced", b"stored"} == {data[:6] for ((_, data),) in left}

    def test_read_only_descriptors_write_nothing(self, tmp_path):
        """The journal is not touched by calls that the system refuses."""
        files = SimulatedFiles()
        (tmp_path / "a").write_bytes(b"abc")
        fd = files.open(tmp_path / "a", os.O_RDONLY)
        for call, code in (
            (lambda: files.pwrite(fd, b"x", 0), errno.EBADF),
            (lambda: files.ftruncate(fd, 0), errno.EINVAL),
        ):
            with pytest.raises(StorageError) as caught:
                call()
            assert code == caught.value.errno
        assert files.unsynced_count == 0
        files.close(fd)


class TestNames:
    def test_an_unsynced_creation_may_be_lost(self, tmp_path):
        """Fdatasync of a file does not make its name durable."""

        def change(files, directory):
            write(files, directory / "a", b"x", sync=True)

        assert {(), (("a", b"x"),)} == outcomes(tmp_path, nothing, change)

    def test_an_unsynced_deletion_may_be_undone(self, tmp_path):
        """The file comes back whole, though nobody had it open."""

        def change(files, directory):
            files.unlink(directory / "a")

        left = outcomes(tmp_path, lambda d: (d / "a").write_bytes(b"x" * 70_000), change)
        assert {(), (("a", b"x" * 70_000),)} == left

    def test_a_rename_happens_or_not(self, tmp_path):
        """Under no seed are both names gone, or both there."""

        def prepare(directory):
            (directory / "a").write_bytes(b"new")
            (directory / "b").write_bytes(b"old")

        def change(files, directory):
            files.rename(directory / "a", directory / "b")

        left = outcomes(tmp_path, prepare, change)
        assert {(("a", b"new"), ("b", b"old")), (("b", b"new"),)} == left

    def test_a_chain_of_renames_leaves_one_name(self, tmp_path):
        """The second rename without the first would leave the file at its old name as well."""

        def change(files, directory):
            files.rename(directory / "a", directory / "b")
            files.rename(directory / "b", directory / "c")

        left = outcomes(tmp_path, lambda d: (d / "a").write_bytes(b"x"), change)
        assert {((name, b"x"),) for name in "abc"} == left

    def test_replacing_without_sync_of_the_data_can_lose_it(self, tmp_path):
        """The classic mistake: the rename is durable, the data are not."""

        def change(files, directory):
            write(files, directory / "a.tmp", b"new")
            files.rename(directory / "a.tmp", directory / "a")
            files.fsync_directory(directory)

        left = outcomes(tmp_path, lambda d: (d / "a").write_bytes(b"old"), change)
        assert (("a", b""),) in left
        assert (("a", b"old"),) not in left

    def test_replace_file_is_safe(self, tmp_path):
        """A crash at any operation of replace_file leaves the old contents or the new."""
        seen = set()
        for crash_at in range(1, 8):
            for seed in range(8):
                directory = tmp_path / f"{crash_at} {seed}"
                directory.mkdir()
                (directory / "a").write_bytes(b"old")
                files = SimulatedFiles(seed, crash_at)
                try:
                    files.replace_file(directory / "a", b"new contents")
                    done = True
                except SimulatedCrashError:
                    done = False
                files.crash()
                contents = (directory / "a").read_bytes()
                assert contents in {b"old", b"new contents"}
                assert contents == b"new contents" or not done
                seen.add((done, contents))
        assert len(seen) == 3

    def test_order_of_changes_is_not_kept(self, tmp_path):
        """The second of two creations may be there without the first."""

        def change(files, directory):
            write(files, directory / "a", b"", sync=True)
            write(files, directory / "b", b"", sync=True)

        left = {tuple(name for name, _ in files) for files in outcomes(tmp_path, nothing, change)}
        assert {(), ("a",), ("b",), ("a", "b")} == left

    def test_directories(self, tmp_path):
        """A lost directory takes its entries along, synced or not; a lost rmdir brings it back."""

        def change(files, directory):
            files.mkdir(directory / "new")
            write(files, directory / "new" / "a", b"x", sync=True)
            files.fsync_directory(directory / "new")
            files.unlink(directory / "old" / "b")
            files.rmdir(directory / "old")

        def prepare(directory):
            (directory / "old").mkdir()
            (directory / "old" / "b").write_bytes(b"y")

        left = outcomes(tmp_path, prepare, change)
        new, old = ("new/a", b"x"), ("old/b", b"y")
        assert {(), (new,), (old,), (new, old)} == left

    def test_renamed_directory(self, tmp_path):
        """Entries belong to the directory, whatever it is called when the power fails."""

        def change(files, directory):
            files.rename(directory / "d", directory / "e")
            write(files, directory / "e" / "b", b"y", sync=True)
            files.fsync_directory(directory / "e")
            files.unlink(directory / "e" / "a")

        def prepare(directory):
            (directory / "d").mkdir()
            (directory / "d" / "a").write_bytes(b"x")

        left = outcomes(tmp_path, prepare, change)
        for name in "de":
            assert ((f"{name}/a", b"x"), (f"{name}/b", b"y")) in left
            assert ((f"{name}/b", b"y"),) in left
        assert len(left) == 4

    def test_rename_between_directories(self, tmp_path):
        """It is one change: fsync of either directory makes both sides durable."""

        def prepare(directory):
            (directory / "d").mkdir()
            (directory / "e").mkdir()
            (directory / "d" / "a").write_bytes(b"x")

        for synced in ("d", "e"):

            def change(files, directory, synced=synced):
                files.rename(directory / "d" / "a", directory / "e" / "b")
                files.fsync_directory(directory / synced)
                assert files.unsynced_count == 0

            (tmp_path / synced).mkdir()
            assert {(("e/b", b"x"),)} == outcomes(tmp_path / synced, prepare, change)

    def test_links(self, tmp_path):
        """A lost link leaves the other name; a lost deletion gives the second name back."""

        def change(files, directory):
            files.link(directory / "a", directory / "b")
            files.unlink(directory / "a")

        left = outcomes(tmp_path, lambda d: (d / "a").write_bytes(b"x"), change)
        a, b = ("a", b"x"), ("b", b"x")
        assert {(a,), (b,), (a, b), ()} >= left >= {(a,), (b,), (a, b)}

    @pytest.mark.linux
    def test_restored_second_name_is_the_same_file(self, tmp_path):
        """A file with two names has two after the crash, not two copies."""
        (tmp_path / "a").write_bytes(b"x")
        os.link(tmp_path / "a", tmp_path / "b")
        for seed in range(20):
            files = SimulatedFiles(seed)
            files.unlink(tmp_path / "a")
            files.crash()
            if (tmp_path / "a").exists():
                assert (tmp_path / "a").samefile(tmp_path / "b")
            else:
                os.link(tmp_path / "b", tmp_path / "a")

    def test_relative_paths_and_trailing_slashes(self, tmp_path, monkeypatch):
        """A path is a directory and a name, however it is written."""
        monkeypatch.chdir(tmp_path)
        files = SimulatedFiles(faults=())
        files.mkdir("d/")
        write(files, "d/a", b"x")
        assert files.unsynced_count == 3
        files.fsync_directory(tmp_path / "d")
        files.fsync_directory(".")
        assert files.unsynced_count == 1
        for call in (
            lambda: files.mkdir("/"),
            lambda: files.unlink(""),
            lambda: files.unlink("no"),
        ):
            with pytest.raises(StorageError):
                call()
        files.crash()
        assert (tmp_path / "d" / "a").read_bytes() == b"x"


def open_below(directory):
    """Return what this process has open there; threads of other tests may open what they like."""
    paths = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            paths.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [path for path in paths if path.startswith(os.fspath(directory))]


class TestCrash:
    def test_comes_at_the_given_operation(self, tmp_path):
        """Operations are counted; from the crash on every call fails but close."""
        files = SimulatedFiles(1, crash_at=3)
        fd = files.open(tmp_path / "a", CREATE)
        files.pwrite(fd, b"abc", 0)
        assert (2, False) == (files.operation_count, files.has_crashed)
        with pytest.raises(SimulatedCrashError):
            files.fdatasync(fd)
        assert files.has_crashed
        for call in (
            lambda: files.pread(fd, 1, 0),
            lambda: files.pwrite(fd, b"x", 0),
            lambda: files.pwritev(fd, [b"x"], 0),
            lambda: files.ftruncate(fd, 0),
            lambda: files.fallocate(fd, 0, 1),
            lambda: files.fdatasync(fd),
            lambda: files.copy_range(fd, 0, fd, 1, 1),
            lambda: files.map(fd, 1),
            lambda: files.map(fd, 1, writable=True),
            lambda: files.open(tmp_path / "a", os.O_RDONLY),
            lambda: files.open(tmp_path / "b", CREATE),
            lambda: files.fsync_directory(tmp_path),
            lambda: files.rename(tmp_path / "a", tmp_path / "b"),
            lambda: files.link(tmp_path / "a", tmp_path / "b"),
            lambda: files.unlink(tmp_path / "a"),
            lambda: files.mkdir(tmp_path / "d"),
            lambda: files.rmdir(tmp_path / "d"),
            lambda: files.set_modified_ms(tmp_path / "a", 0),
            lambda: files.exists(tmp_path),
            lambda: files.is_directory(tmp_path),
            lambda: files.listdir(tmp_path),
            lambda: files.size(fd),
        ):
            with pytest.raises(SimulatedCrashError):
                call()
        assert files.operation_count == 3
        files.close(fd)
        files.crash()
        files.crash()

    def test_crash_in(self, tmp_path):
        """The crash point can be set later, from now."""
        files = SimulatedFiles()
        write(files, tmp_path / "a", b"x")
        files.crash_in(2)
        files.mkdir(tmp_path / "d")
        with pytest.raises(SimulatedCrashError):
            files.mkdir(tmp_path / "e")

    def test_same_seed_same_crash(self, tmp_path):
        """A failing run can be repeated from its seed."""

        def change(files, directory):
            write(files, directory / "a", b"n" * 20_000)
            files.rename(directory / "a", directory / "b")
            write(files, directory / "c", b"m" * 20_000)

        for seed in range(5):
            (tmp_path / f"1-{seed}").mkdir()
            (tmp_path / f"2-{seed}").mkdir()
            first = outcomes(tmp_path / f"1-{seed}", nothing, change, seeds=[seed])
            assert first == outcomes(tmp_path / f"2-{seed}", nothing, change, seeds=[seed])

    def test_a_killed_process_loses_nothing_written(self, tmp_path):
        """Without power loss only the operation under way is in doubt."""
        lengths = set()
        for seed in range(30):
            path = tmp_path / str(seed)
            files = SimulatedFiles(seed, crash_at=3)
            fd = files.open(path, CREATE)
            files.pwrite(fd, b"abc", 0)
            with pytest.raises(SimulatedCrashError):
                files.pwrite(fd, b"defghi", 3)
            files.close(fd)
            files.crash(power_loss=False)
            data = path.read_bytes()
            assert b"abc" == data[:3]
            assert b"abcdefghi"[: len(data)] == data
            lengths.add(len(data))
        assert {3, 9} < lengths

    def test_no_faults_is_a_kill(self, tmp_path):
        """With no fault allowed everything is kept."""

        def change(files, directory):
            write(files, directory / "a", b"n" * 9000)

        assert {(("a", b"n" * 9000),)} == outcomes(tmp_path, nothing, change, faults=())

    def test_leaves_no_descriptors(self, tmp_path):
        """The journal's own descriptors are closed with it, and after every sync."""
        if not os.path.isdir("/proc/self/fd"):
            pytest.skip("needs /proc")
        files = SimulatedFiles()
        for i in range(20):
            write(files, tmp_path / f"{i}", b"x", sync=True)
            files.rename(tmp_path / f"{i}", tmp_path / f"{i}.b")
        files.fsync_directory(tmp_path)
        assert [] == open_below(tmp_path)
        write(files, tmp_path / "a", b"x")
        assert [] != open_below(tmp_path)
        del files
        gc.collect()
        assert [] == open_below(tmp_path)

    @pytest.mark.linux  # Locks of an open file.
    def test_locks_are_not_disturbed(self, tmp_path):
        """The journal opens files by itself and never inherits or loses a record lock."""
        files = SimulatedFiles()
        fd = files.open(tmp_path / ".lock", CREATE)
        assert files.lock(fd)
        files.pwrite(fd, b"1", 0)
        other = files.open(tmp_path / ".lock", os.O_RDWR)
        assert not files.lock(other)
        files.close(fd)
        assert files.lock(other)
        files.close(other)

    def test_the_crash_ends_locks_and_descriptors(self, tmp_path):
        """What a leaked handle holds is as free as after the end of its process."""
        files = SimulatedFiles()
        fd = files.open(tmp_path / ".lock", CREATE)
        reader = files.open(tmp_path / ".lock", os.O_RDONLY)
        closed = files.open(tmp_path / ".lock", os.O_RDONLY)
        files.close(closed)
        stranger = os.open(tmp_path, os.O_RDONLY)  # Has the number now.
        assert files.lock(fd)
        files.crash(power_loss=False)

        again = REAL_FILES.open(tmp_path / ".lock", os.O_RDWR)
        assert REAL_FILES.lock(again)
        assert os.path.samestat(os.fstat(stranger), os.stat(tmp_path))
        assert os.path.samestat(os.fstat(reader), os.stat("/dev/null"))
        for one in (fd, reader):
            files.close(one)
        for one in (again, stranger):
            os.close(one)

    def test_old_mappings_stay_readable(self, tmp_path):
        """A view from before the crash must not end the process when its file was cut."""
        for seed in range(20):
            path = tmp_path / str(seed)
            path.write_bytes(b"")
            files = SimulatedFiles(seed, faults=["size"])
            fd = files.open(path, os.O_RDWR)
            files.pwrite(fd, b"x" * 20_000, 0)
            mapping = files.map(fd, 20_000)
            view = mapping.view
            files.crash()
            assert view == b"x" * 20_000
            if path.stat().st_size == 0:
                break
        else:
            raise AssertionError("no seed cut the file")
        assert sorted(os.listdir(tmp_path)) == sorted(str(i) for i in range(seed + 1))

    def test_deleted_and_cut(self, tmp_path):
        """A file that is only in the journal can come back with any of its sizes."""

        def change(files, directory):
            write(files, directory / "a", b"x" * 9000)
            files.unlink(directory / "a")

        left = outcomes(
            tmp_path, lambda d: (d / "a").write_bytes(b""), change, faults=["size", "names"]
        )
        sizes = {len(files[0][1]) for files in left if files}
        assert {0, 9000} < sizes
        assert () in left

    def test_a_mapping_may_be_collected_with_its_files(self, tmp_path):
        """In a cycle, Python frees both in any order."""
        for _ in range(20):
            files = FailingFiles(SimulatedFiles())
            fd = files.open(tmp_path / "a", CREATE)
            files.pwrite(fd, b"abc", 0)
            cycle = [files, files.map(fd, 3, writable=True)]
            cycle.append(cycle)
            files.close(fd)
            del files, cycle
            gc.collect(1)  # All is young; a whole collection takes a second in a long run.

    def test_a_handle_may_be_collected_with_its_files(self, tmp_path):
        """In a cycle, an open handle is closed by files that Python may have freed first."""
        for _ in range(20):
            cycle = [SimulatedFiles()]
            cycle.append(FileHandle(cycle[0], tmp_path / "a", CREATE))
            cycle.append(cycle)
            del cycle
            gc.collect(1)

    def test_threads_share_it(self, tmp_path):
        """Eight threads write, sync and rename at once; each finds what it wrote."""
        files = SimulatedFiles(1)
        failures = []

        def work(number):
            try:
                for i in range(30):
                    path = tmp_path / f"{number}-{i}"
                    write(files, path, bytes([number]) * 5000, sync=i % 2 == 0)
                    files.rename(path, tmp_path / f"{number}")
                    if i % 5 == 0:
                        files.fsync_directory(tmp_path)
                    assert files.read_file(tmp_path / f"{number}") == bytes([number]) * 5000
            except Exception as error:  # noqa: BLE001 - reported below
                failures.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        files.crash()

    def test_handles_work_on_it(self, tmp_path):
        """A FileHandle closes after the crash without an error."""
        files = SimulatedFiles(0, crash_at=2)
        handle = FileHandle(files, tmp_path / "a", CREATE)
        with pytest.raises(SimulatedCrashError), handle.lease() as fd:
            files.pwrite(fd, b"x", 0)
        handle.close()

    def test_unknown_fault(self):
        """An unknown fault would test nothing."""
        with pytest.raises(KeyError):
            SimulatedFiles(faults=["none"])
        assert sorted(FAULTS) == ["drop", "garbage", "names", "size", "tear"]
