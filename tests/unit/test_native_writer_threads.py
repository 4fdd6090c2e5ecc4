from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from patience import PATIENCE_SECONDS

from logstore._native import (
    Columns,
    LivePage,
    NativeLog,
    Writer,
    encode_batch,
    read_block,
    scan_batches,
)
from logstore.errors import ClosedError, StorageError
from logstore.files import REAL_FILES


class Log(NativeLog):
    """What Log makes of NativeLog: the general path takes its lock."""

    def __init__(self, writer):
        self.lock = threading.Lock()
        self._writer = writer
        self._bind_writer(writer)

    def _append_general(self, value):
        with self.lock:
            return self._writer.append_list([value]).first_offset


@pytest.fixture
def fds(tmp_path):
    paths = [tmp_path / name for name in ("log", "index", "timeindex")]
    fds = [os.open(path, os.O_RDWR | os.O_CREAT) for path in paths]
    yield fds
    for fd in fds:
        os.close(fd)


@pytest.fixture
def writer(fds):
    writer = Writer(REAL_FILES.io)
    writer.configure(index_interval_bytes=4096)
    attach(writer, fds)
    return writer


def attach(writer, fds):
    writer.attach(
        log_fd=fds[0],
        index_fd=fds[1],
        timeindex_fd=fds[2],
        base_offset=0,
        next_offset=0,
        offset_entries_max=1 << 20,
        time_entries_max=1 << 20,
    )


@pytest.fixture
def tiny_switch_interval():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def columns_of(values):
    offsets = np.cumsum([0, *(len(value) for value in values)]).astype(np.int64)
    return Columns(b"".join(values), offsets, timestamp=1_700_000_000_000)


def values_of(fd, size):
    data = os.pread(fd, size, 0)
    assert size == scan_batches(data, records=True, order=True).valid_bytes
    return read_block(data, 0, size, max_records=1 << 20, values_only=True).items


class Crowd:
    """Threads that append in every way, and some that look on, until the segment is detached."""

    def __init__(self, writer, fds):
        self.writer, self.fds = writer, fds
        self.log = Log(writer)
        self.appended = []  # (first offset, values): list.append is atomic
        self.failures = []
        self.is_closing = False

    def run(self, seconds):
        kinds = [
            self.append_singles,
            self.append_lists,
            self.append_columns,
            self.append_large_lists,
            self.append_encoded_exclusively,
            self.flush,
            self.read,
            self.look,
        ]
        threads = [threading.Thread(target=self.guarded, args=(kind,)) for kind in kinds]
        for thread in threads:
            thread.start()
        threading.Event().wait(seconds)
        state = self.writer.detach()
        self.is_closing = True
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert not any(thread.is_alive() for thread in threads)
        return state

    def guarded(self, kind):
        step = 0
        try:
            while not self.is_closing:
                kind(step)
                step += 1
        except ClosedError:
            pass
        except BaseException as error:
            self.failures.append((kind.__name__, repr(error)))
            raise

    def append_singles(self, step):
        for i in range(50):
            value = b"single %d %d" % (step, i)
            self.appended.append((self.log.append(value), [value]))

    def append_lists(self, step):
        values = [b"list %d %d" % (step, i) for i in range(step % 40)]
        with self.log.lock:
            appended = self.writer.append_list(values)
        assert len(values) == appended.record_count
        self.appended.append((appended.first_offset, values))

    def append_large_lists(self, step):
        values = [b"%d" % step * 2000] * 300
        with self.log.lock:
            self.appended.append((self.writer.append_list(values).first_offset, values))

    def append_columns(self, step):
        values = [b"columns %d" % step] * (1 + step % 500)
        columns = columns_of(values)
        with self.log.lock:
            self.appended.append((self.writer.append_columns(columns).first_offset, values))

    def append_encoded_exclusively(self, step):
        """Offsets are assigned here, so nothing else may be appended in between."""
        with self.log.lock, self.writer.exclusive():
            for _ in range(3):
                first = self.writer.state().log_end_offset
                values = [b"encoded %d" % step] * 3
                data = encode_batch(columns_of(values), 0, base_offset=first).data
                self.writer.append_encoded(data, scan_batches(data).batches)
                self.appended.append((first, values))

    def flush(self, step):
        os.fdatasync(self.fds[0])
        threading.Event().wait(0.002)

    def read(self, step):
        """Everything below the published end is there and whole."""
        end = self.writer.log_end_offset
        size = self.writer.size_bytes
        data = os.pread(self.fds[0], size, 0)
        scan = scan_batches(data, order=True)
        assert scan.valid_bytes == size or self.is_closing
        assert scan.next_offset >= end or self.is_closing

    def look(self, step):
        state = self.writer.state()
        assert state.log_end_offset <= self.writer.log_end_offset
        assert self.writer.offset_entry_count >= state.offset_entry_count


