"""
Transactions beside the cleaner, retention and snapshots, in a process that is killed at any moment.

Transaction ``n`` writes the number ``n`` to four partitions of three topics, several times; every
fifth is aborted. So each topic says by itself which transactions a reader sees, and they have to
say the same: those that were acknowledged, at most one more, and of none a part.

Bound: 3 kills, or ``LOGSTORE_STRESS_KILLS``; the nightly run has more. The seed is printed.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time

from patience import PATIENCE_SECONDS
from sampling import IS_NIGHTLY

import logstore

KILLS = int(os.environ.get("LOGSTORE_STRESS_KILLS", "60" if IS_NIGHTLY else "3"))
SEED = int(os.environ.get("LOGSTORE_STRESS_SEED", str(random.randrange(1 << 30))))
RECENT_BYTES = 6000
KEYS = 12
STORE = {
    "log.cleaner.backoff.ms": 10,
    "log.cleaner.min.cleanable.ratio": 0.01,
    "transaction.state.log.num.partitions": 1,
    "offsets.topic.num.partitions": 1,
    "segment.bytes": 3000,
    "index.interval.bytes": 200,
    "file.delete.delay.ms": 0,
}
TOPICS = {
    "events": {},
    "table": {"cleanup.policy": "compact", "delete.retention.ms": 0},
    "recent": {"retention.bytes": RECENT_BYTES},
}

WRITER = """
import itertools, os, shutil, sys, threading
import logstore
from test_store_stress import STORE, is_aborted, write

paths, first, snapshots = sys.argv[1].split(":"), int(sys.argv[2]), sys.argv[3]


def keep_house():
    for number in itertools.count():
        store.snapshot(f"{snapshots}/{first}-{number}")
        store["recent", 0].delete_old_segments()  # Which a store begins with after 30 s.
        if number > 1:  # What is deleted in part is no snapshot any more.
            gone = f"{snapshots}/{first}-{number - 2}"
            os.rename(gone, gone + ".incomplete")
            shutil.rmtree(gone + ".incomplete")


store = logstore.open_store(*paths, config=STORE)
threading.Thread(target=keep_house, daemon=True).start()
for number in itertools.count(first):
    transaction = store.transaction("stress")
    write(transaction, number)
    transaction.abort() if is_aborted(number) else transaction.commit()
    os.write(1, b"%d\\n" % number)
"""


def is_aborted(number):
    return number % 5 == 4


def keys_of(number):
    return [b"k%d" % (number * factor % KEYS) for factor in (1, 5, 7)]


def write(transaction, number):
    """Write a transaction's records, in part before others."""
    value = b"%d" % number
    for partition in (0, 1):
        transaction.append(("events", partition), value)
    if number % 3 == 0:
        transaction.flush()
    for key in keys_of(number):
        transaction.append(("table", 0), value, key=key)
    transaction.append(("recent", 0), value + b" " * 50)


def seen(store, topic, partition):
    return [int(record.value) for record in store[topic, partition]]


def check_transactions(store):
    """Return how many transactions are seen, from the first; raise if one is seen in part."""
    assert [] == [str(report) for report in store.errors]
    assert [] == list(store.check())
    events = seen(store, "events", 0)
    assert events == seen(store, "events", 1)
    end = events[-1] + 1 if events else 0
    committed = [number for number in range(end) if not is_aborted(number)]
    assert committed == events

    table = {record.key: int(record.value) for record in store["table", 0]}
    newest = {key: number for number in committed for key in keys_of(number)}
    assert newest == table

    recent = seen(store, "recent", 0)
    assert committed[len(committed) - len(recent) :] == recent
    assert len(recent) >= min(len(committed), RECENT_BYTES // 200)
    return end


def run_until_killed(paths, first, snapshots, seconds):
    """Run the writer for so long; the number of its last acknowledged transaction, or None."""
    command = [sys.executable, "-c", WRITER, ":".join(paths), str(first), snapshots]
    here = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": here}
    ) as writer:
        said = [writer.stdout.readline()]  # It has begun.
        assert said[0], "the writer ended by itself"
        time.sleep(seconds)
        writer.send_signal(signal.SIGKILL)
        said += writer.stdout.readlines()
        assert -signal.SIGKILL == writer.wait()
    whole = [line for line in said if line.endswith(b"\n")]
    return int(whole[-1])


def test_transactions_are_whole(tmp_path):
    """After each kill, here and in each snapshot that is finished."""
    print("seed", SEED)
    drawn = random.Random(SEED)
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    snapshots = tmp_path / "snapshots"
    snapshots.mkdir()
    with logstore.open_store(*paths, config=STORE) as store:
        for topic, config in TOPICS.items():
            store.create_topic(topic, partitions=2 if topic == "events" else 1, config=config)
    first = snapshot_count = 0
    for _ in range(KILLS):
        acknowledged = run_until_killed(paths, first, str(snapshots), drawn.uniform(0.2, 1.0))
        with logstore.open_store(*paths, config=STORE, lock_timeout=PATIENCE_SECONDS) as store:
            store.transaction("stress").abort()  # Ends what has been left open.
            end = check_transactions(store)
        last = max(number for number in range(acknowledged + 1) if not is_aborted(number))
        decided = next(n for n in itertools.count(acknowledged + 1) if not is_aborted(n))
        assert end - 1 in {last, decided}
        for name in sorted(os.listdir(snapshots)):
            if not name.endswith(".incomplete"):
                with logstore.open_store(str(snapshots / name), mode="r") as snapshot:
                    assert check_transactions(snapshot) <= end
                    snapshot_count += 1
            shutil.rmtree(snapshots / name)
        first = max(end, acknowledged + 1)
    assert snapshot_count
    with logstore.open_store(*paths, mode="r") as store:
        assert len(list(store["table", 0])) < end
        assert store["recent", 0].log_start_offset
