"""
A writer that appends, rolls, truncates, deletes and is killed, under eight readers that are, too.

Every record says its offset and its *life*: a number that rises with each truncation and each new
writer. A journal beside the log has, for each life, the offset that it began at, written once that
was done. From that a reader can tell for each record that it is given

* that it is the one of its offset, whole;
* that it follows the one before it: no offset is skipped or repeated, and none before it was
  replaced meanwhile without an error;
* that it was not rolled back before the read began.

Bound: ``LOGSTORE_STRESS_SECONDS`` seconds, 6 by default. The seed is printed.
"""

from __future__ import annotations

import os
import random
import signal
import struct
import time
import traceback

import pytest
from patience import PATIENCE_SECONDS

import logstore

SECONDS = float(os.environ.get("LOGSTORE_STRESS_SECONDS", "6"))
SEED = int(os.environ.get("LOGSTORE_STRESS_SEED", str(random.randrange(1 << 30))))
READERS = 8
LIFE = struct.Struct("=qq")  # Number, first offset.
CONFIG = {
    "segment.bytes": 3000,
    "segment.index.bytes": 240,
    "index.interval.bytes": 200,
    "file.delete.delay.ms": 0,
}

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


class Journal:
    """The lives that have begun, and what was acknowledged; shared by all processes."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self.lives = []

    def acknowledge(self, end):
        os.pwrite(self.fd, end.to_bytes(8, "little"), 0)

    def acknowledged(self):
        return int.from_bytes(os.pread(self.fd, 8, 0), "little")

    def begin(self, life, first_offset):
        os.pwrite(self.fd, LIFE.pack(life, first_offset), 8 + life * LIFE.size)

    def look(self):
        """Return the lives so far: number -> first offset."""
        data = os.pread(self.fd, 1 << 22, 8)
        data = data[: len(data) - len(data) % LIFE.size]
        return {life: first for life, first in LIFE.iter_unpack(data) if life}


def write(path, journal, seed):
    """Append for ever, and now and then roll, truncate, delete, close."""
    chance = random.Random(seed)
    life = max(journal.look(), default=0)
    while True:
        with logstore.open(path, config=CONFIG, lock_timeout=PATIENCE_SECONDS) as log:
            end = log.log_end_offset
            assert end >= journal.acknowledged(), (end, journal.acknowledged())
            life += 1
            journal.begin(life, end)
            for _ in range(chance.randrange(300, 3000)):
                what = chance.random()
                if what < 0.9:
                    log.append(b"%d %d %s" % (log.log_end_offset, life, b"x" * (end % 50)))
                elif what < 0.985:
                    count = chance.randrange(1, 40)
                    end = log.log_end_offset
                    log.extend([b"%d %d" % (at, life) for at in range(end, end + count)])
                elif what < 0.988:
                    end = log.log_end_offset
                    target = max(log.log_start_offset, end - chance.randrange(50))
                    target = log.offset_metadata(target).message_offset  # Of a whole batch.
                    journal.acknowledge(min(target, log.log_start_offset))
                    log.truncate_to(target)
                    life += 1
                    journal.begin(life, target)
                elif what < 0.992:
                    log.roll()
                elif what < 0.996:
                    start = max(log.log_start_offset, log.log_end_offset - 400)
                    journal.acknowledge(log.log_end_offset)
                    log.maybe_increment_log_start_offset(start)
                    log.delete_old_segments()
                elif what < 0.998:
                    log.flush()
                else:
                    time.sleep(0.002)
                journal.acknowledge(log.log_end_offset)


class Checker:
    """Looks at the records that one reader is given, one read after the other."""

    def __init__(self, journal):
        self.journal = journal
        self.before = None
        self.known = {}

    def reading(self):
        """Note what has happened before a read begins."""
        self.known = self.journal.look()

    def jump(self):
        """Let the next record be any."""
        self.before = None

    def check(self, records):
        for record in records:
            words = record.value.split(b" ")
            offset, life = int(words[0]), int(words[1])
            assert offset == record.offset, (offset, record)
            for later, first in self.known.items():
                rolled_back = later > life and first <= offset
                assert not rolled_back, f"{record}: life {later} began at {first}"
            if self.before is not None:
                last_offset, last_life = self.before
                assert offset == last_offset + 1, (self.before, record)
                assert life >= last_life, (self.before, record)
                for later, first in self.journal.look().items():
                    hidden = last_life < later <= life and first <= last_offset
                    assert not hidden, f"{self.before} -> {record}: life {later} at {first}"
            self.before = (offset, life)


def read(path, journal, seed):
    """Follow, read ranges and single records for ever; check all of it."""
    chance = random.Random(seed)
    checker = Checker(journal)
    with logstore.open(path, "r") as log:
        while True:
            what = chance.random()
            try:
                if what < 0.5:
                    follow(log, checker, chance)
                elif what < 0.8:
                    checker.jump()
                    checker.reading()
                    start = chance.choice([log.log_start_offset, max(0, log.log_end_offset - 50)])
                    records = log.read(start, limit=chance.randrange(1, 300))
                    checker.check(records)
                else:
                    checker.jump()
                    checker.reading()
                    offsets = log.offsets
                    if offsets.log_end_offset > offsets.log_start_offset:
                        offset = chance.randrange(offsets.log_start_offset, offsets.log_end_offset)
                        checker.check([log[offset]])
            except logstore.OffsetOutOfRangeError as error:
                assert error.log_start_offset <= error.log_end_offset, error
            except logstore.OffsetGapError:
                pass  # Truncated between the look and the read.


def follow(log, checker, chance):
    checker.jump()
    start = chance.choice(["earliest", "latest"])
    with log.follow(start, timeout=0.2) as records:
        for _ in range(chance.randrange(1, 60)):
            checker.reading()
            batch = records.batch()
            checker.check(batch)
            if not batch:
                return


class Child:
    """A process that works until it is killed; what it finds wrong is in a file."""

    def __init__(self, work, path, journal, errors):
        self.start = lambda: fork(work, path, journal, errors)
        self.pid = self.start()

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        return status

    def restart(self):
        status = self.kill()
        self.pid = self.start()
        return status


def fork(work, path, journal, errors):
    seed = random.randrange(1 << 30)
    pid = os.fork()
    if pid == 0:
        try:
            work(path, journal, seed)
        except BaseException:  # noqa: BLE001
            with open(errors, "a") as file:
                file.write(f"{work.__name__} {os.getpid()}:\n{traceback.format_exc()}\n")
        finally:
            os._exit(1)
    return pid


@pytest.mark.timeout(SECONDS + 5 * PATIENCE_SECONDS)
def test_readers_beside_a_writer_that_changes_everything(tmp_path):
    """No torn, misplaced, rolled back, repeated or skipped record; no crash; nothing lost."""
    print(f"LOGSTORE_STRESS_SEED={SEED}")
    random.seed(SEED)
    path, errors = str(tmp_path / "orders-0"), tmp_path / "errors"
    journal = Journal(tmp_path / "journal")
    with logstore.open(path, config=CONFIG) as log:
        log.append(b"0 0")
    writer = Child(write, path, journal, errors)
    readers = [Child(read, path, journal, errors) for _ in range(READERS)]
    statuses = []
    try:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and not errors.exists():
            time.sleep(random.uniform(0.05, 0.4))
            child = writer if random.random() < 0.5 else random.choice(readers)
            statuses.append(child.restart())
    finally:
        statuses += [child.kill() for child in (writer, *readers)]
    assert not errors.exists(), errors.read_text()
    assert {signal.SIGKILL} == set(statuses)  # None ended by itself, or of something else.

    checker = Checker(journal)
    checker.reading()
    with logstore.open(path, config=CONFIG) as log:
        assert log.log_end_offset >= journal.acknowledged()
        checker.check(log.read())
        assert [] == list(log.check())
