"""
A small life of a log, step by step, for crash tests: what is acknowledged when.

The same steps with the same clock always write the same bytes. So a run without a crash
(:func:`reference`) tells what a crashed one had acknowledged, to the byte, and
:func:`check_recovered` compares what was found after the crash with it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import tempfile
from dataclasses import dataclass, field
from typing import NamedTuple

from logstore.append_origin import AppendOrigin
from logstore.clock import ManualClock
from logstore.config import LogConfig
from logstore.control_record import ControlRecordType, EndTransactionMarker
from logstore.errors import LogStoreError
from logstore.files import REAL_FILES
from logstore.log import Log
from logstore.opening import open_log
from logstore.record import RecordBatch
from logstore.records_builder import encode_batch, end_transaction_marker
from logstore.scheduler import ManualScheduler

NOW_MS = 1_700_000_000_000
NO_SEQUENCE = -1
CONFIG = LogConfig.of(
    {
        "segment.bytes": 1200,
        "segment.index.bytes": 240,
        "index.interval.bytes": 100,
        "message.timestamp.after.max.ms": 3_600_000,
        "file.delete.delay.ms": 1000,
        "batch.bytes": 300,
        "transaction.partition.verification.enable": False,
    }
)


@contextlib.contextmanager
def directory_for_crashes(tmp_path_factory):
    """Give a directory in memory if there is one: crash tests sync all the time."""
    memory = "/dev/shm"
    if not os.access(memory, os.W_OK):
        yield tmp_path_factory.mktemp("crash")
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="logstore-crash-") as path:
        yield pathlib.Path(path)


# ---- opening -------------------------------------------------------------------------------------


@dataclass
class Session:
    """One log and what a test owns of it."""

    path: str
    files: object = REAL_FILES
    config: LogConfig = CONFIG
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_MS))
    log: Log | None = None
    scheduler: ManualScheduler | None = None

    def open(self) -> Log:
        """Open the log as ``logstore.open`` does, over these files."""
        self.scheduler = ManualScheduler(self.clock)
        self.log = open_log(
            self.path,
            config=self.config,
            files=self.files,
            clock=self.clock,
            scheduler=self.scheduler,
        )
        return self.log

    def drop(self) -> None:
        """Let go of the log as the end of a process does."""
        log, self.log = self.log, None
        if log is not None:
            with contextlib.suppress(LogStoreError):
                log.abandon()


# ---- what is in a log ----------------------------------------------------------------------------


class Batch(NamedTuple):
    """One batch of a log."""

    base_offset: int
    last_offset: int
    data: bytes


class State(NamedTuple):
    """What a log holds at one moment."""

    batches: tuple[Batch, ...]
    log_start_offset: int
    log_end_offset: int
    durable_offset: int

    @property
    def visible(self) -> tuple[Batch, ...]:
        """Batches that have an offset at or above the log start."""
        return tuple(each for each in self.batches if each.last_offset >= self.log_start_offset)


def batches_of(log) -> tuple[Batch, ...]:
    """Return every batch in the log's files, checked."""
    found = []
    for segment in log.segments:
        for header in segment.headers():
            data = segment.read_at(header.position, header.size_bytes)
            batch = RecordBatch(data)
            batch.ensure_valid()
            found.append(Batch(batch.base_offset, batch.last_offset, bytes(data)))
    return tuple(found)


def state_of(log) -> State:
    """Return what a log holds, and claims to be durable, now."""
    offsets = log.offsets
    return State(
        batches_of(log), offsets.log_start_offset, offsets.log_end_offset, offsets.recovery_point
    )


# ---- the workload --------------------------------------------------------------------------------


def transactional(log, producer_id, sequence, values):
    """Append records of a transaction."""
    log.append_batches(
        encode_batch(
            [(None, NOW_MS, None, value, ()) for value in values],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        ),
        leader_epoch=log.leader_epoch,
    )


def end_transaction(log, producer_id, *, commit):
    """Append the marker that ends a transaction."""
    kind = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
    log.append_as_leader(
        end_transaction_marker(
            EndTransactionMarker(kind, 0),
            timestamp=NOW_MS,
            producer_id=producer_id,
            producer_epoch=0,
        ),
        log.leader_epoch,
        AppendOrigin.COORDINATOR,
    )


