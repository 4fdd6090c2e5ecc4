"""A segment that is as its recovery would make it is seen so in one call, and others are not."""

from __future__ import annotations

import os
import shutil

import pytest

from logstore.checkpoint import LeaderEpochCheckpointFile
from logstore.clock import ManualClock
from logstore.config import LogConfig
from logstore.errors import SegmentOffsetOverflowError, StorageError
from logstore.files import REAL_FILES
from logstore.leader_epoch import LeaderEpochCache
from logstore.producer_state import ProducerStateManager
from logstore.record import encode_batch
from logstore.recovery import STEP_BYTES, StepBuffer
from logstore.scheduler import ManualScheduler
from logstore.segment import LogSegment
from logstore.simulated_files import FailingFiles

BASE = 100
CONFIG = LogConfig.of({"index.interval.bytes": 200, "segment.index.bytes": 1200})


def batches(count, *, first=BASE, **options):
    return [
        encode_batch([(None, 1000 + number, None, b"v" * 50, ())], base_offset=number, **options)
        for number in range(first, first + count)
    ]


def damaged(data):
    return data[:-1] + bytes([data[-1] ^ 1])


SEGMENTS = {
    "one batch": (True, batches(1)),
    "many": (True, batches(200)),
    "with gaps": (True, [*batches(3), *batches(5, first=BASE + 10)]),
    "of a known epoch": (True, batches(9, leader_epoch=3)),
    "of older epochs": (True, [*batches(3, leader_epoch=1), *batches(3, first=110)]),
    "times that fall": (True, [*batches(9, first=300), *batches(9, first=400)]),
    "empty": (True, []),
    "of a new epoch": (False, batches(3, leader_epoch=4)),
    "of a producer": (
        False,
        [
            *batches(3),
            *batches(1, first=BASE + 3, producer_id=7, producer_epoch=0, base_sequence=0),
        ],
    ),
    "torn": (False, [*batches(9), batches(1, first=200)[0][:-5]]),
    "torn header": (False, [*batches(9), b"\0" * 7]),
    "damaged": (False, [*batches(9), damaged(batches(1, first=200)[0]), *batches(2, first=201)]),
    "zeros": (False, [*batches(9), bytes(500)]),
    "that goes back": (False, [*batches(9), *batches(2)]),
    "below its base": (False, batches(9, first=BASE - 5)),
    "of magic 3": (False, [*batches(2), b"\0" * 16 + b"\3" + bytes(60)]),
}


class Recovered:
    """What a recovery of a segment in a directory has come to."""

    def __init__(self, directory, *, may_be_plain=True, files=REAL_FILES):
        clock = ManualClock()
        epochs = LeaderEpochCache(
            LeaderEpochCheckpointFile(os.path.join(directory, "epochs"), create=True),
            ManualScheduler(clock),
            "log-0",
        )
        epochs.assign(3, 0)
        self.producers = ProducerStateManager(directory, config=CONFIG, clock=clock)
        self.buffer = StepBuffer(files)
        self.buffer.may_be_plain = may_be_plain
        segment = LogSegment(directory, BASE, CONFIG, files=files, file_already_exists=True)
        try:
            self.cut_bytes = segment.recover(self.producers, epochs, buffer=self.buffer)
            self.largest = segment.max_timestamp_and_offset_so_far()
            self.size_bytes = segment.size_bytes
        finally:
            segment.close_handlers()
        self.epochs = epochs.epoch_entries
        self.end = self.producers.map_end_offset
        self.entries = {
            name: REAL_FILES.read_file(os.path.join(directory, name))
            for name in os.listdir(directory)
            if name.endswith("index")
        }

    @property
    def state(self):
        """All that can be compared."""
        return self.cut_bytes, self.largest, self.size_bytes, self.epochs, self.end, self.entries


@pytest.fixture(name="directory")
def _directory(tmp_path):
    path = tmp_path / "log-0"
    path.mkdir()
    return path


def write(directory, parts):
    (directory / f"{BASE:020d}.log").write_bytes(b"".join(parts))


