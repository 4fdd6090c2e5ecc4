"""Waiting for records: threads, processes, event loops; ends, errors and interruptions."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import selectors
import signal
import subprocess
import sys
import threading
import time

import pytest
from patience import PATIENCE_SECONDS

import logstore
from logstore.testing import open_log
from logstore.waiting import Signal

SMALL = {
    "segment.bytes": 500,
    "segment.index.bytes": 120,
    "index.interval.bytes": 100,
    "transaction.partition.verification.enable": False,
}


@pytest.fixture(name="path")
def _path(tmp_path):
    return str(tmp_path / "orders-0")


@pytest.fixture(name="log")
def _log(path):
    with logstore.open(path, config=SMALL) as log:
        yield log


@pytest.fixture(name="other")
def _other(log):
    with logstore.open(log.directory, "r") as other:
        yield other


@pytest.fixture(name="either", params=["writer", "reader"])
def _either(request, log, other):
    """The writer's own handle, or one that reads beside it."""
    return log if request.param == "writer" else other


class Thread(threading.Thread):
    """A thread whose error the test sees."""

    def __init__(self, target):
        super().__init__()
        self.work = target
        self.error = None
        self.start()

    def run(self):
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001
            self.error = error

    def finish(self):
        self.join(PATIENCE_SECONDS)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


def append_slowly(log, count, pause=0.001):
    for at in range(count):
        log.append(b"%d" % at)
        time.sleep(pause)


class TestIteration:
    def test_what_is_there_and_what_comes(self, log, either):
        """Each record once, in order, over rolls."""
        log.extend([b"old"] * 20)
        thread = Thread(lambda: append_slowly(log, 100))
        with either.follow("earliest") as records:
            found = []
            for record in records:
                found.append(record)
                if len(found) == 120:
                    break
        thread.finish()
        assert list(range(120)) == [record.offset for record in found]
        assert [b"old"] * 20 + [b"%d" % at for at in range(100)] == [
            record.value for record in found
        ]
        assert len(log.segments) > 3

    def test_latest(self, log, either):
        """From the end on, as it was when follow() was called."""
        log.append(b"before")
        records = either.follow(timeout=PATIENCE_SECONDS)
        assert 1 == records.position
        log.append(b"after")
        assert (b"after", 2) == (next(records).value, records.position)
        records.close()

    def test_timeout(self, log, either):
        """Ends the iteration; it can be gone on with."""
        log.append(b"a")
        with either.follow("earliest", timeout=0.05) as records:
            began = time.monotonic()
            assert [b"a"] == [record.value for record in records]
            assert 0.05 <= time.monotonic() - began < PATIENCE_SECONDS
            log.append(b"b")
            assert [b"b"] == [record.value for record in records]

    def test_isolation(self, log, either):
        """An undecided transaction holds up committed followers alone."""
        from logstore.control_record import ControlRecordType, EndTransactionMarker
        from logstore.records_builder import encode_batch, end_transaction_marker

        committed = either.follow("earliest", timeout=0.05)
        everything = either.follow("earliest", timeout=0.05, isolation="log_end")
        producer = {"producer_id": 7, "producer_epoch": 0}
        batch = encode_batch(
            [(None, 1, None, b"t", ())], base_sequence=0, is_transactional=True, **producer
        )
        log.append_batches(batch, leader_epoch=0)
        log.append(b"plain")
        assert [] == list(committed)
        assert [b"t", b"plain"] == [record.value for record in everything]
        marker = end_transaction_marker(
            EndTransactionMarker(ControlRecordType.ABORT, 0), timestamp=1, **producer
        )
        log.append_batches(marker, leader_epoch=0, origin="coordinator")
        assert [b"plain"] == [record.value for record in committed]
        assert 3 == committed.position
        assert [] == list(everything)
        committed.close()
        everything.close()

    def test_aborts_after_the_first_look(self, log, either):
        """Transactions that are decided while a segment is followed are delivered if committed."""
        from logstore.control_record import ControlRecordType, EndTransactionMarker
        from logstore.records_builder import encode_batch, end_transaction_marker

        producer = {"producer_id": 7, "producer_epoch": 0}
        with either.follow("earliest", timeout=0) as records:
            for sequence in range(20):
                batch = encode_batch(
                    [(None, 1, None, b"%d" % sequence, ())],
                    base_sequence=sequence,
                    is_transactional=True,
                    **producer,
                )
                log.append_batches(batch, leader_epoch=0)
                kind = ControlRecordType.ABORT if sequence % 3 else ControlRecordType.COMMIT
                marker = end_transaction_marker(
                    EndTransactionMarker(kind, 0), timestamp=1, **producer
                )
                log.append_batches(marker, leader_epoch=0, origin="coordinator")
                expected = [] if sequence % 3 else [b"%d" % sequence]
                assert expected == [record.value for record in records]

    def test_position_and_lag(self, log, either):
        """What was taken, and what is left."""
        log.extend([b"x"] * 10)
        with either.follow(3) as records:
            assert (3, 7) == (records.position, records.lag)
            next(records)
            assert (4, 6) == (records.position, records.lag)
            log.append(b"y")
            assert 7 == records.lag

    def test_spin(self, log, either):
        """Looking without sleeping finds the same records."""
        with either.follow(timeout=PATIENCE_SECONDS, spin=0.1) as records:
            thread = Thread(lambda: append_slowly(log, 20))
            assert list(range(20)) == [next(records).offset for _ in range(20)]
            thread.finish()
            assert [] == records.batch(timeout=0.2)

    @pytest.mark.parametrize("options", [{"timeout": -1}, {"spin": -1}, {"isolation": "x"}])
    def test_refused(self, log, options):
        """Values that cannot be meant."""
        with pytest.raises(ValueError, match=next(iter(options))):
            log.follow(**options)

    def test_files_of_another_kind(self, tmp_path):
        """A log without live offsets is followed all the same."""
        with open_log(tmp_path / "m-0", live_offsets=False) as log:
            assert log.live_page is None
            with log.follow(timeout=PATIENCE_SECONDS) as records:
                thread = Thread(lambda: append_slowly(log, 5))
                assert [0, 1, 2, 3, 4] == [next(records).offset for _ in range(5)]
                thread.finish()


