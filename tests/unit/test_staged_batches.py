"""Staged batches: what a task writes for a commit to append."""

from __future__ import annotations

import errno
import itertools
import os
import weakref
from pathlib import Path

import numpy as np
import pytest

import logstore
from logstore import staged_batches
from logstore._native import SCAN_STOP_END, Columns, scan_batches
from logstore.checkpoint import TopicPartition
from logstore.errors import (
    CorruptRecordError,
    RecordTooLargeError,
    StagedBatchesError,
    StorageError,
)
from logstore.record import RecordBatch
from logstore.simulated_files import FailingFiles
from logstore.staged_batches import (
    StagedBatchWriter,
    StagedFile,
    StagedName,
    delete_staged,
    sink_slug,
    staged_path,
)

PLACE = TopicPartition("t", 0)


def columns(values):
    """Return values as columns."""
    offsets = np.cumsum([0, *map(len, values)])
    return Columns(b"".join(values), offsets.astype(np.int64), timestamp=7)


@pytest.fixture(name="path")
def _path(tmp_path):
    return staged_path(str(tmp_path), "q", 3, 5, 1)


def test_round_trip(path):
    """A batch grows until it is full; a large record is alone. Records keep their order."""
    with StagedBatchWriter(path) as writer:
        writer.add(PLACE, columns([b"1" * 40, b"2" * 40, b"3" * 40]), batch_bytes=170)
        writer.add(TopicPartition("u", 2), columns([b"x" * 1000]), batch_bytes=170)
        writer.add(PLACE, columns([b"4", b"", b"5"]), np.array([0, 2]), batch_bytes=170)
    file = StagedFile(path)
    assert ["t", "u", "t"] == [batch.topic for batch in file.batches]
    assert [2, 1, 3] == [batch.record_count for batch in file.batches]
    assert TopicPartition("u", 2) == file.batches[1].place
    found = []
    for each in file.batches:
        batch = RecordBatch(bytes(file.read([each])))
        batch.ensure_valid()
        assert (0, -1) == (batch.base_offset, batch.producer_id)
        found += [record.value for record in batch.records()]
    file.close()
    file.close()
    assert [b"1" * 40, b"2" * 40, b"x" * 1000, b"3" * 40, b"4", b"5"] == found


def test_many_partitions(path, monkeypatch):
    """What their batches hold before they are full is bounded; no record is lost."""
    monkeypatch.setattr(staged_batches, "OPEN_BYTES", 5000)
    with StagedBatchWriter(path) as writer:
        for at in range(50):
            for partition in range(20):
                value = b"%d-%d" % (partition, at)
                writer.add(TopicPartition("t", partition), columns([value]), batch_bytes=1000)
    found = {}
    with StagedFile(path) as file:
        assert len(file.batches) >= 40
        for each in file.batches:
            records = RecordBatch(bytes(file.read([each]))).records()
            found.setdefault(each.partition, []).extend(record.value for record in records)
    assert {n: [b"%d-%d" % (n, at) for at in range(50)] for n in range(20)} == found


def test_several_files(path, tmp_path, monkeypatch):
    """Each is whole, and has an owner; a batch that is larger than a file has one to itself."""
    monkeypatch.setattr(staged_batches, "FILE_BYTES", 200_000)
    sizes = [70_000, 100, 70_000, 70_000, 300_000, 10, 150_000]
    with StagedBatchWriter(path) as writer:
        for number, size in enumerate(sizes):
            value = b"%d" % number + b"x" * size
            writer.add(TopicPartition("t", number % 2), columns([value]), batch_bytes=10)
    assert [path, f"{path}.1", f"{path}.2", f"{path}.3"] == writer.paths
    assert sorted(os.listdir(tmp_path)) == sorted(map(os.path.basename, writer.paths))
    found = []
    for each in writer.paths:
        assert StagedName("q", 3, 5, 1) == StagedName.parse(os.path.basename(each))
        with StagedFile(each) as file:
            found.append([int(records_in(file, batch)[0].value[:1]) for batch in file.batches])
    assert [[0, 1, 2], [3], [4], [5, 6]] == found
    lost = StagedBatchWriter(path + "lost")
    for _ in range(4):
        lost.add(PLACE, columns([b"x" * 150_000]), batch_bytes=10)
    lost.discard()
    assert 4 == len(lost.paths)
    assert not any(map(os.path.exists, lost.paths))


