"""Records that are compressed on the way: written a piece at a time, and yet all or nothing."""

from __future__ import annotations

import errno
import os

import pytest

import logstore
from logstore import extending
from logstore.clock import ManualClock
from logstore.errors import DiskFullError, PartialAppendError, RecordTooLargeError, StorageError
from logstore.files import REAL_FILES
from logstore.scheduler import ManualScheduler
from logstore.simulated_files import FailingFiles
from logstore.testing import open_log

NOW = 1_700_000_000_000
CONFIG = {
    "batch.bytes": 250,
    "compression.type": "gzip",
    "index.interval.bytes": 200,
    "segment.bytes": 20_000,
    "segment.index.bytes": 1200,
}
BEFORE = [b"before %d" % at for at in range(5)]
# Of bytes that no codec makes smaller: about 12 KB of batches.
VALUES = [os.urandom(100) for _ in range(60)]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(extending, "PIECE_BYTES", 1000)


@pytest.fixture(name="path")
def _path(tmp_path):
    return tmp_path / "log-0"


def opened(path, files=REAL_FILES, **config):
    clock = ManualClock(NOW)
    return open_log(
        path,
        config={**CONFIG, **{key.replace("_", "."): value for key, value in config.items()}},
        clock=clock,
        scheduler=ManualScheduler(clock),
        files=files,
    )


def contents_of(log):
    """All that a failed append must leave alone."""
    active = log.active_segment
    active.take_index_entries()
    return (
        log.offsets,
        len(log.segments),
        log.size_bytes,
        (active.offset_index.entry_count, active.time_index.entry_count),
        active.max_timestamp_and_offset_so_far(),
        active.rolling_based_timestamp(),
        list(log.read_values()),
    )


class TestPieces:
    @pytest.mark.parametrize("piece_bytes", [1, 1000, 1 << 20])
    def test_bytes_do_not_depend_on_pieces(self, path, piece_bytes, monkeypatch):
        """The log file is the same, and so are its indexes."""
        files = []
        for at, size in enumerate((piece_bytes, 1 << 30)):
            monkeypatch.setattr(extending, "PIECE_BYTES", size)
            directory = path.with_name(f"log-{at}")
            with opened(directory) as log:
                log.extend(BEFORE, compression="none")
                assert range(5, 65) == log.extend(VALUES, timestamps=range(NOW, NOW + 60))
                assert BEFORE + VALUES == list(log.read_values())
                log.active_segment.take_index_entries()
                assert log.active_segment.offset_index.entry_count > 20
            names = sorted(name for name in os.listdir(directory) if "0000" in name)
            files.append({name: (directory / name).read_bytes() for name in names})
        assert files[0] == files[1]

    def test_nobody_sees_a_piece_before_the_last_one(self, path, monkeypatch):
        """Neither here nor in another handle that reads beside this one."""
        seen = []
        with opened(path) as log, logstore.open(path, "r") as reader:
            log.extend(BEFORE)
            scan = extending.scan_batches

            def looked(data, **arguments):
                seen.append((log.log_end_offset, log.size_bytes, reader.log_end_offset))
                assert BEFORE == list(log.read_values())
                assert BEFORE == list(reader.read_values())
                return scan(data, **arguments)

            size_bytes = log.size_bytes
            monkeypatch.setattr(extending, "scan_batches", looked)
            log.extend(VALUES)
            assert seen == [(5, size_bytes, 5)] * len(seen)
            assert len(seen) > 5
            assert BEFORE + VALUES == list(reader.read_values())

    def test_what_does_not_fit_goes_to_the_next_segment_as_a_whole(self, path):
        """Some of its pieces were written before that turned out."""
        with opened(path) as log:
            log.extend(VALUES)
            size_bytes = log.size_bytes
            assert range(60, 120) == log.extend(VALUES)
            first, second = log.segments
            assert (size_bytes, 60) == (first.size_bytes, second.base_offset)
            assert size_bytes == os.path.getsize(first.log_path)
            assert 2 * VALUES == list(log.read_values())

    def test_a_late_piece_asks_for_a_new_segment(self, path):
        """Its records are later than segment.ms after the first of the segment."""
        with opened(path, segment_ms=1000) as log:
            log.extend(BEFORE, timestamps=[NOW] * 5)
            log.extend(VALUES, timestamps=[NOW] * 59 + [NOW + 1001])
            first, second = log.segments
            assert (0, 5) == (first.base_offset, second.base_offset)
            assert first.size_bytes == os.path.getsize(first.log_path)
            assert BEFORE + VALUES == list(log.read_values())

    def test_more_than_a_segment(self, path):
        """It is spread, every segment as full as batches make it."""
        with opened(path) as log:
            log.extend(BEFORE)
            assert range(5, 305) == log.extend(VALUES * 5)
            assert len(log.segments) > 2
            assert BEFORE + VALUES * 5 == list(log.read_values())
        with opened(path) as log:
            assert BEFORE + VALUES * 5 == list(log.read_values())


