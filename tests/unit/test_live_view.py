"""A log opened to read beside its writer: what it sees of every kind of change, and of a death."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest
from patience import PATIENCE_SECONDS, until

import logstore
from logstore.control_record import ControlRecordType, EndTransactionMarker
from logstore.files import REAL_FILES, Files
from logstore.live_offsets import LIVE_OFFSETS_FILE, LiveFile
from logstore.live_segment import LiveSegment
from logstore.live_view import State
from logstore.opening import open_log
from logstore.record import encode_batch
from logstore.records_builder import end_transaction_marker
from logstore.segment import LogSegment

SMALL = {
    "segment.bytes": 500,
    "segment.index.bytes": 120,
    "index.interval.bytes": 100,
    "transaction.partition.verification.enable": False,
}


@pytest.fixture(name="path")
def _path(tmp_path):
    return str(tmp_path / "orders-0")


@pytest.fixture(name="writer")
def _writer(path):
    with logstore.open(path, config=SMALL) as log:
        yield log


@pytest.fixture(name="reader")
def _reader(writer):
    with logstore.open(writer.directory, "r") as log:
        yield log


def values(log, *arguments, **options):
    return list(log.read_values(*arguments, **options))


PRODUCER = {"producer_id": 7, "producer_epoch": 0}


def transactional(sequence):
    """A batch of one record in a transaction."""
    return encode_batch(
        [(None, 1_700_000_000_000, None, b"t", ())],
        base_sequence=sequence,
        is_transactional=True,
        **PRODUCER,
    )


def end_transaction(log, *, commit):
    kind = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
    marker = end_transaction_marker(
        EndTransactionMarker(kind, 0), timestamp=1_700_000_000_000, **PRODUCER
    )
    log.append_batches(marker, leader_epoch=0, origin="coordinator")


@contextlib.contextmanager
def held_by_broker(path, high_watermark):
    """Let the log ``orders-0`` be a broker's; the function that is given replicates further."""
    directory = path.parent

    def replicate(offset):
        (directory / "replication-offset-checkpoint").write_text(f"0\n1\norders 0 {offset}\n")

    for name in (".lock", LIVE_OFFSETS_FILE, ".kafka_cleanshutdown"):
        os.unlink(path / name)
    for file in path.glob("*-checkpoint"):
        if not file.name.startswith("leader"):
            file.unlink()
    (directory / "meta.properties").write_text("version=1\n")
    (directory / ".lock").touch()
    (directory / "recovery-point-offset-checkpoint").write_text("0\n1\norders 0 1\n")
    replicate(high_watermark)
    broker = (
        "import fcntl, struct, sys, time\n"
        "file = open(sys.argv[1], 'r+')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", broker, directory / ".lock"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert b"locked\n" == process.stdout.readline()
        yield replicate
        process.kill()


class TestBesideAWriter:
    def test_appends_and_rolls(self, writer, reader):
        """Each record, from any segment, as soon as its append has returned."""
        for at in range(100):
            writer.append(b"%d" % at)
            assert at + 1 == reader.log_end_offset
            assert b"%d" % at == reader[at].value
        assert [b"%d" % at for at in range(100)] == values(reader)
        assert len(writer.segments) == len(reader.segments) > 5
        assert reader.offsets == writer.offsets
        assert State.LIVE is reader._view.state

    def test_room_ahead_of_an_index_is_not_read(self, path):
        """Of the 10 MiB that a writer allocates for each, a new reader reads what it has made."""

        class Counting(Files):
            read_bytes = 0

            def pread_into(self, fd, buffer, position):
                read = super().pread_into(fd, buffer, position)
                self.read_bytes += read
                return read

        files = Counting(REAL_FILES.io)
        with logstore.open(path) as writer:
            for _ in range(50):
                writer.extend([bytes(100)] * 50)
            with open_log(path, "r", files=files) as reader:
                assert 100 == reader.scan(2400).to_table().num_rows
                assert reader.offset_at(0).offset == 0
            assert files.read_bytes < 100_000

    def test_times(self, writer, reader):
        """Lookups by time reach the newest record."""
        now = 1_700_000_000_000
        for at in range(50):
            writer.append(b"x", timestamp=now + at)
            assert (now + at, at) == tuple(reader.offset_at(now + at))[:2]
        assert 49 == reader.max_timestamp().offset
        assert reader.offset_at(now + 50) is None

    def test_fetch(self, writer, reader):
        """The same range and watermarks as in the writer's process."""
        writer.extend([b"a" * 30] * 40)
        theirs, ours = writer.fetch(7, max_bytes=1 << 20), reader.fetch(7, max_bytes=1 << 20)
        assert theirs.records.to_bytes() == ours.records.to_bytes()
        assert theirs._replace(records=None) == ours._replace(records=None)

    def test_truncation(self, writer, reader):
        """What was truncated is gone, what came in its place is there."""
        writer.extend([b"old"] * 60)
        assert 60 == len(values(reader))
        writer.truncate_to(13)
        assert values(writer) == values(reader)
        for _ in range(60):
            writer.append(b"new")
        assert values(writer) == values(reader)
        writer.truncate_fully_and_start_at(1000)
        assert (1000, 1000) == (reader.log_start_offset, reader.log_end_offset)
        writer.append(b"again")
        assert [b"again"] == values(reader)

    def test_read_over_a_truncation(self, writer, reader):
        """A read that was begun delivers nothing that was rolled back, or says that it cannot."""
        for _ in range(50):
            writer.append(b"old")
        records = reader.read_values()
        assert b"old" == next(records)
        records.discard()
        writer.truncate_to(20)
        for _ in range(50):
            writer.append(b"new")
        assert [b"old"] * 19 + [b"new"] * 30 == list(records)
        records = reader.read(40)
        next(records)
        records.discard()
        writer.truncate_to(30)
        with pytest.raises(logstore.OffsetOutOfRangeError, match="truncated"):
            next(records)

    def test_read_while_truncations_are_under_way(self, writer, path):
        """Below their target the log is readable all the time, for who was there and who comes."""
        for at in range(60):
            writer.append(b"%d" % at)
        with logstore.open(path, "r") as reader:
            records = reader.read_values()
            assert b"0" == next(records)
            with writer._truncations.under_way(33):
                for log in (reader, logstore.open(path, "r")):
                    assert 33 == log.log_end_offset
                    assert [b"%d" % at for at in range(33)] == values(log)
                    assert b"32" == log[32].value
                    with pytest.raises(logstore.OffsetOutOfRangeError) as caught:
                        log[33]
                    assert (0, 33) == (caught.value.log_start_offset, caught.value.log_end_offset)
                    assert State.LIVE is log._view.state
                log.close()
            assert [b"%d" % at for at in range(1, 60)] == list(records)  # It came to nothing.

    def test_everything_goes_and_goes_on_going(self, writer, path):
        """Beside a truncation to the log start that does not end, the log is empty, not broken."""
        for at in range(10):
            writer.append(b"%d" % at)
        with logstore.open(path, "r") as reader, reader.follow(5) as records:
            assert [5, 6, 7, 8, 9] == [next(records).offset for _ in range(5)]
            began = time.monotonic()
            with writer._truncations.under_way(0):
                for log in (reader, logstore.open(path, "r")):
                    assert (0, 0) == (log.log_start_offset, log.log_end_offset)
                    assert [] == values(log)
                    with pytest.raises(logstore.OffsetOutOfRangeError):
                        log[3]
                log.close()
                with pytest.raises(logstore.OffsetOutOfRangeError, match="truncated"):
                    records.batch(timeout=5 * PATIENCE_SECONDS)
            assert time.monotonic() - began < PATIENCE_SECONDS
            assert [b"%d" % at for at in range(10)] == values(reader)  # It came to nothing.
            writer.truncate_to(0)
            writer.append(b"new")
            assert [b"new"] == values(reader)

    def test_a_truncation_begins_while_the_directory_is_listed(self, writer, path, monkeypatch):
        """What is below its target is as it was."""
        for at in range(60):
            writer.append(b"%d" % at)
        with logstore.open(path, "r") as reader:
            listdir = reader._files.listdir
            targets = [50, 45, 30]

            def list_meanwhile(directory):
                if targets:
                    target = targets.pop(0)
                    writer.truncate_to(target)
                    writer.extend([b"new"] * 30)
                return listdir(directory)

            monkeypatch.setattr(
                type(reader._files), "listdir", lambda _, path: list_meanwhile(path)
            )
            writer.roll()
            assert 30 <= reader.log_end_offset <= 60
            assert [] == targets
            monkeypatch.undo()
            assert [b"%d" % at for at in range(30)] + [b"new"] * 30 == values(reader)

    def test_records_below_a_truncation_are_kept(self, writer, reader, monkeypatch):
        """A truncation during each block of a read does not keep it from going on."""
        for at in range(300):
            writer.append(b"%d" % at)
        records = reader.read_values(stop=200)
        inner = records._plain_block

        def plain_block(_):
            items = inner()
            writer.truncate_to(writer.log_end_offset - 1)
            return items

        monkeypatch.setattr(type(records), "_plain_block", plain_block)
        assert [b"%d" % at for at in range(200)] == list(records)
        monkeypatch.undo()

    def test_deletion(self, writer, reader):
        """Below the log start: an error with the range. What is open is read to its end."""
        for at in range(100):
            writer.append(b"%d" % at)
        records = reader.read_values()
        assert b"0" == next(records)
        writer.maybe_increment_log_start_offset(60)
        writer.delete_old_segments()
        assert 60 == reader.log_start_offset
        with pytest.raises(logstore.OffsetOutOfRangeError) as caught:
            reader.read(59)
        assert (60, 100) == (caught.value.log_start_offset, caught.value.log_end_offset)
        with pytest.raises(logstore.OffsetOutOfRangeError):
            list(records)
        assert [b"%d" % at for at in range(60, 100)] == values(reader)

    def test_deletion_within_a_fetch(self, writer, reader, monkeypatch):
        """A fetch that met a deleted segment says what is there now; above it, it goes on."""
        for at in range(100):
            writer.append(b"%d" % at)
        assert 100 == reader.log_end_offset
        read = LogSegment.read

        def delete_first(segment, *arguments, **options):
            if segment is reader.segments[0] and writer.log_start_offset == 0:
                writer.maybe_increment_log_start_offset(50)
                writer.delete_old_segments()
            return read(segment, *arguments, **options)

        monkeypatch.setattr(LogSegment, "read", delete_first)
        with pytest.raises(logstore.OffsetOutOfRangeError) as caught:
            reader.fetch(0, max_bytes=100)
        assert 50 == caught.value.log_start_offset
        assert 60 == next(iter(reader.fetch(60, max_bytes=100).records.batches())).base_offset

    def test_everything_deleted(self, path):
        """The log goes on in a new segment."""
        with logstore.open(path, config={**SMALL, "retention.ms": 0}) as writer:
            writer.extend([b"x"] * 30, timestamps=[1_600_000_000_000] * 30)
            with logstore.open(path, "r") as reader:
                assert 30 == len(values(reader))
                writer.delete_old_segments()
                assert (30, 30, []) == (
                    reader.log_start_offset,
                    reader.log_end_offset,
                    values(reader),
                )
                writer.append(b"y")
                assert [b"y"] == values(reader)

    def test_transactions(self, writer, reader):
        """Undecided and aborted records are not delivered to committed reads."""
        writer.append(b"a")
        writer.append_batches(transactional(0), leader_epoch=0)
        writer.append(b"b")
        assert (1, [b"a"]) == (reader.last_stable_offset, values(reader))
        assert [b"a", b"t", b"b"] == values(reader, isolation="log_end")
        end_transaction(writer, commit=False)
        assert [b"a", b"b"] == values(reader)
        writer.append_batches(transactional(1), leader_epoch=0)
        end_transaction(writer, commit=True)
        assert [b"a", b"b", b"t"] == values(reader)
        assert reader.offsets == writer.offsets

    def test_replicas(self, path):
        """The high watermark is the writer's."""
        with logstore.open(path, high_watermark="replicas") as writer:
            writer.extend([b"x"] * 5)
            with logstore.open(path, "r") as reader:
                assert (0, 5, []) == (reader.high_watermark, reader.log_end_offset, values(reader))
                writer.update_high_watermark(3)
                assert 3 == reader.high_watermark

    def test_nothing_is_changed(self, writer, reader):
        """A reader writes nothing, and says so."""
        writer.append(b"x")
        before = sorted(os.listdir(writer.directory))
        assert 1 == len(values(reader))
        with pytest.raises(logstore.ReadOnlyError):
            reader.append(b"y")
        assert before == sorted(os.listdir(writer.directory))

    def test_pickle(self, writer, reader):
        """A copy of a handle opens the path again."""
        writer.append(b"x")
        with pickle.loads(pickle.dumps(reader)) as copy:
            writer.append(b"y")
            assert [b"x", b"y"] == values(copy)


def as_nobody(path):
    """Return what a process without rights sees of a log: its state and its values."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            with logstore.open(path, "r") as log:
                os.write(write_end, pickle.dumps((log._view.state.value, values(log))))
        except BaseException as error:  # noqa: BLE001
            os.write(write_end, pickle.dumps(repr(error)))
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    return pickle.loads(data)


class TestWithoutLiveOffsets:
    def test_deleted_file(self, writer, path):
        """A reader that has it goes on; another one sees what was flushed."""
        writer.extend([b"x"] * 30)
        with logstore.open(path, "r") as old:
            os.unlink(os.path.join(path, LIVE_OFFSETS_FILE))
            writer.append(b"y")
            assert 31 == len(values(old))
            with logstore.open(path, "r") as new:
                assert State.FLUSHED is new._view.state
                assert 0 == new.log_end_offset
                writer.flush()
                writer._write_checkpoints()
                until(lambda: new.log_end_offset == 31)
                assert values(old) == values(new)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
    def test_lock_that_may_not_be_read(self):
        """Who cannot tell whether somebody writes sees what the writer shows, else the flushed."""
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:
            os.chmod(directory, 0o755)  # pytest's own is closed to others; so may TMPDIR be.
            path = os.path.join(directory, "orders-0")
            with logstore.open(path) as writer:
                os.chmod(os.path.join(path, ".lock"), 0)
                writer.extend([b"flushed"])
                writer.flush()
                writer.flush_metadata()
                writer._write_checkpoints()
                writer.extend([b"written"])
                assert ("live", [b"flushed", b"written"]) == as_nobody(path)
                os.chmod(os.path.join(path, LIVE_OFFSETS_FILE), 0)
                assert ("flushed", [b"flushed"]) == as_nobody(path)
            os.chmod(os.path.join(path, LIVE_OFFSETS_FILE), 0o644)
            assert ("flushed", [b"flushed", b"written"]) == as_nobody(path)

    @pytest.mark.parametrize("renew", ["roll", "flush", "truncate"])
    def test_deleted_file_is_made_again(self, writer, path, renew):
        """By the next roll, flush or truncation; who has the old one open goes over to the new."""
        for _ in range(60):
            writer.append(b"a" * 20)
        with logstore.open(path, "r") as reader, reader.follow() as records:
            records_before = reader.read_values()
            next(records_before)
            records_before.discard()

            def wait():
                with contextlib.suppress(logstore.OffsetOutOfRangeError):
                    next(records, None)

            thread = threading.Thread(target=wait)
            thread.start()
            until(lambda: reader._view._watch is not None)
            os.unlink(os.path.join(path, LIVE_OFFSETS_FILE))
            if renew == "truncate":
                writer.truncate_to(50)
                writer.truncate_to(40)
                records.close()
            elif renew == "roll":
                writer.roll()
            else:
                writer.flush()
            assert os.path.exists(os.path.join(path, LIVE_OFFSETS_FILE))
            writer.extend([b"b"] * 30)
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
            with logstore.open(path, "r") as late:
                for log in (late, reader):
                    until(lambda log=log: log.log_end_offset == writer.log_end_offset)
                    assert State.LIVE is log._view.state
                    assert values(writer) == values(log)
                if renew == "truncate":
                    assert 40 == reader.truncated_to(0)
                    assert 4 == late._view._file.page.load().truncation_count
                rest = list(records_before)
                assert len(rest) >= 39
                assert values(writer)[1 : 1 + len(rest)] == rest

    def test_truncations_before_the_first_look(self, writer, path, monkeypatch):
        """A reader that came before its writer's page was ready hears of no older truncations."""
        writer.extend([b"a"] * 30)
        writer.truncate_to(5)
        for _ in range(40):
            writer.append(b"b")
        writer.flush()
        writer._write_checkpoints()
        monkeypatch.setattr(LiveFile, "is_writer_alive", False)
        with logstore.open(path, "r") as reader:
            assert State.FLUSHED is reader._view.state
            records = reader.read(0)
            seen = reader.truncations
            monkeypatch.undo()
            until(lambda: reader.log_end_offset == writer.log_end_offset)
            assert State.LIVE is reader._view.state
            assert seen == reader.truncations
            writer.truncate_to(7)
            assert reader.truncations > seen
            assert 7 == reader.truncated_to(seen)
            records.discard()

    def test_beside_a_broker(self, tmp_path):
        """Its lock is on the log directory; the high watermark checkpoint says what is readable."""
        path = tmp_path / "orders-0"
        with logstore.open(path, config=SMALL) as log:
            log.extend([b"x"] * 20)
            log.extend([b"y"] * 20)
        with held_by_broker(path, high_watermark=20) as replicate, logstore.open(path, "r") as log:
            assert (State.FLUSHED, 20) == (log._view.state, log.log_end_offset)
            assert [b"x"] * 20 == values(log)
            replicate(40)
            until(lambda: log.log_end_offset == 40)
            assert [b"x"] * 20 + [b"y"] * 20 == values(log)

    def test_transactions_beside_a_broker(self, tmp_path):
        """What is undecided below its high watermark is not read."""
        path = tmp_path / "orders-0"
        with logstore.open(path, config=SMALL) as log:
            log.append(b"a")
            log.append_batches(transactional(0), leader_epoch=0)  # 1
            log.append(b"b")
            end_transaction(log, commit=False)  # 3
            log.append_batches(transactional(1), leader_epoch=0)  # 4
            log.append(b"c")
            end_transaction(log, commit=True)  # 6
            log.append_batches(transactional(2), leader_epoch=0)  # 7
            log.append(b"d")
        with held_by_broker(path, high_watermark=2) as replicate, logstore.open(path, "r") as log:
            for high_watermark, stable, expected in (
                (2, 1, [b"a"]),
                (4, 4, [b"a", b"b"]),
                (6, 4, [b"a", b"b"]),
                (7, 7, [b"a", b"b", b"t", b"c"]),
                (9, 7, [b"a", b"b", b"t", b"c"]),
            ):
                replicate(high_watermark)
                until(lambda end=high_watermark: log.log_end_offset == end)
                assert (stable, expected) == (log.last_stable_offset, values(log))
                with logstore.open(path, "r") as new:
                    assert (stable, expected) == (new.last_stable_offset, values(new))

    def test_copied_directory(self, writer, path, tmp_path):
        """A copy of a live log has its live offsets, and no writer."""
        writer.extend([b"x"] * 30)
        shutil.copytree(path, tmp_path / "copy-0")
        with logstore.open(tmp_path / "copy-0", "r") as reader:
            assert (State.CLOSED, 30) == (reader._view.state, len(values(reader)))


WRITER = """
import sys, logstore
log = logstore.open(sys.argv[1], config={"segment.bytes": 500, "segment.index.bytes": 120})
for line in sys.stdin:
    log.append(line.strip().encode())
    print("ok", flush=True)
log.close()
print("closed", flush=True)
"""


class Child:
    """A writer in another process: one line is one record."""

    def __init__(self, path):
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def append(self, value):
        self.process.stdin.write(value + "\n")
        self.process.stdin.flush()
        assert "ok\n" == self.process.stdout.readline()

    def close(self):
        self.process.stdin.close()
        assert "closed\n" == self.process.stdout.readline()
        self.end()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.stdin.close()
        self.end()

    def end(self):
        self.process.wait()
        self.process.stdout.close()


class TestWritersComeAndGo:
    def test_close_and_open(self, path):
        """A reader goes from writer to writer, and reads between them."""
        child = Child(path)
        child.append("a")
        with logstore.open(path, "r") as reader:
            child.append("b")
            assert [b"a", b"b"] == values(reader)
            child.close()
            until(lambda: reader.offsets.recovery_point == 2 and reader._view.state is State.CLOSED)
            assert [b"a", b"b"] == values(reader)
            child = Child(path)
            child.append("c")
            until(lambda: reader.log_end_offset == 3)
            child.append("d")
            assert [b"a", b"b", b"c", b"d"] == values(reader)
            child.close()

    def test_kill(self, path):
        """Noticed within 100 ms; everything that was acknowledged stays."""
        child = Child(path)
        for at in range(40):
            child.append(f"{at}")
        with logstore.open(path, "r") as reader:
            assert 40 == len(values(reader))
            child.kill()
            until(lambda: reader.log_end_offset == 40 and reader._view.state is State.CLOSED)
            assert [b"%d" % at for at in range(40)] == values(reader)
            child = Child(path)
            child.append("next")
            until(lambda: reader.log_end_offset == 41)
            assert b"next" == reader.last().value
            child.close()

    def test_sleepers_hear_of_a_kill(self, path):
        """Who sleeps does not look at the writer, and knows of its end at once all the same."""
        child = Child(path)
        child.append("a")
        with logstore.open(path, "r") as reader, reader.follow("earliest") as records:
            assert b"a" == next(records).value
            thread = threading.Thread(target=next, args=(records, None))
            thread.start()
            view = reader._view
            until(lambda: view._watch is not None)

            def sleeps():
                seen, look_at = view._seen, view._look_at
                time.sleep(0.35)
                return (seen, look_at) == (view._seen, view._look_at)

            until(sleeps)
            child.kill()
            until(lambda: view._seen.state is State.CLOSED)
            records.close()
            thread.join()

    def test_writer_whose_number_means_nothing_here(self, path, monkeypatch):
        """In another pid namespace: the lock is looked at every 100 ms."""
        child = Child(path)
        child.append("a")
        with logstore.open(path, "r") as reader:
            assert reader.wait_seconds > 1
        monkeypatch.setattr("logstore.live_view.pid_namespace", lambda: 1)
        with logstore.open(path, "r") as reader:
            assert 0.1 == reader.wait_seconds
            assert reader._view._watch is None
        child.close()

    def test_kill_in_a_change(self, path):
        """A page that stays half changed for ever is given up."""
        child = Child(path)
        child.append("a")
        with logstore.open(path, "r") as reader:
            assert [b"a"] == values(reader)
            with open(os.path.join(path, LIVE_OFFSETS_FILE), "r+b") as file:
                file.seek(192)
                odd = int.from_bytes(file.read(8), sys.byteorder) + 1
                file.seek(192)
                child.kill()
                file.write(odd.to_bytes(8, sys.byteorder))
            assert [b"a"] == values(reader)
            child = Child(path)
            child.append("b")
            until(lambda: reader.log_end_offset == 2)
            child.close()

    def test_truncation_between_looks(self, path):
        """Also one that a writer has made who is gone already."""
        with logstore.open(path, config=SMALL) as log:
            for _ in range(30):
                log.append(b"old")
        with logstore.open(path, "r") as reader:
            records = reader.read()
            for _ in range(20):
                next(records)
            with logstore.open(path, config=SMALL) as log:
                log.truncate_to(10)
                for _ in range(30):
                    log.append(b"new")
            until(lambda: reader.log_end_offset == 40)
            records.discard()
            with pytest.raises(logstore.OffsetOutOfRangeError, match="truncated"):
                next(records)
            assert [b"old"] * 10 + [b"new"] * 30 == values(reader)


def test_a_segment_goes_while_a_truncation_is_under_way(writer, path, monkeypatch):
    """Its file is met gone when its end is looked for: the look is made again."""
    for at in range(60):
        writer.append(b"%d" % at)
    with logstore.open(path, "r") as reader:
        find_end = LiveSegment.find_end
        calls = []

        def vanish(segment, end):
            calls.append(end)
            if len(calls) == 1:
                raise logstore.ClosedError("it was deleted")
            return find_end(segment, end)

        monkeypatch.setattr(LiveSegment, "find_end", vanish)
        with writer._truncations.under_way(33):
            assert 33 == reader.log_end_offset
        assert len(calls) >= 2


def test_a_segment_of_a_closed_log_is_deleted(path):
    """By the next writer, before the reader has looked: it is met as deleted, after a while."""
    with logstore.open(path, config=SMALL) as log:
        for _ in range(60):
            log.append(b"x" * 20)
    with logstore.open(path, "r") as reader:
        assert State.CLOSED is reader._view.state
        os.unlink(reader.segments[0].log_path)
        with pytest.raises(logstore.ClosedError, match="was deleted"):
            list(reader.read())


def test_an_index_goes_with_its_segment(writer, reader):
    """Between the look at an index and its opening: a read goes on without it."""
    for at in range(60):
        writer.append(b"%d" % at)
    assert 60 == reader.log_end_offset
    segment = reader.segments[1]
    index = segment.offset_index
    assert index.entry_count > 0
    os.rename(index.path, index.path + ".away")
    assert b"%d" % (segment.base_offset + 3) == reader[segment.base_offset + 3].value
    os.rename(index.path + ".away", index.path)
