"""
The power fails in the middle of a store's life, and in the middle of its next opening.

By default a sample of the moments; all of them with LOGSTORE_HYPOTHESIS=nightly.
"""

from __future__ import annotations

import contextlib
import os
import shutil

import crash_workload as workload
import pytest
from sampling import IS_NIGHTLY

from logstore.clock import ManualClock
from logstore.errors import LogStoreError, SimulatedCrashError
from logstore.files import REAL_FILES
from logstore.scheduler import ManualScheduler
from logstore.simulated_files import SimulatedFiles
from logstore.store import open_log_store

SEEDS = 6 if IS_NIGHTLY else 1
MOMENTS = None if IS_NIGHTLY else 40
NOW_MS = workload.NOW_MS
CONFIG = {
    "segment.bytes": 300,
    "file.delete.delay.ms": 1000,
    "num.recovery.threads.per.data.dir": 1,
    "producer.id.expiration.check.interval.ms": 2**31 - 1,
}


class Session:
    """One process: a store over two directories, and what was acknowledged."""

    def __init__(self, path, files, now_ms=NOW_MS):
        self.paths = [path / "a", path / "b"]
        self.files = files
        self.clock = ManualClock(now_ms)
        self.scheduler = ManualScheduler(self.clock)
        self.store = None

    def open(self):
        self.store = open_log_store(
            *self.paths,
            config=CONFIG,
            files=self.files,
            clock=self.clock,
            scheduler=self.scheduler,
        )
        return self.store

    def run_for(self, ms):
        self.scheduler.advance_to(self.clock.milliseconds() + ms)

    def drop(self):
        if self.store is not None:
            self.store.abandon()


class Model:
    """What a store has to hold: topics with their settings, durable records of each partition."""

    def __init__(self):
        self.topics = {}  # Name -> (partitions, config).
        self.records = {}  # (Name, partition) -> all that was appended.
        self.flushed = {}  # (Name, partition) -> how many of them are durable.
        self.log_starts = {}

    def create(self, name, partitions, config):
        self.topics[name] = (partitions, config)
        for partition in range(partitions):
            self.records[name, partition] = []
            self.flushed[name, partition] = self.log_starts[name, partition] = 0

    def delete(self, name):
        partitions, _ = self.topics.pop(name)
        for partition in range(partitions):
            for each in (self.records, self.flushed, self.log_starts):
                del each[name, partition]

    def copy(self):
        other = Model()
        other.topics = dict(self.topics)
        other.records = {key: list(found) for key, found in self.records.items()}
        other.flushed = dict(self.flushed)
        other.log_starts = dict(self.log_starts)
        return other


def create(name, partitions, config):
    def act(session):
        session.store.create_topic(name, partitions=partitions, config=config)

    return act, lambda model: model.create(name, partitions, config)


def append(name, partition, values, *, sync=False):
    def act(session):
        session.store[name, partition].extend(values, sync=sync)

    def then(model):
        model.records[name, partition] += values
        if sync:
            model.flushed[name, partition] = len(model.records[name, partition])

    return act, then


def alter(name, config):
    def act(session):
        session.store.alter_topic(name, config)

    def then(model):
        partitions, before = model.topics[name]
        model.topics[name] = (partitions, {**before, **config})

    return act, then


def delete(name):
    return lambda session: session.store.delete_topic(name), lambda model: model.delete(name)


def grow(name, partitions):
    def act(session):
        session.store.create_partitions(name, partitions)

    def then(model):
        before, config = model.topics[name]
        model.topics[name] = (partitions, config)
        for partition in range(before, partitions):
            model.records[name, partition] = []
            model.flushed[name, partition] = model.log_starts[name, partition] = 0

    return act, then


def log_start(name, partition, offset):
    def act(session):
        session.store[name, partition].maybe_increment_log_start_offset(offset)

    return act, lambda model: model.log_starts.update({(name, partition): offset})


def work(ms):
    return lambda session: session.run_for(ms), lambda model: None


def reopen():
    def act(session):
        session.store.close()
        session.open()

    def then(model):
        for key, records in model.records.items():
            model.flushed[key] = len(records)

    return act, then


STEPS = [
    create("orders", 2, {}),
    append("orders", 0, [b"a0", b"a1", b"a2"], sync=True),
    append("orders", 1, [b"b0"]),
    create("other", 1, {"retention.ms": "600000"}),
    append("other", 0, [b"c0", b"c1"], sync=True),
    work(60_000),
    alter("other", {"segment.bytes": "400"}),
    log_start("orders", 0, 2),
    append("orders", 0, [b"a%d" % n * 40 for n in range(3, 9)]),
    alter("orders", {"retention.bytes": "300"}),
    work(400_000),
    grow("orders", 3),
    append("orders", 2, [b"d0"], sync=True),
    reopen(),
    append("orders", 1, [b"b1"], sync=True),
    delete("other"),
    work(60_000),
    create("other", 1, {}),
    append("other", 0, [b"new"], sync=True),
    delete("orders"),
    work(60_000),
    reopen(),
    append("other", 0, [b"last"]),
]


