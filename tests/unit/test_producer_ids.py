"""Producer ids: blocks that are durable first, and numbers that come once."""

from __future__ import annotations

import errno
import json
import threading

import pytest

from logstore.errors import CorruptCheckpointError, DiskFullError, SimulatedCrashError, StorageError
from logstore.producer_ids import (
    BLOCK_SIZE,
    FIRST_PRODUCER_ID,
    PRODUCER_ID_BLOCK_FILE,
    ProducerIdManager,
)
from logstore.simulated_files import FailingFiles, SimulatedFiles


@pytest.fixture(name="path")
def _path(tmp_path):
    return tmp_path / PRODUCER_ID_BLOCK_FILE


def manager(path, **options):
    return ProducerIdManager(lambda: [path.parent], **options)


def numbers(ids, count=1):
    """The next ids, counted from the first that there ever is."""
    return [ids.generate() - FIRST_PRODUCER_ID for _ in range(count)]


def test_first_block(path):
    """Ids ascend; the block is on the disk in Kafka's words before the first comes."""
    ids = manager(path)
    assert not path.exists()
    assert [0, 1, 2] == numbers(ids, 3)
    ends = {"block_start": "1000000000000000", "block_end": "1000000000000999"}
    assert {"version": 1, "broker": 1, **ends} == json.loads(path.read_text())


def test_next_block(path):
    """The rest of a block is lost with its process; a full one is followed by the next."""
    assert [0] == numbers(manager(path))
    assert list(range(1000, 2001)) == numbers(manager(path), BLOCK_SIZE + 1)
    assert "1000000000002999" == json.loads(path.read_text())["block_end"]


def test_ids_are_not_a_controllers(path):
    """
    Neither without a file nor with one that says less: a controller counts from 0.

    Of an id that both have given out, a broker takes new batches for repetitions, and drops them.
    """
    assert manager(path).generate() > 2**48
    path.write_text('{"version":1,"broker":1,"block_start":"1000","block_end":"1999"}')
    assert manager(path).generate() > 2**48


def test_ids_that_others_have_used(path):
    """Without a file the first block lies above them, and asking happens once."""
    asked = []
    used = FIRST_PRODUCER_ID + 1234
    assert [2000, 2001] == numbers(manager(path, first_free=lambda: asked.append(1) or used), 2)
    assert [3000] == numbers(manager(path, first_free=lambda: used * 2))
    assert [1] == asked


def test_threads(path):
    """No two get the same."""
    ids = manager(path)
    found = []

    def take():
        found.extend(numbers(ids, 600))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(range(2400)) == sorted(found)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version":2,"block_end":"999"}',
        '{"version":1,"block_end":"x"}',
        '{"version":1,"block_end":"-1"}',
        '{"version":1,"block_end":"9223372036854775807"}',
    ],
)
def test_damaged_file(path, text):
    """Nothing is given out: it might be in use."""
    path.write_text(text)
    with pytest.raises(CorruptCheckpointError, match="no block of producer ids"):
        manager(path).generate()


def test_disk_full(path):
    """Nothing is given out; afterwards the same block is."""
    files = FailingFiles()
    files.fail("pwrite", errno.ENOSPC)
    ids = manager(path, files=files)
    with pytest.raises(DiskFullError):
        ids.generate()
    assert [0] == numbers(ids)


def test_power_loss(path, tmp_path):
    """Whenever the power fails, no id comes twice."""
    for crash_at in range(1, 30):
        target = tmp_path / str(crash_at)
        target.mkdir()
        files = SimulatedFiles(crash_at, crash_at)
        seen = []
        try:
            for _ in range(3):
                ids = manager(target / "block", files=files)
                seen.append(ids.generate())
        except SimulatedCrashError:
            pass
        files.crash()
        assert manager(target / "block").generate() not in seen


def test_several_directories(tmp_path):
    """Each has the newest block; one that was away does not bring old numbers back."""
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    here = [first]
    assert [0] == numbers(ProducerIdManager(lambda: here))
    here = [first, second]
    assert [1000] == numbers(ProducerIdManager(lambda: here))
    here = [second]
    assert [2000] == numbers(ProducerIdManager(lambda: here))
    here = [first, second]
    assert [3000] == numbers(ProducerIdManager(lambda: here))
    with pytest.raises(StorageError, match="no directory"):
        ProducerIdManager(list).generate()