class TestBatches:
    def test_sizes(self, log, either):
        """At most so many, waiting for the first only."""
        log.extend([b"x"] * 10)
        with either.follow("earliest") as records:
            assert [0, 1, 2] == [record.offset for record in records.batch(3)]
            assert [] == records.batch(0)
            rest = records.batch(timeout=0)
            while len(rest) < 7:
                rest += records.batch(timeout=0)
            assert list(range(3, 10)) == [record.offset for record in rest]
            began = time.monotonic()
            assert [] == records.batch(timeout=0)
            assert [] == records.batch(5, timeout=0.05)
            assert 0.04 < time.monotonic() - began < PATIENCE_SECONDS
            thread = Thread(lambda: (time.sleep(0.05), log.extend([b"y"] * 3)))
            assert b"y" == records.batch(timeout=PATIENCE_SECONDS)[0].value
            thread.finish()
            with pytest.raises(ValueError, match="negative"):
                records.batch(-1)

    @pytest.mark.parametrize(
        ("wrong", "kind"),
        [("1", TypeError), (True, TypeError), (-1, ValueError), (float("nan"), ValueError)],
    )
    def test_wrong_times(self, log, wrong, kind):
        """A time is a number of seconds; so says the error, at once."""
        with pytest.raises(kind, match=r"timeout .*seconds"):
            log.follow(timeout=wrong)
        with pytest.raises(kind, match=r"spin .*seconds"):
            log.follow(spin=wrong)
        with log.follow() as records:
            with pytest.raises(kind, match=r"timeout .*seconds"):
                records.batch(timeout=wrong)
            with pytest.raises(kind, match=r"timeout .*seconds"):
                asyncio.run(records.batch_later(timeout=wrong))
            with pytest.raises(TypeError, match="max_records"):
                records.batch("1")


