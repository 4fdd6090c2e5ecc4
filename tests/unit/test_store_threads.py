"""A store used by many threads at once: nothing is lost, nothing hangs, nothing is reported."""

from __future__ import annotations

import random
import threading
import time

import pytest
from patience import PATIENCE_SECONDS, until

import logstore
from logstore.errors import ClosedError, OfflineError, TopicExistsError, UnknownTopicError

SECONDS = 0.7
CONFIG = {
    "segment.bytes": 20_000,
    "file.delete.delay.ms": 1,
    "log.initial.task.delay.ms": 1,
    "log.retention.check.interval.ms": 5,
    "log.flush.offset.checkpoint.interval.ms": 3,
    "log.flush.start.offset.checkpoint.interval.ms": 7,
    "replica.high.watermark.checkpoint.interval.ms": 3,
    "log.cleaner.backoff.ms": 5,
    "log.cleaner.dedupe.buffer.size": 1 << 20,
}


def test_everything_at_once(tmp_path):
    """Appends, topics that come, change and go, background work; then a close under all of it."""
    store = logstore.open_store(tmp_path / "a", tmp_path / "b", config=CONFIG)
    kept = store.create_topic("kept", partitions=3)
    store.create_topic("compacted", config={"cleanup.policy": "compact"})
    acknowledged = [[] for _ in range(3)]
    failures = []
    stop = threading.Event()

    def thread(work, seed):
        chance = random.Random(seed)
        try:
            while not stop.is_set():
                work(chance, seed)
        except ClosedError:
            pass  # Of the store, at the end.
        except Exception as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    def append(chance, seed):
        value = b"%d-%d" % (seed, len(acknowledged[seed]))
        where = kept.append(value, key=b"%d" % chance.randrange(50))
        acknowledged[seed].append((where, value))
        time.sleep(0.0001)  # A device that is busy with thousands of segments is another test.

    def compact(chance, seed):
        store["compacted", 0].append(b"v" * 50, key=b"%d" % chance.randrange(5))
        time.sleep(0.0001)

    def come_and_go(chance, seed):
        name = f"t{chance.randrange(3)}"
        try:
            choice = chance.randrange(5)
            if choice == 0:
                store.create_topic(name, partitions=chance.randrange(1, 4))
            elif choice == 1:
                store.delete_topic(name)
            elif choice == 2:
                store.alter_topic(name, {"retention.bytes": chance.choice([None, 1000])})
            elif choice == 3:
                store[name].append(b"v" * 100)
            else:
                assert sum(1 for _ in store[name].logs()) > 0
        except (TopicExistsError, UnknownTopicError):
            pass
        except (ClosedError, OfflineError):
            store.check_open()  # Of a topic that was deleted meanwhile.

    works = [append, append, append, compact, come_and_go, come_and_go]
    threads = [
        threading.Thread(target=thread, args=(work, seed)) for seed, work in enumerate(works)
    ]
    for each in threads:
        each.start()
    time.sleep(SECONDS)
    until(lambda: all(acknowledged) or failures)
    store.close()
    stop.set()
    for each in threads:
        each.join(PATIENCE_SECONDS)
        assert not each.is_alive()
    if failures:
        raise failures[0]
    assert [] == [str(report) for report in store.errors]
    with logstore.open_store(tmp_path / "a", tmp_path / "b", config=CONFIG) as store:
        assert [] == [str(report) for report in store.errors]
        assert [] == list(store.check())
        for (partition, offset), value in (each for found in acknowledged for each in found):
            assert value == store["kept", partition][offset].value
        assert (
            0
            < sum(map(len, acknowledged))
            == sum(log.log_end_offset for log in store["kept"].logs())
        )


@pytest.mark.parametrize("times", [5])
def test_closed_twice_at_once(tmp_path, times):
    """Both return when it is closed."""
    for n in range(times):
        store = logstore.open_store(tmp_path / str(n))
        store.create_topic("orders", partitions=2)
        threads = [threading.Thread(target=store.close) for _ in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(PATIENCE_SECONDS)
            assert not each.is_alive()
        assert (tmp_path / str(n) / ".kafka_cleanshutdown").exists()
