from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from logstore._native import (
    Columns,
    NativeLog,
    PatchedBatch,
    Writer,
    encode_batch,
    read_block,
    scan_batches,
)
from logstore.clock import ManualClock
from logstore.errors import DiskFullError, StorageError
from logstore.files import REAL_FILES
from logstore.simulated_files import FailingFiles

NOW = 1_700_000_000_000
BEFORE = [b"kept %d" % i for i in range(20)]


class Segment:
    """Three files that can fail, a writer on them, and some records that must stay."""

    def __init__(self, directory, *, large=False):
        self.files = FailingFiles(REAL_FILES)
        self.clock = ManualClock(NOW)
        self.paths = [os.path.join(directory, name) for name in ("log", "index", "timeindex")]
        self.fds = [
            self.files.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for path in self.paths
        ]
        self.writer = Writer(self.files.io, clock_address=self.clock.address)
        self.writer.configure(index_interval_bytes=0, batch_bytes=16384 if large else 200)
        log_fd, index_fd, timeindex_fd = self.fds
        self.writer.attach(
            log_fd=log_fd,
            index_fd=index_fd,
            timeindex_fd=timeindex_fd,
            base_offset=0,
            next_offset=0,
            offset_entries_max=1 << 20,
            time_entries_max=1 << 20,
            path=self.paths[0],
        )
        self.writer.append_list(BEFORE)

    def snapshot(self):
        """All that a failed append must leave alone."""
        state = self.writer.state()
        sizes = (None, 8 * state.offset_entry_count, 12 * state.time_entry_count)
        parts = []
        for path, size in zip(self.paths, sizes, strict=True):
            with open(path, "rb") as file:
                parts.append(file.read()[:size])
        return state, self.writer.log_end_offset, self.writer.size_bytes, parts

    def values(self):
        with open(self.paths[0], "rb") as file:
            data = file.read()
        block = read_block(data, 0, len(data), max_records=1 << 20, values_only=True)
        assert len(data) == block.next_position
        return block.items

    def close(self):
        self.files.clear()
        for fd in self.fds:
            self.files.close(fd)


def columns_of(values):
    offsets = np.cumsum([0, *(len(value) for value in values)]).astype(np.int64)
    return Columns(b"".join(values), offsets, timestamp=NOW)


class Log(NativeLog):
    def _append_general(self, value):
        raise StorageError("general", errno.EIO)


SMALL = [b"x" * 50] * 20
LARGE = [bytes([i % 256]) * 10_000 for i in range(230)]


def append_one(segment):
    log = Log()
    log._bind_writer(segment.writer)
    log.append(b"one")
    return [b"one"]


def append_small_list(segment):
    segment.writer.append_list(SMALL)
    return SMALL


def append_large_list(segment):
    segment.writer.append_list(LARGE)
    return LARGE


def append_large_columns(segment):
    segment.writer.append_columns(columns_of(LARGE))
    return LARGE


def append_encoded(segment):
    parts = []
    for i, value in enumerate(LARGE):
        parts.append(encode_batch(columns_of([value]), 0, base_offset=len(BEFORE) + i).data)
    data = b"".join(parts)
    segment.writer.append_encoded(data, scan_batches(data).batches)
    return LARGE


def append_pieces(segment):
    first = segment.writer.log_end_offset
    values = LARGE[:40]

    def pieces():
        for i, value in enumerate(values):
            data = encode_batch(columns_of([value]), 0, base_offset=first + i).data
            yield data, scan_batches(data).batches

    segment.writer.append_pieces(pieces())
    segment.writer.publish(first + len(values))
    return values


def append_patched(segment):
    value = b"p" * (2 << 20)
    batch = encode_batch(
        columns_of([value]), 0, base_offset=segment.writer.log_end_offset, batch_bytes=3 << 20
    ).data
    patched = PatchedBatch(batch[:61], bytes(61) + batch[61:])
    segment.writer.append_encoded(patched, scan_batches(batch).batches)
    return [value]


