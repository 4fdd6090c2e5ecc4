"""
The power fails, or the process is killed, in the middle of commits of two sinks into two topics.

Whenever it happens, and if it happens again while the store is opened: a version is noted if and
only if its records are seen, all of them; what was acknowledged is seen; and after what was not
acknowledged is committed again, as Spark does it, with other files, each record is there once.

By default a sample of the moments; all of them with LOGSTORE_HYPOTHESIS=nightly.
"""

from __future__ import annotations

import contextlib
import shutil

import pytest
from sampling import IS_NIGHTLY
from staged_records import stage, staged

from logstore.clock import ManualClock
from logstore.errors import LogStoreError, StagedBatchesError
from logstore.files import REAL_FILES
from logstore.scheduler import ManualScheduler
from logstore.simulated_files import SimulatedFiles
from logstore.store import open_log_store

SEEDS = 4 if IS_NIGHTLY else 1
MOMENTS = None if IS_NIGHTLY else 24
FEW = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
PLACES = (("a", 0), ("a", 1), ("b", 0))
VERSIONS = [(sink, version) for version in range(3) for sink in ("q", "r")]


@pytest.fixture(scope="module")
def template(directory):
    """A store whose topics are there, those of a first commit too: their making is no part."""
    path = directory / "template"
    with opened(path, REAL_FILES) as store:
        store.create_topic("a", partitions=2)
        store.create_topic("b")
        commit(store, "first", 0)
    return path


def opened(path, files):
    """Return the store, as a process that comes for commits opens it."""
    clock = ManualClock()
    return open_log_store(
        path,
        config=FEW,
        files=files,
        clock=clock,
        scheduler=ManualScheduler(clock),
        live_offsets=False,
        lazy=True,
    )


def commit(store, sink, version):
    """Stage by two tasks, one of them twice, and commit."""
    text = f"{sink}{version}".encode()
    lost = staged(store, sink, version, {PLACES[0]: [b"lost"]}, task=1, attempt=0)
    files = [
        staged(store, sink, version, {place: [text + b"-0"] for place in PLACES}),
        staged(
            store, sink, version, {place: [text + b"-1"] for place in PLACES}, task=1, attempt=1
        ),
    ]
    del lost
    return store.commit_staged(sink, version, files, frees_staged=sink == "q")


def run(path, files):
    """Commit everything up to the crash, at the latest to the end; return what was acknowledged."""
    acknowledged = []
    store = None
    with contextlib.suppress(LogStoreError):
        store = opened(path, files)
        for sink, version in VERSIONS:
            commit(store, sink, version)
            acknowledged.append((sink, version))
            if (sink, version) == ("q", 1):  # Another process comes for the rest.
                store.close()
                store = opened(path, files)
        store.close()
    return acknowledged, store


def problem_with(path, acknowledged):
    """Open what is left with real files; return what is wrong, None if nothing is."""
    with opened(path, REAL_FILES) as store:
        seen = [list(store[place].read_values()) for place in PLACES]
        if not all(found == seen[0] for found in seen):
            return f"partitions show {seen}"
        noted = {(each.sink_id, each.topic): each.version for each in store.sinks()}
        for sink in ("q", "r"):
            there = [v for s, v in VERSIONS if s == sink and f"{s}{v}-0".encode() in seen[0]]
            last = max(there, default=None)
            if any(noted.get((sink, topic)) != last for topic in ("a", "b")):
                return f"{sink} has noted {noted}, and {there} is seen"
            if not {v for s, v in acknowledged if s == sink} <= set(there):
                return f"{acknowledged} was acknowledged, and {there} is seen"
        # The other sink may have been killed behind its last commit, before it took note itself.
        for sink, version in VERSIONS[max(0, len(acknowledged) - 1) :]:
            commit(store, sink, version)
        expected = [b"first0-0", b"first0-1"]
        for sink, version in VERSIONS:
            expected += [f"{sink}{version}-{task}".encode() for task in (0, 1)]
        found = list(store["a", 0].read_values())
        if found != expected:
            return f"{found} after all was committed again"
        for sink in ("q", "r"):  # The power may have brought back what was deleted.
            commit(store, sink, 3)
        names = store.files.listdir(store.paths[0])
        left = [name.rpartition(".")[0] for name in names if name.startswith(".logstore")]
        # The attempts that were lost of each sink's last version: another write may be at it.
        if left != [f".logstore-staged-{last}.1-0" for last in ("first.0", "q.3", "r.3")]:
            return f"{left} were left"
        if store.errors:
            return f"it reported {store.errors}"
    return None


