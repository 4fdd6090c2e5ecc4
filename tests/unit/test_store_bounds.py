"""
Many partitions within few open files and mappings (DESIGN.md D12).

By default 120 partitions under RLIMIT_NOFILE=96; with LOGSTORE_HYPOTHESIS=nightly 10,000 of them
and 100,000 segments under 1024. All of them also write enough to keep memory, and to have room
allocated ahead; when each of those is had, and given back, is in test_writer_pool.py.
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
STAGING_MAX, PREALLOCATED_MAX = 4 << 20, 16 << 20
BOUNDS = (PARTITIONS, SEGMENTS, FILES_MAX, STAGING_MAX, PREALLOCATED_MAX)
SOURCE = Path(__file__).resolve().parents[2] / "src"

PROGRAM = """
import json, os, resource, sys, threading
partitions, segments, files_max, staging_max, preallocated_max = map(int, sys.argv[2:])
resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
import logstore

seen = {"files": 0, "mappings": 0, "threads": 0, "staging": 0, "preallocated": 0, "ahead": 0}
config = {
    "staging.bytes.max": staging_max,
    "preallocated.bytes.max": preallocated_max,
}

def look():
    with open("/proc/self/maps") as maps:
        mappings = sum(1 for _ in maps)
    for name, found in (
        ("files", len(os.listdir("/proc/self/fd"))),
        ("mappings", mappings),
        ("threads", threading.active_count()),
    ):
        seen[name] = max(seen[name], found)

def look_at_pool(pool):
    seen["staging"] = max(seen["staging"], pool.staging_bytes)
    seen["preallocated"] = max(seen["preallocated"], pool.preallocated_bytes)

def room_ahead(topic):
    # What the device holds behind the ends of the logs, but for the last pages.
    ahead = 0
    for log in topic.logs():
        state = os.stat(log.active_segment.log_path)
        ahead += max(0, state.st_blocks * 512 - (state.st_size + 4095) // 4096 * 4096)
    return ahead

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
with logstore.open_store(sys.argv[1], config=config) as store:
    look()
    topic = store["orders"]
    assert all(segments + 1 == log.log_end_offset for log in topic.logs())
    large = [bytes(1024)] * 64
    for log in topic.logs():
        log.extend(large)
        look_at_pool(store.writer_pool)
    seen["ahead"] = room_ahead(topic)
    look()
    assert all(large == list(log.read_values(segments + 1)) for log in topic.logs())
    errors += [str(report) for report in store.errors]
    store.delete_topic("orders")
    store.purge()
    look()
print(json.dumps({**seen, "errors": errors, "left": os.listdir(sys.argv[1])}))
"""


@pytest.mark.linux
def test_many_partitions(tmp_path):
    """All are served; files, mappings and threads stay within bounds."""
    arguments = [str(tmp_path / "data"), *map(str, BOUNDS)]
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
    assert 0 < found["staging"] <= STAGING_MAX
    assert 0 < found["preallocated"] <= PREALLOCATED_MAX
    assert found["ahead"] <= PREALLOCATED_MAX
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