def run(session, model):
    """Take the steps; return the models before and after the one that the crash came in."""
    session.open()
    for act, then in STEPS:
        after = model.copy()
        then(after)
        try:
            act(session)
        except (SimulatedCrashError, LogStoreError):
            if not session.files.has_crashed:
                raise
            return model, after
        if session.files.has_crashed:  # In background work, which does not raise.
            return model, after
        model = after
    return None


def problems(store, before, after):
    """Yield what a recovered store has that neither was acknowledged nor under way."""
    names = set(store)
    must = before.topics.keys() & after.topics.keys()
    may = before.topics.keys() | after.topics.keys()
    if not must <= names <= may:
        yield f"topics {names}: not between {must} and {may}"
    for name in names & may:
        topic = store[name]
        sizes = {model.topics[name][0] for model in (before, after) if name in model.topics}
        if len(topic) not in sizes:
            yield f"{name} has {len(topic)} partitions, not one of {sizes}"
        own = dict(store.configs.get(name).config)
        configs = [model.topics[name][1] for model in (before, after) if name in model.topics]
        if own not in configs:
            yield f"{name} has {own}, not one of {configs}"
        for partition in topic:
            key = name, partition
            found = {record.offset: record.value for record in topic[partition]}
            known = [model for model in (before, after) if key in model.records]
            if not any(is_possible(topic[partition], found, model, key) for model in known):
                states = [
                    (model.log_starts[key], model.flushed[key], model.records[key])
                    for model in known
                ]
                yield f"{key} has {found}, which is none of {states}"


def is_possible(log, found, model, key):
    """Return whether a log holds what it may: what was flushed, and nothing that was not there."""
    start, records = model.log_starts[key], dict(enumerate(model.records[key]))
    if "retention.bytes" in model.topics[key[0]][1]:
        start = max(start, min(log.log_start_offset, len(records)))
    return (
        log.log_start_offset == start
        # Of what was not flushed, a segment may be missing between others.
        and all(records.get(offset) == value for offset, value in found.items())
        and all(offset in found for offset in range(start, model.flushed[key]))
    )


def check(path, before, after, now_ms):
    """Open what is left with real files and hold it against what was acknowledged."""
    session = Session(path, REAL_FILES, now_ms)
    store = session.open()
    assert [] == list(store.errors)
    assert [] == list(problems(store, before, after))
    assert [] == list(store.check())
    # Life goes on, and what is acknowledged now is there after a clean end.
    name = "after-the-crash"
    store.create_topic(name).append(b"on", sync=True)
    session.run_for(120_000)
    assert [] == [each for path in session.paths for each in os.listdir(path) if "-delete" in each]
    store.close()
    assert all((path / ".kafka_cleanshutdown").exists() for path in session.paths)
    store = session.open()
    assert [] == list(store.errors)
    assert b"on" == store[name, 0].first().value
    store.delete_topic(name)
    assert [] == list(problems(store, before, after))
    session.drop()


def crashed(path, seed, crash_at):
    files = SimulatedFiles(seed, crash_at)
    session = Session(path, files)
    try:
        models = run(session, Model())
    except (SimulatedCrashError, LogStoreError):
        if not files.has_crashed:
            raise
        models = Model(), Model()  # In the first opening.
    files.crash()
    session.drop()
    return session, models


@pytest.fixture(scope="module")
def operations(directory):
    files = SimulatedFiles()
    session = Session(directory / "count", files)
    assert run(session, Model()) is None
    session.drop()
    return files.operation_count


def moments(operations, seed, count=MOMENTS):
    step = 1 if count is None else max(1, operations // count)
    return range(1 + seed * 7 % step, operations + 1, step)


def test_power_loss(directory, operations):
    """Whenever the power fails: topics are whole or not there, and what was flushed is."""
    for seed in range(SEEDS):
        for crash_at in moments(operations, seed):
            path = directory / f"{seed}-{crash_at}"
            session, models = crashed(path, seed * 10_000 + crash_at, crash_at)
            if models is None:
                continue
            try:
                check(path, *models, session.clock.milliseconds())
            except BaseException as error:
                error.add_note(f"seed {seed}, crash in operation {crash_at}")
                raise
            shutil.rmtree(path)


def test_power_loss_during_opening(directory, operations):
    """An opening that is interrupted loses nothing either, and is never taken for a clean end."""
    for crash_at in moments(operations, 3, None if IS_NIGHTLY else 12):
        for again_at in range(1 + crash_at % 5, 60, 1 if IS_NIGHTLY else 23):
            path = directory / f"again-{crash_at}-{again_at}"
            session, models = crashed(path, 77_000 + crash_at, crash_at)
            if models is None:
                continue
            again = Session(path, SimulatedFiles(crash_at, again_at), session.clock.milliseconds())
            with contextlib.suppress(LogStoreError):
                again.open()
            again.files.crash()
            again.drop()
            try:
                check(path, *models, session.clock.milliseconds())
            except BaseException as error:
                error.add_note(f"crash in operation {crash_at}, then in {again_at}")
                raise
            shutil.rmtree(path)
