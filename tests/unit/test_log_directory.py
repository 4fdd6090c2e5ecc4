"""One log directory of a process: checkpoints held in memory, and who may write there."""

from __future__ import annotations

import os
import threading

import pytest

import logstore
from logstore._native import real_io
from logstore.checkpoint import CleanShutdownFile, OffsetCheckpointFile, TopicPartition
from logstore.clock import ManualClock
from logstore.errors import ClosedError, ConfigError, CorruptCheckpointError, LockedError
from logstore.files import REAL_FILES, Files
from logstore.log_directory import (
    RECOVERY_POINT_CHECKPOINT,
    STORE,
    HeldCheckpoint,
    enter_for_log,
    enter_for_store,
)
from logstore.meta_properties import (
    MetaProperties,
    check_ensemble,
    read_meta_properties,
    write_meta_properties,
)
from logstore.partition_state import PartitionState

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
OPTIONS = {"files": REAL_FILES, "clock": ManualClock()}


class CountedFiles(Files):
    """Counts the replacements of files, and holds them up while it is told to."""

    __slots__ = ("gate", "replaced")

    def replace_file(self, path, data):
        self.gate.wait()
        self.replaced.append(os.path.basename(path))
        super().replace_file(path, data)


@pytest.fixture(name="files")
def _files():
    files = CountedFiles(real_io())
    files.gate = threading.Event()
    files.gate.set()
    files.replaced = []
    return files


