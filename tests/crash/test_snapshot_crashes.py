"""
The power fails, or the process is killed, while a snapshot is made or restored.

Whenever it happens: the store has all that was durable, what is at the snapshot's place is whole or
not there, an unfinished one is taken away by the next, and a snapshot that was finished before is
as it was.

By default a sample of the moments; all of them with LOGSTORE_HYPOTHESIS=nightly.
"""

from __future__ import annotations

import contextlib
import shutil

import pytest
from sampling import IS_NIGHTLY

from logstore.clock import ManualClock
from logstore.errors import LogStoreError
from logstore.files import REAL_FILES
from logstore.restoring import restore_store
from logstore.scheduler import ManualScheduler
from logstore.simulated_files import SimulatedFiles
from logstore.store import open_log_store

MOMENTS = None if IS_NIGHTLY else 12
CONFIG = {
    "segment.bytes": 1000,
    "segment.index.bytes": 240,
    "transaction.state.log.num.partitions": 1,
    "offsets.topic.num.partitions": 1,
}


def opened(path, files, clock=None):
    clock = clock or ManualClock()
    return open_log_store(
        path,
        config=CONFIG,
        files=files,
        clock=clock,
        scheduler=ManualScheduler(clock),
        live_offsets=False,
    )


@pytest.fixture(scope="module")
def template(directory):
    """A store with segments, transactions and positions, and a snapshot of it."""
    path = directory / "template"
    with opened(path / "store", REAL_FILES) as store:
        store.create_topic("a", partitions=2)
        for number in range(40):
            store["a", number % 2].append(b"%d" % number * 20)
        with store.transaction("t") as transaction:
            transaction.append(("a", 0), b"mine")
            transaction.append(("a", 1), b"mine")
            transaction.commit_positions("g", {("a", 0): 3})
        store.snapshot(path / "before")
    return path


def seen(path):
    """Return what a reader sees, after whatever an open for writing puts in order."""
    with opened(path, REAL_FILES) as store:
        assert [] == list(store.errors)
        assert [] == list(store.check())
        found = {each: list(store["a", each].read_values()) for each in (0, 1)}
        return found, dict(store.positions("g").items())


def write_and_snapshot(path, files):
    """Append, snapshot in the middle of a transaction, go on; return what was durable then."""
    with opened(path / "store", files) as store:
        store["a", 0].append(b"flushed", sync=True)
        transaction = store.transaction("t")
        transaction.append(("a", 0), b"open")
        transaction.flush()
        store.snapshot(path / "copy")
        files.is_whole = True
        log = store["a", 1]
        log.truncate_to(log.segments[1].base_offset)
        log.append(b"instead", sync=True)
        transaction.commit()


def restore_to_time(path, files):
    restore_store(path / "before", path / "copy", to_time=1_700_000_000_000 + 10**6, files=files)
    files.is_whole = True


class Files(SimulatedFiles):
    """A disk whose power fails; whether the snapshot was there by then."""

    is_whole = False


WORK = {"snapshot": write_and_snapshot, "restore": restore_to_time}


def run(work, path, files, *, power_loss):
    with contextlib.suppress(LogStoreError):
        WORK[work](path, files)
    files.crash(power_loss=power_loss)


@pytest.mark.parametrize("power_loss", [True, False], ids=["power", "kill"])
@pytest.mark.parametrize("work", WORK)
def test_whole_or_nothing(directory, template, work, power_loss):
    """Whatever the moment."""
    path = directory / "count"
    shutil.copytree(template, path)
    files = Files()
    run(work, path, files, power_loss=power_loss)
    assert files.is_whole
    wanted, positions = seen(path / "copy")
    before = seen(path / "before")
    shutil.rmtree(path)
    step = 1 if MOMENTS is None else max(1, files.operation_count // MOMENTS)
    states = set()
    for crash_at in range(1 + power_loss, files.operation_count, step):
        path = directory / f"run-{work}-{power_loss}-{crash_at}"
        shutil.copytree(template, path)
        files = Files(crash_at, crash_at)
        run(work, path, files, power_loss=power_loss)
        where = f"crash in operation {crash_at}"
        is_there = (path / "copy").exists()
        states.add((is_there, (path / "copy.incomplete").exists()))
        assert is_there or not files.is_whole, where
        if is_there:
            assert (wanted, positions) == seen(path / "copy"), where
        found = seen(path / "store")[0]
        assert all(value in found[0] for value in (b"%d" % n * 20 for n in range(0, 40, 2))), where
        assert before == seen(path / "before"), where
        if not is_there:  # The next one takes away what is left, and is made.
            with opened(path / "store", REAL_FILES) as store:
                store.snapshot(path / "copy")
            assert seen(path / "store") == seen(path / "copy"), where
        assert not (path / "copy.incomplete").exists(), where
        shutil.rmtree(path)
    assert (False, True) in states
    assert not any(is_there and is_left for is_there, is_left in states)


def test_what_is_linked_was_flushed(directory, template):
    """A power loss right after the snapshot takes nothing of it."""
    path = directory / "linked"
    shutil.copytree(template, path)
    files = SimulatedFiles(7)
    clock = ManualClock()
    store = opened(path / "store", files, clock)
    for number in range(60):
        store["a", 0].append(b"%d" % number * 20)
    store.snapshot(path / "copy")
    wanted = list(store["a", 0].read_values())
    files.crash()
    store.abandon()
    assert wanted == seen(path / "copy")[0][0]
