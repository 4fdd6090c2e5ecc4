"""Loading a directory: leftovers, damage, full disks, crashes in between; nothing is lost."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import threading
from pathlib import Path

import pytest
from patience import until
from sampling import stride

import logstore
from logstore.checkpoint import OffsetCheckpointFile
from logstore.clock import ManualClock
from logstore.control_record import ControlRecordType, EndTransactionMarker
from logstore.errors import CorruptRecordError, SimulatedCrashError, StorageError
from logstore.files import REAL_FILES
from logstore.loader import INDEX_SUFFIXES
from logstore.record import encode_batch, end_transaction_marker
from logstore.simulated_files import FailingFiles, SimulatedFiles
from logstore.testing import open_log

CONFIG = {"segment.bytes": 500, "segment.index.bytes": 240, "index.interval.bytes": 100}
COUNT = 30


def opened(path, mode="a", **options):
    return open_log(path, mode, config=CONFIG, clock=ManualClock(), **options)


@pytest.fixture(name="path")
def _path(tmp_path):
    """A closed log of some segments, one record a batch."""
    path = tmp_path / "log-0"
    with opened(path) as log:
        for at in range(COUNT):
            log.append(b"value %d" % at)
    return path


def segments(path, suffix=".log"):
    return sorted(path.glob(f"*{suffix}"))


def make_unclean(path, recovery_point=0):
    (path / ".kafka_cleanshutdown").unlink()
    checkpoint = OffsetCheckpointFile(path / "recovery-point-offset-checkpoint")
    checkpoint.write({("log", 0): recovery_point})


def contents(path):
    """What a load finds, checked, and again after a clean close."""
    with opened(path) as log:
        values = list(log.read_values())
        assert [] == list(log.check())
    with opened(path) as log:
        assert values == list(log.read_values())
    return values


def values(count=COUNT):
    return [b"value %d" % at for at in range(count)]


def flip(file, at):
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


class TestLeftovers:
    def test_deleted_and_temporary_files_go(self, path):
        """What is logically gone is deleted; a KRaft snapshot's file is not ours."""
        first = segments(path)[0].name
        gone = [
            f"{first}.deleted",
            f"{first}.truncated",
            f"{first[:-4]}.index.tmp",
            "7.snapshot.deleted",
        ]
        for name in gone:
            (path / name).write_bytes(b"x")
        (path / "00000000000000000007-0000000001.checkpoint.deleted").touch()
        assert values() == contents(path)
        left = os.listdir(path)
        assert set() == set(gone) & set(left)
        assert "00000000000000000007-0000000001.checkpoint.deleted" in left

    def test_orphan_indexes_go(self, path):
        """Indexes without their log are only hints without a subject."""
        for suffix in (".index", ".timeindex", ".txnindex"):
            (path / f"{99:020d}{suffix}").write_bytes(bytes(34 * 12 * 8))
        assert values() == contents(path)
        assert [] == segments(path, f"{99:020d}*")

    def test_uncommitted_split(self, path):
        """While a part is .cleaned, the parts above it that are .swap do not count."""
        log = segments(path)[1]
        shutil.copy(log, f"{log}.cleaned")
        upper = path / f"{int(log.stem) + 1:020d}.log.swap"
        shutil.copy(log, upper)
        assert values() == contents(path)
        assert not upper.exists()
        assert [] == segments(path, ".cleaned")

    def test_committed_replacement(self, path):
        """A .swap replaces what lies in its range, and is served under its own name."""
        first, second, *_ = segments(path)
        merged = path / f"{first.name}.swap"
        merged.write_bytes(first.read_bytes() + second.read_bytes())
        count = len(segments(path))
        assert values() == contents(path)
        assert count - 1 == len(segments(path))
        assert not second.exists()

    def test_replacement_without_indexes_is_recovered_once(self, path):
        """
        Where the end is unclean it is recovered with the rest, and snapshots are where Kafka's are.

        Kafka opens a replacement to see where it ends, which makes its offset index.
        """
        log = segments(path)[-1]
        log.rename(f"{log}.swap")
        make_unclean(path, int(log.stem))
        for snapshot in path.glob("*.snapshot"):
            snapshot.unlink()
        bases = [int(file.stem) for file in segments(path)]
        with opened(path):
            left = sorted(int(file.stem) for file in path.glob("*.snapshot"))
        expected = [*bases[-1:], int(log.stem), COUNT]
        assert expected == left
        assert values() == contents(path)

    def test_damaged_replacement_deletes_nothing(self, path):
        """Before anything is deleted for a replacement, it is looked at."""
        first, second, *_ = segments(path)
        merged = path / f"{first.name}.swap"
        merged.write_bytes(first.read_bytes() + second.read_bytes()[:-5])
        before = {name: (path / name).read_bytes() for name in os.listdir(path) if name[0] == "0"}
        for _ in range(2):
            with pytest.raises(CorruptRecordError, match="ends inside a batch") as caught:
                opened(path)
            assert str(merged) == caught.value.path
        after = {name: (path / name).read_bytes() for name in os.listdir(path) if name[0] == "0"}
        assert before == after
        merged.unlink()
        assert values() == contents(path)


