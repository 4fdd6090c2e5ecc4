"""The file that a writer shares with readers: format, consistency, who is alive, other machines."""

from __future__ import annotations

import errno
import itertools
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time

import pytest
from patience import PATIENCE_SECONDS, until

import logstore
from logstore import live_offsets
from logstore._native import LIVE_BYTES, LivePage, wait_any
from logstore.control_record import ControlRecordType, EndTransactionMarker
from logstore.live_offsets import (
    HEADER,
    LIVE_OFFSETS_FILE,
    NOT_SET,
    LiveOffsets,
    Machine,
    ShownMarks,
    is_foreign_writer,
    open_live_file,
)
from logstore.records_builder import encode_batch, end_transaction_marker
from logstore.simulated_files import FailingFiles
from logstore.truncations import TARGETS_MAX, Truncations

SMALL = {"segment.bytes": 500, "segment.index.bytes": 120, "index.interval.bytes": 100}


@pytest.fixture(name="path")
def _path(tmp_path):
    return str(tmp_path / "orders-0")


@pytest.fixture(name="log")
def _log(path):
    with logstore.open(path, config=SMALL) as log:
        yield log


@pytest.fixture(name="file")
def _file(log):
    file = open_live_file(log.directory)
    yield file
    file.close()


def raw(path):
    with open(os.path.join(path, LIVE_OFFSETS_FILE), "rb") as file:
        return file.read()


class TestFormat:
    def test_places(self, log, path):
        """The fields are where the table of the module has them."""
        log.extend([b"x" * 50] * 20)
        log.maybe_increment_log_start_offset(3)
        data = raw(path)
        assert LIVE_BYTES == len(data)
        rows = re.findall(r"^(\d+) +(\d+) +(\w[^\n]*)$", live_offsets.__doc__, re.MULTILINE)
        places = {
            re.split("[:,] ", name)[-1 if name[0] == "1" else 0]: int(pos) for pos, _, name in rows
        }
        sizes = [(int(pos), int(size)) for pos, size, _ in rows]
        assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(sizes))

        def field(name):
            return struct.unpack_from("=q", data, places[name])[0]

        assert 20 == field("log end offset")
        assert log.active_segment.size_bytes == field("size of the active segment")
        assert log.active_segment.base_offset == field("base offset of the active segment")
        assert 3 == field("log start offset")
        assert (-1, -1) == (field("high watermark"), field("first unstable offset"))
        assert 0 == field("change count") % 2
        assert 1 == field("the log is open")
        assert places["the log is open"] == live_offsets.IS_OPEN_AT
        assert b"LSLIVE\0\0" == data[:8]

    def test_kept_by_the_next_writer(self, path):
        """The file and its truncation count outlive a writer; the epoch rises."""
        with logstore.open(path) as log:
            for _ in range(4):
                log.append(b"x")
            log.truncate_to(2)
        file = open_live_file(path)
        with logstore.open(path) as log:
            log.append(b"y")
            shown = file.page.load()
            assert (2, 3, 2) == (shown.writer_epoch, shown.log_end_offset, shown.truncation_count)
        assert (0, False) == (file.page.load().is_open, file.is_writer_alive)
        file.close()

    @pytest.mark.parametrize("data", [b"", b"short", b"\xff" * 4096, b"\0" * 4096, b"x" * 9000])
    def test_anything_may_be_in_it(self, path, data):
        """A writer begins anew over damage; a reader goes by the files."""
        with logstore.open(path) as log:
            log.append(b"x")
        with open(os.path.join(path, LIVE_OFFSETS_FILE), "wb") as file:
            file.write(data)
        assert open_live_file(path) is None
        with logstore.open(path, "r") as reader:
            assert [b"x"] == list(reader.read_values())
        with logstore.open(path) as log:
            log.append(b"y")
            with logstore.open(path, "r") as reader:
                assert [b"x", b"y"] == list(reader.read_values())

    def test_a_writer_that_cannot_make_it(self, path, caplog):
        """Appends do not depend on it."""
        os.makedirs(os.path.join(path, LIVE_OFFSETS_FILE))
        with logstore.open(path) as log:
            assert 0 == log.append(b"x")
        assert "see only what is flushed" in caplog.text

    def test_a_failed_open_closes_each_descriptor_once(self, log, tmp_path, caplog):
        """By the second time another thread may have opened a file by that number."""
        files = FailingFiles()
        files.fail("map", errno.ENOMEM, persistent=True)
        assert open_live_file(log.directory, files) is None
        assert 2 == files.calls("open") == files.calls("close")
        live = LiveOffsets.create(
            str(tmp_path),
            writer=None,
            writer_epoch=1,
            active_base_offset=0,
            size_bytes=0,
            log_end_offset=0,
            marks=ShownMarks(0, NOT_SET, NOT_SET, 0),
            files=files,
        )
        assert live is None
        assert "Cannot allocate memory" in caplog.text
        assert 4 == files.calls("open") == files.calls("close")