class TestEnds:
    def test_close_from_another_thread(self, log, either):
        """Ends a wait at once."""
        records = either.follow()
        closer = Thread(lambda: (time.sleep(0.1), records.close()))
        began = time.monotonic()
        assert [] == list(records)
        assert time.monotonic() - began < PATIENCE_SECONDS
        closer.finish()
        records.close()
        assert [] == list(records)
        assert records.is_closed

    def test_closing_the_log(self, log, other):
        """Ends its followers, wherever they wait."""
        for each in (other, log):
            records = each.follow()
            closer = Thread(lambda each=each: (time.sleep(0.1), each.close()))
            assert [] == list(records)
            closer.finish()
            assert [] == records.batch(timeout=PATIENCE_SECONDS)

    def test_deleted_under_its_position(self, log, either):
        """An error with the valid range, no silent jump."""
        records = either.follow("earliest", timeout=PATIENCE_SECONDS)
        log.extend([b"x"] * 100)
        log.maybe_increment_log_start_offset(60)
        with pytest.raises(logstore.OffsetOutOfRangeError) as caught:
            next(records)
        assert (0, 60, 100) == (
            caught.value.offset,
            caught.value.log_start_offset,
            caught.value.log_end_offset,
        )
        records.close()

    def test_truncated_below_its_position(self, log, either):
        """The same, also if the log has grown beyond it again."""
        for at in range(10):
            log.append(b"%d" % at)
        records = either.follow("latest", timeout=PATIENCE_SECONDS)
        log.truncate_to(5)
        for _ in range(10):
            log.append(b"new")
        with pytest.raises(logstore.OffsetOutOfRangeError, match="truncated") as caught:
            next(records)
        assert 5 == caught.value.log_end_offset
        records.close()

    def test_truncated_above_its_position(self, log, either):
        """It goes on with what is there now."""
        for at in range(10):
            log.append(b"%d" % at)
        records = either.follow(3, timeout=PATIENCE_SECONDS)
        assert b"3" == next(records).value
        records.discard()  # Else what was read is delivered.
        log.truncate_to(5)
        log.append(b"new")
        assert [b"4", b"new"] == [next(records).value for _ in range(2)]
        records.close()

    def test_signals(self, path):
        """Ctrl-C ends a wait at once."""
        code = (
            "import logstore, signal, sys\n"
            # Who started the tests may ignore it, as shells do for what runs beside them.
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "log = logstore.open(sys.argv[1])\n"
            "try:\n"
            "    print('waiting', flush=True)\n"
            "    next(log.follow())\n"
            "except KeyboardInterrupt:\n"
            "    print('interrupted')\n"
            "log.close()\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True
        ) as process:
            assert "waiting\n" == process.stdout.readline()
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            assert "interrupted\n" == process.stdout.readline()
        assert 0 == process.returncode

    def test_dropped(self, log):
        """A follower that nobody closes goes with its last reference."""
        import weakref

        records = log.follow()
        records.fileno()
        reference = weakref.ref(records)
        records.close()
        del records
        gc.collect()
        assert reference() is None


class TestDescriptor:
    def test_selector(self, log, either):
        """Readable when there is something to take, and not before."""
        with either.follow("earliest") as records, selectors.DefaultSelector() as selector:
            selector.register(records, selectors.EVENT_READ)
            assert [] == selector.select(0.05)
            for at in range(3):
                log.append(b"%d" % at)
                assert 1 == len(selector.select(PATIENCE_SECONDS))
                assert [at] == [record.offset for record in records.batch(timeout=0)]
                assert [] == records.batch(timeout=0)
                assert [] == selector.select(0.02)

    def test_closed(self, log):
        """A closed follower has none."""
        records = log.follow()
        fd = records.fileno()
        records.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
        with pytest.raises(logstore.ClosedError):
            records.fileno()

    def test_signal(self):
        """Setting twice is once; clearing what is not set does nothing."""
        event = Signal()
        event.clear()
        event.set()
        event.set()
        event.clear()
        with selectors.DefaultSelector() as selector:
            selector.register(event, selectors.EVENT_READ)
            assert [] == selector.select(0)
        event.close()
        event.close()
        event.set()