class TestCleanStart:
    def test_scans_nothing(self, path, tmp_path):
        """A clean log is opened by its names and sizes, and the end of its active segment."""

        def reads(each):
            files = FailingFiles()
            opened(each, files=files).close()
            return files.calls("pread")

        few = tmp_path / "few-0"
        with opened(few) as log:
            log.append(b"value")
        assert 4 < len(segments(path))
        assert 0 <= reads(path) - reads(few) <= 2  # The last entries of the active indexes.

    @pytest.mark.parametrize("tail", [bytes(40), b"\xff" * 90, b"\0" * 8 + b"\x7f" * 60])
    def test_tail_that_does_not_parse(self, path, tail):
        """The active segment is recovered, and what is cut is kept in quarantine."""
        active = segments(path)[-1]
        size = active.stat().st_size
        with active.open("ab") as file:
            file.write(tail)
        assert values() == contents(path)
        kept = path / "quarantine" / "1" / f"{active.name}.from-{size}"
        assert tail == kept.read_bytes()

    def test_torn_last_batch(self, path):
        """A batch that lost its end after a clean stop goes, the others stay."""
        active = segments(path)[-1]
        os.truncate(active, active.stat().st_size - 3)
        assert values(COUNT - 1) == contents(path)
        assert 1 == len(list((path / "quarantine" / "1").iterdir()))

    def test_flipped_bit_cuts_nothing(self, path):
        """Damage that parses is an error for its reader; what lies behind it stays."""
        active = segments(path)[-1]
        first = int(active.stem)
        flip(active, 70)
        with opened(path) as log:
            assert COUNT == log.log_end_offset
            with pytest.raises(CorruptRecordError):
                list(log)
            assert values()[first + 1 :] == list(log.read_values(first + 1))
        assert not (path / "quarantine").exists()

    @pytest.mark.parametrize("suffix", [".index", ".timeindex"])
    @pytest.mark.parametrize("number", [0, -1])
    def test_missing_index(self, path, suffix, number):
        """A missing index is rebuilt as it was."""
        index = segments(path, suffix)[number]
        before = index.read_bytes()
        index.unlink()
        assert values() == contents(path)
        assert before == index.read_bytes()

    @pytest.mark.parametrize("data", [b"", bytes(240), b"\xff" * 80, bytes(3), bytes(range(96))])
    @pytest.mark.parametrize("suffix", [".index", ".timeindex"])
    @pytest.mark.parametrize("number", [0, 2, -1])
    @pytest.mark.parametrize("mode", ["a", "r"])
    def test_wrong_index(self, path, suffix, data, number, mode):
        """Whatever is in an index, every record is found, by offset and by time; it is rebuilt."""
        index = segments(path, suffix)[number]
        before = index.read_bytes()
        index.write_bytes(data)
        with opened(path, mode) as log:
            assert values() == list(log.read_values())
            for offset in range(COUNT):
                assert offset == log[offset].offset
            assert 0 == log.offset_at(0).offset
            assert log.max_timestamp().offset == 0
            if mode == "a":
                assert [] == list(log.check())
        if mode == "a" and data:
            assert before == index.read_bytes()

    def test_stale_index(self, path):
        """Entries of other offsets, in order and within the file, hide nothing."""
        sealed = segments(path, ".index")
        sealed[2].write_bytes(
            b"".join((n * 7).to_bytes(4, "big") + (n * 50).to_bytes(4, "big") for n in (1, 2, 3))
        )
        with opened(path) as log:
            for offset in range(COUNT):
                assert offset == log[offset].offset

    def test_no_segments(self, path):
        """A directory without segments is an empty log at the checkpointed log start."""
        for file in segments(path):
            file.unlink()
        OffsetCheckpointFile(path / "log-start-offset-checkpoint").write({("log", 0): 12})
        with opened(path) as log:
            assert (12, 12) == (log.log_start_offset, log.log_end_offset)
            assert 12 == log.append(b"x")

    def test_log_start_beyond_the_end(self, path):
        """The segments are set aside, not deleted; the log goes on at its start."""
        OffsetCheckpointFile(path / "log-start-offset-checkpoint").write({("log", 0): 99})
        data = {file.name: file.read_bytes() for file in segments(path)}
        for number, start in ((1, 99), (2, 200)):
            with opened(path) as log:
                assert [start] * 2 == [log.log_start_offset, log.log_end_offset]
                log.append(b"x")
            kept = {
                file.name: file.read_bytes() for file in segments(path / "quarantine" / str(number))
            }
            assert data == kept
            data = {file.name: file.read_bytes() for file in segments(path)}
            OffsetCheckpointFile(path / "log-start-offset-checkpoint").write({("log", 0): 200})

    def test_config_does_not_matter(self, path):
        """A log may be opened with other settings than it was written with."""
        with open_log(path, clock=ManualClock()) as log:
            assert values() == list(log.read_values())