def boundary_below(log, offset):
    """Return the base offset of the batch that holds ``offset - 1``, at least the log start."""
    below = [each.base_offset for each in batches_of(log) if each.last_offset < offset]
    return max(below, default=log.log_start_offset)


def _reopen(session):
    session.log.close()
    session.open()


def _values(name, count, size=20):
    return [f"{name}-{number}".encode().ljust(size, b".") for number in range(count)]


STEPS = [
    ("append", lambda s: s.log.append(b"first", key=b"k")),
    ("append", lambda s: s.log.append(b"second" * 10, timestamp=NOW_MS + 5)),
    ("extend", lambda s: s.log.extend(_values("a", 8), keys=_values("k", 8, 3))),
    ("append sync", lambda s: s.log.append(b"synced", sync=True)),
    ("extend zstd", lambda s: s.log.extend(_values("z", 12), compression="zstd")),
    ("append headers", lambda s: s.log.append(b"third", headers=[("h", b"1")])),
    ("flush", lambda s: s.log.flush()),
    ("transaction 1", lambda s: transactional(s.log, 1, 0, [b"t1-a", b"t1-b"])),
    ("transaction 2", lambda s: transactional(s.log, 2, 0, [b"t2-a"])),
    ("append", lambda s: s.log.append(b"between")),
    ("abort 1", lambda s: end_transaction(s.log, 1, commit=False)),
    ("extend", lambda s: s.log.extend(_values("b", 20))),
    ("transaction 1", lambda s: transactional(s.log, 1, 2, [b"t1-c"])),
    ("commit 2", lambda s: end_transaction(s.log, 2, commit=True)),
    ("extend", lambda s: s.log.extend(_values("c", 20))),
    ("roll", lambda s: s.log.roll()),
    ("append", lambda s: s.log.append(b"after the roll")),
    ("append", lambda s: s.log.append(b"after the roll, too", key=b"")),
    ("background", lambda s: s.scheduler.run_due()),
    ("abort 1", lambda s: end_transaction(s.log, 1, commit=False)),
    ("epoch", lambda s: s.log.assign_epoch_start_offset(3, s.log.log_end_offset)),
    ("extend lz4", lambda s: s.log.extend(_values("l", 30), compression="lz4")),
    ("extend", lambda s: s.log.extend(_values("d", 40))),
    ("truncate", lambda s: s.log.truncate_to(boundary_below(s.log, s.log.log_end_offset))),
    ("append", lambda s: s.log.append(b"in place of what was cut")),
    ("increment", lambda s: s.log.maybe_increment_log_start_offset(9)),
    ("flush", lambda s: s.log.flush()),
    ("extend", lambda s: s.log.extend(_values("e", 45))),
    ("increment", lambda s: s.log.maybe_increment_log_start_offset(40)),
    ("delete", lambda s: s.log.delete_old_segments()),
    ("background", lambda s: s.scheduler.advance_to(s.clock.milliseconds() + 2000)),
    ("transaction 2", lambda s: transactional(s.log, 2, 1, [b"t2-b"])),
    ("extend", lambda s: s.log.extend(_values("f", 60), sync=True)),
    ("extend", lambda s: s.log.extend(_values("g", 60))),
    ("truncate", lambda s: s.log.truncate_to(boundary_below(s.log, s.log.log_end_offset - 70))),
    ("extend", lambda s: s.log.extend(_values("h", 50))),
    ("abort 2", lambda s: end_transaction(s.log, 2, commit=False)),
    ("reopen", _reopen),
    ("append", lambda s: s.log.append(b"reopened", key=b"k")),
    ("extend", lambda s: s.log.extend(_values("i", 25), sync=True)),
    ("start anew", lambda s: s.log.truncate_fully_and_start_at(s.log.log_end_offset + 100)),
    ("append", lambda s: s.log.append(b"anew")),
    ("extend", lambda s: s.log.extend(_values("j", 60))),
    ("background", lambda s: s.scheduler.advance_to(s.clock.milliseconds() + 32_000)),
    ("append", lambda s: s.log.append(b"recovery point", sync=True)),
    ("extend", lambda s: s.log.extend(_values("l", 60), sync=True)),
    ("start below", lambda s: s.log.truncate_to(s.log.log_start_offset - 10)),
    ("append", lambda s: s.log.append(b"below", sync=True)),
    ("extend", lambda s: s.log.extend(_values("k", 30))),
    ("reopen", _reopen),
]
CUTS = ("truncate", "start anew", "start below")