class TestAsync:
    def test_iteration(self, log, either):
        """``async for`` over what is there and what comes."""

        async def main():
            log.extend([b"old"] * 5)
            found = []
            thread = None
            async for record in either.follow("earliest", timeout=PATIENCE_SECONDS):
                found.append(record.offset)
                thread = thread or Thread(lambda: append_slowly(log, 30))
                if len(found) == 35:
                    break
            thread.finish()
            return found

        assert list(range(35)) == asyncio.run(main())

    def test_batches(self, log, either):
        """Many at once, and none after a timeout."""

        async def main():
            with either.follow() as records:
                assert [] == await records.batch_later(timeout=0.02)
                log.extend([b"x"] * 3)
                assert 3 == len(await records.batch_later(timeout=PATIENCE_SECONDS))

        asyncio.run(main())

    def test_cancellation(self, log, either):
        """A cancelled wait loses no record."""

        async def main():
            with either.follow() as records:
                for at in range(20):
                    task = asyncio.create_task(anext(records))
                    await asyncio.sleep(0.001)
                    log.append(b"%d" % at)
                    task.cancel()
                    try:
                        found = await task
                    except asyncio.CancelledError:
                        found = await anext(records)
                    assert at == found.offset

        asyncio.run(main())

    def test_closed_while_waiting(self, log, either):
        """Closing the follower, or the log, ends the loop."""

        async def collect(records):
            return [record async for record in records]

        async def main():
            records = either.follow()
            task = asyncio.create_task(collect(records))
            await asyncio.sleep(0.05)
            records.close()
            assert [] == await asyncio.wait_for(task, PATIENCE_SECONDS)
            task = asyncio.create_task(collect(either.follow()))
            await asyncio.sleep(0.05)
            either.close()
            assert [] == await asyncio.wait_for(task, PATIENCE_SECONDS)

        asyncio.run(main())

    def test_a_thousand(self, log, either):
        """One thread for all of them, and no busy loop."""

        async def take(records):
            return (await anext(records)).value

        async def main():
            threads_before = threading.active_count()
            followers = [either.follow() for _ in range(1000)]
            tasks = [asyncio.create_task(take(each)) for each in followers]
            deadline = time.monotonic() + PATIENCE_SECONDS
            used = 1.0
            while used > 0.1 and time.monotonic() < deadline:  # Until all of them sleep.
                before = time.process_time()
                await asyncio.sleep(0.5)
                used = time.process_time() - before
            threads = threading.active_count() - threads_before
            log.append(b"x")
            assert [b"x"] * 1000 == await asyncio.gather(*tasks)
            for each in followers:
                each.close()
            return threads, used

        threads, used = asyncio.run(main())
        assert threads <= 4
        assert used <= 0.1

    def test_many_logs(self, tmp_path):
        """More logs than one sleep of the kernel takes."""

        async def main():
            logs = [logstore.open(tmp_path / f"log-{at}") for at in range(140)]
            before = [thread.name for thread in threading.enumerate()].count("logstore-watcher")
            tasks = [asyncio.create_task(anext(log.follow())) for log in logs]
            await asyncio.sleep(0.05)
            after = [thread.name for thread in threading.enumerate()].count("logstore-watcher")
            assert 1 <= after - before + 1 <= 3
            for log in logs:
                log.append(log.name.encode())
            found = await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_SECONDS)
            assert [log.name.encode() for log in logs] == [record.value for record in found]
            for log in logs:
                log.close()

        asyncio.run(main())


def follow_in_child(log, count, results):
    with log.follow("earliest", timeout=PATIENCE_SECONDS) as records:
        results.put([next(records).value for _ in range(count)])


class TestProcesses:
    def test_forked_child_follows_its_parent(self, log):
        """An inherited handle sees what the parent appends after the fork."""
        log.append(b"before")
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                with log.follow("earliest", timeout=PATIENCE_SECONDS) as records:
                    os.write(write_end, b"x")
                    values = [next(records).value for _ in range(3)]
                status = 0 if values == [b"before", b"after", b"again"] else 2
                try:
                    log.append(b"y")
                    status = 3
                except logstore.ForkedError:
                    pass
            finally:
                os._exit(status)
        os.read(read_end, 1)
        log.append(b"after")
        time.sleep(0.02)
        log.append(b"again")
        _, status = os.waitpid(pid, 0)
        assert 0 == os.waitstatus_to_exitcode(status)
        assert 3 == log.log_end_offset
        os.close(read_end)
        os.close(write_end)

    @pytest.mark.parametrize("method", ["spawn", "forkserver"])
    def test_pickled_handles(self, log, other, method):
        """A reader goes to another process as its path."""
        context = multiprocessing.get_context(method)
        results = context.Queue()
        log.append(b"a")
        process = context.Process(target=follow_in_child, args=(other, 2, results))
        process.start()
        log.append(b"b")
        assert [b"a", b"b"] == results.get(timeout=PATIENCE_SECONDS)
        process.join()

    def test_writers_come_and_go(self, path):
        """A follower goes on over restarts and kills of the writer."""
        code = (
            "import logstore, os, signal, sys\n"
            "log = logstore.open(sys.argv[1])\n"
            "for at in range(10):\n"
            "    log.append(b'%d' % log.log_end_offset)\n"
            "if sys.argv[2] == 'kill': os.kill(os.getpid(), signal.SIGKILL)\n"
            "log.close()\n"
        )
        with logstore.open(path) as log:
            log.append(b"0")
        with logstore.open(path, "r") as reader, reader.follow("earliest") as records:
            assert b"0" == next(records).value
            for how in ("close", "kill", "kill", "close"):
                process = subprocess.Popen([sys.executable, "-c", code, path, how])
                for _ in range(10):
                    record = next(records)
                    assert b"%d" % record.offset == record.value
                process.wait()
            assert 41 == records.position