class TestHeldCheckpoint:
    def test_written_only_if_it_changed(self, tmp_path, files):
        """Setting what is set already, and writing what is written, cost nothing."""
        held = HeldCheckpoint(str(tmp_path / "c"), files)
        held.write()
        assert [] == files.replaced
        held.set(A, 5)
        held.set(B, 7)
        held.write()
        held.set(A, 5)
        held.write()
        assert (1, {A: 5, B: 7}) == (
            len(files.replaced),
            OffsetCheckpointFile(tmp_path / "c").read(),
        )
        held.set(A, None)
        held.set(A, None)
        held.write()
        assert {B: 7} == OffsetCheckpointFile(tmp_path / "c").read()

    def test_those_that_wait_share_a_write(self, tmp_path, files):
        """Many partitions at the same time: not a write for each."""
        held = HeldCheckpoint(str(tmp_path / "c"), files)
        files.gate.clear()
        is_set = threading.Barrier(21)

        def note(number):
            held.set(TopicPartition("t", number), number)
            is_set.wait()
            held.write()
            assert number == OffsetCheckpointFile(tmp_path / "c").read()["t", number]

        threads = [threading.Thread(target=note, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        is_set.wait()
        files.gate.set()
        for thread in threads:
            thread.join()
        assert 20 == len(OffsetCheckpointFile(tmp_path / "c").read())
        assert len(files.replaced) < 20

    def test_deleted_for_want_of_space(self, tmp_path, files):
        """The file says 0 of all then; the next write has everything again."""
        held = HeldCheckpoint(str(tmp_path / "c"), files)
        held.set(A, 5)
        held.write()
        held.delete()
        assert not (tmp_path / "c").exists()
        held.write()
        assert {A: 5} == OffsetCheckpointFile(tmp_path / "c").read()


class TestUsers:
    def test_a_store_is_alone(self, tmp_path):
        """Neither another store nor a log comes in; and it does not come in beside a log."""
        directory = enter_for_store(str(tmp_path), **OPTIONS)
        for enter in (
            lambda: enter_for_store(str(tmp_path), **OPTIONS),
            lambda: enter_for_log(str(tmp_path), A, **OPTIONS),
        ):
            with pytest.raises(LockedError, match="another handle of this process"):
                enter()
        directory.leave(STORE, clean=True)
        log = enter_for_log(str(tmp_path), A, **OPTIONS)
        with pytest.raises(LockedError):
            enter_for_store(str(tmp_path), **OPTIONS)
        log.leave(A, clean=True)

    def test_marker(self, tmp_path):
        """A new one only if every log was loaded, and all were closed cleanly."""
        marker = CleanShutdownFile(tmp_path)
        for is_loaded, is_clean in ((False, True), (True, False), (True, True)):
            directory = enter_for_store(str(tmp_path), **OPTIONS)
            directory.is_loaded = is_loaded
            directory.enter(A)
            directory.leave(A, clean=is_clean)
            assert not marker.exists()
            directory.leave(STORE, clean=True)
            assert marker.exists() == (is_loaded and is_clean)

    def test_marker_goes_before_anything_else(self, tmp_path):
        """A crash while logs are loaded is an unclean end."""
        marker = CleanShutdownFile(tmp_path)
        marker.write(7)
        directory = enter_for_store(str(tmp_path), **OPTIONS)
        assert (True, False) == (directory.had_clean_shutdown, marker.exists())
        directory.leave(STORE, clean=True)
        assert 7 == marker.read()  # A broker's epoch comes back with it.

    def test_closed(self, tmp_path):
        """Nothing is written after the lock has gone."""
        directory = enter_for_store(str(tmp_path), **OPTIONS)
        directory.leave(STORE, clean=True)
        with pytest.raises(ClosedError):
            directory.write(RECOVERY_POINT_CHECKPOINT, A, 1)
        assert "closed" in repr(directory)


class TestTakingOver:
    def test_both_know_of_a_log(self, tmp_path):
        """Somebody wrote without knowing of the other: the careful choice of each offset."""
        own = tmp_path / "a-0"
        own.mkdir()
        for name, at_home, outside in (
            ("recovery-point-offset-checkpoint", 9, 4),
            ("log-start-offset-checkpoint", 1, 3),
            ("replication-offset-checkpoint", 9, 4),
        ):
            OffsetCheckpointFile(own / name).write({A: at_home})
            OffsetCheckpointFile(tmp_path / name).write({A: outside, B: 8})
        CleanShutdownFile(own).write()
        CleanShutdownFile(tmp_path).write()
        state = PartitionState.for_writing(str(own))
        assert (4, 3, 4, False) == (
            state.recovery_point,
            state.log_start_offset,
            state.high_watermark,
            state.had_clean_shutdown,
        )
        assert [] == os.listdir(own)
        assert 8 == OffsetCheckpointFile(tmp_path / "log-start-offset-checkpoint").read()[B]
        state.close(clean=True)

    def test_by_a_log_that_is_opened_by_itself(self, tmp_path):
        """One concept: the parent has become a log directory meanwhile."""
        path = tmp_path / "a-0"
        with logstore.open(path) as log:
            log.extend([b"x", b"y", b"z"])
            log.flush()
            log.maybe_increment_log_start_offset(2)
        (tmp_path / "meta.properties").write_text("version=1\n")
        with logstore.open(path) as log:
            assert (2, 3, 3) == (log.log_start_offset, log.recovery_point, log.log_end_offset)
        assert not (path / ".lock").exists()

    def test_renamed_before(self, tmp_path):
        """The one entry of its own checkpoint is the log's, whatever it was called."""
        with logstore.open(tmp_path / "a-0") as log:
            log.extend([b"x", b"y"])
            log.maybe_increment_log_start_offset(1)
        os.rename(tmp_path / "a-0", tmp_path / "b-1")
        with logstore.open_store(tmp_path) as store:
            assert 1 == store["b", 1].log_start_offset


class TestMetaProperties:
    def test_round_trip(self, tmp_path):
        """Version 1 is written."""
        properties = MetaProperties("a cluster", 3, "a directory")
        write_meta_properties(str(tmp_path), properties)
        assert properties == read_meta_properties(str(tmp_path))

    def test_as_java_writes_them(self, tmp_path):
        """Comments, escapes, any order; version 0 has broker.id."""
        (tmp_path / "meta.properties").write_text(
            "#\n#Mon Jan 01 00:00:00 UTC 2024\nbroker.id=4\nversion=0\ncluster.id=a\\:b\\=c\n"
        )
        assert MetaProperties("a:b=c", 4, None) == read_meta_properties(str(tmp_path))
        (tmp_path / "meta.properties").write_text("broker.id=-1\n")
        assert MetaProperties(None, None, None) == read_meta_properties(str(tmp_path))
        os.unlink(tmp_path / "meta.properties")
        assert read_meta_properties(str(tmp_path)) is None

    @pytest.mark.parametrize("text", ["version=2\n", "version=1\nnode.id=x\n", "version=\n"])
    def test_malformed(self, tmp_path, text):
        """A version that is not known, a number that is none."""
        (tmp_path / "meta.properties").write_text(text)
        with pytest.raises(CorruptCheckpointError):
            read_meta_properties(str(tmp_path))

    def test_ensemble(self):
        """Directories of one node agree; what one does not say another may."""
        assert ("c", 1) == check_ensemble(
            {"x": MetaProperties("c", None, "1"), "y": MetaProperties(None, 1, "2")}
        )
        assert (None, None) == check_ensemble({})
        with pytest.raises(ConfigError) as caught:
            check_ensemble({"x": MetaProperties("c", 1, "1"), "y": MetaProperties("d", 2, "1")})
        assert 3 == len(caught.value.problems)
