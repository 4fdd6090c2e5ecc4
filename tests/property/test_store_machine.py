"""
Any sequence of operations leaves a store equal to a dictionary of lists.

The model: topics with their settings and the records of each partition. A kill of the process takes
nothing that was appended, a clean end nothing at all.
"""

from __future__ import annotations

import os
import shutil
import tempfile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sampling import examples

from logstore.clock import ManualClock
from logstore.errors import InvalidPartitionsError, TopicExistsError, UnknownTopicError
from logstore.partitioner import partition_of_key
from logstore.scheduler import ManualScheduler
from logstore.store import open_log_store

NOW_MS = 1_700_000_000_000
# Tiny alphabets: what a deleted topic had must have a chance to come back.
NAMES = st.sampled_from(["a", "b", "a-0", "__consumer_offsets"])
VALUES = st.sampled_from([b"x", b"y", None, b"a longer value" * 4])
KEYS = st.sampled_from([b"k", b"l", b"m"])
OVERRIDES = st.dictionaries(
    st.sampled_from(["retention.ms", "segment.bytes", "flush.messages", "retention.bytes"]),
    st.sampled_from([None, "300", "500"]),
    max_size=2,
)
CONFIGS = OVERRIDES.map(lambda found: {k: v for k, v in found.items() if v is not None})


class StoreMachine(RuleBasedStateMachine):
    """Operations on a store, and the same on dictionaries."""

    @initialize(count=st.integers(1, 3), threads=st.sampled_from([1, 2]))
    def open_empty_store(self, count, threads):
        self.directory = tempfile.mkdtemp(
            prefix="store-machine-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None
        )
        self.paths = [os.path.join(self.directory, str(n)) for n in range(count)]
        self.threads = threads
        self.clock = ManualClock(NOW_MS)
        self.topics = {}
        self.starts = {}  # Of logs: retention raises them, and nothing lowers them.
        self.snapshots = 0
        self.last_snapshot = None
        self.open(lazy=False)

    def open(self, *, lazy):
        self.scheduler = ManualScheduler(self.clock)
        self.store = open_log_store(
            *self.paths,
            config={
                "segment.bytes": 400,
                "num.recovery.threads.per.data.dir": self.threads,
                "file.delete.delay.ms": 5_000,
                "message.timestamp.after.max.ms": 2**62,
            },
            lazy=lazy,
            clock=self.clock,
            scheduler=self.scheduler,
        )

    @rule(name=NAMES, partitions=st.integers(1, 3), config=CONFIGS)
    def create(self, name, partitions, config):
        if name in self.topics:
            try:
                self.store.create_topic(name)
            except TopicExistsError:
                return
            raise AssertionError
        topic = self.store.create_topic(name, partitions=partitions, config=config)
        self.topics[name] = (topic.topic_id, config, [[] for _ in range(partitions)])

    @rule(name=NAMES)
    def delete(self, name):
        if name in self.topics:
            self.store.delete_topic(name)
            del self.topics[name]
            return
        try:
            self.store.delete_topic(name)
        except UnknownTopicError:
            return
        raise AssertionError

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), count=st.integers(1, 4))
    def grow(self, data, count):
        name = data.draw(st.sampled_from(sorted(self.topics)))
        _, _, partitions = self.topics[name]
        try:
            self.store.create_partitions(name, count)
        except InvalidPartitionsError:
            assert count <= len(partitions)
            return
        partitions += [[] for _ in range(count - len(partitions))]

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), changes=OVERRIDES)
    def alter(self, data, changes):
        name = data.draw(st.sampled_from(sorted(self.topics)))
        topic_id, config, partitions = self.topics[name]
        self.store.alter_topic(name, changes)
        config = {k: v for k, v in {**config, **changes}.items() if v is not None}
        self.topics[name] = (topic_id, config, partitions)

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), value=VALUES, key=KEYS, sync=st.booleans())
    def append_with_key(self, data, value, key, sync):
        name = data.draw(st.sampled_from(sorted(self.topics)))
        _, _, partitions = self.topics[name]
        partition, offset = self.store[name].append(value, key=key, sync=sync)
        assert partition == partition_of_key(key, len(partitions))
        assert offset == len(partitions[partition])
        partitions[partition].append((key, value))

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), values=st.lists(VALUES, min_size=1, max_size=5))
    def append_without_key(self, data, values):
        name = data.draw(st.sampled_from(sorted(self.topics)))
        _, _, partitions = self.topics[name]
        partition, offset = self.store[name].append(values[0])
        assert offset == len(partitions[partition])
        partitions[partition].append((None, values[0]))
        self.store[name, partition].extend(values)
        partitions[partition] += [(None, value) for value in values]

    @rule(ms=st.sampled_from([10, 5_000, 61_000, 400_000]))
    def let_time_pass(self, ms):
        ran = self.scheduler.advance_to(self.clock.milliseconds() + ms)
        assert not [each for each in ran if "failed" in each]

    @rule(lazy=st.booleans())
    def close_and_open(self, lazy):
        self.store.close()
        assert all(os.path.exists(f"{path}/.kafka_cleanshutdown") for path in self.paths)
        self.open(lazy=lazy)

    @rule(lazy=st.booleans())
    def kill_and_open(self, lazy):
        self.store.abandon()
        self.open(lazy=lazy)

    @rule(goes_on=st.booleans())
    def snapshot(self, goes_on):
        """It is the same store; now and then it is the one that goes on."""
        self.snapshots += 1
        path = os.path.join(self.directory, f"snapshot-{self.snapshots}")
        base = self.last_snapshot if os.path.exists(self.last_snapshot or "") else None
        self.store.snapshot(path, base=base)
        self.last_snapshot = path
        if goes_on:
            self.store.close()
            self.paths = [path]
            self.open(lazy=False)
            return
        store = self.store
        self.store = open_log_store(path, mode="r", clock=self.clock)
        self.holds_exactly_the_model()
        assert [] == list(self.store.check())
        self.store.close()
        self.store = store

    @invariant()
    def holds_exactly_the_model(self):
        assert not self.store.errors
        assert sorted(self.topics) == list(self.store)
        for name, (topic_id, config, partitions) in self.topics.items():
            topic = self.store[name]
            assert topic_id == topic.topic_id
            assert config == dict(self.store.configs.get(name).config)
            assert len(partitions) == len(topic)
            for partition, records in enumerate(partitions):
                log = topic[partition]
                assert topic_id == log.topic_id
                start = log.log_start_offset
                before = self.starts.get((topic_id, partition), 0)
                assert start == before or (
                    start > before and config.keys() & {"retention.ms", "retention.bytes"}
                )
                self.starts[topic_id, partition] = start
                assert len(records) == log.log_end_offset
                found = [(record.offset, record.key, record.value) for record in log]
                assert found == [(n, *records[n]) for n in range(start, len(records))]

    def teardown(self):
        if hasattr(self, "store"):
            assert [] == list(self.store.check())
            self.store.close()
            shutil.rmtree(self.directory)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=examples(25), stateful_step_count=25)
