"""A log whose files fail, or whose power does: what the random crash tests found, one by one."""

from __future__ import annotations

import contextlib
import errno
import os

import pytest

from logstore.clock import ManualClock
from logstore.config import LogConfig
from logstore.control_record import ControlRecordType, EndTransactionMarker
from logstore.errors import ClosedError, PoisonedError, StorageError
from logstore.index import OffsetIndex
from logstore.producer_rebuild import producer_batches, rebuild_producer_state
from logstore.producer_state import ProducerStateManager
from logstore.record import encode_batch, end_transaction_marker
from logstore.scheduler import ManualScheduler
from logstore.segment import LogSegment
from logstore.simulated_files import FailingFiles, SimulatedFiles
from logstore.testing import open_log

CONFIG = LogConfig.of(
    {"segment.bytes": 500, "segment.index.bytes": 240, "index.interval.bytes": 100}
)
ABORT = end_transaction_marker(
    EndTransactionMarker(ControlRecordType.ABORT, 0), timestamp=0, producer_id=1, producer_epoch=0
)
SUFFIXES = (".index", ".log", ".timeindex")


def opened(path, files):
    clock = ManualClock()
    return open_log(path, config=CONFIG, clock=clock, scheduler=ManualScheduler(clock), files=files)


def of_producer(sequence, *, is_transactional=True):
    return encode_batch(
        [(None, 0, None, b"v", ())],
        base_offset=0,
        producer_id=1,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )


def guard(log):
    return log.producer_state.maybe_start_transaction_verification(
        1, 0, 0, supports_epoch_bump=False
    )


def bases_of(path):
    return sorted(int(name[:20]) for name in os.listdir(path) if name.endswith(".log"))


def filled(path, files, count=20):
    log = opened(path, files)
    for number in range(count):
        log.append(b"value %d" % number)
    return log


@pytest.fixture(name="path")
def _path(tmp_path):
    return tmp_path / "log-0"


