"""
Any sequence of operations leaves a store equal to a dictionary of lists.

The model: topics with their settings, and for each partition every record that was appended, with
the fate of its transaction. From it follows what a reader sees: all of that in a log that deletes,
from its log start on; in one that compacts, no less than the newest value of each key and all that
the cleaner has not come to, and nothing that was gone.

The disk is simulated. The end of the process takes nothing; a power loss takes what was not made
durable, from the end, and never a committed transaction.
"""

from __future__ import annotations

import os
import tempfile

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sampling import examples
from store_model import MARKER, Fate, Topic, raw_records, times_of

from logstore.cleaner_config import CleanerConfig
from logstore.clock import ManualClock
from logstore.errors import (
    InvalidPartitionsError,
    InvalidRecordError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    TopicExistsError,
    UnknownTopicError,
)
from logstore.partitioner import partition_of_key
from logstore.record import encode_batch
from logstore.restoring import restore_store
from logstore.scheduler import ManualScheduler
from logstore.simulated_files import SimulatedFiles
from logstore.store import open_log_store
from logstore.topic_names import INTERNAL_TOPICS
from logstore.transaction_log import TransactionState

NOW_MS = 1_700_000_000_000
TIMEOUT_MS = 60_000
# How often the coordinator looks for transactions that have timed out.
ABORT_INTERVAL_MS = 10_000
# How often retention looks at each log, by default.
RETENTION_INTERVAL_MS = 300_000
# Tiny alphabets: what a deleted topic had must have a chance to come back.
NAMES = st.sampled_from(["a", "b", "a-0"])
VALUES = st.sampled_from([b"x", b"y", None, b"a longer value" * 4])
KEYS = st.sampled_from([b"k", b"l", b"m"])
RECORDS = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=5)
IDS = st.sampled_from(["t", "u"])
GROUPS = st.sampled_from(["g", "h"])
PRODUCERS = st.sampled_from([1_000_001, 1_000_002])
OVERRIDES = st.fixed_dictionaries(
    {},
    optional={
        "retention.ms": st.sampled_from([None, "300", "500"]),
        "retention.bytes": st.sampled_from([None, "300", "500"]),
        "segment.bytes": st.sampled_from([None, "300", "500"]),
        "flush.messages": st.sampled_from([None, "3"]),
        "cleanup.policy": st.sampled_from([None, "compact", "compact,delete"]),
        "delete.retention.ms": st.sampled_from([None, "0", "10000"]),
        "min.compaction.lag.ms": st.sampled_from([None, "100"]),
    },
)
CONFIGS = OVERRIDES.map(lambda found: {k: v for k, v in found.items() if v is not None})
CLEANER = CleanerConfig(log_cleaner_dedupe_buffer_size=100_000)


