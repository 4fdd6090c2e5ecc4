"""Followers that wait in C behind the last batch: what is theirs, and what goes the general way."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from patience import PATIENCE_SECONDS

import logstore
from logstore._native import TailReader
from logstore.control_record import ControlRecordType, EndTransactionMarker
from logstore.records_builder import encode_batch, end_transaction_marker
from logstore.testing import open_log

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it sleeps on futexes")

CONFIG = {"transaction.partition.verification.enable": False}


@pytest.fixture(name="log")
def _log(tmp_path):
    with logstore.open(tmp_path / "orders-0", config=CONFIG) as log:
        log.append(b"0")
        yield log


@pytest.fixture(name="other")
def _other(log):
    with logstore.open(log.directory, "r") as other:
        yield other


@pytest.fixture(name="either", params=["writer", "reader"])
def _either(request, log, other):
    """The writer's own handle, or one that reads beside it."""
    return log if request.param == "writer" else other


@pytest.fixture(name="records")
def _records(either):
    """A follower that has read what was there, and waits in C from now on."""
    with either.follow("earliest", timeout=PATIENCE_SECONDS) as records:
        assert b"0" == next(records).value
        assert [] == records.batch(timeout=0.001)
        yield records


def waits_in_c(records):
    """Whether the follower has a TailReader, now that it has waited."""
    return isinstance(records._tail, TailReader)


def values_of(records):
    """Return the values until none comes any more."""
    values = []
    while batch := records.batch(timeout=0.05):
        values += [record.value for record in batch]
    return values


def after(seconds, work):
    thread = threading.Timer(seconds, work)
    thread.start()
    return thread


class TestInC:
    """What it reads."""

    def test_records_as_they_come(self, log, records):
        """One, several in one append, with all that a record has."""
        thread = after(0.05, lambda: log.append(b"1", key=b"k", headers=[("h", None)]))
        first = next(records)
        thread.join()
        assert waits_in_c(records)
        log.extend([b"2", b"3"], timestamps=[5, 6])
        assert (1, b"k", b"1", (("h", None),)) == (
            first.offset,
            first.key,
            first.value,
            first.headers,
        )
        assert [(2, 5), (3, 6)] == [(each.offset, each.timestamp) for each in records.batch()]
        assert waits_in_c(records)
        assert 4 == records.position == records.next_offset
        assert 0 == records.lag

    def test_flushes_do_not_end_it(self, log, records):
        """A recovery point that moves is nothing that matters to it."""
        after(0.02, lambda: log.append(b"1", sync=True)).join()
        assert b"1" == next(records).value
        thread = after(0.05, lambda: (log.append(b"2", sync=True), log.flush()))
        assert b"2" == next(records).value
        tail = records._tail
        thread.join()
        log.append(b"3", sync=True)
        assert b"3" == next(records).value
        assert tail is not None
        assert tail is records._tail

    def test_next_offset_between_the_records_of_a_batch(self, log, records):
        """Where it is counts what was taken, also when the log is closed under it."""
        after(0.02, lambda: log.extend([b"1", b"2", b"3"])).join()
        assert b"1" == next(records).value
        assert 2 == records.position
        log.close()
        assert 2 == records.position


class TestTheGeneralWay:
    """What C leaves to it, while it waits and between two waits."""

    def test_rolls(self, log, records):
        """The next segment is found."""
        for value in (b"1", b"2", b"3"):
            thread = after(0.02, lambda value=value: (log.roll(), log.append(value)))
            assert value == next(records).value
            thread.join()

    def test_large_and_compressed_batches(self, log, records):
        """They are delivered in between."""
        large = os.urandom(100_000)
        thread = after(0.02, lambda: log.append(large))
        assert large == next(records).value
        thread.join()
        log.append(b"small")
        assert b"small" == next(records).value
        log.update_config({"compression.type": "zstd"})
        log.extend([b"c"] * 100)
        log.update_config({"compression.type": "producer"})
        log.append(b"last")
        values = []
        while values[-1:] != [b"last"]:
            values.append(next(records).value)
        assert [b"c"] * 100 + [b"last"] == values

    def test_truncations(self, log, records):
        """Below its position they are told, above they are not met."""
        after(0.02, lambda: log.extend([b"1", b"2"])).join()
        assert 2 == len(records.batch())
        log.truncate_to(2)
        log.extend([b"new", b"new"])
        with pytest.raises(logstore.OffsetOutOfRangeError, match="truncated"):
            next(records)

    def test_truncated_while_it_waits(self, log, records):
        """It does not wait on."""
        thread = after(0.05, lambda: log.truncate_to(0))
        with pytest.raises(logstore.OffsetOutOfRangeError, match="truncated"):
            records.batch()
        thread.join()

    def test_deleted_records(self, log, records):
        """They raise, with the valid range."""
        log.extend([b"1"] * 9)
        log.maybe_increment_log_start_offset(10)
        with pytest.raises(logstore.OffsetOutOfRangeError, match="deleted"):
            next(records)

    def test_transactions(self, log, either):
        """Those of a transaction come once it is decided; uncommitted, all come at once."""
        producer = {"producer_id": 7, "producer_epoch": 0}
        with (
            either.follow(1, timeout=PATIENCE_SECONDS) as committed,
            either.follow(1, isolation="log_end") as all_there_is,
        ):
            for sequence in range(6):
                plain = b"plain %d" % sequence
                thread = after(0.01, lambda plain=plain: log.append(plain))
                assert plain == next(committed).value
                assert [] == values_of(committed)
                thread.join()
                assert [plain] == values_of(all_there_is)
                in_transaction = b"%d" % sequence
                batch = encode_batch(
                    [(None, 1, None, in_transaction, ())],
                    base_sequence=sequence,
                    is_transactional=True,
                    **producer,
                )
                thread = after(0.01, lambda batch=batch: log.append_batches(batch, leader_epoch=0))
                assert [] == values_of(committed)
                thread.join()
                log.append(b"behind it")
                assert [in_transaction, b"behind it"] == values_of(all_there_is)
                is_committed = sequence % 2 == 0
                kind = ControlRecordType.COMMIT if is_committed else ControlRecordType.ABORT
                marker = end_transaction_marker(
                    EndTransactionMarker(kind, 0), timestamp=1, **producer
                )
                log.append_batches(marker, leader_epoch=0, origin="coordinator")
                kept = [in_transaction] if is_committed else []
                assert [*kept, b"behind it"] == values_of(committed)
                assert [] == values_of(all_there_is)

    def test_damage(self, log, records):
        """It is found, with its place."""
        log.append(b"1")
        assert b"1" == next(records).value
        assert [] == records.batch(timeout=0.001)
        position = log.log_end_offset_metadata.relative_position_in_segment
        offset = log.append(b"right")
        with open(log.active_segment.log_path, "r+b") as file:
            file.seek(position + 61 + 8)
            file.write(b"!")
        with pytest.raises(logstore.CorruptRecordError) as caught:
            next(records)
        assert (offset, position) == (caught.value.offset, caught.value.position)
        log.truncate_to(offset)


