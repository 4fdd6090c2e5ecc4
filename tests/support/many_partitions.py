"""
Many partitions in one process with few descriptors: every log is used while most are closed.

Run as a program, so that the limits are its own::

    python tests/support/many_partitions.py DIRECTORY PARTITIONS SEGMENTS FILES

Prints what it measured, one ``name: value`` a line; exits with a traceback if anything is wrong.
"""

from __future__ import annotations

import os
import resource
import sys
import time

from logstore.clock import ManualClock
from logstore.log import Log
from logstore.open_files import OPEN_FILES
from logstore.scheduler import ManualScheduler

VALUE_BYTES = 100
MAPPINGS_MAX = 65_530  # Linux's default max_map_count.


def descriptor_count():
    """Return how many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))


def mapping_count():
    """Return how many mappings this process has."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        return sum(1 for _ in maps)


def resident_kib():
    """Return how much memory this process has in use."""
    with open("/proc/self/statm", encoding="ascii") as memory:
        return int(memory.read().split()[1]) * resource.getpagesize() // 1024


class Partitions:
    """The logs, what was appended to each, and whether the bounds hold."""

    def __init__(self, directory, count, files_max):
        self.directory = directory
        self.files_max = files_max
        self.clock = ManualClock()
        self.scheduler = ManualScheduler(self.clock)
        self.logs = []
        self.values = [[] for _ in range(count)]

    def open(self, *, is_clean):
        """Open all of them, as a store does that has the lock and the checkpoints."""
        before, start = resident_kib(), time.process_time()
        self.logs = [
            Log.create(
                os.path.join(self.directory, f"p-{number}"),
                {"segment.bytes": 1 << 20},
                had_clean_shutdown=is_clean,
                recovery_point=len(self.values[number]) if is_clean else 0,
                clock=self.clock,
                scheduler=self.scheduler,
            )
            for number in range(len(self.values))
        ]
        seconds = time.process_time() - start
        self.check_bounds()
        count = len(self.logs)
        print(f"open, CPU us a partition: {seconds / count * 1e6:.0f}")
        print(f"memory, KiB a partition: {(resident_kib() - before) / count:.1f}")

    def check_bounds(self):
        """Check what a process may have open."""
        assert OPEN_FILES.held_count <= OPEN_FILES.segments_max + 1
        assert descriptor_count() < self.files_max
        assert mapping_count() < MAPPINGS_MAX

    def append(self):
        """Append a record to each."""
        for number, log in enumerate(self.logs):
            value = b"%d of %d" % (len(self.values[number]), number)
            value += bytes(VALUE_BYTES - len(value))
            assert len(self.values[number]) == log.append(value)
            self.values[number].append(value)
        self.check_bounds()

    def roll(self):
        """Begin a new segment in each."""
        for log in self.logs:
            log.roll()
        self.check_bounds()

    def read(self):
        """Compare what each holds, and one record in the middle."""
        for log, values in zip(self.logs, self.values, strict=True):
            assert values == [record.value for record in log.read("earliest")]
            middle = len(values) // 2
            assert values[middle] == log[middle].value
        self.check_bounds()

    def truncate(self):
        """Cut a record off each."""
        for number, log in enumerate(self.logs):
            log.truncate_to(len(self.values[number]) - 1)
            self.values[number].pop()
        self.check_bounds()

    def abandon(self):
        """Leave them as a process that is killed does."""
        for log in self.logs:
            assert not list(log.check())
            log.abandon()


def main(directory, partition_count, segment_count, files_max):
    """Use all partitions in turn."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    partitions = Partitions(directory, partition_count, files_max)
    partitions.open(is_clean=True)
    for number in range(segment_count):
        if number > 0:
            partitions.roll()
        partitions.append()
        partitions.append()
    partitions.read()
    partitions.truncate()
    partitions.append()
    partitions.read()
    print(f"descriptors: {descriptor_count()}")
    print(f"mappings: {mapping_count()}")
    partitions.abandon()
    partitions.open(is_clean=False)
    partitions.read()
    partitions.append()
    partitions.abandon()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
