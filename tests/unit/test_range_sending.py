"""Ranges that leave without a copy: to sockets, as views, into files; and how long they last."""

from __future__ import annotations

import gc
import itertools
import os
import resource
import select
import signal
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
from patience import PATIENCE_SECONDS

import logstore
import logstore.record
from logstore.errors import ClosedError, CorruptRecordError
from logstore.file_records import NO_RECORDS, FileRecords
from logstore.files import REAL_FILES, FileHandle

SMALL = {"segment.bytes": 3000, "batch.bytes": 300}
BYTES = bytes(range(251)) * 14_000  # 3.5 MB, no power of two: what is out of place shows.


@pytest.fixture(name="records")
def _records(tmp_path):
    path = tmp_path / "0.log"
    path.write_bytes(b"??" + BYTES + b"??")
    handle = FileHandle(REAL_FILES, path)
    yield FileRecords(handle, 2, len(BYTES))
    handle.close()


@pytest.fixture(name="pair")
def _pair():
    left, right = socket.socketpair()
    with left, right:
        yield left, right


@pytest.fixture(name="log")
def _log(tmp_path):
    with logstore.open(tmp_path / "log-0", config=SMALL) as log:
        yield log
        if not log.is_closed:
            assert [] == list(log.check())


def fill(log, count=200):
    for first in range(0, count, 5):
        log.extend([b"value %d" % at for at in range(first, first + 5)])


class Receiver(threading.Thread):
    """Takes everything until the other end closes."""

    def __init__(self, source):
        super().__init__()
        self.source = source
        self.data = bytearray()
        self.start()

    def run(self):
        while piece := self.source.recv(1 << 16):
            self.data += piece


