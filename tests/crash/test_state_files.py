"""Indexes, snapshots and checkpoints on disks that fail and on power that goes."""

from __future__ import annotations

import errno
import os

import pytest

from logstore.checkpoint import CleanShutdownFile, EpochEntry, LeaderEpochCheckpointFile
from logstore.clock import ManualClock
from logstore.config import LogConfig
from logstore.errors import CorruptSnapshotError, LogStoreError, SimulatedCrashError, StorageError
from logstore.index import OffsetIndex, TimeIndex
from logstore.leader_epoch import LeaderEpochCache
from logstore.producer_snapshot import (
    BatchMetadata,
    ProducerStateEntry,
    read_snapshot,
    write_snapshot,
)
from logstore.producer_state import ProducerStateManager
from logstore.scheduler import ManualScheduler
from logstore.simulated_files import FailingFiles, SimulatedFiles
from logstore.transaction_index import AbortedTxn, TransactionIndex

SEEDS = range(6)
ENTRIES = [
    ProducerStateEntry(number, 1, 2, 3, 4, (BatchMetadata(5, 6, 0, 3),)) for number in range(200)
]


def until_it_works(files, code, act):
    """
    Let the first call fail, then the second one, and so on, each time doing ``act`` anew.

    Ends when ``act`` got through without meeting the failure.
    """
    for at in range(1, 100):
        files.fail(None, code, at=at)
        try:
            act()
        except StorageError as error:
            assert code == error.errno
            files.clear()
        else:
            files.clear()
            return at
    raise AssertionError("it failed forever")


class TestFailures:
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
    def test_index(self, tmp_path, code):
        """Whichever call fails, the entries are those before, and the next try succeeds."""
        files = FailingFiles()
        index = OffsetIndex(tmp_path / "0.index", 0, 80, files=files)
        expected = []
        offset = 0

        def change_twice():
            nonlocal offset
            offset += 5
            index.append(offset, 7 * offset)
            expected.append([offset, 7 * offset])
            index.lookup(offset)  # From now on a mapping has shown this entry.
            index.truncate_to(offset)
            del expected[-1]
            index.trim_to_valid_size()
            index.resize(80)
            index.flush()
            offset += 1
            index.append(offset, 7 * offset)
            expected.append([offset, 7 * offset])

        def compare():
            assert expected == index.entries().tolist()
            assert index.file_bytes == os.path.getsize(index.path)

        failures = 0
        for at in range(1, 40):
            files.fail(None, code, at=at)
            try:
                change_twice()
            except StorageError:
                failures += 1
            files.clear()
            index.resize(80)
            compare()
            if len(expected) > 3:
                index.reset()
                expected.clear()
        assert failures > 8
        index.close()
        assert expected == OffsetIndex(index.path, 0, 80).entries().tolist()

    @pytest.mark.parametrize("kind", [OffsetIndex, TimeIndex])
    def test_an_index_that_cannot_be_made_leaves_no_file(self, tmp_path, kind):
        """A file of no or half size would count as one that is there."""
        files = FailingFiles()
        index = kind(tmp_path / "0.index", 0, 120, files=files)
        files.fail("ftruncate", errno.ENOSPC)
        with pytest.raises(StorageError):
            _ = index.entry_count
        assert not os.path.exists(index.path)
        assert (0, 120) == (index.entry_count, index.file_bytes)

    def test_transaction_index(self, tmp_path):
        """A failed append is not there, and its place is used again."""
        files = FailingFiles()
        index = TransactionIndex(tmp_path / "0.txnindex", 0, files=files)
        index.append(AbortedTxn(1, 0, 5, 6))
        files.budget = 10
        for _ in range(2):
            with pytest.raises(StorageError):
                index.append(AbortedTxn(1, 7, 8, 9))
        assert [AbortedTxn(1, 0, 5, 6)] == index.all_aborted_txns()
        files.budget = None
        index.append(AbortedTxn(1, 7, 8, 9))
        index.close()
        assert 68 == os.path.getsize(index.path)

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
    def test_snapshots(self, tmp_path, code):
        """A snapshot that failed is not known; the next try writes it."""
        files = FailingFiles()
        manager = ProducerStateManager(tmp_path, config=LogConfig(), files=files)
        for entry in ENTRIES:
            manager.load_producer_entry(entry)
        manager.update_map_end_offset(9)
        assert until_it_works(files, code, manager.take_snapshot) > 3
        assert (9,) == manager.snapshot_offsets
        other = ProducerStateManager(tmp_path, config=LogConfig())
        other.truncate_and_reload(0, 10, 0)
        assert (9, len(ENTRIES)) == (other.map_end_offset, other.producer_id_count)

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
    def test_leader_epochs(self, tmp_path, code):
        """The file has the old entries or the new ones after a failure, the new ones at last."""
        files = FailingFiles()
        checkpoint = LeaderEpochCheckpointFile(tmp_path / "c", files=files)
        cache = LeaderEpochCache(checkpoint, ManualScheduler(ManualClock()))
        cache.assign(0, 0)

        def assign_or_flush():
            cache.assign(1, 5)
            cache.flush()

        assert until_it_works(files, code, assign_or_flush) > 3
        assert [(0, 0), (1, 5)] == LeaderEpochCheckpointFile(tmp_path / "c").read()