class TestUncleanStart:
    @pytest.mark.parametrize("recovery_point", [0, 12, COUNT])
    def test_nothing_is_damaged(self, path, recovery_point):
        """Recovery from anywhere keeps everything, and the recovery point where it was."""
        make_unclean(path, recovery_point)
        with opened(path) as log:
            assert values() == list(log.read_values())
            assert recovery_point == log.recovery_point
            assert [] == list(log.check())

    def test_torn_tail(self, path):
        """What was never promised is cut, as in Kafka, and is kept nowhere."""
        make_unclean(path)
        active = segments(path)[-1]
        os.truncate(active, active.stat().st_size - 3)
        assert values(COUNT - 1) == contents(path)
        assert not (path / "quarantine").exists()

    def test_damage_above_the_recovery_point(self, path):
        """Segments behind damage do not belong to the log any more; they go into quarantine."""
        make_unclean(path)
        second = segments(path)[1]
        behind = [file.name for file in segments(path)[2:]]
        flip(second, 70)
        assert values(int(second.stem)) == contents(path)
        assert behind == [file.name for file in segments(path / "quarantine" / "1")]
        assert [] == segments(path / "quarantine" / "1", ".from-*")

    def test_damage_below_the_recovery_point(self, path):
        """What was on the device and is cut all the same is kept."""
        make_unclean(path, COUNT)
        active = segments(path)[-1]
        data = active.read_bytes()
        flip(active, 70)
        assert values(int(active.stem)) == contents(path)
        kept = path / "quarantine" / "1" / f"{active.name}.from-0"
        assert len(data) == len(kept.read_bytes())

    @pytest.mark.parametrize("recovery_point", [0, COUNT - 5, COUNT])
    def test_base_offset_that_a_power_loss_tore_off(self, path, recovery_point):
        """
        No CRC covers its 8 bytes, which may be in another sector than the rest of the batch.

        What was not flushed ends there: else records would be at offsets that others have. What was
        flushed cannot be torn, and stays as it is in Kafka.
        """
        make_unclean(path, recovery_point)
        active = segments(path)[-1]
        first = int(active.stem)
        data = bytearray(active.read_bytes())
        torn_at = 2 * (12 + int.from_bytes(data[8:12], "big"))
        data[torn_at : torn_at + 8] = (first).to_bytes(8, "big")
        active.write_bytes(data)
        with opened(path) as log:
            offsets = [header.base_offset for header in log.active_segment.headers()]
            is_cut = recovery_point <= first + 2
            behind = [] if is_cut else [first, *range(first + 3, COUNT)]
            assert [first, first + 1, *behind] == offsets
        if is_cut:
            kept = path / "quarantine" / "1" / f"{active.name}.from-{torn_at}"
            assert data[torn_at:] == kept.read_bytes()
            assert values(first + 2) == contents(path)

    def test_recovery_point_is_lowered_before_records_go_where_damage_was(self, path):
        """After a cut, a second crash does not trust what the old recovery point spoke of."""
        make_unclean(path, COUNT)
        active = segments(path)[-1]
        os.truncate(active, 0)
        first = int(active.stem)
        log = opened(path)
        assert first == log.log_end_offset == log.recovery_point
        log.append(b"new")
        log.abandon()
        checkpoint = OffsetCheckpointFile(path / "recovery-point-offset-checkpoint")
        assert {("log", 0): first} == checkpoint.read()

    def test_read_error_empties_nothing(self, path):
        """A device that fails to read stops the load; Kafka would empty the segment."""
        make_unclean(path)
        files = FailingFiles()
        files.fail("pread", errno.EIO, at=3, persistent=True)
        with pytest.raises(StorageError) as caught:
            opened(path, files=files)
        assert errno.EIO == caught.value.errno
        assert values() == contents(path)

    def test_indexes_that_are_right_are_not_written(self, path):
        """Recovery makes the same entries again, sees that, and leaves the files alone."""

        def state():
            return {
                file.name: (file.stat().st_ino, file.stat().st_mtime_ns)
                for file in path.iterdir()
                if file.suffix in {".index", ".timeindex", ".snapshot"}
                and int(file.stem) < int(segments(path)[-1].stem)
            }

        before = state()
        assert 3 * len(segments(path)) - 4 == len(before)  # None at the first base offset.
        make_unclean(path)
        opened(path).close()
        assert before == state()

    @pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
    def test_a_file_that_is_not_right_is_written(self, path, suffix):
        """A flipped bit, a byte more or a byte less: recovery puts the right contents there."""
        file = segments(path, suffix)[1]
        before = file.read_bytes()
        for data in (bytes([before[0] ^ 1]) + before[1:], before + b"x", before[:-1]):
            file.write_bytes(data)
            make_unclean(path)
            opened(path).close()
            assert before == file.read_bytes()

    def test_operations_are_linear(self, tmp_path):
        """Ten times the segments need ten times the file operations, and no more open files."""
        clean, unclean = {}, {}
        for count in (10, 100):
            path = tmp_path / f"{count}" / "log-0"
            with opened(path) as log:
                while len(log.segments) < count:
                    log.append(b"value")
            files = FailingFiles()
            opened(path, files=files).close()
            clean[count] = files.calls()
            make_unclean(path)
            files = FailingFiles()
            with few_descriptors(30):
                opened(path, files=files).abandon()
            unclean[count] = files.calls()
        assert clean[100] <= clean[10] + 2  # A clean start looks at names, sizes and the end only.
        assert unclean[100] <= 10 * unclean[10]
        assert unclean[100] < 100 * 20

    def test_the_next_flush_syncs_what_was_not_written(self, path):
        """Index files that a killed process wrote may be in the page cache only."""
        make_unclean(path)
        log = opened(path)
        sealed = log.segments[:-1]
        assert all(segment.holds_indexes(*index_bytes(path, segment)) for segment in sealed)
        log.abandon()
        files = FailingFiles()
        log = opened(path, files=files)
        before = files.calls("fdatasync")
        log.flush()
        assert files.calls("fdatasync") - before >= 3 * len(sealed) + 1
        before = files.calls("fdatasync")
        log.flush()
        assert before == files.calls("fdatasync")
        log.close()