class TestSockets:
    def test_blocking(self, records, pair):
        """One call sends all there is from an offset on."""
        sender, receiver = pair
        thread = Receiver(receiver)
        assert len(BYTES) == records.send_to(sender)
        assert 1000 == records.send_to(sender, len(BYTES) - 1000)
        assert 0 == records.send_to(sender, len(BYTES))
        sender.close()
        thread.join()
        assert BYTES + BYTES[-1000:] == bytes(thread.data)

    def test_over_tcp(self, records):
        """Sockets of the internet family are served in the same way."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            sender = socket.create_connection(server.getsockname())
            thread = Receiver(server.accept()[0])
            with sender:
                assert len(BYTES) == records.send_to(sender)
            thread.join()
            thread.source.close()
        assert BYTES == bytes(thread.data)

    def test_non_blocking(self, records, pair):
        """What the socket takes is counted; the rest goes with the next call."""
        sender, receiver = pair
        sender.setblocking(False)
        sent, calls, data = 0, 0, bytearray()
        while sent < len(BYTES):
            sent += records.send_to(sender, sent)
            calls += 1
            if calls == 1:
                assert 0 < sent < len(BYTES)
                assert 0 == records.send_to(sender, sent)
            while select.select([receiver], [], [], 0)[0]:
                data += receiver.recv(1 << 20)
        assert calls > 1
        assert BYTES == bytes(data)

    def test_timeout(self, records, pair):
        """The time counts without progress: then what was sent, or TimeoutError for nothing."""
        sender, receiver = pair
        sender.settimeout(0.05)
        sent = records.send_to(sender)
        assert 0 < sent < len(BYTES)
        with pytest.raises(TimeoutError):
            records.send_to(sender, sent)
        thread = Receiver(receiver)
        sender.settimeout(PATIENCE_SECONDS)
        sent += records.send_to(sender, sent)
        assert len(BYTES) == sent
        sender.close()
        thread.join()
        assert BYTES == bytes(thread.data)

    def test_interrupted(self, records, pair):
        """Signals in between change nothing."""
        sender, receiver = pair
        seen, data = [], bytearray()

        def receive():
            while piece := receiver.recv(1 << 16):
                time.sleep(0.001)
                data.extend(piece)

        thread = threading.Thread(target=receive)
        thread.start()
        before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        try:
            assert len(BYTES) == records.send_to(sender)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            sender.close()
            thread.join()
        assert seen
        assert BYTES == bytes(data)

    @pytest.mark.parametrize("timeout", [None, PATIENCE_SECONDS, 0])
    def test_tls(self, records, pair, timeout):
        """TLS sockets get the bytes through memory; they arrive whole, whatever the timeout."""
        sides = []
        for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
            context = ssl.SSLContext(side)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            context.set_ciphers("AECDH:@SECLEVEL=0")  # No certificate is needed.
            sides.append(context)
        data = bytearray()

        def receive():
            with sides[1].wrap_socket(pair[1]) as receiver:
                while piece := receiver.recv(1 << 16):
                    data.extend(piece)

        thread = threading.Thread(target=receive)
        thread.start()
        with sides[0].wrap_socket(pair[0], server_side=True) as sender:
            sender.settimeout(timeout)
            sent = 0
            while sent < len(BYTES):
                sent += records.send_to(sender, sent)
                select.select([], [sender], [])
        thread.join()
        assert BYTES == bytes(data)

    def test_without_sendfile(self, records, tmp_path):
        """What the system cannot send to directly gets the bytes by its own send."""
        taken = bytearray()
        with (tmp_path / "target").open("ab") as target:  # O_APPEND: sendfile refuses it.

            class Sink:
                def fileno(self):
                    return target.fileno()

                def send(self, data):
                    taken.extend(data[:100_000])
                    return min(len(data), 100_000)

            assert len(BYTES) == records.send_to(Sink())
        assert BYTES == bytes(taken)

    def test_peer_is_gone(self, records, pair):
        """The socket's error is the caller's."""
        sender, receiver = pair
        receiver.close()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            records.send_to(sender)

    def test_no_socket(self, records):
        """What has no descriptor is refused as such."""
        with pytest.raises(TypeError, match="socket"):
            records.send_to(None)

    def test_wrong_offset(self, records, pair):
        """An offset is a number of bytes of the range."""
        for offset in (-1, len(BYTES) + 1):
            with pytest.raises(ValueError, match="is not in the range"):
                records.send_to(pair[0], offset)

    def test_file_that_is_too_short(self, tmp_path, pair):
        """Bytes that are gone are damage, after what is there was sent."""
        path = tmp_path / "0.log"
        path.write_bytes(b"0123456789")
        handle = FileHandle(REAL_FILES, path)
        records = FileRecords(handle, 4, 20)
        with pytest.raises(CorruptRecordError) as caught:
            records.send_to(pair[0])
        assert 10 == caught.value.position
        assert b"456789" == pair[1].recv(100)
        with pytest.raises(CorruptRecordError):
            records.memoryview()
        with (tmp_path / "to").open("wb") as target, pytest.raises(CorruptRecordError):
            records.copy_to(target)
        handle.close()


class TestViews:
    def test_equal_to_the_bytes(self, log):
        """Mapped or read, the view is read-only and has the range's bytes."""
        fill(log)
        views = []
        for start in (0, 77, 195):
            part = log.fetch(start, max_bytes=1000)
            view = part.memoryview()
            assert part.records.to_bytes() == view
            assert view.readonly
            views.append(view)
            assert (part.size, part.file_position) == (len(view), part.records.file_position)
            assert part.size == part.records.size == len(part.records)
        assert log.segments[0].views.is_viewed
        assert not log.active_segment.views.is_viewed
        assert b"" == NO_RECORDS.memoryview()

    def test_views_outlive_everything(self, log):
        """Truncation, deletion and close leave a view as it was."""
        fill(log)
        views = [log.fetch(start, max_bytes=900).memoryview() for start in (0, 60, 199)]
        before = [bytes(view) for view in views]
        log.truncate_to(150)
        log.extend([b"other"] * 100)
        log.update_config({"retention.bytes": 10, "file.delete.delay.ms": 0})
        log.delete_old_segments()
        assert before == [bytes(view) for view in views]
        directory = log.directory
        log.close()
        for path in Path(directory).glob("*"):
            path.unlink()
        assert before == [bytes(view) for view in views]

    def test_no_mapping_if_told_so(self, tmp_path):
        """With mapped.segments.max=0 everything is read: no media error can kill the process."""
        config = {**SMALL, "mapped.segments.max": 0}
        with logstore.open(tmp_path / "log-0", config=config) as log:
            fill(log)
            view = log.fetch(0, max_bytes=900).memoryview()
            assert not log.segments[0].views.is_viewed
            assert log.fetch(0, max_bytes=900).records.to_bytes() == view

    def test_no_mapping_of_what_others_may_cut(self, log):
        """A log that is only read reads its ranges."""
        fill(log)
        log.close()
        with logstore.open(log.directory, "r") as view:
            part = view.fetch(0, max_bytes=900)
            assert part.records.to_bytes() == part.memoryview()
            assert not view.segments[0].views.is_viewed