class TestMoves:
    def test_every_append(self, log, file):
        """Each way to append shows its end when it returns."""
        log.append(b"fast")
        assert 1 == file.page.log_end_offset
        log.extend([b"a"] * 30)
        assert 31 == file.page.log_end_offset
        assert log.active_segment.size_bytes == file.page.load().size_bytes
        log.append(b"with headers", headers=[("a", b"b")])
        assert 32 == file.page.log_end_offset

    def test_marks(self, tmp_path):
        """A high watermark of replicas, and the recovery point."""
        with logstore.open(tmp_path / "r-0", high_watermark="replicas") as log:
            file = open_live_file(log.directory)
            log.extend([b"x"] * 5)
            log.update_high_watermark(3)
            log.flush()
            shown = file.page.load()
            assert (3, 5, 5) == (shown.high_watermark, shown.recovery_point, shown.log_end_offset)
            file.close()

    @pytest.mark.parametrize("high_watermark", ["log_end", "replicas"])
    def test_the_first_moment_has_the_marks(self, path, monkeypatch, high_watermark):
        """Readers are woken by the opening of the page: nothing undecided is shown as committed."""
        producer = {"producer_id": 7, "producer_epoch": 0}
        undecided = encode_batch(
            [(None, 1, None, b"t", ())], base_sequence=0, is_transactional=True, **producer
        )
        config = {"transaction.partition.verification.enable": False}
        with logstore.open(path, config=config, high_watermark=high_watermark) as log:
            log.append(b"a")
            log.append_batches(undecided, leader_epoch=0)
        at_first = []
        opened = LivePage.open

        def look(page, header, offsets):
            opened(page, header, offsets)
            at_first.append(page.load())

        monkeypatch.setattr(LivePage, "open", look)
        with logstore.open(path, high_watermark=high_watermark) as log:
            shown = log.live_page.load()
            assert [shown] == at_first
            assert 1 == shown.first_unstable_offset
            marker = end_transaction_marker(
                EndTransactionMarker(ControlRecordType.ABORT, 0), timestamp=1, **producer
            )
            log.append_batches(marker, leader_epoch=0, origin="coordinator")

    def test_truncation(self, log, file):
        """The count rises by two; the lowest target since a count is known."""
        log.extend([b"x"] * 40)
        log.truncate_to(30)
        log.truncate_to(20)
        log.truncate_to(25)  # Nothing to do.
        page = file.page
        assert (4, 20) == (page.load().truncation_count, page.log_end_offset)
        # The first one removes a batch of 40 as a whole.
        assert (0, 20, None) == tuple(page.truncated_to(since) for since in (0, 2, 4))
        log.truncate_fully_and_start_at(100)
        assert (6, 100, 100) == (
            page.load().truncation_count,
            page.log_end_offset,
            page.load().active_base_offset,
        )
        assert 0 == page.truncated_to(4)  # From the log start on everything goes.

    def test_consistent_under_changes(self, log, file):
        """Whoever loads sees the offsets of one moment."""
        is_done = threading.Event()
        torn = []

        def look():
            while not is_done.is_set():
                shown = file.page.load()
                if shown is None:
                    continue
                if not shown.log_start_offset <= shown.log_end_offset:
                    torn.append(shown)
                if shown.active_base_offset > shown.log_end_offset:
                    torn.append(shown)

        looker = threading.Thread(target=look)
        looker.start()
        for _ in range(30):
            log.extend([b"x" * 40] * 10)
            log.maybe_increment_log_start_offset(log.log_end_offset - 2)
        is_done.set()
        looker.join()
        assert [] == torn

    def test_many_truncations(self):
        """More than can be kept: everything may be gone."""
        truncations = Truncations()
        for target in range(TARGETS_MAX + 1):
            truncations.note(100 + target)
        assert 0 == truncations.lowest_since(0)
        assert 101 == truncations.lowest_since(2)