APPENDS = [
    append_one,
    append_small_list,
    append_large_list,
    append_large_columns,
    append_encoded,
    append_pieces,
    append_patched,
]


@pytest.fixture
def make_segment(tmp_path):
    segments = []

    def make(append):
        segments.append(Segment(tmp_path, large="large" in append.__name__))
        return segments[-1]

    yield make
    for segment in segments:
        segment.close()


def calls_of(make_segment, append):
    segment = make_segment(append)
    before = segment.files.calls()
    append(segment)
    return segment.files.calls() - before


@pytest.mark.parametrize("append", APPENDS)
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
class TestErrors:
    def test_at_every_call(self, make_segment, append, error):
        """A failure at any call leaves files and state as before, and the next append works."""
        failed = 0
        for at in range(1, calls_of(make_segment, append) + 1):
            segment = make_segment(append)
            before = segment.snapshot()
            segment.files.fail(None, error, at=at)
            expected = list(BEFORE)
            problem = None
            try:
                expected += append(segment)
            except StorageError as raised:
                problem = raised.errno
                failed += 1
            assert problem in (None, error, errno.EIO)
            assert problem is None or before == segment.snapshot()
            segment.files.clear()
            assert expected == segment.values()
            expected += append(segment) if append is not append_encoded else []
            assert expected == segment.values()
        assert failed > 0 or error != errno.EIO or append is append_one

    def test_for_good(self, make_segment, append, error):
        """While every write fails, nothing changes, however often it is tried."""
        segment = make_segment(append)
        before = segment.snapshot()
        segment.files.fail("pwrite", error, persistent=True)
        for _ in range(3):
            with pytest.raises(StorageError):
                append(segment)
            assert before == segment.snapshot()
        segment.files.clear()
        expected = BEFORE + append(segment)
        assert expected == segment.values()


@pytest.mark.parametrize("append", APPENDS)
class TestTransfers:
    def test_short_writes(self, make_segment, append):
        """A write that does half is gone on with, at every call."""
        for at in range(1, calls_of(make_segment, append) + 1):
            segment = make_segment(append)
            segment.files.shorten("pwrite", at=at)
            expected = BEFORE + append(segment)
            assert expected == segment.values()
            assert len(expected) == segment.writer.log_end_offset

    def test_always_short_writes(self, make_segment, append):
        """Even if each does only half of what is left."""
        segment = make_segment(append)
        segment.files.shorten("pwrite", persistent=True)
        expected = BEFORE + append(segment)
        segment.files.clear()
        assert expected == segment.values()

    def test_interrupts(self, make_segment, append):
        """A signal in the middle is nobody's business."""
        for at in range(1, calls_of(make_segment, append) + 1):
            segment = make_segment(append)
            segment.files.fail(None, errno.EINTR, at=at)
            expected = BEFORE + append(segment)
            assert expected == segment.values()


@pytest.mark.parametrize("append", APPENDS[1:])
class TestCutting:
    def test_a_tail_that_cannot_be_cut_is_cut_later(self, make_segment, append):
        """What a failed append has left is removed before the next one writes."""
        segment = make_segment(append)
        before = segment.snapshot()
        # Half of the first write arrives, then nothing works any more.
        segment.files.shorten("pwrite")
        segment.files.fail("pwrite", errno.EIO, at=2)
        segment.files.fail("ftruncate", errno.EIO)
        with pytest.raises(StorageError):
            append(segment)
        assert before[:3] == segment.snapshot()[:3]
        assert os.path.getsize(segment.paths[0]) > before[2]
        segment.files.fail("ftruncate", errno.EIO)
        with pytest.raises(StorageError):
            segment.writer.append_list([b"again"])
        segment.writer.append_list([b"again"])
        assert [*BEFORE, b"again"] == segment.values()

    def test_detaching_cuts_it_too(self, make_segment, append):
        """The file ends with its last batch, or detaching says that it does not."""
        segment = make_segment(append)
        size = segment.writer.size_bytes
        for works in (True, False):
            segment.files.shorten("pwrite")
            segment.files.fail("pwrite", errno.EIO, at=2)
            segment.files.fail("ftruncate", errno.EIO)
            with pytest.raises(StorageError):
                append(segment)
            if works:
                segment.writer.trim()
                assert size == os.path.getsize(segment.paths[0])
        segment.files.fail("ftruncate", errno.EIO)
        with pytest.raises(StorageError):
            segment.writer.detach()


