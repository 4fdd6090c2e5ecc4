"""A process that has a store is killed: what it acknowledged is there, and its lock is free."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from patience import PATIENCE_SECONDS

import logstore
from logstore.errors import LockedError

WRITER = """
import sys, logstore
store = logstore.open_store(*sys.argv[1:], config={"segment.bytes": 5000})
print("open", flush=True)
topic = store.create_topic("orders", partitions=4)
n = 0
while True:
    partition, offset = topic.append(b"%d" % n, key=b"key %d" % (n % 37))
    n += 1
    if n % 50 == 0:
        store.create_topic(f"topic-{n}").append(b"v")
        if n % 100 == 0:
            store.delete_topic(f"topic-{n}")
        print(n, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 2, 9])
def test_killed(tmp_path, lines):
    """In the middle of appends, of creating and deleting topics; a reader sees it all live."""
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, *paths], stdout=subprocess.PIPE, text=True
    )
    with writer:
        said = [writer.stdout.readline() for _ in range(lines)][-1]
        with pytest.raises(LockedError) as caught:
            logstore.open_store(*paths)
        assert writer.pid == caught.value.pid
        if lines > 1:
            with logstore.open_store(*paths, mode="r", lazy=True) as reader:
                live = sum(log.log_end_offset for log in reader["orders"].logs())
                assert live >= int(said)
        writer.send_signal(signal.SIGKILL)
    acknowledged = int(said) if lines > 1 else 0
    with logstore.open_store(*paths, lock_timeout=PATIENCE_SECONDS) as store:
        assert [] == [str(report) for report in store.errors]
        assert [] == list(store.check())
        if "orders" not in store:
            assert lines == 1
            return
        assert 4 == len(store["orders"])
        found = sorted(int(record.value) for log in store["orders"].logs() for record in log)
        assert found == list(range(len(found)))
        assert len(found) >= acknowledged
        assert not any(f"topic-{n}" in store for n in range(100, acknowledged, 100))
        assert all(f"topic-{n}" in store for n in range(50, acknowledged, 100))
        store["orders"].append(b"on")
    assert all(os.path.exists(f"{path}/.kafka_cleanshutdown") for path in paths)