class TestWaiting:
    def test_an_append_wakes(self, log, file):
        """Who announced a wait is woken by the next append, and an append before it is seen."""
        page = file.page
        word = page.prepare()
        log.append(b"x")
        began = time.monotonic()
        assert page.wait(word, 5 * PATIENCE_SECONDS)
        word = page.prepare()
        threading.Timer(0.05, log.append, [b"y"]).start()
        page.wait(word, 5 * PATIENCE_SECONDS)
        assert time.monotonic() - began < PATIENCE_SECONDS
        assert 2 == page.log_end_offset

    def test_any_of_several(self, log, file, tmp_path):
        """One wait for several logs."""
        with logstore.open(tmp_path / "other-0") as other:
            second = open_live_file(other.directory)
            pages = [file.page, second.page]
            words = [page.prepare() for page in pages]
            threading.Timer(0.05, other.append, [b"y"]).start()
            began = time.monotonic()
            if not wait_any(pages, words, 5 * PATIENCE_SECONDS):
                pytest.skip("this kernel cannot")
            assert time.monotonic() - began < PATIENCE_SECONDS
            second.close()

    def test_times_out(self, file):
        """No longer than was asked for."""
        began = time.monotonic()
        file.page.wait(file.page.prepare(), 0.02)
        file.page.spin(file.page.log_end_offset, file.page.change_count, 0.02)
        assert 0.03 < time.monotonic() - began < PATIENCE_SECONDS


WRITER = """
import sys, time, logstore
log = logstore.open(sys.argv[1])
log.append(b"x")
print("ready", flush=True)
time.sleep(60)
"""


class TestAlive:
    def test_kill(self, path):
        """A killed writer's lock is free at once, although a child of it lives on."""
        child = "import os; os.fork() or (sys.stdin.read(), os._exit(0))\n"
        code = WRITER.replace("print", child + "print")
        with subprocess.Popen(
            [sys.executable, "-c", code, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as writer:
            assert b"ready\n" == writer.stdout.readline()
            file = open_live_file(path)
            assert file.is_writer_alive
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            until(lambda: not file.is_writer_alive)
            assert 1 == file.page.load().is_open
            file.close()

    def test_readers_are_seen(self, log):
        """As long as one has the file open."""
        assert not log._live.has_readers
        with logstore.open(log.directory, "r"):
            assert log._live.has_readers
        assert not log._live.has_readers


class TestOtherMachines:
    def test_another_boot(self, log, path):
        """Memory is not shared with another machine, nor with this one before it was started."""
        here = Machine.here()
        patch(path, Machine("another boot", here.host))
        assert open_live_file(path) is None
        assert not is_foreign_writer(path)
        patch(path, Machine(here.boot_id, "another host"))
        assert open_live_file(path) is None
        assert is_foreign_writer(path)

    def test_only_what_was_flushed(self, path):
        """Beside a writer of another machine a reader trusts the checkpoints."""
        with logstore.open(path, config=SMALL) as log:
            log.extend([b"x" * 30] * 20)
        with logstore.open(path, config=SMALL) as log:
            log.extend([b"y"] * 20)
            patch(path, Machine("another boot", "another host"))
            with logstore.open(path, "r") as reader:
                assert (20, 20) == (reader.log_end_offset, len(list(reader.read())))
                assert b"x" * 30 == reader[7].value


def patch(path, machine):
    with open(os.path.join(path, LIVE_OFFSETS_FILE), "r+b") as file:
        file.write(machine.header()[: HEADER.size])