class TestFailures:
    def test_single_appends_are_refused_after_a_failed_flush(self, path):
        """The path in C does not ask whether the log is poisoned: it has to be closed."""
        files = FailingFiles()
        log = filled(path, files, 1)
        files.fail("fdatasync", errno.EIO)
        with pytest.raises(StorageError):
            log.flush()
        for _ in range(2):
            with pytest.raises(StorageError, match="close the log and open it again"):
                log.append(b"not acknowledged")
        assert 1 == log.log_end_offset
        log.abandon()

    @pytest.mark.parametrize(
        "use",
        [
            lambda log: log.append(b"lost", sync=True),
            lambda log: log.extend([b"lost"], sync=True),
            lambda log: log.flush(log.append(b"lost") + 1),
            lambda log: [log.append(b"lost"), log.flush()],
        ],
        ids=["append", "extend", "flush of some", "flush"],
    )
    def test_nothing_is_acknowledged_after_a_flush_made_in_c_has_failed(self, path, use):
        """From the second one on a flush takes no line of Python; a third would tell nothing."""
        files = FailingFiles()
        log = opened(path, files)
        log.append(b"general", sync=True)
        log.append(b"in C", sync=True)
        assert 2 == log.recovery_point
        files.fail("fdatasync", errno.EIO)
        before = files.calls("fdatasync")
        with pytest.raises(StorageError, match="Input/output error"):
            use(log)
        for _ in range(2):
            with pytest.raises(PoisonedError, match="close the log and open it again"):
                log.flush()
            with pytest.raises(PoisonedError, match="close the log and open it again"):
                log.extend([b"refused"], sync=True)
            with pytest.raises(PoisonedError, match="close the log and open it again"):
                log.append(b"refused", sync=True)
        assert before + 1 == files.calls("fdatasync")
        assert (2, 3) == (log.recovery_point, log.log_end_offset)
        log.abandon()

    @pytest.mark.parametrize("rolls", [False, True])
    def test_a_close_that_cannot_cut_a_failed_append_lets_go(self, path, rolls):
        """Of files and lock: another handle recovers what there is."""
        files = FailingFiles()
        log = filled(path, files, 1)
        files.shorten("pwrite")
        files.fail("pwrite", errno.EIO, at=2)
        files.fail("pwrite", errno.EIO, at=3)
        files.fail("ftruncate", errno.EIO, persistent=True)
        with pytest.raises(StorageError, match="Input/output error"):
            log.append(b"not acknowledged")
        if rolls:
            with pytest.raises(StorageError, match="Input/output error"):
                log.roll()
        with pytest.raises((ClosedError, StorageError)):
            log.close()
        with pytest.raises(ClosedError, match="closed"):
            log.append(b"refused")

        assert files.calls("open") == files.calls("close")
        with opened(path, FailingFiles()) as log:
            assert [b"value 0"] == [record.value for record in log.read()]

    def test_appends_after_a_roll_that_could_not_detach_name_its_error(self, path):
        """What a failed append left cannot be cut: each refusal says so, and what to do."""
        files = FailingFiles()
        log = filled(path, files, 1)
        files.shorten("pwrite")
        files.fail("pwrite", errno.EIO, at=2)
        files.fail("ftruncate", errno.EIO, persistent=True)
        with pytest.raises(StorageError, match="Input/output error"):
            log.append(b"not acknowledged")
        with pytest.raises(StorageError, match="detach the segment"):
            log.roll()
        files.clear()
        for change in (lambda: log.append(b"refused"), log.roll, log.flush):
            with pytest.raises(PoisonedError, match=r"detach the segment.*close the log") as error:
                change()
            assert errno.EIO == error.value.errno
        assert [b"value 0"] == [record.value for record in log.read()]
        with pytest.raises(PoisonedError):
            log.close()
        with opened(path, FailingFiles()) as log:
            assert [b"value 0"] == [record.value for record in log.read()]

    def test_an_append_whose_item_leaves_the_log_keeps_its_file(self, path):
        """Code that runs inside an append may do that; the number might be another file's."""
        files = FailingFiles()
        log = filled(path, files, 1)
        writer = log._writer

        class Leaving:
            def __iter__(self):
                log.abandon()
                return iter(())

        writer.append_list([b"value 1"], None, None, [Leaving()])
        with opened(path, FailingFiles()) as log:
            assert [b"value 0", b"value 1"] == [record.value for record in log.read()]

    def test_an_abort_that_its_index_cannot_take_is_kept(self, path):
        """Its batches are written, so it counts; the file is tried again with the next flush."""
        files = FailingFiles()
        log = filled(path, files, 1)
        log.append_batches(of_producer(0), leader_epoch=0, verification_guard=guard(log))
        files.fail("open", errno.ENOSPC)  # Of the .txnindex file, which there is not yet.
        log.append_batches(ABORT, leader_epoch=0, origin="coordinator")
        log.append(b"last")
        assert [b"value 0", b"last"] == list(log.read_values())
        assert not list(path.glob("*.txnindex"))
        log.close()
        assert [path / f"{0:020d}.txnindex"] == list(path.glob("*.txnindex"))
        with opened(path, FailingFiles()) as log:
            assert [b"value 0", b"last"] == list(log.read_values())

    @pytest.mark.parametrize("at", [1, 2])
    def test_a_roll_whose_held_index_entries_cannot_be_written(self, path, at):
        """Single appends hold some back; they are hints: the roll goes on, with or without them."""
        files = FailingFiles()
        log = filled(path, files, 5)
        files.fail("pwrite", errno.EIO, at=at)
        log.roll()
        log.append(b"value 5")
        assert [] == list(log.check())
        assert [b"value %d" % number for number in range(6)] == list(log.read_values())
        log.close()

    def test_abandoning_goes_on_when_files_cannot_be_cut(self, path):
        """Every descriptor is closed and the lock is free, whatever fails."""
        files = FailingFiles()
        log = filled(path, files)
        # Half of a batch arrives, and cannot be cut off again.
        files.shorten("pwrite")
        files.fail("pwrite", errno.EIO, at=2)
        files.fail("ftruncate", errno.EIO, persistent=True)
        with pytest.raises(StorageError):
            log.append(b"cut off")
        log.abandon()
        files.clear()
        with opened(path, files) as log:
            assert 20 == len(list(log.read()))

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("at", range(1, 10))
    def test_a_truncation_that_fails_leaves_no_hole(self, path, at, seed):
        """Segments go from the last on, each durably: renames survive a power loss in any order."""
        simulated = SimulatedFiles(seed)
        files = FailingFiles(simulated)
        log = filled(path, files)
        log.flush()
        bases = bases_of(path)
        assert len(bases) > 3
        files.fail("rename", errno.EIO, at=at)
        with contextlib.suppress(StorageError):
            log.truncate_to(2)
        simulated.crash()
        with contextlib.suppress(StorageError):
            log.abandon()
        left = bases_of(path)
        assert left
        assert bases[: len(left)] == left