def records_in(file, batch):
    """Return the records of a staged batch."""
    return list(RecordBatch(bytes(file.read([batch]))).records())


def test_too_large_for_the_topic(path):
    """A record; batches of others may be larger than this topic's."""
    with StagedBatchWriter(path) as writer:
        writer.add(PLACE, columns([b"x" * 500]), max_bytes=1000)
        with pytest.raises(RecordTooLargeError, match=r"u-0 .* max\.message\.bytes 300"):
            writer.add(
                TopicPartition("u", 0), columns([b"x" * 500]), batch_bytes=300, max_bytes=300
            )


def test_unfinished(path, tmp_path):
    """An exception deletes the file; one that is cut or changed is refused; none is named so."""
    beyond = Columns(b"123", np.array([0, 9], np.int64), timestamp=7)
    with pytest.raises(ValueError, match="exceed its buffer"), StagedBatchWriter(path) as writer:
        writer.add(PLACE, beyond)
    assert [] == os.listdir(tmp_path)
    with pytest.raises(StagedBatchesError, match="are not here"):
        StagedFile(path)
    with StagedBatchWriter(path) as writer:
        writer.add(PLACE, columns([b"1"]))
    with pytest.raises(StorageError), StagedBatchWriter(path):
        pass
    whole = (tmp_path / os.path.basename(path)).read_bytes()
    for size in (0, 10, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:size])
        with pytest.raises(StagedBatchesError, match="not whole"):
            StagedFile(tmp_path / "cut")
    changed = bytearray(whole)
    changed[-20] ^= 1
    (tmp_path / "cut").write_bytes(changed)
    with pytest.raises(StagedBatchesError, match="not whole"):
        StagedFile(tmp_path / "cut")


def test_names(path):
    """A name says whose a file is; an id that is no name is hashed; other files have no owner."""
    assert StagedName("q", 3, 5, 1) == StagedName.parse(os.path.basename(path))
    assert StagedName.parse(".logstore-staged-q.3.5-1") is None
    assert StagedName.parse("orders-0") is None
    uuid = "0d1ec0de-0000-4000-8000-0123456789ab"
    assert uuid == sink_slug(uuid)
    assert sink_slug("a/b") != sink_slug("a.b")
    assert sink_slug("a/b").startswith("sha256-")
    assert sink_slug("sha256-1") != "sha256-1"
    parsed = StagedName.parse(os.path.basename(staged_path("d", "sub/day 1", 0, 0, 0)))
    assert parsed.sink == sink_slug("sub/day 1")


def test_loader_ignores_them(tmp_path):
    """They are files, as are checkpoints: neither the loader nor a broker looks at those."""
    with logstore.open_store(tmp_path) as store:
        store.create_topic("t")
    with StagedBatchWriter(staged_path(str(tmp_path), "q", 0, 0, 0)) as writer:
        writer.add(PLACE, columns([b"1"]))
    for mode in ("a", "r"):
        with logstore.open_store(tmp_path, mode=mode) as store:
            assert (["t"], []) == (list(store), list(store.errors))


def test_large_batches_begin_at_pages(path):
    """Small ones follow each other; what lies between is read by nobody."""
    sizes = [100, 100, 70_000, 300, 70_000]
    with StagedBatchWriter(path) as writer:
        for size in sizes:
            writer.add(PLACE, columns([b"x" * size]), batch_bytes=10)
    with StagedFile(path) as file:
        first, second, large, small, last = (batch.position for batch in file.batches)
        assert (0, file.batches[0].size_bytes) == (first, second)
        assert (0, 0) == (large % 4096, last % 4096)
        assert large + file.batches[2].size_bytes == small
        for skew in (0, 1, 4095):
            data = file.read(file.batches, skew)
            assert skew == np.frombuffer(data, np.uint8).ctypes.data % 4096
            found = [record.value for batch in split(data) for record in batch.records()]
            assert sizes == [len(value) for value in found]


def split(data):
    """Return the batches in some bytes."""
    rows = scan_batches(data).batches
    return [
        RecordBatch(bytes(data[at : at + size]))
        for at, size in zip(rows["position"].tolist(), rows["size_bytes"].tolist(), strict=True)
    ]