@contextlib.contextmanager
def few_descriptors(count):
    """Let this process open only so many files more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def index_bytes(path, segment):
    """The contents of a segment's index files, b"" for one that is not there."""
    files = [path / f"{segment.base_offset:020d}{suffix}" for suffix in INDEX_SUFFIXES]
    return [file.read_bytes() if file.exists() else b"" for file in files]


class TestProducers:
    """Transactions survive the loss of everything but the log."""

    def log_with_transactions(self, path):
        """Return a log with an aborted transaction, a committed one and an open one."""
        with opened(path) as log:
            for producer, value in ((1, b"aborted"), (2, b"committed"), (3, b"open")):
                log.append_batches(
                    encode_batch(
                        [(0, 1, None, value, ())],
                        producer_id=producer,
                        producer_epoch=0,
                        base_sequence=0,
                        is_transactional=True,
                    ),
                    leader_epoch=0,
                    origin="coordinator",
                )
                if producer == 3:
                    break
                kind = ControlRecordType.ABORT if producer == 1 else ControlRecordType.COMMIT
                log.append_batches(
                    end_transaction_marker(
                        EndTransactionMarker(kind, 0),
                        timestamp=1,
                        producer_id=producer,
                        producer_epoch=0,
                    ),
                    leader_epoch=0,
                    origin="coordinator",
                )
                log.roll()
            log.append(b"behind")

    @pytest.fixture(name="config", autouse=True)
    def _config(self, monkeypatch):
        monkeypatch.setitem(CONFIG, "transaction.partition.verification.enable", "false")
        monkeypatch.setitem(CONFIG, "producer.id.expiration.ms", 2**31 - 1)

    def committed(self, path, mode="a"):
        config = {**CONFIG, "transaction.partition.verification.enable": "false"}
        with open_log(path, mode, config=config, clock=ManualClock(5)) as log:
            return list(log.read_values()), log.last_stable_offset

    @pytest.mark.parametrize("lost", ["", "*.snapshot", "*.txnindex", "*index", "*[!g]"])
    @pytest.mark.parametrize("mode", ["a", "r"])
    def test_lost_files(self, tmp_path, lost, mode):
        """Aborted records stay invisible and an open transaction stays open."""
        path = tmp_path / "txn-0"
        self.log_with_transactions(path)
        before = self.committed(path)
        for file in path.glob(lost) if lost else ():
            if file.name[0] == "0":
                file.unlink()
        assert ([b"committed"], 4) == before == self.committed(path, mode)

    def test_transaction_index_that_is_right_is_not_written(self, tmp_path):
        """An unclean end leaves it alone; what is too much, too little or wrong in it goes."""
        path = tmp_path / "txn-0"
        self.log_with_transactions(path)
        (index,) = path.glob("*.txnindex")
        right, before = index.read_bytes(), index.stat().st_mtime_ns
        assert right
        for data in (right, right + right, right[:-1], right[:-1] + b"x", b""):
            if data != right:
                index.write_bytes(data)
            (path / ".kafka_cleanshutdown").unlink()
            (path / "recovery-point-offset-checkpoint").unlink()
            assert ([b"committed"], 4) == self.committed(path)
            assert right == index.read_bytes()
            assert data != right or before == index.stat().st_mtime_ns

    def test_stray_transaction_index(self, tmp_path):
        """Entries of a segment without an aborted transaction go in a recovery."""
        path = tmp_path / "txn-0"
        self.log_with_transactions(path)
        (index,) = path.glob("*.txnindex")
        stray = segments(path)[-1].with_suffix(".txnindex")
        shutil.copy(index, stray)
        (path / ".kafka_cleanshutdown").unlink()
        (path / "recovery-point-offset-checkpoint").unlink()
        assert ([b"committed"], 4) == self.committed(path)
        assert not stray.exists() or b"" == stray.read_bytes()

    def test_damaged_snapshots(self, tmp_path):
        """A snapshot that fails its check is not believed."""
        path = tmp_path / "txn-0"
        self.log_with_transactions(path)
        for file in path.glob("*.snapshot"):
            flip(file, 8)
        assert ([b"committed"], 4) == self.committed(path)


