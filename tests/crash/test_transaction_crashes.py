"""
The power fails, or the process is killed, in the middle of transactions over three partitions.

Whenever it happens, and if it happens again while the store is opened: every transaction is seen
whole or not at all, in all partitions and in the group's position; what was acknowledged is seen;
what was aborted is not; nothing stays open; no producer id comes twice.

By default a sample of the moments; all of them with LOGSTORE_HYPOTHESIS=nightly.
"""

from __future__ import annotations

import contextlib
import os
import shutil

import pytest
from plain_store import PlainStore
from sampling import IS_NIGHTLY

from logstore.clock import ManualClock
from logstore.errors import LogStoreError, ProducerFencedError
from logstore.files import REAL_FILES
from logstore.scheduler import ManualScheduler
from logstore.simulated_files import SimulatedFiles
from logstore.store import open_log_store

SEEDS = 6 if IS_NIGHTLY else 1
MOMENTS = None if IS_NIGHTLY else 16
FEW = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
PLACES = (("a", 0), ("a", 1), ("b", 0))


@pytest.fixture(scope="module", params=["plain", "store"])
def kind(request):
    """Logs in directories, or the store itself."""
    return request.param


@pytest.fixture(scope="module")
def template(directory, kind):
    """A store whose topics are there: its making is no part of these tests."""
    path = directory / f"template-{kind}"
    with opened(kind, path, REAL_FILES, ManualClock()) as store:
        store.create_topic("a", partitions=2)
        store.create_topic("b", partitions=1)
    return path


def opened(kind, path, files, clock, scheduler=None):
    """Return a store on a directory."""
    scheduler = scheduler or ManualScheduler(clock)
    if kind == "plain":
        return PlainStore(path, files=files, clock=clock, scheduler=scheduler, partitions=1)
    return open_log_store(
        path, config=FEW, files=files, clock=clock, scheduler=scheduler, live_offsets=False
    )


def logs_of(store):
    """Return the logs that are open."""
    return list(store.logs.values() if isinstance(store, PlainStore) else store.logs())


def values(store, place):
    """Return what a reader of committed records sees."""
    return {int(value) for value in store[place].read_values()}


class Run:
    """What happened to the transactions of one run: numbers by fate."""

    def __init__(self):
        self.committed = set()
        self.aborted = set()
        self.producer_ids = set()

    def go(self, store, scheduler):
        """Commit, abort, fence, time out; raise at the crash."""
        for number in (1, 2, 3):
            self.write(store, number, "t").commit()
            self.committed.add(number)
        self.abort(self.write(store, 4, "t"), 4)
        interleaved = self.write(store, 5, "u")
        self.write(store, 6, "t").commit()
        self.committed.add(6)
        fenced = interleaved
        with contextlib.suppress(ProducerFencedError):
            self.write(store, 7, "u").commit()
            self.committed.add(7)
            fenced.commit()
        self.aborted.add(5)
        late = self.write(store, 8, "v")
        store.clock.advance(100_000)
        scheduler.run_due()
        with contextlib.suppress(ProducerFencedError):
            late.commit()
        self.aborted.add(8)
        self.write(store, 9, "t").commit()
        self.committed.add(9)

    def write(self, store, number, name):
        transaction = store.transaction(name, timeout_ms=60_000)
        self.producer_ids.add(transaction.producer.producer_id)
        for place in PLACES:
            transaction.append(place, b"%d" % number)
            if number % 2:
                transaction.flush()
        transaction.commit_positions(f"g{number}", {("a", 0): number})
        transaction.flush()
        return transaction

    def abort(self, transaction, number):
        self.aborted.add(number)  # From here on it cannot be committed.
        transaction.abort()


def open_and_crash(kind, path, files, clock, *, power_loss):
    """Run everything up to the crash, at the latest to the end; return what was acknowledged."""
    run = Run()
    store = None
    scheduler = ManualScheduler(clock)
    with contextlib.suppress(LogStoreError):
        store = opened(kind, path, files, clock, scheduler)
        run.go(store, scheduler)
        store.close()
    files.crash(power_loss=power_loss)
    if store is not None:
        store.abandon()
    return run