def test_room_that_cannot_be_had_ahead(path):
    """It is only to be faster: whether there is space, the write says."""
    for failure in (errno.EOPNOTSUPP, errno.ENOSPC):
        files = FailingFiles()
        files.fail("fallocate", failure)
        writer = StagedBatchWriter(path, files=files)
        for _ in range(2):
            writer.add(PLACE, columns([b"x" * 70_000]), batch_bytes=10)
        writer.finish()
        with StagedFile(path) as file:
            assert [70_000] * 2 == [
                len(record.value)
                for batch in split(file.read(file.batches))
                for record in batch.records()
            ]
        os.unlink(path)


@pytest.mark.parametrize("operation", ["pwrite", "close"])
def test_nothing_is_left_of_what_failed(path, tmp_path, operation):
    """When it is finished, or closed."""
    files = FailingFiles()
    before = len(os.listdir("/dev/fd"))
    writer = StagedBatchWriter(path, files=files)
    writer.add(PLACE, columns([b"1"]))
    files.fail(operation, errno.EDQUOT)
    with pytest.raises(StorageError), writer:
        assert [path] == writer.paths
    assert ([], before) == (os.listdir(tmp_path), len(os.listdir("/dev/fd")))


def test_all_that_can_be_deleted_is(tmp_path):
    """Behind one that cannot, too."""
    paths = [str(tmp_path / name) for name in "ab"]
    for path in paths:
        Path(path).touch()
    files = FailingFiles()
    files.fail("unlink", errno.EIO)
    with pytest.raises(StorageError):
        delete_staged(paths, files)
    assert ["a"] == os.listdir(tmp_path)


def test_an_error_that_was_kept_goes_with_its_last_reference(tmp_path):
    """A cycle of it and its frames may have memoryviews in it, and crash the collector."""
    files = FailingFiles()
    files.fail("unlink", errno.EIO)
    references = []
    try:
        delete_staged([str(tmp_path / "a")], files)
    except StorageError as error:
        references.append(weakref.ref(error))
    assert [None] == [each() for each in references]


def test_room_is_given_back(path):
    """A file takes what it holds."""
    with StagedBatchWriter(path) as writer:
        writer.add(PLACE, columns([b"x" * 100_000]))
    assert os.stat(path).st_blocks * 512 < 300_000


def test_a_range_of_rows(path):
    """As the indices of the same rows."""
    rows = columns([b"%d" % at for at in range(9)])
    with StagedBatchWriter(path) as writer:
        writer.add(PLACE, rows, range(2, 7), batch_bytes=80)
        writer.add(PLACE, rows, range(0), batch_bytes=80)
    with StagedFile(path) as file:
        found = split(file.read(file.batches))
    assert len(found) > 1
    assert [b"2", b"3", b"4", b"5", b"6"] == [
        record.value for batch in found for record in batch.records()
    ]


def test_any_byte_that_is_wrong(path):
    """Of headers or records it is found with what is read, of index or trailer before."""
    with StagedBatchWriter(path) as writer:
        writer.add(PLACE, columns([b"1", b"2" * 10]))
        writer.add(TopicPartition("u", 0), columns([b"3"]))
    with open(path, "rb") as file:
        whole = file.read()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        with open(path, "wb") as file:
            file.write(damaged)
        with pytest.raises((StagedBatchesError, CorruptRecordError)):
            read_all(path)


def read_all(path):
    """Read what is in a staged file as whoever appends it."""
    with StagedFile(path) as file:
        for batches in file.stretches():
            if scan_batches(file.read(batches)).stop != SCAN_STOP_END:
                raise CorruptRecordError("a CRC is wrong")


def test_stretches(path, monkeypatch):
    """Batches of one partition, in order, as many as are read at once; a large one is alone."""
    with StagedBatchWriter(path) as writer:
        for at in range(6):
            writer.add(PLACE, columns([b"%d" % at * 100]), batch_bytes=100)
            writer.add(TopicPartition("u", 0), columns([b"x" * 1000]), batch_bytes=100)
    monkeypatch.setattr(staged_batches, "STRETCH_BYTES", 500)
    with StagedFile(path) as file:
        found = list(file.stretches())
        assert [2, 2, 2] + [1] * 6 == [len(batches) for batches in found]
        assert [each for each in file.batches if each.place == PLACE] == list(
            itertools.chain(*found[:3])
        )
        for batches in found:
            data = file.read(batches)
            sizes = scan_batches(data).batches["size_bytes"].tolist()
            assert [batch.size_bytes for batch in batches] == sizes