class TestSplit:
    def far(self, path):
        """A segment whose second batch is too far above its base, as old releases could write."""
        path.mkdir()
        end = 2**31 + 5
        data = b"".join(
            encode_batch([(offset, 1, None, b"%d" % offset, ())]) for offset in (3, 4, end, end + 1)
        )
        (path / f"{0:020d}.log").write_bytes(data)
        return [3, 4, end, end + 1]

    @pytest.mark.parametrize("tail", [b"", b"torn"])
    def test_overflow(self, tmp_path, tail):
        """The segment becomes two, and no record is lost."""
        path = tmp_path / "log-0"
        offsets = self.far(path)
        with (path / f"{0:020d}.log").open("ab") as file:
            file.write(tail)
        for _ in range(2):
            with opened(path) as log:
                assert offsets == [record.offset for record in log]
                assert [0, offsets[2]] == [segment.base_offset for segment in log.segments]
                assert [] == list(log.check())

    def test_overflow_for_reading(self, tmp_path):
        """A reader cannot split; it says what to do."""
        path = tmp_path / "log-0"
        self.far(path)
        with pytest.raises(logstore.SegmentOffsetOverflowError):
            opened(path, "r")


def prepared(path, kind):
    """Give a load something to do."""
    first, second, third, *_ = segments(path)
    if kind == "swap":
        (path / f"{first.name}.swap").write_bytes(first.read_bytes() + second.read_bytes())
        shutil.copy(third, f"{third}.deleted")
    elif kind == "unclean":
        make_unclean(path)
        with segments(path)[-1].open("ab") as file:
            file.write(bytes(70))
    elif kind == "indexes":
        for index in path.glob("*index"):
            index.unlink()
    elif kind == "tail":
        with segments(path)[-1].open("ab") as file:
            file.write(b"garbage" * 9)
    elif kind == "start":
        OffsetCheckpointFile(path / "log-start-offset-checkpoint").write({("log", 0): 99})