class TestHeldEntries:
    """Index entries of single appends that cannot be written cost a lookup time, and no record."""

    def filled(self, make_segment):
        """A segment with held entries, whose index files cannot be written."""
        segment = make_segment(append_one)
        log = Log()
        log._bind_writer(segment.writer)
        for _ in range(3):
            log.append(b"v")
        state = segment.writer.state()
        for _ in range(3):
            log.append(b"v")
        segment.files.fail("pwrite", errno.ENOSPC, persistent=True)
        return segment, log, state

    def test_they_are_held_on(self, make_segment):
        """They do not count as entries until they can be written."""
        segment, _, before = self.filled(make_segment)
        segment.writer.settle_entries()
        state = segment.writer.state()
        assert len(BEFORE) + 6 == state.log_end_offset
        assert before.offset_entry_count == state.offset_entry_count
        assert before.last_time_entry_offset == state.last_time_entry_offset
        assert before.offset_entry_count == segment.writer.offset_entry_count
        segment.files.clear()
        assert before.offset_entry_count + 3 == segment.writer.state().offset_entry_count
        assert before.offset_entry_count + 3 == segment.writer.offset_entry_count

    def test_a_bulk_append_waits_for_them(self, make_segment):
        """It would write entries behind them; it fails, and works when they can be written."""
        segment, _, before = self.filled(make_segment)
        with pytest.raises(StorageError):
            segment.writer.append_list([b"w"])
        segment.files.clear()
        segment.writer.append_list([b"w"])
        assert before.offset_entry_count + 4 == segment.writer.state().offset_entry_count
        assert [*BEFORE, *[b"v"] * 6, b"w"] == segment.values()

    def test_detached_without(self, make_segment):
        """The state that the segment is left with has only those that are in the files."""
        segment, _, before = self.filled(make_segment)
        state = segment.writer.detach()
        assert len(BEFORE) + 6 == state.log_end_offset
        assert before.offset_entry_count == state.offset_entry_count
        assert before.time_entry_count == state.time_entry_count


class TestFullDisk:
    def test_appends_work_again_when_space_is_back(self, make_segment):
        """What does not fit is undone and raises, what fits is appended."""
        segment = make_segment(append_large_list)
        before = segment.snapshot()
        segment.files.budget = 1 << 20
        with pytest.raises(DiskFullError):
            append_large_list(segment)
        assert before == segment.snapshot()
        segment.writer.append_list([b"fits"])
        segment.files.budget = None
        append_large_list(segment)
        assert [*BEFORE, b"fits", *LARGE] == segment.values()

    def test_room_ahead_is_given_back_before_giving_up(self, make_segment):
        """A disk that is full because of our own allocation is not full."""
        segment = make_segment(append_large_list)
        append_large_list(segment)
        before = segment.files.calls("ftruncate")
        for _ in range(3):
            append_large_list(segment)
        segment.files.fail("pwrite", errno.ENOSPC, at=2)
        append_large_list(segment)
        assert before < segment.files.calls("ftruncate")
        assert BEFORE + LARGE * 5 == segment.values()

    def test_allocation_that_is_not_supported(self, make_segment):
        """Without fallocate everything works, and it is tried once."""
        segment = make_segment(append_large_list)
        segment.files.fail("fallocate", errno.EOPNOTSUPP, persistent=True)
        append_large_list(segment)
        calls = segment.files.calls("fallocate")
        append_large_list(segment)
        assert calls == segment.files.calls("fallocate")
        assert BEFORE + LARGE * 2 == segment.values()