@pytest.mark.parametrize(("is_plain", "parts"), SEGMENTS.values(), ids=SEGMENTS)
def test_both_ways_agree(directory, tmp_path, is_plain, parts):
    """The first recovery makes the indexes; the second finds them, one way or the other."""
    write(directory, parts)
    Recovered(directory)
    write(directory, parts)  # What was cut is back.
    other = tmp_path / "other-0"
    shutil.copytree(directory, other)
    general = Recovered(other, may_be_plain=False)
    plain = Recovered(directory)
    assert general.state == plain.state
    write(directory, parts)
    files = FailingFiles()
    Recovered(directory, files=files)
    assert is_plain == (files.calls("open") == 3)  # Each file once.


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("change", ["longer", "shorter", "other", "missing", "preallocated"])
def test_wrong_indexes_are_made_again(directory, suffix, change):
    """Whatever is wrong with them."""
    write(directory, batches(50))
    right = Recovered(directory).state
    path = directory / f"{BASE:020d}{suffix}"
    data = path.read_bytes()
    assert len(data) > 12
    if change == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {
                "longer": data + data[-4:],
                "shorter": data[:-4],
                "other": data[:-1] + bytes([data[-1] ^ 1]),
                "preallocated": data + bytes(1200 - len(data)),
            }[change]
        )
    assert right == Recovered(directory).state


def test_a_transaction_index_that_should_not_be_goes(directory):
    """No transaction was aborted here."""
    write(directory, batches(50))
    right = Recovered(directory).state
    name = f"{BASE:020d}.txnindex"
    (directory / name).write_bytes(bytes(34))
    recovered = Recovered(directory)
    assert b"" == recovered.entries.pop(name)
    assert right == recovered.state


def test_an_offset_that_does_not_fit(directory):
    """The segment is to be split."""
    write(directory, [*batches(3), *batches(1, first=BASE + 2**31)])
    for name in (".index", ".timeindex"):
        (directory / f"{BASE:020d}{name}").write_bytes(b"")
    with pytest.raises(SegmentOffsetOverflowError):
        Recovered(directory)


def test_more_entries_than_there_is_memory_for(directory, monkeypatch):
    """The general way takes any number."""
    monkeypatch.setattr("logstore._native.plain.ENTRIES_MAX", 8)
    write(directory, batches(200))
    right = Recovered(directory, may_be_plain=False).state
    assert right == Recovered(directory).state


def test_a_full_index_gets_no_entry(directory):
    """As in the general way."""
    write(directory, batches(1000))
    right = Recovered(directory, may_be_plain=False).state
    assert len(right[-1][f"{BASE:020d}.index"]) == 1200
    assert right == Recovered(directory).state


def test_a_larger_segment_is_read_in_steps(directory):
    """It does not fit the buffer."""
    value = bytes(100_000)
    parts = [
        encode_batch([(None, number, None, value, ())], base_offset=BASE + number)
        for number in range(STEP_BYTES // len(value) + 1)
    ]
    write(directory, parts)
    right = Recovered(directory, may_be_plain=False).state
    assert right == Recovered(directory).state


def test_a_producer_ends_the_attempts(directory):
    """Segments of a producer follow each other: each would be read twice."""
    write(directory, SEGMENTS["of a producer"][1])
    assert not Recovered(directory).buffer.may_be_plain
    write(directory, SEGMENTS["many"][1])
    assert Recovered(directory, may_be_plain=False).buffer.may_be_plain


@pytest.mark.parametrize("operation", ["open", "pread"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_file_that_cannot_be_read(directory, operation, at):
    """It is an error, or read in the general way; never damage."""
    write(directory, batches(50))
    right = Recovered(directory).state
    files = FailingFiles()
    files.fail(operation, 5, at=at)
    assert right == Recovered(directory, files=files).state
    files = FailingFiles()
    files.shorten("pread", at=at, persistent=True)
    assert right == Recovered(directory, files=files).state
    files = FailingFiles()
    files.fail(operation, 5, at=at, persistent=True)
    with pytest.raises(StorageError):
        Recovered(directory, files=files)
    write(directory, batches(50))
    assert right == Recovered(directory).state
