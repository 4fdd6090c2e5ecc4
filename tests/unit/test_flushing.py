"""Group commit: who waits for the device shares one flush with the others."""

from __future__ import annotations

import errno
import threading
import time

import pytest

from logstore.errors import PoisonedError, StorageError
from logstore.flushing import GroupCommit, Poison
from logstore.simulated_files import FailingFiles
from logstore.testing import open_log

PATIENCE_SECONDS = 60.0  # Then it is not slow, but wrong.


class SlowDevice:
    """A flush that takes until somebody says so."""

    def __init__(self):
        self.durable_offset = 0
        self.flushed = []  # Up to which offset, call for call.
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.error = None
        self.group = GroupCommit(self.flush, lambda: self.durable_offset, Poison("log-0"))

    def flush(self, offset):
        self.flushed.append(offset)
        self.begun.release()
        assert self.may_end.acquire(timeout=PATIENCE_SECONDS)
        if self.error is not None:
            raise self.error
        self.durable_offset = offset


def waiting(device, offsets):
    """Threads that wait for these offsets, when all of them do."""
    errors = []

    def wait_for(offset):
        try:
            device.group.wait_for(offset)
            assert device.durable_offset >= offset
        except StorageError as error:
            errors.append(type(error))

    threads = [threading.Thread(target=wait_for, args=(offset,)) for offset in offsets]
    before = device.group.waiting_count
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while device.group.waiting_count < before + len(offsets):
        assert time.monotonic() < deadline
    return threads, errors


class TestGroupCommit:
    def test_all_who_wait_share_the_next_flush(self):
        """Five come while one flushes: there is one flush more, up to the highest of them."""
        device = SlowDevice()
        first = threading.Thread(target=device.group.wait_for, args=(1,))
        first.start()
        assert device.begun.acquire(timeout=PATIENCE_SECONDS)
        threads, errors = waiting(device, [2, 6, 3, 5, 4])
        for _ in range(2):
            device.may_end.release()
        for thread in (first, *threads):
            thread.join()
        assert [1, 6] == device.flushed
        assert [] == errors

    def test_what_is_durable_is_not_flushed(self):
        """Who comes late finds the work done."""
        device = SlowDevice()
        device.durable_offset = 5
        device.group.wait_for(5)
        assert [] == device.flushed

    def test_failure_reaches_all(self):
        """After a failed flush nobody who waited is told that all is well."""
        device = SlowDevice()
        device.error = StorageError("no", errno.EIO)
        outcome = []

        def first():
            with pytest.raises(StorageError):
                device.group.wait_for(1)
            outcome.append("raised")

        thread = threading.Thread(target=first)
        thread.start()
        assert device.begun.acquire(timeout=PATIENCE_SECONDS)
        threads, errors = waiting(device, [2, 3])
        device.may_end.release()
        for each in (thread, *threads):
            each.join()
        assert ["raised"] == outcome
        assert [PoisonedError] * 2 == errors
        assert [1] == device.flushed


class TestLog:
    @pytest.mark.parametrize("use", ["append", "extend"])
    def test_threads_that_sync(self, tmp_path, use):
        """Each record is durable when its call returns, with fewer flushes than records."""
        thread_count, count = 8, 15
        files = FailingFiles()
        with open_log(tmp_path / "log-0", "x", files=files) as log:
            log.append(b"the first one makes the files", sync=True)
            before = files.calls("fdatasync")

            def work():
                for _ in range(count):
                    if use == "append":
                        offset = log.append(b"v", sync=True)
                    else:
                        offset = log.extend([b"v"], sync=True).start
                    assert log.recovery_point > offset

            threads = [threading.Thread(target=work) for _ in range(thread_count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert 1 + thread_count * count == log.log_end_offset == log.recovery_point
            assert files.calls("fdatasync") - before <= thread_count * count