class TestThreads:
    def test_eight_kinds_at_once(self, writer, fds, tiny_switch_interval):
        """Appends of all kinds, flushes, reads, the end: each offset has the value it was given."""
        crowd = Crowd(writer, fds)
        state = crowd.run(1.5)
        assert [] == crowd.failures
        values = values_of(fds[0], state.size_bytes)
        assert len(values) == state.log_end_offset
        claimed = [None] * len(values)
        for first, given in crowd.appended:
            assert [None] * len(given) == claimed[first : first + len(given)]
            claimed[first : first + len(given)] = given
        assert claimed == values

    def test_bulk_appends_exclude_each_other(self, writer, fds, tiny_switch_interval):
        """Without any lock of the caller's, no record of another call falls inside a range."""
        log, appended = Log(writer), []

        def append(name, count, repeat):
            for i in range(repeat):
                values = [b"%s %d" % (name, i)] * count
                first = writer.append_list(values).first_offset
                appended.append((first, values))
                single = b"%s single %d" % (name, i)
                appended.append((log.append(single), [single]))

        threads = [
            threading.Thread(target=append, args=arguments)
            for arguments in ((b"a", 1, 300), (b"b", 7, 200), (b"c", 20_000, 10), (b"d", 99_999, 3))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        state = writer.state()
        values = values_of(fds[0], state.size_bytes)
        for first, given in appended:
            assert given == values[first : first + len(given)]
        assert len(values) == sum(len(given) for _, given in appended)

    def test_a_list_that_changes_meanwhile(self, writer, fds, tiny_switch_interval):
        """Items that other threads take away or replace are no danger."""
        shared = [b"x" * 200] * 30_000
        stop = threading.Event()

        def change():
            while not stop.is_set():
                if len(shared) > 20_000:
                    del shared[-1000:]
                else:
                    shared.extend([b"y" * 200 for _ in range(1000)])
                shared[::7] = [b"z" * 100 for _ in range(0, len(shared), 7)]

        thread = threading.Thread(target=change)
        thread.start()
        expected = 0
        for _ in range(30):
            try:
                expected += writer.append_list(shared).record_count
            except IndexError:  # It became shorter.
                continue
        stop.set()
        thread.join()
        assert expected == writer.log_end_offset
        assert expected == len(values_of(fds[0], writer.state().size_bytes))

    def test_an_item_that_appends_itself(self, writer, fds):
        """Code that runs inside an append cannot append to the same log: no standstill."""

        class Recursive:
            def __iter__(self):
                writer.append_list([b"inner"])
                return iter(())

        log = Log(writer)
        writer.append_list([b"before"])
        with pytest.raises(StorageError) as info:
            writer.append_list([b"outer"], None, None, [Recursive()])
        assert errno.EDEADLK == info.value.errno
        assert 1 == log.append(b"after")
        assert [b"before", b"after"] == values_of(fds[0], writer.state().size_bytes)

    def test_an_item_that_takes_the_live_offsets_away(self, writer):
        """As by closing the log: the page may be unmapped, and is not touched any more."""
        page = LivePage.private()

        class Closing:
            def __iter__(self):
                page.unbind(writer)
                return iter(())

        page.bind(writer)
        writer.append_list([b"shown"])
        writer.append_list([b"not shown"], None, None, [Closing()])
        assert 2 == writer.log_end_offset
        assert 1 == page.log_end_offset


class TestFork:
    def run(self, code):
        prelude = """
            import os, sys, threading
            from logstore._native import NativeLog, Writer
            from logstore.errors import ForkedError
            from logstore.files import REAL_FILES

            fds = [os.open(name, os.O_RDWR | os.O_CREAT) for name in ("log", "index", "timeindex")]
            writer = Writer(REAL_FILES.io)
            writer.configure()
            writer.attach(
                log_fd=fds[0], index_fd=fds[1], timeindex_fd=fds[2], base_offset=0, next_offset=0,
                offset_entries_max=1 << 20, time_entries_max=1 << 20,
            )

            class Log(NativeLog):
                def _append_general(self, value):
                    return "general"

            log = Log()
            log._bind_writer(writer)

            def is_forked(action):
                try:
                    action()
                except ForkedError:
                    return True
                return False
        """
        command = [sys.executable, "-W", "ignore", "-c"]
        script = textwrap.dedent(prelude) + textwrap.dedent(code)
        return subprocess.run(
            [*command, script], check=False, capture_output=True, timeout=PATIENCE_SECONDS
        )

    def test_a_child_does_not_write(self, tmp_path, monkeypatch):
        """Everything that writes says that the handle is the parent's; the parent goes on."""
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        monkeypatch.chdir(tmp_path)
        result = self.run("""
            log.append(b"parent")
            child = os.fork()
            if child == 0:
                answers = [
                    log.append(b"child") == "general",
                    is_forked(lambda: writer.append_list([b"child"])),
                    is_forked(writer.state),
                    is_forked(writer.detach),
                    is_forked(writer.trim),
                    is_forked(writer.enter_exclusive),
                    is_forked(lambda: writer.publish(5)),
                    is_forked(lambda: writer.configure()),
                    writer.log_end_offset == 1,
                ]
                del log, writer
                os._exit(0 if all(answers) else 1)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            sys.exit(status if log.append(b"parent") == 1 else 2)
        """)
        assert (b"", 0) == (result.stderr, result.returncode)

    def test_a_lock_held_while_forking(self, tmp_path, monkeypatch):
        """A child forked in the middle of another thread's append neither hangs nor writes."""
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        monkeypatch.chdir(tmp_path)
        result = self.run("""
            stop = []
            values = [bytes(1000)] * 3000

            def append():
                while not stop:
                    writer.append_list(values)

            thread = threading.Thread(target=append)
            thread.start()
            failed = 0
            for _ in range(20):
                child = os.fork()
                if child == 0:
                    append = lambda: writer.append_list([b"child"])
                    answers = [is_forked(writer.state), is_forked(append)]
                    del writer, log
                    os._exit(0 if all(answers) else 1)
                failed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            stop.append(1)
            thread.join()
            assert writer.log_end_offset % 3000 == 0
            sys.exit(failed)
        """)
        assert (b"", 0) == (result.stderr, result.returncode)


class TestLeaks:
    def test_references_are_stable(self, writer, fds):
        """A hundred thousand appends and as many reads leave no object behind."""
        log = Log(writer)
        value, key = b"value" * 10, b"key"
        mutable = bytearray(b"mutable")

        class Refusing(NativeLog):
            def _append_general(self, *args, **kwargs):
                return -1

        refusing = Refusing()

        def work():
            for _ in range(10_000):
                log.append(value)
                log.append(value, key=key, timestamp=1_700_000_000_000, headers=(), sync=False)
                refusing.append(value, key=key, headers=[], other=value)
            for _ in range(20):
                writer.append_list([value] * 500, [key] * 500, [1_700_000_000_000] * 500)
                headers = [[("h", value)], {"h": None}, None]
                writer.append_list((mutable, memoryview(value), None), None, None, headers)
                writer.append_columns(columns_of([value] * 100))
                for wrong in ([value, "text"], [value] * 3 + [5]):
                    with pytest.raises(TypeError):
                        writer.append_list(wrong, wrong)
            data = os.pread(fds[0], 4 << 20, 0)
            assert 10_000 < len(read_block(data, 0, len(data), max_records=1 << 20).items)

        def counts():
            gc.collect()
            objects = (value, key, mutable, log, writer)
            return [sys.getrefcount(item) for item in objects]

        work()
        before, blocks = counts(), sys.getallocatedblocks()
        for _ in range(5):
            work()
        assert before == counts()
        # One block in fifty appends would show; other tests' leftovers may come and go.
        assert abs(sys.getallocatedblocks() - blocks) < 2000

    def test_handles_are_freed(self, fds):
        """Writers and logs that are dropped, bound to each other or in a cycle, go away."""

        class Holder(NativeLog):
            alive = 0

            def __init__(self, writer):
                Holder.alive += 1
                self.itself = self
                self.writer = writer
                self._bind_writer(writer)

            def __del__(self):
                Holder.alive -= 1

        for _ in range(20):
            writer = Writer(REAL_FILES.io)
            writer.configure()
            attach(writer, fds)
            Holder(writer).append(b"x")
        del writer
        gc.collect()
        assert 0 == Holder.alive