def reference(path) -> list[State]:
    """Run without a crash; return what the log held before the first step and after each one."""
    session = Session(os.fspath(path))
    session.open()
    states = [state_of(session.log)]
    for _, act in STEPS:
        act(session)
        states.append(state_of(session.log))
        assert list(session.log.check()) == []
    session.log.close()
    return states


def run(session: Session) -> int | None:
    """Run until the crash; return how many steps were done, -1 if not even the first open."""
    done = -1
    try:
        session.open()
        done = 0
        for _, act in STEPS:
            act(session)
            if session.files.has_crashed:  # In the background.
                return done
            done += 1
    except LogStoreError:
        if not session.files.has_crashed:
            raise
        return done
    return None


# ---- what a crash may leave ----------------------------------------------------------------------


def problem_with(found: State, expected: State, bases, *, holes: bool) -> str | None:
    """
    Return why what was found is not what ``expected`` may become, None if it is.

    Args:
        found: The recovered log.
        expected: What had been written; below its durable offset nothing may be missing.
        bases: Base offsets of the recovered segments.
        holes: Whether the unflushed tail of a sealed segment may be missing before a later one.
    """
    if found.log_start_offset != expected.log_start_offset:
        return f"the log start is {found.log_start_offset}, not {expected.log_start_offset}"
    if found.log_end_offset > expected.log_end_offset:
        return f"the log end is {found.log_end_offset}, above {expected.log_end_offset}"
    if found.log_end_offset < expected.durable_offset:
        return f"the log end is {found.log_end_offset}, below {expected.durable_offset}"
    known = set(expected.visible)
    for each in found.visible:
        if each not in known:
            return f"the batch of {each[:2]} is not what was appended"
    offsets = [each.base_offset for each in found.visible]
    if offsets != sorted(set(offsets)):
        return f"the batches are out of order: {offsets}"
    present = set(found.visible)
    missing = [each for each in expected.visible if each not in present]
    for each in missing:
        if each.last_offset < expected.durable_offset:
            return f"the durable batch of {each[:2]} is missing"
    for each in missing:
        later = [other for other in found.visible if other.base_offset > each.base_offset]
        if later and not (holes and min(other.base_offset for other in later) in bases):
            return f"the batch of {each[:2]} is missing before {later[0][:2]}"
    return None


def problem_after(found: State, before: State, after: State, step: str, bases, *, power_loss: bool):
    """Return why what was found is neither before nor after ``step``, nor between; or None."""
    if not power_loss:
        before = before._replace(durable_offset=before.log_end_offset)
    candidates = [before, after._replace(durable_offset=before.durable_offset)]
    if step in CUTS:
        kept = min(before.durable_offset, after.log_end_offset)
        if step != "truncate":
            kept = 0
        candidates = [before._replace(durable_offset=kept), after]
        if not power_loss:
            candidates[1] = after._replace(durable_offset=after.log_end_offset)
    if step == "delete":
        candidates.append(
            after._replace(log_start_offset=before.log_start_offset, durable_offset=0)
        )
    problems = []
    for candidate in candidates:
        if candidate.log_start_offset > found.log_end_offset:
            candidate = candidate._replace(durable_offset=0)  # noqa: PLW2901
        problem = problem_with(found, candidate, bases, holes=power_loss)
        if problem is None:
            return None
        problems.append(problem)
    return f"during {step!r}: " + "; or ".join(problems)


# ---- transactions --------------------------------------------------------------------------------


class Producers(NamedTuple):
    """What batches say of their producers."""

    open: dict[int, int]
    last_sequences: dict[int, int]
    last_offsets: dict[int, int]  #: of the batches that these are of
    committed: list[int]