@pytest.fixture(scope="module")
def operations(directory, template):
    """How many moments there are."""
    path = directory / "count"
    shutil.copytree(template, path)
    files = SimulatedFiles()
    acknowledged, _ = run(path, files)
    assert VERSIONS == acknowledged
    assert files.operation_count > 200
    return files.operation_count


def moments(operations, seed):
    """Return the operations to crash at: all, or a sample that differs from seed to seed."""
    step = 1 if MOMENTS is None else max(1, operations // MOMENTS)
    return range(1 + seed * 7 % step, operations + 1, step)


@pytest.mark.parametrize("power_loss", [True, False], ids=["power", "kill"])
def test_each_record_once(directory, template, operations, power_loss):
    """Whatever the moment."""
    for seed in range(SEEDS):
        for crash_at in moments(operations, seed + power_loss):
            path = directory / f"run-{power_loss}-{seed}-{crash_at}"
            shutil.copytree(template, path)
            files = SimulatedFiles(seed * 10_000 + crash_at, crash_at)
            acknowledged, store = run(path, files)
            files.crash(power_loss=power_loss)
            if store is not None:
                store.abandon()
            problem = problem_with(path, acknowledged)
            assert problem is None, f"crash in operation {crash_at}, seed {seed}: {problem}"
            shutil.rmtree(path)


def test_crash_while_opening(directory, template, operations):
    """What ends a commit that a crash has left half done is interrupted too."""
    for crash_at in moments(operations, 3)[:: 1 if IS_NIGHTLY else 4]:
        for again_at in range(1, 100, 1 if IS_NIGHTLY else 37):
            path = directory / f"again-{crash_at}-{again_at}"
            shutil.copytree(template, path)
            files = SimulatedFiles(crash_at, crash_at)
            acknowledged, store = run(path, files)
            files.crash()
            again = SimulatedFiles(again_at, again_at)
            second = None
            with contextlib.suppress(LogStoreError):
                second = opened(path, again)
                for sink, version in VERSIONS[len(acknowledged) :]:
                    commit(second, sink, version)
                    acknowledged.append((sink, version))
            again.crash()
            for each in (store, second):
                if each is not None:
                    each.abandon()
            problem = problem_with(path, acknowledged)
            assert problem is None, f"crashes in operations {crash_at}, {again_at}: {problem}"
            shutil.rmtree(path)


def test_staged_files_that_the_power_has_torn(template, directory):
    """They are not flushed: one of which a part is lost is refused, and leaves nothing."""
    path = directory / "torn"
    shutil.copytree(template, path)
    records = {place: [b"%d" % at + b"x" * 3000 for at in range(4)] for place in PLACES}
    committed = 0
    with opened(path, REAL_FILES) as store:
        for seed in range(200 if IS_NIGHTLY else 40):
            files = SimulatedFiles(seed)
            staged_file = stage(path, "torn", seed, records, files=files)
            files.crash()
            try:
                store.commit_staged("torn", seed, [staged_file])
            except StagedBatchesError:
                continue
            committed += 1
        for place in PLACES:
            found = [value for value in store[place].read_values() if len(value) > 1000]
            assert committed * records[place] == found
        assert [] == list(store.errors)
    assert 0 < committed