class TestLifetime:
    def test_range_of_a_deleted_segment(self, log, pair):
        """A range holds its file: it is served to its end, and the descriptor goes with it."""
        fill(log)
        part = log.fetch(0, max_bytes=900)
        before = part.records.to_bytes()
        segment = log.segments[0]
        log.update_config({"retention.bytes": 10})
        assert log.delete_old_segments() > 0
        segment.delete_if_exists()
        assert len(before) == part.send_to(pair[0])
        assert before == pair[1].recv(len(before), socket.MSG_WAITALL)
        assert before == part.records.to_bytes() == part.memoryview()
        assert [0, 5] == [batch.base_offset for batch in part.batches()][:2]
        assert 1 == _open_count(segment.log_path)
        part.records.close()
        assert 0 == _open_count(segment.log_path)

    def test_range_of_a_truncated_segment(self, log):
        """A truncation that cuts the range's bytes leaves them to the range."""
        fill(log, 10)
        part = log.fetch(0, max_bytes=900)
        before = part.records.to_bytes()
        log.truncate_to(3)
        log.extend([b"x" * 50] * 5)
        assert before == part.records.to_bytes()

    def test_closed_after_its_segment_let_go_of_the_file(self, log):
        """A range is closed with its log, also if the segment has opened its file anew since."""
        fill(log)
        part = log.fetch(0, max_bytes=500)
        log.flush()
        log.segments[0].release()
        assert log.segments[0].read_at(0, 10)
        assert part.records.to_bytes()
        log.close()
        with pytest.raises(ClosedError):
            part.records.to_bytes()

    def test_closed(self, log, pair):
        """After the log's close, or its own, a range says so; NO_RECORDS needs no file."""
        fill(log)
        mine, logs = log.fetch(0, max_bytes=500), log.fetch(0, max_bytes=500)
        with mine.records as records:
            assert records.to_bytes()
        log.close()
        for part in (mine, logs):
            for use in (
                part.memoryview,
                part.records.to_bytes,
                lambda part=part: part.send_to(pair[0]),
                lambda part=part: part.read_into(bytearray(5)),
                lambda part=part: part.copy_to(1),
                lambda part=part: list(part.batches()),
            ):
                with pytest.raises(ClosedError):
                    use()
        del mine, logs, part, use, records
        gc.collect()
        assert 0 == _open_count(log.segments[0].log_path)
        assert 0 == NO_RECORDS.send_to(pair[0]) == NO_RECORDS.copy_to(1)


def _open_count(path):
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith(path)
        except OSError:
            continue
    return count


class TestCopies:
    def test_into_files(self, records, tmp_path):
        """At a position, or where the file stands, which then moves on."""
        with (tmp_path / "target").open("w+b") as target:
            target.write(b"head")
            assert len(BYTES) == records.copy_to(target)
            target.write(b"tail")
            assert len(BYTES) == records.copy_to(target.fileno(), position=len(BYTES) + 8)
        assert b"head" + BYTES + b"tail" + BYTES == (tmp_path / "target").read_bytes()
        fd = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
        try:
            records.copy_to(fd)
            assert len(BYTES) == os.lseek(fd, 0, os.SEEK_CUR)
        finally:
            os.close(fd)
        assert BYTES == (tmp_path / "other").read_bytes()

    def test_into_what_takes_no_kernel_copy(self, records, tmp_path):
        """Where copy_file_range is refused, bytes go through memory."""
        target = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR)  # Another file system, as a rule.
        try:
            assert len(BYTES) == records.copy_to(target)
            assert BYTES == os.pread(target, len(BYTES) + 1, 0)
        finally:
            os.close(target)


class TestDescriptors:
    def test_never_another_file(self, tmp_path):
        """Beside deletion and files that take every free number, a range has its own bytes."""
        config = {**SMALL, "mapped.segments.max": 2, "retention.bytes": 6000}
        config["file.delete.delay.ms"] = 0
        stop, failures, served = threading.Event(), [], [0, 0]
        decoys = [tmp_path / f"decoy {at}" for at in range(4)]
        for path in decoys:
            path.write_bytes(b"\xee" * 8000)

        def reuse():
            while not stop.is_set():
                try:
                    fds = [os.open(path, os.O_RDONLY) for path in decoys]
                except OSError:
                    continue
                for fd in fds:
                    os.close(fd)

        def serve(number):
            sender, receiver = socket.socketpair()
            with sender, receiver:
                while not stop.is_set():
                    try:
                        part = log.fetch(log.log_start_offset, max_bytes=2000)
                        sent = part.send_to(sender) if number else len(part.records.to_bytes())
                    except (LookupError, logstore.StorageError, ClosedError):
                        continue
                    if number:
                        data = receiver.recv(sent, socket.MSG_WAITALL)
                    else:
                        data = bytes(part.memoryview())
                    served[number] += 1
                    for batch in logstore.record.iterate_batches(data):
                        try:
                            batch.ensure_valid()
                        except logstore.LogStoreError as error:
                            failures.append(error)
                            return

        with logstore.open(tmp_path / "log-0", config=config) as log:
            fill(log, 20)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (_highest_descriptor() + 40, hard))
            threads = [threading.Thread(target=serve, args=(at,)) for at in (0, 1)]
            threads.append(threading.Thread(target=reuse))
            for thread in threads:
                thread.start()
            try:
                deadline = time.monotonic() + PATIENCE_SECONDS
                for rounds in itertools.count():
                    fill(log, 100)
                    log.delete_old_segments()
                    if failures or (rounds >= 15 and min(served) > 10):
                        break
                    assert time.monotonic() < deadline, served
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert [] == failures


def _highest_descriptor():
    return max(int(name) for name in os.listdir("/proc/self/fd"))
