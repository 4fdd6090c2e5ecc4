"""
The power fails in the middle of a log's life, and in the middle of its recovery.

By default a sample of the moments; all of them with LOGSTORE_HYPOTHESIS=nightly.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import crash_workload as workload
import pytest
from sampling import IS_NIGHTLY

from logstore.errors import PoisonedError, SimulatedCrashError
from logstore.simulated_files import SimulatedFiles

SEEDS = 12 if IS_NIGHTLY else 1
MOMENTS = None if IS_NIGHTLY else 25
RECOVERY_MOMENTS = 40 if IS_NIGHTLY else 2


@pytest.fixture(scope="module")
def states(directory):
    """What the log holds before the first step and after each."""
    return workload.reference(directory / "reference" / "log-0")


@pytest.fixture(scope="module")
def operations(directory):
    """How many moments there are."""
    files = SimulatedFiles()
    session = workload.Session(os.fspath(directory / "count" / "log-0"), files)
    (directory / "count").mkdir()
    assert workload.run(session) is None
    session.drop()
    return files.operation_count


def moments(operations, seed):
    """Return the operations to crash at: all, or a sample that differs from seed to seed."""
    step = 1 if MOMENTS is None else max(1, operations // MOMENTS)
    return range(1 + seed * 7 % step, operations + 1, step)


def crashed(directory, name, seed, crash_at, *, power_loss=True):
    """Return the path of a log after a crash, and how many steps it had done."""
    path = directory / name
    path.mkdir()
    files = SimulatedFiles(seed, crash_at)
    session = workload.Session(os.fspath(path / "log-0"), files)
    done = workload.run(session)
    files.crash(power_loss=power_loss)
    session.drop()
    return session, done


def check(session, states, done, *, power_loss=True):
    """Open what is left with real files and hold it against what was acknowledged."""
    recovered = workload.Session(session.path, clock=session.clock)
    log = recovered.open()
    found = workload.state_of(log)
    before = states[max(done, 0)]
    after, step = (states[done + 1], workload.STEPS[done][0]) if done >= 0 else (before, "open")
    bases = workload.bases_of(log)
    problem = workload.problem_after(found, before, after, step, bases, power_loss=power_loss)
    assert problem is None, problem
    workload.check_life(recovered, power_loss=power_loss)


def test_power_loss(directory, states, operations):
    """Whenever the power fails: what was flushed is there, and nothing that was not appended."""
    for seed in range(SEEDS):
        for crash_at in moments(operations, seed):
            name = f"{seed}-{crash_at}"
            session, done = crashed(directory, name, seed * 10_000 + crash_at, crash_at)
            if done is None:
                continue
            try:
                check(session, states, done)
            except BaseException as error:
                error.add_note(f"seed {seed}, crash in operation {crash_at}, step {done}")
                raise
            shutil.rmtree(directory / name)


def test_power_loss_during_recovery(directory, states, operations):
    """A recovery that is interrupted loses nothing either: the next one ends it."""
    sample = moments(operations, 3)
    for crash_at in sample[:: 1 if IS_NIGHTLY else 4]:
        for moment in range(RECOVERY_MOMENTS):
            name = f"again-{crash_at}-{moment}"
            seed = 77_000 + crash_at * 100 + moment
            session, done = crashed(directory, name, seed, crash_at)
            if done is None:
                continue
            # Sampled: the recovery has a few dozen operations.
            again_at = 1 + moment if IS_NIGHTLY else 1 + (crash_at + moment * 9) % 30
            again = workload.Session(
                session.path, SimulatedFiles(seed, again_at), clock=session.clock
            )
            try:
                with contextlib.suppress(SimulatedCrashError):
                    again.open()
                again.files.crash()
                again.drop()
                check(session, states, done)
            except BaseException as error:
                error.add_note(f"crash in operation {crash_at}, step {done}, then in {again_at}")
                raise
            shutil.rmtree(directory / name)


@pytest.mark.parametrize("name", workload.TRUNCATIONS)
def test_power_loss_during_truncation(directory, name):
    """The log is as before or shorter, and what is below the target and flushed is there."""
    truncate, kept = workload.TRUNCATIONS[name]
    path = directory / f"truncated {name}"
    path.mkdir()
    files = SimulatedFiles()
    session = workload.to_truncate(path / "count-0", files)
    begun = files.operation_count
    truncate(session.log)
    operations = files.operation_count - begun
    session.drop()
    for seed in range(SEEDS):
        for crash_in in range(1 + seed % 3, operations + 1, 1 if IS_NIGHTLY else 3):
            files = SimulatedFiles(seed * 10_000 + crash_in)
            session = workload.to_truncate(path / f"{seed}-{crash_in}", files)
            before = workload.state_of(session.log)
            files.crash_in(crash_in)
            with contextlib.suppress(SimulatedCrashError):
                truncate(session.log)
            files.crash()
            session.drop()
            recovered = workload.Session(session.path, clock=session.clock)
            log = recovered.open()
            found = workload.batches_of(log)
            below = min(kept, before.durable_offset)
            assert before.batches[: len(found)] == found
            assert all(each in found for each in before.batches if each.last_offset < below)
            assert list(log.check()) == []
            assert log.append(b"on") == log.log_end_offset - 1
            recovered.drop()


def test_power_loss_after_sealing_a_flushed_segment(directory):
    """Everything was flushed when a segment was sealed: its indexes are right without recovery."""
    for seed in range(5 * SEEDS):
        files = SimulatedFiles(seed)
        (directory / f"sealed-{seed}").mkdir()
        session = workload.Session(os.fspath(directory / f"sealed-{seed}" / "log-0"), files)
        log = session.open()
        for number in range(13):
            session.clock.advance(60_000)  # So that each flush writes the recovery point.
            log.append(b"%d" % number, timestamp=workload.NOW_MS + number, sync=True)
        log.roll()
        sealed = log.segments[0]
        paths = [Path(index.path) for index in (sealed.offset_index, sealed.time_index)]
        contents = [path.read_bytes() for path in paths]
        assert all(contents)
        following = log.active_segment.log_path
        files.crash()
        session.drop()
        # Where the following segment is not there, this one is recovered.
        if os.path.exists(following):
            assert contents == [path.read_bytes() for path in paths], f"seed {seed}"
        recovered = workload.Session(session.path, clock=session.clock)
        log = recovered.open()
        for number in range(13):
            assert number == log.fetch_offset_by_timestamp(workload.NOW_MS + number).offset
        assert list(log.check()) == []
        recovered.drop()


def synced(session, flushed):
    """Do what is flushed at once, with little between the records; note what was acknowledged."""
    log = session.open()
    written = []
    for part in range(4):
        for number in range(4):
            value = b"%d.%d" % (part, number)
            log.append(value, sync=True)
            flushed += [*written, value]
            written = []
            log.extend([value] * 3, sync=True)
            flushed += [value] * 3
        if part == 0:
            written = [
                b"flushed by the roll, or with what follows",
                b"in a file without a name yet",
            ]
            log.append(written[0])
            log.roll()
            log.append(written[1])
            session.scheduler.advance_to(session.clock.milliseconds())
        elif part == 1:
            del flushed[-3:]
            log.truncate_to(len(flushed))
        elif part == 2:
            session.clock.advance(6000)  # The recovery point is to be written.


def test_power_loss_beside_flushes_of_one_file(directory):
    """Each record that was acknowledged is there, whatever else its flush could leave out."""
    files = SimulatedFiles()
    (directory / "one-file").mkdir()
    session = workload.Session(os.fspath(directory / "one-file" / "log-0"), files)
    synced(session, [])
    session.drop()
    for seed in range(SEEDS):
        for crash_at in moments(files.operation_count, seed):
            name = f"one-file-{seed}-{crash_at}"
            (directory / name).mkdir()
            dying = SimulatedFiles(seed, crash_at)
            session = workload.Session(os.fspath(directory / name / "log-0"), dying)
            flushed = []
            # Poisoned: the end came in the background.
            with contextlib.suppress(SimulatedCrashError, PoisonedError):
                synced(session, flushed)
            dying.crash()
            session.drop()
            recovered = workload.Session(session.path, clock=session.clock)
            log = recovered.open()
            found = [record.value for record in log.read()]
            assert flushed == found[: len(flushed)], name
            assert [] == list(log.check())
            recovered.drop()
            shutil.rmtree(directory / name)