KINDS = ["swap", "unclean", "indexes", "tail", "start"]


class TestInterruptions:
    """A load may end anywhere; the next one goes on and finds the same."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_crash_at_every_operation(self, path, tmp_path, kind):
        """After a power loss in any operation of a load, everything is still there."""
        prepared(path, kind)
        wanted = [] if kind == "start" else values()
        REAL_FILES.fsync_directory(str(path))
        at, step = 0, stride(commit=1, small=3)
        while True:
            at += step
            copy = tmp_path / f"{at}" / "log-0"
            shutil.copytree(path, copy)
            files = SimulatedFiles(seed=at, crash_at=at)
            with contextlib.suppress(SimulatedCrashError):
                opened(copy, files=files).abandon()
            if not files.has_crashed:
                break
            files.crash()
            assert wanted == contents(copy), f"after a crash in operation {at}"
            shutil.rmtree(copy.parent)
        assert at > 3

    @pytest.mark.parametrize("kind", KINDS)
    def test_failure_of_every_operation(self, path, tmp_path, kind):
        """An I/O error in any call of a load costs nothing: the next load is whole."""
        prepared(path, kind)
        wanted = [] if kind == "start" else values()
        files = FailingFiles()
        # Other calls for each kind.
        step = stride(commit=3, small=12)
        at = KINDS.index(kind) % step - step + 1
        while True:
            at += step
            copy = tmp_path / f"{at}" / "log-0"
            shutil.copytree(path, copy)
            calls = files.calls()
            files.fail(None, errno.EIO, at=at)
            with contextlib.suppress(StorageError):
                opened(copy, files=files).abandon()
            is_done = files.calls() - calls < at
            files.clear()
            assert wanted == contents(copy), f"after a failure of call {at}"
            shutil.rmtree(copy.parent)
            if is_done:
                break
        assert at > 10

    def test_failure_leaves_no_thread(self, path):
        """The background work of a load that failed ends with it."""
        prepared(path, "swap")
        threads = threading.active_count()
        for at in range(40, 80, 2):
            files = FailingFiles()
            files.fail(None, errno.EIO, at=at)
            with contextlib.suppress(StorageError):
                opened(path, files=files).abandon()
        until(lambda: threading.active_count() <= threads)  # They end by themselves.

    @pytest.mark.parametrize("kind", KINDS)
    def test_full_disk(self, path, kind):
        """A load needs no space; what it could not write is made later."""
        prepared(path, kind)
        files = FailingFiles()
        files.budget = 0
        log = opened(path, files=files)
        wanted = [] if kind == "start" else values()
        assert wanted == list(log.read_values())
        files.budget = None
        log.append(b"new")
        log.close()
        assert [*wanted, b"new"] == contents(path)


def test_quarantine_is_numbered(tmp_path):
    """Each event has its own place."""
    from logstore.quarantine import Quarantine

    (tmp_path / "a.log").write_bytes(b"abc")
    (tmp_path / "b.log").write_bytes(b"defgh")
    first, second = (Quarantine(str(tmp_path), REAL_FILES) for _ in range(2))
    first.move(["a.log"], "gone")
    second.copy_tail("b.log", 2, "cut")
    for each in (first, second, Quarantine(str(tmp_path), REAL_FILES)):
        each.sync()
    found = {str(each.relative_to(tmp_path)): each.read_bytes() for each in tmp_path.rglob("*.*")}
    assert {
        "b.log": b"defgh",
        "quarantine/1/a.log": b"abc",
        "quarantine/2/b.log.from-2": b"fgh",
    } == found
    assert Path(first.path).name == "1"