class TestFailures:
    def test_a_record_that_is_too_large_for_a_batch(self, path):
        """It comes last: the pieces before it go again."""
        with opened(path, max_message_bytes=1000) as log:
            log.extend(BEFORE)
            before = contents_of(log)
            with pytest.raises(RecordTooLargeError, match="record 60"):
                log.extend([*VALUES, os.urandom(2000)])
            assert before == contents_of(log)
            assert range(5, 65) == log.extend(VALUES)
            assert BEFORE + VALUES == list(log.read_values())

    @pytest.mark.parametrize("at", [1, 4, 20])
    def test_interrupted(self, path, at, monkeypatch):
        """Ctrl-C while it compresses: nothing is appended, and the log goes on."""
        compress = extending.compress
        calls = []

        def interrupted(*arguments):
            calls.append(1)
            if len(calls) == at:
                raise KeyboardInterrupt
            return compress(*arguments)

        with opened(path) as log:
            log.extend(BEFORE)
            before = contents_of(log)
            monkeypatch.setattr(extending, "compress", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.extend(VALUES)
            assert before == contents_of(log)
            assert 5 == log.append(b"one")
            assert range(6, 66) == log.extend(VALUES)
            assert [*BEFORE, b"one", *VALUES] == list(log.read_values())

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
    def test_at_every_write(self, path, code):
        """Whichever fails, the log is as before, and has the records when they are tried again."""
        files = FailingFiles()
        with opened(path, files) as log:
            log.extend(BEFORE)
            expected = list(BEFORE)
            failures = 0
            for at in range(1, 30):
                before = contents_of(log)
                files.fail("pwrite", code, at=at)
                try:
                    log.extend(VALUES)
                except StorageError as error:
                    failures += 1
                    assert code == error.errno
                    files.clear()
                    assert before == contents_of(log)
                    size_bytes = os.path.getsize(log.active_segment.log_path)
                    assert log.active_segment.size_bytes == size_bytes
                    log.extend([b"again"])
                    expected.append(b"again")
                else:
                    expected += VALUES
                    break
                assert [] == list(log.check())
            assert failures > 5
            files.clear()
            log.extend(VALUES)
            expected += VALUES
            assert expected == list(log.read_values())
            assert [] == list(log.check())
        with opened(path, FailingFiles()) as log:
            assert expected == list(log.read_values())

    def test_full_disk(self, path):
        """It fills up halfway: what was written is given back to it."""
        files = FailingFiles()
        with opened(path, files) as log:
            log.extend(BEFORE)
            before = contents_of(log)
            files.budget = 4000
            for _ in range(2):
                with pytest.raises(DiskFullError):
                    log.extend(VALUES)
                assert before == contents_of(log)
            assert range(5, 15) == log.extend(VALUES[:10])
            files.budget = None
            assert range(15, 75) == log.extend(VALUES)
            assert [] == list(log.check())

    def test_pieces_that_cannot_be_cut_off(self, path):
        """They are behind the end, and go before the next append."""
        files = FailingFiles()
        with opened(path, files) as log:
            log.extend(BEFORE)
            before = contents_of(log)
            files.fail("pwrite", errno.EIO, at=4)
            files.fail("ftruncate", errno.EIO, persistent=True)
            with pytest.raises(StorageError):
                log.extend(VALUES)
            assert os.path.getsize(log.active_segment.log_path) > log.active_segment.size_bytes
            assert before == contents_of(log)
            with pytest.raises(StorageError):
                log.extend(VALUES)
            files.clear()
            assert range(5, 65) == log.extend(VALUES)
            assert BEFORE + VALUES == list(log.read_values())

    def test_in_the_second_segment(self, path):
        """What the first one took stays, and the error says so."""
        files = FailingFiles()
        with opened(path, files, max_message_bytes=1000) as log:
            with pytest.raises(PartialAppendError) as caught:
                log.extend([*VALUES * 4, os.urandom(2000)])
            appended = caught.value.appended
            assert 100 < len(appended) < 240
            assert len(appended) == log.log_end_offset
            assert (VALUES * 4)[: len(appended)] == list(log.read_values())
            assert len(appended) == log.append(b"next")
