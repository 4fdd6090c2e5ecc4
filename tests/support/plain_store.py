"""A store of stand-alone logs, a directory for each partition: what coordinators ask of a store."""

from __future__ import annotations

import os
import threading

import numpy as np

from logstore._native import group_partitions, measure_list
from logstore.clock import ManualClock
from logstore.files import REAL_FILES
from logstore.opening import open_log
from logstore.partitioner import SpreadRecords
from logstore.positions import OffsetMetadataManager, Positions, PositionSettings
from logstore.producer_ids import ProducerIdManager
from logstore.scheduler import ManualScheduler
from logstore.transaction_coordinator import TransactionCoordinator, TransactionSettings
from logstore.transactions import Transaction


class PlainTopic:
    """What coordinators ask of a topic; a key's first byte decides."""

    def __init__(self, store, name):
        self.store = store
        self.name = name

    @property
    def partition_count(self):
        count = sum(1 for _ in self.store.partitions_of(self.name))
        if not count:
            raise KeyError(self.name)
        return count

    def choose_partition(self, key, value=None, headers=()):
        del value, headers
        return (key or b"\0")[0] % self.partition_count

    def spread(self, given):
        keys = given.keys or [None] * len(given)
        numbers = np.array([self.choose_partition(key) for key in keys], np.int32)
        grouped = group_partitions(numbers, self.partition_count)
        return SpreadRecords(given, measure_list(given.values), numbers, grouped)


class PlainStore:
    """
    Topics as directories ``<topic>-<partition>``, opened when they are asked for.

    ``partitions`` is what the internal topics are made with: few, for speed.
    """

    def __init__(
        self,
        path,
        *,
        files=REAL_FILES,
        clock=None,
        scheduler=None,
        partitions=2,
        flush_threads=0,
    ):
        self.path = os.fspath(path)
        self.files = files
        self.clock = clock or ManualClock()
        self.scheduler = scheduler or ManualScheduler(self.clock)
        self.logs = {}
        self.errors = []
        self.is_gone = False
        self._lock = threading.RLock()
        os.makedirs(self.path, exist_ok=True)
        self.producer_ids = ProducerIdManager(lambda: [self.path], files=files)
        self.coordinator = TransactionCoordinator(
            self,
            self.producer_ids,
            TransactionSettings(num_partitions=partitions, flush_threads=flush_threads),
        )
        self.offsets = OffsetMetadataManager(self, PositionSettings(num_partitions=partitions))
        self.coordinator.load()

    # -- what coordinators ask ---------------------------------------------------------------------

    def __contains__(self, topic):
        return any(self.partitions_of(topic))

    def __getitem__(self, place):
        if isinstance(place, str):
            return PlainTopic(self, place)
        topic, partition = place
        with self._lock:
            if (topic, partition) not in self.logs:
                directory = os.path.join(self.path, f"{topic}-{partition}")
                if not self.files.exists(directory):
                    raise KeyError(place)
                self.logs[topic, partition] = open_log(
                    directory, files=self.files, clock=self.clock, scheduler=self.scheduler
                )
            return self.logs[topic, partition]

    def create_topic(self, name, partitions=1, config=None):
        with self._lock:
            for partition in range(partitions):
                directory = os.path.join(self.path, f"{name}-{partition}")
                self.logs[name, partition] = open_log(
                    directory,
                    config={**(config or {}), "segment.index.bytes": 1200},
                    files=self.files,
                    clock=self.clock,
                    scheduler=self.scheduler,
                )

    def report(self, error, what):
        self.errors.append((what, error))

    def partitions_of(self, topic):
        if not self.files.exists(self.path):
            return
        for name in self.files.listdir(self.path):
            if name.rpartition("-")[0] == topic and "." not in name:
                yield name

    # -- what a program asks -----------------------------------------------------------------------

    def transaction(self, transactional_id, timeout_ms=60_000, **options):
        return Transaction(
            self,
            self.coordinator,
            transactional_id,
            timeout_ms=timeout_ms,
            position_records=self.offsets.records,
            **options,
        )

    def groups(self):
        return self.offsets.groups()

    def positions(self, group):
        return Positions(self.offsets, group)

    def values(self, topic, partition=0, isolation="read_committed"):
        """The values of a partition, as a reader sees them."""
        return list(self[topic, partition].read_values("earliest", isolation=isolation))

    def close(self):
        if self.is_gone:
            return
        self.is_gone = True
        self.coordinator.close()
        for log in self.logs.values():
            if not log.is_closed:
                assert [] == list(log.check())
            log.close()

    def abandon(self):
        """Leave it as a process that is killed does."""
        self.is_gone = True
        for log in self.logs.values():
            log.abandon()

    def reopened(self, *, killed=False, files=None):
        """Another store on the same directory, after this one was closed or killed."""
        if killed:
            self.abandon()
        else:
            self.close()
        return PlainStore(self.path, files=files or self.files, clock=self.clock)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