class TestEnds:
    """Of a wait in C."""

    @pytest.mark.parametrize("spin", [0.0, 5 * PATIENCE_SECONDS])
    def test_close(self, either, spin):
        """From another thread, at once."""
        with either.follow("earliest", spin=spin) as records:
            next(records)
            thread = after(0.1, records.close)
            began = time.monotonic()
            assert [] == list(records)
            assert time.monotonic() - began < PATIENCE_SECONDS
            thread.join()

    @pytest.mark.parametrize("spin", [0.0, 5 * PATIENCE_SECONDS])
    def test_log_closed(self, log, spin):
        """Ends its followers at once."""
        with logstore.open(log.directory, "r") as other:
            records = other.follow("earliest", spin=spin)
            next(records)
            thread = after(0.1, other.close)
            began = time.monotonic()
            assert [] == list(records)
            assert time.monotonic() - began < PATIENCE_SECONDS
            thread.join()

    @pytest.mark.parametrize("spin", [0.0, 5 * PATIENCE_SECONDS])
    def test_signals(self, either, spin):
        """A handler's error comes through at once."""

        def interrupt(number, frame):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGUSR1, interrupt)
        try:
            with either.follow("earliest", spin=spin) as records:
                next(records)
                thread = after(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR1))
                began = time.monotonic()
                with pytest.raises(KeyboardInterrupt):
                    next(records)
                assert time.monotonic() - began < PATIENCE_SECONDS
                thread.join()
        finally:
            signal.signal(signal.SIGUSR1, before)

    def test_writers_death(self, tmp_path):
        """A writer that was killed in the middle of nothing: the next one's records come."""
        path = str(tmp_path / "orders-0")
        program = "import sys, time, logstore; log = logstore.open(sys.argv[1]); log.append(b'0');"
        program += "print(flush=True); time.sleep(60)"
        command = [sys.executable, "-c", program, path]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            writer.stdout.readline()
            with logstore.open(path, "r") as log, log.follow("earliest") as records:
                assert b"0" == next(records).value
                assert [] == records.batch(timeout=0.01)
                writer.kill()
                writer.wait()
                assert [] == records.batch(timeout=0.3)
                with logstore.open(path) as next_writer:
                    next_writer.append(b"1")
                    assert b"1" == next(records).value


def test_forked(log, records):
    """A child goes on by itself, and the parent, too."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if next(records).value == b"1" else 1)
        finally:
            os._exit(2)
    time.sleep(0.02)
    log.append(b"1")
    assert 0 == os.waitpid(pid, 0)[1]
    assert b"1" == next(records).value


def test_no_futex_no_tail(tmp_path):
    """A log without live offsets is looked at."""
    with open_log(tmp_path / "m-0", live_offsets=False) as log:
        log.append(b"0")
        with log.follow("earliest", timeout=0.05, spin=0.01) as records:
            assert [b"0"] == [each.value for each in records]
            assert not waits_in_c(records)


def test_spinning_before_anything_came(either):
    """The first record, too, is looked for without sleeping."""
    with either.follow("latest", timeout=0.1, spin=0.05) as records:
        assert [] == list(records)


class TestTheObject:
    """A ``TailReader`` by itself."""

    def test_wrong_arguments(self):
        """They are refused: addresses are what it believes."""
        with pytest.raises(ValueError, match="page"):
            TailReader(None, 0, 0, 0, -1, True, 0, 0, 0)
        with pytest.raises(TypeError, match="keyword"):
            TailReader(owner=None)

    def test_another_moment(self, log):
        """What has moved since it was decided to make one is found at the first step."""
        page = log.live_page
        tail = TailReader(page, page.address, page.change_count - 2, 1, 0, True, 0, 0, 0)
        assert tail.next(0, 0) is None
        with pytest.raises(TypeError, match="2 arguments"):
            tail.next(0)
        gc.collect()
        tail.stop()
        assert (0, 0, 0) == (tail.position, tail.next_offset, tail.base_offset_min)
