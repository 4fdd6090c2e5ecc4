"""A process ends in the middle of a log's life: everything that it was told is written stays."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap

import crash_workload as workload
from sampling import IS_NIGHTLY

import logstore
from logstore.simulated_files import SimulatedFiles

MOMENTS = None if IS_NIGHTLY else 15
ROUNDS = 50 if IS_NIGHTLY else 3


def test_end_at_any_operation(directory):
    """Whatever operation a process ends in, all that was acknowledged is there, flushed or not."""
    states = workload.reference(directory / "reference" / "log-0")
    (directory / "count").mkdir()
    files = SimulatedFiles()
    session = workload.Session(os.fspath(directory / "count" / "log-0"), files)
    assert workload.run(session) is None
    session.drop()
    step = 1 if MOMENTS is None else files.operation_count // MOMENTS
    for crash_at in range(1 + 11 % step, files.operation_count + 1, step):
        path = directory / str(crash_at)
        path.mkdir()
        files = SimulatedFiles(crash_at, crash_at)
        session = workload.Session(os.fspath(path / "log-0"), files)
        done = workload.run(session)
        files.crash(power_loss=False)
        session.drop()
        if done is None:
            continue
        recovered = workload.Session(session.path, clock=session.clock)
        log = recovered.open()
        before = states[max(done, 0)]
        after, name = (states[done + 1], workload.STEPS[done][0]) if done >= 0 else (before, "open")
        problem = workload.problem_after(
            workload.state_of(log), before, after, name, workload.bases_of(log), power_loss=False
        )
        assert problem is None, f"operation {crash_at}, step {done}: {problem}"
        workload.check_life(recovered, power_loss=False)
        shutil.rmtree(path)


CHILD = """
import itertools, os, sys
import logstore
log = logstore.open(sys.argv[1], config={"segment.bytes": 65536, "index.interval.bytes": 512})
for number in itertools.count(log.log_end_offset):
    kind = number % 3
    if kind == 0:
        end = log.append(b"%d" % number, key=b"k") + 1
    elif kind == 1:
        end = log.extend([b"%d-%d" % (number, i) for i in range(100)]).stop
    else:
        values = [b"%d-%d" % (number, i) for i in range(100)]
        end = log.extend(values, compression="zstd").stop
    os.write(1, b"%d\\n" % end)
"""


def test_kill(directory):
    """A child that appends is killed again and again; the log goes on where it ended."""
    path = directory / "killed-0"
    seen = []
    for kill_after in range(ROUNDS):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CHILD), os.fspath(path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for _ in range(10 + kill_after * 37):
            acknowledged = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        rest, _ = child.communicate()
        lines = rest.split(b"\n")[:-1]
        acknowledged = int(lines[-1]) if lines else acknowledged

        with logstore.open(path) as log:
            assert list(log.check()) == []
            values = list(log.read_values())
            assert log.log_end_offset == len(values) >= acknowledged
            assert seen == values[: len(seen)]
            seen = values
        assert len(set(seen)) == len(seen)