class TestPowerLoss:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_checkpoints_are_the_old_or_the_new(self, tmp_path, seed):
        """Whenever the power goes while one is replaced; after the return it is the new."""
        old, new = [EpochEntry(0, 0)], [EpochEntry(number, number) for number in range(1000)]
        for crash_at in range(1, 30):
            directory = tmp_path / str(crash_at)
            directory.mkdir()
            path = directory / "leader-epoch-checkpoint"
            files = SimulatedFiles(seed)
            LeaderEpochCheckpointFile(path, files=files).write(old)
            files.crash_in(crash_at)
            is_done = False
            try:
                LeaderEpochCheckpointFile(path, files=files).write(new)
                is_done = True
            except SimulatedCrashError:
                pass
            files.crash()
            found = LeaderEpochCheckpointFile(path).read()
            assert found == new if is_done else found in (old, new)
            if is_done:
                return
        raise AssertionError("the write never ended")

    @pytest.mark.parametrize("seed", SEEDS)
    def test_the_clean_marker_stays_gone(self, tmp_path, seed):
        """A marker that came back would make an unclean end look clean."""
        files = SimulatedFiles(seed)
        CleanShutdownFile(tmp_path, files=files).write()
        CleanShutdownFile(tmp_path, files=files).delete()
        files.crash()
        assert not CleanShutdownFile(tmp_path).exists()

    @pytest.mark.parametrize("seed", SEEDS)
    def test_snapshots_are_whole_or_refused(self, tmp_path, seed):
        """What is left of a snapshot is the new one, the old one, or corrupt: never mixed."""
        path = tmp_path / "s"
        for crash_at in range(1, 10):
            files = SimulatedFiles(seed + 100 * crash_at)
            write_snapshot(path, ENTRIES[:50], files=files)
            files.fsync_directory(tmp_path)
            files.crash_in(crash_at)
            is_done = False
            try:
                write_snapshot(path, ENTRIES, files=files)
                is_done = True
            except SimulatedCrashError:
                pass
            files.crash()
            try:
                found = read_snapshot(path)
            except CorruptSnapshotError:
                assert not is_done
                continue
            assert found == ENTRIES if is_done else found in (ENTRIES, ENTRIES[:50], [])
            if is_done:
                return

    @pytest.mark.parametrize("seed", SEEDS)
    def test_snapshots_behind_a_truncation_stay_gone(self, tmp_path, seed):
        """One that came back would tell of batches that are other ones by then."""
        files = SimulatedFiles(seed)
        manager = ProducerStateManager(tmp_path, config=LogConfig(), files=files)
        for offset in (5, 9):
            manager.update_map_end_offset(offset)
            manager.take_snapshot()
        files.fsync_directory(tmp_path)
        manager.truncate_and_reload(0, 7, 0)
        files.crash()
        assert (5,) == ProducerStateManager(tmp_path, config=LogConfig()).snapshot_offsets

    @pytest.mark.parametrize("seed", SEEDS)
    def test_a_damaged_index_never_crashes(self, tmp_path, seed):
        """Whatever is left is searched, checked and rebuilt without an error of another kind."""
        files = SimulatedFiles(seed)
        index = OffsetIndex(tmp_path / "0.index", 0, 8000, files=files)
        for offset in range(1, 600):
            index.append(offset, offset * 10)
        files.fsync_directory(tmp_path)
        index.truncate_to(300)
        index.trim_to_valid_size()
        files.crash()
        again = OffsetIndex(tmp_path / "0.index", 0, 8000)
        try:
            again.sanity_check()
            for target in (0, 1, 299, 300, 10**6):
                again.lookup(target)
            again.tail_problem(5000)
            again.truncate_to(100)
        except LogStoreError:
            pass
        again.reset()
        again.append(7, 70)
        assert (7, 70) == again.lookup(100)
        again.close()