def producers_of(found: State) -> Producers:
    """Read transactions out of batches, record by record."""
    is_open: dict[int, int] = {}
    last_sequences: dict[int, int] = {}
    last_offsets: dict[int, int] = {}
    rows: list[list] = []
    for each in found.batches:
        batch = RecordBatch(each.data)
        producer_id = batch.producer_id
        if batch.is_control:
            is_abort = any(record.key[2:4] == b"\0\0" for record in batch.records())
            is_open.pop(producer_id, None)
            for row in rows:
                if row[0] == producer_id and row[2] is None:
                    row[2] = not is_abort
            continue
        if producer_id >= 0:
            last_sequences[producer_id] = batch.last_sequence
            last_offsets[producer_id] = each.last_offset
            is_open.setdefault(producer_id, each.base_offset)
        rows.extend(
            [producer_id, record.offset, None if producer_id >= 0 else True]
            for record in batch.records()
        )
    end = min(is_open.values(), default=found.log_end_offset)
    committed = [
        offset
        for _, offset, decided in rows
        if decided and found.log_start_offset <= offset < max(end, found.log_start_offset)
    ]
    return Producers(is_open, last_sequences, last_offsets, committed)


def check_producers(log) -> None:
    """Compare producer state and what a committed read sees with the batches themselves."""
    found = state_of(log)
    expected = producers_of(found)
    assert expected.committed == [record.offset for record in log.read()]
    unstable = min(expected.open.values(), default=None)
    if unstable is not None:
        unstable = max(unstable, found.log_start_offset)
    assert unstable == log.first_unstable_offset
    for producer_id, sequence in expected.last_sequences.items():
        entry = log.producer_state.last_entry(producer_id)
        if any(
            each.base_offset >= found.log_start_offset
            and RecordBatch(each.data).producer_id == producer_id
            for each in found.batches
        ):
            assert entry is not None
        if entry is not None:
            # Recovered from the log start on, a producer may be known by its marker alone.
            is_below = expected.last_offsets[producer_id] < found.log_start_offset
            assert entry.last_sequence in ((sequence, NO_SEQUENCE) if is_below else (sequence,))
            assert expected.open.get(producer_id) == entry.current_txn_first_offset


def check_sound(log, sealed_at: int | None) -> None:
    """
    Let ``Log.check()`` find nothing.

    Args:
        log: The log.
        sealed_at: The recovery point from which it was recovered, None if no power was lost. The
            segment that ends there was durable before it was sealed. If the power fails before the
            next flush, its indexes may be damaged: they are hints, and only cost time.
    """
    tolerated = [
        segment.log_path
        for segment, following in itertools.pairwise(log.segments)
        if following.base_offset == sealed_at
    ]
    problems = [
        problem
        for problem in log.check()
        if not any(problem.startswith(path) and "index: " in problem for path in tolerated)
    ]
    assert problems == [], problems


def check_life(session: Session, *, power_loss: bool = True) -> State:
    """
    Use a recovered log: it is sound, producers are known, it can be appended to and reopened.

    Returns what it held at first.
    """
    log = session.log
    found = state_of(log)
    sealed_at = found.durable_offset if power_loss else None
    check_sound(log, sealed_at)
    check_producers(log)
    offset = log.append(b"life goes on", key=b"after")
    assert found.log_end_offset == offset
    before_close = state_of(log)
    committed = [record.offset for record in log.read()]
    log.close()
    log = session.open()
    check_sound(log, sealed_at)
    check_producers(log)
    again = state_of(log)
    assert before_close.visible == again.visible
    assert before_close[1:3] == again[1:3]
    assert committed == [record.offset for record in log.read()]
    log.close()
    return found


def bases_of(log) -> list[int]:
    """Return the base offsets of the segments."""
    return [segment.base_offset for segment in log.segments]


# ---- truncations ---------------------------------------------------------------------------------

# What to do to the log of `to_truncate`, and the offset below which everything stays.
TRUNCATIONS = {
    "within a segment": (lambda log: log.truncate_to(67), 65),
    "over segments": (lambda log: log.truncate_to(25), 25),
    "at a segment": (lambda log: log.truncate_to(log.segments[2].base_offset), 0),
    "below the log": (lambda log: log.truncate_to(5), 0),
    "fully": (lambda log: log.truncate_fully_and_start_at(500), 0),
    "fully, lower": (lambda log: log.truncate_fully_and_start_at(15), 0),
}


def to_truncate(path, files):
    """Return a session with a log of several segments, partly flushed."""
    session = Session(os.fspath(path), files)
    log = session.open()
    log.truncate_fully_and_start_at(10)
    for first in range(10, 70, 5):
        log.extend([b"%d" % number for number in range(first, first + 5)])
        if first % 3 == 1:
            log.roll()
    log.append(b"70")
    log.flush(50)
    return session
