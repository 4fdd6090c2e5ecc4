"""The end of other processes is told, once; watching leaves nothing behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import pytest
from patience import PATIENCE_SECONDS, until

from logstore import process_watch
from logstore.process_watch import pid_namespace, watch_process

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd")


@pytest.fixture(name="child")
def _child():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield child
        child.kill()


def descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_end(child):
    """Everybody who watches is told, and one thread sleeps for all."""
    told = [threading.Event() for _ in range(3)]
    watches = [watch_process(child.pid, each.set) for each in told]
    assert not any(watch.is_over for watch in watches)
    names = [thread.name for thread in threading.enumerate()]
    assert 1 == names.count("logstore-processes")
    watches[0].cancel()
    child.kill()
    assert all(each.wait(PATIENCE_SECONDS) for each in told[1:])
    assert all(watch.is_over for watch in watches)
    assert not told[0].is_set()


def test_no_descriptor_is_left(child):
    """Neither of a watch that was given up, nor of one that was forgotten, nor after the end."""
    told = threading.Event()
    watch_process(child.pid, told.set).cancel()  # The thread has one.
    before = descriptors()
    watches = [watch_process(child.pid, told.set) for _ in range(2)]
    assert before + 1 == descriptors()
    watches.pop().cancel()
    assert before + 1 == descriptors()
    watches.clear()
    assert before == descriptors()
    watch = watch_process(child.pid, told.set)
    child.kill()
    assert told.wait(PATIENCE_SECONDS)
    assert watch.is_over
    assert before == descriptors()


def test_processes_that_are_not_watched(child):
    """One that is gone; and this one, whose end nobody in it sees."""
    child.kill()
    child.wait()
    assert watch_process(child.pid, print) is None
    assert not watch_process(os.getpid(), print).is_over


def test_tell_that_fails(child, caplog):
    """The others are told all the same."""
    told = threading.Event()

    def fail():
        raise RuntimeError("told in vain")

    watches = [watch_process(child.pid, each) for each in (fail, told.set)]
    child.kill()
    assert told.wait(PATIENCE_SECONDS)
    until(lambda: "told in vain" in caplog.text)  # It may be the second to be told.
    assert all(watch.is_over for watch in watches)


def test_fork(child):
    """A child has none of its parent's descriptors, and watches for itself."""
    watch = watch_process(child.pid, print)
    pidfd, _ = process_watch._processes._watches[child.pid]
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            try:
                os.fstat(pidfd)
            except OSError:
                watch.cancel()
                status = 0 if not watch_process(child.pid, print).is_over else 2
        finally:
            os._exit(status)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert not watch.is_over


def test_namespace():
    """It is the same in a child."""
    code = "from logstore.process_watch import pid_namespace; print(pid_namespace())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert pid_namespace() == int(child.stdout) > 0
