"""The snapshot files of a partition: which there are, withdrawing and taking up again."""

from __future__ import annotations

import errno

import pytest

from logstore.errors import StorageError
from logstore.files import REAL_FILES
from logstore.producer_snapshot import ProducerStateEntry, encode_snapshot, write_snapshot
from logstore.simulated_files import FailingFiles
from logstore.snapshot_files import SnapshotFiles, list_snapshot_offsets

ENTRIES = [ProducerStateEntry(7, 1), ProducerStateEntry(9, 0)]


@pytest.fixture(name="snapshots")
def _snapshots(tmp_path):
    for offset in (5, 10, 20):
        write_snapshot(tmp_path / f"{offset:020d}.snapshot", ENTRIES)
    (tmp_path / "1.snapshot").touch()
    (tmp_path / f"{2**63:020d}.snapshot").touch()
    (tmp_path / f"{5:020d}.log").touch()
    return SnapshotFiles(tmp_path)


def test_what_there_is(snapshots, tmp_path):
    """Only names of 20 digits count; the directory is listed at the first question."""
    assert (5, 10, 20) == snapshots.offsets
    assert (5, 20) == (snapshots.oldest, snapshots.latest)
    assert 10 in snapshots
    assert 7 not in snapshots
    write_snapshot(tmp_path / f"{30:020d}.snapshot", ENTRIES)
    assert 20 == snapshots.latest
    snapshots.look(REAL_FILES.listdir(tmp_path))
    assert 30 == snapshots.latest
    snapshots.look([f"{1:020d}.snapshot", "x"])
    assert (1,) == snapshots.offsets


def test_nothing_is_there(tmp_path):
    """An empty directory and a missing one have no oldest and no latest snapshot."""
    for directory in (tmp_path, tmp_path / "missing"):
        snapshots = SnapshotFiles(directory)
        assert ((), None, None) == (snapshots.offsets, snapshots.oldest, snapshots.latest)
        assert snapshots.mark_for_deletion(3) is None


def test_write_keeps_the_order(snapshots, tmp_path):
    """Wherever a new one belongs, and one that is there already is there once."""
    for offset in (7, 30, 10, 1):
        path = snapshots.write(offset, ENTRIES, sync=offset == 7)
        assert encode_snapshot(ENTRIES) == (tmp_path / path).read_bytes()
    assert (1, 5, 7, 10, 20, 30) == snapshots.offsets
    assert list(snapshots.offsets) == list_snapshot_offsets(tmp_path)


def test_withdrawn_ones(snapshots, tmp_path):
    """They do not count; the same one is not written again; the others go in the end."""
    files = {offset: tmp_path / f"{offset:020d}.snapshot" for offset in (5, 10, 20)}
    before = {offset: file.stat().st_mtime_ns for offset, file in files.items()}
    for offset in files:
        snapshots.withdraw(offset)
    snapshots.look(REAL_FILES.listdir(tmp_path))
    assert () == snapshots.offsets
    assert all(file.exists() for file in files.values())
    snapshots.write(5, ENTRIES, sync=False)
    snapshots.write(10, ENTRIES[:1], sync=False)
    snapshots.delete_withdrawn()
    assert before[5] == files[5].stat().st_mtime_ns
    assert encode_snapshot(ENTRIES[:1]) == files[10].read_bytes()
    assert not files[20].exists()
    assert (5, 10) == snapshots.offsets
    snapshots.delete_withdrawn()
    assert files[5].exists()


def test_a_withdrawn_one_is_not_half_taken_up(tmp_path):
    """A write that fails leaves it withdrawn, and it is deleted, whatever is in it."""
    files = FailingFiles()
    write_snapshot(tmp_path / f"{5:020d}.snapshot", ENTRIES)
    snapshots = SnapshotFiles(tmp_path, files=files)
    assert 5 in snapshots
    snapshots.withdraw(5)
    files.fail("pwrite", errno.ENOSPC)
    with pytest.raises(StorageError):
        snapshots.write(5, ENTRIES[:1], sync=False)
    snapshots.delete_withdrawn()
    assert [] == list_snapshot_offsets(tmp_path)


def test_delete_and_mark(snapshots, tmp_path):
    """A marked one has another name; what is missing is no failure."""
    snapshots.delete(5)
    snapshots.delete(5)
    marked = snapshots.mark_for_deletion(10)
    assert marked is not None
    assert marked.endswith(".snapshot.deleted")
    assert (tmp_path / marked).exists()
    (tmp_path / f"{20:020d}.snapshot").unlink()
    assert snapshots.mark_for_deletion(20) is None
    assert () == snapshots.offsets
