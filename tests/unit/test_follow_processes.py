"""Following across forks, in workers of a preloaded program, and at the end of the interpreter."""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import subprocess
import sys
import threading
import time

import pytest
from patience import PATIENCE_SECONDS

import logstore

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(name="path")
def _path(tmp_path):
    return str(tmp_path / "orders-0")


def in_child(work):
    """Fork a process that does some work and ends with 0 if nothing is raised."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(2 * int(PATIENCE_SECONDS))
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def end(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def take(records, count):
    """Return values as a thread takes them."""
    found = []
    for record in records:
        found.append(record.value)
        if len(found) == count:
            break
    return found


def take_by_selector(records, count):
    found = []
    with selectors.DefaultSelector() as selector:
        selector.register(records, selectors.EVENT_READ)
        while len(found) < count:
            assert selector.select(PATIENCE_SECONDS)
            while batch := records.batch(timeout=0):
                found += [record.value for record in batch]
    return found


def take_by_asyncio(records, count):
    async def run():
        return [(await anext(records)).value for _ in range(count)]

    return asyncio.run(run())


@pytest.mark.parametrize("preloaded", ["writer", "reader"])
@pytest.mark.parametrize("way", [take, take_by_selector, take_by_asyncio])
def test_workers_of_a_preloaded_program(path, way, preloaded):
    """A log opened before the fork, and used then: each worker follows what the writer appends."""
    writer = logstore.open(path)
    log = writer if preloaded == "writer" else logstore.open(path, "r")
    writer.append(b"before")
    early = log.follow("earliest")
    assert b"before" == next(early).value
    early.fileno()  # The parent's watcher has a thread, which no child has.
    sleeper = threading.Thread(target=lambda: take(log.follow(), 1), daemon=True)
    sleeper.start()
    time.sleep(0.01)
    ready, tell = os.pipe()

    def work():
        with log.follow("earliest") as records:
            assert [b"before"] == way(records, 1)
            os.write(tell, b"!")
            assert [b"after"] * 2 == way(records, 2)

    workers = [in_child(work) for _ in range(3)]
    for _ in workers:
        os.read(ready, 1)
    time.sleep(0.05)  # They sleep.
    writer.append(b"after")
    writer.append(b"after")
    assert [0] * 3 == [end(pid) for pid in workers]
    assert b"after" == next(early).value
    sleeper.join(PATIENCE_SECONDS)
    assert not sleeper.is_alive()
    for each in (early, log, writer):
        each.close()
    os.close(ready)
    os.close(tell)


def test_fork_while_others_append_and_wait(path):
    """Whatever lock another thread holds at that moment: the child follows."""
    with logstore.open(path) as writer, logstore.open(path, "r") as reader:
        is_over = threading.Event()

        def append():
            while not is_over.is_set():
                writer.append(b"x" * 100)

        async def wait():
            with reader.follow() as records:
                while not is_over.is_set():
                    await records.batch_later(timeout=0.01)

        threads = [threading.Thread(target=append)]
        threads.append(threading.Thread(target=lambda: asyncio.run(wait())))
        for thread in threads:
            thread.start()
        try:
            for log in (writer, reader) * 4:

                def work(log=log):
                    start = log.log_end_offset
                    with log.follow(start, timeout=PATIENCE_SECONDS) as records:
                        found = [next(records).offset for _ in range(20)]
                    assert list(range(start, start + 20)) == found

                assert 0 == end(in_child(work))
        finally:
            is_over.set()
            for thread in threads:
                thread.join()


EXIT = """
import asyncio, sys, threading
import logstore
log = logstore.open(sys.argv[1])
log.append(b"x")
reader = logstore.open(sys.argv[1], "r")
for each in (log, reader):
    each.follow().fileno()
    records = each.follow()
    threading.Thread(target=next, args=(records, None), daemon=True).start()
    async def wait(records=each.follow()):
        try:
            await asyncio.wait_for(anext(records), 0.05)
        except TimeoutError:
            pass
    asyncio.run(wait())
half_read = reader.follow("earliest")
next(half_read)
if sys.argv[2] == "close":
    log.close()
print("end")
"""


@pytest.mark.parametrize("how", ["close", "drop"])
def test_end_of_the_interpreter(path, how):
    """With followers in every state it ends at once, without a word of complaint."""
    done = subprocess.run(
        [sys.executable, "-c", EXIT, path, how],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (0, "end\n") == (done.returncode, done.stdout)
    assert "Traceback" not in done.stderr
    assert "Fatal" not in done.stderr
    with logstore.open(path) as log:
        assert 1 == log.log_end_offset