def problem_with(kind, path, clock, run):
    """Open what is left with real files; return what is wrong, None if nothing is."""
    with opened(kind, path, REAL_FILES, clock) as store:
        if store.errors:
            return f"it reported {store.errors}"
        seen = [values(store, place) for place in PLACES]
        moved = {int(group[1:]) for group in store.groups() if store.positions(group).items()}
        if not all(found == seen[0] for found in [*seen, moved]):
            return f"partitions show {seen}, positions {moved}"
        if not run.committed <= seen[0]:
            return f"{run.committed - seen[0]} was acknowledged, and is not seen"
        if run.aborted & seen[0]:
            return f"{run.aborted & seen[0]} was aborted, and is seen"
        for log in logs_of(store):
            if log.last_stable_offset != log.log_end_offset:
                return f"{log.directory} has an open transaction"
        if store.producer_ids.generate() in run.producer_ids:
            return "a producer id came twice"
        with store.transaction("t") as transaction:
            for place in PLACES:
                transaction.append(place, b"99")
        if not all(99 in values(store, place) for place in PLACES):
            return "the next transaction is not seen"
    return None


@pytest.fixture(scope="module")
def operations(directory, kind, template):
    """How many moments there are."""
    path = directory / f"count-{kind}"
    shutil.copytree(template, path)
    files = SimulatedFiles()
    run = open_and_crash(kind, path, files, ManualClock(), power_loss=True)
    assert {1, 2, 3, 6, 7, 9} == run.committed
    return files.operation_count


def moments(operations, seed):
    """Return the operations to crash at: all, or a sample that differs from seed to seed."""
    step = 1 if MOMENTS is None else max(1, operations // MOMENTS)
    return range(1 + seed * 7 % step, operations + 1, step)


@pytest.mark.parametrize("power_loss", [True, False], ids=["power", "kill"])
def test_all_or_nothing(directory, kind, template, operations, power_loss):
    """Whatever the moment."""
    for seed in range(SEEDS):
        for crash_at in moments(operations, seed + power_loss):
            path = directory / f"run-{kind}-{power_loss}-{seed}-{crash_at}"
            shutil.copytree(template, path)
            clock = ManualClock()
            files = SimulatedFiles(seed * 10_000 + crash_at, crash_at)
            run = open_and_crash(kind, path, files, clock, power_loss=power_loss)
            problem = problem_with(kind, path, clock, run)
            assert problem is None, f"crash in operation {crash_at}, seed {seed}: {problem}"
            shutil.rmtree(path)


def test_crash_while_opening(directory, kind, template, operations):
    """The load that ends what a crash left is interrupted too; the next one goes on."""
    for crash_at in moments(operations, 3)[:: 1 if IS_NIGHTLY else 4]:
        for again_at in range(1, 120, 1 if IS_NIGHTLY else 43):
            path = directory / f"again-{kind}-{crash_at}-{again_at}"
            shutil.copytree(template, path)
            clock = ManualClock()
            run = open_and_crash(
                kind, path, SimulatedFiles(crash_at, crash_at), clock, power_loss=True
            )
            again = SimulatedFiles(again_at, again_at)
            store = None
            with contextlib.suppress(LogStoreError):
                store = opened(kind, path, again, clock)
            again.crash()
            if store is not None:
                store.abandon()
            problem = problem_with(kind, path, clock, run)
            assert problem is None, f"crashes in operations {crash_at}, {again_at}: {problem}"
            shutil.rmtree(path)


def test_size_of_the_sample(operations):
    """The run has moments enough to be worth its name."""
    assert operations > 200
    assert os.environ.get("LOGSTORE_HYPOTHESIS") != "nightly" or MOMENTS is None