class TestDurability:
    def test_a_closed_log_leaves_nothing_to_the_disks_mood(self, path):
        """
        Seals and cuts of index files included.

        But for the lock's file, and snapshots that a roll took: they are flushed later, or thrown
        away for their checksum.
        """
        files = SimulatedFiles()
        filled(path, files).close()
        for name in os.listdir(path):
            if name.endswith((".lock", ".snapshot")):
                fd = files.open(path / name, os.O_RDWR)
                files.fdatasync(fd)
                files.close(fd)
        assert 0 == files.unsynced_count

    def test_a_flush_after_a_resize_is_one(self, tmp_path):
        """A changed size alone is something to flush."""
        files = SimulatedFiles()
        index = OffsetIndex(tmp_path / f"{0:020d}.index", 0, 240, files=files)
        index.append(5, 10)
        index.flush()
        files.fsync_directory(tmp_path)
        assert 0 == files.unsynced_count
        index.resize(80)
        assert 0 < files.unsynced_count
        index.flush()
        assert 0 == files.unsynced_count
        index.close()

    @pytest.mark.parametrize("seed", range(10))
    def test_the_segment_that_ends_at_the_recovery_point_is_flushed_when_sealed(self, path, seed):
        """Sealing changes its index files after their last flush."""
        files = SimulatedFiles(seed)
        log = filled(path, files, 4)
        log.flush()
        assert log.recovery_point == log.log_end_offset
        log.roll()
        log.append(b"next")
        log.flush()
        sealed = [path / f"{0:020d}{suffix}" for suffix in SUFFIXES]
        expected = [file.read_bytes() for file in sealed]
        files.crash()
        log.abandon()
        assert expected == [file.read_bytes() for file in sealed]


class TestDamage:
    def test_producer_state_ends_at_an_entry_without_a_size(self, path):
        """Zeros behind the last batch: neither an endless loop nor a refusal."""
        path.mkdir()
        batch = of_producer(0, is_transactional=False)
        for damage in (bytes(200), b"\xff" * 200, bytes(8) + b"\x7f\xff\xff\xff" + bytes(200)):
            (path / f"{0:020d}.log").write_bytes(batch + damage)
            segment = LogSegment(os.fspath(path), 0, CONFIG)
            assert [0] == [each.base_offset for each in producer_batches(segment, 0, 100)]
            assert [] == list(producer_batches(segment, 50, 100))
            segment.close_handlers()

    def test_producer_state_of_a_log_without_segments(self, tmp_path):
        """A truncation that was cut short may have left none."""
        state = ProducerStateManager(tmp_path, config=CONFIG)
        rebuild_producer_state(state, [], 3, 5, 0, reload_from_clean_shutdown=False)
        assert 5 == state.map_end_offset

    def test_index_of_a_segment_with_a_damaged_base_offset(self, path):
        """It stays empty, and the segment is scanned: an open does not fail for an index."""
        log = filled(path, SimulatedFiles())
        log.close()
        first = path / f"{0:020d}.log"
        data = bytearray(first.read_bytes())
        size = 12 + int.from_bytes(data[8:12], "big")
        data[2 * size] = 0x40  # The third batch's base offset; it would have an entry.
        first.write_bytes(data)
        (path / f"{0:020d}.index").write_bytes(bytes(7))
        with opened(path, SimulatedFiles()) as log:
            assert b"value 1" == log[1].value


def test_renaming_a_segment_takes_index_files_that_nobody_opened(path):
    """Its index objects are made when they are first needed, and then under the old names."""
    filled(path, SimulatedFiles()).close()
    segment = LogSegment(os.fspath(path), 0, CONFIG)
    segment.change_file_suffixes("", ".deleted")
    names = sorted(name for name in os.listdir(path) if name.startswith(f"{0:020d}."))
    assert [f"{0:020d}{suffix}.deleted" for suffix in SUFFIXES] == [
        name for name in names if "snapshot" not in name
    ]
    segment.close_handlers()
