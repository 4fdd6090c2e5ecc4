"""
Many partitions within few open files and mappings (DESIGN.md D12).

By default 120 partitions under RLIMIT_NOFILE=96; with LOGSTORE_HYPOTHESIS=nightly 10,000 of them
and 100,000 segments under 1024.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sampling import IS_NIGHTLY

PARTITIONS, SEGMENTS, FILES_MAX = (10_000, 10, 1024) if IS_NIGHTLY else (120, 3, 96)
SOURCE = Path(__file__).resolve().parents[2] / "src"

PROGRAM = """
import json, os, resource, sys, threading
partitions, segments, files_max = map(int, sys.argv[2:])
resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
import logstore

seen = {"files": 0, "mappings": 0, "threads": 0}

def look():
    with open("/proc/self/maps") as maps:
        mappings = sum(1 for _ in maps)
    for name, found in (
        ("files", len(os.listdir("/proc/self/fd"))),
        ("mappings", mappings),
        ("threads", threading.active_count()),
    ):
        seen[name] = max(seen[name], found)

with logstore.open_store(sys.argv[1], config={"segment.index.bytes": 4096}) as store:
    topic = store.create_topic("orders", partitions=partitions)
    look()
    for segment in range(segments):
        for log in topic.logs():
            if segment:
                log.roll()
            log.append(b"%d" % segment)
        look()
with logstore.open_store(sys.argv[1]) as store:
    look()
    topic = store["orders"]
    for log in topic.logs():
        assert [b"%d" % n for n in range(segments)] == list(log.read_values())
        assert segments == len(log.segments)
    look()
    errors = [str(report) for report in store.errors]
    for log in topic.logs():
        assert segments == log.append(b"more")
    look()
    store.abandon()
with logstore.open_store(sys.argv[1]) as store:
    look()
    assert all(segments + 1 == log.log_end_offset for log in store["orders"].logs())
    errors += [str(report) for report in store.errors]
    store.delete_topic("orders")
    store.purge()
    look()
print(json.dumps({**seen, "errors": errors, "left": os.listdir(sys.argv[1])}))
"""


@pytest.mark.linux
def test_many_partitions(tmp_path):
    """All are served; files, mappings and threads stay within bounds."""
    arguments = [str(tmp_path / "data"), *map(str, (PARTITIONS, SEGMENTS, FILES_MAX))]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    found = json.loads(done.stdout)
    assert [] == found["errors"]
    assert found["files"] <= FILES_MAX
    assert found["mappings"] < 65_530  # The default of vm.max_map_count.
    assert found["threads"] <= 6  # Of the program, the scheduler and the opening.
    assert not [name for name in found["left"] if name.startswith("orders")]


STAGING_PROGRAM = """
import os, sys
import logstore

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")

values = [bytes(1000)] * 1100
with logstore.open_store(sys.argv[1]) as store:
    logs = list(store.create_topic("orders", partitions=110).logs())
    before = resident()
    for log in logs:
        log.extend(values)
    print(resident() - before)
"""


@pytest.mark.linux
def test_staging_memory(tmp_path):
    """Writers keep 64 MiB of it together, however many there are."""
    done = subprocess.run(
        [sys.executable, "-c", STAGING_PROGRAM, str(tmp_path / "data")],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 80 << 20
