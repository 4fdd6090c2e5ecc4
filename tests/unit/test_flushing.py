"""Group commit: who waits for the device shares one flush with the others."""

from __future__ import annotations

import contextlib
import errno
import gc
import threading
import weakref

import pytest
from patience import PATIENCE_SECONDS, until

from logstore._native import Flusher, Writer
from logstore.clock import ManualClock
from logstore.errors import PoisonedError, StorageError
from logstore.files import REAL_FILES
from logstore.flushing import GroupCommit, Poison
from logstore.scheduler import ManualScheduler
from logstore.simulated_files import FailingFiles
from logstore.testing import open_log


class SlowDevice:
    """A flush that takes until somebody says so."""

    def __init__(self):
        self.flushed = []  # Up to which offset, call for call.
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.error = None
        self.flusher = Flusher(Writer(REAL_FILES.io))
        self.group = GroupCommit(self.flush, self.flusher, Poison("log-0"))

    def flush(self, offset):
        self.flushed.append(offset)
        self.begun.release()
        assert self.may_end.acquire(timeout=PATIENCE_SECONDS)
        if self.error is not None:
            raise self.error
        self.flusher.raise_recovery_point(offset)


def waiting(device, offsets):
    """Threads that wait for these offsets, when all of them do."""
    errors = []

    def wait_for(offset):
        try:
            device.group.wait_for(offset)
            assert device.flusher.recovery_point >= offset
        except StorageError as error:
            errors.append(type(error))

    threads = [threading.Thread(target=wait_for, args=(offset,)) for offset in offsets]
    before = device.group.waiting_count
    for thread in threads:
        thread.start()
    until(lambda: device.group.waiting_count >= before + len(offsets))
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
        device.flusher.raise_recovery_point(5)
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

    def test_what_takes_only_the_log_file_is_flushed_alone(self, tmp_path):
        """One fdatasync for each, but for the first, and the first after a roll or a truncation."""
        files, clock = FailingFiles(), ManualClock()
        scheduler = ManualScheduler(clock)
        with open_log(
            tmp_path / "log-0", "x", files=files, clock=clock, scheduler=scheduler
        ) as log:

            def calls():
                names = ("fdatasync", "fsync_dir")
                before = [files.calls(name) for name in names]
                log.extend([b"v"] * 3, sync=True)
                assert log.recovery_point == log.log_end_offset
                return [files.calls(name) - old for name, old in zip(names, before, strict=True)]

            assert 1 <= calls()[1]
            assert [1, 0] == calls() == calls()
            log.roll()
            assert 1 <= calls()[1]
            assert [1, 0] == calls()
            log.truncate_to(log.log_end_offset - 2)
            assert log.recovery_point == log.log_end_offset
            calls()
            assert [1, 0] == calls()
            clock.advance(6000)  # The checkpoint of the recovery point is due.
            assert 1 <= calls()[1]
            assert [1, 0] == calls()

    def test_a_flush_after_a_truncation_forgets_who_wanted_more(self, tmp_path):
        """Who waited for an offset that is gone must not raise the recovery point to it."""
        with open_log(tmp_path / "log-0", "x") as log:
            log.extend([b"v"] * 10)
            flusher = log._flusher
            assert 10 == flusher.begin(10)
            waits = threading.Thread(target=log.flush)
            waits.start()
            until(lambda: flusher.waiting_count > 0)
            log._flush_below(10)
            flusher.end(failed=False)
            waits.join()
            log.truncate_to(5)
            assert 5 == log.recovery_point
            log.append(b"v")
            log.flush(6)
            assert 6 == log.recovery_point == log.log_end_offset

    def test_a_flush_of_less_than_there_is_counts_for_that(self, tmp_path):
        """The recovery point is what was asked for, as Kafka's."""
        with open_log(tmp_path / "log-0", "x") as log:
            log.extend([b"v"] * 10)
            for offset in (3, 7):
                log.flush(offset)
                assert offset == log.recovery_point

    def test_segments_that_leave_while_they_are_flushed(self, tmp_path):
        """Rolls and truncations wait for the flush whose file they close; nothing is lost."""
        with open_log(tmp_path / "log-0", "x") as log:
            ends, finished = threading.Event(), []

            def work():
                while not ends.is_set():
                    log.extend([b"value"] * 5, sync=True)
                    log.append(b"value", sync=True)
                finished.append(True)

            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            for number in range(12):
                end = log.log_end_offset
                log.roll()
                if number % 3 == 2:
                    log.truncate_to(max(0, end - 7))
                offsets = log.offsets
                assert offsets.recovery_point <= offsets.log_end_offset
            ends.set()
            for thread in threads:
                thread.join()
            assert [True] * 3 == finished
            log.flush()
            assert log.recovery_point == log.log_end_offset

    def test_a_directory_that_is_renamed_meanwhile(self, tmp_path, monkeypatch):
        """The names in it get durable under its new name; the log is not poisoned."""
        scheduler = ManualScheduler(ManualClock())
        with open_log(tmp_path / "a-0", scheduler=scheduler) as log:
            log.extend([b"a", b"b"])
            fsync_directory, synced = type(REAL_FILES).fsync_directory, []

            def fsync(files, path):
                if not synced:
                    synced.append("renamed")
                    log.rename("b-0")
                fsync_directory(files, path)
                synced.append(path)

            monkeypatch.setattr(type(REAL_FILES), "fsync_directory", fsync)
            log.flush(1)
            assert str(tmp_path / "b-0") == synced[-1]
            assert 1 == log.recovery_point
            assert 2 == log.append(b"c")
            log.roll()
            log.flush()
            assert [] == list(log.check())


class Held:
    """What an operation has in its hands when it fails."""


def test_what_poisons_keeps_no_frames():
    """What a failed operation held is let go of, though the log remembers why it failed."""
    poison = Poison("log-0")
    references = []

    def fail():
        held = Held()
        references.append(weakref.ref(held))
        raise StorageError("the device is gone", errno.EIO)

    with contextlib.suppress(StorageError), poison.if_it_fails():
        fail()
    gc.collect()
    assert references[0]() is None
    with pytest.raises(PoisonedError, match="the device is gone"):
        poison.check()
