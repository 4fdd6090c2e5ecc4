"""
The power fails, or the process ends, in the middle of a cleaning.

Whenever that is: the last value of each key is there, nothing that was deleted comes back, and what
is open again can be cleaned again. By default a sample of the moments.
"""

from __future__ import annotations

import os
import shutil

import crash_workload as workload
import pytest
from sampling import IS_NIGHTLY

from logstore.append_origin import AppendOrigin
from logstore.cleaner_config import CleanerConfig
from logstore.config import LogConfig
from logstore.control_record import ControlRecordType, EndTransactionMarker
from logstore.errors import SimulatedCrashError
from logstore.record import encode_batch, end_transaction_marker
from logstore.simulated_files import SimulatedFiles

MOMENTS = None if IS_NIGHTLY else 40
SEEDS = 5 if IS_NIGHTLY else 1
DELETE_RETENTION_MS = 1000
CONFIG = LogConfig.of(
    {
        "cleanup.policy": "compact",
        "segment.bytes": 1200,
        "segment.index.bytes": 240,
        "index.interval.bytes": 100,
        "delete.retention.ms": DELETE_RETENTION_MS,
        "file.delete.delay.ms": 100,
        "transaction.partition.verification.enable": False,
    }
)
SETTINGS = CleanerConfig(log_cleaner_dedupe_buffer_size=24 * 12)  # Several rounds.


def put(log, **values):
    rows = [
        (None, workload.NOW_MS, key.encode(), None if value is None else value.encode(), ())
        for key, value in values.items()
    ]
    log.append_batches(encode_batch(rows), leader_epoch=0)


def transaction(log, producer_id, sequence, kind, **values):
    rows = [
        (None, workload.NOW_MS, key.encode(), value.encode(), ()) for key, value in values.items()
    ]
    log.append_batches(
        encode_batch(
            rows,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        ),
        leader_epoch=0,
    )
    log.append_as_leader(
        end_transaction_marker(
            EndTransactionMarker(ControlRecordType[kind], 0),
            timestamp=workload.NOW_MS,
            producer_id=producer_id,
            producer_epoch=0,
        ),
        0,
        AppendOrigin.COORDINATOR,
    )


def live(session):
    """A life with three cleanings; yields after each step that leaves the same last values."""
    log = session.open()
    for number in range(12):
        put(log, **{f"k{key}": f"{number}" + "x" * 20 for key in range(8)})
    transaction(log, 1, 0, "ABORT", k1="never", k9="never")
    transaction(log, 1, 2, "COMMIT", k2="in a transaction")
    put(log, k0=None, k3=None)
    transaction(log, 2, 0, "COMMIT", k4="another")
    log.roll()
    log.flush()
    yield
    log.compact(config=SETTINGS)
    yield
    session.scheduler.advance_to(session.clock.milliseconds() + 200)
    put(log, k5="last")
    log.roll()
    log.flush()
    yield
    log.compact(config=SETTINGS)
    yield
    session.clock.advance(DELETE_RETENTION_MS + 1)
    put(log, k6="last", k7="last")
    log.roll()
    log.flush()
    yield
    log.compact(config=SETTINGS)
    session.scheduler.run_due()
    yield


VALUES = {
    "k1": "11" + "x" * 20,
    "k2": "in a transaction",
    "k4": "another",
    "k5": "11" + "x" * 20,
    "k6": "11" + "x" * 20,
    "k7": "11" + "x" * 20,
}
EXPECTED = [
    VALUES,
    VALUES,
    VALUES | {"k5": "last"},
    VALUES | {"k5": "last"},
    VALUES | {"k5": "last", "k6": "last", "k7": "last"},
    VALUES | {"k5": "last", "k6": "last", "k7": "last"},
]


def last_values(log):
    found = {}
    for record in log.read("earliest"):
        found[record.key.decode()] = None if record.value is None else record.value.decode()
    return {key: value for key, value in found.items() if value is not None}


def run(session):
    """Return how many steps were done before the crash."""
    done = 0
    try:
        for _ in live(session):
            done += 1
    except SimulatedCrashError:
        pass
    return done


def new_session(path, files=None):
    if files is None:
        return workload.Session(os.fspath(path), config=CONFIG)
    return workload.Session(os.fspath(path), files, config=CONFIG)


def operations(directory):
    """Return the operations of the whole life, and where the first cleaning begins."""
    (directory / "count").mkdir()
    files = SimulatedFiles()
    session = new_session(directory / "count" / "log-0", files)
    counts = [files.operation_count for _ in live(session)]
    assert EXPECTED[-1] == last_values(session.log)
    assert 0 == session.log.compact(config=SETTINGS).messages_read
    session.drop()
    return counts


def check(path, done, clock):
    """What was flushed is there and nothing else, and another cleaning changes nothing of it."""
    session = new_session(path)
    session.clock = clock
    log = session.open()
    wanted = EXPECTED[done - 1 : done + 1]  # The step under way may have flushed.
    found = last_values(log)
    assert found in wanted
    assert [] == list(log.check())
    assert log.config.compact
    log.roll()
    log.compact(config=SETTINGS)
    assert found == last_values(log)
    assert [] == list(log.check())
    log.close()
    assert not [name for name in os.listdir(path) if name.endswith((".cleaned", ".swap"))]


@pytest.mark.parametrize("power_loss", [True, False])
def test_a_crash_at_every_operation(directory, power_loss):
    """Of three cleanings: with aborted data, a full map, tombstones whose time has come."""
    shutil.rmtree(directory / "count", ignore_errors=True)
    counts = operations(directory)
    total = counts[-1] - counts[0]
    step = 1 if MOMENTS is None else max(1, total // MOMENTS)
    for seed in range(SEEDS):
        for crash_at in range(counts[0] + 1 + seed % step, counts[-1] + 1, step):
            path = directory / f"{power_loss}-{seed}-{crash_at}"
            path.mkdir()
            files = SimulatedFiles(seed * 10_000 + crash_at, crash_at)
            session = new_session(path / "log-0", files)
            done = run(session)
            files.crash(power_loss=power_loss)
            session.drop()
            try:
                check(path / "log-0", done, session.clock)
            except BaseException as error:
                error.add_note(f"seed {seed}, crash in operation {crash_at}, step {done}")
                raise
            shutil.rmtree(path)