class StoreMachine(RuleBasedStateMachine):
    """Operations on a store, and the same on dictionaries."""

    @initialize(count=st.integers(1, 3), seed=st.integers(0, 2**16), config=CONFIGS)
    def open_store(self, count, seed, config):
        memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.directory = tempfile.TemporaryDirectory(prefix="store-machine-", dir=memory)
        self.paths = [os.path.join(self.directory.name, str(n)) for n in range(count)]
        self.seed = seed
        self.clock = ManualClock(NOW_MS)
        self.topics = {}
        self.fates = {}  # Open transactions by id.
        self.zombies = []
        self.snapshots = 0
        self.last_snapshot = None
        self.positions = []  # (group, place, offset, fate or None, ms), as they were written.
        self.moments = [NOW_MS - 1]  # When time passed, for those who go back.
        self.open(lazy=False)
        self.create("a", 2, config)

    def open(self, *, lazy):
        self.seed += 1
        self.files = SimulatedFiles(self.seed)
        self.scheduler = ManualScheduler(self.clock)
        self.store = open_log_store(
            *self.paths,
            config={
                "segment.bytes": 400,
                "segment.index.bytes": 240,
                "num.recovery.threads.per.data.dir": 1,
                "file.delete.delay.ms": 5_000,
                "message.timestamp.after.max.ms": 2**62,
                "min.cleanable.dirty.ratio": 0.01,
                "log.cleaner.dedupe.buffer.size": 1 << 20,
                "transaction.state.log.num.partitions": 1,
                "offsets.topic.num.partitions": 1,
            },
            lazy=lazy,
            files=self.files,
            clock=self.clock,
            scheduler=self.scheduler,
        )

    def draw_topic(self, data):
        name = data.draw(st.sampled_from(sorted(self.topics)))
        return name, self.topics[name]

    def draw_place(self, data):
        name, topic = self.draw_topic(data)
        return name, data.draw(st.integers(0, len(topic.partitions) - 1))

    def logs(self):
        """Yield every partition with its log."""
        for name, topic in self.topics.items():
            for number, partition in enumerate(topic.partitions):
                yield topic, partition, self.store[name, number]

    # -- topics ------------------------------------------------------------------------------------

    @rule(name=NAMES, partitions=st.integers(1, 3), config=CONFIGS)
    def create(self, name, partitions, config):
        if name in self.topics:
            with pytest.raises(TopicExistsError):
                self.store.create_topic(name)
            return
        topic = self.store.create_topic(name, partitions=partitions, config=config)
        self.topics[name] = Topic(topic.topic_id, config, partitions)

    @rule(name=NAMES)
    def delete(self, name):
        if name not in self.topics:
            with pytest.raises(UnknownTopicError):
                self.store.delete_topic(name)
            return
        for fate in self.fates.values():  # What waits for the topic would have nowhere to go.
            if any(name == each[0] for each in fate.waiting):
                self.flush_transaction(fate)
        self.store.delete_topic(name)
        del self.topics[name]

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), count=st.integers(1, 4))
    def grow(self, data, count):
        name, topic = self.draw_topic(data)
        if count <= len(topic.partitions):
            with pytest.raises(InvalidPartitionsError):
                self.store.create_partitions(name, count)
            return
        self.store.create_partitions(name, count)
        topic.grow(count)

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), changes=OVERRIDES)
    def alter(self, data, changes):
        name, topic = self.draw_topic(data)
        self.store.alter_topic(name, changes)
        merged = {**topic.config, **changes}
        topic.configure({key: value for key, value in merged.items() if value is not None})

    # -- records -----------------------------------------------------------------------------------

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), key=KEYS, value=VALUES, sync=st.booleans())
    def append_with_key(self, data, key, value, sync):
        name, topic = self.draw_topic(data)
        number, offset = self.store[name].append(value, key=key, sync=sync)
        assert number == partition_of_key(key, len(topic.partitions))
        partition = topic.partitions[number]
        assert offset == len(partition.entries)
        partition.append([(key, value)])
        if sync:
            partition.durable = len(partition.entries)

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), records=RECORDS, sync=st.booleans())
    def extend_with_keys(self, data, records, sync):
        name, topic = self.draw_topic(data)
        keys, values = zip(*records, strict=True)
        found = self.store[name].extend(values, keys=keys, sync=sync)
        for (number, offset), (key, value) in zip(found, records, strict=True):
            assert number == partition_of_key(key, len(topic.partitions))
            partition = topic.partitions[number]
            assert offset == len(partition.entries)
            partition.append([(key, value)])
            if sync:
                partition.durable = len(partition.entries)

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), values=st.lists(VALUES, min_size=1, max_size=5))
    def append_without_keys(self, data, values):
        name, number = self.draw_place(data)  # Not the sticky one: it is drawn by chance.
        topic, log = self.topics[name], self.store[name, number]
        if "compact" in topic.policy:
            with pytest.raises(InvalidRecordError):
                log.extend(values)
            return
        partition = topic.partitions[number]
        assert len(partition.entries) == log.extend(values).start
        partition.append([(None, value) for value in values])

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), producer=PRODUCERS, records=RECORDS, skips=st.booleans())
    def append_idempotently(self, data, producer, records, skips):
        """A batch, the same once more, and perhaps one that is missing its predecessor."""
        name, number = self.draw_place(data)
        partition = self.topics[name].partitions[number]
        log = self.store[name, number]
        records = records[:3]  # More might not fit a segment, in one batch.
        sequence = max((last for who, _, last in partition.sequences if who == producer), default=0)

        def append(base_sequence):
            now_ms = self.clock.milliseconds()
            rows = [(None, now_ms, key, value, ()) for key, value in records]
            batch = encode_batch(
                rows, producer_id=producer, producer_epoch=0, base_sequence=base_sequence
            )
            return log.append_batches(batch, leader_epoch=log.leader_epoch).first_offset

        assert len(partition.entries) == append(sequence)
        partition.append(records)
        assert len(partition.entries) - len(records) == append(sequence)  # A duplicate.
        sequence += len(records)
        partition.sequences.append((producer, len(partition.entries), sequence))
        if skips:
            with pytest.raises(OutOfOrderSequenceError):
                append(sequence + 1)

    @precondition(lambda self: self.topics)
    @rule(data=st.data())
    def flush(self, data):
        name, topic = self.draw_topic(data)
        self.store[name].flush()
        for partition in topic.partitions:
            partition.durable = len(partition.entries)

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), rolls=st.booleans())
    def compact(self, data, rolls):
        """As the cleaner would; rolled, all of a log can be cleaned."""
        place = self.draw_place(data)
        log = self.store[place]
        if rolls:
            log.roll()
        if log.config.compact:
            log.compact(config=CLEANER, refuse_null_keys=False)

    # -- transactions ------------------------------------------------------------------------------

    @rule(name=IDS)
    def begin(self, name):
        """Whoever has the id is fenced."""
        old = self.fates.pop(name, None)
        handle = self.store.transaction(name, timeout_ms=TIMEOUT_MS)
        if old is not None:
            self.end(old, "aborted")
            self.zombies.append(old)
        self.fates[name] = Fate(handle)

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), name=IDS, records=RECORDS, flushes=st.booleans(), bulk=st.booleans())
    def write_in_transaction(self, data, name, records, flushes, bulk):
        if name not in self.fates:
            self.begin(name)
        fate = self.fates[name]
        name, topic = self.draw_topic(data)
        keys, values = zip(*records, strict=True)
        if bulk:
            fate.handle.extend(name, values, keys=keys)
        else:
            for key, value in records:
                fate.handle.append(name, value, key=key)
        count = len(topic.partitions)
        fate.waiting += [(name, partition_of_key(key, count), key, value) for key, value in records]
        self.take_written(fate)
        if flushes:
            self.flush_transaction(fate)

    @precondition(lambda self: self.fates and self.topics)
    @rule(data=st.data(), group=GROUPS, offset=st.integers(0, 3))
    def move_in_transaction(self, data, group, offset):
        fate = self.fates[data.draw(st.sampled_from(sorted(self.fates)))]
        place = self.draw_place(data)
        fate.handle.commit_positions(group, {place: offset})
        fate.moves.append((group, place, offset))

    def flush_transaction(self, fate):
        fate.handle.flush()
        self.take_written(fate)
        assert not fate.waiting
        self.take_moves(fate)

    def take_written(self, fate):
        """Note what has been written: a batch that was full does not wait for the flush."""
        for name, topic in self.topics.items():
            for number, partition in enumerate(topic.partitions):
                count = self.store[name, number].log_end_offset - len(partition.entries)
                if count == 0:
                    continue
                mine = [each for each in fate.waiting if each[:2] == (name, number)][:count]
                assert count == len(mine)
                partition.append([each[2:] for each in mine], fate)
                self.note_write(fate)
                for each in mine:
                    fate.waiting.remove(each)

    def take_moves(self, fate):
        if fate.moves:
            self.note_write(fate)
            fate.has_moves = True
        now_ms = self.clock.milliseconds()
        self.positions += [(*move, fate, now_ms) for move in fate.moves]
        fate.moves.clear()

    def note_write(self, fate):
        if fate.wrote_ms is None:
            fate.wrote_ms = self.clock.milliseconds()

    def end(self, fate, state):
        fate.state = state
        fate.ended_ms = self.clock.milliseconds()
        fate.waiting.clear()
        fate.moves.clear()
        self.take_markers(fate if state == "committed" else None)

    def take_markers(self, fate=None):
        """Note control records at the ends of logs: nothing else may have come there."""
        for _, partition, log in self.logs():
            missing = log.log_start_offset - len(partition.entries)
            partition.entries += [MARKER] * missing  # Retention was there before us.
            for offset, is_control, *_ in raw_records(log, len(partition.entries)):
                assert is_control
                assert offset == len(partition.entries)
                partition.entries.append(MARKER)
                if fate is not None:
                    partition.commits[offset] = fate

    @precondition(lambda self: self.fates)
    @rule(data=st.data())
    def commit(self, data):
        """Everything that was written is seen, and survives."""
        fate = self.fates.pop(data.draw(st.sampled_from(sorted(self.fates))))
        fate.handle.flush()
        self.take_written(fate)
        self.take_moves(fate)
        fate.handle.commit()
        self.end(fate, "committed")
        for _, partition, _ in self.logs():
            if any(entry is not MARKER and entry[2] is fate for entry in partition.entries):
                partition.durable = len(partition.entries)

    @precondition(lambda self: self.fates)
    @rule(data=st.data())
    def abort(self, data):
        fate = self.fates.pop(data.draw(st.sampled_from(sorted(self.fates))))
        fate.handle.abort()
        self.end(fate, "aborted")

    @precondition(lambda self: self.zombies and self.topics)
    @rule(data=st.data(), commits=st.booleans())
    def zombie(self, data, commits):
        """What was fenced stays so, whatever it tries."""
        handle = self.zombies[-1].handle
        place = self.draw_place(data)

        def write():
            handle.append(place, b"late", key=b"k")
            handle.flush()

        with pytest.raises(ProducerFencedError):
            (handle.commit if commits else write)()

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), group=GROUPS, offset=st.integers(0, 3))
    def move(self, data, group, offset):
        place = self.draw_place(data)
        self.store.positions(group).commit({place: offset}, sync=True)
        self.positions.append((group, place, offset, None, self.clock.milliseconds()))

    # -- time and ends -----------------------------------------------------------------------------

    @rule(ms=st.sampled_from([10, 5_000, 61_000, 400_000]))
    def let_time_pass(self, ms):
        self.moments.append(self.clock.milliseconds())
        ran = self.scheduler.advance_to(self.clock.milliseconds() + ms)
        assert not [each for each in ran if "failed" in each]
        for name, fate in list(self.fates.items()):
            if fate.wrote_ms is None:
                continue
            age_ms = self.clock.milliseconds() - fate.wrote_ms
            is_late = age_ms > TIMEOUT_MS + ABORT_INTERVAL_MS
            if not is_late and age_ms >= TIMEOUT_MS:
                found = self.store._transactions.describe(name)  # It may have been looked at yet.
                is_late = found.state is not TransactionState.ONGOING
            if is_late:
                fate.state = "aborted"
                self.zombies.append(self.fates.pop(name))
        self.take_markers()
        if ms > RETENTION_INTERVAL_MS:
            self.check_that_old_records_are_gone()

    def check_that_old_records_are_gone(self):
        """A round of retention came, at the earliest 100 s after the last append."""
        for topic, _, log in self.logs():
            if topic.policy != "delete":
                continue
            if "retention.ms" in topic.config:
                assert log.log_start_offset == log.log_end_offset
            if "retention.bytes" in topic.config:
                sizes = [segment.size_bytes for segment in log.segments]
                assert sum(sizes[1:]) < int(topic.config["retention.bytes"])

    @rule(lazy=st.booleans(), end=st.sampled_from(["close", "kill", "power loss"]))
    def open_again(self, lazy, end):
        if end == "close":
            self.store.close()
            assert all(os.path.exists(f"{path}/.kafka_cleanshutdown") for path in self.paths)
        else:
            self.files.crash(power_loss=end == "power loss")
            self.store.abandon()
        self.open(lazy=lazy)
        self.after_restart(is_loss=end == "power loss")

    @rule(goes_on=st.sampled_from([None, "the snapshot", "what is restored of it"]))
    def snapshot(self, goes_on):
        """It is the same store, where what was open is aborted; now and then that goes on."""
        path = self.take_snapshot()
        if goes_on is not None:
            self.store.close()
            if goes_on == "what is restored of it":
                path = restore_store(path, f"{path}-restored", clock=self.clock).path
            self.paths = [path]
            self.open(lazy=False)
            self.after_restart(is_loss=False)
            return
        with open_log_store(path, mode="r", clock=self.clock) as snapshot:
            assert [] == list(snapshot.check())
            for name, topic in self.topics.items():
                for number, partition in enumerate(topic.partitions):
                    there = {each.offset: (each.key, each.value) for each in snapshot[name, number]}
                    here = {
                        each.offset: (each.key, each.value) for each in self.store[name, number]
                    }
                    expected = partition.committed(open_is_aborted=True)
                    assert here.items() <= there.items() <= expected.items()
                    assert partition.is_compacted or there == expected

    def take_snapshot(self):
        self.snapshots += 1
        path = os.path.join(self.directory.name, f"snapshot-{self.snapshots}")
        base = self.last_snapshot if os.path.exists(self.last_snapshot or "") else None
        self.store.snapshot(path, base=base)
        self.last_snapshot = path
        return path

    @rule(data=st.data(), goes_on=st.booleans())
    def restore_to_time(self, data, goes_on):
        """What is behind it is gone, transactions as a whole; now and then that goes on."""
        to_ms = data.draw(st.sampled_from([*self.moments[-5:], self.clock.milliseconds()]))
        path = self.take_snapshot()
        restored = restore_store(path, f"{path}-restored", to_time=to_ms, clock=self.clock)
        expected = {}
        with open_log_store(path, mode="r", clock=self.clock) as snapshot:
            raw = {
                (name, number): dict(times_of(snapshot[name, number]))
                for name, topic in self.topics.items()
                for number in range(len(topic.partitions))
            }
            cuts = {
                place: next((at for at, ms in sorted(times.items()) if ms > to_ms), None)
                for place, times in raw.items()
            }
            assert {place: cut for place, cut in cuts.items() if cut is not None} == {
                tuple(place): cut
                for place, cut in restored.cuts.items()
                if place.topic not in INTERNAL_TOPICS
            }
            undone = self.undone_at(to_ms, raw, cuts)
            for place, cut in cuts.items():
                entries = self.topics[place[0]].partitions[place[1]].entries
                expected[place] = [
                    (each.offset, each.key, each.value)
                    for each in snapshot[place]
                    if (cut is None or each.offset < cut) and entries[each.offset][2] not in undone
                ]
        if goes_on:
            self.store.close()
            self.paths = [restored.path]
            self.open(lazy=False)
            store = self.store
        else:
            store = open_log_store(restored.path, mode="r", clock=self.clock)
        assert [] == list(store.check())
        for place, records in expected.items():
            assert records == [(each.offset, each.key, each.value) for each in store[place]]
        for group in ("g", "h"):
            found = dict(store.positions(group).items())
            assert self.positions_at(group, to_ms, undone, store) == found
        if goes_on:
            self.go_back(to_ms, raw, cuts, undone)
            self.after_restart(is_loss=False)
        else:
            store.close()

    def undone_at(self, to_ms, raw, cuts):
        """Return the committed transactions of which anything is behind a time."""
        undone = set()
        fates = {each[3] for each in self.positions if each[3] is not None and each[3].has_moves}
        undone |= {fate for fate in fates if fate.ended_ms is not None and fate.ended_ms > to_ms}
        for (name, number), times in raw.items():
            partition, cut = self.topics[name].partitions[number], cuts[name, number]
            for fate in set(partition.commits.values()):
                at = partition.commit_of(fate, times)
                if cut is not None and at is not None and at >= cut:
                    undone.add(fate)
        return undone

    def positions_of(self, to_ms, undone):
        """Return the positions that were committed by a time."""
        return [
            each
            for each in self.positions
            if each[4] <= to_ms
            and (each[3] is None or (each[3].state == "committed" and each[3] not in undone))
        ]

    def positions_at(self, group, to_ms, undone, store):
        """Return what a group's positions were at a time, within what the partitions had then."""
        found = {each[1]: each[2] for each in self.positions_of(to_ms, undone) if each[0] == group}
        return {
            place: min(offset, store[place].log_end_offset) if place in store else offset
            for place, offset in found.items()
        }

    def go_back(self, to_ms, raw, cuts, undone):
        """Take back in the model what is behind a time."""
        for (name, number), cut in cuts.items():
            partition = self.topics[name].partitions[number]
            partition.cut_to(cut, self.store[name, number], raw[name, number])
        clamped = [
            (group, place, offset, None, to_ms)
            for group in ("g", "h")
            for place, offset in self.positions_at(group, to_ms, undone, self.store).items()
        ]
        self.positions = [*self.positions_of(to_ms, undone), *clamped]
        for fate in undone:
            fate.state = "aborted"

    def after_restart(self, *, is_loss):
        """What was open is aborted; a power loss has taken the ends of logs."""
        for fate in self.fates.values():
            fate.state = "aborted"
        self.fates.clear()
        self.zombies.clear()
        for _, partition, log in self.logs():
            partition.restart(log, is_loss=is_loss)

    # -- what has to hold --------------------------------------------------------------------------

    @invariant()
    def holds_exactly_the_model(self):
        assert not self.store.errors
        assert sorted(self.topics) == [name for name in self.store if name not in INTERNAL_TOPICS]
        for name, topic in self.topics.items():
            found = self.store[name]
            assert topic.topic_id == found.topic_id
            assert topic.config == dict(self.store.configs.get(name).config)
            assert len(topic.partitions) == len(found)
        for topic, partition, log in self.logs():
            assert topic.topic_id == log.topic_id
            assert len(partition.entries) == log.log_end_offset
            start = log.log_start_offset
            assert start == partition.start or (
                start > partition.start
                and "delete" in topic.policy
                and topic.config.keys() & {"retention.ms", "retention.bytes"}
            )
            partition.start = start
            partition.check(log)

    @invariant()
    def positions_are_what_is_committed(self):
        for group in ("g", "h"):
            expected = {
                place: offset
                for name, place, offset, fate, _ in self.positions
                if name == group and (fate is None or fate.state == "committed")
            }
            assert expected == dict(self.store.positions(group).items())

    def teardown(self):
        if hasattr(self, "store"):
            try:
                assert [] == list(self.store.check())
                self.store.close()
            finally:
                self.store.abandon()
                self.directory.cleanup()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=examples(30), stateful_step_count=25, deadline=None
)
